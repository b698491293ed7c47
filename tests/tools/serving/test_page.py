"""The page in a real browser."""

import json
import re
import shutil

import pytest

from data.tokenizer import CharTokenizer
from tests.tools.serving.conftest import save_random
from tests.tools.serving.on_page import (
    VIEWS,
    both,
    both_at_last,
    button,
    chosen,
    chosen_head,
    expect,
    focused,
    kept,
    press,
    show,
    take,
    text_of,
    write,
    written,
)
from tests.tools.serving.served_run import ITERATIONS, TEXT, serving, starting

# --- writing ------------------------------------------------------------------------------------------------


@both
def test_a_text_is_written_looked_at_and_gone_on_from_elsewhere(page):
    write(page, "the <b>qu")
    first = text_of(page)
    assert first.startswith("the <b>qu") and len(first) == len("the <b>qu") + 20
    assert page.locator(".by").inner_text() == "written by iter-20, with the seed 1"
    page.locator(".token").nth(12).click()
    page.wait_for_selector(".place h3:has-text('token 13')")
    for key, place in (("ArrowRight", 14), ("ArrowLeft", 13)):  # though the pointer rests on a token
        page.keyboard.press(key)
        page.wait_for_selector(f".place h3:has-text('token {place}')")
    choices = page.locator(".place button.choice")
    assert choices.count() == 10
    shares = [float(x) for x in re.findall(r"([\d.]+)%", " ".join(choices.all_inner_texts()))]
    assert 0 < sum(shares[::2]) <= 100.5 and 0 < sum(shares[1::2]) <= 100.5  # the model's, and as drawn
    taken = take(choices.nth(3))
    written(page)
    second = text_of(page)
    assert second[:13] == first[:12] + taken and len(second) == 13 + 20


@both_at_last
def test_the_text_is_edited_anywhere_and_undo_keeps_what_was_typed(open_page):
    page = open_page(expected=["400 (Bad Request)"])
    write(page, "the quick")
    first = text_of(page)
    page.locator(".token").nth(4).dblclick()
    area = page.locator("#area")
    assert area.input_value() == first
    assert area.evaluate("area => area.selectionStart") == 4
    page.keyboard.type("lazy ")
    press(page, "Undo", first)
    press(page, "Redo", "the lazy " + first[4:])
    button(page, "Edit").click()
    area.fill("Ω")
    button(page, "Done").click()
    page.wait_for_selector(".message.bad:has-text('vocabulary')")
    assert area.is_visible()  # what was typed is not lost


def test_all_of_writing_by_keyboard(page):
    page.locator("#area").focus()
    page.keyboard.type("the ")
    page.keyboard.press("Control+Enter")
    written(page, 100)
    assert focused(page, "class").startswith("token")
    page.keyboard.press("Home")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector(".place h3:has-text('token 7')")
    page.keyboard.press("Enter")
    assert focused(page, "title").startswith("go on with")
    page.keyboard.press("Escape")
    assert chosen(page) == 6 and focused(page).startswith("token")
    before = text_of(page)
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # the likeliest, at the same place
    expect(page.locator("div.text > .token")).to_have_count(7 + 100 + 1)
    written(page, 100)
    assert text_of(page)[:6] == before[:6]
    assert focused(page) != "BODY"
    page.keyboard.press("Control+z")
    expect(page.locator("div.text")).to_have_text(before + "▸")
    page.keyboard.press("Control+Shift+z")
    page.keyboard.press("Control+Enter")  # goes on, wherever the focus is
    expect(page.locator("div.text > .token")).to_have_count(7 + 200 + 1)
    page.locator("#tab-write").focus()
    for view in VIEWS[1:]:
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(f"#{view}:visible")
        assert page.get_attribute(f"#tab-{view}", "aria-selected") == "true"


