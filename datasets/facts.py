"""What a version of a dataset is, in words, as `orlog show` and the viewer say it."""

from __future__ import annotations

from collections.abc import Iterator

from orlog.datasets.columns.bounds import bounds_of, describe_outside
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.operations import operation_words
from orlog.manifests.manifest import Manifest
from orlog.manifests.names import counted, size_text
from orlog.manifests.rebuilds import rebuild_text, version_of
from orlog.manifests.roles import shown_roles
from orlog.manifests.spaces import leaf_spaces, original_type


def facts_of(manifest: Manifest, dataset: Dataset | None) -> Iterator[tuple[str, str]]:
    """Yield names and texts of what is known of a version; of a view of it where `dataset` is one, None where none is here."""
    shown = dataset or manifest
    is_view = dataset is not None and dataset.operation is not None
    name = f"{manifest.name}@{version_of(manifest)}"
    yield "name", f"a view of {name}" if is_view else name
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
    for column, count in manifest.non_finite.items():
        yield "not finite", f"{counted(count, 'number')} of {column}"
    for column, names in shown.dimension_names.items():
        yield f"numbers of {column}", ", ".join(names)
    for role, text in shown_roles(
        manifest.known_roles if dataset is None else dataset.roles
    ).items():
        yield f"role {role}", text
    bounds = bounds_of(observations, actions)
    for column, outside in manifest.outside_bounds.items():
        text = describe_outside(outside, bounds.get(column))
        yield "outside of their Box", f"numbers of {column}: {text}"
