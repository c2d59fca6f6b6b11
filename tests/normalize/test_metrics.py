"""Metrics of episodes: what is counted of infos, and the numbers that it comes to."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import orlog
from orlog.manifests.benchmarks import benchmark_datasets
from orlog.manifests.names import counted
from orlog.normalize.metrics import (
    METRICS,
    EpisodeOutcomes,
    Number,
    as_fields,
    completed,
    counts_for,
    hypervolume,
    in_short,
    known_hypervolume,
    numbers_of,
    of_fields,
    points_of,
    words_of_tasks,
)
from orlog.normalize.rollouts import Count, run_episodes
from orlog.normalize.statistics import share_interval, wilson_interval
from tests.levels import scaled
from tests.normalize.test_rollouts import Countdown, policy


class Telling(Countdown):
    """Tells a number and a vector in some steps, drawn from seed and step, and remembers them by seed."""

    told: ClassVar[dict[int, list[dict[str, Any]]]] = {}

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        self.infos = self.told.setdefault(seed, []) if seed is not None else []
        self.infos.clear()
        return observation, {**info, "cost": 1e6, "front": np.full(2, 1e6)}

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        draw = np.random.default_rng([self.left, round(abs(self.value) * 1000)])
        info = {}
        if draw.random() < 0.7:
            info["cost"] = float(draw.integers(0, 3))
        info["front"] = draw.integers(0, 5, 2).astype(float)
        self.infos.append(info)
        return observation, reward, terminated, truncated, info


def by_hand(count, infos):
    """Return what is counted of an episode's infos, in a slow loop."""
    total = 0.0
    for step, info in enumerate(infos):
        for name in count.infos:
            if name in info:
                counts = name not in count.at_end or step == len(infos) - 1
                value = np.asarray(info[name], float) if counts else None
                if value is not None and count.combine == "sum":
                    total = total + value
                elif value is not None and count.combine == "last":
                    total = value
                elif value is not None:
                    total = bool(total) or bool(value > 0)
                break
    return total


@settings(deadline=None, max_examples=scaled(60))
@given(
    episodes=st.integers(1, 9),
    side_by_side=st.integers(1, 5),
    first_seed=st.integers(0, 2**20),
    combine=st.sampled_from(["sum", "last", "any"]),
    at_end=st.booleans(),
)
def test_what_is_counted_is_what_a_slow_loop_counts(episodes, side_by_side, first_seed, combine, at_end):
    counts = [
        Count(name="number", infos=("missing", "cost"), combine=combine, at_end=frozenset({"cost"} if at_end else ())),
        Count(name="vector", infos=("front",), combine=combine),
        Count(name="nothing", infos=("missing",), combine=combine),
    ]
    Telling.told.clear()
    found = run_episodes(
        policy, SyncVectorEnv([Telling] * side_by_side), episodes=episodes, first_seed=first_seed, counts=counts
    )
    each = [Telling.told[first_seed + episode] for episode in range(episodes)]
    expected = [by_hand(counts[0], infos) for infos in each]
    told = any("cost" in info for infos in each for info in infos)
    assert ("number" in found.metrics) == told
    if told:
        assert found.metrics["number"].tolist() == expected
    assert "nothing" not in found.metrics
    if combine == "any":  # a vector is no yes or no
        assert "vector" not in found.metrics
    else:
        vectors = [by_hand(counts[1], infos) for infos in each]
        np.testing.assert_array_equal(found.metrics["vector"], vectors)


def test_metrics_apply_by_roles():
    assert [*METRICS] == sorted(METRICS)
    assert [count.name for count in counts_for({})] == ["success", "wins"]
    roles = {"infos/energy": "cost", "infos/agents/left/cost": "cost", "episodes/x": "task"}
    of_task, of_cost, of_success, of_wins = counts_for(roles)
    assert (of_task.name, of_task.infos, of_task.combine) == ("by_task", ("task",), "last")
    assert (of_cost.name, of_cost.infos) == ("cost", ("energy",))
    assert of_success.at_end == {"is_success"}
    assert (of_wins.infos, of_wins.combine) == (("won",), "any")


def played(dataset="lab/a-v1", limit=None, **values):
    arrays = {name: np.array(one) for name, one in values.items()}
    size = len(next(iter(arrays.values())))
    made = {} if limit is None else {"cost_limit": limit}
    return EpisodeOutcomes(returns=np.zeros(size), metrics=arrays, dataset=dataset, settings=made)


