"""The routes that compute with the model, to show how it decides about a text.

    POST /inside/places  /inside/attention  /inside/lens  /inside/loss

A text is given as `text`, or as `tokens`, its ids. All is computed on one thread, one request at a time; a
few wait, and the next is refused.
"""

import asyncio
import base64
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from starlette.requests import Request
from starlette.responses import Response

from config.command_line import UserError, spell
from model import GPT
from tools.inside.views import attention, lens, nats
from tools.serving.errors import ApiError
from tools.serving.fields import Fields, read_fields, refuse
from tools.serving.places import Settings, places, windows
from tools.serving.requests import check_ids, encode
from tools.serving.served import Served
from tools.serving.text import prompt_tokens

WAITING = 4  # requests that wait while one is computed; another is refused
TOKENS = 4096  # of a text
WINDOWS = 64  # of block_size tokens, at most, that a text is read in
WEIGHTS = 2**22  # of all heads together, for /inside/attention: L H T T
LOGITS = 2**24  # of a layer, for /inside/lens: T V
LENS = 128  # tokens for /inside/lens


class Desk:
    """Computes one thing at a time, on a thread of its own, so that completions do not wait for the page."""

    def __init__(self, served: Served):
        self.on_devices = served.worker.on_devices
        self.thread = ThreadPoolExecutor(1, "inside")
        self.turn = asyncio.Lock()
        self.pending = 0

    async def answer(self, request: Request, work: Callable[[], dict]) -> Response:
        """Compute an answer, unless the client has gone. Raises ApiError, with 429 when too many wait."""
        if self.pending > WAITING:
            message = "the page's questions before this one are still being computed: ask again in a moment"
            raise ApiError(message, status=429, code="overloaded", headers={"Retry-After": "1"})
        self.pending += 1
        try:
            async with self.turn:
                if await request.is_disconnected():
                    return Response(status_code=499)  # nobody reads it
                body = await asyncio.get_running_loop().run_in_executor(self.thread, self.compute, work)
        finally:
            self.pending -= 1
        return Response(body, media_type="application/json")

    def compute(self, work: Callable[[], dict]) -> bytes:
        with self.on_devices():
            return json.dumps(work(), ensure_ascii=False, separators=(",", ":")).encode()


# A text


