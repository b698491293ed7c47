"""Bad invocations made by rule (tests/fuzz.py) are answered in one line each."""

import pytest

from tests.fuzz import fuzz
from tests.helpers import slowly


@pytest.mark.parametrize("count", [200, *slowly(1000)])
def test_every_bad_invocation_is_one_line_with_status_2_and_changes_nothing(tmp_path, count):
    assert fuzz(tmp_path, count) == []
