"""The time of a step of each option set, to compare them at equal time: by turns, on a machine that is quiet.

What a run took while it trained says little, where other programs share the machine. Here the steps of all
sets take turns of about half a second, as in bench.py, so that whatever happens meets them all alike.
"""

from dataclasses import replace
from statistics import median
from typing import Any

import jax

from config.options import Options
from data.loader import load_meta, prepare_if_missing
from data.tokenizer import end_of_text
from experiments.record import Experiment, Record, machine
from parallel.mesh import make_mesh
from runs.hardware import choose_device
from tools.benchmarks.variants import JaxStep, take_turns
from training.state import model_config


class NamedStep(JaxStep):
    """The training step of an option set."""

    def __init__(self, label: str, values: dict[str, Any]):
        options = replace(Options(), **values)
        prepare_if_missing(options.dataset)
        meta = load_meta(options.dataset)
        config = model_config(options, options.vocab_size or meta.vocab_size, end_of_text(meta.tokenizer))
        super().__init__(config, options)
        self.name = label


def time_steps(experiment: Experiment, record: Record, labels: list[str]) -> Record:
    """Return the record with the median milliseconds of a step of each of these option sets."""
    choose_device("auto")
    sets = {label: experiment.options(label) for label in labels}
    with jax.set_mesh(make_mesh("data:1")):
        steps = [NamedStep(label, values) for label, values in sets.items()]
        for step in steps:
            step.run(1)
        times = take_turns(steps, None)
    about = machine()
    timed = f"on {about['date']} on {about['cpu']}, {about['versions'].partition(', equinox')[0]}"
    for label, values in sets.items():
        record = record.with_ms(label, values, round(1e3 * median(times[label]), 2), timed)
        print(f"{label:36} {1e3 * median(times[label]):8.2f} ms/step over {len(times[label])} turns")
    return record
