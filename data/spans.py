"""Which characters and bytes of a text its tokens stand for: for conversations, and for bits per byte."""

import functools
import json
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int32

from data.dataset import TextBytes
from data.tokenizer import JsonTokenizer, Tokenizer, document_start, end_tokens, from_json

OPENING = 2**12  # characters of a text that decide its first token


def encode_part(
    tokenizer: Tokenizer, text: str, begin: int, end: int, special: bool = True
) -> tuple[Int32[np.ndarray, " T"], Int32[np.ndarray, "T 2"]]:
    """Return token ids of text[begin:end], and where in the text each begins and ends.

    Raises UserError as `Tokenizer.encode`.
    """
    tokenizer, part = reading_on(tokenizer, text, begin), text[begin:end]
    ids = tokenizer.encode(part, special)
    if isinstance(tokenizer, JsonTokenizer):
        spans = tokenizer.library(special).encode(part, add_special_tokens=False).offsets
    else:
        character = np.repeat(np.arange(len(part)), [len(symbol.encode()) for symbol in part])  # of each byte
        lengths = np.array([len(tokenizer.bytes_of(token)) for token in ids.tolist()], int)
        ends = np.cumsum(lengths)
        # A token that holds a part of a character spans all of it.
        spans = np.stack([character[ends - lengths], character[ends - 1] + 1], axis=-1)
    return ids, begin + np.asarray(spans, np.int32).reshape(-1, 2)


def reading_on(tokenizer: Tokenizer, text: str, begin: int) -> Tokenizer:
    """Return the tokenizer that reads the part of a text that begins there."""
    if not (begin and isinstance(tokenizer, JsonTokenizer)):
        return tokenizer
    return without_prefix(tokenizer.description["json"], text.endswith(tuple(tokenizer.names), 0, begin))


@functools.lru_cache(maxsize=8)
def without_prefix(text: str, after_special: bool) -> JsonTokenizer:
    """Return the tokenizer of a tokenizer.json, without the spaces that it puts before a text alone."""
    library = json.loads(text)
    normalizer, before = library["normalizer"] or {}, library["pre_tokenizer"] or {}
    for part in before.get("pretokenizers", [before]):
        if "prepend_scheme" in part and not (after_special and part["prepend_scheme"] == "always"):
            part["prepend_scheme"] = "never"
        if "add_prefix_space" in part:
            part["add_prefix_space"] &= after_special
    if not after_special:
        parts = normalizer.get("normalizers", [normalizer] if normalizer else [])
        kept = [part for part in parts if part["type"] != "Prepend"]
        library["normalizer"] = {"type": "Sequence", "normalizers": kept}
    return JsonTokenizer(json.dumps(library))


def count_bytes(tokenizer: Tokenizer, text: str) -> TextBytes:
    """Count a document's bytes. Raises UserError as `Tokenizer.encode`."""
    total = len(text.encode())
    ids, found = encode_part(tokenizer, text[:OPENING], 0, OPENING, special=False)
    if not len(ids):
        return TextBytes(total)
    # Up to the next token, because a span may leave out an accent that normalising joined to a letter.
    end = max(found[0, 1], found[1, 0]) if len(found) > 1 else len(text)
    raw, spanned = tokenizer.bytes_of(int(ids[0]), first=True), text[:end].encode()
    # A span is of whole characters, of which a token may hold a part; what is normalised is not `raw`.
    return TextBytes(total, int(ids[0]), len(raw if spanned.startswith(raw) else spanned))


def document_bytes(ids: np.ndarray, description: dict) -> Iterator[bytes]:
    """Yield the bytes of each token in its document. Tokens around documents and of templates have none."""
    tokenizer, first = from_json(description), True
    special = (i for name, i in tokenizer.names.items() if name not in tokenizer.added)
    control = {*special, *end_tokens(description), document_start(description)}
    bytes_of = functools.cache(tokenizer.bytes_of)
    for token in map(int, ids):
        yield b"" if token in control else bytes_of(token, first)
        first = token in control
