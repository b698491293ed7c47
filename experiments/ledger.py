"""A race's rules, and its ledger: what each try came to, and whether that is a record.

A try is raced against the record in pairs of runs with equal seeds: 2, then 4, 8 and so on. After each
round `decide` looks. Try number k may be a false record with a probability of at most error / (k (k + 1)),
which its looks share. Over all tries, however many, that adds up to `error`: alpha is spent over them, as
over the looks of a trial (Lan and DeMets, Biometrika 70, 1983). Bonferroni's bound holds for tries that
depend on each other, as those do that race against the same runs.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic.dataclasses
from pydantic import Field
from scipy import stats

from common.command_line import Count, Fraction, NonNegative, NonNegativeInt, Seed, matching, value_reader
from common.files import refusing, write_whole
from experiments.record import STRICT
from experiments.report import save_svg
from experiments.runner import Equal
from experiments.statistics import critical

# How often a look gives up a try that gains just the smallest that counts. By simulation, with a spread of
# twice that gain, a placebo costs 5 pairs then, and 9 with 0.1; a try with three times that gain is found as
# often, in 65%.
GIVE_UP = 0.3


@pydantic.dataclasses.dataclass(**STRICT)
class Race:
    """The rules, from a TOML file."""

    base: Annotated[str, matching("git:.*", "a commit first, as in git:main")]  # and train.py's words
    equal: Equal = "time"  # what a try has as much of as the record
    gain: NonNegative = 0.0  # the smallest that counts, nats per token
    seeds: Annotated[int, Field(ge=2)] = 16  # pairs of a try, at most
    error: Fraction = 0.01  # the chance that any record is false

    def looks(self) -> list[int]:
        """Return after how many pairs a try is looked at."""
        doubled = [2**i for i in range(1, self.seeds.bit_length())]
        return [*(n for n in doubled if n < self.seeds), self.seeds]


@pydantic.dataclasses.dataclass(**STRICT)
class Run:
    """A run's losses, nats per token; None: it diverged."""

    seed: Seed
    val: NonNegative | None
    hidden: NonNegative | None
    seconds: NonNegative  # from the first step to the last evaluation, by the clock of the file system


@pydantic.dataclasses.dataclass(**STRICT)
class Receipt:
    """A line of ledger.jsonl: a try, or as number 0 the base."""

    number: NonNegativeInt
    why: str
    words: list[str]  # its code's commit, config and options
    verdict: Literal["record", "none", "refused"]
    sentence: str = "the base of the race"
    options: dict[str, Any] = Field(default_factory=dict)  # that are not train.py's defaults
    raced: NonNegativeInt = 0  # the number of the record
    jobs: Count | None = None  # runs at once, which decides a run's threads, and so its bits
    ours: list[Run] = Field(default_factory=list)
    theirs: list[Run] = Field(default_factory=list)  # the record's
    versions: str = ""
    cpu: str = ""
    date: str = ""


