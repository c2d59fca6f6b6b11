"""Lists the runs in a folder, and compares scored runs of folders and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orlog.algos.algorithms import algorithm_title
from orlog.base.terminal import ago, print_json, say, say_notes, show_table, tell
from orlog.cli.options import AsJson, command
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.normalize.metrics import Number
    from orlog.normalize.sequential import SequentialComparison
    from orlog.normalize.statistics import Comparison
    from orlog.runs.comparing import Row
    from orlog.runs.run_folders import RunSummary

COUNTED = "counted"
CURVE_WIDTH = 12
HEADINGS = f"run algorithm dataset seed step settings changed curve score {COUNTED} state".split()
MORE = "docs/scores.md#statistics"
_ROUND = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@command("orlog runs runs/iql")
def runs(folder: Path = Path("runs"), as_command: bool = False, verify: bool = False, as_json: AsJson = False) -> None:
    """List the runs in a folder: state, steps, last score, and the settings in which they differ.

    The interval of a score is over the episodes of that run (95 %). What metrics counted, such as the share of
    episodes that succeeded, stands beside it. A folder that cannot be read is listed with the reason. Stopped runs
    go on with the command that trained them and --resume.

    Options:
        folder ([FOLDER]): Folder of runs, at any depth.
        as_command (--command): Print the one command that makes each run again.
        verify: Compare every file with the digests that runs hold. Exit code 3 if one differs.
    """
    if verify:
        _verify(folder, as_json=as_json)
        return
    from orlog.algos.training.commands import run_command
    from orlog.runs.run_folders import find_run_folders, varied_settings

    listed = find_run_folders(folder)
    varied = varied_settings(listed)
    commands = {run.folder: run_command(run.folder, run.record) for run in listed if run.record is not None}
    if as_json:
        documents = [
            {**run.to_json(), "differing_settings": varied.get(run.folder, {}), "command": commands.get(run.folder)}
            for run in listed
        ]
        print_json({"folder": str(folder), "runs": documents})
        return
    if as_command:
        for line in commands.values():
            say(line)
    else:
        spare = ("dataset", "seed", "algorithm", "changed", "step", "settings", "curve")
        rows = [_listed(run, varied.get(run.folder, {})) for run in listed]
        show_table(HEADINGS, rows, numbers=(3, 4), spare=spare)
    for run in listed:
        if run.problem:  # with the path once
            problem = run.problem.removeprefix(f"{run.folder} ").replace(f"{run.folder}/", "")
            tell(f"note: {run.folder}: {problem}.")
    plain = {run.record.dataset for run in listed if run.record and run.last and not run.anchors}
    say_notes((f"{name}: no references are known: scores are returns" for name in plain), tell)


def _listed(run: RunSummary, varied: dict[str, Any]) -> list[str]:
    """Return the cells of a run."""
    import numpy as np

    from orlog.datasets.looking.sparklines import course
    from orlog.runs.run_folders import setting_words

    record = run.record
    if record is None:
        return [str(run.folder), *[""] * 9, run.state]
    differing = {name: value for name, value in varied.items() if name != "steps"}
    return [
        str(run.folder),
        algorithm_title(record.algorithm, record.config),
        record.shown_dataset,
        str(record.seed),
        f"{run.step:,}/{record.steps:,}",
        ", ".join(setting_words(differing)),
        ago(run.changed),
        course(np.array([one.returns.mean() for _, one in run.curve]), CURVE_WIDTH),
        _score(run.score, run.interval),
        _counted(run.numbers),
        run.state,
    ]


def _verify(folder: Path, *, as_json: bool) -> None:
    from orlog.runs.run_folders import run_places, verify_run

    verified = {path: verify_run(path) for path in run_places(folder)}
    damaged = sum(bool(problems) for problems, _ in verified.values())
    if as_json:
        documents = [
            {"folder": str(path), "problems": problems, "unverified": unverified}
            for path, (problems, unverified) in verified.items()
        ]
        print_json({"folder": str(folder), "runs": documents})
    else:
        for path, (problems, unverified) in verified.items():
            for problem in problems:
                where = "" if str(path) in problem else f"{path}: "
                say(f"{where}{problem}", label="damaged")
            say_notes((f"{path}: unverified: {line}" for line in unverified), tell)
        outcome = f"{damaged} damaged" if damaged else "none is damaged"
        say(f"{counted(len(verified), 'run')}, {outcome}")
    if damaged:
        raise typer.Exit(3)


@command("orlog compare runs/bc runs/iql mine=runs/my_method theirs/")
def compare(
    places: list[str],
    plot: Path | None = None,
    resamples: int = 2000,
    sequential: bool = False,
    group: int = 5,
    groups: int = 5,
    tuning: bool = False,
    evaluations: int = 200,
    as_json: AsJson = False,
) -> None:
    """Compare what methods score on datasets, with 95 % intervals.

    Only rows that compare share a table: the same data, environment, versions of its packages, references and kind
    of policy. Others have a table of their own, and a line says what keeps it apart. A run that orlog evaluate has
    not scored counts with the last point of its learning curve. Over several datasets the score is the
    interquartile mean. --json and a folder for --plot have every statistic.

    Options:
        places (RUNS...): Folders of runs, files that orlog evaluate --out wrote, or folders that hold some of
            both. NAME=RUNS names their method.
        plot (PATH): Draw learning curves, or tuning, in a file .png, .svg or .pdf; each statistic too in a folder.
        resamples (>= 100): Resamples of the bootstrap.
        sequential: Say which methods differ, and which need more seeds (AdaStop).
        group (>= 2): Seeds of a group, with --sequential.
        groups (>= 1): Most groups, with --sequential.
        tuning: Say what a method with its range of settings gives after so many evaluations.
        evaluations (>= 1): Episodes to choose a setting with, with --tuning.
    """
    from orlog.runs.comparing import caveats_on, comparison_of, find_runs, notes_on, tables_of

    is_file = plot is not None and plot.suffix != ""
    if plot is not None:
        from orlog.runs.statistics_plots import check_format

        check_format(plot if is_file else plot / "curves.svg")
    skipped: list[Path] = []
    rows = find_runs(places, on_skipped=skipped.append)
    if tuning:
        _tune(rows, plot, evaluations, as_json=as_json)
        return
    if plot is not None:
        _draw_curves(rows, plot, is_file=is_file)
    documents: list[dict[str, Any]] = []
    for number, (table, apart) in enumerate(tables_of(rows), 1):
        comparison = comparison_of(table, resamples)
        is_normalized = all(row.anchors is not None for row in table)
        decided = None
        if sequential and (number == 1 or len(comparison.methods) > 1):
            decided = _sequential(comparison, group, groups)
        if plot is not None and not is_file:
            folder = plot if number == 1 else plot / f"table-{number}"
            _draw_comparison(comparison, decided, folder, is_normalized)
        notes = [f"{folder}: has no score yet" for folder in skipped if number == 1]
        notes += notes_on(table)
        if as_json:
            documents.append(
                {
                    "normalized": is_normalized,
                    **comparison.to_json(),
                    "numbers": _numbers_json(table),
                    "sequential": None if decided is None else _sequential_json(decided),
                    "notes": notes,
                    "caveats": caveats_on(table),
                    **({"differs": apart} if apart else {}),
                }
            )
            continue
        if apart:
            say(f"\napart from the first table: {apart}")
        _print_table(table, comparison, is_normalized)
        if decided is not None:
            _print_sequential(decided)
        if notes:
            say(f"note: {'; '.join(notes)} ({MORE})")
    if as_json:
        first, *others = documents
        print_json({**first, "apart": others})


def _print_table(table: Sequence[Row], comparison: Comparison, is_normalized: bool) -> None:
    """Print a line for each dataset and method, and over several datasets one for each method."""
    from orlog.normalize.statistics import score_interval

    by_name = {(row.task, row.name): row for row in table}
    ranking = comparison.ranking()
    rows = []
    for task in comparison.tasks:
        for name in ranking:
            row = by_name[task, name]
            scores = row.scores
            interval = score_interval([*scores]) if len(scores) > 1 else None
            cells = [_score(float(scores.mean(1).mean()), interval), "", _counted(row.numbers)]
            rows.append([task, row.title, *map(str, scores.shape), *cells])
    for name in ranking if len(comparison.tasks) > 1 else ():
        rank = str(comparison.ranks.get(name, "not ranked"))
        cells = [str(comparison.aggregates[name]["IQM"]), rank, ""]
        row = by_name[comparison.tasks[0], name]
        seeds = str(len(comparison.runs[name]))
        rows.append([f"all {len(comparison.tasks)}", row.title, seeds, "", *cells])
    unit = "score" if is_normalized else "return"
    headings = ("dataset", "method", "seeds", "episodes", unit, "mean rank", COUNTED)
    show_table(headings, rows, numbers=(2, 3))


def _numbers_json(table: Sequence[Row]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    numbers: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in table:
        numbers.setdefault(row.name, {})[row.task] = [one.to_json() for one in row.numbers]
    return numbers


def _sequential(comparison: Comparison, group: int, groups: int) -> SequentialComparison:
    """Return the sequential comparison of a table's methods by the mean scores of their runs."""
    from orlog.normalize.sequential import compare_sequentially

    scores = {method: runs.mean(1) for method, runs in comparison.runs.items()}
    return compare_sequentially(scores, group=group, groups=groups)


