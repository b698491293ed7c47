"""Reading a data set: how it is found, which batches it gives, and which files are refused."""

import importlib
import json
import pickle
import resource
import shutil
from dataclasses import replace

import numpy as np
import pytest

from data import dataset as dataset_module
from data.dataset import NANOGPT, Batches, Dataset, Meta, dataset_dir, load_meta, prepare_if_missing
from data.tokenizer import CharTokenizer
from data.writer import write_dataset
from tests.damage import assert_named
from tests.helpers import refusal

SYMBOLS = "".join(chr(0x4E00 + i) for i in range(1000))


@pytest.fixture
def dataset(tmp_path):
    """103 train and 50 val tokens; the token at position p is p, so that a window shows where it starts."""
    folder = tmp_path / "counting"
    write_dataset(folder, np.arange(103), np.arange(50), CharTokenizer(SYMBOLS), "a test")
    return folder


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    """A data/ folder of its own for tests that look up names."""
    monkeypatch.setattr(dataset_module, "DATA", tmp_path / "data")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def batches(dataset, split="train", batch_size=4, block_size=8, seed=1, sampling="random"):
    return Batches(Dataset(str(dataset)).tokens(split), batch_size, block_size, seed, sampling)


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
    for other in (dict(seed=2), dict(split="val")):
        draw = batches(dataset, sampling=sampling, **other)
        assert not np.array_equal(there[:5], [draw(i)[0] for i in range(5)])
    assert 40 < max(draw(i)[1].max() for i in range(30)) < 50  # of the validation tokens


def test_random_windows_start_anywhere_they_fit(dataset):
    draw = batches(dataset, batch_size=64)
    starts = {int(x[0]) for i in range(50) for x in draw(i)[0]}
    assert starts == set(range(103 - 8))


@pytest.mark.parametrize("batch_size", [5, 30])  # 12 windows: borders of epochs inside, several of them
def test_every_window_comes_once_per_epoch(dataset, batch_size):
    draw = batches(dataset, batch_size=batch_size, sampling="epoch")
    starts = np.concatenate([draw(i)[0][:, 0] for i in range(5 * 12)])
    epochs = starts[: len(starts) // 12 * 12].reshape(-1, 12)
    for epoch in epochs:
        assert sorted(epoch) == list(range(0, 96, 8))
    assert len({epoch.tobytes() for epoch in epochs}) > len(epochs) // 2  # shuffled anew


@pytest.mark.parametrize("stride, batch_size", [(8, 1), (8, 50), (3, 5), (1, 13)])
def test_the_whole_split_in_order_each_token_a_target_once_with_enough_context(dataset, stride, batch_size):
    predicted = []
    for x, y in batches(dataset, batch_size=batch_size).every_window(stride):
        assert x.shape == y.shape == (batch_size, 8) and x.dtype == y.dtype == np.int32
        assert 0 <= x.min() and x.max() < 103  # the inputs of what fills the last batch are tokens like any
        for row, at in np.argwhere(y >= 0):
            token = y[row, at]
            np.testing.assert_array_equal(x[row, : at + 1], range(token - at - 1, token))
            assert at + 1 > 8 - stride or token <= 8
            predicted.append(token)
    assert predicted == list(range(1, 103))


@pytest.mark.parametrize("n_tokens", [9, 16, 17])
def test_the_last_window_needs_a_token_to_predict(tmp_path, n_tokens):
    write_dataset(tmp_path, np.arange(n_tokens), [0], CharTokenizer(SYMBOLS), "a test")
    assert batches(tmp_path)(3)[0].shape == (4, 8)
    draw = batches(tmp_path, batch_size=1, sampling="epoch")
    whole = (n_tokens - 1) // 8
    assert sorted(draw(i)[0][0, 0] for i in range(whole)) == list(range(0, 8 * whole, 8))
    # All the tokens are targets of `every_window`, and no window of it is only filling.
    targets = [y[y >= 0] for _, y in draw.every_window()]
    assert all(len(real) for real in targets)
    np.testing.assert_array_equal(np.concatenate(targets), np.arange(1, n_tokens))


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda path: path.unlink(), "cannot be read ([Errno 2] No such file"),
        (lambda path: path.write_bytes(b""), "cannot be read ("),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "cannot be read ("),
        (lambda path: path.write_bytes(path.read_bytes()[:-2]), "102 tokens are not the 103 of meta.json"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0\0"), "104 tokens are not the 103"),
    ],
)
def test_a_damaged_bin_is_refused_at_open(dataset, damage, says):
    path = dataset / "train.bin"
    damage(path)
    assert refusal(batches, dataset).startswith(f"{path}: {says}")
    batches(dataset, "val")  # the other split is still good


