"""Runs of algorithms that reach goals: what they see of observations, and what cannot be scored."""

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog import goals
from orlog.algos.gcbc import GCBC
from orlog.algos.training.evaluating import load_run
from orlog.algos.training.policy import make_from_record, make_policy
from orlog.errors import NotFoundError, SchemaError
from orlog.loaders.arrays import read_arrays
from orlog.loaders.goals import GoalMixture, states_and_goals
from tests.episodes import whole_episode
from tests.training import SMALL, short

EYE = spaces.Box(0, 255, (8, 8, 1), np.uint8)


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
    frames = record("lab/eye-v1", spaces.Dict(achieved_goal=EYE, desired_goal=EYE, speed=box(3)))
    for dataset, width in ((mini, (2,)), (frames, (8, 8, 1))):
        arrays = read_arrays(dataset)
        made = states_and_goals(arrays, 16, seed=3, start=2, policy_goals=(0.0, 0.5, 0.5))
        value, actor = GoalMixture(trajectory=1.0, geometric=True), GoalMixture(trajectory=0.5, random=0.5)
        given = {"value_goals": value, "actor_goals": actor, "goal_key": "achieved_goal"}
        whole = goals(arrays, 16, seed=3, start=2, **given)
        for one, other in itertools.islice(zip(made, whole, strict=False), 3):
            for name in ("observations", "next_observations"):
                state, seen = getattr(one, name), getattr(other, name)
                if dataset is mini:
                    assert torch.equal(state, seen[:, [0, 1, 4, 5, 6, 7]])
                else:
                    assert state.keys() == {"achieved_goal", "speed"}
                    assert all(torch.equal(values, seen[key]) for key, values in state.items())
            for name in ("actions", "value_goals", "actor_goals", "rewards", "masks"):
                assert torch.equal(getattr(one, name), getattr(other, name))
            assert one.actor_goals.shape == (16, *width)


def test_a_policy_acts_for_the_desired_goal_in_the_units_of_achieved_ones(mini, tmp_path):
    run = short("gcbc", mini, tmp_path).record
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
    assert len(orlog.evaluate(tmp_path, episodes=2).returns) == 2


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
        short("gcbc", dataset, tmp_path, evaluations=1)
    short("gcbc", dataset, tmp_path)
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
        short("gcbc", dataset, tmp_path / "run", evaluations=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("space", [box(3), EYE])
def test_whole_observations_are_goals_of_data_that_ask_for_none(space, tmp_path):
    dataset = record("lab/plain-v1", space)
    settings = {**SMALL, "encoder": "impala", "representation": 8}
    run = short("qrl", dataset, tmp_path, settings=settings).record
    made = make_from_record(run, dataset)
    assert made.distance.goals is None
    observations = torch.from_numpy(np.stack([space.sample() for _ in range(3)]))
    assert made.act(observations, observations).shape == (3, 2)


def test_a_flow_for_goals_acts_with_noise_of_its_own_on_states_and_wanted_goals(mini, tmp_path):
    run = short("trl", mini, tmp_path, settings={**SMALL, "extraction": "frs", "sampled_actions": 3})
    assert len(orlog.evaluate(run, episodes=1).returns) == 1
    made = make_from_record(run.record, mini)
    policy = make_policy(made, mini, run.record)
    policy.start(2)
    flat = torch.arange(16.0).view(2, 8)
    places = {"achieved_goal": slice(0, 2), "desired_goal": slice(2, 4), "observation": slice(4, 8)}
    acted = policy({key: flat[:, place].numpy() for key, place in places.items()})
    actor = made.actor(2)
    expected = [actor.act(flat[:, [0, 1, 4, 5, 6, 7]], flat[:, 2:4]) for _ in range(2)]
    np.testing.assert_allclose(acted, expected[0], rtol=1e-6)
    assert not torch.equal(*expected)


def test_a_flow_without_a_goal_to_act_for_is_trained_and_not_scored(tmp_path):
    dataset = record("lab/odd-v1", spaces.Dict({"achieved_goal": box(2), "observation": box(3)}))
    settings = {**SMALL, "extraction": "frs"}
    with pytest.raises(NotFoundError, match=r"trl acts to reach a goal.*evaluations=0"):
        short("trl", dataset, tmp_path / "scored", settings=settings, evaluations=1)
    short("trl", dataset, tmp_path / "run", settings=settings)
    with pytest.raises(NotFoundError, match=r"no desired_goal to say which.*can be trained"):
        load_run(tmp_path / "run", dataset=dataset).policy(dataset[0].observations)
