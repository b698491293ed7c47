"""Train one run of an experiment on a rented machine, and leave its result in the run's folder.

`app.py experiment` starts this in a container, with the options of train.py, and reads the result from the
Volume. The container sees no results of other runs.
"""

import json
import sys
from pathlib import Path

# When this runs as a script, Python looks for imports in this folder only;
# `config` and `experiments` are one level up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

import jax

from config.command_line import command, given
from config.files import write_whole
from config.options import Options
from data.dataset import prepare_if_missing
from experiments.runner import Task, train_all
from runs.hardware import describe_cpu


def main(argv: list[str]) -> int:
    """Train the run of a command line of train.py's. Return 0 if it has a result, or else 1."""
    values = given(argv, Options)
    folder, seed = Path(values.pop("out_dir")), values.pop("seed")
    task = Task("", folder.name, values, seed, folder)

    def leave(task: Task, result: dict) -> None:
        device = jax.devices()[0]  # now: while the run trained, its GPU's memory was its own
        machine = describe_cpu() if device.platform == "cpu" else device.device_kind
        write_whole(folder / "result.json", json.dumps(result | {"cpu": machine}))

    prepare_if_missing(task.dataset)
    return 1 if train_all([task], 1, leave) else 0


if __name__ == "__main__":
    command(main)
