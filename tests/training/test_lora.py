"""LoRA: what adapters compute, that they alone are trained and kept, and runs with them, start to end."""

import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sample
import train
from config.options import Options
from data.tokenizer import CharTokenizer
from data.writer import write_dataset
from parallel.mesh import make_mesh
from runs.checkpoint import arrays_by_name
from runs.load import fingerprint, load_run
from tests.helpers import (
    FLOAT32_ROUNDING,
    assert_as_on_one_device,
    assert_same_bits,
    distance,
    losses,
    random_batch,
    records,
    refusal,
    saved_iterations,
    slowly,
)
from tests.models import forward
from training.lora import add_adapters, merge, partition_trainable, without_adapters
from training.state import create_state, create_state_around, model_config

V, T = 64, 8
TINY = Options(
    **dict(n_layer=2, n_head=8, n_embd=64, block_size=T, batch_size=8, gradient_accumulation_steps=1),
    **dict(unroll=1, learning_rate=1e-2, warmup_iters=0, lr_decay_iters=100),
)
GPT2 = replace(TINY, mlp="gelu", bias=True)
LLAMA = replace(
    TINY, position="rope", norm="rmsnorm", n_head=16, n_kv_head=8, tie_embeddings=False, qk_norm=True
)
VARIANTS = {"gpt2": GPT2, "llama": LLAMA}
LORA = dict(lora_rank=4, lora_alpha=8.0)

pytestmark = pytest.mark.usefixtures("steps_compiled_once")


def base(options):
    """An ordinary model, which may be consumed."""
    return create_state(model_config(options, V), replace(options, lora_rank=0)).model


@jax.jit
def with_b(model):
    """An adapted model whose B is no longer zero: as large as A, the same on every mesh."""

    def fill(path, x):
        return jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) / 8 if "lora_b" in str(path) else x

    return jax.tree_util.tree_map_with_path(fill, model)


def adapted(options):
    return with_b(create_state_around(base(options), replace(options, **LORA)).model)


@pytest.mark.parametrize("variant", ["gpt2", *slowly("llama")])
def test_fresh_adapters_change_nothing_and_stand_beside_what_is_there(variant):
    options, tokens = VARIANTS[variant], random_batch(TINY, V)[0, 0]
    before = base(options)
    after = add_adapters(before, replace(options, **LORA), jax.random.key(0))
    assert (forward(after, tokens) == forward(before, tokens)).all()
    adapters, frozen = map(arrays_by_name, partition_trainable(after))
    assert {name.rsplit(".")[-1] for name in adapters} == {"lora_a", "lora_b"}
    assert_same_bits(without_adapters(after), before)
    assert_same_bits(without_adapters(before), before)
    assert frozen.keys() == arrays_by_name(before).keys()
    for name, x in adapters.items():  # of each fan_in, var(x A) = var(x) / 3
        if name.endswith("lora_a"):
            assert np.var(x) == pytest.approx(1 / 3 / x.shape[1], rel=0.2)


def test_merged_weights_compute_the_same():
    """They are w + a b: test_export.py, by PEFT."""
    model, tokens = adapted(LLAMA), random_batch(TINY, V)[0, 0]
    logits = forward(model, tokens)
    assert distance(forward(merge(model), tokens), logits) < FLOAT32_ROUNDING
    assert distance(forward(without_adapters(model), tokens), logits) > 0.1


@pytest.mark.parametrize(
    "targets, layers",
    [
        ("c_proj", {"attn.c_proj", "mlp.c_proj"}),
        ("attn.c_proj, c_fc", {"attn.c_proj", "mlp.c_fc"}),
        ("all", {*(f"attn.{name}" for name in ("c_q", "c_k", "c_v", "c_proj")), "mlp.c_fc", "mlp.c_proj"}),
    ],
)
def test_targets_are_the_ends_of_names(targets, layers):
    options = replace(GPT2, lora_targets=targets, **LORA)
    model = jax.eval_shape(lambda: add_adapters(base(options), options, jax.random.key(0)))
    adapters = arrays_by_name(partition_trainable(model)[0])
    assert {name[len("blocks.") : -len(".lora_a")] for name in adapters} == layers


