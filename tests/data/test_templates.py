"""Chat templates: transformers renders the tokenizer's own, in a sandbox."""

import json

import pytest
from transformers import AutoTokenizer

from common.errors import UserError
from data.conversations import Renderer
from data.tokenizer import CharTokenizer, read_tokenizer

MESSAGES = [{"role": "system", "content": "be"}, {"role": "user", "content": "it's <hi> & bye"}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def folder(tmp_path, tokenizer_json):
    """`folder(config, template)` is a folder of a tokenizer with these files."""

    def write(config, template=None):
        (tmp_path / "tokenizer.json").write_text(tokenizer_json.read_text())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        if template is not None:
            (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return write


def renderer(uses) -> Renderer:
    tokenizer = CharTokenizer("\n" + "".join(map(chr, range(32, 127))))
    tokenizer.description = tokenizer.description | {"uses": uses}
    return Renderer(tokenizer, pretrained=True)


def prompt(ours: Renderer, messages) -> str:
    return ours.tokenizer.decode(ours.prompt(messages))


def chat(template):
    return renderer({"chat_template": template, "special_tokens": {"bos_token": "<s>"}})


@pytest.mark.parametrize("where", ["config", "named", "file"])
def test_the_tokenizers_own_template_is_used(folder, where):
    tokens = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False}}
    templates = {"config": TEMPLATE, "named": [{"name": "default", "template": TEMPLATE}], "file": "another"}
    config = tokens | {"pad_token": None, "chat_template": templates[where]}
    ours = renderer(read_tokenizer(folder(config, TEMPLATE if where == "file" else None))["uses"])
    expected = "<s><system>be</s><user>it's <hi> & bye</s><assistant>"
    assert prompt(ours, MESSAGES) == expected


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE,
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{{ tools is none }} {{ tools is not none }} {{ documents is none }} {{ messages | tojson }}",
        "{{ strftime_now('%Y') }} {{ 'pad' if pad_token is defined else 'none' }}",
    ],
)
def test_a_template_sees_what_it_sees_in_transformers(folder, template):
    path = folder({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template})
    theirs = AutoTokenizer.from_pretrained(path)
    expected = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert prompt(renderer(read_tokenizer(path)["uses"]), MESSAGES) == expected


@pytest.mark.parametrize("template", ["{% if %}", "{{" + "(" * 5000])
def test_a_template_that_is_no_jinja_turns_chats_off(template):
    with pytest.raises(UserError, match="the chat template cannot be compiled .*: mend it"):
        chat(template)


def test_a_template_that_takes_for_ever_does_not_keep_a_server_from_starting():
    loops = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
    chat(loops)  # it is compiled and not rendered


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",  # the way out of a template that has no sandbox
        "{% for i in range(10 ** 9) %}{{ i }}{% endfor %}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_an_error_in_a_line(template):
    ours = chat(template)
    with pytest.raises(UserError, match="the chat template refuses it"):
        prompt(ours, MESSAGES)
