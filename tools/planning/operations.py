"""List what a compiled program runs on a device: its kernels and messages, with the work of each.

Each array in device memory counts its bytes once, a slice as what it takes, an update in place as the update.
Of causal attention in a fused kernel, only the half that the mask leaves counts.
"""

import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tools.planning.program import Computation, Instruction, Shape, numbers

KINDS = ("matrix products", "attention", "loss", "norms and elementwise", "optimizer", "copies")
COPIES = {"copy", "copy-start", "slice-start", "transpose", "bitcast-convert"}
COLLECTIVES = {
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"),
    *("collective-broadcast", "ragged-all-to-all"),
}
FREE = {  # no kernel is started for these
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"),
    *("replica-id", "opt-barrier", "add-dependency", "domain", "get-dimension-size", "iota"),
}
SLICES = {"slice", "dynamic-slice", "gather"}
UPDATES = {"dynamic-update-slice", "scatter"}
PASSED_ON = {"tuple", "custom-call"} | COLLECTIVES  # a fusion does not read what it gives to these
SAME_BYTES = {"bitcast", "reshape", "get-tuple-element", "copy", "convert", "transpose"}
TRANSCENDENTAL = set("exponential exponential-minus-one log log-plus-one tanh logistic power erf".split())
TPU_MARKS = {  # custom calls that start no kernel, or one whose collective is counted by itself
    *("AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound"),
    *("AsyncCollectiveStart", "AsyncCollectiveDone"),
}
SPLASH_PRODUCTS = {
    "fwd": 2,
    "dq": 3,
    "dkv": 4,
}  # matrices multiplied in each of its kernels


@dataclass(frozen=True)
class Operation:
    """A kernel or a message, and the work of one run of it."""

    instruction: Instruction
    times: int  # how often it runs in one execution of the program
    flops: float = 0.0
    dtype: str = ""  # of the operands of its products
    read: int = 0  # bytes
    written: int = 0  # bytes
    collective: str = ""  # its name, if it is one
    message: int = 0  # bytes of the whole array that it moves, as a device sees it
    groups: tuple[tuple[int, ...], ...] = ()  # the devices that take part together

    @property
    def bytes(self) -> int:
        return self.read + self.written

    @property
    def exponentials(self) -> int:
        """How many exponentials, logarithms and the like it takes."""
        return sum(part.shapes[0].size for part in self.parts if part.opcode in TRANSCENDENTAL)

    @property
    def runs_under_others(self) -> bool:
        """Whether other kernels run meanwhile: true of messages, and a TPU's copies to or from the chip."""
        return bool(self.collective) or self.instruction.opcode in ("copy-start", "slice-start")

    @property
    def parts(self) -> list[Instruction]:
        """The instruction, and of a fusion those that it holds, products first."""
        parts = [part for fused in self.instruction.called("calls") for part in fused.instructions]
        return [self.instruction, *sorted(parts, key=lambda x: x.opcode not in ("dot", "convolution"))]

    @property
    def kind(self) -> str:
        """The innermost `jax.named_scope` that KINDS has, or else what it computes."""
        for part in self.parts:
            if scopes := re.findall(r"\b(attention|loss|optimizer)\b", part.op_name):
                return scopes[-1]
        if self.flops:
            return "matrix products"
        return "copies" if self.instruction.opcode in COPIES else "norms and elementwise"


def operations(program: Computation) -> list[Operation]:
    return list(walk(program, 1, set()))


def walk(computation: Computation, times: int, met: set[str]) -> Iterator[Operation]:
    """Yield the operations of a computation; `met` are the channels of fused collectives so far.

    Of a conditional's branches, the one with the most FLOPs counts, and at a tie the most bytes: some device
    takes it.
    """
    for x in computation.instructions:
        if x.opcode == "while":
            if (runs := trip_count(x)) is None:
                print(f"warning: loop {x.name} has no trip count, and counts once", file=sys.stderr)
            yield from walk(x.called("body")[0], times * (runs or 1), met)
        elif x.opcode == "conditional":
            branches = x.called("branch_computations", "true_computation", "false_computation")
            yield from max((list(walk(branch, times, met)) for branch in branches), key=work)
        elif x.opcode in ("call", "async-start"):
            yield from walk(x.called("to_apply", "calls")[0], times, met)
        elif x.opcode.removesuffix("-start") in COLLECTIVES:
            yield message(x, x.opcode.removesuffix("-start"), times)
        elif x.opcode not in FREE and not x.opcode.endswith(("-done", "-update")):
            if x.opcode == "fusion":
                yield from fused_messages(x, times, met)
            yield Operation(x, times, *product_flops(x), *bytes_moved(x))


def work(branch: list[Operation]) -> tuple[float, float]:
    return sum(x.flops * x.times for x in branch), sum((x.bytes + x.message) * x.times for x in branch)


