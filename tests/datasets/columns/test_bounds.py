"""Numbers outside of their Box are counted, shown, warned of, and refused if asked."""

import math

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog import Dataset, DatasetWriter
from orlog.datasets.columns import bounds as bounds_module
from orlog.datasets.columns.bounds import Bounds, bounds_of, count_outside, lies_inside
from orlog.datasets.recording.saving import convert_dataset
from orlog.errors import SchemaError
from orlog.manifests.manifest import Outside, read_manifest
from tests.episodes import whole_episode

NAME = "lab/arm-v1"
STATE = spaces.Dict(
    {
        "angle": spaces.Box(np.array([-3.0, -1.0]), np.array([3.0, 1.0]), dtype=np.float64),
        "speed": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    }
)
ACTION = spaces.Box(-1, 1, (2,), np.float32)


def episode_of(steps, change=lambda _: None):
    """Return an episode of zeros, changed."""
    episode = whole_episode(
        {"angle": np.zeros((steps + 1, 2)), "speed": np.zeros((steps + 1, 2), np.float32)},
        np.zeros((steps, 2), np.float32),
        end="",
    )
    change(episode)
    return episode


def five(episode):
    episode.actions[2] = [5, -1.5]
    episode.actions[3] = [math.nan, math.inf]
    episode.observations["angle"][4, 1] = 2
    episode.observations["speed"][:] = 1e30


def writer_of(**more):
    return DatasetWriter(NAME, observation_space=STATE, action_space=ACTION, **more)


def record(*changes, **more):
    """Record an episode for each change."""
    with writer_of(**more) as writer:
        for change in changes:
            writer.add_episode(episode_of(5, change))
    return Dataset(writer.folder)


COUNTED = {
    "actions": Outside(numbers=2, lowest=-1.5, highest=5.0),
    "observations/angle": Outside(numbers=1, lowest=2.0, highest=2.0),
}


@pytest.mark.parametrize("container", ["zarr", "hdf5"])
def test_they_are_counted_and_the_manifest_keeps_them(container):
    dataset = record(lambda _: None, five, container=container)
    assert dataset.manifest.outside_bounds == COUNTED
    assert dataset.manifest.non_finite == {"actions": 2}
    assert read_manifest(dataset.folder / "manifest.json").digest == dataset.digest


def test_appended_saved_and_resumed_versions_count_all(tmp_path):
    dataset = record(five)
    with DatasetWriter.append(dataset) as writer:
        writer.add_episode(episode_of(5, five))
    more = Dataset(writer.folder)
    assert more.manifest.outside_bounds["actions"].numbers == 4
    saved = Dataset(orlog.save_dataset(more[:1], "lab/first-v1"))
    assert saved.manifest.outside_bounds == COUNTED
    copied = Dataset(convert_dataset(dataset, tmp_path / "copy", container="hdf5"))
    assert copied.manifest.outside_bounds == COUNTED
    writer = writer_of(version="3.0.0")
    writer.add_episode(episode_of(5, five))
    writer.checkpoint()
    writer.close()
    with writer_of(version="3.0.0", resume=True) as writer:
        writer.add_episode(episode_of(5))
    assert Dataset(writer.folder).manifest.outside_bounds == COUNTED


def add_by_step(writer, episode):
    """Add the steps of an episode one by one."""
    for step in range(len(episode)):
        seen = slice(step + 1 if step else 0, step + 2)
        writer.add_steps(
            observations={key: one[seen] for key, one in episode.observations.items()},
            actions=episode.actions[step : step + 1],
            rewards=episode.rewards[step : step + 1],
            terminations=episode.terminations[step : step + 1],
            truncations=episode.truncations[step : step + 1],
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one.actions[3].fill(-5), r"step 3, column actions\[0\]: -5 is less than -1"),
        (lambda one: one.actions[1].fill(math.inf), r"step 1, column actions\[0\]: inf is more"),
        (
            lambda one: one.observations["angle"][5].fill(2),
            r"step 5, column observations/angle\[1\]: 2 is more than 1, the bound of its Box",
        ),
    ],
)
def test_strict_refuses_them_and_names_the_place(change, message):
    with writer_of(strict=True) as writer:
        writer.add_episode(episode_of(2))
        with pytest.raises(SchemaError, match=rf"{NAME}@1.0.0, episode 1, {message}"):
            writer.add_episode(episode_of(5, change))
        with pytest.raises(SchemaError, match=message):
            add_by_step(writer, episode_of(5, change))
        writer.discard_episode()
        writer.add_episode(episode_of(5, lambda one: one.actions[3].fill(math.nan)))
    assert Dataset(writer.folder).total_episodes == 2
    with DatasetWriter.append(Dataset(writer.folder), strict=True) as writer:
        with pytest.raises(SchemaError, match="is more than 1"):
            writer.add_episode(episode_of(5, lambda one: one.actions.fill(1.01)))
        writer.add_episode(episode_of(1))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (2, 2, 3), np.uint8),
        spaces.Box(-np.inf, np.inf, (2,), np.float32),
        spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (2,), np.float32),
        spaces.Box(0, 1, (0,), np.float64),
        spaces.Discrete(3),
    ],
    ids=str,
)
def test_what_excludes_nothing_has_no_bounds(space):
    assert bounds_of(space, space) == {}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int16, np.uint8])
@pytest.mark.parametrize("is_uniform", [True, False])
@pytest.mark.parametrize("rows", [50, 700])
def test_counts_are_those_of_a_plain_loop(dtype, is_uniform, rows, monkeypatch):
    monkeypatch.setattr(bounds_module, "_BLOCK_NUMBERS", 300)
    rng = np.random.default_rng(0)
    low, high = (np.array([1, 2, 2], dtype), np.array([5, 5, 6], dtype))
    bounds = Bounds(low[0], high[0]) if is_uniform else Bounds(low, high)
    for scale in (1, 9):
        values = (3 + scale * rng.random((rows, 3))).astype(dtype)
        lows, highs = (np.broadcast_to(one, values.shape) for one in (bounds.low, bounds.high))
        outside = [
            float(value)
            for value, least, most in zip(values.flat, lows.flat, highs.flat, strict=True)
            if not least <= value <= most
        ]
        assert lies_inside(values, bounds) == (not outside)
        found = count_outside(values, bounds)
        if outside:
            assert found == Outside(numbers=len(outside), lowest=min(outside), highest=max(outside))
        else:
            assert found is None
