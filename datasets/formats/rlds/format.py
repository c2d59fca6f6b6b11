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
from typing import Any

import numpy as np

from orlog.datasets.formats.episode_cutter import MISSING, flags_of
from orlog.datasets.formats.episodes import Asked, Opened, Steps, read_pieces
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import as_dtype
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.rlds.features import (
    FEATURES_FILE,
    INFO_FILE,
    Column,
    DatasetInfo,
    Leaf,
    find_version,
    is_path,
    read_features,
    read_info,
    read_own,
)
from orlog.datasets.formats.rlds.records import Episode, Features, look_at_all, plan_episodes
from orlog.datasets.formats.rlds.tfrecords import open_tfrecord, read_example, record_at
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
    notes: list[Note] = []
    if asked.options.partial:
        info = _shards_here(info, where, notes)
    plan = plan_episodes(look_at_all(info, features, where), info, features, asked.options, where)
    schema = features.schema(own)
    listed = {shard.path.name for shard in info.shards}
    others = sorted(file.name for file in folder.glob("*.tfrecord*") if file.name not in listed)
    notes += [*features.notes(asked.options), *plan.notes]
    if others:
        notes.append(Note("records_unlisted", others, files=len(others), document=INFO_FILE))
    reader = _Reader(
        features,
        where,
        schema.reward_dtype,
        plan.moves_rewards,
        has_missing=any(episode.is_missing for episode in plan.episodes),
        has_splits={shard.split for shard in info.shards if shard.records} != {"train"},
    )
    shards = itertools.groupby(plan.episodes, lambda episode: episode.record.shard)
    about = (info.description, f"RLDS, TensorFlow Datasets' {info.title}.", info.license)
    yield Opened(
        schema=schema,
        environment=None if own is None else own.environment,
        steps=_steps(asked, reader, [list(episodes) for _, episodes in shards], notes),
        total_steps=sum(episode.actions for episode in plan.episodes),
        notes=notes,
        description=" ".join(filter(None, about)),
    )


def _shards_here(info: DatasetInfo, where: str, notes: list[Note]) -> DatasetInfo:
    """Return what is known of a dataset without the files of records that are not here, which are noted."""
    lost = [shard.path.name for shard in info.shards if not shard.path.exists()]
    if lost:
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        lack = f"{', '.join(lost[:5])}{more} are not in {where}."
        notes.append(Note("partial", lost, lack=lack))
    return info._replace(shards=[shard for shard in info.shards if shard.path.exists()])


def _steps(asked: Asked, reader: _Reader, shards: Sequence[Sequence[Episode]], notes: list[Note]) -> Iterator[Steps]:
    replaced = 0
    for piece in read_pieces(asked, reader.read, shards):
        if isinstance(piece, int):
            replaced += piece
        else:
            yield piece
    if replaced:
        notes.append(Note("records_no_utf8", texts=replaced))


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads records that all have the same columns, in whatever process."""

    features: Features
    where: str
    reward_dtype: np.dtype[Any]
    moves_rewards: bool  # the reward of an action is at the step after it
    has_missing: bool  # some final observation is not known
    has_splits: bool  # there are other splits than `train`

    def read(self, shards: Iterable[Sequence[Episode]]) -> Iterator[Steps | int]:
        """Yield the steps of the records of shards, and how many texts of each record are no UTF-8."""
        for episodes in shards:
            path = episodes[0].record.shard.path
            with open_tfrecord(path, self.where) as file:
                for episode in episodes:
                    span = episode.record.span
                    what = f"{self.where}, {path.name}, the record at byte {span[0]}"
                    yield from self._steps(read_example(record_at(file, span), what), episode, what)

    def _steps(self, example: Mapping[str, Any], episode: Episode, what: str) -> Iterator[Steps | int]:
        features, rows, count = self.features, episode.record.rows, episode.actions

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
        self._add_known(metadata, episode)
        terminals = np.zeros(0, bool)
        if features.keeps_terminals:  # of the state after each action
            flags = Column(example, features.flags["is_terminal"], what).rows(0, rows)
            flags = flags_of(flags.reshape(rows), "is_terminal", "record")
            terminals = np.append(flags[1:], flags[-1:])[:count]
        moved = int(self.moves_rewards)
        at_once = max(1, BLOCK_BYTES // features.step_bytes())
        for start in range(0, count, at_once):
            stop = min(count, start + at_once)
            is_last = stop == count
            rewards = np.zeros(stop - start, self.reward_dtype)
            for column in reward.values():
                values = column.rows(start + moved, stop + moved).reshape(-1)
                rewards = as_dtype(values, self.reward_dtype, column.where, start)
            values_of_infos = {name: column.rows(start, stop) for name, column in infos.items()}
            if features.keeps_terminals:
                values_of_infos["is_terminal"] = terminals[start:stop]
            made = int(is_last and episode.is_made)
            yield Steps(
                observations=_tree(observation, start + (start > 0), stop + 1 - made, made),
                actions=_tree(action, start, stop, 0),
                rewards=rewards,
                ends=is_last,
                terminated=is_last and episode.terminated,
                truncated=is_last and episode.truncated,
                infos=values_of_infos,
                seed=int(seed) if is_last and seed is not None and seed >= 0 else None,
                metadata=metadata if is_last else {},
            )
        yield sum(column.replaced_bytes for column in (*infos.values(), *whole.values()))

    def _add_known(self, metadata: dict[str, Any], episode: Episode) -> None:
        if self.has_splits:
            metadata[SPLIT] = episode.record.shard.split
        if self.has_missing:
            metadata[MISSING] = bool(episode.is_missing or metadata.get(MISSING))
        has_path = any(map(is_path, self.features.metadata.values()))
        if has_path and episode.success is not None:
            metadata.setdefault("success", episode.success)


def _tree(columns: Mapping[str, Column], start: int, stop: int, made: int) -> Any:
    """Return rows of the values of a space, and after them some of zeros that have to be made."""
    tree: Any = {}
    for path, column in columns.items():
        values = column.rows(start, stop)
        if made:
            values = np.concatenate((values, np.zeros((made, *values.shape[1:]), values.dtype)))
        values = values.astype(column.leaf.value_dtype, copy=False)
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
