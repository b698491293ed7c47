"""The routes of the page: the model, its run, how it decides about a text. See docs/reference/inside.md."""

import base64
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from itertools import takewhile
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from jax import lax
from jaxtyping import Array, Float, Int
from pydantic import Field

from common.command_line import spell
from common.errors import UserError
from generation.decode import generate, limit_vocabulary
from generation.sampling import Settings, drawn_from
from model import GPT
from runs.checkpoint import arrays_by_name
from tools.inside.views import attention, heads, lens, limits, padded, shape
from tools.serving.requests import Body, Drawing, Ids, Message, read_ids, read_messages
from tools.serving.run_folder import ROLLOUTS, RunFolder
from tools.serving.served import Served
from tools.serving.server import ApiError
from tools.serving.text import marks, read_prompt, spelling

EXAMPLE = 64  # tokens of the validation text
LIKELIEST = 10  # tokens of a place

inside = APIRouter(prefix="/inside")


async def served_of(request: Request) -> Served:
    return request.app.state.served


Here = Annotated[Served, Depends(served_of)]


async def turn(request: Request, served: Here) -> AsyncGenerator[None]:
    """Have one view computed at a time, and none whose client has gone meanwhile. Raises ApiError."""
    async with served.turn:
        if await request.is_disconnected():
            raise ApiError("the client has gone", status=499)
        yield


IN_TURN = [Depends(turn)]


# The model and its run


@inside.get("/model")
def model(served: Here) -> dict:  # in a thread, as it renders a chat template
    """The model's shape, parameters and limits."""
    config = served.model.config
    return {
        "name": served.name,
        "version": served.worker.version,
        "config": shape(config, served.model.head.dtype.name),
        "vocab_size": served.vocab_size,
        "tokenizer": type(served.tokenizer).__name__,
        "marks": marks(served.tokenizer, served.chat),
        "parameters": [
            {
                "name": name,
                "shape": x.shape,
                "dtype": str(x.dtype),
                "devices": sorted(map(str, x.sharding.device_set)),
                # for each axis the mesh axes that divide it
                "split": [axis and str(axis) for axis in getattr(x.sharding, "spec", ())],
            }
            for name, x in arrays_by_name(served.model).items()
            if name != "lm_head" or not config.tie_embeddings  # else a rounded copy of wte
        ],
        "run": served.run is not None,
        "chat": served.chat if isinstance(served.chat, str) else None,  # why there is none
        # A run's tokenizer may have a template that the run has not learned.
        "chat_first": not isinstance(served.chat, str)
        and (served.run is None or served.chat.learned_start is not None),
        "system": isinstance(served.chat, str) or served.chat.system_message,
        "lacks": [] if served.run and (served.run.out_dir / ROLLOUTS).is_file() else ["rollouts"],  # views
        "limits": limits(config, served.max_tokens),
    }


@inside.get("/checkpoints", dependencies=IN_TURN)
def checkpoints(served: Here) -> dict:
    return {"checkpoints": served.run.checkpoints() if served.run else []}


@inside.get("/run")
def run(served: Here, offset: Annotated[int, Query(ge=0, lt=2**50)] = 0) -> dict:
    """The run's new records: see `RunFolder.records`."""
    return the_run(served).records(offset)


def the_run(served: Served) -> RunFolder:
    if served.run is None:
        raise ApiError("the model that is served is not a run's", status=404, code="no_run")
    return served.run


@inside.get("/rollouts")
def rollouts(served: Here) -> Response:
    """The answers that the run which is served learned from, and the texts of their tokens."""
    try:
        groups = served.run.rollouts() if served.run else []
    except UserError as error:
        raise ApiError(str(error), status=500, code="damaged") from None
    ids = [i for group in groups for answer in group["answers"] for i in answer["tokens"]]
    return JSONResponse({"rollouts": groups, "names": names(served, ids)})


@inside.get("/example")
def example(served: Here) -> Response:
    """The beginning of the validation text of the run that is served."""
    run = the_run(served)
    try:
        return with_tokens(served, run.example(min(EXAMPLE, served.model.config.block_size)))
    except UserError as error:
        print(f"no example: {error}", file=sys.stderr)  # its text names folders
        raise ApiError("the data set of the run is not here", status=404, code="no_data") from None


@inside.get("/questions")
def questions(served: Here) -> dict:
    """Return what a reader may ask a chat model first."""
    found = []
    if served.run and not isinstance(served.chat, str):
        with suppress(UserError):  # the data set may not be here
            found = served.run.questions(served.chat)
    return {"questions": found}


# Text


class Text(Body):
    text: str | Ids
    checkpoint: str | None = None  # None: the one that is served


class Conversation(Body):
    messages: list[Message] = Field(min_length=1)


class PlacesBody(Text, Drawing):
    prompt: int = Field(0, ge=0)


