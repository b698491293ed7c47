"""Commands at Modal: by the real `modal` command, on a stand-in for Modal's servers (modal_server.py).

The stand-in notes what is asked of Modal. What is to run in a container really runs in one.
"""

import asyncio
import json
import re
import signal
import sys

import httpx
import pytest
from modal._serialization import serialize

from tests.helpers import (
    DEADLINE,
    LONG_RUN,
    assert_same_bits,
    can_unshare,
    contents,
    free_port,
    newest_checkpoint,
    saved_iterations,
    saved_state,
)
from tests.tools.cloud.modal_server import HOST

needs_mounts = pytest.mark.skipif(not can_unshare("-rm"), reason="needs Linux's mount namespaces")
pytestmark = [pytest.mark.slow, needs_mounts]

# All that a run here may ask of Modal: to be noted as an App, which `modal run` itself does.
HARMLESS = {"EnvironmentGetOrCreate", "ClientHello"} | {
    f"App{name}" for name in ("Create", "Publish", "Heartbeat", "GetLogs", "ClientDisconnect")
}


def remote(tiny, **changes) -> list[str]:
    """The words of a tiny run at Modal, whose out_dir is `run` and whose data are in the Volume."""
    return ["run", "app.py", "--run-on-remote", *tiny("run", **{"dataset": "tiny"} | changes)]


def errors(printed: str) -> list[str]:
    """The lines of error among what a command printed: Modal's own begin with "Error"."""
    assert "Traceback" not in printed
    return [line for line in printed.splitlines() if line.lower().startswith("error: ")]


def once_saved(do):
    """Have `do(server)` happen once the run has a checkpoint."""

    async def happen(server, running):
        while newest_checkpoint(server.volume / "run") == 0:
            assert not running.done()
            await asyncio.sleep(0.02)
        do(server)

    return happen


def crash(server):
    """All of the container is gone at once."""
    server.containers[0].kill()


def kill(server):
    """The kernel kills the script, as for want of memory."""
    (script,) = server.containers[0].scripts()
    script.kill()


def preempt(server):
    server.containers[0].process.send_signal(signal.SIGINT)


def cancel(server):
    """As Modal's client does when a heartbeat's answer says that the input is cancelled."""
    server.containers[0].process.send_signal(signal.SIGUSR1)


def ctrl_c(server):
    server.client.send_signal(signal.SIGINT)


def test_modal_run_without_the_flag_asks_nothing_of_modal(at_modal, tiny, tmp_path):
    out = tmp_path / "out"
    status, printed, server = at_modal("run", "app.py", *tiny(out))
    assert status == 0 and saved_iterations(out) == [5, 10]
    assert {name for name, _ in server.requests} <= HARMLESS


def test_quickstart_at_modal(at_modal, project, tmp_path):
    """Trained there; it prints the command that copies the run."""
    steps = ["--max_iters=4", "--eval_interval=2", "--eval_iters=1", "--batch_size=2", "--n_layer=1"]
    machine = ["--gpu=H100:2", "--timeout-hours", "1.5", "--retries=3", "--out_dir=first"]
    machine += ["--max-dollars=60", "--device=cpu"]
    status, printed, server = at_modal(
        *("run", "app.py", "--run-on-remote", "true", "config/quickstart.py", *steps, *machine),
        *("--wandb_log=True", "--secret", "wandb,hf"),
        secrets={"wandb": {"WANDB_API_KEY": "0" * 40, "WANDB_MODE": "disabled"}, "hf": {"HF_TOKEN": "hf_x"}},
    )
    assert status == 0, printed
    run = at_modal.volume / "first"
    assert saved_iterations(run) == [2, 4]
    assert (at_modal.volume / "data" / "book_char" / "train.bin").exists()

    (create,) = server.sent("FunctionCreate")
    function = create.function
    assert (function.resources.gpu_config.gpu_type, function.resources.gpu_config.count) == ("H100", 2)
    assert function.timeout_secs == 5400 and function.retry_policy.retries == 3
    assert [mount.mount_path for mount in function.volume_mounts] == ["/vol"]
    assert len(function.secret_ids) == 2 and len(server.containers) == 1
    assert function.single_use_containers  # an attempt begins in a container that has done nothing yet
    kept = server.image_environment()
    assert kept["JAX_PLATFORMS"] == "cuda,cpu"  # not the CPU, if it finds no GPU
    assert all(kept[name].startswith("/vol/cache") for name in ("TIKTOKEN_CACHE_DIR", "XDG_CACHE_HOME"))
    uploaded = {file.filename for r in server.sent("MountGetOrCreate") for file in r.files}
    paths = [
        path for pattern in ("*.py", "*.csv", "*.jinja", "tools/**/*.json") for path in project.rglob(pattern)
    ]
    code = {f"/root/{path.relative_to(project)}" for path in paths if ".venv" not in path.parts}
    code.add("/root/data/book_char/text.gz")
    page = [path for path in uploaded if path.startswith("/root/tools/serving/page/")]
    assert uploaded == {"/requirements.txt", "/root/requirements.txt", *code, *page} and len(page) > 10
    lines = [line for image in server.images for line in image.dockerfile_commands]
    assert all(line in lines for line in (project / "Dockerfile").read_text().splitlines())

    (line,) = [line for line in printed.splitlines() if "modal volume get" in line]
    assert line.endswith("modal volume get nanojaxgpt first")


