"""What an audit finds, what its checks know and remember, and the one table of their thresholds."""

from __future__ import annotations

import collections
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from orlog.datasets.audit.pieces import Piece, Result, optional_columns, pieces, plain_columns
from orlog.datasets.reading.dataset import Dataset
from orlog.manifests.names import counted

Severity = Literal["error", "warning", "note"]

SAMPLED_EPISODES = 64
SAMPLED_STEPS = 2**16
SEVERITIES: dict[Severity, str] = {
    "error": "the data are wrong",
    "warning": "probably wrong: look at it",
    "note": "true, and worth knowing",
}


class Finding(msgspec.Struct, frozen=True):
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
        return [finding for finding in self.findings if finding.severity == severity]

    def summary(self) -> str:
        """Return the number of findings of each severity, in words."""
        return ", ".join(counted(len(self.of(severity)), severity) for severity in SEVERITIES)

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
        known: What a sample of the data shows before all of them are seen, by any name.
        kept: What is needed for that alone.
    """

    dataset: Dataset
    missing_finals: np.ndarray
    splits: list[frozenset[str]] | None = None
    trust_environment: bool = False
    known: dict[str, Any] = msgspec.field(default_factory=dict)
    kept: dict[str, Any] = msgspec.field(default_factory=dict)

    def sample(self, episodes: int = SAMPLED_EPISODES, *, images: bool = False) -> Iterator[Piece]:
        """Yield some episodes that lie evenly in the data, until there are enough steps.

        Images are left out where other observations are there, unless they are wanted.
        """
        chosen = self.spread(episodes)
        some, specs = self.dataset[chosen], self.dataset.schema.columns()
        observed = plain_columns(self.dataset, "observations")
        wide = {name for name in observed if np.prod(specs[name].shape) > limit("wide rows")}
        others = optional_columns(self.dataset.schema) - wide
        if wide and not images and any(name.startswith("observations") for name in others):
            some = some.select_columns(sorted(others))
        steps = 0
        for piece in pieces(some, self.missing_finals[chosen]):
            yield piece
            steps += piece.steps
            if steps > SAMPLED_STEPS:
                return

    def spread(self, episodes: int) -> np.ndarray:
        """Return the positions of some episodes that lie evenly in the data."""
        return np.unique(np.linspace(0, self.dataset.total_episodes - 1, episodes).astype(int))

    def sampled(self) -> list[Piece]:
        """Return the pieces of the sample without images."""
        if "pieces" not in self.kept:
            self.kept["pieces"] = [*self.sample()]
        return [*self.kept["pieces"]]

    def once(self, name: str, find_out: Callable[[], Result]) -> Result:
        """Return what a sample shows: once, also where several processes see the data."""
        if name not in self.known:
            self.known[name] = find_out()
        result: Result = self.known[name]
        return result


Part = TypeVar("Part")


class Noted(NamedTuple):
    """How many rows were noted, and where the first is, with its value."""

    rows: int
    episode: int
    step: int
    value: Any

    @property
    def place(self) -> tuple[int, int, int]:
        """Episode and step of the first one, and how many there are, as a finding takes them."""
        return self.episode, self.step, self.rows


class Seen:
    """What a check has seen of the data: arrays over episodes, sums, noted rows, and objects that join.

    A check makes one before it sees any data, and keeps nothing of a piece elsewhere:

        seen = Seen(facts.dataset)
        while (piece := (yield seen)) is not None:
            seen.sums["steps"] += piece.steps
        return [..]

    What was seen of ranges of episodes, in whichever process, is joined in the order of the data.

    Attributes:
        sums: Numbers or arrays that add up, by any key; 0 before.
        rows: Lists of arrays, one after the other, by any key.
        noted: Rows that were noted, by any key.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._episodes = dataset.total_episodes
        self._arrays: list[np.ndarray] = []
        self._parts: list[Any] = []
        self.sums: dict[Any, Any] = collections.defaultdict(int)
        self.rows: dict[Any, list[np.ndarray]] = collections.defaultdict(list)
        self.noted: dict[Any, Noted] = {}

    def of_episodes(self, dtype: DTypeLike, *shape: int) -> np.ndarray:
        """Return zeros (*shape, E), which take memory only where the positions of episodes are filled."""
        self._arrays.append(np.zeros((*shape, self._episodes), dtype))
        return self._arrays[-1]

    def part(self, part: Part) -> Part:
        """Return an object whose `join` adds what another of its kind saw."""
        self._parts.append(part)
        return part

    def note(self, key: Hashable, piece: Piece, rows: Any, *, values: Any = None, column: str = "rewards") -> None:
        """Count rows of a column, given as indices or as a mask, and keep the first one and its value."""
        rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        if len(rows):
            value = None if values is None else values[int(rows[0])]
            self._add(key, Noted(len(rows), *piece.place(int(rows[0]), column), value))

    def _add(self, key: Hashable, noted: Noted) -> None:
        before = self.noted.get(key)
        total = noted if before is None else before._replace(rows=before.rows + noted.rows)
        self.noted[key] = total

    def cut(self, episodes: range) -> Seen:
        """Return what was seen of these episodes, if no others were shown, to be joined elsewhere."""
        self._arrays = [each[..., episodes.start : episodes.stop].copy() for each in self._arrays]
        return self

    def join(self, later: Seen, episodes: range) -> None:
        """Add what was seen of the next episodes."""
        for mine, theirs in zip(self._arrays, later._arrays, strict=True):
            mine[..., episodes.start : episodes.stop] = theirs
        for key, value in later.sums.items():
            self.sums[key] = self.sums[key] + value
        for key, arrays in later.rows.items():
            self.rows[key] += arrays
        for key, noted in later.noted.items():
            self._add(key, noted)
        for part, other in zip(self._parts, later._parts, strict=True):
            part.join(other)


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
    step = "" if finding.step is None else f", step {finding.step}"
    return f"episode {finding.episode}{step}"


