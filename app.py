"""Run train.py or sample.py on a rented GPU at Modal (https://modal.com), or on this machine.

    python app.py config/quickstart.py --batch_size=32              here: no account, no network, no modal
    python app.py --help                                            lists the launcher's own options
    python app.py --dry-run config/quickstart.py                    prints what would be sent and rented
    modal run app.py --run-on-remote true config/quickstart.py --gpu=H100 --learning_rate=1e-3
    modal run app.py::sample --run-on-remote true --run-name=out-quickstart --start="def "

Words that are not options of the launcher go to train.py (or sample.py). A run on Modal lives in the Volume
`nanojaxgpt`: its out_dir is `runs/<run name>/`, and its data, prepared once, are in `data/<data set>/`. When
its machine is taken away, its time is up or it is killed, Modal starts it again and it goes on from its last
checkpoint. docs/cloud.md describes the rest, other clouds and TPUs.
"""

if __name__ == "__main__":
    import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

import math
import re
import signal
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from cloud import MOUNTED, VOLUME
from cloud.supervise import ROOT, run_script
from config.command_line import (
    Count,
    Limit,
    Name,
    NonNegativeInt,
    UserError,
    check_value,
    command,
    given,
    option_types,
)
from config.options import Options

try:
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

RunName = Annotated[str, Limit("letters, digits, . _ and -", re.compile(r"\w[\w.-]*").fullmatch)]
Hours = Annotated[float, Limit("a number above 0, up to Modal's 24", lambda x: 0 < x <= 24)]


@dataclass(frozen=True)
class LaunchOptions:
    """The options of the launcher. The comment behind a field is its text in `--help`."""

    program: ClassVar[str] = "app.py"
    purpose: ClassVar[str] = "Train or sample on Modal, or here. Other options go to train.py or sample.py."

    run_on_remote: bool = False  # run on Modal; without it, on this machine
    gpu: Name = "A10G"  # L4, A10G, A100-80GB, H100, H200, B200, ..., or several, as in H100:8
    timeout_hours: Hours = 24.0  # time for one attempt; the next one goes on from the last checkpoint
    retries: NonNegativeInt = 10  # attempts after the first, when time is up or the run is killed
    run_name: RunName = ""  # folder of the run; by default the name of its out_dir
    secret: Name = ""  # a Modal secret with WANDB_API_KEY, for --wandb_log=True
    detach: bool = False  # the run goes on when this command is stopped
    nodes: Count = 1  # machines that train together, each with all its GPUs: --gpu=H100:8
    dry_run: bool = False  # print what would be sent and rented


@dataclass(frozen=True)
class Job:
    """A command to run on Modal: everything that is sent besides the files."""

    script: str
    words: list[str]  # the script's options, each as --key=value
    run_name: str


def launch(script: str, argv: list[str]) -> None:
    """Run a script here or on Modal, as `argv` says. Exit with its status if it fails. Raises UserError."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops a run as Ctrl-C does
    ours, theirs = separate_options(argv)
    options = LaunchOptions(**given(ours, LaunchOptions))
    if options.run_on_remote or options.dry_run:
        job = training_job(theirs, options) if script == "train.py" else sampling_job(theirs, options)
        if options.dry_run:
            print(describe(job, options))
            return
        status = rent(job, options)
    else:
        if options.run_name:
            theirs.append(f"--out_dir={options.run_name}")
        status, _ = run_script(script, theirs)
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
            f"machines  {options.nodes} with {options.gpu} each",
            f"time      {options.timeout_hours:g} h for an attempt, {1 + options.retries} attempts at most",
            f"secret    {options.secret or 'none'}",
            f"volume    {VOLUME}, at {MOUNTED}; the run is runs/{job.run_name}",
            f"image     Debian, Python {PYTHON}, pip install -r requirements.txt {JAX}",
            f"command   {' '.join([job.script, *job.words])}",
            f"files     {len(files)}, {size / 1000:.0f} kB:",
            *(f"          {path}" for path in files),
        ]
    )


def rent(job: Job, options: LaunchOptions) -> int:
    """Run a job on Modal and print its output here. Return its exit status. Raises UserError."""
    if modal is None:
        raise UserError("--run-on-remote needs Modal's client: pip install modal, then modal setup")
    from cloud.container import run_in_container  # here, because it imports modal

    status = 130  # Ctrl-C ends the `with` below, quietly
    try:
        app = modal.App(f"{VOLUME}-{job.run_name}")
        secrets = [find_secret(options.secret)] if options.secret else []
        run = run_in_container
        if options.nodes > 1:
            run = modal.clustered(size=options.nodes, rdma=True)(run)
        function = app.function(
            image=make_image(),
            gpu=options.gpu,
            timeout=math.ceil(options.timeout_hours * 3600),
            retries=options.retries,
            volumes={str(MOUNTED): modal.Volume.from_name(VOLUME, create_if_missing=True)},
            secrets=secrets,
            include_source=False,  # it is among the image's files
        )(run)
        with modal.enable_output(), app.run(detach=options.detach):
            seconds = options.timeout_hours * 3600
            # With spawn(), Modal itself starts another attempt: this machine may be off by then.
            status = function.spawn(job.script, job.words, job.run_name, seconds, options.nodes).get()
    except (modal.exception.Error, ChildProcessError) as error:
        raise UserError(f"Modal: {error}") from None
    if job.script == "train.py":
        print(f"the run, with its checkpoints: modal volume get {VOLUME} runs/{job.run_name}")
    return status


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
