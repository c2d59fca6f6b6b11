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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._shared.episode_cutter import EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats._shared.flags import UnknownEnds, flags_of
from orlog.datasets.formats._shared.flat_rows import count_choices, unbounded_space
from orlog.datasets.formats._shared.roles import base_role, said_roles
from orlog.datasets.formats._shared.row_bytes import rows_differ
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.torchrl.tensordict_files import (
    META,
    Batch,
    TensorColumn,
    read_document,
    tensor_columns,
    write_documents,
)
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import OrlogError, SchemaError
from orlog.manifests.spaces import space_leaves

BLOCK_BYTES = 2**22  # stays in the cache of the processor
META_KEYS = tuple(
    f"*meta.json:{key}"
    for key in ("_type", "device", "shape", "next", "info", "collector", "traj_ids", "done")
)
FLAGS = ("done", "terminated", "truncated")
IDS = ("collector/traj_ids", "traj_ids", "episode", "next/traj_ids", "next/episode")
COUNTERS = ("step_count", "index", "_weight", "priority")
NEXT = "next/"
OBSERVATION = "observation"
INFO = "info/"


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    where = asked.sources[0]
    folder, filled, cursor = _storage(asked.files[0], where)
    tensors, left_out, batch = tensor_columns(folder, where, filled)
    said = said_roles(asked.options.columns, list(tensors), where)
    reader = _Reader(tensors, where, batch, cursor, said)
    opened = Opened(
        schema=reader.schema, steps=iter(()), total_steps=reader.count, doubts=reader.doubts
    )
    parts = [name.rpartition("/") for name in tensors]
    opened.reads = [f"*{inner}{sign}meta.json:{last}" for inner, sign, last in parts]
    if left_out:
        opened.doubts.append(f"Left out, no numbers with a row a step: {', '.join(left_out)}.")
    opened.steps = reader.steps(asked.options)
    yield opened


def _storage(root: Path, where: str) -> tuple[Path, int | None, int | None]:
    """Return the folder of the tensors; and of a dump how many rows are filled, and which is the oldest."""
    storage = root / "storage"
    if (root / META).is_file() or storage.is_symlink():
        return root, None, None
    filled = read_document(storage / "storage_metadata.json", where).get("len")
    cursor = None
    if (root / "writer" / "metadata.json").is_file():
        cursor = read_document(root / "writer" / "metadata.json", where).get("cursor")
    if type(filled) is not int or filled < 1 or not (cursor is None or type(cursor) is int):
        raise SchemaError(f"{where}: expected len and cursor as counts, found {filled!r:.20}.")
    return storage, filled, cursor


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
        cursor: int | None,
        said: Mapping[str, str],
    ) -> None:
        """Find out what the tensors are.

        Raises SchemaError if action, reward, flags or observations are missing, or something else than
        observations is said to be another tensor.
        """
        self._where, self.doubts = where, list[str]()
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
        self.count, self._lanes = batch.count, batch.ends()
        if math.prod(batch.shape) == batch.count and cursor and 0 < cursor < batch.steps:
            # A full buffer goes on at its oldest row, in each environment.
            starts = self._lanes - batch.steps + 1
            self._lanes = np.sort(np.concatenate([self._lanes, starts + cursor - 1]))
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
        rows["reward"] = self._column(f"{NEXT}reward", start, stop).astype(self.schema.reward_dtype)
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


def _write(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write the folder itself, for `TensorDict.load_memmap(folder)`."""
    count = dataset.total_steps
    flags = {flag: (np.dtype(bool), (1,)) for flag in FLAGS}
    columns = {
        **_leaves(dataset.observation_space, OBSERVATION),
        **_leaves(dataset.action_space, "action"),
        **flags,
        IDS[0]: (np.dtype(np.int64), ()),
        **_leaves(dataset.observation_space, f"{NEXT}{OBSERVATION}"),
        f"{NEXT}reward": (dataset.schema.reward_dtype, (1,)),
        **{f"{NEXT}{flag}": kind for flag, kind in flags.items()},
        **{
            f"{INFO}{name.removeprefix('infos/')}": (spec.dtype, spec.shape)
            for name, spec in _kept_infos(dataset).items()
        },
    }
    files = write_documents(
        folder, {name: (dtype, (count, *shape)) for name, (dtype, shape) in columns.items()}
    )
    done = 0
    with contextlib.ExitStack() as stack:
        streams = {name: stack.enter_context(path.open("wb")) for name, path in files.items()}
        for number, episode in enumerate(dataset):
            length = len(episode.rewards)
            rows = {
                **_values(_part(episode.observations, slice(None, -1)), OBSERVATION),
                **_values(episode.actions, "action"),
                **{flag: np.zeros(length, bool) for flag in FLAGS},
                IDS[0]: np.full(length, number),
                **_values(_part(episode.observations, slice(1, None)), f"{NEXT}{OBSERVATION}"),
                f"{NEXT}reward": episode.rewards,
                f"{NEXT}done": episode.terminations | episode.truncations,
                f"{NEXT}terminated": episode.terminations,
                f"{NEXT}truncated": episode.truncations,
                **{f"{INFO}{name}": values for name, values in episode.infos.items()},
            }
            for name, stream in streams.items():
                stream.write(np.ascontiguousarray(rows[name], columns[name][0]).data)
            done += length
            progress(done, count)


def _kept_infos(dataset: Dataset) -> dict[str, Any]:
    """Return the columns of infos that are tensors."""
    schema = dataset.schema
    return {
        name: spec
        for name, spec in schema.extras.items()
        if name.startswith("infos/") and name not in schema.variable
    }


def _leaves(
    space: gymnasium.Space[Any], path: str
) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return dtype and shape of a row of each tensor of a space."""
    found = {}
    for leaf in space_leaves(space):
        name = "/".join(map(str, (path, *leaf.keys)))
        if leaf.space.shape is None or leaf.space.dtype is None:
            raise SchemaError(f"{name}: TorchRL's tensors hold numbers, found {leaf.space}.")
        found[name] = (np.dtype(leaf.space.dtype), leaf.space.shape)
    return found


def _values(values: Any, path: str) -> dict[str, np.ndarray]:
    """Return the values of each tensor of a space."""
    if not isinstance(values, dict | tuple):
        return {path: values}
    parts = values.items() if isinstance(values, dict) else enumerate(values)
    return {
        name: one for key, part in parts for name, one in _values(part, f"{path}/{key}").items()
    }


def _part(values: Any, rows: slice) -> Any:
    if isinstance(values, dict):
        return {key: _part(one, rows) for key, one in values.items()}
    if isinstance(values, tuple):
        return tuple(_part(one, rows) for one in values)
    return values[rows]


def _losses(dataset: Dataset) -> list[str]:
    """Say what TorchRL's tensors cannot hold.

    Raises SchemaError if observations or actions that are no tensors.
    """
    for space in (dataset.observation_space, dataset.action_space):
        _leaves(space, dataset.name)
    kept = _kept_infos(dataset)
    lost = [name for name in dataset.schema.extras if name not in kept]
    said = [f"These columns are lost: {', '.join(lost)}."] if lost else []
    if (dataset.column("episodes/seeds") >= 0).any():
        said.append("Seeds of episodes are lost.")
    return said


FORMAT = Format(
    name="torchrl-memmap",
    open=_open,
    recognizes=_recognizes,
    alone="their numbers lie in the files as they are, and nothing has to be decoded",
    extensions=("",),
    options=("columns", "horizon", "ends"),
    write=_write,
    losses=_losses,
    reads=("./*.memmap", *META_KEYS, "*metadata.json:**"),
)
