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
import numpy as np

from orlog.errors import NotFoundError
from orlog.manifests.benchmarks import BENCHMARKS, find_benchmark_dataset, plain_name
from orlog.manifests.names import squeezed
from orlog.manifests.tables import Row, read_table
from orlog.normalize.statistics import Interval, mean_interval, share_interval

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
    step: int | None = None  # gradient steps at that checkpoint, or None where it is of none
    online_steps: int = 0  # how many of them were taken while acting in the environment
    episodes: int | None = None  # episodes of each seed, or None if that is not known
    data: str = ""  # name of the dataset that policies learned from, where `dataset` is a task's
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
    def checkpoint(self) -> str:
        """Its checkpoint in words, such as `250 k steps`; empty where it is of none."""
        return "" if self.step is None else self.protocol.removeprefix("after ").partition(" (")[0]

    @property
    def interval(self) -> Interval | None:
        """Interval of the mean over seeds at 95 %; None without their scores, or without spread."""
        seeds = np.array([score for score in self.per_seed if score is not None])
        if self.episodes is None or len(seeds) < 2:
            return mean_interval(seeds)
        low, high = share_interval((seeds / 100).tolist(), self.episodes * len(seeds))
        return 100 * low, 100 * high

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
    by_name, of_data = defaultdict(list), defaultdict[str, dict[str, list[PublishedScore]]](lambda: defaultdict(list))
    for score in _all_scores():
        by_name[plain_name(score.dataset)].append(score)
        if score.data:
            of_data[plain_name(score.data)][score.implementation].append(score)
    for name, sources in of_data.items():  # a dataset also stands for the one task that a source measures on it
        own = [scores for scores in sources.values() if len({score.dataset for score in scores}) == 1]
        by_name[name] += [score for scores in own for score in scores if score not in by_name[name]]
    return {name: tuple(scores) for name, scores in by_name.items()}


def tasks_on(name: str) -> list[str]:
    """Return the tasks that policies which learned from a dataset have published scores on."""
    plain = _plain_benchmark_name(name)
    return list(dict.fromkeys(score.dataset for score in _all_scores() if plain_name(score.data) == plain))


def checkpoint_scores(publication: str) -> tuple[PublishedScore, ...]:
    """Return the scores at checkpoints of a publication, such as "dqc"."""
    known: dict[str, list[PublishedScore]] = {}
    for score in _all_scores():
        if score.step is not None:
            known.setdefault(score.implementation.partition(" ")[0].casefold(), []).append(score)
    if publication.casefold() not in known:
        raise NotFoundError(f"no scores at checkpoints are known of {publication!r}; there are {', '.join(known)}.")
    return tuple(known[publication.casefold()])


def whole_name(name: str) -> str:
    """Return the name that a short one stands for: `ogbench/cube-quadruple-play-100m-v0` for `cube-quadruple-play-100m`.

    The tasks of scores at checkpoints, and the data that were learned from, have the names that their authors write,
    without a benchmark, and without `-v0` if one likes; other names are returned as they are.
    """
    plain = plain_name(name)
    known = {dataset for score in _all_scores() if score.data for dataset in (score.dataset, score.data)}
    fitting = [dataset for dataset in known if dataset.partition("/")[2].casefold() in (plain, f"{plain}-v0")]
    return fitting[0] + name[len(plain) :] if len(fitting) == 1 else name


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
