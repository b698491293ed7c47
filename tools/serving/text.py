"""From tokens to the text that is sent: complete characters, and nothing of a stop string.

text = Continuation(tokenizer, prompt, stops=["\n\n"])
part = text.add(tokens, likelihood)          part.text can be sent
"""

from dataclasses import dataclass, field

import numpy as np

from data.tokenizer import Tokenizer
from generation.decode import Likelihood

# Tokens of the prompt to decode before its continuation: a character may begin in them, and some tokenizers
# drop the space before a first word.
BEFORE = 8


@dataclass(frozen=True)
class Token:
    """A token of the text, and how likely it was."""

    id: int
    start: int  # characters before it
    end: int
    logprob: float | None = None  # None: not asked for, or the first token of a prompt
    likeliest: list[tuple[int, float]] = field(default_factory=list)  # tokens, and their log-probabilities


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

    def echo(self, text: str, tokens: list[Token]) -> None:
        """Put the prompt before the new text."""
        self.text, self.tokens, self.begin = text, tokens, len(text)

    def add(self, ids: np.ndarray, likelihood: Likelihood | None = None) -> Part:
        """Add new tokens, up to the end of a stop string; return what can be sent."""
        for token, known in zip(ids.tolist(), likelihoods(likelihood, len(ids)), strict=False):
            start = len(self.text)
            self.text += self.decode([token])
            self.count += 1
            self.tokens.append(Token(token, start, len(self.text), *known))
            if self._cut(start):
                break
        return self._send(len(self.text) - (0 if self.stopped else self._undecided()))

    def finish(self) -> Part:
        if not self.stopped:
            start = len(self.text)
            self.text += self.decode([], final=True)
            self._cut(start)
        part = self._send(len(self.text))
        return Part(part.text, part.tokens + ([] if self.stopped else self.tokens))

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

    def _send(self, end: int) -> Part:
        text, self.sent = self.text[self.sent : end], end
        # A token that begins at the end is part of a character that may yet be cut away.
        kept = (i for i, token in enumerate(self.tokens) if token.end > end or token.start == end)
        complete = len(self.tokens) if self.stopped else next(kept, len(self.tokens))
        tokens, self.tokens = self.tokens[:complete], self.tokens[complete:]
        return Part(text, tokens)


def likelihoods(likelihood: Likelihood | None, n: int) -> list[tuple]:
    """Return the last two fields of each of n Tokens, as far as they are known."""
    if likelihood is None:
        return [()] * n
    pairs = zip(likelihood.tokens.tolist(), likelihood.likeliest.tolist(), strict=True)
    likeliest = [list(zip(*pair, strict=True)) for pair in pairs]
    return list(zip(likelihood.chosen.tolist(), likeliest, strict=True))


def prompt_tokens(
    tokenizer: Tokenizer, ids: list[int], last: list[Likelihood] | None = None
) -> tuple[str, list[Token]]:
    """Return the text of a prompt, and its tokens; `last` has the likelihoods of the last ones."""
    likely = [x for likelihood in last or [] for x in likelihoods(likelihood, len(likelihood.chosen))]
    decode, text, tokens = tokenizer.stream(), "", []
    for token, known in zip(ids, [()] * (len(ids) - len(likely)) + likely, strict=True):
        start = len(text)
        text += decode([token])
        tokens.append(Token(token, start, len(text), *known))
    return text + decode([], final=True), tokens


def spelling(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text, or the bytes of a part of a character, as OpenAI writes them."""
    raw = tokenizer.bytes_of(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
