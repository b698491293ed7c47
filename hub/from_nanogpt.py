"""Write a checkpoint of nanoGPT's as a folder of GPT-2's shape, for --init_from and for transformers.

    python -m hub.from_nanogpt out/ckpt.pt --to=my-gpt          then: python sample.py --init_from=my-gpt

PyTorch, which has to be installed, reads the file, and runs nothing that lies in it.
"""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal

import equinox as eqx
import jax
import numpy as np

from common.command_line import Name, check_values, take_options
from common.errors import UserError, command
from common.files import refusing
from data.dataset import Dataset
from hub.export import new_folder, which_family, write_model, write_tensors, write_tokenizer
from hub.weights import Pretrained
from model import GPT, GPTConfig


@dataclass(frozen=True)
class NanogptOptions:
    to: Name = "out-hf"  # folder to write, new or empty
    dataset: Name | None = None  # the data set that has its tokens; None: as the checkpoint says
    mlp: Literal["gelu_erf", "gelu"] = "gelu_erf"  # gelu: of a nanoGPT from before 17 May 2023


def main(argv: list[str]) -> None:
    values, words = take_options(argv, NanogptOptions)
    if len(words) != 1 or words[0].startswith("-"):
        raise UserError("usage: python -m hub.from_nanogpt ckpt.pt --to=<folder> [--dataset=..] [--mlp=gelu]")
    options = NanogptOptions(**values)
    jax.config.update("jax_platforms", "cpu")
    with new_folder(Path(options.to)) as folder:
        model, dataset = read_checkpoint(words[0], options, folder)
        meta = Dataset(options.dataset or dataset, model.config.vocab_size).meta
        padding = model.config.vocab_size - meta.vocab_size  # to a multiple of 64, as nanoGPT's 50304
        known = meta.tokenizer if padding in (0, -meta.vocab_size % 64) else None
        write_model(folder, model, which_family(model.config), known)
        write_tokenizer(folder, known, model.config.block_size)
    print(f"sample from it: python sample.py --init_from={quote(options.to)}")


def read_checkpoint(path: str, options: NanogptOptions, folder: Path) -> tuple[GPT, str]:
    """Read the model, by way of `folder`, and the name of its data set. Raises UserError."""
    try:
        import torch  # here, because it is no requirement
    except ImportError:
        raise UserError(f"{path}: PyTorch has to read it: pip install torch") from None
    with refusing(f"{path}: cannot be used", "give a ckpt.pt that nanoGPT's train.py wrote", Exception):
        found = torch.load(path, map_location="cpu", weights_only=True)
        state = {name.removeprefix("_orig_mod."): x.float().numpy() for name, x in found["model"].items()}
        # transformers has the matrices of GPT-2 as (in, out).
        theirs = {name: x.T if ".h." in name and x.ndim == 2 else x for name, x in state.items()}
        if wrong := [name for name, x in found["model"].items() if x.is_complex() or not x.isfinite().all()]:
            raise ValueError(f"{wrong[0]} has numbers that are not real and finite")
        tied = np.array_equal(state["lm_head.weight"], state["transformer.wte.weight"])
        fields = {"bias": True} | found["model_args"] | {"mlp": options.mlp, "tie_embeddings": tied}
        config = GPTConfig(**check_values(fields, "model_args: ", GPTConfig))
        write_tensors(folder / "model.safetensors", theirs)
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shapes = eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))
        shapes = jax.tree.map(lambda x: x.update(sharding=here), shapes)
        model = Pretrained(folder, which_family(config), config).load(shapes)
        return model, str(found.get("config", {}).get("dataset", ""))


if __name__ == "__main__":
    command(main)
