"""The status of a version, given after it was made: superseded or yanked, and why."""

from __future__ import annotations

from typing import Literal

import msgspec

from orlog.manifests.names import is_version, parse_name

LONGEST_REASON = 1000


class VersionStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The status of a version.

    Attributes:
        status: `superseded`: there is a better one. `yanked`: it should not be used.
        reason: Why, in a sentence.
        use: What to use instead: a version of the same dataset or a dataset's name; may be empty.
    """

    status: Literal["superseded", "yanked"]
    reason: str
    use: str = ""

    def __post_init__(self) -> None:
        """Refuse a reason that says nothing and a `use` that names nothing.

        Raises ValueError if the reason or `use` is invalid.
        """
        good = self.reason.strip() and self.reason.isprintable()
        if not good or len(self.reason) > LONGEST_REASON:
            raise ValueError(
                f"a {self.status} version needs a reason: one line of up to {LONGEST_REASON} "
                f"characters, found {self.reason[:60]!r}."
            )
        if self.use and not is_version(self.use):
            parse_name(self.use)


class History(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of a `versions.json`: the status of each version that has one."""

    history_version: Literal[1]
    versions: dict[str, VersionStatus]

    def __post_init__(self) -> None:
        for version, status in self.versions.items():
            check_version(version, status)


def check_version(version: str, entry: VersionStatus) -> None:
    """Refuse a status for an invalid version, or one that names itself as its replacement.

    Raises ValueError if the version is invalid, or `use` names it.
    """
    if not is_version(version):
        raise ValueError(f"{version[:60]!r} is not a content version such as 1.0.0.")
    if entry.use == version:
        raise ValueError(f"version {version} cannot be used in place of itself.")
