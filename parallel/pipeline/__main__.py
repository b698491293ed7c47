"""Print what each rank of a pipeline does, and when.

python -m parallel.pipeline --schedule=interleaved --stages=4 --virtual_stages=2 --microbatches=8
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from config.command_line import Count, command, given
from parallel.pipeline.schedule import Schedule
from parallel.pipeline.timeline import describe


@dataclass(frozen=True)
class ScheduleOptions:
    """Every option of python -m parallel.pipeline. A field's comment is its text in `--help`."""

    program: ClassVar[str] = "-m parallel.pipeline"
    purpose: ClassVar[str] = "Print what each rank of a pipeline does, and when."

    schedule: Literal["gpipe", "1f1b", "interleaved", "classic"] = "1f1b"  # classic: 1F1B of most papers
    stages: Count = 4  # ranks: the size of the mesh's stage axis
    virtual_stages: Count = 1  # chunks of layers on each rank
    microbatches: Count = 8  # gradient_accumulation_steps


def main(argv: list[str]) -> None:
    options = ScheduleOptions(**given(argv, ScheduleOptions))
    print(describe(Schedule(options.schedule, options.stages, options.virtual_stages, options.microbatches)))


if __name__ == "__main__":
    command(main)
