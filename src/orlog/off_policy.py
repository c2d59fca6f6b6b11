"""Off-policy evaluation of trained runs: what their dataset says of their checkpoints, and the truth.

For each checkpoint the value of its policy, the mean discounted return, is estimated from the dataset
alone and measured in the environment; then estimates and measured values are compared over checkpoints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float64
from torch import Tensor, nn

from orlog.algos.algorithms import Algorithm, AlgorithmLike, action_kind, takes_goals
from orlog.algos.discrete import action_count, actions_to_indices, chosen_values
from orlog.algos.fitted_q_evaluation import EvaluatedQ, FQESettings, TargetPolicy, fit_q
from orlog.algos.networks import Critics, Scaling, TwinCritic
from orlog.algos.training.evaluating import find_run, run_protocol, scoring_protocol
from orlog.algos.training.policy import make_from_record, make_policy
from orlog.algos.training.runs import (
    PathLike,
    RunRecord,
    as_path,
    kept_checkpoints,
    load_state,
    one_thread,
)
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.given import Given
from orlog.errors import MissingExtraError, NotFoundError, SchemaError
from orlog.loaders.arrays.arrays import Arrays
from orlog.loaders.arrays.places import load_arrays
from orlog.loaders.transitions import transitions
from orlog.normalize import off_policy
from orlog.normalize.intervals import percentile_interval
from orlog.normalize.off_policy import Terms
from orlog.normalize.references import Protocol
from orlog.running import Run

__all__ = ["ESTIMATORS", "Estimate", "EvaluatedPolicy", "OffPolicyResult", "evaluate_off_policy"]

LOG_PROBS = "infos/action_log_probs"
EPISODES = 20
RESAMPLES = 1000
_ROWS = 4096  # observations that pass a network at a time

ESTIMATORS = {
    "fqe": "fitted Q evaluation",
    "critic": "the trained critic's value of first observations",
    "wis": "weighted importance sampling",
    "pdwis": "weighted importance sampling, per decision",
    "dr": "doubly robust",
    "wdr": "weighted doubly robust",
}
"""The estimators, in the order in which they are shown."""
_WEIGHTED = ("wis", "pdwis", "dr", "wdr")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its 95 % interval, from a bootstrap over episodes.

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
    """

    run: Path
    algorithm: str
    seed: int
    step: int
    estimates: dict[str, Estimate]
    value: Estimate | None
    mean_return: float | None
    effective_episodes: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyResult:
    """What `evaluate_off_policy` found.

    Attributes:
        dataset: Name of the dataset.
        digest: Its digest.
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
    runs: Run | PathLike | Sequence[Run | PathLike],
    *,
    dataset: Given | None = None,
    algorithm: AlgorithmLike | None = None,
    discount: float | None = None,
    episodes: int = EPISODES,
    settings: FQESettings | None = None,
    seed: int = 0,
    trust_environment: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> OffPolicyResult:
    """Estimate the values of a run's checkpoints from its dataset, and compare them with the truth.

    Checkpoints are those that were kept in training (`keep_checkpoints`), or else the last one of each
    run. Policies act as in `orlog.evaluate`, without noise.

    Args:
        runs: A run or its folder, or several that were trained on the same dataset.
        dataset: What they were trained on, if its recorded name does not find it.
        algorithm: The algorithm of the runs, if it is not one of orlog's.
        discount: Weight of the next step, in (0, 1]; that of the algorithm by default, 0.99 if it has
            none.
        episodes: Episodes of each checkpoint in the environment; 0 measures nothing.
        settings: Settings of fitted Q evaluation.
        seed: Seed of its networks and batches, and of the bootstrap.
        trust_environment: Consent to arguments of the environment that come with the data.
        progress: Called with steps of fitted Q evaluation done and in all.

    Raises:
        ValueError: runs of several datasets or discounts, a run that is named twice, or a discount or
            setting out of range.
        NotFoundError: there is no run or no checkpoint, or its dataset is not here.
        IntegrityError: the dataset is not the one that the runs were trained on.
        CheckpointError: a checkpoint is damaged or belongs to another run.
        SchemaError: actions are neither a Box nor Discrete, policies act for goals or remember
            episodes, or recorded log-probabilities are not such.
        SimulatorError: the environment needs consent, or cannot be made.
        DivergedError: fitted Q evaluation has diverged.
    """
    several = [runs] if isinstance(runs, Run | str) or not isinstance(runs, Sequence) else runs
    folders = [one.folder if isinstance(one, Run) else as_path(one) for one in several]
    _check_named_once(folders)
    settings = settings or FQESettings()
    if not folders or episodes < 0:
        raise ValueError(
            f"expected one run or more and episodes >= 0, found {folders}, {episodes}."
        )
    found = [find_run(folder, dataset=dataset, algorithm=algorithm) for folder in folders]
    data = _same_dataset(folders, found)
    gamma = _discount(folders, [record for record, _, _ in found], discount)
    checkpoints = [
        (folder, record, kind, step, path)
        for folder, (record, _, kind) in zip(folders, found, strict=True)
        for step, path in kept_checkpoints(folder).items()
    ]
    what = (
        f"values are means of returns discounted by {gamma:g} for each step; estimates are over the "
        "first observations of the dataset, measured ones over the resets of the environment."
    )
    notes = [what]
    protocol = _protocol(data, episodes, trust_environment, notes)
    if protocol is not None:
        notes += _notes_on_ends(protocol, gamma)
    arrays = load_arrays(data)
    steps = _rewards_and_ends(arrays)
    left_out: dict[str, str] = {}
    log_probs = _recorded_log_probs(data, left_out)
    terms: list[dict[str, Terms]] = []
    truths, policies = [], []
    total = settings.steps * len(checkpoints)
    with one_thread():
        for index, (folder, record, kind, step, path) in enumerate(checkpoints):
            made = make_from_record(record, data, kind)
            load_state(made, folder, to_act=True, path=path)
            _check_policy(folder, made, data)
            evaluation = _Evaluation(made, arrays, *steps, gamma, settings, seed)

            def show(now: int, done: int = index * settings.steps) -> None:
                progress(done + now, total)

            evaluation.fit(show)
            of_this, effective = evaluation.terms(record, log_probs, left_out)
            terms.append(of_this)
            returns = None
            if protocol is not None:
                played = run_protocol(make_policy(made, data, record), protocol, discount=gamma)
                truths.append(off_policy.mean_terms(played.discounted))
                returns = float(played.returns.mean())
            policies.append(
                EvaluatedPolicy(
                    run=folder,
                    algorithm=record.algorithm,
                    seed=record.seed,
                    step=step,
                    estimates={},
                    value=None,
                    mean_return=returns,
                    effective_episodes=effective,
                )
            )
    return _result(data, gamma, settings, policies, terms, truths, left_out, notes, protocol, seed)


class _Evaluation:
    """One policy and the steps of its dataset."""

    def __init__(
        self,
        algorithm: Any,
        arrays: Arrays,
        rewards: np.ndarray,
        ended: np.ndarray,
        discount: float,
        settings: FQESettings,
        seed: int,
    ) -> None:
        self._algorithm = algorithm
        self._arrays, self._discount, self._settings, self._seed = arrays, discount, settings, seed
        self._scaling: Scaling = self._algorithm.scaling
        self._is_discrete = isinstance(self._scaling.action_space, spaces.Discrete)
        self._policy: TargetPolicy = algorithm.act
        if self._is_discrete:
            self._policy = _probabilities(algorithm, self._scaling)
        self._lengths = arrays.lengths
        self._rewards, self._ended = rewards, ended
        unit = float(np.sqrt(np.square(self._rewards).mean())) or 1.0
        self._q = EvaluatedQ(settings, self._scaling, seed=seed, unit=unit)

    def fit(self, progress: Callable[[int], None]) -> None:
        batches = transitions(self._arrays, batch_size=self._settings.batch_size, seed=self._seed)
        fit_q(
            self._q,
            batches,
            self._policy,
            self._settings,
            discount=self._discount,
            value_range=off_policy.value_range(self._rewards, self._discount),
            progress=progress,
        )

    def terms(
        self, record: RunRecord, log_probs: np.ndarray | None, left_out: dict[str, str]
    ) -> tuple[dict[str, Terms], float | None]:
        """Return the terms of each estimator, and how many episodes the weights are worth."""
        first = self._arrays.first_rows
        starts = self._of_rows(first, lambda seen, _: self._q.state_values(seen, self._policy))
        found = {"fqe": off_policy.mean_terms(starts)}
        reason = _why_no_critic(self._algorithm, record, self._discount)
        if reason:
            left_out.setdefault("critic", reason)
        else:
            values = self._of_rows(
                first,
                lambda seen, _: _critic_values(self._algorithm, seen, self._algorithm.act(seen)),
            )
            found["critic"] = off_policy.mean_terms(values / record.reward_scale)
        if log_probs is None:
            return found, None
        if not self._is_discrete:
            for name in _WEIGHTED:
                left_out.setdefault(
                    name,
                    "the policies act without noise, so that in a Box they have one action for each "
                    "observation and no density to weigh others by.",
                )
            return found, None
        weighted, effective = self._weighted(log_probs)
        return found | weighted, effective

    def _weighted(self, log_probs: np.ndarray) -> tuple[dict[str, Terms], float]:
        steps = self._arrays.step_rows()
        chances = self._of_rows(
            steps,
            lambda seen, actions: chosen_values(
                self._policy(seen), actions_to_indices(self._scaling, actions)
            ),
        )
        with np.errstate(divide="ignore"):
            ratios = off_policy.padded(np.log(chances) - log_probs, self._lengths)
        rewards = off_policy.padded(self._rewards, self._lengths)
        q_values = off_policy.padded(self._of_rows(steps, self._q.values), self._lengths)
        every = np.arange(len(self._arrays.rows))
        values = self._of_rows(every, lambda seen, _: self._q.state_values(seen, self._policy))
        last = np.cumsum(self._lengths) - 1
        values[self._arrays.final_rows] *= ~self._ended[last]
        state_values = off_policy.padded(values, self._lengths + 1)
        logged = (ratios, rewards)
        valued = (*logged, q_values, state_values, self._discount)
        found = {
            "wis": off_policy.weighted_importance_sampling(*logged, self._discount),
            "pdwis": off_policy.weighted_per_decision_importance_sampling(*logged, self._discount),
            "dr": off_policy.doubly_robust(*valued),
            "wdr": off_policy.weighted_doubly_robust(*valued),
        }
        return found, off_policy.effective_sample_size(ratios)

    def _of_rows(self, rows: np.ndarray, function: Callable[[Any, Tensor], Tensor]) -> np.ndarray:
        """Return a function's numbers for the observations and actions of some rows."""
        found = np.empty(len(rows))
        for start in range(0, len(rows), _ROWS):
            chosen = torch.from_numpy(rows[start : start + _ROWS])
            with torch.no_grad():
                numbers = function(self._arrays.observations(chosen), self._arrays.actions(chosen))
            found[start : start + _ROWS] = numbers.numpy()
        return found


