"""µP, the maximal update parametrisation (arXiv:2203.03466, table 8): rates tuned at one width suit all.

Of a model n times as wide as its base, with as many layers, and heads r times as wide (r is n with as many
heads, and 1 where heads are added that are as wide):

    what                                          next to the base's                              by
    hidden matrices at the start                  divided by sqrt(n)                              Linear
    embeddings, position embeddings, head         as large                                        GPT
    queries                                       divided by sqrt(r): scores are q k^T / C,       heads
                                                  times the root of the base's C
    features, which the head reads                divided by n                                    ln_f
    learning rate of hidden matrices              divided by n; with Muon, by sqrt(n), and by     own_rates
                                                  n / sqrt(r) of those of queries, keys, values
    learning rate of all else                     the same

As in EleutherAI's nanoGPT-mup, but for the scores, which at the base are the usual ones: with the base's
width, a model in µP is an ordinary one. Weight decay is multiplied by a matrix's own rate.
"""


def width_ratio(n_embd: int, base: int) -> float:
    """Return n, how many times as wide as its base a model is; 1 without a base."""
    return n_embd / base if base else 1.0


def head_ratio(shape) -> float:
    """Return r, how many times as wide as its base's a head is, of a GPTConfig or of options."""
    base_n_head = shape.mup_base_n_head or shape.n_head
    return width_ratio(shape.n_embd, shape.mup_base_width) * base_n_head / shape.n_head