@given(st.lists(st.booleans(), min_size=1, max_size=50))
def test_the_share_of_successes_has_wilsons_interval(reached):
    (one,) = numbers_of([played(success=reached)])
    found = stats.binomtest(sum(reached), len(reached)).proportion_ci(method="wilson")
    assert one.value == pytest.approx(sum(reached) / len(reached))
    assert one.interval == pytest.approx((found.low, found.high), abs=1e-9)
    assert one.note == f"{sum(reached)} of {counted(len(reached), 'episode')}"


def test_over_seeds_each_seed_counts_alike():
    (number,) = numbers_of([played(wins=[True, False, False, False])])
    assert str(number) == "share of wins 25.0 % (1 of 4 games, 95 % interval 4.6 to 69.9)"
    (number,) = numbers_of([played(success=[True]), played(success=[False, False, True, True])])
    assert (number.value, number.note) == (0.75, "")
    assert number.interval == share_interval([1.0, 0.5], 5)
    assert numbers_of([played(success=[True]), played(cost=[1.0])]) == numbers_of([]) == []


@given(
    st.lists(st.floats(0, 1e4), min_size=1, max_size=20),
    st.sampled_from([one.name for one in benchmark_datasets("dsrl")]),
)
def test_costs_are_normalized_as_dsrl_does_at_the_limits_of_its_table(costs, name):
    mean, *limits = numbers_of([played(name, cost=costs)])
    assert mean.name == "cost"
    assert mean.value == pytest.approx(np.mean(costs))
    table = {one.name: one for one in benchmark_datasets("dsrl")}[name]
    expected = [float(one) for one in table.facts["target_cost_thresholds"].split()]
    assert len(expected) == 3
    assert [one.name for one in limits] == [f"normalized cost at {one:g}" for one in expected]
    for limit, number in zip(expected, limits, strict=True):
        known = orlog.normalized_score(name, np.zeros(len(costs)), costs=costs, cost_limit=limit)
        assert number.value == pytest.approx(known.normalized_cost)
        assert number.note == ("safe" if known.safe else "not safe")


def test_the_limit_of_a_run_counts_too_and_zero_is_a_limit():
    names = [one.name for one in numbers_of([played(cost=[3.0, 5.0], limit=25)])]
    assert names == ["cost", *(f"normalized cost at {one}" for one in (10, 20, 25, 40))]
    zero = numbers_of([played(cost=[3.0, 5.0], limit=0)])[1]
    assert (zero.name, zero.value, zero.note) == ("normalized cost at 0", 5.0, "not safe")
    assert numbers_of([played(cost=[0.0, 0.0], limit=0)])[1].note == "safe"


def test_each_task_counts_alike_and_those_that_were_left_out_apart():
    tasks = [[0, 0], [0, 0], [0, 0], [4, 0], [7, 1], [7, 1]]
    success = [True, True, False, False, True, False]
    found = {one.name: one for one in numbers_of([played(by_task=tasks, success=success)])}
    assert [*found] == [
        "success rate, mean over tasks",
        "success rate in task 0",
        "success rate in task 4",
        "success rate in tasks that were left out",
        "success rate",
    ]
    assert found["success rate, mean over tasks"].value == pytest.approx((2 / 3 + 0) / 2)
    assert found["success rate in task 0"].interval == wilson_interval(2 / 3, 3)
    assert found["success rate in tasks that were left out"].note == "1 of 2 episodes"
    # Two runs that leave out a task each: the leave-one-out number is the mean of what they left out.
    other = played(by_task=[[0, 1], [4, 0], [7, 0]], success=[False, True, True])
    both = {one.name: one for one in numbers_of([played(by_task=tasks, success=success), other])}
    assert both["success rate in tasks that were left out"].value == 0.25
    assert both["success rate, mean over tasks"].value == pytest.approx((1 / 3 + 1) / 2)
    assert both["success rate in task 4"].value == 0.5
    assert both["success rate in task 7"].value == 1
    assert both["success rate, mean over tasks"].interval == share_interval([1 / 3, 1.0], 6)
    # Where every run has the same share, its interval has the width that their episodes give.
    alike = [played(by_task=[[0, 0], [4, 0]] * 20, success=[True] * 40) for _ in range(3)]
    for runs in (alike, alike[:1]):
        first = numbers_of(runs)[0]
        assert first.name == "success rate, mean over tasks"
        assert first.interval == share_interval([1.0] * len(runs), 40 * len(runs))


