"""Scores trained policies in their environments and from data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orlog.base.terminal import print_json, progress_bar, say, show_table, tell
from orlog.cli.options import AlgorithmOfRun, AsJson, DatasetOfRun, Imports, TrustEnvironment, Workers, command
from orlog.cli.results import show
from orlog.cli.scores import say_caveats
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.runs.evaluating import Score


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
                        progress=functools.partial(_progress, update, episodes),
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
        _print_scores(results)
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


def _progress(update: Callable[[int, int], None], total: int, done: int) -> None:
    update(done, total)


def _print_scores(scores: Sequence[Score]) -> None:
    """Print a line for each score and number beside it, one for what to know of all, and one for each video."""
    from orlog.runs.videos import VIDEOS

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


_QUALITY = {"absolute_error": "absolute error", "rank_correlation": "rank correlation", "regret_at_1": "regret@1"}


def _print_estimates(body: dict[str, Any], several: bool) -> None:
    """Print the values of checkpoints by estimator, and how good the estimators are."""
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
        rows = [[name, *(_measure(measures.get(key)) for key in _QUALITY)] for name, measures in quality.items()]
        say()
        show_table(["estimator", *_QUALITY.values()], rows, numbers=(1, 2, 3))
    for reason in dict.fromkeys(body["left_out"].values()):
        names = [name for name, its_reason in body["left_out"].items() if its_reason == reason]
        say(f"left out: {', '.join(names)}: {reason}")
    say_caveats(body["notes"], "docs/ope.md")


def _interval(estimate: dict[str, Any]) -> str:
    interval = estimate["interval"]
    return "" if interval is None else "{:.4g} to {:.4g}".format(*interval)


def _measure(estimate: dict[str, Any] | None) -> str:
    if estimate is None:
        return ""
    interval = _interval(estimate)
    return f"{estimate['value']:.3g}" + (f" ({interval})" if interval else "")
