"""Continue prompts with the engine, and answer as OpenAI does: with one object, or a stream of chunks."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response, StreamingResponse
from jaxtyping import Array, Int, PRNGKeyArray

from generation.decode import Likelihood
from generation.engine import Piece, Request
from tools.serving.errors import ApiError
from tools.serving.requests import Asked
from tools.serving.served import Served
from tools.serving.text import Continuation, Part, Token, prompt_tokens, spelling
from tools.serving.worker import Job


@dataclass
class Choice:
    """One continuation, from the engine's pieces to parts of the text."""

    served: Served
    asked: Asked
    job: Job
    sent: bool = False  # a part of it
    finish_reason: str | None = None
    of_prompt: list[Likelihood] = field(default_factory=list)

    def __post_init__(self):
        self.prompt = self.job.request.prompt.tolist()
        self.text = Continuation(self.served.tokenizer, self.prompt, self.asked.stops)
        self.echoed = not self.asked.echo

    def take(self, piece: Piece) -> Part:
        """Return the text that a piece of the engine's makes ready to be sent."""
        if piece.prompt is not None:
            self.of_prompt.append(piece.prompt)
        if not self.echoed and (len(piece.tokens) or piece.finished):
            self.text.echo(*prompt_tokens(self.served.tokenizer, self.prompt, self.of_prompt))
            self.echoed = True
        ended = len(piece.tokens) > 0 and int(piece.tokens[-1]) in self.asked.ends
        part = self.text.add(piece.tokens[:-1] if ended else piece.tokens, piece.likelihood)
        self.text.count += ended
        if piece.finished or self.text.stopped:
            part += self.text.finish()
            self.finish_reason = "stop" if ended or self.text.stopped else "length"
            self.served.worker.cancel(self.job)
        return part


# The objects that are sent


