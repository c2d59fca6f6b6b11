"""Published scores of algorithms on the datasets of benchmarks, with seeds, protocol and source.

They come from the tables that ship (`manifests/tables.py`). Scores of one name are comparable only
within one protocol: last evaluation, mean of the last ones and maximum are different numbers, and so
are the scores of one task with other data, rewards or action chunks. So a record says its protocol,
and nothing here averages over two of them.
"""

from __future__ import annotations

import functools
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import msgspec

from orlog.errors import NotFoundError
from orlog.manifests.benchmarks import BENCHMARKS, find_benchmark_dataset, plain_name
from orlog.manifests.names import squeezed
from orlog.manifests.tables import Row, read_table

Statistic: TypeAlias = Literal["last", "mean of last", "maximum", "other", "not stated"]


class PublishedScore(msgspec.Struct, frozen=True, kw_only=True):
    """One published score.

    Attributes:
        dataset: Name of the dataset, or of a group of datasets such as `d4rl/antmaze`.
        benchmark: Benchmark, and which part or variant of it, in the words of the source.
        algorithm: Name of the algorithm, in the words of the source.
        implementation: Whose code or paper.
        metric: What the score is, with its unit.
        score: The score; a mean over seeds.
        spread: Its spread, or None if that was not published.
        spread_kind: What the spread is, such as "std over seeds".
        seeds: Number of seeds, or None if that was not published.
        protocol: Which value of a run is reported, and how policies were evaluated.
        source: Where it was published: repository, commit and file.
        source_kind: Who says so: "primary" are the authors' or implementers' own words; "secondary
            transcription" is another's copy, good for plausibility only.
        year: Year of the source, or None.
        caveats: What to know before comparing it.
        per_seed: The score of each seed if known, in the order of the source; None where a seed's
            value is missing.
    """

    dataset: str
    benchmark: str
    algorithm: str
    implementation: str
    metric: str
    score: float
    spread: float | None = None
    spread_kind: str = ""
    seeds: int | None = None
    protocol: str = ""
    source: str
    source_kind: str = "primary"
    year: int | None = None
    caveats: list[str] = []
    per_seed: list[float | None] = []

    @property
    def secondary(self) -> bool:
        """Whether it is someone else's copy of a published number."""
        return self.source_kind.startswith("secondary")

    @property
    def statistic(self) -> Statistic:
        """Which value of a run is reported, as far as the protocol says it in a few words."""
        text = self.protocol
        if not text or text.startswith("as collected"):
            return "not stated"
        if text.startswith("maximum"):
            return "maximum"
        if re.search(r"mean of (the )?(last|final)", text):
            return "mean of last"
        return "last" if text.startswith(("last", "final")) else "other"


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """Two sources that say different things.

    Attributes:
        item: About what.
        value_a: What the first says.
        source_a: The first.
        value_b: What the second says.
        source_b: The second.
        note: What is known about the reason.
    """

    item: str
    value_a: str
    source_a: str
    value_b: str
    source_b: str
    note: str


def published_scores(key: str) -> tuple[PublishedScore, ...]:
    """Return all published scores of a benchmark, such as "d4rl".

    Raises NotFoundError if there is no such benchmark.
    """
    if key not in BENCHMARKS:
        raise NotFoundError(f"no benchmark is named {key!r}; there are {', '.join(BENCHMARKS)}.")
    return _scores_of(key)


@functools.cache
def _scores_of(key: str) -> tuple[PublishedScore, ...]:
    scores = list(_from_published_table(key))
    if key == "ogbench":
        scores += _from_single_seeds()
    return (*scores, *_from_fql_paper(key))


@functools.cache
def _by_name(key: str) -> Mapping[str, tuple[PublishedScore, ...]]:
    by_name = defaultdict(list)
    for score in _scores_of(key):
        by_name[plain_name(score.dataset)].append(score)
    return {name: tuple(scores) for name, scores in by_name.items()}


def published_names(key: str) -> list[str]:
    """Return the names of all datasets and groups of a benchmark that have published scores."""
    return [scores[0].dataset for scores in _by_name(key).values()]


def scores_on(name: str) -> tuple[PublishedScore, ...]:
    """Return the published scores on a dataset or a group of datasets; none if there are none."""
    dataset = find_benchmark_dataset(name)
    plain = plain_name(name if dataset is None else dataset.name)
    key = plain.partition("/")[0]
    return _by_name(key).get(plain, ()) if key in BENCHMARKS else ()


def same_algorithm(name: str, other: str) -> bool:
    """Return whether two spellings name the same algorithm: `td3_bc` and `TD3+BC` do."""
    return squeezed(name) == squeezed(other)


# Published scores and the values of single seeds behind some of them.

