"""Run train.py or sample.py on a rented GPU at Modal (https://modal.com), or on this machine.

    modal run app.py --run-on-remote true                           a first small model, for cents
    python app.py                                                   the same here: no account, no network
    python app.py --help                                            lists the launcher's own options
    python app.py --dry-run config/train_gpt2.py --gpu=H100:8       what would be rented, and at what cost
    modal run app.py --run-on-remote true config/quickstart.py --gpu=H100 --learning_rate=1e-3
    modal run app.py::sample --run-on-remote true --run-name=out-quickstart --start="def "

Words that are not options of the launcher go to train.py (or sample.py). A run on Modal lives in the Volume
`nanojaxgpt`: its out_dir is `runs/<run name>/`, and its data, prepared once, are in `data/<data set>/`. When
its machine is taken away, its time is up or it is killed, Modal starts it again and it goes on from its last
checkpoint. What it can cost at most is said first, and refused above --max-dollars. docs/cloud.md describes
the rest, other clouds and TPUs.
"""

if __name__ == "__main__":
    import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

import math
import re
import signal
import sys
import uuid
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from cloud import MOUNTED, VOLUME
from cloud.prices import READ, Machine
from cloud.supervise import ROOT, run_script
from config.command_line import (
    Count,
    Limit,
    Name,
    NonNegative,
    NonNegativeInt,
    UserError,
    check_value,
    command,
    given,
    option_types,
)
from config.options import Options

try:
    import click  # Modal's command is made with it
    import modal
except ImportError:  # only the cloud needs it
    modal: Any = None

# Only these files are sent: no data, no checkpoints, no .env. Requirements are installed in the image.
FILES = ("train.py", "sample.py", "model.py")
ROOMS = (
    *("config", "layers", "data", "training", "runs", "parallel", "generation", "evaluation", "hub", "cloud"),
)
PYTHON = "3.12"
JAX = "jax[cuda13]"  # beside requirements.txt, for its GPU

# Without any word for train.py. The prompt is Python's, as the text is.
FIRST = "no config was given: training config/quickstart.py on Python's own source, then a sample of it"
SMALL: dict[str, Any] = {"gpu": "L4", "timeout_hours": 0.5, "retries": 0}  # it needs minutes, and ends
SAMPLE = ("--start=def ", "--num_samples=1", "--max_new_tokens=200")

RunName = Annotated[str, Limit("letters, digits, . _ and -", re.compile(r"\w[\w.-]*").fullmatch)]
Hours = Annotated[float, Limit("a number above 0, up to Modal's 24", lambda x: 0 < x <= 24)]


@dataclass(frozen=True)
class LaunchOptions:
    """The options of the launcher. The comment behind a field is its text in `--help`."""

    program: ClassVar[str] = "app.py"
    purpose: ClassVar[str] = "Train or sample on Modal, or here. Other options go to train.py or sample.py."

    run_on_remote: bool = False  # run on Modal; without it, on this machine
    gpu: Name = "A10"  # T4, L4, A10, L40S, A100-80GB, H100, H200, B200; H100:8; A100-80GB,H100: either; none
    timeout_hours: Hours = 4.0  # time for one attempt; the next one goes on from the last checkpoint
    retries: NonNegativeInt = 2  # attempts after the first, when time is up or the run is killed
    max_dollars: NonNegative = 20.0  # refuse what could cost more than this, all attempts together
    run_name: RunName = ""  # folder of the run; by default the name of its out_dir
    secret: Name = ""  # a Modal secret with WANDB_API_KEY, for --wandb_log=True
    detach: bool = False  # the run goes on when this command is stopped; as modal run --detach
    nodes: Count = 1  # machines that train together, each with all its GPUs: --gpu=H100:8
    dry_run: bool = False  # print what would be sent and rented


@dataclass(frozen=True)
class Job:
    """A command to run on Modal: everything that is sent besides the files."""

    script: str
    words: list[str]  # the script's options, each as --key=value
    run_name: str
    sample: bool = False  # print a sample of the trained model at the end


