"""The tokenizer of a pretrained model's folder, as transformers reads it, in a description of our own."""

import hashlib
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from common.files import read_json, refusing
from data.tokenizer import check_description, end_of_text

# The files that a tokenizer is made from. The first two hold vocabularies, and one of them has to be there.
TOKENIZER_FILES = (
    "tokenizer.json vocab.json merges.txt tokenizer_config.json special_tokens_map.json added_tokens.json "
    "chat_template.jinja generation_config.json"
).split()


class WithEnds(TypedDict, total=False):
    eos_token_id: int | list[int] | None


class WithModel(TypedDict):
    model: dict[str, Any]
    added_tokens: list[dict[str, Any]]


KINDS = {"generation_config.json": WithEnds, "tokenizer.json": WithModel}  # what their readers expect
# A hash of the sorted vocabulary of OpenAI's GPT-2, whose texts tiktoken encodes wherever the files lie.
GPT2_SHA256 = "71cca498f566a6fce90612118ffe70ec265ffdc746e7e6743a2253d346af4d30"


def read_tokenizer(path: Path) -> dict[str, Any] | None:
    """Describe the tokenizer of a folder, or of a tokenizer.json alone; None for a folder without one.

    Raises UserError for files that are damaged, or that need code of their own.
    """
    files = [file for name in TOKENIZER_FILES if (file := path / name).is_file()] if path.is_dir() else [path]
    if not files or (path.is_dir() and files[0].name not in TOKENIZER_FILES[:2]):
        return None
    import transformers  # here, because it takes over a second

    values, advice = {"config.json": {}, "generation_config.json": {}}, "mend or download it"
    for file in (*files, path / "config.json"):
        with refusing(f"{file}: cannot be used", advice, ValueError):
            if file.suffix != ".json":
                file.read_bytes().decode()
            elif file.is_file():
                values[file.name] = read_json(file, KINDS.get(file.name, dict[str, Any]))
    config, generation = values["config.json"], values["generation_config.json"]
    with refusing(f"{files[0]}: cannot be used", advice, Exception), TemporaryDirectory() as copy:
        classes = {name: config[name] for name in ("model_type", "tokenizer_class") if name in config}
        (Path(copy) / "config.json").write_text(json.dumps(classes))
        for file in files:
            shutil.copyfile(file, Path(copy) / (file.name if path.is_dir() else "tokenizer.json"))
        theirs = transformers.AutoTokenizer.from_pretrained(
            copy, local_files_only=True, trust_remote_code=False
        )
        said = generation.get("eos_token_id")
        ends = config.get("eos_token_id") if said is None else said
        return describe(theirs, ends if isinstance(ends, list) else [ends])


def describe(theirs: Any, ends: list) -> dict[str, Any] | None:
    """Describe a tokenizer of transformers. `ends` are the known ends of what its model writes."""
    backend, vocabulary, template = theirs.backend_tokenizer, theirs.get_vocab(), theirs.chat_template
    backend.no_padding()
    ids, eos = set(vocabulary.values()), theirs.eos_token_id
    ends = [i for i in ends if i in ids] or ([] if eos is None else [eos])
    tokens = {k: text for k, text in theirs.special_tokens_map.items() if k.endswith("_token") and text}
    uses = {
        "eos_token_id": sorted(ends, key=lambda i: i != eos),
        "special_tokens": tokens,
        "chat_template": template.get("default") if isinstance(template, dict) else template,
    }
    description = {"type": "tokenizers", "json": backend.to_str(), "uses": uses}
    if (eot := end_of_text(description)) is not None:  # its encoding shows what begins any text
        encoded = backend.encode(backend.id_to_token(eot))
        uses["document_start"] = encoded.ids[0] if encoded.special_tokens_mask[0] else None
    words = json.dumps(sorted(vocabulary.items())).encode()
    if uses.get("document_start") is None and hashlib.sha256(words).hexdigest() == GPT2_SHA256:
        return {"type": "tiktoken", "name": "gpt2", "uses": uses}
    return check_description(description)
