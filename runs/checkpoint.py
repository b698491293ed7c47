"""Checkpoints of a run and their manifests: written atomically, and restored bit for bit.

Orbax stores arrays by name (`blocks.attn.c_q.weight`), so that restoring runs no stored code. The manifest
beside them has a checksum of each. A LoRA run stores its adapters; the manifest names the base model.
"""

import json
import logging
import math
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax import lax
from jax.experimental.multihost_utils import process_allgather
from jaxtyping import Array, Shaped, UInt32
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN
from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, SkipValidation, TypeAdapter
from pydantic.dataclasses import dataclass

from common.command_line import Checkpoint, spell
from common.errors import UserError
from common.files import GONE, first_line, read_json, refusing, write_whole
from config.options import FIXED, Options
from data.dataset import Split, dataset_dir
from data.tokenizer import check_description, same_tokens
from model import GPT, leaf_name
from parallel.machines import on_process_0
from training.compute import probe
from training.lora import partition_trainable
from training.state import TrainState

val_loss = itemgetter("val_loss")  # of the metrics that Orbax keeps for a checkpoint

FORMAT = 6


Score = Literal["loss", "reward"]  # what an evaluation measures: val/loss or val/reward in metrics.jsonl


def as_loss(score: Score, mean: float) -> float:
    """Return what checkpoints keep, of which the least is the best; or undo that."""
    return 1 - mean if score == "reward" else mean


class Damaged(UserError):
    """A checkpoint is not what was saved; `what` says which and why."""

    def __init__(self, checkpoint: Path, why: str):
        self.checkpoint, self.what = checkpoint, f"{checkpoint}: the checkpoint is damaged ({why})"
        super().__init__(f"{self.what}: move this folder away to use the one before")


@dataclass(frozen=True, config=ConfigDict(strict=True))
class Manifest:
    """Holds what a resumed run needs to know, checked when it is made."""

    options: SkipValidation[Options]
    vocab_size: Annotated[int, Field(gt=0, lt=2**32)]
    tokenizer: Annotated[dict | None, AfterValidator(check_description)]  # for data.tokenizer.from_json
    to_beat: FiniteFloat | None = None  # the loss of iteration 0, which is not saved, if it was evaluated
    score: Score = "loss"  # a loss is nats per token, or 1 - the mean reward
    # The base model of adapters; None without them.
    base: Annotated[dict[Literal["init_from", "fingerprint"], str], Field(min_length=2)] | None = None
    sha256: dict[Split, str] = field(default_factory=dict)  # of the text that the run has learned, if known
    # These belong to the saved arrays: the loss of training/compute.py's `probe`, if finite, which shows a
    # change of the model's code, and checksums by item and name.
    probe: FiniteFloat | None = field(default=None, compare=False)
    checksums: dict[str, dict[str, int]] = field(default_factory=dict, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT} | vars(self) | {"options": vars(self.options)}

    def resuming_from(self, saved: "Manifest", path: Path) -> "Manifest":
        """Return the manifest of this run when it resumes from the checkpoint at `path`. Raises UserError."""
        for name in FIXED:
            check_equal(name, getattr(self.options, name), getattr(saved.options, name), path)
        self.check_vocabulary(saved, path)
        ours, theirs = ((x.seed, x.sampling, x.tokens_per_step) for x in (self.options, saved.options))
        if self.options.sampling == "epoch" and (ours != theirs or self.sha256 != saved.sha256):
            has = f"seed={theirs[0]}, sampling={theirs[1]}, {theirs[2]} tokens a step and its own text"
            raise UserError(  # the iteration would not tell which windows of the epoch are left
                f"sampling=epoch: {path} has {has}: give these, or start from the run with --init_from"
            )
        if self.score != saved.score:
            trained = {"loss": "train.py", "reward": "rl.py"}[saved.score]
            raise UserError(
                f"{path}: go on with {trained}, which trained it, or start from it with --init_from"
            )
        to_beat = saved.to_beat if self.sha256 == saved.sha256 else None  # another text's loss says nothing
        return replace(self, to_beat=to_beat, base=saved.base)

    def check_text(self, dataset: str, sha256: dict[Split, str]) -> None:
        """Raise UserError where `dataset`, this run's own, has become another text, as far as is known."""
        own = dataset_dir(dataset).resolve() == dataset_dir(self.options.dataset).resolve()
        if own and self.sha256 and sha256 and sha256 != self.sha256:
            raise UserError(
                f"dataset={dataset} was prepared anew, of another text than {self.options.out_dir} learned: "
                "put that text back, or give --dataset=<a copy of this one>"
            )

    def check_vocabulary(self, saved: "Manifest", path: Path | str) -> None:
        if not same_tokens(self.tokenizer, saved.tokenizer):
            raise UserError(
                f"dataset={self.options.dataset} has another vocabulary than the checkpoint {path}: "
                "give the data set that it was trained on, or train anew in another --out_dir"
            )
        check_equal("vocab_size", self.vocab_size, saved.vocab_size, path)
        saved.check_text(self.options.dataset, self.sha256)


