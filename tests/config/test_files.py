"""Files: JSON that anybody may have written, and what a loss of power leaves of what is written."""

import os
import stat

import pytest

from config.files import (
    check_tree,
    check_writable,
    is_plain_name,
    is_whole,
    open_file,
    read_json,
    write_whole,
)
from tests.damage import damaged
from tests.helpers import contents, refusal


def test_json_that_cannot_be_read_is_a_value_error_of_one_line(tmp_path):
    path = tmp_path / "values.json"
    for what, content in damaged('{"a": 1, "b": [2]}'):
        path.write_bytes(content)
        try:
            read_json(path)
        except ValueError as error:
            assert str(error) and "\n" not in str(error), what
    for missing in (tmp_path / "none", path / "none"):
        with pytest.raises(ValueError, match="No such file|Not a directory"):
            read_json(missing)
    os.truncate(path, 2**40)  # which takes no room
    with pytest.raises(ValueError, match="larger than 128 MiB"):
        read_json(path)


def test_whole_numbers_and_plain_names():
    assert [x for x in (0, -1, 2**32 - 1, 2**32, True, 1.0, "1", None) if is_whole(x)] == [0, -1, 2**32 - 1]
    good = ["train.bin", "train_00000.bin", "model-00001-of-00002.safetensors"]
    bad = ["", ".", "..", "/a", "a/b", "../a", ".hidden", "a\0", "a\n", "x" * 300, "\ud800", 3, None, ["a"]]
    assert [name for name in good + bad if is_plain_name(name)] == good


def test_a_file_and_its_name_are_on_disk_in_this_order(tmp_path, monkeypatch):
    """A loss of power then leaves the old file or the new one."""
    done, fsync, replace = [], os.fsync, os.replace

    def synced(number):
        done.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else os.fstat(number).st_size)
        fsync(number)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("renamed"), replace(*paths)))
    write_whole(tmp_path / "new" / "file", "four")
    assert done == [4, "renamed", "folder"]
    assert contents(tmp_path) == {"new/file": b"four"}


def test_what_cannot_be_written_is_known_before_and_stays_as_it_is(tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    check_writable(tmp_path / "file", "advice")
    check_writable(tmp_path / "new" / "file", "advice")
    for path in (tmp_path / "file" / "x", tmp_path / "folder"):
        for act in ((check_writable, path, "advice"), (write_whole, path, "text", "advice")):
            said = refusal(*act)
            assert said.startswith(f"{path}: cannot be written (") and said.endswith("): advice")
    assert contents(tmp_path) == {"file": b"in the way"}


TRAPS = {
    "link": lambda path, outside: path.symlink_to(outside),
    "link to nothing yet": lambda path, outside: path.symlink_to(outside.with_name("new")),
    "device": lambda path, outside: path.symlink_to("/dev/zero"),
    "FIFO": lambda path, outside: os.mkfifo(path),
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("mode", ["rb", "r+b", "ab", "a+", "xb"])
def test_only_a_regular_file_is_opened(tmp_path, trap, mode):
    (outside := tmp_path / "outside").write_text("kept")
    (folder := tmp_path / "folder").mkdir()
    TRAPS[trap](folder / "file", outside)
    with pytest.raises(OSError, match="link|not a regular file|exists"):
        open_file(folder / "file", mode)
    assert outside.read_text() == "kept" and not outside.with_name("new").exists()
    assert str(folder / "file") in refusal(check_tree, folder)


def test_the_folder_as_a_whole_may_be_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("text")
    (folder := tmp_path / "folder").symlink_to("there")
    assert open_file(folder / "file").read() == b"text"


def test_a_blob_of_hugging_faces_cache_is_read_through_its_link(tmp_path):
    snapshot, blobs = tmp_path / "snapshots" / "0123", tmp_path / "blobs"
    snapshot.mkdir(parents=True), blobs.mkdir()
    (blobs / "abc").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    assert read_json(snapshot / "config.json") == {}
    (tmp_path / "elsewhere").write_text("{}")
    (blobs / "bad").symlink_to(tmp_path / "elsewhere")
    (snapshot / "bad.json").symlink_to("../../blobs/bad")
    assert "link" in refusal(read_json, snapshot / "bad.json")


def test_what_lies_at_a_temporary_name_is_not_written_to(tmp_path):
    (outside := tmp_path / "outside").write_text("kept")
    (folder := tmp_path / "folder").mkdir()
    (folder / f".file.{os.getpid()}.tmp").symlink_to(outside)
    write_whole(folder / "file", "text")
    assert outside.read_text() == "kept" and contents(folder) == {"file": b"text"}
