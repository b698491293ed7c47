"""Routes of the page beside OpenAI's API: they answer with the model, its run, and the ids of tokens.

    GET  /inside/model  /inside/checkpoints  /inside/run
    POST /inside/tokens  /inside/write        and, in insight.py:  /places  /attention  /lens  /loss

docs/inside.md describes their fields and answers.
"""

import asyncio
from dataclasses import asdict
from typing import Any

import jax
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from config.command_line import spell
from runs.checkpoint import arrays_by_name
from tools.serving.answers import Answer
from tools.serving.completions import respond
from tools.serving.errors import ApiError
from tools.serving.fields import read_fields
from tools.serving.insight import (
    attention_of,
    lens_of,
    loss_of,
    most_attention,
    most_lens,
    most_tokens,
    places_of,
    read_text,
    spelled,
)
from tools.serving.requests import read_completion
from tools.serving.text import Part

# The model and its run


async def model(request: Request) -> JSONResponse:
    """Tell the model's shape, its parameters and where they are, and what the other routes take."""
    served = request.app.state.served
    config = served.model.config
    return JSONResponse(
        {
            "name": served.name,
            "version": served.version,
            "config": asdict(config) | {"kv_heads": config.kv_heads, "hidden": config.hidden},
            "vocab_size": served.vocab_size,
            "tokenizer": type(served.tokenizer).__name__,
            "eot": served.eot,
            "parameters": [described(name, x) for name, x in arrays_by_name(served.model).items()],
            "run": served.run is not None,
            "limits": {
                "tokens": most_tokens(served),
                "attention": most_attention(served),
                "lens": most_lens(served),
                "max_tokens": served.limits.max_tokens,
            },
        }
    )


def described(name: str, x: jax.Array) -> dict[str, Any]:
    """Describe a parameter. `split` names, for each of its axes, the mesh axes that divide it."""
    spec = getattr(x.sharding, "spec", ())
    return {
        "name": name,
        "shape": x.shape,
        "dtype": str(x.dtype),
        "devices": sorted(str(device) for device in x.sharding.device_set),
        "split": [None if axis is None else str(axis) for axis in spec],
    }


async def checkpoints(request: Request) -> Response:
    """List the run's checkpoints; of a model that is not a run's, none."""
    served = request.app.state.served

    def work() -> dict:
        return {"served": served.version, "checkpoints": served.run.checkpoints() if served.run else []}

    return await request.app.state.desk.answer(request, work)


async def run(request: Request) -> JSONResponse:
    """Return the run's records behind `offset` of its `file`, as `Run.records` does."""
    served, query = request.app.state.served, request.query_params
    offset = query.get("offset", "0")
    if not (offset.isascii() and offset.isdecimal() and len(offset) < 16):
        raise ApiError(f"offset is {spell(offset)}, expected a number of bytes", "offset")
    if served.run is None:
        raise ApiError("the model that is served is not a run's", status=404, code="no_run")
    return JSONResponse(await asyncio.to_thread(served.run.records, int(offset), query.get("file", "")))


# Text


async def tokens(request: Request) -> JSONResponse:
    """Return the tokens of a text."""
    served = request.app.state.served
    fields = await read_fields(request, served.limits.max_body)
    ids = read_text(fields, served, served.limits.max_prompt)
    fields.finish()
    return JSONResponse({"tokens": spelled(served, ids)})


class IdsAnswer(Answer):
    """A completion whose choices are tokens with their ids, so that the page can go on from any of them."""

    def choice(self, index: int, part: Part, finish_reason: str | None) -> dict[str, Any]:
        begin = part.tokens[0].start if part.tokens else 0
        pieces = [
            {"id": x.id, "text": part.text[x.start - begin : x.end - begin], "logprob": x.logprob}
            for x in part.tokens
        ]
        return {"index": index, "tokens": pieces, "finish_reason": finish_reason}


async def write(request: Request) -> Response:
    """Answer as /v1/completions does, whose fields it takes, with the ids of the new tokens."""
    served = request.app.state.served
    asked = read_completion(await read_fields(request, served.limits.max_body), served)
    return await respond(request, IdsAnswer(served, asked))


INSIDE = [  # for those who have the key
    ("GET", "/inside/model", model),
    ("GET", "/inside/checkpoints", checkpoints),
    ("GET", "/inside/run", run),
    ("POST", "/inside/tokens", tokens),
    ("POST", "/inside/write", write),
    ("POST", "/inside/places", places_of),
    ("POST", "/inside/attention", attention_of),
    ("POST", "/inside/lens", lens_of),
    ("POST", "/inside/loss", loss_of),
]