def _print_sequential(decided: SequentialComparison) -> None:
    pairs = [
        f"{first} is {word} {second}" if word in ("above", "below") else f"{first} and {second}: {word}"
        for (first, second), word in decided.decisions.items()
    ]
    say(f"AdaStop after {counted(decided.groups, 'group')} of seeds: {'; '.join(pairs)}")
    missing = [f"{seeds} of {method}" for method, seeds in decided.missing.items()]
    if missing:
        say(f"run more seeds, then compare again: {', '.join(missing)}")


def _sequential_json(decided: SequentialComparison) -> dict[str, object]:
    return {
        "decisions": [
            {"first": first, "second": second, "decision": word} for (first, second), word in decided.decisions.items()
        ],
        "groups": decided.groups,
        "missing": decided.missing,
    }


def _draw_curves(rows: Sequence[Row], plot: Path, *, is_file: bool) -> None:
    """Draw the learning curves of the runs in folders; into a folder only where there are some."""
    from orlog.errors import NotFoundError
    from orlog.runs.run_folders import with_references
    from orlog.runs.statistics_plots import curves_plot, save_plot

    runs = with_references({run.folder: run for row in rows for run in row.runs}.values())
    if is_file and not runs:
        raise NotFoundError(
            f"{plot}: files of scored runs have no learning curves; draw their statistics into a folder: "
            f"--plot {plot.with_suffix('')}"
        )
    if is_file or any(run.curve for run in runs):
        path = plot if is_file else plot / "curves.svg"
        save_plot(curves_plot(runs), path)
        tell(f"wrote {path}")


