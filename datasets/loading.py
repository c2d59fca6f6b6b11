"""`load_dataset`: opens a dataset, and builds or downloads it first if asked to."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from orlog.datasets.home.folders import is_partial, mark_used
from orlog.datasets.home.records import Source
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.finding import as_folder, near_names, pinned
from orlog.datasets.reading.opening import Choice, Given, choose, open_named, open_part, open_path
from orlog.errors import InvalidNameError, NotFoundError, wrong_type
from orlog.manifests.benchmarks import as_listed
from orlog.manifests.names import DatasetName, is_url, parse_name


def load_dataset(
    name: Given,
    *,
    build: bool = False,
    download: bool = False,
    in_place: bool | None = None,
    whole_files: bool = False,
    episodes: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Return a dataset on this machine by name, by name and version or digest, or by path.

    An `orlog.lock` in the current folder or above it pins names to digests.

    Args:
        name: `pointmaze/umaze-v1`, `pointmaze/umaze-v1@1.0.0`, `pointmaze/umaze-v1@sha256:ab12..`;
            without a version, the newest one here that is not yanked (a rebuild only where nothing
            else is here, with a warning that names its version). Or a path to a folder or to a
            file that `Dataset.save` wrote: a `Path`, or text that starts with `/`, `.` or `~`, ends
            in `.json`, or is not a name but exists. Or the URL of a version in a registry, which is
            downloaded if it is not here. A `Dataset` is returned as it is.
        build: Build it from its recipe first if it is not here yet (a minute or two in one process;
            `orlog build NAME` uses all cores).
        download: Download it first if it is not here (`orlog registry add` says from where).
        in_place: Read it where it is, in a registry or at a URL: each chunk is fetched when it is needed,
            checked, and kept up to a limit. By default as the registry was added (`orlog registry add
            --in-place`); a URL is downloaded. What is on this machine is read from here.
        whole_files: Also read a version in place that has no hashes of its chunks: its files are fetched whole,
            since no part of one can be checked alone.
        episodes: Positions of the episodes to keep, such as `range(100)`. With `download`, only the
            files with these episodes are downloaded.
        columns: Optional columns to keep (`Dataset.select_columns`). With `download`, only the
            files with these columns are downloaded.
        progress: Called with (done, total): steps while it builds, bytes while it downloads. Without
            it, building shows a bar, or a line at its start and one each 20 s where the output is no
            terminal.

    Raises:
        InvalidNameError: the name does not follow the grammar.
        NotFoundError: it is not here; the message says what to run.
        SchemaError: it is to be read in place, which it cannot be; the message says what to run.
        IntegrityError: a file is missing, cut or altered.
        TransferError: it could not be downloaded; the bytes received so far are kept.
        LockError: `orlog.lock` pins the name to another digest.
    """
    choice = choose(episodes, columns)
    if isinstance(name, Dataset):
        return choice.of(name)
    if not isinstance(name, str | Path):
        raise wrong_type("name", "a dataset's name, a path, a URL or a Dataset", name)
    if not is_url(name):
        path = as_folder(name)
        if path is not None:
            return open_path(path, choice)
        name = as_listed(str(name))
        try:
            wanted = pinned(parse_name(name))
        except InvalidNameError as error:
            raise InvalidNameError(f"{error}{near_names(name)}") from None
        try:
            return open_named(wanted, choice)
        except NotFoundError:
            if build:
                # Imported here, as downloads are below: most datasets are stored already, and
                # these imports take longer than opening one.
                from orlog.base.terminal import progress_bar
                from orlog.datasets.worlds.build import build_dataset
                from orlog.datasets.worlds.recipe import catalogue

                if wanted.name in catalogue():
                    with contextlib.ExitStack() as stack:
                        if progress is None:
                            bar = progress_bar("steps", f"building {wanted.name}")
                            progress = stack.enter_context(bar)
                        return choice.of(Dataset(build_dataset(str(wanted), progress=progress)))
            if not download:
                offered = None if in_place is False else offered_in_place(wanted, in_place, whole_files)
                if offered is None:
                    raise
                return choice.of(offered)
    elif in_place:
        from orlog.datasets.download.in_place import open_in_place

        return choice.of(open_in_place(str(name), whole_files=whole_files))
    from orlog.datasets.download.download import download_dataset

    get = functools.partial(download_dataset, episodes=episodes, columns=columns)
    if progress is not None:
        get = functools.partial(get, progress=progress)
    try:
        return _open_downloaded(get(str(name)), choice)
    except NotFoundError:  # another process has just completed a part, or deleted the version
        return _open_downloaded(get(str(name)), choice)


def offered_in_place(wanted: DatasetName, in_place: bool | None = None, whole_files: bool = False) -> Dataset | None:
    """Return a version that is read where it is; None if no registry that was added for that offers it.

    With `in_place`, any registry that offers it will do.
    """
    from orlog.datasets.home.registries import read_registries

    names = {registry.name for registry in read_registries() if registry.in_place}
    if not (in_place or names):
        return None
    from orlog.datasets.download.in_place import open_in_place
    from orlog.datasets.download.sources import find_source

    if in_place:
        return open_in_place(wanted, whole_files=whole_files)
    try:
        source = find_source(wanted)
    except NotFoundError:
        return None
    if not isinstance(source, Source) or source.registry not in names:
        return None
    return open_in_place(source, whole_files=whole_files)


def _open_downloaded(folder: Path, choice: Choice) -> Dataset:
    mark_used(folder)
    return open_part(folder, choice) if is_partial(folder) else choice.of(Dataset(folder))
