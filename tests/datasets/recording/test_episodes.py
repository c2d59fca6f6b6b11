from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from orlog.datasets.columns.episode import Episode
from orlog.datasets.columns.schema import Schema
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.store.zarr_reader import ZarrReader
from orlog.datasets.store.zarr_writer import WrittenPart
from orlog.errors import SchemaError

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


GOOD = an_episode(4)
IMAGE = observations_of(GOOD)["image"]
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "T observations": (
        {"observations": {**observations_of(GOOD), "image": IMAGE[:4]}},
        r"column observations/image: expected 5 rows, found 4, .*; observations have one row more",
    ),
    "T + 2 observations": (
        {"observations": {**observations_of(GOOD), "image": np.zeros((6, 2, 3), np.uint8)}},
        r"column observations/image: expected 5 rows, found 6, .* are of 4 steps\.$",
    ),
    "missing observation": (
        {"observations": {"image": IMAGE}},
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
    "dtype of rewards": (
        {"rewards": np.zeros(4, np.complex64)},
        r"column rewards: expected float64 \(4,\), found complex64",
    ),
    "other info": ({"infos": {"aim": np.zeros((4, 2))}}, "expected .*found .*infos/aim"),
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rewards": [0.5] * 5}, r"column rewards: expected 4 rows, found 5"),
        ({"actions": GOOD.actions[:3]}, r"column actions: expected 4 rows, found 3"),
        # Three infos of one more row do not outvote the rest.
        ({"infos": dict.fromkeys("abc", np.zeros(5))}, r"column infos/a: expected 4 rows, found 5"),
        ({"infos": [{"a": 1.0}] * 3}, r"column infos/a: expected 4 rows, found 3"),
        (
            {"observations": {"image": IMAGE, "parts": {"0": np.zeros(4), "1": np.zeros((5, 2))}}},
            r"column observations/parts/0: expected 5 rows, found 4, .* \(actions, rewards, ",
        ),
    ],
)
def test_the_column_that_disagrees_with_the_others_is_named(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(SchemaError, match=f"^Episode, {said}.* are of 4 steps"):
        dataclasses.replace(GOOD, **change)
    fields = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
    steps = {name: getattr(GOOD, name) for name in fields} | change
    writer = EpisodeWriter(
        tmp_path, Schema(observation_space=OBSERVATION, action_space=ACTION), "x"
    )
    with pytest.raises(SchemaError, match=f"^x, episode 0, {said}"):
        writer.add_steps(**steps)
    writer.close()
