"""Reading a data set: how it is found, which batches it gives, and which files are refused."""

import json
import pickle
import shutil
import textwrap
from dataclasses import replace

import numpy as np
import pytest

from data import registry, token_files
from data.batches import Batches
from data.meta import Meta, load_meta, parse_meta
from data.registry import dataset_dir, prepare_if_missing
from data.token_files import DataChanged, Dataset
from data.tokenizer import CharTokenizer
from data.writer import write_dataset
from tests.damage import assert_named
from tests.helpers import refusal

SYMBOLS = "".join(chr(0x4E00 + i) for i in range(1000))
CHAR = {"type": "char", "symbols": SYMBOLS[:3]}


@pytest.fixture
def dataset(tmp_path):
    """103 train and 50 val tokens; the token at position p is p, so that a window shows where it starts."""
    folder = tmp_path / "counting"
    write_dataset(folder, np.arange(103), np.arange(50), CharTokenizer(SYMBOLS), "a test")
    return folder


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    """A data/ folder of its own for tests that look up names."""
    monkeypatch.setattr(registry, "DATA", tmp_path / "data")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def batches(dataset, split="train", batch_size=4, block_size=8, seed=1, sampling="random"):
    return Batches(Dataset(str(dataset)), split, batch_size, block_size, seed, sampling)


def edit_meta(folder, **changes):
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | changes))


# Batches


@pytest.mark.parametrize("sampling", ["random", "epoch"])
def test_targets_are_the_inputs_one_token_later(dataset, sampling):
    draw = batches(dataset, sampling=sampling)
    for i in range(20):
        x, y = draw(i)
        for array in (x, y):
            assert array.shape == (4, 8) and array.dtype == np.int32 and array.flags.c_contiguous
        np.testing.assert_array_equal(x, x[:, :1] + np.arange(8))
        np.testing.assert_array_equal(y, x + 1)


@pytest.mark.parametrize("sampling", ["random", "epoch"])
def test_a_batch_depends_on_seed_split_and_i_and_on_nothing_else(dataset, sampling):
    forwards, backwards = (batches(dataset, sampling=sampling) for _ in range(2))
    there = [forwards(i)[0] for i in range(30)]
    back = [backwards(i)[0] for i in reversed(range(30))][::-1]
    np.testing.assert_array_equal(there, back)
    assert len({x.tobytes() for x in there}) == 30
    assert not np.array_equal(there, [batches(dataset, seed=2, sampling=sampling)(i)[0] for i in range(30)])


def test_the_splits_are_read_from_their_own_files_in_their_own_order(tmp_path):
    write_dataset(tmp_path, np.arange(50), np.arange(50, 100), CharTokenizer(SYMBOLS), "a test")
    train, val = batches(tmp_path, "train")(0)[0], batches(tmp_path, "val")(0)[0]
    assert train.max() < 50 <= val.min()
    assert not np.array_equal(train, val - 50)


def test_random_windows_start_anywhere_they_fit(dataset):
    draw = batches(dataset, batch_size=64)
    starts = {int(x[0]) for i in range(50) for x in draw(i)[0]}
    assert starts == set(range(103 - 8))


