"""The benchmark: its figures are those of the steps that it ran, and a bad option is one line."""

import gzip
import json
import sys
from datetime import date
from types import SimpleNamespace

import jax
import pytest

import bench
from config.options import Options
from parallel.mesh import make_mesh
from tests.helpers import refusal, run_python
from tools.benchmarks import variants as measured
from training import step as training_step

TINY = dict(n_layer=2, n_head=4, n_embd=32, block_size=16, unroll=1)
TINY |= dict(batch_size=3, gradient_accumulation_steps=2)
TOKENS = 2 * 3 * 16  # of a step
FLAGS = [f"--{name}={value}" for name, value in (TINY | {"vocab_size": 33, "device": "cpu"}).items()]


def row(output: str, label: str) -> str:
    """Return the text after `label` on the line that begins with it."""
    line = next(line for line in output.splitlines() if line.startswith(label + "  "))
    return line.removeprefix(label).strip()


def figures(output: str, label: str) -> list[float]:
    """The numbers on the line that begins with `label`."""
    return [float(word.rstrip("%x").replace(",", "")) for word in row(output, label).split()]


@pytest.fixture
def clock(monkeypatch):
    """bench.py's clock, which only these move on: a step by 0.25 s, its batch by 0.0625 s, compiling by 3 s.

    `clock.steps` counts the steps, which are computed all the same.
    """
    clock = SimpleNamespace(now=0.0, steps=0, perf_counter=lambda: clock.now)
    compile_step = measured.compile_step

    def slow_to_compile(state, options):
        compiled = compile_step(state, options)
        clock.now += 3.0

        def step(*arguments):
            clock.now += 0.25
            clock.steps += 1
            return compiled(*arguments)

        step.memory_analysis, step.as_text = compiled.memory_analysis, compiled.as_text
        return step

    class Batches(training_step.Batches):
        def __call__(self, *which):
            clock.now += 0.0625
            return super().__call__(*which)

    monkeypatch.setattr(measured, "time", clock)
    monkeypatch.setattr(measured, "compile_step", slow_to_compile)
    monkeypatch.setattr(training_step, "Batches", Batches)
    return clock


def test_the_figures_are_those_of_the_clock(clock, tiny_data, capsys, tmp_path):
    words = [*FLAGS, "--mesh=data:1", "--steps=9", "--loop", f"--dataset={tiny_data}"]
    words += ["--wandb_log=True"]  # which a benchmark does not do
    bench.main([*words, f"--json={tmp_path}/figures.json"])
    output = capsys.readouterr().out
    (line,) = (tmp_path / "figures.json").read_text().splitlines()
    step, loop = (record := json.loads(line))["figures"]
    # ms per step, the least of them, their spread, tokens/s
    assert figures(output, "JAX float32") == [250.0, 250.0, 0.0, TOKENS / 0.25]
    assert figures(output, "in train.py's loop") == [312.5, 312.5, 0.0, round(TOKENS / 0.3125)]
    assert figures(output, "the loop adds") == [25.0] and step["loop_adds"] == 0.25
    # Each variant runs once to warm up, once as a pilot, and in each of 9 turns once untimed and once timed.
    assert clock.steps == 2 * (1 + 1 + 9 * 2)
    # The matrices: q, k, v and c_proj (D, D), the MLP's three (D, 128), the head. And attention's T x T.
    D, T = 32, 16
    flops = 6 * (2 * (4 * D * D + 3 * D * 128) + 33 * D) + 12 * 2 * T * D
    assert row(output, "model FLOP/s") == f"{flops * TOKENS / 0.25 / 1e12:.3g} TFLOP/s"
    assert row(output, "compile time") == "3.0 s" and "MB (XLA's plan" in row(output, "memory")

    assert record["command"].startswith("python bench.py --n_layer=2 ") and "--loop" in record["command"]
    assert record["device"] == "cpu" and record["versions"]["jax"] == jax.__version__
    assert len(record["commit"] or 40 * "0") == 40 and record["date"] == date.today().isoformat()
    assert (step["ms"], loop["ms"], step["mfu"]) == (250.0, 312.5, None)


@pytest.mark.slow
def test_a_profile_is_a_trace_of_the_loops_steps_and_their_program(tiny_data, tmp_path, capsys):
    folder = tmp_path / "profiles" / "first"
    words = [*FLAGS, "--mesh=data:1", "--steps=3", "--loop", f"--dataset={tiny_data}"]
    bench.main([*words, f"--profile={folder}"])
    (path,) = folder.glob("plugins/profile/*/perfetto_trace.json.gz")
    events = json.loads(gzip.open(path).read())["traceEvents"]
    traced = [int(event["args"]["step_num"]) for event in events if event.get("name") == "train"]
    assert traced == list(range(traced[0], traced[0] + bench.STEPS)) and traced[0] > 3  # not the first
    assert list(folder.glob("plugins/profile/*/*.xplane.pb"))
    hlo = (folder / bench.HLO).read_text()
    assert hlo.startswith("HloModule jit_train_step,") and "\nENTRY " in hlo
    assert (
        f"profile: {bench.STEPS} steps, in train.py's loop: open {folder}/plugins" in capsys.readouterr().out
    )


