"""Record where the time of a step goes, and what XLA made of it. `--profile=<dir>` writes into that folder:

    plugins/profile/<time>/perfetto_trace.json.gz   a trace of steps 10 to 13: open it at ui.perfetto.dev
    plugins/profile/<time>/<host>.xplane.pb         the same trace, for `xprof <dir>` (pip install xprof)
    train_step.hlo.txt                              the step after XLA's optimisations, as text
    train_step.svg                                  and as a graph, where graphviz's `dot` is installed

Process 0 alone writes them.
"""

import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import jax
from jaxlib.xla_client import XlaComputation

from config.command_line import UserError
from runs.metrics import Metrics

FIRST, LAST = 10, 13  # steps of this run, from 0: those before still fill caches and buffers
DRAWING = 60  # seconds; the quickstart's 4 layers take 4, many more would take minutes


class Profile:
    """Writes the HLO of a run's compiled step, and a trace of its steps FIRST to LAST.

    Only process 0 does so, and only with a `folder`. Raises UserError when the folder cannot be written.
    """

    def __init__(self, folder: str | None, step: jax.stages.Compiled, metrics: Metrics):
        self.folder = Path(folder) if folder and jax.process_index() == 0 else None
        self.metrics = metrics
        self.tracing = False
        if self.folder:
            try:
                metrics.say(f"profile: {write_hlo(step, self.folder)}")
            except OSError as error:
                raise self.unwritable(error.strerror) from None

    @contextmanager
    def step(self, step: int) -> Generator[None]:
        """Trace what is done within, if this step of the run is to be traced; `step` counts from 0."""
        if self.folder and step == FIRST:
            self.metrics.catch_up()  # waits for the step before, which is not to be in the trace
            jax.profiler.start_trace(self.folder, create_perfetto_trace=True)
            self.tracing = True
        with jax.profiler.StepTraceAnnotation("train", step_num=step):  # XProf tells steps apart by it
            yield
        if self.tracing and step == LAST:
            self.metrics.catch_up()
            self.close(step + 1)

    def close(self, steps: int) -> None:
        """End the trace. Call this at the end of a run too, with the number of its `steps`."""
        if self.folder and self.tracing:
            self.tracing = False
            try:
                jax.profiler.stop_trace()
            except (OSError, RuntimeError) as error:
                raise self.unwritable(error) from None
            files = self.folder / "plugins" / "profile" / "*" / "perfetto_trace.json.gz"
            self.metrics.say(
                f"profile: steps {FIRST} to {steps - 1} of this run are in {files}: open it at "
                f"https://ui.perfetto.dev, or all with `xprof {self.folder}` (pip install xprof)"
            )
        elif self.folder and steps <= FIRST:
            self.metrics.say(f"profile: no trace: it begins after {FIRST} steps, and this run had {steps}")

    def unwritable(self, why: object) -> UserError:
        return UserError(f"--profile={self.folder}: cannot be written ({why}): choose another folder")


def write_hlo(step: jax.stages.Compiled, folder: Path) -> str:
    """Write the optimised HLO of a compiled step, and draw its graph. Return a line that says so."""
    folder.mkdir(parents=True, exist_ok=True)
    text, graph = folder / "train_step.hlo.txt", folder / "train_step.svg"
    text.write_text(step.as_text() or "", encoding="utf-8")
    if (dot := shutil.which("dot")) is None:
        return f"{text}; no graph of it, because graphviz's `dot` is not installed"
    executable = step.runtime_executable()
    assert executable is not None, "XLA compiled it"
    (module,) = executable.hlo_modules()
    # JAX gives a graph of the HLO before the optimisations only; XLA draws what it is given.
    source = XlaComputation(module.as_serialized_hlo_module_proto()).as_hlo_dot_graph()
    try:
        command = [dot, "-Tsvg", "-o", graph]
        subprocess.run(command, input=source.encode(), capture_output=True, check=True, timeout=DRAWING)
    except subprocess.TimeoutExpired:
        return f"{text}; no graph of it, which `dot` did not draw in {DRAWING} seconds"
    except subprocess.CalledProcessError as error:
        return f"{text}; no graph of it: `dot` ended with status {error.returncode}"
    return f"{text}, and as a graph (for a browser) {graph}"
