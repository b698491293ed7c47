"""Save a LoRA run's model, its adapters merged, as an ordinary run: `train.py --lora_merge=<folder>`."""

from dataclasses import replace

import jax.numpy as jnp
import optax

from config.command_line import UserError
from runs.checkpoint import Checkpoints
from runs.load import load_run_with_adapters
from runs.lock import locked
from runs.start import write_options
from training.lora import merge
from training.state import TrainState, create_state_around


def save_merged(out_dir: str, to: str) -> int:
    """Save the latest checkpoint of the run in `out_dir`, its adapters merged, as an ordinary run in `to`.

    Return its iteration. Raises UserError.
    """
    model, manifest, iteration = load_run_with_adapters(out_dir)
    if not manifest.options.lora_rank:
        raise UserError(f"lora_merge={to}: the run in out_dir={out_dir} has no adapters to merge")
    checkpoints = Checkpoints(to)
    if checkpoints.latest() is not None:
        raise UserError(f"lora_merge={to} holds a run: choose another folder, or delete it")
    options = replace(manifest.options, out_dir=to, lora_rank=0)
    state, step = create_state_around(merge(model), options), jnp.asarray(iteration, jnp.int32)
    # All weights have new moments, whose count begins at 0; the learning rate's goes on with the run.
    opt_state = optax.tree.set(state.opt_state, is_learning_rates, count=step)
    state = TrainState(state.model, opt_state, step)
    with locked(to):
        write_options(options)
        checkpoints.save(state, replace(manifest, options=options, base=None))
        checkpoints.wait()
    return iteration


def is_learning_rates(path, _) -> bool:
    """Tell whether a count in an optimizer's state is the one that the learning rate depends on."""
    return path[-1].tuple_name == "ScaleByScheduleState"
