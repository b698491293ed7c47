"""serve.py from its first second: what it answers before there is a model, and how its start may fail."""

import shutil
import signal

import httpx
import pytest

from tests.helpers import error_line, refusal, run_python, wait_until
from tests.tools.serving.served_run import Server
from tools.serving.served import load_served
from tools.serving.server import PAGE, ServeOptions

WAITING = "waiting for the first checkpoint of later"


@pytest.fixture
def waiting(tmp_path):
    """A server of a run that has no checkpoint yet, in `tmp_path / "later"`."""
    return Server(tmp_path / "later", "--slots=2", "--follow=True", until=WAITING)


def test_the_server_begins_without_jax():
    done = run_python("-c", "import serve, sys; print('jax' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout.split() == ["False", "False"]


def test_the_page_is_there_and_the_rest_is_told_to_come_again_until_ctrl_c(waiting):
    for path, name in {"/": "index.html", "/main.js": "main.js"}.items():
        answer = httpx.get(waiting.url + path)
        assert answer.status_code == 200 and answer.content == (PAGE / name).read_bytes()
        assert answer.headers["X-Frame-Options"] == "DENY"
    asked = {"GET": ["/health", "/v1/models", "/inside/model", "/docs"], "POST": ["/v1/completions", "/"]}
    for method, path in [(method, path) for method, paths in asked.items() for path in paths]:
        answer = httpx.request(method, waiting.url + path)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json()["error"]["message"] == f"{WAITING}: try again later"
    assert httpx.get(f"{waiting.url}/health").json()["status"] == WAITING
    assert httpx.get(waiting.url, headers={"Host": "evil.example"}).status_code == 400
    assert waiting.end(signal.SIGINT) == 130


def test_the_first_checkpoint_is_served_when_it_is_there(waiting, char_run, tmp_path):
    with httpx.Client(base_url=waiting.url, timeout=120) as client:  # one connection, before and after
        assert client.get("/health").status_code == 503
        shutil.copytree(char_run, tmp_path / "new")
        (tmp_path / "new").rename(tmp_path / "later")
        wait_until(lambda: client.get("/v1/models").status_code == 200, waiting.process)
        assert client.get("/v1/models").json()["data"][0]["id"] == "later"
        answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3})
        assert len(answer.json()["choices"][0]["text"]) == 3
    assert waiting.end(signal.SIGTERM) == 0


def test_sigterm_ends_it_before_there_is_a_model(waiting):
    assert waiting.end(signal.SIGTERM) == 0


def test_a_start_that_fails_is_one_line(char_run, tmp_path):
    done = run_python("serve.py", f"--out_dir={tmp_path}", "--device=cpu", "--port=0")
    assert done.returncode == 2 and "no checkpoint there" in error_line(done.stderr)
    broken = shutil.copytree(char_run, tmp_path / "broken")
    for file in broken.glob("checkpoints/*/model/**/*"):
        if file.is_file():
            file.write_bytes(b"")
    assert "damaged" in refusal(load_served, ServeOptions(out_dir=str(broken), device="cpu"))
