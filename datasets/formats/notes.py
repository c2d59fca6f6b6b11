"""Notes: what reading files left out, repaired, or could not know, as a code with names and numbers.

A note becomes a sentence where it is shown: in the description of a version, and in the terminal. The sentences of
formats that the catalogue lists stand in the descriptions of versions, so in their digests, and must not change.

Values that files do not hold are noted while they are read: arrays of HDF5 that nobody wrote, chunks of Zarr that are not stored.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import string
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orlog.manifests.names import said_of

SENTENCES = {
    "own": "{sentence}",
    "partial": "Read in part, as asked for: {lack}",
    "other_environment": "The files name the environment {named}; {given} was given in its place.",
    "conventions": "{sentence}",
    # What was left out
    "left_out": "Left out: {columns}.",
    "left_out_unnamed": "Left out, not named: {columns}.",
    "left_out_no_rows": "Left out, not one row a step: {columns}.",
    "left_out_no_row": "Left out, not a row for each step: {columns}.",
    "left_out_no_meaning": "Left out, of no meaning here: {columns:.200}.",
    "left_out_not_in_all": "Left out, not in all episodes or neither numbers nor texts: {kind} {columns}.",
    "left_out_success": "Left out: success, since {silent} do not state their success.",
    "left_out_repeated": "Left out, since the next one holds it too: {columns}.",
    "left_out_infos": "Infos are left out: those of imitation could run code when they are decoded.",
    "left_out_of_some": "Left out, since only some episodes have it: {columns}.",
    "left_out_instructions": "Instructions are left out: they lie in a pickle, which could run code.",
    "left_out_items": "No {columns} was given: features of items are left out.",
    "columns_not_read": "Not read: {columns}.",
    "not_read": "Not read: {names}.",
    "left_out_by_shift": "Left out at their ends, without a partner: {steps:steps} in each of {episodes:episodes}.",
    "vanished_by_shift": "{episodes:episodes} vanished with them, since they were too short.",
    # What was changed as the user said
    "shift": "Columns were moved by rows within each episode (--shift): {moved}.",
    "flip": "Frames were turned upside down (--flip): {columns}.",
    "bgr": "Red and blue were swapped (--bgr): {columns}.",
    # Meaning of columns
    "pictures": (
        "Frames were decoded from pictures in arrays; cv2 encoded those of ALOHA, RoboTwin and others with red and "
        "blue swapped. {lines} puts them right if they look so."
    ),
    "columns_by_name": "Columns were taken by their names: {roles}.",
    "choices_of_file": (
        "The file does not say how many actions there are: taken to be {count}, since the largest is {largest}."
    ),
    "choices": "Nothing says how many actions there are: taken to be {count}, since the largest is {largest}.",
    "choices_by_largest": "Nothing says how many actions there are: as many as the largest one says.",
    "policy": "The file says of its policy: {facts}.",
    "bandit_rows": (
        "Each row is an episode of one step, and what followed was not recorded; texts of features are numbered in "
        "their sorted order, and positions are counted from 0."
    ),
    "lengths_by_name": "The steps of episodes were taken from {columns}.",
    "rows_without_steps": "{rows:rows} of the arrays hold no step.",
    "no_seeds": "No {file} beside the file, so seeds are not known.",
    "dones_of_robomimic": (
        "robomimic's dones mean success or the end, as the file's maker chose: a last one of 1 was taken to end the "
        "task."
    ),
    "actions_beyond_unit": "No bounds of actions were taken from env_args, since the file leaves them: {outside}.",
    # Rewards
    "rewards_made": "Rewards were not read, but made: --reward {reward}.",
    "rewards_by_end": (
        "Nothing states success: the last step of {count:episodes} that the task ended has a reward of 1."
    ),
    "rewards_all_zero": "No step has a reward other than 0.",
    "rewards_no_column": "No column of rewards was named: they are zeros.",
    "rewards_no_array": "No array of rewards was named: they are zeros.",
    "rewards_none": "No rewards: they are zeros.",
    "rewards_no_reward": "The steps have no reward: rewards are zeros.",
    "rewards_no_rews": "The trajectories have no rews: rewards are zeros.",
    "rewards_of_goals": "The files have no rewards: goals are chosen in training, and rewards here are zeros.",
    "rewards_of_task": (
        "Rewards are those of OGBench 1.2.2 for task {number} of {environment}; an episode ends where the task is "
        "done, and what follows in the files is an episode of its own."
    ),
    # Ends of episodes
    "ends_unknown": "Nothing says how episodes ended: {how}.",
    "ends_of_some_unknown": "Of {count:episodes} nothing says the end: {how}.",
    "ends_or_limit_unknown": "Of {count:episodes} nothing says whether a time limit ended it: {how}.",
    "ends_by_success": (
        "How {count:episodes} ended follows from success: {succeeded:,} succeeded (taken to be {ended}, as {by}) and "
        "{failed:,} failed (taken to be {cut}).{others}"
    ),
    "ends_by_horizon": "The file has no timeouts: episodes were taken to be truncated after {horizon:steps}.",
    "ends_by_gaps": (
        "No column says where a time limit ended an episode: it was taken to be {horizon} steps, as next "
        "observations that no observation follows say."
    ),
    "ends_or_limits": "The file has no flag for time limits; they may be among its terminals.",
    "ends_are_limits": "The file has no flag for the end of the task: all ends are time limits.",
    "ends_by_starts": "{columns} does not say how an episode ended: taken to be truncated.",
    "ends_at_joints": (
        "In {places:places} next_observations is not the observation that follows, and no flag ends the episode: it "
        "was taken to be {how} there."
    ),
    "ends_open": "{where}: the last episode does not end, and was taken to be cut off.",
    # Records of RLDS, and recordings of topics
    "records_left_out": "Left out: {names}.",
    "records_others": "Left out, in the records and not in {document}: {names}.",
    "records_unlisted": "Left out: {files:files} of records that {document} does not list.",
    "records_texts": "Texts and sequences became infos: {names}.",
    "records_no_utf8": "{texts:texts are no UTF-8}: \\x.. stands for the bytes.",
    "records_no_flags": "The steps have no {flags}.",
    "records_moved_rewards": (
        "First steps have no reward, and last steps a reward and no action: rewards were taken to come with the "
        "observation after an action, and moved to that action."
    ),
    "records_wrong_final": (
        "{episodes:episodes have the same last observation, which TensorFlow Datasets took from the end of D4RL's "
        "file: it was left out, and with it the last step of those whose task did not end}."
    ),
    "records_made_last": (
        "{episodes:episodes whose task ended have a reward at their last step, which RLDS calls invalid: it was "
        "taken for a step without a final observation}."
    ),
    "records_no_last": (
        "{episodes:episodes have an action or a reward at their last step, which RLDS calls invalid: it was left out}."
    ),
    "records_no_end": (
        "{episodes:records end without is_last: what followed their last step is not known, and it was left out}."
    ),
    "records_no_start": "{episodes:records begin without is_first}.",
    "records_no_action": "{episodes:records with no action were left out}.",
    "records_cut": "{episodes:episodes have a discount of 0 before a last step that is_terminal does not mark}.",
    "records_go_on": (
        "{episodes:episodes go on after a step that is_terminal marks: infos/is_terminal says for each action "
        "whether it led to one}."
    ),
    "more_messages": "{what}; all of them were read.",
    "names_change": (
        "{columns}: messages with other names beside these follow the first ones, taken to be of one sender."
    ),
    "messages": "{columns}: {messages}; values in rows are at most {age:.3g} seconds old.",
    "messages_nearest": "{columns}: {messages}; values in rows are at most {age:.3g} seconds away from them.",
    "repeated": (
        "{columns}: {repeated:,} of {rows:,} rows have the message of the row before again; of the messages in no row, "
        "{before:,} come before the first row and {after:,} after the last one."
    ),
    "interpolated": (
        "{columns}: values in rows lie on the line between two messages, at most {gap:.3g} seconds apart (--resample "
        "linear)."
    ),
    "clocks": "Messages of {columns} have the times {clock} (--clock).",
    # Values that files do not store
    "never_written": "Never written, so that {library}'s fill value stands for all values: {places}.",
    "chunks_not_stored": (
        "Chunks that are not stored, as a writer leaves out those that hold the fill value alone, or a copy lost "
        "them: the fill value stands for their rows in {places}."
    ),
    "returns_of_others": "{columns} holds {numbers:,} numbers, and there are {episodes:,} episodes.",
    "returns_differ": (
        "{columns} of {episodes:,} episodes are not the sums of their rewards: of episode {first} it is "
        "{stated:.6g}, and they sum up to {summed:.6g}."
    ),
    # Final observations
    "last_rows": "{rows:last rows of episodes were left out, since what followed was} not recorded.",
    "last_steps": (
        "The file has no next_observations: {steps:last steps of episodes that no terminal ended were left out,} "
        "since what followed was not recorded."
    ),
    "vanished": "{episodes:whole episodes were left out with them:} those of one row have no step.",
    "finals_missing": (
        "{episodes:episodes that ended have no final observation; zeros stand for it,} and {columns} is true."
    ),
    "finals_missing_at_terminals": (
        "{episodes:episodes that a terminal ended have no final observation; zeros} stand for it, and {columns} is "
        "true."
    ),
    "final_rows": (
        "In {episodes:episodes} the last two rows are both done: the last one was taken for the final observation "
        "alone."
    ),
    # LeRobotDatasets
    "version_by_files": "info.json has no codebase_version: taken to be {version} by its files.",
    "unlisted": "Read, though info.json does not list them: {columns}.",
    "unlisted_left_out": "Left out, and not listed in info.json: {reasons}.",
    "videos_left_out": "Left out, as asked for: the videos {columns}.",
    "videos": "Frames are what their videos show, not what was recorded: {columns}.",
    "depth_of_no_unit": "Nothing says how numbers of depth become metres; they are as stored: {columns}.",
    "no_reward": "The dataset has no {columns}: rewards are zeros.",
    "no_done": "The dataset has no {columns}: all episodes were taken to be cut off.",
    "no_done_and_ends": "The dataset has no {columns}. {ends}",
    "rounded": "Numbers of the tables were rounded to the dtype that info.json says: {columns}.",
    "words_differ": "{columns} differs among the steps of {count:episodes}; episodes/{columns} holds all of its rows.",
    "frames_in_order": (
        "Frames of {columns} lie up to {off:.4g} s off the timestamps of their rows in {count:files}: each has as "
        "many frames as rows, and they were paired in order."
    ),
    "frames_by_time": (
        "Frames of {columns} lie up to {off:.4g} s off the timestamps of their rows in {count:files}: each row took "
        "the frame next to its time."
    ),
    "frames_of_no_row": "Left out: {count:frames} of videos that belong to no row.",
    "clock": "Timestamps leave the clock of {fps:g} frames a second, by up to {off:.4g} s: {places}.",
    "jumps": "{columns} does not count the rows on: {places}.",
    "rows_elsewhere": (
        "dataset_from_index and dataset_to_index are those of other rows: {places}; the rows were read in their order."
    ),
    "tables_elsewhere": (
        "data/chunk_index and data/file_index name another table: {places}; the rows were read where they are."
    ),
    "statistics_unreadable": "The statistics cannot be read; they were computed anew.",
    "statistics_of_others": (
        "meta/stats.json is of other rows: {columns} reach other least and largest numbers; statistics were computed "
        "anew."
    ),
    "quantiles_of_others": (
        "meta/stats.json has quantiles that more steps leave than it says: {quantiles}; statistics were computed anew."
    ),
    "images_of_others": (
        "meta/stats.json has statistics of other images, in [0, 1]: {images}; statistics were computed anew."
    ),
    # Minari's and TorchRL's files
    "infos_not_in_all": "Left out, not in all episodes: infos {columns}.",
    "had_jpeg": "Minari had stored frames as JPEG, which changed them.",
    "no_tensors": "Left out, no numbers with a row a step: {columns}.",
    "unwritten": "Left out, unwritten: the last {count:rows} of the storage, zeros in all tensors.",
    "no_terminated": "There is no {columns}: what is done was taken to be the end.",
    "environments": "Rows of {count:,} environments; what goes on at the end of a batch is unfinished.",
    "choices_among": "Actions were taken to be a choice among {count}.",
    "ring": "The storage is a ring: its rows were put in the order of time.{rests}",
    "finals_of_zeros": (
        "All episodes end in a next observation of zeros, as in TorchRL's own downloads: taken as missing."
    ),
}
"""The sentence of each code. `{columns}` are the names of a note, `{count:episodes}` is `1 episode` or `2 episodes`, and so is
a whole clause (`said_of`)."""
OF_FINALS = ("finals_missing", "finals_missing_at_terminals")
NOT_IN_LISTED = ("policy", "pictures", "conventions", "not_read")
"""Codes of notes that came later than the versions of listed files, whose digests others know; they are the last ones."""


@dataclasses.dataclass(init=False)
class Note:
    """Something to know about how files were read.

    Attributes:
        code: What it is, a key of `SENTENCES`; `own` for one with a `sentence` of its own.
        columns: Names in the files that it is about.
        values: The other numbers and texts of its sentence, by name.
    """

    code: str
    columns: tuple[str, ...]
    values: dict[str, Any]

    def __init__(self, code: str, columns: Iterable[str] = (), **values: Any) -> None:
        """Make a note; raise KeyError if there is no such code."""
        SENTENCES[code]
        self.code, self.columns, self.values = code, tuple(columns), values

    def __str__(self) -> str:
        """Return its sentence."""
        return _WORDS.format(SENTENCES[self.code], columns=self.columns, **self.values)


class _Words(string.Formatter):
    """Writes numbers with what is counted, and several names with commas."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, int) and format_spec[:1].isalpha():
            return said_of(value, format_spec)
        return format(", ".join(value) if isinstance(value, tuple) else value, format_spec)


