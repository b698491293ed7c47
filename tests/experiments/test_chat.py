"""The life of a chat model: valid commands, which go on where one failed, and a table of their answers."""

import json

import pytest

from experiments import chat
from tests.docs.test_runs import check
from tests.helpers import refusal


@pytest.mark.parametrize("stage", sorted({*chat.STAGES.values(), *chat.QUICK.values()}))
def test_each_stage_is_a_command_with_options_that_exist_and_has_the_seed_where_it_trains(stage):
    command = stage.format(to="there", seed=1, tasks=chat.TASKS)
    check(f"python {command}")
    assert "--seed=1" in command or not command.startswith(("train.py", "rl.py"))


def shares(base: float) -> dict:
    """Return answers of a model with this share right, as evaluate.py writes them: with an interval."""
    return {task: {how: [base, 0, 1] for how in ("greedy", "sampled")} for task in chat.TASKS.split(",")}


def test_what_has_ended_is_not_done_again(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "my life"  # a name with a space
    stages = {"a": "-c open('{to}/a','a').write('x')", "b": "-c open('{to}/b')"}
    monkeypatch.setattr(chat, "STAGES", stages)
    assert "-c failed: mend it" in refusal(chat.main, [f"--out_dir={folder}"])
    (folder / "1/b").touch()
    models = {f"{folder}/1/{model}": shares(0.5) for model in chat.MODELS}
    (folder / "1/answers.json").write_text(json.dumps({"questions": 5, "models": models}))
    said = {"questions": ["Hello"], "models": {f"{folder}/1/rewarded": ["Hello!"]}}
    (folder / "1/said.json").write_text(json.dumps(said))
    for _ in range(2):
        chat.main([f"--out_dir={folder}"])
    assert (folder / "1/a").read_text() == "x"
    said = capsys.readouterr().out
    assert json.loads((folder / "results.json").read_text())["lives"]["1"]["said"] == {"rewarded": ["Hello!"]}
    assert said.count(f"python serve.py '--out_dir={folder}/1/rewarded'") == 1
    assert said.count(row := "| all, greedy | 50.0% |") == 2 and row in (folder / "results.md").read_text()
    monkeypatch.setattr(chat, "STAGES", {"a": stages["a"]})
    assert "results.json: its lives had other stages" in refusal(chat.main, [f"--out_dir={folder}"])


def test_a_stage_that_changes_is_done_again_and_so_is_what_was_made_from_it(tmp_path, monkeypatch):
    quick = {x: f"-c open('{{to}}/{x}','a').write('{x}')" for x in "abc"}
    for b, made, out_dir in (
        ("b", "a b c", tmp_path),
        ("bb", "a bbb cc", tmp_path),
        ("bb", "a bbb cc", tmp_path / "1/.."),  # the same folder
    ):
        monkeypatch.setattr(chat, "QUICK", quick | {"b": f"-c open('{{to}}/b','a').write('{b}')"})
        chat.main([f"--out_dir={out_dir}", "--quick=True"])
        assert [(tmp_path / "1" / x).read_text() for x in "abc"] == made.split()


def test_a_quick_life_ends_before_rewards_and_a_whole_one_goes_on_from_there(tmp_path, monkeypatch, capsys):
    begin = {"a": "-c open('{to}/a','a').write('x')"}
    monkeypatch.setattr(chat, "QUICK", begin | {"said.json": "-c pass"})
    monkeypatch.setattr(chat, "STAGES", begin | {"b": "-c open('{to}/b')"})
    chat.main([f"--out_dir={tmp_path}", "--quick=True"])
    assert f"python serve.py --out_dir={tmp_path}/1/quick" in capsys.readouterr().out
    assert not (tmp_path / "results.json").exists()
    assert "-c failed" in refusal(chat.main, [f"--out_dir={tmp_path}"])
    assert (tmp_path / "1/a").read_text() == "x"


DAMAGED = {
    "results.json": ["{", "[]", '{"stages": [], "lives": {"1": 2}}', '{"lives": {"1": {"answers": 3}}}'],
    "1/stages.json": ["{", "[]", '{"it": "x"}'],
    "1/said.json": ["{", '{"models": {}}'],
    "1/answers.json": ["{", "{}", '{"models": 1}', '{"models": {"chat": {"change": 1}}}'],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_in_a_line_and_kept(tmp_path, monkeypatch, name):
    monkeypatch.setattr(chat, "STAGES", {"it": "-c pass"})
    (path := tmp_path / name).parent.mkdir(exist_ok=True)
    if path.name == "said.json":
        models = {model: shares(0.5) for model in chat.MODELS}
        path.with_name("answers.json").write_text(json.dumps({"questions": 5, "models": models}))
    for text in DAMAGED[name]:
        path.write_text(text)
        assert refusal(chat.main, [f"--out_dir={tmp_path}"]).startswith(f"{path}: cannot be read (")
        assert path.read_text() == text


def test_a_comma_would_split_the_names_of_the_models_to_evaluate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal(chat.main, ["--out_dir=a,b"]).startswith("--out_dir is 'a,b': ")
    assert not [*tmp_path.iterdir()]


def test_ctrl_c_lets_a_stage_save_and_the_same_command_does_it_again(tmp_path, monkeypatch):
    """A terminal sends Ctrl-C to both; here the stage sends it to the parent, and takes its time to save."""
    (tmp_path / "stage.py").write_text(
        "import os, signal, sys, time\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "time.sleep(0.3)\n"
        "open(sys.argv[1], 'a').write('x')\n"
    )
    monkeypatch.setattr(chat, "STAGES", {"a": f"{tmp_path}/stage.py {{to}}/a"})
    for times in ("x", "xx"):
        with pytest.raises(KeyboardInterrupt):
            chat.main([f"--out_dir={tmp_path}"])
        assert (tmp_path / "1/a").read_text() == times


def test_training_that_was_stopped_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    """One of an earlier life is not its own, nor is one whose save was cut."""
    ran, saved = [], tmp_path / "1/chat/checkpoints"
    (saved / "20").mkdir(parents=True)  # of an earlier life

    def stopped(words):
        ran.append(words)
        (saved / "20.orbax-checkpoint-tmp-1").mkdir(parents=True, exist_ok=True)
        if len(ran) > 1:
            (saved / "20").mkdir(exist_ok=True)
        return 143

    monkeypatch.setattr(chat, "STAGES", {"chat": chat.STAGES["chat"]})
    monkeypatch.setattr(chat, "run", stopped)
    for _ in range(3):
        assert "failed: mend it" in refusal(chat.main, [f"--out_dir={tmp_path}"])
    first, again, resumed = ran
    assert first == again and f"--init_from={tmp_path}/1/base" in first
    assert resumed == ["train.py", f"--out_dir={tmp_path}/1/chat", "--init_from=resume"]
    (tmp_path / "1/stages.json").unlink()
    refusal(chat.main, [f"--out_dir={tmp_path}"])
    assert ran[-1] == first


def test_each_file_of_the_book_is_a_document():
    book = "==> a.py <==\nx = 1\n==> b.md <==\na ==> b\n"
    documents = chat.as_documents(book).split("<|endoftext|>\n")
    assert documents == ["==> a.py <==\nx = 1\n", "==> b.md <==\na ==> b\n"]


def test_the_table_has_means_and_what_rewards_add():
    """Rewards add 10, 20 and 30 points in three lives: Student's interval is 20 ± 4.303 x 10 / sqrt(3)."""
    lives = {
        seed: {"answers": dict(chat=shares(0.5), more=shares(0.6), rewarded=shares(0.5 + seed / 10))}
        for seed in (1, 2, 3)
    }
    row = chat.table(lives).splitlines()[2]
    assert row == "| reverse, sampled | 50.0% | 60.0% | 70.0% | +20.0 ± 24.8 | +10.0 ± 24.8 |"
