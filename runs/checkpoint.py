"""Checkpoints of a run: written atomically while training goes on, and restored bit for bit.

    out_dir/options.json            the options of the run
    out_dir/checkpoints/<iter>/     arrays of model and optimizer, and a manifest; written by Orbax

Arrays are stored by name (`blocks.attn.c_q.weight`), so that restoring runs no code of theirs. The manifest
has a checksum of each. A LoRA run stores its adapters; the manifest names the base model.
"""

import errno
import hashlib
import inspect
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax import lax
from jax.experimental.multihost_utils import process_allgather
from jaxtyping import Array, Shaped, UInt32
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from config.command_line import UserError
from config.files import (
    GONE,
    check_tree,
    first_line,
    is_number,
    parse_json,
    read_text,
    reading,
    sync,
    write_whole,
)
from model import GPT
from parallel.hosts import is_of_lost_process, on_process_0
from parallel.sharding import leaf_name
from runs.manifest import Damaged, Manifest, read_manifest
from training.lora import partition_trainable
from training.state import TrainState

# Orbax reports each save in a dozen lines, and its failures in tracebacks.
for name in ("absl", "asyncio"):
    logging.getLogger(name).setLevel(logging.CRITICAL)


def hide_leftovers(unraisable, before=sys.unraisablehook) -> None:
    """Print no tracebacks of the event loop and coroutines that Orbax leaves when it fails."""
    if str(unraisable.exc_value) != "Event loop is closed" and not inspect.iscoroutine(unraisable.object):
        before(unraisable)


sys.unraisablehook = hide_leftovers
val_loss = itemgetter("val_loss")  # of the metrics that Orbax keeps for a checkpoint

# TensorStore's errors for wrong or missing bytes
CONTENT = ("DATA_LOSS", "NOT_FOUND", "OUT_OF_RANGE", "FAILED_PRECONDITION", "INVALID_ARGUMENT")


