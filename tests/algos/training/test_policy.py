from __future__ import annotations

import math
from typing import ClassVar

import gymnasium
import msgspec
import numpy as np
import pytest
import torch

import orlog
from orlog.algos.bc import BC
from orlog.algos.training.evaluating import evaluate_run
from orlog.algos.training.metrics import read_metrics
from orlog.algos.training.policy import Spaces, make_from_record, make_policy
from orlog.errors import AlgorithmError, NotFoundError, SchemaError
from orlog.normalize.rollouts import PolicyWithMemory
from tests.pendulum import pendulum
from tests.training import train_run

SMALL = {"seed": 0, "settings": {"hidden": [4], "batch_size": 8}}


class Swaying:
    """Adds noise of its own and, from the second step on, the last reward to a policy's actions."""

    def __init__(self, algorithm, environments):
        self.algorithm = algorithm
        self.generator = torch.Generator().manual_seed(0)
        self.last = torch.zeros(environments)
        self.begun = torch.zeros(environments, dtype=torch.bool)

    def begin(self, which):
        assert which.dtype == torch.bool
        self.begun |= which
        self.last[which] = 0

    def act(self, observations):
        assert self.begun.all()
        assert observations.dtype == torch.float32
        actions = self.algorithm.act(observations)
        noise = torch.randn(actions.shape, generator=self.generator)
        return (actions + noise + self.last[:, None]).clamp(-2, 2)

    def reward(self, rewards):
        assert rewards.dtype == torch.float32
        self.last = rewards


class SwayingBC(BC):
    """Cloning whose policy has memory."""

    actors: ClassVar[list[Swaying]] = []

    def actor(self, environments):
        self.actors.append(Swaying(self, environments))
        return self.actors[-1]


def test_a_policy_with_memory_is_evaluated_the_same_each_time(tmp_path):
    dataset, run = pendulum(episodes=2), tmp_path / "run"
    train_run(SwayingBC, dataset, run, steps=4, evaluations=2, curve_episodes=3, **SMALL)
    curve = [line["returns"] for line in read_metrics(run) if "returns" in line]
    first, again = (evaluate_run(run, episodes=3, algorithm=SwayingBC)[1] for _ in range(2))
    assert first == again
    assert len(curve) == 2
    assert curve[-1] == first.returns
    assert len(set(first.returns)) == 3


def test_a_policy_is_told_rewards_as_they_are_in_its_batches(tmp_path):
    dataset = pendulum(episodes=2)
    record = train_run(SwayingBC, dataset, tmp_path, steps=1, evaluations=0, **SMALL)
    record = msgspec.structs.replace(record, reward_scale=2.0, reward_shift=-1.0)
    made = make_from_record(record, dataset, SwayingBC)
    policy = make_policy(made, dataset, record)
    assert isinstance(policy, PolicyWithMemory)
    policy.start(2)
    policy.begin(np.array([True, True]))
    assert policy(np.zeros((2, 3), np.float32)).shape == (2, 1)
    policy.reward(np.array([0.5, -0.25]))
    assert made.actors[-1].last.tolist() == [0.0, -1.5]


def refused(spaces, space, actions):
    """Return why actions for two observations are refused."""
    spaces.action_space = space
    with pytest.raises(SchemaError) as caught:
        spaces.actions(actions, 2, "mine:Mine")
    words = str(caught.value)
    assert words.startswith(f"{spaces.name}: mine:Mine gave ")
    return words


def test_actions_that_no_environment_takes_are_refused():
    spaces = Spaces(pendulum(episodes=1), "cpu")
    box = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    assert "shape [2, 1] for 2 observations, expected [2, 2]" in refused(spaces, box, torch.zeros(2, 1))
    assert "shape [4] for 2 observations" in refused(spaces, box, torch.zeros(4))
    assert "shape [] for 2 observations" in refused(spaces, box, torch.tensor(0.0))
    assert "gave a ndarray as actions" in refused(spaces, box, np.zeros((2, 2)))
    wrong = torch.tensor([[0.0, 0.0], [0.5, math.nan]])
    assert "not finite: [0.5, nan] for observation 1" in refused(spaces, box, wrong)
    discrete = gymnasium.spaces.Discrete(3, start=2)
    assert "not in Discrete(3, start=2): 5 for" in refused(spaces, discrete, torch.tensor([4, 5]))
    assert "shape [2, 3] for 2 observations, expected [2]" in refused(spaces, discrete, torch.zeros(2, 3))
    several = gymnasium.spaces.MultiDiscrete([2, 3])
    assert "[0, -1] for observation 0" in refused(spaces, several, torch.tensor([[0, -1], [1, 2]]))


def test_actions_at_the_bounds_are_rounded_into_them_and_others_outside_are_refused():
    spaces = Spaces(pendulum(episodes=1), "cpu")
    actions = torch.tensor([[-2.0001], [2.0001]])
    assert spaces.actions(actions, 2, "mine").tolist() == [[-2.0], [2.0]]
    box = spaces.action_space
    assert "not in Box(-2.0, 2.0, (1,), float32): [2.5] for observation 1; correct its act" in refused(
        spaces, box, torch.tensor([[1.0], [2.5]])
    )
    spaces.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert spaces.actions(torch.tensor([[1e30]]), 1, "mine").tolist() == [[np.float32(1e30)]]


class NanBC(BC):
    """Cloning whose actions are no numbers."""

    def act(self, observations):
        return super().act(observations) * math.nan


def test_a_learning_curve_and_a_loaded_policy_refuse_actions_that_are_not_finite(tmp_path):
    dataset = pendulum(episodes=2)
    with pytest.raises(SchemaError, match=r"NanBC gave actions that are not finite: \[nan\]"):
        train_run(NanBC, dataset, tmp_path / "curve", steps=1, evaluations=1, **SMALL)
    train_run(NanBC, dataset, tmp_path / "run", steps=1, evaluations=0, **SMALL)
    policy = orlog.load_policy(tmp_path / "run", algorithm=NanBC, dataset=dataset)
    with pytest.raises(SchemaError, match="not finite"):
        policy(np.zeros((1, 3), np.float32))


class FailingBC(BC):
    """Cloning that fails to act, in its own way or in one of orlog's."""

    error: ClassVar[Exception] = ValueError("no such thing")

    def act(self, observations):  # noqa: ARG002
        raise self.error


def test_an_error_in_the_act_of_ones_own_names_file_and_line(tmp_path, monkeypatch):
    dataset = pendulum(episodes=2)
    options = {"steps": 1, "evaluations": 1, **SMALL}
    place = r"test_policy\.py, line \d+: ValueError: no such thing; correct the file\."
    with pytest.raises(AlgorithmError, match=place) as caught:
        train_run(FailingBC, dataset, tmp_path / "run", **options)
    assert caught.value.__cause__ is FailingBC.error
    monkeypatch.setattr(FailingBC, "error", NotFoundError("not here."))
    with pytest.raises(NotFoundError, match=r"^not here\.$"):
        train_run(FailingBC, dataset, tmp_path / "other", **options)
