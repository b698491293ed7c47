"""The launcher: any command on a rented machine at Modal, or on this one: docs/cloud.md.

    modal run app.py --run-on-remote true                           a first small model, for cents
    modal run app.py --run-on-remote true config/train_gpt2.py      train.py with these words
    modal run app.py --run-on-remote true sample.py --out_dir=big   another command with its words
    python app.py sample.py ...                                     the same here: no account, no network
    python app.py --dry-run ...                                     what would run there, and at what cost

Words that are not options of the launcher (python app.py --help) are the command's.
"""

import signal
from dataclasses import replace

import modal

from common.command_line import show_help, take_options
from common.errors import UserError, command
from tools.cloud import VOLUME
from tools.cloud.options import LaunchOptions
from tools.cloud.process import run_command
from tools.cloud.rent import launch

SCRIPTS = ("train.py", "rl.py", "sample.py", "evaluate.py", "export.py", "serve.py", "bench.py", "plan.py")
FIRST = [
    ["train.py", "config/quickstart.py", "--init_from=auto"],
    ["sample.py", "--out_dir=out-quickstart", "--start=def ", "--num_samples=1", "--max_new_tokens=200"],
]
SMALL = LaunchOptions(gpu="L4", timeout_hours=0.5, retries=0)


def start(argv: list[str]) -> int:
    """Run a command. Return its status. Raises UserError."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops a run as Ctrl-C does
    if not argv or "--help" in argv or "-h" in argv:
        show_help(LaunchOptions, "app.py")  # which `modal` may have started
    asked, words = take_options(argv, LaunchOptions)
    options = replace(LaunchOptions() if words else SMALL, **asked)
    commands = [whole_command(words)] if words else FIRST
    try:
        if options.run_on_remote or options.dry_run:
            status = launch(commands, options)
        else:
            if rented := asked.keys() - {"run_on_remote", "dry_run"}:
                what = f"--{min(rented)} is for a rented machine"
                raise UserError(f"{what}: add --run-on-remote true, or leave it out")
            status = 0
            for each in commands:
                status = status or run_command(each)[0]
    except modal.exception.Error as error:
        raise UserError(f"Modal: {error}") from None
    return status if status >= 0 else 128 - status  # for a signal, the status that a shell has


def whole_command(words: list[str]) -> list[str]:
    """Return a command of the project. Words that begin with a config or an option are train.py's."""
    named = words[0] in SCRIPTS or words[0].startswith("data/")
    return words if named else ["train.py", *words]


# It has no functions, which Modal would build before the entrypoint runs, even for a run here.
app = modal.App(VOLUME)


@app.local_entrypoint()
def main(*words: str) -> None:  # not options: Modal refuses a value for one of type `bool`
    """Run the command that the words after `modal run app.py` name."""
    command(lambda _: start(list(words)))


if __name__ == "__main__":
    command(start)
