"""Sources: which documents they hold, where they go on, and what they refuse."""

import json
import re
from itertools import islice
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from data import sources
from data.sources import Files, Hub, extract_text
from data.tokenizer import LONGEST
from tests.helpers import refusal

TEXTS = [f"document {i}\nof a few lines: €\n" + "and more\n" * (i % 7) for i in range(100)]


def write(folder, suffix, texts, name="part"):
    """A file of these texts; None is a null."""
    path = folder / f"{name}{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts))
    elif suffix == ".txt":
        path.write_text("<|endoftext|>\n".join(texts), encoding="utf-8")
    else:
        table = pyarrow.table({"id": list(range(len(texts))), "text": texts})
        parquet.write_table(table, path, row_group_size=30)
    return str(path)


def texts(source, position=None):
    return [
        extract_text(record, batch.json_lines)
        for batch in source.batches(position)
        for record in batch.records
    ]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(sources, "BATCH", 300)
    monkeypatch.setattr(sources, "ROWS", 7)


@pytest.mark.parametrize("suffix", [".jsonl", ".txt", ".parquet"])
def test_all_documents_in_order_and_from_every_position_the_rest(tmp_path, suffix):
    paths = [write(tmp_path, suffix, TEXTS[:60], "a"), write(tmp_path, suffix, TEXTS[60:], "b")]
    assert texts(Files(paths)) == TEXTS
    batches = [(batch.records, batch.position) for batch in Files(paths).batches()]
    assert len(batches) > 10
    for done, (_, position) in enumerate(batches, start=1):
        rest = Files(paths).batches(json.loads(json.dumps(position)))
        # The same batches, not only the same documents: so the files are the same to the byte.
        assert [batch.records for batch in rest] == [records for records, _ in batches[done:]]


def test_files_of_globs_and_folders_are_sorted_and_kinds_may_be_mixed(tmp_path):
    for name, k in (("b", 1), ("a", 0)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, ".jsonl", TEXTS[10 * k : 10 * k + 10])
    last = write(tmp_path, ".txt", TEXTS[20:30], "c [1]")  # its name is no pattern
    (tmp_path / "cover.png").touch()
    for named in ([str(tmp_path / "*/*.jsonl"), last], [str(tmp_path)]):
        assert texts(Files(named)) == TEXTS[:30]


def test_a_data_set_of_the_hub_streams_as_a_parquet_file_does(tmp_path):
    write(tmp_path, ".parquet", TEXTS, "train-00000-of-00001")
    hub = Hub(str(tmp_path))  # the library reads a folder as it reads a repository
    assert texts(hub) == TEXTS
    third = next(islice(hub.batches(), 2, None))
    assert texts(hub, json.loads(json.dumps(third.position))) == TEXTS[21:]


def test_a_text_file_without_separators_is_one_document(tmp_path):
    (tmp_path / "book.txt").write_text("one\n\n<|endoftext|> in a line is text\n")
    assert texts(Files([str(tmp_path / "book.txt")])) == ["one\n\n<|endoftext|> in a line is text\n"]


def test_a_very_long_text_is_cut_at_the_end_of_a_line(tmp_path, monkeypatch):
    assert sources.LONGEST + sources.BATCH < LONGEST  # else a tokenizer.json would leave it out
    monkeypatch.setattr(sources, "LONGEST", 20)
    monkeypatch.setattr(sources, "BATCH", 1)
    (tmp_path / "book.txt").write_text("0123456789\n" * 5)
    assert texts(Files([str(tmp_path / "book.txt")])) == ["0123456789\n" * 3, "0123456789\n" * 2]


@pytest.mark.parametrize(
    "record, json_lines",
    [
        *((record, False) for record in (None, b"\xff", b"", b" \n")),
        *((record, True) for record in (b"", b"{", b"[]", b'{"body": "x"}', b'{"text": 3}')),
        *((record, True) for record in (b'{"text": "\xff"}', rb'{"text": "\ud800"}', b"[" * 100_000)),
    ],
)
def test_a_corrupt_or_empty_document_has_no_text(record, json_lines):
    assert extract_text(record, json_lines) is None


def test_text_in_parquet_that_is_not_utf8_spoils_itself_alone(tmp_path):
    binary = pyarrow.array([b"good", b"\xff", None, b"fine"], pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 4, binary.buffers())  # as bad writers do
    parquet.write_table(pyarrow.table({"text": text}), tmp_path / "bad.parquet")
    (batch,) = Files([str(tmp_path / "bad.parquet")]).batches()
    assert batch.records == [b"good", b"\xff", None, b"fine"]


