"""Checkpoints of a run: saved while training goes on, whole or not at all, and restored bit for bit.

    out_dir/options.json            the options of the run
    out_dir/checkpoints/<iter>/     one checkpoint, written by Orbax: the arrays of the model and of the
                                    optimizer, and a manifest with the options and the vocabulary

A checkpoint takes its name only once all of it is on disk, so that one interrupted at any moment leaves the
one before it. The last `keep_checkpoints` are kept, and the one of the lowest validation loss. Arrays are
stored by name (`blocks.attn.c_attn.weight`), not as objects: restoring runs no code from the checkpoint.
"""

import json
import logging
import math
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from config.options import Options, UserError
from data.tokenizer import end_of_text
from model import GPT
from parallel.sharding import dotted
from training.step import SHAPE, TrainState, model_config, state_shapes

logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax reports each save in a dozen lines


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself, besides its arrays."""

    options: Options
    vocab_size: int
    tokenizer: dict | None  # for data.tokenizer.from_json
    best_val_loss: float | None  # the lowest so far; None before the first evaluation

    def scored(self, val_loss: float) -> tuple["Manifest", bool]:
        """The manifest after an evaluation, and whether that was the best so far."""
        improved = self.best_val_loss is None or val_loss < self.best_val_loss
        return replace(self, best_val_loss=val_loss) if improved else self, improved

    def after(self, saved: "Manifest", path: Path) -> "Manifest":
        """The manifest of a run that goes on from the checkpoint at `path`.

        Raises UserError when this run's options or data contradict the model there, or its optimizer's state.
        """
        for name in (*SHAPE, "optimizer"):
            ours, theirs = getattr(self.options, name), getattr(saved.options, name)
            if ours != theirs:
                raise UserError(
                    f"{name}={ours}, but the checkpoint {path} has {name}={theirs}: "
                    "give the same, or train anew in another --out_dir"
                )
        if (self.vocab_size, self.tokenizer) != (saved.vocab_size, saved.tokenizer):
            raise UserError(
                f"dataset={self.options.dataset} has another vocabulary than the checkpoint {path}: "
                "give the data set that it was trained on, or train anew in another --out_dir"
            )
        return replace(self, best_val_loss=saved.best_val_loss)


class Checkpoints:
    """The checkpoints below `out_dir`. Raises UserError when they cannot be read or written.

    Of many processes each writes what its devices hold into one folder. If they do not share it (`shared` is
    False), process 0 writes everything, and every process reads from its own copy of the folder.
    """

    def __init__(self, out_dir: str, keep: int = 1, shared: bool = True):
        self.folder = Path(out_dir).resolve() / "checkpoints"
        self.shared = shared
        best = BestN(get_metric_fn=val_loss, reverse=True, n=1, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy([LatestN(keep), best]),
            best_fn=val_loss,  # has the metrics stored, so that a resumed run knows the best as well
            create=False,
            multiprocessing_options=processes(together=shared),
        )
        try:
            items = ("model", "optimizer", "manifest")
            self.manager = ocp.CheckpointManager(self.folder, item_names=items, options=options)
        except ValueError as error:  # it reads the validation losses of all checkpoints
            raise UserError(
                f"{self.folder}: a checkpoint's metrics/metrics is damaged ({first_line(error)}): "
                "delete that checkpoint's folder"
            ) from None

    def check(self, state: TrainState) -> None:
        """Raises UserError for a state (its shapes and shardings) that could not be saved."""
        if not self.shared and any(held_here(x) < x.size for x in jax.tree.leaves(state)):
            raise UserError(
                f"{self.folder} is not the same folder for all machines, so process 0 has to hold the whole "
                "state and save it: let --mesh divide the weights within a machine only, as data:2,fsdp:8 may"
            )

    def latest(self) -> int | None:
        """The iteration of the newest checkpoint."""
        return self.manager.latest_step()

    def delete_all(self) -> None:
        try:
            for iteration in self.manager.all_steps():
                self.manager.delete(iteration)
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot be deleted ({error.strerror}): delete it by hand"
            ) from None

    def save(self, state: TrainState, manifest: Manifest, val_loss: float | None = None) -> float:
        """Start to save `state`, which may be donated at once, as the checkpoint of its iteration.

        Returns the seconds that took: to copy the state. It is written while training goes on.
        """
        start = time.perf_counter()
        if not self.shared:
            if jax.process_index() > 0:
                return 0.0
            state = jax.tree.map(on_host, state)
        items = ocp.args.Composite(
            model=ocp.args.StandardSave(by_name(state.model)),
            optimizer=ocp.args.StandardSave(by_name((state.opt_state, state.step))),
            manifest=ocp.args.JsonSave(vars(manifest) | {"options": manifest.options.to_json()}),
        )
        metrics = None if val_loss is None else {"val_loss": val_loss}
        with saving(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            free, needed = shutil.disk_usage(self.folder).free, sum(x.nbytes for x in jax.tree.leaves(state))
            if free < needed:  # asked here, because halfway through a save the answer would be less clear
                raise OSError(f"{free / 1e6:,.0f} MB are free, it needs {needed / 1e6:,.0f}")
            self.manager.save(int(state.step), args=items, metrics=metrics)
        return time.perf_counter() - start

    def wait(self) -> None:
        """Return when what was saved is on disk."""
        with saving(self.folder):
            self.manager.wait_until_finished()

    def manifest(self, iteration: int) -> Manifest:
        path = self.folder / str(iteration) / "manifest" / "metadata"
        try:
            values = json.loads(path.read_text())
            options = Options.from_json(values.pop("options"), origin=str(path))
            return Manifest(options=options, **values)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(path.parents[1], error) from None

    def restore(self, iteration: int, state: TrainState) -> TrainState:
        """The state saved at `iteration`, whatever the mesh it was saved from.

        Of `state` the shapes, dtypes and shardings count: they say which device gets what.
        """
        restored = self._items(iteration, model=state.model, optimizer=(state.opt_state, state.step))
        return TrainState(restored["model"], *restored["optimizer"])

    def restore_model(self, iteration: int, model: GPT) -> GPT:
        """The model alone, without the optimizer's arrays, which may be twice as large."""
        return self._items(iteration, model=model)["model"]

    def _items(self, iteration: int, **trees):
        # A target without a sharding would go to the devices that the run was trained on.
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        trees = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or here), trees
        )
        targets = {name: ocp.args.StandardRestore(by_name(tree)) for name, tree in trees.items()}
        try:
            arrays = self.manager.restore(iteration, args=ocp.args.Composite(**targets))
            return {name: named(arrays[name], tree) for name, tree in trees.items()}
        except Exception as error:  # whatever a damaged file makes Orbax or TensorStore say
            raise damaged(self.folder / str(iteration), error) from None


