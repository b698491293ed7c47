"""A norm's weight g moves into the linear layers that read the norm: (y * g) @ w = y @ (g[:, None] * w).

The gradient of g is then a sum over those layers' weights. Without this it is a sum over tokens, for which
XLA computes the norm once more, writes it out and reads it again. This took GPT-2's step on an H100 from
109.7 to 104.6 ms, as planned (docs/benchmarks.md has the command).
"""

import jax
import jax.numpy as jnp


def fold_norms(block):
    """Return a block that computes the same, to rounding, and whose norms' weights are the constant 1.

    A norm with a bias keeps its weight: the bias's gradient is a sum over tokens anyway. All norms do where
    `tensor` splits the layers: XLA would sum over its devices for each sum in the norm's gradient as well.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if block.ln_1.bias is not None or not mesh.empty and mesh.shape["tensor"] > 1:
        return block
    one, two = block.ln_1.weight, block.ln_2.weight
    read = {"c_q": one, "c_k": one, "c_v": one, "head_gate": one, "c_gate": two, "c_fc": two}

    def folded(path, w):
        layer, name = ("", *(key.name for key in path))[-2:]
        if layer in ("ln_1", "ln_2"):
            return jnp.ones_like(w)
        if layer in read and name in ("weight", "lora_a"):  # adapters (training/lora.py) read the norm too
            return jnp.expand_dims(read[layer], range(1, w.ndim)) * w
        return w

    return jax.tree_util.tree_map_with_path(folded, block)
