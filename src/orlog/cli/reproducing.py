"""Runs experiments from end to end, and compares scores with recorded baselines."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orlog.base.terminal import print_json, progress_bar, progress_bars, say, say_notes, tell
from orlog.cli.advice import in_options
from orlog.cli.options import (
    CORES,
    PROCESSES,
    AsJson,
    Begun,
    Executing,
    Imports,
    OptionalAlgorithm,
    OptionalName,
    Steps,
    TrustEnvironment,
    app,
    takes_options,
)
from orlog.errors import SchemaError
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset
    from orlog.experiments.jobs import Executor
    from orlog.experiments.reproducing import Result


OUT = Path("runs/reproduce")
REPORT = Path("runs/report")

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
class Reproduction:
    """What is trained and scored, where, and when it is enough."""

    suite: Annotated[
        str | None,
        typer.Option(help="Sweep over the datasets of the catalogue that begin so, or all."),
    ] = None
    datasets: Annotated[
        str | None, typer.Option(metavar="NAME,..", help="Sweep over these datasets.")
    ] = None
    algorithms: Annotated[
        str | None, typer.Option(metavar="NAME,..", help="Algorithms of a sweep.")
    ] = None
    seeds: Annotated[
        str,
        typer.Option(
            help="How many training seeds, from 0; or which, as 0-4 or 0,2,5.",
            show_default="3, or where 3 were recorded 4, or 5 if cost, success or the like is judged too",
        ),
    ] = ""
    sequential: Annotated[
        bool, typer.Option("--sequential", help="Add seeds until the verdict is settled.")
    ] = False
    max_seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Most seeds with --sequential.", show_default="as many as were recorded"
        ),
    ] = None
    require_same: Annotated[
        bool,
        typer.Option("--require-same", help="Exit with code 4 if it is not shown to be the same."),
    ] = False
    largest_share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="With --require-same: largest share of seeds that may fail unseen; 0.4 takes 6 seeds.",
        ),
    ] = None
    episodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Evaluation episodes per seed.",
            show_default="as many as were recorded, or 100",
        ),
    ] = None
    steps: Steps = None
    evaluations: Annotated[
        int, typer.Option(min=1, help="Evaluations during the training of each run.")
    ] = 5
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Jobs at a time.", show_default="as many as there are cores"),
    ] = None
    where: Executing
    out: Annotated[Path, typer.Option(help="Folder for the runs; not of a sweep.")] = OUT
    report: Annotated[Path, typer.Option(help="Folder for the report of a sweep.")] = REPORT
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue interrupted runs; a sweep does so by itself.")
    ] = False
    record: Annotated[
        bool, typer.Option("--record", help="Record the scores as the baseline (maintainers).")
    ] = False
    own_algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            metavar="FILE.py:CLASS",
            help="The algorithm of a FILE.json, if it is not one of orlog's.",
        ),
    ] = None
    trust_environment: TrustEnvironment = False
    imports: Imports = None
    as_json: AsJson = False


@app.command(
    epilog="Example: orlog reproduce iql pointmaze/umaze-v1 --seeds 3, or, for a sweep, orlog reproduce "
    "--suite pointmaze --algorithms bc,iql,td3bc --seeds 0-4"
)
@errors_are_no_verdict()
@takes_options
def reproduce(
    algorithm: OptionalAlgorithm = None, name: OptionalName = None, *, given: Reproduction
) -> None:
    """Train and score by recipes, and compare with the recorded baselines: one dataset, or a sweep.

    Of a file that orlog evaluate --out wrote (orlog reproduce FILE.json) it runs the first seed again, or those of
    --seeds, and says in a line whether that confirms or contradicts the file.

    A sweep keeps its results in ORLOG_HOME; the same command goes on where it was interrupted. At the
    end it writes a report: a page to look at. --json prints its numbers.

    Exit codes: 0 identical, same or consistent, or nothing to compare with; 1 not consistent; 2 an
    error, or a job of a sweep failed; 3 damage; 4 unsettled, or with --require-same neither identical
    nor the same. If several apply, the first of 3, 2, 1 and 4 counts.
    """
    share = given.largest_share
    if share is not None and not given.require_same:
        raise typer.BadParameter("--largest-share is only for --require-same; add it.")
    if algorithm is not None and algorithm.endswith(".json"):
        _reproduce_file(Path(algorithm), name, given)
        return
    is_sweep = not (given.suite is None and given.datasets is None and given.algorithms is None)
    if is_sweep:
        _check_sweep(algorithm, given)
    elif algorithm is None or name is None:
        raise typer.BadParameter(
            "name an algorithm and a dataset; or, for a sweep, --algorithms with --suite or --datasets."
        )
    else:
        given = dataclasses.replace(given, algorithms=algorithm, datasets=name)
        Begun.more = ("--resume",)
    seeds = _seeds(given.seeds) if given.seeds else _usual_seeds(given)
    most = range(given.max_seeds or 10**6) if given.sequential else seeds
    _check_largest_share(share, most)
    executor = given.where.chosen()
    if algorithm is not None and name is not None:
        results, failed = [_one(algorithm, name, seeds, given, executor)], 0
    else:
        results, failed = _sweep(seeds, given, executor)
    words = [None if one.verdict is None else one.verdict.word for one in results]
    if failed:
        raise typer.Exit(failed)
    if {"not consistent", "contradicted"} & {*words}:
        raise typer.Exit(NOT_CONSISTENT)
    if "unsettled" in words or not all(
        _is_same(one, share) for one in results if given.require_same
    ):
        raise typer.Exit(UNSETTLED)


def _reproduce_file(path: Path, name: str | None, given: Reproduction) -> None:
    """Run seeds of a file of scored runs again, and print the verdict in one line."""
    from orlog.results.reproducing import OUTCOMES, reproduce_file

    kept = {"seeds", "out", "own_algorithm", "trust_environment", "imports", "as_json", "where"}
    for field in dataclasses.fields(given):
        if field.name not in kept and getattr(given, field.name) != field.default:
            option = field.name.replace("_", "-")
            raise typer.BadParameter(f"--{option} is not for a file, which says how it was run.")
    if name is not None:
        raise typer.BadParameter(f"{name}: a file names its dataset itself; leave it out.")
    with progress_bars() as update:
        verdict = reproduce_file(
            path,
            given.out / path.stem,
            seeds=_seeds(given.seeds) if given.seeds else (),
            algorithm=given.own_algorithm,
            trust_environment=given.trust_environment,
            progress=lambda seed, step, steps: update(f"seed {seed}", step, steps),
        )
    outcome = OUTCOMES[verdict.word]
    if given.as_json:
        print_json(
            {
                "file": str(path),
                "outcome": outcome,
                "verdict": {**dataclasses.asdict(verdict), "text": str(verdict)},
            }
        )
    else:
        say(f"{outcome}: {verdict}")
    if outcome != "confirms":
        raise typer.Exit(NOT_CONSISTENT if outcome == "contradicts" else UNSETTLED)


def _check_sweep(algorithm: str | None, given: Reproduction) -> None:
    """Refuse what is missing or too much for a sweep."""
    has_one_source = (given.suite is None) != (given.datasets is None)
    if algorithm is not None or given.algorithms is None or not has_one_source:
        raise typer.BadParameter(
            "a sweep takes --algorithms, and either --suite or --datasets, without other names."
        )
    if given.sequential or given.max_seeds is not None:
        raise typer.BadParameter("--sequential and --max-seeds are not for sweeps.")
    if given.out != OUT:
        raise typer.BadParameter(
            "--out is not for sweeps, which keep their runs in ORLOG_HOME; the folder for the report is "
            "--report."
        )
    if given.resume:
        raise typer.BadParameter(
            "--resume is not for sweeps: the same command goes on where it was interrupted."
        )


def _is_same(result: Result, largest_share: float | None) -> bool:
    """Whether a result is identical, or the same with no larger share of seeds that may fail."""
    verdict = result.verdict
    if verdict is None or verdict.word not in ("identical", "same"):
        return False
    return largest_share is None or (verdict.unseen_share or 0.0) <= largest_share


def _check_largest_share(
    share: float | None, seeds: Sequence[int], recorded: Sequence[int] = ()
) -> None:
    """Refuse a share before any training if these seeds can never show it."""
    from orlog.normalize.verdicts import pairs_used, seeds_to_exclude, unseen_share

    if share is None:
        return
    if not 0.001 <= share < 1:
        raise typer.BadParameter(f"--largest-share {share:g} is not between 0.001 and 1.")
    pairs = pairs_used(len({*seeds} & {*recorded}), len(seeds))
    if unseen_share(pairs or len(seeds)) > share:
        needed = seeds_to_exclude(share, recorded)
        counted = f", of which {pairs} have a recorded one to pair with and count" if pairs else ""
        raise typer.BadParameter(
            f"--largest-share {share:g} takes {needed} seeds, and {len(seeds)} are asked for{counted}; "
            f"add --seeds {needed}."
        )


def _usual_seeds(given: Reproduction) -> list[int]:
    """Return the seeds of a command that names none: as many as can show a difference from each baseline."""
    from orlog.algos.algorithms import known_as
    from orlog.experiments.sweeps import suite_datasets
    from orlog.normalize.baselines import read_baseline
    from orlog.normalize.verdicts import judged_numbers, recorded_outcomes, usual_seeds

    names = suite_datasets(given.suite) if given.suite else _names(given.datasets or "")
    algorithms = map(known_as, _names(given.algorithms or ""))
    pairs = itertools.product(algorithms, (name.partition("@")[0] for name in names))
    found = [
        recorded_outcomes(one) for one in itertools.starmap(read_baseline, pairs) if one is not None
    ]
    usual = (usual_seeds(len(one), 1 + len(judged_numbers(one, one)[0])) for one in found)
    return [*range(max(usual, default=3))]


def _seeds(text: str) -> list[int]:
    """Return the seeds that `--seeds` names."""
    from orlog.experiments.seeds import parse_seeds

    try:
        return parse_seeds(text)
    except ValueError as error:
        raise typer.BadParameter(in_options(str(error))) from error


def _one(
    algorithm: str, name: str, seeds: list[int], given: Reproduction, executor: Executor
) -> Result:
    """Reproduce one algorithm on one dataset, with the runs in a folder of the user's."""
    from orlog.algos.settings import make_config
    from orlog.algos.training.options import TrainOptions
    from orlog.experiments.reproducing import ReproduceOptions, check_comparable
    from orlog.experiments.reproducing import reproduce as run
    from orlog.experiments.sweeps import load_or_make
    from orlog.normalize.baselines import read_baseline

    max_seeds = given.max_seeds
    if max_seeds is not None and not given.sequential:
        raise typer.BadParameter("--max-seeds is only for --sequential; add it, or use --seeds.")
    if max_seeds is not None and max_seeds < len(seeds):
        raise typer.BadParameter(f"--max-seeds {max_seeds} is less than --seeds {len(seeds)}.")
    make_config(algorithm, {})
    with progress_bars() as update:
        dataset = load_or_make(name, CORES, update)
    if given.record:
        _check_recordable(dataset, name)
    if given.require_same:
        check_comparable(algorithm, dataset, given.steps)
    baseline = read_baseline(algorithm, dataset.name)
    if baseline is not None and not given.sequential:
        _check_largest_share(given.largest_share, seeds, [*map(int, baseline.returns)])
    if given.sequential and max_seeds is None:
        max_seeds = max(len(seeds), len(baseline.returns) if baseline is not None else 0)

    def look(so_far: Result) -> None:
        tell(f"{counted(len(so_far.evaluations), 'seed')}: {so_far.verdict}")

    with progress_bars() as update:
        result = run(
            algorithm,
            dataset,
            given.out,
            ReproduceOptions(
                seeds=seeds,
                episodes=given.episodes,
                train=TrainOptions(
                    steps=given.steps,
                    evaluations=given.evaluations,
                    trust_environment=given.trust_environment,
                ),
                resume=given.resume,
                max_seeds=max_seeds,
            ),
            workers=given.workers,
            executor=executor,
            on_look=look,
            progress=lambda job, step: update(f"seed {job.seed}", step, job.steps),
        )
    if given.as_json:
        print_json(result.to_json())
    else:
        from orlog.reports.dataset_page import show_results

        show_results([result])
    if given.record:
        _record(result, given.as_json)
    return result


