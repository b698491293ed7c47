"""The status table has a row for every command and every axis of the mesh."""

import re

from docs.pages import DOCS
from parallel.mesh import AXES
from tests.test_imports import COMMANDS

TABLE = [line for line in (DOCS / "status.md").read_text().splitlines() if line.startswith("| ")]


def test_every_command_and_mesh_axis_has_its_row():
    named = {name for row in TABLE for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert {*COMMANDS, *AXES} - named == set()
