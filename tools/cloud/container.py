"""Run a job in a container at Modal, which commits its Volume now and then."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace

import modal

from common.errors import UserError
from data.dataset import SMALL_DATASETS, is_prepared
from tools.cloud import MOUNTED, VOLUME
from tools.cloud.jobs import ROOT, Job, LaunchOptions, prepare, resume_options, run_job

GRACE = 120  # seconds that a run has to save a checkpoint before its time is up
SERVER_PORT = 8000  # at which serve.py listens
SERVER_WORDS = "NANOJAXGPT_SERVE"  # environment variable with its options, as JSON
AGAIN = "the next attempt, or the same command, goes on from the last checkpoint"


def run_in_container(job: Job, options: LaunchOptions) -> int:
    """Run a job. Return the exit status of its script.

    After an exception Modal starts another attempt: for a script that was killed or stopped, or whose time is
    up. A failure of its own would repeat.
    """
    seconds = options.timeout_hours * 3600
    end = time.monotonic() + seconds - min(GRACE, seconds / 4)
    volume = modal.Volume.from_name(VOLUME)
    volume.reload()
    if job.command == "prepare" and is_prepared(job.folder):
        print(f"data/{job.name} is prepared", flush=True)
        return 0
    if job.command == "train":
        try:
            claim(job.name, modal.current_function_call_id())
        except UserError as error:
            print(f"error: {error}", flush=True)
            return 2
    status, stop = 0, None
    data = MOUNTED / "data" / (job.dataset or "")
    if job.dataset in SMALL_DATASETS and not is_prepared(data):
        status, stop = prepare(data, [], end - time.monotonic())
    if status == 0:
        job.folder.mkdir(parents=True, exist_ok=True)
        os.chdir(job.folder)
        if job.command == "train":
            job = replace(job, words=[*job.words, *resume_options(job.folder)])
        if job.command == "export":  # export.py writes into a new folder
            shutil.rmtree("export", ignore_errors=True)
        status, stop = run_job(job, end - time.monotonic())
        os.chdir(ROOT)  # Modal reloads no Volume that is in use
    with suppress(RuntimeError, modal.exception.Error):  # Modal will commit
        volume.commit()
    if status and stop == "interrupt":
        raise KeyboardInterrupt
    if status and stop == "time":
        raise ChildProcessError(f"its time is up: {AGAIN}")
    if status < 0 or status == 143:  # train.py's after SIGTERM
        raise ChildProcessError(f"{job.command} was killed or stopped (status {status}): {AGAIN}")
    return status


def claim(name: str, ours: str | None = None) -> None:
    """Claim a run for the call `ours`; None: only look. Raises UserError while another call trains it.

    A Dict at Modal chains a run's calls: the first under its name, the next under the one before.
    """
    calls, key = open_calls(), name
    while (owner := calls.get(key)) != ours:
        if owner is None:
            calls.put(key, ours, skip_if_exists=True)
        elif calls.get(f"end of {owner}") or has_ended(owner):
            key = f"{name} after {owner}"
        else:
            raise UserError(
                f"runs/{name} is trained by another launch, which modal run app.py::watch --run-name={name} "
                "shows: choose another --run-name, or, if `modal app list` shows that its App is gone, "
                f"modal dict clear {VOLUME}"
            )


def open_calls() -> modal.Dict:
    return modal.Dict.from_name(VOLUME, create_if_missing=True)


def has_ended(call: str) -> bool:
    theirs = modal.exception
    try:
        return modal.FunctionCall.from_id(call).get(timeout=0) is not None
    except TimeoutError:  # Python's own: there is no outcome yet
        return False
    except (ChildProcessError, theirs.RemoteError, theirs.TimeoutError, theirs.NotFoundError):
        return True  # it failed, was cancelled, or is forgotten


def serve_in_container() -> None:
    """Start serve.py; Modal passes requests on to its port."""
    words = json.loads(os.environ[SERVER_WORDS])
    subprocess.Popen([sys.executable, str(ROOT / "serve.py"), *words, f"--port={SERVER_PORT}"], cwd=ROOT)
