"""Claim the name of a run at Modal, so that one launch alone trains it.

A container does not see what another one writes to the Volume. So a launch claims the name in a Dict at Modal
before it rents. A claim has the launch's id, which all attempts share, and its call's, once that has begun.
"""

from collections.abc import Generator
from contextlib import contextmanager
from uuid import uuid4

from config.command_line import UserError
from tools.cloud import VOLUME
from tools.cloud.places import modal


def open_claims() -> "modal.Dict":
    return modal.Dict.from_name(VOLUME, create_if_missing=True)


@contextmanager
def claimed(names: list[str]) -> Generator[dict[str, str]]:
    """Claim runs' names, and yield the launch of each. Release those still in there at the end."""
    launches = {}
    try:
        for name in names:
            launches[name] = uuid4().hex
            claim(name, launches[name])
        yield launches
    finally:
        for name, launch in launches.items():
            release(name, launch)


def claim(name: str, launch: str) -> None:
    """Give a name to a launch. Raises UserError if another has it, whose call has not ended."""
    claims = open_claims()
    ours = {"launch": launch, "call": None}
    if claims.put(name, ours, skip_if_exists=True):
        return
    theirs = claims.get(name) or ours
    if has_ended(theirs["call"]) and claims.put(f"after {theirs['launch']}", launch, skip_if_exists=True):
        claims.put(name, ours)  # of all that saw the end of the other, one comes here
        return
    raise UserError(
        f"runs/{name} belongs to another launch: modal run app.py::watch --run-name={name} shows it; choose "
        "another --run-name, or, if `modal app list` shows that its App is gone, release the name: "
        f"""python -c "import modal; modal.Dict.from_name('{VOLUME}').pop('{name}')\""""
    )


def has_ended(call: str | None) -> bool:
    """Tell whether a call has ended, in whatever way. None: it has not begun."""
    theirs = modal.exception
    try:
        return call is not None and modal.FunctionCall.from_id(call).get(timeout=0) is not None
    except TimeoutError:  # Python's own: there is no outcome yet
        return False
    except (ChildProcessError, theirs.RemoteError, theirs.TimeoutError, theirs.NotFoundError):
        return True  # it failed, was cancelled, or is forgotten


def begin(name: str, launch: str) -> bool:
    """Note the call of a launch that begins. Return False if another launch has the name by now."""
    claims = open_claims()
    ours = {"launch": launch, "call": modal.current_function_call_id()}
    if not claims.put(name, ours, skip_if_exists=True) and claims.get(name, ours)["launch"] != launch:
        return False
    claims.put(name, ours)
    return True


def release(name: str, launch: str) -> None:
    """Give a name back, if the launch has it still."""
    claims = open_claims()
    if (theirs := claims.get(name)) and theirs["launch"] == launch:
        claims.pop(name)