@pytest.mark.parametrize("batch_size", [1, 5, 12, 30])  # 12 windows: whole epochs, borders inside, several
def test_every_window_comes_once_per_epoch(dataset, batch_size):
    draw = batches(dataset, batch_size=batch_size, sampling="epoch")
    starts = np.concatenate([draw(i)[0][:, 0] for i in range(5 * 12)])
    epochs = starts[: len(starts) // 12 * 12].reshape(-1, 12)
    for epoch in epochs:
        assert sorted(epoch) == list(range(0, 96, 8))
    assert len({epoch.tobytes() for epoch in epochs}) > len(epochs) // 2  # shuffled anew
    assert draw.epoch(0) == 0
    assert draw.epoch(24) == pytest.approx(24 * batch_size / 12)


def test_a_split_of_exactly_one_window(tmp_path):
    write_dataset(tmp_path, np.arange(9), [0], CharTokenizer(SYMBOLS), "a test")
    for sampling in ("random", "epoch"):
        x, y = batches(tmp_path, sampling=sampling)(3)
        np.testing.assert_array_equal(x, [list(range(8))] * 4)
        np.testing.assert_array_equal(y, x + 1)


@pytest.mark.parametrize("batch_size, n_batches", [(5, 3), (4, 4), (12, 2), (13, 1), (50, 1)])
def test_the_whole_split_in_order_each_token_a_target_once(dataset, batch_size, n_batches):
    passed = list(batches(dataset, batch_size=batch_size).every_window())
    assert len(passed) == n_batches
    for x, y in passed:
        assert x.shape == y.shape == (batch_size, 8) and x.dtype == y.dtype == np.int32
        np.testing.assert_array_equal(y[y >= 0], x[y >= 0] + 1)
    x, y = (np.concatenate([batch[k].ravel() for batch in passed]) for k in range(2))
    assert y.tolist() == [*range(1, 103), *[-1] * (n_batches * batch_size * 8 - 102)]  # the filling is last
    assert x.min() >= 0 and x.max() < 103  # and its inputs are tokens like any


@pytest.mark.parametrize("batch_size", [1, 4, 50])
@pytest.mark.parametrize("stride", [1, 3, 8])
def test_overlapping_windows_leave_each_token_enough_context(dataset, stride, batch_size):
    predicted = []
    for x, y in batches(dataset, batch_size=batch_size).every_window(stride):
        assert x.shape == y.shape == (batch_size, 8) and x.dtype == y.dtype == np.int32 and x.min() >= 0
        for row, at in np.argwhere(y >= 0):
            token = y[row, at]
            np.testing.assert_array_equal(x[row, : at + 1], range(token - at - 1, token))
            assert at + 1 > 8 - stride or token <= 8
            predicted.append(token)
    assert predicted == list(range(1, 103))


@pytest.mark.parametrize("n_tokens", [9, 16, 17, 24, 25])
def test_the_last_window_needs_a_token_to_predict(tmp_path, n_tokens):
    write_dataset(tmp_path, np.arange(n_tokens), [0], CharTokenizer(SYMBOLS), "a test")
    draw = batches(tmp_path, batch_size=1, sampling="epoch")
    whole = (n_tokens - 1) // 8
    assert sorted(draw(i)[0][0, 0] for i in range(whole)) == list(range(0, 8 * whole, 8))
    # All the tokens are targets of `every_window`, and no window of it is only filling.
    targets = [y[y >= 0] for _, y in draw.every_window()]
    assert all(len(real) for real in targets)
    np.testing.assert_array_equal(np.concatenate(targets), np.arange(1, n_tokens))


def test_uint32_tokens(tmp_path):
    symbols = "".join(chr(0x10000 + i) for i in range(70000))
    write_dataset(tmp_path, np.arange(69980, 70000), [0], CharTokenizer(symbols), "a test")
    x, y = batches(tmp_path)(0)
    assert x.min() >= 69980 and y.max() <= 69999


# Files that are refused


def test_a_missing_split_is_named(dataset):
    (dataset / "val.bin").unlink()
    assert refusal(batches, dataset, "val").startswith(f"{dataset / 'val.bin'}: no such file")


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda content: b"", "0 bytes of uint16, where"),
        (lambda content: content[:-1], "205 bytes of uint16, where"),
        (lambda content: content[:-2], "204 bytes of uint16, where meta.json says 103 tokens: "),
        (lambda content: content + b"\0\0", "208 bytes of uint16, where meta.json says 103 tokens: "),
    ],
)
def test_a_bin_of_another_size_is_refused_at_open(dataset, damage, says):
    path = dataset / "train.bin"
    path.write_bytes(damage(path.read_bytes()))
    assert refusal(batches, dataset).startswith(f"{path}: {says}")
    batches(dataset, "val")  # the other split is still good


def test_ids_are_checked_as_they_are_drawn(dataset):
    """A large file is not read when it is opened, and it may change after that."""
    edit_meta(dataset, vocab_size=60, sha256={})
    draw = batches(dataset, batch_size=1, sampling="epoch")
    outcomes = []
    for i in range(12):
        try:
            outcomes.append(int(draw(i)[1].max()))
        except DataChanged as error:
            assert str(error).startswith(f"{dataset / 'train.bin'}: token id ")
    assert sorted(outcomes) == [8, 16, 24, 32, 40, 48, 56]
    assert "does not fit vocab_size 60" in refusal(lambda: list(draw.every_window()))


@pytest.mark.parametrize("sampling", ["random", "epoch"])
def test_a_file_that_is_cut_short_while_it_is_read_is_named(dataset, sampling):
    """Without a check the process would be killed as soon as it reads a page that is gone."""
    path = dataset / "train.bin"
    draw = batches(dataset, sampling=sampling)
    passes = draw.every_window()
    draw(0), next(passes)
    with open(path, "r+b") as file:
        file.truncate(0)
    for read in (lambda: draw(1), lambda: next(passes), lambda: next(draw.every_window())):
        assert refusal(read).startswith(f"{path}: the file was cut short")


def test_a_split_shorter_than_a_window_is_refused(dataset):
    batches(dataset, block_size=102)
    assert "fewer than block_size + 1 = 104" in refusal(batches, dataset, block_size=103)


