"""A pool of no processes, and an executor that loses one, for tests of jobs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from orlog.base.jobs import execute_here


class ThisProcess(Executor):
    """A pool whose work is done in this process, when it is handed in."""

    def submit(self, work, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 (as a pool does)
            future.set_exception(error)
        return future


@contextlib.contextmanager
def pool_in_this_process(_):
    yield ThisProcess()


@dataclasses.dataclass(frozen=True)
class KillOnce:
    """Does a job, but kills its process before, the first time that there is one."""

    function: Callable[[Any], Any]
    folder: Path

    def __call__(self, job):
        try:
            (self.folder / "killed").touch(exist_ok=False)
        except FileExistsError:
            return self.function(job)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def killing_once(folder, function, jobs, *, workers, running):
    yield from execute_here(KillOnce(function, folder), jobs, workers=workers, running=running, attempts=2)
