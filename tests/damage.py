"""Damaged JSON, for every file of JSON that a program reads: a damage is one line, never a traceback."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers import refusal

DEEP = 10_000  # levels, more than Python's parser follows
NOT_VALUES = {  # in the place of a value; some are right in some places
    "null": "null",
    "true": "true",
    "a text": '"\\u0000\\u001b[2J \\ud800"',
    "a long text": json.dumps("x" * 20_000),
    "a fraction": "0.5",
    "a negative number": "-1",
    "NaN": "NaN",
    "infinity": "1e999",
    "a huge integer": "1" + "0" * 400,
    "an integer that Python does not read": "1" + "0" * 5000,
    "2^31": str(2**31),
    "2^62": str(2**62),
    "an empty list": "[]",
    "a list": "[1, [true], null]",
    "an empty object": "{}",
    "an object": '{"a": {"b": null}, "train": [{}]}',
    "nested to the limit": "[" * 900 + "]" * 900,
    "nested too deeply": "[" * DEEP + "]" * DEEP,
}


def damaged(valid: str) -> Iterator[tuple[str, bytes]]:
    """Yield variants of a JSON object's text, each with its name: spoilt, something else, a wrong value.

    A wrong value stands in the place of each value of the object, and of the objects in it.
    """
    whole = valid.encode()
    yield "empty", b""
    yield "half", whole[: len(whole) // 2]
    yield "without its end", whole.rstrip()[:-1]
    yield "twice", whole + whole
    yield "binary", bytes(range(256)) * 8
    yield "not UTF-8", whole[:-1] + b"\xff" + whole[-1:]
    yield "UTF-16", valid.encode("utf-16")
    for what, text in NOT_VALUES.items():
        yield f"{what} instead", text.encode()
    values = json.loads(valid)
    for place in places(values):
        named = ".".join(place)
        yield f"without {named}", json.dumps(replaced(values, place, None)).encode()
        marked = json.dumps(replaced(values, place, "@@@"))
        for what, text in NOT_VALUES.items():
            yield f"{named} is {what}", marked.replace('"@@@"', text).encode()


def places(values: dict, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of keys to each value of an object and of the objects in it."""
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from places(value, (*above, key))


def replaced(values: dict, place: tuple[str, ...], text: str | None) -> dict:
    """Return an object with `text` in one place, or without what is there."""
    key, *below = place
    if below:
        return values | {key: replaced(values[key], tuple(below), text)}
    return {k: v for k, v in values.items() if k != key} | ({} if text is None else {key: text})


def answers(path: Path, read: Callable[[], object]) -> dict[str, str | None]:
    """Return what `read` says of each damage to the JSON file at `path`: one line, or None if it reads it.

    The file is then as it was. Anything but a short line fails the test.
    """
    valid, said = path.read_text(), {}
    for what, content in damaged(valid):
        path.write_bytes(content)
        try:
            said[what] = refusal(lambda: read() and None)
            assert len(said[what]) < 1100, said[what]
        except pytest.fail.Exception:  # it is read
            said[what] = None
        except BaseException as error:
            raise AssertionError(f"{path.name}, {what}: {type(error).__name__}") from error
    path.write_text(valid)
    return said


def assert_named(
    path: Path, read: Callable[[], object], free: tuple[str, ...] = (), named: Path | None = None
) -> dict[str, str | None]:
    """Check that each damage to the JSON file at `path` is refused in a line that names it (or `named`).

    Values of the places in `free`, and below, may be whatever `read` makes of them. Returns `answers`.
    """
    said = answers(path, read)
    for what, line in said.items():
        place = what.removeprefix("without ").partition(" is ")[0]
        if not any(f"{place}.".startswith(f"{name}.") for name in free):
            assert line is not None and str(named or path) in line, (what, line)
    return said
