"""app.py as its user meets it, without an account. At Modal: tests/tools/cloud."""

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields

import pytest
from modal.cli.import_refs import infer_runnable, list_cli_commands

import app
from common.command_line import given, option_types
from config.options import Options
from tests.helpers import (
    DEADLINE,
    ROOT,
    error_line,
    newest_checkpoint,
    refusal,
    saved_iterations,
    start_python,
    wait_until,
)
from tests.tools.cloud.launches import LONG, namespaces
from tools.cloud.jobs import (
    BURST,
    COMMANDS,
    CORE,
    GIB,
    LaunchOptions,
    machine_of,
    make_job,
    options_of,
    split_launch,
)

no_network = pytest.mark.skipif(not namespaces("-rn"), reason="needs Linux's network namespaces")


@pytest.mark.parametrize(
    "flag, chosen",
    [
        (["--run-on-remote", "true"], {"run_on_remote": True}),
        (["--run_on_remote=True"], {"run_on_remote": True}),
        (["--run-on-remote", "false"], {"run_on_remote": False}),
        (["--gpu", "H100:8"], {"gpu": "H100:8"}),
        ([], {}),
    ],
)
def test_every_form_of_an_option_before_and_after_other_words(flag, chosen):
    others = ["config/quickstart.py", "--batch-size", "8", "--bias=True", "--start=it is=true"]
    for words in (flag + others, others + flag):
        assert split_launch(words) == (chosen, others)


def test_no_launcher_option_hides_one_of_the_scripts():
    from bench import BenchOptions

    launcher = set(option_types(LaunchOptions))
    for name in COMMANDS:
        assert not launcher & set(option_types(options_of(name))), name
    assert not launcher & {field.name for field in fields(BenchOptions)}


def test_modal_finds_an_entrypoint_by_every_command():
    entrypoints = list_cli_commands(vars(app))
    assert {infer_runnable(entrypoints, name, True, False) for name in ("", *COMMANDS)} == {app.main}


def test_options_travel_with_their_values(tmp_path):
    config = tmp_path / "elsewhere.py"
    config.write_text("n_layer = 2 * 3\ndataset = 'book_char'\nout_dir = 'runs/mine'\nn_kv_head = None\n")
    argv = [str(config), "--learning_rate", "1e-3", "--wandb_project=a b"]
    job = make_job("train", argv, LaunchOptions())
    assert job.name == "mine" and job.words[-1] == "--out_dir=/vol/runs/mine"
    theirs = {"device": "cuda", "out_dir": "/vol/runs/mine"}
    assert given(job.words, Options) == given(argv, Options) | theirs
    on_cpus = make_job("train", [*argv, "--device=cpu"], LaunchOptions())
    assert given(on_cpus.words, Options)["device"] == "cpu"
    assert "device" not in given(make_job("train", argv, LaunchOptions(gpu="none")).words, Options)


