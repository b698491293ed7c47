"""app.py sweep: which runs a sweep has, which of them are due, and how they are compared."""

import pytest

import app
from common.command_line import given
from config.options import Options
from tests.helpers import ROOT, refusal, run_python, saved_iterations
from tools.cloud.jobs import LaunchOptions

GRID = ["--sweep=learning_rate:3e-4,1e-3", "--sweep=seed:1,2", "--max_iters=20", "--out_dir=grid"]


@pytest.mark.parametrize("remote", [True, False])
def test_the_product_has_a_run_for_each_combination(remote):
    jobs = app.plan_sweep([*GRID, "--batch_size=3"], LaunchOptions(), remote)
    found = {}
    for name, job in jobs.items():
        options = given(job.words, Options)
        assert (options["max_iters"], options["batch_size"]) == (20, 3)
        assert options["out_dir"] == (f"/vol/runs/{name}" if remote else name)
        found[name] = options["learning_rate"], options["seed"]
    assert found == {
        f"grid.learning_rate-{rate}.seed-{seed}": (float(rate), seed)
        for rate in ("3e-4", "1e-3")
        for seed in (1, 2)
    }


@pytest.mark.parametrize(
    "words, says",
    [
        (["--sweep=learning_rat:1"], "learning_rat is not an option; did you mean learning_rate?"),
        (["--sweep=n_layer:1,two"], "--n_layer is 'two': it should be a valid integer"),
        ([], "--sweep is missing"),
    ],
)
def test_a_mistake_is_one_line(words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in refusal(app.start, ["sweep", *words, "--out_dir=grid"])


@pytest.mark.slow
def test_a_sweep_here(tiny, tmp_path, monkeypatch, capsys):
    """A failed run stops no other; again, it trains what is not done, and no run with other options."""
    words = [*tiny("grid"), "--sweep=learning_rate:1e-2,1e-5", "--sweep=n_head:2,3"]
    done = run_python(ROOT / "app.py", "sweep", *words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    failed = [f"grid.learning_rate-{rate}.n_head-3" for rate in ("1e-2", "1e-5")]
    trained = [name.replace("n_head-3", "n_head-2") for name in failed]
    table = done.stdout.splitlines()[-4:]
    assert [line.split()[0].removesuffix(":") for line in table] == [*trained, *sorted(failed)]
    assert [line.endswith(": failed") for line in table] == [False, False, True, True]
    assert all(saved_iterations(tmp_path / name) == [5, 10] for name in trained)
    monkeypatch.chdir(tmp_path)
    words[words.index("--sweep=n_head:2,3")] = "--sweep=n_head:2"
    assert app.start(["sweep", *words]) == 0
    assert "training" not in capsys.readouterr().out
    says = refusal(app.start, ["sweep", *words, "--batch_size=3"])
    assert f"{trained[0]} holds a run with batch_size=4, and this launch has batch_size=3" in says
