"""Another version of the code at work, in a process of its own that waits while it is not its turn."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from common.errors import UserError


class OtherCode:
    """The training step of the code in a folder, with train.py's words: a variant for `take_turns`."""

    def __init__(self, name: str, folder: Path, words: list[str], environment: dict[str, str]):
        self.name, self.words = name, words
        # Else the first process would take most of a GPU's memory.
        variables = environment | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        program = [sys.executable, str(Path(__file__).with_name("child.py")), str(folder), *words]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(program, env=variables, **pipes)

    def run(self, n: int) -> float:
        """Measure seconds per step over n steps. Raises UserError."""
        return self.ask(n)

    def options(self, lines: list[list[str]]) -> list[dict[str, Any]]:
        """Return the options that each line of words sets, other than the defaults. Raises UserError."""
        return self.ask(lines)

    def check(self) -> str:
        """Return a mark of the weights after three steps. Raises UserError if the loss is not comparable."""
        found = self.ask("check")
        if not found["right"]:
            why = "its model.loss is not the cross entropy of its logits, which others are judged by"
            raise UserError(f"{self.name}: {why}: change what is trained, and leave what is evaluated")
        return found["mark"]

    def ask(self, request: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, ValueError):
            self.close()
            if self.process.returncode == 2:  # it has said why, in a line
                sys.exit(2)
            raise UserError(f"{self.name}: its code does not do this; the reason stands above") from None

    def close(self) -> None:
        self.process.communicate()


def check_losses(steps: list[OtherCode]) -> None:
    """Check each version's loss, and say whose steps, with the same words, are those of the first version."""
    marks = [step.check() for step in steps]
    for step, mark in zip(steps[1:], marks[1:], strict=True):
        if (step.words, mark) == (steps[0].words, marks[0]):
            print(f"{step.name}: three steps change nothing: does fast.py override it?", file=sys.stderr)