@pytest.mark.parametrize("disturb, retries", [(preempt, 0), (crash, 0), (kill, 1)])
def test_a_disturbed_run_ends_with_the_same_weights(at_modal, tiny, undisturbed, disturb, retries):
    words = remote(tiny, **LONG_RUN)
    status, printed, server = at_modal(*words, f"--retries={retries}", meanwhile=once_saved(disturb))
    assert status == 0, printed
    assert len(server.containers) == 2 and "resuming at iter" in printed
    assert_same_bits(saved_state(at_modal.volume / "run"), saved_state(undisturbed))


def test_of_two_launches_of_one_name_one_trains(at_modal, project, tiny):
    """Whether they start together, or one while the other trains, which is then refused before it rents."""
    words, others = remote(tiny, **LONG_RUN), []

    async def launch_again(server, running):
        command = [sys.executable, "-m", "modal", *words]
        second = asyncio.ensure_future(server.command(command, project))
        while newest_checkpoint(server.volume / "run") == 0:
            await asyncio.sleep(0.05)
        (training,) = [x for container in server.containers for x in container.scripts()]
        training.suspend()  # it would end before a slow machine has launched another
        others.append(await server.command(command, project))
        await asyncio.wait({running, second}, return_when=asyncio.FIRST_COMPLETED)
        training.resume()
        assert "Created Function" not in others[0][1]  # nothing was rented for it
        others.append(await second)

    status, printed, server = at_modal(*words, meanwhile=launch_again)
    launches = [(status, printed), *others]
    assert sorted(status for status, _ in launches) == [0, 2, 2]
    for status, printed in launches:
        assert status == 0 or "run is trained by another launch" in errors(printed)[0]
    assert saved_iterations(at_modal.volume / "run")[-1] == LONG_RUN["max_iters"]


def test_a_failure_of_the_run_itself_is_not_repeated(at_modal, tiny):
    status, printed, server = at_modal(*remote(tiny, mesh="data:3"))
    assert status == 2 and len(server.containers) == 1
    assert errors(printed) == ["error: mesh=data:3 needs 3 devices, of 1: change its axes"]


