"""A coverage-guided fuzzer of everything that reads documents: manifests, indexes, signatures, ..

    pip install atheris
    python -m tools.fuzzing.fuzz_documents FOLDER -max_total_time=600

In FOLDER it keeps a corpus, which grows from run to run, and findings. All options but the folder
are libFuzzer's. An input is a byte that picks the kind of document, and the document. A finding is
an error that is no OrlogError, a wrong answer, over 2 seconds or over 256 MiB; it is noted once for
each place in the code, and the fuzzer goes on. A crash of the interpreter ends it and leaves the
input in `crash-..`. Not collected by pytest.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

LONGEST = 2.0
MOST_BYTES = 2**28
LARGEST_INPUT = 2**17


class Fuzzer:
    """Runs inputs, and notes each finding once."""

    def __init__(self, documents: Any, corpus: Path, findings: Path, work: Path) -> None:
        from orlog.errors import OrlogError

        self.error = OrlogError
        self.place = documents.Workplace(work)
        self.documents = documents
        self.damaged = importlib.import_module("tests.fuzz.damage").damaged
        self.findings = findings
        self.seen = {path.name for path in findings.iterdir()}
        self.runs = 0
        for number, kind in enumerate(documents.KINDS):
            (corpus / f"seed-{number}").write_bytes(bytes([number]) + self.place.originals[kind])

    def run(self, data: bytes) -> None:
        """Check one input."""
        if not data:
            return
        self.runs += 1
        kind = self.documents.KINDS[data[0] % len(self.documents.KINDS)]
        began, before = time.monotonic(), _peak_bytes()
        try:
            with contextlib.suppress(self.error):
                self.place.check(kind, data[1:])
        except Exception as error:  # noqa: BLE001 (that is what is looked for)
            frames = traceback.extract_tb(error.__traceback__)
            last = next(one for one in reversed(frames) if "/datasets/" in one.filename or not one.line)
            where = f"{Path(last.filename).stem}-{last.lineno}"
            self._note(f"{type(error).__name__}-{where}", kind, data, traceback.format_exc())
        seconds, grown = time.monotonic() - began, _peak_bytes() - before
        if seconds > LONGEST:
            self._note(f"slow-{kind}-{int(seconds)}", kind, data, f"{seconds} s")
        if grown > MOST_BYTES:
            self._note(f"large-{kind}", kind, data, f"{grown} bytes")

    def mutate(self, data: bytes, longest: int, seed: int) -> bytes:
        """Return a changed input: mostly by steps on its JSON, with the digest made to fit."""
        draw = random.Random(seed)
        if len(data) < 2 or draw.random() < 0.25:
            return bytes(_atheris().Mutate(data, longest))
        kind = self.documents.KINDS[data[0] % len(self.documents.KINDS)]
        steps = [
            (draw.randrange(2**20), draw.randrange(2**20), draw.randrange(2**20))
            for _ in range(draw.choice((1, 1, 1, 2, 4)))
        ]
        changed = self.damaged(data[1:], steps, self.place.seal_of(kind))
        return bytes((data[:1] + changed)[:longest])

    def _note(self, name: str, kind: str, data: bytes, text: str) -> None:
        if name in self.seen:
            return
        self.seen.add(name)
        (self.findings / name).write_bytes(data)
        sys.stdout.write(f"FINDING {name} after {self.runs} runs, {kind}: {data[1:201]!r}\n{text}\n")
        sys.stdout.flush()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _atheris() -> Any:
    return importlib.import_module("atheris")


def main() -> None:
    """Run until libFuzzer's options say that it is enough."""
    folder = Path(sys.argv[1]).absolute()
    corpus, findings = folder / "corpus", folder / "findings"
    for path in (corpus, findings):
        path.mkdir(parents=True, exist_ok=True)
    atheris = _atheris()
    with atheris.instrument_imports(include=["orlog"]):
        documents = importlib.import_module("tests.fuzz.documents")
    with tempfile.TemporaryDirectory() as work:
        fuzzer = Fuzzer(documents, corpus, findings, Path(work).resolve())
        os.chdir(folder)
        options = [f"-max_len={LARGEST_INPUT}", "-timeout=60", "-rss_limit_mb=4096", "-len_control=0"]
        atheris.Setup([sys.argv[0], *options, *sys.argv[2:], str(corpus)], fuzzer.run, custom_mutator=fuzzer.mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