def check_equal(name: str, ours: Any, theirs: Any, path: Path | str) -> None:
    if ours != theirs:
        raise UserError(
            f"{name}={ours}, but the checkpoint {path} has {name}={theirs}: "
            f"give --{name}={theirs}, or train anew in another --out_dir"
        )


def latest_manifest(out_dir: str) -> Manifest:
    """Read the manifest of a run's newest checkpoint. Raises UserError."""
    if not (saved := checkpoint_folders(out_dir)):
        raise UserError(f"{Path(out_dir).resolve()}/checkpoints: no checkpoint there to start from")
    return read_manifest(saved[0])


def saved_options(out_dir: str) -> Options | None:
    """Return the options of a run's newest checkpoint with a whole manifest; None of a run without any."""
    folders = checkpoint_folders(out_dir)
    for folder in folders:
        with suppress(Damaged):
            return read_manifest(folder).options
    return read_manifest(folders[-1]).options if folders else None  # raises Damaged


def checkpoint_folders(out_dir: str) -> list[Path]:
    """Return the folders of a run's checkpoints, the newest first."""
    folders = [path for path in Path(out_dir).resolve().glob("checkpoints/*") if path.name.isdecimal()]
    return sorted(folders, key=lambda path: int(path.name), reverse=True)


def read_manifest(checkpoint: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises Damaged, UserError for another format, or OSError."""
    path = checkpoint / "manifest" / "metadata"
    try:
        values = dict(read_json(path))
        if (written := values.pop("format", 1)) != FORMAT:
            raise UserError(
                f"{checkpoint}: its manifest has format {spell(written)}, and this version reads {FORMAT}: "
                "use the version that wrote it"
            )
        options = Options.from_json(values.pop("options"), origin=str(path))
        return Manifest(options, **values)
    except (ValueError, TypeError, KeyError) as error:  # pydantic's is a ValueError
        raise Damaged(checkpoint, first_line(error)) from None


@contextmanager
def quiet() -> Generator[None]:
    """Within, silence what Orbax logs of a damaged file, and the coroutines that it drops when it fails.

    After an error all stays silent: its threads report later.
    """
    hook, loggers = sys.unraisablehook, [logging.getLogger(name) for name in ("absl", "asyncio")]
    sys.unraisablehook = lambda lost: lost.exc_type is KeyboardInterrupt and hook(lost)
    for logger in loggers:
        logger.disabled = True
    yield
    sys.unraisablehook = hook
    for logger in loggers:
        logger.disabled = False


class Manager(ocp.CheckpointManager):
    def reached_preemption(self, step: int) -> bool:
        """Leave the signals that JAX knows of to runs/process.py: of two handlers one takes the other's."""
        return False


class Checkpoints:
    """The checkpoints in `out_dir`: the last `keep`, and the one with the lowest validation loss.

    Processes that do not share the folder have process 0 write all, and each reads its own copy.
    """

    def __init__(self, out_dir: str, keep: int = 1, shared: bool = True):
        self.folder = Path(out_dir).resolve() / "checkpoints"
        self.shared = shared
        self.saved: int | None = None  # the last iteration that this process saved
        i = jax.process_index()
        alone: Any = dict(primary_host=i, active_processes={i}, barrier_sync_key_prefix=str(i))
        best = BestN(get_metric_fn=val_loss, reverse=True, n=1, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy([LatestN(keep), best]),
            best_fn=val_loss,  # so that the metrics are stored
            best_mode="min",
            create=False,
            # Otherwise Orbax's threads wait for minutes if a folder cannot be made.
            async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            multiprocessing_options=ocp.options.MultiprocessingOptions(**({} if shared else alone)),
        )
        for checkpoint in checkpoint_folders(out_dir):  # Orbax reads each loss, and names none
            try:
                with suppress(OSError):  # one that was not measured has no file
                    json.loads((checkpoint / "metrics" / "metrics").read_bytes())
            except (ValueError, RecursionError) as error:
                raise Damaged(checkpoint, f"its loss: {error}") from None
        items = ("model", "optimizer", "manifest")
        with self.working():
            self.manager = Manager(self.folder, item_names=items, options=options)

    @contextmanager
    def working(self) -> Generator[None]:
        """Within, Orbax logs nothing, and a disk that fails raises UserError."""
        what = f"{self.folder}: cannot be read or written"
        # TensorStore reports the errors of a disk as ValueErrors.
        with quiet(), refusing(what, "mend that, and start again", OSError, ValueError):
            yield

    def latest(self) -> int | None:
        return self.manager.latest_step()

    def iterations(self) -> list[int]:
        return sorted(self.manager.all_steps())

    def of_text(self, sha256: dict[Split, str]) -> list[int]:
        """Return the iterations whose losses are of this text; damaged checkpoints are left out."""
        found = []
        for iteration in self.iterations():
            with suppress(Damaged):
                if self.manifest(iteration).sha256 == sha256:
                    found.append(iteration)
        return found

    def find(self, checkpoint: Checkpoint) -> int:
        """Return the iteration of a checkpoint that there is. Raises UserError."""
        if not (saved := self.iterations()):
            raise UserError(f"{self.folder}: no checkpoint there; train with --out_dir={self.folder.parent}")
        iteration = {"last": self.latest, "best": self.best}.get(checkpoint, lambda: checkpoint)()
        if iteration not in saved:
            lacks = "has a validation loss" if checkpoint == "best" else f"is of iteration {checkpoint}"
            raise UserError(f"{self.folder}: none {lacks}: give --checkpoint=last, or one of {saved}")
        return iteration

    def best(self) -> int | None:
        """Return the iteration with the lowest validation loss. Raises Damaged where one is no number."""
        losses = {i: loss for i in self.iterations() if (loss := self.loss(i)) is not None}
        return min(losses, key=losses.__getitem__, default=None)

    def delete_all(self) -> None:
        with self.working():
            for iteration in self.iterations():
                self.manager.delete(iteration)

    @staticmethod
    def set_aside(checkpoint: Path) -> Path:
        """Move a damaged checkpoint to `damaged`. Return its new path. Raises OSError."""
        place = checkpoint.parent.with_name("damaged") / f"{checkpoint.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        place.parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # another process of this run was faster
            checkpoint.rename(place)
        return place

    def save(self, state: TrainState, manifest: Manifest, val_loss: float | None = None) -> None:
        """Start to save `state`, which may be donated at once.

        One that is saved already, by a run that stopped in its evaluation, gets a `val_loss` alone.
        """
        self.wait()
        if int(state.step) in (self.saved, self.latest()):
            if val_loss is not None:
                path = self.folder / str(int(state.step)) / "metrics" / "metrics"
                on_process_0(write_whole, path, json.dumps({"val_loss": val_loss}))
                self.manager.reload()
            return
        self.saved = int(state.step)
        model = arrays_by_name(partition_trainable(state.model)[0])
        optimizer = arrays_by_name((state.opt_state, state.step))
        probed = float(probe(state.model))
        manifest = replace(
            manifest,
            probe=probed if math.isfinite(probed) else None,
            checksums=checksums({"model": model, "optimizer": optimizer}),
        )
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
        with self.working():
            self.folder.mkdir(exist_ok=True)
            self.manager.save(int(state.step), args=items, metrics=metrics)

    def wait(self) -> None:
        with self.working():
            self.manager.wait_until_finished()

    def manifest(self, iteration: int) -> Manifest:
        return read_manifest(self.folder / str(iteration))

    def loss(self, iteration: int) -> float | None:
        """Return a checkpoint's validation loss, if it was measured."""
        if not (metrics := self.manager.metrics(iteration)):
            return None
        try:
            return TypeAdapter(FiniteFloat).validate_python(val_loss(metrics), strict=True)
        except (ValueError, TypeError, KeyError):
            raise Damaged(self.folder / str(iteration), "its loss is no finite number") from None

    def restore(self, iteration: int, state: TrainState, base: GPT | None = None) -> TrainState:
        """Restore a state, saved on whatever mesh, in the shapes and shardings of `state`."""
        weights, none = partition_trainable(state.model)
        restored = self._restore(iteration, model=weights, optimizer=(state.opt_state, state.step))
        state = TrainState(eqx.combine(restored["model"], base or none), *restored["optimizer"])
        if int(state.step) != iteration:
            raise Damaged(self.folder / str(iteration), f"it is of iteration {int(state.step)}")
        return state

    def restore_model(self, iteration: int, model: GPT, base: GPT | None = None) -> GPT:
        weights, none = partition_trainable(model)
        return eqx.combine(self._restore(iteration, model=weights)["model"], base or none)

    def _restore(self, iteration: int, **trees) -> dict:
        """Restore arrays by their trees' names. Raises Damaged, UserError, or OSError for a read error."""
        path = self.folder / str(iteration)
        saved = self.manifest(iteration).checksums
        wanted = {item: arrays_by_name(tree) for item, tree in trees.items()}
        try:
            with quiet():
                if any(saved_shapes(path / item, saved[item]) != shapes(wanted[item]) for item in wanted):
                    raise UserError(
                        f"{path}: its arrays have other names, shapes or dtypes than here (float32, also "
                        "under JAX_ENABLE_X64): go on with the version that wrote it"
                    )
                args = {item: ocp.args.StandardRestore(like) for item, like in wanted.items()}
                arrays = dict(self.manager.restore(iteration, args=ocp.args.Composite(**args)).items())
            found = checksums(arrays)
            wrong = [name for item in found for name in found[item] if found[item][name] != saved[item][name]]
        # There is too little memory, or a process is lost.
        except (UserError, MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:  # a damaged file makes Orbax and TensorStore raise many kinds
            check_readable(path)
            raise Damaged(path, first_line(error)) from None
        if wrong:
            raise Damaged(path, f"{wrong[0]} is not what was saved")
        return {item: tree_of_arrays(arrays[item], tree) for item, tree in trees.items()}


def saved_shapes(item: Path, checksums: dict[str, int]) -> dict[str, tuple]:
    """Return the shapes and dtypes in an item of a checkpoint. Raises ValueError for others than it saved."""
    saved: Any = ocp.StandardCheckpointer().metadata(item).item_metadata
    if saved.tree.keys() != checksums.keys():
        raise ValueError("it has not the arrays that were saved")
    return shapes(saved.tree)


def shapes(arrays: dict[str, Any]) -> dict[str, tuple]:
    return {name: (tuple(x.shape), x.dtype) for name, x in arrays.items()}


def check_readable(folder: Path) -> None:
    """Raise OSError where the disk or permissions keep a file from being read, which is no damage to it."""
    with suppress(*GONE):
        for path in folder.rglob("*"):
            if not path.is_dir():
                path.read_bytes()


def checksums(items: dict[str, dict[str, jax.Array]]) -> dict[str, dict[str, int]]:
    """Return the checksum of every array, by item and name, computed where the arrays are."""
    computed = jax.jit(jax.tree.map, static_argnums=0)(checksum, items)
    return jax.tree.map(int, jax.device_get(computed))


def checksum(x: Shaped[Array, "..."]) -> UInt32[Array, ""]:
    """Sum the hashes of all elements, each with its position, by MurmurHash3's bijective last step.

    The sum is the same on any mesh, and any change of one element changes it.
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


def arrays_by_name(tree) -> dict[str, jax.Array]:
    return {leaf_name(path): x for path, x in jax.tree.leaves_with_path(tree)}


def tree_of_arrays(arrays: dict[str, jax.Array], tree):
    """Undo `arrays_by_name`."""
    return jax.tree.unflatten(jax.tree.structure(tree), [arrays[name] for name in arrays_by_name(tree)])
