"""The table of known layouts of arrays in HDF5, npz and Zarr: how files are recognized, and what their arrays mean.

A layout is a row of `FORMATS`. `_shared/mapped_arrays.py` reads all of them; a few have a function of their own for what
names alone do not say: a file beside the arrays, steps in files of their own, a row for the reset. A layout of
one's own is such a row too (examples/formats/my_layout.py).

ALOHA and ACT: https://github.com/tonyzhaozh/act. CALVIN: http://calvin.cs.uni-freiburg.de.
DQN replay, as Dopamine writes it: https://research.google/resources/datasets/dqn-replay.
ExoRL, V-D4RL, DreamerV2: https://github.com/denisyarats/exorl, https://github.com/danijar/dreamerv2.
ManiSkill: https://maniskill.readthedocs.io/en/latest/user_guide/datasets/demos.html.
robomimic and those that write as it does (LIBERO, MimicGen, RoboCasa, Isaac Lab):
https://robomimic.github.io/docs/datasets/overview.html. Diffusion Policy: https://github.com/real-stanford/diffusion_policy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import gzip
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats._shared import layout_writing as writing
from orlog.datasets.formats._shared.beside_arrays import EPISODES
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options
from orlog.datasets.formats._shared.flags import SUCCESS
from orlog.datasets.formats._shared.hdf5_files import child, is_hdf5, look_inside, names_in
from orlog.datasets.formats._shared.mapped_arrays import ArrayLayout as ArrayLayout
from orlog.datasets.formats._shared.mapped_arrays import open_layout
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.npz_files import (
    NpzColumn,
    is_npz,
    npy_header,
    open_npz,
    reading_npz,
)
from orlog.datasets.formats._shared.places import (
    ArrayFile,
    Place,
    Places,
    files_in,
    files_of_arrays,
    open_arrays,
)
from orlog.datasets.formats._shared.robomimic import ROBOMIMIC, open_robomimic
from orlog.datasets.formats._shared.roles import by_numbers, matching
from orlog.datasets.formats._shared.safe_reading import read_json_object
from orlog.datasets.formats._shared.zarr_arrays import is_zarr
from orlog.datasets.formats._shared.zarr_arrays import names_in_zarr as zarr_names
from orlog.datasets.formats.formats import Format
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import OrlogError, SchemaError

MOST_SEED = 2**63 - 1
STEP = "episode_{:07d}.npz"
STEPS_OF_EPISODES = "ep_start_end_ids.npy"
CHECKPOINT = re.compile(r"(?:\$store\$_)?(\w+)_ckpt\.(\d+)\.gz")
CHECKPOINT_ARRAYS = ("observation", "action", "reward", "terminal")
BEFORE_STEP = ("physics",)
ENDINGS = (".h5", ".hdf5", ".npz", ".zarr", ".zip")
OF_STEP = ("action", "reward", "is_first", "is_last", "is_terminal", "discount")


def layout_format(layout: ArrayLayout, **fields: Any) -> Format:
    """Return the format that reads files of a layout; `fields` are more of those of `Format`, such as its name."""
    given = {
        "open": functools.partial(open_layout, layout),
        "recognizes": functools.partial(has_layout, layout),
        "shares": True,
    }
    return Format(**{**given, **fields})


def has_layout(layout: ArrayLayout, files: Sequence[Path]) -> bool:
    """Return whether the first of some files, or of those in one folder, holds what a layout needs."""
    folder = files[0] if len(files) == 1 and files[0].is_dir() and not is_zarr(files[0]) else None
    if layout.files:
        names = [file.name for file in folder.iterdir()] if folder else []
        return bool(names) and all(matching(need, names) for need in layout.files)
    if folder:
        files = sorted((one for one in folder.iterdir() if one.is_file()), key=lambda f: f.name)
    # A folder that holds one `NAME.zarr` is read as that is, whatever it is called.
    files = [file for file in files if file.suffix in ENDINGS or is_zarr(file)]
    if not files:
        return False
    if all(map(is_hdf5, files)):
        return look_inside(files, lambda file: all(_holds(file, one) for one in layout.needs))
    names = []
    if all(map(is_zarr, files)):
        names = [*zarr_names(files[0])]
    elif all(map(is_npz, files)):
        with contextlib.suppress(OrlogError), open_npz(files[0], str(files[0])) as archive:
            names = archive.names
    return bool(names) and all(matching(need, names) for need in layout.needs)


def _holds(group: Any, needs: str) -> bool:
    """Return whether a group of HDF5 holds one of several paths, whose parts are patterns."""
    for need in needs.split(","):
        name, _, inner = need.partition("/")
        fitting = sorted(fnmatch.filter(names_in(group), name), key=by_numbers)
        if fitting and (not inner or _holds(child(group, fitting[0], "", "layout"), inner)):
            return True
    return False


class _Episode(NamedTuple):
    """An episode of CALVIN: its folder, what errors call that, and the numbers of its first and last file."""

    folder: Path
    where: str
    first: int
    last: int


def _calvin_episodes(asked: Asked) -> list[_Episode]:
    folder, source = asked.files[0], asked.sources[0]
    path, where = folder / STEPS_OF_EPISODES, f"{source}/{STEPS_OF_EPISODES}"
    if path.is_symlink():
        raise SchemaError(f"{where}: a link, which is not followed.")
    with reading_npz(where):
        ends = np.load(path, allow_pickle=False)
    if ends.dtype.kind not in "iu" or ends.ndim != 2 or ends.shape[1] != 2 or not len(ends):
        raise SchemaError(f"{where}: expected two numbers an episode, found {ends.shape}.")
    for first, last in ends.tolist():
        if not 0 <= first <= last:
            raise SchemaError(f"{where}: an episode from {first} to {last}.")
    return [_Episode(folder, source, first, last) for first, last in ends.tolist()]


def _open_calvin(episode: _Episode, _options: Options) -> Generator[Place]:
    """Yield an episode, a file a step."""
    folder, where, first, last = episode
    files = []
    for number in range(first, last + 1):
        files.append(folder / STEP.format(number))
        if files[-1].is_symlink() or not files[-1].is_file():
            raise SchemaError(f"{where}: {files[-1].name} is missing, or a link.")
    with open_npz(files[0], f"{where}/{files[0].name}") as archive:
        kinds = {name: (archive.shape(name), archive.dtype(name)) for name in archive.names}

    def column(name: str) -> _FileRows:
        return _FileRows(files, name, *kinds[name], where)

    place = f"{where}/{files[0].name} to {files[-1].name}"
    yield Place(place, sorted(kinds), column, reading_npz)


class _FileRows:
    """An array of which each npz file holds a row.

    Attributes:
        shape: Rows, and the shape of each.
        dtype: What numbers they hold.
    """

    def __init__(
        self, files: list[Path], name: str, shape: tuple[int, ...], dtype: np.dtype[Any], where: str
    ) -> None:
        if dtype.kind not in "biuf":
            raise SchemaError(f"{where}/{files[0].name}, {name}: expected numbers, found {dtype}.")
        self._files, self._name, self._where = files, name, where
        self.shape, self.dtype = (len(files), *shape), dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows.

        Raises SchemaError if a file holds another shape; IntegrityError if it is damaged.
        """
        files = self._files[rows]
        values = np.empty((len(files), *self.shape[1:]), self.dtype)
        for number, file in enumerate(files):
            where = f"{self._where}/{file.name}"
            with open_npz(file, where) as archive:
                column = archive.column(self._name)
                if column.shape != self.shape[1:]:
                    raise SchemaError(
                        f"{where}, {self._name}: expected {self.shape[1:]}, found {column.shape}."
                    )
                values[number] = column[0 : len(column)]
        return values