_KEYS = {
    "Atari (d4rl-atari 1%)": "atari",
    "D4RL": "d4rl",
    "D4RL (offline-to-online)": "d4rl",
    "DSRL": "dsrl",
    "NeoRL-2": "neorl2",
}
# How the two tables call the same protocol.
_PER_SEED_PROTOCOLS = {
    "last of the epoch evaluations": "last",
    "last evaluation; antmaze: value at evaluation index 20 if present": "last",
    "final policy, 1000 evaluation episodes; best grid point by online return": "last",
    "maximum over evaluations": "best",
    "mean of the last 10 evaluations per seed (computed here)": "mean_last10",
}

_ROUNDING = 0.0501  # of scores that are published with one digit


def _from_published_table(key: str) -> Iterator[PublishedScore]:
    per_seed = _per_seed_values()
    for row in read_table("published_scores"):
        if _KEYS[row["benchmark"]] == key:
            protocol = _PER_SEED_PROTOCOLS.get(row["protocol"], "")
            values = per_seed.get(_per_seed_key(row, protocol), ())
            caveats = [row["flag"]] if row["flag"] else []
            mean = statistics.fmean(values) if values else float(row["score"])
            if abs(mean - float(row["score"])) > _ROUNDING:
                caveats.append(f"the mean of its logged seeds is {mean:z.2f}")
            name, of_group = _name(key, row["dataset"])
            yield PublishedScore(
                dataset=name,
                benchmark=row["benchmark"],
                algorithm=row["algorithm"],
                implementation=row["implementation"],
                metric=row["metric"],
                score=float(row["score"]),
                spread=float(row["std"]) if row["std"] else None,
                spread_kind=row["std_kind"],
                seeds=int(row["n_seeds"]) if row["n_seeds"] else None,
                protocol=row["protocol"],
                source=row["source"],
                source_kind=row["source_kind"],
                year=int(row["year"]) if row["year"] else None,
                caveats=caveats + of_group,
                per_seed=list(values),
            )


@functools.cache
def _per_seed_values() -> Mapping[tuple[str, ...], tuple[float, ...]]:
    values_of = defaultdict(list)
    for row in read_table("per_seed_scores"):
        protocol = row["protocol"].partition(",")[0]  # NeoRL-2's also says which settings
        values_of[_per_seed_key(row, protocol)].append(float(row["score"]))
    return {name: tuple(values) for name, values in values_of.items()}


def _per_seed_key(row: Row, protocol: str) -> tuple[str, ...]:
    # "ReBRAC paper re-evaluation of IQL" is "ReBRAC paper re-evaluation" in the other table.
    implementation = row["implementation"].removesuffix(f" of {row['algorithm']}")
    words = (row[column] for column in ("benchmark", "dataset", "algorithm", "metric"))
    return (*words, implementation, protocol)


def _name(key: str, written: str) -> tuple[str, list[str]]:
    """Return the name of a dataset or a group, and what to say about a group."""
    if written.startswith("AVERAGE "):
        return f"{key}/{written.removeprefix('AVERAGE ')}", [f"mean over datasets: {written}"]
    dataset = find_benchmark_dataset(f"{key}/{written}")
    return (f"{key}/{written}" if dataset is None else dataset.name), []


# Tables of papers and of single seeds of OGBench's single tasks.

_SUCCESS = "success_rate_percent"
_FQL = "FQL paper (Park and others 2025), Table 2"
# Tables of single seeds: name, column of the task, protocol of each column of scores, and the rest of a record.
_SEED_TABLES: tuple[tuple[str, str, Mapping[str, str], Mapping[str, Any]], ...] = (
    (
        "ogbench_qam_per_seed",
        "task",
        {
            "success_at_point_20_of_30": "after 1 M offline steps (evaluation 20 of 30)",
            "success_at_point_30_of_30": "after 0.5 M online steps (evaluation 30 of 30)",
        },
        {
            "benchmark": "OGBench (single-task, reward based)",
            "implementation": "QAM repository",
            "source": "ColinQiyangLi/qam@f93efd2:exp_data/qam-exp-data.pkl",
            "caveats": [
                (
                    "10 critics, rho 0.5 (0 on humanoid), action chunks of 5 on manipulation, sparse rewards "
                    "on scene and puzzle, 100 M steps of data on cube-quadruple and puzzle-4x4; not comparable "
                    "with the FQL paper's table"
                )
            ],
        },
    ),
    (
        "ogbench_dqc_per_seed",
        "env",
        {
            "250K": "after 250 k steps",
            "500K": "after 500 k steps",
            "750K": "after 750 k steps",
            "1M": "after 1 M steps",
        },
        {
            "benchmark": "OGBench (long-horizon goal tasks)",
            "implementation": "DQC repository",
            "source": "ColinQiyangLi/dqc@df89825:exp_data/dqc-exp-data.pkl",
            "caveats": [],
        },
    ),
)


