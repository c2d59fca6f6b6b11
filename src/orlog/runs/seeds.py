"""Trains several seeds of one algorithm, each in a process and a folder of its own.

The processes share one memory map of the data. They tell what they do, and are asked to stop, by
files in a folder that exists as long as they run, so that any executor can run them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from orlog.algos.training.options import Hooks, TrainOptions
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import PathLike, as_path, run_folder
from orlog.algos.training.stopping import StopRequest
from orlog.algos.training.train import check_folder, curve_protocol, train_run
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.given import Given
from orlog.errors import OrlogError, StoppedError
from orlog.loaders.arrays.places import load_arrays
from orlog.runs.jobs import Executor, Job, find_executor
from orlog.runs.logs import check_log, in_turn, log_to
from orlog.runs.progress import Status, Watcher

_LOOK_SECONDS = 0.2
_STOP = "stop"
_MOST = 10_000  # seeds of one command


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SeedOutcome:
    """How the run of one seed ended.

    Attributes:
        seed: The seed.
        folder: Folder of the run.
        status: What was last known of it; its state is finished, stopped or failed.
        message: Why it failed; empty if it did not.
        details: Where in the code it failed, for errors that orlog does not raise on purpose.
    """

    seed: int
    folder: Path
    status: Status
    message: str = ""
    details: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Job(Job):
    """One seed to train, and where the processes tell what they do."""

    told: Path


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that a text names: `3` for so many from 0; or `0-3`, `0,2,5`, or `0-3,7`.

    Raises ValueError if it is no such text, or names a seed twice or none.
    """
    if text.strip().isascii() and text.strip().isdecimal():
        if int(text) == 0:
            raise ValueError(f"seeds={text!r} trains nothing; give 1 or more.")
        text = f"0-{int(text) - 1}"
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (one.strip() for one in part.partition("-"))
        numbers = [first, last] if dash else [first]
        if not all(one.isascii() and one.isdecimal() for one in numbers):
            raise ValueError(f"seeds={text!r}: expected seeds such as 0-3 or 0,2,5.")
        start, stop = int(numbers[0]), int(numbers[-1])
        if stop < start or stop - start >= _MOST:
            raise ValueError(
                f"seeds={text!r}: {part.strip()} names no seeds, or more than {_MOST:,}; write the smaller "
                "one first."
            )
        found += range(start, stop + 1)
    if len({*found}) < len(found):
        raise ValueError(f"seeds={text!r} names a seed twice; each is trained once.")
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SeedHooks:
    """What training of several seeds tells while it goes on, and how it is stopped.

    Attributes:
        show: Called with each running seed and what it does, about twice a second.
        stop: Asked as often; if it returns true, all save their state and stop.
    """

    show: Callable[[int, Status], None] = lambda _seed, _status: None
    stop: Callable[[], bool] = lambda: False


def seed_folders(
    algorithm: str, dataset: Given, seeds: Sequence[int], folder: PathLike | None = None
) -> dict[int, Path]:
    """Return the folder of each seed: `seed-N` in `folder`, by default in `runs/ALGORITHM/NAME`."""
    if folder is not None:
        return {seed: as_path(folder) / f"seed-{seed}" for seed in seeds}
    data = load_dataset(dataset)
    return {seed: run_folder("runs", algorithm, data, seed) for seed in seeds}


