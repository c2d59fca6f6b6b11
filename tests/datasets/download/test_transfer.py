"""Transfers from real servers that do everything wrong: right bytes, or a typed error that says who did what."""

import concurrent.futures
import contextlib
import dataclasses
import email.utils
import errno
import hashlib
import random
import socket
import tempfile
import threading
import time
from pathlib import Path

import fsspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from orlog.datasets.download.http import Patience
from orlog.datasets.download.transfer import Expected, Limiter, Mirror, fetch_object, read_small
from orlog.errors import NotFoundError, StorageError, TransferError
from tests.levels import scaled
from tests.servers import COMES, Fault, FileServer, raw_server
from tests.small_disks import files_limited_to

PATH = "observations/c.0.0"
DATA = random.Random(0).randbytes(1_000_003)
WRONG = bytes([DATA[0] ^ 1]) + DATA[1:]
QUICK = Patience(idle=0, timeout=COMES, attempts=3, first_wait=0.01, longest_wait=0.1)
HASTY = dataclasses.replace(QUICK, timeout=0.3)  # for servers that fall silent, and for these alone


def object_of(data=DATA, path=PATH):
    return Expected(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def place(folder, data=DATA, path=PATH):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)


@pytest.fixture
def part(tmp_path):
    return tmp_path / "new" / "folder" / "part"


@pytest.fixture
def servers(tmp_path):
    """Return two servers of the same object."""
    place(tmp_path / "served")
    with FileServer(tmp_path / "served") as first, FileServer(tmp_path / "served") as second:
        yield first, second


@pytest.fixture
def server(servers):
    return servers[0]


def fetch(part, *servers, **options):
    """Fetch the object; return what progress was told of."""
    steps = []
    options = {"patience": QUICK, "progress": steps.append, **options}
    fetch_object([Mirror(server.url) for server in servers], object_of(), part, **options)
    return steps


def ranges(server):
    return [request.headers.get("Range") for request in server.requests]


@pytest.mark.parametrize("end", ["", "/"])
def test_paths_are_quoted_and_connections_used_again(tmp_path, part, end):
    path = "infos/größe 50%?#é/c.0"
    place(tmp_path / "base", DATA, path)
    with FileServer(tmp_path) as server:
        for number in range(3):
            mirror = Mirror(f"{server.url}/base{end}")
            fetch_object([mirror], object_of(path=path), part / f"{number}", patience=QUICK)
            server.faults = [Fault(path="/none", status=404, times=1)]
            with pytest.raises(NotFoundError, match="none: 404"):
                read_small(f"{server.url}/none", 9, patience=QUICK)
        assert (part / "2").read_bytes() == DATA
        assert server.requests[0].path.startswith("/base/infos/gr%C3%B6%C3%9Fe%2050%25%3F%23")
        assert server.requests[0].headers["Accept-Encoding"] == "identity"
        assert server.connections == 1


@pytest.mark.parametrize("known", ["size and sha256", "sha256", "md5", "size", "nothing"])
@pytest.mark.parametrize("kind", ["http", "chunked", "without ranges", "file", "memory"])
def test_a_file_comes_whole_whatever_is_known_and_held(server, tmp_path, part, kind, known):
    """What is held goes on where it stopped if a sum proves it, and is discarded if it is wrong."""
    part.parent.mkdir(parents=True)
    server.faults = [Fault(chunked=kind == "chunked", ignores_ranges=kind == "without ranges")]
    base = {"file": f"file://{tmp_path}/base", "memory": "memory://transport"}.get(kind, server.url)
    if kind in ("file", "memory"):
        with fsspec.open(f"{base}/{PATH}", "wb", auto_mkdir=True, expand=False) as file:
            file.write(DATA)
        assert read_small(f"{base}/{PATH}", len(DATA)) == DATA
    md5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
    item = Expected(
        path=PATH,
        size_bytes=len(DATA) if "size" in known else None,
        sha256=object_of().sha256 if "sha256" in known else "",
        md5=md5 if known == "md5" else "",
    )
    for held in (b"", DATA[:900_000], WRONG[:9], WRONG, DATA, DATA + b"x"):
        part.write_bytes(held)
        steps = []
        server.requests.clear()
        patience = dataclasses.replace(QUICK, attempts=5)
        found = fetch_object([Mirror(base)], item, part, patience=patience, progress=steps.append)
        assert (found.sha256, part.read_bytes()) == (object_of().sha256, DATA), len(held)
        assert sum(steps) == len(DATA)
        is_proven = known not in ("size", "nothing") and held == DATA[: len(held)]
        if kind == "http" and is_proven and held:
            assert ranges(server) == ([] if held == DATA else ["bytes=900000-"])


