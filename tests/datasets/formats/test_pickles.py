"""Pickles are refused, with lines that fit what they hold: each is run here, and what it writes is imported."""

from __future__ import annotations

import bz2
import collections
import gzip
import lzma
import os
import pickle
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.datasets.formats._shared.pickles import about_pickle, is_pickle
from orlog.datasets.unpickled import rows_of, save_rows
from tests.command_line import orlog as run
from tests.levels import scaled

LENGTHS, TERMINATED = (4, 3, 5), (True, False, True)


def episodes() -> list[dict[str, Any]]:
    """Return episodes, the second of which was cut off; of all names the shortest."""
    rng = np.random.default_rng(0)
    made = []
    for rows, terminated in zip(LENGTHS, TERMINATED, strict=True):
        seen = rng.normal(size=(rows + 1, 3)).astype("f4")
        rest = {"a": rng.normal(size=(rows, 2)).astype("f4"), "r": rng.normal(size=rows)}
        done = (np.arange(rows) == rows - 1) & terminated
        made.append({"o": seen[:-1], "after": seen[1:], "all": seen, "d": done, **rest})
    return made


def named(names: dict[str, str]) -> list[dict[str, Any]]:
    return [{key: one[short] for key, short in names.items()} for one in episodes()]


D4RL = {"observations": "o", "actions": "a", "rewards": "r", "next_observations": "after"}
D4RL |= {"terminals": "d"}


def arrays() -> dict[str, np.ndarray]:
    return {key: np.concatenate([one[key] for one in named(D4RL)]) for key in D4RL}


def transitions(order: str = "o a r after d") -> list[tuple[Any, ...]]:
    """Return transitions, rewards and flags as numbers of Python."""
    rows = [
        {key: one[key][at].item() if key in "rd" else one[key][at] for key in order.split()}
        for one in episodes()
        for at in range(len(one["a"]))
    ]
    return [tuple(one.values()) for one in rows]


def by_episode(steps: list[Any]) -> list[list[Any]]:
    ends = np.cumsum(LENGTHS)
    return [steps[stop - count : stop] for count, stop in zip(LENGTHS, ends, strict=True)]


def step_dicts() -> list[dict[str, Any]]:
    names = ("observation", "action", "reward", "next_observation", "done")
    return [{**dict(zip(names, one, strict=True)), "info": {}} for one in transitions()]


def lists(names: dict[str, str]) -> dict[str, Any]:
    return {key: [one[short] for one in episodes()] for key, short in names.items()}


def padded() -> dict[str, np.ndarray]:
    """Return arrays [episodes, time, ..]."""
    same = [{key: values[:3] for key, values in one.items()} for one in named(D4RL)]
    return {
        key: np.stack([one[key] for one in same]) for key in ("observations", "actions", "rewards")
    }


