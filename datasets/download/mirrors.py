"""Mirrors that a file can come from: how many requests each takes, and when it is asked again."""

from __future__ import annotations

import math
import threading
import time
import urllib.parse
from collections.abc import Callable

from orlog.datasets.download.http import (
    BLOCK_BYTES,
    Failure,
    Patience,
    is_http,
    is_out_of_reach,
    pause_after,
    tell_failure,
    times,
)

SLEEP = 0.25


TURN = 0.05  # seconds until a thread checks again whether it may send a request


FIRST_GAP = 0.05  # seconds between requests, once a server wants fewer


SMALLEST_GAP = 0.001


LARGEST_GAP = 1.0  # longer waits are pauses, which end with the first response


class Limiter:
    """A limit on the total speed of all transfers that share this object, in any thread."""

    def __init__(self, bytes_per_second: float) -> None:
        if not bytes_per_second > 0:
            raise ValueError(
                f"a rate limit is positive; {bytes_per_second} bytes per second is not."
            )
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._paid_until = time.monotonic()

    @property
    def block_bytes(self) -> int:
        """Most bytes to read at once, so that a wait takes at most about a tenth of a second."""
        return max(1024, min(BLOCK_BYTES, int(self._rate / 10)))

    def take(self, size_bytes: int) -> None:
        """Wait until that many more bytes are allowed."""
        with self._lock:
            now = time.monotonic()
            # Unused time is saved up for a quarter of a second only.
            self._paid_until = max(self._paid_until, now - 0.25) + size_bytes / self._rate
            wait = self._paid_until - now
        if wait > 0:
            time.sleep(wait)


class Mirror:
    """A place that has the objects. Threads share it: one thread's back-off applies to all.

    When a server asks for fewer requests (429, 503), half as many are sent at once, and the gaps
    between them double each time. Both recover slowly with each request that succeeds.

    Attributes:
        url: URL of the folder that the objects' paths start from.
        uses_ranges: Whether to send it range requests; false once it has answered one wrongly.
        free_at: Time (of `time.monotonic`) before which no request is sent to it.
        moved_at: Time at which it last gave something new.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.uses_ranges = True
        self.free_at = 0.0
        self.moved_at = 0.0
        self._failures = 0
        self._failed_at = 0.0
        self._requests = 0  # in progress
        self._most_requests = math.inf
        self._gap = 0.0
        self._lock = threading.Lock()

    def url_of(self, path: str) -> str:
        """Return the URL of an object; fsspec takes paths as they are, HTTP wants them quoted."""
        if not path:
            return self.url
        return f"{self.url}/{urllib.parse.quote(path) if is_http(self.url) else path}"

    def enter(self) -> float:
        """Reserve a request and return 0, or return the seconds after which to try again."""
        with self._lock:
            now = time.monotonic()
            if now < self.free_at:
                return self.free_at - now
            if self._requests >= self._most_requests:
                return TURN
            self._requests += 1
            self.free_at = now + self._gap
            return 0.0

    def leave(self) -> None:
        """Release a request that `enter` has reserved."""
        with self._lock:
            self._requests -= 1

    def hold_off(self, failure: Failure, patience: Patience, *, began: float) -> None:
        """Set when it may be asked again, after the failure of a request that started at `began`."""
        with self._lock:
            # Requests of several threads that fail together are one failure.
            if began >= self._failed_at:
                self._failures += 1
                self._failed_at = time.monotonic()
                pause = pause_after(failure, self._failures, patience)
                self.free_at = max(self.free_at, self._failed_at + pause)
                tell_failure(self.url, failure, pause)
                if failure.is_overload:
                    self._most_requests = max(1.0, self._requests // 2)
                    self._gap = min(
                        max(FIRST_GAP, 2 * self._gap), LARGEST_GAP, patience.longest_wait
                    )
            if failure.is_lie:
                self.uses_ranges = False

    def works(self) -> None:
        """Note that a request succeeded, or gave enough to count as a success."""
        with self._lock:
            self._failures = 0
            self._most_requests += 1 / self._most_requests
            self._gap = 0.9 * self._gap if self._gap > SMALLEST_GAP else 0.0


class Tries:
    """The mirrors that are left for one request, which of them are asked again when, and why others were given up.

    Attributes:
        left: Those that may still be asked, in order.
        reasons: What was wrong the last time, by mirror.
    """

    def __init__(self, left: list[Mirror], reasons: dict[Mirror, str], patience: Patience) -> None:
        self.left, self.reasons, self._patience = left, reasons, patience
        self._failures = dict.fromkeys(left, 0)
        self._failing_since: dict[Mirror, float] = {}
        self._again_at: dict[Mirror, float] = {}
        self._start = time.monotonic()

    def free(self, progress: Callable[[int], None] = lambda _: None) -> Mirror:
        """Wait for a mirror that may be asked; return the first one, with a request reserved."""
        while True:
            wait = SLEEP
            for mirror in self.left:
                seconds = self._again_at.get(mirror, 0.0) - time.monotonic()
                if seconds <= 0:
                    seconds = mirror.enter()
                if seconds <= 0:
                    return mirror
                wait = min(wait, seconds)
            time.sleep(wait)
            progress(0)

    def gave(self, mirror: Mirror) -> None:
        """Note that a request failed in the end, but gave enough to count as a success before."""
        mirror.works()
        self._failures[mirror] = 0
        self._failing_since.pop(mirror, None)

    def failed(self, mirror: Mirror, failure: Failure, began: float) -> None:
        """Note why a request that started at `began` failed: the mirror is given up, or asked again later."""
        now, patience = time.monotonic(), self._patience
        self._failures[mirror] += 1
        count = self._failures[mirror]
        self.reasons[mirror] = f"{failure} ({times(count)})"
        # While other threads still get data from this mirror, this object may succeed too.
        idle = now - max(mirror.moved_at, self._failing_since.setdefault(mirror, now))
        is_over = count >= patience.attempts and idle >= patience.idle
        if is_over and not failure.is_final:
            self.reasons[mirror] += f", nothing new for {idle:.0f} seconds"
        pause = pause_after(failure, count, patience)
        is_lost = not mirror.moved_at and is_out_of_reach(failure, self._start, pause, patience)
        if is_lost:
            self.reasons[mirror] += "; is this machine online?"
        if failure.is_final or is_over or is_lost:
            self.left.remove(mirror)
        if not (failure.is_final or is_lost):
            mirror.hold_off(failure, patience, began=began)
            if not failure.is_overload:  # perhaps only this object fails: others need not wait
                self._again_at[mirror] = now + pause
