"""Read the command line of any command.

A command's options are a frozen dataclass, whose docstring and fields' comments are the text of `--help`. A
later source wins: the defaults, config files, `--key=value` (or `--key value`). pydantic checks the values,
tyro prints the help. A config file is Python, and may do all that the user may. This file imports neither JAX
nor NumPy, which take seconds.
"""

from common.errors import UserError  # isort: split

import builtins
import difflib
import json
import os
import re
import reprlib
import runpy
import shutil
import sys
import traceback
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError


def matching(pattern: str, expected: str) -> AfterValidator:
    """Return a check for the type of an option whose text has to match the pattern."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text):
            return text
        raise ValueError(f"expected {expected}")

    return AfterValidator(check)


INT32 = 2**31  # devices count in int32
FLOAT32 = 3.4e38  # a larger value becomes inf on a device
UTF8 = r"(?!~(/|$))[^\x00\ud800-\udfff]+"
# Files are renamed and locked, which a bucket cannot do: gs://b would be a folder called "gs:".
LOCAL = r"(?s)(?!(?!https?:)[a-z0-9]{2,}:/).*"
Name = Annotated[
    str,
    AfterValidator(os.path.expanduser),
    matching(UTF8, "a name in UTF-8"),
    matching(LOCAL, "a path of this machine, as of a mounted bucket"),
]
Count = Annotated[int, Field(ge=1, lt=INT32)]
NonNegativeInt = Annotated[int, Field(ge=0, lt=INT32)]
Checkpoint = NonNegativeInt | Literal["best", "last"]  # of a run; an int is an iteration
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Positive = Annotated[float, Field(gt=0, le=FLOAT32)]
NonNegative = Annotated[float, Field(ge=0, le=FLOAT32)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
TopK = Annotated[int, Field(ge=-1, lt=INT32)]
TopP = Annotated[float, Field(ge=0, le=1)]
Repetition = Annotated[float, Field(ge=0.01, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenIds = Annotated[str, matching(r"(\d{1,9}(,(?=\d)|$))*", "token ids, as in 50256,13")]
Biases = Annotated[
    str,
    matching(r"(\d{1,9}:-?(100|\d\d?(\.\d+)?)(,(?=\d)|$))*", "-100 to 100 for tokens, as in 13:-100,262:2.5"),
]
Address = Annotated[str, matching(r"auto|.+:\d{1,5}", "host:port, or auto")]

ONLY_CHECK = "NANOJAXGPT_ONLY_CHECK"  # a variable: a command prints the values that it is given, and ends


def given(argv: list[str], cls: type[Any], also: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the checked values that a command line and its config files set, by name. Raises UserError."""
    if "--help" in argv or "-h" in argv:
        show_help(cls)
    values, words = take_options(argv, cls)
    found = {}
    for word in words:
        if word.startswith("--"):
            raise unknown(word[2:].partition("=")[0].replace("-", "_"), "--", cls)
        if not word.endswith(".py"):
            raise UserError(f"{word}: expected a config file (NAME.py) or --key=value; see --help")
        before = take_options(argv[: argv.index(word)], cls)[0]  # nanoGPT's configs may use these
        known = (also or {}) | vars(cls()) | found | before
        found |= check_values(run_config(word, cls, known), f"{word}: ", cls)
    if os.environ.get(ONLY_CHECK):
        print(json.dumps(found | values))
        sys.exit()
    return found | values


@cache
def option_types(cls: type[Any], limits: bool = True) -> dict[str, Any]:
    """Return the type of each option of `cls` by its name, with its limits and roles or without."""
    hints = get_type_hints(cls, include_extras=limits)
    return {field.name: hints[field.name] for field in fields(cls)}


