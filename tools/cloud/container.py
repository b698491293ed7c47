"""Run commands in a container at Modal, in the Volume, which is committed now and then."""

import time
from contextlib import nullcontext, suppress

import modal

from common.errors import UserError
from tools.cloud import MOUNTED, ROOT, TRAINING, VOLUME
from tools.cloud.process import run_command

GRACE = 120  # seconds that a run has to save a checkpoint before its time is up


def run_in_container(commands: list[list[str]], seconds: float, run: str | None, port: int | None) -> int:
    """Run commands until one fails. Return the status of the last; `run` is trained, `port` gets a URL.

    After an exception Modal starts another attempt: for a command that was killed or stopped, or whose time
    is up. A failure of its own would repeat.
    """
    end = time.monotonic() + seconds - min(GRACE, seconds / 4)
    volume = modal.Volume.from_name(VOLUME)
    try:
        if run:
            claim(run, modal.current_function_call_id())
    except UserError as error:
        print(f"error: {error}", flush=True)
        return 2
    volume.reload()  # after the claim: until then another launch may have saved
    for script in ROOT.glob("data/*/prepare.py"):  # a data set is prepared there if its folder is there
        (MOUNTED / "data" / script.parent.name).mkdir(parents=True, exist_ok=True)
    begun = run and any(x.name.isdigit() for x in (MOUNTED / run).glob("checkpoints/*"))
    with modal.forward(port) if port else nullcontext() as tunnel:
        if tunnel:
            print(f"serving at {tunnel.url} and {tunnel.url}/v1, {commands[0][-1]}", flush=True)
        for script, *words in commands:
            words += ["--init_from=auto"] if begun and script in TRAINING else []
            status, interrupted = run_command([script, *words], end - time.monotonic(), MOUNTED)
            if status or interrupted:
                break
    with suppress(RuntimeError, modal.exception.Error):  # Modal will commit
        volume.commit()
    if status and interrupted:
        raise KeyboardInterrupt
    if status < 0 or status == 143:  # train.py's after SIGTERM
        why = f"it was killed, or its time is up (status {status})"
        raise ChildProcessError(f"{why}: the next attempt, or the same command, goes on with it")
    return status


def claim(run: str, ours: str | None = None) -> None:
    """Claim a run for the call `ours`; None: only look. Raises UserError while another call trains it.

    `put` sets a key once: the first call of a run gets the run's name, the next the id of the one before.
    """
    calls, key = modal.Dict.from_name(VOLUME, create_if_missing=True), run
    while (owner := calls.get(key)) != ours:
        if owner is None:
            calls.put(key, ours, skip_if_exists=True)
        elif calls.get(f"end of {owner}") or is_over(owner):
            key = owner
        else:
            raise UserError(
                f"{run} is trained by another launch: choose another --out_dir, or, if `modal app list` "
                f"shows that its App is gone, modal dict clear {VOLUME}"
            )


def is_over(call: str) -> bool:
    theirs = modal.exception
    try:
        return modal.FunctionCall.from_id(call).get(timeout=0) is not None
    except TimeoutError:  # Python's own: there is no outcome yet
        return False
    except (ChildProcessError, theirs.RemoteError, theirs.TimeoutError, theirs.NotFoundError):
        return True  # it failed, was cancelled, or is forgotten
