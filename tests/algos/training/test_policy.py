from __future__ import annotations

import math
import re
from typing import ClassVar

import msgspec
import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog.algos.bc import BC
from orlog.algos.training.policy import Spaces, make_from_record, make_policy
from orlog.algos.training.runs import read_metrics
from orlog.errors import AlgorithmError, NotFoundError, SchemaError
from orlog.normalize.rollouts import PolicyWithMemory
from tests.pendulum import pendulum
from tests.training import short


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
    short(SwayingBC, dataset, run, steps=4, evaluations=2, curve_episodes=3)
    curve = [line["returns"] for line in read_metrics(run) if "returns" in line]
    first, again = (orlog.evaluate(run, episodes=3, algorithm=SwayingBC) for _ in range(2))
    assert np.array_equal(first.returns, again.returns)
    assert len(curve) == 2
    assert curve[-1] == [*first.returns]
    assert len(set(first.returns)) == 3


def test_a_policy_is_told_rewards_as_they_are_in_its_batches(tmp_path):
    dataset = pendulum(episodes=2)
    record = short(SwayingBC, dataset, tmp_path).record
    record = msgspec.structs.replace(record, reward_scale=2.0, reward_shift=-1.0)
    made = make_from_record(record, dataset, SwayingBC)
    policy = make_policy(made, dataset, record)
    assert isinstance(policy, PolicyWithMemory)
    policy.start(2)
    policy.begin(np.array([True, True]))
    assert policy(np.zeros((2, 3), np.float32)).shape == (2, 1)
    policy.reward(np.array([0.5, -0.25]))
    assert made.actors[-1].last.tolist() == [0.0, -1.5]


def test_actions_that_no_environment_takes_are_refused():
    maps = Spaces(pendulum(episodes=1), "cpu")
    box, pushed = spaces.Box(-1, 1, (2,), np.float32), maps.action_space
    choices, several = spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 3])
    text = spaces.Text(3, charset="ab")
    for space, actions, words in (
        (box, torch.zeros(2, 1), "actions of shape [2, 1] for 2 observations, expected [2, 2]"),
        (box, torch.zeros(4), "shape [4] for 2 observations"),
        (box, torch.tensor(0.0), "shape [] for 2 observations"),
        (box, np.zeros((2, 2)), "a ndarray as actions"),
        (box, torch.tensor([[0.0, 0.0], [0.5, math.nan]]), "not finite: [0.5, nan] for observation 1"),
        (choices, torch.tensor([4, 5]), "not in Discrete(3, start=2): 5 for"),
        (choices, torch.zeros(2, 3), "shape [2, 3] for 2 observations, expected [2]"),
        (several, torch.tensor([[0, -1], [1, 2]]), "[0, -1] for observation 0"),
        (pushed, torch.tensor([[1.0], [2.5]]), "not in Box(-2.0, 2.0, (1,), float32): [2.5] for observation 1"),
        (text, "ab", "a str as actions, expected a list of texts"),
        (text, ["a"], "shape [1] for 2 observations"),
        (text, ["a", "c"], "'c' for observation 1"),
    ):
        maps.action_space = space
        with pytest.raises(SchemaError, match=re.escape(words)) as caught:
            maps.actions(actions, 2, "mine:Mine")
        assert str(caught.value).startswith("lab/pendulum-v1: mine:Mine gave ")
    maps.action_space = pushed  # what rounding puts outside the bounds is clipped into them
    assert maps.actions(torch.tensor([[-2.0001], [2.0001]]), 2, "mine").tolist() == [[-2.0], [2.0]]
    maps.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert maps.actions(torch.tensor([[1e30]]), 1, "mine").tolist() == [[np.float32(1e30)]]


class NanBC(BC):
    """Cloning whose actions are no numbers."""

    def act(self, observations):
        return super().act(observations) * math.nan


def test_a_learning_curve_and_a_loaded_policy_refuse_actions_that_are_not_finite(tmp_path):
    dataset = pendulum(episodes=2)
    with pytest.raises(SchemaError, match=r"NanBC gave actions that are not finite: \[nan\]"):
        short(NanBC, dataset, tmp_path / "curve", steps=1, evaluations=1)
    short(NanBC, dataset, tmp_path / "run", steps=1, evaluations=0)
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
    place = r"test_policy\.py, line \d+: ValueError: no such thing; correct the file\."
    with pytest.raises(AlgorithmError, match=place) as caught:
        short(FailingBC, dataset, tmp_path / "run", evaluations=1)
    assert caught.value.__cause__ is FailingBC.error
    monkeypatch.setattr(FailingBC, "error", NotFoundError("not here."))
    with pytest.raises(NotFoundError, match=r"^not here\.$"):
        short(FailingBC, dataset, tmp_path / "other", evaluations=1)
