"""`Dataset`: one version of a dataset, opened for reading; and `load_dataset`, which finds it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.build import build_dataset, builds
from orlog.datasets.catalogue import CATALOGUE
from orlog.datasets.episode import Columns, Episode
from orlog.datasets.home import datasets_folder, installed_names, installed_versions
from orlog.datasets.manifest import MANIFEST_FILE, Manifest, read_manifest
from orlog.datasets.names import DatasetName, nearest, parse_name
from orlog.datasets.store import Store
from orlog.datasets.verify import check_object, check_place
from orlog.datasets.writing import column_specs
from orlog.errors import IntegrityError, ManifestError, NotFoundError

__all__ = ["Dataset", "find_dataset", "load_dataset"]

LARGEST_METADATA = 2**20


class Dataset:
    """One version of a dataset, opened for reading. `load_dataset` makes it.

    Opening checks the manifest's digest, the size of every object, the bytes of all metadata, and
    that columns, spaces and totals agree. Rows are checked chunk by chunk as they are read;
    `orlog verify` re-checks every byte.

    Attributes:
        folder: Where it lies.
        manifest: Everything known about it.
        digest: `sha256:..` of the manifest: the identity of this version.
        observation_space: Gymnasium space of observations.
        action_space: Gymnasium space of actions.
    """

    def __init__(self, folder: Path) -> None:
        """Open the store in `folder`.

        Raises:
            IntegrityError: an object is missing, cut or altered, or columns do not agree.
            FormatVersionError: it was written by a newer orlog.
        """
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder / MANIFEST_FILE)
        self.digest = self.manifest.digest
        self.observation_space, self.action_space = self.manifest.spaces
        self._store = Store(folder, self.manifest.columns, self.manifest.objects)
        _check_objects(folder, self.manifest)
        self._check_columns()

    def __repr__(self) -> str:
        """Return name, version, totals and the start of the digest."""
        return (
            f"Dataset({self.name}@{self.version}, {self.total_episodes:,} episodes, "
            f"{self.total_steps:,} steps, {self.digest[:19]})"
        )

    @property
    def name(self) -> str:
        """Name without version."""
        return self.manifest.name

    @property
    def version(self) -> str:
        """Content version."""
        return self.manifest.version

    @property
    def total_episodes(self) -> int:
        """Number of episodes E."""
        return self.manifest.total_episodes

    @property
    def total_steps(self) -> int:
        """Number of steps S."""
        return self.manifest.total_steps

    @property
    def columns(self) -> list[str]:
        """Names of all columns, sorted."""
        return [column.name for column in self.manifest.columns]

    @functools.cached_property
    def episode_lengths(self) -> np.ndarray:
        """Steps of each episode, (E,) int64."""
        lengths = self._store.read("episodes/lengths")
        lengths.flags.writeable = False
        return lengths

    @functools.cached_property
    def episode_starts(self) -> np.ndarray:
        """First step of each episode, (E,) int64. Its first observation is row start + index."""
        lengths = self.episode_lengths
        starts: np.ndarray = lengths.cumsum() - lengths
        starts.flags.writeable = False
        return starts

    def column(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column, all by default.

        Raises:
            NotFoundError: there is no such column.
            IntegrityError: an object is damaged.
        """
        if name not in self.columns:
            close = nearest(name, self.columns)
            raise NotFoundError(
                f"{self.name}: no column {name!r}"
                + (f"; did you mean {' or '.join(close)}?" if close else "")
                + f" It has: {', '.join(self.columns)}"
            )
        return self._store.read(name, start, stop)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self.total_episodes

    def __getitem__(self, index: int) -> Episode:
        """Return one episode; negative indices count from the end.

        Raises:
            IndexError: there is no such episode.
            IntegrityError: an object is damaged.
        """
        if not -self.total_episodes <= index < self.total_episodes:
            raise IndexError(f"{self.name}: episode {index} of {self.total_episodes}")
        index %= self.total_episodes
        start = int(self.episode_starts[index])
        stop = start + int(self.episode_lengths[index])
        first, last = start + index, stop + index + 1
        seed = int(self._store.read("episodes/seeds", index, index + 1)[0])
        return Episode(
            observations=self._read_space(self.observation_space, "observations", first, last),
            actions=self._read_space(self.action_space, "actions", start, stop),
            rewards=self._store.read("rewards", start, stop),
            terminations=self._store.read("terminations", start, stop),
            truncations=self._store.read("truncations", start, stop),
            infos={
                name.removeprefix("infos/"): self._store.read(name, start, stop)
                for name in self.columns
                if name.startswith("infos/")
            },
            seed=None if seed < 0 else seed,
        )

    def __iter__(self) -> Iterator[Episode]:
        """Yield every episode in order."""
        for index in range(self.total_episodes):
            yield self[index]

    def _read_space(self, space: gymnasium.Space[Any], path: str, start: int, stop: int) -> Columns:
        if isinstance(space, spaces.Dict):
            keyed = sorted(space.items())
        elif isinstance(space, spaces.Tuple):
            keyed = [(str(index), value) for index, value in enumerate(space)]
        else:
            return self._store.read(path, start, stop)
        return {key: self._read_space(value, f"{path}/{key}", start, stop) for key, value in keyed}

    def _check_columns(self) -> None:
        """Compare the columns with the spaces and totals, and the lengths with the steps."""
        manifest = self.manifest
        infos = {
            column.name.removeprefix("infos/"): (np.dtype(column.dtype), tuple(column.shape))
            for column in manifest.columns
            if column.name.startswith("infos/")
        }
        specs = column_specs(self.observation_space, self.action_space, infos)
        rows = {
            "step": manifest.total_steps,
            "observation": manifest.total_steps + manifest.total_episodes,
            "episode": manifest.total_episodes,
        }
        expected = {spec.name: (spec.dtype.name, spec.shape, rows[spec.axis]) for spec in specs}
        found = {
            column.name: (column.dtype, tuple(column.shape), column.rows)
            for column in manifest.columns
        }
        for name in sorted({*expected, *found}):
            # Columns that authors add to steps or episodes have no space to agree with.
            if name not in expected and name.startswith("episodes/"):
                expected[name] = (found[name][0], found[name][1], rows["episode"])
            if expected.get(name) != found.get(name):
                raise ManifestError(
                    f"{self.folder}: column {name}: spaces and totals ask for "
                    f"{expected.get(name, 'no such column')}, the manifest lists "
                    f"{found.get(name, 'no such column')}",
                    file=MANIFEST_FILE,
                    expected=str(expected.get(name)),
                    found=str(found.get(name)),
                )
        lengths = self.episode_lengths
        if (lengths < 1).any() or int(lengths.sum()) != manifest.total_steps:
            raise IntegrityError(
                f"{self.folder}: column episodes/lengths: expected at least one step in each "
                f"episode and {manifest.total_steps} in all, found {int(lengths.sum())}",
                file="episodes/lengths",
                expected=str(manifest.total_steps),
                found=str(int(lengths.sum())),
            )


