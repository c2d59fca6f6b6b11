"""Sweeps: algorithms on datasets with several seeds, as a list of jobs that depend on nothing else.

What a job gives lies in the results of this home under its key (`orlog.runs.results`), so that a
sweep that was killed goes on, equal work is done once, and two sweeps share: one takes a job, the
other takes the next, and waits for the first at the end.

A worker trains in the results of its own home, because a run that is killed goes on from the
checkpoint there. Where that is not the home of the sweep, it sends the files of the finished run back,
and the sweep writes them.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import itertools
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from orlog.algos.algorithms import algorithm_name, anywhere, known_as
from orlog.algos.settings import make_config
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import TrainOptions, is_at_home
from orlog.base.files import BusyError, make_folder, replace_file, sole_access, storage_errors
from orlog.base.jobs import Execute
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.finding import pinned
from orlog.datasets.worlds.build import build_dataset
from orlog.datasets.worlds.recipe import catalogue
from orlog.errors import (
    FormatVersionError,
    IntegrityError,
    NotFoundError,
    OrlogError,
    SchemaError,
    StorageError,
    clause,
)
from orlog.manifests.names import did_you_mean, parse_name
from orlog.manifests.rebuilds import is_rebuild
from orlog.runs.evaluating import read_score
from orlog.runs.jobs import Job, find_executor, job_options, recorded_episodes, run_job
from orlog.runs.reproducing import Reproduction, judge
from orlog.runs.results import (
    RESULT_FILE,
    Decides,
    key_of,
    read_result,
    result_folder,
    results_folder,
    set_aside,
    what_decides,
    write_result,
)
from orlog.runs.scores import references_of_dataset

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    """One algorithm on one dataset with one seed, for a worker anywhere."""

    algorithm: str  # the algorithm, as a process in another folder finds it
    dataset: str  # what a worker loads: name and digest, or the path of a view
    name: str  # name of the dataset
    options: TrainOptions  # what is asked for
    decides: Decides  # all that decides the numbers
    waits: bool = False  # whether to wait for another sweep that is at it

    def __str__(self) -> str:
        return f"{self.algorithm} on {self.name}, seed {self.options.seed}"

    @property
    def folder(self) -> Path:
        """The folder of its result in the home of this process."""
        return result_folder(key_of(self.decides))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What could not be done, a job or a dataset, and why; and whether bytes are not what was recorded."""

    what: str
    message: str
    is_damage: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a sweep is made of, and what of it failed so far."""

    jobs: list[SweepJob]  # one for each algorithm, dataset and seed
    left_out: list[str]  # lines on algorithms that do not apply to a dataset
    failures: list[Failure]  # datasets and jobs that failed

    def results(self) -> list[Reproduction]:
        """Return what the finished seeds of each algorithm on each dataset score; damaged ones are left out."""
        load = functools.cache(load_dataset)  # algorithms share datasets
        results = []
        for (_, name), jobs in itertools.groupby(self.jobs, lambda job: (job.algorithm, job.dataset)):
            done = [job for job in jobs if is_done(job)]
            if done:
                references = references_of_dataset(load(name))
                results.append(judge({job.options.seed: read_score(job.folder, references) for job in done}))
        return results


def suite_datasets(suite: str) -> list[str]:
    """Return the datasets of the catalogue that begin with `SUITE/`; `all` are all of them."""
    names = [name for name in sorted(catalogue()) if suite in ("all", name.partition("/")[0])]
    if not names:
        suites = sorted({name.partition("/")[0] for name in catalogue()})
        hint = did_you_mean(suite, suites) or f"; choose one of: all, {', '.join(suites)}."
        raise NotFoundError(f"no suite {suite!r}{hint}")
    return names


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

    Episodes are as many as the baseline has, or 100. `options` are completed by `job_options`; so many
    `processes` build a dataset; `on_build` gets the name of one that is built or downloaded, what is done
    and what there is in all.
    """
    if options.stream:
        raise ValueError("a sweep reads its datasets into memory: leave out stream=True, or use train.")
    algorithms = [known_as(algorithm) for algorithm in algorithms]
    for algorithm in algorithms:
        make_config(algorithm, {})
    names = [algorithm_name(algorithm) for algorithm in algorithms]
    for what, given in (("dataset", datasets), ("algorithm", names), ("seed", seeds)):
        if len({*given}) < len(given):
            raise ValueError(f"a {what} is named twice in {', '.join(map(str, given))}.")
    sweep = Sweep(jobs=[], left_out=[], failures=[])
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
                try:
                    sweep.jobs.extend(_jobs(algorithm, dataset, seeds, options, episodes))
                except (NotFoundError, SchemaError) as error:
                    sweep.left_out.append(f"{algorithm} on {dataset.name} is left out: {error}")
        except OrlogError as error:
            sweep.failures.append(_failure(name, error))
    return sweep


def load_or_make(
    name: str, processes: int = 1, on_build: Callable[[str, int, int], None] = lambda _name, _done, _total: None
) -> Dataset:
    """Return a dataset; one that is not here is built or downloaded. Arguments: `plan_sweep`."""
    progress = functools.partial(on_build, name)
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


