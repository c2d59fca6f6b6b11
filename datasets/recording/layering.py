"""Writes layers: columns over a stored version, from arrays or a function of an episode, in bounded memory."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import inspect
import io
import itertools
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orlog.base.files import link_or_copy, make_folder, replace_file, storage_errors, unfinished_folder
from orlog.base.jobs import Execute, do_jobs
from orlog.datasets.columns.episode import Episode
from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import episode_blocks
from orlog.datasets.home.folders import datasets_folder, version_folder
from orlog.datasets.home.records import check_unchanged, check_unused
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.layers import DRAFT
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.recording.finishing import finish_version, make_manifest, refuse_existing
from orlog.errors import SchemaError
from orlog.manifests.columns import ColumnSpec, axis_of
from orlog.manifests.documents import canonical_json
from orlog.manifests.manifest import MANIFEST_FILE, Base, Manifest, Parent
from orlog.manifests.names import parse_name

RETURNS = "episodes/returns"
KEPT_SECONDS = 30 * 86_400
STEPS_AT_ONCE = 2**20
STEPS_OF_A_PIECE = 2**16  # of which only a process that dies loses those that it was at


def draft_layer(
    dataset: Dataset,
    columns: Mapping[str, Any],
    function: Callable[[Episode], Mapping[str, Any]] | None,
    roles: Mapping[str, str],
    *,
    key: str = "",
    execute: Execute | None = None,
    made_by: str = "",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Dataset:
    """Write columns over a dataset's stored version into a draft, which is deleted with the returned layer.

    See `Dataset.with_columns`. A value of `columns` that is a function returns the rows of an episode.

    Raises SchemaError if the dataset is only a part of a version, a column has another number of rows, or a value
    does not fit its column.
    """
    selection = dataset.selection()
    if not selection.is_whole or len(selection.versions) != 1:
        raise SchemaError(
            f"{dataset.name}: columns lie over a whole stored version; give them to the version and take the view after."
        )
    stored = selection.versions[0]
    functions = {name: given for name, given in columns.items() if callable(given)}
    made = {name: "given" if name not in functions else _source(given) for name, given in columns.items()}
    if function is not None:
        made[""] = _source(function)
    arrays = {name: _as_rows(given) for name, given in columns.items() if name not in functions}
    rows = {"step": dataset.total_steps, "episode": dataset.total_episodes}
    for name, values in arrays.items():
        if len(values) != rows[_axis(dataset, name)]:
            raise SchemaError(
                f"{dataset.name}: column {name} has {len(values)} rows, expected one for each of the "
                f"{rows[axis_of(name)]} {axis_of(name)}s."
            )
    drafts = datasets_folder().parent / "drafts"
    with storage_errors(drafts):
        make_folder(drafts)
        for left in [path for path in drafts.iterdir() if time.time() - path.stat().st_mtime > KEPT_SECONDS]:
            shutil.rmtree(left, ignore_errors=True)  # of processes that were killed
        folder = Path(tempfile.mkdtemp(dir=drafts))
    pieces = drafts / hashlib.sha256(canonical_json([dataset.digest, key])).hexdigest() if key else None
    try:
        writer: EpisodeWriter | None = None
        lengths, starts = dataset.episode_lengths, dataset.episode_starts
        edges = episode_blocks(lengths.cumsum(), STEPS_OF_A_PIECE if functions or function else STEPS_AT_ONCE)
        jobs = [*itertools.pairwise(edges.tolist())]
        compute = _Piece(dataset, functions, function)
        blocks = _computed(compute, jobs, pieces, execute) if functions or function else itertools.repeat({}, len(jobs))
        try:
            for (first, last), block in zip(jobs, blocks, strict=True):
                begin, end = int(starts[first]), int(starts[last - 1] + lengths[last - 1])
                for name, values in arrays.items():
                    block = {**block, name: values[begin:end] if axis_of(name) == "step" else values[first:last]}
                if writer is None:
                    writer = EpisodeWriter(folder, _schema_for(dataset, block), dataset.name, first_decides=False)
                where = f"{dataset.name}, episodes {first} to {last - 1}"
                writer.add_block(writer.schema.layer_rows(where, lengths[first:last], block), lengths[first:last])
                progress(end, dataset.total_steps)
            assert writer is not None  # no version is without episodes
            written = writer.finish()
        finally:
            if writer is not None:
                writer.close()
        manifest = make_manifest(
            written.schema,
            [written.part],
            written.objects,
            name=DRAFT,
            version="1.0.0",
            lineage=[Parent(digest=dataset.digest, operation=made_by or canonical_json({"columns": made}).decode())],
            non_finite=written.non_finite,
            roles=roles,
            base=Base(name=stored.manifest.name, version=stored.manifest.version, digest=stored.digest),
        )
        (folder / MANIFEST_FILE).write_bytes(manifest.to_json().encode())
        draft = Dataset(folder, manifest)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if pieces is not None:
        shutil.rmtree(pieces, ignore_errors=True)
    weakref.finalize(draft, _remove, folder, os.getpid())
    return draft


def _remove(folder: Path, process: int) -> None:
    if process == os.getpid():  # a forked process has the same object
        shutil.rmtree(folder, ignore_errors=True)


def _source(function: Callable[..., Any]) -> str:
    """Return the source of a function, for the lineage."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return getattr(function, "__qualname__", repr(function))


