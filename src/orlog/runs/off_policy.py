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
import torch
from gymnasium import spaces
from jaxtyping import Float64
from torch import Tensor, nn

from orlog.algos.algorithms import Algorithm, AlgorithmLike, action_kind, takes_goals
from orlog.algos.fitted_q_evaluation import EvaluatedQ, FQESettings, TargetPolicy, fit_q
from orlog.algos.networks import Critics, TwinCritic
from orlog.algos.policies import action_count, actions_to_indices, chosen_values
from orlog.algos.settings import read_config
from orlog.algos.training.data import one_thread
from orlog.algos.training.evaluating import exact_values, find_run, run_protocol, scoring_protocol
from orlog.algos.training.policy import make_from_record, make_policy
from orlog.algos.training.runs import PathLike, RunRecord, as_path, kept_checkpoints, load_state
from orlog.base.jobs import do_jobs
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.errors import MissingExtraError, NotFoundError, SchemaError
from orlog.loaders.arrays import Arrays
from orlog.loaders.choices import Mixture
from orlog.loaders.places import load_arrays
from orlog.loaders.teams import is_team
from orlog.loaders.transitions import transitions
from orlog.manifests.rebuilds import rebuild_notes
from orlog.manifests.roles import column_with
from orlog.normalize import value_estimates
from orlog.normalize.references import Protocol
from orlog.normalize.statistics import percentile_interval
from orlog.normalize.value_estimates import Terms, mean_terms, padded, resampled_values, spread_of_fits

