"""The folders of runs: how far each run is, what it scores, how settings differ, and whether files are damaged.

`read_folder` is the one reader of such a folder. A listing leaves out no folder that cannot be read: it says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from orlog.algos.training.runs import (
    CHECKPOINT_FILE,
    EVALUATION_FILE,
    KEPT_FOLDER,
    METRICS_FILE,
    ONLINE_FILE,
    ONLINE_SETTINGS,
    RUN_FILE,
    TOKENIZER_FILE,
    VIEW_FILE,
    Evaluation,
    PathLike,
    RunRecord,
    as_path,
    check_record,
    checkpoint_metadata,
    kept_checkpoints,
    read_evaluation,
    read_metrics,
    read_run,
    saved_step,
    verify_checkpoint,
)
from orlog.base.files import hash_file, hold_folder, is_held
from orlog.errors import ManifestError, NotFoundError, OrlogError, clause
from orlog.manifests.documents import canonical_json, convert_json
from orlog.normalize.metrics import EpisodeOutcomes, Number, numbers_of, of_fields
from orlog.normalize.references import References
from orlog.normalize.statistics import score_interval
from orlog.runs.references import references
from orlog.runs.results import RESULT_FILE, read_result

REPLACED = ".replaced"
FILES = (
    *(RUN_FILE, METRICS_FILE, CHECKPOINT_FILE, EVALUATION_FILE, RESULT_FILE, VIEW_FILE),
    *(ONLINE_FILE, TOKENIZER_FILE, KEPT_FOLDER, "videos", "tensorboard", "wandb.json"),
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
        curve: Step and episodes of each point of the learning curve.
        evaluation: What `orlog evaluate` measured last; None if it did not, or before the last point of the curve.
        anchors: References of the dataset, by which returns are scores; None if none are known.
        changed: When training last wrote to it, in seconds since 1970.
        seconds: How long it was trained, by its log; None without one.
    """

    folder: Path
    state: State
    problem: str = ""
    record: RunRecord | None = None
    step: int = 0
    curve: list[tuple[int, EpisodeOutcomes]] = dataclasses.field(default_factory=list)
    evaluation: Evaluation | None = None
    anchors: References | None = None
    changed: float = 0.0
    seconds: float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What runs differ in besides their seeds (`RunRecord.every_setting`)."""
        return {} if self.record is None else self.record.every_setting

    @property
    def last(self) -> tuple[int, EpisodeOutcomes] | None:
        """Step and episodes of the last evaluation, else of the last point of the learning curve."""
        if self.evaluation is not None and self.record is not None:
            return self.evaluation.step, self.evaluation.played(self.record)
        return self.curve[-1] if self.curve else None

    @property
    def scores(self) -> np.ndarray | None:
        """Scores of the episodes of `last`, returns without references; None if there are none."""
        return None if self.last is None else self.scores_of(self.last[1])

    @property
    def score(self) -> float | None:
        """Mean of `scores`."""
        return None if self.scores is None else float(self.scores.mean())

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the mean score at 95 %, over the episodes of this run."""
        return None if self.scores is None else score_interval([self.scores])

    @property
    def numbers(self) -> list[Number]:
        """What metrics give for the episodes of `last`."""
        return [] if self.last is None else numbers_of([self.last[1]])

    def scores_of(self, episodes: EpisodeOutcomes) -> np.ndarray:
        """Return the scores of episodes, or their returns where no references are known."""
        returns = episodes.returns
        return returns if self.anchors is None else self.anchors.normalize(returns)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        record, last = self.record, self.last
        success = None if last is None else last[1].metrics.get("success")
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
            "success_rate": None if success is None else float(success.mean()),
            "numbers": [number.to_json() for number in self.numbers],
            "scored_step": last and last[0],
            "episodes": last and len(last[1].returns),
            "normalized": self.anchors is not None,
        }


def run_places(place: PathLike) -> list[Path]:
    """Return the folders of the runs in a folder or below, in the order of their names.

    Raises NotFoundError if there is none.
    """
    root = as_path(place)
    folders = {path.parent for name in (RUN_FILE, CHECKPOINT_FILE) for path in root.rglob(name)}
    if not folders:
        raise NotFoundError(f"{root}: no run is in this folder or below; name a folder that orlog train wrote.")
    return sorted(folders, key=_in_order)


def _in_order(folder: Path) -> list[tuple[str, int]]:
    """Return what sorts folders by name, and `seed-10` after `seed-2`."""
    words = (part.rpartition("-") for part in folder.parts)
    return [
        (f"{first}{dash}", int(last)) if last.isdecimal() else (f"{first}{dash}{last}", -1)
        for first, dash, last in words
    ]


def find_run_folders(place: PathLike) -> list[RunSummary]:
    """Return what is known of the runs in a folder or below, in the order of their names.

    Raises NotFoundError if there is none.
    """
    runs = []
    for folder in run_places(place):
        try:
            run = read_folder(folder)
        except (OrlogError, OSError, ValueError, LookupError, TypeError) as error:
            run = RunSummary(folder=folder, state="unreadable", problem=clause(error))
        runs.append(run)
    return with_references(runs)


def with_references(runs: Iterable[RunSummary]) -> list[RunSummary]:
    """Return runs with the references of their datasets, where these are known."""
    anchors: dict[tuple[str, str], References | None] = {}
    scored = []
    for run in runs:
        if run.record is not None:
            version = run.record.dataset, run.record.digest
            if version not in anchors:
                anchors[version] = _references(*version)
            run = dataclasses.replace(run, anchors=anchors[version])
        scored.append(run)
    return scored


