"""Run commands on a machine at Modal, in an App for each launch."""

import json
import math
import os
import re
import secrets
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import modal
from pydantic_core import from_json

from common.command_line import ONLY_CHECK
from common.errors import UserError
from config.options import NOT_RESUMED, RESUMING, Options
from tools.cloud import MOUNTED, ROOT, TRAINING, VOLUME, container
from tools.cloud.options import BURST, LaunchOptions, machine_of, say_price
from tools.cloud.process import python

STAYS = modal.FilePatternMatcher.from_file(ROOT / ".dockerignore")  # tells which files are not sent
ENVIRONMENT = {
    "NANOJAXGPT_DATA": f"{MOUNTED}/data",
    "XDG_CACHE_HOME": f"{MOUNTED}/cache",  # for compiled programs, and the hub's files
    "TIKTOKEN_CACHE_DIR": f"{MOUNTED}/cache/tiktoken",
}


def launch(commands: list[list[str]], options: LaunchOptions) -> int:
    """Check commands, and run them at Modal. Return the status of the last that ran. Raises UserError."""
    given, *_ = [check_options(command) for command in commands]
    say_price(options)
    print(*map(shlex.join, commands), sep="\n", flush=True)
    commands = [[script, *map(at_modal, words)] for script, *words in commands]
    script, run, port = commands[0][0], None, None
    if script == "serve.py":  # it is called by a name that is new each time, and its key keeps others out
        port = given.get("port", 8000)
        key = given.get("api_key") or secrets.token_urlsafe(24)
        commands[0] += ["--host=0.0.0.0", f"--port={port}", f"--api_key={key}"]
    if options.dry_run:
        return 0
    if script in TRAINING and not given.get("eval_only"):
        run = name_of_run(given)
        container.claim(run)
        if has_ended(run, given):
            print(f"{run} has come to its end; nothing is rented")
            return 0
    status = rent(commands, options, run, port)
    if run and status in (0, 130):
        print(f"to copy the run to this machine: modal volume get {VOLUME} {run}")
    return status


def check_options(command: list[str]) -> dict[str, Any]:
    """Have a command check its options, and return those that it is given, or end with its status."""
    environment = os.environ | {ONLY_CHECK: "1"}
    checked = subprocess.run(python(command), env=environment, stdout=subprocess.PIPE, text=True)
    if checked.returncode:
        sys.exit(checked.returncode)
    return json.loads(checked.stdout.splitlines()[-1])


def at_modal(word: str) -> str:
    """Return a word of a command, if it is a config with the path that it has there. Raises UserError."""
    if not word.endswith(".py") or word.startswith("--"):
        return word
    path = Path(word).resolve()
    if not path.is_relative_to(ROOT) or STAYS(path.relative_to(ROOT)):
        raise UserError(f"{word}: Modal gets the project's own files alone: move it to config/")
    return f"/root/{path.relative_to(ROOT).as_posix()}"


def name_of_run(given: dict[str, Any]) -> str:
    """Return a run's folder in the Volume. Raises UserError for one elsewhere, or to be begun anew."""
    run = given.get("out_dir", Options.out_dir).removeprefix(f"{MOUNTED}/")
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", run):
        raise UserError(f"out_dir={run}: at Modal it is a name in the Volume, as in --out_dir=big")
    if given.get("overwrite"):
        remove = f"modal volume rm -r {VOLUME} {run}"
        raise UserError(f"overwrite=True would begin anew at every attempt: give {remove} instead")
    return run


def has_ended(run: str, given: dict[str, Any]) -> bool:
    """Tell whether a run in the Volume has come to its end. Raises UserError for a change unasked."""
    volume = modal.Volume.from_name(VOLUME, create_if_missing=True)
    try:
        saved = [Path(entry.path).name for entry in volume.listdir(f"{run}/checkpoints")]
        data = b"".join(volume.read_file(path := f"{run}/options.json"))
    except (modal.exception.NotFoundError, FileNotFoundError):
        return False
    theirs = vars(Options.from_json(from_json(data), origin=path))
    for name, ours in given.items() if given.get("init_from") not in RESUMING else []:
        # A data set's path is absolute there.
        if name not in NOT_RESUMED and theirs[name] not in (ours, f"{MOUNTED}/{ours}"):
            raise UserError(
                f"{run} holds a run with {name}={theirs[name]}, and this launch has {name}={ours}: "
                "go on with --init_from=resume, which changes it, or choose another --out_dir"
            )
    last = max((int(name) for name in saved if name.isdecimal()), default=-1)
    return last >= given.get("max_iters", theirs["max_iters"])


def rent(commands: list[list[str]], options: LaunchOptions, run: str | None, port: int | None) -> int:
    """Run checked commands on a machine. Return the status of the last that ran."""
    app = modal.App(f"{VOLUME}-{run or commands[0][0]}".replace("/", "-"))
    function = app.function(**machine_settings(options))(container.run_in_container)
    context = click.get_current_context(silent=True)
    stays = bool(context and context.obj and context.obj.get("detach"))  # `modal run --detach`
    call, status = None, 130  # after Ctrl-C, which ends the `with`
    try:
        with modal.enable_output(), app.run(detach=stays):
            call = function.spawn(commands, options.timeout_hours * 3600, run, port)
            status = outcome(call)
    finally:
        if call and not stays:
            calls = modal.Dict.from_name(VOLUME, create_if_missing=True)
            calls.put(f"end of {call.object_id}", True)
    return status


def outcome(call: modal.FunctionCall) -> int:
    """Wait for a call. Return its status; 2, after a line of error, if Modal ended it."""
    try:
        return call.get()
    except (modal.exception.Error, ChildProcessError) as error:
        why = UserError(str(error) or "it was cancelled; the same command goes on with it")  # on one line
        print(f"error: {why}", file=sys.stderr, flush=True)
        return 2


def machine_settings(options: LaunchOptions) -> dict[str, Any]:
    cores, gib, _ = machine_of(options)
    gpu = None if options.gpu == "none" else options.gpu
    # Without its copy of the project, or each change of a file would take a new image.
    software = modal.Image.from_dockerfile(
        ROOT / "Dockerfile", context_dir=ROOT, ignore=lambda path: path != Path("requirements.txt")
    )
    # Else JAX might compute on the CPU of a machine whose GPU it does not find.
    environment = ENVIRONMENT | ({"JAX_PLATFORMS": "cuda,cpu"} if gpu else {})
    return {
        "image": software.env(environment).add_local_dir(ROOT, "/root", ignore=STAYS),
        "gpu": gpu,
        "cpu": (cores, BURST * cores),
        "memory": (1024 * gib, BURST * 1024 * gib),
        "volumes": {str(MOUNTED): modal.Volume.from_name(VOLUME, create_if_missing=True)},
        "secrets": [modal.Secret.from_name(name) for name in options.secret.split(",") if name],
        "timeout": math.ceil(options.timeout_hours * 3600),
        "retries": options.retries,
        "single_use_containers": True,
        "include_source": False,
    }