class Checkpoints:
    """The checkpoints in `out_dir`: the last `keep`, and the one with the lowest validation loss.

    Processes that share the folder each write what their devices hold. Where they do not (`shared` is False),
    process 0 writes everything, and each process reads its own copy. Raises UserError.
    """

    def __init__(self, out_dir: str, keep: int = 1, shared: bool = True):
        self.folder = Path(out_dir).resolve() / "checkpoints"
        self.damaged = self.folder.with_name("damaged")  # where damaged checkpoints are moved
        self.shared = shared
        processes = ocp.options.MultiprocessingOptions()
        if not shared:
            i = jax.process_index()
            processes = ocp.options.MultiprocessingOptions(
                primary_host=i, active_processes={i}, barrier_sync_key_prefix=str(i)
            )
        best = BestN(get_metric_fn=val_loss, reverse=True, n=1, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy([LatestN(keep), best]),
            best_fn=val_loss,  # so that the metrics are stored
            create=False,
            multiprocessing_options=processes,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._sync_unfinished),
        )
        check_tree(self.folder)
        check_losses(self.folder)
        items = ("model", "optimizer", "manifest")
        self.manager = while_a_run_deletes(
            lambda: ocp.CheckpointManager(self.folder, item_names=items, options=options)
        )
        # runs/signals.py asks JAX for signals, too: one would take the other's.
        self.manager.reached_preemption = lambda step: False

    def latest(self) -> int | None:
        """Return the iteration of the newest checkpoint; None without one."""
        return self.manager.latest_step()

    def iterations(self) -> list[int]:
        """Return the iterations of all checkpoints, in order."""
        return sorted(self.manager.all_steps())

    def look_again(self) -> None:
        """Read the folder anew."""
        while_a_run_deletes(self.manager.reload)

    def delete_all(self) -> None:
        """Delete every checkpoint. Raises UserError."""
        with changing(self.folder):
            for iteration in self.iterations():
                self.manager.delete(iteration)

    def set_aside(self, iteration: int) -> Path:
        """Move a damaged checkpoint to the folder `damaged`. Return its new path. Raises UserError."""
        place = self.damaged / f"{iteration}-{time.strftime('%Y%m%d-%H%M%S')}"
        with changing(self.folder):
            self.damaged.mkdir(exist_ok=True)
            if self.damaged.is_symlink():
                raise OSError(errno.ELOOP, f"{self.damaged} is a link")
            with suppress(FileNotFoundError):  # another process of this run was faster
                (self.folder / str(iteration)).rename(place)
        self.look_again()
        return place

    def save(self, state: TrainState, manifest: Manifest, val_loss: float | None = None) -> None:
        """Start to save `state`, which may be donated at once, as the checkpoint of its iteration.

        If a run stopped during its evaluation has left that, only `val_loss` is added. Raises UserError.
        """
        if self.latest() == int(state.step):
            metrics = self.folder / str(self.latest()) / "metrics" / "metrics"  # where Orbax keeps them
            on_process_0(write_whole, metrics, json.dumps({"val_loss": val_loss}))
            return self.look_again()
        model = arrays_by_name(partition_trainable(state.model)[0])
        optimizer = arrays_by_name((state.opt_state, state.step))
        manifest = replace(manifest, checksums=checksums({"model": model, "optimizer": optimizer}))
        if not self.shared:
            model, optimizer = process_allgather((model, optimizer), tiled=True)
            if jax.process_index() > 0:
                return
        items = ocp.args.Composite(
            model=ocp.args.StandardSave(model),
            optimizer=ocp.args.StandardSave(optimizer),
            manifest=ocp.args.JsonSave(manifest.to_json()),
        )
        metrics = None if val_loss is None else {"val_loss": val_loss}
        with changing(self.folder):
            self.folder.mkdir(exist_ok=True)
            self.manager.save(int(state.step), args=items, metrics=metrics)

    def keep(self, state: TrainState, manifest: Manifest) -> None:
        """Save the state of a run that ends, unless it is saved already, and wait until it is on disk."""
        if self.latest() != int(state.step):
            self.save(state, manifest)
        self.wait()

    def wait(self) -> None:
        """Return when what was saved is on disk."""
        with changing(self.folder):
            self.manager.wait_until_finished()
            if self.folder.exists():
                sync(self.folder)

    def _sync_unfinished(self) -> None:
        """Bring a checkpoint to disk before it takes its name: a loss of power may follow."""
        for folder in self.folder.glob("*.orbax-checkpoint-tmp"):
            for path in (*folder.rglob("*"), folder):
                sync(path)

    def manifest(self, iteration: int) -> Manifest:
        """Read a checkpoint's manifest, with its own validation loss if that became known later."""
        manifest = read_manifest(path := self.folder / str(iteration))
        with reading(path):
            metrics = self.manager.metrics(iteration)
        return manifest.after_evaluation(val_loss(metrics))[0] if metrics else manifest

    def restore(self, iteration: int, state: TrainState, base: GPT | None = None) -> TrainState:
        """Restore the state saved at `iteration`, from whatever mesh, in the shapes and shardings of `state`.

        `base` is the model beside the adapters, if any. Raises Damaged, or UserError for a read error.
        """
        weights, none = partition_trainable(state.model)
        restored = self._items(iteration, model=weights, optimizer=(state.opt_state, state.step))
        model = eqx.combine(restored["model"], none if base is None else base)
        return TrainState(model, *restored["optimizer"])

    def restore_model(self, iteration: int, model: GPT, base: GPT | None = None) -> GPT:
        """Restore the model without the optimizer's arrays."""
        weights, none = partition_trainable(model)
        return eqx.combine(self._items(iteration, model=weights)["model"], none if base is None else base)

    def _items(self, iteration: int, **trees) -> dict:
        """Restore items of a checkpoint, each in the structure of its tree."""
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
            found = checksums({name: arrays[name] for name in trees})
        except Exception as error:  # whatever a damaged file makes Orbax or TensorStore say
            if (unread := why_unread(error)) is not None:
                raise UserError(
                    f"{path}: cannot be read ({unread}): put that right; nothing was changed"
                ) from None
            raise Damaged(path, first_line(error)) from None
        for item, sums in found.items():
            for name, checksum in sums.items():
                if checksum != expected.get(item, {}).get(name):
                    raise Damaged(path, f"{name} of its {item} is not what was saved")
        return restored


