"""Fixtures for the front: jobs of `orlog reproduce` without the start of processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pytest


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


@pytest.fixture
def jobs_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run jobs in this process; processes of their own are for what only these can show."""
    monkeypatch.setattr("orlog.executors.processes.process_pool", pool_in_this_process)