@both_at_last
def test_the_first_keys_begin_a_text_of_ones_own(open_page):
    page = open_page(empty=False)
    page.wait_for_selector(".place .choice")
    assert text_of(page) == TEXT[-300:][:32]  # the beginning of the validation text
    page.keyboard.type("the")
    assert page.locator("#area").input_value() == "the"
    page.keyboard.press("Escape")
    expect(page.locator("div.text")).to_have_text("the▸")
    press(page, "Undo", TEXT[-300:][:32])


def test_the_panel_follows_what_is_typed_which_is_one_change(page):
    show(page, "the lazy dog")
    button(page, "Edit").click()
    for typed in ("the q", "the quick"):
        page.locator("#area").fill(typed)
        page.wait_for_function(
            "n => new URLSearchParams(location.hash.split('?')[1]).get('t')?.split('.').length === n",
            arg=len(typed),
        )
        page.wait_for_selector(".place h3:has-text('What comes next')")
    page.get_by_label("Tokens", exact=True).fill("5")
    taken = take(page.locator(".place button.choice").nth(1))
    written(page, 5)
    assert text_of(page).startswith("the quick" + taken) and len(text_of(page)) == len("the quick") + 1 + 5
    press(page, "Undo", "the quick")
    press(page, "Undo", "the lazy dog")


def test_a_value_out_of_range_is_marked_and_not_sent(page):
    page.locator("#area").fill("the ")
    sent = []
    page.on("request", lambda request: sent.append(request.url) if "completions" in request.url else None)
    field = page.get_by_label("Tokens", exact=True)
    field.fill("99999")
    assert field.evaluate("field => field.matches(':invalid')")
    page.wait_for_selector(".wrong:has-text('1 to 256')")
    button(page, "Write").click()
    assert field.input_value() == "99999" and focused(page) == "Tokens" and not sent
    page.get_by_role("tab", name="Lens").click()
    button(page, "Write").click()  # shows the field
    assert field.is_visible() and focused(page) == "Tokens" and not sent
    field.fill("5")
    assert page.locator(".wrong:visible").count() == 0
    button(page, "Write").click()
    written(page, 5)


def test_a_server_that_allows_few_tokens_is_asked_for_no_more(open_page, browser):
    def allow_few(route):
        told = route.fetch().json()
        told["limits"]["max_tokens"] = 20
        route.fulfill(json=told)

    (context := browser.new_context()).route("**/inside/model", allow_few)
    page = open_page(context=context)
    page.locator("#area").fill("the ")
    button(page, "Write").click()
    written(page, 20)
    context.close()


def test_a_long_text_scrolls_along_while_it_is_written(open_page):
    page = open_page(viewport={"width": 800, "height": 500})
    write(page, "\n".join("the quick" for _ in range(30)), tokens=200)
    box = page.locator("div.text")
    assert box.evaluate("box => box.scrollTop + box.clientHeight > box.scrollHeight - 60")
    assert box.evaluate("box => box.clientHeight <= 0.6 * innerHeight + 1")


def test_a_page_opened_before_there_is_a_model_becomes_usable_by_itself(open_page, run, tmp_path):
    waiting = "no model yet · waiting for the first checkpoint of run"
    with starting(out_dir=str(tmp_path / "run"), follow=True) as server:
        page = open_page(expected=["503"], empty=False, at=f"{server.address}/", shows=waiting)
        page.locator("#area").fill("the ")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(".message.bad:has-text('try again later')")
        shutil.copytree(run, tmp_path / "new")
        (tmp_path / "new").rename(tmp_path / "run")
        page.wait_for_selector("#model:has-text('run, iter-20')")
        page.keyboard.press("Control+Enter")
        written(page, 100)
        assert text_of(page).startswith("the ")
        page.close()  # before the server ends, which it asks every second


# --- one token in five views --------------------------------------------------------------------------------


