"""OpenAI's answers: the objects of a completion and of a chat, whole or in chunks."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from tools.serving.requests import Asked
from tools.serving.served import Served
from tools.serving.text import Part, Token


@dataclass
class Answer:
    """The answer to one request. A subclass says how the objects of its endpoint look."""

    served: Served
    asked: Asked
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    kinds = ("text_completion", "text_completion")  # of the whole object, and of a chunk
    prefix = "cmpl"

    def object(self, choices: list[dict], usage: dict | None, chunk: bool = False) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{self.id}",
            "object": self.kinds[chunk],
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": self.served.version,
            "choices": choices,
            "usage": usage,
        }

    def choice(self, index: int, part: Part, finish_reason: str | None) -> dict[str, Any]:
        """Return a choice of the whole object."""
        logprobs = None if self.asked.logprobs is None else self.logprobs(part.tokens)
        return {"index": index, "text": part.text, "logprobs": logprobs, "finish_reason": finish_reason}

    def chunk(self, index: int, part: Part, finish_reason: str | None) -> dict[str, Any]:
        """Return a choice of a chunk."""
        return self.choice(index, part, finish_reason)

    def first_chunks(self, index: int) -> list[dict[str, Any]]:
        """Return what is sent before anything is computed."""
        return []

    def logprobs(self, tokens: list[Token]) -> dict[str, Any]:
        """Return what is told of tokens. A place without probabilities has null: the first of the prompt."""
        n = self.asked.logprobs or 0
        return {
            "tokens": [self.name(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self.top(token, n) for token in tokens] if n else None,
            "text_offset": [token.start for token in tokens],
        }

    def top(self, token: Token, n: int) -> dict[str, float] | None:
        """Return the n likeliest tokens with their log-probabilities, and the one that was drawn."""
        if token.logprob is None:
            return None
        return {self.name(i): p for i, p in [*first(token, n), (token.id, token.logprob)]}

    def name(self, token: int) -> str:
        """Return a token's text; of a part of a character its bytes, as OpenAI writes them."""
        raw = self.served.tokenizer.bytes_of(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class ChatAnswer(Answer):
    kinds = ("chat.completion", "chat.completion.chunk")
    prefix = "chatcmpl"

    def choice(self, index, part, finish_reason):
        message = {"role": "assistant", "content": part.text, "refusal": None}
        return self._around({"message": message}, index, part, finish_reason)

    def chunk(self, index, part, finish_reason):
        return self._around(
            {"delta": {"content": part.text} if part.text else {}}, index, part, finish_reason
        )

    def _around(self, what: dict, index: int, part: Part, finish_reason: str | None) -> dict[str, Any]:
        logprobs = None if self.asked.logprobs is None else self.logprobs(part.tokens)
        return {"index": index, **what, "logprobs": logprobs, "finish_reason": finish_reason}

    def first_chunks(self, index):
        delta = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def logprobs(self, tokens):
        n = self.asked.logprobs or 0
        content = [
            self.told(token.id, token.logprob) | {"top_logprobs": [self.told(*x) for x in first(token, n)]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def told(self, token: int, logprob: float | None) -> dict[str, Any]:
        raw = self.served.tokenizer.bytes_of(token)
        return {"token": self.name(token), "bytes": list(raw), "logprob": logprob}


def first(token: Token, n: int) -> list[tuple[int, float]]:
    return list(token.likeliest.items())[:n]
