"""rl.py: its gradient is REINFORCE's, the sampler is the trainer, a run resumes to the bit."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers

import evaluate
import rl
import train
from config.options import Options
from data.prepare import prepare
from data.tasks import Question, questions, split_of
from data.tasks import main as write_tasks
from data.tokenizer import from_json
from data.train_tokenizer import save
from data.train_tokenizer import train as train_tokenizer
from fast import How, faster
from generation.decode import limit_vocabulary
from generation.engine import Request
from generation.sampling import GREEDY, PLAIN
from rewards import answers, policy
from rewards.evaluation import write_rollouts
from rewards.options import RewardOptions
from runs.checkpoint import Checkpoints
from runs.load import load_run
from tests.helpers import FLOAT32_ROUNDING, ROOT, assert_same_bits, contents, named_arrays, records, refusal

SHAPE = dict(n_layer=1, n_head=2, n_embd=32, block_size=96, position="rope", unroll=1)
SHAPE |= dict(document_mask=True, dtype="float32", vocab_size=400)
V = 300  # tokens of its tokenizer, which alone are drawn


def words(**options) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The folder of a data set of conversations, and a run that has learned a little of them."""
    there = tmp_path_factory.mktemp("rl")
    write_tasks([f"--to={there}/a.jsonl", "--n=400", "--tasks=add,count,reverse"])
    texts = (m["content"] for line in (there / "a.jsonl").open() for m in json.loads(line)["messages"])
    save(train_tokenizer(texts, V), there / "tokenizer")
    data = dict(source=there / "a.jsonl", tokenizer=there / "tokenizer", to=there / "chat", chat=True)
    prepare(words(**data, block_size=96, val_fraction=0.1))
    options = SHAPE | dict(dataset=there / "chat", out_dir=there / "run", batch_size=8, max_iters=80)
    options |= dict(gradient_accumulation_steps=1, eval_interval=80, eval_iters=2, warmup_iters=5)
    train.main(words(**options, learning_rate=1e-2, device="cpu", mesh="data:1"))
    return there


def learn(base, out, **options) -> int:
    fixed = dict(init_from=base / "run", dataset=base / "chat", document_mask=True, out_dir=out, device="cpu")
    small = dict(batch_size=8, gradient_accumulation_steps=2, group=4, tasks="add,reverse", max_new_tokens=6)
    rates = dict(learning_rate=1e-3, decay_lr=False, max_iters=4, eval_interval=2, tested=3, dtype="float32")
    return rl.main(words(**fixed | small | rates | dict(mesh="data:1", compilation_cache=False) | options))


def refused(main, out, **options) -> str:
    """Return the line with which a command refuses to go on with a run."""
    return refusal(main, words(out_dir=out, init_from="resume", **options))


@jax.jit
def logits_of_row(model, row):
    return model(row[None])[0]


def logprobs_after(model, ids) -> np.ndarray:
    """Return log p of each token after each of the ids; a causal model does not see what fills the row."""
    row = np.zeros(SHAPE["block_size"], np.int32)
    row[: len(ids)] = ids
    return np.asarray(jax.nn.log_softmax(logits_of_row(model, row)[: len(ids), :V]))


def logprobs_of(model, line, answer) -> np.ndarray:
    """Return log p of the tokens of an answer in a line of rollouts.jsonl."""
    logprobs = logprobs_after(model, [*line["prompt"], *answer["tokens"][:-1]])
    n = len(answer["tokens"])
    return logprobs[-n:][np.arange(n), answer["tokens"]]


def rollouts(out) -> list[dict]:
    return [json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines()]


def test_advantages_are_rewards_less_the_mean_of_their_group():
    found = policy.advantages(np.array([1.0, 0.0, 0.0, 1.0, 5.0, 5.0]), 2)
    assert found.tolist() == [0.5, -0.5, -0.5, 0.5, 0.0, 0.0]
    for reward in (0.1, -0.7, 1e-20, 1e30):  # whose mean, of six, is rounded
        assert not policy.advantages(np.full(6, reward), 6).any()
    small = policy.advantages(np.array([1.0, 1.0 + 1e-9]), 2)
    np.testing.assert_allclose(small, [-0.5e-9, 0.5e-9], rtol=1e-6)


