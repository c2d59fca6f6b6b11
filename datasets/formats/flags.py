"""How episodes ended: flags that files may store as numbers, the success that they state, and what is taken where they say nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.hdf5_files import WORDS
from orlog.datasets.formats.notes import Note
from orlog.errors import SchemaError
from orlog.manifests.names import counted

FLAGS = ("terminated", "truncated")


def flags_of(values: np.ndarray, name: str, where: str, *, first: int = 0) -> np.ndarray:
    """Return booleans or numbers as flags, of the same shape: what is not 0 is true.

    NaN says neither and is refused; `first` is the row of the file that they start with.
    """
    if values.dtype.kind not in "biuf":
        raise SchemaError(f"{where}, {name}: expected 0 or 1, found {values.dtype}.")
    if values.dtype.kind == "f" and np.isnan(values).any():
        row = first + int(np.argwhere(np.isnan(values))[0][0])
        raise SchemaError(f"{where}, {name}: expected 0 or 1, found nan at row {row}.")
    return values.astype(bool)


HOW = {"terminated": "ended by the task", "truncated": "cut off", "unknown": "neither ended nor cut off"}


def unknown_ends(options: Options, where: str, columns: Collection[str] = ()) -> list[Note]:
    """Return what to know about files that say of no episode how it ended; `columns` are those that they have.

    Where these state success and it decides, `UnknownEnds.notes` tells it with counts.
    Raises SchemaError if rewards are to be those of success, and neither files nor user state any.
    """
    if not states_success(columns):
        check_success_stated(options, where)
    elif assumed(options) == "terminated":
        return []
    elif not options.ends:
        how = f"all were taken to be {HOW['truncated']} (--ends terminated ends those that succeeded)"
        return [Note("ends_unknown", how=how)]
    return [Note("ends_unknown", how=taken(options, "all were taken"))]


def check_success_stated(options: Options, where: str) -> None:
    """Refuse rewards of success for files that state neither success nor ends, unless the user states ends.

    Raises SchemaError, which says what to give.
    """
    if options.reward == "success" and not options.ends and options.horizon is None:
        raise SchemaError(
            f"{where}: nothing states which episodes succeeded or how they ended, so reward='success' has nothing "
            "to go by; give ends='terminated' if all succeeded, or name a column of success in columns= as infos/success."
        )


def assumed(options: Options) -> str:
    """Return how an episode of unknown end ended, as the user says or a time limit that it does not reach."""
    return options.ends or ("truncated" if options.horizon is None else "terminated")


def taken(options: Options, who: str = "taken", *, are_over: bool = False) -> str:
    """Return how episodes of unknown ends are taken, to follow a colon."""
    limit = options.limit if are_over and not options.ends else options.horizon
    if limit is None:
        said = ", as --ends says" if options.ends else " (--ends says it otherwise)"
        if options.limit is not None and not options.ends:
            said = f"{said[:-1]}, and --horizon {options.limit} that the task ended shorter ones)"
        return f"{who} to be {HOW[options.ends or 'truncated']}{said}"
    others = HOW[options.ends or "terminated"] + (", as --ends says" if options.ends else "")
    return f"those of {limit:,} steps were taken to be cut off by the time limit, and shorter ones to be {others}"


class UnknownEnds:
    """Says how an episode ended of which the files do not say it: one rule for all formats.

    With `--horizon` it was cut off where it has as many steps, and must not have more. Any other ended as `--ends`
    says; without that, but with `--horizon`, the task ended it. With neither it was cut off: an environment's time
    limit alone does not say why a log is shorter. It counts only where files say that episodes are over. Files that
    have flags for both say of an episode without any that it just stops, and those that have a flag for the end of
    the task say that it did not end. An episode that failed, as the files state, was cut off wherever the task would
    have ended it.

    Attributes:
        count: Of how many episodes it was asked.
        succeeded: Of how many the task ended since they succeeded.
        failed: How many were cut off since they failed.
        is_cutting: Whether the horizon says where episodes end, too.
    """

    def __init__(self, options: Options, where: str, *, says: Collection[str] = (), are_over: bool = False) -> None:
        """Take what the user says, what errors call the files, and which flags these have: `terminated`, `truncated`.

        With `are_over` the files say that episodes are over, by the task or by the environment's time limit.
        """
        self._options, self._where, self._says = options, where, {*says}
        self._are_over = are_over
        self.count, self.succeeded, self.failed, self.is_cutting = 0, 0, 0, False
        self._states_success = False

    @property
    def follows_success(self) -> bool:
        """Whether an episode of unknown end may have been ended by the task, if it succeeded."""
        return self._are_over or assumed(self._options) == "terminated"

    @property
    def keeps_last(self) -> bool:
        """Whether the last row of an episode keeps its step, since `--shift` pairs it with the observation before."""
        return self._options.shift.get("action", 0) < 0

    def how(self, steps: int, success: bool | None = None) -> str:
        """Return how an episode of some steps ended: `terminated`, `truncated` or `unknown`.

        `success` is whether it succeeded, if the files state it.
        Raises SchemaError if it is longer than the user says that any is.
        """
        self.count += 1
        self._states_success |= success is not None
        how = self._by_user(steps)
        if success is None or how != "terminated":
            return how
        self.succeeded += success
        self.failed += not success
        return "terminated" if success else "truncated"

    def _by_user(self, steps: int) -> str:
        options, has_both = self._options, self._says == {*FLAGS}
        if options.horizon is not None and steps > options.horizon:
            raise SchemaError(f"{self._where}: an episode has {steps:,} steps, more than horizon={options.horizon}.")
        limit = options.limit if self._are_over and not options.ends else options.horizon
        if limit is not None and steps >= limit:
            return "truncated"
        if options.ends:
            return options.ends
        if limit is not None and "terminated" not in self._says:
            return "terminated"
        return "unknown" if has_both else "truncated"

    def notes(self) -> list[Note]:
        """Return what was taken by what the user says, where flags leave some ends open; after the last episode.

        Raises SchemaError if the files say how each one ended, so that what the user says means nothing.
        """
        ends, horizon = self._options.ends, self._options.horizon
        for option, value, is_idle in (
            ("ends", ends, ends and not self.count),
            ("horizon", horizon, horizon is not None and not (self.count or self.is_cutting)),
        ):
            if is_idle:
                raise SchemaError(
                    f"{self._where}: the files say how each episode ended, so {option}={value!r} says nothing; leave it out."
                )
        is_told_before = not self._says and not self._states_success
        if is_told_before or not self.count or not (ends or horizon is not None):
            return []
        return [self.note()]

    def note(self) -> Note:
        """Return the note about those episodes."""
        decided = self.succeeded + self.failed
        if decided:
            by = "--ends says" if self._options.ends else "the time limit says"
            cut = self.count - decided
            return Note(
                "ends_by_success",
                count=decided,
                succeeded=self.succeeded,
                failed=self.failed,
                ended=HOW["terminated"],
                cut=HOW["truncated"],
                by=by,
                others=f" {counted(cut, 'other')} reached the time limit." if cut else "",
            )
        return Note("ends_of_some_unknown", count=self.count, how=taken(self._options))


SUCCESS = ("success", "is_success", "successful")
"""Attributes of HDF5 that state it: Isaac Lab's and DROID's is the first one, the others are in use too."""
OF_STEPS = ("success", "is_success")
"""Of steps, `success` is that of an episode where it is true at any of them, and `is_success` that of the last one."""
NAMES = (*OF_STEPS, "is_episode_successful")
"""The last one is LeRobot's name in DROID: the success of its whole episode at each step."""


