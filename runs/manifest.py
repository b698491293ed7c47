"""The manifest of a checkpoint: what it holds besides arrays. Reading it needs no devices."""

import json
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from config.command_line import UserError, spell
from config.files import first_line, is_number, is_whole, read_json, reading, write_whole
from config.options import LORA, SHAPE, Options
from data.tokenizer import check_description
from parallel.hosts import on_process_0

# 2: queries, keys, values and the MLP's gate are arrays of their own. Before 2, manifests had no number.
# 3: checksums of the arrays and of the manifest itself.
FORMAT = 3


class Damaged(UserError):
    """A checkpoint is not what was saved; `what` says which and why."""

    def __init__(self, checkpoint: Path, why: str):
        self.what = f"{checkpoint}: the checkpoint is damaged ({why})"
        super().__init__(f"{self.what}: move this folder away to use the one before")


@dataclass(frozen=True)
class Manifest:
    """The options of a run, its vocabulary, and what a resumed run needs to know."""

    options: Options
    vocab_size: int
    tokenizer: dict | None  # for data.tokenizer.from_json
    best_val_loss: float | None  # the lowest so far; None before the first evaluation
    base: dict[str, str] | None = None  # beside adapters: the base model's `init_from` and `fingerprint`
    checksums: dict[str, dict[str, int]] | None = field(default=None, compare=False)  # of the saved arrays

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, with a checksum of them all."""
        values = {"format": FORMAT} | vars(self) | {"options": self.options.to_json()}
        return values | {"checksum": checksum_of_json(values)}

    def after_evaluation(self, val_loss: float) -> tuple["Manifest", bool]:
        """Return the manifest after an evaluation, and whether that was the best so far."""
        improved = self.best_val_loss is None or val_loss < self.best_val_loss
        return replace(self, best_val_loss=val_loss) if improved else self, improved

    def resuming_from(self, saved: "Manifest", path: Path) -> "Manifest":
        """Return the manifest of this run when it resumes from the checkpoint at `path`.

        Raises UserError when this run's options or vocabulary contradict those.
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
        if self.tokenizer != saved.tokenizer:
            raise UserError(
                f"dataset={self.options.dataset} has another vocabulary than the checkpoint {path}: "
                "give the data set that it was trained on, or train anew in another --out_dir"
            )
        if self.vocab_size != saved.vocab_size:
            raise UserError(
                f"vocab_size={self.vocab_size}, but the checkpoint {path} has vocab_size={saved.vocab_size}: "
                "give the same, or train anew in another --out_dir"
            )


def write_options(options: Options) -> None:
    """Write a run's options.json, by process 0."""
    text = json.dumps(options.to_json(), indent=1) + "\n"
    on_process_0(write_whole, Path(options.out_dir) / "options.json", text)


def latest_manifest(out_dir: str) -> Manifest:
    """Read the manifest of a run's newest checkpoint. Raises UserError."""
    folder = Path(out_dir).resolve() / "checkpoints"
    while saved := iterations_in(folder):
        newest = folder / str(max(saved))
        try:
            return read_manifest(newest)
        except Damaged:
            if newest.exists():  # or else a run has replaced it by a newer one just now
                raise
    raise UserError(f"{folder}: no checkpoint there to start from")


def iterations_in(folder: Path) -> list[int]:
    """Return the iterations of the checkpoints in a folder, from their names. Raises UserError."""
    with reading(folder):
        return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]


def read_manifest(checkpoint: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises Damaged, or UserError for a read error or another format."""
    path = checkpoint / "manifest" / "metadata"
    try:
        values = dict(read_json(path))
        if (written := values.get("format", 1)) != FORMAT:
            raise UserError(
                f"{checkpoint}: its manifest has format {spell(written)}, and this version reads {FORMAT} "
                "only: train anew in another --out_dir, or use the version of nanoJAXGPT that wrote it"
            )
        if values.get("checksum") != checksum_of_json(values):
            raise ValueError("its manifest is not what was saved")
        return parse_manifest(values, path)
    except (ValueError, TypeError) as error:
        raise Damaged(checkpoint, first_line(error)) from None


def parse_manifest(values: dict[str, Any], path: Path) -> Manifest:
    """Return the manifest that `to_json` made these values of. Raises ValueError, or UserError."""
    match values:
        case {
            "options": options,
            "vocab_size": vocab_size,
            "tokenizer": tokenizer,
            "best_val_loss": best,
            "base": {"init_from": str(), "fingerprint": str()} | None as base,
            "checksums": {"model": dict(), "optimizer": dict()} as checksums,
        } if is_whole(vocab_size) and vocab_size > 0 and (best is None or is_number(best)):
            options = Options.from_json(options, origin=str(path))
            return Manifest(options, vocab_size, check_description(tokenizer), best, base, checksums)
    raise ValueError("an entry of its manifest is missing, or is not what this version writes")


def checksum_of_json(values: dict[str, Any]) -> int:
    """Return a checksum of all these values but the `checksum` that they may have."""
    counted = {name: value for name, value in values.items() if name != "checksum"}
    return zlib.crc32(json.dumps(counted, sort_keys=True).encode())