def test_the_gradient_is_that_of_the_weighted_log_probabilities(base):
    model, manifest, _ = load_run(str(base / "run"))
    sampler = answers.Sampler(from_json(manifest.tokenizer), 6)
    asked = [Question("add", "", f"What is {i} + 2?", "") for i in range(4)]
    drawn = sampler(model, asked, jax.random.key(0))
    x, y = policy.rows_of(drawn, 96)
    of_rows = jnp.array([0.5, -1.0, 2.0, 0.0])  # of four microbatches, the last is left out

    texts = np.zeros((4, 96), np.int32)  # a causal model does not see what fills the rows
    for text, answer in zip(texts, drawn, strict=True):
        text[: len(answer.prompt) + len(answer.tokens)] = [*answer.prompt, *answer.tokens]

    def expected(model):
        logprobs = jax.nn.log_softmax(model(texts)[..., :V])
        of_answers = [
            logprobs[i, np.arange(len(a.prompt) - 1, len(a.prompt) + len(a.tokens) - 1), a.tokens].sum()
            for i, a in enumerate(drawn)
        ]
        return -(of_rows * jnp.stack(of_answers)).sum()

    @jax.jit
    def found(model, x, y, of_rows):
        frozen = jax.tree.map(lambda _: None, model)

        def compute(model):
            return limit_vocabulary(faster(model, How()), V)

        return policy.policy_gradient(model, frozen, compute, x, y, of_rows)

    loss, gradients = jax.jit(jax.value_and_grad(expected))(model)
    other, others, logprobs = found(model, *(z[:, None] for z in (x, y, of_rows)))
    np.testing.assert_allclose(other, loss, rtol=FLOAT32_ROUNDING)
    of_answers = (y.reshape(logprobs.shape) >= 0) & ~np.isnan(logprobs)
    by_engine = np.concatenate([answer.logprobs for answer in drawn[:3]])
    np.testing.assert_allclose(logprobs[of_answers], by_engine, atol=1e-5)
    for name, array in named_arrays(gradients).items():
        at = FLOAT32_ROUNDING * np.abs(array).max()
        np.testing.assert_allclose(named_arrays(others)[name], array, atol=at)


@pytest.mark.parametrize("kl", [0.0, 0.5])
def test_an_answer_weighs_as_much_as_its_worth_is_above_its_groups_mean(kl, base, monkeypatch):
    """Whatever its row: those of a group that are worth the same come last. KL is that to the start."""
    model, manifest, _ = load_run(str(base / "run"))
    start, tokenizer = jax.tree.map(lambda x: 1.5 * x, model), from_json(manifest.tokenizer)
    sampler = answers.Sampler(tokenizer, 6, lambda q, text: sum(text.encode()) * (q.task == "add"))
    asked = [next(questions(task, "train", 0)) for task in ("count", "add") for _ in range(4)]
    drawn = sampler(model, asked, jax.random.key(0))
    options = replace(manifest.options, gradient_accumulation_steps=2, batch_size=4)
    step = Mock(side_effect=lambda state, x, *_: (state, {}, np.zeros(x.shape)))
    monkeypatch.setattr(policy, "policy_step", step)
    monkeypatch.setattr(policy, "compiled", computed := Mock(side_effect=policy.compiled))
    own = RewardOptions(group=4, max_new_tokens=6, kl=kl)
    policy.take_step(SimpleNamespace(model=model), drawn, options, own, sampler.limit(start))
    before = [logprobs_of(start, dict(prompt=a.prompt), dict(tokens=a.tokens)).sum() for a in drawn]
    worth = [a.reward - kl * (a.logprobs.sum() - b) for a, b in zip(drawn, before, strict=True)]
    above = np.array(worth) - np.repeat([np.mean(worth[:4]), np.mean(worth[4:])], 4)
    x, y, weights = (np.concatenate(each) for each in step.call_args.args[1:4])
    expected = {row.tobytes(): a for row, a in zip(np.hstack(policy.rows_of(drawn, 96)), above, strict=True)}
    found = {row.tobytes(): 8 * 6 * w for row, w in zip(np.hstack([x, y]), weights, strict=True)}
    assert found == pytest.approx(expected, abs=1e-3) and max(abs(above)) > 0.1
    assert [len(call.args[1]) for call in computed.call_args_list] == 4 * [4] * bool(kl)  # microbatches


