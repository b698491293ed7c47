"""app.py as its user meets it: here, without a network; and by the real `modal` on a stand-in for its server.

The stand-in (tests/cloud) notes what is asked of Modal. What is to run in a container really runs in one.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import app
from cloud.prices import CORE, GIB, Machine
from config.command_line import given, option_types
from config.options import Options
from model import GPT
from runs.load import load_run
from tests.cloud.modal_server import ModalServer
from tests.cloud.modal_service import Disturbance
from tests.helpers import (
    DEADLINE,
    ROOT,
    assert_same_bits,
    free_port,
    named_arrays,
    newest_checkpoint,
    refusal,
    run_python,
    saved_iterations,
    start_python,
    wait_until,
)

SENT = {"train.py", "sample.py", "model.py"}
ROOMS = {
    "cloud",
    "config",
    "data",
    "evaluation",
    "generation",
    "hub",
    "layers",
    "parallel",
    "runs",
    "training",
}
INTRUDERS = (".env", "notes.txt", "out/checkpoints/5/model", ".venv/lib/x.py", "data/python_char/train.bin")
# All that a run here may ask of Modal: to be noted as an App, which `modal run` itself does.
HARMLESS = {"EnvironmentGetOrCreate", "ClientHello"} | {
    f"App{name}" for name in ("Create", "Publish", "Heartbeat", "GetLogs", "ClientDisconnect")
}
TWO_MACHINES = ("--nodes=2", "--gpu=H100:8", "--max-dollars=1000")
LONG = {"max_iters": 600, "eval_interval": 50, "log_interval": 100, "lr_decay_iters": 600}


def namespaces(*kinds: str) -> bool:
    return subprocess.run(["unshare", *kinds, "true"], capture_output=True).returncode == 0


no_network = pytest.mark.skipif(not namespaces("-rn"), reason="needs Linux's network namespaces")
containers = pytest.mark.skipif(not namespaces("-rm"), reason="needs Linux's mount namespaces")


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A copy of the project, with files that must not travel."""
    folder = tmp_path_factory.mktemp("project")
    for name in [*SENT, *ROOMS, "app.py", "requirements.txt"]:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.bin", "__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, folder)
    for name in INTRUDERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("secret")
    container = folder / "cloud" / "container.py"  # tests that run at a time share this machine's ports
    assert "PORT = 1234" in container.read_text()
    container.write_text(container.read_text().replace("PORT = 1234", f"PORT = {free_port()}"))
    return folder


@pytest.fixture
def at_modal(project, tmp_path, tiny_data):
    """`at_modal("run", "app.py", ...)`: exit status and output of that `modal` command, and the server."""
    volume = tmp_path / "modal" / "volumes" / "nanojaxgpt"
    shutil.copytree(tiny_data, volume / "data" / "tiny")

    def modal(*words, environment=None, python=("-m", "modal"), **server):
        async def talk():
            async with ModalServer(tmp_path / "modal", **server) as stand_in:
                command = [sys.executable, *python, *words]
                return *await stand_in.command(command, project, environment), stand_in

        return asyncio.run(talk())

    modal.volume = volume
    return modal


@pytest.fixture(scope="session")
def undisturbed(tiny, project, tmp_path_factory):
    """A long run here: its folder. Its weights are what a disturbed one must arrive at."""
    out = tmp_path_factory.mktemp("runs") / "undisturbed"
    done = run_python("app.py", *tiny(out, **LONG), cwd=project)
    assert done.returncode == 0, done.stderr
    return out


def remote(tiny, **changes) -> list[str]:
    """The words of a tiny run at Modal, whose out_dir is `run` and whose data are in the Volume."""
    return ["run", "app.py", "--run-on-remote", *tiny("run", **{"dataset": "tiny"} | changes)]


def weights(out: Path) -> GPT:
    return load_run(str(out))[0]


def errors(printed: str) -> list[str]:
    """The lines of error among what a command printed: Modal's own begin with "Error"."""
    assert "Traceback" not in printed
    return [line for line in printed.splitlines() if line.lower().startswith("error: ")]


# The command line


