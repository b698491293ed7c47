"""The launcher's options and commands, and the jobs that they run: each a script in a process of its own."""

import math
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from common.command_line import (
    Count,
    Name,
    NonNegativeInt,
    Positive,
    check_values,
    given,
    matching,
    option_types,
    take_options,
)
from common.errors import UserError
from config.options import RESUMING, Options
from data.dataset import SMALL_DATASETS, known_datasets
from data.prepare import read_options
from data.sources import Hub
from tools.cloud import MOUNTED, VOLUME

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 100  # seconds that a script gets to save and end, when an exception ends its caller
HAS_MASK = hasattr(signal, "pthread_sigmask")  # not on Windows


RunName = Annotated[str, matching(r"\w[\w.-]*", "letters, digits, . _ and -")]

# Dollars an hour in Modal's default regions, without tax: `modal billing rates`, as others read it. All but
# B200+ also stand in a transcript of modal.com/pricing of 1 July 2026 (github.com/api-evangelist/modal-labs).
PRICES_READ = "September 2026"
GPUS = {
    **{"none": 0.0, "T4": 0.59, "L4": 0.80, "A10": 1.10, "L40S": 1.95, "A100-40GB": 2.10, "A100-80GB": 2.50},
    **{"RTX-PRO-6000": 3.03, "H100": 3.95, "H200": 4.54, "B200": 6.25, "B200+": 7.10},
}
CORE = 0.0473
GIB = 0.008
BURST = 2  # times its cores and memory, which a machine may use


@dataclass(frozen=True)
class LaunchOptions:
    """The options of the launcher. A comment is the text in `--help`."""

    program: ClassVar[str] = "app.py"
    purpose: ClassVar[str] = (
        "Run a command on Modal, or here: docs/cloud.md. Other options go to the command's script."
    )

    run_on_remote: bool = False  # run on Modal, not on this machine
    gpu: Name = "A10"  # T4, L4, L40S, A100-80GB, H100, H200, B200, ...; H100:8: eight; none
    cores: Count | None = None  # CPU cores, with 2 GiB each at least; None: 2 for each GPU
    timeout_hours: Positive = 4.0  # of one attempt; the next one resumes
    retries: NonNegativeInt = 2  # further attempts, when time is up or the run is killed
    max_dollars: Positive = 20.0  # refuse what could cost more, all attempts together
    run_name: RunName = ""  # folder of the run; by default the name of its out_dir
    secret: Name = ""  # names of Modal secrets, with commas, as of one with WANDB_API_KEY
    parallel: Count = 4  # runs of a sweep at a time, at most
    dry_run: bool = False  # print what would be rented, and at what cost