def _rewards_and_ends(
    arrays: Arrays,
) -> tuple[Float64[np.ndarray, " steps"], Bool[np.ndarray, " steps"]]:
    """Return the rewards of all steps, and whether the episode terminated there."""
    rows = torch.from_numpy(arrays.step_rows())
    rewards, ended = (
        arrays.rows[:, arrays.columns[name]][rows].reshape(-1).numpy()
        for name in ("rewards", "terminations")
    )
    return rewards.astype(np.float64), ended > 0


def _probabilities(algorithm: Algorithm, scaling: Scaling) -> TargetPolicy:
    """Return the probabilities of actions of a policy that acts without noise: 1 for one, else 0."""
    count = action_count(scaling)

    def policy(observations: Any) -> Tensor:
        indices = actions_to_indices(scaling, algorithm.act(observations))
        return nn.functional.one_hot(indices, count).to(torch.float32)

    return policy


def _why_no_critic(algorithm: Any, record: RunRecord, discount: float) -> str:
    """Return why the trained critic gives no value; empty if it does."""
    trained_with = getattr(algorithm.config, "discount", None)
    if _critic(algorithm) is None:
        return f"{record.algorithm} trains no critic."
    if trained_with is None:
        return f"{record.algorithm} has no setting discount, so that of its critic is not known."
    if trained_with != discount:
        return f"the critic was trained with the discount {trained_with:g}."
    if record.reward_shift:
        return (
            f"the critic was trained on rewards shifted by {record.reward_shift:g}, which cannot be "
            "taken back where episodes end."
        )
    return ""


