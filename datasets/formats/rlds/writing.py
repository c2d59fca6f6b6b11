"""Writes datasets in the layout of RLDS that TensorFlow Datasets opens (`tfds.builder_from_directory`)."""

from __future__ import annotations

import contextlib
import io
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Columns, Episode
from orlog.datasets.formats.array_files import pillow
from orlog.datasets.formats.flat_rows import file_stem
from orlog.datasets.formats.rlds.features import (
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
RESERVED = {*("observation", "action", "reward", "discount"), *("is_first", "is_last", "is_terminal", "infos")}
CLASSES = "tensorflow_datasets.core.features."
CHANNELS = (1, 3, 4)
SPLIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def write_tfds(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `FOLDER/NAME/VERSION`, which `tfds.builder_from_directory` opens.

    Raises SchemaError if an episode is larger than TensorFlow can read, or of a split that it cannot name.
    """
    name, version = _tfds_name(dataset), dataset.manifest.version
    version = version if VERSION.fullmatch(version) else "1.0.0"
    place = folder / name / version
    place.mkdir(parents=True)
    steps, whole = _features_of(dataset)
    splits: dict[str, _Split] = {}
    done = 0
    with contextlib.ExitStack() as stack:
        for number, episode in enumerate(dataset):
            where, split = f"{dataset.name}, episode {number}", episode.metadata.get(SPLIT, "train")
            if not isinstance(split, str) or not SPLIT_NAME.fullmatch(split):
                raise SchemaError(
                    f"{where}: TensorFlow Datasets cannot name a split {split!r:.50}; export a view without "
                    "episodes/split: select_columns."
                )
            data = example_bytes(_record(episode, steps, whole))
            if len(data) > MOST_BYTES:
                raise SchemaError(f"{where}: an episode of {len(data):,} bytes is more than TensorFlow reads at once.")
            if split not in splits:
                splits[split] = _Split(place, f"{name}-{split}")
                stack.callback(splits[split].close)
            splits[split].add(data)
            done += len(episode.rewards)
            progress(done, dataset.total_steps)
        splits_json = [
            {
                "filepathTemplate": DEFAULT_TEMPLATE,
                "name": split,
                "numBytes": str(files.size),
                "shardLengths": [str(length) for length in files.finish()],
            }
            for split, files in splits.items()
        ]
    info: dict[str, Any] = {
        "description": dataset.manifest.description,
        "fileFormat": "tfrecord",
        "name": name,
        "splits": splits_json,
        "version": version,
    }
    if dataset.manifest.license:
        info["redistributionInfo"] = {"license": dataset.manifest.license}
    of_steps = _nested({path: leaf.json for path, leaf in steps.items()})
    tree = {path: leaf.json for path, leaf in whole.items()}
    tree["steps"] = _described("dataset_feature.Dataset", sequence=_of_any_length(of_steps))
    own = Own(dataset.observation_space, dataset.action_space, dataset.environment)
    documents = {INFO_FILE: info, FEATURES_FILE: _nested(tree), METADATA_FILE: own_to_json(own)}
    for file, body in documents.items():
        (place / file).write_text(json.dumps(body, indent=2, sort_keys=True), "utf-8")


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


class _Leaf(NamedTuple):
    """A feature: what features.json says of it, and how its rows are stored, by the ends of their names."""

    json: dict[str, Any]
    stored: Callable[[Any], dict[str, Any]]


def _features_of(dataset: Dataset) -> tuple[dict[str, _Leaf], dict[str, _Leaf]]:
    schema = dataset.schema
    steps = {
        **_space_leaves("observation", dataset.observation_space, dataset.name),
        **_space_leaves("action", dataset.action_space, dataset.name),
        "reward": _numbers(schema.reward_dtype, ()),
        **{name: _numbers(np.dtype(bool), ()) for name in ("is_first", "is_last", "is_terminal")},
    }
    whole: dict[str, _Leaf] = {}
    for name in _kept(dataset):
        root, _, rest = name.partition("/")
        spec, kind = schema.extras[name], schema.variable.get(name)
        if kind == "text":
            text = _described("text_feature.Text", text={})
            leaf = _Leaf(text, lambda rows: {"": [value.encode() for value in rows]})
        elif kind == "array":
            leaf = _sequence(spec.dtype, spec.shape)
        else:
            leaf = _numbers(spec.dtype, spec.shape)
        if root == "infos":
            steps[_info_name(rest)] = leaf
        elif rest != SPLIT:
            whole[rest] = leaf
    steps.setdefault("discount", _numbers(np.dtype(np.float32), ()))
    if (dataset.column("episodes/seeds") >= 0).any():
        whole[SEED] = _numbers(np.dtype(np.int64), ())
    return steps, whole


def _record(episode: Episode, steps: Mapping[str, _Leaf], whole: Mapping[str, _Leaf]) -> dict[str, Any]:
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
        if _info_name(name) in steps:
            values[_info_name(name)] = _one_more(rows)
    metadata = {**episode.metadata, SEED: -1 if episode.seed is None else episode.seed}
    features = {f"steps/{name}": (leaf, values[name]) for name, leaf in steps.items()}
    features |= {name: (leaf, _one_row(metadata[name])) for name, leaf in whole.items()}
    return {name + end: stored for name, (leaf, rows) in features.items() for end, stored in leaf.stored(rows).items()}


def tfds_losses(dataset: Dataset) -> list[str]:
    """Say what RLDS cannot hold.

    Raises SchemaError if observations or actions that it has no features for.
    """
    for role in ("observation", "action"):
        space = getattr(dataset, f"{role}_space")
        _space_leaves(role, space, dataset.name)
    sentences = []
    lost = sorted(dataset.schema.extras.keys() - set(_kept(dataset)))
    if lost:
        sentences.append(f"These columns are lost: {', '.join(lost)}.")
    terminated, truncated = _ends(dataset)
    both, neither = int((terminated & truncated).sum()), int((~terminated & ~truncated).sum())
    if both:
        sentences.append(f"{counted(both, 'episode')} that ended and were cut off at once will be only ended.")
    if neither:
        sentences.append(f"{counted(neither, 'unfinished episode')} will be cut off.")
    return sentences


def _kept(dataset: Dataset) -> list[str]:
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
    return f"infos/{name}" if name.partition("/")[0] in RESERVED and name != "discount" else name


def _discounts(episode: Episode, last: np.ndarray) -> np.ndarray:
    """Return 1 for each step, and 0 for the one that led to a terminal state and for the last."""
    discounts = np.ones(len(last), np.float32)
    discounts[-1] = 0
    if episode.terminations[-1]:
        discounts[-2:] = 0
    return discounts


def _space_leaves(role: str, space: gymnasium.Space[Any], dataset: str) -> dict[str, _Leaf]:
    """Return the features of a space by their paths."""
    match space:
        case spaces.Dict() if space.spaces and not any("/" in key for key in space.spaces):
            leaves: dict[str, _Leaf] = {}
            for key, part in space.spaces.items():
                leaves |= _space_leaves(f"{role}/{key}", part, dataset)
            return leaves
        case spaces.Box() if space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[-1] in CHANNELS:
            pillow(dataset)
            about = {"dtype": "uint8", "encodingFormat": "png", "shape": _shape(space.shape)}
            frames = _described("image_feature.Image", image=about)
            return {role: _Leaf(frames, lambda rows: {"": [*map(_png, rows)]})}
        case spaces.Box():
            return {role: _numbers(np.dtype(space.dtype), space.shape)}
        case spaces.Discrete() if space.start == 0:
            about = {"numClasses": str(int(space.n))}
            label = _described("class_label_feature.ClassLabel", classLabel=about)
            return {role: _Leaf(label, lambda rows: {"": np.asarray(rows, np.int64)})}
        case spaces.Discrete() | spaces.MultiDiscrete():
            return {role: _numbers(np.dtype(np.int64), space.shape or ())}
        case spaces.MultiBinary():
            return {role: _numbers(np.dtype(bool), space.shape)}
    raise SchemaError(
        f"{dataset}: RLDS holds numbers, choices, and Dicts of them whose keys have no '/'; found {space} as {role}."
    )


def _space_rows(path: str, values: Columns) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        return {path: values}
    rows: dict[str, Any] = {}
    for key, part in values.items():
        rows |= _space_rows(f"{path}/{key}", part)
    return rows


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
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for path, leaf in leaves.items():
        name, _, rest = path.partition("/")
        groups.setdefault(name, {})[rest] = leaf
    features = {name: group[""] if list(group) == [""] else _nested(group) for name, group in groups.items()}
    return _described("features_dict.FeaturesDict", featuresDict={"features": features})


def _described(kind: str, **content: Any) -> dict[str, Any]:
    return {"pythonClassName": f"{CLASSES}{kind}", **content}


def _of_any_length(feature: dict[str, Any]) -> dict[str, Any]:
    return {"feature": feature, "length": "-1"}


def _tensor(dtype: np.dtype[Any], shape: tuple[int, ...], encoding: str) -> dict[str, Any]:
    about = {"dtype": str(dtype), "encoding": encoding, "shape": _shape(shape)}
    return _described("tensor_feature.Tensor", tensor=about)


def _numbers(dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Leaf:
    """Return a feature of numbers. Those that a record would change are stored as bytes."""
    encoding = "bytes" if dtype == np.float64 else "zlib" if dtype == np.uint8 and shape else "none"
    return _Leaf(_tensor(dtype, shape, encoding), lambda rows: {"": _stored_numbers(np.asarray(rows, dtype), encoding)})


def _stored_numbers(rows: np.ndarray, encoding: str) -> Any:
    if encoding == "none":
        flat = rows.reshape(-1)
        return flat.view(np.int64) if flat.dtype == np.uint64 else flat
    rows = rows.astype(rows.dtype.newbyteorder("<"))
    pack: Callable[[bytes], bytes] = zlib.compress if encoding == "zlib" else bytes
    return [pack(row.tobytes()) for row in rows]


def _sequence(dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Leaf:
    """Return a feature of arrays with any number of rows, one a step."""

    def stored(rows: Sequence[np.ndarray]) -> dict[str, Any]:
        flat = np.concatenate([row.reshape(-1) for row in rows])
        return {
            "/ragged_flat_values": _stored_numbers(flat, "none"),
            "/ragged_row_lengths_0": np.array([len(row) for row in rows], np.int64),
        }

    inner = _of_any_length(_tensor(dtype, shape, "none"))
    return _Leaf(_described("sequence_feature.Sequence", sequence=inner), stored)


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    image = pillow("")
    image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def _shape(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"dimensions": [str(size) for size in shape]} if shape else {}
