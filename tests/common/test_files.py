"""Files: JSON that anybody may have written, and what a loss of power leaves of what is written."""

import os
import re
import stat
from pathlib import Path

import pytest

from common.files import check_writable, first_line, read_json, write_whole, written
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
        else:  # a value in its place, which JSON may have
            assert re.search(" is | instead$|without [ab]$", what) and "nested" not in what, what
    for missing in (tmp_path / "none", path / "none"):
        with pytest.raises(ValueError, match="No such file|Not a directory"):
            read_json(missing)
    assert "Is a directory" in refusal(read_json, tmp_path)


def test_an_error_is_shortened_to_both_ends_of_its_first_line_or_its_class():
    assert first_line(ValueError("\none\ntwo")) == "one"
    assert first_line(ValueError("x" * 200)) == "x" * 200
    said = first_line(ValueError(f"Error writing {'x' * 999}: No space left on device"))
    assert len(said) == 200 and said.startswith("Error writing xxx") and said.endswith("left on device")
    assert first_line(TimeoutError()) == "TimeoutError"


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


def test_an_error_of_a_file_is_named_also_without_a_reason_of_the_system(tmp_path):
    def fail():
        with written(tmp_path / "file"):
            raise OSError("the library's own words")

    assert refusal(fail) == f"{tmp_path}/file: the library's own words"


def test_what_cannot_be_written_is_known_before_and_stays_as_it_is(tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    check_writable(tmp_path / "file")
    check_writable(tmp_path / "new" / "file")
    for path in (tmp_path / "file" / "x", tmp_path / "folder"):
        for act in ((check_writable, path), (write_whole, path, "text")):
            assert re.search(f"^{tmp_path}/.*: (File exists|Is a directory)$", refusal(*act))
    assert contents(tmp_path) == {"file": b"in the way"}


def test_a_pipe_or_a_device_does_not_become_a_file(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (pipe, Path("/dev/stdout")):
        for act in ((check_writable, path), (write_whole, path, "text")):
            assert refusal(*act) == f"{path}: is no ordinary file: give another"
    assert pipe.is_fifo()


# It is written beside, and renamed. The ids are the same in every process that collects.
@pytest.mark.parametrize("name", ["file", f".file.{os.getpid()}.tmp"], ids=["file", "beside"])
@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_written_through_a_link(tmp_path, name, there):
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    folder.mkdir()
    if there:
        outside.write_text("kept")
    (folder / name).symlink_to(outside)
    write_whole(folder / "file", "text")
    assert contents(folder) == {"file": b"text"} and not (folder / "file").is_symlink()
    assert outside.read_text() == "kept" if there else not outside.exists()