def _critic(algorithm: Any) -> nn.Module | None:
    """Return the trained critic of one of orlog's algorithms, if it has one."""
    critic = getattr(algorithm, "critic", getattr(algorithm, "critics", None))
    known = isinstance(critic, TwinCritic | Critics | nn.Sequential | nn.ModuleList)
    return critic if known and hasattr(algorithm, "encoder") else None


def _critic_values(algorithm: Any, observations: Any, actions: Tensor) -> Tensor:
    """Return the least Q(s, a) of the critics of an algorithm."""
    scaling: Scaling = algorithm.scaling
    features = algorithm.encoder(observations)
    critic = _critic(algorithm)
    assert critic is not None
    values: Tensor
    if isinstance(critic, TwinCritic | Critics):
        values = critic(features, scaling.actions_to_unit(actions)).amin(0)
        return values
    networks = list(critic) if isinstance(critic, nn.ModuleList) else [critic]
    indices = actions_to_indices(scaling, actions)
    values = torch.stack([chosen_values(one(features), indices) for one in networks]).amin(0)
    return values


def _check_named_once(folders: Sequence[Path]) -> None:
    """Refuse a run that is given twice.

    Raises:
        ValueError: it is; its checkpoints would count twice in the quality of estimators.
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

    Raises:
        ValueError: there are several.
    """
    first = found[0][1]
    for folder, (_, data, _) in zip(folders, found, strict=True):
        if data.digest != first.digest:
            raise ValueError(
                f"{folders[0]} was trained on {first.name} {first.digest[:19]} and {folder} on "
                f"{data.name} {data.digest[:19]}; evaluate runs of one dataset at a time."
            )
    return first