@pytest.mark.parametrize(
    "argv, is_remote",
    [
        (["--run-on-remote", "true"], True),
        (["--run-on-remote"], True),
        (["--run-on-remote=true"], True),
        (["--run_on_remote=True"], True),
        (["--run-on-remote", "false"], False),
        (["--run-on-remote=false"], False),
        ([], False),
    ],
)
def test_every_form_of_the_flag_before_and_after_other_words(argv, is_remote):
    others = ["config/quickstart.py", "--batch-size", "8", "--bias=True"]
    for words in (argv + others, others + argv):
        ours, theirs = app.separate_options(words)
        assert given(ours, app.LaunchOptions).get("run_on_remote", False) is is_remote
        assert theirs == others


def test_launcher_options_take_a_value_after_a_space_or_a_sign():
    ours, theirs = app.separate_options(
        ["--gpu", "H100:8", "c.py", "--timeout-hours=0.5", "--n_layer", "2", "--retries"]
    )
    assert ours == ["--gpu=H100:8", "--timeout-hours=0.5", "--retries="]
    assert theirs == ["c.py", "--n_layer", "2"]


def test_no_launcher_option_hides_one_of_the_scripts():
    from sample import SampleOptions

    launcher = set(option_types(app.LaunchOptions))
    assert not launcher & (set(option_types(Options)) | set(option_types(SampleOptions)))


def test_options_travel_with_their_values(tmp_path):
    config = tmp_path / "elsewhere.py"
    config.write_text("n_layer = 2 * 3\ndataset = 'python_char'\nout_dir = 'runs/mine'\nn_kv_head = None\n")
    argv = [str(config), "--learning_rate", "1e-3", "--wandb_project=a b"]
    job = app.training_job(argv, app.LaunchOptions())
    assert job.run_name == "mine"
    there = given(job.words, Options)
    here = given(argv, Options)
    assert there == {"device": "cuda"} | {name: value for name, value in here.items() if name != "out_dir"}
    on_cpus = app.training_job([*argv, "--device=cpu"], app.LaunchOptions())
    assert given(on_cpus.words, Options)["device"] == "cpu"
    assert "device" not in given(app.training_job(argv, app.LaunchOptions(gpu="none")).words, Options)


