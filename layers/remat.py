"""Rematerialisation (arXiv:1604.06174): keep less for the backward pass, and compute it again there."""

from collections.abc import Callable
from typing import Literal

import jax

# Each mode keeps a block's input, and the arrays that `checkpoint_name` in model.py gives these names.
KEPT = {"block": (), "dots": ("linear",)}


def remat(layer: Callable, mode: Literal["none", "block", "dots"], in_loop: bool) -> Callable:
    """Wrap a layer of the network so that its backward pass recomputes what `mode` does not keep.

    "none" keeps everything. "block" keeps the residual stream between blocks alone. "dots" also keeps the
    outputs of the linear layers, so that little but attention's weights and the cheap operations between
    products is computed twice. `in_loop` says that the layers run in a loop, and are not unrolled.
    """
    if mode == "none":
        return layer
    # A loop over layers keeps the two passes apart by itself; unrolled, the compiler would merge them again.
    policy = jax.checkpoint_policies.save_only_these_names(*KEPT[mode])
    return jax.checkpoint(layer, policy=policy, prevent_cse=not in_loop)
