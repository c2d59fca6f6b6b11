"""Value iteration on counts: sweeps by hand, and the best policy of the counted world."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from orlog.algos.algorithms import make_algorithm
from orlog.algos.networks import Scaling
from orlog.algos.settings import make_config
from orlog.algos.training.runs import load_checkpoint, save_checkpoint
from orlog.loaders.batch import CountBatch

NONE = torch.empty(0)
SCALING = Scaling(
    obs_mean=NONE,
    obs_std=NONE,
    action_low=NONE,
    action_high=NONE,
    observation_space=spaces.Discrete(4, start=1),
    action_space=spaces.Discrete(2, start=5),
)
ROWS = [  # state, action, next state, terminates, reward, count
    (1, 5, 2, 0, 1.0, 3),
    (1, 5, 3, 0, -1.0, 1),
    (1, 6, 1, 0, 0.5, 16),
    (2, 6, 4, 0, 0.0, 4),
    (2, 5, 1, 1, 2.0, 1),
    (3, 5, 1, 1, -2.0, 2),
]


def batch():
    columns = [torch.tensor(one) for one in zip(*ROWS, strict=True)]
    return CountBatch(
        observations=columns[0],
        actions=columns[1],
        next_observations=columns[2],
        terminations=columns[3].float(),
        rewards=columns[4].float(),
        counts=columns[5].float(),
    )


def made(**settings):
    config = make_config("value_iteration", settings)
    return make_algorithm("value_iteration", config, SCALING, seed=0)


@pytest.mark.parametrize(("lower_bound", "least_count"), [(0.0, 1), (0.6, 1), (0.0, 2)])
def test_sweeps_are_those_of_a_slow_loop(lower_bound, least_count):
    algorithm = made(discount=0.9, lower_bound=lower_bound, least_count=least_count)
    q_values = {}
    for _ in range(40):
        algorithm.update(batch())
        values = {}
        for state in (1, 2, 3, 4):
            allowed = [
                q_values.get((state, action), 0.0)
                for action in (5, 6)
                if sum(row[5] for row in ROWS if row[:2] == (state, action)) >= least_count
            ]
            values[state] = max(allowed) if allowed else -2.0 / (1 - 0.9)
        new = {}
        for pair in {row[:2] for row in ROWS}:
            rows = [row for row in ROWS if row[:2] == pair]
            count = sum(row[5] for row in rows)
            total = sum(row[5] * (row[4] + 0.9 * (1 - row[3]) * values[row[2]]) for row in rows)
            new[pair] = total / count - lower_bound / math.sqrt(count)
        q_values = new
    for (state, action), value in q_values.items():
        assert float(algorithm.q_values[action - 5, state - 1]) == pytest.approx(value, rel=1e-5)
    best = {
        state: max(
            (a for s, a in q_values if (s == state and (s, a) != (2, 5)) or least_count == 1),
            key=lambda action: q_values.get((state, action), -math.inf),
        )
        for state in (1, 2, 3)
    }
    acted = algorithm.act(torch.tensor([1, 2, 3, 4])).tolist()
    assert acted == [best[1], best[2], best[3], 5]


def test_a_checkpoint_holds_values_and_counts_and_what_is_unset_is_refused(tmp_path):
    one, other = made(), made()
    for _ in range(3):
        one.update(batch())
    save_checkpoint(one, tmp_path / "saved", metadata={})
    load_checkpoint(other, tmp_path / "saved")
    np.testing.assert_array_equal(other.q_values, one.q_values)
    assert torch.equal(other.act(torch.arange(1, 5)), one.act(torch.arange(1, 5)))
    for wrong, message in (
        ({"discount": 1.0}, "discount must be a number > 0 and < 1, found 1"),
        ({"lower_bound": -1.0}, "lower_bound must be a number >= 0"),
        ({"least_count": 0}, "least_count must be a whole number >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            made(**wrong)
