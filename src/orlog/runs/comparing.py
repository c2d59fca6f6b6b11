"""Compares scored runs, from folders and from files, and makes files of them: only what compares shares a table.

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

from orlog.algos.algorithms import ALGORITHMS, AlgorithmLike, algorithm_name, algorithm_title
from orlog.algos.settings import make_config
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import RUN_FILE, VIEW_FILE, read_run
from orlog.base.code_version import repository_and_commit, run_sources, sources_digest
from orlog.datasets.loading import load_dataset
from orlog.errors import ManifestError, NotFoundError, SchemaError
from orlog.manifests.documents import canonical_json, read_small_file
from orlog.manifests.names import counted
from orlog.manifests.rebuilds import rebuild_notes
from orlog.normalize.metrics import Number, numbers_of
from orlog.normalize.references import References, impossible_return, protocol_episodes, score_caveats, simulator_of
from orlog.normalize.statistics import (
    AGGREGATES,
    EXPLORATION,
    POLICIES,
    Comparison,
    compare_methods,
    equal_methods,
    expected_online_performance,
    method_digest,
    tuning_curves,
    unranked_methods,
)
from orlog.runs.run_folders import RunSummary, differing, read_folders, seeds_together, setting_words
from orlog.runs.scored_runs import (
    CURVE_POLICY,
    LARGEST_FILE,
    LAYOUT,
    CodeUsed,
    Scale,
    ScoredRuns,
    read_scored_runs,
    scored_run,
    write_scored_runs,
)
from orlog.runs.scores import check_successes, described_version, references_measured

CHECKPOINTS = 3  # points at the end of a learning curve whose variance counts as that of checkpoints
MIDDLE = 0.8  # share of the trials of a tune curve whose scores lie within the printed range


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Scored runs, as a row of a table."""

    name: str  # of the method, with what sets it apart from other rows of the table
    scored: ScoredRuns
    places: list[Path]  # the folder of each seed, or the file
    # References by which returns are scores: the known ones, else those that the file states; None where scores
    # are returns.
    anchors: References | Scale | None
    runs: list[RunSummary] = dataclasses.field(default_factory=list)  # the folder of each seed; empty for a file
    missing: list[int] = dataclasses.field(default_factory=list)  # more seeds, which have no evaluation

    @property
    def title(self) -> str:
        """How people write the name."""
        name, space, words = self.name.partition(" ")
        return f"{algorithm_title(name, self.scored.method.settings)}{space}{words}"

    @property
    def task(self) -> str:
        """Name of the dataset."""
        return self.scored.dataset.name

    @property
    def place(self) -> Path:
        """The file, or the folder that holds all seeds."""
        return self.places[0] if len(self.places) == 1 else self.places[0].parent

    @property
    def seeds(self) -> list[int]:
        """The training seeds."""
        return [seed.seed for seed in self.scored.seeds]

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
        return {
            "dataset": self.task,
            "data": scored.dataset.digest[:19],
            "environment": protocol.environment_id,
            "its arguments": canonical_json(protocol.environment_kwargs).decode(),
            "time limit": "none" if limit is None else f"{limit:,} steps",
            "packages": ", ".join(sorted(minor)) or "not recorded",
            "policy": scored.policy + ("" if scored.step == scored.compute.steps else ", before the last step"),
            "training": "also in the environment" if scored.method.online else "on data alone",
            "references": scale,
        }

    @property
    def details(self) -> dict[str, Any]:
        """Settings, and what of the measuring may differ between rows of a table, but not between seeds of one."""
        scored, protocol = self.scored, self.scored.protocol
        partial = {} if scored.step == scored.compute.steps else {"at_step": scored.step}
        return {**scored.method.settings, "episodes": protocol.episodes, "first_seed": protocol.first_seed, **partial}

    def normalize(self, returns: np.ndarray) -> np.ndarray:
        """Return the scores of returns."""
        return returns if self.anchors is None else self.anchors.normalize(returns)


