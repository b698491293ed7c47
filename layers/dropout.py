"""Dropout (arXiv:1207.0580), with explicit keys."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, Shaped, UInt

from layers.compute import current_mesh

DropoutKey = PRNGKeyArray | None  # None: no dropout


def dropout(x: Float[Array, "..."], rate: float, key: DropoutKey) -> Float[Array, "..."]:
    """Zero each element with probability `rate` and scale up the rest; without a key, return x itself.

    One 32-bit random number decides for two elements, so the rate is rounded to a multiple of 2^-16.
    """
    if key is None or rate == 0.0:
        return x
    bits = bits_of_rows(key, (*x.shape[:-1], -(-x.shape[-1] // 2)))
    bits = lax.bitcast_convert_type(bits, jnp.uint16).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
    dropped = min(round(rate * 2**16), 2**16 - 1)
    return jnp.where(bits >= dropped, x * (2**16 / (2**16 - dropped)), 0).astype(x.dtype)


def bits_of_rows(key: PRNGKeyArray, shape: tuple[int, ...]) -> UInt[Array, "..."]:
    """Draw random numbers of a shape (B, ...); within `jax.shard_map`, those of this device's rows."""
    mesh, B = current_mesh(), shape[0]
    axes = tuple(axis for axis in ("data", "fsdp") if axis in mesh.manual_axes)
    n = math.prod(mesh.shape[axis] for axis in axes)
    bits = jax.random.bits(key, (n * B, *shape[1:]), jnp.uint32)
    return lax.dynamic_slice_in_dim(bits, lax.axis_index(axes) * B, B) if axes else bits


def split_key(key: DropoutKey, n: int = 2):
    """Split a key into n; no key gives n times None."""
    return [None] * n if key is None else jax.random.split(key, n)


def microbatch_keys(key: DropoutKey, A: int) -> Shaped[PRNGKeyArray, " A"] | None:
    """Make a key for each microbatch from the step's. A single microbatch has the step's own."""
    if key is None or A == 1:
        return key if key is None else key[None]
    return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(A))
