"""Transfers from real servers that do everything wrong: right bytes or a TransferError that tells."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import email.utils
import errno
import hashlib
import os
import random
import resource
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orlog.datasets.download import transfer as places
from orlog.datasets.download.http import Patience
from orlog.datasets.download.transfer import Expected, Limiter, Mirror, fetch_object, read_small
from orlog.errors import MissingExtraError, NotFoundError, StorageError, TransferError
from tests.clocks import Clock
from tests.levels import scaled
from tests.servers import COMES, Fault, FileServer

PATH = "observations/c.0.0"
DATA = random.Random(0).randbytes(1_000_003)
QUICK = Patience(idle=0, timeout=COMES, attempts=3, first_wait=0.01, longest_wait=0.1)
HASTY = dataclasses.replace(QUICK, timeout=0.5)  # for servers that fall silent, and for these alone
WRONG = bytes([DATA[0] ^ 1]) + DATA[1:]


def object_of(data: bytes = DATA, path: str = PATH) -> Expected:
    return Expected(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def place(folder: Path, data: bytes = DATA, path: str = PATH) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folder" / "part"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[FileServer, FileServer]]:
    """Return two servers of the same object."""
    place(tmp_path / "served")
    with FileServer(tmp_path / "served") as first, FileServer(tmp_path / "served") as second:
        yield first, second


@pytest.fixture
def server(servers: tuple[FileServer, FileServer]) -> FileServer:
    return servers[0]


def fetch(part: Path, *servers: FileServer, **options: Any) -> None:
    options = {"patience": QUICK, **options}
    fetch_object([Mirror(server.url) for server in servers], object_of(), part, **options)


def ranges(server: FileServer) -> list[str | None]:
    return [request.headers.get("Range") for request in server.requests]


def test_an_object_comes_whole_and_progress_adds_up(server: FileServer, part: Path) -> None:
    steps: list[int] = []
    fetch(part, server, progress=steps.append)
    assert part.read_bytes() == DATA
    assert sum(steps) == len(DATA)
    assert ranges(server) == [None]
    assert server.requests[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("end", ["", "/"])
def test_paths_are_quoted(tmp_path: Path, part: Path, end: str) -> None:
    path = "infos/größe 50%?#é/c.0"
    place(tmp_path / "base", DATA, path)
    with FileServer(tmp_path) as server:
        mirror = Mirror(f"{server.url}/base{end}")
        fetch_object([mirror], object_of(path=path), part, patience=QUICK)
    assert part.read_bytes() == DATA
    assert server.requests[0].path.startswith("/base/infos/gr%C3%B6%C3%9Fe%2050%25%3F%23")


def test_only_what_is_missing_is_asked_for(server: FileServer, part: Path) -> None:
    held = len(DATA) * 9 // 10
    place(part.parent, DATA[:held], part.name)
    steps: list[int] = []
    fetch(part, server, progress=steps.append)
    assert part.read_bytes() == DATA
    assert ranges(server) == [f"bytes={held}-"]
    assert server.sent_bytes <= 0.11 * len(DATA)
    assert (steps[0], sum(steps)) == (held, len(DATA))


def test_a_part_that_is_whole_asks_nobody(server: FileServer, part: Path) -> None:
    place(part.parent, DATA, part.name)
    fetch(part, server)
    fetch(part)
    assert server.requests == []


def test_an_object_without_bytes_asks_nobody(server: FileServer, part: Path) -> None:
    fetch_object([Mirror(server.url)], object_of(b""), part)
    assert part.read_bytes() == b""
    assert server.requests == []


@pytest.mark.parametrize("held", [WRONG[:1000], WRONG, DATA + b"x"], ids=["some", "all", "more"])
def test_a_part_that_is_wrong_is_discarded(server: FileServer, part: Path, held: bytes) -> None:
    place(part.parent, held, part.name)
    steps: list[int] = []
    fetch(part, server, progress=steps.append)
    assert part.read_bytes() == DATA
    assert ranges(server)[-1] is None
    assert sum(steps) == len(DATA)


def test_connections_are_used_again(tmp_path: Path, server: FileServer) -> None:
    for number in range(4):
        fetch(tmp_path / str(number), server)
        server.faults = [Fault(status=404, times=1)]
        with pytest.raises(NotFoundError):
            read_small(f"{server.url}/none", 9, patience=QUICK)
    assert server.connections == 1


def test_threads_share_mirrors(tmp_path: Path, server: FileServer) -> None:
    server.faults = [Fault(status=503, times=3), Fault(drop_after=300_000, times=6)]
    mirrors = [Mirror(server.url)]
    parts = [tmp_path / str(number) for number in range(8)]
    patience = dataclasses.replace(QUICK, attempts=12)

    def bring(part: Path) -> None:
        fetch_object(mirrors, object_of(), part, patience=patience)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(bring, parts))
    assert all(part.read_bytes() == DATA for part in parts)


# Faults that pass: one mirror, which does wrong a few times.


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("how", ["drop", "reset", "stall"])
def test_a_broken_connection_goes_on_where_it_stopped(
    server: FileServer, part: Path, how: str, chunked: bool
) -> None:
    for after in (0, 1, 400_000):
        fault = Fault(times=1, resets=how == "reset", chunked=chunked)
        setattr(fault, "stall_after" if how == "stall" else "drop_after", after)
        server.faults.append(fault)
    steps: list[int] = []
    patience = dataclasses.replace(HASTY if how == "stall" else QUICK, attempts=4)
    fetch(part, server, progress=steps.append, patience=patience)
    assert part.read_bytes() == DATA
    assert sum(steps) == len(DATA)
    assert min(steps) >= 0  # nothing that came was discarded
    if how == "drop" and not chunked:
        assert ranges(server) == [None, None, "bytes=1-", "bytes=400001-"]
        assert server.sent_bytes == len(DATA)
    # A reset may lose all that was on the way, and so may a client that gives up; a cut loses a block.
    if how == "drop":
        assert server.sent_bytes <= len(DATA) + 2**18


def test_drops_with_progress_are_not_counted(server: FileServer, part: Path) -> None:
    server.faults = [Fault(drop_after=100_000)]
    fetch(part, server)
    assert part.read_bytes() == DATA
    assert len(server.requests) == 11


def test_a_server_that_gives_a_few_bytes_each_time_is_given_up(
    server: FileServer, part: Path
) -> None:
    server.faults = [Fault(drop_after=100)]
    with pytest.raises(TransferError, match="tried 3 times"):
        fetch(part, server)
    assert part.read_bytes() == DATA[:300]


def test_a_server_without_ranges_is_skipped_through(server: FileServer, part: Path) -> None:
    place(part.parent, DATA[:400_000], part.name)
    server.faults = [Fault(ignores_ranges=True)]
    steps: list[int] = []
    fetch(part, server, progress=steps.append)
    assert part.read_bytes() == DATA
    assert steps[0] == 400_000
    assert min(steps) > 0


@pytest.mark.parametrize(
    "said",
    [
        "bytes 0-1000002/1000003",
        "bytes 300000-1000002/1000003",
        "bytes 400000-400009/1000003",
        "bytes 400000-1000002",
        "pages 1-2/3",
        "bytes */1000003",
        None,
    ],
)
def test_a_lie_about_ranges_is_not_used(server: FileServer, part: Path, said: str | None) -> None:
    place(part.parent, DATA[:400_000], part.name)
    server.faults = [Fault(times=1, headers={"Content-Range": said})]
    fetch(part, server)
    assert part.read_bytes() == DATA
    assert ranges(server) == ["bytes=400000-", None]


def test_a_server_that_refuses_ranges_is_asked_without(server: FileServer, part: Path) -> None:
    place(part.parent, DATA[:400_000], part.name)
    server.faults = [Fault(times=1, status=416)]
    fetch(part, server)
    assert part.read_bytes() == DATA
    assert ranges(server) == ["bytes=400000-", None]


def test_wrong_bytes_are_fetched_once_more(server: FileServer, part: Path) -> None:
    server.faults = [Fault(times=1, change=lambda _: WRONG)]
    steps: list[int] = []
    fetch(part, server, progress=steps.append)
    assert part.read_bytes() == DATA
    assert sum(steps) == len(DATA)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(server: FileServer, part: Path, status: int) -> None:
    server.faults = [Fault(times=2, status=status)]
    fetch(part, server)
    assert part.read_bytes() == DATA


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("100", 0.4),
        ("999999999999", 0.4),
        ("date", 0.4),
        ("0", 0.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", 0.0),
    ],
)
def test_retry_after_is_kept_to_within_bounds(
    server: FileServer, part: Path, clock: Clock, asked: str, expected: float
) -> None:
    if asked == "date":
        asked = email.utils.formatdate(time.time() + 3600, usegmt=True)
    server.faults = [Fault(times=1, status=503, headers={"Retry-After": asked})]
    began = clock.now
    fetch(part, server, patience=dataclasses.replace(QUICK, attempts=2, longest_wait=0.4))
    assert clock.now - began == pytest.approx(expected, abs=0.02)


def test_who_must_wait_leaves_the_work_to_the_next(
    servers: tuple[FileServer, FileServer], tmp_path: Path
) -> None:
    first, second = servers
    first.faults = [Fault(status=429, headers={"Retry-After": "60"})]
    mirrors = [Mirror(first.url), Mirror(second.url)]
    for number in range(3):
        fetch_object(mirrors, object_of(), tmp_path / str(number))
    assert (len(first.requests), len(second.requests)) == (1, 3)


def test_waiting_can_be_ended(server: FileServer, part: Path, clock: Clock) -> None:
    server.faults = [Fault(status=503, headers={"Retry-After": "60"})]

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    began = clock.now
    with pytest.raises(KeyboardInterrupt):
        fetch(part, server, progress=stop, patience=Patience())
    assert clock.now - began < 1


# Faults that stay: the first of two mirrors does wrong each time.

LASTING = {
    "not found": Fault(status=404),
    "gone": Fault(status=410),
    "forbidden": Fault(status=403),
    "unauthorized": Fault(status=401),
    "no content": Fault(status=204),
    "busy": Fault(status=503),
    "broken": Fault(status=500),
    "drops at once": Fault(drop_after=0),
    "drops": Fault(drop_after=200_000, ignores_ranges=True),
    "resets": Fault(drop_after=0, resets=True),
    "stalls at once": Fault(stall_after=0),
    "stalls": Fault(stall_after=200_000, ignores_ranges=True),
    "wrong bytes": Fault(change=lambda _: WRONG),
    "wrong bytes, chunked": Fault(change=lambda _: WRONG, chunked=True),
    "short": Fault(change=lambda data: data[:-1]),
    "short, chunked": Fault(change=lambda data: data[:-1], chunked=True),
    "long": Fault(change=lambda data: data + b"x"),
    "empty": Fault(change=lambda _: b""),
    "compressed": Fault(headers={"Content-Encoding": "gzip"}),
    "circle": Fault(status=302, headers={"Location": f"/{PATH}"}),
    "redirect to a file": Fault(status=302, headers={"Location": "file:///etc/passwd"}),
    "redirect nowhere": Fault(status=301),
    "redirect to nonsense": Fault(status=302, headers={"Location": "http://[::1"}),
    "other length": Fault(headers={"Content-Length": "1000004"}),
    "no length": Fault(headers={"Content-Length": None, "Connection": "close"}, drop_after=9),
}


def patience_for(name: str) -> Patience:
    return HASTY if name.startswith("stalls") else QUICK


@pytest.mark.parametrize("name", LASTING)
def test_the_next_mirror_takes_over(
    servers: tuple[FileServer, FileServer], part: Path, name: str
) -> None:
    first, second = servers
    first.faults = [LASTING[name]]
    fetch(part, first, second, patience=patience_for(name))
    assert part.read_bytes() == DATA
    assert first.requests


@pytest.mark.parametrize("name", LASTING)
def test_without_another_mirror_it_is_said(server: FileServer, part: Path, name: str) -> None:
    server.faults = [LASTING[name]]
    with pytest.raises(TransferError, match=f"{PATH} .* run the same command") as caught:
        fetch(part, server, patience=patience_for(name))
    assert len(caught.value.attempts) == 1
    assert caught.value.attempts[0].startswith(f"{server.url}/{PATH}: ")
    assert caught.value.attempts[0] in str(caught.value)
    assert DATA.startswith(part.read_bytes())


@pytest.mark.parametrize("name", ["not found", "gone", "forbidden", "short", "compressed"])
def test_what_would_stay_so_is_asked_once(
    servers: tuple[FileServer, FileServer], part: Path, name: str
) -> None:
    for server in servers:
        server.faults = [LASTING[name]]
    with pytest.raises(TransferError) as caught:
        fetch(part, *servers)
    assert [len(server.requests) for server in servers] == [1, 1]
    assert len(caught.value.attempts) == 2


def test_wrong_bytes_of_all_are_given_up_after_two_tries(
    servers: tuple[FileServer, FileServer], part: Path
) -> None:
    for server in servers:
        server.faults = [Fault(change=lambda _: WRONG)]
    with pytest.raises(TransferError, match="gave sha256") as caught:
        fetch(part, *servers)
    assert [len(server.requests) for server in servers] == [2, 2]
    assert all("gave sha256" in attempt for attempt in caught.value.attempts)
    assert part.read_bytes() == b""


def test_who_gave_half_of_wrong_bytes_does_not_spoil_it(
    servers: tuple[FileServer, FileServer], part: Path
) -> None:
    first, second = servers
    first.faults = [
        Fault(change=lambda _: WRONG, drop_after=500_000, times=1),
        Fault(change=lambda _: WRONG),
    ]
    fetch(part, first, second)
    assert part.read_bytes() == DATA


def test_nobody_listens(part: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        mirrors = [Mirror(url), Mirror("http://"), Mirror("nothing://here")]
        with pytest.raises(TransferError, match="tried 3 times") as caught:
            fetch_object(mirrors, object_of(), part, patience=QUICK)
    assert len(caught.value.attempts) == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0\1\2\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 \x1b[31m\r\n" * 300,
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 404 \x1b[31m\r\nContent-Length: 99\r\n\r\n",
    ],
)
def test_nonsense_is_a_transfer_error(part: Path, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            for _ in range(QUICK.attempts):
                try:
                    connection, _address = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(10_000)
                    connection.sendall(answer)

        thread = threading.Thread(target=talk)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TransferError) as caught:
            fetch_object([Mirror(url)], object_of(), part, patience=QUICK)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(
    servers: tuple[FileServer, FileServer], part: Path, status: int
) -> None:
    first, second = servers
    first.faults = [
        Fault(path=PATH, status=status, headers={"Location": "/other"}),
        Fault(path="other", status=status, headers={"Location": f"{second.url}/{PATH}"}),
    ]
    place(part.parent, DATA[:10], part.name)
    fetch(part, first)
    assert part.read_bytes() == DATA
    assert ranges(second) == ["bytes=10-"]


def test_redirects_are_bounded(server: FileServer, part: Path) -> None:
    server.faults = [
        Fault(
            path=f"/{number}" if number else PATH,
            status=302,
            headers={"Location": f"/{number + 1}"},
        )
        for number in range(9)
    ]
    with pytest.raises(TransferError, match="more than 5 redirects"):
        fetch(part, server)
    assert len(server.requests) == 6


@settings(max_examples=scaled(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_drops_end_in_right_bytes_or_an_error(
    servers: tuple[FileServer, FileServer], data: st.DataObject
) -> None:
    offset = st.integers(0, len(DATA))
    fault = st.builds(
        Fault,
        times=st.integers(1, 3),
        drop_after=offset,
        resets=st.booleans(),
        ignores_ranges=st.booleans(),
        chunked=st.booleans(),
        change=st.sampled_from(
            [lambda whole: whole] * 3
            + [lambda _: WRONG, lambda whole: whole[:-7], lambda whole: whole + b"7"]
        ),
        status=st.sampled_from([None, None, None, None, 500, 416, 404]),
        headers=st.sampled_from(
            [{}, {}, {"Content-Range": f"bytes 5-{len(DATA) - 1}/{len(DATA)}"}]
        ),
    )
    for server in servers:
        server.faults = data.draw(st.lists(fault, max_size=5))
    held = data.draw(st.sampled_from([DATA, WRONG]))[: data.draw(offset)]
    patience = dataclasses.replace(QUICK, attempts=4, first_wait=0.001, longest_wait=0.002)
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part"
        part.write_bytes(held)
        steps: list[int] = []
        try:
            fetch(part, *servers, progress=steps.append, patience=patience)
        except TransferError:
            assert len(part.read_bytes()) < len(DATA)
        else:
            assert part.read_bytes() == DATA
        assert sum(steps) == part.stat().st_size


# The limit on speed.


def test_the_rate_holds_for_all_threads_together(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        time.sleep(seconds)

    clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(places, "time", clock)
    rate = 2_000_000
    limiter = Limiter(rate)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number in range(2):
            pool.submit(fetch, tmp_path / str(number), server, limiter=limiter)
    took = time.monotonic() - began
    assert took * rate / (2 * len(DATA)) > 0.9
    assert sum(waits) < 5  # a busy machine may take longer, and then less is waited
    assert all((tmp_path / str(number)).read_bytes() == DATA for number in range(2))


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_is_positive(rate: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Limiter(rate)


# Small files.


def test_small_files_come_whole(tmp_path: Path, server: FileServer) -> None:
    place(tmp_path / "served", b'{"a": 1}', "index.json")
    url = f"{server.url}/index.json"
    server.faults = [Fault(times=1, status=503), Fault(times=1, drop_after=3)]
    assert read_small(url, 8, patience=QUICK) == b'{"a": 1}'
    server.faults = [Fault(chunked=True)]
    assert read_small(url, 8, patience=QUICK) == b'{"a": 1}'
    assert server.requests[-1].headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_small_file_is_bounded(server: FileServer, chunked: bool) -> None:
    server.faults = [Fault(chunked=chunked)]
    with pytest.raises(TransferError, match=r"more than the 999 (bytes )?allowed"):
        read_small(f"{server.url}/{PATH}", 999, patience=QUICK)
    assert len(server.requests) == 1


@pytest.mark.parametrize(("status", "requests"), [(500, 3), (403, 1)])
def test_a_small_file_that_cannot_be_read(server: FileServer, status: int, requests: int) -> None:
    server.faults = [Fault(status=status)]
    with pytest.raises(TransferError, match=f"{PATH}: {status}") as caught:
        read_small(f"{server.url}/{PATH}", 999, patience=QUICK)
    assert len(server.requests) == requests
    assert len(caught.value.attempts) == 1


@pytest.mark.parametrize("kind", ["http", "file", "memory"])
def test_a_small_file_that_is_not_there(server: FileServer, tmp_path: Path, kind: str) -> None:
    url = {
        "http": f"{server.url}/none",
        "file": f"file://{tmp_path}/none",
        "memory": "memory://none",
    }
    with pytest.raises(NotFoundError, match=r"none: (404|no such file)"):
        read_small(url[kind], 999, patience=QUICK)


# What is not HTTP.


@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.parametrize("held", [b"", DATA[:400_000], WRONG[:9], WRONG, DATA + b"x"])
def test_other_protocols_go_on_too(tmp_path: Path, part: Path, kind: str, held: bytes) -> None:
    path = "infos/50% *?é #1/c.0"
    base = {"file": f"file://{tmp_path}/base", "memory": "memory://transport"}[kind]
    with fsspec.open(f"{base}/{path}", "wb", auto_mkdir=True, expand=False) as file:
        file.write(DATA)
    place(part.parent, held, part.name)
    fetch_object([Mirror(base)], object_of(path=path), part, patience=QUICK)
    assert part.read_bytes() == DATA
    assert read_small(f"{base}/{path}", len(DATA)) == DATA


@pytest.mark.parametrize("served", [WRONG, DATA[:-1], DATA + b"x", b"", None])
def test_other_protocols_are_checked_too(tmp_path: Path, part: Path, served: bytes | None) -> None:
    if served is not None:
        place(tmp_path / "base", served)
    mirrors = [Mirror(f"file://{tmp_path}/{name}") for name in ("none", "base")]
    with pytest.raises(TransferError, match="no such file") as caught:
        fetch_object(mirrors, object_of(), part, patience=QUICK)
    assert len(caught.value.attempts) == 2
    place(tmp_path / "none")
    fetch_object(mirrors[::-1], object_of(), part, patience=QUICK)
    assert part.read_bytes() == DATA


# What is missing here.


def test_a_full_disk_is_a_storage_error(server: FileServer, part: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, limits[1]))
    try:
        with pytest.raises(StorageError, match="cannot write") as caught:
            fetch(part, server)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    fetch(part, server)
    assert part.read_bytes() == DATA
    assert ranges(server) == [None, "bytes=600000-"]


def test_a_folder_that_cannot_be_made_is_a_storage_error(server: FileServer, part: Path) -> None:
    place(part.parents[1], b"", part.parent.name)
    with pytest.raises(StorageError, match="cannot write"):
        fetch(part, server)
    assert server.requests == []


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("gs://bucket/a", "gcsfs", "gcs"),
        ("s3://bucket/a", "s3fs", "s3"),
        ("hf://datasets/lab/a", "huggingface_hub", "hf"),
    ],
)
def test_packages_that_are_missing_are_named(
    part: Path, monkeypatch: pytest.MonkeyPatch, url: str, module: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    # Another test may have opened such a URL, and fsspec keeps the class that it imported then.
    known = vars(sys.modules["fsspec.registry"])["_registry"]
    monkeypatch.delitem(known, url.partition("://")[0], raising=False)
    with pytest.raises(MissingExtraError, match=module) as caught:
        fetch_object([Mirror(url)], object_of(), part, patience=QUICK)
    assert caught.value.install == f"orlog[{extra}]"
    with pytest.raises(MissingExtraError, match=rf"orlog\[{extra}\]"):
        read_small(f"{url}/b", 9, patience=QUICK)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:9", "refused"),
        ("http://no-such-host.invalid", "resolve"),
        ("https://127.0.0.1:9", "refused"),
    ],
)
def test_a_server_that_is_not_there_is_not_said_to_be_slow(
    part: Path, url: str, reason: str
) -> None:
    with pytest.raises(TransferError, match=reason):
        fetch_object([Mirror(url)], object_of(), part, patience=QUICK)


def test_a_proxy_is_used(server: FileServer, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//user:secret@"))
    monkeypatch.setenv("no_proxy", "other.example")
    fetch_object([Mirror("http://data.example")], object_of(), part, patience=QUICK)
    assert part.read_bytes() == DATA
    assert server.requests[0].path == f"http://data.example/{PATH}"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_forks_off_makes_connections_of_its_own(
    server: FileServer, tmp_path: Path
) -> None:
    fetch(tmp_path / "parent", server)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            fetch(tmp_path / "child", server)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    fetch(tmp_path / "again", server)
    assert server.connections == 2


@pytest.mark.parametrize("mirrors", [1, 2])
def test_a_place_that_nobody_reaches_is_given_up_soon_and_each_try_is_told(
    part: Path, mirrors: int, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"  # nothing listens there any more
    patience = Patience(idle=3600, attempts=10_000, first_wait=0.05, unreached=0.5)
    began = clock.now
    with caplog.at_level("INFO", "orlog.download"), pytest.raises(TransferError, match="online"):
        fetch_object([Mirror(address)] * mirrors, object_of(), part, patience=patience)
    assert "Connection refused; asking again in" in caplog.text
    assert clock.now - began < 1
    caplog.clear()
    with caplog.at_level("INFO", "orlog.download"), pytest.raises(TransferError, match="refused"):
        read_small(f"{address}/index", 100, patience=patience)
    assert len(caplog.records) >= 2


def test_a_name_server_that_never_answers_is_given_up_as_a_place_that_nobody_reaches(
    part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()
    look_up = socket.getaddrinfo

    def wait(host: str, *rest: Any, **others: Any) -> Any:
        if host == "silent.example":
            is_over.wait()
        return look_up(host, *rest, **others)

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    patience = Patience(idle=3600, attempts=10_000, first_wait=0.05, unreached=0.2)
    with pytest.raises(TransferError, match=r"no answer in 0\.2 seconds.*online"):
        fetch_object([Mirror("http://silent.example")], object_of(), part, patience=patience)
    with pytest.raises(TransferError, match=r"no answer in 0\.2 seconds"):
        read_small("http://silent.example/index", 100, patience=patience)
    is_over.set()


def test_a_network_that_swallows_what_is_sent_is_given_up_and_the_next_place_asked(
    server: FileServer, part: Path
) -> None:
    with socket.socket() as full, contextlib.ExitStack() as held:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # then nobody else is let in, and nobody is refused
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        address = f"http://127.0.0.1:{full.getsockname()[1]}"
        patience = Patience(idle=3600, attempts=10_000, first_wait=0.05, unreached=0.3)
        mirrors = [Mirror(address), Mirror(server.url)]
        found = fetch_object(mirrors, object_of(), part, patience=patience)
    assert part.read_bytes() == DATA
    assert list(found.sources) == [f"{server.url}/{PATH}"]
    assert "gave no connection for 0.3 seconds" in str(found.failed)


def test_a_place_that_gave_something_is_waited_for_though_it_is_gone(
    part: Path, tmp_path: Path
) -> None:
    place(tmp_path / "served")
    patience = Patience(idle=0.6, attempts=2, first_wait=0.05, longest_wait=0.1, unreached=0.3)
    with FileServer(tmp_path / "served") as server:
        mirror = Mirror(server.url)
        fetch_object([mirror], object_of(), tmp_path / "first", patience=patience)
    with pytest.raises(TransferError, match="nothing new for"):
        fetch_object([mirror], object_of(), part, patience=patience)
