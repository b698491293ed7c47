"""app.py as its user meets it, without an account. At Modal: tests/cloud."""

import config.interrupt  # noqa: F401  now: imported within a test, it would have Ctrl-C end them all

import os
import re
import signal
import subprocess
import sys
from dataclasses import fields

import pytest

import app
from config.command_line import given, option_types
from config.options import Options
from tests.helpers import (
    DEADLINE,
    ROOT,
    contents,
    newest_checkpoint,
    refusal,
    saved_iterations,
    start_python,
    wait_until,
)
from tests.tools.cloud.launches import LONG, errors, files_to_send, namespaces
from tools.cloud.commands import COMMANDS, Job
from tools.cloud.options import LaunchOptions, most_dollars, separate_options
from tools.cloud.prices import BURST, RATES, Machine
from tools.cloud.rent import asked_to_detach, closing_hint

no_network = pytest.mark.skipif(not namespaces("-rn"), reason="needs Linux's network namespaces")


# The command line


@pytest.mark.parametrize(
    "argv, is_remote",
    [
        (["--run-on-remote", "true"], True),
        (["--run-on-remote"], True),
        (["--run-on-remote=true"], True),
        (["--run_on_remote=True"], True),
        (["--run-on-remote", "false"], False),
        (["--run-on-remote=false"], False),
        ([], False),
    ],
)
def test_every_form_of_the_flag_before_and_after_other_words(argv, is_remote):
    others = ["config/quickstart.py", "--batch-size", "8", "--bias=True"]
    for words in (argv + others, others + argv):
        ours, theirs = separate_options(words)
        assert given(ours, LaunchOptions).get("run_on_remote", False) is is_remote
        assert theirs == others


def test_launcher_options_take_a_value_after_a_space_or_a_sign():
    ours, theirs = separate_options(
        ["--gpu", "H100:8", "c.py", "--timeout-hours=0.5", "--n_layer", "2", "--retries"]
    )
    assert ours == ["--gpu=H100:8", "--timeout-hours=0.5", "--retries="]
    assert theirs == ["c.py", "--n_layer", "2"]


def test_no_launcher_option_hides_one_of_the_scripts():
    from bench import BenchOptions

    launcher = set(option_types(LaunchOptions))
    for name in COMMANDS:
        assert not launcher & set(option_types(app.options_of(name))), name
    assert not launcher & {field.name for field in fields(BenchOptions)}


def test_options_travel_with_their_values(tmp_path):
    config = tmp_path / "elsewhere.py"
    config.write_text("n_layer = 2 * 3\ndataset = 'python_char'\nout_dir = 'runs/mine'\nn_kv_head = None\n")
    argv = [str(config), "--learning_rate", "1e-3", "--wandb_project=a b"]
    job = app.training_job(argv, LaunchOptions())
    assert job.run_name == "mine"
    there = given(job.words, Options)
    here = given(argv, Options)
    assert there == {"device": "cuda"} | {name: value for name, value in here.items() if name != "out_dir"}
    on_cpus = app.training_job([*argv, "--device=cpu"], LaunchOptions())
    assert given(on_cpus.words, Options)["device"] == "cpu"
    assert "device" not in given(app.training_job(argv, LaunchOptions(gpu="none")).words, Options)


