"""Continue prompts with the engine, and answer as OpenAI does: with one object, or a stream of chunks."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response, StreamingResponse

from generation.decode import Likelihood
from generation.engine import Piece
from tools.serving.errors import ApiError
from tools.serving.requests import Asked
from tools.serving.served import Served
from tools.serving.text import Continuation, Part, Token, likelihoods, read_prompt, spelling
from tools.serving.worker import Job


class Choice:
    """One continuation, from the engine's pieces to parts of the text."""

    def __init__(self, served: Served, asked: Asked, job: Job):
        self.served, self.asked, self.job = served, asked, job
        self.text = Continuation(served.tokenizer, job.request.prompt.tolist(), asked.stops)
        self.of_prompt: list[Likelihood] = []
        self.echoed = not asked.fields.echo
        self.sent = False  # a part of it
        self.finish_reason: str | None = None

    def take(self, piece: Piece) -> Part:
        """Return the text that a piece of the engine's makes ready to be sent."""
        if piece.prompt is not None:
            self.of_prompt.append(piece.prompt)
        if not self.echoed and (len(piece.tokens) or piece.finished):
            self.text.echo(read_prompt(self.served.tokenizer, self.job.request.prompt, self.of_prompt))
            self.echoed = True
        ended = len(piece.tokens) > 0 and int(piece.tokens[-1]) in self.job.request.stop
        tokens = piece.tokens[:-1] if ended else piece.tokens
        part = self.text.add(tokens, likelihoods(piece.likelihood))
        self.text.count += ended
        if piece.finished or self.text.stopped:
            part += self.text.finish()
            self.finish_reason = "stop" if ended or self.text.stopped else "length"
            self.served.worker.cancel(self.job)
        return part


class Answer:
    """The answer to a request for completions. Subclasses are those of other routes."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def __init__(self, served: Served, asked: Asked):
        self.served, self.asked = served, asked
        self.id, self.created = f"{self.prefix}-{secrets.token_hex(12)}", int(time.time())
        self.choices = [Choice(served, asked, job) for job in served.worker.submit(asked.requests)]

    async def complete(self) -> dict[str, Any]:
        """Return the whole answer as one object."""
        texts = [Part("", []) for _ in self.choices]
        async for choice, part in self.parts():
            texts[choice.job.index] += part
        described = [self.describe(*pair, chunk=False) for pair in zip(self.choices, texts, strict=True)]
        return self.object(self.kind, described, self.usage())

    async def events(self) -> AsyncIterator[str]:
        """Yield the chunks as server-sent events. An error ends them as one more."""
        try:
            async for choice, part in self.parts():
                if part.text or part.tokens or choice.finish_reason:
                    yield event(self.object(self.chunk_kind, [self.describe(choice, part, True)], None))
                    choice.sent = True
            if self.asked.fields.stream_options.include_usage:
                yield event(self.object(self.chunk_kind, [], self.usage()))
            yield "data: [DONE]\n\n"
        except ApiError as error:
            yield event(error.body())
        finally:  # also when the client has gone
            self.cancel()

    async def parts(self) -> AsyncIterator[tuple[Choice, Part]]:
        """Yield the parts of all texts as they are made. Raises ApiError when computing fails."""
        while any(choice.finish_reason is None for choice in self.choices):
            job, piece = await self.choices[0].job.made.get()
            if isinstance(piece, ApiError):
                raise piece
            choice = self.choices[job.index]
            if choice.finish_reason is None:  # or it ended with a stop string before this piece
                yield choice, choice.take(piece)

    def cancel(self) -> None:
        for choice in self.choices:
            self.served.worker.cancel(choice.job)

    def object(self, kind: str, choices: list[dict], usage: dict | None) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": self.served.worker.version,
            "choices": choices,
            "usage": usage,
        }

    def usage(self) -> dict[str, int]:
        """Count the tokens: a prompt once, whatever n."""
        prompt = sum(len(x.prompt) for x in self.asked.requests[:: self.asked.fields.n])
        new = sum(choice.text.count for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

    def describe(self, choice: Choice, part: Part, chunk: bool) -> dict[str, Any]:
        n = self.asked.fields.likeliest
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
            "token_ids": [token.id for token in tokens],  # for the page, which goes on from any of them
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
    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

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


async def respond(http: HttpRequest, answer: Answer) -> Response:
    """Answer in a stream, or at the end; stop when the client goes away. Raises ApiError."""
    if answer.asked.fields.stream:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(answer.events(), 200, headers, "text/event-stream")
    complete = asyncio.create_task(answer.complete())
    left = asyncio.create_task(disconnected(http))
    try:
        await asyncio.wait({complete, left}, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(complete.result()) if complete.done() else Response(status_code=499)
    finally:
        complete.cancel()
        left.cancel()
        answer.cancel()


async def disconnected(http: HttpRequest) -> None:
    """Return when the client has gone."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def event(value: dict) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