def _row(place: Path, label: str, scored: ScoredRuns, run: RunSummary | None) -> Row:
    dataset, protocol = scored.dataset, scored.protocol
    for seed in scored.seeds:
        problem = impossible_return(protocol, np.array(seed.returns))
        if problem:
            raise ManifestError(f"{place}: seed {seed.seed}: {problem}", file=str(place))
    known = references_measured(dataset.name, dataset.digest, protocol) if run is None else run.anchors
    returns = np.array([seed.returns for seed in scored.seeds])
    if known is not None:
        check_successes(described_version(dataset.name, dataset.digest), returns)
    return Row(
        name=label or scored.method.name,
        scored=scored,
        places=[place],
        anchors=known or scored.references,
        runs=[] if run is None else [run],
    )


def _refuse_damaged(run: RunSummary) -> None:
    if run.problem:
        raise ManifestError(f"{run.problem}.", file=str(run.folder))


def find_runs(places: Sequence[str | Path], *, on_skipped: Callable[[RunSummary], None] = _refuse_damaged) -> list[Row]:
    """Return the scored runs of several places, each once, in the order given: a row for each folder and file.

    A place is the folder of a run, a file of scored runs, or a folder with such at any depth, as a clone of
    results is. `NAME=PLACE` gives its runs the name of a method. Runs that have no score or cannot be read are left
    out; `on_skipped` is called with each, and refuses by default those that cannot be read.
    """
    rows: dict[tuple[Path, str], Row] = {}
    damaged: list[RunSummary] = []
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
        for path in files:
            if (path.resolve(), label) not in rows:
                rows[path.resolve(), label] = _row(path, label, read_scored_runs(path), None)
        for run in read_folders(path for path in folders if (path.resolve(), label) not in rows):
            scored = scored_run(run)
            if scored is not None:
                rows[run.folder.resolve(), label] = _row(run.folder, label, scored, run)
                continue
            on_skipped(run)
            damaged += [run] if run.problem else []
    if not rows:
        for run in damaged:
            _refuse_damaged(run)
        raise NotFoundError(f"{places[-1]}: no run in this folder has a score; run: orlog evaluate {places[-1]}")
    return [*rows.values()]


def _files_in(folder: Path, runs: Sequence[Path]) -> list[Path]:
    """Return the files of scored runs in a folder, outside of the folders of runs; what is no such file is left out."""

    def has_layout(path: Path) -> bool:
        try:
            return f'"{LAYOUT}"' in read_small_file(path, LARGEST_FILE)
        except (OSError, ValueError):
            return False

    paths = (path for path in sorted(folder.rglob("*.json")) if not path.is_dir() and not {*path.parents} & {*runs})
    return [path for path in paths if has_layout(path)]


def with_missing(rows: Sequence[Row]) -> list[Row]:
    """Return rows without runs that have no evaluation where other seeds of theirs have one, which name them instead.

    The last point of a learning curve is another number than an evaluation, and would be a row of its own.
    """
    unlike = {"policy": "", "packages": ""}  # a curve does not record packages
    keys = [canonical_json([row.name, row.facts | unlike, row.scored.method.settings]) for row in rows]
    is_curve = [row.scored.policy == CURVE_POLICY for row in rows]
    known: dict[bytes, tuple[set[int], set[int]]] = {}
    for row, key, only_curve in zip(rows, keys, is_curve, strict=True):
        known.setdefault(key, (set(), set()))[only_curve].update(row.seeds)
    return [
        dataclasses.replace(row, missing=[] if only_curve else sorted(known[key][1] - known[key][0]))
        for row, key, only_curve in zip(rows, keys, is_curve, strict=True)
        if not (only_curve and known[key][0]) or {*row.seeds} & known[key][0]
    ]


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
        lambda row: row.seeds,
    ):
        row = merged(group)
        by_facts.setdefault(canonical_json(row.facts), []).append(row)
    tables: list[list[Row]] = []
    for named in map(_named, by_facts.values()):
        for table in tables:
            first = [row for row in table if row.task == table[0].task]
            if all(row.task != named[0].task for row in table) and _shape(first) == _shape(named):
                table += named
                break
        else:
            tables.append(named)
    tables.sort(key=lambda rows: -len(rows))
    return [(table, _apart(table, tables[0]) if index else "") for index, table in enumerate(tables)]


