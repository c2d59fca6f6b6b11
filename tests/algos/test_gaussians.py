import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from orlog.algos.policies import squashed_log_density, squashed_samples


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.8, -1.0), (-1.5, 0.3), (0.1, -3.0)])
def test_the_squashed_density_integrates_to_one(mean, log_std):
    def density(action):
        one = torch.tensor([[action]], dtype=torch.float64)
        found = squashed_log_density(one, torch.full_like(one, mean), torch.full_like(one, log_std))
        return math.exp(found.item())

    peak = math.tanh(mean)
    mass = sum(integrate.quad(density, low, high, limit=200)[0] for low, high in ((-1 + 1e-5, peak), (peak, 1 - 1e-5)))
    ends = stats.norm(mean, math.exp(log_std)).cdf(np.arctanh([-1 + 1e-5, 1 - 1e-5]))
    assert mass == pytest.approx(ends[1] - ends[0], abs=1e-6)
    assert mass == pytest.approx(1, abs=1e-3)


@settings(deadline=None)
@given(mean=st.floats(-2, 2), log_std=st.floats(-3, 1), noise=st.floats(-1, 1), other=st.floats(-1, 1))
def test_the_density_of_a_sample_is_the_one_it_was_drawn_with(mean, log_std, noise, other):
    means = torch.tensor([[mean, 0.0]], dtype=torch.float64)
    log_stds = torch.tensor([[log_std, 0.1]], dtype=torch.float64)
    samples, expected = squashed_samples(means, log_stds, torch.tensor([[[noise, other]]], dtype=torch.float64))
    found = squashed_log_density(samples[0], means, log_stds)
    if samples.abs().max() < 1 - 1e-5:
        assert found.item() == pytest.approx(expected.item(), abs=1e-6)


def test_densities_stay_finite_where_the_tanh_rounds_to_one():
    samples, log_density = squashed_samples(torch.tensor([[50.0], [-50.0]]), torch.zeros(2, 1), torch.zeros(1, 2, 1))
    assert samples.flatten().tolist() == [1.0, -1.0]
    expected = -0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 50)
    assert log_density.flatten().tolist() == pytest.approx([expected, expected])
