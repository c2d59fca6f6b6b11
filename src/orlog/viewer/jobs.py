"""Work that takes longer than a request: it runs in a thread, once, and its result is kept."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

Progress: TypeAlias = Callable[[int, int], None]
WAIT_SECONDS = 0.25  # quick work is answered at once


@dataclasses.dataclass
class _Job:
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)
    done: int = 0
    total: int = 0
    result: Any = None
    error: Exception | None = None


class Jobs:
    """Jobs by name. One runs at a time; threads end with the process, however far they are."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def ask(self, name: str, work: Callable[[Progress], Any]) -> dict[str, Any]:
        """Start work unless it was started, and return how far it is, or its result.

        Returns:
            `state` is `running`, with `done` and `total`, or `ready`, with `result`.

        Raises what the work raised, once; the next call starts it again.
        """
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                job = self._jobs[name] = _Job()
                threading.Thread(target=self._run, args=(job, work), daemon=True).start()
        if not job.ended.wait(WAIT_SECONDS):
            return {"state": "running", "done": job.done, "total": job.total}
        if job.error is not None:
            self._jobs.pop(name, None)
            raise job.error
        return {"state": "ready", "result": job.result}

    def _run(self, job: _Job, work: Callable[[Progress], Any]) -> None:
        def progress(done: int, total: int) -> None:
            job.done, job.total = done, total

        try:
            with self._turn:
                job.result = work(progress)
        except Exception as error:  # noqa: BLE001 (it is raised where the result is asked for)
            job.error = error
        finally:
            job.ended.set()
