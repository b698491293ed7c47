"""Bad invocations made by rule (tests/fuzz.py) are answered in one line each."""

from tests.fuzz import fuzz


def test_every_bad_invocation_is_one_line_with_status_2_and_changes_nothing(tmp_path):
    assert fuzz(tmp_path, count=500) == []