def _computed(
    compute: _Piece, jobs: list[Any], pieces: Path | None, execute: Execute | None
) -> Iterator[dict[str, Any]]:
    """Yield the columns of each block of episodes; what was computed by an earlier process is taken from `pieces`."""
    kept = [None if pieces is None else pieces / f"{first}-{last}.npz" for first, last in jobs]
    missing = [job for job, path in zip(jobs, kept, strict=True) if path is None or not path.exists()]
    results = do_jobs(compute, missing, execute=execute, workers=None if execute else 1)
    for path in kept:
        if path is not None and path.exists():
            with np.load(path, allow_pickle=False) as file:  # whose sums are checked
                yield {name: file[name] for name in file.files}
            continue
        block = next(results)
        if path is not None:
            arrays = {name: np.asarray(values) for name, values in block.items()}
            if any(values.dtype.kind == "O" for values in arrays.values()):
                raise SchemaError("values of any length are not kept between calls; leave out key.")
            with storage_errors(path):
                make_folder(path.parent)
                buffer = io.BytesIO()
                np.savez(buffer, **arrays)  # type: ignore[arg-type]  # for which allow_pickle could be one of them
                replace_file(path, buffer.getvalue())
        yield block
    next(results, None)  # which ends the executor


@dataclasses.dataclass
class _Piece:
    """Computes the columns of some episodes."""

    dataset: Dataset
    functions: Mapping[str, Callable[[Episode], Any]]
    function: Callable[[Episode], Mapping[str, Any]] | None

    def __call__(self, episodes: tuple[int, int]) -> dict[str, Any]:
        made: dict[str, list[Any]] = {}
        for episode in self.dataset.iterate_episodes(range(*episodes)):
            given = {name: function(episode) for name, function in self.functions.items()}
            given |= {} if self.function is None else self.function(episode)
            where = f"{self.dataset.name}, episode {episode.index}"
            if made and made.keys() != given.keys():
                raise SchemaError(f"{where}: has the columns {sorted(given)}, expected {sorted(made)} as before.")
            for name, value in given.items():
                values = _as_rows(value)
                if _axis(self.dataset, name) == "step" and len(values) != len(episode):
                    raise SchemaError(
                        f"{where}: column {name} has {len(values)} rows, expected {len(episode)}, one a step."
                    )
                made.setdefault(name, []).append(values)
        return {name: _joined(name, parts) for name, parts in made.items()}


def _axis(dataset: Dataset, name: str) -> str:
    """Return what a column of a layer has a row for: a step or an episode."""
    if name != "rewards" and not name.startswith(("infos/", "episodes/")):
        raise SchemaError(
            f"{dataset.name}: a layer has columns of steps, infos/NAME or rewards, and of episodes, episodes/NAME; "
            f"found {name!r:.100}."
        )
    return axis_of(name)


def _joined(name: str, parts: list[Any]) -> Any:
    """Return the rows of a column of several episodes."""
    if axis_of(name) == "episode":
        return parts if isinstance(parts[0], str | list) else np.array(parts)
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [value for part in parts for value in part]


def _schema_for(dataset: Dataset, block: Mapping[str, Any]) -> Schema:
    """Return the columns of a layer, by the rows of its first episodes."""
    whole = dataset.schema
    schema = Schema(observation_space=whole.observation_space, action_space=whole.action_space, is_layer=True)
    infos, metadata, own = {}, {}, {}
    for name, values in block.items():
        if name == "rewards":
            own = {name: ColumnSpec(name, values.dtype, ()), RETURNS: ColumnSpec(RETURNS, np.dtype(np.float64), ())}
        elif name.startswith("infos/"):
            infos[name.removeprefix("infos/")] = values
        else:
            metadata[name.removeprefix("episodes/")] = values[0]
    schema = schema.with_extras(infos, metadata, dataset.name)
    return dataclasses.replace(schema, extras=dict(sorted({**schema.extras, **own}.items())))


