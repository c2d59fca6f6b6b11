"""Reads folders of runs: what each holds, whether its files are unchanged, and which runs are seeds of one another."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.algos.training.evaluating import FIRST_SEED
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
from orlog.manifests.names import counted
from orlog.normalize.metrics import EpisodeOutcomes, Number, numbers_of, of_fields
from orlog.normalize.references import Protocol, References
from orlog.normalize.statistics import score_interval, share_interval
from orlog.runs.plots import Curve, curves_plot
from orlog.runs.results import RESULT_FILE, read_result
from orlog.runs.scores import Described, described_version, references_measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPLACED = ".replaced"
# What a run may have in its folder.
FILES = (
    *(RUN_FILE, METRICS_FILE, CHECKPOINT_FILE, EVALUATION_FILE, RESULT_FILE, VIEW_FILE),
    *(ONLINE_FILE, TOKENIZER_FILE, KEPT_FOLDER, "videos", "tensorboard", "wandb.json"),
)
CURVE, EVALUATED = "last point of the curve", "orlog evaluate"
# What only fine-tuned runs have counts where it differs between these: their step tells them from other runs.
_FINE_TUNED = {f"online_{name}" for name in ONLINE_SETTINGS if name != "step"}
State: TypeAlias = Literal["running", "finished", "stopped", "diverged", "unreadable"]
Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What is known of a run by its folder."""

    folder: Path
    state: State  # `running` if a process trains in it now; `stopped` if it can be resumed
    problem: str = ""  # why the folder cannot be read; empty if it can
    record: RunRecord | None = None  # what `run.json` holds; None if it cannot be read
    step: int = 0  # gradient steps of the last checkpoint or line of the log
    # Step and episodes of each point of the learning curve.
    curve: list[tuple[int, EpisodeOutcomes]] = dataclasses.field(default_factory=list)
    # What `orlog evaluate` measured last; None if it did not, or before the last point of the curve.
    evaluation: Evaluation | None = None
    protocol: Protocol | None = None  # how `last` was measured; of a curve without versions, which were not recorded
    anchors: References | None = None  # references in the environment of `protocol`; None if none are known
    changed: float = 0.0  # when training last wrote to it, in seconds since 1970
    seconds: float | None = None  # how long it was trained, by its log; None without one

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
        return episodes.returns if self.anchors is None else self.anchors.normalize(episodes.returns)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        record, last = self.record, self.last
        success = None if last is None else last[1].metrics.get("success")
        return {
            "folder": str(self.folder),
            "state": self.state,
            "problem": self.problem or None,
            **{name: record and getattr(record, name) for name in ("algorithm", "dataset", "digest", "seed")},
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


class Runs(list[RunSummary]):
    """The runs of a folder, as they were when it was read; one that cannot be read says why."""

    def __init__(self, folder: Path) -> None:
        """Read them."""
        super().__init__(find_run_folders(folder))
        self.folder = folder

    def __repr__(self) -> str:
        """Return the folder, and how many runs of each algorithm are in it."""
        names = Counter(
            algorithm_title(run.record.algorithm, run.record.config) if run.record else "unreadable" for run in self
        )
        counts = ", ".join(f"{count} {name}" for name, count in names.items())
        return f"Runs({str(self.folder)!r}: {counts})"

    def plot(self, *, success: bool = False) -> Figure:
        """Return learning curves: mean score over seeds, and its 95 % interval as a band.

        With `success` it is the share of successful episodes, where the environment tells.

        Raises ValueError if no run has a curve; MissingExtraError if matplotlib is not installed.
        """
        return curves_plot(learning_curves(self, success=success), success=success)


def load_runs(folder: str | Path = "runs") -> Runs:
    """Return the runs in a folder and all folders in it: their settings, curves, scores and states.

    Raises NotFoundError if there is no such folder.
    """
    return Runs(Path(folder))


def run_places(place: PathLike) -> list[Path]:
    """Return the folders of the runs in a folder or below, in the order of their names, `seed-10` after `seed-2`."""
    root = as_path(place)
    folders = {path.parent for name in (RUN_FILE, CHECKPOINT_FILE) for path in root.rglob(name)}
    if not folders:
        raise NotFoundError(f"{root}: no run is in this folder or below; name a folder that orlog train wrote.")

    def in_order(folder: Path) -> list[tuple[str, int]]:
        words = (part.rpartition("-") for part in folder.parts)
        return [(f"{a}{dash}", int(b)) if b.isdecimal() else (f"{a}{dash}{b}", -1) for a, dash, b in words]

    return sorted(folders, key=in_order)


def find_run_folders(place: PathLike) -> list[RunSummary]:
    """Return what is known of the runs in a folder or below, in the order of their names."""
    return read_folders(run_places(place))


def read_folders(folders: Iterable[Path]) -> list[RunSummary]:
    """Return what is known of runs, with references; one whose folder cannot be read says why."""
    runs, known, describe = [], dict[bytes, References | None](), functools.cache(described_version)
    for folder in folders:
        try:
            run = read_folder(folder)
        except (OrlogError, OSError, ValueError, LookupError, TypeError) as error:
            run = RunSummary(folder=folder, state="unreadable", problem=clause(error))
        record = run.record
        if record is not None:
            version = record.dataset, record.digest
            protocol = (
                _curve_protocol(record, describe(*version)) if run.evaluation is None else run.evaluation.protocol
            )
            key = canonical_json([*version, msgspec.to_builtins(protocol)])
            if key not in known:  # looking up references takes time
                known[key] = None
                with contextlib.suppress(ManifestError):  # a damaged file of references, which `orlog scores` names
                    known[key] = references_measured(*version, protocol)
            run = dataclasses.replace(run, protocol=protocol, anchors=known[key])
        runs.append(run)
    return runs


def _curve_protocol(record: RunRecord, known: Described) -> Protocol:
    environment = None if known.manifest is None else known.manifest.environment
    return Protocol(
        environment_id="" if environment is None else environment.id,
        environment_kwargs={} if environment is None else environment.kwargs,
        versions={},
        max_episode_steps=None if environment is None else environment.max_episode_steps,
        episodes=record.curve_episodes,
        first_seed=FIRST_SEED,
        environments=1,
    )


def read_folder(folder: Path) -> RunSummary:
    """Return what the folder of a run holds, without references; an evaluation shows that its files are unchanged."""
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


# Settings and seeds.


def differing(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return of each of several settings those in which they differ."""
    values = {
        name: {canonical_json(each.get(name)) for each in settings if name in each or name not in _FINE_TUNED}
        for name in dict.fromkeys(name for each in settings for name in each)
    }
    return [{name: value for name, value in each.items() if len(values[name]) > 1} for each in settings]


def varied_settings(runs: Sequence[RunSummary]) -> dict[Path, dict[str, Any]]:
    """Return, for each readable run, the settings in which runs of its algorithm and data differ."""
    groups: dict[tuple[str, str], dict[Path, dict[str, Any]]] = {}
    for run in runs:
        if run.record is not None:
            group = groups.setdefault((run.record.algorithm, run.record.dataset), {})
            group[run.folder] = run.settings | {"digest": run.record.digest[:19]}
    return {
        folder: own
        for group in groups.values()
        for folder, own in zip(group, differing([*group.values()]), strict=True)
    }


def setting_words(settings: dict[str, Any]) -> list[str]:
    """Return settings as words `name=value`, as the command line takes them."""
    words = []
    for name, value in settings.items():
        plain = "from_step" if name == "online_step" else name.removeprefix("online_")
        nothing = "even" if name == "online_prior" else "none"
        text = nothing if value is None else str(value).replace(" ", "")
        words.append(f"{name if plain in settings else plain}={text}")
    return words


def seeds_together(
    items: Iterable[Item], key: Callable[[Item], Hashable], seeds: Callable[[Item], Sequence[int]]
) -> list[list[Item]]:
    """Put items of equal keys together, with each seed once: one that is there twice begins another group."""
    groups: dict[Hashable, list[list[Item]]] = {}
    order = []
    for item in items:
        alike = groups.setdefault(key(item), [])
        for group in alike:
            if not {seed for other in group for seed in seeds(other)} & {*seeds(item)}:
                group.append(item)
                break
        else:
            order.append([item])
            alike.append(order[-1])
    return order


def group_runs(runs: Sequence[RunSummary]) -> dict[tuple[str, str], list[RunSummary]]:
    """Return readable runs that differ in their seeds only, by dataset and label, in the order of the first of each."""
    varied, records = varied_settings(runs), {run.folder: run.record for run in runs if run.record is not None}
    groups: dict[tuple[str, str], list[RunSummary]] = {}
    for group in seeds_together(
        [run for run in runs if run.folder in records],
        lambda run: (*(records[run.folder].dataset, records[run.folder].algorithm), canonical_json(varied[run.folder])),
        lambda run: [records[run.folder].seed],
    ):
        record, folder = records[group[0].folder], group[0].folder
        label = " ".join([algorithm_title(record.algorithm, record.config), *setting_words(varied[folder])])
        if (record.shown_dataset, label) in groups:
            label = f"{label} {folder}"
        groups[record.shown_dataset, label] = sorted(group, key=lambda run: records[run.folder].seed)
    return groups


def mean_curve(
    runs: Sequence[RunSummary], *, success: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return steps, mean over seeds, and the ends of its interval at 95 %, where all seeds were scored."""
    curves = [
        {
            step: episodes.metrics["success"] if success else run.scores_of(episodes)
            for step, episodes in run.curve
            if not success or "success" in episodes.metrics
        }
        for run in runs
    ]
    curves = [curve for curve in curves if curve]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    means, ends = [], []
    for step in steps:
        seeds = [curve[step] for curve in curves]
        of_seeds = [float(values.mean()) for values in seeds]
        interval = None
        if success:
            interval = share_interval(of_seeds, sum(map(len, seeds)))
        elif len(seeds) > 1:
            interval = score_interval(seeds)
        means.append(float(np.mean(of_seeds)))
        ends.append(interval or (means[-1], means[-1]))
    low, high = np.array(ends, float).reshape(-1, 2).T
    return np.array(steps), np.array(means), low, high


def learning_curves(runs: Sequence[RunSummary], *, success: bool = False) -> list[Curve]:
    """Return a curve of each group of seeds that has one, for `curves_plot`."""
    curves = []
    for (dataset, label), group in group_runs(runs).items():
        steps, means, low, high = mean_curve(group, success=success)
        if len(steps):
            seeds = counted(sum(bool(run.curve) for run in group), "seed")
            is_normalized = all(run.anchors for run in group)
            curves.append(Curve(dataset, label, f"{label} ({seeds})", steps, means, (low, high), is_normalized))
    return curves


def scores_measured_alike(runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Return means over seeds as JSON, each of one source (`EVALUATED` or `CURVE`), step and number of episodes."""
    alike: dict[tuple[str, int, int], list[tuple[RunSummary, EpisodeOutcomes]]] = {}
    for run in runs:
        measured = [(CURVE, *point) for point in run.curve[-1:]]
        if run.evaluation is not None and run.last is not None:
            measured.append((EVALUATED, *run.last))
        for source, step, episodes in measured:
            alike.setdefault((source, step, len(episodes.returns)), []).append((run, episodes))
    documents = []
    for (source, step, count), seeds in sorted(alike.items(), key=lambda item: item[0]):
        scores = [run.scores_of(episodes) for run, episodes in seeds]
        means = [float(of_seed.mean()) for of_seed in scores]
        documents.append(
            {
                "source": source,
                "step": step,
                "episodes": count,
                "seeds": [run.record.seed for run, _ in seeds if run.record is not None],
                "each": means,
                "score": float(np.mean(means)),
                "score_interval": score_interval(scores) if len(scores) > 1 else None,
                "counted": [str(number) for number in numbers_of([each for _, each in seeds])],
            }
        )
    return documents


# Writing and checking folders.


@contextlib.contextmanager
def replacing(folders: Iterable[Path], overwrite: bool, *, resume: bool) -> Iterator[None]:
    """With `overwrite`, put the runs of some folders aside; remove each once another run is there, or put it back.

    Other files of the folders stay. After a kill the old run is in `.replaced` beside the new one's files.
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
