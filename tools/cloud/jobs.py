"""The launcher's commands, and the jobs that they send to Modal."""

import math
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from config.command_line import UserError, check_value, given, option_types, split_options
from config.files import is_plain_name
from config.options import NOT_RESUMED, RESUMING, Options
from data.dataset import SMALL_DATASETS, known_datasets
from data.prepare import parse
from data.sources import Hub
from tools.cloud import MOUNTED, VOLUME
from tools.cloud.options import LaunchOptions, machine_of
from tools.cloud.places import Here, Place, check_run, read_options, saved_iteration
from tools.cloud.supervise import ROOT, Stop, run_script

SAMPLE = ("--start=def ", "--num_samples=1", "--max_new_tokens=200")  # of a first model


class Command(NamedTuple):
    """A command's script; the words that follow the user's; its results, in the run's folder."""

    script: str = ""
    words: tuple[str, ...] = ("--out_dir={run}",)
    results: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = {}  # of the launcher's options


SHORT = {"timeout_hours": 1.0, "retries": 0}
BRIEF = {"timeout_hours": 0.25, "retries": 1}
ON_CPUS = {"gpu": "none", "cores": 4}
PROFILE = (
    *("--profile={run}/profile", "--out_dir={scratch}", "--max_iters=14"),
    *("--eval_iters=1", "--wandb_log=False", "--init_from=auto"),
)
EVALUATE = ("--out_dir={run}", "--json={run}/evaluate.json")
COMMANDS = {
    "train": Command("train.py"),
    "sample": Command("sample.py", defaults=SHORT),
    "prepare": Command("data/prepare.py", (), defaults={"gpu": "none", "cores": 16, "retries": 1}),
    "evaluate": Command("evaluate.py", EVALUATE, ("evaluate.json",), SHORT),
    "bench": Command("bench.py", ("--out_dir={run}", "--init_from=resume"), defaults=SHORT),
    "profile": Command("train.py", PROFILE, ("profile",), SHORT),
    "export": Command("export.py", ("--out_dir={run}", "--to={run}/export"), ("export",), SHORT | ON_CPUS),
    "serve": Command("serve.py", defaults={"retries": 0}),
    "sweep": Command("train.py"),
    "experiment": Command("experiments/rented.py", defaults={"gpu": "L4"} | BRIEF),
    **dict.fromkeys(("list", "watch", "fetch"), Command()),
}


@dataclass(frozen=True)
class Job:
    """A script to run, here or at Modal."""

    command: str
    words: list[str]  # the user's, for the script
    run_name: str  # for `prepare`, the data set's; "": as the words say
    of_a_run: bool = False  # the run has to be there
    dataset: str | None = None  # has to be in the Volume
    sample: bool = False  # print a sample at the end


def words_of(job: Job, run: Path, scratch: str = "<a folder>") -> list[str]:
    alone = not job.run_name or (job.command == "bench" and not job.of_a_run)
    words = () if alone else COMMANDS[job.command].words
    return [*job.words, *(word.format(run=run, scratch=scratch) for word in words)]


def run_job(
    job: Job, run: Path, cwd: Path | None = None, seconds: float = math.inf
) -> tuple[int, Stop | None]:
    """Run a job's script on the run in the folder `run`. Return as `run_script` does. Raises UserError."""
    with tempfile.TemporaryDirectory() as scratch:
        if job.command == "profile" and job.of_a_run:
            check_run(Here(), str(run))
            shutil.copy(run / "options.json", scratch)  # a new run with these is traced
        status, stop = run_script(COMMANDS[job.command].script, words_of(job, run, scratch), cwd, seconds)
    if status == 0 and job.sample:
        run_script("sample.py", [f"--out_dir={run}", *SAMPLE])
    return status, stop


def prepare(folder: Path, words: list[str], seconds: float = math.inf) -> tuple[int, Stop | None]:
    """Prepare the data set of a folder by its own script, or else from the user's documents."""
    if not has_script(folder.name):
        return run_script("data/prepare.py", [*words, f"--to={folder}"], seconds=seconds)
    if (ours := ROOT / "data" / folder.name) != folder:  # a script writes beside itself
        shutil.copytree(ours, folder, dirs_exist_ok=True)
    return run_script(str(folder / "prepare.py"), words, seconds=seconds)


def has_script(dataset: str) -> bool:
    """Tell whether this project prepares a data set of that name."""
    return is_plain_name(dataset) and (ROOT / "data" / dataset / "prepare.py").is_file()


def prepares_itself(dataset: str) -> bool:
    """Tell whether a data set is one that is prepared unasked."""
    return dataset in SMALL_DATASETS


def options_of(name: str) -> type[Any]:
    """Return the options of a command's script, which is imported late, as most import JAX."""
    if name in ("sample", "evaluate", "export", "serve"):
        return getattr(import_module(name), f"{name.capitalize()}Options")
    return Options


