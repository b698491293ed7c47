"""Read a compiled program: XLA's optimised HLO, as text, into computations, instructions and array shapes.

    program = parse_program(compiled.as_text())
    program.entry.instructions                        in the order in which the device runs them
    program.source(instruction)                       the lines of Python that led to it, innermost first

The text is the only form in which every version of JAX gives an optimised program. An instruction is

    %name = bf16[12,1024]{1,0:T(8,128)} opcode(%operand, ...), key=value, metadata={... stack_frame_id=7}

where `{1,0}` is the order of the axes in memory, `T(8,128)` the tiles that a TPU fills, and `S(1)` a TPU's
memory on the chip. What the instructions do is not looked at here, but in work.py.
"""

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

# Bits of the types whose name does not end with them.
BITS = {"pred": 8, "token": 0, "opaque": 0}

ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
OPCODE = re.compile(r"([a-z][\w-]*)\(")
NAME = re.compile(r"%([\w.\-]+)")
FRAME = re.compile(r"stack_frame_id=(\d+)")


class Shape(NamedTuple):
    """An array's element type, axes and layout."""

    dtype: str
    dims: tuple[int, ...]
    layout: str = ""  # as {...} has it

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes of device memory that the array takes; none if a TPU keeps it on the chip, as `S(1)` says."""
        return 0 if "S(" in self.layout else self.tiled_bytes

    @property
    def tiled_bytes(self) -> int:
        """Bytes that the array takes wherever it is: on a TPU, whole tiles."""
        dims = list(self.dims)
        if tile := re.search(r":T\(([\d,]+)\)", self.layout):
            order = [int(axis) for axis in self.layout.split(":")[0].split(",") if axis]
            sizes = [int(size) for size in tile[1].split(",")]
            for axis, size in zip(order, reversed(sizes), strict=False):  # the minor axes come first
                dims[axis] = -(-dims[axis] // size) * size
        return math.ceil(math.prod(dims) * bits(self.dtype) / 8)


def bits(dtype: str) -> int:
    """Return the bits of an element: of bf16, f32, f8e4m3fn, s32, u8, pred, c64 and the like."""
    return BITS[dtype] if dtype in BITS else int(re.findall(r"\d+", dtype)[0])


@dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    shapes: tuple[Shape, ...]  # of the result; several for a tuple
    operands: tuple[str, ...]  # names of instructions of the same computation
    text: str  # all that follows the opcode
    is_root: bool = False

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

    def called(self, name: str) -> list[str]:
        """Return the names of the computations that attribute `name` has."""
        return NAME.findall(self.attribute(name) or "")


@dataclass(frozen=True)
class Computation:
    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    @property
    def root(self) -> Instruction:
        return next(instruction for instruction in self.instructions if instruction.is_root)

    @cached_property
    def parameters(self) -> list[Instruction]:
        found = [x for x in self.instructions if x.opcode == "parameter"]
        return sorted(found, key=lambda x: int(x.text[1 : x.text.index(")")]))

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that take each one as an operand, by its name."""
        users: dict[str, list[Instruction]] = {x.name: [] for x in self.instructions}
        for user in self.instructions:
            for name in dict.fromkeys(user.operands):
                users[name].append(user)
        return users


class Line(NamedTuple):
    """A line of Python that was running when an instruction's operation was traced."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Program:
    computations: dict[str, Computation]
    entry: Computation
    frames: dict[int, tuple[Line, int]]  # each stack frame's line, and the frame that called it, or 0

    def source(self, instruction: Instruction) -> list[Line]:
        """Return the stack of Python lines that led to the instruction, innermost first; empty if unknown."""
        lines = []
        found = FRAME.search(instruction.text)
        frame = int(found[1]) if found else 0
        while frame in self.frames:
            line, caller = self.frames[frame]
            lines.append(line)
            frame = caller if caller < frame else 0
        return lines


def parse_program(text: str) -> Program:
    """Parse the text of an optimised module. Raises ValueError if it has no entry computation."""
    header, _, _ = text.partition("\n%")
    text = re.sub(r'\n(?="|\}.)', " ", text)  # a Pallas kernel's metadata takes lines of its own
    computations: dict[str, Computation] = {}
    entry, name, instructions = None, "", []
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY ")) and line.endswith("{"):
            name = NAME.search(line)[1]  # ty: ignore[not-subscriptable]
            entry = name if line.startswith("ENTRY ") else entry
            instructions = []
        elif line == "}":
            computations[name] = Computation(name, tuple(instructions))
        elif line.startswith("  ") and " = " in line:
            instructions.append(parse_instruction(line.strip()))
    if entry is None:
        raise ValueError("this is no HLO module: it has no ENTRY computation")
    return Program(computations, computations[entry], parse_frames(header))


def parse_instruction(line: str) -> Instruction:
    is_root = line.startswith("ROOT ")
    name, _, rest = line.removeprefix("ROOT ").partition(" = ")
    kind = balanced(rest, 0) if rest.startswith("(") else rest[: rest.index(" ")]
    rest = rest[len(kind) :].lstrip()
    opcode = OPCODE.match(rest)
    if opcode is None:
        raise ValueError(f"this is no instruction of HLO: {line[:200]}")
    text = rest[opcode.end() - 1 :]
    operands = tuple(NAME.findall(balanced(text, 0)))
    return Instruction(name.lstrip("%"), opcode[1], parse_shapes(kind), operands, text, is_root)


def parse_shapes(kind: str) -> tuple[Shape, ...]:
    """Return the arrays of a type such as `(f32[2,3]{1,0}, s32[])`, tuples within tuples laid flat."""
    return tuple(
        Shape(dtype, tuple(int(size.lstrip("<=")) for size in dims.split(",") if size), layout)
        for dtype, dims, layout in ARRAY.findall(kind)
    )


def balanced(text: str, start: int) -> str:
    """Return the part of `text` from the bracket at `start` to the one that closes it."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "({[") - (text[i] in ")}]")
        if depth == 0:
            return text[start : i + 1]
    raise ValueError(f"a bracket is not closed: {text[start : start + 200]}")


def parse_frames(header: str) -> dict[int, tuple[Line, int]]:
    """Read the tables of files, functions, locations and stack frames at the head of a module."""
    tables: dict[str, dict[int, str]] = {}
    for line in header.splitlines():
        if found := re.match(r"(\d+) (.*)", line):
            tables[title][int(found[1])] = found[2].strip()
        elif re.fullmatch(r"[A-Z]\w+", line):
            title = line
            tables[title] = {}
    names = {i: text.strip('"') for i, text in tables.get("FileNames", {}).items()}
    functions = {i: text.strip('"') for i, text in tables.get("FunctionNames", {}).items()}
    lines = {}
    for i, text in tables.get("FileLocations", {}).items():
        number = fields(text)
        lines[i] = Line(names[number["file_name_id"]], number["line"], functions[number["function_name_id"]])
    frames = {}
    for i, text in tables.get("StackFrames", {}).items():
        number = fields(text)
        # XLA prints a caller's number plus one, so that an outermost frame seems to call itself.
        frames[i] = lines[number["file_location_id"]], number.get("parent_frame_id", 1) - 1
    return frames


def fields(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)}


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]
