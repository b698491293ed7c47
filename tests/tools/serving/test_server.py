"""The server as its neighbours meet it: who may ask, limits, clients that leave or do not read, signals."""

import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from unittest.mock import Mock
from urllib.parse import urlsplit

import httpx
import jax
import numpy as np
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

import serve as command
from generation.engine import Engine
from parallel.mesh import make_mesh
from runs.checkpoint import Checkpoints
from runs.load import load_run
from tests.helpers import DEADLINE, refusal, run_python, start_python, wait_until
from tests.models import TINY, forward, large, nll
from tests.tools.serving import served_run
from tests.tools.serving.served_run import answering, serving
from tools.serving import served as loading
from tools.serving import server as server_module
from tools.serving import worker as working
from tools.serving.app import api
from tools.serving.insight import inside
from tools.serving.server import PAGE, ApiError, ServeOptions
from tools.serving.worker import Worker

HEADERS = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 20\r\n"
KEY = "correct horse".replace(" ", "-")
NAMED = ["https://chat.example", "http://localhost:3000"]


@pytest.fixture(scope="module")
def server(char_run):
    """One slot, so that a second request waits; it has other names, and answers some sites."""
    options = {"max_waiting": 1, "max_tokens": 1000000, "allow_origins": ",".join(NAMED)}
    with serving(out_dir=str(char_run), **options, allowed_hosts="gpt.example,*.Example.com") as server:
        yield server


@pytest.fixture(scope="module")
def url(server):
    return server[0]


@pytest.fixture
def post(url):
    return lambda path="/v1/completions", **body: httpx.post(url + path, json=body, timeout=DEADLINE)


def wait_for(url, **figures) -> None:
    """Return once /health has these figures."""
    wait_until(lambda: httpx.get(f"{url}/health").json().items() >= figures.items())


def open_stream(url, **body):
    """Ask for a stream, as a context that reads nothing of it and leaves it at its end."""
    body = {"prompt": "a", "stream": True} | body
    return httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=DEADLINE)


def error(answer: httpx.Response) -> tuple[int, str]:
    """Return the status and the message of an error object."""
    value = answer.json()
    assert value.keys() == {"error"} and value["error"].keys() == {"message", "type", "param", "code"}
    return answer.status_code, value["error"]["message"]


# --- who may ask ------------------------------------------------------------------------------------------


def test_without_the_key_nothing_is_answered(char_run):
    with serving(out_dir=str(char_run), api_key=KEY, compiled=False) as (url, _):
        assert served_run.client(url, KEY).models.list().data[0].id == "chars"
        for key in ("wrong", KEY[:-1], KEY + "x"):
            with pytest.raises(openai.AuthenticationError) as caught:
                served_run.client(url, key).models.list()
            assert caught.value.code == "invalid_api_key"
        for route in (*api.routes, *inside.routes):
            for method in route.methods:
                assert error(httpx.request(method, url + route.path))[0] == 401
        assert httpx.get(f"{url}/health").json()["slots"] == 1
        assert httpx.get(url).status_code == 200
        for scheme, status in (("bearer", 200), ("BEARER", 200), ("Basic", 401), ("bearer:", 401)):
            headers = {"Authorization": f"{scheme} {KEY}"}
            assert httpx.get(f"{url}/v1/models", headers=headers).status_code == status


def test_it_answers_by_its_own_names_alone(url):
    """Another's may have become our address: DNS rebinding."""
    own = "localhost:1", "gpt.example", "a.example.com", "A.B.EXAMPLE.COM:80"
    for host in (*own, "evil.example", "127.0.0.1.evil.example", "example.com", ""):
        answer = httpx.get(f"{url}/health", headers={"Host": host})
        assert answer.status_code == (200 if host in own else 400), host
    assert "gpt.example" in ServeOptions(api_key=KEY, allowed_hosts="gpt.example").hosts
    assert ServeOptions(api_key=KEY).hosts == ServeOptions(api_key=KEY, allowed_hosts="*").hosts[-1:] == ["*"]


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", None])
def test_what_a_page_may_send_to_any_site_is_not_read(url, kind):
    headers = {"Origin": "https://evil.example"} | ({"Content-Type": kind} if kind else {})
    for path, body in (("v1/completions", {"prompt": "a"}), ("inside/places", {"text": "a"})):
        answer = httpx.post(f"{url}/{path}", content=json.dumps(body), headers=headers)
        assert answer.status_code == 400 and "application/json" in error(answer)[1]


