"""The state and the limits that all routes share."""

import time
from dataclasses import dataclass, field

from data.tokenizer import Tokenizer
from model import GPT
from tools.serving.chat import Chat
from tools.serving.run import Run
from tools.serving.worker import Worker


@dataclass
class Served:
    """The model, its worker and its run, as routes find them in `app.state.served`."""

    name: str  # of the model, in the API
    tokenizer: Tokenizer
    vocab_size: int  # tokens that the model and the tokenizer both know
    eot: int | None  # the token that ends a text
    chat: Chat
    worker: Worker
    run: Run | None  # the model's, if it comes from one
    api_key: str | None = field(repr=False)
    hosts: frozenset[str]  # names, beside localhost, by which clients may call the server; "*": any
    max_body: int  # bytes of a request
    max_prompt: int  # tokens
    max_tokens: int  # new ones
    overflow: str  # past block_size: window, or error
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model(self) -> GPT:
        return self.worker.model

    @property
    def version(self) -> str:
        """The name of the weights."""
        return self.worker.version

    @property
    def block_size(self) -> int:
        return self.model.config.block_size
