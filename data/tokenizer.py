"""Text to token ids and back.

`CharTokenizer` has one symbol per character. `TiktokenTokenizer` has OpenAI's byte pairs, such as GPT-2's.
`JsonTokenizer` reads any Hugging Face `tokenizer.json`. `load_tokenizer` makes one from a name that a user
gives. `to_json` describes it for `meta.json` and checkpoints, and `from_json` makes it again from that.
"""

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from config.command_line import UserError, spell
from config.files import GONE, TOKENIZER, is_whole, parse_json, read_text

# The id of "<|endoftext|>" in tiktoken's encodings: tiktoken itself could say it only with their files.
END_OF_TEXT = {
    **dict.fromkeys(("gpt2", "r50k_base", "p50k_base", "p50k_edit"), 50256),
    "cl100k_base": 100257,
    **dict.fromkeys(("o200k_base", "o200k_harmony"), 199999),
}

# Names that a tokenizer.json may have for the token that ends a text; the first one found is taken.
END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")

# GPT-2, and every tokenizer.json of the kind ByteLevel, writes bytes as characters: those that can be printed
# as they are, the others as the characters from 256 on, in order.
PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTED]
BYTE_OF = {chr(byte): byte for byte in PRINTED} | {chr(256 + i): byte for i, byte in enumerate(OTHERS)}

# A function `feed(ids, final=False)` that returns the text which these ids complete; `final=True` ends it.
Stream = Callable[..., str]


class Tokenizer(ABC):
    """A tokenizer gives `bytes_of` its tokens; `decode` and `stream` follow from that."""

    vocab_size: int

    @abstractmethod
    def encode(self, text: str) -> Int32[np.ndarray, " T"]:
        """Return the token ids of a text, in which the name of a special token may mean that token."""

    @abstractmethod
    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that a token stands for after other text, perhaps a part of a character's."""

    @abstractmethod
    def to_json(self) -> dict:
        """Describe the tokenizer in JSON values, of which `from_json` makes it again."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of these token ids. Bytes that are not UTF-8, and unknown ids, become U+FFFD."""
        return self.stream()(ids, final=True)

    def stream(self) -> Stream:
        """Return a function from the next token ids to the text that they complete.

        A token may end in the middle of a character. Its bytes are kept until the rest of the character
        arrives, or until `final=True`, when bytes without the rest become U+FFFD.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return lambda ids, final=False: decoder.decode(b"".join(map(self.bytes_of, ids)), final)


class CharTokenizer(Tokenizer):
    """Token i is the i-th character of `symbols`. Raises UserError when these are not a vocabulary's."""

    def __init__(self, symbols: str):
        if not symbols or len(set(symbols)) != len(symbols):
            raise UserError("a character vocabulary needs at least one symbol, and each symbol only once")
        if symbols != _replace_surrogates(symbols):
            raise UserError("a character vocabulary has half a character, which no text can have")
        self.symbols = symbols
        self.vocab_size = len(symbols)
        points = _code_points(symbols)
        # The table has an entry per code point up to the largest known, and one for all above it.
        self._id_of = np.full(points.max() + 2, -1, np.int32)
        self._id_of[points] = np.arange(len(symbols))

    def encode(self, text: str) -> np.ndarray:
        """Return token ids, int32, one per character. Raises UserError for characters not in `symbols`."""
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

    def bytes_of(self, token: int) -> bytes:
        return (self.symbols[token] if token < self.vocab_size else "\ufffd").encode()

    def to_json(self) -> dict:
        return {"type": "char", "symbols": self.symbols}


class TiktokenTokenizer(Tokenizer):
    """A byte-pair encoding of the tiktoken library, such as "gpt2".

    Raises UserError when tiktoken is not installed, has no such encoding, or can neither find nor download
    the encoding's files.
    """

    def __init__(self, name: str):
        try:
            import tiktoken  # here, because only data sets made of byte pairs need it
        except ImportError:
            raise UserError(f"the tokenizer {name!r} needs tiktoken: pip install tiktoken") from None
        if name not in tiktoken.list_encoding_names():
            known = ", ".join(tiktoken.list_encoding_names())
            raise UserError(f"tiktoken has no encoding {name!r}: choose {known}, or a tokenizer.json")
        try:
            self._encoding = tiktoken.get_encoding(name)
        except OSError:  # the errors of the requests library are OSErrors too
            raise UserError(
                f"the files of tokenizer {name!r} are not on this machine and could not be downloaded: "
                "connect to the network, or set TIKTOKEN_CACHE_DIR to a folder that has them"
            ) from None
        self.name = name
        self.vocab_size = self._encoding.n_vocab

    def encode(self, text: str) -> np.ndarray:
        """Return token ids, int32. "<|endoftext|>" is one token; other special tokens are plain text."""
        ids = self._encoding.encode(text, allowed_special={"<|endoftext|>"}, disallowed_special=())
        return np.array(ids, np.int32)

    def encode_ordinary(self, text: str) -> np.ndarray:
        """Return token ids, uint32, of text from any source: "<|endoftext|>" in it is plain text."""
        return self._encoding.encode_to_numpy(text, disallowed_special=())

    def bytes_of(self, token: int) -> bytes:
        try:
            return self._encoding.decode_single_token_bytes(int(token))
        except KeyError:  # a model whose vocabulary is padded (50,257 to 50,304) may draw a padding token
            return "\ufffd".encode()

    def to_json(self) -> dict:
        return {"type": "tiktoken", "name": self.name}


