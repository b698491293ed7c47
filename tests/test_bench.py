"""The benchmark: its PyTorch twin does what the JAX step does, and its figures are there and right."""

import os
import subprocess
import sys
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import bench_decode
import bench_memory
import bench_torch
import jax
import numpy as np
import optax
import pytest
import torch

import bench
from config.command_line import UserError
from config.options import Options
from data.tokenizer import CharTokenizer
from data.writer import write_dataset
from model import GPTConfig
from runs.hardware import peak_flops
from training import loss
from training.state import create_state, model_config
from training.step import compile_step

ROOT = Path(__file__).resolve().parents[1]
TINY = dict(n_layer=2, n_head=4, n_embd=32, block_size=16, batch_size=3, gradient_accumulation_steps=2)
FLAGS = [f"--{name}={value}" for name, value in (TINY | {"vocab_size": 33, "device": "cpu"}).items()]
SHAPES = {
    "gpt2": dict(position="learned", norm="layernorm", mlp="gelu", bias=True),
    "llama": dict(
        position="rope", norm="rmsnorm", mlp="swiglu", n_kv_head=2, qk_norm=True, tie_embeddings=False
    ),
}


def as_in_torch(tree, name: str) -> np.ndarray:
    """The array of a JAX model (or of moments shaped like one) that a parameter of the twin stands for."""
    room, *rest = name.removesuffix(".weight" if name[:2] in ("wt", "wp", "lm") else "").split(".")
    if room != "blocks":
        return np.asarray(attrgetter(".".join([room, *rest]))(tree))
    layer, *path = rest
    array = np.asarray(attrgetter(".".join(path))(tree.blocks)[int(layer)])
    if "c_attn" in path:  # (..., K, G + 2, C): the twin has all queries first, then all keys, then all values
        q, k, v = np.split(array, (array.shape[-2] - 2, array.shape[-2] - 1), axis=-2)
        array = np.concatenate([x.reshape(*array.shape[:-3], -1) for x in (q, k, v)], axis=-1)
    elif "c_fc" in path and "weight" in path:
        array = array.reshape(len(array), -1)
    return array.T  # a vector is its own transpose


def agree(ours: np.ndarray, twins: torch.Tensor, name: str) -> None:
    """To float32 rounding: sums of some hundred terms, whose errors are relative to the largest."""
    twins = twins.detach().numpy()
    np.testing.assert_allclose(ours, twins, rtol=1e-4, atol=1e-5 * abs(twins).max(), err_msg=name)


@pytest.mark.parametrize("shape", SHAPES)
def test_twin_does_what_the_jax_step_does(shape):
    options = Options(
        **TINY,
        **SHAPES[shape],
        dtype="float32",
        decay_lr=False,
        learning_rate=0.1,  # large, so that the update and the decay show in the weights
        weight_decay=0.5,
        beta1=0.8,
        beta2=0.9,
        grad_clip=0.1,  # below the norm, so that it clips
    )
    config = model_config(options, vocab_size=33)
    state = create_state(config, options)
    step = compile_step(state, options)
    twin = bench_torch.TorchStep(config, options)
    with torch.no_grad():
        for name, p in twin.model.named_parameters():
            p.copy_(torch.from_numpy(as_in_torch(state.model, name).copy()))
    shape = (2, options.gradient_accumulation_steps, options.batch_size, options.block_size)
    x, y = np.random.default_rng(0).integers(33, size=shape, dtype=np.int32)

    state, metrics = step(state, x, y)
    loss = twin(torch.from_numpy(x).long(), torch.from_numpy(y).long())

    assert float(metrics["grad_norm"]) > options.grad_clip
    assert float(metrics["loss"]) == pytest.approx(float(loss), rel=1e-5)
    parameters = dict(twin.model.named_parameters())
    assert sum(p.numel() for p in parameters.values()) == sum(x.size for x in jax.tree.leaves(state.model))
    mean, square = (optax.tree_utils.tree_get(state.opt_state, moment) for moment in ("mu", "nu"))
    for name, p in parameters.items():
        moments = twin.optimizer.state[p]
        agree(as_in_torch(mean, name), moments["exp_avg"], name)
        agree(as_in_torch(square, name), moments["exp_avg_sq"], name)
        # Adam's first step divides a gradient by its size: where that is mere rounding, so is the update.
        sure = abs(moments["exp_avg"]) > 1e-3 * abs(moments["exp_avg"]).max()
        ours, twins = as_in_torch(state.model, name)[sure], p.detach().numpy()[sure]
        np.testing.assert_allclose(ours, twins, rtol=1e-4, atol=1e-4 * options.learning_rate, err_msg=name)


def run(*flags: str, **environment: str) -> str:
    command = [sys.executable, "bench.py", *FLAGS, *flags]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(output: str, label: str) -> list[float]:
    """The numbers on the line that begins with `label`."""
    line = next(line for line in output.splitlines() if line.startswith(label + "  "))
    return [float(word.rstrip("%x").replace(",", "")) for word in line.removeprefix(label).split()]


@pytest.fixture
def dataset(tmp_path):
    tokens = np.arange(1000) % 33
    write_dataset(tmp_path / "set", tokens, tokens, CharTokenizer("".join(map(chr, range(64, 97)))), "a test")
    return str(tmp_path / "set")


def test_bench_prints_its_figures(dataset):
    output = run("--steps=2", f"--dataset={dataset}")
    median, least, _, tokens_per_second = figures(output, "JAX float32")
    assert 0 < least <= median
    assert tokens_per_second == pytest.approx(2 * 3 * 16 / median * 1e3, rel=0.01)
    for label in ("model FLOP/s", "compile time", "peak memory", "data loading", "FLOPs that XLA counts"):
        assert f"\n{label} " in output
    assert "none for float32" in output
    assert "ms per step" in output