@dataclass
class Answer:
    """The answer to a request for completions. Subclasses are those of other routes."""

    served: Served
    asked: Asked
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    kinds = ("text_completion", "text_completion")  # of the complete object, and of a chunk
    prefix = "cmpl"

    def object(self, choices: list[dict], usage: dict | None, chunk: bool = False) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{self.id}",
            "object": self.kinds[chunk],
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": self.served.version,
            "choices": choices,
            "usage": usage,
        }

    def choice(self, choice: Choice, part: Part, chunk: bool = False) -> dict[str, Any]:
        n = self.asked.logprobs
        return {
            "index": choice.job.index,
            **self.content(choice, part, chunk),
            "logprobs": None if n is None else self.logprobs(part.tokens, n),
            "finish_reason": choice.finish_reason,
        }

    def content(self, choice: Choice, part: Part, chunk: bool) -> dict[str, Any]:
        return {"text": part.text}

    def logprobs(self, tokens: list[Token], n: int) -> dict[str, Any]:
        """Return tokens and their n likeliest alternatives. The prompt's first token has no probability."""
        return {
            "tokens": [self.name(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self.top(token, n) for token in tokens] if n else None,
            "text_offset": [token.start for token in tokens],
        }

    def top(self, token: Token, n: int) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        return {self.name(i): p for i, p in [*token.likeliest[:n], (token.id, token.logprob)]}

    def name(self, token: int) -> str:
        return spelling(self.served.tokenizer, token)


class ChatAnswer(Answer):
    kinds = ("chat.completion", "chat.completion.chunk")
    prefix = "chatcmpl"

    def content(self, choice, part, chunk):
        if not chunk:
            return {"message": {"role": "assistant", "content": part.text, "refusal": None}}
        role = {} if choice.sent else {"role": "assistant"}
        return {"delta": role | ({"content": part.text} if part.text else {})}

    def logprobs(self, tokens, n):
        content = [
            self.described(token.id, token.logprob)
            | {"top_logprobs": [self.described(*other) for other in token.likeliest[:n]]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def described(self, token: int, logprob: float | None) -> dict[str, Any]:
        raw = list(self.served.tokenizer.bytes_of(token))
        return {"token": self.name(token), "bytes": raw, "logprob": logprob}


class IdsAnswer(Answer):
    """A completion whose choices are tokens with their ids, so that the page can go on from any of them."""

    def choice(self, choice, part, chunk=False):
        begin = part.tokens[0].start if part.tokens else 0
        pieces = [
            {"id": x.id, "text": part.text[x.start - begin : x.end - begin], "logprob": x.logprob}
            for x in part.tokens
        ]
        return {"index": choice.job.index, "tokens": pieces, "finish_reason": choice.finish_reason}


# From the request to the answer


async def respond(http: HttpRequest, answer: Answer) -> Response:
    """Compute, and answer at once or at the end; stop when the client goes away. Raises ApiError."""
    served, asked = answer.served, answer.asked
    choices = [Choice(served, asked, job) for job in served.worker.submit(engine_requests(asked))]
    if asked.fields.stream:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(events(choices, answer), 200, headers, "text/event-stream")
    complete = asyncio.create_task(collect(choices, answer))
    left = asyncio.create_task(disconnected(http))
    try:
        await asyncio.wait({complete, left}, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(complete.result()) if complete.done() else Response(status_code=499)
    finally:
        complete.cancel()
        left.cancel()
        cancel_all(choices)


def engine_requests(asked: Asked) -> list[Request]:
    """Return a request for each choice: n of the first prompt, then n of the second, and so on.

    Choice i is drawn with the key of row i, so that its text is that of sample i in sample.py.
    """
    fields, logprobs = asked.fields, asked.logprobs is not None
    prompts = [prompt for prompt in asked.prompts for _ in range(fields.n)]
    keys = [key_of_row(np.uint32(asked.seed), np.uint32(row)) for row in range(len(prompts))]
    drawing = fields.temperature, fields.top_k, fields.top_p
    return [
        Request(prompt, key, asked.max_tokens, *drawing, asked.ends, logprobs, logprobs and asked.echo)
        for prompt, key in zip(prompts, keys, strict=True)
    ]


@jax.jit
def key_of_row(seed: Int[Array, ""], row: Int[Array, ""]) -> PRNGKeyArray:
    """Return what `keys_of_rows` of the engine does for one row, in a tenth of the time."""
    return jax.random.fold_in(jax.random.key(seed), row)


async def disconnected(http: HttpRequest) -> None:
    """Return when the client has gone."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def cancel_all(choices: list[Choice]) -> None:
    for choice in choices:
        choice.served.worker.cancel(choice.job)


async def parts(choices: list[Choice]) -> AsyncIterator[tuple[Choice, Part]]:
    """Yield the parts of all texts as they are made. Raises ApiError when computing fails."""
    while any(choice.finish_reason is None for choice in choices):
        job, piece = await choices[0].job.made.get()
        if isinstance(piece, ApiError):
            raise piece
        choice = choices[job.index]
        if choice.finish_reason is None:  # or it ended with a stop string before this piece
            yield choice, choice.take(piece)


def usage(asked: Asked, choices: list[Choice]) -> dict[str, int]:
    """Count the tokens: a prompt once, whatever n."""
    prompt, new = sum(map(len, asked.prompts)), sum(choice.text.count for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


async def collect(choices: list[Choice], answer: Answer) -> dict:
    """Return the complete object."""
    texts = [Part("", []) for _ in choices]
    async for choice, part in parts(choices):
        texts[choice.job.index] += part
    found = [answer.choice(choice, part) for choice, part in zip(choices, texts, strict=True)]
    return answer.object(found, usage(answer.asked, choices))


async def events(choices: list[Choice], answer: Answer) -> AsyncIterator[str]:
    """Yield the chunks as server-sent events. An error ends them as one more."""
    try:
        async for choice, part in parts(choices):
            if part.text or part.tokens or choice.finish_reason:
                yield event(answer.object([answer.choice(choice, part, chunk=True)], None, chunk=True))
                choice.sent = True
        options = answer.asked.fields.stream_options
        if options and options.include_usage:
            yield event(answer.object([], usage(answer.asked, choices), chunk=True))
        yield "data: [DONE]\n\n"
    except ApiError as error:
        yield event(error.body())
    finally:  # also when the client has gone
        cancel_all(choices)


def event(value: dict) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