@pytest.mark.parametrize("origin", [*NAMED, "https://evil.example"])
def test_pages_of_named_sites_may_ask(url, origin):
    """A browser asks before (preflight), and lets a page read an answer only if its origin stands in it."""
    allows, path = "access-control-allow-origin", f"{url}/v1/completions"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-stainless-os"}
    before = httpx.options(path, headers={"Origin": origin} | asked)
    answer = httpx.post(path, headers={"Origin": origin}, json={"prompt": "a", "max_tokens": 1})
    refused = httpx.post(path, headers={"Origin": origin}, json={"prompt": 1.5})
    assert before.status_code == (200 if origin in NAMED else 400)
    expected = origin if origin in NAMED else None
    assert [x.headers.get(allows) for x in (before, answer, refused)] == 3 * [expected]
    assert "access-control-allow-credentials" not in before.headers


def test_a_path_or_method_that_there_is_not(url, post):
    assert error(post("/v1/nothing"))[0] == 404
    for path, status in {"docs": 404, "redoc": 404, "openapi.json": 200}.items():
        assert httpx.get(f"{url}/{path}").status_code == status
    assert error(httpx.get(f"{url}/v1/nothing"))[0] == 404
    assert error(httpx.put(f"{url}/health"))[0] == 405
    answer = httpx.get(f"{url}/v1/completions")
    assert error(answer)[0] == 405 and answer.headers["allow"] == "POST"


@pytest.mark.parametrize("sent", [b"", HEADERS, HEADERS + b"\r\n{"])
def test_a_request_that_does_not_arrive_is_given_up(url, monkeypatch, sent):
    monkeypatch.setattr(server_module, "READ", 0.3)
    with socket.create_connection(("127.0.0.1", urlsplit(url).port), timeout=10) as slow:
        with suppress(ConnectionError):  # that is an end, too
            slow.sendall(sent)
            assert slow.recv(1) == b""


def test_a_connection_with_a_whole_request_stays_open(url, monkeypatch):
    monkeypatch.setattr(server_module, "READ", 0.3)
    with httpx.Client(base_url=url) as http:
        for _ in range(2):
            answer = http.get("/health")
            time.sleep(0.5)
            assert answer.status_code == 200
        stream = answer.extensions["network_stream"]
        assert not stream.get_extra_info("is_readable")  # it would be, if closed


def test_no_route_waits_while_a_text_is_encoded(server, monkeypatch):
    url, served = server
    begun, gate, encode = threading.Event(), threading.Event(), served.tokenizer.encode

    def slowly(*words, **options):
        begun.set()
        gate.wait(DEADLINE)
        return encode(*words, **options)

    monkeypatch.setattr(served.tokenizer, "encode", slowly)
    with ThreadPoolExecutor() as pool:
        for path, body in [("/v1/completions", {"prompt": "a"}), ("/inside/tokens", {"text": "a"})]:
            begun.clear(), gate.clear()
            asked = pool.submit(httpx.post, url + path, json=body, timeout=DEADLINE)
            assert begun.wait(DEADLINE)
            try:
                assert httpx.get(f"{url}/health", timeout=10).status_code == 200
            finally:
                gate.set()
            assert asked.result().status_code == 200