def test_bench_times_trains_loop(dataset):
    output = run("--steps=2", "--loop", f"--dataset={dataset}")
    assert figures(output, "in train.py's loop")[0] > 0
    assert len(figures(output, "the loop adds")) == 1


def test_overhead_is_the_median_of_neighbouring_turns():
    assert bench.overhead([1.0, 2.0, 4.0], [1.5, 2.5, 4.0]) == 0.25


@pytest.mark.slow
def test_bench_against_torch_goes_on_without_a_compiler():
    output = run("--steps=2", "--vs=torch", CXX="/no/such/compiler")
    assert output.count("is unavailable: ") == 2 and "No working C++ compiler" in output
    rows = ["JAX float32", "JAX bfloat16", "PyTorch eager float32", "PyTorch eager bfloat16"]
    medians = {row: figures(output, row)[0] for row in rows}
    ratios = output[output.index("ratio vs best float32 PyTorch (PyTorch eager float32)") :]
    for row in rows[:2]:
        (ratio,) = figures(ratios, row)
        assert ratio == pytest.approx(medians["PyTorch eager float32"] / medians[row], abs=0.02, rel=0.05)


@pytest.mark.slow
def test_bench_tells_what_saves_memory(dataset):
    output = run("--memory", f"--dataset={dataset}", "--batch_size=4", "--block_size=64")
    needed = {name: figures(output, name)[0] for name in ("as given", "remat=dots", "remat=block")}
    assert needed["remat=block"] < needed["remat=dots"] < needed["as given"]
    assert figures(output, "8 microbatches of 1")[0] < needed["as given"]
    assert figures(output, "as given")[1] == 100
    assert "weights, optimizer state and batch: " in output


def test_microbatches_are_planned_where_the_batch_divides():
    config = GPTConfig(block_size=16, vocab_size=33, n_layer=2, n_head=4, n_embd=32)
    tokens = set()
    for batch_size, n_rows in ((8, 10), (6, 6)):
        options = Options(**TINY | {"batch_size": batch_size})
        rows = bench_memory.variants(config, options)
        assert len(rows) == n_rows
        tokens |= {bench.tokens_per_step(replace(options, **changes)) / batch_size for _, changes, _ in rows}
    assert tokens == {2 * 16}


def test_the_loss_is_planned_in_the_chunks_named():
    config = GPTConfig(block_size=64, vocab_size=2000, n_layer=1, n_head=2, n_embd=8)
    shape = dict(n_layer=1, n_head=2, n_embd=8, block_size=64, batch_size=8, gradient_accumulation_steps=1)
    options = Options(**shape)
    one, many = (bench_memory.planned(config, options, n).temp_size_in_bytes for n in (1, 16))
    logits = 4 * 8 * 64 * 2000  # bytes, all at once
    assert one - many > 15 / 16 * logits
    assert loss.MAX_LOGITS == 2**26  # as training has it


def test_bench_times_decoding():
    output = run("--decode")
    assert figures(output, "with the key/value cache")[0] > 0
    assert figures(output, "whole context every token")[0] > 0


def test_decoding_gives_the_same_text_with_and_without_a_cache():
    # Within block_size, that is: past it, the two choose their windows by different rules.
    options = Options(**TINY | {"block_size": bench_decode.DECODED + 1})
    model = create_state(model_config(options, vocab_size=33), options).model
    assert bench_decode.with_cache(model) == bench_decode.without_cache(model)


@pytest.mark.parametrize(
    "kind, teraflops",
    {
        "NVIDIA A100-SXM4-80GB": 312,
        "NVIDIA H100 80GB HBM3": 989,
        "NVIDIA H100 PCIe": 756,
        "NVIDIA H200": 989,
        "NVIDIA L4": 121,
        "NVIDIA A10G": 70,
        "NVIDIA A10": 125,
        "NVIDIA GeForce RTX 4090": 165,
        "TPU v4": 275,
        "TPU v5 lite": 197,
        "TPU v5": 459,
        "TPU v5p": 459,
        "TPU v6 lite": 918,
    }.items(),
)
def test_known_peaks(kind, teraflops):
    assert peak_flops(kind) == teraflops * 1e12


@pytest.mark.parametrize(
    "kind",
    [
        "cpu",
        "NVIDIA L40S",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GB200",
        "TPU v4 lite",
        "TPU7x",
    ],
)
def test_unknown_devices_have_no_peak(kind):
    assert peak_flops(kind) is None


def test_mfu_is_the_share_of_the_peak():
    assert bench.mfu(156e12, "bfloat16", "NVIDIA A100-SXM4-40GB") == "50.0% of 312 TFLOP/s"
    assert "none for float32" in bench.mfu(1e12, "float32", "NVIDIA A100-SXM4-40GB")
    assert "Abacus" in bench.mfu(1e12, "bfloat16", "Abacus")


@pytest.mark.parametrize("flag", ["--steps=0", "--steps=many", "--steps", "--vocab_size=1.5", "--vs=jax"])
def test_a_bad_option_is_named(flag):
    with pytest.raises(UserError, match=flag.partition("=")[0]):
        bench.main([flag])


def test_no_twin_has_a_document_mask():
    with pytest.raises(UserError, match="--vs=torch.*document_mask"):
        bench.main(["--vs=torch", "--document_mask=True"])


def test_without_torch_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="pip install torch"):
        bench.main(["--vs=torch"])
