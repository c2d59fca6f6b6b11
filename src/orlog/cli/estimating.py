"""Estimates the values of trained policies from their dataset, and compares them with the truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orlog.base.terminal import print_json, progress_bar, say, show_table
from orlog.cli.options import AlgorithmOfRun, AsJson, DatasetOfRun, Imports, TrustEnvironment, app

if TYPE_CHECKING:
    from orlog.scoring.off_policy_results import Estimate, EvaluatedPolicy

_QUALITY = {
    "absolute_error": "absolute error",
    "rank_correlation": "rank correlation",
    "regret_at_1": "regret@1",
}


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
        int, typer.Option(min=1, help="Steps of each fit of fitted Q evaluation.")
    ] = 20_000,
    fqe_fits: Annotated[
        int, typer.Option(min=1, help="Fits for each checkpoint, whose spread is in the interval.")
    ] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of networks, batches, bootstrap.")] = 0,
    trust_environment: TrustEnvironment = False,
    _imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Estimate from recorded data what checkpoints are worth, and compare that with their true values.

    It takes the checkpoints that orlog train kept with --keep-checkpoints, or else the last one of each
    run. Estimators: fitted Q evaluation; the trained critic, where there is one; and where the
    probabilities of actions were recorded and policies have them too, weighted importance sampling and
    doubly robust estimates.

    A second table says how good each estimator is: its absolute error, its rank correlation with true
    values, and regret@1, the value lost by choosing the checkpoint that it puts first.
    """
    from orlog.algos.fitted_q_evaluation import FQESettings
    from orlog.scoring.off_policy import evaluate_off_policy

    with progress_bar("fitted Q evaluation") as update:
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
    for note in result.notes:
        say(f"note: {note}")


def _policy_rows(policy: EvaluatedPolicy, several: bool) -> list[list[str]]:
    """Return the lines of a policy: the true value, then the estimates."""
    label = f"step {policy.step:,}"
    if several:
        label = f"{policy.run} {label}"
    rows = []
    if policy.value is not None:
        returned = "" if policy.mean_return is None else f"true (return {policy.mean_return:.2f})"
        rows.append([returned, f"{policy.value.value:.4g}", _interval(policy.value), ""])
    for name, one in policy.estimates.items():
        error = "" if policy.value is None else f"{one.value - policy.value.value:+.3g}"
        rows.append([name, f"{one.value:.4g}", _interval(one), error])
    if policy.effective_episodes is not None:
        rows.append(["effective episodes", f"{policy.effective_episodes:.1f}", "", ""])
    if policy.beyond_truncations:
        rows.append(["beyond truncations", f"{policy.beyond_truncations:.4g}", "", ""])
    return [[label if index == 0 else "", *row] for index, row in enumerate(rows)]


def _interval(found: Estimate) -> str:
    return "" if found.interval is None else "{:.4g} to {:.4g}".format(*found.interval)


def _with_interval(found: Estimate) -> str:
    interval = _interval(found)
    return f"{found.value:.3g}" + (f" ({interval})" if interval else "")
