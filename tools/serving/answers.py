"""OpenAI's answers: the objects of a completion and of a chat, complete or in chunks."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from tools.serving.requests import Asked
from tools.serving.served import Served
from tools.serving.text import Part, Token, spelling


@dataclass
class Answer:
    """The answer to a request for completions. Subclasses are those of other routes."""

    served: Served
    asked: Asked
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    kinds = ("text_completion", "text_completion")  # of the complete object, and of a chunk
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

    def choice(self, index: int, part: Part, reason: str | None, chunk: bool = False) -> dict[str, Any]:
        logprobs = None if self.asked.logprobs is None else self.logprobs(part.tokens, self.asked.logprobs)
        return {"index": index, **self.content(part, chunk), "logprobs": logprobs, "finish_reason": reason}

    def content(self, part: Part, chunk: bool) -> dict[str, Any]:
        return {"text": part.text}

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Return the chunks of a choice that are sent before its text."""
        return []

    def logprobs(self, tokens: list[Token], n: int) -> dict[str, Any]:
        """Return tokens and their n likeliest alternatives. The prompt's first token has no probability."""
        return {
            "tokens": [self.name(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self.top(token, n) for token in tokens] if n else None,
            "text_offset": [token.start for token in tokens],
        }

    def top(self, token: Token, n: int) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        return {self.name(i): p for i, p in [*token.likeliest[:n], (token.id, token.logprob)]}

    def name(self, token: int) -> str:
        return spelling(self.served.tokenizer, token)


class ChatAnswer(Answer):
    kinds = ("chat.completion", "chat.completion.chunk")
    prefix = "chatcmpl"

    def content(self, part, chunk):
        if chunk:
            return {"delta": {"content": part.text} if part.text else {}}
        return {"message": {"role": "assistant", "content": part.text, "refusal": None}}

    def opening(self, index):
        delta = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def logprobs(self, tokens, n):
        content = [
            self.described(token.id, token.logprob)
            | {"top_logprobs": [self.described(*other) for other in token.likeliest[:n]]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def described(self, token: int, logprob: float | None) -> dict[str, Any]:
        raw = list(self.served.tokenizer.bytes_of(token))
        return {"token": self.name(token), "bytes": raw, "logprob": logprob}


class IdsAnswer(Answer):
    """A completion whose choices are tokens with their ids, so that the page can go on from any of them."""

    def choice(self, index, part, reason, chunk=False):
        begin = part.tokens[0].start if part.tokens else 0
        pieces = [
            {"id": x.id, "text": part.text[x.start - begin : x.end - begin], "logprob": x.logprob}
            for x in part.tokens
        ]
        return {"index": index, "tokens": pieces, "finish_reason": reason}
