"""Scores trained policies in their environments and from data, lists the runs in a folder, and compares scored runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orlog.algos.algorithms import algorithm_title
from orlog.base.terminal import ago, progress_bar, say, say_notes, show_table, tell
from orlog.cli.options import AlgorithmOfRun, AsJson, DatasetOfRun, Imports, TrustEnvironment, Workers, command
from orlog.cli.results import say_caveats, score_text, show
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.normalize.metrics import Number
    from orlog.normalize.statistics import Comparison
    from orlog.runs.comparing import Row
    from orlog.runs.evaluating import Score
    from orlog.runs.run_folders import RunSummary

CURVE_WIDTH = 12
MORE = "docs/scores.md#statistics"
_ROUND = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_QUALITY = {"absolute_error": "absolute error", "rank_correlation": "rank correlation", "regret_at_1": "regret@1"}


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
        _verify(folder, as_json)
        return
    from orlog.algos.training.runs import run_command
    from orlog.runs.run_folders import find_run_folders, varied_settings

    listed = find_run_folders(folder)
    varied = varied_settings(listed)
    commands = {run.folder: run_command(run.folder, run.record) for run in listed if run.record is not None}
    documents = [
        {**run.to_json(), "differing_settings": varied.get(run.folder, {}), "command": commands.get(run.folder)}
        for run in listed
    ]

    def text(_: dict[str, Any]) -> None:
        if as_command:
            say("\n".join(commands.values()))
        else:
            headings = [
                "run",
                "algorithm",
                "dataset",
                "seed",
                "step",
                "settings",
                "changed",
                "curve",
                "score",
                "counted",
                "state",
            ]
            spare = ("dataset", "seed", "algorithm", "changed", "step", "settings", "curve")
            rows = [_listed(run, varied.get(run.folder, {})) for run in listed]
            show_table(headings, rows, numbers=(3, 4), spare=spare)
        problems = ((run.folder, (run.problem or "").removeprefix(f"{run.folder} ")) for run in listed if run.problem)
        say_notes((f"{path}: {problem.replace(f'{path}/', '')}." for path, problem in problems), tell)
        plain = {run.record.dataset for run in listed if run.record and run.last and not run.anchors}
        say_notes((f"{name}: no references are known: scores are returns" for name in plain), tell)

    show({"folder": str(folder), "runs": documents}, as_json, text)


def _listed(run: RunSummary, varied: dict[str, Any]) -> list[str]:
    import numpy as np

    from orlog.datasets.looking.sparklines import course
    from orlog.runs.run_folders import setting_words

    record = run.record
    if record is None:
        return [str(run.folder), *[""] * 9, run.state]
    return [
        str(run.folder),
        algorithm_title(record.algorithm, record.config),
        record.shown_dataset,
        str(record.seed),
        f"{run.step:,}/{record.steps:,}",
        ", ".join(setting_words({name: value for name, value in varied.items() if name != "steps"})),
        ago(run.changed),
        course(np.array([point.returns.mean() for _, point in run.curve]), CURVE_WIDTH),
        score_text(run.score, run.interval),
        _counted(run.numbers),
        run.state,
    ]


def _verify(folder: Path, as_json: bool) -> None:
    from orlog.runs.run_folders import run_places, verify_run

    documents = []
    for path in run_places(folder):
        problems, unverified = verify_run(path)
        documents.append({"folder": str(path), "problems": problems, "unverified": unverified})
    damaged = sum(bool(run["problems"]) for run in documents)

    def text(_: dict[str, Any]) -> None:
        for run in documents:
            for problem in run["problems"]:
                say(f"{run['folder']}: {problem}", label="damaged")
            say_notes((f"{run['folder']}: unverified: {line}" for line in run["unverified"]), tell)
        say(f"{counted(len(documents), 'run')}, {f'{damaged} damaged' if damaged else 'none is damaged'}")

    show({"folder": str(folder), "runs": documents}, as_json, text)
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
    published: str | None = None,
    as_json: AsJson = False,
) -> None:
    """Compare what methods score on datasets, with 95 % intervals.

    Only rows that compare share a table: the same data, environment, versions of its packages, references and kind
    of policy. Others have a table of their own, and a line says what keeps it apart. A run that orlog evaluate has
    not scored counts with the last point of its learning curve, unless it has scored other seeds. Over several
    datasets the score is the interquartile mean. --json and a folder for --plot have every statistic.

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
        published (dqc|qam): Set success rates beside those that a paper's authors released, at their checkpoints, with
            a verdict at each; dqc:TASK says which task of theirs the runs are on.
    """
    if published and (tuning or sequential):
        raise typer.BadParameter("--published is a comparison of its own; leave out --tuning and --sequential.")
    from orlog.runs.comparing import caveats_on, comparison_of, find_runs, notes_on, tables_of, with_missing

    is_file = plot is not None and plot.suffix != ""
    if plot is not None:
        from orlog.runs.plots import check_format

        check_format(plot if is_file else plot / "curves.svg")
    skipped: list[RunSummary] = []
    rows = find_runs(places, on_skipped=skipped.append)
    left_out = [f"{run.folder}: {'left out: ' + run.problem if run.problem else 'has no score yet'}" for run in skipped]
    if tuning:
        say_notes(left_out, tell)
        _tune(rows, plot, evaluations, as_json)
        return
    if published:
        _beside(rows, published, plot, left_out, as_json)
        return
    if plot is not None:
        _draw_curves(rows, plot, is_file)
    documents: list[dict[str, Any]] = []
    for number, (table, apart) in enumerate(tables_of(with_missing(rows)), 1):
        comparison = comparison_of(table, resamples)
        is_normalized = all(row.anchors is not None for row in table)
        decided = None
        if sequential and (number == 1 or len(comparison.methods) > 1):
            decided = _sequential(comparison, group, groups)
        if plot is not None and not is_file:
            _draw_comparison(comparison, plot if number == 1 else plot / f"table-{number}", is_normalized)
        notes = [*(left_out if number == 1 else ()), *notes_on(table)]
        numbers: dict[str, Any] = {}
        for row in table:
            numbers.setdefault(row.name, {})[row.task] = [one.to_json() for one in row.numbers]
        documents.append(
            {
                "normalized": is_normalized,
                **comparison.to_json(),
                "numbers": numbers,
                "sequential": decided,
                "notes": notes,
                "caveats": caveats_on(table),
                **({"differs": apart} if apart else {}),
            }
        )
        if not as_json:
            _print_table(table, comparison, documents[-1])
    if as_json:
        show({**documents[0], "apart": documents[1:]}, as_json)


def _print_table(table: Sequence[Row], comparison: Comparison, body: dict[str, Any]) -> None:
    """Print a line for each dataset and method, and over several datasets one for each method."""
    from orlog.normalize.statistics import score_interval

    if "differs" in body:
        say(f"\napart from the first table: {body['differs']}")
    by_name = {(row.task, row.name): row for row in table}
    ranking = comparison.ranking()
    rows = []
    for task in comparison.tasks:
        for row in (by_name[task, name] for name in ranking):
            scores = row.scores
            interval = score_interval([*scores]) if len(scores) > 1 else None
            cells = [score_text(float(scores.mean(1).mean()), interval), "", _counted(row.numbers)]
            seeds = f"{len(scores)} of {len(scores) + len(row.missing)}" if row.missing else str(len(scores))
            rows.append([task, row.title, seeds, str(scores.shape[1]), *cells])
    for name in ranking if len(comparison.tasks) > 1 else ():
        row, rank = by_name[comparison.tasks[0], name], str(comparison.ranks.get(name, "not ranked"))
        cells = [str(len(comparison.runs[name])), "", str(comparison.aggregates[name]["IQM"]), rank, ""]
        rows.append([f"all {len(comparison.tasks)}", row.title, *cells])
    unit = "score" if body["normalized"] else "return"
    show_table(("dataset", "method", "seeds", "episodes", unit, "mean rank", "counted"), rows, numbers=(2, 3))
    if body["sequential"]:
        decided = body["sequential"]
        pairs = [
            f"{first} is {word} {second}" if word in ("above", "below") else f"{first} and {second}: {word}"
            for first, second, word in (pair.values() for pair in decided["decisions"])
        ]
        say(f"AdaStop after {counted(decided['groups'], 'group')} of seeds: {'; '.join(pairs)}")
        if missing := [f"{seeds} of {method}" for method, seeds in decided["missing"].items()]:
            say(f"run more seeds, then compare again: {', '.join(missing)}")
    if body["notes"]:
        say(f"note: {'; '.join(body['notes'])} ({MORE})")


def _sequential(comparison: Comparison, group: int, groups: int) -> dict[str, Any]:
    from orlog.normalize.statistics import compare_sequentially

    scores = {method: runs.mean(1) for method, runs in comparison.runs.items()}
    decided = compare_sequentially(scores, group=group, groups=groups)
    pairs = [{"first": one, "second": two, "decision": word} for (one, two), word in decided.decisions.items()]
    return {"decisions": pairs, "groups": decided.groups, "missing": decided.missing}


def _draw_curves(rows: Sequence[Row], plot: Path, is_file: bool) -> None:
    """Draw the learning curves of the runs in folders; into a folder only where there are some."""
    from orlog.errors import NotFoundError
    from orlog.runs.plots import curves_plot, save_plot
    from orlog.runs.run_folders import learning_curves

    runs = [*{run.folder: run for row in rows for run in row.runs}.values()]
    if is_file and not runs:
        raise NotFoundError(
            f"{plot}: files of scored runs have no learning curves; draw their statistics into a folder: "
            f"--plot {plot.with_suffix('')}"
        )
    if is_file or any(run.curve for run in runs):
        path = plot if is_file else plot / "curves.svg"
        save_plot(curves_plot(learning_curves(runs)), path)
        tell(f"wrote {path}")


def _draw_comparison(comparison: Comparison, folder: Path, is_normalized: bool) -> None:
    from orlog.datasets.looking.figures import line_colors
    from orlog.runs.plots import comparison_plots, save_plot

    figures = comparison_plots(comparison, is_normalized, line_colors(comparison.methods))
    for name, figure in figures.items():
        save_plot(figure, folder / f"{name}.svg")
    tell(f"wrote {folder}: {', '.join(figures)}")


def _beside(rows: Sequence[Row], published: str, plot: Path | None, left_out: list[str], as_json: bool) -> None:
    from orlog.normalize.verdicts import VERDICT_NOTE
    from orlog.runs.beside_published import beside_published, curves_beside
    from orlog.runs.comparing import tables_of
    from orlog.runs.plots import curves_plot, save_plot

    pairs, notes = beside_published([row for table, _ in tables_of(rows) for row in table], published)
    if plot is not None:
        path = plot if plot.suffix else plot / "published.svg"
        save_plot(curves_plot(curves_beside(pairs, published), success=True), path)
        tell(f"wrote {path}")
    notes = [*left_out, *notes]
    sources = list(dict.fromkeys(pair.published.source for pair in pairs))
    body = {"published": published, "sources": sources, "pairs": [pair.to_json() for pair in pairs], "notes": notes}

    def text(_: dict[str, Any]) -> None:
        cells = []
        for pair in pairs:
            theirs, mean = pair.published, sum(pair.shares) / len(pair.shares)
            ours = [pair.row.title, str(len(pair.seeds)), score_text(mean, pair.interval)]
            beside = [theirs.algorithm, str(theirs.seeds), score_text(theirs.score, theirs.interval), pair.verdict.word]
            cells.append([pair.row.task, theirs.checkpoint, *ours, *beside])
        headings = ["dataset", "after", *("method", "seeds", "success %", "published", "seeds", "success %"), "verdict"]
        show_table(headings, cells, numbers=(3, 4, 6, 7))
        for pair in pairs:
            if pair.is_named:
                say(f"{pair.row.title} after {pair.published.checkpoint}: {pair.verdict}")
        say_notes([*notes, VERDICT_NOTE])
        say(f"source: {'; '.join(sources)}")

    show(body, as_json, text)


def _tune(rows: Sequence[Row], plot: Path | None, evaluations: int, as_json: bool) -> None:
    from orlog.runs.comparing import tune_curves
    from orlog.runs.plots import save_plot, tune_plot

    curves = tune_curves(rows, evaluations=evaluations)
    if plot is not None:
        path = plot if plot.suffix else plot / "tuning.svg"
        save_plot(tune_plot(curves), path)
        tell(f"wrote {path}")

    def text(_: dict[str, Any]) -> None:
        for curve in curves:
            _print_tuning(curve)

    show({"curves": curves}, as_json, text)


def _print_tuning(curve: dict[str, Any]) -> None:
    unit = "score" if curve["is_normalized"] else "return"
    varied = "; ".join(f"{name} in {', '.join(map(str, values))}" for name, values in curve["varied"].items())
    policies = f"{curve['policies']} {'policy' if curve['policies'] == 1 else 'policies'}"
    counts = f"{policies}, {counted(len(curve['settings']), 'setting')}"
    say(f"{algorithm_title(curve['method'])} on {curve['dataset']}: {counts}" + (f" ({varied})" if varied else ""))
    means, lows, highs = curve["means"], curve["lows"], curve["highs"]
    rows = [
        [str(at), f"{means[at - 1]:z.1f}", f"{lows[at - 1]:z.1f} to {highs[at - 1]:z.1f}"]
        for at in [*(at for at in _ROUND if at < len(means)), len(means)]
    ]
    show_table(("episodes", f"{unit} of the policy named best", "80 % of trials"), rows, numbers=(0, 1, 2))
    best = ", ".join(f"{score:z.1f}" for score in curve["expected_best"])
    say(f"expected {unit} of the best of 1, 2, .. settings that are evaluated in full: {best}")
    if curve["notes"]:
        say(f"note: {'; '.join(curve['notes'])} ({MORE})")


def _counted(numbers: Sequence[Number]) -> str:
    from orlog.normalize.metrics import in_short

    return ", ".join(in_short(numbers))


@command("orlog evaluate runs/iql/pointmaze/umaze-v1/seed-0")
def evaluate(
    runs: list[Path],
    dataset: DatasetOfRun = None,
    algorithm: AlgorithmOfRun = None,
    episodes: int = 100,
    out: Path | None = None,
    tried: int | None = None,
    video: bool = False,
    trust_environment: TrustEnvironment = False,
    _imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Run a trained policy in the dataset's environment and print return and score.

    The score comes with its interval, the simulator and what metrics counted; --json has every episode's return,
    the reference returns and caveats too. Where there is no score, a line says why. Of a folder with several runs, each is evaluated; those
    that cannot be are named at the end, and the exit code is then 1.

    The file that --out writes is for others: orlog compare reads it, and orlog reproduce runs a seed of it again.

    Options:
        runs (RUN...): Folders of runs, or of several such as seeds.
        episodes (>= 1): Episodes to run.
        out (FILE.json): Also write what the runs score, with every episode's return; to a folder, a file for each
            method and dataset.
        tried (>= 1): With --out: how many settings you tried to choose these, themselves counted.
        video: Also film the worst, the median and the best episode, as mp4 files.
    """
    from orlog.algos.training.runs import RUN_FILE
    from orlog.errors import OrlogError
    from orlog.runs.evaluating import evaluate as run_policy
    from orlog.runs.run_folders import run_places

    is_one = len(runs) == 1 and ((runs[0] / RUN_FILE).exists() or not runs[0].is_dir())
    folders = [folder for run in runs for folder in ([run] if is_one else run_places(run))]
    results, problems = [], []

    def score(folder: Path) -> Score:
        with progress_bar("episodes" if is_one else str(folder)) as update:
            return run_policy(
                folder,
                dataset=dataset,
                algorithm=algorithm,
                episodes=episodes,
                trust_environment=trust_environment,
                video=video,
                progress=lambda done: update(done, episodes),
            )

    for folder in folders:
        try:
            results.append(score(folder))
        except OrlogError as error:
            if is_one:
                raise
            problems.append(f"{folder} is not evaluated: {error}")
    documents = [result.to_json() for result in results]
    body = documents[0] if is_one else {"runs": documents, "problems": problems}
    show(body, as_json, lambda _: _print_scores(results))
    if not is_one:
        tell(f"to compare them, run: orlog compare {' '.join(map(str, runs))}")
    for problem in problems:
        tell(problem)
    if out is not None and results:
        from orlog.runs.comparing import scored_runs, write_all

        made = scored_runs([one.run.folder for one in results], tried=tried, algorithm=algorithm)
        for file in write_all(out, made):
            tell(f"wrote {file}")
    if problems:
        raise typer.Exit(1)


