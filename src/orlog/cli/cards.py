"""Writes what other places show of a dataset: a card with its picture, and Croissant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orlog.base.terminal import print_json, progress_bar, say, tell

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset


def _whole_version(name: str) -> Dataset:
    from orlog.datasets.loading import load_dataset

    dataset = load_dataset(name)
    if dataset.operation is not None:
        raise ValueError(f"{name}: a view has no files of its own; store it first: orlog save.")
    return dataset


def write_card(name: str, path: Path) -> None:
    """Write the dataset card and its picture; a file that orlog did not write is not replaced."""
    from orlog.base.files import replace_file, storage_errors
    from orlog.datasets.audit.audit import audit
    from orlog.datasets.publish.card import dataset_card, is_own_card

    dataset, picture = _whole_version(name), path.with_suffix(".svg")
    with storage_errors(path):
        text = path.read_text("utf-8", errors="replace") if path.exists() else ""
        if text and not is_own_card(text):
            raise ValueError(
                f"{path}: orlog did not write this file, so it is not replaced; choose another one."
            )
    with progress_bar("audit") as update:
        found = audit(dataset, progress=update)
    card = dataset_card(dataset, found, f"{dataset.name}@{dataset.version}")
    with storage_errors(path):
        replace_file(picture, card.picture.encode())
        replace_file(path, card.text(picture.name).encode())
    say(f"written: {path} and {picture}")


def show_croissant(name: str) -> None:
    """Print a stored version as Croissant."""
    from orlog.manifests.croissant import UNKNOWN, croissant

    dataset = _whole_version(name)
    print_json(croissant(dataset.manifest))
    tell(f"to be added by you, since no manifest knows it: {', '.join(UNKNOWN)}")
