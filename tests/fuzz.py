"""Bad invocations by rule: each ends with status 2 and one line, soon, and changes nothing on disk.

    python -m tests.fuzz --count=500 --seed=0

They are made from the types of the options, from sizes, from config files that fail, and from folders whose
JSON is damaged. The commands run in this process as `python <command>` would run them.
"""

import argparse
import contextlib
import io
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import numpy as np

import evaluate
import export
import sample
import train
from config.command_line import command, option_types
from config.options import Options
from data.tokenizer import CharTokenizer
from data.writer import write_dataset
from runs.manifest import Manifest
from tests.damage import DEEP, damaged
from tests.helpers import contents, error_line, save_run
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
    Literal: ("nonsense", "7", "[]", "", "x" * 20_000),
}
CONFIGS = {
    "raises": "raise RuntimeError('a\\nb')",
    "exits": "exit(3)",
    "interrupts": "raise KeyboardInterrupt",
    "an exception of its own": "class Mine(BaseException):\n  def __str__(self): return 1 / 0\nraise Mine",
    "recurses": "def f(): f()\nf()",
    "no Python": "max_iters = = 3",
    "null bytes": "max_iters = 3\0",
    "an unknown name": "max_iter = 3",
    "a wrong type": "max_iters = 'three'",
    "imports what is not there": "import nothing_of_that_name",
}
TOO_LARGE = {
    train: ("n_embd=1e9", "vocab_size=2e9", "batch_size=2e9", "n_layer=2e9"),
    sample: ("num_samples=2e9", "num_samples=1e12"),
    evaluate: ("batch_size=2e9", "batch_size=1e12"),
}
STRAY = ("3", "-x", "=", "--", "train", "there is no such.py", "\0.py", "a" * 5000, "/dev/null")
NOWHERE = ("", "nowhere", "/dev/null", "/dev/null/x", "a\0b", "x" * 5000, "../../../../etc")


class Invocation(NamedTuple):
    """A command and its words; `damage` is done to a file before and undone after."""

    command: ModuleType
    words: list[str]
    damage: tuple[Path, bytes] | None = None

    def __str__(self) -> str:
        words = " ".join(word if len(word) < 60 else f"{word[:60]}..." for word in self.words)
        damage = f"   where {self.damage[0]} holds {self.damage[1][:40]!r}" if self.damage else ""
        return f"{self.command.__name__}.py {words}{damage}"


def make_folders(folder: Path) -> None:
    """Write data/, a run of a tiny model in run/, and config files that fail in configs/."""
    text = "to be or not to be, that is the question.\n" * 40
    tokenizer = CharTokenizer("".join(sorted(set(text))))
    ids = tokenizer.encode(text)
    write_dataset(folder / "data", ids[:1200], ids[1200:], tokenizer, "a test")
    V = tokenizer.vocab_size
    options = replace(Options(), n_layer=1, n_head=1, n_embd=16, block_size=8, batch_size=2, warmup_iters=0)
    options = replace(options, dataset=str(folder / "data"), out_dir=str(folder / "run"), device="cpu")
    (folder / "run").mkdir()
    (folder / "run" / "options.json").write_text(json.dumps(options.to_json()))
    state = create_state(model_config(options, V), options)
    save_run(folder / "run", state, Manifest(options, V, tokenizer.to_json(), None))
    (folder / "configs").mkdir()
    for name, source in CONFIGS.items():
        (folder / "configs" / f"{name.replace(' ', '_')}.py").write_text(source)


