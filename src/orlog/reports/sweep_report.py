"""The report of a sweep, as JSON with all that its numbers come from, and as a page to look at.

    report.json    evidence: every result (returns, curve, settings, versions), reference returns and
                   recorded baselines; then the numbers that follow from it
    report.html    these numbers for people; it names the SHA-256 of report.json

`verify_report` computes all numbers again from the evidence, and looks for the evidence in the results
of this home (`stored_results.py`) and among the references and baselines of this orlog.
The page is drawn again from them, and compared; the pictures of episodes, where the dataset is here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orlog.base.files import make_folder, replace_files, storage_errors
from orlog.datasets.loading import load_dataset
from orlog.errors import FormatVersionError, ManifestError, NotFoundError, OrlogError, clause
from orlog.experiments.reproducing import Result, recorded_baseline
from orlog.experiments.result_folders import result_folder
from orlog.experiments.stored_results import (
    JobIdentity,
    StoredResult,
    is_sealed,
    key_of,
    read_result,
)
from orlog.experiments.sweeps import Sweep
from orlog.manifests.documents import canonical_json, convert_json, parse_json
from orlog.manifests.manifest import EnvironmentRecord
from orlog.manifests.names import is_name
from orlog.normalize.references import PublishedReferences, References, references_from_json
from orlog.normalize.statistics import AGGREGATES, Comparison, compare_methods
from orlog.reports.episode_figure import FIGURE, episode_figure
from orlog.reports.sweep_page import render
from orlog.reports.sweep_record import REPORT_FILE, REPORT_PAGE, Evidence, Report
from orlog.scoring.references import references, references_of_dataset
from orlog.scoring.stored_references import recorded_references, stored_references

LARGEST_REPORT = 2**30
MOST_EPISODES = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a report's numbers were compared with.

    Attributes:
        problems: What is not so, a sentence each.
        notes: What could not be compared here, a sentence each.
        results: Number of results in the report.
        stored: How many of these are among the results of this home too.
    """

    problems: list[str]
    notes: list[str]
    results: int
    stored: int


def evidence_of(sweep: Sweep) -> list[Evidence]:
    """Return what is stored of each algorithm on each dataset; without those of which nothing is.

    Errors: `read_result`.
    """
    found = []
    for group in sweep.groups:
        results = sweep.stored(group)
        if results:
            record = results[0].record
            references = references_of_dataset(load_dataset(group.dataset))
            found.append(
                Evidence(
                    results=results,
                    references=None if references is None else msgspec.to_builtins(references),
                    baseline=recorded_baseline(record.algorithm, record.dataset),
                )
            )
    return found


def write_reports(sweep: Sweep, evidence: list[Evidence], folder: Path, *, title: str) -> Path:
    """Write `report.json` and `report.html` of a sweep into a folder; return the page.

    `evidence` is what is stored of the sweep, which was run: `evidence_of(sweep)`.
    """
    if not evidence:
        raise NotFoundError("no job of the sweep is done, so there is nothing to report.")
    results = [one.result() for one in evidence]
    comparisons = _comparisons(results)
    report = Report(
        report_version=1,
        title=title,
        evidence=evidence,
        left_out=sweep.left_out,
        failures=[f"{one.what}: {one.message}" for one in sweep.failures],
        numbers=_numbers(results, comparisons),
    )
    data = canonical_json(msgspec.to_builtins(report))
    # The page is drawn from what a reader of the file has: its settings have another order.
    report = convert_json(parse_json(data), Report)
    results = [one.result() for one in report.evidence]
    there = {one.digest: one for one in (load_dataset(group.dataset) for group in sweep.groups)}
    known = [there[one.job.digest] for one in _drawn(report) if one.job.digest in there]
    drawn = [*filter(None, map(episode_figure, known))]
    text = render(report, results, comparisons, hashlib.sha256(data).hexdigest(), drawn)
    with storage_errors(folder):
        make_folder(folder)
        replace_files({folder / REPORT_FILE: data, folder / REPORT_PAGE: text.encode()})
    return folder / REPORT_PAGE