EPISODES = 20
ESTIMATORS = ("fqe", "critic", "wis", "pdwis", "dr", "wdr")  # in the order of tables; docs/ope.md explains them
LOG_PROBS = "infos/action_log_probs"
# How good the estimates of several checkpoints are.
QUALITY: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "absolute_error": value_estimates.absolute_error,
    "rank_correlation": value_estimates.rank_correlation,
    "regret_at_1": value_estimates.regret,
}
_ROWS = 4096  # observations that pass a network at a time


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval: a bootstrap over episodes, for `fqe` also the spread of its fits."""

    value: float
    interval: tuple[float, float] | None  # None where resamples show no spread, or some of them have no such number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPolicy:
    """A checkpoint with its estimated values and the measured one."""

    run: Path  # folder of the run
    algorithm: str  # its algorithm
    seed: int  # its seed
    step: int  # gradient steps that the policy had taken
    estimates: dict[str, Estimate]  # by estimator; without those that are left out
    value: Estimate | None  # measured mean discounted return; None if nothing was measured
    mean_return: float | None  # measured mean undiscounted return of the same episodes
    effective_episodes: float | None  # how many equally weighted episodes the weights are worth; None without weights
    # Mean over episodes of discount^H V(s_H), with H the length of a truncated one: as much of `fqe`, `dr` and `wdr`
    # stands for steps that nothing recorded can correct
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
    digests = {folder: f"{each.name} {each.digest[:19]}" for folder, (_, each, _) in known.items()}
    _check_alike("on", digests, "evaluate runs of one dataset at a time.")
    if discount is None:
        configs = {folder: record.config for folder, (record, _, _) in known.items()}
        discounts = {folder: config["discount"] for folder, config in configs.items() if "discount" in config}
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
    for values in do_jobs(judge, checkpoints, workers=workers):
        judged.append(values)
        show(0)
    _logged.clear()
    _compare(result, judged, seed)
    moved = max((values.fits.mean() - values.halfway for _, values in judged), key=abs)
    notes.append(
        f"in the second half of the {steps:,} steps of its fits, fqe moved by {moved:+.3g}; --fqe-steps "
        f"{5 * steps} (settings=FQESettings(steps=..) in Python) lets it settle."
    )
    return result


# Fields of an `EvaluatedPolicy`, and its values, the measured one as that of the estimator `true`.
_Judged: TypeAlias = tuple[dict[str, Any], "PolicyValues"]
_logged: dict[str, Logged] = {}  # steps that this process has read, by digest of their dataset, for the next checkpoint


def _ignore(_now: int) -> None:
    """Take no notice of how far a process is; a lambda cannot be sent to one."""


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
    for (first, value), (second, other) in itertools.pairwise(values.items()):
        if value != other:
            raise ValueError(f"{first} was trained {what} {value}, and {second} {what} {other}; {advice}")


def _other_dataset(other: Dataset, trained_on: Dataset) -> Dataset:
    """Return the dataset to take values from: of the same spaces, and without episodes that runs were trained on."""
    for what in ("observation_space", "action_space"):
        expected, actual = getattr(trained_on, what), getattr(other, what)
        if actual != expected:
            raise SchemaError(f"{other.name}: {what} is {actual}, expected {expected} as in {trained_on.name}.")
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


# What logged steps say of the value of one policy.


class Logged(NamedTuple):
    """The columns of a dataset that policies and networks see, and log-probabilities of the actions."""

    arrays: Arrays
    log_probs: Float64[np.ndarray, " steps"] | None  # None where they cannot weigh episodes
    unweighted: str  # why they cannot

    def column(self, name: str) -> Float64[np.ndarray, " steps"]:
        """Return a number of each step."""
        rows = torch.from_numpy(self.arrays.step_rows())
        values: np.ndarray = self.arrays.rows[:, self.arrays.columns[name]][rows].reshape(-1).numpy()
        return values.astype(np.float64)


class PolicyValues(NamedTuple):
    """What is known of one policy."""

    terms: dict[str, Terms]  # by estimator
    left_out: dict[str, str]  # by estimator that says nothing the reason
    fits: Float64[np.ndarray, " fits"]  # the value by each fit of fitted Q evaluation
    halfway: float  # their mean after half of the steps
    # Mean over episodes of discount^H V(s_H), with H the length of a truncated one; 0 for those that terminated.
    beyond_truncations: float
    effective_episodes: float | None  # how many equally weighted episodes the weights are worth; None without


def read_logged(dataset: Dataset) -> Logged:
    """Return the steps of a dataset."""
    column = column_with(dataset.roles, "behavior_log_prob") or LOG_PROBS
    if column not in dataset.columns:
        missing = f"{dataset.name} has no column {LOG_PROBS} (record it with action_log_probs=True)."
        return Logged(load_arrays(dataset), None, missing)
    values = np.asarray(dataset.column(column), np.float64)
    where, advice = f"{dataset.name}: {column}", "select the columns without it (ds.select_columns)."
    if values.shape != (dataset.total_steps,):
        raise SchemaError(
            f"{where} has the shape {list(values.shape)}, expected one number for each of "
            f"{dataset.total_steps:,} steps; {advice}"
        )
    is_discrete = isinstance(dataset.action_space, spaces.Discrete)
    wrong = ~np.isfinite(values) | (is_discrete & (values > 1e-6))
    if wrong.any():
        step = int(wrong.argmax())
        raise SchemaError(
            f"{where} is {values[step]:g} at step {step:,}, which is no logarithm of a probability that "
            f"an action was taken with; record it again, or {advice}"
        )
    if is_discrete:
        return Logged(load_arrays(dataset), values, "")
    no_density = (
        "the policies act without noise, so that in a Box they have one action for each observation and no "
        "density to weigh others by."
    )
    return Logged(load_arrays(dataset), None, no_density)


def fit_policy(
    algorithm: Any,
    record: RunRecord,
    fitted: Logged,
    judged: Logged,
    *,
    discount: float,
    settings: FQESettings,
    seed: int,
    progress: Callable[[int], None],
) -> PolicyValues:
    """Fit Q of a policy to some steps, and return what it and the policy's critic say of others.

    Each of several fits has a seed of its own and a bootstrap resample of the episodes; their mean is the Q
    of `fqe`, `dr` and `wdr`. Q is fitted to `fitted`; values start, and Q is corrected, in `judged`.
    """
    arrays, scaling = judged.arrays, algorithm.scaling
    is_discrete = isinstance(scaling.action_space, spaces.Discrete)
    policy: TargetPolicy = _probabilities(algorithm) if is_discrete else algorithm.act
    fitted_rewards = fitted.column("rewards")
    unit = float(np.sqrt(np.square(fitted_rewards).mean())) or 1.0
    fits: list[EvaluatedQ] = []
    halfway: list[float] = []

    def state_values(rows: np.ndarray, functions: list[EvaluatedQ] = fits) -> np.ndarray:
        """Return V of some rows by each fit."""

        def of_all(seen: Any, _: Tensor) -> Tensor:
            return torch.stack([function.state_values(seen, policy) for function in functions])

        return _of_rows(arrays, rows, of_all)

    for fit in range(settings.fits):
        q_function = EvaluatedQ(settings, scaling, seed=seed + fit, unit=unit)

        def show(now: int, fit: int = fit, q_function: EvaluatedQ = q_function) -> None:
            if 2 * now >= settings.steps and len(halfway) == fit:
                halfway.append(float(state_values(arrays.first_rows, [q_function]).mean()))
            progress(fit * settings.steps + now)

        drawn = fitted.arrays
        if settings.fits > 1:
            drawn = _resampled(drawn, np.random.default_rng((seed, 4, fit)))
        fit_q(
            q_function,
            transitions(drawn, batch_size=settings.batch_size, seed=seed + fit),
            policy,
            settings,
            discount=discount,
            value_range=value_estimates.value_range(fitted_rewards, discount),
            progress=show,
        )
        fits.append(q_function)

    by_fit = state_values(arrays.first_rows)
    terms = {"fqe": value_estimates.mean_terms(by_fit.mean(0))}
    left_out = {}
    if reason := why_no_critic(algorithm, record, discount):
        left_out["critic"] = reason
    else:
        values = _of_rows(arrays, arrays.first_rows, lambda seen, _: _critic_values(algorithm, seen))
        terms["critic"] = value_estimates.mean_terms(values / record.reward_scale)

    lengths, final, effective = arrays.lengths, arrays.final_rows, None
    goes_on = judged.column("terminations")[np.cumsum(lengths) - 1] == 0
    final_values = state_values(final).mean(0) * goes_on
    if judged.log_probs is None:
        left_out |= dict.fromkeys(("wis", "pdwis", "dr", "wdr"), judged.unweighted)
    else:
        steps = arrays.step_rows()
        chances = _of_rows(
            arrays, steps, lambda seen, actions: chosen_values(policy(seen), actions_to_indices(scaling, actions))
        )
        with np.errstate(divide="ignore"):
            ratios = padded(np.log(chances) - judged.log_probs, lengths)
        rewards = padded(judged.column("rewards"), lengths)
        q_values = np.stack([_of_rows(arrays, steps, each.values) for each in fits]).mean(0)
        values = state_values(np.arange(len(arrays.rows))).mean(0)
        values[final] = final_values
        valued = padded(q_values, lengths), padded(values, lengths + 1)
        for prefix, per_decision in (("", False), ("pd", True)):
            terms[f"{prefix}wis"] = value_estimates.importance_sampling(
                ratios, rewards, discount, weighted=True, per_decision=per_decision
            )
        for prefix, weighted in (("", False), ("w", True)):
            terms[f"{prefix}dr"] = value_estimates.doubly_robust(ratios, rewards, *valued, discount, weighted=weighted)
        effective = value_estimates.effective_sample_size(ratios)
    beyond = float((discount**lengths * final_values).mean())
    return PolicyValues(terms, left_out, by_fit.mean(1), float(np.mean(halfway)), beyond, effective)


def _resampled(arrays: Arrays, rng: np.random.Generator) -> Arrays:
    """Return the same steps, from which batches draw those of a bootstrap resample of the episodes."""
    of_step = np.repeat(np.arange(len(arrays.lengths)), arrays.lengths)
    mixture = arrays.mixture
    parts, up_to = [np.arange(arrays.total_steps)], np.ones(1)
    if isinstance(mixture, Mixture):
        parts, up_to = np.split(mixture.steps, mixture.first[1:]), mixture.up_to
    drawn = []
    for steps in parts:
        episodes = np.unique(of_step[steps])
        counts = np.zeros(len(arrays.lengths), np.int64)
        if len(episodes):
            np.add.at(counts, rng.choice(episodes, len(episodes)), 1)
        drawn.append(np.repeat(steps, counts[of_step[steps]]))
    sizes = np.array([len(steps) for steps in drawn])
    chosen = Mixture(steps=np.concatenate(drawn), first=sizes.cumsum() - sizes, sizes=sizes, up_to=up_to)
    return dataclasses.replace(arrays, mixture=chosen)


def _of_rows(arrays: Arrays, rows: np.ndarray, function: Callable[[Any, Tensor], Tensor]) -> np.ndarray:
    """Return a function's numbers for the observations and actions of some rows, on the last axis."""
    parts = []
    for start in range(0, len(rows), _ROWS):
        chosen = torch.from_numpy(rows[start : start + _ROWS])
        with torch.no_grad():
            parts.append(function(arrays.observations(chosen), arrays.actions(chosen)).numpy())
    return np.concatenate(parts, -1).astype(np.float64)


