"""Jobs: one algorithm, dataset and seed each, and what runs them."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from orlog.algos.algorithms import anywhere
from orlog.algos.presets import RECIPES, recipe_for
from orlog.algos.settings import make_config
from orlog.algos.training.evaluating import EPISODES, evaluate_run, scoring_protocol
from orlog.algos.training.runs import METRICS_FILE, PathLike, TrainOptions, read_metrics, run_folder
from orlog.algos.training.train import train_run
from orlog.base.files import absolute_path
from orlog.base.jobs import Execute
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.errors import NotFoundError
from orlog.normalize.references import read_baseline


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run to train and evaluate."""

    algorithm: str  # name of the algorithm, or module and class of one from elsewhere
    dataset: Path | Dataset  # folder of the dataset; the dataset itself where it is read in place
    folder: Path  # of the run, which must be new unless `resume` is set
    options: TrainOptions  # what is asked for, with `steps`
    episodes: int = 0  # of the evaluation after training, if there is one
    resume: bool = False  # whether to continue from the folder's checkpoint, if it has one
    where: str = "ram"  # where the data are in memory, as `train_run` takes it

    def anywhere(self) -> Self:
        """Return it with algorithm, dataset and folder as a process that works in another folder finds them."""
        data = self.dataset
        return dataclasses.replace(
            self,
            algorithm=anywhere(self.algorithm),
            dataset=absolute_path(data) if isinstance(data, Path) else data,
            folder=absolute_path(self.folder),
        )

    @property
    def seed(self) -> int:
        """Training seed."""
        return self.options.seed

    @property
    def steps(self) -> int:
        """Gradient steps."""
        assert self.options.steps is not None
        return self.options.steps


def find_executor(name: str | Execute, **options: str) -> Execute:
    """Return the executor with a name: `execute` of the module `orlog.executors.NAME`; an executor as it is."""
    if not isinstance(name, str):
        return name
    package = importlib.import_module("orlog.executors")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    if name not in names:
        raise ValueError(f"no executor {name!r}; choose one of: {', '.join(names)}.")
    executor: Any = importlib.import_module(f"orlog.executors.{name}").execute
    known = [*inspect.signature(executor).parameters][len(("function", "jobs")) :]
    known = [option for option in known if option not in ("workers", "running")]
    for option in options:
        if option not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"the executor {name} has no option {option!r}; {has}.")
    return functools.partial(executor, **options)


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int | None,
    executor: str | Execute = "processes",
    progress: Callable[[Job, int], None] = lambda _job, _step: None,
) -> None:
    """Train and evaluate every job in its folder, `workers` at a time."""
    for index, error in find_executor(executor)(
        run_job,
        [job.anywhere() for job in jobs],
        workers=workers,
        running=lambda job: progress(job, last_step(job.folder)),
    ):
        if isinstance(error, Exception):
            raise error
        progress(jobs[index], jobs[index].steps)


def run_job(job: Job) -> None:
    """Train and evaluate one job in its folder. Errors: `train_run` and `evaluate_run`."""
    dataset = load_dataset(job.dataset)
    train_run(job.algorithm, dataset, job.folder, job.options, resume=job.resume, where=job.where)
    evaluate_run(
        job.folder,
        dataset=dataset,
        algorithm=job.algorithm,
        episodes=job.episodes,
        trust_environment=job.options.trust_environment,
    )


def last_step(folder: Path) -> int:
    """Return the last logged step of a run, 0 before there is one."""
    if not (folder / METRICS_FILE).is_file():
        return 0
    lines = read_metrics(folder)
    return int(lines[-1]["step"]) if lines else 0


def jobs_of(
    algorithm: str, dataset: Dataset, folders: Mapping[int, Path], options: TrainOptions, **more: Any
) -> list[Job]:
    """Return one job for each seed, whose folders are given; the seed of the options does not count."""
    return [
        Job(
            algorithm=algorithm,
            dataset=dataset if dataset.in_place else dataset.folder,
            folder=folder,
            options=msgspec.structs.replace(options, seed=seed),
            **more,
        )
        for seed, folder in folders.items()
    ]


def make_jobs(
    algorithm: str,
    dataset: Given,
    folder: PathLike,
    *,
    seeds: Sequence[int],
    episodes: int,
    options: TrainOptions = TrainOptions(),
    resume: bool = False,
) -> list[Job]:
    """Return one job for each seed, with `options` as `job_options` completes them."""
    dataset = load_dataset(dataset)
    if len({*seeds}) != len(seeds):
        raise ValueError(f"a seed is named twice in {list(seeds)}; each counts once.")
    options = job_options(options, algorithm, dataset.name, seeds=len(seeds), episodes=episodes)
    scoring_protocol(dataset, episodes, trust_environment=options.trust_environment)
    folders = {seed: run_folder(folder, algorithm, dataset, seed) for seed in seeds}
    for place in folders.values():
        if place.exists() and not resume:
            raise FileExistsError(
                f"{place} exists already; continue from it with resume=True, move it away, or choose another folder."
            )
    return jobs_of(algorithm, dataset, folders, options, episodes=episodes, resume=resume)


def recorded_episodes(algorithm: str, name: str) -> int:
    """Return how many episodes the baseline has of each seed, so that returns can be compared to the bit; else 100."""
    baseline = read_baseline(algorithm, name)
    return EPISODES if baseline is None else baseline.protocol.episodes


def job_options(options: TrainOptions, algorithm: str, name: str, *, seeds: int, episodes: int) -> TrainOptions:
    """Return the options of a job: by default with the steps of the recipe or baseline; no curve of more episodes."""
    steps, shown = options.steps, min(options.curve_episodes, episodes)
    if steps is None:
        make_config(algorithm, {})
        recipe, baseline = recipe_for(algorithm, name), read_baseline(algorithm, name)
        if (algorithm, name) not in RECIPES and baseline is None:
            raise NotFoundError(
                f"orlog has neither a recipe nor a baseline of {algorithm} on {name}, so there is nothing "
                f"to compare with, and training would take the published {seeds} x {recipe.steps:,} steps; "
                "to train anyway, choose the number of steps as steps=."
            )
        steps = recipe.steps if baseline is None or (algorithm, name) in RECIPES else baseline.steps
    return msgspec.structs.replace(options, steps=steps, curve_episodes=shown)
