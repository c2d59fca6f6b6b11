"""Recording: what goes in comes out, what does not fit is refused whole, and nothing is lost."""

from __future__ import annotations

import dataclasses
import errno
import functools
import itertools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog import files as storage
from orlog.datasets.columns.episode import Episode
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.recording import finishing, journal
from orlog.datasets.recording.writer import DatasetWriter
from orlog.datasets.store import encoding, zarr_writer
from orlog.errors import (
    IntegrityError,
    InvalidNameError,
    ManifestError,
    NotFoundError,
    OrlogError,
    SchemaError,
    StorageError,
    VersionExistsError,
)
from orlog.files import put_new
from orlog.manifests.manifest import StoredObject
from tests.levels import scaled

NAME = "lab/arm-v1"
OPTIONS: list[dict[str, Any]] = [{}, {"resume": True}, {"discard": True}]
OBSERVATIONS = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Discrete(4)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few steps fill a shard; no disk loses power here, so none is waited for."""
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 128)
    monkeypatch.setattr(encoding, "SHARD_BYTES", 512)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def make_episode(number: int, steps: int | None = None, **fields: Any) -> Episode:
    """Return the episode of this number, 1 to 29 steps long and the same each time."""
    rng = np.random.default_rng([number, 7])
    steps = steps or int(rng.integers(1, 30))
    last = np.arange(steps) == steps - 1
    made = Episode(
        observations=rng.standard_normal((steps + 1, 3)).astype(np.float32),
        actions=rng.integers(0, 4, steps),
        rewards=rng.standard_normal(steps),
        terminations=last & (number % 3 == 0),
        truncations=last & (number % 3 == 1),
        infos={
            "torque": rng.standard_normal((steps, 2)).astype(np.float32),
            "note": [f"step {step} ✓"[: int(rng.integers(0, 9))] for step in range(steps)],
            "hits": [rng.integers(0, 9, (int(rng.integers(0, 4)), 2)) for _ in range(steps)],
        },
        seed=number if number % 2 else None,
        metadata={"task": f"push {number}"[: 4 + number % 4], "weight": float(number)},
    )
    return dataclasses.replace(made, **fields)


EPISODES = [make_episode(number) for number in range(12)]


def start(name: str = NAME, **arguments: Any) -> DatasetWriter:
    return DatasetWriter(name, observation_space=OBSERVATIONS, action_space=ACTIONS, **arguments)


def record(episodes: Iterable[Episode], name: str = NAME, **arguments: Any) -> orlog.Dataset:
    with start(name, **arguments) as writer:
        for episode in episodes:
            writer.add_episode(episode)
    return opened(writer)


@functools.cache
def digest_of(count: int) -> str:
    """Return the digest of the first episodes, recorded without a disturbance somewhere else."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", folder)
        return record(EPISODES[:count]).digest


def opened(writer: DatasetWriter) -> orlog.Dataset:
    """Return what was finished, every byte of it checked."""
    assert orlog.verify_store(writer.folder)[1] == []
    dataset = orlog.load_dataset(writer.folder)
    dataset.folder.relative_to(datasets_folder())
    return dataset


