"""Every mesh, schedule, attention and rematerialisation compiles for NVIDIA's GPUs and for TPUs."""

from dataclasses import replace
from functools import cache

import jax
import pytest

from config.options import Options
from parallel.mesh import mesh_of, parse
from tools.planning.target import parse_target, prepare_to_compile
from training.compute import choose_how
from training.state import model_config, state_shapes
from training.step import compile_step

pytestmark = pytest.mark.accelerator

# Heads of 64, and as few tokens as splash attention takes.
TINY = Options(
    **dict(n_layer=4, n_head=4, n_kv_head=2, n_embd=256, n_hidden=256, block_size=128),
    **dict(position="rope", norm="rmsnorm", unroll=1),
    **dict(batch_size=8, gradient_accumulation_steps=4),
)
V, EOT = 256, 0
EINSUM = dict(attention="einsum")
GPIPE, INTERLEAVED = dict(pipeline_schedule="gpipe"), dict(pipeline_schedule="interleaved", virtual_stages=2)
DOTS, BLOCK, DOCUMENTS = dict(remat="dots"), dict(remat="block"), dict(document_mask=True)
MESHES = [  # every two of mesh, schedule, attention and remat meet
    ("data:8", DOTS),
    ("data:8", EINSUM | BLOCK),
    ("fsdp:8", BLOCK | DOCUMENTS | dict(window=50)),
    ("fsdp:8", EINSUM | DOTS),
    ("data:2,fsdp:2,tensor:2", DOCUMENTS),
    ("data:2,fsdp:2,tensor:2", dict(unroll=0)),
    ("data:2,fsdp:2,tensor:2", EINSUM | BLOCK | DOCUMENTS),
    ("stage:4,fsdp:2", {}),
    ("stage:4,fsdp:2", EINSUM | GPIPE | BLOCK),
    ("stage:2,fsdp:2,tensor:2", GPIPE | DOTS | DOCUMENTS),
    ("stage:2,fsdp:2,tensor:2", EINSUM | BLOCK | dict(unroll=0)),
    ("stage:2,fsdp:4", dict(unroll=0)),
    ("stage:2,data:4", INTERLEAVED | BLOCK | dict(window=50)),
    ("stage:2,fsdp:2,tensor:2", INTERLEAVED | DOTS),
    ("stage:2,fsdp:2,tensor:2", INTERLEAVED | EINSUM),
]


@cache
def devices(target):
    prepare_to_compile()
    return parse_target(target).devices


@pytest.mark.parametrize("mesh, changes", MESHES)
@pytest.mark.parametrize("target", ["H100:8", "v5e:2x4"])
def test_the_step_compiles(target, mesh, changes, optimized):
    options = replace(TINY, **changes)
    there = devices(target)
    with jax.set_mesh(mesh_of(list(there), tuple(parse(mesh, len(there)).values()))):
        config = model_config(options, V, EOT)
        kernel_chosen = choose_how(options, config).kernel
        program = compile_step(state_shapes(config, options), options).as_text()
    fused, kernel = dict(gpu=("cudnn", "__cudnn$fmha"), tpu=("splash", "tpu_custom_call"))[there[0].platform]
    assert kernel_chosen == ("einsum" if options.attention == "einsum" else fused)
    assert (f'custom_call_target="{kernel}' in program) == (options.attention != "einsum")
