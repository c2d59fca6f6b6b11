"""What the records of an RLDS dataset hold, and which steps and ends of episodes follow from that.

All records are looked at before one is read, since only all of them show which habits a dataset has: whether last
steps hold rewards, and whether final observations are those of their episodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.array_files import pillow
from orlog.datasets.formats.episode_cutter import FLAGS as FLAGS_OF_ENDS
from orlog.datasets.formats.episode_cutter import (
    MISSING,
    OF_STEPS,
    UnknownEnds,
    all_state,
    check_success_stated,
    flags_of,
)
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.rlds.features import (
    FEATURES_FILE,
    INFO_FILE,
    METADATA_FILE,
    Column,
    DatasetInfo,
    Leaf,
    Own,
    Shard,
    image_shape,
    is_number,
    plain_text,
    space_of,
    stated_success,
)
from orlog.datasets.formats.rlds.tfrecords import Span, open_tfrecord, read_example, read_records
from orlog.datasets.formats.rlds.writing import SPLIT
from orlog.datasets.formats.roles import base_role, said_roles
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.columns import can_be_named

MOST_LISTED = 10_000
MOST_OTHERS = 1000
FLAGS = ("is_first", "is_last", "is_terminal")
Columns = Callable[[Leaf], Column]


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
        others: Names in records that are none of these.
        keeps_terminals: Whether `is_terminal` becomes an info, since it is true at steps that do not end an episode.
    """

    def __init__(
        self, leaves: list[Leaf], left_out: dict[str, str], where: str, columns: Mapping[str, str] | None = None
    ) -> None:
        """Sort the features, by their names or as `columns` (`--map`) says."""
        self._where, self._left_out = where, dict(left_out)
        self.observation: dict[str, Leaf] = {}
        self.action: dict[str, Leaf] = {}
        self.flags: dict[str, Leaf] = {}
        self.infos: dict[str, Leaf] = {}
        self.metadata: dict[str, Leaf] = {}
        self.reward: Leaf | None = None
        self._texts: list[str] = []
        self.others: set[str] = set()
        self.keeps_terminals = False
        inside = [leaf.name for leaf in leaves if leaf.name.startswith("steps/")]
        names = [name.removeprefix("steps/") for name in inside]
        self._said = said_roles(columns or {}, names, where)
        for leaf in leaves:
            if leaf.name.startswith("steps/"):
                self._sort(leaf, leaf.name.removeprefix("steps/"))
            else:
                self._sort_metadata(leaf)
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
        self.counter = min(in_steps, key=lambda leaf: (leaf.kind != "numbers", not leaf.size, leaf.size))
        self._wanted = {name for leaf in (*in_steps, *self.metadata.values()) for name in leaf.stored_names}

    def in_steps(self) -> list[Leaf]:
        """Return all features of steps that are read."""
        reward = [] if self.reward is None else [self.reward]
        groups = (self.flags, self.observation, self.action, self.infos)
        return [*(leaf for group in groups for leaf in group.values()), *reward]

    def schema(self, own: Own | None) -> Schema:
        """Return the spaces, those that orlog wrote beside the records if there are some.

        Raises SchemaError if these are not of what the records hold.
        """
        is_double = self.reward is not None and self.reward.dtype not in (np.float32, np.float16)
        schema = Schema(
            observation_space=space_of(self.observation),
            action_space=space_of(self.action),
            reward_dtype=np.dtype(np.float64 if is_double else np.float32),
        )
        if own is None:
            return schema
        stated = dataclasses.replace(schema, observation_space=own.observation_space, action_space=own.action_space)
        if stated.columns() != schema.columns():
            raise SchemaError(
                f"{self._where}, {METADATA_FILE}: its spaces are not of what {FEATURES_FILE} says; remove that file."
            )
        return stated

    def step_bytes(self) -> int:
        """Return about how many bytes a step takes."""
        return sum(max(8, leaf.size * leaf.dtype.itemsize) for leaf in self.in_steps())

    def notes(self, options: Options) -> list[Note]:
        """Return what is left out or not known."""
        known = (*self._left_out, *(f"{name}/" for name in self._left_out))
        others = sorted(name for name in self.others if not name.startswith(known))
        reasons = [f"{name} ({why})" for name, why in sorted(self._left_out.items())]
        notes = [
            Note(code, columns, names=plain_text(", ".join(names), MOST_LISTED), **more)
            for code, columns, names, more in (
                ("records_left_out", self._left_out, reasons, {}),
                ("records_others", others, others, {"document": FEATURES_FILE}),
                ("records_texts", self._texts, self._texts, {}),
            )
            if columns
        ]
        if self.reward is None and not options.reward:
            notes.append(Note("rewards_no_reward"))
        missing = [name for name in FLAGS if name not in self.flags]
        if missing:
            notes.append(Note("records_no_flags", missing, flags=" and no ".join(missing)))
        return notes

    def note_record(self, example: Mapping[str, Any], column: Columns) -> None:
        """Take from a record the names that are not read, and the shapes of images that features.json does not say."""
        if len(self.others) < MOST_OTHERS:
            self.others |= example.keys() - self._wanted
        for group in (self.observation, self.action, self.infos):
            for name, leaf in group.items():
                if leaf.kind == "image" and None in leaf.shape:
                    first = column(leaf)
                    shape = image_shape(first.first_bytes(), leaf.shape, first.where)
                    group[name] = dataclasses.replace(leaf, shape=shape)

    def _sort(self, leaf: Leaf, name: str) -> None:
        """Sort a feature of steps: as the user says, else as RLDS says by its name."""
        if name in self._said:
            role = {"terminated": "is_terminal"}.get(self._said[name], self._said[name])
        else:
            taken = {base_role(role) for role in self._said.values()}
            role = "" if base_role(name) in taken else name
        role, _, part = role.partition("/")
        is_plain = leaf.length is None and leaf.kind != "text"
        if role in ("observation", "action") and is_plain:
            (self.observation if role == "observation" else self.action)[part] = leaf
        elif role in FLAGS and not part and is_number(leaf):
            self.flags[role] = leaf
        elif role == "reward" and not part and is_number(leaf):
            self.reward = leaf
        else:
            name = (part if name in self._said else name).removeprefix("infos/")
            if not can_be_named(f"infos/{name}") or name in self.infos:
                self._left_out[leaf.name] = "a name that no column can have"
                return
            self.infos[name] = leaf
            if role in ("observation", "action"):
                self._texts.append(leaf.name)

    def _sort_metadata(self, leaf: Leaf) -> None:
        is_success = is_number(leaf) and leaf.name.rpartition("/")[2] in OF_STEPS
        name = "success" if is_success and "success" not in self.metadata else leaf.name
        if leaf.name == SPLIT or not can_be_named(f"episodes/{leaf.name}"):
            self._left_out[leaf.name] = "a name that no column can have"
        elif leaf.length is not None or leaf.kind == "image":
            self._left_out[leaf.name] = "a sequence or an image of an episode"
        else:
            self.metadata[name] = leaf


