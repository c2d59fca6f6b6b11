"""What names files hold, so that an import can name those that it did not read.

A name is that of an array, `obs/qpos`, of an attribute of a group, `data@env_args`, or of a key of a JSON file; in a folder
the path of the file comes first, `meta/info.json:fps`, and `./` and the path alone is a file that is not looked into. Numbers in
names are written `#`, so that the names of one episode stand for those of all.

Files that orlog does not read, and what to run in their place: pickles, pointers of Git LFS, archives and others.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orlog.datasets.formats.array_files import (
    has_child,
    is_hdf5,
    is_npz,
    is_zarr,
    links_in,
    look_inside,
    open_hdf5,
    open_npz,
    open_zarr,
)
from orlog.datasets.formats.arrow_files import arrow_names
from orlog.datasets.formats.notes import Note
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import SchemaError
from orlog.manifests.names import counted

ATTRIBUTE, INSIDE, FILE = "@", ":", "./"
BESIDE = ("./*SHA#SUMS",)
LARGEST_DOCUMENT = 2**22
MOST_NAMES = 100_000
MOST_ALIKE = 200  # files of one name but for its numbers that are looked into
MOST_TOLD = 30
NUMBER = re.compile(r"(?<!\.hdf)(?<!\.h)(?<!\.mp)(?<!\.db)\d+")


def not_read(files: Sequence[Path], known: Sequence[str], notes: Sequence[Note], columns: Iterable[str]) -> list[Note]:
    """Return a note about the names in files, or one folder, that a reader does not know, or nothing.

    Known patterns are read, or say nothing. One that ends in `*` stands for names that are stored, as part of
    one of the `columns`; one that ends in `**` for any. Only a pattern with an `@` means attributes, and one
    that begins with `./` files that are not looked into. Names of other notes are not noted again.
    """
    if not known:
        return []
    words = {word for note in notes for name in note.columns for word in _spellings(name)}
    for name in columns:
        part = name.partition("/")[2]  # the axis alone, as `episodes`, is no name of a file's
        words |= {name, part, *re.split(r"[/.@]", part or name)} - {""}
    words = {NUMBER.sub("#", word) for word in words}
    counts = Counter(itertools.islice(_names(files), MOST_NAMES))
    left = {
        name: count
        for name, count in sorted(counts.items())
        if not words & _spellings(name) and not _is_known(name, (*known, *BESIDE), words)
    }
    shown = [f"{name[:100]} ({count})" if count > 1 else name[:100] for name, count in left.items()]
    names = ", ".join(shown[:MOST_TOLD])
    names += f" and {len(shown) - MOST_TOLD} more" if len(shown) > MOST_TOLD else ""
    return [Note("not_read", left, names=names)] if left else []


def _spellings(name: str) -> set[str]:
    """Return how a name may stand in what was told: whole, in its file, or alone."""
    inner = name.rpartition(INSIDE)[2]
    return {name, inner, inner.rpartition("/")[2], inner.rpartition(ATTRIBUTE)[2]}


def _is_known(name: str, patterns: Sequence[str], words: set[str]) -> bool:
    inner = name if name.startswith(FILE) else name.rpartition(INSIDE)[2]
    for pattern in patterns:
        of_kind = all((sign in inner) == (sign in pattern) for sign in (ATTRIBUTE, FILE))
        if of_kind and fnmatch.fnmatchcase(name if INSIDE in pattern else inner, pattern):
            is_open = pattern.endswith("*") and not pattern.endswith("**")
            if not is_open or pattern.startswith(FILE) or _spellings(name) & words:
                return True
    return False


def _names(files: Sequence[Path]) -> Iterator[str]:
    """Yield the names in all files, each as often as it is there, but for their numbers."""
    seen = Counter[str]()
    for path, where in _each(files):
        kind = NUMBER.sub("#", where)
        seen[kind] += 1
        if seen[kind] > MOST_ALIKE:
            continue
        names = None
        with contextlib.suppress(Exception):  # one of a library: what is damaged, its reader tells
            names = _inside(path)
        start = f"{where}{INSIDE}" if names is not None and where else ""
        for name in [f"{FILE}{where or path.name}"] if names is None else names:
            yield NUMBER.sub("#", start + name)


def _each(files: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield each file, and its path in the folder; nothing for the path of a file that was given itself."""
    for file in files:
        if not file.is_dir() or is_zarr(file):
            yield file, ""
            continue
        for path in sorted(file.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path, path.relative_to(file).as_posix()


def _inside(path: Path) -> list[str] | None:
    """Return the names in a file; None for one that is not looked into."""
    ending = path.suffix.lower()
    if is_zarr(path):
        with open_zarr(path, str(path)) as store:
            return store.inventory()
    if is_hdf5(path):
        with open_hdf5(path, str(path)) as file:
            return list(_hdf5_names(file.id, ""))
    if ending == ".npz" and is_npz(path):
        with open_npz(path, str(path)) as archive:
            return archive.names
    if ending == ".parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_schema(path).names)
    if ending == ".arrow":
        return arrow_names(path)
    if ending in (".json", ".jsonl", ".ndjson"):
        with path.open("rb") as stream:
            return _json_names(stream.read(LARGEST_DOCUMENT))
    return None


def _json_names(data: bytes) -> list[str] | None:
    """Return the keys of a document, or of the lines of one; of a large file those at its begin."""
    try:
        bodies = [json.loads(data)]
    except ValueError:
        bodies = [json.loads(line) for line in data.splitlines()[:-1] if line.strip()]
    if not bodies or not all(isinstance(body, dict) for body in bodies):
        return None
    return sorted({str(key) for body in bodies for key in body})


def _hdf5_names(node: Any, path: str) -> Iterator[str]:
    """Yield the names of arrays and attributes at an identifier of HDF5; links are named themselves."""
    h5py = import_h5py()
    attributes: list[bytes] = []
    h5py.h5a.iterate(node, attributes.append)
    for attribute in attributes:
        yield f"{path}{ATTRIBUTE}{attribute.decode(errors='backslashreplace')}"
    if not isinstance(node, h5py.h5g.GroupID):
        yield path
        return
    for name, is_link in links_in(node):
        inner = f"{path}/{name}" if path else name
        if is_link:
            yield inner
        else:
            yield from _hdf5_names(h5py.h5o.open(node, name.encode()), inner)


POINTER = b"version https://git-lfs.github.com/spec/"
LARGEST_POINTER = 1024  # bytes; the specification of Git LFS allows no more
MOST_LOOKED_AT = 20_000
PICKLES = (".pkl", ".pickle", ".p", ".pt", ".pth", ".joblib")
PACKED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".lzma": "lzma"}
"""Endings of packed files, and the module that opens them."""
PICKLE = """{dataset}: {file} is a pickle, which is never read, since reading it runs the program in it. Where you trust it, \
convert it yourself:
    import numpy, {modules}
    {loading}
    numpy.savez('data.npz', observations=.., actions=.., rewards=.., terminals=.., timeouts=..)
with a row for each step of what data hold. Then: orlog import data.npz NAME"""
TIANSHOU = (
    "a replay buffer of Tianshou, which holds pickles, and reading these runs the program in them. Where you trust it, "
    "convert it yourself:\n"
    "    import numpy as np; from tianshou.data import {kind}\n"
    "    buffer = {kind}.load_hdf5({file!r})\n"
    "    order = buffer.sample_indices(0); rows = buffer[order]\n"
    "    cut = (rows.truncated | np.isin(order, buffer.unfinished_index())) & ~rows.terminated\n"
    "    np.savez('data.npz', observations=rows.obs, actions=rows.act, rewards=rows.rew,\n"
    "             next_observations=rows.obs_next, terminals=rows.terminated, timeouts=cut)\n"
    "Then: orlog import data.npz NAME"
)
UNITREE = (
    "a recording of Unitree's xr_teleoperate. Its tool unitree_IL_lerobot makes a LeRobotDataset of a folder of "
    "tasks, which is read: python unitree_lerobot/utils/convert_unitree_json_to_lerobot.py --raw-dir FOLDER "
    "--repo-id me/task --robot_type ROBOT; then: orlog import ~/.cache/huggingface/lerobot/me/task NAME"
)
UNPACK = "an archive. Run: python -m {module} -e {file} unpacked; then: orlog import unpacked NAME"
AS_CSV = (
    "Run: python -c \"import pandas; pandas.{read}.to_csv('data.csv', index=False)\"; then: orlog import data.csv NAME"
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
TFRECORD = (
    "a shard of TensorFlow records. Name the folder of the dataset, which holds dataset_info.json and features.json"
)
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
    ("*.txt", "a text. Where it has columns, " + AS_CSV.format(read="read_csv({path!r}, sep=r'\\s+')")),
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
FOLDERS = (("*/colors/*", UNITREE), ("*.tar", "a folder of archives. Unpack each: python -m tarfile -e FILE unpacked"))
"""Paths in folders, what such a folder is, and what to run."""
ENDINGS = {b"\x89HDF\r\n\x1a\n": (".h5", "HDF5"), b"PAR1": (".parquet", "Parquet")}
ONLY_ABOUT = ("README*", "LICENSE*", ".gitattributes", ".gitignore", "*.png")


def refuse_pointers(files: Sequence[Path], dataset: str) -> None:
    """Refuse files, or a folder, with data that git did not fetch."""
    each = (inner for file in files for inner in (file.rglob("*") if file.is_dir() else [file]))
    pointers = [path for path in itertools.islice(each, MOST_LOOKED_AT) if _is_pointer(path)]
    if pointers:
        several = len(pointers) > 1
        more = f" and {counted(len(pointers) - 1, 'more file')}" if several else ""
        raise SchemaError(
            f"{dataset}: {pointers[0]}{more} {'are pointers' if several else 'is a pointer'} of Git LFS, not the "
            "data; where they were cloned, run: git lfs pull"
        )


def _is_pointer(path: Path) -> bool:
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST_POINTER:
            return False
        with path.open("rb") as file:
            return file.read(len(POINTER)) == POINTER
    return False


def refuse_programs(file: Path, dataset: str) -> None:
    """Raise ValueError if reading a file would run a program in it; the message has lines that convert it."""
    if is_pickle(file):
        raise ValueError(_about_pickle(dataset, file))
    if is_hdf5(file) and look_inside([file], _is_tianshou):
        is_vector = look_inside([file], lambda opened: has_child(opened, "buffers"))
        lines = TIANSHOU.format(kind="VectorReplayBuffer" if is_vector else "ReplayBuffer", file=file.name)
        raise ValueError(f"{dataset}: {file.name} is {lines}")


def _is_tianshou(file: Any) -> bool:
    return has_child(file, "_meta") and has_child(file, "_random_state")


def is_pickle(path: Path) -> bool:
    """Return whether a file is called a pickle, or starts as one of protocol 2 or later does."""
    name = path.name.lower()
    for ending in PACKED:
        name = name.removesuffix(ending)
    if path.is_dir() or name.endswith(PICKLES):
        return not path.is_dir()
    with contextlib.suppress(OSError), path.open("rb") as file:
        head = file.read(2)
        return len(head) == 2 and head[0] == 0x80 and 2 <= head[1] <= 5
    return False


def _about_pickle(dataset: str, file: Path) -> str:
    if not file.stat().st_size:
        return f"{dataset}: {file.name} is empty; get this file again."
    ending = file.suffix.lower()
    module = "torch" if ending in (".pt", ".pth") else "joblib" if ending == ".joblib" else "pickle"
    opening = f"{PACKED[ending]}.open" if ending in PACKED else "open"
    loading = f"data = {module}.load({file.name!r})"
    if module == "pickle":
        loading = f"with {opening}({file.name!r}, 'rb') as file: data = pickle.load(file)"
    modules = f"{PACKED[ending]}, {module}" if ending in PACKED else module
    return PICKLE.format(dataset=dataset, file=file.name, modules=modules, loading=loading)


def about_others(files: Sequence[Path]) -> str:
    """Return what files of others are, or a folder, and what to run; nothing where it is not known."""
    file = files[0]
    if file.is_dir():
        inside = [
            path.relative_to(file).as_posix()
            for path in itertools.islice(file.rglob("*"), MOST_LOOKED_AT)
            if path.is_file()
        ]
        for pattern, meaning in FOLDERS:
            if any(fnmatch.fnmatchcase(f"/{name}", pattern) for name in inside):
                return f"\n{file.name} is {meaning}."
        if all(any(fnmatch.fnmatchcase(name, known) for known in ONLY_ABOUT) for name in inside):
            return f"\n{file.name} holds no data, only {', '.join(inside[:5])}; download its files first."
        return ""
    with file.open("rb") as opened:
        head = opened.read(8)
    for start, (ending, kind) in ENDINGS.items():
        if head.startswith(start) and file.suffix not in (ending, ".hdf5", ".pq"):
            renamed = shlex.join(["cp", str(file), f"data{ending}"])
            return f"\n{file.name} is {kind}. Run: {renamed}; then: orlog import data{ending} NAME"
    for pattern, meaning in FILES:
        if fnmatch.fnmatchcase(file.name.lower(), pattern):
            text = meaning.replace("{file}", shlex.quote(str(file))).replace("{path!r}", repr(str(file)))
            return f"\n{file.name} is {text}."
    return ""
