"""Scores by the name of a dataset: reference returns, normalized scores, and what algorithms score there.

References are published for a benchmark's dataset (`manifests/benchmarks.py`), or were measured (`evaluating.py`) in
an environment with its arguments, so that all datasets of one environment share them. Measured ones lie in the home,
in `$ORLOG_HOME/references/SHA-256.json` of the environment's id and arguments, or ship with orlog.

docs/scores.md has the formula of each benchmark. Scores are never clipped. A mean may be taken before or after
normalizing, a median or an interquartile mean over datasets only after.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import msgspec
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from orlog.algos.algorithms import algorithm_title, known_as
from orlog.datasets.home.folders import dataset_folders, datasets_folder
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.finding import as_folder
from orlog.datasets.reading.opening import Given
from orlog.errors import ManifestError, NotFoundError, OrlogError, clause, wrong_type
from orlog.manifests.benchmarks import (
    BENCHMARKS,
    BenchmarkDataset,
    benchmark_dataset,
    benchmark_datasets,
    find_benchmark_dataset,
    unknown_name,
)
from orlog.manifests.counterparts import benchmark_environment
from orlog.manifests.documents import canonical_json, replace_json_file, sole_writer
from orlog.manifests.manifest import EnvironmentRecord, Manifest
from orlog.manifests.names import is_name, is_url, parse_name
from orlog.manifests.rebuilds import recorded_build
from orlog.manifests.shipped import records_folder
from orlog.normalize.published_scores import (
    PublishedScore,
    published_names,
    published_scores,
    same_algorithm,
    scores_on,
    whole_name,
)
from orlog.normalize.references import (
    Protocol,
    PublishedProtocol,
    PublishedReferences,
    PublishedReturn,
    References,
    benchmark_references,
    normalized_cost,
    read_baselines,
    read_references,
    simulator_of,
)

_MEASURE = "orlog scores {} --random --expert RUN."


def trained_policy(settings: Mapping[str, Any]) -> str:
    """Return in words which policy of a run is evaluated and how it acts, by the settings of its algorithm."""
    if settings.get("sampling_temperature"):
        return "last checkpoint, actions drawn from a stream that is always the same"
    return "last checkpoint, deterministic actions"


# Reference returns.


class Described(NamedTuple):
    """What is known of a dataset by its name: the manifest if it is here or ships, and its benchmark's dataset."""

    name: str
    manifest: Manifest | None
    benchmark: BenchmarkDataset | None


def references(dataset: Given) -> References:
    """Return the reference returns of a dataset: values, source, protocol, simulator, caveats.

    Args:
        dataset: An open dataset, or the name or path of one. The name of a benchmark's dataset is
            enough, such as `atari/breakout` or `d4rl/hopper-medium-v2`; it need not be here.

    Raises:
        NotFoundError: no reference returns are known for it.
    """
    return references_to(described(dataset))


def references_of_dataset(dataset: Dataset) -> References | None:
    """Return the reference returns of a version or view, or None; those of all parts must agree."""
    try:
        return references(dataset)
    except NotFoundError:
        return None


def references_of(manifest: Manifest) -> References | None:
    """Return the reference returns that anchor scores on a dataset, or None."""
    return _references_in(Described(manifest.name, manifest, benchmark_of(manifest)), manifest.environment)


def references_to(known: Described) -> References:
    """Return the reference returns of a described dataset; a NotFoundError if none are known."""
    name, manifest, benchmark = known
    environment = None if manifest is None else manifest.environment
    anchors = _references_in(known, environment)
    if anchors is not None:
        return anchors
    if benchmark is None:
        missing = f"no reference returns are known; measure them with: {_MEASURE.format(name)}"
    elif environment is not None and not holds_in(benchmark, environment):
        missing = (
            f"returns of its environment {environment.id} have no score of {benchmark.name}, which "
            "has another environment; store the data under another name, without benchmark."
        )
    else:
        missing = f"{benchmark.benchmark.title} {benchmark.benchmark.missing}."
    raise NotFoundError(f"{name}: {missing}")


def references_measured(name: str, digest: str, protocol: Protocol) -> References | None:
    """Return the references of returns that were measured by a protocol, after training on a version of a dataset.

    Those of a benchmark hold only for returns of its own environment, whatever a name says.
    """
    environment = EnvironmentRecord(
        id=protocol.environment_id,
        kwargs=protocol.environment_kwargs,
        versions=protocol.versions,
        max_episode_steps=protocol.max_episode_steps,
    )
    try:
        return _references_in(described_version(name, digest), environment)
    except NotFoundError:  # references of the parts of a view differ
        return None


