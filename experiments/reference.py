"""The reference runs of the configs that two cores can train, which train.py compares runs with.

Two configs have experiments of their own: best.py, and precision.py, in bfloat16 the CPU Shakespeare config.
"""

from pathlib import Path

from config.command_line import command, given
from config.files import read_json
from config.options import Options
from experiments import best, precision
from experiments.record import ROOT, Experiment, Record, data_mark
from experiments.report import seed_interval
from experiments.runner import run
from runs.reference import FOLDER, Reference, data_of, mattering

QUICKSTART = Experiment(
    name="quickstart",
    question="What do runs of the quickstart come to?",
    sets={"as it is": {}},
    program="reference",
    config="config/quickstart.py",
)
SOURCES = (
    (precision.EXPERIMENTS[0], "bfloat16"),
    (best.EXPERIMENTS[0], "as it is"),
    (QUICKSTART, "as it is"),
)


def main(argv: list[str]) -> int:
    status = run([QUICKSTART], argv)
    for experiment, label in SOURCES if not {"--list", "--draw"} & {*argv} else ():
        record = Record(experiment)
        if record.losses(label).count() >= experiment.seeds:
            write_reference(record, label, FOLDER)
    return status


def write_reference(record: Record, label: str, folder: Path) -> None:
    """Write a config's reference, of one option set's runs, if their data are here. `published` stays."""
    experiment, runs = record.experiment, record.runs(label)
    options = mattering(given([str(ROOT / experiment.config)], Options))
    path = folder / f"{Path(experiment.config).stem}.json"
    dataset = options.get("dataset", Options.dataset)
    if {run.get("data") for run in runs} != {data_mark(dataset)}:
        print(f"{path} stays: the {dataset} that its runs have read is not here")
        return
    made = (
        f"python -m experiments.{experiment.program or experiment.name}",
        *(runs[-1][x] for x in ("versions", "cpu", "date")),
    )
    Reference(
        config=experiment.config,
        options=options,
        data=data_of(dataset),
        runs={str(run["seed"]): [[step, val] for step, _, val in run["evaluations"]] for run in runs},
        within=round(seed_interval(record.losses(label)), 5),
        made="; ".join(made),
        published=Reference(**read_json(path)).published if path.exists() else {},
    ).write(path)
    print(f"the reference: {path}")


if __name__ == "__main__":
    command(main)
