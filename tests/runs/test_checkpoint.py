"""Checkpoints: saved atomically, restored bit for bit, and what is said of damaged or unwritable ones."""

import json
import resource
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from common.errors import UserError
from config.options import Options
from runs.checkpoint import FORMAT, Checkpoints, Damaged, Manifest, checksum, latest_manifest, read_manifest
from runs.load import load_run
from tests.damage import assert_named
from tests.helpers import assert_same_bits, refusal, run_python, saved_iterations, slowly
from training.state import TrainState, model_config, state_shapes

V = 11
TINY = Options(
    **dict(n_layer=2, n_head=2, n_embd=16, block_size=8, batch_size=2, gradient_accumulation_steps=1),
    **dict(bias=True, warmup_iters=0, learning_rate=1e-2, unroll=1),
)
TOKENIZER = {"type": "char", "symbols": "abcdefghijk"}
MANIFEST = Manifest(TINY, V, TOKENIZER)


def shapes(**changes):
    options = replace(TINY, **changes)
    return state_shapes(model_config(options, V), options)


def new_state(**changes):
    """A state as training may come to: random, as moments of zero look alike."""
    draw = np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(9 * draw.normal(size=x.shape), x.dtype), shapes(**changes))


@pytest.fixture(scope="module")
def first():
    return new_state()


def at(state, iteration):
    """The state as if it were that of another iteration."""
    return TrainState(state.model, state.opt_state, jnp.asarray(iteration, jnp.int32))


def save(out_dir, state, losses, keep=9):
    """Save one checkpoint per iteration in `losses`, with its loss or None. Return their manager."""
    Path(out_dir).mkdir(exist_ok=True)
    checkpoints = Checkpoints(str(out_dir), keep)
    for iteration, val_loss in losses.items():
        checkpoints.save(at(state, iteration), MANIFEST, val_loss)
    checkpoints.wait()
    return checkpoints


def test_a_restored_state_is_the_saved_one_to_the_bit(tmp_path):
    saved, like = new_state(optimizer="muon"), shapes(optimizer="muon")  # with all that AdamW's has
    save(tmp_path, saved, {1: None})
    checkpoints = Checkpoints(str(tmp_path))  # another one, as in a resumed run
    assert_same_bits(checkpoints.restore(1, like), at(saved, 1))
    assert_same_bits(checkpoints.restore_model(1, like.model), saved.model)
    assert checkpoints.manifest(1) == MANIFEST


def test_training_goes_on_while_a_state_is_saved(tmp_path, first):
    step = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    state = at(jax.tree.map(jnp.copy, first), 0)
    copies, checkpoints = {}, Checkpoints(str(tmp_path), keep=3)
    for i in range(3):
        copies[i] = jax.tree.map(jnp.copy, state)
        checkpoints.save(state, MANIFEST)
        state = step(state)  # consumes what is being saved
    checkpoints.wait()
    for i, expected in copies.items():
        assert_same_bits(checkpoints.restore(i, state), expected)


def test_the_last_and_the_best_are_kept(tmp_path, first):
    save(tmp_path, first, {1: 3.0, 2: 2.0, 3: 2.5, 4: None, 5: 2.2, 6: None}, keep=2)
    assert saved_iterations(tmp_path) == [2, 5, 6]
    save(tmp_path, first, {7: 2.1}, keep=1)  # a resumed run knows which is the best
    assert saved_iterations(tmp_path) == [2, 7]
    checkpoints = save(tmp_path, first, {8: 1.9}, keep=1)
    checkpoints.save(at(first, 8), MANIFEST)  # has it already, with its loss
    checkpoints.wait()
    assert saved_iterations(tmp_path) == [8]
    assert Checkpoints(str(tmp_path)).loss(8) == 1.9


def test_a_checkpoint_is_found_by_its_iteration_or_as_the_last_or_the_best(tmp_path, first):
    checkpoints = save(tmp_path, first, {1: 3.0, 2: 2.0, 3: None})
    for each in (checkpoints, Checkpoints(str(tmp_path))):  # also another one, as in another command
        assert [each.find(name) for name in ("best", "last", 1, 3)] == [2, 3, 1, 3]
        assert [each.loss(i) for i in (1, 2, 3)] == [3.0, 2.0, None]
    checkpoints.save(at(first, 3), MANIFEST, 1.0)  # is evaluated when the run resumes
    assert checkpoints.find("best") == 3 and checkpoints.loss(3) == 1.0


