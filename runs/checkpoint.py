"""Checkpoints of a run: saved while training goes on, whole or not at all, and restored bit for bit.

    out_dir/options.json            the options of the run
    out_dir/checkpoints/<iter>/     one checkpoint, written by Orbax: the arrays of the model and of the
                                    optimizer, and a manifest with the options and the vocabulary

Of a model with adapters only these are stored; the manifest names the model below, which is loaded anew.

A checkpoint takes its name only once all of it is on disk, so that one interrupted at any moment leaves the
one before it. The last `keep_checkpoints` are kept, and the one of the lowest validation loss. Arrays are
stored by name (`blocks.attn.c_q.weight`), not as objects: restoring runs no code from the checkpoint. The
manifest has a checksum of each, which is compared whenever the array is restored.
"""

import errno
import functools
import inspect
import json
import logging
import math
import re
import shutil
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax import lax
from jaxtyping import Array, Shaped, UInt32
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from config.command_line import UserError
from config.files import GONE, check_tree, first_line, is_number, read_json, reading, sync, write_whole
from model import GPT
from parallel.hosts import is_of_lost_process, on_process_0
from parallel.sharding import leaf_name
from runs.manifest import Damaged, Manifest, read_manifest
from training.lora import partition_trainable
from training.state import TrainState

logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax reports each save in a dozen lines

val_loss = itemgetter("val_loss")  # of the metrics that Orbax keeps for a checkpoint

# What TensorStore calls bytes that are wrong or missing. Its other errors are of the machine.
CONTENT = ("DATA_LOSS", "NOT_FOUND", "OUT_OF_RANGE", "FAILED_PRECONDITION", "INVALID_ARGUMENT")


