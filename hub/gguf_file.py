"""A model in GGUF, the one file that llama.cpp, Ollama and LM Studio open, and a Modelfile for Ollama.

Names and axes of the tensors are llama.cpp's: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import UserError
from data.conversations import Renderer
from data.tokenizer import from_json
from hub.export import GPT2_FILES, QUESTION, chat_template, special_ids, tensors, which_family
from hub.weights import Family
from model import GPT, inverse_frequencies

NEVER = "ÿ ÿ"  # a merge of two bytes 255, which UTF-8 has not: llama.cpp reads no tokenizer without merges
# How byte-level tokenizers split words, as the library says it and as llama.cpp calls it.
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {CONTRACTIONS + r"\p{N}{1,3}" + REST: "llama-bpe", CONTRACTIONS + r"\p{N}" + REST: "qwen2"}
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama.cpp's types of tokens


def write_gguf(path: Path, model: GPT, tokenizer: dict | None, kind: str) -> None:
    """Write one file, with matrices as f32, f16 or q8_0. Raises UserError for what llama.cpp lacks."""
    try:
        import gguf
    except ImportError:
        raise UserError("--format=gguf needs a package: pip install gguf") from None
    config, family = model.config, which_family(model.config)
    lacks = {
        "window": config.window is not None or family.model_type == "mistral",
        "mlp": config.mlp not in ("gelu", "swiglu"),
        "rope_scaling": config.rope_scaling != 1 and family.model_type != "llama",
    }
    if what := [f"{name}={getattr(config, name)}" for name, lacking in lacks.items() if lacking]:
        raise UserError(f"llama.cpp does not compute this model's {what[0]}: use --format=transformers")
    known = read_tokenizer(tokenizer, config.vocab_size)
    writer = gguf.GGUFWriter(path, family.model_type)
    writer.add_name(path.stem)
    writer.add_context_length(config.block_size)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.hidden)
    writer.add_head_count(config.n_head)
    if family.model_type == "gpt2":
        writer.add_layer_norm_eps(config.norm_eps)
    else:
        writer.add_head_count_kv(config.kv_heads)
        writer.add_key_length(config.head_size)
        writer.add_value_length(config.head_size)
        writer.add_layer_norm_rms_eps(config.norm_eps)
        writer.add_rope_freq_base(config.rope_theta)
        writer.add_rope_dimension_count(config.head_size)
        writer.add_vocab_size(config.vocab_size)
    writer.add_file_type({"f32": 0, "f16": 1, "q8_0": 7}[kind])
    for name, value in known.items():
        getattr(writer, f"add_{name}")(value)
    for name, array in named_tensors(model, family).items():
        add_tensor(writer, name, array, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def named_tensors(model: GPT, family: Family) -> dict[str, np.ndarray]:
    """Return the tensors by llama.cpp's names, with axes (out, in)."""
    import gguf

    config, found = model.config, {}
    arch = next(x for x, name in gguf.MODEL_ARCH_NAMES.items() if name == family.model_type)
    names = gguf.get_tensor_name_map(arch, config.n_layer)
    for name, array in tensors(model, family).items():
        if family.model_type == "gpt2" and array.ndim == 2 and ".h." in name:
            array = array.T  # theirs are (in, out), as ours
        heads = {"q_proj": config.n_head, "k_proj": config.kv_heads}.get(name.split(".")[-2])
        if family.model_type == "llama" and heads:
            # llama.cpp rotates neighbours, where transformers rotates a head's two halves.
            halves = array.reshape(heads, 2, -1, array.shape[-1])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        found[names.get_name(name, (".weight", ".bias"))] = array
    if config.position == "rope" and config.rope_scaling != 1:
        plain, scaled = (
            inverse_frequencies(config.head_size, config.rope_theta, x) for x in (1, config.rope_scaling)
        )
        found["rope_freqs.weight"] = plain / scaled
    return found


def add_tensor(writer: Any, name: str, array: np.ndarray, kind: str) -> None:
    """Add a tensor: matrices as `kind`, but for positions and rows that no block of q8_0 fills."""
    from gguf import GGMLQuantizationType as Type
    from gguf.quants import quantize

    array = np.ascontiguousarray(array, np.float32)
    if array.ndim == 1 or kind == "f32" or name.startswith(("position_embd", "rope_freqs")):
        return writer.add_tensor(name, array)
    q8 = kind == "q8_0" and array.shape[-1] % 32 == 0
    dtype = Type.Q8_0 if q8 else Type.F16
    writer.add_tensor(name, quantize(array, dtype), raw_dtype=dtype)