def _sweep(seeds: list[int], given: Reproduction, executor: Executor) -> tuple[list[Result], int]:
    """Run a sweep; return the result of each algorithm on each dataset, and the code of a failure or 0."""
    from orlog.algos.training.options import TrainOptions
    from orlog.datasets.loading import load_dataset
    from orlog.experiments.sweeps import plan_sweep, run_sweep, suite_datasets
    from orlog.reports.dataset_page import show_results
    from orlog.reports.sweep_page import results_of, write_sweep_page

    names = _names(given.datasets or "") if given.suite is None else suite_datasets(given.suite)
    with progress_bars() as update:
        sweep = plan_sweep(
            names,
            _names(given.algorithms or ""),
            seeds=seeds,
            episodes=given.episodes,
            options=TrainOptions(
                steps=given.steps,
                evaluations=given.evaluations,
                trust_environment=given.trust_environment,
            ),
            processes=CORES,
            on_build=update,
        )
    for dataset in sorted({group.dataset for group in sweep.groups} if given.record else ()):
        _check_recordable(load_dataset(dataset), dataset)
    say_notes([in_options(note) for note in sweep.left_out], tell)
    damaged: list[str] = []
    try:
        with progress_bar("jobs") as update_jobs:
            run_sweep(
                sweep,
                workers=given.workers,
                executor=executor,
                progress=update_jobs,
                note=damaged.append,
            )
    finally:
        say_notes(damaged, tell)
        for failure in sweep.failures:
            tell(f"{failure.what}: {in_options(failure.message)}", label="failed")
    results = results_of(sweep)
    if given.as_json:
        print_json(
            {
                "results": [one.to_json() for one in results],
                "left_out": sweep.left_out,
                "failures": [{"what": one.what, "message": one.message} for one in sweep.failures],
            }
        )
    if results:  # before anything is recorded, which it would be compared with
        title = f"Sweep of {given.algorithms} on {given.suite or given.datasets}"
        page = given.report / "report.html"
        write_sweep_page(sweep, results, page, title=title)
        if given.as_json:
            tell(f"report: {page}")
        else:
            show_results(results, page)
    for result in results if given.record else []:
        if len(result.evaluations) == len(seeds):
            _record(result, given.as_json)
        else:
            tell(
                f"note: {result.record.algorithm} on {result.record.dataset} is not recorded: "
                f"{len(result.evaluations)} of {len(seeds)} seeds are done."
            )
    if any(failure.is_damage for failure in sweep.failures):
        return results, DAMAGE
    return results, ERROR if sweep.failures or not results else 0


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


