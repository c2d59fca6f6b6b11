"""Combinations by task, and of unequal spaces: what a slow loop over the datasets would fill up and draw."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import orlog
from orlog.datasets.store.version import StoredVersion
from orlog.errors import SchemaError
from tests.levels import scaled

KINDS = st.tuples(st.integers(1, 4), st.integers(1, 3), st.sampled_from(["float32", "float64"]))
NUMBERS = itertools.count()


def record(name, observations, actions, lengths, tasks=None, **infos):
    """Record episodes whose numbers are random."""
    rng = np.random.default_rng(len(name) + sum(lengths))

    def drawn(space, count):
        if isinstance(space, spaces.Discrete):
            return np.asarray(space.start + rng.integers(space.n, size=count))
        return np.asarray(rng.uniform(-1, 1, (count, *space.shape)), space.dtype)

    with orlog.DatasetWriter(name, observation_space=observations, action_space=actions) as writer:
        for number, length in enumerate(lengths):
            writer.add_steps(
                observations=drawn(observations, length + 1),
                actions=drawn(actions, length),
                rewards=rng.normal(size=length),
                terminations=np.arange(length) == length - 1,
                truncations=np.zeros(length, bool),
                infos={key: np.full(length, value) for key, value in infos.items()},
            )
            writer.end_episode(metadata={"weight": 1.0, **({"instruction": tasks[number]} if tasks else {})})
    return orlog.load_dataset(name)


def box(width, dtype="float32"):
    return spaces.Box(-1, 1, (width,), np.dtype(dtype).type)


def filled(values, width):
    """Fill up rows, number by number."""
    found = np.zeros((len(values), width))
    for row, one in enumerate(values):
        for index, value in enumerate(one):
            found[row, index] = value
    return found


@settings(
    max_examples=scaled(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(parts=st.lists(st.tuples(KINDS, st.lists(st.integers(1, 4), min_size=1, max_size=3)), min_size=1, max_size=4))
def test_every_row_is_what_a_slow_loop_fills_up(parts, home):
    some = next(NUMBERS)
    datasets = [
        record(f"lab/part{index}-v{some}", box(obs, dtype), box(act), lengths)
        for index, ((obs, act, dtype), lengths) in enumerate(parts)
    ]
    view = orlog.combine_datasets(datasets, weights="tasks", pad=True)
    width = max(obs for (obs, _, _), _ in parts)
    act_width = max(act for (_, act, _), _ in parts)
    episodes = [(number, episode) for number, dataset in enumerate(datasets) for episode in dataset]
    assert view.total_episodes == len(episodes)
    for found, (number, episode) in zip(view, episodes, strict=True):
        obs, act, _ = parts[number][0]
        np.testing.assert_array_equal(found.observations, filled(episode.observations, width))
        np.testing.assert_array_equal(found.actions, filled(episode.actions, act_width))
        np.testing.assert_array_equal(found.rewards, episode.rewards)
        for flags, real, all_of_them in (("valid/observations", obs, width), ("valid/actions", act, act_width)):
            expected = [[index < real for index in range(all_of_them)]] * len(episode)
            np.testing.assert_array_equal(found.infos[flags], expected)
        assert found.metadata == {"weight": 1.0, "task": number, "instruction": datasets[number].name}
    # Any rows of any columns, in any order, and the view of the view that is saved and opened.
    again = orlog.load_dataset(view.save(home / f"view-{some}.json"))
    assert again.digest == view.digest
    rng = np.random.default_rng(some)
    for name in view.columns:
        if "@" in name:
            continue
        whole = view.column(name)
        rows = rng.integers(len(whole), size=7)
        np.testing.assert_array_equal(again.rows(name, rows), whole[rows])
        first, last = sorted(rng.integers(len(whole) + 1, size=2).tolist())
        np.testing.assert_array_equal(again.column(name, first, last), whole[first:last])
    stored = orlog.load_dataset(orlog.save_dataset(view, f"lab/all-v{some}"))
    for one, other in zip(stored, view, strict=True):
        assert one.observations.tobytes() == other.observations.tobytes()
        assert one.metadata == other.metadata
    # A part of it, and it beside another: what was filled up is filled up further.
    wider = record(f"lab/wider-v{some}", box(width + 2), box(act_width), [2])
    nested = orlog.combine_datasets([wider, view[::-1]], pad=True)
    for found, (number, episode) in zip(nested[1:], episodes[::-1], strict=True):
        (obs, _, _), _ = parts[number]
        np.testing.assert_array_equal(found.observations, filled(episode.observations, width + 2))
        assert found.infos["valid/observations"].sum(axis=1).tolist() == [obs] * len(episode)
        assert found.metadata["instruction"] == datasets[number].name
        assert found.metadata["task"] != nested[0].metadata["task"] == 0


def test_batches_have_filled_observations_flags_and_the_task():
    reach, push = (
        record("lab/reach-v1", box(2), box(1), [3, 4], ["reach it", "reach it"]),
        record("lab/push-v1", box(3), box(2), [50] * 8, ["push it"] * 8),
    )
    both = orlog.combine_datasets([reach, push], weights="tasks", pad=True)
    assert both.roles == {"episodes/instruction": "task_words", "episodes/task": "task"}
    assert both.environment is None
    infos = ("episodes/task", "episodes/instruction", "valid/observations", "valid/actions")
    arrays = orlog.load_arrays(both, infos=infos)
    assert arrays.infos is not None
    assert arrays.infos.texts == {"episodes/instruction": ("reach it", "push it")}
    count = 0
    for batch in itertools.islice(orlog.transitions(arrays, 200, seed=0, infos=infos), 10):
        task = batch.infos["episodes/task"]
        count += int(task.sum())
        assert (batch.infos["valid/observations"].sum(1) == 2 + task).all()
        assert (batch.infos["valid/actions"].sum(1) == 1 + task).all()
        assert (batch.infos["episodes/instruction"] == task).all()
        for values, flags in (
            (batch.observations, "valid/observations"),
            (batch.next_observations, "valid/observations"),
            (batch.actions, "valid/actions"),
        ):
            assert not (values != 0)[~batch.infos[flags]].any()
    assert abs(count / 2000 - 0.5) < 0.06  # 7 and 400 steps; each task is as likely
    windows = next(iter(orlog.windows(both, 8, seed=0, observations=(-1, 0), actions=range(2), padding="edge")))
    assert isinstance(windows.observations, torch.Tensor)
    assert windows.observations.shape == (8, 2, 3)


def test_choices_are_filled_up_and_said_to_be_legal():
    two = record("lab/two-v1", box(2), spaces.Discrete(2), [4])
    three = record("lab/three-v1", box(2), spaces.Discrete(3, start=1), [5])
    both = orlog.combine_datasets([two, three], pad=True)
    assert both.action_space == spaces.Discrete(4)
    assert both.roles["infos/legal_actions"] == "legal_actions"
    assert both[0].infos["legal_actions"].tolist() == [[True, True, False, False]] * 4
    assert both[1].infos["legal_actions"].tolist() == [[False, True, True, True]] * 5
    np.testing.assert_array_equal(both[1].actions, three[0].actions)
    assert orlog.audit(orlog.save_dataset(both, "lab/choices-v1")).is_good


def test_tasks_count_alike_where_one_dataset_has_several_or_two_have_one():
    some = record("lab/some-v1", box(2), box(1), [9, 1, 4], ["reach", "push", "push"])
    more = record("lab/more-v1", box(2), box(1), [6], ["reach"])
    both = orlog.combine_datasets([some, more], weights="tasks")
    assert both.mixture is not None
    assert both.mixture[0].tolist() == [0, 1, 1, 0]
    assert both.mixture[1] == (0.5, 0.5)
    assert both.columns == some.columns  # without pad nothing is added
    assert [one.metadata["instruction"] for one in both] == ["reach", "push", "push", "reach"]
    with pytest.raises(ValueError, match="lab/some-v1 is weighted itself"):
        orlog.combine_datasets([both, more], weights="tasks")


def test_what_cannot_be_filled_up_is_refused_with_what_to_do():
    one = record("lab/one-v1", box(2), box(1), [2], ["reach"])
    wide = record("lab/wide-v1", box(3), box(1), [2], ["reach"])
    with pytest.raises(SchemaError, match=r"one-v1 and lab/wide-v1 both have the task 'reach'.*same spaces"):
        orlog.combine_datasets([one, wide], pad=True)
    other = record("lab/other-v1", box(3), spaces.Discrete(2), [2])
    with pytest.raises(SchemaError, match=r"other-v1: action_space Discrete\(2\).*vectors of floats"):
        orlog.combine_datasets([one, other], pad=True)
    with pytest.raises(SchemaError, match="pad=True fills up"):
        orlog.combine_datasets([one, wide])
    for weights in ([0.5], [1, -1], [0, 0]):
        with pytest.raises(ValueError, match="weights"):
            orlog.combine_datasets([one, one], weights=weights, pad=True)
    with pytest.raises(TypeError, match="'tasks'"):
        orlog.combine_datasets([one, one], weights="task")


def test_a_version_that_is_filled_up_is_a_whole_version():
    """It answers whatever a stored version is asked, about the values that are stored."""
    parents = [record(f"lab/w{width}-v1", box(width), box(1), [3, 2]) for width in (2, 4)]
    for padded in orlog.combine_datasets(parents, pad=True).selection().versions:
        stored = StoredVersion(padded.folder)
        assert padded.chunks_of_shards() == stored.chunks_of_shards()
        assert padded.hash_column(0, "actions") == stored.hash_column(0, "actions")
        again = pickle.loads(pickle.dumps(padded))
        assert again.identity == padded.identity
        assert (again.read("observations") == padded.read("observations")).all()
