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

from orlog.algos.algorithms import (
    ALGORITHMS,
    Algorithm,
    AlgorithmLike,
    algorithm_name,
    is_own,
    takes_goals,
)
from orlog.algos.presets import Rewards, recipe_for
from orlog.algos.relu_networks import Precision, has_fast_bf16, no_fast_bf16
from orlog.algos.settings import make_config
from orlog.algos.training.checkpoint import check_state, first_difference, first_not_finite
from orlog.algos.training.commands import resume_command, setting_text
from orlog.algos.training.devices import device_versions, find_device, put_arrays
from orlog.algos.training.evaluating import curve_point, scoring_protocol, vector_environment
from orlog.algos.training.from_data import settings_from_data
from orlog.algos.training.generators import EVALUATING, TRAINING, seeded
from orlog.algos.training.loop import train
from orlog.algos.training.memory import keep_freed_memory
from orlog.algos.training.metrics import METRICS_FILE, keep_metrics, log_metrics
from orlog.algos.training.online import DataSource, OnlineSource, check_explores, online_record
from orlog.algos.training.options import Hooks, TrainOptions
from orlog.algos.training.policy import (
    check_goal_to_act_for,
    fitting_form,
    make_from_record,
    make_policy,
)
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
)
from orlog.base.files import hold_folder, make_folder, replace_file
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.given import Given
from orlog.datasets.reading.views import save_view
from orlog.errors import (
    DivergedError,
    MissingExtraError,
    NotFoundError,
    OrlogError,
    SchemaError,
    SimulatorError,
    StoppedError,
    StorageError,
    clause,
)
from orlog.loaders.arrays.arrays import Arrays
from orlog.loaders.arrays.places import load_arrays
from orlog.loaders.arrays.statistics import finite_returns
from orlog.loaders.transforms import scale_rewards
from orlog.manifests.documents import write_json
from orlog.manifests.environments import imported_modules
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
    in_precision = _precision_here(options.precision, device, note)
    dataset, folder = load_dataset(dataset), as_path(folder)
    check_folder(folder, resume=resume)
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
        protocol = _curve_protocol(kind, dataset, curve_episodes, trust_environment)
    packed = load_arrays(dataset, where)
    _check_rewards(kind, name, packed)
    scale, shift = reward_numbers(recipe.rewards, packed)
    mean, std = torch.zeros(packed.obs_dim), torch.ones(packed.obs_dim)
    if recipe.standardize_observations:
        mean, std = packed.observation_statistics()
        # CORL adds 1e-3 to each deviation, so that constant numbers do not blow up.
        std = std + 1e-3
    packed = with_rewards(packed, scale, shift)
    config, taken = settings_from_data(kind, config, packed)
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
    )
    if (folder / RUN_FILE).exists():
        there = check_same_run(folder, record, note)
        if has_checkpoint(folder):
            # Its statistics hold, which may differ by rounding from those computed here.
            record = msgspec.structs.replace(there, device=device)
    packed = put_arrays(packed, device)
    source: DataSource | OnlineSource
    if acting is None:
        source = DataSource(kind=kind, config=config, packed=packed, seed=seed, device=device)
    else:
        assert online is not None
        batch = check_explores(kind, config, dataset, packed, online)
        source = OnlineSource(kind, config, dataset, packed, record, acting, batch)
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
        ).run(resume=resume)
    return record