def reward(folder, code) -> str:
    """Write a reward whose body is `code`, and return its name."""
    (folder / "mine.py").write_text(f"def check(question, text):\n    {code}\n")
    return f"{folder}/mine.py:check"


@pytest.fixture(scope="module")
def learned(base):
    """The folder of a run that was rewarded for short answers, so that all groups teach."""
    run = dict(reward=reward(base, "return -len(text)"), learning_rate=3e-3, eval_interval=4)
    assert learn(base, base / "learned", **run) == 0
    return base / "learned"


def test_the_engine_draws_with_the_probabilities_that_training_computes(base, learned, tmp_path, monkeypatch):
    """Both among the tokenizer's tokens alone, of which the model has more; with adapters, too."""
    asked, run = [], dict(reward=reward(base, "return -len(text)"), learning_rate=3e-2, eval_interval=4)
    monkeypatch.setattr(answers, "Request", lambda *a, **more: asked.append(a) or Request(*a, **more))
    learn(base, tmp_path / "lora", lora_rank=2, **run)
    for out in (learned, tmp_path / "lora"):
        steps = [r for r in records(out) if "difference" in r]
        assert len(steps) == 4 and all(r["difference"] < 1e-5 and r["entropy"] > 0 for r in steps)
        assert steps[0]["grad_norm"] > 0  # the weights have changed between them
    last = rollouts(tmp_path / "lora")[-1]["answers"][0]
    assert np.abs(np.array(last["before"]) - last["logprobs"]).max() > 1e-3
    # Two evaluations ask for greedy answers, and for groups of the same keys; each step has others.
    assert Counter(settings for _, _, _, settings, *_ in asked) == {GREEDY: 2 * 2 * 3, PLAIN: (4 + 2) * 16}
    keys = {str(key) for _, key, _, settings, *_ in asked if settings == PLAIN}
    assert len(keys) == (4 + 1) * 16


def test_rollouts_show_groups_of_answers_before_and_after(base, learned):
    lines = rollouts(learned)
    assert [(line["iter"], line["task"]) for line in lines] == [
        (i, task) for i in (0, 4) for task in ("add", "add", "reverse", "reverse")
    ]
    start = load_run(str(base / "run"))[0]
    for line in lines:
        rewards, above = ([answer[name] for answer in line["answers"]] for name in ("reward", "advantage"))
        assert len(rewards) == 4 and above == pytest.approx(np.array(rewards) - np.mean(rewards))
        for answer in line["answers"]:
            np.testing.assert_allclose(answer["before"], logprobs_of(start, line, answer), atol=1e-4)
            moved = np.abs(np.array(answer["before"]) - answer["logprobs"]).max()
            assert moved < 1e-4 if line["iter"] == 0 else moved > 1e-3


def test_a_run_without_advantages_moves_no_weight_and_says_so(base, tmp_path, capsys):
    """At the start log p is that of the start, to the bit: Adam would make full steps of its rounding."""
    run = dict(kl=0.5, learning_rate=1e-2, weight_decay=0, max_iters=3)
    learn(base, tmp_path / "out", reward=reward(tmp_path, "return 0.1"), **run)
    assert_same_bits(*(load_run(str(out))[0] for out in (base / "run", tmp_path / "out")))
    steps = [r for r in records(tmp_path / "out") if "ms" in r]
    assert [(r["weighted"], r["kl"]) for r in steps] == [(0, 0)] * 3
    notes = [line for line in capsys.readouterr().err.splitlines() if "had the same reward" in line]
    assert [line.split(": ")[:2] for line in notes] == [["note", "iter 2"], ["note", "iter 3"]]


def test_a_tokenizer_that_is_larger_than_the_model_answers_with_the_models_tokens(base):
    """As where a tokenizer got tokens that the weights do not know; a prompt that has one is refused."""
    model, manifest, _ = load_run(str(base / "run"))
    sampler, asked = answers.Sampler(from_json(manifest.tokenizer), 6), [Question("add", "", "to", "")] * 8
    few, fewer = (replace(model.config, vocab_size=V).build(jax.random.key(0)) for V in (299, 40))
    assert max(max(answer.tokens) for answer in sampler(few, asked, jax.random.key(0))) < 299
    assert "that is not of the model's 40" in refusal(sampler, fewer, asked, jax.random.key(0))


