"""The loss: cross entropy between what the head predicts and the next tokens.

The (B, T, V) logits are the largest array of a small model's step: for GPT-2's 50,257 tokens and a batch of
12 x 1024 they are 2.5 GB in float32. So at most `max_logits` of them exist at once, and larger batches are
computed in chunks of T. A chunk's gradient is formed while its logits are at hand: computing them again in
the backward pass would cost GPT-2 124M a tenth of the step's arithmetic.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from layers.device import device, memory
from layers.products import contract
from layers.residual import shard_rows
from layers.softcap import slope, softcap

MAX_LOGITS = 2**26  # at once on a CPU; in float32, 256 MiB


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def cross_entropy(
    x: Float[Array, "B T D"],
    head: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    dtype: str,
    cap: float = 0.0,
    z_loss: float = 0.0,
) -> Float[Array, ""]:
    """Return the mean over the targets >= 0 of -log softmax(logits)[target], in nats, float32.

    Logits are x @ head.T, within `cap` (layers/softcap.py). `x` are features (`GPT.features`), and `dtype` is
    that of the matrix products' operands. Targets below 0 are left out; with none left the loss is 0. With a
    `z_loss`, that many times log(sum of exp(logits))^2 is added, which keeps this log near 0, as in PaLM
    (arXiv:2204.02311, section 5).
    """
    return loss_of_rows(x, head, targets, dtype, cap, z_loss).sum() / count(targets)


def loss_of_rows(
    x: Float[Array, "B T D"],
    head: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    dtype: str,
    cap: float = 0.0,
    z_loss: float = 0.0,
) -> Float[Array, " B"]:
    """Return the sum of each row's losses; without z_loss, -log of the probability of its targets."""
    weights = head.astype(dtype)

    def add(total, chunk):
        logits = softcap(contract("btd,vd->btv", chunk[0], weights, dtype), cap)
        return total + losses(*shift(logits), chunk[1], z_loss).sum(-1), None

    total, _ = lax.scan(add, jnp.zeros(len(x)), chunks(x, targets, len(head)))
    return total


def _forward(x, head, targets, dtype, cap, z_loss):
    weights, n_targets = head.astype(dtype), count(targets)

    def add(carry, chunk):
        total, dhead = carry
        x, targets = chunk
        logits = shard_rows(softcap(contract("btd,vd->btv", x, weights, dtype), cap))  # (B, T / n, V)
        shifted, sums, highest = shift(logits)
        probabilities = jnp.exp(shifted) / sums
        if z_loss:
            probabilities *= 1 + 2 * z_loss * (jnp.log(sums) + highest)
        dlogits = probabilities - is_target(logits, targets)
        if cap:
            dlogits *= slope(logits, cap)
        dlogits *= (targets >= 0)[..., None] / n_targets
        dx = contract("btv,vd->btd", dlogits, weights, dtype).astype(x.dtype)
        dhead += contract("btv,btd->vd", dlogits, x, dtype, out=jnp.float32)
        return (total + losses(shifted, sums, highest, targets, z_loss).sum(), dhead), dx

    start = (jnp.zeros(()), jnp.zeros(head.shape))
    (total, dhead), dx = lax.scan(add, start, chunks(x, targets, len(head)))
    dx = dx.swapaxes(0, 1).reshape(x.shape)  # (n, B, T / n, D) -> (B, T, D)
    return total / n_targets, (dx, dhead)


def _backward(dtype, cap, z_loss, gradients, dloss):
    dx, dhead = gradients
    return (dloss * dx).astype(dx.dtype), dloss * dhead, None


cross_entropy.defvjp(_forward, _backward)


def chunks(x, targets, V):
    """Split x and targets into n parts of T, on a new leading axis.

    The devices of a mesh share a part's logits, and each holds `max_logits` of them at most. There are as few
    parts as that allows: for every part the devices sum the head's gradient.
    """
    B, T, D = x.shape
    mesh = jax.sharding.get_abstract_mesh()  # without devices where there is none
    split_already = ("stage", *mesh.manual_axes)  # a stage's devices have all the rows that came to it
    devices = math.prod(size for axis, size in mesh.shape.items() if axis not in split_already)
    limit = max_logits() * devices
    n = next(n for n in range(1, T + 1) if T % n == 0 and (B * T * V <= n * limit or n == T))
    return x.reshape(B, n, T // n, D).swapaxes(0, 1), targets.reshape(B, n, T // n).swapaxes(0, 1)


def max_logits() -> int:
    """Return how many logits a device may hold at once: as many as fill a twelfth of its memory in bfloat16.

    For every chunk the head's gradient is read and written: 10 of GPT-2's 143 ms on an H100, as planned.
    A CPU holds few: it is as fast with many chunks, and clears a step's memory anew each time unless it is
    little (`reuse_freed_memory` in runs/hardware.py).
    """
    return MAX_LOGITS if device().platform == "cpu" else memory() // (12 * 2)


def shift(logits):
    """Return the logits less each token's highest, float32; the sum of their exponentials; the highest.

    The last two are (..., 1).
    """
    highest = logits.max(-1, keepdims=True).astype(jnp.float32)
    shifted = logits.astype(jnp.float32) - highest
    return shifted, jnp.exp(shifted).sum(-1, keepdims=True), highest


def losses(shifted, sums, highest, targets, z_loss):
    """Return each token's loss from what `shift` returns, and 0 where the target is below 0."""
    label = jnp.where(is_target(shifted, targets), shifted, 0).sum(-1)
    log_sums = jnp.log(sums[..., 0])
    z = z_loss * jnp.square(log_sums + highest[..., 0]) if z_loss else 0.0
    return jnp.where(targets >= 0, log_sums - label + z, 0)


def is_target(logits, targets):
    """Return (B, T, V), True at the target. Unlike a gather, a mask leaves a sharded V where it is."""
    return lax.broadcasted_iota(targets.dtype, logits.shape, 2) == targets[..., None]


def count(targets):
    return jnp.maximum((targets >= 0).sum(), 1)
