"""Checkpoints: saved atomically, restored bit for bit, and what is said of damaged or unwritable ones."""

import json
import logging
import resource
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from common.errors import UserError
from config.options import Options
from parallel.mesh import make_mesh
from runs.checkpoint import (
    FORMAT,
    Checkpoints,
    Damaged,
    Manifest,
    checksum,
    checksums,
    latest_manifest,
    quiet,
    read_manifest,
)
from runs.load import load_run
from tests.damage import assert_named
from tests.helpers import assert_same_bits, random_batch, refusal, run_python, saved_iterations, slowly
from training.state import TrainState, create_state, model_config
from training.step import compile_step

V = 11
TINY = replace(
    Options(),
    **dict(n_layer=2, n_head=2, n_embd=16, block_size=8, batch_size=2, gradient_accumulation_steps=1),
    **dict(bias=True, warmup_iters=0, learning_rate=1e-2, unroll=1),
)
TOKENIZER = {"type": "char", "symbols": "abcdefghijk"}
MANIFEST = Manifest(TINY, V, TOKENIZER)


@pytest.fixture(scope="module")
def tiny():
    """The first state of TINY, its compiled step, and what follows the state in a call; none is consumed."""
    state = create_state(model_config(TINY, V), TINY)
    return state, compile_step(state, TINY), random_batch(TINY, V)


def copy(state):
    return jax.tree.map(jnp.copy, state)


def at(state, iteration):
    """The state as if it were that of another iteration."""
    return TrainState(state.model, state.opt_state, jnp.asarray(iteration, jnp.int32))


