"""The table of known layouts of arrays in HDF5, npz and Zarr: how files are recognized, and what their arrays mean.

A layout is a row of `FORMATS`. `mapped_arrays.py` reads all of them; a few have a function of their own for what
names alone do not say: a file beside the arrays, steps in files of their own, a row for the reset. A layout of
one's own is such a row too (examples/formats/my_layout.py).

robomimic's layout, which LIBERO, MimicGen, RoboCasa and Isaac Lab write too:

    /data/demo_0, demo_1, ..   by their numbers, which may have gaps
        actions (T, n)   rewards (T,)   dones (T,)   states (T, ..)
        obs/NAME (T, ..)   [next_obs/NAME (T, ..)]   attributes num_samples, model_file, ..
    /data attribute env_args     JSON of the environment, kept in the description
    /mask/NAME                   names of demonstrations: `episodes/mask/NAME`

`dones` may mean success or the end of the recording, as the file's maker chose: a demonstration whose last one is 1 is
taken to have ended, and all of them are kept as `infos/done`. Demonstrations in masks named `train` and `valid` get
`episodes/split`.

ALOHA and ACT: https://github.com/tonyzhaozh/act. CALVIN: http://calvin.cs.uni-freiburg.de.
DQN replay, as Dopamine writes it: https://research.google/resources/datasets/dqn-replay.
ExoRL, V-D4RL, DreamerV2: https://github.com/denisyarats/exorl, https://github.com/danijar/dreamerv2.
ManiSkill: https://maniskill.readthedocs.io/en/latest/user_guide/datasets/demos.html.
robomimic: https://robomimic.github.io/docs/datasets/overview.html.
Diffusion Policy: https://github.com/real-stanford/diffusion_policy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import gzip
import json
import math
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numcodecs
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.bounds import Bounds, count_outside, describe_outside, merge_outside
from orlog.datasets.columns.episode import Episode
from orlog.datasets.formats.array_files import (
    LazyColumn,
    NpzColumn,
    check_stored,
    child,
    create_hdf5,
    has_child,
    is_hdf5,
    is_npz,
    is_zarr,
    look_inside,
    names_in,
    npy_header,
    numbers,
    open_hdf5,
    open_npz,
    open_zarr,
    reading,
    reading_npz,
    write_checked,
)
from orlog.datasets.formats.episode_cutter import SUCCESS
from orlog.datasets.formats.episodes import Asked, Opened, Options, tell_lack
from orlog.datasets.formats.flat_rows import demonstration_losses, file_stem, flat_columns, stop_losses
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import ArrayLayout as ArrayLayout
from orlog.datasets.formats.mapped_arrays import open_layout
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.places import (
    EPISODES,
    ArrayFile,
    Place,
    Places,
    files_in,
    files_of_arrays,
    open_arrays,
    plain,
)
from orlog.datasets.formats.roles import by_numbers, matching
from orlog.datasets.formats.safe_reading import read_json_object
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import OrlogError, SchemaError, needing

MOST_SEED = 2**63 - 1
STEP = "episode_{:07d}.npz"
STEPS_OF_EPISODES = "ep_start_end_ids.npy"
CHECKPOINT = re.compile(r"(?:\$store\$_)?(\w+)_ckpt\.(\d+)\.gz")
CHECKPOINT_ARRAYS = ("observation", "action", "reward", "terminal")
BEFORE_STEP = ("physics",)
ENDINGS = (".h5", ".hdf5", ".npz", ".zarr", ".zip")
OF_STEP = ("action", "reward", "is_first", "is_last", "is_terminal", "discount")
BLOCK_BYTES = 2**24
LONGEST_ARGUMENTS = 5000
ROBOMIMIC_NAME = "robomimic's layout"
SPLITS = ("train", "valid")
JOINTS = ("obs/joint_states", "obs/robot0_joint_pos")
ROBOSUITE, GYMNASIUM = 1, 2
"""Robomimic's numbers of an environment (`EnvType`)."""
OF_DEMONSTRATIONS = ("actions", "rewards", "dones", "obs", "next_obs")
BASE = "infos/base_action"
CHUNK_BYTES = 2**20
Progress = Callable[[int, int], None]
Checkpoint = tuple[str, dict[str, tuple[Path, str]]]
"""What errors call a checkpoint of DQN, and the file of each array."""


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
        files = sorted((path for path in folder.iterdir() if path.is_file()), key=lambda f: f.name)
    # A folder that holds one `NAME.zarr` is read as that is, whatever it is called.
    files = [file for file in files if file.suffix in ENDINGS or is_zarr(file)]
    if not files:
        return False
    if all(map(is_hdf5, files)):
        return look_inside(files, lambda file: all(_holds(file, pattern) for pattern in layout.needs))
    names = []
    if all(map(is_zarr, files)) or all(map(is_npz, files)):
        opening: Any = open_zarr if is_zarr(files[0]) else open_npz
        with contextlib.suppress(OrlogError, OSError), opening(files[0], str(files[0])) as file:
            names = file.names
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
        ends = np.asarray(np.load(path, allow_pickle=False))
    is_right = ends.dtype.kind in "iu" and ends.ndim == 2 and ends.shape[1] == 2 and len(ends) > 0
    if not is_right or (ends[:, 0] < 0).any() or (ends[:, 0] > ends[:, 1]).any():
        raise SchemaError(
            f"{where}: expected the first and last step of each episode, found {ends.dtype} {ends.shape}."
        )
    return [_Episode(folder, source, first, last) for first, last in ends.tolist()]