def test_a_chosen_token_is_the_same_in_all_views_and_in_the_url(page, open_page):
    show(page, "the quick brown fox")
    page.locator(".token").nth(4).click()
    page.wait_for_selector(".path button")
    page.click("#tab-lens")
    page.wait_for_selector("#lens button.chosen[data-place='4']")
    page.click("#tab-attention")
    page.wait_for_selector("#attention .most:has-text('At ␣, before it wrote q')")
    page.locator(".token").nth(4).focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#attention .most:has-text('At q, before it wrote u')")
    page.click("#tab-loss")
    page.wait_for_selector("#loss .figures dt:has-text('bits of the chosen token')")
    page.click("#tab-write")
    page.wait_for_selector(".place h3:has-text('token 6')")
    page.wait_for_function("() => location.hash.includes('at=5')")
    page.click("#tab-lens")
    page.wait_for_selector("#lens button.chosen[data-place='5']")
    page.wait_for_function("() => location.hash.startsWith('#/lens?')")
    other = open_page(page.url, empty=False)
    other.wait_for_selector("#lens button.chosen[data-place='5']")
    assert text_of(other) == "the quick brown fox"
    page.go_back()
    page.wait_for_selector("#write:visible")
    assert text_of(page) == "the quick brown fox"


def test_how_a_token_came_to_be_is_played_stepped_and_stopped(open_page):
    page = open_page(reduced_motion="reduce")
    show(page, "the quick")
    steps = page.locator(".path button")
    expect(steps).to_have_count(1 + 2 + 2)  # the embedding, two layers, softmax and draw
    button(page, "Step").click()
    page.wait_for_selector(".path-told:has-text('attention adds')")
    assert steps.nth(1).get_attribute("aria-current") == "step"
    button(page, "Play").click()
    page.wait_for_selector(".path-told:has-text('one is drawn')")
    button(page, "Play").wait_for()  # it has ended
    button(page, "Back").click()
    page.wait_for_selector(".path-told:has-text('softmax')")
    assert page.locator(".dot").evaluate("dot => getComputedStyle(dot).transitionDuration") == "0s"
    steps.nth(2).click()
    button(page, "Look closer in Attention").click()
    page.wait_for_selector("#attention:visible")
    assert chosen_head(page).startswith("layer 2, ")


@both_at_last
def test_attention_of_a_token_and_of_all_heads(open_page):
    page = open_page("attention?layer=7&head=2")  # which is not there: the sharpest is shown
    show(page, "the quick brown fox jumps")
    page.wait_for_selector("#attention .grid canvas")
    assert re.fullmatch("layer [12], head [12]", chosen_head(page))
    assert page.locator("#attention .grid button").count() == 2 * 2
    page.locator(".token").nth(7).click()
    page.wait_for_selector("#attention .most:has-text('back')")
    shade = "token => Number(token.style.getPropertyValue('--strength'))"
    read = [token.evaluate(shade) for token in page.locator("div.text > .token").all()]
    assert max(read[:7]) > 0 and not any(read[7:])  # it was written from those before it
    shares = page.locator(".token").nth(6).get_attribute("aria-label")
    assert re.search(r"token i, [\d.<]+%? read", shares)
    sharpest = page.evaluate("() => document.querySelector('.matrix').toDataURL()")
    before = chosen_head(page)
    page.locator("#attention .grid button[tabindex='0']").focus()  # the one that Tab leads to
    page.keyboard.press("ArrowRight")
    assert focused(page) == chosen_head(page) != before and chosen_head(page)[:7] == before[:7]
    page.keyboard.press("ArrowDown")
    assert focused(page) == chosen_head(page) and chosen_head(page)[:7] != before[:7]
    assert page.evaluate("() => document.querySelector('.matrix').toDataURL()") != sharpest
    corner = "document.querySelector('.matrix').getContext('2d').getImageData(0, 0, 1, 1).data[3]"
    assert page.evaluate(corner) == 255  # the first token reads itself alone
    page.locator(".matrix").hover(position={"x": 3, "y": 3})
    page.wait_for_selector("#attention .told:has-text('t (token 1) gives 100% of its attention to t')")