# meta.json


def test_meta_says_what_was_written(dataset):
    meta = load_meta(str(dataset))
    assert meta.sha256.keys() == {"train.bin", "val.bin"}
    assert replace(meta, sha256={}) == Meta(
        1000, {"type": "char", "symbols": SYMBOLS}, "uint16", {"train": 103, "val": 50}
    )


def test_bins_without_meta_are_nanogpts(tmp_path, capsys):
    np.arange(100, dtype="<u2").tofile(tmp_path / "train.bin")
    meta = load_meta(str(tmp_path))
    assert meta == Meta(50304, {"type": "tiktoken", "name": "gpt2"}, "uint16", {})
    assert batches(tmp_path)(0)[0].max() < 100
    assert capsys.readouterr().err.count("no meta.json: assuming GPT-2 tokens") == 2  # read twice
    with open(tmp_path / "train.bin", "ab") as file:
        file.write(b"\0")
    assert "train.bin: 201 bytes of uint16: " in refusal(batches, tmp_path)


def test_a_pickle_is_never_read(tmp_path):
    opened = tmp_path / "opened"

    class Bomb:
        def __reduce__(self):
            return (opened.touch, ())

    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(Bomb()))
    np.arange(100, dtype="<u2").tofile(tmp_path / "train.bin")
    said = refusal(load_meta, str(tmp_path))
    assert "meta.pkl: a pickle can run code" in said and "--source=<the text" in said
    assert not opened.exists()


@pytest.mark.parametrize(
    "changes",
    [{"format": 2}, {"vocab_size": 0}, {"dtype": "float32"}, {"counts": {"train": 3}}, {"shards": [1]}],
)
def test_a_wrong_entry_in_meta_is_refused(dataset, changes):
    edit_meta(dataset, **changes)
    said = refusal(batches, dataset)
    assert said.startswith(f"{dataset / 'meta.json'}: cannot be used (") and "prepare.py" in said


@pytest.mark.parametrize("shards", [{}, {"shards": {"train": [{"file": "train.bin", "tokens": 103}]}}])
def test_any_damage_to_meta_is_one_line(dataset, shards):
    edit_meta(dataset, tokenizer=CHAR, **shards)
    free = ("source", "sha256", "counts", "tokenizer", "shards", "vocab_size")
    said = assert_named(dataset / "meta.json", lambda: batches(dataset)(0), free)
    refused = {what for what, line in said.items() if line is not None}
    assert {"tokenizer is a text", "tokenizer.type is true", "tokenizer.symbols is null"} <= refused
    wrong = {"counts.val is true", "counts.val is a list", "vocab_size is true", "vocab_size is 2^62"}
    assert wrong <= refused
    if shards:
        assert {"shards is null", "shards.train is an empty list", "shards.train is true"} <= refused


@pytest.mark.parametrize("name", ["/etc/passwd", "../other/train.bin", "..", "", "a/b.bin", "a\0", 3, None])
def test_a_shard_outside_of_its_folder_is_refused(dataset, name):
    edit_meta(dataset, shards={"train": [{"file": name, "tokens": 103}]})
    assert refusal(batches, dataset).startswith(f"{dataset / 'meta.json'}: cannot be used (a shard is ")


def flip_a_bit(path):
    whole = bytearray(path.read_bytes())
    whole[100] ^= 1
    path.write_bytes(whole)


@pytest.mark.parametrize("several", [False, True])
def test_a_flipped_bit_of_the_tokens_is_found_and_their_file_named(dataset, several):
    path = dataset / "train.bin"
    if several:  # the split is in two files, as ShardWriter lists them
        shutil.copy(path, path := dataset / "train_00001.bin")
        sha256 = json.loads((dataset / "meta.json").read_text())["sha256"]["train"]
        files = [{"file": name, "tokens": 103, "sha256": sha256} for name in ("train.bin", path.name)]
        edit_meta(dataset, shards={"train": files}, sha256={})
    batches(dataset)
    flip_a_bit(path)
    assert refusal(batches, dataset).startswith(f"{path}: its sha256 is not the one in meta.json")