def test_steps_of_fewer_questions_than_tasks_ask_all_by_turns():
    options = replace(Options(), gradient_accumulation_steps=1, batch_size=8)
    own = RewardOptions(tasks="add,count,reverse", group=4)
    asked = [[question.task for question in policy.ask(i, options, own)] for i in range(3)]
    assert asked == [
        4 * ["add"] + 4 * ["count"],
        4 * ["reverse"] + 4 * ["add"],
        4 * ["count"] + 4 * ["reverse"],
    ]
    subjects = {f"{q.task} {q.subject}".encode() for i in range(9) for q in policy.ask(i, options, own)}
    assert {split_of(subject) for subject in subjects} == {"train"}


def test_an_evaluation_replaces_the_rollouts_of_what_is_done_again(tmp_path):
    """And damaged lines, as a killed run or an editor leaves them."""
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b'{"iter": 0}\n{"iter": 1\n[]\n{}\n\xff\n{"iter": 2}\n{"iter": 3}\n{"iter": 0, "ta')
    write_rollouts(path, 2, [{"task": "add"}])
    assert path.read_text() == '{"iter": 0}\n{"iter": 2, "task": "add"}\n'


@pytest.mark.parametrize(
    "change, says",
    [
        ("", "rewards.json: cannot be read ("),
        ("[1]", "rewards.json: cannot be read ("),
        (dict(group="4"), "rewards.json: group is '4': "),
        (dict(surprise=1), "rewards.json: surprise is not an option"),
        (dict(start="scratch"), "rewards are for a model that answers"),
    ],
)
def test_a_damaged_rewards_json_is_one_line(change, says, base, learned, tmp_path):
    out = shutil.copytree(learned, tmp_path / "out")
    saved = json.loads((out / "rewards.json").read_text())
    text = change if isinstance(change, str) else json.dumps(saved | change)
    (out / "rewards.json").write_text(text)
    assert says in refused(rl.main, out, reward=saved["reward"], max_iters=5)


def test_a_reward_is_the_same_file_from_any_folder(base, tmp_path, monkeypatch):
    """One that goes to another folder leaves the run in its own."""
    code = (
        "import os\nos.chdir('/')\ndef check(question, text):\n    os.chdir('/')\n    return len(text) / 9\n"
    )
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(code)
    monkeypatch.chdir(tmp_path / "here")
    learn(base, Path("out"), reward="mine.py:check", max_iters=1)
    assert {"metrics.jsonl", "rollouts.jsonl", "loss.png"} <= {path.name for path in Path("out").iterdir()}
    again = words(out_dir=tmp_path / "here/out", init_from="resume", reward="mine.py:check", max_iters=2)
    rl.main(again)
    monkeypatch.chdir(tmp_path / "there")
    assert f"has {tmp_path}/here/mine.py:check: leave it out, or begin" in refusal(rl.main, again)


def test_an_overwritten_run_stays_if_the_new_one_cannot_begin(base, learned, tmp_path):
    """Whether it is refused, or interrupted in its first evaluation."""
    out = shutil.copytree(learned, tmp_path / "out")
    before = contents(out)
    for wrong in (dict(max_new_tokens=120), dict(reward=reward(tmp_path, "return float('nan')"))):
        refusal(learn, base, out, overwrite=True, **wrong)
        assert contents(out) == before
    once = f"__import__('os').mkdir({str(tmp_path / 'asked')!r}) or signal.raise_signal(signal.SIGINT)"
    code = f"import contextlib, signal\n    with contextlib.suppress(OSError): {once}\n    return 0.0"
    interrupted = reward(tmp_path, code)
    assert learn(base, out, overwrite=True, reward=interrupted) == 130
    assert contents(out) == before
    (tmp_path / "asked").rmdir()
    assert learn(base, tmp_path / "new", reward=interrupted) == 130  # a new run goes on
    again = words(out_dir=tmp_path / "new", init_from="resume", max_iters=1, reward=interrupted)
    assert rl.main(again) == 0


def test_a_run_that_is_overwritten_is_evaluated_once(base, learned, tmp_path):
    """By questions that evaluate.py does not ask, which reports on the checkpoint that these choose."""
    out = shutil.copytree(learned, tmp_path / "out")
    code = f"open({str(tmp_path / 'asked')!r}, 'a').write(question.text + chr(10)); return 1.0"
    learn(base, out, overwrite=True, reward=reward(tmp_path, code), max_iters=0)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 2 * (3 + 2 * 4)  # by task, `tested` greedy answers, and two groups of four
    reported = {q.text for task in ("add", "reverse") for q in islice(questions(task, "test", 0), 500)}
    assert not reported & {*asked}
    assert [r["val/reward"] for r in records(out)] == [1.0]


