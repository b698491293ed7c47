"""Published runs: contradictions are refused, a fit finds known speeds, an interval holds what it says."""

import json

import numpy as np
import pandas as pd
import pytest

from common.files import read_json
from tests.helpers import refusal
from tools.planning.published import (
    FOLDER,
    Run,
    all_works,
    compare,
    fit,
    interval,
    left_out,
    read_runs,
    results,
)
from tools.planning.speeds import AT_BEST, COVERED, Speeds, Work, expect, gather
from tools.planning.target import DEVICES

ROW = {
    **dict(id="a-run", by="somebody", source="https://example.org", place="line 1", date="2024-05-01"),
    **dict(on="H100:8", software="JAX", stack="XLA", assumed=[], differs=[]),
    "options": dict(n_layer=2, n_head=2, n_embd=128, block_size=128, batch_size=8, vocab_size=512)
    | dict(gradient_accumulation_steps=1, mesh="fsdp:8", dtype="bfloat16"),
    "published": dict(seconds_per_step=0.5),
}


@pytest.mark.parametrize(
    "changes, expected",
    [
        (dict(source="n/a"), "{path}: 0.source is 'n/a': expected a link"),
        (dict(date="someday"), "{path}: 0.date is 'someday': expected a date, as 2024-05-01"),
        (dict(place=""), "{path}: 0.place is '': expected a text"),
        (dict(stack="Fortran"), "{path}: 0.stack is 'Fortran': it should be 'XLA', 'compiled', "),
        (dict(on="abacus:8"), "--on=abacus:8: unknown device 'abacus'; known are "),
        (dict(published={}), "{path}: 0.published is {{}}: Dictionary should have at least 1 item"),
        (dict(published=dict(speed=1.0)), "published run a-run: figures are seconds_per_step, "),
        (
            dict(published=dict(seconds_per_step=0.5, tokens_per_second=4096)),
            "published run a-run: figures of different seconds a step: seconds_per_step=0.5 0.5, tokens_",
        ),
        (
            dict(published=dict(seconds_per_step=0.5, mfu=0.4), flops="6N", peak=989.0),
            "published run a-run: figures of different seconds a step: seconds_per_step=0.5 0.5, mfu=0.4 ",
        ),
        (
            dict(published=dict(mfu=0.4), flops="6P"),
            "{path}: 0.flops is '6P': it should be '6N', '6N+12LHQT' or ",
        ),
        (
            dict(options=ROW["options"] | dict(n_layer="two")),
            "published run a-run: n_layer is 'two': it should be ",
        ),
        (
            dict(options={name: x for name, x in ROW["options"].items() if name != "vocab_size"}),
            "published run a-run: vocab_size is 'missing': it should be ",
        ),
    ],
)
def test_a_row_without_a_source_or_that_contradicts_itself_is_one_line(changes, expected, tmp_path):
    path = tmp_path / "published.json"
    path.write_text(json.dumps([ROW | changes]))
    assert refusal(read_runs, path).startswith(expected.format(path=path))


def test_a_row_with_an_unknown_key_names_the_file(tmp_path):
    path = tmp_path / "published.json"
    path.write_text(json.dumps([ROW | dict(flavour="vanilla")]))
    assert refusal(read_runs, path).startswith(f"{path}: 0.")


def test_a_truncated_file_of_runs_is_one_line(tmp_path):
    path = tmp_path / "published.json"
    path.write_text('[{"id": "a-r')
    assert refusal(read_runs, path).startswith(f"{path}: Invalid JSON: EOF while parsing")


def test_figures_of_a_run_mean_the_same_seconds():
    tokens, N = 8 * 128, 2 * (4 * 128**2 + 3 * 128 * 384) + 512 * 128 + 128 * 128 + 5 * 128
    run = Run(**ROW | dict(published=dict(mfu=6 * N * tokens / (0.5 * 989e12 * 8)), flops="6N", peak=989.0))
    assert run.seconds == pytest.approx(0.5, rel=0.01)
    rates = dict(tokens_per_second=2048, tokens_per_second_per_device=256, sequences_per_second=16)
    assert Run(**ROW | dict(published=rates)).implied_seconds() == dict.fromkeys(rates, 0.5)


