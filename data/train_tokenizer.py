"""Train byte pairs (docs/book/01-tokens.md) on your own documents, with the tokens of a conversation.

    python data/train_tokenizer.py --source=mine.txt --vocab_size=512 --to=my-tokenizer
    python data/prepare.py --source=mine.txt --tokenizer=my-tokenizer --to=data/my_text

transformers' AutoTokenizer reads the folder, with its chat template, and so does every --tokenizer here. The
text is cut as for GPT-2, and `tokenizers` merges; this file only says which tokens have a meaning.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.command_line import Count, Name, given
from common.errors import UserError, command
from common.files import refusing
from data.sources import Files, extract_text
from data.tokenizer import END_NAMES
from data.writer import load_tokenizer

END, TURN, END_OF_TURN = END_NAMES[0], "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True)
class TrainTokenizerOptions:
    """Train a byte-pair tokenizer on documents."""

    source: Name | None = None  # files, folders or globs, with commas between them, as of data/prepare.py
    to: Name | None = None  # folder of the tokenizer
    vocab_size: Annotated[int, Field(ge=259, le=2**20)] = 2048  # 256 bytes, 3 special tokens, and the merges
    limit: Count | None = None  # only the first so many documents


def main(argv: list[str]) -> None:
    options = TrainTokenizerOptions(**given(argv, TrainTokenizerOptions))
    if options.source is None or options.to is None:
        raise UserError("--source=<files> and --to=<folder> are needed; see --help")
    source, folder = Files(options.source.split(",")), Path(options.to)
    if (folder / "meta.json").exists():
        raise UserError(f"--to={folder}: this folder holds a data set: give the tokenizer another")
    if folder.is_file():
        raise UserError(f"--to={folder} is a file: give a folder")
    first = next(texts(source, options.limit), None)
    if first is None:
        raise UserError(f'{source}: no documents: in .jsonl each is a line with a string under "text"')
    save(train(texts(source, options.limit), options.vocab_size), folder)
    ours = load_tokenizer(str(folder))
    if ours.vocab_size < options.vocab_size:
        print(f"note: the text has no pairs left to merge after {ours.vocab_size} tokens", file=sys.stderr)
    first = first[: 2**20]  # a longer text cannot be encoded at once
    each = len(first.encode()) / len(ours.encode(first, special=False))
    print(f"{folder}: {ours.vocab_size:,} tokens, of the first document {each:.2f} bytes each")


def texts(source: Files, limit: int | None) -> Iterator[str]:
    """Yield the documents, or the first `limit` of them."""
    records = ((x, batch.json_lines) for batch in source.batches() for x in batch.records)
    return islice(filter(None, (extract_text(*record) for record in records)), limit)


def train(documents: Iterator[str], vocab_size: int) -> Any:
    """Return `tokenizers`' own tokenizer, whose merges begin with bytes."""
    import tokenizers  # here, as transformers below: `--help` needs neither
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END, TURN, END_OF_TURN],
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def save(tokenizer: Any, folder: Path) -> None:
    """Write the folder as transformers does; an answer ends with its turn, a document with `END`."""
    from transformers import GenerationConfig, PreTrainedTokenizerFast

    whole = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        model_input_names=["input_ids", "attention_mask"],  # transformers 4 adds token_type_ids
        additional_special_tokens=[TURN, END_OF_TURN],
        chat_template=Path(__file__).with_name("chat.jinja").read_text(),
    )
    with refusing(f"{folder}: cannot be written", "give another --to", OSError):
        whole.save_pretrained(folder)
        ends = whole.convert_tokens_to_ids([END, END_OF_TURN])
        GenerationConfig(eos_token_id=ends).save_pretrained(folder)


if __name__ == "__main__":
    command(main)
