"""Statistics of scores over seeds, episodes and tasks, each with its interval.

Scores of a method on a task are an array [seeds, episodes]. Two things vary: how a seed trained, and how an
episode went. Means of runs over several tasks are an array [seeds, tasks], or [resamples, seeds, tasks] for
the resamples of a bootstrap; scores of different tasks must be normalized first.

    intervals     Student's t, Wilson's for shares, the bootstrap over seeds and their episodes
    aggregates    mean, median, interquartile mean, optimality gap
    comparisons   probability of improvement, performance profiles, mean ranks
    variance      which part is that of seeds, of checkpoints and of episodes
    everything    `compare_methods`
    sequential    which methods differ, with no more seeds than needed
    tuning        what a method gives after a choice of its settings by few evaluations

Aggregates, profiles, probabilities and the stratified bootstrap are those of Agarwal et al. 2021, "Deep
Reinforcement Learning at the Edge of the Statistical Precipice".
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from orlog.errors import needing
from orlog.manifests.documents import canonical_json
from orlog.manifests.names import counted

MethodScores: TypeAlias = Mapping[str, Mapping[str, np.ndarray]]  # by method and task, an array [seeds, episodes]
Interval: TypeAlias = tuple[float, float]
Runs: TypeAlias = Float[np.ndarray, "*resamples seeds tasks"]
Values: TypeAlias = Float[np.ndarray, "*resamples"]
LARGEST = 1e150  # scores must be smaller, so that their variance is a number
FEWEST_SEEDS = 3  # seeds that a method needs to be ranked
# Episodes of each seed that it needs where no other number was recorded, if another method has so many.
USUAL_EPISODES = 100
# Percent of 95 % intervals that hold the mean, by number of seeds (`benchmarks/intervals.py`).
BOOTSTRAP_COVERAGE = {2: 64, 3: 78, 5: 85, 8: 89}
# What to print where the interval is printed.
BOOTSTRAP_NOTE = (
    "Bootstrap intervals of few seeds are too narrow: they should hold the mean in 95 % of cases, and do in "
    + ", ".join(f"{share} % with {seeds} seeds" for seeds, share in BOOTSTRAP_COVERAGE.items())
    + ": docs/scores.md#statistics."
)
EXPLORATION = 2.0  # weight of the bandit's exploration, as in unifloral: for scores where 100 is the expert's
MOST_EVALUATIONS = 10**8  # most evaluations of all trials together, whose scores are kept in memory
POLICIES = 8  # policies that a user trains, as in unifloral's plots: each trial of the bandit draws so many
_MOST_DRAWN = 2_000_000  # numbers drawn at once: 16 MB
_NORMAL = 1.959963984540054  # the 97.5 % quantile
Decision = Literal["above", "below", "not told apart", "needs seeds"]
_DECISIONS: Mapping[str, Decision] = {
    "larger": "above",
    "smaller": "below",
    "equal": "not told apart",
    "continue": "needs seeds",
}
# Checks.


def check_finite(scores: Float[np.ndarray, "*shape"], what: str = "scores") -> None:
    """Refuse scores that are not all finite, or whose squares would not be."""
    wrong = ~(np.abs(np.atleast_1d(scores)) < LARGEST)
    if wrong.any():
        place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        raise ValueError(
            f"{what}: {np.atleast_1d(scores)[place]} at position {', '.join(map(str, place))}; "
            "statistics need finite scores: evaluate that run again, or leave it out."
        )


def check_method_scores(scores: MethodScores) -> None:
    """Refuse scores that cannot be compared over tasks."""
    if not scores:
        raise ValueError("there is no method to compare.")
    first, tasks = next((method, set(of_tasks)) for method, of_tasks in scores.items())
    for method, of_tasks in scores.items():
        if not of_tasks:
            raise ValueError(f"{method} has no task.")
        if differing := sorted(tasks ^ set(of_tasks)):
            lacking, having = (first, method) if differing[0] in of_tasks else (method, first)
            raise ValueError(
                f"{having} has scores on {differing[0]}, {lacking} has none; compare methods on the same tasks."
            )
        seeds = {task: len(of_seeds) for task, of_seeds in of_tasks.items()}
        least, most = min(seeds, key=seeds.__getitem__), max(seeds, key=seeds.__getitem__)
        if seeds[least] != seeds[most]:
            raise ValueError(
                f"{method} has {seeds[most]} seeds on {most} and {seeds[least]} on {least}; take as "
                "many on each task, so that each counts the same."
            )
        for task, of_seeds in of_tasks.items():
            if of_seeds.ndim != 2 or not of_seeds.size:
                raise ValueError(
                    f"{method} on {task}: scores must be an array [seeds, episodes] that is not "
                    f"empty, found shape {of_seeds.shape}."
                )
            check_finite(of_seeds, f"{method} on {task} [seed, episode]")


def unranked_methods(scores: MethodScores, episodes: Mapping[str, int | None]) -> dict[str, str]:
    """Return why methods are not ranked, by method: too few seeds, or fewer episodes than the protocol of a task has.

    `episodes` is the number of episodes of a seed in the recorded protocol of each task. Where none is known, the most that
    a method has count, at most `USUAL_EPISODES`: so nobody is ranked for the best 5 of 100.
    """
    reasons = {}
    for method, of_tasks in scores.items():
        for task, of_seeds in of_tasks.items():
            most = max(other[task].shape[1] for other in scores.values() if task in other)
            needed = episodes.get(task) or min(USUAL_EPISODES, most)
            if len(of_seeds) < FEWEST_SEEDS:
                reasons[method] = f"{len(of_seeds)} of at least {counted(FEWEST_SEEDS, 'seed')}"
            elif of_seeds.shape[1] < needed:
                reasons[method] = f"{of_seeds.shape[1]} of {counted(needed, 'episode')} of each seed"
    return reasons


def equal_methods(scores: MethodScores) -> dict[str, str]:
    """Return which methods have a seed whose scores another method before them has too, to the bit.

    By the name of the later method, that of the first one. Seeds that score the same in all episodes show nothing.
    """
    owners: dict[tuple[str, bytes], str] = {}
    copies: dict[str, str] = {}
    for method, of_tasks in scores.items():
        for task, of_seeds in of_tasks.items():
            for seed in of_seeds:
                if len(seed) > 1 and np.ptp(seed) > 0:
                    owner = owners.setdefault((task, seed.tobytes()), method)
                    if owner != method:
                        copies.setdefault(method, owner)
    return copies


# Intervals.


def mean_interval(values: Float[np.ndarray, " values"]) -> Interval | None:
    """Return the interval of the mean at 95 % by Student's t; None without spread."""
    if len(values) < 2 or np.ptp(values) == 0:
        return None
    count, mean = len(values), float(values.mean())
    half = _student(count) * float(values.std(ddof=1)) / count**0.5
    return mean - half, mean + half


