"""Checks of a GPTConfig."""

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
