"""Scores of algorithms by the name of a dataset: published ones, and those recorded with orlog."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from orlog.algos.algorithms import algorithm_title, known_as
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.errors import NotFoundError
from orlog.manifests.benchmarks import BENCHMARKS, benchmark_datasets, find_benchmark_dataset, unknown_name
from orlog.manifests.manifest import Manifest
from orlog.normalize.baselines import read_baselines
from orlog.normalize.published_scores import (
    PublishedScore,
    published_names,
    published_scores,
    same_algorithm,
    scores_on,
)
from orlog.normalize.references import simulator_of
from orlog.runs.references import described, references_of


def baselines(dataset: Given, *, algorithm: str | None = None) -> list[PublishedScore]:
    """Return the scores of algorithms on a dataset: published ones, and those recorded with orlog.

    Compare scores of one protocol only. A maximum over evaluations is several points higher than the
    last one, and scores of the same name on other data, rewards or settings differ as well.

    Args:
        dataset: An open dataset, or the name or path of one. The name of a benchmark's dataset is
            enough, such as `d4rl/hopper-medium-v2`, or of a group of datasets that a source
            summarizes, such as `dsrl/MetaDrive`.
        algorithm: Return its scores only; `td3_bc` and `TD3+BC` are the same.

    Raises:
        NotFoundError: nothing has this name, or no score is known for it.
    """
    title, manifest = _title_and_manifest(dataset)
    is_view = isinstance(dataset, Dataset) and dataset.operation is not None
    own = [] if manifest is None or is_view else _recorded(manifest)
    scores = [*own, *scores_on(title)]
    if not scores:
        raise NotFoundError(f"{title}: no published or recorded scores are known.")
    return _of_algorithm(title, algorithm, scores)


def _of_algorithm(name: str, algorithm: str | None, scores: Sequence[PublishedScore]) -> list[PublishedScore]:
    if algorithm is None:
        return [*scores]
    wanted = known_as(algorithm)
    chosen = [score for score in scores if same_algorithm(known_as(score.algorithm), wanted)]
    if not chosen:
        known = ", ".join(sorted({score.algorithm for score in scores}))
        raise NotFoundError(f"{name}: no score of {algorithm!r} is known; there are {known}.")
    return chosen


def published_name(dataset: Given) -> str:
    """Return the name under which scores on a dataset were published: that of its benchmark.

    It is the dataset's own name if no benchmark has it.

    Raises NotFoundError if nothing has this name.
    """
    return _title_and_manifest(dataset)[0]


def _title_and_manifest(dataset: Given) -> tuple[str, Manifest | None]:
    """Return the name under which scores were published, and the manifest of a dataset that is here or ships."""
    text = str(dataset) if isinstance(dataset, str) else ""
    if text and find_benchmark_dataset(text) is None and (of_group := scores_on(text)):
        return of_group[0].dataset, None  # a group of datasets, or a task
    try:
        name, manifest, benchmark = described(dataset)
    except NotFoundError as error:
        key = text.partition("/")[0]
        if key not in BENCHMARKS:
            raise
        known = [*(one.name for one in benchmark_datasets(key)), *published_names(key)]
        raise unknown_name(text, known) from error
    return name if benchmark is None else benchmark.name, manifest


def _recorded(manifest: Manifest) -> list[PublishedScore]:
    """Return the scores of a dataset's baselines that ship with orlog."""
    references = references_of(manifest)
    if references is None:
        return []
    scores = []
    for baseline in read_baselines(manifest.name):
        means = [float(each.mean()) for each in baseline.scores(references).values()]
        caveats = []
        if baseline.digest != manifest.digest:
            caveats.append("recorded on another version of the dataset")
        title = algorithm_title(baseline.algorithm, baseline.settings)
        if title != algorithm_title(baseline.algorithm):
            caveats.append(f"run as {title}")
        protocol = baseline.protocol
        scores.append(
            PublishedScore(
                dataset=manifest.name,
                benchmark="orlog",
                algorithm=baseline.algorithm,
                implementation="orlog",
                metric="normalized score",
                score=float(np.mean(means)),
                spread=float(np.std(means, ddof=1)) if len(means) > 1 else None,
                spread_kind="sample std over seeds",
                seeds=len(means),
                protocol=f"{baseline.policy}; {baseline.steps:,} steps; {protocol.episodes} episodes per "
                f"seed in {simulator_of(protocol)}",
                source="recorded with orlog",
                caveats=caveats,
                per_seed=list(means),
            )
        )
    return scores


# Scores in sections: within one, and only there, they may share a column and an average.


class Average(msgspec.Struct, frozen=True):
    """Averages over a group of datasets in a section.

    Attributes:
        group: The group of datasets.
        datasets: Their names: all of the group that have a score in the section.
        means: Mean score by algorithm; only algorithms that have a score on all of them.
    """

    group: str
    datasets: list[str]
    means: dict[str, float]


