"""Turns Ctrl-C and SIGTERM into a request to stop, for work that must save something first."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class StopRequest:
    """Records the first signal that asks a process to stop; a second one acts as usual.

    Attributes:
        signal: Number of the signal received; 0 if there was none.
    """

    def __init__(self) -> None:
        self.signal = 0

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Record signals instead of being ended by them. Only the main thread can do this."""
        self._usual = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            self._act_as_usual()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        self._act_as_usual()

    def _act_as_usual(self) -> None:
        for number, handler in self._usual.items():
            signal.signal(number, handler)
