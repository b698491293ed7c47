"""OpenAI's API, held by OpenAI's own client: completions, chats, streams, probabilities, errors."""

import json
from itertools import product
from types import SimpleNamespace

import httpx
import numpy as np
import openai
import pytest

import sample
from data.tokenizer import JsonTokenizer
from data.writer import load_tokenizer
from tests.helpers import flags
from tests.tools.serving import served_run
from tests.tools.serving.served_run import serving
from tools.serving.completions import Completion
from tools.serving.text import Continuation, Token, read_prompt

PROMPT = "the quick"


@pytest.fixture(scope="module")
def url(byte_run):
    limits = {"slots": 4, "max_waiting": 300, "max_tokens": 200}
    with serving(out_dir=str(byte_run), **limits) as (url, _):
        yield url


@pytest.fixture(scope="module")
def client(url):
    return served_run.client(url)


@pytest.fixture(scope="module")
def complete(client):
    """`complete(prompt, ...)` is OpenAI's completion object."""
    return lambda prompt=PROMPT, **options: client.completions.create(
        **{"model": "bytes", "prompt": prompt, "max_tokens": 40, "seed": 1} | options
    )


@pytest.fixture(scope="module")
def chat(client):
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "the"}]
    return lambda **options: client.chat.completions.create(
        **{"model": "bytes", "messages": messages, "max_tokens": 40, "seed": 1} | options
    )


@pytest.fixture(scope="module")
def tokenizer(tokenizer_json):
    return load_tokenizer(str(tokenizer_json))


@pytest.fixture(scope="module")
def ids(tokenizer):
    return lambda text: tokenizer.encode(text).tolist()


def streamed(chunks) -> tuple[dict[int, str], dict[int, str]]:
    """Return the text and the finish_reason of each choice of a stream of completions."""
    texts, reasons = {}, {}
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in reasons
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons


# --- what is answered -------------------------------------------------------------------------------------


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("bytes", "model", "nanojaxgpt")
    assert client.models.retrieve("bytes") == model
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4'") as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


def test_a_completion_is_what_sample_py_writes(complete, byte_run, capsys):
    """Past block_size, too: the same seed, the same text."""
    openais = dict(temperature=0.9, top_p=0.95, seed=5, presence_penalty=0.5, frequency_penalty=0.25)
    others = dict(min_p=0.01, repetition_penalty=1.2)
    answer = complete(n=2, max_tokens=100, **openais, extra_body={"top_k": 0} | others)
    options = dict(out_dir=byte_run, device="cpu", num_samples=2, max_new_tokens=100, top_k=-1)
    sample.main(flags(options, start=PROMPT, **openais, **others))
    *texts, _ = capsys.readouterr().out.split(f"\n{sample.SEPARATOR}\n")
    assert [PROMPT + choice.text for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-") and answer.model == "bytes"


def test_the_forms_of_a_prompt(complete, ids):
    text = complete().choices[0].text
    for prompt in ([PROMPT], ids(PROMPT), [ids(PROMPT)]):
        assert complete(prompt=prompt).choices[0].text == text
    several = complete(prompt=["dog", PROMPT], n=2, max_tokens=7)
    assert len({choice.text for choice in several.choices}) == 4
    alone = complete(prompt=["dog"], n=2, max_tokens=7)
    assert [choice.text for choice in alone.choices] == [choice.text for choice in several.choices[:2]]
    usage = several.usage
    assert usage.prompt_tokens == len(ids(PROMPT)) + len(ids("dog"))
    assert usage.completion_tokens == 2 * 2 * 7 and usage.total_tokens == usage.prompt_tokens + 28


def test_the_same_seed_gives_the_same_text_and_none_another_each_time(complete):
    assert complete(seed=3).choices == complete(seed=3).choices
    assert len({complete(seed=seed).choices[0].text for seed in (None, None, 3, -3)}) == 4


def test_a_bias_chooses_the_token_and_a_stop_token_ends_the_text(complete, ids):
    (token,) = ids("q")
    assert complete(logit_bias={str(token): 100}, max_tokens=3).choices[0].text == "qqq"
    choice = complete(logit_bias={str(token): 100}, extra_body={"stop_token_ids": [token]}).choices[0]
    assert (choice.text, choice.finish_reason) == ("", "stop")


def test_a_stop_string_is_left_out_wherever_it_falls(complete):
    """In the middle of tokens or over several; the earliest counts."""
    text = complete(max_tokens=60).choices[0].text
    for place, length in zip(range(10, 40, 5), (1, 2, 5, 1, 2, 5), strict=True):
        stops = ["never there", text[place : place + length], text[place + 3 : place + 8]]
        expected = text[: min(x for x in map(text.find, stops) if x >= 0)], "stop"
        whole = complete(max_tokens=60, stop=stops)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == expected
        assert whole.usage.completion_tokens < 60
        texts, reasons = streamed(complete(max_tokens=60, stop=stops, stream=True))
        assert (texts[0], reasons[0]) == expected


# --- probabilities ----------------------------------------------------------------------------------------


def test_logprobs_of_a_completion(complete, ids):
    choice = complete(logprobs=3, echo=True, max_tokens=12, temperature=0).choices[0]
    told, n = choice.logprobs, len(ids(PROMPT))
    assert choice.text.startswith(PROMPT)
    lists = told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset
    assert {len(x) for x in lists} == {n + 12}
    assert told.token_logprobs[0] is None and told.top_logprobs[0] is None
    assert all(p <= 0 for p in told.token_logprobs[1:])
    for token, p, top in list(zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True))[n:]:
        assert top[token] == p == max(top.values()) and len(top) == 3  # greedy
    for token, offset in zip(told.tokens[:n], told.text_offset, strict=False):
        assert choice.text[offset:].startswith(token)
    assert told.text_offset == sorted(told.text_offset)
    plain = complete(logprobs=0, max_tokens=12, temperature=0).choices[0]
    assert plain.logprobs.tokens == told.tokens[n:] and PROMPT + plain.text == choice.text
    np.testing.assert_allclose(plain.logprobs.token_logprobs, told.token_logprobs[n:], atol=1e-5)