@pytest.mark.parametrize(
    "argv, says",
    [
        (["--n_layers=2"], "--n_layers is not an option; did you mean n_layer?"),
        (["config/nosuch.py"], "config/nosuch.py: there is no such config file"),
        (["--timeout-hours=25"], "--timeout_hours is 25, expected a number above 0, up to Modal's 24"),
        (["--gpu"], "--gpu is '', expected a name"),
        (["--gpu=H1000"], "--gpu=H1000: H1000 is none of T4, L4, A10,"),
        (["--gpu=H100:9"], "H100:9 is none of"),
        (["--gpu=A10:5"], "A10:5 is none of"),
        (["--retries=11"], "--retries is 11, expected an integer from 0 to Modal's 10"),
        (["--n_layer=2", "--gpu=H100"], "that is above --max-dollars=20: give --max-dollars=69"),
        (["--timeout-hours=24", "--retries=10"], "above --max-dollars=20"),
        (["--nodes=2", "--gpu=H100", "--max-dollars=200"], "--nodes=2 needs whole machines: --gpu=H100:8"),
        (["--dry-run=maybe"], "--dry_run is 'Maybe', expected True or False"),
        (["--run-name=a/b"], "--run_name is 'a/b', expected letters"),
        (["--out_dir=/"], "--run_name is '', expected letters"),
        (["--overwrite=True"], "modal volume rm -r nanojaxgpt runs/out"),
        (["--dataset={folder}"], "modal volume put nanojaxgpt {folder}"),
        (["--wandb_log=True"], "--secret=NAME"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_rented(argv, says, tmp_path):
    argv = [word.format(folder=tmp_path) for word in argv]
    text = refusal(app.launch, "train", ["--run-on-remote", *argv])
    assert says.format(folder=tmp_path) in text


@pytest.mark.parametrize(
    "argv, says",
    [
        ([], "--run-name is missing"),
        (["--run-name=x", "--nodes=2"], "--nodes=2 is for training"),
        (["--run-name=x", "--start=FILE:nosuch.txt"], "--start=FILE:nosuch.txt: cannot be read"),
        (["--run-name=x", "--num_sample=3"], "--num_sample is not an option; did you mean num_samples?"),
    ],
)
def test_a_mistake_about_samples_is_answered_before_anything_is_rented(argv, says):
    assert says in refusal(app.launch, "sample", ["--run-on-remote", *argv])


def test_a_prompt_in_a_file_travels_as_its_text(tmp_path):
    (tmp_path / "prompt.txt").write_text("Twas brillig\n")
    options = LaunchOptions(run_name="x", gpu="none")
    job = app.job_of("sample", ["--num_samples=1", f"--start=FILE:{tmp_path}/prompt.txt"], options)
    assert job.words == ["--num_samples=1", "--start=Twas brillig\n"]
    job = app.job_of("sample", ["--start", f"FILE:{tmp_path}/prompt.txt"], options)
    assert job.words == ["--start", "Twas brillig\n"]


# The price


@pytest.mark.parametrize(
    "gpu, price",
    [
        *[("H100", 3.95), ("A10G", 1.10), ("H100!:2", 7.90), ("L4,A100-80GB", 2.50), ("h200:8", 36.32)],
        *[("none", 0), ("A10:4", 4.40), ("rtx-pro-6000", 3.03), ("B200+:2", 14.20)],
    ],
)
def test_the_price_of_a_machine_is_its_gpus_and_the_cores_and_memory_that_it_may_use(gpu, price):
    machine = Machine.parse(gpu)
    rest = BURST * (machine.cores * RATES["cpu_hour_cost"] + machine.gib * RATES["mem_gib_hour_cost"])
    assert machine.price() == pytest.approx(price + rest) and 0 < rest < 4
    launched = LaunchOptions(gpu=gpu, nodes=2, timeout_hours=3, retries=3)
    assert most_dollars(launched) == pytest.approx(24 * machine.price())


def test_the_most_that_a_launch_can_cost_is_said_first(capsys):
    app.launch("train", ["--dry-run", "config/quickstart.py", "--gpu=H100", "--timeout-hours=2"])
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("costs at most $26.37: 3 attempts x 2 h x $4.40 (H100, ")
    assert any(line.startswith("that is no ceiling: ") and "budget" in line for line in rest)
    assert any("--device=cuda" in line for line in rest)


# Here


@pytest.mark.parametrize("name, folder", [([], "out-quickstart"), (["--run-name=mine"], "mine")])
def test_without_a_word_it_trains_the_quickstart_and_shows_a_sample(monkeypatch, capsys, name, folder):
    started = []
    monkeypatch.setattr(
        app, "run_script", lambda script, words: (started.append((script, words)), (0, None))[1]
    )
    app.launch("train", list(name))
    (train, training), (sample, sampling) = started
    assert (train, sample) == ("train.py", "sample.py")
    assert given(training, Options) == given(["config/quickstart.py"], Options) | {
        "out_dir": folder,
        "init_from": "auto",  # typed again, it shows another sample
    }
    assert f"--out_dir={folder}" in sampling
    assert "config/quickstart.py" in capsys.readouterr().out
    app.launch("train", ["--dry-run", *name])
    printed = capsys.readouterr().out
    assert "then      sample.py --start=def " in printed and "costs at most $0.62" in printed


def test_modals_own_detach_counts():
    click = pytest.importorskip("click")
    assert not asked_to_detach()
    with click.Context(click.Command("run"), obj={"detach": True}):
        assert asked_to_detach()


@pytest.mark.slow
@no_network
def test_here_it_needs_neither_modal_nor_a_network(tiny, tmp_path):
    (tmp_path / "modal.py").write_text("raise ImportError('not installed')")

    def alone(*words):
        return subprocess.run(
            ["unshare", "-rn", sys.executable, ROOT / "app.py", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )

    run = alone(*tiny("out"), "--run-name=mine", "--run-on-remote", "false")
    assert run.returncode == 0 and saved_iterations(tmp_path / "mine") == [5, 10]
    run = alone(*tiny("out", n_head=3))
    assert run.returncode == 2 and len(errors(run.stderr)) == 1
    run = alone("--run-on-remote", *tiny("out", dataset="tiny"))
    assert run.returncode == 2 and "pip install modal" in errors(run.stderr)[0]
    run = alone("--dry-run", *tiny("out", dataset="tiny"), "--gpu=H100:8", "--nodes=2", "--secret=wandb")
    assert run.returncode == 0
    assert all(text in run.stdout for text in ("2 with H100:8", "4 h", "wandb", "jax[cuda13]", "--n_embd=16"))
    listed = {line.strip() for line in run.stdout.split(" kB:")[1].splitlines() if line}
    assert listed == files_to_send(ROOT)


@pytest.mark.parametrize(
    "signal_name", [pytest.param(name, marks=pytest.mark.slow) for name in ("SIGINT", "SIGTERM")]
)
def test_a_signal_has_a_run_here_save_and_end_with_that_of_a_stopped_one(tiny, tmp_path, signal_name):
    process = start_python(ROOT / "app.py", *tiny(tmp_path / "out", **LONG), cwd=tmp_path)
    wait_until(lambda: newest_checkpoint(tmp_path / "out"), process)
    process.send_signal(getattr(signal, signal_name))
    printed, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 143, errors  # the signal reaches it as SIGTERM
    stopped_at = saved_iterations(tmp_path / "out")[-1]
    assert stopped_at < LONG["max_iters"] and f"stopped at iter {stopped_at};" in printed


# The other commands


@pytest.mark.parametrize("name", ["sample", "evaluate", "export", "serve"])
def test_what_needs_a_run_asks_for_its_name_and_checks_its_options(name):
    assert "--run-name is missing" in refusal(app.launch, name, ["--run-on-remote"])
    says = refusal(app.launch, name, ["--run-on-remote", "--run-name=x", "--out_dirs=y"])
    assert "--out_dirs is not an option; did you mean out_dir?" in says


@pytest.mark.parametrize(
    "words, says",
    [
        ([], "first comes the name of a data set: "),
        (["../x"], "first comes the name of a data set: "),
        (["mine"], "--source"),
        (["python_char", "--limit=3"], "python_char is small, and is prepared without options"),
        (["openwebtext", "--limit=0"], "--limit=0: expected 1 or more"),
        (["openwebtext", "--limits=3"], "unrecognized arguments: --limits=3"),
        (["openwebtext", "--to=x"], "--to=x: on Modal the data set lies in the Volume"),
        (
            ["mine", "--source=a.txt"],
            "modal volume put nanojaxgpt a.txt a.txt, then give --source=/vol/a.txt",
        ),
        (["openwebtext", "--tokenizer=t.json"], "then give --tokenizer=/vol/t.json"),
    ],
)
def test_a_mistake_about_data_is_answered_before_anything_is_rented(words, says):
    assert says in refusal(app.launch, "prepare", ["--run-on-remote", *words])


def test_data_are_tokenized_on_all_the_cores_that_are_rented():
    options = COMMANDS["prepare"].options({"cores": 24})
    job = app.job_of("prepare", ["openwebtext", "--limit=100"], options)
    assert job.words == ["--limit=100", "--num_proc=24"] and (options.machine.cores, options.gpu) == (
        24,
        "none",
    )
    assert app.job_of("prepare", ["tinystories", "--num_proc=3"], options).words == ["--num_proc=3"]


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"experiment"}))
def test_every_command_says_its_price_first(name, capsys):
    words = {"prepare": ["openwebtext"], "train": ["config/quickstart.py"]}.get(name, ["--run-name=x"])
    app.launch(name, ["--dry-run", *words])
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("costs at most $")
    needs_gpu = name not in ("prepare", "export")
    assert any(line.startswith("machines") and ("A10" in line) is needs_gpu for line in rest)
    (line,) = [line for line in rest if line.startswith("command")]
    assert (f"{name}.py" in line) is (name != "profile") and ("/vol/runs/" in line) is (name != "prepare")


def test_an_experiment_says_the_price_of_what_it_lacks_and_writes_nothing(capsys):
    results = ROOT / "experiments" / "results"
    before = contents(results)
    app.start_by_name(["experiment", "precision", "--seeds=99", "--only=bfloat16", "--dry-run"])
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("costs at most $") and contents(results) == before
    jobs = [line for line in rest if line.startswith("command   experiments/rented.py ")]
    seeds = [int(re.search(r" --seed=(\d+) ", line)[1]) for line in jobs]
    assert seeds == list(range(100 - len(seeds), 100)) and len(seeds) > 80
    assert all("--device=cuda" in line and "/vol/runs/precision.bfloat16." in line for line in jobs)


def test_an_experiment_that_lacks_nothing_says_so(capsys):
    app.start_by_name(["experiment", "precision", "--seeds=2", "--dry-run"])
    assert capsys.readouterr().out == "all runs that are asked for have results here\n"


@pytest.mark.parametrize(
    "words, says",
    [
        ([], "experiment : expected the name of a program first: batch_size, "),
        (["laddr"], "experiment laddr: expected the name of a program first: batch_size, best, "),
        (["runner"], "experiment runner: expected the name of a program first: "),
        (["best", "--time", "--dry-run"], "--time compares steps on this machine"),
        (["best", "--sed=3", "--dry-run"], "--sed=3"),
    ],
)
def test_a_mistake_about_an_experiment_is_one_line(words, says):
    assert says in refusal(app.start_by_name, ["experiment", *words])


def test_a_server_at_modal_cannot_follow_a_run():
    text = refusal(app.launch, "serve", ["--run-on-remote", "--run-name=x", "--follow=True"])
    assert text.startswith("--follow=True: ")


def test_a_deployed_endpoint_is_paid_by_the_day(capsys):
    app.launch("serve", ["--dry-run", "--run-name=x", "--timeout-hours=1"])
    assert capsys.readouterr().out.startswith("costs at most $1.55: 1 h x ")
    app.launch("serve", ["--dry-run", "--run-name=x", "--detach"])
    printed = capsys.readouterr().out
    assert (
        printed.startswith("costs at most $37.08: 24 h x ") and "the sum above is that of one day" in printed
    )
    assert "above --max-dollars=20" in refusal(
        app.launch, "serve", ["--run-on-remote", "--run-name=x", "--detach"]
    )


@pytest.mark.parametrize("words", [["list"], ["watch", "--run-name=x"], ["fetch", "--run-name=x"]])
def test_looking_costs_nothing(words, capsys):
    app.start_by_name([*words, "--dry-run"])
    assert capsys.readouterr().out.startswith("costs nothing: ")


def test_commands_have_one_form_here(monkeypatch):
    started = []
    monkeypatch.setattr(
        "tools.cloud.commands.run_script", lambda *words: (started.append(words), (0, None))[1]
    )
    monkeypatch.setattr(app, "run_script", lambda *words: (started.append(words), (0, None))[1])
    app.start_by_name(["evaluate", "--run-name=big", "--split=train"])
    app.start_by_name(["export", "--out_dir=big", "--to=there"])
    app.start_by_name(["prepare", "tinystories", "--limit=3"])
    app.start_by_name(["config/quickstart.py"])
    words = [(script, list(words)) for script, words, *_ in started]
    assert words == [
        ("evaluate.py", ["--split=train", "--out_dir=big", "--json=big/evaluate.json"]),
        ("export.py", ["--out_dir=big", "--to=there"]),
        ("data/tinystories/prepare.py", ["--limit=3"]),
        ("train.py", ["config/quickstart.py"]),
    ]


@pytest.mark.parametrize(
    "status, detach, says",
    [
        (0, False, "modal run app.py::fetch --run-name=big, or modal volume get nanojaxgpt runs/big"),
        (130, False, "the run was stopped; the same command goes on"),
        (130, True, "the run goes on: modal run app.py::watch --run-name=big"),
        (2, False, "the run failed by itself (status 2)"),
    ],
)
def test_what_is_said_last_fits_the_outcome(status, detach, says):
    assert says in closing_hint(Job("train", [], "big"), status, LaunchOptions(detach=detach))
