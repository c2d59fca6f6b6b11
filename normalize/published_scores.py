"""Published scores of algorithms on the datasets of benchmarks, with seeds, protocol and source.

They come from a table that ships (`manifests/tables.py`). Scores of one name are comparable only
within one protocol: last evaluation, mean of the last ones and maximum are different numbers, and so
are the scores of one task with other data, rewards or action chunks. So a record says its protocol,
and nothing here averages over two of them.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

import msgspec

from orlog.errors import NotFoundError
from orlog.manifests.benchmarks import BENCHMARKS, find_benchmark_dataset, plain_name
from orlog.manifests.names import squeezed
from orlog.manifests.tables import Row, read_table

Statistic: TypeAlias = Literal["last", "mean of last", "maximum", "other", "not stated"]


class PublishedScore(msgspec.Struct, frozen=True, kw_only=True):
    """One published score."""

    dataset: str  # name of the dataset, or of a group of datasets such as `d4rl/antmaze`
    benchmark: str  # benchmark, and which part or variant of it, in the words of the source
    algorithm: str  # name of the algorithm, in the words of the source
    implementation: str  # whose code or paper
    metric: str  # what the score is, with its unit
    score: float  # the score; a mean over seeds
    spread: float | None = None  # its spread, or None if that was not published
    spread_kind: str = ""  # what the spread is, such as "std over seeds"
    seeds: int | None = None  # number of seeds, or None if that was not published
    protocol: str = ""  # which value of a run is reported, and how policies were evaluated
    source: str  # where it was published: repository, commit and file
    # Who says so: "primary" are the authors' or implementers' own words; "secondary transcription" is another's
    # copy, good for plausibility only.
    source_kind: str = "primary"
    year: int | None = None  # year of the source, or None
    caveats: list[str] = []  # what to know before comparing it
    # The score of each seed if known, in the order of the source; None where a seed's value is missing.
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
    """Two sources that say different things."""

    item: str  # about what
    value_a: str  # what the first says
    source_a: str  # the first
    value_b: str  # what the second says
    source_b: str  # the second
    note: str  # what is known about the reason


def published_scores(key: str) -> tuple[PublishedScore, ...]:
    """Return all published scores of a benchmark, such as "d4rl"."""
    if key not in BENCHMARKS:
        raise NotFoundError(f"no benchmark is named {key!r}; there are {', '.join(BENCHMARKS)}.")
    return tuple(score for score in _all_scores() if score.dataset.startswith(f"{key}/"))


@functools.cache
def _all_scores() -> tuple[PublishedScore, ...]:
    return tuple(map(_from_row, read_table("published_scores")))


def _from_row(row: Row) -> PublishedScore:
    known: dict[str, object] = {name: text for name, text in row.items() if text}
    known["caveats"] = row["caveats"].split(" | ") if row["caveats"] else []
    known["per_seed"] = [None if text == "-" else float(text) for text in row["per_seed"].split()]
    return msgspec.convert(known, PublishedScore, strict=False)  # numbers are text there


@functools.cache
def _by_name() -> Mapping[str, tuple[PublishedScore, ...]]:
    by_name = defaultdict(list)
    for score in _all_scores():
        by_name[plain_name(score.dataset)].append(score)
    return {name: tuple(scores) for name, scores in by_name.items()}


def published_names(key: str) -> list[str]:
    """Return the names of all datasets and groups of a benchmark that have published scores."""
    return list(dict.fromkeys(score.dataset for score in published_scores(key)))


def scores_on(name: str) -> tuple[PublishedScore, ...]:
    """Return the published scores on a dataset or a group of datasets; none if there are none."""
    return _by_name().get(_plain_benchmark_name(name), ())


def _plain_benchmark_name(name: str) -> str:
    dataset = find_benchmark_dataset(name)
    return plain_name(name if dataset is None else dataset.name)


def same_algorithm(name: str, other: str) -> bool:
    """Return whether two spellings name the same algorithm: `td3_bc` and `TD3+BC` do."""
    return squeezed(name) == squeezed(other)


def disagreements_about(name: str, *, algorithm: str = "") -> list[Disagreement]:
    """Return where sources differ about a dataset, or about an algorithm on it.

    What is about an algorithm in general is there for each dataset on which it has a score.
    """
    plain = _plain_benchmark_name(name)
    known = {squeezed(score.algorithm) for score in scores_on(name)}
    disagreements = []
    for row in read_table("disagreements"):
        about = row["algorithm"]
        fits = any(fnmatchcase(plain, pattern) for pattern in row["datasets"].split())
        is_general = bool(about) and "*" in row["datasets"]
        if (
            fits
            and (not is_general or squeezed(about) in known)
            and (not algorithm or not about or same_algorithm(about, algorithm))
        ):
            fields = {field: row[field] for field in Disagreement.__struct_fields__}
            disagreements.append(Disagreement(**fields))
    return disagreements
