"""Where a step's time goes: a trace to look at, and the shares of tools/planning's classes of work."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
from jax.profiler import ProfileData

from common.files import write_whole
from tools.benchmarks.variants import JaxStep, TrainLoop
from tools.planning.cost import Cost, estimate
from tools.planning.program import parse_program
from tools.planning.target import this_machine
from training.step import compile_step

STEPS = 3  # that are traced
HLO = "train_step.hlo.txt"  # beside the trace


def record_trace(folder: str, variant: JaxStep | TrainLoop, compiled: jax.stages.Compiled) -> None:
    """Write a trace of some steps and the compiled step's HLO."""
    write_whole(Path(folder, HLO), compiled.as_text() or "")
    with jax.profiler.trace(folder, create_perfetto_trace=True):
        variant.run(STEPS)  # waits for what ran before it, and for its own end
    trace = f"{folder}/plugins/profile/*/perfetto_trace.json.gz"
    print(f"profile: {STEPS} steps, {variant.name}: open {trace} at https://ui.perfetto.dev")


def planned_and_measured(step: JaxStep) -> dict[str, Any]:
    """Plan the step at this machine's rates, and trace some steps. A GPU's step is compiled anew for it."""
    mesh = jax.sharding.get_mesh()
    if jax.devices()[0].platform == "cpu" and mesh.size > 1:
        return {"planned_ms": None, "classes": {}}  # simulated devices share the CPU whose rates are known
    program = parse_program(step.train_step.as_text() or "")
    cost = estimate(program, this_machine(), dict(mesh.shape))
    if jax.default_backend() == "gpu":  # in a CUDA graph, kernels do not tell which operation they belong to
        step.train_step = compile_step(step.state, step.options, xla_gpu_enable_command_buffer="")
    measured, classes = trace(step, cost), {}
    planned = cost.by_class()["seconds"] / cost.seconds
    for name, ours in planned.items() if measured else ():  # a device's trace may have no operations
        classes[name] = {"planned": ours, "measured": measured[name] / measured.total()}
    return {"planned_ms": 1e3 * cost.seconds, "classes": classes}


def trace(step: JaxStep, cost: Cost) -> Counter[str]:
    """Return the nanoseconds of each class's operations in some steps. A CPU runs several at once."""
    names = [x.instruction.name for x in cost.operations]
    computes = "/host:" if jax.devices()[0].platform == "cpu" else "/device:"
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            step.run(STEPS)
        (file,) = Path(folder).rglob("*.xplane.pb")
        profile = ProfileData.from_file(str(file))
    return class_times(profile, dict(zip(names, cost.names, strict=True)), computes)


def class_times(profile: ProfileData, classes: dict[str, str], computes: str) -> Counter[str]:
    """Add up the nanoseconds of the operations in `classes`. A loop is none of them: its body's are."""
    measured: Counter[str] = Counter()
    lines = [line for plane in profile.planes if plane.name.startswith(computes) for line in plane.lines]
    for event in (event for line in lines for event in line.events):
        # A TPU's events are named by the instruction's text.
        name = dict(event.stats).get("hlo_op") or event.name.partition(" = ")[0].lstrip("%")
        if name in classes:
            measured[classes[name]] += event.duration_ns
    return measured