def assert_same(a, b):
    """Check that two trees are alike in structure and to the bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert_same_bits(a, b)


def save(out_dir, state, *iterations):
    """One checkpoint per iteration, of one manager that is done with them."""
    checkpoints = Checkpoints(str(out_dir), keep=len(iterations))
    for iteration in iterations:
        checkpoints.save(at(state, iteration), MANIFEST, val_loss=2.5)
    checkpoints.wait()
    return checkpoints


# --- saved and restored -------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["muon", *slowly("adamw")])  # muon's state has that of adamw
def test_a_restored_state_is_the_saved_one_to_the_bit_and_trains_on_alike(tmp_path, optimizer):
    options = replace(TINY, optimizer=optimizer)
    first, batch = create_state(model_config(options, V), options), random_batch(options, V)
    step = compile_step(first, options)
    saved, _ = step(first, *batch)
    save(tmp_path, saved, 1)
    checkpoints = Checkpoints(str(tmp_path))  # another one, as in a resumed run
    shapes = eqx.filter_eval_shape(create_state, model_config(options, V), options)
    restored = checkpoints.restore(1, shapes)
    assert_same(restored, saved)
    assert_same(checkpoints.restore_model(1, shapes.model), saved.model)
    assert checkpoints.manifest(1) == MANIFEST
    assert_same(step(restored, *batch), step(saved, *batch))


def test_training_goes_on_while_a_state_is_saved(tmp_path, tiny):
    first, step, batch = tiny
    state = copy(first)
    copies, checkpoints = {}, Checkpoints(str(tmp_path), keep=3)
    for i in range(3):
        copies[i] = copy(state)
        checkpoints.save(state, MANIFEST)
        state, _ = step(state, *batch)  # consumes what is being saved
    checkpoints.wait()
    for i, expected in copies.items():
        assert_same(checkpoints.restore(i, state), expected)


# --- which are kept -----------------------------------------------------------------------------------------


def test_the_last_and_the_best_are_kept(tmp_path, tiny):
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    for i, val_loss in enumerate([3.0, 2.0, 2.5, None, 2.2, None], start=1):
        checkpoints.save(at(tiny[0], i), MANIFEST, val_loss)
    checkpoints.wait()
    assert saved_iterations(tmp_path) == [2, 5, 6] and checkpoints.latest() == 6
    checkpoints = Checkpoints(str(tmp_path), keep=1)  # a resumed run knows which is the best
    checkpoints.save(at(tiny[0], 7), MANIFEST, 2.1)
    checkpoints.wait()
    assert saved_iterations(tmp_path) == [2, 7]
    checkpoints.save(at(tiny[0], 8), MANIFEST, 1.9)
    checkpoints.save(at(tiny[0], 8), MANIFEST)  # has it already, with its loss
    checkpoints.wait()
    assert saved_iterations(tmp_path) == [8]
    assert Checkpoints(str(tmp_path)).loss(8) == 1.9


def test_a_checkpoint_is_found_by_its_iteration_or_as_the_last_or_the_best(tmp_path, tiny):
    checkpoints = Checkpoints(str(tmp_path), keep=9)
    for i, val_loss in enumerate([3.0, 2.0, 2.5, None], start=1):
        checkpoints.save(at(tiny[0], i), MANIFEST, val_loss)
    checkpoints.wait()
    for each in (checkpoints, Checkpoints(str(tmp_path))):  # also another one, as in another command
        assert [each.find(name) for name in ("best", "last", 1, 4)] == [2, 4, 1, 4]
        assert [each.loss(i) for i in (1, 2, 3, 4)] == [3.0, 2.0, 2.5, None]
    checkpoints.save(at(tiny[0], 4), MANIFEST, 1.0)  # is evaluated when the run resumes
    assert checkpoints.find("best") == 4 and checkpoints.loss(4) == 1.0


def test_a_checkpoint_that_there_is_not_is_one_line(tmp_path, tiny):
    none = refusal(Checkpoints(str(tmp_path)).find, "best")
    folder = tmp_path / "checkpoints"
    assert none == f"{folder}: no checkpoint there; train with --out_dir={tmp_path}"
    checkpoints = Checkpoints(str(tmp_path), keep=9)
    for i in (5, 10):
        checkpoints.save(at(tiny[0], i), MANIFEST)
    checkpoints.wait()
    advice = "give --checkpoint=last, or one of [5, 10]"
    assert refusal(checkpoints.find, 7) == f"{folder}: none is of iteration 7: {advice}"
    assert refusal(checkpoints.find, "best") == f"{folder}: none has a validation loss: {advice}"


# --- damaged ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory, tiny):
    out_dir = tmp_path_factory.mktemp("two")
    save(out_dir, tiny[0], 1, 2)
    return out_dir


@pytest.fixture
def copied(two_checkpoints, tmp_path):
    """A copy of the two checkpoints, to be changed."""
    return shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)


def cut_in_half(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def largest_file(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


DAMAGES = {
    "no model": lambda path: shutil.rmtree(path / "model"),
    "half an array": lambda path: cut_in_half(largest_file(path / "model")),
    "half of what describes arrays": lambda path: cut_in_half(
        path / "model" / "array_metadatas" / "process_0"
    ),
    "no index": lambda path: (path / "model" / "manifest.ocdbt").unlink(),
    "no manifest": lambda path: shutil.rmtree(path / "manifest"),
    "half a manifest": lambda path: cut_in_half(path / "manifest" / "metadata"),
    "nothing left": lambda path: (shutil.rmtree(path), path.mkdir()),
}


@pytest.mark.parametrize("content", ['{"val_loss": "x"}', '{"val_loss": NaN}', "[1]", '{"loss": 1}'])
def test_a_loss_that_is_no_number_is_one_line(copied, tmp_path, content):
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "2" / "metrics").mkdir(exist_ok=True)
    (checkpoints / "2" / "metrics" / "metrics").write_text(content)
    with pytest.raises(Damaged, match="2: the checkpoint is damaged .its loss is no finite number"):
        Checkpoints(str(tmp_path)).loss(2)


def test_a_checkpoint_in_the_folder_of_another_iteration_is_damaged(copied, tmp_path, tiny):
    (tmp_path / "checkpoints" / "2").rename(tmp_path / "checkpoints" / "200")
    with pytest.raises(Damaged, match="200: the checkpoint is damaged .it is of iteration 2"):
        Checkpoints(str(tmp_path)).restore(200, tiny[0])


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_still_good(copied, tmp_path, tiny, damage):
    DAMAGES[damage](tmp_path / "checkpoints" / "2")

    def resume():
        checkpoints = Checkpoints(str(tmp_path))
        latest = checkpoints.latest()
        return checkpoints.manifest(latest), checkpoints.restore(latest, tiny[0])

    for load in (resume, lambda: load_run(str(tmp_path))):
        assert refusal(load).startswith(f"{tmp_path / 'checkpoints' / '2'}: the checkpoint is damaged")
    shutil.rmtree(tmp_path / "checkpoints" / "2")  # out of the way, as it says
    manifest, state = resume()
    assert manifest == MANIFEST
    assert_same(state, at(tiny[0], 1))
    assert load_run(str(tmp_path))[2] == 1


@pytest.mark.parametrize("flips", [1, *slowly(3)])
def test_a_flipped_bit_is_found_or_lies_where_nothing_is_read(copied, tmp_path, tiny, flips):
    """Orbax leaves files behind that only writing needs."""
    draw, found = np.random.default_rng(0), 0
    files = sorted((tmp_path / "checkpoints" / "2").glob("*/**/d/*"))
    for path in files:
        whole = path.read_bytes()
        for place in draw.integers(8 * len(whole), size=flips):
            flipped = bytearray(whole)
            flipped[place // 8] ^= 1 << place % 8
            path.write_bytes(flipped)
            try:
                assert_same(Checkpoints(str(tmp_path)).restore(2, tiny[0]), at(tiny[0], 2))
            except Damaged as damage:
                assert f"{tmp_path / 'checkpoints' / '2'}: the checkpoint is damaged" in str(damage)
                found += 1
        path.write_bytes(whole)
    assert found >= 2 * flips  # all those in the model's and the optimizer's arrays


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint32"])
def test_a_checksum_sees_every_bit_and_every_exchange_of_elements(dtype):
    x = np.asarray(jnp.arange(30).reshape(5, 6).astype(dtype))
    first = int(checksum(jnp.asarray(x)))
    for bit in range(8 * x.nbytes):
        y = x.copy()
        y.view(np.uint8).reshape(-1)[bit // 8] ^= 1 << bit % 8
        assert int(checksum(jnp.asarray(y))) != first
    assert int(checksum(jnp.asarray(x[::-1]))) != first and int(checksum(jnp.asarray(x.T))) != first


@pytest.mark.parametrize("x, hashed", {0: 0, 1: 0x514E28B7, 2: 0x30F4C306}.items())
def test_an_element_is_hashed_as_murmurhash3_does(x, hashed):
    assert int(checksum(jnp.uint32(x))) == hashed


def test_a_checksum_is_the_same_on_any_mesh():
    x = jax.random.normal(jax.random.key(0), (8, 16, 4))
    with jax.set_mesh(mesh := make_mesh("fsdp:4,tensor:2")):
        sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, "fsdp", "tensor")))
        assert checksums({"model": {"x": sharded}}) == checksums({"model": {"x": x}})


def test_a_file_that_cannot_be_read_is_no_damage(copied, tmp_path, tiny, monkeypatch):
    largest_file(tmp_path / "checkpoints" / "2" / "model").write_bytes(b"")

    read = Path.read_bytes

    def read_bytes(path):
        if "model" in path.parts:
            raise OSError(5, "Input/output error", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(OSError, match="Input/output error"):  # Damaged would have it moved away
        Checkpoints(str(tmp_path)).restore(2, tiny[0])


def test_a_damaged_optimizer_is_named_but_one_can_sample(copied, tmp_path, tiny):
    shutil.rmtree(tmp_path / "checkpoints" / "2" / "optimizer")
    assert str(tmp_path / "checkpoints" / "2") in refusal(Checkpoints(str(tmp_path)).restore, 2, tiny[0])
    assert_same(load_run(str(tmp_path))[0], tiny[0].model)


def test_a_model_of_another_shape_is_refused(two_checkpoints):
    for other in (replace(TINY, n_embd=32), replace(TINY, n_layer=3)):
        state = eqx.filter_eval_shape(create_state, model_config(other, V), other)
        assert str(two_checkpoints) in refusal(Checkpoints(str(two_checkpoints)).restore, 2, state)


def test_whole_arrays_of_another_dtype_shape_or_structure_are_no_damage(tmp_path, tiny):
    """A run would move a damaged checkpoint away, and all before it."""
    first = at(tiny[0], 1)
    for name in ("wide", "wider", "fewer"):
        (tmp_path / name).mkdir()
    with jax.enable_x64():
        wide = jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, first)
        save(tmp_path / "wide", wide, 1)
    for name in ("wider", "fewer"):
        save(tmp_path / name, first, 1)
    others = {"wide": TINY, "wider": replace(TINY, n_embd=32), "fewer": replace(TINY, bias=False)}
    for name, options in others.items():
        run = Checkpoints(str(tmp_path / name))
        state = eqx.filter_eval_shape(create_state, model_config(options, V), options)
        with pytest.raises(UserError, match="other names, shapes or dtypes") as refused:
            run.restore(1, state)
        assert not isinstance(refused.value, Damaged)


# --- a disk that is full, a process that is killed ----------------------------------------------------------


def test_a_disk_that_fills_up_leaves_the_checkpoint_before(tmp_path, tiny, capfd):
    """A limit on the size of a file stops the writing in the middle, as a full disk does."""
    save(tmp_path, tiny[0], 1)
    checkpoints, wide = Checkpoints(str(tmp_path), keep=1), replace(TINY, n_embd=256)  # several writes fail
    state = at(create_state(model_config(wide, V), wide), 2)
    (tmp_path / "compiled").mkdir()
    save(tmp_path / "compiled", state, 2)  # or JAX would write what it compiles under the limit
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
        try:
            checkpoints.save(state, MANIFEST)
            checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert refusal(fill).startswith(f"{tmp_path / 'checkpoints'}: cannot be read or written")
    assert "Traceback" not in capfd.readouterr().err
    unfinished = [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name != "1"]
    assert unfinished and "2" not in unfinished  # what a killed process leaves, too

    checkpoints = Checkpoints(str(tmp_path))
    assert checkpoints.latest() == 1
    assert_same(checkpoints.restore(1, tiny[0]), at(tiny[0], 1))
    assert load_run(str(tmp_path))[2] == 1
    checkpoints.save(at(tiny[0], 2), MANIFEST)  # the resumed run comes to the same iteration
    checkpoints.wait()
    assert saved_iterations(tmp_path) == [1, 2]  # 1 is the best; nothing unfinished is left


def test_an_out_dir_that_cannot_be_written_is_one_line(tmp_path, tiny):
    (tmp_path / "file").write_text("")
    checkpoints = Checkpoints(str(tmp_path / "file" / "run"))
    assert checkpoints.latest() is None
    assert "file/run" in refusal(checkpoints.save, tiny[0], MANIFEST)


def test_a_save_that_cannot_begin_leaves_nothing_that_holds_the_process(tmp_path, tiny):
    """Orbax's threads would wait for minutes for the folders of a checkpoint."""
    (tmp_path / "checkpoints").symlink_to("/proc/sys")  # where nobody may write, root included
    checkpoints, before = Checkpoints(str(tmp_path)), set(threading.enumerate())
    said = refusal(checkpoints.save, at(tiny[0], 1), MANIFEST)
    assert said.startswith(f"{tmp_path}/checkpoints: cannot be read or written (") and "mend that" in said
    waiting = [thread for thread in set(threading.enumerate()) - before if not thread.daemon]
    assert [thread for thread in waiting if "asyncio" not in thread.name] == []