def test_when_no_attempt_is_left_it_says_so_in_one_line(at_modal, tiny):
    """Each attempt has 0.36 seconds, in which Python does not even import JAX."""
    status, printed, server = at_modal(*remote(tiny, **LONG_RUN), "--timeout-hours=0.0001", "--retries=1")
    assert status == 2 and len(server.containers) == 2
    (line,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert "its time is up (status -15): the next attempt, or the same command, goes on" in line


def test_a_launch_does_not_change_a_run_unasked(at_modal, tiny):
    """The run's name is that of a call that Modal has forgotten, so it is taken over."""
    at_modal.entries[serialize("run")] = serialize("fc-1")
    run = at_modal.volume / "run"
    status, printed, _ = at_modal(*remote(tiny))
    assert status == 0, printed
    status, printed, server = at_modal(*remote(tiny))  # the same: it has ended
    assert status == 0 and not server.sent("FunctionCreate")
    assert "run has come to its end; nothing is rented" in printed
    before = saved_state(run)
    status, printed, server = at_modal(*remote(tiny, learning_rate=0.5, max_iters=20))
    assert status == 2 and not server.containers
    assert "run holds a run with learning_rate=0.01, and this launch has" in errors(printed)[0]
    assert_same_bits(saved_state(run), before)
    status, printed, _ = at_modal(*remote(tiny, max_iters=20, init_from="resume"))
    assert status == 0 and saved_iterations(run)[-1] == 20


@pytest.mark.parametrize("modals", [[], ["--detach"]])
def test_ctrl_c_stops_a_run_with_its_checkpoint_kept_unless_it_is_detached(
    at_modal, tiny, undisturbed, modals
):
    run, *words = remote(tiny, **LONG_RUN)
    status, printed, server = at_modal(run, *modals, *words, meanwhile=once_saved(ctrl_c))
    assert status == 130 and len(server.containers) == 1 and "Traceback" not in printed
    if modals:
        assert_same_bits(saved_state(at_modal.volume / "run"), saved_state(undisturbed))
    else:
        assert 0 < saved_iterations(at_modal.volume / "run")[-1] < LONG_RUN["max_iters"]
        status, printed, server = at_modal(run, *words)  # its name is free
        assert status == 0 and "resuming at iter" in printed


def test_a_cancelled_input_leaves_a_checkpoint(at_modal, tiny):
    status, printed, server = at_modal(*remote(tiny, **LONG_RUN), meanwhile=once_saved(cancel))
    assert status == 2 and len(server.containers) == 1
    assert errors(printed) == ["error: it was cancelled; the same command goes on with it"]
    assert 0 < saved_iterations(at_modal.volume / "run")[-1] < LONG_RUN["max_iters"]


def test_without_a_word_the_quickstart_is_rented_and_a_refusal_of_modals_is_one_line(at_modal):
    status, printed, server = at_modal("run", "app.py", "--run-on-remote", "true", "--secret=nosuch")
    assert status != 0 and not server.containers
    assert "costs at most $0.63" in printed and "train.py config/quickstart.py --init_from=auto" in printed
    (line,) = errors(printed)
    assert line.startswith("error: Modal: Secret 'nosuch' not found")


def test_commands_find_a_run_in_the_volume_and_leave_their_results_there(at_modal, trained):
    """And the run stays as it is."""
    before = contents(trained / "checkpoints")

    def there(*words):
        status, printed, server = at_modal("run", "app.py", "--run-on-remote", *words)
        assert status == 0 and len(server.containers) == 1, printed
        (create,) = server.sent("FunctionCreate")
        return create.function.resources

    there("evaluate.py", "--out_dir=run", "--device=cpu", "--json=evaluate.json")
    result = json.loads((at_modal.volume / "evaluate.json").read_text())
    assert result["tokens"] == 299 and result["loss"] > 0
    machine = there("export.py", "--out_dir=run", "--to=exports/run", "--gpu=none", "--cores=2")
    assert not machine.gpu_config.count and (machine.milli_cpu, machine.memory_mb) == (2000, 16384)
    assert (machine.milli_cpu_max, machine.memory_mb_max) == (4000, 32768)
    assert (at_modal.volume / "exports" / "run" / "model.safetensors").stat().st_size > 1000
    assert contents(trained / "checkpoints") == before


def ask(port: int, key: str) -> int:
    """The status with which a server answers a request; 0 before it listens."""
    try:
        url, headers = f"http://127.0.0.1:{port}/v1/completions", {"Authorization": f"Bearer {key}"}
        body = {"prompt": "the ", "max_tokens": 5}
        return httpx.post(url, json=body, headers=headers | {"Host": HOST}, timeout=DEADLINE).status_code
    except httpx.TransportError:
        return 0


def test_a_run_is_served_behind_a_url_with_a_key(at_modal, trained):
    """The URL is Modal's, and nothing listens there. Its container is asked here, until a Ctrl-C ends it."""
    port, answers = free_port(), {}

    async def ask_and_stop(server, running):
        while (answer := await asyncio.to_thread(ask, port, "another-key")) in (0, 503):  # it loads
            assert not running.done()
            await asyncio.sleep(0.2)
        answers["another-key"] = answer
        (serving,) = server.containers[0].scripts()
        (key,) = [word.removeprefix("--api_key=") for word in serving.cmdline() if "api_key" in word]
        answers[key] = await asyncio.to_thread(ask, port, key)
        ctrl_c(server)

    words = ["serve.py", "--out_dir=run", "--device=cpu", f"--port={port}"]
    status, printed, server = at_modal("run", "app.py", "--run-on-remote", *words, meanwhile=ask_and_stop)
    assert status == 130 and len(server.containers) == 1 and "Traceback" not in printed
    found = re.search(rf"serving at https://{HOST} and https://{HOST}/v1, --api_key=(\S+)", printed)
    assert found and len(found[1]) >= 32 and answers == {"another-key": 401, found[1]: 200}