def _record(result: Result, as_json: bool) -> None:
    from orlog.normalize.baselines import record_baseline

    path = record_baseline(result.as_baseline())
    (tell if as_json else say)(f"recorded in {path}")


@app.command(epilog="Example: orlog quickstart")
def quickstart(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the runs and the page; with runs of a quickstart that was stopped, it goes on.",
            show_default="orlog-quickstart, -2, ..",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help=PROCESSES, show_default="number of cores")
    ] = CORES,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            help="A run of seconds that shows that everything works; its scores mean nothing.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build, verify, train, score and compare on one dataset, and write a page about it."""
    from orlog.reports.quickstart import quickstart as run

    folder = out or _free_folder("orlog-quickstart")
    Begun.more = () if out else ("--out", str(folder))
    # For a script, what people read goes to stderr.
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        done = run(folder, smoke=smoke, workers=workers)
    if as_json:
        dataset, results, page = done
        print_json(
            {
                "dataset": dataset.name,
                "digest": dataset.digest,
                "report": str(page),
                "results": [one.to_json() for one in results],
            }
        )


def _free_folder(name: str) -> Path:
    """Return the first of name, name-2, name-3 ... that is not there."""
    return next(
        path
        for number in itertools.count(1)
        if not (path := Path(name if number == 1 else f"{name}-{number}")).exists()
    )
