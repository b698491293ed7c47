"""Do to a run, on purpose, all that can happen to one, and compare it with a run that nothing disturbed.

    python -m tests.torture --kills=50 --flips=200 --seconds=400

A tiny run is killed, stopped and interrupted at random moments: while it starts, steps, evaluates, saves and
resumes. Bits of its checkpoints, its options and its data are flipped, files of checkpoints are cut short,
its disk fills up, and a second run is started in its folder. Links, devices and FIFOs take the place of its
files, or these may not be read. Every weight, every loss and every line on stderr is looked at. It prints
what was tried and what was found, and exits with 1 if anything was wrong.
"""

import argparse
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import equinox as eqx
import numpy as np

import train
from config.command_line import UserError, command
from config.options import NOT_RESUMED, read_options
from data.batches import Batches
from data.token_files import Dataset
from data.tokenizer import CharTokenizer
from data.writer import write_dataset
from runs.checkpoint import Checkpoints
from runs.manifest import Damaged
from tests.helpers import OLD_LOOPS, ROOT, losses, named_arrays, saved_state
from training.state import create_state, model_config

MAX_ITERS = 2000  # some seconds of steps, about as long as a start
SIGNALS = {signal.SIGKILL: (-9,), signal.SIGTERM: (143, -15), signal.SIGINT: (130, -2)}  # their statuses
OPTIONS = {
    **{"device": "cpu", "mesh": "data:1", "n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 8},
    **{"batch_size": 4, "gradient_accumulation_steps": 1, "dropout": 0.1, "warmup_iters": 2},
    **{"max_iters": MAX_ITERS, "lr_decay_iters": MAX_ITERS, "eval_interval": 100, "eval_iters": 2},
    **{"keep_checkpoints": 3, "init_from": "auto"},
}
# For root, too, permissions hold without these rights.
OBEYING = () if os.geteuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
# XLA compiles so small a model several times faster like this, and the arithmetic is the same.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": OLD_LOOPS}


# The files of a run folder that a program opens, and those that it may find there.
FILES = (
    *("options.json", "metrics.jsonl", "metrics.dropped.jsonl", "lock", f"checkpoints/{MAX_ITERS}"),
    *(
        f"checkpoints/{MAX_ITERS}/{name}"
        for name in ("manifest/metadata", "metrics/metrics", "model/manifest.ocdbt")
    ),
)
TRAPS: dict[str, Callable[[Path, Path], None]] = {
    "a link out": lambda path, outside: path.symlink_to(outside),
    "a second name": lambda path, outside: os.link(outside, path),
    "an endless device": lambda path, outside: path.symlink_to("/dev/zero"),
    "a FIFO": lambda path, outside: os.mkfifo(path),
}


class Torture:
    """The folders of the runs, what was tried, and what went wrong."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.draw = folder, np.random.default_rng(seed)
        self.tried, self.faults = Counter(), []
        text = "the quick brown fox jumps over the lazy dog. " * 40
        tokenizer = CharTokenizer("".join(sorted(set(text))))
        ids = tokenizer.encode(text)
        write_dataset(folder / "data", ids[:1500], ids[1500:], tokenizer, "a test")
        begun = time.monotonic()
        self.check("an undisturbed run", self.ended(self.start("reference")), (0,))
        self.whole_time = time.monotonic() - begun
        self.state = saved_state(folder / "reference")
        self.losses = losses(folder / "reference")
        saved = Checkpoints(str(folder / "reference")).manifest(MAX_ITERS)
        config = model_config(saved.options, saved.vocab_size)
        self.shapes = eqx.filter_eval_shape(create_state, config, saved.options)

    def start(self, out: str, limit: str = "unlimited") -> subprocess.Popen:
        """Start or resume the run in the folder `out`, which can write no file beyond `limit` KiB."""
        options = OPTIONS | {"out_dir": self.folder / out, "dataset": self.folder / "data"}
        return subprocess.Popen(
            [
                *(
                    "bash",
                    "-c",
                    f'ulimit -f {limit}; exec "$@"',
                    "bash",
                    *OBEYING,
                    sys.executable,
                    "train.py",
                ),
                *(f"--{name}={value}" for name, value in options.items()),
            ],
            cwd=ROOT,
            env=os.environ | QUICK,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self, run: subprocess.Popen, seconds: int = 300) -> tuple[int, str]:
        """Wait for a run's end, and return its status and what it said on stderr."""
        try:
            errors = run.communicate(timeout=seconds)[1]
        except subprocess.TimeoutExpired:
            run.kill()
            return 999, run.communicate()[1]
        return run.returncode, errors

    def check(self, what: str, end: tuple[int, str], statuses: tuple[int, ...]) -> None:
        """Note a run that ended with another status than these, or with more than a line of error."""
        status, errors = end
        said = sum(line.startswith("error: ") for line in errors.splitlines())
        if status not in statuses or "Traceback" in errors or said != (status == 2):
            self.faults.append(f"{what}: status {status}, {errors[-1500:]}")

    def compare(self, what: str, out: str) -> None:
        """Note a finished run that is not, to the bit, the undisturbed one."""
        state = saved_state(self.folder / out)
        wrong = [name for name, x in self.state.items() if state[name].tobytes() != x.tobytes()]
        if wrong:
            self.faults.append(f"{what}: {len(wrong)} arrays are not those of the undisturbed run")
        if losses(self.folder / out) != self.losses:
            self.faults.append(f"{what}: its records are not those of the undisturbed run")
        self.tried["runs compared with the undisturbed one"] += 1

    def kill(self) -> None:
        """Send a signal to the run at a random moment; if it comes to its end before, compare it."""
        run = self.start("killed")
        number = list(SIGNALS)[int(self.draw.integers(len(SIGNALS)))]
        try:
            run.wait(timeout=self.draw.uniform(0, 1.1 * self.whole_time))
        except subprocess.TimeoutExpired:
            run.send_signal(number)
            self.tried[signal.Signals(number).name] += 1
        status, errors = self.ended(run)
        self.check(signal.Signals(number).name, (status, errors), (0, *SIGNALS[number]))
        if status == 0:
            self.compare("after kills", "killed")
            shutil.rmtree(self.folder / "killed")

    def signals_sent(self) -> int:
        return sum(self.tried[number.name] for number in SIGNALS)

    def finish_killed(self) -> None:
        """Let the run that was killed last come to its end."""
        if (self.folder / "killed").exists():
            self.check("the last resume", self.ended(self.start("killed")), (0,))
            self.compare("after kills", "killed")

    def damage(self, what: str, spoil: Callable[[bytes], bytes]) -> None:
        """Spoil a file of the reference's newest checkpoint, restore that, and put the file right again."""
        checkpoints = Checkpoints(str(self.folder / "reference"))
        newest = checkpoints.folder / str(checkpoints.latest())
        files = [
            path for item in ("model", "optimizer") for path in (newest / item).rglob("*") if path.is_file()
        ]
        files = [path for path in files if path.stat().st_size]
        sizes = np.array([path.stat().st_size for path in files], float)
        path = files[self.draw.choice(len(files), p=sizes / sizes.sum())]
        whole = path.read_bytes()
        path.write_bytes(spoil(whole))
        try:
            state = named_arrays(checkpoints.restore(MAX_ITERS, self.shapes))
            same = all(state[name].tobytes() == x.tobytes() for name, x in self.state.items())
            self.tried[f"{what}, in bytes that nothing reads" if same else f"{what}, NOT NOTICED"] += 1
            if not same:
                self.faults.append(f"{what} of {path}: was not noticed")
        except Damaged:
            self.tried[f"{what}, found"] += 1
        except Exception as error:
            self.faults.append(f"{what} of {path}: {type(error).__name__}: {error}")
        path.write_bytes(whole)

    def flipped(self, whole: bytes) -> bytes:
        place = int(self.draw.integers(8 * len(whole)))
        return whole[: place // 8] + bytes([whole[place // 8] ^ 1 << place % 8]) + whole[place // 8 + 1 :]

    def flip(self) -> None:
        self.damage("a flipped bit", self.flipped)

    def cut(self) -> None:
        self.damage("a truncated file", lambda whole: whole[: int(self.draw.integers(len(whole)))])

    def flip_options(self) -> None:
        """Flip a bit of options.json: a resume refuses, or takes the options that the run had."""
        run = shutil.copytree(self.folder / "reference", self.folder / "options", dirs_exist_ok=True)
        path = run / "options.json"
        had = read_options(str(path)).to_json()
        path.write_bytes(self.flipped(path.read_bytes()))
        status, words = 0, [f"--out_dir={run}", "--init_from=resume"]
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
            try:
                command(lambda argv: train.main(words))
            except SystemExit as ended:
                status = ended.code
        what = f"a flipped bit of options.json, {'refused' if status else 'in what a resume does not take'}"
        self.tried[what] += 1
        self.check(what, (status, errors.getvalue()), (0, 2))
        if status == 0:
            took = read_options(str(path)).to_json()
            wrong = [name for name in had if name not in NOT_RESUMED and took[name] != had[name]]
            self.faults += [f"{what}: {name} has become {took[name]}" for name in wrong]

    def flip_tokens(self) -> None:
        path = self.folder / "data" / "train.bin"
        whole = path.read_bytes()
        path.write_bytes(self.flipped(whole))
        try:
            Batches(Dataset(str(path.parent)), "train", batch_size=4, block_size=8, seed=0)
            self.faults.append(f"a flipped bit of {path}: was not noticed")
        except UserError as error:
            self.tried["a flipped bit of train.bin, found"] += 1
            if not str(error).startswith(f"{path}: "):
                self.faults.append(f"a flipped bit of {path}: it is not named: {error}")
        path.write_bytes(whole)

    def resume_after_a_flip(self) -> None:
        """Spoil the newest checkpoint of a run that has not ended: it goes on from the one before."""
        shutil.copytree(self.folder / "reference", self.folder / "flipped")
        newest = self.folder / "flipped" / "checkpoints" / str(MAX_ITERS)
        for path in (newest / "model").rglob("d/*"):
            path.write_bytes(path.read_bytes()[:-100])
        status, errors = self.ended(self.start("flipped"))
        self.check("a resume from a damaged checkpoint", (status, errors), (0,))
        if f"{newest}: the checkpoint is damaged" not in errors:
            self.faults.append(f"a damaged checkpoint was not named: {errors[-500:]}")
        self.compare("after a damaged checkpoint", "flipped")
        self.tried["resumes from the checkpoint before a damaged one"] += 1

    def fill_disk(self) -> None:
        """Let no file grow beyond some bytes, as on a full disk; then make room and go on."""
        limit = str(self.draw.integers(2, 40))
        self.check(f"no file beyond {limit} KiB", self.ended(self.start("full", limit)), (2,))
        self.check("after making room", self.ended(self.start("full")), (0,))
        self.compare("after a full disk", "full")
        shutil.rmtree(self.folder / "full")
        self.tried["full disks"] += 1

    def trap(self) -> None:
        """Put what is no file of the run in the place of each of its files: it writes and reads no other."""
        outside, first = self.folder / "outside", int(self.draw.integers(len(TRAPS)))
        for i, name in enumerate(FILES, start=first):
            what, put = list(TRAPS.items())[i % len(TRAPS)]
            out = shutil.copytree(self.folder / "reference", self.folder / "trapped")
            with open(out / "metrics.jsonl", "a") as file:
                file.write("a line to be dropped\n")
            shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink(missing_ok=True)
            outside.write_text("kept")
            put(out / name, outside)
            # What is only read may have a second name; it does not hold what the run has written.
            statuses = (0, 2) if what == "a second name" else (2,)
            self.check(f"{what} as {name}", self.ended(self.start("trapped"), seconds=60), statuses)
            if outside.read_text() != "kept":
                self.faults.append(f"{what} as {name}: the run wrote outside of its folder")
            shutil.rmtree(out)
            self.tried[f"{what} in place of a file"] += 1

    def forbid(self) -> None:
        """Let each of a run's files not be read: it ends in a line and moves no checkpoint."""
        for name in (name for name in FILES if name not in ("lock", "metrics.dropped.jsonl")):
            out = shutil.copytree(self.folder / "reference", self.folder / "forbidden")
            (out / name).chmod(0)
            self.check(
                f"without permission for {name}", self.ended(self.start("forbidden"), seconds=60), (2,)
            )
            if (out / "damaged").exists() or not (out / "checkpoints" / str(MAX_ITERS)).exists():
                self.faults.append(f"without permission for {name}: good checkpoints were moved")
            (out / name).chmod(0o700)
            shutil.rmtree(out)
            self.tried["files without permission"] += 1

    def start_twice(self) -> None:
        first = self.start("twice")
        while not (self.folder / "twice" / "lock.json").exists() and first.poll() is None:
            time.sleep(0.05)
        status, errors = self.ended(self.start("twice"))
        if "is in use" not in errors:
            self.faults.append(f"a second run: status {status}, {errors[-500:]}")
        self.check("a second run", (status, errors), (2,))
        self.check("the first of two runs", self.ended(first), (0,))
        self.compare("beside a second run", "twice")
        shutil.rmtree(self.folder / "twice")
        self.tried["second runs in the same folder"] += 1


def torture(folder: Path, kills: int, flips: int, seconds: float, seed: int = 0) -> Torture:
    """Do all of it, as often as said, and stop killing after so many seconds."""
    until = time.monotonic() + seconds
    victim = Torture(folder, seed)
    for _ in range(flips):
        victim.flip()
        victim.flip_tokens()
    for _ in range(flips // 10):
        victim.cut()
        victim.flip_options()
    for once in (
        victim.resume_after_a_flip,
        victim.fill_disk,
        victim.start_twice,
        victim.trap,
        victim.forbid,
    ):
        once()
    while victim.signals_sent() < kills and time.monotonic() < until:
        victim.kill()
    victim.finish_killed()
    return victim


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--kills", type=int, default=50, help="signals to the run")
    add("--flips", type=int, default=200, help="flipped bits of a checkpoint and of train.bin")
    add("--seconds", type=float, default=400, help="after which no more signals are sent")
    add("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    begun = time.monotonic()
    try:
        victim = torture(folder, arguments.kills, arguments.flips, arguments.seconds, arguments.seed)
    finally:
        shutil.rmtree(folder)
    for what, count in sorted(victim.tried.items()):
        print(f"{count:5} {what}")
    for fault in victim.faults:
        print(f"FAULT: {fault}")
    print(f"{time.monotonic() - begun:.0f} s, seed {arguments.seed}: {len(victim.faults)} faults")
    raise SystemExit(bool(victim.faults))


if __name__ == "__main__":
    main()
