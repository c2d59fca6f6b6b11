"""Scores of episodes, against what is known of Gaussians and of planted noise."""

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.errors import SchemaError
from orlog.loaders.curation import episode_scores, information
from tests.episodes import record_episodes, whole_episode

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.95])
def test_the_estimate_is_that_of_gaussians(correlation):
    rng = np.random.default_rng(0)
    one, noise = rng.normal(size=(2, 4000, 1))
    other = correlation * one + np.sqrt(1 - correlation**2) * noise
    assert information(one, other).mean() == pytest.approx(-0.5 * np.log(1 - correlation**2), abs=0.05)


def test_episodes_whose_actions_are_noise_have_the_lowest_scores():
    rng, bad = np.random.default_rng(0), np.arange(40) % 4 == 0

    def episode(is_bad):
        states = rng.normal(size=(51, 2))
        actions = rng.normal(size=(50, 2)) if is_bad else states[:-1] @ [[0.6, -0.8], [0.8, 0.6]]
        return whole_episode(states.astype("f4"), actions.astype("f4"), np.zeros(50))

    record_episodes("lab/mixed-v1", map(episode, bad), BOX, BOX)
    ds = orlog.load_dataset("lab/mixed-v1")
    scores = episode_scores(ds)
    assert scores[bad].max() < scores[~bad].min()
    np.testing.assert_array_equal(scores, episode_scores(ds))
    layered = ds.with_columns("episodes/quality", scores, role="quality")
    kept = layered.top_episodes(75, by="quality")
    assert sorted(kept.selection().index.tolist()) == np.flatnonzero(~bad).tolist()
    np.testing.assert_array_equal(episode_scores(ds, "return"), np.zeros(40))


def test_frames_are_refused():
    frames = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    observations = np.zeros((5, 4, 4, 3), np.uint8)
    record_episodes("lab/frames-v1", [whole_episode(observations, np.zeros((4, 2), "f4"), np.zeros(4))], frames, BOX)
    with pytest.raises(SchemaError, match="vectors of observations"):
        episode_scores("lab/frames-v1")
