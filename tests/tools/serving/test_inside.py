"""The routes below /inside, over HTTP: what they tell is the model's, sizes are bounded, input is checked."""

import base64
import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import jax
import numpy as np
import pytest

from data.tokenizer import CharTokenizer
from generation.sampling import Settings, drawn_from
from model import GPT
from runs.load import load_run
from tests.helpers import wait_until
from tests.models import forward, nll
from tests.tools.serving.conftest import save_random
from tests.tools.serving.served_run import BLOCK_SIZE, ITERATIONS, SYMBOLS, TEXT, ask
from tools.inside.views import attention, lens
from tools.serving import insight
from tools.serving.app import PAGE
from tools.serving.run_folder import RunFolder
from training.compute import for_inference


@pytest.fixture(scope="module")
def post(server):
    """`post(route, **body)` returns the answer, which has to be a good one."""

    def post(route: str, **body) -> dict:
        status, answer = ask(f"{server[0]}/inside/{route}", body)
        assert status == 200, answer
        return answer

    return post


# --- what is told -------------------------------------------------------------------------------------------


def test_the_model_is_described_parameter_by_parameter(server, monkeypatch):
    address, served = server
    status, answer = ask(f"{address}/inside/model")
    assert status == 200
    assert (answer["name"], answer["version"], answer["run"]) == ("run", "iter-20", True)
    sizes = {x["name"]: np.prod(x["shape"]) for x in answer["parameters"]}
    D, F = 16, served.model.config.hidden
    assert sizes["wte"] == len(SYMBOLS) * D and sizes["blocks.mlp.c_fc.weight"] == 2 * D * F
    assert {len(x["devices"]) for x in answer["parameters"]} == {1}
    rounded = for_inference(GPT(served.model.config, key=jax.random.key(0)), "bfloat16")  # has a second head
    monkeypatch.setattr(served.worker, "model", rounded)
    assert [x["name"] for x in ask(f"{address}/inside/model")[1]["parameters"]] == [*sizes]
    assert answer["config"]["n_layer"] == 2 and answer["limits"]["attention"] == BLOCK_SIZE


def test_places_have_the_models_probabilities_and_those_that_are_drawn_from(post, server):
    text, settings = "the quick brown", {"temperature": 0.7, "top_k": 7, "top_p": 0.8}
    answer = post("places", text=text, **settings)
    ids = np.array([SYMBOLS.index(c) for c in text], np.int32)
    logits = forward(server[1].model, ids[None])[0]
    drawn = drawn_from(logits, Settings(**settings))  # generation/test_sampling.py holds it to transformers
    expected = zip(*(np.asarray(jax.nn.softmax(x)) for x in (logits, drawn)), strict=True)
    assert answer["places"][0] is None and len(answer["places"]) == len(text) + 1
    for i, (before, after) in enumerate(expected, 1):
        place = answer["places"][i]
        assert len(place["likeliest"]) == 10
        assert place["likeliest_before"] == pytest.approx(np.sort(before)[::-1][:10], rel=1e-3)
        assert place["likeliest_before"] == pytest.approx(before[place["likeliest"]], rel=1e-3)
        assert place["likeliest_after"] == pytest.approx(after[place["likeliest"]], rel=1e-3, abs=1e-6)
        if i < len(text):
            assert place["before"] == pytest.approx(before[ids[i]], rel=1e-3)
            assert place["after"] == pytest.approx(after[ids[i]], rel=1e-3, abs=1e-6)
        else:
            assert "before" not in place
    assert {answer["names"][str(i)] for i in answer["places"][1]["likeliest"]} <= set(SYMBOLS)
    for place in post("places", text="the", temperature=0)["places"][1:]:
        assert place["likeliest_after"] == [1.0] + [0.0] * 9


def test_places_past_the_block_size_are_those_that_the_engine_drew_from(server, post):
    """By its window rule, of which the page would otherwise tell another story than was written."""
    prompt = [SYMBOLS.index(c) for c in "the lazy"]
    body = {"prompt": prompt, "max_tokens": 3 * BLOCK_SIZE, "seed": 1, "logprobs": 0}
    written = ask(f"{server[0]}/v1/completions", body)[1]["choices"][0]["logprobs"]
    whole = prompt + written["token_ids"]
    places = post("places", text=whole, prompt=len(prompt))["places"]
    told = [np.log(place["before"]) for place in places[len(prompt) : -1]]
    assert told == pytest.approx(written["token_logprobs"], abs=2e-3)


def test_attention_is_the_models_to_a_65535th(post, server):
    answer = post("attention", text=TEXT[:20])
    L, H, T = answer["shape"]
    parts = np.frombuffer(base64.b64decode(answer["weights"]), "<u2").reshape(L, H, -1)
    weights = np.zeros((L, H, T, T))
    weights[:, :, *np.tril_indices(T)] = parts / 65535
    expected = attention(server[1].model, np.array([SYMBOLS.index(c) for c in TEXT[:20]], np.int32))
    assert (L, H, T) == (2, 2, 20)
    np.testing.assert_allclose(weights, expected, atol=1 / 65535)


