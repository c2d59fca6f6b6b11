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

Other features of steps become infos, those of episodes `episodes/..`, splits `episodes/split`.
https://github.com/google-research/rlds, https://www.tensorflow.org/datasets
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from orlog.datasets.formats._shared.episode_cutter import MISSING
from orlog.datasets.formats._shared.episodes import Asked, Opened, Steps
from orlog.datasets.formats._shared.flags import flags_of
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
from orlog.datasets.formats.rlds.records import Features, Plan, look_at_all, stored_dtype
from orlog.datasets.formats.rlds.tf_examples import Feature, read_example
from orlog.datasets.formats.rlds.tfrecord_files import near_record, open_tfrecord
from orlog.datasets.formats.rlds.values import Column
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
        doubts=[*lacks, *features.doubts(), *plan.doubts, *_unlisted(folder, info)],
        description=" ".join(
            filter(
                None, (info.description, f"RLDS, TensorFlow Datasets' {info.title}.", info.license)
            )
        ),
    )
    opened.steps = _steps(info, features, looks, plan, where, opened.doubts)
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


def _steps(
    info: DatasetInfo,
    features: Features,
    looks: np.ndarray,
    plan: Plan,
    where: str,
    doubts: list[str],
) -> Iterator[Steps]:
    has_splits = {shard.split for shard in info.shards if shard.records} != ONLY_SPLIT
    replaced = 0
    for number, shard in enumerate(info.shards):
        with open_tfrecord(shard.path, where) as file:
            for index in np.flatnonzero(looks["shard"] == number).tolist():
                if not plan.actions[index]:
                    continue
                span = (int(looks["start"][index]), int(looks["stop"][index]))
                what = f"{where}, {shard.path.name}, the record at byte {span[0]}"
                near, place = near_record(file, span)
                example = read_example(near, place, features.wanted, what)
                episode = _Episode(near, example, features, what)
                metadata = episode.metadata()
                if has_splits:
                    metadata[SPLIT] = shard.split
                if plan.missing.any():
                    metadata[MISSING] = bool(plan.missing[index] or metadata.get(MISSING))
                yield from episode.steps(plan, index, int(looks["rows"][index]), metadata)
                replaced += episode.replaced_bytes()
    if replaced:
        doubts.append(f"{said_of(replaced, 'texts are no UTF-8')}: \\x.. stands for the bytes.")


class _Episode:
    """Reads the steps of a record, some at a time."""

    def __init__(
        self, file: BinaryIO, example: Mapping[str, Feature], features: Features, where: str
    ) -> None:
        self._features, self._where = features, where

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

    def replaced_bytes(self) -> int:
        """Return how many texts were no UTF-8."""
        return sum(one.replaced_bytes for one in (*self._infos.values(), *self._metadata.values()))

    def steps(self, plan: Plan, index: int, rows: int, metadata: dict[str, Any]) -> Iterator[Steps]:
        """Yield all steps of the episode; `rows` is how many the record has."""
        count, is_made = int(plan.actions[index]), bool(plan.made[index])
        seed = metadata.pop(SEED, None)
        terminals = self._led_to_terminal(rows, count)
        at_once = max(1, BLOCK_BYTES // self._features.step_bytes())
        for column in self._reward.values():
            column.skip(int(plan.moves_rewards))
        dtype = self._features.reward_dtype()
        for start in range(0, count, at_once):
            stop = min(count, start + at_once)
            is_last = stop == count
            observations = self._tree(
                self._observation, stop - start + (start == 0), is_last and is_made
            )
            rewards = np.zeros(stop - start, dtype)
            for column in self._reward.values():
                rewards = column.rows(stop - start).reshape(-1).astype(dtype)
            infos = {name: column.rows(stop - start) for name, column in self._infos.items()}
            if terminals is not None:
                infos["is_terminal"] = terminals[start:stop]
            yield Steps(
                observations=observations,
                actions=self._tree(self._action, stop - start, False),
                rewards=rewards,
                ends=is_last,
                terminated=is_last and bool(plan.terminated[index]),
                truncated=is_last and bool(plan.truncated[index]),
                infos=infos,
                seed=int(seed) if is_last and seed is not None and seed >= 0 else None,
                metadata=metadata if is_last else {},
            )
        self._check_ends(rows - count, plan.moves_rewards, is_made)

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
