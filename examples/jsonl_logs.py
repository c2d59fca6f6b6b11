"""A format of one's own: logs with a JSON object a line, which `orlog import` then reads.

    {"run": "a", "seed": 3}
    {"position": [0.0, 0.1], "force": 0.4, "reward": 1.0}
    {"position": [0.1, 0.1], "end": "goal"}

A line with `run` starts an episode; then comes a line for each step, with the position before it; the last
one has no force, and says how the episode ended: `goal`, `time`, or `stop`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import orlog
from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.formats import Asked, Format, Note, Opened, Steps
from orlog.errors import SchemaError


@contextlib.contextmanager
def open_logs(asked: Asked) -> Iterator[Opened]:
    """Open the files, look at what they are, and give their episodes one by one."""
    schema = Schema(
        observation_space=gymnasium.spaces.Box(-1, 1, (2,), np.float64),
        action_space=gymnasium.spaces.Box(-1, 1, (1,), np.float64),
    )
    opened = Opened(schema=schema, steps=iter(()))
    opened.steps = episodes(asked.files, asked.sources, opened.notes)
    yield opened


def episodes(files: Sequence[Path], sources: Sequence[str], notes: list[Note]) -> Iterator[Steps]:
    """Yield whole episodes; long ones could come in pieces."""
    unknown = 0
    for file, where in zip(files, sources, strict=True):
        run: dict[str, Any] = {}
        lines: list[dict[str, Any]] = []
        for number, text in enumerate(file.read_text("utf-8").splitlines(), 1):
            try:
                line = json.loads(text)
            except ValueError as error:
                raise SchemaError(f"{where}, line {number}: expected JSON: {error}.") from error
            if "run" in line:
                run, lines = line, []
                continue
            lines.append(line)
            if "end" in line:
                unknown += line["end"] not in ("goal", "time")
                yield episode(run, lines, f"{where}, line {number}")
    if unknown:
        said = f"{unknown} episodes are unfinished: the logs do not say why they end."
        notes.append(Note("own", sentence=said))


def episode(run: dict[str, Any], lines: list[dict[str, Any]], where: str) -> Steps:
    """Return the steps of one episode."""
    steps = lines[:-1]
    try:
        return Steps(
            observations=np.array([line["position"] for line in lines], float).reshape(-1, 2),
            actions=np.array([line["force"] for line in steps], float)[:, None],
            rewards=np.array([line["reward"] for line in steps], float),
            terminated=lines[-1]["end"] == "goal",
            truncated=lines[-1]["end"] == "time",
            seed=run.get("seed"),
            metadata={"run": str(run["run"])},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError(f"{where}: the episode that ends here lacks {error}.") from error


def write_logs(dataset: orlog.Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write a file for each episode."""
    done = 0
    for number, one in enumerate(dataset):
        end = "goal" if one.terminations[-1] else "time" if one.truncations[-1] else "stop"
        lines: list[dict[str, Any]] = [{"run": one.metadata["run"], "seed": one.seed}]
        for step, reward in enumerate(one.rewards):
            position, (force,) = one.observations[step].tolist(), one.actions[step].tolist()
            lines.append({"position": position, "force": force, "reward": float(reward)})
        lines.append({"position": one.observations[-1].tolist(), "end": end})
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / f"{number}.jsonl").write_text(text, "utf-8")
        done += len(one.rewards)
        progress(done, dataset.total_steps)


def losses(dataset: orlog.Dataset) -> list[str]:
    """Say what the logs have no place for."""
    infos = [name for name in dataset.columns if name.startswith("infos/")]
    return [f"These columns are lost: {', '.join(infos)}."] if infos else []


FORMAT = Format(name="jsonl-logs", open=open_logs, extensions=(".jsonl",), write=write_logs, losses=losses)
