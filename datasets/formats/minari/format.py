"""Reads and writes Minari's HDF5 files: a group for each episode, T + 1 observations for T steps.

    FOLDER/data/metadata.json      spaces, environment, totals
    FOLDER/data/main_data.hdf5     /episode_0, /episode_1, ..
        observations  actions      one dataset, or a group of parts (`_index_0` of a Tuple)
        rewards terminations truncations  (T,)        infos/..  T rows, or T + 1 with the reset's
        attributes id, total_steps, seed, options/..

Infos of a reset become `episodes/reset_info/NAME`, and a reset's options `episodes/options` as JSON. Frames
that Minari stored as JPEG are decoded; JPEG had changed them. https://minari.farama.org
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.columns.episode import Columns, Episode, options_from_text
from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.array_files import (
    check_stored,
    child,
    create_hdf5,
    datasets_in,
    has_child,
    look_inside,
    open_hdf5,
    reading,
)
from orlog.datasets.formats.episodes import Asked, Opened, Steps
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.minari import arrow
from orlog.datasets.formats.minari.episodes import FLAGS, Block, EpisodeReader, with_options
from orlog.datasets.formats.minari.metadata import (
    METADATA_FILE,
    READS,
    Metadata,
    dataset_id,
    find_data,
    metadata_of,
    numbers_here,
    read_metadata,
)
from orlog.datasets.formats.notes import Note
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import IntegrityError, SchemaError

MAIN_FILE = "main_data.hdf5"
LAYOUT = "Minari's layout"
KNOWN = ("id", "total_steps", "seed")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    main, where = _main_file(asked.files), asked.sources[0]
    metadata, notes = read_metadata(main.with_name(METADATA_FILE), where), list[Note]()
    with open_hdf5(main, where, texts=True) as file:
        with reading(where):
            count = metadata.total_episodes
            here = [number for number in range(count) if has_child(file, f"episode_{number}")]
            numbers = numbers_here(here, len(file), count, where, asked.options, notes)
            total = None if notes else metadata.total_steps
            reader = _reader(file, main.stat().st_size, where, metadata, numbers, notes)
        yield Opened(
            schema=reader.episodes.schema,
            steps=reader.read(numbers, total, notes),
            total_steps=metadata.total_steps,
            environment=metadata.environment,
            description=metadata.description,
            behavior_policy=metadata.behavior_policy,
            license=metadata.license,
            notes=notes,
        )


def _main_file(files: Sequence[Path]) -> Path:
    if files[0].is_dir():
        return find_data(files[0]) / MAIN_FILE
    return next((file for file in files if file.suffix != ".json"), files[0])


def _reader(
    file: Any, file_bytes: int, where: str, metadata: Metadata, numbers: Sequence[int], notes: list[Note]
) -> _Reader:
    """Return what reads episodes; what is not in all of them is left out and told."""
    infos: list[set[str]] = []
    details: list[set[str]] = []
    has_options = is_single = False
    for number in numbers:
        group = child(file, f"episode_{number}", where, LAYOUT)
        rewards = child(group, "rewards", f"{where}, episode_{number}", LAYOUT)
        is_single |= not infos and getattr(rewards, "dtype", None) == np.float32
        infos.append({*_info_names(group, where)})
        details.append({name for name in group.attrs if not _is_known(name)})
        has_options |= any(name.startswith("options/") for name in group.attrs)
    kept = set.intersection(*infos)
    dropped = sorted(set.union(*infos) - kept)
    if dropped:
        notes.append(Note("infos_not_in_all", dropped))
    schema = Schema(
        observation_space=metadata.observation_space,
        action_space=metadata.action_space,
        reward_dtype=np.dtype(np.float32 if is_single else np.float64),
    )
    episodes = EpisodeReader(schema, sorted(kept), index="_index_")
    return _Reader(episodes, file, file_bytes, where, sorted(set.intersection(*details)), has_options)


def _info_names(group: Any, where: str) -> list[str]:
    if not has_child(group, "infos"):
        return []
    infos = child(group, "infos", where, LAYOUT)
    nodes = datasets_in(infos, f"{where}, infos")
    return [path for path, node in nodes if node.shape]


def _is_known(name: str) -> bool:
    return name in KNOWN or name.startswith(("options/", "reset_info/"))


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads the episodes of an open file, which all have the same columns."""

    episodes: EpisodeReader
    file: Any
    file_bytes: int
    where: str
    details: Sequence[str]  # attributes of each episode that people added
    has_options: bool

    def read(self, numbers: Iterable[int], total: int | None, notes: list[Note]) -> Iterator[Steps]:
        """Yield the steps of some episodes, in pieces, and compare how many there are, if `total` is known."""
        done = 0
        for number in numbers:
            where = f"{self.where}, episode_{number}"
            with reading(where):
                for piece in self._episode(child(self.file, f"episode_{number}", self.where, LAYOUT), where):
                    done += len(piece.rewards)
                    yield piece
        if self.episodes.had_jpeg:
            notes.append(Note("had_jpeg"))
        if total not in (None, done):
            raise IntegrityError(
                f"{self.where}: metadata.json says total_steps {total:,}, and the episodes hold {done:,}."
            )

    def _episode(self, group: Any, where: str) -> Iterator[Steps]:
        """Yield the steps of an episode, whose datasets are opened once: that takes as long as reading a short one."""
        nodes = dict(datasets_in(group, where))
        checked: dict[str, Any] = {}

        def column(path: str) -> Any:
            if path not in checked:
                checked[path] = _checked(nodes, path, where, self.file_bytes)
            return checked[path]

        count = len(column("rewards"))
        stated = int(group.attrs.get("total_steps", count))
        if stated != count:
            raise IntegrityError(f"{where}: total_steps says {stated}, and rewards holds {count}.")

        def rows(start: int, stop: int, path: str) -> np.ndarray:
            values, length = column(path), len(column(path))
            if length not in (count, count + 1):
                raise SchemaError(f"{where}, {path}: expected {count} rows or one more, found {length}.")
            read: np.ndarray = values[start : stop + length - count]
            return read

        stored = sum(int(node.id.get_storage_size()) for node in nodes.values())
        size = self.episodes.block_steps(stored // max(count, 1))
        blocks: Iterator[Block] = (
            (start, stop, functools.partial(rows, start, stop))
            for start in range(0, count, size)
            for stop in [min(count, start + size)]
        )
        details = {name: _detail(group, name, where) for name in self.details}
        options = _options(group, where) if self.has_options else None
        seed = group.attrs.get("seed")
        if seed is not None and np.asarray(seed).dtype.kind not in "iu":
            raise SchemaError(f"{where}: expected a seed that is an integer, found {seed!r:.50}.")
        yield from self.episodes.steps(
            blocks, count, where, None if seed is None else int(seed), with_options(details, options)
        )


def _checked(nodes: Mapping[str, Any], path: str, where: str, file_bytes: int) -> Any:
    """Return a dataset of an episode, which must have a row a step, of numbers or texts."""
    node, place = nodes.get(path), f"{where}, {path}"
    if node is None:
        raise SchemaError(f"{where}: has no {path}, so it does not have {LAYOUT}.")
    if not node.shape or node.dtype.kind not in "biufSO" or node.dtype.subdtype is not None:
        raise SchemaError(
            f"{place}: expected a row of numbers or a text for each step, found {node.dtype} {node.shape}."
        )
    check_stored(node, place, file_bytes)
    return node


def _detail(group: Any, name: str, where: str) -> Any:
    value = group.attrs.get(name)
    if isinstance(value, bytes | str):
        return value if isinstance(value, str) else value.decode()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise SchemaError(f"{where}, {name}: expected a number or a text, found {array.dtype}.")
    return array[()] if array.shape == () else array


def _options(group: Any, where: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name in group.attrs:
        if not name.startswith("options/"):
            continue
        place = options
        *path, last = name.split("/")[1:]
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise SchemaError(f"{where}, {name}: {part} is an option and holds options.")
        place[last] = np.asarray(group.attrs.get(name)).tolist()
    return options


def _recognizes(files: Sequence[Path]) -> bool:
    main = _main_file(files)
    return main.with_name(METADATA_FILE).is_file() and look_inside([main], lambda file: has_child(file, "episode_0"))


def _write(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `ID/data`, which `MINARI_DATASETS_PATH` and `minari.load_dataset(ID)` open."""
    manifest = dataset.manifest
    metadata = metadata_of(manifest, dataset.observation_space, dataset.action_space)
    data = folder / dataset_id(manifest.name) / "data"
    data.mkdir(parents=True)
    done = 0
    with create_hdf5(data / MAIN_FILE, progress, track_order=True) as (file, progress):
        for number, episode in enumerate(dataset):
            group = file.create_group(f"episode_{number}")
            _write_episode(group, episode, number)
            done += len(episode.rewards)
            progress(done, dataset.total_steps)
    totals = {"total_episodes": dataset.total_episodes, "total_steps": dataset.total_steps}
    size = {"dataset_size": round((data / MAIN_FILE).stat().st_size / 10**6, 1)}
    (data / METADATA_FILE).write_text(json.dumps({**metadata, **totals, **size}), "utf-8")


def _write_episode(group: Any, episode: Episode, number: int) -> None:
    group.attrs["id"] = number
    group.attrs["total_steps"] = len(episode.rewards)
    if episode.seed is not None:
        group.attrs["seed"] = episode.seed
    _write_values(group, "observations", episode.observations)
    _write_values(group, "actions", episode.actions)
    for name in ("rewards", *FLAGS):
        _write_values(group, name, getattr(episode, name))
    for name, values in episode.infos.items():
        first = episode.metadata.get(f"reset_info/{name}")
        if first is not None:
            is_list = isinstance(values, list)
            values = [first, *values] if is_list else np.concatenate(([first], values))
        _write_values(group, f"infos/{name}", values)
    for name, value in episode.metadata.items():
        if name == "options":
            _write_options(group, options_from_text(value) or {}, "options")
        elif not name.startswith("reset_info/"):
            group.attrs[name] = value


def _write_options(group: Any, options: Mapping[str, Any], path: str) -> None:
    for name, value in options.items():
        if isinstance(value, dict):
            _write_options(group, value, f"{path}/{name}")
        else:
            group.attrs[f"{path}/{name}"] = value


def _write_values(group: Any, path: str, values: Columns) -> None:
    if isinstance(values, dict):
        for key, part in values.items():
            _write_values(group, f"{path}/{key}", part)
    elif isinstance(values, tuple):
        for number, part in enumerate(values):
            _write_values(group, f"{path}/_index_{number}", part)
    elif isinstance(values, list):
        text = import_h5py().string_dtype("utf-8")
        group.create_dataset(path, data=values, dtype=text, chunks=True)
    else:
        shape = (None, *values.shape[1:])
        group.create_dataset(path, data=values, maxshape=shape, fletcher32=True)


def _losses(dataset: Dataset) -> list[str]:
    """Say what Minari's files cannot hold."""
    manifest = dataset.manifest
    metadata = metadata_of(manifest, dataset.observation_space, dataset.action_space)
    arrays = [
        name
        for name, kind in dataset.schema.variable.items()
        if kind == "array" and name.startswith(("infos/", "episodes/"))
    ]
    if arrays:
        raise SchemaError(
            f"{dataset.name}: Minari holds no arrays of any length, as in {', '.join(arrays)}; "
            "export a view without them: select_columns."
        )
    if manifest.environment is not None and "env_spec" not in metadata:
        lost = manifest.environment.id
        hint = "--import MODULE registers one of your own"
        return [f"The environment {lost} is left out, since it is not registered here; {hint}."]
    return []


HDF5 = Format(
    name="minari-hdf5",
    open=_open,
    recognizes=_recognizes,
    extensions=("", ".hdf5", ".h5", ".json"),
    options=("partial",),
    write=_write,
    losses=_losses,
    check=lambda: import_h5py(),
    reads=READS,
)

FORMATS = {"minari": HDF5, "minari_arrow": arrow.FORMAT}
