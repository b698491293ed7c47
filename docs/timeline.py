"""Chapter 12: what each rank of a pipeline does, and when, and what that comes to."""

from functools import cache

from parallel.pipeline.schedule import Schedule, Task

BACKWARD = 3  # the time of a backward in forwards: recomputation, and two gradients of each product


class Classic(Schedule):
    """1F1B with the head start of most papers (arXiv:1806.03377), half of ours."""

    def ahead(self, rank: int) -> int:
        return self.ranks - 1 - rank


def make_schedule(name: str, ranks: int, chunks: int, microbatches: int) -> Schedule:
    if name == "classic":
        return Classic("1f1b", ranks, chunks, microbatches)
    return Schedule(name, ranks, chunks, microbatches)


Spans = dict[Task, tuple[int, int]]  # the start and end of each task, in forwards


def lockstep(schedule: Schedule, backward: int = BACKWARD) -> Spans:
    """Return when each task runs if all ranks meet at the end of every tick, as in our pipeline."""
    cost = {"fwd": 1, "bwd": backward}
    found, start = {}, 0
    for tick in range(schedule.ticks):
        busy = [start] * schedule.ranks  # until when
        in_tick = (task for task in schedule.when if schedule.when[task] == tick)
        for task in sorted(in_tick, key=lambda task: cost[task.kind]):
            rank = task.stage % schedule.ranks
            found[task] = busy[rank], busy[rank] + cost[task.kind]
            busy[rank] += cost[task.kind]
        start = max(busy)
    return found


def asynchronous(schedule: Schedule, backward: int = BACKWARD) -> Spans:
    """Return when each task runs if a rank starts it as soon as its input is there."""
    cost = {"fwd": 1, "bwd": backward}
    orders = [schedule.tasks(rank) for rank in range(schedule.ranks)]

    @cache
    def end(task: Task) -> int:
        kind, stage, microbatch = task
        order = orders[stage % schedule.ranks]
        waits_for = order[: order.index(task)][-1:]  # the rank's own task before
        sender = stage - 1 if kind == "fwd" else stage + 1
        if 0 <= sender < schedule.stages:
            waits_for.append(Task(kind, sender, microbatch))
        return max(map(end, waits_for), default=0) + cost[kind]

    return {task: (end(task) - cost[task.kind], end(task)) for order in orders for task in order}


def bubble(schedule: Schedule, spans=lockstep, backward: int = BACKWARD) -> float:
    work = schedule.microbatches * schedule.chunks * (1 + backward)
    return 1 - work / max(end for _, end in spans(schedule, backward).values())


def microbatches_held(schedule: Schedule, rank: int, spans=lockstep) -> int:
    """Return the most microbatches that a rank holds, from a forward's start to its backward's end."""
    own = [(task, span) for task, span in spans(schedule).items() if task.stage % schedule.ranks == rank]
    starts = [start for task, (start, _) in own if task.kind == "fwd"]
    ends = [end for task, (_, end) in own if task.kind == "bwd"]
    return max(sum(s <= now for s in starts) - sum(e <= now for e in ends) for now in starts)
