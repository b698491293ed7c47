"""Continue prompts with the engine, and answer with one object or a stream of them (server-sent events)."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import jax
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response, StreamingResponse

from generation.decode import Likelihood
from generation.engine import Piece, Request, keys_of_rows
from tools.serving.answers import Answer
from tools.serving.errors import ApiError
from tools.serving.requests import Asked
from tools.serving.served import Served
from tools.serving.text import Continuation, Part, prompt_tokens
from tools.serving.worker import Busy, Job, Stopped


async def respond(http: HttpRequest, answer: Answer) -> Response:
    """Compute, and answer at once or at the end; stop when the client goes away. Raises ApiError."""
    served, asked = answer.served, answer.asked
    try:
        jobs = served.worker.submit(engine_requests(asked))
    except Busy as busy:
        raise ApiError(str(busy), status=429, code="overloaded", headers={"Retry-After": "1"}) from None
    except Stopped as stopped:
        raise ApiError(str(stopped), status=503, code="unavailable") from None
    choices = [Choice(served, asked, job) for job in jobs]
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
    keys = keys_of_rows(jax.random.key(asked.seed), len(prompts))
    drawing = fields.temperature, fields.top_k, fields.top_p
    return [
        Request(prompt, key, asked.max_tokens, *drawing, asked.ends, logprobs, logprobs and asked.echo)
        for prompt, key in zip(prompts, keys, strict=True)
    ]


async def disconnected(http: HttpRequest) -> None:
    """Return when the client has gone."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


@dataclass
class Choice:
    """One continuation, from the engine's pieces to parts of the text."""

    served: Served
    asked: Asked
    job: Job
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
            rest = self.text.finish()
            part = Part(part.text + rest.text, part.tokens + rest.tokens)
            self.finish_reason = "stop" if ended or self.text.stopped else "length"
            self.served.worker.cancel(self.job)
        return part


def cancel_all(choices: list[Choice]) -> None:
    for choice in choices:
        choice.served.worker.cancel(choice.job)


async def parts(choices: list[Choice]) -> AsyncIterator[tuple[Choice, Part]]:
    """Yield the parts of all texts as they are made. Raises Stopped."""
    while any(choice.finish_reason is None for choice in choices):
        job, piece = await choices[0].job.made.get()
        if isinstance(piece, Stopped):
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
    try:
        async for choice, part in parts(choices):
            before = texts[choice.job.index]
            texts[choice.job.index] = Part(before.text + part.text, before.tokens + part.tokens)
    except Stopped as stopped:
        raise ApiError(str(stopped), status=500, code="failed") from None
    found = [answer.choice(i, part, choices[i].finish_reason) for i, part in enumerate(texts)]
    return answer.object(found, usage(answer.asked, choices))


async def events(choices: list[Choice], answer: Answer) -> AsyncIterator[str]:
    """Yield the chunks as server-sent events. An error ends them as one more."""
    try:
        for choice in choices:
            for chunk in answer.opening(choice.job.index):
                yield event(answer.object([chunk], None, chunk=True))
        async for choice, part in parts(choices):
            if part.text or part.tokens or choice.finish_reason:
                chunk = answer.choice(choice.job.index, part, choice.finish_reason, chunk=True)
                yield event(answer.object([chunk], None, chunk=True))
        options = answer.asked.fields.stream_options
        if options and options.include_usage:
            yield event(answer.object([], usage(answer.asked, choices), chunk=True))
        yield "data: [DONE]\n\n"
    except Stopped as stopped:
        yield event(ApiError(str(stopped), status=500, code="failed").body())
    finally:  # also when the client has gone
        cancel_all(choices)


def event(value: dict) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
