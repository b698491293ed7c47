"""Chat templates: transformers renders the tokenizer's own, in a sandbox."""

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoTokenizer

from common.errors import UserError
from data.conversations import Renderer
from data.tokenizer import from_json
from data.writer import load_tokenizer
from tests.pretrained import library_tokenizer, save_tokenizer

MESSAGES = [{"role": "system", "content": "be"}, {"role": "user", "content": "it's <hi> & bye"}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LIBRARY = library_tokenizer(None)


def prompt(folder) -> str:
    renderer = Renderer(load_tokenizer(str(folder)), pretrained=True)
    return renderer.tokenizer.decode(renderer.prompt(MESSAGES))


def chat(template) -> Renderer:
    return Renderer(from_json({"type": "tokenizers", "json": LIBRARY.to_str()}), template)


@pytest.mark.parametrize("where", ["config", "named", "file"])
def test_the_tokenizers_own_template_is_used(tmp_path, where):
    save_tokenizer(tmp_path, LIBRARY, chat_template=TEMPLATE if where == "file" else None)
    templates = {"config": TEMPLATE, "named": [{"name": "default", "template": TEMPLATE}], "file": "another"}
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": templates[where]}))
    assert prompt(tmp_path) == "<s><system>be[END]<user>it's <hi> & bye[END]<assistant>"


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE,
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{{ tools is none }} {{ 'cls' if cls_token is defined else 'none' }} {{ messages | tojson }}",
    ],
)
def test_a_template_sees_what_it_sees_in_transformers(tmp_path, template):
    save_tokenizer(tmp_path, LIBRARY, chat_template=template)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert prompt(tmp_path) == expected


@pytest.mark.parametrize("template", ["{% if %}", "{{" + "(" * 5000])
def test_a_template_that_is_no_jinja_turns_chats_off(template):
    with pytest.raises(UserError, match="the chat template cannot be compiled .*: mend it"):
        chat(template)


def test_a_template_that_takes_for_ever_does_not_keep_a_server_from_starting():
    chat("{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",  # the way out of a template that has no sandbox
        "{% for i in range(10 ** 9) %}{{ i }}{% endfor %}",
        "{% if true %}{% endif %}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_an_error_in_a_line(template):
    ours = chat(template)
    with pytest.raises(UserError, match="the chat template refuses it"):
        ours.prompt(MESSAGES)


def test_a_template_of_which_the_tokenizer_makes_no_token_is_an_error_in_a_line():
    words = Tokenizer(WordLevel({"a": 0, "<|endoftext|>": 1}, "a"))
    words.pre_tokenizer = WhitespaceSplit()
    ours = Renderer(from_json({"type": "tokenizers", "json": words.to_str()}), "{{ '  ' }}")
    with pytest.raises(UserError, match="refuses it .it writes no token.: mend or"):
        ours(MESSAGES)
