"""The fields of a request's JSON body, each checked for its type and limits. A bad one raises ApiError."""

import json
import math
from collections.abc import Collection
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from config.command_line import spell
from tools.serving.errors import ApiError

# Fields that OpenAI's clients send and this server does not have, with the values that ask for nothing: they
# are accepted and ignored. None always is; Ellipsis stands for any value.
NEUTRAL: dict[str, tuple] = {
    **dict.fromkeys(("user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"), (...,)),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), (0,)),
    **dict.fromkeys(("logit_bias", "tools", "functions"), ({}, [])),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "suffix": ("",),
    "best_of": (1,),
}


class Fields:
    """The fields of a JSON object that have not been taken yet. One that is null counts as not given."""

    def __init__(self, body: dict[str, Any]):
        self.left = {name: value for name, value in body.items() if value is not None}

    def take(self, name: str, default: Any = None) -> Any:
        return self.left.pop(name, default)

    def integer(self, name: str, default: int | None, least: int, most: int) -> Any:
        value = self.take(name, default)
        if value is not default and (type(value) is not int or not least <= value <= most):
            refuse(name, value, f"an integer from {least} to {most}")
        return value

    def number(self, name: str, default: float | None, above: float, most: float, or_at: bool = True) -> Any:
        """Take a number above `above`, or at it, and not above `most`."""
        value = self.take(name, default)
        if value is default:
            return value
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not (above < value <= most or or_at and value == above):
            limits = f"from {above} to {most}" if or_at else f"above {above}, up to {most}"
            refuse(name, value, f"a number {limits}")
        return float(value)

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            refuse(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> Any:
        value = self.take(name, default)
        if value is not default and not isinstance(value, str):
            refuse(name, value, "a string")
        return value

    def finish(self) -> None:
        """Raise ApiError for a field that is left: one that is unknown, or asks for what there is not."""
        for name, value in self.left.items():
            if name not in NEUTRAL:
                raise ApiError(f"unknown field {spell(name)}", name[:100], code="unknown_parameter")
            if ... not in NEUTRAL[name] and value not in NEUTRAL[name]:
                raise ApiError(f"{name} is not supported: leave it out", name, code="unsupported_parameter")


def refuse(name: str, value: Any, expected: str) -> NoReturn:
    raise ApiError(f"{name} is {spell(value)}, expected {expected}", name, code="invalid_value")


async def read_fields(request: Request, most: int) -> Fields:
    """Read a request's body, of at most so many bytes, as a JSON object. Raises ApiError."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise ApiError(f"the body has more than {most} bytes", status=413, code="body_too_large")
    except ClientDisconnect:
        raise ApiError("the body was cut short") from None
    try:
        value = json.loads(bytes(body), parse_constant=not_a_number, parse_float=finite)
        if b"\\ud" in body.lower():  # half a character, perhaps, which no text can have
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # ValueError: also of what is not UTF-8
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).split("\n")[0][:100]
        raise ApiError(f"the body is not JSON: {reason}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(f"the body is {type(value).__name__}, expected a JSON object", code="invalid_json")
    return Fields(value)


def not_a_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON's")


def finite(text: str) -> float:
    if math.isfinite(value := float(text)):
        return value
    raise ValueError("a number is too large")


def strings(name: str, value: Any, most: int) -> Collection[str]:
    """Return one string, or a list of up to so many, as a list; none may be empty."""
    value = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(value, list) or len(value) > most or not all(isinstance(x, str) and x for x in value):
        refuse(name, value, f"a string that is not empty, or a list of up to {most}")
    return value
