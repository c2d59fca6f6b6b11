"""The table of planted defects: what goes wrong when data are recorded, converted, joined or labelled.

The last word of a name says which episodes have it: `every` one, a `few` (each seventh), the second `half`, or `one` (the sixth).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Draft = dict[str, Any]
"""An episode: its arrays and values by name, in one dictionary."""
Change = Callable[[Any], object]
Rows = Callable[[np.ndarray], Any]
FLAGS = ("terminations", "truncations")
STATE = ("state", "achieved_goal", "desired_goal", "pose", "cup", "image", "wrist")  # one row more than steps
TASKS = ("reach for the red cup", "reach for the blue cup")


class Defect(NamedTuple):
    """What is planted.

    Attributes:
        sets: The sets that can have it: m(aze), a(rm), r(unner), l(ander).
        checks: The checks whose finding names it, separated by commas.
        change: Changes an episode in place; where its name does not say which, all of them together.
    """

    sets: str
    checks: str
    change: Change


def made(name: str, change: Callable[[Any], Any]) -> Change:
    """Return what replaces a column or a value by what a function makes of it."""
    return lambda draft: draft.update({name: change(draft[name])})


def put(name: str, rows: Any, numbers: Any, value: Any) -> Change:
    """Return what puts a value into numbers of some rows of a column, or what a function makes of those there."""

    def change(draft: Draft) -> None:
        column = draft[name]
        place = rows if column.ndim == 1 else (rows, *numbers) if isinstance(numbers, tuple) else (rows, numbers)
        column[place] = value(column[place]) if callable(value) else value

    return change


def late(steps: int) -> Rows:
    """Return what stores rows some steps late, or early if it is negative; the first or last ones are repeated."""
    return lambda rows: rows[np.clip(np.arange(len(rows)) - steps, 0, len(rows) - 1)]


def times(factor: float) -> Rows:
    """Return what multiplies."""
    return lambda rows: rows * np.asarray(factor, rows.dtype)


def clipped(share: float) -> Rows:
    """Return what clips numbers to a share of the largest size of each."""
    return lambda rows: np.clip(rows, *np.abs(rows).max(axis=0) * np.array([[-share], [share]], rows.dtype))


def noisy(rows: np.ndarray) -> np.ndarray:
    """Add noise of a fifth of the standard deviation of each number."""
    noise = np.random.default_rng(0).normal(size=rows.shape)
    return np.asarray(rows + 0.2 * rows.std(axis=0) * noise, rows.dtype)


def static(rows: np.ndarray) -> np.ndarray:
    """Return noise in place of frames."""
    return np.random.default_rng(0).integers(0, 256, rows.shape, np.uint8)


def dropped(frames: np.ndarray) -> np.ndarray:
    """Let 15 % of the frames be that of the step before, as where frames are lost on the way."""
    is_lost = np.random.default_rng(0).random(len(frames)) < 0.15
    return np.asarray(frames[np.maximum(np.arange(len(frames)) - is_lost, 0)])


def pairs(rows: np.ndarray) -> np.ndarray:
    """Hold each row for two steps."""
    return np.asarray(rows[np.arange(len(rows)) // 2 * 2])


def neighbors(rows: np.ndarray) -> np.ndarray:
    """Exchange ten rows with the next ones."""
    order, places = np.arange(len(rows)), 5 + 4 * np.arange(10)
    order[places], order[places + 1] = places + 1, places
    return np.asarray(rows[order])


def columns(draft: Draft) -> list[str]:
    """Return the names of actions, rewards and all observations."""
    return ["actions", "rewards", *(name for name in STATE if name in draft)]


def all_columns(change: Rows, *clocks: str) -> Change:
    """Return what replaces actions, rewards, all observations, and clocks."""
    return lambda draft: draft.update(
        {name: change(draft[name]) for name in (*columns(draft), *clocks) if name in draft}
    )


def finals(change: Rows) -> Change:
    """Return what replaces the final observation by what a function makes of a column."""
    return lambda draft: [draft[name].__setitem__(-1, change(draft[name])) for name in columns(draft)[2:]]


def take(draft: Draft, rows: np.ndarray, *, anew: bool = True) -> None:
    """Take some steps of an episode in a new order, each with the observation before it, and the last one after them.

    Flags are those of its end; clocks are set `anew`, as if nothing had happened.
    """
    clocks = {name: draft[name] for name in ("step", "timestamp") if name in draft}
    draft |= {name: (np.arange(len(rows)) == len(rows) - 1) & draft[name][-1] for name in FLAGS}
    draft |= {name: draft[name][np.append(rows, rows[-1] + 1) if name in STATE else rows] for name in columns(draft)}
    for name, times in clocks.items():
        draft[name] = np.arange(len(rows)) * (times[1] - times[0]) if anew else times[rows]
    more = {"length": len(rows), "return": float(draft["rewards"].sum())}
    draft |= {name: value for name, value in more.items() if name in draft}


def taken(choose: Callable[[int], Any], *, anew: bool = True) -> Change:
    """Return what takes the steps that a function of their number chooses."""
    return lambda draft: take(draft, np.asarray(choose(len(draft["rewards"]))), anew=anew)


def stub(draft: Draft) -> None:
    """Keep the first two steps, as of a recording that failed."""
    take(draft, np.arange(2))
    ended(False, True)(draft)


def ended(*flags: bool) -> Change:
    """Return what sets the last termination and truncation."""
    return lambda draft: [draft[name].__setitem__(-1, flag) for name, flag in zip(FLAGS, flags, strict=True)]


def as_changes(draft: Draft) -> None:
    """Store how the arm moves in place of where it shall go."""
    draft["actions"][:, :6] = np.diff(draft["state"][:, :6], axis=0)


def as_state(draft: Draft) -> None:
    """Store where the arm is in place of where it shall go."""
    draft["actions"][:, :6] = draft["state"][:-1, :6]


def with_action_before(draft: Draft) -> None:
    """Let observations hold the action of the step before."""
    before = np.concatenate([0 * draft["actions"][:1], draft["actions"]])
    draft["state"] = np.concatenate([draft["state"], before], axis=1)


def copied(first: int, second: int) -> Change:
    """Return what stores an episode in place of another one, in the split of that one."""

    def change(drafts: list[Draft]) -> None:
        split = {"split": drafts[second]["split"]} if "split" in drafts[second] else {}
        drafts[second] = copy.deepcopy(drafts[first]) | {"seed": None} | split

    return change


def splice(drafts: list[Draft]) -> None:
    """Put forty steps of one episode into another."""
    for name in columns(drafts[1]):
        drafts[5][name][20:60] = drafts[1][name][20:60]


def join(drafts: list[Draft]) -> None:
    """Store two episodes as one; their boundary is lost."""
    first, second = drafts[4], drafts.pop(5)
    clocks = [name for name in ("step", "timestamp") if name in first]
    for name in (*columns(first), *FLAGS, *clocks):
        first[name] = np.concatenate([first[name], second[name][1 if name in STATE else 0 :]])
    take(first, np.arange(len(first["rewards"])))


def cut(drafts: list[Draft]) -> None:
    """Cut each sixth episode in two."""
    for number in range(len(drafts) - 1, 0, -6):
        rest, count = copy.deepcopy(drafts[number]), len(drafts[number]["rewards"])
        take(rest, np.arange(count // 2, count))
        take(drafts[number], np.arange(count // 2))
        ended(False, True)(drafts[number])
        drafts.insert(number + 1, rest)


def seam(row: int, other: int) -> Change:
    """Return what stores an observation of the episode before (`row` 0) or of the next one (-1) at a seam."""

    def change(drafts: list[Draft]) -> None:
        for (before, after), name in itertools.product(itertools.pairwise(drafts), columns(drafts[0])[2:]):
            draft, source = (after, before) if row == 0 else (before, after)
            draft[name][row] = source[name][other]

    return change


def foreign_frames(drafts: list[Draft]) -> None:
    """Store the frames of the episode before each seventh."""
    for number in range(7, len(drafts), 7):
        drafts[number]["image"] = drafts[number - 1]["image"].copy()


ALL, BIT = slice(None), slice(30, 35)
TURN = slice(3, 7)  # the quaternion of a pose
FIT, OF_ACTIONS, OF_REWARDS, DEGREES = "alignment", "alignment,sense of actions", "rewards,alignment", 180 / np.pi
TABLE: dict[str, tuple[str, str, Change]] = {
    # actions
    "actions a step late, few": ("marl", FIT, made("actions", late(1))),
    "actions a step late, every": ("marl", FIT, made("actions", late(1))),
    "actions a step early, few": ("marl", FIT, made("actions", late(-1))),
    "actions three steps late, every": ("marl", FIT, made("actions", late(3))),
    "an action reversed, few": ("mar", OF_ACTIONS, put("actions", ALL, 1, times(-1))),
    "two actions exchanged, few": ("mar", OF_ACTIONS, put("actions", ALL, [0, 1], lambda rows: rows[:, ::-1])),
    "two choices exchanged, few": ("l", OF_ACTIONS, made("actions", lambda rows: np.array([0, 3, 2, 1])[rows])),
    "gripper reversed in actions, half": ("a", OF_ACTIONS, put("actions", ALL, 6, lambda rows: 1 - rows)),
    "changes declared as positions, half": ("a", OF_ACTIONS, as_changes),
    "actions are the state of their row, every": ("a", "copies", as_state),
    "observations hold the action before, every": ("a", "copies", with_action_before),
    "actions clipped, one": ("ar", "saturated", made("actions", clipped(0.4))),
    "an action frozen, one": ("mar", "stuck", put("actions", ALL, 0, lambda rows: rows[:1])),
    "an action never recorded, every": ("mar", "unused actions", put("actions", ALL, 1, 0)),
    "a choice never recorded, every": ("l", "unused actions", made("actions", lambda rows: rows % 3)),
    "a joint of actions lost, every": ("a", "unused actions", made("actions", lambda rows: np.delete(rows, 4, axis=1))),
    "an action out of range, one": ("mr", "bounds", put("actions", 30, 0, 2.5)),
    "actions in degrees, few": ("a", "units", put("actions", ALL, slice(6), times(DEGREES))),
    # rewards
    "rewards a step late, few": ("marl", OF_REWARDS, made("rewards", late(1))),
    "rewards a step early, every": ("marl", OF_REWARDS, made("rewards", late(-1))),
    "rewards zero, few": ("arl", OF_REWARDS, made("rewards", times(0))),
    "rewards zero, every": ("marl", f"{OF_REWARDS},constant", made("rewards", times(0))),
    "rewards ten times as large, few": ("marl", OF_REWARDS, made("rewards", times(10))),
    "rewards negated, few": ("marl", OF_REWARDS, made("rewards", times(-1))),
    "a spike of the reward, one": ("marl", "rewards,jumps", put("rewards", 30, 0, 1e5)),
    "a reward that is NaN, one": ("marl", "finite", put("rewards", 30, 0, np.nan)),
    "returns that are no sums, few": ("r", "returns", made("return", lambda old: old + 5)),
    # ends
    "ends without any flag, every": ("marl", "flags", ended(False, False)),
    "ends without any flag, few": ("marl", "flags", ended(False, False)),
    "time limits as terminations, every": ("mar", "flags", ended(True, False)),
    "terminations as truncations, every": ("l", "flags", ended(False, True)),
    "a flag inside of an episode, one": ("marl", "flags", put("truncations", 30, 0, True)),
    "two episodes joined": ("marl", "jumps,flags", join),
    "episodes cut in two": ("marl", "final observations,flags", cut),
    "an episode of two steps, one": ("marl", "lengths,flags", stub),
    # episodes and steps
    "an episode twice": ("marl", "duplicates", copied(1, 5)),
    "an episode of the test set in training": ("r", "duplicates", copied(50, 5)),
    "an episode in two splits, one": ("r", "splits", made("split", lambda _: "train,test")),
    "an episode in no split, one": ("r", "splits", made("split", lambda _: "")),
    "steps copied into another episode": ("marl", "duplicates,jumps", splice),
    "steps twice, few": ("mar", "duplicates", taken(lambda n: np.sort(np.r_[:n, 30:40]))),
    "steps twice, every": ("mar", "held,duplicates", taken(lambda n: np.repeat(np.arange(n), 2))),
    "an episode backwards, one": ("marl", OF_ACTIONS, all_columns(lambda rows: rows[::-1].copy())),
    "steps exchanged with the next, one": ("ar", "times", all_columns(neighbors, "timestamp", "step")),
    "steps lost, one": ("marl", "times,jumps", taken(lambda n: np.r_[:40, 50:n], anew=False)),
    "steps lost and numbered anew, one": ("marl", "jumps", taken(lambda n: np.r_[:40, 50:n])),
    # numbers that were seen
    "a sensor frozen, few": ("marl", "stuck", put("state", slice(30, 70), 1, lambda rows: rows[:1])),
    "all sensors frozen, one": ("mar", "stuck", put("state", ALL, ALL, lambda rows: rows[:1])),
    "a sensor dead, every": ("marl", "constant", put("state", ALL, 1, 0)),
    "NaN for some steps, one": ("marl", "finite", put("state", BIT, 0, np.nan)),
    "an infinite number, one": ("marl", "finite", put("state", 30, 0, np.inf)),
    "zeros for some steps, few": ("marl", "dropouts,jumps", put("state", BIT, ALL, 0)),
    "a spike of a sensor, one": ("marl", "jumps", put("state", 30, 0, 50)),
    "radians as degrees, half": ("ar", "units", put("state", ALL, slice(2, 6), times(DEGREES))),
    "meters as millimeters, half": ("a", "units", put("pose", ALL, slice(3), times(1000))),
    "meters as millimeters, few": ("m", "units", made("state", times(1000))),
    "signs of a quaternion flip, few": ("a", "quaternions", put("pose", slice(30, 60), TURN, times(-1))),
    "quaternions as xyzw, few": ("a", "quaternions", put("pose", ALL, TURN, lambda rows: np.roll(rows, -1, axis=1))),
    "quaternions without length 1, few": ("a", "quaternions", put("pose", ALL, TURN, times(1.3))),
    "two sensors exchanged, few": ("marl", OF_ACTIONS, put("state", ALL, [0, 1], lambda rows: rows[:, ::-1])),
    "a sensor reversed, few": ("marl", OF_ACTIONS, put("state", ALL, 1, times(-1))),
    "a sensor with an offset, few": ("a", OF_ACTIONS, put("state", ALL, 1, lambda rows: rows + np.float32(0.4))),
    "a sensor three steps late, few": ("mar", OF_ACTIONS, put("state", ALL, 1, late(3))),
    "noise on all sensors, few": ("mar", OF_ACTIONS, made("state", noisy)),
    "sensors clipped, every": ("r", "saturated", put("state", ALL, slice(8, 17), clipped(0.1))),
    "states held for two steps, every": ("mar", "held", made("state", pairs)),
    "final observations repeat, every": ("marl", "final observations", finals(lambda rows: rows[-2])),
    "final observations repeat, few": ("marl", "final observations", finals(lambda rows: rows[-2])),
    "final observations zero, few": ("marl", "final observations,frames", finals(lambda _: 0)),
    "final observations of the next episode": ("marl", "final observations,jumps", seam(-1, 0)),
    "first observations of the one before": ("marl", "final observations,frames", seam(0, -1)),
    # cameras
    "black frames, few": ("a", "frames", put("image", BIT, ALL, 0)),
    "white frames, one": ("a", "frames", put("image", BIT, ALL, 255)),
    "half a frame, few": ("a", "frames", put("image", BIT, slice(16, None), 0)),
    "frames of noise, few": ("a", "frames", put("image", BIT, ALL, static)),
    "camera hangs, few": ("a", "frames", put("image", slice(30, 70), ALL, lambda rows: rows[:1])),
    "camera a step late, every": ("a", "frames", made("image", late(1))),
    "camera five steps late, every": ("a", "frames", made("image", late(5))),
    "camera two steps early, every": ("a", "frames", made("image", late(-2))),
    "camera five steps late, few": ("a", "frames", made("image", late(5))),
    "each frame for two steps, every": ("a", "held", made("image", pairs)),
    "frames dropped, every": ("a", "frames,held", made("image", dropped)),
    "frames dropped, few": ("a", "frames,held", made("image", dropped)),
    "red and blue exchanged, half": ("a", "frames", made("image", lambda rows: rows[..., ::-1].copy())),
    "red and blue exchanged, few": ("a", "frames", made("image", lambda rows: rows[..., ::-1].copy())),
    "a color lost, few": ("a", "frames", put("image", ALL, (ALL, ALL, 0), 0)),
    "frames mirrored, few": ("a", "frames", made("image", lambda rows: rows[:, :, ::-1].copy())),
    "frames upside down, few": ("a", "frames", made("image", lambda rows: rows[:, ::-1].copy())),
    "cameras exchanged, few": ("a", "frames", lambda draft: draft.update(image=draft["wrist"], wrist=draft["image"])),
    "frames of the episode before": ("a", "frames", foreign_frames),
    # clocks and labels
    "a time leaps, one": ("arl", "times", made("timestamp", lambda rows: rows + 5 * (np.arange(len(rows)) > 40))),
    "a time goes back, one": ("arl", "times", made("timestamp", lambda rows: rows - (np.arange(len(rows)) > 40))),
    "a time repeats, few": ("arl", "times", made("timestamp", lambda rows: rows[np.r_[0:40, 39, 41 : len(rows)]])),
    "times in milliseconds, few": ("arl", "times", made("timestamp", times(1000))),
    "times at half the rate, few": ("arl", "times", made("timestamp", times(2))),
    "a time stands still, every": ("arl", "times", made("timestamp", times(0))),
    "lengths that are not, few": ("ar", "lengths", made("length", lambda old: old - 1)),
    "no episode succeeds, every": ("a", "success", made("success", lambda _: False)),
    "tasks exchanged, few": ("a", "tasks", made("task", lambda words: TASKS[words == TASKS[0]])),
    "tasks without words, few": ("a", "tasks", made("task", lambda _: "")),
}
DEFECTS = {name: Defect(*row) for name, row in TABLE.items()}


def plant(name: str, drafts: list[Draft]) -> None:
    """Plant a defect in every episode, in each seventh, in the second half or in the sixth, as its name says."""
    chosen = {"every": drafts, "few": drafts[2::7], "half": drafts[len(drafts) // 2 :], "one": drafts[5:6]}
    for each in chosen.get(name.rpartition(", ")[2], [drafts]):
        DEFECTS[name].change(each)
