"""Read a compiled program: XLA's optimised HLO, as text, into computations, instructions and array shapes.

An instruction is

    %name = bf16[12,1024]{1,0:T(8,128)} opcode(%operand, ...), key=value, metadata={op_name="jit(step)/..."}

where `{1,0}` is the order of the axes in memory, `T(8,128)` the tiles that a TPU fills, and `S(1)` a TPU's
memory on the chip.
"""

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

BITS = {"pred": 8, "token": 0, "opaque": 0}  # of the types whose name does not say them
ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
NAME = re.compile(r"%([\w.\-]+)")
COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) .*?\{\n(.*?)^\}", re.M | re.S)
INSTRUCTION = re.compile(r"^  (ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)(\(.*)", re.M)


class Shape(NamedTuple):
    dtype: str
    dims: tuple[int, ...]
    layout: str = ""  # as {...} has it

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """The bytes of device memory that the array takes; none if a TPU keeps it on the chip."""
        return 0 if "S(" in self.layout else self.tiled_bytes

    @property
    def tiled_bytes(self) -> int:
        """The bytes that the array takes wherever it is: on a TPU, whole tiles."""
        dims = list(self.dims)
        if tile := re.search(r":T\(([\d,]+)\)", self.layout):
            order = numbers(self.layout.split(":")[0])
            for axis, size in zip(order, reversed(numbers(tile[1])), strict=False):  # minor axes come first
                dims[axis] = -(-dims[axis] // size) * size
        bits = BITS[self.dtype] if self.dtype in BITS else numbers(self.dtype)[0]
        return math.ceil(math.prod(dims) * bits / 8)


@dataclass(frozen=True, eq=False)
class Instruction:
    name: str
    opcode: str
    shapes: tuple[Shape, ...]  # of the result; several for a tuple
    operands: tuple["Instruction", ...] = field(repr=False)
    text: str  # all that follows the opcode
    computations: dict[str, "Computation"] = field(repr=False)  # of the whole program
    users: list["Instruction"] = field(default_factory=list, repr=False)

    @property
    def bytes(self) -> int:
        return sum(shape.bytes for shape in self.shapes)

    @property
    def tiled_bytes(self) -> int:
        return sum(shape.tiled_bytes for shape in self.shapes)

    @property
    def target(self) -> str:
        """The name of the kernel that a custom call starts."""
        return (self.attribute("custom_call_target") or "").strip('"')

    @property
    def op_name(self) -> str:
        """The operation as JAX traced it, such as "jit(step)/jvp(attention)/dot_general"."""
        found = re.search(r'op_name="([^"]*)"', self.text)
        return found[1] if found else ""

    def attribute(self, name: str) -> str | None:
        """Return the value of `name=value`: a word, or all between braces."""
        if found := re.search(rf"[, ]{name}=(\{{|[^,\s]+)", self.text):
            return balanced(self.text, found.start(1)) if found[1] == "{" else found[1]
        return None

    def called(self, *names: str) -> list["Computation"]:
        """Return the computations that these attributes name."""
        return [self.computations[c] for name in names for c in NAME.findall(self.attribute(name) or "")]


@dataclass(frozen=True, eq=False)
class Computation:
    instructions: list[Instruction]  # in the order in which the device runs them
    root: Instruction

    @cached_property
    def parameters(self) -> list[Instruction]:
        found = [x for x in self.instructions if x.opcode == "parameter"]
        return sorted(found, key=lambda x: numbers(x.text)[0])


def parse_program(text: str) -> Computation:
    """Parse the text of a module, and return the computation in which it starts."""
    # A Pallas kernel's metadata takes lines of its own.
    text = re.sub(r'\n(?="|\}(?!, execution_thread).)', " ", text)
    computations: dict[str, Computation] = {}
    entry = ""
    for is_entry, computation, body in COMPUTATION.findall(text):
        known: dict[str, Instruction] = {}
        root = None
        for is_root, name, kind, opcode, rest in INSTRUCTION.findall(body):
            operands = tuple(known[operand] for operand in NAME.findall(balanced(rest, 0)))
            # A type such as `(f32[2,3]{1,0}, s32[])` may nest tuples, which are flattened.
            found = ARRAY.findall(kind)
            shapes = tuple(Shape(dtype, tuple(numbers(dims)), layout) for dtype, dims, layout in found)
            x = Instruction(name, opcode, shapes, operands, rest, computations)
            for operand in dict.fromkeys(operands):
                operand.users.append(x)
            known[name] = x
            root = x if is_root else root
        if root:
            computations[computation] = Computation(list(known.values()), root)
            entry = computation if is_entry else entry
    return computations[entry]


def balanced(text: str, start: int) -> str:
    """Return the part of `text` from the bracket at `start` to the one that closes it."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "({[") - (text[i] in ")}]")
        if depth == 0:
            return text[start : i + 1]
    raise ValueError(f"a bracket is not closed: {text[start : start + 200]}")


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]
