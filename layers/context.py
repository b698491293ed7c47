"""The context that blocks read besides the residual stream; it is made once per forward pass."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from layers.rotary import Table, inverse_frequencies, rotary_table


class Context(NamedTuple):
    """Positions and documents of the tokens; with some options, also values and embeddings for each layer."""

    positions: Int[Array | np.ndarray, "_ T"]  # from a document's beginning; one row may serve all
    rotary: tuple[Table, Table] | None  # cos and sin, with rope
    documents: Int[Array, "B T"] | None  # where each token's document begins; None: a row is one
    values: Float[Array, "B K T C"] | None = None  # the tokens' own values, with value_embeddings
    first: Float[Array, "B T D"] | None = None  # the first embedding, with residual_scalars


def context_of(tokens: Int[Array, "B T"], config, places=None, begun=0) -> Context:
    """Make the context of tokens at those places of their rows, (B, T); None: of whole rows.

    From one `eot` to the next is a document, which reads no other. `begun` (B, 1) is the place where the
    document begins that the tokens before these end in.
    """
    if places is None:
        places = np.arange(tokens.shape[1], dtype=np.int32)[None]  # (1, T), known when compiled
    if config.eot is None:
        return context_at(places, config)
    documents = lax.cummax(jnp.where(tokens == config.eot, places, begun), axis=1)  # (B, T)
    return context_at(places - documents, config, documents)


def context_at(positions: Int[Array | np.ndarray, "_ T"], config, documents=None) -> Context:
    """Make the context of tokens at those positions, for a model of that GPTConfig."""
    if config.position == "learned":
        return Context(positions, None, documents)
    inv_freq = inverse_frequencies(config.head_size, config.rope_theta, config.rope_scaling)
    return Context(positions, rotary_table(positions, inv_freq), documents)
