"""Other versions of the code, each in a process of its own: which can be compared, and which do nothing."""

import os
import shutil
from contextlib import ExitStack, closing

import pytest

from tests.experiments.conftest import words
from tests.helpers import ROOT, refusal
from tools.benchmarks.other_code import OtherCode, check_losses

LOSS = "return self.mean_nats("
ENTROPY = "jax.nn.log_softmax(logits)"


@pytest.fixture
def version(tmp_path, tiny_data):
    """`version(name, old, new)` starts the code with one change of model.py."""
    with ExitStack() as stack:

        def start(name, old="", new=""):
            left_out = shutil.ignore_patterns(
                ".*", "out*", "docs", "tests", "results", "*.bin", "__pycache__"
            )
            shutil.copytree(ROOT, folder := tmp_path / name, ignore=left_out)
            text = (folder / "model.py").read_text()
            assert old in text
            (folder / "model.py").write_text(text.replace(old, new, 1))
            code = OtherCode(name, folder, words(dataset=tiny_data), dict(os.environ))
            return stack.enter_context(closing(code))

        yield start


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        "return 0.9 * self.mean_nats(",
        "return 1e-3 * jnp.square(jax.nn.logsumexp(self(tokens), -1)).mean() + self.mean_nats(",
        "return -0.1 * jax.nn.log_softmax(self(tokens)).mean() + 0.9 * self.mean_nats(",
    ],
    ids=["scaled", "z-loss", "smoothed"],
)
def test_a_loss_that_is_not_the_cross_entropy_of_its_logits_is_refused(version, loss):
    base, other = version("base"), version("other", LOSS, loss)
    assert "other: its model.loss is not the cross entropy" in refusal(check_losses, [base, other])


@pytest.mark.slow
def test_a_change_that_three_steps_do_not_show_is_named(version, capsys):
    """fast.py computes the loss in its own way, so that an edit of cross_entropy does nothing."""
    idle = version("idle", ENTROPY, ENTROPY.replace("logits", "0.9 * logits"))
    other = version("other", "return 0.02 / math.sqrt(2", "return 0.04 / math.sqrt(2")
    check_losses([version("base"), idle, other])
    assert capsys.readouterr().err.count("three steps change nothing") == 1
