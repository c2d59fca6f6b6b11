"""What an audit finds: findings, how grave they are, and what could not be checked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from orlog.datasets.audit.pieces import Piece, sampled_pieces
from orlog.datasets.audit.seen import Seen
from orlog.datasets.reading.dataset import Dataset

Severity = Literal["error", "warning", "note"]

SAMPLE_BYTES = 2**26
SEVERITIES: dict[Severity, str] = {
    "error": "the data are wrong",
    "warning": "probably wrong: look at it",
    "note": "true, and worth knowing",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a check found.

    Attributes:
        check: Name of the check.
        severity: `error`, `warning` or `note`.
        column: The column, with the index of a dimension: `observations[3]`.
        text: What was found, in a sentence.
        episode: The first episode with it; None if it is about no single one.
        step: Its first step there; None if it is about no single one.
        count: How many rows, steps or episodes have it, as the text says.
        last_step: The last step of the first place, if it is more than one step.
        beside: Another dimension that shows it, next to the column; empty for none.
    """

    check: str
    severity: Severity
    column: str
    text: str
    episode: int | None = None
    step: int | None = None
    count: int = 1
    last_step: int | None = None
    beside: str = ""


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an audit.

    Attributes:
        name: Name of the dataset.
        version: Its content version.
        digest: Its digest.
        episodes: Number of episodes that were looked at.
        steps: Number of their steps.
        is_partial: Whether only a part of the version is on this machine.
        findings: What was found, the most severe first.
        checks: Names of the checks that ran.
        not_checked: Why something was not checked, by check.
    """

    name: str
    version: str
    digest: str
    episodes: int
    steps: int
    is_partial: bool
    findings: list[Finding]
    checks: list[str]
    not_checked: dict[str, str]

    @property
    def is_good(self) -> bool:
        """Whether no finding is an error."""
        return not self.of("error")

    def of(self, severity: Severity) -> list[Finding]:
        """Return the findings of one severity."""
        return [one for one in self.findings if one.severity == severity]

    def summary(self) -> str:
        """Return the number of findings of each severity, in words."""
        counts = [(len(self.of(severity)), severity) for severity in SEVERITIES]
        return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts)

    def to_json(self) -> dict[str, Any]:
        """Return the document that `orlog audit --json` prints."""
        return {**msgspec.to_builtins(self), "is_good": self.is_good}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What checks know before they see the data.

    Attributes:
        dataset: What is looked at.
        missing_finals: Whether the final observation of each episode was never recorded, (E,) bool.
        splits: The splits that each episode belongs to, (E,) sets of names; None without splits.
        trust_environment: Consent to environment arguments that come with the data.
        known: What was found out from a sample of the data before all of them are seen, by check.
        kept: That sample, if it is small.
    """

    dataset: Dataset
    missing_finals: np.ndarray
    splits: list[frozenset[str]] | None = None
    trust_environment: bool = False
    known: dict[str, Any] = msgspec.field(default_factory=dict)
    kept: list[Piece] = msgspec.field(default_factory=list)

    def sample(self) -> Iterable[Piece]:
        """Return some episodes that lie evenly in the data; read once, unless they are large."""
        if self.kept:
            return self.kept
        some, read = sampled_pieces(self.dataset, self.missing_finals), []
        for piece in some:
            read.append(piece)
            if sum(one.nbytes for other in read for one in other.columns.values()) > SAMPLE_BYTES:
                return itertools.chain(read, some)
        self.kept.extend(read)
        return read

    def once(self, what: str, find_out: Callable[[], Any]) -> Any:
        """Return what is found out from a sample: once, also where several machines see the data."""
        if what not in self.known:
            self.known[what] = find_out()
        return self.known[what]


Check: TypeAlias = Generator[Seen, Piece | None, list[Finding] | str]
"""A check that runs: it takes pieces of the data with `yield`, then None, and returns its findings.

It yields what it has seen, always the same `Seen`. A text in place of findings says why it could not be checked.
"""


def looks_at_no_rows(facts: Facts) -> Generator[Seen, Piece | None, None]:
    """Let all data pass, for a check that needs none of them."""
    seen = Seen(facts.dataset)
    while (yield seen) is not None:
        pass


def place_text(finding: Finding) -> str:
    """Return where the first one is: `episode 3, step 12`."""
    if finding.episode is None:
        return ""
    if finding.step is None:
        return f"episode {finding.episode}"
    return f"episode {finding.episode}, step {finding.step}"


def about_episodes(
    check: str,
    severity: Severity,
    column: str,
    text: str,
    episodes: np.ndarray,
    *,
    step: int | None = None,
) -> Finding:
    """Return a finding about episodes; `{}` in the text stands for their number."""
    distinct = np.unique(episodes)
    one = len(distinct) == 1
    subject = "1 episode" if one else f"each of {len(distinct):,} episodes"
    return Finding(
        check=check,
        severity=severity,
        column=column,
        text=text.format(subject),
        episode=int(distinct[0]),
        step=step,
        count=len(distinct),
    )