# The FLOPs of products: 2 m n k for a matrix product, in whatever form XLA has it


def product_flops(x: Instruction) -> tuple[float, str]:
    """Return the FLOPs of an instruction, or of what it calls, and its operands' type; 0 if no product."""
    if x.opcode in ("fusion", "call"):
        within = [product_flops(y) for called in x.called("calls", "to_apply") for y in called.instructions]
        return sum(flops for flops, _ in within), next((of for _, of in reversed(within) if of), "")
    shapes = [shape for operand in x.operands for shape in operand.shapes]
    flops = 0.0
    if x.opcode == "dot":
        flops = dot_flops(x, shapes[0], numbers(x.attribute("lhs_contracting_dims") or ""))
    elif x.opcode == "convolution":
        flops = convolution_flops(x, *shapes)
    elif x.opcode == "custom-call":
        flops = library_flops(x, shapes)
    return flops, shapes[0].dtype if flops else ""


def dot_flops(x: Instruction, lhs: Shape, contracted: list[int]) -> float:
    return 2.0 * x.shapes[0].size * math.prod(lhs.dims[axis] for axis in contracted)


def convolution_flops(x: Instruction, lhs: Shape, rhs: Shape) -> float:
    """Return the FLOPs of a TPU's form of a product: 2 x the length of each axis where it is longest."""
    lhs_labels, rhs_labels, out_labels = re.split("_|->", x.attribute("dim_labels") or "")
    out = x.shapes[0].dims
    flops = 2.0 * out[out_labels.index("b")] * out[out_labels.index("f")] * rhs.dims[rhs_labels.index("i")]
    for axis in filter(str.isdigit, lhs_labels):  # a batch's is in all three arrays, another in one or two
        within = ((lhs.dims, lhs_labels), (rhs.dims, rhs_labels), (out, out_labels))
        flops *= max(dims[labels.index(axis)] for dims, labels in within)
    return flops


def library_flops(x: Instruction, shapes: list[Shape]) -> float:
    """Return the FLOPs of a library's kernel: cuDNN's attention, cuBLAS's product, or Pallas' estimate."""
    if x.target.startswith("__cudnn$fmha"):
        fmha = json.loads(x.attribute("backend_config") or "")["cudnn_fmha_backend_config"]
        B, H, T, S = numbers(str(fmha["intermediate_tensor_shape"]["dimensions"]))
        pairs = attended(T, S, fmha.get("mask_type", ""), int(fmha.get("sliding_window_length", 0)))
        products = 5 if x.target.endswith("Backward") else 2
        return 2.0 * products * B * H * pairs * shapes[0].dims[-1]
    if x.target.startswith("__cublas$"):
        gemm = json.loads(x.attribute("backend_config") or "")["gemm_backend_config"]
        contracted = gemm["dot_dimension_numbers"]["lhs_contracting_dimensions"]
        return dot_flops(x, shapes[0], numbers(str(contracted)))
    if found := re.match(r"splash_m[hq]a_(fwd|dq|dkv)", x.name):  # causal here
        q, k, *_ = (shape for shape in shapes if len(shape.dims) > 2 and "f" in shape.dtype)
        T, S = q.dims[-2], k.dims[-2]
        return 2.0 * SPLASH_PRODUCTS[found[1]] * q.size / T * attended(T, S, "CAUSAL", window=0)
    found = re.search(r'"flops":"?(\d+)', x.text)  # another Pallas kernel: its author's estimate
    return float(found[1]) if found else 0.0


def attended(T: int, S: int, mask: str, window: int) -> int:
    """Return how many pairs of a query and a key a kernel computes."""
    if "CAUSAL" not in mask:
        return T * S
    lengths = np.minimum(np.arange(T) + 1, S)
    return int((np.minimum(lengths, window) if window else lengths).sum())


# Bytes


def bytes_moved(x: Instruction) -> tuple[int, int]:
    """Return the bytes that a kernel reads, and those that it writes."""
    if x.opcode == "fusion":
        (fused,) = x.called("calls")
        return sum(map(read_of, fused.parameters, x.operands)), written_by(fused.root, x)
    if x.opcode == "custom-call" and x.target in TPU_MARKS:
        return 0, 0
    if x.opcode in SLICES:
        return x.bytes, x.bytes
    if x.opcode == "dynamic-update-slice":
        return x.operands[1].bytes, x.operands[1].bytes
    if x.opcode in ("copy-start", "slice-start"):  # the result has the operand and a token as well
        moved = min(x.shapes[:2], key=lambda shape: shape.tiled_bytes)
        to = x.shapes[0] if x.opcode == "copy-start" else moved
        return moved.tiled_bytes if x.operands[0].shapes[0].bytes else 0, to.bytes
    return sum(operand.bytes for operand in dict.fromkeys(x.operands)), x.bytes


