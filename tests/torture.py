"""Kill and damage a run, at random, and compare it with a run that nothing disturbed.

    python -m tests.torture --kills=50 --flips=200 --seconds=400

A tiny run is killed, stopped and interrupted while it starts, steps, evaluates, saves and resumes. Bits of
its checkpoints are flipped and files cut short. Every weight, every loss and every line on stderr is checked.
It prints what was tried and what was found, and exits with 1 if anything was wrong.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import numpy as np

from common.command_line import Count, NonNegativeInt, Positive, take_options
from common.errors import UserError, command
from runs.checkpoint import Checkpoints, Damaged
from tests.helpers import OLD_LOOPS, ROOT, losses, named_arrays, saved_state, write_tiny_data
from training.state import create_state, model_config

MAX_ITERS = 2000  # some seconds of steps, about as long as a start
SIGNALS = {signal.SIGKILL: (-9,), signal.SIGTERM: (143, -15), signal.SIGINT: (130, -2)}  # their statuses
OPTIONS = {
    **{"device": "cpu", "mesh": "data:1", "n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 8},
    **{"batch_size": 4, "gradient_accumulation_steps": 1, "dropout": 0.1, "warmup_iters": 2},
    **{"max_iters": MAX_ITERS, "lr_decay_iters": MAX_ITERS, "eval_interval": 100, "eval_iters": 2},
    **{"keep_checkpoints": 3, "init_from": "auto"},
}
# XLA compiles so small a model several times faster like this, and the arithmetic is the same.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": OLD_LOOPS}


@dataclass(frozen=True)
class TortureOptions:
    kills: Count = 50  # signals to the run
    flips: Count = 200  # flipped bits of a checkpoint
    seconds: Positive = 400.0  # after which no more signals are sent
    seed: NonNegativeInt = 0


class Torture:
    """The folders of the runs, what was tried, and what went wrong."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.draw = folder, np.random.default_rng(seed)
        self.tried, self.faults = Counter(), []
        write_tiny_data(folder / "data")
        begun = time.monotonic()
        self.finish("an undisturbed run", self.start("reference"))
        self.whole_time = time.monotonic() - begun
        self.state = saved_state(folder / "reference")
        self.losses = losses(folder / "reference")

    def start(self, out: str) -> subprocess.Popen:
        """Start or resume the run in the folder `out`."""
        options = OPTIONS | {"out_dir": self.folder / out, "dataset": self.folder / "data"}
        words = [sys.executable, "train.py", *(f"--{name}={value}" for name, value in options.items())]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, cwd=ROOT, env=os.environ | QUICK, stdout=pipe, stderr=pipe, text=True)

    def finish(self, what: str, run: subprocess.Popen, statuses: tuple[int, ...] = (0,)) -> str:
        """Wait for the end of a run and return its stderr. Another status or an error is a fault."""
        errors = run.communicate(timeout=300)[1]
        if run.returncode not in statuses or "Traceback" in errors or "error: " in errors:
            self.faults.append(f"{what}: status {run.returncode}, {errors[-1500:]}")
        return errors

    def compare(self, what: str, out: str) -> None:
        """Note a finished run that is not, to the bit, the undisturbed one, and delete it."""
        state = saved_state(self.folder / out)
        wrong = [name for name, x in self.state.items() if state[name].tobytes() != x.tobytes()]
        if wrong or losses(self.folder / out) != self.losses:
            self.faults.append(f"{what}: another run: {wrong or 'its losses'}")
        self.tried["runs compared with the undisturbed one"] += 1
        shutil.rmtree(self.folder / out)

    def kill(self) -> int:
        """Send a signal at a random moment; a run that ends before is compared. Return the signals sent."""
        run = self.start("killed")
        number = list(SIGNALS)[int(self.draw.integers(len(SIGNALS)))]
        try:
            run.wait(timeout=self.draw.uniform(0, 1.1 * self.whole_time))
        except subprocess.TimeoutExpired:
            run.send_signal(number)
            self.tried[number.name] += 1
        self.finish(number.name, run, (0, *SIGNALS[number]))
        if run.returncode == 0:
            self.compare("after kills", "killed")
        return sum(self.tried[number.name] for number in SIGNALS)

    def damage(self, flip: bool) -> None:
        """Flip a bit of the reference's newest checkpoint or cut a file, restore it, and undo that."""
        checkpoints = Checkpoints(str(self.folder / "reference"))
        newest = checkpoints.folder / str(checkpoints.latest())
        files = [path for part in ("model", "optimizer") for path in (newest / part).rglob("*")]
        files = [path for path in files if path.is_file()]
        sizes = np.array([path.stat().st_size for path in files], float)
        path = files[self.draw.choice(len(files), p=sizes / sizes.sum())]
        whole = path.read_bytes()
        place = int(self.draw.integers(len(whole)))
        flipped = whole[place] ^ 1 << int(self.draw.integers(8))
        path.write_bytes(whole[:place] + (bytes([flipped]) + whole[place + 1 :] if flip else b""))
        what = "a flipped bit" if flip else "a truncated file"
        saved = checkpoints.manifest(MAX_ITERS)
        config = model_config(saved.options, saved.vocab_size)
        shapes = eqx.filter_eval_shape(create_state, config, saved.options)
        try:
            state = named_arrays(checkpoints.restore(MAX_ITERS, shapes))
            self.tried[f"{what}, in bytes that nothing reads"] += 1
            if any(state[name].tobytes() != x.tobytes() for name, x in self.state.items()):
                self.faults.append(f"{what} of {path}: was not noticed")
        except Damaged:
            self.tried[f"{what}, found"] += 1
        except Exception as error:
            self.faults.append(f"{what} of {path}: {type(error).__name__}: {error}")
        path.write_bytes(whole)


def main(argv: list[str]) -> int:
    values, rest = take_options(argv, TortureOptions)
    options = TortureOptions(**values)
    if rest:
        raise UserError(f"{rest[0]}: expected --kills, --flips, --seconds or --seed")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        torture = Torture(Path(folder), options.seed)
        for i in range(options.flips):
            torture.damage(flip=i % 10 > 0)
        while torture.kill() < options.kills and time.monotonic() < begun + options.seconds:
            pass
        if (Path(folder) / "killed").exists():
            torture.finish("the last resume", torture.start("killed"))
            torture.compare("after kills", "killed")
    for what, count in sorted(torture.tried.items()):
        print(f"{count:5} {what}")
    for fault in torture.faults:
        print(f"FAULT: {fault}")
    print(f"{time.monotonic() - begun:.0f} s, seed {options.seed}: {len(torture.faults)} faults")
    return int(bool(torture.faults))


if __name__ == "__main__":
    command(main)
