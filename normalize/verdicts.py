"""Compares new scores of an algorithm with its recorded baseline, and gives a verdict in steps.

    1. identical        the seeds in common, at least half of the new ones, gave the same returns to the bit
    2. same             the interval of the difference lies within +-margin
    3. not consistent   the new mean is no plausible mean of so many seeds of the recording
       consistent       it is
    4. unsettled        none of these: so many more seeds would settle it

    contradicted        other bits where data, settings, code, versions and processor are those of the recording

*Same* is an equivalence test by a t interval at 99 %. Seeds in common are paired: the same training seed gives
the same first weights and the same batches, so that differences of pairs vary much less than seeds do. Where
the recorded scores fall into two groups (a policy solves the task or does not), a pair that changes groups
counts by the exact binomial bound.

*Consistent* takes the recorded seeds as the distribution of seeds: the new mean lies inside their 95 %
prediction interval for so many new seeds. Outside it is called not consistent only if a permutation of the
seeds agrees, whose error rate is 5 % for scores of any distribution, or if the interval of pairs lies wholly
beyond the margin.

`compare_runs` judges costs, successes and hypervolumes beside the returns, and the weakest verdict counts.
`benchmarks/verdicts.py` measures how often each step is wrong, and docs/scores.md has the figures.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float

from orlog.manifests.names import counted
from orlog.normalize.metrics import METRICS, EpisodeOutcomes, of_fields
from orlog.normalize.references import Baseline

MARGIN = 5.0  # difference of normalized scores, in points, that counts as none
ERROR = 0.05  # share of comparisons of equal algorithms that may be called not consistent
INTERVAL_ERROR = 0.01
"""One minus the confidence of the interval of the difference, which decides on *same*."""

POWER = 0.8
"""Chance with which a difference is said to be noticed, or a number of seeds to settle the matter."""

MOST_SEEDS = 1000
"""Most new seeds that are considered when a verdict says how many more would settle it."""

ROUNDING = 1e-9  # difference of scores, in points, that rounding explains
_MOST_ARRANGEMENTS = 20_000
_SAMPLED_ARRANGEMENTS = 4_999

VERDICT_NOTE = (
    "Neither same nor consistent excludes small differences, or seeds that fail in a way none has shown: "
    "docs/scores.md#verdicts."
)
"""What to print where a verdict is printed."""

Word = Literal["identical", "same", "consistent", "unsettled", "not consistent", "contradicted"]
NOT_RECORDED = "not recorded"
NO_SPREAD = "without spread, as recorded"  # equal seeds equal the recorded ones, which shows nothing
_WEAKER = ("identical", "same", "consistent", "unsettled", "not consistent")
_WITHOUT_STATISTICS: dict[str, Any] = dict.fromkeys(  # of verdicts that bits decide
    ("interval", "prediction", "detectable", "unseen_share", "more_seeds")
)

Scores: TypeAlias = Mapping[int, np.ndarray]
"""A number of each episode, by training seed."""

Outcomes: TypeAlias = Mapping[int, EpisodeOutcomes]
"""What came of the episodes, by training seed."""

_Ends: TypeAlias = tuple[np.ndarray, np.ndarray]  # of intervals


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a comparison with a recorded baseline.

    Attributes:
        word: The verdict: of several numbers, the weakest of theirs.
        of: The number that `word` and all below are of, with its unit; empty for the score.
        beside: Of several numbers, the word of each of the others, or `NOT_RECORDED`, or `NO_SPREAD`.
        seeds: Number of new seeds.
        recorded_seeds: Number of recorded seeds.
        mean: New mean score.
        difference: New minus recorded mean score, in points; over the pairs if seeds are paired.
        interval: Interval of the difference, or None.
        confidence: Confidence of this interval.
        pairs: Number of seeds compared with the same seed of the recording; 0 if means of all seeds are.
        prediction: Prediction interval of the recorded seeds for the mean of the new ones, or None.
        detectable: Smallest difference of all seeds, in points, that would have been noticed, or None.
        power: Probability with which it would have been.
        unseen_share: Of same and consistent, the largest share of seeds (0 to 1, a bound at 95 %) that may do what
            none of the new ones showed, such as fail. Otherwise None.
        more_seeds: Number of further seeds that would settle it, with 80 % probability if difference and
            spread stay as they are; None if it is settled, or if no number of new seeds would do.
        reason: Why the verdict is not a stronger one; may be empty.
        margin: Difference that counts as none.
        looks: Number of times that the comparison is made while seeds are added.
        processor: Processor of the new scores; may be empty.
        recorded_processor: Processor of the recorded ones; may be empty.
    """

    word: Word
    seeds: int
    recorded_seeds: int
    mean: float
    difference: float
    interval: tuple[float, float] | None = None
    confidence: float = 1 - INTERVAL_ERROR
    pairs: int = 0
    prediction: tuple[float, float] | None = None
    detectable: float | None = None
    power: float = POWER
    unseen_share: float | None = None
    more_seeds: int | None = None
    reason: str = ""
    margin: float = MARGIN
    looks: int = 1
    processor: str = ""
    recorded_processor: str = ""
    of: str = ""
    beside: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """Whether more seeds are not needed: all but consistent and unsettled."""
        return self.word not in ("consistent", "unsettled")

    def __str__(self) -> str:
        """Return the verdict with its reasons, in one line."""
        of = f"{self.of}: " if self.of else ""
        parts = [f"{self.word}: {of}{self._finding()}", self.reason]
        if self.word == "consistent":
            least = self.detectable
            below = "any difference" if least is None else f"less than {least:z.1f} points"
            parts.append(f"{below} may go unnoticed")
        if self.unseen_share is not None:
            parts.append(f"up to {100 * self.unseen_share:z.0f} % of seeds may fail unseen")
        if self.more_seeds is not None:
            parts.append(f"{counted(self.more_seeds, 'more seed')} would settle it")
        elif not self.is_settled and self.seeds > 1:
            recorded = counted(self.recorded_seeds, "recorded seed")
            parts.append(f"more new seeds cannot settle it beside {recorded}")
        if self.processor and self.recorded_processor not in ("", "unknown", self.processor):
            parts.append(f"recorded on {self.recorded_processor}, here {self.processor}")
        parts += [f"{name} {word}" for name, word in self.beside.items()]
        return "; ".join(filter(None, parts))

    def _finding(self) -> str:
        if self.word == "identical":
            return f"{counted(self.pairs, 'seed')} gave the same returns to the bit"
        between = ""
        if self.interval is not None:
            low, high = self.interval
            between = f"{100 * self.confidence:.3g} % interval {low:+z.1f} to {high:+z.1f}"
        if self.word == "same":
            return f"{self.difference:+z.1f} points ({between}), within ±{self.margin:g}"
        if self.prediction is None:
            return f"{self.difference:+z.1f} points"
        low, high = self.prediction
        is_inside = low <= self.mean <= high
        expected = (
            f"{self.mean:z.1f} lies {'inside' if is_inside else 'outside'} {low:z.1f} to {high:z.1f}, "
            "where the recorded seeds predict it"
        )
        if self.word != "not consistent":
            return expected
        if is_inside:  # then the pairs show it
            return f"{self.difference:+z.1f} points ({between}), beyond ±{self.margin:g}"
        return f"{self.mean - (low + high) / 2:+z.1f} points ({expected})"


