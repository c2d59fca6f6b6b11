"""Training by name: `orlog.train` and `orlog.finetune`, several seeds side by side, and what they show and copy.

`metrics.jsonl` in a run's folder always has the log. On request it is copied, each point once though a run is
killed and resumed:

    FOLDER/tensorboard/     written again from `metrics.jsonl` when a run is resumed
    FOLDER/wandb.json       the id of the run at Weights & Biases, and the last step that was sent

Seeds are trained in a process and a folder each, with one memory map of the data. They tell what they do, and are
asked to stop, by files in a folder that exists as long as they run, so that any executor can run them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import importlib
import importlib.util
import secrets
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from orlog.algos.algorithms import AlgorithmLike, algorithm_name, algorithm_title
from orlog.algos.presets import recipe_for
from orlog.algos.training.data import streams
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import (
    CURVE_EPISODES,
    RUN_FILE,
    PathLike,
    Run,
    TrainOptions,
    as_path,
    check_folder,
    read_run,
    run_folder,
)
from orlog.algos.training.train import Hooks, curve_protocol, find_finetuned, finetune_run, run_config, train_run
from orlog.base.files import replace_file
from orlog.base.processes import StopRequest
from orlog.base.terminal import progress_bars
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.errors import MissingExtraError, NotFoundError, OrlogError, StoppedError, clause
from orlog.loaders.places import load_arrays
from orlog.manifests.names import did_you_mean, is_name
from orlog.normalize.metrics import EpisodeOutcomes, Number, in_short, numbers_of, of_fields
from orlog.runs.jobs import Job, find_executor, jobs_of
from orlog.runs.run_folders import replacing
from orlog.runs.scores import references

LOGS = ("none", "tensorboard", "wandb")
_SMOOTHING = 0.3  # weight of the newest half second in the speed that is shown
_LOSS = "/loss"
_LOOK_SECONDS = 0.2
_STOP = "stop"
_MOST = 10_000  # seeds of one command
Progress: TypeAlias = Callable[[int, int], None] | bool
Normalize: TypeAlias = Callable[[np.ndarray], np.ndarray]
_Write: TypeAlias = Callable[[int, float, dict[str, float]], None]


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
    weights: str = "",
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
        weights: Column by which steps are drawn, such as `infos/weight` of a layer (`Dataset.with_layers`); `episodes/NAME`
            has a weight for all steps of an episode. By default all steps are as likely.
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
            weights=weights,
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
    if not dataset.in_place or options.weights:
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
    prior: float | Literal["usual"] | None = "usual",
    random_steps: int = 0,
    warm_up_steps: int | Literal["usual"] = "usual",
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
            environment the same chance. "usual" is what the class of the algorithm declares as its authors'
            (`FINETUNING`), else 0.5.
        random_steps: Steps with uniform actions before the first update.
        warm_up_steps: Steps after these with the policy's actions, and without updates too. "usual" is as above, else 0.
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
            learns from other batches than transitions and chunks of actions.
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
            {"prior": prior, "random_steps": random_steps, "warm_up_steps": warm_up_steps, "noise": noise},
            hooks,
            resume=resume,
            dataset=data,
            algorithm=algorithm,
        )
    return Run(folder=new, record=record)


# Several seeds.


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that a text names: `3` for so many from 0; or `0-3`, `0,2,5`, or `0-3,7`."""
    if text.strip().isascii() and text.strip().isdecimal():
        if int(text) == 0:
            raise ValueError(f"seeds={text!r} trains nothing; give 1 or more.")
        text = f"0-{int(text) - 1}"
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        numbers = [first, last] if dash else [first]
        if not all(number.isascii() and number.isdecimal() for number in numbers):
            raise ValueError(f"seeds={text!r}: expected seeds such as 0-3 or 0,2,5.")
        start, stop = int(numbers[0]), int(numbers[-1])
        if stop < start or stop - start >= _MOST:
            raise ValueError(
                f"seeds={text!r}: {part.strip()} names no seeds, or more than {_MOST:,}; write the smaller one first."
            )
        seeds += range(start, stop + 1)
    if len({*seeds}) < len(seeds):
        raise ValueError(f"seeds={text!r} names a seed twice; each is trained once.")
    return seeds


