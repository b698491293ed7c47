"""Pipeline parallelism: the ranks along the mesh axis `stage` have each their part of the layers.

    python train.py ... --mesh=stage:4 --pipeline_schedule=1f1b --gradient_accumulation_steps=8
    python -m parallel.pipeline --schedule=interleaved --stages=4 --virtual_stages=2 --microbatches=8

The microbatches of gradient accumulation follow each other through the stages. parallel/schedule.py says
which rank does what in each tick, in a table, and the table is all that differs between schedules. Here it is
carried out, by one loop over ticks within the compiled step. The second command prints it.

In a tick a rank does a forward, then a backward, or one of them, or neither, and passes on what it got:
residual streams go up to the next rank, their gradients down to the one before. A backward has nothing but
the stage's input, and computes the stage again. The token embedding belongs to the first stage. The loss
belongs to the last one, whose forward is a part of its backward. The weights outside of blocks are the same
on every rank, and their gradients are summed over the ranks at the end. The mesh's other axes are XLA's
affair, as elsewhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, PRNGKeyArray

from config.command_line import UserError
from config.options import Options
from layers.residual import shard_residual
from model import GPT, Block
from parallel.pipeline.schedule import Row, Schedule
from parallel.sharding import shard


def make_pipeline(options: Options) -> "Pipeline | None":
    """The pipeline that the options describe; None where the mesh has no ranks for one. Raises UserError."""
    mesh = jax.sharding.get_abstract_mesh()
    n_ranks = 1 if mesh.empty else mesh.shape["stage"]
    if n_ranks == 1:
        return None
    stages = n_ranks * options.virtual_stages
    if options.n_layer % stages:
        raise UserError(
            f"n_layer={options.n_layer} must be a multiple of the {stages} stages that mesh=stage:{n_ranks} "
            f"and virtual_stages={options.virtual_stages} make: change one of them"
        )
    microbatches = options.gradient_accumulation_steps
    schedule = make_schedule(options.pipeline_schedule, n_ranks, options.virtual_stages, microbatches)
    return Pipeline(schedule, options.pipeline_branches)


def make_schedule(name: str, ranks: int, chunks: int, microbatches: int) -> Schedule:
    try:
        return Schedule(name, ranks, chunks, microbatches)
    except ValueError as error:
        raise UserError(str(error)) from None


Loss = Callable[[GPT, Float[Array, "B T D"], Int[Array, "B T"]], Float[Array, ""]]


@dataclass(frozen=True)
class Pipeline:
    """A schedule, and how ranks do different things in one program.

    With "cond" each takes its own branch, and communication along the other axes of the mesh happens within:
    all who take part in it are of one rank, and in the same branch. With "where" all ranks compute all that
    any does, and drop what is not theirs.
    """

    schedule: Schedule
    branches: Literal["cond", "where"]

    def mean_gradients(
        self,
        loss: Loss,
        weights: GPT,
        frozen: GPT,
        x: Int[Array, "M B T"],
        y: Int[Array, "M B T"],
        keys: PRNGKeyArray | None,
    ) -> tuple[Float[Array, ""], GPT]:
        """Mean loss of the M microbatches and its gradient, float32, as one device computes them.

        `loss(model, features, y)` is the mean loss of one. Of the model, `weights` has what the gradient is
        of, and `frozen` the rest. `keys`, one per microbatch, turn dropout on.
        """
        table, n_inputs, n_cotangents = self.schedule.table()
        on_rank = on_ranks(
            partial(self._on_rank, loss_of=loss, slots=(n_inputs + 1, n_cotangents + 1)),
            in_specs=(P(None, "stage"), P(), P(None, "stage"), P(), P(), P()),
            out_specs=(P(), P(), P(None, "stage")),
        )
        rest, blocks = zip(split_blocks(weights), split_blocks(frozen), strict=True)
        loss, of_rest, of_blocks = on_rank(np.array(table), rest, self._in_chunks(blocks), x, y, keys)
        of_blocks = jax.tree.map(lambda w: w.reshape(-1, *w.shape[2:]), of_blocks)
        return jax.tree.map(lambda sum: sum / len(x), (loss, join_blocks(of_rest, of_blocks)))

    def mean_loss(
        self, loss: Loss, model: GPT, x: Int[Array, "B T"], y: Int[Array, "B T"]
    ) -> Float[Array, ""]:
        """The mean loss of one batch, without dropout, for evaluation: one rank after the other computes.

        That takes as long as on one device, but as in training a rank needs no room for others' layers.
        """
        R, n = self.schedule.ranks, self.schedule.stages

        def on_rank(rank, rest, blocks, x, y):
            def stage(h, s):
                model = join_blocks(rest, jax.tree.map(itemgetter(s // R), blocks))
                h = choose(s % R == rank[0], lambda: model.apply_blocks(model.blocks, h, context), lambda: h)
                return lax.ppermute(h, "stage", [(r, (r + 1) % R) for r in range(R)]), None

            context = rest.context(x)
            # What the last rank puts out arrives on rank 0.
            h, _ = lax.scan(stage, rest.embed(x, context), jnp.arange(n))
            mean = choose(rank[0] == 0, lambda: loss(rest, rest.ln_f(h), y), lambda: jnp.zeros(()))
            return lax.psum(mean, "stage")

        choose, (rest, blocks) = self._choose, split_blocks(model)
        on_rank = on_ranks(on_rank, (P("stage"), P(), P(None, "stage"), P(), P()), P())
        return on_rank(np.arange(R), rest, self._in_chunks(blocks), x, y)

    @property
    def _choose(self) -> Callable:
        return lax.cond if self.branches == "cond" else compute_both

    def _in_chunks(self, blocks):
        """Arrays (L, ...) as (chunks, L / chunks, ...), of which every rank has its part of axis 1."""
        return jax.tree.map(lambda w: w.reshape(self.schedule.chunks, -1, *w.shape[1:]), blocks)

    def _on_rank(self, table, rest, blocks, x, y, keys, *, loss_of: Loss, slots: tuple[int, int]):
        """What one rank computes: sums over microbatches of the loss and of the gradients.

        Arrays of its blocks are (chunks, layers of a stage, ...), and the table is (ticks, 1, fields).
        """
        R, n, last = self.schedule.ranks, self.schedule.stages, self.schedule.stages - 1
        choose = self._choose
        nothing = shard_residual(jnp.zeros((*x.shape[1:], rest[0].config.n_embd)))  # (B, T, D)

        def weights_of(s):
            """Of stage s, what is trained and what is not."""
            chunk = jax.tree.map(itemgetter(s // R), blocks)
            return tuple(join_blocks(*part) for part in zip(rest, chunk, strict=True))

        def stage(s, m, weights, h):
            """The output of stage s for microbatch m, and its loss, which is 0 before the last stage."""
            model, key = eqx.combine(*weights), None if keys is None else keys[m]
            context, first_layer = model.context(x[m]), s * (model.config.n_layer // n)
            h = choose(s == 0, lambda: model.embed(x[m], context, key=key), lambda: h)
            h = model.apply_blocks(model.blocks, h, context, first_layer=first_layer, key=key)
            return h, choose(s == last, lambda: loss_of(model, model.ln_f(h), y[m]), lambda: jnp.zeros(()))

        def tick(carry, row):
            inputs, cotangents, sums = carry
            now = Row(*row[0])

            def forward():
                s, m = now.forward, now.forward_microbatch
                return stage(s, m, weights_of(s), inputs[now.forward_slot])[0]

            def backward():
                s, m, h = now.backward, now.backward_microbatch, inputs[now.backward_slot]
                weights, frozen = weights_of(s)
                (_, loss), pull = jax.vjp(lambda *args: stage(s, m, (args[0], frozen), args[1]), weights, h)
                dh = jnp.where(s == last, 0, cotangents[now.cotangent_slot])
                dweights, dh = pull((dh, jnp.ones(())))
                return add_gradients(sums, loss, shard(dweights), s // R), dh

            h = choose(now.forward >= 0, forward, lambda: nothing)
            sums, dh = choose(now.backward >= 0, backward, lambda: (sums, nothing))
            h = lax.ppermute(h, "stage", [(r, (r + 1) % R) for r in range(R)])
            dh = lax.ppermute(dh, "stage", [(r, (r - 1) % R) for r in range(R)])
            inputs = inputs.at[now.input_arrives].set(h)
            cotangents = cotangents.at[now.cotangent_arrives].set(dh)
            return (inputs, cotangents, sums), None

        slots = tuple(shard_residual(jnp.zeros((count, *nothing.shape))) for count in slots)
        zeros = (jnp.zeros(()), *jax.tree.map(jnp.zeros_like, (rest[0], blocks[0])))
        (*_, (loss, of_rest, of_blocks)), _ = lax.scan(tick, (*slots, zeros), table)
        return *lax.psum((loss, of_rest), "stage"), of_blocks


def on_ranks(function: Callable, in_specs, out_specs) -> Callable:
    """`function`, computed by every rank on its part of the arguments."""
    # With check_vma=True JAX has given wrong gradients through branches that differ between devices (#40823).
    return jax.shard_map(
        function, in_specs=in_specs, out_specs=out_specs, axis_names={"stage"}, check_vma=False
    )


def add_gradients(sums, loss, gradients: GPT, chunk: Int[Array, ""]):
    """The sums with those of one backward of one chunk."""
    rest, of_chunk = split_blocks(gradients)
    total, rest_total, blocks_total = sums
    return (
        total + loss,
        jax.tree.map(jnp.add, rest_total, rest),
        jax.tree.map(lambda sum, one: sum.at[chunk].add(one), blocks_total, of_chunk),
    )


def compute_both(predicate, yes: Callable, no: Callable):
    """`lax.cond` without branching."""
    return jax.tree.map(partial(jnp.where, predicate), yes(), no())


def split_blocks(model: GPT) -> tuple[GPT, Block]:
    """A model without its blocks, and they."""
    return eqx.tree_at(lambda model: model.blocks, model, None), model.blocks


def join_blocks(rest: GPT, blocks: Block) -> GPT:
    return eqx.tree_at(lambda model: model.blocks, rest, blocks, is_leaf=lambda x: x is None)
