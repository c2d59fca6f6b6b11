"""Trains a run in its folder, from the start or from a checkpoint, or goes on with a trained one in its environment."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
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
from orlog.algos.training import runs
from orlog.algos.training.data import (
    EVALUATING,
    TRAINING,
    RunData,
    StreamedData,
    device_versions,
    find_device,
    keep_freed_memory,
    load_for,
    one_thread,
    put_arrays,
    seeded,
    video_versions,
    with_rewards,
)
from orlog.algos.training.evaluating import curve_point, find_run, scoring_protocol, vector_environment
from orlog.algos.training.loop import train
from orlog.algos.training.online import DataSource, OnlineSource, check_explores, online_record
from orlog.algos.training.policy import (
    check_goal_to_act_for,
    check_rewards,
    find_tokenizer,
    fitting_form,
    make_from_record,
    make_policy,
    observation_width,
    reward_numbers,
    settings_from_data,
)
from orlog.base.code_version import sources_digest
from orlog.base.files import hash_file, hold_folder, make_folder, replace_file
from orlog.datasets.columns.vocabulary import read_vocabulary
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.datasets.reading.views import save_view
from orlog.datasets.worlds.environments import imported_modules
from orlog.errors import (
    DivergedError,
    MissingExtraError,
    NotFoundError,
    SchemaError,
    SimulatorError,
    StoppedError,
    clause,
)
from orlog.loaders.arrays import read_arrays
from orlog.normalize.references import Protocol

SAVES = 5
SAVE_SECONDS = 300.0
PROGRESS_SECONDS = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What training tells while it goes on, and how it is stopped.

    Attributes:
        progress: Called with steps done and steps in all: before the first step, then about twice a
            second.
        log: Called with each line of `metrics.jsonl` after it was written; a run that is resumed
            first calls it with the lines that stand.
        begin: Called before the first step, when the folder has the run's record. If it raises an
            error, what a new run has written is removed.
        stop: Called after each step; if it returns true, the state is saved and StoppedError is
            raised.
        note: Called with one line for each thing asked for that is left out or differs, and why.
        tell: Called with a line on each setting that is taken from the data.
    """

    progress: Callable[[int, int], None] = lambda _step, _steps: None
    log: Callable[[Mapping[str, Any]], None] = lambda _line: None
    begin: Callable[[], None] = lambda: None
    stop: Callable[[], bool] = lambda: False
    note: Callable[[str], None] = lambda _text: None
    tell: Callable[[str], None] = lambda _text: None