def wilson_interval(share: float, episodes: float) -> Interval:
    """Return the interval of a share at 95 % (Wilson 1927); it has a width where all or none count, too."""
    square = _NORMAL**2
    middle = (share + square / (2 * episodes)) / (1 + square / episodes)
    spread = share * (1 - share) / episodes + square / (4 * episodes**2)
    half = _NORMAL * spread**0.5 / (1 + square / episodes)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))  # rounding


def share_interval(shares: Sequence[float], episodes: int) -> Interval:
    """Return the interval at 95 % of the mean of the shares of runs, which have so many episodes together.

    Of one run it is Wilson's over its episodes, and says nothing about other seeds. The episodes of several
    runs are no independent draws of the method, so that Wilson's rule is given their effective number: as many
    as would make the mean as uncertain as the runs lie apart, at most all of them, with the quantile of
    Student's t for so many runs in place of the normal one (after Korn and Graubard 1998, "Confidence intervals
    for proportions with small expected number of positive counts estimated from survey data").
    """
    share, effective = float(np.mean(shares)), float(episodes)
    if len(shares) > 1:
        if np.ptp(shares) > 0:
            variance = float(np.var(shares, ddof=1)) / len(shares)
            effective = min(effective, share * (1 - share) / variance)
        effective *= (_NORMAL / _student(len(shares))) ** 2
    return wilson_interval(share, effective)


def score_interval(scores: Sequence[Float[np.ndarray, " episodes"]]) -> Interval | None:
    """Return the interval at 95 % of the mean score of runs, each given by its episodes.

    It is over the episodes of one run, or over several runs: of shares (`share_interval`) where every episode
    scores 0 or 100, else by Student's t. None without spread.
    """
    means = [float(run.mean()) for run in scores]
    if _are_shares(scores):
        low, high = share_interval([mean / 100 for mean in means], sum(map(len, scores)))
        return 100 * low, 100 * high
    return mean_interval(np.array(means) if len(scores) > 1 else np.asarray(scores[0], float))


