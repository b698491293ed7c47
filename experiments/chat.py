"""The whole life of a chat model, on two CPU cores; nothing that it needs is downloaded.

    python -m experiments.chat --quick=True     a model that answers, in ten minutes
    python serve.py --out_dir=out-chat/1/quick
    python -m experiments.chat                  a longer lesson, then rewards, and what they add
    python serve.py --out_dir=out-chat/1/rewarded --follow=True        meanwhile: waits for it, and follows
    python -m experiments.chat --seeds=5        five lives, and a table of them

Each stage is a command, which is printed. The model learns to write from this project's book (`base`), and to
answer from conversations: small talk, and tasks of people who err: three answers in a hundred are those of
another question (`chat`, or for a shorter time `quick`). Then it learns from rewards, for which a program
checks its answers (`rewarded`). Beside that, `more` learns more from the conversations, with at least as many
FLOPs. A token is a byte: a model that is to reverse a word has to see its letters. A stage that has ended is
not done again, and one that was stopped while it trained goes on from its last checkpoint.
"""

import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from common.command_line import Count, Name, Seed, given, matching, value_reader
from common.errors import UserError, command
from common.files import read_json, refusing, write_whole
from data.book_char.prepare import TEXT
from experiments.record import kept, machine
from experiments.snapshot import ROOT
from experiments.statistics import difference
from runs.checkpoint import checkpoint_folders

TASKS = "reverse,change,order"  # that rewards are for
MODELS = ("chat", "more", "rewarded")
TRAIN = (
    "train.py config/quickstart.py --qk_norm=True --document_mask=True --block_size=256 --batch_size=8"
    " --seed={seed}"
)
ASK = "evaluate.py --ask=experiments/first_questions.txt --max_new_tokens=96 --json={to}/said.json"
BEGUN = {  # stages, by what each makes
    "conversations.jsonl": "data/tasks.py --tasks={tasks},{tasks},order,add --n=75000 --talk=0.3 --wrong=0.03"
    " --seed={seed} --to={to}/conversations.jsonl",
    "tokenizer": "data/train_tokenizer.py --source={to}/book.txt --vocab_size=259 --to={to}/tokenizer",
    "book": "data/prepare.py --source={to}/book.txt --tokenizer={to}/tokenizer --val_fraction=0.05"
    " --to={to}/book",
    "conversations": "data/prepare.py --chat=True --source={to}/conversations.jsonl"
    " --tokenizer={to}/tokenizer --block_size=256 --val_fraction=0.02 --to={to}/conversations",
    "base": TRAIN + " --dataset={to}/book --out_dir={to}/base --max_iters=300 --lr_decay_iters=300"
    " --eval_interval=100",
}
ANSWER = TRAIN + " --init_from={to}/base --dataset={to}/conversations"
QUICK = BEGUN | {
    "quick": ANSWER + " --out_dir={to}/quick --max_iters=1800 --lr_decay_iters=1800 --eval_interval=600",
    "said.json": ASK + " --questions=5 --out_dir={to}/quick",
}
STAGES = BEGUN | {
    "chat": ANSWER + " --out_dir={to}/chat --max_iters=5000 --lr_decay_iters=5000 --eval_interval=500",
    # A step of rewards draws 128 answers, compares two models' probabilities of these, and has gradients of
    # those with an advantage: about half (`weighted` in metrics.jsonl), in rows of at most 96 tokens. That
    # takes the FLOPs of 7.5 steps of fine-tuning. Without --kl, words of the talk were lost.
    "rewarded": "rl.py config/quickstart.py --document_mask=True --block_size=256 --seed={seed}"
    " --init_from={to}/chat --dataset={to}/conversations --out_dir={to}/rewarded --tasks={tasks} --group=8"
    " --max_new_tokens=24 --gradient_accumulation_steps=8 --optimizer=adamw --learning_rate=5e-4 --min_lr=0"
    " --warmup_iters=10 --lr_decay_iters=300 --weight_decay=0 --max_iters=300 --eval_interval=50"
    " --always_save_checkpoint=True --lora_rank=8 --kl=0.1",
    # At the rate that `chat` began with, it would lose what that has learned.
    "more": TRAIN + " --init_from={to}/chat --dataset={to}/conversations --out_dir={to}/more"
    " --max_iters=2300 --lr_decay_iters=2300 --learning_rate=1e-3 --min_lr=1e-4 --eval_interval=500"
    " --always_save_checkpoint=True",
    "answers.json": "evaluate.py --out_dir={to}/rewarded --beside={to}/chat,{to}/more --tasks={tasks}"
    " --questions=200 --max_new_tokens=24 --json={to}/answers.json",
    "said.json": ASK + " --out_dir={to}/rewarded --beside={to}/chat",
}

Listed = Annotated[Name, matching("[^,]+", "a name without commas, which separate the models to evaluate")]


@dataclass(frozen=True)
class ChatOptions:
    """Lead a chat model through its whole life."""

    quick: bool = False  # a model that answers, from a short lesson and without rewards
    seed: Seed = 1  # of the first life
    seeds: Count = 1  # how many lives
    out_dir: Listed = "out-chat"  # a folder in it for each seed; results.json and results.md have the answers


@dataclass(frozen=True)
class Stage:
    """A stage that has begun."""

    command: str
    seconds: float = 0.0  # of all its attempts
    ended: bool = False


