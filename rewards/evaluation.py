"""Evaluate a model by rewards: mean rewards of held-out questions, and answers to look at."""

from contextlib import suppress
from itertools import islice
from pathlib import Path

import jax
import numpy as np
from pydantic_core import from_json

from common.files import write_whole
from data.tasks import named_tasks, questions
from generation.sampling import GREEDY
from model import GPT
from rewards.answers import Reward, Sampler, draw
from rewards.options import RewardOptions
from rewards.policy import advantages, compiled_log_probabilities, rows_of

SHOWN = 2  # questions of each task whose answers the page shows, as they are at each evaluation


def examine(model: GPT, own: RewardOptions, sampler: Sampler, reward: Reward) -> dict[str, float]:
    """Return the mean rewards of greedy answers to held-out questions, of all tasks and of each."""
    means = {}
    for task in named_tasks(own.tasks):
        asked = list(islice(questions(task, "val", 0), own.tested))
        drawn = draw(model, asked, jax.random.key(0), sampler, reward, GREEDY)
        means[f"val/{task}"] = float(drawn.rewards.mean())
    return {"val/reward": sum(means.values()) / len(means)} | means


def describe(means: dict[str, float]) -> str:
    return ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())


def rollouts(model: GPT, start: GPT, own: RewardOptions, sampler: Sampler, reward: Reward) -> list[dict]:
    """Draw groups of answers to held-out questions, the same at each evaluation: for serve.py's page."""
    shown = [q for task in named_tasks(own.tasks) for q in islice(questions(task, "val", 0), SHOWN)]
    asked = [question for question in shown for _ in range(own.group)]
    _, answers, rewards = draw(model, asked, jax.random.key(0), sampler, reward)
    x, y = rows_of(answers, model.config.block_size)
    before = np.asarray(compiled_log_probabilities(start, x, y))
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
