"""Read the command line of any command, and report a user's mistake in one line.

    class SampleOptions: ...                       a frozen dataclass: names, types, defaults and meanings
    SampleOptions(**given(argv, SampleOptions))    the defaults, with the options that a user sets over them

A later source wins: the dataclass's defaults, config files, then `--key=value` (or `--key value`). A config
file is Python and runs when it is read, with all that the user may do: run only config files that you trust.

This file imports neither JAX nor NumPy, so that a mistyped option is answered at once.
"""

import argparse
import ast
import difflib
import os
import re
import runpy
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from io import TextIOWrapper
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

LONGEST_LINE = 1000  # characters of an error
LONGEST_LITERAL = 200  # characters; Python's parser runs out of stack in a longer, deeply nested text


class UserError(Exception):
    """A mistake of the user. Its one line says which file or option is wrong, why, and what to do."""

    def __init__(self, text: str):
        line = " ".join(text.split())  # one line, even around another library's message
        if len(line) > LONGEST_LINE:
            line = f"{line[: LONGEST_LINE - 300]} ... {line[-300:]}"
        # A terminal would obey an escape sequence, which may stand in a file's name: it becomes "?".
        super().__init__("".join(c if c.isprintable() else "?" for c in line))


def command(main: Callable[[list[str]], int | None]) -> None:
    """Run a command's `main(argv)`, and exit with the status that it returns, if any, when that is not 0.

    A `UserError` prints as one line on stderr and exits with status 2.
    """
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a character that a terminal does not have becomes "?"
    try:
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # the imports are done: config/interrupt.py
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if status := main(sys.argv[1:]):
            sys.exit(status)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit would fail to flush it
        sys.exit(141)
    except KeyboardInterrupt:
        with suppress(OSError):
            sys.stdout.flush()
        # Not sys.exit: threads that still compile would hold it up, or crash while Python ends.
        os._exit(130)  # as a shell expects after Ctrl-C; training handles its own and saves first


@dataclass(frozen=True)
class Limit:
    """A condition that an option's value has to meet, and the words for it in an error."""

    text: str
    holds: Callable[[Any], object] = lambda x: True  # whose truth counts


INT32 = 2**31  # devices count in int32
FLOAT32 = float.fromhex("0x1.fffffep127")  # the largest; devices compute inf with more

Name = Annotated[str, Limit("a name of 1 to 4095 characters", lambda x: 0 < len(x) < 4096 and "\0" not in x)]
Count = Annotated[int, Limit("an integer, 1 or more (below 2^31)", lambda x: 1 <= x < INT32)]
NonNegativeInt = Annotated[int, Limit("an integer, 0 or more (below 2^31)", lambda x: 0 <= x < INT32)]
BatchCount = Annotated[
    int, Limit("an integer, 1 or more (below 2^31), or -1", lambda x: 1 <= x < INT32 or x == -1)
]
Seed = Annotated[int, Limit("an integer from 0 to 4294967295", lambda x: 0 <= x < 2**32)]
Positive = Annotated[float, Limit("a number above 0 (at most 3.4e38)", lambda x: 0 < x <= FLOAT32)]
NonNegative = Annotated[float, Limit("a number, 0 or more (at most 3.4e38)", lambda x: 0 <= x <= FLOAT32)]
Fraction = Annotated[float, Limit("a number from 0 up to, but not including, 1", lambda x: 0 <= x < 1)]
Address = Annotated[str, Limit("host:port, or auto", re.compile(r"auto|.+:\d{1,5}").fullmatch)]


class CommandOptions(Protocol):
    """A command's options: a frozen dataclass with the command's name and purpose, such as `Options`."""

    program: ClassVar[str]
    purpose: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


Own = TypeVar("Own")  # a dataclass of a command's own options, beside train.py's


def given(argv: list[str], cls: type[CommandOptions]) -> dict[str, Any]:
    """Return the options that a command line and its config files set: checked values by name.

    `--help` prints the options of `cls` and exits. Raises UserError.
    """
    if "--help" in argv or "-h" in argv:
        show_help(cls)
    texts, paths = take_words(argv, option_types(cls) | TORCH_ONLY)
    found = {}  # (where an error begins, value) by name
    for path in paths:
        if path.startswith("--"):
            check_name(path[2:].partition("=")[0].replace("-", "_"), "--", cls)
        if not path.endswith(".py") or path.startswith("-"):
            raise UserError(f"{shorten(path)}: expected a config file (NAME.py) or --key=value; see --help")
        found |= {name: (f"{path}: ", value) for name, value in run_config(path, cls).items()}
    found |= {name: ("--", value) for name, value in texts.items()}
    for name in [name for name in found if name in TORCH_ONLY]:
        del found[name]
        print(f"note: {name} is for PyTorch only and is ignored", file=sys.stderr)
    return {
        name: check_value(name, translate_from_torch(name, value), origin, cls)
        for name, (origin, value) in found.items()
    }


def split_options(argv: list[str], own: type[Own]) -> tuple[Own, list[str]]:
    """Take a command's own options from its words. Return them, and the words for another reader.

    Raises UserError.
    """
    values, rest = take_words(argv, option_types(own))
    return own(**{name: check_value(name, value, "--", own) for name, value in values.items()}), rest


