"""A process that reads damaged files, watched: its end, its time and its memory.

The process makes the damage itself from a number, so that only numbers and what came of them are sent.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import resource
import shutil
import signal
import time
import traceback
import warnings
import zipfile
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from tests.fuzz.file_damage import Link, damage_folder
from tests.fuzz.samples import write_samples

LONGEST = 5.0  # seconds of the processor
ENDS = 7.0  # the same; a process that takes so long for one input is ended
HANGS = 120  # seconds that a process may wait for something
MOST_BYTES = 2**29
MOST_FINDINGS = 20
NAME = "lab/damaged-v0"
LONGEST_MESSAGE = 10_000
KEPT = Path(__file__).with_name("corpus.zip")
"""Inputs that the fuzzer kept because they ran code that no sample runs, by format; `--keep` writes it."""


class Finding(NamedTuple):
    """What must not come of a damaged file.

    Attributes:
        number: Says which damage it is.
        text: What came of it.
    """

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
        """Read a sample that is damaged; return `right` or the name of the OrlogError."""
        from orlog.errors import OrlogError

        store = self.folder / "store"
        _put(sample.root, damage)
        try:
            read_sample(sample, store, writes=writes)
        except OrlogError as error:
            return type(error).__name__
        else:
            return "right"
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


class Reader:
    """Reads damaged files in a process of its own, so that a crash or hang there is seen here."""

    def __init__(self, folder):
        self.folder = folder.resolve()
        self._started = 0
        self._start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pipe.close()
        self._process.join(1)
        self._process.kill()
        self._process.join()

    def read_damaged(self, name, numbers):
        """Read the files of a format, damaged as each number says.

        Returns how often each outcome came, and what must not come.
        """
        counts = {}
        findings = []
        while numbers and len(findings) < MOST_FINDINGS:
            self._number.value = numbers.start
            try:
                self._pipe.send((name, numbers))
                some, more = self._answer()
                numbers = range(0)
            except (EOFError, OSError) as error:
                number = self._number.value
                self._process.join(1)
                text = str(error) or f"ended the process with code {self._process.exitcode}"
                some, more = {}, [Finding(number, text)]
                numbers = range(number + 1, numbers.stop)
                self.__exit__()
                self._start()
            findings += more
            for outcome, count in some.items():
                counts[outcome] = counts.get(outcome, 0) + count
        return counts, findings

    def read_sound(self, name):
        """Read the sound files of a format; return what went wrong."""
        self._pipe.send((name, None))
        return self._pipe.recv()

    def _answer(self):
        last = None
        while not self._pipe.poll(HANGS):
            if last == self._number.value:
                raise OSError(f"hangs for {HANGS} seconds")
            last = self._number.value
        return self._pipe.recv()

    def _start(self):
        self._started += 1
        work = self.folder / f"work-{self._started}"
        work.mkdir(parents=True)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._number = context.Value(ctypes.c_longlong, 0, lock=False)
        arguments = (theirs, self._number, work)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        assert self._pipe.recv() == "ready"


def limit_memory():
    """Let this process take a few times what a reader may."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 6 * MOST_BYTES, resource.RLIM_INFINITY))


def _serve(pipe, number, work):
    import pyarrow as pa

    os.chdir(work)
    warnings.simplefilter("ignore")
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    os.fsync = lambda _: None
    place = Place(work)
    limit_memory()
    pipe.send("ready")
    while True:
        try:
            name, numbers = pipe.recv()
        except EOFError:
            return
        if numbers is None:
            pipe.send(_read_sound(place, name))
        else:
            pipe.send(_read_all(place, name, numbers, number))


def _read_sound(place, name):
    found = [] if place.samples[name] else ["has no sample in tests/fuzz/samples.py"]
    for sample in place.samples[name]:
        try:
            read_sample(sample, place.folder / "store", writes=True)
        except BaseException:  # noqa: BLE001 (all of them are told)
            found.append(traceback.format_exc())
        shutil.rmtree(place.folder / "store", ignore_errors=True)
    return found


def _read_all(place, name, numbers, current):
    counts = {}
    findings = []
    for number in numbers:
        current.value = number
        sample, damage = place.damage(name, number)
        writes = number % 64 == 0
        # Writing a version holds a shard of each column, and more where its threads come late.
        most = 2 * MOST_BYTES if writes else MOST_BYTES
        before, began = _reset_peak(), time.process_time()
        signal.setitimer(signal.ITIMER_PROF, ENDS)  # its signal ends this process
        try:
            outcome = place.check(sample, damage, writes=writes)
            counts[outcome] = counts.get(outcome, 0) + 1
        except BaseException:  # noqa: BLE001 (that is what is looked for)
            findings.append(Finding(number, traceback.format_exc()))
        spent, grown = time.process_time() - began, _peak_bytes() - before
        if spent > LONGEST:
            findings.append(Finding(number, f"took {spent:.1f} seconds"))
        if grown > most:
            findings.append(Finding(number, f"took {grown:,} bytes of memory"))
        if (place.folder.parent / "new").exists() or (place.folder / "new").exists():
            findings.append(Finding(number, "ran a pickle"))
        if len(findings) >= MOST_FINDINGS:
            break
    signal.setitimer(signal.ITIMER_PROF, 0)
    return counts, findings


def _peak_bytes():
    """Return the most memory that this process had since `_reset_peak`."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


def _reset_peak():
    with contextlib.suppress(OSError):  # then it is the most since the process began
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()
