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
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Columns, Episode, options_from_text
from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._containers.hdf5_files import (
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
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats._shared.flags import flags_of
from orlog.datasets.formats._shared.flat_rows import as_dtype
from orlog.datasets.formats._shared.pieces import Span, jobs_of, read_steps
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.minari.frames import (
    HAD_JPEG,
    decoded_frames,
    is_jpeg,
    row_bytes,
    same_numbers,
)
from orlog.datasets.formats.minari.metadata import (
    METADATA_FILE,
    READS,
    dataset_id,
    find_data,
    metadata_of,
    numbers_here,
    read_metadata,
)
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.spaces import map_leaves

MAIN_FILE = "main_data.hdf5"
LAYOUT = "Minari's layout"
BLOCK_BYTES = 2**24
MOST_STEPS = 2**40  # of an episode
FLAGS = ("terminations", "truncations")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    main, where = _main_file(asked.files), asked.sources[0]
    metadata = read_metadata(main.with_name(METADATA_FILE), where)
    with open_hdf5(main, where, texts=True) as file:
        with reading(where):
            lacks: list[str] = []
            groups = _groups(file, where, metadata.total_episodes, asked.options, lacks)
            number, first = groups[0]
            rewards = child(first, "rewards", f"{where}, episode_{number}", LAYOUT)
            reward_dtype = getattr(rewards, "dtype", None)  # what is no dataset is refused below
        schema = Schema(
            observation_space=metadata.observation_space,
            action_space=metadata.action_space,
            reward_dtype=np.dtype(np.float32 if reward_dtype == np.float32 else np.float64),
        )
        opened = Opened(
            schema=schema,
            steps=iter(()),
            total_steps=metadata.total_steps,
            environment=metadata.environment,
            description=metadata.description,
            behavior_policy=metadata.behavior_policy,
        )
        opened.doubts += lacks
        reader = _Reader(schema, main, where, dict(groups))
        opened.steps = reader.steps(asked, opened.doubts, None if lacks else metadata.total_steps)
        yield opened


def _main_file(files: Sequence[Path]) -> Path:
    """Return the HDF5 file among files, or in a folder of Minari's layout."""
    if files[0].is_dir():
        return find_data(files[0]) / MAIN_FILE
    return next((file for file in files if file.suffix != ".json"), files[0])


def _groups(
    file: Any, where: str, count: int, options: Options, doubts: list[str]
) -> list[tuple[int, Any]]:
    """Return the number and the group of each episode, in their order."""
    has_one = [number for number in range(count) if has_child(file, f"episode_{number}")]
    numbers = numbers_here(has_one, len(file), count, where, options, doubts)
    return [(number, child(file, f"episode_{number}", where, LAYOUT)) for number in numbers]


class _Reader:
    """Reads episodes whose columns are those of the first one."""

    def __init__(self, schema: Schema, file: Path, where: str, groups: dict[int, Any]) -> None:
        self.schema, self.where, self.file_bytes = schema, where, file.stat().st_size
        self._file, self._groups = file, groups
        self._infos: list[str] = []
        self._details: list[str] = []
        self._has_options = self._had_jpeg = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is open in this process."""
        return {**self.__dict__, "_groups": {}}

    def steps(self, asked: Asked, doubts: list[str], total_steps: int | None) -> Iterator[Steps]:
        """Yield all steps, in pieces; None steps in all are not known.

        Raises SchemaError if what is in a group is not what the spaces and counts say; IntegrityError if HDF5
        cannot read it.
        """
        groups = self._groups.values()
        with reading(self.where):
            self._infos = _common([_info_names(group, self.where) for group in groups])
            self._details = _common([_detail_names(group) for group in groups])
            self._has_options = any(_options(group, self.where) for group in groups)
        dropped = sorted(
            {name for group in groups for name in _info_names(group, self.where)} - {*self._infos}
        )
        if dropped:
            doubts.append(f"Left out, not in all episodes: infos {', '.join(dropped)}.")
        size = row_bytes(self.schema.observation_space) + row_bytes(self.schema.action_space)
        counts = ((one, MOST_STEPS) for one in self._groups)
        if asked.sharing is not None:
            counts = ((one, self._count(one)) for one in self._groups)
        jobs = jobs_of(asked, counts, size)
        done = 0
        for part in read_steps(asked, self._read, jobs, doubts):
            done += len(part.rewards)
            yield part
        if total_steps not in (None, done):
            raise IntegrityError(
                f"{self.where}: metadata.json says total_steps {total_steps:,}, and the episodes hold "
                f"{done:,}.",
                file=self.where,
            )

    def _count(self, number: int) -> int:
        rewards = child(self._groups[number], "rewards", f"{self.where}, episode_{number}", LAYOUT)
        return max(
            1, *getattr(rewards, "shape", None) or (1,)
        )  # what is no dataset is refused later

    def _read(self, spans: Iterable[Span]) -> Iterator[Steps | str]:
        """Yield steps, and what is to be known of them; in a process that has not opened the file too."""
        with contextlib.ExitStack() as stack:
            if not self._groups:
                file = stack.enter_context(open_hdf5(self._file, self.where, texts=True))
                names = {one.of: f"episode_{one.of}" for one in spans}
                self._groups = {
                    number: child(file, name, self.where, LAYOUT) for number, name in names.items()
                }
            for span in spans:
                group, where = self._groups[span.of], f"{self.where}, episode_{span.of}"
                with reading(where):
                    metadata: dict[str, Any] = {
                        name: _plain(attribute(group, name, where), f"{where}, {name}")
                        for name in self._details
                    }
                    if self._has_options:
                        metadata["options"] = json.dumps(_options(group, where), sort_keys=True)
                    yield from self._episode(group, where, metadata, span)
        if self._had_jpeg:
            yield HAD_JPEG

    def _episode(
        self, group: Any, where: str, metadata: dict[str, Any], span: Span
    ) -> Iterator[Steps]:
        # Opening a dataset takes as long as reading a short one, so each is opened once.
        nodes = dict(datasets_in(group, where, LAYOUT))
        rewards = self._rows(nodes, "rewards", where)
        count = len(rewards)
        flags = {name: flags_of(self._rows(nodes, name, where)[:], name, where) for name in FLAGS}
        if rewards.shape != (count,) or rewards.dtype.kind not in "biuf":
            raise SchemaError(
                f"{where}, rewards: expected one number a step, found {rewards.dtype} {rewards.shape}."
            )
        for name, values in flags.items():
            if values.shape != (count,) or values[:-1].any():
                raise SchemaError(
                    f"{where}, {name}: expected {count} flags, of which only the last one may be true."
                )
        said = attribute(group, "total_steps", where, count)
        if int(said) != count:
            raise IntegrityError(
                f"{where}: total_steps says {int(said)}, and rewards holds {count}.",
                file=self.where,
            )
        columns = {name: self._rows(nodes, f"infos/{name}", where) for name in self._infos}
        for name, column in columns.items():
            if len(column) not in (count, count + 1):
                raise SchemaError(
                    f"{where}, infos/{name}: expected {count} rows, or one more with the reset's, "
                    f"found {len(column)}."
                )
        first = {name: len(column) - count for name, column in columns.items()}
        metadata |= {
            f"reset_info/{name}": _decoded(columns[name][:1])[0]
            for name, more in first.items()
            if more
        }
        metadata = {name: metadata[name] for name in sorted(metadata)}
        block = self._block_rows(nodes, count)
        for start in range(span.start, min(count, span.stop), block):
            stop = min(count, span.stop, start + block)
            is_last = stop == count
            yield Steps(
                observations=self._space(
                    self.schema.observation_space,
                    nodes,
                    "observations",
                    where,
                    slice(start + (start > 0), stop + 1),
                    count + 1,
                ),
                actions=self._space(
                    self.schema.action_space, nodes, "actions", where, slice(start, stop), count
                ),
                rewards=as_dtype(
                    rewards[start:stop], self.schema.reward_dtype, f"{where}, rewards", start
                ),
                ends=is_last,
                terminated=is_last and bool(flags["terminations"][-1]),
                truncated=is_last and bool(flags["truncations"][-1]),
                infos={
                    name: _decoded(column[start + first[name] : stop + first[name]])
                    for name, column in columns.items()
                },
                seed=_seed(group, where) if is_last else None,
                metadata=metadata if is_last else {},
            )

    def _block_rows(self, nodes: dict[str, Any], count: int) -> int:
        """Return how many rows to read at once, so that memory is bounded."""
        total = sum(int(node.id.get_storage_size()) for node in nodes.values())
        frames = row_bytes(self.schema.observation_space) + row_bytes(self.schema.action_space)
        return int(max(1, BLOCK_BYTES // max(1, total // max(count, 1), frames)))

    def _rows(self, nodes: dict[str, Any], path: str, where: str) -> Any:
        """Return one of an episode's datasets, checked."""
        node = nodes.get(path)
        if node is None:
            raise SchemaError(f"{where}: has no {path}, so it does not have {LAYOUT}.")
        if not node.shape:
            raise SchemaError(f"{where}, {path}: expected one row for each step.")
        if node.dtype.kind not in "biufSO" or node.dtype.subdtype is not None:
            raise SchemaError(f"{where}, {path}: expected numbers or texts, found {node.dtype}.")
        check_stored(node, f"{where}, {path}", self.file_bytes)
        return node

    def _space(
        self, space: Any, nodes: dict[str, Any], path: str, where: str, rows: slice, expected: int
    ) -> Columns:
        """Return rows of the values of a space."""

        def values(keys: tuple[str | int, ...], leaf: Any) -> Columns:
            parts = [key if isinstance(key, str) else f"_index_{key}" for key in keys]
            return self._leaf(leaf, nodes, "/".join((path, *parts)), where, rows, expected)

        return map_leaves(space, values)

    def _leaf(
        self, space: Any, nodes: dict[str, Any], path: str, where: str, rows: slice, expected: int
    ) -> Columns:
        column = self._rows(nodes, path, where)
        if len(column) != expected:
            raise SchemaError(f"{where}, {path}: expected {expected} rows, found {len(column)}.")
        values = column[rows]
        if isinstance(space, spaces.Text):
            return _decoded(values)
        if isinstance(space, spaces.Box) and is_jpeg(space, values):
            self._had_jpeg = True
            return decoded_frames(values, space.shape, f"{where}, {path}")
        shape, dtype = space.shape or (), space.dtype
        if values.dtype.kind == "O" or not same_numbers(values, dtype):
            raise SchemaError(f"{where}, {path}: expected {dtype}, found {values.dtype}.")
        values = as_dtype(values, dtype, f"{where}, {path}", rows.start)
        return values.reshape(len(values), *shape)


def _info_names(group: Any, where: str) -> list[str]:
    """Return the paths of all infos of an episode."""
    if not has_child(group, "infos"):
        return []
    infos = child(group, "infos", where, LAYOUT)
    found = dict(datasets_in(infos, f"{where}, infos", LAYOUT))
    return [path for path, node in found.items() if node.shape]


def _detail_names(group: Any) -> list[str]:
    """Return the names of attributes that people added to an episode."""
    known = {"id", "total_steps", "seed"}
    taken = ("options/", "reset_info/")
    return sorted(name for name in group.attrs if name not in known and not name.startswith(taken))


def _common(names: list[list[str]]) -> list[str]:
    return sorted(set.intersection(*map(set, names)))


def _options(group: Any, where: str) -> dict[str, Any]:
    """Return the options of an episode's reset, nested as they were."""
    found: dict[str, Any] = {}
    for name in group.attrs:
        path = name.split("/")
        if path[0] != "options" or len(path) < 2:
            continue
        place = found
        for part in path[1:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise SchemaError(f"{where}, {name}: {part} is an option and holds options.")
        place[path[-1]] = np.asarray(attribute(group, name, where)).tolist()
    return found


def _plain(value: Any, where: str) -> Any:
    """Return an attribute as a number, an array or a text."""
    if isinstance(value, bytes | str):
        return value if isinstance(value, str) else value.decode()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise SchemaError(f"{where}: expected a number or a text, found {array.dtype}.")
    return array[()] if array.shape == () else array


def _seed(group: Any, where: str) -> int | None:
    seed = attribute(group, "seed", where)
    if seed is None:
        return None
    if np.asarray(seed).dtype.kind not in "iu":
        raise SchemaError(f"{where}: expected a seed that is an integer, found {seed!r:.50}.")
    return int(seed)


def _decoded(values: np.ndarray) -> Any:
    """Return rows, texts as a list of them."""
    if values.dtype.kind in "OS":
        return [one.decode("utf-8") if isinstance(one, bytes) else str(one) for one in values]
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
    for name in ("rewards", "terminations", "truncations"):
        group.create_dataset(name, data=getattr(episode, name), maxshape=(None,), fletcher32=True)
    for name, values in episode.infos.items():
        first = episode.metadata.get(f"reset_info/{name}")
        if first is not None:
            values = (
                [first, *values] if isinstance(values, list) else np.concatenate(([first], values))
            )
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
    h5py = import_h5py()
    if isinstance(values, dict):
        for key, part in values.items():
            _write_values(group, f"{path}/{key}", part)
    elif isinstance(values, tuple):
        for number, part in enumerate(values):
            _write_values(group, f"{path}/_index_{number}", part)
    elif isinstance(values, list):
        group.create_dataset(path, data=values, dtype=h5py.string_dtype("utf-8"), chunks=True)
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
    shares=True,
    write=_write,
    losses=_losses,
    check=lambda: import_h5py(),
    reads=READS,
)
