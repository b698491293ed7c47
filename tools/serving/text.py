"""From tokens to the text that is sent: complete characters, and nothing of a stop string."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from data.tokenizer import Tokenizer
from generation.decode import Likelihood
from generation.engine import Piece

BEFORE = 8  # tokens of the prompt to decode first: a character may begin there, or a space belong to one


class Token(NamedTuple):
    """A token of the text, and how likely it was."""

    id: int
    start: int  # characters before it
    end: int
    logprob: float | None = None  # None: not asked for, or the first token of a prompt
    likeliest: Sequence[tuple[int, float]] = ()  # tokens, and their log-probabilities


@dataclass(frozen=True)
class Part:
    """A part of a text, and the tokens that are complete in it."""

    text: str
    tokens: list[Token]

    def __add__(self, other: "Part") -> "Part":
        return Part(self.text + other.text, self.tokens + other.tokens)


class Continuation:
    """The text of new tokens, up to the first of the texts `stops` or of the tokens `ends`.

    What may be the beginning of a stop string or of a character is kept back.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: np.ndarray,
        stops: Sequence[str] = (),
        ends: Sequence[int] = (),
        echo: bool = False,  # begin with the prompt
    ):
        self.tokenizer, self.prompt = tokenizer, prompt
        self.stops, self.ends = stops, ends
        self.decode = tokenizer.stream()
        self.decode(prompt[-BEFORE:].tolist())
        self.unread = [] if echo else None  # the prompt's likelihoods, until it is echoed
        self.text = ""
        self.begin = 0  # where the new text begins
        self.sent = 0  # characters
        self.tokens: list[Token] = []  # those not sent
        self.count = 0  # new tokens
        self.stopped = False
        self.finish_reason: str | None = None

    def take(self, piece: Piece) -> Part:
        """Add what the engine made; return what can be sent."""
        if self.unread is not None:
            self.unread += likelihoods(piece.prompt)
            if len(piece.tokens) or piece.finished:
                whole = read_prompt(self.tokenizer, self.prompt, self.unread)
                self.text = whole.text
                self.tokens = whole.tokens
                self.begin = len(whole.text)
                self.unread = None
        ended = len(piece.tokens) > 0 and int(piece.tokens[-1]) in self.ends
        part = self.add(piece.tokens[:-1] if ended else piece.tokens, likelihoods(piece.likelihood))
        self.count += ended
        if piece.finished or self.stopped:
            part += self.finish()
            self.finish_reason = "stop" if ended or self.stopped else "length"
        return part

    def add(self, ids: np.ndarray, known: Sequence[tuple] = ()) -> Part:
        """Add tokens up to a stop string; return what can be sent."""
        for i, token in enumerate(ids.tolist()):
            start = len(self.text)
            self.text += self.decode([token])
            self.count += 1
            self.tokens.append(Token(token, start, len(self.text), *(known[i] if known else ())))
            if self._cut(start):
                return self.finish()
        return self._send(len(self.text) - self._undecided())

    def finish(self) -> Part:
        """Return the rest, when no more tokens come."""
        if not self.stopped:
            start = len(self.text)
            self.text += self.decode([], final=True)
            self._cut(start)
        return self._send(len(self.text), entire=True)

    def _cut(self, start: int) -> bool:
        """Cut the text before a stop string that ends after `start`, if there is one."""
        places = [self.text.find(stop, max(self.begin, start - len(stop) + 1)) for stop in self.stops]
        if found := [place for place in places if place >= 0]:
            self.text = self.text[: min(found)]
            self.tokens = [token for token in self.tokens if token.start < len(self.text)]
            self.stopped = True
        return self.stopped

    def _undecided(self) -> int:
        """Count the characters at the end that may begin a stop string."""
        longest = max((len(stop) for stop in self.stops), default=1) - 1
        ends = range(min(longest, len(self.text) - self.begin), 0, -1)
        return next((n for n in ends if any(stop.startswith(self.text[-n:]) for stop in self.stops)), 0)

    def _send(self, end: int, entire: bool = False) -> Part:
        text, self.sent = self.text[self.sent : end], end
        # A token that begins at the end is part of a character that may yet be cut away.
        complete = takewhile(lambda token: entire or token.start < end >= token.end, self.tokens)
        part = Part(text, list(complete))
        self.tokens = self.tokens[len(part.tokens) :]
        return part


def likelihoods(likelihood: Likelihood | None) -> list[tuple]:
    """Return the last two fields of each Token."""
    if likelihood is None:
        return []
    pairs = zip(likelihood.tokens.tolist(), likelihood.likeliest.tolist(), strict=True)
    likeliest = [list(zip(*pair, strict=True)) for pair in pairs]
    return list(zip(likelihood.chosen.tolist(), likeliest, strict=True))


def read_prompt(tokenizer: Tokenizer, ids: np.ndarray, known: Sequence[tuple] = ()) -> Part:
    """Return a prompt's text and tokens; `known` are the likelihoods of the last ones."""
    whole = Continuation(tokenizer, ids[:0])
    return whole.add(ids, [()] * (len(ids) - len(known)) + [*known]) + whole.finish()


def spelling(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text; for a part of a character its bytes, as OpenAI writes them."""
    raw = tokenizer.bytes_of(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
