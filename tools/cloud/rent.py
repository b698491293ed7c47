"""Rent machines at Modal, and run jobs on them. What runs in their containers is in container.py.

An App is made for each launch, when everything is known: `modal run` would build and upload the functions of
an App that a module has, even for a run on this machine.
"""

import math
from pathlib import Path
from typing import Any

from config.command_line import UserError, given
from config.options import Options
from tools.cloud import MOUNTED, VOLUME
from tools.cloud.claims import claimed
from tools.cloud.commands import SAMPLE, Job, words_of
from tools.cloud.jobs import check_unchanged, has_script, preparing_job
from tools.cloud.look import fetch, is_running, read_options, standing
from tools.cloud.options import LaunchOptions, counted
from tools.cloud.places import InVolume, modal, modal_errors, open_volume
from tools.cloud.prices import BURST
from tools.cloud.supervise import ROOT

try:
    import click  # Modal's command is made with it
except ImportError:
    click: Any = None

# Only these files are sent: no data, no checkpoints, no .env. Requirements are installed in the image.
FILES = (
    *("train.py", "sample.py", "evaluate.py", "bench.py", "export.py", "serve.py", "model.py", "variants.py"),
    *(f"experiments/{name}.py" for name in ("__init__", "rented", "runner", "record", "report")),
)
FOLDERS = ("config", "layers", "data", "training", "runs", "parallel", "generation", "hub", "tools")
PAGE = (".html", ".js", ".css", ".svg")  # of the page that serve.py shows
PYTHON = "3.12"
JAX = "jax[cuda13]"  # beside requirements.txt, for its GPU
RDMA = ("libibverbs1", "ibverbs-providers")  # by which the GPUs of a cluster's machines reach each other
ENVIRONMENT = {
    "PYTHONPATH": "/root",
    "PYTHONUNBUFFERED": "1",  # a line is in the log when it is printed
    "NANOJAXGPT_DATA": f"{MOUNTED}/data",
    # Downloads and compiled programs are kept. JAX's programs lie below XDG_CACHE_HOME.
    "XDG_CACHE_HOME": f"{MOUNTED}/cache",
    "HF_HOME": f"{MOUNTED}/cache/huggingface",
    "TIKTOKEN_CACHE_DIR": f"{MOUNTED}/cache/tiktoken",
}