def _print_scores(scores: Sequence[Score]) -> None:
    from orlog.runs.policies import VIDEOS

    for score in scores:
        say(score)
        for number in score.numbers:
            if number.short not in str(score):
                say(f"  {number}")
    for reason in dict.fromkeys(score.reason for score in scores if score.reason):
        say(f"no normalized score: {reason}")
    say_caveats(dict.fromkeys(caveat for score in scores for caveat in score.caveats))
    for score in scores:
        for video in score.videos:
            frames = counted(video.frames, "frame")
            path = score.run.folder / VIDEOS / video.file
            say(f"{video.kind} episode, return {video.returned:z.2f}, {frames}: {path}")
            if video.returned != video.evaluated:
                tell(
                    f"note: the filmed episode returned {video.returned:.6g}, and {video.evaluated:.6g} in the "
                    "evaluation: rendering changes this environment."
                )


@command("orlog ope runs/iql/pointmaze/umaze-v1/seed-0")
def ope(
    runs: list[Path],
    dataset: DatasetOfRun = None,
    on: str | None = None,
    algorithm: AlgorithmOfRun = None,
    discount: float | None = None,
    episodes: int = 20,
    fqe_steps: int = 4_000,
    fqe_fits: int = 5,
    trust_environment: TrustEnvironment = False,
    _imports: Imports = None,
    workers: Workers = 1,
    as_json: AsJson = False,
) -> None:
    """Estimate from recorded data what checkpoints are worth, and compare that with their true values.

    It takes the checkpoints that orlog train kept with --keep-checkpoints, or else the last one of each run. A
    second table says how good each estimator is; docs/ope.md explains estimators and measures.

    One checkpoint takes a minute or two on a small dataset, most of it for the steps of fitted Q evaluation.
    With --workers several checkpoints are judged at a time.

    Options:
        runs (RUN..): Folders of runs on one dataset.
        on: Path or name of other data, such as a split: first observations, weights and corrections are theirs,
            while Q is fitted to what the runs were trained on.
        discount (default: the algorithm's, or 0.99): Weight of the next step.
        episodes (>= 0): Episodes of each checkpoint; 0 needs no environment.
        fqe_steps (>= 1): Steps of each fit of fitted Q evaluation; a note says what more would give.
        fqe_fits (>= 1): Fits for each checkpoint, whose spread is in the interval.
    """
    from orlog.algos.fitted_q_evaluation import FQESettings
    from orlog.runs.off_policy import evaluate_off_policy

    with progress_bar("steps of fitted Q evaluation", "estimating values") as update:
        result = evaluate_off_policy(
            runs,
            dataset=dataset,
            on=on,
            algorithm=algorithm,
            discount=discount,
            episodes=episodes,
            settings=FQESettings(steps=fqe_steps, fits=fqe_fits),
            trust_environment=trust_environment,
            workers=workers,
            progress=update,
        )
    show(result.to_json(), as_json, lambda body: _print_estimates(body, len(runs) > 1))


