"""The launcher: every command on a rented machine at Modal, or on this one: docs/cloud.md.

    modal run app.py --run-on-remote true                           a first small model, for cents
    python app.py                                                   the same here: no account, no network
    modal run app.py::NAME --run-on-remote true ...                 any other command at Modal; here it is
    python app.py NAME ...                                          without --run-on-remote, in either form
    python app.py NAME --dry-run ...                                what would run there, and at what cost

NAME is train, sample, prepare, evaluate, bench, profile, export, serve, sweep, list, watch or fetch. Words
that are not options of the launcher (python app.py --help) go to its script.
"""

import difflib
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import modal

from config.command_line import UserError, command, given
from config.options import Options
from tools.cloud import VOLUME, places, rent
from tools.cloud.jobs import COMMANDS, Job, make_job, preparing_job, run_job, words_on
from tools.cloud.options import LaunchOptions, split_launch
from tools.cloud.places import Runs
from tools.cloud.supervise import ROOT
from tools.cloud.sweep import run_sweep

FIRST = "no config was given: training config/quickstart.py on Python's own source, then a sample of it"
SMALL = {"gpu": "L4", "timeout_hours": 0.5, "retries": 0, "run_name": "out-quickstart"}


def start(argv: list[str]) -> int:
    """Run a command. Return its status. Raises UserError."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops a run as Ctrl-C does
    name, argv = split_command(argv)
    options, words = split_launch(argv, COMMANDS[name].defaults)
    if first := name == "train" and not words:
        print(FIRST)
        options, words = split_launch(["config/quickstart.py", *argv], SMALL)
    remote = options.run_on_remote or options.dry_run
    try:
        if name in ("list", "watch", "fetch"):
            status = look(name, words, options)
        elif name == "sweep":
            status = run_sweep(words, options, remote)
        elif remote:
            status = launch(replace(make_job(name, words, options), sample=first), options)
        else:
            status, _ = run_job(job_here(name, words, options, first))
    except modal.exception.Error as error:
        raise UserError(f"Modal: {error}") from None
    return status if status >= 0 else 128 - status  # for a signal, the status that a shell has


def split_command(argv: list[str]) -> tuple[str, list[str]]:
    """Return a command's name and the words for it. A config or an option comes first for `train` alone."""
    if not argv or argv[0].startswith("-") or argv[0].endswith(".py"):
        return "train", argv
    if argv[0] not in COMMANDS:
        nearest = difflib.get_close_matches(argv[0], COMMANDS, n=1)
        advice = f"did you mean {nearest[0]}? " if nearest else ""
        raise UserError(f"{argv[0]} is not a command; {advice}There are {', '.join(COMMANDS)}")
    return argv[0], argv[1:]


def look(name: str, words: list[str], options: LaunchOptions) -> int:
    given(words, LaunchOptions)
    if name == "list":
        runs = Runs(options.run_on_remote)
        names = [run for run in runs.names() if "options.json" in runs.names(run)]
        print("\n".join(runs.summary(run)[1] for run in names) or "no run is there")
    elif not options.run_name:
        raise UserError(f"--run-name is missing: {name} needs one, and list shows those that are there")
    elif name == "watch":
        places.watch(Runs(options.run_on_remote), options.run_name)
    else:
        places.fetch(options.run_name)
    return 0


def launch(job: Job, options: LaunchOptions) -> int:
    if job.command == "serve":
        return rent.serve(job, options)
    if not rent.announce([job], options):
        return 0
    if job.command == "train" and Runs(remote=True).have_ended(job.name, job.words):
        print(f"runs/{job.name} has come to its end; nothing is rented")
        return 0
    (status,) = rent.rent(job.name, [job], options)
    if job.command == "train" and status in (0, 130):
        print(f"modal run app.py::watch --run-name={job.name} shows the run, and ::fetch brings it here")
    return status


def job_here(name: str, words: list[str], options: LaunchOptions, first: bool) -> Job:
    if name == "prepare":
        return preparing_job(words, options, ROOT)
    folder = Path(options.run_name or Options.out_dir)
    if options.run_name:
        words = [*words, *words_on(name, folder)]
    return Job(name, [*words, "--init_from=auto"] if first else words, folder, sample=first)


def entrypoint(name: str, *first: str) -> Callable[..., None]:
    """Return an entrypoint that takes bare words: Modal refuses a value for a `bool` parameter."""

    def run(*arglist: str) -> None:
        command(lambda _: start([*first, *arglist]))

    # Modal takes no function that is defined in another, as its qualified name would say.
    run.__qualname__ = f"{name}_entrypoint"
    return run


# Apps without functions, which Modal would build before an entrypoint runs, even for a run here.
for each in COMMANDS:
    more = ["--run-on-remote"] if each in ("list", "watch") else []
    globals()[each] = modal.App(f"{VOLUME}-{each}")
    globals()[each].local_entrypoint(name=each)(entrypoint(each, each, *more))
# `modal run app.py` takes the entrypoint that is a name of the module.
main = modal.App(VOLUME).local_entrypoint()(entrypoint("main"))

if __name__ == "__main__":
    command(start)
