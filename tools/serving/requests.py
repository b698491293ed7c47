"""Read what a client asks for: a request's JSON fields, checked and in the engine's terms.

`/v1/completions` and `/v1/chat/completions` take most fields alike. One that is wrong raises ApiError, which
names it.
"""

import secrets
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from config.command_line import UserError, spell
from tools.serving.errors import ApiError
from tools.serving.fields import Fields, refuse, strings
from tools.serving.served import Served

SEQUENCES = 128  # of one request: prompts times n


@dataclass(frozen=True)
class Asked:
    """A request to continue prompts."""

    prompts: list[np.ndarray]  # token ids, one or more each
    max_tokens: int
    n: int  # continuations of each prompt
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int
    stops: list[str]  # texts that end a continuation
    ends: tuple[int, ...]  # tokens that do
    logprobs: int | None  # how many of the likeliest tokens to tell; None: nothing of probabilities
    echo: bool
    stream: bool
    include_usage: bool


def read_completion(fields: Fields, served: Served) -> Asked:
    """Read the fields of /v1/completions."""
    prompts = read_prompts(fields.take("prompt"), served)
    logprobs = fields.integer("logprobs", None, 0, 20)
    echo = fields.boolean("echo")
    return read_common(fields, served, prompts, 16, logprobs, echo)


def read_chat(fields: Fields, served: Served) -> Asked:
    """Read the fields of /v1/chat/completions."""
    messages = read_messages(fields.take("messages"))
    prompt = encode(served, "messages", served.chat.prompt(messages))
    told, top = fields.boolean("logprobs"), fields.integer("top_logprobs", None, 0, 20)
    if top is not None and not told:
        raise ApiError("top_logprobs needs logprobs: true", "top_logprobs")
    asked = read_common(fields, served, [prompt], None, (top or 0) if told else None, False)
    return replace(asked, stops=[*asked.stops, *served.chat.stops], ends=(*asked.ends, *served.chat.ends))


def read_common(
    fields: Fields,
    served: Served,
    prompts: list[np.ndarray],
    max_tokens: int | None,
    logprobs: int | None,
    echo: bool,
) -> Asked:
    """Read the fields that both take. `max_tokens` is the default; None: all that the model reads."""
    limits = served.limits
    check_model(fields.text("model"), served)
    longest = max(map(len, prompts))
    default = min(max_tokens or served.block_size, limits.max_tokens)
    least = 0 if echo else 1
    wanted = fields.integer("max_tokens", None, least, limits.max_tokens)
    newer = fields.integer("max_completion_tokens", None, least, limits.max_tokens)
    room = served.block_size - longest
    if limits.overflow == "error":
        if room < least or max(wanted or 0, newer or 0) > room:
            raise ApiError(
                f"the prompt has {longest} tokens, {newer or wanted or default} are to follow, and the model "
                f"reads {served.block_size} at most: ask for less",
                "prompt",
                code="context_length_exceeded",
            )
        default = min(default, room)
    wanted = newer if newer is not None else wanted
    n = fields.integer("n", 1, 1, SEQUENCES)
    most = min(SEQUENCES, served.worker.room)
    if n * len(prompts) > most:
        raise ApiError(
            f"{len(prompts)} prompts times n={n} are more than {most}, which run or wait here", "n"
        )
    stream = fields.boolean("stream")
    options = fields.take("stream_options")
    asked = Asked(
        prompts,
        default if wanted is None else wanted,
        n,
        fields.number("temperature", 1.0, 0, 2),
        fields.integer("top_k", None, 1, 2**31 - 1),
        fields.number("top_p", None, 0, 1, or_at=False),
        read_seed(fields),
        list(strings("stop", fields.take("stop"), 4)),
        () if served.eot is None else (served.eot,),
        logprobs,
        echo,
        stream,
        read_stream_options(options, stream),
    )
    fields.finish()
    return asked


def check_model(name: str | None, served: Served) -> None:
    if name not in (None, served.name):
        raise ApiError(
            f"there is no model {spell(name)}; there is {served.name}", "model", 404, "model_not_found"
        )


