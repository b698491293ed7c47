"""Checkpoints in Hugging Face's format: a folder, or a model of the hub, opened and read into a GPT.

Weights come from safetensors files alone, and go to their devices an array at a time.
"""

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from config.command_line import UserError, spell
from config.files import read_json, refusing
from data.tokenizer import check_description
from hub.families import FAMILIES, GPT2, Family
from model import GPT, GPTConfig
from parallel.sharding import leaf_name

GPT2_VOCABULARIES = (50257, 50304)  # as it is, and as nanoGPT pads it
OPENAI = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # short for openai-community/gpt2, ...
FILES = ["config.json", "model.safetensors", "model-*.safetensors"]  # what is downloaded
FILES += ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]


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
        tensors = Tensors(self.folder, self.family.prefix)
        model = jax.tree.map_with_path(lambda path, like: self.array(tensors, leaf_name(path), like), shapes)
        # A file may have a tied head, too.
        spare = rf"{self.family.not_weights}|{self.family.tensors['lm_head'].name}"
        if unknown := [name for name in tensors.unread if not re.fullmatch(spare, name)]:
            raise tensors.wrong(f"the checkpoint has the unknown tensor {min(unknown)}")
        return model

    def array(self, tensors: "Tensors", name: str, like: jax.ShapeDtypeStruct) -> jax.Array:
        """Load an array, and give each device its part."""
        tensor = self.family.tensors[name]

        def read(i: int | None, *shape: int) -> np.ndarray:
            theirs = tensors.read(tensor.name.format(i=i))
            if theirs.shape != (expected := tensor.their_shape(shape)):
                raise tensors.wrong(
                    f"tensor {tensor.name.format(i=i)} is {theirs.shape}, and config.json makes it {expected}"
                )
            return tensor.to_ours(theirs, self.config)

        rows, *rest = like.shape
        if name.startswith("blocks."):
            ours = np.stack([read(i, *rest).astype(like.dtype) for i in range(rows)])
        else:
            theirs = read(None, self.config.block_size if name == "wpe" else rows, *rest)
            ours = theirs[:rows].astype(like.dtype)
        return jax.make_array_from_callback(like.shape, like.sharding, ours.__getitem__)

    def tokenizer(self) -> dict | None:
        """Describe its tokenizer, or None where the files do not say. Raises UserError for damaged ones."""
        path, gpt2_sized = self.folder / "tokenizer.json", self.config.vocab_size in GPT2_VOCABULARIES
        # GPT-2's own is read by tiktoken, as its data sets are.
        if path.is_file() and not (gpt2_sized and self.family is GPT2):
            with refusing(f"{path}: cannot be used", "download it again", ValueError):
                return check_description({"type": "tokenizers", "json": path.read_text("utf-8")})
        return {"type": "tiktoken", "name": "gpt2"} if gpt2_sized else None


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
    try:
        if not isinstance(values := read_json(path), dict):
            raise ValueError("expected a JSON object")
        kind, kinds = values.get("model_type"), ", ".join(FAMILIES)
        if (family := FAMILIES.get(str(kind))) is None:
            raise ValueError(f"model_type is {spell(kind)}, and only {kinds} can be read")
        return Pretrained(folder, family, family.read_config(values))
    except (UserError, ValueError) as error:  # not JSON, or not a model of ours
        raise UserError(f"{path}: cannot be used: {error}") from None


class Tensors:
    """The tensors in the safetensors files of a folder, read one by one. Raises UserError."""

    def __init__(self, folder: Path, prefix: str):
        self.folder = folder
        self.files = {}  # of each tensor: its open file, and its name there
        one = folder / "model.safetensors"
        paths = [one] if one.is_file() else sorted(folder.glob("model-*.safetensors"))
        if not paths:
            raise UserError(
                f"{folder}: there is no model.safetensors. A pytorch_model.bin is a pickle, which can run "
                "code, and is never read: if you trust it, convert it with transformers: "
                "from_pretrained(<it>).save_pretrained(<new folder>)"
            )
        for path in paths:
            with refusing(f"{path}: damaged or cut short", "download it again", OSError, SafetensorError):
                file = safe_open(path, framework="numpy")
            for name in file.keys():
                full = name if name.startswith((prefix, "lm_head.")) else prefix + name
                self.files[full] = file, name
        self.unread = set(self.files)

    def read(self, name: str) -> np.ndarray:
        if name not in self.files:
            raise self.wrong(f"the checkpoint has no tensor {name}")
        self.unread.discard(name)
        file, there = self.files[name]
        return file.get_tensor(there)

    def wrong(self, what: str) -> UserError:
        return UserError(f"{self.folder}: {what}: it is damaged, or not of the model in its config.json")