def pieces_of(episode: Episode, edges: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `add_steps` for the steps between edges."""
    infos: dict[str, Any] = dict(episode.infos)
    first = 0
    for last in [*edges, len(episode)]:
        assert isinstance(episode.observations, np.ndarray)
        assert isinstance(episode.actions, np.ndarray)
        yield {
            "observations": episode.observations[first + 1 if first else 0 : last + 1],
            "actions": episode.actions[first:last],
            "rewards": episode.rewards[first:last],
            "terminations": episode.terminations[first:last],
            "truncations": episode.truncations[first:last],
            "infos": {name: values[first:last] for name, values in infos.items()},
        }
        first = last


def add_in_pieces(writer: DatasetWriter, episode: Episode, edges: Iterable[int]) -> None:
    for piece in pieces_of(episode, edges):
        writer.add_steps(**piece)
    writer.end_episode(seed=episode.seed, metadata=episode.metadata)


def assert_same_episode(found: Episode, expected: Episode) -> None:
    found = dataclasses.replace(found, index=expected.index)
    np.testing.assert_equal(dataclasses.asdict(found), dataclasses.asdict(expected))
    for field in ("observations", "actions", "rewards", "terminations", "truncations"):
        assert getattr(found, field).dtype == getattr(expected, field).dtype
    assert type(found.seed) is type(expected.seed)


def leftovers(name: str = NAME) -> set[str]:
    """Return what lies beside the versions of a dataset; lock files may always stay."""
    folder = datasets_folder() / name
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return {name for name in found if name.startswith(".") and not name.endswith(".lock")}


def in_child(work: Callable[[], object]) -> tuple[int, str]:
    """Do something in a fork of this process; return its status and what it told on the way."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # no thread of ours runs here
        child = os.fork()
    if child == 0:
        os.dup2(write_end, 1)
        signal.alarm(60)  # whatever hangs is not waited for
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (nothing may leave the child)
            tell(f"{type(error).__name__}: {error}")
            os._exit(1)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        told = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def tell(text: object) -> None:
    os.write(1, f"{text}\n".encode())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- what goes in comes out


@pytest.mark.parametrize("container", ["zarr", "hdf5"])
def test_episodes_come_back_as_they_were(container: str) -> None:
    if container == "hdf5":
        pytest.importorskip("h5py")
    dataset = record(EPISODES, container=container)
    assert len(dataset) == len(EPISODES)
    assert dataset.total_steps == sum(map(len, EPISODES))
    for found, expected in zip(dataset, EPISODES, strict=True):
        assert_same_episode(found, expected)
    for position in (0, 5, -1):
        assert_same_episode(dataset[position], EPISODES[position])
    returns = [episode.rewards.sum() for episode in EPISODES]
    np.testing.assert_allclose(dataset.column("episodes/returns"), returns)
    assert leftovers() == set()


def test_what_is_known_about_the_data_is_kept() -> None:
    facts = {
        "description": "Pushes a block.",
        "license": "CC0-1.0",
        "behavior_policy": "a human",
        "changes": "the first",
    }
    manifest = record(EPISODES[:1], version="3.1.4", reward_dtype=np.float64, **facts).manifest
    assert {name: getattr(manifest, name) for name in facts} == facts
    assert (manifest.name, manifest.version, manifest.lineage) == (NAME, "3.1.4", [])
    assert (manifest.environment, manifest.recipe) == (None, None)


def test_rewards_may_have_single_precision() -> None:
    episode = make_episode(1, rewards=np.full(len(EPISODES[1]), 0.1, np.float32))
    dataset = record([episode], reward_dtype=np.float32)
    assert dataset.column("rewards").dtype == np.float32
    expected = episode.rewards.sum(dtype=np.float64)
    np.testing.assert_allclose(dataset.column("episodes/returns"), [expected])


@pytest.mark.parametrize("seed", range(6))
def test_steps_in_any_pieces_give_the_bytes_of_whole_episodes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    expected = record(EPISODES, version="1.0.0").manifest
    writer = start(version="2.0.0")
    for episode in EPISODES:
        inside = np.arange(1, len(episode))
        add_in_pieces(writer, episode, inside[rng.random(len(inside)) < 0.3].tolist())
    writer.finish()
    found = opened(writer).manifest
    assert found.columns == expected.columns
    assert found.objects == expected.objects


def test_steps_and_episodes_are_counted() -> None:
    with start() as writer:
        assert (writer.total_episodes, writer.total_steps) == (0, 0)
        writer.add_episode(EPISODES[0])
        add_in_pieces(writer, EPISODES[1], [1])
        counted = writer.total_episodes, writer.total_steps
        assert counted == (2, len(EPISODES[0]) + len(EPISODES[1]))
        writer.add_steps(**next(pieces_of(EPISODES[2], [])))
        assert (writer.total_episodes, writer.total_steps) == counted
        writer.end_episode(metadata=EPISODES[2].metadata)
    assert opened(writer).total_episodes == writer.total_episodes == 3


def test_an_episode_without_an_end_is_a_recording_that_just_stopped() -> None:
    dataset = record([EPISODES[2]])
    assert not dataset[0].terminations.any()
    assert not dataset[0].truncations.any()


def test_arrays_may_change_after_they_were_given() -> None:
    expected = digest_of(12)
    with start() as writer:
        for number in range(len(EPISODES)):
            episode = make_episode(number)
            writer.add_episode(episode)
            for values in (episode.observations, episode.actions, episode.rewards):
                values[...] = 0
    assert opened(writer).digest == expected


def test_arrays_may_lie_in_memory_in_any_way() -> None:
    expected = digest_of(12)

    def scattered(values: Any) -> Any:
        if not isinstance(values, np.ndarray):
            return values
        wide = np.asfortranarray(np.repeat(values, 2, 0))[::2]
        assert len(values) < 2 or not wide.flags.c_contiguous
        wide.flags.writeable = False
        return wide

    fields = ("observations", "actions", "rewards", "terminations", "truncations")
    changed = [
        dataclasses.replace(
            episode,
            infos={name: scattered(values) for name, values in episode.infos.items()},
            **{field: scattered(getattr(episode, field)) for field in fields},
        )
        for episode in EPISODES
    ]
    assert record(changed).digest == expected


def test_an_episode_may_be_longer_than_many_shards() -> None:
    long = make_episode(0, 5000)
    writer = start()
    held = []
    for piece in pieces_of(long, range(10, 5000, 10)):
        writer.add_steps(**piece)
        columns = writer._writer.container.columns.values()
        held.append(sum(column.pending.nbytes for column in columns))
        assert all(len(column._running) <= zarr_writer.THREADS for column in columns)
    writer.end_episode(seed=long.seed, metadata=long.metadata)
    writer.finish()
    dataset = opened(writer)
    assert max(held) <= 512 * len(dataset.columns)
    assert len(list((dataset.folder / "observations").glob("c.*"))) > 100
    assert_same_episode(dataset[0], long)


LONG = """
import resource, sys
import numpy as np
from gymnasium import spaces
import orlog

frames = spaces.Box(0, 255, (64, 64, 3), np.uint8)
writer = orlog.DatasetWriter("lab/long-v1", observation_space=frames, action_space=spaces.Box(-1, 1, (6,)))
noise = np.random.default_rng(0).integers(0, 4, (101, 64, 64, 3), np.uint8)

def add(times, first):
    for number in range(times):
        writer.add_steps(
            observations=noise[: 101 if first and number == 0 else 100],
            actions=np.zeros((100, 6), np.float32),
            rewards=np.zeros(100),
            terminations=np.zeros(100, bool),
            truncations=np.zeros(100, bool),
        )

add(100, True)  # 120 MB, after which all buffers are in use
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
add(400, False)
writer.end_episode()
writer.finish()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_an_episode() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LONG], check=True, capture_output=True, text=True, timeout=200
    )
    assert int(done.stdout) < 100  # MB; what was added takes 490
    dataset = orlog.load_dataset("lab/long-v1")
    assert dataset.episode_lengths.tolist() == [50_000]
    assert orlog.verify_store(dataset.folder)[1] == []


def test_numbers_that_are_not_finite_are_kept_and_counted() -> None:
    def spoiled(number: int) -> Episode:
        episode = make_episode(number, 40)
        assert isinstance(episode.observations, np.ndarray)
        episode.observations[3, 1] = np.nan
        episode.observations[-1] = np.inf
        episode.rewards[0] = -np.inf
        torque = episode.infos["torque"]
        assert isinstance(torque, np.ndarray)
        torque[1, 0] = np.nan
        return dataclasses.replace(episode, metadata={**episode.metadata, "weight": np.nan})

    expected = {
        "observations": 4,
        "rewards": 1,
        "infos/torque": 1,
        "episodes/weight": 1,
        "episodes/returns": 1,
    }
    dataset = record([spoiled(0), EPISODES[1]])
    assert dataset.manifest.non_finite == expected
    assert_same_episode(dataset[0], spoiled(0))

    writer = DatasetWriter.append(dataset)
    writer.add_episode(spoiled(2))
    writer.checkpoint()
    writer.close()
    with DatasetWriter.append(dataset, resume=True) as writer:
        writer.add_episode(EPISODES[3])
    twice = {name: 2 * count for name, count in expected.items()}
    assert opened(writer).manifest.non_finite == twice


def test_a_dataset_is_recorded_in_a_real_environment() -> None:
    env = gymnasium.make("CartPole-v1", max_episode_steps=40, sutton_barto_reward=True)
    policy = np.random.default_rng(0)

    def record_episode(writer: DatasetWriter, seed: int) -> None:
        observation, _ = env.reset(seed=seed)
        rows: dict[str, list[Any]] = {name: [] for name in ("o", "a", "r", "t", "u")}
        rows["o"].append(observation)
        while not rows["a"] or not (rows["t"][-1] or rows["u"][-1]):
            action = int(policy.integers(2))
            observation, reward, terminated, truncated, _ = env.step(action)
            for key, value in zip(
                "oartu", (observation, action, reward, terminated, truncated), strict=True
            ):
                rows[key].append(value)
        writer.add_episode(
            Episode(
                observations=rows["o"],
                actions=rows["a"],
                rewards=np.array(rows["r"], np.float64),
                terminations=np.array(rows["t"]),
                truncations=np.array(rows["u"]),
                seed=seed,
            )
        )

    with DatasetWriter("lab/cartpole-v1", environment=env) as writer:
        for seed in range(5):
            record_episode(writer, seed)
        writer.checkpoint()
    dataset = opened(writer)
    assert dataset.observation_space == env.observation_space
    assert dataset.action_space == env.action_space
    record_ = dataset.environment
    assert record_ is not None
    assert (record_.id, record_.kwargs) == ("CartPole-v1", {"sutton_barto_reward": True})
    assert record_.max_episode_steps == 40
    assert record_.versions["gymnasium"] == gymnasium.__version__
    again = dataset.recover_environment()
    for episode in dataset:
        assert isinstance(episode.observations, np.ndarray)
        observation, _ = again.reset(seed=episode.seed)
        np.testing.assert_array_equal(observation, episode.observations[0])
        for action, expected in zip(episode.actions, episode.observations[1:], strict=True):
            np.testing.assert_array_equal(again.step(action)[0], expected)
    again.close()

    writer = DatasetWriter.append(dataset)
    record_episode(writer, 5)
    writer.checkpoint()
    writer.close()
    with DatasetWriter.append(dataset, resume=True) as writer:
        record_episode(writer, 6)
    assert opened(writer).environment == dataset.environment
    env.close()


def test_an_environment_that_cannot_be_made_again_is_refused() -> None:
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    with pytest.raises(SchemaError, match=r"gymnasium\.make"):
        DatasetWriter(NAME, environment=env.unwrapped.__class__())
    env.close()
    with pytest.raises(SchemaError, match="give observation_space and action_space"):
        DatasetWriter(NAME, observation_space=OBSERVATIONS)


def test_a_column_may_be_stored_otherwise() -> None:
    other = orlog.choose_encoding(
        "observations", np.dtype(np.float32), (3,), chunk_rows=7, compression="none"
    )
    plain = record(EPISODES).manifest
    dataset = record(EPISODES, version="1.0.1", encodings={"observations": other})
    assert dataset.manifest.columns == plain.columns
    assert dataset.manifest.objects != plain.objects
    for found, expected in zip(dataset, EPISODES, strict=True):
        assert_same_episode(found, expected)


# --- what does not fit is refused, and nothing of it is written


def changed(**fields: Any) -> Callable[[Episode], Episode]:
    """Return a change of fields; a function is called with the value that was there."""

    def change(episode: Episode) -> Episode:
        new = {
            name: value(getattr(episode, name)) if callable(value) else value
            for name, value in fields.items()
        }
        return dataclasses.replace(episode, **new)

    return change


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {key: value for key, value in values.items() if key != name}


def with_(**more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {
        **values,
        **{
            key: value(values.get(key)) if callable(value) else value for key, value in more.items()
        },
    }


def flag_at(step: int) -> np.ndarray:
    flags = np.zeros(8, np.bool_)
    flags[step] = True
    return flags


NO_FLAGS = np.zeros(8)
UNFIT: dict[str, tuple[Callable[[Episode], Episode], str]] = {
    "too few actions": (
        changed(actions=lambda a: a[:-1]),
        r"column actions: expected int64 \(8,\), found int64 \(7,\)",
    ),
    "too many actions": (
        changed(actions=lambda a: np.append(a, 0)),
        r"column actions: expected int64 \(8,\), found int64 \(9,\)",
    ),
    "as many observations as actions": (
        changed(observations=lambda o: o[:-1]),
        r"column observations: expected float32 \(9, 3\), found float32 \(8, 3\).*one row more",
    ),
    "too few rewards": (changed(rewards=lambda r: r[:-1]), r"column .*expected .*, found "),
    "short terminations": (
        changed(terminations=flag_at(7)[:-1]),
        r"column terminations: expected bool \(8,\), found bool \(7,\)",
    ),
    "short truncations": (
        changed(truncations=flag_at(7)[:-1]),
        r"column truncations: expected bool \(8,\), found bool \(7,\)",
    ),
    "observations of double precision": (
        changed(observations=lambda o: o.astype(np.float64)),
        r"column observations: expected float32 \(9, 3\), found float64 \(9, 3\)",
    ),
    "wide observations": (
        changed(observations=lambda o: np.repeat(o, 2, 1)),
        r"column observations: expected float32 \(9, 3\), found float32 \(9, 6\)",
    ),
    "a dict of observations": (
        changed(observations=lambda o: {"position": o}),
        r"column observations: expected float32 \(9, 3\), found a dict of 1",
    ),
    "actions of 32 bits": (
        changed(actions=lambda a: a.astype(np.int32)),
        r"column actions: expected int64 \(8,\), found int32 \(8,\)",
    ),
    "an action that there is not": (
        changed(actions=np.array([0, 1, 2, 3, 4, 0, 0, 0])),
        r"column actions, row 4: expected 0 to 3, found 4",
    ),
    "a column of rewards": (
        changed(rewards=lambda r: r[:, None]),
        r"column rewards: expected .*, found float64 \(8, 1\)",
    ),
    "rewards as a list of texts": (
        changed(rewards=lambda r: list(map(str, r))),
        r"column rewards: expected .*, found a list of 8 str",
    ),
    "terminations as numbers": (
        changed(terminations=NO_FLAGS),
        r"column terminations: expected bool \(8,\), found float64 \(8,\).*astype\(bool\)",
    ),
    "truncations with NaN": (
        changed(truncations=np.where(flag_at(7), np.nan, 0.0)),
        r"column truncations: expected bool \(8,\), found float64 \(8,\), 1 of them not finite",
    ),
    "a termination inside": (
        changed(terminations=flag_at(3)),
        r"column terminations: true at step 3 of 8",
    ),
    "a truncation inside": (
        changed(truncations=flag_at(0)),
        r"column truncations: true at step 0 of 8",
    ),
    "no steps": (
        changed(
            **{
                name: lambda values: values[:0]
                for name in ("actions", "rewards", "terminations", "truncations")
            },
            observations=lambda o: o[:1],
        ),
        "has no steps",
    ),
    "short infos": (
        changed(infos=with_(torque=lambda t: t[:-1])),
        r"column infos/torque: expected float32 \(8, 2\), found float32 \(7, 2\)",
    ),
    "a text too few": (
        changed(infos=with_(note=lambda texts: texts[:-1])),
        r"column infos/note: expected a list of 8 texts, found a list of 7 str",
    ),
    "a text that is none": (
        changed(infos=with_(note=lambda texts: [*texts[:-1], b"x"])),
        r"column infos/note: expected text, found b'x' \(bytes\)|infos/note: expected an array",
    ),
    "a text that UTF-8 does not know": (
        changed(infos=with_(note=lambda texts: [*texts[:-1], "\ud800"])),
        r"column infos/note: not valid UTF-8",
    ),
    "a row of another shape": (
        changed(infos=with_(hits=lambda hits: [*hits[:-1], np.zeros((1, 3), np.int64)])),
        r"column infos/hits: expected int64 \(1, 2\), found int64 \(1, 3\)",
    ),
    "a row of another type": (
        changed(infos=with_(hits=lambda hits: [*hits[:-1], np.zeros((1, 2))])),
        r"column infos/hits: expected int64 \(1, 2\), found float64 \(1, 2\)",
    ),
    "a negative seed": (changed(seed=-1), r"a seed lies in \[0, 2\^63\), found -1"),
    "a seed of 64 bits": (changed(seed=2**63), rf"a seed lies in \[0, 2\^63\), found {2**63}"),
    "half a seed": (changed(seed=1.5), r"seed.*1\.5"),
    "a seed in words": (changed(seed="seven"), r"seed.*seven"),
    "rows of metadata that are not alike": (
        changed(metadata=with_(weight=[[1.0], [1.0, 2.0]])),
        "column episodes/weight: expected",
    ),
    "no rewards at all": (changed(rewards=None), "column rewards: expected"),
    "one reward": (changed(rewards=np.float64(1)), "column rewards: expected"),
}
# What the first episode has, the others must have.
UNLIKE_THE_FIRST: dict[str, tuple[Callable[[Episode], Episode], str]] = {
    "infos that are missing": (
        changed(infos=without("note")),
        r"expected the columns \['infos/hits', 'infos/note', .*found \['infos/hits', 'infos/torque'\]",
    ),
    "infos that are new": (
        changed(infos=with_(force=np.zeros(8))),
        r"expected the columns \['infos/hits'.*found \['infos/force', 'infos/hits'",
    ),
    "metadata that are missing": (
        changed(metadata={}),
        r"expected the columns \['episodes/task', 'episodes/weight'\].*found \[\]",
    ),
    "metadata that are new": (
        changed(metadata=with_(height=1.0)),
        r"expected the columns \['episodes/task', 'episodes/weight'\].*'episodes/height'",
    ),
    "infos of another type": (
        changed(infos=with_(torque=lambda t: t.astype(np.float64))),
        r"column infos/torque: expected float32 \(8, 2\), found float64 \(8, 2\)",
    ),
    "numbers in place of text": (
        changed(infos=with_(note=np.zeros(8))),
        r"column infos/note: expected a list of 8 texts, found float64 \(8,\)",
    ),
    "a number in place of text": (
        changed(metadata=with_(task=3.0)),
        r"column episodes/task: expected a list of 1 texts, found float64 \(1,\)",
    ),
    "a text in place of a number": (
        changed(metadata=with_(weight="heavy")),
        r"column episodes/weight: expected float64 \(1,\), found a list of 1 str",
    ),
    "a whole number in place of another": (
        changed(metadata=with_(weight=3)),
        r"column episodes/weight: expected float64 \(1,\), found int64 \(1,\)",
    ),
    "nothing in place of a number": (
        changed(metadata=with_(weight=None)),
        r"column episodes/weight: expected float64 \(1,\), found",
    ),
}


def not_refused(
    writer: DatasetWriter, where: str, wrong: Mapping[str, tuple[Callable[[Episode], Episode], str]]
) -> dict[str, str]:
    """Add wrong episodes; return those that were taken, or refused in other words or at length."""
    found = {}
    for name, (change, message) in wrong.items():
        try:
            writer.add_episode(change(make_episode(99, 8)))
        except SchemaError as error:
            if re.search(f"{where}.*{message}", str(error)) is None or len(str(error)) >= 1000:
                found[name] = str(error)
        else:
            found[name] = "taken"
    return found


def check_refused(
    before: int, wrong: Mapping[str, tuple[Callable[[Episode], Episode], str]]
) -> None:
    """Try wrong episodes after some good ones, and compare with a run that never saw them."""
    with start() as writer:
        for episode in EPISODES[:before]:
            writer.add_episode(episode)
        assert not_refused(writer, rf"{NAME}@1\.0\.0, episode {before}\b", wrong) == {}
        assert writer.total_episodes == before
        for episode in EPISODES[before:3]:
            writer.add_episode(episode)
    assert opened(writer).digest == digest_of(3)


@pytest.mark.parametrize("before", [0, 1])
def test_what_does_not_fit_is_refused_whole(before: int) -> None:
    check_refused(before, UNFIT)


def test_what_is_unlike_the_first_episode_is_refused_whole() -> None:
    check_refused(1, UNLIKE_THE_FIRST)


@pytest.mark.parametrize("kind", ["infos", "metadata"])
def test_what_cannot_name_a_column_is_refused(kind: str) -> None:
    values = {"infos": np.zeros(8), "metadata": 1.0}[kind]
    names = ["", "/", "a/", "/a", "../a", "a/..", ".a", "a b", "a@b", "a\\b", "ä", "a\n", "x" * 200]
    check_refused(
        0, {name: (changed(**{kind: {name: values}}), "cannot name a column") for name in names}
    )


def test_names_that_every_dataset_has_are_not_taken() -> None:
    names = ("lengths", "returns", "seeds")
    check_refused(
        0, {name: (changed(metadata={name: 1.0}), "cannot name a column") for name in names}
    )


def test_names_that_would_clash_with_each_other_or_with_files_are_refused() -> None:
    clashing: list[tuple[Any, ...]] = [("a", "a/b"), ("a", "a/c"), ("a/c", "a"), ("zarr.json",)]
    clashing += [("a/zarr.json",), (5,)]
    check_refused(
        0,
        {
            str(names): (
                changed(infos=dict.fromkeys(names, np.zeros(8))),
                "cannot name a column|name",
            )
            for names in clashing
        },
    )


def test_infos_of_no_type_that_can_be_stored_are_refused() -> None:
    values: list[Any] = [
        None,
        [],
        [None] * 8,
        np.float32(3),
        np.array(["a"] * 8),
        np.zeros(8, complex),
        np.zeros(8, "M8[s]"),
        np.zeros(8, np.longdouble),
        np.zeros(8, object),
        tuple(range(8)),
        ["a", 3, *"bcdefg"],
        {"a": np.zeros(8)},
    ]
    message = r"column infos/x: expected an array of numbers"
    check_refused(0, {repr(value): (changed(infos={"x": value}), message) for value in values})


@pytest.mark.parametrize(
    "value",
    [np.zeros((8, 0)), [np.zeros((2, 0))] * 8, [np.zeros(0)] * 8, [""] * 8],
    ids=["rows of nothing", "arrays of nothing", "empty arrays", "empty texts"],
)
def test_infos_may_hold_nothing(value: Any) -> None:
    episode = make_episode(0, 8, infos={"x": value}, metadata={"a": "", "b": np.zeros((0, 2))})
    dataset = record([episode, episode])
    for found in dataset:
        assert_same_episode(found, episode)


def test_observations_may_have_no_numbers() -> None:
    nothing = spaces.Box(0, 1, (0,), np.float32)
    episodes = [
        make_episode(number, 4, observations=np.zeros((5, 0), np.float32)) for number in range(3)
    ]

    def begin(**arguments: Any) -> DatasetWriter:
        return DatasetWriter(NAME, observation_space=nothing, action_space=ACTIONS, **arguments)

    writer = begin()
    writer.add_episode(episodes[0])
    writer.checkpoint()
    writer.close()
    with begin(resume=True) as writer:
        writer.add_episode(episodes[1])
        writer.add_episode(episodes[2])
    for found, expected in zip(opened(writer), episodes, strict=True):
        assert_same_episode(found, expected)


@pytest.mark.parametrize(
    "reward", [np.inf, -np.inf, np.nan, 1e308], ids=["inf", "minus inf", "nan", "overflow"]
)
def test_a_return_that_is_no_number_does_not_stop_the_recording(reward: float) -> None:
    long = make_episode(0, 4, rewards=np.full(4, reward))
    opposite = make_episode(1, 2, rewards=np.array([np.inf, -np.inf]))
    with start() as writer:
        for episode in (long, opposite):
            writer.add_episode(episode)
            add_in_pieces(writer, episode, [1])
    returns = opened(writer).column("episodes/returns")
    np.testing.assert_array_equal(returns[[0, 2]], returns[[1, 3]])
    assert np.isnan(returns[2])


# --- steps


def steps_of(number: int, steps: int = 8) -> dict[str, Any]:
    return next(pieces_of(make_episode(number, steps), []))


def test_steps_that_do_not_fit_are_refused_and_the_episode_goes_on() -> None:
    episode = make_episode(4, 20)
    writer = start(version="1.0.0")
    add_in_pieces(writer, episode, [8])
    writer.finish()
    expected = opened(writer).digest
    shutil.rmtree(datasets_folder())

    first, second = pieces_of(episode, [8])
    writer = start()
    wrong: dict[str, dict[str, Any]] = {
        "expected float32 \\(9, 3\\), found float32 \\(8, 3\\)": {
            **first,
            "observations": first["observations"][:-1],
        },
        "column actions": {**first, "actions": first["actions"][:-1]},
        "true at step 2": {**first, "truncations": flag_at(2)},
        "no steps": {name: values[:0] for name, values in first.items() if name != "infos"},
        "expected bool": {**first, "terminations": NO_FLAGS},
    }
    for message, steps in wrong.items():
        with pytest.raises(SchemaError, match=f"{NAME}@1.0.0, episode 0.*{message}"):
            writer.add_steps(**steps)
    writer.add_steps(**first)
    wrong = {
        "found float32 \\(13, 3\\)": {
            **second,
            "observations": np.concatenate([first["observations"][-1:], second["observations"]]),
        },
        "expected the columns": {**second, "infos": {}},
        "infos/torque": {**second, "infos": {**second["infos"], "torque": np.zeros((12, 2))}},
    }
    for message, steps in wrong.items():
        with pytest.raises(SchemaError, match=f"{NAME}@1.0.0, episode 0.*{message}"):
            writer.add_steps(**steps)
    with pytest.raises(SchemaError, match=r"has steps already; end_episode closes it"):
        writer.add_episode(episode)
    with pytest.raises(SchemaError, match=r"is not ended; call end_episode"):
        writer.finish()
    writer.add_steps(**second)
    with pytest.raises(SchemaError, match=r"step 20 comes after the episode's end"):
        writer.add_steps(**second)
    for seed, metadata in ((-1, {}), (None, {"bad name": 1}), (None, {"x": object()})):
        with pytest.raises(SchemaError, match="episode 0"):
            writer.end_episode(seed=seed, metadata=metadata)
    writer.end_episode(seed=episode.seed, metadata=episode.metadata)
    with pytest.raises(SchemaError, match="episode 1: has no steps"):
        writer.end_episode()
    writer.finish()
    assert opened(writer).digest == expected


def test_no_episode_makes_no_dataset() -> None:
    with pytest.raises(SchemaError, match="at least one episode") as caught, start():
        pass
    # Whoever keeps the error does not keep the lock.
    record(EPISODES[:1])
    assert caught.value is not None


def test_a_closed_writer_takes_nothing_more() -> None:
    with start() as writer:
        writer.add_episode(EPISODES[0])
    writer.close()
    for work in (
        lambda: writer.add_episode(EPISODES[0]),
        lambda: writer.add_steps(**steps_of(1)),
        writer.end_episode,
        writer.checkpoint,
        writer.finish,
    ):
        with pytest.raises(ValueError, match="this writer is closed"):
            work()
    assert len(opened(writer)) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"description": "x" * 100_001},
        {"changes": "x" * 100_001},
        {"description": 5},
        {"license": None},
        {"behavior_policy": "\ud800"},
        {"container": "tar"},
        {"version": "1.0"},
        {"version": "../1.0.0"},
        {"reward_dtype": np.int64},
        {"name": "arm"},
        {"name": "../arm-v1"},
        {"observation_space": spaces.Dict({"k" * 230: OBSERVATIONS})},
        {"observation_space": spaces.Dict({"k" * 300: OBSERVATIONS})},
    ],
    ids=lambda arguments: f"{next(iter(arguments.items()))!r:.40}",
)
def test_what_could_not_be_opened_afterwards_is_refused_at_the_start(
    arguments: dict[str, Any],
) -> None:
    given = {"observation_space": OBSERVATIONS, "action_space": ACTIONS, **arguments}
    with pytest.raises(ValueError):  # noqa: PT011 (each has a message of its own)
        DatasetWriter(given.pop("name", NAME), **given)
    assert not any(datasets_folder().rglob("*.recording"))
    record(EPISODES[:1])


@pytest.mark.parametrize("pin", ["1.1.0", "1.0.0", "sha256:0123456789", ""])
def test_a_name_with_a_version_in_it_is_refused(pin: str) -> None:
    with pytest.raises(InvalidNameError, match=rf"'{NAME}@{pin}': .*; give that as version="):
        start(f"{NAME}@{pin}")
    assert not any(datasets_folder().rglob("*"))


# --- versions


def test_a_version_is_never_overwritten() -> None:
    dataset = record(EPISODES[:2])
    before = {path: path.stat() for path in dataset.folder.rglob("*")}
    for options in OPTIONS:
        with pytest.raises(VersionExistsError, match=r"lab/arm-v1@1\.0\.0 is in .*overwritten"):
            start(**options)
    with pytest.raises(VersionExistsError):
        DatasetWriter.append(dataset, version="1.0.0")
    assert {path: path.stat() for path in dataset.folder.rglob("*")} == before
    assert record(EPISODES[:3], version="1.0.1").total_episodes == 3


def test_a_version_that_came_to_be_meanwhile_is_left_alone_and_nothing_is_lost() -> None:
    other = record(EPISODES[:2], version="2.0.0").folder
    writer = start()
    for episode in EPISODES[:3]:
        writer.add_episode(episode)
    writer.checkpoint()
    shutil.copytree(other, writer.folder)
    with pytest.raises(VersionExistsError):
        writer.finish()
    writer.close()
    shutil.rmtree(writer.folder)
    with start(resume=True) as writer:
        assert writer.total_episodes == 3


def test_a_folder_without_a_manifest_is_met_at_the_start_or_does_not_stand_in_the_way() -> None:
    (datasets_folder() / NAME / "1.0.0/actions").mkdir(parents=True)
    try:
        writer = start()
    except OrlogError as error:
        assert "1.0.0" in str(error)  # noqa: PT017 (refused before an hour of recording)
        return
    with writer:
        writer.add_episode(EPISODES[0])
    opened(writer)


def test_one_version_has_one_writer_at_a_time() -> None:
    with start() as writer:
        writer.add_episode(EPISODES[0])
        writer.checkpoint()
        for options in OPTIONS:
            with pytest.raises(StorageError, match=r"1\.0\.0: another process is writing"):
                start(**options)
            code, told = in_child(functools.partial(start, **options))
            assert (code, told.partition(":")[0]) == (1, "StorageError"), told
        record(EPISODES[:1], version="1.0.1")  # another version is free
        writer.add_episode(EPISODES[1])
    assert len(opened(writer)) == 2


def test_a_refused_writer_does_not_keep_the_lock() -> None:
    writer = start()
    writer.add_episode(EPISODES[0])
    writer.checkpoint()
    writer.close()
    with pytest.raises(StorageError) as caught:
        start()
    with start(resume=True) as writer:
        pass
    assert len(opened(writer)) == 1
    assert "1 episodes acknowledged" in str(caught.value)


def test_an_interrupted_recording_is_neither_dropped_nor_gone_on_with_unasked() -> None:
    writer = start()
    for episode in EPISODES[:3]:
        writer.add_episode(episode)
    assert writer.checkpoint() == 3
    writer.close()
    with pytest.raises(NotFoundError):
        orlog.load_dataset(NAME)
    message = r"interrupted recording of lab/arm-v1@1\.0\.0 .*3 episodes.*resume=True.*discard=True"
    with pytest.raises(StorageError, match=message):
        start()
    with start(resume=True) as writer:
        assert writer.total_episodes == 3
        assert writer.total_steps == sum(map(len, EPISODES[:3]))
        writer.add_episode(EPISODES[3])
    assert opened(writer).digest == digest_of(4)


def test_an_interrupted_recording_is_dropped_if_asked() -> None:
    writer = start()
    for episode in EPISODES[:3]:
        writer.add_episode(episode)
    writer.checkpoint()
    writer.close()
    with start(discard=True) as writer:
        assert writer.total_episodes == 0
        writer.add_episode(EPISODES[5])
    assert_same_episode(opened(writer)[0], EPISODES[5])
    assert leftovers() == set()


def test_what_was_never_acknowledged_leaves_nothing() -> None:
    writer = start()
    writer.add_episode(EPISODES[0])
    writer.close()
    assert leftovers() == set()
    record(EPISODES[:1], resume=True)


def test_another_recording_is_not_gone_on_with() -> None:
    dataset = record(EPISODES[:1])
    writer = start(version="1.1.0")
    writer.add_episode(EPISODES[0])
    writer.checkpoint()
    writer.close()
    other: list[Callable[[], DatasetWriter]] = [
        lambda: DatasetWriter(
            NAME,
            observation_space=OBSERVATIONS,
            action_space=spaces.Discrete(5),
            version="1.1.0",
            resume=True,
        ),
        lambda: start(version="1.1.0", reward_dtype=np.float32, resume=True),
        lambda: start(version="1.1.0", container="hdf5", resume=True),
        lambda: DatasetWriter.append(dataset, resume=True),
    ]
    for begin in other:
        with pytest.raises(SchemaError, match=r"interrupted recording of lab/arm-v1@1\.1\.0"):
            begin()
    chunks = {"rewards": orlog.choose_encoding("rewards", np.dtype("f8"), (), chunk_rows=3)}
    with pytest.raises(SchemaError, match="chunks of 16 rows, not 3; give the same encodings"):
        start(version="1.1.0", encodings=chunks, resume=True)
    with start(version="1.1.0", resume=True) as writer:
        assert writer.total_episodes == 1


@pytest.mark.parametrize("damage", ["lost", "cut", "altered"])
@pytest.mark.parametrize("file", ["journal.json", "pending-1", "part/observations/c.0.0"])
def test_a_damaged_recording_is_not_gone_on_with(file: str, damage: str) -> None:
    writer = start()
    for episode in EPISODES:
        writer.add_episode(episode)
    writer.checkpoint()
    writer.close()
    path = writer.folder.with_name(".1.0.0.recording") / file
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.unlink()
    if damage != "lost":
        path.write_bytes(data[:-1] if damage == "cut" else data)
    if (file, damage) == ("journal.json", "lost"):
        with start(resume=True) as writer:  # nothing says that anything was there
            assert writer.total_episodes == 0
            writer.add_episode(EPISODES[0])
        assert len(opened(writer)) == 1
        return
    error = ManifestError if file == "journal.json" else IntegrityError
    with pytest.raises(error):
        start(resume=True)
    with start(discard=True) as writer:
        writer.add_episode(EPISODES[0])
    assert len(opened(writer)) == 1


# --- a kill loses nothing that was acknowledged


def test_a_killed_recording_goes_on_to_the_same_bytes() -> None:
    expected = digest_of(12)

    def work() -> None:
        writer = start(resume=True)
        begun = writer.total_episodes
        tell(begun)
        for episode in EPISODES[begun : begun + 3]:
            writer.add_episode(episode)
        writer.checkpoint()
        writer.add_episode(EPISODES[0])  # never acknowledged, so not there afterwards
        die()

    for begun in (0, 3, 6, 9):
        assert in_child(work) == (-signal.SIGKILL, f"{begun}\n")
    with start(resume=True) as writer:
        assert writer.total_episodes == 12
    assert opened(writer).digest == expected
    assert leftovers() == set()


# Each value of each, with each value of most others; `make test-all` takes all.
CUT_INSIDE = {(0, 1, 50), (0, 100, 0), (1, 8, 0), (1, 100, 50), (5, 1, 0), (5, 8, 50)}


@pytest.mark.parametrize(
    ("whole", "open_steps", "more_steps"),
    [
        pytest.param(*one, marks=[] if one in CUT_INSIDE else pytest.mark.thorough)
        for one in itertools.product((0, 1, 5), (1, 8, 100), (0, 50))
    ],
)
def test_a_checkpoint_inside_an_episode_acknowledges_the_ones_before_it(
    whole: int, open_steps: int, more_steps: int
) -> None:
    expected = digest_of(12)
    long = make_episode(77, 200)

    def work() -> None:
        writer = start()
        for episode in EPISODES[:whole]:
            writer.add_episode(episode)
        first, second, _ = pieces_of(long, [open_steps, open_steps + more_steps + 1])
        writer.add_steps(**first)
        tell(writer.checkpoint())
        if more_steps:
            writer.add_steps(**second)
        die()

    assert in_child(work) == (-signal.SIGKILL, f"{whole}\n")
    with start(resume=True) as writer:
        assert writer.total_episodes == whole
        for episode in EPISODES[whole:]:
            writer.add_episode(episode)
    assert opened(writer).digest == expected


def test_acknowledged_rows_beside_those_of_a_dropped_episode_survive_a_second_kill() -> None:
    """They lie in a shard that the dropped episode filled, and which is to be written anew."""

    def first() -> None:
        writer = start()
        writer.add_episode(EPISODES[0])
        writer.add_steps(**steps_of(77, 200))
        writer.checkpoint()
        die()

    def second() -> None:
        def tear(path: Path) -> None:
            if path.name.startswith("c."):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"torn")
                die()

        before_writes(pytest.MonkeyPatch(), tear)  # in this fork only
        writer = start(resume=True)
        for episode in EPISODES[1:]:
            writer.add_episode(episode)
        writer.checkpoint()

    assert in_child(first)[0] == -signal.SIGKILL
    assert in_child(second)[0] == -signal.SIGKILL
    with start(resume=True) as writer:
        assert writer.total_episodes == 1
        writer.add_episode(EPISODES[1])
    dataset = opened(writer)
    assert_same_episode(dataset[0], EPISODES[0])
    assert_same_episode(dataset[1], EPISODES[1])


def test_recordings_acknowledge_by_themselves() -> None:
    def work() -> None:
        writer = start(checkpoint_seconds=0)
        for episode in EPISODES[:4]:
            writer.add_episode(episode)
        die()

    assert in_child(work)[0] == -signal.SIGKILL
    with start(resume=True) as writer:
        assert writer.total_episodes == 4


def test_a_version_killed_right_after_it_was_put_in_place_is_there() -> None:
    def work() -> None:
        def publish_and_die(folder: Path, destination: Path) -> None:
            put_new(folder, destination)
            die()

        setattr(finishing, "put_new", publish_and_die)  # noqa: B010 (in this fork only)
        record(EPISODES[:3])

    assert in_child(work)[0] == -signal.SIGKILL
    assert len(orlog.load_dataset(NAME)) == 3
    for options in OPTIONS[1:]:
        with pytest.raises(VersionExistsError):
            start(**options)
    assert leftovers() == set()


# --- interruptions and full disks


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_an_error_inside_the_with_block_keeps_whole_episodes(stop: type[BaseException]) -> None:
    with pytest.raises(stop), start() as writer:  # noqa: PT012 (the block is what is tested)
        for episode in EPISODES[:4]:
            writer.add_episode(episode)
        writer.add_steps(**steps_of(77, 100))
        raise stop
    with pytest.raises(NotFoundError):
        orlog.load_dataset(NAME)
    with start(resume=True) as writer:
        assert writer.total_episodes == 4
    for found, expected in zip(opened(writer), EPISODES[:4], strict=True):
        assert_same_episode(found, expected)


def test_an_interruption_inside_an_episode_leaves_whole_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = zarr_writer.ColumnWriter.append
    columns = len(record(EPISODES[:1]).columns)
    calls, stop = 0, 0

    def append(self: zarr_writer.ColumnWriter, rows: np.ndarray) -> None:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt
        real(self, rows)

    monkeypatch.setattr(zarr_writer.ColumnWriter, "append", append)
    for at in range(5 * columns + 1, 6 * columns + 1):
        shutil.rmtree(datasets_folder())
        calls, stop = 0, at
        with pytest.raises(KeyboardInterrupt), start() as writer:  # noqa: PT012
            for episode in EPISODES:
                writer.add_episode(episode)
        with start(resume=True) as writer:
            assert writer.total_episodes == 5
            for episode in EPISODES[5:]:
                writer.add_episode(episode)
        assert opened(writer).digest == digest_of(12)


def before_writes(patch: pytest.MonkeyPatch, call: Callable[[Path], None]) -> None:
    """Let a function be called with the path of every file before it is written."""
    durably, in_thread = storage.write_durably, zarr_writer._Workers.write

    def write_durably(path: Path, data: bytes) -> None:
        call(path)
        durably(path, data)

    def write(self: Any, folder: Path, name: str, pieces: Iterable[bytes]) -> StoredObject:
        call(folder / name)
        return in_thread(self, folder, name, pieces)

    for module in (journal, finishing):
        patch.setattr(module, "write_durably", write_durably)
    patch.setattr(zarr_writer._Workers, "write", write)


def record_through_failures(fails: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch) -> int:
    """Record while some writes find the disk full, going on each time; return the writes."""
    calls = 0

    def count(path: Path) -> None:
        nonlocal calls
        calls += 1
        if fails(calls):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    acknowledged = 0
    with monkeypatch.context() as patch:
        before_writes(patch, count)
        for _ in range(50):
            try:
                with start(resume=True) as writer:
                    assert writer.total_episodes >= acknowledged
                    for episode in EPISODES[writer.total_episodes :]:
                        writer.add_episode(episode)
                        if writer.total_episodes % 3 == 0:
                            acknowledged = writer.checkpoint()
            except StorageError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017
                assert "No space left on device; free some space" in str(error)  # noqa: PT017
            else:
                return calls
    raise AssertionError("it never came to an end")


@pytest.mark.scaled
@pytest.mark.slow
def test_a_full_disk_at_any_write_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digest_of(12)
    total = record_through_failures(lambda _: False, monkeypatch)
    assert orlog.load_dataset(NAME).digest == expected
    rng = np.random.default_rng(0)
    for first in [*rng.choice(total, scaled(12, 5), replace=False).tolist(), total - 1, total]:
        for count in (1, 2, 7):  # room is made after so many writes that failed
            shutil.rmtree(datasets_folder())
            window = range(first, first + count)
            record_through_failures(window.__contains__, monkeypatch)
            assert orlog.load_dataset(NAME).digest == expected, (first, count)
            assert orlog.verify_store(datasets_folder() / NAME / "1.0.0")[1] == []


def test_after_a_full_disk_the_same_writer_goes_on_right_or_not_at_all() -> None:
    expected = digest_of(12)
    calls = 0

    def count(_: Path) -> None:
        nonlocal calls
        calls += 1
        if calls in (20, 21, 22):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full = pytest.MonkeyPatch()
    before_writes(full, count)
    writer = start()
    writer.add_episode(EPISODES[0])
    writer.checkpoint()
    position = 1
    try:
        for _ in range(20):
            try:
                while position < len(EPISODES):
                    writer.add_episode(EPISODES[position])
                    position += 1
                writer.finish()
            except StorageError:
                continue
            break
    except (OrlogError, ValueError):
        pass  # it says that it cannot go on
    finally:
        full.undo()
        writer.close()
    if not writer.folder.exists():
        with start(resume=True) as writer:
            for episode in EPISODES[writer.total_episodes :]:
                writer.add_episode(episode)
    assert opened(writer).digest == expected


def test_a_limit_on_the_size_of_files_is_met_as_a_full_disk() -> None:
    expected = digest_of(12)

    def work() -> None:
        with start() as writer:
            for episode in EPISODES[:4]:
                writer.add_episode(episode)
            tell(writer.checkpoint())
            # Writing beyond this size fails as a full disk does, with an OSError.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
            for episode in EPISODES[4:]:
                writer.add_episode(episode)

    code, told = in_child(work)
    assert (code, told.splitlines()[0]) == (1, "4"), told
    assert told.splitlines()[1].startswith("StorageError: ")
    assert "cannot write: File too large; free some space" in told
    with start(resume=True) as writer:
        assert writer.total_episodes >= 4
        for episode in EPISODES[writer.total_episodes :]:
            writer.add_episode(episode)
    assert opened(writer).digest == expected


SMALL_DISK = """
import os, sys
from pathlib import Path
import numpy as np
from gymnasium import spaces
import orlog
from orlog.datasets.store import encoding

os.environ["ORLOG_HOME"] = sys.argv[1] + "/home"
encoding.CHUNK_BYTES, encoding.SHARD_BYTES = 2**12, 2**14
box = spaces.Box(-1, 1, (16,), np.float32)
full = 0

def start():
    return orlog.DatasetWriter("lab/arm-v1", observation_space=box, action_space=box, resume=True)

def make(number):
    rng = np.random.default_rng(number)
    return orlog.Episode(
        observations=rng.standard_normal((41, 16)).astype(np.float32),
        actions=rng.standard_normal((40, 16)).astype(np.float32),
        rewards=rng.standard_normal(40),
        terminations=np.zeros(40, bool),
        truncations=np.zeros(40, bool),
    )

ballast = [Path(sys.argv[1]) / f"ballast-{number}" for number in range(8)]
for path in ballast if sys.argv[2] == "full" else []:
    path.write_bytes(bytes(150_000))
acknowledged = 0
while True:
    try:
        with start() as writer:
            assert writer.total_episodes >= acknowledged, (writer.total_episodes, acknowledged)
            for number in range(writer.total_episodes, 150):
                writer.add_episode(make(number))
                if number % 10 == 9:
                    acknowledged = writer.checkpoint()
        break
    except orlog.OrlogError as error:
        assert "No space left on device; free some space" in str(error), error
        full += 1
        ballast.pop().unlink()
assert orlog.verify_store(writer.folder)[1] == []
print(orlog.load_dataset("lab/arm-v1").digest, full)
"""


def on_a_disk_of_its_own(script: str, *arguments: str, folder: Path) -> str:
    """Run a script with an empty file system of 1.6 MB on a folder."""
    command = 'mount -t tmpfs -o size=1600k tmpfs "$0" && exec "$@"'
    folder.mkdir()
    done = subprocess.run(
        [
            *("unshare", "-rm", "sh", "-c", command, str(folder)),
            *(sys.executable, "-c", script, str(folder), *arguments),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def can_mount() -> bool:
    try:
        command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=100k tmpfs /mnt"]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small file system")
def test_a_small_disk_fills_up_and_recording_goes_on_once_there_is_room(tmp_path: Path) -> None:
    expected = on_a_disk_of_its_own(SMALL_DISK, "empty", folder=tmp_path / "empty").split()
    found = on_a_disk_of_its_own(SMALL_DISK, "full", folder=tmp_path / "full").split()
    assert found[0] == expected[0]
    assert (int(expected[1]), int(found[1]) > 1) == (0, True)


# --- appending


def append(dataset: orlog.Dataset, episodes: Iterable[Episode], **arguments: Any) -> orlog.Dataset:
    with DatasetWriter.append(dataset, **arguments) as writer:
        for episode in episodes:
            writer.add_episode(episode)
    return opened(writer)


def own_bytes(folder: Path) -> int:
    """Return the size of the files that no other version shares."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum(found.st_size for found in files if found.st_nlink == 1)


@pytest.mark.parametrize("container", ["zarr", "hdf5"])
def test_appending_in_row_gives_all_episodes_and_shares_the_files(container: str) -> None:
    if container == "hdf5":
        pytest.importorskip("h5py")
    versions = [record(EPISODES[:4], container=container)]
    versions.append(append(versions[-1], EPISODES[4:5], changes="one more"))
    versions.append(append(versions[-1], EPISODES[5:9]))
    versions.append(append(versions[-1], EPISODES[9:], version="2.0.0"))
    assert [one.version for one in versions] == ["1.0.0", "1.1.0", "1.2.0", "2.0.0"]
    assert versions[1].manifest.changes == "one more"
    for older, newer in itertools.pairwise(versions):
        (parent,) = newer.lineage
        assert (parent.digest, parent.operation) == (older.digest, "append")
        for item in older.manifest.objects:
            assert (newer.folder / item.path).stat().st_nlink > 1
    for dataset, count in zip(versions, (4, 5, 9, 12), strict=True):
        assert len(dataset) == count
        for found, expected in zip(dataset, EPISODES[:count], strict=True):
            assert_same_episode(found, expected)
        order = np.random.default_rng(0).permutation(count)
        for found, position in zip(dataset.iterate_episodes(order.tolist()), order, strict=True):
            assert_same_episode(found, EPISODES[position])
    whole = record(EPISODES, name="lab/whole-v1")
    for name in whole.columns:
        np.testing.assert_array_equal(versions[-1].column(name), whole.column(name))
        rows = np.random.default_rng(0).permutation(len(whole.column(name)))
        np.testing.assert_array_equal(versions[-1].rows(name, rows), whole.rows(name, rows))


def test_appending_one_percent_stores_little_more_than_one_percent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 2**15)
    monkeypatch.setattr(encoding, "SHARD_BYTES", 2**18)
    frames = spaces.Box(0, 255, (32, 32, 3), np.uint8)
    rng = np.random.default_rng(0)

    def make() -> Episode:
        return Episode(
            observations=rng.integers(0, 255, (21, 32, 32, 3), np.uint8),
            actions=rng.integers(0, 4, 20),
            rewards=rng.standard_normal(20),
            terminations=np.zeros(20, np.bool_),
            truncations=np.zeros(20, np.bool_),
        )

    with DatasetWriter(NAME, observation_space=frames, action_space=ACTIONS) as writer:
        for _ in range(100):
            writer.add_episode(make())
    base = opened(writer)
    assert base.manifest.size_bytes > 6_000_000
    newer = append(base, [make()])
    assert len(newer) == 101
    assert own_bytes(newer.folder) < 0.025 * base.manifest.size_bytes
    shutil.rmtree(base.folder)  # the newer one stands on its own
    assert orlog.verify_store(newer.folder)[1] == []
    assert len(list(orlog.load_dataset(newer.folder))) == 101