def take_options(argv: list[str], cls: type[Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the checked values of the options of `cls`, and the other words. Raises UserError."""
    kinds = option_types(cls, limits=False) | TORCH_ONLY
    values, rest, words = {}, [], deque(argv)
    while words:
        word = words.popleft()
        key, equals, text = word.partition("=")
        name = key[2:].replace("-", "_")
        if not key.startswith("--") or name not in kinds:
            rest.append(word)
            continue
        if not equals:
            if kinds[name] is bool and not (words and words[0].lower() in ("true", "false")):
                text = "true"
            elif words and not words[0].startswith("--"):
                text = words.popleft()
            else:
                raise UserError(f"{key} needs a value; see --help")
        values[name] = parse_text(text, kinds[name])
    return check_values(values, "--", cls), rest


def parse_text(text: str, kind: Any) -> Any:
    """Return the value that a text spells for an option of this type, or the text itself."""
    kinds = {kind, *get_args(kind)}
    if text == "None" and type(None) in kinds:
        return None
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    with suppress(ValueError):
        return float(text) if kinds & {int, float} else text
    return text


def run_config(path: str, cls: type[Any], known: dict[str, Any]) -> dict[str, Any]:
    """Run a config file, which may use `known` values as in nanoGPT. Return its options. Raises UserError."""
    if not os.path.isfile(path):
        raise UserError(f"{path}: there is no such config file")
    names = vars(builtins) | {name: import_module(name) for name in ("math", "os", "sys", "time")} | known
    try:
        source = Path(path).read_bytes()
        if b"np." in source:
            names["np"] = import_module("numpy")
        values = runpy.run_path(path, {"__builtins__": names}, "__main__")
    except (Exception, SystemExit) as error:
        ran = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in ran if frame.f_code.co_filename == path]
        line = lines[-1] if lines else getattr(error, "lineno", None) or 1  # a SyntaxError's own
        why = traceback.format_exception_only(error)[-1].strip()
        if getattr(error, "name", None) == "torch":
            why += "; leave out what asks PyTorch: the defaults of device and dtype choose the best"
        raise UserError(f"{path}:{line}: {why}") from error
    known = option_types(cls) | TORCH_ONLY  # other names help to compute these, as in nanoGPT
    options = {name: value for name, value in values.items() if name in known}
    return {name: x.tolist() if hasattr(x, "tolist") else x for name, x in options.items()}  # NumPy's numbers


TORCH_ONLY = {"backend": str, "compile": bool}  # nanoGPT's options for PyTorch
# PyTorch's values, and JAX's: bfloat16 needs no loss scaling, CUDA_VISIBLE_DEVICES chooses among GPUs.
FROM_TORCH = {"dtype=float16": "bfloat16", "device=mps": "cpu", r"device=(gpu|cuda:\d+)": "cuda"}


def check_values(values: dict[str, Any], origin: str, cls: type[Any]) -> dict[str, Any]:
    """Return values in their options' types: 1e5 as an int, 1 as a float or True. Raises UserError.

    `origin` is what an error begins with: `--`, or a file. With a note, PyTorch's values become JAX's or are
    left out.
    """
    found, kinds = {}, option_types(cls)
    for name, value in values.items():
        if name in TORCH_ONLY:
            print(f"note: {name} is for PyTorch only and is ignored", file=sys.stderr)
            continue
        if name not in kinds:
            raise unknown(name, origin, cls)
        for theirs, ours in FROM_TORCH.items():
            if re.fullmatch(theirs, f"{name}={value}"):
                print(f"note: {name}={value} is for PyTorch and becomes {ours}", file=sys.stderr)
                value = ours
        if kinds[name] is bool and value in (0, 1):  # as in nanoGPT's configs
            value = bool(value)
        elif isinstance(value, float) and value.is_integer() and value < 2**64:
            value = int(value)
        try:
            found[name] = value_reader(kinds[name]).validate_python(value, strict=True)
        except ValidationError as error:
            shown = "***" if name == "api_key" else spell(value)
            why = " or ".join(each["msg"].removeprefix("Value error, ") for each in error.errors())
            raise UserError(f"{origin}{name} is {shown}: {why.replace('Input', 'it')}") from None
    return found


def refuse_unused(given: Iterable[str], unused: Collection[str], why: str) -> None:
    """Raise UserError for an option that was given and has no use; `why` says where."""
    for name in given:
        if name in unused:
            raise UserError(f"--{name}{why}: leave it out")


def unknown(name: str, origin: str, cls: type[Any]) -> UserError:
    """Return the error of a name that is no option of `cls`."""
    nearest = difflib.get_close_matches(name[:100], option_types(cls), n=1)
    advice = f"did you mean {nearest[0]}?" if nearest else "see --help"
    return UserError(f"{origin}{name} is not an option; {advice}")


def first_problem(error: ValidationError) -> str:
    """Say in words what pydantic found wrong first: the field, what it is, and why that cannot be."""
    first = error.errors()[0]
    why = first["msg"].removeprefix("Value error, ").replace("Input", "it")
    if not first["loc"]:  # no field is at fault alone
        return why
    is_what = f" is {spell(first['input'])}" if first["type"] != "missing" else ""
    return f"{'.'.join(map(str, first['loc']))}{is_what}: {why}"


value_reader = cache(TypeAdapter)  # of a type

_cut = reprlib.Repr()
_cut.maxstring = _cut.maxother = 60
spell = _cut.repr  # a value as an error shows it: as Python writes it, cut if it is long


def show_help(cls: type[Any], program: str | None = None) -> None:
    """Print every option with its type, default and meaning, and exit with status 0."""
    import tyro  # not above, as only --help needs it

    os.environ["COLUMNS"] = str(max(40, shutil.get_terminal_size().columns))  # below 6 tyro never ends
    module = sys.modules["__main__"].__spec__  # of `python -m`
    program = program or (f"-m {module.name}" if module else sys.argv[0])
    tyro.cli(
        cls,
        prog=f"python {program} [CONFIG.py ...]",
        description=f"{cls.__doc__} A config file sets options; --key=value sets one over it.",
        args=["--help"],
        config=(tyro.conf.FlagConversionOff,),
        use_underscores=True,
    )