def merged(rows: Sequence[Row]) -> Row:
    """Return seeds of one method on one dataset as one row, in the order of seeds."""
    rows = sorted(rows, key=lambda row: row.seeds[0])
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
        alike = [other for other in rows if other.name == row.name]
        own = differing([other.details for other in alike])[alike.index(row)]
        name = " ".join([row.name, *setting_words(own)])
        if [other.details for other in alike].count(row.details) > 1:
            name += f" {row.place}"
        while name in named:  # a file of anybody may have any name
            name += " again"
        named[name] = dataclasses.replace(row, name=name)
    return [*named.values()]


def _shape(rows: Sequence[Row]) -> object:
    """Return what the rows on each dataset of a table have in common: names, numbers of seeds, normalized scores."""
    return {row.name: len(row.seeds) for row in rows}, rows[0].task if rows[0].anchors is None else ""


def _apart(rows: Sequence[Row], first: Sequence[Row]) -> str:
    """Return what keeps rows apart from those of the first table, in one line."""
    for here in rows:
        for there in first:
            if here.task == there.task:
                return f"{here.task}: {differences(there.facts, here.facts)}"
    return f"other rows, or numbers of seeds, on {', '.join(dict.fromkeys(row.task for row in rows))}"


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return in what two rows differ, as text in one line."""
    return " | ".join(
        f"{what}: {there.get(what, 'none')}; here {here.get(what, 'none')}"
        for what in {**there, **here}
        if there.get(what) != here.get(what)
    )


def check_seeds(rows: Sequence[Row]) -> None:
    """Refuse rows that are not seeds of one method on one dataset, measured alike."""
    first, seen = rows[0], dict[int, Path]()
    for row in rows:
        where = f"{row.name} on {row.task}: "
        apart = differences(first.facts | first.details, row.facts | row.details)
        if apart:
            raise ValueError(
                f"{where}{first.place} and {row.place} differ in {apart}; name them apart: NAME={row.place}, or "
                "see what the range of settings gives with: orlog compare --tuning"
            )
        for seed in row.seeds:
            if seed in seen:
                raise ValueError(
                    f"{where}{seen[seed]} and {row.place} are both seed {seed}; leave one out, or name "
                    f"them apart: NAME={row.place}"
                )
            seen[seed] = row.place


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
            if row.missing:
                seeds = f"seed{'s' * (len(row.missing) > 1)} {', '.join(map(str, row.missing))}"
                notes.append(
                    f"{row.name} on {task}: {seeds} left out, not evaluated yet; run: orlog evaluate {row.place}"
                )
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


# Files of scored runs.


def scored_runs(
    folders: Sequence[Path], *, tried: int | None = None, algorithm: AlgorithmLike | None = None
) -> list[ScoredRuns]:
    """Return what evaluated runs score, of each method and dataset.

    `tried` says how many settings were tried to choose these; `algorithm` is the file of one that is not orlog's,
    whose SHA-256 is stated then.

    Raises ValueError if runs of a method on a dataset are not seeds of one another, measured alike; SchemaError if
    a run learned from a view, or was not evaluated; ManifestError if one is damaged.
    """
    return [_scored(rows, tried, algorithm) for rows in _by_method(find_runs(folders))]


def _by_method(rows: Iterable[Row]) -> Iterable[list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.name, row.task), []).append(row)
    return groups.values()


def write_all(out: Path, made: Sequence[ScoredRuns]) -> list[Path]:
    """Write scored runs to a file `..json`, or each to a file of its own in a folder; return the files."""
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
    row = merged(rows)
    return msgspec.structs.replace(
        row.scored,
        method=msgspec.structs.replace(first.method, tried=tried),
        code=_code(row.places, algorithm),
        compute=msgspec.structs.replace(first.compute, hours=total),
    )


def _code(folders: Sequence[Path], algorithm: AlgorithmLike | None) -> CodeUsed:
    """Return what computed runs; sources are those of now, if the records show that they alone trained every seed."""
    records = [*map(read_run, folders)]
    record = records[0]
    unknown = CodeUsed(versions=record.versions)
    if algorithm is not None and algorithm_name(algorithm) != record.algorithm:
        raise ValueError(f"{folders[0]}: was trained with {record.algorithm}, not {algorithm_name(algorithm)}.")
    if algorithm is None and record.algorithm not in ALGORITHMS:
        return unknown  # code that a record names is not run
    try:
        kind = fitting_form(algorithm or record.algorithm, load_dataset(f"{record.dataset}@{record.digest}"))
    except NotFoundError:  # the data are not here
        return unknown
    here = sources_digest(kind)
    if not here or any(code != here for each in records for code in each.codes):
        return unknown
    files = run_sources(kind, make_config(kind, record.config))
    own = [module for module in files if not module.startswith("orlog.")]
    repository, commit = repository_and_commit(own or files)
    return CodeUsed(files=files, versions=record.versions, repository=repository, commit=commit)


# Tune curves: what methods with their ranges of settings give after tuning, from a sweep of evaluated runs.


def tune_curves(
    rows: Sequence[Row],
    *,
    evaluations: int = 200,
    policies: int = POLICIES,
    trials: int = 1000,
    exploration: float = EXPLORATION,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Return the tune curve of each method on each dataset among the rows of `find_runs`, as JSON."""
    curves = []
    for group in _by_method(rows):
        by_setting = _by_setting(group)
        first, protocol = group[0], group[0].scored.protocol
        settings = [rows[0].scored.method.settings for rows in by_setting]
        scores = [np.concatenate([row.scores for row in rows]) for rows in by_setting]
        drawn = tuning_curves(
            np.concatenate(scores),
            np.random.default_rng(seed),
            evaluations=evaluations,
            policies=policies,
            trials=trials,
            exploration=exploration,
        )
        lows, highs = np.quantile(drawn, [(1 - MIDDLE) / 2, (1 + MIDDLE) / 2], axis=0)
        codes = [row.scored.code.versions.get("orlog", "") for rows in by_setting for row in rows]
        varied, number = _varied(settings), sum(map(len, scores))
        notes = []
        if first.anchors is None:
            notes.append("how much the bandit explores depends on the scale of the returns")
        if len(settings) == 1:
            notes.append(f"{first.name} has one setting on {first.task}, so only seeds differ")
        curves.append(
            {
                "method": first.name,
                "dataset": first.task,
                "digest": method_digest(first.name, settings, code=_distinct(codes)),
                "varied": varied,
                "settings": [{name: each.get(name) for name in varied} for each in settings],
                "setting_seeds": [len(each) for each in scores],
                "setting_scores": [float(each.mean()) for each in scores],
                "policies": number,
                "episodes": protocol.episodes,
                "means": drawn.mean(0).tolist(),
                "lows": lows.tolist(),
                "highs": highs.tolist(),
                "expected_best": expected_online_performance(np.array([each.mean() for each in scores])).tolist(),
                "protocol": (
                    f"{protocol.environment_id}, {counted(protocol.episodes, 'episode')} of each policy with reset "
                    f"seeds from {protocol.first_seed}; UCB with exploration {exploration:g} over "
                    f"{min(policies, number)} of {number} policies, {counted(trials, 'trial')}, one stored episode an "
                    "evaluation"
                ),
                "is_normalized": first.anchors is not None,
                "notes": notes,
            }
        )
    return curves