@both_at_last
def test_a_cell_explains_its_arithmetic(open_page):
    page = open_page("attention")
    show(page, "the quick")
    page.wait_for_selector("#attention .most:has-text('before it wrote')")
    page.locator("#attention .grid button").nth(0).click()
    page.locator(".token").nth(6).click()
    page.locator(".frame").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".arithmetic:has-text('softmax')")
    told = page.locator(".arithmetic").inner_text()
    share = re.search(r"= ([\d.<]+%)", told)
    assert share and share[1] in page.locator("#attention .told").inner_text() and "√8" in told
    page.keyboard.press("ArrowUp")
    page.wait_for_function("() => /read=\\d+/.test(location.hash)")
    assert chosen(page) == 5


@both_at_last
def test_the_lens_layer_by_layer(open_page):
    page = open_page("lens")
    show(page, "the quick")
    expect(page.locator("#lens .lens tbody td")).to_have_count(3 * 9)  # the embedding and two layers
    assert "tied embeddings" in page.locator("#lens").inner_text()
    page.locator("#lens .lens tfoot button").nth(2).click()
    assert chosen(page) == 3
    page.keyboard.press("ArrowRight")
    assert chosen(page) == 4
    assert page.locator("#lens td.chosen").count() == 3
    likeliest = page.locator("#lens td.chosen").first.get_attribute("title").splitlines()
    assert len(likeliest) == 5 and all(re.fullmatch(r". [\d.<]+%|. 0", line) for line in likeliest)
    page.locator("#lens td.chosen").first.click()
    assert page.locator("#lens-note").inner_text() == ", ".join(likeliest)
    page.locator("#lens tfoot button.chosen").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#lens-note")).to_have_text("")


def test_the_slider_replays_the_training(open_page):
    page = open_page("loss")
    last = str(len(ITERATIONS) - 1)
    expect(page.locator("#loss input[type=range]")).to_have_attribute("max", last)
    show(page, "the quick brown fox jumps over the lazy dog")
    expect(page.locator("#loss circle")).to_have_count(2 * len(ITERATIONS))  # the text, and the chosen token
    figures = page.locator("#loss .figures dd")
    last = float(figures.first.inner_text())
    page.get_by_label("Checkpoint", exact=True).focus()
    page.keyboard.press("Home")
    page.wait_for_selector("#loss output:has-text('iteration 5')")
    page.wait_for_function(f"() => Number(document.querySelector('#loss .figures dd').textContent) > {last}")
    perplexity = 2 ** float(figures.first.inner_text())
    assert float(figures.nth(1).inner_text()) == pytest.approx(perplexity, rel=1e-2)
    page.wait_for_selector(".place .what:has-text('at iter-5')")
    page.get_by_label("Compared with").select_option("iter-20")
    page.wait_for_selector("#loss .figures dd:has-text('/')")
    tinted = "div.text > .token[data-side={}]"
    worse, better = (page.locator(tinted.format(side)).count() for side in ("bad", "good"))
    assert worse > better and worse + better == 42  # iteration 5 knew less of the text's tokens
    page.wait_for_function("() => location.hash.includes('checkpoint=iter-5&other=iter-20')")
    button(page, "Replay").click()
    page.wait_for_selector("#loss output:has-text('iteration 20')")
    button(page, "Replay").wait_for()


# --- the run ------------------------------------------------------------------------------------------------


@pytest.fixture
def metrics(run):
    """The run's records, which are as before after the test."""
    path = run / "metrics.jsonl"
    before = path.read_text()
    yield path
    path.write_text(before)


@pytest.mark.slow
def test_a_run_that_learns_from_rewards_shows_rewards(open_page, metrics):
    lines = [
        {"iter": 0, "val/reward": 0.75},
        {"iter": 0, "loss": 0.1, "reward": 0.5},
        {"iter": 1, "val/reward": 0.25},
    ]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = open_page("run", empty=False)
    page.wait_for_selector("#run-figures dd:has-text('0.750 at 0')")  # the highest
    names = page.locator("#run-figures dt").all_inner_texts()
    assert "best held-out reward" in names and "reward of the batch" in names
    caption = page.locator("#run-chart figcaption").inner_text()
    assert caption.startswith("Mean reward, 1 for a right answer, by iteration")
    assert page.locator("#run-chart").get_by_text("nats").count() == 0


