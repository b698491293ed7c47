"""A run whose machine was lost while its newest checkpoint was on the way to a bucket."""

import shutil

import pytest

import train
from tests.helpers import assert_same_bits, newest_checkpoint, saved_iterations, saved_state


@pytest.mark.slow
def test_it_resumes_from_the_checkpoint_before_whatever_is_missing(tiny, tmp_path):
    """Any one file, or all from some point on: files come one by one. The weights are the same at the end."""
    out = tmp_path / "out"
    assert train.main(tiny(out)) == 0 and saved_iterations(out) == [5, 10]
    whole = saved_state(out)
    files = sorted(path for path in (out / "checkpoints" / "10").rglob("*") if path.is_file())
    assert len(files) > 10
    missing = [[path] for path in files] + [files[n:] for n in range(0, len(files), 4)]
    for number, paths in enumerate(missing):
        copy = shutil.copytree(out, tmp_path / str(number))
        for path in paths:
            (copy / path.relative_to(out)).unlink()
        if len(paths) == len(files):  # a bucket has no empty folders
            shutil.rmtree(copy / "checkpoints" / "10")
        assert train.main(tiny(copy, init_from="auto")) == 0, paths
        assert newest_checkpoint(copy) == 10
        assert_same_bits(saved_state(copy), whole)
        shutil.rmtree(copy)
