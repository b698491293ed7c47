"""Prepare tiny Shakespeare, the text of nanoGPT's first example, with one token per character.

    python data/shakespeare_char/prepare.py [--source=<path or URL>]

The vocabulary is the characters that occur, sorted: 65 symbols. The first 90% are for training: 1,003,854 and
111,540 tokens, as in nanoGPT. Any other UTF-8 text is prepared in the same way.
"""

import hashlib
import http.client
import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from config.command_line import ScriptParser, UserError, command
from data.tokenizer import CharTokenizer
from data.writer import write_text

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
TIMEOUT = 20  # seconds to wait for an answer of the network


def prepare(folder: Path, source: str | None = None) -> None:
    text = read_text(source)
    tokenizer = CharTokenizer("".join(sorted(set(text))))
    summary = write_text(folder, text, tokenizer, source or URL)
    print(f"{folder}: {len(text):,} characters, {tokenizer.vocab_size} symbols, {summary}")


def read_text(source: str | None) -> str:
    """Read the text at a path or URL (None: tiny Shakespeare's). Raises UserError."""
    where = source or URL
    try:
        if where.startswith(("http://", "https://")):
            with urllib.request.urlopen(where, timeout=TIMEOUT) as response:
                content = response.read()
        else:
            content = Path(where).read_bytes()
        text = content.decode("utf-8")
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError and time-outs are OSErrors
        raise UserError(
            f"{where}: cannot be read as UTF-8 text ({error}): give data/<data set>/prepare.py a copy with "
            "--source=<path>, or train config/quickstart.py, which needs no network"
        ) from None
    if source is None and hashlib.sha256(content).hexdigest() != SHA256:
        raise UserError(f"{URL}: not tiny Shakespeare (sha256 differs): give a copy with --source=<path>")
    if len(text) < 2:
        raise UserError(f"{where}: {len(text)} characters are too few to split: give a longer text")
    return text


def parser(about: str) -> ScriptParser:
    options = ScriptParser(about)
    options.add_argument("--source", metavar="PATH", help="a text file or its URL (default: download it)")
    return options


def main(argv: list[str]) -> None:
    prepare(Path(__file__).parent, parser(__doc__).parse(argv).source)


if __name__ == "__main__":
    command(main)