def compare(
    new: Scores,
    recorded: Scores,
    *,
    same_run: bool = True,
    looks: int = 1,
    numbers: int = 1,
    processor: str = "",
    recorded_processor: str = "",
) -> Verdict:
    """Return the verdict on new scores against recorded ones, both by training seed.

    Args:
        new: Normalized scores of each episode, by training seed.
        recorded: The recorded ones. Where they have more episodes, or fewer, the first ones that
            both have are compared: these reset with the same seeds.
        same_run: Whether data and settings are the recorded ones. Without it, equal returns are a
            coincidence (of policies that never reach the goal, say) and not called identical.
        looks: Number of times the comparison is made while seeds are added; each time may err
            in its share of the cases only.
        numbers: How many numbers of the runs are compared, which share the error rates too.
        processor: Name of the processor here.
        recorded_processor: Name of the processor of the recording.

    Raises:
        ValueError: a side has no seed; the seeds of a side have different numbers of episodes, or
            none; a score is not a number.
    """
    of_new, of_recorded = _episodes("new", new), _episodes("recorded", recorded)
    episodes = min(of_new, of_recorded)
    common = [seed for seed in new if seed in recorded]
    facts: dict[str, Any] = {
        "seeds": len(new),
        "recorded_seeds": len(recorded),
        "looks": looks,
        "processor": processor,
        "recorded_processor": recorded_processor,
    }
    if (
        same_run
        and 2 * len(common) >= len(new)
        and all(np.array_equal(new[seed][:episodes], recorded[seed][:episodes]) for seed in common)
    ):
        fewer = f"in the first {episodes:,} of {max(of_new, of_recorded):,} episodes"
        return Verdict(
            word="identical",
            mean=float(np.mean([scores.mean() for scores in new.values()])),
            difference=0.0,
            pairs=len(common),
            reason="" if of_new == of_recorded else fewer,
            **facts,
        )
    here, there = (
        np.array([[side[seed][:episodes].mean() for seed in dict.fromkeys((*common, *side))]])
        for side in (new, recorded)
    )
    pairs, shares = pairs_used(len(common), len(new)), looks * numbers
    judgement = judge(here, there, pairs=pairs, looks=shares)
    word, reason = _word_and_reason(judgement, here, there, pairs, shares)
    low, high, half = (float(value[0]) for value in (judgement.low, judgement.high, judgement.half))
    middle = float(there.mean())
    is_same = word == "same"
    looked_at = pairs if is_same and pairs else len(new)  # of same the pairs alone
    return Verdict(
        word=word,
        mean=float(here.mean()),
        difference=float(judgement.difference[0]),
        interval=None if math.isnan(low) else (low, high),
        confidence=1 - INTERVAL_ERROR / shares,
        pairs=pairs,
        prediction=(middle - half, middle + half) if half > 0 else None,
        detectable=MARGIN if is_same else noticed_difference(len(new), there[0], looks=shares),
        power=1 - ERROR if is_same else POWER,
        unseen_share=(unseen_share(looked_at, looks=looks) if is_same or word == "consistent" else None),
        more_seeds=(
            seeds_to_settle(here[0], there[0], common=len(common), looks=shares)
            if word in ("consistent", "unsettled")
            else None
        ),
        reason=reason,
        **facts,
    )


