"""The routes of the page: the model, its run, and how it decides about a text. See docs/inside.md."""

import base64
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import jax
import numpy as np
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from jaxtyping import Float, Int
from pydantic import Field

from config.command_line import UserError, spell
from model import GPT
from runs.checkpoint import arrays_by_name
from tools.inside.views import attention, lens, nats
from tools.serving.completions import IdsAnswer, respond
from tools.serving.errors import ApiError, too_many
from tools.serving.places import places, windows
from tools.serving.requests import Body, CompletionBody, Drawing, Ids, check_ids, encode, read_completion
from tools.serving.served import Served
from tools.serving.text import prompt_tokens, spelling

WAITING = 4  # questions that wait while one is computed; another is refused
TOKENS = 4096  # of a text
WINDOWS = 64  # of block_size tokens, at most, that a text is read in
WEIGHTS = 2**22  # of all heads together, for /inside/attention: L H T T
LOGITS = 2**24  # of a layer, for /inside/lens: T V
LENS = 128  # tokens for /inside/lens
TURN, ROOM = threading.Lock(), threading.BoundedSemaphore(1 + WAITING)
PLACE = ("likeliest", "likeliest_before", "likeliest_after", "before", "after")

inside = APIRouter(prefix="/inside")


async def served_of(request: Request) -> Served:
    return request.app.state.served


Here = Annotated[Served, Depends(served_of)]


@contextmanager
def turn(served: Served) -> Generator[None]:
    """Let one thread at a time compute for the page. Raises ApiError, with 429, when too many wait."""
    if not ROOM.acquire(blocking=False):
        raise too_many("the page's questions before this one are still being computed: ask again in a moment")
    try:
        with TURN, served.worker.on_devices():
            yield
    finally:
        ROOM.release()


# The model and its run


@inside.get("/model")
async def model(served: Here) -> dict:
    """The model's shape and parameters, and how many tokens the other routes take."""
    config = served.model.config
    return {
        "name": served.name,
        "version": served.version,
        "config": asdict(config) | {"kv_heads": config.kv_heads, "hidden": config.hidden},
        "vocab_size": served.vocab_size,
        "tokenizer": type(served.tokenizer).__name__,
        "eot": served.eot,
        "parameters": [described(name, x) for name, x in arrays_by_name(served.model).items()],
        "run": served.run is not None,
        "limits": limits(served),
    }


def described(name: str, x: jax.Array) -> dict[str, Any]:
    """Describe a parameter. `split` has for each axis the mesh axes that divide it."""
    spec = getattr(x.sharding, "spec", ())
    return {
        "name": name,
        "shape": x.shape,
        "dtype": str(x.dtype),
        "devices": sorted(str(device) for device in x.sharding.device_set),
        "split": [None if axis is None else str(axis) for axis in spec],
    }


@inside.get("/checkpoints")
def checkpoints(served: Here) -> dict:
    """The run's checkpoints; none for a model from elsewhere."""
    with turn(served):
        return {"served": served.version, "checkpoints": served.run.checkpoints() if served.run else []}


@inside.get("/run")
def run(served: Here, offset: Annotated[int, Query(ge=0, lt=2**50)] = 0, file: str = "") -> dict:
    """The run's records after `offset` of its `file`, as `Run.records` does."""
    if served.run is None:
        raise ApiError("the model that is served is not a run's", status=404, code="no_run")
    return served.run.records(offset, file)


# Text


class Text(Body):
    text: str | None = None
    tokens: Ids | None = None


class PlacesBody(Text, Drawing):
    prompt: int = Field(0, ge=0)
    checkpoint: str | None = None


class LensBody(Text):
    k: int = Field(5, ge=1, le=20)


class LossBody(Text):
    checkpoints: Annotated[list[str], Field(min_length=1, max_length=2)] | None = None


