"""Files that are not read: the message says what they are, and the lines that it says to run work."""

import bz2
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

import orlog
from tests.command_line import orlog as run
from tests.datasets.formats.reading import Runs
from tests.tool_environments import run_tool, tool_python

DATA = {"obs": np.ones((3, 2)), "x": Runs()}
PICKLES = {
    "a.pkl": ("open('a.pkl', 'rb')", lambda path: path.write_bytes(pickle.dumps(DATA, protocol=2))),
    "b.pickle": ("open('b.pickle', 'rb')", lambda path: path.write_bytes(pickle.dumps(DATA, protocol=0))),
    "no_ending": ("open('no_ending', 'rb')", lambda path: path.write_bytes(pickle.dumps(DATA))),
    "c.pkl.gz": ("gzip.open('c.pkl.gz'", lambda path: path.write_bytes(gzip.compress(pickle.dumps(DATA)))),
    "d.pkl.bz2": ("bz2.open('d.pkl.bz2'", lambda path: path.write_bytes(bz2.compress(pickle.dumps(DATA)))),
    "e.pkl.xz": ("lzma.open('e.pkl.xz'", lambda path: path.write_bytes(lzma.compress(pickle.dumps(DATA)))),
    "f.joblib": ("joblib.load('f.joblib')", lambda path: path.write_bytes(pickle.dumps(DATA))),
    "g.pt": ("torch.load('g.pt')", lambda path: torch.save(DATA, path)),
    "h.pth": ("torch.load('h.pth')", lambda path: torch.save(DATA, path, _use_new_zipfile_serialization=False)),
    "damaged.pkl": ("open('damaged.pkl', 'rb')", lambda path: path.write_bytes(b"\x80\x04\xff\xff")),
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_is_never_read_and_the_message_says_how_to_convert_it(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    loading, write = PICKLES[name]
    write(Path(name))
    with pytest.raises(ValueError, match="is a pickle, which is never read") as refused:
        orlog.import_dataset(name, "lab/x-v1")
    lines = [line[4:] for line in str(refused.value).splitlines() if line.startswith("    ")]
    assert loading in lines[1]
    assert not Path("made").exists()  # what reading it makes
    if "damaged" not in name and ".load(" not in loading:
        values = {}
        exec("\n".join(lines[:2]), values)
        np.testing.assert_array_equal(values["data"]["obs"], DATA["obs"])
        assert Path("made").exists()


def test_an_empty_pickle_is_told(tmp_path):
    (tmp_path / "a.pkl").touch()
    with pytest.raises(ValueError, match="is empty"):
        orlog.import_dataset(tmp_path / "a.pkl", "lab/x-v1")


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
