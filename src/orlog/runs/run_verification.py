"""Compares the files of runs with the digests that other files of the same run state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

from orlog.algos.training.checkpoint import verify_checkpoint
from orlog.algos.training.metrics import METRICS_FILE, read_metrics
from orlog.algos.training.runs import (
    CHECKPOINT_FILE,
    EVALUATION_FILE,
    ONLINE_FILE,
    RUN_FILE,
    PathLike,
    check_record,
    has_checkpoint,
    kept_checkpoints,
    read_run,
    read_sealed_evaluation,
)
from orlog.base.files import hash_file, is_held
from orlog.errors import OrlogError, clause
from orlog.runs.results import RESULT_FILE, read_result
from orlog.runs.run_folders import run_places


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRun:
    """What was found of a run.

    Attributes:
        folder: Its folder.
        problems: What is damaged, missing or was edited, a sentence each.
        unverified: What no digest speaks of, or could not be compared now, a clause each.
    """

    folder: Path
    problems: list[str]
    unverified: list[str]


def verify_runs(place: PathLike) -> list[VerifiedRun]:
    """Compare every file of the runs in a folder or below with the digests that the runs hold.

    The checkpoint holds a digest of itself and of `run.json`; an evaluation and a stored result hold
    digests of themselves, of `run.json`, of the checkpoint, and of the log up to their step. Nothing is
    signed: who edits a file and computes all digests again is not found.

    Raises NotFoundError if there is no run.
    """
    return [_verify(folder) for folder in run_places(place)]


def _verify(folder: Path) -> VerifiedRun:
    problems: list[str] = []
    unverified: list[str] = []
    if is_held(folder):
        unverified.append("a process trains in it now, so that its files change")
    else:
        for check in (_record, _checkpoints, _evaluation, _result):
            try:
                unverified.extend(check(folder))
            except (OrlogError, OSError, ValueError, LookupError) as error:
                problems.append(f"{clause(error)}.")
    return VerifiedRun(folder=folder, problems=[*dict.fromkeys(problems)], unverified=unverified)


def _record(folder: Path) -> Iterator[str]:
    read_run(folder)
    if not has_checkpoint(folder):
        yield f"{RUN_FILE}: there is no checkpoint yet, which will hold its digest"


def _checkpoints(folder: Path) -> Iterator[str]:
    last = folder / CHECKPOINT_FILE
    for path in sorted({*kept_checkpoints(folder).values(), *([last] if last.exists() else [])}):
        metadata = verify_checkpoint(path)
        check_record(folder, path, metadata)
        steps, sha256 = folder / ONLINE_FILE, metadata.get("online_sha256")
        if path == last and sha256 and not (steps.is_file() and hash_file(steps) == sha256):
            yield f"{ONLINE_FILE}: it is compared when the run goes on"


def _evaluation(folder: Path) -> Iterator[str]:
    if (folder / METRICS_FILE).exists():
        read_metrics(folder)
    if (folder / EVALUATION_FILE).exists():
        read_sealed_evaluation(folder)
    else:
        yield f"{METRICS_FILE}: an evaluation will hold its digest (orlog evaluate)"


def _result(folder: Path) -> Iterable[str]:
    if (folder / RESULT_FILE).exists():
        read_result(folder.name, with_checkpoint=True, folder=folder)
    return ()
