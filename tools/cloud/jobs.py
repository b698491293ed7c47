"""Make the job that a command sends to Modal. A mistake is answered here, before anything is rented."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from config.command_line import UserError, check_value, given
from config.files import is_plain_name
from config.options import NOT_RESUMED, RESUMING, SHAPE, Options
from data.loader import is_small, known_datasets
from data.prepare import parse
from data.sources import Hub
from tools.cloud import MOUNTED, VOLUME
from tools.cloud.commands import Job
from tools.cloud.options import LaunchOptions
from tools.cloud.supervise import ROOT


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
    dataset = checked_dataset(values)
    if dataset is None and values.get("init_from") not in RESUMING:
        dataset = Options.dataset
    if values.get("wandb_log") and not options.secrets:
        raise UserError(
            "wandb_log=True needs --secret=NAME, a Modal secret with your key: "
            "modal secret create NAME WANDB_API_KEY=..."
        )
    return Job("train", words_for(values, options), run_name, dataset=dataset)


def sampling_job(argv: list[str], options: LaunchOptions, values: dict[str, Any]) -> Job:
    """Return the job that runs sample.py. A prompt in a file is sent as its text.

    Raises UserError without a run's name, or for a file that cannot be read.
    """
    words = []
    for word in argv:
        start = re.fullmatch("(--start=)?FILE:(.*)", word)
        try:
            words.append(f"{start[1] or ''}{Path(start[2]).read_text('utf-8')}" if start else word)
        except (OSError, ValueError) as error:  # ValueError: it is not UTF-8
            raise UserError(f"{word}: cannot be read as text: {error}") from None
    return job_of_a_run("sample", words, options, values)


def job_of_a_run(command: str, argv: list[str], options: LaunchOptions, values: dict[str, Any]) -> Job:
    """Return the job that samples, evaluates, exports or serves a run in the Volume.

    `values` are the options that its words set, checked. Raises UserError without a run's name.
    """
    if options.nodes > 1:
        raise UserError(f"--nodes={options.nodes} is for training: {command} runs on one machine")
    start = values.get("init_from", "resume")  # or a model that is no run's
    if not options.run_name and start == "resume":
        raise UserError("--run-name is missing; modal run app.py::list lists the runs in the Volume")
    name = options.run_name or check_value("run_name", re.sub(r"\W+", "-", start), "--", LaunchOptions)
    if examples := values.get("hellaswag"):
        check_in_volume("hellaswag", examples)
    if values.get("follow"):
        raise UserError("--follow=True: at Modal a server sees the run as it was when its container started")
    dataset = checked_dataset(values)
    if options.machine.count and command != "export" and "device" not in values:  # as in words_for
        argv = [*argv, "--device=cuda"]
    return Job(command, argv, name, of_a_run=start == "resume", dataset=dataset)


def measuring_job(command: str, argv: list[str], options: LaunchOptions, own: Sequence[str] = ()) -> Job:
    """Return the job that times or traces the step of a run in the Volume, or of a config.

    `own` are the words of bench.py that are none of train.py's. Raises UserError for a bad option.
    """
    values = given(argv, Options)
    if options.nodes > 1:
        raise UserError(f"--nodes={options.nodes} is for training: {command} runs on one machine")
    values.pop("init_from", None)  # neither does anything with the weights
    out_dir = values.pop("out_dir", Options.out_dir)
    dataset = checked_dataset(values) or (None if options.run_name else Options.dataset)
    name = options.run_name or check_value("run_name", Path(out_dir).name, "--", LaunchOptions)
    words = [*words_for(values, options), *own]
    return Job(command, words, name, of_a_run=bool(options.run_name), dataset=dataset)


def preparing_job(argv: list[str], options: LaunchOptions) -> Job:
    """Return the job that prepares a data set of data/, or the user's own documents that are in the Volume.

    Raises UserError for a data set that there is not, and for options that its prepare.py does not take.
    """
    name, words = (argv or [""])[0], argv[1:]
    if not is_plain_name(name):
        known = ", ".join(known_datasets())
        raise UserError(f"prepare {name}: first comes the name of a data set: {known}, or a new one")
    ours = has_script(name)
    if ours and is_small(name):
        if words:
            raise UserError(f"{words[0]}: {name} is small, and is prepared without options")
        return Job("prepare", [], name)
    arguments = parse(words, f"Prepare {name}.", Path(name), Hub(name) if ours else None)
    if arguments.to != Path(name):
        raise UserError(f"--to={arguments.to}: on Modal the data set lies in the Volume, as data/{name}")
    for path in arguments.source or []:
        check_in_volume("source", path)
    if arguments.tokenizer.endswith(".json"):
        check_in_volume("tokenizer", arguments.tokenizer)
    if arguments.num_proc is None:  # Python would count the cores of the whole host
        words = [*words, f"--num_proc={options.machine.cores:.0f}"]
    return Job("prepare", words, name)


def check_unchanged(
    words: list[str], theirs: Options, run: str, choice: str, free: tuple[str, ...] = ()
) -> None:
    """Raise UserError for options other than those that a run has, unless that is asked for by init_from.

    `run` says which run, and `choice` is the option that names another. Those in `free` may differ.
    """
    values = given(words, Options)
    start = values.get("init_from", "scratch")
    if start in RESUMING:
        return
    ours = replace(Options(), **values)
    of_weights = SHAPE if start != "scratch" else ()  # of which the weights decide those that are not given
    for name, value in theirs.to_json().items():
        new = getattr(ours, name)
        same = Path(str(value)).name == Path(str(new)).name if name == "dataset" else value == new
        if name in (*NOT_RESUMED, *free) or same or (name in of_weights and name not in values):
            continue
        raise UserError(
            f"{run} holds a run with {name}={value}, and this launch has {name}={new}: "
            f"go on with --init_from=resume, which changes it, or choose another {choice}"
        )


def has_script(dataset: str) -> bool:
    """Tell whether a data set of this project has that name: nobody else's script is run unasked."""
    return is_plain_name(dataset) and (ROOT / "data" / dataset / "prepare.py").is_file()


def check_in_volume(option: str, path: str) -> None:
    """Raise UserError for a file that no container will see."""
    if not path.startswith(f"{MOUNTED}/"):
        name = Path(path).name
        raise UserError(
            f"--{option}={path} would be looked for in the Volume: modal volume put {VOLUME} {path} {name}, "
            f"then give --{option}={MOUNTED}/{name}"
        )


def checked_dataset(values: dict[str, Any]) -> str | None:
    """Return the data set that options name, if they do. Raises UserError for a folder of this machine."""
    if values.get("dataset") is None:
        return None
    dataset = Path(values["dataset"])
    if dataset.is_dir() and (dataset.is_absolute() or not (ROOT / "data" / dataset).is_dir()):
        raise UserError(
            f"dataset={dataset} is a folder here: modal volume put {VOLUME} {dataset} "
            f"data/{dataset.name}, then give --dataset={dataset.name}"
        )
    return str(dataset)


def words_for(values: dict[str, Any], options: LaunchOptions) -> list[str]:
    """Return train.py's options as words. On a rented GPU they ask for it."""
    if options.machine.count:  # or JAX would fall back to the CPU, at a GPU's price
        values = {"device": "cuda"} | values
    return [f"--{name}={value}" for name, value in values.items()]
