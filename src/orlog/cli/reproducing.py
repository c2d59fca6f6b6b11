"""Runs experiments from end to end, and compares scores with recorded baselines."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orlog.base.terminal import progress_bar, progress_bars, say, say_notes, tell
from orlog.cli.advice import in_options
from orlog.cli.options import (
    CORES,
    AsJson,
    Begun,
    Executing,
    Imports,
    OptionalAlgorithm,
    OptionalName,
    Steps,
    TrustEnvironment,
    command,
)
from orlog.cli.results import show
from orlog.errors import SchemaError
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.algos.training.runs import TrainOptions
    from orlog.datasets.reading.dataset import Dataset
    from orlog.runs.reproducing import Reproduction


NOT_CONSISTENT, ERROR, DAMAGE, UNSETTLED = 1, 2, 3, 4
"""Exit codes of verdicts; 0 is good."""


@contextlib.contextmanager
def errors_are_no_verdict() -> Iterator[None]:
    """Give errors another exit code than 1, which says that scores are not consistent."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        code: Any = getattr(error, "exit_code", NOT_CONSISTENT)
        error.exit_code = ERROR if code == NOT_CONSISTENT else code  # type: ignore[attr-defined]
        raise


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scoring:
    """How runs are trained, scored and judged.

    Options:
        seeds (SEEDS, default: as many as can show a difference): How many training seeds, from 0; or which, as 0-4
            or 0,2,5.
        require_same: Exit with code 4 if it is not shown to be the same.
        episodes (>= 1, default: as many as were recorded or else 100): Evaluation episodes per seed.
        evaluations (>= 1): Evaluations during the training of each run.
        workers (>= 1, default: as many as there are cores): Jobs at a time.
        record: Record the scores as the baseline (maintainers).
    """

    seeds: str = ""
    require_same: bool = False
    episodes: int | None = None
    steps: Steps = None
    evaluations: int = 5
    workers: int | None = None
    where: Executing
    record: bool = False
    trust_environment: TrustEnvironment = False
    imports: Imports = None
    as_json: AsJson = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reproducing:
    """How one algorithm is reproduced on one dataset, and when that is enough.

    Options:
        sequential: Add seeds until the verdict is settled.
        max_seeds (>= 1, default: as many as were recorded): Most seeds with --sequential.
        out: Folder for the runs.
        resume: Continue interrupted runs.
        own_algorithm (--algorithm FILE.py:CLASS): The algorithm of a FILE.json, if it is not one of
            orlog's.
    """

    sequential: bool = False
    max_seeds: int | None = None
    out: Path = Path("runs/reproduce")
    resume: bool = False
    own_algorithm: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweeping:
    """Which algorithms are swept over which datasets.

    Options:
        algorithms (--algorithms NAME,..): Algorithms, with commas between them.
        suite: Datasets of the catalogue that begin so, or all.
        datasets (NAME,..): Datasets, with commas between them.
        out: Folder for the report, report.html.
    """

    algorithms: str
    suite: str | None = None
    datasets: str | None = None
    out: Path = Path("runs/sweep")


@command("orlog reproduce iql pointmaze/umaze-v1 --seeds 3")
@errors_are_no_verdict()
def reproduce(
    algorithm: OptionalAlgorithm = None, name: OptionalName = None, *, scoring: Scoring, given: Reproducing
) -> None:
    """Train and score an algorithm on a dataset by its recipe, and compare with its recorded baseline.

    Of a file that orlog evaluate --out wrote (orlog reproduce FILE.json) it runs the first seed again, or those of
    --seeds, and says in a line whether that confirms or contradicts the file.

    Exit codes: 0 identical, same or consistent, or nothing to compare with; 1 not consistent; 2 an
    error; 3 damage; 4 unsettled, or with --require-same neither identical nor the same.
    """
    from orlog.algos.settings import make_config
    from orlog.normalize.references import read_baseline
    from orlog.normalize.verdicts import look_counts
    from orlog.runs import reproducing
    from orlog.runs.jobs import make_jobs, recorded_episodes
    from orlog.runs.results_page import show_results
    from orlog.runs.sweeps import load_or_make

    if algorithm is not None and algorithm.endswith(".json"):
        _reproduce_file(Path(algorithm), name, scoring, given)
        return
    if algorithm is None or name is None:
        raise typer.BadParameter("name an algorithm and a dataset; for many, see orlog sweep.")
    Begun.more = ("--resume",)
    seeds, most = _seeds(scoring, [algorithm], [name]), given.max_seeds
    if most is not None and not given.sequential:
        raise typer.BadParameter("--max-seeds is only for --sequential; add it, or use --seeds.")
    if most is not None and most < len(seeds):
        raise typer.BadParameter(f"--max-seeds {most} is less than --seeds {len(seeds)}.")
    make_config(algorithm, {})
    executor = scoring.where.chosen()
    with progress_bars() as update:
        dataset = load_or_make(name, CORES, update)
    if scoring.record:
        _check_recordable(dataset, name)
    if scoring.require_same or given.sequential:
        reproducing.check_comparable(algorithm, dataset, scoring.steps)
    counts = [len(seeds)]
    if given.sequential:
        recorded = read_baseline(algorithm, dataset.name)
        counts = look_counts(len(seeds), max(len(seeds), most or len(recorded.returns if recorded else ())))
    jobs = make_jobs(
        algorithm,
        dataset,
        given.out,
        seeds=reproducing.more_seeds(algorithm, dataset.name, seeds, counts[-1]),
        episodes=scoring.episodes or recorded_episodes(algorithm, dataset.name),
        options=_train_options(scoring),
        resume=given.resume,
    )
    with progress_bars() as update:
        result = reproducing.reproduce(
            jobs,
            counts,
            workers=scoring.workers,
            executor=executor,
            progress=lambda job, step: update(f"seed {job.seed}", step, job.steps),
            on_look=lambda result: tell(f"{counted(len(result.seeds), 'seed')}: {result.verdict}"),
        )
    show(result.to_json(), scoring.as_json, lambda _: show_results([result]))
    if scoring.record:
        _record(result)
    _end_with_verdicts([result], scoring)


