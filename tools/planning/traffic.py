"""The bytes that a kernel reads and writes, and who takes part in a collective.

Bytes are those of device memory: each array counts once, however often the kernel uses it. What a kernel
takes a slice of, or gathers from, counts with what it takes; what it updates in place, with the update.
Arrays in a TPU's memory on the chip count nothing, and others whole tiles.
"""

import re

import numpy as np

from tools.planning.program import Computation, Instruction, numbers

COLLECTIVES = {
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"),
    *("collective-broadcast", "ragged-all-to-all"),
}
SLICES = {"slice", "dynamic-slice", "gather"}
UPDATES = {"dynamic-update-slice", "scatter"}
PASSED_ON = {"tuple", "custom-call"} | COLLECTIVES  # what a fusion gives to these, it does not read itself
SAME_BYTES = {"bitcast", "reshape", "get-tuple-element", "copy", "convert", "transpose"}
TPU_MARKS = {  # TPU's custom calls that start no kernel, or one whose collective is counted by itself
    *("AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound"),
    *("AsyncCollectiveStart", "AsyncCollectiveDone"),
}


def bytes_of(x: Instruction, operands: list[Instruction]) -> tuple[int, int]:
    """Return the bytes that an instruction outside fusions reads, and those that it writes."""
    if x.opcode == "custom-call" and x.target in TPU_MARKS:
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
                read += user.tiled_bytes
            elif user.opcode in ("bitcast", "reshape", "get-tuple-element"):
                waiting.append(user)
            elif not (user.opcode in PASSED_ON or (user.opcode in UPDATES and first)):
                return operand.bytes
    return min(read, operand.bytes)


def written_by(fused: Computation, fusion: Instruction) -> int:
    """Return the bytes that a fusion writes."""
    root = fused.root
    if root.opcode == "custom-call" and root.target in TPU_MARKS:
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
        return fused.by_name[x.operands[1]].tiled_bytes
    if x.opcode == "scatter":  # adds to what is there: reads it, and writes it
        updates = x.operands[len(x.operands) // 2 + 1 :]
        return 2 * sum(fused.by_name[name].tiled_bytes for name in updates)
    return result.tiled_bytes


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
