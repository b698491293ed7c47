"""The reference runs of the configs that two cores can train, and what config/reference/ has of them.

train.py compares runs of the same options with them. Two of the configs have experiments of their own:
best.py, and precision.py, whose runs in bfloat16 are those of the CPU Shakespeare config as it is, on a CPU
that multiplies bfloat16.
"""

import json
from pathlib import Path

from config.command_line import command, given
from config.files import HOLDS_TOKENIZER, read_json, write_whole
from config.options import Options
from data.registry import dataset_dir
from experiments import best, precision
from experiments.record import ROOT, Experiment, Record, data_mark, read_record
from experiments.report import draw_curves, seed_interval
from experiments.runner import RESULTS, parse, run
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
    if asked.list or asked.draw:
        return status
    for experiment, label in SOURCES:
        record = read_record(RESULTS / f"{experiment.name}.json")
        if len(record.summary(label, experiment.options(label)).losses) >= experiment.seeds:
            write_reference(experiment, label, record, FOLDER)
    return status


def write_reference(experiment: Experiment, label: str, record: Record, folder: Path) -> None:
    """Write the reference of a config, of the runs of one option set, if their data are here.

    What is published there stays.
    """
    runs = record.runs(label, experiment.options(label))
    options = mattering(given([str(ROOT / experiment.config)], Options))
    path = folder / f"{Path(experiment.config).stem}.json"
    known = read_json(path) if path.exists() else {}
    dataset = options.get("dataset", Options.dataset)
    mark = data_mark(dataset)
    if mark is None or {run.get("data") for run in runs} != {mark}:
        print(f"{path} stays: the {dataset} that its runs have read is not here")
        return
    meta = read_json(dataset_dir(dataset) / "meta.json", HOLDS_TOKENIZER)
    values = {
        "config": experiment.config,
        "options": options,
        "data": {"sha256": meta["sha256"], "source": meta["source"]},
        "runs": {str(run["seed"]): [[step, val] for step, _, val in run["evaluations"]] for run in runs},
        "within": round(seed_interval([run["val"] for run in runs]), 5),
        "made": f"python -m experiments.{experiment.program}; {runs[-1]['versions']}; {runs[-1]['cpu']}; "
        f"{runs[-1]['date']}",
    }
    if published := known.get("published"):
        values["published"] = published
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n", "make room there")
    print(f"the reference: {path}")


if __name__ == "__main__":
    command(main)
