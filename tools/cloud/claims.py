"""Claim the name of a run at Modal, so that one launch alone trains it.

A container does not see what another one writes to the Volume, and a launch waits for its image and a GPU
before it writes anything. So it first claims the name, in a Dict at Modal. It has a launch's id under the
run's name, and under that id the launch's call and how often it has begun. All attempts have the same id.
"""

from collections.abc import Generator
from contextlib import contextmanager
from uuid import uuid4

from config.command_line import UserError
from tools.cloud import VOLUME
from tools.cloud.options import RESTARTS
from tools.cloud.places import modal


def open_claims() -> "modal.Dict":
    return modal.Dict.from_name(VOLUME, create_if_missing=True)


@contextmanager
def claimed(names: list[str]) -> Generator[dict[str, str]]:
    """Claim runs' names, and yield the launch of each. Those still in there at the end are released."""
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
    if claims.put(name, launch, skip_if_exists=True):
        return
    other = claims.get(name)
    if has_ended(claims.get(other)) and claims.put(f"after {other}", launch, skip_if_exists=True):
        claims.put(name, launch)  # of all that saw the end of the other, one comes here
        return
    raise UserError(
        f"runs/{name} belongs to another launch: modal run app.py::watch --run-name={name} shows it; choose "
        "another --run-name, or, if `modal app list` shows that its App is gone, release the name: "
        f"""python -c "import modal; modal.Dict.from_name('{VOLUME}').pop('{name}')\""""
    )


def has_ended(launch: dict | None) -> bool:
    """Tell whether the call of a launch has ended, in whatever way. None: it has not begun."""
    theirs = modal.exception
    try:
        return launch is not None and modal.FunctionCall.from_id(launch["call"]).get(timeout=0) is not None
    except TimeoutError:  # Python's own: there is no outcome yet
        return False
    except (ChildProcessError, UserError, theirs.RemoteError, theirs.TimeoutError, theirs.NotFoundError):
        return True  # it failed, was cancelled, or is forgotten


def begin(name: str, launch: str, attempts: int) -> None:
    """Note that an attempt of a launch begins. Raises UserError if it may not, or too many have."""
    claims = open_claims()
    if not claims.put(name, launch, skip_if_exists=True) and claims.get(name) != launch:
        raise UserError(f"runs/{name} belongs to another launch by now, which trains it")
    begun = claims.get(launch, {"begun": 0})["begun"] + 1
    claims.put(launch, {"begun": begun, "call": modal.current_function_call_id()})
    if begun > attempts + RESTARTS:
        raise UserError(
            f"Modal has taken its machine away more than {RESTARTS} times: start it again by hand"
        )


def release(name: str, launch: str) -> None:
    """Give a name back, if the launch has it still."""
    claims = open_claims()
    if claims.get(name) == launch:
        claims.pop(name)
