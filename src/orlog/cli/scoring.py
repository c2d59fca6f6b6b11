"""Scores trained policies in their environments and from data, and measures reference returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orlog.algos.algorithms import algorithm_title
from orlog.base.terminal import print_json, progress_bar, say, say_notes, show_table, tell
from orlog.cli.options import (
    AlgorithmOfRun,
    AsJson,
    DatasetOfRun,
    Imports,
    Name,
    TrustEnvironment,
    Workers,
    app,
)
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.experiments.running import RunResult
    from orlog.normalize.references import References
    from orlog.scoring.off_policy import Estimate, EvaluatedPolicy


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
    from orlog.experiments.run_folders import find_run_folders
    from orlog.experiments.running import evaluate as run_policy

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
        from orlog.results.making import scored_runs, write_all

        made = scored_runs([one.run.folder for one in results], tried=tried, algorithm=algorithm)
        for file in write_all(out, made):
            tell(f"wrote {file}")
    if problems:
        raise typer.Exit(1)


def _show(update: Callable[[int, int], None], episodes: int, done: int) -> None:
    update(done, episodes)


def _print_result(result: RunResult, episodes: int) -> None:
    from orlog.experiments.videos import VIDEOS

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


@app.command(
    epilog="Example: orlog score d4rl/hopper-medium-v2 2000",
    context_settings={"ignore_unknown_options": True},  # a return may be negative
)
def score(
    name: Name,
    returns: Annotated[
        list[float], typer.Argument(metavar="RETURN", help="Undiscounted returns of episodes.")
    ],
    costs: Annotated[
        list[float] | None, typer.Option("--cost", help="Cost of an episode, once for each return.")
    ] = None,
    cost_limit: Annotated[
        float | None, typer.Option(min=0, help="The cost that an episode may have on average.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the normalized score of returns, with the two references that anchor it.

    The dataset need not be here: the name of a benchmark's is enough. Of several returns it prints each score, and
    the score of their mean.
    """
    import numpy as np

    from orlog.errors import NotFoundError
    from orlog.scoring.normalized_scores import normalized_score
    from orlog.scoring.references import references as find_references

    scores = normalized_score(name, returns)
    safe: Any = None
    if costs or cost_limit is not None:
        asked: dict[str, Any] = {"costs": costs or None, "cost_limit": cost_limit}
        safe = normalized_score(name, returns, **asked)
    found, source = None, ""
    try:
        found = find_references(name)
        source = found.source
    except NotFoundError as error:  # of benchmarks that count successes
        source = str(error)
    ends = {} if found is None else {"0": found.random, "100": found.expert}
    caveats = [] if found is None else found.caveats
    if as_json:
        anchors = {at: {"return": end.mean, "policy": end.policy} for at, end in ends.items()}
        costing = (
            {} if safe is None else {"normalized_cost": safe.normalized_cost, "safe": safe.safe}
        )
        body = {"dataset": name, "returns": returns, "scores": scores.tolist(), **costing}
        print_json({**body, "references": anchors, "source": source, "caveats": caveats})
        return
    say(", ".join(f"{value:z.1f}" for value in scores))
    if len(returns) > 1:
        say(f"mean {np.mean(scores):z.1f}")
    if safe is not None:
        verdict = "safe" if safe.safe else "not safe"
        say(f"normalized cost {safe.normalized_cost:z.2f} at the limit {cost_limit:g}: {verdict}")
    for at, end in ends.items():
        say(f"{at:>3} = {end.mean:z.2f}: {end.policy}")
    say(f"source: {source}")
    say_notes(caveats)


