"""The launcher: every command on a rented machine at Modal (https://modal.com), or on this one.

    modal run app.py --run-on-remote true                           a first small model, for cents
    python app.py                                                   the same here: no account, no network
    modal run app.py::NAME --run-on-remote true ...                 any other command at Modal; here it is
    python app.py NAME ...                                          without --run-on-remote, in either form
    python app.py NAME --dry-run ...                                what would be rented, and at what cost

    train (without a name), sample, evaluate, bench, profile, export, serve     train.py, sample.py and so on
    prepare openwebtext --limit=N                                   a data set, on CPUs
    sweep config/x.py --sweep=learning_rate:3e-4,1e-3               many runs, and which is best
    experiment ladder --seeds=5                                     the runs that an experiment lacks
    list, watch --run-name=x, fetch --run-name=x                    runs in the Volume, without a machine

Words that are not options of the launcher (python app.py --help) go to the command's script. A run on Modal
lives in the Volume `nanojaxgpt`: its out_dir is `runs/<run name>/`, and its data are in `data/<data set>/`.
When its machine is taken away, its time is up or it is killed, Modal starts it again and it goes on from its
last checkpoint. What a launch can cost at most is said first, and refused above --max-dollars. docs/cloud.md
describes the rest, other clouds and TPUs.
"""

if __name__ == "__main__":
    import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from config.command_line import CommandOptions, UserError, command, given, split_options
from config.options import Options
from data.loader import is_small
from tools.cloud import look
from tools.cloud.commands import COMMANDS, FIRST, SAMPLE, SMALL, SMALL_DATA, Job, run_job
from tools.cloud.endpoint import cost_of_endpoint, describe_endpoint, serve_run
from tools.cloud.expect import describe_least
from tools.cloud.jobs import (
    has_script,
    job_of_a_run,
    measuring_job,
    preparing_job,
    sampling_job,
    training_job,
)
from tools.cloud.options import (
    CEILING,
    LaunchOptions,
    check_cost,
    describe_cost,
    most_dollars,
    separate_options,
)
from tools.cloud.places import Here, InVolume, current_rates, modal
from tools.cloud.prices import RATES
from tools.cloud.rent import closing_hint, describe, rent
from tools.cloud.supervise import run_script
from tools.cloud.sweep import plan_sweep, run_sweep

LOOKING = ("list", "watch", "fetch")  # commands that rent nothing


def start_by_name(argv: list[str]) -> None:
    """Run the command that the first word names; without one, train."""
    if argv and argv[0] in (*COMMANDS, *LOOKING, "sweep"):
        start(argv[0], argv[1:], at_modal=False)
    else:
        start("train", argv, at_modal=False)


def start(name: str, argv: list[str], at_modal: bool) -> None:
    """Run a command. Exit with its status if it fails. Raises UserError.

    `at_modal` says that `modal run` started it: then `list` and `watch` look into the Volume unasked.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops a run as Ctrl-C does
    if name in LOOKING:
        start_looking(name, argv, at_modal)
    elif name == "sweep":
        start_sweep(argv)
    elif name == "experiment":
        start_experiment(argv)
    else:
        launch(name, argv)


def launch(name: str, argv: list[str]) -> None:
    """Run a command's script here or on Modal, as `argv` says."""
    ours, theirs = separate_options(argv)
    first = name == "train" and not theirs
    options = COMMANDS[name].options((SMALL if first else {}) | given(ours, LaunchOptions))
    if first:
        print(FIRST)
        theirs = ["config/quickstart.py"]
    if not (options.run_on_remote or options.dry_run):
        leave(run_here(name, theirs, options, first))
        return
    job = replace(job_of(name, theirs, options), sample=first)
    preparing = data_options(job, options)
    if not announce([job], options, preparing):
        return
    if name == "serve":
        leave(serve_run(job, options, given(theirs, options_of("serve")).get("api_key")))
        return
    (status,) = rent(job.run_name, [job], options, preparing)
    assert status is not None, "a job alone raises an error"
    if name == "train":
        print(closing_hint(job, status, options))
    leave(status)


def leave(status: int) -> None:
    if status:  # without an exception, `modal run` would report the App as completed
        sys.exit(status if status > 0 else 128 - status)  # for a signal, the status that a shell has


