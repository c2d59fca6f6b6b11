"""The log keeps episodes between two journals; what is torn or dropped is left out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.columns.episode import Episode
from orlog.datasets.recording import log

NAME = "lab/log-v1"


def start(**options: Any) -> orlog.DatasetWriter:
    return orlog.DatasetWriter(
        NAME,
        observation_space=spaces.Box(-9, 9, (2,), np.float32),
        action_space=spaces.Discrete(4),
        keep_every_episode=True,
        checkpoint_seconds=1e9,
        **options,
    )


def make_episode(number: int, steps: int = 5) -> Episode:
    return Episode(
        observations=np.full((steps + 1, 2), number, np.float32),
        actions=np.full(steps, number % 4),
        rewards=np.full(steps, float(number)),
        terminations=np.zeros(steps, np.bool_),
        truncations=np.zeros(steps, np.bool_),
        infos={"note": ["é" * number] * steps},
        seed=number,
        metadata={"task": f"push {number}"},
    )


def add_some_steps(writer: orlog.DatasetWriter, number: int, *, first: bool) -> None:
    episode = make_episode(number, 3)
    writer.add_steps(
        observations=episode.observations[0 if first else 1 :],
        actions=episode.actions,
        rewards=episode.rewards,
        terminations=episode.terminations,
        truncations=episode.truncations,
        infos=episode.infos,
    )


def seeds_after_a_kill() -> list[int]:
    """Return the seeds of the episodes that are there when a recording goes on."""
    with start(resume=True) as writer:
        writer.finish()
    return [episode.seed or 0 for episode in orlog.load_dataset(NAME)]


def test_episodes_without_a_checkpoint_are_kept() -> None:
    writer = start()
    for number in range(4):
        writer.add_episode(make_episode(number))
    writer.close()  # acknowledges nothing
    with start(resume=True) as again:
        assert again.total_episodes == 4
        again.add_episode(make_episode(4))
    ds = orlog.load_dataset(NAME)
    for number, episode in enumerate(ds):
        expected = make_episode(number)
        np.testing.assert_array_equal(episode.observations, expected.observations)
        assert episode.infos == expected.infos
        assert episode.metadata == expected.metadata


def test_steps_in_pieces_and_dropped_ones() -> None:
    writer = start()
    writer.add_episode(make_episode(0))
    add_some_steps(writer, 1, first=True)
    writer.discard_episode()
    add_some_steps(writer, 2, first=True)
    add_some_steps(writer, 2, first=False)
    writer.end_episode(seed=2, metadata={"task": "two"})
    add_some_steps(writer, 3, first=True)  # not ended
    writer.close()
    assert seeds_after_a_kill() == [0, 2]
    assert orlog.load_dataset(NAME).column("episodes/lengths").tolist() == [5, 6]


def test_a_checkpoint_inside_an_episode_leaves_it_whole() -> None:
    writer = start()
    writer.add_episode(make_episode(0))
    add_some_steps(writer, 1, first=True)
    writer.checkpoint()
    add_some_steps(writer, 1, first=False)
    writer.end_episode(seed=1, metadata={"task": "one"})
    writer.add_episode(make_episode(2))
    writer.close()
    assert seeds_after_a_kill() == [0, 1, 2]


@pytest.mark.parametrize("small", [0, 2**16])
def test_a_log_that_is_cut_anywhere_keeps_the_episodes_before(
    small: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SMALL", small)
    path = home / "datasets" / NAME / ".1.0.0.recording" / "episodes-1"
    writer = start()
    ends = []
    for number in range(3):
        writer.add_episode(make_episode(number))
        ends.append(path.stat().st_size)
    writer.close()
    whole, kept = path.read_bytes(), home.with_name("kept")
    shutil.copytree(home, kept)
    rng = np.random.default_rng(0)
    for size in {0, 1, 7, 40, ends[1] - 1, ends[1], ends[2] - 1, *rng.integers(0, ends[2], 6)}:
        shutil.rmtree(home)
        shutil.copytree(kept, home)
        path.write_bytes(whole[:size])
        assert seeds_after_a_kill() == list(range(sum(size >= end for end in ends)))


def test_a_damaged_block_and_those_after_it_are_left_out(home: Path) -> None:
    path = home / "datasets" / NAME / ".1.0.0.recording" / "episodes-1"
    writer = start()
    for number in range(3):
        writer.add_episode(make_episode(number))
    flipped = path.stat().st_size - 9
    writer.add_episode(make_episode(3))
    writer.close()
    data = bytearray(path.read_bytes())
    data[flipped] ^= 1
    path.write_bytes(data)
    assert seeds_after_a_kill() == [0, 1]