SHORT = {"obs": "o", "act": "a", "rew": "r", "done": "d"}
KINDS: dict[str, Callable[[], Any]] = {
    "a dict of arrays for each episode": lambda: named(D4RL),
    "the same by name": lambda: {f"run_{at}": one for at, one in enumerate(named(D4RL))},
    "the same among other things": lambda: {"version": 3, "data": named(D4RL)},
    "with the final observation and one flag": lambda: [
        {"obs": one["all"], "acts": one["a"], "rews": one["r"], "done": bool(one["d"][-1])}
        for one in episodes()
    ],
    "a dict of arrays": lambda: {**arrays(), "extra": arrays()["rewards"], "about": "a robot"},
    "a dict of lists of arrays": lambda: lists({**SHORT, "next_obs": "after"}),
    "a dict of lists": lambda: {key: values.tolist() for key, values in arrays().items()},
    "a list of transitions": transitions,
    "a deque of transitions": lambda: collections.deque(transitions(), maxlen=99),
    "a list of transitions with discrete actions": lambda: [
        (seen, int(action[0] > 0), *rest) for seen, action, *rest in transitions()
    ],
    "transitions with two flags": lambda: [
        (*one, not one[4] and at == 6) for at, one in enumerate(transitions())
    ],
    "transitions with infos": lambda: [(*one, {"x": 1}) for one in transitions()],
    "transitions in the order of TD3": lambda: transitions("o after a r d"),
    "a list of lists of transitions": lambda: by_episode(transitions()),
    "a dict for each step": step_dicts,
    "a dict for each step that numbers its episode": lambda: [
        {"traj": f"run {number}", "obs": step[0], "act": step[1], "rew": step[2], "done": step[4]}
        for number, steps in enumerate(by_episode(transitions()))
        for step in steps
    ],
    "a list of lists of dicts": lambda: by_episode(step_dicts()),
    "a tuple of arrays": lambda: tuple(arrays().values()),
}
WRITERS: dict[str, Callable[[Any, Path], object]] = {
    "a.pkl": lambda data, path: path.write_bytes(pickle.dumps(data, protocol=2)),
    "b.pickle": lambda data, path: path.write_bytes(pickle.dumps(data, protocol=5)),
    "no_ending": lambda data, path: path.write_bytes(pickle.dumps(data)),
    "c.pkl.gz": lambda data, path: path.write_bytes(gzip.compress(pickle.dumps(data))),
    "d.pkl.bz2": lambda data, path: path.write_bytes(bz2.compress(pickle.dumps(data))),
    "e.pkl.xz": lambda data, path: path.write_bytes(lzma.compress(pickle.dumps(data))),
    "f.joblib": lambda data, path: pytest.importorskip("joblib").dump(data, path),
    "g.pt": lambda data, path: torch.save(as_tensors(data), path),
    "h.pth": lambda data, path: torch.save(
        as_tensors(data), path, _use_new_zipfile_serialization=False
    ),
}


def as_tensors(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        return torch.as_tensor(data)
    if isinstance(data, dict):
        return {key: as_tensors(one) for key, one in data.items()}
    return type(data)(map(as_tensors, data)) if isinstance(data, (list, tuple)) else data


def lines_of(message: str) -> str:
    return "\n".join(line[4:] for line in message.splitlines() if line.startswith("    "))


def check(rows: dict[str, np.ndarray] | None) -> None:
    """Compare rows with the episodes."""
    assert rows is not None
    stops = np.flatnonzero(rows["terminals"] | rows["timeouts"]) + 1
    assert stops.tolist() == np.cumsum(LENGTHS).tolist()
    assert rows["terminals"][stops - 1].tolist() == list(TERMINATED)
    expected = arrays()
    np.testing.assert_array_equal(rows["observations"], expected["observations"])
    np.testing.assert_allclose(rows["rewards"].reshape(-1), expected["rewards"])
    if rows["actions"].dtype.kind == "f":
        np.testing.assert_array_equal(rows["actions"], expected["actions"])
    if "next_observations" in rows:
        np.testing.assert_array_equal(rows["next_observations"], expected["next_observations"])


@pytest.mark.parametrize("kind", KINDS)
def test_what_pickles_hold_becomes_rows(kind: str) -> None:
    check(rows_of(KINDS[kind]()))


def test_arrays_by_episode_and_time_become_episodes() -> None:
    rows = rows_of(padded())
    assert rows is not None
    assert rows["timeouts"].nonzero()[0].tolist() == [2, 5, 8]
    np.testing.assert_array_equal(rows["actions"], np.concatenate(padded()["actions"]))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("a dict of arrays for each episode", one) for one in WRITERS),
        ("a list of transitions", "f.joblib"),
        ("a list of transitions", "g.pt"),
    ],
)
def test_the_lines_of_the_message_convert_what_the_pickle_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    WRITERS[name](KINDS[kind](), Path(name))
    with pytest.raises(ValueError, match="runs the program in it") as refused:
        orlog.import_dataset(name, "lab/x-v1")
    message = str(refused.value)
    assert ("weights_only=True" in message) == (name[0] in "gh")
    assert "an object of" not in message
    assert message.endswith("Then: orlog import data.npz NAME")
    exec(lines_of(message), {})
    orlog.import_dataset("data.npz", "lab/x-v1")
    with np.load("data.npz") as made:
        check(dict(made))


