"""Cuts rows, one for each step, into episodes, as logs, benchmarks and robots' datasets have them.

What followed the last row of an episode is not among them, unless there are next observations. A row that
ends the task keeps its step with a final observation of zeros, and `episodes/final_observation_missing`
is true; any other last row is left out, and its observation is the final one. Where actions are moved up (`--shift`), all keep
their step, since `conventions.py` then makes the last observation the final one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from orlog.datasets.formats.episodes import Options, Steps
from orlog.datasets.formats.flags import FLAGS, NAMES, UnknownEnds, success_in
from orlog.datasets.formats.notes import Note
from orlog.errors import SchemaError

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
        found = np.zeros(count, bool)
        found[last_rows[slice(*between)] - first] = True
        return found

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
            for role, one in rows.items():
                held, is_info = self._held[role], role.startswith("infos/")
                if one.shape[1:] != held.shape[1:]:
                    said = f"rows of shape {one.shape[1:]} follow rows of {held.shape[1:]}"
                elif is_info and one.dtype != held.dtype and one.dtype.kind in "biuf":
                    said = f"rows of {one.dtype} follow rows of {held.dtype}"
                else:
                    continue
                raise SchemaError(f"{self._where}, row {self._first + len(held)}, {role}: {said}.")
            joined = {role: np.concatenate((self._held[role], one[:HELD])) for role, one in rows.items()}
            yield from self._cut(joined)
            if len(rows["reward"]) <= HELD:
                return
            # What is still held of these rows comes again, before all others, which are not copied.
            again = len(self._held["reward"])
            rows = {role: one[HELD - again :] for role, one in rows.items()}
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
        terminated, truncated = (self._flag(rows, one, stop) for one in FLAGS)
        metadata = self._metadata(self._episode)
        if not (terminated or truncated):
            self._note_success(rows, start, stop)
            success = self._success
            if self._unknown.follows_success and (stated := success_in(metadata)) is not None:
                success = bool(stated[0])
            how_so = self._unknown.how(self._first + stop - self._begin, success)
            terminated, truncated = (how_so == one for one in FLAGS)
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
                raise SchemaError(
                    f"{self._where}: {role} is {flags[odd[0]]} at row {self._first + start + odd[0]}, and "
                    "the episode goes on after it."
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
        return {key: change(one) for key, one in values.items()}
    return change(values)


def _joined(before: Any, after: Any) -> Any:
    if isinstance(before, dict):
        return {key: np.concatenate((one, after[key])) for key, one in before.items()}
    return np.concatenate((before, after))


def _plain(values: np.ndarray) -> Any:
    """Return texts as a list of them."""
    return values.tolist() if values.dtype.kind in "OU" else values
