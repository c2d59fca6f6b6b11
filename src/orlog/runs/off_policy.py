"""Off-policy evaluation of trained runs: what their dataset says of their checkpoints, and the truth.

For each checkpoint the value of its policy, the mean discounted return, is estimated from the dataset
alone and measured in the environment; then estimates and measured values are compared over checkpoints.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from orlog.algos.algorithms import Algorithm, AlgorithmLike, action_kind, takes_goals
from orlog.algos.fitted_q_evaluation import FQESettings
from orlog.algos.training.evaluating import exact_values, find_run, run_protocol, scoring_protocol
from orlog.algos.training.policy import make_from_record, make_policy
from orlog.algos.training.runs import PathLike, as_path, kept_checkpoints, load_state, one_thread
from orlog.base.jobs import do_jobs
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.given import Given
from orlog.errors import MissingExtraError, NotFoundError, SchemaError
from orlog.loaders.arrays.teams import is_team
from orlog.manifests.rebuilds import rebuild_notes
from orlog.normalize.references import Protocol
from orlog.normalize.statistics import percentile_interval
from orlog.normalize.value_estimates import (
    Terms,
    absolute_error,
    mean_terms,
    rank_correlation,
    regret,
    resampled_values,
    spread_of_fits,
)
from orlog.runs.policy_values import Logged, PolicyValues, fit_policy, read_logged

EPISODES = 20
ESTIMATORS = ("fqe", "critic", "wis", "pdwis", "dr", "wdr")
"""The estimators, in the order in which they are shown; docs/ope.md explains them."""
QUALITY: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "absolute_error": absolute_error,
    "rank_correlation": rank_correlation,
    "regret_at_1": regret,
}
"""How good the estimates of several checkpoints are."""


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval: a bootstrap over episodes, for `fqe` also the spread of its fits.

    The interval is None where resamples show no spread, or some of them have no such number.
    """

    value: float
    interval: tuple[float, float] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPolicy:
    """A checkpoint with its estimated values and the measured one.

    Attributes:
        run: Folder of the run.
        algorithm: Its algorithm.
        seed: Its seed.
        step: Gradient steps that the policy had taken.
        estimates: By estimator; without those that are left out.
        value: Measured mean discounted return; None if nothing was measured.
        mean_return: Measured mean undiscounted return of the same episodes.
        effective_episodes: How many equally weighted episodes the weights are worth; None without
            importance sampling.
        beyond_truncations: How much of `fqe`, `dr` and `wdr` at most stands for steps after
            truncations, which nothing recorded can correct: the mean over episodes of
            discount^H V(s_H), with H the length of a truncated episode.
    """

    run: Path
    algorithm: str
    seed: int
    step: int
    estimates: dict[str, Estimate]
    value: Estimate | None
    mean_return: float | None
    effective_episodes: float | None
    beyond_truncations: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyResult:
    """What `evaluate_off_policy` found.

    Attributes:
        dataset: Name of the dataset that the runs were trained on.
        digest: Its digest.
        on: Name of the other dataset that values were taken from; None if it is the same.
        on_digest: Its digest.
        discount: Weight of the next step in all values.
        settings: Settings of fitted Q evaluation.
        policies: The checkpoints.
        quality: By estimator, of those that all checkpoints have: `absolute_error`,
            `rank_correlation` and `regret_at_1`, over checkpoints. Empty if nothing was measured; with
            one checkpoint it holds the error only.
        left_out: By estimator the reason why it is left out.
        notes: What to know before the numbers are read, a sentence each.
        protocol: How returns were measured; None if they were not.
    """

    dataset: str
    digest: str
    on: str | None
    on_digest: str | None
    discount: float
    settings: FQESettings
    policies: list[EvaluatedPolicy]
    quality: dict[str, dict[str, Estimate]]
    left_out: dict[str, str]
    notes: list[str]
    protocol: Protocol | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        body: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        return body


