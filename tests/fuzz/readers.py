"""A process that reads damaged files; it makes the damage itself from a number."""

from __future__ import annotations

import contextlib
import os
import shutil
import zipfile
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from tests.fuzz.file_damage import Link, damage_folder
from tests.fuzz.samples import write_samples
from tests.fuzz.watched import MOST_BYTES, Watched
from tests.fuzz.watched import limit_memory as limit_memory

MOST_FINDINGS = 20
NAME = "lab/damaged-v0"
LONGEST_MESSAGE = 10_000
KEPT = Path(__file__).with_name("corpus.zip")
"""Inputs that the fuzzer kept because they ran code that no sample runs, by format; `--keep` writes it."""


class Finding(NamedTuple):
    """What must not come of a damaged file, and the number that says which it is."""

    number: int
    text: str


class _Nowhere:
    """Stands for the container that a version is written into; checks come before it."""

    def __init__(self, *_):
        self.columns = {}

    def add_column(self, spec):
        self.columns[spec.name] = _Column()

    def append(self, block):
        for name, values in block.items():
            self.columns[name].rows += len(values)

    def finish(self):
        return [], []

    def close(self):
        pass


class _Column:
    rows = 0


def read_sample(sample, folder, *, writes):
    """Read what a sample has become as `orlog import` does; without writing, unless it is asked for.

    Raises:
        OrlogError: the files are refused.
        AssertionError: the refusal does not say which file it is about.
    """
    from orlog.datasets.formats.formats import choose_format, formats
    from orlog.datasets.recording import episodes
    from orlog.errors import OrlogError
    from tests.datasets.formats.reading import read_files

    try:
        if writes:
            with contextlib.suppress(ValueError):  # no or several formats look like it
                choose_format(sample.given, None, NAME)
            read_files(formats()[sample.format], sample.given, folder, sample.options)
        else:
            with mock.patch.object(episodes, "ZarrWriter", _Nowhere):
                _read(formats()[sample.format], sample, folder)
    except OrlogError as error:
        _check_told(str(error), sample)
        raise


def _check_told(text, sample):
    assert any(path.name in text for path in sample.given), f"names no file: {text[:300]}"
    assert len(text) < LONGEST_MESSAGE, f"a message without end: {text[:300]}"


def _read(one, sample, folder):
    from orlog.datasets.formats.episodes import Asked, write_episodes

    sources = [path.name for path in sample.given]
    asked = Asked(files=sample.given, sources=sources, options=sample.options)
    with one.open(asked) as opened:
        write_episodes(opened, folder, f"{NAME} ({sources[0]})")


class Place:
    """The samples of each format in a folder, which are damaged, read, and made sound again.

    Attributes:
        samples: Samples by the name of the format.
        files: Sound files of each sample, by path.
    """

    def __init__(self, folder):
        self.folder = folder
        self.samples = write_samples(folder / "samples")
        self.files = {
            sample.root: {
                str(path.relative_to(sample.root)): path.read_bytes()
                for path in sorted(sample.root.rglob("*"))
                if path.is_file()
            }
            for samples in self.samples.values()
            for sample in samples
        }
        self._pieces = [data for files in self.files.values() for data in files.values()]
        with zipfile.ZipFile(KEPT) as kept:
            self.kept = {
                name: [kept.read(one) for one in kept.namelist() if one.startswith(f"{name}/")] for name in self.samples
            }
        outside = folder / "samples" / "outside"
        outside.mkdir()
        for files in self.files.values():
            for name, data in files.items():
                (outside / Path(name).name).write_bytes(data)

    def damage(self, name, number):
        """Return the sample that a number damages, and the damage; below 0, an input that the fuzzer kept."""
        if number < 0:
            data = self.kept[name][-number - 1]
            targets = self.targets(name)
            sample, path = targets[data[0] % len(targets)]
            return sample, {path: data[1:]}
        samples = self.samples[name]
        sample = samples[number % len(samples)]
        rng = np.random.default_rng(number)
        links = sample.given[0].is_dir()
        return sample, damage_folder(self.files[sample.root], self._pieces, rng, links=links)

    def targets(self, name):
        """Return every file of every sample of a format; the first byte of an input picks one."""
        return [(sample, path) for sample in self.samples[name] for path in self.files[sample.root]]

    def check(self, sample, damage, *, writes):
        """Read a sample that is damaged; raises the OrlogError that it gives."""
        store = self.folder / "store"
        _put(sample.root, damage)
        try:
            read_sample(sample, store, writes=writes)
        finally:
            _put(sample.root, dict.fromkeys(damage) | self.files[sample.root], only=damage)
            shutil.rmtree(store, ignore_errors=True)


def _put(root, files, only=None):
    for name, data in files.items():
        if only is not None and name not in only:
            continue
        path = root / name
        path.unlink(missing_ok=True)
        if isinstance(data, Link):
            path.symlink_to(data)
        elif data is not None:
            path.write_bytes(data)


class Reader(Watched):
    """Reads damaged files in a process of its own."""

    def __init__(self, folder):
        super().__init__(folder, _start)

    def read_damaged(self, name, numbers):
        """Read the files of a format, damaged as each number says; return how often each outcome came, and what must not come."""
        counts, findings = {}, []
        for number in numbers:
            outcome, is_good = self.ask(name, number)
            if is_good:
                counts[outcome] = counts.get(outcome, 0) + 1
            else:
                findings.append(Finding(number, outcome))
                if len(findings) >= MOST_FINDINGS:
                    break
        return counts, findings

    def read_sound(self, name):
        """Read the sound files of a format; return what went wrong."""
        outcome, _ = self.ask(name, None)
        return [] if outcome == "right" else [outcome]


def _start(work):
    import pyarrow as pa

    os.chdir(work)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    os.fsync = lambda _: None
    place = Place(work)

    def read(name, number):
        if number is None:
            assert place.samples[name], "has no sample in tests/fuzz/samples.py"
            for sample in place.samples[name]:
                read_sample(sample, place.folder / "store", writes=True)
                shutil.rmtree(place.folder / "store", ignore_errors=True)
            return ""
        writes = number % 64 == 0
        # Writing a version holds a shard of each column, and more where its threads come late.
        read.most = 2 * MOST_BYTES if writes else MOST_BYTES
        place.check(*place.damage(name, number), writes=writes)
        is_run = (work.parent / "new").exists() or (work / "new").exists()
        return "ran a pickle" if is_run else ""

    return read
