"""Training and scoring from Python: `orlog.train` gives a run, `orlog.evaluate` its score."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from orlog.algos.algorithms import AlgorithmLike, algorithm_name, algorithm_title
from orlog.algos.training.evaluating import EPISODES, LoadedRun, evaluate_loaded, load_run
from orlog.algos.training.finetuning import find_finetuned, finetune_run
from orlog.algos.training.options import CURVE_EPISODES, Hooks, TrainOptions
from orlog.algos.training.runs import OnlineRecord, PathLike, Run, as_path, run_folder
from orlog.algos.training.train import train_run
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.given import Given
from orlog.errors import NotFoundError
from orlog.manifests.names import counted, is_name
from orlog.normalize.metrics import EpisodeOutcomes, Number, in_short, numbers_of
from orlog.normalize.references import Protocol, References, score_caveats, simulator_of
from orlog.normalize.statistics import score_interval
from orlog.runs.logs import in_turn, log_to
from orlog.runs.progress import normalizer, watched
from orlog.runs.references import references as find_references
from orlog.runs.run_folders import replacing
from orlog.runs.streaming import streams_by_default
from orlog.runs.videos import VIDEOS, Video, check_video, film

Progress: TypeAlias = Callable[[int, int], None] | bool

RUNS = "runs"
ONE_RUN = (
    "the interval is over the episodes of this one run (95 %, Student's t): it says nothing about "
    "other seeds."
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunResult:
    """The returns of a run's policy, and its score where references are known.

    Attributes:
        run: The run.
        step: Gradient steps that the policy had taken.
        returns: Undiscounted return of each episode.
        metrics: What metrics counted in each episode beside the return, by their names (docs/families.md).
        protocol: How they were measured.
        references: The reference returns that anchor the score; None if none are known.
        reason: Why there is no score; empty if there is one.
        videos: The episodes that were filmed; empty unless that was asked for.
    """

    run: Run
    step: int
    returns: np.ndarray
    metrics: dict[str, np.ndarray]
    protocol: Protocol
    references: References | None
    reason: str
    videos: list[Video] = dataclasses.field(default_factory=list)

    def __repr__(self) -> str:
        """Return run, return, score and success rate in one line."""
        record, score = self.run.record, "no score"
        if self.score is not None:
            score = f"score {self.score:z.1f}"
        if self.interval is not None:
            score += f" ({self.interval[0]:z.1f} to {self.interval[1]:z.1f})"
        score += "".join(f", {one}" for one in in_short(self.numbers))
        return (
            f"RunResult({record.algorithm} seed {record.seed} on {record.shown_dataset}, step "
            f"{self.step:,}: return {self.mean_return:z.2f}, {score}, {counted(len(self.returns), 'episode')})"
        )

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
        return numbers_of([self.played])

    @property
    def played(self) -> EpisodeOutcomes:
        """What came of the episodes, for metrics over several runs (`orlog.normalize.metrics`)."""
        record = self.run.record
        return EpisodeOutcomes(
            returns=self.returns,
            metrics=self.metrics,
            dataset=record.dataset,
            settings=record.config,
        )

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
        found = score_caveats(self.references, self.protocol)
        return [*found, ONE_RUN] if self.interval is not None else found

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; the score is None without references."""
        record, references = self.run.record, self.references
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
            "references": None
            if references is None
            else {
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
            "numbers": [one.to_json() for one in self.numbers],
            "protocol": msgspec.to_builtins(self.protocol),
            "videos": [
                {**msgspec.to_builtins(one), "file": str(self.run.folder / VIDEOS / one.file)}
                for one in self.videos
            ],
        }


