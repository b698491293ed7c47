"""Chat messages to a prompt: by the tokenizer's own template if it brings one, else by a plain one.

The plain one, for models that were trained on text alone:

    System: <text>

    User: <text>

    Assistant: <text>

    Assistant:

with the model's turn at the end; it ends where the model writes a turn of the user's.
"""

from typing import Any, NoReturn

from serving.errors import ApiError

NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}


class Chat:
    """Makes a prompt of messages. `template` is Jinja's, as transformers has it; None: the plain one.

    `tokens` are the texts of special tokens, by the names that templates have for them, such as bos_token. A
    turn of the model's ends at one of the tokens `ends`, or at one of the texts `stops`.
    """

    def __init__(
        self, template: str | None = None, tokens: dict[str, str] | None = None, ends: tuple[int, ...] = ()
    ):
        self.tokens, self.ends = tokens or {}, ends
        self.stops = [] if template else ["\nUser:"]
        self.template = None if template is None else compile_template(template)

    def prompt(self, messages: list[dict[str, str]]) -> str:
        """Return the text that the model is to continue. Raises ApiError when the template refuses."""
        if self.template is None:
            turns = [f"{NAMES[message['role']]}: {message['content']}" for message in messages]
            return "\n\n".join([*turns, "Assistant:"])
        try:
            settings = {"add_generation_prompt": True, "raise_exception": refuse}
            return self.template.render(messages=messages, **settings, **self.tokens)
        except Exception as error:  # whatever somebody's template raises for messages that it does not take
            raise ApiError(
                f"the model's chat template does not take these messages: {error}", "messages"
            ) from None


def compile_template(template: str) -> Any:
    """Compile a template as transformers does, in Jinja's sandbox: it is somebody else's program."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # here, because only some tokenizers bring one

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template)


def refuse(message: str) -> NoReturn:
    """Do what a template wants when it calls `raise_exception`."""
    raise ValueError(message)