def _episodes(side: str, scores: Scores) -> int:
    """Return the number of episodes of each seed, which must be one and the same."""
    if not scores:
        raise ValueError(f"the {side} scores have no seed; a comparison needs at least one.")
    first, expected = next((seed, len(values)) for seed, values in scores.items())
    for seed, values in scores.items():
        if len(values) != expected:
            raise ValueError(
                f"seed {seed} of the {side} scores has {counted(len(values), 'episode')}, but seed {first} has "
                f"{expected}; evaluate every seed with the same number of episodes."
            )
        broken = int((~np.isfinite(values)).sum())
        if broken:
            raise ValueError(
                f"seed {seed} of the {side} scores: {broken} of {expected} are NaN or infinite, so "
                "they have no mean; evaluate this seed again."
            )
    if not expected:
        raise ValueError(f"seed {first} of the {side} scores has no episodes; evaluate it first.")
    return expected


def _word_and_reason(
    judgement: Judgement, new: np.ndarray, recorded: np.ndarray, pairs: int, looks: int
) -> tuple[Word, str]:
    if judgement.same[0]:
        return "same", ""
    if judgement.not_consistent[0]:
        return "not consistent", ""
    if recorded.shape[1] < 2:
        return "unsettled", "the recording has one seed, which shows no spread"
    if np.ptp(recorded) <= ROUNDING:
        return "unsettled", "the recorded seeds all score the same, so nothing shows their spread"
    enough = can_reject(new.shape[1], recorded.shape[1], looks)
    if judgement.inside[0] and (pairs or enough):
        return "consistent", ""
    if enough:
        share = f"{100 * judgement.share[0]:z.0f} %"
        return "unsettled", f"{share} of permutations of the seeds differ as much"
    if new.shape[1] == 1:
        return "unsettled", "one new seed cannot show a difference, so run at least 3"
    return "unsettled", "the seeds are too few to confirm it by a permutation"


# Verdicts on runs.


