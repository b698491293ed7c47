"""The least that FSDP must send, counted by hand."""

import pytest

from layers.compute import Compute
from model import GPTConfig
from tools.planning.ideal import least_sent

CONFIG = GPTConfig(compute=Compute("bfloat16"))


def mesh(**sizes):
    return dict(stage=1, data=1, fsdp=1, tensor=1) | sizes


@pytest.mark.parametrize(
    "sizes, microbatches, expected",
    [
        # Of 1000 weights: twice 2 bytes for each microbatch, 4 once, of which seven eighths are sent.
        (dict(fsdp=8), 1, {"fsdp": 7 / 8 * 8000}),
        (dict(fsdp=8), 5, {"fsdp": 7 / 8 * 24000}),
        (dict(data=4), 5, {"data": 2 * 3 / 4 * 4000}),
        # Each device has a half of the weights' gradients to sum.
        (dict(data=4, fsdp=2), 1, {"fsdp": 1 / 2 * 8000, "data": 2 * 3 / 4 * 2000}),
        (dict(fsdp=2, tensor=2, stage=2), 1, {"fsdp": 1 / 2 * 2000}),
        (dict(tensor=8), 1, {}),
    ],
)
def test_the_least_that_is_sent(sizes, microbatches, expected):
    assert least_sent(CONFIG, mesh(**sizes), microbatches, 1000) == pytest.approx(expected)


def test_float32_weights_are_gathered_as_such():
    assert least_sent(GPTConfig(), mesh(fsdp=2), 1, 1000) == {"fsdp": 1 / 2 * (2 * 4000 + 4000)}
