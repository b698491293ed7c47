"""The launcher's commands: which script each runs, on which machine, and what it leaves in the run's folder.

run_job(job, Path("/vol/runs/big"))     runs a job's script, here or in a container, on a run that lies there
"""

import math
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.command_line import UserError
from tools.cloud.options import LaunchOptions
from tools.cloud.supervise import ROOT, Stop, run_script

# For a launch without any option of train.py's. The prompt is Python, as the text is.
FIRST = "no config was given: training config/quickstart.py on Python's own source, then a sample of it"
SAMPLE = ("--start=def ", "--num_samples=1", "--max_new_tokens=200")
SMALL: dict[str, Any] = {"gpu": "L4", "timeout_hours": 0.5, "retries": 0}  # it needs minutes, and ends
SMALL_DATA: dict[str, Any] = {"cores": 1, "timeout_hours": 0.25, "retries": 0}  # it takes a second
PROFILED = 14  # steps, of which the last four are traced: runs/profile.py


@dataclass(frozen=True)
class Command:
    """A command that runs a script. In `words`, which follow the user's, {run} is the run's folder."""

    script: str
    words: tuple[str, ...] = ("--out_dir={run}",)
    results: tuple[str, ...] = ()  # in the run's folder: from Modal they are brought home
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of the launcher's options

    def options(self, chosen: Mapping[str, Any]) -> LaunchOptions:
        """Return the launcher's options with those that the user has chosen."""
        return LaunchOptions(**{**self.defaults, **chosen})


SHORT = {"timeout_hours": 1.0, "retries": 0}
CPUS = {"gpu": "none", "cores": 16, "retries": 1}
COMMANDS = {
    "train": Command("train.py"),
    "sample": Command("sample.py", defaults=SHORT),
    "prepare": Command("prepare.py", (), defaults=CPUS),
    "experiment": Command(
        "experiments/rented.py", defaults={"gpu": "L4", "timeout_hours": 0.25, "retries": 1}
    ),
    "evaluate": Command(
        "evaluate.py",
        ("--out_dir={run}", "--json={run}/evaluate.json"),
        results=("evaluate.json",),
        defaults=SHORT,
    ),
    "bench": Command("bench.py", ("--out_dir={run}", "--init_from=resume"), defaults=SHORT),
    "profile": Command(
        "train.py",
        (
            *("--profile={run}/profile", "--out_dir={scratch}", f"--max_iters={PROFILED}"),
            *("--eval_iters=1", "--wandb_log=False", "--init_from=auto"),
        ),
        results=("profile",),
        defaults=SHORT,
    ),
    "export": Command(
        "export.py",
        ("--out_dir={run}", "--to={run}/export"),
        results=("export",),
        defaults=SHORT | {"gpu": "none", "cores": 4},
    ),
    "serve": Command("serve.py", defaults={"retries": 0}),
}


@dataclass(frozen=True)
class Job:
    """A command to run: everything that is sent to Modal besides the files."""

    command: str  # one of COMMANDS
    words: list[str]  # the user's, for the script, each as --key=value where that was possible
    run_name: str  # for `prepare`, the data set's
    of_a_run: bool = False  # the run has to be there
    dataset: str | None = None  # that the script reads: prepared first where it is missing
    sample: bool = False  # print a sample of the trained model at the end

    @property
    def script(self) -> str:
        if self.command != "prepare":
            return COMMANDS[self.command].script
        own = f"data/{self.run_name}/prepare.py"  # or else it is the user's documents
        return own if (ROOT / own).is_file() else "data/prepare.py"

    @property
    def reads_data(self) -> bool:
        """Whether its data are prepared first, where they are missing. A run that is there has its own."""
        needed = self.dataset is not None or not self.of_a_run
        return self.command in ("train", "experiment", "profile", "evaluate") and needed

    @property
    def results(self) -> tuple[str, ...]:
        return COMMANDS[self.command].results


def words_of(job: Job, run: Path, scratch: str = "<a folder>") -> list[str]:
    """Return a script's words for the run in the folder `run`: the user's, and then the launcher's."""
    words = [] if job.command == "bench" and not job.of_a_run else COMMANDS[job.command].words
    return [*job.words, *(word.format(run=run, scratch=scratch) for word in words)]


def run_job(
    job: Job, run: Path, cwd: Path | None = None, seconds: float = math.inf
) -> tuple[int, Stop | None]:
    """Run a job's script on the run in the folder `run`. Return as `run_script` does.

    A profile is that of a new run with the same options, in a folder that is thrown away: the run itself
    stays as it is. Raises UserError where there is none.
    """
    with tempfile.TemporaryDirectory() as scratch:
        if job.command == "profile" and job.of_a_run:
            if not (run / "options.json").is_file():
                raise UserError(f"--run-name={job.run_name}: there is no such run")
            shutil.copy(run / "options.json", scratch)
        return run_script(job.script, words_of(job, run, scratch), cwd, seconds)
