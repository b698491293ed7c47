"""Serve a run of the Volume at Modal: serve.py behind a URL, on a machine that is rented while somebody asks.

The endpoint is open as long as the command runs, at most --timeout-hours; with --detach until it is stopped.
Anybody can reach it, so that it always has a key.
"""

import json
import re
import secrets
import time
from dataclasses import replace

from tools.cloud import MOUNTED, SERVER_PORT, SERVER_WORDS, VOLUME
from tools.cloud.commands import Job
from tools.cloud.options import LaunchOptions
from tools.cloud.places import InVolume, modal, modal_errors
from tools.cloud.rent import check_run, detached, machine_settings, make_image

IDLE = 300  # seconds without a request after which the machine is given back
START = 600  # seconds that loading and compiling may take
AT_ONCE = 100  # requests at a time; serve.py lets those wait that have no slot


def serving_words(job: Job, key: str) -> list[str]:
    """Return the options of serve.py at Modal: it listens to Modal's proxy, which knows the endpoint's name.

    Whatever name it was asked by, a page of another site is refused all the same, by its Origin.
    """
    folder = MOUNTED / "runs" / job.run_name
    return [*job.words, f"--out_dir={folder}", "--host=0.0.0.0", "--allowed_hosts=*", f"--api_key={key}"]


def describe_endpoint(options: LaunchOptions) -> str:
    """Return the line that says when the machine is paid for."""
    return f"paid for while somebody asks, and {IDLE // 60} minutes after; " + (
        "open until it is stopped: the sum above is that of one day"
        if detached(options)
        else f"open until Ctrl-C, {options.timeout_hours:g} h at most"
    )


def cost_of_endpoint(options: LaunchOptions) -> LaunchOptions:
    """Return the options by which an endpoint's cost is computed: a deployed one's is that of a day."""
    return replace(options, retries=0, timeout_hours=24.0 if detached(options) else options.timeout_hours)


def serve_run(job: Job, options: LaunchOptions, key: str | None) -> int:
    """Open an endpoint that serves the job's run, and say where. Return 0 when it has been closed.

    Clients have to send `key`; without one, a key is made and printed. Raises UserError.
    """
    check_run(InVolume(), job)
    from tools.cloud.container import serve_in_container  # here, because it imports modal

    key = key or secrets.token_urlsafe(24)
    name = f"{job.run_name}-serve"
    with modal_errors():
        app = modal.App(f"{VOLUME}-{name}")
        server = modal.web_server(
            SERVER_PORT, startup_timeout=START, label=re.sub("[^a-z0-9]+", "-", name.lower())
        )
        function = app.function(
            name="serve",
            **machine_settings(make_image(), options),
            env={SERVER_WORDS: json.dumps(serving_words(job, key))},
            timeout=START,  # of one request
            startup_timeout=START,
            scaledown_window=IDLE,
            max_containers=1,
        )(modal.concurrent(max_inputs=AT_ONCE)(server(serve_in_container)))
        with modal.enable_output():
            if detached(options):
                app.deploy()
                print(invitation(function.get_web_url(), key, job))
                print(f"it goes on until: modal app stop {VOLUME}-{name}", flush=True)
                return 0
            with app.run():
                print(invitation(function.get_web_url(), key, job), flush=True)
                time.sleep(options.timeout_hours * 3600)
    return 0


def invitation(url: str | None, key: str, job: Job) -> str:
    """Return how to ask the endpoint. The first request waits for a machine, and for the compiler."""
    example = json.dumps({"prompt": "def ", "max_tokens": 64})
    return (
        f"serving {job.run_name} at {url} and {url}/v1, with the key {key}; the first answer takes a minute\n"
        f"curl {url}/v1/completions -H 'Authorization: Bearer {key}' -d '{example}'"
    )
