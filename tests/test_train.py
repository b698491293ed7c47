"""train.py as its user meets it: runs that end, runs that are stopped and go on, and runs that cannot start.

Nearly all call `train.main` in this process. Those about signals and exit statuses run `python train.py`.
"""

import contextlib
import io
import math
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest

import evaluate
import sample
import train
from common.errors import UserError
from config.options import parse_options
from data.dataset import Dataset
from data.tokenizer import CharTokenizer, from_json
from data.writer import write_dataset
from experiments.reference import read_options
from runs import start as starting
from runs.checkpoint import Checkpoints
from runs.load import load_run
from runs.loop import NextToken
from runs.process import locked, stop_signals
from tests.helpers import (
    DEADLINE,
    ROOT,
    SPEED_FIELDS,
    assert_same_bits,
    contents,
    newest_checkpoint,
    records,
    refusal,
    saved_iterations,
    saved_state,
    slowly,
    write_tiny_data,
)
from tests.pretrained import library_tokenizer

STEP = {"iter", "loss", "lr", "grad_norm"} | SPEED_FIELDS
EVALUATION = {"iter", "train/loss", "val/loss"}

pytestmark = pytest.mark.usefixtures("steps_compiled_once")


@pytest.fixture(scope="module")
def tiny(tiny):
    """As everywhere, with dropout, which a resumed run has to go on with."""
    return partial(tiny, dropout=0.1)


@pytest.fixture(scope="module")
def first_run(tiny, tmp_path_factory):
    """A run of 20 steps that nothing interrupted: its folder, and what it printed. Not to be changed."""
    out = tmp_path_factory.mktemp("runs") / "my first run"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        train.main(tiny(out, max_iters=20, keep_checkpoints=9, eval_iters=-1))
    return out, printed.getvalue()


@pytest.fixture
def copied_run(first_run, tmp_path):
    """The first run, to go on with."""
    return shutil.copytree(first_run[0], tmp_path / "copied")


@pytest.fixture
def broken_data(tiny_data, tmp_path):
    return shutil.copytree(tiny_data, tmp_path / "broken")


def without_times(records: list[dict]) -> list[dict]:
    return [{name: r[name] for name in r.keys() - SPEED_FIELDS} for r in records]


def iterations(out: Path, kind: set[str]) -> list[int]:
    """Return the iterations of the records of that kind, STEP or EVALUATION."""
    return [r["iter"] for r in records(out) if r.keys() == kind]


# A run to its end


def test_loss_falls_from_that_of_a_guess_and_each_evaluation_is_told(first_run):
    out, printed = first_run
    evaluations = [r for r in records(out) if r.keys() == EVALUATION]
    losses = [r["val/loss"] for r in evaluations]
    assert losses[0] == pytest.approx(math.log(28), rel=0.02)
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.9 * losses[0]
    for r in evaluations:
        line = f"iter {r['iter']}: train loss {r['train/loss']:.4f}, val loss {r['val/loss']:.4f}"
        assert line in printed
    assert iterations(out, STEP) == list(range(20))
    assert iterations(out, EVALUATION) == [0, 5, 10, 15, 20] and len(records(out)) == 25


def test_leaves_its_options_curves_and_checkpoints_and_says_how_to_sample(first_run, tiny_data):
    out, printed = first_run
    names = {path.name for path in out.iterdir()}
    assert names == {"checkpoints", "loss.png", "metrics.jsonl", "options.json"}
    options = read_options(str(out / "options.json"))
    assert (options.dataset, options.n_embd, options.max_iters) == (str(tiny_data), 16, 20)
    assert saved_iterations(out) == [5, 10, 15, 20]
    *_, saved, sample = printed.splitlines()
    assert saved == f"checkpoints: {out / 'checkpoints'}, the last at iter 20"
    words = shlex.split(sample.removeprefix("sample from it: "))  # it can be pasted
    assert words == ["python", "sample.py", f"--out_dir={out}"]


def write_bins(folder: Path, ids: np.ndarray) -> Path:
    """Write nanoGPT's files of both splits."""
    folder.mkdir()
    for split in ("train", "val"):
        (folder / f"{split}.bin").write_bytes(ids.astype("<u2").tobytes())
    return folder


