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
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, PRNGKeyArray

from config.options import Count, Name, Options, UserError, command, given
from model import GPT, Block
from parallel.schedule import Row, Schedule
from parallel.sharding import shard
from parallel.timeline import describe, draw


def pipeline_of(options: Options) -> "Pipeline | None":
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


# --- carrying it out ----------------------------------------------------------------------------------------

Loss = Callable[[GPT, Float[Array, "B T D"], Int[Array, "B T"]], Float[Array, ""]]


@dataclass(frozen=True)
class Pipeline:
    """A schedule, and how ranks do different things in one program.

    With "cond" each takes its branch. With "where" all compute both and drop one, which no communication
    within a branch can ever hang on.
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
        on_rank = jax.shard_map(
            partial(self._on_rank, loss_of=loss, slots=(n_inputs + 1, n_cotangents + 1)),
            in_specs=(P(None, "stage"), P(), P(None, "stage"), P(), P(), P()),
            out_specs=(P(), P(), P(None, "stage")),
            axis_names={"stage"},
            check_vma=False,  # which gives wrong gradients through branches that ranks take apart: jax#40823
        )
        chunks = partial(jax.tree.map, lambda w: w.reshape(self.schedule.chunks, -1, *w.shape[1:]))
        rest, blocks = zip(apart(weights), apart(frozen), strict=True)
        loss, gradients, of_blocks = on_rank(np.array(table), rest, chunks(blocks), x, y, keys)
        of_blocks = jax.tree.map(lambda w: w.reshape(-1, *w.shape[2:]), of_blocks)
        return jax.tree.map(lambda sum: sum / len(x), (loss, together(gradients, of_blocks)))

    def _on_rank(self, table, rest, blocks, x, y, keys, *, loss_of: Loss, slots: tuple[int, int]):
        """What one rank computes: sums over microbatches of the loss and of the gradients.

        Arrays of its blocks are (chunks, layers of a stage, ...), and the table is (ticks, 1, fields).
        """
        R, last = self.schedule.ranks, self.schedule.stages - 1
        choose = lax.cond if self.branches == "cond" else compute_both

        def stage(s, m, weights, h):
            """The output of stage s, and its loss, which is 0 before the last stage."""
            model, key = eqx.combine(*weights), None if keys is None else keys[m]
            h = choose(s == 0, lambda: model.begin(x[m], key), lambda: h)
            n = self.schedule.stages
            h = model.through(model.blocks, h, x[m], key, start=s * (model.config.n_layer // n))
            loss = choose(s == last, lambda: loss_of(model, model.ln_f(h), y[m]), lambda: jnp.zeros(()))
            return h, loss

        def tick(carry, row):
            inputs, cotangents, sums = carry
            now = Row(*row[0])

            def forward():
                weights = of_stage(rest, blocks, now.forward)
                return stage(now.forward, now.forward_microbatch, weights, inputs[now.forward_slot])[0]

            def backward():
                s, m = now.backward, now.backward_microbatch
                weights, frozen = of_stage(rest, blocks, s)
                (_, loss), pull = jax.vjp(
                    lambda weights, h: stage(s, m, (weights, frozen), h), weights, inputs[now.backward_slot]
                )
                dh = jnp.where(s == last, 0, cotangents[now.cotangent_slot])
                dweights, dh = pull((dh, jnp.ones(())))
                return add(sums, loss, shard(dweights), s // R), dh

            def of_stage(rest, blocks, s):
                chunk = jax.tree.map(itemgetter(s // R), blocks)
                return tuple(together(*part) for part in zip(rest, chunk, strict=True))

            h = choose(now.forward >= 0, forward, lambda: nothing)
            sums, dh = choose(now.backward >= 0, backward, lambda: (sums, nothing))
            arrived = lax.ppermute(h, "stage", [(r, (r + 1) % R) for r in range(R)])
            inputs = inputs.at[now.input_arrives].set(arrived)
            arrived = lax.ppermute(dh, "stage", [(r, (r - 1) % R) for r in range(R)])
            cotangents = cotangents.at[now.cotangent_arrives].set(arrived)
            return (inputs, cotangents, sums), None

        nothing = over_rows(jnp.zeros((*x.shape[1:], rest[0].config.n_embd)))
        slots = tuple(over_rows(jnp.zeros((n, *nothing.shape))) for n in slots)
        zeros = (jnp.zeros(()), *jax.tree.map(jnp.zeros_like, (rest[0], blocks[0])))
        (*_, (loss, *gradients)), _ = lax.scan(tick, (*slots, zeros), table)
        gradients, of_blocks = gradients
        return *lax.psum((loss, gradients), "stage"), of_blocks


def add(sums, loss, gradients: GPT, chunk: Int[Array, ""]):
    """The sums with those of one backward of one chunk."""
    rest, of_chunk = apart(gradients)
    total, rest_total, blocks_total = sums
    return (
        total + loss,
        jax.tree.map(jnp.add, rest_total, rest),
        jax.tree.map(lambda sum, one: sum.at[chunk].add(one), blocks_total, of_chunk),
    )


def compute_both(predicate, yes: Callable, no: Callable):
    """`lax.cond` without branching."""
    return jax.tree.map(partial(jnp.where, predicate), yes(), no())


def apart(model: GPT) -> tuple[GPT, Block]:
    """A model without its blocks, and they."""
    return eqx.tree_at(lambda model: model.blocks, model, None), model.blocks


def together(rest: GPT, blocks: Block) -> GPT:
    return eqx.tree_at(lambda model: model.blocks, rest, blocks, is_leaf=lambda x: x is None)


def over_rows(x: Float[Array, "*slots B T D"]) -> Float[Array, "*slots B T D"]:
    """x with its rows cut along the axes that share the batch."""
    return lax.with_sharding_constraint(x, P(*[None] * (x.ndim - 3), ("data", "fsdp")))


# --- the schedule in print ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScheduleOptions:
    """Every option of python -m parallel.pipeline. The comment behind a field is its text in `--help`."""

    program: ClassVar[str] = "-m parallel.pipeline"
    purpose: ClassVar[str] = "Print what each rank of a pipeline does, and when."

    schedule: Literal["gpipe", "1f1b", "interleaved", "classic"] = "1f1b"  # classic: 1F1B of most papers
    stages: Count = 4  # ranks: the size of the mesh's stage axis
    virtual_stages: Count = 1  # chunks of layers on each rank
    microbatches: Count = 8  # gradient_accumulation_steps
    png: Name | None = None  # file to draw the timeline into


def main(argv: list[str]) -> None:
    options = ScheduleOptions(**given(argv, ScheduleOptions))
    schedule = make_schedule(options.schedule, options.stages, options.virtual_stages, options.microbatches)
    print(describe(schedule))
    if options.png:
        try:
            draw(schedule, options.png)
        except (OSError, ValueError) as error:
            raise UserError(f"--png={options.png}: cannot be written: {error}") from None


if __name__ == "__main__":
    command(main)
