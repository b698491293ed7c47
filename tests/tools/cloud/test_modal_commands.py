"""The other commands at Modal: by the real `modal` command, on a stand-in for Modal's servers."""

import asyncio
import json
import re
import signal
from pathlib import Path

import aiohttp
import pytest
from modal_proto import api_pb2 as pb

from tests.helpers import ROOT, contents, records, saved_iterations
from tests.tools.cloud.launches import LONG, containers, errors, first_checkpoint, remote
from tests.tools.cloud.modal_service import Disturbance


@pytest.mark.slow
@containers
def test_results_of_a_run_in_the_volume_come_home(at_modal, project, trained, tmp_path):
    """And the run stays as it is."""
    before = contents(trained / "checkpoints")
    home = tmp_path / "home"
    home.mkdir()

    def there(name, *words):
        words = ["run", f"{project / 'app.py'}::{name}", "--run-on-remote", "--run-name=run", *words]
        status, printed, server = at_modal(*words, cwd=home)
        assert status == 0 and len(server.containers) == 1, printed
        return printed

    there("evaluate", "--device=cpu")
    result = json.loads((home / "run" / "evaluate.json").read_text())
    assert result["tokens"] == 299 and result["loss"] > 0
    there("export")
    there("export")  # again, of a later checkpoint perhaps
    assert (home / "run" / "export" / "model.safetensors").stat().st_size > 1000
    there("profile", "--device=cpu")
    assert list((home / "run" / "profile").rglob("perfetto_trace.json.gz"))
    assert "tokens/s" in there("bench", "--device=cpu", "--steps=3")
    assert contents(trained / "checkpoints") == before
    assert not (home / "run" / "checkpoints").exists()


@pytest.mark.slow
@containers
def test_runs_in_the_volume_are_listed_and_watched_without_a_container(at_modal, trained):
    for words, status, says in (
        (["list"], 0, "iter 10, val loss"),
        (["watch", "--run-name=run"], 0, "iter 10: "),
        (["watch", "--run-name=other"], 2, "--run-name=other: there is no such run"),
        (["fetch", "--run-name=other"], 2, "--run-name=other: there is no such run"),
        (["sample", "--run-on-remote", "--run-name=other"], 2, "there is no such run"),
    ):
        ended, printed, server = at_modal("run", f"app.py::{words[0]}", *words[1:])
        assert ended == status and says in printed and not server.containers
        assert len(errors(printed)) == (status != 0)


@pytest.mark.slow
@containers
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


@pytest.mark.slow
@containers
def test_a_sweep_at_modal(at_modal, tiny, project, tmp_path):
    """All runs at once; again, it trains nothing."""
    home = tmp_path / "home"
    home.mkdir()
    words = remote(tiny, max_iters=4, eval_interval=2)[3:]
    words = ["run", f"{project / 'app.py'}::sweep", "--run-on-remote", *words, "--sweep=n_head:2,3"]
    words += ["--sweep=seed:1,2", "--max-dollars=100"]
    status, printed, server = at_modal(*words, cwd=home)
    assert status == 1 and len(server.containers) == 4, printed
    assert printed.count("iter 0, no loss yet: failed") == 2
    for seed in (1, 2):
        assert saved_iterations(at_modal.volume / "runs" / f"run.n_head-2.seed-{seed}") == [2, 4]
    words[words.index("--sweep=n_head:2,3")] = "--sweep=n_head:2"
    status, printed, server = at_modal(*words, cwd=home)
    assert status == 0 and not server.containers, printed


@pytest.mark.slow
@containers
def test_an_experiment_at_modal(at_modal, project, tmp_path):
    """A run that failed is trained again; a run that has a result, here or in the Volume, is not."""
    size = {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 4, "batch_size": 2, "warmup_iters": 1}
    size |= {"max_iters": 6, "lr_decay_iters": 6, "eval_interval": 3, "eval_iters": 1, "dtype": "float32"}
    program = project / "experiments" / "at_modal.py"
    program.write_text(
        "from experiments.record import Experiment\n"
        f"size = {size | {'dataset': 'tiny'}!r}\n"
        "sets = {'narrow': size, 'heads': size | {'n_head': 3}}\n"
        "EXPERIMENTS = [Experiment('at_modal', 'How wide?', sets, seeds=2)]\n"
    )
    results = project / "experiments" / "results" / "at_modal.json"
    results.parent.mkdir(exist_ok=True)
    words = ["run", f"{project / 'app.py'}::experiment", "--run-on-remote", "true", "at_modal"]
    words += ["--gpu=none", "--max-dollars=100"]
    status, printed, server = at_modal(*words, cwd=tmp_path)
    assert status == 1 and len(server.containers) == 4, printed
    assert "without a result: heads, seed 1; heads, seed 2; the same command" in printed
    sets = json.loads(results.read_text())["sets"]
    assert list(sets) == ["narrow"] and [run["seed"] for run in sets["narrow"]["runs"]] == [1, 2]
    for run in sets["narrow"]["runs"]:
        (folder,) = at_modal.volume.glob(f"runs/at_modal.narrow.*.seed-{run['seed']}")
        *_, last = (record["val/loss"] for record in records(folder) if "val/loss" in record)
        assert run["steps"] == 6 and run["val"] == pytest.approx(last, abs=1e-5)
        assert "cores of" in run["cpu"]
    before = results.read_bytes()
    status, printed, server = at_modal(*words, "--only=narrow", cwd=tmp_path)
    assert status == 0 and not server.containers and results.read_bytes() == before, printed
    results.unlink()  # the command was stopped before the results came home
    status, printed, server = at_modal(*words, "--only=narrow", cwd=tmp_path)
    assert status == 0 and not server.containers and results.read_bytes() == before, printed


