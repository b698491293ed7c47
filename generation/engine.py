"""The engine of the server: up to `slots` sequences decode together, and each starts and ends on its own.

    engine = Engine(model, slots=16)
    engine.add(Request(prompt, key=key, max_new_tokens=100))       while engine.free
    for piece in engine.step():                                    until engine.idle
        ...

A slot is a row of the key/value cache. A step prefills unread prompts, a chunk's tokens at most, and then
draws one token for each sequence whose prompt is read; without unread prompts, up to 32.
A request's tokens are those of `generate` (generation/decode.py), whatever else is in the engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product, takewhile
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from generation.decode import CHUNK, PREFILL_CHUNK, Chunk, Likelihood, Rows, copy_slot, decode, prefill, start
from generation.sampling import GREEDY, PLAIN, Settings, Tally
from model import GPT

PREFILL_CHUNKS = 16, PREFILL_CHUNK  # tokens in a chunk of a prompt
SHORT_PROMPTS = 8  # short prompts that a call prefills together
MIN_BUCKET = 32  # the shortest bucket (see `Engine`) has so many tokens
MIN_DRAWN = 8  # a bucket must have space for so many more tokens, if they are to come
FIRST = 3  # a short request needs so many programs for its first tokens


@dataclass(frozen=True)
class Request:
    """A prompt to continue. Token i is drawn with a key made of `key` and i."""

    prompt: Int[np.ndarray, " P"]  # one token or more
    key: PRNGKeyArray
    max_new_tokens: int
    settings: Settings = PLAIN
    bias: Mapping[int, float] = field(default_factory=dict)  # added to the logits of tokens
    stop: tuple[int, ...] = ()  # the first of these tokens ends the continuation, as its last one
    logprobs: bool = False  # return log-probabilities of the new tokens
    prompt_logprobs: bool = False  # and of the prompt, from its second token on

    @property
    def penalized(self) -> bool:
        return self.settings.penalties != PLAIN.penalties or len(self.bias) > 0


class Piece(NamedTuple):
    """The new tokens of the sequence in a slot."""

    slot: int
    tokens: Int[np.ndarray, " n"]  # the new tokens; none during prefill
    likelihood: Likelihood | None  # of the new tokens, (n,) and (n, 20), if it was asked for
    prompt: Likelihood | None  # of the prompt's next tokens, if it was asked for
    finished: bool  # whether the slot is free again


class Sequence(NamedTuple):
    """A request in a slot, with the last tokens of its text, at most block_size + 1."""

    request: Request
    context: list[int]


class Engine:
    """A model, a cache of `slots` rows, and the sequences in it. Only one thread may use it.

    Queries attend to a bucket of the cache, the shortest of a few lengths that holds all sequences.
    """

    def __init__(self, model: GPT, slots: int):
        self.vocab_size = len(model.head)
        self.block_size = model.config.block_size
        self.prompt_chunks = sorted({min(T, max(1, self.block_size // 2)) for T in PREFILL_CHUNKS})
        self.short_prompts = min(SHORT_PROMPTS, slots)
        self.widths = [*(4**i for i in range(slots.bit_length()) if 4**i < slots), slots]
        least = min(MIN_BUCKET, self.block_size)
        self.buckets = [bucket for i in (1, 4, 8, 12, 16) if (bucket := self.block_size * i // 16) >= least]
        self.slots = slots
        self.sequences: dict[int, Sequence] = {}  # by their slots
        self.unread: list[int] = []  # slots whose prompt is not prefilled yet, in order
        self.rows = Rows.empty(slots, self.vocab_size)
        self.no_tally = {W: on_device(Tally.empty(W, self.vocab_size)) for W in self.widths}
        self.decoder, self.cache = start(model, slots, self.block_size)

    @property
    def free(self) -> int:
        return self.slots - len(self.sequences)

    @property
    def filled(self) -> float:
        """The part of the cache that holds tokens, from 0 to 1."""
        return float(self.rows.length.mean()) / self.block_size

    @property
    def idle(self) -> bool:
        return not self.sequences

    def programs(self) -> list[Callable[[], object]]:
        """Return calls that each compile a program, first FIRST for a short request. Slots must be free."""

        def add_one():
            self.remove(self.add(Request(np.zeros(1, np.int32), jax.random.key(0), 1)))

        def prefill_zeros(R: int, T: int, following: bool):
            tokens = np.zeros((R, T), np.int32)
            self._call_prefill([0] * R, tokens, np.zeros(R, np.int32), tokens if following else None)

        chunks, R = self.prompt_chunks, self.short_prompts
        shapes = [*product([1], chunks, [False, True]), *([(R, chunks[0], False)] if R > 1 else [])]
        prefills = [partial(prefill_zeros, *shape) for shape in shapes]
        draws = [partial(self._call_decode, W, bucket, 0) for W, bucket in product(self.widths, self.buckets)]
        n = len(self.buckets)
        return [add_one, prefills[0], *draws[:n], *prefills[1:], *draws[n:]]

    def add(self, request: Request, like: int | None = None) -> int:
        """Put a request into the first free slot, and return it. Raises ValueError if all are taken.

        `like` is a slot with the same prompt, prefilled and within block_size: what it has cached is copied.
        """
        slot = min(set(range(self.slots)) - self.sequences.keys())
        context = request.prompt[-self.block_size :].tolist()
        self.sequences[slot] = Sequence(request, context)
        self.rows.token[slot] = context[-1]
        self.rows.length[slot] = self.rows.made[slot] = 0
        self.rows.key[slot] = jax.random.key_data(request.key)
        self.rows.settings[slot] = request.settings
        for x in self.rows.tally:
            x[slot] = 0
        self.rows.tally.prompt[slot, request.prompt] = True
        self.rows.tally.bias[slot, list(request.bias)] = list(request.bias.values())
        self.rows.wanted[slot] = request.logprobs
        if like is None:
            self.unread.append(slot)
        else:
            self.cache = copy_slot(self.cache, np.int32(like), np.int32(slot))
            self.rows.length[slot] = len(context) - 1
        return slot

    def remove(self, slot: int) -> None:
        """Free a slot, even before its sequence is complete."""
        del self.sequences[slot]
        self.rows.left[slot] = self.rows.length[slot] = 0
        self.rows.settings[slot] = GREEDY
        self.rows.wanted[slot] = False
        if slot in self.unread:
            self.unread.remove(slot)

    def step(self, most: int = CHUNK) -> list[Piece]:
        """Prefill a chunk of waiting prompts, and draw up to `most` tokens for each prefilled sequence.

        It draws one while prompts wait, so that none waits long; with most=0, none.
        """
        if not self.unread:
            return self.draw(most)
        pieces, n = [], 0
        while self.unread:
            slots, T = self._next_to_read()
            if n and n + len(slots) * T > self.prompt_chunks[-1]:
                break
            n += len(slots) * T
            pieces += self.prefill(slots, T)
        return pieces + self.draw(min(most, 1))

    def _next_to_read(self) -> tuple[list[int], int]:
        """Return the slots of several short prompts, or of the first one, and how many tokens to prefill."""
        short = list(islice(takewhile(self._is_short, self.unread), self.short_prompts))
        if len(short) > 1:
            return short + short[-1:] * (self.short_prompts - len(short)), self.prompt_chunks[0]
        rest = self.to_read(self.unread[0])
        T = next((T for T in (0, *self.prompt_chunks) if T >= rest), self.prompt_chunks[-1])
        return self.unread[:1], T

    def _is_short(self, slot: int) -> bool:
        entire = self.rows.length[slot] == 0 and 0 < self.to_read(slot) <= self.prompt_chunks[0]
        return entire and not self.sequences[slot].request.prompt_logprobs

    def to_read(self, slot: int) -> int:
        """Return how many tokens are left to prefill: all but the last, which `decode` takes."""
        return len(self.sequences[slot].context) - 1 - int(self.rows.length[slot])

    def prefill(self, slots: list[int], T: int) -> list[Piece]:
        """Prefill up to T tokens of each slot's prompt, and note which prompts are complete."""
        pieces = self._prefill_chunk(slots, T) if T else []
        for slot in dict.fromkeys(slots):
            if not self.to_read(slot):
                self.unread.remove(slot)
                if self.rows.made[slot] == self.sequences[slot].request.max_new_tokens:  # which is 0
                    self.remove(slot)
                    pieces.append(Piece(slot, np.empty(0, np.int32), None, None, True))
        return pieces

    def _prefill_chunk(self, slots: list[int], T: int) -> list[Piece]:
        """Prefill T tokens of each slot's context. Only a single slot gets log-probabilities."""
        R, lengths = len(slots), self.rows.length
        first = np.minimum(lengths[slots], self.block_size - T)  # a last chunk may overlap
        tokens, following = np.zeros((2, R, T), np.int32)
        for row, slot in enumerate(slots):
            to_read = self.sequences[slot].context[first[row] : first[row] + T + 1]
            tokens[row, : len(to_read) - 1] = to_read[:-1]
            following[row, : len(to_read) - 1] = to_read[1:]
        wanted = self.sequences[slots[0]].request.prompt_logprobs and not self.rows.made[slots[0]]
        likelihood = self._call_prefill(slots, tokens, first, following if wanted else None)
        pieces = []
        for slot, i in zip(slots, first.tolist(), strict=True):
            end = min(i + T, len(self.sequences[slot].context) - 1)
            if likelihood is not None:
                new = part_of(likelihood, 0, slice(lengths[slot] - i, end - i))
                pieces.append(Piece(slot, np.empty(0, np.int32), None, new, False))
            lengths[slot] = end
        return pieces

    def _call_prefill(self, slots: list[int], tokens, first, following=None) -> Likelihood | None:
        bucket = self.block_size if len(slots) == 1 else self.buckets[0]
        chunk = Chunk(tokens, first, np.array(slots, np.int32), following)
        likelihood, self.cache = prefill(self.decoder, self.cache, chunk, bucket)
        return jax.device_get(likelihood)

    def draw(self, most: int = CHUNK) -> list[Piece]:
        """Draw up to `most` tokens for each sequence whose prompt is prefilled."""
        for slot, sequence in self.sequences.items():
            if slot not in self.unread:
                to_make = sequence.request.max_new_tokens - self.rows.made[slot]
                self.rows.left[slot] = min(to_make, self.block_size - self.rows.length[slot], most)
        n = int(self.rows.left.max())
        if n == 0:
            return []
        last = int(np.flatnonzero(self.rows.left)[-1])
        W = next(width for width in self.widths if width > last)
        bucket, most = self._bucket(int(self.rows.length[:W].max()), n)
        np.minimum(self.rows.left, most, out=self.rows.left)
        tokens, likelihood = self._call_decode(W, bucket, min(n, most))
        tokens = np.asarray(tokens)
        if self.rows.wanted.any():
            likelihood = jax.device_get(likelihood)
        return [self._take(int(slot), tokens[slot], likelihood) for slot in np.flatnonzero(self.rows.left)]

    def _call_decode(self, W: int, bucket: int, n: int) -> tuple[jax.Array, Likelihood]:
        rows = jax.tree.map(lambda x: x[:W], self.rows)
        penalized = any(request.penalized for request, _ in self.sequences.values())
        # A tally that changes nothing is not sent to the device again.
        rows = rows._replace(tally=on_device(rows.tally) if penalized else self.no_tally[W])
        tokens, likelihood, self.cache = decode(self.decoder, self.cache, rows, np.int32(n), bucket)
        return tokens, likelihood

    def _bucket(self, longest: int, n: int) -> tuple[int, int]:
        """Return the bucket for a call that draws n more tokens, and how many of them it may draw."""
        for bucket in self.buckets[:-1]:
            if (most := bucket - 1 - longest) >= min(n, MIN_DRAWN):
                return bucket, most
        return self.block_size, n

    def _take(self, slot: int, tokens: Int[np.ndarray, " CHUNK"], likelihood: Likelihood) -> Piece:
        """Add new tokens to a sequence; move its window past block_size, and free its slot at the end."""
        (request, context), rows = self.sequences[slot], self.rows
        new = tokens[: rows.left[slot]]
        stops = np.flatnonzero(np.isin(new, request.stop))
        if len(stops):
            new = new[: stops[0] + 1]
        n = len(new)
        context += new.tolist()
        if request.penalized:  # others need no count, and 16 counts would take a percent of a call
            np.add.at(rows.tally.drawn[slot], new, 1)
        rows.token[slot], rows.left[slot] = new[-1], 0
        rows.length[slot] += n
        rows.made[slot] += n
        if len(context) > self.block_size:
            del context[: -max(1, self.block_size // 2)]
            rows.length[slot] = 0
            self.unread.append(slot)
        logprobs = part_of(likelihood, slot, slice(n)) if request.logprobs else None
        finished = len(stops) > 0 or rows.made[slot] == request.max_new_tokens
        if finished:
            self.remove(slot)
        return Piece(slot, new, logprobs, None, bool(finished))


def part_of(likelihood: Likelihood, row: int, tokens: slice) -> Likelihood:
    return Likelihood(*(np.array(x[row, tokens]) for x in likelihood))


def on_device(tally: Tally) -> Tally:
    """Put a tally on the device, so that with a mesh the same program takes any."""
    return jax.tree.map(jnp.asarray, tally)
