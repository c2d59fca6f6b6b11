"""What is known of a dataset, as `orlog show` and the viewer show it: facts in words, columns and versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orlog.datasets.columns.bounds import bounds_of, describe_outside
from orlog.datasets.home.folders import how_much, is_whole
from orlog.datasets.home.records import read_history
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.layers import LayeredVersion
from orlog.datasets.reading.views import operation_words
from orlog.manifests.columns import expected_rows, offsets_of
from orlog.manifests.manifest import Manifest
from orlog.manifests.names import counted, size_text
from orlog.manifests.rebuilds import rebuild_text
from orlog.manifests.roles import shown_roles
from orlog.manifests.spaces import leaf_spaces, original_type


def facts_of(manifest: Manifest, dataset: Dataset | None) -> Iterator[tuple[str, str]]:
    """Yield names and texts of what is known of a version; of a view of it where `dataset` is one, None where none is here."""
    shown = dataset or manifest
    is_view = dataset is not None and dataset.operation is not None
    name = f"{manifest.name}@{manifest.version}"
    kind = "layers over" if dataset is not None and "layers" in (dataset.operation or {}) else "a view of"
    yield "name", f"{kind} {name}" if is_view else name
    yield "digest", shown.digest
    if rebuild := rebuild_text(manifest):
        yield "rebuild", rebuild
    yield "description", manifest.description
    yield "episodes", f"{shown.total_episodes:,}"
    yield "steps", f"{shown.total_steps:,}"
    files = counted(len(manifest.objects), f"{manifest.container} file")
    whole = " (of the whole version)" if is_view else ""
    yield "size", f"{size_text(manifest.size_bytes)}, {files}{whole}"
    observations, actions = manifest.spaces
    yield "observations", str(observations)
    yield "actions", str(actions)
    for space, path in ((observations, "observations"), (actions, "actions")):
        for leaf_name, leaf in leaf_spaces(space, path):
            if (original := original_type(leaf)) is not None:
                yield leaf_name, f"was a {original}"
    environment, recipe = manifest.environment, manifest.recipe
    if environment is not None:
        versions = ", ".join(f"{key} {value}" for key, value in environment.versions.items())
        arguments = f", {environment.kwargs}" if environment.kwargs else ""
        yield "environment", f"{environment.id}{arguments}" + (f" ({versions})" if versions else "")
    if manifest.benchmark:
        yield "benchmark", manifest.benchmark
    yield "behavior policy", manifest.behavior_policy
    yield "license", manifest.license
    if recipe is not None:
        yield "recipe", f"{recipe.name} {recipe.version}, seed {recipe.seed}"
    for parent in shown.lineage:
        if not parent.operation.startswith('{"rebuild":'):
            yield "derived from", f"{parent.digest[:19]} by {operation_words(parent.operation)}"
    for stored in () if dataset is None else dataset.selection().versions:
        if isinstance(stored, LayeredVersion):
            for layer, columns in stored.facts().items():
                yield "layer", f"{layer}: {columns}"
    for column, video in manifest.videos.items():
        height, width = manifest.column(column).shape[:2]
        frames = f"{counted(video.frames, 'frame')} with {counted(video.key_frames, 'key frame')}"
        files = f"{counted(video.files, 'file')} of {video_bytes(manifest, column):,} bytes"
        coded = f"{video.codec} ({video.pixel_format}), {width} x {height}, {video.rate:g} frames per second"
        yield f"video {column}", f"{coded}, {frames}, {files}"
    for column, count in manifest.non_finite.items():
        yield "not finite", f"{counted(count, 'number')} of {column}"
    for column, names in shown.dimension_names.items():
        yield f"numbers of {column}", ", ".join(names)
    for role, text in shown_roles(manifest.known_roles if dataset is None else dataset.roles).items():
        yield f"role {role}", text
    bounds = bounds_of(observations, actions)
    for column, outside in manifest.outside_bounds.items():
        text = describe_outside(outside, bounds.get(column))
        yield "outside of their Box", f"numbers of {column}: {text}"


def video_bytes(manifest: Manifest, column: str) -> int:
    """Return the size of all videos of a column."""
    return sum(item.size_bytes for item in manifest.objects if item.path.startswith(f"videos/{column}/"))


def columns_of(manifest: Manifest, dataset: Dataset | None) -> list[dict[str, Any]]:
    """Return name, type, shape and rows of each column of a version, or of `dataset`, which may be a view of it."""
    is_view = dataset is not None and dataset.operation is not None
    columns = []
    for column in manifest.columns:
        rows: int | None = column.rows
        if dataset is not None and column.name not in dataset.columns:
            continue
        if dataset is not None and is_view:
            rows = None
            if offsets_of(column.name) is None:
                rows = expected_rows(column.name, dataset.total_episodes, dataset.total_steps)
        columns.append({"name": column.name, "dtype": column.dtype, "shape": column.shape, "rows": rows})
    return columns


def versions_of(name: str, known: Mapping[str, tuple[Manifest, Path | None]]) -> list[dict[str, Any]]:
    """Return what is to be shown of versions, which are `known_versions(name)`, in their order."""
    history = read_history(name)
    versions = []
    for version, (manifest, folder) in known.items():
        status = history.get(version)
        versions.append(
            {
                "version": manifest.version,
                "rebuild": rebuild_text(manifest) or None,
                "digest": manifest.digest,
                "episodes": manifest.total_episodes,
                "steps": manifest.total_steps,
                "is_here": folder is not None and is_whole(folder, manifest),
                "state": "not here" if folder is None else how_much(folder, manifest),
                "changes": manifest.changes,
                "status": "good" if status is None else status.status,
                "reason": "" if status is None else status.reason,
                "use": "" if status is None else status.use,
            }
        )
    return versions
