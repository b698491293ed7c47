"""The chat template of a checkpoint's tokenizer: a program in Jinja that makes a prompt of messages."""

from pathlib import Path

from config.command_line import UserError
from config.files import read_json

TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")  # names that a template may use


def read_chat_template(folder: Path) -> tuple[str | None, dict[str, str]]:
    """Return the template, if there is one, and the texts of the special tokens. Raises UserError."""
    path, file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    try:
        config = read_json(path) if path.is_file() else {}
        template = config.get("chat_template")
        if isinstance(template, list):  # of named ones
            named = {x.get("name"): x.get("template") for x in template if isinstance(x, dict)}
            template = named.get("default")
        template = file.read_text(encoding="utf-8") if file.is_file() else template
    except (AttributeError, TypeError, ValueError) as error:  # AttributeError, TypeError: of another type
        raise UserError(f"{folder}: its chat template cannot be read ({error}): download it again") from None
    tokens = {name: config.get(name) for name in TOKENS}
    texts = {name: x.get("content") if isinstance(x, dict) else x for name, x in tokens.items()}
    texts = {name: text for name, text in texts.items() if isinstance(text, str) and text}
    return template if isinstance(template, str) else None, texts
