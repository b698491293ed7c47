"""Text to token ids and back: characters, tiktoken's byte pairs, or any Hugging Face `tokenizer.json`.

`meta.json` and checkpoints hold a tokenizer's description, in JSON values. It needs neither the folder that a
tokenizer was read from nor transformers, which reads such folders.
"""

import codecs
import functools
import hashlib
import json
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
from jaxtyping import Int32
from numpy.typing import ArrayLike
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from common.command_line import NonNegativeInt, matching, spell
from common.files import read_json, refusing

# The id of "<|endoftext|>". tiktoken knows it only after it has downloaded an encoding.
END_OF_TEXT = {"gpt2": 50256, "cl100k_base": 100257, "o200k_base": 199999}
# A lone tokenizer.json does not say which token ends a text: it is the first of these that it has.
END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")

# GPT-2 and ByteLevel's tokenizer.json write a printable byte as itself, the others as characters from 256 on.
PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTED]
BYTE_OF = {chr(byte): byte for byte in PRINTED} | {chr(256 + i): byte for i, byte in enumerate(OTHERS)}

# The files that a tokenizer is made from. The first two hold vocabularies, and one of them has to be there.
TOKENIZER_FILES = (
    "tokenizer.json vocab.json merges.txt tokenizer_config.json special_tokens_map.json added_tokens.json "
    "chat_template.jinja generation_config.json"
).split()
# A hash of the sorted vocabulary of OpenAI's GPT-2, whose texts tiktoken encodes wherever the files lie.
GPT2_SHA256 = "71cca498f566a6fce90612118ffe70ec265ffdc746e7e6743a2253d346af4d30"

LONGEST = 2**24  # characters, for which the library takes gigabytes; without them it ends the process

TokenName = Annotated[str, matching(r"\w+_token", "a name as in bos_token")]


@dataclass(frozen=True, config={"strict": True})
class Uses:
    """Says what a pretrained model uses its tokens for."""

    # Each of them ends what a model writes; the first also ends a document.
    eos_token_id: list[NonNegativeInt] = field(default_factory=list)
    document_start: NonNegativeInt | None = None  # begins a document, as Llama's <s> does
    conversation_start: NonNegativeInt | None = None  # begins a conversation; None: the model learned none
    special_tokens: dict[TokenName, str] = field(default_factory=dict)  # maps a name to the token's text
    chat_template: str | None = None
    system_message: bool = True  # conversations that were learned have one, as far as is known


