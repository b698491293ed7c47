"""Print what each rank of a pipeline does, and when.

python -m parallel.pipeline --schedule=interleaved --stages=4 --virtual_stages=2 --microbatches=8
"""

import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

from dataclasses import dataclass
from typing import ClassVar, Literal

from config.command_line import Count, Name, UserError, command, given
from parallel.pipeline.loop import make_schedule
from parallel.pipeline.timeline import describe, draw


@dataclass(frozen=True)
class ScheduleOptions:
    """Every option of python -m parallel.pipeline. The comment behind a field is its text in `--help`."""

    program: ClassVar[str] = "-m parallel.pipeline"
    purpose: ClassVar[str] = "Print what each rank of a pipeline does, and when."

    schedule: Literal["gpipe", "1f1b", "interleaved", "classic"] = "1f1b"  # classic: 1F1B of most papers
    stages: Count = 4  # ranks: the size of the mesh's stage axis
    virtual_stages: Count = 1  # chunks of layers on each rank
    microbatches: Count = 8  # gradient_accumulation_steps
    png: Name | None = None  # file to draw the timeline into


MOST = 50_000  # cells of the timeline


def main(argv: list[str]) -> None:
    options = ScheduleOptions(**given(argv, ScheduleOptions))
    R, C, M = options.stages, options.virtual_stages, options.microbatches
    if (cells := 2 * R * C * (R + M)) > MOST:
        raise UserError(
            f"stages={R}, virtual_stages={C} and microbatches={M} make a timeline of about {cells} cells: "
            f"give fewer, for {MOST} at most"
        )
    schedule = make_schedule(options.schedule, R, C, M)
    print(describe(schedule))
    if options.png:
        try:
            draw(schedule, options.png)
        except (OSError, ValueError) as error:
            raise UserError(f"--png={options.png}: cannot be written: {error}") from None


if __name__ == "__main__":
    command(main)
