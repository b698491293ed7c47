"""Run train.py or sample.py in a container at Modal, on the Volume that keeps runs and data.

    /vol/runs/<run name>/      a run's out_dir
    /vol/data/<data set>/      a data set, prepared by the first run that needs it

The next container sees only those files that were committed to the Volume, which Modal does by itself every
few seconds. An attempt may end early, because the machine is taken away, its time is up, or the kernel kills
the run. Then Modal starts another attempt with the same arguments, and train.py goes on from the last
checkpoint.
"""

import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import modal

from cloud import MOUNTED, VOLUME
from cloud.supervise import ROOT, run_script
from config.command_line import UserError
from config.files import write_whole
from config.options import NOT_RESUMED, parse_options, read_options
from data.loader import is_prepared
from runs.load import shape_of_weights

GRACE = 120  # seconds before the end of an attempt, when a run is told to save a checkpoint and stop
STOPPED = 143  # status of train.py when SIGTERM has stopped it before max_iters, its checkpoint saved
PORT = 1234  # port at which the processes of a cluster meet
RESUME = ("--init_from=resume", "--init_from=auto")
AGAIN = "the next attempt, or the same command, goes on from the last checkpoint"


def run_in_container(
    script: str,
    words: list[str],
    run_name: str,
    seconds: float,
    nodes: int,
    launch: str,
    sample: list[str] | None,
) -> int:
    """Run a script with the options `words`, for `seconds` at most. Return its exit status.

    All attempts of one launch have its name, `launch`. After training, sample.py runs with the options
    `sample`, if there are any.

    Modal starts another attempt after an exception. So a run that was killed or stopped, or whose time is up,
    raises ChildProcessError, but a failure of the script itself, which would only repeat, is returned as its
    status.
    """
    end = time.monotonic() + seconds - min(GRACE, seconds / 4)
    volume = modal.Volume.from_name(VOLUME)
    volume.reload()  # what other containers have committed since this one began
    folder = MOUNTED / "runs" / run_name
    words = [*words, f"--out_dir={folder}"]
    if script == "train.py":
        folder.mkdir(parents=True, exist_ok=True)
        try:
            words += resume_options(folder, words, launch) + cluster_options(nodes)
            options = parse_options(words, shape_of_weights)
            words.append(f"--dataset={prepare_on_volume(options.dataset)}")
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    # The script runs in the run's folder, so that files at relative paths are kept as well.
    cwd = folder if folder.is_dir() else ROOT
    status, stop = run_script(script, words, cwd, end - time.monotonic())
    if status == 0 and sample is not None:
        run_script("sample.py", [f"--out_dir={folder}", *sample])
    commit(volume)
    if status == 0:
        return 0
    if stop == "interrupt":
        raise KeyboardInterrupt  # the machine is taken away, or the user stops the run
    if stop == "time":
        raise ChildProcessError(f"its time is up: {AGAIN}")
    # When one process of a cluster is told to stop, all end with STOPPED; when one is killed, all end with 1.
    if status < 0 or status == STOPPED or (status == 1 and nodes > 1):
        raise ChildProcessError(f"{script} was killed or stopped (status {status}): {AGAIN}")
    return status


def resume_options(folder: Path, words: list[str], launch: str) -> list[str]:
    """Return the option that resumes a run from its last checkpoint, if it has one.

    Without a checkpoint the user's own init_from holds, which may name the weights to start from. A launch
    that is not the one before, and would change what the run in the folder is, raises UserError, unless it
    asks for that by --init_from=resume.
    """
    found = any(path.name.isdigit() for path in (folder / "checkpoints").glob("*"))
    before = folder / "launch.txt"
    again = before.exists() and before.read_text() == launch
    if found and not again and not any(word in RESUME for word in words):
        check_unchanged(folder, words)
    write_whole(before, launch)
    return ["--init_from=auto"] if found else []


def check_unchanged(folder: Path, words: list[str]) -> None:
    """Raise UserError for options other than those that the run in the folder has."""
    ours, theirs = parse_options(words, shape_of_weights), read_options(str(folder / "options.json"))
    for name, value in theirs.to_json().items():
        new = getattr(ours, name)
        same = Path(str(value)).name == Path(str(new)).name if name == "dataset" else value == new
        if name not in NOT_RESUMED and not same:
            raise UserError(
                f"runs/{folder.name} holds a run with {name}={value}, and this launch has {name}={new}: "
                "go on with --init_from=resume, which changes it, or choose another --run-name"
            )


def cluster_options(nodes: int) -> list[str]:
    """Return the options that tell this machine of a cluster where the others are."""
    if nodes == 1:
        return []
    cluster = modal.Cluster.from_context()
    return [
        f"--coordinator=[{cluster.container_ips()[0]}]:{PORT}",  # an IPv6 address
        f"--num_processes={nodes}",
        f"--process_id={cluster.container_rank()}",
    ]


def prepare_on_volume(dataset: str) -> Path:
    """Prepare a data set of this project on the Volume if it is not there yet. Return its folder.

    train.py leaves a large data set to its user, who cannot run prepare.py on the Volume. Raises UserError
    when prepare.py fails.
    """
    name = Path(dataset).name  # a resumed run's options.json has the whole path
    if name in ("", ".."):
        raise UserError(f"dataset={dataset}: expected the name of a folder in the Volume's data/")
    folder = MOUNTED / "data" / name
    if (ROOT / "data" / name / "prepare.py").is_file():  # no other script is run: anybody may have written it
        shutil.copytree(ROOT / "data" / name, folder, dirs_exist_ok=True)
        if not is_prepared(folder):
            status, stop = run_script(str(folder / "prepare.py"), [])
            if stop:
                raise KeyboardInterrupt
            if status:
                raise UserError(f"dataset={name}: its prepare.py ended with status {status}, see above")
    return folder


def commit(volume: modal.Volume) -> None:
    """Commit the Volume now; where that cannot be, Modal does it when the container ends."""
    with suppress(RuntimeError, modal.exception.Error):
        volume.commit()
