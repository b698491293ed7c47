"""Prepare FineWeb-Edu's sample of 10 billion GPT-2 tokens: web pages chosen for what they teach.

    python data/fineweb_edu/prepare.py [--limit=N] [--num_proc=N] [--tokenizer=gpt2] [--source=<files>]

Penedo et al. 2024, arXiv:2406.17557. https://huggingface.co/datasets/HuggingFaceFW/fineweb-edu
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.errors import command
from data.dataset import dataset_dir
from data.prepare import prepare
from data.sources import Hub

if __name__ == "__main__":
    hub = Hub("HuggingFaceFW/fineweb-edu", "sample-10BT")
    command(lambda argv: prepare(argv, hub, to=str(dataset_dir("fineweb_edu"))))