def test_a_folder_runs_no_code_that_the_command_line_does_not_name(base, learned, tmp_path):
    out = shutil.copytree(learned, tmp_path / "out")
    saved = json.loads((out / "rewards.json").read_text())
    evil = reward(tmp_path, f"return 0.0\nopen({str(tmp_path / 'ran')!r}, 'w')")
    (out / "rewards.json").write_text(json.dumps(saved | {"reward": evil}))
    assert f"to run the code of its reward, give --reward={evil}" in refused(rl.main, out, max_iters=5)
    assert f"reward=None, but {out}/rewards.json has " in refused(rl.main, out, max_iters=5, reward=None)
    assert not (tmp_path / "ran").exists()


def test_the_score_is_a_reward_and_no_command_takes_it_for_a_loss(base, learned, tmp_path):
    found = [r for r in records(learned) if "ms" not in r]
    assert [{*r} for r in found] == [{"iter", "val/reward", "val/add", "val/reverse"}] * 2
    assert all(r["val/reward"] == pytest.approx((r["val/add"] + r["val/reverse"]) / 2) for r in found)
    _, manifest, _ = load_run(str(learned))
    kept = Checkpoints(str(learned)).loss(4)
    assert (manifest.score, kept) == ("reward", pytest.approx(1 - found[-1]["val/reward"]))
    assert "go on with rl.py, which trained it" in refused(train.main, learned, max_iters=5)
    out = shutil.copytree(base / "run", tmp_path / "out")  # of train.py, after one of rewards
    shutil.copy(learned / "rewards.json", out)
    named = json.loads((out / "rewards.json").read_text())["reward"]
    assert "go on with train.py, which trained it" in refused(rl.main, out, max_iters=5, reward=named)
    assert "run/rewards.json: cannot be read (No such file" in refused(rl.main, base / "run", max_iters=5)


def test_a_run_whose_start_is_another_now_is_refused(base, learned, tmp_path):
    start, out = (shutil.copytree(base / name, tmp_path / name) for name in ("run", "learned"))
    saved = json.loads((out / "rewards.json").read_text())
    assert saved["start"] == str(base / "run")
    (out / "rewards.json").write_text(json.dumps(saved | {"start": str(start)}))
    again = words(out_dir=out, init_from="resume", reward=saved["reward"], max_iters=4)
    assert rl.main(again) == 0  # another folder with the same weights
    shutil.rmtree(start)
    shutil.copytree(learned, start)
    text = refusal(rl.main, again)
    assert text.startswith(f"{out}: it began with other weights than {start} has now: put those back")


