"""The life of a chat model: valid commands, which go on where one failed, and a table of their answers."""

import json
import time

import pytest

from config.command_line import given, take_options
from config.options import Options, parse_options
from data.prepare import PrepareOptions
from data.tasks import TaskOptions
from data.train_tokenizer import TrainTokenizerOptions
from evaluate import EvaluateOptions
from experiments import chat
from rl import RewardOptions
from tests.helpers import refusal

OPTIONS = {
    "data/tasks.py": TaskOptions,
    "data/train_tokenizer.py": TrainTokenizerOptions,
    "data/prepare.py": PrepareOptions,
    "train.py": Options,
    "evaluate.py": EvaluateOptions,
}


@pytest.mark.parametrize("stage", chat.STAGES)
def test_each_stage_is_a_command_with_options_that_exist(stage):
    program, *words = stage.format(to="there", seed=1, tasks=chat.TASKS).split()
    if program == "rl.py":
        _, words = take_options(words, RewardOptions)
        program = "train.py"
    if program == "train.py":
        assert parse_options(words, lambda _: {}).seed == 1
    else:
        assert OPTIONS[program](**given(words, OPTIONS[program]))


def test_what_has_ended_is_not_done_again(tmp_path, monkeypatch, capsys):
    stages = ["-c open('{to}/a','a').write('x')", "-c open('{to}/b')"]
    monkeypatch.setattr(chat, "STAGES", stages)
    assert "-c failed: mend it" in refusal(chat.main, [f"--out_dir={tmp_path}"])
    (tmp_path / "1/b").touch()
    shares = {task: {how: [0.5, 0, 1] for how in ("greedy", "sampled")} for task in chat.TASKS.split(",")}
    models = {f"{tmp_path}/1/{model}": shares for model in chat.MODELS}
    (tmp_path / "1/answers.json").write_text(json.dumps({"models": models}))
    for _ in range(2):
        chat.main([f"--out_dir={tmp_path}"])
    assert (tmp_path / "1/a").read_text() == "x"
    said = capsys.readouterr().out
    assert said.count("python serve.py --out_dir=") == 1 and said.count("| all, greedy | 50.0% |") == 2
    assert "| all, greedy | 50.0% |" in (tmp_path / "results.md").read_text()
    (tmp_path / "cut.json").write_text('{"stages": [')
    cut = refusal(chat.main, [f"--out_dir={tmp_path}", f"--results={tmp_path}/cut.json"])
    assert "cut.json: cannot be read (" in cut and "restore or delete it" in cut
    monkeypatch.setattr(chat, "STAGES", stages[:1])
    assert "its lives had other stages: move it" in refusal(chat.main, [f"--out_dir={tmp_path}"])


def test_ctrl_c_lets_a_stage_save_and_the_same_command_does_it_again(tmp_path, monkeypatch):
    """A terminal sends Ctrl-C to both; here the stage sends it to the parent, and takes a second to save."""
    (tmp_path / "stage.py").write_text(
        "import os, signal, sys, time\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "time.sleep(1)\n"
        "open(sys.argv[1], 'a').write('x')\n"
    )
    monkeypatch.setattr(chat, "STAGES", [f"{tmp_path}/stage.py {{to}}/a"])
    for times in ("x", "xx"):
        with pytest.raises(KeyboardInterrupt):
            chat.main([f"--out_dir={tmp_path}"])
        assert (tmp_path / "1/a").read_text() == times


@pytest.mark.parametrize("stage", chat.STAGES)
def test_training_that_was_stopped_goes_on_from_its_checkpoint(stage, tmp_path):
    words = stage.format(to=tmp_path, seed=1, tasks=chat.TASKS).split()
    (tmp_path / "more/checkpoints/20.orbax-checkpoint-tmp-1").mkdir(parents=True)  # of a save that was cut
    assert chat.going_on(words, begun=0) == words
    for name in ("base", "chat", "more", "rewarded"):
        (tmp_path / name / "checkpoints/20").mkdir(parents=True)
    trains = words[0] in ("train.py", "rl.py")
    out_dir = next((word for word in words if word.startswith("--out_dir=")), "")
    resumed = [words[0], out_dir, "--init_from=resume"] if trains else words
    assert chat.going_on(words, begun=time.time() - 60) == resumed
    assert chat.going_on(words, begun=time.time() + 60) == words  # of an earlier life


def test_each_file_of_the_book_is_a_document():
    book = "==> a.py <==\nx = 1\n==> b.md <==\na ==> b\n"
    documents = chat.as_documents(book).split("<|endoftext|>\n")
    assert documents == ["==> a.py <==\nx = 1\n", "==> b.md <==\na ==> b\n"]


def test_the_table_has_means_and_what_rewards_add():
    """Rewards add 10, 20 and 30 points in three lives: Student's interval is 20 ± 4.303 x 10 / sqrt(3)."""

    def shares(base):
        return {task: {how: [base, 0, 1] for how in ("greedy", "sampled")} for task in chat.TASKS.split(",")}

    lives = {
        seed: dict(chat=shares(0.5), more=shares(0.6), rewarded=shares(0.5 + seed / 10)) for seed in (1, 2, 3)
    }
    rows = chat.table(lives).splitlines()
    assert rows[2] == "| reverse, sampled | 50.0% | 60.0% | 70.0% | +20.0 ± 24.8 | +10.0 ± 24.8 |"
    assert len(rows) == 2 + 5
