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
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Columns, Episode, options_from_text
from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._shared.episodes import Asked, Opened, Steps
from orlog.datasets.formats._shared.flags import flags_of
from orlog.datasets.formats._shared.flat_rows import as_dtype
from orlog.datasets.formats._shared.hdf5_files import (
    attribute,
    check_stored,
    child,
    create_hdf5,
    datasets_in,
    has_child,
    look_inside,
    open_hdf5,
    reading,
)
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.pieces import read_steps
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.minari.metadata import (
    METADATA_FILE,
    READS,
    Metadata,
    dataset_id,
    decoded_frames,
    find_data,
    is_jpeg,
    metadata_of,
    numbers_here,
    read_metadata,
    row_bytes,
    same_numbers,
)
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.spaces import map_leaves

MAIN_FILE = "main_data.hdf5"
LAYOUT = "Minari's layout"
BLOCK_BYTES = 2**24
FLAGS = ("terminations", "truncations")
KNOWN = ("id", "total_steps", "seed")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    main, where = _main_file(asked.files), asked.sources[0]
    metadata, notes = read_metadata(main.with_name(METADATA_FILE), where), list[Any]()
    with open_hdf5(main, where, texts=True) as file, reading(where):
        count = metadata.total_episodes
        here = [number for number in range(count) if has_child(file, f"episode_{number}")]
        numbers = numbers_here(here, len(file), count, where, asked.options, notes)
        is_whole = not notes
        reader = _reader(file, main, where, metadata, numbers, notes)
    yield Opened(
        schema=reader.schema,
        steps=_counted(
            read_steps(asked, reader.read, numbers, notes),
            metadata.total_steps if is_whole else None,
            where,
        ),
        total_steps=metadata.total_steps,
        environment=metadata.environment,
        description=metadata.description,
        behavior_policy=metadata.behavior_policy,
        notes=notes,
    )


def _main_file(files: Sequence[Path]) -> Path:
    """Return the HDF5 file among files, or in a folder of Minari's layout."""
    if files[0].is_dir():
        return find_data(files[0]) / MAIN_FILE
    return next((file for file in files if file.suffix != ".json"), files[0])


def _counted(steps: Iterator[Steps], total: int | None, where: str) -> Iterator[Steps]:
    """Yield steps, and compare how many there are with what is said; None if that is not known."""
    done = 0
    for part in steps:
        done += len(part.rewards)
        yield part
    if total not in (None, done):
        raise IntegrityError(
            f"{where}: metadata.json says total_steps {total:,}, and the episodes hold {done:,}."
        )


