"""Enforces deadlines on what a socket's timeout does not: servers that drip slowly, and lookups of names.

One thread watches the sockets that other threads wait for, and shuts down those past their
deadline. It ends by itself when there has been nothing to watch for a while.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Iterator

PERIOD = 0.1
IDLE_PERIODS = 50


@contextlib.contextmanager
def ends_within(seconds: float, watched: socket.socket | None) -> Iterator[None]:
    """Shut a socket down if the `with` block takes longer than `seconds`.

    Raises TimeoutError if it took longer; the error that this led to is its cause.
    """
    if watched is None:
        yield
        return
    wait = _Wait(watched, time.monotonic() + seconds)
    watcher = _watcher(os.getpid())
    watcher.add(wait)
    try:
        yield
    except Exception as error:
        if wait.is_over:
            raise TimeoutError(f"did not finish its answer in {seconds:g} seconds.") from error
        raise
    finally:
        watcher.remove(wait)
    if wait.is_over:
        raise TimeoutError(f"did not finish its answer in {seconds:g} seconds.")


@functools.lru_cache(256)
def find_host(host: str, seconds: float) -> None:
    """Look up the address of a host, which takes minutes where a network has no name server that answers.

    A host that was found is not looked up again, and one that is an address never.

    Raises socket.gaierror if there is no such host, or no answer within `seconds`.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return
    problems: list[OSError] = [
        socket.gaierror(socket.EAI_AGAIN, f"no answer in {seconds:g} seconds")
    ]

    def look_up() -> None:
        try:
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            problems.clear()
        except OSError as error:
            problems[:] = [error]
        except UnicodeError:  # said as an address that is none
            problems.clear()

    thread = threading.Thread(target=look_up, name="orlog-lookup", daemon=True)
    thread.start()
    thread.join(seconds)
    for problem in problems[:1]:
        raise problem


class _Wait:
    def __init__(self, watched: socket.socket, deadline: float) -> None:
        self.watched = watched
        self.deadline = deadline
        self.is_over = False


class _Watcher:
    def __init__(self) -> None:
        self._waits: set[_Wait] = set()
        self._lock = threading.Lock()
        self._is_running = False

    def add(self, wait: _Wait) -> None:
        with self._lock:
            self._waits.add(wait)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="orlog-watchdog", daemon=True).start()

    def remove(self, wait: _Wait) -> None:
        with self._lock:
            self._waits.discard(wait)

    def _run(self) -> None:
        idle = 0
        while True:
            time.sleep(PERIOD)
            now = time.monotonic()
            with self._lock:
                idle = 0 if self._waits else idle + 1
                if idle > IDLE_PERIODS:
                    self._is_running = False
                    return
                for wait in self._waits:
                    if now > wait.deadline and not wait.is_over:
                        wait.is_over = True
                        with contextlib.suppress(OSError):
                            wait.watched.shutdown(socket.SHUT_RDWR)


@functools.cache
def _watcher(process: int) -> _Watcher:  # noqa: ARG001 (a forked process has no such thread)
    return _Watcher()
