"""Imports third-party files of this machine as versions."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from orlog.base.files import absolute_path, hash_file, hash_of_sums, unfinished_folder
from orlog.base.jobs import Execute
from orlog.datasets.download.foreign import read_listed, reads_folder
from orlog.datasets.formats.bag_files import journals_of
from orlog.datasets.formats.episodes import Asked, Found, Options, Sharing
from orlog.datasets.formats.formats import Wanted, choose_format, only_file, read_version
from orlog.datasets.formats.notes import Note, noted_blanks
from orlog.datasets.formats.overrides import Bound, EnvironmentLike, GivenSpaces, of_environment
from orlog.datasets.formats.places import of_steps
from orlog.datasets.formats.safe_reading import check_sums
from orlog.datasets.home.consent import note_environment
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.records import check_unchanged, check_unused
from orlog.datasets.recording.finishing import finish_version, with_chunk_hashes
from orlog.errors import IntegrityError, InvalidNameError, NotFoundError
from orlog.manifests.index import ForeignEntry, ForeignFile
from orlog.manifests.manifest import Parent
from orlog.manifests.names import DatasetName, parse_name
from orlog.manifests.shipped import listed_versions, superseded

VIDEO = ("keep", "frames")


def import_dataset(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    name: str,
    *,
    format: str | None = None,  # noqa: A002 (the word of the command line and of registries)
    horizon: int | None = None,
    columns: Mapping[str, str] | None = None,
    episode: str = "",
    step: str = "",
    length: str = "",
    sort: bool = False,
    task: str = "",
    no_video: bool = False,
    video: str = "",
    partial: bool = False,
    rate: float | None = None,
    clock: str | Mapping[str, str] = "",
    resample: str | Mapping[str, str] = "",
    ends: str = "",
    reward: str = "",
    shift: Mapping[str, int] | None = None,
    flip: str | Sequence[str] = (),
    bgr: str | Sequence[str] = (),
    like: str = "",
    environment: EnvironmentLike | None = None,
    action_low: Bound = None,
    action_high: Bound = None,
    observation_low: Bound = None,
    observation_high: Bound = None,
    description: str = "",
    license: str = "",  # noqa: A002 (the word of the manifest)
    chunk_hashes: bool = False,
    dry_run: bool = False,
    execute: Execute | None = None,
    workers: int | None = 1,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    on_wait: Callable[[], None] = lambda: None,
    on_found: Callable[[Found], None] = lambda _found: None,
) -> Path:
    """Import third-party files of this machine as a new version, and return its folder.

    The files stay as they are. The lineage of the version holds the SHA-256 of each, or of a folder
    the SHA-256 of what `sha256sum` prints about its files in the order of their names.

    Files that ship with orlog's catalogue under this name become the version that a download of them
    gives. A file that its publisher has replaced under the same name is said to be one.

    Args:
        paths: The file, the files of one dataset in their order, or one folder. A folder that holds one file
            beside `SHA256SUMS`, as `export_dataset` writes it, is that file.
        name: Name of the dataset, or name and version (`lab/arm-v1@1.1.0`); by default 1.0.0, or the
            version that the catalogue lists these files under.
        format: Format of the files, such as `d4rl`, or the path of a file of your own that declares one
            (`./my_format.py`); by default the one that they look like.
        horizon: Steps after which the environment truncates an episode, for files that do not say
            where that happened; none may be longer.
        columns: For tables, and for HDF5 and npz files of any layout: names of their columns or arrays, or
            patterns such as `obs_*`, by `observation`, `action`, `reward`, `terminated`, `truncated` and
            `infos/NAME`. For HDF5 and Zarr also `episodes/NAME`: an attribute such as `@current_task`, a key of one
            that is JSON such as `@problem_info:language_instruction`, or an array with a row for each episode.
        episode: What an episode is: the column or array that tells them apart, an array of ends, `file` for a
            file each, `row` for a row each of arrays [episodes, time, ..], `#` for the arrays of a number each
            (`states_#`), or a pattern of groups such as `demo_*`.
        step: For tables: the column that counts the steps of an episode.
        length: For tables: the column that holds the length of an episode; with `episode="row"` the array of the
            lengths of episodes, or of a mask of their steps.
        sort: For tables: put rows in the order of episodes and steps, where they are in none.
        task: Which of several tasks to take the rewards of, or which of several vaults.
        no_video: For LeRobotDatasets: leave out the frames of videos.
        video: For LeRobotDatasets: `keep` (the default) stores videos as they are, and frames are decoded when they are
            read; `frames` decodes them once and stores pixels.
        partial: Read what is there of data that are shorter than their own index; it is told.
        rate: Rows a second, for recordings of robots, whose messages have times.
        clock: For recordings of robots: which times these are: `log` (the default), when each message was recorded;
            `header`, its `header.stamp`; `publish`, when it was published, in MCAP files. Of all topics, or by topic:
            `{"/camera": "header"}`, in which `*` stands for all others.
        resample: For recordings of robots: what a row has of a topic: `last` (the default), its last message by then;
            `nearest`, that next to it in time; `linear`, what lies on the line between the messages before and after,
            for floats of observations and infos. Of all topics or by topic, as `clock`.
        ends: How episodes ended of which the files do not say it: `terminated`, `truncated` or `unknown`. Where
            the files state success, `terminated` holds for those that succeeded, and the others were cut off.
        reward: Where rewards come from, in place of those of the files: `constant`, `constant=NUMBER`,
            `success` (1 where an episode succeeded), or `FILE.py:function`, a function of yours that takes observations, actions and the
            observations after these, n rows each, and returns n numbers.
        shift: By how many rows columns of steps move within each episode: `{"action": -1}` where each observation was
            recorded after the action of its row, as LIBERO's were. Rewards and infos move with the action
            unless they are named; rows without a partner at an end are left out.
        flip: Columns of frames that are stored upside down (OpenGL), such as `observation/image`; patterns.
        bgr: Columns of frames whose red and blue are swapped, as cv2 writes them; patterns.
        like: Name of a benchmark's dataset, such as `d4rl/hopper-medium-v2`, whose environment,
            bounds of actions, time limit and references hold for these data.
        environment: Environment that the data are of, with its spaces and time limit: its id, such as
            `Pendulum-v1` or `Pendulum-v1,g=9.81`, or the environment itself. Not with `like`.
        action_low: Lower bound of actions: one number, or one for each dimension.
        action_high: Upper bound of actions.
        observation_low: Lower bound of observations.
        observation_high: Upper bound of observations.
        description: What the data are.
        license: SPDX identifier of the data.
        chunk_hashes: Add a hash of each chunk, by which those who read it in place check every chunk.
        execute: Executor whose jobs read and decode a file, shard or file of an episode each, as `find_executor` of
            `orlog.runs.jobs` returns it; this process writes them, in their order. The files are on a
            disk that all its machines share. The version is the same. A warning says where one process reads.
        workers: Jobs at a time; without `execute`, 1 for this process alone, more for as many processes.
        dry_run: Read the files to the end and call `on_found`, and keep nothing.
        progress: Called with steps done and in all.
        on_wait: Called once if another process is importing the same version.
        on_found: Called with what was found in the files, before a version appears.

    Raises:
        InvalidNameError: the name does not follow the grammar.
        VersionExistsError: the name and version mean something already.
        FormatVersionError: there is no such format.
        ValueError: no file is given, the files look like no format, or several, the format does not
            use an option, or both `like` and `environment` are given.
        NotFoundError: a file is not there, no benchmark has the dataset `like`, or nothing registers
            the environment.
        SimulatorError: the environment cannot be made.
        SchemaError: the files are not of their format, or observations or actions do not fit `like`,
            the environment or the bounds.
        IntegrityError: a file is damaged, or changed while it was read.
        MissingExtraError: a package that reads the format is not installed.
        StorageError: the disk is full.
    """
    wanted = parse_name(name)
    if wanted.digest:
        raise InvalidNameError(f"{name}: an import has no digest yet; leave it out.")
    if like and environment is not None:
        raise ValueError(f"{name}: like and environment both name an environment; give one of them.")
    sources = _sources(paths)
    files = [source.resolve() for source in sources]  # readers follow no links
    options = Options(
        horizon=horizon,
        columns=columns or {},
        episode=episode,
        step=step,
        length=length,
        sort=sort,
        task=task,
        no_video=no_video,
        partial=partial,
        rate=rate,
        clock=_by_topic(clock),
        resample=_by_topic(resample),
        ends=ends,
        reward=reward,
        shift=shift or {},
        flip=(flip,) if isinstance(flip, str) else tuple(flip),
        bgr=(bgr,) if isinstance(bgr, str) else tuple(bgr),
        video=video,
    )
    if video not in ("", *VIDEO):
        raise ValueError(f"{name}: video={video!r}: expected {' or '.join(VIDEO)}.")
    spaces = dataclasses.replace(
        GivenSpaces() if environment is None else of_environment(environment),
        action_bounds=(action_low, action_high),
        observation_bounds=(observation_low, observation_high),
    )
    states = [_state(file) for file in files]
    given = (format, options.given(), like, description, license, chunk_hashes)
    listed = None if any(given) or spaces != GivenSpaces() else _find_listed(wanted, files)
    version = wanted.version or "1.0.0" if listed is None else listed.version
    file_format = choose_format(
        files, format if listed is None else listed.entry.format, wanted.name, is_mapped=bool(of_steps(options.columns))
    )
    file_format.check()
    if listed is None and "video" in file_format.options:
        options = dataclasses.replace(options, video=video or VIDEO[0])
    check_unused(wanted.name, version, is_listed=listed is not None)
    destination = datasets_folder() / wanted.name / version
    with unfinished_folder(destination, on_wait=on_wait) as folder, noted_blanks():
        check_unused(wanted.name, version, is_listed=listed is not None)
        store = folder / "store"
        if listed is None:
            sums, is_proven = _hash_all(files)
            lineage = [Parent(digest=f"sha256:{one}", operation=f"read {file_format.name}") for one in sums]
            asked = Asked(
                files=files,
                sources=[str(source) for source in sources],
                options=options,
                sharing=None if execute is None and workers == 1 else Sharing(execute, workers),
            )
            version_wanted = Wanted(
                name=wanted.name,
                version=version,
                lineage=lineage,
                like=like,
                spaces=spaces,
                description=description,
                license=license,
                notes=_replaced(sums),
                tells_names=True,
            )
            manifest, found = read_version(file_format, asked, store, version_wanted, progress=progress)
        else:
            is_proven = True
            manifest, found = read_listed(wanted.name, *listed[:3], listed.sums, store, progress=progress)
            found.notes += _replaced(listed.sums)  # the version itself says so by its number
        _check_states(sources, files, states)
        found.has_checksums = is_proven
        on_found(found)
        if not dry_run:
            if spaces.environment is not None:
                note_environment(spaces.environment)
            if chunk_hashes:
                manifest = with_chunk_hashes(store, manifest)
            finish_version(store, manifest, destination, accept=check_unchanged, decode=True)
    return destination


def _by_topic(given: str | Mapping[str, str]) -> dict[str, str]:
    """Return a word of each topic; `*` stands for all that are not named."""
    return dict(given) if not isinstance(given, str) else {"*": given} if given else {}


def _sources(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the absolute paths of the files, or of one folder; raise NotFoundError if one is not there."""
    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    sources = [only_file(absolute_path(os.fspath(path))) for path in several]
    if not sources:
        raise ValueError("no file is given to import.")
    for source in sources:
        if not source.is_file() and not (source.is_dir() and len(sources) == 1):
            raise NotFoundError(f"{source}: there is no such file.")
    return sources


