"""The page's modules: their types and their logic, if Node.js and TypeScript are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.serving.server import PAGE

TYPES = "--allowJs --checkJs --strict false --noEmit --target esnext --module esnext".split()
TYPES += ["--moduleResolution", "bundler"]
# These flags find what a linter would.
LINT = "--noUnusedLocals --noUnusedParameters --noImplicitReturns --noFallthroughCasesInSwitch".split()
LINT += "--allowUnreachableCode false --allowUnusedLabels false".split()
LOGIC = Path(__file__).parent / "page" / "logic.test.mjs"


@pytest.mark.parametrize(
    "words",
    [["tsc", *TYPES, *LINT, *sorted(PAGE.glob("*.js"))], ["node", "--test", LOGIC]],
    ids=["types", "logic"],
)
def test_the_modules(words):
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
