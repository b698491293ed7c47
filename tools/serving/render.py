"""Render chat templates, which are somebody else's programs, in a process with limits of time and memory.

    python -P tools/serving/render.py

reads a line of JSON for each, [template, variables], and answers with a line: {"text": ...},
{"refused": reason} or {"broken": reason}.

A template that computes for longer ends the process: whoever started it finds the end of its output.
"""

import json
import resource
import signal
import sys
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 1  # of CPU time
MEMORY = 2**29  # bytes
LONGEST = 2**24  # bytes of a prompt


@cache
def compile_template(template: str) -> Template:
    """Compile a template as transformers does."""
    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template)


def render(template: str, variables: dict[str, Any]) -> dict[str, str]:
    try:
        program = compile_template(template)
    except Exception as error:  # not only TemplateSyntaxError: constants are computed here
        return {"broken": f"it cannot be compiled ({error})"}
    try:
        text = program.render(raise_exception=refuse, **variables)
        size = len(text.encode())
    except MemoryError:
        return {"broken": f"it takes more than {MEMORY >> 20} MiB"}
    except Exception as error:  # whatever it raises for messages that it does not take
        return {"refused": str(error)}
    return {"text": text} if size <= LONGEST else {"broken": f"it makes a prompt of {size} bytes"}


def refuse(message: str) -> NoReturn:
    """Do what a template wants when it calls `raise_exception`."""
    raise ValueError(message)


def main() -> None:
    with suppress(ValueError):  # where a system knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
        answer = json.dumps(render(*json.loads(line)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