def _discount(folders: Sequence[Path], records: Sequence[RunRecord], given: float | None) -> float:
    """Return the discount to evaluate with.

    Raises:
        ValueError: it is out of range, or not given where runs have several.
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
            f"values are to have: --discount {one:g} (discount= in Python)."
        )
    return next(iter(of_runs), 0.99)


def _check_policy(folder: Path, algorithm: Algorithm, dataset: Dataset) -> None:
    """Refuse policies that are no function of the observation.

    Raises:
        SchemaError: it is such a policy, or actions of such a space cannot be judged.
    """
    reason = ""
    if takes_goals(type(algorithm)):
        reason = "its policy acts for goals, which the rewards of the dataset do not follow"
    elif hasattr(algorithm, "actor"):
        reason = (
            "its policy remembers the episode or draws noise, so it has no value by observation"
        )
    elif not hasattr(algorithm, "scaling"):
        reason = "its algorithm has no attribute scaling, which standardizes observations"
    elif action_kind(dataset.action_space) not in ("continuous", "discrete"):
        reason = f"actions are {dataset.action_space}, neither a Box nor Discrete"
    if reason:
        raise SchemaError(f"{folder}: {reason}; leave this run out.")


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


def _notes_on_ends(protocol: Protocol, discount: float) -> list[str]:
    limit = protocol.max_episode_steps
    if limit is None:
        return []
    note = (
        f"measured returns end with the episode, after {limit:,} steps at most; fqe, critic, dr and wdr "
        f"go on after a truncation, where rewards weigh {discount**limit:.2g} of the first one at most."
    )
    return [note]


def _recorded_log_probs(dataset: Dataset, left_out: dict[str, str]) -> np.ndarray | None:
    """Return the log-probabilities of the actions, `[steps]`; None if they were not recorded.

    Raises:
        SchemaError: they are not one number for each step, or no log-probabilities.
    """
    if LOG_PROBS not in dataset.columns:
        for name in _WEIGHTED:
            left_out[name] = (
                f"{dataset.name} has no column {LOG_PROBS} (record it with action_log_probs=True)."
            )
        return None
    found = np.asarray(dataset.column(LOG_PROBS), np.float64)
    where = f"{dataset.name}: {LOG_PROBS}"
    if found.shape != (dataset.total_steps,):
        raise SchemaError(
            f"{where} has the shape {list(found.shape)}, expected one number for each of "
            f"{dataset.total_steps:,} steps; select the columns without it (ds.select_columns)."
        )
    wrong = ~np.isfinite(found)
    if isinstance(dataset.action_space, spaces.Discrete):
        wrong |= found > 1e-6
    if wrong.any():
        step = int(wrong.argmax())
        raise SchemaError(
            f"{where} is {found[step]:g} at step {step:,}, which is no logarithm of a probability that "
            "an action was taken with; record it again, or select the columns without it "
            "(ds.select_columns)."
        )
    return found


def _result(
    dataset: Dataset,
    discount: float,
    settings: FQESettings,
    policies: Sequence[EvaluatedPolicy],
    terms: Sequence[dict[str, Terms]],
    truths: Sequence[Terms],
    left_out: dict[str, str],
    notes: list[str],
    protocol: Protocol | None,
    seed: int,
) -> OffPolicyResult:
    """Return estimates, intervals and quality; the same resamples of episodes serve all policies."""
    notes.append(
        "intervals are at 95 %, from a bootstrap over episodes: those of fqe and critic do not know how "
        "else the networks might have been fitted."
    )
    rng = np.random.default_rng(np.random.SeedSequence((seed, 3)))
    names = [name for name in ESTIMATORS if any(name in one for one in terms)]
    keys = [(index, name) for index, one in enumerate(terms) for name in names if name in one]
    draws = dict(
        zip(
            keys,
            off_policy.resampled_values(
                [terms[index][name] for index, name in keys], rng, resamples=RESAMPLES
            ),
            strict=True,
        )
    )
    measured = off_policy.resampled_values(truths, rng, resamples=RESAMPLES) if truths else None
    evaluated = []
    for index, policy in enumerate(policies):
        estimates = {}
        for name in names:
            if name in terms[index]:
                value = terms[index][name].value
                if np.isfinite(value):
                    estimates[name] = _estimate(value, draws[index, name])
                else:
                    left_out[name] = _why_no_number(name, terms[index][name], policy.step)
        truth = None if measured is None else _estimate(truths[index].value, measured[index])
        evaluated.append(dataclasses.replace(policy, estimates=estimates, value=truth))
    quality = {}
    if measured is not None:
        values = np.array([one.value for one in truths])
        for name in names:
            if all(name in one.estimates for one in evaluated):
                found = np.array([one.estimates[name].value for one in evaluated])
                of_name = np.stack([draws[index, name] for index in range(len(evaluated))])
                quality[name] = _quality(found, of_name, values, measured)
    if any("dr" in one.estimates for one in evaluated):
        notes.append("dr and wdr correct fqe's Q with the episodes that it was fitted to.")
    return OffPolicyResult(
        dataset=dataset.name,
        digest=dataset.digest,
        discount=discount,
        settings=settings,
        policies=evaluated,
        quality=quality,
        left_out=left_out,
        notes=notes,
        protocol=protocol,
    )


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


def _quality(
    estimates: np.ndarray, draws: np.ndarray, values: np.ndarray, measured: np.ndarray
) -> dict[str, Estimate]:
    """Return the measures of an estimator; draws are [policies, resamples]."""
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "absolute_error": off_policy.absolute_error,
        "rank_correlation": off_policy.rank_correlation,
        "regret_at_1": off_policy.regret,
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
                found[name] = _estimate(value, resampled)
    return found


def _estimate(value: float, draws: np.ndarray) -> Estimate:
    if not np.isfinite(draws).all() or np.ptp(draws) == 0:
        return Estimate(value=value, interval=None)
    low, high = percentile_interval(draws, 0.95)
    return Estimate(value=value, interval=(float(low), float(high)))
