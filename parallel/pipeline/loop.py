"""Pipeline parallelism: each rank along the mesh axis `stage` has its own layers.

    python train.py ... --mesh=stage:4 --pipeline_schedule=1f1b --gradient_accumulation_steps=8

schedule.py makes a table of what each rank does in each tick; one loop over ticks, inside the compiled step,
carries it out. Residual streams go to the next rank, their gradients to the one before. A backward computes
its stage again, from the stage's input. Stage 0 embeds the tokens; the last stage has the loss, and its
forward is part of its backward.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
from model import GPT, Block
from parallel.pipeline.schedule import Row, Schedule
from parallel.sharding import shard


def split_blocks(model: GPT) -> tuple[GPT, Block]:
    return eqx.tree_at(lambda model: model.blocks, model, None), model.blocks


def join_blocks(rest: GPT, blocks: Block) -> GPT:
    return eqx.tree_at(lambda model: model.blocks, rest, blocks, is_leaf=lambda x: x is None)


def with_gathered_table(model: GPT) -> GPT:
    """Return the model with a token table that is not split.

    Inside `shard_map`, XLA (JAX 0.10.2 and 0.12.0.1) crashes where it looks up many tokens in a split table.
    """
    return eqx.tree_at(lambda model: model.wte, model, replace_fn=lambda table: eqx.filter_shard(table, P()))


def on_ranks(function: Callable, in_specs, out_specs, axes=("stage",)) -> Callable:
    # With check_vma=True JAX has given wrong gradients through branches that differ between devices (#40823).
    return jax.shard_map(
        function, in_specs=in_specs, out_specs=out_specs, axis_names=set(axes), check_vma=False
    )


def data_axis() -> tuple[str, ...]:
    """Return `data`, if it splits rows: its devices sum their gradients once, after the last tick."""
    return ("data",) if current_mesh().sizes["data"] > 1 else ()


def add_gradients(sums, loss, gradients: GPT, chunk: int | Int[Array, ""]):
    """Add the loss and the gradients of a chunk's backward to the sums."""
    rest, blocks = split_blocks(gradients)
    total, rest_total, blocks_total = sums
    return (
        total + loss,
        jax.tree.map(jnp.add, rest_total, rest),
        jax.tree.map(lambda sum, one: sum.at[chunk].add(one), blocks_total, blocks),
    )


# loss(features, head, targets, compute), as training/chunked_loss.py has it
Loss = Callable[[Float[Array, "B T D"], Float[Array, "V D"], Int[Array, "B T"], Compute], Float[Array, ""]]


