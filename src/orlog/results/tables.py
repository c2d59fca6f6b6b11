"""Tables of results: only what compares shares one, and for each two tables it is said what differs.

Results share a table if they learned from the same bytes, were evaluated in the same environment with packages of
the same minor versions, are scored by the same references, and the same kind of policy of a run was evaluated.
Numbers of episodes and of seeds may differ: intervals say what they are worth. Recorded baselines of orlog are
results like all others. Published scores come without the returns of episodes, so each publication and protocol has
a table of its own.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.errors import NotFoundError
from orlog.manifests.documents import canonical_json
from orlog.normalize.baselines import protocol_episodes
from orlog.normalize.metrics import Number, numbers_of
from orlog.normalize.published_scores import PublishedScore
from orlog.normalize.references import simulator_of
from orlog.normalize.statistics import (
    AGGREGATES,
    Comparison,
    Estimate,
    bootstrap_interval,
    compare_methods,
    differing_facts,
    equal_methods,
    unranked_methods,
)
from orlog.results.documents import REPRODUCTIONS, SharedResult
from orlog.results.judging import note_problem
from orlog.results.known import baseline_results, known_problems
from orlog.results.places import Collected, Entry, Found
from orlog.scoring.baseline_scores import Section, baselines, in_sections

RECORDED = "recorded with orlog"
MOST_COMPARED = 40
"""Most rows of a table that are compared with each other: the cost grows with the square."""

_OF_ONE_TABLE = ("data", "environment", "arguments", "time limit", "references")
"""What datasets differ in: results over several of them have the rest in common."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A result in a table.

    Attributes:
        name: Its name, which no other row of the table has.
        entry: The result, and what is said of it.
        score: Mean score, or return, with its 95 % interval.
        numbers: What metrics give, over the seeds.
        settings: Settings in which rows of its algorithm differ.
        state: What is said of it: confirmed, contradicted, not ranked, a copy.
        is_ranked: Whether it is ranked, which takes enough seeds and episodes, and returns that no row before it has.
    """

    name: str
    entry: Entry
    score: Estimate
    numbers: list[Number]
    settings: dict[str, Any]
    state: list[str]
    is_ranked: bool

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        entry = self.entry
        body = msgspec.to_builtins(entry.result)
        for left_out in ("result_version", "dataset", "protocol", "references"):
            del body[left_out]
        return {
            "row": self.name,
            "score": self.score.to_json(),
            "numbers": [one.to_json() for one in self.numbers],
            "differing_settings": self.settings,
            "state": self.state,
            "is_ranked": self.is_ranked,
            "where": entry.where or [RECORDED],
            "signers": None if entry.signers is None else sorted(entry.signers),
            "notes": [{"where": n.where, **msgspec.to_builtins(n.document)} for n in entry.notes],
            "result": body,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Results that compare, or the scores of one publication.

    Attributes:
        dataset: Name of the dataset.
        facts: What its rows have in common, by what it is, in words.
        rows: Results, the best first, those that are not ranked last.
        comparison: Statistics of the results; None of published scores.
        published: Published scores; None in a table of results.
        notes: What else to know.
    """

    dataset: str
    facts: dict[str, str]
    rows: list[Row]
    comparison: Comparison | None
    published: Section | None
    notes: list[str]

    @property
    def scores(self) -> list[PublishedScore]:
        """Published scores, the best first."""
        by = {} if self.published is None else self.published.scores
        return sorted(
            (one for row in by.values() for one in row.values()), key=lambda one: -one.score
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "dataset": self.dataset,
            "facts": self.facts,
            "rows": [one.to_json() for one in self.rows],
            "comparison": None if self.comparison is None else self.comparison.to_json(),
            "published": [msgspec.to_builtins(one) for one in self.scores],
            "notes": self.notes,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Tables, and what differs between each two of a dataset.

    Attributes:
        tables: The tables.
        differences: By the positions of two tables, what differs.
        overall: Comparisons over several datasets, of methods that have results on all of them.
        problems: What is wrong with files, a sentence each; they are left out.
        notes: What else is left out.
    """

    tables: list[Table]
    differences: dict[tuple[int, int], list[str]]
    overall: list[Comparison]
    problems: list[str]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; tables are numbered from 1."""
        return {
            "tables": [one.to_json() for one in self.tables],
            "differences": [
                {"first": first + 1, "second": second + 1, "differs": lines}
                for (first, second), lines in self.differences.items()
            ],
            "over_datasets": [one.to_json() for one in self.overall],
            "problems": self.problems,
            "notes": self.notes,
        }


def make_board(collected: Collected, names: Sequence[str] = (), *, others: bool = True) -> Board:
    """Return the tables of results on datasets, by name or pattern such as `pointmaze/*`; of all without names.

    With `others`, recorded baselines and published scores of the datasets stand in them.

    Raises NotFoundError if there is nothing for a name.
    """
    entries, problems = checked(collected)
    known = dict.fromkeys(one.result.dataset.name for one in entries)
    chosen: dict[str, None] = {} if names else {**known}
    for name in names:
        matching = [one for one in known if fnmatch.fnmatchcase(one, name)]
        chosen |= dict.fromkeys(matching or [name])
    tables: list[Table] = []
    for name in chosen:
        there = [one for one in entries if one.result.dataset.name == name]
        if others:
            added = {one.result.digest for one in there}
            recorded = baseline_results(name)
            there += [Entry(result=one) for one in recorded if one.digest not in added]
        made = [*_tables_of(name, there), *(_published(name) if others else ())]
        if not made:
            raise NotFoundError(f"{name}: no result, and no recorded or published score, is known.")
        tables += made
    differences = {
        (first, second): _differences(tables[first].facts, tables[second].facts)
        for first, second in itertools.combinations(range(len(tables)), 2)
        if tables[first].dataset == tables[second].dataset
    }
    overall, notes = _overall(tables)
    return Board(
        tables=tables,
        differences=differences,
        overall=overall,
        problems=problems,
        notes=[*collected.notes, *notes],
    )


def checked(collected: Collected) -> tuple[list[Entry], list[str]]:
    """Return the results that agree with what is known here, without wrong notes; and all problems."""
    problems, entries = [*collected.problems], []
    looked_up: dict[str, Any] = {}
    for entry in collected.entries:
        wrong = known_problems(entry.result, looked_up)
        problems += [f"{entry.where[0]}: {one}" for one in wrong]
        notes = []
        for one in entry.notes:
            problem = note_problem(entry.result, one.note)
            if problem:
                problems.append(f"{one.where}: {problem}")
            else:
                notes.append(one)
        if not wrong:
            entries.append(dataclasses.replace(entry, notes=notes))
    return entries, problems


def _tables_of(name: str, entries: Iterable[Entry]) -> list[Table]:
    groups: dict[bytes, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(canonical_json(_facts(entry.result)), []).append(entry)
    found = [_table(name, group) for group in groups.values()]
    return sorted(found, key=lambda one: -len(one.rows))


def _minor(versions: dict[str, str]) -> dict[str, str]:
    """Return major and minor version of each package."""
    return {name: ".".join(one.split(".")[:2]) for name, one in sorted(versions.items())}


def _facts(result: SharedResult) -> dict[str, str]:
    """Return what results must have in common to share a table, in words: all that is in them, and nothing else."""
    scale, protocol, data = result.references, result.protocol, result.dataset
    limit = protocol.max_episode_steps
    policy = result.checkpoint
    if result.step != result.compute.steps:
        policy += ", before its last step"
    anchors = "none: returns"
    if scale is not None:
        anchors = f"0 = {scale.random.mean:.8g}, 100 = {scale.expert.mean:.8g}"
    return {
        "data": f"{data.name} {data.digest}",
        "environment": protocol.environment_id,
        "arguments": canonical_json(protocol.environment_kwargs).decode(),
        "time limit": "none" if limit is None else f"{limit:,} steps",
        "packages": ", ".join(f"{name} {one}" for name, one in _minor(protocol.versions).items()),
        "policy": policy,
        "trained": "also in the environment" if result.method.online else "on the data alone",
        "references": anchors,
    }


def _table(name: str, entries: Sequence[Entry]) -> Table:
    """Return the table of results that compare."""
    by_algorithm: dict[str, list[SharedResult]] = {}
    for entry in entries:
        by_algorithm.setdefault(entry.result.method.algorithm, []).append(entry.result)
    # Of equal returns the recorded ones come first, then the oldest: later ones may be copies.
    entries = sorted(
        entries, key=lambda one: (bool(one.found), one.result.created, one.result.digest)
    )
    by_label = dict(zip(_labels(entries), entries, strict=True))
    values = {label: {name: one.result.values} for label, one in by_label.items()}
    unranked = unranked_methods(values, {name: protocol_episodes(name)})
    states = {label: _state(one) for label, one in by_label.items()}
    for label, why in unranked.items():
        states[label].append(f"not ranked: {why}")
    for label, other in equal_methods(values).items():
        states[label].append(f"returns of {other} to the bit")
        algorithms = [by_label[one].result.method.algorithm for one in (label, other)]
        if algorithms[0] == algorithms[1]:
            unranked.setdefault(label, "a copy")
    rows = [
        Row(
            name=label,
            entry=entry,
            score=Estimate(
                float(entry.result.values.mean()),
                bootstrap_interval(entry.result.values, np.random.default_rng(0)),
            ),
            numbers=numbers_of([*entry.result.played(entry.result.seeds).values()]),
            settings=_varied(entry.result, by_algorithm[entry.result.method.algorithm]),
            state=states[label],
            is_ranked=label not in unranked,
        )
        for label, entry in by_label.items()
    ]
    rows.sort(key=lambda one: (not one.is_ranked, -one.score.value))
    first = entries[0].result
    is_normalized = first.references is not None
    notes = _notes({row.name: row.entry.result for row in rows})
    standing = {row.name: values[row.name] for row in rows}
    if len(standing) > MOST_COMPARED:
        notes.append(f"ranks and aggregates are of the {MOST_COMPARED} rows with the best scores.")
        standing = dict([*standing.items()][:MOST_COMPARED])
    aggregates = [one for one in AGGREGATES if is_normalized or one != "optimality gap"]
    comparison = compare_methods(
        standing, np.random.default_rng(0), aggregates=aggregates, unranked=unranked
    )
    return Table(
        dataset=name,
        facts=_facts(first),
        rows=rows,
        comparison=comparison,
        published=None,
        notes=notes,
    )


def _labels(entries: Sequence[Entry]) -> list[str]:
    """Return a name for each result: its method's, with who adds it where two have that, else with its digest."""
    plain = [algorithm_title(one.result.method.name, one.result.method.settings) for one in entries]
    whose = [
        f"{name} by {one.result.by or 'nobody named'}"
        for name, one in zip(plain, entries, strict=True)
    ]
    exact = [f"{name} {one.result.short}" for name, one in zip(plain, entries, strict=True)]
    labels = [
        next(
            names[index]
            for names in (plain, whose, exact)
            if names.count(names[index]) == 1 or names is exact
        )
        for index in range(len(entries))
    ]
    return labels if len({*labels}) == len(labels) else exact


def _varied(one: SharedResult, those: Sequence[SharedResult]) -> dict[str, Any]:
    """Return the settings of a result in which results of its algorithm differ, and its steps if they do."""

    def of(result: SharedResult) -> dict[str, Any]:
        return {**result.method.settings, "steps": result.compute.steps}

    every = [of(other) for other in those]
    return {
        name: value
        for name, value in of(one).items()
        if any(name in other and other[name] != value for other in every)
    }


def _state(entry: Entry) -> list[str]:
    """Return what is said of a result: run again by whom, and with what verdict."""
    said = []
    for kind, word in zip(REPRODUCTIONS, ("confirmed", "contradicted", "not settled"), strict=True):
        found = entry.said(kind)
        if found:
            others = sum(_is_by_another(entry, one) for one in found)
            said.append(f"{word} {len(found)}x ({others or 'none'} signed by others)")
    return said


def _is_by_another(entry: Entry, note: Found) -> bool:
    """Whether a note is signed by somebody who did not sign the result."""
    return bool(note.signers) and not (note.signers or frozenset()) & (entry.signers or frozenset())


def _notes(by_label: dict[str, SharedResult]) -> list[str]:
    """Return in what results of one table still differ, which a reader should know."""
    results = [*by_label.values()]
    facts = {
        label: {
            "seeds": str(len(one.seeds)),
            "episodes of each seed": f"{one.protocol.episodes:,}",
            "gradient steps": f"{sum(one.method.steps_before) + one.compute.steps:,}",
            "settings tried": "not said" if one.method.tried is None else f"{one.method.tried:,}",
            "first seeds of episodes": str(one.protocol.first_seed),
            "packages": simulator_of(one.protocol),
        }
        for label, one in by_label.items()
    }
    notes = differing_facts(facts)
    mixed = [one.method.name for one in results if one.code.trained_by]
    if mixed:
        notes.append(
            f"{', '.join(dict.fromkeys(map(algorithm_title, mixed)))}: was not trained by one known code; --json "
            "and --html say which seeds by which."
        )
    return notes


def _published(name: str) -> list[Table]:
    """Return a table for each publication and protocol of the scores on a dataset."""
    try:
        scores = [one for one in baselines(name) if one.benchmark != "orlog"]
    except NotFoundError:
        return []
    tables = []
    for section in in_sections(scores):
        key = section.key
        facts = {
            "data": f"{key.benchmark} {key.version}".strip(),
            "environment": "of the publication",
            "policy": key.protocol or "not stated",
            "references": key.metric,
            "code": key.publication,
            "returns of episodes": "not published",
        }
        tables.append(
            Table(dataset=name, facts=facts, rows=[], comparison=None, published=section, notes=[])
        )
    return tables


def _differences(first: dict[str, str], second: dict[str, str]) -> list[str]:
    """Return what differs between two tables, a line for each fact."""
    pairs = {
        name: (first.get(name, "not stated"), second.get(name, "not stated"))
        for name in {**first, **second}
    }
    return [f"{name}: {one} | {other}" for name, (one, other) in pairs.items() if one != other]


def _overall(tables: Sequence[Table]) -> tuple[list[Comparison], list[str]]:
    """Return comparisons over datasets whose tables differ in nothing else, and what was left out of them."""
    groups: dict[str, dict[str, Table]] = {}
    for table in tables:
        if table.comparison is not None and not table.facts["references"].startswith("none"):
            kept = {name: one for name, one in table.facts.items() if name not in _OF_ONE_TABLE}
            groups.setdefault(canonical_json(kept).decode(), {}).setdefault(table.dataset, table)
    found, notes = [], []
    for by_dataset in groups.values():
        if len(by_dataset) < 2:
            continue
        scores: dict[str, dict[str, np.ndarray]] = {}
        for name, table in by_dataset.items():
            newest = sorted(table.rows, key=lambda row: row.entry.result.created, reverse=True)
            for row in newest:  # of several of one method the newest counts, not the best
                result = row.entry.result
                if row.is_ranked:
                    title = algorithm_title(result.method.name, result.method.settings)
                    whose = (
                        title
                        if result.by == RECORDED
                        else f"{title} by {result.by or 'nobody named'}"
                    )
                    scores.setdefault(whose, {}).setdefault(name, result.values)
        whole = {method: one for method, one in scores.items() if len(one) == len(by_dataset)}
        notes += [
            f"{method}: has results on {len(scores[method])} of {len(by_dataset)} datasets, so it is not in the "
            "comparison over them."
            for method in scores.keys() - whole.keys()
        ]
        if not whole or len(whole) > MOST_COMPARED:
            continue
        for method, one in whole.items():
            fewest = min(map(len, one.values()))
            if any(len(values) > fewest for values in one.values()):
                notes.append(
                    f"{method}: the first {fewest} seeds on each dataset count over all of them."
                )
            whole[method] = {name: values[:fewest] for name, values in one.items()}
        found.append(compare_methods(whole, np.random.default_rng(0)))
    return found, sorted(notes)
