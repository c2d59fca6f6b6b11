"""What learning from rewards should give over imitation, in the baselines that are recorded."""

from __future__ import annotations

import pytest

from orlog.manifests.shipped import recorded_folder, recorded_manifest
from orlog.normalize.baselines import read_baseline
from orlog.reference_returns import references_of
from orlog.sweeps import suite_datasets

DATASETS = [
    name
    for suite in ("classic", "pointmaze")
    for name in suite_datasets(suite)
    if (recorded_folder(name) / "baselines").is_dir()
]
# Of each pair the first should score higher; where it does not, docs/suites.md says why.
PAIRS = [(better, "bc") for better in ("iql", "percent_bc", "td3bc", "rebrac", "fql")]
EXCEPTIONS = {
    ("classic/cartpole-mixed-v2", "iql", "bc"),
    ("classic/cartpole-mixed-v2", "percent_bc", "bc"),
    ("classic/mountaincar-continuous-mixed-v1", "iql", "bc"),
    ("classic/mountaincar-continuous-mixed-v1", "td3bc", "bc"),
}


@pytest.mark.parametrize(("better", "worse"), PAIRS)
def test_known_orderings_hold_except_where_it_is_said(better: str, worse: str) -> None:
    wrong = {
        (name, better, worse)
        for name in DATASETS
        if (high := score(better, name)) is not None
        and (low := score(worse, name)) is not None
        and high <= low
    }
    assert wrong == {one for one in EXCEPTIONS if one[1:] == (better, worse)}


@pytest.mark.parametrize("name", DATASETS)
def test_the_policy_that_made_the_best_data_scores_above_random_actions(name: str) -> None:
    manifest = recorded_manifest(name)
    assert manifest is not None
    references = references_of(manifest)
    assert references is not None
    assert references.random.mean < references.expert.mean


def score(algorithm: str, name: str) -> float | None:
    baseline, manifest = read_baseline(algorithm, name), recorded_manifest(name)
    references = None if manifest is None else references_of(manifest)
    if baseline is None or references is None:
        return None
    means = [one.mean() for one in baseline.scores(references).values()]
    return float(sum(means) / len(means))