class Record(NamedTuple):
    """What is known of a record before its steps are read."""

    shard: Shard
    span: Span
    rows: int
    starts: bool = False  # is_first at the first step
    ends: bool = False  # is_last at the last one
    is_terminal: bool = False  # at the last one
    goes_on: bool = False  # is_terminal before it
    opened: bool = False  # the first step has a reward
    rewarded: bool = False  # the last step has a reward
    acted: bool = False  # the last step has an action
    ends_in_zeros: bool = False  # the last observation is zeros, and the first one is not
    ends_alike: bool = False  # the last observation is that of the first episode
    has_usual_discounts: bool = True  # 1, and 0 at most before a terminal state
    is_cut: bool = False  # the last discount before the last step is 0, and the task did not end
    success: bool | None = None  # None where nothing states it


def look_at_all(info: DatasetInfo, features: Features, where: str) -> list[Record]:
    """Read all records once: their checksums, their counts, and what their last steps hold."""
    records: list[Record] = []
    first_final: list[bytes] = []
    for shard in info.shards:
        name, before = f"{where}, {shard.path.name}", len(records)
        with open_tfrecord(shard.path, where) as file:
            for number, (span, data) in enumerate(read_records(file, name)):
                what = f"{name}, record {number}"
                records.append(_look(features, Record(shard, span, 0), data, what, first_final))
        if len(records) - before != shard.records:
            raise IntegrityError(
                f"{name}: holds {len(records) - before:,} records, and {INFO_FILE} says {shard.records:,}.", file=where
            )
    if not records:
        raise SchemaError(f"{where}: holds no episode.")
    features.keeps_terminals = any(record.goes_on for record in records)
    if all(record.has_usual_discounts for record in records):
        features.infos.pop("discount", None)
    return records