@pytest.mark.parametrize("error", [TypeError("a mistake"), MemoryError(), jax.errors.JaxRuntimeError("gone")])
def test_what_is_no_fault_of_the_disk_is_not_called_one(tmp_path, error):
    with pytest.raises(type(error)), Checkpoints(str(tmp_path)).working():
        raise error


def test_orbax_is_silenced_only_while_it_works(tmp_path, tiny, monkeypatch):
    def state():
        loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
        return sys.unraisablehook, [(logger.level, logger.disabled) for logger in loggers]

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # an error before has left it silent
    for name in ("absl", "asyncio"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)
    before = state()
    checkpoints = Checkpoints(str(tmp_path))
    assert state() == before
    checkpoints.save(tiny[0], MANIFEST)
    checkpoints.wait()
    checkpoints.restore(0, tiny[0])
    assert state() == before
    with quiet():
        assert state() != before


# --- load_run -----------------------------------------------------------------------------------------------


def test_a_model_is_loaded_with_its_vocabulary_and_iteration(two_checkpoints, tiny, tmp_path):
    model, manifest, iteration = load_run(str(two_checkpoints))
    assert_same(model, tiny[0].model)
    assert (manifest.tokenizer, iteration) == (TOKENIZER, 2)
    assert load_run(str(two_checkpoints), 1)[2] == 1
    assert "no checkpoint" in refusal(load_run, str(tmp_path / "none"))


