"""The figures with sliders: they need no network, obey their sliders, and count as the project does."""

import jax
import numpy as np
import pytest

from docs.figures import optimizers
from docs.figures.attention_by_hand import KEYS, QUERY, VALUES, weights
from docs.pages import DOCS
from model import GPT, GPTConfig
from tools.planning.target import DEVICES


@pytest.fixture
def page(watched_page):
    return watched_page("file:")


def test_devices_counts_what_the_planner_counts_and_follows_its_sliders(page):
    page.goto((DOCS / "interactive/devices.html").as_uri())
    config = GPTConfig(mlp="gelu", position="rope")
    shapes = jax.eval_shape(lambda: GPT(config, key=jax.random.key(0)))
    norms = (2 * config.n_layer + 1) * config.n_embd
    parameters = sum(x.size for x in jax.tree.leaves(shapes)) - norms
    for mesh in ({"data": 2, "fsdp": 4, "tensor": 1}, {"data": 4, "fsdp": 2, "tensor": 4}):
        settings = mesh | {"layers": 12, "width": 768, "rows": 64, "device": "H100"}
        counted = page.evaluate("settings => count(settings)", settings)
        assert counted["parameters"] == parameters
        # ZeRO-3 (arXiv:1910.02054): bfloat16 weights are gathered twice, float32 gradients scattered once;
        # over `data`, the gradients that a device keeps are summed once.
        data, fsdp, weights = mesh["data"], mesh["fsdp"], parameters / mesh["tensor"]
        least = {"fsdp": (fsdp - 1) / fsdp * weights * 8, "data": 2 * (data - 1) / data * weights / fsdp * 4}
        assert {axis: counted["sent"][axis] for axis in least} == pytest.approx(least)
        held = sum(counted["held"].values())
        assert held == pytest.approx(16 * parameters / mesh["fsdp"] / mesh["tensor"])
    for name, known in page.evaluate("DEVICES").items():
        device = DEVICES[name]
        assert [known[key] for key in ("peak", "link", "between", "memory")] == [
            *(device.peak, device.link, device.between_hosts, device.memory)
        ]

    def slide(name, value):
        page.locator(f"input[name={name}]").fill(str(value))

    slide("data", 0)
    slide("fsdp", 5)
    assert page.locator("#mesh").inner_text().startswith("--mesh=data:1,fsdp:32,tensor:1: 32 devices")
    assert page.locator("#devices text").count() == 32
    slide("rows", 0)
    assert "1 rows cannot be shared" in page.locator("#verdict").inner_text()
    slide("fsdp", 0)
    slide("width", 6)
    assert "does not fit" in page.locator("#verdict").inner_text()


def row(page, name: str) -> list[float]:
    """Return the numbers of a row of the table below the figure."""
    cells = page.locator(f"tr:has(th:text-is('{name}')) td").all_inner_texts()
    return [float(cell.replace("−", "-").replace("∞", "inf")) for cell in cells]


def test_the_figure_with_sliders_computes_attention(page):
    page.goto((DOCS / "interactive/attention.html").as_uri())
    assert page.evaluate("KEYS") == KEYS.tolist() and page.evaluate("VALUES") == VALUES.tolist()
    half = 0.0051  # two digits are shown
    np.testing.assert_allclose(row(page, "weight"), weights(QUERY), atol=half)
    np.testing.assert_allclose(row(page, "output"), weights(QUERY) @ VALUES, atol=half)

    page.get_by_label("its length").fill("0")  # all scores are 0
    assert row(page, "weight") == [0.25] * 4
    page.get_by_label("attends up to").fill("2")
    assert row(page, "weight") == [0.5, 0.5, 0, 0]
    assert row(page, "score")[2:] == [-np.inf, -np.inf]
    page.get_by_label("its length").fill("6")
    page.get_by_label("direction of the query").fill("-90")
    turned = weights(np.array([0.0, -6.0]))[:2]
    np.testing.assert_allclose(row(page, "weight")[:2], turned / turned.sum(), atol=half)


def test_the_optimizers_in_the_valley_end_where_the_figure_s_do(page):
    page.goto((DOCS / "interactive/optimizers.html").as_uri())
    np.testing.assert_allclose(page.evaluate("RATES"), optimizers.RATES)
    for name, (direction, _) in optimizers.OPTIMIZERS.items():
        points = optimizers.paths(direction)
        for i in (20, 97):  # low, and near the highest stable rate of gradient descent
            drawn = page.evaluate("([name, i]) => path(name, RATES[i])", [name, i])
            np.testing.assert_allclose(drawn, points[i], atol=2e-3)

    page.get_by_label("optimizer").select_option("gradient descent")
    page.get_by_role("slider").fill("120")
    assert page.locator("#end").inner_text().endswith("diverges")
    page.get_by_label("optimizer").select_option("Adam")
    assert not page.locator("#end").inner_text().endswith("diverges")
