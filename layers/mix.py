"""Options by which a layer learns to mix its input with another, or to scale a head's output.

Without weights, the input comes back as it is.
"""

import jax
from jaxtyping import Array, Float


def mix(
    x: Float[Array, "*shape"], other: Float[Array, "*shape"] | None, weights: Float[Array, " 2"] | None
) -> Float[Array, "*shape"]:
    """Return weights[0] * x + weights[1] * other, in the dtype of x.

    So blocks mix the residual stream with the first embedding, and values with those of the tokens alone, as
    in modded-nanogpt (github.com/KellerJordan/modded-nanogpt; see also arXiv:2410.17897).
    """
    if weights is None or other is None:
        return x
    return (weights[0] * x + weights[1] * other).astype(x.dtype)


def gate(y: Float[Array, "B H T C"], opening: Float[Array, "B H T"] | None) -> Float[Array, "B H T C"]:
    """Scale what each head has read by 2 sigmoid(opening), which is 1 at 0 (arXiv:2505.06708, headwise)."""
    if opening is None:
        return y
    return y * (2 * jax.nn.sigmoid(opening))[..., None].astype(y.dtype)
