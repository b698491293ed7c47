"""Checkpoints in Hugging Face's format: a folder, or a model of the hub, opened and read into a GPT.

Weights come from safetensors files alone, and go to their devices an array at a time.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from config.command_line import UserError, spell
from config.files import read_json, refusing
from data.pretrained import FILES as TOKENIZER_FILES
from data.pretrained import read_tokenizer
from hub.families import FAMILIES, Family
from model import GPT, GPTConfig, leaf_name

OPENAI = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # short for openai-community/gpt2, ...
FILES = ["config.json", "model.safetensors", "model-*.safetensors", *TOKENIZER_FILES]  # what is downloaded

# Other folders that people have, by a file in them, and what to do with one.
OTHERS = {
    "adapter_config.json": "holds PEFT's adapters alone: merge them into their model with PEFT",
    "ckpt.pt": "holds nanoGPT's checkpoint: make a folder of it with python -m hub.from_nanogpt",
}

Tensors = dict[str, Callable[[], np.ndarray]]  # a function that reads each, by its full name


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint whose config.json was understood; its weights are not read yet."""

    folder: Path
    family: Family
    config: GPTConfig  # its block_size is the checkpoint's own

    def load(self, shapes: GPT) -> GPT:
        """Load the model in the dtypes and shardings of `shapes`, which may have fewer positions.

        Raises UserError when the tensors are not those that config.json says.
        """
        tensors = open_tensors(self.folder, self.family.prefix)
        model = jax.tree.map_with_path(lambda path, like: self.array(tensors, leaf_name(path), like), shapes)
        names = [tensor.name for tensor in self.family.tensors.values()]  # a file may have a tied head, too
        known = {name.format(i=i) for name in names for i in range(self.config.n_layer)}
        unknown = [name for name in tensors.keys() - known if not re.fullmatch(self.family.not_weights, name)]
        if unknown:
            raise self.wrong(f"the checkpoint has the unknown tensor {min(unknown)}")
        return model

    def array(self, tensors: Tensors, name: str, like: jax.ShapeDtypeStruct) -> jax.Array:
        """Load an array, and give each device its part."""
        tensor = self.family.tensors[name]

        def read(i: int | None, *shape: int) -> np.ndarray:
            theirs = tensor.name.format(i=i)
            if theirs not in tensors:
                raise self.wrong(f"the checkpoint has no tensor {theirs}")
            found, expected = tensors[theirs](), tensor.their_shape(shape)
            if found.shape != expected:
                raise self.wrong(f"tensor {theirs} is {found.shape}, and config.json makes it {expected}")
            return tensor.to_ours(found, self.config)

        rows, *rest = like.shape
        if name.startswith("blocks."):
            ours = np.stack([read(i, *rest).astype(like.dtype) for i in range(rows)])
        else:
            theirs = read(None, self.config.block_size if name == "wpe" else rows, *rest)
            ours = theirs[:rows].astype(like.dtype)
        return jax.make_array_from_callback(like.shape, like.sharding, ours.__getitem__)

    def wrong(self, what: str) -> UserError:
        return UserError(f"{self.folder}: {what}: it is damaged, or not of the model in its config.json")

    def tokenizer(self) -> dict | None:
        """Describe its tokenizer, or None where the files do not say. Raises UserError for damaged ones."""
        is_gpt2 = self.config.vocab_size in (50257, 50304)  # as it is, and as nanoGPT pads it
        return read_tokenizer(self.folder) or ({"type": "tiktoken", "name": "gpt2"} if is_gpt2 else None)


def locate(name: str) -> Path:
    """Find the folder that `--init_from=<name>` means, or download it. Raises UserError."""
    if os.path.isdir(folder := os.path.expanduser(name)):
        return Path(folder)
    if name not in OPENAI and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        raise UserError(
            f"init_from={name}: there is no such folder; expected resume (train.py: or scratch, auto), "
            f"{', '.join(OPENAI)}, a folder, or a model of the hub as in HuggingFaceTB/SmolLM2-135M"
        )
    import huggingface_hub  # here, because a folder needs none of it, and it takes long to import

    repository = f"openai-community/{name}" if name in OPENAI else name
    try:
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=FILES))
    except (OSError, ValueError) as error:  # OSError: a full disk, and all answers of the hub
        raise UserError(
            f"init_from={name}: {repository} cannot be downloaded: check its name, accept its terms at "
            f"https://huggingface.co/{repository} if it is gated, and `hf auth login` ({error})"
        ) from None


@cache
def open_pretrained(name: str) -> Pretrained:
    """Open the checkpoint that `--init_from=<name>` means. Raises UserError."""
    folder = locate(name)
    path = folder / "config.json"
    if not path.is_file() and (found := [what for file, what in OTHERS.items() if (folder / file).is_file()]):
        raise UserError(f"{folder}: {found[0]}")
    try:
        if not isinstance(values := read_json(path), dict):
            raise ValueError("expected a JSON object")
        kind, kinds = values.get("model_type"), ", ".join(FAMILIES)
        if (family := FAMILIES.get(str(kind))) is None:
            raise ValueError(f"model_type is {spell(kind)}, and only {kinds} can be read")
        return Pretrained(folder, family, family.read_config(values))
    except (UserError, ValueError) as error:  # not JSON, or not a model of ours
        raise UserError(f"{path}: cannot be used: {error}") from None


def open_tensors(folder: Path, prefix: str) -> Tensors:
    """Open the safetensors files of a folder. Raises UserError."""
    one = folder / "model.safetensors"
    paths = [one] if one.is_file() else sorted(folder.glob("model-*.safetensors"))
    if not paths:
        raise UserError(
            f"{folder}: there is no model.safetensors. A pytorch_model.bin is a pickle, which can run "
            "code, and is never read: if you trust it, convert it with transformers: "
            "from_pretrained(<it>).save_pretrained(<new folder>)"
        )
    tensors = {}
    for path in paths:
        with refusing(f"{path}: damaged or cut short", "download it again", OSError, SafetensorError):
            file = safe_open(path, framework="numpy")
        for name in file.keys():
            full = name if name.startswith((prefix, "lm_head.")) else prefix + name
            tensors[full] = partial(file.get_tensor, name)
    return tensors
