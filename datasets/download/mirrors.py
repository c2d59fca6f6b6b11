"""Mirrors that a file can come from: how many requests each takes, and when it is asked again."""

from __future__ import annotations

import math
import threading
import time
import urllib.parse

from orlog.datasets.download.http import (
    BLOCK_BYTES,
    Failure,
    Patience,
    is_http,
    pause_after,
    tell_failure,
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
