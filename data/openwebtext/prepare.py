"""OpenWebText, an open copy of the WebText that GPT-2 learned from: 8,013,769 documents, 9 billion tokens.

    python data/openwebtext/prepare.py [--limit=N] [--num_proc=N] [--tokenizer=gpt2] [--source=<files>]

nanoGPT draws its validation documents by another lot: it reports 9,035,582,198 train and 4,434,897 validation
tokens of GPT-2's. https://skylion007.github.io/OpenWebTextCorpus
"""

import sys
from pathlib import Path

# Run as a script, Python looks for imports in this folder only; `config` and `data` are two levels up.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from config.command_line import command
from data.prepare import prepare
from data.sources import Hub

# The repository has held a dataset script, which `datasets` no longer runs; the hub keeps it as Parquet here.
HUB = Hub("Skylion007/openwebtext", revision="refs/convert/parquet")


def main(argv: list[str]) -> None:
    prepare(argv, __doc__, Path(__file__).resolve().parent, HUB)


if __name__ == "__main__":
    command(main)
