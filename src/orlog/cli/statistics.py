"""Compares methods over tasks, and shows what a range of settings gives after tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orlog.algos.algorithms import algorithm_title
from orlog.base.terminal import print_json, say, say_notes, show_table, tell
from orlog.cli.options import AsJson, EvaluatedRuns, app
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.normalize.sequential import SequentialComparison
    from orlog.normalize.statistics import Comparison
    from orlog.runs.evaluated_runs import MethodResults
    from orlog.runs.tuning_curves import TuneCurve


@app.command(epilog="Example: orlog compare runs/bc runs/iql mine=runs/my_method theirs/")
def compare(
    runs: EvaluatedRuns,
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a plot of each statistic there.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the learning curves of runs there.")
    ] = None,
    picture: Annotated[str, typer.Option("--format", help="Format of the plots.")] = "svg",
    resamples: Annotated[int, typer.Option(min=100, help="Resamples of the bootstrap.")] = 2000,
    sequential: Annotated[
        bool,
        typer.Option(
            "--sequential", help="Say which methods differ, and which need more seeds (AdaStop)."
        ),
    ] = False,
    group: Annotated[int, typer.Option(min=2, help="Seeds of a group, with --sequential.")] = 5,
    groups: Annotated[int, typer.Option(min=1, help="Most groups, with --sequential.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Compare methods over tasks: aggregates, ranks and improvement, with 95 % intervals.

    Only rows that compare share a table: the same data, environment, versions of its packages, references and kind
    of policy. Others have a table of their own, and a line says what keeps it apart.
    """
    from orlog.normalize.metrics import HEADINGS
    from orlog.runs.comparing import comparison_of, tables_of
    from orlog.runs.evaluated_runs import find_runs, method_results
    from orlog.runs.statistics_plots import check_format

    if plots is not None:
        check_format(plots / f"aggregates.{picture}")
    if plot is not None:
        check_format(plot)
    skipped: list[str] = []
    documents: list[dict[str, Any]] = []
    every = find_runs(runs, on_skipped=skipped.append)
    if plot is not None:
        _draw_curves([run.place for run in every if run.file is None], plot)
    for number, table in enumerate(tables_of(every), 1):
        results = method_results(table.runs)
        comparison = comparison_of(results, resamples)
        decided = None
        if sequential and (number == 1 or len(results.scores) > 1):
            decided = _sequential(results, comparison, group, groups)
        notes = [*skipped, *_reading_notes(comparison), *results.notes]
        skipped = []
        if plots is not None:
            folder = plots if number == 1 else plots / f"table-{number}"
            _draw_comparison(comparison, decided, folder, picture, results.is_normalized)
        if as_json:
            documents.append(
                {
                    "normalized": results.is_normalized,
                    **comparison.to_json(),
                    "numbers": {
                        method: {task: [one.to_json() for one in of[task]] for task in of}
                        for method, of in results.numbers.items()
                    },
                    "sequential": None if decided is None else _sequential_json(decided),
                    "notes": notes,
                }
            )
            if table.apart:
                documents[-1]["differs"] = table.apart
            continue
        if table.apart:
            say(f"\ntable {number} is apart from table 1: {table.apart}")
        print_comparison(comparison, results.is_normalized, table.title)
        rows = [
            [task, table.title(method), *one.cells()]
            for task in comparison.tasks
            for method, of_tasks in results.numbers.items()
            for one in of_tasks.get(task, ())
        ]
        if rows:
            say("\nwhat metrics counted, over the seeds")
            show_table(("task", "method", *HEADINGS), rows, numbers=(3, 4))
        if decided is not None:
            _print_sequential(decided)
        say_notes(notes)
    if as_json:
        first, *apart = documents
        print_json({**first, "apart": apart})


def _draw_curves(folders: Sequence[Path], plot: Path) -> None:
    from orlog.errors import NotFoundError
    from orlog.runs.run_folders import find_run_folders
    from orlog.runs.run_groups import group_runs
    from orlog.runs.statistics_plots import curves_plot, save_plot

    if not folders:
        raise NotFoundError(
            f"{plot}: files of scored runs have no learning curves; name folders of runs."
        )
    summaries = [find_run_folders(folder)[0] for folder in dict.fromkeys(folders)]
    save_plot(curves_plot(group_runs(summaries), success=False), plot)
    tell(f"wrote {plot}")


