"""Conversations with a run, by the API and on the page, and the answers that it learned from."""

import json
import re

import jax
import numpy as np
import pytest

from data.conversations import Renderer, write_conversations
from data.dataset import Dataset
from data.sources import Files
from data.tokenizer import from_json
from data.train_tokenizer import save, train
from data.writer import load_tokenizer
from generation.decode import generate
from generation.sampling import GREEDY
from runs.load import load_run
from tests.helpers import ROOT, slowly
from tests.models import forward, nll
from tests.tools.serving.conftest import save_random
from tests.tools.serving.on_page import PHONE, button, chosen, expect, found_by_axe, with_axe
from tests.tools.serving.served_run import ask, serving
from tools.serving import run_folder
from tools.serving.html_file import html
from tools.serving.run_folder import RunFolder

SAID = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the cat?"}]
NO_EXAMPLE = {"empty": False, "expected": ["404 (Not Found)"]}  # the run has no data set


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    """That of a run whose data had a template of its own, which leaves the first token to us."""
    folder = tmp_path_factory.mktemp("tokenizer")
    save(train(iter(["the cat sat on a mat? be brief"] * 9), 270), folder)
    own = (ROOT / "data/chat.jinja").read_text().replace("{{- bos_token or '' -}}", "")
    return Renderer(Renderer(load_tokenizer(str(folder)), own).learned())


@pytest.fixture(scope="module")
def groups(renderer):
    """One question at three evaluations: rewards rise, and what was learned is the first token."""
    made = []
    for iteration, rewards in ((0, [0, 0, 1, 0]), (10, [1, 0, 1, 0]), (20, [1, 1, 1, 0])):
        answers = []
        for reward in rewards:
            text, gain = ("mat", iteration / 10) if reward else ("cat", -iteration / 10)  # in bits
            tokens = renderer.tokenizer.encode(f"{text}<|im_end|>").tolist()
            before = [-1.0] * len(tokens)
            answer = {"tokens": tokens, "text": text, "reward": float(reward), "before": before}
            answer |= {"advantage": reward - sum(rewards) / 4}
            answers.append(answer | {"logprobs": [-1.0 + gain * np.log(2), *before[1:]]})
        question = {"task": "rhyme", "question": "the cat?", "prompt": renderer.prompt(SAID[1:]).tolist()}
        made.append({"iter": iteration, **question, "answers": answers})
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory, renderer, groups):
    """A run with random weights, the tokenizer of conversations, rollouts, and a run that it began with."""
    folders, shape = tmp_path_factory.mktemp("chats"), {"block_size": 128}
    before = save_random(folders / "before", renderer.tokenizer, seed=7, **shape)
    folder = save_random(folders / "chats", renderer.tokenizer, init_from=str(before), **shape)
    lines = "".join(json.dumps(group) + "\n" for group in groups)
    (folder / "rollouts.jsonl").write_text(lines + lines.partition("\n")[0][:50])  # one is being written
    return folder


@pytest.fixture(scope="module")
def server(run):
    with serving(out_dir=str(run)) as server:
        yield server


# --- the API ------------------------------------------------------------------------------------------------


def test_a_chat_with_a_run_begins_as_in_training(server, renderer):
    whole = renderer([*SAID, {"role": "assistant", "content": "mat"}])
    begun = whole.ids[: np.argmax(whole.learned)].tolist()
    _, prompt = ask(f"{server[0]}/inside/chat", {"messages": SAID})
    assert [token["id"] for token in prompt["tokens"]] == begun == renderer.prompt(SAID).tolist()
    _, answer = ask(f"{server[0]}/v1/chat/completions", {"messages": SAID, "max_tokens": 1})
    assert answer["usage"]["prompt_tokens"] == len(begun)
    assert whole.ids[whole.learned][-1] in server[1].ends


def test_chats_come_first_only_where_the_run_has_learned_some(server, renderer, monkeypatch):
    description = renderer.tokenizer.description
    uses = description["uses"] | {"conversation_start": None}  # as one of data/train_tokenizer.py begins
    for chat, first in ((renderer, True), (Renderer(from_json(description | {"uses": uses})), False)):
        monkeypatch.setattr(server[1], "chat", chat)
        about = ask(f"{server[0]}/inside/model")[1]
        assert about["chat_first"] is first and about["chat"] is None


