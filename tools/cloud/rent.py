"""Run jobs on machines at Modal, in an App for each launch."""

import json
import math
import secrets
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import modal

from common.errors import UserError
from data.dataset import SMALL_DATASETS
from tools.cloud import MOUNTED, VOLUME, container
from tools.cloud.jobs import BURST, COMMANDS, PRICES_READ, ROOT, Job, LaunchOptions, machine_of
from tools.cloud.places import Runs, fetch

ENVIRONMENT = {
    "NANOJAXGPT_DATA": f"{MOUNTED}/data",
    "XDG_CACHE_HOME": f"{MOUNTED}/cache",  # for compiled programs, and the hub's files
    "TIKTOKEN_CACHE_DIR": f"{MOUNTED}/cache/tiktoken",
}
START = 600  # seconds that loading and compiling may take


def announce(jobs: list[Job], options: LaunchOptions) -> bool:
    """Say what jobs can cost. Return whether to rent: not in a dry run. Raises UserError."""
    machine = machine_of(options)
    attempts = 1 + options.retries
    dollars = len(jobs) * attempts * options.timeout_hours * machine.dollars
    times = "".join(f"{n} {what} x " for n, what in ((len(jobs), "runs"), (attempts, "attempts")) if n > 1)
    print(
        f"costs at most ${dollars:,.2f}: {times}{options.timeout_hours:g} h x ${machine.dollars:.2f} "
        f"({options.gpu}, {machine.cores} cores, {machine.gib} GiB; prices of {PRICES_READ}), "
        "beside restarts when Modal takes a machine away: a budget at Modal is a ceiling"
    )
    if options.dry_run:
        for job in jobs:
            print(f"{job.command} {job.name}: {' '.join([COMMANDS[job.command].script, *job.words])}")
    elif dollars > options.max_dollars:
        raise UserError(
            f"that is above --max-dollars={options.max_dollars:g}: give --max-dollars={math.ceil(dollars)}, "
            "or fewer --timeout-hours or --retries"
        )
    return not options.dry_run


def rent(name: str, jobs: list[Job], options: LaunchOptions) -> list[int]:
    """Run each job on a machine of its own. Return their statuses. Raises UserError."""
    runs = Runs(remote=True)
    for job in jobs:
        check_job(runs, job)
    app = modal.App(f"{VOLUME}-{name}")
    function = app.function(
        name=jobs[0].command,
        **machine_settings(options),
        timeout=math.ceil(options.timeout_hours * 3600),
        retries=options.retries,
        single_use_containers=True,
        max_containers=options.parallel,
    )(container.run_in_container)
    calls, statuses = [], [130] * len(jobs)  # after Ctrl-C, which ends the `with`
    try:
        with modal.enable_output(), app.run(detach=detached()):
            calls = [function.spawn(job, options) for job in jobs]
            statuses = [outcome(job, call) for job, call in zip(jobs, calls, strict=True)]
    finally:
        for call in calls if not detached() else []:
            container.open_calls().put(f"end of {call.object_id}", True)
    for job, status in zip(jobs, statuses, strict=True):
        if status == 0 and (results := COMMANDS[job.command].results):
            fetch(job.name, results)
    return statuses


def outcome(job: Job, call: modal.FunctionCall) -> int:
    """Wait for a job. Return its status; 2, after a line of error, if Modal ended it."""
    try:
        return call.get()
    except (modal.exception.Error, ChildProcessError) as error:
        why = UserError(str(error) or "it was cancelled; the same command goes on with it")  # on one line
        print(f"error: {job.name}: {why}", file=sys.stderr, flush=True)
        return 2


def check_job(runs: Runs, job: Job) -> None:
    """Raise UserError for a missing run or data, or a run in use."""
    if job.of_a_run:
        runs.check(job.name)
    if job.command == "train":
        container.claim(job.name)
    large = job.dataset and job.dataset not in SMALL_DATASETS
    if large and "train.bin" not in runs.names(job.dataset, root="data"):
        raise UserError(
            f"dataset={job.dataset}: the Volume has no such data set: first modal run app.py::prepare "
            f"--run-on-remote true {job.dataset}, or modal volume put {VOLUME} <its folder> data/<its name>"
        )


def machine_settings(options: LaunchOptions) -> dict[str, Any]:
    machine = machine_of(options)
    ours = modal.FilePatternMatcher.from_file(ROOT / ".dockerignore")
    # Without its copy of the project, or each change of a file would take a new image.
    software = modal.Image.from_dockerfile(
        ROOT / "Dockerfile", context_dir=ROOT, ignore=lambda path: path != Path("requirements.txt")
    )
    return {
        "image": software.env(ENVIRONMENT).add_local_dir(ROOT, "/root", ignore=ours),
        "gpu": None if options.gpu == "none" else options.gpu,
        "cpu": (machine.cores, BURST * machine.cores),
        "memory": (1024 * machine.gib, BURST * 1024 * machine.gib),
        "volumes": {str(MOUNTED): modal.Volume.from_name(VOLUME, create_if_missing=True)},
        "secrets": [modal.Secret.from_name(name) for name in options.secret.split(",") if name],
        "include_source": False,
    }


def detached() -> bool:
    """Tell whether this is `modal run --detach`."""
    context = click.get_current_context(silent=True)
    return bool(context and context.obj and context.obj.get("detach"))


def serve(job: Job, options: LaunchOptions) -> int:
    """Serve a run at a URL until the time is up; detached, until it is stopped."""
    stays = detached()
    if stays:
        print("it stays open until you stop it; for one day:")
        options = replace(options, timeout_hours=24.0)
    if not announce([job], options):
        return 0
    check_job(Runs(remote=True), job)
    keys = [word.partition("=")[2] for word in job.words if word.startswith("--api_key=")]
    key = keys[-1] if keys else secrets.token_urlsafe(24)
    # A page of another site is refused by its Origin.
    words = [*job.words, "--host=0.0.0.0", "--allowed_hosts=*", f"--api_key={key}"]
    app = modal.App(f"{VOLUME}-{job.name}-serve")
    server = modal.web_server(container.SERVER_PORT, startup_timeout=START)(container.serve_in_container)
    function = app.function(
        name="serve",
        **machine_settings(options),
        env={container.SERVER_WORDS: json.dumps(words)},
        timeout=START,  # of one request
        startup_timeout=START,
        scaledown_window=300,  # seconds without a request until the machine is given back
        max_containers=1,
    )(modal.concurrent(max_inputs=100)(server))
    with modal.enable_output(), nullcontext() if stays else app.run():
        if stays:
            app.deploy()
            print(f"until modal app stop {app.name}:")
        url = function.get_web_url()
        print(
            f"serving at {url} and {url}/v1, with the key {key}; the first answer takes a minute", flush=True
        )
        if not stays:
            time.sleep(options.timeout_hours * 3600)
    return 0