def read_seed(fields: Fields) -> int:
    """Take the seed, or draw one: without it, each request gets another text."""
    seed = fields.integer("seed", None, -(2**63), 2**63 - 1)
    return secrets.randbits(32) if seed is None else seed % 2**32


def read_stream_options(options: Any, stream: bool) -> bool:
    """Return whether the usage is to be sent at the end of a stream."""
    if options is None:
        return False
    if not isinstance(options, dict) or not stream:
        refuse("stream_options", options, "an object, with stream: true")
    inner = Fields(options)
    usage = inner.boolean("include_usage")
    inner.boolean("include_obfuscation")
    inner.finish()
    return usage


def read_prompts(prompt: Any, served: Served) -> list[np.ndarray]:
    """Return the prompts of a string, strings, token ids or lists of token ids."""
    match prompt:
        case None:
            return [encode(served, "prompt", "")]
        case str():
            return [encode(served, "prompt", prompt)]
        case [int(), *_]:
            return [check_ids(served, "prompt", prompt)]
        case [str(), *_] if len(prompt) <= SEQUENCES and all(isinstance(x, str) for x in prompt):
            return [encode(served, "prompt", text) for text in prompt]
        case [list(), *_] if len(prompt) <= SEQUENCES and all(isinstance(x, list) for x in prompt):
            return [check_ids(served, "prompt", ids) for ids in prompt]
    refuse(
        "prompt",
        prompt,
        f"a string, up to {SEQUENCES} strings, token ids, or up to {SEQUENCES} lists of them",
    )


def encode(served: Served, param: str, text: str) -> np.ndarray:
    """Return the tokens of a text; of none, the end-of-text token, if there is one."""
    try:
        ids = served.tokenizer.encode(text)
    except UserError as error:  # a character that is not in the vocabulary
        raise ApiError(str(error), param) from None
    if not len(ids) and served.eot is not None:
        ids = np.array([served.eot], np.int32)
    return check_ids(served, param, ids.tolist())


def check_ids(served: Served, param: str, ids: list) -> np.ndarray:
    """Return token ids as an array, int32. Raises ApiError unless they are of the model's vocabulary."""
    if not ids:
        raise ApiError(f"{param} is empty: it needs at least one token", param)
    if len(ids) > served.limits.max_prompt:
        raise ApiError(
            f"{param} has {len(ids)} tokens, and at most {served.limits.max_prompt} are taken",
            param,
            code="context_length_exceeded",
        )
    for i in ids:
        if type(i) is not int or not 0 <= i < served.vocab_size:
            refuse(param, i, f"token ids from 0 to {served.vocab_size - 1}")
    return np.array(ids, np.int32)


def read_messages(messages: Any) -> list[dict[str, str]]:
    """Return chat messages, with a role and a text each."""
    if not isinstance(messages, list) or not messages:
        refuse("messages", messages, "a list of messages")
    return [read_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def read_message(message: Any, param: str) -> dict[str, str]:
    if not isinstance(message, dict):
        refuse(param, message, "an object with role and content")
    fields = Fields(message)
    role, content = fields.take("role"), fields.take("content", "")
    fields.text("name")
    if role not in ("system", "developer", "user", "assistant"):
        refuse(f"{param}.role", role, "system, developer, user or assistant")
    if isinstance(content, list):
        content = join_parts(content, f"{param}.content")
    if not isinstance(content, str):
        refuse(f"{param}.content", content, "a string, or parts of type text")
    fields.finish()
    return {"role": "system" if role == "developer" else role, "content": content}


def join_parts(parts: list, param: str) -> str | None:
    """Return the text of a message that comes in parts; None where one is no part. Raises ApiError."""
    for i, part in enumerate(parts):
        if isinstance(part, dict) and part.get("type") in ("image_url", "input_audio", "file"):
            raise ApiError(
                f"{param}[{i}] is of type {part['type']}: the model understands text alone, no images", param
            )
    return "".join(part["text"] for part in parts) if all(map(is_text, parts)) else None


def is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
