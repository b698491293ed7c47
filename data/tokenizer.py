"""Text to token ids and back: characters, tiktoken's byte pairs, or any Hugging Face `tokenizer.json`.

`meta.json` and checkpoints hold a tokenizer's description, in JSON values.
"""

import codecs
import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jaxtyping import Int32

from config.command_line import UserError, spell
from config.files import first_line

# The id of "<|endoftext|>", which tiktoken knows only once it has an encoding's files.
END_OF_TEXT = {"gpt2": 50256, "cl100k_base": 100257, "o200k_base": 199999}
# The token that ends a text in a tokenizer.json: the first one found.
END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")

# GPT-2 and ByteLevel's tokenizer.json write a printable byte as itself, the others as characters from 256 on.
PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTED]
BYTE_OF = {chr(byte): byte for byte in PRINTED} | {chr(256 + i): byte for i, byte in enumerate(OTHERS)}


class Tokenizer(ABC):
    """Encodes and decodes text."""

    vocab_size: int
    description: dict[str, str]  # from which `from_json` makes it again

    @abstractmethod
    def encode(self, text: str, special: bool = True) -> Int32[np.ndarray, " T"]:
        """Return token ids. The name of a special token in the text means that token only if `special`."""

    @abstractmethod
    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that a token stands for after other text; they may be part of a character."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return a text. Bytes that are not UTF-8, and unknown ids, become U+FFFD."""
        return self.stream()(ids, final=True)

    def stream(self) -> Callable[..., str]:
        """Return a function `feed(ids, final=False)` from the next ids to the text that they complete."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return lambda ids, final=False: decoder.decode(b"".join(map(self.bytes_of, ids)), final)


class CharTokenizer(Tokenizer):
    """Token i is the i-th character of `symbols`. Raises ValueError for symbols that are no vocabulary."""

    def __init__(self, symbols: str):
        if not symbols or len(set(symbols)) != len(symbols) or symbols != _replace_surrogates(symbols):
            raise ValueError("a character vocabulary needs valid characters, at least one, each only once")
        self.symbols = symbols
        self.description = {"type": "char", "symbols": symbols}
        self.vocab_size = len(symbols)
        self._id_of = {symbol: i for i, symbol in enumerate(symbols)}

    def encode(self, text: str, special: bool = True) -> np.ndarray:
        if missing := sorted(set(text) - self._id_of.keys()):
            raise UserError(
                f"the vocabulary of {self.vocab_size} characters lacks {', '.join(map(repr, missing[:10]))}: "
                "leave them out of the text, or train on data that has them"
            )
        return np.fromiter((self._id_of[symbol] for symbol in text), np.int32, len(text))

    def bytes_of(self, token: int) -> bytes:
        return (self.symbols[token] if token < self.vocab_size else "\ufffd").encode()


class TiktokenTokenizer(Tokenizer):
    """A byte-pair encoding of tiktoken, such as "gpt2". Raises UserError when it cannot be loaded."""

    def __init__(self, name: str):
        import tiktoken  # here and in the next class: characters need neither library

        try:
            self._encoding = tiktoken.get_encoding(name)
        except (ValueError, OSError) as error:  # the errors of the requests library are OSErrors too
            raise UserError(
                f"tiktoken cannot load {name!r} ({first_line(error)}): choose a tokenizer.json or another "
                "name; without a network, set TIKTOKEN_CACHE_DIR to a folder that has its files"
            ) from None
        self.description = {"type": "tiktoken", "name": name}
        self.vocab_size = self._encoding.n_vocab

    def encode(self, text: str, special: bool = True) -> np.ndarray:
        allowed = {"<|endoftext|>"} if special else set()
        text = _replace_surrogates(text)
        ids = self._encoding.encode_to_numpy(text, allowed_special=allowed, disallowed_special=())
        return ids.astype(np.int32)

    def bytes_of(self, token: int) -> bytes:
        try:
            return self._encoding.decode_single_token_bytes(int(token))
        except KeyError:  # of the padding of a model's vocabulary
            return "\ufffd".encode()


class JsonTokenizer(Tokenizer):
    """The tokenizer of a `tokenizer.json`'s text. Raises ValueError for another text."""

    def __init__(self, text: str):
        self._tokenizer = _load_library_tokenizer(text)
        self.description = {"type": "tokenizers", "json": text}
        self.vocab_size = max(self._tokenizer.get_vocab().values(), default=-1) + 1  # the ids may have gaps

    def encode(self, text: str, special: bool = True) -> np.ndarray:
        self._tokenizer.encode_special_tokens = not special  # the library's name for "as plain text"
        ids = self._tokenizer.encode(_replace_surrogates(text), add_special_tokens=False).ids
        return np.array(ids, np.int32)

    def bytes_of(self, token: int) -> bytes:
        # Decoded after itself: a text's first token may lose a space.
        once, twice = (self._tokenizer.decode([token] * n, skip_special_tokens=False) for n in (1, 2))
        text, name = twice.removeprefix(once), self._tokenizer.id_to_token(token) or ""
        if "\ufffd" in text and (byte := re.fullmatch(r"<0x([0-9A-F]{2})>", name)):  # of SentencePiece
            return bytes([int(byte[1], 16)])
        if "\ufffd" in text and all(symbol in BYTE_OF for symbol in name):
            return bytes(BYTE_OF[symbol] for symbol in name)
        return text.encode()


@functools.lru_cache(maxsize=2)
def _load_library_tokenizer(text: str) -> Any:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower class
        raise ValueError(f"not a Hugging Face tokenizer.json: {error}") from None


def from_json(description: Any) -> Tokenizer:
    """Make a tokenizer from its description. Raises UserError or ValueError."""
    match description:
        case {"type": "char", "symbols": str(symbols)}:
            return CharTokenizer(symbols)
        case {"type": "tiktoken", "name": str(name)}:
            return TiktokenTokenizer(name)
        case {"type": "tokenizers", "json": str(text)}:
            return JsonTokenizer(text)
    raise ValueError(f"unknown tokenizer {spell(description)}")


def check_description(description: Any) -> dict | None:
    """Return what `from_json` needs of a description, or None for None. Raises ValueError for another."""
    match description:
        case None:
            return None
        case {"type": "tiktoken", "name": str(name)}:  # whose files may have to be downloaded
            return {"type": "tiktoken", "name": name}
    return from_json(description).description


def end_of_text(description: dict | None) -> int | None:
    """Return the id of the token that ends a text, if the described tokenizer has one."""
    match description:
        case {"type": "tiktoken", "name": str(name)}:
            return END_OF_TEXT.get(name)
        case {"type": "tokenizers", "json": str(text)}:
            added = _load_library_tokenizer(text).get_added_tokens_decoder()
            ids = {token.content: i for i, token in added.items()}
            return next((ids[name] for name in END_NAMES if name in ids), None)
    return None


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # the library cannot encode a lone surrogate