def _open_calvin(episode: _Episode, _options: Options) -> Generator[Place]:
    """Yield an episode, a file a step."""
    folder, where, first, last = episode
    files = []
    for number in range(first, last + 1):  # each is looked for, since a number may be of no file
        files.append(folder / STEP.format(number))
        if files[-1].is_symlink() or not files[-1].is_file():
            raise SchemaError(f"{where}: {files[-1].name} is missing, or a link.")
    with open_npz(files[0], f"{where}/{files[0].name}") as archive:
        kinds = {name: (archive.shape(name), archive.dtype(name)) for name in archive.names}

    def column(name: str) -> LazyColumn:
        shape, dtype = kinds[name]
        if dtype.kind not in "biuf":
            raise SchemaError(f"{where}/{files[0].name}, {name}: expected numbers, found {dtype}.")

        def read(start: int, stop: int) -> np.ndarray:
            values = np.empty((stop - start, *shape), dtype)
            for row, file in zip(values, files[start:stop], strict=True):
                with open_npz(file, f"{where}/{file.name}") as archive:
                    stored = archive.whole(name)
                    if stored.shape != shape or stored.dtype.kind not in "biuf":
                        shown = f"{stored.dtype} {stored.shape}"
                        raise SchemaError(f"{where}/{file.name}, {name}: expected numbers {shape}, found {shown}.")
                    row[...] = stored
            return values

        return LazyColumn((len(files), *shape), dtype, read)

    yield Place(f"{where}/{files[0].name} to {files[-1].name}", sorted(kinds), column, reading_npz)


def _checkpoints(asked: Asked) -> list[Checkpoint]:
    """Return the checkpoints of a log of DQN by their numbers."""
    folder, where = asked.files[0], asked.sources[0]
    checkpoints: dict[int, dict[str, tuple[Path, str]]] = {}
    for file, source in files_in(folder, where, lambda path: bool(CHECKPOINT.fullmatch(path.name))):
        if match := CHECKPOINT.fullmatch(file.name):
            checkpoints.setdefault(int(match[2]), {})[match[1]] = (file, source)
    return [(f"{where}, checkpoint {number}", files) for number, files in sorted(checkpoints.items())]


def _open_checkpoint(checkpoint: Checkpoint, _options: Options) -> Generator[Place]:
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
                raise SchemaError(f"{source}: expected numbers with a row a step, found {dtype} {shape}.")
            return NpzColumn(stream, source, shape, dtype)

        yield Place(where, sorted(files), column, reading_npz)


@contextlib.contextmanager
def _open_episode_npz(asked: Asked) -> Iterator[Opened]:
    """Read a file of npz an episode, whose row 0 is the reset: row t holds the action that led to it."""
    with contextlib.closing(open_arrays(files_of_arrays(asked)[0], asked.options)) as places:
        names = next(places).names
    parts = [name for name in names if name not in (*OF_STEP, *BEFORE_STEP)]
    columns = {"observation": parts[0]} if len(parts) == 1 else {f"observation/{name}": name for name in parts}
    columns |= {"action": "action", "reward": "reward", "infos/physics": "physics"}
    columns["terminated"] = "is_terminal" if "is_terminal" in names else "discount"
    with open_layout(ArrayLayout(columns=columns, places=Places(files_of_arrays, _open_after_reset)), asked) as opened:
        yield opened


