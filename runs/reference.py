"""Is this loss normal? Reference runs, and published figures, of configs.

This module alone knows the form of the files in config/reference/: `python -m experiments.reference` writes
them, and train.py finds that of a run with the same data and the same options that matter to the loss.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from config.files import read_json, write_whole
from config.options import FREE, RESUMING, Options
from data.dataset import dataset_dir

FOLDER = Path(__file__).resolve().parents[1] / "config" / "reference"


@dataclass(frozen=True)
class Reference:
    """What the runs of a config come to: here, as published, or both."""

    config: str
    options: dict[str, Any]  # that matter and differ from train.py's defaults
    data: dict[str, Any] = field(default_factory=dict)  # as `data_of` returns it; empty: not known
    runs: dict[str, list[list[float]]] = field(default_factory=dict)  # by seed: (iteration, validation loss)
    within: float = 0.0  # 19 of 20 more runs end this near to the mean
    made: str = ""  # how and where the runs were made
    published: dict[str, Any] = field(default_factory=dict)  # a `loss`, `whose` it is, and its `source`

    def write(self, path: Path) -> None:
        known = {name: value for name, value in vars(self).items() if value or name == "options"}
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in known.items()]
        write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n", "make room there")

    def band(self) -> np.ndarray:
        """Return (iteration, mean, standard deviation) of the losses of each evaluation."""
        steps, losses = np.array(list(self.runs.values())).transpose(2, 1, 0)  # (evaluations, runs) each
        return np.stack([steps[:, 0], losses.mean(1), losses.std(1, ddof=1)], axis=1)

    def draw(self, axes: Any) -> None:
        """Draw the mean, a band of one standard deviation, and what was published."""
        if self.runs:
            steps, mean, spread = self.band().T
            label = f"val of {len(self.runs)} reference runs"
            axes.plot(steps, mean, color="gray", lw=1, zorder=1, label=label)
            axes.fill_between(steps, mean - spread, mean + spread, color="gray", alpha=0.3, lw=0, zorder=1)
        if self.published:
            loss = self.published["loss"]
            axes.axhline(loss, color="gray", ls=":", lw=1, label=f"published: {loss}")

    def verdict(self, loss: float) -> str:
        """Say where the validation loss at the end of a run lies."""
        parts = [f"val loss {loss:.4f}"]
        if self.runs:
            _, mean, spread = self.band()[-1]
            side = "higher than normal" if loss > mean else "lower than normal"
            where = "normal" if abs(loss - mean) <= self.within else side
            parts.append(
                f"{len(self.runs)} reference runs: {mean:.4f} ± {spread:.4f}: {where} "
                f"(19 of 20 seeds end within ± {self.within:.4f})"
            )
        if self.published:
            parts.append("published, not measured here: {loss} ({whose}; {source})".format(**self.published))
        return "; ".join(parts)


def references() -> list[Reference]:
    return [Reference(**read_json(path)) for path in sorted(FOLDER.glob("*.json"))]


def find_reference(options: Options) -> Reference | None:
    if options.init_from not in ("scratch", *RESUMING):
        return None
    ours = mattering(options.to_json())
    sums = data_of(options.dataset).get("sha256")
    same = (x for x in references() if x.options == ours and x.data.get("sha256", sums) == sums)
    return next(same, None)


def data_of(dataset: str) -> dict[str, Any]:
    """Return `sha256` and `source` of a data set; nothing of one without meta.json, such as nanoGPT's."""
    try:
        meta = read_json(dataset_dir(dataset) / "meta.json")
        return {name: meta[name] for name in ("sha256", "source")}
    except (ValueError, KeyError):
        return {}


def mattering(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options that matter to the loss and are not the defaults."""
    return {name: x for name, x in values.items() if name not in FREE and x != getattr(Options, name)}
