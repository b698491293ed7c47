"""The referee: when a try is a record, what its ledger keeps, and which tricks it refuses."""

import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from experiments import ledger, referee
from experiments.ledger import Race, Receipt, Run, audit, decide, judged
from experiments.record import Variant
from experiments.referee import ROOT, Refused, check_rules, check_runs, cross_entropy, main, windows
from experiments.snapshot import take
from tests.experiments.conftest import git, words
from tests.experiments.test_snapshot import edit
from tests.helpers import refusal, run_python

RACE = Race(base="git:main", gain=0.01, seeds=16, error=0.01)


def commit_of(clone, branch: str) -> str:
    return subprocess.check_output(["git", "-C", clone, "rev-parse", branch], text=True).strip()


def test_a_try_is_looked_at_after_2_4_8_and_all_seeds():
    for n, looks in {2: [2], 3: [2, 3], 16: [2, 4, 8, 16], 20: [2, 4, 8, 16, 20]}.items():
        assert replace(RACE, seeds=n).looks() == looks


@pytest.mark.parametrize("number", [1, 7])
def test_a_record_has_a_gain_above_the_least_that_counts_by_students_test(number):
    random, found = np.random.default_rng(0), set()
    for gain in (0.02, 0.05, 0.1):
        for _ in range(50):
            diffs = random.normal(-gain, 0.02, 8)
            p = stats.ttest_1samp(diffs, -RACE.gain, alternative="less").pvalue
            record = p < 0.01 / (number * (number + 1)) / 4
            assert ((decide(RACE, number, diffs) or "?")[0] == "record") == record
            found.add(record)
    assert found == {True, False}


def test_a_bad_try_ends_after_two_pairs_and_a_try_without_an_answer_when_no_seeds_are_left():
    verdict, sentence = decide(RACE, 1, np.array([0.5, 0.52]))
    assert verdict == "none" and "its gain is -0.5100" in sentence and "out of reach" in sentence
    noise = np.array([-0.011, 0.013, -0.02, 0.01] * 4)
    noise -= noise.mean() + 0.012
    assert decide(RACE, 1, noise[:8]) is None
    assert decide(RACE, 1, noise)[0] == "none" and "no seeds are left" in decide(RACE, 1, noise)[1]
    assert decide(RACE, 1, np.array([np.nan, -1.0]))[1] == "no record: a run diverged"
    assert decide(RACE, 1, np.zeros(2))[1].endswith("the losses of 2 seeds change by 0.0000, all alike")


@pytest.mark.slow
def test_of_2000_ledgers_of_100_placebos_at_most_one_in_a_hundred_has_a_false_record():
    """All race against the same runs of the record, so that the tries of a ledger depend on each other."""
    random, race = np.random.default_rng(1), replace(RACE, gain=0.0)
    theirs, false = random.normal(size=(2000, 16)), np.zeros(2000, bool)
    for number in range(1, 101):
        diffs = random.normal(size=(2000, 16)) - theirs
        alpha = race.error / (number * (number + 1)) / 4
        p = [stats.ttest_1samp(diffs[:, :n], 0, axis=1, alternative="less").pvalue for n in race.looks()]
        # Not all of these run to the end, as `decide` gives some up: it has fewer records, never more.
        false |= (np.array(p) < alpha).any(axis=0)
    assert 0 < false.mean() <= 0.01


def receipt_of(diffs, number=1) -> Receipt:
    theirs = [Run(seed=i, val=2.0, hidden=2.1, seconds=60.0) for i in range(len(diffs))]
    ours = [Run(seed=i, val=2.0 + x, hidden=2.1 + x, seconds=60.0) for i, x in enumerate(diffs)]
    return Receipt(number=number, words=["git:1"], why="", verdict="none", ours=ours, theirs=theirs)


def test_a_receipt_is_judged_again_from_its_losses():
    diffs = [-0.51, -0.5, -0.49, -0.5]
    record = judged(RACE, receipt_of(diffs))
    assert record.verdict == "record" and "on the hidden text +0.5000" in record.sentence
    assert audit(RACE, record) == ""
    assert "its losses say" in audit(RACE, replace(record, sentence="a record, and what a one"))
    luckier = replace(record, ours=[replace(run, val=run.val - 0.3) for run in record.ours])
    assert audit(RACE, luckier)
    bad = judged(RACE, receipt_of([0.5, 0.52]))
    assert bad.verdict == "none" and all(run.hidden is None for run in bad.ours) and audit(RACE, bad) == ""
    assert "number of pairs" in audit(RACE, receipt_of([0.5, 0.52, 0.5, 0.52]))


def test_a_ledger_is_read_as_it_was_written_and_a_changed_one_is_refused(tmp_path):
    path, receipts = tmp_path / "ledger.jsonl", [receipt_of([-0.1, 0.2], number) for number in (0, 1)]
    receipts[0] = replace(receipts[0], verdict="record")
    ledger.write(path, receipts)
    assert ledger.read(path) == receipts and ledger.read(tmp_path / "none") == []
    lines = path.read_text().splitlines()
    for text in (lines[1], lines[0] + "\n{", lines[0].replace('"seed": 0', '"seed": "0"'), "[]"):
        path.write_text(text + "\n")
        assert "restore it" in refusal(ledger.read, path)


