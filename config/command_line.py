"""How a command line is read, for every command, and how a command answers a mistake.

    class SampleOptions: ...                       a frozen dataclass: names, types, defaults and meanings
    SampleOptions(**given(argv, SampleOptions))    what the command line and its config files set, checked

A later source wins over an earlier one: the dataclass's defaults, config files, then `--key=value` (or `--key
value`). A config file is Python: plain assignments whose public names are options, run in a namespace of its
own, so run only config files that you trust. A value is checked in the same way wherever it comes from, and a
bad one raises `UserError`. This file imports neither JAX nor NumPy, so that a mistyped option is answered at
once.
"""

import ast
import difflib
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints


class UserError(Exception):
    """A mistake for the user to put right, in one line: which file or option, what is wrong, what to do."""

    def __init__(self, text: str):
        super().__init__(" ".join(text.split()))  # one line, even around another library's message


def command(main: Callable[[list[str]], None]) -> None:
    """Run a command's `main(argv)`. A `UserError` prints as one line on stderr and exits with status 2."""
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output is gone, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit would fail to flush it
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)  # what a shell expects after Ctrl-C; training handles its own and saves first


class Limit(NamedTuple):
    """A condition on an option's value, and the words for it in an error."""

    text: str
    holds: Callable[[Any], bool]


Name = Annotated[str, Limit("a name that is not empty", bool)]
Count = Annotated[int, Limit("an integer, 1 or more", lambda x: x >= 1)]
Steps = Annotated[int, Limit("an integer, 0 or more", lambda x: x >= 0)]
Batches = Annotated[int, Limit("an integer, 1 or more, or -1", lambda x: x >= 1 or x == -1)]
Seed = Annotated[int, Limit("an integer from 0 to 4294967295", lambda x: 0 <= x < 2**32)]
Positive = Annotated[float, Limit("a number above 0", lambda x: x > 0)]
NonNegative = Annotated[float, Limit("a number, 0 or more", lambda x: x >= 0)]
Address = Annotated[
    str, Limit("host:port, or auto", lambda x: x == "auto" or re.fullmatch(r".+:\d{1,5}", x) is not None)
]
Fraction = Annotated[float, Limit("a number from 0 up to, but not including, 1", lambda x: 0 <= x < 1)]


def given(argv: list[str], cls: type) -> dict[str, Any]:
    """What a command line and its config files set of the options of `cls`, checked. `--help` exits.

    `cls` is a frozen dataclass with a `program` and a `purpose`: `Options`, or what another command has.
    """
    if "--help" in argv or "-h" in argv:
        show_help(cls)
    files, arguments = split(argv, cls)
    found = {name: (f"{path}: ", value) for path in files for name, value in run_config(path, cls).items()}
    found |= {name: ("--", value) for name, value in arguments.items()}
    return {
        name: checked(name, translated(name, value), origin, cls) for name, (origin, value) in found.items()
    }