# A run trained on a second device stands for one trained on a GPU, which a machine without one samples from.
SAVE_ELSEWHERE = """
import json, sys
import jax
from config.options import Options
from runs.checkpoint import Checkpoints
from runs.checkpoint import Manifest
from training.state import create_state, model_config

options = Options.from_json(json.loads(sys.argv[2]), "the test")
state = jax.device_put(create_state(model_config(options, 11), options), jax.devices()[8])
checkpoints = Checkpoints(sys.argv[1])
checkpoints.save(state, Manifest(options, 11, None))
checkpoints.wait()
"""


@pytest.mark.slow
def test_a_model_is_loaded_on_a_machine_without_the_device_it_was_trained_on(tmp_path, tiny):
    nine = dict(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES=9)
    done = run_python("-c", SAVE_ELSEWHERE, tmp_path, json.dumps(vars(TINY)), **nine)
    assert done.returncode == 0, done.stderr
    assert len(jax.devices()) == 8
    assert_same(load_run(str(tmp_path))[0], tiny[0].model)
    assert_same(Checkpoints(str(tmp_path)).restore(0, tiny[0]), tiny[0])


# --- manifests ----------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_keeps_its_own_options_and_the_loss_to_beat():
    ours = replace(MANIFEST, options=replace(TINY, learning_rate=1.0, out_dir="new"))
    going_on = ours.resuming_from(replace(MANIFEST, to_beat=2.5), Path("there"))
    assert going_on == replace(ours, to_beat=2.5)


