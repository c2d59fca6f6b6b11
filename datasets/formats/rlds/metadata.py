"""What TensorFlow Datasets says of a dataset beside its files of records.

    dataset_info.json   name, version, description, splits: names of their files, records in each
    features.json       a tree of what a record holds; in the records its paths are the names of features
    metadata.json       anything that the author adds; `orlog` in it holds spaces and environment, as manifests do

https://www.tensorflow.org/datasets
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gymnasium
import msgspec
import numpy as np

from orlog.datasets.formats._shared.safe_reading import read_json_object, reading
from orlog.errors import SchemaError, clause
from orlog.manifests.manifest import EnvironmentRecord
from orlog.manifests.spaces import space_from_json, space_to_json

INFO_FILE = "dataset_info.json"
FEATURES_FILE = "features.json"
METADATA_FILE = "metadata.json"
OWN = "orlog"
RIEGELI_FILE = "metadata.riegeli"
STEPS = "steps"
LARGEST_VALUE = 2**26
DEEPEST = 16
DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
Encoding = Literal["", "bytes", "zlib"]
VERSION = re.compile(r"\d+\.\d+\.\d+")
WORD = re.compile(r"[A-Za-z0-9_.+-]+")
INTEGERS = (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
NUMBERS = ("float16", "float32", "float64", "bool", *INTEGERS)
ENCODINGS: dict[str, Encoding] = {"none": "", "bytes": "bytes", "zlib": "zlib"}
TEXTS = ("string", "object", "str")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A file of records.

    Attributes:
        path: Where it is.
        split: Name of its split.
        records: How many records it holds.
    """

    path: Path
    split: str
    records: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """What `dataset_info.json` says.

    Attributes:
        name: Name of the dataset in TensorFlow Datasets.
        title: Its name, config and version.
        description: What the data are.
        license: Their license, in any words.
        shards: The files, split by split.
    """

    name: str
    title: str
    description: str
    license: str
    shards: list[Shard]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A feature that holds values.

    Attributes:
        name: Its path, such as `steps/observation/image`.
        kind: What it holds.
        dtype: Numbers of `numbers`, `classes` and `image`.
        shape: Shape of one value; None where a size is not said, for images alone.
        encoding: How numbers are stored: as numbers (``), or as `bytes`, plain or by `zlib`.
        classes: How many classes there are.
        length: Values of a sequence; -1 for any number, and None for what is no sequence.
    """

    name: str
    kind: Literal["numbers", "classes", "text", "image"]
    dtype: np.dtype[Any] = dataclasses.field(default_factory=lambda: np.dtype(np.int64))
    shape: tuple[int | None, ...] = ()
    encoding: Encoding = ""
    classes: int = 0
    length: int | None = None

    @property
    def size(self) -> int:
        """Return how many numbers a value has, as far as it is said."""
        return math.prod(1 if one is None else one for one in self.shape)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What orlog adds to what TensorFlow Datasets says.

    Attributes:
        observation_space: Space of observations, with its bounds.
        action_space: Space of actions.
        environment: The environment that recorded the data, if one is known.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    environment: EnvironmentRecord | None


def own_to_json(own: Own) -> dict[str, Any]:
    """Return what `metadata.json` holds."""
    return {
        OWN: {
            "observation_space": space_to_json(own.observation_space),
            "action_space": space_to_json(own.action_space),
            "environment": msgspec.to_builtins(own.environment),
        }
    }


def read_own(folder: Path, where: str) -> Own | None:
    """Return what orlog wrote into `metadata.json`; None where it wrote none.

    Raises SchemaError if it is not what orlog writes; IntegrityError if it is no JSON.
    """
    if not (folder / METADATA_FILE).is_file():
        return None
    body = _document(folder / METADATA_FILE, where).get(OWN)
    if body is None:
        return None
    what = f"{where}, {METADATA_FILE}, {OWN}"
    if not isinstance(body, dict):
        raise SchemaError(f"{what}: expected spaces, found {body!r:.50}.")
    try:
        return Own(
            observation_space=space_from_json(body.get("observation_space")),
            action_space=space_from_json(body.get("action_space")),
            environment=msgspec.convert(body.get("environment"), EnvironmentRecord | None),
        )
    except (SchemaError, msgspec.ValidationError) as error:
        raise SchemaError(f"{what}: {clause(error)}.") from error


def find_version(folder: Path, where: str) -> Path:
    """Return the folder of the one version that lies in a folder, or in folders inside of it.

    Raises SchemaError if there is none, or there are several.
    """
    if (folder / FEATURES_FILE).is_file():
        return folder
    found = [
        file.parent
        for pattern in (f"*/{FEATURES_FILE}", f"*/*/{FEATURES_FILE}")
        for file in sorted(folder.glob(pattern))
        if VERSION.fullmatch(file.parent.name) and not file.parent.is_symlink()
    ]
    if not found and any(any(folder.glob(f"{deep}{RIEGELI_FILE}")) for deep in ("", "*/", "*/*/")):
        raise SchemaError(
            f"{where}: holds logs of EnvLogger, which are not read; tfds build or rlds.tfds.EpisodeWriter makes "
            "a dataset of them."
        )
    if len(found) != 1:
        names = ", ".join(one.relative_to(folder).as_posix() for one in found[:20])
        raise SchemaError(
            f"{where}: expected {FEATURES_FILE} of TensorFlow Datasets here or in one version's folder, "
            f"found {names or 'none'}; import the folder of one version."
        )
    return found[0]


def read_info(folder: Path, where: str) -> DatasetInfo:
    """Read `dataset_info.json`.

    Raises SchemaError if it is not there, or not of the form that TensorFlow Datasets writes; IntegrityError
    if it is no JSON.
    """
    body = _document(folder / INFO_FILE, where)
    what = f"{where}, {INFO_FILE}"
    kind = body.get("fileFormat") or "tfrecord"
    if kind != "tfrecord":
        raise SchemaError(
            f"{what}: the records are in {kind!r:.30}, and only tfrecord is read; "
            "tfds convert_format --out_file_format=tfrecord converts them."
        )
    name = _word(body.get("name"), f"{what}, name")
    config = body.get("configName")
    title = "/".join([name, *([plain_text(config, 200)] if config else [])])
    shards: list[Shard] = []
    splits = body.get("splits", [])
    if not isinstance(splits, list) or not all(isinstance(one, dict) for one in splits):
        raise SchemaError(f"{what}: expected a list of splits.")
    for split in splits:
        shards += _shards(split, folder, name, what)
    redistribution = body.get("redistributionInfo")
    said = redistribution.get("license") if isinstance(redistribution, dict) else ""
    return DatasetInfo(
        name=name,
        title=f"{title} {plain_text(body.get('version', ''), 50)}".strip(),
        description=plain_text(body.get("description", ""), 10_000),
        license=plain_text(said or "", 200),
        shards=shards,
    )


def _shards(split: dict[str, Any], folder: Path, name: str, what: str) -> Iterator[Shard]:
    split_name = _word(split.get("name"), f"{what}, the name of a split")
    lengths = split.get("shardLengths", [])
    if not isinstance(lengths, list):
        raise SchemaError(f"{what}, {split_name}: expected shardLengths, found {lengths!r:.50}.")
    for number, length in enumerate(lengths):
        index, count = f"{number:05}", f"{len(lengths):05}"
        values = {
            "DATASET": name,
            "SPLIT": split_name,
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": index,
            "NUM_SHARDS": count,
            "SHARD_X_OF_Y": f"{index}-of-{count}",
        }
        file = str(split.get("filepathTemplate") or DEFAULT_TEMPLATE)
        for key, value in values.items():
            file = file.replace(f"{{{key}}}", value)
        path = folder / _word(file, f"{what}, {split_name}, filepathTemplate")
        records = _integer(length, f"{what}, {split_name}, shardLengths")
        yield Shard(path=path, split=split_name, records=records)


def read_features(folder: Path, where: str) -> tuple[list[Leaf], dict[str, str]]:
    """Read `features.json`.

    Returns:
        The features that can be read, and why each of the others cannot, by its path. Those of
        steps have paths that begin with `steps/`.

    Raises SchemaError if it is not there, or not of the form that TensorFlow Datasets writes; IntegrityError
    if it is no JSON.
    """
    leaves: list[Leaf] = []
    left_out: dict[str, str] = {}
    for path, leaf in _leaves(_document(folder / FEATURES_FILE, where), "", where):
        if isinstance(leaf, Leaf):
            leaves.append(leaf)
        else:
            left_out[path] = leaf
    return leaves, left_out


def _leaves(
    node: object, path: str, dataset: str, depth: int = 0, length: int | None = None
) -> Iterator[tuple[str, Leaf | str]]:
    """Yield the path of each feature that has values, and the feature, or why it is not read.

    `length` is that of the sequence around it.
    """
    where = f"{dataset}, {FEATURES_FILE}, {path or 'the whole'}"
    if not isinstance(node, dict) or depth > DEEPEST:
        raise SchemaError(f"{where}: expected a feature, found {node!r:.50}.")
    kind, content = _content(node, where)
    if kind == "FeaturesDict":
        features = content.get("features", content)
        if not isinstance(features, dict):
            raise SchemaError(f"{where}: expected features, found {features!r:.50}.")
        for name, feature in features.items():
            inner = f"{path}/{name}" if path else str(name)
            yield from _leaves(feature, inner, dataset, depth + 1, length)
    elif kind == "Dataset" and path == STEPS:
        yield from _leaves(content.get("feature"), path, dataset, depth + 1)
    elif kind in ("Sequence", "Dataset"):
        if length is not None or (kind == "Dataset" and path.startswith(f"{STEPS}/")):
            yield path, "a sequence in a sequence"
            return
        length = _integer(content.get("length") or -1, f"{where}, length", lowest=-1)
        yield from _leaves(content.get("feature"), path, dataset, depth + 1, length)
    else:
        yield path, _leaf(kind, content, path, length, where)


def _content(node: dict[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    """Return class and description of a feature, in today's form or that of before 2022."""
    if "type" in node:
        kind, content = node["type"], node.get("content", {})
        if isinstance(content, str):
            with reading(where, "JSON"):
                content = json.loads(content)
    else:
        kind = node.get("pythonClassName")
        inner = [value for value in node.values() if isinstance(value, dict)]
        content = inner[0] if len(inner) == 1 else {}
    if not isinstance(kind, str) or not isinstance(content, dict):
        raise SchemaError(f"{where}: expected the class of a feature, found {node!r:.50}.")
    return kind.rpartition(".")[2], content