def test_arrays_that_say_ends_by_themselves_are_imported_by_the_next_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = {key: values for key, values in arrays().items() if key in ("actions", "rewards")}
    rows |= {"obs": arrays()["observations"], "episode_ends": np.cumsum(LENGTHS)}
    Path("a.pkl").write_bytes(pickle.dumps(rows))
    exec(lines_of(about_pickle("lab/x", Path("a.pkl"))), {})
    shown = run("import", "data.npz", "lab/x-v1").stderr
    line = shown[shown.index("orlog import") :].splitlines()[0].replace("NAME", "lab/x-v1")
    assert run(*shlex.split(line)[1:]).returncode == 0
    assert orlog.load_dataset("lab/x-v1").episode_lengths.tolist() == [3, 2, 4]


def test_objects_of_the_users_own_are_read_in_a_program_of_the_users(tmp_path: Path) -> None:
    program = """
import collections, pickle, sys
from tests.datasets.formats.test_pickles import episodes, transitions
Transition = collections.namedtuple("Transition", "s a r after d")
class Episode: pass
made = []
for one in episodes():
    made.append(Episode())
    vars(made[-1]).update(observations=one["o"], actions=one["a"], rewards=one["r"], dones=one["d"])
pickle.dump([Transition(*one) for one in transitions()], open("tuples.pkl", "wb"))
pickle.dump(made, open("objects.pkl", "wb"))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    for name in ("tuples.pkl", "objects.pkl"):
        lines = lines_of(about_pickle("lab/x", tmp_path / name))
        subprocess.run([sys.executable, "-c", lines], cwd=tmp_path, env=environment, check=True)
        with np.load(tmp_path / "data.npz") as made:
            np.testing.assert_array_equal(made["actions"], arrays()["actions"])
            np.testing.assert_array_equal(made["terminals"], arrays()["terminals"])
            assert made["timeouts"].nonzero()[0].tolist() == [6]


def test_a_pickled_table_becomes_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    columns = {
        "episode": [0, 0, 1, 1],
        "obs_0": [1.0, 2, 3, 4],
        "action": [0.1] * 4,
        "reward": [1.0] * 4,
    }
    pd.DataFrame(columns).to_pickle("a.pkl")
    message = about_pickle("lab/x", Path("a.pkl"))
    exec(lines_of(message), {})
    assert message.endswith("Then: orlog import data.parquet NAME")
    orlog.import_dataset("data.parquet", "lab/x-v1")
    assert orlog.load_dataset("lab/x-v1").total_episodes == 2


class Runs:
    """What makes a folder where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("made",)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"0.weight": torch.ones(3, 2)}, "a dict of 1: 0.weight (tensor (3, 2))"),
        ([Runs()], "the first an object of posix.mkdir"),
        ([{"obs": [1], "action": Runs()}], "an object of posix.mkdir"),
    ],
)
def test_what_fits_no_kind_is_told_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Any, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(data, "a.pt")
    Path("b.pkl").write_bytes(
        pickle.dumps(data, protocol=0) if "0.weight" not in data else b"\x80\x04."
    )
    assert text in about_pickle("lab/x", Path("a.pt"))
    with pytest.raises(ValueError, match=r"np\.savez\('data.npz', observations=\.\.,"):
        save_rows(data)
    about_pickle("lab/x", Path("b.pkl"))
    assert not Path("made").exists()


def test_lists_that_hold_themselves_are_not_followed(tmp_path: Path) -> None:
    inside: list[Any] = []
    inside += [inside] * 1000
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(inside))
    assert "a list of 1,000" in about_pickle("lab/x", tmp_path / "a.pkl")


@settings(max_examples=scaled(300))
@given(st.binary(max_size=60), st.integers(0, 500), st.sampled_from([0, 2, 4]))
def test_damaged_pickles_are_told_too(
    tmp_path_factory: Any, noise: bytes, at: int, protocol: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "damaged.pkl"
    sound = pickle.dumps(named(D4RL), protocol=protocol)
    file.write_bytes(sound[:at] + noise + sound[at + len(noise) :])
    assert is_pickle(file)
    message = about_pickle("lab/x", file)
    assert "runs the program in it" in message or "is cut off" in message
    file.write_bytes(sound[: len(sound) // 2])
    assert "is cut off; get the whole file" in about_pickle("lab/x", file)
    file.write_bytes(b"PK\x03\x04" + noise)
    assert "runs the program in it" in about_pickle("lab/x", file)
    file.write_bytes(b"")
    assert "is empty" in about_pickle("lab/x", file)
