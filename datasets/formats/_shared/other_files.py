"""Says of files of others that are not read what they are and what to run, a row of a table each."""

from __future__ import annotations

import fnmatch
import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

MOST_LOOKED_AT = 2000
UNITREE = (
    "a recording of Unitree's xr_teleoperate. Its tool unitree_IL_lerobot makes a LeRobotDataset of a folder of "
    "tasks, which is read: python unitree_lerobot/utils/convert_unitree_json_to_lerobot.py --raw-dir FOLDER "
    "--repo-id me/task --robot_type ROBOT; then: orlog import ~/.cache/huggingface/lerobot/me/task NAME"
)
UNPACK = "an archive. Run: python -m {module} -e {file} unpacked; then: orlog import unpacked NAME"
AS_CSV = (
    "Run: python -c \"import pandas; pandas.{read}.to_csv('data.csv', index=False)\"; then: "
    "orlog import data.csv NAME"
)
MATLAB = (
    'a file of MATLAB. Run: python -c "import numpy, scipy.io; found = scipy.io.loadmat({path!r}); '
    "numpy.savez('data.npz', **{name: values for name, values in found.items() if name[0] != '_'})\"; then: "
    "orlog import data.npz NAME. One of version 7.3 is HDF5: rename it to end in .h5"
)
AS_PARQUET = (
    'a table of Arrow. Run: python -c "import pyarrow.feather as f, pyarrow.parquet as p; '
    "p.write_table(f.read_table({path!r}), 'data.parquet')\"; then: orlog import data.parquet NAME"
)
AS_LINES = (
    'a JSON document. If it is a list with a row for each step, run: python -c "import json; '
    "print(*map(json.dumps, json.load(open({path!r}))), sep='\\n')\" > data.jsonl; then: "
    "orlog import data.jsonl NAME"
)
TFRECORD = "a shard of TensorFlow records. Name the folder of the dataset, which holds dataset_info.json and features.json"
ARRAY = (
    "one array. Put those that belong together, with a row for each step, in one file: np.savez('data.npz', "
    "observations=np.load(..), actions=np.load(..), rewards=np.load(..), terminals=np.load(..)); then: "
    "orlog import data.npz NAME"
)
FILES = (
    ("*data.json", UNITREE),
    ("*.tar", UNPACK.replace("{module}", "tarfile")),
    ("*.tar.*", UNPACK.replace("{module}", "tarfile")),
    ("*.tgz", UNPACK.replace("{module}", "tarfile")),
    ("*.zip", UNPACK.replace("{module}", "zipfile")),
    ("*.gz", "a packed file. Run: gunzip -k {file}; then import the file that it leaves"),
    ("*.mat", MATLAB),
    ("*.tsv", "a table with tabs. " + AS_CSV.format(read="read_csv({path!r}, sep='\\t')")),
    (
        "*.txt",
        "a text. Where it has columns, " + AS_CSV.format(read="read_csv({path!r}, sep=r'\\s+')"),
    ),
    ("*.npy", ARRAY),
    ("*.xlsx", "a spreadsheet. " + AS_CSV.format(read="read_excel({path!r})")),
    ("*.arrow", AS_PARQUET),
    ("*.feather", AS_PARQUET),
    ("*.json", AS_LINES),
    ("*.safetensors", "the weights of a network, not data"),
    ("*.tfrecord*", TFRECORD),
    ("*.mp4", "a video without actions. Name the folder of the dataset that it belongs to"),
)
"""Names of files, what such a file is, and what to run."""
FOLDERS = (
    ("*/colors/*", UNITREE),
    ("*.tar", "a folder of archives. Unpack each: python -m tarfile -e FILE unpacked"),
)
"""Paths in folders, what such a folder is, and what to run."""
ENDINGS = {b"\x89HDF\r\n\x1a\n": (".h5", "HDF5"), b"PAR1": (".parquet", "Parquet")}
ONLY_ABOUT = ("README*", "LICENSE*", ".gitattributes", ".gitignore", "*.png")


def about_others(files: Sequence[Path]) -> str:
    """Return what files of others are, or a folder, and what to run; nothing where it is not known."""
    file = files[0]
    if file.is_dir():
        inside = [
            one.relative_to(file).as_posix()
            for one in itertools.islice(file.rglob("*"), MOST_LOOKED_AT)
            if one.is_file()
        ]
        for pattern, said in FOLDERS:
            if any(fnmatch.fnmatchcase(f"/{one}", pattern) for one in inside):
                return f"\n{file.name} is {said}."
        if all(any(fnmatch.fnmatchcase(one, known) for known in ONLY_ABOUT) for one in inside):
            return f"\n{file.name} holds no data, only {', '.join(inside[:5])}; download its files first."
        return ""
    with file.open("rb") as opened:
        head = opened.read(8)
    for start, (ending, kind) in ENDINGS.items():
        if head.startswith(start) and file.suffix not in (ending, ".hdf5", ".pq"):
            renamed = shlex.join(["cp", str(file), f"data{ending}"])
            return f"\n{file.name} is {kind}. Run: {renamed}; then: orlog import data{ending} NAME"
    for pattern, said in FILES:
        if fnmatch.fnmatchcase(file.name.lower(), pattern):
            told = said.replace("{file}", shlex.quote(str(file))).replace(
                "{path!r}", repr(str(file))
            )
            return f"\n{file.name} is {told}."
    return ""