def rules(folder: Path, draw: np.random.Generator) -> list[Callable[[], Invocation]]:
    """Return functions that each draw an invocation of one kind."""
    data, run = folder / "data", folder / "run"

    def one_of(values) -> Any:
        return list(values)[int(draw.integers(len(values)))]

    def good(module: ModuleType) -> list[str]:
        """Return words with which the command would work."""
        more = {train: ["--init_from=resume", "--mesh=data:1"], export: [f"--to={folder / 'exported'}"]}
        device = [] if module is export else ["--device=cpu"]
        return [f"--out_dir={run}", *device, *more.get(module, [])]

    def option() -> tuple[ModuleType, str]:
        module = one_of(COMMANDS)
        return module, one_of(fields(COMMANDS[module])).name

    def wrong_type() -> Invocation:
        module = one_of(COMMANDS)
        name, values = one_of(bad_values(COMMANDS[module]).items())
        return Invocation(module, [*good(module), f"--{name}={one_of(values)}"])

    def misspelt() -> Invocation:
        module, name = option()
        place = int(draw.integers(len(name)))
        return Invocation(module, [*good(module), f"--{name[:place]}{one_of('qxj#')}{name[place:]}=1"])

    def no_value() -> Invocation:
        module = one_of(COMMANDS)
        valued = [x.name for x in fields(COMMANDS[module]) if not isinstance(x.default, bool)]
        return Invocation(module, [*good(module), f"--{one_of(valued)}"])

    def stray_word() -> Invocation:
        module = one_of(COMMANDS)
        return Invocation(module, [*good(module), one_of(STRAY)])

    def config() -> Invocation:
        path = one_of(sorted((folder / "configs").glob("*.py")))
        return Invocation(one_of((train, sample, evaluate)), [str(path)])

    def too_large() -> Invocation:
        module = one_of(TOO_LARGE)
        words = good(module)
        if module is train:
            words = [f"--out_dir={folder / 'new'}", f"--dataset={data}", "--device=cpu", "--mesh=data:1"]
            words += ["--block_size=4096"]
        return Invocation(module, [*words, f"--{one_of(TOO_LARGE[module])}"])

    def elsewhere() -> Invocation:
        module = one_of([train, sample, evaluate])
        name = one_of(["init_from", "dataset" if module is train else "out_dir"])
        words = [f"--out_dir={folder / 'new'}"] if (module, name) == (train, "init_from") else good(module)
        return Invocation(module, [*words, f"--{name}={one_of(NOWHERE)}"])

    def damaged_file() -> Invocation:
        path, modules = one_of(
            [
                (data / "meta.json", (train, evaluate)),
                (run / "options.json", (train,)),
                (run / "checkpoints" / "0" / "manifest" / "metadata", (sample, evaluate, export)),
            ]
        )
        module, found = one_of(modules), damaged(path.read_text())
        spoilt = [content for what, content in found if " is " not in what and "out " not in what]
        return Invocation(module, good(module), (path, one_of(spoilt)))

    others = [misspelt, no_value, stray_word, config, too_large, elsewhere, damaged_file]
    return [wrong_type, wrong_type, wrong_type, *others]


def bad_values(cls: type) -> dict[str, tuple[str, ...]]:
    """Return values that no option of `cls` may have, by the option's name, from its type alone."""
    found = {}
    for name, kind in option_types(cls).items():
        if type(None) in get_args(kind):
            kind = get_args(kind)[0]
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        if (kind := get_origin(kind) or kind) in BAD:
            found[name] = BAD[kind]
    return found


def fault(invocation: Invocation, folder: Path) -> str | None:
    """Run an invocation and say what was wrong with its answer; None if nothing was."""
    if invocation.damage:
        path, content = invocation.damage
        whole = path.read_bytes()
        path.write_bytes(content)
    before = contents(folder)
    begun = time.monotonic()
    signal.alarm(3 * SOON)  # for one that would never end
    try:
        with contextlib.redirect_stderr(io.StringIO()) as stderr, contextlib.redirect_stdout(io.StringIO()):
            command(lambda argv: invocation.command.main(invocation.words))
        return "it was accepted"
    except SystemExit as ended:
        if ended.code != 2:
            return f"status {ended.code}"
        try:
            line = error_line(stderr.getvalue())
        except AssertionError:
            return f"not one line: {stderr.getvalue()[-2000:]}"
        if len(line) > 1100:
            return f"a line of {len(line)} characters"
    except BaseException as error:  # a traceback, as a user would see it
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.alarm(0)
        changed = contents(folder) != before
        if invocation.damage:
            path.write_bytes(whole)
    if changed:
        return "it changed something on disk"
    if (took := time.monotonic() - begun) > SOON:
        return f"it took {took:.0f} s"
    return None


def fuzz(folder: Path, count: int, seed: int = 0) -> list[str]:
    """Return a line for each of `count` invocations that was not answered as it should be."""
    make_folders(folder)
    kinds = rules(folder, np.random.default_rng(seed))
    faults = []
    for i in range(count):
        if what := fault(invocation := kinds[i % len(kinds)](), folder):
            faults.append(f"{invocation}: {what}")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    begun = time.monotonic()
    try:
        faults = fuzz(folder, arguments.count, arguments.seed)
    finally:
        shutil.rmtree(folder)
    print("\n".join(faults))
    took = time.monotonic() - begun
    print(f"{arguments.count} bad invocations in {took:.0f} s, {len(faults)} without the right answer")
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