class Checkpoints:
    """The checkpoints below `out_dir`. Raises UserError when they cannot be read or written.

    When there are many processes, each writes what its devices hold into one folder. If they do not share it
    (`shared` is False), process 0 writes everything, and every process reads from its own copy of the folder.
    """

    def __init__(self, out_dir: str, keep: int = 1, shared: bool = True):
        self.folder = Path(out_dir).resolve() / "checkpoints"
        self.damaged = self.folder.with_name("damaged")  # where those that are not what was saved are moved
        self.shared = shared
        hide_leftovers_of_orbax()
        best = BestN(get_metric_fn=val_loss, reverse=True, n=1, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy([LatestN(keep), best]),
            best_fn=val_loss,  # has the metrics stored, so that a resumed run knows the best as well
            create=False,
            multiprocessing_options=processes_of(together=shared),
            async_options=ocp.AsyncOptions(post_finalization_callback=self.sync_unfinished),
        )
        check_tree(self.folder)
        check_losses(self.folder)
        items = ("model", "optimizer", "manifest")
        self.manager = ocp.CheckpointManager(self.folder, item_names=items, options=options)
        # Orbax asks JAX for signals by iteration, runs/signals.py by its calls: one would take the other's.
        self.manager.reached_preemption = lambda step: False

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
        """Delete every checkpoint. Raises UserError."""
        try:
            for iteration in self.iterations():
                self.manager.delete(iteration)
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot be deleted ({error.strerror}): delete it by hand"
            ) from None

    def look_again(self) -> None:
        """See what others have done to the folder."""
        self.manager.reload()

    def set_aside(self, iteration: int) -> Path:
        """Move a damaged checkpoint out of the way of the others. Return its new place. Raises UserError."""
        path = self.folder / str(iteration)
        place = self.damaged / f"{iteration}-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            place.parent.mkdir(exist_ok=True)
            if place.parent.is_symlink():
                raise OSError(errno.ELOOP, f"{place.parent} is a link")
            with suppress(FileNotFoundError):  # another process of this run was faster
                path.rename(place)
        except OSError as error:
            raise UserError(f"{path}: is damaged, and cannot be moved away ({error.strerror})") from None
        self.look_again()
        return place

    def save(self, state: TrainState, manifest: Manifest, val_loss: float | None = None) -> float:
        """Start to save `state`, which may be donated at once, as the checkpoint of its iteration.

        Return the seconds that the copy of the state took. The rest is written while training goes on. A
        checkpoint that a run left when it was stopped during its evaluation only gets its `val_loss`.
        """
        start = time.perf_counter()
        if self.latest() == int(state.step):
            metrics = self.folder / str(self.latest()) / "metrics" / "metrics"  # where Orbax keeps them
            on_process_0(write_whole, metrics, json.dumps({"val_loss": val_loss}))
            self.manager.reload()
            return time.perf_counter() - start
        model = arrays_by_name(partition_trainable(state.model)[0])
        optimizer = arrays_by_name((state.opt_state, state.step))
        manifest = replace(manifest, checksums=checksums({"model": model, "optimizer": optimizer}))
        if not self.shared:
            if jax.process_index() > 0:
                return 0.0
            model, optimizer = jax.tree.map(on_host, (model, optimizer))
        items = ocp.args.Composite(
            model=ocp.args.StandardSave(model),
            optimizer=ocp.args.StandardSave(optimizer),
            manifest=ocp.args.JsonSave(manifest.to_json()),
        )
        metrics = None if val_loss is None else {"val_loss": val_loss}
        with saving(self.folder):
            self.folder.mkdir(exist_ok=True)
            free = shutil.disk_usage(self.folder).free
            needed = sum(x.nbytes for x in (*model.values(), *optimizer.values()))
            if free < needed:  # asked here, because halfway through a save the answer would be less clear
                raise OSError(f"{free / 1e6:,.0f} MB are free, it needs {needed / 1e6:,.0f}")
            self.manager.save(int(state.step), args=items, metrics=metrics)
        return time.perf_counter() - start

    def keep(self, state: TrainState, manifest: Manifest) -> None:
        """Save a state that is about to be left, unless it is saved already, and wait until it is on disk."""
        if self.latest() != int(state.step):
            self.save(state, manifest)
        self.wait()

    def wait(self) -> None:
        """Return when what was saved is on disk."""
        with saving(self.folder):
            self.manager.wait_until_finished()
            if self.folder.exists():
                sync(self.folder)

    def sync_unfinished(self) -> None:
        """Bring what is written to disk before it takes its name, so that a loss of power leaves it whole."""
        for folder in self.folder.glob("*.orbax-checkpoint-tmp"):
            for path in (*folder.rglob("*"), folder):
                sync(path)

    def manifest(self, iteration: int) -> Manifest:
        """Return what a checkpoint says of itself, and its own validation loss if that became known later."""
        manifest = read_manifest(path := self.folder / str(iteration))
        with reading(path):
            metrics = self.manager.metrics(iteration)
        return manifest.after_evaluation(val_loss(metrics))[0] if metrics else manifest

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
        # An array without a sharding would go to the devices that the run was trained on.
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        trees = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or here), trees
        )
        wanted = {name: ocp.args.StandardRestore(arrays_by_name(tree)) for name, tree in trees.items()}
        path, expected = self.folder / str(iteration), self.manifest(iteration).checksums or {}
        try:
            arrays = self.manager.restore(iteration, args=ocp.args.Composite(**wanted))
            restored = {name: tree_of_arrays(arrays[name], tree) for name, tree in trees.items()}
            why = first_difference(checksums({name: arrays[name] for name in trees}), expected)
        except Exception as error:  # whatever a damaged file makes Orbax or TensorStore say
            if (unread := why_unread(error)) is not None:
                raise UserError(
                    f"{path}: cannot be read ({unread}): put that right; nothing was changed"
                ) from None
            why = first_line(error)
        if why is not None:
            raise Damaged(path, why)
        return restored


def processes_of(together: bool) -> ocp.options.MultiprocessingOptions:
    """Have Orbax wait for all processes, or for none but this one."""
    if together:
        return ocp.options.MultiprocessingOptions()
    i = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=i, active_processes={i}, barrier_sync_key_prefix=str(i)
    )


def checksums(items: dict[str, dict[str, jax.Array]]) -> dict[str, dict[str, int]]:
    """Return the checksum of every array, by item and name; it is computed where the arrays are."""
    compiled = jax.jit(jax.tree.map, static_argnums=0)
    return jax.tree.map(int, jax.device_get(compiled(checksum, items)))