@pytest.mark.slow
def test_the_curves_grow_while_the_run_trains(open_page, metrics):
    page = open_page("run", empty=False)
    page.wait_for_selector("#run-figures dd")
    assert page.locator("#run-figures dd").first.inner_text() == "20"
    dtype = page.locator("#shape div:has(dt:text-is('dtype')) dd").inner_text()
    assert dtype in ("float32", "bfloat16")
    before = page.locator("#run path.c3").get_attribute("d")
    with metrics.open("a") as file:
        file.write(json.dumps({"iter": 29, "loss": 0.5, "lr": 1e-3, "grad_norm": 1.0}) + "\n")
        file.write(json.dumps({"iter": 30, "val/loss": 0.75, "train/loss": 0.5}) + "\n")
    page.wait_for_selector("#run-figures dd:has-text('0.750 at 30')")
    page.wait_for_selector("#run .message:has-text('new ones appear')")
    assert page.locator("#run path.c3").get_attribute("d") != before
    assert page.locator("#run .parameters tbody tr").count() == 12  # with positions, and an embedding
    assert page.locator("#run .parameters th:empty").count() == 0
    page.click("#tab-write")  # then no more records are asked for
    page.wait_for_selector("#write:visible")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    assert [url for url in asked if "inside/run" in url] == []


def test_a_chart_tells_all_curves_zooms_smooths_and_has_a_logarithmic_axis(open_page):
    page = open_page("run", empty=False)
    page.wait_for_selector("#run-figures dd")
    chart, told = page.locator("#run svg").first, page.locator("#run .told")
    chart.hover()
    page.wait_for_selector("#run .told:has-text(' at ')")
    assert all(name in told.first.inner_text() for name in ("batch", "train", "validation"))
    assert all("at 1" in told.nth(i).inner_text() for i in range(1, 5))  # the other charts, at the same x
    box = chart.bounding_box()
    curve = page.locator("#run path.c3").first
    before = curve.get_attribute("d")
    page.get_by_role("checkbox", name="log").check()
    assert curve.get_attribute("d") != before
    page.get_by_label("smooth").fill("0.9")
    assert page.locator("#run path.c3").count() == 2  # as it is, fainter, and smoothed
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 50)
    page.mouse.up()
    assert page.locator("#run button:has-text('Whole range'):visible").count() == 5  # they zoom together
    page.locator("#run button:has-text('Whole range'):visible").first.click()
    assert page.locator("#run button:has-text('Whole range'):visible").count() == 0


# --- kept ---------------------------------------------------------------------------------------------------


@both_at_last
def test_a_reload_keeps_the_text_and_all_that_can_be_undone(page):
    write(page, "the quick")
    first = text_of(page)
    button(page, "Regenerate").click()
    page.wait_for_selector(".by:has-text('with the seed 2')")
    written(page)
    second = text_of(page)
    assert second != first and second.startswith("the quick") and len(second) == len(first)
    page.wait_for_function("() => location.hash.includes('seed=2')")  # which follows after a while
    page.reload()
    expect(page.locator("div.text")).to_have_text(second + "▸")
    assert page.get_by_label("Seed").input_value() == "2"
    press(page, "Undo", first)
    press(page, "Redo", second)


def test_a_reload_in_mid_stream_keeps_what_was_written(page):
    page.get_by_label("Tokens", exact=True).fill("256")
    page.locator("#area").fill("the quick")
    button(page, "Write").click()
    kept = "() => Object.values(localStorage).map(JSON.parse).some(({ text }) => text.tokens.length > 20)"
    page.wait_for_function(kept)
    page.reload()
    page.wait_for_selector("div.text > .token")
    assert text_of(page).startswith("the quick") and len(text_of(page)) > 20


