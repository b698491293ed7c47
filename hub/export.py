"""A model in Hugging Face's format, as `transformers` and vLLM read it, or its LoRA adapters in PEFT's."""

import json
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import equinox as eqx
import jax
import numpy as np
import tokenizers
from einops import rearrange
from safetensors import SafetensorError
from safetensors.numpy import save_file

from common.errors import UserError
from common.files import read_json, refusing
from config.options import Options
from data.conversations import Renderer
from data.tokenizer import end_of_text, end_tokens, from_json
from hub.weights import FAMILIES, GPT2, LLAMA3, Family, Tensor
from model import GPT, MLP, Attention, Block, Dropout, GPTConfig, Linear, Norm, leaf_name

# Where tiktoken gets GPT-2's vocabulary from, in two files that transformers reads as they are.
GPT2_FILES = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"

QUESTION = [{"role": "user", "content": "a"}]

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
---

# {name}

A {architecture} of {parameters:,} parameters, trained with nanoJAXGPT on {dataset}
for {iteration} iterations. Its {score}.
"""


def check_new(path: Path) -> None:
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise UserError(f"--to={path} is there already: give a new or empty folder, or delete it")


@contextmanager
def new_folder(path: Path) -> Generator[Path]:
    """Yield a folder to fill, which is moved to `path` if all goes well. Raises UserError."""
    check_new(path := path.resolve())
    near = next(folder for folder in path.parents if folder.is_dir())
    what = f"--to={path}: cannot be written"
    with refusing(what, "choose another place", OSError, SafetensorError):
        with TemporaryDirectory(dir=near, prefix=".export-") as temporary:
            (beside := Path(temporary) / path.name).mkdir()
            yield beside
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():  # an empty one, in which the shell may stand, or where a disk is mounted
                for file in beside.iterdir():
                    shutil.move(file, path / file.name)
            else:
                os.replace(beside, path)


# The options that decide a model's family. So do biases, unless the family has them: they may be 0.
DECIDING = "mlp position norm qkv_bias qk_norm window n_kv_head head_dim n_hidden".split()


def which_family(config: GPTConfig) -> Family:
    """Return the family of a model. Raises UserError, with the options that stand in the way."""
    reasons = []
    for family in FAMILIES.values():
        if not (found := obstacles(family, config)):
            return family
        reasons.append(f"for {architecture(family)}: {', '.join(found)}")
    raise UserError(
        "no class of transformers computes this model; train one with the options of a class that does. "
        f"What stands in the way, {'; '.join(reasons)}"
    )


def architecture(family: Family) -> str:
    """Return the name of the class of transformers that computes a family."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family.model_type]


def obstacles(family: Family, config: GPTConfig) -> list[str]:
    """List the options that config.json cannot say, which keep a model from being of this family."""
    ours = resolved(config)
    try:
        theirs = resolved(family.read_config(write_config(family, config)))
    except ValueError as error:
        return [str(error)]
    deciding = DECIDING if family.fields["bias"] else [*DECIDING, "bias"]
    return [f"{name}={ours[name]}, not {theirs[name]}" for name in deciding if ours[name] != theirs[name]]


def write_config(family: Family, config: GPTConfig) -> dict[str, Any]:
    """Return the entries of config.json, of the family's nearest model."""
    activations = {ours: theirs for theirs, ours in family.mlps.items()}
    entries = {theirs: resolved(config)[ours] for ours, theirs in family.sizes.items()} | family.entries
    entries[family.activation] = activations.get(config.mlp, next(iter(family.mlps)))
    if family.fields["position"] == "rope" and config.rope_scaling != 1:
        entries["rope_scaling"] = {"rope_type": "llama3", "factor": config.rope_scaling} | LLAMA3
    if config.window and family.model_type.startswith("qwen"):
        entries |= {"use_sliding_window": True, "max_window_layers": 0}
    if family.model_type == "gpt2":  # of which transformers drops a tenth where nothing is said
        entries |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
    return {name: value for name, value in entries.items() if value is not None}


def resolved(config: GPTConfig) -> dict[str, Any]:
    """Return a config's fields, with numbers in place of None."""
    derived = {"n_kv_head": config.kv_heads, "head_dim": config.head_size, "n_hidden": config.hidden}
    return vars(config) | derived


def write_model(folder: Path, model: GPT, family: Family, tokenizer: dict | None) -> None:
    """Write config.json, generation_config.json and model.safetensors."""
    special = special_ids(tokenizer)
    kind = {
        "architectures": [architecture(family)],
        "model_type": family.model_type,
        "torch_dtype": "float32",
    }
    write_json(folder / "config.json", kind | write_config(family, model.config) | special)
    write_json(folder / "generation_config.json", special)
    write_tensors(folder / "model.safetensors", tensors(model, family))


