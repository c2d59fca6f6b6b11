"""The component of a weighted mixture, against counting one weight after the other."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.loaders.arrays import Mixture
from tests.levels import scaled

BELOW_ONE = 1 - 2.0**-53


@settings(deadline=None, max_examples=scaled(80))
@given(
    weights=st.lists(
        st.floats(0, 1).filter(lambda one: one == 0 or one > 1e-9) | st.just(0.5), min_size=1, max_size=80
    ).filter(any),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_component_is_the_one_whose_weight_a_number_reaches(weights, seed):
    up_to = np.cumsum(weights)
    up_to /= up_to[-1]
    sizes = np.where(np.array(weights) > 0, 3, 0)
    mixture = Mixture(steps=np.arange(sizes.sum()) * 10, first=sizes.cumsum() - sizes, sizes=sizes, up_to=up_to)
    drawn = np.random.default_rng(seed).random(200)
    near = [up_to, np.nextafter(up_to, 0), np.nextafter(up_to, 1), [0, BELOW_ONE, 0.5, 511 / 1024]]
    uniform = np.clip(np.concatenate([drawn, *near]), 0, BELOW_ONE)
    inside = np.full(len(uniform), 0.4)
    found = mixture.choose(np.stack([uniform, inside], 1))
    expected = [10 * (mixture.first[sum(up_to <= one)] + 1) for one in uniform]
    assert found.tolist() == expected
