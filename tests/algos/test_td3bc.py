from __future__ import annotations

import pytest
import torch

from orlog.algos.networks import Scaling, make_generator
from orlog.algos.td3bc import TD3BC
from tests.algos.plain import Make, MakeBatch


def test_the_policys_loss_is_shown_until_the_next_one(make: Make, make_batch: MakeBatch) -> None:
    algorithm = make(TD3BC, policy_interval=2)
    shown = [algorithm.update(make_batch(index))["policy/loss"].item() for index in range(5)]
    assert shown[1] == shown[2] != shown[3] == shown[4]


def test_it_explores_with_the_noise_of_td3(
    make: Make, scaling: Scaling, make_batch: MakeBatch
) -> None:
    algorithm, observations = make(TD3BC), make_batch(0, rows=4096).observations
    unit = scaling.actions_to_unit(algorithm.explore(observations, make_generator(0, 0)))
    apart = unit - scaling.actions_to_unit(algorithm.act(observations))
    assert torch.std(apart).item() == pytest.approx(0.1, rel=0.05)
