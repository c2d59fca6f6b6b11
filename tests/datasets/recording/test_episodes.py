from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pytest
from gymnasium import spaces

from orlog.datasets.columns.episode import Episode
from orlog.datasets.columns.schema import Schema
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.store.container import WrittenPart
from orlog.datasets.store.verify import make_objects
from orlog.datasets.store.zarr_reader import ZarrReader
from orlog.errors import SchemaError
from orlog.manifests.columns import axis_of

OBSERVATION = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (2, 3), np.uint8),
        "parts": spaces.Tuple([spaces.Discrete(5), spaces.Box(-1, 1, (2,), np.float32)]),
    }
)
ACTION = spaces.Discrete(3)


def an_episode(steps: int, seed: int = 0) -> Episode:
    rng = np.random.default_rng(seed)
    truncations = np.zeros(steps, np.bool_)
    truncations[-1:] = True
    return Episode(
        observations={
            "image": rng.integers(0, 256, (steps + 1, 2, 3)).astype(np.uint8),
            "parts": (rng.integers(0, 5, steps + 1), rng.random((steps + 1, 2)).astype(np.float32)),
        },
        actions=rng.integers(0, 3, steps),
        rewards=rng.standard_normal(steps),
        terminations=np.zeros(steps, np.bool_),
        truncations=truncations,
        infos={"goal": rng.standard_normal((steps, 2))},
        seed=seed or None,
    )


def observations_of(episode: Episode) -> dict[str, Any]:
    assert isinstance(episode.observations, dict)
    return dict(episode.observations)


def write(folder: Path, episodes: Iterable[Episode]) -> WrittenPart:
    schema = Schema(observation_space=OBSERVATION, action_space=ACTION)
    writer = EpisodeWriter(folder, schema, "tests/small-v1@1.0.0")
    try:
        for episode in episodes:
            writer.add_episode(episode)
        return writer.finish()
    finally:
        writer.close()


def read_all(folder: Path, written: WrittenPart) -> dict[str, np.ndarray]:
    specs = written.schema.columns()
    rows = {specs[name]: column.rows for name, column in written.part.columns.items()}
    reader = ZarrReader(folder, rows, {item.path: item.size_bytes for item in written.objects})
    return {spec.name: reader.read(spec.name, 0, count) for spec, count in rows.items()}


def test_columns_follow_from_the_spaces_and_the_first_episode(tmp_path: Path) -> None:
    found = {
        name: (spec.dtype.name, spec.shape, axis_of(name))
        for name, spec in write(tmp_path, [an_episode(3)]).schema.columns().items()
    }
    assert found == {
        "observations/image": ("uint8", (2, 3), "observation"),
        "observations/parts/0": ("int64", (), "observation"),
        "observations/parts/1": ("float32", (2,), "observation"),
        "actions": ("int64", (), "step"),
        "rewards": ("float64", (), "step"),
        "terminations": ("bool", (), "step"),
        "truncations": ("bool", (), "step"),
        "infos/goal": ("float64", (2,), "step"),
        "episodes/lengths": ("int64", (), "episode"),
        "episodes/seeds": ("int64", (), "episode"),
        "episodes/returns": ("float64", (), "episode"),
    }