def _are_shares(scores: Iterable[np.ndarray]) -> bool:
    """Return whether episodes score 0 or 100, and both occur: equal scores may be no successes."""
    return {*np.unique(np.concatenate([*scores])).tolist()} == {0.0, 100.0}


def _student(count: int) -> float:
    from scipy.special import stdtrit  # scipy.stats imports slowly

    return float(stdtrit(count - 1, 0.975))


def bootstrap_interval(
    scores: Float[np.ndarray, "seeds episodes"],
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> Interval | None:
    """Return the percentile interval of the mean over seeds and episodes.

    None where the scores show no spread: an interval without width would claim to be certain. With
    few seeds it is too narrow (`BOOTSTRAP_COVERAGE`): three can show hardly more than their range. Of shares,
    where every episode scores 0 or 100, it is that of `score_interval`.
    """
    if np.ptp(scores) == 0:
        return None
    if _are_shares(scores):
        return score_interval([*scores])
    seeds, episodes = scores.shape
    means = np.empty(resamples)
    for index in range(resamples):
        chosen = rng.integers(seeds, size=(seeds, 1))
        which = rng.integers(episodes, size=(seeds, episodes))
        means[index] = scores[chosen, which].mean()
    outside = (1 - confidence) / 2
    low, high = np.quantile(means, [outside, 1 - outside])
    return (float(low), float(high)) if low < high else None


def stratified_resamples(
    scores: Sequence[Float[np.ndarray, "seeds episodes"]], rng: np.random.Generator, *, resamples: int
) -> Float[np.ndarray, "resamples seeds tasks"]:
    """Return the mean score of each run in bootstrap resamples of a method's scores by task.

    Each task draws seeds with replacement, and each drawn seed its episodes. With one episode for
    each seed, such as a mean that others published, only seeds are drawn, as rliable does.
    """
    seeds = len(scores[0])
    means = np.empty((resamples, seeds, len(scores)))
    for task, of_seeds in enumerate(scores):
        episodes = of_seeds.shape[1]
        at_once = max(1, _MOST_DRAWN // (seeds * episodes))
        for start in range(0, resamples, at_once):
            size = (min(at_once, resamples - start), seeds)
            chosen = rng.integers(seeds, size=size)
            which = rng.integers(episodes, size=(*size, episodes))
            means[start : start + at_once, :, task] = of_seeds[chosen[..., None], which].mean(-1)
    return means


def percentile_interval(
    values: Float[np.ndarray, "resamples ..."], confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends between which the middle of a statistic's resampled values lies."""
    outside = (1 - confidence) / 2
    low, high = np.quantile(values, [outside, 1 - outside], axis=0)
    return np.asarray(low), np.asarray(high)


# Aggregates.


def mean(scores: Runs) -> Values:
    """Return the mean over all runs; one task with extreme scores can decide it."""
    return np.asarray(scores.mean((-2, -1)))


def median(scores: Runs) -> Values:
    """Return the median over tasks of the mean over seeds; half of the tasks do not count in it."""
    return np.asarray(np.median(scores.mean(-2), -1))


def interquartile_mean(scores: Runs) -> Values:
    """Return the mean of the middle half of all runs: those between the quartiles."""
    runs = scores.reshape(*scores.shape[:-2], -1)
    count = runs.shape[-1]
    low, high = count // 4, count - count // 4
    return np.asarray(np.partition(runs, (low, high - 1), -1)[..., low:high].mean(-1))


def optimality_gap(scores: Runs) -> Values:
    """Return by how much runs miss a score of 100 on average; what lies above it does not count."""
    return np.asarray(100.0 - np.minimum(scores, 100.0).mean((-2, -1)))


# Each aggregate by its name; of the optimality gap less is better.
AGGREGATES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "IQM": interquartile_mean,
    "median": median,
    "mean": mean,
    "optimality gap": optimality_gap,
}
# Comparisons.


def probability_of_improvement(first: Runs, second: Float[np.ndarray, "*resamples others tasks"]) -> Values:
    """Return the probability that the first method's run scores above the second's, over all tasks.

    On each task it is the share of pairs of runs in which the first is above, where equal scores
    count half: the statistic of Mann and Whitney (1947) over the number of pairs.
    """
    difference = first[..., :, None, :] - second[..., None, :, :]
    return np.asarray((np.sign(difference).mean((-3, -2, -1)) + 1) / 2)


def performance_profile(
    scores: Runs, thresholds: Float[np.ndarray, " thresholds"]
) -> Float[np.ndarray, "*resamples thresholds"]:
    """Return the share of runs, over all seeds and tasks, with a score above each threshold."""
    runs = np.sort(scores.reshape(-1, scores.shape[-2] * scores.shape[-1]), axis=-1)
    above = [1 - np.searchsorted(run, thresholds, side="right") / len(run) for run in runs]
    return np.array(above).reshape(*scores.shape[:-2], len(thresholds))


def profile_thresholds(*scores: Float[np.ndarray, "seeds tasks"], count: int = 201) -> Float[np.ndarray, " thresholds"]:
    """Return evenly spaced thresholds from the lowest to the highest score, with 0 in any case."""
    low = min(0.0, *(float(runs.min()) for runs in scores))
    high = max(0.0, *(float(runs.max()) for runs in scores))
    return np.linspace(low, high, count)


def mean_ranks(scores: Float[np.ndarray, "*resamples methods tasks"]) -> Float[np.ndarray, "*resamples methods"]:
    """Return each method's rank, averaged over tasks; 1 is best, and equal scores share their ranks."""
    ranks = np.empty(scores.shape)
    for index in range(scores.shape[-2]):
        own = scores[..., index : index + 1, :]
        # Those above, and half of those that are equal, of which it is one itself.
        ranks[..., index, :] = (scores > own).sum(-2) + ((scores == own).sum(-2) + 1) / 2
    return np.asarray(ranks.mean(-1))


# Variance.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VarianceSplit:
    """Variances of a score by where they come from."""

    seeds: float  # of training seeds
    checkpoints: float | None  # of the checkpoints within a run; None if there is only one
    episodes: float  # of the episodes of a policy

    def shares(self) -> dict[str, float]:
        """Return the share of each source in the variance of one episode's score, in percent."""
        known = dataclasses.asdict(self).items()
        parts = {name: value for name, value in known if value is not None}
        total = sum(parts.values())
        return {name: 100 * value / total if total else 0.0 for name, value in parts.items()}


def split_variance(scores: Float[np.ndarray, "seeds checkpoints episodes"]) -> VarianceSplit:
    """Return how much of the variance of scores comes from seeds, checkpoints and episodes.

    Where episode i starts from the same state in every run, as in orlog's evaluations, what the
    states have in common counts as variance of episodes, and that of seeds is estimated too low by
    at most the variance of episodes over their number.
    """
    seeds, checkpoints, episodes = scores.shape
    if seeds < 2 or episodes < 2:
        raise ValueError(
            f"splitting the variance needs at least two seeds and two episodes of each, found {seeds} and {episodes}."
        )
    check_finite(scores)
    of_seeds = float(scores.mean((1, 2)).var(ddof=1))
    within = float(scores.var(2, ddof=1).mean())
    if checkpoints == 1:
        between = max(0.0, of_seeds - within / episodes)
        return VarianceSplit(seeds=between, checkpoints=None, episodes=within)
    middle = float(scores.mean(2).var(1, ddof=1).mean())
    return VarianceSplit(
        seeds=max(0.0, of_seeds - middle / checkpoints),
        checkpoints=max(0.0, middle - within / episodes),
        episodes=within,
    )


# Everything together.


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic with its 95 % interval, which is None if the scores cannot show one."""

    value: float  # the statistic
    interval: Interval | None  # its interval
    # Digits after the point that its text has: 1 for scores, 2 for probabilities and ranks.
    digits: int = dataclasses.field(default=1, compare=False)

    def __str__(self) -> str:
        """Return the value with its interval."""
        form = f"z.{self.digits}f"
        if self.interval is None:
            return f"{self.value:{form}}"
        low, high = self.interval
        return f"{self.value:{form}} ({low:{form}} to {high:{form}})"

    def to_json(self) -> dict[str, Any]:
        """Return value and interval as JSON."""
        return {"value": self.value, "interval": self.interval}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A performance profile: the share of runs above each threshold, with its 95 % band."""

    thresholds: np.ndarray
    shares: np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Several methods on the same tasks.

    Attributes:
        tasks: Names of the tasks.
        runs: By method, the mean score of each run [seeds, tasks].
        aggregates: By method and name of the aggregate.
        ranks: Mean rank over tasks of each method that is ranked, 1 being best; empty for one method.
        improvement: For each ordered pair of methods, the probability that the first is above.
        profiles: Performance profile of each method.
        variances: By method and task; None where a method has one seed or one episode.
    """

    tasks: list[str]
    runs: dict[str, np.ndarray]
    aggregates: dict[str, dict[str, Estimate]]
    ranks: dict[str, Estimate]
    improvement: dict[tuple[str, str], Estimate]
    profiles: dict[str, Profile]
    variances: dict[str, dict[str, VarianceSplit | None]]

    @property
    def methods(self) -> list[str]:
        """Names of the methods."""
        return list(self.runs)

    def ranking(self) -> list[str]:
        """Return the methods by their mean rank, the best first, and those that are not ranked last."""
        ranks = {method: estimate.value for method, estimate in self.ranks.items()}
        return sorted(self.methods, key=lambda method: ranks.get(method, np.inf))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "tasks": self.tasks,
            "methods": [self._method_json(method) for method in self.methods],
            "improvement": [
                {"above": first, "below": second, **estimate.to_json()}
                for (first, second), estimate in self.improvement.items()
            ],
        }

    def _method_json(self, method: str) -> dict[str, Any]:
        runs, profile = self.runs[method], self.profiles[method]
        aggregates, variances = self.aggregates[method], self.variances[method]
        return {
            "method": method,
            "seeds": len(runs),
            "scores": dict(zip(self.tasks, runs.T.tolist(), strict=True)),
            "aggregates": {name: estimate.to_json() for name, estimate in aggregates.items()},
            "mean_rank": self.ranks[method].to_json() if method in self.ranks else None,
            "profile": {name: getattr(profile, name).tolist() for name in ("thresholds", "shares")},
            "variance": {task: split and dataclasses.asdict(split) for task, split in variances.items()},
        }


def compare_methods(
    scores: MethodScores,
    rng: np.random.Generator,
    *,
    resamples: int = 2000,
    aggregates: Sequence[str] = tuple(AGGREGATES),
    checkpoints: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    unranked: Collection[str] = (),
) -> Comparison:
    """Return every statistic of methods on the same tasks, with intervals from one bootstrap of each method.

    Args:
        scores: By method and task, an array [seeds, episodes]; normalized where there are several
            tasks.
        rng: Draws the resamples.
        resamples: Resamples of each method.
        aggregates: Which of `AGGREGATES`; the optimality gap is of normalized scores only.
        checkpoints: By method and task, scores [seeds, checkpoints, episodes] of the last checkpoints,
            from which variances are split; by default `scores`, which are of one checkpoint.
        unranked: Methods that get no rank (`unranked_methods`).

    Raises:
        ValueError: scores cannot be compared (`check_method_scores`).
    """
    check_method_scores(scores)
    tasks = list(next(iter(scores.values())))
    of_tasks = {method: [by_task[task] for task in tasks] for method, by_task in scores.items()}
    runs = {method: np.stack([of_seeds.mean(1) for of_seeds in some], axis=1) for method, some in of_tasks.items()}

    drawn = {
        method: stratified_resamples(by_task, rng, resamples=resamples)
        for method, by_task in of_tasks.items()
        if len(runs[method]) > 1
    }

    def estimate(statistic: Callable[..., np.ndarray], *methods: str, digits: int = 1) -> list[Estimate]:
        values = np.atleast_1d(statistic(*(runs[method] for method in methods))).tolist()
        if not drawn.keys() >= set(methods):
            return [Estimate(value, None, digits) for value in values]
        resampled = statistic(*(drawn[method] for method in methods)).reshape(resamples, -1)
        ends = percentile_interval(resampled)
        return [
            Estimate(value, (low, high) if low < high else None, digits)
            for value, low, high in zip(values, *(end.tolist() for end in ends), strict=True)
        ]

    def ranks(*methods: np.ndarray) -> np.ndarray:
        return mean_ranks(np.stack([of_method.mean(-2) for of_method in methods], axis=-2))

    def variance(of_seeds: np.ndarray) -> VarianceSplit | None:
        seeds, _, episodes = of_seeds.shape
        return None if min(seeds, episodes) < 2 else split_variance(of_seeds)

    ranked = [method for method in runs if method not in unranked]
    several = len(ranked) > 1
    thresholds = profile_thresholds(*runs.values())
    return Comparison(
        tasks=tasks,
        runs=runs,
        aggregates={method: {name: estimate(AGGREGATES[name], method)[0] for name in aggregates} for method in runs},
        ranks=dict(zip(ranked, estimate(ranks, *ranked, digits=2), strict=True)) if several else {},
        improvement={
            pair: estimate(probability_of_improvement, *pair, digits=2)[0] for pair in itertools.permutations(runs, 2)
        },
        profiles={
            method: Profile(
                thresholds=thresholds,
                shares=performance_profile(of_method, thresholds),
                band=percentile_interval(performance_profile(drawn[method], thresholds)) if method in drawn else None,
            )
            for method, of_method in runs.items()
        },
        variances={
            method: {
                task: variance((checkpoints or {}).get(method, {}).get(task, by_task[task][:, None])) for task in tasks
            }
            for method, by_task in scores.items()
        },
    )


# Sequential comparisons.
#
# AdaStop (Mathieu et al. 2023, "AdaStop: adaptive statistical testing for sound comparisons of Deep RL agents") adds
# seeds in groups. After each group a permutation test decides which pairs of methods differ. It assumes no
# distribution, and bounds the probability that any of its decisions, over all pairs and groups, calls two equal
# methods different.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SequentialComparison:
    """The decisions of a sequential comparison so far."""

    decisions: dict[tuple[str, str], Decision]  # whether the first of a pair scores above the second
    groups: int  # groups of seeds that were looked at
    missing: dict[str, int]  # seeds that a method lacks for the next group; empty when all is decided


def compare_sequentially(
    scores: Mapping[str, Float[np.ndarray, " seeds"]], *, group: int = 5, groups: int = 5, error_rate: float = 0.05
) -> SequentialComparison:
    """Return which methods differ, as far as their seeds decide it, and which need more seeds.

    Call it again with all scores, in the order in which seeds were run, when more seeds are there: equal
    scores give equal decisions. Group (seeds of each method), most groups and error rate must be chosen
    before the first look and stay as they are. The error rate bounds the probability that any decision calls
    equal methods different; pairs still undecided after all groups were not told apart.

    adastop 0.1.3 compares the size of a difference with the quantile of signed differences, so that it errs
    twice as often as it is asked to; it is therefore asked for half the error rate.
    """
    if len(scores) < 2 or group < 2 or groups < 1 or not 0 < error_rate < 1:
        raise ValueError(
            "a sequential comparison needs two methods, groups of at least two seeds and an error "
            f"rate between 0 and 1; found {len(scores)} methods, {groups} groups of {group} and "
            f"{error_rate}."
        )
    for method, of_seeds in scores.items():
        check_finite(of_seeds, method)
    test = _comparator()(n=group, K=groups, B=10_000, alpha=error_rate / 2, beta=0, seed=0)
    methods, done = list(scores), 0
    active, missing = set(methods), dict[str, int]()
    while active:
        needed = (done + 1) * group
        lacking = {name: needed - len(scores[name]) for name in methods if name in active}
        missing = {name: count for name, count in lacking.items() if count > 0}
        if missing:
            break
        test.partial_compare({name: scores[name][:needed] for name in methods}, verbose=False)
        done += 1
        open_pairs = () if test.is_finished else np.ravel(test.current_comparisons)
        active = {methods[index] for index in open_pairs}
    decisions_made = dict(test.decisions) if done else {}
    return SequentialComparison(
        decisions={
            (methods[first], methods[second]): _DECISIONS[
                decisions_made.get(str(np.array([first, second])), "continue")
            ]
            for first, second in itertools.combinations(range(len(methods)), 2)
        },
        groups=done,
        missing=missing,
    )


def _comparator() -> Any:
    with needing("a sequential comparison needs adastop", "adastop"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of text in its plots
        from adastop import MultipleAgentsComparator
    return MultipleAgentsComparator


# Tuning.
#
# A method is its code with the *range* of its settings, of which its user must choose one with few evaluations. Scores
# of the best setting alone say nothing of that choice. In `tuning_curves` a bandit chooses which policy to run for the
# next episode, and names the one that looks best so far (Jackson et al. 2025, "A Clean Slate for Offline Reinforcement
# Learning", with their code unifloral). `expected_online_performance` is the best of as many settings, each evaluated
# until its mean is known (Kurenkov and Kolesnikov 2022, "Showing Your Offline Reinforcement Learning Work: Online
# Evaluation Budget Matters").


def tuning_curves(
    scores: Float[np.ndarray, "policies episodes"],
    rng: np.random.Generator,
    *,
    evaluations: int = 200,
    policies: int = POLICIES,
    trials: int = 1000,
    exploration: float = EXPLORATION,
) -> Float[np.ndarray, "trials evaluations"]:
    """Return the mean score of the policy that a bandit names best after each evaluation.

    Each trial draws some of the policies without replacement (all if there are fewer). An evaluation draws
    one of a policy's episodes with replacement. Each policy is evaluated once, in random order, then that
    with the largest mean + sqrt(exploration ln(evaluations so far + 1) / its evaluations) (UCB; Auer et al.
    2002), `exploration` in squared units of the scores. As in
    EmptyJackson/unifloral@f2dc1278ea:evaluation.py, except that a policy without an evaluation is never named
    best; there its mean counts as 0.
    """
    check_finite(scores)
    if trials * evaluations > MOST_EVALUATIONS:
        raise ValueError(
            f"{trials:,} trials of {evaluations:,} evaluations are more than {MOST_EVALUATIONS:,} in all; choose fewer."
        )
    available, episodes = scores.shape
    arms = min(policies, available)
    rows = np.arange(trials)
    chosen = rng.permuted(np.tile(np.arange(available), (trials, 1)), axis=1)[:, :arms]
    true_means = scores.mean(1)[chosen]
    counts, totals = np.zeros((trials, arms)), np.zeros((trials, arms))
    curves = np.empty((trials, evaluations))
    for done in range(evaluations):
        if done < arms:
            arm = np.full(trials, done)  # the order of `chosen` is random
        else:
            bounds = totals / counts + np.sqrt(exploration * np.log(done + 1) / counts)
            arm = _largest(bounds, rng)
        totals[rows, arm] += scores[chosen[rows, arm], rng.integers(episodes, size=trials)]
        counts[rows, arm] += 1
        means = np.divide(totals, counts, out=np.full_like(totals, -np.inf), where=counts > 0)
        curves[:, done] = true_means[rows, means.argmax(1)]
    return curves


def _largest(values: Float[np.ndarray, "trials arms"], rng: np.random.Generator) -> np.ndarray:
    """Return the position of each row's largest value, at random among equals."""
    ties = values == values.max(1, keepdims=True)
    return np.asarray((ties * rng.random(values.shape)).argmax(1))


def expected_online_performance(scores: Float[np.ndarray, " settings"]) -> Float[np.ndarray, " settings"]:
    """Return the expected score of the best of 1, 2, .. settings, drawn at random with replacement.

    With N settings in order of their score, the best of n is at most the i-th with probability
    (i/N)^n, so that its expectation is the sum of score_i ((i/N)^n - ((i-1)/N)^n) (Dodge et al. 2019,
    whose estimate Kurenkov and Kolesnikov use). For n near N it is too low (Tang et al. 2020).
    """
    check_finite(scores)
    count = len(scores)
    budgets = np.arange(1, count + 1)[:, None]
    at_most = (np.arange(count + 1) / count) ** budgets
    return np.asarray(np.diff(at_most, axis=1) @ np.sort(scores))


def method_digest(method: str, settings: Sequence[dict[str, Any]], **others: object) -> str:
    """Return the identity of a method with the range of its settings, as `sha256:` and hex.

    It is the SHA-256 of the canonical JSON of the method's name, of the different settings in
    whatever order they are given, and of what else belongs to the method, such as its code's version.
    """
    distinct = {canonical_json(chosen): chosen for chosen in settings}
    ordered = [distinct[text] for text in sorted(distinct)]
    body = {**others, "method": method, "method_version": 1, "settings": ordered}
    return f"sha256:{hashlib.sha256(canonical_json(body)).hexdigest()}"
