"""The least that a device must send in a step for its share of the weights, to set beside what it sends.

    least_sent(config, mesh_shape, microbatches, parameters)    {"fsdp": bytes, "data": bytes}

For `fsdp`, the weights are gathered twice for each microbatch, forward and backward, in the products' dtype,
and their gradients are summed and scattered once a step, in float32 (ZeRO-3, arXiv:1910.02054). A step whose
devices keep whole weights from the first microbatch to the last (`reduce_once` in training/recipe.py) sends
less. For `data`, the gradients that a device keeps are summed once. Over n devices each sends (n - 1) / n of
an array, and for a sum that all get twice that. `tensor` and `stage` send activations, of which nothing is
counted here.
"""

import jax.numpy as jnp

from model import GPTConfig
from tools.planning.cost import Cost

GRADIENT = 4  # bytes of an element


def least_sent(
    config: GPTConfig, mesh_shape: dict[str, int], microbatches: int, parameters: int
) -> dict[str, float]:
    """Return the bytes for each of the axes `fsdp` and `data` that splits something."""
    data, fsdp = mesh_shape["data"], mesh_shape["fsdp"]
    weights = parameters / mesh_shape["stage"] / mesh_shape["tensor"]  # that a device computes with
    gathered = 2 * microbatches * jnp.dtype(config.compute.dtype).itemsize
    sent = {
        "fsdp": (fsdp - 1) / fsdp * weights * (gathered + GRADIENT),
        "data": 2 * (data - 1) / data * weights / fsdp * GRADIENT,
    }
    return {axis: size for axis, size in sent.items() if size}


def sent_along(cost: Cost, axis: str) -> float:
    """Return the bytes that a device sends along a mesh axis alone, as compiled."""
    return sum(row.sent for row in cost.by_class() if row.name == f"network: {axis}")