@pytest.mark.parametrize("written", [None, FORMAT + 1])  # without a number it is the first format
def test_a_manifest_of_another_format_is_refused_in_one_line(copied, tmp_path, written):
    path = tmp_path / "checkpoints" / "2" / "manifest" / "metadata"
    values = json.loads(path.read_text())
    assert values.pop("format") == FORMAT
    path.write_text(json.dumps(values if written is None else values | {"format": written}))
    for read in (latest_manifest, load_run):
        said = refusal(read, str(tmp_path))
        assert said.startswith(f"{tmp_path / 'checkpoints' / '2'}: its manifest has format {written or 1!r}")
        assert "this version reads 6:" in said


def test_any_damage_to_a_manifest_is_one_line(tmp_path):
    path = tmp_path / "2" / "manifest" / "metadata"
    path.parent.mkdir(parents=True)
    changes = {"options": {"n_embd": 16}, "checksums": {"model": {"wte": 1}, "optimizer": {}}}
    path.write_text(json.dumps(MANIFEST.to_json() | changes))
    assert read_manifest(tmp_path / "2").options.n_embd == 16
    # Some values may be others.
    free = ("options", "vocab_size", "tokenizer", "to_beat", "base", "sha256", "score", "checksums")
    assert_named(path, lambda: read_manifest(tmp_path / "2"), free, tmp_path / "2")
