"""What `--mesh` accepts, and what it refuses in one line."""

import jax
import pytest
from jax.sharding import AxisType

import train
from config.options import Options
from model import GPTConfig
from parallel.mesh import check_fit, make_mesh, parse
from tests.helpers import FLOAT32_ROUNDING, random_batch, refusal
from training.state import create_state, model_config
from training.step import compile_step

SMALL = Options(
    **dict(n_layer=2, n_head=2, n_embd=16, block_size=8, batch_size=2, gradient_accumulation_steps=2),
    **dict(dropout=0.1, unroll=1),
)


@pytest.mark.parametrize(
    "text, sizes",
    [
        ("data:2,fsdp:2,tensor:2", (1, 2, 2, 2)),
        ("tensor:4,fsdp:-1", (1, 1, 2, 4)),
        (" fsdp : 8 ", (1, 1, 8, 1)),
        ("stage:2,data:-1", (2, 4, 1, 1)),
    ],
)
def test_a_mesh_has_the_sizes_that_its_text_names(text, sizes):
    assert tuple(parse(text, 8).values()) == sizes
    axes = ("stage", "data", "fsdp", "tensor")
    assert tuple(make_mesh(text).shape.items()) == tuple(zip(axes, sizes, strict=True))


@pytest.mark.parametrize(
    "text, says",
    [
        ("data:16", "needs 16 devices, of 8"),
        ("fsdp:3,data:-1", "needs a multiple of 3 devices, of 8"),
        *((text, "each at most once") for text in ("data:-1,fsdp:-1", "data:2,data:4")),
        *((text, "give sizes of stage, data,") for text in ("fsdb:8", "data", "data:0", "")),
    ],
)
def test_a_mesh_that_cannot_be_is_one_line(text, says):
    said = refusal(make_mesh, text)
    assert said.startswith(f"mesh={text}") and says in said


def test_a_mesh_of_fewer_devices_says_so(capsys):
    assert make_mesh("fsdp:2").devices.ravel().tolist() == jax.devices()[:2]
    assert "mesh=fsdp:2 uses 2 of 8 devices" in capsys.readouterr().err


def test_in_a_mesh_of_a_users_own_axes_the_step_is_that_of_one_device():
    def loss():
        state = create_state(model_config(SMALL, 65), SMALL)
        return float(compile_step(state, SMALL)(state, *random_batch(SMALL, 65))[1]["loss"])

    expected = loss()
    with jax.set_mesh(jax.make_mesh((2, 2), ("data", "model"), axis_types=2 * (AxisType.Auto,))):
        assert loss() == pytest.approx(expected, rel=FLOAT32_ROUNDING)


@pytest.mark.parametrize(
    "mesh, changes, says",
    [
        ("data:8", dict(B=12, A=40), "= 8: --batch_size=96 --gradient_accumulation_steps=5 is as large"),
        ("data:2,fsdp:4", dict(B=12), "batch_size=12 must be a multiple of data x fsdp = 8"),
        ("fsdp:8", dict(n_embd=36), "n_embd=36 must be a multiple of fsdp = 8"),
        ("tensor:8", dict(n_head=4), "n_head=4 must be a multiple of tensor = 8"),
        ("tensor:4", dict(n_hidden=90), "the MLP's hidden size=90 must be a multiple of tensor = 4"),
        ("tensor:4", dict(n_head=4, n_kv_head=2), "n_kv_head=2 must be a multiple of tensor = 4"),
    ],
)
def test_what_the_mesh_cannot_split_evenly_is_one_line(mesh, changes, says):
    shape = dict(n_embd=64, n_head=4) | changes
    B, A = shape.pop("B", 8), shape.pop("A", 1)
    assert says in refusal(check_fit, make_mesh(mesh), GPTConfig(**shape), B, A)


def test_a_run_is_refused_before_it_begins(tiny, tmp_path):
    said = refusal(train.main, tiny(tmp_path / "out", mesh="data:8"))
    assert said.startswith("batch_size=4 must be a multiple of data x fsdp = 8")