def train_seeds(
    algorithm: str,
    dataset: Given,
    folders: Mapping[int, Path],
    options: TrainOptions,
    hooks: SeedHooks = SeedHooks(),
    *,
    processes: int,
    resume: bool = False,
    executor: str | Executor = "processes",
) -> list[SeedOutcome]:
    """Train an algorithm with the seeds of some folders, and return how each ended, in their order.

    A seed that fails does not end the others. With `resume`, those that were interrupted go on and finished
    ones are skipped. The seed of `options` does not count.
    """
    check_log(options.log)
    dataset = load_dataset(dataset)
    kind = fitting_form(algorithm, dataset)
    if executor == "processes" and options.evaluations:  # said once, before any seed is begun
        curve_protocol(kind, dataset, options.curve_episodes, options.trust_environment)
    for one in folders.values():
        check_folder(one, resume=resume)
    where = "ram"
    if min(processes, len(folders)) > 1 and not options.stream:
        where = "mmap"
        load_arrays(dataset, where)  # made here, so that no process waits for another
    execute = find_executor(executor)
    outcomes: dict[int, SeedOutcome] = {}
    with tempfile.TemporaryDirectory(prefix="orlog-") as temporary:
        told = Path(temporary)
        jobs = [
            _Job(
                algorithm=algorithm,
                dataset=dataset if dataset.in_place else dataset.folder,
                folder=one,
                options=msgspec.structs.replace(options, seed=seed),
                resume=resume,
                where=where,
                told=told,
            )
            for seed, one in folders.items()
        ]
        for seed in folders:
            hooks.show(seed, Status(state="waiting"))

        def running(job: _Job) -> None:
            if hooks.stop():
                (told / _STOP).touch()
            status = _last_told(job)
            if status is not None:
                hooks.show(job.seed, status)

        there = [job.anywhere() for job in jobs]
        for index, found in execute(_train, there, workers=processes, running=running):
            ended = _failed(jobs[index], found) if isinstance(found, Exception) else found
            outcomes[index] = dataclasses.replace(ended, folder=jobs[index].folder)
            hooks.show(jobs[index].seed, outcomes[index].status)
    return [outcomes[index] for index in range(len(jobs))]


def _train(job: _Job) -> SeedOutcome:
    """Train one seed, in a process of its own; no error leaves it."""
    request, seen_at, is_asked = StopRequest(), 0.0, False

    def stop() -> bool:
        nonlocal seen_at, is_asked
        now = time.monotonic()
        if now - seen_at > _LOOK_SECONDS:
            seen_at, is_asked = now, (job.told / _STOP).exists()
        return is_asked or request.signal != 0

    if stop():
        return _ended(job, Status(), "stopped")
    watcher: Watcher | None = None
    try:
        dataset = load_dataset(job.dataset)
        watching = watcher = Watcher(dataset, lambda status: _tell(job, status))
        logging = log_to(job.options.log, job.folder, watcher.normalize)
        with request.noted(), logging as copy_line:
            hooks = Hooks(
                progress=watcher.progress,
                log=in_turn(watcher.log, copy_line),
                begin=copy_line.begin,
                note=watcher.note,
                tell=lambda line: watching.note(f"from the data: {line}"),
                stop=stop,
            )
            train_run(
                job.algorithm,
                dataset,
                job.folder,
                job.options,
                hooks,
                resume=job.resume,
                where=job.where,
            )
    except StoppedError as stopped:
        assert watcher is not None
        status = msgspec.structs.replace(watcher.status, step=stopped.step)
        return _ended(job, status, "stopped")
    except Exception as error:  # noqa: BLE001 (whatever it is, the other seeds go on)
        return _failed(job, error, watcher.status if watcher is not None else None)
    return _ended(job, watcher.status, "finished")


def _ended(job: _Job, status: Status, state: str, **more: str) -> SeedOutcome:
    status = msgspec.structs.replace(status, state=state)
    return SeedOutcome(seed=job.seed, folder=job.folder, status=status, **more)


def _failed(job: _Job, error: Exception, status: Status | None = None) -> SeedOutcome:
    known = isinstance(error, OrlogError | ValueError | OSError | FloatingPointError)
    message = str(error) if known else f"{type(error).__name__}: {error}"
    details = "" if known else "".join(traceback.format_exception(error))
    status = status or _last_told(job) or Status()
    return _ended(job, status, "failed", message=message, details=details)


def _tell(job: _Job, status: Status) -> None:
    path = job.told / f"{job.seed}.json"
    unfinished = path.with_suffix(".unfinished")
    with contextlib.suppress(OSError):  # a full disk for temporary files must not end a run
        unfinished.write_bytes(msgspec.json.encode(status))
        unfinished.replace(path)


def _last_told(job: _Job) -> Status | None:
    try:
        return msgspec.json.decode((job.told / f"{job.seed}.json").read_bytes(), type=Status)
    except (OSError, msgspec.DecodeError):
        return None
