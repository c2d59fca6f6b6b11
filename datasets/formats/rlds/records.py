"""What the records of an RLDS dataset hold, and which steps and ends of episodes follow from that.

All records are looked at before one is read, since only all of them show which habits a dataset has: whether last
steps hold rewards, and whether final observations are those of their episodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._shared.episode_cutter import MISSING
from orlog.datasets.formats._shared.episodes import Options
from orlog.datasets.formats._shared.flags import FLAGS as FLAGS_OF_ENDS
from orlog.datasets.formats._shared.flags import (
    OF_STEPS,
    UnknownEnds,
    all_state,
    check_success_stated,
    flags_of,
)
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.pictures import pillow
from orlog.datasets.formats._shared.roles import base_role, said_roles
from orlog.datasets.formats.rlds.metadata import (
    FEATURES_FILE,
    INFO_FILE,
    METADATA_FILE,
    DatasetInfo,
    Leaf,
    Own,
    plain_text,
)
from orlog.datasets.formats.rlds.tfrecords import open_tfrecord, read_example, read_records
from orlog.datasets.formats.rlds.values import (
    Column,
    image_shape,
    is_number,
    space_of,
    stated_success,
    stored_names,
)
from orlog.datasets.formats.rlds.writing import SPLIT
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.columns import can_be_named

MOST_LISTED = 10_000
MOST_OTHERS = 1000
FLAGS = ("is_first", "is_last", "is_terminal")


class Features:
    """What the features of a record are here.

    Attributes:
        observation: Features of observations, by the path of the part of the space.
        action: Features of actions, likewise.
        reward: Feature of rewards, if there is one.
        flags: Features `is_first`, `is_last` and `is_terminal`, those that there are.
        infos: Other features of steps, by the name of the column.
        metadata: Features of episodes, by the name of the column.
        counter: A feature that has one value a step, by which steps are counted.
        wanted: Names in a record of all of these.
        others: Names in records that are none of them.
        keeps_discount: Whether discounts say what nothing else says.
        keeps_terminals: Whether `is_terminal` does, since it is true at steps that do not end an episode.
    """

    def __init__(
        self,
        leaves: list[Leaf],
        left_out: dict[str, str],
        where: str,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        """Sort the features, by their names or as `columns` (`--map`) says.

        Raises SchemaError if they are not those of RLDS; MissingExtraError if there are images, and Pillow is
        not installed.
        """
        self._where, self._left_out = where, dict(left_out)
        self.observation: dict[str, Leaf] = {}
        self.action: dict[str, Leaf] = {}
        self.flags: dict[str, Leaf] = {}
        self.infos: dict[str, Leaf] = {}
        self.metadata: dict[str, Leaf] = {}
        self.reward: Leaf | None = None
        self._texts: list[str] = []
        self.others: set[str] = set()
        self.keeps_discount = self.keeps_terminals = False
        inside = [leaf.name for leaf in leaves if leaf.name.startswith("steps/")]
        names = [name.removeprefix("steps/") for name in inside]
        self._said = said_roles(columns or {}, names, where)
        for leaf in leaves:
            self._sort(leaf)
        if not self.observation or not self.action:
            raise SchemaError(
                f"{where}: expected features steps/observation and steps/action of RLDS, found "
                f"{', '.join(leaf.name for leaf in leaves)[:500] or 'none'}; say which is which: "
                "columns={'observation/NAME': 'FEATURE', 'action': 'FEATURE'}"
            )
        in_steps = self.in_steps()
        if any(leaf.kind == "image" for leaf in in_steps):
            pillow(where)
        # The quickest one to count: numbers are counted by their bytes or their last bits.
        self.counter = min(
            in_steps, key=lambda leaf: (leaf.kind != "numbers", not leaf.size, leaf.size)
        )
        self.wanted = {
            name for leaf in (*in_steps, *self.metadata.values()) for name in stored_names(leaf)
        }

    def in_steps(self) -> list[Leaf]:
        """Return all features of steps that are read."""
        reward = [] if self.reward is None else [self.reward]
        groups = (self.flags, self.observation, self.action, self.infos)
        return [*(leaf for group in groups for leaf in group.values()), *reward]

    def reward_dtype(self) -> np.dtype[Any]:
        """Return float32, or float64 where rewards need it."""
        is_double = self.reward is not None and self.reward.dtype not in (np.float32, np.float16)
        return np.dtype(np.float64 if is_double else np.float32)

    def schema(self, own: Own | None) -> Schema:
        """Return the spaces, those that orlog wrote beside the records if there are some.

        Raises SchemaError if these are not of what the records hold.
        """
        found = Schema(
            observation_space=space_of(self.observation),
            action_space=space_of(self.action),
            reward_dtype=self.reward_dtype(),
        )
        if own is None:
            return found
        told = dataclasses.replace(
            found, observation_space=own.observation_space, action_space=own.action_space
        )
        if told.columns() != found.columns():
            raise SchemaError(
                f"{self._where}, {METADATA_FILE}: its spaces are not of what {FEATURES_FILE} says; remove "
                "that file."
            )
        return told

    def step_bytes(self) -> int:
        """Return about how many bytes a step takes."""
        return sum(max(8, leaf.size * leaf.dtype.itemsize) for leaf in self.in_steps())

    def notes(self, options: Options) -> list[Note]:
        """Return what is left out or not known."""
        notes = []
        if self._left_out:
            listed = ", ".join(f"{name} ({why})" for name, why in sorted(self._left_out.items()))
            names = plain_text(listed, MOST_LISTED)
            notes.append(Note("records_left_out", self._left_out, names=names))
        known = (*self._left_out, *(f"{name}/" for name in self._left_out))
        others = sorted(one for one in self.others if not one.startswith(known))
        if others:
            names = plain_text(", ".join(others), MOST_LISTED)
            notes.append(Note("records_others", others, names=names, document=FEATURES_FILE))
        if self._texts:
            names = plain_text(", ".join(self._texts), MOST_LISTED)
            notes.append(Note("records_texts", self._texts, names=names))
        if self.reward is None and not options.reward:
            notes.append(Note("rewards_no_reward"))
        missing = [name for name in FLAGS if name not in self.flags]
        if missing:
            notes.append(Note("records_no_flags", missing, flags=" and no ".join(missing)))
        return notes

    def find_image_shapes(self, column: Callable[[Leaf], Column]) -> None:
        """Take the shapes of images that features.json does not say from a record."""
        for group in (self.observation, self.action, self.infos):
            for name, leaf in group.items():
                if leaf.kind == "image" and None in leaf.shape:
                    first = column(leaf)
                    shape = image_shape(first.first_bytes(), leaf.shape, first.where)
                    group[name] = dataclasses.replace(leaf, shape=shape)

    def _sort(self, leaf: Leaf) -> None:
        first, _, rest = leaf.name.partition("/")
        if first != "steps" or not rest:
            self._sort_metadata(leaf)
            return
        role, _, part = self._role(rest).partition("/")
        is_plain = leaf.length is None and leaf.kind != "text"
        if role in ("observation", "action") and is_plain:
            (self.observation if role == "observation" else self.action)[part] = leaf
        elif role in FLAGS and not part and is_number(leaf):
            self.flags[role] = leaf
        elif role == "reward" and not part and is_number(leaf):
            self.reward = leaf
        else:
            name = (part if rest in self._said else rest).removeprefix("infos/")
            if not can_be_named(f"infos/{name}") or name in self.infos:
                self._left_out[leaf.name] = "a name that no column can have"
                return
            self.infos[name] = leaf
            if role in ("observation", "action"):
                self._texts.append(leaf.name)

    def _role(self, name: str) -> str:
        """Return what a feature of steps is: what the user says, else what RLDS says by its name."""
        if name in self._said:
            return {"terminated": "is_terminal"}.get(self._said[name], self._said[name])
        taken = {base_role(one) for one in self._said.values()}
        return "" if base_role(name) in taken else name

    def _sort_metadata(self, leaf: Leaf) -> None:
        is_any_length = leaf.length is not None or leaf.kind == "image"
        is_success = is_number(leaf) and leaf.name.rpartition("/")[2] in OF_STEPS
        name = "success" if is_success and "success" not in self.metadata else leaf.name
        if leaf.name == SPLIT or not can_be_named(f"episodes/{leaf.name}"):
            self._left_out[leaf.name] = "a name that no column can have"
        elif is_any_length:
            self._left_out[leaf.name] = "a sequence or an image of an episode"
        else:
            self.metadata[name] = leaf


LOOK = np.dtype(
    [
        ("shard", "i4"),
        ("start", "i8"),
        ("stop", "i8"),
        ("rows", "i8"),
        ("starts", "?"),  # is_first at the first step
        ("ends", "?"),  # is_last at the last one
        ("terminal", "?"),  # is_terminal at the last one
        ("terminals", "i8"),  # is_terminal before it
        ("opened", "?"),  # the first step has a reward
        ("rewarded", "?"),  # the last step has a reward
        ("acted", "?"),  # the last step has an action
        ("zeros", "?"),  # the last observation is zeros, and the first one is not
        ("same", "?"),  # the last observation is that of the first episode
        ("discount", "?"),  # discounts are 1, and 0 at most before a terminal state
        ("cut", "?"),  # the last discount before the last step is 0, and the task did not end
        ("success", "i1"),  # whether the episode succeeded; -1 where nothing states it
    ]
)
"""What is known of a record before episodes are read."""


def look_at_all(info: DatasetInfo, features: Features, where: str) -> np.ndarray:
    """Read all records once: their checksums, their counts, and what their last steps hold."""
    rows: list[tuple[Any, ...]] = []
    first_final: list[bytes] = []
    for number, shard in enumerate(info.shards):
        name, before = f"{where}, {shard.path.name}", len(rows)
        with open_tfrecord(shard.path, where) as file:
            for record, (span, data) in enumerate(read_records(file, name)):
                look = _look(features, data, f"{name}, record {record}", first_final)
                rows.append((number, *span, *look))
        if len(rows) - before != shard.records:
            raise IntegrityError(
                f"{name}: holds {len(rows) - before:,} records, and {INFO_FILE} says {shard.records:,}.",
                file=where,
            )
    if not rows:
        raise SchemaError(f"{where}: holds no episode.")
    looks = np.array(rows, LOOK)
    features.keeps_discount = "discount" in features.infos and not looks["discount"].all()
    features.keeps_terminals = bool(looks["terminals"].any())
    if not features.keeps_discount:
        features.infos.pop("discount", None)
    return looks


def _look(features: Features, data: bytes, what: str, first_final: list[bytes]) -> tuple[Any, ...]:
    """Return what a record is, from `rows` of `LOOK` on; the first one says the final observation of `same`."""
    example = read_example(data, what)
    if len(features.others) < MOST_OTHERS:
        features.others |= example.keys() - features.wanted

    def column(leaf: Leaf) -> Column:
        return Column(example, leaf, what)

    rows = len(column(features.counter))
    flags = {
        name: flags_of(column(leaf).rows(0, rows).reshape(rows), name, what)
        for name, leaf in features.flags.items()
    }
    starts, ends, terminals = (flags.get(name, np.zeros(rows, bool)) for name in FLAGS)
    for name, odd in (("is_first", starts[1:]), ("is_last", ends[:-1])):
        if odd.any():
            raise SchemaError(
                f"{what}: {name} is true at step {int(odd.argmax()) + (name == 'is_first')} of {rows}, "
                "inside of the episode; a record must be one episode."
            )
    if not rows:
        return (0, *[False] * 3, 0, *[False] * 5, True, False, -1)
    features.find_image_shapes(column)
    is_terminal = bool(terminals[-1])
    discounts, cut = _discounts(features, column, rows, is_terminal)
    final, zeros = _final(features, column, rows)
    first_final[:] = first_final or [final]
    rewards = np.zeros(rows)
    if features.reward is not None:
        rewards = column(features.reward).rows(0, rows).reshape(rows)
    acted = any(
        np.any(column(leaf).rows(rows - 1, rows) != 0)
        for leaf in features.action.values()
        if leaf.kind != "image"
    )
    return (
        rows,
        bool(starts[0]) or "is_first" not in flags,
        bool(ends[-1]),
        is_terminal,
        int(terminals[:-1].sum()),
        rewards[0] != 0,
        rewards[-1] != 0,
        acted,
        zeros,
        final == first_final[0],
        discounts,
        cut,
        stated_success(column, features.metadata, features.infos, rows),
    )


def _discounts(
    features: Features, column: Callable[[Leaf], Column], rows: int, is_terminal: bool
) -> tuple[bool, bool]:
    leaf = features.infos.get("discount")
    if leaf is None or not is_number(leaf):
        return leaf is None, False
    values = column(leaf).rows(0, rows).reshape(rows)[:-1]
    before, last = values[:-1], values[-1:]
    is_zero = bool((last == 0).all()) and len(last) > 0
    usual = bool((before == 1).all()) and (bool((last == 1).all()) or (is_zero and is_terminal))
    return usual, is_zero and not is_terminal


def _final(features: Features, column: Callable[[Leaf], Column], rows: int) -> tuple[bytes, bool]:
    """Return the floats of the last observation, and whether they are zeros unlike the first."""
    parts = [column(leaf) for leaf in features.observation.values() if leaf.dtype.kind == "f"]
    last = [part.rows(rows - 1, rows) for part in parts]
    is_zero = bool(parts) and not any(values.any() for values in last)
    zeros = is_zero and any(part.rows(0, 1).any() for part in parts)
    return b"".join(values.tobytes() for values in last), zeros


class Plan:
    """How many steps each record gives, and how its episode ends.

    Attributes:
        actions: Steps of each episode; one without any is left out.
        missing: Whether its final observation is not known.
        made: Whether zeros are put there, since the record has no row for it.
        terminated: Whether the task ended.
        truncated: Whether it was cut off.
        moves_rewards: Whether the reward of an action is at the step after it.
        success: Whether each succeeded; None where not all records state it.
        notes: What was done, and why.
    """

    def __init__(self, looks: np.ndarray, info: DatasetInfo, features: Features) -> None:
        rows, terminal = looks["rows"], looks["terminal"]
        # TensorFlow Datasets' D4RL takes the last row of the file in place of that of the episode.
        has_wrong_final = (
            info.name.startswith("d4rl_")
            and len(looks) > 1
            and bool((looks["same"] & looks["ends"]).all())
            and not (looks["acted"] | looks["rewarded"]).any()
        )
        self.moves_rewards = bool(
            looks["rewarded"].any() and not looks["acted"].any() and not looks["opened"].any()
        )
        keeps_last = bool((terminal & looks["rewarded"]).any()) and not self.moves_rewards
        rows = rows - has_wrong_final
        self.made = terminal & (keeps_last or has_wrong_final)
        self.actions = np.maximum(0, rows - ~self.made)
        self.missing = self.made | (terminal & looks["zeros"])
        self.terminated = terminal.copy()
        self._flags = {*features.flags}
        self.truncated = looks["ends"] & ~terminal & ("is_terminal" in features.flags)
        self._left_out = (
            ~self.made & (looks["rewarded"] | looks["acted"]) & (not self.moves_rewards)
        )
        self.success = [None if one < 0 else bool(one) for one in looks["success"]]
        self.notes: list[Note] = []
        self._tell(looks, keeps_last, has_wrong_final, features)

    def end_unknown(self, options: Options, where: str) -> None:
        """End the episodes of which the records do not say how they ended.

        Raises SchemaError if the user says something of it, and there is none, or one is longer.
        """
        # A record that ends without the is_last of others just stops.
        has_both = {"is_last", "is_terminal"} <= self._flags
        states, notes = all_state(self.success, options, where)
        self.success = self.success if states else [None] * len(self.success)
        unknown = UnknownEnds(options, where, says=FLAGS_OF_ENDS if has_both else ())
        for index in np.flatnonzero(~(self.terminated | self.truncated) & (self.actions > 0)):
            length = int(self.actions[index] + self._left_out[index])
            how = unknown.how(length, self.success[index])
            self.terminated[index], self.truncated[index] = (how == one for one in FLAGS_OF_ENDS)
        notes += unknown.notes()
        if unknown.count and not has_both and not states:
            check_success_stated(options, where)
        if unknown.count and not has_both and not unknown.notes():
            notes.append(unknown.note())
        self.notes += notes

    def _tell(
        self, looks: np.ndarray, keeps_last: bool, has_wrong_final: bool, features: Features
    ) -> None:
        if self.moves_rewards:
            self.notes.append(Note("records_moved_rewards"))
        if has_wrong_final:
            self._add("records_wrong_final", len(looks))
        elif keeps_last:
            self._add("records_made_last", int(self.made.sum()))
        self._add("records_no_last", int(self._left_out.sum()))
        self._add("finals_missing", int(self.missing.sum()), f"episodes/{MISSING}")
        if "is_last" in features.flags:
            self._add("records_no_end", int((~looks["ends"]).sum()))
        self._add("records_no_start", int((~looks["starts"]).sum()))
        self._add("records_no_action", int((self.actions == 0).sum()))
        self._add("records_cut", int(looks["cut"].sum()))
        if features.keeps_terminals:
            self._add("records_go_on", int((looks["terminals"] > 0).sum()))

    def _add(self, code: str, count: int, *columns: str) -> None:
        if count:
            self.notes.append(Note(code, columns, episodes=count))
