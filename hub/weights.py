"""Checkpoints in Hugging Face's format: a folder, or a model of the hub, opened and read into a GPT.

transformers reads config.json, because it knows every spelling and default. A family's table names the tensor
that holds each of our arrays, with a pattern of einops from their axes to ours:

    "blocks.attn.c_q.weight": Tensor("model.layers.{i}.self_attn.q_proj.weight", "(h c) d -> d h c"),

says that layer i has a matrix (H C, D), which becomes our (D, H, C). Weights are read from safetensors files
alone, and go to their devices one array at a time.

GPT-2: Radford et al., 2019. Llama: arXiv:2302.13971, 2407.21783. Mistral: arXiv:2310.06825. Qwen2:
arXiv:2407.10671. Qwen3: arXiv:2505.09388.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from einops import EinopsError, rearrange
from safetensors import SafetensorError, safe_open
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from common.command_line import check_values, spell
from common.errors import UserError
from common.files import read_json, refusing
from config.options import Options
from data.tokenizer import TOKENIZER_FILES, read_tokenizer
from model import GPT, GPTConfig, leaf_name

MOST_LAYERS = 10_000
NOT_READ = ("model_type", "num_labels")  # a large num_labels would fill the memory with names

# The only values that we compute: of entries in any family, and of those of rope_type "llama3".
ALWAYS = {
    "is_causal": True,
    "per_layer_config": None,
    "quantization_config": None,
    "partial_rotary_factor": 1,
}
LLAMA3 = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
ROPE = ("rope_type", "rope_theta", "factor", "partial_rotary_factor", *LLAMA3)  # below "rope_parameters"


class Tensor(NamedTuple):
    """Names the tensor that holds one of our arrays, alone or with others, and how its axes become ours."""

    name: str  # in their files; {i} stands for the layer
    pattern: str = "... -> ..."  # from their axes to ours; `c` is the head size C
    part: int = 0  # the tensor's last axis has equal parts, and this one is ours
    parts: int = 1

    def to_ours(self, array: np.ndarray, config: GPTConfig) -> np.ndarray:
        part = np.split(array, self.parts, axis=-1)[self.part]
        return rearrange(part, self.pattern, **({"c": config.head_size} if "c" in self.pattern else {}))


@dataclass(frozen=True)
class Family:
    """Maps the `config.json` of a family of models to our fields, and its tensors to our arrays."""

    model_type: str  # its name in config.json
    prefix: str  # begins the name of every tensor but the head; some checkpoints leave it out
    sizes: dict[str, str]  # fields of GPTConfig that config.json has too, and their names there
    fields: dict[str, Any]  # fields of GPTConfig that are the same in all its models
    activation: str  # the entry of config.json that names the MLP's activation
    mlps: dict[str, str]  # our MLP of each activation
    entries: dict[str, Any]  # other entries of config.json, with the only values that we compute
    tensors: dict[str, Tensor]  # by our names

    def read_config(self, values: dict[str, Any]) -> GPTConfig:
        """Read a config.json. Raises UserError or ValueError for a model that we do not compute."""
        values, only = self.complete(values), self.entries | ALWAYS
        scaled = entry(values, "rope_type", "default", "llama3") == "llama3"
        for name, ours in (only | LLAMA3 if scaled else only).items():
            entry(values, name, ours)
        sizes = self.sizes | ({"rope_scaling": "factor"} if scaled else {})
        fields: dict[str, Any] = {}
        for ours, theirs in sizes.items():
            fields |= check_values({ours: values.get(theirs)}, f"{theirs} as our ", Options)
        full = ["full_attention"] * fields["n_layer"]
        if self.model_type.startswith("qwen") and values.get("layer_types") == full:
            fields["window"] = None  # `sliding_window` is that of other layers
        if fields.get("window") and values.get("is_causal", True) is None:  # transformers then looks ahead
            raise ValueError("is_causal is null beside a window: write true if it should not look ahead")
        layers = full if fields.get("window") is None else ["sliding_attention"] * fields["n_layer"]
        if values.get("layer_types") not in (None, layers):
            raise ValueError("layer_types differ, and only layers of one kind can be computed here")
        fields["mlp"] = self.mlps[entry(values, self.activation, *self.mlps)]
        return GPTConfig(**fields | self.fields)

    def complete(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return a config.json with the defaults and the spelling of transformers. Raises ValueError."""
        n_layer = values.get(name := self.sizes["n_layer"])
        if isinstance(n_layer, int) and n_layer > MOST_LAYERS:  # transformers makes lists of this length
            raise ValueError(f"{name} is {n_layer}, and {MOST_LAYERS} at most can be read")
        import transformers  # here, because it takes over a second

        given = {name: value for name, value in values.items() if name not in NOT_READ}
        try:
            found = transformers.AutoConfig.for_model(self.model_type, **given).to_dict()
            rope = found.get("rope_parameters") or {}
            return found | {name: rope.get(name) for name in ROPE}
        except Exception as error:  # a value of a wrong type raises one of many classes
            raise ValueError(f"transformers refuses it: {' '.join(str(error).split())}") from None


