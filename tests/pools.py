"""A pool of no processes, for tests of jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any


class ThisProcess(Executor):
    """A pool whose work is done in this process, when it is handed in."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 (as a pool does)
            future.set_exception(error)
        return future


@contextlib.contextmanager
def pool_in_this_process(_: int) -> Iterator[Executor]:
    yield ThisProcess()