class ContinuationBody(Text, Drawing):
    seed: int = Field(ge=0, lt=2**32)
    max_tokens: int = Field(ge=1)


class LensBody(Text):
    k: int = Field(5, ge=1, le=20)


class CellBody(Text):
    layer: int = Field(ge=0)
    head: int = Field(ge=0)
    reader: int = Field(ge=0)
    read: int = Field(ge=0)


def read_text(fields: Text, served: Served, most: int) -> Int[np.ndarray, " T"]:
    """Return the tokens, which may be `most`. Raises ApiError."""
    ids = read_ids(served, "text", fields.text)
    if len(ids) > most:
        message = f"text has {len(ids)} tokens, and this takes {most} at most: give a part of it"
        raise ApiError(message, "text", code="context_length_exceeded")
    return ids


def with_tokens(served: Served, ids: Int[np.ndarray, " T"], **found: Any) -> Response:
    """Answer with the tokens, each with its text, which is "" in the middle of a character."""
    text, tokens = read_prompt(served.tokenizer, ids)
    told = [{"id": token.id, "text": text[token.start : token.end]} for token in tokens]
    return JSONResponse({"tokens": told, **found})


def names(served: Served, *ids: Any) -> dict[str, str]:
    """Return tokens' texts by id."""
    known = np.unique(np.concatenate([np.ravel(x) for x in ids])).tolist()
    size = served.vocab_size
    return {str(i): spelling(served.tokenizer, i) if i < size else "(unused)" for i in known}


def rounded(x: np.ndarray) -> list:
    """Round to five digits."""
    return [rounded(row) if row.ndim else float(f"{row:.5g}") for row in x]


@inside.post("/tokens")
def tokens(served: Here, fields: Text) -> Response:
    return with_tokens(served, read_ids(served, "text", fields.text))


@inside.post("/chat")
def chat(served: Here, fields: Conversation) -> Response:
    """The prompt that the API makes of messages."""
    ids, left_out = read_messages(served, fields.messages)
    return with_tokens(served, ids, messages_left_out=left_out)


# Views


@inside.post("/places", dependencies=IN_TURN)
def places_of(served: Here, fields: PlacesBody) -> Response:
    """The likeliest tokens at each place of a text, and after it."""
    ids = read_text(fields, served, limits(served.model.config)["tokens"])
    if fields.prompt > len(ids):
        raise ApiError(f"prompt is {fields.prompt}, and the text has {len(ids)} tokens", "prompt")
    with jax.set_mesh(served.worker.mesh):
        model = weights_of(served, fields.checkpoint)
        seen = places(limit_vocabulary(model, served.vocab_size), ids, fields.prompt, fields)
    columns = seen.likeliest.tolist(), *(rounded(np.asarray(x)) for x in seen[1:])
    found = [dict(zip(seen._fields, place, strict=True)) for place in zip(*columns, strict=True)]
    del found[-1]["before"], found[-1]["after"]  # no token stands after the text
    unseen = [None] * (len(ids) + 1 - len(found))
    return with_tokens(served, ids, places=unseen + found, names=names(served, ids, seen.likeliest))


@inside.post("/continuation", dependencies=IN_TURN)
def continuation(served: Here, fields: ContinuationBody) -> Response:
    """How a checkpoint goes on with a text, up to a token that ends it. The API asks the served one alone."""
    ids, drawn = read_text(fields, served, served.model.config.block_size), []
    most = min(fields.max_tokens, served.max_tokens)
    with jax.set_mesh(served.worker.mesh):
        model = limit_vocabulary(weights_of(served, fields.checkpoint), served.vocab_size)
        key = jax.random.key(fields.seed)
        for some in generate(model, ids[None], key=key, max_new_tokens=most, settings=fields.settings):
            drawn += some[0].tolist()
            if not set(served.ends).isdisjoint(drawn):
                break
        drawn = [*takewhile(lambda token: token not in served.ends, drawn)]
        seen = places(model, np.append(ids, np.array(drawn, np.int32)), len(ids), fields)
    probabilities = rounded(np.asarray(seen.before[len(ids) - 1 : -1]))
    return with_tokens(served, np.array(drawn, np.int32), probabilities=probabilities)


@inside.post("/attention", dependencies=IN_TURN)
def attention_of(served: Here, fields: Text) -> Response:
    """The attention weights of every head: the rows up to the diagonal, in 65535ths."""
    ids = read_text(fields, served, limits(served.model.config)["attention"])
    with jax.set_mesh(served.worker.mesh):
        weights = attention(weights_of(served, fields.checkpoint), ids)  # (L, H, T, T)
    L, H, T, _ = weights.shape
    rows, columns = np.tril_indices(T)
    parts = np.rint(65535 * weights[:, :, rows, columns]).astype("<u2")
    return with_tokens(served, ids, shape=[L, H, T], weights=base64.b64encode(parts.tobytes()).decode())


