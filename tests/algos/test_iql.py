from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from orlog.algos.awac import advantage_weights
from orlog.algos.iql import expectile_loss, policy_loss


@settings(deadline=None)
@given(expectile=st.floats(0.05, 0.95))
def test_the_value_of_least_loss_is_the_expectile(expectile: float) -> None:
    sample = np.random.default_rng(0).gamma(2, size=40)

    def loss(value: float) -> float:
        return expectile_loss(torch.from_numpy(sample - value), expectile).item()

    best = optimize.minimize_scalar(loss, bounds=(0, 10), method="bounded").x
    assert best == pytest.approx(stats.expectile(sample, expectile), abs=1e-3)


def test_weights_that_would_overflow_are_the_largest() -> None:
    advantages = torch.tensor([0.0, 1000.0, math.log(2) / 3])
    found = policy_loss(torch.tensor([-1.0, -2.0, 3.0]), advantages, 3.0, 100.0)
    assert found.item() == pytest.approx(-(1 * -1 + 100 * -2 + 2 * 3) / 3)
    weights = advantage_weights(torch.tensor([0.0, -0.5, 1000.0]), 0.5, 100.0)
    torch.testing.assert_close(weights, torch.tensor([1.0, math.exp(-1), 100.0]))