def limits(served: Served) -> dict[str, int]:
    """Return how many tokens of a text the routes take, and how many new ones may be asked for."""
    config, block_size = served.model.config, served.block_size
    attention = int((WEIGHTS / (config.n_layer * config.n_head)) ** 0.5)
    return {
        "tokens": min(TOKENS, WINDOWS * max(1, block_size // 2), served.max_prompt),
        "attention": max(1, min(block_size, attention)),
        "lens": max(1, min(block_size, LENS, LOGITS // config.vocab_size)),
        "max_tokens": served.max_tokens,
    }


def read_text(fields: Text, served: Served, most: int) -> Int[np.ndarray, " T"]:
    """Return the tokens. Raises ApiError for neither or both fields, or too many tokens."""
    match fields.text, fields.tokens:
        case str() as text, None:
            param, ids = "text", encode(served, "text", text)
        case None, list() as given:
            param, ids = "tokens", check_ids(served, "tokens", given)
        case _:
            raise ApiError("give either text, a string, or tokens, a list of token ids", "text")
    if len(ids) > most:
        message = f"{param} has {len(ids)} tokens, and this takes {most} at most: give a part of it"
        raise ApiError(message, param, code="context_length_exceeded")
    return ids


def spelled(served: Served, ids: Int[np.ndarray, " T"]) -> list[dict[str, Any]]:
    """Return the tokens with their text, which is "" in the middle of a character."""
    text, tokens = prompt_tokens(served.tokenizer, ids.tolist())
    return [{"id": token.id, "text": text[token.start : token.end]} for token in tokens]


def names(served: Served, ids: np.ndarray) -> dict[str, str]:
    """Return the texts of tokens by id. A model's vocabulary may be larger than its tokenizer's."""
    known = served.vocab_size
    return {
        str(i): spelling(served.tokenizer, i) if i < known else "(unused)" for i in np.unique(ids).tolist()
    }


def rounded(x: np.ndarray) -> list:
    """Return numbers with five digits."""
    return [rounded(row) if row.ndim else float(f"{row:.5g}") for row in x]


@inside.post("/tokens")
async def tokens(served: Here, fields: Text) -> dict:
    """The tokens of a text."""
    return {"tokens": spelled(served, read_text(fields, served, served.max_prompt))}


@inside.post("/write")
async def write(request: Request, served: Here, fields: CompletionBody) -> Response:
    """As /v1/completions, with the ids of the new tokens."""
    return await respond(request, IdsAnswer(served, read_completion(fields, served)))


# Views. Each is computed on a thread of FastAPI's.


@inside.post("/places")
def places_of(served: Here, fields: PlacesBody) -> Response:
    """Return the likeliest tokens at each place of a text, and after it."""
    ids = read_text(fields, served, limits(served)["tokens"])
    if fields.prompt > len(ids):
        raise ApiError(f"prompt is {fields.prompt}, and the text has {len(ids)} tokens", "prompt")
    found: list[dict | None] = [None] * (len(ids) + 1)
    seen = [ids]
    with turn(served):
        model = weights_of(served, fields.checkpoint)
        for start, first, last in windows(len(ids), fields.prompt, served.block_size):
            following = ids[start + 1 : last + 1]
            window = places(model, ids[start:last], following, fields, served.vocab_size)
            # The model predicts place i after token i - 1.
            likeliest, *numbers = (np.asarray(x)[first - 1 - start :] for x in window)
            for i, place in enumerate(zip(likeliest.tolist(), *map(rounded, numbers), strict=True), first):
                # The last two belong to the token there, and after the text is none.
                found[i] = dict(zip(PLACE if i < len(ids) else PLACE[:3], place, strict=False))
            seen.append(np.ravel(window.tokens))
    return answer(served, ids, places=found, names=names(served, np.concatenate(seen)))


@inside.post("/attention")
def attention_of(served: Here, fields: Text) -> Response:
    """Return the attention weights of every head: the rows up to the diagonal, in 65535ths."""
    ids = read_text(fields, served, limits(served)["attention"])
    with turn(served):
        weights = attention(served.model, ids)  # (L, H, T, T)
    L, H, T, _ = weights.shape
    rows, columns = np.tril_indices(T)
    parts = np.rint(65535 * weights[:, :, rows, columns]).astype("<u2")
    return answer(served, ids, shape=[L, H, T], weights=base64.b64encode(parts.tobytes()).decode())


@inside.post("/lens")
def lens_of(served: Here, fields: LensBody) -> Response:
    """Return what the head predicts after each layer, and the norms of the residual stream and its parts."""
    ids = read_text(fields, served, limits(served)["lens"])
    with turn(served):
        seen = lens(served.model, ids, min(fields.k, served.vocab_size))
    numbers = {name: rounded(x) for name, x in seen._asdict().items() if name != "tokens"}
    return answer(served, ids, likeliest=seen.tokens.tolist(), names=names(served, seen.tokens), **numbers)


@inside.post("/loss")
def loss_of(served: Here, fields: LossBody) -> Response:
    """How surprising each token of a text was, to one or two checkpoints of the run."""
    ids = read_text(fields, served, limits(served)["tokens"])
    if min(len(ids), served.block_size) < 2:
        raise ApiError("a loss takes two tokens at least, of the text and of the model's block_size", "text")
    losses = []
    for name in fields.checkpoints or [served.version]:
        with turn(served):
            found = surprise(weights_of(served, name), ids, served.block_size)
        losses.append({"checkpoint": name, "nats": rounded(found)})
    return answer(served, ids, losses=losses)


def answer(served: Served, ids: Int[np.ndarray, " T"], **found: Any) -> Response:
    return JSONResponse({"tokens": spelled(served, ids), **found})


def surprise(model: GPT, ids: Int[np.ndarray, " T"], block_size: int) -> Float[np.ndarray, " T-1"]:
    """Return -log of the probability of each token but the first, window by window."""
    found = np.empty(len(ids) - 1, np.float32)
    for start, first, last in windows(len(ids) - 1, 0, block_size - 1):
        found[first - 1 : last] = nats(model, ids[start : last + 1])[first - 1 - start :]
    return found


def weights_of(served: Served, name: str | None) -> GPT:
    """Return the served model, or that of a checkpoint. Raises ApiError."""
    if name is None or name == served.version:
        return served.model
    try:
        if served.run is None:
            raise KeyError(name)
        model = served.run.load(name)
    except (KeyError, UserError) as error:  # a UserError names folders
        print(f"checkpoint {spell(name)}: {error}", file=sys.stderr)
        message = f"there is no checkpoint {spell(name)}, or it is damaged: the server's log says more"
        raise ApiError(message, "checkpoint", 404, "checkpoint_not_found") from None
    if model.config.vocab_size < served.vocab_size:
        raise ApiError(f"{name} has another vocabulary than the model that is served", "checkpoint")
    return model
