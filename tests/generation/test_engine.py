"""The engine: whatever runs beside a request, its tokens are those that it gets alone; slots come and go."""

from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np
import pytest

from generation.decode import LIKELIEST, decode
from generation.engine import Engine, Piece, Request
from generation.sampling import PLAIN, Settings
from parallel.mesh import make_mesh, shard
from tests.helpers import MODERN, slowly
from tests.models import TINY, changed, forward, large
from tools.inside.views import nats

CONFIG = replace(TINY, block_size=24, n_kv_head=2, position="rope")
S, V = CONFIG.block_size, CONFIG.vocab_size


@pytest.fixture(scope="module")
def model():
    return large(CONFIG)


def request(seed: int, **settings) -> Request:
    """Make up a request: its prompt may be longer than block_size, its settings are of every kind."""
    random = np.random.default_rng(seed)
    settings = {
        "max_new_tokens": int(random.integers(1, 60)),
        "settings": Settings(
            temperature=[0.0, 0.7, 1.3][seed % 3],
            top_k=[0, 5, 30][seed // 3 % 3],
            top_p=[1, 0.8][seed % 2],
            min_p=[0, 0.1][seed % 7 == 3],
            repetition_penalty=[1, 1.5][seed % 5 == 1],
            presence_penalty=[0, 1.5][seed % 5 == 2],
            frequency_penalty=[0, 0.5][seed % 10 == 2],
        ),
        "bias": [{}, {3: 5.0}][seed % 6 == 5],
        "logprobs": seed % 4 == 1,
    } | settings
    prompt = random.integers(0, V, random.integers(1, 2 * S), dtype=np.int32)
    return Request(prompt, jax.random.key(seed), **settings)


def alone(model, request: Request) -> list[int]:
    """Return the tokens of a request that has the whole engine, without slots for others."""
    return together(Engine(model, 1), [request])[0]


def pieces(engine: Engine) -> Iterator[Piece]:
    """Yield all pieces of the requests in the engine."""
    while not engine.idle:
        yield from engine.step()


def together(engine: Engine, requests: list[Request], most=lambda step: 32) -> list[list[int]]:
    """Return the tokens of each request. They enter as slots are free; step i draws `most(i)` at most."""
    made, owner, step = [[] for _ in requests], {}, 0
    waiting = list(enumerate(requests))
    while waiting or not engine.idle:
        while waiting and engine.free:
            i, one = waiting.pop(0)
            owner[engine.add(one)] = i
        for piece in engine.step(most(step)):
            made[owner[piece.slot]] += piece.tokens.tolist()
        step += 1
    return made


@pytest.mark.parametrize("slots, n", [(3, 7), *slowly((5, 18), (16, 18))])
def test_a_request_gets_the_tokens_that_it_gets_alone(model, slots, n):
    """Greedy and sampled, told and not, short and past block_size, entering and leaving at any token."""
    requests = [request(seed) for seed in range(n)]
    made = together(Engine(model, slots), requests, most=lambda step: 1 + 7 * step % 32)
    assert made == [alone(model, one) for one in requests]
    assert [len(tokens) for tokens in made] == [one.max_new_tokens for one in requests]


def test_attention_reads_no_more_of_the_cache_than_holds_all_rows(monkeypatch):
    """The tokens are those that reading all of it gives, beside longer rows that draw, and that wait."""
    # Attention reads 37, 75, 112 or all of 150 tokens, and prompts are read by 16 or 75.
    model = large(replace(CONFIG, block_size=150, n_layer=1))
    requests = [
        replace(request(seed, max_new_tokens=60), prompt=np.arange(P, dtype=np.int32) % V)
        for seed, P in enumerate([3, 140, 20, 5, 73, 110, 1, 40])
    ]
    reads_all = Engine(model, 3)
    reads_all.buckets = [150]
    expected = together(reads_all, requests)
    buckets = []

    def spied_decode(decoder, cache, rows, n, bucket):
        filled = int((rows.length + rows.left).max())
        buckets.append((bucket, filled))
        return decode(decoder, cache, rows, n, bucket)

    monkeypatch.setattr("generation.engine.decode", spied_decode)
    assert together(Engine(model, 3), requests) == expected
    assert {bucket for bucket, _ in buckets} == {37, 112, 150}
    assert all(filled < bucket or bucket == 150 for bucket, filled in buckets)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data:1", "tensor:2"])
def test_once_all_is_compiled_no_request_compiles(mesh, caplog):
    """Prompts have any length, come alone or together, and ask for log-probabilities and penalties or not."""
    with jax.set_mesh(make_mesh(mesh)):
        engine = Engine(jax.jit(shard)(large(replace(CONFIG, block_size=48, n_layer=1))), 2)
        for program in engine.programs():
            program()
        assert (engine.buckets, engine.prompt_chunks) == ([36, 48], [16, 24])
        caplog.clear()
        with jax.log_compiles():
            for prompts in ([3], [40], [2, 3], [60, 30], [1], [20, 20]):
                for told, settings in ((False, PLAIN), (True, Settings(top_k=5, presence_penalty=1))):
                    for P in prompts:
                        prompt, key = np.arange(P, dtype=np.int32), jax.random.key(2**32 - 1)
                        engine.add(Request(prompt, key, 60, settings, logprobs=told, prompt_logprobs=told))
                    while not engine.idle:
                        engine.step()
    assert not [record.message for record in caplog.records if "Compiling" in record.message]


def test_slots_that_are_freed_are_used_again(model):
    engine = Engine(model, 3)
    assert [engine.add(request(seed, max_new_tokens=50)) for seed in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError):
        engine.add(request(3))
    engine.step()
    engine.remove(1)  # while its prompt is read
    assert engine.free == 1 and engine.add(request(7)) == 1
    engine.step()
    for slot in range(3):
        engine.remove(slot)
    assert engine.idle and engine.step() == []
    assert together(engine, [request(8)]) == [alone(model, request(8))]


@pytest.mark.parametrize("shape", [{}, *slowly(MODERN | dict(mup_base_width=8))])
def test_it_says_how_likely_tokens_are(shape):
    """The model's own logits decide them, for the prompt and the new tokens, before any penalty."""
    model = large(changed(CONFIG, **shape))
    settings = Settings(0.7, top_k=3, presence_penalty=1)
    asked = request(1, max_new_tokens=6, settings=settings, logprobs=True, prompt_logprobs=True)
    asked = replace(asked, prompt=asked.prompt[:15])
    engine = Engine(model, 2)
    engine.add(replace(asked, logprobs=False, prompt_logprobs=False))
    engine.add(asked)
    made = list(pieces(engine))
    assert all(piece.likelihood is None and piece.prompt is None for piece in made if piece.slot == 0)
    made = [piece for piece in made if piece.slot == 1]
    told = [x for piece in made for x in (piece.prompt, piece.likelihood) if x is not None]
    new = np.concatenate([piece.tokens for piece in made])
    tokens = np.concatenate([asked.prompt, new])
    expected = np.asarray(jax.nn.log_softmax(forward(model, tokens[None])))[0, :-1]  # from the second on
    chosen, values, likeliest = (np.concatenate(x) for x in zip(*told, strict=True))
    np.testing.assert_allclose(chosen, expected[np.arange(len(expected)), tokens[1:]], atol=1e-4)
    np.testing.assert_allclose(values, -np.sort(-expected)[:, :LIKELIEST], atol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(expected, likeliest, axis=1), values, atol=1e-4)


@pytest.mark.parametrize("shape", [dict(position="learned"), *slowly(dict(window=3))])
def test_documents_are_as_likely_as_training_has_them(shape):
    """In prompts that are read in chunks, some tokens twice, and in what is drawn, in slots used before."""
    model = large(replace(CONFIG, vocab_size=6, document_start=0, n_layer=1, **shape))
    engine, random = Engine(model, 2), np.random.default_rng(0)
    for lengths in [(20, 5), (13, 1), (24, 9)]:
        told = {}
        for P in lengths:
            prompt = random.integers(0, 6, P, dtype=np.int32)
            slot = engine.add(Request(prompt, jax.random.key(P), S - P, logprobs=True, prompt_logprobs=True))
            told[slot] = prompt, []
        for piece in pieces(engine):
            tokens, chosen = told[piece.slot]
            told[piece.slot] = np.concatenate([tokens, piece.tokens]), chosen
            chosen += [x.chosen for x in (piece.prompt, piece.likelihood) if x is not None]
        for tokens, chosen in told.values():
            assert (tokens[1:] == 0).any()
            np.testing.assert_allclose(-np.concatenate(chosen), nats(model, tokens), atol=1e-4)


def test_a_full_row_whose_last_token_begins_a_document_spoils_no_later_one():
    """It is full while another row draws; only with a second layer do later rows read what it then writes."""
    engine = Engine(large(replace(CONFIG, vocab_size=6, document_start=0)), 2)
    for P, new, bias in [(S - 4, 5, {0: 100.0}), (4, 11, {}), (4, 3, {})]:
        prompt = np.arange(P, dtype=np.int32) % 5 + 1
        engine.add(Request(prompt, jax.random.key(0), new, bias=bias, logprobs=True))
        if engine.free == 0 or new == 3:
            told = [piece.likelihood.chosen for piece in pieces(engine)]
    assert np.isfinite(np.concatenate(told)).all()


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["tensor:2", "fsdp:2", "tensor:4"])
def test_a_mesh_draws_what_one_device_draws(mesh):
    """tensor:4 cannot split the two key/value heads, and leaves the cache whole."""
    model = large(replace(CONFIG, document_start=3, n_layer=1))
    requests = [request(seed, max_new_tokens=30) for seed in range(4)]
    expected = together(Engine(model, 2), requests)
    with jax.set_mesh(make_mesh(mesh)):
        split = jax.jit(shard)(model)
        assert together(Engine(split, 2), requests) == expected
