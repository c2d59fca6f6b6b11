"""Episodes of an arm, recorded whole or in pieces, here or in a child that is killed."""

import dataclasses
import functools
import os
import signal
import tempfile
import warnings

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog import DatasetWriter, Episode
from orlog.datasets.home.folders import datasets_folder

NAME = "lab/arm-v1"
OPTIONS = [{}, {"resume": True}, {"discard": True}]
OBSERVATIONS = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Discrete(4)


def make_episode(number, steps=None, **fields):
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


def start(name=NAME, **arguments):
    return DatasetWriter(name, observation_space=OBSERVATIONS, action_space=ACTIONS, **arguments)


def add(writer, episodes):
    for episode in episodes:
        writer.add_episode(episode)
    return writer


def finished(writer, episodes=()):
    """Add episodes, and return what was recorded, every byte of it checked."""
    with writer:
        add(writer, episodes)
    return opened(writer)


def record(episodes, name=NAME, **arguments):
    return finished(start(name, **arguments), episodes)


def interrupted(episodes, **arguments):
    """Acknowledge episodes and stop."""
    writer = add(start(**arguments), episodes)
    writer.checkpoint()
    writer.close()
    return writer


def resumed(before, episodes=(), **arguments):
    """Go on with a recording that has this many episodes, and finish it with more."""
    writer = start(resume=True, **arguments)
    assert writer.total_episodes == before
    return finished(writer, episodes)


@functools.cache
def digest_of(count):
    """Return the digest of the first episodes, recorded without a disturbance somewhere else."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", folder)
        return record(EPISODES[:count]).digest


def opened(writer):
    """Return what was finished, every byte of it checked."""
    assert orlog.verify_store(writer.folder)[1] == []
    dataset = orlog.load_dataset(writer.folder)
    dataset.folder.relative_to(datasets_folder())
    return dataset


def pieces_of(episode, edges):
    """Yield the arguments of `add_steps` for the steps of an episode between edges."""
    first = 0
    for last in [*edges, len(episode)]:
        yield {
            "observations": episode.observations[first + 1 if first else 0 : last + 1],
            "actions": episode.actions[first:last],
            "rewards": episode.rewards[first:last],
            "terminations": episode.terminations[first:last],
            "truncations": episode.truncations[first:last],
            "infos": {name: values[first:last] for name, values in episode.infos.items()},
        }
        first = last


def add_in_pieces(writer, episode, edges):
    for piece in pieces_of(episode, edges):
        writer.add_steps(**piece)
    writer.end_episode(seed=episode.seed, metadata=episode.metadata)


def assert_same_episode(found, expected):
    found = dataclasses.replace(found, index=expected.index)
    np.testing.assert_equal(dataclasses.asdict(found), dataclasses.asdict(expected))
    for field in ("observations", "actions", "rewards", "terminations", "truncations"):
        assert getattr(found, field).dtype == getattr(expected, field).dtype
    assert type(found.seed) is type(expected.seed)


def leftovers(name=NAME):
    """Return what lies beside the versions of a dataset; lock files may always stay."""
    folder = datasets_folder() / name
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return {name for name in found if name.startswith(".") and not name.endswith(".lock")}


def in_child(work):
    """Do something in a fork of this process; return its status and what it told on the way."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # no thread of ours runs here
        child = os.fork()
    if child == 0:
        os.dup2(write_end, 1)
        signal.alarm(600)  # whatever hangs is not waited for
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


def tell(text):
    os.write(1, f"{text}\n".encode())


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def steps_of(number, steps=8):
    return next(pieces_of(make_episode(number, steps), []))


def append(dataset, episodes, **arguments):
    return finished(DatasetWriter.append(dataset, **arguments), episodes)
