"""The other commands at Modal: by the real `modal` command, on a stand-in for Modal's servers."""

import asyncio
import json
import re
import signal

import httpx
import pytest

from tests.helpers import DEADLINE, contents, free_port
from tests.tools.cloud.launches import containers
from tests.tools.cloud.modal_container import HOST

pytestmark = [pytest.mark.slow, containers]


def test_commands_find_a_run_in_the_volume_and_leave_their_results_there(at_modal, trained):
    """And the run stays as it is."""
    before = contents(trained / "checkpoints")

    def there(*words):
        status, printed, server = at_modal("run", "app.py", "--run-on-remote", *words)
        assert status == 0 and len(server.containers) == 1, printed
        (create,) = server.sent("FunctionCreate")
        return printed, create.function.resources

    there("evaluate.py", "--out_dir=run", "--device=cpu", "--json=evaluate.json")
    result = json.loads((at_modal.volume / "evaluate.json").read_text())
    assert result["tokens"] == 299 and result["loss"] > 0
    _, machine = there("export.py", "--out_dir=run", "--to=exports/run", "--gpu=none", "--cores=2")
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
        server.client.send_signal(signal.SIGINT)

    words = ["serve.py", "--out_dir=run", "--device=cpu", f"--port={port}"]
    status, printed, server = at_modal("run", "app.py", "--run-on-remote", *words, meanwhile=ask_and_stop)
    assert status == 130 and len(server.containers) == 1 and "Traceback" not in printed
    found = re.search(rf"serving at https://{HOST} and https://{HOST}/v1, --api_key=(\S+)", printed)
    assert found and len(found[1]) >= 32 and answers == {"another-key": 401, found[1]: 200}
