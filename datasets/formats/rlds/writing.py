"""Writes datasets in the layout of RLDS that TensorFlow Datasets opens (`tfds.builder_from_directory`)."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Columns, Episode
from orlog.datasets.formats._containers.pictures import pillow
from orlog.datasets.formats._shared.flat_writing import file_stem
from orlog.datasets.formats.rlds.metadata import (
    DEFAULT_TEMPLATE,
    FEATURES_FILE,
    INFO_FILE,
    METADATA_FILE,
    VERSION,
    Own,
    own_to_json,
)
from orlog.datasets.formats.rlds.tfrecords import example_bytes, write_record
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError
from orlog.manifests.names import counted

SEED = "reset_seed"
SPLIT = "split"
SHARD_BYTES = 2**28
MOST_BYTES = 2**31 - 1
RESERVED = {
    *("observation", "action", "reward", "discount"),
    *("is_first", "is_last", "is_terminal", "infos"),
}
CLASSES = "tensorflow_datasets.core.features."
CHANNELS = (1, 3, 4)
SPLIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class TfdsWriter:
    """Writes episodes into the files of each split, and then what they are.

    `FOLDER/NAME/VERSION` is what `tfds.builder_from_directory` opens.
    """

    def __init__(self, dataset: Dataset, folder: Path) -> None:
        """Make the folder."""
        self._dataset = dataset
        self._name = _tfds_name(dataset)
        version = dataset.manifest.version
        self._version = version if VERSION.fullmatch(version) else "1.0.0"
        self._folder = folder / self._name / self._version
        self._folder.mkdir(parents=True)
        self._features = _Features(dataset)
        self._splits: dict[str, _Split] = {}

    def add(self, episode: Episode, where: str) -> None:
        """Write an episode.

        Raises SchemaError if it is larger than TensorFlow can read, or of a split that it cannot name.
        """
        name = episode.metadata.get(SPLIT, "train")
        if not isinstance(name, str) or not SPLIT_NAME.fullmatch(name):
            raise SchemaError(
                f"{where}: TensorFlow Datasets cannot name a split {name!r:.50}; export a view without "
                "episodes/split: select_columns."
            )
        split = self._splits.setdefault(name, _Split(self._folder, f"{self._name}-{name}"))
        data = example_bytes(self._features.record(episode))
        if len(data) > MOST_BYTES:
            raise SchemaError(
                f"{where}: an episode of {len(data):,} bytes is more than TensorFlow reads at once."
            )
        split.add(data)

    def finish(self) -> None:
        """Write what the files hold."""
        manifest = self._dataset.manifest
        splits = [
            {
                "filepathTemplate": DEFAULT_TEMPLATE,
                "name": name,
                "numBytes": str(split.size),
                "shardLengths": [str(one) for one in split.finish()],
            }
            for name, split in self._splits.items()
        ]
        info: dict[str, Any] = {
            "description": manifest.description,
            "fileFormat": "tfrecord",
            "name": self._name,
            "splits": splits,
            "version": self._version,
        }
        if manifest.license:
            info["redistributionInfo"] = {"license": manifest.license}
        own = Own(
            observation_space=self._dataset.observation_space,
            action_space=self._dataset.action_space,
            environment=self._dataset.environment,
        )
        documents = {
            INFO_FILE: info,
            FEATURES_FILE: self._features.tree(),
            METADATA_FILE: own_to_json(own),
        }
        for name, body in documents.items():
            text = json.dumps(body, indent=2, sort_keys=True)
            (self._folder / name).write_text(text, "utf-8")

    def close(self) -> None:
        """Close the files."""
        for split in self._splits.values():
            split.close()


class _Split:
    """The files of a split, whose number is known at the end."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder, self._stem = folder, stem
        self._lengths: list[int] = []
        self._file: BinaryIO | None = None
        self.size = 0

    def add(self, data: bytes) -> None:
        if self._file is None or self._file.tell() + len(data) > SHARD_BYTES:
            self.close()
            self._file = self._path(len(self._lengths)).open("xb")
            self._lengths.append(0)
        write_record(self._file, data)
        self._lengths[-1] += 1
        self.size += len(data)

    def finish(self) -> list[int]:
        """Give the files the names that count them; return how many records each holds."""
        self.close()
        count = len(self._lengths)
        for number in range(count):
            path = self._path(number)
            path.rename(path.with_name(f"{path.name}-of-{count:05}"))
        return self._lengths

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._stem}.tfrecord-{number:05}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Leaf:
    """A feature: what features.json says of it, and how its rows are stored."""

    json: dict[str, Any]
    stored: Callable[[str, Any], dict[str, Any]]