def _open_after_reset(file: ArrayFile, options: Options) -> Generator[Place]:
    """Yield a file, whose rows of steps begin after the reset; of discounts whether they end the task."""
    for place in open_arrays(file, options):

        def column(name: str, place: Place = place) -> Any:
            values = place.column(name)
            if len(values) < 2:
                raise SchemaError(f"{place.where}, {name}: expected the reset and a step.")
            if name not in (*BEFORE_STEP, *OF_STEP):
                return values
            skip = int(name in OF_STEP)
            if skip:
                values[:1]  # rows are read in order

            def read(start: int, stop: int) -> np.ndarray:
                rows: np.ndarray = values[start + skip : stop + skip]
                return rows == 0 if name == "discount" else rows

            return LazyColumn((len(values) - 1, *values.shape[1:]), values.dtype, read)

        yield dataclasses.replace(place, column=column)


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
    given = [pair for pair in zip(asked.files, asked.sources, strict=True) if is_hdf5(pair[0])]
    files, sources = zip(*given, strict=True) if given else (asked.files, asked.sources)
    asked = dataclasses.replace(asked, files=files, sources=sources)
    file, where = asked.only_file("ManiSkill's layout")
    beside = file.with_suffix(".json")
    body: dict[str, Any] = {}
    if beside.is_file():
        body = read_json_object(beside, where, missing=f"{beside.name} is a link, or too large.")
    listed = body.get("episodes", [])
    if not isinstance(listed, list) or not all(isinstance(record, dict) for record in listed):
        raise SchemaError(f"{where}: the JSON file beside it does not list episodes.")
    episodes = {f"traj_{record.get('episode_id', place)}": record for place, record in enumerate(listed)}
    plain = [{key for key, value in record.items() if isinstance(value, bool | float | int | str)} for record in listed]
    names = sorted(set.intersection(*plain) - {"episode_id", "episode_seed"}) if plain else []

    def about(place: Place) -> tuple[Mapping[str, Any], int | None]:
        if place.path not in episodes:
            if episodes:
                raise SchemaError(f"{place.where}: the JSON file beside it does not list it.")
            return {}, None
        episode = episodes[place.path]
        seed = episode.get("episode_seed")
        is_seed = type(seed) is int and 0 <= seed <= MOST_SEED
        return {name: episode[name] for name in names}, seed if is_seed else None

    with open_layout(dataclasses.replace(MANISKILL, about=about), asked) as opened:
        environment = body.get("env_info")
        if isinstance(environment, dict) and isinstance(environment.get("env_id"), str):
            opened.description = f"ManiSkill's {environment['env_id'][:200]}."
        if not body:
            opened.notes.append(Note("no_seeds", file=beside.name))
        yield opened


ROBOMIMIC = ArrayLayout(
    needs=("data/demo_*",),
    episode="data/demo_*",
    columns={
        "action": "actions",
        "reward": "rewards",
        "terminated": "dones",
        "infos/done": "dones",
        "infos/states": "states",
        "observation/*": "obs/*",
        "next_observation/*": "next_obs/*",
    },
    last_flag=True,
    next_follows=True,
    keeps_rest=True,
    beside=("mask/*",),
    codes=("rewards_none", "left_out_no_row"),
    ends_first=True,
    without_observations=", only states; let robomimic's dataset_states_to_obs.py make observations from them.",
)


