"""The referee: many tries, by people or programs, and a ledger in which a record is a record.

    python -m experiments.referee try git:my-idea --why="one line"      races a commit against the record
    python -m experiments.referee try --n_head=2 --why="one line"       or the record with other options
    python -m experiments.referee show                                  prints the ledger, and draws it
    python -m experiments.referee show --check --again=3       judges all again; trains a run of try 3 again

experiments/PROGRAM.md tells the loop of research. The race's text is cut in three: training sees the first
part alone, the second judges, and the third is looked at for records only. The losses are counted here, from
the logits of a try's model, and so is the time. The status is 0 for a record, 1 for none, 3 for a try that is
refused, and 2 after an error.
"""

import json
import os
import re
import shlex
import shutil
import tomllib
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
from filelock import FileLock
from scipy.special import logsumexp

from common.command_line import Count, Name, refuse_unused, show_help, take_options
from common.errors import UserError, command
from common.files import read_json, refusing, write_whole, written
from config.options import Options, parse_options
from data.dataset import DATA, Batches, Dataset, dataset_dir, prepare_if_missing
from data.tokenizer import from_json
from data.writer import write_dataset
from experiments import ledger
from experiments.compare import changed, read_variants
from experiments.ledger import Race, Receipt, Run
from experiments.record import Experiment, Result, Variant, data_mark, machine
from experiments.runner import Task, at_equal, last_line, train_all
from experiments.snapshot import ROOT, full_hash, git, split_commit
from runs.process import locked

STATUS = {"record": 0, "none": 1, "refused": 3}
# A try may change these of the files that train.py imports, but not those that read data, save or measure.
MAY_CHANGE = ("model.py", "fast.py", "variants.py", "training/*.py", "config/[!_o]*.py")
# Options that say what is measured, or that start from something learned.
MEASURED = ("seed", "dataset", "block_size", "vocab_size", "init_from", "max_iters", "eval_iters", "sampling")
SLOWER = 1.25  # how many times the record's time a run of a try may take
LOGITS = 2**26  # numbers, at most, for each text that judges
B = 8  # sequences that a model is asked about at once


class Refused(Exception):
    """A try breaks a rule of the race; the text says which."""


@dataclass(frozen=True)
class RefereeOptions:
    """Race ideas against the record: `try` one, or `show` the ledger."""

    why: str = ""  # of a try: what the idea is and why it should help, in one line
    ledger: Name = "experiments/ledgers/quickstart"  # the folder of ledger.jsonl
    race: Name = "experiments/races/quickstart.toml"  # the rules of a new ledger
    out: Name = "out-referee"  # the folder of texts, code and runs
    jobs: Count = 1  # how many runs train at once
    json: bool = False  # print a try's receipt as JSON
    check: bool = False  # of show: judge every try again, from its receipt
    again: Count | None = None  # of show: also train the first run of this try again


UNUSED = {"try": ("check", "again"), "show": ("why", "json", "race")}  # by what is asked


def main(argv: list[str]) -> int:
    if {"--help", "-h"} & {*argv}:
        show_help(RefereeOptions)
    own, words = take_options(argv, RefereeOptions)
    options, (verb, *words) = RefereeOptions(**own), words or [""]
    if verb == "show" and words:
        raise UserError(f"{words[0]}: `show` does not take it; see --help")
    if verb not in ("try", "show") or (verb == "try" and not words):
        raise UserError("give `try` and what to try, as in: try git:my-idea --why=...; or `show`")
    refuse_unused(own, UNUSED[verb], f" is not used with `{verb}`")
    folder = Path(options.ledger)
    if verb == "show" and not folder.exists():
        raise UserError(f"--ledger={folder}: there is no such folder: give that of a race")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):  # waits for another referee
        referee = Referee(options, read_race(folder / "race.toml", Path(options.race), "race" in own))
        if verb == "show":
            show(referee, options)
            return 0
        receipt = referee.attempt(words, options.why)
    print(json.dumps(asdict(receipt)) if options.json else f"try {receipt.number}: {receipt.sentence}")
    return STATUS[receipt.verdict]


def read_race(kept: Path, new: Path, given: bool = False) -> Race:
    """Read the rules that a ledger keeps; a new one gets a copy of the race's. Refuses others if `given`."""
    if given and kept.exists() and kept.read_bytes() != new.read_bytes():
        raise UserError(f"--race={new}: {kept} has other rules: give another --ledger")
    path = kept if kept.exists() else new
    with refusing(f"{path}: cannot be read", "see experiments/races/quickstart.toml", ValueError, TypeError):
        text = path.read_text(encoding="utf-8")
        race = Race(**tomllib.loads(text))
        shlex.split(race.base)
    write_whole(kept, text)
    return race


