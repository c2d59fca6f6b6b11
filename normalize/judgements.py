"""Judges many comparisons of new scores with recorded ones at once: the statistics of verdicts.

*Same* is an equivalence test. Seeds in common are paired: the same training seed gives the same first
weights and the same batches, so that differences of pairs vary much less than seeds do. The interval is
a t interval at 99 %: where differences are symmetric it is wrong in at most 0.5 % of cases, and where
they are as skewed as exponential ones in at most 5 %. Where the recorded scores fall into two groups (a
policy solves the task or does not), a pair that changes groups counts by the exact binomial bound.

*Consistent* takes the recorded seeds as the distribution of seeds (the same code and data, so the pooled
spread is the right null): the new mean lies inside their 95 % prediction interval for so many new
seeds. Outside it is called not consistent only if a permutation of the seeds agrees, whose error rate
is 5 % for scores of any distribution. It is also called so where the interval of pairs lies wholly
beyond the margin.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection

import numpy as np
from jaxtyping import Bool, Float, Int

MARGIN = 5.0
"""Difference of normalized scores, in points, that counts as none."""

ERROR = 0.05
"""Share of comparisons of equal algorithms that may be called not consistent."""

INTERVAL_ERROR = 0.01
"""One minus the confidence of the interval of the difference, which decides on *same*."""

POWER = 0.8
"""Chance with which a difference is said to be noticed, or a number of seeds to settle the matter."""

MOST_SEEDS = 1000
"""Most new seeds that are considered when a verdict says how many more would settle it."""

ROUNDING = 1e-9
"""Difference of scores, in points, that rounding explains."""

_MOST_ARRANGEMENTS = 20_000
_SAMPLED_ARRANGEMENTS = 4_999


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Steps 2 and 3 for many comparisons at once; every array has one element for each.

    Attributes:
        same: Whether the interval of the difference lies within the margin.
        not_consistent: Whether the new mean is no plausible one, or pairs differ beyond the margin.
        inside: Whether the new mean lies inside the prediction interval.
        difference: New minus recorded mean, over the pairs if seeds are paired.
        low: Lower end of the interval of the difference; NaN if there is none.
        high: Upper end.
        grouped: Whether the recorded scores fall into two groups.
        half: Half the width of the prediction interval; NaN if there is none.
        share: Share of permutations with a difference of means at least as large; 1 where the
            other steps decide.
    """

    same: Bool[np.ndarray, " draws"]
    not_consistent: Bool[np.ndarray, " draws"]
    inside: Bool[np.ndarray, " draws"]
    difference: Float[np.ndarray, " draws"]
    low: Float[np.ndarray, " draws"]
    high: Float[np.ndarray, " draws"]
    grouped: Bool[np.ndarray, " draws"]
    half: Float[np.ndarray, " draws"]
    share: Float[np.ndarray, " draws"]


def judge(
    new: Float[np.ndarray, "draws new"],
    recorded: Float[np.ndarray, "draws recorded"],
    *,
    pairs: int = 0,
    margin: float = MARGIN,
    looks: int = 1,
) -> Judgement:
    """Return steps 2 and 3 for many comparisons of mean scores of seeds.

    The first `pairs` columns of both have the same training seed and are paired. A difference of `margin`
    points counts as none. Each comparison is made `looks` times while seeds are added.
    """
    count, others = new.shape[1], recorded.shape[1]
    level = ERROR / looks
    difference = new.mean(1) - recorded.mean(1)
    if others >= 2:
        spread = recorded.std(1, ddof=1)
        spread[np.ptp(recorded, axis=1) <= ROUNDING] = 0
        half = _t(1 - level / 2, others - 1) * spread * math.sqrt(1 / count + 1 / others)
    else:
        half = np.full(len(new), np.nan)
    # Without spread any rounding would lie outside: then only more than the margin counts.
    inside = ~(np.abs(difference) > np.where(half > 0, half, margin))
    grouped, cut = _groups(recorded)
    if pairs:
        difference = (new[:, :pairs] - recorded[:, :pairs]).mean(1)
        low, high = _paired_interval(new[:, :pairs], recorded[:, :pairs], looks)
        if grouped.any():
            low[grouped], high[grouped] = _grouped_interval(
                new[grouped], recorded[grouped], cut[grouped], pairs, looks
            )
    else:
        low, high = _unpaired_interval(new, recorded, looks)
        low[grouped], high[grouped] = np.nan, np.nan
    same = (low > -margin) & (high < margin)
    if 0 < pairs < count:  # the new seeds without a pair count as well: they may have failed
        same &= inside
    share = np.ones(len(new))
    doubtful = ~inside & ~same
    if doubtful.any() and can_reject(count, others, looks):
        share[doubtful] = _permutation_share(new[doubtful], recorded[doubtful])
    beyond = ((low > margin) | (high < -margin)) & ~grouped & (pairs > 0)
    return Judgement(
        same=same,
        not_consistent=~same & (beyond | (~inside & (share <= level))),
        inside=inside,
        difference=difference,
        low=low,
        high=high,
        grouped=grouped,
        half=half,
        share=share,
    )


