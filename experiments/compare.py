"""Did my change help? Train a base and changes of it with several seeds, and answer with an interval.

    python -m experiments.compare config/quickstart.py --change=--qk_norm=True --seeds=5 --jobs=2
    python -m experiments.compare config/quickstart.py --change=git:my-idea --equal=time
    python -m experiments.compare config/quickstart.py --change=--qk_norm=True --power=0.01
    python -m experiments.compare experiments/ladder.toml --only=ladder_shakespeare --jobs=2

The base is train.py's config and options, and so is a change. A change's options come after the base's, its
config in place of the base's. `git:` and a commit or branch takes the code from there, else it is the working
tree's. Or a list in TOML has sets of options by name: words for all, and words for each, the base first.

The status is 0 if a change helps, 1 if no difference is seen, 3 if all hurt, 2 after an error.
"""

import json
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from config.command_line import Count, Name, Positive, UserError, command, show_help, take_options
from config.files import read_json, write_whole
from config.options import RESUMING, Options
from data.dataset import Dataset, prepare_if_missing
from data.tokenizer import decoded
from experiments.record import Experiment, Variant
from experiments.reference import find_runs
from experiments.report import UNIT, against, say_seeds, sentence, sentences, table
from experiments.runner import KEEPING, Equal, at_equal, run, time_steps
from experiments.snapshot import Process, Snapshot, digest, take

STATUS = {"helps": 0, "none": 1, "diverged": 1, "hurts": 3}


@dataclass(frozen=True)
class CompareOptions:
    program: ClassVar[str] = "-m experiments.compare"
    purpose: ClassVar[str] = "Say with several seeds whether changes of a base lower its loss."

    change: Name = ""  # options, a config, git:COMMIT, or several in quotes; give it once for each change
    seeds: Count | None = None  # of each, fixed before you look; None: 5, or the list's
    jobs: Count = 1  # runs at once
    equal: Equal = "steps"  # what the base and a change have alike
    power: Positive | None = None  # only say how many seeds would show a gain of this size
    json: bool = False  # print the answer as JSON
    only: str = ""  # of a list: only experiments and sets with this in "experiment: set"
    out: Name = "out-compare"  # the folder of the runs, and of the answers


def main(argv: list[str]) -> int:
    if {"--help", "-h"} & {*argv}:
        show_help(CompareOptions)
    changes, words = take_changes(argv)
    own, base = take_options(words, CompareOptions)
    asked = CompareOptions(**own)
    if base and base[0].endswith(".toml"):
        return run_list(Path(base[0]), asked)
    if not changes:
        raise UserError("give --change=, once for each: options, a config, or git:COMMIT; see --help")
    experiment = design(base, changes, asked)
    if asked.power:
        print("\n".join(needed(experiment, label, asked) for label in changes))
        return 0
    experiment = replace(experiment, looked=declare(experiment, asked))
    if run(experiment, ["base", *changes], asked.jobs, Path(asked.out)):
        return 2
    record = experiment.record()
    found = {label: against(experiment, record, label) for label in changes}
    if asked.json:
        told = {label: sentence(experiment, record, label) for label in changes}
        answers = [asdict(x) | {"change": label, "verdict": x.verdict, "sentence": told[label]} for label, x in found.items()]
        about = {"base": " ".join(base), "equal": asked.equal, "unit": UNIT[experiment.metric]}
        print(json.dumps(about | {"ms": {x: record.sets[x]["ms"] for x in record.sets}, "changes": answers}, indent=1))
    else:
        report = experiment.path.with_suffix(".md")
        print("\n\n".join([table(experiment, record), *sentences(experiment, record), f"It is kept in {report}"]))
    return min(STATUS[x.verdict] for x in found.values())


