"""The life of a chat model: valid commands, which go on where one failed, and a table of their answers."""

import json

import pytest

from common.command_line import given, take_options
from config.options import Options, parse_options
from data.prepare import PrepareOptions
from data.tasks import TaskOptions
from data.train_tokenizer import TrainTokenizerOptions
from evaluate import EvaluateOptions
from experiments import chat
from rewards.options import RewardOptions
from tests.helpers import refusal

OPTIONS = {
    "data/tasks.py": TaskOptions,
    "data/train_tokenizer.py": TrainTokenizerOptions,
    "data/prepare.py": PrepareOptions,
    "train.py": Options,
    "evaluate.py": EvaluateOptions,
}


@pytest.mark.parametrize("stage", chat.STAGES.values())
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
    stages = {"a": "-c open('{to}/a','a').write('x')", "b": "-c open('{to}/b')"}
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
    for text in (
        '{"stages": [',
        "[]",
        '{"lives": {"1": 2}}',
        '{"lives": {"1": {"answers": {"chat": 3}}}}',
        "0",
    ):
        (tmp_path / "cut.json").write_text(text)
        cut = refusal(chat.main, [f"--out_dir={tmp_path}", f"--results={tmp_path}/cut.json"])
        assert "cut.json: cannot be read (" in cut and "restore or delete it" in cut
        assert (tmp_path / "cut.json").read_text() == text
    monkeypatch.setattr(chat, "STAGES", {"a": stages["a"]})
    assert "its lives had other stages: move it" in refusal(chat.main, [f"--out_dir={tmp_path}"])


@pytest.mark.parametrize("text", ["{", "[]", "1", '{"python -c": 1}', '{"python -c": {"seconds": "x"}}'])
def test_damaged_stages_are_refused_in_a_line(tmp_path, monkeypatch, text):
    monkeypatch.setattr(chat, "STAGES", {"a": "-c open('{to}/a','w')"})
    (tmp_path / "1").mkdir()
    (tmp_path / "1/stages.json").write_text(text)
    said = refusal(chat.main, [f"--out_dir={tmp_path}"])
    assert said.startswith(f"{tmp_path}/1/stages.json: cannot be read (") and not (tmp_path / "1/a").exists()


def test_a_stage_of_which_little_is_known_goes_on_from_its_checkpoint(tmp_path, monkeypatch, capsys):
    """As an earlier version wrote it."""
    words = ["train.py", f"--out_dir={tmp_path}/1/base"]
    monkeypatch.setattr(chat, "STAGES", {"base": "train.py --out_dir={to}/base"})
    monkeypatch.setattr(chat, "run", lambda words: print(*words) or 1)
    (tmp_path / "1/base/checkpoints/20").mkdir(parents=True)
    (tmp_path / "1/stages.json").write_text(json.dumps({f"python {' '.join(words)}": {"begun": 1e12}}))
    assert "train.py failed" in refusal(chat.main, [f"--out_dir={tmp_path}"])
    assert capsys.readouterr().out == f"{' '.join(words)} --init_from=resume\n"


@pytest.mark.parametrize("text", [None, "{", "{}", '{"models": 1}', '{"models": {"chat": {"change": 1}}}'])
def test_damaged_answers_say_which_command_writes_them(tmp_path, monkeypatch, text):
    monkeypatch.setattr(chat, "STAGES", {"it": "-c pass"})
    (tmp_path / "1").mkdir()
    if text is not None:
        (tmp_path / "1/answers.json").write_text(text)
    said = refusal(chat.main, [f"--out_dir={tmp_path}"])
    assert "1/answers.json: cannot be read (" in said and said.endswith("write it again: python -c pass")


def test_a_folder_may_have_a_space(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(chat, "STAGES", {"a": "-c open('{to}/a','w')", "b": "-c 0"})
    refusal(chat.main, [f"--out_dir={tmp_path / 'my life'}"])  # there are no answers
    assert (tmp_path / "my life/1/a").exists()
    assert f"python serve.py '--out_dir={tmp_path}/my life/1/rewarded'" in capfd.readouterr().out


@pytest.mark.parametrize("word", ["--out_dir=a,b", "--results=a.md", "--results=.", "--results=results"])
def test_names_that_would_fail_at_the_end_are_refused(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal(chat.main, [word]).startswith(f"{word.replace('=', ' is ', 1).split()[0]} is ")
    assert not [*tmp_path.iterdir()]


def test_ctrl_c_lets_a_stage_save_and_the_same_command_does_it_again(tmp_path, monkeypatch):
    """A terminal sends Ctrl-C to both; here the stage sends it to the parent, and takes a second to save."""
    (tmp_path / "stage.py").write_text(
        "import os, signal, sys, time\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "time.sleep(1)\n"
        "open(sys.argv[1], 'a').write('x')\n"
    )
    monkeypatch.setattr(chat, "STAGES", {"a": f"{tmp_path}/stage.py {{to}}/a"})
    for times in ("x", "xx"):
        with pytest.raises(KeyboardInterrupt):
            chat.main([f"--out_dir={tmp_path}"])
        assert (tmp_path / "1/a").read_text() == times


@pytest.mark.parametrize("name", ["base", "chat", "rewarded", "more"])
def test_training_that_was_stopped_goes_on_from_its_checkpoint(name, tmp_path, monkeypatch):
    """One of an earlier life is not its own, nor is one whose save was cut; clocks play no part."""
    ran, saved = [], tmp_path / "1" / name / "checkpoints"
    (saved / "20").mkdir(parents=True)  # of an earlier life

    def stopped(words):
        ran.append(words)
        (saved / "20.orbax-checkpoint-tmp-1").mkdir(parents=True, exist_ok=True)
        if len(ran) > 1:
            (saved / "20").mkdir(exist_ok=True)
        return 143

    monkeypatch.setattr(chat, "STAGES", {name: chat.STAGES[name]})
    monkeypatch.setattr(chat, "run", stopped)
    for _ in range(3):
        assert "failed: mend it" in refusal(chat.main, [f"--out_dir={tmp_path}"])
    first, again, resumed = ran
    assert first == again and first[0] == resumed[0] and f"--out_dir={tmp_path}/1/{name}" in first
    assert resumed[1:] == [f"--out_dir={tmp_path}/1/{name}", "--init_from=resume"]


def test_each_file_of_the_book_is_a_document():
    book = "==> a.py <==\nx = 1\n==> b.md <==\na ==> b\n"
    documents = chat.as_documents(book).split("<|endoftext|>\n")
    assert documents == ["==> a.py <==\nx = 1\n", "==> b.md <==\na ==> b\n"]


def test_the_table_has_means_and_what_rewards_add():
    """Rewards add 10, 20 and 30 points in three lives: Student's interval is 20 ± 4.303 x 10 / sqrt(3)."""

    def shares(base):
        return {task: {how: [base, 0, 1] for how in ("greedy", "sampled")} for task in chat.TASKS.split(",")}

    lives = {
        seed: {"answers": dict(chat=shares(0.5), more=shares(0.6), rewarded=shares(0.5 + seed / 10))}
        for seed in (1, 2, 3)
    }
    rows = chat.table(lives).splitlines()
    assert rows[2] == "| reverse, sampled | 50.0% | 60.0% | 70.0% | +20.0 ± 24.8 | +10.0 ± 24.8 |"
    assert len(rows) == 2 + 5
