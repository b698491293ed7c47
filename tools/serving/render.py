"""Render chat templates, which are somebody else's programs, in a process with little memory.

It reads lines of JSON, [template, variables], and answers each with a line: {"text": ...},
{"refused": reason} or {"broken": reason}. Its parent kills it when a template takes too long.
"""

import json
import sys
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 2**29  # bytes
LONGEST = 2**24  # bytes of a prompt


@cache
def compile_template(template: str) -> Template:
    """Compile as transformers does."""
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
    """The `raise_exception` of templates."""
    raise ValueError(message)


if __name__ == "__main__":
    with suppress(ImportError, ValueError):  # Windows and macOS know no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        print(json.dumps(render(*json.loads(line))), flush=True)