def _replaced(sums: Sequence[str]) -> list[Note]:
    """Return a note for each file that its publisher has replaced under the same name."""
    return [Note("own", sentence=text) for text in filter(None, map(superseded, sums))]


class _Listed(NamedTuple):
    """A version of the catalogue, what to read it from, and the SHA-256 of each of its files."""

    version: str
    entry: ForeignEntry
    files: Sequence[Path]
    sums: list[str]


def _find_listed(wanted: DatasetName, files: Sequence[Path]) -> _Listed | None:
    """Return the version of the catalogue whose very files these are; None if there is none."""
    for version, entry in listed_versions(wanted.name).items():
        paths = files
        if files[0].is_dir():
            paths = [files[0] / file.path for file in entry.each]
        if wanted.version in ("", version) and len(paths) == len(entry.each):
            sums = [_proven_sum(path, file) for path, file in zip(paths, entry.each, strict=True)]
            if all(sums):
                return _Listed(version, entry, files if reads_folder(entry) else paths, sums)
    return None


def _proven_sum(path: Path, file: ForeignFile) -> str:
    """Return the SHA-256 of a file if it has the size and checksum that are listed; else nothing."""
    if not path.is_file() or file.size_bytes not in (None, path.stat().st_size):
        return ""
    sha256 = hash_file(path)
    if file.sha256 is not None:
        return sha256 if sha256 == file.sha256 else ""
    with path.open("rb") as data:
        md5 = hashlib.file_digest(data, "md5").hexdigest()
    return sha256 if md5 == file.md5 else ""


