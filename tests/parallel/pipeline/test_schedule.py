"""Schedules are JaxPP's, their tables do every task once and read what was written."""

import itertools

import pytest

from docs.timeline import Classic, bubble, make_schedule, microbatches_held
from parallel.pipeline.schedule import Schedule, Task

SCHEDULES = [
    make_schedule(name, ranks, chunks, groups * ranks)
    for name in ("gpipe", "1f1b", "interleaved", "classic")
    for ranks, chunks, groups in itertools.product((2, 3), (1, 3), (1, 4))
    if chunks == 1 or name in ("gpipe", "interleaved")
] + [Schedule("1f1b", 4, 1, 1), Schedule("1f1b", 4, 1, 7), Schedule("gpipe", 4, 2, 3)]


def names(schedule: Schedule, rank: int) -> list[str]:
    return [f"{kind}_{stage}__{microbatch}" for kind, stage, microbatch in schedule.tasks(rank)]


def test_1f1b_is_that_of_jaxpp():
    schedule = Schedule("1f1b", ranks=4, chunks=1, microbatches=4)
    assert names(schedule, 2) == [
        *("fwd_2__0", "fwd_2__1", "fwd_2__2", "bwd_2__0"),
        *("fwd_2__3", "bwd_2__1", "bwd_2__2", "bwd_2__3"),
    ]
    assert names(schedule, 3) == [f"{kind}_3__{i}" for i in range(4) for kind in ("fwd", "bwd")]


def test_interleaved_is_that_of_jaxpp():
    schedule = Schedule("interleaved", ranks=4, chunks=2, microbatches=4)
    of_each = ("fwd_0", "fwd_4", "bwd_4", "bwd_0")
    assert names(schedule, 0) == [f"{task}__{i}" for task in of_each for i in range(4)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_every_rank_does_every_task_of_its_stages_once_in_its_order(schedule):
    done = []
    for rank in range(schedule.ranks):
        tasks = schedule.tasks(rank)
        ticks = [schedule.when[task] for task in tasks]
        assert ticks == sorted(ticks)
        assert {task.stage % schedule.ranks for task in tasks} == {rank}
        done += tasks
    stages, microbatches = range(schedule.stages), range(schedule.microbatches)
    assert sorted(done) == sorted(Task(*t) for t in itertools.product(("bwd", "fwd"), stages, microbatches))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_table_carried_out_gives_every_task_its_inputs(schedule):
    """The table's rows, carried out on names instead of arrays: whoever reads a slot finds what it needs."""
    table, n, dn = schedule.table()
    R, last = schedule.ranks, schedule.stages - 1
    inputs, cotangents = [[None] * (n + 1) for _ in range(R)], [[None] * (dn + 1) for _ in range(R)]
    seen = []
    for rows in table:
        sent = [[None, None] for _ in range(R)]
        for rank, row in enumerate(rows):
            if row.forward >= 0:
                s, m = row.forward, row.forward_microbatch
                assert s % R == rank and s != last
                assert s == 0 or inputs[rank][row.forward_slot] == (s, m)
                sent[rank][0] = (s + 1, m)
            if row.backward >= 0:
                s, m = row.backward, row.backward_microbatch
                assert s % R == rank
                assert s == 0 or inputs[rank][row.backward_slot] == (s, m)
                assert s == last or cotangents[rank][row.cotangent_slot] == (s, m)
                sent[rank][1] = (s - 1, m)
                seen.append((s, m))
        for rank, row in enumerate(rows):
            inputs[rank][row.input_arrives] = sent[rank - 1][0]
            cotangents[rank][row.cotangent_arrives] = sent[(rank + 1) % R][1]
    assert sorted(seen) == list(itertools.product(range(schedule.stages), range(schedule.microbatches)))


@pytest.mark.parametrize("R, M", [(2, 4), (4, 8), (4, 32)])
def test_bubbles_are_those_of_the_papers(R, M):
    expected = (R - 1) / (M + R - 1)
    assert bubble(Schedule("1f1b", R, 1, M)) == pytest.approx(expected)
    assert bubble(Classic("1f1b", R, 1, M)) > 1.4 * expected  # on one clock; on none, it has the same
    assert bubble(Schedule("gpipe", R, 1, M)) == pytest.approx(expected)
    assert bubble(Schedule("interleaved", R, 2, M)) == pytest.approx((R - 1) / (2 * M + R - 1))


def test_1f1b_holds_as_much_for_any_number_of_microbatches_and_gpipe_all_of_them():
    for M in (8, 32):
        assert [microbatches_held(Schedule("1f1b", 4, 1, M), rank) for rank in range(4)] == [7, 5, 3, 1]
        assert [microbatches_held(Schedule("gpipe", 4, 1, M), rank) for rank in range(4)] == [M] * 4
        assert Schedule("1f1b", 4, 1, M).table()[1:] == (5, 1)
