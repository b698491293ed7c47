"""Checkpoints of a run: saved while training goes on, whole or not at all, and restored bit for bit.

    out_dir/options.json            the options of the run
    out_dir/checkpoints/<iter>/     one checkpoint, written by Orbax: the arrays of the model and of the
                                    optimizer, and a manifest with the options and the vocabulary

Of a model with adapters these alone are stored; the manifest names the model below, which is loaded anew.

A checkpoint takes its name only once all of it is on disk, so that one interrupted at any moment leaves the
one before it. The last `keep_checkpoints` are kept, and the one of the lowest validation loss. Arrays are
stored by name (`blocks.attn.c_q.weight`), not as objects: restoring runs no code from the checkpoint.
"""

import logging
import math
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from config.command_line import UserError
from config.files import first_line
from model import GPT
from parallel.sharding import leaf_name
from runs.manifest import Manifest, damaged, read_manifest
from training.lora import partition_trainable
from training.state import TrainState

logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax reports each save in a dozen lines


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
            multiprocessing_options=processes_of(together=shared),
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
        """Raise UserError for a state (its shapes and shardings) that could not be saved."""
        if not self.shared and any(addressable_size(x) < x.size for x in jax.tree.leaves(state)):
            raise UserError(
                f"{self.folder} is not the same folder for all machines, so process 0 has to hold the whole "
                "state and save it: let --mesh divide the weights within a machine only, as data:2,fsdp:8 may"
            )

    def latest(self) -> int | None:
        """Return the iteration of the newest checkpoint; None without one."""
        return self.manager.latest_step()

    def iterations(self) -> list[int]:
        """Return the iterations of all checkpoints, in order."""
        return sorted(self.manager.all_steps())

    def delete_all(self) -> None:
        try:
            for iteration in self.iterations():
                self.manager.delete(iteration)
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot be deleted ({error.strerror}): delete it by hand"
            ) from None

    def save(self, state: TrainState, manifest: Manifest, val_loss: float | None = None) -> float:
        """Start to save `state`, which may be donated at once, as the checkpoint of its iteration.

        Return the seconds that the copy of the state took. The rest is written while training goes on.
        """
        start = time.perf_counter()
        if not self.shared:
            if jax.process_index() > 0:
                return 0.0
            state = jax.tree.map(on_host, state)
        model = arrays_by_name(partition_trainable(state.model)[0])
        optimizer = arrays_by_name((state.opt_state, state.step))
        items = ocp.args.Composite(
            model=ocp.args.StandardSave(model),
            optimizer=ocp.args.StandardSave(optimizer),
            manifest=ocp.args.JsonSave(manifest.to_json()),
        )
        metrics = None if val_loss is None else {"val_loss": val_loss}
        with saving(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.folder).free
            needed = sum(x.nbytes for x in (*model.values(), *optimizer.values()))
            if free < needed:  # asked here, because halfway through a save the answer would be less clear
                raise OSError(f"{free / 1e6:,.0f} MB are free, it needs {needed / 1e6:,.0f}")
            self.manager.save(int(state.step), args=items, metrics=metrics)
        return time.perf_counter() - start

    def wait(self) -> None:
        """Return when what was saved is on disk."""
        with saving(self.folder):
            self.manager.wait_until_finished()

    def manifest(self, iteration: int) -> Manifest:
        return read_manifest(self.folder / str(iteration))

    def restore(self, iteration: int, state: TrainState, base: GPT | None = None) -> TrainState:
        """Restore the state saved at `iteration`, whatever the mesh it was saved from.

        `state` has shapes, dtypes and shardings: it says which device gets what. `base` holds the weights
        below the adapters, if there are any.
        """
        weights, none = partition_trainable(state.model)
        restored = self._items(iteration, model=weights, optimizer=(state.opt_state, state.step))
        model = eqx.combine(restored["model"], none if base is None else base)
        return TrainState(model, *restored["optimizer"])

    def restore_model(self, iteration: int, model: GPT, base: GPT | None = None) -> GPT:
        """Restore the model alone, without the optimizer's arrays, which may be twice as large."""
        weights, none = partition_trainable(model)
        return eqx.combine(self._items(iteration, model=weights)["model"], none if base is None else base)

    def _items(self, iteration: int, **trees) -> dict:
        """Restore the named items of a checkpoint, each in the structure of the tree given for it."""
        # A target without a sharding would go to the devices that the run was trained on.
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        trees = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or here), trees
        )
        targets = {name: ocp.args.StandardRestore(arrays_by_name(tree)) for name, tree in trees.items()}
        try:
            arrays = self.manager.restore(iteration, args=ocp.args.Composite(**targets))
            return {name: tree_of_arrays(arrays[name], tree) for name, tree in trees.items()}
        except Exception as error:  # whatever a damaged file makes Orbax or TensorStore say
            raise damaged(self.folder / str(iteration), error) from None


def processes_of(together: bool) -> ocp.options.MultiprocessingOptions:
    """Have Orbax wait for all processes, or for none but this one."""
    if together:
        return ocp.options.MultiprocessingOptions()
    i = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=i, active_processes={i}, barrier_sync_key_prefix=str(i)
    )


def on_host(x: jax.Array) -> np.ndarray:
    """Copy all of an array to the host of this process, which holds every part of it."""
    whole = np.empty(x.shape, x.dtype)
    for shard in x.addressable_shards:
        whole[shard.index] = shard.data
    return whole


def addressable_size(x: jax.Array | jax.ShapeDtypeStruct) -> int:
    """Return how many of an array's elements the devices of this process hold."""
    parts = {str(index) for index in x.sharding.addressable_devices_indices_map(x.shape).values()}
    return len(parts) * math.prod(x.sharding.shard_shape(x.shape))


def arrays_by_name(tree) -> dict[str, jax.Array]:
    """Put the arrays of a tree into one flat dict, each under its path."""
    return {leaf_name(path): x for path, x in jax.tree.leaves_with_path(tree)}


def tree_of_arrays(arrays: dict[str, jax.Array], tree):
    """Undo `arrays_by_name`, in the structure of `tree`."""
    return jax.tree.unflatten(jax.tree.structure(tree), [arrays[name] for name in arrays_by_name(tree)])


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
