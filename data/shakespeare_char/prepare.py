"""Prepare tiny Shakespeare, the text of nanoGPT's first example, with one token per character.

    python data/shakespeare_char/prepare.py [--source=<path or URL>] [--to=<folder>]

The vocabulary is the characters that occur, sorted: 65 symbols. The first 90% are for training: 1,003,854 and
111,540 tokens, as in nanoGPT. Any other UTF-8 text is prepared in the same way.
"""

import hashlib
import http.client
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.command_line import Name, given
from common.errors import UserError, command
from common.files import decode_text, refusing
from data.dataset import dataset_dir
from data.tokenizer import CharTokenizer
from data.writer import load_tokenizer, write_text

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
TIMEOUT = 20  # seconds to wait for an answer of the network


@dataclass(frozen=True)
class TextOptions:
    """Prepare tiny Shakespeare, or another text, with one token per character."""

    source: Name | None = None  # a UTF-8 text's path or URL; None: tiny Shakespeare is downloaded
    to: Name = str(dataset_dir("shakespeare_char"))  # folder of the data set
    tokenizer: Name | None = None  # tiktoken's name for it, or a tokenizer.json; None: characters


def prepare(folder: Path, source: str | None = None, tokenizer: str | None = None) -> None:
    text = read_text(source)
    found = load_tokenizer(tokenizer) if tokenizer else CharTokenizer("".join(sorted(set(text))))
    write_text(folder, text, found, source or URL)


def read_text(source: str | None) -> str:
    """Read the text at a path or URL (None: tiny Shakespeare's). Raises UserError."""
    where = source or URL
    advice = "give a file by --source=<path>, or many to data/prepare.py; config/quickstart.py needs none"
    errors = OSError, http.client.HTTPException, ValueError  # URLError and time-outs are OSErrors
    with refusing(f"{where}: cannot be read", advice, *errors):
        if where.startswith(("http://", "https://")):
            with urllib.request.urlopen(where, timeout=TIMEOUT) as response:
                content = response.read()
        else:
            content = Path(where).read_bytes()
    text = decode_text(content, where)
    if source is None and hashlib.sha256(content).hexdigest() != SHA256:
        raise UserError(f"{URL}: not tiny Shakespeare (sha256 differs): give a copy with --source=<path>")
    if len(text) < 2:
        raise UserError(f"{where}: {len(text)} characters are too few to split: give a longer text")
    return text


def main(argv: list[str], options: type[TextOptions] = TextOptions) -> None:
    chosen = options(**given(argv, options))
    prepare(Path(chosen.to), chosen.source, chosen.tokenizer)


if __name__ == "__main__":
    command(main)