def _references_in(known: Described, environment: EnvironmentRecord | None) -> References | None:
    """Return the references of returns in an environment, of policies that were trained on a described dataset."""
    # A benchmark's come first, so that nothing measured here changes the score of a benchmark.
    if known.benchmark is not None:
        if not holds_in(known.benchmark, environment):
            return None
        published = benchmark_references(known.benchmark)
        if published is not None:
            return published
    if environment is None:
        return None
    return _measured_in(environment) or _minari_references(known.manifest, environment)


def _minari_references(manifest: Manifest | None, environment: EnvironmentRecord) -> PublishedReferences | None:
    from orlog.datasets.formats.minari.metadata import references_in

    if manifest is None or manifest.environment is None or _file_name(manifest.environment) != _file_name(environment):
        return None
    returns = references_in(manifest.description)
    if returns is None:
        return None
    return PublishedReferences(
        random=PublishedReturn(policy="Minari's ref_min_score", mean=returns[0]),
        expert=PublishedReturn(policy="Minari's ref_max_score", mean=returns[1]),
        protocol=PublishedProtocol(
            environment_id=environment.id,
            environment_kwargs=dict(environment.kwargs),
            versions=dict(manifest.environment.versions),
            episodes=None,
            description="as the metadata of the Minari dataset say",
        ),
        source=f"metadata of the Minari dataset that {manifest.name} was read from",
        caveats=["Minari's own scores are these divided by 100."],
    )


def benchmark_of(manifest: Manifest) -> BenchmarkDataset | None:
    """Return the benchmark's dataset whose references a dataset shares, or None."""
    return find_benchmark_dataset(manifest.benchmark or manifest.name)


def holds_in(benchmark: BenchmarkDataset, environment: EnvironmentRecord | None) -> bool:
    """Whether the references of a benchmark's dataset hold for returns of an environment.

    Only D4RL's environments are known; of other benchmarks a note beside a score names both.
    """
    known = benchmark_environment(benchmark.name)
    return environment is None or known is None or known.fits(environment)


def described(dataset: Given) -> Described:
    """Return the name of a dataset that is here or in a known benchmark, its manifest and its benchmark's dataset."""
    manifest = _manifest(dataset)
    if manifest is not None:
        return Described(manifest.name, manifest, benchmark_of(manifest))
    benchmark = benchmark_dataset(str(dataset))
    return Described(benchmark.name, None, benchmark)


def described_version(name: str, digest: str) -> Described:
    """Return what is known of a version of a dataset, or else of any version of its name; it may be nothing."""
    for text in (f"{name}@{digest}", name):
        if is_name(text):
            with contextlib.suppress(OrlogError, ValueError):
                return described(text)
    return Described(name, None, None)


def _manifest(dataset: Given) -> Manifest | None:
    """Return a dataset's manifest, or that of the first part of a view, which all share; None for an unknown name."""
    if not isinstance(dataset, str) or as_folder(dataset) is not None or is_url(dataset):
        loaded = load_dataset(dataset)
        if loaded.operation is None:
            return loaded.manifest
        first, *others = (stored.manifest for stored in loaded.selection().versions)
        for other in others:
            if _anchors(other) != _anchors(first):
                raise NotFoundError(
                    f"{first.name}: this view also holds {other.name}, whose references are others, so "
                    "that its returns have no score; score each part by itself."
                )
        return first
    if not is_name(dataset):
        return None
    try:
        return load_dataset(dataset).manifest
    except NotFoundError:
        wanted = parse_name(dataset)
        recorded = recorded_build(wanted.name, wanted.version)
        return recorded if recorded is not None and recorded.digest.startswith(wanted.digest) else None


def _anchors(manifest: Manifest) -> tuple[object, ...] | None:
    known = references_of(manifest)
    return None if known is None else (known.random.mean, known.expert.mean, known.simulator)