def announce(jobs: list[Job], options: LaunchOptions, preparing: LaunchOptions) -> bool:
    """Say what jobs can cost at most, and what would be rented with --dry-run: then return False.

    Raises UserError for what is dearer than the user allows.
    """
    costs = cost_of_endpoint(options) if jobs[0].command == "serve" else options
    rates = RATES if options.dry_run else current_rates()
    print(describe_cost(costs, len(jobs), rates))
    if jobs[0].command == "train":
        trained = replace(Options(), **given(jobs[0].words, Options))
        print(describe_least(trained, options, len(jobs)) or "how long it takes is not known")
    dollars = most_dollars(costs, len(jobs), rates)
    if jobs[0].command == "serve":
        print(describe_endpoint(options))
    if jobs[0].reads_data and (jobs[0].dataset is None or has_script(jobs[0].dataset)):
        print(f"before that, where the Volume lacks its data: {describe_cost(preparing, 1, rates)}")
        dollars += most_dollars(preparing, 1, rates)
    print(CEILING)
    if options.dry_run:
        print(describe(jobs, options))
        return False
    check_cost(options, dollars)
    return True


def data_options(job: Job, options: LaunchOptions) -> LaunchOptions:
    """Return the options by which a job's data are prepared: on many cores, unless that takes a second."""
    small = job.dataset is not None and has_script(job.dataset) and is_small(job.dataset)
    chosen = COMMANDS["prepare"].options(SMALL_DATA if small else {})
    return replace(chosen, secret=options.secret, detach=options.detach)


def job_of(name: str, argv: list[str], options: LaunchOptions) -> Job:
    """Return the job that a command sends to Modal. Raises UserError for a mistake in its words."""
    match name:
        case "train":
            return training_job(argv, options)
        case "prepare":
            return preparing_job(argv, options)
        case "sample":
            return sampling_job(argv, options, given(argv, options_of(name)))
        case "bench":
            from bench import BenchOptions, check_rival

            own, rest = split_options(argv, BenchOptions)
            check_rival(own)
            own_words = [word for word in argv if word not in rest]
            return measuring_job(name, rest, options, own_words)
        case "profile":
            return measuring_job(name, argv, options)
    return job_of_a_run(name, argv, options, given(argv, options_of(name)))


def options_of(name: str) -> type[CommandOptions]:
    """Return the options of a command's script, which is imported late: most of them import JAX."""
    if name in ("sample", "evaluate", "export", "serve"):
        return getattr(import_module(name), f"{name.capitalize()}Options")
    return Options


def run_here(name: str, argv: list[str], options: LaunchOptions, first: bool = False) -> int:
    """Run a command's script on this machine. Return its status."""
    if first:
        out_dir = options.run_name or "out-quickstart"
        status, _ = run_script("train.py", [*argv, f"--out_dir={out_dir}", "--init_from=auto"])
        if status == 0:
            status, _ = run_script("sample.py", [f"--out_dir={out_dir}", *SAMPLE])
    elif name == "prepare":
        folder = argv[0] if argv else ""
        if not has_script(folder):
            raise UserError(f"prepare {folder}: no such data set; your own: python data/prepare.py --help")
        status, _ = run_script(f"data/{folder}/prepare.py", argv[1:])
    elif options.run_name or name == "profile":
        run = options.run_name or Path(given(argv, Options).get("out_dir", Options.out_dir)).name
        of_a_run = name != "train" and bool(options.run_name)
        status, _ = run_job(Job(name, argv, run, of_a_run), Path(run))
    else:
        status, _ = run_script(COMMANDS[name].script, argv)
    return status


def start_sweep(argv: list[str]) -> None:
    """Train the runs of a sweep, here one after another or at Modal some at a time, and compare them."""
    ours, words = separate_options(argv)
    options = COMMANDS["train"].options(given(ours, LaunchOptions))
    at_modal = options.run_on_remote or options.dry_run
    plan = plan_sweep(words, options, training_job if at_modal else training_job_here)
    preparing = data_options(plan.jobs[0], options)
    if not at_modal:
        leave(run_sweep(plan, Here(), lambda jobs: [train_here(job) for job in jobs]))
    elif announce([*plan.jobs, *plan.last_job()], options, preparing):
        leave(
            run_sweep(plan, InVolume(), lambda jobs: rent(plan.name, jobs, options, preparing, several=True))
        )


