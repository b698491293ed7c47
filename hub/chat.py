"""The chat template of a checkpoint's tokenizer: the program, in Jinja, that makes a prompt of messages."""

from pathlib import Path
from typing import Any

from config.command_line import UserError
from config.files import LISTS, read_json, read_text

TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")  # names that a template may use


def read_chat_template(folder: Path) -> tuple[str | None, dict[str, str]]:
    """Return the template, if there is one, and the texts of the special tokens that it may name.

    It is chat_template.jinja, or the field of that name in tokenizer_config.json, as in transformers. Raises
    UserError for a file that cannot be read.
    """
    path, template = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    try:
        config = read_json(path, LISTS) if path.is_file() else {}
        text = read_text(template) if template.is_file() else None
        if not isinstance(config, dict):
            raise ValueError("expected a JSON object")
        text = text or default_template(config.get("chat_template"))
    except (TypeError, ValueError) as error:  # TypeError: a list or an object as a template's name
        raise UserError(f"{folder}: its chat template cannot be read ({error}): download it again") from None
    found = {name: token_text(config.get(name)) for name in TOKENS}
    return text, {k: v for k, v in found.items() if v}


def token_text(token: Any) -> str | None:
    """Return the text of a special token, which is written as such or with its properties."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def default_template(templates: Any) -> str | None:
    """Return the template, or of a list of named ones the one called default."""
    if isinstance(templates, list):
        named = {x.get("name"): x.get("template") for x in templates if isinstance(x, dict)}
        templates = named.get("default")
    return templates if isinstance(templates, str) else None