@pytest.mark.parametrize(
    "options, says",
    [
        (["--host=0.0.0.0"], "give an --api_key"),
        (["--api_key=short"], "--api_key is ***: expected 8 characters or more of ASCII"),
        (["--host=é..x", "--api_key=12345678"], "--host=é..x --port=0: encoding of hostname failed"),
        (["--port=70000"], "--port is 70000: it should be less than 65536"),
        (["--mesh=data:2"], "use tensor or fsdp"),
        (["--allowed_hosts=*example.org"], "--allowed_hosts is '*example.org': expected names as in"),
        (["--allow_origins=*"], "--allow_origins is '*': expected origins as in https://a.org"),
        (["--block_size=64"], " has its own: leave it out"),
        (["--follow=True", "--init_from=gpt2"], "leave out --init_from"),
        (["--follow=True", "--checkpoint=best"], "leave out --init_from and --checkpoint"),
    ],
)
def test_a_bad_option_is_one_line(char_run, options, says):
    assert says in refusal(command.main, [f"--out_dir={char_run}", "--device=cpu", "--port=0", *options])


def test_a_port_that_is_taken_is_one_line(char_run, url):
    assert "already in use" in refusal(
        command.main, [f"--out_dir={char_run}", f"--port={urlsplit(url).port}"]
    )


# --- figures ----------------------------------------------------------------------------------------------


def test_prometheus_reads_what_the_server_does(url, post):
    def figures():
        answer = httpx.get(f"{url}/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        families = text_string_to_metric_families(answer.text)
        return {x.name.removeprefix("nanojaxgpt_"): x.value for family in families for x in family.samples}

    wait_for(url, running=0, pending=0)
    before = figures()
    names = ("slots", "running", "waiting", "cache_used_ratio")
    assert [before[name] for name in names] == [1, 0, 0, 0]
    assert post(prompt="abc", n=2, max_tokens=5).status_code == 200
    grown = {name: value - before[name] for name, value in figures().items()}
    assert grown["requests_total"] == grown["first_token_seconds_count"] == 2
    assert (grown["prompt_tokens_total"], grown["new_tokens_total"]) == (6, 10)
    assert 0 < grown["first_token_seconds_sum"] < 2 * DEADLINE
    with open_stream(url, n=2, max_tokens=1000000):
        wait_until(lambda: figures()["cache_used_ratio"] > 0.1)
        during = figures()
        assert (during["running"], during["waiting"]) == (1, 1)
    wait_for(url, running=0)


# --- limits -----------------------------------------------------------------------------------------------


def test_limits_of_a_request(url, post):
    long = json.dumps({"prompt": "a" * 2**20}).encode()
    headers = {"Content-Type": "application/json"}
    for content in (long, iter([long])):  # the second does not say beforehand how long it is
        answer = httpx.post(f"{url}/v1/completions", content=content, headers=headers)
        assert answer.status_code == 413
    assert error(answer)[0] == 413 and answer.json()["error"]["type"] == "invalid_request_error"
    assert "lacks '!'" in error(post(prompt="a!"))[1]
    assert "needs at least one token" in error(post(prompt=""))[1]  # this tokenizer has no end of text
    chat = {"messages": [{"role": "user", "content": "a"}]}
    assert "the tokenizer has no chat template" in error(post("/v1/chat/completions", **chat))[1]
    assert error(post(prompt="a", n=3))[0] == 400  # more than can ever wait: no reason to try again


def test_too_many_requests_are_told_to_come_again(url, post):
    with open_stream(url, max_tokens=1000000), open_stream(url, max_tokens=1000000):
        wait_for(url, running=1, pending=2)
        with pytest.raises(openai.RateLimitError) as caught:
            served_run.client(url).completions.create(model="chars", prompt="a")
        assert caught.value.response.headers["retry-after"] == "1"
        assert (caught.value.type, caught.value.code) == ("requests", "rate_limit_exceeded")  # OpenAI's own
    wait_for(url, running=0, pending=0)
    assert post(prompt="a").status_code == 200


# --- clients that leave, or do not read -------------------------------------------------------------------


def test_a_client_that_leaves_frees_its_slot(url):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 1000000}, timeout=1)
    wait_for(url, running=0, pending=0)
    with open_stream(url, max_tokens=1000000) as stream:
        assert "choices" in next(stream.iter_lines())
    wait_for(url, running=0, pending=0)
    with open_stream(url, max_tokens=1000000):
        with open_stream(url, max_tokens=1000000):
            wait_for(url, running=1, pending=2)
        wait_for(url, running=1, pending=1)  # it left while it waited for the slot


