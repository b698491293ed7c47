"""A model and its page in one HTML file, which a browser opens from the disk: page/offline.js computes in it.

The file holds the page's modules, the weights, and the tokenizer in the terms of page/tokenizer.js.
"""

import base64
import hashlib
import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.errors import UserError
from data.conversations import Renderer
from data.tokenizer import BYTE_OF, Tokenizer, end_tokens
from model import GPT, leaf_name
from tools.inside.views import limits, shape
from tools.serving.server import PAGE
from tools.serving.text import marks

MAX_TOKENS = 1024  # new ones that the page may ask for
# The page asks nobody for anything. Its modules are data: URLs, which an import map names.
ASKS_NOBODY = "default-src 'none'; img-src data: blob:; base-uri 'none'; form-action 'none'"
# How the tokenizers that the page knows split words: GPT-2's, Llama 3's, and Qwen's, with other digits.
GPT2_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = [CONTRACTIONS + WORDS.replace("DIGITS", digits) for digits in (r"\p{N}{1,3}", r"\p{N}")]
# The same in JavaScript. Not every browser knows (?i:, whose s is a long one, too; \s is not quite Unicode's.
IN_JAVASCRIPT = {
    CONTRACTIONS: "'(?:[sSſdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])",
    r"\s": r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]",
    r"\S": r"[^\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]",
}
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}
SYSTEM_FIRST = ["system", "user", "assistant", "user"]
ADVICE = (
    "the page knows characters, and byte pairs in words as GPT-2 or Llama 3 split them: "
    "serve the model with serve.py instead"
)


def html(model: GPT, known: dict[str, Any], tokenizer: Tokenizer, kept: str) -> tuple[str, GPT]:
    """Return the file, and the model as it is there. Its matrices are `kept` in bfloat16 or int8.

    `known` has name, version, example and questions. Raises UserError for a tokenizer that the page cannot
    follow.
    """
    config = model.config
    vocab_size = min(tokenizer.vocab_size, config.vocab_size)
    arrays = {leaf_name(path): np.asarray(x) for path, x in jax.tree.leaves_with_path(model)}
    arrays |= {name: arrays[name][:vocab_size] for name in ("wte", "lm_head") if name in arrays}
    parts = {name: keep(name, x, kept) for name, x in arrays.items()}
    weights = b"".join(data for _, data, _ in parts.values())
    chat, template, lacks = None, None, None
    try:
        chat = Renderer(tokenizer)
        template = conversations(chat)
    except UserError as error:
        lacks = str(error)
    shown = known | {
        "marks": marks(tokenizer, chat),
        "config": shape(replace(config, vocab_size=vocab_size), "float32"),  # in which the page computes
        "vocab_size": vocab_size,
        "parameters": [
            {"name": name, "shape": x.shape, "dtype": parts[name][0], "devices": ["browser"], "split": []}
            for name, x in arrays.items()
        ],
        "run": False,
        "chat": lacks,
        "chat_first": chat is not None and chat.learned_start is not None,
        "system": chat is None or chat.system_message,
        "lacks": ["run", "rollouts"],
        "limits": limits(config, MAX_TOKENS),
    }
    served = {
        "shown": shown,
        "template": template,
        "tokenizer": in_javascript(tokenizer, "".join(template["between"].values()) if template else ""),
        "ends": end_tokens(tokenizer.description),
        "sha256": list(hashlib.sha256(weights).digest()),
    }
    there = jax.tree.map_with_path(lambda path, _: jnp.asarray(parts[leaf_name(path)][2]), model)
    return assembled(served, weights), there


def keep(name: str, x: np.ndarray, kept: str) -> tuple[str, bytes, np.ndarray]:
    """Return how an array is kept, its bytes, and the numbers that they stand for. Vectors stay float32."""
    if x.ndim - name.startswith("blocks.") < 2 or name.endswith("bias"):
        return "float32", x.tobytes(), x
    if kept == "bfloat16":
        short = x.astype(jnp.bfloat16)
        return kept, short.tobytes(), short.astype(np.float32)
    scales = np.maximum(np.abs(x).max(-1, keepdims=True), 1e-30) / 127  # of each row
    steps = np.rint(x / scales).astype(np.int8)
    return kept, scales.tobytes() + steps.tobytes(), scales * steps


def assembled(served: dict[str, Any], weights: bytes) -> str:
    """Put page, model and weights into one file."""
    files = {path.name: path.read_text("utf-8") for path in sorted(PAGE.iterdir())}
    files["api.js"] = files.pop("offline.js")
    imports = {
        name: url("text/javascript", re.sub(r'(from|import) "\./(\w+\.js)"', r'\1 "\2"', text))
        for name, text in files.items()
        if name.endswith(".js")
    }
    scripts = {"importmap": json.dumps({"imports": imports}), "module": 'import "main.js";'}
    allowed = (
        f"style-src {source(files['style.css'])}; script-src data: {' '.join(map(source, scripts.values()))}"
    )
    data = {
        "served": json.dumps(served).replace("<", "\\u003c"),  # no text of the model ends its element
        "weights": base64.b64encode(weights).decode(),
    }
    page = files["index.html"]
    for old, new in {
        "default-src 'self'; base-uri 'none'; form-action 'none'": f"{ASKS_NOBODY}; {allowed}",
        "icon.svg": url("image/svg+xml", files["icon.svg"]),
        '<link rel="stylesheet" href="style.css">': f"<style>{files['style.css']}</style>",
        '<script type="module" src="main.js"></script>': "".join(
            f'<script type="{kind}">{text}</script>' for kind, text in scripts.items()
        ),
        "</body>": "".join(
            f'<script type="text/plain" id="{id}">{text}</script>' for id, text in data.items()
        )
        + "</body>",
    }.items():
        page = page.replace(old, new)
    return page


