"""POST /v1/completions and /v1/chat/completions: from the request to the engine, and back as text.

The answer is one object, or a stream of them as server-sent events. Either way a client that goes away frees
its slots at the next token.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import jax
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse

from generation.decode import Likelihood
from generation.engine import Piece, Request, keys_of_rows
from tools.serving.answers import Answer, ChatAnswer
from tools.serving.errors import ApiError
from tools.serving.fields import read_fields
from tools.serving.requests import Asked, read_chat, read_completion
from tools.serving.served import Served
from tools.serving.text import Continuation, Part, prompt_tokens
from tools.serving.worker import Busy, Job, Jobs, Stopped


async def completions(request: HttpRequest) -> Response:
    served = request.app.state.served
    asked = read_completion(await read_fields(request, served.limits.max_body), served)
    return await respond(request, Answer(served, asked))


async def chat_completions(request: HttpRequest) -> Response:
    served = request.app.state.served
    fields = await read_fields(request, served.limits.max_body)
    asked = await asyncio.to_thread(read_chat, fields, served)  # it waits for the template
    return await respond(request, ChatAnswer(served, asked))


async def respond(http: HttpRequest, answer: Answer) -> Response:
    """Compute, and answer at once or at the end. Raises ApiError."""
    served, asked = answer.served, answer.asked
    try:
        jobs = served.worker.submit(engine_requests(asked, served))
    except Busy as busy:
        raise ApiError(str(busy), status=429, code="overloaded", headers={"Retry-After": "1"}) from None
    except Stopped as stopped:
        raise ApiError(str(stopped), status=503, code="unavailable") from None
    choices = [Choice(served, asked, job) for job in jobs.jobs]
    if asked.stream:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(events(jobs, choices, answer), 200, headers, "text/event-stream")
    whole = asyncio.create_task(collect(jobs, choices, answer))
    left = asyncio.create_task(disconnected(http))
    try:
        await asyncio.wait({whole, left}, return_when=asyncio.FIRST_COMPLETED)
        if whole.done():
            return JSONResponse(whole.result())
        return Response(status_code=499)  # nobody reads it
    finally:
        whole.cancel()
        left.cancel()
        cancel_all(jobs, served)


def engine_requests(asked: Asked, served: Served) -> list[Request]:
    """Return a request for each choice: n of the first prompt, then n of the second, and so on.

    Choice i is drawn with the key of row i, so that its text is that of sample i in sample.py.
    """
    prompts = [prompt for prompt in asked.prompts for _ in range(asked.n)]
    keys = keys_of_rows(jax.random.key(asked.seed), len(prompts))
    told = asked.logprobs is not None
    return [
        Request(
            prompt,
            key,
            asked.max_tokens,
            asked.temperature,
            asked.top_k,
            asked.top_p,
            stop=asked.ends,
            tell=told,
            tell_prompt=told and asked.echo,
        )
        for prompt, key in zip(prompts, keys, strict=True)
    ]


async def disconnected(http: HttpRequest) -> None:
    """Return when the client has gone."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def cancel_all(jobs: Jobs, served: Served) -> None:
    for job in jobs.jobs:
        served.worker.cancel(job)


@dataclass
class Choice:
    """One continuation, from the engine's pieces to parts of the text."""

    served: Served
    asked: Asked
    job: Job
    finish_reason: str | None = None
    told_of_prompt: list[Likelihood] = field(default_factory=list)

    def __post_init__(self):
        self.prompt = self.job.request.prompt.tolist()
        self.text = Continuation(self.served.tokenizer, self.prompt, self.asked.stops)
        self.echoed = not self.asked.echo

    def take(self, piece: Piece) -> Part:
        """Return the text that a piece of the engine's makes ready to be sent."""
        if piece.prompt is not None:
            self.told_of_prompt.append(piece.prompt)
        if not self.echoed and (len(piece.tokens) or piece.finished):
            self.text.echo(*prompt_tokens(self.served.tokenizer, self.prompt, self.told_of_prompt))
            self.echoed = True
        ended = len(piece.tokens) > 0 and int(piece.tokens[-1]) in self.asked.ends
        part = self.text.add(piece.tokens[:-1] if ended else piece.tokens, piece.likelihood)
        self.text.count += ended
        if piece.finished or self.text.stopped:
            rest = self.text.finish()
            part = Part(part.text + rest.text, part.tokens + rest.tokens)
            self.finish_reason = "stop" if ended or self.text.stopped else "length"
        if self.text.stopped:
            self.served.worker.cancel(self.job)
        return part


def usage(asked: Asked, choices: list[Choice]) -> dict[str, int]:
    """Count the tokens: a prompt once, whatever n."""
    prompt, new = sum(map(len, asked.prompts)), sum(choice.text.count for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


async def collect(jobs: Jobs, choices: list[Choice], answer: Answer) -> dict:
    """Return the whole object."""
    parts: list[list[Part]] = [[] for _ in choices]
    try:
        async for job, piece in jobs:
            parts[job.index].append(choices[job.index].take(piece))
    except Stopped as stopped:
        raise ApiError(str(stopped), status=500, code="failed") from None
    whole = [
        Part("".join(part.text for part in row), [token for part in row for token in part.tokens])
        for row in parts
    ]
    return answer.object(
        [answer.choice(i, part, choices[i].finish_reason) for i, part in enumerate(whole)],
        usage(answer.asked, choices),
    )


async def events(jobs: Jobs, choices: list[Choice], answer: Answer) -> AsyncIterator[str]:
    """Yield the chunks as server-sent events. An error ends them as one more."""
    try:
        for choice in choices:
            for chunk in answer.first_chunks(choice.job.index):
                yield event(answer.object([chunk], None, chunk=True))
        async for job, piece in jobs:
            choice = choices[job.index]
            part = choice.take(piece)
            if part.text or part.tokens or choice.finish_reason:
                chunk = answer.chunk(job.index, part, choice.finish_reason)
                yield event(answer.object([chunk], None, chunk=True))
        if answer.asked.include_usage:
            yield event(answer.object([], usage(answer.asked, choices), chunk=True))
        yield "data: [DONE]\n\n"
    except Stopped as stopped:
        yield event(ApiError(str(stopped), status=500, code="failed").body())
    finally:  # also when the client has gone
        cancel_all(jobs, answer.served)


def event(value: dict) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