@dataclass(frozen=True)
class Pipeline:
    """A schedule, and the loop that carries it out.

    Each rank takes its own branch of `lax.cond`. Communication inside a branch is along the other mesh axes.
    """

    schedule: Schedule

    def mean_gradients(
        self,
        loss: Loss,
        weights: GPT,
        frozen: GPT,
        x: Int[Array, "M B T"],
        y: Int[Array, "M B T"],
        key: DropoutKey,
    ) -> tuple[Float[Array, ""], GPT]:
        """Return the mean loss of the M microbatches and its gradient by the weights, float32."""
        table, n_inputs, n_cotangents = self.schedule.table()
        rows = P(None, data_axis())
        on_rank = on_ranks(
            partial(self._on_rank, loss=loss, slots=(n_inputs + 1, n_cotangents + 1)),
            in_specs=(P(None, "stage"), P(), P(None, "stage"), rows, rows, P()),
            out_specs=(P(), P(), P(None, "stage")),
            axes=("stage", *data_axis()),
        )
        rest, blocks = zip(split_blocks(weights), split_blocks(frozen), strict=True)
        total, rest_gradients, block_gradients = on_rank(
            np.array(table), rest, self._in_chunks(blocks), x, y, microbatch_keys(key, len(x))
        )
        block_gradients = jax.tree.map(lambda w: w.reshape(-1, *w.shape[2:]), block_gradients)
        return jax.tree.map(lambda sum: sum / len(x), (total, join_blocks(rest_gradients, block_gradients)))

    def mean_loss(
        self, loss: Loss, model: GPT, x: Int[Array, "B T"], y: Int[Array, "B T"]
    ) -> Float[Array, ""]:
        """Return the mean loss of one batch, without dropout. The ranks compute one after the other."""
        R, n = self.schedule.ranks, self.schedule.stages

        def on_rank(rank, rest, blocks, x, y):
            def stage(h, s):
                mine = jax.tree.map(itemgetter(s // R), blocks)
                h = lax.cond(
                    s % R == rank[0], lambda: apply_blocks(mine, h, attend, None, compute), lambda: h
                )
                return lax.ppermute(h, "stage", [(r, (r + 1) % R) for r in range(R)]), None

            positions, attend = causal_attention(rest.config, x)
            compute = rest.config.compute
            h = with_gathered_table(rest).embed(x, positions)
            h, _ = lax.scan(stage, h, jnp.arange(n))  # the last rank's output arrives on rank 0
            mean = lax.cond(
                rank[0] == 0, lambda: loss(rest.ln_f(h), rest.head, y, compute), lambda: jnp.zeros(())
            )
            return lax.psum(mean, "stage")

        rest, blocks = split_blocks(model)
        on_all_ranks = on_ranks(on_rank, (P("stage"), P(), P(None, "stage"), P(), P()), P())
        return on_all_ranks(np.arange(R), rest, self._in_chunks(blocks), x, y)

    def _in_chunks(self, blocks):
        """Reshape arrays (L, ...) to (chunks, L / chunks, ...), whose axis 1 is split over the ranks."""
        return jax.tree.map(lambda w: w.reshape(self.schedule.chunks, -1, *w.shape[1:]), blocks)

    def _on_rank(self, table, rest, blocks, x, y, keys, *, loss: Loss, slots: tuple[int, int]):
        """Sum loss and gradients over the microbatches, on one rank.

        Its blocks are (chunks, layers of a stage, ...); its part of the table is (ticks, 1, fields).
        """
        R, n, last = self.schedule.ranks, self.schedule.stages, self.schedule.stages - 1
        nothing = shard_residual(jnp.zeros((*x.shape[1:], rest[0].config.n_embd)))  # (B, T, D)

        def weights_of(s):
            """Return the trained and the frozen weights of stage s."""
            chunk = jax.tree.map(itemgetter(s // R), blocks)
            return tuple(join_blocks(*part) for part in zip(rest, chunk, strict=True))

        def stage(s, m, weights, h):
            """Return the output of stage s for microbatch m, and its loss: 0 before the last stage."""
            model, key = eqx.combine(*weights), None if keys is None else keys[m]
            compute = model.config.compute
            positions, attend = causal_attention(model.config, x[m])
            embed_key, layer_keys = split_key(key)
            if layer_keys is not None:  # this stage's part of the keys that one device draws
                L = model.config.n_layer
                layer_keys = lax.dynamic_slice_in_dim(jax.random.split(layer_keys, L), s * (L // n), L // n)
            h = lax.cond(
                s == 0, lambda: with_gathered_table(model).embed(x[m], positions, embed_key), lambda: h
            )
            h = apply_blocks(model.blocks, h, attend, layer_keys, compute)
            return h, lax.cond(
                s == last, lambda: loss(model.ln_f(h), model.head, y[m], compute), lambda: jnp.zeros(())
            )

        def tick(carry, row):
            inputs, cotangents, sums = carry
            now = Row(*row[0])

            def forward():
                s, m = now.forward, now.forward_microbatch
                return stage(s, m, weights_of(s), inputs[now.forward_slot])[0]

            def backward():
                s, m, h = now.backward, now.backward_microbatch, inputs[now.backward_slot]
                weights, frozen = weights_of(s)
                (_, nats), pull = jax.vjp(lambda *args: stage(s, m, (args[0], frozen), args[1]), weights, h)
                dh = jnp.where(s == last, 0, cotangents[now.cotangent_slot])
                dweights, dh = pull((dh, jnp.ones(())))
                return add_gradients(sums, nats, shard(dweights), s // R), dh

            h = lax.cond(now.forward >= 0, forward, lambda: nothing)
            sums, dh = lax.cond(now.backward >= 0, backward, lambda: (sums, nothing))
            h = lax.ppermute(h, "stage", [(r, (r + 1) % R) for r in range(R)])
            dh = lax.ppermute(dh, "stage", [(r, (r - 1) % R) for r in range(R)])
            inputs = inputs.at[now.input_arrives].set(h)
            cotangents = cotangents.at[now.cotangent_arrives].set(dh)
            return (inputs, cotangents, sums), None

        buffers = (shard_residual(jnp.zeros((count, *nothing.shape))) for count in slots)
        zeros = (jnp.zeros(()), *jax.tree.map(jnp.zeros_like, (rest[0], blocks[0])))
        (*_, (total, rest_gradients, block_gradients)), _ = lax.scan(tick, (*buffers, zeros), table)
        return lax.pmean((*lax.psum((total, rest_gradients), "stage"), block_gradients), data_axis())


def make_pipeline(options: Options) -> Pipeline | None:
    """Make the pipeline that the options describe; None where the mesh has one stage. Raises UserError."""
    n_ranks = current_mesh().sizes["stage"]
    if n_ranks == 1:
        return None
    stages = n_ranks * options.virtual_stages
    if options.n_layer % stages:
        raise UserError(
            f"n_layer={options.n_layer} must be a multiple of the {stages} stages that mesh=stage:{n_ranks} "
            f"and virtual_stages={options.virtual_stages} make: change one of them"
        )
    microbatches = options.gradient_accumulation_steps
    return Pipeline(Schedule(options.pipeline_schedule, n_ranks, options.virtual_stages, microbatches))