def first_difference(found: dict[str, dict[str, int]], saved: dict[str, dict[str, int]]) -> str | None:
    """Name the first array whose checksum is not the one saved; None if all are."""
    for item, arrays in found.items():
        for name, checksum in arrays.items():
            if checksum != saved.get(item, {}).get(name):
                return f"{name} of its {item} is not what was saved"
    return None


def checksum(x: Shaped[Array, "..."]) -> UInt32[Array, ""]:
    """Return a checksum of an array's bits that any change of one element changes.

    Each element and its place are hashed by MurmurHash3's last step, which maps no two numbers to one, and
    the hashes are added. A sum of integers does not depend on how the array is sharded.
    """
    h = lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
    stride = 1
    for axis in reversed(range(x.ndim)):
        h += lax.broadcasted_iota(jnp.uint32, x.shape, axis) * jnp.uint32(stride * 0x9E3779B1 % 2**32)
        stride *= x.shape[axis]
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    h ^= h >> 16
    return h.sum(dtype=jnp.uint32)


def on_host(x: jax.Array) -> np.ndarray:
    """Copy an array to the host of this process, which holds every part of it.

    `jax.device_get` refuses an array as soon as another process holds parts of it, too.
    """
    whole = np.empty(x.shape, x.dtype)
    for shard in x.addressable_shards:
        whole[shard.index] = shard.data
    return whole


def why_unread(error: BaseException | None) -> str | None:
    """Say what kept a checkpoint from being read or held; None where its contents are wrong."""
    while error is not None:
        text = str(error).split(" [")[0]  # then TensorStore's own settings follow
        status = re.match("([A-Z_]{5,}): ", text)  # of TensorStore or XLA
        number = re.search(r"\[os_error_code='(\d+)'\]", str(error))
        unread = isinstance(error, (OSError, MemoryError)) and not isinstance(error, GONE)
        unread |= status is not None and status[1] not in CONTENT
        unread |= number is not None and int(number[1]) not in (errno.ENOENT, errno.ENOTDIR)
        if unread:
            return text.rpartition("Error reading ")[2] or "out of memory"
        error = error.__cause__ or error.__context__
    return None


@functools.cache  # once is enough
def hide_leftovers_of_orbax() -> None:
    """Have Python not print what Orbax leaves when it fails: five tracebacks of a closed event loop."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    before = sys.unraisablehook

    def hook(unraisable) -> None:
        closed = str(unraisable.exc_value) == "Event loop is closed"
        if not (closed or inspect.iscoroutine(unraisable.object)):
            before(unraisable)

    sys.unraisablehook = hook


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


def check_losses(folder: Path) -> None:
    """Raise UserError for a checkpoint whose validation loss, which Orbax reads of all, is not a number."""
    for path in folder.glob("*/metrics/metrics"):
        try:
            values = read_json(path)
            why = "val_loss is no number"
            good = isinstance(values, dict) and is_number(values.get("val_loss"))
        except ValueError as error:
            good, why = False, first_line(error)
        if not good and path.exists():  # a run that goes on may have deleted this checkpoint just now
            raise UserError(
                f"{path}: is damaged ({why}): delete this file; the checkpoint is good without it"
            )


@contextmanager
def saving(folder: Path):
    """Turn what goes wrong while saving into a UserError; the loss of another process stays what it is."""
    try:
        yield
    except Exception as error:  # a full disk reaches us as an error of TensorStore's, through Orbax
        if is_of_lost_process(error):
            raise
        why = first_line(error)
        if not folder.parent.is_dir():
            raise UserError(f"{folder.parent}: has been deleted, or moved, under the run") from None
        full = re.search("[Nn]o space|quota|MB are free|File too large", str(error))
        remedy = "make room there" if full else "see that the folder can be written"
        raise UserError(
            f"{folder}: cannot save a checkpoint ({why}): {remedy}; "
            "the checkpoints before it are whole, and --init_from=resume goes on from them"
        ) from None