def test_a_target_that_no_layer_is_called_is_one_line():
    options = replace(TINY, **LORA, lora_targets="c_q,proj")
    said = refusal(jax.eval_shape, lambda: add_adapters(base(TINY), options, jax.random.key(0)))
    assert "no layer is called 'proj'; give some of attn.c_q, attn.c_k, attn.c_v," in said


def test_the_base_has_no_moments():
    """Nor gradients: tools/planning/test_program.py."""
    state = create_state(model_config(GPT2, V), replace(GPT2, **LORA))
    adapters, _ = partition_trainable(state.model)
    moments = [x.nbytes for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert sum(moments) == 2 * sum(x.nbytes for x in jax.tree.leaves(adapters))


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant, mesh", [("gpt2", "data:2,fsdp:2,tensor:2"), ("llama", "fsdp:8"), ("llama", "tensor:8")]
)
def test_loss_gradients_and_fingerprint_are_those_of_one_device_on_every_mesh(variant, mesh):
    assert_as_on_one_device(adapted, VARIANTS[variant], mesh)
    prints = set()
    for each in ("data:1", mesh):
        with jax.set_mesh(make_mesh(each)):
            prints.add(fingerprint(base(VARIANTS[variant]), "gpt2"))
    assert len(prints) == 1


def test_a_fingerprint_sees_one_weight_change_and_two_change_places():
    model = base(GPT2)
    weight = np.array(model.blocks.mlp.c_fc.weight)
    swapped, changed = weight.copy(), weight.copy()
    swapped[0, 0, 0], swapped[0, 0, 1] = weight[0, 0, 1], weight[0, 0, 0]
    changed[1, 2, 3] *= 1.01  # more than bfloat16's rounding, 2^-8
    prints = {fingerprint({"weight": x}, "gpt2") for x in (weight, swapped, changed, -weight)}
    assert len(prints) == 4
    assert fingerprint({"weight": weight.copy()}, "gpt2") in prints


def test_a_run_of_adapters_is_known_by_what_it_saved(base_run, lora_run):
    """Each device merges them in its own rounding, which may move a weight to another bfloat16."""
    merged, other = (load_run(str(run))[0] for run in (lora_run, base_run))
    assert fingerprint(merged, str(lora_run)) == fingerprint(other, str(lora_run))
    assert fingerprint(merged, str(lora_run)) != fingerprint(merged, str(base_run))


@pytest.fixture(scope="module")
def base_run(tiny, tmp_path_factory):
    """An ordinary run of 10 steps. Not to be changed."""
    out = tmp_path_factory.mktemp("runs") / "base"
    train.main(tiny(out))
    return out


@pytest.fixture(scope="module")
def lora_run(tiny, base_run, tmp_path_factory):
    """Adapters for it, after 10 steps. Not to be changed."""
    out = tmp_path_factory.mktemp("runs") / "lora"
    train.main(adapt(tiny, base_run, out))
    return out


def adapt(tiny, base_run, out_dir, **changes):
    """Return the command line of a LoRA run. The model's shape is that of its base.

    With the base's 4 rows a batch, the noise of ten steps is as large as what they teach.
    """
    options = {"init_from": base_run, "lora_rank": 2, "eval_iters": -1, "batch_size": 32} | changes
    shape = ("--n_", "--block_size")
    return [word for word in tiny(out_dir, **options) if not word.startswith(shape)]


def test_a_run_begins_with_its_base_keeps_adapters_alone_and_learns(base_run, lora_run):
    curve = losses(lora_run)
    model, manifest, iteration = load_run(str(lora_run), merged=False)
    assert iteration == 10 and manifest.base["init_from"] == str(base_run)
    assert curve[10, "val/loss"] < curve[5, "val/loss"] < curve[0, "val/loss"]
    assert_same_bits(without_adapters(model), load_run(str(base_run))[0])
    stored = (lora_run / "checkpoints" / "10" / "model" / "_METADATA").read_text()
    assert "c_q.lora_a" in stored and "c_q.weight" not in stored


def test_a_resumed_run_is_one_never_stopped_to_the_bit(tiny, base_run, lora_run, tmp_path, monkeypatch):
    monkeypatch.chdir(base_run.parent)
    train.main(adapt(tiny, base_run.name, tmp_path, max_iters=5))
    monkeypatch.chdir("/")  # from where the base is found, too
    train.main([f"--out_dir={tmp_path}", "--init_from=resume", "--max_iters=10"])
    ours, theirs = (load_run(str(out), merged=False) for out in (tmp_path, lora_run))
    assert_same_bits(ours[0], theirs[0])
    assert ours[1].base == theirs[1].base
    assert losses(tmp_path) == losses(lora_run)


