from __future__ import annotations

import json

import numpy as np
import pytest

from orlog.normalize.aggregate import AGGREGATES
from orlog.normalize.comparison import Estimate, compare_methods
from orlog.normalize.improvement import probability_of_improvement
from orlog.normalize.method_scores import differing_facts, equal_methods, unranked_methods
from orlog.normalize.ranks import mean_ranks
from orlog.normalize.variance import split_variance

TASKS = ("hopper", "walker", "ant")


def draw(
    means: dict[str, float], *, seeds: int = 4, episodes: int = 10, tasks: tuple[str, ...] = TASKS
) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return {
        method: {
            task: rng.normal(rng.normal(mean, 3, (seeds, 1)), 8, (seeds, episodes))
            for task in tasks
        }
        for method, mean in means.items()
    }


def test_a_comparison_has_every_statistic_of_the_same_scores() -> None:
    scores = draw({"bc": 20, "iql": 60, "cql": 40})
    found = compare_methods(scores, np.random.default_rng(0), resamples=300)
    runs = {
        method: np.stack([one[task].mean(1) for task in TASKS], 1) for method, one in scores.items()
    }
    assert found.methods == ["bc", "iql", "cql"]
    assert found.tasks == list(TASKS)
    for method in runs:
        np.testing.assert_array_equal(found.runs[method], runs[method])
        assert list(found.aggregates[method]) == list(AGGREGATES)
        for name, one in found.aggregates[method].items():
            assert one.value == AGGREGATES[name](runs[method])
            assert one.interval is not None
            assert one.interval[0] < one.value < one.interval[1]
        profile = found.profiles[method]
        assert profile.band is not None
        assert (profile.band[0] <= profile.shares).all()
        assert (profile.shares <= profile.band[1]).all()
        for task in TASKS:
            assert found.variances[method][task] == split_variance(scores[method][task][:, None])
    assert found.ranking() == ["iql", "cql", "bc"]
    means = np.array([one.mean(0) for one in runs.values()])
    assert [one.value for one in found.ranks.values()] == mean_ranks(means).tolist()
    assert found.ranks["iql"] == Estimate(1.0, None)  # the best in every resample
    for (first, second), one in found.improvement.items():
        assert one.value == probability_of_improvement(runs[first], runs[second])
    again = compare_methods(scores, np.random.default_rng(0), resamples=300)
    body = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert body == json.loads(json.dumps(again.to_json()))
    assert body["consensus"]["order"] == ["iql", "cql", "bc"]
    assert [one["seeds"] for one in body["methods"]] == [4, 4, 4]


def test_checkpoints_give_the_variance_if_they_are_there() -> None:
    scores = draw({"bc": 20})
    curve = np.random.default_rng(1).normal(size=(4, 3, 5))
    found = compare_methods(
        scores, np.random.default_rng(0), resamples=9, checkpoints={"bc": {"ant": curve}}
    )
    assert found.variances["bc"]["ant"] == split_variance(curve)
    other = found.variances["bc"]["hopper"]
    assert other is not None
    assert other.checkpoints is None


def test_one_seed_one_episode_one_task_and_one_method_have_what_they_can_show() -> None:
    one_seed = {**draw({"bc": 20}), **draw({"iql": 60}, seeds=1)}
    found = compare_methods(one_seed, np.random.default_rng(0), resamples=50)
    assert found.aggregates["bc"]["IQM"].interval is not None
    assert found.aggregates["iql"]["IQM"].interval is None
    assert found.improvement[("bc", "iql")] == Estimate(0.0, None)
    assert found.profiles["iql"].band is None
    assert found.variances["iql"]["ant"] is None
    means = compare_methods(draw({"bc": 20}, episodes=1), np.random.default_rng(0), resamples=50)
    assert means.aggregates["bc"]["mean"].interval is not None
    assert means.variances["bc"]["ant"] is None
    assert (means.ranks, means.consensus, means.improvement) == ({}, None, {})
    assert means.ranking() == ["bc"]
    one_task = compare_methods(
        draw({"bc": 20, "iql": 21}, tasks=("ant",)), np.random.default_rng(0), resamples=50
    )
    by_name = one_task.aggregates["bc"]
    assert by_name["median"].value == pytest.approx(by_name["mean"].value)
    equal = compare_methods({"bc": {"ant": np.ones((3, 4))}}, np.random.default_rng(0))
    assert equal.aggregates["bc"]["IQM"] == Estimate(1.0, None)


