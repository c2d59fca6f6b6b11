"""Runs in a folder: learning curves, scores with intervals, settings that differ, verdicts, videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orlog.algos.algorithms import algorithm_title
from orlog.errors import OrlogError
from orlog.manifests.names import counted
from orlog.normalize.verdicts import compare_runs, recorded_outcomes
from orlog.runs.pictures import Dot, Line, dots, figure, lines, series_of
from orlog.runs.plots import UNIT
from orlog.runs.policies import VIDEOS as FILMED
from orlog.runs.policies import read_videos
from orlog.runs.reproducing import other_training, recorded_baseline
from orlog.runs.run_folders import (
    CURVE,
    EVALUATED,
    RunSummary,
    find_run_folders,
    group_runs,
    mean_curve,
    scores_measured_alike,
)
from orlog.runs.scores import references

VIDEOS = (".mp4", ".webm")
KINDS = ("worst", "median", "best")
CURVES = "{unit} over gradient steps; each point is a short evaluation during training; bands: 95 % interval over seeds"


def runs_of(folder: Path) -> dict[str, Any]:
    """Return the runs of a folder, in groups that differ in their seeds only, and pictures by dataset.

    Raises NotFoundError if there is none.
    """
    runs = find_run_folders(folder)
    groups = group_runs(runs)
    by_dataset: dict[str, dict[str, list[RunSummary]]] = {}
    for (_, label), group in groups.items():
        dataset = group[0].record.dataset if group[0].record else ""
        by_dataset.setdefault(dataset, {})[label] = group
    return {
        "groups": [_group(label, group, folder) for (_, label), group in groups.items()],
        "pictures": {dataset: _pictures(there) for dataset, there in by_dataset.items()},
        "problems": [[_name(run.folder, folder), run.problem] for run in runs if run.problem],
        "folder": str(folder),
        "videos": [_video(path, folder) for path in videos_of(folder)],
    }


def videos_of(folder: Path) -> list[Path]:
    """Return the videos of a folder of runs: of each run the worst, the median, the best; links are not followed."""

    def place(path: Path) -> tuple[Path, int, str]:
        kinds = (at for at, word in enumerate(KINDS) if path.name.startswith(word))
        return path.parent, next(kinds, len(KINDS)), path.name

    videos = (
        path
        for path in folder.rglob("*")
        if path.suffix in VIDEOS and path.is_file() and path.resolve().is_relative_to(folder) and not path.is_symlink()
    )
    return sorted(videos, key=place)


def _video(path: Path, folder: Path) -> dict[str, Any]:
    """Return what is known of a video: its run, and what the list beside it says."""
    run = path.parent.parent
    listed = [video for video in read_videos(run) if path.parent == run / FILMED and video.file == path.name]
    about: dict[str, Any] = {"file": path.relative_to(folder).as_posix()}
    if listed:
        about |= {
            "run": _name(run, folder),
            "kind": " and ".join(video.kind for video in listed),
            "episode": listed[0].episode,
            "return": listed[0].returned,
            "step": listed[0].step,
            "frames": listed[0].frames,
        }
    return about


def _name(run: Path, folder: Path) -> str:
    return str(run.relative_to(folder)) if run != folder else run.name


def _pictures(groups: Mapping[str, Sequence[RunSummary]]) -> dict[str, Any]:
    """Return learning curves and scores of groups as figures, in one scale and with a color for each group."""
    is_normalized = all(run.anchors for group in groups.values() for run in group)
    unit, ends = (UNIT, (0, 100)) if is_normalized else ("return", (0,))
    series = series_of(groups)
    curves, named = [], {}
    # Scores of another source, or of another number of episodes, are other measurements.
    kinds: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for label, group in groups.items():
        xs, means, low, high = (values.tolist() for values in mean_curve(group))
        if xs:
            curves.append(Line(xs=xs, ys=means, series=series[label], band=(low, high)))
            named[f"{label} ({counted(len(group), 'seed')})"] = series[label]
        for score in scores_measured_alike(group):
            kind = f"{score['source']}, {counted(score['episodes'], 'episode')} a seed"
            kinds.setdefault(kind, []).append((label, score))
    rows = {kind: [_dot(label, score, series[label]) for label, score in measured] for kind, measured in kinds.items()}
    scale = [number for some in rows.values() for row in some for number in row.numbers]
    scale += [value for curve in curves for values in (curve.ys, *(curve.band or ())) for value in values]
    drawn = lines(curves, f"{unit} over gradient steps", "gradient steps", scale=(*scale, *ends))
    return {
        "curves": figure(drawn, CURVES.format(unit=unit), named) if curves else "",
        "scores": [
            {
                "kind": kind,
                "unit": unit,
                "picture": dots(rows[kind], f"Scores by {kind}", ends=ends, scale=scale),
                "words": [
                    f"{row.name} after {counted(score['step'], 'step')}: {row.note}"
                    for row, (_, score) in zip(rows[kind], measured, strict=True)
                ],
            }
            for kind, measured in kinds.items()
        ],
    }


def _dot(label: str, score: dict[str, Any], series: int) -> Dot:
    note, seeds, interval = f"{score['score']:z.1f}", score["seeds"], score["score_interval"]
    if interval is not None:
        note += f" (95 % interval {interval[0]:z.1f} to {interval[1]:z.1f})"
    note += f", {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    return Dot(
        name=label,
        value=score["score"],
        interval=interval,
        each=score["each"],
        series=series,
        note=note + "".join(f", {number}" for number in score["counted"]),
    )


def _group(label: str, runs: Sequence[RunSummary], folder: Path) -> dict[str, Any]:
    record = runs[0].record
    assert record is not None
    word, reason = _verdict(record.algorithm, record.dataset, runs)
    title = algorithm_title(record.algorithm, record.config)
    return {
        "label": label,
        "dataset": record.dataset,
        "algorithm": title,
        "settings": label.removeprefix(title).split(),
        "seeds": [run.record.seed for run in runs if run.record is not None],
        "scores": scores_measured_alike(runs),
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
                "source": CURVE if run.evaluation is None else EVALUATED,
                "episodes": None if run.last is None else len(run.last[1].returns),
            }
            for run in runs
        ],
    }


def _verdict(algorithm: str, dataset: str, runs: Sequence[RunSummary]) -> tuple[str, str]:
    """Return the verdict on seeds against the recorded baseline, and its reason; or why there is none."""
    new = {}
    try:
        baseline = recorded_baseline(algorithm, dataset)
        if baseline is None:
            return "", "nothing is recorded for this algorithm and dataset"
        known = references(dataset)
        for run in runs:
            record, evaluation = run.record, run.evaluation
            if record is None or evaluation is None or evaluation.step != record.steps:
                return "", "not compared: a run is not finished and evaluated"
            if record.digest != baseline.digest:
                return "", "not compared: trained on other data than the recorded baseline"
            if other := other_training(record, baseline):
                return "", f"not compared: {other}"
            new[record.seed] = evaluation.played(record)
        verdict = compare_runs(new, recorded_outcomes(baseline), known.normalize)
    except (OrlogError, ValueError) as error:
        return "", f"not compared: {error}"
    return verdict.word, str(verdict)