def load_dataset(
    name: str | Path,
    *,
    build: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Dataset:
    """Return a dataset of this machine by name, by name and version or digest, or by folder.

    Args:
        name: `pointmaze/umaze-v1`, `pointmaze/umaze-v1@1.0.0`, `pointmaze/umaze-v1@sha256:ab12..`,
            or a folder as a `Path` or as text that starts with `/`, `.` or `~`. Without a version
            it is the newest that is here.
        build: Build it from its recipe first if it is not here yet (a minute or two in one process;
            `orlog build NAME` uses all cores).
        progress: Called with steps done and steps in all while it builds.

    Raises:
        InvalidNameError: the name does not follow the grammar.
        NotFoundError: it is not here; the message says what to run.
        IntegrityError: an object is missing, cut or altered.
    """
    try:
        return Dataset(find_dataset(name))
    except NotFoundError:
        if not build or as_folder(name) is not None or parse_name(str(name)).name not in CATALOGUE:
            raise
    return Dataset(build_dataset(str(name), progress=progress))


def as_folder(name: str | Path) -> Path | None:
    """Return the folder that is meant, or None where a dataset's name is."""
    if isinstance(name, Path) or name.startswith(("/", ".", "~")):
        return Path(name).expanduser().absolute()
    return None


def _holds_manifest(folder: Path) -> bool:
    try:
        return (folder / MANIFEST_FILE).exists()
    except OSError:  # a path too long for any file
        return False


def find_dataset(name: str | Path) -> Path:
    """Return the folder of a dataset that is on this machine.

    Raises:
        InvalidNameError: the name does not follow the grammar.
        NotFoundError: it is not here; the message says what to run.
    """
    folder = as_folder(name)
    if folder is not None:
        if not _holds_manifest(folder):
            raise NotFoundError(f"{folder}: no dataset: there is no {MANIFEST_FILE} in it")
        return folder
    wanted = parse_name(str(name))
    versions = installed_versions(wanted.name)
    for version in versions:
        folder = datasets_folder() / wanted.name / version
        if wanted.version not in ("", version):
            continue
        manifest = read_manifest(folder / MANIFEST_FILE)
        if (manifest.name, manifest.version) != (wanted.name, version):
            raise ManifestError(
                f"{folder}: expected {wanted.name}@{version}, found {manifest.name}@"
                f"{manifest.version}; move the folder away, then run: orlog build {wanted.name}",
                file=MANIFEST_FILE,
                expected=f"{wanted.name}@{version}",
                found=f"{manifest.name}@{manifest.version}",
            )
        if manifest.digest.startswith(wanted.digest):
            return folder
    raise NotFoundError(_why_not_here(wanted, versions))


def _why_not_here(wanted: DatasetName, versions: list[str]) -> str:
    entry = CATALOGUE.get(wanted.name)
    if versions:
        here = ", ".join(versions)
        return f"{wanted} is not on this machine; of {wanted.name} it has: {here}"
    if entry is not None and builds(wanted):
        return (
            f"{wanted} is not on this machine yet; run: orlog build {wanted}   "
            f'(or in Python: orlog.load_dataset("{wanted}", build=True))'
        )
    if entry is not None:
        return f"{wanted} is not known; the recipe of this orlog builds version {entry.version}"
    close = nearest(wanted.name, {*CATALOGUE, *installed_names()})
    return (
        f"{wanted.name} is not known"
        + (f"; did you mean {' or '.join(close)}?" if close else "")
        + " Run: orlog list"
    )


def _check_objects(folder: Path, manifest: Manifest) -> None:
    """Check that every object is there with its size, and the bytes of Zarr's metadata."""
    for item in manifest.objects:
        is_metadata = item.path.endswith("zarr.json")
        if is_metadata and item.size_bytes > LARGEST_METADATA:
            raise ManifestError(
                f"{folder}: {item.path}: expected at most {LARGEST_METADATA} bytes of metadata, "
                f"found {item.size_bytes}"
            )
        problem = check_object(folder, item) if is_metadata else check_place(folder, item)
        if problem is not None:
            raise IntegrityError(
                f"{folder}: {problem.file}: expected {problem.expected}, found {problem.found}; "
                f"run: orlog verify {folder}",
                file=problem.file,
                expected=problem.expected,
                found=problem.found,
            )
    paths = {item.path for item in manifest.objects}
    for column in manifest.columns:
        if f"{column.name}/zarr.json" not in paths:
            raise ManifestError(
                f"{folder}: column {column.name} has no metadata among the manifest's objects"
            )