def special_ids(tokenizer: dict | None) -> dict[str, Any]:
    """Return the tokens that begin a text, end it and pad it, as config.json has them."""
    ends, eot = end_tokens(tokenizer), end_of_text(tokenizer)
    found = {"bos_token_id": eot, "eos_token_id": ends if len(ends) > 1 else eot}
    if tokenizer is None or "uses" not in tokenizer:
        return found
    named, encode = tokenizer["uses"]["special_tokens"], from_json(tokenizer).encode
    names = [name for name in ("bos_token", "pad_token") if named.get(name)]
    return found | {"bos_token_id": None} | {f"{name}_id": int(encode(named[name])[0]) for name in names}


def with_biases(model: GPT, family: Family) -> GPT:
    """Return the model with biases of 0 where its family has biases and it has none."""
    if not family.fields["bias"]:
        return model
    ours = {leaf_name(path): array for path, array in jax.tree.leaves_with_path(model)}
    like = eqx.filter_eval_shape(GPT, replace(model.config, bias=True), key=jax.random.key(0))
    return jax.tree.map_with_path(lambda path, x: ours.get(leaf_name(path), np.zeros(x.shape, x.dtype)), like)


OURS = {GPT, Block, Attention, MLP, Linear, Norm, Dropout}


def plain(model: GPT) -> GPT:
    """Return the same without µP's multipliers. Raises UserError for a layer that other programs lack."""
    if getattr(model.config, "mup_base_width", 0):
        from variants import without_multipliers  # here, because a plain model needs no variants

        model = without_multipliers(model)
    layers = jax.tree.leaves(model, is_leaf=lambda x: isinstance(x, eqx.Module) and type(x) not in OURS)
    if others := {type(x).__name__ for x in layers if isinstance(x, eqx.Module)}:
        raise UserError(f"the model has {min(others)}, a layer of your own, which no other program knows")
    return model


def tensors(model: GPT, family: Family) -> dict[str, np.ndarray]:
    """Return all tensors of a model, float32, by their names in its family."""
    parts = {}
    for path, leaf in jax.tree.leaves_with_path(with_biases(plain(model), family)):
        tensor, array = family.tensors[leaf_name(path)], np.asarray(leaf)
        for i, one in enumerate(array if leaf_name(path).startswith("blocks.") else array[None]):
            parts.setdefault(tensor.name.format(i=i), {})[tensor.part] = to_theirs(tensor, one)
    return {name: np.concatenate([of[i] for i in sorted(of)], axis=-1) for name, of in parts.items()}


def to_theirs(tensor: Tensor, array: np.ndarray) -> np.ndarray:
    """Return the part of their tensor that our array is."""
    theirs, ours = tensor.pattern.split(" -> ")
    return rearrange(array, f"{ours} -> {theirs}")


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    # save_file writes memory as it lies there: of an array in transposed order it would write the transpose.
    # transformers refuses a file that does not say "format".
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, path, metadata={"format": "pt"})


def write_tokenizer(folder: Path, tokenizer: dict | None, block_size: int) -> None:
    """Write the files that transformers makes the tokenizer from, for the kinds that it has."""
    config = folder / "tokenizer_config.json"
    match tokenizer:
        case {"type": "tiktoken", "name": "gpt2"}:
            from tiktoken.load import read_file_cached

            from_json(tokenizer)  # downloads the files if they are not in tiktoken's cache, or says why not
            (folder / "merges.txt").write_bytes(read_file_cached(GPT2_FILES + "vocab.bpe"))
            (folder / "vocab.json").write_bytes(read_file_cached(GPT2_FILES + "encoder.json"))
            uses = tokenizer.get("uses", {})
            kind = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": block_size}
            write_json(config, kind | uses.get("special_tokens", {}))
            if template := chat_template(tokenizer):
                (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
            return
        case {"type": "tokenizers", "json": str(text)}:
            library = tokenizers.Tokenizer.from_str(text)
        case {"type": "char", "symbols": str(symbols)}:
            library = characters(symbols)
        case _:
            print("note: transformers has no tokenizer for the tokens of this run: none is written")
            return
    import transformers

    uses, eot = tokenizer.get("uses", {}), end_of_text(tokenizer)
    end = {} if eot is None else {"eos_token": library.id_to_token(eot)}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=library,
        model_max_length=block_size,
        clean_up_tokenization_spaces=False,  # transformers 4 cleans up by default
        model_input_names=["input_ids", "attention_mask"],  # it adds token_type_ids, which generate refuses
        chat_template=chat_template(tokenizer),
        **end | uses.get("special_tokens", {}),
    ).save_pretrained(folder)
    # transformers 4 knows the class by this name alone.
    write_json(config, read_json(config) | {"tokenizer_class": "PreTrainedTokenizerFast"})


