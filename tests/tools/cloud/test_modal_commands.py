"""The other commands at Modal: by the real `modal` command, on a stand-in for Modal's servers."""

import asyncio
import json
import re
import signal
from types import SimpleNamespace

import httpx
import pytest
from modal_proto import api_pb2 as pb

from tests.helpers import DEADLINE, contents, free_port, saved_iterations, start_python, wait_until
from tests.tools.cloud.launches import containers, errors, remote
from tools.cloud import container

pytestmark = [pytest.mark.slow, containers]


def test_results_of_a_run_in_the_volume_come_home(at_modal, project, trained, tmp_path):
    """And the run stays as it is."""
    before = contents(trained / "checkpoints")

    def there(name, *words):
        words = ["run", f"{project / 'app.py'}::{name}", "--run-on-remote", "--run-name=run", *words]
        status, printed, server = at_modal(*words, cwd=tmp_path)
        assert status == 0 and len(server.containers) == 1, printed
        return printed

    there("evaluate", "--device=cpu")
    result = json.loads((tmp_path / "run" / "evaluate.json").read_text())
    assert result["tokens"] == 299 and result["loss"] > 0
    there("export")
    there("export")  # again, of a later checkpoint perhaps
    assert (tmp_path / "run" / "export" / "model.safetensors").stat().st_size > 1000
    assert "tokens/s" in there("bench", "--device=cpu", "--steps=3")
    assert contents(trained / "checkpoints") == before
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_runs_in_the_volume_are_listed_and_watched_without_a_container(at_modal, trained):
    for words, status, says in (
        (["list"], 0, "iter 10, val loss"),
        (["watch", "--run-name=run"], 0, "iter 10, "),
        (["watch", "--run-name=other"], 2, "--run-name=other: there is no such run"),
        (["fetch", "--run-name=other"], 2, "--run-name=other: there is no such run"),
        (["sample", "--run-on-remote", "--run-name=other"], 2, "there is no such run"),
    ):
        ended, printed, server = at_modal("run", f"app.py::{words[0]}", *words[1:])
        assert ended == status and says in printed and not server.containers
        assert len(errors(printed)) == (status != 0)


def test_documents_in_the_volume_are_prepared_on_cpus_once(at_modal, tokenizer_json):
    volume = at_modal.volume
    (volume / "mine.txt").write_text("\n<|endoftext|>\n".join(f"the story {n}" for n in range(40)))
    (volume / "tokenizer.json").write_text(tokenizer_json.read_text())
    words = ["run", "app.py::prepare", "--run-on-remote", "mine", "--source=/vol/mine.txt", "--cores=2"]
    words += ["--tokenizer=/vol/tokenizer.json", "--val_fraction=0.3"]
    status, printed, server = at_modal(*words)
    assert status == 0, printed
    (create,) = server.sent("FunctionCreate")
    resources = create.function.resources
    assert not resources.gpu_config.count and (resources.milli_cpu, resources.memory_mb) == (2000, 16384)
    assert (resources.milli_cpu_max, resources.memory_mb_max) == (4000, 32768)
    counts = json.loads((volume / "data" / "mine" / "meta.json").read_text())["counts"]
    assert min(counts.values()) > 0 and "40 documents" in printed
    before = contents(volume / "data" / "mine")
    status, printed, server = at_modal(*words)
    assert status == 0 and contents(volume / "data" / "mine") == before


def test_a_sweep_at_modal(at_modal, tiny, project, tmp_path):
    """All runs at once; again, it trains nothing."""
    words = remote(tiny, max_iters=4, eval_interval=2)[3:]
    words = ["run", f"{project / 'app.py'}::sweep", "--run-on-remote", *words, "--sweep=n_head:2,3"]
    words += ["--sweep=seed:1,2", "--max-dollars=100"]
    status, printed, server = at_modal(*words, cwd=tmp_path)
    assert status == 1 and len(server.containers) == 4, printed
    assert printed.count("iter 0, no loss yet: failed") == 2
    for seed in (1, 2):
        assert saved_iterations(at_modal.volume / "runs" / f"run.n_head-2.seed-{seed}") == [2, 4]
    words[words.index("--sweep=n_head:2,3")] = "--sweep=n_head:2"
    status, printed, server = at_modal(*words, cwd=tmp_path)
    assert status == 0 and not server.containers, printed


def ask(port: int, key: str) -> int:
    """The status with which a server answers a request; 0 before it listens."""
    try:
        url, headers = f"http://127.0.0.1:{port}/v1/completions", {"Authorization": f"Bearer {key}"}
        body = {"prompt": "the ", "max_tokens": 5}
        return httpx.post(url, json=body, headers=headers, timeout=DEADLINE).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.parametrize("detach", [False, True])
def test_a_run_is_served_behind_a_url_with_a_key(at_modal, trained, monkeypatch, detach):
    """The server that a container would start answers here. The URL is Modal's, and nothing listens there."""

    async def stop_when_published(server, running):
        while len(server.sent("AppPublish")) < 2 and not running.done():  # the first is `modal run`'s own
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)  # until its URL is printed
        if not detach:
            server.client.send_signal(signal.SIGINT)

    words = ["app.py::serve", "--run-on-remote", "--run-name=run", "--device=cpu", "--max-dollars=40"]
    words = ["run", *(["--detach"] if detach else []), *words]
    status, printed, server = at_modal(*words, meanwhile=stop_when_published)
    assert "Traceback" not in printed and not server.containers
    assert "serving at https://me--run-serve.modal.run" in printed
    (create,) = server.sent("FunctionCreate")
    assert create.function.webhook_config.type == pb.WEBHOOK_TYPE_WEB_SERVER
    assert create.function.webhook_config.web_server_port == container.SERVER_PORT
    assert create.function.concurrency_limit == 1 and create.function.task_idle_timeout_secs == 300
    states = [request.app_state for request in server.sent("AppPublish")]
    assert (pb.APP_STATE_DEPLOYED in states) == detach == ("modal app stop nanojaxgpt-run-serve" in printed)

    (variables,) = server.secret_values.values()
    text = variables[container.SERVER_WORDS].replace("/vol/runs/run", str(trained))
    monkeypatch.setenv(container.SERVER_WORDS, text)
    monkeypatch.setattr(container, "SERVER_PORT", port := free_port())
    started = []
    popen = SimpleNamespace(Popen=lambda words, cwd: started.append(start_python(*words[1:], cwd=cwd)))
    monkeypatch.setattr(container, "subprocess", popen)
    container.serve_in_container()
    wait_until(lambda: ask(port, "another-key") == 401, *started)
    found = re.search(r"with the key (\S+);", printed)
    assert found and len(found[1]) >= 32 and ask(port, found[1]) == 200
