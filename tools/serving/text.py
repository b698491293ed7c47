"""From tokens to the text that is sent: whole characters alone, nothing of a stop string, and its tokens.

text = Continuation(tokenizer, prompt, stops=["\n\n"])
part = text.add(tokens, likelihood)          part.text can be sent; part.tokens say what it is made of
text.finish()                                the rest
"""

from dataclasses import dataclass, field
from itertools import count

import numpy as np

from data.tokenizer import Tokenizer
from generation.decode import Likelihood

# Tokens of the prompt that its continuation is decoded behind: a character may begin there, and some
# tokenizers leave out the space before a first word.
BEHIND = 8


@dataclass(frozen=True)
class Token:
    """A token of the text, and how likely it was."""

    id: int
    start: int  # its place in the text: characters before it
    end: int
    logprob: float | None  # None: not asked for, or of the first token of a prompt
    likeliest: dict[int, float] = field(default_factory=dict)  # log-probabilities by token


@dataclass(frozen=True)
class Part:
    """The next part of a text, and the tokens that are whole in it."""

    text: str
    tokens: list[Token]


class Continuation:
    """The text of new tokens as they come. It ends before the first of the `stops`.

    Text that may be the beginning of a stop string is kept until that is decided, and bytes until their
    character is whole.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], stops: list[str]):
        self.stops = stops
        self.decode = tokenizer.stream()
        self.decode(prompt[-BEHIND:])
        self.text = ""
        self.begin = 0  # where the new text begins in it: 0, unless the prompt is echoed
        self.sent = 0  # characters
        self.tokens: list[Token] = []  # those not sent
        self.count = 0  # new tokens
        self.stopped = False

    def echo(self, text: str, tokens: list[Token]) -> None:
        """Put the prompt before the new text."""
        self.text, self.tokens, self.begin = text, tokens, len(text)

    def add(self, ids: np.ndarray, likelihood: Likelihood | None = None) -> Part:
        """Add new tokens, up to the one that completes a stop string; return what can be sent."""
        for i, token in enumerate(ids.tolist()):
            start = len(self.text)
            self.text += self.decode([token])
            self.count += 1
            self.tokens.append(Token(token, start, len(self.text), *told(likelihood, i)))
            if self._cut(start):
                break
        return self._send(len(self.text) - (0 if self.stopped else self._undecided()))

    def finish(self) -> Part:
        """Return the rest of the text."""
        if not self.stopped:
            start = len(self.text)
            self.text += self.decode([], final=True)
            self._cut(start)
        part = self._send(len(self.text))
        return Part(part.text, part.tokens + [x for x in self.tokens if not self.stopped])

    def _cut(self, start: int) -> bool:
        """Cut the text before a stop string that ends behind `start`; say whether there is one."""
        places = [self.text.find(stop, max(self.begin, start - len(stop) + 1)) for stop in self.stops]
        if found := [place for place in places if place >= 0]:
            self.text = self.text[: min(found)]
            self.tokens = [token for token in self.tokens if token.start < len(self.text)]
            self.stopped = True
        return self.stopped

    def _undecided(self) -> int:
        """Return how many characters at the end may be the beginning of a stop string."""
        longest = max((len(stop) for stop in self.stops), default=1) - 1
        ends = (n for n in range(min(longest, len(self.text) - self.begin), 0, -1))
        return next((n for n in ends if any(stop.startswith(self.text[-n:]) for stop in self.stops)), 0)

    def _send(self, end: int) -> Part:
        text, self.sent = self.text[self.sent : end], end
        # A token that begins at the end is the first part of a character, which may yet be cut away.
        kept = (i for i, token in enumerate(self.tokens) if token.end > end or token.start == end)
        whole = len(self.tokens) if self.stopped else next(kept, len(self.tokens))
        tokens, self.tokens = self.tokens[:whole], self.tokens[whole:]
        return Part(text, tokens)


def told(likelihood: Likelihood | None, i: int) -> tuple[float | None, dict[int, float]]:
    """Return the log-probability of the i-th token, and those of the likeliest in its place."""
    if likelihood is None:
        return None, {}
    values = map(float, likelihood.likeliest[i])
    return float(likelihood.chosen[i]), dict(zip(likelihood.tokens[i].tolist(), values, strict=True))


def prompt_tokens(
    tokenizer: Tokenizer, ids: list[int], told_last: list[Likelihood]
) -> tuple[str, list[Token]]:
    """Return the text of a prompt, and its tokens; `told_last` says how likely the last of them were."""
    chosen = [told(likelihood, i) for likelihood in told_last for i in range(len(likelihood.chosen))]
    unknown = len(ids) - len(chosen)
    decode, text, tokens = tokenizer.stream(), "", []
    for i, token in zip(count(), ids):
        start = len(text)
        text += decode([token])
        tokens.append(Token(token, start, len(text), *(chosen[i - unknown] if i >= unknown else (None, {}))))
    return text + decode([], final=True), tokens