@both_at_last
def test_what_is_typed_is_there_after_a_reload(page):
    area = page.locator("#area")
    area.fill("the lazy")
    page.reload()
    expect(area).to_have_value("the lazy")
    button(page, "Done").click()
    button(page, "Edit").click()
    area.fill("the lazy dog")
    page.reload()
    expect(area).to_have_value("the lazy dog")
    button(page, "Done").click()
    press(page, "Undo", "the lazy")


def test_what_is_typed_before_the_model_is_there_is_another_text(page):
    show(page, "the quick")
    page.route("**/inside/model", lambda route: (page.locator("#area").fill("the end"), route.continue_()))
    page.reload()
    expect(page.locator("#area")).to_have_value("the end")
    press(page, "Done", "the end")
    expect(kept(page)).to_have_text(["the end", "the quick"])


@both_at_last
def test_texts_are_kept_with_names_and_two_tabs_keep_their_own(open_page):
    page = open_page(expected=["Remove"])
    show(page, "the quick")
    button(page, "History").click()
    page.get_by_label("name of this text").fill("my first")
    page.keyboard.press("Escape")
    other = open_page(context=page.context)
    show(other, "the lazy dog")
    names = kept(other)
    expect(names).to_have_text(["the lazy dog", "my first"])
    names.nth(1).click()
    expect(other.locator("div.text")).to_have_text("the quick▸")
    page.reload()
    expect(page.locator("div.text")).to_have_text("the quick▸")
    names = kept(page)
    for answer, left in (("dismiss", 2), ("accept", 1)):
        page.once("dialog", lambda dialog, answer=answer: getattr(dialog, answer)())
        page.get_by_label("remove the lazy dog").click()
        expect(names).to_have_count(left)


def test_escape_or_another_text_ends_the_writing(page):
    show(page, "the quick")
    button(page, "New").click()
    page.route("**/v1/completions", lambda route: None)  # it never answers
    page.locator("#area").fill("the lazy dog")
    button(page, "Write").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".message:has-text('writing')")
    kept(page)
    page.keyboard.press("Escape")  # closes the history alone
    expect(page.locator("#history")).to_be_hidden()
    expect(page.locator("#message")).to_have_text("writing …")
    button(page, "Stop").focus()
    page.keyboard.press("Escape")
    page.wait_for_selector(".message:has-text('stopped after 0 tokens')")
    assert page.evaluate("() => document.activeElement.textContent") == "Write"
    page.keyboard.press("Enter")
    page.wait_for_selector(".message:has-text('writing')")
    kept(page).filter(has_text="the quick").click()
    page.wait_for_selector(".message:has-text('stopped after 0 tokens')")
    expect(page.locator("div.text")).to_have_text("the quick▸")
    assert page.locator("#history").is_hidden()


def test_what_was_typed_stays_when_another_text_is_opened_or_removed(open_page):
    page = open_page(expected=["Remove"])
    page.on("dialog", lambda dialog: dialog.accept())
    show(page, "the quick")
    button(page, "New").click()
    page.locator("#area").fill("the lazy dog")
    kept(page).filter(has_text="the quick").click()
    expect(page.locator("div.text")).to_have_text("the quick▸")
    kept(page).filter(has_text="the lazy dog").click()
    expect(page.locator("#area")).to_have_value("the lazy dog")
    button(page, "Done").click()
    kept(page)
    page.get_by_label("remove the lazy dog").click()
    page.keyboard.press("Escape")
    expect(page.locator("#area:visible")).to_have_value("")
    show(page, "the end")
    expect(kept(page)).to_have_text(["the end", "the quick"])


def test_of_a_long_text_a_view_shows_the_part_around_the_chosen_token(open_page):
    page = open_page("attention")
    show(page, "the quick " * 16)
    page.wait_for_selector("#attention .most:has-text('before it wrote')")
    page.locator(".token").nth(3).click()
    page.wait_for_selector("#attention .most:has-text('At e, before it wrote ␣')")
    page.locator(".token").nth(140).click()
    page.wait_for_selector("#attention .most:has-text('At ␣, before it wrote t')")
    page.locator(".frame").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#place h3")).to_contain_text("token 142 of 160")
    page.get_by_role("tab", name="Lens").click()
    page.locator("#lens-table button.chosen").focus()
    for place in (142, 143):
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#lens-table button[data-place='{place}']")).to_be_focused()