def run_config(kind: type[Any], settings: Mapping[str, object], *, steps: int, seed: int) -> Any:
    """Return the configuration of an algorithm for a run, before settings are taken from data."""
    chosen = dict(settings)
    of_run = {"steps": steps, "seed": seed}
    for setting in kind.FROM_RUN:
        if chosen.setdefault(setting, of_run[setting]) != of_run[setting]:
            raise ValueError(
                f"{setting} is an option of its own: use --{setting}, not --set {setting}."
            )
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

    def run(self, *, resume: bool) -> None:
        """Train from the start, or from the folder's checkpoint if it has one; see `train_run`."""
        folder, record = self.folder, self.record
        kind = type(self.algorithm)
        check_state(self.algorithm)
        keep_freed_memory()
        with _sole_trainer(folder), seeded(kind, record.seed, TRAINING):
            check_folder(folder, resume=resume)  # again: another process may have used it by now
            is_new = not (folder / RUN_FILE).exists()
            if not is_new:
                check_same_run(folder, record)
            if has_checkpoint(folder):
                position = _resume(self.algorithm, folder, self.hooks.log)
                self.source.load(folder, position.online)
                if self.keep_checkpoints and self._is_point(position.step):
                    self._keep(position.step)  # the run may have ended before it was kept
            else:
                position = Position()
                _start(folder, record, self.dataset)
            try:
                self.hooks.begin()
            except BaseException:
                if is_new:
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
        with _write_errors(self.folder, step):
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
            if (
                source.begins_trained
                and not first
                and protocol is not None
                and environments is not None
            ):
                line: dict[str, Any] = {"step": 0, "seconds": 0.0}
                line |= evaluated(environments, protocol)
                with _write_errors(folder, saved_step):
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
                        with _write_errors(folder, saved_step):
                            log_metrics(folder, line)
                        log(line)
                        finite_step = step
                    if saves_now:
                        with _write_errors(folder, saved_step):
                            position = Position(
                                step=step,
                                sums=_floats(sums),
                                seconds=seconds,
                                online=source.save(folder),
                            )
                            save_state(algorithm, folder, position)
                            if is_to_keep:
                                keep_checkpoint(folder, step)
                                is_to_keep = False
                        saved_step, saved_at, is_due = step, time.monotonic(), False
                    if stops and saves_now:
                        raise StoppedError(
                            f"{folder}: stopped at step {step:,} of {record.steps:,}, where a checkpoint "
                            "was written; to continue, train again with --resume (resume=True in "
                            "Python).",
                            step=step,
                        )
                    progress(step, record.steps)
                    shown_at = time.monotonic()
                    started = time.perf_counter()
            except DivergedError as error:
                line = {"step": error.step, "seconds": round(seconds, 3), "diverged": error.metric}
                with _write_errors(folder, saved_step):
                    log_metrics(folder, line)
                usual = _usual_rates(algorithm, record, dataset)
                raise _diverged(folder, record, error, finite_step, saved_step, usual) from error


def _precision_here(precision: str, device: str, note: Callable[[str], None]) -> Precision:
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
    with _write_errors(folder, None):
        make_folder(folder)
    busy = f"{folder}: another process is training in it; wait for it, or choose another folder."
    with hold_folder(folder, busy=busy):
        yield


def _curve_protocol(
    kind: type[Any], dataset: Dataset, episodes: int, trust_environment: bool
) -> Protocol:
    """Return how to evaluate for the learning curve, before a step is taken that nothing could score."""
    advice = "to train without any evaluation: --evaluations 0 (evaluations=0)."
    try:
        check_goal_to_act_for(kind, dataset)
        return scoring_protocol(dataset, episodes, trust_environment=trust_environment)
    except MissingExtraError as error:
        raise MissingExtraError(f"{clause(error)}; or, {advice}", extra=error.extra) from error
    except (NotFoundError, SimulatorError) as error:
        raise type(error)(f"{clause(error)}; {advice}") from error


def _check_rewards(kind: type[Any], name: str, packed: Arrays) -> None:
    """Refuse data whose rewards are all 0 to an algorithm of orlog's that learns from them."""
    if name not in ALGORITHMS or takes_goals(kind) or not getattr(kind, "REWARDS", True):
        return
    if not bool(packed.rows[:, packed.columns["rewards"]].any()):
        goals = [one for one in ALGORITHMS if takes_goals(ALGORITHMS[one])]
        raise SchemaError(
            f"{packed.name}: every reward is 0, and {name} learns from rewards; imitate the actions "
            f"(bc), learn to reach goals ({', '.join(goals)}), or record the data with rewards."
        )


def reward_numbers(rewards: Rewards, packed: Arrays) -> tuple[float, float]:
    """Return the factor and the shift that rewards of a dataset are trained with.

    A range of returns that is 0 is refused where they depend on it.
    """
    scale = rewards.scale
    if rewards.return_range is not None:
        returns = finite_returns(packed)
        spread = float(returns.max() - returns.min())
        if not spread > 0:
            raise SchemaError(
                f"{packed.name}: rewards are to be scaled by the range of returns, but all "
                f"{len(returns)} episodes have the return {returns[0]:g}; choose another preset, or "
                "the defaults: --preset none, or preset='none' in Python."
            )
        scale *= rewards.return_range / spread
    return scale, rewards.shift


