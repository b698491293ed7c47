"""app.py as its user meets it, without an account. At Modal: tests/tools/cloud."""

import config.interrupt  # noqa: F401  now: imported within a test, it would have Ctrl-C end them all

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields

import pytest

import app
from config.command_line import given, option_types
from config.options import Options
from tests.helpers import (
    DEADLINE,
    ROOT,
    contents,
    error_line,
    newest_checkpoint,
    refusal,
    saved_iterations,
    start_python,
    wait_until,
)
from tests.tools.cloud.launches import LONG, namespaces
from tools.cloud import places
from tools.cloud.jobs import COMMANDS, make_job, options_of
from tools.cloud.options import (
    BURST,
    RATES,
    LaunchOptions,
    machine_of,
    split_launch,
)

no_network = pytest.mark.skipif(not namespaces("-rn"), reason="needs Linux's network namespaces")


def start(*words: str) -> int:
    return app.start_by_name(list(words))


# The command line


@pytest.mark.parametrize(
    "flag, chosen",
    [
        (["--run-on-remote", "true"], {"run_on_remote": True}),
        (["--run-on-remote"], {"run_on_remote": True}),
        (["--run_on_remote=True"], {"run_on_remote": True}),
        (["--run-on-remote", "false"], {"run_on_remote": False}),
        (["--run-on-remote=false"], {"run_on_remote": False}),
        (["--gpu", "H100:8"], {"gpu": "H100:8"}),
        (["--timeout-hours=0.5"], {"timeout_hours": 0.5}),
        ([], {}),
    ],
)
def test_every_form_of_an_option_before_and_after_other_words(flag, chosen):
    others = ["config/quickstart.py", "--batch-size", "8", "--bias=True", "--start=it is=true"]
    for words in (flag + others, others + flag):
        assert split_launch(words) == (LaunchOptions(**chosen), others)


def test_no_launcher_option_hides_one_of_the_scripts():
    from bench import BenchOptions

    launcher = set(option_types(LaunchOptions))
    for name in COMMANDS:
        assert not launcher & set(option_types(options_of(name))), name
    assert not launcher & {field.name for field in fields(BenchOptions)}


def test_options_travel_with_their_values(tmp_path):
    config = tmp_path / "elsewhere.py"
    config.write_text("n_layer = 2 * 3\ndataset = 'python_char'\nout_dir = 'runs/mine'\nn_kv_head = None\n")
    argv = [str(config), "--learning_rate", "1e-3", "--wandb_project=a b"]
    job = make_job("train", argv, LaunchOptions())
    assert job.run_name == "mine"
    assert given(job.words, Options) == {"device": "cuda"} | given(argv, Options)
    on_cpus = make_job("train", [*argv, "--device=cpu"], LaunchOptions())
    assert given(on_cpus.words, Options)["device"] == "cpu"
    assert "device" not in given(make_job("train", argv, LaunchOptions(gpu="none")).words, Options)


def test_a_prompt_in_a_file_travels_as_its_text(tmp_path):
    (tmp_path / "prompt.txt").write_text("Twas brillig\n")
    words = ["--num_samples=1", f"--start=FILE:{tmp_path}/prompt.txt"]
    job = make_job("sample", words, LaunchOptions(run_name="x", gpu="none"))
    assert job.words == ["--num_samples=1", "--start=Twas brillig\n"]


def test_benchs_own_options_travel_too():
    job = make_job("bench", ["--steps", "3", "--batch_size", "3", "--loop"], LaunchOptions(gpu="none"))
    assert job.words == ["--batch_size=3", "--steps=3", "--loop=True"]


def test_data_are_tokenized_on_all_the_cores_that_are_rented():
    options = LaunchOptions(gpu="none", cores=24)
    assert make_job("prepare", ["openwebtext", "--limit=100"], options).words == [
        "--limit=100",
        "--num_proc=24",
    ]
    assert make_job("prepare", ["tinystories", "--num_proc=3"], options).words == ["--num_proc=3"]