@command("orlog sweep --suite pointmaze --algorithms bc,iql,td3bc --seeds 0-4 --out sweep")
@errors_are_no_verdict()
def sweep(*, scoring: Scoring, given: Sweeping) -> None:
    """Train and score many algorithms on many datasets, and write a report.

    Its results are kept in ORLOG_HOME: give the same command again and it goes on where it was interrupted.
    With --executor the jobs run on a cluster.

    Exit codes: 0 identical, same or consistent, or nothing to compare with; 1 not consistent; 2 an
    error, or a job failed; 3 damage; 4 unsettled, or with --require-same neither identical
    nor the same. If several apply, the first of 3, 2, 1 and 4 counts.
    """
    from orlog.datasets.loading import load_dataset
    from orlog.runs.results_page import show_results, write_sweep_page
    from orlog.runs.sweeps import plan_sweep, run_sweep, suite_datasets

    if (given.suite is None) == (given.datasets is None):
        raise typer.BadParameter("give either --suite or --datasets.")
    algorithms = _names(given.algorithms)
    names = suite_datasets(given.suite) if given.suite is not None else _names(given.datasets or "")
    seeds = _seeds(scoring, algorithms, names)
    executor = scoring.where.chosen()
    with progress_bars() as update:
        planned = plan_sweep(
            names,
            algorithms,
            seeds=seeds,
            episodes=scoring.episodes,
            options=_train_options(scoring),
            processes=CORES,
            on_build=update,
        )
    for dataset in sorted({job.dataset for job in planned.jobs} if scoring.record else ()):
        _check_recordable(load_dataset(dataset), dataset)
    say_notes([in_options(note) for note in planned.left_out], tell)
    damaged: list[str] = []
    try:
        with progress_bar("jobs") as update_jobs:
            run_sweep(planned, workers=scoring.workers, executor=executor, progress=update_jobs, note=damaged.append)
    finally:
        say_notes(damaged, tell)
        for failure in planned.failures:
            tell(f"{failure.what}: {in_options(failure.message)}", label="failed")
    results = planned.results()
    page = given.out / "report.html"
    if results:  # before anything is recorded, which it would be compared with
        write_sweep_page(
            planned, results, page, title=f"Sweep of {given.algorithms} on {given.suite or given.datasets}"
        )
    body = {
        "results": [result.to_json() for result in results],
        "left_out": planned.left_out,
        "failures": [{"what": failure.what, "message": failure.message} for failure in planned.failures],
    }
    show(body, scoring.as_json, lambda _: show_results(results) if results else None)
    if results:
        tell(f"report: {page}")
    for result in results if scoring.record else []:
        if len(result.seeds) == len(seeds):
            _record(result)
        else:
            done = f"{len(result.seeds)} of {len(seeds)} seeds are done"
            tell(f"note: {result.record.algorithm} on {result.record.dataset} is not recorded: {done}.")
    if any(failure.is_damage for failure in planned.failures):
        raise typer.Exit(DAMAGE)
    if planned.failures or not results:
        raise typer.Exit(ERROR)
    _end_with_verdicts(results, scoring)


