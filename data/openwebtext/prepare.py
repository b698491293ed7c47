"""Prepare OpenWebText, an open copy of GPT-2's training data: 8,013,769 documents, 9 billion tokens.

    python data/openwebtext/prepare.py [--limit=N] [--num_proc=N] [--tokenizer=gpt2] [--source=<files>]

nanoGPT reports 9,035,582,198 train and 4,434,897 validation tokens of GPT-2's; it chooses other documents for
validation. https://skylion007.github.io/OpenWebTextCorpus
"""

import sys
from pathlib import Path

# When this runs as a script, Python looks for imports in this folder only;
# `config` and `data` are two levels up.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if __name__ == "__main__":
    import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

from config.command_line import command
from data.prepare import prepare
from data.sources import Hub

# The repository has a dataset script, which `datasets` no longer runs. The hub keeps a copy as Parquet.
HUB = Hub("Skylion007/openwebtext", revision="refs/convert/parquet")


def main(argv: list[str]) -> None:
    prepare(argv, __doc__, Path(__file__).resolve().parent, HUB)


if __name__ == "__main__":
    command(main)