class Section(msgspec.Struct, frozen=True):
    """Scores of one protocol and one publication.

    Attributes:
        benchmark: Benchmark and its variant.
        version: Version of D4RL's files; empty elsewhere.
        metric: What the score is, with its unit.
        protocol: Which value of a run is reported, and how policies were evaluated.
        publication: Whose code or paper.
        algorithms: Their algorithms, in the order of the source.
        scores: Score by dataset and algorithm.
        averages: Averages over groups of datasets.
    """

    benchmark: str
    version: str
    metric: str
    protocol: str
    publication: str
    algorithms: list[str]
    scores: dict[str, dict[str, PublishedScore]]
    averages: list[Average]

    @property
    def rows(self) -> list[PublishedScore]:
        """All of its scores."""
        return [score for row in self.scores.values() for score in row.values()]


def benchmark_sections(key: str, *, algorithm: str | None = None) -> list[Section]:
    """Return all published scores of a benchmark, in sections that may be compared.

    Raises NotFoundError if there is no such benchmark, it has no scores, or none of the algorithm.
    """
    scores, title = published_scores(key), BENCHMARKS[key].title
    if not scores:
        raise NotFoundError(f"{title}: no published scores are known.")
    return in_sections(_of_algorithm(title, algorithm, scores))


def in_sections(scores: Iterable[PublishedScore]) -> list[Section]:
    """Return scores in sections, those of primary sources first, the last evaluation first."""
    grouped = defaultdict(list)
    for score in scores:
        version = re.fullmatch(r"d4rl/.+-(v\d)", score.dataset)
        key = (
            score.benchmark,
            "" if version is None else version[1],
            score.metric,
            score.protocol,
            score.implementation.removesuffix(f" of {score.algorithm}"),
        )
        grouped[key].append(score)
    sections = []
    for key, members in sorted(grouped.items(), key=lambda item: _rank(item[1][0])):
        table: dict[str, dict[str, PublishedScore]] = defaultdict(dict)
        for score in members:
            assert score.algorithm not in table[score.dataset], (key, score.dataset, score.algorithm)
            table[score.dataset][score.algorithm] = score
        algorithms = list(dict.fromkeys(score.algorithm for score in members))
        averages = [] if score_is_raw(members[0].metric) else list(_averages(algorithms, table))
        sections.append(Section(*key, algorithms, dict(table), averages))
    return sections


def _rank(first: PublishedScore) -> tuple[bool, bool, int]:
    order = ("last", "mean of last", "maximum", "other", "not stated")
    return first.implementation != "orlog", first.secondary, order.index(first.statistic)


def score_is_raw(metric: str) -> bool:
    """Return whether scores of a metric are raw returns, which have no average over datasets."""
    return metric.startswith("raw")


def _averages(algorithms: Sequence[str], table: Mapping[str, Mapping[str, PublishedScore]]) -> Iterator[Average]:
    """Yield averages over the sets of datasets on which at least one algorithm has every score."""
    for group, names in _sets(table).items():
        means = {
            algorithm: sum(table[name][algorithm].score for name in names) / len(names)
            for algorithm in algorithms
            if all(algorithm in table.get(name, {}) for name in names)
        }
        if means:
            yield Average(group=group, datasets=list(names), means=means)


_LOCOMOTION = ("halfcheetah", "hopper", "walker2d")
_QUALITIES = ("random", "medium", "medium-replay", "medium-expert")
_ANTMAZES = [f"{maze}-{kind}" for maze in ("medium", "large") for kind in ("play", "diverse")]
_HANDS = ("pen", "door", "hammer", "relocate")
# Sets of D4RL's datasets that papers average over: environments, and kinds of data.
_D4RL_SETS = {
    "locomotion": (_LOCOMOTION, _QUALITIES[1:]),
    "locomotion with random": (_LOCOMOTION, _QUALITIES),
    "locomotion, all qualities": (_LOCOMOTION, (*_QUALITIES, "expert", "full-replay")),
    "ant": (("ant",), _QUALITIES),
    "AntMaze": (("antmaze",), ("umaze", "umaze-diverse", *_ANTMAZES)),
    "Maze2D": (("maze2d",), ("umaze", "medium", "large")),
    "Adroit, human and cloned": (_HANDS, ("human", "cloned")),
    "Adroit": (_HANDS, ("human", "cloned", "expert")),
    "kitchen": (("kitchen",), ("complete", "partial", "mixed")),
}


def _sets(table: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Return the complete sets of datasets that scores on some datasets may be averaged over."""
    sets: dict[str, list[str]] = defaultdict(list)
    versions = {name.rpartition("-")[2] for name in table if name.startswith("d4rl/")}
    for version in sorted(versions):
        for title, (environments, kinds) in _D4RL_SETS.items():
            pairs = itertools.product(environments, kinds)
            names = [f"d4rl/{environment}-{kind}-{version}" for environment, kind in pairs]
            if set(names) <= set(table):
                sets[f"{title} {version}"] = names
    for name in table:
        if group := _group(name):
            sets[group].append(name)
    return {group: names for group, names in sets.items() if len(names) > 1}


def _group(name: str) -> str:
    """Return the group of a benchmark other than D4RL that a dataset belongs to, or nothing."""
    task = re.fullmatch(r"ogbench/(.+-singletask)-task\d-v\d", name)
    if task is not None:
        return task[1]
    dataset = find_benchmark_dataset(name)
    if dataset is None:
        return ""
    match dataset.benchmark.key:
        case "d4rl":
            return ""
        case "dsrl":
            return dataset.facts["suite"]
        case "ogbench":
            return f"OGBench, {dataset.facts['obs']}"
        case _:
            return dataset.benchmark.title
