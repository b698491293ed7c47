"""Checkpoints of a run: saved while training goes on, whole or not at all, and restored bit for bit.

    out_dir/options.json            the options of the run
    out_dir/checkpoints/<iter>/     one checkpoint, written by Orbax: the arrays of the model and of the
                                    optimizer, and a manifest with the options and the vocabulary

Of a model with adapters these alone are stored; the manifest names the model below, which is loaded anew.

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
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from config.options import Options, UserError
from data.tokenizer import end_of_text
from hub.weights import open_pretrained
from model import GPT, dotted
from parallel.hosts import on_process_0
from training.lora import fingerprint, merge, trained, without_adapters
from training.manifest import Manifest, damaged, first_line, latest_manifest, read_manifest
from training.metrics import write_whole
from training.step import SHAPE, TrainState, model_config, shape_options, state_around, state_shapes

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
        model, optimizer = by_name(trained(state.model)[0]), by_name((state.opt_state, state.step))
        items = ocp.args.Composite(
            model=ocp.args.StandardSave(model),
            optimizer=ocp.args.StandardSave(optimizer),
            manifest=ocp.args.JsonSave(vars(manifest) | {"options": manifest.options.to_json()}),
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

    def restore(self, iteration: int, state: TrainState) -> TrainState:
        """The state saved at `iteration`, whatever the mesh it was saved from.

        Of `state` the shapes, dtypes and shardings count: they say which device gets what.
        """
        weights, frozen = trained(state.model)
        restored = self._items(iteration, model=weights, optimizer=(state.opt_state, state.step))
        model = eqx.combine(restored["model"], self._frozen(iteration, frozen))
        return TrainState(model, *restored["optimizer"])

    def restore_model(self, iteration: int, model: GPT) -> GPT:
        """The model alone, without the optimizer's arrays, which may be twice as large."""
        weights, frozen = trained(model)
        weights = self._items(iteration, model=weights)["model"]
        return eqx.combine(weights, self._frozen(iteration, frozen))

    def _frozen(self, iteration: int, frozen: GPT) -> GPT:
        """The weights beside which the checkpoint's adapters were trained."""
        if not jax.tree.leaves(frozen):
            return frozen
        base, path = self.manifest(iteration).base, self.folder / str(iteration)
        try:
            model = load_weights(base["init_from"], without_adapters(frozen))
        except UserError as error:
            raise UserError(f"{path}: the model below its adapters cannot be loaded: {error}") from None
        if fingerprint(model) != base["fingerprint"]:
            raise UserError(
                f"{path}: its adapters were trained beside other weights than {base['init_from']} has now: "
                "put those back, or train anew in another --out_dir"
            )
        return named(by_name(model), frozen)

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

    Without an `iteration`, the latest. `dtype` is that of the matrix products, as in `Options`. Adapters are
    merged. Raises UserError when there is no such checkpoint, or it is damaged.
    """
    model, manifest, iteration = load_adapted(out_dir, iteration, dtype)
    return merge(model) if manifest.options.lora_rank else model, manifest.tokenizer, iteration


def load_adapted(
    out_dir: str, iteration: int | None = None, dtype: str = "auto"
) -> tuple[GPT, Manifest, int]:
    """`load_model` with adapters as they are, and the whole manifest."""
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
    return checkpoints.restore_model(iteration, shapes.model), manifest, iteration


def load_weights(init_from: str, shapes: GPT) -> GPT:
    """The weights that `--init_from=<init_from>` means: those of a run's folder, or what `hub` finds.

    They have the dtypes and shardings of `shapes`, whose block_size may be smaller. Raises UserError.
    """
    if not is_run(init_from):
        return open_pretrained(init_from).load(shapes)
    model = named(by_name(load_model(init_from)[0]), shapes)
    return jax.tree.map(lambda x, like: x[: len(like)].astype(like.dtype), model, shapes)


def weights_shape(init_from: str) -> dict[str, Any]:
    """The options that describe the shape and the vocabulary of those weights. Raises UserError."""
    if not is_run(init_from):
        return shape_options(open_pretrained(init_from).config)
    manifest = latest_manifest(init_from)
    shape = {name: getattr(manifest.options, name) for name in SHAPE}
    return shape | {"vocab_size": manifest.vocab_size}


def is_run(folder: str) -> bool:
    return (Path(folder) / "checkpoints").is_dir()


def save_merged(out_dir: str, to: str) -> int:
    """Save the latest checkpoint of the run in `out_dir`, its adapters merged, as an ordinary run in `to`.

    Returns its iteration. Raises UserError.
    """
    model, manifest, iteration = load_adapted(out_dir)
    if not manifest.options.lora_rank:
        raise UserError(f"lora_merge={to}: the run in out_dir={out_dir} has no adapters to merge")
    checkpoints = Checkpoints(to)
    if checkpoints.latest() is not None:
        raise UserError(f"lora_merge={to} holds a run: choose another folder, or delete it")
    options = replace(manifest.options, out_dir=to, lora_rank=0)
    state = state_around(merge(model), options)
    state = TrainState(state.model, state.opt_state, jnp.asarray(iteration, jnp.int32))
    checkpoints.save(state, replace(manifest, options=options, base=None))
    checkpoints.wait()
    on_process_0(write_whole, Path(to) / "options.json", json.dumps(options.to_json(), indent=1) + "\n")
    return iteration


def load_pretrained(name: str, dtype: str = "auto", longest: int | None = None) -> tuple[GPT, dict | None]:
    """The model that `--init_from=<name>` means, and its tokenizer (for data.tokenizer.from_json).

    Without room for more than `longest` tokens, if it is given: a key/value cache is as long as block_size,
    which some models have in the hundred thousands. `dtype` is as in `Options`. Raises UserError.
    """
    pretrained = open_pretrained(name)
    options = replace(Options(), dtype=dtype, **shape_options(pretrained.config))
    options = replace(options, block_size=min(options.block_size, longest or options.block_size))
    config = model_config(options, options.vocab_size)
    return pretrained.load(state_shapes(config, options).model), pretrained.tokenizer()


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
