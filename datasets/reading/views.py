"""Views: datasets derived from others without copying, each with a digest and a lineage.

    {"view_version": 1, "digest": "sha256:..", "operation": {"filter": "returns > 100"},
     "parents": [{"dataset": "pointmaze/umaze-v1@sha256:.."}]}

The digest is the SHA-256 of the canonical JSON of the operation and the parents' digests. A parent
may be a view itself, written out in the same way. Operations:

| operation | value |
|---|---|
| `filter` | an expression on columns of episodes |
| `episodes` | positions, as ranges [first, last + 1] |
| `split` | sizes, seed, part: a seeded partition of whole episodes |
| `top` | percent, by |
| `columns` | names of the optional columns that are kept |
| `combine` | weights, `tasks` or none; whether unequal spaces are padded |
"""

from __future__ import annotations

import functools
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orlog.base.files import absolute_path, make_folder, replace_file, storage_errors
from orlog.datasets.reading.operations import apply_operation
from orlog.datasets.reading.source import MOST_EPISODES, Source, SourceT
from orlog.errors import (
    FormatVersionError,
    IntegrityError,
    InvalidNameError,
    ManifestError,
    NotFoundError,
    SchemaError,
    VersionExistsError,
    clause,
)
from orlog.manifests.documents import parse_json, read_small_file, refuse_newer

VIEW_VERSION = 1
LARGEST_VIEW = 64 * 2**20
DEEPEST = 64


def save_view(dataset: Source, path: Path, *, replace: bool = False) -> Path:
    """Write a view's JSON in one step; see `Dataset.save`."""
    if dataset.operation is None:
        raise ValueError(
            f"{dataset.name}@{dataset.version} is a stored version, not a view, so there is nothing "
            f"to save; refer to it as {dataset.name}@{dataset.digest[:19]}."
        )
    path = absolute_path(path)
    if _depth(dataset) > DEEPEST:
        raise SchemaError(
            f"{dataset.name}: views are nested more than {DEEPEST} deep; store one of them first, "
            "with save_dataset."
        )
    body = {"view_version": VIEW_VERSION, "digest": dataset.digest, **_to_json(dataset)}
    data = (json.dumps(body, allow_nan=False) + "\n").encode()
    if len(data) > LARGEST_VIEW:
        raise SchemaError(
            f"{dataset.name}: the view takes {len(data)} bytes of JSON, more than {LARGEST_VIEW}; "
            "store it with save_dataset."
        )
    with storage_errors(path):
        make_folder(path.parent)
        _check_replaceable(path, dataset.digest, replace=replace)
        replace_file(path, data, alone=False)
    return path


def _check_replaceable(path: Path, digest: str, *, replace: bool) -> None:
    """Refuse to overwrite a file unless it is this view, or, with `replace`, any view.

    Raises VersionExistsError if it is another view, or not a view.
    """
    if not os.path.lexists(path):
        return
    try:
        stated = _read_view(path)[1]
    except FormatVersionError:  # a view, though a newer one
        stated = None
    except (InvalidNameError, ManifestError) as error:
        raise VersionExistsError(
            f"{path} exists already and is not a view that orlog saved, so it is never replaced: "
            "choose another file."
        ) from error
    if stated != digest and not replace:
        raise VersionExistsError(
            f"{path} holds another view ({str(stated)[:19]}), this one is {digest[:19]}: choose "
            "another file, or replace it with replace=True."
        )


def open_view(path: Path, find: Callable[[str], SourceT]) -> SourceT:
    """Return the view of a JSON file; `find` opens the stored versions it names.

    Raises ManifestError if it is malformed, or its content does not match the digest that it states;
    FormatVersionError if it was written by a newer orlog; NotFoundError if a parent is not on this machine.
    """
    body, stated = _read_view(path)
    try:
        dataset = _from_json(body, functools.cache(find), _Budget(MOST_EPISODES), 0)
    except (SchemaError, IndexError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, IntegrityError | NotFoundError | FormatVersionError):
            raise
        raise ManifestError(f"{path}: {clause(error)}.") from error
    if dataset.digest != stated:
        raise ManifestError(
            f"{path}: the view was edited or damaged: it says its digest is {stated!s:.99}, its "
            f"content has {dataset.digest}.",
            expected=f"{stated!s:.99}",
            found=dataset.digest,
        )
    dataset.view_file = path
    return dataset