def test_columns_hold_the_episodes_one_after_the_other(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    episodes = [an_episode(3, 5), an_episode(1), an_episode(4, 7)]
    written = write(folder, episodes)
    assert (written.part.episodes, written.part.steps) == (3, 8)
    assert written.objects == make_objects(folder)
    columns = read_all(folder, written)
    assert list(columns) == sorted(columns)
    for name, values in columns.items():
        assert written.part.columns[name].rows == len(values)
        assert written.part.columns[name].blake3 == blake3.blake3(values.tobytes()).hexdigest()
    assert columns["episodes/lengths"].tolist() == [3, 1, 4]
    assert columns["episodes/seeds"].tolist() == [5, -1, 7]
    returns = [episode.rewards.sum() for episode in episodes]
    assert columns["episodes/returns"].tolist() == returns
    for name in ("rewards", "actions", "terminations", "truncations"):
        whole = np.concatenate([getattr(episode, name) for episode in episodes])
        assert columns[name].tobytes() == whole.tobytes()
    goals = np.concatenate([episode.infos["goal"] for episode in episodes])
    assert (columns["infos/goal"] == goals).all()
    images = np.concatenate([observations_of(episode)["image"] for episode in episodes])
    assert images.shape == (8 + 3, 2, 3)
    assert (columns["observations/image"] == images).all()
    parts = np.concatenate([observations_of(episode)["parts"][1] for episode in episodes])
    assert (columns["observations/parts/1"] == parts).all()


def test_texts_and_arrays_of_any_length_count_on_from_episode_to_episode(tmp_path: Path) -> None:
    texts = [["to", "", "be"], [""], ["or", "näh", "", ""]]
    pieces = [[np.arange(length) for length in lengths] for lengths in ([2, 0, 1], [3], [0] * 4)]
    written = write(
        tmp_path,
        (
            dataclasses.replace(
                an_episode(len(said)),
                infos={"said": said, "seen": seen},
                metadata={"task": said[0]},
            )
            for said, seen in zip(texts, pieces, strict=True)
        ),
    )
    assert written.schema.variable == {
        "infos/said": "text",
        "infos/seen": "array",
        "episodes/task": "text",
    }
    columns = read_all(tmp_path, written)
    assert columns["infos/said@values"].tobytes().decode() == "tobeornäh"
    assert columns["infos/said@offsets"].tolist() == [2, 2, 4, 4, 6, 10, 10, 10]
    assert columns["infos/seen@offsets"].tolist() == [2, 2, 3, 6, 6, 6, 6, 6]
    assert columns["infos/seen@values"].tolist() == [0, 1, 0, 0, 1, 2]
    assert columns["episodes/task@values"].tobytes() == b"toor"
    assert columns["episodes/task@offsets"].tolist() == [2, 2, 4]


def test_steps_one_by_one_give_the_bytes_of_whole_episodes(tmp_path: Path) -> None:
    episodes = [an_episode(5, 3), an_episode(1), an_episode(4)]
    expected = write(tmp_path / "whole", episodes)
    schema = Schema(observation_space=OBSERVATION, action_space=ACTION)
    writer = EpisodeWriter(tmp_path / "steps", schema, "tests/small-v1@1.0.0")
    for episode in episodes:
        image, parts = observations_of(episode)["image"], observations_of(episode)["parts"]
        for step in range(len(episode)):
            rows = slice(0 if step == 0 else step + 1, step + 2)
            assert writer.inside_episode == (step > 0)
            writer.add_steps(
                observations={
                    "image": image[rows],
                    "parts": tuple(values[rows] for values in parts),
                },
                actions=np.asarray(episode.actions)[step : step + 1],
                rewards=episode.rewards[step : step + 1],
                terminations=episode.terminations[step : step + 1],
                truncations=episode.truncations[step : step + 1],
                infos={"goal": np.asarray(episode.infos["goal"])[step : step + 1]},
            )
        writer.end_episode(seed=episode.seed, metadata={})
    written = writer.finish()
    names = [name for name in expected.part.columns if name != "episodes/returns"]
    assert [written.part.columns[name] for name in names] == [
        expected.part.columns[name] for name in names
    ]
    # Sums of parts may round otherwise than the sum of all.
    returns = read_all(tmp_path / "steps", written)["episodes/returns"]
    assert returns == pytest.approx([episode.rewards.sum() for episode in episodes])


def test_numbers_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    episode = an_episode(4)
    rewards = np.array([0.0, np.nan, -np.inf, 1.0])
    goal = np.full((4, 2), np.inf)
    written = write(tmp_path, [dataclasses.replace(episode, rewards=rewards, infos={"goal": goal})])
    assert written.non_finite == {"rewards": 2, "infos/goal": 8, "episodes/returns": 1}


def test_flags_may_both_be_false_at_the_end_of_a_recording(tmp_path: Path) -> None:
    episode = dataclasses.replace(an_episode(3), truncations=np.zeros(3, np.bool_))
    assert write(tmp_path / "store", [episode]).part.steps == 3


def test_a_dataset_without_episodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"tests/small-v1@1\.0\.0: .* at least one episode"):
        write(tmp_path / "store", [])