def _sequential(
    results: MethodResults, comparison: Comparison, group: int, groups: int
) -> SequentialComparison:
    """Return the sequential comparison of a table's methods by the mean scores of their runs."""
    from orlog.normalize.sequential import compare_sequentially
    from orlog.normalize.statistics import run_means

    scores = {
        method: run_means([of_tasks[task] for task in comparison.tasks]).mean(1)
        for method, of_tasks in results.scores.items()
    }
    return compare_sequentially(scores, group=group, groups=groups)


def _reading_notes(comparison: Comparison) -> list[str]:
    from orlog.normalize.statistics import BOOTSTRAP_NOTE

    notes = [BOOTSTRAP_NOTE]
    single = [method for method, runs in comparison.runs.items() if len(runs) == 1]
    if single:
        notes.append(
            f"{', '.join(single)}: one seed, which shows nothing of how others would score; there are "
            "no intervals."
        )
    if len(comparison.tasks) == 1:
        notes.append("there is one task: ranks over it say nothing about other tasks.")
    if comparison.consensus is not None and not comparison.consensus.is_exact:
        notes.append(
            f"the consensus of {counted(len(comparison.ranks), 'method')} was searched for; a better one may "
            "exist."
        )
    return notes


def print_comparison(
    comparison: Comparison, is_normalized: bool, title: Callable[[str], str] = algorithm_title
) -> None:
    """Print every statistic of methods: scores by task, aggregates, ranks, improvement and variances."""
    unit = "normalized scores, 0..100" if is_normalized else "returns"
    say(f"{unit}: mean and standard deviation over seeds")
    methods = comparison.methods
    titles = [title(method) for method in methods]
    rows = []
    for index, task in enumerate(comparison.tasks):
        cells = [task]
        for runs in comparison.runs.values():
            means = runs[:, index]
            spread = f" ± {means.std(ddof=1):z.1f}" if len(means) > 1 else ""
            cells.append(f"{means.mean():z.1f}{spread}")
        rows.append(cells)
    show_table(("task", *titles), rows, numbers=range(1, len(methods) + 1))
    names = list(next(iter(comparison.aggregates.values())))
    ranks = comparison.ranks
    headings = ["method", "seeds", *names, *(["mean rank"] if ranks else [])]
    rows = [
        [
            title(method),
            str(len(comparison.runs[method])),
            *(str(comparison.aggregates[method][name]) for name in names),
            *([str(ranks.get(method, "not ranked"))] if ranks else []),
        ]
        for method in comparison.ranking()
    ]
    say("\nover all tasks, with 95 % intervals")
    show_table(headings, rows, numbers=range(1, len(headings)))
    consensus = comparison.consensus
    if consensus is not None:
        others = "" if consensus.rankings in (None, 1) else f", {consensus.rankings} are as good"
        say(
            f"\nconsensus of the tasks (Kemeny): {' > '.join(map(title, comparison.ranking()[: len(ranks)]))} "
            f"({counted(consensus.disagreements, 'disagreement')}{others})"
        )
        say("\nprobability that a run of the row scores above one of the column")
        rows = [
            [
                title(first),
                *(
                    "" if first == second else str(comparison.improvement[first, second])
                    for second in methods
                ),
            ]
            for first in methods
        ]
        show_table(("", *titles), rows, numbers=range(1, len(methods) + 1))
    rows = [
        [
            title(method),
            task,
            *(
                f"{shares[source]:z.0f} %" if source in shares else "unknown"
                for source in ("seeds", "checkpoints", "episodes")
            ),
        ]
        for method, of_tasks in comparison.variances.items()
        for task, one in of_tasks.items()
        if one is not None
        for shares in [one.shares()]
    ]
    if rows:
        say("\nwhere the variance of one episode's score comes from")
        headings = ["method", "task", "seeds", "checkpoints", "episodes"]
        show_table(headings, rows, numbers=(2, 3, 4))


def _print_sequential(decided: SequentialComparison) -> None:
    say(f"\nsequential comparison (AdaStop) after {counted(decided.groups, 'group')} of seeds")
    rows = [
        [", ".join(map(algorithm_title, pair)), word] for pair, word in decided.decisions.items()
    ]
    show_table(("methods", "the first is"), rows)
    for method, seeds in decided.missing.items():
        say(f"{algorithm_title(method)}: run {seeds} more seeds, then compare again")


