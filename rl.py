"""Learn from rewards: draw answers, score them, and make those likelier that score above their group's mean.

    python rl.py --init_from=out-chat --dataset=data/chat --out_dir=out-rl --tasks=add,reverse --max_iters=200
    python rl.py --init_from=resume --out_dir=out-rl        with --reward again, if it has one of your own

It takes train.py's options: a step has gradient_accumulation_steps x batch_size answers, `group` of them to
each question. It is on policy: a step learns from answers that its own weights drew, at temperature 1 from
all tokens. The gradient is REINFORCE's, with the mean reward of the group as its baseline: GRPO
(arXiv:2402.03300) without its division by lengths and standard deviations (arXiv:2503.20783).

    --tasks=add,date        of data/tasks.py; by default all
    --reward=mine.py:check  a function from a question (data/tasks.py) and an answer to a number; by default
                            1 for a right answer and 0 for a wrong one
    --group=8               answers to a question
    --max_new_tokens=32     tokens of an answer; one that does not end is scored as it is
    --kl=0.0                subtracts so much of log p(answer) - log p_start(answer) from an answer's reward
    --tested=50             questions of each task at an evaluation, answered greedily
"""

from config.command_line import command  # isort: split

import json
import sys
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int
from pydantic import Field
from pydantic_core import from_json

from config.command_line import Count, Name, NonNegative, UserError, check_values, take_options
from config.files import read_json, refusing, write_whole
from config.options import RESUMING, Options, parse_options
from data.tasks import mixed, named_tasks, questions
from generation.decode import GREEDY
from model import GPT
from parallel.machines import on_devices
from rewards.answers import Answer, Draws, Reward, Sampler, draw, load_reward
from runs.checkpoint import Manifest, fingerprint, saved_options
from runs.load import (
    Run,
    changed,
    lasting,
    load_weights,
    open_run,
    shape_of_weights,
    starting_state,
    tokenizer_of,
)
from runs.metrics import Metrics
from runs.process import locked, stop_signals
from training.compute import How, choose_how, faster, for_inference
from training.lora import merge, partition_trainable, without_adapters
from training.state import TrainState
from training.step import update

UNUSED = {"dropout", "eval_iters", "sampling", "pipeline_schedule", "virtual_stages"}  # of train.py's options
ALL_ALIKE = "since the last evaluation all answers to a question had the same reward"
SHOWN = 2  # questions of each task whose answers the page shows, as they are at each evaluation


@dataclass(frozen=True)
class RewardOptions:
    tasks: Name = "all"
    reward: Name | None = None
    group: Annotated[Count, Field(ge=2)] = 8
    max_new_tokens: Count = 32
    kl: NonNegative = 0.0
    tested: Count = 50


@dataclass(frozen=True)
class Kept(RewardOptions):
    """What rewards.json says."""

    start: Name = "scratch"  # the weights that learning began with
    fingerprint: str = ""  # of these; older runs have none


# Sample, score, weigh, step


def ask(model: GPT, i: int, options: Options, own: RewardOptions, sampler: Sampler, reward: Reward) -> Draws:
    """Draw step i's answers, `group` to each question, and score them."""
    answers = options.gradient_accumulation_steps * options.batch_size
    n = answers // own.group
    # Each step goes on with the tasks where the one before ended.
    drawn = islice(mixed(named_tasks(own.tasks), "train", options.seed, i, first=i * n), n)
    asked = [question for question in drawn for _ in range(own.group)]
    return draw(model, asked, jax.random.fold_in(jax.random.key(options.seed), i), sampler, reward)


def advantages(rewards: Float[np.ndarray, " N"], group: int) -> Float[np.ndarray, " N"]:
    """Return how far each reward is above the mean of its group."""
    groups = rewards.reshape(-1, group)
    above = groups - groups.mean(axis=1, keepdims=True)
    # Adam would make full steps of the mean's rounding.
    rounding = group * np.finfo(float).eps * np.abs(groups).max(axis=1, keepdims=True)
    return np.where(np.abs(above) > rounding, above, 0).ravel()


