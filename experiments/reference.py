"""The reference runs of the configs that two cores can train, which train.py compares runs with.

config/reference/ has a file for each config. Two of them have experiments of their own: best.py, and
precision.py, whose runs in bfloat16 are the CPU Shakespeare config as it is.
"""

import json
from pathlib import Path

from config.command_line import command, given
from config.files import HOLDS_TOKENIZER, read_json, write_whole
from config.options import Options
from data.dataset import dataset_dir
from experiments import best, precision
from experiments.record import ROOT, Experiment, Record, data_mark
from experiments.report import draw_curves, seed_interval
from experiments.runner import parse, run
from runs.reference import FOLDER, mattering

QUICKSTART = Experiment(
    name="quickstart",
    program="reference",
    question="What do runs of the quickstart come to?",
    config="config/quickstart.py",
    sets={"as it is": {}},
    draw=draw_curves,
)
SOURCES = (
    (precision.EXPERIMENTS[0], "bfloat16"),
    (best.EXPERIMENTS[0], "as it is"),
    (QUICKSTART, "as it is"),
)


def main(argv: list[str]) -> int:
    status, asked = run([QUICKSTART], __doc__, argv), parse(argv, __doc__)
    if not (asked.list or asked.draw):
        for experiment, label in SOURCES:
            record = Record(experiment)
            if record.losses(label).count() >= experiment.seeds:
                write_reference(record, label, FOLDER)
    return status


def write_reference(record: Record, label: str, folder: Path) -> None:
    """Write the reference of a config, of the runs of one option set, if their data are here.

    What is published there stays.
    """
    experiment, runs = record.experiment, record.runs(label)
    options = mattering(given([str(ROOT / experiment.config)], Options))
    path = folder / f"{Path(experiment.config).stem}.json"
    dataset = options.get("dataset", Options.dataset)
    mark = data_mark(dataset)
    if mark is None or {run.get("data") for run in runs} != {mark}:
        print(f"{path} stays: the {dataset} that its runs have read is not here")
        return
    meta = read_json(dataset_dir(dataset) / "meta.json", HOLDS_TOKENIZER)
    made = f"python -m experiments.{experiment.program}", *(runs[-1][x] for x in ("versions", "cpu", "date"))
    values = {
        "config": experiment.config,
        "options": options,
        "data": {"sha256": meta["sha256"], "source": meta["source"]},
        "runs": {str(run["seed"]): [[step, val] for step, _, val in run["evaluations"]] for run in runs},
        "within": round(seed_interval(record.losses(label)), 5),
        "made": "; ".join(made),
    }
    if path.exists() and (published := read_json(path).get("published")):
        values["published"] = published
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n", "make room there")
    print(f"the reference: {path}")


if __name__ == "__main__":
    command(main)
