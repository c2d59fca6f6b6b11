"""Files of which only some sum, only a size or nothing is known: bytes of two states never mix."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from orlog.datasets.download.http import Patience
from orlog.datasets.download.transfer import Expected, Mirror, fetch_object
from orlog.errors import TransferError
from tests.servers import COMES, Fault, FileServer

PATH = "upstream/a.hdf5"
DATA = random.Random(0).randbytes(1_000_003)
WRONG = bytes([DATA[0] ^ 1]) + DATA[1:]
CALM = Patience(idle=0, timeout=COMES, attempts=5, first_wait=0.01, longest_wait=0.1)
QUICK = Patience(idle=0, timeout=0.3, attempts=3, first_wait=0.01, longest_wait=0.1)


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "part"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[FileServer, FileServer]]:
    """Return two servers of the same file."""
    folder = tmp_path / "served"
    (folder / PATH).parent.mkdir(parents=True)
    (folder / PATH).write_bytes(DATA)
    with FileServer(folder) as first, FileServer(folder) as second:
        yield first, second


@pytest.fixture
def server(servers: tuple[FileServer, FileServer]) -> FileServer:
    return servers[0]


def ranges(server: FileServer) -> list[str | None]:
    return [request.headers.get("Range") for request in server.requests]


def fetch_file(part: Path, *servers: FileServer, patience: Patience = CALM, **known: Any) -> str:
    mirrors = [Mirror(f"{server.url}/{PATH}") for server in servers]
    return fetch_object(mirrors, Expected(**known), part, patience=patience).sha256


def sums(data: bytes = DATA) -> tuple[str, str]:
    return hashlib.sha256(data).hexdigest(), hashlib.md5(data, usedforsecurity=False).hexdigest()


SHA256, MD5 = sums()
TAG = {"ETag": '"one"'}
KNOWN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "size": {"size_bytes": len(DATA)},
    "sha256": {"sha256": SHA256},
    "md5": {"md5": MD5},
    "size and md5": {"size_bytes": len(DATA), "md5": MD5},
    "all": {"size_bytes": len(DATA), "sha256": SHA256, "md5": MD5},
}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("name", KNOWN)
def test_a_file_comes_whatever_is_known_and_held(
    server: FileServer, part: Path, name: str, chunked: bool
) -> None:
    server.faults = [Fault(chunked=chunked)]
    for held in (b"", DATA[:300_000], WRONG[:9], WRONG, DATA, DATA + b"x"):
        part.write_bytes(held)
        assert fetch_file(part, server, **KNOWN[name]) == SHA256, len(held)
        assert part.read_bytes() == DATA


@pytest.mark.parametrize("name", ["sha256", "md5"])
def test_with_a_sum_a_file_goes_on(server: FileServer, part: Path, name: str) -> None:
    part.write_bytes(DATA[:900_000])
    server.faults = [Fault(drop_after=50_000, times=1)]
    fetch_file(part, server, **KNOWN[name])
    assert part.read_bytes() == DATA
    assert [range_ and int(range_[6:-1]) >= 900_000 for range_ in ranges(server)] == [True, True]
    fetch_file(part, server, **KNOWN[name])
    assert len(server.requests) == 2


@pytest.mark.parametrize("name", ["nothing", "size"])
def test_without_a_sum_only_the_same_tag_goes_on(server: FileServer, part: Path, name: str) -> None:
    part.write_bytes(DATA[:900_000])
    server.faults = [Fault(drop_after=600_000, times=1, headers=TAG), Fault(headers=TAG)]
    assert fetch_file(part, server, **KNOWN[name]) == SHA256
    first, second = ranges(server)
    assert first is None
    assert second is not None


@pytest.mark.parametrize("name", ["nothing", "size"])
@pytest.mark.parametrize(
    "tags", [(None, None), ('W/"one"', 'W/"one"'), ('"one"', '"two"'), ('"one"', None)]
)
@pytest.mark.parametrize("ignores_ranges", [False, True])
def test_without_a_sum_other_bytes_are_never_mixed(
    server: FileServer, part: Path, name: str, tags: tuple[str, str], ignores_ranges: bool
) -> None:
    """The file changes in the middle of the transfer: all that comes is of the second one."""
    server.faults = [
        Fault(drop_after=600_000, times=1, headers={"ETag": tags[0]}, change=lambda _: WRONG),
        Fault(headers={"ETag": tags[1]}, ignores_ranges=ignores_ranges),
    ]
    steps: list[int] = []
    mirrors = [Mirror(f"{server.url}/{PATH}")]
    found = fetch_object(
        mirrors, Expected(**KNOWN[name]), part, patience=CALM, progress=steps.append
    )
    assert (found.sha256, part.read_bytes()) == (SHA256, DATA)
    assert sum(steps) == len(DATA)


def test_without_a_sum_bytes_of_two_mirrors_are_never_mixed(
    servers: tuple[FileServer, FileServer], part: Path
) -> None:
    first, second = servers
    first.faults = [
        Fault(drop_after=600_000, times=1, headers=TAG, change=lambda _: WRONG),
        Fault(status=404),
    ]
    second.faults = [Fault(headers=TAG)]
    assert fetch_file(part, first, second) == SHA256
    assert ranges(second) == [None]


def test_a_size_that_one_mirror_says_does_not_bind_the_next(
    servers: tuple[FileServer, FileServer], part: Path
) -> None:
    first, second = servers
    first.faults = [Fault(change=lambda data: data[:-1])]
    assert fetch_file(part, first, second, sha256=SHA256) == SHA256


@pytest.mark.parametrize("name", ["sha256", "md5", "size and md5", "all"])
def test_wrong_sums_are_told(server: FileServer, part: Path, name: str) -> None:
    server.faults = [Fault(change=lambda _: WRONG)]
    with pytest.raises(TransferError, match=f"{PATH}: gave (sha256|md5) [0-9a-f]+, expected "):
        fetch_file(part, server, **KNOWN[name])
    assert part.read_bytes() == b""


@pytest.mark.parametrize(
    "fault",
    [
        Fault(drop_after=9),
        Fault(drop_after=200_000),
        Fault(drop_after=200_000, chunked=True),
        Fault(drop_after=200_000, headers={"Content-Length": None, "Connection": "close"}),
        Fault(stall_after=200_000),
        Fault(status=500),
    ],
)
def test_half_a_file_is_never_taken_for_a_whole_one(
    server: FileServer, part: Path, fault: Fault
) -> None:
    server.faults = [fault]
    with pytest.raises(TransferError, match="tried 3 times"):
        fetch_file(part, server, patience=QUICK)


def test_who_drops_each_time_elsewhere_is_given_up(server: FileServer, part: Path) -> None:
    server.faults = [
        Fault(drop_after=after, times=1) for after in [20_000, 900_000] + [20_000, 900_000] * 50
    ]
    with pytest.raises(TransferError):
        fetch_file(part, server)
    assert len(server.requests) < 10


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_other_protocols_give_such_files_too(
    tmp_path: Path, part: Path, kind: str, name: str
) -> None:
    url = {"file": f"file://{tmp_path}/base/a.hdf5", "memory": "memory://known/a.hdf5"}[kind]
    with fsspec.open(url, "wb", auto_mkdir=True) as file:
        file.write(DATA)
    part.write_bytes(WRONG[:400_000])
    found = fetch_object([Mirror(url)], Expected(**KNOWN[name]), part, patience=CALM)
    assert found.sha256 == SHA256
    assert part.read_bytes() == DATA
