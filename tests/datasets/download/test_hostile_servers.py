"""Servers that answer with anything at all: right bytes or a typed error, and it ends."""

import contextlib
import hashlib
import random
import threading

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orlog import OrlogError
from orlog.datasets.download import sources
from orlog.datasets.download.http import Patience
from orlog.datasets.download.transfer import Expected, Mirror, fetch_object, read_small
from orlog.datasets.home.registries import add_registry, remove_registry, seen_file
from orlog.errors import NotFoundError, TransferError
from orlog.manifests.names import parse_name
from tests.levels import scaled
from tests.servers import COMES, raw_server

DATA = random.Random(0).randbytes(40_000)
ITEM = Expected(path="c.0", size_bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())
LIMIT = 30_000
QUICK = Patience(idle=0, timeout=COMES, attempts=2, first_wait=0.001, longest_wait=0.01)
SILENCE = 0.1
"""Seconds after which a server hangs up that kept a connection and gets no other request: no client does before."""
LINES_WITHOUT_END = b"X-More: 1\r\n" * 20_000


@contextlib.contextmanager
def scripted(script):
    """Send one answer of a script after each request, the last one again and again, and then cut the connection."""
    left, lock = list(script), threading.Lock()

    def answer(connection):
        longest, is_kept = COMES, True
        while is_kept:
            asked = b""
            connection.settimeout(longest)
            while b"\r\n\r\n" not in asked:
                if not (block := connection.recv(2**16)):
                    return
                asked += block
            with lock:
                data = left.pop(0) if len(left) > 1 else left[0]
            connection.settimeout(COMES)
            connection.sendall(data)
            longest, is_kept = SILENCE, b"keep-alive" in data

    with raw_server(answer) as url:
        yield url


