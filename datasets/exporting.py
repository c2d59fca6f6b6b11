"""Writes datasets in the formats of other tools."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from gymnasium import spaces

from orlog.base.files import absolute_path, new_folder, put_new, sync_folders
from orlog.datasets.columns.episode import Episode
from orlog.datasets.formats.formats import Format, formats, own_format
from orlog.datasets.formats.safe_reading import write_sums
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given, as_dataset
from orlog.errors import FormatVersionError, SchemaError, VersionExistsError
from orlog.manifests.names import did_you_mean

RATE_IN = "infos/timestamp"


def export_dataset(
    dataset: Given,
    folder: str | os.PathLike[str],
    *,
    to: str,
    lossy: bool = False,
    observation: str = "",
    video: bool = False,
    rate: float | None = None,
    codebase: str = "",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    on_losses: Callable[[Sequence[str]], None] = lambda _losses: None,
) -> Path:
    """Write a dataset or a view in the format of another tool into a new folder; return the folder.

    `SHA256SUMS` lists the SHA-256 of each file. An interruption leaves nothing under `folder`.

    Args:
        dataset: What to write.
        folder: The new folder, which must not exist.
        to: Name of the format, such as `minari` (`orlog import --list` lists them), or the path of a file of
            your own that declares one.
        lossy: Whether to leave out what the format cannot hold, such as final observations in D4RL's.
        observation: The one part of a Dict of observations to write, such as `state`, or `cameras/top` of a
            Dict in it; without, all are written, and a Dict of one part alone goes to formats that hold
            no Dict as that part.
        video: For LeRobotDatasets: encode frames as videos, which changes them; without, they are images, and videos
            that the version keeps are copied.
        rate: For LeRobotDatasets: steps a second, where no timestamps tell it.
        codebase: For LeRobotDatasets: the version to write, `v3.0` (the default) or `v2.1`, which many tools
            still read.
        progress: Called with steps done and in all.
        on_losses: Called with what the format cannot hold, a sentence each, before anything is
            written; not called where nothing is lost.

    Raises:
        FormatVersionError: there is no such format, or orlog only reads it.
        SchemaError: the format cannot hold the dataset, or would lose some of it and `lossy` is false.
        VersionExistsError: `folder` exists.
        MissingExtraError: a package that writes the format is not installed.
        StorageError: the disk is full.
    """
    dataset = as_dataset(dataset)
    writable = writable_formats()
    layout = writable.get(to) or own_format(to)
    if layout is None or layout.write is None:
        raise FormatVersionError(
            f"{dataset.name}: orlog writes no format {to!r}{did_you_mean(to, writable)}; it writes "
            f"{', '.join(writable)}, or what a file of yours declares."
        )
    layout.check()
    given = {"video": video or None, "rate": rate, "codebase": codebase or None}
    options = {name: value for name, value in given.items() if value is not None}
    for name in options.keys() - {*layout.write_options}:
        raise SchemaError(f"{dataset.name}: {to} is written without --{name}; leave it out.")
    if observation:
        dataset = part_alone(dataset, observation)
    dataset, losses, notes = _losses(layout, dataset)
    if video:
        notes.append(
            "Frames are encoded as videos, which changes them. Final observations, seeds and columns of episodes, which "
            "LeRobot has no place for, are left out with them."
        )
    elif "video" in layout.write_options and dataset.videos:
        cut = ", or cut out at key frames, since each episode has a file of its own" if codebase == "v2.1" else ""
        notes.append(
            f"Videos are copied as they are{cut}; video=True encodes them again. Final observations, seeds and columns of "
            "episodes, which LeRobot has no place for, are left out with them."
        )
    if "rate" in layout.write_options and rate is None and RATE_IN not in dataset.schema.extras:
        notes.append(f"Nothing tells how many steps a second has, no {RATE_IN}: 1 was written; rate=HZ says it.")
    if losses or notes:
        on_losses([*notes, *losses])
    if losses and not lossy:
        raise SchemaError(
            f"{dataset.name}: {to} cannot hold all of it: {' '.join(losses)} Give lossy=True to leave that out."
        )
    target = absolute_path(os.fspath(folder))
    _refuse_existing(target)
    with new_folder(target) as written:
        _refuse_existing(target)
        layout.write(dataset, written, progress, **options)
        write_sums(written)
        sync_folders(written)
        put_new(written, target)
    return target


def writable_formats() -> dict[str, Format]:
    """Return the formats that orlog writes by name, in the order of their names."""
    return {name: known for name, known in sorted(formats().items()) if known.write is not None}


def _losses(layout: Format, dataset: Dataset) -> tuple[Dataset, list[str], list[str]]:
    """Return what to write, the losses, and a note where a format that holds no Dict gets the only part of one."""
    try:
        return dataset, layout.losses(_without_empty_columns(dataset)), []
    except SchemaError as error:
        parts = dataset.observation_space
        if not isinstance(parts, spaces.Dict):
            raise
        if len(parts) > 1:
            raise SchemaError(f"{error} observation=KEY writes one part alone: {', '.join(parts)}.") from error
        (part,) = parts
        dataset = part_alone(dataset, part)
        note = f"The only part of the observations, {part}, is written as the whole of them."
        return dataset, layout.losses(_without_empty_columns(dataset)), [note]


class _PartAlone:
    """A dataset whose observations are one part of its Dict; all else is the dataset's own."""

    def __init__(self, dataset: Dataset, keys: Sequence[str]) -> None:
        space: Any = dataset.observation_space
        for key in keys:
            space = space[key]
        self._dataset, self._keys, self.observation_space = dataset, keys, space
        self.schema = dataclasses.replace(dataset.schema, observation_space=space)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[Episode]:
        for episode in self._dataset:
            values: Any = episode.observations
            for key in self._keys:
                values = values[key]
            yield dataclasses.replace(episode, observations=values)

    def select_columns(self, names: Sequence[str]) -> _PartAlone:
        """Return the dataset with fewer columns, and the same part."""
        return _PartAlone(self._dataset.select_columns(names), self._keys)


def part_alone(dataset: Dataset, part: str) -> Dataset:
    """Return a dataset as writers read it, whose observations are one part of its Dict."""
    keys, space = [], dataset.observation_space
    left = part
    while left:
        known = list(space) if isinstance(space, spaces.Dict) else []
        key = next((key for key in known if left == key or left.startswith(f"{key}/")), None)
        if key is None or not isinstance(space, spaces.Dict):
            instead = did_you_mean(left, known) or f"; they are {space}."
            raise SchemaError(f"{dataset.name}: observation={part!r}: the observations have no such part{instead}")
        keys.append(key)
        space, left = space[key], left[len(key) + 1 :]
    return cast("Dataset", _PartAlone(dataset, keys))


def _without_empty_columns(dataset: Dataset) -> Dataset:
    """Return a view without columns of episodes that say nothing: no text, no value, or never true."""
    schema = dataset.schema

    def says_nothing(name: str) -> bool:
        if not name.startswith("episodes/"):
            return False
        if name in schema.variable:
            return not dataset.column(f"{name}@offsets").any()
        return schema.extras[name].dtype == bool and not dataset.column(name).any()

    kept = [name for name in schema.extras if not says_nothing(name)]
    return dataset.select_columns(["observations", *kept])


def _refuse_existing(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise VersionExistsError(f"{target}: exists already; nothing was written. Give a new folder.")
