"""A model in Hugging Face's format: the files that `transformers` and vLLM read.

GPT-2's shape (learned positions, layernorm, gelu or relu2) becomes a GPT2LMHeadModel, whose biases are 0 if
the model has none; rope, rmsnorm and swiglu without biases become a LlamaForCausalLM, or with a window a
MistralForCausalLM. Weights are float32, and the same model writes the same bytes.
"""

import json
import math
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
from safetensors.numpy import save_file

from data.tokenizer import end_of_text, from_json
from hub.family import Family, entries, to_theirs
from model import GPT, GPTConfig
from parallel.sharding import leaf_name

# Where tiktoken gets GPT-2's vocabulary from: OpenAI's own two files, which transformers reads as they are.
GPT2_FILES = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
---

# {name}

A {architecture} of {parameters:,} parameters, trained with nanoJAXGPT.

| layers | heads | width | context | vocabulary | data set | iterations | best validation loss |
|---|---|---|---|---|---|---|---|
| {config.n_layer} | {config.n_head} | {config.n_embd} | {config.block_size} | {config.vocab_size} \
| {dataset} | {iteration} | {loss} |

```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("{name}")  # the folder, or <user>/{name} on the hub
```
"""


def write_model(folder: Path, model: GPT, family: Family, tokenizer: dict | None) -> None:
    """Write config.json, generation_config.json and model.safetensors."""
    eot = end_of_text(tokenizer)
    special = {"bos_token_id": eot, "eos_token_id": eot}
    model = with_biases(model, family)
    config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "torch_dtype": "float32",
    }
    write_json(folder / "config.json", config | family.write_config(model.config) | special)
    write_json(folder / "generation_config.json", special)
    # transformers refuses a file that does not say "format".
    save_file(tensors(model, family), folder / "model.safetensors", metadata={"format": "pt"})


def with_biases(model: GPT, family: Family) -> GPT:
    """Return the model with biases of 0 where its family has biases and it has none. It computes the same."""
    if not family.biases:
        return model
    ours = {leaf_name(path): array for path, array in jax.tree.leaves_with_path(model)}
    shapes = eqx.filter_eval_shape(GPT, replace(model.config, bias=True), key=jax.random.key(0))
    return jax.tree.map_with_path(
        lambda path, x: ours.get(leaf_name(path), np.zeros(x.shape, x.dtype)), shapes
    )


def tensors(model: GPT, family: Family) -> dict[str, np.ndarray]:
    """Return all tensors of a model, float32, by their names in its family."""
    layout, parts = entries(family, model.config), {}
    for path, array in jax.tree.leaves_with_path(model):
        name = leaf_name(path)
        entry, array = layout[name], np.asarray(array) / multiplier(name, model.config)
        for i in range(entry.layers or 1):
            part = to_theirs(array[i] if entry.layers else array, entry.tensor)
            parts.setdefault(entry.name(i), {})[entry.tensor.part] = part
    # save_file writes memory as it lies there: of an array in transposed order it would write the transpose.
    return {
        name: np.ascontiguousarray(np.concatenate([of[i] for i in sorted(of)], axis=-1))
        for name, of in parts.items()
    }


def multiplier(name: str, config: GPTConfig) -> float:
    """Return what an array is to be divided by, for a model without µP to compute what one in µP does."""
    if ".c_q." in name:
        return math.sqrt(config.wider_heads)
    return config.wider if name.startswith("ln_f.") else 1.0


def write_tokenizer(folder: Path, tokenizer: dict | None, block_size: int) -> None:
    """Write the files that transformers makes the tokenizer from, for the kinds that it has."""
    match tokenizer:
        case {"type": "tiktoken", "name": "gpt2"}:
            from tiktoken.load import read_file_cached

            from_json(tokenizer)  # downloads the files if they are not in tiktoken's cache, or says why not
            (folder / "merges.txt").write_bytes(read_file_cached(GPT2_FILES + "vocab.bpe"))
            (folder / "vocab.json").write_bytes(read_file_cached(GPT2_FILES + "encoder.json"))
            settings = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": block_size}
            write_json(folder / "tokenizer_config.json", settings)
        case {"type": "tokenizers", "json": str(text)}:
            (folder / "tokenizer.json").write_text(text, encoding="utf-8")
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": block_size}
            write_json(folder / "tokenizer_config.json", settings)
        case _:
            print("note: transformers has no tokenizer for the tokens of this run: none is written")


def write_card(
    folder: Path, name: str, model: GPT, family: Family, dataset: str, iteration: int, val_loss: float | None
) -> None:
    """Write the model card, README.md, which the hub shows of a model."""
    card = CARD.format(
        name=name,
        architecture=family.architecture,
        parameters=sum(x.size for x in jax.tree.leaves(with_biases(model, family))),
        config=model.config,
        dataset=dataset,
        iteration=iteration,
        loss="not known" if val_loss is None else f"{val_loss:.4f}",
    )
    (folder / "README.md").write_text(card)


def write_json(path: Path, values: dict) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")
