"""The attention mask: a token reads its document up to itself, or a window of that (arXiv:2310.06825)."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def causal_mask(
    positions: Int[Array, "_ T"],
    S: int,
    window: int | None = None,
    documents: Int[Array, "B T"] | None = None,
) -> Bool[Array, "_ T S"]:
    """Return which of the S keys, from position 0 on, each query reads: those up to its own position.

    With a window, it reads the last `window` of them. `documents` is the position where each query's document
    begins; without it, all is one document.
    """
    positions, keys = positions[:, :, None], jnp.arange(S)
    mask = keys <= positions
    if window is not None:
        mask &= keys > positions - window
    if documents is not None:
        mask &= keys >= documents[:, :, None]
    return mask
