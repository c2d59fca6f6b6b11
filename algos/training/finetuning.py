"""Goes on with a trained run in the environment of its dataset, whose steps stay in the batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from orlog.algos.algorithms import Algorithm, AlgorithmLike
from orlog.algos.settings import make_config, of_run
from orlog.algos.training.checkpoint import state_names
from orlog.algos.training.commands import FINETUNED
from orlog.algos.training.devices import device_versions, find_device, put_arrays
from orlog.algos.training.evaluating import find_run, scoring_protocol
from orlog.algos.training.generators import TRAINING, seeded
from orlog.algos.training.online import OnlineSource, check_explores
from orlog.algos.training.options import Hooks, TrainOptions
from orlog.algos.training.policy import fitting_form, make_from_record
from orlog.algos.training.run_data import with_rewards
from orlog.algos.training.runs import (
    CHECKPOINT_FILE,
    RUN_FILE,
    OnlineRecord,
    PathLike,
    RunRecord,
    as_path,
    code_versions,
    load_state,
    one_thread,
    run_folder,
    saved_step,
)
from orlog.algos.training.same_run import check_same_run
from orlog.algos.training.train import SAVES, Trainer, check_folder
from orlog.base.code_version import sources_digest
from orlog.base.files import hash_file
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.loaders.arrays import read_arrays


def find_finetuned(
    run: PathLike,
    folder: PathLike | None = None,
    *,
    dataset: Given | None = None,
    algorithm: AlgorithmLike | None = None,
) -> tuple[RunRecord, Dataset, Path]:
    """Return record and dataset of a run to go on with, and the folder of the new run.

    Arguments are those of `finetune_run`.
    """
    record, data, _ = find_run(as_path(run), dataset=dataset, algorithm=algorithm)
    if folder is None:
        folder = run_folder(FINETUNED, record.algorithm, data, record.seed)
    return record, data, as_path(folder)


def finetune_run(
    run: PathLike,
    folder: PathLike | None,
    options: TrainOptions,
    online: OnlineRecord = OnlineRecord(),
    hooks: Hooks | None = None,
    *,
    resume: bool = False,
    dataset: Given | None = None,
    algorithm: AlgorithmLike | None = None,
) -> tuple[Path, RunRecord]:
    """Go on with a run in its environment; return the folder of the new run and its record.

    Each of `steps` takes one step in the environment and one update. Settings, transforms, seed, preset
    and precision are those of the run; `settings` among the options are those that differ. The
    evaluations come after the start, and no checkpoints are kept. The state is saved at ends of
    episodes, from which it goes on exactly, also once `stop` of the hooks returned true.

    `online` says how it acts there: its `prior`, `random_steps` and `noise`; which run it was is noted here.
    Dataset and algorithm are only given where the record does not find them.
    """
    hooks, settings = hooks or Hooks(), options.settings or {}
    steps, evaluations = options.steps or 0, options.evaluations
    prior, noise = online.prior, online.noise
    if steps < 1 or online.random_steps < 0:
        raise ValueError(f"steps must be >= 1 and random_steps >= 0, found {steps} and {online.random_steps}.")
    if prior is not None and not 0 <= prior <= 1:
        raise ValueError(f"prior must lie in [0, 1], found {prior}.")
    if noise is not None and not 0 <= noise < float("inf"):
        raise ValueError(f"noise must be finite and >= 0, found {noise}.")
    device, run = find_device(options.device), as_path(run)
    old, data, found = find_run(run, dataset=dataset, algorithm=algorithm)
    kind = fitting_form(found, data)
    online = msgspec.structs.replace(
        online, run=str(run), checkpoint_sha256=hash_file(run / CHECKPOINT_FILE), step=saved_step(run) or 0
    )
    packed = read_arrays(data)
    with_returns = check_explores(kind, make_config(kind, old.config), data, packed, online)
    protocol = scoring_protocol(data, max(1, options.curve_episodes), trust_environment=options.trust_environment)
    plain = _config(kind, old, settings)
    config = make_config(kind, plain)
    record = msgspec.structs.replace(
        old,
        steps=steps,
        config=plain,
        settings={name: plain[name] for name in settings},
        evaluations=evaluations,
        curve_episodes=options.curve_episodes,
        keep_checkpoints=False,
        stream=False,
        trust_environment=options.trust_environment,
        log=options.log,
        versions={**code_versions(), **device_versions(device)},
        device=device,
        online=online,
        code=sources_digest(kind),
        later_code=(),
        earlier=(),
    )
    folder = run_folder(FINETUNED, old.algorithm, data, old.seed) if folder is None else folder
    folder = as_path(folder)
    check_folder(folder, resume=resume)
    if (folder / RUN_FILE).exists():
        there = check_same_run(folder, record, hooks.note)
        record = msgspec.structs.replace(record, later_code=there.later_code, earlier=there.earlier)
    packed = with_rewards(packed, old.reward_scale, old.reward_shift)
    packed = put_arrays(packed, device)
    with one_thread(), seeded(kind, old.seed, TRAINING):
        made = make_from_record(record, data, kind, device=device)
        rates = [group["lr"] for group in _groups(made)]
        load_state(made, run)
        if any(name.endswith("learning_rate") for name in settings):
            for group, rate in zip(_groups(made), rates, strict=True):
                group["lr"] = rate  # in place of that of the checkpoint
        Trainer(
            algorithm=made,
            source=OnlineSource(kind, config, data, packed, record, protocol, with_returns),
            dataset=data,
            folder=folder,
            record=record,
            protocol=protocol if evaluations else None,
            saves=evaluations or SAVES,
            keep_checkpoints=False,
            hooks=hooks,
            code=record.code,
        ).run(resume=resume)
    return folder, record


def _groups(algorithm: Algorithm) -> list[dict[str, Any]]:
    """Return the groups of parameters of all optimizers."""
    parts = [getattr(algorithm, name) for name in state_names(algorithm)]
    optimizers = [one for one in parts if isinstance(one, torch.optim.Optimizer)]
    return [group for one in optimizers for group in one.param_groups]


def _config(kind: type[Any], old: RunRecord, settings: Mapping[str, object]) -> dict[str, Any]:
    """Return a run's settings with some changed, and without a horizon of its steps."""
    for name in settings:
        if name in of_run(kind):
            raise ValueError(f"{name} is that of the run and cannot be set here.")
    # A rate that has fallen to 0 along the run's steps would learn nothing more.
    constant = {"steps": None} if "steps" in of_run(kind) else {}
    config = make_config(kind, {**old.config, **settings, **constant})
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return found
