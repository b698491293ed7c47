"""Write the adapters of a LoRA run as PEFT reads them, beside the model they were trained on.

    python -m hub.peft --out_dir=out-lora --to=my-adapter           the latest checkpoint, into a new folder

    model = AutoModelForCausalLM.from_pretrained("gpt2")            # in Python: what the run started from
    model = PeftModel.from_pretrained(model, "my-adapter")

If the run started from another of ours, the model is that one as `python -m hub.export` writes it; of a LoRA
run that command writes the model with the adapters merged. PEFT has A as (r, in) and B as (out, r), whichever
way round the model has its own matrices. Where one layer of ours is several of theirs, all have the same A,
and each its part of B.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
from safetensors.numpy import save_file

from config.options import Name, Options, UserError, command, given
from hub.export import new_folder, write_json
from hub.family import Family, to_theirs, which_family
from hub.gpt2 import GPT2
from hub.weights import FAMILIES
from model import GPT, dotted
from training.checkpoint import load_adapted


@dataclass(frozen=True)
class AdapterOptions:
    """Every option of hub.peft. The comment behind a field is its text in `--help`."""

    program: ClassVar[str] = "-m hub.peft"
    purpose: ClassVar[str] = "Write a LoRA run's adapters as PEFT reads them."

    out_dir: Name = "out"  # folder of the run, whose latest checkpoint is taken
    to: Name = "out-peft"  # folder to write, new or empty


def main(argv: list[str]) -> None:
    options = AdapterOptions(**given(argv, AdapterOptions))
    with new_folder(Path(options.to)) as folder:
        model, manifest, iteration = load_adapted(options.out_dir, dtype="float32")
        if manifest.base is None:
            raise UserError(
                f"out_dir={options.out_dir}: the run has no adapters: python -m hub.export writes its model"
            )
        family = which_family(FAMILIES, model.config)
        tensors = adapters(model, family)
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config = describe(tensors, family, manifest.options, manifest.base["init_from"])
        write_json(folder / "adapter_config.json", config)
    print(f"adapters of iter {iteration}, for {manifest.base['init_from']}: {options.to}")


def adapters(model: GPT, family: Family) -> dict[str, np.ndarray]:
    """PEFT's tensors, float32, by their names, of a model with adapters."""
    arrays = {dotted(path): np.asarray(x) for path, x in jax.tree.leaves_with_path(model)}
    found = {}
    for name in (name.removesuffix(".lora_a") for name in arrays if name.endswith(".lora_a")):
        pattern, *names = family.tensors[f"{name}.weight"]
        for i, (a, b) in enumerate(zip(arrays[f"{name}.lora_a"], arrays[f"{name}.lora_b"], strict=True)):
            parts = to_theirs(b, pattern, len(names))  # laid out as the weights are, with r for their `in`
            for theirs, part in zip(names, parts, strict=True):
                module = f"base_model.model.{theirs.format(i=i).removesuffix('.weight')}"
                found[f"{module}.lora_A.weight"] = np.ascontiguousarray(a.T)
                found[f"{module}.lora_B.weight"] = np.ascontiguousarray(part.T if family is GPT2 else part)
    return found


def describe(tensors: dict[str, np.ndarray], family: Family, options: Options, base: str) -> dict:
    """adapter_config.json."""
    layer = f"base_model.model.{family.tensors['blocks.ln_1.weight'][1].split('{')[0]}0."
    modules = {name.removeprefix(layer).split(".lora_")[0] for name in tensors if name.startswith(layer)}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": options.lora_rank,
        "lora_alpha": options.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": family is GPT2,  # whose matrices are (in, out)
        "target_modules": sorted(modules),
        "inference_mode": True,
    }


if __name__ == "__main__":
    command(main)
