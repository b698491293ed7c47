"""Did my change help? Train a base and changes of it with several seeds, and answer with an interval.

    python -m experiments.compare config/quickstart.py --change=--qk_norm=True --seeds=5 --jobs=2
    python -m experiments.compare config/quickstart.py --change=git:my-idea --equal=time
    python -m experiments.compare config/quickstart.py --change=--qk_norm=True --power=0.01
    python -m experiments.compare experiments/ladder.toml --only=ladder_shakespeare --jobs=2

The base is train.py's config and options, and so is a change. A change's options come after the base's, its
config in place of the base's. `git:` and a commit or branch takes the code from there, else it is the working
tree's. Or a list in TOML has sets of options by name: words for all, and words for each, the base first.

The status is 0 if a change helps, 1 if no difference is seen, 3 if all hurt, 2 after an error. A list's is 0
or 2.
"""

import json
import re
import shlex
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pydantic.dataclasses
from pydantic import Field

from common.command_line import Count, Name, Positive, refuse_unused, show_help, take_options, value_reader
from common.errors import UserError, command
from common.files import decode_text, refusing, write_whole
from config.options import RESUMING, Options, parse_options
from data.dataset import Dataset, prepare_if_missing
from data.spans import document_bytes
from experiments.record import STRICT, Experiment, Variant, kept, not_defaults
from experiments.reference import find_runs
from experiments.report import UNIT, against, say_seeds, sentences, table, write_report
from experiments.runner import KEEPING, Equal, at_equal, defaults_of, options_of, run, time_steps
from experiments.snapshot import digest, split_commit, take
from runs.checkpoint import latest_manifest
from runs.load import is_run
from runs.start import shape_of_weights

STATUS = {"helps": 0, "none": 1, "diverged": 1, "hurts": 3}


@dataclass(frozen=True)
class CompareOptions:
    """Say with several seeds whether changes of a base lower its loss."""

    change: Name = ""  # options, a config, git:COMMIT, or several in quotes; give it once for each change
    seeds: Count | None = None  # how many seeds each has: choose before you look; None: 5, or the list's
    jobs: Count = 1  # how many runs train at once
    equal: Equal = "steps"  # what a change and the base share
    power: Positive | None = None  # only say how many seeds would show a gain of this size
    json: bool = False  # print the answer as JSON
    only: str = ""  # of a list: only experiments and sets with this in "experiment: set"
    out: Name = "out-compare"  # the folder of the runs, and of the answers


def main(argv: list[str]) -> int:
    if {"--help", "-h"} & {*argv}:
        show_help(CompareOptions)
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--change", action="append", nargs="?", const="", default=[])
    found, words = parser.parse_known_args(argv)
    own, base = take_options(words, CompareOptions)
    asked, changes = CompareOptions(**own), found.change
    if base and base[0].endswith(".toml"):
        if changes or base[1:] or asked.power or asked.json:
            raise UserError(f"{base[0]}: a list takes only --only, --seeds, --jobs, --equal and --out")
        return run_list(Path(base[0]), asked)
    if asked.only:
        raise UserError("--only is for a list of experiments: leave it out")
    experiment = design(base, changes, asked)
    if asked.power:
        lines = [needed(experiment, label, asked.power) for label in changes]
        print(json.dumps(lines) if asked.json else "\n".join(lines))
        return 0
    experiment = replace(experiment, planned=plan(experiment, Path(asked.out)))
    if run(experiment, ["base", *changes], asked.jobs, Path(asked.out)):
        return 2
    write_report(experiment)
    record = experiment.record()
    differences = {label: against(record, label) for label in changes}
    if asked.json:
        answer = {
            "base": " ".join(base),
            "equal": asked.equal,
            "unit": UNIT[experiment.metric],
            "ms": {label: record.sets[label].ms for label in experiment.sets},
            "changes": [asdict(x) | {"change": y, "verdict": x.verdict} for y, x in differences.items()],
            "words": sentences(record),
        }
        print(value_reader(dict[str, Any]).dump_json(answer, indent=1).decode())  # null where a float is inf
    else:
        print("\n\n".join([table(record), *sentences(record)]))
    return min(STATUS[x.verdict] for x in differences.values())


COMMIT, CONFIG = "git:.*", r"(?!-|git:).*\.py"
LEFT_OUT = {*KEEPING, "seed", "overwrite"}


def changed(base: list[str], words: list[str]) -> list[str]:
    """Return the base's words, with a change's: its commit and configs are in place of the base's."""
    for kind in (COMMIT, CONFIG):
        if any(re.fullmatch(kind, word) for word in words):
            base = [word for word in base if not re.fullmatch(kind, word)]
    return base + words