def _draw_comparison(
    comparison: Comparison, decided: SequentialComparison | None, folder: Path, is_normalized: bool
) -> None:
    from orlog.datasets.looking.figures import line_colors
    from orlog.runs.statistics_plots import comparison_plots, save_plot, sequential_plot

    figures = comparison_plots(comparison, is_normalized, line_colors(comparison.methods))
    if decided is not None:
        figures["sequential"] = sequential_plot(decided)
    for name, figure in figures.items():
        save_plot(figure, folder / f"{name}.svg")
    tell(f"wrote {folder}: {', '.join(figures)}")


def _tune(rows: Sequence[Row], plot: Path | None, evaluations: int, *, as_json: bool) -> None:
    from orlog.runs.statistics_plots import save_plot, tune_plot
    from orlog.runs.tuning_curves import tune_curves

    curves = tune_curves(rows, evaluations=evaluations)
    if plot is not None:
        path = plot if plot.suffix else plot / "tuning.svg"
        save_plot(tune_plot(curves), path)
        tell(f"wrote {path}")
    if as_json:
        print_json({"curves": curves})
        return
    for curve in curves:
        _print_tuning(curve)


def _print_tuning(curve: dict[str, Any]) -> None:
    unit = "score" if curve["is_normalized"] else "return"
    varied = [f"{name} in {', '.join(map(str, values))}" for name, values in curve["varied"].items()]
    count = curve["policies"]
    say(
        f"{algorithm_title(curve['method'])} on {curve['dataset']}: {count} "
        f"{'policy' if count == 1 else 'policies'}, {counted(len(curve['settings']), 'setting')}"
        + (f" ({'; '.join(varied)})" if varied else "")
    )
    means, ranges = curve["means"], list(zip(curve["lows"], curve["highs"], strict=True))
    rows = [
        [str(at), f"{means[at - 1]:z.1f}", "{:z.1f} to {:z.1f}".format(*ranges[at - 1])]
        for at in [*(at for at in _ROUND if at < len(means)), len(means)]
    ]
    headings = ("episodes", f"{unit} of the policy named best", "80 % of trials")
    show_table(headings, rows, numbers=(0, 1, 2))
    best = ", ".join(f"{score:z.1f}" for score in curve["expected_best"])
    say(f"expected {unit} of the best of 1, 2, .. settings that are evaluated in full: {best}")
    if curve["notes"]:
        say(f"note: {'; '.join(curve['notes'])} ({MORE})")


def _score(score: float | None, interval: tuple[float, float] | None) -> str:
    if score is None:
        return ""
    return f"{score:z.1f}" + (f" ({interval[0]:z.1f} to {interval[1]:z.1f})" if interval else "")


def _counted(numbers: Sequence[Number]) -> str:
    from orlog.normalize.metrics import in_short

    return ", ".join(in_short(numbers))
