"""From gradients to updates: clipping, a direction, weight decay of matrices, the learning rate.

The optimizers differ only in the direction that they make of a gradient g:

    adamw    running mean of g / sqrt(running mean of g^2)                        arXiv:1711.05101
    muon     for a matrix in the blocks, nearly the orthogonal matrix closest to  arXiv:2502.16982
             the running mean of g; for all else, adamw's

Both make updates of about the same size, so that one learning rate and weight decay serve both.
"""

import math
from functools import partial

import jax
import optax

from config.options import Options
from layers.products import is_linear
from model import GPT
from parallel.sharding import is_matrix
from training.schedule import learning_rate


def make_optimizer(options: Options, weights: GPT) -> optax.GradientTransformation:
    """Make the optimizer of `weights`, or of their shapes.

    Its state's structure depends on `optimizer` alone: a resumed run may change other options.
    """
    if options.optimizer == "adamw":
        direction = optax.scale_by_adam(options.beta1, options.beta2)
    else:
        direction = scale_by_muon(options, weights)
    matrices = jax.tree_util.tree_map_with_path(is_matrix, weights)
    steps = [
        direction,
        optax.add_decayed_weights(options.weight_decay, lambda _: matrices),
        optax.scale_by_learning_rate(partial(learning_rate, options)),  # ty: ignore[invalid-argument-type]
    ]
    if options.mup_base_width:
        from variants import mup_rates  # here, because a plain run needs no variants

        steps.append(mup_rates(options))
    clip = optax.clip_by_global_norm(options.grad_clip) if options.grad_clip else optax.identity()
    return optax.chain(clip, optax.chain(*steps))


def scale_by_muon(options: Options, weights: GPT) -> optax.GradientTransformation:
    """Take Muon's direction for matrices in the blocks, Adam's for all else.

    `optax.contrib.muon` would use Nesterov's Adam for all else, and decay all of that or nothing.
    """
    # A weight is (L, in, ..., out): a matrix for each layer, and for each head.
    axes = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=-1)

    def like_adam(x, _):
        """Scale an orthogonal matrix, of RMS 1 / sqrt(longer side), to Adam's RMS of about 0.2."""
        return 0.2 * math.sqrt(max(x.shape[1], x.shape[-1])) * x

    muon = optax.chain(
        optax.contrib.scale_by_muon(
            beta=options.beta1,  # of Nesterov momentum
            weight_dimension_numbers=lambda matrices: jax.tree.map(lambda _: axes, matrices),
        ),
        optax.stateless_with_tree_map(like_adam),
    )
    labels = muon_or_adam(weights)
    adam = optax.scale_by_adam(options.beta1, options.beta2)
    return optax.partition({"muon": muon, "adam": adam}, lambda _: labels)


def muon_or_adam(weights: GPT) -> GPT:
    """Label the matrices in the blocks "muon", and all else, also a gate's vectors, "adam"."""

    def holds_vectors(x):
        return is_linear(x) and not x.matrix

    def label(path, x):
        if holds_vectors(x):
            return jax.tree.map(lambda _: "adam", x)
        return "muon" if path[0].name == "blocks" and is_matrix(path, x) else "adam"

    return jax.tree_util.tree_map_with_path(label, weights, is_leaf=holds_vectors)
