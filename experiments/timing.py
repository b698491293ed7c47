"""The time of a step of each option set, by turns as in bench.py: other programs slow all of them alike."""

from dataclasses import replace
from statistics import median

import jax

from config.options import Options
from experiments.record import Record, machine
from parallel.mesh import make_mesh
from runs.hardware import choose_device
from runs.start import choose_config, open_dataset
from tools.benchmarks.variants import JaxStep, take_turns


def time_steps(record: Record, labels: list[str]) -> None:
    """Write the median milliseconds of a step of these option sets to the record."""
    choose_device("auto")
    with jax.set_mesh(make_mesh("data:1")):
        steps = []
        for label in labels:
            options = replace(Options(), **record.options[label])
            config = choose_config(options, open_dataset(options).meta)
            steps.append(JaxStep(config, options, name=label))
            steps[-1].run(1)
        times = take_turns(steps, None)
    about = machine()
    timed = f"on {about['date']} on {about['cpu']}, {about['versions'].partition(', equinox')[0]}"
    for label, found in times.items():
        record.set(label, ms=round(1e3 * median(found), 2), timed=timed)
        print(f"{label:36} {1e3 * median(found):8.2f} ms/step over {len(found)} turns")