def verify_report(path: Path) -> Verification:
    """Compute all numbers of a report again, and compare them with what it says.

    The path is `report.json`, `report.html` beside it, or their folder.
    """
    path = path / REPORT_FILE if path.is_dir() else path
    source = path.with_name(REPORT_FILE) if path.suffix == ".html" else path
    data, report = _read(source)
    problems = [*_repeated(report.evidence)]
    problems += [line for one in report.evidence for line in _broken_evidence(one)]
    try:
        results = [one.result() for one in report.evidence]
        comparisons = _comparisons(results)
        numbers = msgspec.json.decode(canonical_json(_numbers(results, comparisons)))
    except (OrlogError, ValueError) as error:
        raise ManifestError(f"{source}: {clause(error)}.", file=str(source)) from error
    _leave_out_later(report.numbers, numbers)
    problems += _differences("numbers", report.numbers, numbers)
    notes: list[str] = []
    stored = unsealed = 0
    for one in report.evidence:
        problems += _unlike_orlog(one, notes)
        for result in one.results:
            if result.key != key_of(result.job):
                continue  # which is among the problems already, and may be no name of a folder
            try:
                here = read_result(result.key, with_checkpoint=True)
            except (ManifestError, FormatVersionError) as error:
                problems.append(f"{one.title}, seed {result.job.seed}: {error}")
                continue
            stored += here is not None
            unsealed += here is not None and not is_sealed(result_folder(result.key))
            if here is not None and here != result:
                problems.append(
                    f"{one.title}, seed {result.job.seed}: what was stored under {result.key[:12]} "
                    "in the results of this home is something else."
                )
    if unsealed:
        notes.append(
            f"{unsealed} results of this home are of an older orlog and have no seal: they were compared "
            "with the files beside them."
        )
    if path.suffix == ".html":
        said = _read_page(path)
        episodes = FIGURE.findall(said)
        again = render(report, results, comparisons, hashlib.sha256(data).hexdigest(), episodes)
        if said != again or len(episodes) > len(_drawn(report)):
            problems.append(
                f"{path.name}: it is not the page that this orlog draws from {source.name}."
            )
        problems += _unlike_data(path.name, episodes, _drawn(report), notes)
    return Verification(
        problems=problems,
        notes=notes,
        results=sum(len(one.results) for one in report.evidence),
        stored=stored,
    )


def _drawn(report: Report) -> list[StoredResult]:
    """Return a result on each of the datasets of which the page shows an episode."""
    found = {one.results[0].job.digest: one.results[0] for one in reversed(report.evidence)}
    return [*found.values()][::-1][:MOST_EPISODES]


def _unlike_data(
    page: str, episodes: Sequence[str], drawn: Sequence[StoredResult], notes: list[str]
) -> Iterator[str]:
    """Yield which pictures of episodes are not what the datasets give that are here."""
    here, missing = [], []
    for one in drawn:
        name = f"{one.record.dataset}@{one.record.version}"
        try:  # nothing that a report says is opened as a path
            dataset = load_dataset(name) if is_name(one.record.dataset) else None
        except (OrlogError, OSError):
            dataset = None
        if dataset is not None and dataset.digest == one.job.digest:
            here.append(episode_figure(dataset))
        else:
            missing.append(name)
    if missing:
        notes.append(
            f"the pictures of episodes were not compared, since not all datasets are here: "
            f"{', '.join(missing)}."
        )
    elif [*filter(None, here)] != [*episodes]:
        yield f"{page}: the pictures of episodes are not what the datasets give."


def _read_page(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: there is no such page.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(
            f"{path}: is no page of a report: {clause(error)}.", file=str(path)
        ) from error


def _read(path: Path) -> tuple[bytes, Report]:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_REPORT)  # of a larger one, a part is no JSON
        report = convert_json(parse_json(data), Report)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: there is no such report.") from error
    except (OSError, ValueError) as error:
        raise ManifestError(
            f"{path}: is no report of a sweep that this orlog reads: {clause(error)}.",
            file=str(path),
        ) from error
    if report.report_version != 1 or not all(one.results for one in report.evidence):
        raise ManifestError(f"{path}: is no report of version 1.", file=str(path))
    if not report.evidence:
        raise ManifestError(
            f"{path}: holds no results, so there is nothing to compute again.", file=str(path)
        )
    return data, report


def _repeated(evidence: Sequence[Evidence]) -> Iterator[str]:
    """Yield which algorithms are there twice on a dataset: one would hide the other in tables."""
    titles = [one.title for one in evidence]
    for title in dict.fromkeys(title for title in titles if titles.count(title) > 1):
        yield f"{title}: is in the report more than once."


def _broken_evidence(evidence: Evidence) -> Iterator[str]:
    """Yield what does not agree within the results of an algorithm on a dataset."""
    first = evidence.results[0]
    if len({one.job.seed for one in evidence.results}) < len(evidence.results):
        yield f"{evidence.title}: a seed is there twice."
    for one in evidence.results:
        where = f"{evidence.title}, seed {one.job.seed}"
        if one.key != key_of(one.job):
            yield f"{where}: its key is not that of its job."
        said = (one.record.algorithm, one.record.digest, one.record.seed, one.record.steps)
        if said != (one.job.algorithm, one.job.digest, one.job.seed, one.job.steps):
            yield f"{where}: its run is not the one of its job."
        if one.evaluation.protocol != one.job.protocol:
            yield f"{where}: it was not evaluated as its job says."
        if not _is_run_as_its_job_says(one):
            yield f"{where}: the settings or versions of its run are not those of its job."
        if _without_seed(one.job) != _without_seed(first.job):
            yield f"{where}: its data, settings, code or versions are not those of the other seeds."


def _is_run_as_its_job_says(one: StoredResult) -> bool:
    """Whether a run has the settings of its job, but for those that are taken from the data."""
    config = {**one.record.config}
    config.update({name: None for name, value in one.job.config.items() if value is None})
    versions = {name: one.record.versions.get(name) for name in one.job.versions}
    return (
        config == one.job.config
        and versions == one.job.versions
        and one.record.standardize_observations == one.job.standardize_observations
        and one.record.reward_shift == one.job.reward_shift
        and one.evaluation.step == one.job.steps
    )


