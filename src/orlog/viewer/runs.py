"""Runs in a folder: learning curves, scores with intervals, settings that differ, verdicts, videos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orlog.errors import OrlogError
from orlog.manifests.names import counted
from orlog.normalize.verdicts import compare_runs, recorded_outcomes
from orlog.runs.pages import figure
from orlog.runs.pictures import Dot, Line, dots, lines, series_of
from orlog.runs.references import references
from orlog.runs.reproducing import other_training, recorded_baseline
from orlog.runs.result_figures import UNIT
from orlog.runs.run_folders import find_run_folders, setting_words
from orlog.runs.run_groups import CURVE, EVALUATED, RunGroup, SeedScores, group_runs
from orlog.runs.videos import VIDEOS as FILMED
from orlog.runs.videos import read_videos

VIDEOS = (".mp4", ".webm")
KINDS = ("worst", "median", "best")
CURVES = "{unit} over gradient steps; each point is a short evaluation during training; bands: 95 % interval over seeds"


def runs_of(folder: Path) -> dict[str, Any]:
    """Return the runs of a folder, in groups that differ in their seeds only, and pictures by dataset.

    Raises NotFoundError if there is none.
    """
    found = find_run_folders(folder)
    groups = group_runs(found)
    by_dataset: dict[str, list[RunGroup]] = {}
    for group in groups:
        by_dataset.setdefault(group.dataset, []).append(group)
    return {
        "groups": [_group(group, folder) for group in groups],
        "pictures": {dataset: _pictures(there) for dataset, there in by_dataset.items()},
        "problems": [[_name(run.folder, folder), run.problem] for run in found if run.problem],
        "folder": str(folder),
        "videos": [_video(path, folder) for path in videos_of(folder)],
    }


def videos_of(folder: Path) -> list[Path]:
    """Return the videos of a folder of runs: of each run the worst, the median, the best; links are not followed."""

    def place(path: Path) -> tuple[Path, int, str]:
        kinds = (at for at, word in enumerate(KINDS) if path.name.startswith(word))
        return path.parent, next(kinds, len(KINDS)), path.name

    found = (
        path
        for path in folder.rglob("*")
        if path.suffix in VIDEOS
        and path.is_file()
        and path.resolve().is_relative_to(folder)
        and not path.is_symlink()
    )
    return sorted(found, key=place)


def _video(path: Path, folder: Path) -> dict[str, Any]:
    """Return what is known of a video: its run, and what the list beside it says."""
    run = path.parent.parent
    listed = [
        one for one in read_videos(run) if path.parent == run / FILMED and one.file == path.name
    ]
    about: dict[str, Any] = {"file": path.relative_to(folder).as_posix()}
    if listed:
        about |= {
            "run": _name(run, folder),
            "kind": " and ".join(one.kind for one in listed),
            "episode": listed[0].episode,
            "return": listed[0].returned,
            "step": listed[0].step,
            "frames": listed[0].frames,
        }
    return about


def _name(run: Path, folder: Path) -> str:
    return str(run.relative_to(folder)) if run != folder else run.name


def _pictures(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """Return learning curves and scores of groups as figures, in one scale and with a color for each group."""
    is_normalized = all(run.is_normalized for group in groups for run in group.runs)
    unit, ends = (UNIT, (0, 100)) if is_normalized else ("return", (0,))
    series = series_of(group.label for group in groups)
    curves, named = [], {}
    for group in groups:
        xs, means, low, high = (values.tolist() for values in group.curve())
        if xs:
            curves.append(Line(xs=xs, ys=means, series=series[group.label], band=(low, high)))
            named[f"{group.label} ({counted(len(group.runs), 'seed')})"] = series[group.label]
    # Scores of another source, or of another number of episodes, are other measurements.
    kinds: dict[str, list[tuple[str, SeedScores]]] = {}
    for group in groups:
        for score in group.all_scores:
            kind = f"{score.source}, {counted(score.episodes, 'episode')} a seed"
            kinds.setdefault(kind, []).append((group.label, score))
    rows = {
        kind: [_dot(label, score, series[label]) for label, score in measured]
        for kind, measured in kinds.items()
    }
    scale = [number for some in rows.values() for row in some for number in row.numbers]
    scale += [value for one in curves for values in (one.ys, *(one.band or ())) for value in values]
    drawn = lines(curves, f"{unit} over gradient steps", "gradient steps", scale=(*scale, *ends))
    return {
        "curves": figure(drawn, CURVES.format(unit=unit), named) if curves else "",
        "scores": [
            {
                "kind": kind,
                "unit": unit,
                "picture": dots(rows[kind], f"Scores by {kind}", ends=ends, scale=scale),
                "words": [
                    f"{row.name} after {counted(score.step, 'step')}: {row.note}"
                    for row, (_, score) in zip(rows[kind], measured, strict=True)
                ],
            }
            for kind, measured in kinds.items()
        ],
    }


def _dot(label: str, score: SeedScores, series: int) -> Dot:
    note = f"{score.score:z.1f}"
    if score.interval is not None:
        note += f" (95 % interval {score.interval[0]:z.1f} to {score.interval[1]:z.1f})"
    note += f", {'seed' if len(score.seeds) == 1 else 'seeds'} {', '.join(map(str, score.seeds))}"
    return Dot(
        name=label,
        value=score.score,
        interval=score.interval,
        each=score.means,
        series=series,
        note=note + "".join(f", {number}" for number in score.numbers),
    )


def _group(group: RunGroup, folder: Path) -> dict[str, Any]:
    word, reason = _verdict(group)
    return {
        "label": group.label,
        "dataset": group.dataset,
        "algorithm": group.title,
        "settings": setting_words(group.settings),
        "seeds": [run.record.seed for run in group.runs if run.record is not None],
        "scores": [one.to_json() for one in group.all_scores],
        "verdict": word,
        "reason": reason,
        "each": [
            {
                "folder": _name(run.folder, folder),
                "seed": None if run.record is None else run.record.seed,
                "state": run.state,
                "step": run.step,
                "steps": None if run.record is None else run.record.steps,
                "score": run.score,
                "source": EVALUATED if run.is_evaluated else CURVE,
                "episodes": None if run.scores is None else len(run.scores),
            }
            for run in group.runs
        ],
        "left_out": [
            f"{_name(run.folder, folder)}: {_name(counts.folder, folder)} counts, which has the same "
            "settings and seed"
            for run, counts in group.left_out
        ],
    }


def _verdict(group: RunGroup) -> tuple[str, str]:
    """Return the verdict on a group against the recorded baseline, and its reason; or why there is none."""
    new = {}
    try:
        baseline = recorded_baseline(group.algorithm, group.dataset)
        if baseline is None:
            return "", "nothing is recorded for this algorithm and dataset"
        known = references(group.dataset)
        for run in group.runs:
            record = run.record
            if (
                record is None
                or run.played is None
                or not run.is_evaluated
                or run.scored_step != record.steps
            ):
                return "", "not compared: a run is not finished and evaluated"
            if record.digest != baseline.digest:
                return "", "not compared: trained on other data than the recorded baseline"
            if other := other_training(record, baseline):
                return "", f"not compared: {other}"
            new[record.seed] = run.played
        verdict = compare_runs(new, recorded_outcomes(baseline), known.normalize)
    except (OrlogError, ValueError) as error:
        return "", f"not compared: {error}"
    return verdict.word, str(verdict)