@cache
def option_types(cls: type[Any]) -> dict[str, Any]:
    """Return the type of each option of `cls` by its name, `Annotated` limits included."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def take_words(argv: list[str], kinds: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values, unchecked, of the options in a command line that `kinds` names, and the other words.

    `--key` alone sets an option of type bool. Raises UserError for any other one without a value.
    """
    values, rest, words = {}, [], deque(argv)
    while words:
        word = words.popleft()
        key, equals, text = word.partition("=")
        name = key[2:].replace("-", "_")
        if not key.startswith("--") or name not in kinds:
            rest.append(word)
            continue
        base, limit, optional = read_type(kinds[name])
        if not equals:
            if base is bool and not (words and words[0].lower() in ("true", "false")):
                text = "True"
            elif words and not words[0].startswith("--"):
                text = words.popleft()
            else:
                raise UserError(f"{key} needs a value: {limit.text}")
        if base is bool:
            values[name] = {"true": True, "false": False}.get(text.lower(), text)
        elif base is str and not (optional and text == "None"):  # even if it spells a number
            values[name] = text
        else:
            values[name] = parse_literal(text)
    return values, rest


def read_type(kind: Any) -> tuple[type, Limit, bool]:
    """Return the basic type of an option, the limit of its values, and whether it may be None as well."""
    limit, optional = None, False
    while get_origin(kind) not in (None, Literal):
        limit = next((extra for extra in get_args(kind) if isinstance(extra, Limit)), limit)
        optional |= type(None) in get_args(kind)
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return str, Limit(f"one of {', '.join(get_args(kind))}", get_args(kind).__contains__), optional
    return kind, limit or Limit("True or False" if kind is bool else "a string"), optional


def parse_literal(text: str) -> Any:
    """Return the Python value that `text` spells, or `text` itself, if it spells none."""
    if len(text) > LONGEST_LITERAL:
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text


def spell(value: Any) -> str:
    """Return a value as an error shows it: as Python writes it, cut if it is long."""
    try:
        return shorten(repr(value))
    except Exception:  # of an integer of thousands of digits, of lists in lists in lists
        return f"{type(value).__name__} too large to show"


def shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def run_config(path: str, cls: type[CommandOptions]) -> dict[str, Any]:
    """Run a config file in a namespace of its own, and return its public names with their values.

    Modules, functions and classes are left out, unless they have the name of an option of `cls`. Raises
    UserError, with the line, for a file that is missing or fails.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path}: there is no such config file")
    try:
        names = runpy.run_path(path)
    except BaseException as error:  # of any class: the file may exit, or raise KeyboardInterrupt
        ran = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in ran if frame.f_code.co_filename == path]
        line = lines[-1] if lines else getattr(error, "lineno", None) or 1  # a SyntaxError's own
        raise UserError(f"{path}:{line}: {traceback.format_exception_only(error)[-1]}") from error
    return {
        name: value
        for name, value in names.items()
        if name in option_types(cls)
        or not (name.startswith("_") or callable(value) or isinstance(value, ModuleType))
    }


TORCH_ONLY = {"backend": str, "compile": bool}  # nanoGPT's options for PyTorch, and their types
FROM_TORCH = [  # (option, PyTorch's value, JAX's, and a remark if the two are not quite the same)
    ("dtype", "float16", "bfloat16", "which needs no loss scaling"),
    ("device", "mps", "cpu", "the nearest that JAX supports"),
    ("device", "gpu", "cuda", None),
    ("device", r"cuda:\d+", "cuda", "and CUDA_VISIBLE_DEVICES chooses among GPUs"),
]


def translate_from_torch(name: str, value: Any) -> Any:
    """Return JAX's value for one that was written for PyTorch. Prints a note if they differ in meaning."""
    for option, theirs, ours, remark in FROM_TORCH:
        if name == option and isinstance(value, str) and re.fullmatch(theirs, value):
            if remark:
                print(f"note: {name}={value} becomes {ours}, {remark}", file=sys.stderr)
            return ours
    return value


def check_name(name: str, origin: str, cls: type[CommandOptions]) -> str:
    """Return `name` if it is an option of `cls`. Raises UserError, which begins with `origin`, if not."""
    if name not in option_types(cls):
        nearest = difflib.get_close_matches(name, option_types(cls), n=1)
        advice = f"did you mean {nearest[0]}?" if nearest else f"python {cls.program} --help lists them all"
        raise UserError(f"{origin}{shorten(name)} is not an option; {advice}")
    return name


def check_value(name: str, value: Any, origin: str, cls: type[Any]) -> Any:
    """Return `value` in the type of option `name` of `cls`. 1e5 passes as an int and 1 as a float, True not.

    Raises UserError, which begins with `origin` (`--`, or a file's name), for an unknown name or bad value.
    """
    kind, limit, optional = read_type(option_types(cls)[check_name(name, origin, cls)])
    if value is None and optional:
        return None
    if kind in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError, ValueError):  # of inf, nan, or an integer that no float can be
            if (number := kind(value)) == value and limit.holds(number):
                return number
    elif type(value) is kind and limit.holds(value):
        return value
    shown = "***" if name == "api_key" else spell(value)
    raise UserError(f"{origin}{name} is {shown}, expected {limit.text}{', or None' if optional else ''}")


class ScriptParser(argparse.ArgumentParser):
    """The command line of a script that has no config files. A mistake in it is one line, too."""

    def __init__(self, about: str | None):
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(description=about, formatter_class=raw, allow_abbrev=False)

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Return the options' values. Raises UserError."""
        for word in argv:
            if not word or re.fullmatch("--[a-z_]+=", word):
                raise UserError(f"{word or repr(word)}: a value is missing there; see --help")
        return self.parse_args(argv)

    def error(self, message: str):
        raise UserError(f"{message}; see --help")


def show_help(cls: type[CommandOptions]) -> None:
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
