"""Copies the log of a run to TensorBoard or Weights & Biases; `metrics.jsonl` always has it.

    FOLDER/tensorboard/     written again from `metrics.jsonl` when a run is resumed
    FOLDER/wandb.json       the id of the run there, and the last step that was sent

So a run that is killed and resumed has each point once in both.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from orlog.algos.training.runs import RUN_FILE, read_run
from orlog.base.files import replace_file
from orlog.errors import MissingExtraError, NotFoundError, clause
from orlog.manifests.names import did_you_mean
from orlog.normalize.metrics import EpisodeOutcomes, numbers_of, of_fields

LOGS = ("none", "tensorboard", "wandb")
_WANDB_FILE = "wandb.json"


class _Sink(Protocol):
    def write(self, step: int, seconds: float, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


def check_log(kind: str) -> None:
    """Check that a log can be written.

    Raises ValueError if there is no such kind of log; MissingExtraError if its package is not installed.
    """
    if kind not in LOGS:
        hint = did_you_mean(kind, LOGS) or "."
        raise ValueError(f"log must be {', '.join(LOGS[:-1])} or {LOGS[-1]}, found {kind!r}{hint}")
    if kind != "none" and importlib.util.find_spec(kind) is None:
        raise MissingExtraError(f"log={kind!r} needs {kind}, which is not installed", install=kind)


def in_turn(*functions: Callable[[Mapping[str, Any]], None]) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that calls each of some functions with a line."""

    def call(line: Mapping[str, Any]) -> None:
        for function in functions:
            function(line)

    return call


class Log:
    """Copies the lines of a run's log; `log_to` makes it."""

    def __init__(
        self, kind: str, folder: Path, normalize: Callable[[np.ndarray], np.ndarray] | None
    ) -> None:
        self._kind, self._folder, self._normalize = kind, folder, normalize
        self._sink: _Sink | None = None

    def begin(self) -> None:
        """Open what is written to, once the folder has the run's record.

        Raises NotFoundError if it cannot be opened, such as without an account.
        """
        if self._kind != "none" and self._sink is None:
            kind = _TensorBoard if self._kind == "tensorboard" else _WeightsAndBiases
            self._sink = kind(self._folder)

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Copy a line."""
        self.begin()
        if self._sink is None:
            return
        values = {
            name: float(value)
            for name, value in line.items()
            if name not in ("step", "seconds") and isinstance(value, int | float)
        }
        if "returns" in line:
            returns = np.array(line["returns"], float)
            values["evaluation/return"] = float(returns.mean())
            if self._normalize is not None:
                values["evaluation/score"] = float(self._normalize(returns).mean())
            for one in numbers_of([EpisodeOutcomes(returns=returns, metrics=of_fields(line))]):
                values[f"evaluation/{one.name.replace(' ', '_')}"] = one.value
        self._sink.write(line["step"], float(line.get("seconds", 0)), values)

    def close(self) -> None:
        """Close what is written to."""
        if self._sink is not None:
            self._sink.close()


@contextlib.contextmanager
def log_to(
    kind: str, folder: Path, normalize: Callable[[np.ndarray], np.ndarray] | None = None
) -> Iterator[Log]:
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


class _TensorBoard:
    """Event files; their times are those of the training, from the start of the run on."""

    def __init__(self, folder: Path) -> None:
        writing: Any = importlib.import_module("torch.utils.tensorboard")
        place = folder / "tensorboard"
        for old in place.glob("events.out.tfevents.*"):
            old.unlink()
        self._start = (folder / RUN_FILE).stat().st_mtime
        self._writer = writing.SummaryWriter(str(place))

    def write(self, step: int, seconds: float, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, self._start + seconds)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Sent(msgspec.Struct):
    id: str
    step: int = -1


class _WeightsAndBiases:
    """One run there, with the same id when it is resumed; points that it has are not sent again."""

    def __init__(self, folder: Path) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._path = folder / _WANDB_FILE
        try:
            self._sent = msgspec.json.decode(self._path.read_bytes(), type=_Sent)
        except (OSError, msgspec.DecodeError):
            self._sent = _Sent(id=secrets.token_hex(8))
        record = read_run(folder)
        group = f"{record.algorithm} {record.dataset}"
        if record.online is not None and record.online.run:
            group = f"finetune {group}"
        try:
            self._run = wandb.init(
                project="orlog",
                id=self._sent.id,
                resume="allow" if self._sent.step >= 0 else None,
                dir=str(folder),
                name=f"{group} seed {record.seed}",
                group=group,
                config=msgspec.to_builtins(record),
                settings=wandb.Settings(silent=True),
            )
        except Exception as error:  # such as no account on this machine
            raise NotFoundError(
                f"log='wandb': {clause(error)}; run: wandb login; or set WANDB_MODE=offline."
            ) from error

    def write(self, step: int, seconds: float, values: dict[str, float]) -> None:
        if step <= self._sent.step:
            return
        self._sent.step = step
        replace_file(self._path, msgspec.json.encode(self._sent))
        self._run.log({**values, "training_seconds": seconds}, step=step)

    def close(self) -> None:
        self._run.finish()
