"""`audit`: looks at every value of a dataset once, and says what is wrong with the data.

`verify` shows that the bytes are those that were published; an audit, whether they make sense.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from orlog.base.jobs import do_jobs
from orlog.datasets.audit.alignment import check_action_alignment, check_reward_alignment
from orlog.datasets.audit.duplicates import check_duplicates, check_splits
from orlog.datasets.audit.episodes import check_flags, check_lengths, check_returns, check_times
from orlog.datasets.audit.finals import check_final_observations, check_next_observations
from orlog.datasets.audit.findings import SEVERITIES, Audit, Check, Facts, Finding
from orlog.datasets.audit.frames import check_frames, check_held
from orlog.datasets.audit.jumps import check_jumps
from orlog.datasets.audit.motion import check_motion
from orlog.datasets.audit.partial import Part, open_part
from orlog.datasets.audit.pieces import Piece, pieces
from orlog.datasets.audit.quaternions import check_quaternions
from orlog.datasets.audit.relations import check_copies, check_sense
from orlog.datasets.audit.rewards import check_rewards
from orlog.datasets.audit.roles import ROLE_CHECKS
from orlog.datasets.audit.seen import Packed, Seen
from orlog.datasets.audit.values import (
    check_bounds,
    check_finite,
    check_ranges,
    check_saturated_episodes,
    check_texts,
    check_unused_actions,
)
from orlog.datasets.reading.combining import combine_datasets
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.episode_ranges import episode_ranges
from orlog.datasets.reading.opening import Given, as_dataset
from orlog.datasets.reading.selection import episode_column
from orlog.errors import IntegrityError, LockError, SchemaError, clause

JOB_BYTES = 2**27  # in memory, of the episodes that a job looks at
SPLIT = "episodes/split"
HELD_OUT = "held-out"
MISSING_FINAL = "episodes/final_observation_missing"

_Result: TypeAlias = list[Finding] | str
_Looked: TypeAlias = Packed | list[Finding] | str

CHECKS: dict[str, Callable[[Facts], Check]] = {
    "finite": check_finite,
    "bounds": check_bounds,
    "constant and saturated": check_ranges,
    "motion": check_motion,
    "saturated episodes": check_saturated_episodes,
    "frames": check_frames,
    "held rows": check_held,
    "copies": check_copies,
    "quaternions": check_quaternions,
    "sense of actions": check_sense,
    "unused actions": check_unused_actions,
    "flags": check_flags,
    "final observations": check_final_observations,
    "next observations": check_next_observations,
    "returns": check_returns,
    "lengths": check_lengths,
    "times": check_times,
    "jumps": check_jumps,
    "rewards": check_rewards,
    "alignment of actions": check_action_alignment,
    "alignment of rewards": check_reward_alignment,
    "duplicates": check_duplicates,
    "splits": check_splits,
    "texts": check_texts,
    **ROLE_CHECKS,
}
"""Every check by name: a generator that takes pieces of the data and returns its findings."""


def audit(
    dataset: Given,
    *,
    against: Sequence[Given] = (),
    trust_environment: bool = False,
    workers: int | None = 1,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Audit:
    """Return what is wrong with the data of a dataset, or worth knowing about them.

    The data are read once, in pieces of bounded size. A text column `episodes/split` names the
    splits of each episode, separated by commas; splits named after validation or test must share
    nothing with others.

    Args:
        dataset: A stored version, also one that was downloaded in part, a view, or its name.
        against: Held-out datasets with the same columns, such as a test set, which must share no
            episode with it.
        trust_environment: Consent to environment arguments that come with the data, which are needed
            to compute rewards again.
        workers: Processes that read the data, a range of episodes each. Findings are the same for any number.
        progress: Called with steps done and steps in all.

    Raises:
        NotFoundError: it is not on this machine.
        SchemaError: it has no episodes, or datasets of other columns cannot be compared.
        FormatVersionError: it was written by a newer orlog.
        WorkerDiedError: a job was lost again and again.
    """
    opened: Dataset | None = None
    try:
        part = open_part(dataset)
        opened = as_dataset(dataset) if part is None else part.dataset
        if not opened.total_episodes:
            raise SchemaError(f"{opened.name}: there is no episode to audit; choose others.")
        facts = _facts(opened, trust_environment)
        if against:
            others = [as_dataset(one, "against") for one in against]
            facts = _beside(facts, others)
        return _run(facts, part, workers, progress)
    except LockError:
        raise
    except IntegrityError as error:
        return _unreadable(str(dataset), opened, error)


def _beside(facts: Facts, others: Sequence[Dataset]) -> Facts:
    """Return what is known of a dataset and of held-out ones together, each a split of its own."""
    own = frozenset({f"train {facts.dataset.name}"})
    splits = [own] * facts.dataset.total_episodes
    for one in others:
        splits += [frozenset({f"{HELD_OUT} {one.name}"})] * one.total_episodes
    together = _facts(combine_datasets([facts.dataset, *others]), facts.trust_environment)
    return msgspec.structs.replace(together, splits=splits)


def _facts(dataset: Dataset, trust_environment: bool) -> Facts:
    splits = None
    if dataset.schema.variable.get(SPLIT) == "text":
        texts = episode_column(dataset, SPLIT)
        splits = [frozenset(filter(None, map(str.strip, text.split(",")))) for text in texts]
    return Facts(
        dataset=dataset,
        missing_finals=_missing_finals(dataset),
        splits=splits,
        trust_environment=trust_environment,
    )


def _missing_finals(dataset: Dataset) -> np.ndarray:
    if MISSING_FINAL in dataset.columns:
        return dataset.column(MISSING_FINAL).astype(np.bool_)
    return np.zeros(dataset.total_episodes, np.bool_)


def _run(
    facts: Facts, part: Part | None, workers: int | None, progress: Callable[[int, int], None]
) -> Audit:
    """Run every check over one reading of the data, a range of episodes after the other."""
    dataset = facts.dataset
    ranges = episode_ranges(dataset, JOB_BYTES)
    is_alone = workers == 1
    done = 0

    def count(steps: int) -> None:
        nonlocal done
        done += steps
        progress(done, dataset.total_steps)

    with _quietly():
        running, seen, results = _begin([*CHECKS], facts)
        looked: Iterable[dict[str, _Looked]]
        if is_alone:
            looked = (_look(facts, [*seen], episodes, count) for episodes in ranges)
        else:
            look = _LookThere(dataset, facts.trust_environment, facts.known, [*seen])
            looked = do_jobs(look, ranges, workers=workers)
        for episodes, of_checks in zip(ranges, looked, strict=True):
            for name, one in of_checks.items():
                if isinstance(one, Packed):
                    seen[name].join(one, episodes)
                else:
                    results.setdefault(name, one)
            if not is_alone:
                count(int(dataset.episode_lengths[episodes.start : episodes.stop].sum()))
        for name in [one for one in running if one not in results]:
            ended = _ended(running[name], None)
            assert ended is not None, f"{name} waits for more"
            results[name] = ended
    findings = [one for found in results.values() if not isinstance(found, str) for one in found]
    not_checked = {name: found for name, found in results.items() if isinstance(found, str)}
    if part is not None:
        findings.append(part.finding)
    order = list(SEVERITIES)
    findings.sort(key=lambda one: order.index(one.severity))
    return Audit(
        name=dataset.name,
        version=dataset.version,
        digest=dataset.digest,
        episodes=dataset.total_episodes,
        steps=dataset.total_steps,
        is_partial=part is not None,
        findings=findings,
        checks=[name for name in CHECKS if name not in not_checked],
        not_checked=not_checked,
    )


def _begin(
    names: Sequence[str], facts: Facts
) -> tuple[dict[str, Check], dict[str, Seen], dict[str, _Result]]:
    """Return checks that run, what each has seen, and the results of those that need to see nothing."""
    running = {name: CHECKS[name](facts) for name in names}
    seen, results = {}, {}
    for name, check in running.items():
        try:
            seen[name] = next(check)
        except StopIteration as ended:
            results[name] = ended.value
    return running, seen, results


def _ended(check: Check, piece: Piece | None) -> _Result | None:
    """Give a running check the next piece; return what it returns if it ends."""
    try:
        check.send(piece)
    except StopIteration as ended:
        found: _Result = ended.value
        return found
    return None


def _look(
    facts: Facts, names: Sequence[str], episodes: range, count: Callable[[int], None]
) -> dict[str, _Looked]:
    """Return what checks see of a range of episodes; of one that ends early, its result."""
    running, seen, _ = _begin(names, facts)
    results: dict[str, _Looked] = {}
    for piece in pieces(facts.dataset, facts.missing_finals, episodes):
        for name, check in running.items():
            if name not in results and (found := _ended(check, piece)) is not None:
                results[name] = found
        count(piece.steps)
    seen_here = {name: seen[name].pack(episodes) for name in names if name not in results}
    return {**results, **seen_here}


@dataclasses.dataclass(frozen=True, slots=True)
class _LookThere:
    """Looks at a range of episodes in a process of its own."""

    dataset: Dataset
    trust_environment: bool
    known: dict[str, Any]
    names: list[str]

    def __call__(self, episodes: range) -> dict[str, _Looked]:
        facts = Facts(
            dataset=self.dataset,
            missing_finals=_missing_finals(self.dataset),
            trust_environment=self.trust_environment,
            known=self.known,
        )
        with _quietly():
            return _look(facts, self.names, episodes, lambda _steps: None)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of numbers that are not finite
        yield


def _unreadable(given: str, dataset: Dataset | None, error: IntegrityError) -> Audit:
    """Return the audit of data that cannot be read; None for a dataset that cannot even be opened."""
    damage = Finding(
        check="damage",
        severity="error",
        column=error.file,
        text=f"the data cannot all be read, so nothing else was judged: {clause(error)}",
    )
    return Audit(
        name=given if dataset is None else dataset.name,
        version="" if dataset is None else dataset.version,
        digest="" if dataset is None else dataset.digest,
        episodes=0,
        steps=0,
        is_partial=False,
        findings=[damage],
        checks=[],
        not_checked=dict.fromkeys(CHECKS, "the data cannot all be read"),
    )
