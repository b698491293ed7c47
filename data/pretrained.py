"""The tokenizer of a folder as transformers reads it, with what the folder says about its use.

It becomes a description, so that what follows needs neither the folder nor transformers.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from config.files import read_json, refusing
from data.tokenizer import check_description, end_of_text

# The files that a tokenizer is made from. The first two hold vocabularies, and one of them has to be there.
FILES = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json")
FILES += ("added_tokens.json", "chat_template.jinja", "generation_config.json")

# Hashes the sorted vocabulary of OpenAI's GPT-2, whose texts tiktoken encodes wherever the files lie.
GPT2_SHA256 = "71cca498f566a6fce90612118ffe70ec265ffdc746e7e6743a2253d346af4d30"


def transformers() -> ModuleType:
    """Import transformers, which takes over a second, without its advice to install PyTorch."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import transformers

    return transformers


def read_tokenizer(path: Path) -> dict[str, Any] | None:
    """Describe the tokenizer of a folder, or of a tokenizer.json alone; None for a folder without one.

    Raises UserError for files that are damaged, or that would have to run a program of their own.
    """
    files = [file for name in FILES if (file := path / name).is_file()] if path.is_dir() else [path]
    if not files or (path.is_dir() and files[0].name not in FILES[:2]):
        return None
    refused = refusing(f"{files[0]}: cannot be used", "mend or download it", Exception)
    with refused, TemporaryDirectory() as copy:
        config = read_json(path / "config.json") if (path / "config.json").is_file() else {}
        classes = {name: config[name] for name in ("model_type", "tokenizer_class") if name in config}
        (Path(copy) / "config.json").write_text(json.dumps(classes))
        for file in files:
            shutil.copyfile(file, Path(copy) / file.name)
        if files[0].name != "vocab.json":  # it may have a length to which texts would be cut and padded
            values = dict(read_json(files[0])) | {"truncation": None, "padding": None}
            (Path(copy) / "tokenizer.json").write_text(json.dumps(values))
        library = transformers()
        theirs = library.AutoTokenizer.from_pretrained(copy, local_files_only=True, trust_remote_code=False)
        ends = config.get("eos_token_id")
        if (path / "generation_config.json").is_file():
            said = library.GenerationConfig.from_pretrained(copy, local_files_only=True).eos_token_id
            ends = ends if said is None else said
        return describe(theirs, ends if isinstance(ends, list) else [ends])


def describe(theirs: Any, ends: list) -> dict[str, Any] | None:
    """Describe a tokenizer of transformers. `ends` end what its model writes, as far as a folder says."""
    backend, vocabulary, template = theirs.backend_tokenizer, theirs.get_vocab(), theirs.chat_template
    ids, eos = set(vocabulary.values()), theirs.eos_token_id
    ends = [i for i in ends if i in ids] or ([] if eos is None else [eos])
    tokens = {k: text for k, text in theirs.special_tokens_map.items() if k.endswith("_token") and text}
    uses = {
        "eos_token_id": sorted(ends, key=lambda i: i != eos),
        "special_tokens": tokens,
        "chat_template": template.get("default") if isinstance(template, dict) else template,
    }
    description = {"type": "tokenizers", "json": backend.to_str(), "uses": uses}
    if (eot := end_of_text(description)) is not None:  # a text that it can encode
        encoded = backend.encode(backend.id_to_token(eot))
        uses["document_start"] = encoded.ids[0] if encoded.special_tokens_mask[0] else None
    words = json.dumps(sorted(vocabulary.items())).encode()
    if uses.get("document_start") is None and hashlib.sha256(words).hexdigest() == GPT2_SHA256:
        plain = template is None and "pad_token" not in tokens and uses["eos_token_id"] in ([], [50256])
        return {"type": "tiktoken", "name": "gpt2"} | ({} if plain else {"uses": uses})
    return check_description(description)
