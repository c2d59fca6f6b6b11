"""Makes files of scored runs from the folders of evaluated runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from orlog.algos.algorithms import ALGORITHMS, AlgorithmLike, algorithm_name
from orlog.algos.settings import make_config
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import VIEW_FILE, RunRecord, read_run
from orlog.base.code_version import repository_and_commit, run_sources, sources_digest
from orlog.datasets.loading import load_dataset
from orlog.errors import NotFoundError, SchemaError
from orlog.runs.comparing import Row, check_seeds, find_runs, merged
from orlog.runs.scored_runs import CURVE_POLICY, CodeUsed, Scale, ScoredRuns, write_scored_runs


def scored_runs(
    folders: Sequence[Path], *, tried: int | None = None, algorithm: AlgorithmLike | None = None
) -> list[ScoredRuns]:
    """Return what evaluated runs score, of each method and dataset.

    `tried` says how many settings were tried to choose these; `algorithm` is the file of one that is not orlog's,
    whose SHA-256 is stated then.

    Raises ValueError if runs of a method on a dataset are not seeds of one another, measured alike; SchemaError if
    a run learned from a view, or was not evaluated.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in find_runs(folders):
        groups.setdefault((row.name, row.task), []).append(row)
    return [_scored(rows, tried, algorithm) for rows in groups.values()]


def write_all(out: Path, made: Sequence[ScoredRuns]) -> list[Path]:
    """Write scored runs to a file `..json`, or each to a file of its own in a folder; return the files.

    Raises SchemaError if there are several for one file.
    """
    if out.suffix != ".json":
        files = [out / runs.dataset.name / f"{runs.method.name.rpartition(':')[2]}.json" for runs in made]
    elif len(made) == 1:
        files = [out]
    else:
        names = ", ".join(f"{runs.method.name} on {runs.dataset.name}" for runs in made)
        raise SchemaError(
            f"{out}: a file holds one method on one dataset, and these runs are {names}; name a folder instead: "
            f"--out {out.with_suffix('')}"
        )
    for file, runs in zip(files, made, strict=True):
        write_scored_runs(file, runs)
    return files


def _scored(rows: Sequence[Row], tried: int | None, algorithm: AlgorithmLike | None) -> ScoredRuns:
    check_seeds(rows)
    first = rows[0].scored
    for row in rows:
        if row.scored.policy == CURVE_POLICY:
            raise SchemaError(f"{row.place}: was not evaluated; run: orlog evaluate {row.place}")
        if row.scored.protocol != first.protocol:
            raise SchemaError(
                f"{rows[0].place} and {row.place} were evaluated with different packages; evaluate both again: "
                "orlog evaluate RUN"
            )
        if (row.place / VIEW_FILE).exists():
            raise SchemaError(
                f"{row.place}: was trained on a view, which nobody else finds by its name; store it as a version "
                "first: orlog save VIEW NAME@VERSION"
            )
    hours = [row.scored.compute.hours for row in rows]
    known = [each for each in hours if each is not None]
    total = sum(known) if len(known) == len(hours) else None
    anchors = rows[0].anchors
    row = merged(rows)
    return msgspec.structs.replace(
        row.scored,
        method=msgspec.structs.replace(first.method, tried=tried),
        references=anchors if anchors is None or isinstance(anchors, Scale) else Scale.of(anchors),
        code=_code(row.places, algorithm),
        compute=msgspec.structs.replace(first.compute, hours=total),
    )


def _code(folders: Sequence[Path], algorithm: AlgorithmLike | None) -> CodeUsed:
    """Return what computed runs; sources are those of now, if the records show that they alone trained every seed."""
    records: list[RunRecord] = [*map(read_run, folders)]
    record = records[0]
    unknown = CodeUsed(versions=record.versions)
    if algorithm is not None and algorithm_name(algorithm) != record.algorithm:
        raise ValueError(f"{folders[0]}: was trained with {record.algorithm}, not {algorithm_name(algorithm)}.")
    if algorithm is None and record.algorithm not in ALGORITHMS:
        return unknown  # code that a record names is not run
    try:
        dataset = load_dataset(f"{record.dataset}@{record.digest}")
        kind = fitting_form(algorithm or record.algorithm, dataset)
    except NotFoundError:  # the data are not here
        return unknown
    here = sources_digest(kind)
    if not here or any(code != here for one in records for code in one.codes):
        return unknown
    files = run_sources(kind, make_config(kind, record.config))
    own = [module for module in files if not module.startswith("orlog.")]
    repository, commit = repository_and_commit(own or files)
    return CodeUsed(files=files, versions=record.versions, repository=repository, commit=commit)
