"""Replays of recorded actions: what comes out as recorded, and the first step that does not."""

import dataclasses
import importlib.metadata
import json
import math

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv

import orlog
from orlog.datasets.audit.replay import TOLERANCE, difference, replay
from orlog.datasets.worlds.classic import DATASETS
from orlog.errors import NotFoundError, SchemaError, SimulatorError
from tests import command_line
from tests.pendulum import pendulum

CHANGED = 71


def written(name, episodes, environment="Pendulum-v1", **facts):
    """Store changed episodes as a dataset of an environment."""
    with gymnasium.make(environment) as env, orlog.DatasetWriter(name, environment=env, **facts) as writer:
        for episode in episodes:
            writer.add_episode(dataclasses.replace(episode, index=None))
    return orlog.load_dataset(name)


def seeded(name="lab/seeded-v1", change=lambda episode: episode, **facts):
    """Return two episodes of Pendulum with the seeds of their resets, changed."""
    recorded = pendulum(f"{name[:-3]}-as-recorded-v1")
    episodes = [change(dataclasses.replace(episode, seed=seed)) for seed, episode in enumerate(recorded)]
    return written(name, episodes, **facts)


def with_other_action(episode):
    actions = episode.actions.copy()
    actions[CHANGED] = -np.sign(actions[CHANGED]) * 2
    return dataclasses.replace(episode, actions=actions)


def moved(by, row):
    """Return a change of one observation's angular velocity."""

    def change(episode):
        observations = episode.observations.copy()
        observations[row, 2] += by * (1 + abs(observations[row, 2]))
        return dataclasses.replace(episode, observations=observations)

    return change


def cartpole(name="lab/pole-v1", *, state=False):
    """Record three episodes of CartPole that end by falling."""
    with orlog.record(gymnasium.make("CartPole-v1"), name, state=state) as env:
        env.action_space.seed(3)
        for seed in (7, 8, 9):
            env.reset(seed=seed)
            is_over = False
            while not is_over:
                _, _, is_over, _, _ = env.step(env.action_space.sample())
    return orlog.load_dataset(name)


def test_what_was_recorded_here_replays_exactly():
    seen = []
    replayed = replay(seeded(), progress=lambda done, total: seen.append((done, total)))
    assert [(one.verdict, one.start, one.seed, one.steps) for one in replayed.replays] == [
        ("exact", "seed", 0, 200),
        ("exact", "seed", 1, 200),
    ]
    assert replayed.is_good
    assert replayed.environment == "Pendulum-v1"
    assert replayed.versions == replayed.recorded_versions
    assert replayed.versions["gymnasium"] == gymnasium.__version__
    assert seen == [(200, 400), (400, 400)]


def test_a_changed_action_is_the_first_step_that_leaves():
    replayed = replay(seeded(change=with_other_action))
    assert not replayed.is_good
    for one in replayed.replays:
        assert (one.verdict, one.step, one.column) == ("left", CHANGED, "observations[2]")
        assert one.difference > 0.01  # 0.15 for each unit of torque


@pytest.mark.parametrize(
    ("by", "row", "verdict", "step"),
    [
        (0.5 * TOLERANCE, 30, "rounding", None),
        (2 * TOLERANCE, 30, "left", 29),
        (2 * TOLERANCE, 200, "left", 199),
        (0.5, 0, "left", None),  # the reset gives another observation
    ],
)
def test_rounding_is_told_from_leaving(by, row, verdict, step):
    recorded = seeded(change=moved(by, row))
    for one, episode in zip(replay(recorded).replays, recorded, strict=True):
        assert (one.verdict, one.step, one.column) == (verdict, step, "observations[2]")
        value = episode.observations[row, 2]
        assert one.difference == pytest.approx(by * (1 + abs(value)), rel=0.5)


def test_without_seed_and_state_there_is_no_verdict():
    replayed = replay(pendulum())
    assert [(one.verdict, one.start, one.is_reached) for one in replayed.replays] == [("unknown", "", None)] * 2
    assert replayed.is_good
    assert "2 without a known start" in replayed.summary()


def test_seeds_of_a_recipe_that_records_in_another_environment_reset_nothing_here(monkeypatch):
    recipe = dataclasses.replace(DATASETS["classic/pendulum-mixed-v1"].recipe, steps=400)
    entry = dataclasses.replace(DATASETS["classic/pendulum-mixed-v1"], recipe=recipe)
    monkeypatch.setitem(DATASETS, "classic/tiny-v1", entry)
    built = orlog.load_dataset("classic/tiny-v1", build=True)
    assert {one.verdict for one in replay(built).replays} == {"exact"}
    monkeypatch.setattr(PendulumEnv, "only_scores", True, raising=False)
    replayed = replay(built[:2])
    assert [(one.verdict, one.seed) for one in replayed.replays] == [("unknown", None)] * 2
    assert replayed.is_good
    assert {one.verdict for one in replay(seeded()).replays} == {"exact"}  # recorded here, by no recipe


def test_another_version_of_the_simulator_is_named(monkeypatch):
    version = importlib.metadata.version
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", lambda name: "0.29.1" if name == "gymnasium" else version(name))
        recorded = seeded()
    step = PendulumEnv.step
    monkeypatch.setattr(PendulumEnv, "step", lambda self, action: step(self, 1.01 * action))
    replayed = replay(recorded)
    assert replayed.recorded_versions["gymnasium"] == "0.29.1"
    assert replayed.versions["gymnasium"] == gymnasium.__version__
    assert [one.verdict for one in replayed.replays] == ["left", "left"]
    ended = command_line.orlog("audit", "lab/seeded-v1", "--replay")
    assert ended.returncode == 3
    assert f"gymnasium {gymnasium.__version__} (recorded with 0.29.1)" in ended.stdout


