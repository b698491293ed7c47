"""Evaluate a model by rewards: mean rewards of held-out questions, and answers to look at."""

import json
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from pydantic_core import from_json

from common.files import write_whole
from data.tasks import Split, named_tasks, questions
from generation.sampling import GREEDY, Settings
from model import GPT
from rewards.answers import Sampler
from rewards.options import RewardOptions
from rewards.policy import advantages, compute_log_probabilities, rows_of

SHOWN = 2  # questions of each task whose answers the page shows, as they are at each evaluation


def held_out(
    model: GPT, tasks: list[str], split: Split, n: int, sampler: Sampler, settings: Settings
) -> dict[str, Float[np.ndarray, " N"]]:
    """Return the rewards of answers to questions of each task, which no model has learned.

    Of n questions, each subject is asked about once: answers to one twice would not be independent.
    """
    rewards = {}
    for task in tasks:
        asked = [*{question.subject: question for question in islice(questions(task, split, 0), n)}.values()]
        answers = sampler(model, asked, jax.random.key(0), settings)
        rewards[task] = np.array([answer.reward for answer in answers])
    return rewards


def examine(model: GPT, own: RewardOptions, sampler: Sampler) -> dict[str, float]:
    """Return the mean rewards of greedy answers to held-out questions, of all tasks and of each."""
    rewards = held_out(model, named_tasks(own.tasks), "val", own.tested, sampler, GREEDY)
    means = {f"val/{task}": float(of_task.mean()) for task, of_task in rewards.items()}
    return {"val/reward": sum(means.values()) / len(means)} | means


def rollouts(model: GPT, start: GPT, own: RewardOptions, sampler: Sampler) -> list[dict[str, Any]]:
    """Draw groups of answers to held-out questions, the same at each evaluation: for serve.py's page."""
    shown = [q for task in named_tasks(own.tasks) for q in islice(questions(task, "val", 0), SHOWN)]
    answers = sampler(model, [question for question in shown for _ in range(own.group)], jax.random.key(0))
    above = advantages(np.array([answer.reward for answer in answers]), own.group)
    x, y = rows_of(answers, model.config.block_size)
    before = compute_log_probabilities(start, x, y, own.group)
    told = [
        {
            "tokens": answer.tokens.tolist(),
            "text": answer.text,
            "reward": answer.reward,
            "advantage": above[row],
            "logprobs": answer.logprobs.tolist(),
            "before": before[row][y[row] >= 0].tolist(),
        }
        for row, answer in enumerate(answers)
    ]
    return [
        {
            "task": question.task,
            "question": question.text,
            "prompt": answers[first].prompt.tolist(),
            "answers": told[first : first + own.group],
        }
        for first, question in zip(range(0, len(answers), own.group), shown, strict=True)
    ]


def write_rollouts(path: Path, i: int, groups: list[dict[str, Any]]) -> None:
    """Put the groups of iteration `i` after those of earlier evaluations. Damaged lines are dropped."""
    earlier = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    kept = "".join(line.decode() for line in earlier if is_before(line, i))
    write_whole(path, kept + "".join(json.dumps({"iter": i} | group) + "\n" for group in groups))


def is_before(line: bytes, i: int) -> bool:
    """Tell whether a line of rollouts.jsonl is whole, and of an evaluation before iteration `i`."""
    with suppress(ValueError, TypeError, KeyError):
        return from_json(line)["iter"] < i and line.endswith(b"\n")
    return False
