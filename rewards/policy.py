"""The policy gradient: weigh each answer by its advantage, and make the better ones likelier."""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from config.options import Options
from data.tasks import Question, mixed, named_tasks
from generation.decode import limit_vocabulary
from model import GPT
from rewards.answers import Answer
from rewards.options import RewardOptions
from training.compute import choose_how, faster, for_inference
from training.lora import merge, partition_trainable
from training.state import TrainState
from training.step import update


def ask(i: int, options: Options, own: RewardOptions) -> list[Question]:
    """Return the questions of step i, each `group` times."""
    n = options.gradient_accumulation_steps * options.batch_size // own.group
    # Each step goes on with the tasks where the one before ended.
    drawn = islice(mixed(named_tasks(own.tasks), "train", options.seed, i, first=i * n), n)
    return [question for question in drawn for _ in range(own.group)]


def for_answers(model: GPT, options: Options) -> GPT:
    """Return a model as its run's options say that it is computed, to draw and to compare answers."""
    return for_inference(model, options.dtype, options.attention, options.deterministic)


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
    model: GPT, x: Int[Array | np.ndarray, "B T"], y: Int[Array | np.ndarray, "B T"]
) -> Float[Array, "B T"]:
    """Compute log p of each target; 0 where there is none."""
    logprobs = jax.nn.log_softmax(model(jnp.asarray(x)).astype(jnp.float32))
    chosen = jnp.take_along_axis(logprobs, jnp.maximum(y, 0)[..., None], -1)[..., 0]
    return jnp.where(y >= 0, chosen, 0)


compiled = eqx.filter_jit(log_probabilities)


def compute_log_probabilities(
    model: GPT, x: Int[np.ndarray, "N T"], y: Int[np.ndarray, "N T"], rows: int
) -> Float[np.ndarray, "N T"]:
    """Compute log p of each target, of so many rows at once, since their logits take memory."""
    return np.concatenate([compiled(model, x[i : i + rows], y[i : i + rows]) for i in range(0, len(x), rows)])


def policy_gradient(
    weights: GPT, frozen: GPT, compute: Callable[[GPT], GPT], x, y, weights_of_rows
) -> tuple[Float[Array, ""], GPT, Float[Array, "A B T"]]:
    """Return the sum of -weight x log p(answer), its gradients, and log p of each target.

    Microbatches whose weights are all 0 have no gradient: they come last, and are left out.
    """

    @partial(eqx.filter_value_and_grad, has_aux=True)
    def of_microbatch(weights, x, y, of_rows):
        logprobs = log_probabilities(compute(eqx.combine(weights, frozen)), x, y)
        return -(of_rows * logprobs.sum(-1)).sum(), logprobs

    def add(i, totals):
        total, logprobs = totals
        (loss, found), gradients = of_microbatch(weights, x[i], y[i], weights_of_rows[i])
        return jax.tree.map(jnp.add, total, (loss, gradients)), logprobs.at[i].set(found)

    zero = jax.tree.map(jnp.zeros_like, (jnp.zeros(()), weights))
    n = (weights_of_rows != 0).any(axis=1).sum()
    (loss, gradients), logprobs = lax.fori_loop(0, n, add, (zero, jnp.full(y.shape, jnp.nan)))
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
    """Follow the gradient of the sum of weight x log p(answer). Return log p before the step, too.

    Answers are drawn from the first V tokens.
    """
    how = choose_how(options, state.model.config)

    def compute(model):
        return limit_vocabulary(faster(model, how), V)

    parts = partition_trainable(state.model)
    loss, gradients, logprobs = policy_gradient(*parts, compute, x, y, weights_of_rows)
    return *update(state, loss, gradients, options), logprobs


def take_step(
    state: TrainState, answers: list[Answer], options: Options, own: RewardOptions, start: GPT
) -> tuple[TrainState, dict[str, Any]]:
    """Learn from answers that the state's own weights drew. Return the next state, and what is recorded."""
    rewards, V = np.array([answer.reward for answer in answers]), len(start.head)
    tokens = np.concatenate([answer.logprobs for answer in answers])
    report = {
        "reward": rewards.mean(),
        "length": len(tokens) / len(answers),
        "entropy": -tokens.mean(),  # of a token, as far as the drawn ones tell
    }
    for task in dict.fromkeys(answer.question.task for answer in answers):
        report[f"reward/{task}"] = rewards[[answer.question.task == task for answer in answers]].mean()
    x, y = rows_of(answers, state.model.config.block_size)
    by_engine = np.zeros(y.shape, np.float32)
    by_engine[y >= 0] = tokens
    if own.kl:
        # Both by one program: else rounding would be a reward, of which Adam makes full steps.
        now = limit_vocabulary(for_answers(merge(state.model), options), V)
        now, before = (compute_log_probabilities(model, x, y, options.batch_size) for model in (now, start))
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