def test_nanogpts_bins_train_with_the_vocab_size_that_is_given_and_are_evaluated(tiny, tmp_path, capsys):
    data = write_bins(tmp_path / "bins", np.random.default_rng(0).integers(0, 28, 300))
    train.main(tiny(tmp_path / "out", dataset=data, max_iters=1, vocab_size=28))
    assert "sample.py" not in capsys.readouterr().out  # which has no text to write
    assert "meta.json has a tokenizer" in refusal(sample.main, [f"--out_dir={tmp_path / 'out'}"])
    model, manifest, _ = load_run(str(tmp_path / "out"))
    assert model.config.vocab_size == manifest.vocab_size == 28
    evaluate.main([f"--out_dir={tmp_path / 'out'}", "--device=cpu", "--mesh=data:1"])


def test_nanogpts_characters_train_and_sample(tiny, tmp_path, capsys):
    data = write_bins(tmp_path / "bins", np.arange(300) % 3)
    meta = {"vocab_size": 3, "stoi": {"a": 0, "b": 1, "c": 2}, "itos": {0: "a", 1: "b", 2: "c"}}
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))
    train.main(tiny(tmp_path / "out", dataset=data, max_iters=60, eval_interval=60))
    capsys.readouterr()
    options = ["--start=ab", "--num_samples=1", "--max_new_tokens=7", "--temperature=0", "--device=cpu"]
    sample.main([f"--out_dir={tmp_path / 'out'}", *options])
    assert capsys.readouterr().out.startswith("abcabcabc")


# Stopping and going on


@pytest.mark.parametrize(
    "sampling, dtype, optimizer", slowly(("random", "float32", "adamw"), ("epoch", "bfloat16", "muon"))
)
def test_resumed_run_is_one_never_stopped_to_the_bit(tiny, tmp_path, sampling, dtype, optimizer, request):
    """30 steps of 8 rows go through the 187 windows of an epoch once, and on."""
    if dtype == "float32":
        request.getfixturevalue("optimized")  # the program that a user runs; the other is compiled faster
    options = {"dropout": 0.2, "gradient_accumulation_steps": 2, "sampling": sampling, "dtype": dtype}
    options["optimizer"] = optimizer
    through, stopped = tmp_path / "through", tmp_path / "stopped"
    train.main(tiny(through, max_iters=30, **options))
    train.main(tiny(stopped, max_iters=15, **options))
    assert saved_iterations(stopped) == [10, 15]
    train.main(tiny(stopped, max_iters=30, **options, init_from="resume"))
    assert_same_bits(saved_state(stopped), saved_state(through))
    assert without_times(records(stopped)) == without_times(records(through))
    assert iterations(stopped, STEP) == list(range(30))


def test_an_epoch_goes_on_with_as_many_rows_a_step(tiny, tmp_path):
    """With others it would skip windows: batch i has the windows from i times the rows of a step on."""
    train.main(tiny(tmp_path, max_iters=2, sampling="epoch", batch_size=4))
    words = tiny(tmp_path, max_iters=4, sampling="epoch", init_from="resume")
    tokenizer = write_tiny_data(other_text := tmp_path / "data")
    write_dataset(other_text, ids := np.arange(1000) % 28, ids, tokenizer, "a test")
    for other in ("--batch_size=2", "--seed=2", f"--dataset={other_text}"):
        assert "32 tokens a step and its own text: give these" in refusal(train.main, [*words, other])
    train.main([*words, "--batch_size=2", "--gradient_accumulation_steps=2", "--eval_only=True"])


@pytest.mark.slow
@pytest.mark.usefixtures("jax_is_as_before")
def test_under_jaxs_own_variables_a_run_goes_on_to_the_same_bits(copied_run, first_run, tiny):
    for iteration in ("15", "20"):
        shutil.rmtree(copied_run / "checkpoints" / iteration)
    variables = dict(enable_x64=True, disable_jit=True, transfer_guard="disallow", default_prng_impl="rbg")
    variables |= dict(numpy_rank_promotion="raise", numpy_dtype_promotion="strict")
    for name, value in variables.items():
        jax.config.update(f"jax_{name}", value)  # as JAX_ENABLE_X64=1 and the like do
    train.main(tiny(copied_run, init_from="resume", max_iters=20, keep_checkpoints=9, eval_iters=-1))
    assert_same_bits(saved_state(copied_run), saved_state(first_run[0]))