def read_of(parameter: Instruction, operand: Instruction) -> int:
    """Return the bytes that a fusion reads of an operand."""
    if operand.bytes == 0:  # on the chip
        return 0
    read = 0
    waiting = [parameter]
    while waiting:
        x = waiting.pop()
        for user in x.users:
            first = user.operands[0] is x
            if user.opcode in SLICES and first:
                read += user.tiled_bytes
            elif user.opcode in ("bitcast", "reshape", "get-tuple-element"):
                waiting.append(user)
            elif not (user.opcode in PASSED_ON or (first and user.opcode in UPDATES)):
                return operand.bytes
    return min(read, operand.bytes)


def written_by(root: Instruction, x: Instruction) -> int:
    """Return the bytes that a fusion with this root writes."""
    if root.opcode == "custom-call" and root.target in TPU_MARKS:
        return 0
    results = root.operands if root.opcode == "tuple" else (root,)
    if len(results) != len(x.shapes):
        return x.bytes
    return sum(min(shape.bytes, update_bytes(y)) for y, shape in zip(results, x.shapes, strict=True))


def update_bytes(result: Instruction) -> int:
    """Return the bytes that a fusion writes for one result."""
    x = result
    while x.opcode in SAME_BYTES:
        x = x.operands[0]
    if x is result and x.opcode in COLLECTIVES | {"parameter"}:  # passed on
        return 0
    if x.opcode == "dynamic-update-slice":
        return x.operands[1].tiled_bytes
    if x.opcode == "scatter":  # adds to what is there: reads it, and writes it
        return 2 * sum(y.tiled_bytes for y in x.operands[len(x.operands) // 2 + 1 :])
    return result.tiled_bytes


# Messages


def fused_messages(x: Instruction, times: int, met: set[str]) -> Iterator[Operation]:
    """Yield the collectives within a fusion, once each: a TPU's is in all kernels that run meanwhile."""
    (fused,) = x.called("calls")
    for y in fused.instructions:
        channel = y.attribute("channel_id") or y.name
        if y.opcode in COLLECTIVES and channel not in met:
            met.add(channel)
            scattered = y.opcode == "all-reduce" and fused.root.opcode == "dynamic-slice"
            yield message(y, "reduce-scatter" if scattered else y.opcode, times)


def message(x: Instruction, collective: str, times: int) -> Operation:
    """Describe a collective. Its message is what it takes or gives, the larger."""
    operands = sum(operand.tiled_bytes for operand in x.operands)
    result = x.tiled_bytes
    if x.opcode.endswith("-start") and len(x.shapes) > len(x.operands):  # the result has the operands too
        result -= operands
    size = operands if collective == "collective-permute" else max(operands, result)
    return Operation(x, times, collective=collective, message=size, groups=device_groups(x.text))


def device_groups(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the groups of devices that take part in a collective together, in any form of HLO's.

    {{0,1},{2,3}}; [2,2]<=[2,2]T(1,0): range(4) reshaped, transposed, reshaped; mesh['a'=2,'b'=2] {'b'}:
    along these axes of a mesh, whose devices are in order, or as device_ids=([2,2]T(1,0)) has them.
    """
    if listed := re.search(r"(?:replica_groups|source_target_pairs)=(\{\{.*?\}\})", text):
        return tuple(tuple(numbers(group)) for group in re.findall(r"\{[\d, ]+\}", listed[1]))
    if mesh := re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.*?\))\))? \{(.*?)\}", text):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh[1]))
        along = [list(sizes).index(name) for name in re.findall(r"'([^']+)'", mesh[3])]
        shape = np.array(list(sizes.values()), int)
        ids = transposed(mesh[2]) if mesh[2] else np.arange(shape.prod())
        ids = np.moveaxis(ids.reshape(shape), along, range(-len(along), 0)).reshape(-1, shape[along].prod())
    elif tiled := re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", text):
        ids = transposed(tiled[2]).reshape(numbers(tiled[1]))
    else:
        return ()
    return tuple(map(tuple, ids.tolist()))


def transposed(text: str) -> np.ndarray:
    """Return the numbers from 0 on that `[2,8]T(1,0)` stands for: reshaped, then transposed if it says so."""
    sizes, _, order = text.partition("T")
    return np.arange(np.prod(numbers(sizes))).reshape(numbers(sizes)).transpose(numbers(order) or None)


# Loops


def trip_count(loop: Instruction) -> int | None:
    """Return how often a loop runs its body; None if that cannot be found.

    XLA notes it for GPUs and CPUs. For TPUs it is the limit of the condition, as JAX's loops count from 0.
    """
    found = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.text)
    test = loop.called("condition")[0].root
    if not found and test.opcode == "compare" and "direction=LT" in test.text:
        found = re.match(r"\((\d+)\)", test.operands[1].text)
    return int(found[1]) if found else None