def checksums(items: dict[str, dict[str, jax.Array]]) -> dict[str, dict[str, int]]:
    """Return the checksum of every array, by item and name, computed where the arrays are."""
    compiled = jax.jit(jax.tree.map, static_argnums=0)
    return jax.tree.map(int, jax.device_get(compiled(checksum, items)))


def checksum(x: Shaped[Array, "..."]) -> UInt32[Array, ""]:
    """Return a checksum of an array's bits, on any mesh, that any change of one element changes.

    It is the sum of the hashes of all elements, each with its place, by MurmurHash3's bijective last step.
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


def fingerprint(model: GPT) -> str:
    """Hash a model's weights, as bfloat16, to know the base model of adapters again."""
    rounded = {name: x.astype(jnp.bfloat16) for name, x in arrays_by_name(model).items()}
    return hashlib.sha256(repr(sorted(checksums({"": rounded})[""].items())).encode()).hexdigest()


def arrays_by_name(tree) -> dict[str, jax.Array]:
    """Put the arrays of a tree into one flat dict, each under its path."""
    return {leaf_name(path): x for path, x in jax.tree.leaves_with_path(tree)}


def tree_of_arrays(arrays: dict[str, jax.Array], tree):
    """Undo `arrays_by_name`, in the structure of `tree`."""
    return jax.tree.unflatten(jax.tree.structure(tree), [arrays[name] for name in arrays_by_name(tree)])


def while_a_run_deletes(look: Callable[[], Any]) -> Any:
    """Have Orbax look into a folder, again where a run that goes on has just deleted what it looked at."""
    for _ in range(9):
        with suppress(FileNotFoundError):
            return look()
    return look()


def check_losses(folder: Path) -> None:
    """Raise UserError for a checkpoint whose validation loss is not a number: Orbax reads them all."""
    for path in folder.glob("*/metrics/metrics"):
        with suppress(*GONE):  # a run that goes on may have deleted this checkpoint just now
            try:
                good = is_number(parse_json(read_text(path))["val_loss"])
            except (ValueError, KeyError, TypeError):
                good = False
            if not good:
                raise UserError(f"{path}: is damaged: delete this file; the checkpoint is good without it")


def why_unread(error: BaseException | None) -> str | None:
    """Say what kept a checkpoint from being read or held; None where its contents are wrong."""
    while error is not None:
        text = str(error).split(" [")[0]  # then TensorStore's own settings follow
        if isinstance(error, (OSError, MemoryError)):
            unread = not isinstance(error, GONE)
        elif number := re.search(r"\[os_error_code='(\d+)'\]", str(error)):
            unread = int(number[1]) not in (errno.ENOENT, errno.ENOTDIR)
        else:
            status = re.match("([A-Z_]{5,}): ", text)  # of TensorStore or XLA
            unread = status is not None and status[1] not in CONTENT
        if unread:
            return text.rpartition("Error reading ")[2] or "out of memory"
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def changing(folder: Path) -> Generator[None]:
    """Turn what goes wrong within into a UserError, but for the loss of another process."""
    try:
        yield
    except Exception as error:  # a full disk is an error of TensorStore's
        if is_of_lost_process(error):
            raise
        raise UserError(
            f"{folder}: cannot be written ({first_line(error)}): make room there, or get the right to write; "
            "its checkpoints are complete, and --init_from=resume goes on from them"
        ) from None