def test_a_checkpoint_that_there_is_not_is_one_line(tmp_path, first):
    assert "no checkpoint there to start from" in refusal(latest_manifest, str(tmp_path))
    none = refusal(Checkpoints(str(tmp_path)).find, "best")
    folder = tmp_path / "checkpoints"
    assert none == f"{folder}: no checkpoint there; train with --out_dir={tmp_path}"
    checkpoints = save(tmp_path, first, {5: None, 10: None})
    advice = "give --checkpoint=last, or one of [5, 10]"
    assert refusal(checkpoints.find, 7) == f"{folder}: none is of iteration 7: {advice}"
    assert refusal(checkpoints.find, "best") == f"{folder}: none has a validation loss: {advice}"


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory, first):
    out_dir = tmp_path_factory.mktemp("two")
    save(out_dir, first, {1: 2.5, 2: 2.5})
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
    "half of what describes arrays": lambda path: cut_in_half(path / "model/array_metadatas/process_0"),
    "no index": lambda path: (path / "model" / "manifest.ocdbt").unlink(),
    "no manifest": lambda path: shutil.rmtree(path / "manifest"),
    "nothing left": lambda path: (shutil.rmtree(path), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_still_good(copied, first, damage):
    DAMAGES[damage](copied / "checkpoints" / "2")

    def resume():
        checkpoints = Checkpoints(str(copied))
        latest = checkpoints.latest()
        return checkpoints.manifest(latest), checkpoints.restore(latest, first)

    for load in (resume, lambda: load_run(str(copied))):
        assert refusal(load).startswith(f"{copied / 'checkpoints' / '2'}: the checkpoint is damaged")
    shutil.rmtree(copied / "checkpoints" / "2")  # out of the way, as it says
    manifest, state = resume()
    assert manifest == MANIFEST
    assert_same_bits(state, at(first, 1))


def test_a_loss_that_is_no_number_or_cannot_be_read_names_its_checkpoint(copied):
    path = copied / "checkpoints" / "2" / "metrics" / "metrics"
    for content in ('{"val_loss": "x"}', '{"val_loss": NaN}', "[1]", '{"loss": 1}'):
        path.write_text(content)
        for read, which in ((Checkpoints.loss, 2), (Checkpoints.find, "best")):
            with pytest.raises(Damaged, match="2: the checkpoint is damaged .its loss is no finite number"):
                read(Checkpoints(str(copied)), which)
    path.write_text("")
    with pytest.raises(Damaged, match="2: the checkpoint is damaged .its loss: "):
        Checkpoints(str(copied))


def test_a_checkpoint_in_the_folder_of_another_iteration_is_damaged(copied, first):
    (copied / "checkpoints" / "2").rename(copied / "checkpoints" / "200")
    with pytest.raises(Damaged, match="200: the checkpoint is damaged .it is of iteration 2"):
        Checkpoints(str(copied)).restore(200, first)


@pytest.mark.parametrize("flips", [1, *slowly(3)])
def test_a_flipped_bit_is_found_or_lies_where_nothing_is_read(copied, first, flips):
    """Orbax leaves files behind that only writing needs."""
    draw, found = np.random.default_rng(0), 0
    for path in sorted((copied / "checkpoints" / "2").glob("*/**/d/*")):
        whole = path.read_bytes()
        for place in draw.integers(8 * len(whole), size=flips):
            flipped = bytearray(whole)
            flipped[place // 8] ^= 1 << place % 8
            path.write_bytes(flipped)
            try:
                assert_same_bits(Checkpoints(str(copied)).restore(2, first), at(first, 2))
            except Damaged as damage:
                assert f"{copied / 'checkpoints' / '2'}: the checkpoint is damaged" in str(damage)
                found += 1
        path.write_bytes(whole)
    assert found >= 2 * flips  # all those in the model's and the optimizer's arrays


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint32"])
def test_a_checksum_sees_every_bit_and_every_exchange_of_elements(dtype):
    x = np.asarray(jnp.arange(12).reshape(3, 4).astype(dtype))
    others = [x[::-1], np.concatenate([x[:, 2:], x[:, :2]], 1)]
    for bit in range(8 * x.nbytes):
        y = x.copy()
        y.view(np.uint8).reshape(-1)[bit // 8] ^= 1 << bit % 8
        others.append(y)
    assert (jax.vmap(checksum)(jnp.asarray(others)) != checksum(jnp.asarray(x))).all()


@pytest.mark.parametrize("x, hashed", {0: 0, 1: 0x514E28B7, 2: 0x30F4C306}.items())
def test_an_element_is_hashed_as_murmurhash3_does(x, hashed):
    assert int(checksum(jnp.uint32(x))) == hashed


def test_a_file_that_cannot_be_read_is_no_damage(copied, first):
    path = largest_file(copied / "checkpoints" / "2" / "model")
    path.unlink()
    path.symlink_to("/proc/self/mem")  # which no process can read from its begin
    with pytest.raises(OSError, match="Input/output error"):  # Damaged would have it moved away
        Checkpoints(str(copied)).restore(2, first)


def test_a_damaged_optimizer_is_named_but_one_can_sample(copied, first):
    shutil.rmtree(copied / "checkpoints" / "2" / "optimizer")
    assert str(copied / "checkpoints" / "2") in refusal(Checkpoints(str(copied)).restore, 2, first)
    assert_same_bits(load_run(str(copied))[0], first.model)


def test_whole_arrays_of_another_dtype_shape_or_structure_are_no_damage(tmp_path, first):
    """A run would move a damaged checkpoint away, and all before it."""
    with jax.enable_x64():
        wide = jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, first)
        save(tmp_path / "wide", wide, {1: None})
    save(tmp_path / "same", first, {1: None})
    for name, changes in (("wide", {}), ("same", {"bias": False}), ("same", {"n_embd": 32})):
        run, state = Checkpoints(str(tmp_path / name)), shapes(**changes)
        with pytest.raises(UserError, match="other names, shapes or dtypes") as refused:
            run.restore(1, state)
        assert not isinstance(refused.value, Damaged) and str(tmp_path / name) in str(refused.value)


def test_a_disk_that_fills_up_leaves_the_checkpoint_before(tmp_path, first, capfd):
    """A limit on the size of a file stops the writing in the middle, as a full disk does."""
    save(tmp_path, first, {1: 2.5})
    checkpoints, state = Checkpoints(str(tmp_path), keep=1), at(new_state(n_embd=256), 2)
    save(tmp_path / "compiled", state, {2: None})  # or JAX would write what it compiles under the limit
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))  # several writes fail
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
    assert_same_bits(checkpoints.restore(1, first), at(first, 1))
    checkpoints.save(at(first, 2), MANIFEST)  # the resumed run comes to the same iteration
    checkpoints.wait()
    assert saved_iterations(tmp_path) == [1, 2]  # 1 is the best; nothing unfinished is left


