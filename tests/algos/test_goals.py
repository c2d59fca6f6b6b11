"""Distances of QRL, and what those for goals learn on tiny problems."""

import itertools

import numpy as np
import pytest
import torch

from orlog.algos.crl import CRL
from orlog.algos.gcbc import GCBC
from orlog.algos.gcivl import GCIVL
from orlog.algos.hiql import HIQL
from orlog.algos.qrl import QRL, interval_lengths
from orlog.algos.training.data import loaded
from orlog.algos.trl import TRL
from orlog.loaders.arrays import Arrays, Leaf
from orlog.loaders.goals import states_and_subgoals
from tests.algos import plain

GRID = torch.linspace(-1, 1, 21)


def union(starts, ends):
    """Return the length of a union of intervals, from the ends of those that overlap."""
    length, reached = 0.0, -np.inf
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        if end > max(start, reached):
            length += end - max(start, reached)
            reached = end
    return length


def test_an_interval_distance_is_the_length_of_unions_and_a_quasimetric():
    generator = torch.Generator().manual_seed(0)
    x, y, z = torch.randn((3, 50, 16), generator=generator, dtype=torch.float64)
    found = interval_lengths(x, y)
    for item, group in itertools.product(range(50), range(2)):
        numbers = slice(8 * group, 8 * group + 8)
        expected = union(x[item, numbers].numpy(), y[item, numbers].numpy())
        assert found[item, group].item() == pytest.approx(expected)
    assert (found <= interval_lengths(x, z) + interval_lengths(z, y) + 1e-12).all()
    assert (found - interval_lengths(y, x)).abs().max() > 0.1
    same = x.clone().requires_grad_()
    nothing = interval_lengths(same, same)
    assert not nothing.any()
    nothing.sum().backward()  # torch has no types for it
    assert same.grad is not None
    assert not same.grad.any()


def test_states_and_subgoals_are_those_of_goal_environments():
    """Observations are achieved_goal (2), desired_goal (2) and observation (1), in this order."""
    rows = torch.arange(12.0)[:, None] + torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0, 0, 0])
    parts = {
        "achieved_goal": Leaf(first=0, shape=(2,)),
        "desired_goal": Leaf(first=2, shape=(2,)),
        "observation": Leaf(first=4, shape=(1,)),
    }
    arrays = Arrays(rows=rows, lengths=np.array([11]), obs_dim=5, action_dim=1, parts=parts)
    settings = {"value_goals": (0, 1, 0), "policy_goals": (0, 1, 0), "steps": 3}
    batch = next(iter(states_and_subgoals(arrays, 8, seed=0, **settings)))
    assert batch.observations.shape == batch.subgoal_observations.shape == (8, 3)
    assert batch.low_goals.shape == batch.subgoals.shape == (8, 2)
    torch.testing.assert_close(batch.subgoal_observations[:, :2], batch.subgoals)
    torch.testing.assert_close(batch.subgoal_observations[:, 2], batch.subgoals[:, 0] + 0.4)
    assert (batch.low_goals[:, 0] - batch.observations[:, 0] <= 3).all()


@pytest.fixture(scope="module")
def line():
    """Return short random walks on a line: a step is a tenth of the action."""
    rng = np.random.default_rng(0)
    rows = np.zeros((400, 11, 1 + 1 + 3), np.float32)
    rows[:, :10, 1] = rng.uniform(-1, 1, (400, 10))
    rows[:, 0, 0] = rng.uniform(-1, 1, 400)
    rows[:, 1:, 0] = rows[:, :1, 0] + 0.1 * rows[:, :10, 1].cumsum(1)
    flat = torch.from_numpy(rows.reshape(-1, 5))
    return Arrays(rows=flat, lengths=np.full(400, 10), obs_dim=1, action_dim=1)


LEARNING = [
    (HIQL, {"target_rate": 0.1, "discount": 0.9, "subgoal_steps": 3}),
    (CRL, {"representation": 16, "cloning_weight": 0.03}),
    (QRL, {"representation": 32, "cloning_weight": 0.03}),
    (TRL, {"cloning_weight": 0.03, "target_rate": 0.1, "discount": 0.9}),
    (TRL, {"extraction": "frs", "target_rate": 0.1, "discount": 0.9}),
]


def steps_toward_far_goals(data, kind, settings):
    """Return how far trained actions lead toward goals farther than most episodes go."""
    # Half of the goals have nothing to do with the action.
    fast = {"learning_rate": 3e-3, "policy_goals": (0.0, 0.5, 0.5)}
    algorithm = trained(kind, data, 200, std=0.6, bound=1.0, **fast, **settings)
    pairs = torch.cartesian_prod(GRID, GRID)
    states, goals = pairs[:, :1], pairs[:, 1:]
    steps = algorithm.act(states, goals) * torch.sign(goals - states)
    return float(steps[(goals - states).abs() > 0.6].mean())