def test_nothing_of_what_is_refused_is_written(tmp_path: Path) -> None:
    expected = write(tmp_path / "good", [an_episode(4), an_episode(2, 1)])
    schema = Schema(observation_space=OBSERVATION, action_space=ACTION)
    writer = EpisodeWriter(tmp_path / "store", schema, "tests/small-v1@1.0.0")
    for episode in (an_episode(4), an_episode(2, 1)):
        for change, _ in BROKEN.values():
            # A first episode decides which infos there are, so theirs cannot be wrong.
            if writer.episodes == 0 and "infos" in change:
                continue
            with pytest.raises(SchemaError):
                writer.add_episode(dataclasses.replace(GOOD, **change))
        writer.add_episode(episode)
    assert writer.finish() == expected


GOOD = an_episode(4)
FLAG = np.array([False, True, False, False])
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "T observations": (
        {"observations": {**observations_of(GOOD), "image": np.zeros((4, 2, 3), np.uint8)}},
        r"column observations/image: expected uint8 .*; observations have one row more than actions",
    ),
    "T + 2 observations": (
        {"observations": {**observations_of(GOOD), "image": np.zeros((6, 2, 3), np.uint8)}},
        r"column observations/image: expected uint8 \(5, 2, 3\), found uint8 \(6, 2, 3\)\.$",
    ),
    "missing observation": (
        {"observations": {"image": observations_of(GOOD)["image"]}},
        r"column observations: expected the keys \['image', 'parts'\], found \['image'\]",
    ),
    "plain observation": (
        {"observations": np.zeros((5, 2))},
        r"column observations: expected a dict of \['image', 'parts'\], found float64 \(5, 2\)",
    ),
    "dtype of observations": (
        {"observations": {**observations_of(GOOD), "image": np.zeros((5, 2, 3))}},
        r"column observations/image: expected uint8 \(5, 2, 3\), found float64",
    ),
    "dtype of actions": (
        {"actions": np.zeros(4, np.int32)},
        r"column actions: expected int64 \(4,\), found int32 \(4,\)",
    ),
    "shape of actions": (
        {"actions": np.zeros((4, 1), np.int64)},
        r"column actions: expected int64 \(4,\), found int64 \(4, 1\)",
    ),
    "too few actions": (
        {"actions": np.zeros(3, np.int64)},
        r"column actions: expected int64 \(4,\), found int64 \(3,\)",
    ),
    "dtype of rewards": (
        {"rewards": np.zeros(4, np.complex64)},
        r"column rewards: expected float64 \(4,\), found complex64",
    ),
    "flags that are numbers": (
        {"terminations": np.zeros(4, np.uint8)},
        r"column terminations: expected bool \(4,\), found uint8",
    ),
    "termination in the middle": (
        {"terminations": FLAG},
        "column terminations: true at step 1 of 4",
    ),
    "truncation in the middle": ({"truncations": FLAG}, "column truncations: true at step 1 of 4"),
    "missing info": ({"infos": {}}, "expected the columns .*infos/goal"),
    "other info": ({"infos": {"aim": np.zeros((4, 2))}}, "expected .*found .*infos/aim"),
    "more infos": ({"infos": {**GOOD.infos, "aim": np.zeros(4)}}, "expected .*found .*infos/aim"),
    "rows of infos": (
        {"infos": {"goal": np.zeros((5, 2))}},
        r"column infos/goal: expected float64 \(4, 2\), found float64 \(5, 2\)",
    ),
    "dtype of infos": (
        {"infos": {"goal": np.zeros((4, 2), np.float32)}},
        "column infos/goal: expected float64",
    ),
}


@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_what_does_not_fit_is_refused_by_episode_and_column(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    episodes = [GOOD, dataclasses.replace(GOOD, **change)]
    with pytest.raises(SchemaError, match=rf"^tests/small-v1@1\.0\.0, episode 1[,:] {message}"):
        write(tmp_path / "store", episodes)


def test_an_episode_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="episode 1: has no steps"):
        write(tmp_path / "store", [GOOD, an_episode(0)])


def test_the_first_episode_is_checked_like_every_other(tmp_path: Path) -> None:
    wrong = dataclasses.replace(GOOD, infos={"goal": np.zeros((5, 2))})
    with pytest.raises(SchemaError, match="episode 0, column infos/goal"):
        write(tmp_path / "store", [wrong])
