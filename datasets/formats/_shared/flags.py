"""How episodes ended: flags that files may store as numbers, and what is taken where they say nothing."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from orlog.datasets.formats._shared.episodes import Options
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


HOW = {
    "terminated": "ended by the task",
    "truncated": "cut off",
    "unknown": "neither ended nor cut off",
}


def unknown_ends(options: Options) -> str:
    """Return the sentence about files that say of no episode how it ended, as `UnknownEnds` takes them."""
    return f"Nothing says how episodes ended: {taken(options, 'all were taken')}."


def taken(options: Options, who: str = "taken") -> str:
    """Return how episodes of unknown ends are taken, to follow a colon."""
    limit = options.horizon if options.ends else options.limit
    if limit is None:
        said = ", as --ends says" if options.ends else " (--ends says it otherwise)"
        return f"{who} to be {HOW[options.ends or 'truncated']}{said}"
    others = HOW[options.ends or "terminated"] + (", as --ends says" if options.ends else "")
    return f"those of {limit:,} steps were taken to be cut off by the time limit, and shorter ones to be {others}"


class UnknownEnds:
    """Says how an episode ended of which the files do not say it: one rule for all formats.

    With `--horizon` it was cut off where it has as many steps, and must not have more. Any other ended as `--ends`
    says; without that, but with the time limit of `--horizon` or of the environment, the task ended it. With neither it was
    cut off. Files that have flags for both say of an episode without any that it just stops, and those that have a
    flag for the end of the task say that it did not end.

    Attributes:
        count: Of how many episodes it was asked.
        is_cutting: Whether the horizon says where episodes end, too.
    """

    def __init__(self, options: Options, where: str, *, says: Collection[str] = ()) -> None:
        """Take what the user says, what errors call the files, and which flags these have: `terminated`, `truncated`."""
        self._options, self._where, self._says = options, where, {*says}
        self.count, self.is_cutting = 0, False

    def how(self, steps: int) -> str:
        """Return how an episode of some steps ended: `terminated`, `truncated` or `unknown`.

        Raises SchemaError if it is longer than the user says that any is.
        """
        self.count += 1
        options, has_both = self._options, self._says == {*FLAGS}
        if options.horizon is not None and steps > options.horizon:
            raise SchemaError(
                f"{self._where}: an episode has {steps:,} steps, more than horizon={options.horizon}."
            )
        limit = options.horizon if options.ends or has_both else options.limit
        if limit is not None and steps >= limit:
            return "truncated"
        if options.ends:
            return options.ends
        if limit is not None and "terminated" not in self._says:
            return "terminated"
        return "unknown" if has_both else "truncated"

    def doubts(self) -> list[str]:
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
        if not self._says or not self.count or not (ends or horizon is not None):
            return []
        return [self.told()]

    def told(self) -> str:
        """Return the sentence about those episodes."""
        return f"Of {counted(self.count, 'episode')} nothing says the end: {taken(self._options)}."
