"""Prepare tiny Shakespeare in GPT-2's tokens, as nanoGPT does for finetuning.

    python data/shakespeare/prepare.py [--source=<path or URL>] [--to=<folder>] [--tokenizer=gpt2]

The first 90% of the characters are for training: 301,966 and 36,059 tokens, as in nanoGPT. Any other UTF-8
text is prepared in the same way.
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.command_line import Name
from common.errors import command
from data.dataset import dataset_dir
from data.shakespeare_char import prepare as characters


@dataclass(frozen=True)
class TokenOptions(characters.TextOptions):
    """Prepare tiny Shakespeare, or another text, in GPT-2's tokens or others."""

    to: Name = str(dataset_dir("shakespeare"))  # folder of the data set
    tokenizer: Name | None = "gpt2"  # tiktoken's name for it, or a tokenizer.json; None: characters


prepare = partial(characters.prepare, tokenizer="gpt2")
main = partial(characters.main, options=TokenOptions)

if __name__ == "__main__":
    command(main)
