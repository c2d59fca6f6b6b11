import itertools

import numpy as np
import pytest

from orlog.loaders.arrays import read_arrays
from orlog.loaders.best_episodes import best_transitions
from orlog.loaders.weights import step_probabilities


@pytest.mark.parametrize("percent", [1.0, 10.0, 33.0, 100.0])
def test_the_episodes_are_those_of_the_view_and_their_steps_equally_likely(mini, percent):
    best = mini.top_episodes(percent)
    stream = best_transitions(mini, 64, percent=percent, seed=0)
    chances = step_probabilities(stream.arrays)
    np.testing.assert_allclose(chances[chances > 0], 1 / best.total_steps)
    assert (chances > 0).sum() == best.total_steps
    inside = {row.tobytes() for row in read_arrays(best).rows[:, : stream.arrays.obs_dim].numpy()}
    for batch in itertools.islice(stream, 5):
        assert {row.tobytes() for row in batch.observations.numpy()} <= inside


def test_a_share_that_is_none_is_refused(mini):
    for percent in (0.0, 101.0):
        with pytest.raises(ValueError, match=r"percent must lie in \[1, 100\]"):
            best_transitions(mini, percent=percent, seed=0)
    with pytest.raises(ValueError, match=r"found 0\.1; for 10 % give 10\."):
        best_transitions(mini, percent=0.1, seed=0)
