"""The loss is PyTorch's, with its gradients, whatever the chunks; all the logits never exist at once.

Rows without targets, and what follows the loss: training/test_step.py.
"""

import jax
import numpy as np
import pytest
import torch
from jax.extend.core import jaxprs_in_params

from fast import How, chunked_loss, chunks
from parallel.mesh import make_mesh
from tests.helpers import distance

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


both = jax.value_and_grad(chunked_loss, argnums=(0, 1))


def value_and_gradients(x, head, targets, how):
    """The loss and its gradients with respect to x and head, as numpy arrays."""
    value, gradients = both(x, head, targets, how)
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
        (14, How.max_logits, 1),
        (14, 4 * 6 * 100, 3),  # of 5, the last with one that is no token
        (13, 4 * 7 * 100, 2),  # a prime
        (1021, 4 * 128 * 100, 8),  # a larger prime, whose chunks were once of one token
        (14, 1, 14),  # one position at a time at the least
    ],
)
def test_loss_and_gradients_are_pytorchs_whatever_the_chunks(T, max_logits, n_chunks):
    x, head, targets = inputs(T=T)
    assert len(chunks(x, targets, len(head), max_logits)[0]) == n_chunks
    how = How(max_logits=max_logits)
    found = value_and_gradients(x, head, targets, how)
    np.testing.assert_allclose(chunked_loss(x, head, targets, how), found[0], rtol=ROUNDING)  # it alone
    for ours, theirs in zip(found, torch_value_and_gradients(x, head, targets), strict=True):
        assert ours.dtype == np.float32 and ours.shape == theirs.shape
        assert distance(ours, theirs) < ROUNDING


@pytest.mark.parametrize("mesh, n_chunks", [("data:2,tensor:2", 1), ("stage:2,data:2", 2), ("stage:4", 4)])
def test_a_device_holds_so_many_logits_and_stages_do_not_share_them(mesh, n_chunks):
    x, _, targets = inputs(T=16)
    with jax.set_mesh(make_mesh(mesh)):
        assert len(chunks(x, targets, 100, max_logits=4 * 4 * 100)[0]) == n_chunks


@pytest.mark.parametrize("results", ["float32", "bfloat16"])  # a CPU's, and any other device's
def test_bfloat16_errs_by_the_rounding_of_its_operands_and_results(results):
    x, head, targets = inputs()
    how = How("bfloat16", results)
    value, dx, dhead = value_and_gradients(x, head, targets, how)
    np.testing.assert_allclose(chunked_loss(x, head, targets, how), value, rtol=ROUNDING)
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


def test_all_the_logits_never_exist_at_once():
    how = How(max_logits=4 * 2 * 100)
    x, head, targets = inputs(T=16, D=8)
    for function in (chunked_loss, both):
        jaxpr = jax.make_jaxpr(function, static_argnums=3)(x, head, targets, how)
        assert max(sizes(jaxpr.jaxpr)) == how.max_logits