def train_run(
    algorithm: AlgorithmLike,
    dataset: Given,
    folder: runs.PathLike,
    options: runs.TrainOptions,
    hooks: Hooks | None = None,
    *,
    resume: bool = False,
    where: str = "ram",
) -> runs.RunRecord:
    """Train with the dataset's recipe, save the last state, and return the run's record.

    It uses one thread: networks of this size gain little from more, and the numbers then do not
    depend on the number of cores. Runs of several seeds belong in several processes. The state is
    saved after each point of the learning curve, and at least every 5 minutes.

    The folder must be new, unless `resume` is set: then it goes on from the folder's checkpoint, or from
    the start if it has none, and the options must be the same again. `where` is `ram`, or `mmap` for
    files that several processes share (`orlog.load_arrays`).
    """
    hooks = hooks or Hooks()
    seed, evaluations, settings = options.seed, options.evaluations, options.settings or {}
    device = find_device(options.device)
    precision = precision_here(options.precision, device, hooks.note)
    dataset, folder = load_dataset(dataset), runs.as_path(folder)
    runs.check_folder(folder, resume=resume)
    if (folder / runs.RUN_FILE).exists():
        find_tokenizer(folder, runs.read_run(folder).config)
    name = algorithm_name(algorithm)
    recipe = recipe_for(name, dataset, preset=options.preset)
    steps = recipe.steps if options.steps is None else options.steps
    kind = fitting_form(algorithm, dataset)
    config = run_config(kind, {**recipe.settings, **settings}, steps=steps, seed=seed)
    online = online_record(kind, config)
    protocol = None
    if online is not None:
        protocol = scoring_protocol(dataset, options.curve_episodes, trust_environment=options.trust_environment)
    elif evaluations:
        protocol = curve_protocol(kind, dataset, options.curve_episodes, options.trust_environment)
    data: RunData
    if options.stream and options.weights:
        raise SchemaError(
            f"{dataset.name}: steps that are streamed are not drawn by weights; leave out one of the two."
        )
    if options.stream:
        data = StreamedData(kind, config, dataset, hooks.note)
    else:
        data = load_for(kind, config, dataset, where, options.weights)
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
    plain = _plain(config)
    asked = {name: getattr(options, name) for name in runs.TrainOptions.__struct_fields__}
    decided = {"steps": steps, "preset": recipe.preset, "device": device, "precision": precision}
    record = runs.RunRecord(
        **asked | decided | {"settings": {name: plain[name] for name in settings}},
        algorithm=name,
        dataset=dataset.name,
        version=dataset.version,
        digest=dataset.digest,
        config=plain,
        obs_mean=mean.tolist(),
        obs_std=std.tolist(),
        versions={**runs.code_versions(), **device_versions(device), **video_versions(dataset)},
        source="; ".join([recipe.source, *taken]),
        reward_scale=scale,
        reward_shift=shift,
        standardize_observations=recipe.standardize_observations,
        online=online,
        imports=tuple(imported_modules()),
        code=sources_digest(kind),
    )
    if (folder / runs.RUN_FILE).exists():
        there = runs.check_same_run(folder, record, hooks.note)
        if runs.has_checkpoint(folder):
            # Its statistics hold, which may differ by rounding from those computed here.
            record = msgspec.structs.replace(there, device=device)
    source: DataSource | OnlineSource
    if online is None:
        source = DataSource(data.batches(kind, config, seed, device))
    else:
        assert protocol is not None
        packed = put_arrays(data.arrays, device)
        like = check_explores(kind, config, dataset, packed, online)
        source = OnlineSource(kind, config, dataset, packed, record, protocol, like)
    with one_thread():
        made = make_from_record(record, dataset, kind, device=device)
        if is_own(kind) and not runs.has_checkpoint(folder):
            again = make_from_record(record, dataset, kind, device=device)
            if drawn := runs.first_difference(made, again):
                hooks.note(
                    f"{name}: made twice with one seed, {drawn} differs: it depends on something that "
                    "the seed does not decide, so this run cannot be made again to the bit; seed each "
                    "generator that the class makes with its argument seed."
                )
            del again
        curve = protocol if evaluations else None
        _Trainer(made, source, dataset, folder, record, curve, hooks).run(resume=resume)
    return record


def find_finetuned(
    run: runs.PathLike,
    folder: runs.PathLike | None = None,
    *,
    dataset: Given | None = None,
    algorithm: AlgorithmLike | None = None,
) -> tuple[runs.RunRecord, Dataset, Path]:
    """Return record and dataset of a run to go on with, and the folder of the new run.

    Arguments are those of `finetune_run`.
    """
    record, data, _ = find_run(runs.as_path(run), dataset=dataset, algorithm=algorithm)
    return record, data, runs.as_path(folder or runs.run_folder(runs.FINETUNED, record.algorithm, data, record.seed))


