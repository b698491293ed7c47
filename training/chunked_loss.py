"""The loss in chunks of T: `cross_entropy(model.logits(x), targets)` of training/loss.py, in less memory.

GPT-2's logits of 12 x 1024 tokens take 2.5 GB; a device holds at most `Compute.max_logits` at once. The
forward pass computes each chunk's gradient too: the logits again would cost a tenth of the step's arithmetic.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from layers.compute import Compute, constrain, current_mesh
from layers.products import product


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def chunked_cross_entropy(
    x: Float[Array, "B T D"], head: Float[Array, "V D"], targets: Int[Array, "B T"], compute: Compute
) -> Float[Array, ""]:
    """Return the mean of -log softmax(x @ head.T)[target] over the targets >= 0, in nats; 0 without any."""
    return nats_of_rows(x, head, targets, compute).sum() / jnp.maximum((targets >= 0).sum(), 1)


def nats_of_rows(
    x: Float[Array, "B T D"], head: Float[Array, "V D"], targets: Int[Array, "B T"], compute: Compute
) -> Float[Array, " B"]:
    """Return each row's sum of -log softmax(x @ head.T)[target], in nats."""
    weights = head.astype(compute.dtype)

    def add(total, chunk):
        x, targets = chunk
        logits = product("btd,vd->btv", x, weights, compute.dtype, compute.result)
        return total + nats(*stable_exp_sum(logits), targets).sum(-1), None

    total, _ = lax.scan(add, jnp.zeros(len(x)), chunks(x, targets, len(head), compute.max_logits))
    return total


@jax.named_scope("loss")
def _forward(x, head, targets, compute):
    dtype = compute.dtype
    weights = head.astype(dtype)
    n_targets = jnp.maximum((targets >= 0).sum(), 1)

    def add(carry, chunk):
        total, dhead = carry
        x, targets = chunk
        logits = product("btd,vd->btv", x, weights, dtype, compute.result)  # (B, T / n, V)
        # Else XLA on TPUs moves features rather than the head where both are about as large.
        logits = constrain(logits, ("data", "fsdp"), P.UNCONSTRAINED, P.UNCONSTRAINED)
        shifted, sums = stable_exp_sum(logits)
        dlogits = jnp.exp(shifted) / sums - is_target(logits, targets)
        dlogits *= (targets >= 0)[..., None] / n_targets
        dx = product("btv,vd->btd", dlogits, weights, dtype, compute.result).astype(x.dtype)
        dhead += product("btv,btd->vd", dlogits, x, dtype)
        return (total + nats(shifted, sums, targets).sum(), dhead), dx

    start = (jnp.zeros(()), jnp.zeros(head.shape))
    (total, dhead), dx = lax.scan(add, start, chunks(x, targets, len(head), compute.max_logits))
    dx = dx.swapaxes(0, 1).reshape(x.shape)  # (n, B, T / n, D) -> (B, T, D)
    return total / n_targets, (dx, dhead)


@jax.named_scope("loss")
def _backward(compute, gradients, dloss):
    dx, dhead = gradients
    return (dloss * dx).astype(dx.dtype), dloss * dhead, None


chunked_cross_entropy.defvjp(_forward, _backward)


# As few chunks as memory allows, since the devices sum the head's gradient for each.
def chunks(x, targets, V, max_logits):
    """Split x and targets into n parts of T, on a new leading axis."""
    (B, T, D), mesh = x.shape, current_mesh()
    split_already = ("stage", *mesh.manual_axes)  # `stage` does not split rows
    devices = math.prod(size for axis, size in mesh.shape.items() if axis not in split_already)
    n = next(n for n in range(1, T + 1) if T % n == 0 and (B * T * V <= n * max_logits * devices or n == T))
    return x.reshape(B, n, T // n, D).swapaxes(0, 1), targets.reshape(B, n, T // n).swapaxes(0, 1)


def stable_exp_sum(logits):
    """Return the logits minus their maximum, and the sum of their exponentials, float32."""
    highest = logits.max(-1, keepdims=True).astype(jnp.float32)
    shifted = logits.astype(jnp.float32) - highest
    return shifted, jnp.exp(shifted).sum(-1, keepdims=True)


def nats(shifted, sums, targets):
    """Return each token's loss from the results of `stable_exp_sum`; 0 where the target is below 0."""
    label = jnp.where(is_target(shifted, targets), shifted, 0).sum(-1)
    return jnp.where(targets >= 0, jnp.log(sums[..., 0]) - label, 0)


def is_target(logits, targets):
    """Return (B, T, V), True at the target. Unlike a gather, this mask does not move a sharded V."""
    return lax.broadcasted_iota(targets.dtype, logits.shape, 2) == targets[..., None]