def main(argv: list[str]) -> None:
    options = ChatOptions(**given(argv, ChatOptions))
    out_dir = Path(options.out_dir).resolve()  # one name, since another one is another command
    out_dir = out_dir.relative_to(ROOT) if out_dir.is_relative_to(ROOT) else out_dir
    os.chdir(ROOT)  # where the stages run
    seeds = range(options.seed, options.seed + options.seeds)
    if options.quick:
        for seed in seeds:
            folder = out_dir / str(seed)
            live(folder, seed, QUICK)
            print(f"Talk to it: {serving(folder / 'quick')}")
        return
    path, stages = out_dir / "results.json", [*STAGES.values()]
    results: dict[str, Any] = kept(path, dict[str, Any]) or {"stages": stages, "lives": {}}
    with refusing(f"{path}: cannot be read", "restore or delete it", Exception):
        lives, others = results["lives"], results["stages"] != stages
        table(lives)
    if others:
        raise UserError(f"{path}: its lives had other stages: give another --out_dir")
    for seed in seeds:
        if str(seed) not in lives:
            folder = out_dir / str(seed)
            minutes = live(folder, seed, STAGES)
            lives[str(seed)] = outcome(folder) | {"minutes": minutes} | machine()
            write_whole(path, json.dumps(results, indent=1) + "\n")
            print(f"It took {minutes:.0f} minutes. Talk to it: {serving(folder / 'rewarded')}\n")
    found = table(lives)
    write_whole(path.with_suffix(".md"), f"Held-out questions, seeds {', '.join(lives)}:\n\n{found}")
    print(found)


def live(folder: Path, seed: int, stages: dict[str, str]) -> float:
    """Run the stages that have not ended; return the minutes of all. Raises UserError for one that fails."""
    write_whole(folder / "book.txt", as_documents(gzip.decompress(TEXT.read_bytes()).decode()))
    path = folder / "stages.json"
    begun = kept(path, dict[str, Stage])  # by what each makes
    for i, (name, stage) in enumerate(stages.items()):
        words = [word.format(to=folder, seed=seed, tasks=TASKS) for word in stage.split()]
        typed = shlex.join(["python", *words])
        earlier = begun.get(name)
        if earlier is None or earlier.command != typed:
            shutil.rmtree(folder / name / "checkpoints", ignore_errors=True)  # of an earlier life
            earlier = Stage(typed)
            for later in [*stages][i + 1 :]:  # what was made from it
                begun.pop(later, None)
        elif earlier.ended:
            continue
        elif checkpoint_folders(str(folder / name)):  # it was stopped while it trained
            words = [words[0], f"--out_dir={folder / name}", "--init_from=resume"]
        start, status = time.monotonic(), None
        try:
            keep(path, begun | {name: earlier})
            status = run(words)
        finally:
            begun[name] = Stage(typed, earlier.seconds + time.monotonic() - start, ended=status == 0)
            keep(path, begun)
        if status:
            raise UserError(f"{words[0]} failed: mend it, and the same command goes on there")
    return sum(begun[name].seconds for name in stages) / 60


def keep(path: Path, begun: dict[str, Stage]) -> None:
    write_whole(path, value_reader(dict[str, Stage]).dump_json(begun, indent=1).decode() + "\n")


def outcome(folder: Path) -> dict[str, Any]:
    """Return each model's shares of right answers, and what each said to first questions."""
    found = {}
    for path in (folder / "answers.json", folder / "said.json"):
        with refusing(f"{path}: cannot be read", "delete stages.json beside it to write it again", Exception):
            content = read_json(path)
            found[path.stem] = {Path(model).name: of for model, of in content["models"].items()}
            table({"": found})
            asked = content["questions"]
    return found | {"asked": asked}


def serving(folder: Path) -> str:
    return shlex.join(["python", "serve.py", f"--out_dir={folder}"])


def run(words: list[str]) -> int:
    """Run a command, and return its status. Ctrl-C and SIGTERM reach it too, and it saves first."""
    print(f"\n$ {shlex.join(['python', *words])}", flush=True)
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT)
    before = signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def as_documents(book: str) -> str:
    """Separate the book's files, which begin with a line such as `==> model.py <==`."""
    return book.replace("\n==> ", "\n<|endoftext|>\n==> ")


def table(lives: dict[str, Any]) -> str:
    """Return the mean shares of right answers, and what rewards add, with 95% intervals, in Markdown."""
    lines = [
        f"| right answers | {' | '.join(MODELS)} | rewarded - chat | rewarded - more |",
        "|---" * 6 + "|",
    ]
    for how, task in [*(("sampled", task) for task in (*TASKS.split(","), "all")), ("greedy", "all")]:
        each = pd.DataFrame(columns=[*MODELS], dtype=float)
        for seed, life in lives.items():
            each.loc[seed] = [share(life["answers"][model], task, how) for model in MODELS]
        cells = [f"{task}, {how}", *(f"{mean:.1f}%" for mean in each.mean())]
        for model in ("chat", "more"):
            added = difference(each["rewarded"], each[model])
            cells.append(f"{added.mean:+.1f}" + (f" ± {added.half:.1f}" if len(each) > 1 else ""))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def share(shares: dict[str, Any], task: str, how: str) -> float:
    """Return the percentage of right answers of one task, or the mean of all."""
    each = [shares[name][how][0] for name in ([task] if task != "all" else shares)]
    return 100 * sum(each) / len(each)


if __name__ == "__main__":
    command(main)
