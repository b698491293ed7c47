"""Write a run's model as transformers and vLLM read it, or its adapters for PEFT.

    python export.py --out_dir=out-quickstart --to=my-gpt           the last checkpoint, into a new folder
    hf upload <you>/my-gpt my-gpt                                   and to the Hugging Face hub
    python export.py --out_dir=out-lora --to=my-adapter --format=peft   a LoRA run's adapters alone

Without --format=peft, adapters are merged. PEFT puts them beside the model that the run started from: if that
is another run of ours, export it too.
"""

from config.command_line import Checkpoint, Name, UserError, command, given  # isort: split

import shlex
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from hub.export import (
    architecture,
    new_folder,
    which_family,
    write_adapters,
    write_card,
    write_model,
    write_tokenizer,
)
from parallel.machines import choose_device
from runs.checkpoint import Checkpoints
from runs.load import load_run


@dataclass(frozen=True)
class ExportOptions:
    """Every option of export.py. A field's comment is its text in `--help`."""

    program: ClassVar[str] = "export.py"
    purpose: ClassVar[str] = "Write a run's model as transformers reads it, or its adapters as PEFT does."

    out_dir: Name = "out"  # folder of the run
    checkpoint: Checkpoint = "last"  # of the run: last, best (the lowest validation loss), or an iteration
    to: Name = "out-hf"  # folder to write, new or empty
    format: Literal["transformers", "peft"] = "transformers"  # peft: LoRA's adapters alone


def main(argv: list[str]) -> None:
    options = ExportOptions(**given(argv, ExportOptions))
    choose_device("auto")
    export = {"transformers": export_model, "peft": export_adapters}[options.format]
    # A print that fails must not undo the folder: notes go to stderr, and the rest is printed afterwards.
    with new_folder(Path(options.to)) as folder, redirect_stdout(sys.stderr):
        written = export(options, folder)
    print(written, flush=True)


def export_model(options: ExportOptions, folder: Path) -> str:
    """Write weights, tokenizer and model card. Return in words what was written, as the other writers do."""
    model, manifest, iteration = load_run(options.out_dir, options.checkpoint, dtype="float32")
    family = which_family(model.config)
    write_model(folder, model, family, manifest.tokenizer)
    write_tokenizer(folder, manifest.tokenizer, model.config.block_size)
    name = Path(options.to).resolve().name
    loss = Checkpoints(options.out_dir).loss(iteration)
    measured = "was not measured" if loss is None else f"is {loss:.4f}"
    data = Path(manifest.options.dataset).name
    facts = {"name": name, "dataset": data, "iteration": iteration, "loss": measured}
    write_card(folder, model, family, **facts)
    upload = f"hf upload <your name>/{shlex.quote(name)} {shlex.quote(options.to)}"
    return f"{architecture(family)} of iter {iteration}: {options.to}\nto the Hugging Face hub: {upload}"


def export_adapters(options: ExportOptions, folder: Path) -> str:
    """Write adapters and their description. Raises UserError for a run that has none for PEFT."""
    model, manifest, iteration = load_run(options.out_dir, options.checkpoint, dtype="float32", merged=False)
    advice = "leave out --format=peft"
    if manifest.base is None:
        raise UserError(f"out_dir={options.out_dir}: the run has no adapters: {advice}")
    if getattr(model.config, "mup_base_width", 0):
        why = "adapters cannot hold the multipliers of a model in µP (mup_base_width)"
        raise UserError(f"out_dir={options.out_dir}: {why}: {advice}")
    base = manifest.base["init_from"]
    write_adapters(folder, model, which_family(model.config), manifest.options, base)
    return f"adapters of iter {iteration}, for {base}: {options.to}"


if __name__ == "__main__":
    command(main)