_WORDS = _Words()


def sentences(notes: Sequence[Note]) -> list[str]:
    """Return the sentence of each note."""
    return [str(note) for note in notes]


MOST_TOLD = 5


class _Blank(NamedTuple):
    """An array of `total` numbers; of each run of rows, its begin and end and how many numbers a fill value stands for."""

    library: str
    total: int
    fill: str
    runs: list[tuple[int, int, int]]


Blanks = dict[str, _Blank]
"""Arrays with such values, by what errors call them."""
_open: contextvars.ContextVar[Blanks | None] = contextvars.ContextVar("_open", default=None)


@contextlib.contextmanager
def noted_blanks() -> Iterator[Blanks]:
    """Note the values that are read in this context and are in no file."""
    blanks: Blanks = {}
    token = _open.set(blanks)
    try:
        yield blanks
    finally:
        _open.reset(token)


def note_blank(
    library: str, where: str, total: int, rows: tuple[int, int] = (0, 1), missing: int | None = None, fill: Any = ""
) -> bool:
    """Note how many numbers in rows of an array, all by default, are not in its file; return whether an import will tell it."""
    blanks = _open.get()
    if blanks is not None:
        blank = blanks.setdefault(where, _Blank(library, total, str(fill), []))
        if not blank.runs or rows[0] >= blank.runs[-1][1]:  # an array may be read more than once
            blank.runs.append((*rows, total if missing is None else missing))
    return blanks is not None


