from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from beartype import beartype
from jaxtyping import jaxtyped
from torch import nn

from orlog.algos.flows import ChunkActor, flow_actions, flow_errors
from orlog.algos.ifql import IFQL, best_actions
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.qcfql import QCFQL
from tests.algos.plain import Make, MakeBatch


class Known(nn.Module):
    """A velocity in closed form, of two observations and one action."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        slope, offset, place, time = inputs.unbind(1)
        return (slope * place + offset * time)[:, None]


def test_errors_are_those_of_the_way_from_noise_to_action() -> None:
    observations, actions = torch.randn(2, 5, 2, generator=make_generator(0, 0)).unbind()
    found = jaxtyped(typechecker=beartype)(flow_errors)(
        Known(), observations, actions[:, :1], make_generator(3, 1)
    )
    generator = make_generator(3, 1)
    noise = torch.randn((5, 1), generator=generator).numpy()
    times = torch.rand((5, 1), generator=generator).numpy()
    s, a = observations.numpy(), actions[:, :1].numpy()
    velocity = s[:, :1] * ((1 - times) * noise + times * a) + s[:, 1:] * times
    np.testing.assert_allclose(found, (velocity - (a - noise)) ** 2, rtol=1e-4, atol=1e-6)


def test_euler_steps_begin_at_the_noise_and_at_time_0() -> None:
    observations = torch.tensor([[1.0, 0.5], [-2.0, 0.0], [0.0, -9.0]])
    noise = torch.tensor([[0.1], [0.5], [0.3]])
    found = jaxtyped(typechecker=beartype)(flow_actions)(Known(), observations, noise, 4)
    expected = []
    for (slope, offset), (x,) in zip(observations.tolist(), noise.tolist(), strict=True):
        for step in range(4):
            x += (slope * x + offset * step / 4) / 4
        expected.append([min(max(x, -1), 1)])
    assert expected[2] == [-1]
    torch.testing.assert_close(found, torch.tensor(expected))
    assert noise.tolist() == torch.tensor([[0.1], [0.5], [0.3]]).tolist()


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


def test_the_best_action_is_that_of_the_highest_smaller_value() -> None:
    q_values = torch.tensor(
        [[[1.0, 5.0, 3.0], [0.0, -1.0, -2.0]], [[4.0, 0.0, 2.0], [-3.0, 9, -2]]]
    )
    actions = torch.arange(6.0).view(2, 3, 1)
    found = jaxtyped(typechecker=beartype)(best_actions)(q_values, actions)
    assert found.tolist() == [[2.0], [4.0]]


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