def test_a_file_that_another_version_has_is_stored_once() -> None:
    first = record(EPISODES)
    second = record(EPISODES, version="1.0.1", description="said better")
    assert first.digest != second.digest
    assert own_bytes(second.folder) == (second.folder / "manifest.json").stat().st_size


def test_an_interrupted_append_goes_on_to_the_same_bytes() -> None:
    base = record(EPISODES[:4])
    expected = append(base, EPISODES[4:]).digest
    shutil.rmtree(base.folder.with_name("1.1.0"))

    def work() -> None:
        writer = DatasetWriter.append(base)
        for episode in EPISODES[4:8]:
            writer.add_episode(episode)
        tell(writer.checkpoint())
        writer.add_steps(**steps_of(77, 100))
        writer.checkpoint()
        die()

    assert in_child(work) == (-signal.SIGKILL, "4\n")
    with pytest.raises(StorageError, match="interrupted recording"):
        DatasetWriter.append(base)
    with DatasetWriter.append(base, resume=True) as writer:
        assert writer.total_episodes == 4
        for episode in EPISODES[8:]:
            writer.add_episode(episode)
    assert opened(writer).digest == expected
    assert leftovers() == set()


def test_what_is_appended_fits_what_is_there() -> None:
    base = record(EPISODES[:1])
    expected = append(base, EPISODES[1:3], version="1.0.5").manifest
    with DatasetWriter.append(base) as writer:
        where = rf"{NAME}@1\.1\.0, episode \d+\b"
        assert not_refused(writer, where, {**UNFIT, **UNLIKE_THE_FIRST}) == {}
        with pytest.raises(SchemaError, match=rf"{NAME}@1\.1\.0"):
            add_in_pieces(writer, make_episode(98, 8, infos={"other": np.zeros(8)}), [])
        for episode in EPISODES[1:3]:
            writer.add_episode(episode)
    assert opened(writer).manifest.columns == expected.columns