def take_changes(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return the changes of a command line, and its other words."""
    changes, rest, words = [], [], iter(argv)
    for word in words:
        name, equals, text = word.partition("=")
        if name == "--change":
            changes.append(text if equals else next(words, ""))
        else:
            rest.append(word)
    if "" in changes or "base" in changes or len({*changes}) < len(changes):
        raise UserError("--change: give options, a config, or git:COMMIT, another for each change")
    return changes, rest


# What is compared


def read_variants(sets: dict[str, list[str]], out: Path) -> dict[str, Variant]:
    """Take the code of each set, and ask it for the options that the words mean. Raises UserError."""
    codes: dict[str, Snapshot] = {}
    asked: dict[str, dict[str, list[str]]] = {}  # words by set, by commit
    for label, words in sets.items():
        commit = "".join(word.removeprefix("git:") for word in words if is_commit(word))
        code = codes[commit] = codes.get(commit) or take(commit, out / "code")
        own = {word: str(code.folder / word) for word in words if is_config(word) and (code.folder / word).is_file()}
        asked.setdefault(commit, {})[label] = [own.get(word, word) for word in words if not is_commit(word)]
    found = {}
    for commit, lines in asked.items():
        process = Process(codes[commit].name, codes[commit].folder, "")
        for label, options in zip(lines, process.run([*lines.values()]), strict=True):
            left_out = {*KEEPING, "seed"} | ({"init_from"} if options.get("init_from") in RESUMING else set())
            found[label] = Variant(codes[commit], {x: options[x] for x in sorted(options.keys() - left_out)})
        process.close()
    for dataset in {x.dataset for x in found.values()}:
        prepare_if_missing(dataset)
    return {label: found[label] for label in sets}


def is_config(word: str) -> bool:
    return word.endswith(".py") and not word.startswith("--")


def is_commit(word: str) -> bool:
    return word.startswith("git:")


def design(base: list[str], changes: list[str], asked: CompareOptions) -> Experiment:
    """Return the experiment, after it was said in full, and timed. Raises UserError for what cannot be compared."""
    sets = {"base": base}
    for change in changes:
        words = shlex.split(change)
        replaced = [kind for kind in (is_config, is_commit) if any(map(kind, words))]
        sets[change] = [word for word in base if not any(kind(word) for kind in replaced)] + words
    variants = read_variants(sets, Path(asked.out))
    print("\n".join(in_full(base, variants)), file=sys.stderr)
    steps = {label: x.steps for label, x in variants.items()}
    if asked.equal == "steps" and len({*steps.values()}) > 1:
        raise UserError(f"--equal=steps: max_iters are {steps}: give one for all, or --equal=tokens or --equal=time")
    variants = {
        label: replace(x, options=x.options | {"eval_interval": -(-x.steps // 4)}) for label, x in variants.items()
    }
    name = digest([(label, x.mark) for label, x in variants.items()])
    command = shlex.join(["python", "-m", "experiments.compare", *base, *(f"--change={x}" for x in changes)])
    experiment = Experiment(
        path=Path(asked.out, f"{name}.json"),
        question=f"Does a change of {' '.join(base)} help?",
        command=command,
        sets=variants,
        seeds=asked.seeds or 5,
        metric=metric_of({x.dataset for x in variants.values()}),
        sealed=True,
    )
    time_steps(timed := experiment.record(), variants)
    if asked.equal != "steps":
        experiment = at_equal(experiment, asked.equal)
        for label in variants:
            experiment.record().set(label, ms=timed.sets[label]["ms"], timed=timed.sets[label]["timed"])
    return experiment


def in_full(base: list[str], variants: dict[str, Variant]) -> Iterator[str]:
    """Say where the options and the code of each change differ from the base's."""
    ours = variants["base"]
    yield f"base: {' '.join(base)}, code of {ours.code.name}"
    for label, variant in [*variants.items()][1:]:
        if ours.mark == variant.mark:
            raise UserError(f"--change={label}: the base has the same options and code: nothing would change")
        yield f"{label}, code of {variant.code.name}:"
        for name in sorted(ours.options.keys() | variant.options.keys()):
            a, b = (x.options.get(name, getattr(Options, name, None)) for x in (ours, variant))
            if a != b:
                yield f"    {name}: {a} becomes {b}"
        if files := {name for name, _ in ours.code.files.items() ^ variant.code.files.items()}:
            yield f"    other code in {', '.join(sorted(files))}"


def metric_of(names: set[str]) -> str:
    """Return the metric: the loss where validation tokens are equal, bits per byte where their text is."""
    datasets = [Dataset(name) for name in sorted(names)]
    if len({str((x.meta.sha256 or {}).get("val", x.folder)) for x in datasets}) == 1:
        return "val"
    if len({text_of(x) for x in datasets}) > 1:
        raise UserError(f"{', '.join(sorted(names))}: other validation texts, so their losses cannot be compared")
    return "bits_per_byte"


def text_of(dataset: Dataset) -> str:
    """Return a hash of a data set's validation text. Raises UserError where its tokens are not text."""
    if dataset.meta.tokenizer is None:
        raise UserError(f"{dataset.folder}: its tokens are not text, so there are no bits per byte to compare")
    tokens, found, piece = dataset.tokens("val"), sha256(), 2**16
    pieces = (tokens.read([i], min(piece, len(tokens) - i))[0] for i in range(0, len(tokens), piece))
    for text in decoded(pieces, dataset.meta.tokenizer):
        found.update(text.encode())
    return found.hexdigest()


def declare(experiment: Experiment, asked: CompareOptions) -> bool:
    """Keep how many seeds were asked for first. Return whether that was another number, so this is a second look."""
    path, (base, *others) = Path(asked.out, "seeds.json"), (x.mark for x in experiment.sets.values())
    first = read_json(path) if path.exists() else {}
    counts = [first.setdefault(f"{base}.{mark}", experiment.seeds) for mark in others]
    write_whole(path, json.dumps(first, indent=1) + "\n")
    return any(count != experiment.seeds for count in counts)


def needed(experiment: Experiment, label: str, asked: CompareOptions) -> str:
    """Say how many seeds would show a gain, from the spread of the runs that are there."""
    ours, base = (ended(experiment, x, asked) for x in (label, "base"))
    pairs = (ours[experiment.metric] - base[experiment.metric]).dropna()
    reference = [run["val"] for run in find_runs(experiment.sets["base"].options)]
    losses = base[experiment.metric].dropna() if len(base) > 1 else pd.Series(reference)
    if len(pairs) > 1:
        spread, seen = pairs.std(), pairs
    elif len(losses) > 1:  # equal seeds vary together: a difference varies less than that of independent runs
        spread, seen = losses.std() * 2**0.5, losses
    else:
        raise UserError("--power: no two seeds of the base are there: give --seeds=2 without --power first")
    seconds = (base["seconds"].mean() + ours["seconds"].mean()) / asked.jobs
    return f"{label}: {say_seeds(asked.power, spread, len(seen) - 1, len(pairs), seconds)}"


def ended(experiment: Experiment, label: str, asked: CompareOptions) -> pd.DataFrame:
    """Return the results of a set's runs, of any comparison, by seed."""
    paths = Path(asked.out, "runs").glob(f"{experiment.sets[label].mark}.seed-*/result.json")
    columns = ["seed", "seconds", experiment.metric]
    return pd.DataFrame([read_json(path) for path in paths], columns=columns, dtype=float).set_index("seed")


# A list of sets


def run_list(path: Path, asked: CompareOptions) -> int:
    """Train what the experiments of a list lack. Their results are beside it, in results/."""
    lists, failed = tomllib.loads(path.read_text(encoding="utf-8")), 0
    for name, entry in lists.items():
        words, sets = shlex.split(entry["all"]), {}
        for label, own in entry["sets"].items():
            sets[label] = words + shlex.split(own)
            words = sets[label] if entry.get("upward") else words
        if not (labels := [label for label in sets if asked.only in f"{name}: {label}"]):
            continue
        experiment = Experiment(
            path=path.parent / "results" / f"{name}.json",
            question=entry["question"],
            command=f"python -m experiments.compare {path} --only={name}",
            sets=read_variants(sets, Path(asked.out)),
            seeds=asked.seeds or entry.get("seeds", 5),
            upward=entry.get("upward", False),
        )
        if asked.equal != "steps":
            time_steps(experiment.record(), experiment.sets)
            experiment = at_equal(experiment, asked.equal)
        failed += run(experiment, labels, asked.jobs, Path(asked.out))
        print(table(experiment, experiment.record()))
    return 2 if failed else 0


if __name__ == "__main__":
    command(main)
