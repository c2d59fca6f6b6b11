"""Files of others that are not read: the message says what they are, and what it says to run works."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import scipy.io

from tests.command_line import orlog as run

ROWS = {"episode": [0, 0, 1, 1], "obs_0": [1.0, 2, 3, 4], "action": [0.1] * 4, "reward": [1.0] * 4}


def pack(path: Path) -> None:
    pd.DataFrame(ROWS).to_csv("a.csv", index=False)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write("a.csv")
    else:
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
            archive.add("a.csv")
    Path("a.csv").unlink()


def matlab(path: Path) -> None:
    columns = {"observations": np.ones((4, 2)), "actions": np.ones((4, 1)), "rewards": np.ones(4)}
    scipy.io.savemat(
        path, {**columns, "terminals": [0, 1, 0, 1], "timeouts": [0] * 4}, oned_as="column"
    )


WRITERS: dict[str, Callable[[Path], object]] = {
    "a b.tar": pack,
    "a.tar.gz": pack,
    "a.zip": pack,
    "a.csv.gz": lambda path: path.write_bytes(
        gzip.compress(pd.DataFrame(ROWS).to_csv(index=False).encode())
    ),
    "a.mat": matlab,
    "a.tsv": lambda path: pd.DataFrame(ROWS).to_csv(path, sep="\t", index=False),
    "a.txt": lambda path: pd.DataFrame(ROWS).to_csv(path, sep=" ", index=False),
    "a.arrow": lambda path: pyarrow.feather.write_feather(pa.table(ROWS), path),
    "a.json": lambda path: path.write_text(json.dumps(pd.DataFrame(ROWS).to_dict("records"))),
    "no_ending": lambda path: pq.write_table(pa.table(ROWS), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_the_message_says_to_run_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    WRITERS[name](Path(name))
    shown = run("import", name, "lab/x-v1").stderr
    command = re.search(r"[Rr]un: (.*?); then", shown)
    assert command, shown
    line = re.sub("^python ", f"{sys.executable} ", command[1])
    subprocess.run(line, shell=True, check=True, cwd=tmp_path)
    then = re.search(r"then: orlog import (\S+) NAME", shown)
    done = run("import", then[1] if then else "a.csv", "lab/x-v1")
    assert done.returncode == 0, done.stderr


def test_recordings_of_unitree_and_empty_downloads_are_told(tmp_path: Path) -> None:
    for place in ("task/episode_0001/colors/000000_color_0.jpg", "task/episode_0001/data.json"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("{}")
    for given in ("task", "task/episode_0001", "task/episode_0001/data.json"):
        shown = run("import", str(tmp_path / given), "lab/x-v1").stderr
        assert "convert_unitree_json_to_lerobot.py --raw-dir" in shown
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "README.md").write_text("# Set")
    shown = run("import", str(tmp_path / "set"), "lab/x-v1").stderr
    assert "set holds no data, only README.md" in shown
