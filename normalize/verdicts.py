"""Compares new scores of an algorithm with its recorded baseline, and gives a verdict in steps.

    1. identical        the seeds in common, at least half of the new ones, gave the same returns to the bit
    2. same             the interval of the difference lies within +-margin
    3. not consistent   the new mean is no plausible mean of so many seeds of the recording
       consistent       it is
    4. unsettled        none of these: so many more seeds would settle it

    contradicted        other bits where data, settings, code, versions and processor are those of the recording

Beside *same* and *consistent* stands what they cannot exclude: differences smaller than the one that
would have been noticed, and seeds that do what none has shown.

`judgements.py` holds the statistics. `benchmarks/verdicts.py` measures how often each step is wrong, and
docs/scores.md has the figures. Costs, successes and hypervolumes of the episodes are judged beside the returns
(`metrics/judging.py`), and the weakest verdict counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from jaxtyping import Float

from orlog.manifests.names import counted
from orlog.normalize.judgements import (
    ERROR,
    INTERVAL_ERROR,
    MARGIN,
    POWER,
    ROUNDING,
    Judgement,
    can_reject,
    judge,
    noticed_difference,
    pairs_used,
    seeds_to_settle,
    unseen_share,
)

VERDICT_NOTE = (
    f"Same: the 99 % interval of the difference lies within {MARGIN:g} points. Consistent: the new mean "
    "lies inside the 95 % prediction interval of the recorded seeds. In simulations at most 5 % of equal "
    "algorithms were called not consistent, for normal, skewed and two-valued scores. Neither excludes "
    "that some seeds fail in a way that no seed has shown. Cost, success and hypervolume are judged beside the "
    "return where episodes have them; they share its error rates, and the weakest verdict counts."
)
"""What to print where a verdict is printed."""

Word = Literal["identical", "same", "consistent", "unsettled", "not consistent", "contradicted"]
NOT_RECORDED = "not recorded"
NO_SPREAD = "without spread, as recorded"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a comparison with a recorded baseline.

    Attributes:
        word: The verdict: of several numbers, the weakest of theirs.
        of: The number that `word` and all below are of, with its unit; empty for the score.
        beside: Of several numbers, the verdict's word of each of the others, or `NOT_RECORDED`, or `NO_SPREAD`
            where equal seeds equal the recorded ones, which shows nothing.
        seeds: Number of new seeds.
        recorded_seeds: Number of recorded seeds.
        mean: New mean score.
        difference: New minus recorded mean score, in points; over the pairs if seeds are paired.
        interval: Interval of the difference, or None.
        confidence: Confidence of this interval.
        pairs: Number of seeds that were compared with the same seed of the recording; 0 if the
            means of all seeds were compared.
        prediction: Prediction interval of the recorded seeds for the mean of the new ones, or None.
        detectable: Smallest difference of all seeds alike, in points, that would have been noticed:
            not called the same where the verdict is same, and called not consistent where it is
            another one; None if no difference could be.
        power: Probability with which it would have been.
        unseen_share: Of same and consistent, the largest share of seeds, from 0 to 1, that may do what
            none of the new ones showed, such as fail: a bound at 95 %. Otherwise None.
        more_seeds: Number of further seeds that would settle whether it is the same, with 80 %
            probability if difference and spread stay as they are; None if it is settled, or if no
            number of new seeds would do.
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
        return "; ".join(filter(None, [f"{self.word}: {self._finding()}", *self._remarks()]))

    def _finding(self) -> str:
        if self.word == "identical":
            seeds = (
                "the same seeds"
                if self.pairs == self.seeds
                else f"all {self.pairs} seeds in common"
            )
            return f"{seeds} gave the same returns to the bit{self.reason}"
        of = f"{self.of} " * bool(self.of)
        less, more = ("lower", "higher") if self.of else ("worse", "better")
        how = f"{counted(self.pairs, 'pair')} of equal seeds" if self.pairs else "means of seeds"
        between = ""
        if self.interval is not None:
            low, high = self.interval
            between = (
                f"{100 * self.confidence:.3g} % interval {low:+z.1f} to {high:+z.1f}, from {how}"
            )
        if self.word == "same":
            return f"{self.difference:+z.1f} points ({between}), within ±{self.margin:g}"
        if self.prediction is None and self.word == "not consistent":
            return (
                f"{of}{more if self.difference > 0 else less} by {abs(self.difference):z.1f} points"
            )
        if self.prediction is None:
            return f"{of}{self.difference:+z.1f} points"
        low, high = self.prediction
        inside = low <= self.mean <= high
        expected = (
            f"{of}{self.mean:z.1f} lies {'inside' if inside else 'outside'} {low:z.1f} to {high:z.1f}, where "
            "the recorded seeds predict it"
        )
        if self.word == "not consistent":
            # Outside the prediction interval all seeds count, and inside it the pairs.
            away = self.difference if inside else self.mean - (low + high) / 2
            why = f"{between}, beyond ±{self.margin:g}" if inside else expected.removeprefix(of)
            return f"{of}{more if away > 0 else less} by {abs(away):z.1f} points ({why})"
        return expected

    def _remarks(self) -> list[str]:
        said = ["" if self.word == "identical" else self.reason, self._not_excluded()]
        if self.more_seeds is not None:
            plural = "s" * (self.more_seeds > 1)
            said.append(f"{self.more_seeds} more seed{plural} would settle it")
        elif not self.is_settled and self.seeds > 1:
            said.append(
                f"more new seeds cannot settle it: the recording has only {self.recorded_seeds}"
            )
        if self.looks > 1 and self.word != "identical":
            said.append(
                f"its intervals are wider, since up to {self.looks} looks share the error rate"
            )
        here, recorded = self.processor, self.recorded_processor
        if recorded and here == recorded:
            same_bits = self.word == "identical" or not self.pairs
            said.append(
                f"on {here}, as recorded" + ("" if same_bits else ", though not to the bit")
            )
        elif recorded and here:
            unknown = "an unknown processor" if recorded == "unknown" else recorded
            bits = "" if self.word == "identical" else ": bits agree on one kind only"
            said.append(f"recorded on {unknown}, here {here}{bits}")
        for name, word in self.beside.items():
            alone = ", so it is not compared" if word == NOT_RECORDED else ""
            said.append(f"{name} {'is ' * bool(alone)}{word}{alone}")
        return said

    def _not_excluded(self) -> str:
        """Return what same and consistent cannot exclude; empty for other verdicts."""
        if self.unseen_share is None:
            return ""
        noticed = "no difference of all seeds would have been noticed"
        if self.detectable is not None:
            noticed = (
                f"a difference of {self.detectable:z.1f} points in all seeds would have been noticed with "
                f"{100 * self.power:z.0f} % probability"
            )
        seeds = _seeds_judged(self.word, self.seeds, self.pairs)
        return (
            f"{noticed}; up to {100 * self.unseen_share:z.0f} % of seeds may fail in a way not seen in "
            f"{seeds} seed{'s' * (seeds > 1)} (95 % bound)"
        )


def compare(
    new: Mapping[int, Float[np.ndarray, " episodes"]],
    recorded: Mapping[int, Float[np.ndarray, " others"]],
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
    is_equal = common and all(
        np.array_equal(new[seed][:episodes], recorded[seed][:episodes]) for seed in common
    )
    if same_run and is_equal and 2 * len(common) >= len(new):
        fewer = f", in the first {episodes:,} of {max(of_new, of_recorded):,} episodes"
        return Verdict(
            word="identical",
            seeds=len(new),
            recorded_seeds=len(recorded),
            mean=float(np.mean([scores.mean() for scores in new.values()])),
            difference=0.0,
            looks=looks,
            pairs=len(common),
            reason="" if of_new == of_recorded else fewer,
            processor=processor,
            recorded_processor=recorded_processor,
        )
    pairs = pairs_used(len(common), len(new))
    here, there = (
        np.array([[side[seed][:episodes].mean() for seed in dict.fromkeys((*common, *side))]])
        for side in (new, recorded)
    )
    shares = looks * numbers
    judgement = judge(here, there, pairs=pairs, looks=shares)
    word, reason = _word_and_reason(judgement, here, there, pairs, shares)
    low, high, half = (float(value[0]) for value in (judgement.low, judgement.high, judgement.half))
    verdict = Verdict(
        word=word,
        seeds=len(new),
        recorded_seeds=len(recorded),
        mean=float(here.mean()),
        difference=float(judgement.difference[0]),
        interval=None if math.isnan(low) else (low, high),
        confidence=1 - INTERVAL_ERROR / shares,
        pairs=pairs,
        prediction=((float(there.mean()) - half, float(there.mean()) + half) if half > 0 else None),
        detectable=(
            MARGIN if word == "same" else noticed_difference(here.shape[1], there[0], looks=shares)
        ),
        power=1 - ERROR if word == "same" else POWER,
        unseen_share=(
            unseen_share(_seeds_judged(word, len(new), pairs), looks=looks)
            if word in ("same", "consistent")
            else None
        ),
        reason=reason,
        looks=looks,
        processor=processor,
        recorded_processor=recorded_processor,
    )
    if verdict.is_settled:
        return verdict
    return dataclasses.replace(
        verdict,
        more_seeds=seeds_to_settle(
            here[0], there[0], common=len(common), pairs=pairs, margin=MARGIN, looks=shares
        ),
    )


def _seeds_judged(word: Word, seeds: int, pairs: int) -> int:
    """Return how many new seeds a verdict looked at: of same, the pairs alone where there are some."""
    return pairs if word == "same" and pairs else seeds


def _episodes(side: str, scores: Mapping[int, np.ndarray]) -> int:
    """Return the number of episodes of each seed, which must be one and the same."""
    if not scores:
        raise ValueError(f"the {side} scores have no seed; a comparison needs at least one.")
    numbers = {seed: len(values) for seed, values in scores.items()}
    (first, expected), *_ = numbers.items()
    for seed, values in scores.items():
        if numbers[seed] != expected:
            raise ValueError(
                f"seed {seed} of the {side} scores has {counted(numbers[seed], 'episode')}, but seed {first} has "
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
    if not enough:
        alone = "one new seed cannot show a difference, so run at least 3" * (new.shape[1] == 1)
        return "unsettled", alone or "the seeds are too few to confirm it by a permutation"
    return (
        "unsettled",
        f"{100 * judgement.share[0]:z.0f} % of permutations of the seeds differ as much",
    )
