"""Only an NVIDIA GPU can show what these tests state; without one they are skipped.

    XLA_PYTHON_CLIENT_PREALLOCATE=false python -m pytest tests/test_gpu.py

Otherwise these tests would take the memory that the programs which they start need.
"""

import jax
import jax.numpy as jnp
import pytest

from fast import How
from model import GPT
from tests import test_bench
from tests.fast.test_kernels import functions
from tests.generation.test_cache import in_chunks
from tests.helpers import FLOAT32_ROUNDING, assert_same_bits, distance, run_python, saved_state
from tests.models import TINY, changed, large, random_tokens

pytestmark = [
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU"),
    pytest.mark.usefixtures("optimized"),
]


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("window", [None, 50])
def test_cudnns_attention_and_its_gradient_are_those_of_float32(documents, window):
    by_cudnn, by_einsum, exact = functions(documents, window, 64, How("bfloat16", kernel="cudnn"))
    rounded = [x.astype(jnp.bfloat16) for x in exact]
    compiled = by_cudnn.lower(*rounded).compile()
    assert "__cudnn$fmha" in (compiled.as_text() or "")
    with jax.default_matmul_precision("highest"):
        expected = by_einsum(*(x.astype(jnp.float32) for x in rounded))
    for one, other in zip(compiled(*rounded), expected, strict=True):
        assert distance(one, other) < 2**-6  # rounded to 8 bits, a score of 4 changes its weight by 2^-7


def test_ten_steps_have_the_losses_of_a_cpu(tmp_path, capsys):
    test_bench.test_ten_losses_are_those_of_every_machine(tmp_path, capsys, device="cuda")


def test_decoding_with_the_cache_gives_the_features_of_the_whole_context():
    model = large(changed(TINY, position="rope", n_kv_head=2))
    tokens = random_tokens(model.config)
    with jax.default_matmul_precision("highest"):
        found, _ = in_chunks(model, tokens, [5, 6, 7, 8])
        assert distance(found, jax.jit(GPT.features)(model, tokens)) < FLOAT32_ROUNDING


def test_with_deterministic_two_runs_and_a_resumed_one_have_the_same_bits(tiny, tmp_path):
    options = dict(device="cuda", dtype="bfloat16", deterministic=True, n_embd=128, block_size=64)

    def train(out, **more):
        done = run_python("train.py", *tiny(tmp_path / out, **options | more))
        assert done.returncode == 0, done.stderr
        return saved_state(tmp_path / out)

    once, again = train("once", max_iters=20), train("again", max_iters=20)
    train("resumed", max_iters=10)
    assert_same_bits(once, again)
    assert_same_bits(once, train("resumed", max_iters=20, init_from="resume"))