def _jobs(
    algorithm: str, dataset: Dataset, seeds: Sequence[int], options: TrainOptions, wanted: int | None
) -> list[SweepJob]:
    fitting_form(algorithm, dataset)
    episodes = wanted or recorded_episodes(algorithm, dataset.name)
    options = job_options(options, algorithm, dataset.name, seeds=len(seeds), episodes=episodes)
    first = what_decides(algorithm, dataset, options, episodes=episodes)
    if dataset.operation is not None or not is_at_home(dataset):
        place = str(dataset.folder)
    else:  # a worker elsewhere can build what its version names, and the digest is among what decides
        pin = dataset.version if is_rebuild(dataset.manifest) else dataset.digest
        place = f"{dataset.name}@{pin}"
    return [
        SweepJob(
            algorithm=anywhere(algorithm),
            dataset=place,
            name=dataset.name,
            options=msgspec.structs.replace(options, seed=seed),
            decides={
                **first,
                "seed": seed,
                # Algorithms that draw inside have it among their settings.
                "config": {**first["config"], **({"seed": seed} if "seed" in first["config"] else {})},
            },
        )
        for seed in seeds
    ]


def run_sweep(
    sweep: Sweep,
    *,
    workers: int | None = None,
    executor: str | Execute = "processes",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    note: Callable[[str], None] = lambda _text: None,
) -> None:
    """Run every job of a sweep whose result is not there; failures are added to the sweep's.

    A job that fails ends no other. A full disk ends the sweep: no further job is begun, and what is done
    stays. `progress` gets jobs done and in all, and `note` a line on each damaged result, whose job is then run
    again.
    """
    execute = find_executor(executor)
    work = functools.partial(_run, _mark_home())
    total = len(sweep.jobs)
    left = [job for job in sweep.jobs if not is_done(job, note)]
    done = total - len(left)
    if done:
        progress(done, total)
    full: list[StorageError] = []
    for waits in (False, True):  # those that another sweep is at come last
        jobs = [dataclasses.replace(job, waits=waits) for job in left]
        left = []
        taken = itertools.takewhile(lambda _: not full, jobs)
        for index, files in execute(work, taken, workers=workers, running=lambda _job: None):
            job, error = jobs[index], files if isinstance(files, Exception) else None
            if files is None:
                left.append(job)
                continue
            try:
                if error is None:
                    _keep(job, files)
            except (NotFoundError, StorageError) as lost:
                error = lost
            if error is not None:
                sweep.failures.append(_failure(str(job), error))
                if isinstance(error, StorageError) and error.errno in _FULL:
                    full.append(error)
            done += 1
            progress(done, total)
    if full:
        raise StorageError(f"the sweep was stopped: {clause(full[0])}; what is done stays.", errno=full[0].errno)


def _failure(what: str, error: Exception) -> Failure:
    message = str(error)
    if not isinstance(error, OrlogError | ValueError | OSError | FloatingPointError):
        message = f"{type(error).__name__}: {error}"
    return Failure(what=what, message=message, is_damage=isinstance(error, IntegrityError))


def is_done(job: SweepJob, note: Callable[[str], None] = lambda _text: None) -> bool:
    """Whether a job has a result; not if it is damaged, after a note: then it is made again."""
    try:
        return read_result(job.folder.name, with_checkpoint=True) is not None
    except OrlogError as error:
        note(f"{clause(error)}; its job is run again.")
        return False


def _mark_home() -> str:
    """Write what tells this home from all others, and from copies that were made of it; return it."""
    mark = uuid.uuid4().hex
    path = results_folder() / ".id"
    with sole_access(path), storage_errors(path):
        replace_file(path, mark.encode())
    return mark


def _run(home: str, job: SweepJob) -> dict[str, bytes] | None:
    """Do one job in a worker, unless its result is there; return its files, where it is in another home."""
    folder = job.folder
    try:
        with sole_access(folder, longest_wait=None if job.waits else 0):
            if not is_done(job):
                _train(job)
    except BusyError:
        if job.waits:
            raise
        return None
    mark = results_folder() / ".id"
    if mark.is_file() and mark.read_text("utf-8") == home:
        return {}
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _train(job: SweepJob) -> None:
    """Train and evaluate a job in the folder of its result, with the data and the code that its key says."""
    dataset = load_dataset(job.dataset, build=True, download=True)
    folder, episodes = job.folder, job.decides["protocol"]["episodes"]
    here = what_decides(job.algorithm, dataset, job.options, episodes=episodes)
    if here != job.decides:
        others = ", ".join(name for name in here if here[name] != job.decides[name])
        raise IntegrityError(
            f"{job}: this worker has another {others} than where the sweep was started; use the same orlog, "
            "packages and kind of device on all machines."
        )
    run = Job(
        algorithm=job.algorithm,
        dataset=dataset.folder,
        folder=folder,
        options=job.options,
        episodes=episodes,
        resume=True,
        where="mmap",
    )
    try:
        read_result(folder.name, with_checkpoint=True)
    except FormatVersionError:
        raise  # it is whole, and of a newer orlog
    except OrlogError:
        set_aside(folder)
    try:
        run_job(run)
        write_result(job.decides)
    except (FileExistsError, IntegrityError, NotFoundError) as error:
        if not folder.is_dir() or str(folder) not in str(error):
            raise
        set_aside(folder)  # a file that a run had begun there is damaged or missing
        run_job(run)
        write_result(job.decides)


def _keep(job: SweepJob, files: dict[str, bytes]) -> None:
    """Write the files of a result that was made in another home, `result.json` last."""
    folder = job.folder
    with storage_errors(folder):
        make_folder(folder)  # this asks a shared disk anew, which may remember its absence
    if is_done(job):
        return
    if not files:
        raise NotFoundError(
            f"its worker says that it shares this home, but there is no result in {folder}; if the "
            f"home of the worker is a copy of this one, delete the file results/.id there."
        )
    with sole_access(folder), storage_errors(folder):
        if (folder / RESULT_FILE).exists():
            set_aside(folder)
        for name in sorted(files, key=RESULT_FILE.__eq__):
            make_folder((folder / name).parent)
            replace_file(folder / name, files[name])