def _references(dataset: str, digest: str) -> References | None:
    """Return the references of a dataset: of the version that was trained on, else of its name."""
    for name in (f"{dataset}@{digest}", dataset):
        with contextlib.suppress(NotFoundError, ManifestError, ValueError):
            return references(name)
    return None


def read_folder(folder: Path) -> RunSummary:
    """Return what the folder of a run holds, without references; an evaluation shows that its files are unchanged.

    Raises NotFoundError, ManifestError, IntegrityError or CheckpointError that names the file if one is missing,
    malformed, or not what another file of the folder states.
    """
    record = read_run(folder)
    lines = read_metrics(folder) if (folder / METRICS_FILE).exists() else []
    saved = saved_step(folder)
    if saved is not None:
        last = folder / CHECKPOINT_FILE
        check_record(folder, last, checkpoint_metadata(last))
    state: State = "stopped"
    if saved == record.steps:
        state = "finished"
    elif is_held(folder):
        state = "running"
    elif lines and "diverged" in lines[-1]:
        state = "diverged"
    curve = [
        (
            line["step"],
            EpisodeOutcomes(
                returns=np.array(convert_json(line["returns"], list[float]), float),
                metrics=of_fields(line),
                dataset=record.dataset,
                settings=record.config,
            ),
        )
        for line in lines
        if line.get("returns")
    ]
    evaluation = read_evaluation(folder) if (folder / EVALUATION_FILE).exists() else None
    if evaluation is not None and curve and evaluation.step < curve[-1][0]:
        evaluation = None
    there = (folder / name for name in (RUN_FILE, METRICS_FILE, CHECKPOINT_FILE))
    return RunSummary(
        folder=folder,
        state=state,
        record=record,
        step=max([saved or 0, *(line["step"] for line in lines)]),
        curve=curve,
        evaluation=evaluation,
        changed=max(path.stat().st_mtime for path in there if path.exists()),
        seconds=float(lines[-1].get("seconds", 0)) if lines else None,
    )


def varied_settings(runs: Sequence[RunSummary]) -> dict[Path, dict[str, Any]]:
    """Return, for each readable run, the settings in which runs of its algorithm and data differ."""
    groups: dict[tuple[str, str], list[tuple[RunSummary, dict[str, Any]]]] = {}
    for run in runs:
        if run.record is not None:
            settings = run.settings | {"digest": run.record.digest[:19]}
            group = groups.setdefault((run.record.algorithm, run.record.dataset), [])
            group.append((run, settings))
    varied = {}
    fine_tuned = {f"online_{name}" for name in ONLINE_SETTINGS if name != "step"}
    for group in groups.values():
        values: dict[str, set[bytes]] = {}
        names = dict.fromkeys(name for _, settings in group for name in settings)
        for name in names:
            # What only fine-tuned runs have counts where it differs between these: their step tells them
            # from other runs.
            values[name] = {
                canonical_json(settings.get(name))
                for _, settings in group
                if name not in fine_tuned or name in settings
            }
        for run, settings in group:
            varied[run.folder] = {name: value for name, value in settings.items() if len(values[name]) > 1}
    return varied


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


@contextlib.contextmanager
def replacing(folders: Iterable[Path], overwrite: bool, *, resume: bool) -> Iterator[None]:
    """With `overwrite`, put the runs of some folders aside; remove each once another run is there, or put it back.

    Other files of the folders stay. After a kill the old run is in `.replaced` beside the new one's files.

    Raises ValueError if runs are to be resumed too; BusyError if a process trains in one of the folders.
    """
    if overwrite and resume:
        raise ValueError("resume=True goes on with a run, and overwrite=True replaces it; give one.")
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


def verify_run(folder: Path) -> tuple[list[str], list[str]]:
    """Compare every file of a run with the digests that the run holds.

    Returns what is damaged, missing or was edited, a sentence each; and what no digest speaks of, a clause each.

    The checkpoint holds a digest of itself and of `run.json`; an evaluation holds digests of itself, of `run.json`,
    of the checkpoint, and of the log up to its step. Nothing is signed: who edits a file and computes all digests
    again is not noticed.
    """
    if is_held(folder):
        return [], ["a process trains in it now, so that its files change"]
    problems: dict[str, None] = {}
    unverified: list[str] = []
    for check in (_verify_checkpoints, _verify_evaluation):
        try:
            unverified.extend(check(folder))
        except (OrlogError, OSError, ValueError, LookupError) as error:
            problems[f"{clause(error)}."] = None
    return [*problems], unverified


def _verify_checkpoints(folder: Path) -> Iterator[str]:
    read_run(folder)
    kept, last = kept_checkpoints(folder), folder / CHECKPOINT_FILE
    if not kept:
        yield f"{RUN_FILE}: there is no checkpoint yet, which will hold its digest"
    for path in sorted({*kept.values(), *([last] if last.exists() else [])}):
        metadata = verify_checkpoint(path)
        check_record(folder, path, metadata)
        steps, sha256 = folder / ONLINE_FILE, metadata.get("online_sha256")
        if path == last and sha256 and not (steps.is_file() and hash_file(steps) == sha256):
            yield f"{ONLINE_FILE}: it is compared when the run goes on"


def _verify_evaluation(folder: Path) -> Iterator[str]:
    if (folder / METRICS_FILE).exists():
        read_metrics(folder)
    if (folder / EVALUATION_FILE).exists():
        read_evaluation(folder, with_checkpoint=True)
    else:
        yield f"{METRICS_FILE}: an evaluation will hold its digest (orlog evaluate)"
    if (folder / RESULT_FILE).exists():
        read_result(folder.name, with_checkpoint=True, folder=folder)