def about_episodes(
    check: str, severity: Severity, column: str, text: str, episodes: np.ndarray, *, step: int | None = None
) -> list[Finding]:
    """Return the finding about episodes, if there are any; `{}` in the text stands for their number."""
    distinct = np.unique(episodes)
    if not len(distinct):
        return []
    subject = "1 episode" if len(distinct) == 1 else f"each of {len(distinct):,} episodes"
    return [Finding(check, severity, column, text.format(subject), int(distinct[0]), step, len(distinct))]


class Threshold(NamedTuple):
    """A number that decides whether something is reported, and what it means."""

    value: float
    meaning: str


_TABLE = """
wide rows | 256 | Numbers of a row up to which each is judged; images have more.
fewest rows | 100 | Rows from which constant, saturated and unused numbers are reported.
fewest episodes | 3 | Episodes from which something about most of them is reported.
actions on a bound | 0.25 | Share of an action's values on a bound of its Box.
observations on an extreme | 0.05 | Share of an observation's values on its smallest or largest one.
observations between | 0.05 | Share of its values that must differ from both.
mostly still | 0.5 | Share of the steps up to which a number that is judged for jumps stays the same.
stuck steps | 20 | Steps from which what stays the same is stuck, and an episode is judged.
hardly still | 0.01 | Share of other steps in which a number that freezes stays the same (ours: 0, or 0.028).
frozen episodes | 0.05 | Share of the episodes in which a number may freeze for a while.
episodes of a kind | 10 | Episodes of a task from which those that rest differ from the others.
few values | 8 | Different extremes of an action, over the episodes, up to which it is a switch.
frozen episodes at most | 0.25 | The same, if it never stays the same in the others.
longer rest | 4 | Factor between the rest of an action in a whole episode and in nearly all others.
dropped numbers | 0.8 | Share of the numbers beside rows of zeros that are not zero.
standing still | 0.1 | Share of its median change up to which a number does not move in an episode.
standing dimensions | 0.8 | Share of the numbers that do not move in an episode that stands still.
unit error | 1.8 | Factor by which values and changes may differ from the ratio of two units.
units apart | 4 | Factor between the nearest episodes in two units.
saturated share | 0.15 | Share of an action's values on its extremes in a saturated episode.
saturated episodes | 0.05 | Share of the episodes up to which they are reported as saturated.
saturated ratio | 3 | Factor between their share and that of any other episode.
moving pixel | 0.1 | Share of the brightness by which a pixel changes that moves, without noise.
moving pixels | 0.002 | Share of the pixels that move in a frame that moves.
still frames | 0.05 | Share of other steps in which the frames of a camera that hangs stay the same.
stale frame | 0.2 | Distance of a first frame from the end of the episode before, as a share of its leap.
seam | 3 | Factor by which an observation leaps, against usual changes, where two episodes mix.
late frames | 0.2 | Share of the changes of frames that the speed of the states explains, to judge a delay.
lost frames | 0.005 | Share of the frames from which those that repeat the one before, where noise never does, are reported.
frames with states | 0.6 | Share of an episode's changes of frames that the states leave, where both belong together.
late evidence | 5 | Standard errors, over episodes, by which another delay must be better than none.
same colors | 0.8 | Correlation of the colors of two episodes of one scene.
same scene | 0.9 | Share of the episodes of one scene, to judge its colors.
held rows | 50 | Times that rows are held for the same number of steps.
held share | 0.8 | Share of the changes that come after that number of steps.
moves of held frames | 10 | Moves after that number of steps; with fewer, a video may be at rest.
copied action | 0.02 | Distance of an action from the state that it is, as a share of the usual change.
copied rows | 0.98 | Share of the rows in which they are equal.
moving rows | 0.05 | Share of the rows in which they change.
following | 0.3 | Distance of a state from the action that it follows, in standard deviations.
no action | 0.9 | Correlation with each action below which a number of a state has none.
states without action | 0.25 | How many such numbers there may be, as a share of those with one.
same sense | 0.7 | Correlation of an action with a position, or its change, if they belong together.
clear kind | 0.3 | Difference of the two correlations from which it is clear which is meant.
clear sign | 0.4 | Correlation from which the sign of an episode is clear.
two senses | 0.9 | Share of the episodes of either kind or sign, if there are two.
episodes before | 5 | Episodes before and after the only change of where a switch begins.
unit length | 0.02 | How far the squared length of a quaternion may be from 1.
unit rows | 0.99 | Share of the rows in which four numbers have length 1.
sign flip | 0.9 | Cosine between a quaternion and minus the next one, from which its sign has flipped.
usual changes | 0.99 | Share of the changes of a number that count as usual.
jump ratio | 2 | Factor between the smallest jump and the largest of the rest.
jump size | 3 | Factor between a jump and the largest usual change.
far jump | 20 | The same factor, from which no collision explains a jump.
jumping dimensions | 0.5 | Share of the numbers that jump at once, from which no collision explains it.
jump evidence | 8 | Size of the gap below the jumps, in mean gaps of the tail.
jump share | 0.01 | Share of the steps up to which there may be jumps.
jump habit | 0.5 | Share of the episodes from which jumps at their start, and blank frames, are usual.
fewest steps for jumps | 500 | Steps from which jumps are judged.
copied finals | 0.5 | Share of the episodes whose final observation repeats the one before it.
copied steps | 0.1 | Share of other steps up to which observations may repeat then.
copied by chance | 0.1 | Final observations expected to repeat the one before it, for each that does.
shifted finals | 0.1 | Share of the episodes that end with the first observation of the next one.
shared transitions | 5 | Transitions that occur more than once, from which they are reported.
values | 16384 | Values of an observation from which equal rows are no accident.
values of a row | 0.05 | The same for each row, where there are fewer rows.
there and back | 4 | Steps after which a transition that occurs again in its episode is a copy.
remembered transitions | 2097152 | Transitions that are compared; of more, an even sample is.
reward error | 0.001 | Relative and absolute error up to which a computed reward is equal.
other rewards | 0.5 | Share of the rewards that differ if another formula was used on purpose.
fewest aligned steps | 500 | Steps from which actions and rewards are judged for a shift.
fewest steps to align | 20 | Steps of an episode from which it is judged by itself.
explained changes | 0.05 | Share of the changes that actions explain, to judge episodes (ours: 0.27 to 1).
explained rewards | 0.7 | Share of the rewards' variance that is explained, to judge them.
free actions | 0.1 | Share of the actions' variance that observations do not explain, to judge that.
aligned errors | 0.8 | Errors of a shifted episode as a share of its own ones (ours: 0.9 at least).
aligned evidence | 4 | Standard errors by which they are smaller (ours: 1.6 at most).
usual episodes | 0.75 | Share of the episodes that show what is usual, where others may be odd.
explained whole | 0.5 | Share of a number's changes that all others explain, to ask what happened to an episode.
odd episode | 1.25 | Errors of an episode, against usual ones, from which it is asked what happened to it.
odd evidence | 8 | Standard errors by which they are smaller, if that is undone.
unlike episode | 3 | Factor between the errors of an episode and those of any other, from which it is unlike them.
another order | 0.3 | Distance of the parts of a quaternion in another order, as a share of that in the usual one.
misplaced pictures | 0.5 | Distance of an episode's pictures from the others' in another place, as a share of that as stored.
stub length | 0.05 | Length of a recording that may have failed, as a share of the usual one.
another rate | 1.4 | Factor between the time steps of an episode and usual ones, if its rate is another.
late actions | 0.1 | Errors with actions some steps late, as a share of those now, if observations explain them.
tasks apart | 8 | Distance of the numbers of two tasks, in their spreads, if these tell both apart.
cut episodes | 0.5 | Share of the episodes up to which those that go on in the next one were cut.
numbered tasks | 65535 | The largest number of a task that is no mistake.
return error | 1e-06 | Error of a recorded return, relative to the sum of sizes of rewards.
time step | 3 | Factor from the usual time step, from which steps are missing.
terminations at the horizon | 0.5 | Share of the episodes of the time limit that are terminated, not truncated.
"""
THRESHOLDS = {
    name: Threshold(float(value), meaning)
    for name, value, meaning in (line.split(" | ") for line in _TABLE.strip().splitlines())
}
"""All thresholds of the audit: the table above."""


def limit(name: str) -> float:
    """Return the value of a threshold."""
    return THRESHOLDS[name].value