@pytest.mark.parametrize(
    "argv, says",
    [
        (["--n_layers=2"], "--n_layers is not an option; did you mean n_layer?"),
        (["config/nosuch.py"], "config/nosuch.py: there is no such config file"),
        (["--timeout-hours=25"], "--timeout_hours is 25, expected a number above 0, up to Modal's 24"),
        (["--gpu"], "--gpu is '', expected a name"),
        (["--gpu=H1000"], "--gpu=H1000: H1000 is none of T4, L4, A10,"),
        (["--gpu=H100:9"], "H100:9 is none of"),
        (["--n_layer=2", "--gpu=H100"], "that is above --max-dollars=20: give --max-dollars=51"),
        (["--timeout-hours=24", "--retries=10"], "above --max-dollars=20"),
        (["--nodes=2", "--gpu=H100", "--max-dollars=200"], "--nodes=2 needs whole machines: --gpu=H100:8"),
        (["--dry-run=maybe"], "--dry_run is 'Maybe', expected True or False"),
        (["--run-name=a/b"], "--run_name is 'a/b', expected letters"),
        (["--out_dir=/"], "--run_name is '', expected letters"),
        (["--overwrite=True"], "modal volume rm -r nanojaxgpt runs/out"),
        (["--dataset={folder}"], "modal volume put nanojaxgpt {folder}"),
        (["--wandb_log=True"], "--secret=NAME"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_rented(argv, says, tmp_path):
    argv = [word.format(folder=tmp_path) for word in argv]
    text = refusal(app.launch, "train.py", ["--run-on-remote", *argv])
    assert says.format(folder=tmp_path) in text


@pytest.mark.parametrize(
    "argv, says",
    [
        ([], "--run-name is missing"),
        (["--run-name=x", "--nodes=2"], "--nodes=2 is for training"),
        (["--run-name=x", "--start=FILE:nosuch.txt"], "--start=FILE:nosuch.txt: cannot be read"),
    ],
)
def test_a_mistake_about_samples_is_answered_before_anything_is_rented(argv, says):
    assert says in refusal(app.launch, "sample.py", ["--run-on-remote", *argv])


def test_a_prompt_in_a_file_travels_as_its_text(tmp_path):
    (tmp_path / "prompt.txt").write_text("Twas brillig\n")
    job = app.sampling_job(
        ["--num_samples=1", f"--start=FILE:{tmp_path}/prompt.txt"], app.LaunchOptions(run_name="x")
    )
    assert job.words == ["--num_samples=1", "--start=Twas brillig\n"]
    job = app.sampling_job(["--start", f"FILE:{tmp_path}/prompt.txt"], app.LaunchOptions(run_name="x"))
    assert job.words == ["--start", "Twas brillig\n"]


# What it costs


@pytest.mark.parametrize(
    "gpu, price",
    {"H100": 3.95, "A10G": 1.10, "H100!:2": 7.90, "L4,A100-80GB": 2.50, "h200:8": 36.32, "none": 0}.items(),
)
def test_the_price_of_a_machine_is_its_gpus_cores_and_memory(gpu, price):
    machine = Machine.parse(gpu)
    rest = machine.cores * CORE + machine.gib * GIB
    assert machine.price == pytest.approx(price + rest) and 0 < rest < 3
    launched = app.LaunchOptions(gpu=gpu, nodes=2, timeout_hours=3, retries=3)
    assert app.most_dollars(launched) == pytest.approx(24 * machine.price)


def test_the_most_that_a_launch_can_cost_is_said_first(capsys):
    app.launch("train.py", ["--dry-run", "config/quickstart.py", "--gpu=H100", "--timeout-hours=2"])
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("costs at most $25.03: 3 attempts x 2 h x $4.17 (H100, ")
    assert any("--device=cuda" in line for line in rest)


# Here


@pytest.mark.parametrize("name, folder", [([], "out-quickstart"), (["--run-name=mine"], "mine")])
def test_without_a_word_it_trains_the_quickstart_and_shows_a_sample(monkeypatch, capsys, name, folder):
    started = []
    monkeypatch.setattr(
        app, "run_script", lambda script, words: (started.append((script, words)), (0, None))[1]
    )
    app.launch("train.py", list(name))
    (train, training), (sample, sampling) = started
    assert (train, sample) == ("train.py", "sample.py")
    assert given(training, Options) == given(["config/quickstart.py"], Options) | {
        "out_dir": folder,
        "init_from": "auto",  # typed again, it shows another sample
    }
    assert f"--out_dir={folder}" in sampling
    assert "config/quickstart.py" in capsys.readouterr().out
    app.launch("train.py", ["--dry-run", *name])
    printed = capsys.readouterr().out
    assert "then      sample.py --start=def " in printed and "costs at most $0.5" in printed


def test_modals_own_detach_counts():
    click = pytest.importorskip("click")
    assert not app.asked_to_detach()
    with click.Context(click.Command("run"), obj={"detach": True}):
        assert app.asked_to_detach()


@no_network
def test_here_it_needs_neither_modal_nor_a_network(project, tiny, tmp_path):
    (tmp_path / "modal.py").write_text("raise ImportError('not installed')")

    def alone(*words):
        return subprocess.run(
            ["unshare", "-rn", sys.executable, project / "app.py", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )

    run = alone(*tiny("out"), "--run-name=mine", "--run-on-remote", "false")
    assert run.returncode == 0 and saved_iterations(tmp_path / "mine") == [5, 10]
    run = alone(*tiny("out", n_head=3))
    assert run.returncode == 2 and len(errors(run.stderr)) == 1
    run = alone("--run-on-remote", *tiny("out", dataset="tiny"))
    assert run.returncode == 2 and "pip install modal" in errors(run.stderr)[0]
    run = alone("--dry-run", *tiny("out", dataset="tiny"), "--gpu=H100:8", "--nodes=2", "--secret=wandb")
    assert run.returncode == 0
    assert all(text in run.stdout for text in ("2 with H100:8", "4 h", "wandb", "jax[cuda13]", "--n_embd=16"))
    listed = {line.strip() for line in run.stdout.split(" kB:")[1].splitlines() if line}
    assert listed == files_to_send(project)


def files_to_send(project: Path) -> set[str]:
    rooms = (path for room in ROOMS for path in (project / room).rglob("*.py"))
    return SENT | {str(path.relative_to(project)) for path in rooms}


@pytest.mark.parametrize("signal_name", [pytest.param("SIGINT", marks=pytest.mark.slow), "SIGTERM"])
def test_a_signal_has_a_run_here_save_and_end_with_that_of_a_stopped_one(
    project, tiny, tmp_path, signal_name
):
    process = start_python("app.py", *tiny(tmp_path / "out", **LONG), cwd=project)
    wait_until(lambda: newest_checkpoint(tmp_path / "out"), process)
    process.send_signal(getattr(signal, signal_name))
    printed, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 143, errors  # the signal reaches it as SIGTERM
    stopped_at = saved_iterations(tmp_path / "out")[-1]
    assert stopped_at < LONG["max_iters"] and f"stopped at iter {stopped_at};" in printed


@containers
@pytest.mark.slow
def test_modal_run_without_the_flag_asks_nothing_of_modal(at_modal, tiny, tmp_path):
    status, printed, server = at_modal("run", "app.py", *tiny(tmp_path / "out"))
    assert status == 0 and saved_iterations(tmp_path / "out") == [5, 10]
    assert {name for name, _ in server.requests} <= HARMLESS
    status, printed, server = at_modal(
        *("run", "app.py::sample", "--run-on-remote=false", f"--out_dir={tmp_path / 'out'}"),
        *("--start=the ", "--num_samples=1", "--max_new_tokens=4"),
    )
    assert status == 0 and "the " in printed
    assert {name for name, _ in server.requests} <= HARMLESS
    status, printed, server = at_modal("run", "app.py", *tiny(tmp_path / "out"))
    assert status == 2 and "holds a run" in errors(printed)[0]


# At Modal


@containers
@pytest.mark.slow
def test_quickstart_at_modal(at_modal, project, tmp_path):
    """Trained there, fetched by the command that it prints, and sampled from there."""
    steps = ["--max_iters=4", "--eval_interval=2", "--eval_iters=1", "--batch_size=2", "--n_layer=1"]
    machine = ["--gpu=H100:2", "--timeout-hours", "1.5", "--retries=3", "--run-name=first"]
    machine += ["--max-dollars=60", "--device=cpu"]
    status, printed, server = at_modal(
        *("run", "app.py", "--run-on-remote", "true", "config/quickstart.py", *steps, *machine),
        *("--wandb_log=True", "--secret", "wandb"),
        secrets={"wandb": {"WANDB_API_KEY": "0" * 40, "WANDB_MODE": "disabled"}},
    )
    assert status == 0, printed
    run = at_modal.volume / "runs" / "first"
    assert saved_iterations(run) == [2, 4]
    assert (at_modal.volume / "data" / "python_char" / "train.bin").exists()

    (create,) = server.sent("FunctionCreate")
    function = create.function
    assert (function.resources.gpu_config.gpu_type, function.resources.gpu_config.count) == ("H100", 2)
    assert function.timeout_secs == 5400 and function.retry_policy.retries == 3
    assert [mount.mount_path for mount in function.volume_mounts] == ["/vol"]
    assert len(function.secret_ids) == 1
    uploaded = {file.filename for r in server.sent("MountGetOrCreate") for file in r.files}
    assert uploaded == {f"/root/{name}" for name in files_to_send(project)}
    lines = [line for image in server.images for line in image.dockerfile_commands]
    assert any("--requirements" in line and "'jax[cuda13]'" in line.split() for line in lines), lines
    (requirements,) = [file.data for image in server.images for file in image.context_files]
    assert requirements == (project / "requirements.txt").read_bytes()
    named = {line.partition(">=")[0] for line in requirements.decode().splitlines()}
    assert {"datasets", "wandb"} <= named

    fetch = printed.rpartition("modal volume get ")[2].splitlines()[0].split()
    status, printed, _ = at_modal("volume", "get", *fetch, str(tmp_path))
    assert status == 0, printed
    assert_same_bits(weights(tmp_path / "first"), weights(run))

    sampling = ["--start=def ", "--num_samples=1", "--max_new_tokens=8", "--temperature=0"]
    status, printed, _ = at_modal(
        "run", "app.py::sample", "--run-on-remote", "true", "--run-name=first", *sampling
    )
    assert status == 0
    here = run_python("sample.py", f"--out_dir={tmp_path / 'first'}", *sampling, cwd=project)
    assert here.stdout.startswith("def ") and here.stdout in printed


@containers
@pytest.mark.parametrize(
    "what, retries",
    [
        pytest.param("preempt", 0, marks=pytest.mark.slow),
        pytest.param("timeout", 1, marks=pytest.mark.slow),
        pytest.param("crash", 0, marks=pytest.mark.slow),
        pytest.param("kill", 1, marks=pytest.mark.slow),
    ],
)
def test_a_disturbed_run_ends_with_the_same_weights(at_modal, tiny, undisturbed, what, retries):
    # A crash loses what was not committed: it comes when a checkpoint has been.
    watched = at_modal.volume if what in ("crash", "timeout") else None
    disturbance = Disturbance(what, lambda volume: newest_checkpoint((watched or volume) / "runs" / "run"))
    status, printed, server = at_modal(
        *remote(tiny, **LONG), f"--retries={retries}", disturbances=[disturbance]
    )
    assert status == 0, printed
    assert len(server.containers) == 2 and "resuming at iter" in printed
    assert_same_bits(weights(at_modal.volume / "runs" / "run"), weights(undisturbed))


@pytest.mark.slow
@containers
def test_a_failure_of_the_run_itself_is_not_repeated(at_modal, tiny):
    status, printed, server = at_modal(*remote(tiny, n_head=3))
    assert status == 2 and len(server.containers) == 1
    assert errors(printed) == ["error: n_embd=16 must be a multiple of n_head=3"]
    status, printed, server = at_modal(*remote(tiny, dataset="missing"))
    assert status == 2 and len(server.containers) == 1
    assert len(errors(printed)) == 1 and "missing: no such data set" in errors(printed)[0]


@pytest.mark.slow
@containers
def test_when_no_attempt_is_left_it_says_so_in_one_line(at_modal, tiny):
    """Each attempt has 0.36 seconds, in which Python does not even import JAX."""
    status, printed, server = at_modal(*remote(tiny, **LONG), "--timeout-hours=0.0001", "--retries=1")
    assert status == 2 and len(server.containers) == 2
    (line,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert "its time is up: the next attempt, or the same command, goes on" in line


@pytest.mark.slow
@containers
def test_a_launch_does_not_change_a_run_unasked(at_modal, tiny):
    status, printed, _ = at_modal(*remote(tiny))
    assert status == 0, printed
    status, printed, _ = at_modal(*remote(tiny))  # the same: it has ended
    assert status == 0 and saved_iterations(at_modal.volume / "runs" / "run") == [5, 10]
    before = weights(at_modal.volume / "runs" / "run")
    status, printed, server = at_modal(*remote(tiny, learning_rate=0.5, max_iters=20))
    assert status == 2 and len(server.containers) == 1
    assert "runs/run holds a run with learning_rate=0.01, and this launch has" in errors(printed)[0]
    assert_same_bits(weights(at_modal.volume / "runs" / "run"), before)
    status, printed, _ = at_modal(*remote(tiny, max_iters=20, init_from="resume"))
    assert status == 0 and saved_iterations(at_modal.volume / "runs" / "run")[-1] == 20


def first_checkpoint(volume: Path) -> bool:
    return newest_checkpoint(volume / "runs" / "run") > 0


@containers
@pytest.mark.slow
def test_ctrl_c_stops_the_run_at_modal_with_its_checkpoint_kept(at_modal, tiny):
    disturbance = Disturbance("ctrl-c", first_checkpoint)
    status, printed, server = at_modal(*remote(tiny, **LONG), disturbances=[disturbance])
    assert status == 130 and len(server.containers) == 1
    assert "Traceback" not in printed
    assert 0 < saved_iterations(at_modal.volume / "runs" / "run")[-1] < LONG["max_iters"]


@pytest.mark.slow
@containers
@pytest.mark.parametrize("place", ["modal's", "ours"])
def test_a_detached_run_goes_on_after_ctrl_c(at_modal, tiny, undisturbed, place):
    disturbance = Disturbance("ctrl-c", first_checkpoint)
    run, *words = [*remote(tiny, **LONG), "--detach"]
    words = [run, "--detach", *words[:-1]] if place == "modal's" else [run, *words]
    status, printed, server = at_modal(*words, disturbances=[disturbance])
    assert status == 130 and len(server.containers) == 1
    assert "Traceback" not in printed
    assert_same_bits(weights(at_modal.volume / "runs" / "run"), weights(undisturbed))


@containers
@pytest.mark.parametrize(
    "words, environment, says",
    [
        (["--secret=nosuch"], {}, "error: --secret=nosuch: Modal has no such secret"),
        (["config/nosuch.py"], {}, "error: config/nosuch.py: there is no such config file"),
        ([], {"MODAL_TOKEN_ID": "", "MODAL_TOKEN_SECRET": ""}, "Error: Token missing"),
        ([], {"MODAL_TOKEN_SECRET": "as-other"}, "Error: Token ID or secret is wrong"),
    ],
)
def test_a_refusal_is_one_line(at_modal, tiny, words, environment, says):
    status, printed, server = at_modal(*remote(tiny), *words, environment=environment)
    assert status != 0 and not server.containers
    (line,) = errors(printed)
    assert line.startswith(says)


@pytest.mark.parametrize("command", [["-m", "modal", "run", "app.py"], ["app.py"]])
def test_no_connection_is_one_line(project, tiny, tmp_path, command):
    """The client tries for a minute, with pauses that are made short here."""
    (tmp_path / "sitecustomize.py").write_text(
        "import asyncio\nsleep = asyncio.sleep\nasyncio.sleep = lambda seconds: sleep(seconds / 1000)\n"
    )
    login = {"MODAL_CONFIG_PATH": os.devnull, "MODAL_TOKEN_ID": "ak-x", "MODAL_TOKEN_SECRET": "as-x"}
    words = [*command, "--run-on-remote", *tiny("run", dataset="tiny")]
    login |= {"MODAL_SERVER_URL": "http://127.0.0.1:1", "PYTHONPATH": str(tmp_path)}
    run = run_python(*words, cwd=project, **login)
    assert run.returncode != 0
    (line,) = errors(run.stderr)
    assert line.endswith("Could not connect to the Modal server.")


@pytest.mark.slow  # what follows needs it too
@containers
def test_two_machines_find_each_other(at_modal, tiny):
    """The loss of a model on two machines is that on one."""
    words = remote(tiny, eval_only=True, mesh="data:-1")
    status, one, server = at_modal(*words)
    assert status == 0, one
    status, two, server = at_modal(*words, *TWO_MACHINES)
    assert status == 0, two
    (create,) = server.sent("FunctionCreate")
    assert create.function._experimental_group_size == 2 and create.function.resources.rdma
    assert len(server.containers) == 2
    loss = next(line for line in one.splitlines() if line.startswith("train loss"))
    assert loss in two


@pytest.mark.slow
@containers
def test_two_machines_go_on_from_the_checkpoints_of_the_first(at_modal, tiny):
    """They share no folder: what one writes to the Volume, the other one does not see while it runs."""
    command = [*remote(tiny, **LONG | {"max_iters": 200}, mesh="data:-1"), *TWO_MACHINES]
    disturbance = Disturbance("preempt", first_checkpoint)
    status, printed, server = at_modal(*command, disturbances=[disturbance])
    assert status == 0, printed
    assert len(server.containers) == 4 and "resuming at iter" in printed, printed
    assert saved_iterations(at_modal.volume / "runs" / "run")[-1] == 200
    # One process reads them.
    assert all(np.isfinite(x).all() for x in named_arrays(weights(at_modal.volume / "runs" / "run")).values())


@pytest.mark.slow
@containers
def test_weights_divided_among_machines_are_refused_at_the_start(at_modal, tiny):
    """No machine could write the checkpoint, and they share no folder to write it together."""
    status, printed, server = at_modal(*remote(tiny, mesh="fsdp:2"), *TWO_MACHINES)
    assert status == 2 and len(server.containers) == 2
    assert "not the same folder for all machines" in printed and "Traceback" not in printed
    assert not (at_modal.volume / "runs" / "run" / "checkpoints").exists()