class Tokenizer(ABC):
    """Turns text into token ids and back."""

    vocab_size: int
    description: dict[str, Any]  # what `from_json` makes it from
    added: tuple[str, ...] = ()  # names that are tokens in any text, special or not
    names: dict[str, int]  # the ids of these, and of special tokens

    def encode(
        self, text: str, special: bool = True, add_special_tokens: bool | str = False
    ) -> Int32[np.ndarray, " T"]:
        """Return token ids. Raises UserError for a text that cannot be encoded.

        The name of a special token in the text means that token only if `special`. `add_special_tokens` adds
        the tokens that a pretrained tokenizer puts around a text, such as Llama's <s>; "before", for a text
        to go on with, leaves out those after it.
        """
        with refusing(f"the text {spell(text)} cannot be encoded", "leave it out or split it", Exception):
            text.encode()  # raises for half a character, which the libraries would change
            return np.asarray(self.ids_of(text, special, add_special_tokens), np.int32)

    @functools.cached_property
    def longest(self) -> int:
        """How many characters a token stands for at most."""
        return max(len(self.bytes_of(token)) for token in range(self.vocab_size))

    @abstractmethod
    def ids_of(self, text: str, special: bool, add_special_tokens: bool | str) -> ArrayLike:
        """Return token ids as `encode`; any error refuses the text."""

    @abstractmethod
    def bytes_of(self, token: int, first: bool = False) -> bytes:
        """Return the bytes that a token stands for after other text, or as a text's `first`.

        They may be part of a character. SentencePiece puts a space before a text, which is not of the first.
        """

    def decode(self, ids: Iterable[int]) -> str:
        """Return a text. Bytes that are not UTF-8, and unknown ids, become U+FFFD."""
        return self.stream()(ids, final=True)

    def stream(self, encoded: bool = False) -> Callable[..., str]:
        """Return a function `feed(ids, final=False)` from the next ids to the text that they complete.

        Of a text that was `encoded`, what the tokenizer puts before it is left out: a token, a space.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        start, first = self.description.get("uses", {}).get("document_start") if encoded else None, encoded

        def feed(ids: Iterable[int], final: bool = False) -> str:
            nonlocal start, first
            raw = bytearray()
            for token in ids:
                if token != start:
                    raw += self.bytes_of(token, first)
                    first = False
                start = None
            return decoder.decode(raw, final)

        return feed


class CharTokenizer(Tokenizer):
    """Token i is the i-th character of `symbols`. Raises ValueError if one is invalid or comes twice."""

    def __init__(self, symbols: str):
        valid = symbols.encode("utf-8", "ignore").decode()  # without lone surrogates
        if not symbols or len(set(symbols)) != len(symbols) or symbols != valid:
            raise ValueError("a character vocabulary needs valid characters, at least one, each only once")
        self.symbols = symbols
        self.description = {"type": "char", "symbols": symbols}
        self.vocab_size = len(symbols)
        self.names = {}
        self._id_of = {symbol: i for i, symbol in enumerate(symbols)}

    def ids_of(self, text: str, special: bool, add_special_tokens: bool | str) -> ArrayLike:
        if missing := sorted(set(text) - self._id_of.keys()):
            lacks = ", ".join(map(repr, missing[:10]))
            raise ValueError(f"the vocabulary of {self.vocab_size} characters lacks {lacks}")
        return np.fromiter((self._id_of[symbol] for symbol in text), np.int32, len(text))

    def bytes_of(self, token: int, first: bool = False) -> bytes:
        return (self.symbols[token] if token < self.vocab_size else "\ufffd").encode()


class TiktokenTokenizer(Tokenizer):
    """A byte-pair encoding of tiktoken, such as "gpt2". Raises UserError when it cannot be loaded."""

    def __init__(self, name: str, **uses: Any):
        import tiktoken  # here, because characters need neither this library nor tokenizers

        advice = "choose a tokenizer.json or another; offline, set TIKTOKEN_CACHE_DIR to its files' folder"
        # The errors of the requests library are OSErrors, too.
        with refusing(f"tiktoken cannot load {name!r}", advice, ValueError, OSError):
            self._encoding = tiktoken.get_encoding(name)
        self.description = {"type": "tiktoken", "name": name} | uses
        self.vocab_size = self._encoding.n_vocab
        self.names = {"<|endoftext|>": END_OF_TEXT[name]} if name in END_OF_TEXT else {}

    def ids_of(self, text: str, special: bool, add_special_tokens: bool | str) -> ArrayLike:
        allowed = {"<|endoftext|>"} if special else set()
        # Its regular expression gives up at about a million spaces in a row.
        return self._encoding.encode_to_numpy(text, allowed_special=allowed, disallowed_special=())

    def bytes_of(self, token: int, first: bool = False) -> bytes:
        try:
            return self._encoding.decode_single_token_bytes(int(token))
        except KeyError:  # an id that only pads the model's vocabulary
            return "\ufffd".encode()


class JsonTokenizer(Tokenizer):
    """The tokenizer that a `tokenizer.json` describes. Raises ValueError for any other text."""

    def __init__(self, text: str, **uses: Any):
        self._tokenizer, text = _load_library_tokenizer(text)
        if getattr(self._tokenizer.model, "end_of_word_suffix", None):
            raise ValueError("a token with an end_of_word_suffix is not known as text before the next one")
        self.description = {"type": "tokenizers", "json": text} | uses
        self.vocab_size = max(self._tokenizer.get_vocab().values(), default=-1) + 1  # the ids may have gaps
        known = self._tokenizer.get_added_tokens_decoder()
        self.added = tuple(token.content for token in known.values() if not token.special)
        self.names = {token.content: i for i, token in known.items()}

    def ids_of(self, text: str, special: bool, add_special_tokens: bool | str) -> ArrayLike:
        if len(text) > LONGEST:
            raise ValueError(f"it has {len(text):,} characters, and {LONGEST:,} at most are read at once")
        ids = self.library(special).encode(text, add_special_tokens=add_special_tokens is True).ids
        begun = ids[: len(self.before)] == self.before  # a text that names these tokens itself
        return [*self.before, *ids] if add_special_tokens == "before" and not begun else ids

    @functools.cached_property
    def before(self) -> list[int]:
        """The tokens that come before any text."""
        around = self._tokenizer.encode(next(iter(self.names), "a"))  # a text of a known token
        mask = around.special_tokens_mask
        return around.ids[: mask.index(0) if 0 in mask else 0]

    @functools.cached_property
    def longest(self) -> int:
        return max(map(len, self._tokenizer.get_vocab()))

    def library(self, special: bool) -> Any:
        """Return the library's tokenizer, one for each way to read names of special tokens.

        A single one would be changed by one thread while another encodes with it.
        """
        return _load_library_tokenizer(self.description["json"], special)[0]

    @functools.cached_property
    def _space(self) -> str:
        """Return the space that stays before a text when it is decoded, as with RoBERTa's tokenizer."""
        ids = self._tokenizer.encode("a", add_special_tokens=False).ids
        return " " if self._tokenizer.decode(ids, skip_special_tokens=False) == " a" else ""

    def bytes_of(self, token: int, first: bool = False) -> bytes:
        # The token is decoded after itself, because the first token of a text may lose a space.
        once, twice = (self._tokenizer.decode([token] * n, skip_special_tokens=False) for n in (1, 2))
        text = once.removeprefix(self._space) if first else twice.removeprefix(once)
        name = self._tokenizer.id_to_token(token) or ""
        if "\ufffd" in text and (byte := re.fullmatch(r"<0x([0-9A-F]{2})>", name)):  # SentencePiece's
            return bytes([int(byte[1], 16)])
        if "\ufffd" in text and all(symbol in BYTE_OF for symbol in name):
            return bytes(BYTE_OF[symbol] for symbol in name)
        return text.encode()


