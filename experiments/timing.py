"""The time of a step of each option set, to compare them at equal time.

The steps of all sets take turns, as in bench.py, so that other programs slow all of them alike.
"""

from dataclasses import replace
from statistics import median

import jax

from config.options import Options
from data.dataset import load_meta, prepare_if_missing
from data.tokenizer import end_of_text
from experiments.record import Record, machine
from parallel.mesh import make_mesh
from runs.hardware import choose_device
from tools.benchmarks.variants import JaxStep, take_turns
from training.state import model_config


def time_steps(record: Record, labels: list[str]) -> None:
    """Measure a step of each of these option sets, and write the median milliseconds to the record."""
    choose_device("auto")
    with jax.set_mesh(make_mesh("data:1")):
        steps = []
        for label in labels:
            options = replace(Options(), **record.options[label])
            prepare_if_missing(options.dataset)
            meta = load_meta(options.dataset)
            config = model_config(options, options.vocab_size or meta.vocab_size, end_of_text(meta.tokenizer))
            steps.append(JaxStep(config, options, name=label))
            steps[-1].run(1)
        times = take_turns(steps, None)
    about = machine()
    timed = f"on {about['date']} on {about['cpu']}, {about['versions'].partition(', equinox')[0]}"
    for label, found in times.items():
        record.set(label, ms=round(1e3 * median(found), 2), timed=timed)
        print(f"{label:36} {1e3 * median(found):8.2f} ms/step over {len(found)} turns")
