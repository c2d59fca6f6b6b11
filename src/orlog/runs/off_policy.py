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
from typing import Any, TypeAlias

import msgspec
import numpy as np

from orlog.algos.algorithms import Algorithm, AlgorithmLike, action_kind, takes_goals
from orlog.algos.fitted_q_evaluation import FQESettings
from orlog.algos.settings import read_config
from orlog.algos.training.data import one_thread
from orlog.algos.training.evaluating import exact_values, find_run, run_protocol, scoring_protocol
from orlog.algos.training.policy import make_from_record, make_policy
from orlog.algos.training.runs import PathLike, as_path, kept_checkpoints, load_state
from orlog.base.jobs import do_jobs
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.errors import MissingExtraError, NotFoundError, SchemaError
from orlog.loaders.teams import is_team
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
        effective_episodes: How many equally weighted episodes the weights are worth; None without weights.
        beyond_truncations: Mean over episodes of discount^H V(s_H), with H the length of a truncated one: as much
            of `fqe`, `dr` and `wdr` stands for steps that nothing recorded can correct.
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
        quality: By estimator that all checkpoints have, over checkpoints: `absolute_error`, and of several also
            `rank_correlation` and `regret_at_1`. Empty if nothing was measured.
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
        raise ValueError(f"expected one run or more and episodes >= 0, found {folders}, {episodes}.")
    if discount is not None and not 0 < discount <= 1:
        raise ValueError(f"discount must be in (0, 1], found {discount:g}.")
    resolved = [folder.resolve() for folder in folders]
    if twice := [folder for folder in folders if resolved.count(folder.resolve()) > 1]:
        raise ValueError(f"{twice[0]} and {twice[1]} are the same run; name it once.")
    known = {folder: find_run(folder, dataset=dataset, algorithm=algorithm) for folder in folders}
    data = known[folders[0]][1]
    digests = {folder: f"{one.name} {one.digest[:19]}" for folder, (_, one, _) in known.items()}
    _check_alike("on", digests, "evaluate runs of one dataset at a time.")
    if discount is None:
        configs = {folder: record.config for folder, (record, _, _) in known.items()}
        discounts = {folder: one["discount"] for folder, one in configs.items() if "discount" in one}
        discount = float(next(iter(discounts.values()), 0.99))
        advice = f"say which one values are to have: discount={discount:g}."
        _check_alike("with the discount", discounts, advice)
    other = None if on is None else _other_dataset(load_dataset(on), data)
    notes = rebuild_notes(data.name, [data.version])
    result = OffPolicyResult(
        dataset=data.name,
        digest=data.digest,
        on=None if other is None else other.name,
        on_digest=None if other is None else other.digest,
        discount=discount,
        settings=read_config(FQESettings, "settings", msgspec.structs.asdict(settings or FQESettings())),
        policies=[],
        quality={},
        left_out={},
        notes=notes,
        protocol=_protocol(data, episodes, trust_environment, notes),
    )
    checkpoints = [(folder, step, path) for folder in folders for step, path in kept_checkpoints(folder).items()]
    judged: list[_Judged] = []
    steps = result.settings.steps
    each = steps * result.settings.fits

    def show(now: int) -> None:
        progress(each * len(judged) + now, each * len(checkpoints))

    tell = show if workers == 1 else _ignore
    judge = functools.partial(_judge, result, data, other, algorithm, seed, tell)
    for one in do_jobs(judge, checkpoints, workers=workers):
        judged.append(one)
        show(0)
    _logged.clear()
    _compare(result, judged, seed)
    moved = max((values.fits.mean() - values.halfway for _, values in judged), key=abs)
    notes.append(
        f"in the second half of the {steps:,} steps of its fits, fqe moved by {moved:+.3g}; --fqe-steps "
        f"{5 * steps} (settings=FQESettings(steps=..) in Python) lets it settle."
    )
    return result


_Judged: TypeAlias = tuple[dict[str, Any], PolicyValues]
"""Fields of an `EvaluatedPolicy`, and its values, the measured one as that of the estimator `true`."""


def _ignore(_now: int) -> None:
    """Tell nobody how far a process is."""


_logged: dict[str, Logged] = {}
"""The steps that this process has read, by the digest of their dataset: for the next checkpoint."""


