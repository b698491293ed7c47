"""The engine: up to `slots` sequences decode together, and each enters and leaves at a token of its own.

    engine = Engine(model, slots=16)
    engine.add(Request(prompt, key=key, max_new_tokens=100))       while engine.free
    for piece in engine.step():                                    new tokens of each, until engine.idle
        ...

A slot is a row of the key/value cache. Each step reads a chunk of the prompt that waits longest, if any does,
or several short prompts, and then draws tokens for all sequences that are read: one after a chunk, so that
a long prompt stalls nobody for more than that, and up to 32 otherwise. The tokens of a request are those
that it would get alone: they depend on its prompt, its settings and its key.

The model reads block_size tokens at most, at positions 0 to block_size - 1. So there is a window rule:

    A new token reads all tokens before it while they are at most block_size. When they are more, the last
    block_size / 2 of them become the context, from position 0 on, which then grows to block_size again.
    Of a prompt longer than block_size, the last block_size tokens are read.

Past block_size a token thus reads between block_size / 2 and block_size tokens, and one token in
block_size / 2 costs the reading of as many. Moving the window by one token each time would cost every token
that, because all positions change.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, product, takewhile
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from generation.decode import CHUNK, Likelihood, Rows, decode, read, start
from model import GPT

PROMPT_CHUNKS = 16, 128  # tokens of a prompt that are read at once
# Prompts that are read in one call. On 2 CPU cores with the quickstart's model a call for one of 16 tokens
# takes 2.6 ms of CPU time, for eight of them 4.8.
SHORT_PROMPTS = 8
BUCKET = 32  # tokens in a bucket of the cache, at least: see `Engine`
FIRST = 3  # programs that a short request needs for its first tokens
FEW = 8  # tokens that are not worth a call of their own: it costs as much as two to four tokens of one row


@dataclass(frozen=True)
class Request:
    """A prompt to continue. Token i of its continuation is drawn with a key made of `key` and i."""

    prompt: Int[np.ndarray, " P"]  # one token or more
    key: PRNGKeyArray
    max_new_tokens: int
    temperature: float = 1.0  # see `sample` for these three
    top_k: int | None = None
    top_p: float | None = None
    stop: tuple[int, ...] = ()  # tokens that end the continuation, of which they are the last
    logprobs: bool = False  # whether to return the new tokens' log-probabilities
    prompt_logprobs: bool = False  # and the prompt's, from the second token on


class Piece(NamedTuple):
    """The tokens that one step made for the sequence in a slot."""

    slot: int
    tokens: Int[np.ndarray, " n"]  # new ones; none while the prompt is read
    likelihood: Likelihood | None  # of them, (n,) and (n, 20), if the request asks for it
    prompt: Likelihood | None  # of the next tokens of the prompt, likewise
    finished: bool  # the slot is free again


@dataclass
class Sequence:
    """A request in a slot: what the model reads of it, and how far it is."""

    request: Request
    context: list[int]  # its last tokens, at most block_size + 1
    length: int = 0  # of them in the cache
    made: int = 0  # new tokens

    @property
    def unread(self) -> int:
        """The tokens before the last one that are not in the cache. The last one `decode` reads."""
        return len(self.context) - 1 - self.length


class Engine:
    """A model, a cache of `slots` rows, and the sequences in it. It belongs to one thread.

    Attention reads the first part of the cache, as long as the sequences need. It has one of a few lengths,
    the `buckets`: a program is compiled for each that is used. Where `longest` tells how many tokens the
    sequences come to, shorter buckets are left out, so that one program serves from the start.
    """

    def __init__(self, model: GPT, slots: int, vocab_size: int | None = None, longest: int = 1):
        self.vocab_size = vocab_size or model.config.vocab_size
        self.block_size = model.config.block_size
        self.prompt_chunks = sorted({min(T, max(1, self.block_size // 2)) for T in PROMPT_CHUNKS})
        self.short_prompts = min(SHORT_PROMPTS, slots)
        self.widths = [*(4**i for i in range(slots.bit_length()) if 4**i < slots), slots]
        least = min(max(BUCKET, longest), self.block_size)
        self.buckets = [bucket for i in (1, 4, 8, 12, 16) if (bucket := self.block_size * i // 16) >= least]
        self.slots: list[Sequence | None] = [None] * slots
        self.unread: list[int] = []  # the slots whose prompt is not read, the first come first
        self.rows = Rows.empty(slots)
        self.decoder, self.cache = start(model, slots, self.vocab_size)

    @property
    def free(self) -> int:
        """The number of slots without a sequence."""
        return self.slots.count(None)

    @property
    def idle(self) -> bool:
        """Whether all slots are free."""
        return self.free == len(self.slots)

    def compile(self) -> None:
        """Compile all that any request may need, so that none has to wait for it. The slots are free."""
        for program in self.programs():
            program()

    def programs(self) -> list[Callable[[], object]]:
        """Return calls that compile all of it, one by one. The first FIRST of them serve a short request.

        Each goes the way that a request goes, because another type of an argument is another program. Slot 0
        has to be free, and is afterwards.
        """
        chunks, R = self.prompt_chunks, self.short_prompts
        shapes = [*product([1], chunks, [False, True]), *([(R, chunks[0], False)] if R > 1 else [])]
        reads = [partial(self._read_zeros, *shape) for shape in shapes]
        draws = [partial(self._call_decode, W, bucket, 0) for W, bucket in product(self.widths, self.buckets)]
        return [self._add_one, reads[0], *draws[: len(self.buckets)], *reads[1:], *draws[len(self.buckets) :]]

    def _add_one(self) -> None:
        (key,) = keys_of_rows(jax.random.key(0), 1)
        self.remove(self.add(Request(np.zeros(1, np.int32), key, 1)))

    def _read_zeros(self, R: int, T: int, following: bool) -> None:
        tokens = np.zeros((R, T), np.int32)
        self._call_read([0] * R, tokens, np.zeros(R, np.int32), tokens if following else None)

    def first_rows(self, W: int) -> Rows:
        """Return views of the first W rows: what is written there is written into `rows`."""
        return Rows(*(x[:W] for x in self.rows))

    def add(self, request: Request) -> int:
        """Put a request into the first free slot, and return the slot. Raises ValueError if all are taken."""
        slot = self.slots.index(None)
        sequence = Sequence(request, [int(i) for i in request.prompt[-self.block_size :]])
        self.slots[slot] = sequence
        self.rows.made[slot] = 0
        self.rows.key[slot] = jax.random.key_data(request.key)
        self.rows.temperature[slot] = request.temperature
        self.rows.top_k[slot] = min(request.top_k or self.vocab_size, self.vocab_size)
        self.rows.top_p[slot] = 1.0 if request.top_p is None else request.top_p
        self.rows.wants_logprobs[slot] = request.logprobs
        self.unread.append(slot)
        self._place(slot)
        return slot

    def remove(self, slot: int) -> None:
        """Free a slot, whatever its sequence has yet to make."""
        self.slots[slot] = None
        self.rows.left[slot] = self.rows.length[slot] = 0
        self.rows.wants_logprobs[slot] = self.rows.temperature[slot] = 0
        if slot in self.unread:
            self.unread.remove(slot)

    def step(self, most: int = CHUNK) -> list[Piece]:
        """Read a chunk of the first unread prompts, and draw up to `most` tokens for each read sequence."""
        if not self.unread:
            return self.draw(most)
        pieces, n = [], 0
        while self.unread:
            slots, T = self._next_to_read()
            if n and n + len(slots) * T > self.prompt_chunks[-1]:
                break
            n += len(slots) * T
            pieces += self.read()
        return pieces + self.draw(1)

    def _next_to_read(self) -> tuple[list[int], int]:
        """Return the slots whose prompts `read` reads, and how many tokens of each.

        Several short prompts that come first are read together; the last one's slot is repeated until there
        are `short_prompts`, which `read` is compiled for. Otherwise the first prompt is read alone, by the
        smallest chunk that holds the rest of it, or else by the largest.
        """
        short = list(islice(takewhile(self._is_short, self.unread), self.short_prompts))
        if len(short) > 1:
            return short + short[-1:] * (self.short_prompts - len(short)), self.prompt_chunks[0]
        rest = self._at(self.unread[0]).unread
        T = next((T for T in (0, *self.prompt_chunks) if T >= rest), self.prompt_chunks[-1])
        return self.unread[:1], T

    def _is_short(self, slot: int) -> bool:
        sequence = self._at(slot)
        whole = sequence.length == 0 and 0 < sequence.unread <= self.prompt_chunks[0]
        return whole and not sequence.request.prompt_logprobs

    def read(self) -> list[Piece]:
        """Read a chunk of the first unread prompt, or several short prompts."""
        slots, T = self._next_to_read()
        pieces = self._read_chunk(slots, T) if T else []
        for slot in dict.fromkeys(slots):
            sequence = self._at(slot)
            if not sequence.unread:
                self.unread.remove(slot)
                if sequence.made == sequence.request.max_new_tokens:  # which is 0
                    self.remove(slot)
                    pieces.append(Piece(slot, np.empty(0, np.int32), None, None, True))
        return pieces

    def _read_chunk(self, slots: list[int], T: int) -> list[Piece]:
        """Read T tokens of each slot's context. A single slot gets what its request asks for."""
        sequences, pieces = [self._at(slot) for slot in slots], []
        first, tokens, following = np.zeros(len(slots), np.int32), *np.zeros((2, len(slots), T), np.int32)
        for row, sequence in enumerate(sequences):
            # The last chunk before block_size may begin among tokens that are in the cache already.
            first[row] = i = min(sequence.length, self.block_size - T)
            to_read = sequence.context[i : i + T + 1]
            tokens[row, : len(to_read) - 1], following[row, : len(to_read) - 1] = to_read[:-1], to_read[1:]
        wanted = sequences[0].request.prompt_logprobs and not sequences[0].made
        likelihood = jax.device_get(self._call_read(slots, tokens, first, following if wanted else None))
        for slot, sequence, i in zip(slots, sequences, first, strict=True):
            last = min(int(i) + T, len(sequence.context) - 1)
            if likelihood is not None:
                new = part_of(likelihood, 0, slice(sequence.length - i, last - i))
                pieces.append(Piece(slot, np.empty(0, np.int32), None, new, False))
            sequence.length = last
            self._place(slot)
        return pieces

    def _call_read(self, slots: list[int], tokens, first, following=None) -> Likelihood | None:
        bucket = self.block_size if len(slots) == 1 else self.buckets[0]
        rows = np.array(slots, np.int32), tokens, first, following
        likelihood, self.cache = read(self.decoder, self.cache, *rows, bucket)
        return likelihood

    def draw(self, most: int = CHUNK) -> list[Piece]:
        """Draw up to `most` tokens for each sequence whose prompt is read."""
        for slot, sequence in enumerate(self.slots):
            if sequence and slot not in self.unread:
                to_make = sequence.request.max_new_tokens - sequence.made
                self.rows.left[slot] = min(to_make, self.block_size - sequence.length, most)
        n = int(self.rows.left.max())
        if n == 0:
            return []
        last = int(np.flatnonzero(self.rows.left)[-1])
        W = next(width for width in self.widths if width > last)
        rows = self.first_rows(W)
        bucket, most = self._bucket(int(rows.length.max()), n)
        np.minimum(rows.left, most, out=rows.left)
        tokens, likelihood = self._call_decode(W, bucket, min(n, most))
        tokens = np.asarray(tokens)
        if rows.wants_logprobs.any():
            likelihood = jax.device_get(likelihood)
        return [self._take(int(slot), tokens[slot], likelihood) for slot in np.flatnonzero(self.rows.left)]

    def _call_decode(self, W: int, bucket: int, n: int) -> tuple[jax.Array, Likelihood]:
        rows = self.first_rows(W)
        tokens, likelihood, self.cache = decode(self.decoder, self.cache, rows, np.int32(n), bucket)
        return tokens, likelihood

    def _bucket(self, longest: int, n: int) -> tuple[int, int]:
        """Return how much of the cache a call reads for n tokens more, and how many of them fit in there.

        A call ends where its bucket does, so that no token reads the bucket of those that come after it.
        """
        for bucket in self.buckets[:-1]:
            if (most := bucket - 1 - longest) >= min(n, FEW):
                return bucket, most
        return self.block_size, n

    def _take(self, slot: int, tokens: Int[np.ndarray, " CHUNK"], likelihood: Likelihood) -> Piece:
        """Add the new tokens to the sequence, and move its window or free its slot where it is time to."""
        sequence = self._at(slot)
        new = tokens[: self.rows.left[slot]]
        request, S = sequence.request, self.block_size
        stopped = np.flatnonzero(np.isin(new, request.stop)) if request.stop else ()
        if len(stopped):
            new = new[: stopped[0] + 1]
        n = len(new)
        sequence.context += new.tolist()
        sequence.length += n
        sequence.made += n
        self.rows.left[slot] = 0
        self.rows.made[slot] = sequence.made
        finished = len(stopped) > 0 or sequence.made == request.max_new_tokens
        logprobs = part_of(likelihood, slot, slice(n)) if request.logprobs else None
        if len(sequence.context) > S:
            sequence.context, sequence.length = sequence.context[-max(1, S // 2) :], 0
            self.unread.append(slot)
        self._place(slot)
        if finished:
            self.remove(slot)
        return Piece(slot, new, logprobs, None, finished)

    def _place(self, slot: int) -> None:
        """Give `decode` the last token and the length; it writes behind the length of waiting rows, too."""
        sequence = self._at(slot)
        self.rows.token[slot], self.rows.length[slot] = sequence.context[-1], sequence.length

    def _at(self, slot: int) -> Sequence:
        sequence = self.slots[slot]
        assert sequence is not None, f"slot {slot} is free"
        return sequence


def part_of(likelihood: Likelihood, row: int, tokens: slice) -> Likelihood:
    """Copy the likelihoods of some tokens of a row to the host."""
    return Likelihood(*(np.array(x[row, tokens]) for x in likelihood))


def generate(
    model: GPT,
    prompt: Int[np.ndarray, "B P"],
    *,
    key: PRNGKeyArray,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    vocab_size: int | None = None,
) -> Iterator[Int[np.ndarray, "B _"]]:
    """Yield the tokens that follow each row of the prompt as they are made: (B, n) int32, n varies.

    The prompt has at least one token. Token i of row r is drawn with a key made of `key`, r and i: it depends
    neither on the number of rows nor on `max_new_tokens`. See `sample` for temperature, top_k and top_p.
    """
    B = len(prompt)
    engine = Engine(model, B, vocab_size, longest=prompt.shape[1] + max_new_tokens)
    for row, row_key in zip(prompt, keys_of_rows(key, B), strict=True):
        engine.add(Request(row, row_key, max_new_tokens, temperature, top_k, top_p))
    while not engine.idle:
        most = 1 if engine.unread else CHUNK  # the first token comes at once
        while engine.unread:
            engine.read()
        if pieces := engine.draw(most):  # none where no tokens were asked for
            yield np.stack([piece.tokens for piece in pieces])


def keys_of_rows(key: PRNGKeyArray, n: int) -> list[PRNGKeyArray]:
    """Return the keys of n continuations that are asked for together with one key."""
    return [jax.random.fold_in(key, row) for row in range(n)]
