"""Training from Python: `orlog.train` and `orlog.finetune` give a run."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from orlog.algos.algorithms import AlgorithmLike, algorithm_name, algorithm_title
from orlog.algos.presets import recipe_for
from orlog.algos.training.data import streams
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import CURVE_EPISODES, OnlineRecord, PathLike, Run, TrainOptions, as_path, run_folder
from orlog.algos.training.train import Hooks, find_finetuned, finetune_run, run_config, train_run
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.manifests.names import is_name
from orlog.runs.progress import Watcher, status_lines, watching
from orlog.runs.run_folders import replacing

Progress: TypeAlias = Callable[[int, int], None] | bool


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
            (`orlog.transitions(.., stream=True)`); batches are others then. By default a dataset that is read in place is
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
    chosen = run_folder("runs", algorithm, dataset, seed) if out is None else as_path(out)
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


def streams_by_default(algorithm: AlgorithmLike, dataset: Dataset, options: TrainOptions) -> bool:
    """Return whether a run is streamed unless it is said: of data that are read in place, if it can be."""
    if not dataset.in_place:
        return False
    kind = fitting_form(algorithm, dataset)
    recipe = recipe_for(algorithm_name(algorithm), dataset, preset=options.preset)
    settings = {**recipe.settings, **(options.settings or {})}
    config = run_config(kind, settings, steps=options.steps or recipe.steps, seed=options.seed)
    return streams(kind, config, dataset)


@contextlib.contextmanager
def _hooks(
    label: str, dataset: Dataset, folder: Path, log: str, progress: Progress, stop: Callable[[], bool]
) -> Iterator[Hooks]:
    """Show and copy what a run tells while it is trained; other threads than the first show nothing by themselves."""
    shows = progress is True and threading.current_thread() is threading.main_thread()
    silent = contextlib.nullcontext(lambda _label, _status: None)
    with status_lines() if shows else silent as update:
        watcher = Watcher(dataset, lambda status: update(label, status))
        with watching(watcher, folder, log, stop) as hooks:
            yield dataclasses.replace(
                hooks,
                progress=progress if callable(progress) else hooks.progress,
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