def _leaf(
    kind: str, content: dict[str, Any], path: str, length: int | None, where: str
) -> Leaf | str:
    """Return a feature that holds values, or why it is not read."""
    if kind == "Text":
        return Leaf(name=path, kind="text") if length is None else "texts"
    if kind == "ClassLabel":
        classes = content.get("numClasses", content.get("num_classes")) or 0
        count = _integer(classes, f"{where}, numClasses")
        return Leaf(name=path, kind="classes", classes=count, length=length)
    if kind not in ("Tensor", "Scalar", "Image"):
        return f"a {kind[:50]}"
    dtype, shape = content.get("dtype"), _shape(content.get("shape"), where)
    if kind == "Image":
        if length is not None:
            return "images in a sequence"
        if dtype not in (None, "uint8"):
            return f"an image of {dtype!s:.20}"
        shape = shape or (None, None, 3)
        return Leaf(name=path, kind="image", dtype=np.dtype(np.uint8), shape=shape)
    if dtype in TEXTS and not content.get("optional"):
        is_single = not shape and length is None
        return Leaf(name=path, kind="text") if is_single else "texts"
    said = str(content.get("encoding") or "none").rpartition(".")[2].lower()
    for is_unread, why in (
        (content.get("optional"), "values that may be missing"),
        (dtype not in NUMBERS, f"numbers of {dtype!s:.20}"),
        (said not in ENCODINGS, f"numbers encoded as {said:.20}"),
        (None in shape, "arrays of any size"),
        (said != "none" and length is not None, "encoded arrays in a sequence"),
    ):
        if is_unread:
            return why
    return Leaf(
        name=path,
        kind="numbers",
        dtype=np.dtype(str(dtype)),
        shape=shape,
        encoding=ENCODINGS[said],
        length=length,
    )