def test_a_text_is_gone_on_with_by_the_checkpoint_that_is_asked(server, run, renderer):
    prompt, drawing = renderer.prompt(SAID), {"temperature": 0, "seed": 3, "max_tokens": 6}
    for name, folder in ((None, run), ("start", run.parent / "before")):
        model = load_run(str(folder))[0]
        drawn = generate(model, prompt[None], key=jax.random.key(0), max_new_tokens=6, settings=GREEDY)
        expected = np.concatenate(list(drawn), axis=1)[0].tolist()
        body = {"text": prompt.tolist(), "checkpoint": name, **drawing}
        status, told = ask(f"{server[0]}/inside/continuation", body)
        assert status == 200 and [token["id"] for token in told["tokens"]] == expected
        ids = np.array([[*prompt, *expected]], np.int32)
        costs = np.asarray(nll(forward(model, ids[:, :-1]), ids[:, 1:]))[0, -6:]
        assert told["probabilities"] == pytest.approx(np.exp(-costs), rel=1e-3)
    body = {"text": prompt.tolist(), "checkpoint": "none", **drawing}
    assert ask(f"{server[0]}/inside/continuation", body)[0] == 404


def test_first_questions_are_those_of_the_validation_text(renderer, tmp_path, monkeypatch):
    asked = [f"{'the cat sat on a mat?'[i % 9 :].strip()}{i}" for i in range(60)]
    lines = [[{"role": "user", "content": text}, {"role": "assistant", "content": "mat"}] for text in asked]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in lines))
    source = Files([str(tmp_path / "c.jsonl")])
    write_conversations(tmp_path / "data", source, renderer, 127, 0.5, None)
    folder = RunFolder("")
    monkeypatch.setattr(folder, "validation", lambda: Dataset(str(tmp_path / "data")).tokens("val"))
    found = folder.questions(renderer)
    assert len({text.split()[0] for text in found}) == len(found) == 6 and {*found} <= {*asked}
    monkeypatch.setattr(run_folder, "MARK", "user")  # not there once, as what a vocabulary lacks
    assert folder.questions(renderer) == []


def test_rollouts_are_told_as_written_and_nonsense_is_refused_in_a_line(server, run, groups):
    status, told = ask(f"{server[0]}/inside/rollouts")
    assert status == 200 and told["rollouts"] == groups
    answer = groups[0]["answers"][0]
    assert "".join(told["names"][str(token)] for token in answer["tokens"]) == "cat<|im_end|>"
    path = run / "rollouts.jsonl"
    before = path.read_text()
    uneven = {**groups[0], "answers": [{**answer, "before": []}]}
    for nonsense in ("{", "[]", json.dumps({**groups[0], "iter": -1}), json.dumps(uneven)):
        path.write_text(f"{json.dumps(groups[0])}\n{nonsense}\n")
        status, told = ask(f"{server[0]}/inside/rollouts")
        message = told["error"]["message"]
        assert status == 500 and message.startswith("rollouts.jsonl: line 2 ") and "\n" not in message
    path.write_text(before)


# --- Chat ---------------------------------------------------------------------------------------------------


def say(page, text, turns):
    """Send a message, and wait until the answer, the last of `turns`, is there."""
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")
    answered(page, turns)


def answered(page, turns):
    expect(page.locator("#turns li")).to_have_count(turns)
    expect(page.locator("#chat-told")).to_contain_text("tokens in")


def turns_of(page):
    return page.locator("#turns p").all_inner_texts()


def by_the_api(server, renderer, messages, **settings):
    """The texts of an answer's tokens; one in the middle of a character has none, unless it is the last."""
    body = {"messages": messages, "temperature": 0.8, "logprobs": True, **settings}
    _, answer = ask(f"{server[0]}/v1/chat/completions", body)
    feed = renderer.tokenizer.stream()
    *texts, last = [feed([token]) for token in answer["choices"][0]["logprobs"]["token_ids"]]
    return [text or "◌" for text in (*texts, last + feed([], final=True))]


def seed_of(tokens, server, text):
    """A seed with which the model answers so many tokens, and does not end before."""
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0.8, "max_tokens": tokens}
    answers = (ask(f"{server[0]}/v1/chat/completions", body | {"seed": seed})[1] for seed in range(1000))
    return next(i for i, answer in enumerate(answers) if answer["usage"]["completion_tokens"] == tokens)


