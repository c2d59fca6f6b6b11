"""Imports third-party files of this machine as versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orlog.datasets.formats.formats import choose_format, read_version
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.meaning import check_unchanged, check_unused
from orlog.datasets.interchange.episodes import Found, Options
from orlog.datasets.recording.finishing import finish_version
from orlog.errors import IntegrityError, InvalidNameError, NotFoundError
from orlog.files import absolute_path, hash_file, hash_of_sums, unfinished_folder
from orlog.manifests.manifest import Parent
from orlog.manifests.names import parse_name

__all__ = ["import_dataset"]


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
    like: str = "",
    description: str = "",
    license: str = "",  # noqa: A002 (the word of the manifest)
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    on_wait: Callable[[], None] = lambda: None,
    on_found: Callable[[Found], None] = lambda _found: None,
) -> Path:
    """Import third-party files of this machine as a new version, and return its folder.

    The files stay as they are. The lineage of the version holds the SHA-256 of each, or of a folder
    the SHA-256 of what `sha256sum` prints about its files in the order of their names.

    Args:
        paths: The file, the files of one dataset in their order, or one folder.
        name: Name of the dataset, or name and version (`lab/arm-v1@1.1.0`); 1.0.0 by default.
        format: Format of the files, such as `d4rl`, or the path of a file of your own that declares one
            (`./my_format.py`); by default the one that they look like.
        horizon: Steps after which the environment truncates an episode, for files that do not say
            where that happened.
        columns: For tables: names of their columns, or patterns such as `obs_*`, by `observation`,
            `action`, `reward`, `terminated`, `truncated` and `infos/NAME`.
        episode: For tables: the column that tells episodes apart.
        step: For tables: the column that counts the steps of an episode.
        length: For tables: the column that holds the length of an episode.
        sort: For tables: put rows in the order of episodes and steps, where they are in none.
        task: Which of several tasks to take the rewards of, or which of several vaults.
        like: Name of a benchmark's dataset, such as `d4rl/hopper-medium-v2`, whose environment,
            bounds of actions, time limit and references hold for these data.
        description: What the data are.
        license: SPDX identifier of the data.
        dry_run: Read the files to the end and call `on_found`, and keep nothing.
        progress: Called with steps done and in all.
        on_wait: Called once if another process is importing the same version.
        on_found: Called with what was found in the files, before a version appears.

    Raises:
        InvalidNameError: the name does not follow the grammar.
        VersionExistsError: the name and version mean something already.
        FormatVersionError: there is no such format.
        ValueError: no file is given, the files look like no format, or several, or the format has no
            use for an option.
        NotFoundError: a file is not there, or no benchmark has the dataset `like`.
        SchemaError: the files are not of their format, or observations or actions do not fit `like`.
        IntegrityError: a file is damaged, or changed while it was read.
        MissingExtraError: a package that reads the format is not installed.
        StorageError: the disk is full.
    """
    wanted = parse_name(name)
    if wanted.digest:
        raise InvalidNameError(f"{name}: an import has no digest yet; leave it out.")
    version = wanted.version or "1.0.0"
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    sources = [absolute_path(os.fspath(path)) for path in given]
    if not sources:
        raise ValueError("no file is given to import.")
    for source in sources:
        if not source.is_file() and not (source.is_dir() and len(sources) == 1):
            raise NotFoundError(f"{source}: there is no such file.")
    files = [source.resolve() for source in sources]  # readers follow no links
    file_format = choose_format(files, format, wanted.name)
    file_format.check()
    check_unused(wanted.name, version)
    destination = datasets_folder() / wanted.name / version
    with unfinished_folder(destination, on_wait=on_wait) as folder:
        check_unused(wanted.name, version)
        states = [_state(file) for file in files]
        operation = f"read {file_format.name}"
        manifest, found = read_version(
            file_format,
            files,
            folder / "store",
            name=wanted.name,
            version=version,
            sources=[str(source) for source in sources],
            lineage=[Parent(digest=f"sha256:{_hash(file)}", operation=operation) for file in files],
            options=Options(
                horizon=horizon,
                columns=columns or {},
                episode=episode,
                step=step,
                length=length,
                sort=sort,
                task=task,
            ),
            like=like,
            description=description,
            license=license,
            progress=progress,
        )
        for source, file, state in zip(sources, files, states, strict=True):
            if _state(file) != state:
                raise IntegrityError(
                    f"{source}: changed while it was read. Nothing was kept; run the same command "
                    "again.",
                    file=str(source),
                )
        on_found(found)
        if not dry_run:
            accept = check_unchanged
            finish_version(folder / "store", manifest, destination, accept=accept, decode=True)
    return destination


def _files(path: Path) -> list[Path]:
    """Return a file, or all files of a folder, sorted by their names."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def _hash(path: Path) -> str:
    """Return the SHA-256 of a file, or of a list of the files of a folder."""
    if not path.is_dir():
        return hash_file(path)
    return hash_of_sums(
        {file.relative_to(path).as_posix(): hash_file(file) for file in _files(path)}
    )


def _state(path: Path) -> list[tuple[str, int, int, int]]:
    """Return what changes when a file, or one of a folder, is written to or replaced."""
    states = [(file.as_posix(), file.stat()) for file in _files(path)]
    return [(name, one.st_ino, one.st_size, one.st_mtime_ns) for name, one in states]