def _from_single_seeds() -> Iterator[PublishedScore]:
    for table, task_column, protocols, record in _SEED_TABLES:
        for column, protocol in protocols.items():
            by_method: dict[tuple[str, str], list[float | None]] = defaultdict(list)
            for row in read_table(table):
                value = 100 * float(row[column]) if row[column] else None
                by_method[row[task_column], row["method"]].append(value)
            for (task, method), values in by_method.items():
                known = [value for value in values if value is not None]
                missing = len(values) - len(known)
                note = f"the value of {missing} of {len(values)} seeds is missing"
                if known:
                    yield PublishedScore(
                        **{**record, "caveats": record["caveats"] + [note] * bool(missing)},
                        dataset=f"ogbench/{task}",
                        algorithm=method,
                        metric=_SUCCESS,
                        score=statistics.fmean(known),
                        spread=statistics.stdev(known) if len(known) > 1 else None,
                        spread_kind="sample std over seeds",
                        seeds=len(known),
                        protocol=protocol,
                        source_kind="computed from per-seed values",
                        per_seed=values,
                    )


def _from_fql_paper(key: str) -> Iterator[PublishedScore]:
    for row in read_table("ogbench_fql_paper"):
        of_d4rl = row["task_group"].startswith("d4rl-")
        if key == ("d4rl" if of_d4rl else "ogbench"):
            for algorithm in ("IQL", "ReBRAC", "IDQL", "IFQL", "FQL"):
                yield PublishedScore(
                    dataset=f"{key}/{row['task_group'].removeprefix('d4rl-')}",
                    benchmark="D4RL" if of_d4rl else "OGBench (single-task, reward based)",
                    algorithm=algorithm,
                    implementation="FQL paper",
                    metric="d4rl_normalized_score_x100" if of_d4rl else _SUCCESS,
                    score=float(row[algorithm]),
                    seeds=8,
                    protocol="as in the FQL paper",
                    source=_FQL,
                    year=2025,
                    caveats=[
                        f"mean over {row['tasks']} tasks",
                        "not comparable with the table of the QAM repository",
                    ],
                )


# Places where two sources differ.

# A pattern of the item; the datasets it is about, where \1 is the pattern's group; the algorithm, if
# it is about one only.
_ABOUT = tuple(
    (re.compile(pattern), names, algorithm)
    for pattern, names, algorithm in (
        (r"D4RL (\S+-v\d) ", (r"d4rl/\1",), ""),
        (r"Atari (\S+) random score", (r"atari/\1",), ""),
        (r"DSRL (\S+) max episode cost", (r"dsrl/\1",), ""),
        (r"Minari (\S+) size", (r"minari/\1",), ""),
        (r"CORL AWAC (\S+) ", (r"d4rl/\1",), "AWAC"),
        (r"IQL paper (\S+)", (r"d4rl/\1",), "IQL"),
        (r"Decision Transformer Atari target", ("atari/qbert", "atari/seaquest"), "DT"),
        (r"d3rlpy-benchmarks baseline_table.csv (normalized) std", ("d4rl/*-v0",), "CQL"),
        (r"NeoRL-2 (\S+) combo score", (r"neorl2/\1",), "COMBO"),
        (r"ReBRAC (\S+-v2) \(", (r"d4rl/\1",), "ReBRAC"),
        (r"ReBRAC (\S+-(?:medium|expert)) \(", (r"d4rl/\1-v2",), "ReBRAC"),
        (r"d3rlpy ReBRAC table", ("d4rl/*-medium-expert-v2", "d4rl/*-medium-replay-v2"), "ReBRAC"),
        (r"IQL observation normalisation", ("d4rl/*",), "IQL"),
        (r"TD3\+BC gradient steps", ("d4rl/*",), "TD3+BC"),
        (r"OG-MARL docs", ("ogmarl/*",), ""),
    )
)


def disagreements_about(name: str, *, algorithm: str = "") -> list[Disagreement]:
    """Return where sources differ about a dataset, or about an algorithm on it.

    What is about an algorithm in general is there for each dataset on which it has a score.
    """
    dataset = find_benchmark_dataset(name)
    plain = plain_name(name if dataset is None else dataset.name)
    known = {squeezed(score.algorithm) for score in scores_on(name)}
    disagreements = []
    for row in read_table("disagreements"):
        names, about = _subject(row["item"])
        general = any("*" in pattern for pattern in names)
        fits = any(fnmatchcase(plain, pattern) for pattern in names)
        if general and about:
            fits = fits and squeezed(about) in known
        if fits and (not algorithm or not about or same_algorithm(about, algorithm)):
            disagreements.append(Disagreement(**row))
    return disagreements


@functools.cache
def _subject(item: str) -> tuple[tuple[str, ...], str]:
    """Return the patterns of names that a disagreement is about, and its algorithm or nothing."""
    for pattern, names, algorithm in _ABOUT:
        match = pattern.match(item)
        if match is not None:
            made = (match.expand(name) for name in names)
            return tuple(plain_name(_resolved(name)) for name in made), algorithm
    return (), ""


def _resolved(name: str) -> str:
    dataset = find_benchmark_dataset(name)
    return name if dataset is None else dataset.name