def finetune_run(
    run: runs.PathLike,
    folder: runs.PathLike | None,
    options: runs.TrainOptions,
    online: Mapping[str, Any],
    hooks: Hooks | None = None,
    *,
    resume: bool = False,
    dataset: Given | None = None,
    algorithm: AlgorithmLike | None = None,
) -> tuple[Path, runs.RunRecord]:
    """Go on with a run in its environment; return the folder of the new run and its record.

    Each of `steps` takes one step in the environment and one update. Settings, transforms, seed, preset
    and precision are those of the run; `settings` among the options are those that differ. The
    evaluations come after the start, and no checkpoints are kept. The state is saved at ends of
    episodes, from which it goes on exactly, also once `stop` of the hooks returned true.

    `online` says how it acts there, by the names of `OnlineRecord`; what is "usual" is what the algorithm declares
    (`FINETUNING`), or the default. Which run it was is noted here.
    Dataset and algorithm are only given where the record does not find them.
    """
    hooks, settings, steps = hooks or Hooks(), options.settings or {}, options.steps or 0
    device, run = find_device(options.device), runs.as_path(run)
    old, data, named = find_run(run, dataset=dataset, algorithm=algorithm)
    kind = fitting_form(named, data)
    asked = {name: value for name, value in online.items() if value != "usual"}
    acts = runs.OnlineRecord(**{**getattr(kind, "FINETUNING", {}), **asked})
    prior, noise = acts.prior, acts.noise
    if steps < 1 or acts.random_steps < 0 or acts.warm_up_steps < 0:
        given = f"{steps}, {acts.random_steps} and {acts.warm_up_steps}"
        raise ValueError(f"steps must be >= 1, random_steps and warm_up_steps >= 0, found {given}.")
    if prior is not None and not 0 <= prior <= 1:
        raise ValueError(f"prior must lie in [0, 1], found {prior}.")
    if noise is not None and not 0 <= noise < math.inf:
        raise ValueError(f"noise must be finite and >= 0, found {noise}.")
    for name in settings:
        if name in of_run(kind):
            raise ValueError(f"{name} is that of the run and cannot be set here.")
    acts = msgspec.structs.replace(
        acts, run=str(run), checkpoint_sha256=hash_file(run / runs.CHECKPOINT_FILE), step=runs.saved_step(run) or 0
    )
    packed = read_arrays(data)
    like = check_explores(kind, make_config(kind, {**old.config, **settings}), data, packed, acts)
    protocol = scoring_protocol(data, max(1, options.curve_episodes), trust_environment=options.trust_environment)
    # A rate that has fallen to 0 along the run's steps would learn nothing more.
    constant = {"steps": None} if "steps" in of_run(kind) else {}
    config = make_config(kind, {**old.config, **settings, **constant})
    plain = _plain(config)
    record = msgspec.structs.replace(
        old,
        steps=steps,
        config=plain,
        settings={name: plain[name] for name in settings},
        evaluations=options.evaluations,
        curve_episodes=options.curve_episodes,
        keep_checkpoints=False,
        stream=False,
        trust_environment=options.trust_environment,
        log=options.log,
        versions={**runs.code_versions(), **device_versions(device), **video_versions(data)},
        device=device,
        online=acts,
        code=sources_digest(kind),
        later_code=(),
        earlier=(),
    )
    folder = runs.as_path(folder or runs.run_folder(runs.FINETUNED, old.algorithm, data, old.seed))
    runs.check_folder(folder, resume=resume)
    if (folder / runs.RUN_FILE).exists():
        there = runs.check_same_run(folder, record, hooks.note)
        record = msgspec.structs.replace(record, later_code=there.later_code, earlier=there.earlier)
    packed = put_arrays(with_rewards(packed, old.reward_scale, old.reward_shift), device)
    with one_thread(), seeded(kind, old.seed, TRAINING):
        made = make_from_record(record, data, kind, device=device)
        rates = [group["lr"] for group in _groups(made)]
        runs.load_state(made, run)
        if any(name.endswith("learning_rate") for name in settings):
            for group, rate in zip(_groups(made), rates, strict=True):
                group["lr"] = rate  # in place of that of the checkpoint
        source = OnlineSource(kind, config, data, packed, record, protocol, like)
        curve = protocol if options.evaluations else None
        _Trainer(made, source, data, folder, record, curve, hooks).run(resume=resume)
    return folder, record


def _groups(algorithm: Algorithm) -> list[dict[str, Any]]:
    parts = [getattr(algorithm, name) for name in runs.state_names(algorithm)]
    return [group for part in parts if isinstance(part, torch.optim.Optimizer) for group in part.param_groups]


