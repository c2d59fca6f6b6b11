"""Lists, compares and draws the runs in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orlog.algos.algorithms import algorithm_title
from orlog.base.terminal import ago, print_json, say, say_notes, show_table, tell
from orlog.cli.options import AsJson, RunFolder, command_group
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.normalize.metrics import Number
    from orlog.runs.run_folders import RunSummary
    from orlog.runs.run_groups import SeedScores

runs = command_group(
    "runs",
    "The runs in a folder: how far they are, what they score, and their learning curves.",
    "orlog runs list",
)

COUNTED = "counted"
CURVE_WIDTH = 12
HEADINGS = f"run algorithm dataset seed step settings changed curve score {COUNTED} state".split()


@runs.command("list", epilog="Example: orlog runs list runs/iql")
def list_runs(folder: RunFolder = Path("runs"), as_json: AsJson = False) -> None:
    """List every run with its state, steps, last score, and the settings in which runs differ.

    The interval of a score is over the episodes of that run (95 %). What metrics
    counted, such as the share of episodes that succeeded, stands beside it. A folder that cannot be read is
    listed with the reason. Stopped runs go on with the command that trained them and --resume.
    """
    import numpy as np

    from orlog.datasets.looking.sparklines import course
    from orlog.runs.run_folders import find_run_folders, varied_settings

    found = find_run_folders(folder)
    varied = varied_settings(found)
    if as_json:
        documents = [
            {**run.to_json(), "differing_settings": varied.get(run.folder, {})} for run in found
        ]
        print_json({"folder": str(folder), "runs": documents})
        return
    rows = []
    for run in found:
        record = run.record
        if record is None:
            rows.append([str(run.folder), *[""] * 9, run.state])
            continue
        rows.append(
            [
                str(run.folder),
                algorithm_title(record.algorithm, record.config),
                record.shown_dataset,
                str(record.seed),
                f"{run.step:,}/{record.steps:,}",
                _settings(varied[run.folder], besides=("steps",)),
                ago(run.changed),
                course(np.array([scores.mean() for _, scores in run.points]), CURVE_WIDTH),
                _score(run.score, run.interval),
                _counted(run.numbers),
                run.state,
            ]
        )
    spare = ("dataset", "seed", "algorithm", "changed", "step", "settings", "curve")
    show_table(HEADINGS, rows, numbers=(3, 4), spare=spare)
    say_notes(_problems(found), tell)
    _note_returns(found)


@runs.command(
    "show", epilog="Example: orlog runs show runs/iql/pointmaze/umaze-v1/seed-0 --command"
)
def show_run(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    command: Annotated[
        bool, typer.Option("--command", help="Print the one command that makes this run again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what the record of a run says, or the command that makes it again with every option.

    Of a fine-tuned run it is the command that fine-tunes; the run before it is named in it.
    """
    import msgspec

    from orlog.algos.training.commands import run_command
    from orlog.algos.training.runs import read_run
    from orlog.runs.run_folders import setting_words

    record = read_run(run)
    line = run_command(run, record)
    if as_json:
        print_json({"folder": str(run), "command": line, "record": msgspec.to_builtins(record)})
        return
    if command:
        say(line)
        return
    for name, value in msgspec.to_builtins(record).items():
        if name not in ("obs_mean", "obs_std", "settings") and value is not None:
            text = ", ".join(setting_words(value)) if isinstance(value, dict) else str(value)
            say(f"{name}: {text}")
    say(f"command: {line}")


@runs.command("verify", epilog="Example: orlog runs verify runs/iql")
def verify(folder: RunFolder = Path("runs"), as_json: AsJson = False) -> None:
    """Compare the files of runs with the digests that they hold. Exit code 3 if something differs.

    A checkpoint has a digest of itself and of run.json; an evaluation and a stored result have digests
    of themselves, run.json, the checkpoint and the log. That finds damage and careless edits, but not
    somebody who edits a file and computes the digests again. What no digest speaks of is listed.
    """
    from orlog.runs.run_verification import verify_runs

    found = verify_runs(folder)
    damaged = [run for run in found if run.problems]
    if as_json:
        documents = [
            {"folder": str(one.folder), "problems": one.problems, "unverified": one.unverified}
            for one in found
        ]
        print_json({"folder": str(folder), "runs": documents})
    else:
        for run in found:
            for problem in run.problems:
                where = "" if str(run.folder) in problem else f"{run.folder}: "
                say(f"{where}{problem}", label="damaged")
            for line in run.unverified:
                tell(f"note: {run.folder}: unverified: {line}.")
        whole = sum(not run.problems and not run.unverified for run in found)
        outcome = f"{len(damaged)} damaged" if damaged else "none is damaged"
        say(f"runs: {len(found)}, {outcome}, {whole} verified in every file")
    if damaged:
        raise typer.Exit(3)