@pytest.mark.slow
@containers
def test_a_cancelled_input_leaves_a_checkpoint_and_no_process(at_modal, tiny):
    disturbance = Disturbance("cancel", first_checkpoint)
    status, printed, server = at_modal(*remote(tiny, **LONG), disturbances=[disturbance])
    assert status == 2 and len(server.containers) == 1
    assert errors(printed) == ["error: run: it was cancelled; the same command goes on with it"]
    assert server.containers[0].orphans == []
    assert 0 < saved_iterations(at_modal.volume / "runs" / "run")[-1] < LONG["max_iters"]


async def ask(endpoint, path, key=None, **options):
    """The status and the text of an answer of an endpoint, asked as the world asks Modal's."""
    headers = {"Host": "me--run-serve.modal.run"} | options.pop("headers", {})
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession() as session:
        method = "POST" if "json" in options else "GET"
        async with session.request(method, endpoint.url + path, headers=headers, **options) as answer:
            return answer.status, await answer.text()


async def published(server, running) -> None:
    """Return when an App of the server's has an endpoint that is published."""
    while not (server.endpoints and server.sent("AppPublish")) and not running.done():
        await asyncio.sleep(0.05)
    assert not running.done(), running.result()
    await asyncio.sleep(1)  # until its URL is printed


@pytest.mark.slow
@containers
@pytest.mark.skipif(not Path("/sys/class/net/eth0").exists(), reason="Modal's entrypoint asks at eth0")
def test_a_run_is_served_behind_a_url_and_costs_nothing_while_nobody_asks(at_modal, trained):
    key = "a-key-of-mine"
    request = {"prompt": "the ", "max_tokens": 5, "temperature": 0}

    async def visit(server, running):
        await published(server, running)
        (endpoint,) = server.endpoints.values()
        assert not server.containers
        status, text = await ask(endpoint, "/v1/completions", key, json=request)
        assert status == 200 and json.loads(text)["usage"]["completion_tokens"] == 5, text
        assert (await ask(endpoint, "/v1/completions", json=request))[0] == 401
        status, text = await ask(endpoint, "/")
        assert status == 200 and "<html" in text
        script = next(path for path in (ROOT / "tools" / "serving" / "page").glob("*.js"))
        assert (await ask(endpoint, f"/{script.name}"))[1] == script.read_text()
        origin = {"Origin": "https://me--run-serve.modal.run"}
        assert (await ask(endpoint, "/v1/completions", key, json=request, headers=origin))[0] == 200
        other = {"Origin": "https://elsewhere.example"}
        assert (await ask(endpoint, "/v1/completions", key, json=request, headers=other))[0] == 403
        assert len(server.containers) == 1
        await server.containers[0].gone.wait()
        # The next request starts a machine, and waits there for its program; /health would say "compiling".
        assert (await ask(endpoint, "/v1/completions", key, json=request))[0] == 200
        assert len(server.containers) == 2
        server.client.send_signal(signal.SIGINT)

    words = ["run", "app.py::serve", "--run-on-remote", "--run-name=run", "--device=cpu", f"--api_key={key}"]
    status, printed, server = at_modal(*words, "--slots=1", meanwhile=visit)
    assert "Traceback" not in printed
    (endpoint,) = server.endpoints.values()
    assert f"serving at {endpoint.url}" in printed and key in printed
    (create,) = server.sent("FunctionCreate")
    assert create.function.concurrency_limit == 1 and create.function.task_idle_timeout_secs == 300


@pytest.mark.slow
@containers
def test_a_deployed_endpoint_outlives_the_command_and_has_a_key(at_modal, trained):
    words = ["run", "app.py::serve", "--run-on-remote", "--run-name=run", "--detach", "--max-dollars=40"]
    status, printed, server = at_modal(*words)
    assert status == 0, printed
    assert "modal app stop nanojaxgpt-run-serve" in printed
    found = re.search(r"with the key (\S+);", printed)
    assert found and len(found[1]) >= 32
    states = [request.app_state for request in server.sent("AppPublish")]
    assert pb.APP_STATE_DEPLOYED in states