def judged_numbers(new: Outcomes, recorded: Outcomes) -> tuple[dict[str, tuple[str, Scores, Scores]], list[str]]:
    """Return what verdicts compare beside returns, and the metrics that only one of both sides has.

    By metric it is a number's name with its unit, and its values in new and in recorded runs.
    """
    numbers: dict[str, tuple[str, Scores, Scores]] = {}
    alone = []
    for name, metric in METRICS.items():
        of_new, of_recorded = (
            {
                seed: judged
                for seed, run in side.items()
                if name in run.metrics and (judged := metric.judge(run)) is not None
            }
            for side in (new, recorded)
        )
        if of_recorded and (len(of_new), len(of_recorded)) == (len(new), len(recorded)):
            unit = next(iter(of_recorded.values()))[0]
            here, there = ({seed: values for seed, (_, values) in side.items()} for side in (of_new, of_recorded))
            numbers[name] = unit, here, there
        elif of_new or of_recorded:
            alone.append(name)
    return numbers, alone


def recorded_outcomes(baseline: Baseline) -> dict[int, EpisodeOutcomes]:
    """Return what came of the episodes of a recorded baseline, by training seed."""
    return {
        int(seed): EpisodeOutcomes(
            returns=np.array(returns, float),
            metrics=of_fields({"metrics": {m: by[seed] for m, by in baseline.metrics.items()}}),
            dataset=baseline.dataset,
            settings=baseline.config,
        )
        for seed, returns in baseline.returns.items()
    }


def compare_runs(
    new: Outcomes,
    recorded: Outcomes,
    normalize: Callable[[np.ndarray], np.ndarray],
    *,
    same_run: bool = True,
    same_code: bool = False,
    **how: Any,
) -> Verdict:
    """Return the verdict on new runs against recorded ones, by training seed: of all numbers that count, the weakest.

    Beside the normalized return these are the numbers that metrics give to verdicts: cost, success, hypervolume. One
    that was counted on one side only is said to be so. With `same_code`, code and versions and the kind of processor
    are those of the recording, which gives equal bits: others contradict it. `how` is passed on to `compare`,
    which also has the errors.
    """
    scores = [{seed: normalize(run.returns) for seed, run in side.items()} for side in (new, recorded)]
    episodes = min((len(run.returns) for run in (*new.values(), *recorded.values())), default=0)
    new, recorded = ({seed: run.first(episodes) for seed, run in side.items()} for side in (new, recorded))
    numbers, alone = judged_numbers(new, recorded)
    common = [seed for seed in new if seed in recorded]
    equal = [seed for seed in common if np.array_equal(new[seed].returns, recorded[seed].returns)]
    same_bits = [
        seed for seed in equal if all(np.array_equal(here[seed], there[seed]) for _, here, there in numbers.values())
    ]
    differing = [seed for seed in common if seed not in same_bits]
    how["numbers"] = 1 + len(numbers)
    verdict = compare(*scores, same_run=same_run and not differing, **how)
    beside = dict.fromkeys(alone, NOT_RECORDED)
    if same_run and same_code and differing:
        why = (
            f"seed {differing[0]} gives other numbers with the stated code and versions on the stated kind of "
            "processor, where they are equal to the bit"
        )
        return dataclasses.replace(verdict, word="contradicted", reason=why, beside=beside, **_WITHOUT_STATISTICS)
    if verdict.word == "identical":
        return dataclasses.replace(verdict, beside=beside)
    verdicts = {"return": verdict}
    for name, (unit, here, there) in numbers.items():
        beside_it = dataclasses.replace(compare(here, there, same_run=False, **how), of=unit)
        means = [values.mean() for values in there.values()]
        apart = {seed: float(here[seed].mean() - there[seed].mean()) for seed in equal}
        most = max(apart, key=lambda seed: abs(apart[seed]), default=0)
        if apart and abs(apart[most]) > MARGIN and np.ptp(new[most].returns) > 0:
            why = f"the returns of seed {most} are equal to the bit, but its {name} differs"
            verdicts[name] = dataclasses.replace(
                beside_it, word="not consistent", difference=apart[most], reason=why, **_WITHOUT_STATISTICS
            )
        elif np.ptp(means) <= ROUNDING and abs(beside_it.difference) <= MARGIN:
            beside[name] = NO_SPREAD
        else:
            verdicts[name] = beside_it
    weakest = max(verdicts, key=lambda name: _WEAKER.index(verdicts[name].word))
    words = {name: str(verdict.word) for name, verdict in verdicts.items() if name != weakest}
    return dataclasses.replace(verdicts[weakest], beside={**words, **beside})


# The statistics of steps 2 and 3, for many comparisons at once.


