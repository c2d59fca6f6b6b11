"""Worlds behind uncertainty: each number does what it says, beside a slow loop; and the recipes that use them."""

import dataclasses
import pickle

import gymnasium
import numpy as np
import pytest

import orlog
from orlog.datasets.worlds.environments import environment_versions, make_environment
from orlog.datasets.worlds.recipe import catalogue, parts_of
from orlog.datasets.worlds.uncertain import DATASETS, uncertain, with_uncertainty
from orlog.errors import SimulatorError

NUMBERS = [
    {},
    {"action_delay": 3},
    {"reward_delay": 5},
    {"observation_noise": 0.2},
    {"action_noise": 0.5},
    {"sticky_actions": 0.5},
    {"dropped_frames": 0.5},
    {
        "action_delay": 2,
        "reward_delay": 500,
        "observation_noise": 0.1,
        "action_noise": 1.5,
        "sticky_actions": 0.2,
        "dropped_frames": 0.3,
    },
]


def slow_loop(world, seed, actions, numbers):
    """Return observations and rewards of actions, by the text of `environments/uncertain.py` alone."""
    env = gymnasium.make(world)
    low, high = getattr(env.action_space, "low", None), getattr(env.action_space, "high", None)
    true, _ = env.reset(seed=seed)
    draws = env.unwrapped.np_random

    def looked_at(observation):
        noise = numbers.get("observation_noise", 0.0)
        return (
            (observation + noise * draws.standard_normal(observation.shape)).astype(np.float32)
            if noise
            else observation
        )

    seen = [looked_at(true)]
    earned = []
    tried = []
    for step, action in enumerate(actions):
        sticks = numbers.get("sticky_actions", 0.0)
        tried.append(tried[-1] if sticks and step and draws.uniform() < sticks else action)
        before = step - numbers.get("action_delay", 0)
        done = tried[before] if before >= 0 else actions[0] * 0
        if numbers.get("action_noise"):
            noise = numbers["action_noise"] * draws.standard_normal(done.shape)
            done = np.clip(done + noise, low, high).astype(np.float32)
        true, reward, terminated, truncated, _ = env.step(done)
        now = looked_at(true)
        dropped = numbers.get("dropped_frames", 0.0)
        seen.append(seen[-1] if dropped and draws.random() < dropped else now)
        earned.append(float(reward))
        if terminated or truncated:
            break
    delay = numbers.get("reward_delay", 0)
    paid = [0.0] * min(delay, len(earned)) + earned[: max(len(earned) - delay, 0)]
    if delay:
        paid[-1] += sum(earned) - sum(paid)
    return seen, paid


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("world", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_each_number_does_what_a_slow_loop_does(world, numbers):
    draw = np.random.default_rng(0)
    with make_environment("orlog/uncertain-v0", {"environment": world, **numbers}) as env:
        limit = gymnasium.spec(world).max_episode_steps
        assert env.spec.max_episode_steps == limit
        space = env.action_space
        actions = [draw.uniform(space.low, space.high).astype(np.float32) for _ in range(limit)]
        for seed in (3, 4):
            first, _ = env.reset(seed=seed)
            seen = [first]
            paid = []
            ended = False
            while not ended:
                assert env.observation_space.contains(seen[-1])
                observation, reward, terminated, truncated, _ = env.step(actions[len(paid)])
                seen.append(observation)
                paid.append(float(reward))
                ended = terminated or truncated
            expected_seen, expected_paid = slow_loop(world, seed, actions, numbers)
            assert np.array(seen).tobytes() == np.array(expected_seen).tobytes()
            np.testing.assert_allclose(paid, expected_paid, atol=1e-9)


def test_numbered_actions_are_delayed_and_stick_too():
    numbers = {"action_delay": 2, "sticky_actions": 0.4, "dropped_frames": 0.2}
    actions = [1, 0, 1, 1, 0, 1, 0, 0, 1]
    env = uncertain(environment="CartPole-v1", **numbers)
    seen = [env.reset(seed=5)[0], *(env.step(action)[0] for action in actions)]
    expected, _ = slow_loop("CartPole-v1", 5, actions, numbers)
    assert np.array(seen).tobytes() == np.array(expected).tobytes()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"action_delay": -1}, "action_delay=-1: it is a number of steps, 0 or more"),
        ({"action_delay": 1.5}, r"action_delay=1\.5: it is a number of steps"),
        ({"reward_delay": True}, "reward_delay=True: it is a number of steps"),
        ({"reward_delay": 10**9}, "reward_delay=1000000000: it is .*, and at most 10,000"),
        ({"observation_noise": -0.1}, r"observation_noise=-0\.1: it is a standard deviation"),
        ({"action_noise": float("nan")}, "action_noise=nan: it is a standard deviation"),
        ({"sticky_actions": 1}, "sticky_actions=1: it is a probability, at least 0 and below 1"),
        ({"dropped_frames": -0.5}, r"dropped_frames=-0\.5: it is a probability"),
        ({"action_noise": 0.1}, r"action_noise=0\.1: CartPole-v1 has no actions of floats, but"),
    ],
)
def test_other_numbers_are_errors(numbers, message):
    with pytest.raises(ValueError, match=message):
        uncertain(environment="CartPole-v1", **numbers)
    with pytest.raises(SimulatorError, match=message):
        make_environment("orlog/uncertain-v0", {"environment": "CartPole-v1", **numbers})


