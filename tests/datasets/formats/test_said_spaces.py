"""What users say about files that hold neither bounds nor an environment, in every kind of format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.errors import NotFoundError, OrlogError, SchemaError

ROWS = 60
OWN_FORMAT = """
import contextlib, gymnasium, numpy as np
from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.formats import Opened, Steps

BOX = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
ACTION = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)


@contextlib.contextmanager
def _open(asked):
    step = Steps(observations=np.zeros((5, 3)), actions=np.zeros((4, 1)), rewards=np.ones(4), truncated=True)
    yield Opened(schema=Schema(observation_space=BOX, action_space=ACTION), steps=iter([step]))


FORMAT = Format(name="mine", open=_open, extensions=(".mine",))
"""


def columns() -> dict[str, np.ndarray]:
    """Return 60 steps in three episodes, as of Pendulum."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.uniform(-1, 1, (ROWS, 3)),
        "actions": rng.uniform(-2, 2, (ROWS, 1)),
        "rewards": rng.normal(size=ROWS),
        "terminals": np.zeros(ROWS, bool),
        "timeouts": np.arange(ROWS) % 20 == 19,
    }


def npz(folder: Path) -> Path:
    np.savez(folder / "data.npz", **columns())  # type: ignore[arg-type]
    return folder / "data.npz"


def d4rl(folder: Path) -> Path:
    with h5py.File(folder / "data.hdf5", "w") as file:
        for name, values in columns().items():
            file[name] = values
    return folder / "data.hdf5"


def csv(folder: Path) -> Path:
    rows = columns()
    table = np.column_stack(
        [np.arange(ROWS) // 20, rows["observations"], rows["actions"], rows["rewards"]]
    )
    lines = [",".join(map(repr, row)) for row in table.tolist()]
    (folder / "data.csv").write_text("\n".join(["episode,obs_0,obs_1,obs_2,act,rew", *lines]))
    return folder / "data.csv"


def own(folder: Path) -> Path:
    (folder / "mine.py").write_text(OWN_FORMAT)
    (folder / "data.mine").write_text("")
    return folder / "data.mine"


WRITERS = (npz, d4rl, csv, own)


def imported(path: Path, name: str = "lab/arm-v1", **options: Any) -> orlog.Dataset:
    if path.suffix == ".mine":
        options["format"] = str(path.with_name("mine.py"))
    return orlog.load_dataset(orlog.import_dataset(path, name, **options))


@pytest.mark.parametrize("write", WRITERS)
def test_an_environment_gives_spaces_and_is_scored_in(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    found = imported(write(tmp_path), environment="Pendulum-v1,g=9.5")
    assert found.environment is not None
    assert (found.environment.id, found.environment.kwargs) == ("Pendulum-v1", {"g": 9.5})
    assert found.environment.max_episode_steps == 200
    made = gymnasium.make("Pendulum-v1")
    space = found.observation_space
    assert isinstance(space, spaces.Box)
    assert isinstance(made.observation_space, spaces.Box)
    np.testing.assert_array_equal(space.low, made.observation_space.low)
    np.testing.assert_array_equal(space.high, made.observation_space.high)
    assert found.action_space == spaces.Box(-2, 2, (1,), np.float64)
    run = orlog.train("bc", found, out=tmp_path / "run", steps=2, evaluations=0)
    assert len(orlog.evaluate(run, episodes=1).returns) == 1  # its arguments are the user's own


@pytest.mark.parametrize("write", WRITERS)
def test_bounds_are_those_that_were_said(write: Callable[[Path], Path], tmp_path: Path) -> None:
    found = imported(write(tmp_path), action_low=-2, action_high=[2.5], observation_low=-1)
    assert found.action_space == spaces.Box(-2, 2.5, (1,), np.float64)
    assert found.observation_space == spaces.Box(-1, np.inf, (3,), np.float64)
    assert found.environment is None
    orlog.train("td3bc", found, out=tmp_path / "run", steps=2, evaluations=0)


def test_a_benchmarks_dataset_is_taken_as_of_its_own_format(tmp_path: Path) -> None:
    rows = columns()
    rows["observations"] = np.zeros((ROWS, 11), np.float32)
    rows["actions"] = np.zeros((ROWS, 3), np.float32)
    np.savez(tmp_path / "hop.npz", **rows)  # type: ignore[arg-type]
    found = imported(tmp_path / "hop.npz", like="d4rl/hopper-medium-v2")
    assert found.action_space == spaces.Box(-1, 1, (3,), np.float32)
    assert found.environment is not None
    assert found.environment.id == "Hopper-v4"
    assert found.benchmark == "d4rl/hopper-medium-v2"
    assert orlog.references(found).expert.mean > 3000


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"environment": "CartPole-v1"}, SchemaError, "observations: do not fit CartPole-v1"),
        ({"environment": "Hopper-v99"}, NotFoundError, "Hopper-v99"),
        ({"environment": "Pendulum-v1,9"}, ValueError, "ID,NAME=VALUE"),
        ({"like": "d4rl/hopper-medium-v2"}, SchemaError, "do not fit d4rl/hopper-medium-v2"),
        ({"like": "d4rl/hopper-medium-v2", "environment": "Pendulum-v1"}, ValueError, "like"),
        ({"action_low": [-1, -1]}, SchemaError, "action_low: expected one number"),
        ({"action_low": 1, "action_high": -1}, SchemaError, "lower bound is above"),
        ({"action_high": float("nan")}, SchemaError, "lower bound"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_kept(
    options: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path
) -> None:
    path = npz(tmp_path)
    with pytest.raises(kind, match=message):
        imported(path, **options)
    with pytest.raises(OrlogError):
        orlog.load_dataset("lab/arm-v1")


def test_usual_names_of_columns_are_taken_and_said(tmp_path: Path) -> None:
    found = imported(csv(tmp_path), environment="Pendulum-v1")
    assert found.manifest.description.startswith("Columns were taken by their names")
    assert found.total_episodes == 3


def test_a_time_limit_of_an_environment_does_not_end_logs_that_are_shorter(tmp_path: Path) -> None:
    rows = {name: one for name, one in columns().items() if name in ("observations", "actions")}
    np.savez(tmp_path / "log.npz", run=np.repeat([0, 1], ROWS // 2), **rows)  # type: ignore[arg-type]
    mapped = {"observation": "observations", "action": "actions"}
    found = imported(tmp_path / "log.npz", environment="Pendulum-v1", columns=mapped, episode="run")
    assert not found.column("terminations").any()
    assert "--horizon 200 that the task ended shorter ones" in found.manifest.description
