"""What runs are doing: lines on a terminal, now and then a line in a pipe, and copies of the log elsewhere.

`metrics.jsonl` in a run's folder always has the log. On request it is copied, each point once though a run is
killed and resumed:

    FOLDER/tensorboard/     written again from `metrics.jsonl` when a run is resumed
    FOLDER/wandb.json       the id of the run at Weights & Biases, and the last step that was sent
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import importlib.util
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from orlog.algos.training.runs import RUN_FILE, read_run
from orlog.algos.training.train import Hooks
from orlog.base.files import replace_file
from orlog.base.terminal import progress_bars
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import MissingExtraError, NotFoundError, OrlogError, clause
from orlog.manifests.names import did_you_mean
from orlog.normalize.metrics import EpisodeOutcomes, Number, in_short, numbers_of, of_fields
from orlog.runs.references import references

LOGS = ("none", "tensorboard", "wandb")
_SMOOTHING = 0.3  # weight of the newest half second in the speed that is shown
_LOSS = "/loss"

Normalize: TypeAlias = Callable[[np.ndarray], np.ndarray]
_Write: TypeAlias = Callable[[int, float, dict[str, float]], None]


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
        message: Why it failed; empty if it did not.
        details: Where in the code it failed, for errors that orlog does not raise on purpose.
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
    message: str = ""
    details: str = ""

    def words(self) -> list[str]:
        """Return losses, score, metrics, speed and time left, as far as they are known."""
        words = [f"{name.removesuffix(_LOSS)} {value:.4g}" for name, value in self.losses.items()]
        if words:
            words[0] = f"loss: {words[0]}"
        if self.score is not None:
            words.append(f"{'score' if self.is_normalized else 'return'} {self.score:z.1f}")
        words += self.counted
        if self.speed:
            words.append(f"{self.speed:z,.0f} updates/s")
            left = round((self.steps - self.step) / self.speed)
            if left:
                words.append(f"{dt.timedelta(seconds=left)} left")
        return words


class Watcher:
    """Turns what training tells (`progress` and `log` of `train_run`) into a `Status` each time."""

    def __init__(self, dataset: Dataset, show: Callable[[Status], None]) -> None:
        """Begin to watch a run on a dataset, whose references turn returns into scores."""
        self.normalize: Normalize | None = None
        with contextlib.suppress(OrlogError):  # without references, or with damaged ones
            self.normalize = references(dataset).normalize
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
            mean, score, numbers = _evaluated(line, self.normalize)
            changed |= {"score": mean if score is None else score, "counted": in_short(numbers)}
            self._since = None  # the evaluation took time too
        self._change(**changed)

    def note(self, text: str) -> None:
        """Take in what the user should know."""
        self._change(notes=[*self.status.notes, text])

    def _change(self, **changed: Any) -> None:
        self.status = msgspec.structs.replace(self.status, **changed)
        self._show(self.status)


def _evaluated(line: Mapping[str, Any], normalize: Normalize | None) -> tuple[float, float | None, list[Number]]:
    """Return mean return, mean score where references are known, and what metrics counted in a line of the log."""
    returns = np.array(line["returns"], float)
    score = None if normalize is None else float(normalize(returns).mean())
    numbers = numbers_of([EpisodeOutcomes(returns=returns, metrics=of_fields(line))])
    return float(returns.mean()), score, numbers


@contextlib.contextmanager
def watching(watcher: Watcher, folder: Path, log: str, stop: Callable[[], bool]) -> Iterator[Hooks]:
    """Yield the hooks by which a run tells a watcher what it does, copies its log and is asked to stop."""
    with log_to(log, folder, watcher.normalize) as copy:

        def hear(line: Mapping[str, Any]) -> None:
            watcher.log(line)
            copy(line)

        yield Hooks(progress=watcher.progress, log=hear, begin=copy.begin, stop=stop, note=watcher.note)


@contextlib.contextmanager
def status_lines() -> Iterator[Callable[[str, Status], None]]:
    """Show a line for each label; yield a function of (label, status).

    If the output is not a terminal, what changed is printed there every 20 seconds.
    """
    with progress_bars() as update:
        yield lambda label, status: update(
            label, status.step, status.steps or None, status.state or ", ".join(status.words())
        )


def check_log(kind: str) -> None:
    """Check that a log can be written.

    Raises ValueError if there is no such kind of log; MissingExtraError if its package is not installed.
    """
    if kind not in LOGS:
        hint = did_you_mean(kind, LOGS) or "."
        raise ValueError(f"log must be {', '.join(LOGS[:-1])} or {LOGS[-1]}, found {kind!r}{hint}")
    if kind != "none" and importlib.util.find_spec(kind) is None:
        raise MissingExtraError(f"log={kind!r} needs {kind}, which is not installed", install=kind)


class Log:
    """Copies the lines of a run's log; `log_to` makes it."""

    def __init__(self, kind: str, folder: Path, normalize: Normalize | None) -> None:
        self._kind, self._folder, self._normalize = kind, folder, normalize
        self._write: _Write | None = None
        self.close: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Open what is written to, once the folder has the run's record.

        Raises NotFoundError if it cannot be opened, such as without an account.
        """
        if self._kind != "none" and self._write is None:
            begin = _begin_tensorboard if self._kind == "tensorboard" else _begin_wandb
            self._write, self.close = begin(self._folder)

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Copy a line."""
        self.begin()
        if self._write is None:
            return
        values = {
            name: float(value)
            for name, value in line.items()
            if name not in ("step", "seconds") and isinstance(value, int | float)
        }
        if "returns" in line:
            values["evaluation/return"], score, numbers = _evaluated(line, self._normalize)
            if score is not None:
                values["evaluation/score"] = score
            values |= {f"evaluation/{one.name.replace(' ', '_')}": one.value for one in numbers}
        self._write(line["step"], float(line.get("seconds", 0)), values)


