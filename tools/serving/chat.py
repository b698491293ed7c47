"""Chat messages to a prompt: by the tokenizer's own template, or by a plain one if it has none."""

from collections.abc import Callable
from typing import Any

import tokenizers

from config.files import first_line
from tools.serving.server import ApiError

Messages = list[dict[str, str]]


class Chat:
    """The chat template of a tokenizer's description, or the plain one, at whose `stops` an answer ends."""

    def __init__(self, description: dict[str, Any]):
        uses = description.get("uses", {})
        template = uses.get("chat_template")
        self.own = template_of(uses) if template else None
        self.stops = [] if template else ["\nUser:"]
        self.broken = why_unusable(template) if template else None

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
    import transformers  # here, because it takes over a second

    theirs: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()),  # the text needs no vocabulary
        chat_template=uses["chat_template"],
        **uses["special_tokens"],
    )
    return lambda messages: theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def why_unusable(template: str) -> str | None:
    """Say why a template does not compile; None if it does. To render one may take for ever."""
    from transformers.utils.chat_template_utils import _compile_jinja_template  # the public one also renders

    try:
        _compile_jinja_template(template)
        return None
    except Exception as error:  # also of its constants, which are computed here
        return f"the model's chat template cannot be compiled ({first_line(error)})"
