"""Short runs of other code: its options, the time of its steps, and the loss that counts."""

import json
from dataclasses import replace

import pytest

from evaluate import main as evaluate
from experiments import trial
from experiments.record import Experiment, Variant
from experiments.runner import run
from experiments.snapshot import Snapshot, program
from experiments.trial import options_of, short_run, time_by_turns
from tests.experiments.conftest import OPTIONS
from tests.helpers import refusal


@pytest.fixture
def version(tmp_path):
    """`version(code)` makes a version whose train.py does this in its out_dir, and then waits for ever."""

    def make(code: str) -> Snapshot:
        (tmp_path / "train.py").write_text(
            "import json, os, sys, time\n"
            "words = dict(word[2:].split('=', 1) for word in sys.argv[1:])\n"
            "os.chdir(words['out_dir'])\n"
            f"{code}\n"
            "time.sleep(600)\n"
        )
        return Snapshot(tmp_path, "theirs", {})

    return make


def test_a_versions_options_are_those_that_its_train_py_writes(version):
    """Which is then ended."""
    code = version("json.dump(words | {'n_layer': 3}, open('options.json', 'w'))")
    found = options_of(code, ["--sharpness=2.5"])
    assert found["sharpness"] == "2.5" and found["n_layer"] == 3


def test_a_version_that_does_not_train_is_refused_in_a_line(version):
    for code, said in {
        "sys.exit('error: --qk is no option')": "theirs: --qk is no option",
        "open('options.json', 'w').write('[1]')": "theirs: its options cannot be read (",
    }.items():
        assert refusal(options_of, version(code), []).startswith(said)


def test_the_time_of_a_step_is_the_median_behind_the_first_ones(version, monkeypatch):
    monkeypatch.setattr(trial, "SECONDS", 0.03)
    times = [900.0, 800.0, 700.0, *[5.0] * 5, 6.0, 400.0]
    lines = [json.dumps({"iter": i, "loss": float(i), "ms": ms}) + "\n" for i, ms in enumerate(times)]
    lines.insert(0, '{"iter": 0, "train/loss": 4.0, "val/loss": 4.0}\n')
    code = version(f"open('metrics.jsonl', 'w').write({''.join(lines)!r})")
    assert short_run(Variant(code, {"dataset": "x"})) == (5.0, [float(i) for i in range(10)])


def test_a_run_that_diverges_is_timed_with_a_rate_that_changes_nothing(version, monkeypatch):
    monkeypatch.setattr(trial, "SECONDS", 0.0)
    lines = "".join(json.dumps({"iter": i, "loss": 1.0, "ms": 5.0}) + "\n" for i in range(10))
    diverges = "if words['learning_rate'] == '1e30': sys.exit('error: iter 1: loss is nan')"
    code = version(f"{diverges}\nopen('metrics.jsonl', 'w').write({lines!r})")
    assert short_run(Variant(code, {"dataset": "x", "learning_rate": "1e30"})) == (5.0, [])


def test_times_are_ratios_of_neighbours_in_time_with_students_interval(monkeypatch, capsys):
    """The machine is twice as slow in the second turn. Other code with the same losses is named."""
    base = Variant(Snapshot(None, "", {"model.py": "a"}), {})
    idle, other = (replace(base, code=Snapshot(None, "", {"model.py": x})) for x in "bc")
    times = iter([2.0, 3.0, 3.0, 4.0, 6.0, 5.6, 2.0, 3.0, 3.2, 2.0, 3.0, 2.8, 2.0, 3.0, 3.2])
    losses = {"a": [4.0], "b": [4.0], "c": [4.1]}
    monkeypatch.setattr(trial, "short_run", lambda x: (next(times), losses[x.code.files["model.py"]]))
    found = time_by_turns({"base": base, "idle": idle, "other": other})
    half = (
        2.7764 * 0.1 / 5**0.5
    )  # Student's t of four degrees of freedom; the ratios are 1.5, 1.4, 1.6, 1.4, 1.6
    assert found == dict(base=(2.0, 0.0), idle=(3.0, 0.0), other=(3.0, pytest.approx(half, rel=1e-4)))
    assert capsys.readouterr().err == "idle: 10 steps change nothing: does fast.py override it?\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_loss_that_is_trained_is_not_the_one_that_counts(clone, tiny_data, tmp_path):
    """The code's own evaluate.py finds the cross entropy, whatever train.py reports."""
    half = "return 0.5 * self.mean_nats(self.features(tokens, key=key), targets)"
    patch = f"\n\ndef loss(self, tokens, targets, *, key=None):\n    {half}\n\n\nFastGPT.loss = loss\n"
    (clone / "fast.py").write_text((clone / "fast.py").read_text() + patch)
    code = Snapshot(clone, "theirs", program(clone))
    variant = Variant(code, OPTIONS | {"dataset": str(tiny_data)})
    experiment = Experiment(tmp_path / "it.json", "?", "python -m it", {"it": variant}, 1, metric="loss")
    assert run(experiment, ["it"], 1, tmp_path) == 0
    (result,) = experiment.record().sets["it"].runs
    (folder,) = tmp_path.glob("runs/*")
    evaluate([f"--out_dir={folder}", f"--json={tmp_path / 'found.json'}", "--device=cpu"])
    found = json.loads((tmp_path / "found.json").read_text())["loss"]
    assert result.loss == pytest.approx(found, rel=1e-6)
    assert abs(result.val - result.loss) > 0.005
