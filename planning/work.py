"""Count the work of a compiled program: its kernels, with the FLOPs, bytes and messages of each.

    for kernel in kernels(program): ...               each with how often it runs

A kernel is an instruction of the entry computation, or of a loop's, a branch's or a call's, that the device
starts by itself; a fusion is one, whatever it holds. The rules:

FLOPs are those of products: 2 m n k for a matrix product, wherever it stands, in a fusion, as a convolution
(a TPU's form of it, where only the positions that meet count) or in a library's kernel. Of causal attention
in a fused kernel the half that the mask leaves counts; its backward pass computes five products to the
forward's two.

Bytes are those that a kernel reads from and writes to device memory: each array once, however often the
kernel uses it. What a kernel takes a slice of, or gathers from, counts with what it takes; what it updates in
place, with the update. Arrays in a TPU's memory on the chip count nothing, and elsewhere whole tiles.

A loop counts its body times its trip count; of a conditional's branches, the one with the most FLOPs counts,
and at a tie the one with the most bytes: some device takes it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planning.program import Computation, Instruction, Program, Shape, balanced

# Instructions that no kernel is started for.
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"),
    *("replica-id", "opt-barrier", "add-dependency", "domain", "get-dimension-size", "iota"),
}
COLLECTIVES = {
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"),
    *("collective-broadcast", "ragged-all-to-all"),
}
SLICES = {"slice", "dynamic-slice", "gather"}
UPDATES = {"dynamic-update-slice", "scatter"}
PASSED_ON = {"tuple", "custom-call"} | COLLECTIVES  # what a fusion gives to these, it does not read itself
TPU_MARKS = {  # TPU's custom calls that start no kernel, or one whose collective is counted by itself
    *("AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound"),
    *("AsyncCollectiveStart", "AsyncCollectiveDone"),
}
SAME_BYTES = {"bitcast", "reshape", "get-tuple-element", "copy", "convert", "transpose"}


@dataclass(frozen=True)
class Kernel:
    """The work of an instruction, once."""

    instruction: Instruction
    times: int  # how often it runs in one execution of the program
    flops: float = 0.0
    read: int = 0  # bytes
    written: int = 0  # bytes
    dtype: str = ""  # of the operands of its products
    collective: str = ""  # the name of the collective operation, if it is one
    message: int = 0  # bytes of the whole array that a collective moves, as a device sees it
    groups: tuple[tuple[int, ...], ...] = ()  # the devices that take part in it together

    @property
    def bytes(self) -> int:
        return self.read + self.written


def kernels(program: Program) -> list[Kernel]:
    """List the kernels that one execution of the program runs on a device."""
    return list(Counter(program).kernels(program.entry, 1))


def unknown_loops(program: Program) -> int:
    """Return how many loops have no trip count to be found. Their bodies count once."""
    every = [(c, x) for c in program.computations.values() for x in c.instructions if x.opcode == "while"]
    return sum(trip_count(program, loop, around) is None for around, loop in every)


class Counter:
    """Walks a program's computations from the entry on."""

    def __init__(self, program: Program):
        self.program = program
        self.flops_of: dict[str, tuple[float, str]] = {}  # computations' products
        self.fused_channels: set[str] = set()  # of collectives within fusions that were met

    def kernels(self, computation: Computation, times: int) -> Iterator[Kernel]:
        for x in computation.instructions:
            if x.opcode == "while":
                trips = trip_count(self.program, x, computation) or 1
                yield from self.kernels(self.computation(x.called("body")[0]), times * trips)
            elif x.opcode == "conditional":
                yield from self.costliest_branch(x, times)
            elif x.opcode in ("call", "async-start"):
                (name,) = x.called("to_apply") or x.called("calls")
                yield from self.kernels(self.computation(name), times)
            elif x.opcode.removesuffix("-start") in COLLECTIVES:
                yield collective(x, computation, times)
            elif x.opcode not in FREE and not x.opcode.endswith(("-done", "-update")):
                if x.opcode == "fusion":
                    yield from self.fused_collectives(x, times)
                yield self.kernel(x, computation, times)

    def fused_collectives(self, fusion: Instruction, times: int) -> Iterator[Kernel]:
        """Yield the collectives within a fusion, once each.

        TPUs fuse one with the kernels that run meanwhile, so that it is in all of them, under one channel.
        """
        fused = self.computation(fusion.called("calls")[0])
        for x in fused.instructions:
            if x.opcode in COLLECTIVES:
                channel = x.attribute("channel_id") or x.name
                if channel not in self.fused_channels:
                    self.fused_channels.add(channel)
                    scattered = x.opcode == "all-reduce" and fused.root.opcode == "dynamic-slice"
                    kernel = collective(x, fused, times)
                    yield replace(kernel, collective="reduce-scatter") if scattered else kernel

    def computation(self, name: str) -> Computation:
        return self.program.computations[name]

    def costliest_branch(self, x: Instruction, times: int) -> Iterator[Kernel]:
        names = x.called("branch_computations") or (
            x.called("true_computation") + x.called("false_computation")
        )
        branches = [list(self.kernels(self.computation(name), times)) for name in names]
        yield from max(
            branches,
            key=lambda branch: (
                sum(kernel.flops * kernel.times for kernel in branch),
                sum((kernel.bytes + kernel.message) * kernel.times for kernel in branch),
            ),
        )

    def kernel(self, x: Instruction, computation: Computation, times: int) -> Kernel:
        operands = [computation.by_name[name] for name in x.operands]
        if x.opcode == "fusion":
            fused = self.computation(x.called("calls")[0])
            flops, dtype = self.products(fused)
            read = sum(
                read_of(fused, parameter, operand)
                for parameter, operand in zip(fused.parameters, operands, strict=True)
            )
            return Kernel(x, times, flops, read, written_by(fused, x), dtype)
        flops, dtype = self.product(x, computation)
        read, written = bytes_of(x, operands)
        return Kernel(x, times, flops, read, written, dtype)

    def products(self, computation: Computation) -> tuple[float, str]:
        """Return the FLOPs of the products in a fused computation, and their operands' type."""
        if computation.name not in self.flops_of:
            total, dtype = 0.0, ""
            for x in computation.instructions:
                if x.opcode in ("fusion", "call"):
                    flops, of = self.products(
                        self.computation((x.called("calls") or x.called("to_apply"))[0])
                    )
                else:
                    flops, of = self.product(x, computation)
                total, dtype = total + flops, of or dtype
            self.flops_of[computation.name] = total, dtype
        return self.flops_of[computation.name]

    def product(self, x: Instruction, computation: Computation) -> tuple[float, str]:
        """Return the FLOPs of a single instruction, and the type of its operands; 0 if it is no product."""
        if x.opcode not in ("dot", "convolution", "custom-call"):
            return 0.0, ""
        shapes = [shape for name in x.operands for shape in computation.by_name[name].shapes]
        if x.opcode == "dot":
            contracted = numbers(x.attribute("lhs_contracting_dims") or "")
            return 2.0 * x.shapes[0].size * size_of(shapes[0], contracted), shapes[0].dtype
        if x.opcode == "convolution":
            return convolution_flops(x, shapes), shapes[0].dtype
        flops = custom_call_flops(x, shapes)
        return flops, shapes[0].dtype if flops else ""


