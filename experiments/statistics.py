"""Judge a difference by paired seeds: give its interval, its p, and how many seeds would show a gain.

Runs of one seed begin with the same weights and see the same batches, so losses are subtracted seed by seed.
The mean difference has Student's interval, which is wide for few seeds. It holds for one look, at a number of
seeds that was fixed beforehand. If you look, add seeds and look again, you need one that holds at every look.
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats
from scipy.optimize import brentq

ALPHA = 0.05  # how often an interval may miss
CHANCE = 0.8  # with which the seeds that `seeds_to_show` names show a gain
PRIOR = 3.0  # variance of a gain, in spreads, before the first look: it makes `critical` narrow near that
MOST = 1000  # seeds


@dataclass(frozen=True)
class Difference:
    """A change's losses less its base's, over the seeds that both have."""

    pairs: list[float]  # of the seeds that diverged in neither
    mean: float  # below 0: the change has the lower loss
    half: float  # of the interval; inf where so few seeds give none
    p: float  # two-sided, by sign flips: 2 / 2^n at least
    spread: float  # standard deviation of a pair's difference
    looked: bool  # the interval holds at every look
    diverged: tuple[int, int]  # runs of the base, and of the change

    @property
    def verdict(self) -> str:
        """Return helps, hurts, diverged, or none: no difference is seen. A run that diverged is no gain."""
        if any(self.diverged):
            return "diverged"
        if not abs(self.mean) > self.half:
            return "none"
        return "helps" if self.mean < 0 else "hurts"


def difference(a: pd.Series, b: pd.Series, plan: int | None = None, alpha: float = ALPHA) -> Difference:
    """Compare losses by seed, where NaN is that of a run that diverged, for one look at the planned seeds."""
    a, b = a.align(b, join="inner")
    pairs, diverged = (a - b).dropna(), (int(b.isna().sum()), int(a.isna().sum()))
    looked, half, p = plan not in (None, len(a)), np.inf, np.nan
    if len(pairs) > 1:
        half = critical(len(pairs), looked, alpha) * pairs.sem() if pairs.any() else 0.0
        flips = {"permutation_type": "samples", "n_resamples": 2**14, "rng": 0}
        p = stats.permutation_test((pairs.to_numpy(),), np.mean, **flips).pvalue
    return Difference([*pairs], pairs.mean(), half, float(p), pairs.std(), looked, diverged)


def critical(n: int, looked: bool = False, alpha: float = ALPHA) -> float:
    """Return half the interval of a mean of n values, in standard errors.

    At every look, the interval has those means whose Bayes factor is below 1 / alpha, against a normal prior
    of the mean's ratio to the spread. The true mean's is a martingale, which rises above that with a
    probability of at most alpha, ever (arXiv:2310.03722).
    """
    if not looked:
        return float(stats.t.ppf(1 - alpha / 2, n - 1))
    grown = 1 + n * PRIOR
    most = (grown**0.5 / alpha) ** (2 / n)
    return float(np.sqrt((n - 1) * (most - 1) / (1 - most / grown))) if most < grown else np.inf


def power(n: int, gain: float, spread: float, freedom: int, looked: bool = False) -> float:
    """Return the chance that n seeds show a gain, by a spread that has some degrees of freedom.

    It is the mean over all true spreads that may have led to this estimate.
    """
    true = spread * np.sqrt(freedom / stats.chi2.ppf((np.arange(200) + 0.5) / 200, freedom))
    return float(np.mean(stats.nct.sf(critical(n, looked), n - 1, gain * n**0.5 / true)))


def seeds_to_show(gain: float, spread: float, freedom: int, looked: bool = False) -> int:
    """Return how many seeds show a gain with CHANCE; MOST if those do not."""
    return bisect_left(range(MOST), CHANCE, lo=2, key=lambda n: power(n, gain, spread, freedom, looked))


def smallest_gain(n: int, spread: float, freedom: int, looked: bool = False) -> float:
    """Return the gain that n seeds, enough for an interval, show with CHANCE."""
    return float(brentq(lambda gain: power(n, gain, spread, freedom, looked) - CHANCE, 0, 1e4 * spread))
