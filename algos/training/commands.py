"""What to type next: the commands that make a run again, go on with it, or try another learning rate."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from orlog.algos.algorithms import Algorithm
from orlog.algos.presets import recipe_for
from orlog.algos.training.options import TrainOptions
from orlog.algos.training.runs import VIEW_FILE, RunRecord
from orlog.datasets.download.in_place import address_of
from orlog.datasets.home.folders import version_folder
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import DivergedError

FINETUNED = "runs/finetune"
"""Where fine-tuned runs lie, unless another folder is given."""

_DEFAULTS = TrainOptions()
_ALWAYS = ("seed", "evaluations")
_NOT_FINETUNED = ("seed", "preset", "precision", "keep_checkpoints", "curve_episodes")


def run_command(
    folder: Path, record: RunRecord, *, dataset: Dataset | None = None, algorithm: str = "", more: Sequence[str] = ()
) -> str:
    """Return the one command that makes a run again, with every option, and `more` words.

    A dataset that its recorded name does not find is named by its folder or URL, if it is given. `algorithm`
    is what names an algorithm that is not orlog's, if it is known.
    """
    options = record.options()
    algorithm = algorithm or _word_of(record.algorithm)
    if record.online is not None and record.online.run:
        online = record.online
        words = ["orlog", "finetune", online.run, *option_words(options, leave_out=_NOT_FINETUNED)]
        words += ["--prior", "even" if online.prior is None else f"{online.prior:g}"]
        words += ["--random-steps", str(online.random_steps)]
        words += [] if online.noise is None else ["--noise", f"{online.noise:g}"]
        words += ["--algorithm", algorithm] if ":" in record.algorithm else []
        words += dataset_words(dataset)
    else:
        name = f"{record.dataset}@{record.version}"
        if (folder / VIEW_FILE).exists():
            name = str(folder / VIEW_FILE)
        elif dataset is not None and not is_at_home(dataset):
            name = _place_of(dataset)
        words = ["orlog", "train", algorithm, name, *option_words(options)]
    return shlex.join([*words, "--out", str(folder), *more, *import_words(record.imports)])


def resume_command(
    folder: Path, record: RunRecord, dataset: Dataset | None = None, algorithm: str = "", more: Sequence[str] = ()
) -> str:
    """Return the command that goes on with a run, or starts it again where it has no checkpoint.

    Arguments are those of `run_command`.
    """
    fine_tuned = record.online is not None and record.online.run
    if fine_tuned or dataset_words(dataset):
        more = ["--resume", *more]
        return run_command(folder, record, dataset=dataset, algorithm=algorithm, more=more)
    # Code that a record names is not run, and consent is not taken from a file.
    own = [algorithm or _word_of(record.algorithm)] if ":" in record.algorithm else []
    consent = ["--trust-environment"] if record.trust_environment else []
    imports = import_words(record.imports)
    return shlex.join(["orlog", "train", "--resume", *own, str(folder), *consent, *more, *imports])


def evaluate_command(
    folder: Path, record: RunRecord, dataset: Dataset, algorithm: str | None, trust_environment: bool
) -> str:
    """Return the command that evaluates a run; `algorithm` names one that is not orlog's."""
    words = ["orlog", "evaluate", str(folder), *dataset_words(dataset)]
    words += [] if algorithm is None else ["--algorithm", algorithm]
    words += ["--trust-environment"] if trust_environment else []
    return shlex.join([*words, *import_words(record.imports)])


def dataset_words(dataset: Dataset | None) -> list[str]:
    """Return the option that names the dataset of a run, where its record does not find it."""
    if dataset is None or dataset.operation is not None or is_at_home(dataset):
        return []
    return ["--dataset", _place_of(dataset)]


def import_words(modules: Sequence[str]) -> list[str]:
    """Return the options of a command that import modules."""
    return [word for module in modules for word in ("--import", module)]


def option_words(options: TrainOptions, *, leave_out: Sequence[str] = ()) -> list[str]:
    """Return options as words of a command; all but those that are left out or the default."""
    words = []
    for name in TrainOptions.__struct_fields__:
        value, flag = getattr(options, name), "--" + name.replace("_", "-")
        if name in leave_out or (value == getattr(_DEFAULTS, name) and name not in _ALWAYS):
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
    folders = {version_folder(dataset.name, version).resolve() for version in versions}
    return dataset.folder.resolve() in folders


def _place_of(dataset: Dataset) -> str:
    """Return the folder of a dataset, or the URL at which it is read in place."""
    return (dataset.in_place and address_of(dataset.folder)) or str(dataset.folder)


def _word_of(algorithm: str) -> str:
    """Return what names an algorithm; a record has the name of a file of one's own without `.py`."""
    module, colon, name = algorithm.rpartition(":")
    if not colon or "." in module:
        return algorithm
    return f"{module}.py:{name}"


def usual_rates(algorithm: Algorithm, record: RunRecord, dataset: Dataset) -> dict[str, float]:
    """Return the numbers that the run's preset, or else the algorithm, has for its settings."""
    fields = msgspec.structs.fields(type(algorithm).CONFIG)
    found: dict[str, Any] = {field.name: field.default for field in fields}
    with contextlib.suppress(ValueError):  # the preset of a run may be from another orlog
        found |= recipe_for(record.algorithm, dataset, preset=record.preset).settings
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def diverged(
    folder: Path,
    record: RunRecord,
    error: DivergedError,
    finite_step: int,
    saved_step: int | None,
    usual: Mapping[str, float],
) -> DivergedError:
    """Return the error that says what stands and what to try."""
    rates = {name: value for name, value in record.config.items() if name.endswith("learning_rate")}
    lower = ", ".join(
        f"{name!r}: {min(float(f'{value / 3:.0e}'), usual.get(name, math.inf)):g}" for name, value in rates.items()
    )
    before = ", ".join(f"{name} {value:g}" for name, value in rates.items())
    advice = f", such as settings={{{lower}}} (now: {before})" if rates else ""
    stands = (
        "there is no checkpoint from before"
        if saved_step is None
        else f"its checkpoint of step {saved_step:,} is kept, but would diverge again"
    )
    return DivergedError(
        f"{folder}: the run has diverged: {error.metric} was finite at step {finite_step:,} and is not "
        f"at step {error.step:,} of {record.steps:,}; {stands}; train in another folder with a "
        f"lower learning rate{advice}, and look at the range of the rewards.",
        step=error.step,
        metric=error.metric,
    )
