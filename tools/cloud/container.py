"""Run a job in a container at Modal, on the Volume that keeps runs and data.

    /vol/runs/<run name>/      a run's out_dir
    /vol/data/<data set>/      a data set
    /vol/cache/                what was downloaded or compiled: models, tokenizers, JAX's programs

The next container sees only those files that were committed to the Volume, which Modal does by itself every
few seconds. An attempt may end early, because the machine is taken away, its time is up, or the kernel kills
the run. Then Modal starts another attempt with the same arguments, and train.py goes on from the last
checkpoint.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import modal

from config.command_line import UserError
from data.loader import is_prepared
from tools.cloud import MOUNTED, SERVER_PORT, SERVER_WORDS, VOLUME
from tools.cloud.claims import begin, release
from tools.cloud.commands import SAMPLE, Job, run_job
from tools.cloud.options import LaunchOptions
from tools.cloud.supervise import ROOT, Stop, run_script

GRACE = 120  # seconds before the end of an attempt, when a run is told to save a checkpoint and stop
STOPPED = 143  # status of train.py when SIGTERM has stopped it before max_iters, its checkpoint saved
PORT = 1234  # port at which the processes of a cluster meet
AGAIN = "the next attempt, or the same command, goes on from the last checkpoint"


def run_in_container(job: Job, options: LaunchOptions, launch: str | None) -> int:
    """Run a job. Return the exit status of its script.

    A run is trained by the `launch` that has its name, or not at all.

    Modal starts another attempt after an exception. So a script that was killed or stopped, or whose time is
    up, raises ChildProcessError, but a failure of the script itself, which would only repeat, is returned as
    its status.
    """
    seconds = options.timeout_hours * 3600
    end = time.monotonic() + seconds - min(GRACE, seconds / 4)
    volume = modal.Volume.from_name(VOLUME)
    volume.reload()  # what other containers have committed since this one began
    if options.nodes > 1 and modal.Cluster.from_context().container_rank() > 0:
        launch = None  # the first of its machines has the name for all
    if launch:
        try:
            begin(job.run_name, launch, attempts=1 + options.retries)
        except UserError as error:
            print(f"error: {error}", flush=True)
            release(job.run_name, launch)
            return STOPPED
    if job.command == "prepare":
        status, stop = prepare(MOUNTED / "data" / job.run_name, job.words, end - time.monotonic())
    else:
        folder = MOUNTED / "runs" / job.run_name
        folder.mkdir(parents=True, exist_ok=True)
        if job.command == "train":
            more = resume_options(folder) + cluster_options(options.nodes)
            job = replace(job, words=job.words + more)
        if job.command == "export":  # of an earlier checkpoint: what is written has to be new
            shutil.rmtree(folder / "export", ignore_errors=True)
        # The script runs in the run's folder, so that files at relative paths are kept as well.
        status, stop = run_job(job, folder, folder, end - time.monotonic())
        if status == 0 and job.sample:
            run_script("sample.py", [f"--out_dir={folder}", *SAMPLE])
    commit(volume)
    if status and stop == "interrupt":
        raise KeyboardInterrupt  # the machine is taken away, or the user stops the run
    if status and stop == "time":
        raise ChildProcessError(f"its time is up: {AGAIN}")
    # When one process of a cluster is told to stop, all end with STOPPED; when one is killed, all end with 1.
    if status < 0 or status == STOPPED or (status == 1 and options.nodes > 1):
        raise ChildProcessError(f"{job.command} was killed or stopped (status {status}): {AGAIN}")
    if launch:
        release(job.run_name, launch)
    return status


def resume_options(folder: Path) -> list[str]:
    """Return the option that resumes a run from its last checkpoint, if it has one.

    Without a checkpoint the user's own init_from holds, which may name the weights to start from.
    """
    found = any(path.name.isdigit() for path in (folder / "checkpoints").glob("*"))
    found = found or (folder / "damaged").exists()  # auto refuses to begin anew beside these
    return ["--init_from=auto"] if found else []


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


def prepare(folder: Path, words: list[str], seconds: float) -> tuple[int, Stop | None]:
    """Prepare a data set in a folder of the Volume, unless it is there. Return as `run_script` does."""
    if is_prepared(folder):  # by another launch meanwhile, or by an attempt before this one
        return 0, None
    ours = ROOT / "data" / folder.name  # no other script is run: anybody may have written it
    if (ours / "prepare.py").is_file():  # it writes beside itself
        shutil.copytree(ours, folder, dirs_exist_ok=True)
        return run_script(str(folder / "prepare.py"), words, seconds=seconds)
    return run_script("data/prepare.py", [*words, f"--to={folder}"], seconds=seconds)


def commit(volume: modal.Volume) -> None:
    """Commit the Volume now; where that cannot be, Modal does it when the container ends."""
    with suppress(RuntimeError, modal.exception.Error):
        volume.commit()


def serve_in_container() -> None:
    """Start serve.py, to whose port Modal then passes what is asked of the endpoint."""
    words = json.loads(os.environ[SERVER_WORDS])
    subprocess.Popen([sys.executable, str(ROOT / "serve.py"), *words, f"--port={SERVER_PORT}"], cwd=ROOT)