def most_tokens(served: Served) -> int:
    return min(TOKENS, WINDOWS * max(1, served.block_size // 2), served.limits.max_prompt)


def most_attention(served: Served) -> int:
    config = served.model.config
    return max(1, min(served.block_size, int((WEIGHTS / (config.n_layer * config.n_head)) ** 0.5)))


def most_lens(served: Served) -> int:
    return max(1, min(served.block_size, LENS, LOGITS // served.model.config.vocab_size))


def read_text(fields: Fields, served: Served, most: int) -> Int[np.ndarray, " T"]:
    """Take `text` or `tokens`. Raises ApiError for neither, both, or more than `most` tokens."""
    text, given = fields.text("text"), fields.take("tokens")
    if (text is None) == (given is None):
        raise ApiError("give either text, a string, or tokens, a list of token ids", "text")
    if given is not None and not isinstance(given, list):
        raise ApiError(f"tokens is {spell(given)}, expected a list of token ids", "tokens")
    param = "text" if given is None else "tokens"
    ids = check_ids(served, "tokens", given) if given is not None else encode(served, "text", text)
    if len(ids) > most:
        message = f"{param} has {len(ids)} tokens, and this takes {most} at most: give a part of it"
        raise ApiError(message, param, code="context_length_exceeded")
    return ids


def spelled(served: Served, ids: Int[np.ndarray, " T"]) -> list[dict[str, Any]]:
    """Return the tokens with their part of the text; it is "" for those in the middle of a character."""
    text, told = prompt_tokens(served.tokenizer, ids.tolist(), [])
    return [{"id": token.id, "text": text[token.start : token.end]} for token in told]


def names(served: Served, ids: np.ndarray) -> dict[str, str]:
    """Return the text of each token by its id, or the bytes of those in the middle of a character."""
    return {str(i): name(served, i) for i in np.unique(ids).tolist()}


def name(served: Served, token: int) -> str:
    if token >= served.vocab_size:
        return "(unused)"  # a model's vocabulary may be padded beyond its tokenizer's
    raw = served.tokenizer.bytes_of(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"({raw.hex(' ')})"


def rounded(x: np.ndarray) -> list:
    """Return numbers with the digits that a page can show."""
    return [rounded(row) if row.ndim else float(f"{row:.5g}") for row in x]


# The routes


async def places_of(request: Request) -> Response:
    """Tell what could have stood at each place of a text, and behind it."""
    served = request.app.state.served
    fields = await read_fields(request, served.limits.max_body)
    ids = read_text(fields, served, most_tokens(served))
    prompt = fields.integer("prompt", 0, 0, len(ids))
    settings = Settings(
        fields.number("temperature", 1.0, 0, 2),
        fields.integer("top_k", None, 1, 2**31 - 1),
        fields.number("top_p", None, 0, 1, or_at=False),
    )
    chosen = fields.text("checkpoint")
    fields.finish()

    def work() -> dict:
        model, told, seen = weights_of(served, chosen), [None] * (len(ids) + 1), [ids]
        for start, first, last in windows(len(ids), prompt, served.block_size):
            following = ids[start + 1 : last + 1]
            found = places(model, ids[start:last], following, settings, served.vocab_size)
            # The model tells of place i behind token i - 1.
            parts = [rounded(np.asarray(x)[first - 1 - start :]) for x in found[1:]]
            kept = found.tokens[first - 1 - start :].tolist()
            for i, place in enumerate(zip(kept, *parts, strict=True), first):
                told[i] = place
            seen.append(np.ravel(found.tokens))
        return {
            "tokens": spelled(served, ids),
            "places": [place and tell(place, i == len(ids)) for i, place in enumerate(told)],
            "names": names(served, np.concatenate(seen)),
        }

    return await request.app.state.desk.answer(request, work)


def tell(place: tuple, following: bool) -> dict[str, Any]:
    """Describe a place; in the one behind the text stands nothing yet."""
    ids, before, after, chosen_before, chosen_after = place
    mine = {} if following else {"before": chosen_before, "after": chosen_after}
    return {"likeliest": ids, "likeliest_before": before, "likeliest_after": after} | mine


async def attention_of(request: Request) -> Response:
    """Tell what each token reads, in every head: the rows up to the diagonal, in 65535ths."""
    served = request.app.state.served
    fields = await read_fields(request, served.limits.max_body)
    ids = read_text(fields, served, most_attention(served))
    fields.finish()

    def work() -> dict:
        weights = attention(served.model, ids)  # (L, H, T, T)
        L, H, T, _ = weights.shape
        rows, columns = np.tril_indices(T)
        parts = np.rint(65535 * weights[:, :, rows, columns]).astype("<u2")
        return {
            "tokens": spelled(served, ids),
            "shape": [L, H, T],
            "weights": base64.b64encode(parts.tobytes()).decode(),
        }

    return await request.app.state.desk.answer(request, work)


async def lens_of(request: Request) -> Response:
    """Tell what the head would predict after each layer, and the norms of the stream and of its parts."""
    served = request.app.state.served
    fields = await read_fields(request, served.limits.max_body)
    ids = read_text(fields, served, most_lens(served))
    k = fields.integer("k", 5, 1, min(20, served.vocab_size))
    fields.finish()

    def work() -> dict:
        seen = lens(served.model, ids, k)
        numbers = {name: rounded(x) for name, x in seen._asdict().items() if name != "tokens"}
        return {
            "tokens": spelled(served, ids),
            "likeliest": seen.tokens.tolist(),
            "names": names(served, seen.tokens),
            **numbers,
        }

    return await request.app.state.desk.answer(request, work)


async def loss_of(request: Request) -> Response:
    """Tell how surprising each token of a text was, to one or two checkpoints of the run."""
    served = request.app.state.served
    fields = await read_fields(request, served.limits.max_body)
    ids = read_text(fields, served, most_tokens(served))
    if len(ids) < 2:
        raise ApiError("the text has one token, and nothing before it: give two at least", "text")
    if served.block_size < 2:
        raise ApiError("a loss takes two tokens at once, and block_size of this model is 1", "text")
    chosen = fields.take("checkpoints", [served.version])
    if (
        not isinstance(chosen, list)
        or not 0 < len(chosen) <= 2
        or not all(isinstance(x, str) for x in chosen)
    ):
        refuse("checkpoints", chosen, "a list of one or two names")
    fields.finish()

    def work() -> dict:
        told = []
        for name in chosen:
            found = surprise(weights_of(served, name), ids, served.block_size)
            told.append({"checkpoint": name, "nats": rounded(found)})
        return {"tokens": spelled(served, ids), "losses": told}

    return await request.app.state.desk.answer(request, work)


def surprise(model: GPT, ids: Int[np.ndarray, " T"], block_size: int) -> Float[np.ndarray, " T-1"]:
    """Return -log of the probability of each token but the first, in the windows that fit the model."""
    found = np.empty(len(ids) - 1, np.float32)
    for start, first, last in windows(len(ids) - 1, 0, block_size - 1):
        found[first - 1 : last] = nats(model, ids[start : last + 1])[first - 1 - start :]
    return found


def weights_of(served: Served, name: str | None) -> GPT:
    """Return the model that is served, or that of a checkpoint of its run. Raises ApiError."""
    if name is None or name == served.version:
        return served.model
    missing = ApiError(f"there is no checkpoint {spell(name)}", "checkpoint", 404, "checkpoint_not_found")
    if served.run is None:
        raise missing
    try:
        model = served.run.load(name)
    except KeyError:
        raise missing from None
    except UserError as error:  # which names folders
        print(f"checkpoint {name}: {error}", file=sys.stderr)
        message = f"the checkpoint {name} cannot be read: the server's log says why"
        raise ApiError(message, "checkpoint", 404, "checkpoint_not_found") from None
    if model.config.vocab_size < served.vocab_size:
        raise ApiError(f"{name} has another vocabulary than the model that is served", "checkpoint")
    return model