class JsonTokenizer(Tokenizer):
    """The tokenizer that the text of a Hugging Face `tokenizer.json` describes.

    Raises UserError, which begins with `origin`, when the text is no tokenizer.json, or the tokenizers
    library is not installed.
    """

    def __init__(self, text: str, origin: str = "tokenizer.json"):
        try:
            import tokenizers  # here, for the same reason as tiktoken
            from tokenizers.decoders import DecodeStream
        except ImportError:
            raise UserError(f"{origin}: needs the tokenizers library: pip install tokenizers") from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except BaseException as error:  # the library raises no narrower class, and this one when Rust panics
            if isinstance(error, KeyboardInterrupt):
                raise
            raise UserError(f"{origin}: not a Hugging Face tokenizer.json ({error})") from None
        self._stream = DecodeStream
        self._text = text
        self.vocab_size = max(self._tokenizer.get_vocab().values(), default=-1) + 1  # the ids may have gaps
        if not 0 < self.vocab_size < 2**31:  # ids are int32
            raise UserError(f"{origin}: this tokenizer has {self.vocab_size} tokens")

    def encode(self, text: str) -> np.ndarray:
        """Return token ids, int32. The name of a special token means that token; none is added."""
        return self._encode(_replace_surrogates(text), special=True).astype(np.int32)

    def encode_ordinary(self, text: str) -> np.ndarray:
        """Return token ids, uint32, of text from any source: a special token's name is plain text."""
        return self._encode(text, special=False)

    def _encode(self, text: str, special: bool) -> np.ndarray:
        self._tokenizer.encode_special_tokens = not special  # the library's name for "as plain text"
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        # An id that no token has is left out: a model whose vocabulary is padded may draw one.
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def stream(self) -> Stream:
        decoder, kept = self._stream(skip_special_tokens=False), []

        def feed(ids: Iterable[int], final: bool = False) -> str:
            pieces = []
            for i in map(int, ids):
                kept.append(i)
                if (piece := decoder.step(self._tokenizer, i)) is not None:
                    pieces.append(piece)
                    kept.clear()
            if final:
                pieces.append(self.decode(kept))
            return "".join(pieces)

        return feed

    def bytes_of(self, token: int) -> bytes:
        # Decoded after itself, because a text's first token may lose a space.
        text = self.decode([token, token]).removeprefix(self.decode([token]))
        if "\ufffd" not in text:
            return text.encode()
        name = self._tokenizer.id_to_token(token) or ""
        if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", name):  # of SentencePiece's byte_fallback
            return bytes([int(byte[1], 16)])
        if all(symbol in BYTE_OF for symbol in name):  # of GPT-2's way to write bytes as characters
            return bytes(BYTE_OF[symbol] for symbol in name)
        return text.encode()

    def to_json(self) -> dict:
        return {"type": "tokenizers", "json": self._text}


def load_tokenizer(name: str) -> TiktokenTokenizer | JsonTokenizer:
    """Load a tokenizer by the path of its tokenizer.json, or by tiktoken's name for it. Raises UserError."""
    if not name.endswith(".json"):
        return TiktokenTokenizer(name)
    try:
        # A path that the user gives may be a link.
        return JsonTokenizer(read_text(Path(name).resolve(), TOKENIZER), origin=name)
    except (*GONE, ValueError) as error:
        raise UserError(f"{name}: cannot be read as a tokenizer.json ({error}): give another") from None


def from_json(description: dict) -> Tokenizer:
    """Make a tokenizer from the description that its `to_json` gave. Raises UserError for any other."""
    match description:
        case {"type": "char", "symbols": str(symbols)}:
            return CharTokenizer(symbols)
        case {"type": "tiktoken", "name": str(name)}:
            return TiktokenTokenizer(name)
        case {"type": "tokenizers", "json": str(text)}:
            return JsonTokenizer(text)
    raise UserError(
        f"unknown tokenizer {spell(description)}: expected what this version writes to meta.json; "
        "run prepare.py again to write it anew"
    )


def check_description(description: Any) -> dict | None:
    """Return the description as `to_json` gives it, or None. Raises ValueError for what is neither."""
    match description:
        case None:
            return None
        case {"type": "char", "symbols": str(symbols)}:
            return {"type": "char", "symbols": symbols}
        case {"type": "tiktoken", "name": str(name)}:
            return {"type": "tiktoken", "name": name}
        case {"type": "tokenizers", "json": str(text)}:
            _added_tokens(text)
            return {"type": "tokenizers", "json": text}
    raise ValueError(f"unknown tokenizer {spell(description)}")


def end_of_text(description: dict | None) -> int | None:
    """Return the id of the token that ends a text, from a tokenizer's description; None if it has none."""
    match description:
        case {"type": "tiktoken", "name": str(name)}:
            return END_OF_TEXT.get(name)
        case {"type": "tokenizers", "json": str(text)}:
            ids = _added_tokens(text)
            return next((ids[name] for name in END_NAMES if name in ids), None)
    return None


def _added_tokens(text: str) -> dict[str, int]:
    """Return the ids of the tokens that the text of a tokenizer.json names, by name. Raises ValueError."""
    values = parse_json(text)
    if not isinstance(values, dict):
        raise ValueError("a tokenizer.json is a JSON object")
    listed, ids = values.get("added_tokens"), {}
    for token in listed if isinstance(listed, list) else []:
        match token:
            case {"content": str(content), "id": int(i)} if is_whole(i) and i >= 0:
                ids[content] = i
            case _:
                raise ValueError(f"its added_tokens have {spell(token)}")
    return ids


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # the library cannot encode a lone surrogate


def _code_points(text: str) -> np.ndarray:
    # A lone surrogate comes from a byte of the command line that is not UTF-8. With "surrogatepass" it is a
    # character to report as missing, not an exception.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
