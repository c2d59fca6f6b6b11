"""Records environments with random actions, and checks what comes back.

python -m tests.environment_records RESULTS ID ..    writes what became of each, as JSON
"""

import contextlib
import importlib
import io
import json
import os
import shutil
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

import orlog
from orlog.errors import SchemaError
from tests.episodes import record_episodes

PACKAGES = ("ale_py", "gymnasium_robotics", "minigrid")
STEPS = 3


@contextlib.contextmanager
def quietly():
    """Import and make environments without what their packages print and warn about."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def register_all():
    """Return the ids of all environments that the installed packages register."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    with quietly():
        for package in PACKAGES:
            gymnasium.register_envs(importlib.import_module(package))
    return sorted(gymnasium.registry)


def make(environment_id):
    register_all()
    with quietly():
        return gymnasium.make(environment_id)


def run_randomly(env):
    """Return what an environment gives in a few steps of an episode."""
    with quietly():
        observation, _ = env.reset(seed=0)
        env.action_space.seed(0)
        steps = {"observations": [observation], "actions": []}
        steps |= {"rewards": [], "terminations": [], "truncations": []}
        for _ in range(STEPS):
            action = env.action_space.sample()
            observation, reward, terminated, truncated, _ = env.step(action)
            for name, value in (
                ("observations", observation),
                ("actions", action),
                ("rewards", float(reward)),
                ("terminations", bool(terminated)),
                ("truncations", bool(truncated)),
            ):
                steps[name].append(value)
            if terminated or truncated:
                break
    return steps


def record(env, steps, name):
    record_episodes(
        name,
        [
            orlog.Episode(
                observations=steps["observations"],
                actions=steps["actions"],
                rewards=np.array(steps["rewards"]),
                terminations=np.array(steps["terminations"]),
                truncations=np.array(steps["truncations"]),
                seed=0,
            )
        ],
        environment=env,
    )


def check_round_trip(steps, name):
    """Check that what was recorded is read back equal; return whether it can be sampled."""
    dataset = orlog.load_dataset(name)
    episode = dataset[0]
    for kind, space in (("observations", dataset.observation_space), ("actions", dataset.action_space)):
        columns = getattr(episode, kind)
        for row, expected in enumerate(steps[kind]):
            assert_equal(row_of(space, columns, row), expected)
    assert episode.rewards.tolist() == steps["rewards"]
    assert episode.terminations.tolist() == steps["terminations"]
    try:
        batch = next(iter(orlog.transitions(dataset, batch_size=2, seed=0)))
    except SchemaError:
        return False
    assert len(batch.rewards) == 2
    return True


def check_made_again(env, name):
    """Check that the environment of a dataset is made with what it was made with."""
    with quietly(), orlog.load_dataset(name).recover_environment() as again:
        assert again.spec is not None
        assert env.spec is not None
        assert (again.spec.id, again.spec.kwargs) == (env.spec.id, env.spec.kwargs)
        assert again.observation_space == env.observation_space
        assert again.action_space == env.action_space


def row_of(space, columns, row):
    """Return a row of an episode's columns as the sample that it was."""
    if isinstance(space, spaces.Dict):
        return {key: row_of(part, columns[key], row) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        assert isinstance(columns, tuple)
        return tuple(row_of(part, columns[index], row) for index, part in enumerate(space))
    return columns[row]


def assert_equal(found, expected):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_equal(found[key], value)
    elif isinstance(expected, tuple):
        assert type(found) is tuple
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


def try_environment(environment_id, home):
    """Return (id, `cannot be made`, `refused`, `recorded` or `sampled`, why)."""
    os.environ["ORLOG_HOME"] = str(home)
    try:
        env = make(environment_id)
        steps = run_randomly(env)
    except Exception as error:  # noqa: BLE001 (an environment raises anything)
        return environment_id, "cannot be made", f"{type(error).__name__}: {error!s:.150}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record(env, steps, "lab/any-v1")
            is_sampled = check_round_trip(steps, "lab/any-v1")
            check_made_again(env, "lab/any-v1")
    except Exception as error:  # noqa: BLE001 (reported)
        return environment_id, "refused", f"{type(error).__name__}: {error!s:.300}"
    finally:
        env.close()
        shutil.rmtree(home, ignore_errors=True)
    return environment_id, "sampled" if is_sampled else "recorded", ""


if __name__ == "__main__":
    results = Path(sys.argv[1])
    found = [try_environment(one, results.with_suffix(".home")) for one in sys.argv[2:]]
    results.write_text(json.dumps(found))