def files_to_send() -> list[Path]:
    """Return the paths of the files that are sent, relative to the project's folder."""
    found = [Path(name) for name in FILES]
    for folder in FOLDERS:
        paths = (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", *PAGE))
        found += [path.relative_to(ROOT) for path in paths]
    return found


def describe(jobs: list[Job], options: LaunchOptions) -> str:
    """Return a text that says what `rent` would rent and send."""
    files = files_to_send()
    size = sum((ROOT / path).stat().st_size for path in files)
    names = ", ".join(f"{'data' if job.command == 'prepare' else 'runs'}/{job.run_name}" for job in jobs)
    machine, runs, gpu = options.machine, MOUNTED / "runs", options.gpu if options.gpu != "none" else "no GPU"
    return "\n".join(
        [
            f"machines  {options.nodes} with {gpu}, {counted(machine.cores, 'core')}, {machine.gib} GiB",
            f"time      {counted(1 + options.retries, 'attempt')} of {options.timeout_hours:g} h at most",
            f"secret    {', '.join(options.secrets) or 'none'}",
            f"volume    {VOLUME}, at {MOUNTED}, for {names}",
            f"image     Debian, Python {PYTHON}, {', '.join(RDMA)}; pip install -r requirements.txt {JAX}",
            *(f"command   {' '.join([job.script, *words_of(job, runs / job.run_name)])}" for job in jobs),
            *([f"then      {' '.join(['sample.py', *SAMPLE])}"] if jobs[0].sample else []),
            f"files     {len(files)}, {size / 1000:.0f} kB:",
            *(f"          {path}" for path in files),
        ]
    )


def rent(
    name: str, jobs: list[Job], options: LaunchOptions, preparing: LaunchOptions, several: bool = False
) -> list[int | None]:
    """Run jobs on Modal, each on a machine of its own, and print their output here.

    Data that they need and the Volume lacks is prepared first, on a machine as `preparing` has it. Return
    their statuses. A job that Modal ended raises UserError, or among `several` has the status None. Raises
    UserError for a run that another launch trains.
    """
    runs, calls, statuses = InVolume(), [], [130] * len(jobs)  # Ctrl-C ends the inner `with` below, quietly
    trained = [job.run_name for job in jobs if job.command in ("train", "experiment")]
    with modal_errors(), claimed(trained) as launches:
        for job in jobs:
            check_run(runs, job)
        if not several and (done := what_is_done(runs, jobs[0])):
            print(f"{done}; nothing is rented")
            return [0]
        missing = [preparing_job([dataset], preparing) for dataset in missing_data(runs, jobs)]
        app, image = modal.App(f"{VOLUME}-{name}"), make_image()
        machine = make_function(app, image, jobs[0].command, options)
        cpus: Any = make_function(app, image, "prepare", preparing) if missing else None
        with modal.enable_output(), app.run(detach=detached(options)):
            for job in missing:
                print(f"data/{job.run_name} is not in the Volume: preparing it first, on CPUs", flush=True)
                if status := cpus.spawn(job, preparing, None).get():
                    return [status] * len(jobs)
            launch_of = launches.pop if detached(options) else launches.get  # its container releases it
            calls = [machine.spawn(job, options, launch_of(job.run_name, None)) for job in jobs]
            statuses = [outcome(job, call, several) for job, call in zip(jobs, calls, strict=True)]
    if not calls:
        print("stopped before it began; the same command goes on with what was prepared")
        raise KeyboardInterrupt
    for job, status in zip(jobs, statuses, strict=True):
        if status == 0 and job.results:
            files = fetch(runs, job.run_name, job.results)
            print(f"here now: {', '.join(f'{job.run_name}/{x}' for x in job.results)} ({len(files)} files)")
    return statuses


def check_run(runs: InVolume, job: Job) -> None:
    """Raise UserError for a run that has to be there and is not, that trains now, or would be changed."""
    name = job.run_name
    if job.of_a_run and runs.read(f"{name}/options.json") is None:
        raise UserError(
            f"--run-name={name}: there is no such run in the Volume; modal run app.py::list lists them"
        )
    if job.command != "train":
        return
    if is_running(runs.listing(name, below=False), name):
        raise UserError(
            f"runs/{name} is being trained now: modal run app.py::watch --run-name={name} shows it; "
            "or choose another --run-name"
        )
    if (theirs := read_options(runs, name)) and runs.listing(f"{name}/checkpoints", below=False):
        check_unchanged(job.words, theirs, f"runs/{name}", "--run-name")


def missing_data(runs: InVolume, jobs: list[Job]) -> list[str]:
    """Return the names of the data sets that jobs read and the Volume lacks.

    Raises UserError for one that cannot be prepared there.
    """
    data, missing = InVolume("data"), []
    for job in jobs:
        if not job.reads_data:
            continue
        dataset = job.dataset or (read_options(runs, job.run_name) or Options()).dataset
        name = Path(dataset).name  # a run of an earlier version has the whole path
        if name in missing or has_data(data, name):
            continue
        if not has_script(name):
            raise UserError(
                f"dataset={name}: no such data set in the Volume, and none that can be prepared: "
                f"modal volume put {VOLUME} <its folder> data/{name}"
            )
        missing.append(name)
    return missing


def has_data(data: InVolume, name: str) -> bool:
    there = {entry.path for entry in data.listing(name, below=False)}
    return bool(there & {f"{name}/train.bin", f"{name}/train_00000.bin"})


def what_is_done(runs: InVolume, job: Job) -> str | None:
    """Return the line that says why there is nothing to do for a job; None where there is."""
    name = job.run_name
    if job.command == "prepare" and has_data(InVolume("data"), name):
        return f"data/{name} is prepared; to do it anew: modal volume rm -r {VOLUME} data/{name}"
    if job.command == "train" and (found := standing(runs, name)):
        asked = given(job.words, Options)
        if found.saved >= asked.get("max_iters", found.max_iters) and not asked.get("eval_only"):
            return f"runs/{name} has come to its end, at iter {found.saved:,}"
    return None


def make_function(
    app: "modal.App", image: "modal.Image", command: str, options: LaunchOptions
) -> "modal.Function":
    """Return a function of the App that runs jobs in containers as `options` have them."""
    from tools.cloud.container import run_in_container  # here, because it imports modal

    run = run_in_container
    if options.nodes > 1:
        run = modal.clustered(size=options.nodes, rdma=True)(run)
    return app.function(
        name=command,
        **machine_settings(image, options),
        timeout=math.ceil(options.timeout_hours * 3600),
        retries=options.retries,
        single_use_containers=True,  # an attempt begins in a container that has done nothing yet
        max_containers=options.parallel * options.nodes,
    )(run)


def machine_settings(image: "modal.Image", options: LaunchOptions) -> dict[str, Any]:
    """Return the settings of a function that say what its containers are."""
    machine = options.machine
    return {
        "image": image,
        "gpu": machine.gpus[0] if len(machine.gpus) == 1 else list(machine.gpus) or None,
        "cpu": (machine.cores, BURST * machine.cores),
        "memory": (1024 * machine.gib, BURST * 1024 * machine.gib),
        "volumes": {str(MOUNTED): open_volume()},
        "secrets": [find_secret(name) for name in options.secrets],
        "include_source": False,  # it is among the image's files
    }


def outcome(job: Job, call: "modal.FunctionCall", several: bool) -> int | None:
    """Return the status of a job when it has ended. A job that Modal ended stops no other of `several`."""
    try:
        return call.get()
    except (modal.exception.Error, ChildProcessError) as error:
        if not several:
            raise
        print(f"{job.run_name}: {error}", flush=True)
        return None


def closing_hint(job: Job, status: int, options: LaunchOptions) -> str:
    """Return what can be done after a training run, by how it has ended."""
    name = job.run_name
    if status == 0:
        return (
            f"the run, with its checkpoints: modal run app.py::fetch --run-name={name}, "
            f"or modal volume get {VOLUME} runs/{name}"
        )
    if status == 130 and detached(options):
        return f"the run goes on: modal run app.py::watch --run-name={name}"
    if status in (130, 143):
        return "the run was stopped; the same command goes on from its last checkpoint, if it has one"
    return (
        f"the run failed by itself (status {status}): what it said is above; the same again would fail again"
    )


def detached(options: LaunchOptions) -> bool:
    return options.detach or asked_to_detach()


def asked_to_detach() -> bool:
    """Tell whether this is `modal run --detach`, whose own App, the outer one, has nothing to go on with."""
    context = click.get_current_context(silent=True) if click else None
    return bool(context and context.obj and context.obj.get("detach"))


def find_secret(name: str) -> "modal.Secret":
    """Return a secret at Modal. Raises UserError if it is missing, before Modal builds the image."""
    try:
        return modal.Secret.from_name(name).hydrate()
    except modal.exception.NotFoundError:
        raise UserError(
            f"--secret={name}: Modal has no such secret: modal secret create {name} WANDB_API_KEY=..., "
            "or HF_TOKEN=..."
        ) from None


def make_image() -> "modal.Image":
    """Return the image of all containers: its software, and this project's files at /root."""
    sent = set(files_to_send())
    return (
        modal.Image.debian_slim(python_version=PYTHON)
        .apt_install(*RDMA)
        .env(ENVIRONMENT)
        .uv_pip_install(JAX, requirements=[str(ROOT / "requirements.txt")])
        .add_local_dir(ROOT, "/root", ignore=lambda path: path not in sent)
    )
