"""Learn from rewards: draw answers, score them, and make those likelier that score above their group's mean.

    python rl.py --init_from=out-chat --dataset=data/chat --out_dir=out-rl --tasks=add,reverse --max_iters=200
    python rl.py --init_from=resume --out_dir=out-rl

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

from config.command_line import Count, Name, NonNegative, UserError, command, take_options  # isort: split

import json
import math
import runpy
import signal
from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from config.files import first_line, read_json, write_whole
from config.options import RESUMING, Options, parse_options
from data.conversations import Renderer
from data.tasks import TASKS, Question, mixed, questions
from data.tokenizer import end_tokens, from_json
from generation.decode import GREEDY, PLAIN, Settings
from generation.engine import Engine, Request
from model import GPT
from parallel.machines import on_devices
from parallel.mesh import shard
from runs.checkpoint import Manifest, saved_options
from runs.load import Run, load_weights, open_run, shape_of_weights, starting_state
from runs.metrics import Metrics
from runs.process import locked, stop_signals
from training.lora import merge, partition_trainable
from training.state import TrainState
from training.step import update

SLOTS = 64  # answers that are drawn at once
PATIENCE = 10  # seconds that a reward may take
Reward = Callable[[Question, str], float]


@dataclass(frozen=True)
class RewardOptions:
    tasks: Name = ",".join(TASKS)
    reward: Name | None = None
    group: Count = 8
    max_new_tokens: Count = 32
    kl: NonNegative = 0.0
    tested: Count = 50
    start: Name | None = None  # the weights that learning began with; set from init_from


# Sample, score, weigh, step


class Answer(NamedTuple):
    """An answer that the model drew."""

    prompt: Int[np.ndarray, " P"]
    tokens: Int[np.ndarray, " n"]
    logprobs: Float[np.ndarray, " n"]  # of its tokens, by the engine
    text: str


class Sampler:
    """Draws answers to questions, each as its prompt alone would get it."""

    def __init__(self, description: dict, max_new_tokens: int):
        self.renderer = Renderer(from_json(description), None)
        self.ends, self.max_new_tokens = tuple(end_tokens(description)), max_new_tokens

    def __call__(
        self, model: GPT, asked: list[Question], keys: PRNGKeyArray, settings: Settings
    ) -> list[Answer]:
        prompts = [self.renderer.prompt(question.conversation[:1]) for question in asked]
        for question, prompt in zip(asked, prompts, strict=True):
            if len(prompt) + self.max_new_tokens > model.config.block_size:
                raise UserError(
                    f"question {question.text!r} has {len(prompt)} tokens, and with --max_new_tokens="
                    f"{self.max_new_tokens} more than block_size={model.config.block_size}: give fewer"
                )
        engine = Engine(model, min(SLOTS, len(asked)), self.renderer.tokenizer.vocab_size)
        tokens, logprobs = ([[] for _ in asked] for _ in range(2))
        waiting, owner = list(range(len(asked)))[::-1], {}
        while waiting or not engine.idle:
            while waiting and engine.free:
                row = waiting.pop()
                request = Request(
                    prompts[row], keys[row], self.max_new_tokens, settings, {}, self.ends, logprobs=True
                )
                owner[engine.add(request)] = row
            while engine.unread:  # first, for otherwise each prefill would draw only one token of the others
                engine.step(0)
            for piece in engine.step():
                if len(piece.tokens):
                    tokens[owner[piece.slot]] += piece.tokens.tolist()
                    logprobs[owner[piece.slot]] += piece.likelihood.chosen.tolist()  # ty: ignore[missing-union-attribute]
        return [self.answer(*parts) for parts in zip(prompts, tokens, logprobs, strict=True)]

    def answer(self, prompt: np.ndarray, tokens: list[int], logprobs: list[float]) -> Answer:
        text = self.renderer.tokenizer.decode(tokens[:-1] if tokens[-1] in self.ends else tokens)
        return Answer(prompt, np.array(tokens), np.array(logprobs), text)


def score(reward: Reward, question: Question, text: str) -> float:
    """Return the reward of an answer. Raises UserError for one that fails, hangs or is no number."""
    what = f"the reward of an answer to {question.text!r}"
    try:
        with patience(PATIENCE):
            value = float(reward(question, text))
    except Exception as error:
        raise UserError(f"{what}: {type(error).__name__}: {first_line(error)}: mend --reward") from None
    if not math.isfinite(value):
        raise UserError(f"{what} is {value}: it should be a number")
    return value


def advantages(rewards: Float[np.ndarray, " N"], group: int) -> Float[np.ndarray, " N"]:
    """Return how far each reward is above the mean of its group."""
    groups = rewards.reshape(-1, group)
    return (groups - groups.mean(axis=1, keepdims=True)).ravel()


def rows_of(answers: list[Answer], block_size: int) -> tuple[Int[np.ndarray, "N T"], Int[np.ndarray, "N T"]]:
    """Return tokens and targets, a row for each answer. The targets within prompts, and after texts, are -1.

    T is a multiple of 32 or block_size, so that few programs are compiled.
    """
    longest = max(len(answer.prompt) + len(answer.tokens) - 1 for answer in answers)
    T = min(-(-longest // 32) * 32, block_size)
    x, y = np.zeros((len(answers), T), np.int32), np.full((len(answers), T), -1, np.int32)
    for row, answer in enumerate(answers):
        text = np.concatenate([answer.prompt, answer.tokens])
        x[row, : len(text) - 1] = text[:-1]
        y[row, len(answer.prompt) - 1 : len(text) - 1] = answer.tokens
    return x, y


@eqx.filter_jit(donate="all")
def policy_step(
    state: TrainState,
    x: Int[Array | np.ndarray, "A B T"],
    y: Int[Array | np.ndarray, "A B T"],
    weights_of_rows: Float[Array, "A B"],
    options: Options,
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Follow the gradient of the sum of advantage x log p(answer), over a constant number of tokens."""
    loss, gradients = policy_gradient(*partition_trainable(state.model), x, y, weights_of_rows)
    return update(state, loss, gradients, options)