def test_the_lens_has_the_likeliest_tokens_and_norms_of_each_layer(post, server):
    answer = post("lens", text="the quick", k=3)
    ids = [SYMBOLS.index(c) for c in "the quick"]
    seen = lens(server[1].model, np.array(ids, np.int32), 3)
    assert np.shape(answer["likeliest"]) == (3, 9, 3)
    np.testing.assert_allclose(answer["probabilities"], seen.probabilities, rtol=1e-4)
    np.testing.assert_allclose(answer["mlp_norms"], seen.mlp_norms, rtol=1e-4)


def test_a_heads_outputs_are_what_its_layer_adds_and_its_scores_lead_to_its_weights(post, server):
    """Weights are the softmax of scores; all heads' outputs, projected, are what attention adds."""
    text, reader, layer = TEXT[:12], 9, 1
    ids = np.array([SYMBOLS.index(c) for c in text], np.int32)
    cells = [post("cell", text=text, layer=layer, head=head, reader=reader, read=4) for head in range(2)]
    for head, cell in enumerate(cells):
        score = np.dot(cell["query"], cell["key"]) / np.sqrt(8)
        assert cell["scores"][4] == pytest.approx(score, rel=1e-3)
        weights = np.exp(cell["scores"]) / np.exp(cell["scores"]).sum()
        np.testing.assert_allclose(cell["weights"], weights, rtol=1e-3)
        expected = attention(server[1].model, ids)[layer, head, reader, : reader + 1]
        np.testing.assert_allclose(cell["weights"], expected, rtol=1e-3)
    projection = np.asarray(server[1].model.blocks.attn.c_proj.weight[layer]).reshape(16, 16)
    added = np.linalg.norm(np.concatenate([cell["output"] for cell in cells]) @ projection)
    assert added == pytest.approx(lens(server[1].model, ids, 1).attn_norms[layer, reader], rel=1e-3)


def test_places_of_a_checkpoint_have_its_loss(post, run):
    places = post("places", text=TEXT[:24], checkpoint="iter-5")["places"]
    ids = np.array([[SYMBOLS.index(c) for c in TEXT[:24]]], np.int32)
    expected = nll(forward(load_run(str(run), 5)[0], ids[:, :-1]), ids[:, 1:])[0]
    found = [-np.log(place["before"]) for place in places[1:-1]]
    assert found == pytest.approx(np.asarray(expected), rel=1e-3)


def test_checkpoints_are_listed_with_their_validation_loss(server):
    _, answer = ask(f"{server[0]}/inside/checkpoints")
    assert [x["name"] for x in answer["checkpoints"]] == [f"iter-{i}" for i in ITERATIONS]
    losses = [x["val_loss"] for x in answer["checkpoints"]]
    assert losses[-1] < losses[0] < np.log(len(SYMBOLS)) + 0.5


def test_a_fine_tuned_run_has_the_weights_that_it_started_from(run, tmp_path):
    tuned = save_random(tmp_path / "tuned", CharTokenizer(SYMBOLS), init_from=str(run))
    looked_at = RunFolder(str(save_random(tmp_path / "again", CharTokenizer(SYMBOLS), init_from=str(tuned))))
    names = [(x["name"], x.get("of")) for x in looked_at.checkpoints()]
    assert names == [("start-2", "run"), ("start", "tuned"), ("iter-0", None)]
    for name, start in (("start-2", run), ("start", tuned)):
        np.testing.assert_array_equal(looked_at.load(name).wte, load_run(str(start))[0].wte)


# --- the run's records --------------------------------------------------------------------------------------


def test_records_come_as_they_are_written(run, tmp_path):
    (tmp_path / "none").mkdir()
    os.mkfifo(tmp_path / "none" / "metrics.jsonl")  # whose reader would wait
    for folder in (tmp_path, tmp_path / "none"):
        assert RunFolder(str(folder)).records(0)["records"] == []
    run = shutil.copytree(run, tmp_path / "run")
    looked_at = RunFolder(str(run))
    first = looked_at.records(0)
    assert first["fresh"]
    assert [r["iter"] for r in first["records"] if "loss" in r] == list(range(20))
    assert looked_at.records(first["offset"])["records"] == []
    path = run / "metrics.jsonl"
    before = path.read_bytes()
    with open(path, "ab") as file:
        file.write(b'{"iter": 20, "loss": 1.5}\n{"iter": 21, "lo')
    second = looked_at.records(first["offset"])
    assert (second["records"], second["fresh"]) == ([{"iter": 20, "loss": 1.5}], False)
    with open(path, "ab") as file:
        file.write(b'ss": 1.25}\n')
    third = looked_at.records(second["offset"])
    assert third["records"] == [{"iter": 21, "loss": 1.25}]
    # A resumed run writes its file anew.
    path.with_suffix(".new").write_bytes(before)
    path.with_suffix(".new").replace(path)
    again = looked_at.records(third["offset"])
    assert again["fresh"] and again["records"] == first["records"]