def interrupt(patch: pytest.MonkeyPatch, name: str, *signals: int) -> None:
    """Have these signals come when train.py calls its function of this name."""
    function = getattr(train, name)

    def interrupted(*arguments):
        for number in signals:
            signal.raise_signal(number)
        return function(*arguments)

    patch.setattr(train, name, interrupted)


def test_ctrl_c_while_compiling_saves_and_the_run_goes_on(first_run, tiny, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        interrupt(patch, "compile_step", signal.SIGINT)
        assert train.main(tiny(tmp_path, eval_iters=-1)) == 130
    assert "stopped at iter 0; resume with" in capsys.readouterr().out
    assert saved_iterations(tmp_path) == [0]
    assert train.main(tiny(tmp_path, init_from="resume", eval_iters=-1)) == 0
    assert_same_bits(saved_state(tmp_path), saved_state(first_run[0], 10))
    assert iterations(tmp_path, STEP) == list(range(10))
    assert iterations(tmp_path, EVALUATION) == [0, 5, 10]


@pytest.mark.parametrize("at", [5, *slowly(0, 10)])
def test_sigterm_during_an_evaluation_stops_it_at_the_next_batch(first_run, tiny, tmp_path, monkeypatch, at):
    """The run saves what it would have evaluated, and, resumed, evaluates that first: as if never stopped."""
    batches, evaluate = [], NextToken.evaluate

    def interrupted(self, i, state, stop_asked):
        def count_and_interrupt():
            batches.append(i)
            if batches.count(at) == 3:
                signal.raise_signal(signal.SIGTERM)
            return stop_asked()

        return evaluate(self, i, state, count_and_interrupt)

    with monkeypatch.context() as patch:
        patch.setattr(NextToken, "evaluate", interrupted)
        assert train.main(tiny(tmp_path, eval_iters=-1)) == 143
    assert batches.count(at) == 3
    assert saved_iterations(tmp_path)[-1] == at and iterations(tmp_path, EVALUATION) == list(range(0, at, 5))
    whole, again = first_run[0], ["--init_from=resume", f"--out_dir={tmp_path}"]
    for max_iters in (at, 10):  # the first resumed run only evaluates; the second must not do so again
        assert train.main([*again, f"--max_iters={max_iters}"]) == 0
    assert_same_bits(saved_state(tmp_path), saved_state(whole, 10))
    assert iterations(tmp_path, EVALUATION) == [0, 5, 10]
    kept, theirs = Checkpoints(str(tmp_path)), Checkpoints(str(whole))
    for iteration in (5, 10):
        assert kept.manager.metrics(iteration) == theirs.manager.metrics(iteration)
        assert kept.manifest(iteration).to_beat == theirs.manifest(iteration).to_beat


@pytest.mark.slow
def test_a_terminal_that_closes_leaves_a_checkpoint(tiny, tmp_path):
    terminal, side = os.openpty()
    words = [sys.executable, "train.py", *tiny(tmp_path, max_iters=100_000)]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # or the run inherits that of tests under nohup
    process = subprocess.Popen(words, cwd=ROOT, stdin=side, stdout=side, stderr=side, start_new_session=True)
    try:
        os.close(side)
        while not newest_checkpoint(tmp_path):
            os.read(terminal, 10_000)
        os.close(terminal)
        process.send_signal(signal.SIGHUP)
        assert process.wait(DEADLINE) == 129
    finally:
        process.kill()
    assert saved_iterations(tmp_path)[-1] == iterations(tmp_path, STEP)[-1] + 1


@pytest.mark.parametrize("before, status", [(signal.SIG_DFL, 129), (signal.SIG_IGN, 0)])
def test_under_nohup_a_run_goes_on(before, status):
    signal.signal(signal.SIGHUP, before)
    with stop_signals() as stop_asked:
        for _ in range(2):  # as a terminal that closes sends it
            signal.raise_signal(signal.SIGHUP)
        assert stop_asked() == status
    assert signal.getsignal(signal.SIGHUP) == before


def test_sigterm_while_only_evaluating_ends_without_a_loss(copied_run, monkeypatch, capfd):
    interrupt(monkeypatch, "make_evaluate", signal.SIGTERM)
    assert train.main([f"--out_dir={copied_run}", "--init_from=resume", "--eval_only=True"]) == 143
    printed = capfd.readouterr()
    assert "train loss" not in printed.out and "\nstopping after this step\n" in printed.err


def test_without_a_login_to_weights_and_biases_nothing_is_touched(tiny, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    wandb.teardown()
    for name, value in (("WANDB_MODE", "online"), ("WANDB_API_KEY", "bad"), ("NETRC", str(tmp_path))):
        monkeypatch.setenv(name, value)
    assert "--wandb_log=False" in refusal(train.main, tiny(tmp_path / "out", wandb_log=True))
    assert not (tmp_path / "out").exists()
    wandb.teardown()


def test_second_ctrl_c_ends_the_run_at_once(tiny, tmp_path, monkeypatch):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    interrupt(monkeypatch, "compile_step", signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train.main(tiny(tmp_path))
    assert not (tmp_path / "checkpoints").exists()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_resume_refuses_another_text_of_its_data_set_and_takes_it_under_another_name(
    tiny, broken_data, tmp_path, monkeypatch
):
    """The quickstart's data may be prepared by another Python, and then split elsewhere."""
    monkeypatch.chdir(tmp_path)
    train.main(tiny(tmp_path / "out", dataset=broken_data.name, max_iters=1))
    monkeypatch.chdir("/")  # from where the data set is found, too
    tokens, tokenizer = np.arange(300) % 28, Dataset(str(broken_data)).meta.tokenizer
    write_dataset(broken_data, tokens, tokens, from_json(tokenizer), "another text of the same characters")
    again = [f"--out_dir={tmp_path / 'out'}", "--init_from=resume", "--max_iters=2"]
    before = contents(tmp_path / "out")
    said = refusal(train.main, again)
    assert said.startswith(f"dataset={broken_data} was prepared anew, of another text than {tmp_path}/out ")
    assert contents(tmp_path / "out") == before
    copy = shutil.copytree(broken_data, tmp_path / "copy")
    train.main([*again, f"--dataset={copy}"])
    train.main([*again, "--max_iters=3"])  # from now on this is its text
    assert saved_iterations(tmp_path / "out")[-1] == 3


def test_a_run_that_goes_on_with_another_text_has_neither_its_loss_to_beat_nor_its_uses(tiny, tmp_path):
    """The first text is one letter. Each says which token begins a document."""
    library, out = library_tokenizer().to_str(), tmp_path / "out"
    for start, text in ((4, np.zeros(300)), (7, np.arange(300) % 28)):
        description = {"type": "tokenizers", "json": library, "uses": {"document_start": start}}
        write_dataset(tmp_path / f"{start}", text, text, from_json(description), f"text {start}")
    train.main(tiny(out, dataset=tmp_path / "4", document_mask=True, always_save_checkpoint=False))
    assert load_run(str(out))[0].config.document_start == 4
    train.main([f"--out_dir={out}", "--init_from=resume", f"--dataset={tmp_path}/7", "--max_iters=20"])
    assert saved_iterations(out)[-1] == 20
    assert load_run(str(out))[0].config.document_start == 7


def test_what_is_for_people_does_not_change_how_a_run_goes_on(first_run, copied_run):
    """Neither what it learns nor when it is evaluated."""
    shutil.rmtree(copied_run / "checkpoints" / "20")
    for name in ("options.json", "metrics.jsonl"):
        (copied_run / name).unlink()
    assert train.main([f"--out_dir={copied_run}", "--init_from=resume"]) == 0
    assert_same_bits(saved_state(copied_run), saved_state(first_run[0]))
    first = [r for r in without_times(records(first_run[0])) if r["iter"] > 14]
    from_there = [r for r in first if r["iter"] > 15 or "lr" in r]  # the evaluation at 15 is made
    assert without_times(records(copied_run)) == from_there
    assert read_options(str(copied_run / "options.json")).learning_rate == 0.01


def test_resuming_a_finished_run_changes_no_checkpoint_and_no_record(copied_run):
    before = contents(copied_run / "checkpoints"), records(copied_run)
    options = vars(read_options(f"{copied_run}/options.json"))
    train.main([f"--out_dir={copied_run}", "--init_from=resume"])
    changed = vars(read_options(f"{copied_run}/options.json")).items() ^ options.items()
    assert {name for name, _ in changed} == {"out_dir", "init_from"}
    assert (contents(copied_run / "checkpoints"), records(copied_run)) == before


@pytest.mark.parametrize(
    "name, ours, theirs",
    [("n_embd", 32, 16), ("mlp", "gelu", "swiglu"), ("optimizer", "muon", "adamw"), ("vocab_size", 96, 28)],
)
def test_resume_refuses_another_model_or_optimizer(copied_run, name, ours, theirs):
    before = contents(copied_run)
    text = refusal(train.main, [f"--out_dir={copied_run}", "--init_from=resume", f"--{name}={ours}"])
    assert text.startswith(f"{name}={ours}, but the checkpoint {copied_run}") and f"{name}={theirs}" in text
    assert contents(copied_run) == before


@pytest.mark.parametrize(
    "word",
    [
        "--lora_targets=c_q",
        "--rope_theta=5e5",
        "--virtual_stages=2",
        "--virtual_stages=2 --mesh=stage:1",
        "--schedule=wsd",
    ],
)
def test_an_option_that_needs_another_is_refused_without_it(tiny, tmp_path, word):
    words = [*tiny(tmp_path / "out", decay_lr=False), *word.split()]
    assert refusal(train.main, words).startswith(f"{word.partition('=')[0]} is not used without --")
    assert not (tmp_path / "out").exists()


def spoil(checkpoint: Path) -> None:
    for path in (checkpoint / "model").rglob("d/*"):
        path.write_bytes(path.read_bytes()[:-40])


def test_a_run_goes_on_from_the_newest_checkpoint_that_is_whole(first_run, copied_run, tiny, capsys):
    checkpoints = copied_run / "checkpoints"
    (checkpoints / "20" / "manifest" / "metadata").write_text("{")  # then the options are those of 15
    spoil(checkpoints / "15")
    train.main(tiny(copied_run, init_from="resume", max_iters=20, keep_checkpoints=9, eval_iters=-1))
    said = capsys.readouterr()
    assert f"resuming at iter 10, from {checkpoints / '10'}" in said.out
    for damaged in ("20", "15"):
        assert f"note: {checkpoints / damaged}: the checkpoint is damaged" in said.err
    assert sorted(path.name.partition("-")[0] for path in (copied_run / "damaged").iterdir()) == ["15", "20"]
    assert saved_iterations(copied_run) == [5, 10, 15, 20]
    assert_same_bits(saved_state(copied_run), saved_state(first_run[0]))


def test_where_no_checkpoint_is_whole_a_run_does_not_start_anew(copied_run, tiny):
    for iteration in saved_iterations(copied_run):
        spoil(copied_run / "checkpoints" / str(iteration))
    for init_from in ("resume", "auto"):  # as a launcher may try again
        said = refusal(train.main, tiny(copied_run, init_from=init_from))
        assert said.startswith(f"{copied_run / 'checkpoints' / '5'}: the checkpoint is damaged")
    assert saved_iterations(copied_run) == [5] and len(list((copied_run / "damaged").iterdir())) == 3


def test_a_read_error_stops_the_run_and_moves_nothing(copied_run, tiny):
    """A folder in a file's place is one that the kernel reports to every user, root included."""
    for iteration in saved_iterations(copied_run):
        path = copied_run / "checkpoints" / str(iteration) / "manifest" / "metadata"
        path.unlink()
        path.mkdir()
    said = refusal(train.main, tiny(copied_run, init_from="auto", max_iters=21))
    assert "s a directory" in said
    assert saved_iterations(copied_run) == [5, 10, 15, 20] and not (copied_run / "damaged").exists()


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_run_folder_of_somebody_else_writes_only_into_itself(copied_run, tiny, tmp_path, link):
    (outside := tmp_path / "outside").write_bytes(b"kept\n")
    for name in ("metrics.jsonl", f".loss.png.{os.getpid()}.tmp"):
        (copied_run / name).unlink(missing_ok=True)
        link(outside, copied_run / name)
    train.main(tiny(copied_run, init_from="resume", max_iters=21))
    assert outside.read_bytes() == b"kept\n"


def test_a_run_folder_may_be_a_link_as_a_whole(copied_run, tiny, tmp_path):
    (tmp_path / "out").symlink_to(copied_run)
    assert train.main(tiny(tmp_path / "out", init_from="resume", max_iters=21)) == 0
    assert newest_checkpoint(copied_run) == 21 and (tmp_path / "out").is_symlink()


def test_a_run_in_use_is_left_alone_but_can_be_read(copied_run, tiny, capsys):
    with locked(str(copied_run)):
        for init_from in ("scratch", "resume", "auto"):
            said = refusal(train.main, tiny(copied_run, init_from=init_from, max_iters=30))
            assert said.startswith(f"out_dir={copied_run} is in use by another run")
        train.main([f"--out_dir={copied_run}", "--init_from=resume", "--eval_only=True", "--eval_iters=2"])
    assert "val loss" in capsys.readouterr().out
    assert not (copied_run / "lock").exists()


def test_auto_starts_and_then_resumes(tiny, tmp_path, capsys):
    assert "no checkpoint to resume from" in refusal(train.main, tiny(tmp_path, init_from="resume"))
    train.main(tiny(tmp_path, init_from="auto", max_iters=5))
    assert "resuming" not in capsys.readouterr().out
    train.main(tiny(tmp_path, init_from="auto", max_iters=10))
    assert "resuming at iter 5" in capsys.readouterr().out
    assert iterations(tmp_path, STEP) == list(range(10))


def test_a_run_that_is_there_is_lost_to_overwrite_alone_if_the_new_one_can_start(
    copied_run, tiny, broken_data, monkeypatch
):
    before = contents(copied_run)
    text = refusal(train.main, tiny(copied_run))
    assert str(copied_run) in text and "--init_from=resume" in text and "--overwrite=True" in text
    (broken_data / "val.bin").unlink()
    assert "val.bin" in refusal(train.main, tiny(copied_run, overwrite=True, dataset=broken_data))
    assert contents(copied_run) == before
    with monkeypatch.context() as patch:
        patch.setattr(NextToken, "step", Mock(side_effect=UserError("out of memory")))
        assert refusal(train.main, tiny(copied_run, overwrite=True, seed=7)) == "out of memory"
    assert contents(copied_run) == before
    train.main(tiny(copied_run, overwrite=True, max_iters=2))
    assert saved_iterations(copied_run) == [2]
    assert iterations(copied_run, STEP) == [0, 1]


# Evaluation and checkpoints


@pytest.mark.parametrize("hours, says", [(2, ""), (4, "note: 10,000 steps may take 4 hours here: config/my")])
def test_a_run_of_hours_on_a_cpu_says_so_before_it_begins(hours, says, tiny, monkeypatch, capsys):
    options = parse_options(tiny("out", max_iters=10_000))
    flops = hours * 3600 * 2 * starting.CPU / (10_000 * options.tokens_per_step)  # a token's, on two cores
    monkeypatch.setattr(starting, "count_cpus", lambda: 2)
    monkeypatch.setattr(starting, "flops_per_token", lambda *_: flops)
    starting.warn_of_hours(Mock(options=options, resuming=False))
    said = capsys.readouterr().err
    assert said.startswith(says) and bool(said) == bool(says)


def test_eval_only_from_scratch_prints_and_writes_nothing(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    train.main(tiny(out, eval_only=True, eval_iters=-1))
    assert losses_in(capsys.readouterr().out) == pytest.approx([math.log(28)] * 2, rel=0.02)
    assert not out.exists()


def test_eval_only_of_a_run_prints_its_losses_and_writes_nothing(first_run, capsys):
    out, _ = first_run
    before = contents(out)
    train.main([f"--out_dir={out}", "--init_from=resume", "--eval_only=True"])
    last = records(out)[-1]
    expected = pytest.approx([last["train/loss"], last["val/loss"]], abs=0.6e-4)  # printed to 4 digits
    assert losses_in(capsys.readouterr().out) == expected
    assert contents(out) == before


def losses_in(printed: str) -> list[float]:
    """Of the line `train loss 1.2345, val loss 1.2345`."""
    (line,) = (line for line in printed.splitlines() if line.startswith("train loss "))
    return [float(part.split()[-1]) for part in line.split(", ")]


@pytest.fixture(scope="module")
def unlike_data(tmp_path_factory):
    """Trains on "aa…abb…b" and validates on "abab": what a model learns raises its validation loss."""
    folder = tmp_path_factory.mktemp("data") / "unlike"
    write_dataset(folder, np.arange(1000) // 500, np.arange(100) % 2, CharTokenizer("ab"), "a test")
    return folder


def test_without_always_save_checkpoint_only_improvements_are_saved(tiny, tmp_path, unlike_data, capsys):
    better, worse = tmp_path / "better", tmp_path / "worse"
    train.main(tiny(better, always_save_checkpoint=False))
    assert saved_iterations(better) == [5, 10]
    capsys.readouterr()
    train.main(tiny(worse, always_save_checkpoint=False, dataset=unlike_data))
    assert saved_iterations(worse) == []
    printed = capsys.readouterr().out
    assert "no checkpoint was saved" in printed and "sample.py" not in printed


def test_the_best_loss_is_remembered_when_a_run_goes_on(copied_run, tiny):
    """Gone on with at a learning rate that undoes what was learned, it saves nothing more."""
    changes = {"always_save_checkpoint": False, "learning_rate": 10.0, "decay_lr": False}
    train.main(tiny(copied_run, init_from="resume", max_iters=30, eval_iters=-1, **changes))
    losses = {r["iter"]: r["val/loss"] for r in records(copied_run) if r.keys() == EVALUATION}
    assert losses[25] > losses[20] and losses[30] > losses[20]
    assert saved_iterations(copied_run) == [5, 10, 15, 20]


def test_the_loss_of_iteration_0_is_remembered_which_no_checkpoint_has(
    tiny, tmp_path, unlike_data, monkeypatch
):
    step = NextToken.step

    def stopping(self, state, batch):
        if state.step == 2:
            signal.raise_signal(signal.SIGTERM)
        return step(self, state, batch)

    changes = dict(always_save_checkpoint=False, dataset=unlike_data)
    with monkeypatch.context() as patch:
        patch.setattr(NextToken, "step", stopping)
        assert train.main(tiny(tmp_path, **changes)) == 143
    assert train.main(tiny(tmp_path, **changes, init_from="resume")) == 0
    assert iterations(tmp_path, EVALUATION) == [0, 5, 10] and saved_iterations(tmp_path) == [3]


def test_a_checkpoint_with_a_damaged_loss_is_set_aside_for_the_one_before(
    copied_run, first_run, tiny, capsys
):
    """As a loss of power may leave it: empty."""
    (copied_run / "checkpoints" / "20" / "metrics" / "metrics").write_text("")
    (copied_run / "checkpoints" / "10" / "metrics" / "metrics").write_text('{"val_loss": NaN}')
    train.main(tiny(copied_run, init_from="auto", max_iters=20, keep_checkpoints=9, eval_iters=-1))
    assert "resuming at iter 15" in capsys.readouterr().out
    assert len([*(copied_run / "damaged").iterdir()]) == 2
    assert_same_bits(saved_state(copied_run), saved_state(first_run[0]))


def test_an_overwritten_run_of_rewards_leaves_no_answers(copied_run, tiny):
    (copied_run / "rollouts.jsonl").write_text('{"iter": 0}\n')
    train.main(tiny(copied_run, overwrite=True, max_iters=1))
    assert not (copied_run / "rollouts.jsonl").exists()


def test_divergence_stops_the_run_and_keeps_the_last_good_checkpoint(copied_run, tiny):
    again = dict(init_from="resume", grad_clip=0, decay_lr=False, learning_rate=1e30, eval_interval=100)
    text = refusal(train.main, tiny(copied_run, max_iters=40, **again))
    assert "nan" in text and "iter 21" in text and "learning_rate" in text
    assert saved_iterations(copied_run) == [5, 10, 15, 20]
    assert all(np.isfinite(x).all() for x in saved_state(copied_run).values())
    assert iterations(copied_run, STEP) == list(range(21))
    assert records(copied_run)[-1]["lr"] == pytest.approx(1e30)
    train.main(tiny(copied_run, init_from="resume", max_iters=21))  # as the line says
    assert saved_iterations(copied_run)[-1] == 21
