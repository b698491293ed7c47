"""The status table has a row for every command and every axis of the mesh."""

import re

from docs.pages import DOCS
from parallel.mesh import AXES
from tests.test_imports import COMMANDS

TABLE = [line for line in (DOCS / "status.md").read_text().splitlines() if line.startswith("| ")]
CELLS = {"ran", "plan", "stand-in", "never"}


def test_every_command_and_mesh_axis_has_its_row():
    named = {name for row in TABLE for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert {*COMMANDS, *AXES} - named == set()


def test_every_cell_is_one_of_the_words_above_the_table():
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in TABLE[1:]]
    assert {len(row) for row in rows} == {6}
    assert {cell for row in rows for cell in row[1:]} <= CELLS