@app.command(
    epilog="Example: orlog references lab/arm-v1 --random --expert runs/iql/lab/arm-v1/seed-0"
)
def references(
    name: Name,
    random: Annotated[
        bool, typer.Option("--random", help="Measure the random policy: score 0.")
    ] = False,
    expert: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|recipe|NUMBER",
            help="Measure the expert, score 100: the folder of a trained run, or the controller of "
            "the dataset's recipe. Or take a published return, with its --source.",
        ),
    ] = None,
    source: Annotated[str, typer.Option(help="Where the number was published.")] = "",
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Episodes per policy.", show_default="1000")
    ] = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="Keep them among those that ship, in a checkout of orlog."),
    ] = False,
    trust_environment: TrustEnvironment = False,
    _imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Show the two returns that anchor normalized scores, or measure and keep them.

    Without --random and --expert it shows what is known: values, source, protocol, simulator.

    What is measured is kept in $ORLOG_HOME/references, for all datasets of that environment.
    """
    from orlog.datasets.loading import load_dataset
    from orlog.errors import ManifestError
    from orlog.scoring.measuring import EPISODES, keep_references, measure_references
    from orlog.scoring.references import described, references_of
    from orlog.scoring.references import references as find_references

    measured = {"--source": source, "--episodes": episodes, "--record": record}
    if not random and expert is None:
        for option, value in measured.items():
            if value:
                raise typer.BadParameter(f"{option} is for measuring; add --random --expert RUN.")
        found = find_references(name)
        _show_references(described(name).name, found, None, as_json=as_json)
        return
    if not random or expert is None:
        raise typer.BadParameter(
            "a score needs both anchors: --random, and --expert with a run, recipe or a number."
        )
    dataset = load_dataset(name)
    try:
        before = references_of(dataset.manifest)
    except ManifestError as error:  # new ones come before a damaged file
        tell(error, label="warning")
        before = None
    count, finished = episodes or EPISODES, 0
    with progress_bar("episodes") as update:

        def show(done: int) -> None:
            nonlocal finished
            finished = done if done >= finished else count + done
            update(finished, 2 * count)

        found = measure_references(
            dataset,
            expert=_number(expert),
            source=source,
            episodes=count,
            trust_environment=trust_environment,
            progress=show,
        )
    path = keep_references(dataset, found, shipped=record)
    _show_references(dataset.name, found, path, before=before, as_json=as_json)


def _number(text: str) -> str | float:
    """Return a number if the text is one."""
    try:
        return float(text)
    except ValueError:
        return text


def _show_references(
    name: str,
    found: References,
    path: Path | None,
    *,
    before: References | None = None,
    as_json: bool,
) -> None:
    """Print reference returns and what is known of them; `path` is where they were just kept."""
    from orlog.normalize.references import PublishedProtocol, simulator_of

    protocol = found.protocol
    if isinstance(protocol, PublishedProtocol):
        how = protocol.description
    else:
        how = f"{counted(protocol.episodes, 'episode')} of each policy, seeds from {protocol.first_seed}"
    ends = (("random", 0, found.random), ("expert", 100, found.expert))
    deviations = {kind: getattr(one, "standard_error", None) for kind, _, one in ends}
    if as_json:
        returns = {
            kind: {
                "return": one.mean,
                "policy": one.policy,
                "standard_error": deviations[kind],
                "returns": getattr(one, "returns", None),
            }
            for kind, _, one in ends
        }
        print_json(
            {
                "dataset": name,
                **returns,
                "source": found.source,
                "protocol": how,
                "environment": protocol.environment_id,
                "versions": protocol.versions,
                "episodes": protocol.episodes,
                "simulator": found.simulator or simulator_of(protocol),
                "caveats": found.caveats,
                "kept": None if path is None else str(path),
            }
        )
        return
    rows = [
        (
            str(score),
            f"{one.mean:.8g}",
            "none" if deviations[kind] is None else f"{deviations[kind]:.4g}",
            *(() if path is None else ("none" if before is None else _mean(before, kind),)),
            one.policy,
        )
        for kind, score, one in ends
    ]
    headings = ("score", "return", "standard error", *(() if path is None else ("before",)))
    numbers = tuple(range(len(headings)))
    show_table((*headings, "policy"), rows, numbers=numbers)
    say(f"source: {found.source}")
    say(f"protocol: {how}")
    say(f"simulator: {found.simulator or simulator_of(protocol)}")
    say_notes(found.caveats)
    if path is not None:
        say(f"kept in {path}")


def _mean(references: References, kind: str) -> str:
    return f"{getattr(references, kind).mean:.8g}"


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
    from orlog.scoring.off_policy import evaluate_off_policy

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
