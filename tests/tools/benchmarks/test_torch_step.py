"""PyTorch's step, which ours is measured against: it computes what the JAX step does."""

from dataclasses import replace
from operator import attrgetter

import jax
import numpy as np
import optax
import pytest
import torch

from config.options import Options
from tests.helpers import moved, random_batch
from tools.benchmarks.torch_step import TorchStep
from training.state import create_state, model_config
from training.step import compile_step

TINY = dict(n_layer=2, n_head=4, n_embd=32, block_size=16, batch_size=3, gradient_accumulation_steps=2)


def as_in_torch(tree, name: str) -> np.ndarray:
    """The array of a JAX model (or of moments shaped like one) that a parameter of the twin stands for.

    The twin's c_attn is queries, keys and values one after another; for SwiGLU its c_fc is the gate and c_fc.
    """
    room, *rest = name.removesuffix(".weight" if name[:2] in ("wt", "wp") else "").split(".")
    if room != "blocks":
        return np.asarray(attrgetter(".".join([room, *rest]))(tree))
    layer, part, *path = rest
    layers = path[:1]
    if part == "attn" and layers == ["c_attn"]:
        layers = ["c_q", "c_k", "c_v"]
    elif part == "mlp" and layers == ["c_fc"] and tree.blocks.mlp.c_gate is not None:
        layers = ["c_gate", "c_fc"]
    arrays = [attrgetter(".".join([part, ours, *path[1:]]))(tree.blocks)[int(layer)] for ours in layers]
    if path[-1] == "bias":
        return np.concatenate([np.asarray(x).ravel() for x in arrays])
    # (D, H, C) becomes (D, H C); a norm's gain stays a vector
    arrays = [np.asarray(x).reshape(len(x), -1) if x.ndim > 1 else np.asarray(x) for x in arrays]
    return np.concatenate(arrays, axis=-1).T


def agree(ours: np.ndarray, twins: torch.Tensor, name: str) -> None:
    """To float32 rounding: sums of some hundred terms, whose errors are relative to the largest."""
    twins = twins.detach().numpy()
    np.testing.assert_allclose(ours, twins, rtol=1e-4, atol=1e-5 * abs(twins).max(), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [dict(mlp="swiglu"), dict(mlp="gelu", bias=True)])
def test_twin_does_what_the_jax_step_does(shape):
    options = Options(
        **TINY,
        **shape,
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
    state = replace(state, model=moved(state.model))
    step = compile_step(state, options)
    twin = TorchStep(config, options)
    with torch.no_grad():
        for name, p in twin.model.named_parameters():
            p.copy_(torch.from_numpy(as_in_torch(state.model, name).copy()))
    x, y = random_batch(options, 33)

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