def test_ids_are_checked_as_they_are_drawn(dataset):
    """A large file is not read when it is opened, and it may change after that."""
    meta = json.loads((dataset / "meta.json").read_text())
    (dataset / "meta.json").write_text(json.dumps(meta | {"vocab_size": 60}))
    draw = batches(dataset, batch_size=50)
    for read in (lambda: draw(0), lambda: list(draw.every_window())):
        assert refusal(read).startswith(f"{dataset / 'train.bin'}: token id ")


def test_a_split_shorter_than_a_window_is_refused(dataset):
    batches(dataset, block_size=102)
    assert "fewer than block_size + 1 = 104" in refusal(batches, dataset, block_size=103)


def test_bins_without_meta_are_nanogpts(tmp_path, capsys):
    np.arange(100, dtype="<u2").tofile(tmp_path / "train.bin")
    assert load_meta(str(tmp_path)) == NANOGPT and NANOGPT.vocab_size == 50304
    assert batches(tmp_path)(0)[0].max() < 100
    assert capsys.readouterr().err.count("no meta.json: assuming GPT-2's tokens") == 2  # read twice
    assert load_meta(str(tmp_path), 50257) == replace(NANOGPT, vocab_size=50257)
    for other in (65, 60000):
        assert load_meta(str(tmp_path), other) == replace(NANOGPT, vocab_size=other, tokenizer=None)
    assert capsys.readouterr().err == ""
    with open(tmp_path / "train.bin", "ab") as file:
        file.write(b"\0")
    assert "train.bin: cannot be read" in refusal(batches, tmp_path)


@pytest.mark.parametrize("vocab_size", [65, 50257, 100_000])
def test_without_meta_the_models_vocab_size_counts(tmp_path, vocab_size, dataset):
    ids = np.arange(vocab_size - 100, vocab_size).clip(0)
    ids.astype("<u2" if vocab_size <= 2**16 else "<u4").tofile(tmp_path / "train.bin")
    tokens = Dataset(str(tmp_path), vocab_size).tokens("train")
    np.testing.assert_array_equal(tokens.read([0], len(ids)), [ids])
    too_small = Dataset(str(tmp_path), vocab_size - 1).tokens("train")
    assert f"does not fit vocab_size {vocab_size - 1}" in refusal(too_small.read, [0], len(ids))
    assert load_meta(str(dataset), vocab_size) == load_meta(str(dataset))  # its meta.json knows better


@pytest.mark.parametrize("kind", ["uint8", "uint32", "uint64"])
def test_tokens_of_another_width_are_noticed_and_can_be_said(tmp_path, kind):
    ids = np.random.default_rng(0).integers(1, 100, 500)
    ids.astype(kind).tofile(tmp_path / "train.bin")
    assert refusal(load_meta, str(tmp_path)).startswith(
        f"{tmp_path / 'train.bin'}: looks like {kind}, not uint16: say which in a meta.json"
    )
    meta = {"format": 1, "vocab_size": 100, "tokenizer": None, "dtype": kind}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    np.testing.assert_array_equal(Dataset(str(tmp_path)).tokens("train").read([0], 500), [ids])
    assert {array.dtype for array in batches(tmp_path)(0)} == {np.dtype(np.int32)}


RANDOM = np.random.default_rng(0)
ASCII = np.where(np.arange(1000) % 100, np.arange(1000) % 128, 256)  # its bytes, and a special token


@pytest.mark.parametrize("ids", [np.zeros(1000), ASCII, RANDOM.integers(0, 50257, 1000), np.array([7, 0])])
def test_what_may_be_uint16_is_read_as_uint16(tmp_path, ids):
    ids.astype("<u2").tofile(tmp_path / "train.bin")
    assert load_meta(str(tmp_path)).dtype == "uint16"


def pickled(folder, content):
    """nanoGPT's bins with this meta.pkl: bytes, or values to pickle."""
    (folder / "meta.pkl").write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    (np.arange(100) % 3).astype("<u2").tofile(folder / "train.bin")
    return str(folder)


STOI = {"b": 0, "a": 1, "\n": 2}


@pytest.mark.parametrize(
    "values, vocab_size, symbols",
    [
        ({"vocab_size": 3, "stoi": STOI, "itos": {i: c for c, i in STOI.items()}}, 3, "ba\n"),  # nanoGPT's
        ({"stoi": STOI, "vocab_size": 64, "more": [1.5, None, (4,)]}, 64, "ba\n"),
        ({"vocab_size": 9, "stoi": {"a": 0, "b": 8}}, 9, None),
    ],
)
def test_nanogpts_meta_pkl_tells_characters_or_only_the_vocab_size(tmp_path, values, vocab_size, symbols):
    expected = Meta(vocab_size, symbols and {"type": "char", "symbols": symbols}, "uint16")
    for protocol in (0, 2, pickle.HIGHEST_PROTOCOL):
        assert load_meta(pickled(tmp_path, pickle.dumps(values, protocol))) == expected
    assert load_meta(str(tmp_path), 70).vocab_size == 70
    assert batches(tmp_path)(0)[0].shape == (4, 8)


