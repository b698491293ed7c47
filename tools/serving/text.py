"""From tokens to the text that is sent: complete characters, and nothing of a stop string.

text = Continuation(tokenizer, prompt, stops=["\n\n"])
part = text.add(tokens, likelihood)          part.text can be sent
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from data.tokenizer import Tokenizer
from generation.decode import Likelihood

# Tokens of the prompt to decode before its continuation: a character may begin in them, and some tokenizers
# drop the space before a first word.
BEFORE = 8


class Token(NamedTuple):
    """A token of the text, and how likely it was."""

    id: int
    start: int  # characters before it
    end: int
    logprob: float | None = None  # None: not asked for, or the first token of a prompt
    likeliest: Sequence[tuple[int, float]] = ()  # tokens, and their log-probabilities


@dataclass(frozen=True)
class Part:
    """The next part of a text, and the tokens that are complete in it."""

    text: str
    tokens: list[Token]

    def __add__(self, other: "Part") -> "Part":
        return Part(self.text + other.text, self.tokens + other.tokens)


class Continuation:
    """The text of new tokens as they come. It ends before the first of the `stops`.

    It keeps back what may be the beginning of a stop string or of a character.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], stops: list[str]):
        self.stops = stops
        self.decode = tokenizer.stream()
        self.decode(prompt[-BEFORE:])
        self.text = ""
        self.begin = 0  # where the new text begins: 0, unless the prompt is echoed
        self.sent = 0  # characters
        self.tokens: list[Token] = []  # those not sent
        self.count = 0  # new tokens
        self.stopped = False

    def echo(self, prompt: Part) -> None:
        """Put the prompt before the new text."""
        self.text = prompt.text
        self.tokens = prompt.tokens
        self.begin = len(prompt.text)

    def add(self, ids: np.ndarray, likely: Sequence[tuple] = ()) -> Part:
        """Add new tokens, up to the end of a stop string; return what can be sent."""
        for i, token in enumerate(ids.tolist()):
            start = len(self.text)
            self.text += self.decode([token])
            self.count += 1
            self.tokens.append(Token(token, start, len(self.text), *(likely[i] if likely else ())))
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


def read_prompt(tokenizer: Tokenizer, ids: np.ndarray, last: Sequence[Likelihood] = ()) -> Part:
    """Return a prompt as text and tokens; `last` has the likelihoods of the last ones."""
    known = [x for likelihood in last for x in likelihoods(likelihood)]
    whole = Continuation(tokenizer, [], [])
    return whole.add(ids, [()] * (len(ids) - len(known)) + known) + whole.finish()


def spelling(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text, or the bytes of a part of a character, as OpenAI writes them."""
    raw = tokenizer.bytes_of(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