def entry(values: dict[str, Any], name: str, *ours: Any) -> Any:
    """Return an entry of config.json, by default the first of `ours`. Raises ValueError for other values."""
    value = ours[0] if values.get(name) is None else values[name]
    if value not in ours:
        known = " or ".join(map(repr, ours))
        raise ValueError(f"{name} is {spell(value)}, and only {known} can be computed here")
    return value


LAYERS = ("ln_1", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")  # have the names and axes of ours
AS_OURS = [f"{layer}.{array}" for layer in LAYERS for array in ("weight", "bias")]

GPT2 = Family(
    model_type="gpt2",
    prefix="transformer.",
    sizes={
        "block_size": "n_positions",
        "vocab_size": "vocab_size",
        "tie_embeddings": "tie_word_embeddings",
        "n_layer": "n_layer",
        "n_head": "n_head",
        "n_embd": "n_embd",
        "n_hidden": "n_inner",
        "norm_eps": "layer_norm_epsilon",
    },
    fields={"position": "learned", "bias": True},
    activation="activation_function",
    mlps={"gelu_new": "gelu", "gelu": "gelu_erf", "relu2": "relu2"},
    entries={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    tensors={
        "wte": Tensor("transformer.wte.weight"),
        "wpe": Tensor("transformer.wpe.weight"),
        **{f"blocks.{name}": Tensor(f"transformer.h.{{i}}.{name}") for name in AS_OURS},
        "blocks.attn.c_q.weight": Tensor("transformer.h.{i}.attn.c_attn.weight", "d (h c) -> d h c", 0, 3),
        "blocks.attn.c_k.weight": Tensor("transformer.h.{i}.attn.c_attn.weight", "d (h c) -> d h c", 1, 3),
        "blocks.attn.c_v.weight": Tensor("transformer.h.{i}.attn.c_attn.weight", "d (h c) -> d h c", 2, 3),
        "blocks.attn.c_q.bias": Tensor("transformer.h.{i}.attn.c_attn.bias", "(h c) -> h c", 0, 3),
        "blocks.attn.c_k.bias": Tensor("transformer.h.{i}.attn.c_attn.bias", "(h c) -> h c", 1, 3),
        "blocks.attn.c_v.bias": Tensor("transformer.h.{i}.attn.c_attn.bias", "(h c) -> h c", 2, 3),
        "ln_f.weight": Tensor("transformer.ln_f.weight"),
        "ln_f.bias": Tensor("transformer.ln_f.bias"),
        "lm_head": Tensor("lm_head.weight"),
    },
)

LLAMA = Family(
    model_type="llama",
    prefix="model.",
    sizes={
        "block_size": "max_position_embeddings",
        "vocab_size": "vocab_size",
        "tie_embeddings": "tie_word_embeddings",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_kv_head": "num_key_value_heads",
        "n_embd": "hidden_size",
        "head_dim": "head_dim",
        "n_hidden": "intermediate_size",
        "norm_eps": "rms_norm_eps",
        "rope_theta": "rope_theta",
    },
    fields={"position": "rope", "norm": "rmsnorm", "bias": False},
    activation="hidden_act",
    mlps={"silu": "swiglu"},
    entries={"attention_bias": False, "mlp_bias": False, "sliding_window": None},
    tensors={
        "wte": Tensor("model.embed_tokens.weight"),
        "blocks.ln_1.weight": Tensor("model.layers.{i}.input_layernorm.weight"),
        "blocks.attn.c_q.weight": Tensor("model.layers.{i}.self_attn.q_proj.weight", "(h c) d -> d h c"),
        "blocks.attn.c_k.weight": Tensor("model.layers.{i}.self_attn.k_proj.weight", "(k c) d -> d k c"),
        "blocks.attn.c_v.weight": Tensor("model.layers.{i}.self_attn.v_proj.weight", "(k c) d -> d k c"),
        "blocks.attn.c_proj.weight": Tensor("model.layers.{i}.self_attn.o_proj.weight", "d i -> i d"),
        "blocks.ln_2.weight": Tensor("model.layers.{i}.post_attention_layernorm.weight"),
        "blocks.mlp.c_gate.weight": Tensor("model.layers.{i}.mlp.gate_proj.weight", "f d -> d f"),
        "blocks.mlp.c_fc.weight": Tensor("model.layers.{i}.mlp.up_proj.weight", "f d -> d f"),
        "blocks.mlp.c_proj.weight": Tensor("model.layers.{i}.mlp.down_proj.weight", "d f -> f d"),
        "ln_f.weight": Tensor("model.norm.weight"),
        "lm_head": Tensor("lm_head.weight"),
    },
)

ATTENTION = "model.layers.{i}.self_attn."
QKV_BIASES = {f"blocks.attn.c_{x}.bias": Tensor(f"{ATTENTION}{x}_proj.bias", "(h c) -> h c") for x in "qkv"}
QK_NORMS = {f"blocks.attn.{x}_norm.weight": Tensor(f"{ATTENTION}{x}_norm.weight") for x in "qk"}
MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    sizes=LLAMA.sizes | {"window": "sliding_window"},
    entries={"attention_bias": False, "mlp_bias": False},
)
QWEN2 = replace(
    MISTRAL,
    model_type="qwen2",
    fields=LLAMA.fields | {"qkv_bias": True},
    tensors=LLAMA.tensors | QKV_BIASES,
)
QWEN3 = replace(
    MISTRAL,
    model_type="qwen3",
    fields=LLAMA.fields | {"qk_norm": True},
    tensors=LLAMA.tensors | QK_NORMS,
)
FAMILIES = {family.model_type: family for family in (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3)}


# Causal masks and the angles of rotations, which a checkpoint may have beside its weights.
NOT_WEIGHTS = (
    r"transformer\.h\.\d+\.attn\.(bias|masked_bias)|model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
)
OPENAI = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # short for openai-community/gpt2, ...
INDEX = "model.safetensors.index.json"
# These are downloaded first, and then the files that the index names.
FILES = ["config.json", "model.safetensors", INDEX, *TOKENIZER_FILES]

Tensors = dict[str, Callable[[], np.ndarray]]  # maps a full name to a function that reads the tensor


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint whose config.json was understood; its weights are not read yet."""

    folder: Path
    family: Family
    config: GPTConfig  # with the checkpoint's own block_size

    def load(self, shapes: GPT) -> GPT:
        """Load the model in the dtypes and shardings of `shapes`, which may have fewer positions.

        Raises UserError when the tensors are not those that config.json says.
        """
        tensors = open_tensors(self.folder, self.family.prefix)
        model = jax.tree.map_with_path(lambda path, like: self.array(tensors, leaf_name(path), like), shapes)
        arrays = [leaf_name(path) for path, _ in jax.tree.leaves_with_path(shapes)]
        names = [self.family.tensors[name].name for name in (*arrays, "lm_head")]  # a tied head may be there
        known = {name.format(i=i) for name in names for i in range(self.config.n_layer)}
        unknown = [name for name in tensors.keys() - known if not re.fullmatch(NOT_WEIGHTS, name)]
        if unknown:
            raise self.wrong(f"the checkpoint has the unknown tensor {min(unknown)}")
        head, wte = (tensors.get(self.family.tensors[name].name) for name in ("lm_head", "wte"))
        if self.config.tie_embeddings and head and wte and not np.array_equal(head(), wte()):
            raise self.wrong("tie_word_embeddings is true, and lm_head.weight is not the embedding")
        return model

    def array(self, tensors: Tensors, name: str, like: jax.ShapeDtypeStruct) -> jax.Array:
        """Load an array, and give each device its part."""
        tensor = self.family.tensors[name]

        def read(i: int | None, *shape: int) -> np.ndarray:
            theirs = tensor.name.format(i=i)
            if theirs not in tensors:
                raise self.wrong(f"the checkpoint has no tensor {theirs}")
            try:
                found = tensors[theirs]()
            except (AttributeError, TypeError) as error:  # NumPy has no such dtype
                raise self.wrong(f"tensor {theirs} cannot be read ({error})") from None
            if np.iscomplexobj(found) or not np.isfinite(found).all():
                raise self.wrong(f"tensor {theirs} has numbers that are not real and finite")
            with suppress(EinopsError, ValueError):  # axes that cannot be split
                if (ours := tensor.to_ours(found, self.config)).shape == shape:
                    return ours
            raise self.wrong(f"tensor {theirs} is {found.shape}, and the model needs {shape}")

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
        is_gpt2 = self.config.vocab_size in (50257, 50304)  # GPT-2's own, and as nanoGPT pads it
        return read_tokenizer(self.folder) or ({"type": "tiktoken", "name": "gpt2"} if is_gpt2 else None)


def locate(name: str) -> Path:
    """Find the folder that `--init_from=<name>` means, or download it. Raises UserError."""
    if os.path.isdir(folder := os.path.expanduser(name)):
        return Path(folder)
    repository = f"openai-community/{name}" if name in OPENAI else name
    what = f"init_from={name}: there is no such folder, and {repository} cannot be downloaded from the hub"
    advice = "give a folder or a model there (gated: after `hf auth login`)"
    # A full disk and each answer of the hub are OSErrors; a proxy and a lacking home raise the last two.
    with refusing(what, advice, OSError, ValueError, ImportError, RuntimeError):
        if "/" not in repository:
            raise ValueError("a model there has two names, as in HuggingFaceTB/SmolLM2-135M")
        from huggingface_hub import snapshot_download  # here: it takes long, and a folder does not need it

        folder = Path(snapshot_download(repository, allow_patterns=FILES))
        if (folder / "model.safetensors").is_file() or not (folder / INDEX).is_file():
            return folder
        shards = set(read_index(folder).values())
        return Path(snapshot_download(repository, allow_patterns=[*FILES, *shards]))


@cache
def open_pretrained(name: str) -> Pretrained:
    """Open the checkpoint that `--init_from=<name>` means. Raises UserError."""
    folder = locate(name)
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(
            f"{path}: there is no such file: merge adapters into their model with PEFT; make a folder of "
            "nanoGPT's ckpt.pt with python -m hub.from_nanogpt"
        )
    with refusing(f"{path}: cannot be used", "give another model", UserError, ValueError):
        if not isinstance(values := read_json(path), dict):
            raise ValueError("expected a JSON object")
        kind, kinds = values.get("model_type"), ", ".join(FAMILIES)
        if (family := FAMILIES.get(str(kind))) is None:
            raise ValueError(f"model_type is {spell(kind)}, and only {kinds} can be read")
        return Pretrained(folder, family, family.read_config(values))


class Index(TypedDict):
    weight_map: dict[str, str]


def read_index(folder: Path) -> dict[str, str]:
    """Return the file of each tensor. Raises UserError."""
    with refusing(f"{folder / INDEX}: damaged", "download it again", ValueError):
        return read_json(folder / INDEX, Index)["weight_map"]


def open_tensors(folder: Path, prefix: str) -> Tensors:
    """Open a folder's model.safetensors, or the files that its index names. Raises UserError."""
    one = folder / "model.safetensors"
    if not one.is_file() and not (folder / INDEX).is_file():
        raise UserError(
            f"{folder}: there is no model.safetensors, nor {INDEX}. A pytorch_model.bin is a pickle, which "
            "can run code, and is never read: convert it with transformers, from_pretrained(<it>)"
            ".save_pretrained(<new folder>), if you trust it"
        )
    places = {} if one.is_file() else read_index(folder)  # the file of each tensor
    tensors = {}
    for file in sorted({*places.values()}) or [one.name]:
        path = folder / file
        with refusing(f"{path}: missing, damaged or cut short", "download it", OSError, SafetensorError):
            opened = safe_open(path, framework="numpy")
        for name in opened.keys():
            if places.get(name, file) != file:
                continue  # an old copy of a tensor that the index has elsewhere
            full = name if name.startswith((prefix, "lm_head.")) else prefix + name
            if full in tensors:
                raise UserError(f"{path}: two tensors are {full}, one without {prefix}: delete it")
            tensors[full] = partial(opened.get_tensor, name)
    return tensors
