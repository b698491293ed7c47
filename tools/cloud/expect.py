"""Compute how long a training run takes at least. A launch says it beside the price, before it rents."""

from dataclasses import replace

from config.options import Options
from data.meta import load_meta
from data.registry import dataset_dir, is_prepared, is_small
from tools.cloud.jobs import has_script
from tools.cloud.options import LaunchOptions
from tools.cloud.prices import split

# A step's share of a GPU's peak, at best: plan.py finds 51% for GPT-2 on an H100, 62% for a Llama of 1.3
# billion parameters (docs/benchmarks.md). Small models are far from it.
BEST = 0.6
PEAK_OF = {"A10": "A10G", "A100-40GB": "A100", "A100-80GB": "A100"}  # Modal's names, and those of PEAKS
# Vocabularies of data that is not prepared here: a small data set's characters, roughly, and GPT-2's, padded.
CHARACTERS, GPT2 = 100, 50304


def least_hours(options: Options, launch: LaunchOptions) -> float | None:
    """Return the hours that a new run's products take at `BEST` of the peak; None where that is not known.

    Where several GPUs may be taken, the fastest counts. It is not known for a run that starts from weights,
    which decide its shape, nor for one that goes on. Raises UserError for a shape that cannot be.
    """
    # Here, because they import JAX, which few commands of the launcher need.
    from config.devices import peak_flops
    from runs.sizes import flops_per_token
    from training.state import model_shape

    if options.init_from not in ("scratch", "auto"):
        return None
    gpus = [(peak_flops(PEAK_OF.get(name, name)), count) for name, count in map(split, launch.machine.gpus)]
    fastest = max((peak * count for peak, count in gpus if peak), default=0.0) * launch.nodes
    if not fastest:
        return None
    config = model_shape(replace(options, document_mask=False), vocabulary(options))
    return tokens_of(options) * flops_per_token(config, options.block_size) / (BEST * fastest) / 3600


def vocabulary(options: Options) -> int:
    """Return the size of the vocabulary, as far as it can be known before the data is prepared."""
    if options.vocab_size:
        return options.vocab_size
    if is_prepared(dataset_dir(options.dataset)):
        return load_meta(options.dataset).vocab_size
    return CHARACTERS if has_script(options.dataset) and is_small(options.dataset) else GPT2


def tokens_of(options: Options) -> int:
    """Return the tokens that a whole run trains on."""
    step = options.batch_size * options.gradient_accumulation_steps * options.block_size
    return step * options.max_iters


def describe_least(options: Options, launch: LaunchOptions, runs: int = 1) -> str | None:
    """Return the line that says how long each run takes at least, and whether there is time for it."""
    hours = least_hours(options, launch)
    if hours is None:
        return None
    time = f"{hours:,.1f} h" if hours >= 1 else f"{max(1, round(60 * hours))} min"
    each = "each run" if runs > 1 else "the run"
    tokens = f"{tokens_of(options) / 1e6:,.0f} million tokens"
    line = f"{each} takes {time} at least, for {tokens} at {BEST:.0%} of the GPU's peak"
    most = launch.timeout_hours * (1 + launch.retries)
    return line if hours <= most else f"{line}: more than the {most:g} h of all attempts"
