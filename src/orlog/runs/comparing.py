"""Compares scored runs, from folders and from files: only what compares shares a table.

Rows compare if they learned from the same bytes, were evaluated in the same environment with packages of the same
minor versions, are scored by the same references, and the same kind of policy of a run was evaluated. Numbers of
episodes and of seeds may differ: intervals say what they are worth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.algos.training.runs import RUN_FILE
from orlog.errors import ManifestError, NotFoundError
from orlog.manifests.documents import canonical_json, read_small_file
from orlog.manifests.rebuilds import rebuild_notes
from orlog.normalize.baselines import protocol_episodes
from orlog.normalize.metrics import Number, numbers_of
from orlog.normalize.references import References, impossible_return, score_caveats, simulator_of
from orlog.normalize.statistics import AGGREGATES, Comparison, compare_methods, equal_methods, unranked_methods
from orlog.runs.normalized_scores import normalized_score
from orlog.runs.references import benchmark_of_name, references_measured
from orlog.runs.run_folders import RunSummary, read_folder, setting_words
from orlog.runs.run_groups import seeds_together
from orlog.runs.scored_runs import CURVE_POLICY, LARGEST_FILE, LAYOUT, Scale, ScoredRuns, read_scored_runs, scored_run

CHECKPOINTS = 3
"""Points at the end of a learning curve whose variance counts as that of checkpoints."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Scored runs, as a row of a table.

    Attributes:
        name: Name of the method, with what sets it apart from other rows of the table.
        scored: The runs.
        places: The folder of each seed, or the file.
        anchors: References by which returns are scores: the known ones, else those that the file states; None
            where scores are returns.
        runs: The folder of each seed, as it was read; empty for a file.
    """

    name: str
    scored: ScoredRuns
    places: list[Path]
    anchors: References | Scale | None
    runs: list[RunSummary] = dataclasses.field(default_factory=list)

    @property
    def title(self) -> str:
        """How people write the name."""
        name, space, differing = self.name.partition(" ")
        return f"{algorithm_title(name, self.scored.method.settings)}{space}{differing}"

    @property
    def task(self) -> str:
        """Name of the dataset."""
        return self.scored.dataset.name

    @property
    def place(self) -> Path:
        """The file, or the folder that holds all seeds."""
        return self.places[0] if len(self.places) == 1 else self.places[0].parent

    @property
    def scores(self) -> np.ndarray:
        """Scores [seeds, episodes]; returns without references."""
        return self.normalize(np.array([seed.returns for seed in self.scored.seeds]))

    @property
    def numbers(self) -> list[Number]:
        """What metrics give for all seeds."""
        return numbers_of([*self.scored.played().values()])

    @property
    def facts(self) -> dict[str, str]:
        """What rows must have in common to share a table, in words."""
        scored, protocol, anchors = self.scored, self.scored.protocol, self.anchors
        minor = [f"{name} {'.'.join(it.split('.')[:2])}" for name, it in protocol.versions.items()]
        limit, scale = protocol.max_episode_steps, "none"
        if anchors is not None:
            scale = f"0 = {anchors.random.mean:.8g}, 100 = {anchors.expert.mean:.8g}"
        is_last = scored.step == scored.compute.steps
        return {
            "dataset": self.task,
            "data": scored.dataset.digest[:19],
            "environment": protocol.environment_id,
            "its arguments": canonical_json(protocol.environment_kwargs).decode(),
            "time limit": "none" if limit is None else f"{limit:,} steps",
            "packages": ", ".join(sorted(minor)) or "not recorded",
            "policy": scored.policy + ("" if is_last else ", before the last step"),
            "training": "also in the environment" if scored.method.online else "on data alone",
            "references": scale,
        }

    @property
    def details(self) -> dict[str, Any]:
        """Settings, and what of the measuring may differ between rows of a table, but not between seeds of one."""
        scored, protocol = self.scored, self.scored.protocol
        partial = {} if scored.step == scored.compute.steps else {"at_step": scored.step}
        measured = {"episodes": protocol.episodes, "first_seed": protocol.first_seed}
        return {**scored.method.settings, **measured, **partial}

    def normalize(self, returns: np.ndarray) -> np.ndarray:
        """Return the scores of returns."""
        if self.anchors is None:
            return returns
        benchmark = benchmark_of_name(self.task, self.scored.dataset.digest)
        if benchmark is None:
            return self.anchors.normalize(returns)
        return normalized_score(benchmark[0], returns)


def find_runs(places: Sequence[str | Path], *, on_skipped: Callable[[Path], None] = lambda _folder: None) -> list[Row]:
    """Return the scored runs of several places, each once, in the order given: a row for each folder and file.

    A place is the folder of a run, a file of scored runs, or a folder with such at any depth, as a clone of
    results is. `NAME=PLACE` gives its runs the name of a method. Runs without a score are left out; `on_skipped` is
    called with the folder of each.

    Raises NotFoundError if there is no run in a place, or none has a score; ManifestError if a file is malformed or
    damaged, or a return is more than an episode can have.
    """
    rows: dict[tuple[Path, str], Row] = {}
    known: dict[bytes, References | None] = {}

    def add(place: Path, label: str, scored: ScoredRuns, runs: list[RunSummary]) -> None:
        for seed in scored.seeds:
            problem = impossible_return(scored.protocol, np.array(seed.returns))
            if problem:
                raise ManifestError(f"{place}: seed {seed.seed}: {problem}", file=str(place))
        name, digest, protocol = scored.dataset.name, scored.dataset.digest, scored.protocol
        measured = canonical_json([name, digest, msgspec.to_builtins(protocol)])
        if measured not in known:  # looking up references takes time
            known[measured] = references_measured(name, digest, protocol)
        rows[place.resolve(), label] = Row(
            name=label or scored.method.name,
            scored=scored,
            places=[place],
            anchors=known[measured] or scored.references,
            runs=runs,
        )

    for given in map(str, places):
        label, equals, rest = given.partition("=")
        if Path(given).exists() or not equals:
            label, rest = "", given
        place = Path(rest).expanduser()
        folders = sorted({path.parent for path in place.rglob(RUN_FILE)})
        files = [place] if place.is_file() else _files_in(place, folders)
        if not folders and not files:
            raise NotFoundError(
                f"{place}: no run is in this folder or below; name a folder that orlog train wrote, "
                "or a file that orlog evaluate RUNS --out FILE.json wrote."
            )
        for path in [*files, *folders]:
            if (path.resolve(), label) in rows:
                continue
            if path in files:
                add(path, label, read_scored_runs(path), [])
                continue
            run = read_folder(path)
            scored = scored_run(run)
            if scored is None:
                on_skipped(path)
            else:
                add(path, label, scored, [run])
    if not rows:
        raise NotFoundError(f"{places[-1]}: no run in this folder has a score; run: orlog evaluate {places[-1]}")
    return [*rows.values()]


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


def tables_of(rows: Iterable[Row]) -> list[tuple[list[Row], str]]:
    """Return the tables of rows, the one with most rows first, each with what keeps it apart from the first.

    Runs in folders that differ in their seeds only are a row, and so is each file; a seed that is there twice is of
    another row. Of a method with several rows, the names also say in which settings they differ, or where they lie.
    Datasets on which the same rows compare share a table.
    """
    by_facts: dict[bytes, list[Row]] = {}
    for group in seeds_together(
        rows,
        lambda row: canonical_json([row.name, row.facts, row.details, "" if row.runs else str(row.place)]),
        lambda row: [seed.seed for seed in row.scored.seeds],
    ):
        row = merged(group)
        by_facts.setdefault(canonical_json(row.facts), []).append(row)
    tables: list[list[list[Row]]] = []
    for group in by_facts.values():
        named = _named(group)
        for table in tables:
            on_others = all(rows[0].task != named[0].task for rows in table)
            if on_others and _shape(table[0]) == _shape(named):
                table.append(named)
                break
        else:
            tables.append([named])
    flat = [[row for rows in table for row in rows] for table in tables]
    flat.sort(key=lambda rows: -len(rows))
    return [(table, _apart(table, flat[0]) if index else "") for index, table in enumerate(flat)]


def merged(rows: Sequence[Row]) -> Row:
    """Return seeds of one method on one dataset as one row, in the order of seeds."""
    rows = sorted(rows, key=lambda row: row.scored.seeds[0].seed)
    seeds = [seed for row in rows for seed in row.scored.seeds]
    return dataclasses.replace(
        rows[0],
        scored=msgspec.structs.replace(rows[0].scored, seeds=seeds),
        places=[place for row in rows for place in row.places],
        runs=[run for row in rows for run in row.runs],
    )


def _named(rows: Sequence[Row]) -> list[Row]:
    """Return rows of one table, each with a name that no other has."""
    named: dict[str, Row] = {}
    for row in rows:
        alike = [other.details for other in rows if other.name == row.name]
        differing = {
            name: value for name, value in row.details.items() if any(other.get(name) != value for other in alike)
        }
        name = " ".join([row.name, *setting_words(differing)])
        if alike.count(row.details) > 1:
            name += f" {row.place}"
        while name in named:  # a file of anybody may have any name
            name += " again"
        named[name] = dataclasses.replace(row, name=name)
    return [*named.values()]


def _shape(rows: Sequence[Row]) -> object:
    """Return what the rows on each dataset of a table have in common: names, numbers of seeds, normalized scores."""
    alone = rows[0].task if rows[0].anchors is None else ""
    return {row.name: len(row.scored.seeds) for row in rows}, alone


def _apart(rows: Sequence[Row], first: Sequence[Row]) -> str:
    """Return what keeps rows apart from those of the first table, in one line."""
    shared = next(((row, one) for row in rows for one in first if row.task == one.task), None)
    if shared is None:
        names = ", ".join(dict.fromkeys(row.task for row in rows))
        return f"other rows, or numbers of seeds, on {names}"
    here, there = shared
    return f"{here.task}: {differences(there.facts, here.facts)}"


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return in what two rows differ, as text in one line."""
    return " | ".join(
        f"{what}: {there.get(what, 'none')}; here {here.get(what, 'none')}"
        for what in {**there, **here}
        if there.get(what) != here.get(what)
    )


