"""The checks of a GPTConfig: which sizes a model can have."""

SIZES = ("block_size", "vocab_size", "n_layer", "n_head", "n_kv_head", "n_embd", "n_hidden")


def check_shape(config) -> None:
    """Raise ValueError, in one line, for the GPTConfig of a model that cannot be."""
    for name in (*SIZES, "rope_theta", "rope_scaling", "norm_eps", "window"):
        if (value := getattr(config, name)) is not None and not value > 0:
            raise ValueError(f"{name}={value} must be above 0")
    for name in ("logit_softcap", "mup_base_width", "mup_base_n_head"):
        if not (value := getattr(config, name)) >= 0:
            raise ValueError(f"{name}={value} must be 0, for none, or above")
    if config.eot is not None and not 0 <= config.eot < config.vocab_size:
        raise ValueError(f"eot={config.eot} must be a token of the vocabulary, below {config.vocab_size}")
    if not 0 <= config.dropout < 1:
        raise ValueError(f"dropout={config.dropout} must be from 0 up to, but not including, 1")
    if config.n_embd % config.n_head:
        raise ValueError(f"n_embd={config.n_embd} must be a multiple of n_head={config.n_head}")
    base_n_head = config.mup_base_n_head or config.n_head
    if config.mup_base_n_head and not config.mup_base_width:
        raise ValueError(f"mup_base_n_head={base_n_head} needs mup_base_width, the n_embd of that model")
    if config.mup_base_width % base_n_head:
        raise ValueError(
            f"mup_base_width={config.mup_base_width} must be a multiple of the base's n_head, {base_n_head}: "
            "give that as mup_base_n_head"
        )
    if config.n_head % config.kv_heads:
        raise ValueError(f"n_head={config.n_head} must be a multiple of n_kv_head={config.kv_heads}")
    if config.position == "rope" and config.head_size % 2:
        raise ValueError(f"rope needs an even head size: n_embd / n_head is {config.head_size}")


def check_length(T: int, config) -> None:
    """Raise ValueError for more tokens than a model has learned positions for."""
    if config.position == "learned" and T > config.block_size:
        raise ValueError(f"{T} tokens are more than block_size={config.block_size} positions")
