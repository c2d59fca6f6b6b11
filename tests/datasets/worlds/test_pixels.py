"""The tasks seen in pictures: what they show is what a slow drawing of their state shows."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.datasets.worlds.environments import environment_versions, make_environment
from orlog.datasets.worlds.pixels import DATASETS, PADDLES, SIZE, Catch, PixelsRecipe, Reach, Thing, box, disc, picture
from orlog.runs.evaluating import measure_references
from tests.levels import scaled

IDS = ("orlog/Catch-v0", "orlog/Reach-v0")
places = st.floats(-5, SIZE + 5)
PIXELS = [(row, column) for row in range(SIZE) for column in range(SIZE)]


def overlap(center, length, pixel):
    """Return the length that an interval has in common with a pixel."""
    return max(0.0, min(pixel + 1, center + length / 2) - max(pixel, center - length / 2))


def smooth(distance):
    """Return the brightness of a pixel whose center is that far outside of an edge."""
    return min(1.0, max(0.0, 0.5 - distance))


@settings(max_examples=scaled(80))
@given(places, places, st.floats(0, 9), st.floats(0, 9))
def test_a_box_covers_of_each_pixel_what_they_have_in_common(x, y, width, height):
    expected = [overlap(y, height, row) * overlap(x, width, column) for row, column in PIXELS]
    np.testing.assert_allclose(box(x, y, width, height).ravel(), expected, atol=1e-9)


@settings(max_examples=scaled(80))
@given(places, places, st.floats(0, 9))
def test_a_disc_is_smooth_at_its_edge(x, y, radius):
    expected = [smooth(math.dist((x, y), (c + 0.5, r + 0.5)) - radius) for r, c in PIXELS]
    np.testing.assert_allclose(disc(x, y, radius).ravel(), expected, atol=1e-9)


@pytest.mark.parametrize("environment_id", IDS)
def test_gymnasium_finds_nothing_wrong(environment_id):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make_environment(environment_id, {}).unwrapped, skip_render_check=True)
    assert set(environment_versions(environment_id)) == {"gymnasium", "numpy"}


@pytest.mark.parametrize("environment_id", IDS)
def test_observations_are_the_last_three_pictures_of_the_state_and_come_again(environment_id):
    with make_environment(environment_id, {}) as env, make_environment(environment_id, {}) as other:
        observation, _ = env.reset(seed=7)
        again, _ = other.reset(seed=7)
        state = env.unwrapped
        pictures = [state.draw()] * 3
        env.action_space.seed(0)
        truncated, steps = False, 0
        while not truncated:
            np.testing.assert_array_equal(observation, np.stack(pictures[-3:], -1))
            np.testing.assert_array_equal(observation, again)
            action = env.action_space.sample()
            observation, reward, terminated, truncated, _ = env.step(action)
            again, reward_again, *_ = other.step(action)
            assert reward == reward_again
            assert not terminated
            pictures.append(state.draw())
            steps += 1
        assert steps == env.spec.max_episode_steps


def test_catch_shows_every_apple_and_stone_and_the_paddle():
    env = Catch()
    env.reset(seed=0)
    env.step_count, env.paddle = 20, 3
    env.things = [Thing(True, 0, 30.0, 0.5, 1.0), Thing(False, 5, 10.0, 0.0, 0.8)]
    expected = np.zeros((SIZE, SIZE))
    # An apple that began at 30 and moved by 10 has bounced off the wall at 36.
    shown = [(10.0, 34.5, 8, 2, 200), (32.0, 18.0, 3, 3, 255), (10.0, 10.0, 5, 2, 120)]
    for x, y, width, height, brightness in shown:
        for row, column in PIXELS:
            light = brightness * overlap(y, height, row) * overlap(x, width, column)
            expected[row, column] = max(expected[row, column], light)
    np.testing.assert_array_equal(env.draw(), np.rint(expected))


@pytest.mark.parametrize(("distance", "is_apple", "reward"), [(5, True, 1), (5, False, -1), (6, True, 0)])
def test_what_lands_on_the_paddle_counts(distance, is_apple, reward):
    env = Catch()
    env.reset(seed=0)
    thing = Thing(is_apple, 0, PADDLES[env.paddle] - distance, 0.0, 1.0)
    env.things = [thing]
    rewards = [env.step(np.int64(1))[1] for _ in range(thing.landing)]
    assert rewards == [0.0] * (thing.landing - 1) + [reward]
    assert thing not in env.things


def test_reach_shows_puck_and_target_and_pays_for_each_step_on_the_target():
    env = Reach()
    env.reset(seed=0)
    env.puck, env.velocity = (10.0, 20.0), (1.0, 0.0)
    env.target, env.target_velocity = (13.5, 20.0), (0.25, 0.0)
    assert env.step(np.array([1.0, -0.5], np.float32))[1] == 1.0
    np.testing.assert_allclose([*env.puck, *env.velocity], [11.6, 19.5, 1.6, -0.5])
    assert env.target == (13.75, 20.0)
    expected = picture((120.0, disc(*env.target, 4.0)), (255.0, disc(*env.puck, 2.0)))
    np.testing.assert_array_equal(env.draw(), expected)
    env.target = (env.puck[0] + 6.0, 20.0)
    assert env.step(np.zeros(2, np.float32))[1] == 0.0


def test_walls_stop_the_puck_and_turn_the_target_around():
    env = Reach()
    env.reset(seed=0)
    env.puck, env.velocity = (4.0, 20.0), (-2.0, 0.0)
    env.target, env.target_velocity = (32.5, 20.0), (0.75, 0.5)
    env.step(np.zeros(2, np.float32))
    assert (env.puck, env.velocity) == ((3.0, 20.0), (0.0, 0.0))
    assert (env.target, env.target_velocity) == ((32.5, 20.5), (-0.75, 0.5))


RECIPES = {name: entry.recipe for name, entry in DATASETS.items() if isinstance(entry.recipe, PixelsRecipe)}


@pytest.mark.parametrize("name", RECIPES)
def test_good_controllers_earn_more_than_noisy_ones_and_these_more_than_random_actions(name):
    episodes = list(RECIPES[name].episodes(0, 12))
    means = [np.mean([one.rewards.sum() for one in episodes[start::3]]) for start in range(3)]
    assert means == sorted(means)
    assert [one.metadata["behavior"] for one in episodes[:3]] == ["random", "medium", "expert"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_expert_watches_the_environments_that_it_acts_in(name):
    recipe = RECIPES[name]
    policy = recipe.expert().policy
    with make_environment(recipe.environment_id, {}) as env, make_environment(recipe.environment_id, {}) as other:
        policy.watch([env, other])
        observations = [one.reset(seed=seed)[0] for seed, one in enumerate((env, other))]
        for _ in range(5):
            actions = policy(np.stack(observations))
            assert actions.dtype == env.action_space.dtype
            chosen = [recipe.chosen(one, None) for one in (env, other)]
            np.testing.assert_array_equal(actions, np.asarray(chosen, actions.dtype))
            for one, action in zip((env, other), actions, strict=True):
                one.step(action)


def test_a_dataset_keeps_log_probabilities_and_its_references_are_measured(monkeypatch):
    entry = DATASETS["pixels/reach-mixed-v1"]
    recipe = dataclasses.replace(RECIPES["pixels/reach-mixed-v1"], count=3, steps=120)
    monkeypatch.setitem(DATASETS, "pixels/tiny-v1", dataclasses.replace(entry, recipe=recipe))
    orlog.build_dataset("pixels/tiny-v1")
    dataset = orlog.load_dataset("pixels/tiny-v1")
    assert dataset.observation_space.shape == (36, 36, 3)
    (made,) = recipe.episodes(2, 3)
    found = dataset[2]
    assert np.array_equal(found.infos["action_log_probs"], made.infos["action_log_probs"])
    assert found.metadata == {"behavior": "expert"}
    references = measure_references(dataset, episodes=4)
    assert references.expert.mean > 20 > references.random.mean
