"""Pipeline parallelism: each rank along the mesh axis `stage` has its own layers.

    python train.py ... --mesh=stage:4 --pipeline_schedule=1f1b --gradient_accumulation_steps=8

schedule.py makes a table of what each rank does in each tick; one loop over ticks, inside the compiled step,
carries it out. Residual streams go to the next rank, their gradients to the one before. A backward computes
its stage again, from the stage's input. Stage 0 embeds the tokens; the last stage has the loss, and its
forward is part of its backward. Each rank takes its own branch of `lax.cond`: communication inside a branch
is along the other mesh axes.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import itemgetter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from config.command_line import UserError
from config.options import Options
from layers.attention import causal_attention
from layers.compute import Compute, current_mesh
from layers.dropout import DropoutKey, microbatch_keys, split_key
from layers.stack import apply_blocks, shard_residual
from model import GPT
from parallel.pipeline.schedule import Row, Schedule
from parallel.sharding import shard

# loss(features, head, targets, compute), as training/chunked_loss.py has it
Loss = Callable[[Float[Array, "B T D"], Float[Array, "V D"], Int[Array, "B T"], Compute], Float[Array, ""]]


def map_blocks(change: Callable, *models: GPT, rest: Callable = lambda x: x) -> GPT:
    """Return a model with `change` applied to the arrays of the blocks, and `rest` to all others."""
    return jax.tree.map_with_path(
        lambda path, *arrays: (change if path[0].name == "blocks" else rest)(*arrays), *models
    )


def pipeline_loss(
    schedule: Schedule, loss: Loss, model: GPT, x: Int[Array, "B T"], y: Int[Array, "B T"]
) -> Float[Array, ""]:
    """Return the mean loss of one batch, without dropout. XLA leaves out what only gradients need."""
    once = replace(schedule, name="gpipe", microbatches=1)
    halves = eqx.partition(model, True)  # all of it, and nothing
    mean, _ = pipeline_value_and_grad(once, loss, *halves, x[None], y[None], None, only_loss=True)
    return mean


def pipeline_value_and_grad(
    schedule: Schedule,
    loss: Loss,
    weights: GPT,
    frozen: GPT,
    x: Int[Array, "M B T"],
    y: Int[Array, "M B T"],
    key: DropoutKey,
    *,
    only_loss: bool = False,
) -> tuple[Float[Array, ""], GPT]:
    """Return the mean loss of the M microbatches and its gradient by the weights, float32."""
    table, n_inputs, n_cotangents = schedule.table()
    ticks = schedule.stages if only_loss else None  # by then the last stage has it; None: all
    # The devices along `data` sum their gradients once, after the last tick.
    data = ("data",) if current_mesh().shape["data"] > 1 and not only_loss else ()
    # From here, the blocks' arrays are (chunks, layers of a stage, ...), split over the ranks on axis 1.
    chunked = partial(map_blocks, lambda w: w.reshape(schedule.chunks, -1, *w.shape[1:]))
    specs = partial(map_blocks, lambda _: P(None, "stage"), rest=lambda _: P())
    rows = P(None, data)
    slots = n_inputs + 1, n_cotangents + 1
    # With check_vma=True, JAX's gradients through branches that differ between devices were wrong (#40823).
    on_ranks = jax.shard_map(
        partial(on_rank, schedule=schedule, loss=loss, slots=slots, data=data),
        in_specs=(P(None, "stage"), specs(weights), specs(frozen), rows, rows, P()),
        out_specs=(P(), specs(weights)),
        axis_names={"stage", *data},
        check_vma=False,
    )
    keys = microbatch_keys(key, len(x))
    sums = on_ranks(np.array(table[:ticks]), chunked(weights), chunked(frozen), x, y, keys)
    mean, gradients = jax.tree.map(lambda sum: sum / len(x), sums)
    return mean, map_blocks(lambda w: w.reshape(-1, *w.shape[2:]), gradients)


def on_rank(table, weights, frozen, x, y, keys, *, schedule: Schedule, loss: Loss, slots, data):
    """Sum loss and gradients over the microbatches on one rank, whose table is (ticks, 1, fields)."""
    R, n, last = schedule.ranks, schedule.stages, schedule.stages - 1
    config = weights.config
    nothing = shard_residual(jnp.zeros((*x.shape[1:], config.n_embd)))  # (B, T, D)

    def weights_of(s):
        return map_blocks(itemgetter(s // R), weights)

    def stage(s, m, weights, h):
        """Return the output of stage s for microbatch m, and its loss: 0 before the last stage."""
        model = eqx.combine(weights, map_blocks(itemgetter(s // R), frozen))
        positions, attend = causal_attention(config, x[m])
        embed_key, layer_keys = split_key(None if keys is None else keys[m])
        if layer_keys is not None:  # this stage's part of the keys that one device draws
            L = config.n_layer
            layer_keys = lax.dynamic_slice_in_dim(jax.random.split(layer_keys, L), s * (L // n), L // n)

        def embed():  # in a table that is not split: else XLA crashes here (JAX 0.10.2 and 0.12.0.1)
            table = eqx.filter_shard(model.wte, P())
            return eqx.tree_at(lambda m: m.wte, model, table).embed(x[m], positions, embed_key)

        h = lax.cond(s == 0, embed, lambda: h)
        h = apply_blocks(model.blocks, h, attend, layer_keys, config.compute)
        return h, lax.cond(
            s == last,
            lambda: loss(model.ln_f(h), model.head, y[m], config.compute),
            lambda: jnp.zeros(()),
        )

    def tick(carry, row):
        inputs, cotangents, sums = carry
        now = Row(*row[0])

        def forward():
            s, m = now.forward, now.forward_microbatch
            return stage(s, m, weights_of(s), inputs[now.forward_slot])[0]

        def backward():
            s, m, h = now.backward, now.backward_microbatch, inputs[now.backward_slot]
            total, gradients = sums
            (_, nats), pull = jax.vjp(partial(stage, s, m), weights_of(s), h)
            dh = jnp.where(s == last, 0, cotangents[now.cotangent_slot])
            dweights, dh = pull((dh, jnp.ones(())))
            add = partial(map_blocks, lambda sum, one: sum.at[s // R].add(one), rest=jnp.add)
            return (total + nats, add(gradients, shard(dweights))), dh

        h = lax.cond(now.forward >= 0, forward, lambda: nothing)
        sums, dh = lax.cond(now.backward >= 0, backward, lambda: (sums, nothing))
        h = lax.ppermute(h, "stage", [(r, (r + 1) % R) for r in range(R)])
        dh = lax.ppermute(dh, "stage", [(r, (r - 1) % R) for r in range(R)])
        inputs = inputs.at[now.input_arrives].set(h)
        cotangents = cotangents.at[now.cotangent_arrives].set(dh)
        return (inputs, cotangents, sums), None

    buffers = (shard_residual(jnp.zeros((count, *nothing.shape))) for count in slots)
    zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights)
    (*_, (total, gradients)), _ = lax.scan(tick, (*buffers, zeros), table)
    summed = partial(lax.psum, axis_name="stage")
    return lax.pmean((summed(total), map_blocks(lambda x: x, gradients, rest=summed)), data)


def make_schedule(options: Options) -> Schedule | None:
    """Make the schedule that the options describe; None where the mesh has one stage. Raises UserError."""
    n_ranks = current_mesh().shape["stage"]
    if n_ranks == 1:
        return None
    stages = n_ranks * options.virtual_stages
    if options.n_layer % stages:
        raise UserError(
            f"n_layer={options.n_layer} must be a multiple of the {stages} stages that mesh=stage:{n_ranks} "
            f"and virtual_stages={options.virtual_stages} make: change one of them"
        )
    microbatches = options.gradient_accumulation_steps
    return Schedule(options.pipeline_schedule, n_ranks, options.virtual_stages, microbatches)