PLAIN = {
    "classic/pendulum-mixed-v1": "gymnasium",
    "mujoco/hopper-expert-v1": "mujoco",  # has parts
    "pointmaze/umaze-mini-v1": "mujoco",  # its world has arguments, and observes goals
    "tabular/frozenlake-v1": "gymnasium",  # its controller looks at the world itself
}


@pytest.mark.parametrize("name", PLAIN)
def test_any_recipe_has_variants(name):
    plain = catalogue()[name].recipe
    variant = None
    for numbers in ({}, {"sticky_actions": 0.5}):
        variant = pickle.loads(pickle.dumps(with_uncertainty(plain, **numbers)))  # as for worker processes
        assert isinstance(variant, type(plain))
        assert variant == with_uncertainty(plain, **numbers)
        assert variant.name == "uncertain"
        assert variant.parameters["uncertainty"] == numbers
        one, other = (next(parts_of(each)[0].episodes(0, 1)) for each in (plain, variant))
        same = np.array_equal(one.rewards, other.rewards) and np.array_equal(one.actions, other.actions)
        assert same == (not numbers)
    versions = environment_versions(variant.environment_id, variant.environment_kwargs)
    assert versions == environment_versions(plain.environment_id)
    assert PLAIN[name] in versions


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("uncertain/hopper-noise-v1", {"action_delay": 1}, "Hopper-v5 is behind uncertainty already"),
        ("ogbench-local/cube-single-play-v1", {}, "ogbench-play does not record in orlog/ogbench"),
        (
            "classic/pendulum-mixed-v1",
            {"action_delays": 1},
            r"action_delays is no number .*; did you mean action_delay\?; there are action_delay, reward",
        ),
    ],
)
def test_what_cannot_be_behind_uncertainty(name, numbers, message):
    with pytest.raises(ValueError, match=message):
        with_uncertainty(catalogue()[name].recipe, **numbers)


def test_a_world_behind_uncertainty_is_in_no_other_one():
    inner = {"environment": "Pendulum-v1", "action_delay": 1}
    with pytest.raises(ValueError, match="it is behind uncertainty already; name the world behind"):
        uncertain(environment="orlog/uncertain-v0", arguments=inner)


def test_a_dataset_is_scored_in_the_world_that_recorded_it(monkeypatch):
    entry = DATASETS["uncertain/pendulum-noise-v1"]
    recipe = entry.recipe
    tiny = dataclasses.replace(entry, recipe=dataclasses.replace(recipe, count=3))
    monkeypatch.setitem(DATASETS, "uncertain/tiny-v1", tiny)
    dataset = orlog.load_dataset(orlog.build_dataset("uncertain/tiny-v1"))
    record = dataset.manifest.environment
    assert record.kwargs == {"environment": "Pendulum-v1", "observation_noise": 0.2}
    assert record.max_episode_steps == 200
    with dataset.recover_environment() as env:
        first, _ = env.reset(seed=dataset[0].seed)
    assert np.array_equal(first, dataset[0].observations[0])