def policy_gradient(weights: GPT, frozen: GPT, x, y, weights_of_rows) -> tuple[Float[Array, ""], GPT]:
    """Return the sum of -weight x log p(answer), and its gradients, one microbatch after the other."""

    @eqx.filter_value_and_grad
    def of_microbatch(weights, x, y, of_rows):
        model = eqx.combine(weights, frozen)
        return (of_rows * model.config.compute.nats(model.features(x), model.head, y)).sum()

    def add(total, microbatch):
        return shard(jax.tree.map(jnp.add, total, of_microbatch(weights, *microbatch))), None

    zero = jax.tree.map(jnp.zeros_like, (jnp.zeros(()), weights))
    return lax.scan(add, zero, (x, y, weights_of_rows))[0]


@eqx.filter_jit
def log_probabilities(
    model: GPT, x: Int[Array | np.ndarray, "A B T"], y: Int[Array | np.ndarray, "A B T"]
) -> Float[Array, "A B T"]:
    """Compute log p of each target as training does; 0 where there is none."""

    def of_microbatch(microbatch):
        x, y = microbatch
        logprobs = jax.nn.log_softmax(model(x).astype(jnp.float32))
        chosen = jnp.take_along_axis(logprobs, jnp.maximum(y, 0)[..., None], -1)[..., 0]
        return jnp.where(y >= 0, chosen, 0)

    return lax.map(of_microbatch, (x, y))


