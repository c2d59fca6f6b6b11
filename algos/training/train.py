"""Trains a run in its folder, from the start or from a checkpoint; logs, evaluates and saves it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from gymnasium.vector import SyncVectorEnv
from torch import Tensor

from orlog.algos.algorithms import Algorithm, AlgorithmLike, algorithm_name, is_own
from orlog.algos.presets import recipe_for
from orlog.algos.relu_networks import Precision, has_fast_bf16, no_fast_bf16
from orlog.algos.settings import make_config, of_run
from orlog.algos.training.checkpoint import check_state, first_difference, first_not_finite
from orlog.algos.training.commands import diverged, usual_rates
from orlog.algos.training.devices import device_versions, find_device, keep_freed_memory, put_arrays
from orlog.algos.training.evaluating import curve_point, scoring_protocol, vector_environment
from orlog.algos.training.from_data import (
    TOKENIZER_FILE,
    check_rewards,
    find_tokenizer,
    keep_tokenizer,
    reward_numbers,
    settings_from_data,
)
from orlog.algos.training.generators import EVALUATING, TRAINING, seeded
from orlog.algos.training.loop import train
from orlog.algos.training.metrics import METRICS_FILE, keep_metrics, log_metrics
from orlog.algos.training.online import DataSource, OnlineSource, check_explores, online_record
from orlog.algos.training.options import Hooks, TrainOptions
from orlog.algos.training.policy import (
    check_goal_to_act_for,
    fitting_form,
    make_from_record,
    make_policy,
    observation_width,
)
from orlog.algos.training.run_data import RunData, StreamedData, load_for
from orlog.algos.training.runs import (
    CHECKPOINT_FILE,
    RUN_FILE,
    VIEW_FILE,
    PathLike,
    Position,
    RunRecord,
    as_path,
    code_versions,
    has_checkpoint,
    keep_checkpoint,
    load_state,
    one_thread,
    read_run,
    save_state,
    write_errors,
)
from orlog.algos.training.same_run import check_same_run
from orlog.algos.training.seals import note_code, write_record
from orlog.base.code_version import sources_digest
from orlog.base.files import hold_folder, make_folder, replace_file
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.datasets.reading.views import save_view
from orlog.datasets.worlds.environments import imported_modules
from orlog.errors import DivergedError, MissingExtraError, NotFoundError, SimulatorError, StoppedError, clause
from orlog.normalize.references import Protocol

SAVES = 5
SAVE_SECONDS = 300.0
PROGRESS_SECONDS = 0.5


def train_run(
    algorithm: AlgorithmLike,
    dataset: Given,
    folder: PathLike,
    options: TrainOptions,
    hooks: Hooks | None = None,
    *,
    resume: bool = False,
    where: str = "ram",
) -> RunRecord:
    """Train with the dataset's recipe, save the last state, and return the run's record.

    It uses one thread: networks of this size gain little from more, and the numbers then do not
    depend on the number of cores. Runs of several seeds belong in several processes. The state is
    saved after each point of the learning curve, and at least every 5 minutes.

    The folder must be new, unless `resume` is set: then it goes on from the folder's checkpoint, or from
    the start if it has none, and the options must be the same again. `where` is `ram`, or `mmap` for
    files that several processes share (`orlog.load_arrays`).
    """
    hooks = hooks or Hooks()
    note, settings = hooks.note, options.settings or {}
    seed, evaluations = options.seed, options.evaluations
    curve_episodes, trust_environment = options.curve_episodes, options.trust_environment
    device = find_device(options.device)
    in_precision = precision_here(options.precision, device, note)
    dataset, folder = load_dataset(dataset), as_path(folder)
    check_folder(folder, resume=resume)
    if (folder / RUN_FILE).exists():
        find_tokenizer(folder, read_run(folder).config)
    name = algorithm_name(algorithm)
    recipe = recipe_for(name, dataset, preset=options.preset)
    steps = recipe.steps if options.steps is None else options.steps
    kind = fitting_form(algorithm, dataset)
    config = run_config(kind, {**recipe.settings, **settings}, steps=steps, seed=seed)
    online = online_record(kind, config)
    protocol = acting = None
    if online is not None:
        acting = scoring_protocol(dataset, curve_episodes, trust_environment=trust_environment)
        protocol = acting if evaluations else None
    elif evaluations:
        protocol = curve_protocol(kind, dataset, curve_episodes, trust_environment)
    data: RunData
    if options.stream:
        data = StreamedData(kind, config, dataset, note)
    else:
        data = load_for(kind, config, dataset, where)
    check_rewards(kind, name, data)
    scale, shift = reward_numbers(recipe.rewards, data)
    width = observation_width(dataset, kind)
    mean, std = torch.zeros(width), torch.ones(width)
    if recipe.standardize_observations:
        mean, std = data.statistics()
        # CORL adds 1e-3 to each deviation, so that constant numbers do not blow up.
        std = std + 1e-3
    data.change_rewards(scale, shift)
    config, taken = settings_from_data(kind, config, data)
    for line in taken:
        hooks.tell(line)
    plain = msgspec.json.decode(msgspec.json.encode(config))
    record = RunRecord(
        algorithm=name,
        dataset=dataset.name,
        version=dataset.version,
        digest=dataset.digest,
        seed=seed,
        steps=steps,
        config=plain,
        settings={one: plain[one] for one in settings},
        evaluations=evaluations,
        curve_episodes=curve_episodes,
        keep_checkpoints=options.keep_checkpoints,
        stream=options.stream,
        trust_environment=trust_environment,
        log=options.log,
        obs_mean=mean.tolist(),
        obs_std=std.tolist(),
        versions={**code_versions(), **device_versions(device)},
        preset=recipe.preset,
        source="; ".join([recipe.source, *taken]),
        reward_scale=scale,
        reward_shift=shift,
        standardize_observations=recipe.standardize_observations,
        device=device,
        precision=in_precision,
        online=online,
        imports=tuple(imported_modules()),
        code=sources_digest(kind),
    )
    if (folder / RUN_FILE).exists():
        there = check_same_run(folder, record, note)
        if has_checkpoint(folder):
            # Its statistics hold, which may differ by rounding from those computed here.
            record = msgspec.structs.replace(there, device=device)
    source: DataSource | OnlineSource
    if acting is None:
        source = DataSource(data.batches(kind, config, seed, device))
    else:
        assert online is not None
        packed = put_arrays(data.arrays, device)
        with_returns = check_explores(kind, config, dataset, packed, online)
        source = OnlineSource(kind, config, dataset, packed, record, acting, with_returns)
    with one_thread():
        made = make_from_record(record, dataset, kind, device=device)
        if is_own(kind) and not has_checkpoint(folder):
            again = make_from_record(record, dataset, kind, device=device)
            if drawn := first_difference(made, again):
                note(
                    f"{name}: made twice with one seed, {drawn} differs: it depends on something that "
                    "the seed does not decide, so this run cannot be made again to the bit; seed each "
                    "generator that the class makes with its argument seed."
                )
            del again
        Trainer(
            algorithm=made,
            source=source,
            dataset=dataset,
            folder=folder,
            record=record,
            protocol=protocol,
            saves=evaluations if protocol is not None else SAVES,
            keep_checkpoints=options.keep_checkpoints,
            hooks=hooks,
            code=sources_digest(kind),
        ).run(resume=resume)
    return record


def run_config(kind: type[Any], settings: Mapping[str, object], *, steps: int, seed: int) -> Any:
    """Return the configuration of an algorithm for a run, before settings are taken from data."""
    chosen = dict(settings)
    given = {"steps": steps, "seed": seed}
    for setting in of_run(kind):
        if chosen.setdefault(setting, given[setting]) != given[setting]:
            raise ValueError(f"{setting} is an option of its own, not one of the settings: use {setting}=.")
    return make_config(kind, chosen)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trainer:
    """One run and all that it needs to be trained.

    Attributes:
        algorithm: What is trained, as it is before the first step.
        source: Gives the batches.
        dataset: What it learns from.
        folder: Folder of the run.
        record: What `run.json` holds.
        protocol: How it is evaluated for the learning curve; None without evaluations.
        saves: How often the state is saved, evenly spread over the run and at its end.
        keep_checkpoints: Whether each of these checkpoints is kept.
        hooks: What it tells.
        code: The code that is here (`sources_digest`).
    """

    algorithm: Algorithm
    source: DataSource | OnlineSource
    dataset: Dataset
    folder: Path
    record: RunRecord
    protocol: Protocol | None
    saves: int
    keep_checkpoints: bool
    hooks: Hooks
    code: str

    def run(self, *, resume: bool) -> None:
        """Train from the start, or from the folder's checkpoint if it has one; see `train_run`."""
        folder, record = self.folder, self.record
        kind = type(self.algorithm)
        check_state(self.algorithm)
        keep_freed_memory()
        with _sole_trainer(folder), seeded(kind, record.seed, TRAINING):
            check_folder(folder, resume=resume)  # again: another process may have used it by now
            there = read_run(folder) if (folder / RUN_FILE).exists() else None
            if there is not None:
                check_same_run(folder, record)
            if has_checkpoint(folder):
                position = _resume(self.algorithm, folder, self.hooks.log)
                if there is not None and record.steps > there.steps:
                    position = dataclasses.replace(position, sums={})  # other lines of the log
                    with write_errors(folder, position.step):
                        write_record(folder / RUN_FILE, record)
                self.source.load(folder, position.online)
                if position.step < record.steps:
                    with write_errors(folder, position.step):
                        note_code(folder / RUN_FILE, self.code)
                if self.keep_checkpoints and self._is_point(position.step):
                    self._keep(position.step)  # the run may have ended before it was kept
            else:
                position = Position()
                _start(folder, record, self.dataset)
            try:
                self.hooks.begin()
            except BaseException:
                if there is None:
                    _take_back(folder)
                raise
            self._train_and_log(position)

    @property
    def _every(self) -> int:
        """Steps from one line of the log to the next."""
        return max(1, self.record.steps // 100)

    def _is_point(self, step: int) -> bool:
        """Whether the state is saved at a step as a point of the learning curve."""
        steps, every, saves = self.record.steps, self._every, self.saves
        if not (step % every == 0 or step == steps):
            return False
        return any(step - every < round(steps * one / saves) <= step for one in range(1, saves + 1))

    def _keep(self, step: int) -> None:
        with write_errors(self.folder, step):
            keep_checkpoint(self.folder, step)

    def _train_and_log(self, position: Position) -> None:
        algorithm, source, folder = self.algorithm, self.source, self.folder
        dataset, record, protocol = self.dataset, self.record, self.protocol
        progress, log, stop = self.hooks.progress, self.hooks.log, self.hooks.stop
        every = self._every
        policy = make_policy(algorithm, dataset, record, device=record.device)
        first = finite_step = position.step
        seconds = position.seconds
        sums: dict[str, Tensor | float] = {**position.sums}
        saved_step = first or None
        saved_at = shown_at = time.monotonic()
        is_due = False  # whether to save as soon as the source can be saved
        is_to_keep = False  # whether what is saved next belongs to the learning curve

        def pauses() -> bool:
            now = time.monotonic()
            due = is_due or now - saved_at > SAVE_SECONDS
            return stop() or now - shown_at > PROGRESS_SECONDS or (due and source.may_save)

        def evaluated(environments: SyncVectorEnv, protocol: Protocol) -> dict[str, Any]:
            with seeded(type(algorithm), record.seed, EVALUATING):  # training draws as without it
                return curve_point(policy, environments, protocol)

        with contextlib.ExitStack() as stack:
            environments = None
            if protocol is not None:
                environments = stack.enter_context(vector_environment(protocol))
            batches = stack.enter_context(source.batches(algorithm, first))
            progress(first, record.steps)
            if source.begins_trained and not first and protocol is not None and environments is not None:
                line: dict[str, Any] = {"step": 0, "seconds": 0.0}
                line |= evaluated(environments, protocol)
                with write_errors(folder, saved_step):
                    log_metrics(folder, line)
                log(line)
            started = time.perf_counter()
            try:
                for step, metrics in train(
                    algorithm,
                    batches,
                    first_step=first,
                    last_step=record.steps,
                    every=every,
                    sums=sums,
                    pauses=pauses,
                    precision=record.precision,
                ):
                    seconds += time.perf_counter() - started
                    is_logged = step % every == 0 or step == record.steps
                    is_point = is_logged and self._is_point(step)
                    stops = stop() and step < record.steps
                    is_to_keep |= is_point and self.keep_checkpoints
                    is_due |= is_point or stops or time.monotonic() - saved_at > SAVE_SECONDS
                    saves_now = is_due and (source.may_save or step == record.steps)
                    if saves_now or is_point:
                        _check_finite(algorithm, sums, step)
                    if is_logged:
                        line = {"step": step, "seconds": round(seconds, 3), **metrics}
                        line |= source.log((step - 1) // every * every, step)
                        if is_point and protocol is not None and environments is not None:
                            line |= evaluated(environments, protocol)
                        # Logged before the state is saved: a resumed run drops lines after its
                        # checkpoint, but cannot restore a missing one.
                        with write_errors(folder, saved_step):
                            log_metrics(folder, line)
                        log(line)
                        finite_step = step
                    if saves_now:
                        with write_errors(folder, saved_step):
                            position = Position(
                                step=step, sums=_floats(sums), seconds=seconds, online=source.save(folder)
                            )
                            save_state(algorithm, folder, position)
                            if is_to_keep:
                                keep_checkpoint(folder, step)
                                is_to_keep = False
                        saved_step, saved_at, is_due = step, time.monotonic(), False
                    if stops and saves_now:
                        raise StoppedError(
                            f"{folder}: stopped at step {step:,} of {record.steps:,}, where a checkpoint "
                            "was written; to continue, train again with resume=True.",
                            step=step,
                        )
                    progress(step, record.steps)
                    shown_at = time.monotonic()
                    started = time.perf_counter()
            except DivergedError as error:
                line = {"step": error.step, "seconds": round(seconds, 3), "diverged": error.metric}
                with write_errors(folder, saved_step):
                    log_metrics(folder, line)
                usual = usual_rates(algorithm, record, dataset)
                raise diverged(folder, record, error, finite_step, saved_step, usual) from error


def precision_here(precision: str, device: str, note: Callable[[str], None] = lambda _text: None) -> Precision:
    """Return the precision to train in; float32, after a note, where bfloat16 is not faster."""
    if precision == "float32":
        return "float32"
    if precision != "bf16":
        raise ValueError(f"precision must be float32 or bf16, found {precision!r}.")
    if has_fast_bf16(device):
        return "bf16"
    note(f"training in float32: {no_fast_bf16(device)}.")
    return "float32"


@contextlib.contextmanager
def _sole_trainer(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a folder; the lock ends with this one."""
    with write_errors(folder, None):
        make_folder(folder)
    busy = f"{folder}: another process is training in it; wait for it, or choose another folder."
    with hold_folder(folder, busy=busy):
        yield


def curve_protocol(kind: type[Any], dataset: Dataset, episodes: int, trust_environment: bool) -> Protocol:
    """Return how to evaluate for the learning curve, before a step is taken that nothing could score."""
    advice = "to train without any evaluation: evaluations=0."
    try:
        check_goal_to_act_for(kind, dataset)
        return scoring_protocol(dataset, episodes, trust_environment=trust_environment)
    except MissingExtraError as error:
        raise MissingExtraError(f"{clause(error)}; or, {advice}") from error
    except (NotFoundError, SimulatorError) as error:
        raise type(error)(f"{clause(error)}; {advice}") from error


def check_folder(folder: Path, *, resume: bool) -> None:
    """Refuse a folder with a run that is not to be resumed, or that lacks a file."""
    has_record = (folder / RUN_FILE).exists()
    if not resume and (has_record or has_checkpoint(folder)):
        raise FileExistsError(
            f"{folder} holds a run already; continue (resume=True), replace it (overwrite=True), or name another folder."
        )
    if has_checkpoint(folder) and not has_record:
        raise NotFoundError(
            f"{folder / RUN_FILE} is missing, and without it {CHECKPOINT_FILE} cannot be used; "
            "restore it, or train in another folder."
        )


def _start(folder: Path, record: RunRecord, dataset: Dataset) -> None:
    """Write the files that a run has before its first step."""
    with write_errors(folder, None):
        if dataset.operation is not None:
            (folder / VIEW_FILE).unlink(missing_ok=True)
            save_view(dataset, folder / VIEW_FILE)
        replace_file(folder / METRICS_FILE, b"")
        keep_tokenizer(folder, record.config)
        write_record(folder / RUN_FILE, record)


def _take_back(folder: Path) -> None:
    """Remove what `_start` wrote, and the folder if it is empty."""
    with contextlib.suppress(OSError):
        for name in (RUN_FILE, METRICS_FILE, VIEW_FILE, TOKENIZER_FILE):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _resume(algorithm: Algorithm, folder: Path, log: Callable[[Mapping[str, Any]], None]) -> Position:
    """Load a run's checkpoint into an algorithm and drop the log lines after it."""
    position = load_state(algorithm, folder)
    with write_errors(folder, position.step):
        logged = keep_metrics(folder, position.step)
    for line in logged:
        log(line)
    if logged and not position.sums:
        return dataclasses.replace(position, seconds=float(logged[-1].get("seconds", 0)))
    return position


def _check_finite(algorithm: Algorithm, sums: Mapping[str, Tensor | float], step: int) -> None:
    """Refuse to save or to score numbers that are not finite."""
    wrong = [name for name, total in _floats(sums).items() if not math.isfinite(total)]
    name = next(iter(wrong), "") or first_not_finite(algorithm)
    if name:
        raise DivergedError(f"{name} is not finite at step {step}.", step=step, metric=name)


def _floats(sums: Mapping[str, Tensor | float]) -> dict[str, float]:
    return {name: float(total) for name, total in sums.items()}