def _without_seed(job: JobIdentity) -> JobIdentity:
    config = {name: value for name, value in job.config.items() if name != "seed"}
    return msgspec.structs.replace(job, seed=0, config=config)


def _unlike_orlog(evidence: Evidence, notes: list[str]) -> Iterator[str]:
    """Yield where reference returns and recorded baselines are not those of this orlog."""
    record = evidence.results[0].record
    if evidence.references is not None:
        known = _known_references(evidence.results[0])
        if not known:
            notes.append(
                f"the reference returns of {record.dataset} are not known here, so they were not "
                "compared."
            )
        elif references_from_json(evidence.references) not in known:
            yield f"{evidence.title}: its reference returns are not those of this orlog."
    known_baseline = recorded_baseline(record.algorithm, record.dataset)
    if evidence.baseline is not None and evidence.baseline != known_baseline:
        yield f"{evidence.title}: its recorded baseline is not the one of this orlog."


def _known_references(result: StoredResult) -> list[References]:
    """Return the reference returns that may anchor a result's scores, as far as this orlog knows them.

    Of those that are measured, both count: what this machine measured, and what ships with orlog.
    """
    found: list[References | None] = []
    if is_name(result.record.dataset):  # nothing that a report says is opened as a path
        with contextlib.suppress(NotFoundError):
            found = [references(f"{result.record.dataset}@{result.record.version}")]
    if not any(isinstance(one, PublishedReferences) for one in found):
        protocol = result.job.protocol
        environment = EnvironmentRecord(
            id=protocol.environment_id,
            kwargs=protocol.environment_kwargs,
            max_episode_steps=protocol.max_episode_steps,
            versions=protocol.versions,
        )
        found += [stored_references(environment), recorded_references(environment)]
    return [one for one in found if one is not None]


def _numbers(results: Sequence[Result], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    apart = ("config", "protocol", "seeds")
    groups = []
    for result in results:
        body = result.to_json()
        seeds = [
            {name: seed[name] for name in ("seed", "mean_return", "normalized_score")}
            for seed in body["seeds"]
        ]
        groups.append({**{k: v for k, v in body.items() if k not in apart}, "seeds": seeds})
    return {"groups": groups, "comparisons": [one.to_json() for one in comparisons]}


def _leave_out_later(said: dict[str, Any], found: dict[str, Any]) -> None:
    """Leave out of what is found what reports of older orlogs did not say: the numbers of metrics."""
    for one, group in zip(said.get("groups") or (), found["groups"], strict=False):
        if isinstance(one, dict) and "numbers" not in one:
            del group["numbers"]


def _comparisons(results: Sequence[Result]) -> list[Comparison]:
    """Return a comparison over the datasets that each set of two or more algorithms has in common."""
    by_dataset: dict[str, dict[str, np.ndarray]] = {}
    for result in results:
        if result.scores is not None:
            scores = by_dataset.setdefault(result.record.dataset, {})
            scores[result.record.algorithm] = result.scores
    together: dict[tuple[str, ...], list[str]] = {}
    for dataset, scores in by_dataset.items():
        if len(scores) > 1:
            together.setdefault(tuple(scores), []).append(dataset)
    return [
        compare_methods(
            {
                algorithm: {dataset: by_dataset[dataset][algorithm] for dataset in datasets}
                for algorithm in algorithms
            },
            np.random.default_rng(0),
            aggregates=tuple(AGGREGATES),
        )
        for algorithms, datasets in together.items()
    ]


def _differences(where: str, said: Any, found: Any) -> Iterator[str]:
    """Yield each place in which two values of JSON differ; numbers may differ by rounding."""
    if isinstance(said, dict) and isinstance(found, dict):
        for name in {**said, **found}:
            inner = f"{where}.{name}"
            if (name in said) != (name in found):
                yield f"{inner}: {'is not what its evidence gives' if name in said else 'is missing'}."
            else:
                yield from _differences(inner, said[name], found[name])
    elif isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        for index, (one, other) in enumerate(zip(said, found, strict=True)):
            yield from _differences(f"{where}[{_label(other, index)}]", one, other)
    elif not _is_equal(said, found):
        yield f"{where}: the report says {said!r:.100}, its evidence gives {found!r:.100}."


def _label(entry: Any, index: int) -> str:
    """Return what names an entry of a list for a reader."""
    if isinstance(entry, dict) and "dataset" in entry and "algorithm" in entry:
        return f"{entry['algorithm']} on {entry['dataset']}"
    return str(index)


def _is_equal(said: Any, found: Any) -> bool:
    numbers = (int, float)
    if isinstance(said, numbers) and isinstance(found, numbers) and type(said) is type(found):
        return math.isclose(said, found, rel_tol=1e-9, abs_tol=1e-9)
    return type(said) is type(found) and bool(said == found)
