"""What methods with their ranges of settings give after tuning, from a sweep of evaluated runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from orlog.manifests.documents import canonical_json
from orlog.manifests.names import counted
from orlog.normalize.tuning import (
    EXPLORATION,
    POLICIES,
    expected_online_performance,
    method_digest,
    tuning_curves,
)
from orlog.runs.evaluated_runs import EvaluatedRun, check_alike, method_results, settings_text

MIDDLE = 0.8
"""Share of the trials whose scores lie within the printed range."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuneCurve:
    """What a method gives on one dataset after so many evaluations.

    Attributes:
        method: Name of the method.
        dataset: Name of the dataset.
        digest: Identity of the method with the range of its settings (`method_digest`).
        varied: Settings that differ between runs, each with its values.
        settings: Those of each different setting, without what is the same in all.
        setting_seeds: Number of seeds of each setting.
        setting_scores: Mean score of each setting.
        policies: Number of runs, each of which is a policy that the bandit may evaluate.
        episodes: Stored episodes of each policy.
        means: Mean score of the policy that the bandit names best, after 1, 2, .. episodes.
        lows: Score that 90 % of the trials reach.
        highs: Score that 10 % of the trials reach.
        expected_best: Expected score of the best of 1, 2, .. settings.
        protocol: How returns were measured and the bandit ran, in words.
        is_normalized: Whether scores are normalized; otherwise they are returns.
        notes: Caveats, a sentence each.
    """

    method: str
    dataset: str
    digest: str
    varied: dict[str, list[Any]]
    settings: list[dict[str, Any]]
    setting_seeds: list[int]
    setting_scores: list[float]
    policies: int
    episodes: int
    means: np.ndarray
    lows: np.ndarray
    highs: np.ndarray
    expected_best: np.ndarray
    protocol: str
    is_normalized: bool
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        body = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in body.items()
        }


def tune_curves(
    runs: Sequence[EvaluatedRun],
    *,
    evaluations: int = 200,
    policies: int = POLICIES,
    trials: int = 1000,
    exploration: float = EXPLORATION,
    seed: int = 0,
) -> list[TuneCurve]:
    """Return the tune curve of each method on each dataset among the runs.

    Runs of a method that differ in settings are its range; each run is one policy. Their settings must be
    known, with each seed once, and all runs on a dataset trained, measured and evaluated in the same way. The
    other arguments are those of `tuning_curves`.
    """
    groups: dict[tuple[str, str], list[EvaluatedRun]] = {}
    for run in runs:
        groups.setdefault((run.method, run.dataset), []).append(run)
    return [
        _tune_curve(
            group,
            np.random.default_rng(seed),
            evaluations=evaluations,
            policies=policies,
            trials=trials,
            exploration=exploration,
        )
        for group in groups.values()
    ]


def _tune_curve(
    runs: list[EvaluatedRun],
    rng: np.random.Generator,
    *,
    evaluations: int,
    policies: int,
    trials: int,
    exploration: float,
) -> TuneCurve:
    first = runs[0]
    by_setting: dict[bytes, list[EvaluatedRun]] = {}
    for run in runs:
        check_alike(
            f"{first.method} on {first.dataset}",
            first,
            run,
            apart=f"give each its own curve: NAME={run.place}",
        )
        by_setting.setdefault(canonical_json(run.settings), []).append(run)
    known = [group[0].settings for group in by_setting.values()]
    names = list(dict.fromkeys(name for one in known for name in one))
    varied = {name: _distinct([one.get(name) for one in known]) for name in names}
    varied = {name: values for name, values in varied.items() if len(values) > 1}
    known.sort(key=lambda one: [values.index(one.get(name)) for name, values in varied.items()])
    # Each setting is checked and normalized as a method of its own.
    labels = [
        f"{first.method} {settings_text({name: one.get(name) for name in varied})}".strip()
        for one in known
    ]
    results = method_results(
        dataclasses.replace(run, method=label)
        for label, one in zip(labels, known, strict=True)
        for run in by_setting[canonical_json(one)]
    )
    scores = [results.scores[label][first.dataset] for label in labels]
    notes = list(results.notes)
    if not results.is_normalized:
        notes.append(
            "the bandit's exploration is meant for scores where 100 is the expert's; how much it "
            "explores here depends on the scale of the returns."
        )
    if len(known) == 1:
        notes.append(
            f"{first.method} has one setting on {first.dataset}: its range is not searched, and only "
            "seeds differ."
        )
    every = np.concatenate(scores)
    curves = tuning_curves(
        every,
        rng,
        evaluations=evaluations,
        policies=policies,
        trials=trials,
        exploration=exploration,
    )
    outside = (1 - MIDDLE) / 2
    lows, highs = np.quantile(curves, [outside, 1 - outside], axis=0)
    protocol = first.protocol
    drawn = min(policies, len(every))
    return TuneCurve(
        method=first.method,
        dataset=first.dataset,
        digest=method_digest(first.method, known, code=_distinct([run.code for run in runs])),
        varied=varied,
        settings=[{name: one.get(name) for name in varied} for one in known],
        setting_seeds=[len(one) for one in scores],
        setting_scores=[float(one.mean()) for one in scores],
        policies=len(every),
        episodes=every.shape[1],
        means=curves.mean(0),
        lows=lows,
        highs=highs,
        expected_best=expected_online_performance(np.array([one.mean() for one in scores])),
        protocol=(
            f"{protocol.environment_id}, {every.shape[1]} "
            f"{'episode' if every.shape[1] == 1 else 'episodes'} of each policy with reset seeds from "
            f"{protocol.first_seed}; UCB with exploration {exploration:g} over {drawn} of "
            f"{len(every)} policies, {counted(trials, 'trial')}, one stored episode an evaluation"
        ),
        is_normalized=results.is_normalized,
        notes=notes,
    )


def _distinct(values: list[Any]) -> list[Any]:
    """Return the different values of a setting, in the order of their text or size."""
    found = {canonical_json(value): value for value in values}
    distinct = [found[text] for text in sorted(found)]
    numbers = all(isinstance(value, int | float) for value in distinct)
    return sorted(distinct) if numbers else distinct