def _look(features: Features, record: Record, data: bytes, what: str, first_final: list[bytes]) -> Record:
    """Return what a record is; the first one says the final observation of `ends_alike`."""
    example = read_example(data, what)

    def column(leaf: Leaf) -> Column:
        return Column(example, leaf, what)

    def numbers(leaf: Leaf | None) -> np.ndarray:
        return np.zeros(rows) if leaf is None else np.reshape(column(leaf).rows(0, rows), rows)

    rows = len(column(features.counter))
    flags = {name: flags_of(numbers(features.flags.get(name)), name, what) for name in FLAGS}
    starts, ends, terminals = flags.values()
    for name, odd in (("is_first", starts[1:]), ("is_last", ends[:-1])):
        if odd.any():
            raise SchemaError(
                f"{what}: {name} is true at step {int(odd.argmax()) + (name == 'is_first')} of {rows}, "
                "inside of the episode; a record must be one episode."
            )
    features.note_record(example, column)
    if not rows:
        return record
    is_usual, is_cut = _discounts(features.infos.get("discount"), numbers, bool(terminals[-1]))
    parts = [column(leaf) for leaf in features.observation.values() if leaf.dtype.kind == "f"]
    last = [part.rows(rows - 1, rows) for part in parts]
    final = b"".join(values.tobytes() for values in last)
    first_final[:] = first_final or [final]
    is_zero = bool(parts) and not any(values.any() for values in last)
    rewards = numbers(features.reward)
    return record._replace(
        rows=rows,
        starts=bool(starts[0]) or "is_first" not in features.flags,
        ends=bool(ends[-1]),
        is_terminal=bool(terminals[-1]),
        goes_on=bool(terminals[:-1].any()),
        opened=bool(rewards[0] != 0),
        rewarded=bool(rewards[-1] != 0),
        acted=any(
            np.any(column(leaf).rows(rows - 1, rows) != 0) for leaf in features.action.values() if leaf.kind != "image"
        ),
        ends_in_zeros=is_zero and any(part.rows(0, 1).any() for part in parts),
        ends_alike=final == first_final[0],
        has_usual_discounts=is_usual,
        is_cut=is_cut,
        success=stated_success(column, features.metadata, features.infos, rows),
    )


def _discounts(leaf: Leaf | None, numbers: Callable[[Leaf], np.ndarray], is_terminal: bool) -> tuple[bool, bool]:
    """Return whether discounts say nothing new, and whether they are 0 where the task did not end."""
    if leaf is None or not is_number(leaf):
        return leaf is None, False
    values = numbers(leaf)[:-1]
    before, last = values[:-1], values[-1:]
    is_zero = bool((last == 0).all()) and len(last) > 0
    is_usual = bool((before == 1).all()) and (bool((last == 1).all()) or (is_zero and is_terminal))
    return is_usual, is_zero and not is_terminal


