"""Is this loss normal? Reference runs and published figures of configs in this repository.

config/reference/ has a file for each such config, written by `python -m experiments.reference`. A run has a
reference when its data and all options that matter to the loss are the same.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import jax
import numpy as np

from config.command_line import UserError
from config.files import HOLDS_TOKENIZER, read_json
from config.options import FREE, RESUMING, Options
from data.dataset import dataset_dir

FOLDER = Path(__file__).resolve().parents[1] / "config" / "reference"


@dataclass(frozen=True)
class Reference:
    """Reference runs, a published figure, or both, with which a config's run is compared."""

    config: str
    options: dict[str, Any]  # that matter and differ from train.py's defaults
    data: dict[str, Any] | None = None  # `sha256` of both splits, and their `source`; None: not known
    runs: dict[str, list[list[float]]] | None = None  # by seed: (iteration, validation loss)
    within: float | None = None  # of 20 more runs, 19 would end this near to the mean
    made: str | None = None  # how and where the runs were made
    published: dict[str, Any] | None = None  # a `loss`, `whose` it is, and its `source`

    def band(self) -> tuple[list[float], list[float], list[float]]:
        """Return iterations, and the mean and the standard deviation of the losses there."""
        steps, *_ = zip(*next(iter((self.runs or {}).values())), strict=True)
        losses = [[loss for _, loss in found] for found in zip(*(self.runs or {}).values(), strict=True)]
        return list(steps), [fmean(found) for found in losses], [stdev(found) for found in losses]

    def draw(self, axes: Any) -> None:
        """Draw the mean, a band of one standard deviation, and what was published."""
        if self.runs:
            steps, mean, spread = map(np.array, self.band())
            label = f"val of {len(self.runs)} reference runs"
            axes.plot(steps, mean, color="gray", lw=1, zorder=1, label=label)
            axes.fill_between(steps, mean - spread, mean + spread, color="gray", alpha=0.3, lw=0, zorder=1)
        if self.published:
            loss = self.published["loss"]
            axes.axhline(loss, color="gray", ls=":", lw=1, label=f"published: {loss}")

    def verdict(self, loss: float) -> str:
        """Say where the validation loss at the end of a run lies."""
        parts = [f"val loss {loss:.4f}"]
        if self.runs and self.within is not None:
            _, means, spreads = self.band()
            off = loss - means[-1]
            where = "normal" if abs(off) <= self.within else f"{'higher' if off > 0 else 'lower'} than normal"
            parts.append(
                f"{len(self.runs)} reference runs: {means[-1]:.4f} ± {spreads[-1]:.4f}: {where} "
                f"(19 of 20 seeds end within ± {self.within:.4f})"
            )
        if self.published:
            parts.append("published, not measured here: {loss} ({whose}; {source})".format(**self.published))
        return "; ".join(parts)


def find_reference(options: Options) -> Reference | None:
    """Return the reference of a run, if it has one. Raises UserError."""
    if jax.process_index() > 0 or options.init_from not in ("scratch", *RESUMING):
        return None
    ours = mattering(options.to_json())
    try:
        checksums = read_json(dataset_dir(options.dataset) / "meta.json", HOLDS_TOKENIZER)["sha256"]
    except (ValueError, TypeError, KeyError):  # nanoGPT's own preparation writes no such file
        checksums = None
    for found in references():
        if found.options == ours and (found.data is None or found.data["sha256"] == checksums):
            return found
    return None


def references() -> list[Reference]:
    """Read all references of the repository. Raises UserError."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        try:
            found.append(Reference(**read_json(path)))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: cannot be read ({error}): git checkout restores it") from None
    return found


def mattering(values: dict[str, Any]) -> dict[str, Any]:
    """Return those of the options that matter to the loss, and are not the defaults."""
    return {name: x for name, x in values.items() if name not in FREE and x != getattr(Options, name)}