def train(
    algorithm: AlgorithmLike,
    dataset: Given,
    *,
    seed: int = 0,
    settings: Mapping[str, object] | None = None,
    steps: int | None = None,
    preset: str = "",
    out: PathLike | None = None,
    resume: bool = False,
    overwrite: bool = False,
    evaluations: int = 5,
    curve_episodes: int = CURVE_EPISODES,
    keep_checkpoints: bool = False,
    stream: bool | None = None,
    trust_environment: bool = False,
    device: str = "cpu",
    precision: str = "float32",
    log: str = "none",
    progress: Progress = True,
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Train an algorithm on a dataset, as `orlog train` does, and return the run.

    Args:
        algorithm: A name such as `iql`, a class, or the place of a class: `my_method.py:MyMethod`.
        dataset: What to learn from: a dataset, or the name or path of one.
        seed: Seed of networks, batches and noise.
        settings: Settings that differ from the recipe's or preset's.
        steps: Gradient steps; the recipe's or preset's by default.
        preset: Whose settings: `authors`, `corl`, .. where published for the dataset, `none` for the
            algorithm's defaults. By default orlog's own recipe, else the authors'.
        out: Folder of the run; `runs/ALGORITHM/NAME/seed-N` by default.
        resume: Continue from the folder's checkpoint; the options must be those of its record, but for `steps`,
            of which there may be more.
        overwrite: Replace the run that the folder holds, once the new one begins.
        evaluations: Evaluations during training, evenly spread. Where the dataset names no
            environment, or it cannot be made here, training is refused unless it is 0.
        curve_episodes: Episodes at each of these points.
        keep_checkpoints: Also keep the checkpoint of each of these points, for
            `orlog.evaluate_off_policy`.
        stream: Whether to read the data block by block, epoch after epoch, instead of all of them into memory
            (`orlog.stream_transitions`); batches are others then. By default a dataset that is read in place is
            streamed, where the algorithm can be.
        trust_environment: Consent to arguments of the environment that come with the data.
        device: Where to compute: `cpu`, `cuda`, `cuda:1`, or `auto` for a GPU if there is one.
        precision: `bf16` for products in bfloat16, where the device computes these faster.
        log: Where to copy the log of metrics: `none`, `tensorboard` or `wandb`.
        progress: Whether to show progress as the command does: a line on a terminal, else one each 20 s. Or a
            function in its place, which is called with (steps done, steps in all).
        stop: Called after each step; if it returns true, the state is saved and StoppedError raised.

    Raises:
        FileExistsError: the folder holds a run already, and neither `resume` nor `overwrite` is set.
        TypeError: algorithm and dataset are in each other's place.
        ValueError: no such algorithm, preset, device or log, or a setting that the algorithm cannot
            have.
        MissingExtraError: the package that `log` needs is not installed.
        SchemaError: the dataset's spaces do not fit the algorithm.
        SimulatorError: the environment needs consent.
        StoppedError: `stop` returned true.
        DivergedError: a metric or a weight is no longer finite; the last checkpoint is kept.
    """
    first: object = algorithm
    if isinstance(first, Dataset) or (isinstance(first, str) and is_name(first)):
        raise TypeError(
            f"{algorithm}: a dataset is in the place of the algorithm, which comes first: orlog.train('iql', dataset)."
        )
    dataset = load_dataset(dataset)
    chosen = run_folder(RUNS, algorithm, dataset, seed) if out is None else as_path(out)
    replaced = replacing([chosen], overwrite, resume=resume)
    label = f"{algorithm_title(algorithm_name(algorithm))} seed {seed}"
    with replaced, _hooks(label, dataset, chosen, log, progress, stop) as hooks:
        options = TrainOptions(
            seed=seed,
            settings=dict(settings or {}),
            steps=steps,
            preset=preset,
            evaluations=evaluations,
            curve_episodes=curve_episodes,
            keep_checkpoints=keep_checkpoints,
            trust_environment=trust_environment,
            device=device,
            precision=precision,
            log=log,
        )
        if stream is None:
            stream = streams_by_default(algorithm, dataset, options)
        options = msgspec.structs.replace(options, stream=stream)
        record = train_run(algorithm, dataset, chosen, options, hooks, resume=resume)
    return Run(folder=chosen, record=record)


@contextlib.contextmanager
def _hooks(
    label: str,
    dataset: Dataset,
    folder: Path,
    log: str,
    progress: Progress,
    stop: Callable[[], bool],
) -> Iterator[Hooks]:
    """Show and copy what a run tells while it is trained; other threads than the first show nothing by themselves."""
    is_first = threading.current_thread() is threading.main_thread()
    with contextlib.ExitStack() as stack:
        copy_line = stack.enter_context(log_to(log, folder, normalizer(dataset)))
        hear: Callable[[Mapping[str, Any]], None] = copy_line
        show = progress if callable(progress) else lambda _step, _steps: None
        if progress is True and is_first:
            watcher = stack.enter_context(watched(label, dataset))
            hear, show = in_turn(watcher.log, copy_line), watcher.progress
        yield Hooks(
            progress=show,
            log=hear,
            begin=copy_line.begin,
            stop=stop,
            note=lambda text: warnings.warn(text, stacklevel=5),  # at the caller of orlog.train
        )


def finetune(
    run: PathLike,
    *,
    steps: int,
    settings: Mapping[str, object] | None = None,
    prior: float | None = 0.5,
    random_steps: int = 0,
    noise: float | None = None,
    out: PathLike | None = None,
    resume: bool = False,
    overwrite: bool = False,
    evaluations: int = 5,
    dataset: Given | None = None,
    algorithm: AlgorithmLike | None = None,
    device: str = "cpu",
    trust_environment: bool = False,
    log: str = "none",
    progress: Progress = True,
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Go on with a run in its dataset's environment, as `orlog finetune` does.

    Each of `steps` takes one step in the environment and one update, whose batch mixes the dataset
    with the steps taken. Seed, settings and transforms are those of the run, which stays as it is.

    Args:
        run: A run, or its folder.
        steps: Updates, and as many steps in the environment.
        settings: Settings that differ from the run's.
        prior: Share of the dataset in each batch; None gives each step of the dataset and of the
            environment the same chance.
        random_steps: Steps with uniform actions before the first update.
        noise: Standard deviation of Gaussian noise on the policy's actions, where the bounds of the
            action space count as -1 and 1; None explores as the algorithm does.
        out: Folder of the new run; `runs/finetune/ALGORITHM/NAME/seed-N` by default.
        resume: Continue from the new run's checkpoint.
        overwrite: Replace the run that the new folder holds, once this one begins.
        evaluations: Evaluations after the start, evenly spread; 0 leaves out all of them.
        dataset: What the run was trained on, if its recorded name does not find it.
        algorithm: The algorithm, if it is not one of orlog's.
        device: Where to compute: `cpu`, `cuda`, `cuda:1`, or `auto` for a GPU if there is one.
        trust_environment: Consent to arguments of the environment that come with the data.
        log: Where to copy the log of metrics: `none`, `tensorboard` or `wandb`.
        progress: Whether to show progress as the command does: a line on a terminal, else one each 20 s. Or a
            function in its place, which is called with (steps done, steps in all).
        stop: Called after each step; once it returned true, the state is saved at the next end of an
            episode and StoppedError raised.

    Raises:
        NotFoundError: there is no run in the folder, or its dataset names no environment.
        FileExistsError: the new folder holds a run already, and neither `resume` nor `overwrite` is set.
        ValueError: a setting, number or log that is not possible.
        MissingExtraError: the package that `log` needs is not installed.
        SchemaError: the algorithm cannot explore, gives actions outside of the action space, or
            learns from other batches than single transitions.
        SimulatorError: the environment needs consent, or cannot be made.
        DivergedError: a metric, a weight or an action is no longer finite.
        StoppedError: `stop` returned true.
    """
    old, data, new = find_finetuned(run, out, dataset=dataset, algorithm=algorithm)
    replaced = replacing([new], overwrite, resume=resume)
    label = f"{algorithm_title(old.algorithm)} seed {old.seed}"
    with replaced, _hooks(label, data, new, log, progress, stop) as hooks:
        _, record = finetune_run(
            run,
            new,
            TrainOptions(
                settings=dict(settings or {}),
                steps=steps,
                evaluations=evaluations,
                trust_environment=trust_environment,
                device=device,
                log=log,
            ),
            OnlineRecord(prior=prior, random_steps=random_steps, noise=noise),
            hooks,
            resume=resume,
            dataset=data,
            algorithm=algorithm,
        )
    return Run(folder=new, record=record)


def evaluate(
    run: PathLike,
    *,
    dataset: Given | None = None,
    algorithm: AlgorithmLike | None = None,
    episodes: int = EPISODES,
    trust_environment: bool = False,
    video: bool = False,
    progress: Callable[[int], None] = lambda _done: None,
) -> RunResult:
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
    folder = as_path(run)
    loaded = load_run(folder, dataset=dataset, algorithm=algorithm)
    evaluation = evaluate_loaded(
        loaded, episodes=episodes, trust_environment=trust_environment, progress=progress
    )
    videos = film(loaded, evaluation, progress) if video else []
    references, reason = _references(loaded)
    return RunResult(
        run=Run(folder=folder, record=loaded.record),
        step=evaluation.step,
        returns=np.array(evaluation.returns),
        metrics=evaluation.counted,
        protocol=evaluation.protocol,
        references=references,
        reason=reason,
        videos=videos,
    )


def _references(run: LoadedRun) -> tuple[References | None, str]:
    """Return the references of a run's dataset, or why there are none."""
    try:
        return find_references(run.dataset), ""
    except NotFoundError as error:
        return None, str(error)