def look_counts(start: int, most: int) -> list[int]:
    """Return the numbers of seeds at which to look, fixed before any score is seen.

    Each is twice the one before, so that few looks share the error rate.
    """
    counts = [start]
    while counts[-1] < most:
        counts.append(min(2 * counts[-1], most))
    return counts


def _groups(
    recorded: Float[np.ndarray, "draws recorded"],
) -> tuple[Bool[np.ndarray, " draws"], Float[np.ndarray, " draws"]]:
    """Return whether scores fall into two groups, and a score between these.

    They do where the widest gap is larger than the margin, and takes more of the range than it does in 95 % of
    normal samples of so many seeds. Two seeds show no groups.
    """
    ordered = np.sort(recorded, axis=1)
    if ordered.shape[1] < 3:
        return np.zeros(len(ordered), bool), ordered[:, 0]
    gaps = np.diff(ordered, axis=1)
    widest = gaps.argmax(1)
    rows = np.arange(len(ordered))
    cut = (ordered[rows, widest] + ordered[rows, widest + 1]) / 2
    width = gaps[rows, widest]
    usual = _usual_gap(ordered.shape[1]) * (ordered[:, -1] - ordered[:, 0])
    return (width > MARGIN) & (width > usual), cut


@functools.lru_cache(maxsize=64)
def _usual_gap(seeds: int) -> float:
    """Return the share of the range that the widest gap takes at most in 95 % of normal samples."""
    ordered = np.sort(np.random.default_rng(0).standard_normal((100_000, seeds)), axis=1)
    return float(np.quantile(np.diff(ordered, axis=1).max(1) / np.ptp(ordered, axis=1), 0.95))


