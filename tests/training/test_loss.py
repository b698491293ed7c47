"""The loss: that of PyTorch, with its gradients, whatever the chunks, and never all the logits at once."""

import jax
import numpy as np
import pytest
import torch
from jax.extend.core import jaxprs_in_params

from layers import products
from tests.helpers import CPU, H100, V5E, distance, on
from training import loss
from training.loss import cross_entropy

# As helpers.FLOAT32_ROUNDING, but with about ten operations in a row, the products among them sums of at most
# 100 terms: sqrt(10 * 100) u.
ROUNDING = 2e-6


def inputs(B=4, T=14, D=32, V=100):
    """Features, a head whose logits spread, and targets: the first and last token, and some left out."""
    rng = np.random.default_rng(0)
    targets = rng.integers(V, size=(B, T)).astype(np.int32)
    targets[0, :5] = [0, V - 1, -1, -1, 0]
    targets[1] = -1
    x, head = (rng.standard_normal(shape).astype(np.float32) for shape in ((B, T, D), (V, D)))
    return x, head / 2, targets


def value_and_gradients(x, head, targets, dtype="float32"):
    """The loss, and its gradients with respect to x and head, as numpy arrays."""
    value, gradients = jax.value_and_grad(cross_entropy, argnums=(0, 1))(x, head, targets, dtype)
    return np.asarray(value), *map(np.asarray, gradients)


def torch_value_and_gradients(x, head, targets):
    """The same of PyTorch, in float64."""
    x, head = (torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in (x, head))
    labels = torch.tensor(targets).long().flatten()
    value = torch.nn.functional.cross_entropy((x @ head.T).flatten(0, 1), labels, ignore_index=-1)
    value.backward()
    return value.detach().numpy(), x.grad.numpy(), head.grad.numpy()


@pytest.mark.parametrize(
    "T, max_logits, n_chunks",
    [
        (14, loss.MAX_LOGITS, 1),
        (14, 4 * 7 * 100, 2),
        (14, 4 * 6 * 100, 7),  # not 3 chunks of 6, 6 and 2: all are equal
        (13, 4 * 7 * 100, 13),  # a prime
        (14, 1, 14),  # one position at a time at the least
    ],
)
def test_loss_and_gradients_are_pytorchs_whatever_the_chunks(monkeypatch, T, max_logits, n_chunks):
    monkeypatch.setattr(loss, "MAX_LOGITS", max_logits)
    x, head, targets = inputs(T=T)
    assert len(loss.chunks(x, targets, len(head))[0]) == n_chunks
    expected = torch_value_and_gradients(x, head, targets)
    for ours, theirs in zip(value_and_gradients(x, head, targets), expected, strict=True):
        assert ours.dtype == np.float32 and ours.shape == theirs.shape
        assert distance(ours, theirs) < ROUNDING


@pytest.mark.parametrize("max_logits", [loss.MAX_LOGITS, 4 * 7 * 100])
@pytest.mark.parametrize("cap, z_loss", [(3.0, 0.0), (0.0, 0.3), (3.0, 0.3)])
def test_a_bound_on_the_logits_and_z_loss_are_pytorchs_too(monkeypatch, max_logits, cap, z_loss):
    monkeypatch.setattr(loss, "MAX_LOGITS", max_logits)
    x, head, targets = inputs()
    theirs = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in (x, head)]
    logits = (theirs[0] @ theirs[1].T).flatten(0, 1)
    logits = cap * torch.tanh(logits / cap) if cap else logits
    labels = torch.tensor(targets).long().flatten()
    expected = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-1)
    expected = expected + z_loss * logits[labels >= 0].logsumexp(-1).square().mean()
    expected.backward()

    ours = jax.value_and_grad(cross_entropy, argnums=(0, 1))
    value, gradients = ours(x, head, targets, "float32", cap, z_loss)
    alone = cross_entropy(x, head, targets, "float32", cap, z_loss)
    assert distance(value, expected.detach()) < ROUNDING and distance(alone, value) < ROUNDING
    for gradient, array in zip(gradients, theirs, strict=True):
        assert gradient.dtype == np.float32
        assert distance(gradient, array.grad) < ROUNDING


def test_a_gradient_is_scaled_by_what_follows_the_loss():
    x, head, targets = inputs()
    scaled = jax.grad(lambda x: 3 * cross_entropy(x, head, targets, "float32"))(x)
    np.testing.assert_allclose(scaled, 3 * value_and_gradients(x, head, targets)[1], rtol=ROUNDING)


