"""What a block reads besides the residual stream; it is found once per forward pass."""

from typing import NamedTuple

from jaxtyping import Array, Float, Int

from layers.rotary import inverse_frequencies, rotary_table


class Context(NamedTuple):
    """Positions and documents of the tokens, for every layer's attention."""

    positions: Int[Array, "_ T"]  # from the beginning of each token's document; one row may serve all
    rotary: tuple[Float[Array, "_ 1 T half"], Float[Array, "_ 1 T half"]] | None  # cos and sin, with rope
    documents: Int[Array, "B T"] | None  # where each token's document begins; None: a row is one


def context_at(positions: Int[Array, "_ T"], config, documents=None) -> Context:
    """Make the context of tokens at those positions, for a model of that GPTConfig."""
    if config.position == "learned":
        return Context(positions, None, documents)
    inv_freq = inverse_frequencies(config.head_size, config.rope_theta, config.rope_scaling)
    return Context(positions, rotary_table(positions, inv_freq), documents)
