"""Metrics: what is written of a run, that nothing is lost or written twice, and how it fails."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from config.options import Options
from model import GPT, GPTConfig
from parallel.machines import peak_memory
from runs import metrics as metrics_module
from runs.metrics import Metrics, Speed, flops_per_token
from tests.damage import damaged
from tests.helpers import records, refusal

OPTIONS = replace(Options(), gradient_accumulation_steps=2, batch_size=3, block_size=5, dtype="bfloat16")
TOKENS = 2 * 3 * 5
CONFIG = GPTConfig(block_size=5)
LOSSES = np.float32([4.1, 1 / 3, np.pi, 1e-7, 2 / 7, 3.3, 0.1, 0.7])


@pytest.fixture
def options(tmp_path):
    return replace(OPTIONS, out_dir=str(tmp_path / "run"))


def start(options, at=0, evaluated=False):
    return Metrics(options, at, CONFIG, devices=1, evaluated=evaluated)


def report(i, **changes):
    values = {"loss": LOSSES[i], "grad_norm": LOSSES[i] / 3, "lr": np.float32(6e-4)} | changes
    return {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}


def iterations(out):
    return [(record["iter"], "val/loss" in record) for record in records(out)]


def step(metrics, i, **changes):
    """Tell of step i, as train.py does."""
    with metrics.making_batch():
        pass
    metrics.step(i, report(i, **changes), TOKENS)


def evaluate(metrics, i, train, val):
    """Tell of an evaluation, as train.py does."""
    means = {"train/loss": train, "val/loss": val}
    metrics.evaluation(i, means, f"train loss {train:.4f}, val loss {val:.4f}")


def run(options, first, end, evaluate_at=(), evaluated=False):
    """Tell of the steps from `first` on, before `end`, as train.py does."""
    metrics = start(options, first, evaluated)
    for i in range(first, end):
        if i in evaluate_at and not (evaluated and i == first):
            metrics.catch_up()
            evaluate(metrics, i, 2 + i / 3, 3 + i / 3)
        step(metrics, i)
    metrics.catch_up()
    return metrics


def test_a_step_is_read_when_the_next_has_started_and_the_last_is_not_lost(options):
    metrics = start(options)
    for i in range(3):
        step(metrics, i)
        assert iterations(options.out_dir) == [(j, False) for j in range(i)]
    for _ in range(2):
        metrics.catch_up()
        assert iterations(options.out_dir) == [(0, False), (1, False), (2, False)]


def test_log_interval_thins_the_steps_not_the_evaluations(options):
    run(replace(options, log_interval=3), 0, 7, evaluate_at=(0, 4))
    expected = [(0, True), (0, False), (3, False), (4, True), (6, False)]
    assert iterations(options.out_dir) == expected


def test_a_resumed_run_repeats_no_record_and_keeps_the_others(options):
    """Killed after step 5 and the evaluation at 4, and resumed from the checkpoint of 4, then of 3."""
    evaluate_at = (0, 2, 4, 6)
    run(options, 0, 6, evaluate_at)
    run(options, 4, 6, evaluate_at, evaluated=True)
    everything = [(0, True), (0, False), (1, False), (2, True), (2, False), (3, False), (4, True)]
    assert iterations(options.out_dir) == [*everything, (4, False), (5, False)]
    # A kill may come between an evaluation's record and its checkpoint: then it is made again.
    for first, evaluated, left in (
        (4, True, everything),
        (4, False, everything[:-1]),
        (3, False, everything[:-2]),
        (0, False, []),
    ):
        start(options, first, evaluated)
        assert iterations(options.out_dir) == left


@pytest.mark.parametrize("name, value", [("loss", np.nan), ("grad_norm", np.inf)])
def test_a_step_or_an_evaluation_that_diverged_ends_the_run_and_is_not_written(options, name, value):
    metrics = start(replace(options, log_interval=10))  # though it is between two records
    step(metrics, 0)
    step(metrics, 1, **{name: value})
    said = refusal(step, metrics, 2)
    assert said.startswith("iter 1: ") and str(value) in said and "learning_rate" in said
    said = refusal(evaluate, metrics, 5, 3.0, value)
    assert said.startswith(f"iter 5: train/loss is 3.0, val/loss is {value}")
    assert iterations(options.out_dir) == [(0, False)]


def curves(axes):
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_the_curves_are_drawn_of_records_in_full_precision(options, saved_figures):
    metrics = run(options, 0, 5, evaluate_at=(0, 2))
    metrics.close()
    ((figure, written),) = saved_figures
    assert curves(figure.axes[0]) == {
        "loss": [[i, float(LOSSES[i])] for i in range(5)],
        "train/loss": [[0, 2], [2, 2 + 2 / 3]],
        "val/loss": [[0, 3], [2, 3 + 2 / 3]],
    }
    folder = metrics.path.parent
    assert sorted(path.name for path in folder.iterdir()) == ["loss.png", "metrics.jsonl", "options.json"]
    assert (folder / "loss.png").read_bytes() == written


def test_of_a_run_that_learns_from_rewards_the_rewards_are_drawn(tmp_path, saved_figures):
    steps = [{"iter": i, "loss": 0.1, "reward": i / 4} for i in range(4)]
    metrics_module.draw([{"iter": 0, "val/reward": 0.5, "val/add": 0.5}, *steps], tmp_path / "loss.png")
    ((figure, _),) = saved_figures
    assert curves(figure.axes[0]) == {"reward": [[i, i / 4] for i in range(4)], "val/reward": [[0, 0.5]]}
    assert figure.axes[0].get_ylabel() == "mean reward"


def test_a_disk_that_fills_up_is_one_line(options):
    metrics = start(options)
    with open("/dev/full", "w", buffering=1) as metrics.file:
        said = refusal(evaluate, metrics, 0, 1.0, 1.0)
        assert said == f"{metrics.path}: No space left on device"
        metrics.close()  # must not hide that error behind one of its own


def test_weights_and_biases_gets_the_same_and_a_resumed_run_goes_on_there(options, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    options, ids = replace(options, wandb_log=True), []
    for at in (0, 2, 0):
        metrics = run(options, at, at + 2, evaluate_at=(0,))
        ids.append(wandb.run.id)
        metrics.close()
    assert ids[0] == ids[1] != ids[2]
    before = replace(options, wandb_log=False, out_dir=f"{options.out_dir}/without")
    Path(before.out_dir).mkdir()
    Path(before.out_dir, "wandb_id.txt").write_text(ids[2])  # of a run that is overwritten
    run(before, 0, 2).close()
    resumed = run(replace(before, wandb_log=True), 2, 4)
    assert wandb.run.id not in ids
    resumed.close()
    (log,) = (metrics.path.parent / "wandb").glob(f"offline-run-*-{ids[2]}/*.wandb")
    content = log.read_bytes()
    for name in (b"tokens_per_second", b"val/loss", b"grad_norm"):
        assert name in content


def test_a_line_of_progress_is_printed_now_and_then(options, capsys, clock):
    metrics = start(replace(options, max_iters=61))
    for i in range(5):
        with metrics.making_batch():
            clock.now += 600.0 if i == 0 else 6.0  # the first step's compilation is in no line
        metrics.step(i, report(i), TOKENS)
    metrics.catch_up()
    speed = f"{TOKENS / 6:,.0f} tokens/s, 6000.0 ms/step, 6 min left"
    shown = [f"iter {i}: loss {LOSSES[i]:.3f}, {speed}" for i in (1, 3)]
    assert capsys.readouterr().out.splitlines() == shown


def test_the_other_processes_write_nothing_and_find_a_divergence_too(options, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    metrics = run(replace(options, wandb_log=True), 0, 3, evaluate_at=(0, 2))
    assert metrics.wandb is None
    step(metrics, 3, loss=np.nan)
    assert refusal(metrics.catch_up).startswith("iter 3: ")
    assert not Path(options.out_dir).exists()


def test_a_damaged_record_is_dropped_alone_and_ends_no_run(options):
    path = run(options, 0, 3).path
    first, second, _ = path.read_bytes().splitlines()
    contents = [*(content for _, content in damaged(second.decode())), b"\0\0\0"]
    path.write_bytes(b"".join(content + b"\n" + first + b"\n" for content in contents))
    start(options, 2)
    kept = records(options.out_dir)
    assert kept.count(json.loads(first)) >= len(contents)
    assert all(type(record["iter"]) is int for record in kept)


@pytest.fixture
def clock(monkeypatch):
    """`clock.now`, in seconds: what time.perf_counter tells runs/metrics.py."""

    clock = SimpleNamespace(now=1000.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(metrics_module, "time", clock)
    return clock


def run_step(speed, clock, data, seconds):
    """A step of so many seconds, with so many before it to make its batch."""
    with speed.making_batch():
        clock.now += data
    clock.now += seconds
    speed.ended(clock.now, speed.batch_seconds)


def test_figures_are_of_the_steps_since_the_last_and_of_no_pause(clock):
    speed = Speed(OPTIONS, CONFIG, devices=4)
    run_step(speed, clock, 0.25, 9.0)
    speed.figures()
    run_step(speed, clock, 0.25, 1.0)
    speed.began = None  # as `catch_up` sets it
    clock.now += 100  # an evaluation
    run_step(speed, clock, 0.75, 2.0)
    figures = speed.figures()
    assert figures["ms"] == 1e3 * (0.25 + 1.0 + 0.75 + 2.0) / 2
    assert figures["data_ms"] == 1e3 * (0.25 + 0.75) / 2
    assert figures["tokens_per_second"] == pytest.approx(TOKENS / 2.0)


def test_steps_of_rewards_have_each_its_own_number_of_tokens(clock):
    speed = Speed(OPTIONS, CONFIG, devices=1)
    for speed.tokens in (100, 100, 1000):
        run_step(speed, clock, 0, 2.0)
    assert speed.figures()["tokens_per_second"] == pytest.approx(1200 / 6)


def test_a_batch_counts_for_its_own_step_though_the_step_before_ends_later(clock, options):
    metrics = start(options)
    for i, data in enumerate((1.0, 3.0)):
        with metrics.making_batch():
            clock.now += data
        metrics.step(i, report(i), TOKENS)
        clock.now += 10
    metrics.catch_up()
    assert [record["data_ms"] for record in records(options.out_dir)] == [1e3, 3e3]


def test_mfu_is_the_model_flops_over_the_peak_of_all_devices(clock, monkeypatch):
    h100 = SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3", platform="gpu")
    monkeypatch.setattr(jax, "devices", lambda: [h100] * 2)
    speed = Speed(OPTIONS, CONFIG, devices=2)
    run_step(speed, clock, 0, 1e-3)
    flops = flops_per_token(CONFIG, 5) * TOKENS
    assert speed.figures()["mfu"] == pytest.approx(flops / 1e-3 / (2 * 989e12))
    # None without a known peak, nor of adapters, beside which most weights have no gradient.
    for changes in (dict(dtype="float32"), dict(lora_rank=8)):
        speed = Speed(replace(OPTIONS, **changes), CONFIG, devices=2)
        run_step(speed, clock, 0, 1)
        assert "mfu" not in speed.figures()


def test_memory_is_the_devices_peak_where_it_tells_and_the_process_peak_elsewhere(clock, monkeypatch):
    before, part, filled = peak_memory(), 2**26, []
    while peak_memory() < before + part:  # at first it may take up what was freed
        filled.append(np.ones(part, np.uint8))
        assert sum(x.nbytes for x in filled) <= before + 2 * part
    risen = peak_memory()
    filled.append(np.ones(part, np.uint8))
    assert peak_memory() - risen == pytest.approx(part, rel=0.1)  # others may free or take a little meanwhile

    device = SimpleNamespace(memory_stats=lambda: {"peak_bytes_in_use": 3_500_000, "bytes_in_use": 1})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    speed = Speed(OPTIONS, CONFIG, devices=1)
    run_step(speed, clock, 0, 1)
    assert speed.figures()["memory_mb"] == 3.5


def test_flops_are_those_of_nanogpt():
    """And those of a step as it is traced: tools/planning/test_program.py."""
    config = GPTConfig(mlp="gelu")
    L, H, Q, T = 12, 12, 64, 1024
    N = sum(x.size for x in jax.tree.leaves(eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))))
    N -= T * 768  # nanoGPT leaves out wpe
    # nanoGPT counts the gains of the norms as if they were matrices: 19,200 of 124 million.
    assert flops_per_token(config, T) == 6 * (N - 25 * 768) + 12 * L * H * Q * T
    assert flops_per_token(config, T) == pytest.approx(6 * N + 12 * L * H * Q * T, rel=1e-3)


def test_a_window_costs_as_many_keys_as_it_lets_a_token_read():
    gpt2, T, N = GPTConfig(), 1024, 256
    saved = flops_per_token(gpt2, T) - flops_per_token(replace(gpt2, window=N), T)
    not_read = sum(t - min(t, N) for t in range(1, T + 1)) / T  # keys of a token, on average
    # Two products of T x T count with both halves; the diagonal makes less than a key's difference.
    assert saved == pytest.approx(12 * 12 * 768 * 2 * not_read, rel=1 / not_read)
    assert flops_per_token(replace(gpt2, window=4096), T) == flops_per_token(gpt2, T)
