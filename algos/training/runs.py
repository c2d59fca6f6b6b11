"""The folder of a run: one algorithm on one dataset with one seed, and what its files hold.

runs/iql/pointmaze/umaze-v1/seed-0/
  run.json                 dataset and digest, settings, seed, versions
  metrics.jsonl            lines of step, metrics, and returns and metrics if evaluated
  checkpoint.safetensors   all state; resuming from it gives the same numbers as never stopping
  view.json                the view that it was trained on, if it was a view
  tokenizer.json           the tokenizer, if its settings name one
  online-steps.bin         the steps that it took in the environment, if any (`online.py`)
  evaluation.json          the returns of the last evaluation, with their protocol
  checkpoints/             on request, the checkpoint of each point of the learning curve

Checkpoints save all attributes of an algorithm but its constants, which its arguments determine:

    CONSTANTS = ("config", "scaling")      of an algorithm whose class does not name them

State may be networks, tensors,
optimizers with their groups, schedulers, generators of torch and numpy, plain values (numbers,
text, None, lists and dicts of them), and lists and dicts of all these.

A checkpoint holds tensors, named `attribute/key`, and as metadata the plain values in JSON, the format
version, the SHA-256 of `run.json` as it was before the first step, and a SHA-256 of everything. Of algorithms
that are not orlog's, the plain values also hold the states of the global generators. Equal states give equal bytes.

`evaluation.json` has a seal, a SHA-256 of itself and of the files beside it:

    {"step": 600, "returns": [..], "seal": {"files": {"run.json": "3fa9..", ..}, "sha256": "77c0.."}}

A seal finds damage and careless edits. It is no signature: whoever computes it again can state anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import platform
import shlex
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata as packages
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from orlog.algos.algorithms import ALGORITHMS, Algorithm, AlgorithmLike, algorithm_name, is_own
from orlog.algos.settings import check_for_any_form
from orlog.algos.training.data import drawn_state, generator_states, set_generators
from orlog.base.files import NO_ROOM, hash_file, make_folder, replace_file, sync
from orlog.datasets.download.in_place import address_of
from orlog.datasets.home.folders import version_folder
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import (
    AlgorithmError,
    CheckpointError,
    FormatVersionError,
    IntegrityError,
    ManifestError,
    NotFoundError,
    OrlogError,
    StorageError,
    clause,
)
from orlog.manifests.documents import canonical_json, convert_json, parse_json, read_json_file, write_json
from orlog.manifests.names import counted, is_name
from orlog.normalize.metrics import EpisodeOutcomes, of_fields
from orlog.normalize.references import Protocol

PathLike: TypeAlias = str | os.PathLike[str]
Kind = TypeVar("Kind")

RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
CHECKPOINT_FILE = "checkpoint.safetensors"
EVALUATION_FILE = "evaluation.json"
KEPT_FOLDER = "checkpoints"
VIEW_FILE = "view.json"
TOKENIZER_FILE = "tokenizer.json"
ONLINE_FILE = "online-steps.bin"

FINETUNED = "runs/finetune"
"""Where fine-tuned runs lie, unless another folder is given."""
CURVE_EPISODES = 20
ONLINE_SETTINGS = ("step", "prior", "random_steps", "noise")
"""What of an `OnlineRecord` are settings."""

_REPAIR = "restore the file, or train again in another folder"
_FORMAT = 2  # of checkpoints
_GENERATORS = "global generators"  # no attribute can have a name with a space

# --- records


class TrainOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a run is asked for. The command line, Python, sweeps and `run.json` share it.

    Attributes:
        seed: Seed of networks, batches and noise.
        settings: Settings that differ from the recipe's or preset's; None for none.
        steps: Gradient steps; None for the recipe's or preset's.
        preset: Whose settings: one of `orlog.algos.presets.preset_names`; empty for the first.
        evaluations: How often, evenly spread over the run and at its end, a few episodes are run
            for the learning curve and the state is saved; 0 needs no environment and saves 5 times.
            Training is refused where the dataset names no environment, or it cannot be made here.
        curve_episodes: Episodes at each point of the learning curve.
        keep_checkpoints: Whether the checkpoint of each of these points is also kept, in
            `checkpoints/`.
        stream: Whether batches come from the stored blocks as they are read, epoch after epoch, instead of from
            all steps in memory (`orlog.transitions(.., stream=True)`). They are other batches.
        weights: Column by which steps are drawn, `infos/NAME` or `episodes/NAME`; empty where all are as likely.
        trust_environment: Consent to arguments of the environment that come with the data.
        device: Where it computes: `cpu`, `cuda`, `cuda:1`, or `auto` for a GPU if there is one.
        precision: `float32`, or `bf16` for products between hidden layers in bfloat16 where the
            device computes these faster; elsewhere a note says that it trains in float32.
        log: Where the log of metrics is copied to: `none`, `tensorboard` or `wandb`.
    """

    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    settings: dict[str, Any] | None = None
    steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    preset: str = ""
    evaluations: Annotated[int, msgspec.Meta(ge=0)] = 5
    curve_episodes: Annotated[int, msgspec.Meta(ge=1)] = CURVE_EPISODES
    keep_checkpoints: bool = False
    stream: bool = False
    weights: str = ""
    trust_environment: bool = False
    device: str = "cpu"
    precision: str = "float32"
    log: str = "none"


class OnlineRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a run acts in the environment of its dataset while it is trained.

    Attributes:
        run: Folder of the run that it goes on with, as it was given; empty if it starts from nothing.
        checkpoint_sha256: SHA-256 of that run's checkpoint.
        step: Gradient steps that the checkpoint had.
        prior: Share of the dataset in each batch; None gives each step of the dataset and of the
            environment the same chance.
        random_steps: First steps in the environment, with uniform actions and without updates.
        noise: Standard deviation of Gaussian noise on the policy's actions, where the space's bounds
            count as -1 and 1; None explores as the algorithm does.
        warm_up_steps: Steps after these with the policy's actions, and without updates too.
    """

    run: str = ""
    checkpoint_sha256: str = ""
    step: int = 0
    prior: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = 0.5
    random_steps: Annotated[int, msgspec.Meta(ge=0)] = 0
    noise: Annotated[float, msgspec.Meta(ge=0)] | None = None
    warm_up_steps: Annotated[int, msgspec.Meta(ge=0)] = 0


class Earlier(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a record said before its run was told to take more steps."""

    steps: int
    config: dict[str, Any]


class RunRecord(TrainOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `run.json` holds; fields that have a default may be missing there.

    It has the options of the run (`TrainOptions`), with those that a recipe or the machine decides:
    steps, preset, device and precision.

    Attributes:
        algorithm: Name of the algorithm; for one from elsewhere, module and class with a colon.
        dataset: Name of the dataset.
        version: Content version of the dataset.
        digest: Digest of the dataset.
        config: Every setting of the algorithm.
        obs_mean: Subtracted from each number of the flattened observation.
        obs_std: Divisor of each number of the flattened observation after that.
        versions: Versions of orlog, torch, numpy and python in training.
        source: Source of its steps, settings and transforms.
        reward_scale: In training, `reward_scale * reward + reward_shift` stands for a reward.
        reward_shift: See `reward_scale`.
        standardize_observations: Whether `obs_mean` and `obs_std` are those of the dataset;
            if not, they are 0 and 1, which leaves observations as they are.
        online: How it acts in the environment; None for a run that learns from the dataset alone.
        imports: Modules that were imported to register environments (`--import`). They stand in the
            commands that orlog prints for the run, and are never imported because they stand here.
        code: What shows whether it was trained by the code that is here
            (`orlog.base.code_version.sources_digest`).
        later_code: The same of each other code with which it went on after a stop, in order.
        earlier: Steps and settings that it had before it was told to take more steps, in order.
    """

    algorithm: str
    dataset: str
    version: str
    digest: str
    seed: Annotated[int, msgspec.Meta(ge=0)]
    steps: Annotated[int, msgspec.Meta(ge=1)]
    config: dict[str, Any]
    settings: dict[str, Any]
    obs_mean: list[float]
    obs_std: list[Annotated[float, msgspec.Meta(gt=0)]]
    versions: dict[str, str]
    source: str = ""
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    standardize_observations: bool = True
    online: OnlineRecord | None = None
    imports: tuple[str, ...] = ()
    code: str = ""
    later_code: tuple[str, ...] = ()
    earlier: tuple[Earlier, ...] = ()
    precision: Literal["float32", "bf16"] = "float32"

    @property
    def shown_dataset(self) -> str:
        """Name of the dataset for people; that of a rebuild has its version."""
        return f"{self.dataset}@{self.version}" if "+" in self.version else self.dataset

    @property
    def codes(self) -> tuple[str, ...]:
        """Every code that trained it, in order."""
        return (self.code, *self.later_code)

    @property
    def every_setting(self) -> dict[str, Any]:
        """All that runs of one algorithm on one dataset can differ in, apart from the seed.

        Settings of the algorithm, steps, preset, how rewards and observations are transformed, device, precision and
        streaming, and as `online_..` how it acts in the environment.
        """
        settings = {name: value for name, value in self.config.items() if name != "seed"}
        names = ("steps", "preset", "reward_scale", "reward_shift", "standardize_observations")
        settings |= {name: getattr(self, name) for name in names}
        settings |= {"device": self.device.partition(":")[0], "precision": self.precision}
        if self.stream:
            settings["stream"] = True
        if self.weights:
            settings["weights"] = self.weights
        if self.online is not None:
            # An algorithm that starts in the environment has settings of the same names.
            own = [name for name in ONLINE_SETTINGS if self.online.run or name not in self.config]
            settings |= {f"online_{name}": getattr(self.online, name) for name in own}
            if self.online.warm_up_steps:
                settings["online_warm_up_steps"] = self.online.warm_up_steps
        return settings

    def options(self) -> TrainOptions:
        """Return the options that make this run again."""
        return TrainOptions(**{name: getattr(self, name) for name in TrainOptions.__struct_fields__})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A trained run. It can be given wherever the path of a run's folder can.

    Attributes:
        folder: Its folder, with all files.
        record: What its `run.json` holds: settings, transforms, digest of the dataset, versions.
    """

    folder: Path
    record: RunRecord

    def __fspath__(self) -> str:
        """Return the path of its folder."""
        return str(self.folder)


def as_path(path: PathLike) -> Path:
    """Return a path that was given as text or as a path."""
    return Path(path).expanduser()


def run_folder(root: PathLike, algorithm: AlgorithmLike, dataset: Dataset, seed: int) -> Path:
    """Return the default folder of a run: below `root`, with a folder of its own for each view."""
    folder = as_path(root) / algorithm_name(algorithm).rpartition(":")[2] / dataset.name
    if dataset.operation is not None:
        try:
            name = dataset.folder.stem
        except NotFoundError:  # saved nowhere
            name = "view"
        folder /= f"{name}-{dataset.digest.removeprefix('sha256:')[:12]}"
    return folder / f"seed-{seed}"


def read_run(folder: PathLike) -> RunRecord:
    """Return the record of a run."""
    path = as_path(folder) / RUN_FILE
    if not path.exists():
        raise NotFoundError(f"{folder} is not the folder of a run: there is no {RUN_FILE} in it.")
    record = read_json_file(path, RunRecord, version=("run_version", 1), repair=_REPAIR)
    wrong = ""
    if not is_name(record.dataset):  # a path or an address would be opened
        wrong = f"dataset {record.dataset!r:.80} is not the name of a dataset"
    # Algorithms from elsewhere are not imported here: a record may come from anyone.
    elif ":" not in record.algorithm and record.algorithm not in ALGORITHMS:
        wrong = f"no algorithm {record.algorithm!r} in this orlog, which has {', '.join(ALGORITHMS)}"
    if wrong:
        raise ManifestError(f"{path}: {wrong}; {_REPAIR}.", file=str(path))
    if ":" not in record.algorithm:
        check_config(folder, record, record.algorithm)
    return record


def check_config(folder: PathLike, record: RunRecord, algorithm: AlgorithmLike) -> None:
    """Refuse a record whose settings the algorithm does not have."""
    try:
        check_for_any_form(algorithm, record.config)
    except ValueError as error:
        path = as_path(folder) / RUN_FILE
        raise ManifestError(f"{path}: config: {clause(error)}; {_REPAIR}.", file=str(path)) from error


def write_record(folder: Path, record: RunRecord) -> None:
    """Write `run.json`."""
    replace_file(folder / RUN_FILE, _record_bytes(msgspec.to_builtins(record)), alone=False)


def _record_bytes(fields: dict[str, Any]) -> bytes:
    # Algorithm and dataset come first, which a reader looks for; what a run does not have is left out.
    body = {name: fields[name] for name in ("algorithm", "dataset") if name in fields} | fields
    for name in ("online", "stream", "weights", "later_code", "earlier"):
        if not body.get(name):
            body.pop(name, None)
    return (json.dumps(body, indent=1, allow_nan=False) + "\n").encode()


def record_sha256(folder: Path) -> str:
    """Return the SHA-256 of `run.json` as it was before the first step, which checkpoints and evaluations name.

    By which other code a run went on and that it takes more steps is added later, so that is not in it.
    """
    data = (folder / RUN_FILE).read_bytes()
    if b'"later_code"' in data or b'"earlier"' in data:
        body = parse_json(data)
        body |= {"later_code": [], **next(iter(body.pop("earlier", [])), {})}
        data = _record_bytes(body)
    return hashlib.sha256(data).hexdigest()


# --- the log


def log_metrics(folder: Path, line: Mapping[str, Any]) -> None:
    """Append a line to the log; the file is opened each time, so that closing cannot fail later."""
    with (folder / METRICS_FILE).open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


def read_metrics(folder: PathLike) -> list[dict[str, Any]]:
    """Return the logged lines; a last line that a kill cut off is left out."""
    return [body for _, body in _log_lines(folder)]


def keep_metrics(folder: Path, step: int) -> list[dict[str, Any]]:
    """Drop lines logged after a step, because they will be logged again; return the others."""
    path = folder / METRICS_FILE
    lines = [(line, body) for line, body in _log_lines(folder) if body["step"] <= step] if path.exists() else []
    data = b"".join(line for line, _ in lines)
    if not path.exists() or path.read_bytes() != data:
        replace_file(path, data)
    return [body for _, body in lines]


def _log_lines(folder: PathLike) -> list[tuple[bytes, dict[str, Any]]]:
    """Return the complete lines of a log, each as it is and parsed."""
    path, lines = as_path(folder) / METRICS_FILE, []
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFoundError(f"{path}: no readable metrics: {error.strerror or error}.") from error
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            continue
        try:
            body, reason = json.loads(line), "has no whole number 'step'"
        except (ValueError, RecursionError) as error:
            body, reason = None, f"is not JSON: {error}"
        if not isinstance(body, dict) or type(body.get("step")) is not int:
            advice = "remove the line, or train again in another folder"
            raise IntegrityError(f"{path}: line {number} {reason}; {advice}.", file=str(path))
        lines.append((line, body))
    return lines


# --- evaluations


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Returns of a trained policy: last checkpoint; it acts without chance, or by draws that are always the same.

    Attributes:
        step: Gradient steps that the policy had taken.
        protocol: How the returns were measured.
        returns: Undiscounted return of each episode.
        successes: Whether each episode succeeded; None if the environment does not tell.
        processor: Name of the processor.
        metrics: What other metrics counted in each episode (`orlog/normalize/metrics.py`), by their names.
    """

    step: int
    protocol: Protocol
    returns: list[float]
    successes: list[bool] | None = None
    processor: str = ""
    metrics: dict[str, list[bool | float | list[float]]] = {}

    @property
    def counted(self) -> dict[str, np.ndarray]:
        """What every metric counted in each episode, by its name."""
        return of_fields(msgspec.structs.asdict(self))

    def played(self, record: RunRecord) -> EpisodeOutcomes:
        """Return what came of the episodes of a run, for `numbers_of`."""
        returns = np.array(self.returns, float)
        return EpisodeOutcomes(returns=returns, metrics=self.counted, dataset=record.dataset, settings=record.config)


class _Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    files: dict[str, str]
    sha256: str


def write_sealed(path: Path, body: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Write a JSON document with its seal; `files` are the hex SHA-256 of files beside it by name."""
    write_json(path, {**body, "seal": {"files": dict(files), "sha256": _sealed_sha256(body, files)}})


def read_sealed(path: Path, kind: type[Kind], *, version: tuple[str, int], repair: str) -> tuple[Kind, dict[str, str]]:
    """Return the content of a sealed file, and the hex SHA-256 that it states of the files beside it.

    Arguments are those of `read_json_file`. A file that is not what was sealed is refused.
    """
    files: dict[str, str] = {}

    def opened(body: Any) -> Any:
        if not isinstance(body, dict) or "seal" not in body:
            raise ValueError("its seal is missing")
        seal = convert_json(body.pop("seal"), _Seal)
        files.update(seal.files)
        if outside := [name for name in files if Path(name).name != name]:
            raise ValueError(f"its seal names {outside[0]!r:.80}, which is no file beside it")
        if _sealed_sha256(body, files) != seal.sha256:
            raise ValueError("its content does not have the SHA-256 that it states: it is damaged or was edited")
        return body

    return read_json_file(path, kind, version=version, repair=repair, opened=opened), files


def _sealed_sha256(body: Mapping[str, Any], files: Mapping[str, str]) -> str:
    return hashlib.sha256(canonical_json({**body, "seal": {"files": dict(files)}})).hexdigest()


def write_evaluation(folder: Path, evaluation: Evaluation) -> None:
    """Write the last evaluation of a run, with a seal of itself and of the run's files."""
    files = _hashes(folder, evaluation.step, (RUN_FILE, METRICS_FILE, CHECKPOINT_FILE))
    write_sealed(folder / EVALUATION_FILE, msgspec.to_builtins(evaluation), files)


def read_evaluation(folder: PathLike, *, with_checkpoint: bool = False) -> Evaluation:
    """Return the last evaluation of a run, once it and the files beside it are shown unchanged."""
    folder = as_path(folder)
    repair = f"run again: orlog evaluate {folder}"
    path, version = folder / EVALUATION_FILE, ("evaluation_version", 1)
    evaluation, sealed = read_sealed(path, Evaluation, version=version, repair=repair)
    if not with_checkpoint or _has_gone_on(folder, evaluation.step):
        sealed.pop(CHECKPOINT_FILE, None)
    check_files(folder, sealed, _hashes(folder, evaluation.step, sealed), EVALUATION_FILE)
    return evaluation


def check_files(folder: Path, sealed: Mapping[str, str], there: Mapping[str, str], by: str) -> None:
    """Refuse a folder where a file is not what another file of it has sealed."""
    for name, expected in sealed.items():
        if there.get(name) != expected:
            path = folder / name
            raise ManifestError(
                f"{path}: {'is not what it was' if path.exists() else 'is missing'}, so it is damaged or was edited: "
                f"{by} beside it states the SHA-256 {expected[:12]}..; {_REPAIR}.",
                file=str(path),
            )


def _hashes(folder: Path, step: int, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files of a run, of its log up to a step; without those not there."""
    hashes = {}
    for name in names:
        if not (folder / name).is_file() or (name == CHECKPOINT_FILE and _has_gone_on(folder, step)):
            continue
        if name == METRICS_FILE:  # whose lines up to the step stay as they are when a run goes on
            lines = (line for line, body in _log_lines(folder) if body["step"] <= step)
            hashes[name] = hashlib.sha256(b"".join(lines)).hexdigest()
        else:
            hashes[name] = record_sha256(folder) if name == RUN_FILE else hash_file(folder / name)
    return hashes


def _has_gone_on(folder: Path, step: int) -> bool:
    """Whether a run has been trained beyond a step, so that its checkpoint is another one."""
    return has_checkpoint(folder) and saved_step(folder) != step


# --- the state of an algorithm


def state_names(algorithm: Any) -> list[str]:
    """Return the attributes that are saved: those that `STATE` names, or all but the constants."""
    constants = getattr(algorithm, "CONSTANTS", ("config", "scaling"))
    return [*getattr(algorithm, "STATE", (name for name in vars(algorithm) if name not in constants))]


class _Part(NamedTuple):
    """A piece of state that is saved as one: a network, an optimizer, a number .."""

    name: str
    value: Any
    replace: Callable[[Any], object]


_KINDS = (
    nn.Module,
    Tensor,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.Generator,
    np.random.Generator,
)


def _parts(algorithm: Any) -> Iterator[_Part]:
    kind = type(algorithm).__name__
    for name in state_names(algorithm):
        yield from _inside(kind, name, getattr(algorithm, name), functools.partial(setattr, algorithm, name))


def _inside(kind: str, name: str, value: Any, replace: Callable[[Any], object]) -> Iterator[_Part]:
    if isinstance(value, _KINDS) or _is_plain(value):
        yield _Part(name, value, replace)
    elif type(value) is list or (type(value) is dict and all(type(key) is str for key in value)):
        for key, item in enumerate(value) if isinstance(value, list) else value.items():
            yield from _inside(kind, f"{name}/{key}", item, functools.partial(value.__setitem__, key))
    else:
        raise _cannot_save(kind, name, value)


def _cannot_save(kind: str, name: str, value: Any) -> AlgorithmError:
    return AlgorithmError(
        f"{kind}.{name}: checkpoints cannot save a {type(value).__name__}; name it in {kind}.CONSTANTS if "
        f"{kind}'s arguments determine it."
    )


def _is_plain(value: Any) -> bool:
    """Whether a value survives JSON unchanged; Python's JSON keeps every bit of a float."""
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _leaves(part: _Part) -> Iterator[tuple[str, Any]]:
    name = part.name
    match part.value:
        case nn.Module() as module:
            saved = module.state_dict()
            for key, _ in module.named_buffers():
                if key not in saved:
                    raise AlgorithmError(
                        f"{name}/{key}: checkpoints would not save this buffer; register it with persistent=True."
                    )
            yield from ((f"{name}/{key}", value) for key, value in saved.items())
        case torch.optim.Optimizer() as optimizer:
            whole = optimizer.state_dict()
            for index, state in whole["state"].items():
                yield from ((f"{name}/{index}/{key}", value) for key, value in state.items())
            yield f"{name}/groups", [_plain_group(group) for group in whole["param_groups"]]
        case torch.optim.lr_scheduler.LRScheduler() as scheduler:
            yield from ((f"{name}/{key}", value) for key, value in scheduler.state_dict().items())
        case torch.Generator() as generator:
            yield name, generator.get_state()
        case np.random.Generator() as generator:
            yield name, generator.bit_generator.state
        case value:
            yield name, value


def _plain_group(group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a group of parameters, with only the number of its parameters."""
    plain = {key: list(value) if type(value) is tuple else value for key, value in group.items()}
    return {**plain, "params": len(group["params"])}


def _snapshot(algorithm: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for part in _parts(algorithm):
        for name, leaf in _leaves(part):
            if name in tensors or name in values:
                raise AlgorithmError(f"{type(algorithm).__name__}.{name}: two parts have this name.")
            if isinstance(leaf, Tensor):
                # A copy: tensors in one file must not share memory, but tied weights do.
                tensors[name] = leaf.detach().cpu().clone(memory_format=torch.contiguous_format)
            elif _is_plain(leaf):
                values[name] = leaf
            else:
                raise _cannot_save(type(algorithm).__name__, name, leaf)
    return tensors, values


@torch.no_grad()
def _restore(part: _Part, tensors: dict[str, Tensor], values: dict[str, Any], moments: dict[int, Any]) -> None:
    name = part.name
    match part.value:
        case nn.Module() as module:
            module.load_state_dict({key: tensors[f"{name}/{key}"] for key in module.state_dict()})
        case Tensor() as tensor:
            tensor.copy_(tensors[name])
        case torch.optim.Optimizer() as optimizer:
            groups = optimizer.state_dict()["param_groups"]
            for group, saved in zip(groups, values[f"{name}/groups"], strict=True):
                # Another version of torch may know settings that this one does not.
                for key in ({*group} & {*saved}) - {"params"}:
                    group[key] = tuple(saved[key]) if type(group[key]) is tuple else saved[key]
            optimizer.load_state_dict({"state": moments, "param_groups": groups})
        case torch.optim.lr_scheduler.LRScheduler() as scheduler:
            scheduler.load_state_dict({key: values[f"{name}/{key}"] for key in scheduler.state_dict()})
        case torch.Generator() as generator:
            generator.set_state(tensors[name])
        case np.random.Generator() as numbers:
            numbers.bit_generator.state = values[name]
        case _:
            part.replace(values[name])


def check_state(algorithm: Any) -> None:
    """Refuse an algorithm if a checkpoint would lose some of its attributes."""
    _snapshot(algorithm)


def first_not_finite(algorithm: Any) -> str:
    """Return the name of a part of the state that training made NaN or infinite; empty if none is.

    Buffers and tensors that are no parameters may hold infinities, as masks do, but no NaN.
    """
    for part in _parts(algorithm):
        parameters = set()
        if isinstance(part.value, nn.Module):
            parameters = {f"{part.name}/{name}" for name, _ in part.value.named_parameters()}
        for name, leaf in _leaves(part):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                continue
            is_bounded = name in parameters or isinstance(part.value, torch.optim.Optimizer | nn.Parameter)
            if not bool((leaf.isfinite() if is_bounded else ~leaf.isnan()).all()):
                return name
    return ""


def first_difference(reference: Any, other: Any) -> str:
    """Return the name of what differs first in the states of two algorithms; empty if nothing does.

    Among constants, generators of torch, NumPy and Python are compared.
    """
    for name, value in vars(reference).items():
        if drawn_state(value) != drawn_state(vars(other).get(name)):
            return str(name)
    states = []
    for algorithm in (reference, other):
        tensors, values = _snapshot(algorithm)
        texts = {name: json.dumps(value) for name, value in values.items()}
        states.append(texts | {name: _sha256({name: tensor}, {}) for name, tensor in tensors.items()})
    first, second = states
    return next((name for name in sorted({*first, *second}) if first.get(name) != second.get(name)), "")


def _device_of(algorithm: Any) -> torch.device:
    """Return the GPU that holds some of an algorithm's state, or the CPU."""
    leaves = (leaf for part in _parts(algorithm) for _, leaf in _leaves(part))
    devices = (leaf.device for leaf in leaves if isinstance(leaf, Tensor) and leaf.device.type == "cuda")
    return next(devices, torch.device("cpu"))


# --- checkpoints


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a run continues: steps and seconds of training until then."""

    step: int = 0
    sums: dict[str, float] = dataclasses.field(default_factory=dict)  # of the metrics since the last line of the log
    seconds: float = 0.0
    online: dict[str, str] = dataclasses.field(default_factory=dict)  # of the steps in the environment (`online.py`)


def save_state(algorithm: Algorithm, folder: Path, position: Position) -> None:
    """Write a run's checkpoint, once every line that was logged before it is durable."""
    metadata = {"step": str(position.step), "run_sha256": record_sha256(folder), **position.online}
    if position.sums:
        # Only for a save between two lines of the log, whose place depends on time. All other
        # checkpoints of equal runs are equal files.
        metadata["sums"] = json.dumps(position.sums)
        metadata["seconds"] = repr(position.seconds)
    sync(folder / METRICS_FILE)
    save_checkpoint(algorithm, folder / CHECKPOINT_FILE, metadata=metadata, generators=is_own(type(algorithm)))


def load_state(algorithm: Algorithm, folder: Path, *, to_act: bool = False, path: Path | None = None) -> Position:
    """Load a run's checkpoint into an algorithm and return the run's position.

    With `to_act` it is not to go on training, so another device than the one that trained will do.
    `path` names one of `kept_checkpoints` instead of the last.
    """
    path = path or folder / CHECKPOINT_FILE
    metadata = load_checkpoint(algorithm, path, check=functools.partial(check_record, folder, path), to_act=to_act)
    try:
        return Position(
            step=int(metadata["step"]),
            sums=convert_json(json.loads(metadata.get("sums", "{}")), dict[str, float]),
            seconds=float(metadata.get("seconds", 0)),
            online={key: value for key, value in metadata.items() if key.startswith("online_")},
        )
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the checkpoint's metadata cannot be read: {error!r}; {_REPAIR}.") from error


def check_record(folder: Path, path: Path, metadata: Mapping[str, str]) -> None:
    """Refuse a checkpoint whose metadata name another `run.json` than that of its folder."""
    if metadata.get("run_sha256") != record_sha256(folder):
        raise CheckpointError(f"{path}: the checkpoint belongs to another {RUN_FILE}, or that was edited; {_REPAIR}.")


def has_checkpoint(folder: PathLike) -> bool:
    """Whether a run has been saved in a folder."""
    return (as_path(folder) / CHECKPOINT_FILE).exists()


def saved_step(folder: PathLike) -> int | None:
    """Return the step of a run's checkpoint, without reading the rest of it; None if there is none."""
    if not has_checkpoint(folder):
        return None
    path = as_path(folder) / CHECKPOINT_FILE
    step = checkpoint_metadata(path).get("step", "")
    if not step.isdecimal():
        raise CheckpointError(f"{path}: the checkpoint does not say its step; {_REPAIR}.")
    return int(step)


def keep_checkpoint(folder: Path, step: int) -> None:
    """Keep a copy of a run's checkpoint, which the next one would replace."""
    kept = folder / KEPT_FOLDER
    make_folder(kept)
    replace_file(kept / f"step-{step:09}.safetensors", (folder / CHECKPOINT_FILE).read_bytes())


def kept_checkpoints(folder: PathLike) -> dict[int, Path]:
    """Return the checkpoints that a run has kept, by step; or the last one, if it kept none."""
    folder = as_path(folder)
    paths = {path.stem.removeprefix("step-"): path for path in (folder / KEPT_FOLDER).glob("step-*.safetensors")}
    kept = {int(step): path for step, path in sorted(paths.items()) if step.isdecimal()}
    last = saved_step(folder)
    return kept or ({} if last is None else {last: folder / CHECKPOINT_FILE})


def save_checkpoint(algorithm: Any, path: Path, *, metadata: dict[str, str], generators: bool = False) -> None:
    """Write an algorithm's state; a file at `path` is replaced only once the new one is durable.

    With `generators` it also holds the states of the global generators (`data.py`).
    """
    tensors, values = _snapshot(algorithm)
    if generators:
        values[_GENERATORS] = generator_states(_device_of(algorithm))
    metadata = {**metadata, "checkpoint_format": str(_FORMAT), "state": json.dumps(values, sort_keys=True)}
    metadata["sha256"] = _sha256(tensors, metadata)
    data = save(tensors, metadata)
    (length,) = struct.unpack_from("<Q", data)
    # safetensors orders the tensors, but writes metadata in an order that varies by process.
    header = {**json.loads(data[8 : 8 + length]), "__metadata__": dict(sorted(metadata.items()))}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    replace_file(path, b"".join([struct.pack("<Q", len(text)), text, memoryview(data)[8 + length :]]))


def load_checkpoint(
    algorithm: Any,
    path: Path,
    *,
    check: Callable[[dict[str, str]], None] = lambda _metadata: None,
    to_act: bool = False,
) -> dict[str, str]:
    """Fill an algorithm of the same configuration with a saved state; return the metadata, which `check` may refuse.

    An algorithm whose checkpoint is refused stays as it was. With `to_act` it is not to go on training, so
    generators of another kind of device stay as they are.
    """
    tensors, metadata = _read_checkpoint(path)
    check(metadata)
    del metadata["checkpoint_format"]
    try:
        values = convert_json(json.loads(metadata.pop("state")), dict[str, Any])
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the checkpoint's metadata 'state' cannot be read: {error}.") from error
    states, parts = values.pop(_GENERATORS, None), [*_parts(algorithm)]
    fresh, plain = _snapshot(algorithm)
    moments: dict[str, dict[int, dict[str, Any]]] = {}
    expected: dict[str, Any] = {}
    saved: dict[str, Any] = {}
    for part in parts:
        name = part.name
        if isinstance(part.value, torch.optim.Optimizer):
            # What an optimizer holds depends on the steps that it took, so its moments are compared with its parameters.
            _take_moments(name, fresh, plain)
            moments[name] = _take_moments(name, tensors, values)
            groups = part.value.param_groups
            parameters = [parameter for group in groups for parameter in group["params"]]
            shapes = {index: (*parameter.shape,) for index, parameter in enumerate(parameters)}
            for index, state in moments[name].items():
                for key, value in state.items():
                    shape = (*value.shape,) if isinstance(value, Tensor) else ()
                    saved[f"{name}/{index}/{key}"] = shape
                    expected[f"{name}/{index}/{key}"] = (
                        shape if not shape and index < len(shapes) else shapes.get(index)
                    )
            expected[f"the sizes of {name}"] = [len(group["params"]) for group in groups]
            saved[f"the sizes of {name}"] = [group["params"] for group in values.get(f"{name}/groups", [])]
        elif to_act and isinstance(part.value, torch.Generator) and name in tensors:
            is_of_device = tensors[name].shape == fresh[name].shape
            tensors[name] = tensors[name] if is_of_device else fresh[name]
    for table, leaves, others in ((expected, fresh, plain), (saved, tensors, values)):
        table |= {name: f"{tensor.dtype} {(*tensor.shape,)}" for name, tensor in leaves.items()}
        table |= dict.fromkeys(others, "a plain value")
    for name in sorted({*expected, *saved}):
        if expected.get(name) != saved.get(name):
            raise CheckpointError(
                f"{path}: the checkpoint is of another configuration: {name} is {saved.get(name, 'missing')}, expected "
                f"{expected.get(name, 'missing')}."
            )
    if states is not None and not to_act:
        try:
            set_generators(states, _device_of(algorithm))
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}.") from error
    for part in parts:
        _restore(part, tensors, values, moments.get(part.name, {}))
    return metadata


def _take_moments(optimizer: str, tensors: dict[str, Tensor], values: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Remove and return the values that an optimizer holds for each parameter."""
    moments: dict[int, dict[str, Any]] = {}
    for leaves in (tensors, values):
        for name in [name for name in leaves if name.startswith(f"{optimizer}/")]:
            index, _, key = name.removeprefix(f"{optimizer}/").partition("/")
            if index.isdecimal():
                moments.setdefault(int(index), {})[key] = leaves.pop(name)
    return moments


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise CheckpointError(f"{path}: not a readable checkpoint: it is not a file.")
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a readable checkpoint: {error}.") from error


def checkpoint_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a checkpoint without reading its tensors, so unchecked."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


def verify_checkpoint(path: Path) -> dict[str, str]:
    """Read all of a checkpoint, and return its metadata once they and its tensors are shown whole."""
    return _read_checkpoint(path)[1]


def _read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and metadata of a checkpoint, its checksum checked and removed."""
    metadata = checkpoint_metadata(path)
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    written = metadata.get("checkpoint_format", "")
    if not written.isdecimal() or int(written) < _FORMAT:
        raise CheckpointError(f"{path}: not a checkpoint of orlog: its checkpoint_format is {written!r:.40}.")
    if int(written) > _FORMAT:
        raise FormatVersionError(
            f"{path}: checkpoint_format {written} is newer than this orlog reads ({_FORMAT}); run: "
            "pip install --upgrade orlog"
        )
    if metadata.pop("sha256", None) != _sha256(tensors, metadata):
        raise CheckpointError(f"{path}: the checkpoint is damaged: its sha256 does not match its content.")
    return tensors, metadata


def _sha256(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Return the hex SHA-256 of metadata, names, shapes and numbers; safetensors has no hash."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# --- going on with a run

MAY_DIFFER = (
    *("dataset", "version", "preset", "source", "settings", "log", "trust_environment", "versions"),
    *("obs_mean", "obs_std", "imports", "code", "later_code", "earlier"),
)
"""Fields that may differ where a run goes on; its record keeps those that it began with."""


def check_folder(folder: Path, *, resume: bool) -> None:
    """Refuse a folder with a run that is not to be resumed, or that lacks a file."""
    has_record = (folder / RUN_FILE).exists()
    if not resume and (has_record or has_checkpoint(folder)):
        raise FileExistsError(
            f"{folder} holds a run already; continue (resume=True), replace it (overwrite=True), or name another folder."
        )
    if has_checkpoint(folder) and not has_record:
        raise NotFoundError(
            f"{folder / RUN_FILE} is missing, and without it {CHECKPOINT_FILE} cannot be used; "
            "restore it, or train in another folder."
        )


def check_same_run(folder: Path, record: RunRecord, note: Callable[[str], None] = lambda _text: None) -> RunRecord:
    """Return the record in a folder, with the steps of `record`; refuse to continue where it is of another run.

    A run may take more steps than it was first told to. What its settings hold of these is that of all steps then.
    """
    there = read_run(folder)
    if record.steps > there.steps:
        config, earlier = dict(there.config), Earlier(steps=there.steps, config=there.config)
        if config.get("steps") == there.steps and record.config.get("steps") == record.steps:
            config["steps"] = record.steps
            note(
                f"{folder}: began as a run of {counted(there.steps, 'step')}. Its learning rate follows a schedule over "
                f"all steps, so it will not equal a run that was one of {record.steps:,} from the start."
            )
        there = msgspec.structs.replace(there, steps=record.steps, config=config, earlier=(*there.earlier, earlier))
    for name in [name for name in RunRecord.__struct_fields__ if name not in MAY_DIFFER]:
        has, given = ({name: getattr(run, name)} for run in (there, record))
        if name == "device":  # the numbers of its generators fit any device of the same kind
            has, given = ({name: fields[name].partition(":")[0]} for fields in (has, given))
        if has == given:
            continue
        if name in ("config", "online"):
            has, given = (msgspec.to_builtins(fields[name]) or {} for fields in (has, given))
        differ = [key for key in {**has, **given} if has.get(key) != given.get(key)]
        first, second = (", ".join(f"{key} {setting_text(some.get(key))}" for key in differ) for some in (has, given))
        again = f"give {name}={has[name]}" if name in TrainOptions.__struct_fields__ else "give the options that it has"
        raise FileExistsError(
            f"{folder} holds a run with {first}, not {second}; to continue it, {again}, or take all its options from "
            f"its record: {resume_command(folder, there)}; or choose another folder."
        )
    began = [(name, getattr(there, name), getattr(record, name)) for name in ("version", "preset", "log")]
    shared = sorted({*there.versions} & {*record.versions})
    began += [(name, there.versions[name], record.versions[name]) for name in shared]
    for name, before, now in began:
        if before != now:
            unequal = ": it may not equal a run that was never stopped" if name in shared else ""
            note(f"{folder}: began with {name} {before or 'none'}, and goes on with {now}{unequal}.")
    if there.codes[-1] and there.codes[-1] != record.code:
        note(
            f"{folder}: goes on with other code of its algorithm or of orlog than trained it so far, and will say so "
            "in run.json: it may not equal a run that was never stopped."
        )
    return there


def note_code(folder: Path, code: str) -> None:
    """Let the record of a run say that it goes on with this code, if another one trained it so far."""
    record = read_run(folder)
    if record.codes[-1] != code:
        write_record(folder, msgspec.structs.replace(record, later_code=(*record.later_code, code)))


def code_versions() -> dict[str, str]:
    """Return the versions of the packages that compute a run."""
    return {
        "numpy": np.__version__,
        "orlog": packages.version("orlog"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


@contextlib.contextmanager
def write_errors(folder: Path, saved_step: int | None) -> Iterator[None]:
    """Turn errors of a full or unwritable disk into a StorageError: what was saved, what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OrlogError):
            raise
        stands = "it has no checkpoint yet" if saved_step is None else f"its checkpoint of step {saved_step:,} is kept"
        advice = "free some space" if error.errno in NO_ROOM else "make it writable"
        raise StorageError(
            f"{folder}: cannot write the run: {error.strerror or error}; {stands}; {advice}, "
            "then do the same again with resume=True.",
            errno=error.errno,
        ) from error


# --- what to type next


def run_command(
    folder: Path, record: RunRecord, *, dataset: Dataset | None = None, algorithm: str = "", more: Sequence[str] = ()
) -> str:
    """Return the command that makes a run again, with every option and `more` words.

    `dataset` and `algorithm` are only needed where the record does not find them.
    """
    algorithm = algorithm or _word_of(record.algorithm)
    if record.online is not None and record.online.run:
        online = record.online
        words = ["orlog", "finetune", online.run]
        words += _option_words(record, leave_out=("seed", "preset", "precision", "keep_checkpoints", "curve_episodes"))
        words += ["--prior", "even" if online.prior is None else f"{online.prior:g}"]
        words += ["--random-steps", str(online.random_steps)]
        words += ["--warm-up-steps", str(online.warm_up_steps)]
        words += [] if online.noise is None else ["--noise", f"{online.noise:g}"]
        words += ["--algorithm", algorithm] if ":" in record.algorithm else []
        words += dataset_words(dataset)
    else:
        name = f"{record.dataset}@{record.version}"
        if (folder / VIEW_FILE).exists():
            name = str(folder / VIEW_FILE)
        elif dataset is not None and not is_at_home(dataset):
            name = _place_of(dataset)
        words = ["orlog", "train", algorithm, name, *_option_words(record)]
    return shlex.join([*words, "--out", str(folder), *more, *_import_words(record)])


def resume_command(
    folder: Path, record: RunRecord, dataset: Dataset | None = None, algorithm: str = "", more: Sequence[str] = ()
) -> str:
    """Return the command that goes on with a run, or starts it where it has no checkpoint; see `run_command`."""
    if (record.online is not None and record.online.run) or dataset_words(dataset):
        return run_command(folder, record, dataset=dataset, algorithm=algorithm, more=["--resume", *more])
    # Code that a record names is not run, and consent is not taken from a file.
    own = [algorithm or _word_of(record.algorithm)] if ":" in record.algorithm else []
    consent = ["--trust-environment"] if record.trust_environment else []
    return shlex.join(["orlog", "train", "--resume", *own, str(folder), *consent, *more, *_import_words(record)])


def evaluate_command(
    folder: Path, record: RunRecord, dataset: Dataset, algorithm: str | None, trust_environment: bool
) -> str:
    """Return the command that evaluates a run; `algorithm` names one that is not orlog's."""
    words = ["orlog", "evaluate", str(folder), *dataset_words(dataset)]
    words += [] if algorithm is None else ["--algorithm", algorithm]
    words += ["--trust-environment"] if trust_environment else []
    return shlex.join([*words, *_import_words(record)])


def dataset_words(dataset: Dataset | None) -> list[str]:
    """Return the option that names the dataset of a run, where its record does not find it."""
    if dataset is None or dataset.operation is not None or is_at_home(dataset):
        return []
    return ["--dataset", _place_of(dataset)]


def _import_words(record: RunRecord) -> list[str]:
    return [word for module in record.imports for word in ("--import", module)]


def _option_words(record: RunRecord, *, leave_out: Sequence[str] = ()) -> list[str]:
    """Return options as words of a command; all but those that are left out or the default."""
    words, usual = [], TrainOptions()
    for name in TrainOptions.__struct_fields__:
        value, flag = getattr(record, name), "--" + name.replace("_", "-")
        if name in leave_out or (value == getattr(usual, name) and name not in ("seed", "evaluations")):
            continue
        if name == "settings":
            words += [word for key in value for word in ("--set", f"{key}={setting_text(value[key])}")]
        else:
            words += [flag] if value is True else [flag, str(value)]
    return words


def setting_text(value: object) -> str:
    """Return a setting as --set takes it."""
    if isinstance(value, list | tuple):
        text = ",".join(map(setting_text, value))
        return text if len(value) > 1 else f"[{text}]"  # 64 alone would be a number
    return "none" if value is None else str(value)


def is_at_home(dataset: Dataset) -> bool:
    """Whether a dataset is found by its name: on this machine, or where its registry has it."""
    if dataset.in_place:
        return not address_of(dataset.folder)
    versions = {dataset.version, dataset.manifest.version}  # that of a rebuild has its mark
    return dataset.folder.resolve() in {version_folder(dataset.name, version).resolve() for version in versions}


def _place_of(dataset: Dataset) -> str:
    """Return the folder of a dataset, or the URL at which it is read in place."""
    return (dataset.in_place and address_of(dataset.folder)) or str(dataset.folder)


def _word_of(algorithm: str) -> str:
    """Return what names an algorithm; a record has the name of a file of one's own without `.py`."""
    module, colon, name = algorithm.rpartition(":")
    return f"{module}.py:{name}" if colon and "." not in module else algorithm
