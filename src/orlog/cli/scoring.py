"""Scores trained policies in their environments and from data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orlog.algos.algorithms import algorithm_title
from orlog.base.terminal import print_json, progress_bar, say, say_notes, show_table, tell
from orlog.cli.options import (
    AlgorithmOfRun,
    AsJson,
    DatasetOfRun,
    Imports,
    TrustEnvironment,
    Workers,
    app,
)
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.runs.evaluating import Score
    from orlog.runs.off_policy import Estimate, EvaluatedPolicy


_QUALITY = {
    "absolute_error": "absolute error",
    "rank_correlation": "rank correlation",
    "regret_at_1": "regret@1",
}


@app.command(epilog="Example: orlog evaluate runs/iql/pointmaze/umaze-v1/seed-0")
def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs, or of several such as seeds."),
    ],
    dataset: DatasetOfRun = None,
    algorithm: AlgorithmOfRun = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to run.")] = 100,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Also write what the runs score, with every episode's return; to a folder, a file for each method "
            "and dataset.",
        ),
    ] = None,
    tried: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --out: how many settings you tried to choose these, themselves counted.",
        ),
    ] = None,
    video: Annotated[
        bool,
        typer.Option(
            "--video", help="Also film the worst, the median and the best episode, as mp4 files."
        ),
    ] = False,
    trust_environment: TrustEnvironment = False,
    _imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Run a trained policy in the dataset's environment and print return and score.

    The score comes with its interval, the reference scores, the simulator and caveats; and with the
    share of episodes that succeeded, where the environment tells.

    Where there is no score, a line says why. Of a folder with several runs, each is evaluated; those
    that cannot be are named at the end, and the exit code is then 1.

    The file that --out writes is for others: orlog compare reads it, and orlog reproduce runs a seed of it again.
    """
    from orlog.algos.training.runs import RUN_FILE
    from orlog.errors import OrlogError
    from orlog.runs.evaluating import evaluate as run_policy
    from orlog.runs.run_folders import find_run_folders

    is_one = len(runs) == 1 and ((runs[0] / RUN_FILE).exists() or not runs[0].is_dir())
    folders = [
        folder
        for run in runs
        for folder in ([run] if is_one else [one.folder for one in find_run_folders(run)])
    ]
    results, problems = [], []
    for folder in folders:
        with progress_bar("episodes" if is_one else str(folder)) as update:
            try:
                results.append(
                    run_policy(
                        folder,
                        dataset=dataset,
                        algorithm=algorithm,
                        episodes=episodes,
                        trust_environment=trust_environment,
                        video=video,
                        progress=functools.partial(_show, update, episodes),
                    )
                )
            except OrlogError as error:
                if is_one:
                    raise
                problems.append(f"{folder} is not evaluated: {error}")
    if as_json:
        documents = [result.to_json() for result in results]
        print_json(documents[0] if is_one else {"runs": documents, "problems": problems})
    else:
        for result in results:
            _print_result(result, episodes)
        if not is_one:
            say(f"to compare them, run: orlog compare {' '.join(map(str, runs))}")
    for problem in problems:
        tell(problem)
    if out is not None and results:
        from orlog.runs.making import scored_runs, write_all

        made = scored_runs([one.run.folder for one in results], tried=tried, algorithm=algorithm)
        for file in write_all(out, made):
            tell(f"wrote {file}")
    if problems:
        raise typer.Exit(1)


def _show(update: Callable[[int, int], None], episodes: int, done: int) -> None:
    update(done, episodes)


def _print_result(result: Score, episodes: int) -> None:
    from orlog.runs.videos import VIDEOS

    record, references, error = result.run.record, result.references, result.standard_error
    spread = "one episode, so there is no standard error"
    if error is not None:
        spread = f"standard error {error:z.2f}, {counted(episodes, 'episode')}"
    say(
        f"{algorithm_title(record.algorithm, record.config)} seed {record.seed} on {record.shown_dataset}, step "
        f"{result.step:,} of {record.steps:,}: return {result.mean_return:z.2f} ({spread})"
    )
    if references is None:
        say(f"no normalized score: {result.reason}")
    else:
        interval = ""
        if result.interval is not None:
            interval = f", 95 % interval {result.interval[0]:z.1f} to {result.interval[1]:z.1f}"
        elif len(result.returns) > 1:
            interval = ", without an interval: all episodes returned the same"
        say(f"normalized score {result.score:z.1f}{interval}")
        say(f"  0 = {references.random.mean:z.2f}: {references.random.policy}")
        say(f"100 = {references.expert.mean:z.2f}: {references.expert.policy}")
    for number in result.numbers:
        say(str(number))
    say_notes(result.caveats)
    for one in result.videos:
        path = result.run.folder / VIDEOS / one.file
        say(
            f"{one.kind} episode, return {one.returned:z.2f}, {counted(one.frames, 'frame')}: {path}"
        )
        if one.returned != one.evaluated:
            tell(
                f"note: the filmed episode returned {one.returned:.6g}, and {one.evaluated:.6g} in the "
                "evaluation: rendering changes this environment."
            )


