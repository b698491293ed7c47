"""From gradients to updates: clipping, a direction, weight decay on matrices only, the learning rate.

The optimizers differ in the direction that they make of a gradient g, and in nothing else:

    adamw    running mean of g / sqrt(running mean of g^2)                        arXiv:1711.05101
    muon     for a matrix in the blocks, nearly the orthogonal matrix closest to  arXiv:2502.16982
             the running mean of g; for all else, adamw's
    normuon  muon's, with the weights of every output made about as large         arXiv:2510.05491
    lion     sign of a running mean of g                                          arXiv:2302.06675

Elements of adamw's and muon's directions are about as large, so that one learning rate and one weight decay
serve both. All of lion's are 1 or -1: it wants a rate 3 to 10 times lower, and as many times the weight
decay.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from config.options import Options
from layers.mup import head_ratio, width_ratio
from model import GPT

# `wsd` decays over this part of the run: a linear decay over so many steps ends where a cosine does.
DECAYING = 0.2  # arXiv:2405.18392


def make_optimizer(options: Options) -> optax.GradientTransformation:
    """Make an optimizer that clips the gradients' global norm to `grad_clip` (0: does not), then steps.

    Gradients, updates and moments are trees like the model, in float32, and the names of moments end with
    their parameter's. The state's structure depends on `optimizer` alone: a resumed run may change the rest.
    """
    direction = {
        "adamw": optax.scale_by_adam,
        "muon": scale_by_muon,
        "normuon": partial(scale_by_muon, even=True),
        "lion": optax.scale_by_lion,
    }
    optimizer = optax.chain(
        direction[options.optimizer](options.beta1, options.beta2),
        weight_decay(options),
        optax.scale_by_learning_rate(lambda step: learning_rate(options, jnp.asarray(step))),
        own_rates(options),
    )
    clip = optax.clip_by_global_norm(options.grad_clip) if options.grad_clip else optax.identity()
    return optax.chain(clip, optimizer)


def weight_decay(options: Options) -> optax.GradientTransformation:
    """Add `weight_decay` times the matrices and embeddings to their directions.

    With `cautious_weight_decay`, only those elements decay whose direction has their sign, or is 0, so that
    the step brings them nearer to 0 as well (arXiv:2510.12402).
    """

    def cautious(direction, weight):
        return direction + options.weight_decay * jnp.where(direction * weight >= 0, weight, 0)

    if options.cautious_weight_decay:
        return optax.masked(optax.stateless_with_tree_map(cautious), decayed)
    return optax.add_decayed_weights(options.weight_decay, decayed)


def own_rates(options: Options) -> optax.GradientTransformation:
    """Scale the updates of those parameters that have a learning rate of their own.

    In µP (layers/mup.py), a matrix in the blocks of a model n times as wide as its base has an n-th of the
    rate. The spectral norm of Muon's step is to be in proportion to sqrt(out / in) (arXiv:2310.17813), and
    `like_adam` lets it grow by sqrt(n), the root of what the inputs grow by: so its rate is divided by n, and
    multiplied by the root of what the outputs grow by. An adapter's B, whose inputs are as many at each
    width, has the rate that is given.
    """
    n, r = width_ratio(options.n_embd, options.mup_base_width), head_ratio(options)

    def scale(path, x):
        if path[-1].name in ("stream_mix", "value_mix"):
            return options.scalar_learning_rate / options.learning_rate * x
        if path[0].name != "blocks" or path[-1].name == "lora_b" or not is_matrix(path, x):
            return x
        muon = options.optimizer in ("muon", "normuon") and path[-1].name == "weight" and takes_muon(path, x)
        outputs = r if x.ndim == 4 else n  # Muon's matrix in (L, in, heads, C) is a head's
        return x / (n / math.sqrt(outputs) if muon else n)

    return optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(scale, updates))


def scale_by_muon(beta1: float, beta2: float, even: bool = False) -> optax.GradientTransformation:
    """Take Muon's direction, with Nesterov momentum `beta1`, for matrices in the blocks, Adam's for all else.

    The momentum is Optax's, whose means are corrected for beginning at 0. Keller Jordan's are not; the two
    differ in the first 1 / (1 - beta1) steps or so. With `even`, take NorMuon's direction. It is put together
    here because `optax.contrib.muon` gives all else another Adam, Nesterov's, and decays either every
    parameter of it or none.
    """
    # A weight is (L, in, ..., out). Each layer's is a matrix of its own, and so is each head's.
    axes = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=-1)

    def like_adam(x, _):
        """Scale an orthogonal matrix, of RMS 1 / sqrt(longer side), to Adam's RMS of mostly 0.2 to 0.4."""
        return 0.2 * math.sqrt(max(x.shape[1], x.shape[-1])) * x

    muon = optax.contrib.scale_by_muon(
        beta=beta1, weight_dimension_numbers=lambda matrices: jax.tree.map(lambda _: axes, matrices)
    )
    evened = even_outputs(beta2) if even else optax.identity()
    scaled = optax.chain(muon, evened, optax.stateless_with_tree_map(like_adam))
    return optax.partition({"muon": scaled, "adam": optax.scale_by_adam(beta1, beta2)}, muon_or_adam)


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


def learning_rate(options: Options, step: Int[Array, ""] | int) -> Float[Array, ""]:
    """Return the learning rate of a step: linear warmup to `learning_rate`, then what `schedule` says.

        cosine     a half cosine down to min_lr at lr_decay_iters
        wsd        "warmup, stable, decay" (arXiv:2404.06395): constant, then linearly down to min_lr over the
                   last fifth of lr_decay_iters
        constant   constant

    nanoGPT's `decay_lr=False` is `learning_rate` from the first step on, without warmup, whatever `schedule`.
    """
    highest, warmup, end = options.learning_rate, options.warmup_iters, options.lr_decay_iters
    if not options.decay_lr:
        return jnp.asarray(highest, jnp.float32)
    start = max(warmup, (1 - DECAYING) * end) if options.schedule == "wsd" else warmup
    progress = jnp.clip((step - start) / max(end - start, 1), 0, 1)
    left = {"cosine": 0.5 * (1 + jnp.cos(jnp.pi * progress)), "wsd": 1 - progress, "constant": 1.0}
    scheduled = options.min_lr + left[options.schedule] * (highest - options.min_lr)
    return jnp.where(step < warmup, highest * (step + 1) / (warmup + 1), scheduled).astype(jnp.float32)


def decayed(model: GPT) -> GPT:
    """Mark what weight decay is for: True for matrices and embeddings, False for biases and norms."""
    return jax.tree_util.tree_map_with_path(is_matrix, model)


def muon_or_adam(model: GPT) -> GPT:
    """Label each parameter with the part of Muon that is for it: "muon" or "adam"."""

    def label(path, x):
        return "muon" if takes_muon(path, x) else "adam"

    return jax.tree_util.tree_map_with_path(label, model)


def takes_muon(path, x) -> bool:
    """Tell whether a parameter is a matrix in the blocks. A gate is not: it is a vector for each head."""
    return path[0].name == "blocks" and is_matrix(path, x) and path[-2].name != "head_gate"


def is_matrix(path, x) -> bool:
    """Tell whether it is a matrix: blocks have a layer axis on top, and a bias may have two axes, (H, C)."""
    return path[-1].name != "bias" and x.ndim - (path[0].name == "blocks") >= 2
