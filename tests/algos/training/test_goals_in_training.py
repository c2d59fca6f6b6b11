"""Runs of algorithms that reach goals: what they see of observations, and what cannot be scored."""

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog import goals
from orlog.algos.gcbc import GCBC
from orlog.algos.training.evaluating import evaluate_run, load_run
from orlog.algos.training.policy import make_from_record, make_policy
from orlog.errors import NotFoundError, SchemaError
from orlog.loaders.arrays import read_arrays
from orlog.loaders.goals import GoalMixture
from orlog.loaders.states_and_goals import states_and_goals
from tests.episodes import whole_episode
from tests.training import train_run

EYE = spaces.Box(0, 255, (8, 8, 1), np.uint8)
SMALL = {"hidden": [4], "batch_size": 8}


def box(*shape, dtype=np.float32):
    return spaces.Box(-np.inf, np.inf, shape, dtype)


def record(name, space):
    """Return two recorded episodes of ten steps, without an environment."""
    space.seed(0)
    rng = np.random.default_rng(0)
    with orlog.DatasetWriter(
        name, observation_space=space, action_space=spaces.Box(-1, 1, (2,), np.float32), reward_dtype=np.float32
    ) as writer:
        for _ in range(2):
            rows = [space.sample() for _ in range(11)]
            writer.add_episode(
                whole_episode(
                    {key: np.stack([row[key] for row in rows]) for key in rows[0]}
                    if isinstance(space, spaces.Dict)
                    else np.stack(rows),
                    rng.uniform(-1, 1, (10, 2)).astype(np.float32),
                    np.zeros(10, np.float32),
                    end="truncation",
                )
            )
    return orlog.load_dataset(name)


def test_batches_have_states_without_the_goal_that_the_data_wanted(mini):
    # Flat observations are achieved_goal, desired_goal and observation, of 2, 2 and 4 numbers.
    arrays = read_arrays(mini)
    made = states_and_goals(arrays, 16, seed=3, start=2, policy_goals=(0.0, 0.5, 0.5))
    whole = goals(
        arrays,
        16,
        seed=3,
        start=2,
        value_goals=GoalMixture(trajectory=1.0, geometric=True),
        actor_goals=GoalMixture(trajectory=0.5, random=0.5),
        goal_key="achieved_goal",
    )
    for one, other in itertools.islice(zip(made, whole, strict=False), 3):
        state = [0, 1, 4, 5, 6, 7]
        assert torch.equal(one.observations, other.observations[:, state])
        assert torch.equal(one.next_observations, other.next_observations[:, state])
        for name in ("actions", "value_goals", "actor_goals", "rewards", "masks"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        assert one.actor_goals.shape == (16, 2)


def test_a_policy_acts_for_the_desired_goal_in_the_units_of_achieved_ones(mini, tmp_path):
    run = train_run("gcbc", mini, tmp_path, seed=0, steps=3, evaluations=0, settings=SMALL)
    made = make_from_record(run, mini)
    # A goal is a position, and the position is the first part of the state too.
    assert torch.equal(made.scaling.goal_mean, made.scaling.obs_mean[:2])
    assert torch.equal(made.scaling.goal_std, made.scaling.obs_std[:2])
    np.testing.assert_array_equal(made.scaling.obs_mean[2:], run.obs_mean[4:])
    rng = np.random.default_rng(0)
    observations = {
        "achieved_goal": rng.normal(size=(5, 2)),
        "desired_goal": rng.normal(size=(5, 2)),
        "observation": rng.normal(size=(5, 4)),
    }
    parts = {key: torch.from_numpy(one).float() for key, one in observations.items()}
    states = torch.cat([parts["achieved_goal"], parts["observation"]], 1)
    expected = made.act(states, parts["desired_goal"]).numpy()
    policy = make_policy(made, mini, run)
    np.testing.assert_array_equal(policy(observations), expected)
    others = policy({**observations, "desired_goal": -observations["desired_goal"]})
    assert (others != expected).any(1).all()


def test_a_goal_algorithm_is_scored_where_observations_ask_for_a_goal(mini, tmp_path):
    train_run("gcbc", mini, tmp_path, seed=0, steps=3, evaluations=0, settings=SMALL)
    _, evaluation = evaluate_run(tmp_path, episodes=2)
    assert len(evaluation.returns) == 2


@pytest.mark.parametrize("has_achieved", [False, True])
def test_data_that_ask_for_no_goal_are_trained_on_and_not_scored(tmp_path, monkeypatch, has_achieved):
    with_goals = spaces.Dict({"achieved_goal": box(2), "observation": box(3)})
    dataset = record("lab/plain-v1", with_goals if has_achieved else box(3))
    widths = set()
    update = GCBC.update

    def look(self, batch):
        widths.add((batch.observations.shape[1], batch.actor_goals.shape[1]))
        return update(self, batch)

    monkeypatch.setattr(GCBC, "update", look)
    with pytest.raises(NotFoundError, match=r"gcbc acts to reach a goal.*evaluations=0"):
        train_run("gcbc", dataset, tmp_path, seed=0, steps=3, settings=SMALL)
    train_run("gcbc", dataset, tmp_path, seed=0, steps=3, settings=SMALL, evaluations=0)
    assert widths == {(5, 2) if has_achieved else (3, 3)}
    run = load_run(tmp_path, dataset=dataset)
    with pytest.raises(NotFoundError, match=r"no desired_goal to say which.*can be trained"):
        run.policy(dataset[0].observations)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"desired_goal": box(2), "observation": box(3)}, "lab/.*desired_goal but no achieved_goal"),
        (
            {"achieved_goal": box(2), "desired_goal": box(3), "observation": box(3)},
            r"lab/.*must have the shape of achieved_goal, found \(3,\) and \(2,\)",
        ),
        (
            {"achieved_goal": spaces.Discrete(3), "desired_goal": EYE, "observation": EYE},
            r"lab/odd-v1: desired_goal is Box\(.* and achieved_goal is Discrete\(3\); record both",
        ),
    ],
)
def test_goals_that_cannot_be_learned_from_are_refused(tmp_path, parts, message):
    dataset = record("lab/odd-v1", spaces.Dict(parts))
    with pytest.raises(SchemaError, match=message):
        train_run("gcbc", dataset, tmp_path / "run", seed=0, steps=3, settings=SMALL)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["0.5,0.6,0", "1,0", "-0.5,1,0.5", "0.5"])