def _files(path: Path) -> list[Path]:
    """Return a file and its journals, or all files of a folder, sorted by their names."""
    if not path.is_dir():
        return _given(path)
    return sorted(file for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def _given(path: Path) -> list[Path]:
    """Return a file or folder, and the journals of a database, which are read with it."""
    return [path, *(journals_of(path) if path.suffix == ".db3" and path.is_file() else ())]


def _hash_all(files: Sequence[Path]) -> tuple[list[str], bool]:
    """Return the SHA-256 of each file, or of a list of the files of a folder, and whether lists of checksums prove all."""
    sums, proven = [], []
    for path in (one for file in files for one in _given(file)):
        if path.is_dir():
            inside = {file.relative_to(path).as_posix(): hash_file(file) for file in _files(path)}
            sums.append(hash_of_sums(inside))
            proven.append(check_sums(path, inside, all_of_it=True))
        else:
            sums.append(hash_file(path))
            proven.append(check_sums(path.parent, {path.name: sums[-1]}, all_of_it=False))
    return sums, all(proven)


def _state(path: Path) -> list[tuple[str, int, int, int]]:
    """Return what changes when a file, or one of a folder, is written to or replaced."""
    states = [(file.as_posix(), file.stat()) for file in _files(path)]
    return [(name, one.st_ino, one.st_size, one.st_mtime_ns) for name, one in states]


def _check_states(
    sources: Sequence[Path], files: Sequence[Path], states: Sequence[list[tuple[str, int, int, int]]]
) -> None:
    """Raise IntegrityError if a file is no longer in the state in which it was found."""
    for source, file, state in zip(sources, files, states, strict=True):
        if _state(file) != state:
            raise IntegrityError(
                f"{source}: changed while it was read. Nothing was kept; run the same command again.", file=str(source)
            )
