"""Chat templates: where they are found, what they render, and that they are kept in a sandbox."""

import json

import pytest

from config.command_line import UserError
from data.tokenizer import CharTokenizer
from hub.chat import read_chat_template
from hub.export import write_config
from hub.families import GPT2
from model import GPTConfig
from tests.helpers import refusal
from tools.serving.chat import Chat
from tools.serving.errors import ApiError
from tools.serving.load import load_chat

MESSAGES = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def save(folder, config=None, template=None):
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("where", ["config", "named", "file"])
def test_the_tokenizers_own_template_is_used(tmp_path, where):
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None}
    templates = {"config": TEMPLATE, "named": [{"name": "default", "template": TEMPLATE}], "file": "another"}
    save(tmp_path, tokens | {"chat_template": templates[where]}, TEMPLATE if where == "file" else None)
    template, tokens = read_chat_template(tmp_path)
    assert tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    chat = Chat(template, tokens)
    assert chat.prompt(MESSAGES) == "<s><system>be</s><user>hi</s><assistant>" and chat.stops == []


def test_without_a_template_the_plain_one_is_used(tmp_path):
    assert read_chat_template(tmp_path) == (None, {})
    answered = [*MESSAGES, {"role": "assistant", "content": "ho"}]
    assert Chat().prompt(answered) == "System: be\n\nUser: hi\n\nAssistant: ho\n\nAssistant:"


@pytest.mark.parametrize("text", ["{", '{"chat_template": [{"name": [], "template": ""}]}'])
def test_a_damaged_file_is_one_line(tmp_path, text):
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(UserError, match="its chat template cannot be read"):
        read_chat_template(tmp_path)


@pytest.mark.parametrize("template", ["{% if %}", "{{ 1 | nofilter }}", "{{" + "(" * 5000])
def test_a_template_that_is_no_jinja_is_one_line_at_the_start(tmp_path, template):
    config = write_config(
        GPT2, GPTConfig(block_size=8, vocab_size=2, n_layer=1, n_head=1, n_embd=8, mlp="gelu")
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"} | config))
    said = refusal(load_chat, str(save(tmp_path, template=template)), CharTokenizer("ab"))
    assert said.startswith("the model's chat template cannot be compiled: ")


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",  # the way out of a template that has no sandbox
        "{{ messages.append(1) }}",
        "{{ messages[7]['content'] + 1 }}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_an_error_object(template):
    with pytest.raises(ApiError, match="chat template") as caught:
        Chat(template).prompt(MESSAGES)
    assert caught.value.status_code == 400
