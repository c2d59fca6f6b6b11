"""Trains several seeds of one algorithm, each in a process and a folder of its own.

The processes share one memory map of the data. They tell what they do, and are asked to stop, by
files in a folder that exists as long as they run, so that any executor can run them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import PathLike, TrainOptions, as_path, check_folder, run_folder
from orlog.algos.training.train import curve_protocol, train_run
from orlog.base.processes import StopRequest
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.opening import Given
from orlog.errors import OrlogError, StoppedError
from orlog.loaders.places import load_arrays
from orlog.runs.jobs import Executor, Job, find_executor, jobs_of
from orlog.runs.progress import Status, Watcher, check_log, watching

_LOOK_SECONDS = 0.2
_STOP = "stop"
_MOST = 10_000  # seeds of one command


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that a text names: `3` for so many from 0; or `0-3`, `0,2,5`, or `0-3,7`.

    Raises ValueError if it is no such text, or names a seed twice or none.
    """
    if text.strip().isascii() and text.strip().isdecimal():
        if int(text) == 0:
            raise ValueError(f"seeds={text!r} trains nothing; give 1 or more.")
        text = f"0-{int(text) - 1}"
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        numbers = [first, last] if dash else [first]
        if not all(number.isascii() and number.isdecimal() for number in numbers):
            raise ValueError(f"seeds={text!r}: expected seeds such as 0-3 or 0,2,5.")
        start, stop = int(numbers[0]), int(numbers[-1])
        if stop < start or stop - start >= _MOST:
            raise ValueError(
                f"seeds={text!r}: {part.strip()} names no seeds, or more than {_MOST:,}; write the smaller one first."
            )
        seeds += range(start, stop + 1)
    if len({*seeds}) < len(seeds):
        raise ValueError(f"seeds={text!r} names a seed twice; each is trained once.")
    return seeds


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
    *,
    processes: int,
    resume: bool = False,
    show: Callable[[int, Status], None] = lambda _seed, _status: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[int, Status]:
    """Train an algorithm with the seeds of some folders, and return how each ended: finished, stopped or failed.

    A seed that fails does not end the others. With `resume`, those that were interrupted go on and finished
    ones are skipped. About twice a second `show` is called with each running seed and what it does, and
    `stop` is asked; once it returns true, all save their state and stop.
    """
    check_log(options.log)
    dataset = load_dataset(dataset)
    kind = fitting_form(algorithm, dataset)
    if options.evaluations:  # said once, before any seed is begun
        curve_protocol(kind, dataset, options.curve_episodes, options.trust_environment)
    for folder in folders.values():
        check_folder(folder, resume=resume)
    where = "ram"
    if min(processes, len(folders)) > 1 and not options.stream:
        where = "mmap"
        load_arrays(dataset, where)  # made here, so that no process waits for another
    jobs = jobs_of(algorithm, dataset, folders, options, resume=resume, where=where)
    ends: dict[int, Status] = {}
    with tempfile.TemporaryDirectory(prefix="orlog-") as temporary:
        place = Path(temporary)
        for seed in folders:
            show(seed, Status(state="waiting"))

        def running(job: Job) -> None:
            if stop():
                (place / _STOP).touch()
            status = _last_told(place, job.seed)
            if status is not None:
                show(job.seed, status)

        execute: Executor = find_executor("processes")
        work = functools.partial(_train, place)
        there = [job.anywhere() for job in jobs]
        for index, end in execute(work, there, workers=processes, running=running):
            seed = jobs[index].seed
            if isinstance(end, Exception):
                end = _failed(end, _last_told(place, seed) or Status())
            ends[seed] = end
            show(seed, end)
    return {seed: ends[seed] for seed in folders}


def _train(place: Path, job: Job) -> Status:
    """Train one seed, in a process of its own that tells what it does in a folder; no error leaves it."""
    request, seen_at, is_asked = StopRequest(), 0.0, False

    def stop() -> bool:
        nonlocal seen_at, is_asked
        now = time.monotonic()
        if now - seen_at > _LOOK_SECONDS:
            seen_at, is_asked = now, (place / _STOP).exists()
        return is_asked or request.signal != 0

    if stop():
        return Status(state="stopped")
    watcher: Watcher | None = None
    try:
        dataset = load_dataset(job.dataset)
        watcher = Watcher(dataset, functools.partial(_tell, place, job.seed))
        with request.noted(), watching(watcher, job.folder, job.options.log, stop) as hooks:
            note = hooks.note
            train_run(
                job.algorithm,
                dataset,
                job.folder,
                job.options,
                dataclasses.replace(hooks, tell=lambda line: note(f"from the data: {line}")),
                resume=job.resume,
                where=job.where,
            )
    except StoppedError as stopped:
        assert watcher is not None
        return msgspec.structs.replace(watcher.status, step=stopped.step, state="stopped")
    except Exception as error:  # noqa: BLE001 (whatever it is, the other seeds go on)
        return _failed(error, Status() if watcher is None else watcher.status)
    return msgspec.structs.replace(watcher.status, state="finished")


def _failed(error: Exception, status: Status) -> Status:
    is_known = isinstance(error, OrlogError | ValueError | OSError | FloatingPointError)
    return msgspec.structs.replace(
        status,
        state="failed",
        message=str(error) if is_known else f"{type(error).__name__}: {error}",
        details="" if is_known else "".join(traceback.format_exception(error)),
    )


def _tell(place: Path, seed: int, status: Status) -> None:
    path = place / f"{seed}.json"
    unfinished = path.with_suffix(".unfinished")
    with contextlib.suppress(OSError):  # a full disk for temporary files must not end a run
        unfinished.write_bytes(msgspec.json.encode(status))
        unfinished.replace(path)


def _last_told(place: Path, seed: int) -> Status | None:
    try:
        return msgspec.json.decode((place / f"{seed}.json").read_bytes(), type=Status)
    except (OSError, msgspec.DecodeError):
        return None
