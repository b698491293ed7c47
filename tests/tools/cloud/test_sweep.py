"""tools/cloud/sweep.py: which runs a sweep has, which of them are due, and how they are compared."""

import config.interrupt  # noqa: F401  now: imported within a test, it would have Ctrl-C end them all

import json

import pytest

import app
from config.command_line import given
from config.options import Options
from runs.load import load_run
from tests.helpers import ROOT, assert_same_bits, refusal, run_python, saved_iterations
from tools.cloud.commands import Job
from tools.cloud.options import LaunchOptions
from tools.cloud.places import Here
from tools.cloud.sweep import plan_sweep, run_sweep

GRID = ["--sweep=learning_rate:3e-4,1e-3", "--sweep=seed:1,2", "--max_iters=20", "--out_dir=grid"]


def plan(*words):
    return plan_sweep([*GRID, *words], LaunchOptions(), app.training_job_here)


def write_run(folder, name: str, job: Job, losses: dict[int, float]) -> None:
    """Leave what a run leaves that has the job's options and has come to the last of the losses."""
    (folder / name / "checkpoints" / str(max(losses))).mkdir(parents=True)
    options = Options(**given(job.words, Options)).to_json()
    (folder / name / "options.json").write_text(json.dumps(options))
    records = [{"iter": i, "train/loss": loss, "val/loss": loss} for i, loss in losses.items()]
    (folder / name / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A `train` for `run_sweep`, which notes the jobs; `losses` has what a run comes to, by its name."""
    monkeypatch.chdir(tmp_path)

    def train(jobs):
        train.trained += [job.run_name for job in jobs]
        statuses = []
        for job in jobs:
            options = given(job.words, Options)
            loss = train.losses.get(job.run_name, 2.0)
            statuses.append(0 if loss else 2)
            if loss and not (tmp_path / job.run_name).exists():
                write_run(tmp_path, job.run_name, job, {0: 4.0, options["max_iters"]: loss})
            elif loss:
                (tmp_path / job.run_name / "checkpoints" / str(options["max_iters"])).mkdir()
        return statuses

    train.trained, train.losses = [], {}
    return train


NAMES = [f"grid.learning_rate-{rate}.seed-{seed}" for rate in ("3e-4", "1e-3") for seed in (1, 2)]


def test_the_product_has_a_run_for_each_combination():
    sweep = plan("--sweep_iters=5", "--batch_size=3")
    assert [job.run_name for job in sweep.jobs] == NAMES
    assert (sweep.iters, sweep.full, sweep.best) == (5, 20, False)
    for job, variant in zip(sweep.jobs, sweep.variants, strict=True):
        options = given(job.words, Options)
        assert options["learning_rate"] == float(variant["learning_rate"])
        assert options["seed"] == int(variant["seed"])
        assert (options["max_iters"], options["batch_size"]) == (5, 3)


@pytest.mark.parametrize(
    "word, says",
    [
        ("--sweep=learning_rat:1", "learning_rat is not an option; did you mean learning_rate?"),
        ("--sweep=n_layer", "expected an option and its values"),
        ("--sweep=n_layer:1,,2", "expected an option and its values"),
        ("--sweep=n_layer:1,1", "a value is there twice"),
        ("--sweep=n_layer:1,two", "--sweep: n_layer is 'two', expected an integer, 1 or more"),
        ("--sweep=out_dir:a,b", "out_dir is no axis of a sweep"),
        ("--sweep=mesh:data:2,data-2", "two runs would have the same name"),
        ("--sweep_iters=0", "--sweep_iters is 0, expected an integer, 1 or more"),
        ("--best=maybe", "--best is 'maybe', expected True or False"),
        ("--n_layers=2", "--n_layers is not an option"),
    ],
)
def test_a_mistake_is_one_line(word, says):
    assert says in refusal(plan, word)


def test_a_sweep_without_an_axis_is_refused():
    says = refusal(plan_sweep, ["--out_dir=grid"], LaunchOptions(), app.training_job_here)
    assert says.startswith("--sweep is missing")


def test_runs_are_compared_and_what_is_done_is_not_done_again(trainer, capsys, tmp_path):
    trainer.losses = dict(zip(NAMES, (1.75, 1.5, None, 1.25), strict=True))
    assert run_sweep(plan(), Here(), trainer) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:5]] == [NAMES[3], NAMES[1], NAMES[0], NAMES[2]]
    assert lines[1].split()[:5] == ["1e-3", "2", "1.2500", "1.2500", "finished"]
    assert lines[5] == f"failed: {NAMES[2]}; the same command tries these again"
    assert (tmp_path / "grid.sweep.png").read_bytes().startswith(b"\x89PNG")
    trainer.trained.clear()
    trainer.losses[NAMES[2]] = 1.0
    assert run_sweep(plan(), Here(), trainer) == 0
    assert trainer.trained == [NAMES[2]]


def test_the_best_goes_on_to_its_end(trainer, tmp_path):
    trainer.losses = dict(zip(NAMES, (1.75, 1.5, 1.6, 1.9), strict=True))
    assert run_sweep(plan("--sweep_iters=5", "--best"), Here(), trainer) == 0
    assert trainer.trained == [*NAMES, NAMES[1]]
    assert saved_iterations(tmp_path / NAMES[1]) == [5, 20] and saved_iterations(tmp_path / NAMES[0]) == [5]
    trainer.trained.clear()
    assert run_sweep(plan("--sweep_iters=5", "--best"), Here(), trainer) == 0
    assert trainer.trained == []


def test_a_run_of_the_same_name_with_other_options_is_refused(trainer):
    run_sweep(plan(), Here(), trainer)
    says = refusal(run_sweep, plan("--batch_size=3"), Here(), trainer)
    assert f"{NAMES[0]} holds a run with batch_size=12, and this launch has batch_size=3" in says


@pytest.mark.slow
def test_a_sweep_here(tiny, tmp_path):
    """A failed run stops no other; the best is, to the bit, the run that was never stopped."""
    words = [
        *tiny("grid"),
        "--sweep=learning_rate:1e-2,1e-5",
        "--sweep=n_head:2,3",
        "--sweep_iters=5",
        "--best",
    ]
    done = run_python(ROOT / "app.py", "sweep", *words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    failed = [f"grid.learning_rate-{rate}.n_head-3" for rate in ("1e-2", "1e-5")]
    assert f"failed: {', '.join(failed)};" in done.stdout
    best = tmp_path / "grid.learning_rate-1e-2.n_head-2"
    assert (
        saved_iterations(best) == [5, 10] and f"the best, to its end at iter 10: {best.name}" in done.stdout
    )
    run_python(ROOT / "train.py", *tiny("whole"), cwd=tmp_path)
    assert_same_bits(load_run(str(best))[0], load_run(str(tmp_path / "whole"))[0])
