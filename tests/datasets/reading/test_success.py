"""`success` in expressions: the column of episodes, else what steps say."""

import numpy as np
import pytest
from gymnasium import spaces

from tests.episodes import record_episodes, whole_episode

BOX = spaces.Box(-1, 1, (2,), np.float32)
LENGTHS = (3, 2, 4, 1)
DONE = (True, False, True, False)
AT_STEPS = ([0, 1, 0], [0, 0], [0, 0, 0, 1], [0])


@pytest.mark.parametrize("dtype", [bool, np.float32, np.int64])
@pytest.mark.parametrize(
    ("place", "expected"), [("episodes/success", DONE), ("infos/success", DONE), ("infos/is_success", (0, 0, 1, 0))]
)
def test_success_names_what_episodes_or_steps_state(place, expected, dtype):
    axis, _, name = place.partition("/")
    episodes = [
        whole_episode(
            np.zeros((length + 1, 2), "f4"),
            np.zeros((length, 2), "f4"),
            infos={name: np.array(steps, dtype)} if axis == "infos" else {},
            metadata={name: dtype(done)} if axis == "episodes" else {},
        )
        for length, done, steps in zip(LENGTHS, DONE, AT_STEPS, strict=True)
    ]
    dataset = record_episodes("lab/a-v1", episodes, BOX, BOX)

    def kept(expression):
        return [len(one) for one in dataset.filter_episodes(expression)]

    good = [length for length, done in zip(LENGTHS, expected, strict=True) if done]
    assert kept("success") == good
    assert sorted(kept("not success") + good) == sorted(LENGTHS)
    assert kept("success and lengths > 3") == [4]
    assert kept("success == 1") == good
    assert dataset[:0].filter_episodes("success").total_episodes == 0
    assert dataset[::-1].filter_episodes("success").episode_lengths.tolist() == good[::-1]
