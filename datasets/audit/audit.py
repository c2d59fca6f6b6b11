"""`audit`: looks at every value of a dataset once, and says what is wrong with the data.

`verify` shows that the bytes are those that were published; an audit, whether they make sense.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from orlog.base.jobs import do_jobs
from orlog.datasets.audit import duplicates, episodes, frames, numbers, relations
from orlog.datasets.audit.findings import SEVERITIES, Audit, Check, Facts, Finding, Seen
from orlog.datasets.audit.pieces import optional_columns, pieces
from orlog.datasets.home.folders import is_partial, is_whole, present_objects
from orlog.datasets.reading import opening
from orlog.datasets.reading.dataset import Dataset, episode_ranges
from orlog.datasets.reading.finding import as_folder, find_part, find_stored, holds_manifest, pinned
from orlog.datasets.reading.opening import Choice, Given, as_dataset, combine_datasets
from orlog.datasets.reading.selection import episode_column
from orlog.datasets.store.objects import column_of
from orlog.datasets.store.verify import DamageFinder
from orlog.datasets.store.version import schema_of_manifest
from orlog.errors import IntegrityError, LockError, NotFoundError, SchemaError, clause
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from orlog.manifests.names import counted, parse_name

JOB_BYTES = 2**26  # in memory, of the episodes that a job looks at
SPLIT = "episodes/split"
MISSING_FINAL = "episodes/final_observation_missing"

CHECKS: dict[str, Callable[[Facts], Check]] = {
    **numbers.CHECKS,
    **frames.CHECKS,
    **relations.CHECKS,
    **episodes.CHECKS,
    **duplicates.CHECKS,
}
"""Every check by name: a generator that takes pieces of the data and returns its findings."""

_Looked: TypeAlias = dict[str, Seen | list[Finding] | str]


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
        opened, partial = _open_part(dataset)
        opened = opened or as_dataset(dataset)
        if not opened.total_episodes:
            raise SchemaError(f"{opened.name}: there is no episode to audit; choose others.")
        facts = _facts(opened, trust_environment)
        if against:
            facts = _beside(facts, [as_dataset(other, "against") for other in against])
        return _run(facts, partial, workers, progress)
    except LockError:
        raise
    except IntegrityError as error:
        return _unreadable(str(dataset), opened, error)


def _facts(dataset: Dataset, trust_environment: bool) -> Facts:
    splits = None
    if dataset.schema.variable.get(SPLIT) == "text":
        texts = episode_column(dataset, SPLIT)
        splits = [frozenset(filter(None, map(str.strip, text.split(",")))) for text in texts]
    missing = np.zeros(dataset.total_episodes, np.bool_)
    if MISSING_FINAL in dataset.columns:
        missing = dataset.column(MISSING_FINAL).astype(np.bool_)
    return Facts(dataset=dataset, missing_finals=missing, splits=splits, trust_environment=trust_environment)


def _beside(facts: Facts, others: Sequence[Dataset]) -> Facts:
    """Return what is known of a dataset and of held-out ones together, each a split of its own."""
    splits = [frozenset({f"train {facts.dataset.name}"})] * facts.dataset.total_episodes
    for other in others:
        splits += [frozenset({f"held-out {other.name}"})] * other.total_episodes
    together = _facts(combine_datasets([facts.dataset, *others]), facts.trust_environment)
    return msgspec.structs.replace(together, splits=splits)


def _run(facts: Facts, partial: Finding | None, workers: int | None, progress: Callable[[int, int], None]) -> Audit:
    """Run every check over one reading of the data, a range of episodes after the other."""
    dataset, done = facts.dataset, 0
    ranges = episode_ranges(dataset, JOB_BYTES)
    with _quietly():
        running, results = _begin([*CHECKS], facts)
        # What was read of a sample is needed by now alone.
        look = _Look(msgspec.structs.replace(facts, splits=None, kept={}), [*running])
        looks = do_jobs(look, ranges, workers=workers)
        for chosen, looked in zip(ranges, looks, strict=True):
            for name, seen in looked.items():
                if isinstance(seen, Seen):
                    running[name][1].join(seen, chosen)
                else:
                    results.setdefault(name, seen)
            done += int(dataset.episode_lengths[chosen.start : chosen.stop].sum())
            progress(done, dataset.total_steps)
        for name, (check, _) in running.items():
            if name not in results:
                try:
                    check.send(None)
                except StopIteration as end:
                    results[name] = end.value
    not_checked = {name: result for name, result in results.items() if isinstance(result, str)}
    findings = [] if partial is None else [partial]
    for name in CHECKS:
        result = results[name]
        findings += [] if isinstance(result, str) else result
    order = list(SEVERITIES)
    return Audit(
        name=dataset.name,
        version=dataset.version,
        digest=dataset.digest,
        episodes=dataset.total_episodes,
        steps=dataset.total_steps,
        is_partial=partial is not None,
        findings=sorted(findings, key=lambda finding: order.index(finding.severity)),
        checks=[name for name in CHECKS if name not in not_checked],
        not_checked=not_checked,
    )


def _begin(names: Sequence[str], facts: Facts) -> tuple[dict[str, tuple[Check, Seen]], dict[str, list[Finding] | str]]:
    """Return checks that run, with what each has seen, and the results of those that need to see nothing."""
    running, results = {}, {}
    for name in names:
        check = CHECKS[name](facts)
        try:
            running[name] = check, next(check)
        except StopIteration as end:
            results[name] = end.value
    return running, results


@dataclasses.dataclass(frozen=True, slots=True)
class _Look:
    """Lets checks look at a range of episodes, perhaps in a process of its own."""

    facts: Facts
    names: list[str]

    def __call__(self, chosen: range) -> _Looked:
        """Return what each check has seen; of one that ends early, its result."""
        with _quietly():
            running, _ = _begin(self.names, self.facts)
            looked: _Looked = {name: seen for name, (_, seen) in running.items()}
            for piece in pieces(self.facts.dataset, self.facts.missing_finals, chosen):
                for name in [*running]:
                    try:
                        running[name][0].send(piece)
                    except StopIteration as end:
                        looked[name] = end.value
                        del running[name]
        for _, seen in running.values():
            seen.cut(chosen)
        return looked


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # of numbers that are not finite
        yield


def _unreadable(given: str, dataset: Dataset | None, error: IntegrityError) -> Audit:
    """Return the audit of data that cannot be read; None for a dataset that cannot even be opened."""
    text = f"the data cannot all be read, so nothing else was judged: {clause(error)}"
    return Audit(
        name=given if dataset is None else dataset.name,
        version="" if dataset is None else dataset.version,
        digest="" if dataset is None else dataset.digest,
        episodes=0,
        steps=0,
        is_partial=False,
        findings=[Finding("damage", "error", error.file, text)],
        checks=[],
        not_checked=dict.fromkeys(CHECKS, "the data cannot all be read"),
    )


def _open_part(given: Given) -> tuple[Dataset | None, Finding | None]:
    """Return the whole episodes that are here of a version that was downloaded in part, and that it was.

    None of both if it is no such part. Raises NotFoundError if no episode of it is here whole; IntegrityError
    if what should be here is missing, cut or altered.
    """
    folder = None if isinstance(given, Dataset) else _folder_of_part(given)
    if folder is None:
        return None, None
    manifest = read_manifest(folder / MANIFEST_FILE)
    if is_whole(folder, manifest):
        return None, None
    absent = {item.path for item in manifest.objects}
    absent -= {item.path for item in present_objects(folder, manifest)}
    columns = {item.path: column_of(item.path) or "" for item in manifest.objects}
    optional = optional_columns(schema_of_manifest(manifest, folder))
    left_out = set()
    for name in optional:
        stored = {path for path, column in columns.items() if _belongs(column, name)}
        if stored and stored <= absent:
            left_out.add(name)
    finder = DamageFinder(folder, manifest, absent)
    is_here = np.ones(manifest.total_episodes, np.bool_)
    for path in absent:
        column = columns[path]
        if column and not any(_belongs(column, name) for name in left_out):
            first, last = finder.find(path)[1] or (0, manifest.total_episodes - 1)
            is_here[first : last + 1] = False
    if not is_here.any():
        raise NotFoundError(
            f"{manifest.name}@{manifest.version}: no episode is on this machine whole; run: orlog "
            f"download {manifest.name}"
        )
    columns_here = sorted(optional - left_out) if left_out else None
    choice = Choice(episodes=np.flatnonzero(is_here).tolist(), columns=columns_here)
    dataset = opening.open_part(folder, choice)
    without = f", without {', '.join(sorted(left_out))}" if left_out else ""
    text = f"a part of the version, as it was downloaded: {is_here.sum():,} of "
    text += f"{counted(manifest.total_episodes, 'episode')}{without}; nothing is damaged, and the rest was "
    text += "not looked at"
    return dataset, Finding("partial", "note", "", text, count=len(absent))


def _folder_of_part(given: str | Path) -> Path | None:
    """Return the folder of a part, if there is one and no whole version."""
    path = as_folder(given)
    if path is not None:
        return path if is_partial(path) and holds_manifest(path) else None
    wanted = pinned(parse_name(str(given)))
    try:
        find_stored(str(wanted))
    except NotFoundError:
        return find_part(wanted)
    return None


def _belongs(column: str, name: str) -> bool:
    """Return whether a column stores values at a path, or below it."""
    return column == name or column.startswith((f"{name}/", f"{name}@"))