def test_a_text_file_is_read_as_in_text_mode(tmp_path):
    """On Windows a line ends with \\r\\n, that of the separator too, and a file may begin with a mark."""
    written = "\n".join(TEXTS[:40]) + "\n<|endoftext|>\nand another\n"
    for newline in ("\r\n", "\r"):
        content = "\ufeff" + written.replace("\n", newline)
        (tmp_path / "BOOK.TXT").write_text(content, encoding="utf-8", newline="")
        assert texts(book := Files([str(tmp_path / "BOOK.TXT")])) == [
            "\n".join(TEXTS[:40]) + "\n",
            "and another\n",
        ]
        assert book.single_text() is None


def test_json_keeps_its_text_as_it_is(tmp_path):
    line = json.dumps({"text": "a\r\nb"})
    (tmp_path / "a.JSONL").write_text(f"\ufeff{line}\r\n{line}\r\n", encoding="utf-8", newline="")
    assert texts(Files([str(tmp_path / "a.JSONL")])) == ["a\r\nb", "a\r\nb"]


def test_each_file_in_another_encoding_is_named_once_and_the_others_are_read(tmp_path, capsys):
    good, euros = "good\n" * 100, "€uro\n" * 100  # more than a batch, which ends anywhere in a file
    for name, content in {
        "a.txt": euros.encode(),
        "b.txt": good.encode() + "<|endoftext|>\ndéjà\n".encode("latin-1") * 100,
        "c.txt": "€\n".encode("utf-16") * 200,
        "d.txt": good.encode() + "€".encode()[:-1],
        "e.jsonl": (json.dumps({"text": good}) + "\n").encode() + b'{"text": "\xe9"}\n',
    }.items():
        (tmp_path / name).write_bytes(content)
    found = texts(Files([str(tmp_path / "*.txt"), str(tmp_path / "*.jsonl")]))
    assert [text for text in found if text is not None] == [euros, good, good]
    notes = capsys.readouterr().err.splitlines()
    at = {"b.txt": (515, "LATIN1"), "c.txt": (0, "UTF-16"), "d.txt": (500, "LATIN1")}
    at["e.jsonl"] = (len(json.dumps({"text": good})) + 11, "LATIN1")
    for note, (name, (byte, kind)) in zip(notes, at.items(), strict=True):
        assert note.startswith(f"note: {tmp_path / name}: not UTF-8 at byte {byte}: ") and kind in note
        assert note.endswith("; what is not UTF-8 is left out")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_named_and_left_out_with_a_mark_and_without(encoding, tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"word {i}"}) + "\n" for i in range(30)), encoding=encoding)
    assert [text for text in texts(Files([str(path)])) if text is not None] == []
    assert "not UTF-8 at byte 0: convert it, as in iconv -f UTF-16" in capsys.readouterr().err


def test_zeros_and_marks_within_a_file_are_text(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sources, "BATCH", 8)
    documents = ["\0abc\n", "\ufeffdef\n", "\0\0\n", "a\0b\n"]
    (tmp_path / "a.txt").write_text("\ufeff" + "<|endoftext|>\n".join(documents), encoding="utf-8")
    assert texts(Files([str(tmp_path / "a.txt")])) == documents
    assert capsys.readouterr().err == ""


def test_a_pattern_without_files_and_a_file_of_another_kind_are_named(tmp_path):
    assert "*.jsonl: no such file" in refusal(Files, [str(tmp_path / "*.jsonl")])
    (tmp_path / "mine.pdf").touch()
    says = f"{tmp_path}/mine.pdf: expected a file that ends in .jsonl, .parquet, .txt, or a folder"
    assert refusal(Files, [str(tmp_path / "mine.pdf")]) == says
    assert "no such file, nor a folder with .jsonl" in refusal(Files, [str(tmp_path)])
    assert refusal(Files, ["", "mine.txt"]) == "--source=,mine.txt: a name is missing beside a comma"


def test_a_parquet_file_that_is_garbled_or_has_no_text_is_named_in_one_line(tmp_path, capfd):
    path = Path(write(tmp_path, ".parquet", TEXTS))
    for content in (b"", b"PAR1 and not Parquet", path.read_bytes()[:-500]):
        path.write_bytes(content)
        said = refusal(texts, Files([str(path)]))
        assert said.startswith(f"{path}: cannot be read as Parquet")
    parquet.write_table(pyarrow.table({"body": ["x"]}), path)
    assert re.match(f'{path}: .*column "text"', refusal(texts, Files([str(path)])))
    assert capfd.readouterr().err == ""


def test_without_a_network_a_data_set_of_the_hub_is_one_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = refusal(lambda: list(Hub("somebody/texts").batches()))
    assert said.startswith("hub: somebody/texts: cannot be read as Parquet")
    assert said.endswith("the same command goes on from here")
