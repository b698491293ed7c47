"""The loss of rows of tokens, which evaluate.py sums, on models that no `transformers` class has."""

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

from config.options import Options
from parallel.mesh import make_mesh
from tests.helpers import FLOAT32_ROUNDING, MODERN, moved
from tools.evaluation.score import score
from training.state import create_state, model_config

SHAPE = dict(n_layer=2, n_head=4, n_embd=32, block_size=16, dtype="float32")


@pytest.mark.parametrize("new", [MODERN, dict(mup_base_width=8)], ids=["modern", "µP"])
def test_the_loss_of_a_row_is_that_of_the_models_logits(new):
    options = Options(**SHAPE, **new)
    model = moved(create_state(model_config(options, vocab_size=33), options).model, 0.2)
    x, y = np.random.default_rng(0).integers(33, size=(2, 3, 16))
    y[1, 5:] = -1  # no targets
    with jax.set_mesh(make_mesh("data:1")):
        found, _ = score(model, [(x, y)], x.shape, (y >= 0).sum(), "a test")
        log_p = log_softmax(np.asarray(model(x), np.float64), axis=-1)

    nats = -np.take_along_axis(log_p, np.maximum(y, 0)[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(found, (nats * (y >= 0)).sum(axis=1), rtol=FLOAT32_ROUNDING)