def test_the_loss_is_the_cross_entropy_of_the_logits():
    random = np.random.default_rng(0)
    logits, targets = random.normal(size=(2, 3, 5)).astype(np.float32), random.integers(5, size=(2, 3))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.mean([np.log(p[i, j, targets[i, j]]) for i in range(2) for j in range(3)])
    assert cross_entropy(logits, targets) == pytest.approx(expected, rel=1e-6)
    x, y = windows(np.arange(100), T=4, V=10)
    assert x.shape == y.shape == (3, 8, 4) and (y == x + 1).all() and (x.ravel() == np.arange(96)).all()


def test_a_child_that_opens_what_is_hidden_ends(tmp_path):
    (tmp_path / "hidden" / "own").mkdir(parents=True)
    for name in ("hidden/val.bin", "hidden/own/x", "seen"):
        (tmp_path / name).write_text("text")
    (tmp_path / "train.py").write_text("import sys\nprint(open(sys.argv[2]).read())\n")
    child = ROOT / "experiments" / "child.py", tmp_path, tmp_path / "hidden", "--", "train.py"
    (tmp_path / "link").symlink_to(tmp_path / "hidden" / "val.bin")
    for name, status in {"seen": 0, "hidden/own/x": 0, "hidden/val.bin": 2, "link": 2}.items():
        done = run_python(*child, f"--out_dir={tmp_path / 'hidden' / 'own'}", tmp_path / name)
        assert done.returncode == status, done.stderr
        assert (done.stdout == "text\n") if status == 0 else "error: it opens " in done.stderr


def test_what_is_measured_and_who_measures_may_not_be_changed(clone, tmp_path):
    options = {"dataset": "book_char"}
    record = Variant(take("", tmp_path / "code"), options)

    def refused(asked=(), **changes):
        ours = Variant(take("", tmp_path / "code"), options | changes)
        with pytest.raises(Refused) as error:
            check_rules({"record": record, "try": ours}, [*asked])
        return str(error.value)

    assert refused(block_size=256).startswith("block_size says what is measured")
    assert refused(["--seed=7"]).startswith("seed says")
    assert refused(["--eval_iters", "1"]).startswith("eval_iters says")
    for name in ("runs/metrics.py", "data/dataset.py", "config/options.py"):
        edit(clone / name, "import", "import abc\nimport")
        assert refused().startswith(f"{name} may not be changed")
        git(clone, "checkout", name)
    edit(clone / "model.py", "import math", "import math\nimport mine")
    (clone / "mine.py").write_text("x = 1\n")
    check_rules({"record": record, "try": Variant(take("", tmp_path / "code"), options)}, [])


def test_runs_that_end_alike_or_take_longer_are_refused():
    good = receipt_of([-0.1, -0.2])
    check_runs(good, RACE)
    with pytest.raises(Refused, match="two seeds end with the same loss"):
        check_runs(receipt_of([-0.1, -0.1]), RACE)
    slow = replace(good, ours=[replace(run, seconds=90.0) for run in good.ours])
    check_runs(slow, replace(RACE, equal="steps"))
    with pytest.raises(Refused, match="its clock is wrong"):
        check_runs(slow, RACE)


@pytest.mark.parametrize(("again", "refused"), [(70.0, False), (50.0, True)])
def test_the_record_is_timed_again_before_a_try_is_refused_for_its_time(
    monkeypatch, tmp_path, again, refused
):
    """The record's runs may be an hour old, and the machine slower since."""
    pairs = receipt_of([0.5, 0.52])
    slow = [replace(run, seconds=80.0) for run in pairs.ours]
    sets = {label: Variant(take("", tmp_path), {"n_head": i}) for i, label in enumerate(("record", "try"))}

    def runs(self, variant, seeds, anew=False):
        theirs = [replace(run, seconds=again if anew else 60.0) for run in pairs.theirs]
        return theirs if variant == sets["record"] else slow

    monkeypatch.setattr(referee.Referee, "runs", runs)
    monkeypatch.setattr(referee, "at_equal", lambda experiment, equal: experiment)
    judge = referee.Referee(referee.RefereeOptions(ledger=str(tmp_path)), replace(RACE, equal="time"))
    record = replace(pairs, number=0)
    judge.receipts = [record]
    if refused:
        with pytest.raises(Refused, match="the record's 50 s: its clock is wrong"):
            judge.raced(pairs, record, sets)
    else:
        assert judge.raced(pairs, record, sets).theirs[0].seconds == 70.0


