"""Snippets run by doctest, commands are parsed by their own parsers, and run wholly with -m slow."""

import doctest
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

import app
from bench import BenchOptions
from common.command_line import given, take_options
from config.options import Options
from data.dataset import prepare_if_missing
from data.prepare import PrepareOptions
from docs.pages import ROOT, chapters, fences
from plan import PlanOptions
from rewards.options import RewardOptions
from tests.helpers import slowly
from tools.cloud.options import LaunchOptions

SLOW = "slow"  # the mark of a fence that the gate does not run
# These take longest.
LONG = "00-from-scratch 03-block 06-step 08-ladder 12-pipelines 15-inside 20-where-to-go-on".split()
# Options of commands that take train.py's as well.
BESIDE_TRAINING = {"bench.py": BenchOptions, "plan.py": PlanOptions, "rl.py": RewardOptions}
ALIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def name(chapter) -> str:
    return chapter.stem


QUICK = [chapter for chapter in chapters() if name(chapter) not in LONG]


def run_snippets(chapter, marked_slow: bool) -> None:
    """Run a chapter's snippets in order, in one namespace."""
    parser, examples = doctest.DocTestParser(), []
    for fence in fences(chapter.read_text()):
        if fence.language == "pycon" and (marked_slow or fence.mark != SLOW):
            for example in parser.get_examples(fence.text, str(chapter)):
                example.lineno += fence.line
                examples.append(example)
    test = doctest.DocTest(examples, {"__name__": "__main__"}, name(chapter), str(chapter), 0, None)
    report: list[str] = []
    with np.printoptions():  # a chapter may set its own
        # Unless told, it takes pytest's -v for its own and reports what went well, too.
        doctest.DocTestRunner(verbose=False, optionflags=ALIKE).run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("chapter", QUICK + slowly(*(x for x in chapters() if name(x) in LONG)), ids=name)
def test_snippets_give_what_the_chapter_says(chapter, monkeypatch):
    monkeypatch.chdir(ROOT)
    run_snippets(chapter, marked_slow=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chapter", chapters(), ids=name)
def test_slow_snippets_give_what_the_chapter_says(chapter, monkeypatch, optimized):
    if not any(fence.mark == SLOW for fence in fences(chapter.read_text())):
        pytest.skip("all of its snippets run in the gate")
    prepare_if_missing("book_char")  # as the first chapter's first command does
    monkeypatch.chdir(ROOT)
    run_snippets(chapter, marked_slow=True)


# --- commands -----------------------------------------------------------------------------------------------


def commands(chapter) -> list[tuple[str, str]]:
    """Return a chapter's commands with the marks of their fences. A line may go on behind a backslash."""
    found = []
    for fence in fences(chapter.read_text()):
        if fence.language == "console":
            text = fence.text.replace("\\\n", " ")
            found += [(fence.mark, line[2:]) for line in text.splitlines() if line.startswith("$ ")]
    return found


def check(command: str) -> None:
    """Raise if a command's script or module is not there, or its options do not parse. Nothing is run."""
    words = shlex.split(command)
    while words and re.match(r"[A-Z_]+=", words[0]):  # the environment
        words.pop(0)
    if words[0] != "python":
        return
    if words[1] == "-m":
        assert importlib.util.find_spec(words[2]), f"there is no module {words[2]}"
        return
    script, words = words[1], words[2:]
    if "|" in words:
        words = words[: words.index("|")]
    if script == "app.py":
        _, theirs = take_options(words, LaunchOptions)
        if theirs:
            check(shlex.join(["python", *app.whole_command(theirs)]))
    elif script == "train.py":
        Options(**given(words, Options))
    elif script in BESIDE_TRAINING:
        Options(**given(take_options(words, BESIDE_TRAINING[script])[1], Options))
    else:
        module = importlib.import_module(script.removesuffix(".py").replace("/", "."))
        classes = {name: cls for name, cls in vars(module).items() if name.endswith("Options")}
        (own,) = classes.keys() - {"Options", "ModelOptions", "PrepareOptions"} or {"PrepareOptions"}
        given(words, classes.get(own, PrepareOptions))


@pytest.mark.parametrize("chapter", chapters(), ids=name)
def test_commands_are_there_and_their_options_parse(chapter, monkeypatch):
    monkeypatch.chdir(ROOT)
    for _, command in commands(chapter):
        check(command)


def test_no_two_commands_of_the_book_train_into_one_folder():
    """Who follows the book from end to end would be refused the second time: no run is lost unasked."""
    folders = []
    for chapter in chapters():
        for _, command in commands(chapter):
            words = dict(word.partition("=")[::2] for word in shlex.split(command))
            trains = {"train.py", "config/quickstart.py"} <= words.keys()
            if trains and words.get("--init_from") != "auto" and words.get("--process_id", "0") == "0":
                folders.append(words.get("--out_dir", "out-quickstart"))
    assert sorted(folders) == sorted(set(folders))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chapter", chapters(), ids=name)
def test_commands_run_in_order_from_an_empty_folder(chapter, tmp_path):
    """They run in a copy of the project without data or runs, as a user's do, one after the other."""
    left_out = shutil.ignore_patterns(".*", "__pycache__", "out*", "site", "*.bin", "meta.json", "wandb")
    copy = shutil.copytree(ROOT, tmp_path / "copy", ignore=left_out)
    of_tests = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "ONEDNN_MAX_CPU_ISA", "PJRT_NPROC")
    environment = {k: v for k, v in os.environ.items() if k not in of_tests}
    environment["PATH"] = f"{os.path.dirname(sys.executable)}:{environment['PATH']}"
    lines = [command for mark, command in commands(chapter) if mark != "not run"]
    if not lines:
        pytest.skip("it has no commands")
    done = subprocess.run(
        ["bash", "-exc", "\n".join(lines)], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