def seed_folders(
    algorithm: str, dataset: Given, seeds: Sequence[int], folder: PathLike | None = None
) -> dict[int, Path]:
    """Return the folder of each seed: `seed-N` in `folder`, by default in `runs/ALGORITHM/NAME`."""
    if folder is not None:
        return {seed: as_path(folder) / f"seed-{seed}" for seed in seeds}
    data = load_dataset(dataset)
    return {seed: run_folder("runs", algorithm, data, seed) for seed in seeds}


def train_seeds(
    algorithm: str,
    dataset: Given,
    folders: Mapping[int, Path],
    options: TrainOptions,
    *,
    processes: int,
    resume: bool = False,
    show: Callable[[int, Status], None] = lambda _seed, _status: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[int, Status]:
    """Train an algorithm with the seeds of some folders, and return how each ended: finished, stopped or failed.

    A seed that fails does not end the others. With `resume`, those that were interrupted go on and finished
    ones are skipped. About twice a second `show` is called with each running seed and what it does, and
    `stop` is asked; once it returns true, all save their state and stop.
    """
    check_log(options.log)
    dataset = load_dataset(dataset)
    kind = fitting_form(algorithm, dataset)
    if options.evaluations:  # said once, before any seed is begun
        curve_protocol(kind, dataset, options.curve_episodes, options.trust_environment)
    for folder in folders.values():
        check_folder(folder, resume=resume)
    where = "ram"
    if min(processes, len(folders)) > 1 and not options.stream:
        where = "mmap"
        load_arrays(dataset, where)  # made here, so that no process waits for another
    jobs = jobs_of(algorithm, dataset, folders, options, resume=resume, where=where)
    ends: dict[int, Status] = {}
    with tempfile.TemporaryDirectory(prefix="orlog-") as temporary:
        place = Path(temporary)
        for seed in folders:
            show(seed, Status(state="waiting"))

        def running(job: Job) -> None:
            if stop():
                (place / _STOP).touch()
            status = _last_told(place, job.seed)
            if status is not None:
                show(job.seed, status)

        execute = find_executor("processes")
        work = functools.partial(_train, place)
        there = [job.anywhere() for job in jobs]
        for index, end in execute(work, there, workers=processes, running=running):
            seed = jobs[index].seed
            if isinstance(end, Exception):
                end = _failed(end, _last_told(place, seed) or Status())
            ends[seed] = end
            show(seed, end)
    return {seed: ends[seed] for seed in folders}


def _train(place: Path, job: Job) -> Status:
    """Train one seed, in a process of its own that tells what it does in a folder; no error leaves it."""
    request, seen_at, is_asked = StopRequest(), 0.0, False

    def stop() -> bool:
        nonlocal seen_at, is_asked
        now = time.monotonic()
        if now - seen_at > _LOOK_SECONDS:
            seen_at, is_asked = now, (place / _STOP).exists()
        return is_asked or request.signal != 0

    if stop():
        return Status(state="stopped")
    status = Status()

    def tell(now: Status) -> None:
        nonlocal status
        status, path = now, place / f"{job.seed}.json"
        with contextlib.suppress(OSError):  # a full disk for temporary files must not end a run
            path.with_suffix(".unfinished").write_bytes(msgspec.json.encode(now))
            path.with_suffix(".unfinished").replace(path)

    try:
        dataset = load_dataset(job.dataset)
        with request.noted(), watching(Watcher(dataset, tell), job.folder, job.options.log, stop) as hooks:
            note = hooks.note
            hooks = dataclasses.replace(hooks, tell=lambda line: note(f"from the data: {line}"))
            train_run(job.algorithm, dataset, job.folder, job.options, hooks, resume=job.resume, where=job.where)
    except StoppedError as stopped:
        return msgspec.structs.replace(status, step=stopped.step, state="stopped")
    except Exception as error:  # noqa: BLE001 (whatever it is, the other seeds go on)
        return _failed(error, status)
    return msgspec.structs.replace(status, state="finished")


def _failed(error: Exception, status: Status) -> Status:
    is_known = isinstance(error, OrlogError | ValueError | OSError | FloatingPointError)
    return msgspec.structs.replace(
        status,
        state="failed",
        message=str(error) if is_known else f"{type(error).__name__}: {error}",
        details="" if is_known else "".join(traceback.format_exception(error)),
    )


def _last_told(place: Path, seed: int) -> Status | None:
    try:
        return msgspec.json.decode((place / f"{seed}.json").read_bytes(), type=Status)
    except (OSError, msgspec.DecodeError):
        return None


# What a run is doing.


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is doing."""

    step: int = 0  # gradient steps taken
    steps: int = 0  # gradient steps in all; 0 if not known yet
    speed: float | None = None  # updates per second, without the time of evaluations; None if not known yet
    losses: dict[str, float] = {}  # last logged means, by name
    score: float | None = None  # mean score of the last evaluation, or mean return; None if there was none
    is_normalized: bool = True  # whether the score is normalized
    counted: list[str] = []  # what metrics counted in the last evaluation, in words
    state: str = ""  # what it does if it does not train: waiting, finished, stopped or failed
    notes: list[str] = []  # what to tell the user once
    message: str = ""  # why it failed; empty if it did not
    details: str = ""  # where in the code it failed, for errors that orlog does not raise on purpose

    def words(self) -> list[str]:
        """Return losses, score, metrics, speed and time left, as far as they are known."""
        words = [f"{name.removesuffix(_LOSS)} {value:.4g}" for name, value in self.losses.items()]
        if words:
            words[0] = f"loss: {words[0]}"
        if self.score is not None:
            words.append(f"{'score' if self.is_normalized else 'return'} {self.score:z.1f}")
        words += self.counted
        if self.speed:
            words.append(f"{self.speed:z,.0f} updates/s")
            left = round((self.steps - self.step) / self.speed)
            if left:
                words.append(f"{dt.timedelta(seconds=left)} left")
        return words


class Watcher:
    """Turns what training tells (`progress` and `log` of `train_run`) into a `Status` each time."""

    def __init__(self, dataset: Dataset, show: Callable[[Status], None]) -> None:
        """Begin to watch a run on a dataset, whose references turn returns into scores."""
        self.normalize: Normalize | None = None
        with contextlib.suppress(OrlogError):  # without references, or with damaged ones
            self.normalize = references(dataset).normalize
        self.status = Status(is_normalized=self.normalize is not None)
        self._show = show
        self._since: tuple[float, int] | None = None

    def progress(self, step: int, steps: int) -> None:
        """Take in the number of steps done and of all."""
        now, speed = time.monotonic(), self.status.speed
        if self._since is not None and step > self._since[1] and now > self._since[0]:
            newest = (step - self._since[1]) / (now - self._since[0])
            speed = newest if speed is None else speed + _SMOOTHING * (newest - speed)
        self._since = now, step
        self._change(step=step, steps=steps, speed=speed)

    def log(self, line: Mapping[str, Any]) -> None:
        """Take in a line of the log."""
        changed: dict[str, Any] = {}
        losses = {name: value for name, value in line.items() if name.endswith(_LOSS)}
        if losses:
            changed["losses"] = losses
        if "returns" in line:
            mean, score, numbers = _evaluated(line, self.normalize)
            changed |= {"score": mean if score is None else score, "counted": in_short(numbers)}
            self._since = None  # the evaluation took time too
        self._change(**changed)

    def note(self, text: str) -> None:
        """Take in what the user should know."""
        self._change(notes=[*self.status.notes, text])

    def _change(self, **changed: Any) -> None:
        self.status = msgspec.structs.replace(self.status, **changed)
        self._show(self.status)


def _evaluated(line: Mapping[str, Any], normalize: Normalize | None) -> tuple[float, float | None, list[Number]]:
    """Return mean return, mean score where references are known, and what metrics counted in a line of the log."""
    returns = np.array(line["returns"], float)
    score = None if normalize is None else float(normalize(returns).mean())
    numbers = numbers_of([EpisodeOutcomes(returns=returns, metrics=of_fields(line))])
    return float(returns.mean()), score, numbers


@contextlib.contextmanager
def watching(watcher: Watcher, folder: Path, log: str, stop: Callable[[], bool]) -> Iterator[Hooks]:
    """Yield the hooks by which a run tells a watcher what it does, copies its log and is asked to stop."""
    with Log(log, folder, watcher.normalize) as copy:

        def hear(line: Mapping[str, Any]) -> None:
            watcher.log(line)
            copy(line)

        yield Hooks(progress=watcher.progress, log=hear, begin=copy.begin, stop=stop, note=watcher.note)


@contextlib.contextmanager
def status_lines() -> Iterator[Callable[[str, Status], None]]:
    """Show a line for each label, in a pipe every 20 seconds; yield a function of (label, status)."""
    with progress_bars() as update:
        yield lambda label, status: update(
            label, status.step, status.steps or None, status.state or ", ".join(status.words())
        )


# Copies of the log.


def check_log(kind: str) -> None:
    """Check that a log can be written."""
    if kind not in LOGS:
        hint = did_you_mean(kind, LOGS) or "."
        raise ValueError(f"log must be {', '.join(LOGS[:-1])} or {LOGS[-1]}, found {kind!r}{hint}")
    if kind != "none" and importlib.util.find_spec(kind) is None:
        raise MissingExtraError(f"log={kind!r} needs {kind}, which is not installed", install=kind)


class Log(contextlib.AbstractContextManager["Log"]):
    """Copies the lines of a run's log, as `train_run` gives them; `normalize` turns returns into scores."""

    def __init__(self, kind: str, folder: Path, normalize: Normalize | None = None) -> None:
        check_log(kind)
        self._kind, self._folder, self._normalize = kind, folder, normalize
        self._write: _Write | None = None
        self._close: Callable[[], None] = lambda: None

    def __exit__(self, *_: object) -> None:
        """End what was begun."""
        self._close()

    def begin(self) -> None:
        """Open what is written to, once the folder has the run's record."""
        if self._kind != "none" and self._write is None:
            begin = _begin_tensorboard if self._kind == "tensorboard" else _begin_wandb
            self._write, self._close = begin(self._folder)

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Copy a line."""
        self.begin()
        if self._write is None:
            return
        values = {
            name: float(value)
            for name, value in line.items()
            if name not in ("step", "seconds") and isinstance(value, int | float)
        }
        if "returns" in line:
            values["evaluation/return"], score, numbers = _evaluated(line, self._normalize)
            if score is not None:
                values["evaluation/score"] = score
            values |= {f"evaluation/{number.name.replace(' ', '_')}": number.value for number in numbers}
        self._write(line["step"], float(line.get("seconds", 0)), values)


def _begin_tensorboard(folder: Path) -> tuple[_Write, Callable[[], None]]:
    """Begin event files, whose times are those of the training, from the start of the run on."""
    writing: Any = importlib.import_module("torch.utils.tensorboard")
    place = folder / "tensorboard"
    for old in place.glob("events.out.tfevents.*"):
        old.unlink()
    start = (folder / RUN_FILE).stat().st_mtime
    writer = writing.SummaryWriter(str(place))

    def write(step: int, seconds: float, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step, start + seconds)
        writer.flush()

    return write, writer.close


class _Sent(msgspec.Struct):
    id: str
    step: int = -1


def _begin_wandb(folder: Path) -> tuple[_Write, Callable[[], None]]:
    """Begin a run there, with the same id when it is resumed; points that it has are not sent again."""
    wandb: Any = importlib.import_module("wandb")
    path = folder / "wandb.json"
    sent = _Sent(id=secrets.token_hex(8))
    with contextlib.suppress(OSError, msgspec.DecodeError):
        sent = msgspec.json.decode(path.read_bytes(), type=_Sent)
    record = read_run(folder)
    group = f"{record.algorithm} {record.dataset}"
    if record.online is not None and record.online.run:
        group = f"finetune {group}"
    try:
        run = wandb.init(
            project="orlog",
            id=sent.id,
            resume="allow" if sent.step >= 0 else None,
            dir=str(folder),
            name=f"{group} seed {record.seed}",
            group=group,
            config=msgspec.to_builtins(record),
            settings=wandb.Settings(silent=True),
        )
    except Exception as error:  # such as no account on this machine
        raise NotFoundError(f"log='wandb': {clause(error)}; run: wandb login; or set WANDB_MODE=offline.") from error

    def write(step: int, seconds: float, values: dict[str, float]) -> None:
        if step > sent.step:
            sent.step = step
            replace_file(path, msgspec.json.encode(sent))
            run.log({**values, "training_seconds": seconds}, step=step)

    return write, run.finish