def test_a_full_storage_costs_no_other_text(page):
    show(page, "the quick")
    button(page, "New").click()
    page.evaluate("localStorage.setItem('filler', 'x'.repeat(5 * 2 ** 20 - 5000))")
    for words in ("the lazy dog", "the end of the story", "what " * 50):
        show(page, words)
    page.wait_for_selector(".message:has-text('storage is full')")
    expect(kept(page).filter(has_text="the quick")).to_have_count(1)


# --- the server ---------------------------------------------------------------------------------------------


def test_the_key_is_asked_for_until_it_is_right_or_the_reader_has_none(browser, run):
    def visit(*gives):
        page, answers = browser.new_context().new_page(), iter(gives)

        def answer(dialog):
            key = next(answers)  # one more dialog would fail
            dialog.dismiss() if key is None else dialog.accept(key)

        page.on("dialog", answer)
        page.goto(at)
        return page

    with serving(out_dir=str(run), api_key="a-secret-key", compiled=False) as (at, _):
        page = visit(None)
        page.wait_for_selector("#model:has-text('Reload the page')")
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(2500)  # the page has looked for a model again
        assert asked and not [url for url in asked if "/inside/" in url]
        page.context.close()

        page = visit("another-key", "a-secret-key\u200b")  # with a space of no width, as from a page
        page.wait_for_selector(".by:has-text('An example')")
        button(page, "Write").click()
        written(page, 100)
        page.reload()
        page.wait_for_selector("#model:has-text('parameters')")
        page.context.close()


def test_the_header_follows_the_server_without_a_reload(open_page, server):
    page = open_page(expected=["404 (Not Found)"])  # it may ask of what is gone again
    write(page, "the quick")
    worker = server[1].worker
    for version in ("iter-21", "iter-20"):
        worker.replace(worker.model, version)
        page.wait_for_selector(f"#model:has-text('{version}')")
        assert page.locator(".by").inner_text() == "written by iter-20, with the seed 1"
    status = {"status": "compiling 3 of 8", "version": "iter-20"}
    page.route("**/health", lambda route: route.fulfill(json=status))
    page.wait_for_selector("#status:has-text('compiling 3 of 8')")
    page.unroute("**/health")
    page.wait_for_selector("#status:empty", state="attached")


def test_undo_of_an_emptied_field_takes_back_no_more(page):
    write(page, "the ", 5)
    text = text_of(page)
    button(page, "Edit").click()
    page.locator("#area").fill("")
    press(page, "Undo", text)


def test_nobody_waits_for_answers_about_a_text_that_is_gone(page):
    page.route("**/inside/places", lambda route: None)
    with page.expect_request("**/inside/places"):
        show(page, "the ")
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/places")):
        show(page, "the fox")


def test_another_model_at_the_address_leaves_the_texts_of_the_first(open_page, tmp_path):
    for name, symbols in (("first", "abc"), ("second", "xyz")):
        save_random(tmp_path / name, CharTokenizer(symbols))
    with serving(compiled=False, out_dir=str(tmp_path / "first")) as (address, _):
        page = open_page(at=f"{address}/", empty=False, expected=["Failed to load resource"])
        show(page, "abba")
    with serving(compiled=False, out_dir=str(tmp_path / "second"), port=int(address.split(":")[-1])):
        page.wait_for_selector("header:has-text('second')")
        expect(page.locator("#area")).to_be_visible()
        expect(page.locator("#area")).to_have_value("")
        show(page, "xyz")
        expect(kept(page)).to_have_text(["xyz"])
        texts = "() => Object.values(localStorage).map((kept) => JSON.parse(kept).model)"
        assert sorted(page.evaluate(texts)) == ["first", "second"]