@contextlib.contextmanager
def _open_robomimic(asked: Asked) -> Iterator[Opened]:
    """Read a file of robomimic's layout, or of those who write as it does."""
    path, where = asked.only_file(ROBOMIMIC_NAME)
    lacks: list[Note] = []

    def lack(text: str) -> None:
        tell_lack(asked.options, lacks, SchemaError(text))

    with open_hdf5(path, where, texts=True) as file, reading(where):
        data, size = child(file, "data", where, ROBOMIMIC_NAME), path.stat().st_size
        demos = sorted((name for name in names_in(data) if name.startswith("demo_")), key=by_numbers)
        masks = _masks(file, where, size)
        arguments = data.attrs.get("env_args", "")
        actions = {}
        for name in demos:
            demo = child(data, name, where, ROBOMIMIC_NAME)
            if has_child(demo, "actions"):
                node = child(demo, "actions", where, ROBOMIMIC_NAME)
                actions[name] = numbers(node, f"{where}, {name}, actions", size)
                rows = len(actions[name])
                count = int(demo.attrs.get("num_samples", rows))
                if count != rows:
                    raise SchemaError(f"{where}, {name}: num_samples says {count}, and actions holds {rows} rows.")
        for mask, names in masks.items():
            if lost := sorted(names - actions.keys()):
                lack(
                    f"{where}, mask/{mask}: names {lost[0]!r}, which data does not hold ({len(lost):,} such). "
                    "Copy the file again, or remove these names from the mask."
                )
        total, steps = data.attrs.get("total"), sum(map(len, actions.values()))
        if isinstance(total, int | np.integer) and total != steps:
            lack(
                f"{where}, data: total says {total:,} steps, and the demonstrations hold {steps:,}. Copy the "
                "file again, or correct total."
            )
        outside = _outside_of_unit(arguments, actions)
        convention = plain(data.attrs.get("macros_image_convention", ""))
        first = child(data, demos[0], where, ROBOMIMIC_NAME) if demos else {}
        has_dones, lag = has_child(first, "dones"), _lag(first, where, asked.options)

    def about(place: Place) -> tuple[Mapping[str, Any], None]:
        name = place.path.removeprefix("data/")
        values: dict[str, Any] = {f"mask/{mask}": name in names for mask, names in masks.items()}
        if {*SPLITS} <= masks.keys():
            values["split"] = next((mask for mask in SPLITS if name in masks[mask]), "")
        return values, None

    with open_layout(dataclasses.replace(ROBOMIMIC, about=about), asked) as opened:
        opened.notes[:0] = [Note("dones_of_robomimic")] if has_dones else []
        opened.notes += [Note("actions_beyond_unit", outside=outside)] if outside else []
        opened.notes += lacks
        turned = _turned(opened.schema.observation_space, asked.options)
        stated = [*(turned if convention == "opengl" else []), *lag]
        opened.notes += [Note("conventions", sentence=sentence) for sentence in stated]
        if outside == "":
            space: Any = opened.schema.action_space
            bounded = spaces.Box(-1, 1, space.shape, space.dtype.type)
            opened.schema = dataclasses.replace(opened.schema, action_space=bounded)
        if isinstance(arguments, str) and 0 < len(arguments) <= LONGEST_ARGUMENTS:
            opened.description = f"robomimic's env_args: {' '.join(arguments.split())}"
        yield opened


def _masks(file: Any, where: str, file_bytes: int) -> dict[str, set[str]]:
    """Return the names of demonstrations in each mask."""
    if not has_child(file, "mask"):
        return {}
    masks, group = {}, child(file, "mask", where, ROBOMIMIC_NAME)
    for name in names_in(group):
        node, place = child(group, name, f"{where}, mask", ROBOMIMIC_NAME), f"{where}, mask/{name}"
        is_array = isinstance(node, import_h5py().Dataset)
        if not is_array or node.ndim != 1 or node.dtype.kind not in "SO":
            raise SchemaError(f"{place}: expected names of demonstrations.")
        check_stored(node, place, file_bytes)
        masks[name] = {str(plain(text)) for text in node[:]}
    return masks


