"""The command line that goes on with a run, from what its record says."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from orlog.algos.algorithms import find_algorithm
from orlog.algos.presets import recipe_for
from orlog.algos.settings import make_config
from orlog.algos.training.runs import VIEW_FILE, RunRecord, run_folder
from orlog.datasets.reading.dataset import Dataset

__all__ = ["FINETUNED", "resume_command"]

FINETUNED = "runs/finetune"
"""Where fine-tuned runs lie, unless another folder is given."""


def resume_command(folder: Path, record: RunRecord, dataset: Dataset) -> str:
    """Return the command that goes on with a run, or starts it again where it has no checkpoint."""
    if record.online is not None and record.online.run:
        online = record.online
        words = ["orlog", "finetune", online.run, "--steps", str(record.steps)]
        words += ["--prior", "even" if online.prior is None else f"{online.prior:g}"]
        words += ["--random-steps", str(online.random_steps)]
        words += [] if online.noise is None else ["--noise", f"{online.noise:g}"]
        usual = run_folder(FINETUNED, record.algorithm, dataset, record.seed)
    else:
        view = folder / VIEW_FILE
        name = str(view) if view.exists() else record.shown_dataset
        words = ["orlog", "train", record.algorithm, name, "--seed", str(record.seed)]
        words += _options(record, dataset)
        usual = run_folder("runs", record.algorithm, dataset, record.seed)
    words += [] if folder.resolve() == usual.resolve() else ["--out", str(folder)]
    words += [] if record.device == "cpu" else ["--device", record.device]
    return shlex.join([*words, "--resume"])


def _options(record: RunRecord, dataset: Dataset) -> list[str]:
    """Return what differs from a run by the dataset's recipe."""
    words = []
    if record.preset and recipe_for(record.algorithm, dataset).preset != record.preset:
        words += ["--preset", record.preset]
    recipe = recipe_for(record.algorithm, dataset, preset=record.preset)
    words += [] if record.steps == recipe.steps else ["--steps", str(record.steps)]
    words += [] if record.precision == "float32" else ["--precision", record.precision]
    if ":" not in record.algorithm:  # code that a record names is not run
        kind = find_algorithm(record.algorithm, action_space=dataset.action_space)
        of_run = {name: getattr(record, name) for name in kind.FROM_RUN}
        config = make_config(kind, {**recipe.settings, **of_run})
        usual = msgspec.json.decode(msgspec.json.encode(config))
        for name, value in record.config.items():
            if value != usual.get(name):
                text = "none" if value is None else str(value)
                words += ["--set", f"{name}={text.replace(' ', '')}"]
    return words