def _checkpoints(asked: Asked) -> list[tuple[str, dict[str, tuple[Path, str]]]]:
    """Return the checkpoints of a log of DQN by their numbers: what errors call each, and the file of each array."""
    folder, where = asked.files[0], asked.sources[0]
    checkpoints: dict[int, dict[str, tuple[Path, str]]] = {}
    for file, source in files_in(folder, where, lambda one: bool(CHECKPOINT.fullmatch(one.name))):
        match = CHECKPOINT.fullmatch(file.name)
        assert match is not None
        checkpoints.setdefault(int(match[2]), {})[match[1]] = (file, source)
    return [
        (f"{where}, checkpoint {number}", files) for number, files in sorted(checkpoints.items())
    ]


def _open_checkpoint(
    checkpoint: tuple[str, dict[str, tuple[Path, str]]], _options: Options
) -> Generator[Place]:
    """Yield the arrays of a checkpoint, as streams."""
    where, files = checkpoint
    for name in CHECKPOINT_ARRAYS:
        if name not in files:
            raise SchemaError(f"{where}: has no {name}.")
    with contextlib.ExitStack() as stack:

        def column(name: str) -> NpzColumn:
            file, source = files[name]
            with reading_npz(source):
                stream: Any = stack.enter_context(gzip.GzipFile(file))
                shape, is_fortran, dtype = npy_header(stream, source)
            if dtype.kind not in "biuf" or is_fortran or not shape or not min(shape):
                raise SchemaError(
                    f"{source}: expected numbers with a row a step, found {dtype} {shape}."
                )
            return NpzColumn(stream, source, shape, dtype)

        yield Place(where, sorted(files), column, reading_npz)