def made_up() -> tuple[list[Run], dict[str, Work]]:
    """Runs of 24 sources, whose steps ask for products, memory and messages in different parts."""
    draw = np.random.default_rng(0)
    runs, works = [], {}
    for i in range(24):
        run = Run(**ROW | dict(id=f"run-{i}", by=f"source-{i}", on=("H100:8", "A100:8")[i % 2]))
        flops, size, sent = draw.uniform(0.1, 1, 3)
        works[run.id] = gather(
            [
                Work(50, flops=1e12 * flops),
                Work(200, bytes=1e9 * size),
                Work(10, sent=2e9 * sent, collective=True, under_others=True),
            ]
        )
        runs.append(run)
    return runs, works


def test_a_fit_finds_the_speeds_that_made_the_times():
    runs, works = made_up()
    true = AT_BEST["gpu"]._replace(products=0.55, memory=0.7, balance=0.3)
    runs = [replace_seconds(run, Speeds.of(run.target.device, true).step(works[run.id])) for run in runs]
    found = fit(runs, works)
    assert found.shares["gpu"].products == pytest.approx(0.55, rel=0.05)
    assert found.shares["gpu"].memory == pytest.approx(0.7, rel=0.05)
    assert max(map(abs, left_out(runs, works, lambda run: str(int(run.id[4:]) % 3)))) < 0.05


def replace_seconds(run: Run, seconds: float) -> Run:
    return Run(**ROW | dict(id=run.id, by=run.by, on=run.on, published=dict(seconds_per_step=seconds)))


def test_what_a_shallow_step_takes_can_be_taken_off_a_deeper_one():
    one = [3, 1e12, False, 1e9], [10, 0.0, False, 5e9]
    less = gather([Work(-1 * times, *rest) for times, *rest in one])
    twice = gather([Work(2 * times, *rest) for times, *rest in one])
    both = Work(*map(np.concatenate, zip(less, twice, strict=True)))
    speeds = Speeds.of(DEVICES["H100"], AT_BEST["gpu"])
    assert speeds.step(both) == pytest.approx(speeds.step(twice) / 2)


def test_the_interval_holds_the_share_that_it_says():
    errors = np.random.default_rng(0).normal(0, 0.2, 400)
    low, high = interval(pd.DataFrame({"by": range(400), "error": errors}))
    fresh = np.random.default_rng(1).normal(0, 0.2, 10_000)
    assert np.mean((np.log(low) <= fresh) & (fresh <= np.log(high))) == pytest.approx(COVERED, abs=0.03)


def test_what_is_expected_names_its_evidence_and_is_wider_without():
    works = gather([Work(10, flops=1e14)])
    seen, unseen = (expect(works, DEVICES[name]) for name in ("H100", "L4"))
    assert seen.low < seen.seconds < seen.high
    assert seen.evidence.startswith("published runs on H100: 16, of JAX-Toolbox, ")
    assert unseen.evidence == "published runs on L4: 0"


def test_every_published_run_is_planned_and_stands_in_the_results():
    runs, kept = read_runs(), read_json(FOLDER / "planned.json")
    all_works(runs)  # would plan a run that has changed, and this test cannot
    table = pd.read_csv(FOLDER / "published.csv", index_col="id")
    assert set(kept) == set(table.index) == {run.id for run in runs}
    seconds = [run.seconds for run in runs]
    np.testing.assert_allclose(table.published[[run.id for run in runs]], seconds, rtol=1e-3)


@pytest.mark.slow
def test_the_results_are_those_of_the_runs():
    runs = read_runs()
    works, kept = all_works(runs), read_json(FOLDER / "fitted.json")
    found = results(runs, works, compare(runs, works))
    assert found["median_error"] == pytest.approx(kept["median_error"], abs=0.01)
    assert found["interval"] == pytest.approx(kept["interval"], abs=0.02)