class _Features:
    """The features of a dataset's records."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        schema = dataset.schema
        self._steps: dict[str, _Leaf] = {
            **_space_leaves("observation", dataset.observation_space, dataset.name),
            **_space_leaves("action", dataset.action_space, dataset.name),
            "reward": _numbers(schema.reward_dtype, ()),
        }
        for name in ("is_first", "is_last", "is_terminal"):
            self._steps[name] = _numbers(np.dtype(bool), ())
        self._episode: dict[str, _Leaf] = {}
        for name in _kept(dataset):
            root, _, rest = name.partition("/")
            spec, kind = schema.extras[name], schema.variable.get(name)
            if kind == "text":
                leaf = _text()
            elif kind == "array":
                leaf = _sequence(spec.dtype, spec.shape)
            else:
                leaf = _numbers(spec.dtype, spec.shape)
            if root == "infos":
                self._steps[_info_name(rest)] = leaf
            elif rest != SPLIT:
                self._episode[rest] = leaf
        self._steps.setdefault("discount", _numbers(np.dtype(np.float32), ()))
        if (dataset.column("episodes/seeds") >= 0).any():
            self._episode[SEED] = _numbers(np.dtype(np.int64), ())

    def tree(self) -> dict[str, Any]:
        """Return `features.json`."""
        steps = _nested({name: leaf.json for name, leaf in self._steps.items()})
        return _nested(
            {
                **{name: leaf.json for name, leaf in self._episode.items()},
                "steps": {
                    "pythonClassName": f"{CLASSES}dataset_feature.Dataset",
                    "sequence": {"feature": steps, "length": "-1"},
                },
            }
        )

    def record(self, episode: Episode) -> dict[str, Any]:
        """Return the features of an episode, as they are stored."""
        count = len(episode.rewards)
        last = np.arange(count + 1) == count
        values: dict[str, Any] = {
            **_space_rows("observation", episode.observations),
            **_space_rows("action", _one_more(episode.actions)),
            "reward": _one_more(episode.rewards),
            "discount": _discounts(episode, last),
            "is_first": np.arange(count + 1) == 0,
            "is_last": last,
            "is_terminal": last & bool(episode.terminations[-1]),
        }
        for name, rows in episode.infos.items():
            if _info_name(name) in self._steps:
                values[_info_name(name)] = _one_more(rows)
        found: dict[str, Any] = {}
        for name, leaf in self._steps.items():
            found |= leaf.stored(f"steps/{name}", values[name])
        metadata = {**episode.metadata, SEED: -1 if episode.seed is None else episode.seed}
        for name, leaf in self._episode.items():
            found |= leaf.stored(name, _one_row(metadata[name]))
        return found


def tfds_losses(dataset: Dataset) -> list[str]:
    """Say what RLDS cannot hold.

    Raises SchemaError if observations or actions that it has no features for.
    """
    for role in ("observation", "action"):
        space = getattr(dataset, f"{role}_space")
        _space_leaves(role, space, dataset.name)
    said = []
    lost = sorted(dataset.schema.extras.keys() - set(_kept(dataset)))
    if lost:
        said.append(f"These columns are lost: {', '.join(lost)}.")
    terminated, truncated = _ends(dataset)
    both, neither = int((terminated & truncated).sum()), int((~terminated & ~truncated).sum())
    if both:
        said.append(
            f"{counted(both, 'episode')} that ended and were cut off at once will be only ended."
        )
    if neither:
        said.append(f"{counted(neither, 'unfinished episode')} will be cut off.")
    return said


def _kept(dataset: Dataset) -> list[str]:
    """Return the columns of steps and episodes that RLDS has a place for."""
    schema = dataset.schema
    kept = []
    for name, spec in schema.extras.items():
        root, _, rest = name.partition("/")
        is_array = schema.variable.get(name) == "array"
        # In sequences, TensorFlow's records have float32 and no float64.
        if is_array and (root == "episodes" or spec.dtype == np.float64):
            continue
        if root == "episodes" and (rest.partition("/")[0] == "steps" or rest == SEED):
            continue
        kept.append(name)
    return kept


def _ends(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return for each episode whether the task ended, and whether it was cut off."""
    last = np.cumsum(dataset.episode_lengths) - 1
    return dataset.column("terminations")[last], dataset.column("truncations")[last]


def _tfds_name(dataset: Dataset) -> str:
    name = re.sub(r"\W", "_", file_stem(dataset), flags=re.ASCII).lower()
    return name if name[:1].isalpha() else f"dataset_{name}"


def _info_name(name: str) -> str:
    """Return the name of an info among the features of steps."""
    is_discount = name == "discount"
    is_taken = name.partition("/")[0] in RESERVED and not is_discount
    return f"infos/{name}" if is_taken else name


def _discounts(episode: Episode, last: np.ndarray) -> np.ndarray:
    """Return 1 for each step, and 0 for the one that led to a terminal state and for the last."""
    found = np.ones(len(last), np.float32)
    found[-1] = 0
    if episode.terminations[-1]:
        found[-2:] = 0
    return found


