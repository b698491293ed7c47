"""Bad invocations made by rule (tests/fuzz.py) are answered in one line each."""

import pytest

from tests.fuzz import fuzz


@pytest.mark.parametrize(
    "count, seed", [(40, 1), pytest.param(500, 0, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_every_bad_invocation_is_one_line_with_status_2_and_changes_nothing(tmp_path, count, seed):
    assert fuzz(tmp_path, count, seed) == []
