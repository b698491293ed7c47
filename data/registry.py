"""Find a data set by its name or path, and prepare a small one that is missing."""

import difflib
import importlib.util
import os
import re
from pathlib import Path

from config.command_line import UserError

DATA = Path(__file__).resolve().parent


def dataset_dir(dataset: str) -> Path:
    """Return the folder of a data set, which is a name under this repository's data/, or else a path.

    A data set in the folder that NANOJAXGPT_DATA names, such as a shared disk, comes first. It may not exist.
    """
    if (kept := os.environ.get("NANOJAXGPT_DATA")) and os.path.isdir(Path(kept) / dataset):
        return Path(kept) / dataset
    named = DATA / dataset
    path = Path(os.path.expanduser(dataset))
    return path if os.path.isdir(path) and not os.path.isdir(named) else named


def prepare_if_missing(dataset: str) -> None:
    """Prepare a small data set that has no train.bin yet, and print that it is prepared.

    The name may come from another's checkpoint, so only a script of this project is run. Raises UserError
    when the data set is unknown or too large to prepare unasked, or its script is not below DATA.
    """
    folder = dataset_dir(dataset)
    script = folder / "prepare.py"
    if is_prepared(folder):
        return
    if not os.path.isdir(folder):
        known = known_datasets()
        nearest = difflib.get_close_matches(dataset, known, n=1)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        problem = f"no such data set; {hint}there are {', '.join(known)}, or give a path"
    elif not script.exists():
        problem = f"{folder} has neither train.bin nor prepare.py: give a folder with train.bin"
    elif not script.resolve().is_relative_to(DATA.resolve()):
        problem = (
            f"{folder / 'train.bin'} is missing, and no script outside of {DATA} is run unasked: "
            f"if you trust it, run `python {script}` first"
        )
    elif not is_small(dataset):
        problem = f"{folder / 'train.bin'} is missing: run `python {script}` first"
    else:
        print(f"{folder / 'train.bin'} is missing: running {script}")
        spec = importlib.util.spec_from_file_location("prepare", script)
        assert spec is not None and spec.loader is not None, "its name ends in .py"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.prepare(folder)
    raise UserError(f"dataset={dataset}: {problem}")


def known_datasets() -> list[str]:
    """Return the names of the data sets below data/, prepared or not."""
    return sorted(path.name for path in DATA.iterdir() if (path / "prepare.py").exists() or is_prepared(path))


def is_small(dataset: str) -> bool:
    """Tell whether a data set with a prepare.py is one that train.py prepares by itself."""
    # SMALL is read from the text: running an unknown prepare.py to look at it might start a large download.
    text = (dataset_dir(dataset) / "prepare.py").read_text(encoding="utf-8")
    return re.search(r"^SMALL = True\b", text, re.MULTILINE) is not None


def is_prepared(folder: Path) -> bool:
    """Tell whether the folder has the tokens of a data set."""
    return any(os.path.exists(folder / name) for name in ("train.bin", "train_00000.bin"))