def note_all(others: Blanks) -> None:
    """Note what was noted elsewhere, where a part of the files was read."""
    for where, blank in others.items():
        for first, last, missing in blank.runs:
            note_blank(blank.library, where, blank.total, (first, last), missing, blank.fill)


def notes_of_blanks() -> list[Note]:
    """Return what was noted so far of values that are not in the files."""
    blanks = _open.get() or {}
    whole: dict[str, list[str]] = {"HDF5": [], "Zarr": []}
    some: dict[str, str] = {}
    for where, blank in blanks.items():
        file, _, inner = where.partition(", ")
        place = f"{inner} in {Path(file).name}" if inner else Path(file).name
        if sum(missing for _, _, missing in blank.runs) == blank.total:
            whole[blank.library].append(place)
        else:
            some[place] = f"{place} ({blank.fill} in {_rows(blank)})"
    notes = [
        Note("never_written", places, library=library, places=_listed(places))
        for library, places in whole.items()
        if places
    ]
    return [*notes, Note("chunks_not_stored", some, places=_listed(some.values()))] if some else notes


def _rows(blank: _Blank) -> str:
    joined: list[tuple[int, int]] = []
    for first, last, _ in blank.runs:
        begin = joined.pop()[0] if joined and joined[-1][1] == first else first
        joined.append((begin, last))
    rows = [f"row {a}" if b == a + 1 else f"rows {a} to {b - 1}" for a, b in joined]
    return _listed(rows, " and ")


def _listed(texts: Iterable[str], sign: str = ", ") -> str:
    several = list(texts)
    more = f" and {len(several) - MOST_TOLD} more" if len(several) > MOST_TOLD else ""
    return sign.join(several[:MOST_TOLD]) + more
