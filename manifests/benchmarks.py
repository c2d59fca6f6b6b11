"""Datasets of known benchmarks, by name: `d4rl/hopper-medium-v2`, `atari/breakout`.

What is known of each is one row of a table (`manifests/tables.py`): returns that anchor a score,
horizon, sizes, addresses, and where all that was published. Names are those that each benchmark
uses, after its key and a slash; upper and lower case do not matter.

key      names
d4rl     d4rl/hopper-medium-v2
atari    atari/ms_pacman, also atari/MsPacman
dsrl     dsrl/OfflineCarButton1Gymnasium-v0, also dsrl/CarButton1
neorl2   neorl2/Pipeline
ogbench  ogbench/cube-double-play-v0
ogmarl   ogmarl/COLLECTION/ENVIRONMENT/SCENARIO/DATASET; the last is missing where the source has none
minari   minari/D4RL/pen/human-v2

A name without a version may end in `-v0`, as it does where the dataset is downloaded.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping

from orlog.errors import NotFoundError
from orlog.manifests.names import either, is_name, nearest, versioned
from orlog.manifests.shipped import SHIPPED, shipped_names
from orlog.manifests.tables import Row, read_table


@dataclasses.dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark: its name and the columns of its table.

    Attributes:
        key: First part of its datasets' names.
        title: What people call it.
        names: Columns that make up a dataset's name.
        alias: Column with another name of a dataset, or nothing.
        missing: Why a dataset may have no references.
        lowest: Column with the return that has score 0, or nothing if there are no references.
        highest: Column with the return that has score 100.
        lowest_policy: Whose return has score 0.
        highest_policy: Whose return has score 100.
        simulator: What its references were measured in.
    """

    key: str
    title: str
    names: tuple[str, ...]
    alias: str = ""
    missing: str = "publishes no reference returns for this dataset"
    _: dataclasses.KW_ONLY
    lowest: str = ""
    highest: str = ""
    lowest_policy: str = ""
    highest_policy: str = ""
    simulator: str = ""


_OF_D4RL = {"lowest": "ref_min_return", "highest": "ref_max_return"}
_OGMARL = ("collection", "env", "scenario", "dataset")
BENCHMARKS = {
    benchmark.key: benchmark
    for benchmark in (
        Benchmark(
            "d4rl",
            "D4RL",
            ("dataset_id",),
            **_OF_D4RL,
            lowest_policy="random policy, as published by D4RL",
            highest_policy="expert policy, as published by D4RL",
            simulator="mujoco-py and gym of 2020",
        ),
        Benchmark(
            "atari",
            "Atari",
            ("game",),
            "gym_name",
            lowest="random_score",
            highest="human_score",
            lowest_policy="random play",
            highest_policy="a human player",
            simulator="Arcade Learning Environment, version not published",
        ),
        Benchmark(
            "dsrl",
            "DSRL",
            ("dataset_id",),
            "short_name",
            lowest="min_episode_reward",
            highest="max_episode_reward",
            lowest_policy="the episode of the dataset with the lowest return",
            highest_policy="the episode of the dataset with the highest return",
            simulator="the simulator that recorded the dataset, version not published",
        ),
        Benchmark(
            "neorl2",
            "NeoRL-2",
            ("task",),
            **_OF_D4RL,
            lowest_policy="lower reference, as published by NeoRL-2",
            highest_policy="upper reference, as published by NeoRL-2",
            simulator="NeoRL-2's own environments",
        ),
        Benchmark(
            "ogbench",
            "OGBench",
            ("dataset_id",),
            missing="has no reference returns, and reports success rates in percent",
        ),
        Benchmark("ogmarl", "OG-MARL", _OGMARL, missing="has no reference returns, and reports raw team returns"),
        Benchmark(
            "minari",
            "Minari",
            ("dataset_id",),
            missing="stores reference scores with some of its datasets, but published none for this one",
        ),
    )
}


