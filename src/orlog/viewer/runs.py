"""Runs in a folder: learning curves, scores with intervals, settings that differ, verdicts, videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orlog.errors import OrlogError
from orlog.normalize.verdicts import compare_runs, recorded_outcomes
from orlog.runs.references import references
from orlog.runs.reproducing import other_training, recorded_baseline
from orlog.runs.run_folders import find_run_folders, setting_words
from orlog.runs.run_groups import CURVE, EVALUATED, RunGroup, group_runs
from orlog.runs.videos import VIDEOS as FILMED
from orlog.runs.videos import read_videos

VIDEOS = (".mp4", ".webm")
KINDS = ("worst", "median", "best")


def runs_of(folder: Path) -> dict[str, Any]:
    """Return the runs of a folder, in groups that differ in their seeds only.

    Raises NotFoundError if there is none.
    """
    found = find_run_folders(folder)
    return {
        "groups": [_group(group, folder) for group in group_runs(found)],
        "problems": [[_name(run.folder, folder), run.problem] for run in found if run.problem],
        "folder": str(folder),
        "videos": [_video(path, folder) for path in videos_of(folder)],
    }


def videos_of(folder: Path) -> list[Path]:
    """Return the videos of a folder of runs: of each run the worst, the median, the best; links are not followed."""
    found = (
        path
        for path in folder.rglob("*")
        if path.suffix in VIDEOS
        and path.is_file()
        and path.resolve().is_relative_to(folder)
        and not path.is_symlink()
    )
    return sorted(found, key=lambda path: (path.parent, _place(path), path.name))


def _place(path: Path) -> int:
    return next((at for at, word in enumerate(KINDS) if path.name.startswith(word)), len(KINDS))


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


def _group(group: RunGroup, folder: Path) -> dict[str, Any]:
    steps, means, low, high = group.curve()
    word, reason = _verdict(group)
    return {
        "label": group.label,
        "dataset": group.dataset,
        "algorithm": group.title,
        "settings": setting_words(group.settings),
        "seeds": [run.record.seed for run in group.runs if run.record is not None],
        "normalized": all(run.is_normalized for run in group.runs),
        "scores": _scores(group),
        "verdict": word,
        "reason": reason,
        "curve": {"steps": steps, "means": means, "low": low, "high": high},
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


def _scores(group: RunGroup) -> list[dict[str, Any]]:
    """Return means over seeds, each of one source, one step and one number of episodes."""
    return [
        {
            "source": one.source,
            "step": one.step,
            "episodes": one.episodes,
            "seeds": one.seeds,
            "each": one.means,
            "score": one.score,
            "interval": one.interval,
            "counted": [str(number) for number in one.numbers],
        }
        for one in group.all_scores
    ]


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
