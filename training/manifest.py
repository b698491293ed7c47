"""What a checkpoint says of itself, besides its arrays. It is read before there are devices."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from config.options import Options, UserError
from training.step import SHAPE

LORA = ("lora_rank", "lora_alpha", "lora_targets", "lora_base_dtype")  # what adapters are, and stand beside


@dataclass(frozen=True)
class Manifest:
    options: Options
    vocab_size: int
    tokenizer: dict | None  # for data.tokenizer.from_json
    best_val_loss: float | None  # the lowest so far; None before the first evaluation
    base: dict[str, str] | None = None  # of adapters: the `init_from` of the model below, its `fingerprint`

    def scored(self, val_loss: float) -> tuple["Manifest", bool]:
        """The manifest after an evaluation, and whether that was the best so far."""
        improved = self.best_val_loss is None or val_loss < self.best_val_loss
        return replace(self, best_val_loss=val_loss) if improved else self, improved

    def after(self, saved: "Manifest", path: Path) -> "Manifest":
        """The manifest of a run that goes on from the checkpoint at `path`.

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
        """Raises UserError when it is not the one of the run or checkpoint at `path`."""
        if (self.vocab_size, self.tokenizer) != (saved.vocab_size, saved.tokenizer):
            raise UserError(
                f"dataset={self.options.dataset} has another vocabulary than the checkpoint {path}: "
                "give the data set that it was trained on, or train anew in another --out_dir"
            )


def latest_manifest(out_dir: str) -> Manifest:
    """Of a run's newest checkpoint. Unlike `Checkpoints`, this needs no devices yet. Raises UserError."""
    folder = Path(out_dir).resolve() / "checkpoints"
    saved = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    if not saved:
        raise UserError(f"{folder}: no checkpoint there to start from")
    return read_manifest(folder / str(max(saved)))


def read_manifest(checkpoint: Path) -> Manifest:
    path = checkpoint / "manifest" / "metadata"
    try:
        values = json.loads(path.read_text())
        options = Options.from_json(values.pop("options"), origin=str(path))
        return Manifest(options=options, **values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(checkpoint, error) from None


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0][:200]


def damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: the checkpoint is damaged ({first_line(error)}): delete this folder to use the one before"
    )