def split_launch(argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the launcher's options that are given, and the other words. Raises UserError."""
    if "--help" in argv or "-h" in argv:
        given(["--help"], LaunchOptions)
    return take_options(argv, LaunchOptions)


class Machine(NamedTuple):
    cores: int
    gib: int
    dollars: float  # an hour, at most


def machine_of(options: LaunchOptions) -> Machine:
    """Return the machine to rent. Raises UserError for an unknown GPU."""
    gpu, _, number = options.gpu.partition(":")
    if gpu not in GPUS or not re.fullmatch("[1-8]?", number):
        raise UserError(f"--gpu={options.gpu}: expected one of {', '.join(GPUS)}, or 2 to 8, as in H100:8")
    count = int(number or 1)
    cores = options.cores or 2 * count
    gib = max(16 * count, 2 * cores)
    return Machine(cores, gib, count * GPUS[gpu] + BURST * (cores * CORE + gib * GIB))


class Command(NamedTuple):
    """A command's script; the words that follow the user's; its results, in the run's folder."""

    script: str = ""
    words: tuple[str, ...] = ("--out_dir={run}",)
    results: tuple[str, ...] = ()
    defaults: dict[str, Any] = {}  # of the launcher's options


SHORT = {"timeout_hours": 1.0, "retries": 0}
ON_CPUS = {"gpu": "none", "cores": 4} | SHORT
EVALUATE = ("--out_dir={run}", "--json={run}/evaluate.json")
COMMANDS = {
    "train": Command("train.py"),
    "sample": Command("sample.py", defaults=SHORT),
    "prepare": Command("data/prepare.py", (), defaults={"gpu": "none", "cores": 16, "retries": 1}),
    "evaluate": Command("evaluate.py", EVALUATE, ("evaluate.json",), SHORT),
    "bench": Command("bench.py", ("--out_dir={run}", "--init_from=resume"), defaults=SHORT),
    "profile": Command("bench.py", ("--loop", "--profile={run}/profile"), ("profile",), SHORT),
    "export": Command("export.py", ("--out_dir={run}", "--to={run}/export"), ("export",), ON_CPUS),
    "serve": Command("serve.py", defaults={"retries": 0}),
    **dict.fromkeys(("sweep", "list", "watch", "fetch"), Command()),
}


@dataclass(frozen=True)
class Job:
    """A script to run, here or at Modal."""

    command: str
    words: list[str]
    folder: Path  # of the run, or of the data set that is prepared
    of_a_run: bool = False  # the run has to be there
    dataset: str | None = None  # has to be in the Volume
    sample: bool = False  # print a sample at the end

    @property
    def name(self) -> str:
        return self.folder.name


def words_on(name: str, run: Path) -> list[str]:
    return [word.format(run=run) for word in COMMANDS[name].words]


def run_job(job: Job, seconds: float = math.inf) -> tuple[int, str | None]:
    """Run a job's script. Return as `run_script` does."""
    if job.command == "prepare":
        return prepare(job.folder, job.words, seconds)
    status, stop = run_script(COMMANDS[job.command].script, job.words, seconds)
    if status == 0 and job.sample:
        words = [f"--out_dir={job.folder}", "--start=def ", "--num_samples=1", "--max_new_tokens=200"]
        run_script("sample.py", words)
    return status, stop


def run_script(script: str, words: list[str], seconds: float = math.inf) -> tuple[int, str | None]:
    """Run a script to its end. Return its status, and why it was stopped: "interrupt", "time" or None.

    Ctrl-C, the end of `seconds`, and any other exception (raised again) reach it as SIGTERM, on which
    train.py saves a checkpoint and ends with status 143.
    """
    stop, deadline = None, time.monotonic() + seconds
    # A terminal sends it to the script too: at its second signal train.py does not save.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if HAS_MASK else set()
    process = subprocess.Popen([sys.executable, str(ROOT / script), *words])
    try:
        while True:
            try:
                if HAS_MASK:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                left = None if deadline == math.inf else max(0, deadline - time.monotonic())
                return process.wait(left), stop
            except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
                deadline, stop = math.inf, "interrupt" if isinstance(why, KeyboardInterrupt) else "time"
                process.terminate()
    finally:  # nothing happens to a script that has ended
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        process.kill()
        process.wait()


def prepare(folder: Path, words: list[str], seconds: float) -> tuple[int, str | None]:
    """Prepare a data set by its own script, or else from the user's documents."""
    if not has_script(folder.name):
        return run_script("data/prepare.py", [*words, f"--to={folder}"], seconds)
    if (ours := ROOT / "data" / folder.name) != folder:  # a script writes beside itself
        shutil.copytree(ours, folder, dirs_exist_ok=True)
    return run_script(str(folder / "prepare.py"), words, seconds)


def is_plain_name(name: str) -> bool:
    """Tell whether a name is that of a file in a folder, and no path out of it."""
    return re.fullmatch(r"\w[\w.-]*", name, re.ASCII) is not None


def has_script(dataset: str) -> bool:
    return is_plain_name(dataset) and (ROOT / "data" / dataset / "prepare.py").is_file()


def options_of(name: str) -> type[Any]:
    """Return the options of a command's script, imported late: most import JAX."""
    if name in ("sample", "evaluate", "export", "serve"):
        return getattr(import_module(name), f"{name.capitalize()}Options")
    return Options


def make_job(name: str, argv: list[str], options: LaunchOptions) -> Job:
    """Return the job for Modal, checked by its script's reader. Raises UserError."""
    if name == "prepare":
        return preparing_job(argv, options)
    reader, own = options_of(name), []
    if COMMANDS[name].script == "bench.py":
        bench, argv = take_options(argv, import_module("bench").BenchOptions)
        own = [f"--{option}={x}" for option, x in bench.items() if x not in (None, False)]
    values = given(argv, reader)
    source = values.get("out_dir", Options.out_dir)
    of_a_run = name != "train" and bool(options.run_name)
    if reader is not Options and not (of_a_run := values.get("init_from", "resume") == "resume"):
        source = values["init_from"]  # weights of the hub
    name_of_run = {"run_name": options.run_name or Path(source).name}
    run = check_values(name_of_run, "--", LaunchOptions)["run_name"]
    folder = MOUNTED / "runs" / run
    if values.get("overwrite"):
        first = f"modal volume rm -r {VOLUME} runs/{run}"
        raise UserError(f"overwrite=True would begin anew at every attempt: give {first} instead")
    if "start" in values:
        values["start"] = import_module("sample").read_prompt(values["start"])
    if options.gpu != "none" and "device" in option_types(reader):
        values = {"device": "cuda"} | values  # or JAX might compute on the CPU
    if name == "train" and values.get("init_from") not in RESUMING:
        values = {"dataset": Options.dataset} | values
    words = [f"--{option}={value}" for option, value in values.items()] + own
    if name != "bench" or of_a_run:
        words += words_on(name, folder)
    return Job(name, words, folder, of_a_run, values.get("dataset"))


def job_here(name: str, words: list[str], options: LaunchOptions) -> Job:
    """Return the job for this machine. Its script checks the words."""
    if name == "prepare":
        return preparing_job(words, options, ROOT)
    folder = Path(options.run_name or Options.out_dir)
    return Job(name, [*words, *(words_on(name, folder) if options.run_name else [])], folder)


def preparing_job(argv: list[str], options: LaunchOptions, parent: Path = MOUNTED) -> Job:
    name, *words = argv or [""]
    if not is_plain_name(name):
        known = ", ".join(known_datasets())
        raise UserError(f"prepare {name}: first comes the name of a data set: {known}, or a new one")
    if parent == MOUNTED and name not in SMALL_DATASETS:
        asked = read_options(words, Hub(name) if has_script(name) else None, to=name)
        if asked.to != name:
            raise UserError(f"--to={asked.to}: the Volume has it as data/{name}: leave it out")
        if asked.num_proc is None:  # Python would count the cores of the host
            words.append(f"--num_proc={machine_of(options).cores}")
    return Job("prepare", words, parent / "data" / name)


def resume_options(run: Path) -> list[str]:
    begun = (run / "damaged").exists() or any(x.name.isdigit() for x in (run / "checkpoints").glob("*"))
    return ["--init_from=auto"] if begun else []
