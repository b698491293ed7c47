"""What a checkpoint says of itself, besides its arrays. It is read before there are devices."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from config.command_line import UserError, spell
from config.files import first_line, is_number, is_whole, read_json
from config.options import LORA, SHAPE, Options
from data.tokenizer import check_description

# 2: queries, keys, values and the MLP's gate are arrays of their own. Before 2, manifests had no number.
FORMAT = 2


@dataclass(frozen=True)
class Manifest:
    """The options of a run, its vocabulary, and what a run that goes on from the checkpoint needs to know."""

    options: Options
    vocab_size: int
    tokenizer: dict | None  # for data.tokenizer.from_json
    best_val_loss: float | None  # the lowest so far; None before the first evaluation
    base: dict[str, str] | None = None  # below adapters: the model's `init_from` and its `fingerprint`

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT} | vars(self) | {"options": self.options.to_json()}

    def after_evaluation(self, val_loss: float) -> tuple["Manifest", bool]:
        """Return the manifest after an evaluation, and whether that was the best so far."""
        improved = self.best_val_loss is None or val_loss < self.best_val_loss
        return replace(self, best_val_loss=val_loss) if improved else self, improved

    def resuming_from(self, saved: "Manifest", path: Path) -> "Manifest":
        """Return the manifest of this run when it goes on from the checkpoint at `path`.

        Raises UserError when this run's options or data contradict the model there, or its optimizer's state.
        """
        for name in (*SHAPE, *LORA, "optimizer"):
            ours, theirs = getattr(self.options, name), getattr(saved.options, name)
            if ours != theirs:
                raise UserError(
                    f"{name}={ours}, but the checkpoint {path} has {name}={theirs}: "
                    "give the same, or train anew in another --out_dir"
                )
        self.check_vocabulary(saved, path)
        return replace(self, best_val_loss=saved.best_val_loss, base=saved.base)

    def check_vocabulary(self, saved: "Manifest", path: Path | str) -> None:
        """Raise UserError when the vocabulary is not that of the run or checkpoint at `path`."""
        if (self.vocab_size, self.tokenizer) != (saved.vocab_size, saved.tokenizer):
            raise UserError(
                f"dataset={self.options.dataset} has another vocabulary than the checkpoint {path}: "
                "give the data set that it was trained on, or train anew in another --out_dir"
            )


def latest_manifest(out_dir: str) -> Manifest:
    """Read the manifest of a run's newest checkpoint. Unlike `Checkpoints`, this needs no devices yet.

    Raises UserError.
    """
    folder = Path(out_dir).resolve() / "checkpoints"
    saved = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    if not saved:
        raise UserError(f"{folder}: no checkpoint there to start from")
    return read_manifest(folder / str(max(saved)))


def read_manifest(checkpoint: Path) -> Manifest:
    """Read the manifest of the checkpoint in a folder.

    Raises UserError when it is damaged, or when another version of this project has written it.
    """
    path = checkpoint / "manifest" / "metadata"
    try:
        values = read_json(path)
        if not isinstance(values, dict):
            raise ValueError("its manifest is no JSON object")
        written = values.get("format", 1)
        if not is_whole(written) or written != FORMAT:
            raise UserError(
                f"{checkpoint}: its manifest has format {spell(written)}, and this version reads {FORMAT} "
                "only: train anew in another --out_dir, or use the version of nanoJAXGPT that wrote it"
            )
        return parse_manifest(values, path)
    except ValueError as error:
        raise damaged(checkpoint, error) from None


def parse_manifest(values: dict[str, Any], path: Path) -> Manifest:
    """Return the manifest that `to_json` made these values of. Raises ValueError, or UserError."""
    match values:
        case {
            "options": options,
            "vocab_size": vocab_size,
            "tokenizer": tokenizer,
            "best_val_loss": best,
            "base": {"init_from": str(), "fingerprint": str()} | None as base,
        } if is_whole(vocab_size) and vocab_size > 0 and (best is None or is_number(best)):
            options = Options.from_json(options, origin=str(path))
            return Manifest(options, vocab_size, check_description(tokenizer), best, base)
    raise ValueError("an entry of its manifest is missing, or is not what this version writes")


def damaged(checkpoint: Path, error: Exception) -> UserError:
    return UserError(
        f"{checkpoint}: the checkpoint is damaged ({first_line(error)}): "
        "delete this folder to use the one before"
    )
