"""What methods with their ranges of settings give after tuning, from a sweep of evaluated runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orlog.manifests.documents import canonical_json
from orlog.manifests.names import counted
from orlog.normalize.tuning import EXPLORATION, POLICIES, expected_online_performance, method_digest, tuning_curves
from orlog.runs.comparing import Row, check_seeds, differences

MIDDLE = 0.8
"""Share of the trials whose scores lie within the printed range."""


def tune_curves(
    rows: Sequence[Row],
    *,
    evaluations: int = 200,
    policies: int = POLICIES,
    trials: int = 1000,
    exploration: float = EXPLORATION,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Return the tune curve of each method on each dataset among the rows of `find_runs`, as JSON.

    Runs of a method that differ in settings are its range; each run is one policy. The other arguments are those of
    `tuning_curves`. docs/json.md has the keys; `means` are mean scores of the policy that the bandit names best after
    1, 2, .. episodes, `lows` and `highs` what 90 % and 10 % of the trials reach.

    Raises ValueError if runs of a method on a dataset did not learn from the same data, were not measured in the
    same way, or a seed of a setting is there twice.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.name, row.task), []).append(row)
    curves = []
    for group in groups.values():
        by_setting = _by_setting(group)
        scores = [np.concatenate([row.scores for row in of_setting]) for of_setting in by_setting]
        drawn = tuning_curves(
            np.concatenate(scores),
            np.random.default_rng(seed),
            evaluations=evaluations,
            policies=policies,
            trials=trials,
            exploration=exploration,
        )
        number = sum(map(len, scores))
        bandit = (
            f"UCB with exploration {exploration:g} over {min(policies, number)} of "
            f"{number} policies, {counted(trials, 'trial')}, one stored episode an evaluation"
        )
        curves.append(_tune_curve(by_setting, scores, drawn, bandit))
    return curves


def _by_setting(group: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each setting, in the order of the settings that differ."""
    first = group[0]
    by_setting: dict[bytes, list[Row]] = {}
    for row in group:
        there, here = (one.facts | {"episodes": one.scored.protocol.episodes} for one in (first, row))
        if there != here:
            raise ValueError(
                f"{row.name} on {row.task}: {first.place} and {row.place} differ in {differences(there, here)}; "
                f"give each its own curve: NAME={row.place}"
            )
        by_setting.setdefault(canonical_json(row.scored.method.settings), []).append(row)
    for rows in by_setting.values():
        check_seeds(rows)
    varied = _varied([rows[0] for rows in by_setting.values()])
    return sorted(
        by_setting.values(),
        key=lambda rows: [values.index(rows[0].scored.method.settings.get(name)) for name, values in varied.items()],
    )


def _varied(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the settings that differ between rows, each with its values."""
    settings = [row.scored.method.settings for row in rows]
    names = dict.fromkeys(name for each in settings for name in each)
    varied = {name: _distinct([each.get(name) for each in settings]) for name in names}
    return {name: values for name, values in varied.items() if len(values) > 1}


def _tune_curve(
    by_setting: Sequence[Sequence[Row]], scores: Sequence[np.ndarray], drawn: np.ndarray, bandit: str
) -> dict[str, Any]:
    first = by_setting[0][0]
    settings = [rows[0].scored.method.settings for rows in by_setting]
    varied = _varied([rows[0] for rows in by_setting])
    notes = []
    if first.anchors is None:
        notes.append("how much the bandit explores depends on the scale of the returns")
    if len(settings) == 1:
        notes.append(f"{first.name} has one setting on {first.task}, so only seeds differ")
    outside = (1 - MIDDLE) / 2
    lows, highs = np.quantile(drawn, [outside, 1 - outside], axis=0)
    codes = [row.scored.code.versions.get("orlog", "") for rows in by_setting for row in rows]
    protocol = first.scored.protocol
    best = expected_online_performance(np.array([each.mean() for each in scores]))
    return {
        "method": first.name,
        "dataset": first.task,
        "digest": method_digest(first.name, settings, code=_distinct(codes)),
        "varied": varied,
        "settings": [{name: each.get(name) for name in varied} for each in settings],
        "setting_seeds": [len(each) for each in scores],
        "setting_scores": [float(each.mean()) for each in scores],
        "policies": sum(map(len, scores)),
        "episodes": protocol.episodes,
        "means": drawn.mean(0).tolist(),
        "lows": lows.tolist(),
        "highs": highs.tolist(),
        "expected_best": best.tolist(),
        "protocol": (
            f"{protocol.environment_id}, {counted(protocol.episodes, 'episode')} of each policy with reset seeds "
            f"from {protocol.first_seed}; {bandit}"
        ),
        "is_normalized": first.anchors is not None,
        "notes": notes,
    }


def _distinct(values: list[Any]) -> list[Any]:
    """Return the different values of a setting, in the order of their text or size."""
    distinct = {canonical_json(value): value for value in values}
    ordered = [distinct[text] for text in sorted(distinct)]
    numbers = all(isinstance(value, int | float) for value in ordered)
    return sorted(ordered) if numbers else ordered
