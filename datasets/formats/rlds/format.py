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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from orlog.datasets.formats._shared.episode_cutter import MISSING
from orlog.datasets.formats._shared.episodes import Asked, Opened, Steps
from orlog.datasets.formats._shared.flags import flags_of
from orlog.datasets.formats._shared.flat_rows import as_dtype
from orlog.datasets.formats._shared.pieces import Span, jobs_of, read_pieces
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
from orlog.datasets.formats.rlds.tf_examples import Feature, read_example
from orlog.datasets.formats.rlds.tfrecord_files import near_record, open_tfrecord
from orlog.datasets.formats.rlds.values import Column, is_path, stored_dtype
from orlog.datasets.formats.rlds.writing import SEED, SPLIT, TfdsWriter, tfds_losses
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError
from orlog.manifests.names import counted, said_of

BLOCK_BYTES = 2**24
ONLY_SPLIT = {"train"}


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
    lacks: list[str] = []
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
        notes=[*lacks, *features.doubts(asked.options), *plan.doubts, *_unlisted(folder, info)],
        description=" ".join(
            filter(
                None, (info.description, f"RLDS, TensorFlow Datasets' {info.title}.", info.license)
            )
        ),
    )
    opened.steps = _steps(asked, info, _Reader(features, plan, info, where), looks, opened.doubts)
    yield opened


def _shards_here(info: DatasetInfo, where: str, doubts: list[str]) -> DatasetInfo:
    """Return what is known of a dataset without the files of records that are not here, which are told."""
    lost = [shard.path.name for shard in info.shards if not shard.path.exists()]
    if lost:
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        doubts.append(
            f"Read in part, as asked for: {', '.join(lost[:5])}{more} are not in {where}."
        )
    here = [shard for shard in info.shards if shard.path.exists()]
    return dataclasses.replace(info, shards=here)


def _unlisted(folder: Path, info: DatasetInfo) -> list[str]:
    """Tell of files of records that the metadata do not list."""
    listed = {shard.path.name for shard in info.shards}
    found = sorted(file.name for file in folder.glob("*.tfrecord*") if file.name not in listed)
    if not found:
        return []
    return [f"Left out: {counted(len(found), 'file')} of records that {INFO_FILE} does not list."]


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