def test_an_estimate_is_text() -> None:
    assert str(Estimate(51.26, (48.04, 55.0))) == "51.3 (48.0 to 55.0)"
    assert str(Estimate(0.5, None, digits=2)) == "0.50"


def test_probabilities_and_ranks_are_printed_with_two_digits() -> None:
    rng = np.random.default_rng(0)
    scores = {
        name: {"a": rng.normal(middle, 9, (5, 3))} for name, middle in (("bc", 50), ("iql", 53))
    }
    found = compare_methods(scores, rng)
    numbers = [*str(found.improvement["iql", "bc"]).split(), *str(found.ranks["bc"]).split()]
    digits = {len(one.strip("()").partition(".")[2]) for one in numbers if "." in one}
    assert digits == {2}
    assert found.to_json()["improvement"][0].keys() == {"above", "below", "value", "interval"}


def test_who_has_too_few_seeds_or_episodes_is_not_ranked_and_copies_are_named() -> None:
    scores = draw({"bc": 20, "iql": 60})
    scores["best"] = {task: one[:2] + 90 for task, one in scores["iql"].items()}
    scores["chosen"] = {task: np.sort(one)[:, -5:] for task, one in scores["iql"].items()}
    scores["copy"] = {task: one[::-1] for task, one in scores["iql"].items()}
    assert unranked_methods(scores, {}) == {
        "best": "2 of at least 3 seeds",
        "chosen": "5 of 10 episodes of each seed",
    }
    assert unranked_methods(draw({"bc": 20}), dict.fromkeys(TASKS, 20)) == {
        "bc": "10 of 20 episodes of each seed"
    }
    many = draw({"bc": 20, "mine": 30}, episodes=120)
    many["mine"] = {task: one[:, :100] for task, one in many["mine"].items()}
    assert unranked_methods(many, {}) == {}  # nobody is pushed out by more than is usual
    assert equal_methods(scores) == {"copy": "iql"}
    assert equal_methods({name: {"ant": np.zeros((3, 5))} for name in ("bc", "iql")}) == {}
    ranked = {task: one for task, one in scores.items() if task != "chosen"}
    found = compare_methods(ranked, np.random.default_rng(0), resamples=50, unranked={"best"})
    assert list(found.ranks) == ["bc", "iql", "copy"]
    assert found.ranking()[-1] == "best"
    body = found.to_json()
    assert [one["mean_rank"] is None for one in body["methods"]] == [False, False, True, False]
    assert sorted(body["consensus"]["order"]) == ["bc", "copy", "iql"]


def test_facts_in_which_methods_differ_are_named_with_them() -> None:
    facts = {"bc": {"steps": "10", "seeds": "3"}, "iql": {"steps": "20", "seeds": "3"}}
    facts["cql"] = facts["bc"]
    assert differing_facts(facts) == ["the rows differ in steps: 10 (bc, cql); 20 (iql)."]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "no method to compare"),
        ({"bc": {}}, "bc has no task"),
        (
            {
                "bc": {"ant": np.ones((2, 2))},
                "iql": {"ant": np.ones((2, 2)), "hopper": np.ones((2, 2))},
            },
            "iql has scores on hopper, bc has none; compare methods on the same tasks",
        ),
        (
            {"bc": {"ant": np.ones((2, 2)), "hopper": np.ones((3, 2))}},
            "bc has 3 seeds on hopper and 2 on ant; take as many on each task",
        ),
        ({"bc": {"ant": np.ones(3)}}, r"bc on ant: scores must be an array \[seeds, episodes\]"),
        ({"bc": {"ant": np.ones((0, 3))}}, r"that is not empty, found shape \(0, 3\)"),
        (
            {"bc": {"ant": np.array([[1.0, 2.0], [3.0, np.nan]])}},
            r"bc on ant \[seed, episode\]: nan at position 1, 1; statistics need finite scores",
        ),
    ],
)
def test_bad_input_is_one_line(change: dict[str, dict[str, np.ndarray]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare_methods(change, np.random.default_rng(0))
