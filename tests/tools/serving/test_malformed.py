"""300 malformed requests: each is answered by a 4xx with the error object, and the server goes on."""

import json
import random
import socket

import httpx
import pytest

GOOD = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2},
    "/inside/tokens": {"text": "abc"},
}
NEEDED = ("prompt", "messages", "text")
LIMITED = "max_tokens max_completion_tokens n temperature top_p top_k seed logprobs top_logprobs best_of"
FIELDS = (*LIMITED.split(), "model", "stop", "echo", "stream", "stream_options", *NEEDED)
HUGE = object()  # a number of 4,500 digits
# No field takes any of these.
VALUES = (
    *(-1e308, 1e308, -(10**30), HUGE, "\ud800", {"a": {}}, [[[]]], [{}], [None, 1], {"role": "user"}, [True]),
    *([-1], [2**70], ["\x00", 3], [1.5], [[1], "a"]),
)
NOT_NUMBERS = (b"NaN", b"Infinity", b"1e999")
TYPES = ("application/json", "text/plain", "application/json; charset=x")


def malformed(draw: random.Random, path: str) -> bytes:
    """Make the body of a request that cannot be answered."""
    good = GOOD[path]
    whole = json.dumps(good).encode()
    match draw.randrange(8):
        case 0:  # a part of JSON
            return whole[: draw.randrange(len(whole))]
        case 1:  # not UTF-8
            place = draw.randrange(len(whole))
            return whole[:place] + bytes([draw.randrange(0x80, 0x100)]) + b"\xff" + whole[place:]
        case 2:  # JSON, but no object
            return json.dumps(draw.choice([None, 1, "a", [], [good], True, 1.5])).encode()
        case 3:  # an unknown field
            return json.dumps(good | {draw.choice(["x", "", "promt", "__class__", "\n" * 50]): 1}).encode()
        case 4:  # nested deeply
            return b'{"prompt":' + b"[" * draw.choice([2, 100, 4000])
        case 5:  # no number of JSON's
            return whole[:-1] + b', "temperature": ' + draw.choice(NOT_NUMBERS) + b"}"
        case 6:  # nothing that is needed
            return json.dumps({name: value for name, value in good.items() if name not in NEEDED}).encode()
    field, value = draw.choice(FIELDS), draw.choice(VALUES)
    if value is HUGE:
        return whole[:-1] + f', "{field}": 1{"0" * 4500}}}'.encode()
    return json.dumps(good | {field: value}).encode()


@pytest.fixture(scope="module")
def server(serve, char_run):
    return serve(f"--out_dir={char_run}", "--slots=2", "--max_body=10000")


def test_a_malformed_request_is_answered_with_an_error_object(server):
    draw = random.Random(0)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(300):
            path = draw.choice(list(GOOD))
            body = malformed(draw, path)
            headers = {"Content-Type": draw.choice(TYPES)}
            answer = client.post(path, content=body, headers=headers)
            assert 400 <= answer.status_code < 500, (path, body[:200], answer.text)
            error = answer.json()["error"]
            assert error.keys() == {"message", "type", "param", "code"} and error["message"], body[:200]
            assert "Traceback" not in answer.text and len(answer.text) < 2000
        for path in GOOD:
            assert client.post(path, json=GOOD[path]).status_code == 200
        health = client.get("/health").json()
    assert (health["running"], health["pending"]) == (0, 0)
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{}",
        b"\x00\xff\xfe\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
    ],
)
def test_what_is_no_http_does_not_stop_it(server, head):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head)
        connection.settimeout(1)
        try:
            assert not connection.recv(1000).startswith(b"HTTP/1.1 5")
        except TimeoutError:  # it waits for the rest
            pass
    assert httpx.get(f"{server.url}/health").status_code == 200
