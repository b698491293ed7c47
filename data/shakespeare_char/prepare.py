"""Prepare tiny Shakespeare, the text of nanoGPT's first example, with one token per character.

    python data/shakespeare_char/prepare.py [--source=<path or URL>]

The text has 1,115,394 characters. The vocabulary is the characters that occur, sorted: 65 symbols. The first
90% are for training, the rest for validation: 1,003,854 and 111,540 tokens, as in nanoGPT. Another UTF-8
text, given by --source, is prepared in the same way.
"""

import hashlib
import http.client
import sys
import urllib.request
from pathlib import Path

# When this runs as a script, Python looks for imports in this folder only;
# `config` and `data` are two levels up.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if __name__ == "__main__":
    import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

from config.command_line import ScriptParser, UserError, command
from data.tokenizer import CharTokenizer
from data.writer import write_dataset

SMALL = True  # train.py prepares it by itself: it is one megabyte
URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
TIMEOUT = 20  # seconds to wait for an answer of the network


def prepare(folder: Path, source: str | None = None) -> None:
    """Write the data set into `folder`, from the path or URL `source` (default: tiny Shakespeare's)."""
    text = read_text(source)
    tokenizer = CharTokenizer("".join(sorted(set(text))))
    ids = tokenizer.encode(text)
    cut = int(0.9 * len(ids))
    write_dataset(folder, ids[:cut], ids[cut:], tokenizer, source or URL)
    print(
        f"{folder}: {len(text):,} characters, {tokenizer.vocab_size} symbols, "
        f"{cut:,} train and {len(ids) - cut:,} validation tokens"
    )


def read_text(source: str | None) -> str:
    """Read the text at the path or URL `source` (None: tiny Shakespeare's), with a note if it is another.

    Raises UserError when it cannot be read or downloaded, is not UTF-8, or is too short to split.
    """
    content = _read_bytes(source or URL)
    if hashlib.sha256(content).hexdigest() != SHA256:
        if source is None:
            raise UserError(
                f"{URL}: not the tiny Shakespeare expected (sha256 differs): give a copy with --source=<path>"
            )
        print(
            f"note: {source} is not tiny Shakespeare (sha256 differs); it is prepared all the same",
            file=sys.stderr,
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: not UTF-8 text (byte {error.start}): convert it to UTF-8 first") from None
    if len(text) < 2:
        raise UserError(f"{source}: {len(text)} characters are too few to split: give a longer text")
    return text


def _read_bytes(source: str) -> bytes:
    if not source.startswith(("http://", "https://")):
        try:
            return Path(source).read_bytes()
        except OSError as error:
            raise UserError(
                f"{source}: cannot be read ({error.strerror}): give a text file or a URL"
            ) from None
    try:
        with urllib.request.urlopen(source, timeout=TIMEOUT) as response:
            return response.read()
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError and time-outs are OSErrors
        raise UserError(
            f"cannot download {source} ({error}): give a copy with "
            "`python data/<data set>/prepare.py --source=<path>`, "
            "or train config/quickstart.py, which needs no network"
        ) from None


def main(argv: list[str]) -> None:
    parser = ScriptParser(__doc__)
    parser.add_argument(
        "--source", metavar="PATH_OR_URL", help="a text file or its URL (default: download it)"
    )
    prepare(Path(__file__).resolve().parent, parser.parse(argv).source)


if __name__ == "__main__":
    command(main)