def check_seeds(rows: Sequence[Row]) -> None:
    """Refuse rows that are not seeds of one method on one dataset, measured alike.

    Raises ValueError if they are not.
    """
    first, seen = rows[0], dict[int, Path]()
    for row in rows:
        where = f"{row.name} on {row.task}: "
        apart = differences(first.facts | first.details, row.facts | row.details)
        if apart:
            raise ValueError(
                f"{where}{first.place} and {row.place} differ in {apart}; name them apart: NAME={row.place}, or "
                "see what the range of settings gives with: orlog compare --tuning"
            )
        for seed in row.scored.seeds:
            if seed.seed in seen:
                raise ValueError(
                    f"{where}{seen[seed.seed]} and {row.place} are both seed {seed.seed}; leave one out, or name "
                    f"them apart: NAME={row.place}"
                )
            seen[seed.seed] = row.place


def scores_of(rows: Sequence[Row]) -> dict[str, dict[str, np.ndarray]]:
    """Return the scores [seeds, episodes] of the rows of a table, by name and dataset."""
    scores: dict[str, dict[str, np.ndarray]] = {}
    for row in rows:
        scores.setdefault(row.name, {})[row.task] = row.scores
    return scores


def comparison_of(rows: Sequence[Row], resamples: int) -> Comparison:
    """Return the statistics of the rows of a table."""
    checkpoints: dict[str, dict[str, np.ndarray]] = {}
    for row in rows:
        last = [[episodes.returns for _, episodes in run.curve[-CHECKPOINTS:]] for run in row.runs]
        sizes = {len(point) for points in last for point in points}
        if len(sizes) == 1 and len(last[0]) > 1 and len(set(map(len, last))) == 1:
            checkpoints.setdefault(row.name, {})[row.task] = row.normalize(np.array(last))
    is_normalized = all(row.anchors is not None for row in rows)
    return compare_methods(
        scores_of(rows),
        np.random.default_rng(0),
        resamples=resamples,
        aggregates=[name for name in AGGREGATES if is_normalized or name != "optimality gap"],
        checkpoints=checkpoints,
        unranked=_unranked(rows),
    )


