"""Write a run's model as transformers and vLLM read it, or its adapters for PEFT, or merged as a new run.

    python export.py --out_dir=out-quickstart --to=my-gpt           the latest checkpoint, into a new folder
    hf upload <you>/my-gpt my-gpt                                   and to the Hugging Face hub
    python export.py --out_dir=out-lora --to=my-adapter --format=peft   a LoRA run's adapters alone
    python export.py --out_dir=out-lora --to=out-merged --format=run    a run at iteration 0, adapters merged

Without --format=peft, adapters are merged. PEFT puts them beside the model that the run started from: if that
is another run of ours, export it too.
"""

from config.command_line import Name, UserError, command, given  # isort: split

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from safetensors import SafetensorError

from hub.export import which_family, write_adapters, write_card, write_json, write_model, write_tokenizer
from runs.checkpoint import Checkpoints
from runs.load import load_run
from training.state import create_state_around


@dataclass(frozen=True)
class ExportOptions:
    """Every option of export.py. A field's comment is its text in `--help`."""

    program: ClassVar[str] = "export.py"
    purpose: ClassVar[str] = "Write a run's model as transformers reads it, or its adapters as PEFT does."

    out_dir: Name = "out"  # folder of the run, whose latest checkpoint is taken
    to: Name = "out-hf"  # folder to write, new or empty
    format: Literal["transformers", "peft", "run"] = "transformers"  # peft: LoRA's adapters; run: them merged


def main(argv: list[str]) -> None:
    options = ExportOptions(**given(argv, ExportOptions))
    with new_folder(Path(options.to)) as folder:
        WRITERS[options.format](options, folder)


def export_model(options: ExportOptions, folder: Path) -> None:
    """Write weights, tokenizer and model card."""
    model, manifest, iteration = load_run(options.out_dir, dtype="float32")
    family = which_family(model.config)
    write_model(folder, model, family, manifest.tokenizer)
    write_tokenizer(folder, manifest.tokenizer, model.config.block_size)
    name = Path(options.to).resolve().name
    loss = "not known" if manifest.best_val_loss is None else f"{manifest.best_val_loss:.4f}"
    facts = {"name": name, "dataset": manifest.options.dataset, "iteration": iteration, "loss": loss}
    write_card(folder, model, family, **facts)
    print(f"{family.architecture} of iter {iteration}: {options.to}")
    print(f"to the Hugging Face hub: hf upload <your name>/{name} {options.to}")


def export_adapters(options: ExportOptions, folder: Path) -> None:
    """Write adapters and their description. Raises UserError for a run that has none for PEFT."""
    model, manifest, iteration = load_run(options.out_dir, dtype="float32", merged=False)
    advice = "leave out --format=peft"
    if manifest.base is None:
        raise UserError(f"out_dir={options.out_dir}: the run has no adapters: {advice}")
    if getattr(model.config, "mup_base_width", 0):
        why = "adapters cannot hold the multipliers of a model in µP (mup_base_width)"
        raise UserError(f"out_dir={options.out_dir}: {why}: {advice}")
    base = manifest.base["init_from"]
    write_adapters(folder, model, which_family(model.config), manifest.options, base)
    print(f"adapters of iter {iteration}, for {base}: {options.to}")


def export_run(options: ExportOptions, folder: Path) -> None:
    """Write a run at iteration 0 with the merged weights. Raises UserError for a run that has no adapters."""
    model, manifest, iteration = load_run(options.out_dir)
    if manifest.base is None:
        raise UserError(
            f"out_dir={options.out_dir}: the run has no adapters to merge: leave out --format=run"
        )
    run = replace(manifest.options, out_dir=options.to, lora_rank=0)
    write_json(folder / "options.json", vars(run))
    checkpoints = Checkpoints(str(folder))
    checkpoints.save(create_state_around(model, run), replace(manifest, options=run, base=None))
    checkpoints.wait()
    print(f"iter {iteration} of {options.out_dir}, its adapters merged: {options.to}")


WRITERS = {"transformers": export_model, "peft": export_adapters, "run": export_run}


@contextmanager
def new_folder(path: Path) -> Generator[Path]:
    """Yield a folder to fill, which is moved to `path` if all goes well. Raises UserError."""
    path = path.resolve()
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise UserError(f"--to={path} is there already: give a new or empty folder, or delete it")
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.mkdir(parents=True)
        yield beside
        os.replace(beside, path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"--to={path}: cannot be written ({error}): choose another place") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


if __name__ == "__main__":
    command(main)