def _by_setting(group: Sequence[Row]) -> list[list[Row]]:
    first = group[0]
    by_setting: dict[bytes, list[Row]] = {}
    for row in group:
        there, here = (side.facts | {"episodes": side.scored.protocol.episodes} for side in (first, row))
        if there != here:
            raise ValueError(
                f"{row.name} on {row.task}: {first.place} and {row.place} differ in {differences(there, here)}; "
                f"give each its own curve: NAME={row.place}"
            )
        by_setting.setdefault(canonical_json(row.scored.method.settings), []).append(row)
    for rows in by_setting.values():
        check_seeds(rows)
    varied = _varied([rows[0].scored.method.settings for rows in by_setting.values()])
    return sorted(
        by_setting.values(),
        key=lambda rows: [values.index(rows[0].scored.method.settings.get(name)) for name, values in varied.items()],
    )


def _varied(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for each in settings for name in each)
    varied = {name: _distinct([each.get(name) for each in settings]) for name in names}
    return {name: values for name, values in varied.items() if len(values) > 1}


def _distinct(values: list[Any]) -> list[Any]:
    """Return the different values of a setting, in the order of their text or size."""
    distinct = {canonical_json(value): value for value in values}
    ordered = [distinct[text] for text in sorted(distinct)]
    numbers = all(isinstance(value, int | float) for value in ordered)
    return sorted(ordered) if numbers else ordered