def show(referee: "Referee", options: RefereeOptions) -> None:
    """Print the ledger, and draw it. Raises UserError for a receipt that does not hold."""
    receipts, page = referee.receipts, referee.path.with_suffix(".md")
    again = options.again or 0
    if not receipts or again >= len(receipts) or again and not receipts[again].ours:
        raise UserError(f"{referee.path}: there is no such try, or it has no runs")
    ledger.draw(page.with_suffix(".svg"), receipts)
    shown = ledger.table(receipts)
    write_whole(page, f"# {page.parent.name}\n\n{shown}\n\n![tries]({page.stem}.svg)\n")
    print(shown)
    with suppress(UserError):  # a clone has the ledger, but not the branch; a shallow one lacks the commit
        referee.move_branch()
    for receipt in receipts[1:] if options.check else ():
        if wrong := ledger.audit(referee.race, receipt):
            raise UserError(f"{referee.path}: try {receipt.number} is told as {receipt.sentence!r}: {wrong}")
    if again:
        print(referee.again(receipts[again]))


@dataclass(frozen=True)
class WatchedTask(Task):
    """A run that cannot open what it is not to see."""

    results: Path
    hidden: tuple[str, ...]

    @property
    def kept(self) -> Path:  # not in its folder, where its own code writes
        return self.results / f"{self.folder.name}.json"

    def start(self, words: list[str], jobs: int = 1) -> Popen:
        child = [str(ROOT / "experiments" / "child.py"), str(self.variant.code.folder), *self.hidden]
        return super().start([*child, "--", *words], jobs)

    def seconds(self) -> float:
        """Return the time of training: options.json is written before it, metrics.jsonl last at its end."""
        first, last = ((self.folder / name).stat().st_mtime for name in ("options.json", "metrics.jsonl"))
        return last - first


