"""Chat messages to a prompt: by the tokenizer's own template, or by a plain one if it has none."""

from typing import NoReturn

from jinja2.sandbox import ImmutableSandboxedEnvironment

from config.command_line import UserError
from tools.serving.errors import ApiError

NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}


def refuse(message: str) -> NoReturn:
    raise ValueError(message)


class Chat:
    """A Jinja template for transformers, or the plain one. The model's turn ends at a token of `ends`.

    `tokens` are the texts of special tokens by the names that templates use, such as bos_token. Raises
    UserError for a broken template.
    """

    def __init__(
        self, template: str | None = None, tokens: dict[str, str] | None = None, ends: tuple[int, ...] = ()
    ):
        self.tokens, self.ends = tokens or {}, ends
        self.stops = [] if template else ["\nUser:"]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)  # as transformers
        try:
            self.template = None if template is None else environment.from_string(template)
        except Exception as error:  # also of the constants, which are computed here
            raise UserError(f"the model's chat template cannot be compiled: {error}") from None

    def prompt(self, messages: list[dict[str, str]]) -> str:
        """Return the text to continue. Raises ApiError when the template refuses."""
        if self.template is None:
            turns = [f"{NAMES[message['role']]}: {message['content']}" for message in messages]
            return "\n\n".join([*turns, "Assistant:"])
        try:
            return self.template.render(
                messages=messages, add_generation_prompt=True, raise_exception=refuse, **self.tokens
            )
        except Exception as error:  # whatever it raises for messages that it does not take
            raise ApiError(f"the model's chat template refuses these messages: {error}", "messages") from None
