"""Write a run's model as transformers reads it.

    python -m hub.export --out_dir=out-quickstart --to=my-gpt       the latest checkpoint, into a new folder
    hf upload <you>/my-gpt my-gpt                                   and to the Hugging Face hub

GPT-2's shape (learned positions, layernorm, gelu, biases) becomes a GPT2LMHeadModel; rope, rmsnorm and swiglu
without biases become a LlamaForCausalLM, which vLLM serves as well. Weights are float32. The folder appears
once all of it is written, and the same model writes the same bytes.
"""

import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from config.options import Name, UserError, command, given
from data.tokenizer import end_of_text, from_json
from hub.family import Family, entries, to_theirs, which_family
from hub.weights import FAMILIES
from model import GPT, dotted
from training.checkpoint import Checkpoints, Manifest, load_model

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


@dataclass(frozen=True)
class ExportOptions:
    """Every option of hub.export. The comment behind a field is its text in `--help`."""

    program: ClassVar[str] = "-m hub.export"
    purpose: ClassVar[str] = "Write a run's model as transformers reads it."

    out_dir: Name = "out"  # folder of the run, whose latest checkpoint is taken
    to: Name = "out-hf"  # folder to write, new or empty


def main(argv: list[str]) -> None:
    options = ExportOptions(**given(argv, ExportOptions))
    with new_folder(Path(options.to)) as folder:
        model, tokenizer, iteration = load_model(options.out_dir, dtype="float32")
        manifest = Checkpoints(options.out_dir).manifest(iteration)
        family = which_family(FAMILIES, model.config)
        write_model(folder, model, family, tokenizer)
        write_tokenizer(folder, tokenizer, model.config.block_size)
        name = Path(options.to).resolve().name
        (folder / "README.md").write_text(card(name, model, family, manifest, iteration))
    print(f"{family.architecture} of iter {iteration}: {options.to}")
    print(f"to the Hugging Face hub: hf upload <your name>/{name} {options.to}")


@contextmanager
def new_folder(target: Path):
    """A folder to fill, which becomes `target` if all goes well. Raises UserError."""
    target = target.resolve()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"--to={target} is there already: give a new or empty folder, or delete it")
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        beside.mkdir(parents=True)
        yield beside
        os.replace(beside, target)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"--to={target}: cannot be written ({error}): make room there, or choose another"
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_model(folder: Path, model: GPT, family: Family, tokenizer: dict | None) -> None:
    """config.json, generation_config.json and model.safetensors."""
    eot = end_of_text(tokenizer)
    special = {"bos_token_id": eot, "eos_token_id": eot}
    config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "torch_dtype": "float32",
    }
    write_json(folder / "config.json", config | family.write_config(model.config) | special)
    write_json(folder / "generation_config.json", special)
    # transformers refuses a file that does not say "format".
    save_file(tensors(model, family), folder / "model.safetensors", metadata={"format": "pt"})


def tensors(model: GPT, family: Family) -> dict[str, np.ndarray]:
    """All tensors of a model, float32, by their names in its family."""
    layout, found = entries(family, model.config), {}
    for path, array in jax.tree.leaves_with_path(model):
        entry = layout[dotted(path)]
        array = np.asarray(array)
        for i in range(entry.layers or 1):
            parts = to_theirs(array[i] if entry.layers else array, entry.pattern, len(entry.tensors))
            # save_file writes memory as it lies there, so a transposed view would be written untransposed.
            found |= zip(entry.names(i), map(np.ascontiguousarray, parts), strict=True)
    return found


def write_tokenizer(folder: Path, tokenizer: dict | None, block_size: int) -> None:
    """The files that transformers makes the tokenizer from, for the kinds that it has."""
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


def card(name: str, model: GPT, family: Family, manifest: Manifest, iteration: int) -> str:
    """The model card: what the hub shows of a model."""
    return CARD.format(
        name=name,
        architecture=family.architecture,
        parameters=sum(x.size for x in jax.tree.leaves(model)),
        config=model.config,
        dataset=manifest.options.dataset,
        iteration=iteration,
        loss="not known" if manifest.best_val_loss is None else f"{manifest.best_val_loss:.4f}",
    )


def write_json(path: Path, values: dict) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")


if __name__ == "__main__":
    command(main)