def test_a_save_that_cannot_begin_leaves_nothing_that_holds_the_process(tmp_path, first):
    """Orbax's threads would wait for minutes for the folders of a checkpoint."""
    (tmp_path / "checkpoints").symlink_to("/proc/sys")  # where nobody may write, root included
    checkpoints, before = Checkpoints(str(tmp_path)), set(threading.enumerate())
    said = refusal(checkpoints.save, at(first, 1), MANIFEST)
    assert said.startswith(f"{tmp_path}/checkpoints: cannot be read or written (") and "mend that" in said
    waiting = [thread for thread in set(threading.enumerate()) - before if not thread.daemon]
    assert [thread for thread in waiting if "asyncio" not in thread.name] == []


@pytest.mark.parametrize("error", [TypeError("a mistake"), MemoryError(), jax.errors.JaxRuntimeError("gone")])
def test_what_is_no_fault_of_the_disk_is_not_called_one(tmp_path, error):
    with pytest.raises(type(error)), Checkpoints(str(tmp_path)).working():
        raise error


# A run trained on a ninth device stands for one trained on a GPU, which a machine without one samples from.
SAVE_ELSEWHERE = """
import sys
import jax
from tests.runs.test_checkpoint import new_state, save
save(sys.argv[1], jax.device_put(new_state(), jax.devices()[8]), {0: None})
"""


@pytest.mark.slow
def test_a_model_is_loaded_on_a_machine_without_the_device_it_was_trained_on(tmp_path, first):
    nine = dict(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES=9)
    done = run_python("-c", SAVE_ELSEWHERE, tmp_path, **nine)
    assert done.returncode == 0, done.stderr
    assert len(jax.devices()) == 8
    assert_same_bits(load_run(str(tmp_path))[0], first.model)
    assert_same_bits(Checkpoints(str(tmp_path)).restore(0, first), at(first, 0))


@pytest.mark.parametrize("written", [None, FORMAT + 1])  # without a number it is the first format
def test_a_manifest_of_another_format_is_refused_in_one_line(copied, written):
    path = copied / "checkpoints" / "2" / "manifest" / "metadata"
    values = json.loads(path.read_text())
    assert values.pop("format") == FORMAT
    path.write_text(json.dumps(values if written is None else values | {"format": written}))
    for read in (latest_manifest, load_run):
        said = refusal(read, str(copied))
        assert said.startswith(f"{copied / 'checkpoints' / '2'}: its manifest has format {written or 1!r}")
        assert f"this version reads {FORMAT}:" in said


def test_any_damage_to_a_manifest_is_one_line(tmp_path):
    path = tmp_path / "2" / "manifest" / "metadata"
    path.parent.mkdir(parents=True)
    changes = {"options": {"n_embd": 16}, "checksums": {"model": {"wte": 1}, "optimizer": {}}}
    path.write_text(json.dumps(MANIFEST.to_json() | changes))
    assert read_manifest(tmp_path / "2").options.n_embd == 16
    # Some values may be others.
    free = ("options", "vocab_size", "tokenizer", "to_beat", "base", "sha256", "score", "probe", "checksums")
    assert_named(path, lambda: read_manifest(tmp_path / "2"), free, tmp_path / "2")
