"""Clocks that are wrong, here or on a server: no wrong bytes, and no wait without end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import orlog
from orlog.datasets.download.http import Patience
from orlog.datasets.home.registries import add_registry, check_serial, read_registries
from orlog.errors import SignatureError
from tests.servers import COMES, FileServer
from tests.stored_objects import change_unseen

SHARD = "observations/observation/c.0.0"
QUICK = Patience(idle=0, timeout=COMES, attempts=2, first_wait=0.01, longest_wait=0.1)
HEX_DIGITS = 64
YEARS = 10 * 365 * 86400


@pytest.fixture
def server(built_mini: Path) -> Iterator[FileServer]:
    """Serve the folder of the small dataset."""
    with FileServer(built_mini) as running:
        yield running


@pytest.mark.parametrize("clock", [-YEARS, 0, YEARS], ids=["set back", "right", "ahead"])
@pytest.mark.parametrize("times", [-YEARS, 0, YEARS], ids=["past", "present", "future"])
def test_no_clock_makes_a_quick_verification_call_a_changed_file_right(
    mini_folder: Path, clock: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever times files have, and whatever the clock says when they are hashed and after."""
    when = int(time.time()) + times
    for path in mini_folder.rglob("*"):
        os.utime(path, (when, when))
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + clock * 10**9)
    assert orlog.verify_store(mini_folder)[1] == []
    time.sleep(0.05)  # more than the granularity of the file system's clock
    change_unseen(mini_folder / SHARD)
    for _ in range(2):
        (problem,) = orlog.verify_store(mini_folder, quick=True)[1]
        assert (problem.file, problem.kind) == (SHARD, "damaged")
    monkeypatch.setattr(time, "time_ns", lambda: real() - clock * 10**9)
    (problem,) = orlog.verify_store(mini_folder, quick=True)[1]
    assert problem.file == SHARD


@pytest.mark.parametrize("clock", [-YEARS, YEARS])
def test_an_older_index_is_refused_whatever_the_clock_says(
    clock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_registry("lab", "http://127.0.0.1:9")
    (lab,) = read_registries()
    check_serial(lab, 7, "a" * HEX_DIGITS)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + clock)
    with pytest.raises(SignatureError, match="expected serial 7 or more, found 6"):
        check_serial(lab, 6, "b" * HEX_DIGITS)
    check_serial(lab, 8, "c" * HEX_DIGITS)