class Judgement(NamedTuple):
    """Steps 2 and 3 for many comparisons at once; every array has one element for each."""

    same: Bool[np.ndarray, " draws"]  # the interval of the difference lies within the margin
    not_consistent: Bool[np.ndarray, " draws"]  # no plausible mean, or pairs beyond the margin
    inside: Bool[np.ndarray, " draws"]  # the new mean lies inside the prediction interval
    difference: Float[np.ndarray, " draws"]  # new minus recorded mean; over the pairs if there are
    low: Float[np.ndarray, " draws"]  # ends of the interval of the difference; NaN if there is none
    high: Float[np.ndarray, " draws"]
    grouped: Bool[np.ndarray, " draws"]  # the recorded scores fall into two groups
    half: Float[np.ndarray, " draws"]  # half the width of the prediction interval; NaN if none
    share: Float[np.ndarray, " draws"]  # of permutations that differ as much; 1 if not looked at


def judge(
    new: Float[np.ndarray, "draws new"],
    recorded: Float[np.ndarray, "draws recorded"],
    *,
    pairs: int = 0,
    looks: int = 1,
) -> Judgement:
    """Return steps 2 and 3 for many comparisons of mean scores of seeds.

    The first `pairs` columns of both have the same training seed and are paired. A difference of
    `MARGIN` points counts as none. Each comparison is made `looks` times while seeds are added.
    """
    count, others = new.shape[1], recorded.shape[1]
    difference = new.mean(1) - recorded.mean(1)
    half = np.full(len(new), np.nan)
    if others >= 2:
        spread = recorded.std(1, ddof=1)
        spread[np.ptp(recorded, axis=1) <= ROUNDING] = 0
        half = _prediction_half(spread, count, others, looks)
    # Without spread any rounding would lie outside: then only more than the margin counts.
    inside = ~(np.abs(difference) > np.where(half > 0, half, MARGIN))
    grouped, cut = _groups(recorded)
    if pairs:
        difference = (new[:, :pairs] - recorded[:, :pairs]).mean(1)
        low, high = _paired_interval(new[:, :pairs], recorded[:, :pairs], looks)
        if grouped.any():
            low[grouped], high[grouped] = _grouped_interval(new[grouped], recorded[grouped], cut[grouped], pairs, looks)
    else:
        low, high = _unpaired_interval(new, recorded, looks)
        low[grouped], high[grouped] = np.nan, np.nan
    same = (low > -MARGIN) & (high < MARGIN)
    if 0 < pairs < count:  # the new seeds without a pair count as well: they may have failed
        same &= inside
    share = np.ones(len(new))
    doubtful = ~inside & ~same
    if doubtful.any() and can_reject(count, others, looks):
        share[doubtful] = _permutation_share(new[doubtful], recorded[doubtful])
    beyond = ((low > MARGIN) | (high < -MARGIN)) & ~grouped & (pairs > 0)
    return Judgement(
        same=same,
        not_consistent=~same & (beyond | (~inside & (share <= ERROR / looks))),
        inside=inside,
        difference=difference,
        low=low,
        high=high,
        grouped=grouped,
        half=half,
        share=share,
    )


def _prediction_half(spread: Any, new: int, recorded: int, looks: int) -> Any:
    """Return half the width of the interval in which recorded seeds of a spread predict the mean of new ones."""
    unit = math.sqrt(1 / new + 1 / recorded)
    return _t(1 - ERROR / looks / 2, recorded - 1) * spread * unit


def look_counts(start: int, most: int) -> list[int]:
    """Return the numbers of seeds at which to look, fixed before any score is seen.

    Each is twice the one before, so that few looks share the error rate.
    """
    counts = [start]
    while counts[-1] < most:
        counts.append(min(2 * counts[-1], most))
    return counts