def _outside_of_unit(arguments: object, actions: Mapping[str, Any]) -> str | None:
    """Return which actions leave [-1, 1], nothing if none does; None where the environment does not take these."""
    first = next(iter(actions.values()), None)
    if first is None or first.dtype.kind != "f" or not _takes_unit_actions(arguments):
        return None
    bounds = Bounds(np.array(-1.0), np.array(1.0))
    rows = max(1, BLOCK_BYTES // (first.dtype.itemsize * max(1, math.prod(first.shape[1:]))))
    outside = merge_outside(
        {"actions": count}
        for column in actions.values()
        for start in range(0, len(column), rows)
        if (count := count_outside(column[start : start + rows], bounds)) is not None
    )
    return describe_outside(outside["actions"], bounds) if outside else ""


def _takes_unit_actions(arguments: object) -> bool:
    """Return whether `env_args` say that actions lie in [-1, 1], as those of robosuite's environments do."""
    try:
        described = json.loads(arguments) if isinstance(arguments, str) else None
    except (ValueError, RecursionError):
        return False
    if not isinstance(described, dict) or described.get("type") != ROBOSUITE:
        return False
    return all(
        part.get("input_min", -1) == -1
        and part.get("input_max", 1) == 1
        and part.get("control_delta", True)
        and part.get("input_type") != "absolute"
        for part in _dicts_in(described.get("env_kwargs"))
    )


def _dicts_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _dicts_in(inner)


def _lag(demo: Any, where: str, options: Options) -> list[str]:
    """Return what to know where the joints of each row are in the state of the next one, as LIBERO records them."""
    if "action" in options.shift or not hasattr(demo.get("states"), "dtype"):
        return []
    states = numbers(demo["states"], where, 2**40)[:]
    for array in JOINTS:
        if not has_child(demo.get("obs"), array.removeprefix("obs/")):
            continue
        joints = numbers(demo[array], where, 2**40)[:]
        same = states.reshape(len(states), -1)[:, 1 : 1 + joints.shape[-1]]
        if len(joints) < 2 or joints.shape != same.shape:
            continue
        here, after = np.abs(joints - same).mean(), np.abs(joints[:-1] - same[1:]).mean()
        if after < here / 10:
            name = array.removeprefix("obs/")
            lag = f"{name} of a row is in states of the next one, as in LIBERO"
            return [f"Each observation was recorded after the action of its row: {lag}. --shift action=-1 pairs them."]
    return []


def _turned(space: Any, options: Options) -> list[str]:
    """Return what to know about frames of a file that states OpenGL's convention."""
    frames = [
        part
        for part, box in space.items()
        if box.dtype == np.uint8 and len(box.shape) == 3 and box.shape[-1] in (1, 3, 4)
    ]
    if not frames or options.flip:
        return []
    lines = " ".join(f"--flip observation/{part}" for part in frames)
    return [f"Frames lie upside down, since macros_image_convention is opengl. {lines} turns them."]


def _write_aloha(dataset: Dataset, folder: Path, progress: Progress) -> None:
    """Write `episode_0.hdf5`, .., which ACT's training opens."""
    for number, rows in enumerate(flat_columns(dataset, progress)):
        with create_hdf5(folder / f"episode_{number}.hdf5") as (file, _):
            file.attrs["sim"] = dataset.environment is not None
            write_checked(file, "action", rows["actions"])
            if BASE in rows:
                write_checked(file, "base_action", rows[BASE])
            for column, values in rows.items():
                root, _, part = column.partition("/")
                if root == "observations":
                    name = part.replace("images.", "images/", 1) or "qpos"
                    write_checked(file, f"observations/{name}", values)


def _aloha_losses(dataset: Dataset) -> list[str]:
    """Say what ALOHA's recordings cannot hold; raise SchemaError if observations have no joints."""
    space = dataset.observation_space
    if isinstance(space, spaces.Dict) and "qpos" not in space.spaces:
        raise SchemaError(f"{dataset.name}: ALOHA's recordings hold joints as qpos, and there are {', '.join(space)}.")
    return [*demonstration_losses(dataset, "ALOHA's recordings", own=(BASE,)), "Rewards are lost."]


def _write_zarr(dataset: Dataset, folder: Path, progress: Progress) -> None:
    """Write `NAME.zarr`, a replay buffer in version 2, which Diffusion Policy opens."""
    with needing("to write Zarr needs zarr", "orlog[formats]"):
        import zarr
    checks: dict[str, Any] = {"filters": [numcodecs.CRC32()]}
    root = zarr.open_group(folder / f"{file_stem(dataset)}.zarr", mode="w", zarr_format=2)
    arrays: dict[str, Any] = {}
    ends: list[int] = []
    for rows in flat_columns(dataset, progress):
        start = ends[-1] if ends else 0
        ends.append(start + len(rows["rewards"]))
        named = {"data/action": rows["actions"], "data/reward": rows["rewards"]}
        for column, values in rows.items():
            if column.startswith("observations"):
                named[f"data/{column.partition('/')[2] or 'state'}"] = values
        for name, values in named.items():
            if name not in arrays:
                row_bytes = max(1, values.dtype.itemsize * math.prod(values.shape[1:]))
                chunk = min(dataset.total_steps, max(1, CHUNK_BYTES // row_bytes))
                arrays[name] = root.create_array(
                    name,
                    shape=(dataset.total_steps, *values.shape[1:]),
                    chunks=(chunk, *values.shape[1:]),
                    dtype=values.dtype,
                    **checks,
                )
            arrays[name][start : ends[-1]] = values
    root.create_array("meta/episode_ends", data=np.array(ends, np.int64), **checks)


def _zarr_losses(dataset: Dataset) -> list[str]:
    """Say what replay buffers cannot hold."""
    return demonstration_losses(dataset, "replay buffers", own=("action", "reward"))


def _write_robomimic(dataset: Dataset, folder: Path, progress: Progress) -> None:
    """Write `NAME.hdf5`."""
    masks: dict[str, list[str]] = {}
    done = 0
    with create_hdf5(folder / f"{file_stem(dataset)}.hdf5", progress) as (file, progress):
        data = file.create_group("data")
        for number, episode in enumerate(dataset):
            demonstration = f"demo_{number}"
            _write_demonstration(data.create_group(demonstration), episode)
            for key, value in episode.metadata.items():
                if key.startswith("mask/") and value:
                    masks.setdefault(key, []).append(demonstration)
            done += len(episode.rewards)
            progress(done, dataset.total_steps)
        data.attrs["total"] = done
        environment = dataset.environment
        data.attrs["env_args"] = json.dumps(
            {
                "env_name": "" if environment is None else environment.id,
                "type": GYMNASIUM,
                "env_kwargs": {} if environment is None else environment.kwargs,
            }
        )
        for mask, names in masks.items():
            file.create_dataset(mask, data=np.array(names, dtype="S"))


def _write_demonstration(group: Any, episode: Episode) -> None:
    observations = episode.observations
    parts = observations if isinstance(observations, dict) else {"state": observations}
    for part, values in parts.items():
        write_checked(group, f"obs/{part}", values[:-1])
        write_checked(group, f"next_obs/{part}", values[1:])
    write_checked(group, "actions", episode.actions)
    write_checked(group, "rewards", episode.rewards)
    dones = episode.infos.get("done", episode.terminations)
    write_checked(group, "dones", np.asarray(dones).astype(np.int64))
    for name, values in episode.infos.items():
        if name != "done" and isinstance(values, np.ndarray) and name.split("/")[0] not in OF_DEMONSTRATIONS:
            write_checked(group, name, values)
    group.attrs["num_samples"] = len(episode.rewards)
    if "success" in episode.metadata:
        group.attrs["success"] = bool(episode.metadata["success"])


def _robomimic_losses(dataset: Dataset) -> list[str]:
    """Say what robomimic's files cannot hold; raise SchemaError if observations or actions have no place."""
    space, schema = dataset.observation_space, dataset.schema
    parts: list[gymnasium.Space[Any]] = [dataset.action_space, space]
    if isinstance(space, spaces.Dict):
        parts = [dataset.action_space, *space.spaces.values()]
    if not all(isinstance(part, spaces.Box) for part in parts):
        raise SchemaError(f"{dataset.name}: robomimic's files hold Boxes; found {space} and {dataset.action_space}.")
    lost = [
        name
        for name in schema.extras
        if name not in ("infos/done", "episodes/split", "episodes/success")
        and not name.startswith("episodes/mask/")
        and not (
            name.startswith("infos/") and name.split("/")[1] not in OF_DEMONSTRATIONS and name not in schema.variable
        )
    ]
    sentences = [f"These columns are lost: {', '.join(lost)}."] if lost else []
    if "infos/done" not in schema.extras and dataset.column("truncations").any():
        sentences.append("Truncations are lost: dones hold terminations alone.")
    return [*sentences, *stop_losses(dataset, "truncated")]


FORMATS = {
    "aloha": layout_format(
        ArrayLayout(
            needs=("action", "observations/qpos"),
            columns={"action": "action", "observation/*": "observations/*", "infos/base_action": "base_action"},
        ),
        name="aloha",
        extensions=("", ".hdf5", ".h5"),
        options=("horizon", "ends", EPISODES),
        write=_write_aloha,
        losses=_aloha_losses,
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
        reads=(*("actions", "rel_actions", "rgb_*", "depth_*", "robot_obs", "scene_obs"), "./ep_start_end_ids.npy"),
    ),
    "dqn_replay": layout_format(
        ArrayLayout(
            files=tuple(f"*{name}_ckpt.*.gz" for name in CHECKPOINT_ARRAYS),
            columns={"observation": "observation", "action": "action", "reward": "reward", "terminated": "terminal"},
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
        open=_open_robomimic,
        extensions=(".hdf5", ".h5"),
        options=("horizon", "ends", "partial", EPISODES),
        write=_write_robomimic,
        losses=_robomimic_losses,
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
        write=_write_zarr,
        losses=_zarr_losses,
        reads=("**",),
    ),
}
