"""Chat messages to a prompt: by the tokenizer's own template, or by a plain one if it has none."""

from typing import Any

import numpy as np
from jaxtyping import Int32

from common.errors import UserError
from common.files import first_line
from data.conversations import Messages, begun, encode_chat
from data.tokenizer import Tokenizer
from tools.serving.server import ApiError


class Chat:
    """The chat template of a tokenizer's description, or the plain one, at whose `stops` an answer ends.

    A prompt begins with the token `start`, as what the model learned did; None: as the template says.
    """

    def __init__(self, description: dict[str, Any], start: int | None = None):
        uses = description.get("uses", {})
        self.template, self.names = uses.get("chat_template"), uses.get("special_tokens", {})
        self.start = start if self.template else None
        self.stops = [] if self.template else ["\nUser:"]
        self.broken = why_unusable(self.template) if self.template else None

    @property
    def lacks(self) -> str | None:
        """Say what a conversation lacks, and what to do; None if it lacks nothing."""
        if self.template is None:
            return (
                "this model has no chat template: train one on what data/prepare.py --chat=True makes of "
                "conversations, or have this one go on with a text in Write"
            )
        return self.broken and f"{self.broken}: ask for completions instead"

    def prompt(self, tokenizer: Tokenizer, messages: Messages) -> Int32[np.ndarray, " n"]:
        """Return the tokens to continue. Raises ApiError when the template refuses, or cannot be used."""
        if self.template is None:
            turns = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
            return tokenizer.encode("\n\n".join([*turns, "Assistant:"]), special=False)
        if self.lacks:
            raise ApiError(self.lacks, "messages")
        try:
            ids = encode_chat(tokenizer, self.template, self.names, messages, add_generation_prompt=True).ids
        except UserError as error:  # as for a character that is not in the vocabulary
            raise ApiError(str(error), "messages") from None
        except Exception as error:  # whatever it raises for messages that it does not take
            raise ApiError(f"the model's chat template refuses these messages: {error}", "messages") from None
        return ids if self.start is None else begun(ids, self.start)


def why_unusable(template: str) -> str | None:
    """Say why a template does not compile; None if it does. To render one may take for ever."""
    from transformers.utils.chat_template_utils import _compile_jinja_template  # the public one also renders

    try:
        _compile_jinja_template(template)
        return None
    except Exception as error:  # also of its constants, which are computed here
        return f"the model's chat template cannot be compiled ({first_line(error)})"