def _sequential_json(decided: SequentialComparison) -> dict[str, object]:
    return {
        "decisions": [
            {"first": first, "second": second, "decision": word}
            for (first, second), word in decided.decisions.items()
        ],
        "groups": decided.groups,
        "missing": decided.missing,
    }


def _draw_comparison(
    comparison: Comparison,
    decided: SequentialComparison | None,
    folder: Path,
    picture: str,
    is_normalized: bool,
) -> None:
    from orlog.datasets.looking.figures import line_colors
    from orlog.runs.statistics_plots import comparison_plots, save_plot, sequential_plot

    figures = comparison_plots(comparison, is_normalized, line_colors(comparison.methods))
    if decided is not None:
        figures["sequential"] = sequential_plot(decided)
    for name, figure in figures.items():
        path = folder / f"{name}.{picture}"
        save_plot(figure, path)
        tell(f"wrote {path}")


@app.command("tune-curve", epilog="Example: orlog tune-curve runs/sweep --plot tuning.svg")
def tune_curve(
    runs: EvaluatedRuns,
    evaluations: Annotated[
        int, typer.Option(min=1, help="Episodes that the bandit may run.")
    ] = 200,
    policies: Annotated[
        int, typer.Option(min=1, help="Policies that each trial of the bandit draws.")
    ] = 8,
    trials: Annotated[int, typer.Option(min=1, help="Trials of the bandit.")] = 1000,
    exploration: Annotated[
        float, typer.Option(min=0, help="Weight of the bandit's exploration.")
    ] = 2.0,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a method with its range of settings gives after so many evaluations.

    Runs of one method that differ in their settings are its range; docs/scores.md explains both curves.
    """
    from orlog.runs.evaluated_runs import find_runs
    from orlog.runs.statistics_plots import check_format, save_plot, tune_plot
    from orlog.runs.tuning_curves import tune_curves

    if plot is not None:
        check_format(plot)
    curves = tune_curves(
        find_runs(runs),
        evaluations=evaluations,
        policies=policies,
        trials=trials,
        exploration=exploration,
    )
    if plot is not None:
        save_plot(tune_plot(curves), plot)
        tell(f"wrote {plot}")
    if as_json:
        print_json({"curves": [curve.to_json() for curve in curves]})
    else:
        for curve in curves:
            _print_curve(curve)


def _print_curve(curve: TuneCurve) -> None:
    from orlog.runs.evaluated_runs import settings_text

    unit = "score" if curve.is_normalized else "return"
    ranges = "; ".join(
        f"{name} in {', '.join(map(str, values))}" for name, values in curve.varied.items()
    )
    say(
        f"{algorithm_title(curve.method)} on {curve.dataset}: {curve.policies} "
        f"{'policy' if curve.policies == 1 else 'policies'}, {len(curve.settings)} "
        f"{'setting' if len(curve.settings) == 1 else 'settings'}{f' ({ranges})' if ranges else ''}"
    )
    say(f"method with its range: {curve.digest}")
    say(f"protocol: {curve.protocol}")
    rows = [
        [settings_text(settings) or "the only one", str(seeds), f"{score:z.1f}"]
        for settings, seeds, score in zip(
            curve.settings, curve.setting_seeds, curve.setting_scores, strict=True
        )
    ]
    show_table(("setting", "seeds", unit), rows, numbers=(1, 2))
    say()
    shown = [count for count in _ROUND if count < len(curve.means)] + [len(curve.means)]
    rows = [
        [
            str(count),
            f"{curve.means[count - 1]:z.1f}",
            f"{curve.lows[count - 1]:z.1f} to {curve.highs[count - 1]:z.1f}",
        ]
        for count in shown
    ]
    headings = ("episodes", f"{unit} of the policy named best", "80 % of trials")
    show_table(headings, rows, numbers=(0, 1, 2))
    say()
    rows = [[str(count), f"{score:z.1f}"] for count, score in enumerate(curve.expected_best, 1)]
    best = f"expected {unit} of the best"
    show_table(("settings evaluated", best), rows, numbers=(0, 1))
    say_notes(curve.notes)
    say()


_ROUND = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
