"""The page in a real browser: Debian's chromium, headless, driven by Playwright.

Whatever a test does, the page asks no other host and logs no error. A test of each view runs by default, the
others with -m slow.
"""

import json
import re

import pytest

from tests.tools.serving.served_run import ITERATIONS, serving

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install -r requirements-dev.txt"
)
PHONE = {"width": 360, "height": 740}
VIEWS = ["write", "attention", "lens", "loss", "run"]


@pytest.fixture
def open_page(browser, server):
    """`open_page(view, ...)` opens the page; afterwards what it asked for and logged is looked at."""
    contexts, asked, logged = [], [], []

    def open_page(view="write", expected=(), **settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: logged.append(str(error)))
        page.on("dialog", lambda dialog: logged.append(f"dialog: {dialog.message}"))

        def log(message):
            if message.type in ("error", "warning") and not any(text in message.text for text in expected):
                logged.append(message.text)

        page.on("console", log)
        page.goto(f"{server[0]}/#/{view}")
        page.wait_for_selector("#model:has-text('parameters')")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert logged == []
    assert [url for url in asked if not re.match(r"http://127\.0\.0\.1:\d+/", url)] == []


def button(page, name):
    return page.get_by_role("button", name=name, exact=True)


def write(page, text, tokens=20, seed=1):
    """Write with the page from a beginning; return when all is there, with what could have stood where."""
    page.get_by_label("Tokens", exact=True).fill(str(tokens))
    page.get_by_label("Seed").fill(str(seed))
    page.locator("#write textarea").fill(text)
    with page.expect_response("**/inside/places"):
        button(page, "Write").click()
    page.wait_for_selector(f"#write .message:has-text('{tokens} tokens in')")
    page.wait_for_selector("#write .token[aria-label='what comes next']")


def text_of(page, view="write"):
    """The text that the tokens of a view spell."""
    return "".join(
        token for token in page.locator(f"#{view} .text > .token").all_text_contents()
    ).removesuffix("▸")


def look(page, text, view):
    page.locator(f"#{view} textarea").fill(text)
    page.locator(f"#{view}").get_by_role("button", name="Look").click()


def test_a_text_is_written_looked_at_and_gone_on_from_elsewhere(open_page):
    page = open_page()
    write(page, "the <b>qu")
    first = text_of(page)
    assert first.startswith("the <b>qu") and len(first) == len("the <b>qu") + 20
    token = page.locator("#write .token").nth(12)
    token.hover()
    choices = page.locator(".popover button.choice")
    choices.first.wait_for()
    assert choices.count() == 10
    shares = [float(x) for x in re.findall(r"([\d.]+)%", " ".join(choices.all_inner_texts()))]
    assert 0 < sum(shares[::2]) <= 100.5 and 0 < sum(shares[1::2]) <= 100.5  # the model's, and as drawn
    other = choices.nth(3)
    taken = other.locator("code").inner_text().replace("␣", " ").replace("⏎", "\n")
    with page.expect_response("**/inside/places"):
        other.click()
    page.wait_for_selector("#write .message:has-text('tokens in')")
    second = text_of(page)
    assert second[:13] == first[:12] + taken and len(second) == 13 + 20
    button(page, "Undo").click()
    playwright.expect(page.locator("#write div.text")).to_have_text(first + "▸")
    button(page, "Regenerate").click()
    page.wait_for_selector("#write .message:has-text('with the seed 2')")
    again = text_of(page)
    assert again != first and again.startswith("the <b>qu") and len(again) == len(first)


@pytest.mark.slow
def test_the_text_is_edited_anywhere(open_page):
    page = open_page(expected=["400 (Bad Request)"])
    write(page, "the quick")
    written = text_of(page)
    page.locator("#write .token").nth(4).dblclick()
    area = page.locator("#write textarea")
    assert area.input_value() == written
    assert area.evaluate("area => area.selectionStart") == 4
    page.keyboard.type("lazy ")
    with page.expect_response("**/inside/places"):
        button(page, "Done").click()
    assert text_of(page) == "the lazy " + written[4:]
    button(page, "Edit").click()
    area.fill("Ω")
    button(page, "Done").click()
    page.wait_for_selector("#write .message.bad:has-text('vocabulary')")
    assert area.is_visible()  # what was typed is not lost