def _as_rows(values: Any) -> Any:
    """Return values as an array of numbers, or a list of texts or arrays of any length."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "UO":
        values = values.tolist()
    if isinstance(values, str) or (isinstance(values, list) and not all(isinstance(v, int | float) for v in values)):
        return values
    return np.asarray(values)


def columns_of_table(dataset: Dataset, path: Path, fill: Mapping[str, str]) -> dict[str, Any]:
    """Return columns from a CSV file with a row for each episode, or with a column `step` for each step.

    Its first row has names: `episode`, perhaps `step`, and those of the columns, without `infos/` or `episodes/`. Numbers,
    `true` and `false` are read as such where a whole column has them, all else as texts. `fill` says by name what
    a row holds that the file does not have.

    Raises SchemaError that names the line, for an episode or step that is not there, one twice, or one that lacks.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [*csv.DictReader(file)]
    names = [*(rows[0] if rows else ())]
    by_step = "step" in names
    own = [name for name in names if name not in ("episode", "step")]
    if "episode" not in names or not own or None in names:
        raise SchemaError(f"{path}: expected columns episode, perhaps step, and what is said of them, found {names}.")
    unknown = fill.keys() - {*own}
    if unknown:
        raise SchemaError(f"{path}: has no column {min(unknown)!r} to fill; it has {', '.join(own)}.")
    lengths, starts = dataset.episode_lengths, dataset.episode_starts
    texts: dict[str, list[str | None]] = {
        name: [fill.get(name)] * (dataset.total_steps if by_step else dataset.total_episodes) for name in own
    }
    lines: dict[int, int] = {}
    for line, row in enumerate(rows, 2):
        where, index = f"{path}, line {line}", _whole(row["episode"])
        if not 0 <= index < len(lengths):
            raise SchemaError(f"{where}: there is no episode {row['episode']!r}; {dataset.name} has {len(lengths)}.")
        at = index
        if by_step:
            step = _whole(row["step"])
            if not 0 <= step < lengths[index]:
                raise SchemaError(f"{where}: episode {index} has no step {row['step']!r}; it has {lengths[index]}.")
            at = int(starts[index]) + step
        if lines.setdefault(at, line) != line:
            raise SchemaError(f"{where}: says again what line {lines[at]} says.")
        for name in own:
            if row[name] is None:
                raise SchemaError(f"{where}: has fewer values than the first line has names.")
            texts[name][at] = row[name]
    for name, values in texts.items():
        if None in values:
            at = values.index(None)
            episode = int(np.searchsorted(starts, at, "right")) - 1 if by_step else at
            of = f", step {at - int(starts[episode])}" if by_step else ""
            raise SchemaError(
                f"{path}: no line is about episode {episode}{of}; add it, or say what holds without: --fill {name}=VALUE."
            )
    prefix = "infos" if by_step else "episodes"
    return {f"{prefix}/{name}": _typed([str(text) for text in values]) for name, values in texts.items()}


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.strip().isdecimal() else -1


def _typed(texts: list[str]) -> Any:
    """Return texts as flags, whole numbers or numbers if all of them are, else as they are."""
    flags = {"true": True, "false": False}
    if all(text.lower() in flags for text in texts):
        return np.array([flags[text.lower()] for text in texts])
    for kind in (np.int64, np.float64):
        try:
            return np.array(texts).astype(kind)
        except (ValueError, OverflowError):
            continue
    return texts


def save_layer(dataset: Dataset, name: str, *, version: str, description: str, license: str, changes: str) -> Path:  # noqa: A002
    """Store the columns that a dataset was given with `with_columns` as a version; see `Dataset.save_layer`."""
    drafts = [parent for parent in dataset.parents[1:] if parent.name == DRAFT]
    if len(drafts) != 1:
        raise SchemaError(f"{dataset.name}: there are no new columns to save; with_columns gives it some.")
    draft = drafts[0]
    wanted = parse_name(f"{name}@{version}")
    destination = datasets_folder() / wanted.name / wanted.version
    here = version_folder(wanted.name, wanted.version)
    check_unused(wanted.name, wanted.version)
    refuse_existing(here / MANIFEST_FILE, here)
    manifest: Manifest = msgspec.structs.replace(
        draft.manifest,
        name=wanted.name,
        version=wanted.version,
        description=description,
        license=license or dataset.manifest.license,
        changes=changes,
    )
    with unfinished_folder(destination) as folder, storage_errors(folder):
        refuse_existing(destination / MANIFEST_FILE, destination)
        for item in manifest.objects:
            make_folder((folder / "store" / item.path).parent)
            link_or_copy(draft.folder / item.path, folder / "store" / item.path)
        finish_version(folder / "store", manifest, destination, accept=check_unchanged, share=manifest.objects)
    return destination