def read_variants(sets: dict[str, list[str]], out: Path) -> dict[str, Variant]:
    """Take the code of each set, and ask it for the options that the words mean. Raises UserError."""
    codes, found = {}, {}
    for label, words in sets.items():
        commit, words = split_commit(words)
        code = codes[commit] = codes.get(commit) or take(commit, out / "code")
        # A config is that code's own, where it has it.
        words = [str(own) if (own := code.folder / word).is_file() else word for word in words]
        dataset = ""
        with suppress(UserError):  # a copy of a commit has no text to prepare; it may have options of its own
            dataset = parse_options(words, shape_of_weights).dataset
            prepare_if_missing(dataset)
        theirs = defaults_of(code) if commit else {}
        values = options_of(code, words, dataset) if commit else vars(parse_options(words, shape_of_weights))
        if is_run(start := str(values.get("init_from"))):  # other weights of that name are other code
            code = replace(code, files=code.files | {start: digest(latest_manifest(start).checksums)})
        left_out = LEFT_OUT | ({"init_from"} if values.get("init_from") in RESUMING else set())
        found[label] = Variant(code, not_defaults(values, left_out, theirs))
    for dataset in {x.option("dataset") for x in found.values()}:
        prepare_if_missing(dataset)
    return found


def design(base: list[str], changes: list[str], asked: CompareOptions) -> Experiment:
    """Return the experiment, said in full and timed. Raises UserError for what cannot be compared."""
    refuse_unused(take_options(base, Options)[0], LEFT_OUT, " is not used: compare gives each run its own")
    if not changes or {"", "base"} & {*changes}:
        raise UserError(
            f"{' '.join(base) or 'compare'}: give --change=, once for each: options, a config, or git:COMMIT"
        )
    with refusing(f"--change={changes[-1]}", "close its quotes", ValueError):
        sets = {change: changed(base, shlex.split(change)) for change in changes}
    variants = read_variants({"base": base} | sets, Path(asked.out))
    if same := [label for label in changes if variants[label].mark == variants["base"].mark]:
        raise UserError(f"--change={same[0]}: the base has the same options and code: nothing would change")
    if asked.equal == "steps" and len({x.option("max_iters") for x in variants.values()}) > 1:
        raise UserError("--equal=steps: not all have the same max_iters: give it, or --equal=tokens or time")
    for label, x in variants.items():  # each evaluation takes time
        variants[label] = replace(x, options=x.options | {"eval_interval": -(-x.option("max_iters") // 4)})
    slug = re.sub(r"[^\w.]+", "-", " ".join(changes)).strip("-")[:60]
    experiment = Experiment(
        path=Path(asked.out, f"{slug}.{digest([(label, x.mark) for label, x in variants.items()])}.json"),
        question="\n".join(in_full(base, variants)),
        command=f"python -m experiments.compare {shlex.join([*base, *(f'--change={x}' for x in changes)])}",
        sets=variants,
        seeds=asked.seeds or 5,
        metric=metric_of(variants),
    )
    print(experiment.question, file=sys.stderr)
    if not asked.power:
        time_steps(experiment)
    return at_equal(experiment, asked.equal)


def in_full(base: list[str], variants: dict[str, Variant]) -> Iterator[str]:
    """Say where the options and the code of each change differ from the base's."""
    ours = variants["base"]
    yield f"base: {' '.join(base)} --eval_interval={ours.option('eval_interval')}, code of {ours.code.name}"
    for label, variant in [*variants.items()][1:]:
        yield f"{label}, code of {variant.code.name}:{variant.unlike(ours)}"
        for name in sorted(ours.options.keys() | variant.options.keys()):
            a, b = (x.options.get(name, getattr(Options, name, None)) for x in (ours, variant))
            if a != b:
                yield f"    {name}: {a} becomes {b}"
        if files := {name for name, _ in ours.code.files.items() ^ variant.code.files.items()}:
            yield f"    differs in {', '.join(sorted(files))}"


def metric_of(variants: dict[str, Variant]) -> str:
    """Return the metric: the loss where validation tokens are equal, bits per byte where their text is.

    Other code may report another loss, such as one that it trains: evaluate.py finds the one that counts.
    """
    names = {x.option("dataset") for x in variants.values()}
    datasets = [Dataset(name) for name in sorted(names)]
    if len({x.meta.sha256.get("val", str(x.folder)) for x in datasets}) == 1:
        return "val" if len({str(x.code.files) for x in variants.values()}) == 1 else "loss"
    if len({text_of(x) for x in datasets}) > 1:
        raise UserError(f"{', '.join(names)}: losses on other validation texts cannot be compared")
    return "bits_per_byte"


def text_of(dataset: Dataset) -> bytes:
    """Return a data set's validation text. Raises UserError where its tokens are not text."""
    if dataset.meta.tokenizer is None:
        raise UserError(f"{dataset.folder}: its tokens are not text: there are no bits per byte to compare")
    tokens = dataset.tokens("val")
    return b"".join(document_bytes(tokens.read([0], len(tokens))[0], dataset.meta.tokenizer))


def plan(experiment: Experiment, out: Path) -> int:
    """Return how many seeds of these sets were asked for first, and keep it; 0 if not the same for all."""
    path, (base, *others) = out / "seeds.json", (x.mark for x in experiment.sets.values())
    first = kept(path, dict[str, Count])
    record = experiment.record().sets  # has the results of runs whose folders were deleted, too
    seen = {x.mark for label, x in experiment.sets.items() if record[label].runs}
    pairs = {f"{base}.{x}": x in seen or any(out.glob(f"runs/{x}.seed-*/result.json")) for x in others}
    first |= {pair: experiment.seeds for pair, ended in pairs.items() if not (ended and pair in first)}
    write_whole(path, json.dumps(first, indent=1) + "\n")
    counts = {first[pair] for pair in pairs}
    return counts.pop() if len(counts) == 1 else 0


def needed(experiment: Experiment, label: str, gain: float) -> str:
    """Say how many seeds would show a gain, from the spread of the runs that have ended. Raises UserError."""
    record, spread = experiment.record(), 1.0
    base = record.losses("base").dropna()
    seen = (record.losses(label) - base).dropna()
    done, took = len(seen), [run.seconds for x in ("base", label) for run in record.sets[x].runs]
    if done < 2:  # equal seeds vary together: their differences vary less than those of independent runs
        in_nats = experiment.metric != "bits_per_byte"
        reference = [run.val for run in find_runs(experiment.sets["base"].options) if in_nats]
        seen, spread = base if len(base) > 1 else pd.Series(reference, dtype=float), 2**0.5
    if len(seen) < 2:
        raise UserError("--power: no two seeds of the base are there: give --seeds=2 without --power first")
    if not seen.std():
        raise UserError(f"{label}: its {done} seeds differ alike from the base's: the change may do nothing")
    pair = 2 * sum(took) / max(1, len(took))
    return f"{label}: {say_seeds(gain, spread * seen.std(), len(seen) - 1, done, pair)}"


# A list of sets


@pydantic.dataclasses.dataclass(**STRICT)
class Question:
    """An experiment in a list."""

    all: str  # words of all sets
    sets: Annotated[dict[str, str], Field(min_length=1)]  # words of each; the first is the base
    question: str = ""
    seeds: Count = 5
    upward: bool = False  # each set has the words of the one above it, too, and is compared with that

    def words(self) -> dict[str, list[str]]:
        words, found = shlex.split(self.all), {}
        for label, own in self.sets.items():
            found[label] = changed(words, shlex.split(own))
            words = found[label] if self.upward else words
        return found


def run_list(path: Path, asked: CompareOptions) -> int:
    """Train what the experiments of a list lack. Their results are beside it, in results/."""
    failed = 0
    for name, (listed, sets, labels) in read_list(path, asked.only).items():
        variants = read_variants(sets, Path(asked.out))
        experiment = Experiment(
            path=path.parent / "results" / f"{name}.json",
            question=listed.question or name,
            command=f"python -m experiments.compare {path} --only={name}",
            sets=variants,
            seeds=asked.seeds or listed.seeds,
            upward=listed.upward,
            metric=metric_of(variants),
        )
        experiment = at_equal(experiment, asked.equal)
        try:
            failed += run(experiment, labels, asked.jobs, Path(asked.out))
        finally:  # whatever stopped it, the table has what is done
            write_report(experiment)
    return 2 if failed else 0


def read_list(path: Path, only: str = "") -> dict[str, tuple[Question, dict[str, list[str]], list[str]]]:
    """Return each experiment by name, the words of its sets, and those to train. Raises UserError."""
    found = {}
    with refusing(f"{path}: cannot be read as a list", "see experiments/ladder.toml", Exception):
        for name, entry in tomllib.loads(decode_text(path.read_bytes(), str(path))).items():
            sets = (listed := Question(**entry)).words()
            if labels := [label for label in sets if only in f"{name}: {label}"]:
                found[name] = listed, sets, labels
    if not found:
        raise UserError(f"{path}: it has no set with {only!r} in its 'experiment: set'")
    return found


if __name__ == "__main__":
    command(main)
