"""Damaged files of every format: a typed error that names the file, or a read that passes the checks.

All are read in a child process, so that a crash, a hang or a large allocation is seen. A format joins by
its sample in `tests/fuzz/samples.py`. `tools/fuzzing/fuzz_files.py` looks for more.
"""

from __future__ import annotations

import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.readers import KEPT, Reader
from tests.fuzz.samples import READERS
from tests.levels import most

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are Linux's")

IN_A_RELEASE, IN_ALL = 10_000, 1_500
"""Damaged files of each format that `make test-release` and `make test-all` read."""
REFUSED = {"FormatVersionError", "IntegrityError", "SchemaError"}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Return a process that reads files."""
    with Reader(tmp_path_factory.mktemp("reader")) as made:
        yield made


def check(reader: Reader, name: str, numbers: range) -> None:
    """Read a format's files, damaged as the numbers say."""
    counts, findings = reader.read_damaged(name, numbers)
    sys.stdout.write(f"{name}: {counts}\n")
    assert not findings, "\n".join(f"{name}, damage {one.number}: {one.text}" for one in findings)
    assert sum(counts.values()) == len(numbers)
    assert counts.keys() <= {"right", *REFUSED}


def test_every_format_has_a_sample_that_is_read(reader: Reader) -> None:
    for name in READERS:
        assert reader.read_sound(name) == [], name


def test_some_damaged_files_are_refused_or_read(reader: Reader) -> None:
    for name in READERS:
        check(reader, name, range(40))


def test_what_the_fuzzer_kept_is_refused_or_read(reader: Reader) -> None:
    """Its inputs run code that no sample runs (`tests/fuzz/corpus.zip`)."""
    with zipfile.ZipFile(KEPT) as kept:
        counts = Counter(one.partition("/")[0] for one in kept.namelist())
    assert set(counts) <= set(READERS)
    for name, count in counts.items():
        check(reader, name, range(-count, 0))


@pytest.mark.thorough
@pytest.mark.parametrize("name", READERS)
def test_thousands_of_damaged_files_of_a_format_are_refused_or_read(
    reader: Reader, name: str
) -> None:
    check(reader, name, range(most(IN_A_RELEASE, IN_ALL)))


def test_the_page_on_security_states_these_numbers() -> None:
    page = " ".join(Path("docs/security.md").read_text("utf-8").split())
    formats = len(READERS)
    for number, level in ((IN_ALL, "make test-all"), (IN_A_RELEASE, "make test-release")):
        said = (
            f"`{level}` reads {number * formats:,} damaged files ({number:,} in each of {formats} "
        )
        assert said in page
