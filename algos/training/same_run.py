"""Whether a run may go on in a folder: each field of its record must be the same again, or not matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from orlog.algos.training.commands import resume_command, setting_text
from orlog.algos.training.options import Earlier
from orlog.algos.training.runs import RunRecord, read_run
from orlog.manifests.names import counted

RUNS_IN_WORDS = {
    "algorithm": ("a run of the algorithm {}, not {}", "train {}"),
    "digest": ("a run on the data {}, not {}", "name its dataset and version"),
    "seed": ("a run with the seed {}, not {}", "give seed={}"),
    "steps": ("a run of {} steps, not {}", "give steps={}"),
    "config": ("a run with {}, not {}", "give the settings that it has"),
    "reward_scale": ("a run whose rewards are scaled by {}, not by {}", "give the preset that it has"),
    "reward_shift": ("a run whose rewards are shifted by {}, not by {}", "give the preset that it has"),
    "standardize_observations": ("a run where standardized observations are {}, not {}", "give the preset that it has"),
    "online": ("a run that acts with {}, not {}", "give the options that it has"),
    "precision": ("a run with the precision {}, not {}", "give precision={!r}"),
    "device": ("a run on the device {}, not {}", "give device={!r}"),
    "evaluations": ("a run with {} evaluations, not {}", "give evaluations={}"),
    "curve_episodes": ("a run with {} episodes at each evaluation, not {}", "give curve_episodes={}"),
    "stream": ("a run where stream is {}, not {}", "give stream={}"),
    "keep_checkpoints": ("a run where keep_checkpoints is {}, not {}", ""),
}
MAY_DIFFER = frozenset(
    {"dataset", "version", "preset", "source", "settings", "log", "trust_environment", "versions"}
    | {"obs_mean", "obs_std", "imports", "code", "later_code", "earlier"}
)
"""Fields that change no number of a run; its record keeps those that it began with."""


def check_same_run(folder: Path, record: RunRecord, note: Callable[[str], None] = lambda _text: None) -> RunRecord:
    """Return the record in a folder, with the steps of `record`; refuse to continue where it is of another run.

    A run may take more steps than it was first told to. What its settings hold of these is that of all steps then.
    """
    there = read_run(folder)
    if record.steps > there.steps:
        there = _with_more_steps(folder, there, record, note)
    for name in RUNS_IN_WORDS:
        found, wanted = getattr(there, name), getattr(record, name)
        if name == "device":  # the numbers of its generators fit any device of the same kind
            found, wanted = (one.partition(":")[0] for one in (found, wanted))
        if found != wanted:
            raise FileExistsError(_of_another_run(folder, there, record, name))
    for name in ("version", "preset", "log"):
        found, wanted = getattr(there, name), getattr(record, name)
        if found != wanted:
            note(f"{folder}: began with {name} {found or 'none'}, and goes on with {wanted}.")
    for package in sorted({*there.versions} & {*record.versions}):
        if there.versions[package] != record.versions[package]:
            note(
                f"{folder}: began with {package} {there.versions[package]}, and goes on with "
                f"{record.versions[package]}: it may not equal a run that was never stopped."
            )
    if there.codes[-1] and there.codes[-1] != record.code:
        note(
            f"{folder}: goes on with other code of its algorithm or of orlog than trained it so far, and will say so "
            "in run.json: it may not equal a run that was never stopped."
        )
    return there


def _with_more_steps(folder: Path, there: RunRecord, record: RunRecord, note: Callable[[str], None]) -> RunRecord:
    """Return the record of a run that goes on to the steps of `record`."""
    config = dict(there.config)
    if config.get("steps") == there.steps and record.config.get("steps") == record.steps:
        config["steps"] = record.steps
        note(
            f"{folder}: began as a run of {counted(there.steps, 'step')}. Its learning rate follows a schedule over all "
            f"steps, so it will not equal a run that was one of {record.steps:,} from the start."
        )
    earlier = Earlier(steps=there.steps, config=there.config)
    return msgspec.structs.replace(there, steps=record.steps, config=config, earlier=(*there.earlier, earlier))


def _of_another_run(folder: Path, there: RunRecord, record: RunRecord, name: str) -> str:
    """Return why a run cannot be continued whose field `name` differs, and what to do."""
    has, to_continue = RUNS_IN_WORDS[name]
    found, wanted = getattr(there, name), getattr(record, name)
    if name == "online":
        found, wanted = (msgspec.to_builtins(one) or {} for one in (found, wanted))
    if name in ("config", "online"):
        names = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
        found, wanted = (", ".join(f"{key} {setting_text(some.get(key))}" for key in names) for some in (found, wanted))
    has, to_continue = has.format(found, wanted), to_continue.format(found)
    if name == "keep_checkpoints":
        to_continue = f"{'give' if found else 'leave out'} keep_checkpoints=True"
    return (
        f"{folder} holds {has}; to continue it, {to_continue}, or take all its options from its "
        f"record: {resume_command(folder, there)}; or choose another folder."
    )
