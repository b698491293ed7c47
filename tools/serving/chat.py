"""Chat messages to a prompt: by the tokenizer's own template, or by a plain one if it has none."""

from collections.abc import Callable
from typing import Any

import tokenizers
from jinja2 import TemplateSyntaxError

from config.files import first_line
from data.pretrained import transformers
from tools.serving.errors import ApiError

Messages = list[dict[str, str]]


class Chat:
    """The chat template of a tokenizer's description, or the plain one, at whose `stops` an answer ends."""

    def __init__(self, description: dict[str, Any]):
        uses = description.get("uses", {})
        self.own = template_of(uses) if uses.get("chat_template") else None
        self.stops = [] if self.own else ["\nUser:"]
        self.broken = None if self.own is None else why_unusable(self.own)

    def prompt(self, messages: Messages) -> str:
        """Return the text to continue. Raises ApiError when the template refuses, or cannot be used."""
        if self.own is None:
            turns = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
            return "\n\n".join([*turns, "Assistant:"])
        if self.broken:
            raise ApiError(f"{self.broken}: ask for completions instead", "messages")
        try:
            return self.own(messages)
        except Exception as error:  # whatever it raises for messages that it does not take
            raise ApiError(f"the model's chat template refuses these messages: {error}", "messages") from None


def template_of(uses: dict[str, Any]) -> Callable[[Messages], str]:
    """Return the function that renders a template as transformers does, in a sandbox."""
    theirs = transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()),  # the text needs no vocabulary
        chat_template=uses["chat_template"],
        **uses["special_tokens"],
    )
    return lambda messages: theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def why_unusable(template: Callable[[Messages], str]) -> str | None:
    """Say why a template compiles for no messages; None if it does."""
    try:
        template([{"role": "user", "content": "hi"}])
    except (TemplateSyntaxError, RecursionError) as error:
        return f"the model's chat template cannot be compiled ({first_line(error)})"
    except Exception:  # it may refuse these messages and take others
        return None
