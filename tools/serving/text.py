"""From tokens to the text that is sent: complete characters, and nothing of a stop string."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from common.errors import UserError
from data.conversations import Renderer
from data.tokenizer import Tokenizer, end_tokens
from generation.decode import Likelihood
from generation.engine import Piece


class Token(NamedTuple):
    """A token of the text, and how likely it was."""

    id: int
    start: int  # characters before it
    end: int
    logprob: float | None = None  # None: not asked for, or the first token of a prompt
    likeliest: Sequence[tuple[int, float]] = ()  # tokens, and their log-probabilities


@dataclass
class Continuation:
    """The text of new tokens, up to the first of the texts `stops` or of the tokens `ends`."""

    tokenizer: Tokenizer
    prompt: np.ndarray
    stops: Sequence[str] = ()
    ends: Sequence[int] = ()
    echo: bool = False  # begin with the prompt; False once it is in the text
    known: list[tuple] = field(default_factory=list)  # likelihoods of the prompt
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    begin: int = 0  # where the new text begins
    count: int = 0  # new tokens
    sent: int = 0  # characters
    tokens_sent: int = 0
    finish_reason: str | None = None

    def __post_init__(self):
        self.held = max(map(len, self.stops), default=1) - 1  # characters that may begin a stop string
        self.decode = self.tokenizer.stream()
        self.decode(self.prompt[-8:].tolist())  # a character may begin there, or a space belong to one

    def take(self, piece: Piece) -> bool:
        """Add what the engine made. Return whether the text has ended."""
        self.known += likelihoods(piece.prompt)
        if self.echo and (len(piece.tokens) or piece.finished):
            self.text, self.tokens = read_prompt(self.tokenizer, self.prompt, self.known, echo=True)
            self.begin = len(self.text)
            self.echo = False
        ended = len(piece.tokens) > 0 and int(piece.tokens[-1]) in self.ends
        self.add(piece.tokens[:-1] if ended else piece.tokens, likelihoods(piece.likelihood))
        self.count += ended
        if piece.finished and not self.finish_reason:
            self.finish("stop" if ended else "length")
        return self.finish_reason is not None

    def add(self, ids: np.ndarray, known: Sequence[tuple] = ()) -> None:
        """Add tokens, up to a stop string."""
        for i, token in enumerate(ids.tolist()):
            start = len(self.text)
            self.text += self.decode([token])
            self.count += 1
            self.tokens.append(Token(token, start, len(self.text), *(known[i] if known else ())))
            if self.cut(start):
                return

    def finish(self, reason: str) -> None:
        """Add what is left of the last character, when no more tokens come."""
        start = len(self.text)
        self.text += self.decode([], final=True)
        self.finish_reason = reason
        self.cut(start)

    def cut(self, start: int) -> bool:
        """Cut the text before a stop string that ends after `start`, if there is one."""
        places = [self.text.find(stop, max(self.begin, start - len(stop) + 1)) for stop in self.stops]
        if found := [place for place in places if place >= 0]:
            self.text = self.text[: min(found)]
            self.tokens = [token for token in self.tokens if token.start < len(self.text)]
            self.finish_reason = "stop"
        return bool(found)

    def to_send(self) -> tuple[str, list[Token]]:
        """Return the text that is certain and was not sent before, and the tokens that are complete in it."""
        whole = self.finish_reason is not None
        end = len(self.text) if whole else max(self.sent, len(self.text) - self.held)
        text, self.sent = self.text[self.sent : end], end
        # A token that begins at the end is part of a character that may yet be cut away.
        left = self.tokens[self.tokens_sent :]
        tokens = list(takewhile(lambda token: whole or token.start < end >= token.end, left))
        self.tokens_sent += len(tokens)
        return text, tokens


def likelihoods(likelihood: Likelihood | None) -> list[tuple]:
    """Return the last two fields of each Token."""
    if likelihood is None:
        return []
    pairs = zip(likelihood.tokens.tolist(), likelihood.likeliest.tolist(), strict=True)
    likeliest = [list(zip(*pair, strict=True)) for pair in pairs]
    return list(zip(likelihood.chosen.tolist(), likeliest, strict=True))


def read_prompt(
    tokenizer: Tokenizer, ids: np.ndarray, known: Sequence[tuple] = (), echo: bool = False
) -> tuple[str, list[Token]]:
    """Return a prompt's text, as it was written to `echo` it, and tokens.

    `known` are the likelihoods of the last ones.
    """
    whole = Continuation(tokenizer, ids[:0])
    whole.decode = tokenizer.stream(encoded=echo)
    whole.add(ids, [()] * (len(ids) - len(known)) + [*known])
    whole.finish("length")
    return whole.text, whole.tokens


def spelling(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text; for a part of a character its bytes, as OpenAI writes them."""
    raw = tokenizer.bytes_of(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def marks(tokenizer: Tokenizer, chat: Renderer | str | None) -> dict[str, list[int]]:
    """Return the special tokens, those that stand before an answer, and those that end one."""
    asked, answer = [{"role": "user", "content": "a"}], []
    if isinstance(chat, Renderer):
        with suppress(UserError):  # a template may refuse it
            said, prompt = chat.encode(asked).ids, chat.encode(asked, add_generation_prompt=True).ids
            answer = prompt[len(said) :].tolist() if np.array_equal(prompt[: len(said)], said) else []
    special = [i for name, i in tokenizer.names.items() if name not in tokenizer.added]
    return {"special": special, "answer": answer, "ends": end_tokens(tokenizer.description)}