def rows_of(answers: list[Answer], block_size: int) -> tuple[Int[np.ndarray, "N T"], Int[np.ndarray, "N T"]]:
    """Return tokens and targets, a row for each answer. The targets within prompts, and after texts, are -1.

    T is a multiple of 16 or block_size, so that few programs are compiled.
    """
    longest = max(len(answer.prompt) + len(answer.tokens) - 1 for answer in answers)
    T = min(-(-longest // 16) * 16, block_size)
    x, y = np.zeros((len(answers), T), np.int32), np.full((len(answers), T), -1, np.int32)
    for row, answer in enumerate(answers):
        text = np.concatenate([answer.prompt, answer.tokens])
        x[row, : len(text) - 1] = text[:-1]
        y[row, len(answer.prompt) - 1 : len(text) - 1] = answer.tokens
    return x, y


def log_probabilities(
    model: GPT, x: Int[Array | np.ndarray, "B T"], y: Int[Array | np.ndarray, "B T"], V: int
) -> Float[Array, "B T"]:
    """Compute log p of each target among the V tokens that are drawn; 0 where there is none."""
    logprobs = jax.nn.log_softmax(model(jnp.asarray(x))[..., :V].astype(jnp.float32))
    chosen = jnp.take_along_axis(logprobs, jnp.maximum(y, 0)[..., None], -1)[..., 0]
    return jnp.where(y >= 0, chosen, 0)


compiled_log_probabilities = eqx.filter_jit(log_probabilities)


def policy_gradient(
    weights: GPT, frozen: GPT, how: How, x, y, weights_of_rows, V: int
) -> tuple[Float[Array, ""], GPT, Float[Array, "A B T"]]:
    """Return the sum of -weight x log p(answer), its gradients, and log p of each target.

    A microbatch whose weights are all 0 is left out: it has no gradient.
    """

    @partial(eqx.filter_value_and_grad, has_aux=True)
    def of_microbatch(weights, x, y, of_rows):
        logprobs = log_probabilities(faster(eqx.combine(weights, frozen), how), x, y, V)
        return -(of_rows * logprobs.sum(-1)).sum(), logprobs

    def add(total, microbatch):
        (loss, logprobs), gradients = of_microbatch(weights, *microbatch)
        return jax.tree.map(jnp.add, total, (loss, gradients)), logprobs

    def leave_out(total, microbatch):
        return total, jnp.full(microbatch[1].shape, jnp.nan)

    def add_if_weighted(total, microbatch):
        return lax.cond((microbatch[2] != 0).any(), add, leave_out, total, microbatch)

    zero = jax.tree.map(jnp.zeros_like, (jnp.zeros(()), weights))
    (loss, gradients), logprobs = lax.scan(add_if_weighted, zero, (x, y, weights_of_rows))
    return loss, gradients, logprobs


@eqx.filter_jit(donate="all")
def policy_step(
    state: TrainState,
    x: Int[Array | np.ndarray, "A B T"],
    y: Int[Array | np.ndarray, "A B T"],
    weights_of_rows: Float[Array | np.ndarray, "A B"],
    options: Options,
    V: int,
) -> tuple[TrainState, dict[str, Float[Array, ""]], Float[Array, "A B T"]]:
    """Follow the gradient of the sum of weight x log p(answer). Return log p before the step, too."""
    parts, how = partition_trainable(state.model), choose_how(options, state.model.config)
    loss, gradients, logprobs = policy_gradient(*parts, how, x, y, weights_of_rows, V)
    return *update(state, loss, gradients, options), logprobs


def take_step(
    state: TrainState, drawn: Draws, options: Options, own: RewardOptions, start: GPT, V: int
) -> tuple[TrainState, dict[str, Any]]:
    """Learn from answers that the state's own weights drew. Return the next state, and what is recorded."""
    asked, answers, rewards = drawn
    tokens = np.concatenate([answer.logprobs for answer in answers])
    report = {
        "reward": rewards.mean(),
        "length": len(tokens) / len(answers),
        "entropy": -tokens.mean(),  # of a token, as far as the drawn ones tell
    }
    for task in dict.fromkeys(question.task for question in asked):
        report[f"reward/{task}"] = rewards[[question.task == task for question in asked]].mean()
    x, y = rows_of(answers, state.model.config.block_size)
    by_engine = np.zeros(y.shape, np.float32)
    by_engine[y >= 0] = tokens
    if own.kl:
        # Both by one program: else rounding would be a reward, of which Adam makes full steps.
        now, before = (compiled_log_probabilities(model, x, y, V) for model in (merge(state.model), start))
        apart = np.asarray(now - before, float).sum(-1)
        rewards = rewards - own.kl * apart
        report["kl"] = apart.sum() / len(tokens)  # nats a token
    above = advantages(rewards, own.group)
    report["weighted"] = (above != 0).mean()  # share of the answers that have a gradient
    # Answers without an advantage come last, in microbatches that are left out.
    rows = np.argsort(above == 0, kind="stable").reshape(options.gradient_accumulation_steps, -1)
    weights_of_rows = (above[rows] / (rows.size * own.max_new_tokens)).astype(np.float32)
    state, metrics, by_trainer = policy_step(state, x[rows], y[rows], weights_of_rows, options, V)
    report["difference"] = np.nanmax(np.abs(by_trainer - by_engine[rows]), initial=0)  # rounding
    return state, metrics | jax.tree.map(jnp.asarray, report)


def examine(model: GPT, i: int, own: Kept, sampler: Sampler, reward: Reward) -> dict[str, float]:
    """Print and return the mean rewards of greedy answers to held-out questions, of all tasks and of each."""
    means = {}
    for task in named_tasks(own.tasks):
        asked = list(islice(questions(task, "val", 0), own.tested))
        drawn = draw(model, asked, jax.random.key(0), sampler, reward, GREEDY)
        means[f"val/{task}"] = float(drawn.rewards.mean())
    means = {"val/reward": sum(means.values()) / len(means)} | means
    print(f"iter {i}:", ", ".join(f"{name} {mean:.3f}" for name, mean in means.items()), flush=True)
    return means


def rollouts(model: GPT, start: GPT, own: RewardOptions, sampler: Sampler, reward: Reward) -> list[dict]:
    """Draw groups of answers to held-out questions, the same at each evaluation: for serve.py's page."""
    shown = [q for task in named_tasks(own.tasks) for q in islice(questions(task, "val", 0), SHOWN)]
    asked = [question for question in shown for _ in range(own.group)]
    _, answers, rewards = draw(model, asked, jax.random.key(0), sampler, reward)
    x, y = rows_of(answers, model.config.block_size)
    before = np.asarray(compiled_log_probabilities(start, x, y, sampler.vocab_size(start)))
    lines = [
        {
            **{"tokens": answer.tokens.tolist(), "text": answer.text},
            **{"reward": rewards[row], "advantage": advantage, "logprobs": answer.logprobs.tolist()},
            "before": before[row][y[row] >= 0].tolist(),
        }
        for row, (answer, advantage) in enumerate(zip(answers, advantages(rewards, own.group), strict=True))
    ]
    return [
        {
            **{"task": question.task, "question": question.text, "prompt": answers[row].prompt.tolist()},
            "answers": lines[row : row + own.group],
        }
        for row, question in zip(range(0, len(asked), own.group), shown, strict=True)
    ]


# The run


def main(argv: list[str]) -> int:
    """Read the options, and learn. Return the exit status."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
    values, words = take_options(argv, RewardOptions)
    options = parse_options(words, shape_of_weights, saved_options)
    for name in UNUSED & take_options(words, Options)[0].keys():  # configs for train.py may have them
        raise UserError(f"--{name}: learning from rewards does not use it: leave it out")
    with on_devices(options), nullcontext() if options.eval_only else locked(options.out_dir):
        own = kept_options(options, values)
        check(options, own)
        reward = load_reward(own.reward)
        run = open_run(options)
        with stop_signals() as stop_asked:
            state, manifest = starting_state(run, "reward")
            return learn(run, own, state, manifest, reward, stop_asked)


def learn(run: Run, own: Kept, state: TrainState, manifest: Manifest, reward: Reward, stop_asked) -> int:
    """Learn until max_iters and return 0, or until asked to stop and return that status."""
    options, checkpoints = run.options, run.checkpoints
    sampler = Sampler(tokenizer_of(manifest.tokenizer, "resume", options.out_dir), own.max_new_tokens)
    if options.eval_only:  # the model that learning would begin with
        model = for_inference(merge(state.model), options.dtype)
        examine(model, int(state.step), own, sampler, reward)
        return stop_asked()
    start = for_inference(load_start(run, own), options.dtype)
    shown = Path(options.out_dir, "rollouts.jsonl")
    i, status = int(state.step), 0
    loss = checkpoints.loss(i) if run.resuming else None  # 1 - the reward of step i's model, examined
    taught = loss is None  # whether any answer of this interval had an advantage
    with closing(Metrics(options, i, run.config, 1, evaluated=loss is not None)) as metrics:
        if options.overwrite:
            checkpoints.delete_all()
        keep_lines(shown, i + (loss is not None))
        while True:
            model = for_inference(merge(state.model), options.dtype)
            if (i % options.eval_interval == 0 or i == options.max_iters) and loss is None:
                metrics.catch_up()
                if not taught:
                    print(f"note: iter {i}: nothing learned: {ALL_ALIKE}", file=sys.stderr)
                taught = False
                means = examine(model, i, own, sampler, reward)
                loss = 1 - means["val/reward"]
                metrics.write({"iter": i} | means)
                with shown.open("a") as file:
                    for line in rollouts(model, start, own, sampler, reward):
                        file.write(json.dumps({"iter": i} | line) + "\n")
                manifest, improved = manifest.after_evaluation(loss)
                if i > 0 and (improved or options.always_save_checkpoint):
                    checkpoints.save(state, manifest, loss)
            if i >= options.max_iters or (status := stop_asked()):
                break
            with metrics.making_batch():
                drawn = ask(model, i, options, own, sampler, reward)
            state, report = take_step(state, drawn, options, own, start, sampler.vocab_size(start))
            metrics.speed.tokens = sum(len(answer.prompt) + len(answer.tokens) for answer in drawn.answers)
            metrics.step(i, report)
            taught = taught or bool(report["weighted"] > 0)
            i, loss = i + 1, None
        metrics.catch_up()
        if status:
            checkpoints.save(state, manifest, loss)
            print(f"stopped at iter {i}; resume with --out_dir={quote(options.out_dir)} --init_from=resume")
        checkpoints.wait()
    return status


def load_start(run: Run, own: Kept) -> GPT:
    """Load the weights that learning began with, and write rewards.json. Raises UserError for others."""
    start = load_weights(own.start, without_adapters(run.shapes.model))
    if own.fingerprint not in ("", found := fingerprint(start)):
        raise changed(f"{run.options.out_dir}: it began with", own.start)
    own = replace(own, fingerprint=found)
    write_whole(Path(run.options.out_dir, "rewards.json"), json.dumps(asdict(own), indent=1) + "\n")
    return start


def keep_lines(path: Path, end: int) -> None:
    """Drop damaged lines, and what the run does again: the evaluations from iteration `end` on."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() and end else []
    write_whole(path, "".join(line.decode() for line in lines if -1 < iteration_of(line) < end))


def iteration_of(line: bytes) -> int:
    """Return the iteration of a line of rollouts.jsonl; -1: it is damaged."""
    with suppress(ValueError, TypeError, KeyError):
        i = from_json(line)["iter"]
        return i if type(i) is int and line.endswith(b"\n") else -1
    return -1


def kept_options(options: Options, values: dict[str, Any]) -> Kept:
    """Return the options of rewards; a resumed run keeps those that it began with. Raises UserError."""
    path = Path(options.out_dir, "rewards.json")
    if options.init_from not in RESUMING:
        return Kept(**values, start=lasting(options.init_from))
    with refusing(f"{path}: cannot be read", "restore it, or begin another run", ValueError, TypeError):
        kept = Kept(**check_values(dict(read_json(path)), f"{path}: ", Kept))
    for name, value in values.items():
        if (theirs := getattr(kept, name)) != value:
            raise UserError(f"{name}={value}, but {path} has {theirs}: leave it out, or begin another run")
    if kept.reward != values.get("reward"):  # the folder may be somebody else's
        raise UserError(f"{path}: to run the code of its reward, give --reward={kept.reward}")
    return kept


def check(options: Options, own: Kept) -> None:
    """Raise UserError for options that do not fit together."""
    if own.start == "scratch":
        raise UserError("rewards are for a model that answers: name it, as in --init_from=out-chat")
    rows = options.gradient_accumulation_steps * options.batch_size
    if rows % own.group:
        raise UserError(
            f"--group={own.group} does not divide the {rows} answers of a step: change --batch_size"
        )
    if jax.sharding.get_mesh().size > 1:
        raise UserError("rewards are learned from on one device: give --mesh=data:1")
    named_tasks(own.tasks)


if __name__ == "__main__":
    command(main)
