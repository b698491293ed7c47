"""The page on every screen: a phone, 4K, dark, forced colours; and by the rules of axe-core, if installed."""

import re

import pytest

from tests.helpers import slowly
from tests.tools.serving.on_page import PHONE, READY, VIEWS, found_by_axe, with_axe, write


@pytest.mark.parametrize("scheme", ["dark", *slowly("light")])
def test_on_a_phone_nothing_is_wider_than_the_screen(open_page, scheme):
    page = open_page(viewport=PHONE, has_touch=True, is_mobile=True, color_scheme=scheme)
    tabs = page.locator("#tabs").evaluate("tabs => tabs.scrollWidth - tabs.clientWidth")
    assert tabs == 0  # all are there
    area = page.locator("#area").bounding_box()
    assert area["y"] + area["height"] <= PHONE["height"]  # it need not be looked for
    write(page, "the quick brown fox jumps over <img src=x onerror=alert(1)>", tokens=40)
    assert page.locator("#place").is_hidden()  # it is a sheet, which a tap opens
    page.mouse.move(0, 0)  # a phone has no pointer that could stay where Write was
    page.locator("#tokens .token").nth(28).tap()
    page.wait_for_selector(".place h3:has-text('token 29')")
    sheet = page.locator("#place").bounding_box()
    assert sheet["y"] + sheet["height"] == pytest.approx(PHONE["height"], abs=1)
    page.get_by_role("button", name="Close", exact=True).tap()
    assert page.locator("#place").is_hidden()
    for view in VIEWS:
        page.click(f"#tab-{view}")
        page.wait_for_selector(READY[view])
        if view == "attention":
            page.locator("#matrix").tap()
            page.wait_for_selector(".arithmetic")
        assert page.evaluate("() => document.documentElement.scrollWidth") == PHONE["width"], view
        if view == "lens":  # the chosen column is in sight
            page.wait_for_function("() => document.querySelector('#lens-table').scrollLeft > 0")
            assert 0 < page.locator("#lens-table button.chosen").bounding_box()["x"] < PHONE["width"]
    paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) < 3 * 128) == (scheme == "dark")


def test_a_4k_screen_is_used(open_page):
    page = open_page("run", viewport={"width": 3840, "height": 2160}, empty=False)
    page.wait_for_selector(READY["run"])
    assert page.locator("#run-chart text").first.bounding_box()["height"] > 18
    page.click("#tab-write")
    page.wait_for_selector(".by:has-text('An example')")
    page.keyboard.press("e")
    assert page.locator("main").bounding_box()["width"] > 0.8 * 3840
    assert page.locator("#area").evaluate("x => parseFloat(getComputedStyle(x).fontSize)") > 20


COLOURS = """(token, side) => {
    token.style.setProperty('--strength', 1);
    token.dataset.side = side;
    const context = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
    const fill = (colour) => { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); };
    const pixel = () => [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
    fill(getComputedStyle(document.querySelector('.card')).backgroundColor);
    fill(getComputedStyle(token).backgroundColor);
    const below = pixel();
    fill(getComputedStyle(token).color);
    return [below, pixel()];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_the_strongest_tint(open_page, scheme):
    """By the WCAG's contrast of 4.5, for each colour of a token; own tokens look different by a line."""
    page = open_page(color_scheme=scheme)
    write(page, "the quick")
    for side in ("", "good", "bad", "read", "reader"):
        colours = page.locator(".token").nth(1).evaluate(COLOURS, side)
        light, dark = sorted((luminance(colour) for colour in colours), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, side
    style = "token => getComputedStyle(token).textDecorationLine"
    assert page.locator(".token.mine").first.evaluate(style) == "underline"


def luminance(colour):
    linear = [x / 12.92 if (x := c / 255) <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_forced_colours_keep_a_tint_as_a_line_and_a_label_says_the_probability(open_page):
    page = open_page(forced_colors="active")
    write(page, "the quick")
    token = page.locator(".token").nth(3)
    assert re.fullmatch(r"token \S+, [\d.<]+%", token.get_attribute("aria-label"))
    token.evaluate("token => token.style.setProperty('--strength', 1)")
    assert token.evaluate("token => getComputedStyle(token).textDecorationThickness") == "5px"
    bar = page.locator(".place .bar").last
    assert bar.evaluate("bar => getComputedStyle(bar).backgroundColor") == "rgb(63, 91, 216)"
    for element in ("div.text", "#area"):
        assert page.locator(element).get_attribute("dir") == "auto"


@with_axe
@pytest.mark.parametrize("scheme", ["light", *slowly("dark")])
def test_axe_finds_nothing(open_page, scheme):
    page = open_page(color_scheme=scheme)
    write(page, "the quick")
    for view in VIEWS:
        page.click(f"#tab-{view}")
        page.wait_for_selector(READY[view])
        assert found_by_axe(page) == [], view
