"""Chat messages to a prompt: by the tokenizer's own template if it brings one, else by a plain one.

The plain one, for models that were trained on text alone:

    System: <text>

    User: <text>

    Assistant: <text>

    Assistant:

with the model's turn at the end; it ends where the model writes a turn of the user's.
"""

import json
import subprocess
import sys
import threading
from contextlib import suppress

from config.command_line import UserError
from tools.serving import render
from tools.serving.errors import ApiError

NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}


class Chat:
    """Makes a prompt of messages. `template` is Jinja's, as transformers has it; None: the plain one.

    `tokens` are the texts of special tokens, by the names that templates have for them, such as bos_token. A
    turn of the model's ends at one of the tokens `ends`, or at one of the texts `stops`. Raises UserError for
    a template that cannot be compiled, or that breaks a limit of render.py with a short message.
    """

    def __init__(
        self, template: str | None = None, tokens: dict[str, str] | None = None, ends: tuple[int, ...] = ()
    ):
        self.template, self.tokens, self.ends = template, tokens or {}, ends
        self.stops = [] if template else ["\nUser:"]
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        if template is not None:
            with suppress(ValueError):  # it may not take this one
                self.render([{"role": "user", "content": "Hello"}])

    def prompt(self, messages: list[dict[str, str]]) -> str:
        """Return the text that the model is to continue. Raises ApiError when the template refuses."""
        if self.template is None:
            turns = [f"{NAMES[message['role']]}: {message['content']}" for message in messages]
            return "\n\n".join([*turns, "Assistant:"])
        try:
            return self.render(messages)
        except (UserError, ValueError) as error:
            raise ApiError(
                f"the model's chat template does not take these messages: {error}", "messages"
            ) from None

    def render(self, messages: list[dict[str, str]]) -> str:
        """Render the template in another process, once that has done the messages of other threads.

        Raises ValueError when the template refuses, and UserError when it is broken or breaks a limit.
        """
        variables = {"messages": messages, "add_generation_prompt": True, **self.tokens}
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self.process = start_renderer()
            process = self.process
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps([self.template, variables]) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                process.wait()
        answer = json.loads(line) if line else {"broken": f"it computes for more than {render.SECONDS} s"}
        if "broken" in answer:
            raise UserError(answer["broken"])
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer["text"]


def start_renderer() -> subprocess.Popen[str]:
    """Start render.py, in a session of its own: the end of its input ends it, and Ctrl-C does not."""
    return subprocess.Popen(
        [sys.executable, "-P", render.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
