"""The environments of benchmarks: what their datasets were scored in, and what stands for it here.

`recorded/environments/d4rl.json` has one entry for each environment of D4RL: its datasets, bounds,
horizon and observations, the simulator that its references come from, and the environment that
policies are scored in now (the counterpart) with every difference that is known, or the reason why
there is none. Counterparts under `orlog/` are orlog's own (`datasets/worlds/d4rl.py`): they lay out
observations, pay rewards and end episodes as the benchmark does.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import gymnasium
import msgspec
import numpy as np

from orlog.manifests.documents import convert_json, parse_json
from orlog.manifests.manifest import EnvironmentRecord
from orlog.manifests.shipped import records_folder

BENCHMARKS = ("d4rl",)


class Actions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The action space of a benchmark's environment: a box with equal bounds, or choices.

    Attributes:
        size: How many numbers an action has.
        low: Their lower bound.
        high: Their upper bound.
        choices: How many actions there are to choose from; 0 for a box.
    """

    size: int = 0
    low: float = -1.0
    high: float = 1.0
    choices: int = 0

    @property
    def space(self) -> gymnasium.Space[Any]:
        """The space of Gymnasium."""
        if self.choices:
            return gymnasium.spaces.Discrete(self.choices)
        return gymnasium.spaces.Box(self.low, self.high, (self.size,), np.float32)


class Counterpart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The environment that policies are scored in.

    Attributes:
        id: Id of Gymnasium.
        adapter: Which of orlog's own environments registers the id; empty for others' ids.
        arguments: What that environment is made with.
    """

    id: str
    adapter: str = ""
    arguments: dict[str, Any] = {}


class BenchmarkEnvironment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One environment of a benchmark.

    Attributes:
        name: Its name in the catalogue.
        datasets: Its datasets, such as `d4rl/hopper-medium-v2`.
        horizon: Steps after which the benchmark ends an episode.
        observation_shape: Shape of an observation.
        observation_names: What each number of an observation is; empty where that is not known.
        actions: The action space.
        simulator: Where the benchmark's references and published scores were measured.
        counterpart: What policies are scored in here; None if there is nothing.
        counterpart_simulator: What that is, in words.
        differences: What differs between the two, a sentence each, as notes beside a score.
        reason: Why there is no counterpart: "it ..".
        sources: Repository, commit and file of these facts.
    """

    name: str
    datasets: list[str]
    horizon: int
    observation_shape: list[int]
    observation_names: list[str]
    actions: Actions
    simulator: str
    counterpart: Counterpart | None = None
    counterpart_simulator: str = ""
    differences: list[str] = []
    reason: str = ""
    sources: list[str]

    def fits(self, environment: EnvironmentRecord) -> bool:
        """Whether returns of an environment may be scored by the benchmark's references.

        It is the counterpart, or another version of Gymnasium's, whose differences are noted beside a
        score.
        """
        if self.counterpart is None:
            return True  # nothing is known to compare it with
        arguments = self.counterpart.arguments
        here, there = environment.id, self.counterpart.id
        if not self.counterpart.adapter:
            here, there = _without_version(here), _without_version(there)
        return here == there and {**arguments, **environment.kwargs} == arguments

    @property
    def record(self) -> EnvironmentRecord | None:
        """What a manifest says about the counterpart."""
        if self.counterpart is None:
            return None
        return EnvironmentRecord(id=self.counterpart.id, kwargs={}, max_episode_steps=self.horizon, versions={})


@functools.cache
def benchmark_environments() -> tuple[BenchmarkEnvironment, ...]:
    """Return every environment of the catalogue."""
    environments = []
    for benchmark in BENCHMARKS:
        body = parse_json((records_folder() / "environments" / f"{benchmark}.json").read_bytes())
        for name, entry in body["environments"].items():
            names = body["layouts"].get(entry.pop("layout", ""), [])
            entry["datasets"] = [f"{benchmark}/{dataset}" for dataset in entry["datasets"]]
            entry = {**entry, "name": name, "observation_names": names}
            environments.append(convert_json(entry, BenchmarkEnvironment))
    return tuple(environments)


def benchmark_environment(dataset: str) -> BenchmarkEnvironment | None:
    """Return the environment of a benchmark's dataset, such as `d4rl/hopper-medium-v2`, or None."""
    return _by_dataset().get(dataset)


def counterpart(environment_id: str) -> BenchmarkEnvironment | None:
    """Return the environment whose counterpart has this id and is orlog's own, or None."""
    return _own().get(environment_id)


def _without_version(environment_id: str) -> str:
    return re.sub(r"-v\d+$", "", environment_id)


@functools.cache
def _by_dataset() -> dict[str, BenchmarkEnvironment]:
    return {name: environment for environment in benchmark_environments() for name in environment.datasets}


@functools.cache
def _own() -> dict[str, BenchmarkEnvironment]:
    return {
        environment.counterpart.id: environment
        for environment in benchmark_environments()
        if environment.counterpart is not None and environment.counterpart.adapter
    }