# Ten steps learn one batch of random tokens by heart, with attention that every device has in float32.
CHECK = dict(n_layer=2, n_head=2, n_embd=128, block_size=64, batch_size=16, gradient_accumulation_steps=1)
CHECK |= dict(dtype="float32", attention="einsum", learning_rate=3e-3, decay_lr=False, vocab_size=65)
LOSSES = [4.23648643, 3.8999896, 3.70190167, 3.60651398, 3.34646034]
LOSSES += [3.21706247, 2.9757843, 2.73338366, 2.5263052, 2.27463388]


@pytest.mark.slow
def test_ten_losses_are_those_of_every_machine(tmp_path, capsys, device="cpu"):
    """About 100 operations in a row are rounded to 2^-24, products of 200 terms: sqrt(100 * 200) times that.

    On a CPU, meshes and microbatches change the losses by 1e-6, products in bfloat16 by 1e-4 to 1e-3.
    """
    words = [f"--{name}={value}" for name, value in (CHECK | {"device": device}).items()]
    with jax.default_matmul_precision("highest"):  # a GPU without TF32
        bench.main([*words, "--mesh=data:1", "--steps=1", "--losses", f"--json={tmp_path}/figures.json"])
    step, *_ = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert step["losses"] == pytest.approx(LOSSES, rel=1e-5)
    assert figures(capsys.readouterr().out, "losses") == [round(loss, 6) for loss in step["losses"]]


def test_each_turn_of_a_variant_takes_about_half_a_second_and_all_have_as_many_turns():
    """Without --steps: blocks of 0.5 s, as many as fit into 10 s per variant, but 3 at least."""

    class Variant:
        def __init__(self, name, seconds):
            self.name, self.seconds, self.blocks = name, seconds, []

        def run(self, n):
            self.blocks.append(n)
            return self.seconds

    for slowest, turns in ((0.125, 20), (2.0, 5), (60.0, 3)):
        fast, slow = Variant("fast", 0.0625), Variant("slow", slowest)
        times = measured.take_turns([fast, slow], None)
        assert times == {"fast": [0.0625] * turns, "slow": [slowest] * turns}
        assert fast.blocks == [1, 1, *[1, 8] * turns]  # two pilots; then each block after an untimed step
        assert slow.blocks == [1, 1, *[1, max(1, int(0.5 / slowest))] * turns]


def test_the_spread_leaves_out_a_tenth_at_either_end_and_mfu_is_the_share_of_the_peak(monkeypatch, capsys):
    times = [0.0, *[1.0] * 4, 2.0, *[3.0] * 4, 100.0]
    step = SimpleNamespace(config=None, options=Options(), tokens=6)
    monkeypatch.setattr(bench, "flops_per_token", lambda config, T: 52e12)
    monkeypatch.setattr(bench, "known_device", {"cpu": SimpleNamespace(peak=312e12)}.get)
    variants = [SimpleNamespace(name=x, dtype=x) for x in ("bfloat16", "float32")]
    with jax.set_mesh(make_mesh("data:1")):
        found = [bench.figures_of(variant, times, step) for variant in variants]
    assert [x["mfu"] for x in found] == [0.5, None]
    bench.print_table(found)
    assert row(capsys.readouterr().out, "bfloat16").split() == ["2000.00", "0.00", "100%", "3"]


@pytest.mark.slow
def test_bench_against_torch_goes_on_without_a_compiler():
    done = run_python("bench.py", *FLAGS, "--steps=2", "--vs=torch", CXX="/no/such/compiler")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is unavailable: ") == 2 and "No working C++ compiler" in done.stdout
    rows = ["JAX float32", "JAX bfloat16", "PyTorch eager float32", "PyTorch eager bfloat16"]
    medians = {row: figures(done.stdout, row)[0] for row in rows}
    for row in rows:
        expected = medians["PyTorch eager float32"] / medians[row]
        assert figures(done.stdout, row)[-1] == pytest.approx(expected, abs=0.02, rel=0.05)


@pytest.mark.parametrize(
    "words, said",
    [
        ("--vs=torch --window=4", "--vs=torch: PyTorch's step here does not have window=4: leave"),
        ("--vs=torch --mlp=relu2", "--vs=torch: PyTorch's step here does not have mlp=relu2: leave"),
        ("--decode --losses", "--losses is of the training step"),
        ("--num_processes=2", "--num_processes: one process is timed: leave it out"),
        ("--serve", "--n_layer is not used: --serve times serve.py with the run in --out_dir: "),
        ("--decode --serve", "--decode and --serve are given: give one of them"),
        ("--vs=torch --mesh=data:2", "--vs=torch compares on one device"),
        (f"--profile={__file__}/trace", f"{__file__}/trace: Not a directory"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(words, said):
    assert refusal(bench.main, [*FLAGS, *words.split()]).startswith(said)


def test_without_torch_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install torch" in refusal(bench.main, ["--vs=torch"])