def test_a_conversation(open_page, server, renderer):
    page = open_page("chat?seed=3&max_tokens=6", viewport=PHONE, **NO_EXAMPLE)
    page.get_by_label("System prompt").fill(SAID[0]["content"])
    say(page, SAID[1]["content"], turns=3)
    tokens = page.locator("#turns li").nth(2).locator(".token")
    expect(tokens).to_have_text(by_the_api(server, renderer, SAID, seed=3, max_tokens=6))
    assert page.evaluate("() => document.documentElement.scrollWidth") == PHONE["width"]
    assert all("%" in label for label in tokens.evaluate_all("all => all.map((one) => one.ariaLabel)"))

    button(page, "Regenerate").click()
    expect(tokens).to_have_text(by_the_api(server, renderer, SAID, seed=4, max_tokens=6))
    answered(page, 3)

    say(page, "on a mat?", turns=5)
    before = turns_of(page)
    page.get_by_label("Message").fill("what is next")
    page.wait_for_function("() => location.hash.includes('seed=4')")  # which follows after a while
    page.reload()
    expect(page.get_by_label("Message")).to_have_value("what is next")
    assert turns_of(page) == before

    page.locator("#turns li").nth(1).get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Edit: You")).to_have_value(SAID[1]["content"])
    page.keyboard.press("Escape")
    assert turns_of(page) == before
    page.locator("#turns li").nth(1).get_by_role("button", name="Edit").click()
    page.keyboard.press("Control+A")
    page.keyboard.type("a <b>cat")
    page.keyboard.press("Enter")
    answered(page, 3)
    assert turns_of(page)[:2] == ["be brief", "a <b>cat"]

    assert page.locator("#turns b").count() == 0  # a text is text

    answer = page.locator("#turns li").nth(2)
    answer.locator(".token").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    drawn = answer.locator(".token").all_text_contents()
    answer.get_by_role("button", name="Attention").click()
    page.wait_for_selector("#most:has-text('this head attended to')")
    prompt = renderer.prompt([SAID[0], {"role": "user", "content": "a <b>cat"}])
    expect(page.locator("#tokens > .token")).to_have_count(len(prompt) + 6 + 1)
    assert page.locator("#tokens > .token").all_text_contents()[len(prompt) : -1] == drawn
    assert chosen(page) == len(prompt) + 2
    ids = page.evaluate("() => new URLSearchParams(location.hash.split('?')[1]).get('t')").split(".")
    assert [int(i, 36) for i in ids[: len(prompt)]] == prompt.tolist()

    page.click("#tab-chat")
    button(page, "New").click()
    assert turns_of(page) == []


def test_what_no_longer_fits_leaves_the_context_and_the_page_says_so(open_page, renderer, run, tmp_path):
    """So does a file, which shows no system prompt if none was learned."""
    tokenizer = Renderer(renderer.tokenizer).learned(system_message=False)
    known = {"name": "chats", "version": "iter-0", "example": []}
    (tmp_path / "model.html").write_text(html(load_run(str(run))[0], known, tokenizer, "bfloat16")[0])
    served = open_page("chat?temperature=0&max_tokens=2", **NO_EXAMPLE)
    expect(served.get_by_label("System prompt")).to_be_visible()
    address = (tmp_path / "model.html").as_uri()
    of_file = open_page("chat?temperature=0&max_tokens=2", at=address, empty=False)
    expect(of_file.get_by_label("Message")).to_be_visible()
    expect(of_file.get_by_label("System prompt")).to_be_hidden()
    for page in (served, of_file):
        for turns in (2, 4, 6):
            expect(page.locator("#chat-told")).not_to_contain_text("no longer fit")
            say(page, "the cat sat on a mat?", turns)
        expect(page.locator("#chat-told")).to_contain_text("The first 2 messages no longer fit")


def test_an_answer_is_stopped_and_an_error_is_said(open_page):
    page = open_page("chat", empty=False, expected=["404 (Not Found)", "400 (Bad Request)"])
    page.route("**/v1/completions", lambda route: None)  # it never answers
    page.get_by_label("Message").fill("the cat?")
    button(page, "Send").click()
    page.wait_for_selector("#chat-told:has-text('answering')")
    button(page, "Stop").click()
    page.wait_for_selector("#chat-told:has-text('stopped after 0 tokens')")
    page.unroute("**/v1/completions")
    page.get_by_label("Message").fill("the cat sat on a mat? " * 30)
    button(page, "Send").click()
    page.wait_for_selector("#chat-told.bad:has-text('maximum context length is 128 tokens')")


