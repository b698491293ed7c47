"""The options that shape a model, which `Options` and `GPTConfig` inherit, and their checks."""

from dataclasses import dataclass
from typing import Literal

from config.command_line import Count, Fraction, Positive


@dataclass(frozen=True)
class ModelShape:
    """The shape of a model. A comment is the text in `--help`."""

    block_size: Count = 1024  # tokens per sequence
    n_layer: Count = 12  # blocks
    n_head: Count = 12  # attention heads
    n_kv_head: Count | None = None  # key/value heads, shared by groups of query heads; None: n_head
    n_embd: Count = 768  # width of the residual stream
    n_hidden: Count | None = None  # width of the MLP; None: 4 n_embd, for swiglu 8/3 n_embd
    position: Literal["learned", "rope"] = "learned"  # learned embeddings, or rotary (arXiv:2104.09864)
    rope_theta: Positive = 10000.0  # base of the rotary frequencies
    rope_scaling: Positive = 1.0  # Llama 3's factor for longer contexts; 1: none
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"  # normalisation before attention, MLP and head
    norm_eps: Positive = 1e-5  # added to the mean square before its root is taken
    mlp: Literal["swiglu", "gelu", "relu2"] = "swiglu"  # of about as many parameters; gelu: GPT-2's
    bias: bool = False  # biases in the linear layers and layernorms
    qk_norm: bool = False  # normalise queries and keys (arXiv:2302.05442)
    window: Count | None = None  # tokens that a token reads, itself the last, as in Mistral; None: all
    tie_embeddings: bool = True  # the head is the token embedding, transposed
    dropout: Fraction = 0.0  # rate for embeddings, attention and residuals; for finetuning try 0.1+


SIZES = ("block_size", "vocab_size", "n_layer", "n_head", "n_kv_head", "n_embd", "n_hidden")


def check_shape(config) -> None:
    """Raise ValueError for the GPTConfig of an impossible model."""
    for name in (*SIZES, "rope_theta", "rope_scaling", "norm_eps", "window"):
        if (value := getattr(config, name)) is not None and not value > 0:
            raise ValueError(f"{name}={value} must be above 0")
    if config.eot is not None and not 0 <= config.eot < config.vocab_size:
        raise ValueError(f"eot={config.eot} must be a token of the vocabulary, below {config.vocab_size}")
    if not 0 <= config.dropout < 1:
        raise ValueError(f"dropout={config.dropout} must be from 0 up to, but not including, 1")
    if config.n_embd % config.n_head:
        raise ValueError(f"n_embd={config.n_embd} must be a multiple of n_head={config.n_head}")
    if config.n_head % config.kv_heads:
        raise ValueError(f"n_head={config.n_head} must be a multiple of n_kv_head={config.kv_heads}")
    if config.position == "rope" and config.head_size % 2:
        raise ValueError(f"rope needs an even head size: n_embd / n_head is {config.head_size}")
