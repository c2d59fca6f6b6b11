"""Replay buffers of Tianshou, which hold pickles: refused, with lines that convert them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import orlog
from tests.tool_environments import run_tool, tool_python

TIANSHOU = (
    "tianshou==2.0.1",
    "deepdiff==7.0.1",
    "llvmlite==0.50.0",
    "numba==0.68.1",
    "ordered-set==4.1.0",
    "overrides==7.7.0",
    "sensai-utils==1.6.0",
)

FILL = """
    import sys
    import numpy as np
    from tianshou.data import Batch, ReplayBuffer, VectorReplayBuffer

    environments, rows = int(sys.argv[1]), int(sys.argv[2])
    buffer = ReplayBuffer(rows) if environments == 1 else VectorReplayBuffer(rows * environments, environments)
    step, episode = np.zeros(environments, int), np.zeros(environments, int)
    for _ in range(15):
        place = np.arange(environments)
        now = np.stack([place, episode, step], 1).astype(np.float32)
        step += 1
        after = np.stack([place, episode, step], 1).astype(np.float32)
        terminated, truncated = (step == 4) & (episode % 2 == 0), step == 6
        done = terminated | truncated
        batch = Batch(
            obs=now, act=now[:, 2:], rew=after[:, 2].astype(float), terminated=terminated,
            truncated=truncated, done=done, obs_next=after, info=Batch(place=place),
        )
        buffer.add(batch[0]) if environments == 1 else buffer.add(batch, buffer_ids=place)
        step[done], episode[done] = 0, episode[done] + 1
    buffer.save_hdf5("buffer.hdf5")
"""


def test_a_replay_buffer_of_tianshou_is_refused_with_lines_that_convert_it(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "buffer.hdf5", "w") as file:  # its layout, as version 2.0.1 writes it
        file.create_group("_meta").attrs["__data_type__"] = "Batch"
        file["_random_state"] = np.zeros(8, np.int8)
    with pytest.raises(ValueError, match=r"(?s)of Tianshou, .* ReplayBuffer\.load_hdf5.*np\.savez"):
        orlog.import_dataset(tmp_path / "buffer.hdf5", "lab/x-v1")


@pytest.mark.thorough
@pytest.mark.parametrize(("environments", "rows"), [(1, 20), (3, 12)])
def test_the_lines_of_the_message_convert_a_buffer_that_tianshou_wrote(
    tmp_path: Path, environments: int, rows: int
) -> None:
    python = tool_python(*TIANSHOU, dependencies=False)
    run_tool(python, FILL, str(environments), str(rows), folder=tmp_path)
    with pytest.raises(ValueError, match="Tianshou") as refused:
        orlog.import_dataset(tmp_path / "buffer.hdf5", "lab/x-v1")
    lines = [line[4:] for line in str(refused.value).splitlines() if line.startswith("    ")]
    run_tool(python, "\n".join(lines), folder=tmp_path)
    orlog.import_dataset(tmp_path / "data.npz", "lab/x-v1")
    dataset = orlog.load_dataset("lab/x-v1")
    # Of 15 steps: 4 that terminate, 6 that are truncated, 4 again, and one that was not finished.
    lengths = [4, 6, 4, 1] if rows == 20 else [1, 6, 4, 1]
    assert dataset.episode_lengths.tolist() == lengths * environments
    for index, episode in enumerate(dataset):
        place, number = divmod(index, 4)
        first = 4 - len(episode) if number == 0 else 0
        expected = [[place, number, step] for step in range(first, first + len(episode) + 1)]
        np.testing.assert_array_equal(episode.observations, expected)
        assert bool(episode.terminations[-1]) == (number in (0, 2))
        assert bool(episode.truncations[-1]) == (number in (1, 3))
