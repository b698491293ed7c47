"""Write a run's model as transformers and vLLM read it, its adapters for PEFT, or a page that holds it.

    python export.py --out_dir=out-quickstart --to=my-gpt           the last checkpoint, into a new folder
    hf upload <you>/my-gpt my-gpt                                   and to the Hugging Face hub
    python export.py --out_dir=out-lora --to=my-adapter --format=peft   a LoRA run's adapters alone
    python export.py --out_dir=out-quickstart --to=my-model.html --format=html   one file for any browser
    python export.py --out_dir=out-chat --to=my-chat --format=gguf      for llama.cpp and Ollama

Without --format=peft, adapters are merged. PEFT puts them beside the model that the run started from: if that
is another run of ours, export it too.
"""

from common.errors import UserError, command  # isort: split

import shlex
import sys
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from common.command_line import Checkpoint, Name, given
from common.files import refusing, write_whole
from data.conversations import Renderer
from data.dataset import Batches
from hub.export import (
    architecture,
    check_new,
    new_folder,
    plain,
    which_family,
    write_adapters,
    write_card,
    write_model,
    write_tokenizer,
)
from model import GPT
from parallel.machines import choose_device
from runs.checkpoint import Checkpoints, Manifest, as_loss
from runs.load import load_run, tokenizer_of

MOST_ON_A_PAGE = 30_000_000  # parameters
MEASURED = {
    "loss": "validation loss is {:.4f} nats per token",
    "reward": "mean reward on held-out questions is {:.4f}",
}
WEIGHTS = {"html": ("bfloat16", "int8"), "gguf": ("f16", "f32", "q8_0")}  # the first is the default


@dataclass(frozen=True)
class ExportOptions:
    """Write a run's model for transformers or a browser, or its adapters for PEFT."""

    out_dir: Name = "out"  # folder of the run
    checkpoint: Checkpoint = "last"  # of the run: last, best (the lowest validation loss), or an iteration
    to: Name = "out-hf"  # folder to write, new or empty; for html a new file
    format: Literal["transformers", "peft", "html", "gguf"] = "transformers"  # peft: adapters; html: a page
    # Matrices of html: bfloat16, or int8 with a scale for each row; of gguf: f16, f32, q8_0. None: the first.
    weights: Literal["bfloat16", "int8", "f16", "f32", "q8_0"] | None = None


def main(argv: list[str]) -> None:
    options = ExportOptions(**given(argv, ExportOptions))
    choose_device("auto")
    if options.weights not in (None, *(known := WEIGHTS.get(options.format, ()))):
        what = f"writes {', '.join(known)}: give one of these" if known else "writes float32: leave it out"
        raise UserError(f"--weights={options.weights}: --format={options.format} {what}")
    if options.format == "html":
        print(export_page(options))
        return
    check_new(Path(options.to).resolve())  # before the run is loaded, which takes time
    loaded = load_run(options.out_dir, options.checkpoint, merged=options.format != "peft")
    export = {"transformers": export_model, "peft": export_adapters, "gguf": export_gguf}[options.format]
    # A print that fails must not undo the folder: notes go to stderr, and the rest is printed afterwards.
    with new_folder(Path(options.to)) as folder, redirect_stdout(sys.stderr):
        written = export(options, folder, *loaded)
    print(written, flush=True)


def export_model(options: ExportOptions, folder: Path, model: GPT, manifest: Manifest, iteration: int) -> str:
    """Write weights, tokenizer and model card. Return in words what was written, as the other writers do."""
    family = which_family(model.config)
    write_model(folder, model, family, manifest.tokenizer)
    write_tokenizer(folder, manifest.tokenizer, model.config.block_size)
    name = Path(options.to).resolve().name
    loss, measured = Checkpoints(options.out_dir).loss(iteration), MEASURED[manifest.score]
    unknown = "validation loss was not measured"
    score = unknown if loss is None else measured.format(as_loss(manifest.score, loss))
    data = Path(manifest.options.dataset).name
    write_card(folder, model, family, name=name, dataset=data, iteration=iteration, score=score)
    upload = f"hf upload <your name>/{shlex.quote(name)} {shlex.quote(options.to)}"
    return f"{architecture(family)} of iter {iteration}: {options.to}\nto the Hugging Face hub: {upload}"


