"""Files that are not read: the message says what they are, and the lines that it says to run work."""

import bz2
import collections
import gzip
import json
import lzma
import pickle
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import scipy.io
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.datasets.formats.inventory import about_pickle, is_pickle
from orlog.datasets.unpickled import rows_of, save_rows
from tests.command_line import orlog as run
from tests.datasets.formats.reading import Runs
from tests.levels import scaled
from tests.tool_environments import run_tool, tool_python

LENGTHS, TERMINATED = (4, 3, 5), (True, False, True)


def episodes():
    """Return episodes, the second of which was cut off; of all names the shortest."""
    rng = np.random.default_rng(0)
    made = []
    for rows, terminated in zip(LENGTHS, TERMINATED, strict=True):
        seen = rng.normal(size=(rows + 1, 3)).astype("f4")
        rest = {"a": rng.normal(size=(rows, 2)).astype("f4"), "r": rng.normal(size=rows)}
        done = (np.arange(rows) == rows - 1) & terminated
        made.append({"o": seen[:-1], "after": seen[1:], "all": seen, "d": done, **rest})
    return made


def named(names):
    return [{key: one[short] for key, short in names.items()} for one in episodes()]


D4RL = {"observations": "o", "actions": "a", "rewards": "r", "next_observations": "after"}
D4RL |= {"terminals": "d"}


def arrays():
    return {key: np.concatenate([one[key] for one in named(D4RL)]) for key in D4RL}


def transitions(order="o a r after d"):
    """Return transitions, rewards and flags as numbers of Python."""
    rows = [
        {key: one[key][at].item() if key in "rd" else one[key][at] for key in order.split()}
        for one in episodes()
        for at in range(len(one["a"]))
    ]
    return [tuple(one.values()) for one in rows]


def by_episode(steps):
    ends = np.cumsum(LENGTHS)
    return [steps[stop - count : stop] for count, stop in zip(LENGTHS, ends, strict=True)]


def step_dicts():
    names = ("observation", "action", "reward", "next_observation", "done")
    return [{**dict(zip(names, one, strict=True)), "info": {}} for one in transitions()]


def lists(names):
    return {key: [one[short] for one in episodes()] for key, short in names.items()}


def padded():
    """Return arrays [episodes, time, ..]."""
    same = [{key: values[:3] for key, values in one.items()} for one in named(D4RL)]
    return {key: np.stack([one[key] for one in same]) for key in ("observations", "actions", "rewards")}