@app.command(epilog="Example: orlog ope runs/iql/pointmaze/umaze-v1/seed-0")
def ope(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN..", help="Folders of runs on one dataset.")
    ],
    dataset: DatasetOfRun = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="Path or name of other data, such as a split: first observations, weights and "
            "corrections are theirs, while Q is fitted to what the runs were trained on."
        ),
    ] = None,
    algorithm: AlgorithmOfRun = None,
    discount: Annotated[
        float | None,
        typer.Option(help="Weight of the next step.", show_default="the algorithm's, or 0.99"),
    ] = None,
    episodes: Annotated[
        int, typer.Option(min=0, help="Episodes of each checkpoint; 0 needs no environment.")
    ] = 20,
    fqe_steps: Annotated[
        int,
        typer.Option(
            min=1,
            help="Steps of each fit of fitted Q evaluation; a note says what more would give.",
        ),
    ] = 4_000,
    fqe_fits: Annotated[
        int, typer.Option(min=1, help="Fits for each checkpoint, whose spread is in the interval.")
    ] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of networks, batches, bootstrap.")] = 0,
    trust_environment: TrustEnvironment = False,
    _imports: Imports = None,
    workers: Workers = 1,
    as_json: AsJson = False,
) -> None:
    """Estimate from recorded data what checkpoints are worth, and compare that with their true values.

    It takes the checkpoints that orlog train kept with --keep-checkpoints, or else the last one of each
    run. Estimators: fitted Q evaluation; the trained critic, where there is one; and where the
    probabilities of actions were recorded and policies have them too, weighted importance sampling and
    doubly robust estimates.

    A second table says how good each estimator is: its absolute error, its rank correlation with true
    values, and regret@1, the value lost by choosing the checkpoint that it puts first.
    One checkpoint takes a minute or two on a small dataset, most of it for the steps of fitted Q evaluation.
    With --workers several checkpoints are judged at a time.
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
            seed=seed,
            trust_environment=trust_environment,
            workers=workers,
            progress=update,
        )
    if as_json:
        print_json(result.to_json())
        return
    rows = [row for policy in result.policies for row in _policy_rows(policy, len(runs) > 1)]
    show_table(["policy", "estimator", "value", "95 % interval", "error"], rows, numbers=(2, 3, 4))
    if result.quality:
        measures = [one for one in _QUALITY if any(one in of for of in result.quality.values())]
        rows = [
            [name, *(_with_interval(found[one]) if one in found else "" for one in measures)]
            for name, found in result.quality.items()
        ]
        headings = ["estimator", *(_QUALITY[one] for one in measures)]
        say()
        show_table(headings, rows, numbers=range(1, len(headings)))
    for reason in dict.fromkeys(result.left_out.values()):
        names = [name for name, one in result.left_out.items() if one == reason]
        say(f"left out: {', '.join(names)}: {reason}")
    say_notes(result.notes)


def _policy_rows(policy: EvaluatedPolicy, several: bool) -> list[list[str]]:
    """Return the lines of a policy: the true value, then the estimates."""
    label = f"step {policy.step:,}"
    if several:
        label = f"{policy.run} {label}"
    rows = []
    if policy.value is not None:
        returned = "" if policy.mean_return is None else f"true (return {policy.mean_return:z.2f})"
        rows.append([returned, f"{policy.value.value:.4g}", _interval(policy.value), ""])
    for name, one in policy.estimates.items():
        error = "" if policy.value is None else f"{one.value - policy.value.value:+.3g}"
        rows.append([name, f"{one.value:.4g}", _interval(one), error])
    if policy.effective_episodes is not None:
        rows.append(["effective episodes", f"{policy.effective_episodes:z.1f}", "", ""])
    if policy.beyond_truncations:
        rows.append(["beyond truncations", f"{policy.beyond_truncations:.4g}", "", ""])
    return [[label if index == 0 else "", *row] for index, row in enumerate(rows)]


def _interval(found: Estimate) -> str:
    return "" if found.interval is None else "{:.4g} to {:.4g}".format(*found.interval)


def _with_interval(found: Estimate) -> str:
    interval = _interval(found)
    return f"{found.value:.3g}" + (f" ({interval})" if interval else "")