@dataclasses.dataclass(frozen=True, slots=True)
class BenchmarkDataset:
    """A dataset of a benchmark, with all that its table says.

    Attributes:
        name: Its name here: the benchmark's key, a slash, and the benchmark's own name.
        benchmark: The benchmark.
        facts: Column to text, as written in the table; a text is empty if it is not known.
    """

    name: str
    benchmark: Benchmark
    facts: Row

    @property
    def id(self) -> str:
        """The benchmark's own name for it."""
        return self.name.partition("/")[2]

    @property
    def source(self) -> str:
        """Where its facts were published: repository, commit and file."""
        return self.facts["source"]

    def number(self, column: str) -> float | None:
        """Return the number in a column; None if it is not known."""
        text = self.facts[column]
        return float(text) if text else None

    @property
    def anchors(self) -> tuple[float, float] | None:
        """The returns with score 0 and score 100; None if they are not known."""
        if not self.benchmark.lowest:
            return None
        low, high = self.number(self.benchmark.lowest), self.number(self.benchmark.highest)
        return None if low is None or high is None else (low, high)


@functools.cache
def benchmark_datasets(key: str) -> tuple[BenchmarkDataset, ...]:
    """Return all datasets of a benchmark, in the order of its table.

    Raises NotFoundError if there is no such benchmark.
    """
    if key not in BENCHMARKS:
        raise NotFoundError(f"no benchmark is named {key!r}; there are {', '.join(BENCHMARKS)}.")
    benchmark = BENCHMARKS[key]
    return tuple(
        BenchmarkDataset(
            name="/".join((key, *filter(None, (row[column] for column in benchmark.names)))),
            benchmark=benchmark,
            facts=row,
        )
        for row in read_table(key)
    )


@functools.cache
def _by_name() -> Mapping[str, BenchmarkDataset]:
    by_name = {}
    for key, benchmark in BENCHMARKS.items():
        for dataset in benchmark_datasets(key):
            if benchmark.alias:
                by_name[f"{key}/{dataset.facts[benchmark.alias]}".casefold()] = dataset
            by_name[versioned(dataset.name).casefold()] = dataset
            by_name[dataset.name.casefold()] = dataset
    return by_name


def plain_name(name: str) -> str:
    """Return a name as it is looked up: without a pinned version or digest, in lower case."""
    return name.partition("@")[0].casefold()


def find_benchmark_dataset(name: str) -> BenchmarkDataset | None:
    """Return the dataset of a benchmark by name, or None; a pinned version does not matter."""
    return _by_name().get(plain_name(name))


def as_listed(text: str) -> str:
    """Return the name that orlog lists a benchmark's dataset under, or the text as it is.

    A benchmark may use upper case, as in `minari/D4RL/door/human-v2`, and have no versions, as in
    `neorl2/Pipeline`; orlog lists `minari/d4rl/door/human-v2` and `neorl2/pipeline-v0`.
    """
    if is_name(text) or text.partition("/")[0].lower() not in SHIPPED:
        return text
    name, at, pin = text.partition("@")
    known = find_benchmark_dataset(name)
    listed = versioned((name if known is None else known.name).lower())
    return f"{listed}{at}{pin}" if listed in shipped_names() else text


def benchmark_dataset(name: str) -> BenchmarkDataset:
    """Return the dataset of a benchmark by name.

    Raises:
        NotFoundError: no benchmark has it; the message names similar ones.
    """
    dataset = find_benchmark_dataset(name)
    if dataset is not None:
        return dataset
    raise unknown_name(name, [dataset.name for dataset in _by_name().values()])


def unknown_name(name: str, known: Iterable[str]) -> NotFoundError:
    """Return the error about a name that no benchmark has; it suggests similar known names."""
    plain = plain_name(name)
    names = {dataset.casefold(): dataset for dataset in known}
    similar = [names[key] for key in nearest(plain, names)]
    hint = f" Did you mean {either(similar)}?" if similar else ""
    return NotFoundError(
        f"{name}: no dataset of this name is here or in a known benchmark ({', '.join(BENCHMARKS)}).{hint}"
    )
