"""How often each step of a verdict is wrong, on scores drawn from distributions that are known.

Scores of seeds are normal, skewed (exponential, to both sides) or two-valued (0 or 100, as where a
policy solves the task or does not, with the noise of 100 episodes). Seeds in common are correlated.

    wrongly same              the algorithms differ by exactly the margin. Either all seeds score more by
                              5 points, or ("stretched") the distribution is another: wider, or 100
                              more often than 0. At most 5 % may be called same.
    wrongly not consistent    the algorithms are equal. At most 5 % may be called not consistent; of
                              those outside the prediction interval, some are because of its shape.
    noticed                   the algorithms differ by what the verdict names as the difference that
                              would have been noticed: 80 % should be called not consistent.
    settled                   what a verdict says would settle it, tried: 80 % should be settled.
    collapsed                 some of the new seeds lose many points, as no recorded one does. No test
                              of few seeds can bound how often that is called same: where none of the
                              new seeds happens to collapse, nothing shows it.

    python -m benchmarks.verdicts          the table of docs/scores.md, in seconds
    python -m benchmarks.verdicts all      every figure, as JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np

from orlog.normalize.verdicts import MARGIN, Judgement, can_reject, judge, look_counts, noticed_difference

DRAWS = 20_000
SIZES = ((2, 5), (2, 8), (3, 3), (3, 5), (3, 8), (5, 8), (8, 8))
PAIRED = ((2, 8), (3, 8), (5, 8), (8, 8))
COLLAPSES = ((0.1, 60.0), (0.1, 40.0), (0.2, 60.0), (0.2, 40.0), (0.3, 60.0))
PAIRS_APART = 0.3  # points: IQL with the vector instructions of an older processor
EPISODE_NOISE = 1.4  # points, of the mean of 100 episodes that nearly all end in the same way

Quantiles = Callable[[np.ndarray, float, float], np.ndarray]


def normal(values: np.ndarray, spread: float, more: float) -> np.ndarray:
    """Return normal scores of standard normal values; more is added to all of them."""
    return 50 + spread * values + more


def skewed(values: np.ndarray, spread: float, more: float) -> np.ndarray:
    """Return exponential scores; more is added to all of them."""
    return spread * _exponential(values) + more


def skewed_down(values: np.ndarray, spread: float, more: float) -> np.ndarray:
    """Return scores that are exponential below the best; more is added to all of them."""
    return 100 - spread * _exponential(-values) + more


def stretched(values: np.ndarray, spread: float, more: float) -> np.ndarray:
    """Return exponential scores whose mean is higher since all are stretched."""
    return (spread + more) * _exponential(values)


def two_valued(values: np.ndarray, spread: float, more: float) -> np.ndarray:
    """Return scores of 0 and 100, as many of each; more is added to all of them."""
    return _solved(values, 0.5, spread) + more


def oftener(values: np.ndarray, spread: float, more: float) -> np.ndarray:
    """Return scores of 0 and 100, as many of each; 100 more often for more."""
    return _solved(values, 0.5 + more / 100, spread)


def seldom(values: np.ndarray, spread: float, more: float) -> np.ndarray:
    """Return scores of 0 and of 100 in a tenth of the seeds; more often for more."""
    return _solved(values, 0.1 + more / 100, spread)


def _exponential(values: np.ndarray) -> np.ndarray:
    from scipy.special import log_ndtr

    return np.asarray(-log_ndtr(-values))


def _solved(values: np.ndarray, share: float, noise: float) -> np.ndarray:
    from scipy.special import ndtri

    # The noise is a function of the value too, so that seeds in common nearly share it.
    return np.asarray(100.0 * (values < ndtri(share)) + noise * np.sin(1e4 * values) * np.sqrt(2))


SPREADS: dict[Quantiles, float] = {
    normal: 10.0,
    skewed: 10.0,
    skewed_down: 10.0,
    stretched: 10.0,
    two_valued: EPISODE_NOISE,
    oftener: EPISODE_NOISE,
    seldom: EPISODE_NOISE,
}


def draw(
    scores: Quantiles,
    sizes: tuple[int, int],
    *,
    correlation: float = 0.0,
    more: float = 0.0,
    wider: float = 1.0,
    spread: float | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return new and recorded scores of seeds; the first of both are correlated.

    Args:
        scores: Makes scores of standard normal values.
        sizes: Number of new and of recorded seeds.
        correlation: Of the normal values of a seed in common.
        more: How much higher the new mean is.
        wider: How many times as far the new scores spread.
        spread: Of the recorded scores; by default that of the distribution.
        draws: Number of comparisons.
        seed: Of the generator.
    """
    rng = np.random.default_rng((seed, *sizes))
    here, there = (rng.standard_normal((draws, size)) for size in sizes)
    common = min(sizes)
    here[:, :common] *= np.sqrt(1 - correlation**2)
    here[:, :common] += correlation * there[:, :common]
    spread = SPREADS[scores] if spread is None else spread
    new = scores(here, spread, more)
    if wider != 1:
        middle = scores(np.random.default_rng(1).standard_normal(10**6), spread, more).mean()
        new = middle + wider * (new - middle)
    return new, scores(there, spread, 0.0)