def recited(base, text: str, run: str = "run") -> str:
    """Return the answer of the run's likeliest tokens, four at most, to a prompt that transformers writes."""
    model, _, _ = load_run(str(base / run))
    theirs = transformers.AutoTokenizer.from_pretrained(base / "tokenizer")
    messages = [{"role": "user", "content": text}]
    ids = theirs.encode(theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    for _ in range(4):
        ids.append(int(logprobs_after(model, ids)[-1].argmax()))
    return theirs.decode(ids[-4:]).split("<|im_end|>")[0]


def test_evaluate_counts_the_right_answers_of_several_models(base, learned, tmp_path, capsys):
    """The run recites; greedily, its answers are those of the likeliest tokens one after the other."""
    options = dict(out_dir=base / "run", beside=learned, tasks="add,count", questions=12, max_new_tokens=4)
    evaluate.main(words(**options, json=tmp_path / "answers.json", mesh="data:1", dtype="float32"))
    found = json.loads((tmp_path / "answers.json").read_text())["models"]
    asked = [*islice(questions("count", "test", 0), 12)]
    assert len({question.subject for question in asked}) == 12
    right = [[recited(base, q.text, run).strip() == q.answer for q in asked] for run in ("run", "learned")]
    (share, low, high, p, n), theirs = (of_model["count"]["greedy"] for of_model in found.values())
    assert [*found] == [str(base / "run"), str(learned)] and p == 1.0  # of no other model than itself
    assert n == 12
    assert [share, theirs[0]] == pytest.approx(np.mean(right, axis=1)) and share != theirs[0]
    assert 0 < low < share < high < 1
    printed, subjects = capsys.readouterr().out, {q.subject for q in islice(questions("add", "test", 0), 12)}
    assert "greedy: right of 12 held-out questions of each task" in printed
    assert len(subjects) < 12 and printed.count(f"% of {len(subjects)} (") == 4  # of two models, both ways


def test_evaluate_answers_the_lines_of_a_file(base, tmp_path, capsys):
    (tmp_path / "ask.txt").write_text("\ufeffAdd 3 and 4.\n\n  Count to 2 \nSort 2, 1.\n")
    options = dict(out_dir=base / "run", ask=tmp_path / "ask.txt", max_new_tokens=4, mesh="data:1")
    evaluate.main(words(**options, questions=2, json=tmp_path / "said.json", dtype="float32"))
    asked = ["Add 3 and 4.", "Count to 2"]
    said = [recited(base, text) for text in asked]
    found = json.loads((tmp_path / "said.json").read_text())
    assert found == {"questions": asked, "models": {str(base / "run"): said}}
    assert f"{asked[1]}\n    {base / 'run'}: {said[1]}\n" in capsys.readouterr().out
    (tmp_path / "ask.txt").write_text("\n")
    assert "ask.txt: it has no questions" in refusal(evaluate.main, words(**options))
    (tmp_path / "ask.txt").write_bytes(b"\xff\xfe\xff")
    assert "ask.txt: not UTF-8 at byte 0: " in refusal(evaluate.main, words(**options))
    assert "give one of them" in refusal(evaluate.main, words(**options, tasks="add"))


def test_models_are_compared_by_the_questions_that_one_alone_answers_rightly():
    """By McNemar's exact test: of 8 such questions, a fair coin gives one 0, 1, 7 or 8 in 18 of 256 cases."""
    first, other = np.repeat([[1, 0], [0, 1], [1, 1], [0, 0]], [7, 1, 20, 30], axis=0).T * 1.0
    share, low, high, p = evaluate.compare(other, first)
    assert (share, p) == (pytest.approx(21 / 58), pytest.approx(18 / 256)) and low < share < high


def test_a_run_has_the_template_that_made_its_conversations_not_its_bases(base, tmp_path):
    """And knows whether these had a system message: the base's have none."""
    template = (ROOT / "data/chat.jinja").read_text().replace("|>assistant", "|>helper")
    (tmp_path / "mine.jinja").write_text(template)
    with (tmp_path / "a.jsonl").open("w") as file:
        for line in (base / "a.jsonl").open():
            messages = [{"role": "system", "content": "add"}, *json.loads(line)["messages"]]
            file.write(json.dumps({"messages": messages}) + "\n")
    data = dict(source=tmp_path / "a.jsonl", tokenizer=base / "tokenizer", to=tmp_path / "chat", chat=True)
    prepare(words(**data, block_size=96, val_fraction=0.1, template=tmp_path / "mine.jinja"))
    options = dict(init_from=base / "run", dataset=tmp_path / "chat", out_dir=tmp_path / "out", max_iters=0)
    train.main(words(**options, document_mask=True, eval_iters=1, batch_size=8, device="cpu", mesh="data:1"))
    uses, theirs = (load_run(str(x))[1].tokenizer["uses"] for x in (tmp_path / "out", base / "run"))
    assert (uses["chat_template"], uses["system_message"]) == (template, True)
    assert theirs["chat_template"] != template and not theirs["system_message"]


def test_eval_only_scores_once_and_writes_nothing(base, learned, capsys):
    before = contents(learned)
    assert learn(base, learned, eval_only=True, tasks="add", seed=5) == 0  # the start, whatever is in out_dir
    assert learn(base, base / "nowhere", eval_only=True) == 0 and not (base / "nowhere").exists()
    again = dict(out_dir=learned, init_from="resume", eval_only=True, max_iters=9)
    assert rl.main(words(**again, reward=f"{base}/mine.py:check")) == 0
    assert contents(learned) == before
    last = [r for r in records(learned) if "val/reward" in r][-1]
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("iter ")]
    expected = f"iter 4: val reward {last['val/reward']:.4f}, val add {last['val/add']:.4f}, val reverse "
    assert len(printed) == 3 and printed[-1].startswith(expected)


