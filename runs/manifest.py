"""The manifest of a checkpoint: what it holds besides arrays. Reading it needs no devices."""

import json
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, SkipValidation
from pydantic.dataclasses import dataclass

from config.command_line import UserError, spell
from config.files import first_line, read_json, write_whole
from config.options import LORA, SHAPE, Options
from data.dataset import Split, dataset_dir
from data.tokenizer import check_description, same_tokens
from parallel.hosts import on_process_0

FORMAT = 4  # 3 has no sha256


class Damaged(UserError):
    """A checkpoint is not what was saved; `what` says which and why."""

    def __init__(self, checkpoint: Path, why: str):
        self.what = f"{checkpoint}: the checkpoint is damaged ({why})"
        super().__init__(f"{self.what}: move this folder away to use the one before")


@dataclass(frozen=True, config=ConfigDict(strict=True))
class Manifest:
    """Holds what a resumed run needs to know, checked when it is made."""

    options: SkipValidation[Options]
    vocab_size: Annotated[int, Field(gt=0, lt=2**32)]
    tokenizer: Annotated[dict | None, AfterValidator(check_description)]  # for data.tokenizer.from_json
    best_val_loss: FiniteFloat | None  # the lowest so far; None before the first evaluation
    # The base model of adapters; None without them.
    base: Annotated[dict[Literal["init_from", "fingerprint"], str], Field(min_length=2)] | None = None
    sha256: dict[Split, str] = field(default_factory=dict)  # of the text that the run has learned, if known
    # Checksums belong to the saved arrays, by item and name.
    checksums: dict[str, dict[str, int]] = field(default_factory=dict, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT} | vars(self) | {"options": vars(self.options)}

    def after_evaluation(self, val_loss: float) -> tuple["Manifest", bool]:
        """Return the manifest after an evaluation, and whether that was the best so far."""
        improved = self.best_val_loss is None or val_loss < self.best_val_loss
        return replace(self, best_val_loss=val_loss) if improved else self, improved

    def resuming_from(self, saved: "Manifest", path: Path) -> "Manifest":
        """Return the manifest of this run when it resumes from the checkpoint at `path`. Raises UserError."""
        for name in (*SHAPE, *LORA, "optimizer"):
            check_equal(name, getattr(self.options, name), getattr(saved.options, name), path)
        self.check_vocabulary(saved, path)
        return replace(self, tokenizer=saved.tokenizer, best_val_loss=saved.best_val_loss, base=saved.base)

    def check_text(self, dataset: str, sha256: dict[Split, str]) -> None:
        """Raise UserError where `dataset`, this run's own, has become another text, as far as is known."""
        own = dataset_dir(dataset).resolve() == dataset_dir(self.options.dataset).resolve()
        if own and self.sha256 and sha256 and sha256 != self.sha256:
            raise UserError(
                f"dataset={dataset} was prepared anew, of another text than {self.options.out_dir} learned: "
                "put that text back, or give --dataset=<a copy of this one>"
            )

    def check_vocabulary(self, saved: "Manifest", path: Path | str) -> None:
        if not same_tokens(self.tokenizer, saved.tokenizer):
            raise UserError(
                f"dataset={self.options.dataset} has another vocabulary than the checkpoint {path}: "
                "give the data set that it was trained on, or train anew in another --out_dir"
            )
        check_equal("vocab_size", self.vocab_size, saved.vocab_size, path)
        saved.check_text(self.options.dataset, self.sha256)


def check_equal(name: str, ours: Any, theirs: Any, path: Path | str) -> None:
    if ours != theirs:
        raise UserError(
            f"{name}={ours}, but the checkpoint {path} has {name}={theirs}: "
            f"give --{name}={theirs}, or train anew in another --out_dir"
        )


def write_options(options: Options) -> None:
    """Write a run's options.json, by process 0."""
    text = json.dumps(vars(options), indent=1) + "\n"
    on_process_0(write_whole, Path(options.out_dir) / "options.json", text)


def latest_manifest(out_dir: str) -> Manifest:
    """Read the manifest of a run's newest checkpoint. Raises UserError."""
    folder = Path(out_dir).resolve() / "checkpoints"
    saved = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
    if not saved:
        raise UserError(f"{folder}: no checkpoint there to start from")
    return read_manifest(folder / str(max(saved)))


def read_manifest(checkpoint: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises Damaged, UserError for another format, or OSError."""
    path = checkpoint / "manifest" / "metadata"
    try:
        values = dict(read_json(path))
        if (written := values.pop("format", 1)) not in (3, FORMAT):
            raise UserError(
                f"{checkpoint}: its manifest has format {spell(written)}, and this version reads 3 and "
                f"{FORMAT} only: use the version that wrote it"
            )
        options = Options.from_json(values.pop("options"), origin=str(path))
        return Manifest(options, **values)
    except (ValueError, TypeError, KeyError) as error:  # pydantic's is a ValueError
        raise Damaged(checkpoint, first_line(error)) from None
