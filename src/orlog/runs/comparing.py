"""Tables of evaluated runs: only what compares shares one, and for each other one it is said what keeps it apart.

Rows compare if they learned from the same bytes, were evaluated in the same environment with packages of the same
minor versions, are scored by the same references, and the same kind of policy of a run was evaluated. Numbers of
episodes and of seeds may differ: intervals say what they are worth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import msgspec

from orlog.algos.algorithms import algorithm_title
from orlog.manifests.documents import canonical_json
from orlog.normalize.statistics import Comparison
from orlog.runs.evaluated_runs import EvaluatedRun, MethodResults, references_of_run, settings_text


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Runs of methods that compare, each method on the same datasets.

    Attributes:
        runs: The runs, with a name for each row as their method.
        apart: What keeps it apart from the first table, in one line; empty for that one.
    """

    runs: list[EvaluatedRun]
    apart: str

    def title(self, method: str) -> str:
        """Return how people write the name of a row."""
        settings = next(run.settings for run in self.runs if run.method == method)
        name, space, differing = method.partition(" ")
        return f"{algorithm_title(name, settings)}{space}{differing}"


def tables_of(runs: Iterable[EvaluatedRun]) -> list[Table]:
    """Return the tables of runs, the one with most rows first.

    Runs in folders that differ in their seeds only are a row, and so is each file; a seed that is there twice is of
    another row. Of a method with several rows, the names also say in which settings they differ, or where they lie.
    Datasets on which the same rows compare share a table.
    """
    known: dict[bytes, dict[str, str]] = {}
    rows: dict[bytes, list[list[EvaluatedRun]]] = {}
    by_facts: dict[bytes, list[list[EvaluatedRun]]] = {}
    for run in runs:
        scale = None if run.file is None else msgspec.to_builtins(run.file.references)
        measured = [run.dataset, run.digest, msgspec.to_builtins(run.protocol), scale]
        policy = [run.policy, run.online, run.step == run.steps]
        what = canonical_json([measured, policy])
        if what not in known:  # looking up references takes time
            known[what] = _facts(run)
        facts = canonical_json([run.digest, known[what]])
        place = "" if run.file is None else str(run.place)
        alike = rows.setdefault(canonical_json([run.method, run.settings, place]) + facts, [])
        row = next((one for one in alike if run.seed not in {other.seed for other in one}), None)
        if row is None:
            row = []
            alike.append(row)
            by_facts.setdefault(facts, []).append(row)
        row.append(run)
    together: list[list[list[EvaluatedRun]]] = []
    for group in by_facts.values():
        named = [run for row in _named(group) for run in row]
        for others in together:
            on_others = all(one[0].dataset != named[0].dataset for one in others)
            if on_others and _shape(others[0]) == _shape(named):
                others.append(named)
                break
        else:
            together.append([named])
    found = [[run for one in groups for run in one] for groups in together]
    found.sort(key=lambda one: -len({(run.method, run.dataset) for run in one}))
    return [
        Table(runs=one, apart=_apart(one, found[0]) if index else "")
        for index, one in enumerate(found)
    ]


def _facts(run: EvaluatedRun) -> dict[str, str]:
    """Return what rows must have in common to share a table, in words."""
    protocol, references = run.protocol, references_of_run(run)
    minor = [f"{name} {'.'.join(one.split('.')[:2])}" for name, one in protocol.versions.items()]
    limit = protocol.max_episode_steps
    anchors = "none"
    if references is not None:
        anchors = f"0 = {references.random.mean:.8g}, 100 = {references.expert.mean:.8g}"
    return {
        "dataset": run.dataset,
        "data": run.digest[:19],
        "environment": protocol.environment_id,
        "its arguments": canonical_json(protocol.environment_kwargs).decode(),
        "time limit": "none" if limit is None else f"{limit:,} steps",
        "packages": ", ".join(sorted(minor)),
        "policy": run.policy + ("" if run.step == run.steps else ", before the last step"),
        "training": "also in the environment" if run.online else "on data alone",
        "references": anchors,
    }


def _named(group: Sequence[list[EvaluatedRun]]) -> list[list[EvaluatedRun]]:
    """Return rows of one table, each with a name that no other has."""
    named: dict[str, list[EvaluatedRun]] = {}
    for row in group:
        first = row[0]
        same = [other[0] for other in group if other[0].method == first.method]
        differing = {
            name: value
            for name, value in first.settings.items()
            if any(other.settings.get(name) != value for other in same)
        }
        alike = sum(other.settings == first.settings for other in same)
        words = [first.method, *([settings_text(differing)] if differing else [])]
        if alike > 1:
            is_place = len(row) == 1 or first.file is not None
            words.append(str(first.place if is_place else first.place.parent))
        name = " ".join(words)
        while name in named:  # a file of anybody may have any name
            name += " again"
        named[name] = [dataclasses.replace(run, method=name) for run in row]
    return [*named.values()]


def _shape(runs: Sequence[EvaluatedRun]) -> object:
    """Return what the runs on each dataset of a table have in common: rows, numbers of seeds, normalized scores."""
    seeds: dict[str, int] = {}
    for run in runs:
        seeds[run.method] = seeds.get(run.method, 0) + 1
    alone = runs[0].dataset if references_of_run(runs[0]) is None else ""
    return frozenset(seeds.items()), alone


def _apart(runs: Sequence[EvaluatedRun], first: Sequence[EvaluatedRun]) -> str:
    """Return what keeps runs apart from those of the first table."""
    shared = next(((run, one) for run in runs for one in first if run.dataset == one.dataset), None)
    if shared is None:
        names = ", ".join(dict.fromkeys(run.dataset for run in runs))
        return f"other rows, or numbers of seeds, on {names}"
    here, there = (_facts(run) for run in shared)
    lines = [
        f"{what}: {there[what]}; here {here[what]}" for what in here if here[what] != there[what]
    ]
    return f"{shared[0].dataset}: {' | '.join(lines)}"


def comparison_of(results: MethodResults, resamples: int) -> Comparison:
    """Return the statistics of the rows of a table."""
    import numpy as np

    from orlog.normalize.statistics import AGGREGATES, compare_methods

    return compare_methods(
        results.scores,
        np.random.default_rng(0),
        resamples=resamples,
        aggregates=[one for one in AGGREGATES if results.is_normalized or one != "optimality gap"],
        checkpoints=results.checkpoints,
        unranked=results.unranked,
    )