def test_a_state_is_where_an_episode_without_seed_begins():
    recorded = cartpole(state=True)
    unseeded = written("lab/unseeded-v1", [dataclasses.replace(one, seed=None) for one in recorded], "CartPole-v1")
    other = written("lab/other-v1", [dataclasses.replace(one, seed=99) for one in recorded], "CartPole-v1")
    starts = {name: replay(ds).replays for name, ds in (("seed", recorded), ("unseeded", unseeded), ("other", other))}
    assert [one.start for one in starts["seed"]] == ["seed"] * 3
    for name in ("unseeded", "other"):  # a seed that gives another start gives way to the state
        assert [one.start for one in starts[name]] == ["state"] * 3
    assert {one.verdict for replays in starts.values() for one in replays} <= {"exact", "rounding"}
    assert all(one.is_reached for replays in starts.values() for one in replays)


def test_an_end_that_does_not_come_is_not_reached():
    recorded = cartpole()
    assert [(one.recorded_end, one.is_reached) for one in replay(recorded).replays] == [("termination", True)] * 3

    def cut(episode, steps=5):
        parts = {name: getattr(episode, name)[:steps] for name in ("actions", "rewards", "truncations")}
        ends = np.arange(steps) == steps - 1
        return dataclasses.replace(episode, observations=episode.observations[: steps + 1], terminations=ends, **parts)

    for one in replay(written("lab/cut-v1", map(cut, recorded), "CartPole-v1")).replays:
        assert (one.verdict, one.step, one.column, one.is_reached) == ("left", 4, "terminations", False)


def test_actions_after_an_end_are_not_taken():
    recorded = cartpole()

    def longer(episode):
        ends = np.zeros(len(episode) + 1, bool)
        twice = {name: np.append(getattr(episode, name), 1) for name in ("actions", "rewards")}
        observations = np.concatenate([episode.observations, episode.observations[-1:]])
        flags = {"terminations": ends, "truncations": ends | (np.arange(len(ends)) == len(episode))}
        return dataclasses.replace(episode, observations=observations, **twice, **flags)

    for one, before in zip(
        replay(written("lab/longer-v1", map(longer, recorded), "CartPole-v1")).replays, recorded, strict=True
    ):
        assert (one.verdict, one.step, one.column) == ("left", len(before) - 1, "terminations")


def test_some_episodes_lie_evenly_and_the_rest_is_not_replayed():
    replayed = replay(cartpole(), episodes=2)
    assert [one.episode for one in replayed.replays] == [0, 2]
    assert replayed.episodes == 3


def test_the_command_prints_what_the_function_returns():
    recorded = seeded(change=with_other_action)
    ended = command_line.orlog("audit", recorded.name, "--replay", "--json", "--episodes", "1")
    assert ended.returncode == 3
    document = json.loads(ended.stdout)
    assert document == replay(recorded, episodes=1).to_json()
    assert document["replays"][0]["step"] == CHANGED
    assert f"left at step {CHANGED}" in command_line.orlog("audit", recorded.name, "--replay").stdout
    assert command_line.orlog("audit", seeded("lab/good-v1").name, "--replay").returncode == 0


@pytest.mark.parametrize(
    "options", [("--replay", "--workers", "2"), ("--episodes", "3"), ("--replay", "--episodes", "0")]
)
def test_options_that_mean_nothing_together_are_refused(options):
    assert command_line.orlog("audit", "lab/any-v1", *options).returncode == 2


def test_what_cannot_be_replayed_says_why(monkeypatch):
    with pytest.raises(NotFoundError, match="names no environment"):
        replay(pendulum("lab/unnamed-v1", named=False))
    with pytest.raises(SchemaError, match="no episode to replay"):
        replay(pendulum("lab/empty-v1")[[]])
    recorded = seeded()

    def fail(_self, _action):
        raise RuntimeError("no contact model")

    monkeypatch.setattr(PendulumEnv, "step", fail)
    with pytest.raises(SimulatorError, match=r"lab/seeded-v1, episode 0, step 0: .*no contact model"):
        replay(recorded)


@pytest.mark.parametrize(
    ("observation", "recorded", "column", "excess"),
    [
        ({"a": 1.0, "b": np.zeros(2)}, {"b": np.array([0, 1.0])}, "observations/b[1]", 0.5 / TOLERANCE),
        ((np.zeros(2), np.uint8(250)), (np.zeros(2), np.uint8(255)), "observations/1", 5 / 256 / TOLERANCE),
        ({"a": "left"}, {"a": "right"}, "observations/a", math.inf),
        ({}, {"a": np.float32(0)}, "observations/a", math.inf),
        (np.zeros(3), np.zeros(2), "observations", math.inf),
        ((1,), (1, 2), "observations", math.inf),
        (np.array([0, np.nan]), np.array([0, 1.0]), "observations[1]", math.inf),
        (np.array([np.nan, np.inf]), np.array([np.nan, np.inf]), "", 0.0),
        (np.float64(0.1), np.float32(0.1), "", 0.0),
        ("go", "go", "", 0.0),
    ],
)
def test_rows_of_every_space_are_compared(observation, recorded, column, excess):
    here = difference(observation, recorded)
    assert (here.column, here.excess) == (column, pytest.approx(excess))
