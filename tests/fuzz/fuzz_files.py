"""A coverage-guided fuzzer of all readers of data files.

    pip install atheris
    python -m tests.fuzz.fuzz_files FOLDER --minutes 60 [FORMAT ..]

The formats take turns in processes of their own, some minutes each, so that a crash of a library ends only
one turn and is noted. In FOLDER it keeps for each format a corpus, which grows from run to run, and findings:
an error that is no OrlogError or names no file, over 5 seconds, over 512 MiB, or a crash. An input is a byte
that picks a file of the samples, and the file. Not collected by pytest.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np

LARGEST_INPUT = 2**17
LONGEST = 5.0
MOST_BYTES = 2**29
TURN_SECONDS = 120


class Fuzzer:
    """Runs inputs of one format, and notes each finding once."""

    def __init__(self, readers: Any, name: str, folder: Path, work: Path) -> None:
        from orlog.errors import OrlogError

        self.error, self.readers, self.name = OrlogError, readers, name
        self.place = readers.Place(work)
        self.damage = importlib.import_module("tests.fuzz.file_damage")
        self.targets = [
            (sample, path)
            for sample in self.place.samples[name]
            for path in self.place.files[sample.root]
        ]
        self.pieces = [data for files in self.place.files.values() for data in files.values()]
        self.findings = folder / "findings"
        self.seen = {path.name for path in self.findings.iterdir()}
        for number, (sample, path) in enumerate(self.targets):
            data = self.place.files[sample.root][path]
            (folder / "corpus" / f"seed-{number}").write_bytes(bytes([number]) + data)

    def run(self, data: bytes) -> None:
        """Check one input."""
        if not data:
            return
        sample, path = self.targets[data[0] % len(self.targets)]
        began, before = time.process_time(), _peak_bytes()
        try:
            self.place.check(sample, {path: data[1:]}, writes=False)
        except Exception as error:  # noqa: BLE001 (that is what is looked for)
            frames = traceback.extract_tb(error.__traceback__)
            last = next(
                (one for one in reversed(frames) if "/datasets/" in one.filename), frames[-1]
            )
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


def _take_turn(name: str, folder: Path, seconds: int) -> None:
    """Fuzz one format in this process."""
    atheris = _atheris()
    with atheris.instrument_imports(include=["orlog", "zipfile", "numpy.lib"]):
        readers = importlib.import_module("tests.fuzz.readers")
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", category=RuntimeWarning)
    for path in ("corpus", "findings"):
        (folder / path).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        fuzzer = Fuzzer(readers, name, folder, Path(work).resolve())
        os.chdir(folder)
        readers.limit_memory()
        options = [f"-max_len={LARGEST_INPUT}", "-timeout=60", "-rss_limit_mb=4096"]
        options += ["-len_control=0", "-print_final_stats=1", f"-max_total_time={seconds}"]
        atheris.Setup([sys.argv[0], *options, "corpus"], fuzzer.run, custom_mutator=fuzzer.mutate)
        atheris.Fuzz()


def _turn(command: list[str], most_seconds: float) -> tuple[int, str, str]:
    """Run a turn; return its code and what it printed. Some processes end and do not exit."""
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(command, stdout=told, stderr=stderr)
        try:
            code = process.wait(most_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        texts = []
        for file in (told, stderr):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    code = 0 if "\nDone " in texts[1] else code
    return code, texts[0], texts[1]


def main() -> None:
    """Let the formats take turns until the minutes are over; print executions and findings."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("names", nargs="*", metavar="FORMAT")
    asked.add_argument("--minutes", type=float, default=60.0)
    asked.add_argument("--turn", help=argparse.SUPPRESS)
    given = asked.parse_intermixed_args()
    folder = given.folder.absolute()
    if given.turn:
        _take_turn(given.turn, folder / given.turn, int(given.minutes * 60))
        return
    from tests.fuzz.samples import READERS

    names = given.names or READERS
    counts_file = folder / "counts.json"
    folder.mkdir(parents=True, exist_ok=True)
    turn = min(TURN_SECONDS, given.minutes * 60 / len(names))
    began = time.monotonic()
    while True:
        for name in names:
            if time.monotonic() - began > given.minutes * 60:
                return
            command = [sys.executable, "-m", __spec__.name, str(folder), "--turn", name]
            code, told, stderr = _turn([*command, "--minutes", str(turn / 60)], 2 * turn + 60)
            counts = json.loads(counts_file.read_text()) if counts_file.exists() else {}
            runs, seconds, crashes = counts.get(name, (0, 0, 0))
            found = re.search(r"number_of_executed_units: (\d+)", stderr)
            lines = re.findall(r"^#(\d+)", stderr, re.MULTILINE)
            more = int(found[1] if found else lines[-1] if lines else 0)
            counts[name] = [runs + more, seconds + turn, crashes + (code != 0)]
            counts_file.write_text(json.dumps(counts))
            if code != 0:
                with (folder / "crashes.txt").open("a") as file:
                    file.write(f"{name} ended with code {code}\n{stderr[-4000:]}\n")
            with (folder / "findings.txt").open("a") as file:
                file.write(told)
            sys.stdout.write(f"{name}: {more} runs, code {code}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
