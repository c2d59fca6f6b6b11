from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate

from orlog.algos.cql import conservative_gaps
from orlog.algos.gaussians import squashed_samples


def test_gaps_do_not_overflow() -> None:
    found = conservative_gaps(
        torch.tensor([[[1000.0, 0.0]], [[-1000.0, -1000.0]]]), torch.zeros(1, 2), torch.zeros(2, 1)
    )
    torch.testing.assert_close(found, torch.tensor([1000.0, -1000 + math.log(2)]))


def test_the_log_integral_over_actions_is_estimated_without_bias() -> None:
    def q(action: Any) -> Any:
        return 2 * np.sin(4 * action) + action

    exact = math.log(integrate.quad(lambda action: math.exp(q(action)), -1, 1)[0])
    rng = np.random.default_rng(0)
    count = 100_000
    uniform = torch.from_numpy(rng.uniform(-1, 1, count))
    noise = torch.from_numpy(rng.normal(size=(count, 1, 1)))
    # Wide enough that the weights have a bounded variance near -1 and 1.
    squashed, log_density = squashed_samples(
        torch.tensor([[0.3]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64), noise
    )
    actions = torch.cat([uniform, squashed[:, 0, 0]])
    densities = torch.cat([torch.full((count,), -math.log(2)), log_density[:, 0]])
    values = torch.from_numpy(q(actions.numpy()))
    (gap, _) = conservative_gaps(
        values.expand(2, 1, -1), densities[None], torch.tensor([[0.25], [0.0]])
    ).tolist()
    # The estimate is a sum over samples: the mean is log(samples) less.
    assert gap - math.log(2 * count) + 0.25 == pytest.approx(exact, abs=0.01)