@contextlib.contextmanager
def _open_episode_npz(asked: Asked) -> Iterator[Opened]:
    """Read a file of npz an episode, whose row 0 is the reset: row t holds the action that led to it."""
    with contextlib.closing(open_arrays(files_of_arrays(asked)[0], asked.options)) as places:
        first = next(places)
    parts = [name for name in first.names if name not in (*OF_STEP, *BEFORE_STEP)]
    columns = {f"observation/{name}": name for name in parts}
    if len(parts) == 1:
        columns = {"observation": parts[0]}
    columns |= {"action": "action", "reward": "reward", "infos/physics": "physics"}
    columns["terminated"] = "is_terminal" if "is_terminal" in first.names else "discount"
    layout = ArrayLayout(columns=columns, places=Places(files_of_arrays, _open_after_reset))
    with open_layout(layout, asked) as opened:
        yield opened


def _open_after_reset(file: ArrayFile, options: Options) -> Generator[Place]:
    """Yield a file, whose rows of steps begin after the reset."""
    for place in open_arrays(file, options):

        def column(name: str, place: Place = place) -> Any:
            values = place.column(name)
            if len(values) < 2:
                raise SchemaError(f"{place.where}, {name}: expected the reset and a step.")
            is_before = name in BEFORE_STEP
            return _Shifted(values, name, is_before) if is_before or name in OF_STEP else values

        yield dataclasses.replace(place, column=column)