def launch(script: str, argv: list[str]) -> None:
    """Run a script here or on Modal, as `argv` says. Exit with its status if it fails. Raises UserError."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops a run as Ctrl-C does
    ours, theirs = separate_options(argv)
    first = script == "train.py" and not theirs
    options = LaunchOptions(**(SMALL if first else {}) | given(ours, LaunchOptions))
    if first:
        print(FIRST)
        theirs = ["config/quickstart.py"]
    if options.run_on_remote or options.dry_run:
        job = training_job(theirs, options) if script == "train.py" else sampling_job(theirs, options)
        job = replace(job, sample=first)
        print(describe_cost(options))
        if options.dry_run:
            print(describe(job, options))
            return
        check_cost(options)
        status = rent(job, options)
    else:
        if options.run_name:
            theirs.append(f"--out_dir={options.run_name}")
        out_dir = options.run_name or "out-quickstart"
        status, _ = run_script(script, [*theirs, "--init_from=auto"] if first else theirs)
        if first and status == 0:
            status, _ = run_script("sample.py", [f"--out_dir={out_dir}", *SAMPLE])
    if status:  # without an exception, `modal run` would report the App as completed
        sys.exit(status if status > 0 else 128 - status)  # for a signal, the status that a shell has


def separate_options(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return the launcher's options in a command line, as --key=value, and the other words as they are."""
    ours, theirs, words = [], [], deque(argv)
    while words:
        word = words.popleft()
        key, equals, value = word.partition("=")
        kind = option_types(LaunchOptions).get(key.removeprefix("--").replace("-", "_"))
        if word in ("--help", "-h"):
            ours.append(word)
        elif kind is None or not key.startswith("--"):
            theirs.append(word)
        elif kind is bool:  # --run-on-remote, with or without "true" or "false", after a space or a "="
            if not equals and words and words[0].lower() in ("true", "false"):
                value = words.popleft()
            ours.append(f"{key}={value.capitalize() or True}")
        else:
            if not equals and words and not words[0].startswith("--"):
                value = words.popleft()
            ours.append(f"{key}={value}")
    return ours, theirs


def training_job(argv: list[str], options: LaunchOptions) -> Job:
    """Return the job that runs train.py. Its options are checked here, before anything is rented.

    The options are sent one by one instead of their config file, which may lie anywhere and may change while
    the run goes on. Raises UserError for a bad option, and for one that cannot work on Modal.
    """
    values = given(argv, Options)
    out_dir = values.pop("out_dir", Options.out_dir)
    run_name = check_value("run_name", options.run_name or Path(out_dir).name, "--", LaunchOptions)
    if values.get("overwrite"):
        raise UserError(
            "overwrite=True would begin anew at every attempt: give another --run-name, or first "
            f"modal volume rm -r {VOLUME} runs/{run_name}"
        )
    dataset = Path(values.get("dataset", Options.dataset))
    if dataset.is_dir() and (dataset.is_absolute() or not (ROOT / "data" / dataset).is_dir()):
        raise UserError(
            f"dataset={dataset} is a folder here: modal volume put {VOLUME} {dataset} "
            f"data/{dataset.name}, then give --dataset={dataset.name}"
        )
    if values.get("wandb_log") and not options.secret:
        raise UserError(
            "wandb_log=True needs --secret=NAME, a Modal secret with your key: "
            "modal secret create NAME WANDB_API_KEY=..."
        )
    if Machine.parse(options.gpu).count:  # or JAX would fall back to the CPU, at a GPU's price
        values = {"device": "cuda"} | values
    return Job("train.py", [f"--{name}={value}" for name, value in values.items()], run_name)


def sampling_job(argv: list[str], options: LaunchOptions) -> Job:
    """Return the job that runs sample.py on a run in the Volume. A prompt in a file is sent as its text.

    Raises UserError without a run's name, or for a file that cannot be read.
    """
    if not options.run_name:
        raise UserError(f"--run-name is missing; modal volume ls {VOLUME} runs lists the runs")
    if options.nodes > 1:
        raise UserError(f"--nodes={options.nodes} is for training: sample.py runs on one machine")
    words = []
    for word in argv:
        start = re.fullmatch("(--start=)?FILE:(.*)", word)
        try:
            words.append(f"{start[1] or ''}{Path(start[2]).read_text('utf-8')}" if start else word)
        except (OSError, ValueError) as error:  # ValueError: it is not UTF-8
            raise UserError(f"{word}: cannot be read as text: {error}") from None
    return Job("sample.py", words, options.run_name)


def describe_cost(options: LaunchOptions) -> str:
    """Return the line that says what a launch can cost at most. Raises UserError for an unknown GPU."""
    machines = f"{options.nodes} machines x " if options.nodes > 1 else ""
    attempts = f"{1 + options.retries} attempts x " if options.retries else ""
    return (
        f"costs at most ${most_dollars(options):,.2f}: {machines}{attempts}{options.timeout_hours:g} h x "
        f"${Machine.parse(options.gpu).price:.2f} "
        f"({options.gpu}, cores and memory; prices of {READ}, see cloud/prices.py)"
    )


def check_cost(options: LaunchOptions) -> None:
    """Raise UserError for what could cost more than the user allows, or cannot be rented."""
    if (most := most_dollars(options)) > options.max_dollars:
        raise UserError(
            f"that is above --max-dollars={options.max_dollars:g}: give --max-dollars={math.ceil(most)}, "
            "or fewer --timeout-hours or --retries"
        )
    if options.nodes > 1 and Machine.parse(options.gpu).count < 8:
        raise UserError(f"--nodes={options.nodes} needs whole machines: --gpu=H100:8")


def most_dollars(options: LaunchOptions) -> float:
    """Return what a launch costs when every attempt takes all its time."""
    return Machine.parse(options.gpu).price * options.nodes * options.timeout_hours * (1 + options.retries)