def read(path: Path) -> list[Receipt]:
    """Read a ledger. Raises UserError for a damaged one; `audit` finds other changes."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    with refusing(f"{path}: cannot be read", "restore it", ValueError):
        found = [value_reader(Receipt).validate_json(line) for line in lines]
        if [receipt.number for receipt in found] != [*range(len(found))]:
            raise ValueError("its lines are not numbered from 0 on")
        if any([run.seed for run in x.ours] != [run.seed for run in x.theirs] for x in found):
            raise ValueError("a try and the record that it raced against have other seeds")
        if found and found[0].verdict != "record":
            raise ValueError("its first line is not that of the base")
        return found


def write(path: Path, ledger: list[Receipt]) -> None:
    write_whole(path, "".join(json.dumps(asdict(receipt)) + "\n" for receipt in ledger))


def differences(receipt: Receipt, text: Literal["val", "hidden"] = "val") -> np.ndarray:
    """Return a try's losses less the record's, seed by seed; NaN where one of both diverged."""
    losses = [[getattr(run, text) for run in runs] for runs in (receipt.ours, receipt.theirs)]
    ours, theirs = np.array(losses, float)
    return ours - theirs


def decide(race: Race, number: int, differences: np.ndarray) -> tuple[str, str] | None:
    """Return the verdict on try `number`, and a sentence; None: more pairs have to run.

    The differences, of which those below 0 are gains, are taken to be normal: Student's bounds.
    """
    n, looks = len(differences), race.looks()
    if np.isnan(differences).any():
        return "none", "no record: a run diverged"
    mean, error = differences.mean(), stats.sem(differences)
    if not error:
        return "none", f"no record: the losses of {n} seeds change by {mean:.4f}, all alike"
    alpha = race.error / (number * (number + 1)) / len(looks)
    least = -mean - stats.t.isf(alpha, n - 1) * error
    most = -mean + stats.t.isf(GIVE_UP, n - 1) * error
    gain = f"its gain is {-mean:.4f} nats per token over {n} seeds"
    if least > race.gain:
        return "record", f"a record: {gain}, and at least {least:.4f} (alpha {alpha:.1g})"
    if most < race.gain:
        return "none", f"no record: {gain}, and {race.gain:g} or more is out of reach"
    perhaps = f"no record: {gain}, but perhaps only {least:.4f} (alpha {alpha:.1g}); no seeds are left"
    return ("none", perhaps) if n >= race.seeds else None


def judged(race: Race, receipt: Receipt) -> Receipt | None:
    """Return a try with its verdict; None: more pairs have to run.

    A record says whether its gain is on the hidden text, too, with a 95% interval for one look.
    """
    if (found := decide(race, receipt.number, differences(receipt))) is None:
        return None
    verdict, sentence = found
    if verdict == "record":
        gains = -differences(receipt, "hidden")
        mean, half = gains.mean(), critical(len(gains)) * stats.sem(gains)
        there = "its gain is there, too" if mean > half else "its gain is not seen there"
        sentence += f"; on the hidden text {mean:+.4f} ± {half:.4f}: {there}"
        return replace(receipt, verdict="record", sentence=sentence)
    ours, theirs = ([replace(x, hidden=None) for x in runs] for runs in (receipt.ours, receipt.theirs))
    return replace(receipt, verdict="none", sentence=sentence, ours=ours, theirs=theirs)


def audit(race: Race, receipt: Receipt) -> str:
    """Judge a try again from the losses in its receipt. Say what does not hold; "": all does."""
    looks = [(receipt.ours[:n], receipt.theirs[:n]) for n in race.looks() if n <= len(receipt.ours)]
    again = (judged(race, replace(receipt, ours=ours, theirs=theirs)) for ours, theirs in looks)
    told = next(filter(None, again), None)
    if receipt.verdict == "refused" or told == receipt:
        return ""
    if told is None or len(told.ours) < len(receipt.ours):
        return "its number of pairs is not that at which the losses are clear"
    return f"its losses say {told.sentence!r}"


def table(ledger: list[Receipt]) -> str:
    rows = ["| try | what | why | raced | seeds | answer |", "|---" * 6 + "|"]
    for x in ledger:
        cells = (x.number, " ".join(x.words), x.why, x.raced, len(x.ours), x.sentence)
        escaped = (str(cell).replace("|", "\\|") for cell in cells)
        rows.append(f"| {' | '.join(escaped)} |")
    return "\n".join(rows)


def draw(path: Path, ledger: list[Receipt]) -> None:
    """Draw each try's gains over the record that it raced against, and their mean."""

    def fill(axes: Any) -> None:
        for x in (receipt for receipt in ledger if receipt.ours):
            color = "#2a8a57" if x.verdict == "record" else "#6b7280"
            gains = -differences(x)
            axes.plot([x.number] * len(gains), gains, "o", ms=3, alpha=0.4, color=color)
            axes.plot(x.number, gains.mean(), "D", ms=6, color=color)
        axes.axhline(0, color="black", lw=0.8)
        axes.set(xlabel="try", ylabel="gain over the record of its time (nats per token)")
        axes.set_title("green: records", fontsize="medium")

    save_svg(path, fill, height=4)
