"""One job of a sweep: its folder, its training, and the result that appears whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from orlog.algos.algorithms import algorithm_name
from orlog.algos.presets import recipe_for
from orlog.algos.training.devices import find_device
from orlog.algos.training.evaluating import scoring_protocol
from orlog.algos.training.options import TrainOptions
from orlog.algos.training.policy import check_goal_to_act_for, fitting_form
from orlog.algos.training.runs import code_versions, read_sealed_evaluation
from orlog.algos.training.train import precision_here, run_config
from orlog.base.code_version import run_sources
from orlog.base.files import BusyError, make_folder, replace_file, sole_access, storage_errors
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import FormatVersionError, IntegrityError, NotFoundError, OrlogError, clause
from orlog.runs.jobs import Job, run_job
from orlog.runs.result_folders import DAMAGED_FOLDER, RESULT_FILE, result_folder, results_folder
from orlog.runs.stored_results import JobIdentity, StoredResult, key_of, read_result, write_result


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyedJob:
    """One job for a worker: what to do, the home of the sweep, and whether to wait for others."""

    group: Group
    identity: JobIdentity
    home: str
    waits: bool = False

    def __str__(self) -> str:
        return f"{self.group.algorithm} on {self.group.name}, seed {self.identity.seed}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended: another sweep is at it, or it is done; then the files for another home."""

    is_busy: bool = False
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)


def read_whole(key: str, note: Callable[[str], None] = lambda _text: None) -> StoredResult | None:
    """Return a result; None if there is none or, after a note, if it is damaged: then it is made again."""
    try:
        return read_result(key, with_checkpoint=True)
    except OrlogError as error:
        note(f"{clause(error)}; its job is run again.")
        return None


def mark_home() -> str:
    """Write what tells this home from all others, and from copies that were made of it; return it.

    Each sweep writes its own. A worker that reads the one of another sweep sends its results to the
    home where they are already, which does no harm.
    """
    mark = uuid.uuid4().hex
    path = _mark_file()
    with sole_access(path), storage_errors(path):
        replace_file(path, mark.encode())
    return mark


def _mark_file() -> Path:
    return results_folder() / ".id"


def _is_home(mark: str) -> bool:
    """Whether the home of this process is the one with a mark."""
    with contextlib.suppress(OSError):
        return _mark_file().read_text("utf-8") == mark
    return False


def run_keyed(job: KeyedJob) -> Ended:
    """Do one job in a worker, unless its result is there or another worker is at it.

    The data and the code must be those that the job's key says.
    """
    key = key_of(job.identity)
    folder = result_folder(key)
    try:
        with sole_access(folder, longest_wait=None if job.waits else 0):
            if not _is_done(key):
                _train(job, folder)
    except BusyError:
        if job.waits:
            raise
        return Ended(is_busy=True)
    if _is_home(job.home):
        return Ended()
    files = (path for path in folder.rglob("*") if path.is_file())
    return Ended(files={path.relative_to(folder).as_posix(): path.read_bytes() for path in files})


def _is_done(key: str) -> bool:
    """Whether a result is there. A damaged one is set aside, unless only its `result.json` is damaged."""
    folder = result_folder(key)
    try:
        return read_result(key, with_checkpoint=True) is not None
    except FormatVersionError:
        raise  # it is whole, and of a newer orlog
    except OrlogError:
        pass
    try:
        read_sealed_evaluation(folder)
    except OrlogError:
        _set_aside(folder)
    else:  # what it was made from is what it was, so it is written again
        with storage_errors(folder):
            (folder / RESULT_FILE).unlink()
    return False


def _set_aside(folder: Path) -> None:
    """Move a damaged folder to `results/.damaged`, in place of one that was moved there before."""
    place = results_folder() / DAMAGED_FOLDER / folder.name
    with storage_errors(folder):
        make_folder(place.parent)
        shutil.rmtree(place, ignore_errors=True)
        folder.rename(place)


