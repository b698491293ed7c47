"""Prepare OpenWebText, an open copy of GPT-2's training data: 8,013,769 documents, 9 billion tokens.

    python data/openwebtext/prepare.py [--limit=N] [--num_proc=N] [--tokenizer=gpt2] [--source=<files>]

nanoGPT, which chooses other documents for validation, reports 9,035,582,198 train and 4,434,897 validation
tokens. https://skylion007.github.io/OpenWebTextCorpus
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.errors import command
from data.dataset import dataset_dir
from data.prepare import prepare
from data.sources import Hub

if __name__ == "__main__":
    # `datasets` runs no dataset script, which this repository has; the hub keeps a copy as Parquet.
    hub = Hub("Skylion007/openwebtext", revision="refs/convert/parquet")
    command(lambda argv: prepare(argv, hub, to=str(dataset_dir("openwebtext"))))
