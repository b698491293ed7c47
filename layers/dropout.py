"""Dropout (arXiv:1207.0580), with keys that are explicit and may be absent."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped, UInt


def dropout(x: Float[Array, "..."], rate: float, key: PRNGKeyArray | None) -> Float[Array, "..."]:
    """Zero each element with probability `rate` and scale up the rest; without a key, return x itself.

    One 32-bit random number decides for two elements, which makes the baby GPT's step 10% faster on a CPU
    and rounds the rate to a multiple of 2^-16.
    """
    if key is None or rate == 0.0:
        return x
    bits = bits_of_rows(key, (*x.shape[:-1], -(-x.shape[-1] // 2)))
    bits = lax.bitcast_convert_type(bits, jnp.uint16).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
    dropped = min(round(rate * 2**16), 2**16 - 1)
    return jnp.where(bits >= dropped, x * (2**16 / (2**16 - dropped)), 0).astype(x.dtype)


def bits_of_rows(key: PRNGKeyArray, shape: tuple[int, ...]) -> UInt[Array, "..."]:
    """Draw random numbers of a shape (B, ...); where `jax.shard_map` has split the rows, those of its own."""
    mesh, B = jax.sharding.get_abstract_mesh(), shape[0]
    axes = tuple(axis for axis in ("data", "fsdp") if axis in mesh.manual_axes)
    n = math.prod(mesh.shape[axis] for axis in axes)
    bits = jax.random.bits(key, (n * B, *shape[1:]), jnp.uint32)
    return lax.dynamic_slice_in_dim(bits, lax.axis_index(axes) * B, B) if axes else bits


def split_key(key: PRNGKeyArray | None) -> tuple[PRNGKeyArray | None, PRNGKeyArray | None]:
    """Make two keys from one. Without a key there is no dropout anywhere below, and both are None."""
    if key is None:
        return None, None
    one, other = jax.random.split(key)
    return one, other


def keys_of_layers(
    key: PRNGKeyArray | None, n_layer: int, first_layer: int | Int[Array, ""], n: int
) -> Shaped[PRNGKeyArray, " n"] | None:
    """Make the keys of n layers, of n_layer in all, from layer `first_layer` on; None without a key."""
    if key is None:
        return None
    return lax.dynamic_slice_in_dim(jax.random.split(key, n_layer), first_layer, n)