def evaluate_off_policy(
    runs: PathLike | Sequence[PathLike],
    *,
    dataset: Given | None = None,
    on: Given | None = None,
    algorithm: AlgorithmLike | None = None,
    discount: float | None = None,
    episodes: int = EPISODES,
    settings: FQESettings | None = None,
    seed: int = 0,
    trust_environment: bool = False,
    workers: int | None = 1,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> OffPolicyResult:
    """Estimate the values of a run's checkpoints from recorded data, and compare them with the truth.

    Checkpoints are those that were kept in training (`keep_checkpoints`), or else the last one of each
    run. Policies act as in `orlog.evaluate`, without noise.

    Args:
        runs: A run or its folder, or several that were trained on the same dataset.
        dataset: What they were trained on, if its recorded name does not find it.
        on: Another dataset of the same spaces, or a split, that has no episode in common with it. Q
            is fitted to what the runs were trained on; first observations, weights and corrections
            are those of this one.
        algorithm: The algorithm of the runs, if it is not one of orlog's.
        discount: Weight of the next step, in (0, 1]; that of the algorithm by default, 0.99 if it has
            none.
        episodes: Episodes of each checkpoint in the environment; 0 measures nothing.
        settings: Settings of fitted Q evaluation.
        seed: Seed of its networks and batches, and of the bootstrap.
        trust_environment: Consent to arguments of the environment that come with the data.
        workers: Checkpoints at a time, each in a process of its own where there are several.
        progress: Called with steps of fitted Q evaluation done and in all.

    Raises:
        ValueError: runs of several datasets or discounts, a run that is named twice, a discount or
            setting out of range, or episodes of `on` that runs were trained on.
        NotFoundError: there is no run or no checkpoint, or its dataset is not here.
        IntegrityError: the dataset is not the one that the runs were trained on.
        CheckpointError: a checkpoint is damaged or belongs to another run.
        SchemaError: actions are neither a Box nor Discrete, policies act for goals or remember
            episodes, recorded log-probabilities are not such, or spaces of `on` are others.
        SimulatorError: the environment needs consent, or cannot be made.
        DivergedError: fitted Q evaluation has diverged.
        WorkerDiedError: a process died again and again.
    """
    several = [runs] if isinstance(runs, str) or not isinstance(runs, Sequence) else runs
    folders = [as_path(run) for run in several]
    if not folders or episodes < 0:
        raise ValueError(
            f"expected one run or more and episodes >= 0, found {folders}, {episodes}."
        )
    if discount is not None and not 0 < discount <= 1:
        raise ValueError(f"discount must be in (0, 1], found {discount:g}.")
    _check_named_once(folders)
    settings = settings or FQESettings()
    known = {folder: find_run(folder, dataset=dataset, algorithm=algorithm) for folder in folders}
    data = known[folders[0]][1]
    digests = {folder: f"{one.name} {one.digest[:19]}" for folder, (_, one, _) in known.items()}
    _check_alike("on", digests, "evaluate runs of one dataset at a time.")
    if discount is None:
        configs = {folder: record.config for folder, (record, _, _) in known.items()}
        discounts = {
            folder: one["discount"] for folder, one in configs.items() if "discount" in one
        }
        discount = float(next(iter(discounts.values()), 0.99))
        advice = f"say which one values are to have: discount={discount:g}."
        _check_alike("with the discount", discounts, advice)
    other = None if on is None else _other_dataset(load_dataset(on), data)
    notes = rebuild_notes(data.name, [data.version])
    task = _Task(
        data=data,
        other=other,
        algorithm=algorithm,
        discount=discount,
        settings=settings,
        seed=seed,
        protocol=_protocol(data, episodes, trust_environment, notes),
    )
    checkpoints = [
        (folder, step, path)
        for folder in folders
        for step, path in kept_checkpoints(folder).items()
    ]
    judged = _judge_all(task, checkpoints, workers, progress)
    if any(one.is_exact for one in judged):
        notes.append(
            "measured values are exact: the environment computes them, up to its time limit."
        )
    values = [one.values for one in judged]
    moved = max((one.fits.mean() - one.halfway for one in values), key=abs)
    notes.append(
        f"in the second half of the {settings.steps:,} steps of its fits, fqe moved by {moved:+.3g}; "
        f"--fqe-steps {5 * settings.steps} (settings=FQESettings(steps=..) in Python) lets it settle."
    )
    left_out: dict[str, str] = {}
    for one in values:
        left_out = {**one.left_out, **left_out}
    policies, quality = _compared(judged, seed, left_out)
    return OffPolicyResult(
        dataset=data.name,
        digest=data.digest,
        on=None if other is None else other.name,
        on_digest=None if other is None else other.digest,
        discount=discount,
        settings=settings,
        policies=policies,
        quality=quality,
        left_out=left_out,
        notes=notes,
        protocol=task.protocol,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What is the same for all checkpoints; the fields are as in `evaluate_off_policy`."""

    data: Dataset
    other: Dataset | None
    algorithm: AlgorithmLike | None
    discount: float
    settings: FQESettings
    seed: int
    protocol: Protocol | None


_Checkpoint: TypeAlias = tuple[Path, int, Path]
"""Folder of a run, step and file of one of its checkpoints."""


class _Judged(NamedTuple):
    """What the data say of a checkpoint, and its true value, where it was measured."""

    values: PolicyValues
    truth: Terms | None
    is_exact: bool
    policy: EvaluatedPolicy


def _judge_all(
    task: _Task,
    checkpoints: Sequence[_Checkpoint],
    workers: int | None,
    progress: Callable[[int, int], None],
) -> list[_Judged]:
    """Return what is known of all checkpoints, in their order, whoever looked at which of them."""
    each = task.settings.steps * task.settings.fits
    judged: list[_Judged] = []

    def show(now: int) -> None:
        progress(each * len(judged) + now, each * len(checkpoints))

    judge = functools.partial(_judge, task, progress=show if workers == 1 else _ignore)
    for one in do_jobs(judge, checkpoints, workers=workers):
        judged.append(one)
        show(0)
    _steps.clear()
    return judged


def _ignore(_now: int) -> None:
    """Tell nobody how far a process is."""


_steps: dict[str, Logged] = {}
"""The steps that this process has read, by the digest of their dataset: for the next checkpoint."""


def _logged(dataset: Dataset) -> Logged:
    if dataset.digest not in _steps:
        _steps[dataset.digest] = read_logged(dataset)
    return _steps[dataset.digest]


def _judge(task: _Task, checkpoint: _Checkpoint, *, progress: Callable[[int], None]) -> _Judged:
    """Return what the data say of a checkpoint, and what its policy gets in the environment."""
    (folder, step, path), data, protocol = checkpoint, task.data, task.protocol
    record, _, kind = find_run(folder, dataset=data, algorithm=task.algorithm)
    with one_thread():
        made = make_from_record(record, data, kind)
        load_state(made, folder, to_act=True, path=path)
        _check_policy(folder, made, data)
        values = fit_policy(
            made,
            record,
            _logged(data),
            _logged(task.other or data),
            discount=task.discount,
            settings=task.settings,
            seed=task.seed,
            progress=progress,
        )
        truth, mean_return, exact = None, None, None
        if protocol is not None:
            policy = make_policy(made, data, record)
            exact = exact_values(policy, protocol, [task.discount, 1.0])
            if exact is None:
                played = run_protocol(policy, protocol, discount=task.discount)
                truth, mean_return = mean_terms(played.discounted), float(played.returns.mean())
            else:
                truth, mean_return = mean_terms(np.array(exact[:1])), exact[1]
    policy_of_step = EvaluatedPolicy(
        run=folder,
        algorithm=record.algorithm,
        seed=record.seed,
        step=step,
        estimates={},
        value=None,
        mean_return=mean_return,
        effective_episodes=values.effective_episodes,
        beyond_truncations=values.beyond_truncations,
    )
    return _Judged(values, truth, exact is not None, policy_of_step)


def _check_named_once(folders: Sequence[Path]) -> None:
    """Raise ValueError if a run is named twice: its checkpoints would count twice in the quality of estimators."""
    seen: dict[Path, Path] = {}
    for folder in folders:
        same = seen.setdefault(folder.resolve(), folder)
        if same is not folder:
            raise ValueError(f"{same} and {folder} are the same run; name it once.")


def _other_dataset(other: Dataset, trained_on: Dataset) -> Dataset:
    """Return the dataset to take values from.

    Raises ValueError if it has episodes of the one that runs were trained on; SchemaError if it has other
    spaces.
    """
    for what in ("observation_space", "action_space"):
        expected, actual = getattr(trained_on, what), getattr(other, what)
        if actual != expected:
            raise SchemaError(
                f"{other.name}: {what} is {actual}, expected {expected} as in {trained_on.name}, which "
                "the runs were trained on."
            )
    known, named = (_stored_episodes(dataset) for dataset in (trained_on, other))
    if shared := len(known & named):
        raise ValueError(
            f"{shared:,} of {len(named):,} episodes of {other.name} are among those of "
            f"{trained_on.name} that the runs were trained on; name others: train on one part of "
            "split_dataset and estimate on the other."
        )
    return other


def _stored_episodes(dataset: Dataset) -> set[tuple[str, int]]:
    """Return digest and place of each episode in the stored version that holds it."""
    selection = dataset.selection()
    digests = [version.digest for version in selection.versions]
    places = zip(selection.source.tolist(), selection.index.tolist(), strict=True)
    return {(digests[source], index) for source, index in places}


def _check_alike(what: str, values: Mapping[Path, object], advice: str) -> None:
    """Raise ValueError if runs were trained with several values of what they should have in common."""
    for (first, value), (second, other) in itertools.pairwise(values.items()):
        if value != other:
            raise ValueError(
                f"{first} was trained {what} {value}, and {second} {what} {other}; {advice}"
            )


def _check_policy(folder: Path, algorithm: Algorithm, dataset: Dataset) -> None:
    """Raise SchemaError if a policy is no function of the observation, or its actions cannot be judged."""
    reason = ""
    if takes_goals(type(algorithm)):
        reason = "its policy acts for goals, which the rewards of the dataset do not follow"
    elif is_team(dataset):
        reason = f"its policy acts for all agents of {dataset.name} at once, and estimators judge the choices of one"
    elif hasattr(algorithm, "actor"):
        reason = (
            "its policy remembers the episode or draws noise, so it has no value by observation"
        )
    elif not hasattr(algorithm, "scaling"):
        reason = "its algorithm has no attribute scaling, which standardizes observations"
    elif action_kind(dataset.action_space) not in ("continuous", "discrete"):
        reason = f"actions are {dataset.action_space}, neither a Box nor Discrete"
    if reason:
        raise SchemaError(
            f"{folder}: {reason}; leave this run out, and measure its returns: orlog evaluate {folder}"
        )


def _protocol(
    dataset: Dataset, episodes: int, trust_environment: bool, notes: list[str]
) -> Protocol | None:
    """Return how returns are measured; None, after a note, where they cannot be."""
    if not episodes:
        notes.append("no returns were measured, as asked, so estimates are compared with nothing.")
        return None
    try:
        dataset.checked_environment(trust_environment=trust_environment)
        return scoring_protocol(dataset, episodes, trust_environment=trust_environment)
    except (MissingExtraError, NotFoundError) as error:
        notes.append(f"no returns were measured: {str(error).removesuffix('.')}.")
        return None


def _compared(
    judged: Sequence[_Judged], seed: int, left_out: dict[str, str]
) -> tuple[list[EvaluatedPolicy], dict[str, dict[str, Estimate]]]:
    """Return estimates, intervals and quality; the same resamples of episodes serve all policies."""
    rng = np.random.default_rng(np.random.SeedSequence((seed, 3)))
    terms = {
        (index, name): one.values.terms[name]
        for index, one in enumerate(judged)
        for name in ESTIMATORS
        if name in one.values.terms
    }
    draws = dict(zip(terms, resampled_values([*terms.values()], rng), strict=True))
    truths = [one.truth for one in judged if one.truth is not None]
    measured = resampled_values(truths, rng) if truths else None
    errors = spread_of_fits(np.stack([one.values.fits for one in judged]), rng)
    estimates: dict[str, dict[int, Estimate]] = {name: {} for name in ESTIMATORS}
    for (index, name), each in terms.items():
        if name == "fqe":
            draws[index, name] = draws[index, name] + errors[index]
        if np.isfinite(each.value):
            estimates[name][index] = _estimate(each.value, draws[index, name])
        else:
            left_out[name] = _why_no_number(each, judged[index].policy.step)
    policies = [
        dataclasses.replace(
            one.policy,
            estimates={name: of[index] for name, of in estimates.items() if index in of},
            value=None if measured is None else _estimate(truths[index].value, measured[index]),
        )
        for index, one in enumerate(judged)
    ]
    if measured is None:
        return policies, {}
    true_values = np.array([truth.value for truth in truths])
    quality = {}
    for name, of in estimates.items():
        if len(of) == len(judged):
            values = np.array([of[index].value for index in range(len(judged))])
            resampled = np.stack([draws[index, name] for index in range(len(judged))])
            quality[name] = _quality(values, resampled, true_values, measured)
    return policies, quality


def _estimate(value: float, draws: np.ndarray) -> Estimate:
    """Return a value with the interval of its resamples; none where they cannot show one."""
    if not np.isfinite(draws).all() or np.ptp(draws) == 0:
        return Estimate(value, None)
    low, high = percentile_interval(draws, 0.95)
    return Estimate(value, (float(low), float(high)))


def _why_no_number(terms: Terms, step: int) -> str:
    """Return why an estimate is not finite."""
    if not terms.denominators.sum(0).all():
        return f"no episode has any weight under the policy of step {step:,}."
    return (
        f"the weights under the policy of step {step:,} are too large for a number: each is a product of "
        "ratios over a long episode. wdr divides by their sum, and has no such limit."
    )


def _quality(
    estimates: np.ndarray, draws: np.ndarray, values: np.ndarray, measured: np.ndarray
) -> dict[str, Estimate]:
    """Return the measures of an estimator; draws and measured values are [policies, resamples]."""
    quality = {}
    for name, measure in QUALITY.items():
        value = measure(estimates, values)
        if np.isfinite(value) and (len(estimates) > 1 or name == "absolute_error"):
            resampled = np.full(1, np.nan)
            if np.isfinite(draws).all():
                pairs = zip(draws.T, measured.T, strict=True)
                resampled = np.array([measure(one, other) for one, other in pairs])
            quality[name] = _estimate(value, resampled)
    return quality
