"""The statistics of experiments/, as a statistician tests them: against SciPy, integrals and simulations."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.integrate import quad

from experiments.statistics import ALPHA, CHANCE, critical, difference, power, seeds_to_show, smallest_gain

PRIOR = 3.0  # the variance of a gain in spreads


def binomial(chance: float, count: int) -> float:
    """Three standard deviations of the share of `count` trials that come out, each with this chance."""
    return 3 * (chance * (1 - chance) / count) ** 0.5


def comparisons(rng, count: int, n: int, gain: float = 0.0, spread: float = 0.01):
    """Losses (count, n) of a base and a change: a seed moves both alike, and each by itself."""
    seed = 2.0 + 0.05 * rng.standard_normal((count, n))
    own = spread / 2**0.5 * rng.standard_normal((2, count, n))
    return seed + own[0], seed - gain + own[1]


@pytest.mark.parametrize("n", [2, 5, 9])
def test_an_interval_is_that_of_the_paired_t_test_and_p_is_of_all_flips_of_signs(n):
    base, ours = comparisons(np.random.default_rng(n), 1, n, gain=0.01)
    found = difference(pd.Series(ours[0]), pd.Series(base[0]))
    interval = stats.ttest_rel(ours[0], base[0]).confidence_interval(1 - ALPHA)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((interval.low, interval.high))
    pairs = ours[0] - base[0]
    flipped = np.abs(np.array([*product((-1, 1), repeat=n)]) @ pairs)
    assert found.p == pytest.approx(np.mean(flipped >= abs(pairs.sum()) - 1e-12))
    assert found.verdict == ("none" if interval.low < 0 < interval.high else "helps")


def test_seeds_are_paired_by_number_and_a_run_that_diverged_is_in_no_pair_and_no_gain():
    base = pd.Series({1: 2.0, 2: 2.2, 3: 2.1, 5: 9.0})
    ours = pd.Series({3: 1.1, 2: 1.21, 1: 1.0, 4: 0.0})
    found = difference(ours, base)
    assert found.pairs == pytest.approx([-1.0, -0.99, -1.0]) and found.verdict == "helps"
    assert difference(base, ours).verdict == "hurts"
    for found in (difference(ours, base.replace(2.0, np.nan)), difference(ours.replace(1.0, np.nan), base)):
        assert (len(found.pairs), sum(found.diverged), found.verdict) == (2, 1, "diverged")
    assert difference(ours[:1], base).verdict == "none"  # no figure comes from one seed


def bayes_factor(t: float, n: int) -> float:
    """How much likelier t is where the effect has a normal prior than where it is 0, by integration."""

    def weighed(effect):
        return stats.nct.pdf(t, n - 1, n**0.5 * effect) * stats.norm.pdf(effect, scale=PRIOR**0.5)

    reach = 8 * PRIOR**0.5
    return quad(weighed, -reach, reach, points=(0.0, t / n**0.5))[0] / stats.t.pdf(t, n - 1)


@pytest.mark.parametrize("n", [4, 5, 10, 30])
def test_an_interval_for_every_look_ends_where_the_bayes_factor_says(n):
    for alpha in (ALPHA, ALPHA / 2):
        assert bayes_factor(critical(n, looked=True, alpha=alpha), n) == pytest.approx(1 / alpha, rel=1e-4)
    assert critical(3, looked=True) == np.inf and bayes_factor(20, 3) < bayes_factor(40, 3) < 1 / ALPHA


def test_who_looks_after_every_seed_errs_no_more_often():
    """From 2 to 30 seeds; with Student's interval, a false find is more than five times as frequent."""
    count, n = 10_000, np.arange(2, 31)
    base, ours = comparisons(np.random.default_rng(0), count, n[-1])
    pairs = pd.DataFrame(ours - base).T.expanding()
    t = (pairs.mean() / pairs.sem()).to_numpy()[1:].T
    found = {looked: [critical(i, looked) for i in n] for looked in (False, True)}
    wrong = {looked: np.mean((np.abs(t) > bounds).any(axis=1)) for looked, bounds in found.items()}
    assert wrong[True] <= ALPHA and wrong[False] > 5 * ALPHA


@pytest.mark.parametrize("freedom", [4, 10**6])
@pytest.mark.parametrize("looked", [False, True])
def test_power_is_the_share_of_simulated_comparisons_that_show_the_gain(freedom, looked):
    rng, count, n, gain, spread = np.random.default_rng(freedom), 20_000, 8, 0.012, 0.01
    true = spread * np.sqrt(freedom / rng.chisquare(freedom, (count, 1)))
    pairs = -gain + true * rng.standard_normal((count, n))
    shown = -pairs.mean(axis=1) > critical(n, looked) * stats.sem(pairs, axis=1)
    chance = power(n, gain, spread, freedom, looked)
    assert abs(shown.mean() - chance) < binomial(chance, count)


@pytest.mark.parametrize("looked", [False, True])
def test_seeds_to_show_a_gain_are_the_fewest_and_the_gain_that_seeds_show_is_the_smallest(looked):
    n = seeds_to_show(0.01, 0.01, 4, looked)
    assert power(n - 1, 0.01, 0.01, 4, looked) < CHANCE <= power(n, 0.01, 0.01, 4, looked)
    assert power(n, smallest_gain(n, 0.01, 4, looked), 0.01, 4, looked) == pytest.approx(CHANCE, abs=1e-6)
    assert seeds_to_show(1e-5, 0.01, 4, looked) == 1000  # the most that are tried
