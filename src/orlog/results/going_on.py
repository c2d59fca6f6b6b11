"""Runs that go on with another run: how a result states the run before, and how both are trained again.

`method.options` of such a result has `online`, how it acts in the environment, and `goes_on_with`: the step and the
SHA-256 of the checkpoint of each seed, and the options that train the run before again, which may go on with
another run itself. Where these are not known, `missing` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from orlog.algos.algorithms import AlgorithmLike
from orlog.algos.training.finetuning import finetune_run
from orlog.algos.training.options import TrainOptions
from orlog.algos.training.runs import CHECKPOINT_FILE, VIEW_FILE, OnlineRecord, RunRecord, read_run
from orlog.algos.training.train import train_run
from orlog.base.files import hash_file
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import NotFoundError, OrlogError
from orlog.manifests.documents import convert_json
from orlog.manifests.names import counted

_TRAINS_AGAIN = ("settings", "steps", "preset", "evaluations", "curve_episodes", "precision")
_HOW = ("prior", "random_steps", "noise")
_LONGEST = 8
"""Runs in a row, each of which goes on with the one before."""


class RunBefore(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The run that a run goes on with.

    Attributes:
        step: Gradient steps that it had taken.
        checkpoints: SHA-256 of its checkpoint, by seed.
        options: Options that train it again; None if they are not known.
        missing: Why they are not.
    """

    step: int
    checkpoints: dict[str, Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]]
    options: dict[str, Any] | None = None
    missing: str = ""


def options_of(records: Mapping[Path, RunRecord]) -> dict[str, Any]:
    """Return the options that train runs again, by folder the seeds of one method; of the first, but for the seed.

    Of runs that go on with other runs they say with which.
    """
    record = next(iter(records.values()))
    options = record.options()
    found = {name: getattr(options, name) for name in _TRAINS_AGAIN}
    if options.stream:
        found["stream"] = True
    if record.online is None or not record.online.run:
        return found
    found["online"] = {name: getattr(record.online, name) for name in _HOW}
    return {**found, "goes_on_with": msgspec.to_builtins(_before(records))}


def earlier_records(record: RunRecord) -> list[RunRecord]:
    """Return the records of the runs that a run goes on with, the last one first, as far as they are here."""
    found: list[RunRecord] = []
    while record.online is not None and record.online.run and len(found) < _LONGEST:
        try:
            record = _read_before(record.online)
        except OrlogError:
            break
        found.append(record)
    return found


def _before(records: Mapping[Path, RunRecord]) -> RunBefore:
    """Return what the runs go on with, each with its own seed of it."""
    onlines = {one.seed: one.online for one in records.values() if one.online is not None}
    first = next(iter(onlines.values()))
    stated = RunBefore(
        step=first.step,
        checkpoints={str(seed): one.checkpoint_sha256 for seed, one in onlines.items()},
    )

    def without(missing: str) -> RunBefore:
        return msgspec.structs.replace(stated, missing=missing)

    if len({one.step for one in onlines.values()}) > 1:
        return without("its seeds had taken different numbers of steps.")
    try:
        there = {Path(one.run): _read_before(one) for one in onlines.values()}
    except OrlogError as error:
        return without(str(error))
    found = options_of(there)
    each = [_without_checkpoints(options_of({path: one})) for path, one in there.items()]
    if any(one != each[0] for one in each) and not _lacks(found):
        return without("its seeds were trained with different options.")
    return msgspec.structs.replace(stated, options=found)


def _lacks(options: dict[str, Any]) -> bool:
    """Whether it is not known how one of the runs before was trained."""
    before = options.get("goes_on_with")
    return before is not None and (before["options"] is None or _lacks(before["options"]))


def _without_checkpoints(options: dict[str, Any]) -> dict[str, Any]:
    before = options.get("goes_on_with")
    if before is None:
        return options
    earlier = _without_checkpoints(before["options"] or {})
    return {**options, "goes_on_with": {**before, "options": earlier, "checkpoints": {}}}


def _read_before(online: OnlineRecord) -> RunRecord:
    """Return the record of the run that a run went on with, if it is as it was then.

    Raises NotFoundError if it is not.
    """
    folder = Path(online.run)
    record = read_run(folder)
    if (folder / VIEW_FILE).exists():
        raise NotFoundError(f"{folder} was trained on a view, which nobody else finds by its name.")
    if record.steps != online.step:
        raise NotFoundError(
            f"{folder} had taken {online.step:,} of its {record.steps:,} steps, and runs are trained again as a whole."
        )
    if hash_file(folder / CHECKPOINT_FILE) != online.checkpoint_sha256:
        raise NotFoundError(f"{folder / CHECKPOINT_FILE} is not the one that it went on with.")
    return record


def check_options(options: Mapping[str, Any], steps: int, longest: int = _LONGEST) -> None:
    """Refuse options of a result that do not train so many steps again, before anything is trained.

    Raises ValueError if they are malformed; NotFoundError, which says what is missing, if it is not known how a
    run that it goes on with was trained.
    """
    asked, _, before = _parsed(options)
    if asked.steps != steps:
        raise ValueError(f"steps: says {asked.steps}, but it was trained for {steps}.")
    if before is None:
        return
    if before.options is None or longest < 1:
        seeds = ", ".join(f"seed {seed}: {sha[:12]}.." for seed, sha in before.checkpoints.items())
        raise NotFoundError(
            f"method.options.goes_on_with: it goes on with a run of {counted(before.step, 'step')} (SHA-256 of the "
            f"checkpoints: {seeds}), and it is not said how that was trained: "
            f"{before.missing or 'too many runs in a row.'} Who has that run can add the result again beside it."
        )
    check_options(before.options, before.step, longest - 1)


def _parsed(options: Mapping[str, Any]) -> tuple[TrainOptions, OnlineRecord, RunBefore | None]:
    """Return the options of a run, how it acts in the environment, and what it goes on with."""
    plain = {key: one for key, one in options.items() if key not in ("online", "goes_on_with")}
    how = convert_json(options.get("online", {}), OnlineRecord)
    before = options.get("goes_on_with")
    return (
        convert_json(plain, TrainOptions),
        OnlineRecord(**{name: getattr(how, name) for name in _HOW}),
        None if before is None else convert_json(before, RunBefore),
    )


def run_again(
    options: Mapping[str, Any],
    seed: int,
    folder: Path,
    dataset: Dataset,
    algorithm: AlgorithmLike,
    limits: TrainOptions,
) -> list[str]:
    """Train a seed as options of a result say (`check_options`), and return what to note of it.

    A run that it goes on with is trained before, beside the folder. A file from anywhere gives no consent, and at
    most the evaluations and episodes of `limits`.
    """
    given, online, before = _parsed(options)
    asked = msgspec.structs.replace(
        limits,
        seed=seed,
        settings=given.settings,
        steps=given.steps,
        preset=given.preset,
        evaluations=min(given.evaluations, limits.evaluations),
        curve_episodes=min(given.curve_episodes, limits.curve_episodes),
        precision=given.precision,
        stream=given.stream,
    )
    if before is None:
        train_run(algorithm, dataset, folder, asked, resume=True)
        return []
    earlier = folder.with_name(f"{folder.name}-before")
    notes = run_again(before.options or {}, seed, earlier, dataset, algorithm, limits)
    stated = before.checkpoints.get(str(seed))
    if stated is not None and hash_file(earlier / CHECKPOINT_FILE) != stated:
        notes.append(f"seed {seed} went on with another file of step {before.step:,}")
    finetune_run(earlier, folder, asked, online, resume=True, dataset=dataset, algorithm=algorithm)
    return notes
