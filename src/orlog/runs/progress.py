"""What runs are doing: a line for each on a terminal, and in a pipe a line now and then."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from orlog.base.terminal import progress_bars
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import OrlogError
from orlog.normalize.metrics import EpisodeOutcomes, in_short, numbers_of, of_fields
from orlog.runs.references import references

_SMOOTHING = 0.3  # weight of the newest half second in the speed that is shown
_LOSS = "/loss"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is doing.

    Attributes:
        step: Gradient steps taken.
        steps: Gradient steps in all; 0 if not known yet.
        speed: Updates per second, without the time of evaluations; None if not known yet.
        losses: Last logged means, by name.
        score: Mean score of the last evaluation, or mean return; None if there was none.
        is_normalized: Whether the score is normalized.
        counted: What metrics counted in the last evaluation, in words.
        state: What it does if it does not train: waiting, finished, stopped or failed.
        notes: What to tell the user once.
    """

    step: int = 0
    steps: int = 0
    speed: float | None = None
    losses: dict[str, float] = {}
    score: float | None = None
    is_normalized: bool = True
    counted: list[str] = []
    state: str = ""
    notes: list[str] = []

    def words(self) -> list[str]:
        """Return losses, score, metrics, speed and time left, as far as they are known."""
        found = [f"{name.removesuffix(_LOSS)} {value:.4g}" for name, value in self.losses.items()]
        if found:
            found[0] = f"loss: {found[0]}"
        if self.score is not None:
            found.append(f"{'score' if self.is_normalized else 'return'} {self.score:z.1f}")
        found += self.counted
        if self.speed:
            found.append(f"{self.speed:z,.0f} updates/s")
            left = round((self.steps - self.step) / self.speed)
            if left:
                found.append(f"{dt.timedelta(seconds=left)} left")
        return found


def normalizer(dataset: Dataset) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return what turns returns on a dataset into scores; None without references, or damaged ones."""
    try:
        return references(dataset).normalize
    except OrlogError:
        return None


class Watcher:
    """Turns what training tells (`progress` and `log` of `train_run`) into a `Status` each time."""

    def __init__(self, dataset: Dataset, show: Callable[[Status], None]) -> None:
        """Begin to watch a run on a dataset, whose references turn returns into scores."""
        self.normalize = normalizer(dataset)
        self.status = Status(is_normalized=self.normalize is not None)
        self._show = show
        self._since: tuple[float, int] | None = None

    def progress(self, step: int, steps: int) -> None:
        """Take in the number of steps done and of all."""
        now, speed = time.monotonic(), self.status.speed
        if self._since is not None and step > self._since[1] and now > self._since[0]:
            newest = (step - self._since[1]) / (now - self._since[0])
            speed = newest if speed is None else speed + _SMOOTHING * (newest - speed)
        self._since = now, step
        self._change(step=step, steps=steps, speed=speed)

    def log(self, line: Mapping[str, Any]) -> None:
        """Take in a line of the log."""
        changed: dict[str, Any] = {}
        losses = {name: value for name, value in line.items() if name.endswith(_LOSS)}
        if losses:
            changed["losses"] = losses
        if "returns" in line:
            values = np.array(line["returns"], float)
            changed["score"] = float(
                (values if self.normalize is None else self.normalize(values)).mean()
            )
            played = EpisodeOutcomes(returns=values, metrics=of_fields(line))
            changed["counted"] = in_short(numbers_of([played]))
            self._since = None  # the evaluation took time too
        self._change(**changed)

    def note(self, text: str) -> None:
        """Take in what the user should know."""
        self._change(notes=[*self.status.notes, text])

    def _change(self, **changed: Any) -> None:
        self.status = msgspec.structs.replace(self.status, **changed)
        self._show(self.status)


@contextlib.contextmanager
def status_lines() -> Iterator[Callable[[str, Status], None]]:
    """Show a line for each label; yield a function of (label, status).

    If the output is not a terminal, what changed is printed there every 20 seconds.
    """
    with progress_bars() as update:
        yield lambda label, status: update(
            label, status.step, status.steps or None, status.state or ", ".join(status.words())
        )


@contextlib.contextmanager
def watched(label: str, dataset: Dataset) -> Iterator[Watcher]:
    """Show the line of one run; yield what takes in what training tells."""
    with status_lines() as update:
        yield Watcher(dataset, lambda status: update(label, status))