SHORT = {"obs": "o", "act": "a", "rew": "r", "done": "d"}
KINDS = {
    "a dict of arrays for each episode": lambda: named(D4RL),
    "the same by name": lambda: {f"run_{at}": one for at, one in enumerate(named(D4RL))},
    "the same among other things": lambda: {"version": 3, "data": named(D4RL)},
    "with the final observation and one flag": lambda: [
        {"obs": one["all"], "acts": one["a"], "rews": one["r"], "done": bool(one["d"][-1])} for one in episodes()
    ],
    "a dict of arrays": lambda: {**arrays(), "extra": arrays()["rewards"], "about": "a robot"},
    "a dict of lists of arrays": lambda: lists({**SHORT, "next_obs": "after"}),
    "a dict of lists": lambda: {key: values.tolist() for key, values in arrays().items()},
    "a list of transitions": transitions,
    "a deque of transitions": lambda: collections.deque(transitions(), maxlen=99),
    "a list of transitions with discrete actions": lambda: [
        (seen, int(action[0] > 0), *rest) for seen, action, *rest in transitions()
    ],
    "transitions with two flags": lambda: [(*one, not one[4] and at == 6) for at, one in enumerate(transitions())],
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
PICKLERS = {
    "a.pkl": lambda data, path: path.write_bytes(pickle.dumps(data, protocol=2)),
    "b.pickle": lambda data, path: path.write_bytes(pickle.dumps(data, protocol=5)),
    "no_ending": lambda data, path: path.write_bytes(pickle.dumps(data)),
    "c.pkl.gz": lambda data, path: path.write_bytes(gzip.compress(pickle.dumps(data))),
    "d.pkl.bz2": lambda data, path: path.write_bytes(bz2.compress(pickle.dumps(data))),
    "e.pkl.xz": lambda data, path: path.write_bytes(lzma.compress(pickle.dumps(data))),
    "f.joblib": lambda data, path: pytest.importorskip("joblib").dump(data, path),
    "g.pt": lambda data, path: torch.save(as_tensors(data), path),
    "h.pth": lambda data, path: torch.save(as_tensors(data), path, _use_new_zipfile_serialization=False),
}


def as_tensors(data):
    if isinstance(data, np.ndarray):
        return torch.as_tensor(data)
    if isinstance(data, dict):
        return {key: as_tensors(one) for key, one in data.items()}
    return type(data)(map(as_tensors, data)) if isinstance(data, (list, tuple)) else data


def lines_of(message):
    return "\n".join(line[4:] for line in message.splitlines() if line.startswith("    "))


def check(rows):
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
def test_what_pickles_hold_becomes_rows(kind):
    check(rows_of(KINDS[kind]()))


def test_arrays_by_episode_and_time_become_episodes():
    rows = rows_of(padded())
    assert rows is not None
    assert rows["timeouts"].nonzero()[0].tolist() == [2, 5, 8]
    np.testing.assert_array_equal(rows["actions"], np.concatenate(padded()["actions"]))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("a dict of arrays for each episode", one) for one in PICKLERS),
        ("a list of transitions", "f.joblib"),
        ("a list of transitions", "g.pt"),
    ],
)
def test_the_lines_of_the_message_convert_what_the_pickle_holds(tmp_path, monkeypatch, kind, name):
    monkeypatch.chdir(tmp_path)
    PICKLERS[name](KINDS[kind](), Path(name))
    with pytest.raises(ValueError, match="runs the program in it") as refused:
        orlog.import_dataset(name, "lab/x-v1")
    message = str(refused.value)
    assert ("weights_only=True" in message) == (name[0] in "gh")
    assert message.endswith("Then: orlog import data.npz NAME")
    exec(lines_of(message), {})
    orlog.import_dataset("data.npz", "lab/x-v1")
    with np.load("data.npz") as made:
        check(dict(made))


def test_arrays_that_say_ends_by_themselves_are_imported_by_the_next_hint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = {key: values for key, values in arrays().items() if key in ("actions", "rewards")}
    rows |= {"obs": arrays()["observations"], "episode_ends": np.cumsum(LENGTHS)}
    Path("a.pkl").write_bytes(pickle.dumps(rows))
    exec(lines_of(about_pickle("lab/x", Path("a.pkl"))), {})
    shown = run("import", "data.npz", "lab/x-v1").stderr
    line = shown[shown.index("orlog import") :].splitlines()[0].replace("NAME", "lab/x-v1")
    assert run(*shlex.split(line)[1:]).returncode == 0
    assert orlog.load_dataset("lab/x-v1").episode_lengths.tolist() == [3, 2, 4]


def test_a_pickled_table_becomes_parquet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = {"episode": [0, 0, 1, 1], "obs_0": [1.0, 2, 3, 4], "action": [0.1] * 4, "reward": [1.0] * 4}
    pd.DataFrame(columns).to_pickle("a.pkl")
    message = about_pickle("lab/x", Path("a.pkl"))
    exec(lines_of(message), {})
    assert message.endswith("Then: orlog import data.parquet NAME")
    orlog.import_dataset("data.parquet", "lab/x-v1")
    assert orlog.load_dataset("lab/x-v1").total_episodes == 2