def _measured_in(environment: EnvironmentRecord) -> References | None:
    """Return the reference returns of an environment that were measured here, else those that ship, or None."""
    for folder in dataset_folders():
        path = folder.parent / "references" / _file_name(environment)
        try:
            known = read_references(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise _unusable(path, f"cannot be read: {clause(error)}") from error
        if not _is_of(known, environment):
            raise _unusable(path, "it is of another environment")
        return known
    shipped = map(read_references, sorted((records_folder() / "references").glob("*.json")))
    return next((known for known in shipped if _is_of(known, environment)), None)


def _unusable(path: Path, reason: str) -> ManifestError:
    again = f"measure again, which comes before this file: {_MEASURE.format('NAME')}"
    return ManifestError(f"{path}: {reason}; {again}", file=str(path))


def store_references(environment: EnvironmentRecord, references: References) -> Path:
    """Keep reference returns in the home, in place of older ones; return the file."""
    path = datasets_folder().parent / "references" / _file_name(environment)
    with sole_writer(path):
        replace_json_file(path, msgspec.to_builtins(references))
    return path


def _is_of(references: References, environment: EnvironmentRecord) -> bool:
    protocol = references.protocol
    return (protocol.environment_id, protocol.environment_kwargs) == (environment.id, environment.kwargs)


def _file_name(environment: EnvironmentRecord) -> str:
    text = canonical_json([environment.id, environment.kwargs])
    return f"{hashlib.sha256(text).hexdigest()}.json"


# Normalized scores.


@dataclasses.dataclass(frozen=True, slots=True)
class SafeScore:
    """The score of a policy whose episodes also have costs.

    Attributes:
        score: Mean normalized score, 0..100; DSRL prints a hundredth of it.
        normalized_cost: Mean cost in units of the limit.
        cost_limit: The limit, which the evaluation chooses.
        safe: Whether the normalized cost is at most 1.
    """

    score: float
    normalized_cost: float
    cost_limit: float
    safe: bool


@overload
def normalized_score(
    dataset: Given, returns: ArrayLike, *, costs: None = None, cost_limit: None = None
) -> Float[np.ndarray, "*shape"]: ...


@overload
def normalized_score(dataset: Given, returns: ArrayLike, *, costs: ArrayLike, cost_limit: float) -> SafeScore: ...


def normalized_score(
    dataset: Given, returns: ArrayLike, *, costs: ArrayLike | None = None, cost_limit: float | None = None
) -> Float[np.ndarray, "*shape"] | SafeScore:
    """Return the normalized scores of returns, by the formula and references of the dataset.

    0 is the lower reference and 100 the upper one: a random policy and an expert in D4RL, random play
    and a human player in Atari, failure and success in AntMaze and OGBench (`orlog.references`
    says which, and in which simulator they were measured). Scores are never clipped.

    Args:
        dataset: An open dataset, or the name or path of one. The name of a benchmark's dataset is
            enough, such as `d4rl/hopper-medium-v2`.
        returns: Undiscounted return of each episode, in any shape; for OGBench 1 for each episode
            that reached its goal and 0 for the others.
        costs: Cost of each episode, as DSRL counts it.
        cost_limit: The cost that an episode may have on average; with `costs` only.

    Returns:
        The score of each return, in the same shape. With costs one `SafeScore`: mean score, cost in
        units of the limit, and whether the policy is safe.

    Raises:
        NotFoundError: no reference returns are known for the dataset.
        ValueError: there are no returns, one is not finite, or costs and limit do not fit.
        TypeError: the limit is not a number.
    """
    known = described(dataset)
    name, benchmark = known.name, known.benchmark
    values = _numbers("returns", returns, name)
    check_successes(known, values)
    with np.errstate(over="ignore"):
        is_share = benchmark is not None and benchmark.benchmark.key == "ogbench"
        scores = 100 * values if is_share else references_to(known).normalize(values)
    if not np.isfinite(scores).all():
        raise ValueError(f"{name}: returns are too large for a score: {np.abs(values).max():g}.")
    if costs is None and cost_limit is None:
        return scores
    if costs is None:
        raise ValueError(f"{name}: a cost limit was given without the costs of the episodes.")
    if benchmark is not None and benchmark.benchmark.key != "dsrl":
        raise ValueError(f"{name}: {benchmark.benchmark.title} has no costs; leave them out.")
    if cost_limit is None:
        limits = "" if benchmark is None else benchmark.facts["target_cost_thresholds"]
        usual = f", which OSRL sets to {', '.join(limits.split())} in turn" if limits else ""
        raise ValueError(f"{name}: costs were given without a cost limit; give cost_limit{usual}.")
    if isinstance(cost_limit, bool) or not isinstance(cost_limit, _NUMBERS):
        raise wrong_type("cost_limit", "a number", cost_limit)
    paid = _numbers("costs", costs, name)
    if paid.shape != values.shape:
        raise ValueError(
            f"{name}: {paid.size} costs were given for {values.size} returns; each episode has one of both."
        )
    if not 0 <= cost_limit < np.inf or paid.min() < 0:
        raise ValueError(f"{name}: costs and their limit must be finite numbers from 0 on.")
    limit = float(cost_limit)
    cost = normalized_cost(paid, limit)
    return SafeScore(float(scores.mean()), cost, limit, cost <= 1)


def check_successes(known: Described, returns: np.ndarray) -> None:
    """Refuse returns on a dataset whose benchmark counts successes, if they are no such counts."""
    benchmark = known.benchmark
    kind = "" if benchmark is None else benchmark.facts.get("family", benchmark.benchmark.key)
    most, what = _SUCCESSES.get(kind, (np.inf, ""))
    wrong = returns[(returns < 0) | (returns > most)]
    if what and wrong.size:
        raise ValueError(f"{known.name}: {what}, from 0 to {most}; found {wrong[0]:g}.")


_NUMBERS = (int, float, np.integer, np.floating)
# Returns of these count successes: another value would come from other rewards or a longer episode.
_SUCCESSES = {
    "antmaze": (1, "AntMaze counts whether an episode reached the goal"),
    "franka-kitchen": (4, "the score of a kitchen episode counts finished subtasks"),
    "ogbench": (1, "OGBench counts whether an episode reached the goal"),
}


def _numbers(what: str, values: ArrayLike, dataset: str) -> Float[np.ndarray, "*shape"]:
    """Return finite numbers, of which there is at least one, as an array of float64."""
    try:
        given = np.asanyarray(values)
    except (RuntimeError, TypeError, ValueError):  # RuntimeError: torch's
        given = np.empty(0, object)
    if given.dtype.kind not in "biuf":
        raise ValueError(f"{dataset}: {what} must be numbers, one for each episode.")
    if np.ma.is_masked(given):
        raise ValueError(f"{dataset}: some {what} are masked; leave these out.")
    array = np.asarray(given, np.float64)
    if array.size == 0:
        raise ValueError(f"{dataset}: there are no {what}; give those of at least one episode.")
    bad = np.flatnonzero(~np.isfinite(array.ravel()))
    if bad.size:
        first = array.ravel()[bad[0]]
        raise ValueError(f"{dataset}: {what} hold {first} at position {bad[0]}; a score needs finite numbers.")
    return array


# What algorithms score.


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
    """Return the name under which scores on a dataset were published: its benchmark's, else its own."""
    return _title_and_manifest(dataset)[0]


def _title_and_manifest(dataset: Given) -> tuple[str, Manifest | None]:
    """Return the name under which scores were published, and the manifest of a dataset that is here or ships."""
    dataset = whole_name(dataset) if isinstance(dataset, str) else dataset
    text = dataset if isinstance(dataset, str) else ""
    if text and find_benchmark_dataset(text) is None and (of_group := scores_on(text)):
        return of_group[0].dataset, None  # a group of datasets, or a task
    try:
        name, manifest, benchmark = described(dataset)
    except NotFoundError as error:
        key = text.partition("/")[0]
        if key not in BENCHMARKS:
            raise
        known = [*(entry.name for entry in benchmark_datasets(key)), *published_names(key)]
        raise unknown_name(text, known) from error
    return name if benchmark is None else benchmark.name, manifest


def _recorded(manifest: Manifest) -> list[PublishedScore]:
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


class Average(msgspec.Struct, frozen=True):
    """Averages over a group of datasets in a section."""

    group: str
    datasets: list[str]  # all of the group that have a score in the section
    means: dict[str, float]  # mean score by algorithm; only of algorithms that have a score on all of them


class Section(msgspec.Struct, frozen=True):
    """Scores of one protocol and one publication: these, and only these, may share a column and an average."""

    benchmark: str  # benchmark and its variant
    version: str  # version of D4RL's files; empty elsewhere
    metric: str  # what the score is, with its unit
    protocol: str  # which value of a run is reported, and how policies were evaluated
    publication: str  # whose code or paper
    algorithms: list[str]  # in the order of the source
    scores: dict[str, dict[str, PublishedScore]]  # by dataset and algorithm
    averages: list[Average]

    @property
    def rows(self) -> list[PublishedScore]:
        """All of its scores."""
        return [score for row in self.scores.values() for score in row.values()]


def benchmark_sections(key: str, *, algorithm: str | None = None) -> list[Section]:
    """Return all published scores of a benchmark, in sections that may be compared."""
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


def score_is_raw(metric: str) -> bool:
    """Return whether scores of a metric are raw returns, which have no average over datasets."""
    return metric.startswith("raw")


def _rank(first: PublishedScore) -> tuple[bool, bool, int]:
    order = ("last", "mean of last", "maximum", "other", "not stated")
    return first.implementation != "orlog", first.secondary, order.index(first.statistic)


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
    for version in sorted({name.rpartition("-")[2] for name in table if name.startswith("d4rl/")}):
        for title, pair in _D4RL_SETS.items():
            names = [f"d4rl/{environment}-{kind}-{version}" for environment, kind in itertools.product(*pair)]
            if set(names) <= set(table):
                sets[f"{title} {version}"] = names
    for name in table:
        if group := _group(name):
            sets[group].append(name)
    return {group: names for group, names in sets.items() if len(names) > 1}


def _group(name: str) -> str:
    """Return the group of a benchmark other than D4RL that a dataset belongs to, or nothing."""
    if task := re.fullmatch(r"ogbench/(.+-singletask)-task\d-v\d", name):
        return task[1]
    dataset = find_benchmark_dataset(name)
    if dataset is None or dataset.benchmark.key == "d4rl":
        return ""
    if dataset.benchmark.key == "dsrl":
        return dataset.facts["suite"]
    return f"OGBench, {dataset.facts['obs']}" if dataset.benchmark.key == "ogbench" else dataset.benchmark.title
