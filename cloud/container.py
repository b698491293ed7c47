"""What runs in a container at Modal: train.py or sample.py on the Volume that keeps runs and data.

    /vol/runs/<run name>/      a run's out_dir
    /vol/data/<data set>/      a data set, prepared by the first run that needs it

What a container writes there reaches the next one only by a commit of the Volume, so it is committed all the
time. An attempt may end early: the machine is taken away, its time is up, or the kernel kills the run. Then
Modal starts another one with the same arguments, and train.py goes on from the last checkpoint.
"""

import shutil
import sys
import time
from pathlib import Path

import modal

from cloud import MOUNTED, VOLUME
from cloud.supervise import ROOT, run
from config.command_line import UserError
from config.options import parse_options
from data.loader import is_prepared
from runs.load import shape_of_weights

GRACE = 120  # seconds before the time is up at which a run is told to save a checkpoint and end
PORT = 1234  # at which the processes of a cluster meet
AGAIN = "the next attempt, or the same command, goes on from the last checkpoint"


def on_modal(script: str, words: list[str], run_name: str, seconds: float, nodes: int) -> int:
    """Run a script with the options `words`, for `seconds` at most. Returns its exit status.

    Modal repeats what raises: a run that was killed, or whose time is up, raises ChildProcessError. A failure
    of the script's own, which would only be repeated, is returned.
    """
    end = time.monotonic() + seconds - min(GRACE, seconds / 4)
    volume = modal.Volume.from_name(VOLUME)
    folder = MOUNTED / "runs" / run_name
    words = [*words, f"--out_dir={folder}"]
    if script == "train.py":
        folder.mkdir(parents=True, exist_ok=True)
        try:
            words += resumed(folder) + cluster_options(nodes)
            words.append(f"--dataset={prepared(parse_options(words, shape_of_weights).dataset)}")
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    # In the run's folder, so that what is written to a relative path is kept as well.
    cwd = folder if folder.is_dir() else ROOT
    status, stop = run(script, words, cwd, end - time.monotonic(), meanwhile=lambda: commit(volume))
    volume.commit()
    if stop == "interrupt":
        raise KeyboardInterrupt  # the machine is taken away, and Modal finds another; or the run is stopped
    if stop == "time":
        raise ChildProcessError(f"its time is up: {AGAIN}")
    if status < 0 or (status == 1 and nodes > 1):  # 1 is also what the others say when one is killed
        raise ChildProcessError(f"{script} was killed (status {status}): {AGAIN}")
    return status


def resumed(folder: Path) -> list[str]:
    """The option that has a run go on from its last checkpoint, if there is one.

    Without a checkpoint the user's own init_from stands: it may say where the first weights are from.
    """
    found = any(path.name.isdigit() for path in (folder / "checkpoints").glob("*"))
    return ["--init_from=auto"] if found else []


def cluster_options(nodes: int) -> list[str]:
    """The options that tell this machine of a cluster where the others are."""
    if nodes == 1:
        return []
    cluster = modal.Cluster.from_context()
    return [
        f"--coordinator=[{cluster.container_ips()[0]}]:{PORT}",  # an IPv6 address
        f"--num_processes={nodes}",
        f"--process_id={cluster.container_rank()}",
    ]


def prepared(dataset: str) -> Path:
    """The folder of a data set in the Volume, prepared there if it is not yet and this project knows how.

    train.py would leave a large one to its user, who cannot run prepare.py where it has to run.
    """
    name = Path(dataset).name  # of a run that goes on: its options.json has the folder
    folder = MOUNTED / "data" / name
    if (ROOT / "data" / name).is_dir():
        shutil.copytree(ROOT / "data" / name, folder, dirs_exist_ok=True)
    script = folder / "prepare.py"
    if script.exists() and not is_prepared(folder):
        status, stop = run(str(script), [])
        if stop:
            raise KeyboardInterrupt
        if status:
            raise UserError(f"dataset={name}: its prepare.py ended with status {status}, see above")
    return folder


def commit(volume: modal.Volume) -> None:
    """Commit the Volume while a run goes on. A failure is not worth the run: there is a next time."""
    try:
        volume.commit()
    except (RuntimeError, modal.exception.Error) as error:
        print(f"note: the Volume was not committed: {error}", file=sys.stderr)