@pytest.mark.slow
def test_a_run_learns_what_is_rewarded(base, tmp_path):
    run = dict(reward=reward(tmp_path, "return -len(text)"), learning_rate=3e-3, max_iters=25, batch_size=32)
    learn(base, tmp_path / "out", **run)
    rewards = [r["reward"] for r in records(tmp_path / "out") if "reward" in r]
    assert np.mean(rewards[-5:]) > rewards[0] / 2  # fewer than half as many characters
    lengths = [r["length"] for r in records(tmp_path / "out") if "length" in r]
    assert np.mean(lengths[-5:]) < np.mean(lengths[:5])


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(base, tmp_path):
    learn(base, tmp_path / "once", kl=0.1)
    learn(base, tmp_path / "twice", kl=0.1, max_iters=2)
    rl.main(words(out_dir=tmp_path / "twice", init_from="resume", max_iters=4))
    once, twice = (load_run(str(tmp_path / out))[0] for out in ("once", "twice"))
    assert_same_bits(once, twice)
    names = ("iter", "loss", "kl", "val/reward")
    ours, theirs = (
        [{name: r.get(name) for name in names} for r in records(tmp_path / out)] for out in ("once", "twice")
    )
    assert ours == theirs and any(r["kl"] for r in ours)
    assert rollouts(tmp_path / "once") == rollouts(tmp_path / "twice")
    assert "tasks=add, but " in refused(rl.main, tmp_path / "twice", tasks="add")


@pytest.mark.parametrize(
    "code, says",
    [
        ("raise KeyError('x')", ": KeyError: 'x': mend --reward"),
        ("return float('nan')", " is nan: it should be a number"),
        ("return '0.5'", ": TypeError: '0.5' is text: "),
        ("raise SystemExit(0)", ": SystemExit: 0: mend --reward"),
        (
            "try:\n        while True: pass\n    except Exception:\n        return 1",
            ": OutOfTime: it took over 0.2 seconds: mend --reward",
        ),
        ("import time\n    try: time.sleep(9)\n    except: return 1", "OutOfTime: it took over 0.2 seconds"),
    ],
)
def test_a_reward_that_fails_is_one_line_that_names_the_question(code, says, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "PATIENCE", 0.2)
    check = answers.load_reward(reward(tmp_path, code))
    text = refusal(answers.score, check, Question("add", "", "1 + 1?", "2"), "3")
    assert text.startswith("the reward of an answer to '1 + 1?'") and says in text


@pytest.mark.parametrize(
    "options, says",
    [
        (dict(init_from="scratch", n_layer=1), "rewards are for a model that answers: name it, as in "),
        (dict(group=3), "--group=3 does not divide the 16 answers of a step: change --batch_size"),
        (dict(reward="mine.py"), "--reward is 'mine.py': expected FILE.py:FUNCTION"),
        (dict(reward="mine.py:check"), "mine.py:check: cannot be loaded: FileNotFoundError: "),
        (dict(mesh="data:2"), "rewards are learned from on one device: give --mesh=data:1"),
        (dict(dropout=0.1), "--dropout: learning from rewards does not use it: leave it out"),
        (dict(lora_alpha=8.0), "--lora_alpha is not used without --lora_rank: leave it out"),
        (dict(max_new_tokens=90), " and with --max_new_tokens=90 more than block_size=96: give fewer"),
    ],
)
def test_options_that_do_not_fit_are_one_line(options, says, base, tmp_path):
    assert says in refusal(learn, base, tmp_path / "out", **options)


def test_a_config_sets_the_options_of_rewards_too(base, tmp_path):
    (tmp_path / "mine.py").write_text("group = 3\n")
    options = dict(init_from=base / "run", dataset=base / "chat", out_dir=tmp_path / "out", mesh="data:1")
    argv = [str(tmp_path / "mine.py"), *words(**options, batch_size=8, gradient_accumulation_steps=2)]
    assert refusal(rl.main, argv).startswith("--group=3 does not divide the 16 answers")
    asked = ["--group=4", "--eval_only=True", "--tested=1", "--tasks=add"]
    assert rl.main([*argv, *asked]) == 0
    (tmp_path / "mine.py").write_text("batch_size = 2 * group\n")
    argv = [*asked, str(tmp_path / "mine.py"), *words(**options, gradient_accumulation_steps=1)]
    assert rl.main(argv) == 0