def test_sampling_evaluating_and_merging_have_base_and_adapters(base_run, lora_run, tmp_path, capsys):
    train.main([f"--out_dir={lora_run}", "--init_from=resume", "--eval_only=True"])
    val_loss = float(capsys.readouterr().out.split("val loss ")[-1])
    assert val_loss == pytest.approx(records(lora_run)[-1]["val/loss"], abs=0.6e-4)  # printed to 4 digits

    dataset = load_run(str(lora_run))[1].options.dataset
    start = [f"--init_from={lora_run}", f"--dataset={dataset}", "--max_iters=0", "--eval_iters=2"]
    train.main([*start, f"--out_dir={tmp_path}", "--batch_size=4", "--device=cpu", "--mesh=data:1"])
    merged, _, iteration = load_run(str(tmp_path))
    assert_same_bits(merged, load_run(str(lora_run))[0])
    assert iteration == 0
    capsys.readouterr()
    texts = []
    for out_dir in (lora_run, tmp_path, base_run):
        sample.main([f"--out_dir={out_dir}", "--start=the", "--num_samples=1", "--max_new_tokens=100"])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_all_weights_may_start_from_a_runs_with_a_shorter_context(tiny, base_run, tmp_path):
    arguments = [word for word in adapt(tiny, base_run, tmp_path, lora_rank=0) if "max_iters" not in word]
    train.main([*arguments, "--block_size=4", "--max_iters=1", "--learning_rate=1e-6"])
    ours, theirs = arrays_by_name(load_run(str(tmp_path))[0]), arrays_by_name(load_run(str(base_run))[0])
    for name, x in ours.items():  # one step of Adam moves a weight by learning_rate at most
        np.testing.assert_allclose(x, theirs[name][: len(x)], atol=2e-6)


def test_adapters_of_another_base_or_of_none_are_refused(base_run, lora_run, tmp_path):
    base, lora = shutil.copytree(base_run, tmp_path / "base"), shutil.copytree(lora_run, tmp_path / "lora")
    for path in lora.glob("checkpoints/*/manifest/metadata"):
        path.write_text(path.read_text().replace(str(base_run), str(base)))
    load_run(str(lora))
    train.main([f"--out_dir={base}", "--init_from=resume", "--max_iters=11"])
    for main, arguments in ((train.main, ["--init_from=resume", "--max_iters=11"]), (sample.main, [])):
        text = refusal(main, [f"--out_dir={lora}", *arguments])
        assert f"{lora}: its adapters were trained beside other weights" in text
        assert str(base) in text
    shutil.rmtree(base / "checkpoints" / "11" / "model")  # a damaged base is no damage to the adapters
    text = refusal(train.main, [f"--out_dir={lora}", "--init_from=resume", "--max_iters=11"])
    assert "the base model of its adapters cannot be loaded" in text and str(base) in text
    assert saved_iterations(lora) == [5, 10]


def test_without_a_base_or_with_another_vocabulary_or_shape_adapters_are_refused(
    tiny, base_run, lora_run, tmp_path
):
    other, ids = tmp_path / "other", np.zeros(50, int)
    write_dataset(other, ids, ids, CharTokenizer("abc"), "a test")
    out = tmp_path / "out"
    for words, says in (
        (adapt(tiny, base_run, out, dataset=other), f"another vocabulary than the checkpoint {base_run}"),
        ([*adapt(tiny, base_run, out), "--n_layer=3"], f"n_layer=3, but {base_run} has n_layer=2"),
        (tiny(out, init_from="auto", lora_rank=2), "lora_rank=2 trains beside the weights of a model, and "),
        (adapt(tiny, base_run, base_run, overwrite=True), f"init_from={base_run} is out_dir too"),
        (
            adapt(tiny, lora_run, base_run, overwrite=True),
            f"{lora_run} needs {base_run}, which is out_dir too",
        ),
    ):
        assert says in refusal(train.main, words)
    assert not out.exists() and load_run(str(base_run))[2] == 10