@pytest.mark.parametrize("max_logits", [loss.MAX_LOGITS, 4 * 7 * 100])
def test_without_a_target_the_loss_and_its_gradients_are_zero(monkeypatch, max_logits):
    monkeypatch.setattr(loss, "MAX_LOGITS", max_logits)
    x, head, targets = inputs()
    value, *gradients = value_and_gradients(x, head, np.full_like(targets, -1))
    assert value == 0
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("max_logits", [loss.MAX_LOGITS, 4 * 7 * 100])
def test_the_value_alone_is_the_one_that_comes_with_gradients(monkeypatch, max_logits, dtype):
    monkeypatch.setattr(loss, "MAX_LOGITS", max_logits)
    x, head, targets = inputs()
    alone = cross_entropy(x, head, targets, dtype)
    np.testing.assert_allclose(alone, value_and_gradients(x, head, targets, dtype)[0], rtol=ROUNDING)


@pytest.mark.parametrize("results", ["float32", "bfloat16"])
def test_bfloat16_errs_by_the_rounding_of_its_operands_and_results(monkeypatch, results):
    monkeypatch.setattr(products, "result_dtype", lambda dtype: results)  # a CPU's, and any other device's
    x, head, targets = inputs()
    value, dx, dhead = value_and_gradients(x, head, targets, "bfloat16")
    exact, exact_dx, exact_dhead = torch_value_and_gradients(x, head, targets)
    u = 2.0**-9  # bfloat16 keeps 8 bits
    twice, thrice = (1 + u) ** 2 - 1, (1 + u) ** 3 - 1  # two operands are rounded; and the result, on a GPU

    # A logit moves by d at most, so log sum exp does, and so does the label's logit.
    x, head = x.astype(np.float64), head.astype(np.float64)
    d = (twice if results == "float32" else thrice) * (np.abs(x) @ np.abs(head).T).max()
    assert value.dtype == dx.dtype == dhead.dtype == np.float32
    assert 0 < abs(value - exact) < 2 * d

    # A probability p moves by p (exp(2 d) - 1) at most, and then it is an operand itself.
    logits = x @ head.T
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dlogits = np.abs(p - (targets[..., None] == np.arange(len(head))))
    error = thrice * dlogits + (1 + thrice) * np.expm1(2 * d) * p
    error *= (targets >= 0)[..., None] / (targets >= 0).sum()
    rounded = 0 if results == "float32" else u * np.abs(dx)
    assert (np.abs(dx - exact_dx) <= error @ np.abs(head) + rounded).all()
    assert (np.abs(dhead - exact_dhead) <= np.einsum("btv,btd->vd", error, np.abs(x))).all()


def sizes(jaxpr):
    """The number of elements of every array that a computation makes."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from sizes(inner)


def test_all_the_logits_never_exist_at_once(monkeypatch):
    monkeypatch.setattr(loss, "MAX_LOGITS", 4 * 2 * 100)
    x, head, targets = inputs(T=16, D=8)
    both = jax.value_and_grad(cross_entropy, argnums=(0, 1))
    for function in (cross_entropy, both):
        jaxpr = jax.make_jaxpr(function, static_argnums=3)(x, head, targets, "float32")
        assert max(sizes(jaxpr.jaxpr)) == loss.MAX_LOGITS


@pytest.mark.parametrize("device, rows", [(CPU, 1), (V5E, 13), (H100, 69)])
def test_the_memory_of_the_target_says_how_many_rows_of_logits_there_may_be(device, rows):
    """Of GPT-2's 1024 x 50304, in bfloat16 a twelfth of 15 and of 80 GiB; on a CPU, 2^26."""
    with on(*device):
        assert loss.max_logits() // (1024 * 50304) == rows


def test_chunks_save_the_memory_of_the_logits(monkeypatch):
    x, head, targets = inputs(B=4, T=64, D=16, V=5000)
    logits = 4 * 64 * 5000 * 4  # bytes

    def temporaries():
        def both(x, head, targets):
            return jax.value_and_grad(cross_entropy, argnums=(0, 1))(x, head, targets, "float32")

        return jax.jit(both).lower(x, head, targets).compile().memory_analysis().temp_size_in_bytes

    assert temporaries() > logits
    monkeypatch.setattr(loss, "MAX_LOGITS", 4 * 2 * 5000)  # of 64 positions, 2: a 32nd
    assert temporaries() < logits / 4