@contextlib.contextmanager
def log_to(kind: str, folder: Path, normalize: Normalize | None = None) -> Iterator[Log]:
    """Yield what takes each line of a run's log, as `train_run` gives them, and copies it.

    `kind` is `tensorboard`, `wandb` or `none`; `normalize` turns returns into scores, where references are
    known.
    """
    check_log(kind)
    log = Log(kind, folder, normalize)
    try:
        yield log
    finally:
        log.close()


def _begin_tensorboard(folder: Path) -> tuple[_Write, Callable[[], None]]:
    """Begin event files, whose times are those of the training, from the start of the run on."""
    writing: Any = importlib.import_module("torch.utils.tensorboard")
    place = folder / "tensorboard"
    for old in place.glob("events.out.tfevents.*"):
        old.unlink()
    start = (folder / RUN_FILE).stat().st_mtime
    writer = writing.SummaryWriter(str(place))

    def write(step: int, seconds: float, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step, start + seconds)
        writer.flush()

    return write, writer.close


class _Sent(msgspec.Struct):
    id: str
    step: int = -1


def _begin_wandb(folder: Path) -> tuple[_Write, Callable[[], None]]:
    """Begin a run there, with the same id when it is resumed; points that it has are not sent again."""
    wandb: Any = importlib.import_module("wandb")
    path = folder / "wandb.json"
    sent = _Sent(id=secrets.token_hex(8))
    with contextlib.suppress(OSError, msgspec.DecodeError):
        sent = msgspec.json.decode(path.read_bytes(), type=_Sent)
    record = read_run(folder)
    group = f"{record.algorithm} {record.dataset}"
    if record.online is not None and record.online.run:
        group = f"finetune {group}"
    try:
        run = wandb.init(
            project="orlog",
            id=sent.id,
            resume="allow" if sent.step >= 0 else None,
            dir=str(folder),
            name=f"{group} seed {record.seed}",
            group=group,
            config=msgspec.to_builtins(record),
            settings=wandb.Settings(silent=True),
        )
    except Exception as error:  # such as no account on this machine
        raise NotFoundError(f"log='wandb': {clause(error)}; run: wandb login; or set WANDB_MODE=offline.") from error

    def write(step: int, seconds: float, values: dict[str, float]) -> None:
        if step > sent.step:
            sent.step = step
            replace_file(path, msgspec.json.encode(sent))
            run.log({**values, "training_seconds": seconds}, step=step)

    return write, run.finish