def chat_template(tokenizer: dict) -> str | None:
    """Return the chat template, which here also writes the token that the run's conversations began with."""
    if (template := tokenizer.get("uses", {}).get("chat_template")) is None:
        return None
    chat = Renderer(from_json(tokenizer))
    first, written = chat.prompt(QUESTION)[0], chat.encode(QUESTION, add_generation_prompt=True).ids[0]
    names = {i: name for name, i in chat.tokenizer.names.items()}
    return template if first == written else f"{{{{- {json.dumps(names[first])} -}}}}{template}"


def characters(symbols: str) -> tokenizers.Tokenizer:
    """Return the library's tokenizer with a token for each symbol, which refuses other characters."""
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({x: i for i, x in enumerate(symbols)}))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    library.decoder = tokenizers.decoders.Fuse()
    return library


def write_card(folder: Path, model: GPT, family: Family, **facts: Any) -> None:
    """Write the model card, README.md; `facts` are the other fields of CARD."""
    parameters = sum(x.size for x in jax.tree.leaves(with_biases(model, family)))
    # A name shows as it is: it is neither Markdown nor HTML.
    names = {
        key: re.sub(r"([\\`*_\[\]<>#|&~])", r"\\\1", " ".join(str(x).split())) for key, x in facts.items()
    }
    card = CARD.format(architecture=architecture(family), parameters=parameters, **names)
    (folder / "README.md").write_text(card, encoding="utf-8")


def write_json(path: Path, values: dict) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")


def write_adapters(folder: Path, model: GPT, family: Family, options: Options, base: str) -> None:
    """Write adapter_model.safetensors and adapter_config.json; `base` is the model below the adapters."""
    found = adapters(model, family)
    name = "base_model.model.{}.lora_{}.weight"
    named = {name.format(layer, x): pair[x] for layer, pair in found.items() for x in pair}
    write_tensors(folder / "adapter_model.safetensors", named)
    layer = family.tensors["blocks.ln_1.weight"].name.split("{")[0] + "0."
    ranks = {name.removeprefix(layer): len(x["A"]) for name, x in found.items() if name.startswith(layer)}
    r, alpha = options.lora_rank, options.lora_alpha
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": r,
        "lora_alpha": alpha,
        # PEFT multiplies by alpha / r. Joined adapters, of higher rank, keep the factor of one alone.
        "rank_pattern": {module: rank for module, rank in ranks.items() if rank != r},
        "alpha_pattern": {module: alpha * rank / r for module, rank in ranks.items() if rank != r},
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": family is GPT2,  # whose matrices are (in, out)
        "target_modules": sorted(ranks),
        "inference_mode": True,
    }
    write_json(folder / "adapter_config.json", config)


def adapters(model: GPT, family: Family) -> dict[str, dict[str, np.ndarray]]:
    """Return PEFT's A (r, in) and B (out, r) of each of their layers, by its name.

    Where theirs is several of ours, as GPT-2's c_attn is, its adapter has as many times the rank: A's rows
    are ours one after another, and B has ours on its diagonal.
    """
    arrays = {leaf_name(path): np.asarray(x) for path, x in jax.tree.leaves_with_path(model)}
    found = {}
    for name in (name.removesuffix(".lora_a") for name in arrays if name.endswith(".lora_a")):
        tensor = family.tensors[f"{name}.weight"]
        for i in range(model.config.n_layer):
            a = arrays[f"{name}.lora_a"][i].T
            b = to_theirs(tensor, arrays[f"{name}.lora_b"][i])  # laid out as their matrix, with r for `in`
            b = b.T if family is GPT2 else b
            after = tensor.parts - 1 - tensor.part
            b = np.pad(b, [(tensor.part * len(b), after * len(b)), (0, 0)])
            theirs = tensor.name.format(i=i).removesuffix(".weight")
            if theirs in found:
                a = np.concatenate([found[theirs]["A"], a])
                b = np.concatenate([found[theirs]["B"], b], axis=1)
            found[theirs] = {"A": a, "B": b}
    return found
