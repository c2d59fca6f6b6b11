"""Evaluated runs, read from run folders and from files of scored runs, as scores of methods."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.algos.training.metrics import METRICS_FILE, read_metrics
from orlog.algos.training.runs import EVALUATION_FILE, RUN_FILE, read_evaluation, read_run
from orlog.errors import ManifestError, NotFoundError
from orlog.manifests.documents import canonical_json, read_small_file
from orlog.manifests.rebuilds import rebuild_notes
from orlog.normalize.baselines import protocol_episodes
from orlog.normalize.metrics import EpisodeOutcomes, Number, numbers_of
from orlog.normalize.references import Protocol, References, impossible_return, score_caveats
from orlog.normalize.statistics import differing_facts, equal_methods, unranked_methods
from orlog.runs.normalized_scores import normalized_score
from orlog.runs.references import benchmark_of_name, references_measured, trained_policy
from orlog.runs.scored_runs import LARGEST_FILE, LAYOUT, Scale, ScoredRuns, read_scored_runs

CHECKPOINTS = 3
"""Points at the end of a learning curve whose variance counts as that of checkpoints."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRun:
    """One run with the returns of its evaluation.

    Attributes:
        place: Folder of the run, or the file that it was read from.
        method: Name under which it is compared: the algorithm's unless another was given.
        algorithm: Name of the algorithm.
        dataset: Name of the dataset.
        digest: Digest of the dataset.
        version: Its version, by which a rebuild is told; empty if it is not known.
        seed: Training seed.
        settings: What the method was trained with, apart from the seed (`RunRecord.every_setting`).
        online: Whether it also learned from steps in the environment.
        policy: Which policy of the run was evaluated, and how it acts.
        code: Version of orlog that trained; empty if it is not known.
        step: Gradient steps of the evaluated policy.
        steps: Gradient steps of the whole run.
        protocol: How the returns were measured.
        returns: Return of each episode.
        curve: Returns of each point of the learning curve.
        metrics: What metrics counted in each episode, by their names.
        file: The file of scored runs that it is of; None for the folder of a run.
    """

    place: Path
    method: str
    algorithm: str
    dataset: str
    digest: str
    seed: int
    settings: dict[str, Any]
    online: bool
    policy: str
    code: str
    step: int
    steps: int
    protocol: Protocol
    returns: np.ndarray
    curve: list[np.ndarray]
    metrics: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    version: str = ""
    file: ScoredRuns | None = None

    @property
    def played(self) -> EpisodeOutcomes:
        """What came of the episodes, for `numbers_of`."""
        return EpisodeOutcomes(
            returns=self.returns, metrics=self.metrics, dataset=self.dataset, settings=self.settings
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MethodResults:
    """Scores of methods on the same tasks, and what to know before comparing them.

    Attributes:
        scores: By method and task, an array [seeds, episodes].
        checkpoints: By method and task, scores [seeds, checkpoints, episodes] of the last points of
            the learning curves, where all seeds have them.
        numbers: By method and task, what metrics give for all seeds.
        is_normalized: Whether the scores are normalized; otherwise they are returns.
        unranked: Why methods are not ranked, by method.
        notes: Caveats, a sentence each.
    """

    scores: dict[str, dict[str, np.ndarray]]
    checkpoints: dict[str, dict[str, np.ndarray]]
    numbers: dict[str, dict[str, list[Number]]]
    is_normalized: bool
    unranked: dict[str, str]
    notes: list[str]


def find_runs(
    places: Sequence[str | Path], *, on_skipped: Callable[[str], None] = lambda _note: None
) -> list[EvaluatedRun]:
    """Return the evaluated runs of several places, each once, in the order given.

    Runs without an evaluation are left out; `on_skipped` is called with a sentence on each.

    A place is the folder of a run, a file of scored runs, or a folder with such at any depth, as a clone of
    results is. `NAME=PLACE` gives its runs the name of a method.

    Raises NotFoundError if there is no run in a place, or none of all was evaluated; ManifestError if a file
    is malformed or damaged.
    """
    found: dict[tuple[Path, str], list[EvaluatedRun]] = {}
    for given in places:
        text = str(given)
        label, equals, rest = text.partition("=")
        if Path(text).exists() or not equals:
            label, rest = "", text
        place = Path(rest).expanduser()
        folders = sorted({path.parent for path in place.rglob(RUN_FILE)})
        files = [place] if place.is_file() else _files_in(place, folders)
        if not folders and not files:
            raise NotFoundError(
                f"{place}: no run is in this folder or below; name a folder that orlog train wrote, "
                "or a file that orlog evaluate RUNS --out FILE.json wrote."
            )
        for file in files:
            found.setdefault((file.resolve(), label), _read_file(file, label))
        for folder in folders:
            if (folder / EVALUATION_FILE).exists():
                found.setdefault((folder.resolve(), label), [_read_folder(folder, label)])
            else:
                on_skipped(
                    f"{folder}: left out, since it was not evaluated; run: orlog evaluate {folder}"
                )
    if not found:
        raise NotFoundError(
            f"{places[-1]}: no run in this folder was evaluated; run: orlog evaluate {places[-1]}"
        )
    every = [run for runs in found.values() for run in runs]
    for run in every:
        problem = impossible_return(run.protocol, run.returns)
        if problem:
            raise ManifestError(f"{run.place}: seed {run.seed}: {problem}", file=str(run.place))
    return every


def _files_in(folder: Path, runs: Sequence[Path]) -> list[Path]:
    """Return the files of scored runs in a folder, outside of the folders of runs; what is no such file is left out."""
    return [
        path
        for path in sorted(folder.rglob("*.json"))
        if not path.is_dir() and not {*path.parents} & {*runs} and _has_layout(path)
    ]


def _has_layout(path: Path) -> bool:
    try:
        return f'"{LAYOUT}"' in read_small_file(path, LARGEST_FILE)
    except (OSError, ValueError):
        return False


def _read_folder(folder: Path, label: str) -> EvaluatedRun:
    record = read_run(folder)
    evaluation = read_evaluation(folder)
    curve = []
    if (folder / METRICS_FILE).exists():
        lines = read_metrics(folder)
        curve = [np.array(line["returns"], float) for line in lines if "returns" in line]
    return EvaluatedRun(
        place=folder,
        method=label or record.algorithm,
        algorithm=record.algorithm,
        dataset=record.dataset,
        digest=record.digest,
        seed=record.seed,
        settings=record.every_setting,
        online=record.online is not None,
        policy=trained_policy(record.config),
        code=record.versions.get("orlog", ""),
        step=evaluation.step,
        steps=record.steps,
        protocol=evaluation.protocol,
        returns=np.array(evaluation.returns, float),
        curve=curve,
        metrics=evaluation.counted,
        version=record.version,
    )


def _read_file(path: Path, label: str) -> list[EvaluatedRun]:
    scored = read_scored_runs(path)
    return [
        EvaluatedRun(
            place=path,
            method=label or scored.method.name,
            algorithm=scored.method.algorithm,
            dataset=scored.dataset.name,
            digest=scored.dataset.digest,
            seed=seed,
            settings=scored.method.settings,
            online=scored.method.online,
            policy=scored.policy,
            code=scored.code.versions.get("orlog", ""),
            step=scored.step,
            steps=scored.compute.steps,
            protocol=scored.protocol,
            returns=played.returns,
            curve=[],
            metrics=dict(played.metrics),
            version=scored.dataset.version,
            file=scored,
        )
        for seed, played in scored.played().items()
    ]


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings as `name=value` words."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def method_results(runs: Iterable[EvaluatedRun]) -> MethodResults:
    """Return the scores of runs by method, task (the dataset) and seed, in the order of seeds.

    Raises ValueError if two runs of a method on a task have the same seed, or other settings, data or numbers
    of episodes.
    """
    by_method: dict[str, dict[str, list[EvaluatedRun]]] = {}
    for run in runs:
        by_method.setdefault(run.method, {}).setdefault(run.dataset, []).append(run)
    tasks = dict.fromkeys(task for of_tasks in by_method.values() for task in of_tasks)
    notes: list[str] = []
    for task in tasks:
        there = [run for of_tasks in by_method.values() for run in of_tasks.get(task, [])]
        notes += _measuring_notes(task, there)
        facts = {
            method: {
                "seeds": str(len(of_tasks[task])),
                "episodes of each seed": f"{len(of_tasks[task][0].returns):,}",
                "gradient steps": f"{of_tasks[task][0].steps:,}",
            }
            for method, of_tasks in by_method.items()
            if task in of_tasks
        }
        notes += [f"{task}: {line}" for line in differing_facts(facts)]
        notes += rebuild_notes(task, (run.version for run in there))
    scores: dict[str, dict[str, np.ndarray]] = {}
    checkpoints: dict[str, dict[str, np.ndarray]] = {}
    numbers: dict[str, dict[str, list[Number]]] = {}
    known = {task: references_of_run(_first(by_method, task)) for task in tasks}
    unknown = [task for task, found in known.items() if found is None]
    where = _first(by_method, unknown[0]).protocol.environment_id if unknown else ""
    for method, of_tasks in by_method.items():
        for task in [task for task in tasks if task in of_tasks]:
            seeds = sorted(of_tasks[task], key=lambda run: run.seed)
            check_seeds(method, task, seeds)
            scores.setdefault(method, {})[task] = normalize_runs(seeds)
            numbers.setdefault(method, {})[task] = numbers_of([one.played for one in seeds])
            last = [run.curve[-CHECKPOINTS:] for run in seeds]
            sizes = {len(point) for points in last for point in points}
            if len(sizes) == 1 and len(last[0]) > 1 and len(set(map(len, last))) == 1:
                checkpoints.setdefault(method, {})[task] = _normalize(seeds[0], np.array(last))
            notes += [
                f"{run.place}: evaluated at step {run.step:,} of {run.steps:,}."
                for run in seeds
                if run.step != run.steps
            ]
    caveats: dict[str, list[str]] = {}
    for task, anchors in known.items():
        if anchors is not None and not isinstance(anchors, Scale):
            for note in score_caveats(anchors, _first(by_method, task).protocol):
                caveats.setdefault(note, []).append(task)
    notes += [f"{', '.join(concerned)}: {note}" for note, concerned in caveats.items()]
    if unknown:
        notes.append(f"{unknown[0]} has no reference returns in {where}: scores are returns.")
    unranked = unranked_methods(scores, {task: protocol_episodes(task) for task in tasks})
    notes += [f"{method}: not ranked, with {why}." for method, why in unranked.items()]
    notes += [
        f"{method}: has returns of {other} to the bit, so it is the same policy or a copy."
        for method, other in equal_methods(scores).items()
    ]
    return MethodResults(
        scores=scores,
        checkpoints=checkpoints,
        numbers=numbers,
        is_normalized=not unknown,
        unranked=unranked,
        notes=list(dict.fromkeys(notes)),
    )


def _first(by_method: dict[str, dict[str, list[EvaluatedRun]]], task: str) -> EvaluatedRun:
    return next(of_tasks[task][0] for of_tasks in by_method.values() if task in of_tasks)


def _measuring_notes(task: str, runs: Sequence[EvaluatedRun]) -> list[str]:
    """Return in what the returns on a task were measured differently, as far as they still compare (`tables_of`)."""
    notes = []
    first = runs[0]
    for run in runs[1:]:
        one, other = first.protocol, run.protocol
        if one.first_seed != other.first_seed:
            notes.append(
                f"{task}: episodes were reset with seeds from {one.first_seed} and from "
                f"{other.first_seed}, so that they do not start from the same states."
            )
        notes += [
            f"{task}: returns were measured with {package} {version} and {other.versions[package]}."
            for package, version in one.versions.items()
            if other.versions.get(package, version) != version
        ]
    return notes


def check_seeds(method: str, task: str, runs: Sequence[EvaluatedRun]) -> None:
    """Refuse runs that are not seeds of one method on one task.

    Raises ValueError if they are not.
    """
    first = runs[0]
    for before, run in itertools.pairwise(runs):
        apart = f"name them apart: NAME={run.place}"
        if canonical_json(run.settings) != canonical_json(first.settings):
            differing = [
                name
                for name in {**first.settings, **run.settings}
                if first.settings.get(name) != run.settings.get(name)
            ]
            raise ValueError(
                f"{method} on {task}: {first.place} and {run.place} differ in "
                f"{', '.join(differing)}; {apart}, or see what the range of settings gives with: "
                "orlog tune-curve"
            )
        check_alike(f"{method} on {task}", first, run, apart=apart)
        if run.seed == before.seed:
            raise ValueError(
                f"{method} on {task}: {before.place} and {run.place} are both seed {run.seed}; leave "
                f"one out, or {apart}"
            )


def check_alike(where: str, first: EvaluatedRun, run: EvaluatedRun, *, apart: str) -> None:
    """Refuse two runs that were trained on different data, or evaluated in other numbers of episodes.

    A message begins with `where`, and ends with what to do with runs that do not belong together: `apart`.
    """
    if run.digest != first.digest:
        raise ValueError(
            f"{where}: {first.place} and {run.place} were trained on different data "
            f"({first.digest[:19]} and {run.digest[:19]}); {apart}"
        )
    if len(run.returns) != len(first.returns):
        raise ValueError(
            f"{where}: {first.place} has {len(first.returns)} episodes and {run.place} "
            f"{len(run.returns)}; evaluate both with as many: orlog evaluate RUN --episodes N"
        )


def normalize_runs(runs: Sequence[EvaluatedRun]) -> np.ndarray:
    """Return the scores [runs, episodes] of runs on one task; returns if it has no references."""
    return _normalize(runs[0], np.array([run.returns for run in runs]))


def _normalize(run: EvaluatedRun, returns: np.ndarray) -> np.ndarray:
    found = references_of_run(run)
    if found is None:
        return returns
    benchmark = benchmark_of_name(run.dataset, run.digest)
    return (
        found.normalize(returns) if benchmark is None else normalized_score(benchmark[0], returns)
    )


def references_of_run(run: EvaluatedRun) -> References | Scale | None:
    """Return the reference returns of a run's dataset or environment: the known ones, else those that its file states."""
    known = references_measured(run.dataset, run.digest, run.protocol)
    return run.file.references if known is None and run.file is not None else known