def test_tasks_are_called_by_their_words_where_these_tell_them_apart(mini):
    called = ["push", "pull", "turn", "turn", "open", "shut", ""]
    numbers = [0, 1, 2, 3, 4, 4, 5]
    with orlog.DatasetWriter(
        "lab/called-v1", observation_space=mini.observation_space, action_space=mini.action_space
    ) as writer:
        for number, words in zip(numbers, called, strict=True):
            metadata = {"task": number, "instruction": words}
            writer.add_episode(dataclasses.replace(mini[0], infos={}, metadata=metadata))
    assert words_of_tasks("lab/called-v1") == {0: "push", 1: "pull"}
    assert words_of_tasks("lab/elsewhere-v1") == {}
    run = played(by_task=[[0, 0], [2, 0]], success=[True, False])
    one, other = (dataclasses.replace(run, dataset=f"lab/{it}-v1") for it in ("called", "else"))
    for runs, name in (([one], "push"), ([one, one], "push"), ([one, other], "task 0")):
        assert f"success rate in {name}" in {number.name for number in numbers_of(runs)}


def test_a_task_is_left_out_if_no_episode_of_the_data_has_it(mini):
    numbered = orlog.combine_datasets([mini], pad=True)  # its only task is 0
    kept = completed({"by_task": np.array([0.0, 1.0, 0.0]), "success": np.ones(3)}, numbered)
    assert kept["by_task"].tolist() == [[0, 0], [1, 1], [0, 0]]
    assert kept["success"].tolist() == [1, 1, 1]


def test_what_was_counted_comes_back_from_the_fields_of_an_evaluation():
    arrays = {"success": np.array([True, False]), "cost": np.array([0.5, 3.0])}
    fields = as_fields(arrays)
    assert fields == {"successes": [True, False], "metrics": {"cost": [0.5, 3.0]}}
    found = of_fields({"returns": [1.0], **fields})
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values)
    assert of_fields({"successes": None, "metrics": {}}) == {}
    for wrong in ({"successes": "yes"}, {"metrics": {"cost": [["a"]]}}):
        with pytest.raises(ValueError, match="Expected"):
            of_fields(wrong)


def test_numbers_in_words():
    share = Number(metric="a", name="wins", value=0.4, interval=(0.168, 0.687), is_share=True, note="4 of 10")
    assert str(share) == "wins 40.0 % (4 of 10, 95 % interval 16.8 to 68.7)"
    assert share.cells() == ["wins", "40.0 %", "16.8 to 68.7", "4 of 10"]
    plain = Number(metric="b", name="cost", value=1.234, digits=2)
    assert str(plain) == "cost 1.23"
    assert plain.to_json()["interval"] is None
    other = Number(metric="b", name="more", value=2.0)
    assert in_short([share, plain, other]) == ["wins 40.0 %", "cost 1.23"]


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_the_volume_is_that_of_counted_cells(objectives):
    rng = np.random.default_rng(objectives)
    for _ in range(10):
        points = rng.integers(-1, 6, (5, objectives)).astype(float)
        cells = sum(
            bool((points >= np.array(cell) + 1).all(1).any()) for cell in itertools.product(range(6), repeat=objectives)
        )
        assert hypervolume(points, np.zeros(objectives)) == cells


def over_weights(weights, gained, dataset="lab/two-v1"):
    return played(dataset, episode_weights=weights, hypervolume=gained)


def test_episodes_of_the_same_weights_are_one_point():
    weights = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    run = over_weights(weights, [[4.0, 0.0], [1.0, 3.0], [2.0, 2.0]])
    assert points_of(run).tolist() == [[1, 3], [3, 1]]
    (number,) = numbers_of([run])
    assert (number.name, number.value, number.note) == ("hypervolume", 5.0, "")
    (both,) = numbers_of([run, over_weights(weights, [[4.0, 2.0], [1.0, 3.0], [2.0, 2.0]])])
    assert both.value == (5 + 7) / 2
    assert numbers_of([played(hypervolume=[[1.0, 1.0]])]) == []
    with pytest.raises(ValueError, match="lab/two-v1: an episode has 2 objectives and 3 weights"):
        points_of(over_weights([[1.0, 1.0, 1.0]], [[1.0, 1.0]]))


def test_that_of_a_known_front_is_said_beside():
    assert known_hypervolume("lab/two-v1") is None
    whole = known_hypervolume("objectives/treasure-v1")
    points = [(0.7, 24), (8.2, 22), (11.5, 20), (14.0, 18), (15.1, 17), (19.6, 12), (22.4, 8)]
    points = [(round(x, 3), y) for x, y in [*points, (23.7, 6)]]
    by_hand, before = 0.0, 0.0
    for width, height in points:
        by_hand, before = by_hand + (width - before) * height, width
    assert whole == pytest.approx(by_hand, rel=1e-6)
    (one,) = numbers_of([over_weights([[1.0, 0.0]], [[23.7, -19.0]], "objectives/treasure-v1")])
    assert one.value == pytest.approx(23.7 * 6)
    assert f"{whole:.3f} is that of the known front" in str(one)
