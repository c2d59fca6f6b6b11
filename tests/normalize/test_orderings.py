"""What should score above what in the baselines that are recorded; docs/suites.md says where it does not.

Of the families, docs/families.md says what came out.
"""

import functools

import pytest

from orlog.manifests.roles import FAMILIES
from orlog.manifests.shipped import recorded_folder, recorded_manifest
from orlog.normalize.baselines import read_baseline
from orlog.runs.references import references_of
from orlog.runs.sweeps import suite_datasets

DATASETS = [
    name
    for name in suite_datasets("all")
    if (recorded_folder(name) / "baselines").is_dir()
    and "-mini-" not in name
    and name.partition("/")[0] not in FAMILIES
]
# Data of random or of the best policy alone have no better and worse episodes to tell apart.
MIXED = [name for name in DATASETS if not name.endswith(("-random-v1", "-expert-v1")) or "-medium-" in name]
LEARNED = ("iql", "td3bc", "rebrac", "fql", "cql", "percent_bc")
FOR_GOALS = ("gcivl", "gciql", "crl", "hiql", "qrl")
PAIRS = [(one, "bc") for one in LEARNED] + [(one, "gcbc") for one in FOR_GOALS]
EXCEPTIONS = {
    ("classic/acrobot-mixed-v1", "cql", "bc"),
    ("classic/cartpole-mixed-v2", "cql", "bc"),
    ("classic/cartpole-mixed-v2", "iql", "bc"),
    ("classic/cartpole-mixed-v2", "percent_bc", "bc"),
    ("classic/pendulum-mixed-v1", "cql", "bc"),
    ("mujoco/halfcheetah-medium-replay-v1", "td3bc", "bc"),
    ("mujoco/walker2d-medium-replay-v1", "cql", "bc"),
    ("mujoco/walker2d-medium-replay-v1", "iql", "bc"),
    ("mujoco/walker2d-medium-replay-v1", "rebrac", "bc"),
    ("ogbench-local/pointmaze-medium-navigate-v1", "gciql", "gcbc"),
    ("ogbench-local/pointmaze-medium-navigate-v1", "qrl", "gcbc"),
    ("pixels/catch-mixed-v1", "percent_bc", "bc"),
    ("pointmaze/large-goals-v1", "qrl", "gcbc"),
    ("pointmaze/large-stitch-v1", "gciql", "gcbc"),
    ("pointmaze/large-stitch-v1", "qrl", "gcbc"),
    ("pointmaze/medium-stitch-v1", "qrl", "gcbc"),
}
TASKS = ("halfcheetah", "hopper", "walker2d")
# After a few thousand steps.
SHORT = [f"{task}-{kind}" for task in TASKS for kind in ("medium", "medium-expert")]
ABOVE = {
    "iql": {"halfcheetah-medium", "walker2d-medium", "walker2d-medium-expert"},
    "rebrac": {*SHORT} - {"hopper-medium-expert", "walker2d-medium"},
    "cql": {"halfcheetah-medium", "walker2d-medium-expert"},
    "td3bc": {"halfcheetah-medium", "hopper-medium-expert"},
    "fql": {"halfcheetah-medium", "walker2d-medium-expert"},
}
"""Where they are above imitation on these."""
EXCEPTIONS |= {
    (f"mujoco/{name}-v1", algorithm, "bc") for algorithm, above in ABOVE.items() for name in SHORT if name not in above
}
UNORDERED = {("walker2d", "td3bc"), ("halfcheetah", "cql")}


@pytest.mark.parametrize(("better", "worse"), PAIRS)
def test_learning_from_rewards_or_for_goals_is_above_imitation(better, worse):
    wrong = {
        (name, better, worse)
        for name in MIXED
        if (high := score(better, name)) is not None and (low := score(worse, name)) is not None and high <= low
    }
    assert wrong == {one for one in EXCEPTIONS if one[1:] == (better, worse)}


@pytest.mark.parametrize("task", TASKS)
def test_better_data_give_better_policies(task):
    wrong = set()
    for algorithm in ("bc", *LEARNED):
        random, medium, expert = (
            score(algorithm, f"mujoco/{task}-{kind}-v1") for kind in ("random", "medium", "expert")
        )
        assert random is not None
        assert medium is not None
        assert expert is not None
        if not random < medium < expert:
            wrong.add((task, algorithm))
    assert wrong == {one for one in UNORDERED if one[0] == task}


@pytest.mark.parametrize("name", DATASETS)
def test_the_policy_that_made_the_best_data_scores_above_random_actions(name):
    manifest = recorded_manifest(name)
    assert manifest is not None
    references = references_of(manifest)
    assert references is not None
    assert references.random.mean < references.expert.mean


@functools.cache
def score(algorithm, name):
    baseline, manifest = read_baseline(algorithm, name), recorded_manifest(name)
    references = None if manifest is None else references_of(manifest)
    if baseline is None or references is None:
        return None
    means = [one.mean() for one in baseline.scores(references).values()]
    return float(sum(means) / len(means))
