"""Reads and writes TorchRL's data: TensorDicts in files, as `memmap`, `LazyMemmapStorage` and `dumps` keep them.

    observation  action  collector/traj_ids                     of step t
    next/observation  next/reward  next/done  next/terminated  next/truncated      after it
    batches of two axes: [environments, time] as collectors give them, [time, environments] in a buffer's storage
    DUMP/storage/..   DUMP/storage/storage_metadata.json "len"   DUMP/writer/metadata.json "cursor"
                      the same, as a replay buffer's `dumps(DUMP)` makes it

`torchrl/tensordict_files.py` shows the files. Tensors that are also in `next` are observations: `observation`
alone becomes a Box, several a Dict. Episodes end at a flag and where the trajectory's id changes; everywhere
else the next observation must be the observation that follows. TorchRL's own downloads have zeros as the next
observation of all ends: those are taken as missing, as `_shared/episode_cutter.py` says. All other
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
from orlog.datasets.formats._containers.row_bytes import rows_differ
from orlog.datasets.formats._shared.episode_cutter import EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats._shared.flags import UnknownEnds, flags_of
from orlog.datasets.formats._shared.flat_rows import as_dtype, count_choices, unbounded_space
from orlog.datasets.formats._shared.roles import base_role, said_roles
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.torchrl.tensordict_files import (
    FLAGS,
    IDS,
    INFO,
    META,
    NEXT,
    OBSERVATION,
    Batch,
    TensorColumn,
    read_document,
    tensor_columns,
    written_rows,
)
from orlog.datasets.formats.torchrl.writing import losses_of_tensors, write_tensors
from orlog.errors import OrlogError, SchemaError
from orlog.manifests.names import counted

BLOCK_BYTES = 2**22  # stays in the cache of the processor
META_KEYS = tuple(
    f"*meta.json:{key}"
    for key in ("_type", "device", "shape", "next", "info", "collector", "traj_ids", "done")
)
COUNTERS = ("step_count", "index", "_weight", "priority")
MOST_TOLD = 10


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    where = asked.sources[0]
    folder, filled, oldest, writes = _storage(asked.files[0], where)
    tensors, left_out, batch = tensor_columns(folder, where, filled)
    is_dump = filled is not None
    if not is_dump:
        filled, oldest = _undumped(tensors, batch)
    is_full = filled is not None and filled == math.prod(batch.shape)
    oldest = oldest if is_full and oldest > 0 else 0
    tensors, left_out, batch = tensor_columns(folder, where, filled, oldest)
    said = said_roles(asked.options.columns, list(tensors), where)
    is_ring = is_full and (oldest > 0 or writes > batch.steps)
    reader = _Reader(tensors, where, batch, said, is_ring=is_ring)
    unwritten = math.prod(batch.shape) - batch.count
    if unwritten and not is_dump:
        reader.doubts.append(
            f"Left out, unwritten: the last {counted(unwritten, 'row')} of the storage, zeros in all tensors."
        )
    opened = Opened(
        schema=reader.schema, steps=iter(()), total_steps=reader.count, notes=reader.doubts
    )
    parts = [name.rpartition("/") for name in tensors]
    opened.reads = [f"*{inner}{sign}meta.json:{last}" for inner, sign, last in parts]
    if left_out:
        opened.doubts.append(f"Left out, no numbers with a row a step: {', '.join(left_out)}.")
    opened.steps = reader.steps(asked.options)
    yield opened


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


def _undumped(tensors: Mapping[str, TensorColumn], batch: Batch) -> tuple[int | None, int]:
    """Return how many rows of a buffer's own folder are written, and the oldest; None for batches of a collector.

    Time is the axis along which ids of trajectories stay the same. They grow with it, and fall once where a ring goes on.
    """
    name = next((name for name in IDS if name in tensors), "")
    is_id = name and tensors[name].dtype.kind in "iu" and math.prod(tensors[name].shape[1:]) == 1
    ids = tensors[name][: batch.count].reshape(batch.shape) if is_id else np.zeros(batch.shape)
    stays = (
        [np.sum(ids[1:] == ids[:-1]), np.sum(ids[:, 1:] == ids[:, :-1])] if ids.ndim == 2 else []
    )
    if stays and (not is_id or stays[0] <= stays[1]):
        return None, 0
    ids = ids.reshape(batch.shape[0], -1)
    (falls,) = np.nonzero((ids[1:] < ids[:-1]).any(axis=1))
    is_ring = len(falls) == 1 and (ids[-1] <= ids[0]).all()
    lanes = ids.shape[1]
    return -(-written_rows(tensors) // lanes) * lanes, int(falls[0]) + 1 if is_ring else 0


class _Reader:
    """Reads the steps of tensors, checked before a value is read.

    Attributes:
        count: Steps.
        schema: Spaces.
        doubts: What is not known.
    """

    def __init__(
        self,
        tensors: dict[str, TensorColumn],
        where: str,
        batch: Batch,
        said: Mapping[str, str],
        *,
        is_ring: bool,
    ) -> None:
        """Find out what the tensors are.

        Raises SchemaError if action, reward, flags or observations are missing, or something else than
        observations is said to be another tensor.
        """
        self._where, self.doubts = where, list[Any]()
        self._tensors = tensors
        for needed in ("action", f"{NEXT}reward"):
            if needed not in tensors:
                raise SchemaError(
                    f"{where}: has no tensor {needed}, so these are no steps of TorchRL; found "
                    f"{', '.join(tensors) or 'none'}."
                )
        self._flags = [flag for flag in FLAGS if f"{NEXT}{flag}" in tensors]
        if not self._flags:
            raise SchemaError(f"{where}: nothing says where episodes end: expected next/done.")
        if "terminated" not in self._flags:
            self.doubts.append("There is no next/terminated: what is done was taken to be the end.")
        self.count, self._lanes, self._batch = batch.count, batch.ends(), batch
        self._is_ring = is_ring
        if batch.environments > 1:
            self.doubts.append(
                f"Rows of {batch.environments:,} environments; what goes on at the end of a batch is unfinished."
            )
        self._ids = next((name for name in IDS if name in tensors), None)
        self._parts = self._observations(said)
        self._has_next = self._follow()
        used = {"action", f"{NEXT}reward", self._ids}
        used |= {*FLAGS, *(f"{NEXT}{flag}" for flag in FLAGS), *COUNTERS}
        used |= {*self._parts.values(), *(f"{NEXT}{name}" for name in self._parts.values())}
        self._infos = {
            name.removeprefix(NEXT).removeprefix(INFO): name
            for name in tensors
            if name not in used
            and not (said and name.removeprefix(NEXT) in tensors.keys() - {name})
        }
        self._choices = _choices(tensors["action"], where)
        if self._choices:
            self.doubts.append(f"Actions were taken to be a choice among {self._choices}.")
        reward = tensors[f"{NEXT}reward"].dtype
        self.schema = Schema(
            observation_space=self._observation_space(),
            action_space=spaces.Discrete(self._choices)
            if self._choices
            else _space(tensors["action"]),
            reward_dtype=np.dtype(np.float32 if reward == np.float32 else np.float64),
        )

    def steps(self, options: Options) -> Iterator[Steps]:
        """Yield all steps, in pieces; one that no flag ends just stops, if the user does not say otherwise.

        Raises SchemaError if next observations are not those that follow; IntegrityError if a file changed
        while it was read.
        """
        ends = self._ends()
        unknown = UnknownEnds(options, self._where, says=("terminated", "truncated"))
        lengths = ends_of_lengths(np.diff(ends, prepend=-1))
        cutter = EpisodeCutter(lengths, self._where, unknown=unknown)
        if self._is_ring:
            self.doubts.append(self._about_ring(ends))
        is_missing = self._has_next and self._ends_in_zeros(ends)
        if is_missing:
            self.doubts.append(
                "All episodes end in a next observation of zeros, as in TorchRL's own downloads: taken as "
                "missing."
            )
        row_bytes = sum(
            one.dtype.itemsize * math.prod(one.shape[1:]) for one in self._tensors.values()
        )
        block = max(1, BLOCK_BYTES // row_bytes)
        for start in range(0, self.count, block):
            rows = self._rows(start, min(self.count, start + block))
            if self._has_next:
                self._check_following(rows, start, ends)
            if is_missing:
                rows = {role: one for role, one in rows.items() if not role.startswith("next_")}
            yield from cutter.add(rows)
        self.doubts += cutter.doubts()

    def _observations(self, said: Mapping[str, str]) -> dict[str, str]:
        """Return the tensors of observations, by the part of the space that they are."""
        parts = {role.partition("/")[2]: name for name, role in said.items()}
        odd = [role for role in said.values() if base_role(role) != "observation"]
        if odd or ("" in parts and len(parts) > 1):
            raise SchemaError(
                f"{self._where}: columns=, {odd[0] if odd else 'observation'}: TorchRL's names say what all "
                "but observations are; give columns={'observation': 'TENSOR'}, or 'observation/NAME' of each part."
            )
        if parts:
            return parts
        others = {*FLAGS, *COUNTERS, "action", "reward", self._ids}
        names = [
            name
            for name in self._tensors
            if name not in others and f"{NEXT}{name}" in self._tensors
        ]
        if not names:
            names = [
                one
                for one in self._tensors
                if one.split("/")[0] in (OBSERVATION, "pixels", "state")
            ]
        if not names:
            raise SchemaError(
                f"{self._where}: no tensor is also in next, and none is named observation; found "
                f"{', '.join(self._tensors)}."
            )
        if names == [OBSERVATION]:
            return {"": OBSERVATION}
        return {name.removeprefix(f"{OBSERVATION}/"): name for name in names}

    def _follow(self) -> bool:
        """Return whether next observations are there."""
        for name in self._parts.values():
            column, after = self._tensors[name], self._tensors.get(f"{NEXT}{name}")
            if after is None:
                return False
            if (after.dtype, after.shape) != (column.dtype, column.shape):
                raise SchemaError(
                    f"{after.where}: expected {column.dtype} of shape {column.shape} as of {name}, found "
                    f"{after.dtype} of shape {after.shape}."
                )
        return True

    def _observation_space(self) -> gymnasium.Space[Any]:
        parts = {part: _space(self._tensors[name]) for part, name in self._parts.items()}
        return parts[""] if "" in parts else spaces.Dict(parts)

    def _ends(self) -> np.ndarray:
        """Return the last row of each episode, in order."""
        found: list[np.ndarray] = []
        count, block = self.count, 2**20
        for start in range(0, count, block):
            stop = min(count, start + block)
            ends = np.zeros(stop - start, bool)
            for flag in self._flags:
                ends |= self._flag(flag, start, stop)
            if self._ids is not None:
                ids = self._column(self._ids, start, min(count, stop + 1))
                changes = np.flatnonzero(ids[1:] != ids[:-1])
                ends[changes] = True
            ends[self._lanes[(start <= self._lanes) & (self._lanes < stop)] - start] = True
            found.append(start + np.flatnonzero(ends))
        return np.concatenate(found)

    def _about_ring(self, ends: np.ndarray) -> str:
        """Return what a ring has lost of its oldest episodes, one of each environment."""
        starts = self._lanes - self._batch.steps + 1
        if "step_count" in self._tensors:
            starts = starts[[bool(self._column("step_count", row, row + 1)) for row in starts]]
        said = "The storage is a ring: its rows were put in the order of time."
        if not len(starts):
            return said
        rests = ends[np.searchsorted(ends, starts)] - starts + 1
        which = "The first episode is a rest" if len(rests) == 1 else "The first episodes are rests"
        steps = " and ".join(counted(int(rest), "step") for rest in rests[:MOST_TOLD])
        return f"{said} {which} of {steps}: what came before was overwritten."

    def _ends_in_zeros(self, ends: np.ndarray) -> bool:
        """Return whether no episode has a final observation but zeros."""
        finals = [self._tensors[f"{NEXT}{name}"] for name in self._parts.values()]
        return all(one.dtype.kind == "f" for one in finals) and not any(
            one[end : end + 1].view(np.uint8).any() for end in ends.tolist() for one in finals
        )

    def _check_following(self, rows: Rows, start: int, ends: np.ndarray) -> None:
        """Refuse next observations that are not the observation of the next row of their episode."""
        stop = start + len(rows["action"])
        inside = np.ones(stop - start, bool)
        here = ends[np.searchsorted(ends, start) : np.searchsorted(ends, stop)]
        inside[here - start] = False
        follows = self._only_done(rows, start, stop)
        for part, name in self._parts.items():
            role = f"observation/{part}" if part else "observation"
            after = rows[f"next_{role}"]
            differ = rows_differ(after[:-1], rows[role][1:])
            # One row more, but at the end, where the last row ends an episode anyway.
            one_more = self._tensors[name][stop : stop + 1]
            differ = np.append(differ, rows_differ(after[-1:][: len(one_more)], one_more))
            follows = follows[: len(differ)] & ~differ
            odd = np.flatnonzero(differ & inside[: len(differ)])
            if len(odd):
                step = start + int(odd[0])
                raise SchemaError(
                    f"{self._where}, {NEXT}{name}: that of row {step} is not the {name} of row {step + 1}, "
                    f"and neither a flag nor an id ends an episode there; so it is in {len(odd)} places. "
                    "Shuffled rows and rows of several environments in turn cannot be put together again: "
                    "save them episode by episode."
                )
        if follows.any():
            raise SchemaError(
                f"{self._where}: next/done ends an episode at row {start + int(np.argmax(follows))}, but the "
                "row is neither terminated nor truncated, and the next one goes on from it. Save the data "
                "again."
            )

    def _only_done(self, rows: Rows, start: int, stop: int) -> np.ndarray:
        """Return which rows end an episode by nothing but next/done."""
        if set(self._flags) != set(FLAGS):
            return np.zeros(stop - start, bool)
        only = self._flag("done", start, stop) & ~(rows["terminated"] | rows["truncated"])
        if self._ids is not None:
            ids = self._column(self._ids, start, min(self.count, stop + 1))
            only[: len(ids) - 1] &= ids[1:] == ids[:-1]
        return only

    def _rows(self, start: int, stop: int) -> Rows:
        """Return columns by what they are here."""
        rows: Rows = {}
        for part, name in self._parts.items():
            role = f"observation/{part}" if part else "observation"
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
        self._check_agreement(flags, start)
        done = flags.get("done", np.zeros(stop - start, bool))
        terminated = flags.get("terminated", done & ~flags.get("truncated", ~done))
        rows["terminated"] = terminated
        rows["truncated"] = flags.get("truncated", done & ~terminated)
        for info, name in self._infos.items():
            rows[f"infos/{info}"] = self._tensors[name][start:stop]
        return rows

    def _flag(self, flag: str, start: int, stop: int) -> np.ndarray:
        return flags_of(
            self._column(f"{NEXT}{flag}", start, stop), f"{NEXT}{flag}", self._where, first=start
        )

    def _check_agreement(self, flags: Mapping[str, np.ndarray], start: int) -> None:
        """Refuse rows that are terminated or truncated and not done."""
        if set(flags) != set(FLAGS):
            return
        odd = np.flatnonzero(~flags["done"] & (flags["terminated"] | flags["truncated"]))
        if len(odd):
            raise SchemaError(
                f"{self._where}: next/done of row {start + int(odd[0])} contradicts next/terminated and "
                f"next/truncated; so it is in {len(odd)} rows. Save the data again."
            )

    def _column(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return rows of one number each."""
        values = self._tensors[name][start:stop]
        if values.size != len(values):
            raise SchemaError(
                f"{self._where}, {name}: expected one number a row, found rows of {values.shape[1:]}."
            )
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
        try:
            body = read_document(folder / META, "")
        except OrlogError:
            continue
        return "next" in body and "action" in body
    return False


FORMAT = Format(
    name="torchrl-memmap",
    open=_open,
    recognizes=_recognizes,
    alone="their numbers lie in the files as they are, and nothing has to be decoded",
    extensions=("",),
    options=("columns", "horizon", "ends"),
    write=write_tensors,
    losses=losses_of_tensors,
    reads=("./*.memmap", *META_KEYS, "*metadata.json:**"),
)