class _Shifted:
    """An array without the row of the reset, or without the last row.

    Attributes:
        shape: Shape of these rows.
        dtype: What numbers they hold.
    """

    def __init__(self, column: Any, name: str, is_before: bool) -> None:
        self._column, self._name, self._start = column, name, int(not is_before)
        self.shape: tuple[int, ...] = (len(column) - 1, *column.shape[1:])
        self.dtype = column.dtype
        if self._start:
            column[:1]  # rows are read in order

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows; of discounts whether they end the task."""
        start, stop, _ = rows.indices(len(self))
        values: np.ndarray = self._column[start + self._start : stop + self._start]
        return values == 0 if self._name == "discount" else values


MANISKILL = ArrayLayout(
    needs=("traj_*",),
    episode="traj_*",
    columns={
        "action": "actions",
        "observation": "obs",
        "observation/*": "obs/*",
        "reward": "rewards",
        "terminated": "terminated",
        "truncated": "truncated",
        "infos/success": "success",
        "infos/fail": "fail",
    },
    last_flag=True,
    without_observations=", only states of the simulator; let ManiSkill make observations: "
    "python -m mani_skill.trajectory.replay_trajectory --traj-path FILE --obs-mode state",
)


@contextlib.contextmanager
def _open_maniskill(asked: Asked) -> Iterator[Opened]:
    """Read a file with what the JSON file beside it says: seeds, and plain values of episodes."""
    given = [one for one in zip(asked.files, asked.sources, strict=True) if is_hdf5(one[0])]
    files, sources = zip(*given, strict=True) if given else (asked.files, asked.sources)
    asked = dataclasses.replace(asked, files=files, sources=sources)
    file, where = asked.only_file("ManiSkill's layout")
    beside = file.with_suffix(".json")
    told: dict[str, Any] = {}
    if beside.is_file():
        told = read_json_object(beside, where, missing=f"{beside.name} is a link, or too large.")
    listed = told.get("episodes", [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise SchemaError(f"{where}: the JSON file beside it does not list episodes.")
    episodes = {f"traj_{one.get('episode_id', place)}": one for place, one in enumerate(listed)}
    plain = [
        {key for key, value in one.items() if isinstance(value, bool | float | int | str)}
        for one in listed
    ]
    names = sorted(set.intersection(*plain) - {"episode_id", "episode_seed"}) if plain else []

    def about(place: Place) -> tuple[Mapping[str, Any], int | None]:
        if place.path not in episodes:
            if episodes:
                raise SchemaError(f"{place.where}: the JSON file beside it does not list it.")
            return {}, None
        said = episodes[place.path]
        seed = said.get("episode_seed")
        is_seed = type(seed) is int and 0 <= seed <= MOST_SEED
        return {name: said[name] for name in names}, seed if is_seed else None

    with open_layout(dataclasses.replace(MANISKILL, about=about), asked) as opened:
        environment = told.get("env_info")
        if isinstance(environment, dict) and isinstance(environment.get("env_id"), str):
            opened.description = f"ManiSkill's {environment['env_id'][:200]}."
        if not told:
            opened.notes.append(Note("no_seeds", file=beside.name))
        yield opened


FORMATS = {
    "aloha": layout_format(
        ArrayLayout(
            needs=("action", "observations/qpos"),
            columns={
                "action": "action",
                "observation/*": "observations/*",
                "infos/base_action": "base_action",
            },
        ),
        name="aloha",
        extensions=("", ".hdf5", ".h5"),
        options=("horizon", "ends", EPISODES),
        write=writing.write_aloha,
        losses=writing.aloha_losses,
        check=lambda: import_h5py(),
        reads=("action", "observations/**", "base_action", "compress_len", "@sim", "@compress"),
    ),
    "calvin": layout_format(
        ArrayLayout(
            files=(STEPS_OF_EPISODES,),
            columns={
                "action": "rel_actions",
                "infos/actions": "actions",
                "observation/*": "rgb_*,depth_*,robot_obs,scene_obs",
            },
            places=Places(_calvin_episodes, _open_calvin),
            notes=(Note("left_out_instructions"),),
        ),
        name="calvin",
        extensions=("",),
        options=("horizon", "ends"),
        reads=(
            *("actions", "rel_actions", "rgb_*", "depth_*", "robot_obs", "scene_obs"),
            "./ep_start_end_ids.npy",
        ),
    ),
    "dqn_replay": layout_format(
        ArrayLayout(
            files=tuple(f"*{name}_ckpt.*.gz" for name in CHECKPOINT_ARRAYS),
            columns={
                "observation": "observation",
                "action": "action",
                "reward": "reward",
                "terminated": "terminal",
            },
            episode="",
            places=Places(_checkpoints, _open_checkpoint),
        ),
        name="dqn_replay",
        extensions=("",),
        reads=("./*_ckpt.#.gz",),
    ),
    "episode_npz": layout_format(
        ArrayLayout(needs=("action", "reward", "is_terminal,discount"), columns={}),
        name="episode_npz",
        open=_open_episode_npz,
        extensions=("", ".npz"),
        reads=("**",),
    ),
    "maniskill": layout_format(
        MANISKILL,
        name="maniskill",
        open=_open_maniskill,
        extensions=(".h5", ".hdf5", ".json"),
        reads=("traj_#/**", "env_info", "episodes"),
    ),
    "robomimic": layout_format(
        ROBOMIMIC,
        name="robomimic-hdf5",
        open=open_robomimic,
        extensions=(".hdf5", ".h5"),
        options=("horizon", "ends", "partial", EPISODES),
        write=writing.write_robomimic,
        losses=writing.robomimic_losses,
        check=lambda: import_h5py(),
        reads=(
            "data/demo_#/**",
            "mask/*",
            *(f"data/demo_#@{name}" for name in ("num_samples", *SUCCESS)),
            *("data@env_args", "data@total", "data@macros_image_convention"),
        ),
    ),
    "zarr": layout_format(
        ArrayLayout(
            needs=("data/action", "meta/episode_ends"),
            columns={"action": "data/action", "reward": "data/reward", "observation/*": "data/*"},
            episode="meta/episode_ends",
        ),
        name="zarr",
        extensions=("", ".zarr", ".zip"),
        options=("horizon", "ends"),
        write=writing.write_zarr,
        losses=writing.zarr_losses,
        reads=("**",),
    ),
}
