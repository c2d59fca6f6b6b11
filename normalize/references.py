"""Reference returns: the returns of a random and an expert policy, which anchor a score.

    normalized score = 100 (return - random) / (expert - random)          0 = random, 100 = expert

A score may lie below 0 or above 100; it is never clipped. References are measured here, with the
return of each episode, or published: then only means, source and protocol are known. Benchmarks
anchor their scores in the same way (`manifests/benchmarks.py`): Atari by a human player, DSRL by the
extremes of a dataset, AntMaze by failure and success.
"""

from __future__ import annotations

import fnmatch
import functools
import math
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from jaxtyping import Float

from orlog.base.files import storage_errors
from orlog.manifests.benchmarks import BenchmarkDataset
from orlog.manifests.counterparts import benchmark_environment
from orlog.manifests.documents import convert_json, parse_json, read_small_file, write_json
from orlog.manifests.names import is_name
from orlog.manifests.shipped import recorded_folder, records_folder

MEASURED = "measured with orlog"  # the source of references whose policies were both run here
# The largest reward of a step, by environment.
LARGEST_REWARDS = {
    "CartPole-v?": 1.0,
    "PointMaze_*": 1.0,
    "AntMaze_*": 1.0,
    "orlog/Reach-v0": 1.0,
    "orlog/metaworld-*": 10.0,
}
# The largest return of an episode, by environment.
LARGEST_RETURNS = {
    **dict.fromkeys(("Acrobot-v?", "CliffWalking-v?", "MountainCar-v?", "Pendulum-v?"), 0.0),
    **dict.fromkeys(("Fetch*", "HandManipulate*", "HandReach*", "orlog/FetchFrames-v0"), 0.0),
    "orlog/spread-v0": 0.0,
    **dict.fromkeys(("FrozenLake*", "orlog/FrozenLake-v0", "orlog/ICUSepsis-v0"), 1.0),
    **dict.fromkeys(("orlog/Coin-v0", "orlog/GoTo-v0", "orlog/Shop-v0", "orlog/ogbench-*"), 1.0),
    "MountainCarContinuous-v?": 100.0,
    **dict.fromkeys(("Taxi-v?", "orlog/Taxi-v0"), 20.0),
}
# How many standard errors an expert must be above the random policy: with 4, the difference may still be wrong by half
# of it (95 %).
CLEAR = 4.0


class Protocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How returns were measured; repeating it on the same machine gives the same numbers.

    Attributes:
        environment_id: Environment that was run.
        environment_kwargs: Arguments of `gymnasium.make`.
        versions: Version of each package that decides what the environment does.
        max_episode_steps: Steps after which the environment truncates an episode.
        episodes: Episodes of each policy.
        first_seed: Episode i resets with seed `first_seed` + i.
        environments: Environments that step side by side: the batch size of a policy's network.
    """

    environment_id: str
    environment_kwargs: dict[str, object]
    versions: dict[str, str]
    max_episode_steps: int | None
    episodes: int
    first_seed: int
    environments: int


class ReferenceReturn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The measured returns of one policy."""

    policy: str  # what it is, in words
    mean: float  # mean undiscounted return of an episode
    # Of the return over episodes; None if there is only one episode.
    standard_deviation: float | None
    returns: list[float]  # return of each episode

    def __post_init__(self) -> None:
        mean = float(np.mean(self.returns)) if self.returns else math.nan
        if not math.isclose(mean, self.mean, rel_tol=1e-9, abs_tol=1e-9):
            raise ValueError(
                f"the mean {self.mean:g} is not that of its {len(self.returns)} returns, {mean:g}: no "
                "score can be normalized with it"
            )

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean; None if there is only one episode."""
        deviation = self.standard_deviation
        return None if deviation is None else deviation / len(self.returns) ** 0.5

    @classmethod
    def of(cls, policy: str, returns: Float[np.ndarray, " episodes"]) -> ReferenceReturn:
        """Return the record of measured returns."""
        return cls(
            policy=policy,
            mean=float(returns.mean()),
            standard_deviation=float(returns.std(ddof=1)) if len(returns) > 1 else None,
            returns=returns.tolist(),
        )


class PublishedProtocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of how published returns were measured."""

    environment_id: str  # environment whose policies are scored with them
    environment_kwargs: dict[str, object]  # arguments of `gymnasium.make`
    # Version of each package of the simulator, as far as they were published.
    versions: dict[str, str]
    episodes: int | None  # episodes of each policy; None if that was not published
    description: str  # simulator, episodes and policies, in the words of the source