def share_of(found: np.ndarray) -> float:
    """Return a percentage."""
    return round(100 * float(found.mean()), 1)


def judged(scores: Quantiles, sizes: tuple[int, int], *, paired: bool = False, **how: float) -> Judgement:
    """Return the judgements of drawn scores."""
    new, recorded = draw(scores, sizes, **how)  # type: ignore[arg-type]  # draws are in DRAWS
    return judge(new, recorded, pairs=min(sizes) if paired else 0)


def noticed(sizes: tuple[int, int], *, draws: int = DRAWS) -> np.ndarray:
    """Return which differences were called not consistent of those that a verdict names.

    For normal scores, at the difference that their true spread gives.
    """
    unit = np.array([-1.0, 1.0] * sizes[1])[: sizes[1]]
    named = noticed_difference(sizes[0], unit / unit.std(ddof=1))
    assert named is not None
    new, recorded = draw(normal, sizes, more=10 * named, draws=draws)
    return judge(new, recorded).not_consistent


def wrong_in_looks(
    scores: Quantiles, start: int, most: int, *, correlation: float, more: float, draws: int = DRAWS
) -> tuple[np.ndarray, np.ndarray]:
    """Return which comparisons end in same, and which in not consistent, as seeds are added."""
    new, recorded = draw(scores, (most, 8), correlation=correlation, more=more, draws=draws)
    return ends_of_looks(new, recorded, start, paired=correlation != 0)


