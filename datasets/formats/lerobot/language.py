"""Language columns of LeRobotDatasets as texts; a row of one is a role, content, style, timestamp and more.

    language_persistent   what holds from a time on, the same rows      episodes/language_persistent, and
                          in all steps of an episode                    infos/subtask: the subtask of each step
    language_events       what happens in a step                        infos/language_events
    subtask_index         a number of meta/subtasks.parquet             infos/subtask

Rows are a list in JSON. https://huggingface.co/docs/lerobot/language_and_recipes
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats._shared.arrow_files import array_of, reading_arrow
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats.lerobot.metadata import inside
from orlog.errors import SchemaError

PERSISTENT, EVENTS, SUBTASK = "language_persistent", "language_events", "subtask"
OF_EPISODE = f"episodes/{PERSISTENT}"
ROW_BYTES = 2**14  # that the rows of a step may take
SUBTASKS = Path("meta") / "subtasks.parquet"


def language_texts(column: Any, name: str, where: str, first: int) -> np.ndarray:
    """Return each row of a language column as a text, (rows,) of objects; equal neighbors are one object.

    Raises SchemaError if the column holds something else.
    """
    from pyarrow import types

    kind = column.type
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_string(kind)):
        raise SchemaError(
            f"{where}: {name} holds {kind} from row {first} on, expected rows of texts."
        )
    texts = np.empty(len(column), object)
    before, text = None, "[]"
    for row in range(len(column)):
        rows = column[row]
        if before is None or not rows.equals(before):
            value, before = rows.as_py() or [], rows
            try:
                text = json.dumps([value] if isinstance(value, str) else value, ensure_ascii=False)
            except (TypeError, ValueError) as error:
                raise SchemaError(
                    f"{where}: {name} holds {kind}, expected rows of texts, numbers and lists."
                ) from error
        texts[row] = text
    return texts


class PersistentRows:
    """Keeps the persistent rows of open episodes, whose steps should all have the same."""

    def __init__(self) -> None:
        self._texts: dict[int, dict[str, None]] = {}
        self._differing = 0  # episodes whose steps have several

    def add(self, episodes: np.ndarray, texts: np.ndarray) -> None:
        """Take the texts of some steps, and the episode of each."""
        for episode, text in zip(episodes.tolist(), texts, strict=True):
            self._texts.setdefault(episode, {})[text] = None

    def take(self, episode: int) -> str:
        """Return the rows of an episode as one text, each row once."""
        texts = [*self._texts.pop(episode)]
        if len(texts) == 1:
            return texts[0]
        self._differing += 1
        rows = [json.dumps(row, ensure_ascii=False) for text in texts for row in json.loads(text)]
        return f"[{', '.join(dict.fromkeys(rows))}]"

    def notes(self) -> list[Note]:
        """Return what is to be known of episodes whose steps differ; after the last one."""
        differing = self._differing
        return [Note("words_differ", [PERSISTENT], count=differing)] if differing else []


def subtasks_in_force(texts: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the subtask of each step, (rows,) of texts: the last one that began, or nothing.

    Args:
        texts: What `language_texts` returns of the persistent rows.
        times: Seconds of each step since the episode began.
    """
    subtasks = np.full(len(texts), "", object)
    moments = times.reshape(-1).astype(np.float32)  # as LeRobot stores both
    for text in dict.fromkeys(texts.tolist()):
        began = sorted(
            (row["timestamp"], str(row.get("content") or ""))
            for row in json.loads(text)
            if isinstance(row, dict)
            and row.get("style") == SUBTASK
            and isinstance(row.get("timestamp"), int | float)
        )
        starts = np.array([start for start, _ in began], np.float32)
        contents = np.array(["", *(content for _, content in began)], object)
        here = texts == text
        subtasks[here] = contents[np.searchsorted(starts, moments[here], "right")]
    return subtasks


def read_subtasks(root: Path, where: str) -> dict[int, str]:
    """Return the texts of `meta/subtasks.parquet` by their numbers; nothing where there is no such file.

    Raises SchemaError if it holds something else; IntegrityError if it is damaged.
    """
    path = inside(root, SUBTASKS, where)
    if not path.is_file():
        return {}
    where = f"{where}, {SUBTASKS.as_posix()}"
    with reading_arrow(where):
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
    names = table.column_names
    words = next((name for name in (SUBTASK, "__index_level_0__") if name in names), "")
    if not words or "subtask_index" not in names:
        raise SchemaError(
            f"{where}: expected the columns {SUBTASK} and subtask_index, found {names}."
        )
    numbers, texts = (
        array_of(table[name], name, where, 0).tolist() for name in ("subtask_index", words)
    )
    return dict(zip(numbers, map(str, texts), strict=True))