def test_cloning_averages_out_what_leads_to_goals(line):
    assert steps_toward_far_goals(line, GCBC, {}) < 0.2


@pytest.mark.parametrize(("kind", "settings"), LEARNING)
def test_values_go_toward_goals_that_cloning_averages_out(line, kind, settings):
    assert steps_toward_far_goals(line, kind, settings) > 0.5


def test_values_of_transitive_rl_are_the_discount_to_the_power_of_the_distance():
    """Midpoints of a line that is walked in one direction lie on the shortest way; single steps alone are given."""
    places = torch.arange(13) / 6 - 1
    rows = torch.zeros(200, 13, 5)
    rows[..., 0] = places
    rows[:, :12, 1] = torch.rand((200, 12), generator=torch.Generator().manual_seed(0)) * 2 - 1
    data = Arrays(rows=rows.view(-1, 5), lengths=np.full(200, 12), obs_dim=1, action_dim=1)
    settings = {"learning_rate": 3e-3, "target_rate": 0.1, "discount": 0.9}
    algorithm = trained(TRL, data, 600, std=0.6, bound=1.0, **settings)
    first, later = torch.combinations(torch.arange(13)).T
    states = torch.stack([places[first], places[later]], -1) / 0.6
    with torch.no_grad():
        values = algorithm.critic(states, torch.zeros(len(states), 1)).sigmoid()
    distances = values.log() / np.log(0.9)
    assert (distances - (later - first)).abs().mean() < 0.5
    assert 10 < distances[:, 11].mean() < 14  # from the first place to the last


# a goes up to b or down to d; other episodes start there: b leads to c, and d to e.
#     b   e         The lines cross, so that a policy which goes where its goal
#    / \ /          seems to be goes the wrong way from a to c and to e.
#   a   x
#    \ / \
#     d   c
A, B, C, D, E = (0.0, 0.0), (1.0, 1.0), (2.0, -1.0), (1.0, -1.0), (2.0, 1.0)
# The sign of the action decides where a leads; elsewhere it makes no difference.
PIECES = [(A, B, (0, 2)), (A, D, (-2, 0)), (B, C, (-2, 2)), (D, E, (-2, 2))]


@pytest.fixture(scope="module")
def pieces():
    """Return episodes of two steps: from one state to another, where they stay."""
    rng = np.random.default_rng(0)
    rows = np.zeros((3 * 400, 2 + 1 + 3), np.float32)
    for first, (start, end, actions) in zip(range(0, len(rows), 3), itertools.cycle(PIECES), strict=False):
        rows[first : first + 3, :2] = [start, end, end]
        rows[first : first + 2, 2] = rng.uniform(*actions), rng.uniform(-2, 2)
        rows[first + 1, 5] = 1
    rows[:, :2] += rng.normal(0, 0.02, (len(rows), 2))
    lengths = np.full(400, 2)
    return Arrays(rows=torch.from_numpy(rows), lengths=lengths, obs_dim=2, action_dim=1)


def first_actions(algorithm, goals):
    """Return what an algorithm does at a for each goal."""
    states = torch.tensor([A] * len(goals))
    return algorithm.act(states, torch.tensor(goals)).squeeze(1).tolist()


def trained(kind, data, updates, *, std=1.0, bound=2.0, **settings):
    config = kind.CONFIG(hidden=(32, 32), batch_size=128, **settings)
    scaling = plain.toy_scaling(data.obs_dim, std=std, bound=bound)
    algorithm = kind(config, scaling, seed=0)
    for batch in itertools.islice(loaded(kind, config, data, seed=0), updates):
        algorithm.update(batch)
    return algorithm


def test_values_put_pieces_together_and_cloning_does_not(pieces):
    cloned = trained(GCBC, pieces, 150, learning_rate=3e-3)
    valued = trained(
        GCIVL,
        pieces,
        600,
        learning_rate=3e-3,
        target_rate=0.3,
        discount=0.8,
        value_goals=(0.2, 0.3, 0.5),
        policy_goals=(0.0, 0.5, 0.5),
    )
    for algorithm in (cloned, valued):
        to_b, to_d = first_actions(algorithm, [B, D])
        assert to_b > 0.5 > -0.5 > to_d
    to_c, to_e = first_actions(cloned, [C, E])
    assert to_c < 0 < to_e
    to_c, to_e = first_actions(valued, [C, E])
    assert to_c > 0.3 > -0.3 > to_e