@functools.lru_cache(maxsize=16)
def _load_library_tokenizer(text: str, special: bool = True) -> tuple[Any, str]:
    """Return the library's tokenizer, which neither cuts, pads nor drops merges, and its tokenizer.json."""
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower class
        raise ValueError(f"not a Hugging Face tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    tokenizer.encode_special_tokens = not special  # the library's name for "as plain text"
    return tokenizer, tokenizer.to_str()


def from_json(description: Any) -> Tokenizer:
    """Make a tokenizer from its description. Raises UserError or ValueError."""
    match description:
        case {"type": "char", "symbols": str(symbols)}:
            return CharTokenizer(symbols)
        case {"type": "tiktoken", "name": str(name)}:
            tokenizer = TiktokenTokenizer(name, **uses_of(description))
        case {"type": "tokenizers", "json": str(text)}:
            tokenizer = JsonTokenizer(text, **uses_of(description))
        case _:
            raise ValueError(f"unknown tokenizer {spell(description)}")
    uses, V = tokenizer.description.get("uses", {}), tokenizer.vocab_size
    starts = (uses.get(name) or 0 for name in ("document_start", "conversation_start"))
    used = max([0, *uses.get("eos_token_id", []), *starts])
    if used and used >= V:
        raise ValueError(f"token {used} is used, and there are {V} tokens")
    return tokenizer


def uses_of(description: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a description that says what its tokens are used for, if it has one."""
    match description.get("uses"):
        case {**uses}:
            return {"uses": asdict(Uses(**uses))}
        case None:
            return {}
    raise ValueError("the uses of its tokens are no object")


def check_description(description: Any) -> dict | None:
    """Return what `from_json` needs of a description, or None for None. Raises ValueError for another."""
    match description:
        case None:
            return None
        case {"type": "tiktoken", "name": str(name)}:  # to make it may need a download
            return {"type": "tiktoken", "name": name} | uses_of(description)
    return from_json(description).description


def same_tokens(a: dict | None, b: dict | None) -> bool:
    """Tell whether two tokenizers have the same tokens for a text, whatever they put around it."""

    def within(description: dict) -> dict:
        library = json.loads(description.get("json", "{}")) | {"post_processor": None}
        return description | {"json": library, "uses": None}

    return (a and within(a)) == (b and within(b))


def end_tokens(description: dict | None) -> list[int]:
    """Return the tokens that end what a model writes. The first, if any, also ends a document."""
    match description:
        case {"uses": {"eos_token_id": [_, *_] as ids}}:
            return ids
        case {"type": "tiktoken", "name": str(name)}:
            return [END_OF_TEXT[name]] if name in END_OF_TEXT else []
        case {"type": "tokenizers", "json": str(text)}:
            ids = JsonTokenizer(text).names
            return [ids[name] for name in END_NAMES if name in ids][:1]
    return []


def end_of_text(description: dict | None) -> int | None:
    """Return the token that ends a document, or None."""
    return next(iter(end_tokens(description)), None)


def document_start(description: dict | None) -> int | None:
    """Return the token that begins a document, or None. Without one of its own, it is the last one's end."""
    start = (description or {}).get("uses", {}).get("document_start")
    return end_of_text(description) if start is None else start


class Entries(TypedDict, total=False):
    """Holds the entries of a config.json or generation_config.json that concern a tokenizer."""

    eos_token_id: int | list[int] | None
    model_type: str | None
    tokenizer_class: str | None


def read_tokenizer(path: Path) -> dict[str, Any] | None:
    """Describe the tokenizer of a folder, or of a tokenizer.json alone; None for a folder without one.

    Raises UserError for files that are damaged, or that need code of their own.
    """
    files = [file for name in TOKENIZER_FILES if (file := path / name).is_file()] if path.is_dir() else [path]
    if not files or (path.is_dir() and files[0].name not in TOKENIZER_FILES[:2]):
        return None
    import transformers  # here, because it takes over a second

    found, advice = {"config.json": Entries(), "generation_config.json": Entries()}, "mend or download it"
    for file in (*files, *filter(Path.is_file, [path / "config.json"])):
        with refusing(f"{file}: cannot be used", advice, ValueError):
            if file.name in found:
                found[file.name] = read_json(file, Entries)
            elif file.suffix == ".json":
                read_json(file, dict[str, Any])
            else:
                file.read_bytes().decode()
    config, ends = found["config.json"], found["generation_config.json"].get("eos_token_id")
    ends = config.pop("eos_token_id", None) if ends is None else ends
    with refusing(f"{files[0]}: cannot be used", advice, Exception), TemporaryDirectory() as copy:
        (Path(copy) / "config.json").write_text(json.dumps(config))
        for file in files:
            shutil.copyfile(file, Path(copy) / (file.name if path.is_dir() else "tokenizer.json"))
        theirs = transformers.AutoTokenizer.from_pretrained(
            copy, local_files_only=True, trust_remote_code=False
        )
        return describe(theirs, ends if isinstance(ends, list) else [ends])


def describe(theirs: Any, ends: list[Any]) -> dict[str, Any]:
    """Describe a tokenizer of transformers. `ends` are the known ends of what its model writes."""
    library, vocabulary = JsonTokenizer(theirs.backend_tokenizer.to_str()), theirs.get_vocab()
    ids, eos, template = set(vocabulary.values()), theirs.eos_token_id, theirs.chat_template
    ends = [i for i in ends if i in ids] or ([] if eos is None else [eos])
    tokens = {k: text for k, text in theirs.special_tokens_map.items() if k.endswith("_token") and text}
    uses = {
        "eos_token_id": sorted(ends, key=lambda i: i != eos),
        "document_start": next(iter(library.before), None),
        "special_tokens": tokens,
        "chat_template": template.get("default") if isinstance(template, dict) else template,
    }
    words = json.dumps(sorted(vocabulary.items())).encode()
    is_gpt2 = not library.before and hashlib.sha256(words).hexdigest() == GPT2_SHA256
    # Settings beside the vocabulary may put a space before the first word.
    if is_gpt2 and theirs("a b", add_special_tokens=False).input_ids == [64, 275]:
        return {"type": "tiktoken", "name": "gpt2", "uses": uses}
    return from_json(library.description | {"uses": uses}).description