def _groups(recorded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def _paired_interval(new: np.ndarray, recorded: np.ndarray, looks: int) -> _Ends:
    """Return the t interval of the mean difference of pairs, a point where they all differ equally.

    It is NaN where the recorded scores are all the same too: that nobody reaches the goal shows nothing.
    """
    pairs = new.shape[1]
    differences = new - recorded
    half = _interval_t(pairs - 1, looks) * differences.std(1, ddof=1)
    half = np.where(np.ptp(differences, axis=1) > ROUNDING, half / math.sqrt(pairs), 0)
    half = np.where((half == 0) & (np.ptp(recorded, axis=1) <= ROUNDING), np.nan, half)
    middle = differences.mean(1)
    return middle - half, middle + half


def _unpaired_interval(new: np.ndarray, recorded: np.ndarray, looks: int) -> _Ends:
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
    half = np.where(error > 0, _interval_t(fewer - 1, looks) * error, np.nan)
    middle = new.mean(1) - recorded.mean(1)
    return middle - half, middle + half


def _grouped_interval(new: np.ndarray, recorded: np.ndarray, cut: np.ndarray, pairs: int, looks: int) -> _Ends:
    """Return the interval of the mean difference of pairs whose scores fall into two groups.

    A pair that changed groups counts by the exact bound on the share of such pairs, times the
    range of all scores; the others by their t interval.
    """
    distance = np.ptp(np.concatenate([new, recorded], axis=1), axis=1)
    new, recorded, cut = new[:, :pairs], recorded[:, :pairs], cut[:, None]
    up = ((recorded < cut) & (new > cut)).sum(1)
    down = ((recorded > cut) & (new < cut)).sum(1)
    stays = (recorded < cut) == (new < cut)
    count = stays.sum(1)
    differences = np.where(stays, new - recorded, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = differences.sum(1) / count
        variance = (np.where(stays, differences - middle[:, None], 0) ** 2).sum(1) / (count - 1)
        half = _interval_t(count - 1, looks) * np.sqrt(variance / count)
    half = np.where((count > 1) & (variance > ROUNDING**2), half, np.nan)
    least = _most_probable(down, pairs, looks) * distance
    most = _most_probable(up, pairs, looks) * distance
    return np.minimum(middle - half, 0) - least, np.maximum(middle + half, 0) + most


def _most_probable(happened: np.ndarray, of: int, looks: int) -> np.ndarray:
    """Return the upper end of the exact 97.5 % interval of a probability (Clopper and Pearson)."""
    from scipy.special import betaincinv

    bound = betaincinv(happened + 1, np.maximum(of - happened, 1), 1 - ERROR / 2 / looks)
    return np.where(happened == of, 1.0, bound)


def _t(probability: float, freedom: float | np.ndarray) -> np.ndarray:
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, probability))


def _interval_t(freedom: float | np.ndarray, looks: int) -> np.ndarray:
    """Return how many standard errors of the difference its interval reaches to each side."""
    return _t(1 - INTERVAL_ERROR / looks / 2, freedom)


def can_reject(new: int, recorded: int, looks: int) -> bool:
    """Whether there are enough permutations that the most extreme one is below the error rate."""
    both_ways = 2 if new == recorded else 1  # exchanging the sides gives the same difference
    return both_ways / math.comb(new + recorded, new) <= ERROR / looks


def usual_seeds(recorded: int, numbers: int = 1) -> int:
    """Return how many new seeds to train by default: 3, or the fewest that can reject where such a number is small.

    `numbers` of the runs are compared, which share the error rate.
    """
    return next((count for count in range(3, 8) if can_reject(count, recorded, numbers)), 3)


def _permutation_share(new: np.ndarray, recorded: np.ndarray) -> np.ndarray:
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
        apart = np.abs(inside / count - (sums[part] - inside) / (total - count))
        least = observed[part] - ROUNDING * scale[part]
        at_least[part] = (apart >= least[:, None]).sum(1)
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


def noticed_difference(new: int, recorded: Float[np.ndarray, " recorded"], *, looks: int = 1) -> float | None:
    """Return the smallest difference that is called not consistent with 80 % probability.

    It is the one that the prediction interval notices with 82 %, at the error rate that permutations
    of so many seeds can have: what remains after a permutation has agreed is 80 % (measured for
    normal scores in `tests/normalize/test_verdicts.py`). None if there are too few seeds.
    """
    others = len(recorded)
    if others < 2 or np.ptp(recorded) <= ROUNDING or not can_reject(new, others, looks):
        return None
    from scipy.special import ndtr

    number = math.comb(new + others, new)
    level = math.floor(ERROR / looks * number) / number
    bounds = _t(1 - level / 2, others - 1).item() * _spreads(others - 1)
    low, high = 0.0, 2.0 * float(bounds.max()) + 10
    for _ in range(60):  # how many standard errors exceed the bound with that probability
        middle = (low + high) / 2
        reached = float((ndtr(middle - bounds) + ndtr(-middle - bounds)).mean())
        low, high = (middle, high) if reached < POWER + 0.02 else (low, middle)
    return math.sqrt(1 / new + 1 / others) * float(recorded.std(ddof=1)) * high


