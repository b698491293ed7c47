"""The page's modules: their types and their logic, if Node.js and TypeScript are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.serving.app import PAGE

TYPES = "--allowJs --checkJs --strict false --noEmit --target esnext --module esnext".split()
TYPES += ["--moduleResolution", "bundler"]
# These flags find what a linter would.
LINT = "--noUnusedLocals --noUnusedParameters --noImplicitReturns --noFallthroughCasesInSwitch".split()
LINT += "--allowUnreachableCode false --allowUnusedLabels false".split()


def run(program: str, *words) -> None:
    """Run a program, which has to succeed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_types_agree_and_nothing_is_left_over():
    run("tsc", *TYPES, *LINT, *sorted(PAGE.glob("*.js")))


def test_the_logic():
    run("node", "--test", Path(__file__).parent / "page" / "logic.test.mjs")


def test_it_is_small():
    lines = {path.name: len(path.read_text().splitlines()) for path in PAGE.glob("*.js")}
    in_a_file = sum(lines.pop(name) for name in ("model.js", "tokenizer.js", "offline.js"))
    assert sum(lines.values()) <= 2070 and in_a_file <= 560


def test_a_line_fits_the_screen():
    long = [
        f"{path.name}:{i}"
        for path in PAGE.glob("*.js")
        for i, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 120
    ]
    assert long == []
