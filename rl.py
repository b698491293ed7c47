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

from common.errors import command  # isort: split

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import jax

from common.command_line import given, option_types, refuse_unused, take_options
from common.files import write_whole
from config.options import Options, parse_options, refuse_idle
from parallel.machines import on_devices
from rewards.answers import Sampler, load_reward
from rewards.evaluation import examine, rollouts, write_rollouts
from rewards.options import Kept, RewardOptions, check, kept_options
from rewards.policy import ask, for_answers, take_step
from runs.checkpoint import saved_options
from runs.load import changed, fingerprint, load_weights, tokenizer_of
from runs.loop import Objective, describe, run_loop
from runs.process import locked, stop_signals
from runs.start import Run, open_run, shape_of_weights, starting_state
from training.lora import merge, without_adapters

ALL_ALIKE = "since the last evaluation all answers to a question had the same reward"


@dataclass(frozen=True)
class RlOptions(RewardOptions, Options):
    """Every option of rl.py."""


class Rewarded(Objective):
    """Answer questions so that the answers are rewarded."""

    score = "reward"
    unused = frozenset({"dropout", "eval_iters", "sampling", "pipeline_schedule", "virtual_stages"})

    def __init__(self, run: Run, own: Kept, sampler: Sampler):
        self.options, self.sampler = run.options, sampler
        self.out_dir = Path(run.options.out_dir)
        start = load_weights(own.start, without_adapters(run.shapes.model))
        if own.fingerprint not in ("", found := fingerprint(start, own.start)):
            raise changed(f"{self.out_dir}: it began with", own.start)
        self.own = replace(own, fingerprint=found)
        self.begun = sampler.limit(for_answers(start, run.options))
        self.taught = []  # of each step since the last evaluation, whether an answer had an advantage

    def batch(self, i, state):
        model = for_answers(merge(state.model), self.options)
        key = jax.random.fold_in(jax.random.key(self.options.seed), i)
        return self.sampler(model, ask(i, self.options, self.own), key)

    def tokens(self, batch):
        return sum(len(answer.prompt) + len(answer.tokens) for answer in batch)

    def step(self, state, batch):
        state, report = take_step(state, batch, self.options, self.own, self.begun)
        self.taught.append(bool(report["weighted"] > 0))
        return state, report

    def evaluate(self, i, state, stop_asked):
        if self.taught and not any(self.taught):
            print(f"note: iter {i}: nothing learned: {ALL_ALIKE}", file=sys.stderr)
        self.taught.clear()
        model = for_answers(merge(state.model), self.options)
        means = examine(model, self.own, self.sampler)
        shown = rollouts(model, self.begun, self.own, self.sampler)
        write_whole(self.out_dir / "rewards.json", json.dumps(asdict(self.own), indent=1) + "\n")
        if stop_asked():
            return None
        write_rollouts(self.out_dir / "rollouts.jsonl", i, shown)
        return means


def main(argv: list[str]) -> int:
    """Read the options, and learn. Return the exit status."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
    own, words = take_options(argv, RewardOptions)
    options = parse_options(words, shape_of_weights, saved_options, vars(RewardOptions()) | own)
    both = given(argv, RlOptions)  # a config may have both kinds
    values = {name: both[name] for name in option_types(RewardOptions) if name in both}
    typed = take_options(words, Options)[0]  # configs for train.py may have what this does not use
    refuse_unused(typed, Rewarded.unused, ": learning from rewards does not use it")
    refuse_idle(typed, options)
    with on_devices(options), nullcontext() if options.eval_only else locked(options.out_dir):
        own = kept_options(options, values)
        check(options, own)
        reward = load_reward(values.get("reward"))
        run = open_run(options)
        with stop_signals() as stop_asked:
            state, manifest = starting_state(run, "reward")
            tokenizer = tokenizer_of(manifest.tokenizer, "resume", options.out_dir)
            sampler = Sampler(tokenizer, own.max_new_tokens, reward)
            if options.eval_only:  # the rewards of the model that learning would begin with
                model = for_answers(merge(state.model), options)
                print(f"iter {int(state.step)}: {describe(examine(model, own, sampler))}")
                return stop_asked()
            return run_loop(run, state, manifest, Rewarded(run, own, sampler), stop_asked)


if __name__ == "__main__":
    command(main)