def files_to_send() -> list[Path]:
    """Return the paths of the files that are sent, relative to the project's folder."""
    rooms = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    return [Path(name) for name in FILES] + [path.relative_to(ROOT) for path in rooms]


def describe(job: Job, options: LaunchOptions) -> str:
    """Return a text that says what `rent` would rent and send."""
    files = files_to_send()
    size = sum((ROOT / path).stat().st_size for path in files)
    return "\n".join(
        [
            f"machines  {options.nodes} with {options.gpu} each",  # cores and memory: cloud/prices.py
            f"time      {options.timeout_hours:g} h for an attempt, {1 + options.retries} attempts at most",
            f"secret    {options.secret or 'none'}",
            f"volume    {VOLUME}, at {MOUNTED}; the run is runs/{job.run_name}",
            f"image     Debian, Python {PYTHON}, pip install -r requirements.txt {JAX}",
            f"command   {' '.join([job.script, *job.words])}",
            *([f"then      {' '.join(['sample.py', *SAMPLE])}"] if job.sample else []),
            f"files     {len(files)}, {size / 1000:.0f} kB:",
            *(f"          {path}" for path in files),
        ]
    )


def rent(job: Job, options: LaunchOptions) -> int:
    """Run a job on Modal and print its output here. Return its exit status. Raises UserError."""
    if modal is None:
        raise UserError("--run-on-remote needs Modal's client: pip install modal, then modal setup")
    from cloud.container import run_in_container  # here, because it imports modal

    status, machine = 130, Machine.parse(options.gpu)  # Ctrl-C ends the `with` below, quietly
    try:
        app = modal.App(f"{VOLUME}-{job.run_name}")
        secrets = [find_secret(options.secret)] if options.secret else []
        run = run_in_container
        if options.nodes > 1:
            run = modal.clustered(size=options.nodes, rdma=True)(run)
        function = app.function(
            image=make_image(),
            gpu=machine.gpus[0] if len(machine.gpus) == 1 else list(machine.gpus) or None,
            cpu=machine.cores,
            memory=1024 * machine.gib,
            timeout=math.ceil(options.timeout_hours * 3600),
            retries=options.retries,
            single_use_containers=True,  # an attempt begins in a container that has done nothing yet
            volumes={str(MOUNTED): modal.Volume.from_name(VOLUME, create_if_missing=True)},
            secrets=secrets,
            include_source=False,  # it is among the image's files
        )(run)
        with modal.enable_output(), app.run(detach=options.detach or asked_to_detach()):
            # With spawn(), Modal itself starts another attempt: this machine may be off by then.
            status = function.spawn(
                job.script,
                job.words,
                job.run_name,
                seconds=options.timeout_hours * 3600,
                nodes=options.nodes,
                launch=uuid.uuid4().hex,
                sample=list(SAMPLE) if job.sample else None,
            ).get()
    except (modal.exception.Error, ChildProcessError) as error:
        raise UserError(f"Modal: {error}") from None
    if job.script == "train.py":
        print(f"the run, with its checkpoints: modal volume get {VOLUME} runs/{job.run_name}")
    return status


def asked_to_detach() -> bool:
    """Tell whether this is `modal run --detach`, whose own App, the outer one, has nothing to go on with."""
    context = click.get_current_context(silent=True)
    return bool(context and context.obj and context.obj.get("detach"))


def find_secret(name: str) -> "modal.Secret":
    """Return a secret at Modal. Raises UserError if it is missing, before Modal builds the image."""
    try:
        return modal.Secret.from_name(name).hydrate()
    except modal.exception.NotFoundError:
        raise UserError(
            f"--secret={name}: Modal has no such secret: modal secret create {name} WANDB_API_KEY=..."
        ) from None


def make_image() -> "modal.Image":
    """Return a container's image: its software, and this project's files at /root, where Python starts."""
    sent = set(files_to_send())
    return (
        modal.Image.debian_slim(python_version=PYTHON)
        .env({"PYTHONPATH": "/root"})
        .uv_pip_install(JAX, requirements=[str(ROOT / "requirements.txt")])
        .add_local_dir(ROOT, "/root", ignore=lambda path: path not in sent)
    )


def train_entrypoint(*arglist: str) -> None:
    """Train, for `modal run app.py`. It takes bare words: Modal refuses a value for a `bool` parameter."""
    command(lambda _: launch("train.py", list(arglist)))


def sample_entrypoint(*arglist: str) -> None:
    """Sample, for `modal run app.py::sample`."""
    command(lambda _: launch("sample.py", list(arglist)))


if modal is not None:
    # These Apps have no functions, because Modal builds and uploads an App's functions before its entrypoint
    # runs, even for a run on this machine. Of several entrypoints, `modal run app.py` takes the one that is a
    # name of the module.
    main = modal.App("nanojaxgpt").local_entrypoint()(train_entrypoint)
    sample = modal.App("nanojaxgpt-sample")
    sample.local_entrypoint()(sample_entrypoint)

if __name__ == "__main__":
    command(lambda argv: launch("train.py", argv))