class PublishedReturn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The published mean return of one policy."""

    policy: str  # what it is, in words
    mean: float  # mean undiscounted return of an episode


class Anchors(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What measured and published reference returns have in common."""

    random: Any
    expert: Any

    def __post_init__(self) -> None:
        if not math.isfinite(self.expert.mean - self.random.mean):
            raise ValueError(
                f"the returns {self.random.mean:g} and {self.expert.mean:g} are too far apart, or not "
                "finite: no score can be normalized with them."
            )
        if not self.expert.mean > self.random.mean:
            raise ValueError(
                f"the expert's return {self.expert.mean:.6g} is not above the random policy's "
                f"{self.random.mean:.6g}: no score can be normalized with them."
            )

    def normalize(self, returns: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        """Return normalized scores, 0 for the random policy and 100 for the expert."""
        low, high = float(self.random.mean), float(self.expert.mean)
        return 100 * (returns - low) / (high - low)


class ReferenceReturns(Anchors, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The two anchors of a normalized score, with the protocol that measured them."""

    random: ReferenceReturn
    expert: ReferenceReturn
    protocol: Protocol

    @property
    def simulator(self) -> str:
        """What they were measured in: environment and versions."""
        return simulator_of(self.protocol)

    @property
    def source(self) -> str:
        """Where they come from."""
        return MEASURED

    @property
    def caveats(self) -> list[str]:
        """What to know before comparing scores: an expert that is hardly above the random policy."""
        random, expert = self.random.standard_error, self.expert.standard_error
        if random is None or expert is None:
            text = "each policy ran one episode, so nothing says how uncertain the references are; "
            return [text + "measure them with more (--episodes)."]
        error, difference = math.hypot(random, expert), self.expert.mean - self.random.mean
        if difference > CLEAR * error:
            return []
        text = (
            f"the expert is hardly above the random policy: {difference:.4g} with a standard error "
            f"of {error:.4g}. Scores divide by this difference, so they mean little; choose a better "
            "expert or more episodes."
        )
        return [text]


class PublishedReferences(Anchors, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Two published anchors: only means, without episodes that could be repeated."""

    random: PublishedReturn  # the policy with score 0
    expert: PublishedReturn  # the policy with score 100
    protocol: PublishedProtocol  # what is known of how they were measured
    source: str  # where they were published: title and address
    simulator: str = ""  # what they were measured in; empty if the versions in `protocol` say so
    caveats: list[str] = []  # what to know before comparing scores, each as one sentence


References: TypeAlias = ReferenceReturns | PublishedReferences


def read_references(path: Path) -> References:
    """Return recorded reference returns; a file with a `source` holds published ones."""
    body = parse_json(read_small_file(path))
    if isinstance(body, dict) and "source" in body:
        return convert_json(body, PublishedReferences)
    return convert_json(body, ReferenceReturns)


def normalized_cost(costs: Float[np.ndarray, "*episodes"], cost_limit: float) -> float:
    """Return the mean cost of episodes in units of a limit (DSRL): (C + e) / (limit + e)."""
    epsilon = 1.0 if cost_limit == 0 else 0.0
    return (float(costs.mean()) + epsilon) / (cost_limit + epsilon)


def simulator_of(protocol: Protocol | PublishedProtocol) -> str:
    """Return what a protocol's returns were measured in: the environment and its versions."""
    versions = ", ".join(f"{package} {version}" for package, version in protocol.versions.items())
    return f"{protocol.environment_id} ({versions})" if versions else protocol.environment_id


def is_measured_alike(here: Protocol, recorded: Protocol) -> bool:
    """Whether protocols are the same but for versions and numbers of episodes, noted on their own."""
    if here.episodes != recorded.episodes:
        here = msgspec.structs.replace(here, episodes=recorded.episodes, environments=recorded.environments)
    return msgspec.structs.replace(here, versions=recorded.versions) == recorded


def largest_return(protocol: Protocol) -> float | None:
    """Return the largest return that an episode can have in a protocol's environment; None where that is not known."""
    inner = protocol.environment_kwargs.get("environment")  # of one behind uncertainty, say
    name = inner if isinstance(inner, str) else protocol.environment_id
    for pattern, most in LARGEST_RETURNS.items():
        if fnmatch.fnmatchcase(name, pattern):
            return most
    limit = protocol.max_episode_steps
    for pattern, most in LARGEST_REWARDS.items():
        if limit is not None and fnmatch.fnmatchcase(name, pattern):
            return most * limit
    return None


def impossible_return(protocol: Protocol, returns: Float[np.ndarray, "*shape"]) -> str:
    """Return what is wrong with returns that are more than an episode can have; empty if nothing is."""
    most = largest_return(protocol)
    if most is None or float(returns.max()) <= most + 1e-6 * max(1.0, abs(most)):
        return ""
    return (
        f"a return of {returns.max():.6g} is more than {most:g}, the most of an episode in {protocol.environment_id}."
    )


def score_caveats(references: References, protocol: Protocol) -> list[str]:
    """Return what to print beside a score, a sentence each.

    The first names the simulator in which the returns were measured. The others say how the
    references differ from it, and what else to know before comparing the score.
    """
    notes = [f"returns were measured in {simulator_of(protocol)}."]
    if isinstance(references, PublishedReferences):
        notes += _differences(references, protocol)
    else:
        notes += [
            f"the references were measured with {package} {references.protocol.versions[package]}, "
            f"the returns with {version}."
            for package, version in protocol.versions.items()
            if references.protocol.versions.get(package, version) != version
        ]
    return [*notes, *references.caveats]


def _differences(references: PublishedReferences, protocol: Protocol) -> list[str]:
    source = references.source.partition(";")[0]
    elsewhere = references.simulator or simulator_of(references.protocol)
    if elsewhere == simulator_of(protocol):
        return [f"the references: {source}."]
    notes = [f"the references are published ones ({source}), measured in {elsewhere}."]
    theirs = benchmark_environment(f"d4rl/{references.protocol.environment_id}")
    here = protocol.environment_id
    if theirs is not None and theirs.counterpart is not None and theirs.counterpart.id == here:
        notes += theirs.differences
    else:
        notes.append("scores from another simulator or version do not compare exactly.")
    if theirs is not None and here in _HEALTHY_REWARD_FIXED:
        notes.append(
            f"{here} gives other rewards than the environment of these references: its score is not "
            "a D4RL score; use the -v4 environment."
        )
    return notes


def benchmark_references(dataset: BenchmarkDataset) -> PublishedReferences | None:
    """Return the references that a benchmark publishes for a dataset, or None."""
    if dataset.anchors is None:
        return None
    low, high = dataset.anchors
    benchmark = dataset.benchmark
    family = dataset.facts.get("family", "")
    lowest, highest = _POLICIES.get(family, (benchmark.lowest_policy, benchmark.highest_policy))
    environment = benchmark_environment(dataset.name)
    simulator = benchmark.simulator if environment is None else environment.simulator
    if family in _MUJOCO_FAMILIES:
        simulator = f"{benchmark.simulator} ({simulator})"
    check = dataset.facts["check"]
    return PublishedReferences(
        random=PublishedReturn(policy=lowest, mean=low),
        expert=PublishedReturn(policy=highest, mean=high),
        protocol=PublishedProtocol(
            environment_id=dataset.facts.get("gym_name") or dataset.id,
            environment_kwargs={},
            versions={},
            episodes=None,
            description=f"as published for {benchmark.title}; checked: {check}",
        ),
        source=dataset.source,
        simulator=simulator,
        caveats=_caveats(dataset),
    )


def _caveats(dataset: BenchmarkDataset) -> list[str]:
    facts = dataset.facts
    caveats = [text for family, text in _CAVEATS.items() if family == facts.get("family")]
    environment = benchmark_environment(dataset.name)
    if environment is not None and environment.reason:
        caveats.append(f"no policy can be scored here: {environment.reason}.")
    match dataset.benchmark.key:
        case "d4rl" if "suspicious" in facts["notes"]:
            caveats.append(f"{facts['notes']}.")
        case "atari" if facts["check"] != "three sources agree":
            caveats.append(f"sources differ: {facts['check']}.")
        case "dsrl":
            caveats.append(
                "DSRL prints a hundredth of this score; the cost limit is a choice of the evaluation "
                f"(OSRL averages {facts['target_cost_thresholds'].replace(' ', ', ')}; FISOR uses "
                f"{facts['fisor_cost_limit']})."
            )
        case "neorl2" if facts["in_published_benchmark"] != "yes":
            caveats.append("NeoRL-2 registers this task but publishes no scores for it.")
    return caveats


_MUJOCO_FAMILIES = ("gym-mujoco", "adroit", "antmaze", "maze2d")
# Gymnasium's v5 pays the healthy reward only while the robot is healthy; v4 and earlier always do.
_HEALTHY_REWARD_FIXED = ("Hopper-v5", "Walker2d-v5", "Ant-v5")
_POLICIES = {
    "antmaze": ("an episode that does not reach the goal", "an episode that reaches the goal"),
    "franka-kitchen": ("none of 4 subtasks is finished", "all 4 subtasks are finished"),
}
_CAVEATS = {
    "antmaze": (
        "D4RL's evaluation ends at the first success, so the return of an episode is 0 or 1; use at least 100 episodes."
    ),
    "maze2d": "v0 and v1, sparse and dense rewards have different references and horizons.",
}


# Recorded baselines.


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The recorded results of an algorithm on a dataset."""

    algorithm: str  # name of the algorithm
    dataset: str  # name of the dataset
    digest: str  # digest of the dataset that it was trained on
    steps: int  # gradient steps
    config: dict[str, Any]  # every setting
    policy: str  # which of a run's policies was evaluated, and how it acts
    protocol: Protocol  # how its returns were measured
    versions: dict[str, str]  # versions of the code that trained
    returns: dict[str, list[float]]  # returns of each evaluation episode, by training seed
    processor: str = "unknown"  # processor that trained and scored; "unknown" if it was not noted
    # What metrics counted in each episode, by metric and training seed.
    metrics: dict[str, dict[str, list[bool | float | list[float]]]] = {}
    # Settings that were tried before these were chosen; 0 if nobody noted it.
    settings_tried: int = 0
    tuning_seeds: list[int] = []  # training seeds of those trials, as far as somebody noted them

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting that its algorithm has today: what was not one when it was recorded is what it was then.

        A table has those (`tools/write_added_settings.py`), so that no algorithm is imported.
        """
        return {**self.config, **_added_settings().get(self.algorithm, {}).get(self.dataset, {})}

    def scores(self, references: References) -> dict[int, np.ndarray]:
        """Return normalized scores of each episode, by training seed."""
        return {int(seed): references.normalize(np.array(returns)) for seed, returns in self.returns.items()}


def added_settings_file() -> Path:
    """Return the file that has, by algorithm and dataset, the settings that recorded baselines do not have."""
    return records_folder() / "tables" / "added_settings.json"


@functools.cache
def _added_settings() -> dict[str, dict[str, dict[str, Any]]]:
    added: dict[str, dict[str, dict[str, Any]]] = parse_json(added_settings_file().read_bytes())
    return added


def read_baseline(algorithm: str, name: str) -> Baseline | None:
    """Return the recorded baseline of an algorithm on a dataset, or None."""
    path = recorded_folder(name) / "baselines" / f"{algorithm}.json"
    return convert_json(parse_json(path.read_bytes()), Baseline) if path.is_file() else None


def read_baselines(name: str) -> list[Baseline]:
    """Return all recorded baselines of a dataset, by the names of their algorithms."""
    paths = sorted((recorded_folder(name) / "baselines").glob("*.json"))
    return [convert_json(parse_json(path.read_bytes()), Baseline) for path in paths]


def equal_baselines(baseline: Baseline) -> list[str]:
    """Return the other algorithms whose recorded returns on the dataset are equal to the bit.

    Such returns do not tell one method from another: often all of them fail in the same episodes.
    """
    return [
        other.algorithm
        for other in read_baselines(baseline.dataset)
        if other.algorithm != baseline.algorithm and other.returns == baseline.returns
    ]


def protocol_episodes(name: str) -> int | None:
    """Return how many episodes of a seed the recorded baselines of a dataset have, the fewest; None without any."""
    if not is_name(name):  # which a file of somebody else may say
        return None
    return min((each.protocol.episodes for each in read_baselines(name)), default=None)


def record_baseline(baseline: Baseline) -> Path:
    """Add a baseline to those that ship with orlog, in a checkout; return the file."""
    path = recorded_folder(baseline.dataset) / "baselines" / f"{baseline.algorithm}.json"
    with storage_errors(path):
        write_json(path, msgspec.to_builtins(baseline))
    return path