def test_probabilities_that_do_not_sum_to_1_are_refused(mini, tmp_path, value):
    with pytest.raises(ValueError, match="policy_goals"):
        train_run("gcbc", mini, tmp_path, seed=0, steps=3, settings={"policy_goals": value})


@pytest.mark.parametrize("space", [box(3), EYE])
def test_whole_observations_are_goals_of_data_that_ask_for_none(space, tmp_path):
    dataset = record("lab/plain-v1", space)
    settings = {**SMALL, "encoder": "impala", "representation": 8}
    run = train_run("qrl", dataset, tmp_path, seed=0, steps=2, settings=settings, evaluations=0)
    made = make_from_record(run, dataset)
    assert made.distance.goals is None
    observations = torch.from_numpy(np.stack([space.sample() for _ in range(3)]))
    assert made.act(observations, observations).shape == (3, 2)


def test_states_with_frames_lack_the_goal_that_the_data_wanted():
    space = spaces.Dict(achieved_goal=EYE, desired_goal=EYE, speed=box(3))
    arrays = read_arrays(record("lab/eye-v1", space))
    made = states_and_goals(arrays, 16, seed=3, policy_goals=(0.0, 1.0, 0.0))
    whole = goals(
        arrays,
        16,
        seed=3,
        value_goals=GoalMixture(trajectory=1.0, geometric=True),
        actor_goals=GoalMixture(trajectory=1.0),
        goal_key="achieved_goal",
    )
    one = next(iter(made))
    other = next(iter(whole))
    for name in ("observations", "next_observations"):
        assert list(getattr(one, name)) == ["achieved_goal", "speed"]
        for key, values in getattr(one, name).items():
            assert torch.equal(values, getattr(other, name)[key])
    assert torch.equal(one.actor_goals, other.actor_goals)
    assert one.actor_goals.shape == (16, 8, 8, 1)