def _probabilities(algorithm: Any) -> TargetPolicy:
    """Return the probabilities of actions of a policy that acts without noise: 1 for one, else 0."""
    count = action_count(algorithm.scaling)

    def policy(observations: Any) -> Tensor:
        indices = actions_to_indices(algorithm.scaling, algorithm.act(observations))
        return nn.functional.one_hot(indices, count).to(torch.float32)

    return policy


def why_no_critic(algorithm: Any, record: RunRecord, discount: float) -> str:
    """Return why the trained critic gives no value; empty if it does."""
    trained_with = getattr(algorithm.config, "discount", None)
    if _critic(algorithm) is None:
        return f"{record.algorithm} trains no critic."
    if trained_with is None:
        return f"{record.algorithm} has no setting discount, so that of its critic is not known."
    if trained_with != discount:
        return f"the critic was trained with the discount {trained_with:g}."
    if getattr(algorithm.config, "bellman_loss", "square") == "huber":
        return (
            "the critic was trained with Huber's loss, with which values are no means of returns: far "
            "from 0 they are nearly medians."
        )
    if record.reward_shift:
        return (
            f"the critic was trained on rewards shifted by {record.reward_shift:g}, which cannot be "
            "taken back where episodes end."
        )
    return ""


def _critic(algorithm: Any) -> Any:
    critic = getattr(algorithm, "critic", getattr(algorithm, "critics", None))
    known = isinstance(critic, TwinCritic | Critics | nn.Sequential | nn.ModuleList)
    return critic if known and hasattr(algorithm, "encoder") else None


def _critic_values(algorithm: Any, observations: Any) -> Tensor:
    """Return the least Q(s, a) of the critics of an algorithm, for the actions of its policy."""
    critic, features = _critic(algorithm), algorithm.encoder(observations)
    actions = algorithm.act(observations)
    if isinstance(critic, TwinCritic | Critics):
        values = critic(features, algorithm.scaling.actions_to_unit(actions))
    else:
        indices = actions_to_indices(algorithm.scaling, actions)
        networks = critic if isinstance(critic, nn.ModuleList) else [critic]
        values = torch.stack([chosen_values(network(features), indices) for network in networks])
    least: Tensor = values.amin(0)
    return least
