"""Reads and writes RLDS datasets as TensorFlow Datasets prepares them, without TensorFlow.

    [NAME/[CONFIG/]]VERSION/dataset_info.json  features.json  NAME-SPLIT.tfrecord-00000-of-00001 ..

A record is an episode: features of the episode, and a nested dataset `steps` of observation, action, reward,
discount, is_first, is_last, is_terminal and others. T + 1 steps are T transitions: action and reward of a step
follow from its observation, and those of the last step, `is_last`, are invalid. The task ended if that step is
terminal, else the episode was cut off. Some things are not always so, and are told:

    the last step has a reward    many datasets of robots end at the last action: an episode whose task ended
                                  keeps that step, and its final observation is marked as missing
    and never an action           where first steps have no reward either, rewards come with the observation after
                                  an action, and are moved to the action
    no final observation          TensorFlow Datasets' D4RL ends an episode whose task ended with zeros, and with
                                  `next_observations` it gives all episodes the last one of the whole file

Other features of steps become infos, those of episodes `episodes/..`, splits `episodes/split`. `success` among those of
episodes, in `episode_metadata` too, is `episodes/success`, which DROID states by the folder in `file_path`.
https://github.com/google-research/rlds, https://www.tensorflow.org/datasets
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats._shared.episode_cutter import MISSING
from orlog.datasets.formats._shared.episodes import Asked, Opened, Steps
from orlog.datasets.formats._shared.flags import flags_of
from orlog.datasets.formats._shared.flat_rows import as_dtype
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.pieces import read_pieces
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.rlds.metadata import (
    FEATURES_FILE,
    INFO_FILE,
    DatasetInfo,
    Leaf,
    find_version,
    read_features,
    read_info,
    read_own,
)
from orlog.datasets.formats.rlds.records import Features, Plan, look_at_all
from orlog.datasets.formats.rlds.tfrecords import open_tfrecord, read_example, record_at
from orlog.datasets.formats.rlds.values import Column, is_path, stored_dtype
from orlog.datasets.formats.rlds.writing import SEED, SPLIT, tfds_losses, write_tfds
from orlog.errors import SchemaError

BLOCK_BYTES = 2**24
INFO_KEYS = tuple(
    f"*dataset_info.json:{key}"
    for key in (
        *("name", "version", "description", "splits", "fileFormat", "redistributionInfo"),
        *("configName", "configDescription", "location", "moduleName", "releaseNotes"),
        *("disableShuffling", "downloadSize", "supervisedKeys", "dataSourceAccessTimestamp"),
    )
)


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    where = asked.sources[0]
    if len(asked.files) != 1 or not asked.files[0].is_dir():
        raise SchemaError(
            f"{where}: an RLDS dataset is a folder with {INFO_FILE}; unpack an archive, and give the folder."
        )
    folder = find_version(asked.files[0], where)
    info = read_info(folder, where)
    features = Features(*read_features(folder, where), where, asked.options.columns)
    own = read_own(folder, where)
    lacks: list[Note] = []
    if asked.options.partial:
        info = _shards_here(info, where, lacks)
    looks = look_at_all(info, features, where)
    plan = Plan(looks, info, features)
    plan.end_unknown(asked.options, where)
    opened = Opened(
        schema=features.schema(own),
        environment=None if own is None else own.environment,
        steps=iter(()),
        total_steps=int(plan.actions.sum()),
        notes=[*lacks, *features.notes(asked.options), *plan.notes, *_unlisted(folder, info)],
        description=" ".join(
            filter(
                None, (info.description, f"RLDS, TensorFlow Datasets' {info.title}.", info.license)
            )
        ),
    )
    reader = _Reader(
        features,
        where,
        plan.moves_rewards,
        has_missing=bool(plan.missing.any()),
        has_splits={shard.split for shard in info.shards if shard.records} != {"train"},
    )
    opened.steps = _steps(asked, reader, _records(plan, info, looks), opened.notes)
    yield opened


def _shards_here(info: DatasetInfo, where: str, notes: list[Note]) -> DatasetInfo:
    """Return what is known of a dataset without the files of records that are not here, which are told."""
    lost = [shard.path.name for shard in info.shards if not shard.path.exists()]
    if lost:
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        lack = f"{', '.join(lost[:5])}{more} are not in {where}."
        notes.append(Note("partial", lost, lack=lack))
    here = [shard for shard in info.shards if shard.path.exists()]
    return dataclasses.replace(info, shards=here)


def _unlisted(folder: Path, info: DatasetInfo) -> list[Note]:
    """Note files of records that the metadata do not list."""
    listed = {shard.path.name for shard in info.shards}
    found = sorted(file.name for file in folder.glob("*.tfrecord*") if file.name not in listed)
    return [Note("records_unlisted", found, files=len(found), document=INFO_FILE)] if found else []


class _Record(NamedTuple):
    """What is known of a record (`Plan`, `LOOK`)."""

    shard: Path
    split: str
    span: tuple[int, int]
    rows: int
    actions: int
    is_made: bool
    is_missing: bool
    terminated: bool
    truncated: bool
    success: bool | None


def _records(plan: Plan, info: DatasetInfo, looks: np.ndarray) -> Iterator[_Record]:
    """Yield the records that give steps."""
    for index in np.flatnonzero(plan.actions > 0).tolist():
        shard = info.shards[looks["shard"][index]]
        yield _Record(
            shard.path,
            shard.split,
            (int(looks["start"][index]), int(looks["stop"][index])),
            int(looks["rows"][index]),
            int(plan.actions[index]),
            bool(plan.made[index]),
            bool(plan.missing[index]),
            bool(plan.terminated[index]),
            bool(plan.truncated[index]),
            plan.success[index],
        )


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads records that all have the same columns.

    Attributes:
        features: What they hold.
        where: What errors call the dataset.
        moves_rewards: Whether the reward of an action is at the step after it.
        has_missing: Whether some final observation is not known.
        has_splits: Whether there are other splits than `train`.
    """

    features: Features
    where: str
    moves_rewards: bool
    has_missing: bool
    has_splits: bool

    def read(self, shards: Iterable[Sequence[_Record]]) -> Iterator[Steps | int]:
        """Yield the steps of the records of shards, and how many texts of each record are no UTF-8."""
        for records in shards:
            path = records[0].shard
            with open_tfrecord(path, self.where) as file:
                for record in records:
                    what = f"{self.where}, {path.name}, the record at byte {record.span[0]}"
                    example = read_example(record_at(file, record.span), what)
                    yield from self._steps(example, record, what)

    def _steps(
        self, example: Mapping[str, Any], record: _Record, what: str
    ) -> Iterator[Steps | int]:
        """Yield the steps of a record."""
        features, rows, count = self.features, record.rows, record.actions

        def columns(group: Mapping[str, Leaf], expected: int) -> dict[str, Column]:
            read = {name: Column(example, leaf, what) for name, leaf in group.items()}
            for column in read.values():
                column.check(expected)
            return read

        observation, action = columns(features.observation, rows), columns(features.action, rows)
        infos, whole = columns(features.infos, rows), columns(features.metadata, 1)
        reward = columns({} if features.reward is None else {"": features.reward}, rows)
        metadata = {name: column.rows(0, 1)[0] for name, column in whole.items()}
        seed = metadata.pop(SEED, None)
        metadata |= self._known(record, metadata)
        terminals = np.zeros(0, bool)
        if features.keeps_terminals:  # of the state after each action
            flags = Column(example, features.flags["is_terminal"], what).rows(0, rows)
            flags = flags_of(flags.reshape(rows), "is_terminal", "record")
            terminals = np.append(flags[1:], flags[-1:])[:count]
        dtype, moved = features.reward_dtype(), int(self.moves_rewards)
        at_once = max(1, BLOCK_BYTES // features.step_bytes())
        for start in range(0, count, at_once):
            stop = min(count, start + at_once)
            is_last = stop == count
            rewards = np.zeros(stop - start, dtype)
            for column in reward.values():
                values = column.rows(start + moved, stop + moved).reshape(-1)
                rewards = as_dtype(values, dtype, column.where, start)
            values_of_infos = {name: column.rows(start, stop) for name, column in infos.items()}
            if features.keeps_terminals:
                values_of_infos["is_terminal"] = terminals[start:stop]
            made = int(is_last and record.is_made)
            yield Steps(
                observations=_tree(observation, start + (start > 0), stop + 1 - made, made),
                actions=_tree(action, start, stop, 0),
                rewards=rewards,
                ends=is_last,
                terminated=is_last and record.terminated,
                truncated=is_last and record.truncated,
                infos=values_of_infos,
                seed=int(seed) if is_last and seed is not None and seed >= 0 else None,
                metadata=metadata if is_last else {},
            )
        read = (*infos.values(), *whole.values())
        yield sum(column.replaced_bytes for column in read)

    def _known(self, record: _Record, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of an episode that its features do not hold."""
        known: dict[str, Any] = {}
        if self.has_splits:
            known[SPLIT] = record.split
        if self.has_missing:
            known[MISSING] = bool(record.is_missing or metadata.get(MISSING))
        is_stated = any(map(is_path, self.features.metadata.values()))
        if is_stated and record.success is not None and "success" not in metadata:
            known["success"] = record.success
        return known


def _steps(
    asked: Asked, reader: _Reader, records: Iterable[_Record], notes: list[Note]
) -> Iterator[Steps]:
    by_shard = itertools.groupby(records, lambda record: record.shard)
    shards = [list(several) for _, several in by_shard]
    replaced = 0
    for piece in read_pieces(asked, reader.read, shards):
        if isinstance(piece, int):
            replaced += piece
        else:
            yield piece
    if replaced:
        notes.append(Note("records_no_utf8", texts=replaced))


def _tree(columns: Mapping[str, Column], start: int, stop: int, made: int) -> Any:
    """Return rows of the values of a space, and after them some of zeros that have to be made."""
    tree: Any = {}
    for path, column in columns.items():
        values = column.rows(start, stop)
        if made:
            values = np.concatenate((values, np.zeros((made, *values.shape[1:]), values.dtype)))
        values = values.astype(stored_dtype(column.leaf), copy=False)
        if not path:
            return values
        place = tree
        *parents, name = path.split("/")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = values
    return tree


def _recognizes(files: Sequence[Path]) -> bool:
    return any(
        file.with_name(INFO_FILE).is_file()
        for pattern in (FEATURES_FILE, f"*/{FEATURES_FILE}", f"*/*/{FEATURES_FILE}")
        for file in files[0].glob(pattern)
    )


FORMAT = Format(
    name="rlds",
    open=_open,
    recognizes=_recognizes,
    extensions=("",),
    options=("columns", "horizon", "ends", "partial"),
    shares=True,
    write=write_tfds,
    losses=tfds_losses,
    reads=(
        "./*.tfrecord*",
        *INFO_KEYS,
        "*features.json:featuresDict",
        "*features.json:pythonClassName",
        "*features.json:protoClass",
        "*metadata.json:orlog",
    ),
)