# Faults that pass: one mirror, which does wrong a few times. What is held first, the ranges that are asked for then.


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        *(("100", 0.4), ("999999999999", 0.4), ("date", 0.4), ("0", 0.0)),
        *(("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("Fri, 01 Jan 9999 00:00:00 GMT", 0.4)),
        ("soon", 0.0),
    ],
)
def test_retry_after_is_kept_to_within_bounds(server, part, clock, asked, expected):
    if asked == "date":
        asked = email.utils.formatdate(time.time() + 3600, usegmt=True)
    server.faults = [Fault(times=1, status=503, headers={"Retry-After": asked})]
    began = clock.now
    fetch(part, server, patience=dataclasses.replace(QUICK, attempts=2, longest_wait=0.4))
    assert clock.now - began == pytest.approx(expected, abs=0.02)


# Faults that stay: the first of two mirrors does wrong each time.

LASTING = {
    "not found": Fault(status=404),
    "forbidden": Fault(status=403),
    "no content": Fault(status=204),
    "busy": Fault(status=503),
    "broken": Fault(status=500),
    "drops at once": Fault(drop_after=0),
    "drops": Fault(drop_after=200_000, ignores_ranges=True),
    "a few bytes each time": Fault(drop_after=100),
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
ASKED_ONCE = ("not found", "forbidden", "short", "long", "empty", "compressed", "circle")


@pytest.mark.parametrize("name", LASTING)
def test_what_stays_is_said_and_the_next_mirror_takes_over(servers, part, name):
    first, second = servers
    first.faults = [LASTING[name]]
    patience = HASTY if name.startswith("stalls") else QUICK
    with pytest.raises(TransferError, match=f"{PATH} .* run the same command") as caught:
        fetch(part, first, patience=patience)
    assert len(caught.value.attempts) == 1
    assert caught.value.attempts[0].startswith(f"{first.url}/{PATH}: ")
    assert caught.value.attempts[0] in str(caught.value)
    assert DATA.startswith(part.read_bytes())
    assert len(first.requests) == 1 or name not in ASKED_ONCE
    assert ("gave sha256" in str(caught.value)) == name.startswith("wrong bytes")
    fetch(part, first, second, patience=dataclasses.replace(patience, timeout=COMES) if patience is QUICK else patience)
    assert part.read_bytes() == DATA


@pytest.mark.parametrize("status", [301, 302, 307])
def test_redirects_are_followed_and_bounded(servers, part, status):
    first, second = servers
    first.faults = [
        Fault(path=PATH, status=status, headers={"Location": "/other"}),
        Fault(path="other", status=status, headers={"Location": f"{second.url}/{PATH}"}),
    ]
    place(part.parent, DATA[:10], part.name)
    fetch(part, first)
    assert part.read_bytes() == DATA
    assert ranges(second) == ["bytes=10-"]
    first.faults = [Fault(path=f"/{n}" if n else PATH, status=302, headers={"Location": f"/{n + 1}"}) for n in range(9)]
    first.requests.clear()
    part.unlink()
    with pytest.raises(TransferError, match="more than 5 redirects"):
        fetch(part, first)
    assert len(first.requests) == 6


# Files of which no sum is known: bytes of two states never mix.


@pytest.mark.parametrize("size", [None, len(DATA)])
@pytest.mark.parametrize("tags", [('"one"', '"one"'), (None, None), ('W/"one"', 'W/"one"'), ('"one"', '"two"')])
@pytest.mark.parametrize("ignores_ranges", [False, True])
def test_without_a_sum_only_the_same_tag_goes_on(server, part, size, tags, ignores_ranges):
    """The file changes in the middle of the transfer, but where its tag stays."""
    is_same = tags == ('"one"', '"one"')
    server.faults = [
        Fault(drop_after=600_000, times=1, headers={"ETag": tags[0]}, change=lambda data: data if is_same else WRONG),
        Fault(headers={"ETag": tags[1]}, ignores_ranges=ignores_ranges),
    ]
    steps = []
    item = Expected(path=PATH, size_bytes=size)
    fetch_object([Mirror(server.url)], item, part, patience=QUICK, progress=steps.append)
    assert (part.read_bytes(), sum(steps), min(steps) >= 0) == (DATA, len(DATA), is_same)


# Anything at all, in any order: parts go on through servers that change their mind, and through damage here.


class Transfers(RuleBasedStateMachine):
    """One part that is fetched again and again from two servers, with faults of both and damage of the part."""

    @initialize()
    def begin(self):
        self.held = contextlib.ExitStack()
        folder = Path(self.held.enter_context(tempfile.TemporaryDirectory()))
        place(folder)
        self.servers = [self.held.enter_context(FileServer(folder)) for _ in range(2)]
        self.part = folder / "part"
        self.part.touch()

    @rule(
        number=st.integers(0, 1),
        times=st.integers(1, 3),
        drop_after=st.integers(0, len(DATA)),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        change=st.sampled_from([None, None, WRONG, DATA[:-7], DATA + b"7"]),
        status=st.sampled_from([None, None, None, 500, 416, 404]),
        lies=st.booleans(),
    )
    def do_wrong(self, number, times, drop_after, flags, change, status, lies):
        headers = {"Content-Range": f"bytes 5-{len(DATA) - 1}/{len(DATA)}"} if lies else {}
        self.servers[number].faults.append(
            Fault(
                times=times,
                drop_after=drop_after,
                resets=flags[0],
                ignores_ranges=flags[1],
                chunked=flags[2],
                change=lambda data: data if change is None else change,
                status=status,
                headers=headers,
            )
        )

    @rule(data=st.sampled_from([DATA, WRONG]), size=st.integers(0, len(DATA)))
    def damage(self, data, size):
        self.part.write_bytes(data[:size])

    @rule()
    def fetch(self):
        patience = dataclasses.replace(QUICK, attempts=4, first_wait=0.001, longest_wait=0.002)
        steps = []
        try:
            steps = fetch(self.part, *self.servers, patience=patience)
        except TransferError:
            assert self.part.stat().st_size < len(DATA)
        else:
            assert self.part.read_bytes() == DATA
            assert sum(steps) == len(DATA)

    def teardown(self):
        if hasattr(self, "held"):
            for server in self.servers:
                server.faults.clear()
            fetch(self.part, *self.servers)
            assert self.part.read_bytes() == DATA
            self.held.close()


@pytest.mark.scaled
def test_whatever_happens_in_any_order_a_part_ends_right():
    run_state_machine_as_test(
        Transfers,
        settings=settings(
            max_examples=scaled(60),
            stateful_step_count=8,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


# Servers that never fall silent and never finish.

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def drip(start, drop):
    """Serve answers that begin with `start` and then go on with `drop`, 50 times a second."""
    is_over = threading.Event()

    def answer(connection):
        connection.recv(2**16)
        connection.sendall(start)
        while not is_over.wait(0.02):
            connection.sendall(drop)

    with raw_server(answer) as url:
        yield url
        is_over.set()


@pytest.mark.parametrize(
    ("start", "drop"),
    [
        (b"", b"H"),
        (HEAD, b"X-More: 1\r\n"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (HEAD + b"Content-Length: 1000003\r\n\r\n", b"a"),
        (CHUNKED, b"1\r\na\r\n"),
        (CHUNKED + b"0\r\n", b"X-More: 1\r\n"),
        (b"HTTP/1.1 503 busy\r\nContent-Length: 60000\r\n\r\n", b"a"),
    ],
)
def test_an_answer_that_is_drawn_out_ends(server, part, start, drop):
    impatient = dataclasses.replace(QUICK, timeout=0.1, attempts=2)
    with drip(start, drop) as url:
        with pytest.raises(TransferError):
            read_small(f"{url}/index.json", 2**20, patience=impatient)
        with pytest.raises(TransferError):
            fetch_object([Mirror(url)], object_of(), part, patience=impatient)
    fetch(part, server)  # whatever came of it before
    assert part.read_bytes() == DATA


# Places that cannot be reached, and what is in the way.


NOBODY = Patience(idle=3600, attempts=10_000, first_wait=0.05, unreached=0.2)


def test_a_place_that_nobody_reaches_is_given_up_soon_and_each_try_is_told(part, caplog, clock):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"  # nothing listens there any more
    began = clock.now
    with caplog.at_level("INFO", "orlog.download"), pytest.raises(TransferError, match="online"):
        fetch_object([Mirror(address)] * 2, object_of(), part, patience=NOBODY)
    assert "Connection refused; asking again in" in caplog.text
    assert clock.now - began < 2
    for url, reason in (
        ("http://no-such-host.invalid", "resolve"),
        ("https://127.0.0.1:9", "refused"),
        ("http://[", "not an address"),
        ("nothing://here", "nothing"),
    ):
        with pytest.raises(TransferError, match=reason):
            fetch_object([Mirror(url)], object_of(), part, patience=QUICK)


def test_networks_that_swallow_questions_are_given_up_and_the_next_place_asked(server, part, monkeypatch):
    is_over, look_up = threading.Event(), socket.getaddrinfo

    def wait(host, *rest, **others):
        return is_over.wait() if host == "silent.example" else look_up(host, *rest, **others)

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    with pytest.raises(TransferError, match=r"no answer in 0\.2 seconds.*online"):
        fetch_object([Mirror("http://silent.example")], object_of(), part, patience=NOBODY)
    is_over.set()
    with socket.socket() as full, contextlib.ExitStack() as held:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # then nobody else is let in, and nobody is refused
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        address = f"http://127.0.0.1:{full.getsockname()[1]}"
        fetched = fetch_object([Mirror(address), Mirror(server.url)], object_of(), part, patience=NOBODY)
    assert part.read_bytes() == DATA
    assert list(fetched.sources) == [f"{server.url}/{PATH}"]
    assert "gave no connection for 0.2 seconds" in str(fetched.failed)


def test_a_proxy_is_used(server, part, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//user:secret@"))
    monkeypatch.setenv("no_proxy", "other.example")
    fetch_object([Mirror("http://data.example")], object_of(), part, patience=QUICK)
    assert part.read_bytes() == DATA
    assert server.requests[0].path == f"http://data.example/{PATH}"


def test_a_full_disk_or_a_file_in_the_way_is_a_storage_error_and_it_goes_on(server, part):
    place(part.parents[1], b"", part.parent.name)
    with pytest.raises(StorageError, match="cannot write"):
        fetch(part, server)
    assert server.requests == []
    part.parent.unlink()
    with files_limited_to(600_000), pytest.raises(StorageError, match="cannot write") as caught:
        fetch(part, server)
    assert caught.value.errno == errno.EFBIG
    fetch(part, server)
    assert part.read_bytes() == DATA
    assert ranges(server) == [None, "bytes=600000-"]


def test_the_rate_holds_for_all_threads_together(tmp_path, server, clock):
    limiter, began = Limiter(4_000_000), clock.now
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number in range(2):
            pool.submit(fetch, tmp_path / str(number), server, limiter=limiter)
    assert clock.now - began >= 2 * len(DATA) / 4_000_000 - 0.25  # which is saved up
    assert all((tmp_path / str(number)).read_bytes() == DATA for number in range(2))
    with pytest.raises(ValueError, match="positive"):
        Limiter(float("nan"))


@pytest.mark.parametrize("chunked", [False, True])
def test_small_files_come_whole_within_their_bounds(tmp_path, server, chunked):
    place(tmp_path / "served", b'{"a": 1}', "index.json")
    url = f"{server.url}/index.json"
    server.faults = [Fault(times=1, status=503), Fault(times=1, drop_after=3)]
    server.faults.append(Fault(chunked=chunked))
    assert read_small(url, 8, patience=QUICK) == b'{"a": 1}'
    assert server.requests[-1].headers["Cache-Control"] == "no-cache"
    for fault, limit, requests, match in (
        (Fault(chunked=chunked), 7, 1, r"more than the 7 (bytes )?allowed"),
        (Fault(status=500), 8, 3, r"index\.json: 500"),
        (Fault(status=403), 8, 1, r"index\.json: 403"),
    ):
        server.faults, before = [fault], len(server.requests)
        with pytest.raises(TransferError, match=match) as caught:
            read_small(url, limit, patience=QUICK)
        assert (len(server.requests) - before, len(caught.value.attempts)) == (requests, 1)
    for missing in (f"file://{tmp_path}/none", "memory://none"):
        with pytest.raises(NotFoundError, match="none: no such file"):
            read_small(missing, 999, patience=QUICK)