NUMBERS = st.sampled_from(
    [
        *(b"0", b"1", b"-1", b"+5", b"40000", b"39999", b"40001", b"10000", b"9" * 30, b"9" * 5000),
        *(b"1e3", b"0x10", b"", b" ", b"1, 2", b"40000, 40000", b"\xb2", b"nan", b"inf", b"1_0"),
    ]
)
STATUS_LINES = st.one_of(
    st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 206 Partial Content", b"HTTP/1.0 200 OK"]),
    st.sampled_from(
        [
            *(b"HTTP/1.1 416 no", b"HTTP/1.1 302 there", b"HTTP/1.1 429 later", b"HTTP/1.1 404 no"),
            *(b"HTTP/1.1 100 go", b"HTTP/1.1 204 no", b"HTTP/1.1 304 no", b"HTTP/1.1 500 \x1b[2J"),
            *(b"HTTP/9.9 200 OK", b"HTTP/1.1 999 OK", b"HTTP/1.1 -1 OK", b"HTTP/1.1", b"ICY 200 OK"),
            *(b"HTTP/1.1 200" + b" x" * 40_000, b"\0", b"", b"HTTP/1.1 2\xb20 OK", b"<html>"),
        ]
    ),
    st.binary(max_size=40),
)
RANGES = st.builds(
    lambda unit, first, last, total: unit + first + b"-" + last + b"/" + total,
    st.sampled_from([b"bytes ", b"bytes=", b"lines ", b""]),
    *(NUMBERS, NUMBERS, st.one_of(NUMBERS, st.just(b"*"))),
)
PLACES = st.sampled_from(
    [
        *(b"/", b"", b"http://127.0.0.1:1/", b"file:///etc/passwd", b"//", b"http://[", b"http://"),
        *(b"http://a@b:c/", b"http://127.0.0.1:99999/", b"ftp://x/", b"\x00", b"http://\xff/", b"?"),
        *(b"x" * 70_000, b"http://xn--\xe9/", b"../../x", b"data:,x", b"https://127.0.0.1:1/"),
    ]
)
HEADERS = st.one_of(
    st.builds(b"Content-Length: %b".__mod__, NUMBERS),
    st.builds(b"Content-Range: %b".__mod__, RANGES),
    st.builds(b"Location: %b".__mod__, PLACES),
    st.builds(
        b"Retry-After: %b".__mod__,
        st.one_of(NUMBERS, st.binary(max_size=30), st.just(b"Wed, 99 Jan 99999 99:99:99 +99999999999999")),
    ),
    st.sampled_from(
        [
            *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked"),
            *(b"Content-Encoding: gzip", b"Content-Encoding: identity", b"Connection: keep-alive"),
            *(b"Connection: close", b"Connection: upgrade", b": x", b"x", b" folded", b"\xff: \xff"),
            *(b"Content-Length: 40000", b"X: " + b"x" * 70_000, b"X: 1\r\n" * 200 + b"X: 2"),
        ]
    ),
    st.builds(lambda name, value: name + b": " + value, st.binary(max_size=9), st.binary(max_size=9)),
)
BODIES = st.one_of(
    st.just(DATA),
    st.integers(0, len(DATA)).map(lambda start: DATA[start:]),
    st.integers(0, len(DATA)).map(lambda end: DATA[:end]),
    st.just(DATA + b"more"),
    st.just(bytes(len(DATA))),
    st.binary(max_size=100),
    st.just(b"%x\r\n%b\r\n0\r\n\r\n" % (len(DATA), DATA)),
    st.just(b"%x;x=y\r\n%b\r\n0\r\n" % (len(DATA), DATA) + LINES_WITHOUT_END),
    st.builds(lambda size, data: size + b"\r\n" + data, NUMBERS, st.binary(max_size=50)),
    st.sampled_from([b"fffffffffffffffff\r\n", b"-1\r\n", b"1" * 200_000, b"\r\n" * 1000]),
)
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n" + DATA
SMALL = b"HTTP/1.1 200 OK\r\n\r\n" + DATA[:LIMIT]
ANSWERS = st.one_of(
    st.builds(
        lambda line, headers, body: b"\r\n".join([line, *headers, b"", body]),
        STATUS_LINES,
        st.lists(HEADERS, max_size=4),
        BODIES,
    ),
    # Almost right ones, which get further.
    st.builds(
        lambda headers, body: b"\r\n".join([b"HTTP/1.1 200 OK", *headers, b"", body]),
        st.lists(HEADERS, max_size=1),
        BODIES,
    ),
    st.sampled_from([GOOD, SMALL]),
)
SCRIPTS = st.lists(ANSWERS, min_size=1, max_size=4)
many = settings(
    max_examples=scaled(250),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.slow
@settings(many)
@example([GOOD])
@example([SMALL, GOOD])
@given(SCRIPTS)
def test_an_object_from_any_server_is_right_or_a_transfer_error(tmp_path, script):
    part = tmp_path / "part"
    part.unlink(missing_ok=True)
    with scripted(script) as url:
        try:
            fetch_object([Mirror(url)], ITEM, part, patience=QUICK)
        except TransferError as error:
            check_message(error)
            assert part.stat().st_size < len(DATA)
        else:
            assert part.read_bytes() == DATA
            return
    assert GOOD not in script[:1]


@pytest.mark.slow
@settings(many)
@given(SCRIPTS)
def test_a_small_file_is_within_its_limit_and_no_registry_offers_anything(home, script):
    with scripted(script) as url:
        try:
            assert len(read_small(f"{url}/x", LIMIT, patience=QUICK)) <= LIMIT
        except (TransferError, NotFoundError) as error:
            check_message(error)
    with pytest.MonkeyPatch.context() as patch, scripted(script) as url:
        patch.setattr(sources, "PAUSE", 0)
        add_registry("raw", url)
        try:
            with pytest.raises(OrlogError) as caught:
                sources.find_source(parse_name("tests/tiny-v1"), patience=QUICK)
        finally:
            remove_registry("raw")
            seen_file().unlink(missing_ok=True)
    check_message(caught.value)
    assert home.exists()


def check_message(error):
    text = str(error)
    assert len(text) < 5000
    assert all(letter.isprintable() or letter == "\n" for letter in text)