class Referee:
    """A ledger and its race."""

    def __init__(self, options: RefereeOptions, race: Race):
        self.race, self.jobs, self.out = race, options.jobs, Path(options.out).resolve()
        self.path = Path(options.ledger, "ledger.jsonl").resolve()
        self.receipts = ledger.read(self.path)

    def attempt(self, words: list[str], why: str) -> Receipt:
        """Race a try against the record, and add its receipt to the ledger. Raises UserError."""
        why = " ".join(why.encode(errors="replace").decode().split())
        if not why:
            raise UserError("--why is missing: say what the idea is, for those who read the ledger")
        about: dict[str, Any] = machine()
        if not self.receipts:
            base = [full_commit(word) for word in shlex.split(self.race.base)]
            self.add(Receipt(number=0, words=base, why="the base of the race", verdict="record", **about))
        self.move_branch()
        *_, record = (receipt for receipt in self.receipts if receipt.verdict == "record")
        asked, words = words, changed(record.words, [full_commit(word) for word in words])
        self.texts = cut_text(self.race, self.out)
        variants = read_variants({"record": record.words, "try": words}, self.out)
        if variants["try"].mark == variants["record"].mark:
            raise UserError("the record has this program and these options: nothing would change")
        n, raced = len(self.receipts), record.number
        about |= dict(number=n, raced=raced, words=words, why=why, jobs=self.jobs)
        receipt = Receipt(verdict="none", **about)
        try:
            check_rules(variants, asked)
            receipt = self.raced(receipt, record, variants)
        except Refused as broken:
            receipt = replace(receipt, verdict="refused", sentence=f"refused: {broken}")
        self.add(receipt)
        self.move_branch()
        return receipt

    def move_branch(self) -> None:
        """Have the branch `record` name the latest record's commit, also after a kill."""
        commits = [split_commit(x.words)[0] for x in self.receipts if x.verdict == "record"]
        if git("branch", "--list", "record") and full_hash("refs/heads/record") not in commits:
            holding = git("branch", "--format=%(refname)", "--contains", "refs/heads/record").split()
            if holding == ["refs/heads/record"]:  # otherwise it may be another ledger's
                raise UserError("the branch `record` has work of your own: git branch --move record my-idea")
        git("branch", "--force", "record", commits[-1])

    def add(self, receipt: Receipt) -> None:
        self.receipts.append(receipt)
        ledger.write(self.path, self.receipts)

    def raced(self, receipt: Receipt, record: Receipt, variants: dict[str, Variant]) -> Receipt:
        """Train pairs of runs until the verdict is clear. Raises Refused."""
        times = self.out / "times" / f"{variants['record'].mark}.{variants['try'].mark}.json"
        if record.options:  # it won with its own number of steps
            variants = variants | {"record": replace(variants["record"], options=record.options)}
        sets = at_equal(Experiment(times, sets=variants), self.race.equal).sets
        # Nobody has seen losses with these seeds when the record was made.
        earlier = self.receipts[: record.number + 1]
        first = 1 + max((run.seed for x in earlier for run in x.ours), default=0)
        for n in self.race.looks():
            seeds = range(first, first + n)
            theirs, ours = (self.runs(x, seeds) for x in sets.values())
            if self.race.equal == "time" and slower(ours, theirs):  # has the machine become slower?
                theirs = self.runs(sets["record"], seeds, anew=True)
            receipt = replace(receipt, options=sets["try"].options, ours=ours, theirs=theirs)
            check_runs(receipt, self.race)
            if told := ledger.judged(self.race, receipt):
                return told
        raise AssertionError("the last look gives a verdict")

    def runs(self, variant: Variant, seeds: range, anew: bool = False) -> list[Run]:
        """Train and judge these seeds, unless their results are there. Raises Refused or UserError."""

        def keep(task: Any, result: Result) -> None:
            val, hidden = judge(task, self.texts) if result.diverged is None else (None, None)
            run = Run(seed=task.seed, seconds=task.seconds(), val=val, hidden=hidden)
            write_whole(task.kept, json.dumps(asdict(run)))

        results = self.out / f"results-{self.jobs}"  # as many at once take as long
        name, hidden = variant.code.name, (*self.texts.hidden, str(self.path.parent), str(self.out / "runs"))
        tasks = [WatchedTask(name, variant, seed, self.out, results, hidden) for seed in seeds]
        due: list[Task] = [task for task in tasks if anew or not task.kept.exists()]
        for task in due:  # a run that goes on would have its last part timed alone
            with locked(str(task.folder)):  # refuses one that still trains, after a kill of its referee
                shutil.rmtree(task.folder, ignore_errors=True)
        if train_all(due, self.jobs, keep):
            for opened in re.findall("(?m)^error: it opens .*", "\n".join(last_line(x.folder) for x in due)):
                raise Refused(f"{opened.removeprefix('error: ')}, which training is not to see")
            raise UserError("a run failed: mend it; after a stop, the same command goes on")
        return [read_json(task.kept, Run) for task in tasks]

    def again(self, receipt: Receipt) -> str:
        """Train the first run of a try again. Raises UserError if its loss is not the same to the bit."""
        self.jobs = receipt.jobs or self.jobs
        self.texts, before = cut_text(self.race, self.out), receipt.ours[0]
        variant = Variant(read_variants({"try": receipt.words}, self.out)["try"].code, receipt.options)
        (after,) = self.runs(variant, range(before.seed, before.seed + 1), anew=True)
        if after.val != before.val:
            raise UserError(f"try {receipt.number}, seed {before.seed}: {after.val}, but it was {before.val}")
        return f"try {receipt.number}, seed {before.seed}: trained again, and equal to the bit"


@dataclass(frozen=True)
class Texts:
    """A text in three parts."""

    seen: Dataset  # what training may see
    val: np.ndarray
    third: np.ndarray
    hidden: tuple[str, ...]  # folders and files that training may not see