@pytest.mark.parametrize(
    "name, words, theirs",
    [
        ("sample", ["--num_samples=1", "--start=FILE:prompt.txt"], ["--num_samples=1", "--start=a\n"]),
        ("bench", ["--steps", "3", "--batch_size", "3", "--loop"], ["--batch_size=3", "--steps=3"]),
        ("prepare", ["openwebtext", "--limit=100"], ["--limit=100", "--num_proc=24"]),
        ("prepare", ["tinystories", "--num_proc=3"], ["--num_proc=3"]),
    ],
)
def test_words_that_travel_in_another_form(name, words, theirs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.txt").write_text("a\n")
    job = make_job(name, words, LaunchOptions(gpu="none", cores=24))
    assert job.words[: len(theirs)] == theirs


@pytest.mark.parametrize(
    "words, says",
    [
        ("trian", "trian is not a command; did you mean train? There are train, sample, prepare, "),
        ("--n_layers=2", "--n_layers is not an option; did you mean n_layer?"),
        ("--gpu=H1000", "--gpu=H1000: expected one of none, T4, L4, A10,"),
        ("--gpu=H100:9", "--gpu=H100:9: expected"),
        ("--n_layer=2 --gpu=H100", "that is above --max-dollars=20: give --max-dollars=53"),
        ("--run-name=a/b", "--run_name is 'a/b': expected letters"),
        ("--out_dir=/", "--run_name is '': expected letters"),
        ("--overwrite=True", "modal volume rm -r nanojaxgpt runs/out"),
        ("prepare openwebtext --to=/x", "--to=/x: the Volume has it as data/openwebtext"),
        ("prepare ../x", "first comes the name of a data set: "),
        ("prepare openwebtext --limits=3", "--limits"),
        ("fetch", "--run-name is missing: fetch needs one"),
        ("list big", "big: list takes --run-name and --run-on-remote alone"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_rented(words, says, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert says in refusal(app.start, [*words.split(), "--run-on-remote"])


@pytest.mark.parametrize("gpu, price", [("H100", 3.95), ("L4:2", 1.60), ("H200:8", 36.32), ("none", 0)])
def test_the_price_of_a_machine_is_its_gpus_and_the_cores_and_memory_that_it_may_use(gpu, price):
    machine = machine_of(LaunchOptions(gpu=gpu))
    rest = BURST * (machine.cores * CORE + machine.gib * GIB)
    assert machine.dollars == pytest.approx(price + rest) and 0 < rest < 4


@pytest.mark.parametrize(
    "words, cost, script",
    [
        ("", "$0.62: 0.5 h x $1.25 (L4, ", "train.py --dataset=book_char "),
        ("config/quickstart.py --gpu=H100 --timeout-hours=2", "$26.37: 3 attempts x 2 h x ", "train.py "),
        ("sample --run-name=x", "$1.55: 1 h ", "sample.py --device=cuda --out_dir=/vol/runs/x"),
        ("profile config/quickstart.py", "$1.55: 1 h ", "bench.py --device=cuda "),
        ("bench --steps=3", "$1.55: 1 h ", "bench.py --device=cuda --steps=3"),
        ("export --run-name=x", "$0.63: 1 h x $0.63 (none, 4 cores, ", "export.py --out_dir="),
        ("prepare openwebtext", "$16.20: 2 attempts x 4 h x $2.03 (none, 16 cores, ", "data/prepare.py "),
        ("serve --run-name=x --timeout-hours=1", "$1.55: 1 h ", "serve.py "),
        ("sweep --sweep=seed:1,2", "$37.08: 2 runs x 3 attempts x 4 h ", "train.py "),
    ],
)
def test_every_command_says_first_what_it_can_cost_and_runs(words, cost, script, capsys):
    assert app.start([*words.split(), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert f"costs at most {cost}" in printed and f": {script}" in printed


@pytest.fixture
def started(monkeypatch):
    """The scripts that are started, each with its words; none runs."""
    started = []
    monkeypatch.setattr(
        "tools.cloud.jobs.run_script", lambda *words: (started.append(words[:2]), (0, None))[1]
    )
    return started


@pytest.mark.parametrize(
    "words, script, expected",
    [
        ("evaluate --run-name=big", "evaluate.py", ["--out_dir=big", "--json=big/evaluate.json"]),
        ("export --out_dir=big --to=there", "export.py", ["--out_dir=big", "--to=there"]),
        ("prepare tinystories --limit=3", f"{ROOT}/data/tinystories/prepare.py", ["--limit=3"]),
        ("prepare mine --source=x", "data/prepare.py", ["--source=x", f"--to={ROOT}/data/mine"]),
        ("config/x.py --seed=3", "train.py", ["config/x.py", "--seed=3"]),
        ("config/x.py --run-name=big", "train.py", ["config/x.py", "--out_dir=big"]),
    ],
)
def test_commands_have_one_form_here(started, words, script, expected):
    assert app.start(words.split()) == 0 and started == [(script, expected)]


@pytest.mark.parametrize("name, folder", [([], "out-quickstart"), (["--run-name=mine"], "mine")])
def test_without_a_word_it_trains_the_quickstart_and_shows_a_sample(started, capsys, name, folder):
    assert app.start(name) == 0
    (train, training), (sample, sampling) = started
    assert (train, sample) == ("train.py", "sample.py") and f"--out_dir={folder}" in sampling
    assert given(training, Options) == given(["config/quickstart.py"], Options) | {
        "out_dir": folder,
        "init_from": "auto",  # typed again, it shows another sample
    }
    assert "config/quickstart.py" in capsys.readouterr().out


@pytest.mark.slow
@no_network
def test_here_it_needs_no_network(tiny, tmp_path):
    def alone(*words):
        command = ["unshare", "-rn", sys.executable, ROOT / "app.py", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    run = alone(*tiny("out"), "--run-name=mine", "--run-on-remote", "false")
    assert run.returncode == 0 and saved_iterations(tmp_path / "mine") == [5, 10]
    run = alone(*tiny("out", n_head=3))
    assert run.returncode == 2 and error_line(run.stderr)
    run = alone("--dry-run", *tiny("out", dataset="tiny"), "--gpu=H100:8")
    assert run.returncode == 0 and "3 attempts x 4 h" in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM"])
def test_a_signal_has_a_run_here_save_and_end_with_that_of_a_stopped_one(tiny, tmp_path, signal_name):
    process = start_python(ROOT / "app.py", *tiny(tmp_path / "out", **LONG), cwd=tmp_path)
    wait_until(lambda: newest_checkpoint(tmp_path / "out"), process)
    process.send_signal(getattr(signal, signal_name))
    printed, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 143, errors  # the signal reaches it as SIGTERM
    stopped_at = saved_iterations(tmp_path / "out")[-1]
    assert stopped_at < LONG["max_iters"] and f"stopped at iter {stopped_at};" in printed


RECORDS = [
    {"iter": 0, "train/loss": 4.0, "val/loss": 4.1},
    {"iter": 0, "loss": 4.0, "lr": 0.0},
    {"iter": 10, "train/loss": 2.0, "val/loss": 2.5},
    {"iter": 20, "train/loss": 1.0, "val/loss": 3.0},
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of 20 steps in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "options.json").write_text(json.dumps(vars(Options(max_iters=20))))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return folder


def test_the_list_has_a_line_for_each_run(run, capsys, tmp_path):
    (tmp_path / "no-run").mkdir()
    app.start(["list"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[0] == "mine" and "iter 20, val loss 3.0000, best 2.5000" in line
    (run / "options.json").unlink()
    app.start(["list"])
    assert capsys.readouterr().out == "no run is there\n"


def test_watching_shows_each_record_once_and_ends_with_the_run(run, capsys, monkeypatch):
    """Also when it is resumed meanwhile, and does its last steps again."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    written = [lines[:3], lines[:1], lines]
    monkeypatch.setattr(
        time, "sleep", lambda seconds: (run / "metrics.jsonl").write_text("".join(written.pop(0)))
    )
    time.sleep(0)
    app.start(["watch", "--run-name=mine"])
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "iter 0, train/loss 4, val/loss 4.1" and not written
    assert [int(re.split("[ ,]", line)[1]) for line in shown] == [0, 0, 10, 0, 10, 20]
    assert "--run-name=other: there is no such run" in refusal(app.start, ["watch", "--run-name=other"])