def export_gguf(options: ExportOptions, folder: Path, model: GPT, manifest: Manifest, iteration: int) -> str:
    """Write one file for llama.cpp, and what `ollama create` reads."""
    from hub.gguf_file import modelfile, write_gguf  # here: its package is needed for nothing else

    name, kind = Path(options.to).resolve().name, options.weights or WEIGHTS["gguf"][0]
    write_gguf(folder / f"{name}.gguf", model, manifest.tokenizer, kind)
    (folder / "Modelfile").write_text(modelfile(name, manifest.tokenizer), encoding="utf-8")
    create = shlex.join(["ollama", "create", name, "-f", f"{options.to}/Modelfile"])
    return f"{kind} of iter {iteration}: {options.to}\nto Ollama: {create}"


def export_adapters(
    options: ExportOptions, folder: Path, model: GPT, manifest: Manifest, iteration: int
) -> str:
    """Write adapters and their description. Raises UserError for a run that has none for PEFT."""
    advice = "leave out --format=peft"
    if manifest.base is None:
        raise UserError(f"out_dir={options.out_dir}: the run has no adapters: {advice}")
    if getattr(model.config, "mup_base_width", 0):
        why = "adapters cannot hold the multipliers of a model in µP (mup_base_width)"
        raise UserError(f"out_dir={options.out_dir}: {why}: {advice}")
    base = manifest.base["init_from"]
    write_adapters(folder, model, which_family(model.config), manifest.options, base)
    return f"adapters of iter {iteration}, for {base}: {options.to}"


def export_page(options: ExportOptions) -> str:
    """Write serve.py's page with the model in it. Raises UserError for a model that does not suit."""
    from tools.serving.html_file import html  # here: the other formats do without the tools
    from tools.serving.run_folder import RunFolder

    path = Path(options.to)
    if path.suffix != ".html":
        raise UserError(f"--to={path}: give a file that browsers open, as in --to=my-model.html")
    if path.exists():
        raise UserError(f"--to={path} is there already: give a new file, or delete it")
    model, manifest, iteration = load_run(options.out_dir, options.checkpoint)
    if (size := sum(x.size for x in jax.tree.leaves(model))) > MOST_ON_A_PAGE:
        what = f"out_dir={options.out_dir}: {size:,} parameters are more than the {MOST_ON_A_PAGE:,}"
        raise UserError(f"{what} that a browser computes with at ease: use serve.py")
    tokenizer = tokenizer_of(manifest.tokenizer, "resume", options.out_dir)
    known = {"name": path.stem, "version": f"iter-{iteration}", "example": [], "questions": []}
    run, batches = RunFolder(options.out_dir), None
    with suppress(UserError):  # the data set may not be here, or be another text by now
        batches = Batches(run.validation(), 8, model.config.block_size, seed=1)
        known["example"] = run.example(min(64, model.config.block_size)).tolist()
        known["questions"] = run.questions(Renderer(tokenizer))
    model = plain(model)
    weights = options.weights or WEIGHTS["html"][0]
    page, kept = html(model, known, tokenizer, weights)
    with refusing(f"--to={path}: cannot be written", "choose another place", OSError):
        write_whole(path, page)
    cost = "the data set is not here, so what that costs was not measured"
    if batches is not None:
        loss = jax.jit(GPT.loss)
        losses = [np.mean([loss(each, *batches(i)) for i in range(20)]) for each in (model, kept)]
        cost = f"its loss on 160 validation rows is {losses[1]:.4f}, and {losses[0]:.4f} in float32"
    return f"iter {iteration} in {weights}, {path.stat().st_size / 1e6:.1f} MB: {path}\n{cost}"


if __name__ == "__main__":
    command(main)
