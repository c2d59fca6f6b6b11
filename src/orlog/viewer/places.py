"""Where the bytes of a step lie: file, chunk and checksum of every column."""

from __future__ import annotations

from typing import Any

import numpy as np

from orlog.errors import OrlogError
from orlog.manifests.columns import axis_of, offsets_of
from orlog.viewer.opened import Shown


def places_of(shown: Shown, episode: int, step: int) -> dict[str, Any]:
    """Return where each column's row of a step lies, after comparing its chunk with its checksum.

    Of values of any length it is the place of the first one that the episode has.

    Raises IndexError if there is no such episode or step.
    """
    stored, position = shown.stored(episode)
    if not 0 <= step <= int(stored.lengths[position]):
        raise IndexError(f"{shown.title}, episode {episode}: there is no step {step}.")
    hashes = {item.path: item.sha256 for item in stored.manifest.objects}
    found = []
    for name in shown.dataset.columns:
        entry: dict[str, Any] = {"column": name}
        try:
            at = np.array([position])
            row, count = int(stored.first_rows(name, at)[0]), stored.count_rows(name, at)
            if count and axis_of(name) != "episode" and offsets_of(name) is None:
                row += min(step, count - 1)
            if count:
                place = stored.place(name, row)
                entry |= {"row": row, **place._asdict(), "sha256": hashes.get(place.file, "")}
            else:
                entry["error"] = "the episode has no values here."
        except (OrlogError, OSError) as error:
            entry["error"] = str(error)
        found.append(entry)
    return {"folder": str(stored.folder), "container": stored.manifest.container, "columns": found}