@pytest.mark.parametrize(
    "words, says",
    [
        ("--n_layers=2", "--n_layers is not an option; did you mean n_layer?"),
        ("config/nosuch.py", "config/nosuch.py: there is no such config file"),
        ("--timeout-hours=25", "--timeout_hours is 25: it should be less than or equal to 24"),
        ("--gpu", "--gpu needs a value"),
        ("--gpu=H1000", "--gpu=H1000: H1000 is none of T4, L4, A10,"),
        ("--gpu=H100:9", "H100:9 is none of"),
        ("--retries=11", "--retries is 11: it should be less than or equal to 10"),
        ("--n_layer=2 --gpu=H100", "that is above --max-dollars=20: give --max-dollars=53"),
        ("--timeout-hours=24 --retries=10", "above --max-dollars=20"),
        ("serve --run-name=x --detach", "above --max-dollars=20"),  # deployed, it is paid by the day
        ("--dry-run=maybe", "--dry_run is 'Maybe': it should be a valid boolean"),
        ("--run-name=a/b", "--run_name is 'a/b': String should match pattern"),
        ("--out_dir=/", "--run_name is '': String should match pattern"),
        ("--overwrite=True", "modal volume rm -r nanojaxgpt runs/out"),
        ("--wandb_log=True", "--secret=NAME"),
        ("sample --run-name=x --nodes=2", "--nodes=2 is for training"),
        ("--nodes=2 --gpu=H100", "--nodes=2 needs machines with all their GPUs"),
        ("--gpu=A10:5", "A10:5 is none of"),
        ("serve --run-name=x --follow=True", "a server sees the run as it was"),
        ("evaluate --run-name=x --hellaswag=h.jsonl", "modal volume put nanojaxgpt h.jsonl h.jsonl"),
        ("prepare python_char --limit=3", "python_char is small, and is prepared without options"),
        ("prepare openwebtext --to=/x", "--to=/x: the Volume has it as data/openwebtext"),
        ("prepare mine --source=m.jsonl", "--source=m.jsonl would be looked for in the Volume"),
        ("prepare openwebtext --tokenizer=t.json", "--tokenizer=t.json would be looked for in the Volume"),
        ("sample --run-name=x --start=FILE:nosuch.txt", "--start=FILE:nosuch.txt: cannot be read"),
        ("sample --run-name=x --num_sample=3", "--num_sample is not an option; did you mean num_samples?"),
        ("prepare", "first comes the name of a data set: "),
        ("prepare ../x", "first comes the name of a data set: "),
        ("prepare mine", "--source"),
        ("prepare openwebtext --limit=0", "--limit=0: expected 1 or more"),
        ("prepare openwebtext --limits=3", "unrecognized arguments: --limits=3"),
        ("experiment", "experiment : expected the name of a program"),
        ("experiment runner", "experiment runner: expected the name of a program"),
        ("experiment best --time", "--time compares steps on this machine"),
        ("experiment best --sed=3", "--sed is not an option"),
        ("fetch", "--run-name is missing: fetch needs one"),
        ("list big", "list big: it takes --run-name"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_rented(words, says):
    assert says in refusal(start, *words.split(), "--run-on-remote")


# The price


@pytest.mark.parametrize(
    "gpu, price",
    [
        *[("H100", 3.95), ("A10G", 1.10), ("H100!:2", 7.90), ("L4,A100-80GB", 2.50), ("h200:8", 36.32)],
        *[("none", 0), ("A10:4", 4.40), ("rtx-pro-6000", 3.03), ("B200+:2", 14.20)],
    ],
)
def test_the_price_of_a_machine_is_its_gpus_and_the_cores_and_memory_that_it_may_use(gpu, price):
    machine = machine_of(LaunchOptions(gpu=gpu))
    rest = BURST * (machine.cores * RATES["cpu_hour_cost"] + machine.gib * RATES["mem_gib_hour_cost"])
    assert machine.dollars == pytest.approx(price + rest) and 0 < rest < 4


@pytest.mark.parametrize(
    "words, cost, script",
    [
        ("", "$0.62: 0.5 h x $1.25 (L4, ", "train.py --device=cuda "),
        (
            "config/quickstart.py --gpu=H100 --timeout-hours=2",
            "$26.37: 3 attempts x 2 h x $4.40 (H100, ",
            "train.py ",
        ),
        ("sample --run-name=x", "$1.55: 1 h ", "sample.py --device=cuda --out_dir=/vol/runs/x"),
        ("evaluate --run-name=x", "$1.55: 1 h ", "evaluate.py "),
        ("bench --steps=3", "$1.55: 1 h ", "bench.py --device=cuda --steps=3"),
        ("profile --run-name=x", "$1.55: 1 h ", "train.py --device=cuda --profile=/vol/runs/x/profile "),
        ("export --run-name=x", "$0.63: 1 h x $0.63 (none, 4 cores, ", "export.py --out_dir="),
        (
            "prepare openwebtext",
            "$16.20: 2 attempts x 4 h x $2.03 (none, 16 cores, ",
            "data/prepare.py --num_proc=16",
        ),
        ("serve --run-name=x --timeout-hours=1", "$1.55: 1 h ", "serve.py "),
        (
            "train --nodes=2 --n_layer=2 --gpu=H100:8",
            "$843.88: 2 machines x 3 attempts x 4 h x $35.16 (H100:8, 16 cores, 128 GiB",
            "train.py --device=cuda --n_layer=2 ",
        ),
        ("sweep --sweep=seed:1,2", "$37.08: 2 runs x 3 attempts x 4 h ", "train.py --device=cuda --seed=1"),
    ],
)
def test_every_command_says_first_what_it_can_cost_and_runs(words, cost, script, capsys):
    assert start(*words.split(), "--dry-run") == 0
    printed = capsys.readouterr().out
    assert f"costs at most {cost}" in printed and f": {script}" in printed


def test_an_experiment_says_the_price_of_what_it_lacks_and_writes_nothing(capsys):
    results = ROOT / "experiments" / "results"
    before = contents(results)
    start("experiment", "precision", "--seeds=99", "--only=bfloat16", "--dry-run")
    first, *jobs = capsys.readouterr().out.splitlines()
    assert first.startswith("costs at most $") and contents(results) == before
    seeds = [int(re.search(r" --seed=(\d+) ", line)[1]) for line in jobs]
    assert seeds == list(range(100 - len(seeds), 100)) and len(seeds) > 80
    assert all("--device=cuda" in line and "/vol/runs/precision.bfloat16." in line for line in jobs)
    start("experiment", "precision", "--seeds=2", "--dry-run")
    assert capsys.readouterr().out == "all runs that are asked for have results here\n"


# Here


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
def test_commands_have_one_form_here(monkeypatch, words, script, expected):
    started = []
    monkeypatch.setattr(
        "tools.cloud.jobs.run_script", lambda *words, **_: (started.append(words[:2]), (0, None))[1]
    )
    assert start(*words.split()) == 0 and started == [(script, expected)]


@pytest.mark.parametrize("name, folder", [([], "out-quickstart"), (["--run-name=mine"], "mine")])
def test_without_a_word_it_trains_the_quickstart_and_shows_a_sample(monkeypatch, capsys, name, folder):
    started = []
    monkeypatch.setattr(
        "tools.cloud.jobs.run_script", lambda *words, **_: (started.append(words), (0, None))[1]
    )
    assert start(*name) == 0
    (train, training, *_), (sample, sampling) = started
    assert (train, sample) == ("train.py", "sample.py") and f"--out_dir={folder}" in sampling
    assert given(training, Options) == given(["config/quickstart.py"], Options) | {
        "out_dir": folder,
        "init_from": "auto",  # typed again, it shows another sample
    }
    assert "config/quickstart.py" in capsys.readouterr().out


@pytest.mark.slow
@no_network
def test_here_it_needs_neither_modal_nor_a_network(tiny, tmp_path):
    (tmp_path / "modal.py").write_text("raise ImportError('not installed')")

    def alone(*words):
        command = ["unshare", "-rn", sys.executable, ROOT / "app.py", *words]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    run = alone(*tiny("out"), "--run-name=mine", "--run-on-remote", "false")
    assert run.returncode == 0 and saved_iterations(tmp_path / "mine") == [5, 10]
    run = alone(*tiny("out", n_head=3))
    assert run.returncode == 2 and error_line(run.stderr)
    run = alone("--run-on-remote", *tiny("out", dataset="tiny"))
    assert run.returncode == 2 and "pip install modal" in error_line(run.stderr)
    run = alone("--dry-run", *tiny("out", dataset="tiny"), "--gpu=H100:8", "--nodes=2")
    assert run.returncode == 0 and "2 machines x 3 attempts x 4 h" in run.stdout


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


# Runs that are here


RECORDS = [
    {"iter": 0, "train/loss": 4.0, "val/loss": 4.1},
    {"iter": 0, "loss": 4.0, "lr": 0.0},
    {"iter": 10, "train/loss": 2.0, "val/loss": 2.5},
    {"iter": 20, "train/loss": 1.0, "val/loss": 3.0},
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of 20 steps in a folder of its own, which holds its lock."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    (folder / "checkpoints" / "10").mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "options.json").write_text(json.dumps(Options(max_iters=20).to_json()))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return folder


def test_the_list_has_a_line_for_each_run(run, capsys, tmp_path):
    (tmp_path / "no-run").mkdir()
    start("list")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[0] == "mine" and "iter 20, val loss 3.0000, best 2.5000" in line
    (run / "options.json").unlink()
    start("list")
    assert capsys.readouterr().out == "no run is there\n"


def test_watching_shows_each_record_once_and_ends_with_the_run(run, capsys, monkeypatch):
    """Also when it is resumed meanwhile, and does its last steps again."""
    changes = [
        lambda: (run / "metrics.jsonl").write_text(json.dumps(RECORDS[0]) + "\n"),
        lambda: (run / "lock").unlink(),
    ]
    monkeypatch.setattr(time, "sleep", lambda seconds: changes.pop(0)())
    start("watch", "--run-name=mine")
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if line.startswith("iter ")]
    assert shown[0] == "iter 0: train/loss 4, val/loss 4.1" and len(shown) == len(RECORDS)
    assert lines[-1].startswith("mine") and "iter 0, val loss 4.1000" in lines[-1]
    assert "--run-name=other: there is no such run" in refusal(places.watch, places.Here(), "other")
