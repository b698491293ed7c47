"""From gradients to updates: clipping, a direction, weight decay on matrices only, the learning rate.

The optimizers differ in the direction that they make of a gradient g, and in nothing else:

    adamw    running mean of g / sqrt(running mean of g^2)                        arXiv:1711.05101
    muon     for a matrix in the blocks, nearly the orthogonal matrix closest to  arXiv:2502.16982
             the running mean of g; for all else, adamw's
    normuon  muon's, with the weights of every output made about as large         arXiv:2510.05491

Elements of all three directions are about as large, so that one learning rate and one weight decay serve all.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import optax

from config.options import Options
from layers.products import Linear
from model import GPT
from parallel.sharding import is_matrix
from training.schedule import learning_rate


def make_optimizer(options: Options, weights: GPT) -> optax.GradientTransformation:
    """Make an optimizer that clips the gradients' global norm to `grad_clip` (0: does not), then steps.

    `weights` are those that are trained, or their shapes. Gradients, updates and moments are trees like them,
    in float32, and the names of moments end with their parameter's. The state's structure depends on
    `optimizer` alone: a resumed run may change the rest.
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
        own_rates(options),
    ]
    clip = optax.clip_by_global_norm(options.grad_clip) if options.grad_clip else optax.identity()
    return optax.chain(clip, optax.chain(*steps))


def own_rates(options: Options) -> optax.GradientTransformation:
    """Scale the updates of parameters that have learning rates of their own, as µP's matrices do."""
    if not options.mup_base_width:
        return optax.identity()
    from variants import mup_rates  # here, because a plain run needs no variants

    return mup_rates(options)


def scale_by_muon(options: Options, weights: GPT) -> optax.GradientTransformation:
    """Take Muon's or NorMuon's direction for matrices in the blocks, Adam's for all else.

    The momentum is Optax's, whose means are corrected for beginning at 0. Keller Jordan's are not; the two
    differ in the first 1 / (1 - beta1) steps or so. It is put together here because `optax.contrib.muon`
    gives all else another Adam, Nesterov's, and decays either every parameter of it or none.
    """
    # A weight is (L, in, ..., out). Each layer's is a matrix of its own, and so is each head's.
    axes = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=-1)

    def like_adam(x, _):
        """Scale an orthogonal matrix, of RMS 1 / sqrt(longer side), to Adam's RMS of mostly 0.2 to 0.4."""
        return 0.2 * math.sqrt(max(x.shape[1], x.shape[-1])) * x

    muon = optax.chain(
        optax.contrib.scale_by_muon(
            beta=options.beta1,  # of Nesterov momentum
            weight_dimension_numbers=lambda matrices: jax.tree.map(lambda _: axes, matrices),
        ),
        even_outputs(options.beta2) if options.optimizer == "normuon" else optax.identity(),
        optax.stateless_with_tree_map(like_adam),
    )
    labels = muon_or_adam(weights)
    adam = optax.scale_by_adam(options.beta1, options.beta2)
    return optax.partition({"muon": muon, "adam": adam}, lambda _: labels)


def even_outputs(beta2: float) -> optax.GradientTransformation:
    """Divide the weights of each output by the root of their square's running mean. A matrix keeps its norm.

    What is nearly an orthogonal matrix still moves some outputs little, step after step. NorMuon
    (arXiv:2510.05491) lets them catch up. The mean is over the inputs, so the state is (L, 1, ..., out).
    The paper gives every matrix an RMS of 0.2 instead. Its authors' code keeps Newton-Schulz's norm, as here,
    which is less where momentum has a low rank; at the best rate both end alike (docs/benchmarks.md).
    """

    def init(params):
        return jax.tree.map(lambda x: jnp.zeros_like(x[:, :1]), params)

    def update(updates, state, params=None):
        squares = jax.tree.map(
            lambda x, s: beta2 * s + (1 - beta2) * jnp.square(x).mean(1, keepdims=True), updates, state
        )
        return jax.tree.map(even, updates, squares), squares

    def even(x, square):
        y = x / (jnp.sqrt(square) + 1e-8)
        return y * norm(x) / (norm(y) + 1e-8)

    def norm(x):  # of each layer's, each head's matrix
        return jnp.sqrt(jnp.square(x).sum((1, -1), keepdims=True))

    return optax.GradientTransformation(init, update)


def muon_or_adam(model: GPT) -> GPT:
    """Label the matrices in the blocks "muon", and all else "adam"."""

    def is_no_matrix(x):
        return isinstance(x, Linear) and not x.matrix

    def label(path, x):
        if is_no_matrix(x):
            return jax.tree.map(lambda _: "adam", x)
        return "muon" if path[0].name == "blocks" and is_matrix(path, x) else "adam"

    return jax.tree_util.tree_map_with_path(label, model, is_leaf=is_no_matrix)