def test_a_first_visitor_clicks_a_question_then_another_token(open_page, server):
    page = open_page(f"{server[0]}/", **NO_EXAMPLE)
    assert page.locator("[role=tab]:visible").first.inner_text() == "Chat"
    page.goto(f"{server[0]}/#chat?seed={seed_of(9, server, 'Hello! Who are you?')}&max_tokens=9")
    page.reload()
    page.get_by_role("button", name="Hello! Who are you?").click()
    answered(page, 2)
    tokens = page.locator("#turns li").nth(1).locator(".token")
    drawn = tokens.all_text_contents()
    assert len(drawn) > 3 and page.locator("#questions").is_hidden()
    tokens.nth(2).click()
    choice = page.locator("#alternatives button.choice").nth(4)
    taken = choice.locator("code").inner_text()
    choice.click()
    expect(tokens.nth(2)).to_have_class(re.compile("^token picked"))
    answered(page, 2)
    expect(page.locator("#alternatives")).to_be_hidden()
    assert tokens.all_text_contents()[:2] == drawn[:2]
    shown = tokens.nth(2).text_content().replace(" ", "␣").replace("\n", "⏎")
    assert taken in (shown, "") or taken.startswith("bytes:")


def test_the_checkpoint_before_answers_beside(open_page, server, renderer):
    page = open_page("chat?temperature=0&max_tokens=6", **NO_EXAMPLE)
    page.get_by_label("Beside").select_option("before: before")
    say(page, "the cat?", turns=2)
    other, own = page.locator("#turns li.pair > div").all()
    prompt = renderer.prompt(SAID[1:])
    body = {"text": prompt.tolist(), "checkpoint": "start", "temperature": 0, "seed": 0, "max_tokens": 6}
    expected = [token["text"] or "◌" for token in ask(f"{server[0]}/inside/continuation", body)[1]["tokens"]]
    expect(other.locator(".token")).to_have_text(expected)
    expect(own.locator(".token")).to_have_text(
        by_the_api(server, renderer, SAID[1:], temperature=0, max_tokens=6)
    )
    own.locator(".token").first.click()
    page.wait_for_selector("#alternatives .choice")
    assert "before: before" in other.inner_text() and "iteration 0" in own.inner_text()


def test_an_answer_beside_stays_when_the_next_is_asked_for_before_it_is_there(open_page):
    page = open_page("chat?temperature=0&max_tokens=6", **NO_EXAMPLE)
    page.get_by_label("Beside").select_option("before: before")
    beside, own = [], []
    page.route("**/inside/continuation", lambda route: beside.append(route))
    page.get_by_label("Message").fill("the cat?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chat-told:has-text('before: before: answering')")
    page.route("**/v1/completions", lambda route: own.append(route))
    page.get_by_label("Message").fill("the mat?")
    with page.expect_request("**/v1/completions"):
        page.keyboard.press("Enter")
    beside[0].continue_()
    expect(page.locator("#turns .pair")).to_have_count(1)
    own[0].continue_()
    expect(page.locator("#turns li")).to_have_count(4)
    page.wait_for_selector("#chat-told:has-text('before: before: answering')")
    expect(page.locator("#turns .pair")).to_have_count(1)


def test_what_was_not_learned_is_grey_and_not_in_the_averages(open_page):
    page = open_page("chat?temperature=0&max_tokens=6", **NO_EXAMPLE)
    say(page, "the cat?", turns=2)
    page.locator("#turns li").nth(1).get_by_role("button", name="Attention").click()
    page.wait_for_selector("#most:has-text('this head attended to')")
    page.click("#tab-loss")
    page.wait_for_selector("#loss-figures dt:has-text('tokens of answers')")
    figures = page.locator("#loss-figures div", has_text="tokens of answers").locator("dd")
    assert figures.inner_text() == "6"
    sides = page.locator("#tokens > .token:not(.next)").evaluate_all(
        "all => all.map((one) => one.dataset.side)"
    )
    assert sides == ["unlearned"] * (len(sides) - 6) + [""] * 6
    assert page.locator("#tokens .special").count() == 4  # the document's start, two turns' starts, one end

    def bytes_of_answer():
        rows = page.locator("#loss-figures div").all()
        found = {row.locator("dt").inner_text(): float(row.locator("dd").inner_text()) for row in rows}
        return found["bits per token"] * found["tokens of answers"] / found["bits per byte"]

    before = bytes_of_answer()
    button(page, "Edit").click()
    page.locator("#area").fill(page.locator("#area").input_value() + "<|im_end|>")
    button(page, "Done").click()
    expect(figures).not_to_have_text("6")
    assert bytes_of_answer() == pytest.approx(before, rel=0.01)  # the name of a special token is not text


@with_axe
@pytest.mark.parametrize("scheme", ["light", *slowly("dark")])
def test_axe_finds_nothing_in_chat_and_rollouts(open_page, scheme):
    page = open_page("chat?temperature=0&max_tokens=6", color_scheme=scheme, **NO_EXAMPLE)
    page.wait_for_selector("#questions button")
    assert found_by_axe(page) == []
    page.get_by_label("Beside").select_option("before: before")
    say(page, "the cat?", turns=2)
    page.locator("#turns li.pair .token").last.click()
    page.wait_for_selector("#alternatives .choice")
    assert found_by_axe(page) == []
    page.keyboard.press("Escape")
    page.click("#tab-rollouts")
    page.wait_for_selector("#groups .token")
    assert found_by_axe(page) == []