def take_step(
    state: TrainState,
    i: int,
    options: Options,
    own: RewardOptions,
    sampler: Sampler,
    reward: Reward,
    start: GPT | None,
) -> tuple[TrainState, dict[str, Any]]:
    """Take step i, from questions to the optimizer. Return the next state, and what is recorded."""
    A, B = options.gradient_accumulation_steps, options.batch_size
    drawn = islice(mixed(own.tasks.split(","), "train", options.seed, i), A * B // own.group)
    asked = [question for question in drawn for _ in range(own.group)]
    keys = jax.random.split(jax.random.fold_in(jax.random.key(options.seed), i), len(asked))
    answers = sampler(merge(state.model), asked, keys, PLAIN)
    rewards = np.array(
        [score(reward, question, answer.text) for question, answer in zip(asked, answers, strict=True)]
    )
    x, y = (rows.reshape(A, B, -1) for rows in rows_of(answers, state.model.config.block_size))

    by_trainer = np.asarray(log_probabilities(state.model, x, y))
    by_engine = np.concatenate([answer.logprobs for answer in answers])
    lengths = [len(answer.tokens) for answer in answers]
    report = {
        "reward": rewards.mean(),
        "length": np.mean(lengths),
        "entropy": -by_trainer.sum() / len(by_engine),  # of a token, as far as the drawn ones tell
        "difference": np.abs(by_trainer[y >= 0] - by_engine).max(),  # of the engine and the trainer: rounding
    }
    for task in dict.fromkeys(question.task for question in asked):
        report[f"reward/{task}"] = rewards[[question.task == task for question in asked]].mean()
    if start is not None:
        apart = (by_trainer - np.asarray(log_probabilities(start, x, y))).sum(-1).ravel()
        rewards = rewards - own.kl * apart
        report["kl"] = apart.sum() / len(by_engine)  # nats a token
    of_rows = advantages(rewards, own.group).reshape(A, B) / (A * B * own.max_new_tokens)
    state, metrics = policy_step(state, x, y, jnp.asarray(of_rows, jnp.float32), options)
    return state, metrics | jax.tree.map(jnp.asarray, report)


def tested(model: GPT, own: RewardOptions, sampler: Sampler, reward: Reward) -> dict[str, float]:
    """Return the mean reward of greedy answers to held-out questions, by task."""
    means = {}
    for task in own.tasks.split(","):
        asked = list(islice(questions(task, "test", 0), own.tested))
        answers = sampler(merge(model), asked, jax.random.split(jax.random.key(0), len(asked)), GREEDY)
        means[task] = float(
            np.mean([score(reward, q, answer.text) for q, answer in zip(asked, answers, strict=True)])
        )
    return means


# The run


def main(argv: list[str]) -> int:
    """Read the options, and learn. Return the exit status."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
    values, words = take_options(argv, RewardOptions)
    options = parse_options(words, shape_of_weights, saved_options)
    with on_devices(options), locked(options.out_dir):
        own = kept_options(options, values)
        check(options, own)
        reward = load_reward(own.reward)
        run = open_run(options)
        with stop_signals() as stop_asked:
            state, manifest = starting_state(run)
            write_whole(Path(options.out_dir, "rewards.json"), json.dumps(asdict(own), indent=1) + "\n")
            return learn(run, own, state, manifest, reward, stop_asked)


def learn(
    run: Run, own: RewardOptions, state: TrainState, manifest: Manifest, reward: Reward, stop_asked
) -> int:
    """Learn until max_iters and return 0, or until asked to stop and return that status."""
    options, checkpoints = run.options, run.checkpoints
    sampler = Sampler(manifest.tokenizer or {}, own.max_new_tokens)
    start = load_weights(own.start, run.shapes.model) if own.kl and own.start else None
    i, status = int(state.step), 0
    loss = checkpoints.loss(i) if run.resuming else None  # 1 - the tested reward of step i's model
    with closing(Metrics(options, i, run.config, 1, evaluated=loss is not None)) as metrics:
        if options.overwrite:
            checkpoints.delete_all()
        while True:
            if (i % options.eval_interval == 0 or i == options.max_iters) and loss is None:
                metrics.catch_up()
                means = tested(state.model, own, sampler, reward)
                loss = 1 - sum(means.values()) / len(means)
                metrics.write(
                    {"iter": i, "val/loss": loss} | {f"test/{t}": mean for t, mean in means.items()}
                )
                print(f"iter {i}: reward {1 - loss:.3f} on held-out questions", flush=True)
                manifest, improved = manifest.after_evaluation(loss)
                if i > 0 and (improved or options.always_save_checkpoint):
                    checkpoints.save(state, manifest, loss)
            if i >= options.max_iters or (status := stop_asked()):
                break
            with metrics.making_batch():
                pass
            state, report = take_step(state, i, options, own, sampler, reward, start)
            metrics.step(i, report)
            i, loss = i + 1, None
        metrics.catch_up()
        if status:
            checkpoints.save(state, manifest, loss)
            print(f"stopped at iter {i}; resume with --out_dir={quote(options.out_dir)} --init_from=resume")
        checkpoints.wait()
    return status


def kept_options(options: Options, values: dict[str, Any]) -> RewardOptions:
    """Return the options of rewards; a resumed run keeps those that it began with. Raises UserError."""
    path = Path(options.out_dir, "rewards.json")
    if options.init_from not in RESUMING:
        return RewardOptions(**dict[str, Any](values, start=options.init_from))
    saved = read_json(path) if path.exists() else {}
    for name, value in values.items():
        if saved.get(name, value) != value:
            raise UserError(
                f"{name}={value}, but {path} has {saved[name]}: leave it out, or begin another run"
            )
    return RewardOptions(**saved | values)


def check(options: Options, own: RewardOptions) -> None:
    """Raise UserError for options that do not fit together."""
    rows = options.gradient_accumulation_steps * options.batch_size
    if rows % own.group:
        raise UserError(
            f"--group={own.group} does not divide the {rows} answers of a step: change --batch_size"
        )
    if jax.sharding.get_mesh().size > 1:
        raise UserError("rewards are learned from on one device: give --mesh=data:1")
    for task in own.tasks.split(","):
        next(questions(task, "train", 0))


def load_reward(text: str | None) -> Reward:
    """Load the function that `--reward=FILE.py:NAME` names, from the user's own code. Raises UserError."""
    if text is None:
        return Question.check
    path, _, name = text.rpartition(":")
    try:
        return runpy.run_path(path)[name]
    except Exception as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"--reward={text}: cannot be loaded ({why}): give FILE.py:FUNCTION") from None


@contextmanager
def patience(seconds: float):
    """Raise TimeoutError within after so many seconds, where the system has an alarm."""

    def ring(*_):
        raise TimeoutError(f"it took over {seconds} seconds")

    if not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    command(main)