@pytest.mark.slow
def test_of_300_streams_of_which_some_are_left_none_is_lost_and_no_slot_kept(char_run):
    def ask(i):
        """Return whether a stream, which a third of the clients leave, was as long as asked for."""
        n = 1 + i * 37 % 120
        left = i * 13 % n if i % 3 == 0 else n + 1
        settings = {"temperature": i % 2, "logprobs": 2 if i % 5 else None, "stream": True}
        made = 0
        with create(model="chars", prompt="abcdefgh"[: 1 + i % 8], max_tokens=n, **settings) as stream:
            for chunk in stream:
                made += len(chunk.choices[0].text)
                if made >= left:
                    return True
        return made == n

    with serving(out_dir=str(char_run), slots=16, max_waiting=100) as (url, served):
        create = served_run.client(url).completions.create
        with ThreadPoolExecutor(64) as pool:
            assert all(pool.map(ask, range(300)))
        wait_for(url, running=0, pending=0)
        assert served.worker.engine.idle and not served.worker.waiting


@pytest.mark.slow
def test_a_slow_reader_holds_up_nobody(url, post):
    with open_stream(url, max_tokens=30000) as slow:
        wait_for(url, pending=1)
        answer = post(prompt="b", max_tokens=5)  # after the slow one's tokens, which nobody reads
        assert answer.status_code == 200
        events = [json.loads(line[6:]) for line in slow.iter_lines() if line.startswith("data: {")]
    assert sum(len(event["choices"][0]["text"]) for event in events) == 30000


def test_when_computing_fails_it_goes_on(url, post, monkeypatch):
    wait_for(url, running=0, pending=0)
    step, broken = Engine.step, iter([True])

    def fail_once(engine, most):
        if next(broken, False):
            raise RuntimeError("the device is lost")
        return step(engine, most)

    monkeypatch.setattr(Engine, "step", fail_once)
    assert [post(prompt="a").status_code for _ in range(2)] == [500, 200]


# --- while it compiles ------------------------------------------------------------------------------------


def test_it_listens_while_it_compiles_and_requests_wait(char_run, monkeypatch):
    programs, gate = Engine.programs, threading.Event()
    monkeypatch.setattr(Engine, "programs", lambda engine: [lambda: gate.wait(DEADLINE), *programs(engine)])
    with serving(compiled=False, out_dir=str(char_run)) as (url, served), ThreadPoolExecutor() as pool:
        health = httpx.get(f"{url}/health")
        assert health.status_code == 503 and re.fullmatch(r"compiling 1 of \d+", health.json()["status"])
        asked = pool.submit(httpx.post, f"{url}/v1/completions", json={"prompt": "a"}, timeout=DEADLINE)
        wait_until(lambda: len(served.worker.pending) == 1)
        gate.set()
        assert asked.result().status_code == 200
        wait_until(lambda: httpx.get(f"{url}/health").status_code == 200)


def test_what_cannot_be_compiled_is_one_line(char_run, monkeypatch):
    monkeypatch.setattr(Engine, "programs", lambda engine: [Mock(side_effect=MemoryError("no room"))])
    said = refusal(command.main, [f"--out_dir={char_run}", "--device=cpu", "--port=0"])
    assert said == "the engine cannot start (no room): try fewer --slots"