CHATML = """\
{{ range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""
ASKED = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"


def modelfile(name: str, description: dict | None) -> str:
    """Return what `ollama create` reads. Ollama knows many templates of others by their text."""
    template = (description or {}).get("uses", {}).get("chat_template") or ""
    lines, asked, is_chatml = [f"FROM ./{name}.gguf"], "", ""
    if "<|im_start|>" in template:
        chat = Renderer(from_json(description))
        asked, is_chatml, _ = chat.tokenizer.decode(chat.prompt(QUESTION)).partition(ASKED)
    if is_chatml:
        begins, _, system = asked.partition("<|im_start|>system\n")  # which the template writes by itself
        system = system.removesuffix("<|im_end|>\n")
        lines += [f'TEMPLATE """{begins}{CHATML}"""', 'PARAMETER stop "<|im_end|>"']
        lines += [f'SYSTEM """{system}"""'] if system else []
    elif template:
        note = "note: Ollama may not know the chat template: if so, write a TEMPLATE into the Modelfile"
        print(note, file=sys.stderr)
    return "\n".join(lines) + "\n"


def read_tokenizer(description: dict | None, vocab_size: int) -> dict[str, Any]:
    """Return what a GGUF says of a tokenizer, by the writer's methods. Raises UserError for other kinds."""
    match description:
        case {"type": "tiktoken", "name": "gpt2"}:
            from tiktoken.load import read_file_cached

            from_json(description)  # downloads the files if they are not in tiktoken's cache, or says why not
            vocab = json.loads(read_file_cached(GPT2_FILES + "encoder.json"))
            merges = read_file_cached(GPT2_FILES + "vocab.bpe").decode().splitlines()[1:]
            special, split = {"<|endoftext|>": CONTROL}, "gpt-2"
        case {"type": "tokenizers", "json": str(text)}:
            vocab, merges, special, split = byte_level(json.loads(text))
        case _:
            raise UserError(
                "llama.cpp has byte-level BPE tokenizers, and this run has another: use --format=html"
            )
    tokens, types = [f"[PAD{i}]" for i in range(vocab_size)], [UNUSED] * vocab_size
    for name, i in vocab.items():
        if i < vocab_size:
            tokens[i], types[i] = name, special.get(name, NORMAL)
    ids = special_ids(description)
    ends = ids["eos_token_id"] if isinstance(ids["eos_token_id"], list) else [ids["eos_token_id"]]
    encoded = from_json(description).encode("a", add_special_tokens="before")
    found = {
        "tokenizer_model": "gpt2",
        "tokenizer_pre": split,
        "token_list": tokens,
        "token_types": types,
        "token_merges": merges or [NEVER],
        "bos_token_id": ids["bos_token_id"],
        "eos_token_id": ends[0],
        "eot_token_id": ends[-1],
        "add_bos_token": types[int(encoded[0])] == CONTROL,
        "chat_template": chat_template(description),
    }
    return {name: value for name, value in found.items() if value is not None}


def byte_level(library: dict[str, Any]) -> tuple[dict[str, int], list[str], dict[str, int], str]:
    """Return a tokenizer.json's vocabulary, merges, types of added tokens, and split as llama.cpp has it."""
    match library["pre_tokenizer"]:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            split = "gpt-2"
        case {"pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}}, {"type": "ByteLevel"}]}:
            split = SPLITS.get(pattern)
        case _:
            split = None
    if (
        library["model"]["type"] != "BPE"
        or split is None
        or library["normalizer"] not in (None, {"type": "NFC"})
    ):
        raise UserError("llama.cpp has no tokenizer that splits words as this one: use --format=transformers")
    added = {token["content"]: token["id"] for token in library["added_tokens"]}
    merges = [x if isinstance(x, str) else " ".join(x) for x in library["model"]["merges"]]
    special = {x["content"]: CONTROL if x["special"] else USER_DEFINED for x in library["added_tokens"]}
    return library["model"]["vocab"] | added, merges, special, split