def _print_estimates(body: dict[str, Any], several: bool) -> None:
    rows = []
    for policy in body["policies"]:
        label = f"{policy['run']} step {policy['step']:,}" if several else f"step {policy['step']:,}"
        true, estimates = policy["value"], policy["estimates"]
        if true is not None:
            name = f"true (return {policy['mean_return']:z.2f})"
            estimates = {name: true, **estimates}
        for name, estimate in estimates.items():
            error = "" if true in (None, estimate) else f"{estimate['value'] - true['value']:+.3g}"
            rows.append([label, name, f"{estimate['value']:.4g}", _interval(estimate), error])
            label = ""
        if policy["effective_episodes"] is not None:
            rows.append(["", "effective episodes", f"{policy['effective_episodes']:.1f}", "", ""])
        if policy["beyond_truncations"]:
            rows.append(["", "beyond truncations", f"{policy['beyond_truncations']:.4g}", "", ""])
    value = f"value (discount {body['discount']:g})"
    show_table(["policy", "estimator", value, "95 % interval", "error"], rows, numbers=(2, 3, 4))
    if quality := body["quality"]:
        rows = [
            [
                name,
                *(
                    f"{one['value']:.3g} ({_interval(one) or '-'})" if (one := measures.get(key)) else ""
                    for key in _QUALITY
                ),
            ]
            for name, measures in quality.items()
        ]
        say()
        show_table(["estimator", *_QUALITY.values()], rows, numbers=(1, 2, 3))
    for reason in dict.fromkeys(body["left_out"].values()):
        names = [name for name, its_reason in body["left_out"].items() if its_reason == reason]
        say(f"left out: {', '.join(names)}: {reason}")
    say_caveats(body["notes"], "docs/ope.md")


def _interval(estimate: dict[str, Any]) -> str:
    interval = estimate["interval"]
    return "" if interval is None else "{:.4g} to {:.4g}".format(*interval)