def training_job_here(argv: list[str], options: LaunchOptions) -> Job:
    """Return the job that trains a run on this machine. Raises UserError for a bad option."""
    values = given(argv, Options)
    name = options.run_name or values.pop("out_dir", Options.out_dir)
    return Job("train", [f"--{option}={value}" for option, value in values.items()], name)


def train_here(job: Job) -> int:
    """Train a run of a sweep. Return its status. Ctrl-C ends the sweep with it, by KeyboardInterrupt."""
    print(f"training {job.run_name}", flush=True)
    status, stop = run_job(job, Path(job.run_name))
    if stop:
        raise KeyboardInterrupt
    return status


def start_experiment(argv: list[str]) -> None:
    """Train the runs that an experiment lacks, here or at Modal some at a time, and write table and plot."""
    from experiments.runner import run
    from tools.cloud.experiment import job_of_task, load_program, take_results  # here, because it imports JAX

    ours, words = separate_options(argv)
    options = COMMANDS["experiment"].options(given(ours, LaunchOptions))
    name, words = (words or [""])[0], words[1:]
    program, at_modal = load_program(name), options.run_on_remote or options.dry_run
    if at_modal and "--time" in words:
        raise UserError("--time compares steps on this machine: leave out --run-on-remote and --dry-run")

    def train(due, _, ended) -> int:
        """Train at Modal the runs that have no result there. Return how many have none afterwards."""
        if not due:
            print("all runs that are asked for have results here")
        left = due if options.dry_run else take_results(InVolume(), due, ended)
        jobs = [job_of_task(task, options) for task in left]
        if not jobs or not announce(jobs, options, preparing := data_options(jobs[0], options)):
            return 0
        try:
            rent(name, jobs, options, preparing, several=True)
        finally:  # when this is stopped, some have ended
            left = take_results(InVolume(), left, ended)
        if left:
            print(f"without a result: {'; '.join(map(str, left))}; the same command tries these again")
        return len(left)

    leave(run(program.EXPERIMENTS, program.__doc__, words, train=train if at_modal else None))


def start_looking(name: str, argv: list[str], at_modal: bool) -> None:
    """List runs, watch one, or bring one home. Raises UserError."""
    ours, theirs = separate_options(argv)
    if theirs:
        raise UserError(f"{name} {theirs[0]}: it takes --run-name and --run-on-remote alone")
    options = LaunchOptions(**given(ours, LaunchOptions))
    remote, run = options.run_on_remote or at_modal or name == "fetch", options.run_name
    if options.dry_run:
        print(f"costs nothing: {name} reads {'the Volume' if remote else 'this folder'} without a machine")
    elif name == "list":
        look.list_runs(InVolume() if remote else Here())
    elif not run:
        raise UserError(f"--run-name is missing: {name} needs one, and list shows those that are there")
    elif name == "watch":
        look.watch(InVolume() if remote else Here(), run)
    else:
        files = look.fetch(InVolume(), run)
        go_on = f"python train.py --out_dir={run} --init_from=resume --device=auto"
        print(f"{run}/ has {len(files)} files now; to go on here: {go_on}")


# For `modal run app.py::NAME`


def entrypoint(name: str) -> Any:
    """Return an App whose entrypoint runs a command.

    It takes bare words: Modal refuses a value for a `bool` parameter. The App has no functions, because Modal
    builds and uploads an App's functions before its entrypoint runs, even for a run on this machine.
    """
    app = modal.App(f"nanojaxgpt-{name}")
    app.local_entrypoint(name=name)(words_to(name))
    return app


def words_to(name: str) -> Callable[..., None]:
    def run(*arglist: str) -> None:
        import config.interrupt  # noqa: F401  now: imported by a script later, it would take Ctrl-C from Modal

        command(lambda _: start(name, [*arglist], at_modal=True))

    # Modal takes no function that is defined in another, as its qualified name would say.
    run.__qualname__ = f"{name}_entrypoint"
    return run


if modal is not None:
    train, sample, prepare, sweep = map(entrypoint, ("train", "sample", "prepare", "sweep"))
    experiment = entrypoint("experiment")
    evaluate, bench, profile, export = map(entrypoint, ("evaluate", "bench", "profile", "export"))
    serve, watch, list, fetch = map(entrypoint, ("serve", "watch", "list", "fetch"))
    # `modal run app.py` takes, of several entrypoints, the one that is a name of the module.
    main = modal.App("nanojaxgpt").local_entrypoint()(words_to("train"))

if __name__ == "__main__":
    command(start_by_name)