def test_all_of_writing_by_keyboard(open_page):
    page = open_page()
    page.locator("#write textarea").focus()
    page.keyboard.type("the ")
    with page.expect_response("**/inside/places"):
        page.keyboard.press("Control+Enter")
    page.wait_for_selector("#write .token[aria-label='what comes next']")
    page.locator("#write .token").first.focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector(".popover .choice")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    focused = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("go on with")
    page.keyboard.press("Escape")
    assert page.locator(".popover").is_hidden()
    assert page.evaluate("() => document.activeElement.className").startswith("token")
    before = text_of(page)
    page.keyboard.press("Enter")
    with page.expect_response("**/inside/places"):
        page.keyboard.press("Enter")  # the likeliest, at the same place
    assert text_of(page)[:6] == before[:6]
    page.keyboard.press("Control+z")
    playwright.expect(page.locator("#write div.text > .token")).to_have_count(len(before) + 1)
    page.locator("#tab-write").focus()
    for view in VIEWS[1:]:
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(f"#{view}:visible .lead")
        assert page.get_attribute(f"#tab-{view}", "aria-selected") == "true"


def test_stop_ends_the_writing(open_page):
    page = open_page()
    page.get_by_label("Tokens", exact=True).fill("256")
    page.locator("#write textarea").fill("the ")
    page.route("**/v1/completions", lambda route: None)  # it never answers
    button(page, "Write").click()
    button(page, "Stop").click()
    page.wait_for_selector("#write .message:has-text('stopped after 0 tokens')")
    assert button(page, "Write").is_enabled()


def test_a_models_text_is_text(open_page):
    page = open_page()
    write(page, "jumps over <img src=x onerror=alert(1)> the <b>", tokens=100)
    for view in VIEWS[1:4]:
        page.click(f"#tab-{view}")
        page.wait_for_selector(f"#{view} .message:has-text('tokens')")
    assert page.locator("main img, main b").count() == 0
    assert "<img" in text_of(page)


def test_attention_of_a_token_and_of_all_heads(open_page):
    page = open_page("attention")
    look(page, "the quick brown fox jumps", "attention")
    page.wait_for_selector("#attention .grid canvas")
    assert page.locator("#attention .grid button").count() == 2 * (2 + 1)
    page.locator("#attention .token").nth(6).click()
    told = page.locator("#attention .most").inner_text()
    assert told.startswith("token") and "back" in told
    shade = "token => Number(token.style.getPropertyValue('--strength'))"
    read = [token.evaluate(shade) for token in page.locator("#attention .token").all()]
    assert max(read[:7]) > 0 and not any(read[7:])  # none behind it
    average = page.evaluate("() => document.querySelector('.matrix').toDataURL()")
    page.locator("#attention .grid button").nth(1).click()
    assert [page.get_by_label(name, exact=True).input_value() for name in ("Layer", "Head")] == ["0", "1"]
    assert page.evaluate("() => document.querySelector('.matrix').toDataURL()") != average
    assert page.locator("#attention .most").inner_text() != told
    page.locator(".matrix").hover(position={"x": 3, "y": 3})
    page.wait_for_selector("#attention .told:has-text('t (0) reads 100% of t (0)')")


def test_a_text_that_is_too_long_is_cut_and_the_page_says_so(open_page):
    page = open_page("attention")
    look(page, "the quick brown fox jumps over the lazy dog", "attention")
    page.wait_for_selector("#attention .message:has-text('last 32 of 43 tokens')")
    assert page.locator("#attention .token").count() == 32


def test_the_lens_layer_by_layer(open_page):
    page = open_page("lens")
    look(page, "the quick", "lens")
    page.wait_for_selector("#lens .norms")
    assert page.locator("#lens .lens tbody tr").count() == 3  # the embedding and two layers
    assert page.locator("#lens .lens tbody td").count() == 3 * 9
    page.locator("#lens .lens tfoot button").nth(2).click()
    assert "Behind e (token 3) comes ␣" in page.locator("#lens h3").nth(1).inner_text()
    page.keyboard.press("ArrowRight")
    assert "(token 4)" in page.locator("#lens h3").nth(1).inner_text()
    assert page.locator("#lens .norm").count() == 3 + 2 + 2


