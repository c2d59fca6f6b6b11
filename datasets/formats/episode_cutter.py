"""Cuts rows, one for each step, into episodes, as logs, benchmarks and robots' datasets have them.

What followed the last row of an episode is not among them, unless there are next observations. A row that
ends the task keeps its step with a final observation of zeros, and `episodes/final_observation_missing`
is true; any other last row is left out, and its observation is the final one. Where actions are moved up (`--shift`), all keep
their step, since `overrides.py` then makes the last observation the final one.

How an episode ended is said by flags, which files may store as numbers, by the success that they state, or by the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from orlog.datasets.formats.array_files import WORDS
from orlog.datasets.formats.episodes import Options, Steps
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
    """Refuse rewards of success for files that state neither success nor ends, unless the user states ends."""
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
        hint = ", as --ends says" if options.ends else " (--ends says it otherwise)"
        if options.limit is not None and not options.ends:
            hint = f"{hint[:-1]}, and --horizon {options.limit} that the task ended shorter ones)"
        return f"{who} to be {HOW[options.ends or 'truncated']}{hint}"
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
                    f"{self._where}: the files say how each episode ended, so leave {option}={value!r} out."
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
    """Return whether steps or an episode succeeded, (n,) bool, by infos or metadata; None where nothing states it."""
    for name in names:
        if name in values:
            stated = np.asarray(values[name])
            if stated.dtype.kind in "UO":  # words, as of an attribute that the user maps
                words = [WORDS.get(str(word).lower(), word) for word in stated.reshape(-1)]
                if not all(isinstance(word, bool) for word in words):
                    raise SchemaError(f"{name} is {stated.flat[0]!s:.60}, expected true or false.")
                stated = np.array(words)
            if stated.dtype.kind in "biuf":
                odd = stated[(stated != 0) & (stated != 1)]
                if odd.size:
                    raise SchemaError(f"{name} is {odd.flat[0]:g}, and rewards or ends that follow it need 0 or 1.")
                flags: np.ndarray = stated.reshape(-1) != 0
                return flags
    return None


def outcome_of(path: str) -> bool | None:
    """Return whether a path lies among the successes or the failures of DROID, `success/2023-07-04/..`; None if not."""
    outcome = re.search(r"(?:^|/)(success|failure)/\d{4}-\d\d-\d\d/", path)
    return None if outcome is None else outcome[1] == "success"


def all_state(stated: Sequence[bool | None], options: Options, where: str) -> tuple[bool, list[Note]]:
    """Return whether all episodes state their success, and what to note where only some do."""
    silent = sum(success is None for success in stated)
    if silent in (0, len(stated)):
        return not silent, []
    lacking = f"{silent:,} of {len(stated):,} episodes"
    if options.reward == "success" or options.ends == "terminated":
        option = "ends='terminated'" if options.ends == "terminated" else "reward='success'"
        raise SchemaError(f"{where}: {lacking} do not state their success, so {option} cannot follow it.")
    return False, [Note("left_out_success", ["success"], silent=lacking)]


def put_success(
    metadata: list[Mapping[str, Any]], stated: Sequence[bool | None], options: Options, where: str
) -> list[Note]:
    """Put the success that all episodes state into what is known of each; return what to note where only some do."""
    if any("success" in facts for facts in metadata):
        return []
    states, notes = all_state(stated, options, where)
    if states:
        metadata[:] = [{**facts, "success": value} for facts, value in zip(metadata, stated, strict=True)]
    return notes


HELD = 2
GOES_ON: Mapping[str, Any] = {"ends": False}
MISSING = "final_observation_missing"
Rows = dict[str, np.ndarray]
"""Columns of equal length by what they are: `observation`, or `observation/NAME` for the parts of a Dict,
`action` likewise, `reward`, and where they are known `terminated`, `truncated`, `next_observation` and `infos/NAME`."""
Ends = Callable[[Rows, int], np.ndarray]
"""Says after which of some rows an episode ends, (n,) bool, given the place of the first one among all. Of the
last row it need not know it yet: that one comes again, before those that follow."""


def ends_of_lengths(lengths: Sequence[int] | np.ndarray) -> Ends:
    """Return where episodes of these lengths end, one after the other."""
    last_rows = np.cumsum(np.asarray(lengths, np.int64)) - 1

    def ends(rows: Rows, first: int) -> np.ndarray:
        count = len(rows["reward"])
        between = np.searchsorted(last_rows, (first, first + count))
        is_end = np.zeros(count, bool)
        is_end[last_rows[slice(*between)] - first] = True
        return is_end

    return ends


class EpisodeCutter:
    """Cuts rows into episodes as they come.

    The last two rows are held: the last one may be left out, and the one before it then ends the episode.

    Attributes:
        left_out: Rows that were left out.
        vanished: Episodes of which nothing is left then.
        missing: Episodes without a final observation.
        finals: Episodes whose last row was taken for their final observation alone.
    """

    def __init__(
        self,
        ends: Ends,
        where: str,
        *,
        metadata: Callable[[int], Mapping[str, Any]] = lambda _episode: {},
        seed: Callable[[int], int | None] = lambda _episode: None,
        unknown: UnknownEnds | None = None,
        has_final_rows: bool = False,
    ) -> None:
        """Take where episodes end, and the values and the seed of the reset of an episode by its position.

        An episode that no flag ends was `terminated` by the task, `truncated`, or is unfinished, as `unknown`
        says. With `has_final_rows`, where the last two rows both end the task, the episode ended at the first
        of them, and the other one holds its final observation.
        """
        self.left_out = self.missing = self.finals = self.vanished = 0
        self._has_final_rows = has_final_rows
        self._ends, self._where, self._metadata, self._seed = ends, where, metadata, seed
        self._unknown = unknown or UnknownEnds(Options(), where)
        self._held: Rows = {}
        self._first = 0  # place of the first row that is held
        self._begin = 0  # place of the first row of the open episode
        self._episode = 0
        self._is_inside = False  # whether steps of the open episode were given
        self._success: bool | None = None  # of the open episode so far, if its steps state it

    def add(self, rows: Rows) -> Iterator[Steps]:
        """Yield what the next rows complete; all calls have the same columns.

        Raises SchemaError if a flag is neither 0 nor 1, or ends an episode whose rows go on, or rows differ in shape, infos in dtype.
        """
        if self._held:
            for role, column in rows.items():
                held, is_info = self._held[role], role.startswith("infos/")
                if column.shape[1:] != held.shape[1:]:
                    problem = f"rows of shape {column.shape[1:]} follow rows of {held.shape[1:]}"
                elif is_info and column.dtype != held.dtype and column.dtype.kind in "biuf":
                    problem = f"rows of {column.dtype} follow rows of {held.dtype}"
                else:
                    continue
                raise SchemaError(f"{self._where}, row {self._first + len(held)}, {role}: {problem}.")
            joined = {role: np.concatenate((self._held[role], column[:HELD])) for role, column in rows.items()}
            yield from self._cut(joined)
            if len(rows["reward"]) <= HELD:
                return
            # What is still held of these rows comes again, before all others, which are not copied.
            again = len(self._held["reward"])
            rows = {role: column[HELD - again :] for role, column in rows.items()}
        yield from self._cut(rows)

    def _cut(self, rows: Rows) -> Iterator[Steps]:
        """Yield what these rows complete, and hold the last ones."""
        count, start = len(rows["reward"]), 0
        for end in np.flatnonzero(self._ends(rows, self._first)).tolist():
            last = self._end(rows, start, end + 1)
            if last is not None:
                yield last
            start, self._is_inside, self._episode = end + 1, False, self._episode + 1
            self._success = None
            self._begin = self._first + start
        keep = max(start, count - HELD)
        if keep > start:
            self._check_inside(rows, start, keep)
            self._note_success(rows, start, keep)
            yield self._piece(rows, start, keep, _part(rows, slice(keep, keep + 1)))
            self._is_inside = True
        self._held = {role: values[keep:] for role, values in rows.items()}
        self._first += keep

    def notes(self) -> list[Note]:
        """Return what was left out or is missing; after the last row.

        Raises SchemaError if the user says something of ends that files tell.
        """
        notes = self._unknown.notes()
        if self.left_out:
            notes.append(Note("last_rows", rows=self.left_out))
        if self.vanished:
            notes.append(Note("vanished", episodes=self.vanished))
        if self.missing:
            notes.append(Note("finals_missing", [f"episodes/{MISSING}"], episodes=self.missing))
        if self.finals:
            notes.append(Note("final_rows", episodes=self.finals))
        return notes

    def _end(self, rows: Rows, start: int, stop: int) -> Steps | None:
        """Return the rest of an episode; None where nothing is left of it."""
        terminated, truncated = (self._flag(rows, flag, stop) for flag in FLAGS)
        metadata = self._metadata(self._episode)
        if not (terminated or truncated):
            self._note_success(rows, start, stop)
            success = self._success
            if self._unknown.follows_success and (stated := success_in(metadata)) is not None:
                success = bool(stated[0])
            how_so = self._unknown.how(self._first + stop - self._begin, success)
            terminated, truncated = (how_so == flag for flag in FLAGS)
        has_next = any(role.split("/")[0] == "next_observation" for role in rows)
        is_final_row = (
            self._has_final_rows
            and terminated
            and not has_next
            and stop - start > 1
            and "terminated" in rows
            and bool(rows["terminated"][stop - 2])
        )
        self._check_inside(rows, start, stop - 1 - is_final_row)
        last = slice(stop - 1, stop)
        is_kept = terminated or self._unknown.keeps_last
        is_missing = is_kept and not has_next and not is_final_row
        if has_next:
            final = _part(rows, last, "next_observation")
        elif is_final_row:
            final = _part(rows, last)
            stop -= 1
            self.finals += 1
        elif is_kept:
            final = _changed(_part(rows, last), np.zeros_like)
            self.missing += 1
        else:
            final = _part(rows, last)
            stop -= 1
            self.left_out += 1
            if start == stop and not self._is_inside:
                self.vanished += 1
                return None
        how = {
            "ends": True,
            "terminated": terminated,
            "truncated": truncated,
            "seed": self._seed(self._episode),
            "metadata": {**metadata, **({} if has_next else {MISSING: is_missing})},
        }
        return self._piece(rows, start, stop, final, how)

    def _note_success(self, rows: Rows, start: int, stop: int) -> None:
        """Note whether these rows of the open episode state that it succeeded."""
        if not self._unknown.follows_success:
            return
        infos = {name: rows[f"infos/{name}"] for name in NAMES if f"infos/{name}" in rows}
        stated = success_in({name: values[start:stop] for name, values in infos.items()})
        if stated is not None:
            is_at_end = "success" not in infos
            self._success = bool(stated[-1] if is_at_end else self._success or stated.any())

    def _flag(self, rows: Rows, role: str, stop: int) -> bool:
        flag = rows[role][stop - 1] if role in rows else False
        if flag not in (0, 1):
            raise SchemaError(f"{self._where}: {role} is {flag} at row {self._first + stop - 1}, expected 0 or 1.")
        return bool(flag)

    def _check_inside(self, rows: Rows, start: int, stop: int) -> None:
        """Refuse rows that end an episode whose rows go on."""
        for role in FLAGS:
            flags = rows[role][start:stop] if role in rows else np.zeros(0)
            if flags.any():
                odd = np.flatnonzero(flags != 0)
                row = self._first + start + odd[0]
                raise SchemaError(
                    f"{self._where}: {role} is {flags[odd[0]]} at row {row}, and the episode goes on after it."
                )

    def _piece(self, rows: Rows, start: int, stop: int, after: Any, how: Mapping[str, Any] = GOES_ON) -> Steps:
        """Return some steps of an episode, the observation after the last one, and how it ended there."""
        before = _part(rows, slice(start + self._is_inside, stop))
        return Steps(
            observations=_joined(before, after),
            actions=_part(rows, slice(start, stop), "action"),
            rewards=rows["reward"][start:stop],
            infos={
                role.removeprefix("infos/"): _plain(values[start:stop])
                for role, values in rows.items()
                if role.startswith("infos/")
            },
            **how,
        )


def _part(rows: Rows, chosen: slice, role: str = "observation") -> Any:
    """Return rows of what has a role, a dict where it has parts."""
    if role in rows:
        return rows[role][chosen]
    start = f"{role}/"
    return {name.removeprefix(start): values[chosen] for name, values in rows.items() if name.startswith(start)}


def _changed(values: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    if isinstance(values, dict):
        return {key: change(value) for key, value in values.items()}
    return change(values)


def _joined(before: Any, after: Any) -> Any:
    if isinstance(before, dict):
        return {key: np.concatenate((column, after[key])) for key, column in before.items()}
    return np.concatenate((before, after))


def _plain(values: np.ndarray) -> Any:
    """Return texts as a list of them."""
    return values.tolist() if values.dtype.kind in "OU" else values