def test_a_large_file_is_checked_once_and_again_when_it_has_changed(dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(token_files, "READ_ONCE", 100)
    for cache, notes in ((tmp_path / "cache", (1, 0)), ("/dev/null", (1, 1))):  # the second cannot be written
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        for expected in notes:
            batches(dataset)
            assert capsys.readouterr().err.count("is read once to check it") == expected
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flip_a_bit(dataset / "train.bin")
    assert "its sha256 is not" in refusal(batches, dataset)


# Finding and preparing


def test_a_data_set_is_a_name_or_a_path(data_folder, tmp_path, monkeypatch):
    (data_folder / "named").mkdir()
    (tmp_path / "elsewhere" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert dataset_dir("named") == data_folder / "named"
    assert dataset_dir("mine").resolve() == tmp_path / "elsewhere" / "mine"
    assert dataset_dir(str(tmp_path / "elsewhere")) == tmp_path / "elsewhere"
    assert dataset_dir("neither") == data_folder / "neither"
    (tmp_path / "elsewhere" / "named").mkdir()
    assert dataset_dir("named") == data_folder / "named"


def test_a_folder_that_machines_share_comes_first(tmp_path, monkeypatch):
    (tmp_path / "shared" / "shakespeare_char").mkdir(parents=True)
    before = dataset_dir("shakespeare_char")
    monkeypatch.setenv("NANOJAXGPT_DATA", str(tmp_path / "shared"))
    assert dataset_dir("shakespeare_char") == tmp_path / "shared" / "shakespeare_char"
    assert dataset_dir("tinystories") == before.with_name("tinystories")  # which is not there
    assert dataset_dir(str(tmp_path)) == tmp_path


PREPARE = """
    from pathlib import Path
    import numpy as np
    from data.tokenizer import CharTokenizer
    from data.writer import write_dataset
    Path(__file__).with_name("executed").touch()
    SMALL = {small}
    def prepare(folder, source=None):
        tokenizer = CharTokenizer("".join(map(chr, range(40))))
        write_dataset(folder, np.arange(40), np.arange(20), tokenizer, "a test")
"""


def write_prepare(folder, small):
    folder.mkdir()
    (folder / "prepare.py").write_text(textwrap.dedent(PREPARE.format(small=small)))


def test_a_small_data_set_is_prepared_once_and_says_so(data_folder, capsys):
    write_prepare(data_folder / "tiny", small=True)
    prepare_if_missing("tiny")
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "prepare.py" in said
    assert batches("tiny")(0)[0].shape == (4, 8)
    prepare_if_missing("tiny")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("linked", [False, True])
def test_a_script_of_anybody_else_is_not_run(data_folder, tmp_path, linked, monkeypatch):
    """The data set may be named by a checkpoint that somebody sent."""
    write_prepare(tmp_path / "theirs", small=True)
    if linked:
        (data_folder / "mine").symlink_to(tmp_path / "theirs")
    monkeypatch.chdir(tmp_path)
    for name in ["mine"] if linked else [str(tmp_path / "theirs"), "theirs", "../theirs"]:
        said = refusal(prepare_if_missing, name)
        assert f"dataset={name}" in said and "if you trust it, run `python " in said
    assert not (tmp_path / "theirs" / "executed").exists()


@pytest.mark.parametrize("name", ["train.bin", "meta.json"])
def test_a_link_in_a_data_set_is_refused_and_one_to_it_is_good(tiny_data, tmp_path, name):
    (tmp_path / "linked").symlink_to(tiny_data)
    batches(str(tmp_path / "linked"))
    copy = shutil.copytree(tiny_data, tmp_path / "copy")
    (copy / name).unlink()
    (copy / name).symlink_to(tiny_data / name)
    assert f"{copy / name}: cannot be read (a link" in refusal(batches, str(copy))


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "~nobody-of-that-name/data", "\ud800"])
def test_a_data_set_that_can_have_no_folder_is_unknown(name):
    assert "no such data set" in refusal(prepare_if_missing, name)


def test_a_large_data_set_is_not_prepared_unasked(data_folder):
    write_prepare(data_folder / "huge", small=False)
    assert f"run `python {data_folder / 'huge' / 'prepare.py'}` first" in refusal(prepare_if_missing, "huge")
    assert not (data_folder / "huge" / "executed").exists()


def test_an_unknown_data_set_names_the_nearest_and_lists_all(data_folder):
    write_prepare(data_folder / "shakespeare_char", small=True)
    write_prepare(data_folder / "openwebtext", small=False)
    (data_folder / "not_a_data_set").mkdir()
    says = "did you mean shakespeare_char? there are openwebtext, shakespeare_char, or give a path"
    assert says in refusal(prepare_if_missing, "shakespear_char")


def test_a_folder_with_nothing_to_prepare_says_so(tmp_path):
    assert "neither train.bin nor prepare.py" in refusal(prepare_if_missing, str(tmp_path))


def test_a_split_may_have_more_tokens_than_32_bits_count():
    """OpenWebText has 9,035,582,198."""
    counts = {"train": 9_035_582_198, "val": 4_434_897}
    meta = {"format": 1, "vocab_size": 50257, "tokenizer": None, "dtype": "uint16", "counts": counts}
    assert parse_meta(meta).counts == counts
