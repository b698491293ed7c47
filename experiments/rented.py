"""Train one run of an experiment on a rented machine, with the options of train.py.

`app.py experiment` starts this in a container, and reads `result.json` in the run's folder from the Volume.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script imports from its own folder

import jax

from config.command_line import command, given
from config.files import write_whole
from config.options import Options
from data.dataset import prepare_if_missing
from experiments.runner import Task, train_all
from runs.hardware import describe_cpu


def main(argv: list[str]) -> int:
    """Train a run. Return 0 if it has a result, or else 1."""
    values = given(argv, Options)
    folder, seed = Path(values.pop("out_dir")), values.pop("seed")
    task = Task("", folder.name, values, seed, folder)

    def leave(task: Task, result: dict) -> None:
        device = jax.devices()[0]  # now: the run has freed its memory
        machine = describe_cpu() if device.platform == "cpu" else device.device_kind
        write_whole(folder / "result.json", json.dumps(result | {"cpu": machine}))

    prepare_if_missing(task.dataset)
    return 1 if train_all([task], 1, leave) else 0


if __name__ == "__main__":
    command(main)
