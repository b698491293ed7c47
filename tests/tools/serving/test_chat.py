"""Chat templates: transformers renders the tokenizer's own, in a sandbox, and there is a plain one."""

import json

import pytest
from transformers import AutoTokenizer

from data.pretrained import read_tokenizer
from data.tokenizer import CharTokenizer
from tools.serving.chat import Chat
from tools.serving.server import ApiError

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


ASCII = CharTokenizer("\n" + "".join(map(chr, range(32, 127))))


def prompt(ours: Chat, messages) -> str:
    return ASCII.decode(ours.prompt(ASCII, messages))


def chat(template):
    return Chat({"uses": {"chat_template": template, "special_tokens": {"bos_token": "<s>"}}})


@pytest.mark.parametrize("where", ["config", "named", "file"])
def test_the_tokenizers_own_template_is_used(folder, where):
    tokens = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False}}
    templates = {"config": TEMPLATE, "named": [{"name": "default", "template": TEMPLATE}], "file": "another"}
    config = tokens | {"pad_token": None, "chat_template": templates[where]}
    ours = Chat(read_tokenizer(folder(config, TEMPLATE if where == "file" else None)))
    expected = "<s><system>be</s><user>it's <hi> & bye</s><assistant>"
    assert prompt(ours, MESSAGES) == expected and ours.stops == []


def test_without_a_template_the_plain_one_is_used():
    ours = Chat(CharTokenizer("ab").description)
    answered = [*MESSAGES[:1], {"role": "assistant", "content": "ho"}]
    assert prompt(ours, answered) == "System: be\n\nAssistant: ho\n\nAssistant:" and ours.stops == ["\nUser:"]


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
    assert prompt(Chat(read_tokenizer(path)), MESSAGES) == expected


@pytest.mark.parametrize("template", ["{% if %}", "{{ 1 | nofilter }}", "{{" + "(" * 5000])
def test_a_template_that_is_no_jinja_turns_chats_off(template):
    ours = chat(template)
    assert "the model's chat template cannot be compiled (" in ours.broken
    with pytest.raises(ApiError, match="cannot be compiled .*: ask for completions instead") as caught:
        prompt(ours, MESSAGES)
    assert caught.value.status_code == 400


def test_a_template_that_takes_for_ever_does_not_keep_a_server_from_starting():
    loops = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
    assert chat(loops).broken is None  # it is compiled and not rendered


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",  # the way out of a template that has no sandbox
        "{{ messages.append(1) }}",
        "{{ messages[7]['content'] + 1 }}",
        "{% for i in range(10 ** 9) %}{{ i }}{% endfor %}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_an_error_object(template):
    ours = chat(template)
    assert ours.broken is None
    with pytest.raises(ApiError, match="chat template") as caught:
        prompt(ours, MESSAGES)
    assert caught.value.status_code == 400