def load_model(
    out_dir: str, iteration: int | None = None, dtype: str = "auto"
) -> tuple[GPT, dict | None, int]:
    """A run's model, its tokenizer (for data.tokenizer.from_json) and the iteration.

    Without an `iteration`, the latest. `dtype` is that of the matrix products, as in `Options`. Raises
    UserError when there is no such checkpoint, or it is damaged.
    """
    checkpoints = Checkpoints(out_dir)
    saved = sorted(checkpoints.manager.all_steps())
    if not saved:
        raise UserError(f"{checkpoints.folder}: no checkpoint there; train one with --out_dir={out_dir}")
    iteration = saved[-1] if iteration is None else iteration
    if iteration not in saved:
        raise UserError(f"{checkpoints.folder}: no checkpoint {iteration}; there are {saved}")
    manifest = checkpoints.manifest(iteration)
    options = replace(manifest.options, dtype=dtype, attention="auto")  # not as where it was trained
    config = model_config(options, manifest.vocab_size, end_of_text(manifest.tokenizer))
    shapes = state_shapes(config, options)
    return checkpoints.restore_model(iteration, shapes.model), manifest.tokenizer, iteration


def processes(together: bool) -> ocp.options.MultiprocessingOptions:
    """Has Orbax wait for all processes, or for none but this one."""
    i = jax.process_index()
    alone = {"primary_host": i, "active_processes": {i}, "barrier_sync_key_prefix": str(i)}
    return ocp.options.MultiprocessingOptions(**{} if together else alone)


def on_host(x: jax.Array) -> np.ndarray:
    """All of an array, of which this process holds every part."""
    whole = np.empty(x.shape, x.dtype)
    for shard in x.addressable_shards:
        whole[shard.index] = shard.data
    return whole


def held_here(x: jax.Array | jax.ShapeDtypeStruct) -> int:
    """How many of an array's elements the devices of this process hold."""
    parts = {str(index) for index in x.sharding.addressable_devices_indices_map(x.shape).values()}
    return len(parts) * math.prod(x.sharding.shard_shape(x.shape))


def by_name(tree) -> dict[str, jax.Array]:
    """The arrays of a tree in one flat dict, each under its path."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {dotted(path): x for path, x in paths}


def named(arrays: dict[str, jax.Array], tree):
    """`by_name` undone, in the structure of `tree`."""
    return jax.tree.unflatten(jax.tree.structure(tree), [arrays[name] for name in by_name(tree)])


def val_loss(metrics: dict[str, float]) -> float:
    return metrics["val_loss"]


@contextmanager
def saving(folder: Path):
    """Turn what goes wrong while saving into a UserError."""
    try:
        yield
    except Exception as error:  # a full disk reaches us as an error of TensorStore's, through Orbax
        raise UserError(
            f"{folder}: cannot save a checkpoint ({first_line(error)}): make room there; "
            "the checkpoints before it are whole, and --init_from=resume goes on from them"
        ) from None


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0][:200]


def damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: the checkpoint is damaged ({first_line(error)}): delete this folder to use the one before"
    )