@inside.post("/lens", dependencies=IN_TURN)
def lens_of(served: Here, fields: LensBody) -> Response:
    """What the head predicts after each layer, and the norms of the residual stream and its parts."""
    ids = read_text(fields, served, limits(served.model.config)["lens"])
    with jax.set_mesh(served.worker.mesh):
        seen = lens(weights_of(served, fields.checkpoint), ids, min(fields.k, served.vocab_size))
    numbers = {name: rounded(x) for name, x in seen._asdict().items() if name != "tokens"}
    return with_tokens(
        served, ids, likeliest=seen.tokens.tolist(), names=names(served, seen.tokens), **numbers
    )


@inside.post("/cell", dependencies=IN_TURN)
def cell_of(served: Here, fields: CellBody) -> Response:
    """How a head comes to the weight with which a token reads another."""
    ids, config = read_text(fields, served, limits(served.model.config)["attention"]), served.model.config
    most = {"layer": config.n_layer, "head": config.n_head, "reader": len(ids), "read": fields.reader + 1}
    for name, n in most.items():
        if getattr(fields, name) >= n:
            raise ApiError(f"{name} is {getattr(fields, name)}, expected less than {n}", name)
    with jax.set_mesh(served.worker.mesh):
        seen = heads(weights_of(served, fields.checkpoint), ids)
    upto, shared = slice(fields.reader + 1), fields.head * config.kv_heads // config.n_head
    query = seen.queries[fields.layer, fields.head, fields.reader]
    keys, values = seen.keys[fields.layer, shared, upto], seen.values[fields.layer, shared, upto]
    weights = seen.weights[fields.layer, fields.head, fields.reader, upto]
    vectors = {"query": query, "key": keys[fields.read], "value": values[fields.read]}
    vectors |= {"scores": keys @ query / len(query) ** 0.5, "weights": weights, "output": weights @ values}
    return JSONResponse({name: rounded(x) for name, x in vectors.items()})


def weights_of(served: Served, name: str | None) -> GPT:
    """Return the served model, or that of a checkpoint. Raises ApiError."""
    if name is None or name == served.worker.version:
        return served.model
    try:
        if served.run:
            return served.run.load(name)
    except (KeyError, UserError) as error:
        print(f"checkpoint {spell(name)}: {error}", file=sys.stderr)  # its text names folders
    message = f"there is no checkpoint {spell(name)}, or it is damaged: the server's log says more"
    raise ApiError(message, "checkpoint", 404, "checkpoint_not_found")


# What could have stood at each place of a text


class Places(NamedTuple):
    """The likeliest tokens at each of P places, and the probabilities of the token that stands there."""

    likeliest: Int[Array | np.ndarray, "P n"]  # n is LIKELIEST, or less in a smaller vocabulary
    likeliest_before: Float[Array | np.ndarray, "P n"]
    likeliest_after: Float[Array | np.ndarray, "P n"]
    before: Float[Array | np.ndarray, " P"]
    after: Float[Array | np.ndarray, " P"]


def places(model: GPT, ids: Int[np.ndarray, " T"], prompt: int, drawing: Drawing) -> Places:
    """Compute the last places, up to the one after the text, where token 0 stands for the one to come."""
    settings = np.array(drawing.settings, np.float32)
    following, found = np.append(ids[1:], np.int32(0)), []
    block_size = model.config.block_size
    start = max(0, prompt - block_size)
    first = start + 1
    while first <= len(ids):  # the engine's windows: tokens since `start` fill places `first` to `last`
        last = min(len(ids), start + block_size)
        rows = padded(model, ids[start:last]), padded(model, following[start:last])[0]
        window = jax.device_get(_places(model, *rows, settings))
        found.append([x[first - 1 - start : last - start] for x in window])
        first, start = last + 1, last + 1 - max(1, block_size // 2)
    return Places(*map(np.concatenate, zip(*found, strict=True)))


@jax.jit
def _places(
    model: GPT, tokens: Int[Array, "1 T"], following: Int[Array, " T"], settings: Float[Array, " 7"]
) -> Places:
    def place(x: Float[Array, " D"], chosen: Int[Array, ""]) -> Places:
        logits = model.logits(x[None, None])[0]  # (1, V)
        kept = drawn_from(logits, Settings(*settings))
        greedy = jax.nn.one_hot(jnp.argmax(logits), logits.shape[1])
        after = jnp.where(settings[0] == 0, greedy, jax.nn.softmax(kept[0]))
        before = jax.nn.softmax(logits[0])
        likeliest, ids = lax.top_k(before, min(LIKELIEST, len(before)))
        return Places(ids, likeliest, after[ids], before[chosen], after[chosen])

    x = model.features(tokens)[0]  # (T, D)
    return lax.map(lambda pair: place(*pair), (x, following), batch_size=32)  # holds the logits of 32