def _unranked(rows: Sequence[Row]) -> dict[str, str]:
    """Return why rows are not ranked, by name."""
    episodes = {task: protocol_episodes(task) for task in {row.task for row in rows}}
    return unranked_methods(scores_of(rows), episodes)


def notes_on(rows: Sequence[Row]) -> list[str]:
    """Return what to know before comparing the rows of a table, a clause each."""
    notes = []
    for task in dict.fromkeys(row.task for row in rows):
        there = [row for row in rows if row.task == task]
        first = there[0].scored.protocol
        steps: dict[str, list[str]] = {}
        for row in there:
            scored = row.scored
            steps.setdefault(f"{scored.compute.steps:,}", []).append(row.name)
            if scored.protocol.first_seed != first.first_seed:
                notes.append(
                    f"{task}: episodes were reset with seeds from {first.first_seed} and from "
                    f"{scored.protocol.first_seed}, so that they do not start from the same states"
                )
            notes += [
                f"{task}: returns were measured with {name} {version} and {other}"
                for name, version in first.versions.items()
                if (other := scored.protocol.versions.get(name, version)) != version
            ]
            if scored.step != scored.compute.steps:
                notes.append(f"{row.name}: at step {scored.step:,} of {scored.compute.steps:,}")
        if len(steps) > 1:
            each = ", ".join(f"{count} ({', '.join(names)})" for count, names in steps.items())
            notes.append(f"{task}: gradient steps differ: {each}")
        notes += [note.rstrip(".") for note in rebuild_notes(task, [row.scored.dataset.version for row in there])]
        anchors, here = there[0].anchors, simulator_of(first)
        if anchors is None:
            where = first.environment_id or "its environment"
            notes.append(f"{task} has no reference returns in {where}: scores are returns")
        elif not isinstance(anchors, Scale):
            elsewhere = anchors.simulator or simulator_of(anchors.protocol)
            if elsewhere != here and first.versions:
                notes.append(f"{task}: measured in {here}, the references in {elsewhere}")
    names = [row.name for row in rows if row.scored.policy == CURVE_POLICY]
    if names:
        notes.append("scores of the last point of learning curves; more episodes: orlog evaluate")
    single = [row.name for row in rows if len(row.scored.seeds) == 1]
    if single:
        notes.append(f"{', '.join(single)}: one seed shows nothing of others")
    notes += [f"{name}: not ranked, with {why}" for name, why in _unranked(rows).items()]
    notes += [
        f"{name}: has returns of {other} to the bit, so it is the same policy or a copy"
        for name, other in equal_methods(scores_of(rows)).items()
    ]
    return list(dict.fromkeys(notes))


def caveats_on(rows: Sequence[Row]) -> list[str]:
    """Return how the simulators of references and of returns differ, a sentence each with the datasets concerned."""
    caveats: dict[str, list[str]] = {}
    for row in {row.task: row for row in reversed(rows)}.values():
        if row.anchors is not None and not isinstance(row.anchors, Scale):
            for caveat in score_caveats(row.anchors, row.scored.protocol):
                caveats.setdefault(caveat, []).append(row.task)
    return [f"{', '.join(tasks)}: {caveat}" for caveat, tasks in caveats.items()]