def with_rewards(packed: Arrays, scale: float, shift: float) -> Arrays:
    """Return the arrays with `scale * reward + shift` written into them; the stream stays as it is.

    Only rewards change, in place, so nothing is copied; draws depend on the digest, which is kept.
    """
    if (scale, shift) == (1.0, 0.0):
        return packed
    changed = scale_rewards(packed, scale=scale, shift=shift, in_place=True)
    return dataclasses.replace(changed, digest=packed.digest)


def check_folder(folder: Path, *, resume: bool) -> None:
    """Refuse a folder with a run that is not to be resumed, or that lacks a file."""
    has_record = (folder / RUN_FILE).exists()
    if not resume and (has_record or has_checkpoint(folder)):
        raise FileExistsError(
            f"{folder} holds a run already; choose another folder, or continue it with --resume "
            "(resume=True in Python)."
        )
    if has_checkpoint(folder) and not has_record:
        raise NotFoundError(
            f"{folder / RUN_FILE} is missing, and without it {CHECKPOINT_FILE} cannot be used; "
            "restore it, or train in another folder."
        )


def _start(folder: Path, record: RunRecord, dataset: Dataset) -> None:
    """Write the files that a run has before its first step."""
    with _write_errors(folder, None):
        if dataset.operation is not None:
            (folder / VIEW_FILE).unlink(missing_ok=True)
            save_view(dataset, folder / VIEW_FILE)
        replace_file(folder / METRICS_FILE, b"")
        body = {"algorithm": record.algorithm, "dataset": record.dataset}  # what a reader looks for
        body |= msgspec.to_builtins(record)
        if record.online is None:
            del body["online"]
        write_json(folder / RUN_FILE, body)


def _take_back(folder: Path) -> None:
    """Remove what `_start` wrote, and the folder if it is empty then."""
    with contextlib.suppress(OSError):
        for name in (RUN_FILE, METRICS_FILE, VIEW_FILE):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _resume(
    algorithm: Algorithm, folder: Path, log: Callable[[Mapping[str, Any]], None]
) -> Position:
    """Load a run's checkpoint into an algorithm and drop the log lines after it."""
    position = load_state(algorithm, folder)
    with _write_errors(folder, position.step):
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
        raise DivergedError(f"{name} is not finite after {step} steps.", step=step, metric=name)


def _usual_rates(algorithm: Algorithm, record: RunRecord, dataset: Dataset) -> dict[str, float]:
    """Return the numbers that the run's preset, or else the algorithm, has for its settings."""
    fields = dataclasses.fields(type(algorithm).CONFIG)
    found: dict[str, Any] = {field.name: field.default for field in fields}
    with contextlib.suppress(ValueError):  # the preset of a run may be from another orlog
        found |= recipe_for(record.algorithm, dataset, preset=record.preset).settings
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def _diverged(
    folder: Path,
    record: RunRecord,
    error: DivergedError,
    finite_step: int,
    saved_step: int | None,
    usual: Mapping[str, float],
) -> DivergedError:
    """Return the error that says what stands and what to try."""
    rates = {name: value for name, value in record.config.items() if name.endswith("learning_rate")}
    lower = " ".join(
        f"--set {name}={min(float(f'{value / 3:.0e}'), usual.get(name, math.inf)):g}"
        for name, value in rates.items()
    )
    before = ", ".join(f"{name} {value:g}" for name, value in rates.items())
    advice = f", such as {lower} (now: {before})" if rates else ""
    stands = (
        "there is no checkpoint from before"
        if saved_step is None
        else f"its checkpoint of step {saved_step:,} is kept, but would diverge again"
    )
    return DivergedError(
        f"{folder}: the run has diverged: {error.metric} was finite at step {finite_step:,} and is not "
        f"at step {error.step:,} of {record.steps:,}; {stands}; train in another folder (--out) with a "
        f"lower learning rate{advice}, and look at the range of the rewards.",
        step=error.step,
        metric=error.metric,
    )


def _floats(sums: Mapping[str, Tensor | float]) -> dict[str, float]:
    return {name: float(total) for name, total in sums.items()}