def _train(job: KeyedJob, folder: Path) -> None:
    """Train and evaluate a job in the folder of its result."""
    group, identity = job.group, job.identity
    dataset = load_dataset(group.dataset, build=True, download=True)
    options = msgspec.structs.replace(group.options, seed=identity.seed)
    episodes = identity.protocol.episodes
    here = identify(group.algorithm, dataset, options, episodes=episodes)
    if here != identity:
        raise IntegrityError(
            f"{job}: this worker has another {_difference(identity, here)} than where the sweep was "
            "started; use the same orlog, packages and kind of device on all machines."
        )
    one = Job(
        algorithm=group.algorithm,
        dataset=dataset.folder,
        folder=folder,
        options=options,
        episodes=episodes,
        resume=True,
        where="mmap",
    )
    try:
        run_job(one)
        write_result(identity)
    except (FileExistsError, IntegrityError, NotFoundError) as error:
        if not folder.is_dir() or str(folder) not in str(error):
            raise
        _set_aside(folder)  # a file that a run had begun there is damaged or missing
        run_job(one)
        write_result(identity)


def _difference(wanted: JobIdentity, here: JobIdentity) -> str:
    """Return in words what differs between two identities."""
    for field in JobIdentity.__struct_fields__:
        ours, theirs = getattr(wanted, field), getattr(here, field)
        if ours != theirs and isinstance(ours, dict):
            names = [key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]
            return f"{field} ({', '.join(names[:3])})"
        if ours != theirs:
            return field
    raise AssertionError("the identities are equal")


def keep(key: str, files: dict[str, bytes]) -> None:
    """Write the files of a result that was made in another home, `result.json` last.

    A worker that shares this home sends none; then the result must be here.
    """
    folder = result_folder(key)
    if files:
        with sole_access(folder), storage_errors(folder):
            if read_whole(key) is None:
                if (folder / RESULT_FILE).exists():
                    _set_aside(folder)
                for name in sorted(files, key=RESULT_FILE.__eq__):
                    make_folder((folder / name).parent)
                    replace_file(folder / name, files[name])
        return
    with storage_errors(folder):
        make_folder(folder)  # this asks a shared disk anew, which may remember its absence
    if read_whole(key) is None:
        raise NotFoundError(
            f"its worker says that it shares this home, but there is no result in {folder}; if the "
            f"home of the worker is a copy of this one, delete the file results/.id there."
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One algorithm on one dataset, trained with several seeds.

    Attributes:
        algorithm: The algorithm, as it was given.
        dataset: What a worker loads: name and digest, or the path of a view.
        name: Name of the dataset.
        first: Identity of the job of the first seed.
        options: What is asked for with the first seed.
    """

    algorithm: str
    dataset: str
    name: str
    first: JobIdentity
    options: TrainOptions

    def identity(self, seed: int) -> JobIdentity:
        """Return the identity of the job of a seed."""
        config = self.first.config
        if "seed" in config:  # algorithms that draw inside have it among their settings
            config = {**config, "seed": seed}
        return msgspec.structs.replace(self.first, seed=seed, config=config)


def identify(
    algorithm: str, dataset: Dataset, options: TrainOptions, *, episodes: int
) -> JobIdentity:
    """Return all that decides the numbers of a run with these options, of which `steps` are needed."""
    kind = fitting_form(algorithm, dataset)
    check_goal_to_act_for(kind, dataset)
    recipe = recipe_for(algorithm, dataset, preset=options.preset)
    seed, steps = options.seed, options.steps
    assert steps is not None
    settings = {**recipe.settings, **(options.settings or {})}
    config = run_config(kind, settings, steps=steps, seed=seed)
    device = find_device(options.device)
    protocol = scoring_protocol(dataset, episodes, trust_environment=options.trust_environment)
    versions = code_versions()
    return JobIdentity(
        digest=dataset.digest,
        algorithm=algorithm_name(algorithm),
        config=msgspec.json.decode(msgspec.json.encode(config)),
        reward_scale=recipe.rewards.scale,
        reward_shift=recipe.rewards.shift,
        return_range=recipe.rewards.return_range,
        standardize_observations=recipe.standardize_observations,
        seed=seed,
        steps=steps,
        evaluations=options.evaluations,
        curve_episodes=options.curve_episodes,
        protocol=protocol,
        code=run_sources(kind, config),
        versions={name: versions[name] for name in ("numpy", "torch")},
        device=device.partition(":")[0],
        precision=precision_here(options.precision, device),
        keep_checkpoints=options.keep_checkpoints,
    )
