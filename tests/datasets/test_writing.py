from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from orlog.datasets.episode import Episode
from orlog.datasets.store import Store
from orlog.datasets.verify import make_objects
from orlog.datasets.writing import column_specs, write_episodes
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
            "parts": {
                "0": rng.integers(0, 5, steps + 1),
                "1": rng.random((steps + 1, 2)).astype(np.float32),
            },
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


def test_columns_follow_from_the_spaces() -> None:
    infos: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {"goal": (np.dtype("f8"), (2,))}
    specs = {spec.name: spec for spec in column_specs(OBSERVATION, ACTION, infos)}
    found = {name: (spec.dtype.name, spec.shape, spec.axis) for name, spec in specs.items()}
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
    columns, total_episodes, total_steps = write_episodes(folder, episodes, OBSERVATION, ACTION)
    assert (total_episodes, total_steps) == (3, 8)
    store = Store(folder, columns, make_objects(folder))
    assert [column.name for column in columns] == sorted(column.name for column in columns)
    assert store.read("episodes/lengths").tolist() == [3, 1, 4]
    assert store.read("episodes/seeds").tolist() == [5, -1, 7]
    returns = [episode.rewards.sum() for episode in episodes]
    assert store.read("episodes/returns").tolist() == returns
    for name in ("rewards", "actions", "terminations", "truncations"):
        whole = np.concatenate([getattr(episode, name) for episode in episodes])
        assert store.read(name).tobytes() == whole.tobytes()
    goals = np.concatenate([episode.infos["goal"] for episode in episodes])
    assert (store.read("infos/goal") == goals).all()
    images = np.concatenate([observations_of(episode)["image"] for episode in episodes])
    assert images.shape == (8 + 3, 2, 3)
    assert (store.read("observations/image") == images).all()
    parts = np.concatenate([observations_of(episode)["parts"]["1"] for episode in episodes])
    assert (store.read("observations/parts/1") == parts).all()


def test_flags_may_both_be_false_at_the_end_of_a_recording(tmp_path: Path) -> None:
    episode = dataclasses.replace(an_episode(3), truncations=np.zeros(3, np.bool_))
    _, _, steps = write_episodes(tmp_path / "store", [episode], OBSERVATION, ACTION)
    assert steps == 3


def test_a_dataset_without_episodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="at least one episode"):
        write_episodes(tmp_path / "store", [], OBSERVATION, ACTION)
    assert not (tmp_path / "store").exists()


GOOD = an_episode(4)
FLAG = np.array([False, True, False, False])
BROKEN = {
    "T observations": (
        {"observations": {**observations_of(GOOD), "image": np.zeros((4, 2, 3), np.uint8)}},
        r"column observations/image: expected uint8 .*; observations have one row more than actions",
    ),
    "T + 2 observations": (
        {"observations": {**observations_of(GOOD), "image": np.zeros((6, 2, 3), np.uint8)}},
        r"column observations/image: expected uint8 \(5, 2, 3\), found uint8 \(6, 2, 3\)$",
    ),
    "missing observation": (
        {"observations": {"image": observations_of(GOOD)["image"]}},
        r"expected the columns .*observations/parts/0",
    ),
    "plain observation": ({"observations": np.zeros((5, 2))}, "expected the columns"),
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
        {"rewards": np.zeros(4, np.float32)},
        r"column rewards: expected float64 \(4,\), found float32",
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
    with pytest.raises(SchemaError, match=rf"^episode 1[,:] {message}"):
        write_episodes(tmp_path / "store", episodes, OBSERVATION, ACTION)


def test_an_episode_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="episode 1: has no steps"):
        write_episodes(tmp_path / "store", [GOOD, an_episode(0)], OBSERVATION, ACTION)


def test_the_first_episode_is_checked_like_every_other(tmp_path: Path) -> None:
    wrong = dataclasses.replace(GOOD, infos={"goal": np.zeros((5, 2))})
    with pytest.raises(SchemaError, match="episode 0, column infos/goal"):
        write_episodes(tmp_path / "store", [wrong], OBSERVATION, ACTION)