@cache
def types(cls: type) -> dict[str, Any]:
    """The type of each option of `cls`."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def split(argv: list[str], cls: type) -> tuple[list[str], dict[str, Any]]:
    """The config files, and the values by option name, of a command line."""
    files, arguments = [], {}
    words = iter(argv)
    for word in words:
        if word.startswith("--"):
            key, equals, text = word[2:].partition("=")
            name = known(key.replace("-", "_"), "--", cls)
            default = getattr(cls, name)
            if not equals:
                text = next(words, "--")
                if text.startswith("--"):  # the next option, or the end
                    raise UserError(f"--{key} needs a value, as in --{key}={default}")
            arguments[name] = text if isinstance(default, str) else literal(text)
        elif word.endswith(".py") and not word.startswith("-"):
            files.append(word)
        else:
            raise UserError(f"{word}: expected a config file (NAME.py) or --key=value; see --help")
    return files, arguments


def literal(text: str) -> Any:
    """The Python value that `text` spells; `text` itself, for `checked` to refuse, if it spells none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def run_config(path: str, cls: type) -> dict[str, Any]:
    """Run a config file; its public names and values, but for modules, functions and classes."""
    if not os.path.isfile(path):
        raise UserError(f"{path}: there is no such config file")
    try:
        names = runpy.run_path(path)
    except SyntaxError as error:
        raise UserError(f"{error.filename or path}:{error.lineno or 1}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in reversed(frames) if frame.filename == path), 1)
        raise UserError(f"{path}:{line}: {type(error).__name__}: {error}") from error
    return {
        name: value
        for name, value in names.items()
        if name in types(cls)
        or not (name.startswith("_") or callable(value) or isinstance(value, ModuleType))
    }


FROM_TORCH = {  # (option, PyTorch's value): JAX's value, and what to know where it is not quite the same
    ("dtype", "float16"): ("bfloat16", "which needs no loss scaling"),
    ("device", "mps"): ("cpu", "the nearest that JAX supports"),
    ("device", "gpu"): ("cuda", None),
    ("device", "cuda:N"): ("cuda", "and CUDA_VISIBLE_DEVICES chooses among GPUs"),
}


def translated(name: str, value: Any) -> Any:
    """A value written for PyTorch in JAX's terms, with a line of notice where it does not mean the same."""
    if name in ("backend", "compile"):
        print(f"note: {name} is for PyTorch only and is ignored", file=sys.stderr)
    if name not in ("device", "dtype") or not isinstance(value, str):
        return value
    spelling = re.sub(r"^cuda:\d+$", "cuda:N", value)
    becomes, remark = FROM_TORCH.get((name, spelling), (value, None))
    if remark:
        print(f"note: {name}={value} becomes {becomes}, {remark}", file=sys.stderr)
    return becomes


def known(name: str, origin: str, cls: type) -> str:
    """`name`, if it is an option of `cls`; `origin` is what stands before it in an error."""
    if name not in types(cls):
        nearest = difflib.get_close_matches(name, types(cls), n=1)
        advice = f"did you mean {nearest[0]}?" if nearest else f"python {cls.program} --help lists them all"
        raise UserError(f"{origin}{name} is not an option; {advice}")
    return name


def checked(name: str, value: Any, origin: str, cls: type) -> Any:
    """`value` as option `name` of `cls` holds it; `origin` is what stands before the name in an error."""
    kind = types(cls)[known(name, origin, cls)]
    try:
        return conform(value, kind)
    except ValueError as error:
        raise UserError(f"{origin}{name} is {value!r}, expected {in_words(kind)}") from error


def conform(value: Any, kind: Any) -> Any:
    """`value` as type `kind`, else `ValueError`. 1e5 is an int and 1 a float; True is neither."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    finite = number and abs(value) <= sys.float_info.max  # false for nan as well
    if get_origin(kind) is Annotated:
        base, limit = get_args(kind)
        value = conform(value, base)
        if limit.holds(value):
            return value
    elif get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
    elif type(None) in get_args(kind):
        return None if value is None else conform(value, get_args(kind)[0])
    elif kind is int and finite and value == int(value):
        return int(value)
    elif kind is float and finite:
        return float(value)
    elif kind in (bool, str) and isinstance(value, kind):
        return value
    raise ValueError


def in_words(kind: Any) -> str:
    """What an error says was expected of a value of type `kind`."""
    if get_origin(kind) is Annotated:
        return get_args(kind)[1].text
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if type(None) in get_args(kind):
        return f"{in_words(get_args(kind)[0])}, or None"
    return {bool: "True or False", str: "a string"}[kind]


def show_help(cls: type) -> None:
    """Print every option with its type, default and meaning, and exit with status 0."""
    import tyro  # here, because it takes longer to import than everything else does to run

    tyro.cli(
        cls,
        prog=f"python {cls.program} [CONFIG.py ...]",
        description=f"{cls.purpose} A config file sets options; --key=value sets one over it.",
        args=["--help"],
        config=(tyro.conf.FlagConversionOff,),
        use_underscores=True,
    )