def ends_of_looks(new: np.ndarray, recorded: np.ndarray, start: int, *, paired: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return which comparisons end in same, and which in not consistent; the first look has `start` seeds."""
    draws, most = new.shape
    looks = look_counts(start, most)
    open_ones = np.ones(draws, bool)
    same, not_consistent = np.zeros(draws, bool), np.zeros(draws, bool)
    for count in looks:
        pairs = count if paired else 0
        found = judge(new[:, :count], recorded, pairs=pairs, looks=len(looks))
        same |= open_ones & found.same
        not_consistent |= open_ones & found.not_consistent
        open_ones &= ~(found.same | found.not_consistent)
    return same, not_consistent


def collapsed(
    sizes: tuple[int, int], share: float, loss: float, *, apart: float = PAIRS_APART, draws: int = DRAWS
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of new seeds, of which a share loses so many points, and recorded ones, which do not.

    But for that, the new scores are those of the recorded seeds and noise.

    Args:
        sizes: Number of new and of recorded seeds; all new ones are in common.
        share: Probability that a new seed collapses.
        loss: Points that it then loses.
        apart: Standard deviation of the differences of pairs of which none collapsed.
        draws: Number of comparisons.
    """
    rng = np.random.default_rng((round(100 * share), round(loss), *sizes))
    recorded = 50 + 10 * rng.standard_normal((draws, sizes[1]))
    new = recorded[:, : sizes[0]] + apart * rng.standard_normal((draws, sizes[0]))
    return new - loss * (rng.random(new.shape) < share), recorded


def called(sizes: tuple[int, int], share: float, loss: float, apart: float) -> dict[str, float]:
    """Return in percent how often it is called what, if a share of the new seeds collapses."""
    new, recorded = collapsed(sizes, share, loss, apart=apart)
    found = judge(new, recorded, pairs=sizes[0])
    return {
        "same": share_of(found.same),
        "consistent": share_of(~found.same & ~found.not_consistent & found.inside),
        "not consistent": share_of(found.not_consistent),
    }


WORDS = ("same", "consistent", "not consistent", "unsettled")


def cases(sizes: tuple[int, int], draws: int = DRAWS) -> dict[str, list[float]]:
    """Return how often each verdict is given, in percent in the order of `WORDS`, by what is true of new seeds.

    Recorded seeds score 50 and spread by 10 points. New seeds are paired, and differ from theirs by 1 point, or
    in a row of its own have seeds of their own. Of two groups half of the seeds score 0 and half 100, and one pair in
    ten changes its group; of those that collapse three in ten lose 60 points.
    """
    (count, others), rng = sizes, np.random.default_rng(sizes)
    both = 50 + 10 * rng.standard_normal((draws, max(sizes)))
    apart = rng.standard_normal((draws, count))
    recorded, new = both[:, :others], both[:, :count] + apart
    solves = 100.0 * (rng.random(both.shape) < 0.5)
    changed = np.where(rng.random(new.shape) < 0.1, 100 - solves[:, :count], solves[:, :count])
    solved = solves[:, :others] + EPISODE_NOISE * rng.standard_normal(recorded.shape)
    drawn = {
        "equal": (new, recorded),
        **{f"{less} points worse": (new - less, recorded) for less in (5, 10, 30)},
        "30 points worse, other seeds": (20 + 10 * rng.standard_normal(new.shape), recorded),
        "equal, in two groups": (changed + apart, solved),
        "some collapse": (new - 60.0 * (rng.random(new.shape) < 0.3), recorded),
    }
    found = {}
    for name, (here, there) in drawn.items():
        pairs = 0 if "other" in name else min(sizes)
        one = judge(here, there, pairs=pairs)
        shown = (np.ptp(there, axis=1) > 0) & (pairs > 0 or can_reject(*sizes, 1))
        consistent = ~one.same & ~one.not_consistent & one.inside & shown
        rest = ~(one.same | one.not_consistent | consistent)
        found[name] = [share_of(each) for each in (one.same, consistent, one.not_consistent, rest)]
    return found


def table() -> str:
    """Return the table of docs/scores.md: same, consistent, not consistent, unsettled, in percent."""
    sizes = ((3, 3), (4, 3), (5, 5), (3, 8), (8, 8))
    columns = [cases(one) for one in sizes]
    lines = ["| new seeds are | " + " | ".join(f"{new} against {old}" for new, old in sizes) + " |"]
    lines.append("|---" * (1 + len(sizes)) + "|")
    for name in columns[0]:
        cells = [" / ".join(f"{share:.0f}" for share in column[name]) for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table of docs/scores.md, or with `all` one JSON object of all figures."""
    if sys.argv[1:] != ["all"]:
        print(table())
        return
    found = {
        "wrongly same, percent, paired, by correlation and new against 8 recorded": {
            f"{scores.__name__}, correlation {correlation}": {
                f"{sizes[0]}": share_of(judged(scores, sizes, paired=True, correlation=correlation, more=MARGIN).same)
                for sizes in PAIRED
            }
            for scores in SPREADS
            for correlation in (0.0, 0.9, 0.98)
        },
        "wrongly same, percent, not paired, spread 1 point": {
            f"{scores.__name__}, new scores spread {wider} times": {
                f"{sizes[0]} against {sizes[1]}": share_of(
                    judged(scores, sizes, more=MARGIN, wider=wider, spread=1.0).same
                )
                for sizes in SIZES
            }
            for scores in SPREADS
            for wider in (0.5, 1.0, 3.0)
        },
        "wrongly not consistent, percent": {
            f"{scores.__name__}, {'paired' if paired else 'not paired'}, correlation {correlation}": {
                f"{sizes[0]} against {sizes[1]}": share_of(
                    judged(scores, sizes, paired=paired, correlation=correlation).not_consistent
                )
                for sizes in SIZES
            }
            for scores in SPREADS
            for paired, correlation in ((False, 0.0), (True, 0.0), (True, 0.9))
        },
        "outside the prediction interval, percent": {
            scores.__name__: {
                f"{sizes[0]} against {sizes[1]}": share_of(~judged(scores, sizes).inside) for sizes in SIZES
            }
            for scores in SPREADS
        },
        "not consistent, percent, equal means but new scores that spread 3 times as far": {
            scores.__name__: {
                f"{sizes[0]} against {sizes[1]}": share_of(judged(scores, sizes, wider=3.0).not_consistent)
                for sizes in SIZES
            }
            for scores in SPREADS
        },
        "noticed, percent of differences said to be noticed with 80": {
            f"{sizes[0]} against {sizes[1]}": share_of(noticed(sizes)) for sizes in SIZES if sizes != (3, 3)
        },
        "wrong as seeds are added from 3 to 8, percent": {
            f"{scores.__name__}, correlation {correlation}": {
                "same": share_of(wrong_in_looks(scores, 3, 8, correlation=correlation, more=MARGIN)[0]),
                "not consistent": share_of(wrong_in_looks(scores, 3, 8, correlation=correlation, more=0)[1]),
            }
            for scores in SPREADS
            for correlation in (0.0, 0.9, 0.98)
        },
        "called, percent, where some of the new seeds collapse, all in pairs": {
            f"{100 * share:.0f} % lose {loss:.0f}, other pairs apart by {apart}": {
                f"{sizes[0]} against {sizes[1]}": called(sizes, share, loss, apart) for sizes in PAIRED[1:]
            }
            for share, loss in COLLAPSES
            for apart in (PAIRS_APART, 2.0)
        },
        "ending in same, percent, where some of the new seeds collapse, seeds added from 3 to 8": {
            f"{100 * share:.0f} % lose {loss:.0f}, other pairs apart by {apart}": share_of(
                ends_of_looks(*collapsed((8, 8), share, loss, apart=apart), 3, paired=True)[0]
            )
            for share, loss in COLLAPSES
            for apart in (PAIRS_APART, 2.0)
        },
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
