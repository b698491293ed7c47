"""Continue prompts with the engine, and answer as OpenAI does: with one object, or a stream of chunks."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response, StreamingResponse

from generation.engine import Request
from tools.serving.requests import ChatBody, CompletionBody, read_request
from tools.serving.served import Served
from tools.serving.server import ApiError
from tools.serving.text import Continuation, Token, spelling


class Completion:
    """The answer to a request for completions; ChatCompletion is that to one for chats."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def __init__(
        self, served: Served, fields: CompletionBody | ChatBody, requests: list[Request], left_out: int
    ):
        """Submit what `read_request` returns. Raises ApiError."""
        self.served, self.fields, self.left_out = served, fields, left_out
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.jobs = served.worker.submit(requests)
        self.texts = [
            Continuation(served.tokenizer, request.prompt, fields.stop, request.stop, fields.echo)
            for request in requests
        ]

    async def complete(self) -> dict[str, Any]:
        """Return the whole answer as one object."""
        async for _ in self.take():
            pass
        choices = [self.choice(i, self.message(text.text), text.tokens) for i, text in enumerate(self.texts)]
        return self.object(self.kind, choices, self.usage())

    async def events(self) -> AsyncIterator[str]:
        """Yield the chunks as server-sent events. An error ends them as one more."""
        try:
            async for i in self.take():
                first = self.texts[i].sent == 0
                text, tokens = self.texts[i].to_send()
                if text or tokens or self.texts[i].finish_reason:
                    choice = self.choice(i, self.delta(text, first), tokens)
                    if not tokens:
                        choice["logprobs"] = None
                    yield event(self.object(self.chunk_kind, [choice], None))
            if self.fields.stream_options.include_usage:
                yield event(self.object(self.chunk_kind, [], self.usage()))
            yield "data: [DONE]\n\n"
        except ApiError as error:
            yield event(error.body())
        finally:  # also when the client has gone
            self.cancel()

    async def take(self) -> AsyncIterator[int]:
        """Take the pieces as they are made; yield whose they are. Raises ApiError when computing fails."""
        while any(text.finish_reason is None for text in self.texts):
            job, piece = await self.jobs[0].made.get()
            if isinstance(piece, ApiError):
                raise piece
            text = self.texts[job.index]
            if text.finish_reason is None:  # or it ended with a stop string before this piece
                if text.take(piece):
                    self.served.worker.cancel(job)
                yield job.index

    def cancel(self) -> None:
        for job in self.jobs:
            self.served.worker.cancel(job)

    def object(self, kind: str, choices: list[dict], usage: dict | None) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": self.jobs[0].version,
            "choices": choices,
            "usage": usage,
        }

    def usage(self) -> dict[str, int]:
        """Count the tokens: a prompt once, whatever n."""
        prompt = sum(len(x.prompt) for x in self.texts[:: self.fields.n])
        new = sum(text.count for text in self.texts)
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

    def choice(self, i: int, content: dict[str, Any], tokens: list[Token]) -> dict[str, Any]:
        n = self.fields.likeliest
        logprobs = None if n is None else self.logprobs(tokens, n)
        return {"index": i, **content, "logprobs": logprobs, "finish_reason": self.texts[i].finish_reason}

    def message(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def delta(self, text: str, first: bool) -> dict[str, Any]:
        return {"text": text}

    def logprobs(self, tokens: list[Token], n: int) -> dict[str, Any]:
        """Return tokens and their n likeliest alternatives. The prompt's first token has no probability."""
        return {
            "tokens": [self.name(token.id) for token in tokens],
            "token_ids": [token.id for token in tokens],  # the page goes on from any
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self.top(token, n) for token in tokens] if n else None,
            "text_offset": [token.start for token in tokens],
        }

    def top(self, token: Token, n: int) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        best: dict[str, float] = {}
        for i, p in [*token.likeliest[:n], (token.id, token.logprob)]:
            best.setdefault(self.name(i), p)  # the likeliest first, and several may have one text
        return best

    def name(self, token: int) -> str:
        return spelling(self.served.tokenizer, token)


class ChatCompletion(Completion):
    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def object(self, kind, choices, usage):
        return super().object(kind, choices, usage) | {"messages_left_out": self.left_out}

    def message(self, text):
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def delta(self, text, first):
        role = {"role": "assistant"} if first else {}
        return {"delta": role | ({"content": text} if text else {})}

    def logprobs(self, tokens, n):
        content = [
            self.described(token.id, token.logprob)
            | {"top_logprobs": [self.described(*other) for other in token.likeliest[:n]]}
            for token in tokens
        ]
        return {"content": content, "refusal": None, "token_ids": [token.id for token in tokens]}

    def described(self, token: int, logprob: float | None) -> dict[str, Any]:
        raw = list(self.served.tokenizer.bytes_of(token))
        return {"token": self.name(token), "bytes": raw, "logprob": logprob}


async def respond(http: HttpRequest, served: Served, fields: CompletionBody | ChatBody) -> Response:
    """Answer in a stream, or at the end; stop when the client goes away. Raises ApiError."""
    kind = ChatCompletion if isinstance(fields, ChatBody) else Completion
    # In a thread, because the texts that it encodes may be long.
    answer = kind(served, fields, *await asyncio.to_thread(read_request, fields, served))
    if fields.stream:
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


async def disconnected(request: HttpRequest) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def event(value: dict) -> str:
    # Escaped, because some clients also break lines at U+0085, U+2028 and U+2029.
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"
