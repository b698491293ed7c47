"""app.py as its user meets it, without an account. At Modal: tests/tools/cloud."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module

import pytest

import app
from common.command_line import ONLY_CHECK, given, option_types
from common.errors import UserError
from config.options import Options
from tests.helpers import ROOT, can_unshare, error_line, refusal, saved_iterations
from tools.cloud import rent
from tools.cloud.options import LaunchOptions

no_network = pytest.mark.skipif(not can_unshare("-rn"), reason="needs Linux's network namespaces")


@pytest.mark.parametrize("script", app.SCRIPTS)
def test_no_launcher_option_hides_one_of_a_command(script):
    module = import_module(script.removesuffix(".py"))
    theirs = [Options, *(value for name, value in vars(module).items() if name.endswith("Options"))]
    launcher = {field.name for field in fields(LaunchOptions)}
    assert not launcher & {name for options in theirs for name in option_types(options)}


@pytest.mark.parametrize("script", app.SCRIPTS)
def test_every_command_checks_its_own_options_and_does_nothing_else(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ONLY_CHECK, "1")
    main = import_module(script.removesuffix(".py")).main
    words = ["--out_dir=big"] if script != "plan.py" else ["--on=H100", "--out_dir=big"]
    with pytest.raises(SystemExit) as end:
        main(words)
    assert not end.value.code and json.loads(capsys.readouterr().out) == {"out_dir": "big"}
    with pytest.raises(UserError, match="no_such is not an option"):
        main([*words, "--no_such=1"])
    assert not list(tmp_path.iterdir())


def test_a_command_is_checked_before_its_price_is_said(capfd):
    with pytest.raises(SystemExit) as end:
        app.start(["data/openwebtext/prepare.py", "--limits=3", "--dry-run"])
    printed, errors = capfd.readouterr()
    assert end.value.code == 2 and "--limits is not an option" in error_line(errors) and printed == ""


@pytest.fixture
def no_check(monkeypatch):
    """The commands' own options are right."""
    monkeypatch.setattr(rent, "check_options", lambda command: given(command[1:], Options))


@pytest.mark.parametrize(
    "words, says",
    [
        ("--seed=3 --gpu=H1000", "--gpu=H1000: expected one of none, L4, A10,"),
        ("--seed=3 --gpu=H100:9", "--gpu=H100:9: expected"),
        ("--seed=3 --gpu=A10:5", "--gpu=A10:5: expected"),  # modal.com/docs/guide/gpu
        ("--n_layer=2 --gpu=H100", "that is above --max-dollars=20: give --max-dollars=53"),
        ("--seed=3 --timeout-hours=25", "--timeout_hours is 25: it should be less than or equal to 24"),
        ("--out_dir=/", "out_dir=/: at Modal it is a name in the Volume"),
        ("--out_dir=../big", "out_dir=../big: at Modal it is a name in the Volume"),
        ("--overwrite=True", "modal volume rm -r nanojaxgpt out instead"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_rented(words, says, no_check):
    assert says in refusal(app.start, [*words.split(), "--run-on-remote"])


def test_a_launch_that_lacks_its_switch_runs_nothing_here():
    said = "--gpu is for a rented machine: add --run-on-remote true, or leave it out"
    assert refusal(app.start, ["--gpu=H100", "config/train_gpt2.py"]) == said


def test_a_config_that_would_not_travel_is_refused(no_check, tmp_path):
    (tmp_path / "mine.py").write_text("n_layer = 2\n")
    says = refusal(app.start, [str(tmp_path / "mine.py"), "--run-on-remote"])
    assert "mine.py: Modal gets the project's own files alone: move it to config/" in says
    elsewhere = str(ROOT / "my_configs" / "a.py")
    assert f"{elsewhere}: Modal gets" in refusal(rent.at_modal, elsewhere)
    assert rent.at_modal(str(ROOT / "config" / "quickstart.py")) == "/root/config/quickstart.py"
    assert rent.at_modal("--change=a.py") == "--change=a.py"


def test_what_programs_read_travels():
    assert not [path for path in (ROOT / "data").glob("*.*") if rent.STAYS(path.relative_to(ROOT))]


@pytest.mark.parametrize(
    "words, says",
    [
        ("", "$0.63: 0.5 h x $1.25 (L4, .*\ntrain.py config/quickstart.py --init_from=auto\nsample.py "),
        # A GPU is $3.95, a core $0.0473, a GiB $0.008, and twice its cores and memory may be used.
        ("--seed=3 --gpu=H100:2 --timeout-hours=2", "$52.75: 3 attempts x 2 h x .*\ntrain.py --seed=3\n"),
        ("sample.py --gpu=none --cores=16 --retries=1", "$16.21: 2 attempts x 4 h .*\nsample.py\n"),
    ],
)
def test_what_it_can_cost_and_runs_is_said_first(words, says, capsys, monkeypatch):
    monkeypatch.setattr(rent, "check_options", lambda command: {})
    assert app.start([*words.split(), "--dry-run"]) == 0
    pattern = f"costs at most {says}".replace("$", r"\$").replace("(", r"\(")
    assert re.match(pattern, capsys.readouterr().out)


@pytest.fixture
def started(monkeypatch):
    """The commands that are started; none runs."""
    started = []
    monkeypatch.setattr(app, "run_command", lambda command: (started.append(command), (0, False))[1])
    return started


def test_a_command_is_started_with_its_words_and_train_py_with_others(started):
    commands = [["evaluate.py", "--out_dir=big"], ["data/tinystories/prepare.py", "--limit=3"]]
    for words in (*commands, ["--run-on-remote=false", "config/x.py", "--seed=3"]):
        assert app.start(words) == 0
    assert started == [*commands, ["train.py", "config/x.py", "--seed=3"]]


def test_without_a_command_it_trains_the_quickstart_and_shows_a_sample(started, capsys):
    with pytest.raises(SystemExit):
        app.start([])
    assert not started and "--run_on_remote" in capsys.readouterr().out  # without a word it shows its help
    assert app.start(["--run-on-remote=false"]) == 0
    (train, *training), (sample, folder, *_) = started
    assert (train, training) == ("train.py", ["config/quickstart.py", "--init_from=auto"])
    assert (sample, folder) == ("sample.py", "--out_dir=out-quickstart")


def test_what_fails_is_not_gone_on_with(monkeypatch):
    monkeypatch.setattr(app, "run_command", lambda command: ({"train.py": -9}[command[0]], False))
    assert app.start(["--run-on-remote=false"]) == 137


@pytest.mark.slow
@no_network
def test_here_it_needs_no_network(tiny, tmp_path):
    words = [*tiny("mine"), "--run-on-remote", "false"]
    subprocess.run(["unshare", "-rn", sys.executable, ROOT / "app.py", *words], cwd=tmp_path, check=True)
    assert saved_iterations(tmp_path / "mine") == [5, 10]
