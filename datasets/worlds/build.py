"""Builds a dataset of the catalogue from its recipe: crash-safe, with any number of processes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orlog.base.files import storage_errors, unfinished_folder
from orlog.base.jobs import Execute, do_jobs
from orlog.datasets.columns.episode import Episode
from orlog.datasets.columns.schema import Schema
from orlog.datasets.home.folders import datasets_folder, installed_versions, version_folder
from orlog.datasets.home.records import check_unchanged
from orlog.datasets.reading.opening import as_name
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.recording.finishing import finish_version, make_manifest
from orlog.datasets.worlds.environments import environment_versions, make_environment
from orlog.datasets.worlds.rebuilds import accepted
from orlog.datasets.worlds.recipe import CatalogueEntry, Recipe, catalogue, parts_of
from orlog.errors import FormatVersionError, IntegrityError, NotFoundError
from orlog.manifests.manifest import MANIFEST_FILE, EnvironmentRecord, Manifest, RecipeRecord, read_manifest
from orlog.manifests.names import DatasetName, did_you_mean, parse_name, plain_version
from orlog.manifests.rebuilds import how_to_record, is_rebuild, rebuild_text, rebuild_warning, recorded_build
from orlog.manifests.shipped import recorded_manifest

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset

EPISODES_PER_TASK = 20


def build_dataset(
    name: str | Dataset,
    *,
    workers: int | None = None,
    replace: bool = False,
    execute: Execute | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    on_wait: Callable[[], None] = lambda: None,
) -> Path:
    """Build a dataset of the catalogue and return its folder; an existing one is left alone.

    The bytes do not depend on `workers`. An interruption at any instant leaves nothing that looks
    finished. If two processes build the same dataset, it is built once.

    Other versions of packages, or another processor, can give other bytes than the recorded ones.
    Such a rebuild is kept under a version of its own, such as `1.0.0+d0b2cd7c`, with a warning.

    Args:
        name: Name, with or without version.
        workers: Processes to use, one by default; more need `if __name__ == "__main__":` in a
            script. With `execute`, jobs at a time, as many as it chooses by default.
        replace: Build again even if the version is there, and replace it; the new one must have
            the same digest.
        execute: Executor that makes the episodes in place of processes here, as `find_executor` of
            `orlog.runs.jobs` returns it.
        progress: Called with steps done and steps in all.
        on_wait: Called once if another process is building the same version.

    Raises:
        NotFoundError: the catalogue has no such name or version.
        MissingExtraError: the recipe's environment is not installed.
        StorageError: the disk is full.
        VersionExistsError: the version is here with another digest; it stays.
        IntegrityError: a version or digest was asked for, and the build on this machine is a
            rebuild of it, which is kept; or its episodes are not distributed as those of the
            recorded build.
    """
    wanted = parse_name(as_name(name))
    entry = catalogue().get(wanted.name)
    if entry is None:
        raise NotFoundError(
            f"the catalogue has no recipe for {wanted.name}"
            + (did_you_mean(wanted.name, catalogue()) or ".")
            + f" Run: orlog download {wanted.name}, if a registry has it; orlog list shows what can "
            "be built."
        )
    if not builds(wanted):
        raise NotFoundError(
            f"{wanted}: the recipe of this orlog builds version {entry.version}; "
            + (
                "if this is the digest of a rebuild, get it from where it was made."
                if wanted.digest
                else f"run: orlog build {wanted.name}"
            )
        )
    destination = datasets_folder() / wanted.name / entry.version
    here = None if replace else _find_built(wanted, entry)
    if here is None:
        with unfinished_folder(destination, on_wait=on_wait) as folder:
            here = None if replace else _find_built(wanted, entry)
            if here is None:
                store, manifest = _build(folder, wanted.name, entry, workers, execute, progress)
                here = _put(store, manifest, destination)
    built = read_manifest(here / MANIFEST_FILE)
    version = built.version
    recorded = recorded_build(wanted.name, entry.version)
    if wanted.version not in ("", version) or not built.digest.startswith(wanted.digest):
        again = f"; for the recorded bytes {how_to_record(recorded, [built])}" if recorded else ""
        raise IntegrityError(
            f"{wanted}: on this machine its recipe gives {wanted.name}@{version} ({built.digest}), "
            f"{rebuild_text(built) or 'the recorded build'}, which was kept{again}.",
            expected=wanted.digest or wanted.version,
            found=built.digest,
        )
    if recorded is not None and is_rebuild(built) and not wanted.version:
        warnings.warn(rebuild_warning(built), stacklevel=2)
    return here


def _find_built(wanted: DatasetName, entry: CatalogueEntry) -> Path | None:
    """Return the folder of what a build would give here, if it is here already.

    That is the wanted version, the recorded one, or a rebuild with the versions of packages of this
    machine, whose files differ from the recorded ones.
    """
    rebuilt = None
    recorded = recorded_build(wanted.name, entry.version)
    for version in installed_versions(wanted.name):
        if plain_version(version) != entry.version:
            continue
        folder = version_folder(wanted.name, version)
        manifest = _read(folder)
        if manifest is None or recorded is None:
            if version == entry.version:
                return folder
            continue
        if manifest.version == (wanted.version or entry.version):
            return folder
        environment = manifest.environment
        is_alike = (
            environment is not None
            and manifest.recipe == recorded.recipe
            and environment.versions
            == environment_versions(entry.recipe.environment_id, entry.recipe.environment_kwargs)
        )
        if is_alike and manifest.objects != recorded.objects:
            rebuilt = rebuilt or folder
    return rebuilt


def _read(folder: Path) -> Manifest | None:
    with contextlib.suppress(IntegrityError, FormatVersionError):
        return read_manifest(folder / MANIFEST_FILE)
    return None


def _put(store: Path, manifest: Manifest, destination: Path) -> Path:
    """Put a build in its place, and return its folder: a rebuild has a version of its own."""
    manifest = accepted(store, manifest)

    def accept(built: Manifest) -> None:
        if built != recorded_manifest(built.name, built.version):
            check_unchanged(built, shipped=False)

    place = destination.with_name(manifest.version)
    with contextlib.ExitStack() as stack:
        if place != destination:
            stack.enter_context(unfinished_folder(place))
        finish_version(store, manifest, place, accept=accept, decode=True, replace=True)
    return place


def builds(wanted: DatasetName) -> bool:
    """Return whether this orlog has a recipe for the wanted version or digest, or its rebuild."""
    entry = catalogue().get(wanted.name)
    if entry is None or plain_version(wanted.version) not in ("", entry.version):
        return False
    if not wanted.digest:
        return True
    recorded = recorded_manifest(wanted.name, entry.version)
    return recorded is not None and recorded.digest.startswith(wanted.digest)


def _build(
    folder: Path,
    name: str,
    entry: CatalogueEntry,
    workers: int | None,
    execute: Execute | None,
    progress: Callable[[int, int], None],
) -> tuple[Path, Manifest]:
    recipe = entry.recipe
    with (
        storage_errors(Path(tempfile.gettempdir())),  # MuJoCo reads mazes from a temporary file
        make_environment(recipe.environment_id, recipe.environment_kwargs) as env,
    ):
        observation_space, action_space = env.observation_space, env.action_space
        limit = env.spec.max_episode_steps if env.spec is not None else None
    assert limit is not None
    episodes = _with_progress(_episodes(entry, limit, workers, execute), recipe.steps, progress)
    store = folder / "store"
    schema = Schema(observation_space=observation_space, action_space=action_space)
    writer = EpisodeWriter(store, schema, f"{name}@{entry.version}")
    try:
        for episode in episodes:
            writer.add_episode(episode)
        written = writer.finish()
    finally:
        writer.close()
    manifest = make_manifest(
        written.schema,
        [written.part],
        written.objects,
        name=name,
        version=entry.version,
        container="zarr",
        non_finite=written.non_finite,
        outside=written.outside,
        description=entry.description,
        license=entry.license,
        environment=EnvironmentRecord(
            id=recipe.environment_id,
            kwargs=recipe.environment_kwargs,
            max_episode_steps=limit,
            versions=environment_versions(recipe.environment_id, recipe.environment_kwargs),
        ),
        behavior_policy=recipe.behavior_policy,
        recipe=RecipeRecord(name=recipe.name, version=recipe.version, parameters=recipe.parameters, seed=recipe.seed),
        roles=entry.roles,
    )
    return store, manifest


def _episodes(entry: CatalogueEntry, limit: int, workers: int | None, execute: Execute | None) -> Iterator[Episode]:
    if workers in (None, 1) and execute is None:
        for part in parts_of(entry.recipe):
            count = len(part.lengths(limit))
            yield from _until(part.episodes(0, count), part.steps)
        return
    for part in parts_of(entry.recipe):
        count = len(part.lengths(limit))
        size = EPISODES_PER_TASK
        blocks = (range(first, min(first + size, count)) for first in range(0, count, size))
        make = functools.partial(_some_episodes, part)
        made = do_jobs(make, blocks, execute=execute, workers=workers)
        yield from _until(itertools.chain.from_iterable(made), part.steps)


def _some_episodes(recipe: Recipe, block: range) -> list[Episode]:
    return list(recipe.episodes(block.start, block.stop))


def _until(episodes: Iterator[Episode], steps: int) -> Iterator[Episode]:
    """Yield episodes until the number of steps is reached; the last one is cut there."""
    left = steps
    for episode in episodes:
        yield _cut(episode, left)
        left -= len(episode)
        if left <= 0:
            return


def _cut(episode: Episode, steps: int) -> Episode:
    if len(episode) <= steps:
        return episode
    truncations = np.zeros(steps, np.bool_)
    truncations[-1] = True
    return dataclasses.replace(
        episode,
        observations=_rows(episode.observations, steps + 1),
        actions=_rows(episode.actions, steps),
        rewards=episode.rewards[:steps],
        terminations=episode.terminations[:steps],
        truncations=truncations,
        infos=_rows(episode.infos, steps),
    )


def _rows(columns: Any, count: int) -> Any:
    if isinstance(columns, dict):
        return {name: _rows(column, count) for name, column in columns.items()}
    if isinstance(columns, tuple):
        return tuple(_rows(column, count) for column in columns)
    return columns[:count]


def _with_progress(episodes: Iterator[Episode], total: int, progress: Callable[[int, int], None]) -> Iterator[Episode]:
    done = 0
    progress(0, total)
    for episode in episodes:
        yield episode
        done += len(episode)
        progress(done, total)
