"""Rent machines at Modal, and run jobs on them, in an App that is made for each launch."""

import json
import math
import re
import secrets
import sys
import time
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from config.command_line import UserError
from tools.cloud import MOUNTED, SERVER_PORT, SERVER_WORDS, VOLUME
from tools.cloud.claims import claimed
from tools.cloud.container import run_in_container, serve_in_container
from tools.cloud.jobs import COMMANDS, Job, check_unchanged, has_script, prepares_itself, words_of
from tools.cloud.options import BURST, RATES, RATES_READ, RESTARTS, LaunchOptions, machine_of
from tools.cloud.places import InVolume, check_run, current_rates, fetch, is_prepared_there, modal
from tools.cloud.supervise import ROOT

ENVIRONMENT = {
    "NANOJAXGPT_DATA": f"{MOUNTED}/data",
    "XDG_CACHE_HOME": f"{MOUNTED}/cache",  # for compiled programs, and the hub's files
    "TIKTOKEN_CACHE_DIR": f"{MOUNTED}/cache/tiktoken",
}
IDLE = 300  # seconds without a request until a server's machine is given back
START = 600  # seconds that loading and compiling may take
AT_ONCE = 100  # requests at a time


def announce(jobs: list[Job], options: LaunchOptions) -> bool:
    """Say what jobs can cost at most, and return True. Raises UserError above --max-dollars.

    With --dry-run, say also what would run, and return False.
    """
    rates = RATES if options.dry_run else current_rates()
    machine = machine_of(options, rates)
    source = f"`modal billing rates` of {RATES_READ}" if rates is RATES else "Modal's rates now"
    counts = {"runs": len(jobs), "machines": options.nodes, "attempts": 1 + options.retries}
    dollars = math.prod(counts.values()) * options.timeout_hours * machine.dollars
    times = "".join(f"{count} {what} x " for what, count in counts.items() if count > 1)
    times += f"{options.timeout_hours:g} h x ${machine.dollars:.2f}"
    print(
        f"costs at most ${dollars:,.2f}: {times} ({options.gpu}, "
        f"{machine.cores:g} cores, {machine.gib} GiB; {source}); that is no ceiling, for Modal also "
        f"restarts a run whose machine it takes away, here up to {RESTARTS} times; a budget at Modal is one"
    )
    if options.dry_run:
        for job in jobs:
            words = words_of(job, MOUNTED / "runs" / job.run_name)
            print(f"{job.command} {job.run_name}: {' '.join([COMMANDS[job.command].script, *words])}")
    elif dollars > options.max_dollars:
        raise UserError(
            f"that is above --max-dollars={options.max_dollars:g}: give --max-dollars={math.ceil(dollars)}, "
            "or fewer --timeout-hours or --retries"
        )
    return not options.dry_run


def rent(name: str, jobs: list[Job], options: LaunchOptions) -> list[int]:
    """Run jobs on Modal, each on its own machine, and print their output. Return their statuses.

    Raises UserError for a run that another launch trains, and as `check_job` does.
    """
    runs = InVolume()
    statuses = [130] * len(jobs)  # Ctrl-C ends the inner `with` below, quietly
    with claimed([job.run_name for job in jobs if job.command in ("train", "experiment")]) as launches:
        for job in jobs:
            check_job(runs, job)
        app = modal.App(f"{VOLUME}-{name}")
        run = run_in_container
        if options.nodes > 1:
            run = modal.clustered(size=options.nodes, rdma=True)(run)
        function = app.function(
            name=jobs[0].command,
            **machine_settings(options),
            timeout=math.ceil(options.timeout_hours * 3600),
            retries=options.retries,
            single_use_containers=True,  # an attempt begins in a container that has done nothing yet
            max_containers=options.parallel * options.nodes,
        )(run)
        with modal.enable_output(), app.run(detach=detached(options)):
            launch_of = launches.pop if detached(options) else launches.get  # its container releases it
            calls = [function.spawn(job, options, launch_of(job.run_name, None)) for job in jobs]
            statuses = [outcome(job, call) for job, call in zip(jobs, calls, strict=True)]
    for job, status in zip(jobs, statuses, strict=True):
        if status == 0 and (results := COMMANDS[job.command].results):
            fetch(job.run_name, results)
    return statuses