def view_sources(path: Path) -> list[str]:
    """Return the stored versions that a view's file names, without opening them.

    Raises ManifestError if it is malformed; FormatVersionError if it was written by a newer orlog.
    """
    names: list[str] = []
    waiting: list[Any] = [_read_view(path)[0]]
    while waiting:
        body = waiting.pop(0)
        if isinstance(body, dict) and isinstance(body.get("dataset"), str):
            names.append(body["dataset"])
        elif isinstance(body, dict) and isinstance(body.get("parents"), list):
            waiting += body["parents"]
        else:
            raise ManifestError(f"{path}: no view: a part of it names neither dataset nor parents.")
    return sorted(set(names))


def _read_view(path: Path) -> tuple[dict[str, Any], object]:
    """Return a view as JSON, and the digest that its file states."""
    try:
        body = parse_json(read_small_file(path, LARGEST_VIEW))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) or path.suffix == ".json":
            raise ManifestError(f"{path}: no readable view: {clause(error)}.") from error
        body = None
    if not isinstance(body, dict) or not body.keys() & {"view_version", "operation", "parents"}:
        wrong = InvalidNameError(
            f"{path}: neither a dataset nor a saved view, which is a JSON object with a view_version; data of others are "
            f"read with: orlog import {shlex.quote(str(path))} NAME"
        )
        wrong.exit_code = 2  # a wrong use of the command
        raise wrong
    if type(body.get("view_version")) is not int:
        raise ManifestError(f"{path}: expected a view_version, which a saved view has.")
    version, stated = body.pop("view_version"), body.pop("digest", None)
    if version < 1:
        raise ManifestError(f"{path}: there is no view_version {version}.")
    refuse_newer({"view_version": version}, {"view_version": VIEW_VERSION}, str(path))
    return body, stated


def _depth(dataset: Source) -> int:
    return 1 + max(map(_depth, dataset.parents), default=-1)


def _to_json(dataset: Source) -> dict[str, Any]:
    if dataset.operation is None:
        return {"dataset": f"{dataset.name}@{dataset.digest}"}
    return {
        "operation": dataset.operation,
        "parents": [_to_json(parent) for parent in dataset.parents],
    }


class _Budget:
    """How many more episodes the views in a file may select together."""

    def __init__(self, episodes: int) -> None:
        self.left = episodes

    def spend(self, episodes: int) -> None:
        self.left -= episodes
        if self.left < 0:
            raise IndexError(f"more than {MOST_EPISODES} episodes in the views of a file.")


def _from_json(body: Any, find: Callable[[str], SourceT], budget: _Budget, depth: int) -> SourceT:
    if depth > DEEPEST:
        raise ValueError(f"views are nested more than {DEEPEST} deep.")
    if not isinstance(body, dict):
        raise TypeError(f"a view is a JSON object, found {body!r:.60}.")
    if set(body) == {"dataset"} and isinstance(body["dataset"], str):
        name, at, digest = body["dataset"].partition("@")
        if not at or not digest.startswith("sha256:") or len(digest) != 71:
            raise ValueError(
                f"a parent is named by its whole digest, found {body['dataset']!r:.99}."
            )
        return find(f"{name}@{digest}")
    if set(body) != {"operation", "parents"} or not isinstance(body["parents"], list):
        raise ValueError(f"a view has an operation and parents, found {sorted(body)!r:.99}.")
    parents = [_from_json(parent, find, budget, depth + 1) for parent in body["parents"]]
    if not isinstance(body["operation"], dict) or not parents:
        raise ValueError("a view has an operation and at least one parent.")
    made = apply_operation(body["operation"], parents)
    budget.spend(made.total_episodes)
    return made
