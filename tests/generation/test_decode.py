"""Decoding with the cache gives the tokens that the model gives without one, whatever the lengths."""

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from generation import decode as decoding
from generation.decode import CHUNK, DATA, Rows, generate, start
from generation.sampling import GREEDY, PLAIN, Settings
from model import GPTConfig
from tests.helpers import slowly
from tests.models import forward, large

SHAPE = dict(block_size=40, vocab_size=65, n_layer=2, n_head=4, n_embd=32)
CONFIGS = {
    "gpt2": GPTConfig(**SHAPE, mlp="gelu", bias=True),
    "llama": GPTConfig(**SHAPE, position="rope", norm="rmsnorm", n_kv_head=2, qk_norm=True),
}
S = SHAPE["block_size"]
KEY = jax.random.key(7)


make = partial(large, how=None)


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    return make(CONFIGS[request.param])


@pytest.fixture(scope="module")
def gpt2():
    return make(CONFIGS["gpt2"])


def prompt(B, P, seed=0):
    return np.random.default_rng(seed).integers(0, SHAPE["vocab_size"], (B, P), dtype=np.int32)


def generated(model, prompt, n, *, key=KEY, **settings):
    """The new tokens, (B, n)."""
    settings = Settings(**settings)
    chunks = generate(model, prompt, key=key, max_new_tokens=n, settings=settings)
    return np.concatenate(list(chunks), axis=1)


def contexts(prompt, new, S):
    """What each new token reads: the window rule in its simplest form, from the text alone."""
    context = prompt[:, -S:]
    for i in range(new.shape[1]):
        yield context
        context = np.concatenate([context, new[:, i : i + 1]], axis=1)
        if context.shape[1] > S:
            context = context[:, -max(1, S // 2) :]


def assert_greedy(model, prompt, new):
    """Each new token is the likeliest one after its context, which the model reads anew, without a cache."""
    S = model.config.block_size
    for i, context in enumerate(contexts(prompt, new, S)):
        length = context.shape[1]  # padded behind, which a causal model does not read, to compile once
        padded = np.pad(context, ((0, 0), (0, S - length)))
        expected = forward(model, padded)[:, length - 1].argmax(-1)
        np.testing.assert_array_equal(new[:, i], expected, f"token {i}")


@pytest.mark.parametrize("P, n", [(1, S), (S, 1), (17, 2 * S + 3), (3 * S, 2 * S + 3)])
def test_greedy_decoding_equals_recomputing_within_block_size_and_past_it(model, P, n):
    new = generated(model, prompt(2, P), n, temperature=0)
    assert new.shape == (2, n) and new.dtype == np.int32
    assert_greedy(model, prompt(2, P), new)


@pytest.mark.parametrize("block_size", [1, CHUNK + 1, *slowly(3)])
def test_small_and_odd_windows(block_size):
    model = make(replace(CONFIGS["gpt2"], block_size=block_size, n_layer=1))
    new = generated(model, prompt(1, 2), 3 * CHUNK, temperature=0)
    assert_greedy(model, prompt(1, 2), new)


def test_past_block_size_one_token_in_half_of_it_costs_a_prefill(gpt2, monkeypatch):
    monkeypatch.setattr(decoding, "prefill", prefill := Mock(wraps=decoding.prefill))
    generated(gpt2, prompt(1, 3 * S), 3 * S)
    chunks = [call.args[2] for call in prefill.call_args_list]
    assert [chunk.tokens.shape[1] for chunk in chunks] == [S, *6 * [32]]


def test_asking_for_more_tokens_changes_none_of_the_first(gpt2):
    long = generated(gpt2, prompt(2, 5), 2 * S)
    for n in (1, CHUNK, CHUNK + 5, S):
        np.testing.assert_array_equal(generated(gpt2, prompt(2, 5), n), long[:, :n])


@pytest.mark.slow
def test_the_first_tokens_are_drawn_from_the_models_distribution(gpt2):
    """Pearson's chi-squared statistic of the second token after a fixed first, below its 99.9% quantile."""
    n, kept = 1500, 4
    rows = generated(gpt2, np.tile(prompt(1, 5), (n, 1)), 2, temperature=2, top_k=kept)
    first = np.bincount(rows[:, 0]).argmax()
    drawn = rows[rows[:, 0] == first, 1]
    values, tokens = jax.lax.top_k(gpt2(np.append(prompt(1, 5), [[first]], axis=1))[0, -1] / 2, kept)
    expected = len(drawn) * np.asarray(jax.nn.softmax(values))
    counts = np.array([(drawn == token).sum() for token in tokens])
    assert counts.sum() == len(drawn)
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # 3 degrees of freedom


def test_it_is_compiled_once_for_all_settings_and_for_lengths_of_the_same_power_of_two(caplog):
    model = make(replace(CONFIGS["gpt2"], block_size=S + 1, n_layer=1))  # no other test's
    with jax.log_compiles():
        for P, n in [(6, 20), (7, 11), (9, 22)]:
            generated(model, prompt(2, P), n, temperature=0.1 * P, top_k=P, top_p=0.9, key=jax.random.key(P))
    compiled = Counter(re.findall(r"Compiling jit\((prefill|decode)\)", caplog.text))
    assert compiled == {"prefill": 1, "decode": 1}


def test_a_program_for_settings_that_change_nothing_has_no_branches_and_draws_the_same_tokens():
    model = make(replace(CONFIGS["gpt2"], n_layer=1))
    rows = Rows.empty(2, SHAPE["vocab_size"])._replace(wanted=None)
    for settings in (PLAIN, GREEDY):
        rows.settings[:], rows.key[:], rows.left[:] = settings, [[0, 1], [0, 2]], 20
        drawn = []
        for constants, branches in ((DATA, True), (tuple(settings), False)):
            decoder, cache = start(model, 2, S)
            program = decoding.decode.lower(decoder, cache, rows, np.int32(20), constants=constants).compile()
            assert (" conditional(" in program.as_text()) == branches
            drawn.append(np.asarray(program(decoder, cache, rows, np.int32(20))[0]))
        assert (drawn[0] == drawn[1]).all()


def test_a_long_prompt_is_read_in_chunks():
    model = make(replace(CONFIGS["llama"], block_size=300, n_layer=1))
    start = prompt(2, 295)
    assert_greedy(model, start, generated(model, start, 4, temperature=0))


def test_tokens_come_as_they_are_made(gpt2):
    chunks = [chunk.shape[1] for chunk in generate(gpt2, prompt(2, 1), key=KEY, max_new_tokens=3 * S)]
    assert chunks[0] == 1 and max(chunks) <= CHUNK and sum(chunks) == 3 * S
    assert list(generate(gpt2, prompt(2, 3), key=KEY, max_new_tokens=0)) == []