def _paired_interval(
    new: np.ndarray, recorded: np.ndarray, looks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the t interval of the mean difference of pairs, a point where they all differ equally.

    It is NaN where the recorded scores are all the same too: that nobody reaches the goal shows nothing.
    """
    pairs = new.shape[1]
    differences = new - recorded
    half = _t(1 - INTERVAL_ERROR / looks / 2, pairs - 1) * differences.std(1, ddof=1)
    half = np.where(np.ptp(differences, axis=1) > ROUNDING, half / math.sqrt(pairs), 0)
    half = np.where((half == 0) & (np.ptp(recorded, axis=1) <= ROUNDING), np.nan, half)
    middle = differences.mean(1)
    return middle - half, middle + half


def _unpaired_interval(
    new: np.ndarray, recorded: np.ndarray, looks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return Welch's interval with the smaller side's degrees of freedom; NaN without spread.

    Welch's own degrees of freedom are wrong in 10 % instead of 5 % with two seeds against ten.
    """
    fewer = min(new.shape[1], recorded.shape[1])
    if fewer < 2:
        nothing = np.full(len(new), np.nan)
        return nothing, nothing.copy()
    error = np.sqrt(
        sum(
            np.where(np.ptp(side, axis=1) > ROUNDING, side.var(1, ddof=1), 0) / side.shape[1]
            for side in (new, recorded)
        )
    )
    half = np.where(error > 0, _t(1 - INTERVAL_ERROR / looks / 2, fewer - 1) * error, np.nan)
    middle = new.mean(1) - recorded.mean(1)
    return middle - half, middle + half


def _grouped_interval(
    new: np.ndarray, recorded: np.ndarray, cut: np.ndarray, pairs: int, looks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of the mean difference of pairs whose scores fall into two groups.

    A pair that changed groups counts by the exact bound on the share of such pairs, times the
    range of all scores; the others by their t interval.
    """
    everything = np.concatenate([new, recorded], axis=1)
    distance = np.ptp(everything, axis=1)
    new, recorded, cut = new[:, :pairs], recorded[:, :pairs], cut[:, None]
    up = ((recorded < cut) & (new > cut)).sum(1)
    down = ((recorded > cut) & (new < cut)).sum(1)
    stays = (recorded < cut) == (new < cut)
    count = stays.sum(1)
    differences = np.where(stays, new - recorded, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = differences.sum(1) / count
        variance = (np.where(stays, differences - middle[:, None], 0) ** 2).sum(1) / (count - 1)
        half = _t(1 - INTERVAL_ERROR / looks / 2, count - 1) * np.sqrt(variance / count)
    half = np.where((count > 1) & (variance > ROUNDING**2), half, np.nan)
    least = _most_probable(down, pairs, looks) * distance
    most = _most_probable(up, pairs, looks) * distance
    return np.minimum(middle - half, 0) - least, np.maximum(middle + half, 0) + most


def _most_probable(
    happened: Int[np.ndarray, " draws"], of: int, looks: int
) -> Float[np.ndarray, " draws"]:
    """Return the upper end of the exact 97.5 % interval of a probability (Clopper and Pearson)."""
    from scipy.special import betaincinv

    bound = betaincinv(happened + 1, np.maximum(of - happened, 1), 1 - ERROR / 2 / looks)
    return np.where(happened == of, 1.0, bound)


def _t(probability: float, freedom: float | np.ndarray) -> np.ndarray:
    """Return the quantile of Student's t."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, probability))


def can_reject(new: int, recorded: int, looks: int) -> bool:
    """Whether there are enough permutations that the most extreme one is below the error rate."""
    both_ways = 2 if new == recorded else 1  # exchanging the sides gives the same difference
    return both_ways / math.comb(new + recorded, new) <= ERROR / looks


def usual_seeds(recorded: int, numbers: int = 1) -> int:
    """Return how many new seeds to train by default: 3, or the fewest that can reject where such a number is small.

    `numbers` of the runs are compared, which share the error rate.
    """
    return next((count for count in range(3, 8) if can_reject(count, recorded, numbers)), 3)


def _permutation_share(
    new: Float[np.ndarray, "draws new"], recorded: Float[np.ndarray, "draws recorded"]
) -> Float[np.ndarray, " draws"]:
    """Return the share of permutations of all seeds whose means differ at least as much.

    All of them are counted, or where there are too many, a fixed sample and the observed one.
    """
    together = np.concatenate([new, recorded], axis=1)
    count, total = new.shape[1], together.shape[1]
    chosen = _arrangements(count, total)
    at_least = np.zeros(len(new))
    sums = together.sum(1, keepdims=True)
    observed = np.abs(new.mean(1) - recorded.mean(1))
    scale = np.abs(together).max(1)
    rows = max(1, 2**22 // len(chosen))
    for first in range(0, len(new), rows):
        part = slice(first, first + rows)
        inside = together[part] @ chosen.T
        found = np.abs(inside / count - (sums[part] - inside) / (total - count))
        least = observed[part] - ROUNDING * scale[part]
        at_least[part] = (found >= least[:, None]).sum(1)
    return at_least / len(chosen)


@functools.lru_cache(maxsize=32)
def _arrangements(count: int, total: int) -> Float[np.ndarray, "arrangements total"]:
    """Return which `count` of `total` seeds are new, a row of ones and zeros for each permutation."""
    number = math.comb(total, count)
    if number <= _MOST_ARRANGEMENTS:
        chosen = np.zeros((number, total))
        which = np.array(list(itertools.combinations(range(total), count)))
        np.put_along_axis(chosen, which, 1, axis=1)
        return chosen
    observed = np.arange(total) < count
    rng = np.random.default_rng(0)
    drawn = rng.permuted(np.tile(observed, (_SAMPLED_ARRANGEMENTS, 1)), axis=1)
    return np.concatenate([observed[None], drawn]).astype(float)


def noticed_difference(
    new: int, recorded: Float[np.ndarray, " recorded"], *, looks: int = 1
) -> float | None:
    """Return the smallest difference that is called not consistent with 80 % probability.

    It is the one that the prediction interval notices with 82 %, at the error rate that permutations
    of so many seeds can have: what remains after a permutation has agreed is 80 % (measured for
    normal scores in `tests/normalize/test_verdicts.py`). None if there are too few seeds.
    """
    others = len(recorded)
    if others < 2 or np.ptp(recorded) <= ROUNDING or not can_reject(new, others, looks):
        return None
    number = math.comb(new + others, new)
    level = math.floor(ERROR / looks * number) / number
    unit = math.sqrt(1 / new + 1 / others) * float(recorded.std(ddof=1))
    return unit * _noncentrality(_t(1 - level / 2, others - 1).item(), others - 1, POWER + 0.02)


def unseen_share(seeds: int, *, looks: int = 1) -> float:
    """Return the largest share of seeds that may do what none of so many did, a bound at 95 %.

    It is the exact form of the rule of three, by which the bound is about 3 / seeds.
    """
    return 1.0 - math.pow(ERROR / looks, 1 / seeds)


def seeds_to_exclude(share: float, recorded: Collection[int] = ()) -> int:
    """Return how many seeds, from 0, that all do well exclude that a larger share of seeds fails.

    Those that *same* looks at count: where seeds are paired with recorded ones, the pairs.
    """
    for count in itertools.count(1):
        pairs = pairs_used(sum(seed < count for seed in recorded), count)
        if unseen_share(pairs or count) <= share:
            return count
    raise AssertionError("some number of seeds excludes any share")


def _noncentrality(bound: float, freedom: int, power: float) -> float:
    """Return how many standard errors of difference exceed a t bound with a probability."""
    from scipy.special import ndtr

    bounds = bound * _spreads(freedom)
    low, high = 0.0, 2.0 * float(bounds.max()) + 10
    for _ in range(60):
        middle = (low + high) / 2
        reached = float((ndtr(middle - bounds) + ndtr(-middle - bounds)).mean())
        low, high = (middle, high) if reached < power else (low, middle)
    return high


@functools.lru_cache(maxsize=2048)
def _spreads(freedom: int) -> Float[np.ndarray, " quantiles"]:
    """Return equally probable standard deviations of a normal sample, in units of the true one."""
    from scipy.special import chdtri

    quantiles = (np.arange(400) + 0.5) / 400
    return np.asarray(np.sqrt(chdtri(freedom, quantiles) / freedom))


def seeds_to_settle(
    new: Float[np.ndarray, " new"],
    recorded: Float[np.ndarray, " recorded"],
    *,
    common: int,
    pairs: int,
    margin: float,
    looks: int = 1,
) -> int | None:
    """Return how many further seeds settle a comparison, or None if no number does.

    Settled is same or not consistent, with 80 % probability if the difference and the spread stay as
    they are. If some of the seeds are in common, further ones are too while the recording has them.
    """
    for more in range(1, MOST_SEEDS + 1):
        total = len(new) + more
        paired = pairs_used(min(common + more, len(recorded)), total) if common else 0
        if _chance_of_settling(new, recorded, total, pairs, paired, margin, looks) >= POWER:
            return more
    return None


def _chance_of_settling(
    new: np.ndarray,
    recorded: np.ndarray,
    total: int,
    pairs: int,
    in_common: int,
    margin: float,
    looks: int,
) -> float:
    """Return the larger of the chances that `total` new seeds end in same and in not consistent."""
    from scipy.special import ndtr

    others = len(recorded)
    beyond = 0.0
    if others >= 2 and np.ptp(recorded) > ROUNDING and can_reject(total, others, looks):
        spread = float(recorded.std(ddof=1))
        half = (
            _t(1 - ERROR / looks / 2, others - 1).item()
            * spread
            * math.sqrt(1 / total + 1 / others)
        )
        away = abs(float(new.mean() - recorded.mean()))
        beyond = float(ndtr((away - half) / (spread / math.sqrt(total))))
    grouped, cut = _groups(recorded[None])
    if in_common and pairs:
        differences = new[:pairs] - recorded[:pairs]
        if grouped[0]:
            return max(
                beyond,
                _grouped_chance(new, recorded, float(cut[0]), pairs, in_common, margin, looks),
            )
        error = float(differences.std(ddof=1)) / math.sqrt(in_common)
        middle, freedom = abs(float(differences.mean())), in_common - 1
    elif in_common or grouped[0] or min(total, others) < 2:
        return beyond
    else:
        spread_new = float((new if len(new) > 1 else recorded).std(ddof=1))
        error = math.hypot(
            spread_new / math.sqrt(total), float(recorded.std(ddof=1)) / math.sqrt(others)
        )
        middle, freedom = abs(float(new.mean() - recorded.mean())), min(total, others) - 1
    if error <= ROUNDING:
        return beyond
    halves = _t(1 - INTERVAL_ERROR / looks / 2, freedom) * error * _spreads(freedom)
    chance = ndtr((margin - halves - middle) / error) - ndtr((halves - margin - middle) / error)
    apart = ndtr((middle - margin - halves) / error) if in_common else np.zeros(1)
    return max(beyond, float(np.maximum(chance, 0).mean()), float(apart.mean()))


def _grouped_chance(
    new: np.ndarray,
    recorded: np.ndarray,
    cut: float,
    pairs: int,
    in_common: int,
    margin: float,
    looks: int,
) -> float:
    """Return 1 if no further pair that changes groups ends in same, and 0 otherwise."""
    here, there = new[:pairs], recorded[:pairs]
    distance = float(np.ptp(np.concatenate([new, recorded])))
    stays = (here < cut) == (there < cut)
    changed = np.array([((here > cut) & ~stays).sum(), ((here < cut) & ~stays).sum()])
    if stays.sum() < 2:
        return 0.0
    differences = (here - there)[stays]
    half = _t(1 - INTERVAL_ERROR / looks / 2, in_common - 1).item() * differences.std(ddof=1)
    within = abs(float(differences.mean())) + half / math.sqrt(in_common)
    bound = float(_most_probable(changed, in_common, looks).max()) * distance
    return float(within + bound < margin)


def pairs_used(common: int, new: int) -> int:
    """Return how many seeds to pair, which is decided before any score is looked at.

    Seeds that are not in common are left out of the interval, so at least half must be.
    """
    return common if common >= 2 and 2 * common >= new else 0