def test_metadata_that_do_not_fit_what_is_appended_to_are_refused() -> None:
    base = record(EPISODES[:1])
    with DatasetWriter.append(base) as writer:
        (piece,) = pieces_of(EPISODES[1], [])
        writer.add_steps(**piece)
        for metadata in ({}, {**EPISODES[1].metadata, "new": 1}, {"task": 1.0, "weight": 1.0}):
            with pytest.raises(SchemaError, match=r"1\.1\.0, episode"):
                writer.end_episode(metadata=metadata)
        writer.end_episode(seed=EPISODES[1].seed, metadata=EPISODES[1].metadata)
    assert_same_episode(opened(writer)[1], EPISODES[1])


def test_a_view_is_not_appended_to() -> None:
    dataset = record(EPISODES)
    with pytest.raises(SchemaError, match="a view cannot be appended to; save_dataset"):
        DatasetWriter.append(dataset[:2])


def test_nothing_appended_is_refused() -> None:
    dataset = record(EPISODES[:1])
    with pytest.raises(SchemaError, match="at least one episode"), DatasetWriter.append(dataset):
        pass
    assert not (dataset.folder.with_name("1.1.0")).exists()
    assert leftovers() == set()


def test_folders_that_cannot_be_linked_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    expected = append(record(EPISODES[:4]), EPISODES[4:]).digest
    shutil.rmtree(datasets_folder())
    monkeypatch.setattr(os, "link", no_links)
    assert append(record(EPISODES[:4]), EPISODES[4:]).digest == expected


