"""A coverage-guided fuzzer of all readers of data files.

    pip install atheris
    python -m tools.fuzzing.fuzz_files FOLDER --minutes 60 [FORMAT ..]

Each format has an equal part of the minutes, in a process of its own. Where a crash or hang of a library
ends the process, another goes on with what is left of the part. In FOLDER it keeps for each format a corpus,
which grows from run to run, and findings: an error that is no OrlogError or names no file, over 5 seconds,
over 512 MiB, or the input of a crash (`crash-..`) or of a hang (`timeout-..`). results.txt there holds what
came of the formats that had their part. An input is a byte that picks a file of the samples, and the file.
A run begins with the samples and with what was kept of earlier ones in tests/fuzz/corpus.zip; `--keep` adds to that.
Not collected by pytest.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

LARGEST_INPUT = 2**17
LARGEST_KEPT = 20_000
LONGEST = 5.0
MOST_BYTES = 2**29
LEAST_SECONDS = 10  # of what is left of a part, for another process to be worth its start
HEADER = f"{'':14}{'minutes':>8}{'runs':>10}{'corpus':>8}{'coverage':>16}{'findings':>10}{'ends':>6}"


class Fuzzer:
    """Runs inputs of one format, and notes each finding once."""

    def __init__(self, readers: Any, name: str, folder: Path, work: Path) -> None:
        from orlog.errors import OrlogError

        self.error, self.readers, self.name = OrlogError, readers, name
        self.place = readers.Place(work)
        self.damage = importlib.import_module("tests.fuzz.file_damage")
        self.targets = self.place.targets(name)
        self.pieces = [data for files in self.place.files.values() for data in files.values()]
        self.findings = folder / "findings"
        self.seen = {path.name for path in self.findings.iterdir()}
        for number, (sample, path) in enumerate(self.targets):
            data = self.place.files[sample.root][path]
            (folder / "corpus" / f"seed-{number}").write_bytes(bytes([number]) + data)
        for number, data in enumerate(self.place.kept[name]):
            (folder / "corpus" / f"seed-kept-{number}").write_bytes(data)

    def run(self, data: bytes) -> None:
        """Check one input."""
        if not data:
            return
        sample, path = self.targets[data[0] % len(self.targets)]
        began, before = time.process_time(), _peak_bytes()
        try:
            self.place.check(sample, {path: data[1:]}, writes=False)
        except self.error:
            pass
        except Exception as error:  # noqa: BLE001 (that is what is looked for)
            frames = traceback.extract_tb(error.__traceback__)
            last = next((one for one in reversed(frames) if "/datasets/" in one.filename), frames[-1])
            where = f"{Path(last.filename).stem}-{last.lineno}"
            self._note(f"{type(error).__name__}-{where}", data, traceback.format_exc())
        spent, grown = time.process_time() - began, _peak_bytes() - before
        if spent > LONGEST:
            self._note(f"slow-{int(spent)}", data, f"{spent} s")
        if grown > MOST_BYTES:
            self._note("large", data, f"{grown} bytes")

    def mutate(self, data: bytes, longest: int, seed: int) -> bytes:
        """Return a changed input: in the words of its format, or in its bytes."""
        rng = np.random.default_rng(seed)
        if len(data) < 2 or rng.random() < 0.2:
            return bytes(_atheris().Mutate(data, longest))
        sample, path = self.targets[data[0] % len(self.targets)]
        changed = data[1:]
        if rng.random() < 0.5:
            if path.endswith((".h5", ".hdf5")):  # writing into a damaged one can crash HDF5
                changed = self.place.files[sample.root][path]
            changed = self.damage.damage_structure(path, changed, rng)
        else:
            changed = self.damage.damage_bytes(changed, self.pieces, rng)
        return bytes((data[:1] + changed)[:longest])

    def _note(self, name: str, data: bytes, text: str) -> None:
        if name in self.seen:
            return
        self.seen.add(name)
        (self.findings / name).write_bytes(data)
        sys.stdout.write(f"FINDING {self.name} {name}: {data[:100]!r}\n{text}\n")
        sys.stdout.flush()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _atheris() -> Any:
    return importlib.import_module("atheris")


def _fuzz(name: str, folder: Path, seconds: float) -> None:
    """Fuzz one format in this process, its start included in the time."""
    began = time.monotonic()
    atheris = _atheris()
    with atheris.instrument_imports(include=["orlog", "zipfile", "numpy.lib"]):
        readers = importlib.import_module("tests.fuzz.readers")
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", category=RuntimeWarning)
    with tempfile.TemporaryDirectory() as work:
        fuzzer = Fuzzer(readers, name, folder, Path(work).resolve())
        os.chdir(folder)
        readers.limit_memory()
        left = max(1, int(seconds - (time.monotonic() - began)))
        options = [f"-max_len={LARGEST_INPUT}", "-timeout=30", "-rss_limit_mb=4096"]
        options += ["-len_control=0", "-print_final_stats=1", f"-max_total_time={left}"]
        atheris.Setup([sys.argv[0], *options, "corpus"], fuzzer.run, custom_mutator=fuzzer.mutate)
        atheris.Fuzz()


def _run_process(command: list[str], most_seconds: float) -> tuple[bool, str, str]:
    """Return whether a process came to its end, and what it printed. Some end and do not exit."""
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(command, stdout=told, stderr=stderr)
        try:
            process.wait(most_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        texts = []
        for file in (told, stderr):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return "\nDone " in texts[1], texts[0], texts[1]


def _fuzz_for(name: str, folder: Path, seconds: float) -> str:
    """Fuzz one format for some time, with as many processes as it takes; return a line about it."""
    for path in ("corpus", "findings"):
        (folder / path).mkdir(parents=True, exist_ok=True)
    began, runs, ends, coverage = time.monotonic(), 0, 0, [0]
    while (left := seconds - (time.monotonic() - began)) > LEAST_SECONDS:
        command = [sys.executable, "-m", __spec__.name, str(folder.parent), name, "--in-process"]
        is_done, told, stderr = _run_process([*command, "--minutes", str(left / 60)], left + 60)
        found = re.findall(r"(?:^#|executed_units: )(\d+)", stderr, re.MULTILINE)
        runs += max(map(int, found), default=0)
        coverage += map(int, re.findall(r" cov: (\d+)", stderr))
        with (folder / "findings.txt").open("a") as file:
            file.write(told)
        if not is_done:
            ends += 1
            with (folder / "ends.txt").open("a") as file:
                file.write(stderr[-4000:] + "\n")
            for ended in folder.glob("*-*"):  # or what ended this process could end the next
                (folder / "corpus" / ended.name.partition("-")[2]).unlink(missing_ok=True)
    minutes = (time.monotonic() - began) / 60
    corpus, findings = (len(list((folder / path).iterdir())) for path in ("corpus", "findings"))
    first = coverage[1] if len(coverage) > 1 else 0
    covered = f"{first:,} -> {max(coverage):,}"
    return f"{name:14}{minutes:8.1f}{runs:10,}{corpus:8,}{covered:>16}{findings:10}{ends:6}\n"


def main() -> None:
    """Give each format its part of the minutes; write and print what came of it."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("names", nargs="*", metavar="FORMAT")
    asked.add_argument("--minutes", type=float, default=60.0)
    asked.add_argument("--keep", action="store_true", help="add small inputs to tests/fuzz/corpus.zip")
    asked.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    given = asked.parse_intermixed_args()
    folder = given.folder.absolute()
    if given.in_process:
        (name,) = given.names
        _fuzz(name, folder / name, given.minutes * 60)
        return
    from tests.fuzz.samples import READERS

    names = given.names or READERS
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.txt").open("a") as results:
        for number, name in enumerate(names):
            line = _fuzz_for(name, folder / name, given.minutes * 60 / len(names))
            for file in (results, sys.stdout):
                file.write(line if number else f"{HEADER}\n{line}")
                file.flush()
    if given.keep:
        _keep(folder, names)


def _keep(folder: Path, names: Sequence[str]) -> None:
    """Put small new inputs of a corpus, and all findings, into the file that the tests read."""
    from tests.fuzz.readers import KEPT

    with zipfile.ZipFile(KEPT, "a", zipfile.ZIP_LZMA) as kept:
        known = {kept.read(one) for one in kept.namelist()}
        for name in names:
            found = [*(folder / name / "corpus").iterdir(), *(folder / name / "findings").iterdir()]
            for path in sorted(one for one in found if not one.name.startswith("seed-")):
                data = path.read_bytes()
                if data and len(data) <= LARGEST_KEPT and data not in known:
                    known.add(data)
                    kept.writestr(zipfile.ZipInfo(f"{name}/{path.name[:12]}"), data, zipfile.ZIP_LZMA)


if __name__ == "__main__":
    main()