def test_what_fits_no_kind_is_told_and_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside = []
    inside += [inside] * 1000
    for data, text in (
        ({"0.weight": torch.ones(3, 2)}, "a dict of 1: 0.weight (tensor)"),
        ([Runs()], "a list of 1, the first an object of posix.mkdir"),
        ([{"obs": [1], "action": Runs()}], "obs (list), action (an object of posix.mkdir)"),
        (inside, "a list of 1,000"),
    ):
        torch.save(data, "a.pt")
        assert text in about_pickle("lab/x", Path("a.pt"))
        if data is not inside:
            Path("b.pkl").write_bytes(pickle.dumps(data, protocol=0))
            assert about_pickle("lab/x", Path("b.pkl"))
            with pytest.raises(ValueError, match=r"np\.savez\('data.npz', observations=\.\.,"):
                save_rows(data)
    assert not Path("made").exists()


@settings(max_examples=scaled(300))
@given(st.binary(max_size=60), st.integers(0, 500), st.sampled_from([0, 2, 4]))
def test_damaged_pickles_are_told_too(tmp_path_factory, noise, at, protocol):
    file = tmp_path_factory.getbasetemp() / "damaged.pkl"
    sound = pickle.dumps(named(D4RL), protocol=protocol)
    file.write_bytes(sound[:at] + noise + sound[at + len(noise) :])
    assert is_pickle(file)
    for damaged in (file.read_bytes(), sound[: len(sound) // 2], b"PK\x03\x04" + noise):
        file.write_bytes(damaged)
        assert "runs the program in it" in about_pickle("lab/x", file)
    file.write_bytes(b"")
    assert "is empty" in about_pickle("lab/x", file)


ROWS = {"episode": [0, 0, 1, 1], "obs_0": [1.0, 2, 3, 4], "action": [0.1] * 4, "reward": [1.0] * 4}


def pack(path):
    pd.DataFrame(ROWS).to_csv("a.csv", index=False)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write("a.csv")
    else:
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
            archive.add("a.csv")
    Path("a.csv").unlink()


def matlab(path):
    columns = {"observations": np.ones((4, 2)), "actions": np.ones((4, 1)), "rewards": np.ones(4)}
    scipy.io.savemat(path, {**columns, "terminals": [0, 1, 0, 1], "timeouts": [0] * 4}, oned_as="column")


WRITERS = {
    "a b.tar": pack,
    "a.tar.gz": pack,
    "a.zip": pack,
    "a.csv.gz": lambda path: path.write_bytes(gzip.compress(pd.DataFrame(ROWS).to_csv(index=False).encode())),
    "a.mat": matlab,
    "a.tsv": lambda path: pd.DataFrame(ROWS).to_csv(path, sep="\t", index=False),
    "a.txt": lambda path: pd.DataFrame(ROWS).to_csv(path, sep=" ", index=False),
    "a.arrow": lambda path: pyarrow.feather.write_feather(pa.table(ROWS), path),
    "a.json": lambda path: path.write_text(json.dumps(pd.DataFrame(ROWS).to_dict("records"))),
    "no_ending": lambda path: pq.write_table(pa.table(ROWS), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_the_message_says_to_run_works(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    WRITERS[name](Path(name))
    shown = run("import", name, "lab/x-v1").stderr
    command = re.search(r"[Rr]un: (.*?); then", shown)
    assert command, shown
    words = shlex.split(command[1])
    if words[:2] == ["python", "-c"] and ">" not in words:
        exec(words[2], {})
    else:
        line = re.sub("^python ", f"{sys.executable} ", command[1])
        subprocess.run(line, shell=True, check=True, cwd=tmp_path)
    then = re.search(r"then: orlog import (\S+) NAME", shown)
    done = run("import", then[1] if then else "a.csv", "lab/x-v1")
    assert done.returncode == 0, done.stderr


def test_recordings_of_unitree_and_empty_downloads_are_told(tmp_path):
    for place in ("task/episode_0001/colors/000000_color_0.jpg", "task/episode_0001/data.json"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("{}")
    for place in ("task", "task/episode_0001", "task/episode_0001/data.json"):
        shown = run("import", str(tmp_path / place), "lab/x-v1").stderr
        assert "convert_unitree_json_to_lerobot.py --raw-dir" in shown
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "README.md").write_text("# Set")
    shown = run("import", str(tmp_path / "set"), "lab/x-v1").stderr
    assert "set holds no data, only README.md" in shown


TIANSHOU = (
    "tianshou==2.0.1",
    "deepdiff==7.0.1",
    "llvmlite==0.50.0",
    "numba==0.68.1",
    "ordered-set==4.1.0",
    "overrides==7.7.0",
    "sensai-utils==1.6.0",
)

FILL = """
    import sys
    import numpy as np
    from tianshou.data import Batch, ReplayBuffer, VectorReplayBuffer

    environments, rows = int(sys.argv[1]), int(sys.argv[2])
    buffer = ReplayBuffer(rows) if environments == 1 else VectorReplayBuffer(rows * environments, environments)
    step, episode = np.zeros(environments, int), np.zeros(environments, int)
    for _ in range(15):
        place = np.arange(environments)
        now = np.stack([place, episode, step], 1).astype(np.float32)
        step += 1
        after = np.stack([place, episode, step], 1).astype(np.float32)
        terminated, truncated = (step == 4) & (episode % 2 == 0), step == 6
        done = terminated | truncated
        batch = Batch(
            obs=now, act=now[:, 2:], rew=after[:, 2].astype(float), terminated=terminated,
            truncated=truncated, done=done, obs_next=after, info=Batch(place=place),
        )
        buffer.add(batch[0]) if environments == 1 else buffer.add(batch, buffer_ids=place)
        step[done], episode[done] = 0, episode[done] + 1
    buffer.save_hdf5("buffer.hdf5")
"""


def test_a_replay_buffer_of_tianshou_is_refused_with_lines_that_convert_it(tmp_path):
    with h5py.File(tmp_path / "buffer.hdf5", "w") as file:  # its layout, as version 2.0.1 writes it
        file.create_group("_meta").attrs["__data_type__"] = "Batch"
        file["_random_state"] = np.zeros(8, np.int8)
    with pytest.raises(ValueError, match=r"(?s)of Tianshou, .* ReplayBuffer\.load_hdf5.*np\.savez"):
        orlog.import_dataset(tmp_path / "buffer.hdf5", "lab/x-v1")


@pytest.mark.thorough
@pytest.mark.parametrize(("environments", "rows"), [(1, 20), (3, 12)])
def test_the_lines_of_the_message_convert_a_buffer_that_tianshou_wrote(tmp_path, environments, rows):
    python = tool_python(*TIANSHOU, dependencies=False)
    run_tool(python, FILL, str(environments), str(rows), folder=tmp_path)
    with pytest.raises(ValueError, match="Tianshou") as refused:
        orlog.import_dataset(tmp_path / "buffer.hdf5", "lab/x-v1")
    lines = [line[4:] for line in str(refused.value).splitlines() if line.startswith("    ")]
    run_tool(python, "\n".join(lines), folder=tmp_path)
    orlog.import_dataset(tmp_path / "data.npz", "lab/x-v1")
    dataset = orlog.load_dataset("lab/x-v1")
    # Of 15 steps: 4 that terminate, 6 that are truncated, 4 again, and one that was not finished.
    lengths = [4, 6, 4, 1] if rows == 20 else [1, 6, 4, 1]
    assert dataset.episode_lengths.tolist() == lengths * environments
    for index, episode in enumerate(dataset):
        place, number = divmod(index, 4)
        first = 4 - len(episode) if number == 0 else 0
        expected = [[place, number, step] for step in range(first, first + len(episode) + 1)]
        np.testing.assert_array_equal(episode.observations, expected)
        assert bool(episode.terminations[-1]) == (number in (0, 2))
        assert bool(episode.truncations[-1]) == (number in (1, 3))