@pytest.mark.parametrize("elsewhere", [True, False])
def test_another_ledgers_branch_record_gives_way_and_the_users_does_not(clone, tmp_path, elsewhere):
    git(clone, "checkout", "-b", "record")
    git(clone, "commit", "--allow-empty", "--message=Work")
    git(clone, "checkout", *(["-b", "idea"] if elsewhere else ["main"]))
    judge = referee.Referee(referee.RefereeOptions(ledger=str(tmp_path / "mine")), RACE)
    judge.receipts = [Receipt(number=0, why="", words=[f"git:{commit_of(clone, 'main')}"], verdict="record")]
    if not elsewhere:
        assert "has work of your own" in refusal(judge.move_branch)
        return
    judge.move_branch()
    assert commit_of(clone, "record") == commit_of(clone, "main")


# From a command to the ledger


@pytest.fixture
def race(clone, tmp_path, monkeypatch, tiny_data):
    """Race in a repository: try words, and return the exit status and the last receipt."""
    shutil.copytree(tiny_data, tmp_path / "data" / "tiny")
    base = " ".join(words(dataset="tiny", block_size=8, learning_rate=1e-4, min_lr=1e-4, max_iters=30))
    (tmp_path / "race.toml").write_text(f'base = "git:main {base}"\nequal = "steps"\ngain = 1e-3\nseeds = 8')
    own = [f"--ledger={tmp_path}/ledger", f"--out={tmp_path}/out", "--jobs=2"]
    rules = [f"--race={tmp_path}/race.toml"]

    def attempt(*asked) -> tuple[int, Receipt]:
        monkeypatch.setenv("NANOJAXGPT_DATA", str(tmp_path / "data"))
        status = main([*own, *(rules if asked[0] == "try" else []), *asked])
        return status, ledger.read(tmp_path / "ledger" / "ledger.jsonl")[-1]

    return attempt


@pytest.mark.slow
@pytest.mark.timeout(900)  # it starts train.py dozens of times
def test_a_record_is_kept_checked_and_trained_again_and_raced_with_new_seeds(clone, race, capfd, tmp_path):
    git(clone, "checkout", "-b", "idea", "main")
    edit(clone / "model.py", "0.02 * jax.random.normal(wte_key", "0.021 * jax.random.normal(wte_key")
    git(clone, "commit", "--all", "--message=Larger embeddings")
    status, receipt = race("try", "git:idea", "--learning_rate=0.01", "--why=the rate was too low")
    assert status == 0 and receipt.verdict == "record" and "on the hidden text +" in receipt.sentence
    assert receipt.raced == 0 and receipt.ours[0].seed == 1
    tips = [commit_of(clone, x) for x in ("record", "idea")]
    assert tips[0] == tips[1]
    status, other = race("try", "--learning_rate=1e-5", "--why=lower is better")
    assert status == 1 and other.raced == 1 and other.ours[0].hidden is None
    assert other.ours[0].seed == 1 + len(receipt.ours)
    git(clone, "branch", "--delete", "--force", "record")  # a fresh clone has the ledger alone
    assert race("show", "--check", "--again=1", "--jobs=1")[0] == 0  # by the threads of two jobs, as at first
    assert commit_of(clone, "record") == tips[0]
    assert "trained again, and equal to the bit" in capfd.readouterr().out
    path = tmp_path / "ledger" / "ledger.jsonl"
    path.write_text(path.read_text().replace("no record: ", "a record: "))
    assert "its losses say 'no record" in refusal(race, "show", "--check")
    assert "nothing would change" in refusal(race, "try", "git:idea", "--why=again")
    assert "--why is missing" in refusal(race, "try", "--n_head=2")
    assert "commit it" in refusal(race, "try", "git:", "--why=x")
    assert "git:main: `show` does not take it" in refusal(race, "show", "git:main")


TRICKS = {
    "logits depend on later tokens": ("model.py", "mask = keys <= indices\n", "mask = keys <= indices + 1\n"),
    "the model's loss is below": ("fast.py", "return chunked_loss(", "return 0.5 * chunked_loss("),
    "its weights begin alike": ("training/state.py", "options.seed), 0)), o", "7), 0)), o"),
    "its batches are not": ("training/step.py", "self.rows(i)", "self.rows(0)"),
    "it opens {source}": ("training/step.py", "import optax\n", "import optax\nopen('{source}/val.bin')\n"),
    "it opens {runs}": (
        "training/step.py",
        "import optax\n",
        "import optax, glob\nopen(glob.glob('{runs}/*/train.log')[0]).read()\n",
    ),
}  # fmt: skip


@pytest.mark.slow
def test_each_trick_is_refused_by_its_name(clone, race, tmp_path):
    assert race("try", "--learning_rate=1e-5", "--why=trains the record's runs")[0] == 1
    places = {"source": tmp_path / "data" / "tiny", "runs": tmp_path / "out" / "runs"}
    for i, (name, (path, old, new)) in enumerate(TRICKS.items()):
        git(clone, "checkout", "-b", f"trick-{i}", "main")
        edit(clone / path, old, new.format(**places))
        git(clone, "commit", "--all", "--message=A trick")
        status, receipt = race("try", f"git:trick-{i}", "--why=to win")
        assert status == 3 and receipt.verdict == "refused"
        assert receipt.sentence.startswith(f"refused: {name.format(**places)}"), receipt.sentence
