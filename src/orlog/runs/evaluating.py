"""What policies get in an environment: the score of a run, and reference returns of a random and an expert policy."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import msgspec
import numpy as np

from orlog.algos.algorithms import AlgorithmLike, algorithm_title
from orlog.algos.training.data import one_thread
from orlog.algos.training.evaluating import EPISODES, evaluate_loaded, load_run, run_protocol, scoring_protocol
from orlog.algos.training.runs import (
    Evaluation,
    PathLike,
    Run,
    RunRecord,
    as_path,
    read_evaluation,
    read_metrics,
    read_run,
)
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.datasets.worlds.recipe import Expert, catalogue
from orlog.errors import NotFoundError, SchemaError
from orlog.manifests.manifest import EnvironmentRecord
from orlog.manifests.names import counted
from orlog.normalize.metrics import EpisodeOutcomes, Number, in_short, numbers_of
from orlog.normalize.references import (
    Protocol,
    PublishedProtocol,
    PublishedReferences,
    PublishedReturn,
    ReferenceReturn,
    ReferenceReturns,
    References,
    score_caveats,
    simulator_of,
)
from orlog.normalize.rollouts import Policy
from orlog.normalize.statistics import score_interval
from orlog.runs.policies import VIDEOS, Video, check_video, film
from orlog.runs.scores import benchmark_of, store_references, trained_policy
from orlog.runs.scores import references as find_references

ONE_RUN = "The interval is over the episodes of this one run (95 %, Student's t): it says nothing about other seeds."
RECIPE = "recipe"
REFERENCE_EPISODES = 1000
RANDOM_POLICY = "uniform over the action space, drawn by PCG64 with seed 0"
# An expert: a run or its folder, `recipe` for the controller of the dataset's recipe, or a number.
Anchor: TypeAlias = str | os.PathLike[str] | float


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Score:
    """The returns of a run's policy, and its score where references are known.

    Attributes:
        run: The run.
        evaluation: Its returns, with their protocol and what metrics counted.
        references: The reference returns that anchor the score; None if none are known.
        reason: Why there is no score; empty if there is one.
        videos: The episodes that were filmed; empty unless that was asked for.
    """

    run: Run
    evaluation: Evaluation
    references: References | None
    reason: str = ""
    videos: list[Video] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        """Return run, score, return and what metrics counted in one line."""
        record, score = self.record, ""
        if self.score is not None:
            low_high = self.interval
            interval = " (95 % interval {:z.1f} to {:z.1f})".format(*low_high) if low_high else ""
            score = f"score {self.score:z.1f}{interval}, "
        return (
            f"{algorithm_title(record.algorithm, record.config)} seed {record.seed} on {record.shown_dataset}, "
            f"step {self.step:,} of {record.steps:,}: {score}return {self.mean_return:z.2f}, "
            + "".join(f"{number}, " for number in in_short(self.numbers))
            + counted(len(self.returns), "episode")
        )

    __repr__ = __str__

    @property
    def record(self) -> RunRecord:
        """What `run.json` holds."""
        return self.run.record

    @property
    def step(self) -> int:
        """Gradient steps that the policy had taken."""
        return self.evaluation.step

    @property
    def protocol(self) -> Protocol:
        """How the returns were measured."""
        return self.evaluation.protocol

    @functools.cached_property
    def returns(self) -> np.ndarray:
        """Undiscounted return of each episode."""
        return np.array(self.evaluation.returns, float)

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """What metrics counted in each episode beside the return, by their names (docs/families.md)."""
        return self.evaluation.counted

    @property
    def outcomes(self) -> EpisodeOutcomes:
        """What came of the episodes, for metrics over several runs (`orlog.normalize.metrics`)."""
        return self.evaluation.played(self.record)

    @functools.cached_property
    def scores(self) -> np.ndarray | None:
        """Normalized score of each episode, 0 = random and 100 = expert; None without references."""
        return None if self.references is None else self.references.normalize(self.returns)

    @property
    def score(self) -> float | None:
        """Mean normalized score; None without references."""
        return None if self.scores is None else float(self.scores.mean())

    @functools.cached_property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the mean score at 95 %, over the episodes of this run.

        None without references, with one episode, or if all episodes score the same.
        """
        return None if self.scores is None else score_interval([self.scores])

    @functools.cached_property
    def numbers(self) -> list[Number]:
        """What the metrics come to, such as the success rate, with intervals over the episodes."""
        return numbers_of([self.outcomes])

    @property
    def successes(self) -> np.ndarray | None:
        """Whether each episode succeeded; None if the environment does not tell."""
        return self.metrics.get("success")

    @property
    def success_rate(self) -> float | None:
        """Share of the episodes that succeeded, 0 to 1; None if the environment does not tell."""
        return None if self.successes is None else float(self.successes.mean())

    @property
    def mean_return(self) -> float:
        """Mean return of an episode."""
        return float(self.returns.mean())

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean return; None with one episode."""
        count = len(self.returns)
        return float(self.returns.std(ddof=1)) / count**0.5 if count > 1 else None

    @property
    def caveats(self) -> list[str]:
        """What to know before the score is compared, a sentence each; the first is the simulator."""
        if self.references is None:
            return [f"returns were measured in {simulator_of(self.protocol)}."]
        caveats = score_caveats(self.references, self.protocol)
        return [*caveats, ONE_RUN] if self.interval is not None else caveats

    @functools.cached_property
    def log(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`."""
        return read_metrics(self.run.folder)

    @property
    def updates_per_second(self) -> float:
        """Speed of training, while other runs may have been trained too."""
        return float(self.log[-1]["step"]) / float(self.log[-1]["seconds"])

    @property
    def curve(self) -> list[tuple[int, float]]:
        """The learning curve: gradient steps, and the mean return there."""
        return [(int(line["step"]), float(np.mean(line["returns"]))) for line in self.log if "returns" in line]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; the score is None without references."""
        record, references = self.record, self.references
        return {
            "run": str(self.run.folder),
            **{
                name: getattr(record, name)
                for name in ("algorithm", "dataset", "version", "digest", "seed", "preset", "config")
            },
            "settings": record.every_setting,
            "step": self.step,
            "steps": record.steps,
            "mean_return": self.mean_return,
            "standard_error": self.standard_error,
            "normalized_score": self.score,
            "score_interval": self.interval,
            "no_score": self.reason or None,
            "success_rate": self.success_rate,
            "references": references
            and {
                "random": references.random.mean,
                "expert": references.expert.mean,
                "source": references.source,
                "simulator": references.simulator,
            },
            "simulator": simulator_of(self.protocol),
            "caveats": self.caveats,
            "returns": self.returns.tolist(),
            "successes": None if self.successes is None else self.successes.tolist(),
            "metrics": {name: values.tolist() for name, values in self.metrics.items()},
            "numbers": [number.to_json() for number in self.numbers],
            "protocol": msgspec.to_builtins(self.protocol),
            "videos": [
                {**msgspec.to_builtins(video), "file": str(self.run.folder / VIDEOS / video.file)}
                for video in self.videos
            ],
        }


def evaluate(
    run: PathLike,
    *,
    dataset: Given | None = None,
    algorithm: AlgorithmLike | None = None,
    episodes: int = EPISODES,
    trust_environment: bool = False,
    video: bool = False,
    progress: Callable[[int], None] = lambda _done: None,
) -> Score:
    """Run a trained policy in its dataset's environment, as `orlog evaluate` does.

    Args:
        run: A run, or its folder.
        dataset: What it was trained on, if its recorded name does not find it.
        algorithm: The algorithm, if it is not one of orlog's.
        episodes: Episodes to run.
        trust_environment: Consent to arguments of the environment that come with the data.
        video: Also film the worst, the median and the best episode, into the run's folder `videos`.
        progress: Called with the number of episodes done.

    Raises:
        MissingExtraError: videos are asked for, and PyAV is not installed.
        NotFoundError: there is no checkpoint in the folder, its dataset is not here or names no
            environment, or no package here provides that.
        SimulatorError: the environment needs consent, or cannot be made.
        CheckpointError: the checkpoint is damaged.
        IntegrityError: the dataset is not the one that the run was trained on.
    """
    if video:
        check_video()
    loaded = load_run(as_path(run), dataset=dataset, algorithm=algorithm)
    evaluation = evaluate_loaded(loaded, episodes=episodes, trust_environment=trust_environment, progress=progress)
    videos = film(loaded, evaluation, progress) if video else []
    references, reason = None, ""
    try:
        references = find_references(loaded.dataset)
    except NotFoundError as error:
        reason = str(error)
    return Score(
        run=Run(folder=loaded.folder, record=loaded.record),
        evaluation=evaluation,
        references=references,
        reason=reason,
        videos=videos,
    )


def read_score(folder: Path, references: References | None) -> Score:
    """Return what a run scored when it was last evaluated. Errors: `read_run`, `read_evaluation`."""
    run = Run(folder=folder, record=read_run(folder))
    return Score(run=run, evaluation=read_evaluation(folder), references=references)


# Reference returns.


def measure_references(
    dataset: Given,
    *,
    expert: Anchor = RECIPE,
    source: str = "",
    episodes: int = REFERENCE_EPISODES,
    keep: bool = False,
    algorithm: AlgorithmLike | None = None,
    trust_environment: bool = False,
    progress: Callable[[int], None] = lambda _done: None,
) -> References:
    """Run a random and an expert policy in a dataset's environment; return their returns.

    The random policy draws uniformly from the action space with its own generator, unless the recipe of the
    dataset says what is random there (`random_policy`), as where actions are texts.

    Args:
        dataset: A dataset, or the name or path of one.
        expert: A trained run or its folder, `recipe` for the controller of the dataset's recipe, or
            a published mean return, with its source.
        source: Where the number was published.
        episodes: Episodes of each policy.
        keep: Store them beside the data, where scores on all datasets of the environment find them.
        algorithm: The run's algorithm, if it is not one of orlog's.
        trust_environment: Consent to arguments of the environment that come with the data.
        progress: Called with the number of episodes done, first of one policy, then of the other.

    Raises:
        NotFoundError: the dataset names no environment, its recipe has no expert, or there is no
            such run.
        SchemaError: the action space has no uniform policy, the run is of another environment, the
            expert is not above the random policy, or the dataset's benchmark publishes references.
        SimulatorError: the environment needs consent, or cannot be made.
        ValueError: a number without its source, or a source without a number.
        StorageError: they cannot be kept; older ones stay.
    """
    dataset = load_dataset(dataset)
    entry = catalogue().get(dataset.name)
    make_random = getattr(entry.recipe, "random_policy", None) if entry is not None else None
    if make_random is None:
        rng = np.random.Generator(np.random.PCG64(0))
        random = Expert(name=RANDOM_POLICY, policy=_uniform(dataset.name, dataset.action_space, rng))
    else:
        random = make_random()
    _environment_to_score(dataset)
    is_number = isinstance(expert, int | float) and not isinstance(expert, bool)
    if is_number and not source:
        raise ValueError(f"{dataset.name}: a published return needs its source: source=TEXT.")
    if source and not is_number:
        raise ValueError(f"{dataset.name}: a source is for a published return, a number; found {expert}.")
    policies = [random] if is_number else [random, _expert(dataset, expert, algorithm)]
    protocol = scoring_protocol(dataset, episodes, trust_environment=trust_environment)
    with one_thread():
        low, *measured = (
            ReferenceReturn.of(each.name, run_protocol(each.policy, protocol, progress).returns) for each in policies
        )
    try:
        if measured:
            references: References = ReferenceReturns(random=low, expert=measured[0], protocol=protocol)
        else:
            references = _with_number(low, float(expert), source, protocol)  # type: ignore[arg-type]  # it is a number
    except ValueError as error:
        raise SchemaError(f"{dataset.name}: {error}") from error
    if keep:
        keep_references(dataset, references)
    return references


def keep_references(dataset: Given, references: References) -> Path:
    """Store reference returns beside the data; return their file."""
    return store_references(_environment_to_score(load_dataset(dataset)), references)


def _environment_to_score(dataset: Dataset) -> EnvironmentRecord:
    """Return the environment whose references a dataset may have; a benchmark's dataset has the benchmark's."""
    benchmark = benchmark_of(dataset.manifest)
    if benchmark is not None and benchmark.anchors is not None:
        raise SchemaError(
            f"{dataset.name} is scored by the references that {benchmark.benchmark.title} publishes "
            f"for {benchmark.name}; own ones are for other datasets."
        )
    if dataset.environment is None:
        raise NotFoundError(f"{dataset.name} names no environment, and references belong to an environment.")
    return dataset.environment


def _expert(dataset: Dataset, expert: Any, algorithm: AlgorithmLike | None) -> Expert:
    """Return the expert of a recipe, or the policy of a run."""
    if expert == RECIPE:
        entry = catalogue().get(dataset.name)
        known = entry.recipe.expert() if entry is not None else None
        if known is None:
            raise NotFoundError(
                f"{dataset.name}: no recipe is known that has an expert for it; name a run: expert=FOLDER."
            )
        return known
    run = load_run(expert, algorithm=algorithm)
    theirs, ours = (
        None if environment is None else (environment.id, environment.kwargs, environment.max_episode_steps)
        for environment in (run.dataset.environment, dataset.environment)
    )
    record = run.record
    if theirs != ours:
        raise SchemaError(
            f"{run.folder}: the run was trained in {theirs!r:.200} ({record.dataset}), but "
            f"{dataset.name} is of {ours!r:.200}; choose a run of that environment."
        )
    name = (
        f"{record.algorithm}, seed {record.seed}, trained on {record.dataset}@{record.version} "
        f"({record.digest[:19]}), step {run.step:,} of {record.steps:,}: {trained_policy(record.config)}"
    )
    return Expert(name=name, policy=run.policy)


def _with_number(low: ReferenceReturn, expert: float, source: str, protocol: Protocol) -> PublishedReferences:
    if not math.isfinite(expert):
        raise ValueError(f"the expert's return must be a finite number, found {expert}.")
    error = "" if low.standard_error is None else f", standard error {low.standard_error:.4g}"
    return PublishedReferences(
        random=PublishedReturn(
            policy=f"{low.policy}; measured with orlog, {len(low.returns)} episodes{error}", mean=low.mean
        ),
        expert=PublishedReturn(policy=f"as published: {source}", mean=expert),
        protocol=PublishedProtocol(
            environment_id=protocol.environment_id,
            environment_kwargs=protocol.environment_kwargs,
            versions=protocol.versions,
            episodes=protocol.episodes,
            description=(
                f"the random policy ran {protocol.episodes} episodes from seed "
                f"{protocol.first_seed}; the expert's return was not measured here"
            ),
        ),
        source=f"random policy measured with orlog, expert {source}",
        simulator=simulator_of(protocol),
        caveats=["the expert's return is a published number, which orlog did not measure."],
    )


def _uniform(name: str, space: gymnasium.Space[Any], rng: np.random.Generator) -> Policy:
    def rows(observations: Any) -> tuple[int, ...]:
        return (_count(observations), *(space.shape or ()))

    match space:
        case gymnasium.spaces.Dict():
            parts = {key: _uniform(name, part, rng) for key, part in space.spaces.items()}
            return lambda seen: {key: part(seen) for key, part in parts.items()}
        case gymnasium.spaces.Discrete():
            return lambda seen: rng.integers(int(space.start), int(space.start + space.n), rows(seen))
        case gymnasium.spaces.MultiDiscrete():
            return lambda seen: rng.integers(space.start, space.start + space.nvec, rows(seen))
        case gymnasium.spaces.MultiBinary():
            return lambda seen: rng.integers(0, 2, rows(seen), dtype=np.int8)
        case gymnasium.spaces.Box() if space.is_bounded():
            return lambda seen: rng.uniform(space.low, space.high, rows(seen)).astype(space.dtype)
    raise SchemaError(
        f"{name}: no uniform policy exists for its action space {space}: a random policy needs "
        "a bounded Box or discrete actions."
    )


def _count(observations: Any) -> int:
    while isinstance(observations, (dict, tuple)):
        parts = observations.values() if isinstance(observations, dict) else observations
        observations = next(iter(parts))
    return len(observations)
