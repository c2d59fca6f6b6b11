"""Reads and writes TorchRL's data: TensorDicts in files, as `memmap`, `LazyMemmapStorage` and `dumps` keep them.

    observation  action  collector/traj_ids                     of step t
    next/observation  next/reward  next/done  next/terminated  next/truncated      after it
    batches of two axes: [environments, time] as collectors give them, [time, environments] in a buffer's storage
    DUMP/storage/..   DUMP/storage/storage_metadata.json "len"   DUMP/writer/metadata.json "cursor"
                      the same, as a replay buffer's `dumps(DUMP)` makes it

`torchrl/tensors.py` shows the files. Tensors that are also in `next` are observations: `observation`
alone becomes a Box, several a Dict. Episodes end at a flag and where the trajectory's id changes; everywhere
else the next observation must be the observation that follows. TorchRL's own downloads have zeros as the next
observation of all ends: those are taken as missing, as `episode_cutter.py` says. All other
tensors with a row a step become infos. https://docs.pytorch.org/rl
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.episode_cutter import EpisodeCutter, Rows, UnknownEnds, ends_of_lengths, flags_of
from orlog.datasets.formats.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import as_dtype, count_choices, unbounded_space
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.roles import base_role, said_roles
from orlog.datasets.formats.safe_reading import rows_differ
from orlog.datasets.formats.torchrl.tensors import (
    FLAGS,
    IDS,
    INFO,
    META,
    NEXT,
    OBSERVATION,
    Batch,
    TensorColumn,
    losses_of_tensors,
    open_tensors,
    read_document,
    write_tensors,
)
from orlog.errors import OrlogError, SchemaError
from orlog.manifests.names import counted

BLOCK_BYTES = 2**22  # stays in the cache of the processor
META_KEYS = tuple(
    f"*meta.json:{key}" for key in ("_type", "device", "shape", "next", "info", "collector", "traj_ids", "done")
)
COUNTERS = ("step_count", "index", "_weight", "priority")
MOST_TOLD = 10


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    where = asked.sources[0]
    folder, filled, cursor, writes = _storage(asked.files[0], where)
    arrays, left_out, shape = open_tensors(folder, where)
    is_dump, size = filled is not None, math.prod(shape)
    if not is_dump:
        filled, cursor = _written(arrays, shape)
    batch = _batch(shape, filled, cursor if filled == size else 0, where)
    tensors = {name: TensorColumn(array, batch, f"{where}, {name}") for name, array in arrays.items()}
    is_ring = filled == size and (batch.oldest > 0 or writes > batch.steps)
    mapped = said_roles(asked.options.columns, list(tensors), where)
    reader = _Reader(tensors, where, batch, mapped, is_ring=is_ring)
    if size > batch.rows_filled and not is_dump:
        reader.notes.append(Note("unwritten", count=size - batch.rows_filled))
    if left_out:
        reader.notes.append(Note("no_tensors", left_out))
    parts = [name.rpartition("/") for name in tensors]
    yield Opened(
        schema=reader.schema,
        steps=reader.steps(asked.options),
        total_steps=batch.rows_filled,
        notes=reader.notes,
        reads=[f"*{inner}{sign}meta.json:{last}" for inner, sign, last in parts],
    )


def _storage(root: Path, where: str) -> tuple[Path, int | None, int, int]:
    """Return the folder of the tensors; and of a dump how many rows are filled, which is written next, and all writes."""
    storage = root / "storage"
    if (root / META).is_file() or storage.is_symlink():
        return root, None, 0, 0
    filled, writer = read_document(storage / "storage_metadata.json", where).get("len"), {}
    if (root / "writer" / "metadata.json").is_file():
        writer = read_document(root / "writer" / "metadata.json", where)
    cursor, writes = writer.get("cursor", 0), writer.get("write_count", 0)
    if type(filled) is not int or filled < 1 or {type(cursor), type(writes)} != {int}:
        raise SchemaError(f"{where}: expected len and cursor as counts, found {filled!r:.20}.")
    return storage, filled, cursor, writes


def _written(arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> tuple[int | None, int]:
    """Return how many rows of a buffer's own folder are written, and the oldest; None for batches of a collector.

    Time is the axis along which ids of trajectories stay the same. They grow with it, and fall once where a ring goes on.
    """
    ids = next((arrays[name] for name in IDS if name in arrays), None)
    is_id = ids is not None and ids.dtype.kind in "iu" and ids.size == math.prod(shape)
    ids = np.reshape(ids, shape) if ids is not None and is_id else np.zeros(shape)
    if len(shape) == 2:
        stays = np.sum(ids[1:] == ids[:-1]), np.sum(ids[:, 1:] == ids[:, :-1])
        if not is_id or stays[0] <= stays[1]:
            return None, 0
    ids = ids.reshape(shape[0], -1)
    (falls,) = np.nonzero((ids[1:] < ids[:-1]).any(axis=1))
    is_ring = len(falls) == 1 and (ids[-1] <= ids[0]).all()
    lanes, count = ids.shape[1], math.prod(shape)
    rows = _rows_before_zeros(
        {name: array.reshape(count, -1).view(np.uint8) for name, array in arrays.items()},
        [name for name, array in arrays.items() if array.dtype != bool],
        count,
    )
    return -(-rows // lanes) * lanes, int(falls[0]) + 1 if is_ring else 0


def _rows_before_zeros(rows: Mapping[str, np.ndarray], numbers: Sequence[str], count: int) -> int:
    """Return how many rows of a storage were written, by their bytes: what follows is zeros to the end, as it was made.

    Zeros that the row before them leads to may be steps, as where states are numbers; and so may zeros alone.
    `numbers` are the tensors that are no flags.
    """
    block = max(1, BLOCK_BYTES // max(1, sum(array.shape[1] for array in rows.values())))
    stop, last = count, -1
    while stop and last < 0:
        start = max(0, stop - block)
        for array in rows.values():
            written = np.flatnonzero(array[start:stop].any(axis=1))
            last = max(last, *(start + written[-1:]).tolist(), -1)
        stop = start
    after = [name for name in rows if name.startswith(NEXT) and name != f"{NEXT}reward"]
    leads_on = last >= 0 and not any(rows[name][last].any() for name in after)
    has_states = any(name in numbers for name in after)
    return count if last < 0 or (has_states and leads_on) else last + 1


def _batch(shape: tuple[int, ...], filled: int | None, cursor: int, where: str) -> Batch:
    """Return where rows lie, of a storage as far as it is filled; None if it is no storage."""
    if filled is None:
        return Batch(shape, math.prod(shape[:-1]), shape[-1], in_turn=False)
    environments, count = math.prod(shape[1:]), min(filled, math.prod(shape))
    if count % environments:
        raise SchemaError(f"{where}: {filled:,} filled rows are not as many of each of {environments:,} environments.")
    steps = count // environments
    return Batch(shape, environments, steps, environments > 1, max(0, cursor) % steps)


class _Reader:
    """Reads the steps of tensors, checked before a value is read.

    Attributes:
        schema: Spaces.
        notes: What is not known.
    """

    def __init__(
        self, tensors: dict[str, TensorColumn], where: str, batch: Batch, mapped: Mapping[str, str], *, is_ring: bool
    ) -> None:
        """Find out what the tensors are."""
        self._where, self.notes, self._is_ring = where, list[Note](), is_ring
        self._tensors, self._batch = tensors, batch
        self._flags = [flag for flag in FLAGS if f"{NEXT}{flag}" in tensors]
        missing = [name for name in ("action", f"{NEXT}reward") if name not in tensors]
        if missing or not self._flags:
            lack = f"has no tensor {missing[0]}" if missing else "expected next/done"
            raise SchemaError(
                f"{where}: {lack}, so these are no steps of TorchRL; found {', '.join(tensors) or 'none'}."
            )
        if "terminated" not in self._flags:
            self.notes.append(Note("no_terminated", [f"{NEXT}terminated"]))
        if batch.environments > 1:
            self.notes.append(Note("environments", count=batch.environments))
        self._ids = next((name for name in IDS if name in tensors), None)
        self._observations = self._find_observations(mapped)
        seen = [*self._observations.values()]
        self._has_next = all(f"{NEXT}{name}" in tensors for name in seen)
        used = {"action", f"{NEXT}reward", self._ids, *COUNTERS, *seen}
        used |= {*FLAGS, *(f"{NEXT}{name}" for name in (*FLAGS, *seen))}
        self._infos = {
            f"infos/{name.removeprefix(NEXT).removeprefix(INFO)}": name
            for name in tensors
            if name not in used and not (mapped and name.removeprefix(NEXT) in tensors.keys() - {name})
        }
        self._choices = _choices(tensors["action"], where)
        if self._choices:
            self.notes.append(Note("choices_among", count=self._choices))
        parts = {role.partition("/")[2]: _space(tensors[name]) for role, name in self._observations.items()}
        actions = spaces.Discrete(self._choices) if self._choices else _space(tensors["action"])
        is_single = tensors[f"{NEXT}reward"].dtype == np.float32
        self.schema = Schema(
            observation_space=parts[""] if "" in parts else spaces.Dict(parts),
            action_space=actions,
            reward_dtype=np.dtype(np.float32 if is_single else np.float64),
        )

    def _find_observations(self, mapped: Mapping[str, str]) -> dict[str, str]:
        """Return the tensors of observations by their roles, such as `observation/NAME`."""
        roles = {role: name for name, role in mapped.items()}
        odd = [role for role in roles if base_role(role) != OBSERVATION]
        if odd or (OBSERVATION in roles and len(roles) > 1):
            raise SchemaError(
                f"{self._where}: columns=, {odd[0] if odd else OBSERVATION}: TorchRL's names say what all "
                "but observations are; give columns={'observation': 'TENSOR'}, or 'observation/NAME' of each part."
            )
        others = {*FLAGS, *COUNTERS, "action", "reward", self._ids}
        in_next = [n for n in self._tensors if n not in others and f"{NEXT}{n}" in self._tensors]
        usual = [n for n in self._tensors if n.split("/")[0] in (OBSERVATION, "pixels", "state")]
        names = [*roles.values()] or in_next or usual
        if not names:
            raise SchemaError(
                f"{self._where}: no tensor is also in next, and none is named observation; found "
                f"{', '.join(self._tensors)}."
            )
        for name in names:
            column = self._tensors[name]
            after = self._tensors.get(f"{NEXT}{name}", column)
            if (after.dtype, after.shape) != (column.dtype, column.shape):
                raise SchemaError(
                    f"{after.where}: expected {column.dtype} of shape {column.shape} as of {name}, found "
                    f"{after.dtype} of shape {after.shape}."
                )
        if roles or names == [OBSERVATION]:
            return roles or {OBSERVATION: OBSERVATION}
        return {f"{OBSERVATION}/{name.removeprefix(f'{OBSERVATION}/')}": name for name in names}

    def steps(self, options: Options) -> Iterator[Steps]:
        """Yield all steps, in pieces; one that no flag ends just stops, if the user does not say otherwise."""
        ends = self._ends()
        unknown = UnknownEnds(options, self._where, says=("terminated", "truncated"))
        lengths = ends_of_lengths(np.diff(ends, prepend=-1))
        cutter = EpisodeCutter(lengths, self._where, unknown=unknown)
        if self._is_ring:
            self.notes.append(Note("ring", rests=self._rests(ends)))
        is_missing = self._has_next and self._ends_in_zeros(ends)
        if is_missing:
            self.notes.append(Note("finals_of_zeros"))
        row_bytes = sum(tensor.dtype.itemsize * math.prod(tensor.shape[1:]) for tensor in self._tensors.values())
        block, count = max(1, BLOCK_BYTES // row_bytes), self._batch.rows_filled
        for start in range(0, count, block):
            rows = self._rows(start, min(count, start + block))
            if self._has_next:
                self._check_following(rows, start, ends)
            if is_missing:
                rows = {role: values for role, values in rows.items() if not role.startswith("next_")}
            yield from cutter.add(rows)
        self.notes += cutter.notes()

    def _ends(self) -> np.ndarray:
        parts: list[np.ndarray] = []
        count, block, lanes = self._batch.rows_filled, 2**20, self._batch.ends()
        for start in range(0, count, block):
            stop = min(count, start + block)
            ends = np.zeros(stop - start, bool)
            for flag in self._flags:
                ends |= self._flag(flag, start, stop)
            ends |= self._new_id_after(start, stop)
            ends[lanes[(start <= lanes) & (lanes < stop)] - start] = True
            parts.append(start + np.flatnonzero(ends))
        return np.concatenate(parts)

    def _new_id_after(self, start: int, stop: int) -> np.ndarray:
        """Return after which rows the id of the trajectory changes."""
        changes = np.zeros(stop - start, bool)
        if self._ids is not None:
            ids = self._column(self._ids, start, min(self._batch.rows_filled, stop + 1))
            changes[: len(ids) - 1] = ids[1:] != ids[:-1]
        return changes

    def _rests(self, ends: np.ndarray) -> str:
        """Return what a ring has lost of its oldest episodes, one of each environment."""
        starts = self._batch.ends() - self._batch.steps + 1
        if "step_count" in self._tensors:
            starts = starts[[bool(self._column("step_count", row, row + 1)) for row in starts]]
        rests = (ends[np.searchsorted(ends, starts)] - starts + 1).tolist()
        steps = " and ".join(counted(rest, "step") for rest in rests[:MOST_TOLD])
        which = "The first episode is a rest" if len(rests) == 1 else "The first episodes are rests"
        return f" {which} of {steps}: what came before was overwritten." if rests else ""

    def _ends_in_zeros(self, ends: np.ndarray) -> bool:
        """Return whether no episode has a final observation but zeros."""
        finals = [self._tensors[f"{NEXT}{name}"] for name in self._observations.values()]
        return all(tensor.dtype.kind == "f" for tensor in finals) and not any(
            tensor[end : end + 1].view(np.uint8).any() for end in ends.tolist() for tensor in finals
        )

    def _check_following(self, rows: Rows, start: int, ends: np.ndarray) -> None:
        """Refuse next observations that are not the observation of the next row of their episode."""
        stop = start + len(rows["action"])
        goes_on = np.ones(stop - start, bool)
        goes_on[ends[np.searchsorted(ends, start) : np.searchsorted(ends, stop)] - start] = False
        follows = np.ones(stop - start, bool)
        for role, name in self._observations.items():
            after = rows[f"next_{role}"]
            # One row more, but at the end, where the last row ends an episode anyway.
            one_more = self._tensors[name][stop : stop + 1]
            differ = rows_differ(after[:-1], rows[role][1:])
            differ = np.append(differ, rows_differ(after[-1:][: len(one_more)], one_more))
            follows = follows[: len(differ)] & ~differ
            self._refuse(
                differ & goes_on[: len(differ)],
                start,
                f"{NEXT}{name} is not the {name} of the next row, and neither a flag nor an id ends an episode. "
                "Shuffled rows and rows of several environments in turn cannot be put together again: save them "
                "episode by episode.",
            )
        if set(self._flags) == set(FLAGS):
            only_done = self._flag("done", start, stop) & ~(rows["terminated"] | rows["truncated"])
            only_done &= ~self._new_id_after(start, stop)
            self._refuse(
                follows & only_done[: len(follows)],
                start,
                "next/done ends an episode, but the row is neither terminated nor truncated, and the next one "
                "goes on from it. Save the data again.",
            )

    def _refuse(self, odd: np.ndarray, start: int, why: str) -> None:
        """Refuse rows, of which the first one is row `start` of the file."""
        if odd.any():
            count = int(odd.sum())
            row = start + int(odd.argmax())
            raise SchemaError(f"{self._where}: at row {row}, one of {count} such rows, {why}")

    def _rows(self, start: int, stop: int) -> Rows:
        rows: Rows = {}
        for role, name in self._observations.items():
            rows[role] = _numbers(self._tensors[name][start:stop])
            if self._has_next:
                rows[f"next_{role}"] = _numbers(self._tensors[f"{NEXT}{name}"][start:stop])
        actions = self._tensors["action"][start:stop]
        if self._choices:
            is_one_hot = actions.ndim == 2 and actions.shape[1] > 1
            actions = np.argmax(actions, axis=1) if is_one_hot else actions.reshape(-1)
            actions = actions.astype(np.int64)
        rows["action"] = _numbers(actions)
        name, dtype = f"{NEXT}reward", self.schema.reward_dtype
        rewards = self._column(name, start, stop)
        rows["reward"] = as_dtype(rewards, dtype, f"{self._where}, {name}", start)
        flags = {flag: self._flag(flag, start, stop) for flag in self._flags}
        if set(flags) == set(FLAGS):
            self._refuse(
                ~flags["done"] & (flags["terminated"] | flags["truncated"]),
                start,
                "next/done contradicts next/terminated and next/truncated. Save the data again.",
            )
        done = flags.get("done", np.zeros(stop - start, bool))
        rows["terminated"] = flags.get("terminated", done & ~flags.get("truncated", ~done))
        rows["truncated"] = flags.get("truncated", done & ~rows["terminated"])
        return rows | {role: self._tensors[name][start:stop] for role, name in self._infos.items()}

    def _flag(self, flag: str, start: int, stop: int) -> np.ndarray:
        values = self._column(f"{NEXT}{flag}", start, stop)
        return flags_of(values, f"{NEXT}{flag}", self._where, first=start)

    def _column(self, name: str, start: int, stop: int) -> np.ndarray:
        values = self._tensors[name][start:stop]
        if values.size != len(values):
            raise SchemaError(f"{self._where}, {name}: expected one number a row, found rows of {values.shape[1:]}.")
        return values.reshape(-1)


def _space(column: TensorColumn) -> gymnasium.Space[Any]:
    """Return the space of a tensor's rows, whose bounds are not known; flags are 0 and 1."""
    if column.dtype == bool:
        return spaces.Box(0, 1, column.shape[1:], np.int8)
    return unbounded_space(column.dtype, column.shape[1:])


def _numbers(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int8) if values.dtype == bool else values


def _choices(actions: TensorColumn, where: str) -> int:
    """Return among how many actions each one is a choice: a number, or one-hot; 0 if they are none."""
    if actions.dtype.kind not in "biu" or actions.shape[1:] in ((), (1,)):
        return count_choices(actions, where)
    if len(actions.shape) != 2:
        return 0
    block = max(1, BLOCK_BYTES // (8 * actions.shape[1]))
    for start in range(0, len(actions), block):
        values = actions[start : start + block]
        if ((values != 0) & (values != 1)).any() or (values.sum(axis=1) != 1).any():
            return 0
    return actions.shape[1]


def _recognizes(files: Sequence[Path]) -> bool:
    for folder in (files[0], files[0] / "storage"):
        with contextlib.suppress(OrlogError):
            body = read_document(folder / META, "")
            return "next" in body and "action" in body
    return False


FORMAT = Format(
    name="torchrl-memmap",
    open=_open,
    recognizes=_recognizes,
    extensions=("",),
    options=("columns", "horizon", "ends"),
    write=write_tensors,
    losses=losses_of_tensors,
    reads=("./*.memmap", *META_KEYS, "*metadata.json:**"),
)
