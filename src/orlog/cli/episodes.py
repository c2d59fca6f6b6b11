"""Shows one episode in the terminal: what it is, the course of each column, frames and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.color import Color
from rich.style import Style
from rich.text import Text

import orlog
from orlog.base.terminal import console, say, show_facts, show_table
from orlog.cli.results import facts, show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orlog.datasets.columns.episode import Episode
    from orlog.datasets.reading.dataset import Dataset

MOST_DIMENSIONS = 16  # of one column
PIPE_WIDTH = 60  # of a line of characters where the output is no terminal
FRAMES = 3
MOST_TEXTS = 5
MOST_TURNS = 30
LONGEST_TEXT = 500
ENDS = {
    (True, True): "terminated: the task itself ended",
    (True, False): "terminated: the task itself ended",
    (False, True): "truncated: it was cut off",
    (False, False): "neither terminated nor truncated: the recording stops there",
}


def show_episode(name: str, number: int, *, as_json: bool) -> None:
    """Print an episode of a dataset or view.

    Raises NotFoundError if there is none of this number.
    """
    from orlog.errors import NotFoundError

    dataset = orlog.load_dataset(name)
    count = dataset.total_episodes
    if not -count <= number < count:
        raise NotFoundError(f"{dataset.name}: there is no episode {number}; its {count:,} are numbered from 0.")
    episode = dataset[number]

    def text(body: dict[str, Any]) -> None:
        policy = dataset.manifest.behavior_policy
        show_facts(
            [
                ("dataset", f"{body['name']}@{body['version']}"),
                ("episode", f"{body['episode']} of {body['episodes']:,}"),
                *facts(body, "steps return"),
                ("end", ENDS[body["terminated"], body["truncated"]]),
                *([] if episode.seed is None else [("seed of its reset", str(episode.seed))]),
                *((name, value) for name, value in body["metadata"].items() if value),
                *([("behavior policy", policy)] if policy else []),
            ]
        )
        say()
        _show_courses(episode, dataset.dimension_names)
        _show_texts(episode)
        _show_frames(episode)

    show(_document(dataset, episode), as_json, text)


def _document(dataset: Dataset, episode: Episode) -> dict[str, Any]:
    from orlog.datasets.looking.leaves import leaves_of

    columns: dict[str, Any] = {}
    for name, column in leaves_of(episode):
        if not isinstance(column, np.ndarray):
            columns[name] = {"rows": len(column)}
            continue
        is_known = column.dtype.kind in "biuf" and np.isfinite(column).any()
        columns[name] = {
            "shape": column.shape,
            "dtype": str(column.dtype),
            "least": float(np.nanmin(column)) if is_known else None,
            "most": float(np.nanmax(column)) if is_known else None,
        }
    return {
        "name": dataset.name,
        "version": dataset.version,
        "episode": episode.index,
        "episodes": dataset.total_episodes,
        "steps": len(episode),
        "return": float(episode.rewards.sum()),
        "terminated": bool(episode.terminations[-1:].any()),
        "truncated": bool(episode.truncations[-1:].any()),
        "seed": episode.seed,
        "metadata": {key: str(value) for key, value in episode.metadata.items()},
        "columns": columns,
    }


def _show_courses(episode: Episode, names: Mapping[str, Sequence[str]]) -> None:
    """Print a line for each dimension of each column of numbers."""
    from orlog.datasets.looking.leaves import dimensions_of
    from orlog.datasets.looking.sparklines import course

    shown: dict[str, list[tuple[str, np.ndarray]]] = {}
    for name, values in dimensions_of(episode, names):
        shown.setdefault(name.partition("[")[0], []).append((name, values))
    lines = [one for several in shown.values() for one in several[:MOST_DIMENSIONS]]
    numbers = [[name, *_range(values)] for name, values in lines]
    width = PIPE_WIDTH
    if console.file.isatty():
        taken = sum(max(len(row[index]) for row in numbers) + 2 for index in range(3))
        width = max(8, min(console.width - taken - 1, 120))
    rows = [[*row, course(values, width)] for row, (_, values) in zip(numbers, lines, strict=True)]
    show_table(("column", "least", "most", "step by step"), rows, numbers=(1, 2))
    for column, several in shown.items():
        if len(several) > MOST_DIMENSIONS:
            say(f"{column}: {len(several) - MOST_DIMENSIONS} more dimensions, not shown")


def _range(values: np.ndarray) -> tuple[str, str]:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return "-", "-"
    return f"{float(finite.min()):.5g}", f"{float(finite.max()):.5g}"


def _show_texts(episode: Episode) -> None:
    """Print the first texts of each column, those that repeat the one before left out.

    Texts that an agent read are shown in turn with what it answered.
    """
    from orlog.datasets.looking.leaves import texts_of

    columns = texts_of(episode)
    actions = episode.actions
    answers = columns.get("actions", [])
    if not answers and isinstance(actions, np.ndarray) and actions.ndim == 1:
        answers = list(map(str, actions.tolist())) if actions.dtype.kind in "iu" else []
    read = {name: texts for name, texts in columns.items() if name.startswith("observations")}
    if read and answers:
        _show_dialogue(read, answers)
        columns = {name: texts for name, texts in columns.items() if name.startswith("infos")}
    for name, texts in columns.items():
        changes = [step for step, text in enumerate(texts) if step == 0 or text != texts[step - 1]]
        say(f"\n{name}", style="bold")
        for step in changes[:MOST_TEXTS]:
            say(f"  step {step}: {texts[step][:LONGEST_TEXT]}")
        if len(changes) > MOST_TEXTS:
            say(f"  and {len(changes) - MOST_TEXTS} more")


def _show_dialogue(read: Mapping[str, list[str]], answers: list[str]) -> None:
    """Print what the agent read and what it answered, in turn; a text that stays the same is printed once."""
    say("\nobservations, and actions after >", style="bold")
    count = len(next(iter(read.values())))
    for step in range(min(count, MOST_TURNS + 1)):
        lines: list[str] = []
        for name, texts in read.items():
            if len(read) == 1 or step == 0 or texts[step] != texts[step - 1]:
                title = f"{name.rpartition('/')[2]}: " if len(read) > 1 else ""
                lines += f"{title}{texts[step][:LONGEST_TEXT]}".splitlines()
        say(f"  step {step}: {lines[0] if lines else 'the same'}")
        for line in lines[1:]:
            say(f"    {line}")
        if step < len(answers):
            say(f"    > {answers[step][:LONGEST_TEXT]}")
    if count > MOST_TURNS + 1:
        say(f"  and {count - MOST_TURNS - 1} more steps")


def _show_frames(episode: Episode) -> None:
    """Print frames from the first step to the last, where the terminal shows colors."""
    from orlog.datasets.looking.leaves import as_picture, frames_of

    for name, rows in frames_of(episode).items():
        chosen = np.linspace(0, len(rows) - 1, min(FRAMES, len(rows))).round().astype(int)
        say(f"\n{name}, steps {', '.join(map(str, chosen))}", style="bold")
        if console.color_system is None or console.no_color or not console.file.isatty():
            size = "x".join(map(str, rows.shape[1:]))
            say(f"  frames of {size}; a terminal with colors shows them")
            continue
        columns = (console.width - 2) // len(chosen) - 1
        pictures = [_picture(as_picture(rows[row]), min(columns, 48)) for row in chosen]
        for lines in zip(*pictures, strict=True):
            console.print(Text(" ").join(lines), no_wrap=True)


def _picture(frame: np.ndarray, columns: int) -> list[Text]:
    """Return a frame as lines of half blocks, each of which is two pixels on top of each other."""
    height, width = frame.shape[:2]
    columns = min(columns, width)
    lines = max(1, round(height * columns / width / 2))
    down = np.linspace(0, height - 1, 2 * lines).round().astype(int)
    across = np.linspace(0, width - 1, columns).round().astype(int)
    pixels = np.broadcast_to(frame[np.ix_(down, across)], (2 * lines, columns, 3)).tolist()
    return [
        Text.assemble(
            *(
                ("▀", Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower)))
                for upper, lower in zip(upper_line, lower_line, strict=True)
            )
        )
        for upper_line, lower_line in zip(pixels[::2], pixels[1::2], strict=True)
    ]