def test_messages_tell_where_to_look() -> None:
    with start() as writer:
        writer.add_episode(EPISODES[0])
        with pytest.raises(SchemaError) as caught:
            writer.add_episode(make_episode(1, 8, actions=np.zeros(7, np.int64)))
    assert re.fullmatch(
        r"lab/arm-v1@1\.0\.0, episode 1.*column actions: expected int64 \(8,\), found int64 \(7,\)\.",
        str(caught.value),
    )


# --- what a review found


def test_an_episode_is_discarded_from_memory_and_from_the_disk() -> None:
    expected = digest_of(12)
    with start() as writer:
        writer.add_steps(**steps_of(55))  # the first of all: it brought the columns
        writer.discard_episode()
        for number, episode in enumerate(EPISODES):
            writer.add_episode(episode)
            writer.add_steps(**steps_of(77, 200 if number % 3 == 0 else 2))
            writer.discard_episode()
        with pytest.raises(SchemaError, match="no steps to discard"):
            writer.discard_episode()
        assert writer.total_episodes == 12
    assert opened(writer).digest == expected


def test_a_finish_that_fails_keeps_what_was_never_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(finishing, "put_new", full)
        with pytest.raises(StorageError), start() as writer:  # noqa: PT012
            for episode in EPISODES[:7]:
                writer.add_episode(episode)
    with start(resume=True) as writer:
        assert writer.total_episodes == 7
        for episode in EPISODES[7:]:
            writer.add_episode(episode)
    assert opened(writer).digest == digest_of(12)


def test_other_encodings_are_not_gone_on_with() -> None:
    writer = start()
    writer.add_episode(EPISODES[0])
    writer.checkpoint()
    writer.close()
    given = orlog.choose_encoding("rewards", np.dtype("f8"), (), chunk_rows=16, compression="lz4")
    with pytest.raises(SchemaError, match=r"rewards was recorded with .*; give the same encodings"):
        start(encodings={"rewards": given}, resume=True)