def make_job(name: str, argv: list[str], options: LaunchOptions) -> Job:
    """Return the job that a command sends to Modal, checked by the script's own reader. Raises UserError.

    Options replace their config file, which may lie anywhere, and may change while a run goes on.
    """
    if name == "prepare":
        job = preparing_job(argv, options)
        check_preparation(job)
        return job
    reader = options_of(name)
    rest, own = argv, []
    if name == "bench":
        bench, rest = split_options(argv, import_module("bench").BenchOptions)
        own = [f"--{name}={x}" for name, x in vars(bench).items() if x not in (None, False)]
    values = given(rest, reader)
    weights = values.get("init_from", "resume") if reader is not Options else "resume"
    folder = Path(values.get("out_dir", "out")).name if weights == "resume" else re.sub(r"\W+", "-", weights)
    run = check_value("run_name", options.run_name or folder, "--", LaunchOptions)
    if options.nodes > 1 and name != "train":
        raise UserError(f"--nodes={options.nodes} is for training: {name} runs on one machine")
    if options.nodes > 1 and machine_of(options).count < 8:
        raise UserError(f"--nodes={options.nodes} needs machines with all their GPUs, as in --gpu=H100:8")
    if values.get("follow"):
        raise UserError("--follow=True: at Modal a server sees the run as it was when its container started")
    if values.get("hellaswag"):
        check_in_volume("hellaswag", values["hellaswag"])
    if values.get("overwrite"):
        raise UserError(
            "overwrite=True would begin anew at every attempt: give another --run-name, or first "
            f"modal volume rm -r {VOLUME} runs/{run}"
        )
    if values.get("wandb_log") and not options.secrets:
        raise UserError(
            "wandb_log=True needs --secret=NAME, a Modal secret with your key: "
            "modal secret create NAME WANDB_API_KEY=..."
        )
    if "start" in values:
        values["start"] = import_module("sample").read_prompt(values["start"])
    if machine_of(options).count and "device" in option_types(reader):
        values = {"device": "cuda"} | values  # or JAX might compute on the CPU
    if reader is Options:
        of_a_run = name != "train" and bool(options.run_name)
    else:
        of_a_run = weights == "resume"
    dataset = values.get("dataset")
    if name == "bench":
        dataset = None  # its tokens are random
    elif dataset is None and reader is Options and not of_a_run and values.get("init_from") not in RESUMING:
        dataset = Options.dataset
    words = [f"--{option}={value}" for option, value in values.items()]
    return Job(name, words + own, run, of_a_run, dataset)


def preparing_job(argv: list[str], options: LaunchOptions) -> Job:
    """Return the job that prepares a data set of data/, or the user's own documents. Raises UserError."""
    name, *words = argv or [""]
    if not is_plain_name(name):
        known = ", ".join(known_datasets())
        raise UserError(f"prepare {name}: first comes the name of a data set: {known}, or a new one")
    if not prepares_itself(name):
        arguments = parse(words, f"Prepare {name}.", Path(name), Hub(name) if has_script(name) else None)
        if arguments.num_proc is None:  # Python would count the cores of the host
            words = [*words, f"--num_proc={machine_of(options).cores:.0f}"]
    return Job("prepare", words, name)


def check_preparation(job: Job) -> None:
    """Raise UserError for what a container would not find, or would lose."""
    if prepares_itself(job.run_name):
        if job.words:
            raise UserError(f"{job.words[0]}: {job.run_name} is small, and is prepared without options")
        return
    hub = Hub(job.run_name) if has_script(job.run_name) else None
    arguments = parse(job.words, f"Prepare {job.run_name}.", Path(job.run_name), hub)
    if arguments.to != Path(job.run_name):
        raise UserError(f"--to={arguments.to}: the Volume has it as data/{job.run_name}: leave it out")
    for path in arguments.source or []:
        check_in_volume("source", path)
    if str(arguments.tokenizer).endswith(".json"):
        check_in_volume("tokenizer", arguments.tokenizer)


def check_in_volume(option: str, path: str) -> None:
    """Raise UserError for a file that no container will see."""
    if not str(path).startswith(f"{MOUNTED}/"):
        name = Path(path).name
        raise UserError(
            f"--{option}={path} would be looked for in the Volume: modal volume put {VOLUME} {path} {name}, "
            f"then give --{option}={MOUNTED}/{name}"
        )


def check_unchanged(place: Place, job: Job) -> None:
    """Raise UserError where a job would change the options of a run that has checkpoints, unasked."""
    run = job.run_name
    theirs = read_options(place, run)
    values = given(job.words, Options)
    start = values.get("init_from", "scratch")
    if start in RESUMING or theirs is None or not saved_iteration(place, run):
        return
    ours = replace(Options(), **values)
    for name in option_types(Options) if start == "scratch" else values:  # weights decide others
        old = getattr(theirs, name)
        new = getattr(ours, name)
        if old != new and name not in NOT_RESUMED:
            raise UserError(
                f"{run} holds a run with {name}={old}, and this launch has {name}={new}: "
                "go on with --init_from=resume, which changes it, or choose another --run-name"
            )


def has_ended(place: Place, job: Job) -> bool:
    """Tell whether a run has come to the last step that a job asks for."""
    asked = given(job.words, Options)
    theirs = read_options(place, job.run_name)
    if theirs is None or asked.get("eval_only"):
        return False
    return saved_iteration(place, job.run_name) >= asked.get("max_iters", theirs.max_iters)


def resume_options(run: Path) -> list[str]:
    """Return the option that resumes the run in a folder; none, for the user's own, without a checkpoint."""
    found = any(path.name.isdigit() for path in (run / "checkpoints").glob("*"))
    found = found or (run / "damaged").exists()  # auto refuses to begin anew beside these
    return ["--init_from=auto"] if found else []
