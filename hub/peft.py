"""The adapters of a LoRA run in PEFT's format, to be put beside the model that they were trained on.

    model = AutoModelForCausalLM.from_pretrained("gpt2")            # what the run started from
    model = PeftModel.from_pretrained(model, "my-adapter")

PEFT has A as (r, in) and B as (out, r), whichever way round the model has its own matrices. Where a layer of
theirs is several of ours, as GPT-2's c_attn is, its adapter has as many times the rank: the rows of A are
ours one after another, and B has ours on its diagonal.
"""

import json
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import save_file

from config.options import Options
from hub.family import Family, Tensor, to_theirs
from hub.gpt2 import GPT2
from model import GPT
from parallel.sharding import leaf_name


def write_adapters(folder: Path, model: GPT, family: Family, options: Options, base: str) -> None:
    """Write adapter_model.safetensors and adapter_config.json; `base` is the model below the adapters."""
    tensors = adapters(model, family)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = describe(tensors, family, options, base)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def adapters(model: GPT, family: Family) -> dict[str, np.ndarray]:
    """Return PEFT's tensors, float32, by their names, of a model with adapters."""
    arrays = {leaf_name(path): np.asarray(x) for path, x in jax.tree.leaves_with_path(model)}
    ours = [name.removesuffix(".lora_a") for name in arrays if name.endswith(".lora_a")]
    found = {}
    for theirs in {family.tensors[f"{name}.weight"].name for name in ours}:
        parts = {  # of their layer, those that have adapters
            family.tensors[f"{name}.weight"]: (arrays[f"{name}.lora_a"], arrays[f"{name}.lora_b"])
            for name in ours
            if family.tensors[f"{name}.weight"].name == theirs
        }
        for i in range(model.config.n_layer):
            module = f"base_model.model.{theirs.format(i=i).removesuffix('.weight')}"
            a = np.concatenate([a[i] for a, _ in parts.values()], axis=1)  # (in, r), r added up
            b = np.concatenate([rows_of_b(tensor, b[i], family) for tensor, (_, b) in parts.items()])
            found[f"{module}.lora_A.weight"] = np.ascontiguousarray(a.T)
            found[f"{module}.lora_B.weight"] = np.ascontiguousarray(b.T)
    return found


def rows_of_b(tensor: Tensor, b: np.ndarray, family: Family) -> np.ndarray:
    """Return (r, out) of their layer from (r, ...) of ours: zero outside of the part that is ours."""
    b = to_theirs(b, tensor)  # laid out as the weights are, with r for their `in`
    b = b if family is GPT2 else b.T  # (r, out of ours)
    width = b.shape[1]
    rows = np.zeros((len(b), tensor.parts * width), b.dtype)
    rows[:, tensor.part * width : (tensor.part + 1) * width] = b
    return rows


def describe(tensors: dict[str, np.ndarray], family: Family, options: Options, base: str) -> dict:
    """Return adapter_config.json."""
    layer = f"base_model.model.{family.tensors['blocks.ln_1.weight'].name.split('{')[0]}0."
    ranks = {
        name.removeprefix(layer).split(".lora_")[0]: len(tensor)
        for name, tensor in tensors.items()
        if name.startswith(layer) and ".lora_A" in name
    }
    r, alpha = options.lora_rank, options.lora_alpha
    return {
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