def _plain(config: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return plain


def run_config(kind: type[Any], settings: Mapping[str, object], *, steps: int, seed: int) -> Any:
    """Return the configuration of an algorithm for a run, before settings are taken from data."""
    chosen = dict(settings)
    given = {"steps": steps, "seed": seed}
    for setting in of_run(kind):
        if chosen.setdefault(setting, given[setting]) != given[setting]:
            raise ValueError(f"{setting} is an option of its own, not one of the settings: use {setting}=.")
    return make_config(kind, chosen)


def precision_here(precision: str, device: str, note: Callable[[str], None] = lambda _text: None) -> Precision:
    """Return the precision to train in; float32, after a note, where bfloat16 is not faster."""
    if precision not in ("float32", "bf16"):
        raise ValueError(f"precision must be float32 or bf16, found {precision!r}.")
    if precision == "bf16" and has_fast_bf16(device):
        return "bf16"
    if precision == "bf16":
        note(f"training in float32: {no_fast_bf16(device)}.")
    return "float32"


def curve_protocol(kind: type[Any], dataset: Dataset, episodes: int, trust_environment: bool) -> Protocol:
    """Return how to evaluate for the learning curve, before a step is taken that nothing could score."""
    try:
        check_goal_to_act_for(kind, dataset)
        return scoring_protocol(dataset, episodes, trust_environment=trust_environment)
    except (MissingExtraError, NotFoundError, SimulatorError) as error:
        raise type(error)(f"{clause(error)}; or, to train without any evaluation: evaluations=0.") from error


@dataclasses.dataclass
class _Trainer:
    """One run and all that it needs to be trained; without a protocol its curve has no evaluations."""

    algorithm: Algorithm
    source: DataSource | OnlineSource
    dataset: Dataset
    folder: Path
    record: runs.RunRecord
    protocol: Protocol | None
    hooks: Hooks
    has_batches: bool = False

    def run(self, *, resume: bool) -> None:
        """Train from the start, or from the folder's checkpoint if it has one; see `train_run`."""
        folder, record = self.folder, self.record
        runs.check_state(self.algorithm)
        keep_freed_memory()
        with runs.write_errors(folder, None):
            make_folder(folder)
        busy = f"{folder}: another process is training in it; wait for it, or choose another folder."
        with hold_folder(folder, busy=busy), seeded(type(self.algorithm), record.seed, TRAINING):
            runs.check_folder(folder, resume=resume)  # again: another process may have used it by now
            there = runs.read_run(folder) if (folder / runs.RUN_FILE).exists() else None
            if there is not None:
                runs.check_same_run(folder, record)
            if there is not None and runs.has_checkpoint(folder):
                position = self._resume(there)
            else:
                position = runs.Position()
                with runs.write_errors(folder, None):
                    self._start()
            try:
                self.hooks.begin()
                self._train_and_log(position)
            except BaseException:
                if there is None and not self.has_batches:
                    with contextlib.suppress(OSError):
                        for name in (runs.RUN_FILE, runs.METRICS_FILE, runs.VIEW_FILE, runs.TOKENIZER_FILE):
                            (folder / name).unlink(missing_ok=True)
                        folder.rmdir()
                raise

    def _start(self) -> None:
        folder, digest = self.folder, self.record.config.get("tokenizer")
        if self.dataset.operation is not None:
            (folder / runs.VIEW_FILE).unlink(missing_ok=True)
            save_view(self.dataset, folder / runs.VIEW_FILE)
        replace_file(folder / runs.METRICS_FILE, b"")
        if isinstance(digest, str):
            replace_file(folder / runs.TOKENIZER_FILE, read_vocabulary(digest).text.encode())
        runs.write_record(folder, self.record)

    def _resume(self, there: runs.RunRecord) -> runs.Position:
        """Load the checkpoint, drop the log lines after it, and write how the run goes on."""
        folder, record = self.folder, self.record
        position = runs.load_state(self.algorithm, folder)
        with runs.write_errors(folder, position.step):
            logged = runs.keep_metrics(folder, position.step)
        for line in logged:
            self.hooks.log(line)
        if logged and not position.sums:
            position = dataclasses.replace(position, seconds=float(logged[-1].get("seconds", 0)))
        with runs.write_errors(folder, position.step):
            if record.steps > there.steps:
                position = dataclasses.replace(position, sums={})  # other lines of the log
                runs.write_record(folder, record)
        self.source.load(folder, position.online)
        with runs.write_errors(folder, position.step):
            if position.step < record.steps:
                runs.note_code(folder, sources_digest(type(self.algorithm)))
            if record.keep_checkpoints and self._is_point(position.step):
                runs.keep_checkpoint(folder, position.step)  # the run may have ended before it was kept
        return position

    @property
    def _every(self) -> int:
        return max(1, self.record.steps // 100)

    def _is_point(self, step: int) -> bool:
        """Whether the state is saved at a step, as evenly spread over the run and at its end."""
        steps, every = self.record.steps, self._every
        saves = self.record.evaluations if self.protocol is not None else SAVES
        points = (round(steps * number / saves) for number in range(1, saves + 1))
        return (step % every == 0 or step == steps) and any(step - every < point <= step for point in points)

    def _train_and_log(self, position: runs.Position) -> None:
        algorithm, source, folder, record = self.algorithm, self.source, self.folder, self.record
        protocol, hooks, every = self.protocol, self.hooks, self._every
        policy = make_policy(algorithm, self.dataset, record, device=record.device)
        first = finite_step = position.step
        seconds = position.seconds
        sums: dict[str, Tensor | float] = {**position.sums}
        last_save = first or None
        saved_at = shown_at = time.monotonic()
        is_due = False  # whether to save as soon as the source can be saved
        is_to_keep = False  # whether what is saved next belongs to the learning curve

        def pauses() -> bool:
            now = time.monotonic()
            due = is_due or now - saved_at > SAVE_SECONDS
            return hooks.stop() or now - shown_at > PROGRESS_SECONDS or (due and source.may_save)

        def evaluated(environments: SyncVectorEnv | None) -> dict[str, Any]:
            if environments is None or protocol is None:
                return {}
            with seeded(type(algorithm), record.seed, EVALUATING):  # training draws as without it
                return curve_point(policy, environments, protocol)

        def write(line: dict[str, Any]) -> None:
            with runs.write_errors(folder, last_save):
                runs.log_metrics(folder, line)

        with contextlib.ExitStack() as stack:
            environments = None
            if protocol is not None:
                environments = stack.enter_context(vector_environment(protocol))
            batches = stack.enter_context(source.batches(algorithm, first))
            self.has_batches = True
            hooks.progress(first, record.steps)
            if source.begins_trained and not first and environments is not None:
                line = {"step": 0, "seconds": 0.0, **evaluated(environments)}
                write(line)
                hooks.log(line)
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
                    is_last, is_point = step == record.steps, self._is_point(step)
                    stops = hooks.stop() and not is_last
                    is_to_keep |= is_point and record.keep_checkpoints
                    is_due |= is_point or stops or time.monotonic() - saved_at > SAVE_SECONDS
                    saves_now = is_due and (source.may_save or is_last)
                    if saves_now or is_point:
                        _check_finite(algorithm, sums, step)
                    if step % every == 0 or is_last:
                        line = {"step": step, "seconds": round(seconds, 3), **metrics}
                        line |= source.log((step - 1) // every * every, step)
                        line |= evaluated(environments) if is_point else {}
                        # Logged before the state is saved: a resumed run drops lines after its
                        # checkpoint, but cannot restore a missing one.
                        write(line)
                        hooks.log(line)
                        finite_step = step
                    if saves_now:
                        with runs.write_errors(folder, last_save):
                            totals, online = {name: float(total) for name, total in sums.items()}, source.save(folder)
                            position = runs.Position(step=step, sums=totals, seconds=seconds, online=online)
                            runs.save_state(algorithm, folder, position)
                            if is_to_keep:
                                runs.keep_checkpoint(folder, step)
                        last_save, saved_at, is_due, is_to_keep = step, time.monotonic(), False, False
                    if stops and saves_now:
                        raise StoppedError(
                            f"{folder}: stopped at step {step:,} of {record.steps:,}, where a checkpoint "
                            "was written; to continue, train again with resume=True.",
                            step=step,
                        )
                    hooks.progress(step, record.steps)
                    shown_at = time.monotonic()
                    started = time.perf_counter()
            except DivergedError as error:
                write({"step": error.step, "seconds": round(seconds, 3), "diverged": error.metric})
                raise _diverged(folder, record, error, finite_step, last_save) from error


def _check_finite(algorithm: Algorithm, sums: Mapping[str, Tensor | float], step: int) -> None:
    """Refuse to save or to score numbers that are not finite."""
    wrong = [name for name, total in sums.items() if not math.isfinite(float(total))]
    name = wrong[0] if wrong else runs.first_not_finite(algorithm)
    if name:
        raise DivergedError(f"{name} is not finite at step {step}.", step=step, metric=name)


def _diverged(
    folder: Path, record: runs.RunRecord, error: DivergedError, finite_step: int, last_save: int | None
) -> DivergedError:
    """Return the error that says what stands and what to try."""
    rates = [f"{name} {value:g}" for name, value in record.config.items() if name.endswith("learning_rate")]
    now = f" (now: {', '.join(rates)})" if rates else ""
    stands = (
        "there is no checkpoint from before"
        if last_save is None
        else f"its checkpoint of step {last_save:,} is kept, but would diverge again"
    )
    return DivergedError(
        f"{folder}: the run has diverged: {error.metric} was finite at step {finite_step:,} and is not "
        f"at step {error.step:,} of {record.steps:,}; {stands}; train in another folder with a "
        f"lower learning rate{now}, and look at the range of the rewards.",
        step=error.step,
        metric=error.metric,
    )