class Episode(NamedTuple):
    """A record and what becomes of it."""

    record: Record
    actions: int  # steps; one without any is left out
    is_made: bool  # zeros become its final observation, since the record has no row for it
    is_missing: bool  # its final observation is not known
    terminated: bool
    truncated: bool
    success: bool | None  # None where not all records state it


class Plan(NamedTuple):
    """The episodes, whether the reward of an action is at the step after it, and what was done."""

    episodes: list[Episode]
    moves_rewards: bool
    notes: list[Note]


def plan_episodes(records: list[Record], info: DatasetInfo, features: Features, options: Options, where: str) -> Plan:
    """Return how many steps each record gives, and how its episode ends.

    Raises SchemaError if the user says something of unknown ends, and there are none, or an episode is longer.
    """
    is_robotic = any(record.acted for record in records)
    is_rewarded = any(record.rewarded for record in records)
    # TensorFlow Datasets' D4RL takes the last row of the file in place of that of the episode.
    has_wrong_final = (
        info.name.startswith("d4rl_")
        and len(records) > 1
        and all(record.ends_alike and record.ends for record in records)
        and not (is_robotic or is_rewarded)
    )
    moves_rewards = is_rewarded and not is_robotic and not any(r.opened for r in records)
    keeps_last = not moves_rewards and any(r.is_terminal and r.rewarded for r in records)
    episodes: list[Episode] = []
    cut_short: list[bool] = []  # the action or reward of the last step is left out
    for record in records:
        is_made = record.is_terminal and (keeps_last or has_wrong_final)
        knows_end = record.ends and not record.is_terminal and "is_terminal" in features.flags
        cut_short.append(not is_made and not moves_rewards and (record.rewarded or record.acted))
        episodes.append(
            Episode(
                record,
                actions=max(0, record.rows - has_wrong_final - (not is_made)),
                is_made=is_made,
                is_missing=is_made or (record.is_terminal and record.ends_in_zeros),
                terminated=record.is_terminal,
                truncated=knows_end,
                success=record.success,
            )
        )
    notes = [Note("records_moved_rewards")] if moves_rewards else []
    made = sum(episode.is_made for episode in episodes)
    says_end = "is_last" in features.flags
    for code, count, *columns in (
        ("records_wrong_final", len(records) * has_wrong_final),
        ("records_made_last", made * (not has_wrong_final)),
        ("records_no_last", sum(cut_short)),
        ("finals_missing", sum(episode.is_missing for episode in episodes), f"episodes/{MISSING}"),
        ("records_no_end", sum(not record.ends for record in records) * says_end),
        ("records_no_start", sum(not record.starts for record in records)),
        ("records_no_action", sum(not episode.actions for episode in episodes)),
        ("records_cut", sum(record.is_cut for record in records)),
        ("records_go_on", sum(record.goes_on for record in records)),
    ):
        if count:
            notes.append(Note(code, tuple(columns), episodes=count))
    # A record that ends without the is_last of others just stops.
    has_both = {"is_last", "is_terminal"} <= features.flags.keys()
    states, more = all_state([record.success for record in records], options, where)
    unknown = UnknownEnds(options, where, says=FLAGS_OF_ENDS if has_both else ())
    for index, episode in enumerate(episodes):
        episode = episode._replace(success=episode.success if states else None)
        if episode.actions and not (episode.terminated or episode.truncated):
            how = unknown.how(episode.actions + cut_short[index], episode.success)
            episode = episode._replace(terminated=how == "terminated", truncated=how == "truncated")
        episodes[index] = episode
    more += unknown.notes()
    if unknown.count and not has_both:
        if not states:
            check_success_stated(options, where)
        if not unknown.notes():
            more.append(unknown.note())
    return Plan([episode for episode in episodes if episode.actions], moves_rewards, notes + more)