def trip_count(program: Program, loop: Instruction, around: Computation) -> int | None:
    """Return how often a loop of the computation `around` runs its body; None if that cannot be found.

    XLA notes it for GPUs and CPUs. Otherwise it is read from the condition `tuple[k] < limit`, the step that
    the body adds to tuple[k], and the start that the loop is given.
    """
    if found := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.text):
        return int(found[1])
    condition = program.computations[loop.called("condition")[0]]
    body = program.computations[loop.called("body")[0]]
    if condition.root.opcode != "compare" or "direction=LT" not in condition.root.text:
        return None
    counter, limit = (condition.by_name[name] for name in condition.root.operands)
    k = int(counter.attribute("index") or -1)
    given = around.by_name[loop.operands[0]]
    if counter.opcode != "get-tuple-element" or given.opcode != "tuple" or body.root.opcode != "tuple":
        return None
    next_one = body.by_name[body.root.operands[k]]
    steps = [literal(body, name) for name in next_one.operands] if next_one.opcode == "add" else []
    known = [literal(condition, limit.name), literal(around, given.operands[k]), *steps]
    numbers = [number for number in known if number is not None]
    if len(numbers) != 3:
        return None
    end, start, step = numbers
    return -(-(end - start) // step)


def literal(computation: Computation, name: str) -> int | None:
    """Return the integer that an instruction stands for; None if it is no constant."""
    x = computation.by_name[name]
    while x.opcode in ("copy", "bitcast", "convert"):
        x = computation.by_name[x.operands[0]]
    number = x.text.partition(")")[0].lstrip("(") if x.opcode == "constant" else ""
    return int(number) if re.fullmatch(r"-?\d+", number) else None


# --- bytes --------------------------------------------------------------------------------------------------


def bytes_of(x: Instruction, operands: list[Instruction]) -> tuple[int, int]:
    """Return the bytes that an instruction outside fusions reads, and those that it writes."""
    if x.opcode == "custom-call" and target_of(x) in TPU_MARKS:
        return 0, 0
    if x.opcode in SLICES:
        return x.bytes, x.bytes
    if x.opcode == "dynamic-update-slice":
        return operands[1].bytes, operands[1].bytes
    if x.opcode in ("copy-start", "slice-start"):  # the result has the operand and a token as well
        moved = min(x.shapes[:2], key=lambda shape: shape.tiled_bytes)
        to, source = moved, operands[0].shapes[0]
        if x.opcode == "copy-start":
            to = x.shapes[0]
        return moved.tiled_bytes if source.bytes else 0, to.bytes
    read = {operand.name: operand.bytes for operand in operands}
    return sum(read.values()), x.bytes


def read_of(fused: Computation, parameter: Instruction, operand: Instruction) -> int:
    """Return the bytes of an operand that a fusion reads."""
    if operand.bytes == 0:  # on the chip
        return 0
    read = 0
    waiting = [parameter]
    while waiting:
        x = waiting.pop()
        for user in fused.users[x.name]:
            first = user.operands[0] == x.name
            if user.opcode in SLICES and first:
                read += sum(shape.tiled_bytes for shape in user.shapes)
            elif user.opcode in ("bitcast", "reshape", "get-tuple-element"):
                waiting.append(user)
            elif not (user.opcode in PASSED_ON or (user.opcode in UPDATES and first)):
                return operand.bytes
    return min(read, operand.bytes)


def written_by(fused: Computation, fusion: Instruction) -> int:
    """Return the bytes that a fusion writes."""
    root = fused.root
    if root.opcode == "custom-call" and target_of(root) in TPU_MARKS:
        return 0
    results = [fused.by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
    if len(results) != len(fusion.shapes):
        return fusion.bytes
    return sum(
        min(shape.bytes, update_bytes(fused, result))
        for result, shape in zip(results, fusion.shapes, strict=True)
    )


def update_bytes(fused: Computation, result: Instruction) -> int:
    """Return the bytes that a fusion writes for one result: for an update in place, those of the update."""
    x = result
    while x.opcode in SAME_BYTES:
        x = fused.by_name[x.operands[0]]
    if x is result and x.opcode in COLLECTIVES | {"parameter"}:  # passed on
        return 0
    if x.opcode == "dynamic-update-slice":
        return tiled_bytes(fused.by_name[x.operands[1]])
    if x.opcode == "scatter":  # adds to what is there: reads it, and writes it
        updates = x.operands[len(x.operands) // 2 + 1 :]
        return 2 * sum(tiled_bytes(fused.by_name[name]) for name in updates)
    return tiled_bytes(result)


def tiled_bytes(x: Instruction) -> int:
    return sum(shape.tiled_bytes for shape in x.shapes)


# --- FLOPs --------------------------------------------------------------------------------------------------


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]


def size_of(shape: Shape, axes: list[int]) -> int:
    return int(np.prod([shape.dims[axis] for axis in axes], dtype=np.int64))


def convolution_flops(x: Instruction, shapes: list[Shape]) -> float:
    """Return 2 x batch x input x output features x the pairs of positions that meet, along each axis."""
    lhs, rhs, out = re.split("_|->", x.attribute("dim_labels") or "")
    window = x.attribute("window") or ""
    pairs = 1
    for label in filter(str.isdigit, lhs):  # spatial axes, numbered as in the window
        pairs *= meeting_positions(
            size=shapes[0].dims[lhs.index(label)],
            kernel=shapes[1].dims[rhs.index(label)],
            out=x.shapes[0].dims[out.index(label)],
            stride=window_number(window, "stride", int(label), 1),
            pad=window_number(window, "pad", int(label), 0),
            lhs_dilate=window_number(window, "lhs_dilate", int(label), 1),
            rhs_dilate=window_number(window, "rhs_dilate", int(label), 1),
        )
    batch, features = x.shapes[0].dims[out.index("b")], x.shapes[0].dims[out.index("f")]
    return 2.0 * batch * features * shapes[1].dims[rhs.index("i")] * pairs


def window_number(window: str, name: str, axis: int, default: int) -> int:
    """Return the number of `name=3x1` along an axis of a window; of padding, `pad=0_0x2_1`, the lower."""
    found = re.search(rf"\b{name}=([\d_x-]+)", window)
    return int(found[1].split("x")[axis].split("_")[0]) if found else default


def meeting_positions(size, kernel, out, stride, pad, lhs_dilate, rhs_dilate) -> int:
    """Return how many pairs of an output and a kernel position meet an element of the input."""
    at = np.arange(out)[:, None] * stride + np.arange(kernel)[None] * rhs_dilate - pad
    return int(((at >= 0) & (at % lhs_dilate == 0) & (at < (size - 1) * lhs_dilate + 1)).sum())


def custom_call_flops(x: Instruction, shapes: list[Shape]) -> float:
    """Return the FLOPs of a library's kernel: cuDNN's attention, cuBLAS's product, or Pallas' estimate."""
    target, config = target_of(x), backend_config(x)
    if target.startswith("__cudnn$fmha"):
        fmha = config["cudnn_fmha_backend_config"]
        B, H, T, S = numbers(str(fmha["intermediate_tensor_shape"]["dimensions"]))
        read = attended(T, S, fmha.get("mask_type", ""), int(fmha.get("sliding_window_length", 0)))
        products = 5 if target.endswith("Backward") else 2
        return 2.0 * products * B * H * read * shapes[0].dims[-1]
    if target.startswith("__cublas$"):
        gemm = config.get("gemm_backend_config", {})
        axes = numbers(str(gemm["dot_dimension_numbers"]["lhs_contracting_dimensions"]))
        return 2.0 * x.shapes[0].size * size_of(shapes[0], axes)
    if found := re.search(r'"flops":"?(\d+)', x.text):  # Pallas: the kernel's author's estimate
        return float(found[1])
    return 0.0


def target_of(x: Instruction) -> str:
    return (x.attribute("custom_call_target") or "").strip('"')


def attended(T: int, S: int, mask: str, window: int) -> int:
    """Return how many pairs of a query and a key a kernel computes."""
    if "CAUSAL" not in mask:
        return T * S
    lengths = np.minimum(np.arange(T) + 1, S)
    return int((np.minimum(lengths, window) if window else lengths).sum())


def backend_config(x: Instruction) -> dict:
    start = x.text.find("backend_config={")
    return json.loads(balanced(x.text, start + len("backend_config="))) if start >= 0 else {}


# --- communication ------------------------------------------------------------------------------------------


def collective(x: Instruction, computation: Computation, times: int) -> Kernel:
    """Describe a collective: which devices take part, and the bytes that it takes or gives, the larger."""
    operands = sum(tiled_bytes(computation.by_name[name]) for name in x.operands)
    name = x.opcode.removesuffix("-start")
    result = tiled_bytes(x)
    if x.opcode.endswith("-start") and name != "all-reduce":  # the result has the operands as well
        result -= operands
    message = max(operands, result) if name != "collective-permute" else operands
    return Kernel(x, times, collective=name, message=message, groups=device_groups(x))


def device_groups(x: Instruction) -> tuple[tuple[int, ...], ...]:
    """Return the groups of devices that take part in a collective together, in any of the forms of HLO.

    {{0,1},{2,3}}; [2,2]<=[2,2]T(1,0): the numbers in order, reshaped, transposed and reshaped; and
    mesh['a'=2,'b'=2] {'b'}: along these axes of that mesh.
    """
    if pairs := x.attribute("source_target_pairs"):
        return tuple(tuple(numbers(pair)) for pair in re.findall(r"\{[\d, ]+\}", pairs))
    if listed := re.search(r"replica_groups=(\{\{.*?\}\})", x.text):
        return tuple(tuple(numbers(group)) for group in re.findall(r"\{[\d, ]+\}", listed[1]))
    if mesh := re.search(r"replica_groups=mesh\[(.*?)\](.*?) \{(.*?)\}", x.text):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
        ids = np.arange(np.prod(list(sizes.values()))).reshape(list(sizes.values()))
        along = [list(sizes).index(name) for name in re.findall(r"'([^']+)'", mesh[3])]
        across = [axis for axis in range(len(sizes)) if axis not in along]
        width = int(np.prod([ids.shape[axis] for axis in along]))
        return as_groups(ids.transpose(across + along).reshape(-1, width))
    if tiled := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", x.text):
        shape, of, order = (tuple(numbers(text or "")) for text in tiled.groups())
        ids = np.arange(np.prod(of)).reshape(of)
        return as_groups((ids.transpose(order) if order else ids).reshape(shape))
    return ()


def as_groups(ids: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i) for i in group) for group in ids)
