"""Files: JSON that anybody may have written, and what a loss of power leaves of what is written."""

import os
import stat

import pytest

from config.files import check_writable, is_plain_name, is_whole, read_json, write_whole
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
