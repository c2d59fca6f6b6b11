"""Rewards of OGBench's single tasks, from the simulator states in its files.

`manifests/recorded/ogbench_tasks.json` holds the goals of the five tasks of each environment and which is the
default one, as `ogbench` 1.2.2 sets them. A step's reward and whether it ends the task depend on the state
before the action, as in OGBench from 1.2.0 on (`ogbench/relabel_utils.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from orlog.datasets.formats._shared.episodes import Steps
from orlog.errors import SchemaError
from orlog.manifests.names import did_you_mean
from orlog.manifests.shipped import records_folder

NAME = re.compile(
    r"(?:(?P<of>.+)-)?(?:singletask(?:-task(?P<one>\d))?(?:-v\d+)?|task(?P<other>\d))"
)
QPOS, BUTTONS = "qpos", "button_states"
FIRST_CUBE, CUBE_WIDTH, BALL = 14, 7, 15  # places in qpos
CLOSE = 0.04  # metres, for cubes, drawer and window


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A task of an environment.

    Attributes:
        environment: The environment, such as `antmaze-large`.
        number: Which of its tasks, from 1 on.
        goal: Where agent or ball shall be in metres; or a dict of `cubes`, `buttons`, `drawer` and
            `window`.
    """

    environment: str
    number: int
    goal: Any

    def check(self, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
        """Refuse files without the columns that the rewards are computed from, in the environment's shapes."""
        for name, width in self._widths().items():
            found = shapes.get(name)
            if found is None:
                raise SchemaError(
                    f"{where}: has no {name}, which the rewards of a task are made from."
                )
            is_exact = name == BUTTONS
            if len(found) != 1 or found[0] < width or (is_exact and found[0] != width):
                raise SchemaError(
                    f"{where}, {name}: its rows of {found} are not those of {self.environment}."
                )

    def _widths(self) -> dict[str, int]:
        """Return how many numbers of a row are needed, by the name of the column."""
        if not isinstance(self.goal, dict):
            return {QPOS: self._first_place() + 2}
        buttons, widths = len(self.goal.get("buttons", ())), {}
        if "cubes" in self.goal:
            widths[QPOS] = FIRST_CUBE + len(self.goal["cubes"]) * CUBE_WIDTH
        if "drawer" in self.goal:
            widths[QPOS] += buttons + 2
        return widths | ({BUTTONS: buttons} if buttons else {})

    def _first_place(self) -> int:
        """Return where in qpos the place of the agent or of the ball begins."""
        return BALL if self.environment.startswith("antsoccer") else 0

    def judge(self, infos: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the reward of each step, and whether the task was done before it."""
        parts = np.stack(self._parts_done(infos), axis=-1)
        rewards = (parts.sum(axis=-1) - parts.shape[-1]).astype(np.float32)
        return rewards, np.all(parts, axis=-1)

    def _parts_done(self, infos: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return for each part of the goal whether it is reached, (steps,)."""
        if not isinstance(self.goal, dict):
            first = self._first_place()
            place = infos[QPOS][:, first : first + 2]
            tolerance = 1.0 if self.environment.startswith("pointmaze") else 0.5
            return [np.linalg.norm(place - np.array(self.goal), axis=-1) <= tolerance]
        found: list[np.ndarray] = []
        first = FIRST_CUBE
        for cube in self.goal.get("cubes", ()):
            place = infos[QPOS][:, first : first + 3]
            found.append(np.linalg.norm(np.array(cube) - place, axis=-1) <= CLOSE)
            first += CUBE_WIDTH
        buttons = self.goal.get("buttons", ())
        if buttons:
            found += list((infos[BUTTONS] == np.array(buttons)).T)
        if "drawer" in self.goal:
            place = infos[QPOS][:, first + len(buttons) :][:, :2]
            found += list((np.abs(place - [self.goal["drawer"], self.goal["window"]]) <= CLOSE).T)
        return found


def find_task(said: str, file_name: str, where: str) -> Task:
    """Return the task that a user means: `task3`, `singletask` for the default one, or OGBench's name.

    A name such as `antmaze-large-navigate-singletask-task3-v0` is whole; short ones need the name of a file,
    which begins with that of its environment.
    """
    table = _table()
    match = NAME.fullmatch(said)
    if match is None:
        raise SchemaError(
            f"{where}: task={said!r}: expected task1 to task5, singletask for the default one, or "
            "OGBench's name, such as antmaze-large-navigate-singletask-task3-v0."
        )
    name = (match["of"] or file_name).removeprefix("visual-")
    fitting = [one for one in table if f"{name}-".startswith(f"{one}-")]
    if not fitting:
        raise SchemaError(
            f"{where}: task={said!r}: {name} is no environment of OGBench with tasks"
            + (did_you_mean(name, table) or f"; these are {', '.join(table)}.")
        )
    environment = max(fitting, key=len)
    tasks = table[environment]["tasks"]
    number = int(match["one"] or match["other"] or table[environment]["default"])
    if not 1 <= number <= len(tasks):
        raise SchemaError(f"{where}: task={said!r}: {environment} has the tasks 1 to {len(tasks)}.")
    return Task(environment, number, tasks[number - 1])


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((records_folder() / "ogbench_tasks.json").read_text("utf-8"))
    return table


def with_rewards(pieces: Iterable[Steps], task: Task, split: str) -> Iterator[Steps]:
    """Yield steps with the rewards of a task; an episode ends with each step that ends the task.

    What follows in the files is an episode of its own: `episodes/trajectory` counts those of the files.
    """
    trajectory, is_inside = 0, False
    last = np.zeros(0)
    for piece in pieces:
        count = len(piece.rewards)
        is_first = len(piece.observations) > count
        seen = piece.observations if is_first else np.concatenate((last, piece.observations))
        rewards, done = task.judge(piece.infos)
        start = 0
        for stop in np.union1d(np.flatnonzero(done) + 1, [count]).tolist():
            is_cut = piece.ends and stop == count
            ends = is_cut or bool(done[stop - 1])
            yield Steps(
                observations=seen[start + is_inside : stop + 1],
                actions=piece.actions[start:stop],
                rewards=rewards[start:stop],
                ends=ends,
                terminated=bool(done[stop - 1]),
                truncated=is_cut,
                infos={name: values[start:stop] for name, values in piece.infos.items()},
                metadata={"split": split, "trajectory": trajectory} if ends else {},
            )
            start, is_inside = stop, not ends
        trajectory += piece.ends
        last = seen[-1:]