class _Reader:
    """Reads records that all have the same columns."""

    def __init__(self, features: Features, plan: Plan, info: DatasetInfo, where: str) -> None:
        self.features, self.plan, self.where = features, plan, where
        self.moves_rewards = plan.moves_rewards
        self._has_missing = bool(plan.missing.any())
        self._has_outcomes = any(map(is_path, features.metadata.values()))
        self._has_splits = {one.split for one in info.shards if one.records} != ONLY_SPLIT

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what records hold of it themselves."""
        return {**self.__dict__, "plan": None}

    def records(self, info: DatasetInfo, looks: np.ndarray) -> Iterator[_Record]:
        """Yield the records that give steps, shard by shard."""
        plan = self.plan
        for number, shard in enumerate(info.shards):
            for index in np.flatnonzero(looks["shard"] == number).tolist():
                if plan.actions[index]:
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

    def read(self, spans: Iterable[Span]) -> Iterator[Steps | int]:
        """Yield steps, and how many texts of each record are no UTF-8."""
        for path, some in itertools.groupby(spans, lambda one: one.of.shard):
            with open_tfrecord(path, self.where) as file:
                for record, start, stop in some:
                    what = f"{self.where}, {path.name}, the record at byte {record.span[0]}"
                    near, place = near_record(file, record.span)
                    example = read_example(near, place, self.features.wanted, what)
                    episode = _Episode(near, example, self, what)
                    metadata = episode.metadata()
                    if self._has_splits:
                        metadata[SPLIT] = record.split
                    if self._has_missing:
                        metadata[MISSING] = bool(record.is_missing or metadata.get(MISSING))
                    if self._has_outcomes and record.success is not None:
                        metadata.setdefault("success", record.success)
                    yield from episode.steps(record, start, stop, metadata)
                    yield episode.replaced_bytes(is_first=not start)


def _steps(
    asked: Asked, info: DatasetInfo, reader: _Reader, looks: np.ndarray, doubts: list[str]
) -> Iterator[Steps]:
    counts = ((one, one.actions) for one in reader.records(info, looks))
    jobs = jobs_of(asked, counts, reader.features.step_bytes())
    replaced = 0
    for found in read_pieces(asked, reader.read, jobs):
        if isinstance(found, int):
            replaced += found
        else:
            yield found
    if replaced:
        doubts.append(f"{said_of(replaced, 'texts are no UTF-8')}: \\x.. stands for the bytes.")


class _Episode:
    """Reads the steps of a record, some at a time."""

    def __init__(
        self, file: BinaryIO, example: Mapping[str, Feature], reader: _Reader, where: str
    ) -> None:
        features = reader.features
        self._reader, self._features, self._where = reader, features, where

        def columns(group: Mapping[str, Leaf]) -> dict[str, Column]:
            return {name: Column(file, example, leaf, where) for name, leaf in group.items()}

        self._observation = columns(features.observation)
        self._action = columns(features.action)
        self._infos = columns(features.infos)
        self._metadata = columns(features.metadata)
        self._reward = columns({} if features.reward is None else {"": features.reward})
        self._terminals = columns(
            {"": features.flags["is_terminal"]} if features.keeps_terminals else {}
        )

    def metadata(self) -> dict[str, Any]:
        """Return the values of the whole episode."""
        found = {}
        for name, column in self._metadata.items():
            (value,) = column.rows(1)
            column.check_end()
            found[name] = value
        return found

    def replaced_bytes(self, *, is_first: bool) -> int:
        """Return how many texts were no UTF-8; those of the whole episode count with its first steps."""
        read = (*self._infos.values(), *(self._metadata.values() if is_first else ()))
        return sum(one.replaced_bytes for one in read)

    def steps(
        self, record: _Record, begin: int, end: int, metadata: dict[str, Any]
    ) -> Iterator[Steps]:
        """Yield the steps of a record from one on and before another one."""
        count, rows, is_made = record.actions, record.rows, record.is_made
        moves_rewards = self._reader.moves_rewards
        seed = metadata.pop(SEED, None)
        terminals = self._led_to_terminal(rows, count)
        at_once = max(1, BLOCK_BYTES // self._features.step_bytes())
        for column in self._reward.values():
            column.skip(int(moves_rewards))
        for column in (*self._reward.values(), *self._action.values(), *self._infos.values()):
            column.skip(begin)
        for column in self._observation.values():
            column.skip(begin + (begin > 0))
        dtype = self._features.reward_dtype()
        for start in range(begin, end, at_once):
            stop = min(end, start + at_once)
            is_last = stop == count
            observations = self._tree(
                self._observation, stop - start + (start == 0), is_last and is_made
            )
            rewards = np.zeros(stop - start, dtype)
            for column in self._reward.values():
                found = column.rows(stop - start).reshape(-1)
                rewards = as_dtype(found, dtype, column.where, start)
            infos = {name: column.rows(stop - start) for name, column in self._infos.items()}
            if terminals is not None:
                infos["is_terminal"] = terminals[start:stop]
            yield Steps(
                observations=observations,
                actions=self._tree(self._action, stop - start, False),
                rewards=rewards,
                ends=is_last,
                terminated=is_last and record.terminated,
                truncated=is_last and record.truncated,
                infos=infos,
                seed=int(seed) if is_last and seed is not None and seed >= 0 else None,
                metadata=metadata if is_last else {},
            )
        if end == count:
            self._check_ends(rows - count, moves_rewards, is_made)

    def _tree(self, columns: Mapping[str, Column], count: int, is_made: bool) -> Any:
        """Return the next values of a space; the last one is of zeros where it has to be made."""
        found: Any = {}
        for path, column in columns.items():
            values = column.rows(count - is_made)
            if is_made:
                values = np.concatenate((values, np.zeros((1, *values.shape[1:]), values.dtype)))
            values = values.astype(stored_dtype(column.leaf), copy=False)
            if not path:
                return values
            place = found
            *parents, name = path.split("/")
            for parent in parents:
                place = place.setdefault(parent, {})
            place[name] = values
        return found

    def _led_to_terminal(self, rows: int, count: int) -> np.ndarray | None:
        """Return for each action whether the state after it is terminal."""
        for column in self._terminals.values():
            flags = flags_of(column.rows(rows).reshape(rows), "is_terminal", "record")
            return np.append(flags[1:], flags[-1:])[:count]
        return None

    def _check_ends(self, left: int, moves_rewards: bool, is_made: bool) -> None:
        """Refuse features that have more or fewer values than the record has steps.

        `left` steps gave no action; the reward of the first step may have been left out, and the final
        observation may be none of the record's.
        """
        for columns, count in (
            (self._observation, left - (not is_made)),
            (self._action, left),
            (self._reward, left - moves_rewards),
            (self._infos, left),
        ):
            for column in columns.values():
                column.skip(count)
                column.check_end()


def _recognizes(files: Sequence[Path]) -> bool:
    return any(
        file.with_name(INFO_FILE).is_file()
        for pattern in (FEATURES_FILE, f"*/{FEATURES_FILE}", f"*/*/{FEATURES_FILE}")
        for file in files[0].glob(pattern)
    )


def _write(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `NAME/VERSION`, which `tfds.builder_from_directory` opens."""
    writer = TfdsWriter(dataset, folder)
    done = 0
    with contextlib.closing(writer):
        for number, episode in enumerate(dataset):
            writer.add(episode, f"{dataset.name}, episode {number}")
            done += len(episode.rewards)
            progress(done, dataset.total_steps)
        writer.finish()


FORMAT = Format(
    name="rlds",
    open=_open,
    recognizes=_recognizes,
    extensions=("",),
    options=("columns", "horizon", "ends", "partial"),
    shares=True,
    write=_write,
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
