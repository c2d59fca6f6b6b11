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

from orlog.datasets.download.http import Patience, find_host
from orlog.datasets.download.transfer import Expected, Mirror, fetch_object, read_small
from orlog.errors import TransferError
from tests.servers import COMES, FileServer

DATA = bytes(range(256)) * 4000
ITEM = Expected(path="c.0", size_bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())
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