def cut_text(race: Race, out: Path) -> Texts:
    """Write once a data set that has nothing of what judges, and have runs find it by the same name."""
    _, words = split_commit(shlex.split(race.base))
    dataset = parse_options(words).dataset
    if Path(dataset).name != dataset:
        raise UserError(f"dataset={dataset}: a race needs the name of a data set, below data/")
    prepare_if_missing(dataset)
    folder, source = out / "texts" / str(data_mark(dataset)), dataset_dir(dataset).resolve()
    if not (judging := folder / f"{dataset}.npz").exists():
        whole = Dataset(dataset)
        tokens, val = (np.asarray(whole.tokens(split).ids) for split in ("train", "val"))
        seen, third = np.split(tokens, [len(tokens) * 9 // 10])
        # train.py evaluates on the end of what it has seen.
        tokenizer = from_json(whole.meta.tokenizer)
        write_dataset(folder / "seen" / dataset, seen, seen[-len(val) :], tokenizer, dataset)
        with written(judging) as file:
            np.savez(file, val=val, third=third)
    os.environ["NANOJAXGPT_DATA"] = str(folder / "seen")
    with np.load(judging) as parts:
        hidden = str(source), str(DATA / dataset), str(judging)
        return Texts(Dataset(dataset), parts["val"], parts["third"], hidden)


def windows(ids: np.ndarray, T: int, V: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets (N, B, T), one window after the other."""
    n = min((len(ids) - 1) // T, max(B, LOGITS // (T * V))) // B * B * T
    if n == 0:
        raise UserError(f"the race's text is too short: each part that judges needs {B * T} tokens")
    x, y = (ids[i : i + n].astype(np.int32).reshape(-1, B, T) for i in (0, 1))
    return x, y


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean in nats per token, of what the model computes, and by nothing else of its code."""
    logits = logits.astype(np.float64)
    chosen = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return float((logsumexp(logits, axis=-1) - chosen).mean())


def judge(task: WatchedTask, texts: Texts) -> tuple[float, float]:
    """Return a run's losses on the text that judges and on the third part. Raises Refused for a trick."""
    T, V = task.variant.option("block_size"), texts.seen.meta.vocab_size
    (x, y), (x3, y3) = windows(texts.val, T, V), windows(texts.third, T, V)
    # From somewhere in each row on, other tokens.
    before = np.arange(T) < np.random.default_rng(0).integers(1, T, B)[:, None]
    later = np.where(before, x[:1], (x[:1] + 1) % V)
    steps = [0, 1, task.variant.option("max_iters") - 1]
    asked = task.folder / "asked.npz"
    np.savez(asked, x=np.concatenate([x, x3, later]), y=y[0], steps=steps)
    try:
        task.finish(["model", str(task.folder), str(asked)])
        with refusing(f"{asked}: has no answers", "give the command again", Exception):
            said = dict(np.load(asked))
    finally:
        asked.unlink()
    logits = said["logits"]  # (N, B, T, V)
    if not np.isfinite(logits).all():
        raise Refused("its logits are not all finite")
    if np.abs(logits[-1] - logits[0])[before].max() > 1e-3 * np.abs(logits[0]).max():
        raise Refused("logits depend on later tokens")
    if said["loss"] < cross_entropy(logits[0], y[0]) - 1e-3:
        raise Refused("the model's loss is below the cross entropy of its logits")
    if said["alike"]:
        raise Refused("its weights begin alike with every seed")
    options = replace(Options(), **task.variant.options, seed=task.seed)
    rows = options.gradient_accumulation_steps * options.batch_size
    batches = Batches(texts.seen.tokens("train"), rows, T, options.seed, options.sampling)
    expected = np.stack([batches(i) for i in steps])  # (3, 2, A B, T)
    if not np.array_equal(expected.ravel(), said["batches"].ravel()):
        raise Refused("its batches are not those of the run's seed")
    return cross_entropy(logits[: len(x)], y), cross_entropy(logits[len(x) : -1], y3)


def check_rules(variants: dict[str, Variant], asked: list[str]) -> None:
    """Raise Refused for options or files that a try may not change."""
    ours, theirs = variants["try"], variants["record"]
    options = [word.partition("=")[0] for word in asked]
    for name in MEASURED:
        if ours.option(name) != theirs.option(name) or f"--{name}" in options:
            raise Refused(f"{name} says what is measured, and stays as it is")
    for name, _ in ours.code.files.items() ^ theirs.code.files.items():
        if name in theirs.code.files and not any(fnmatch(name, pattern) for pattern in MAY_CHANGE):
            raise Refused(f"{name} may not be changed, only {', '.join(MAY_CHANGE)} and files of your own")


def check_runs(receipt: Receipt, race: Race) -> None:
    """Raise Refused for seeds that change nothing, or for runs that take too long."""
    losses = [run.val for run in receipt.ours if run.val is not None]
    if len(set(losses)) < len(losses):
        raise Refused("two seeds end with the same loss: something is fixed, or kept from another run")
    if race.equal == "time" and (times := slower(receipt.ours, receipt.theirs)):
        raise Refused(f"a run takes {times[0]:.0f} s, the record's {times[1]:.0f} s: its clock is wrong")


def slower(ours: list[Run], theirs: list[Run]) -> tuple[float, float] | None:
    """Return the seconds of a run of each, if even the fastest of ours takes much longer than theirs."""
    least, most = min(run.seconds for run in ours), max(run.seconds for run in theirs)
    return (least, most) if least > SLOWER * most else None


def full_commit(word: str) -> str:
    """Return a word that names a commit with the commit's full hash. Raises UserError."""
    if word == "git:":
        raise UserError("git: alone is the working tree: commit it, so that the ledger can name it")
    return f"git:{full_hash(word[4:])}" if word.startswith("git:") else word


if __name__ == "__main__":
    command(main)
