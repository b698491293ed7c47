"""Bad invocations by rule: each ends with status 2 and one line, soon, and changes nothing on disk.

They are made from the types of the options. Damaged files: tests/damage.py.
"""

import contextlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest

import evaluate
import export
import sample
import train
from common.command_line import option_types
from config.options import Options
from runs.checkpoint import Manifest
from tests.damage import DEEP
from tests.helpers import contents, refusal, save_run, slowly, write_tiny_data
from training.state import create_state, model_config

SOON = 20  # seconds
COMMANDS = {
    train: Options,
    sample: sample.SampleOptions,
    evaluate: evaluate.EvaluateOptions,
    export: export.ExportOptions,
}
NOT_NUMBERS = ("abc", "True", "nan", "inf", "1e400", "[1]", "{}", "'1'", "", "9" * 20_000, "[" * DEEP, "1 2")
BAD = {  # no value of the type, wherever the option stands
    int: (*NOT_NUMBERS, "1.5", "1e300"),
    float: NOT_NUMBERS,
    bool: ("maybe", "2", "1.0", "[]", "x" * 20_000, ""),
}
STRAY = ("3", "-x", "=", "--", "train", "there is no such.py", "\0.py", "a" * 5000, "/dev/null")
NOWHERE = ("", "nowhere", "/dev/null", "/dev/null/x", "a\0b", "x" * 5000, "../../../../etc")
Invocation = tuple[ModuleType, list[str]]  # a command and its words


def make_folders(folder: Path) -> None:
    """Write data/, and a run of a tiny model in run/."""
    tokenizer = write_tiny_data(folder / "data")
    V = tokenizer.vocab_size
    options = replace(Options(), n_layer=1, n_head=1, n_embd=16, block_size=8, batch_size=2, warmup_iters=0)
    options = replace(options, dataset=str(folder / "data"), out_dir=str(folder / "run"), device="cpu")
    state = create_state(model_config(options, V), options)
    save_run(folder / "run", state, Manifest(options, V, tokenizer.description))
    (folder / "run" / "options.json").write_text(json.dumps(vars(options)))


def rules(folder: Path, draw: np.random.Generator) -> list[Callable[[], Invocation]]:
    """Return functions that each draw an invocation of one kind."""
    run = folder / "run"

    def one_of(values) -> Any:
        return list(values)[int(draw.integers(len(values)))]

    def good(module: ModuleType) -> list[str]:
        """Return words with which the command would work."""
        more = {train: ["--init_from=resume", "--mesh=data:1"], export: [f"--to={folder / 'exported'}"]}
        device = [] if module is export else ["--device=cpu"]
        return [f"--out_dir={run}", *device, *more.get(module, [])]

    def wrong_type() -> Invocation:
        module = one_of(COMMANDS)
        name, values = one_of(bad_values(COMMANDS[module]).items())
        return module, [*good(module), f"--{name}={one_of(values)}"]

    def misspelt() -> Invocation:
        module = one_of(COMMANDS)
        name = one_of(fields(COMMANDS[module])).name
        place = int(draw.integers(len(name)))
        return module, [*good(module), f"--{name[:place]}{one_of('qxj#')}{name[place:]}=1"]

    def stray_word() -> Invocation:
        module = one_of(COMMANDS)
        return module, [*good(module), one_of(STRAY)]

    def elsewhere() -> Invocation:
        module = one_of([train, sample, evaluate])
        name = one_of(["init_from", "dataset" if module is train else "out_dir"])
        words = [f"--out_dir={folder / 'new'}"] if (module, name) == (train, "init_from") else good(module)
        return module, [*words, f"--{name}={one_of(NOWHERE)}"]

    return [wrong_type, wrong_type, wrong_type, misspelt, stray_word, elsewhere]


def bad_values(cls: type) -> dict[str, tuple[str, ...]]:
    """Return values that no option of `cls` may have, by the option's name, from its type alone."""
    found = {}
    for name, kind in option_types(cls, limits=False).items():
        base = next((base for base in BAD if base in (kind, *get_args(kind))), None)
        if base or get_origin(kind) is Literal:
            found[name] = BAD.get(base, NOT_NUMBERS)
    return found


@pytest.mark.parametrize("count", [200, *slowly(1000)])
def test_every_bad_invocation_is_one_line_with_status_2_and_changes_nothing(tmp_path, count):
    make_folders(tmp_path)
    before = contents(tmp_path)
    kinds = rules(tmp_path, np.random.default_rng(0))
    for i in range(count):
        module, words = kinds[i % len(kinds)]()
        begun = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            line = refusal(module.main, words)
        assert len(line) <= 1100 and time.monotonic() - begun < SOON, words
        assert contents(tmp_path) == before, words
