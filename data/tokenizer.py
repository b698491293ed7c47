"""Text to token ids and back.

Two tokenizers with the same methods: one symbol per character, for small data sets, and GPT-2's byte pairs
through the tiktoken library. `to_json` is what `meta.json` and a checkpoint keep of a tokenizer; `from_json`
makes it again.
"""

import codecs
from collections.abc import Callable, Iterable

import numpy as np

from config.options import UserError

# The id of "<|endoftext|>" in tiktoken's encodings: here, because asking tiktoken takes their files.
END_OF_TEXT = {
    **dict.fromkeys(("gpt2", "r50k_base", "p50k_base", "p50k_edit"), 50256),
    "cl100k_base": 100257,
    **dict.fromkeys(("o200k_base", "o200k_harmony"), 199999),
}

# feed(ids, final=False) -> the text that these ids complete. `final=True` ends the stream.
Stream = Callable[..., str]


class CharTokenizer:
    """Token i is the i-th character of `symbols`. Raises UserError when there is none or one is repeated."""

    def __init__(self, symbols: str):
        if not symbols or len(set(symbols)) != len(symbols):
            raise UserError("a character vocabulary needs at least one symbol, and each symbol only once")
        self.symbols = symbols
        self.vocab_size = len(symbols)
        points = _code_points(symbols)
        # One entry per code point up to the largest known, and one more for everything above it.
        self._id_of = np.full(points.max() + 2, -1, np.int32)
        self._id_of[points] = np.arange(len(symbols))

    def encode(self, text: str) -> np.ndarray:
        """Token ids, int32, one per character. Raises UserError naming characters the vocabulary lacks."""
        points = _code_points(text)
        ids = self._id_of[np.minimum(points, len(self._id_of) - 1)]
        if (ids < 0).any():
            missing = [repr(chr(point)) for point in np.unique(points[ids < 0])]
            named = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
            raise UserError(
                f"the vocabulary of {self.vocab_size} characters lacks {named}: "
                "leave them out of the text, or train on data that has them"
            )
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these token ids."""
        return "".join(self.symbols[i] for i in ids)

    def stream(self) -> Stream:
        """A function from the next token ids to the text they complete: here, each token its character."""
        return lambda ids, final=False: self.decode(ids)

    def to_json(self) -> dict:
        return {"type": "char", "symbols": self.symbols}


class TiktokenTokenizer:
    """A byte-pair encoding of the tiktoken library, such as "gpt2".

    Raises UserError when tiktoken is not installed, has no such encoding, or can neither find nor download
    its files.
    """

    def __init__(self, name: str):
        try:
            import tiktoken  # here, because only data sets made of byte pairs need it
        except ImportError:
            raise UserError(f"the tokenizer {name!r} needs tiktoken: pip install tiktoken") from None
        if name not in tiktoken.list_encoding_names():
            known = ", ".join(tiktoken.list_encoding_names())
            raise UserError(f"tiktoken has no encoding {name!r}: choose one of {known}")
        try:
            self._encoding = tiktoken.get_encoding(name)
        except OSError:  # what the requests library raises for any network trouble is an OSError too
            raise UserError(
                f"the files of tokenizer {name!r} are not on this machine and could not be downloaded: "
                "connect to the network, or set TIKTOKEN_CACHE_DIR to a folder that has them"
            ) from None
        self.name = name
        self.vocab_size = self._encoding.n_vocab

    def encode(self, text: str) -> np.ndarray:
        """Token ids, int32. "<|endoftext|>" is one token; other special tokens are read as plain text."""
        ids = self._encoding.encode(text, allowed_special={"<|endoftext|>"}, disallowed_special=())
        return np.array(ids, np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these token ids; bytes that are not UTF-8 become U+FFFD."""
        return self.stream()(ids, final=True)

    def stream(self) -> Stream:
        """A function from the next token ids to the text they complete.

        A token may end in the middle of a character: its bytes are kept until the rest of the character
        arrives, or until `final=True`, when what is left becomes U+FFFD.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return lambda ids, final=False: decoder.decode(b"".join(map(self._bytes, ids)), final)

    def _bytes(self, token: int) -> bytes:
        try:
            return self._encoding.decode_single_token_bytes(int(token))
        except (
            KeyError
        ):  # a model's vocabulary may be padded (50,257 to 50,304), and may draw a padding token
            return "\N{REPLACEMENT CHARACTER}".encode()

    def to_json(self) -> dict:
        return {"type": "tiktoken", "name": self.name}


def from_json(description: dict) -> CharTokenizer | TiktokenTokenizer:
    """The tokenizer that `to_json` described. Raises UserError when the description is not one of ours."""
    match description:
        case {"type": "char", "symbols": str(symbols)}:
            return CharTokenizer(symbols)
        case {"type": "tiktoken", "name": str(name)}:
            return TiktokenTokenizer(name)
    raise UserError(
        f'unknown tokenizer {str(description)[:80]}: expected {{"type": "char", "symbols": ...}} '
        'or {"type": "tiktoken", "name": ...}; run prepare.py again to write meta.json anew'
    )


def end_of_text(description: dict | None) -> int | None:
    """The id of "<|endoftext|>" in the tokenizer that `to_json` described; None where there is none."""
    match description:
        case {"type": "tiktoken", "name": str(name)}:
            return END_OF_TEXT.get(name)
    return None


def _code_points(text: str) -> np.ndarray:
    # "surrogatepass": a lone surrogate (a byte of the command line that is not UTF-8) is a character to
    # report as missing, not an exception.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