def _reader(
    file: Any, main: Path, where: str, metadata: Metadata, numbers: Sequence[int], notes: list[Any]
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
    names = sorted(kept), sorted(set.intersection(*details))
    return _Reader(schema, where, main, *names, has_options)


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads episodes that all have the same columns, in whatever process.

    Attributes:
        schema: Spaces.
        where: What errors call the file.
        file: The file.
        infos: Infos of each step.
        details: Attributes of each episode that people added.
        has_options: Whether resets have options.
    """

    schema: Schema
    where: str
    file: Path
    infos: Sequence[str]
    details: Sequence[str]
    has_options: bool

    def read(self, numbers: Iterable[int]) -> Iterator[Steps | Note]:
        """Yield the steps of some episodes, in pieces, and what is to be known of them.

        Raises SchemaError if what is in a group is not what the spaces and counts say; IntegrityError if HDF5
        cannot read it.
        """
        had_jpeg = False
        with open_hdf5(self.file, self.where, texts=True) as file:
            for number in numbers:
                with reading(self.where):
                    group = child(file, f"episode_{number}", self.where, LAYOUT)
                where = f"{self.where}, episode_{number}"
                with reading(where):
                    episode = _OpenEpisode(group, where, self)
                    yield from episode.steps()
                    had_jpeg |= episode.had_jpeg
        if had_jpeg:
            yield Note("had_jpeg")


class _OpenEpisode:
    """An episode's group, whose datasets are opened once: that takes as long as reading a short one.

    Attributes:
        had_jpeg: Whether frames were stored as JPEG.
    """

    def __init__(self, group: Any, where: str, reader: _Reader) -> None:
        """Compare the group with what it says of itself.

        Raises SchemaError or IntegrityError if it contradicts itself.
        """
        self._group, self._where, self._reader, self.had_jpeg = group, where, reader, False
        self._nodes = dict(datasets_in(group, where, LAYOUT))
        self._file_bytes = reader.file.stat().st_size
        self._rewards = self._column("rewards")
        self._count = count = len(self._rewards)
        if self._rewards.shape != (count,) or self._rewards.dtype.kind not in "biuf":
            raise SchemaError(
                f"{where}, rewards: expected one number a step, found {self._rewards.dtype} {self._rewards.shape}."
            )
        self._ended: list[bool] = []
        for name in FLAGS:
            values = flags_of(self._column(name)[:], name, where)
            if values.shape != (count,) or values[:-1].any():
                raise SchemaError(
                    f"{where}, {name}: expected {count} flags, of which only the last one may be true."
                )
            self._ended.append(bool(values[-1]))
        stated = attribute(group, "total_steps", count)
        if int(stated) != count:
            raise IntegrityError(
                f"{where}: total_steps says {int(stated)}, and rewards holds {count}."
            )
        self._infos = {name: self._column(f"infos/{name}") for name in reader.infos}
        for name, column in self._infos.items():
            if len(column) not in (count, count + 1):
                raise SchemaError(
                    f"{where}, infos/{name}: expected {count} rows, or one more with the reset's, "
                    f"found {len(column)}."
                )

    def steps(self) -> Iterator[Steps]:
        """Yield the steps, at most `BLOCK_BYTES` at once."""
        schema, count = self._reader.schema, self._count
        stored = sum(int(node.id.get_storage_size()) for node in self._nodes.values())
        frames = row_bytes(schema.observation_space) + row_bytes(schema.action_space)
        block = int(max(1, BLOCK_BYTES // max(1, stored // max(count, 1), frames)))
        for start in range(0, count, block):
            stop = min(count, start + block)
            after = slice(start + (start > 0), stop + 1)
            rewards = self._rewards[start:stop]
            place = f"{self._where}, rewards"
            piece = Steps(
                observations=self._values(
                    schema.observation_space, "observations", after, count + 1
                ),
                actions=self._values(schema.action_space, "actions", slice(start, stop), count),
                rewards=as_dtype(rewards, schema.reward_dtype, place, start),
                ends=False,
                infos={
                    name: _decoded(column[start + more : stop + more])
                    for name, column in self._infos.items()
                    for more in [len(column) - count]
                },
            )
            if stop == count:
                piece = dataclasses.replace(
                    piece,
                    ends=True,
                    terminated=self._ended[0],
                    truncated=self._ended[1],
                    seed=self._seed(),
                    metadata=self._metadata(),
                )
            yield piece

    def _metadata(self) -> dict[str, Any]:
        """Return the values of the episode, sorted by name."""
        metadata = {name: self._detail(name) for name in self._reader.details}
        if self._reader.has_options:
            metadata["options"] = json.dumps(self._options(), sort_keys=True)
        metadata |= {
            f"reset_info/{name}": _decoded(column[:1])[0]
            for name, column in self._infos.items()
            if len(column) > self._count
        }
        return {name: metadata[name] for name in sorted(metadata)}

    def _detail(self, name: str) -> Any:
        """Return an attribute as a number, an array or a text."""
        value = attribute(self._group, name)
        if isinstance(value, bytes | str):
            return value if isinstance(value, str) else value.decode()
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise SchemaError(
                f"{self._where}, {name}: expected a number or a text, found {array.dtype}."
            )
        return array[()] if array.shape == () else array

    def _options(self) -> dict[str, Any]:
        """Return the options of the reset, nested as they were."""
        options: dict[str, Any] = {}
        for name in self._group.attrs:
            if not name.startswith("options/"):
                continue
            place = options
            *path, last = name.split("/")[1:]
            for part in path:
                place = place.setdefault(part, {})
                if not isinstance(place, dict):
                    raise SchemaError(
                        f"{self._where}, {name}: {part} is an option and holds options."
                    )
            place[last] = np.asarray(attribute(self._group, name)).tolist()
        return options

    def _seed(self) -> int | None:
        seed = attribute(self._group, "seed")
        if seed is not None and np.asarray(seed).dtype.kind not in "iu":
            raise SchemaError(
                f"{self._where}: expected a seed that is an integer, found {seed!r:.50}."
            )
        return None if seed is None else int(seed)

    def _column(self, path: str) -> Any:
        """Return one of the datasets, checked."""
        node, where = self._nodes.get(path), f"{self._where}, {path}"
        if node is None:
            raise SchemaError(f"{self._where}: has no {path}, so it does not have {LAYOUT}.")
        if not node.shape:
            raise SchemaError(f"{where}: expected one row for each step.")
        if node.dtype.kind not in "biufSO" or node.dtype.subdtype is not None:
            raise SchemaError(f"{where}: expected numbers or texts, found {node.dtype}.")
        check_stored(node, where, self._file_bytes)
        return node

    def _values(self, space: Any, path: str, rows: slice, expected: int) -> Columns:
        """Return rows of the values of a space; its columns have as many as `expected`."""

        def values(keys: tuple[str | int, ...], leaf: Any) -> Columns:
            parts = [key if isinstance(key, str) else f"_index_{key}" for key in keys]
            return self._leaf(leaf, "/".join((path, *parts)), rows, expected)

        return map_leaves(space, values)

    def _leaf(self, space: Any, path: str, rows: slice, expected: int) -> Columns:
        column, where = self._column(path), f"{self._where}, {path}"
        if len(column) != expected:
            raise SchemaError(f"{where}: expected {expected} rows, found {len(column)}.")
        values = column[rows]
        if isinstance(space, spaces.Text):
            return _decoded(values)
        if isinstance(space, spaces.Box) and is_jpeg(space, values):
            self.had_jpeg = True
            return decoded_frames(values, space.shape, where)
        if values.dtype.kind == "O" or not same_numbers(values, space.dtype):
            raise SchemaError(f"{where}: expected {space.dtype}, found {values.dtype}.")
        values = as_dtype(values, space.dtype, where, rows.start)
        return values.reshape(len(values), *(space.shape or ()))


def _info_names(group: Any, where: str) -> list[str]:
    """Return the paths of all infos of an episode."""
    if not has_child(group, "infos"):
        return []
    infos = child(group, "infos", where, LAYOUT)
    nodes = datasets_in(infos, f"{where}, infos", LAYOUT)
    return [path for path, node in nodes if node.shape]


def _is_known(name: str) -> bool:
    return name in KNOWN or name.startswith(("options/", "reset_info/"))


def _decoded(values: np.ndarray) -> Any:
    """Return rows, texts as a list of them."""
    if values.dtype.kind in "OS":
        return [text.decode("utf-8") if isinstance(text, bytes) else str(text) for text in values]
    return values


def _recognizes(files: Sequence[Path]) -> bool:
    main = _main_file(files)
    return main.with_name(METADATA_FILE).is_file() and look_inside(
        [main], lambda file: has_child(file, "episode_0")
    )


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
    """Say what Minari's files cannot hold.

    Raises SchemaError if Minari has no form for a space.
    """
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


FORMAT = Format(
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
