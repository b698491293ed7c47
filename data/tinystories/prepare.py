"""Prepare TinyStories: 2,119,719 short stories in a child's words, which a small model can learn to write.

    python data/tinystories/prepare.py [--limit=N] [--num_proc=N] [--tokenizer=gpt2] [--source=<files>]

The stories are those of its training split; one in 200 is for validation here. Eldan and Li 2023,
arXiv:2305.07759.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.errors import command
from data.dataset import dataset_dir
from data.prepare import prepare
from data.sources import Hub

if __name__ == "__main__":
    hub = Hub("roneneldan/TinyStories")
    command(lambda argv: prepare(argv, hub, to=str(dataset_dir("tinystories")), val_fraction=0.005))