def test_newer_weights_without_room_for_an_engine_end_it_in_a_line(monkeypatch):
    """One cache at a time."""
    with jax.set_mesh(make_mesh("data:1")):
        worker = Worker(large(TINY), "iter-5", TINY.vocab_size, slots=1, max_waiting=1)
    monkeypatch.setattr(working, "Engine", Mock(side_effect=MemoryError("no room")))
    worker.compiled = len(worker.engine.programs())
    worker.replace(large(TINY), "iter-10")
    worker.thread.start()
    worker.thread.join(DEADLINE)
    assert worker.engine.cache is None
    assert worker.status == str(worker.error) == "the engine cannot start (no room): try fewer --slots"
    with pytest.raises(ApiError, match="stopping"):
        worker.submit([])


# --- one in a process of its own --------------------------------------------------------------------------


def test_before_there_is_a_model_the_page_is_there_and_the_rest_told_to_come_again():
    """See test_page.py for what comes then."""
    with answering(ServeOptions(port=0)) as server:
        wait_until(lambda: server.started)
        server.say("loading weights")
        for path, name in {"/": "index.html", "/main.js": "main.js"}.items():
            answer = httpx.get(server.address + path)
            assert answer.status_code == 200 and answer.content == (PAGE / name).read_bytes()
            assert answer.headers["X-Frame-Options"] == "DENY"
        routes = ("GET", "/health"), ("GET", "/inside/model"), ("POST", "/v1/completions"), ("POST", "/")
        for method, path in routes:
            answer = httpx.request(method, server.address + path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert answer.json()["error"]["message"] == "loading weights: try again later"
            assert answer.json()["status"] == "loading weights"
        assert httpx.get(server.address, headers={"Host": "evil.example"}).status_code == 400


def test_the_server_begins_without_jax():
    done = run_python("-c", "import serve, sys; print('jax' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout.split() == ["False", "False"]


def start(out_dir, *options: str, until: str) -> tuple[subprocess.Popen, str]:
    """Start serve.py in a process; return it, and its address, once a line begins with `until`."""
    process = start_python("serve.py", f"--out_dir={out_dir}", "--port=0", "--device=cpu", *options)
    printed = iter(process.stdout.readline, "")
    address = next(line.split()[-1] for line in printed if line.startswith("starting "))
    assert any(line.startswith(until) for line in printed)
    return process, address


def end(process: subprocess.Popen, number: int) -> int:
    """Send a signal, and return the status of the process; nothing was raised in it."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=DEADLINE)
    assert "Traceback" not in errors
    return process.returncode


def test_sigterm_finishes_what_runs_and_exits_with_0(char_run):
    process, url = start(char_run, "--slots=1", "--max_tokens=2000", until="compiled ")
    create = served_run.client(url).completions.create
    stream = create(model="chars", prompt="a", max_tokens=2000, stream=True)
    received = [next(stream).choices[0]]
    process.send_signal(signal.SIGTERM)
    received += [chunk.choices[0] for chunk in stream]
    assert sum(len(choice.text) for choice in received) == 2000
    assert received[-1].finish_reason == "length"
    assert end(process, signal.SIGTERM) == 0


def test_what_is_not_finished_in_time_ends_with_an_error(char_run, monkeypatch):
    """A stream with an event, and another request with an answer, both of OpenAI's error object."""
    monkeypatch.setattr(server_module, "FINISH", 0)
    with ThreadPoolExecutor() as pool:
        options = dict(compiled=False, finish=DEADLINE, max_tokens=1000000)
        with serving(out_dir=str(char_run), **options) as (url, served):
            create = partial(served_run.client(url).completions.create, model="chars", prompt="a")
            stream = create(max_tokens=1000000, stream=True)
            assert next(stream).choices
            reading, waiting = pool.submit(list, stream), pool.submit(create)
            wait_until(lambda: len(served.worker.pending) == 2)
        for error in (reading.exception(), waiting.exception()):
            assert isinstance(error, openai.APIError) and error.message.endswith("the server has stopped")
            assert (error.type, error.code) == ("server_error", "unavailable")
        assert waiting.exception().status_code == 503


@pytest.mark.slow
@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_it_quietly_while_it_waits_for_a_model(tmp_path, number, status):
    process, _ = start(tmp_path / "later", "--follow=True", until="waiting for the first checkpoint")
    assert end(process, number) == status


def test_the_checkpoint_that_is_served_may_be_any_of_the_run(run):
    with jax.set_mesh(make_mesh("data:1")):
        served = loading.load_served(ServeOptions(out_dir=str(run), checkpoint=10))
    assert served.worker.version == "iter-10"


def test_an_answer_names_the_weights_that_wrote_it(run):
    """Newer ones begin in the moment when its last token is drawn."""
    with serving(compiled=False, out_dir=str(run)) as (url, served):
        body = {"prompt": "the ", "max_tokens": 60, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=DEADLINE) as answer:
            chunks = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {"))
            said = {next(chunks)["system_fingerprint"]}
            served.worker.replace(served.worker.model, "newer")
            said |= {chunk["system_fingerprint"] for chunk in chunks}
        wait_until(lambda: served.worker.version == "newer")
    assert said == {f"iter-{Checkpoints(str(run)).latest()}"}


def test_a_run_is_followed_past_checkpoints_that_cannot_be_served(
    run, char_run, tmp_path, monkeypatch, capsys
):
    out, looks, loaded, latest = tmp_path / "run", [], [], Checkpoints.latest
    shutil.copytree(run, out, ignore=shutil.ignore_patterns("10", "15", "20"))

    def put(iteration, source):
        shutil.copytree(source, tmp_path / str(iteration)).rename(out / "checkpoints" / str(iteration))

    def load(*words, **options):
        loaded.append(Checkpoints(str(out)).latest())
        return load_run(*words, **options)

    def told():
        seen = len(looks)
        wait_until(lambda: len(looks) > seen + 20)
        return capsys.readouterr().err

    monkeypatch.setattr(loading, "LOOK", 0.01)
    monkeypatch.setattr(loading, "load_run", load)
    monkeypatch.setattr(Checkpoints, "latest", lambda self: (looks.append(1), latest(self))[1])
    with serving(compiled=False, out_dir=str(out), follow=True) as (url, served):
        told()  # of the mesh
        (tmp_path / "empty").mkdir()
        damaged = shutil.copytree(run / "checkpoints" / "10", tmp_path / "damaged")
        shutil.rmtree(damaged / "model")
        put(6, tmp_path / "empty")  # its files are yet to come
        assert told() == "" and loaded == [5]
        bad = {7: (damaged, "damaged"), 8: (char_run / "checkpoints" / "0", "another shape")}
        for iteration, (source, why) in bad.items():
            put(iteration, source)
            (note,) = told().splitlines()
            assert note.startswith("note: ") and why in note
        assert loaded == [5, 7, 8] and served.worker.version == "iter-5"  # tried and told once
        whole, copied = run / "checkpoints" / "15", out / "checkpoints" / "15"
        shutil.copytree(whole / "manifest", copied / "manifest")
        wait_until(lambda: 15 in loaded)
        shutil.copytree(whole, copied, dirs_exist_ok=True)
        wait_until(lambda: served.worker.version == "iter-15")
        body = {"prompt": "the ", "temperature": 0, "logprobs": 0}
        said = httpx.post(f"{url}/v1/completions", json=body).json()
    assert said["system_fingerprint"] == "iter-15"
    (choice,) = said["choices"]
    ids = served.tokenizer.encode("the " + choice["text"])[None]
    fresh = nll(forward(load_run(str(run), 15)[0], ids[:, :-1]), ids[:, 1:])[0, 3:]
    np.testing.assert_allclose(choice["logprobs"]["token_logprobs"], -fresh, atol=1e-3)