def test_no_pickle_runs_code(tmp_path):
    opened = tmp_path / "opened"

    class Bomb:
        def __reduce__(self):
            return (opened.touch, ())

    said = refusal(load_meta, pickled(tmp_path, {"stoi": {"a": 0}, "vocab_size": Bomb()}))
    assert said.startswith(f"{tmp_path / 'meta.pkl'}: cannot be used (a builtins.getattr, where dicts, lists")
    assert said.endswith("write a meta.json instead (docs/guide.md)") and not opened.exists()


@pytest.mark.parametrize(
    "content, says",
    [
        (pickle.dumps({"vocab_size": 65})[:-3], ""),
        (bytes(range(256)), ""),
        ({}, "vocab_size is 0"),
        ({"vocab_size": "65"}, "vocab_size is '65': it should be a valid integer"),
        ({"stoi": {"a": 0, "\ud800": 1}}, "tokenizer is "),
        # Operations that ask for gigabytes: a bytearray, a number, a memo, a frame; and depth.
        (b"\x80\x05\x96" + (2**34).to_bytes(8, "little") + b".", ""),
        (b"\x80\x04\x8b" + (2**20).to_bytes(4, "little") + b"\1" * 2**20 + b".", ""),
        (b"\x80\x04}r" + (2**31 - 1).to_bytes(4, "little") + b".", "vocab_size is 0"),
        (b"\x80\x04\x95" + (2**60).to_bytes(8, "little") + b"}.", "vocab_size is 0"),
        (b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".", ""),
    ],
)
def test_a_meta_pkl_that_cannot_be_used_is_one_line_without_much_memory(tmp_path, content, says):
    folder = pickled(tmp_path, content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = refusal(load_meta, folder)
    assert said.startswith(f"{tmp_path / 'meta.pkl'}: cannot be used (") and says in said
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB


def test_any_damage_to_meta_is_one_line(dataset):
    write_dataset(dataset, np.arange(103) % 3, np.arange(50) % 3, CharTokenizer(SYMBOLS[:3]), "a test")
    free = ("source", "sha256", "counts", "tokenizer", "vocab_size", "format")
    said = assert_named(dataset / "meta.json", lambda: batches(dataset)(0), free)
    for wrong in ("tokenizer is 2^62", "counts.val is a list", "vocab_size is 2^62", "format is 2^62"):
        assert f"cannot be used ({wrong.partition(' is ')[0]} is " in said[wrong]
    assert None not in {said[f"tokenizer.{entry}"] for entry in ("type is true", "symbols is null")}


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


def test_a_read_only_checkout_has_its_small_data_sets_elsewhere(data_folder, tmp_path, monkeypatch, capsys):
    """os.access stands for permissions, which root does not obey."""
    book_char = importlib.import_module("data.book_char.prepare")
    tokens = np.arange(40), np.arange(20), CharTokenizer(SYMBOLS), "a test"
    monkeypatch.setattr(book_char, "prepare", lambda folder, **given: write_dataset(folder, *tokens))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (ours := data_folder / "book_char").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda path, mode: path != ours)
        for folder in (tmp_path / "cache/nanojaxgpt/data/book_char", tmp_path / "kept/book_char"):
            prepare_if_missing("book_char")
            assert capsys.readouterr().out.count("train.bin is missing: running") == 1
            prepare_if_missing("book_char")
            assert capsys.readouterr().out == ""
            assert Dataset("book_char").tokens("val").path == folder / "val.bin"
            monkeypatch.setenv("NANOJAXGPT_DATA", str(tmp_path / "kept"))
        shutil.rmtree(tmp_path / "kept")
        book_char.main([])
        assert (tmp_path / "kept/book_char/train.bin").exists() and list(ours.iterdir()) == []
        monkeypatch.delenv("NANOJAXGPT_DATA")
        write_dataset(ours, *tokens)  # by whoever may
        assert dataset_dir("book_char") == ours


@pytest.mark.parametrize("name", ["../theirs", "linked", "openwebtext", "a" * 300])
def test_no_other_data_set_is_prepared_unasked(data_folder, tmp_path, monkeypatch, name):
    """The data set may be named by a checkpoint that somebody sent. Or it is large, or unknown."""
    for folder in (tmp_path / "theirs", data_folder / "openwebtext"):
        folder.mkdir()
        (folder / "prepare.py").write_text("raise AssertionError")
    (data_folder / "linked").symlink_to(tmp_path / "theirs")
    monkeypatch.chdir(tmp_path)
    said = refusal(prepare_if_missing, name)
    assert said.startswith(f"dataset={name}: there is no ") and "run the prepare.py of that folder" in said
    assert said.endswith("or give another: linked, openwebtext, or a path")