def url(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def source(text: str) -> str:
    """Return the words by which a content security policy lets a script or style of the page in."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def conversations(chat: Renderer) -> dict[str, Any]:
    """Return what a chat template writes between messages, by their roles.

    Raises UserError for one with which a message may spell a special token, or that does more than to join.
    """
    between, apart = {}, set()  # apart: whether an answer begins with a token of its own

    def add(roles: list[str], mark: str) -> None:
        contents = [f"{mark}{i}{mark}" for i in range(len(roles))]
        messages = [{"role": role, "content": x} for role, x in zip(roles, contents, strict=True)]
        text, answers = chat.render(messages, add_generation_prompt=True, strftime_now=no_date)
        said = [text.index(x) for x, role in zip(contents, roles, strict=True) if role == "assistant"]
        if answers and said != [begin for begin, _ in answers]:
            raise ValueError("what is learned is not what the assistant says")
        apart.add(len(answers) > 0)
        written = re.split("|".join(contents), text)
        for roles_beside, piece in zip(pairwise(["", *roles, ""]), written, strict=True):
            if between.setdefault(">".join(roles_beside), piece) != piece:
                raise ValueError("it does not write the same between all messages of two roles")

    try:
        for mark in ("\u2603", " \n", "</think>"):  # a template may strip space and thoughts
            add(SYSTEM_FIRST, mark)
            add(SYSTEM_FIRST[1:], mark)
            add([*SYSTEM_FIRST, *SYSTEM_FIRST[2:]], mark)
        separate = all(text for roles, text in between.items() if all(roles.split(">")))
        special = chat.tokenizer.names
        if separate and not any(joins(text, name) for text in between.values() for name in special):
            return {"between": between, "start": chat.learned_start, "apart": all(apart)}
    except Exception:
        pass  # of a template that refuses a system message, changes what is said, or asks for the date
    raise UserError(
        "the page cannot follow this model's chat template: serve the model with serve.py instead"
    )


def joins(text: str, name: str) -> bool:
    """Tell whether a text may end or begin within a name, whose rest is in what is beside it."""
    parts = range(1, len(name)) if name.strip() else ()
    return any(text.startswith(name[i:]) or text.endswith(name[:i]) for i in parts)


def no_date(_: str) -> str:
    """Stand for the date in a template. Raises ValueError: the file would keep the day of its export."""
    raise ValueError("it asks for the date")


def in_javascript(tokenizer: Tokenizer, template: str = "") -> dict[str, Any]:
    """Return a tokenizer as page/tokenizer.js takes it. Raises UserError for a kind that it cannot follow.

    What a chat's messages say has no special tokens, and none that the `template` writes.
    """
    match tokenizer.description:
        case {"type": "char", "symbols": symbols}:
            none = {"special": {}, "added": [], "later": [], "around": [[], []]}
            return {"tokens": [*symbols], "pattern": "."} | none
        case {"type": "tiktoken", "name": "gpt2"}:
            special, later, pattern = {"<|endoftext|>": 50256}, [], GPT2_WORDS
            merges, whole = None, True
            ids = {spelled(tokenizer.bytes_of(i)): i for i in range(50256)}
        case {"type": "tokenizers", "json": text}:
            library = json.loads(text)
            pattern, model = pattern_of(library), library["model"]
            special = {token["content"]: token["id"] for token in library["added_tokens"]}
            later = [token["content"] for token in library["added_tokens"] if token["normalized"]]
            merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
            ids, whole = model["vocab"], model.get("ignore_merges", False)
        case description:
            raise UserError(f"the tokenizer {description.get('name')}: {ADVICE}")
    tokens = [None] * tokenizer.vocab_size  # the ids may have gaps
    for token, i in (ids | special).items():
        tokens[i] = token
    plain, more = (tokenizer.encode("a", add_special_tokens=add).tolist() for add in (False, "before"))
    begin = more.index(plain[0])
    for ours, javascripts in IN_JAVASCRIPT.items():
        pattern = pattern.replace(ours, javascripts)
    return {
        "tokens": tokens,
        "special": special,
        "added": [name for name in tokenizer.added if name not in template],
        "later": later,
        "pattern": pattern,
        "around": [more[:begin], more[begin + len(plain) :]],
        "alphabet": spelled(bytes(range(256))),
        "merges": merges,
        "whole": whole,
    }


def pattern_of(library: dict[str, Any]) -> str:
    """Return the regular expression of a text's words. Raises UserError for other than byte-level BPE."""
    model, before = library["model"], library["pre_tokenizer"] or {}
    match before.get("pretokenizers", [before]):
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            pattern = GPT2_WORDS
        case [
            {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if pattern in SPLITS:
            pass
        case _:
            pattern = None
    names = "byte_fallback", "continuing_subword_prefix"  # a loaded one has no dropout, and no suffix
    odd = [model.get(name) for name in names]
    odd += [token[name] for token in library["added_tokens"] for name in ("lstrip", "rstrip", "single_word")]
    if model["type"] != "BPE" or pattern is None or library["normalizer"] or any(odd):
        raise UserError(f"the tokenizer, {model['type']} with rules of its own: {ADVICE}")
    return pattern


def spelled(data: bytes) -> str:
    """Spell bytes as GPT-2's vocabulary does, each as one character."""
    return "".join(CHARACTER_OF[byte] for byte in data)