@runs.command("compare", epilog="Example: orlog runs compare runs/iql")
def compare_runs(folder: RunFolder = Path("runs"), as_json: AsJson = False) -> None:
    """Compare settings by the last scores of their seeds, with 95 % intervals over seeds.

    Runs that differ in their seeds only stand in one line; where some were scored by orlog evaluate and
    others by the last point of their curve, at another step, or over another number of episodes, each
    kind has a line. Of runs with the same settings and seed, such as copies, the newest that has a score
    counts. The intervals are Student's t over seeds, of shares Wilson's; for aggregates over several datasets,
    and tests, see orlog compare.
    """
    from orlog.runs.run_folders import find_run_folders
    from orlog.runs.run_groups import group_runs

    found = find_run_folders(folder)
    groups = group_runs(found)
    notes = _problems(found)
    for group in groups:
        for run in group.runs:
            if run.record is None:
                continue
            if run.scores is None:
                notes.append(f"{run.folder}: without a score, so it counts in no mean.")
            elif run.scored_step != run.record.steps:
                notes.append(
                    f"{run.folder}: scored at step {run.scored_step:,} of {run.record.steps:,}."
                )
        for run, counts in group.left_out:
            notes.append(
                f"{run.folder}: left out, since {counts.folder} has the same settings and seed and "
                f"{'is newer' if counts.changed >= run.changed else 'has a score'}."
            )
        if len(group.last_scores) > 1:
            kinds = "; ".join(map(_measured, group.last_scores))
            notes.append(
                f"{group.label} on {group.dataset}: {kinds}: each has a line and a mean of its own."
            )
    if as_json:
        print_json(
            {"folder": str(folder), "groups": [one.to_json() for one in groups], "notes": notes}
        )
        return
    rows = []
    for group in groups:
        about = [group.shown_dataset, group.title, _settings(group.settings)]
        scores = group.last_scores
        every = [run.record.seed for run in group.runs if run.record is not None]
        if not scores:
            rows.append([*about, _listed(every), "", ""])
        for one in scores:
            seeds = _listed(every if len(scores) == 1 else one.seeds)
            rows.append([*about, seeds, _score(one.score, one.interval), _counted(one.numbers)])
    show_table(("dataset", "algorithm", "settings", "seeds", "score", COUNTED), rows)
    say_notes(notes, tell)
    _note_returns(found)


@runs.command("plot", epilog="Example: orlog runs plot runs/iql --out curves.png")
def plot_runs(
    folder: RunFolder = Path("runs"),
    out: Annotated[
        Path, typer.Option(help="The plot: a name that ends in .png, .svg or .pdf.")
    ] = Path("curves.png"),
    success: Annotated[
        bool, typer.Option("--success", help="Draw success rates in place of scores.")
    ] = False,
) -> None:
    """Draw learning curves: mean score over seeds, and its 95 % interval as a band.

    With --success it is the share of successful episodes, where the environment tells.
    """
    from orlog.runs.run_folders import find_run_folders
    from orlog.runs.run_groups import group_runs
    from orlog.runs.statistics_plots import check_format, curves_plot, save_plot

    check_format(out)
    found = find_run_folders(folder)
    save_plot(curves_plot(group_runs(found), success=success), out)
    say_notes(_problems(found), tell)
    say(f"written: {out}")


def _settings(settings: dict[str, Any], *, besides: Sequence[str] = ()) -> str:
    """Return settings in one cell, without those that are in other columns."""
    from orlog.runs.run_folders import setting_words

    shown = {name: value for name, value in settings.items() if name not in besides}
    return ", ".join(setting_words(shown))


def _problems(found: Sequence[RunSummary]) -> list[str]:
    """Return why folders cannot be read, with the path of each once."""
    return [
        f"{run.folder}: {run.problem.removeprefix(f'{run.folder} ').replace(f'{run.folder}/', '')}."
        for run in found
        if run.problem
    ]


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _measured(one: SeedScores) -> str:
    """Say how the scores of some seeds were measured."""
    from orlog.runs.run_groups import CURVE

    source = f"the {CURVE}" if one.source == CURVE else one.source
    return (
        f"{'seed' if len(one.seeds) == 1 else 'seeds'} {_listed(one.seeds)} by {source} at step "
        f"{one.step:,}, {counted(one.episodes, 'episode')}"
    )


def _score(score: float | None, interval: tuple[float, float] | None) -> str:
    if score is None:
        return ""
    return f"{score:z.1f}" + (f" ({interval[0]:z.1f} to {interval[1]:z.1f})" if interval else "")


def _counted(numbers: Sequence[Number]) -> str:
    from orlog.normalize.metrics import in_short

    return ", ".join(in_short(numbers))


def _note_returns(found: Sequence[RunSummary]) -> None:
    plain = {
        run.record.dataset
        for run in found
        if run.record is not None and run.scores is not None and not run.is_normalized
    }
    for dataset in sorted(plain):
        tell(f"note: {dataset}: no reference returns are known, so its scores are returns.")