def unseen_share(seeds: int, *, looks: int = 1) -> float:
    """Return the largest share of seeds that may do what none of so many did, a bound at 95 %.

    It is the exact form of the rule of three, by which the bound is about 3 / seeds.
    """
    return 1.0 - math.pow(ERROR / looks, 1 / seeds)


@functools.lru_cache(maxsize=2048)
def _spreads(freedom: int) -> Float[np.ndarray, " quantiles"]:
    """Return equally probable standard deviations of a normal sample, in units of the true one."""
    from scipy.special import chdtri

    quantiles = (np.arange(400) + 0.5) / 400
    return np.asarray(np.sqrt(chdtri(freedom, quantiles) / freedom))


def seeds_to_settle(
    new: Float[np.ndarray, " new"], recorded: Float[np.ndarray, " recorded"], *, common: int, looks: int = 1
) -> int | None:
    """Return how many further seeds settle a comparison, or None if no number does.

    Settled is same or not consistent, with 80 % probability if the difference and the spread stay as
    they are. If some of the seeds are in common, which stand first, further ones are too while the recording has them.
    """
    pairs = pairs_used(common, len(new))
    for more in range(1, MOST_SEEDS + 1):
        total = len(new) + more
        paired = pairs_used(min(common + more, len(recorded)), total) if common else 0
        if _chance_of_settling(new, recorded, total, pairs, paired, looks) >= POWER:
            return more
    return None


def _chance_of_settling(
    new: np.ndarray, recorded: np.ndarray, total: int, pairs: int, in_common: int, looks: int
) -> float:
    """Return the larger of the chances that `total` new seeds end in same and in not consistent."""
    from scipy.special import ndtr

    others = len(recorded)
    spread = float(recorded.std(ddof=1)) if others > 1 else 0.0
    away = abs(float(new.mean() - recorded.mean()))
    beyond = 0.0
    if others > 1 and np.ptp(recorded) > ROUNDING and can_reject(total, others, looks):
        half = float(_prediction_half(spread, total, others, looks))
        beyond = float(ndtr((away - half) / (spread / math.sqrt(total))))
    (is_grouped,), (cut,) = _groups(recorded[None])
    if in_common and pairs:
        here, there = new[:pairs], recorded[:pairs]
        if is_grouped:
            distance = float(np.ptp(np.concatenate([new, recorded])))
            return max(beyond, _grouped_chance(here, there, cut, distance, in_common, looks))
        error = float((here - there).std(ddof=1)) / math.sqrt(in_common)
        away, freedom = abs(float((here - there).mean())), in_common - 1
    elif in_common or is_grouped or min(total, others) < 2:
        return beyond
    else:
        spread_new = float(new.std(ddof=1)) if len(new) > 1 else spread
        error = math.hypot(spread_new / math.sqrt(total), spread / math.sqrt(others))
        freedom = min(total, others) - 1
    if error <= ROUNDING:
        return beyond
    halves = _interval_t(freedom, looks) * error * _spreads(freedom)
    chance = ndtr((MARGIN - halves - away) / error) - ndtr((halves - MARGIN - away) / error)
    apart = ndtr((away - MARGIN - halves) / error) if in_common else np.zeros(1)
    return max(beyond, float(np.maximum(chance, 0).mean()), float(apart.mean()))


def _grouped_chance(
    new: np.ndarray, recorded: np.ndarray, cut: float, distance: float, in_common: int, looks: int
) -> float:
    """Return 1 if no further pair that changes groups ends in same, and 0 otherwise."""
    stays = (new < cut) == (recorded < cut)
    changed = np.array([((new > cut) & ~stays).sum(), ((new < cut) & ~stays).sum()])
    if stays.sum() < 2:
        return 0.0
    differences = (new - recorded)[stays]
    half = float(_interval_t(in_common - 1, looks)) * differences.std(ddof=1)
    within = abs(float(differences.mean())) + half / math.sqrt(in_common)
    bound = float(_most_probable(changed, in_common, looks).max()) * distance
    return float(within + bound < MARGIN)


def pairs_used(common: int, new: int) -> int:
    """Return how many seeds to pair, which is decided before any score is looked at.

    Seeds that are not in common are left out of the interval, so at least half must be.
    """
    return common if common >= 2 and 2 * common >= new else 0
