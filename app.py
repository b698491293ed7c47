"""The launcher: every command on a rented machine at Modal (https://modal.com), or on this one.

    modal run app.py --run-on-remote true                           a first small model, for cents
    python app.py                                                   the same here: no account, no network
    modal run app.py::NAME --run-on-remote true ...                 any other command at Modal; here it is
    python app.py NAME ...                                          without --run-on-remote, in either form
    python app.py NAME --dry-run ...                                what would run there, and at what cost

NAME is train, sample, prepare, evaluate, bench, profile, export, serve, sweep, experiment, list, watch or
fetch: docs/cloud.md. Words that are not options of the launcher (python app.py --help) go to its script.
"""

if __name__ == "__main__":
    import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from config.command_line import UserError, command
from config.options import Options
from tools.cloud import VOLUME, jobs, places
from tools.cloud.jobs import COMMANDS, Job, has_ended, make_job, run_job
from tools.cloud.options import LaunchOptions, split_launch
from tools.cloud.places import Here, InVolume, is_prepared_there, modal, modal_errors
from tools.cloud.rent import announce, detached, rent, serve_run
from tools.cloud.supervise import ROOT

FIRST = "no config was given: training config/quickstart.py on Python's own source, then a sample of it"
SMALL = {"gpu": "L4", "timeout_hours": 0.5, "retries": 0}


def start_by_name(argv: list[str]) -> int:
    name, words = (argv[0], argv[1:]) if argv and argv[0] in COMMANDS else ("train", argv)
    return start(name, words, at_modal=False)


def start(name: str, argv: list[str], at_modal: bool) -> int:
    """Run a command. Return its status. Raises UserError.

    Started by `modal run` (`at_modal`), `list` and `watch` look into the Volume unasked.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops a run as Ctrl-C does
    options, words = split_launch(argv, COMMANDS[name].defaults)
    if first := name == "train" and not words:
        print(FIRST)
        words = ["config/quickstart.py"]
        options, _ = split_launch(argv, SMALL)
    remote = options.run_on_remote or options.dry_run
    with modal_errors():
        if name in ("list", "watch", "fetch"):
            status = look(name, words, options, at_modal)
        elif name in ("sweep", "experiment"):
            from tools.cloud import sweep  # here, because it imports JAX

            status = (sweep.run_sweep if name == "sweep" else sweep.run_experiment)(words, options, remote)
        elif remote:
            status = launch(replace(make_job(name, words, options), sample=first), options)
        else:
            status = run_here(name, words, options, first)
    return status if status >= 0 else 128 - status  # for a signal, the status that a shell has


def launch(job: Job, options: LaunchOptions) -> int:
    """Run a job at Modal, or say what it would cost. Return its status."""
    if job.command == "serve" and detached(options):
        print("it stays open until you stop it; for one day:")
        options = replace(options, timeout_hours=24.0)
    if not announce([job], options):
        return 0
    if job.command == "serve":
        return serve_run(job, options)
    if job.command == "train" and has_ended(InVolume(), job):
        print(f"runs/{job.run_name} has come to its end; nothing is rented")
        return 0
    if job.command == "prepare" and is_prepared_there(InVolume(), job.run_name):
        print(f"data/{job.run_name} is prepared; nothing is rented")
        return 0
    (status,) = rent(job.run_name, [job], options)
    if job.command == "train" and status in (0, 130):
        print(f"modal run app.py::watch --run-name={job.run_name} shows the run, and ::fetch brings it here")
    return status


def run_here(name: str, words: list[str], options: LaunchOptions, first: bool) -> int:
    """Run a command's script on this machine. Return its status."""
    run = options.run_name or ("out-quickstart" if first else "")
    if name == "prepare":
        data = jobs.preparing_job(words, options).run_name
        return jobs.prepare(ROOT / "data" / data, words[1:])[0]
    if name == "profile" and not run:
        return run_job(Job(name, words, Options.out_dir), Path(Options.out_dir))[0]
    words = [*words, "--init_from=auto"] if first else words
    return run_job(Job(name, words, run, of_a_run=bool(run), sample=first), Path(run))[0]


def look(name: str, words: list[str], options: LaunchOptions, at_modal: bool) -> int:
    """List runs, watch one, or bring one home, without a machine. Return 0. Raises UserError."""
    place = InVolume if options.run_on_remote or at_modal else Here
    if words:
        raise UserError(f"{name} {words[0]}: it takes --run-name and --run-on-remote alone")
    if name == "list":
        places.list_runs(place())
    elif not options.run_name:
        raise UserError(f"--run-name is missing: {name} needs one, and list shows those that are there")
    elif name == "watch":
        places.watch(place(), options.run_name)
    else:
        places.fetch(options.run_name)
    return 0


# For `modal run app.py::NAME`


def words_to(name: str) -> Callable[..., None]:
    """Return an entrypoint that takes bare words: Modal refuses a value for a `bool` parameter."""

    def run(*arglist: str) -> None:
        import config.interrupt  # noqa: F401  now: imported by a script later, it would take Ctrl-C from Modal

        command(lambda _: start(name, [*arglist], at_modal=True))

    # Modal takes no function that is defined in another, as its qualified name would say.
    run.__qualname__ = f"{name}_entrypoint"
    return run


if modal is not None:
    # Without functions: Modal would build and upload those before an entrypoint runs, even for a run here.
    for each in COMMANDS:
        globals()[each] = modal.App(f"{VOLUME}-{each}")
        globals()[each].local_entrypoint(name=each)(words_to(each))
    # `modal run app.py` takes, of several entrypoints, the one that is a name of the module.
    main = modal.App(VOLUME).local_entrypoint()(words_to("train"))

if __name__ == "__main__":
    command(start_by_name)