def test_a_model_that_is_not_a_runs_has_no_checkpoints_and_no_records(server, monkeypatch):
    address, served = server
    monkeypatch.setattr(served, "run", None)
    assert ask(f"{address}/inside/model")[1]["run"] is False
    assert ask(f"{address}/inside/example")[0] == 404
    assert ask(f"{address}/inside/checkpoints") == (200, {"checkpoints": []})
    status, answer = ask(f"{address}/inside/run")
    assert (status, answer["error"]["code"]) == (404, "no_run")
    status, answer = ask(f"{address}/inside/places", {"text": "the", "checkpoint": "iter-5"})
    assert (status, answer["error"]["code"]) == (404, "checkpoint_not_found")


# --- what is refused ----------------------------------------------------------------------------------------

CELL = {"text": "the", "layer": 0, "head": 0, "reader": 1, "read": 1}
BAD = [
    *(("places", {"text": text}, "text") for text in ("", "Ω", "the " * 5000)),
    ("places", {"text": "the", "prompt": 4}, "prompt"),
    ("places", {"text": "the", "out_dir": "/"}, "out_dir"),
    *((route, {"text": "a" * (BLOCK_SIZE + 1)}, "text") for route in ("attention", "lens")),
    ("lens", {"text": "the", "k": 10**30}, "k"),
    ("cell", CELL | {"layer": 2}, "layer"),
    ("cell", CELL | {"read": 2}, "read"),
]


@pytest.mark.parametrize("route, body, param", BAD)
def test_what_cannot_be_is_refused_with_its_field(server, route, body, param):
    status, answer = ask(f"{server[0]}/inside/{route}", body)
    assert status == 400 and answer["error"]["param"] == param, answer


@pytest.mark.parametrize("name", ["iter-6", "start", "iter-5/../iter-10", ""])
def test_a_checkpoint_is_named_by_the_list_alone(server, name):
    status, answer = ask(f"{server[0]}/inside/places", {"text": "the", "checkpoint": name})
    assert (status, answer["error"]["code"]) == (404, "checkpoint_not_found")


def test_a_damaged_checkpoint_is_told_without_the_servers_folders(server, run, tmp_path, monkeypatch):
    run = shutil.copytree(run, tmp_path / "run")
    for path in (run / "checkpoints" / "5" / "model").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    monkeypatch.setattr(server[1], "run", RunFolder(str(run)))
    status, answer = ask(f"{server[0]}/inside/places", {"text": "the", "checkpoint": "iter-5"})
    assert status == 404 and str(tmp_path) not in answer["error"]["message"]


def test_the_pages_files_are_found_and_nothing_beside_them(server):
    names = {path.name for path in PAGE.iterdir()}
    assert "index.html" in names
    for name in ["", *names]:
        answer = httpx.get(f"{server[0]}/{name}")
        assert answer.content == (PAGE / (name or "index.html")).read_bytes()
        headers = answer.headers["X-Content-Type-Options"], answer.headers["X-Frame-Options"]
        assert headers == ("nosniff", "DENY")
    for path in ["/../serve.py", "/%2e%2e/app.py", "/..%2fapp.py", "//etc/passwd", "/app.py", "/page"]:
        connection = HTTPConnection(urlsplit(server[0]).netloc, timeout=60)
        connection.request("GET", path)  # as it stands: httpx would tidy it up
        assert connection.getresponse().status == 404, path


def test_the_page_runs_no_inline_code_and_names_no_other_host():
    """Nor does it make markup of a text."""
    html = (PAGE / "index.html").read_text()
    assert "default-src 'self';" in html
    assert not re.search(r"<script(?![^>]*src=)|\sstyle=|\son\w+=", html)
    for path in PAGE.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, which nobody asks for
        assert not re.search(r"://|innerHTML|outerHTML|insertAdjacentHTML|srcdoc|document\.write", text), path


@pytest.fixture
def held(server, monkeypatch):
    """The lengths of the texts whose lens is computed, and what lets the first one, of "the", end."""
    computed, gate, lens = [], threading.Event(), insight.lens

    def hold(model, ids, k):
        computed.append(len(ids))
        gate.wait(60)
        return lens(model, ids, k)

    monkeypatch.setattr(insight, "lens", hold)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, f"{server[0]}/inside/lens", {"text": "the"})
        wait_until(lambda: computed)
        yield computed, gate
        gate.set()
        assert first.result()[0] == 200


def test_a_view_whose_client_has_gone_is_not_computed(server, held):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server[0]}/inside/lens", json={"text": "the lazy"}, timeout=1)
    held[1].set()
    assert ask(f"{server[0]}/inside/attention", {"text": "the"})[0] == 200
    assert held[0] == [3]


def test_views_that_wait_leave_the_page_alive(server, held):
    with ThreadPoolExecutor(60) as pool:
        asked = [pool.submit(ask, f"{server[0]}/inside/lens", {"text": "the lazy"}) for _ in range(60)]
        wait_until(lambda: all(x.running() for x in asked))
        for path in ("inside/run", "inside/model", "", "main.js"):
            assert httpx.get(f"{server[0]}/{path}", timeout=10).status_code == 200
        held[1].set()
        assert [x.result()[0] for x in asked] == 60 * [200]
