"""Read the requests of clients: their fields and limits, and the same in the engine's terms."""

import secrets
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from config.command_line import UserError, spell
from tools.serving.errors import ApiError
from tools.serving.served import Served

SEQUENCES = 128  # of one request: prompts times n

# OpenAI's fields that this server lacks: ignored, or accepted with the value that asks for nothing.
IGNORED = {
    *("user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"),
}
NEUTRAL: dict[str, tuple] = {
    **{"presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},), "tools": ([],)},
    **{"functions": ([],), "response_format": ({"type": "text"},), "modalities": (["text"],)},
    **{"suffix": ("",), "best_of": (1,), "store": (False,), "parallel_tool_calls": (True, False)},
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
}


class Body(BaseModel):
    """The JSON object of a request. Null counts as not given; an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def leave_out(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {
            name: value
            for name, value in body.items()
            if value is not None and name not in IGNORED and value not in NEUTRAL.get(name, ())
        }


Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True)]
NotEmpty = Annotated[str, Field(min_length=1)]


def as_list(value: Any) -> Any:
    """Put one text, or one list of ids, into a list."""
    return value if isinstance(value, list) and value and not isinstance(value[0], int) else [value]


class Drawing(Body):
    """How tokens are drawn: see `generation.sampling.sample`."""

    temperature: float = Field(1.0, ge=0, le=2)
    top_k: int | None = Field(None, ge=1, lt=2**31)
    top_p: float | None = Field(None, gt=0, le=1)


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool = False


class Common(Drawing):
    """The fields of both completions."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int = Field(1, ge=1, le=SEQUENCES)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[NotEmpty], Field(max_length=4), BeforeValidator(as_list)] = []
    stream: bool = False
    stream_options: StreamOptions | None = None


class CompletionBody(Common):
    prompt: Annotated[list[str | Ids], Field(max_length=SEQUENCES), BeforeValidator(as_list)] = [""]
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False


class TextPart(Body):
    type: Literal["text"]  # the model understands no images
    text: str


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] = ""
    name: str | None = None


class ChatBody(Common):
    messages: list[Message] = Field(min_length=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)


def bad_field(error: RequestValidationError) -> ApiError:
    """Describe the first field that is wrong in one line."""
    errors = error.errors()
    kind, (_, *steps), value = errors[0]["type"], errors[0]["loc"], errors[0]["input"]
    if kind == "json_invalid":
        return ApiError(f"the body is not JSON: {errors[0]['ctx']['error']}", code="invalid_json")
    path = ""
    given: Any = error.body or dict.fromkeys(steps[:1], value)
    for step in steps:
        if given is value:  # the other steps name an alternative of its type
            break
        path = f"{path}[{step}]" if isinstance(step, int) else f"{path}.{step}" if path else step[:100]
        given = given.get(step) if isinstance(given, dict) else given[step]
    name = path or "the body"
    if kind == "missing":
        return ApiError(f"{name} is missing", path or None, code="invalid_value")
    if kind == "extra_forbidden":
        message = f"{spell(name)} is an unknown field, or one that is not supported: leave it out"
        return ApiError(message, path, code="unknown_parameter")
    # Each alternative of the field's type says what it expects.
    expected = dict.fromkeys(x["msg"] for x in errors if x["loc"][1:2] == errors[0]["loc"][1:2])
    return ApiError(f"{name} is {spell(value)}: {' or '.join(expected)}", path or None, code="invalid_value")


@dataclass(frozen=True)
class Asked:
    """A request to continue prompts, in the engine's terms."""

    fields: Common
    prompts: list[np.ndarray]  # token ids, one or more each
    max_tokens: int
    seed: int
    stops: list[str]  # texts that end a continuation
    ends: tuple[int, ...]  # tokens that end one
    logprobs: int | None  # how many of the likeliest tokens to send; None: no probabilities
    echo: bool = False


def read_completion(fields: CompletionBody, served: Served) -> Asked:
    prompts = [
        encode(served, "prompt", x) if isinstance(x, str) else check_ids(served, "prompt", x)
        for x in fields.prompt
    ]
    return read_common(fields, served, prompts, 16, fields.logprobs, fields.echo)


def read_chat(fields: ChatBody, served: Served) -> Asked:
    """Blocks while the template's process works. Raises ApiError."""
    prompt = encode(served, "messages", served.chat.prompt([read_message(x) for x in fields.messages]))
    if fields.top_logprobs is not None and not fields.logprobs:
        raise ApiError("top_logprobs needs logprobs: true", "top_logprobs")
    logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    asked = read_common(fields, served, [prompt], served.block_size, logprobs)
    return replace(asked, stops=asked.stops + served.chat.stops, ends=asked.ends + served.chat.ends)


def read_message(message: Message) -> dict[str, str]:
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    return {"role": "system" if message.role == "developer" else message.role, "content": text}


def read_common(
    fields: Common,
    served: Served,
    prompts: list[np.ndarray],
    max_tokens: int,
    logprobs: int | None,
    echo: bool = False,
) -> Asked:
    """Check what depends on the model and on the server's limits. `max_tokens` is a default."""
    check_model(fields.model, served)
    if fields.stream_options and not fields.stream:
        raise ApiError("stream_options needs stream: true", "stream_options", code="invalid_value")
    if fields.n * len(prompts) > (most := min(SEQUENCES, served.worker.room)):
        message = f"{len(prompts)} prompts times n={fields.n} are more than {most}, which run or wait here"
        raise ApiError(message, "n")
    least, most = 0 if echo else 1, served.max_tokens
    name = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    wanted = getattr(fields, name)
    if wanted is not None and not least <= wanted <= most:
        message = f"{name} is {spell(wanted)}, expected an integer from {least} to {most}"
        raise ApiError(message, name, code="invalid_value")
    longest = max(map(len, prompts))
    room = served.block_size - longest
    if served.overflow == "error":
        if max(wanted or 0, least) > room:
            message = (
                f"{longest} tokens and {max(wanted or 0, least)} new ones are more than {served.block_size}"
            )
            raise ApiError(message, "prompt", code="context_length_exceeded")
        most = min(most, room)
    return Asked(
        fields,
        prompts,
        min(max_tokens, most) if wanted is None else wanted,
        secrets.randbits(32) if fields.seed is None else fields.seed % 2**32,
        fields.stop,
        () if served.eot is None else (served.eot,),
        logprobs,
        echo,
    )


def check_model(name: str | None, served: Served) -> None:
    if name not in (None, served.name):
        message = f"there is no model {spell(name)}; there is {served.name}"
        raise ApiError(message, "model", 404, "model_not_found")


def encode(served: Served, param: str, text: str) -> np.ndarray:
    """Return the tokens of a text, or if that is empty the end-of-text token."""
    try:
        ids = served.tokenizer.encode(text).tolist()
    except UserError as error:  # a character that is not in the vocabulary
        raise ApiError(str(error), param) from None
    return check_ids(served, param, ids or ([] if served.eot is None else [served.eot]))


def check_ids(served: Served, param: str, ids: list[int]) -> np.ndarray:
    """Return token ids as an array, int32. Raises ApiError unless they are the model's."""
    if not ids:
        raise ApiError(f"{param} is empty: it needs at least one token", param)
    if len(ids) > served.max_prompt:
        message = f"{param} has {len(ids)} tokens, and at most {served.max_prompt} are taken"
        raise ApiError(message, param, code="context_length_exceeded")
    if max(ids) >= served.vocab_size:
        message = f"{param} has {max(ids)}, expected token ids from 0 to {served.vocab_size - 1}"
        raise ApiError(message, param, code="invalid_value")
    return np.array(ids, np.int32)
