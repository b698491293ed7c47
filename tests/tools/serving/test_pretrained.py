"""A folder of the hub is served as transformers reads it: the first token, the end tokens, the template."""

import jax
import pytest
import torch
from transformers import AutoTokenizer

from parallel.mesh import make_mesh
from tests.pretrained import END, START, TURN, library_tokenizer, save_llama, save_tokenizer
from tests.tools.serving.served_run import client, serving
from tools.serving.served import load_served
from tools.serving.server import ServeOptions

TEXT = "the other"
CHAT = [{"role": "user", "content": TEXT}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hub") / "llama"


@pytest.fixture(scope="module")
def theirs(folder):
    model = save_llama(folder)
    save_tokenizer(folder, library_tokenizer("<s> $A [END]"))
    return model


@pytest.fixture(scope="module")
def api(folder, theirs):
    with serving(init_from=str(folder), compiled=False) as (url, _):
        yield client(url)


def generated(theirs, ids, n, **more):
    """The tokens that `generate` adds, up to one that ends a text."""
    with torch.no_grad():
        found = theirs.generate(torch.tensor([ids]), max_new_tokens=n, do_sample=False, **more)[0, len(ids) :]
    return found.tolist()


@pytest.mark.parametrize("special", [True, False])
def test_a_completion_begins_as_the_tokenizer_does(folder, theirs, api, special):
    ids = AutoTokenizer.from_pretrained(folder)(TEXT, add_special_tokens=special).input_ids
    assert (ids[0] == START, ids[-1] == END) == (special, special)
    ids = ids[:-1] if special else ids  # the text goes on
    more = {} if special else {"extra_body": {"add_special_tokens": False}}
    asked = {"temperature": 0, "max_tokens": 8, "logprobs": 1} | more
    answer = api.completions.create(model="llama", prompt=TEXT, **asked)
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.choices[0].logprobs.token_ids == generated(theirs, ids, 8, eos_token_id=[END, TURN])


@pytest.mark.parametrize("token", [END, TURN])
def test_each_end_token_ends_a_completion_and_a_chat(api, token):
    asked = {"model": "llama", "max_tokens": 8, "logit_bias": {str(token): 100}}
    done = api.completions.create(prompt=TEXT, **asked)
    assert (done.choices[0].text, done.choices[0].finish_reason) == ("", "stop")
    assert done.usage.completion_tokens == 1
    done = api.chat.completions.create(messages=CHAT, **asked)
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == ("", "stop")


def test_a_chat_is_the_templates_text_and_nothing_is_put_before_it(api, folder, theirs):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(CHAT, return_dict=False)
    assert ids.count(START) == 1 == ids.index(START) + 1
    done = api.chat.completions.create(model="llama", messages=CHAT, temperature=0, max_tokens=6)
    assert done.usage.prompt_tokens == len(ids)
    text = tokenizer.decode(generated(theirs, ids, 6), skip_special_tokens=True)
    assert done.choices[0].message.content == text


def test_a_template_that_cannot_be_used_turns_chats_off_alone(tmp_path, capsys):
    save_llama(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with jax.set_mesh(make_mesh("data:1")):
        served = load_served(ServeOptions(init_from=str(tmp_path), slots=1))
    assert served.chat.startswith("the chat template cannot be compiled")
    assert f"note: {served.chat}: chats are refused" in capsys.readouterr().err