def _space_leaves(role: str, space: gymnasium.Space[Any], dataset: str) -> dict[str, _Leaf]:
    """Return the features of a space by their paths.

    Raises SchemaError if there are none for it.
    """
    match space:
        case spaces.Dict() if space.spaces and not any("/" in key for key in space.spaces):
            found: dict[str, _Leaf] = {}
            for key, part in space.spaces.items():
                found |= _space_leaves(f"{role}/{key}", part, dataset)
            return found
        case spaces.Box() if (
            space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[-1] in CHANNELS
        ):
            pillow(dataset)
            return {role: _image(space.shape)}
        case spaces.Box():
            return {role: _numbers(np.dtype(space.dtype), space.shape)}
        case spaces.Discrete() if space.start == 0:
            return {role: _choice(int(space.n))}
        case spaces.Discrete() | spaces.MultiDiscrete():
            return {role: _numbers(np.dtype(np.int64), space.shape or ())}
        case spaces.MultiBinary():
            return {role: _numbers(np.dtype(bool), space.shape)}
    raise SchemaError(
        f"{dataset}: RLDS holds numbers, choices, and Dicts of them whose keys have no '/'; found {space} as "
        f"{role}."
    )


def _space_rows(path: str, values: Columns) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        return {path: values}
    found: dict[str, Any] = {}
    for key, part in values.items():
        found |= _space_rows(f"{path}/{key}", part)
    return found


def _one_more(values: Columns) -> Any:
    """Return rows with one more of nothing, for the last step, where RLDS says it is invalid."""
    if isinstance(values, Mapping):
        return {key: _one_more(part) for key, part in values.items()}
    if isinstance(values, list):
        return [*values, "" if isinstance(values[0], str) else values[0][:0]]
    return np.concatenate((values, np.zeros_like(values[:1])))


def _one_row(value: Any) -> Any:
    return [value] if isinstance(value, str) else np.asarray(value)[None]


def _nested(leaves: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the tree of features by their paths."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for path, leaf in leaves.items():
        name, _, rest = path.partition("/")
        groups.setdefault(name, {})[rest] = leaf
    features = {
        name: group[""] if list(group) == [""] else _nested(group) for name, group in groups.items()
    }
    return {
        "featuresDict": {"features": features},
        "pythonClassName": f"{CLASSES}features_dict.FeaturesDict",
    }


def _numbers(dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Leaf:
    """Return a feature of numbers. Those that a record would change are stored as bytes."""
    encoding = "none"
    if dtype == np.float64:
        encoding = "bytes"
    elif dtype == np.uint8 and shape:
        encoding = "zlib"
    return _Leaf(
        {
            "pythonClassName": f"{CLASSES}tensor_feature.Tensor",
            "tensor": {"dtype": str(dtype), "encoding": encoding, "shape": _shape(shape)},
        },
        lambda name, rows: {name: _stored_numbers(np.asarray(rows, dtype), encoding)},
    )


def _stored_numbers(rows: np.ndarray, encoding: str) -> Any:
    if encoding == "none":
        flat = rows.reshape(-1)
        return flat.view(np.int64) if flat.dtype == np.uint64 else flat
    rows = rows.astype(rows.dtype.newbyteorder("<"))
    pack: Callable[[bytes], bytes] = zlib.compress if encoding == "zlib" else bytes
    return [pack(row.tobytes()) for row in rows]


def _choice(count: int) -> _Leaf:
    return _Leaf(
        {
            "pythonClassName": f"{CLASSES}class_label_feature.ClassLabel",
            "classLabel": {"numClasses": str(count)},
        },
        lambda name, rows: {name: np.asarray(rows, np.int64)},
    )


def _text() -> _Leaf:
    return _Leaf(
        {"pythonClassName": f"{CLASSES}text_feature.Text", "text": {}},
        lambda name, rows: {name: [one.encode() for one in rows]},
    )


def _sequence(dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Leaf:
    """Return a feature of arrays with any number of rows, one a step."""

    def stored(name: str, rows: Sequence[np.ndarray]) -> dict[str, Any]:
        flat = np.concatenate([row.reshape(-1) for row in rows])
        return {
            f"{name}/ragged_flat_values": _stored_numbers(flat, "none"),
            f"{name}/ragged_row_lengths_0": np.array([len(row) for row in rows], np.int64),
        }

    return _Leaf(
        {
            "pythonClassName": f"{CLASSES}sequence_feature.Sequence",
            "sequence": {
                "feature": {
                    "pythonClassName": f"{CLASSES}tensor_feature.Tensor",
                    "tensor": {"dtype": str(dtype), "encoding": "none", "shape": _shape(shape)},
                },
                "length": "-1",
            },
        },
        stored,
    )


def _image(shape: tuple[int, ...]) -> _Leaf:
    return _Leaf(
        {
            "pythonClassName": f"{CLASSES}image_feature.Image",
            "image": {"dtype": "uint8", "encodingFormat": "png", "shape": _shape(shape)},
        },
        lambda name, rows: {name: [_png(row) for row in rows]},
    )


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    image = pillow("")
    image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def _shape(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"dimensions": [str(one) for one in shape]} if shape else {}
