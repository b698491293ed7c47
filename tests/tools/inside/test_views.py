"""What is shown of a model's inside is what `transformers` says of the same weights."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from fast import How
from tests.helpers import MODERN
from tests.models import TINY, changed, large
from tests.reference import CONFIGS, as_gpt, random_reference
from tools.inside.views import attention, lens, nats

ROUNDING = {"rtol": 2e-4, "atol": 2e-5}


@pytest.mark.parametrize("name", ["gpt2", "mistral", "qwen3"])
def test_attention_lens_and_nats_are_those_of_transformers(name):
    """With learned positions; a window; norms of queries and keys."""
    reference = random_reference(name)
    reference.set_attn_implementation("eager")
    tokens = np.random.default_rng(0).integers(CONFIGS[name].vocab_size, size=7, dtype=np.int32)
    theirs = torch.tensor(tokens, dtype=torch.long)
    norm = reference.transformer.ln_f if name == "gpt2" else reference.model.norm
    with torch.no_grad():
        said = reference(theirs[None], output_attentions=True, output_hidden_states=True)
        streams = torch.cat(said.hidden_states)  # the last is normalised already
        logits = reference.lm_head(torch.cat([norm(streams[:-1]), streams[-1:]]))
    model = as_gpt(name, dict(reference.named_parameters()))

    np.testing.assert_allclose(attention(model, tokens), torch.cat(said.attentions).numpy(), **ROUNDING)

    seen, expected = lens(model, tokens, k=5), torch.topk(torch.softmax(logits, -1), 5)
    np.testing.assert_allclose(seen.stream_norms[:-1], streams[:-1].norm(dim=-1).numpy(), **ROUNDING)
    np.testing.assert_allclose(seen.probabilities, expected.values.numpy(), **ROUNDING)
    np.testing.assert_array_equal(seen.tokens, expected.indices.numpy())

    loss = torch.nn.functional.cross_entropy(said.logits[0, :-1], theirs[1:], reduction="none")
    np.testing.assert_allclose(nats(model, tokens), loss.numpy(), **ROUNDING)


def test_the_parts_of_a_block_add_up_to_the_stream():
    """With attention's projection at zero, all that a block adds is its MLP's."""
    model = large(TINY)
    silent = jax.tree.map(jnp.zeros_like, model.blocks.attn.c_proj)
    model = eqx.tree_at(lambda m: m.blocks.attn.c_proj, model, silent)
    seen = lens(model, np.arange(9, dtype=np.int32), k=1)
    assert (seen.attn_norms == 0).all() and (seen.mlp_norms > 0).all()
    grown = seen.stream_norms[1:] - seen.stream_norms[:-1]
    assert (np.abs(grown) <= seen.mlp_norms * (1 + 1e-5)).all()


def test_in_bfloat16_too_the_lens_ends_in_the_probabilities_of_the_model():
    """Else the page would show two numbers for one thing."""
    config = changed(TINY, **MODERN)
    model, tokens = large(config, How("bfloat16", "bfloat16")), np.arange(9, dtype=np.int32)
    surprise = nats(model, tokens)
    seen = lens(model, tokens, k=config.vocab_size)
    said = np.where(seen.tokens[-1, :-1] == tokens[1:, None], seen.probabilities[-1, :-1], 0).sum(-1)
    np.testing.assert_allclose(said, np.exp(-surprise), rtol=1e-4)


def test_documents_are_looked_at_apart():
    model = large(replace(TINY, document_start=3))
    weights = attention(model, np.array([5, 6, 3, 7, 8], np.int32))
    assert (weights[:, :, 2:, :2] == 0).all() and (weights[:, :, 1, 0] > 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
