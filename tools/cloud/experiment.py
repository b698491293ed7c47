"""Train the runs of a program of experiments/ at Modal: its jobs, and the results that they leave.

Each run is a job of its own, experiments/rented.py in a container, and leaves result.json in its folder.
"""

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

from config.command_line import UserError
from experiments.runner import Task
from tools.cloud.commands import Job
from tools.cloud.jobs import training_job
from tools.cloud.options import LaunchOptions
from tools.cloud.places import Place
from tools.cloud.supervise import ROOT


def load_program(name: str) -> ModuleType:
    """Return a program of experiments/. Raises UserError for a name that is none."""
    names = sorted(path.stem for path in (ROOT / "experiments").glob("*.py"))
    modules = {each: importlib.import_module(f"experiments.{each}") for each in names}
    programs = {each: module for each, module in modules.items() if hasattr(module, "EXPERIMENTS")}
    if name not in programs:
        raise UserError(f"experiment {name}: expected the name of a program first: {', '.join(programs)}")
    return programs[name]


def job_of_task(task: Task, options: LaunchOptions) -> Job:
    """Return the job that trains a run. Raises UserError for options that cannot work at Modal."""
    return replace(
        training_job(task.words(), replace(options, run_name=run_name(task))), command="experiment"
    )


def run_name(task: Task) -> str:
    return f"{task.experiment}.{task.folder.name}"


def take_results(place: Place, due: list[Task], ended: Callable[[Task, dict], None]) -> list[Task]:
    """Give the results that are in a place to `ended`. Return the runs that have none there."""
    left = []
    for task in due:
        if result := place.read(f"{run_name(task)}/result.json"):
            ended(task, json.loads(result))
        else:
            left.append(task)
    return left
