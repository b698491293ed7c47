"""Reports of whoever has a card: those that are kept have the form, and a wrong one is one line."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.profiler import ProfileData

from docs.pages import DOCS
from docs.quotes import reports_table
from tests.helpers import refusal
from tools.benchmarks.profile import class_times, trace
from tools.benchmarks.report import read_report
from tools.planning.cost import estimate
from tools.planning.program import parse_program
from tools.planning.target import parse_target

KEPT = sorted((DOCS / "measured").glob("*.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_report_that_is_kept_has_the_form(path):
    assert read_report(path).form == 1


def edited(change) -> dict:
    report = json.loads(KEPT[0].read_text())
    change(report)
    return report


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda x: x.pop("device"), "device: Field required"),
        (lambda x: x.update(ms=-1.0), "ms is -1.0: it should be greater than 0"),
        (lambda x: x.update(ms="fast"), "ms is 'fast': it should be a valid number"),
        (lambda x: x.update(ms=x["ms"] / 2), "tokens/s are not "),
        (lambda x: x.update(mfu=1.2), "mfu is 1.2: it should be less than or equal to 1"),
        (lambda x: x.update(commit="main"), "commit is 'main': expected 40 hexadecimal digits"),
        (lambda x: x.update(device="<b>H100</b>"), "device is '<b>H100</b>': expected a short text"),
        (lambda x: x["classes"]["loss"].update(measured=0.9), "the measured shares of the classes add up to"),
        (lambda x: x["losses"]["measured"].pop(), "losses.measured is ["),
        (lambda x: x.update(losses=[]), "losses is []"),
        (
            lambda x: x["losses"].update(tolerance=1e9),
            "the losses' reference or tolerance is not this version's",
        ),
        (lambda x: x["losses"].update(reference=10 * [1.0]), "the losses' reference or tolerance is not "),
        (lambda x: x.update(form=2), "form is 2: it should be 1"),
        (lambda x: x.pop("form"), "form: Field required"),
    ],
)
def test_a_missing_or_absurd_field_or_another_version_is_one_line(tmp_path, change, says):
    path = tmp_path / "t4.json"
    path.write_text(json.dumps(edited(change)))
    text = refusal(read_report, path)
    assert text.startswith(f"{path}: ") and says in text
    assert text.endswith("make it again: python bench.py ... --report=FILE")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_a_file_that_is_no_report_is_one_line(tmp_path, content):
    path = tmp_path / "t4.json"
    path.write_bytes(content)
    assert refusal(read_report, path).startswith(f"{path}: ")


def test_the_table_has_a_row_for_each_report(tmp_path):
    losses = json.loads(KEPT[0].read_text())["losses"]
    losses["measured"] = [1.0] * 10
    changes = dict(device="NVIDIA T4", devices=2, planned_ms=None, peak_memory_bytes=3 * 10**9, losses=losses)
    changes |= dict(command="python bench.py a.py --report=x.json --steps=50", ms=2000.0, tokens=4096)
    wrong = edited(lambda x: x.update(changes | dict(tokens_per_second=2048.0)))
    (tmp_path / "b.json").write_text(json.dumps(wrong))
    (tmp_path / "a.json").write_text(KEPT[0].read_text())
    head, _, first, second = reports_table(".", tmp_path).splitlines()
    assert first.count("|") == second.count("|") == head.count("|") and " right " in first
    cells = ["2 x NVIDIA T4", "`a.py --steps=50`", "2,000.0", "", "2,048", "3.0 GB", "**wrong**"]
    assert [cell.strip() for cell in second.split("|")[1:8]] == cells


def test_each_operation_of_a_trace_counts_in_its_class():
    x = jnp.ones((256, 256))
    compiled = jax.jit(lambda x: lax.fori_loop(0, 50, lambda _, y: y @ x, x) + 1).lower(x).compile()
    cost = estimate(parse_program(compiled.as_text()), parse_target("H100"), {})

    def run(n):
        for _ in range(n):
            jax.block_until_ready(compiled(x))

    measured = trace(SimpleNamespace(run=run), cost)
    assert measured["matrix products"] > 0
    assert {"matrix products"} < set(measured) <= set(cost.names)


@pytest.mark.parametrize(
    "plane, event, stat",
    [
        ("/host:CPU", "NAME", 'stats { metadata_id: 1 str_value: "NAME" }'),
        ("/device:GPU:0", "a kernel's name", 'stats { metadata_id: 1 str_value: "NAME" }'),
        ("/device:TPU:0", "%NAME = f32[2] operation(f32[2] %x)", ""),
    ],
)
def test_a_loop_in_a_trace_counts_once(plane, event, stat):
    """Two dots of 3 ns each in a loop of 8 ns, then a copy of 1 ns. Another plane's are not counted."""
    lines = 'stat_metadata { key: 1 value { id: 1 name: "hlo_op" } }'
    for i, (name, ns) in enumerate([("while.1", 8), ("dot.2", 3), ("dot.2", 3), ("copy.3", 1)]):
        lines += f'event_metadata {{ key: {i} value {{ id: {i} name: "{event}" }} }}'.replace("NAME", name)
        operation = f"metadata_id: {i} duration_ps: {1000 * ns} {stat}".replace("NAME", name)
        lines += f"lines {{ events {{ {operation} }} }}"
    planes = [f'planes {{ name: "{name}" {lines} }}' for name in (plane, "/another")]
    classes = {"dot.2": "matrix products", "copy.3": "copies"}
    measured = class_times(ProfileData.from_text_proto(" ".join(planes)), classes, plane[:6])
    assert measured == {"matrix products": 6, "copies": 1}