@contextlib.contextmanager
def _write_errors(folder: Path, saved_step: int | None) -> Iterator[None]:
    """Turn errors of a full or unwritable disk into a StorageError: what was saved, what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OrlogError):
            raise
        stands = (
            "it has no checkpoint yet"
            if saved_step is None
            else f"its checkpoint of step {saved_step:,} is kept"
        )
        raise StorageError(
            f"{folder}: cannot write the run: {error.strerror or error}; {stands}; free some space, "
            "then run the same command with --resume (resume=True in Python).",
            errno=error.errno,
        ) from error


MAY_DIFFER = frozenset(
    {"dataset", "version", "preset", "source", "settings", "log", "trust_environment", "versions"}
    | {"obs_mean", "obs_std", "imports"}
)
"""Fields that change no number of a run; its record keeps those that it began with."""
_ASKED = ("evaluations", "curve_episodes", "keep_checkpoints")


def check_same_run(
    folder: Path, record: RunRecord, note: Callable[[str], None] = lambda _text: None
) -> RunRecord:
    """Return the record in a folder; refuse to continue it where it is of another run."""
    there = read_run(folder)
    is_known = there.settings is not None  # older records do not say what was asked for
    for name in RUNS_IN_WORDS:
        found, wanted = getattr(there, name), getattr(record, name)
        if name in _ASKED and not is_known:
            continue
        if name == "device":  # the numbers of its generators fit any device of the same kind
            found, wanted = (one.partition(":")[0] for one in (found, wanted))
        if found != wanted:
            raise FileExistsError(_of_another_run(folder, there, record, name))
    if not is_known:
        note(
            f"{folder / RUN_FILE} is of an older orlog and does not say evaluations or "
            f"keep_checkpoints: it goes on with {record.evaluations} evaluations, "
            f"{'keeping' if record.keep_checkpoints else 'not keeping'} checkpoints."
        )
    for name in ("version", "preset", *(["log"] if is_known else [])):
        found, wanted = getattr(there, name), getattr(record, name)
        if found != wanted:
            note(f"{folder}: began with {name} {found or 'none'}, and goes on with {wanted}.")
    for package in sorted({*there.versions} & {*record.versions}):
        if there.versions[package] != record.versions[package]:
            note(
                f"{folder}: began with {package} {there.versions[package]}, and goes on with "
                f"{record.versions[package]}: it may not equal a run that was never stopped."
            )
    return there


RUNS_IN_WORDS = {
    "algorithm": ("a run of the algorithm {}, not {}", "train {}"),
    "digest": ("a run on the data {}, not {}", "name its dataset and version"),
    "seed": ("a run with the seed {}, not {}", "give --seed {}"),
    "steps": ("a run of {} steps, not {}", "give --steps {}"),
    "config": ("a run with {}, not {}", "give the settings that it has"),
    "reward_scale": ("a run whose rewards are scaled by {}, not by {}", "give its --preset"),
    "reward_shift": ("a run whose rewards are shifted by {}, not by {}", "give its --preset"),
    "standardize_observations": (
        "a run where standardized observations are {}, not {}",
        "give its --preset",
    ),
    "online": ("a run that acts with {}, not {}", "give the options that it has"),
    "precision": ("a run with the precision {}, not {}", "give --precision {}"),
    "device": ("a run on the device {}, not {}", "give --device {}"),
    "evaluations": ("a run with {} evaluations, not {}", "give --evaluations {}"),
    "curve_episodes": (
        "a run with {} episodes at each evaluation, not {}",
        "give --curve-episodes {}",
    ),
    "keep_checkpoints": ("a run where keep_checkpoints is {}, not {}", ""),
}


def _of_another_run(folder: Path, there: RunRecord, record: RunRecord, name: str) -> str:
    """Return why a run cannot be continued whose field `name` differs, and what to do."""
    has, to_continue = RUNS_IN_WORDS[name]
    found, wanted = getattr(there, name), getattr(record, name)
    if name == "online":
        found, wanted = (msgspec.to_builtins(one) or {} for one in (found, wanted))
    if name in ("config", "online"):
        names = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
        found, wanted = (
            ", ".join(f"{key} {setting_text(some.get(key))}" for key in names)
            for some in (found, wanted)
        )
    has, to_continue = has.format(found, wanted), to_continue.format(found)
    if name == "keep_checkpoints":
        to_continue = "give --keep-checkpoints" if found else "leave out --keep-checkpoints"
    return (
        f"{folder} holds {has}; to continue it, {to_continue}, or take all its options from its "
        f"record: {resume_command(folder, there)}; or choose another folder."
    )