# --- Rollouts -----------------------------------------------------------------------------------------------


def test_rollouts_before_and_after(open_page, groups):
    page = open_page("rollouts", viewport=PHONE, **NO_EXAMPLE)
    page.wait_for_selector("#groups .token")
    assert page.evaluate("() => document.documentElement.scrollWidth") == PHONE["width"]
    titles = page.locator("#groups h3")
    expect(titles).to_have_text(["Iteration 0: mean reward 0.25", "Iteration 20: mean reward 0.75"])
    assert page.locator("#rewards circle").count() == 3
    after = page.locator("#groups > div").nth(1).locator("li")
    assert "reward 1, advantage +0.25, 3 times" in after.nth(0).inner_text()
    assert "reward 0, advantage −0.75" in after.nth(1).inner_text()
    looks = (
        "token => [token.dataset.side, getComputedStyle(token).getPropertyValue('--strength'), token.title]"
    )
    assert after.nth(0).locator(".token").first.evaluate(looks) == ["good", "0.500", "+2 bits"]
    assert after.nth(1).locator(".token").first.evaluate(looks) == ["bad", "0.500", "−2 bits"]
    page.get_by_label("After").fill("1")
    expect(titles).to_have_text(["Iteration 0: mean reward 0.25", "Iteration 10: mean reward 0.5"])
    after.nth(1).get_by_role("button", name="Logit lens").click()
    group = groups[1]
    length = len(group["prompt"]) + len(group["answers"][1]["tokens"])
    expect(page.locator("#tokens > .token")).to_have_count(length + 1)
    assert chosen(page) == len(group["prompt"])


def test_what_fails_costs_no_answer_and_is_told(open_page):
    page = open_page("chat?max_tokens=6", empty=False, expected=["Failed to load resource"])
    say(page, "the cat?", turns=2)
    before = turns_of(page)
    page.route("**/v1/completions", lambda route: route.abort())
    button(page, "Regenerate").click()
    page.wait_for_selector("#chat-told:has-text('The server does not answer')")
    assert turns_of(page) == before
    page.route("**/inside/places", lambda route: route.fulfill(status=500))
    page.locator("#turns .token").first.click()
    page.wait_for_selector("#chat-told:has-text('The server answered 500.')")


def test_the_checkpoint_that_is_no_longer_chosen_does_not_answer(open_page):
    page = open_page("chat?max_tokens=6", **NO_EXAMPLE)
    say(page, "the cat?", turns=2)
    held = []
    page.route("**/inside/continuation", lambda route: held.append(route))
    page.get_by_label("Beside").select_option("before: before")
    page.wait_for_selector("#chat-told:has-text('before: before: answering')")
    page.get_by_label("Beside").select_option("no other checkpoint")
    with page.expect_response("**/inside/continuation"):
        held[0].continue_()
    expect(page.locator("#chat-told")).to_have_text("")
    expect(page.locator("#turns .pair")).to_have_count(0)


def test_a_long_answer_is_gone_on_with_from_its_end(open_page, server):
    seed = seed_of(130, server, "the cat?")
    page = open_page(f"chat?seed={seed}&max_tokens=130", **NO_EXAMPLE)  # with a context of 128 tokens
    page.get_by_label("Message").fill("the cat?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chat-told:has-text('130 tokens in')")
    tokens = page.locator("#turns li").nth(1).locator(".token")
    tokens.last.click()
    page.locator("#alternatives button.choice").filter(has_not_text="<|").first.click()
    expect(tokens.nth(130)).to_be_visible()


def test_a_picked_token_stays_where_the_model_then_ends(open_page, server):
    page = open_page(f"chat?seed={seed_of(9, server, 'the cat?')}&max_tokens=9", **NO_EXAMPLE)
    say(page, "the cat?", turns=2)
    nothing = {"content_type": "text/event-stream", "body": "data: [DONE]\n\n"}
    page.route("**/v1/completions", lambda route: route.fulfill(**nothing))
    tokens = page.locator("#turns li").nth(1).locator(".token")
    tokens.nth(2).click()
    page.locator("#alternatives button.choice").filter(has_not_text="<|").nth(1).click()
    page.wait_for_selector("#chat-told:has-text('The model ended the text here.')")
    expect(tokens).to_have_count(3)
    assert "picked" in tokens.nth(2).get_attribute("class")
