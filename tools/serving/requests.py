"""Read the requests of clients: their fields and limits, and the same in the engine's terms."""

import secrets
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

import jax
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from common.command_line import Fraction, Penalty, Repetition, TopK, TopP, spell
from common.errors import UserError
from generation.engine import Request
from generation.sampling import Settings
from tools.serving.served import Served
from tools.serving.server import ApiError

MAX_TOKENS = "max_tokens", "max_completion_tokens"  # OpenAI's older and newer name
AT_EASE = 10**5  # characters, which are encoded in a blink even in quadratic time
SEQUENCES = 128  # prompts of a request, and continuations of each


class Body(BaseModel):
    """The JSON object of a request. Null counts as not given; an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def leave_out(cls, body: Any) -> Any:
        return {k: x for k, x in body.items() if x is not None} if isinstance(body, dict) else body


Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True)]
Bias = Annotated[float, Field(ge=-100, le=100)]
IdAsText = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]  # one spelling for each id
NotEmpty = Annotated[str, Field(min_length=1)]


def as_list(value: Any) -> Any:
    return value if isinstance(value, list) and value and not isinstance(value[0], int) else [value]


class Drawing(Body):
    """How tokens are drawn."""

    temperature: float = Field(1.0, ge=0, le=2)
    top_k: TopK = 0
    top_p: TopP = 1.0
    min_p: Fraction = 0.0

    @property
    def settings(self) -> Settings:
        return Settings(**self.model_dump(include=set(Settings._fields)))


class StreamOptions(Body):
    include_usage: bool = False  # what is not streamed has it anyway


class Common(Drawing):
    model: str | None = None
    max_tokens: int | None = Field(None, ge=0, validation_alias=AliasChoices(*MAX_TOKENS))
    n: int = Field(1, ge=1, le=SEQUENCES)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[
        list[NotEmpty], Field(max_length=4), BeforeValidator(lambda x: [x] if isinstance(x, str) else x)
    ] = []
    stop_token_ids: Annotated[Ids, Field(max_length=128)] = []
    repetition_penalty: Repetition = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[IdAsText, Bias] = {}
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


class CompletionBody(Common):
    prompt: Annotated[list[str | Ids], Field(max_length=SEQUENCES), BeforeValidator(as_list)] = [""]
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    add_special_tokens: bool = True  # as vLLM's

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest tokens to send; None: no probabilities."""
        return self.logprobs


class TextPart(Body):
    type: Literal["text"]  # the model understands no images
    text: str


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] = ""

    def plain(self) -> dict[str, str]:
        role = "system" if self.role == "developer" else self.role
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return {"role": role, "content": "".join(parts)}


class ChatBody(Common):
    messages: list[Message] = Field(min_length=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    echo: ClassVar[bool] = False

    @property
    def likeliest(self) -> int | None:
        return self.top_logprobs if self.logprobs or self.top_logprobs else None


def read_request(fields: CompletionBody | ChatBody, served: Served) -> tuple[list[Request], int]:
    """Return what the engine is asked, and how many messages are left out. Raises ApiError."""
    check_model(fields.model, served)
    biases = {int(i): bias for i, bias in fields.logit_bias.items()}
    check_ids(served, "stop_token_ids", fields.stop_token_ids)
    check_ids(served, "logit_bias", biases)
    block_size = served.model.config.block_size
    if isinstance(fields, ChatBody):
        param, wanted = "messages", block_size
        prompt, left_out = read_messages(served, fields.messages)
        prompts = [prompt]
    else:
        param, wanted, left_out = "prompt", 16, 0  # as OpenAI's
        special = fields.add_special_tokens and "before"  # nothing comes after a text to go on with
        prompts = [read_ids(served, "prompt", x, special) for x in fields.prompt]
    if (length := max(map(len, prompts))) > block_size:
        raise too_long(served, param, f"resulted in {length} tokens")
    most = min(SEQUENCES, served.worker.room)
    if fields.n * len(prompts) > most:
        raise ApiError(f"{len(prompts)} prompts times n={fields.n} are more than {most}, the most here", "n")
    wanted = min(wanted, served.max_tokens) if fields.max_tokens is None else fields.max_tokens
    if wanted > served.max_tokens:
        raise ApiError(f"max_tokens is {spell(wanted)}, expected {served.max_tokens} at most", "max_tokens")
    seed = secrets.randbits(32) if fields.seed is None else fields.seed % 2**32
    requests = [
        Request(
            prompt,
            key_of_row(np.uint32(seed), np.uint32(row)),  # so choice i is sample i of sample.py
            wanted,
            fields.settings,
            biases,
            (*fields.stop_token_ids, *served.ends),
            logprobs=fields.likeliest is not None,
            prompt_logprobs=fields.likeliest is not None and fields.echo,
        )
        for row, prompt in enumerate(prompt for prompt in prompts for _ in range(fields.n))
    ]
    return requests, left_out


def too_long(served: Served, param: str, what: str) -> ApiError:
    most = served.model.config.block_size
    message = f"This model's maximum context length is {most} tokens. However, your {param} {what}."
    return ApiError(message, param, code="context_length_exceeded")


@jax.jit
def key_of_row(seed: Int[Array, ""], row: Int[Array, ""]) -> PRNGKeyArray:
    """Return the key of one row, as `generate` makes it."""
    return jax.random.fold_in(jax.random.key(seed), row)


def check_model(name: str | None, served: Served) -> None:
    if name not in (None, served.name):
        message = f"there is no model {spell(name)}; there is {served.name}"
        raise ApiError(message, "model", 404, "model_not_found")


def read_ids(
    served: Served, param: str, ids: str | list[int], add_special_tokens: bool | str = "before"
) -> Int[np.ndarray, " T"]:
    """Return token ids, or those of a text; if it is empty, the end-of-text token. Raises ApiError."""
    if isinstance(ids, str):
        check_length(served, param, [ids])
        try:
            ids = served.tokenizer.encode(ids, add_special_tokens=add_special_tokens).tolist()
        except UserError as error:  # as for a character that is not in the vocabulary
            raise ApiError(str(error), param) from None
        ids = ids or served.ends[:1]
    if not ids:
        raise ApiError(f"{param} is empty: it needs at least one token", param)
    check_ids(served, param, ids)
    return np.array(ids, np.int32)


def read_messages(served: Served, messages: list[Message]) -> tuple[Int[np.ndarray, " T"], int]:
    """Return the prompt's tokens, and how many of the messages are left out. Raises ApiError."""
    plain = [message.plain() for message in messages]
    check_length(served, "messages", [message["content"] for message in plain])
    if isinstance(served.chat, str):
        raise ApiError(served.chat, "messages")
    try:
        prompt, left_out = served.chat.newest(plain, served.model.config.block_size)
        return read_ids(served, "messages", prompt.tolist()), left_out
    except UserError as error:
        raise ApiError(str(error), "messages") from None


def check_length(served: Served, param: str, texts: list[str]) -> None:
    """Raise ApiError for what is too long however it is encoded, which may take minutes."""
    length, most = sum(map(len, texts)), served.model.config.block_size
    if len(texts) > max(AT_EASE // 100, most) or length > max(AT_EASE, most * served.tokenizer.longest):
        raise too_long(served, param, f"have {length:,} characters in {len(texts):,} texts")


def check_ids(served: Served, param: str, ids: Iterable[int]) -> None:
    if (largest := max(ids, default=0)) >= served.vocab_size:
        message = f"{param} has {largest}, expected token ids from 0 to {served.vocab_size - 1}"
        raise ApiError(message, param, code="invalid_value")