def _shape(value: object, where: str) -> tuple[int | None, ...]:
    said = value.get("dimensions", []) if isinstance(value, dict) else value or []
    if not isinstance(said, list) or len(said) > 16:
        raise SchemaError(f"{where}: expected a shape, found {value!r:.50}.")
    sizes = [-1 if one is None else _integer(one, where, lowest=-1) for one in said]
    if math.prod(max(1, one) for one in sizes) > LARGEST_VALUE:
        raise SchemaError(f"{where}: the shape {sizes} is too large.")
    return tuple(None if one == -1 else one for one in sizes)


def _integer(value: object, what: str, *, lowest: int = 0) -> int:
    """Return a number of JSON, where protobuf writes those of 64 bits as texts."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value < 2**60:
        raise SchemaError(f"{what}: expected an integer of {lowest} or more, found {value!r:.30}.")
    return value


def plain_text(value: object, most: int) -> str:
    """Return a text of JSON, which may hold halves of characters, as one that can be written."""
    return str(value)[:most].strip().encode("utf-8", "replace").decode()


def _word(value: object, what: str) -> str:
    """Return a name that can be part of the name of a file, and of no path."""
    if not isinstance(value, str) or not WORD.fullmatch(value) or len(value) > 255:
        raise SchemaError(f"{what}: expected letters, digits and '_.+-', found {value!r:.80}.")
    return value


def _document(file: Path, where: str) -> dict[str, Any]:
    missing = f"has no {file.name} of TensorFlow Datasets."
    return read_json_object(file, where, missing=missing)