def states_success(columns: Collection[str]) -> bool:
    """Return whether one of some columns, such as `infos/success`, states success."""
    return any(f"{axis}/{name}" in columns for axis in ("infos", "episodes") for name in NAMES)


def success_in(values: Mapping[str, Any], names: Sequence[str] = NAMES) -> np.ndarray | None:
    """Return whether steps or an episode succeeded, (n,) bool, by infos or metadata; None where nothing states it.

    Raises SchemaError if it is neither 0 nor 1, as a share of success is.
    """
    for name in names:
        if name in values:
            found = np.asarray(values[name])
            if found.dtype.kind in "UO":  # words, as of an attribute that the user maps
                words = [WORDS.get(str(word).lower(), word) for word in found.reshape(-1)]
                if not all(isinstance(word, bool) for word in words):
                    raise SchemaError(f"{name} is {found.flat[0]!s:.60}, expected true or false.")
                found = np.array(words)
            if found.dtype.kind in "biuf":
                odd = found[(found != 0) & (found != 1)]
                if odd.size:
                    raise SchemaError(
                        f"{name} is {odd.flat[0]:g}, and rewards or ends that follow it need 0 or 1; map it under another "
                        "name, or leave out reward='success' and ends='terminated'."
                    )
                flags: np.ndarray = found.reshape(-1) != 0
                return flags
    return None


def outcome_of(path: str) -> bool | None:
    """Return whether a path lies among the successes or the failures of DROID, `success/2023-07-04/..`; None if not."""
    outcome = re.search(r"(?:^|/)(success|failure)/\d{4}-\d\d-\d\d/", path)
    return None if outcome is None else outcome[1] == "success"


def all_state(stated: Sequence[bool | None], options: Options, where: str) -> tuple[bool, list[Note]]:
    """Return whether all episodes state their success, and what to note where only some do.

    Raises SchemaError if only some do, and rewards or ends are to follow it.
    """
    silent = sum(one is None for one in stated)
    if silent in (0, len(stated)):
        return not silent, []
    lacking = f"{silent:,} of {len(stated):,} episodes"
    if options.reward == "success" or options.ends == "terminated":
        option = "ends='terminated'" if options.ends == "terminated" else "reward='success'"
        raise SchemaError(
            f"{where}: {lacking} do not state their success, and the others do, so {option} cannot follow it; state it for all of them, or leave "
            "the option out."
        )
    return False, [Note("left_out_success", ["success"], silent=lacking)]


def put_success(
    metadata: list[Mapping[str, Any]], stated: Sequence[bool | None], options: Options, where: str
) -> list[Note]:
    """Put the success that all episodes state into what is known of each; return what to note where only some do."""
    if any("success" in one for one in metadata):
        return []
    states, notes = all_state(stated, options, where)
    if states:
        metadata[:] = [{**one, "success": value} for one, value in zip(metadata, stated, strict=True)]
    return notes
