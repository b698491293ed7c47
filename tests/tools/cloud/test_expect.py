"""A launch says how long its run takes at least, where that can be known."""

from dataclasses import replace

import pytest

from config.command_line import UserError
from config.options import Options
from tools.cloud.expect import BEST, describe_least, least_hours
from tools.cloud.options import LaunchOptions

# Karpathy's GPT-2 run, with nanoGPT's MLP: 295 billion tokens.
GPT2 = replace(Options(), mlp="gelu", bias=True, vocab_size=50304)
PARAMETERS = 50304 * 768 + 12 * 12 * 768**2  # of its matrices
FLOPS = 6 * PARAMETERS + 12 * 12 * 768 * 1024  # per token, as nanoGPT's README counts
TOKENS = 600_000 * Options.batch_size * Options.gradient_accumulation_steps * 1024


@pytest.mark.parametrize(
    "gpu, nodes, peak",
    [
        ("H100", 1, 989e12),
        ("H100!:8", 1, 8 * 989e12),
        ("H100:8", 2, 16 * 989e12),
        ("A10", 1, 70e12),  # an A10G
        ("A100-80GB,H100", 1, 989e12),  # the fastest that it may get
    ],
)
def test_the_least_is_the_products_at_the_best_share_of_the_peak(gpu, nodes, peak):
    hours = least_hours(GPT2, LaunchOptions(gpu=gpu, nodes=nodes))
    assert hours == pytest.approx(TOKENS * FLOPS / (BEST * peak) / 3600)


@pytest.mark.parametrize(
    "options, gpu",
    [
        (GPT2, "none"),
        (GPT2, "T4"),  # has no bfloat16
        (replace(GPT2, init_from="resume"), "H100"),
        (replace(GPT2, init_from="gpt2"), "H100"),
    ],
)
def test_what_is_not_known_is_not_said(options, gpu):
    assert describe_least(options, LaunchOptions(gpu=gpu)) is None


def test_it_is_said_whether_there_is_time_for_it():
    line = describe_least(GPT2, LaunchOptions(gpu="H100"))
    assert line and line.endswith("more than the 12 h of all attempts")
    short = describe_least(replace(GPT2, max_iters=1000), LaunchOptions(gpu="H100"), runs=3)
    assert short and short.startswith("each run takes") and short.endswith("of the GPU's peak")


def test_a_shape_that_cannot_be_is_refused():
    with pytest.raises(UserError, match="n_embd=768 must be a multiple of n_head=7"):
        least_hours(replace(GPT2, n_head=7), LaunchOptions(gpu="H100"))