def _reproduce_file(path: Path, name: str | None, scoring: Scoring, given: Reproducing) -> None:
    """Run seeds of a file of scored runs again, and print the verdict in one line."""
    from orlog.runs.reproducing import OUTCOMES, reproduce_file, verdict_json
    from orlog.runs.running import parse_seeds

    kept = ("seeds", "out", "own_algorithm", "trust_environment", "imports", "as_json", "where", "workers")
    for options in (scoring, given):
        for field in dataclasses.fields(options):
            if field.name not in kept and getattr(options, field.name) != field.default:
                word = field.name.replace("_", "-")
                raise typer.BadParameter(f"--{word} is not for a file, which says how it was run.")
    if name is not None:
        raise typer.BadParameter(f"{name}: a file names its dataset itself; leave it out.")
    with progress_bars() as update:
        verdict = reproduce_file(
            path,
            given.out / path.stem,
            seeds=parse_seeds(scoring.seeds) if scoring.seeds else (),
            algorithm=given.own_algorithm,
            trust_environment=scoring.trust_environment,
            workers=scoring.workers,
            progress=lambda job, step: update(f"seed {job.seed}", step, job.steps),
        )
    outcome = OUTCOMES[verdict.word]
    body = {"file": str(path), "outcome": outcome, "verdict": verdict_json(verdict)}
    show(body, scoring.as_json, lambda _: say(f"{outcome}: {verdict}"))
    if outcome != "confirms":
        raise typer.Exit(NOT_CONSISTENT if outcome == "contradicts" else UNSETTLED)


def _train_options(scoring: Scoring) -> TrainOptions:
    from orlog.algos.training.runs import TrainOptions

    return TrainOptions(
        steps=scoring.steps, evaluations=scoring.evaluations, trust_environment=scoring.trust_environment
    )


def _end_with_verdicts(results: Sequence[Reproduction], scoring: Scoring) -> None:
    words = {None if result.verdict is None else result.verdict.word for result in results}
    if {"not consistent", "contradicted"} & words:
        raise typer.Exit(NOT_CONSISTENT)
    if "unsettled" in words or (scoring.require_same and not words <= {"identical", "same"}):
        raise typer.Exit(UNSETTLED)


def _seeds(scoring: Scoring, algorithms: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the seeds that are given, or as many as can show a difference from each baseline."""
    from orlog.algos.algorithms import known_as
    from orlog.normalize.references import read_baseline
    from orlog.normalize.verdicts import judged_numbers, recorded_outcomes, usual_seeds
    from orlog.runs.running import parse_seeds

    if scoring.seeds:
        return parse_seeds(scoring.seeds)
    counts = [3]
    for algorithm, name in itertools.product(map(known_as, algorithms), names):
        baseline = read_baseline(algorithm, name.partition("@")[0])
        if baseline is not None:
            recorded = recorded_outcomes(baseline)
            numbers = 1 + len(judged_numbers(recorded, recorded)[0])
            counts.append(usual_seeds(len(recorded), numbers))
    return [*range(max(counts))]


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise typer.BadParameter(f"{text!r} names nothing; give names with commas between them.")
    return names


def _check_recordable(dataset: Dataset, given: str) -> None:
    """Refuse a view, whose scores would be recorded as those of the dataset that it is of."""
    if dataset.operation is not None:
        raise SchemaError(
            f"a view of {dataset.name} has no baseline of its own; store it as a version first: "
            f"orlog save {given} NAME@VERSION"
        )


def _record(result: Reproduction) -> None:
    from orlog.normalize.references import record_baseline

    tell(f"recorded in {record_baseline(result.as_baseline())}")


@command("orlog quickstart")
def quickstart(*, out: Path | None = None, workers: int = CORES, smoke: bool = False, as_json: AsJson = False) -> None:
    """Build, verify, train, score and compare on one dataset, and write a page about it.

    Options:
        out (default: a new orlog-quickstart): Folder for the runs and the page; with runs of a
            quickstart that was stopped, it goes on.
        workers (>= 1, default: number of cores): Processes to use.
        smoke: A run of seconds that shows that everything works; its scores mean nothing.
    """
    from orlog.runs.quickstart import quickstart as run

    number, folder = 1, out or Path("orlog-quickstart")
    while out is None and folder.exists():
        number += 1
        folder = Path(f"orlog-quickstart-{number}")
    Begun.more = () if out else ("--out", str(folder))
    # For a script, what people read goes to stderr.
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        done = run(folder, smoke=smoke, workers=workers)
    if as_json:
        dataset, results, page = done
        documents = [result.to_json() for result in results]
        body = {"dataset": dataset.name, "digest": dataset.digest, "report": str(page), "results": documents}
        show(body, as_json)
