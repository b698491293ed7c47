"""Read the command line of any command, and report a user's mistake in one line.

    class SampleOptions: ...                       a frozen dataclass: names, types, defaults and meanings
    SampleOptions(**given(argv, SampleOptions))    the defaults, with the options that a user sets over them

A later source wins over an earlier one: the dataclass's defaults, config files, then `--key=value` (or `--key
value`). A value is checked in the same way wherever it comes from, and a bad one raises `UserError`.

A config file is Python and runs when it is read, with all that the user may do: run only config files that
you trust. It runs in a namespace of its own. Its public names have to be options; modules, functions and
classes are left out.

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
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import cache
from io import TextIOWrapper
from types import ModuleType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

LONGEST_LINE = 1000  # characters of an error
FLOAT32_MAX = float.fromhex("0x1.fffffep127")  # what is computed with a larger number is inf


class UserError(Exception):
    """A mistake of the user. Its one line says which file or option is wrong, why, and what to do."""

    def __init__(self, text: str):
        line = " ".join(text.split())  # one line, even around another library's message
        if len(line) > LONGEST_LINE:  # of what a file holds, or a user pasted
            line = f"{line[: LONGEST_LINE - 300]} ... {line[-300:]}"
        # A terminal would obey an escape sequence, which may stand in a file's name: it becomes "?".
        super().__init__("".join(c if c.isprintable() else "?" for c in line))


def command(main: Callable[[list[str]], int | None]) -> None:
    """Run a command's `main(argv)`, and exit with the status that it returns, if any, when that is not 0.

    A `UserError` prints as one line on stderr and exits with status 2.
    """
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a character that a terminal does not have becomes "?"
    if sys.unraisablehook is sys.__unraisablehook__:  # and not, say, pytest's
        sys.unraisablehook = interrupt_again
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


def interrupt_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Interrupt the main thread again after a finalizer, such as one of Orbax's, swallowed a Ctrl-C."""
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(0.01, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


class Limit(NamedTuple):
    """A condition that an option's value has to meet, and the words for it in an error."""

    text: str
    holds: Callable[[Any], object] = lambda x: True  # whose truth counts
    below: int = 2**31  # what an integer has to be below, in size; devices count in int32


Name = Annotated[
    str,
    Limit("a name of 1 to 4095 characters, none of them null", lambda x: 0 < len(x) < 4096 and "\0" not in x),
]
Count = Annotated[int, Limit("an integer, 1 or more", lambda x: x >= 1)]
NonNegativeInt = Annotated[int, Limit("an integer, 0 or more", lambda x: x >= 0)]
BatchCount = Annotated[int, Limit("an integer, 1 or more, or -1", lambda x: x >= 1 or x == -1)]
Seed = Annotated[int, Limit("an integer from 0 to 4294967295", lambda x: 0 <= x < 2**32, below=2**32)]
Positive = Annotated[float, Limit("a number above 0", lambda x: x > 0)]
NonNegative = Annotated[float, Limit("a number, 0 or more", lambda x: x >= 0)]
Address = Annotated[
    str, Limit("host:port, or auto", lambda x: x == "auto" or re.fullmatch(r".+:\d{1,5}", x) is not None)
]
Fraction = Annotated[float, Limit("a number from 0 up to, but not including, 1", lambda x: 0 <= x < 1)]


class CommandOptions(Protocol):
    """A command's options: a frozen dataclass with the command's name and purpose, such as `Options`."""

    program: ClassVar[str]
    purpose: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


Own = TypeVar("Own")  # a dataclass of a command's own options, beside train.py's


def given(argv: list[str], cls: type[CommandOptions]) -> dict[str, Any]:
    """Return the options that a command line and its config files set: checked values by name.

    `--help` prints the options of `cls` and exits. Raises UserError for a word that cannot be read, an
    unknown option or a bad value.
    """
    if "--help" in argv or "-h" in argv:
        show_help(cls)
    texts, paths = take_words(argv, option_types(cls) | IGNORED, cls)
    for path in paths:
        if path.startswith("--"):
            check_name(path[2:].partition("=")[0].replace("-", "_"), "--", cls)
        if not path.endswith(".py") or path.startswith("-"):
            raise UserError(f"{shorten(path)}: expected a config file (NAME.py) or --key=value; see --help")
    found = {name: (f"{path}: ", value) for path in paths for name, value in run_config(path, cls).items()}
    found |= {name: ("--", value) for name, value in texts.items()}
    for name in [name for name in found if name in IGNORED]:
        origin, value = found.pop(name)
        check_value(name, value, origin, cls)
        print(f"note: {name} is for PyTorch only and is ignored", file=sys.stderr)
    return {
        name: check_value(name, translate_from_torch(name, value), origin, cls)
        for name, (origin, value) in found.items()
    }


def split_options(argv: list[str], own: type[Own]) -> tuple[Own, list[str]]:
    """Take a command's own options from its words. Return them, and the words for train.py's reader.

    A field of type bool is a flag, which needs no value. Raises UserError.
    """
    texts, rest = take_words(argv, option_types(own), own, flags=True)
    return own(**{name: check_value(name, value, "--", own) for name, value in texts.items()}), rest


@cache
def option_types(cls: type[Any]) -> dict[str, Any]:
    """Return the type of each option of `cls` by its name, `Annotated` limits included."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def take_words(
    argv: list[str], kinds: dict[str, Any], cls: type[Any], flags: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Return the values, unchecked, of the options in a command line that `kinds` names, and the other words.

    With `flags`, an option of type bool needs no value. Raises UserError for another one without a value.
    """
    values, rest, words = {}, [], iter(argv)
    for word in words:
        key, equals, text = word.partition("=")
        name = key[2:].replace("-", "_")
        if not key.startswith("--") or name not in kinds:
            rest.append(word)
            continue
        base, _, optional = read_type(kinds[name])
        if not equals:
            text = "True" if flags and base is bool else next(words, "--")
            if text.startswith("--"):  # the next option, or the end
                default = getattr(cls, name, False)
                example = str(not default if isinstance(default, bool) else default).strip() or "TEXT"
                raise UserError(f"{key} needs a value, as in {key}={example}")
        as_it_stands = base is str and not (optional and text == "None")  # even if it spells a number
        values[name] = text if as_it_stands else parse_literal(text)
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


# The text of a number, a truth value or None is shorter. Python's parser runs out of stack in a longer one,
# which may be nested deeply.
LONGEST_LITERAL = 200  # characters


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
    """Run a config file and return its public names with their values.

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
        raise UserError(f"{path}:{line}: {describe_error(error)}") from error
    return {
        name: value
        for name, value in names.items()
        if name in option_types(cls)
        or not (name.startswith("_") or callable(value) or isinstance(value, ModuleType))
    }


def describe_error(error: BaseException) -> str:
    """Return an exception's class and message."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # a class of the config file, whose __str__ fails
        return type(error).__name__


IGNORED = {"backend": str, "compile": bool}  # nanoGPT's options for PyTorch, and their types
FROM_TORCH = {  # (option, PyTorch's value): JAX's value, and a remark if the two are not quite the same
    ("dtype", "float16"): ("bfloat16", "which needs no loss scaling"),
    ("device", "mps"): ("cpu", "the nearest that JAX supports"),
    ("device", "gpu"): ("cuda", None),
    ("device", "cuda:N"): ("cuda", "and CUDA_VISIBLE_DEVICES chooses among GPUs"),
}


def translate_from_torch(name: str, value: Any) -> Any:
    """Return JAX's value for one that was written for PyTorch. Prints a note if they differ in meaning."""
    if name not in ("device", "dtype") or not isinstance(value, str):
        return value
    spelling = re.sub(r"^cuda:\d+$", "cuda:N", value)
    becomes, remark = FROM_TORCH.get((name, spelling), (value, None))
    if remark:
        print(f"note: {name}={value} becomes {becomes}, {remark}", file=sys.stderr)
    return becomes


def check_name(name: str, origin: str, cls: type[CommandOptions]) -> str:
    """Return `name` if it is an option of `cls`. Raises UserError, which begins with `origin`, if not."""
    if name not in option_types(cls):
        nearest = difflib.get_close_matches(name, option_types(cls), n=1)
        advice = f"did you mean {nearest[0]}?" if nearest else f"python {cls.program} --help lists them all"
        raise UserError(f"{origin}{shorten(name)} is not an option; {advice}")
    return name


def check_value(name: str, value: Any, origin: str, cls: type[Any]) -> Any:
    """Return `value` in the type that option `name` of `cls` has: 1e5 becomes 100000 for an integer.

    Raises UserError, which begins with `origin` (`--`, or a file's name), for an unknown name or bad value.
    """
    kind, limit, optional = read_type(IGNORED.get(name) or option_types(cls)[check_name(name, origin, cls)])
    if value is None and optional:
        return None
    try:
        return convert(value, kind, limit)
    except ValueError as error:
        expected = str(error) or limit.text + optional * ", or None"
        shown = "***" if name == "api_key" else spell(value)
        raise UserError(f"{origin}{name} is {shown}, expected {expected}") from error


def convert(value: Any, kind: type, limit: Limit) -> bool | int | float | str:
    """Return `value` as type `kind`. 1e5 passes as an int and 1 as a float, True as neither.

    Raises ValueError if the value is of another type, or outside its limit; with words for what is expected,
    if it is no number that an array's axis or a counter may have.
    """
    if kind in (int, float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        finite = number and abs(value) <= sys.float_info.max  # false for nan as well
        if not finite or (kind is int and value != int(value)):
            raise ValueError
        if kind is int and abs(value) >= limit.below:
            raise ValueError(f"an integer of a size below {limit.below}")
        if abs(value) > FLOAT32_MAX:
            raise ValueError("a number of a size below 3.4e38, float32's largest")
        value = kind(value)
    if not isinstance(value, kind) or not limit.holds(value):
        raise ValueError
    return value


class ScriptParser(argparse.ArgumentParser):
    """The command line of a script that prepares data. A mistake in it is one line, as in any command's."""

    def __init__(self, about: str | None):
        help_as_it_is = argparse.RawDescriptionHelpFormatter
        super().__init__(description=about, formatter_class=help_as_it_is, allow_abbrev=False)

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Return the options' values. Raises UserError."""
        for word in argv:
            if not word or re.fullmatch("--[a-z_]+=", word):
                raise UserError(f"{word or repr(word)}: a value is missing there; see --help")
        return self.parse_args(argv)

    def error(self, message: str) -> NoReturn:
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
