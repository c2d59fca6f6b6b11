from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from orlog.algos.flows import ChunkActor, flow_actions, flow_errors
from orlog.algos.ifql import IFQL
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.qcfql import QCFQL
from tests.algos.plain import Make, MakeBatch


def test_a_flow_learns_a_distribution_with_two_peaks() -> None:
    generator = make_generator(0, 1)
    velocity = make_network(3, 1, (32, 32), generator=generator, style="gelu")
    optimizer = torch.optim.Adam(velocity.parameters(), 1e-2)
    observations = torch.zeros(256, 1)
    for _ in range(300):
        signs = torch.randint(2, (256, 1), generator=generator) * 2.0 - 1
        spread = 0.05 * torch.randn((256, 1), generator=generator)
        loss = flow_errors(velocity, observations, 0.6 * signs + spread, generator).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        optimizer.step()
    noise = torch.randn((1000, 1), generator=generator)
    found = flow_actions(velocity, torch.zeros(1000, 1), noise, 10)
    assert (found.abs() - 0.6).abs().median() < 0.1
    assert (found.abs() < 0.3).float().mean() < 0.1
    assert (found > 0).float().mean() == pytest.approx(0.5, abs=3 / math.sqrt(1000))


def test_each_observation_gets_the_best_of_its_own_actions(
    make: Make, scaling: Scaling, make_batch: MakeBatch
) -> None:
    algorithm = make(IFQL, sampled_actions=5)
    observations = make_batch(0, rows=3).observations
    found = algorithm.actor(3).act(observations)
    noise = torch.randn((15, 2), generator=make_generator(0, 3))
    for row, s in enumerate(scaling.observations(observations)):
        many, z = s.expand(5, -1), noise[5 * row : 5 * row + 5]
        actions = flow_actions(algorithm.policy, many, z, 10)
        best = algorithm.critic(many, actions).amin(0).argmax()
        torch.testing.assert_close(found[row], scaling.actions_from_unit(actions[best]))


def test_chunks_are_acted_out_in_full_in_each_environment() -> None:
    plans = iter(range(100))

    def plan(observations: Any, _generator: torch.Generator) -> torch.Tensor:
        step = next(plans)
        starts: torch.Tensor = 100 * observations[:, :1, None] + 10 * step
        return starts + torch.arange(3)[None, :, None]

    actor = ChunkActor(plan, 2, make_generator(0, 0))
    found = []
    for step in range(8):
        actor.begin(torch.tensor([step == 0, step in (0, 4)]))
        found.append(actor.act(torch.tensor([[1.0], [2.0]]))[:, 0].tolist())
        actor.reward(torch.zeros(2))
    first, second = zip(*found, strict=True)
    assert first == (100, 101, 102, 130, 131, 132, 160, 161)
    assert second == (200, 201, 202, 230, 240, 241, 242, 270)  # a new episode at step 4


def test_an_evaluation_begins_with_what_act_would_do(make: Make, make_batch: MakeBatch) -> None:
    algorithm, observations = make(QCFQL), make_batch(0).observations
    algorithm.acting = make_generator(0, 3)
    expected = algorithm.act(observations)
    assert torch.equal(algorithm.actor(32).act(observations), expected)