def test_a_prompt_alone_is_scored_as_by_sample_py(complete, byte_run, capsys):
    """As lm-evaluation-harness asks: nothing new, and echo. The prompt is as long as the context."""
    prompt = "dog " * 8
    choice = complete(prompt=prompt, echo=True, max_tokens=0, logprobs=0).choices[0]
    told = choice.logprobs.token_logprobs
    assert choice.text == prompt
    on = complete(prompt=prompt, max_tokens=40, temperature=0).usage  # past the context
    assert (on.prompt_tokens, on.completion_tokens) == (len(told), 40)
    options = dict(out_dir=byte_run, device="cpu", num_samples=1, max_new_tokens=1, prompt_logprobs=True)
    sample.main(flags(options, start=prompt))
    _, *rows = capsys.readouterr().out.partition(f"\n{sample.SEPARATOR}\n")[0].splitlines()
    written = [float(row.split()[0]) for row in rows]
    np.testing.assert_allclose(written, [p for p in told if p is not None], atol=1e-4)


def test_logprobs_of_a_chat(chat):
    choice = chat(logprobs=True, top_logprobs=2, max_tokens=10).choices[0]
    assert len(choice.logprobs.content) == 10
    raw = b"".join(bytes(x.bytes) for x in choice.logprobs.content)
    assert raw.decode(errors="replace") == choice.message.content
    for token in choice.logprobs.content:
        assert len(token.top_logprobs) == 2 and token.logprob <= token.top_logprobs[0].logprob
    assert chat(max_tokens=10).choices[0].logprobs is None
    assert chat(top_logprobs=2, max_tokens=10).choices[0].logprobs == choice.logprobs


# --- streams ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"echo": True}, {"seed": 2, "n": 4}, {"max_tokens": 0}])
def test_a_stream_has_all_that_the_whole_has(complete, options):
    """Broken UTF-8 is U+FFFD in both, and no character is cut. What a stop string held back comes last."""
    options = {"max_tokens": 120, "logprobs": 2, "stop": ["never said"]} | options
    options |= {"stream_options": {"include_usage": True}}
    whole = complete(**options)
    *chunks, last = complete(stream=True, **options)
    assert last.choices == [] and last.usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.object == "text_completion" and chunk.id == last.id for chunk in chunks)
    texts, reasons = streamed(chunks)
    for choice in whole.choices:
        assert (texts[choice.index], reasons[choice.index]) == (choice.text, choice.finish_reason)
        parts = [x.logprobs for chunk in chunks for x in chunk.choices if x.index == choice.index]
        told = [part for part in parts if part is not None]
        assert all(part.tokens for part in told)  # a piece without tokens has none
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [x for part in told for x in getattr(part, name)] == getattr(choice.logprobs, name)


