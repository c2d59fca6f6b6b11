"""Off-policy evaluation of trained runs: what their dataset says of their checkpoints, and the truth.

For each checkpoint the value of its policy, the mean discounted return, is estimated from the dataset
alone and measured in the environment; then estimates and measured values are compared over checkpoints.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from orlog.algos.algorithms import Algorithm, AlgorithmLike, action_kind, takes_goals
from orlog.algos.fitted_q_evaluation import FQESettings
from orlog.algos.training.evaluating import exact_values, find_run, run_protocol, scoring_protocol
from orlog.algos.training.policy import make_from_record, make_policy
from orlog.algos.training.runs import (
    PathLike,
    RunRecord,
    as_path,
    kept_checkpoints,
    load_state,
    one_thread,
)
from orlog.base.jobs import do_jobs
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.given import Given
from orlog.errors import MissingExtraError, NotFoundError, SchemaError
from orlog.loaders.arrays.teams import is_team
from orlog.manifests.rebuilds import rebuild_notes
from orlog.normalize import value_estimates
from orlog.normalize.references import Protocol
from orlog.normalize.statistics import percentile_interval
from orlog.normalize.value_estimates import Terms
from orlog.runs.policy_values import Logged, PolicyValues, fit_policy, read_logged

EPISODES = 20
RESAMPLES = 1000

ESTIMATORS = {
    "fqe": "fitted Q evaluation",
    "critic": "the trained critic's value of first observations",
    "wis": "weighted importance sampling",
    "pdwis": "weighted importance sampling, per decision",
    "dr": "doubly robust",
    "wdr": "weighted doubly robust",
}
"""The estimators, in the order in which they are shown."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its 95 % interval: a bootstrap over episodes, for `fqe` also the spread of its fits.

    Attributes:
        value: The number.
        interval: None where resamples show no spread, or some of them have no such number.
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
        body: dict[str, Any] = msgspec.to_builtins(
            {field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            enc_hook=str,
        )
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
    folders = [as_path(one) for one in several]
    _check_named_once(folders)
    settings = settings or FQESettings()
    if not folders or episodes < 0:
        raise ValueError(
            f"expected one run or more and episodes >= 0, found {folders}, {episodes}."
        )
    found = [find_run(folder, dataset=dataset, algorithm=algorithm) for folder in folders]
    data = _same_dataset(folders, found)
    other = None if on is None else _other_dataset(load_dataset(on), data)
    judged_on = other or data
    gamma = _discount(folders, [record for record, _, _ in found], discount)
    checkpoints: list[_Checkpoint] = [
        (folder, step, path)
        for folder in folders
        for step, path in kept_checkpoints(folder).items()
    ]
    what = (
        f"values are means of returns discounted by {gamma:g} for each step; estimates are over the "
        f"first observations of {judged_on.name}, measured ones over the resets of the environment."
    )
    notes = [what, *rebuild_notes(data.name, [data.version])]
    protocol = _protocol(data, episodes, trust_environment, notes)
    if protocol is not None:
        notes += _notes_on_ends(protocol, gamma)
    judging = _Judging(
        data=data,
        other=other,
        algorithm=algorithm,
        discount=gamma,
        settings=settings,
        seed=seed,
        protocol=protocol,
    )
    found_of = _judge_all(judging, checkpoints, workers, progress)
    left_out: dict[str, str] = {}
    for one in found_of:
        left_out |= {name: why for name, why in one.values.left_out.items() if name not in left_out}
    values = [one.values for one in found_of]
    policies = [one.policy for one in found_of]
    truths = [one.truth for one in found_of if one.truth is not None]
    if any(one.is_exact for one in found_of):
        notes.append(
            f"measured values are exact: {protocol and protocol.environment_id} computes them from its transitions, "
            "up to its time limit."
        )
    evaluated, quality = _compared(policies, values, truths, left_out, seed)
    return OffPolicyResult(
        dataset=data.name,
        digest=data.digest,
        on=None if other is None else other.name,
        on_digest=None if other is None else other.digest,
        discount=gamma,
        settings=settings,
        policies=evaluated,
        quality=quality,
        left_out=left_out,
        notes=[
            *notes,
            _note_on_steps(values, settings),
            *_notes_on_estimates(evaluated, settings, other),
        ],
        protocol=protocol,
    )


_Checkpoint: TypeAlias = tuple[Path, int, Path]
"""Folder of a run, step and file of one of its checkpoints."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Judging:
    """What is the same for all checkpoints; the fields are as in `evaluate_off_policy`."""

    data: Dataset
    other: Dataset | None
    algorithm: AlgorithmLike | None
    discount: float
    settings: FQESettings
    seed: int
    protocol: Protocol | None


class _Judged(NamedTuple):
    """What is known of a checkpoint: what the data say, and its true value, where it was measured."""

    values: PolicyValues
    truth: Terms | None
    is_exact: bool
    policy: EvaluatedPolicy


def _judge_all(
    judging: _Judging,
    checkpoints: Sequence[_Checkpoint],
    workers: int | None,
    progress: Callable[[int, int], None],
) -> list[_Judged]:
    """Return what is known of all checkpoints, in their order, whoever looked at which of them."""
    each = judging.settings.steps * judging.settings.fits
    total = each * len(checkpoints)
    found: dict[int, _Judged] = {}
    if workers == 1:
        for index, one in enumerate(checkpoints):

            def show(now: int, before: int = index * each) -> None:
                progress(before + now, total)

            found[index] = _judge(judging, one, show)
        _read_here.clear()
    else:
        judge = functools.partial(_judge, judging)
        for index, judged in enumerate(do_jobs(judge, checkpoints, workers=workers)):
            found[index] = judged
            progress(each * len(found), total)
    return [found[index] for index in range(len(checkpoints))]


_read_here: dict[str, tuple[Logged, Logged]] = {}
"""The steps that this process read last, by the digests of their datasets: for the next checkpoint."""


def _logged(judging: _Judging) -> tuple[Logged, Logged]:
    """Return the steps that values are taken from, and those that Q is fitted to."""
    data, other = judging.data, judging.other
    key = data.digest + (other.digest if other is not None else "")
    if key not in _read_here:
        _read_here.clear()
        judged = read_logged(other or data)
        _read_here[key] = judged, judged if other is None else read_logged(data)
    return _read_here[key]


def _judge(
    judging: _Judging, checkpoint: _Checkpoint, progress: Callable[[int], None] = lambda _now: None
) -> _Judged:
    """Return what the data say of a checkpoint, and what its policy gets in the environment."""
    (folder, step, path), data, protocol = checkpoint, judging.data, judging.protocol
    judged, fitted = _logged(judging)
    record, _, kind = find_run(folder, dataset=data, algorithm=judging.algorithm)
    with one_thread():
        made = make_from_record(record, data, kind)
        load_state(made, folder, to_act=True, path=path)
        _check_policy(folder, made, data)
        values = fit_policy(
            made,
            record,
            fitted,
            judged,
            discount=judging.discount,
            settings=judging.settings,
            seed=judging.seed,
            progress=progress,
        )
        truth, returns, exact = None, None, None
        if protocol is not None:
            policy = make_policy(made, data, record)
            exact = exact_values(policy, protocol, [judging.discount, 1.0])
            if exact is None:
                played = run_protocol(policy, protocol, discount=judging.discount)
                truth = value_estimates.mean_terms(played.discounted)
                returns = float(played.returns.mean())
            else:
                truth = value_estimates.mean_terms(np.array(exact[:1]))
                returns = exact[1]
    return _Judged(
        values=values,
        truth=truth,
        is_exact=exact is not None,
        policy=EvaluatedPolicy(
            run=folder,
            algorithm=record.algorithm,
            seed=record.seed,
            step=step,
            estimates={},
            value=None,
            mean_return=returns,
            effective_episodes=values.effective_episodes,
            beyond_truncations=values.beyond_truncations,
        ),
    )


def _check_named_once(folders: Sequence[Path]) -> None:
    """Refuse a run that is given twice.

    Raises ValueError if it is; its checkpoints would count twice in the quality of estimators.
    """
    seen: dict[Path, Path] = {}
    for folder in folders:
        whole = folder.resolve()
        if whole in seen:
            raise ValueError(f"{seen[whole]} and {folder} are the same run; name it once.")
        seen[whole] = folder


def _same_dataset(
    folders: Sequence[Path], found: Sequence[tuple[RunRecord, Dataset, AlgorithmLike]]
) -> Dataset:
    """Return the dataset of all runs.

    Raises ValueError if there are several.
    """
    first = found[0][1]
    for folder, (_, data, _) in zip(folders, found, strict=True):
        if data.digest != first.digest:
            raise ValueError(
                f"{folders[0]} was trained on {first.name} {first.digest[:19]} and {folder} on "
                f"{data.name} {data.digest[:19]}; evaluate runs of one dataset at a time."
            )
    return first


def _other_dataset(other: Dataset, trained_on: Dataset) -> Dataset:
    """Return the dataset to take values from.

    Raises ValueError if it has episodes of the one that runs were trained on; SchemaError if it has other
    spaces.
    """
    for what in ("observation_space", "action_space"):
        expected, found = getattr(trained_on, what), getattr(other, what)
        if found != expected:
            raise SchemaError(
                f"{other.name}: {what} is {found}, expected {expected} as in {trained_on.name}, which "
                "the runs were trained on."
            )
    known, named = (_stored_episodes(one) for one in (trained_on, other))
    if shared := len(known & named):
        raise ValueError(
            f"{shared:,} of {len(named):,} episodes of {other.name} are among those of "
            f"{trained_on.name} that the runs were trained on; name others: train on one part of "
            "split_dataset and estimate on the other."
        )
    return other


def _stored_episodes(dataset: Dataset) -> set[tuple[str, int]]:
    """Return digest and place of each episode in the stored version that holds it."""
    found = dataset.selection()
    digests = [one.digest for one in found.versions]
    places = zip(found.source.tolist(), found.index.tolist(), strict=True)
    return {(digests[source], index) for source, index in places}


def _discount(folders: Sequence[Path], records: Sequence[RunRecord], given: float | None) -> float:
    """Return the discount to evaluate with.

    Raises ValueError if it is out of range, or not given where runs have several.
    """
    if given is not None:
        if not 0 < given <= 1:
            raise ValueError(f"discount must be in (0, 1], found {given:g}.")
        return given
    of_runs = {
        float(record.config["discount"]): folder
        for folder, record in zip(folders, records, strict=True)
        if "discount" in record.config
    }
    if len(of_runs) > 1:
        (one, its), (other, others) = list(of_runs.items())[:2]
        raise ValueError(
            f"{its} was trained with the discount {one:g} and {others} with {other:g}; say which one "
            f"values are to have: discount={one:g}."
        )
    return next(iter(of_runs), 0.99)


def _check_policy(folder: Path, algorithm: Algorithm, dataset: Dataset) -> None:
    """Refuse policies that are no function of the observation.

    Raises SchemaError if it is such a policy, or actions of such a space cannot be judged.
    """
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
    policies: Sequence[EvaluatedPolicy],
    values: Sequence[PolicyValues],
    truths: Sequence[Terms],
    left_out: dict[str, str],
    seed: int,
) -> tuple[list[EvaluatedPolicy], dict[str, dict[str, Estimate]]]:
    """Return estimates, intervals and quality; the same resamples of episodes serve all policies."""
    terms = [one.terms for one in values]
    rng = np.random.default_rng(np.random.SeedSequence((seed, 3)))
    names = [name for name in ESTIMATORS if any(name in one for one in terms)]
    keys = [(index, name) for index, one in enumerate(terms) for name in names if name in one]
    draws = dict(
        zip(
            keys,
            value_estimates.resampled_values(
                [terms[index][name] for index, name in keys], rng, resamples=RESAMPLES
            ),
            strict=True,
        )
    )
    measured = (
        value_estimates.resampled_values(truths, rng, resamples=RESAMPLES) if truths else None
    )
    by_fit = np.stack([one.fits for one in values])
    errors = value_estimates.spread_of_fits(by_fit, rng, resamples=RESAMPLES)
    for index, more in enumerate(errors):
        draws[index, "fqe"] = draws[index, "fqe"] + more
    evaluated = []
    for index, policy in enumerate(policies):
        estimates = {}
        for name in names:
            if name in terms[index]:
                value = terms[index][name].value
                if np.isfinite(value):
                    estimates[name] = _estimate_of(value, draws[index, name])
                else:
                    left_out[name] = _why_no_number(name, terms[index][name], policy.step)
        truth = None if measured is None else _estimate_of(truths[index].value, measured[index])
        evaluated.append(dataclasses.replace(policy, estimates=estimates, value=truth))
    quality = {}
    if measured is not None:
        true_values = np.array([one.value for one in truths])
        for name in names:
            if all(name in one.estimates for one in evaluated):
                found = np.array([one.estimates[name].value for one in evaluated])
                of_name = np.stack([draws[index, name] for index in range(len(evaluated))])
                quality[name] = _estimator_quality(found, of_name, true_values, measured)
    return evaluated, quality


def _estimate_of(value: float, draws: np.ndarray) -> Estimate:
    """Return a value with the interval of its resamples; none where they cannot show one."""
    if not np.isfinite(draws).all() or np.ptp(draws) == 0:
        return Estimate(value=value, interval=None)
    low, high = percentile_interval(draws, 0.95)
    return Estimate(value=value, interval=(float(low), float(high)))


def _notes_on_ends(protocol: Protocol, discount: float) -> list[str]:
    """Return what to know where episodes are cut off before a discount makes the rest small."""
    limit = protocol.max_episode_steps
    if limit is None:
        return []
    note = (
        f"measured returns end with the episode, after {limit:,} steps at most; fqe, critic, dr and wdr "
        f"go on after a truncation, where rewards weigh {discount**limit:.2g} of the first one at most."
    )
    return [note]


def _note_on_steps(values: Sequence[PolicyValues], settings: FQESettings) -> str:
    """Return how far fitted Q evaluation still moved, and what more steps would give."""
    moved = max((one.fits.mean() - one.halfway for one in values), key=abs)
    return (
        f"in the second half of the {settings.steps:,} steps of its fits, fqe moved by {moved:+.3g}; where that is much "
        f"beside the interval, more steps bring it nearer to where it settles: --fqe-steps {5 * settings.steps} "
        "(settings=FQESettings(steps=..) in Python) takes 5 times as long."
    )


def _notes_on_estimates(
    policies: Sequence[EvaluatedPolicy], settings: FQESettings, other: Dataset | None
) -> list[str]:
    """Return what intervals hold and what they leave out."""
    spread = "the spread of the fits, each to a resample of the episodes"
    if settings.fits == 1:
        spread = "nothing of how else Q could have been fitted, since there is one fit"
    notes = [
        f"intervals are at 95 %, from a bootstrap over episodes; that of fqe has {spread}.",
        "no interval shows an error that all fits share, nor how else a critic could have been trained.",
    ]
    if any("dr" in one.estimates for one in policies) and other is None:
        notes.append(
            "dr and wdr correct fqe's Q with the episodes that it was fitted to, so their intervals are "
            "too narrow; name other episodes with --on (on= in Python)."
        )
    beyond = [one.beyond_truncations for one in policies]
    if any(beyond):
        notes.append(
            "of fqe, dr and wdr, discount^H times the final value of truncated episodes (H steps), "
            f"{min(beyond):.3g} to {max(beyond):.3g} on average over episodes, stands for steps that were "
            "not recorded: no reward corrects it."
        )
    return notes


def _why_no_number(name: str, terms: Terms, step: int) -> str:
    """Return why an estimate is not finite."""
    if not terms.denominators.sum(0).all():
        return f"no episode has any weight under the policy of step {step:,}."
    if name == "dr":
        return (
            f"the weights under the policy of step {step:,} are too large for a number: each is a product "
            "of ratios over a long episode; wdr, which divides by their sum, has no such limit."
        )
    return f"it is no finite number under the policy of step {step:,}."


def _estimator_quality(
    estimates: np.ndarray, draws: np.ndarray, values: np.ndarray, measured: np.ndarray
) -> dict[str, Estimate]:
    """Return the measures of an estimator; draws are [policies, resamples]."""
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "absolute_error": value_estimates.absolute_error,
        "rank_correlation": value_estimates.rank_correlation,
        "regret_at_1": value_estimates.regret,
    }
    found = {}
    for name, function in functions.items():
        if len(estimates) > 1 or name == "absolute_error":
            value = float(function(estimates, values))
            resampled = np.full(1, np.nan)
            if np.isfinite(draws).all():
                pairs = zip(draws.T, measured.T, strict=True)
                resampled = np.array([float(function(one, other)) for one, other in pairs])
            if np.isfinite(value):
                found[name] = _estimate_of(value, resampled)
    return found
