"""Chat messages to a prompt: by the tokenizer's own template, or by a plain one if it has none.

The plain one writes "System: ", "User: " or "Assistant: " before each message, and ends in "Assistant:". The
model's turn ends where it writes "User:".
"""

import json
import subprocess
import sys
import threading
from contextlib import suppress

from config.command_line import UserError
from tools.serving import render
from tools.serving.errors import ApiError

SECONDS = 5.0  # for a template, and for the start of its process
NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}


class Chat:
    """Makes a prompt of messages, by a Jinja template for transformers; None: the plain one.

    `tokens` are the texts of special tokens by the names that templates use, such as bos_token. The model's
    turn ends at the tokens `ends` and the texts `stops`. Raises UserError for a broken template.
    """

    def __init__(
        self, template: str | None = None, tokens: dict[str, str] | None = None, ends: tuple[int, ...] = ()
    ):
        self.template, self.tokens, self.ends = template, tokens or {}, ends
        self.stops = [] if template else ["\nUser:"]
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        if template is not None:
            with suppress(ValueError):  # it may refuse this message
                self.render([{"role": "user", "content": "Hello"}])

    def prompt(self, messages: list[dict[str, str]]) -> str:
        """Return the text to continue. Raises ApiError when the template refuses."""
        if self.template is None:
            turns = [f"{NAMES[message['role']]}: {message['content']}" for message in messages]
            return "\n\n".join([*turns, "Assistant:"])
        try:
            return self.render(messages)
        except (UserError, ValueError) as error:
            message = f"the model's chat template does not take these messages: {error}"
            raise ApiError(message, "messages") from None

    def render(self, messages: list[dict[str, str]]) -> str:
        """Render the template in another process. Raises ValueError if it refuses, else UserError."""
        variables = {"messages": messages, "add_generation_prompt": True, **self.tokens}
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self.process = start_renderer()
            process = self.process
            assert process.stdin and process.stdout
            clock = threading.Timer(SECONDS, process.kill)
            clock.start()
            process.stdin.write(json.dumps([self.template, variables]) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            clock.cancel()
            if not line:
                process.wait()
        answer = json.loads(line) if line else {"broken": f"it computes for more than {SECONDS:g} s"}
        if "broken" in answer:
            raise UserError(answer["broken"])
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer["text"]


def start_renderer() -> subprocess.Popen[str]:
    """Start render.py, in a session of its own, so that Ctrl-C does not reach it."""
    return subprocess.Popen(
        [sys.executable, "-P", render.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