def test_the_slider_replays_the_training(open_page):
    page = open_page("loss")
    last = str(len(ITERATIONS) - 1)
    playwright.expect(page.locator("#loss input[type=range]")).to_have_attribute("max", last)
    look(page, "the quick brown fox jumps over the lazy dog", "loss")
    figures = page.locator("#loss .figures dd")
    figures.first.wait_for()
    last = float(figures.first.inner_text())
    slider = page.get_by_label("Checkpoint", exact=True)
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_selector("#loss output:has-text('iteration 5')")
    page.wait_for_function(f"() => Number(document.querySelector('#loss .figures dd').textContent) > {last}")
    assert float(figures.nth(1).inner_text()) == pytest.approx(
        2 ** float(figures.first.inner_text()), rel=1e-2
    )
    page.get_by_label("Compared with").select_option("iter-20")
    page.wait_for_selector("#loss .figures dd:has-text('/')")
    worse, better = (
        page.locator(f"#loss .text > .token[data-side={side}]").count() for side in ("bad", "good")
    )
    assert worse > better and worse + better == 42  # iteration 5 knew less of the text's tokens
    button(page, "Replay").click()
    page.wait_for_selector("#loss output:has-text('iteration 20')")
    button(page, "Replay").wait_for()
    assert page.locator("#loss circle").count() == len(ITERATIONS)
    page.locator("#loss .text > .token").nth(5).hover()
    page.wait_for_selector(".popover .what:has-text('bits')")
    page.wait_for_selector(".popover .choice")
    assert page.locator(".popover button").count() == 0  # here nothing can be chosen


@pytest.mark.slow
def test_the_curves_grow_while_the_run_trains(open_page, run):
    page = open_page("run")
    page.wait_for_selector("#run .figures dd")
    assert page.locator("#run .figures dd").first.inner_text() == "20"
    assert re.search(r"multiplies in (float32|bfloat16)\.", page.locator("#run").inner_text())
    before = page.locator("#run path.c3").get_attribute("d")
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"iter": 29, "loss": 0.5, "lr": 1e-3, "grad_norm": 1.0}) + "\n")
        file.write(json.dumps({"iter": 30, "val/loss": 0.75, "train/loss": 0.5}) + "\n")
    page.wait_for_selector("#run .figures dd:has-text('0.750 at 30')")
    page.wait_for_selector("#run .message:has-text('training')")
    assert page.locator("#run path.c3").get_attribute("d") != before
    page.locator("#run svg").first.hover()
    assert "at " in page.locator("#run .told").first.inner_text()
    assert page.locator("#run .parameters tbody tr").count() == 12  # with positions, and an embedding
    page.click("#tab-write")  # then no more records are asked for
    page.wait_for_selector("#write:visible")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    assert [url for url in asked if "inside/run" in url] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen(open_page, scheme):
    page = open_page(viewport=PHONE, has_touch=True, is_mobile=True, color_scheme=scheme)
    write(page, "the quick brown fox jumps over <img src=x onerror=alert(1)>", tokens=40)
    page.locator("#write .token").nth(30).tap()
    page.wait_for_selector(".popover .choice")
    box = page.locator(".popover").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]
    page.keyboard.press("Escape")
    for view in VIEWS:
        page.click(f"#tab-{view}")
        if view in VIEWS[1:4]:
            page.wait_for_selector(f"#{view} .message:has-text('tokens')")
        assert page.evaluate("() => document.documentElement.scrollWidth") == PHONE["width"], view
    paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) < 3 * 128) == (scheme == "dark")


def test_a_model_without_a_run_says_so_and_has_no_slider(open_page, server, monkeypatch):
    monkeypatch.setattr(server[1], "run", None)
    page = open_page("run")
    page.wait_for_selector("#run .message:has-text('not loaded from a run')")
    assert page.locator("#run .parameters tbody tr").count() == 12
    page.click("#tab-loss")
    look(page, "the quick", "loss")
    page.wait_for_selector("#loss .figures dd")
    assert page.locator("#loss input[type=range]").is_hidden()


def test_the_key_is_asked_for_and_used(open_page, browser, run):
    with serving(out_dir=str(run), api_key="a-secret-key") as (at, _):
        page = browser.new_context().new_page()
        page.goto(at)
        page.wait_for_selector("#key:visible")
        page.fill("#key-field", "another-key")
        page.keyboard.press("Enter")
        page.wait_for_selector("#model:has-text('key is missing or wrong')")
        page.fill("#key-field", "a-secret-key")
        page.keyboard.press("Enter")
        page.wait_for_selector("#model:has-text('parameters')")
        assert page.locator("#key").is_hidden()
        write(page, "the ")
        page.context.close()


def test_it_says_how_far_the_server_is_with_compiling(open_page):
    page = open_page()
    page.route("**/health", lambda route: route.fulfill(json={"status": "compiling 3 of 8"}))
    page.reload()
    page.wait_for_selector("#status:has-text('compiling 3 of 8')")
    page.unroute("**/health")
    page.wait_for_selector("#status:empty", state="attached")