def test_a_streamed_chat(chat):
    whole = chat()
    assert whole.object == "chat.completion" and whole.choices[0].message.role == "assistant"
    chunks = list(chat(stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    choices = [chunk.choices[0] for chunk in chunks]
    assert [choice.delta.role for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert "".join(x.delta.content or "" for x in choices) == whole.choices[0].message.content
    assert choices[-1].finish_reason == whole.choices[0].finish_reason


# --- chat -------------------------------------------------------------------------------------------------


def test_a_chat_continues_what_the_template_makes(chat, complete):
    text = complete(prompt="System: be\n\nUser: the\n\nAssistant:").choices[0].text
    assert chat().choices[0].message.content == text
    parts = [
        {"role": "developer", "content": "be"},
        {"role": "user", "content": [{"type": "text", "text": "the"}]},
    ]
    assert chat(messages=parts).choices[0].message.content == text
    assert chat(max_tokens=None, max_completion_tokens=40).choices[0].message.content == text


def test_old_exchanges_leave_a_chat_whole_and_it_says_so(chat, complete):
    """Five turns do not fit into 32 tokens, of which an answer has 10."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    last = [{"role": "user", "content": "the"}]
    text = complete(prompt="User: the\n\nAssistant:").choices[0].text
    for messages, left_out in ((last, 0), ([*turns, *turns, *last], 4)):
        whole = chat(messages=messages)
        assert whole.choices[0].message.content == text and whole.messages_left_out == left_out
        assert {chunk.messages_left_out for chunk in chat(messages=messages, stream=True)} == {left_out}


# --- longer than the context ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"prompt": [1] * 33}, {"prompt": ["a", "b" * 33]}, {"stream": True}])
def test_a_prompt_longer_than_the_context_is_refused_in_openais_words(complete, options):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(**{"prompt": "b" * 33} | options)
    message = "This model's maximum context length is 32 tokens. However, your prompt resulted in 33 tokens."
    kind = {"type": "invalid_request_error", "param": "prompt", "code": "context_length_exceeded"}
    assert caught.value.body == {"message": message} | kind


def said(*texts):
    return {"messages": [{"role": "user", "content": text} for text in texts]}


@pytest.mark.parametrize("words", [{"prompt": ["b" * 10**6, "a"]}, said("b" * 10**6), said(*2000 * "b")])
def test_what_cannot_fit_is_refused_before_it_is_encoded(complete, chat, monkeypatch, words):
    monkeypatch.setattr(JsonTokenizer, "encode", lambda *_, **__: 1 / 0)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 32 tokens. However, you"):
        chat(**words) if "messages" in words else complete(**words)


def test_so_are_messages_and_nothing_of_them_is_cut(chat):
    messages = [{"role": role, "content": "b" * 40} for role in ("system", "user")]
    length = len(f"System: {'b' * 40}\n\nUser: {'b' * 40}\n\nAssistant:")  # a token each
    with pytest.raises(openai.BadRequestError, match=f"your messages resulted in {length} tokens") as caught:
        chat(messages=messages)
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")


def test_no_character_of_a_stream_breaks_a_line(url):
    """U+0085, U+2028 and U+2029 end a line for httpx's and requests' iter_lines."""
    body = {"prompt": "a\x85\u2028\u2029z", "max_tokens": 1, "echo": True, "stream": True, "temperature": 0}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        lines = [line for line in answer.iter_lines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text.startswith(body["prompt"]) and lines[-1] == "data: [DONE]"


def test_a_token_in_the_middle_of_a_character_has_no_text_but_its_bytes_are_named(url):
    _, answer = served_run.ask(f"{url}/inside/places", {"text": "né"})
    assert [token["text"] for token in answer["tokens"]] == ["n", "", "é"]
    assert answer["names"][str(answer["tokens"][1]["id"])] == r"bytes:\xc3"


# --- from tokens to text ----------------------------------------------------------------------------------


def test_what_only_looks_like_the_beginning_of_a_stop_string_is_sent_later(tokenizer):
    text, parts = Continuation(tokenizer, np.empty(0, np.int32), ["€🙂", "\nA"]), []
    for token in tokenizer.encode("the é€ brown\n"):
        text.add(np.array([token]))
        parts.append(text.to_send()[0])
        assert "".join(parts) == text.text[:-1]
    text.finish("length")
    assert "".join(parts) + text.to_send()[0] == "the é€ brown\n"


def test_a_prompt_that_ends_inside_a_character_is_completed(tokenizer):
    ids = tokenizer.encode("€")
    assert len(ids) == 3
    text = Continuation(tokenizer, ids[:2])
    text.add(ids[2:])
    assert text.text == "€"


def test_an_echo_is_the_prompt_as_it_was_written(sentencepiece):
    for prompt in ("Hi Hi", "iH€"):
        ids = sentencepiece.encode(prompt, add_special_tokens="before")
        text, tokens = read_prompt(sentencepiece, ids, echo=True)
        assert text == prompt and [token.id for token in tokens] == ids.tolist()
    assert read_prompt(sentencepiece, ids)[0] == "<s> iH€"  # as a look inside shows its tokens


def test_of_alternatives_with_the_same_text_the_likeliest_is_told():
    answer = Completion.__new__(Completion)
    answer.served = SimpleNamespace(tokenizer=SimpleNamespace(bytes_of=lambda i: b"b" if i == 2 else b"a"))
    told = answer.top(Token(3, 0, 1, -3.0, [(0, -0.5), (1, -1.0), (2, -2.0)]), 3)
    assert told == {"a": -0.5, "b": -2.0}


# --- what is refused --------------------------------------------------------------------------------------

HELLO = {"messages": [{"role": "user", "content": "a"}]}
IMAGE = {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}


@pytest.mark.parametrize(
    "options, param, says",
    [
        ({"temperature": 2.1}, "temperature", "temperature: Input should be less than or equal to 2"),
        ({"max_tokens": 201}, "max_tokens", "200 at most"),
        ({"extra_body": {"top_k": True}}, "top_k", "a valid integer"),
        ({"n": 128, "prompt": ["a"] * 3}, "n", "3 prompts times n=128 are more than 128"),
        ({"stop": ["a"] * 5}, "stop", "at most 4 items"),
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"prompt": []}, "prompt", "is empty"),
        ({"prompt": [1, "a"]}, "prompt", "Input should be a valid string or Input should be a valid integer"),
        ({"prompt": [100000]}, "prompt", "token ids from 0 to"),
        ({"extra_body": {"tempurature": 1}}, "tempurature", "not permitted"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "expected token ids from 0"),
        *[({"logit_bias": {x: 1}}, "logit_bias", "match pattern") for x in ("05", "1٥")],
        ({"extra_body": {"stop_token_ids": [99999]}}, "stop_token_ids", "expected token ids from 0"),
        ({"messages": [{"content": "hi"}]}, "messages", "messages.0.role: Field required"),
        (IMAGE, "messages", "should be 'text'"),
        ({**HELLO, "extra_body": {"max_completion_tokens": 2}}, "max_completion_tokens", "not permitted"),
    ],
)
def test_a_bad_field_is_named(complete, chat, options, param, says):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(**options) if "messages" in options else complete(**options)
    assert says in str(caught.value) and caught.value.param == param
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_null_is_as_not_given_and_an_unknown_field_is_refused(url, path):
    types = openai.types.chat if "chat" in path else openai.types
    known = types.completion_create_params.CompletionCreateParamsNonStreaming.__annotations__.keys()
    body = {"max_tokens": 1} | (HELLO if "chat" in path else {"prompt": "a"})
    answer = httpx.post(f"{url}/v1/{path}", json=dict.fromkeys(known - {"model"}) | body, timeout=60)
    assert answer.status_code == 200, answer.text
    for unknown in ({"user": "me"}, {"tools": []}):
        answer = httpx.post(f"{url}/v1/{path}", json=body | unknown, timeout=60)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, *unknown)


GOOD = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2},
    "/inside/tokens": {"text": "abc"},
}
FIELDS = """max_tokens n temperature seed logprobs stop stream stream_options prompt messages text promt
    \ud800""".split()
# No field takes any of these.
VALUES = (
    *(-1e308, 1e308, -(10**30), {"a": {}}, [[[]]], [{}], [None, 1], {"role": "user"}, [True], [-1]),
    *([2**70], ["\x00", 3], [1.5]),
)
BROKEN = (
    *(b"", b"{", b"\xff\xfe", b'{"prompt": "\xff"}', b"null", b"[]", b'"a"', b"1.5"),
    *(b'{"temperature": NaN}', b'{"temperature": Infinity}', b'{"temperature": 1e999}'),
    *(b'{"prompt":' + depth * b"[" for depth in (2, 100, 4000)),
    b'{"seed": ' + 4500 * b"1" + b"}",  # Python reads 4,300 digits at most
)


@pytest.mark.parametrize("path", GOOD)
def test_a_malformed_request_is_answered_with_an_error_object(url, path):
    wrong = [GOOD[path] | {field: value} for field, value in product(FIELDS, VALUES)]
    with httpx.Client(base_url=url, timeout=60) as http:
        for content in (*BROKEN, *(json.dumps(body).encode() for body in wrong)):
            answer = http.post(path, content=content, headers={"Content-Type": "application/json"})
            assert 400 <= answer.status_code < 500, (content[:200], answer.text)
            error = answer.json()["error"]
            assert error.keys() == {"message", "type", "param", "code"} and error["message"], content[:200]
            assert error["code"], content[:200]
            assert "Traceback" not in answer.text and len(answer.text) < 2000
        assert http.post(path, json=GOOD[path]).status_code == 200
        health = http.get("/health").json()
    assert (health["running"], health["pending"]) == (0, 0)
