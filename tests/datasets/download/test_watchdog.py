"""Servers that never fall silent and never finish: the answer ends all the same."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orlog.datasets.download.http import Patience, read_small
from orlog.datasets.download.mirrors import Mirror
from orlog.datasets.download.transfer import fetch_object
from orlog.datasets.download.watchdog import ends_within, find_host
from orlog.errors import TransferError
from orlog.manifests.manifest import StoredObject
from tests.servers import COMES, FileServer

DATA = bytes(range(256)) * 4000
ITEM = StoredObject(path="c.0", size_bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())
IMPATIENT = Patience(idle=0, timeout=0.2, attempts=2, first_wait=0.001, longest_wait=0.01)
PATIENT = dataclasses.replace(IMPATIENT, timeout=COMES)
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SIZED = HEAD + b"Content-Length: 1024000\r\n\r\n"


@contextlib.contextmanager
def drip(start: bytes, drop: bytes) -> Iterator[str]:
    """Serve answers that begin with `start` and then go on with `drop`, 50 times a second."""
    is_over = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(2**16)
            connection.sendall(start)
            for _ in itertools.count():
                if is_over.wait(0.02):
                    return
                connection.sendall(drop)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threads.append(threading.Thread(target=answer, args=(connection,), daemon=True))
                threads[-1].start()

    threads.append(threading.Thread(target=accept, daemon=True))
    threads[0].start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        is_over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("start", "drop"),
    [
        (b"", b"H"),
        (HEAD, b"X-More: 1\r\n"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (SIZED, b"a"),
        (CHUNKED, b"1\r\na\r\n"),
        (CHUNKED + b"0\r\n", b"X-More: 1\r\n"),
        (b"HTTP/1.1 503 busy\r\nContent-Length: 60000\r\n\r\n", b"a"),
    ],
)
def test_an_answer_that_is_drawn_out_ends(tmp_path: Path, start: bytes, drop: bytes) -> None:
    with drip(start, drop) as url, FileServer(tmp_path) as good:
        with pytest.raises(TransferError):
            read_small(f"{url}/index.json", 2**20, patience=IMPATIENT)
        (tmp_path / "c.0").write_bytes(DATA)
        part = tmp_path / "parts" / "c.0.part"
        with pytest.raises(TransferError):
            fetch_object([Mirror(url)], ITEM, part, patience=IMPATIENT)
        # Another place gives the object, whatever came of it before; it has time to do so.
        fetch_object([Mirror(good.url)], ITEM, part, patience=PATIENT)
        assert part.read_bytes() == DATA


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_an_address_is_not_looked_up(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy for seconds would else take itself for one without a network."""
    monkeypatch.setattr(socket, "getaddrinfo", None)
    find_host(address, 0.0)


def test_what_ends_in_time_is_left_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with ends_within(60, ours):
            theirs.sendall(b"a")
            assert ours.recv(1) == b"a"
        with ends_within(0.01, None):
            theirs.sendall(b"b")
        assert ours.recv(1) == b"b"


def break_once_shut_down(theirs: socket.socket) -> None:
    assert theirs.recv(1) == b""
    raise OSError("broken")


def test_a_wait_that_is_over_names_the_time_and_the_cause() -> None:
    ours, theirs = socket.socketpair()
    said = pytest.raises(TimeoutError, match=r"in 0\.05 seconds")
    with ours, theirs, said, ends_within(0.05, ours):
        assert ours.recv(1) == b""
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError) as caught, ends_within(0.05, ours):
        break_once_shut_down(theirs)
    assert str(caught.value.__cause__) == "broken"