def _judge(
    result: OffPolicyResult,
    data: Dataset,
    other: Dataset | None,
    algorithm: AlgorithmLike | None,
    seed: int,
    progress: Callable[[int], None],
    checkpoint: tuple[Path, int, Path],
) -> _Judged:
    """Return what the data say of a checkpoint, and what its policy gets in the environment."""
    (folder, step, path), protocol = checkpoint, result.protocol
    record, _, kind = find_run(folder, dataset=data, algorithm=algorithm)
    for dataset in (other or data, data):
        if dataset.digest not in _logged:
            _logged[dataset.digest] = read_logged(dataset)
    mean_return = None
    with one_thread():
        made = make_from_record(record, data, kind)
        load_state(made, folder, to_act=True, path=path)
        _check_policy(folder, made, data)
        values = fit_policy(
            made,
            record,
            _logged[data.digest],
            _logged[(other or data).digest],
            discount=result.discount,
            settings=result.settings,
            seed=seed,
            progress=progress,
        )
        if protocol is not None:
            policy = make_policy(made, data, record)
            exact = exact_values(policy, protocol, [result.discount, 1.0])
            if exact is None:
                played = run_protocol(policy, protocol, discount=result.discount)
                values.terms["true"] = mean_terms(played.discounted)
                mean_return = float(played.returns.mean())
            else:
                values.terms["true"], mean_return = mean_terms(np.array(exact[:1])), exact[1]
    facts = {"run": folder, "algorithm": record.algorithm, "seed": record.seed, "step": step}
    return {**facts, "mean_return": mean_return}, values


def _check_alike(what: str, values: Mapping[Path, object], advice: str) -> None:
    """Raise ValueError if runs were trained with several values of what they should have in common."""
    for (first, value), (second, other) in itertools.pairwise(values.items()):
        if value != other:
            raise ValueError(f"{first} was trained {what} {value}, and {second} {what} {other}; {advice}")


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


def _check_policy(folder: Path, algorithm: Algorithm, dataset: Dataset) -> None:
    """Raise SchemaError if a policy is no function of the observation, or its actions cannot be judged."""
    space = dataset.action_space
    if takes_goals(type(algorithm)):
        reason = "its policy acts for goals, which the rewards of the dataset do not follow"
    elif is_team(dataset):
        reason = f"its policy acts for all agents of {dataset.name} at once, and estimators judge one"
    elif hasattr(algorithm, "actor"):
        reason = "its policy remembers the episode or draws noise, so an observation has no value"
    elif not hasattr(algorithm, "scaling"):
        reason = "its algorithm has no attribute scaling, which standardizes observations"
    elif action_kind(space) not in ("continuous", "discrete"):
        reason = f"actions are {space}, neither a Box nor Discrete"
    else:
        return
    raise SchemaError(f"{folder}: {reason}; leave this run out, and measure its returns: orlog evaluate {folder}")


def _protocol(dataset: Dataset, episodes: int, trust_environment: bool, notes: list[str]) -> Protocol | None:
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


def _compare(result: OffPolicyResult, judged: Sequence[_Judged], seed: int) -> None:
    """Add estimates, intervals and quality; the same resamples of episodes serve all policies."""
    rng = np.random.default_rng(np.random.SeedSequence((seed, 3)))
    terms = {
        (index, name): values.terms[name]
        for index, (_, values) in enumerate(judged)
        for name in ESTIMATORS
        if name in values.terms
    }
    draws = dict(zip(terms, resampled_values([*terms.values()], rng), strict=True))
    truths = [values.terms["true"] for _, values in judged if "true" in values.terms]
    measured = resampled_values(truths, rng) if truths else None
    errors = spread_of_fits(np.stack([values.fits for _, values in judged]), rng)
    for index, (facts, values) in enumerate(judged):
        draws[index, "fqe"] = draws[index, "fqe"] + errors[index]
        for name, reason in values.left_out.items():
            result.left_out.setdefault(name, reason)
        estimates = {}
        for name in (name for name in ESTIMATORS if name in values.terms):
            if np.isfinite(values.terms[name].value):
                estimates[name] = _estimate(values.terms[name].value, draws[index, name])
            else:
                result.left_out[name] = _why_no_number(values.terms[name], facts["step"])
        policy = EvaluatedPolicy(
            **facts,
            estimates=estimates,
            value=None if measured is None else _estimate(truths[index].value, measured[index]),
            effective_episodes=values.effective_episodes,
            beyond_truncations=values.beyond_truncations,
        )
        result.policies.append(policy)
    if measured is None:
        return
    true_values = np.array([truth.value for truth in truths])
    for name in ESTIMATORS:
        if all(name in policy.estimates for policy in result.policies):
            values_of = np.array([policy.estimates[name].value for policy in result.policies])
            of_name = np.stack([draws[index, name] for index in range(len(judged))])
            result.quality[name] = _quality(values_of, of_name, true_values, measured)


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


def _quality(estimates: np.ndarray, draws: np.ndarray, values: np.ndarray, measured: np.ndarray) -> dict[str, Estimate]:
    """Return the measures of an estimator; draws and measured values are [policies, resamples]."""
    quality = {}
    for name, measure in QUALITY.items():
        value = measure(estimates, values)
        if np.isfinite(value) and (len(estimates) > 1 or name == "absolute_error"):
            resampled = np.full(1, np.nan)
            if np.isfinite(draws).all():
                resampled = np.array(list(map(measure, draws.T, measured.T)))
            quality[name] = _estimate(value, resampled)
    return quality
