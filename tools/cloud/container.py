"""Run a job in a container at Modal, on the Volume: runs/ has each run's out_dir, data/ and cache/ the rest.

The next container sees what was committed to the Volume, which Modal does every few seconds.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace

from config.command_line import UserError
from data.dataset import is_prepared
from tools.cloud import MOUNTED, SERVER_PORT, SERVER_WORDS, VOLUME
from tools.cloud.claims import begin, release
from tools.cloud.jobs import Job, prepare, prepares_itself, resume_options, run_job
from tools.cloud.options import LaunchOptions
from tools.cloud.places import modal
from tools.cloud.supervise import ROOT

GRACE = 120  # seconds that a run has to save a checkpoint before its time is up
STOPPED = 143  # status of train.py after SIGTERM
PORT = 1234  # of process 0 of a cluster
AGAIN = "the next attempt, or the same command, goes on from the last checkpoint"


def run_in_container(job: Job, options: LaunchOptions, launch: str | None) -> int:
    """Run a job, for the `launch` that has its run's name. Return the exit status of its script.

    Modal starts another attempt after an exception, such as ChildProcessError for a script that was killed or
    stopped, or whose time is up. A failure of the script itself would repeat, so its status is returned.
    """
    seconds = options.timeout_hours * 3600
    end = time.monotonic() + seconds - min(GRACE, seconds / 4)
    volume = modal.Volume.from_name(VOLUME)
    volume.reload()  # what other containers have committed since this one began
    if options.nodes > 1 and modal.Cluster.from_context().container_rank() > 0:
        launch = None  # the first machine has the name
    try:
        if launch:
            begin(job.run_name, launch, 1 + options.retries)
    except UserError as error:
        print(f"error: {error}", flush=True)
        return STOPPED
    status, stop = 0, None
    preparing = job.command == "prepare"
    data = MOUNTED / "data" / (job.run_name if preparing else job.dataset or "")
    if not is_prepared(data) and (preparing or (job.dataset and prepares_itself(job.dataset))):
        status, stop = prepare(data, job.words if preparing else [], end - time.monotonic())
    if status == 0 and not preparing:
        folder = MOUNTED / "runs" / job.run_name
        folder.mkdir(parents=True, exist_ok=True)
        if job.command == "train":
            more = resume_options(folder) + cluster_options(options.nodes)
            job = replace(job, words=job.words + more)
        if job.command == "export":  # export.py writes into a new folder
            shutil.rmtree(folder / "export", ignore_errors=True)
        status, stop = run_job(job, folder, folder, end - time.monotonic())
    with suppress(RuntimeError, modal.exception.Error):  # Modal will commit
        volume.commit()
    if status and stop == "interrupt":
        raise KeyboardInterrupt
    if status and stop == "time":
        raise ChildProcessError(f"its time is up: {AGAIN}")
    # When one process of a cluster is killed, all others end with 1.
    if status < 0 or status == STOPPED or (status == 1 and options.nodes > 1):
        raise ChildProcessError(f"{job.command} was killed or stopped (status {status}): {AGAIN}")
    if launch:
        release(job.run_name, launch)
    return status


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


def serve_in_container() -> None:
    """Start serve.py; Modal passes requests for the endpoint on to its port."""
    words = json.loads(os.environ[SERVER_WORDS])
    subprocess.Popen([sys.executable, str(ROOT / "serve.py"), *words, f"--port={SERVER_PORT}"], cwd=ROOT)
