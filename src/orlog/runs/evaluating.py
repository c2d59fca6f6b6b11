"""What a run scores: `orlog.evaluate` gives a `Score`, which prints itself as a line or as JSON."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orlog.algos.algorithms import AlgorithmLike, algorithm_title
from orlog.algos.training.evaluating import EPISODES, evaluate_loaded, load_run
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
from orlog.datasets.reading.opening import Given
from orlog.errors import NotFoundError
from orlog.manifests.names import counted
from orlog.normalize.metrics import EpisodeOutcomes, Number, in_short, numbers_of
from orlog.normalize.references import Protocol, References, score_caveats, simulator_of
from orlog.normalize.statistics import score_interval
from orlog.runs.references import references as find_references
from orlog.runs.videos import VIDEOS, Video, check_video, film

ONE_RUN = "The interval is over the episodes of this one run (95 %, Student's t): it says nothing about other seeds."


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
            score = f"score {self.score:z.1f}"
            if self.interval is not None:
                low, high = self.interval
                score += f" (95 % interval {low:z.1f} to {high:z.1f})"
            score += ", "
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
        points = [line for line in self.log if "returns" in line]
        return [(int(line["step"]), float(np.mean(line["returns"]))) for line in points]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; the score is None without references."""
        record, references = self.record, self.references
        return {
            "run": str(self.run.folder),
            "algorithm": record.algorithm,
            "dataset": record.dataset,
            "version": record.version,
            "digest": record.digest,
            "seed": record.seed,
            "preset": record.preset,
            "config": record.config,
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
                {**msgspec.to_builtins(one), "file": str(self.run.folder / VIDEOS / one.file)} for one in self.videos
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
