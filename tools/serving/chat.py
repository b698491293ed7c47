"""Chat messages to a prompt: by the tokenizer's own template, or by a plain one if it brings none.

The plain one, for models that were trained on text alone, has "System: ", "User: " or "Assistant: " before
each message and an empty line between two. It ends in "Assistant:", the model's turn, which ends where the
model writes a turn of the user's.
"""

import json
import subprocess
import sys
import threading
from contextlib import suppress

from config.command_line import UserError
from tools.serving import render
from tools.serving.errors import ApiError

SECONDS = 5.0  # that a template may take, and at first the start of its process
NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}


class Chat:
    """Makes a prompt of messages. `template` is Jinja's, as transformers has it; None: the plain one.

    `tokens` are the texts of special tokens by the names that templates have for them, such as bos_token. The
    model's turn ends at one of the tokens `ends` or one of the texts `stops`. Raises UserError for a template
    that cannot be compiled, or that breaks a limit with a short message.
    """

    def __init__(
        self, template: str | None = None, tokens: dict[str, str] | None = None, ends: tuple[int, ...] = ()
    ):
        self.template, self.tokens, self.ends = template, tokens or {}, ends
        self.stops = [] if template else ["\nUser:"]
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        if template is not None:
            with suppress(ValueError):  # it may not take this message
                self.render([{"role": "user", "content": "Hello"}])

    def prompt(self, messages: list[dict[str, str]]) -> str:
        """Return the text that the model is to continue. Raises ApiError when the template refuses."""
        if self.template is None:
            turns = [f"{NAMES[message['role']]}: {message['content']}" for message in messages]
            return "\n\n".join([*turns, "Assistant:"])
        try:
            return self.render(messages)
        except (UserError, ValueError) as error:
            message = f"the model's chat template does not take these messages: {error}"
            raise ApiError(message, "messages") from None

    def render(self, messages: list[dict[str, str]]) -> str:
        """Render the template in another process, for one thread at a time.

        Raises ValueError when the template refuses, and UserError when it is broken or breaks a limit.
        """
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
    """Start render.py, in a session of its own: the end of its input ends it, and Ctrl-C does not."""
    return subprocess.Popen(
        [sys.executable, "-P", render.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
