"""Record where the time of a step goes, and what XLA made of it. `--profile=<dir>` writes:

    plugins/profile/<time>/perfetto_trace.json.gz   a trace of steps 10 to 13, for ui.perfetto.dev
    plugins/profile/<time>/<host>.xplane.pb         the same, for `xprof <dir>` (pip install xprof)
    train_step.hlo.txt                              the step after XLA's optimisations

Process 0 alone writes.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import jax

from config.command_line import UserError
from config.files import write_whole
from runs.metrics import Metrics

FIRST, LAST = 10, 13  # steps of this run, from 0: those before still fill caches and buffers


class Profile:
    """Writes the HLO of a run's step and a trace of it into `folder`, if any. Raises UserError."""

    def __init__(self, folder: str | None, step: jax.stages.Compiled, metrics: Metrics):
        self.folder = Path(folder) if folder and jax.process_index() == 0 else None
        self.metrics = metrics
        self.tracing = False
        if self.folder:
            path = self.folder / "train_step.hlo.txt"
            write_whole(path, step.as_text() or "", f"choose another folder than --profile={folder}")
            metrics.say(f"profile: {path}")

    @contextmanager
    def step(self, step: int) -> Generator[None]:
        """Trace what is done within if this step of the run, from 0, is one of those."""
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
        """End the trace. Call this at the end of a run, too, with its number of steps."""
        if self.tracing:
            self.tracing = False
            try:
                jax.profiler.stop_trace()
            except (OSError, RuntimeError) as error:
                raise UserError(f"--profile={self.folder}: cannot be written ({error})") from None
            self.metrics.say(
                f"profile: steps {FIRST} to {steps - 1} of this run: open "
                f"{self.folder}/plugins/profile/*/perfetto_trace.json.gz at https://ui.perfetto.dev"
            )
        elif self.folder and steps <= FIRST:
            self.metrics.say(f"profile: no trace: it begins after {FIRST} steps, and this run had {steps}")
