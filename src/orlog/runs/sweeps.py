"""Sweeps: algorithms on datasets with several seeds, as a list of jobs that depend on nothing else.

What a job gives lies in the results of this home under its key (`orlog.runs.stored_results`), so that a
sweep that was killed goes on, equal work is done once, and two sweeps share: one takes a job, the
other takes the next, and waits for the first at the end.

A worker trains in the results of its own home, because a run that is killed goes on from the
checkpoint there. Where that is not the home of the sweep, it sends the files of the finished run back,
and the sweep writes them. Nothing of a job that is done stays in the memory of the sweep.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from orlog.algos.algorithms import algorithm_name, anywhere, known_as
from orlog.algos.settings import make_config
from orlog.algos.training.commands import is_at_home
from orlog.algos.training.options import TrainOptions
from orlog.algos.training.policy import fitting_form
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.finding import pinned
from orlog.datasets.recipes.build import build_dataset
from orlog.datasets.recipes.catalogue import catalogue
from orlog.errors import (
    IntegrityError,
    NotFoundError,
    OrlogError,
    SchemaError,
    StorageError,
    clause,
)
from orlog.manifests.names import did_you_mean, parse_name
from orlog.manifests.rebuilds import is_rebuild
from orlog.runs.jobs import Executor, find_executor, job_options, recorded_episodes
from orlog.runs.stored_results import StoredResult, key_of
from orlog.runs.sweep_jobs import (
    Ended,
    Group,
    KeyedJob,
    identify,
    keep,
    mark_home,
    read_whole,
    run_keyed,
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What could not be done, and why.

    Attributes:
        what: The job, or the dataset that could not be prepared.
        message: Why.
        is_damage: Whether bytes are not what was recorded.
    """

    what: str
    message: str
    is_damage: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a sweep is made of, and what of it failed so far.

    Attributes:
        groups: Algorithms on datasets.
        seeds: Training seeds of each.
        left_out: Lines on algorithms that do not apply to a dataset.
        failures: Datasets and jobs that failed.
    """

    groups: list[Group]
    seeds: list[int]
    left_out: list[str]
    failures: list[Failure]

    def stored(self, group: Group) -> list[StoredResult]:
        """Return the finished results of a group, in the order of seeds; damaged ones are left out.

        `run_sweep` makes those anew, or their jobs are among the failures.
        """
        found = (read_whole(key_of(group.identity(seed))) for seed in self.seeds)
        return [one for one in found if one is not None]


def suite_datasets(suite: str) -> list[str]:
    """Return the datasets of the catalogue that begin with `SUITE/`; `all` are all of them."""
    found = [name for name in sorted(catalogue()) if suite in ("all", name.partition("/")[0])]
    if not found:
        suites = sorted({name.partition("/")[0] for name in catalogue()})
        hint = did_you_mean(suite, suites) or f"; choose one of: all, {', '.join(suites)}."
        raise NotFoundError(f"no suite {suite!r}{hint}")
    return found


def plan_sweep(
    datasets: Sequence[str],
    algorithms: Sequence[str],
    *,
    seeds: Sequence[int],
    episodes: int | None = None,
    options: TrainOptions = TrainOptions(),
    processes: int = 1,
    on_build: Callable[[str, int, int], None] = lambda _name, _done, _total: None,
) -> Sweep:
    """Return what a sweep has to do; datasets that are not here are built or downloaded first.

    An algorithm that does not apply to a dataset, or that nothing says how long to train there, is left out.
    A dataset that cannot be had is a failure of the sweep, and does not end it. Two datasets that a report
    could not tell apart are refused, such as two versions of one, or a dataset and a view of it.

    Episodes are as many as the baseline has, or 100. `options` are completed by `job_options`; so many `processes` build a dataset; `on_build` gets the name of
    one that is built or downloaded, what is done and what there is in all.
    """
    if options.stream:
        raise ValueError(
            "a sweep reads its datasets into memory: leave out stream=True, or use train."
        )
    algorithms = [known_as(algorithm) for algorithm in algorithms]
    for algorithm in algorithms:
        make_config(algorithm, {})
    names = [algorithm_name(algorithm) for algorithm in algorithms]
    for what, given in (("dataset", datasets), ("algorithm", names), ("seed", seeds)):
        if len({*given}) < len(given):
            raise ValueError(f"a {what} is named twice in {', '.join(map(str, given))}.")
    sweep = Sweep(groups=[], seeds=[*seeds], left_out=[], failures=[])
    given_as: dict[str, str] = {}
    for name in datasets:
        try:
            dataset = load_or_make(name, processes, on_build)
            other = given_as.setdefault(dataset.name, name)
            if other != name:
                raise ValueError(
                    f"{other} and {name} are both {dataset.name}, which a report could not tell "
                    "apart; run a sweep for each, with a report of its own."
                )
            for algorithm in algorithms:
                _add_group(sweep, algorithm, dataset, options, episodes)
        except OrlogError as error:
            sweep.failures.append(_failure(name, error))
    return sweep


def load_or_make(
    name: str,
    processes: int = 1,
    on_build: Callable[[str, int, int], None] = lambda _name, _done, _total: None,
) -> Dataset:
    """Return a dataset; one that is not here is built or downloaded. Arguments: `plan_sweep`."""

    def progress(done: int, total: int) -> None:
        on_build(name, done, total)

    try:
        return load_dataset(name)
    except NotFoundError as missing:
        if name.partition("@")[0] in catalogue():
            wanted = str(pinned(parse_name(name)))
            return load_dataset(build_dataset(wanted, workers=processes, progress=progress))
        try:
            return load_dataset(name, download=True, progress=progress)
        except NotFoundError as error:
            raise missing from error  # it names those that are spelled alike


def _add_group(
    sweep: Sweep, algorithm: str, dataset: Dataset, options: TrainOptions, wanted: int | None
) -> None:
    """Add an algorithm on a dataset to a sweep, or the line that says why it is left out."""
    try:
        fitting_form(algorithm, dataset)
        options = msgspec.structs.replace(options, seed=sweep.seeds[0])
        count, episodes = len(sweep.seeds), wanted or recorded_episodes(algorithm, dataset.name)
        options = job_options(options, algorithm, dataset.name, seeds=count, episodes=episodes)
        first = identify(algorithm, dataset, options, episodes=episodes)
    except (NotFoundError, SchemaError) as error:
        sweep.left_out.append(f"{algorithm} on {dataset.name} is left out: {error}")
        return
    sweep.groups.append(
        Group(
            algorithm=anywhere(algorithm),
            dataset=_reference(dataset),
            name=dataset.name,
            first=first,
            options=options,
        )
    )


def _reference(dataset: Dataset) -> str:
    """Return what names a dataset on any machine, or the path of a view or of a folder elsewhere."""
    if dataset.operation is not None or not is_at_home(dataset):
        return str(dataset.folder)
    # A worker elsewhere can build what its version names, and the identity holds the digest.
    pin = dataset.version if is_rebuild(dataset.manifest) else dataset.digest
    return f"{dataset.name}@{pin}"


def run_sweep(
    sweep: Sweep,
    *,
    workers: int | None = None,
    executor: str | Executor = "processes",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    on_failure: Callable[[Failure], None] = lambda _failure: None,
    note: Callable[[str], None] = lambda _text: None,
) -> None:
    """Run every job of a sweep whose result is not there; failures are added to the sweep's.

    A job that fails ends no other. A full disk ends the sweep: no further job is begun, and what is done
    stays. `progress` gets jobs done and in all, `on_failure` each failure when it happens, and `note` a line
    on each damaged result, whose job is then run again.
    """
    execute = find_executor(executor)
    home = mark_home()
    total, done = len(sweep.groups) * len(sweep.seeds), 0
    full: StorageError | None = None
    taken: dict[int, KeyedJob] = {}

    def waiting(jobs: Iterable[KeyedJob]) -> Iterator[KeyedJob]:
        """Yield the jobs whose results are not there, until the disk is full."""
        index = 0
        for job in jobs:
            if full is not None:
                return
            if read_whole(key_of(job.identity), note) is not None:
                tell_done()
                continue
            taken[index] = job
            index += 1
            yield job

    def tell_done() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    def end(job: KeyedJob, found: Ended | Exception) -> None:
        """Keep what a job gave, or note why it failed."""
        nonlocal full
        error = found if isinstance(found, Exception) else None
        if isinstance(found, Ended):
            try:
                keep(key_of(job.identity), found.files)
            except (NotFoundError, StorageError) as failed:
                error = failed
        if error is not None:
            sweep.failures.append(_failure(str(job), error))
            on_failure(sweep.failures[-1])
            if isinstance(error, StorageError) and error.errno in _FULL:
                full = error
        tell_done()

    def run(jobs: Iterable[KeyedJob]) -> Iterator[KeyedJob]:
        """Run jobs, and yield those that another sweep is at."""
        ended = execute(run_keyed, waiting(jobs), workers=workers, running=lambda _job: None)
        for index, found in ended:
            job = taken.pop(index)
            if isinstance(found, Ended) and found.is_busy:
                yield job
            else:
                end(job, found)

    busy = [*run(_jobs(sweep, home))]
    for job in run(dataclasses.replace(job, waits=True) for job in busy):
        raise AssertionError(f"{job}: it waits, so it cannot be busy")
    if full is not None:
        raise StorageError(
            f"the sweep was stopped: {clause(full)}; what is done stays.", errno=full.errno
        )


def _failure(what: str, error: Exception) -> Failure:
    message = str(error)
    if not isinstance(error, OrlogError | ValueError | OSError | FloatingPointError):
        message = f"{type(error).__name__}: {error}"
    return Failure(what=what, message=message, is_damage=isinstance(error, IntegrityError))


def _jobs(sweep: Sweep, home: str) -> Iterator[KeyedJob]:
    for group in sweep.groups:
        for seed in sweep.seeds:
            yield KeyedJob(group=group, identity=group.identity(seed), home=home)