def outcome(job: Job, call: "modal.FunctionCall") -> int:
    """Return the status of a job when it has ended; 2, after a line of error, if Modal ended it."""
    try:
        return call.get()
    except (modal.exception.Error, ChildProcessError) as error:
        why = UserError(str(error) or "it was cancelled; the same command goes on with it")  # on one line
        print(f"error: {job.run_name}: {why}", file=sys.stderr, flush=True)
        return 2


def check_job(runs: InVolume, job: Job) -> None:
    """Raise UserError for a run or data that are missing, or a run that would be changed."""
    if job.of_a_run:
        check_run(runs, job.run_name)
    if job.command == "train":
        check_unchanged(runs, job)
    name = job.dataset
    if not name or prepares_itself(name):
        return
    if not is_prepared_there(runs, name):
        put = f"modal volume put {VOLUME} <its folder> data/{Path(name).name}, and give that name"
        prepare = f"modal run app.py::prepare --run-on-remote true {name}"
        how = prepare if has_script(name) else put
        raise UserError(f"dataset={name}: the Volume has no such data set: first {how}")


def machine_settings(options: LaunchOptions) -> dict[str, Any]:
    """Return a function's settings that say what its containers are."""
    machine = machine_of(options)
    ours = modal.FilePatternMatcher.from_file(ROOT / ".dockerignore")
    # Without its copy of the project, or each change of a file would take a new image.
    software = modal.Image.from_dockerfile(
        ROOT / "Dockerfile", context_dir=ROOT, ignore=lambda path: path != Path("requirements.txt")
    )
    return {
        "image": software.env(ENVIRONMENT).add_local_dir(ROOT, "/root", ignore=ours),
        "gpu": machine.gpus[0] if len(machine.gpus) == 1 else machine.gpus or None,
        "cpu": (machine.cores, BURST * machine.cores),
        "memory": (1024 * machine.gib, BURST * 1024 * machine.gib),
        "volumes": {str(MOUNTED): modal.Volume.from_name(VOLUME, create_if_missing=True)},
        "secrets": [modal.Secret.from_name(name) for name in options.secrets],
        "include_source": False,  # it is among the image's files
    }


def detached(options: LaunchOptions) -> bool:
    """Tell whether the run goes on without this command, by --detach or `modal run --detach`."""
    context = import_module("click").get_current_context(silent=True) if modal else None
    return options.detach or bool(context and context.obj and context.obj.get("detach"))


def serve_run(job: Job, options: LaunchOptions) -> int:
    """Serve a run of the Volume at a URL, until the time is up; detached, until it is stopped. Return 0."""
    check_job(InVolume(), job)
    keys = [word.partition("=")[2] for word in job.words if word.startswith("--api_key=")]
    key = keys[-1] if keys else secrets.token_urlsafe(24)
    name = f"{job.run_name}-serve"
    words = [*words_of(job, MOUNTED / "runs" / job.run_name), "--host=0.0.0.0", f"--api_key={key}"]
    words += ["--allowed_hosts=*"]  # a page of another site is refused by its Origin
    app = modal.App(f"{VOLUME}-{name}")
    label = re.sub("[^a-z0-9]+", "-", name.lower())
    server = modal.web_server(SERVER_PORT, startup_timeout=START, label=label)(serve_in_container)
    function = app.function(
        name="serve",
        **machine_settings(options),
        env={SERVER_WORDS: json.dumps(words)},
        timeout=START,  # of one request
        startup_timeout=START,
        scaledown_window=IDLE,
        max_containers=1,
    )(modal.concurrent(max_inputs=AT_ONCE)(server))
    with modal.enable_output(), nullcontext() if detached(options) else app.run():
        if detached(options):
            app.deploy()
            print(f"until modal app stop {VOLUME}-{name}:")
        url = function.get_web_url()
        example = json.dumps({"prompt": "def ", "max_tokens": 64})
        print(f"serving at {url} and {url}/v1, with the key {key}; the first answer takes a minute")
        print(f"curl {url}/v1/completions -H 'Authorization: Bearer {key}' -d '{example}'", flush=True)
        if not detached(options):
            time.sleep(options.timeout_hours * 3600)
    return 0
