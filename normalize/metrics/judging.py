"""Verdicts on runs: on their returns, and on what metrics give to verdicts beside these (`Metric.judge`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from orlog.normalize.baselines import Baseline
from orlog.normalize.judgements import MARGIN, ROUNDING
from orlog.normalize.metrics.metrics import Played, metrics, of_fields
from orlog.normalize.verdicts import NO_SPREAD, NOT_RECORDED, Verdict, Word, compare

_WEAKER = ("identical", "same", "consistent", "unsettled", "not consistent")

Judged = dict[str, tuple[str, dict[int, np.ndarray], dict[int, np.ndarray]]]
"""By metric: a number's name with its unit, and its values in new and in recorded runs, by seed."""


def judged_numbers(
    new: Mapping[int, Played], recorded: Mapping[int, Played]
) -> tuple[Judged, list[str]]:
    """Return what verdicts compare beside returns, and the metrics that only one of both sides has."""
    found: Judged = {}
    alone = []
    for name, metric in metrics().items():
        of_new, of_recorded = (
            {
                seed: one
                for seed, run in side.items()
                if name in run.metrics and (one := metric.judge(run)) is not None
            }
            for side in (new, recorded)
        )
        if of_recorded and (len(of_new), len(of_recorded)) == (len(new), len(recorded)):
            found[name] = (
                next(iter(of_recorded.values()))[0],
                {seed: values for seed, (_, values) in of_new.items()},
                {seed: values for seed, (_, values) in of_recorded.items()},
            )
        elif of_new or of_recorded:
            alone.append(name)
    return found, alone


def played_by(baseline: Baseline) -> dict[int, Played]:
    """Return what came of the episodes of a recorded baseline, by training seed."""
    return {
        int(seed): Played(
            returns=np.array(returns, float),
            metrics=of_fields({"metrics": {m: by[seed] for m, by in baseline.metrics.items()}}),
            dataset=baseline.dataset,
            settings=baseline.config,
        )
        for seed, returns in baseline.returns.items()
    }


def compare_runs(
    new: Mapping[int, Played],
    recorded: Mapping[int, Played],
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
    scores = [
        {seed: normalize(run.returns) for seed, run in side.items()} for side in (new, recorded)
    ]
    episodes = min((len(run.returns) for run in (*new.values(), *recorded.values())), default=0)
    new, recorded = (_first(side, episodes) for side in (new, recorded))
    numbers, alone = judged_numbers(new, recorded)
    common = [seed for seed in new if seed in recorded]
    equal = [seed for seed in common if np.array_equal(new[seed].returns, recorded[seed].returns)]
    differing = [
        seed
        for seed in common
        if seed not in equal
        or not all(np.array_equal(a[seed], b[seed]) for _, a, b in numbers.values())
    ]
    how["numbers"] = 1 + len(numbers)
    verdict = compare(*scores, same_run=same_run and not differing, **how)
    beside = dict.fromkeys(alone, NOT_RECORDED)
    if same_run and same_code and differing:
        why = (
            f"seed {differing[0]} gives other numbers with the stated code and versions on the stated kind of "
            "processor, where they are equal to the bit"
        )
        return _decided(verdict, "contradicted", verdict.difference, why, beside=beside)
    if verdict.word == "identical":
        return dataclasses.replace(verdict, beside=beside)
    verdicts = {"return": verdict}
    for name, (unit, here, there) in numbers.items():
        found = dataclasses.replace(compare(here, there, same_run=False, **how), of=unit)
        means = [values.mean() for values in there.values()]
        apart = {seed: float(here[seed].mean() - there[seed].mean()) for seed in equal}
        most = max(apart, key=lambda seed: abs(apart[seed]), default=0)
        if apart and abs(apart[most]) > MARGIN and np.ptp(new[most].returns) > 0:
            why = f"the returns of seed {most} are equal to the bit, but its {name} differs"
            verdicts[name] = _decided(found, "not consistent", apart[most], why)
        elif np.ptp(means) <= ROUNDING and abs(found.difference) <= MARGIN:
            beside[name] = NO_SPREAD
        else:
            verdicts[name] = found
    weakest = max(verdicts, key=lambda name: _WEAKER.index(verdicts[name].word))
    words = {name: str(one.word) for name, one in verdicts.items() if name != weakest}
    return dataclasses.replace(verdicts[weakest], beside={**words, **beside})


def _decided(verdict: Verdict, word: Word, difference: float, why: str, **more: Any) -> Verdict:
    """Return a verdict that needs no statistics, since bits show it."""
    return dataclasses.replace(
        verdict,
        word=word,
        difference=difference,
        interval=None,
        prediction=None,
        detectable=None,
        unseen_share=None,
        more_seeds=None,
        reason=why,
        **more,
    )


def _first(runs: Mapping[int, Played], episodes: int) -> dict[int, Played]:
    """Return runs with their first episodes alone."""
    return {
        seed: dataclasses.replace(
            run,
            returns=run.returns[:episodes],
            metrics={name: values[:episodes] for name, values in run.metrics.items()},
        )
        for seed, run in runs.items()
    }
