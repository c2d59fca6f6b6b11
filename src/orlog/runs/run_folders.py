"""What the folders of runs hold: how far each run is, what it scores, and how settings differ.

A folder that cannot be read is not left out: it says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from orlog.algos.training.checkpoint import checkpoint_metadata
from orlog.algos.training.from_data import TOKENIZER_FILE
from orlog.algos.training.metrics import METRICS_FILE, read_metrics
from orlog.algos.training.runs import (
    CHECKPOINT_FILE,
    EVALUATION_FILE,
    KEPT_FOLDER,
    ONLINE_FILE,
    ONLINE_SETTINGS,
    RUN_FILE,
    VIEW_FILE,
    PathLike,
    RunRecord,
    as_path,
    check_record,
    read_evaluation,
    read_run,
    saved_step,
)
from orlog.base.files import hold_folder, is_held
from orlog.errors import ManifestError, NotFoundError, OrlogError, clause
from orlog.manifests.documents import canonical_json, convert_json
from orlog.normalize.metrics import EpisodeOutcomes, Number, numbers_of, of_fields
from orlog.normalize.references import References
from orlog.normalize.statistics import score_interval
from orlog.runs.references import references
from orlog.runs.results import RESULT_FILE

REPLACED = ".replaced"
FILES = (
    *(
        RUN_FILE,
        METRICS_FILE,
        CHECKPOINT_FILE,
        EVALUATION_FILE,
        RESULT_FILE,
        VIEW_FILE,
        ONLINE_FILE,
    ),
    *(TOKENIZER_FILE, KEPT_FOLDER, "videos", "tensorboard", "wandb.json"),
)
"""What a run may have in its folder."""
State: TypeAlias = Literal["running", "finished", "stopped", "diverged", "unreadable"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What is known of a run by its folder.

    Attributes:
        folder: The folder.
        state: `running` if a process trains in it now; `stopped` if it can be resumed.
        problem: Why the folder cannot be read; empty if it can.
        record: What `run.json` holds; None if it cannot be read.
        step: Gradient steps of the last checkpoint or line of the log.
        settings: What runs differ in besides their seeds (`RunRecord.every_setting`).
        points: Step and scores of the episodes of each point of the learning curve.
        counted: What came of the episodes of each of these points, with what metrics counted.
        scores: Scores of the episodes of the last evaluation; None if there was none.
        played: What came of these episodes, with what metrics counted; None if there was none.
        scored_step: Gradient steps of the policy that was scored last.
        is_evaluated: Whether `scores` are those of `orlog evaluate`; otherwise they are those of the last
            point of the learning curve.
        is_normalized: Whether scores are normalized; otherwise they are returns.
        changed: When training last wrote to it, in seconds since 1970.
    """

    folder: Path
    state: State
    problem: str = ""
    record: RunRecord | None = None
    step: int = 0
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    points: list[tuple[int, np.ndarray]] = dataclasses.field(default_factory=list)
    counted: list[EpisodeOutcomes] = dataclasses.field(default_factory=list)
    scores: np.ndarray | None = None
    played: EpisodeOutcomes | None = None
    scored_step: int = 0
    is_evaluated: bool = False
    is_normalized: bool = True
    changed: float = 0.0

    @property
    def score(self) -> float | None:
        """Mean score of the last evaluation."""
        return None if self.scores is None else float(self.scores.mean())

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the mean at 95 %, over the episodes of this run."""
        return None if self.scores is None else score_interval([self.scores])

    @property
    def success_points(self) -> list[tuple[int, float]]:
        """Step and share of successful episodes of each point, where the environment tells."""
        rates = map(_success_rate, self.counted)
        return [
            (step, rate)
            for (step, _), rate in zip(self.points, rates, strict=True)
            if rate is not None
        ]

    @property
    def numbers(self) -> list[Number]:
        """What metrics give for the last evaluation, with intervals over its episodes."""
        return [] if self.played is None else numbers_of([self.played])

    @property
    def success_rate(self) -> float | None:
        """Share of the episodes of the last evaluation that succeeded, 0 to 1; None if nothing tells."""
        return None if self.played is None else _success_rate(self.played)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        record = self.record
        return {
            "folder": str(self.folder),
            "state": self.state,
            "problem": self.problem or None,
            "algorithm": record and record.algorithm,
            "dataset": record and record.dataset,
            "digest": record and record.digest,
            "seed": record and record.seed,
            "step": self.step,
            "steps": record and record.steps,
            "settings": self.settings,
            "score": self.score,
            "score_interval": self.interval,
            "success_rate": self.success_rate,
            "numbers": [one.to_json() for one in self.numbers],
            "scored_step": self.scored_step if self.scores is not None else None,
            "episodes": None if self.scores is None else len(self.scores),
            "normalized": self.is_normalized,
        }


def find_run_folders(place: PathLike) -> list[RunSummary]:
    """Return what is known of the runs in a folder or below, in the order of their names.

    Raises NotFoundError if there is none.
    """
    return [_summary(folder) for folder in run_places(place)]


def run_places(place: PathLike) -> list[Path]:
    """Return the folders of the runs in a folder or below, in the order of their names.

    Raises NotFoundError if there is none.
    """
    root = as_path(place)
    folders = {path.parent for name in (RUN_FILE, CHECKPOINT_FILE) for path in root.rglob(name)}
    if not folders:
        raise NotFoundError(
            f"{root}: no run is in this folder or below; name a folder that orlog train wrote."
        )
    return sorted(folders, key=_in_order)


@contextlib.contextmanager
def replacing(folders: Iterable[Path], overwrite: bool, *, resume: bool) -> Iterator[None]:
    """With `overwrite`, put the runs of some folders aside; remove each once another run is there, or put it back.

    Other files of the folders stay. After a kill the old run is in `.replaced` beside the new one's files.

    Raises ValueError if runs are to be resumed too; BusyError if a process trains in one of the folders.
    """
    if overwrite and resume:
        raise ValueError(
            "resume=True goes on with a run, and overwrite=True replaces it; give one."
        )
    held = [folder for folder in folders if overwrite and (folder / RUN_FILE).exists()]
    for folder in held:
        with hold_folder(folder, busy=f"{folder}: a process trains in it; stop it first."):
            aside = folder / REPLACED
            shutil.rmtree(aside, ignore_errors=True)  # of a command that was killed
            aside.mkdir()
            for name in filter(lambda name: (folder / name).exists(), FILES):
                (folder / name).replace(aside / name)
    try:
        yield
    finally:
        for folder in held:
            if not (folder / RUN_FILE).exists():
                for path in (folder / REPLACED).iterdir():
                    path.replace(folder / path.name)
            shutil.rmtree(folder / REPLACED)


def _in_order(folder: Path) -> list[tuple[str, int]]:
    """Return what sorts folders by name, and `seed-10` after `seed-2`."""
    words = (part.rpartition("-") for part in folder.parts)
    return [
        (f"{first}{dash}", int(last)) if last.isdecimal() else (f"{first}{dash}{last}", -1)
        for first, dash, last in words
    ]


def _summary(folder: Path) -> RunSummary:
    try:
        return _read(folder)
    except (OrlogError, OSError, ValueError, LookupError, TypeError) as error:
        return RunSummary(folder=folder, state="unreadable", problem=clause(error))


def _read(folder: Path) -> RunSummary:
    record = read_run(folder)
    lines = read_metrics(folder) if (folder / METRICS_FILE).exists() else []
    saved = saved_step(folder)
    if saved is not None:
        last = folder / CHECKPOINT_FILE
        check_record(folder, last, checkpoint_metadata(last))
    step = max([saved or 0, *(line["step"] for line in lines)])
    state: State = "stopped"
    if saved == record.steps:
        state = "finished"
    elif is_held(folder):
        state = "running"
    elif lines and "diverged" in lines[-1]:
        state = "diverged"
    known = _references(record.dataset, record.digest)

    def scored(returns: Any) -> np.ndarray:
        values = np.array(convert_json(returns, list[float]), float)
        return values if known is None else known.normalize(values)

    evaluated = [line for line in lines if line.get("returns")]
    points = [(line["step"], scored(line["returns"])) for line in evaluated]
    each = [
        EpisodeOutcomes(
            returns=np.array(line["returns"], float),
            metrics=of_fields(line),
            dataset=record.dataset,
            settings=record.config,
        )
        for line in evaluated
    ]
    scored_step, scores = points[-1] if points else (0, None)
    played = each[-1] if each else None
    is_evaluated = False
    if (folder / EVALUATION_FILE).exists():
        evaluation = read_evaluation(folder)
        if evaluation.step >= scored_step:
            scored_step, scores = evaluation.step, scored(evaluation.returns)
            played = evaluation.played(record)
            is_evaluated = True
    return RunSummary(
        folder=folder,
        state=state,
        record=record,
        step=step,
        settings=record.every_setting,
        points=points,
        counted=each,
        scores=scores,
        played=played,
        scored_step=scored_step,
        is_evaluated=is_evaluated,
        is_normalized=known is not None,
        changed=max(
            (folder / name).stat().st_mtime
            for name in (RUN_FILE, METRICS_FILE, CHECKPOINT_FILE)
            if (folder / name).exists()
        ),
    )


def _success_rate(played: EpisodeOutcomes) -> float | None:
    """Return the share of successful episodes, where the environment told."""
    reached = played.metrics.get("success")
    return None if reached is None else float(reached.mean())


@functools.cache
def _references(dataset: str, digest: str) -> References | None:
    """Return the references of a dataset: of the version that was trained on, else of its name."""
    for name in (f"{dataset}@{digest}", dataset):
        try:
            return references(name)
        except (NotFoundError, ManifestError, ValueError):
            continue
    return None


def varied_settings(runs: Sequence[RunSummary]) -> dict[Path, dict[str, Any]]:
    """Return, for each readable run, the settings in which runs of its algorithm and data differ."""
    groups: dict[tuple[str, str], list[RunSummary]] = {}
    for run in runs:
        if run.record is not None:
            groups.setdefault((run.record.algorithm, run.record.dataset), []).append(run)
    found = {}
    fine_tuned = [f"online_{name}" for name in ONLINE_SETTINGS if name != "step"]
    for group in groups.values():
        names = dict.fromkeys(name for run in group for name in run.settings)
        # What only fine-tuned runs have counts where it differs between these: their step tells them
        # from other runs.
        varied = [
            name
            for name in names
            if len(
                {
                    canonical_json(run.settings.get(name))
                    for run in group
                    if name not in fine_tuned or name in run.settings
                }
            )
            > 1
        ]
        digests = {run.record.digest for run in group if run.record is not None}
        for run in group:
            found[run.folder] = {
                name: run.settings[name] for name in varied if name in run.settings
            }
            if len(digests) > 1 and run.record is not None:
                found[run.folder]["digest"] = run.record.digest[:19]
    return found


def setting_words(settings: dict[str, Any]) -> list[str]:
    """Return settings as words `name=value`, as the command line takes them."""
    words = []
    for name, value in settings.items():
        plain = "from_step" if name == "online_step" else name.removeprefix("online_")
        shown = name if plain in settings else plain
        if value is None:
            text = "even" if name == "online_prior" else "none"
        else:
            text = str(value).replace(" ", "")
        words.append(f"{shown}={text}")
    return words
