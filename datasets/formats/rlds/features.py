"""What TensorFlow Datasets says of a dataset beside its files of records, and the values of a feature in a record.

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
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces

from orlog.datasets.formats.array_files import opened_picture, picture_size
from orlog.datasets.formats.episode_cutter import NAMES, outcome_of, success_in
from orlog.datasets.formats.mapped_arrays import unbounded_space
from orlog.datasets.formats.rlds.tfrecords import Values, values_of
from orlog.datasets.formats.safe_reading import read_json_object, reading
from orlog.errors import IntegrityError, SchemaError, clause
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
VERSION = re.compile(r"\d+\.\d+\.\d+")
WORD = r"^[A-Za-z0-9_.+-]{1,255}\Z"
INTEGERS = (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
NUMBERS = ("float16", "float32", "float64", "bool", *INTEGERS)
ENCODINGS = {"none": "", "bytes": "bytes", "zlib": "zlib"}
TEXTS = ("string", "object", "str")
PATHS = ("file_path", "recording_folderpath")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class Shard(NamedTuple):
    """A file of records: where it is, the name of its split, and how many records it holds."""

    path: Path
    split: str
    records: int


class DatasetInfo(NamedTuple):
    """What `dataset_info.json` says; `title` is name, config and version."""

    name: str
    title: str
    description: str
    license: str
    shards: list[Shard]


class _Split(msgspec.Struct, rename="camel"):
    name: Annotated[str, msgspec.Meta(pattern=WORD)]
    shard_lengths: list[Annotated[int, msgspec.Meta(ge=0)]] = []
    filepath_template: str | None = None


class _Info(msgspec.Struct, rename="camel"):
    name: Annotated[str, msgspec.Meta(pattern=WORD)]
    splits: list[_Split] = []
    file_format: str | None = None
    config_name: Any = None
    version: Any = ""
    description: Any = ""
    redistribution_info: Any = None


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
    encoding: str = ""
    classes: int = 0
    length: int | None = None

    @property
    def size(self) -> int:
        """How many numbers a value has, as far as it is said."""
        return math.prod(1 if size is None else size for size in self.shape)

    @property
    def stored_names(self) -> list[str]:
        """The names that it has in a record."""
        if self.length is None or not self.name.startswith(f"{STEPS}/"):
            return [self.name]
        return [f"{self.name}/ragged_flat_values", f"{self.name}/ragged_row_lengths_0"]

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The dtype of values of its space."""
        if self.dtype.kind == "b":
            return np.dtype(np.int8 if self.shape else np.int64)
        return self.dtype


class Own(NamedTuple):
    """What orlog adds to what TensorFlow Datasets says: spaces with their bounds, and the environment."""

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
    try:
        return Own(
            space_from_json(body["observation_space"]),
            space_from_json(body["action_space"]),
            msgspec.convert(body.get("environment"), EnvironmentRecord | None),
        )
    except (SchemaError, msgspec.ValidationError, UnicodeError, KeyError, TypeError) as error:
        raise SchemaError(f"{where}, {METADATA_FILE}, {OWN}: expected spaces: {clause(error)}.") from error


def find_version(folder: Path, where: str) -> Path:
    """Return the folder of the one version that lies in a folder, or in folders inside of it.

    Raises SchemaError if there is none, or there are several.
    """
    if (folder / FEATURES_FILE).is_file():
        return folder
    versions = [
        file.parent
        for pattern in (f"*/{FEATURES_FILE}", f"*/*/{FEATURES_FILE}")
        for file in sorted(folder.glob(pattern))
        if VERSION.fullmatch(file.parent.name) and not file.parent.is_symlink()
    ]
    if not versions and any(any(folder.glob(f"{deep}{RIEGELI_FILE}")) for deep in ("", "*/", "*/*/")):
        raise SchemaError(
            f"{where}: holds logs of EnvLogger, which are not read; tfds build or rlds.tfds.EpisodeWriter makes "
            "a dataset of them."
        )
    if len(versions) != 1:
        names = ", ".join(version.relative_to(folder).as_posix() for version in versions[:20])
        raise SchemaError(
            f"{where}: expected {FEATURES_FILE} of TensorFlow Datasets here or in one version's folder, "
            f"found {names or 'none'}; import the folder of one version."
        )
    return versions[0]


def read_info(folder: Path, where: str) -> DatasetInfo:
    """Read `dataset_info.json`.

    Raises SchemaError if it is not there, or not of the form that TensorFlow Datasets writes; IntegrityError
    if it is no JSON.
    """
    what = f"{where}, {INFO_FILE}"
    try:  # protobuf writes integers of 64 bits as texts
        info = msgspec.convert(_document(folder / INFO_FILE, where), _Info, strict=False)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise SchemaError(f"{what}: {clause(error)}.") from error
    if info.file_format not in (None, "", "tfrecord"):
        raise SchemaError(
            f"{what}: the records are in {info.file_format!r:.30}, and only tfrecord is read; "
            "tfds convert_format --out_file_format=tfrecord converts them."
        )
    rights = info.redistribution_info
    title = "/".join(filter(None, (info.name, plain_text(info.config_name or "", 200))))
    return DatasetInfo(
        name=info.name,
        title=f"{title} {plain_text(info.version, 50)}".strip(),
        description=plain_text(info.description, 10_000),
        license=plain_text(rights.get("license") or "" if isinstance(rights, dict) else "", 200),
        shards=[shard for split in info.splits for shard in _shards(split, folder, info.name, what)],
    )


def _shards(split: _Split, folder: Path, name: str, what: str) -> Iterator[Shard]:
    count = f"{len(split.shard_lengths):05}"
    for number, records in enumerate(split.shard_lengths):
        values = {
            "DATASET": name,
            "SPLIT": split.name,
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": f"{number:05}",
            "NUM_SHARDS": count,
            "SHARD_X_OF_Y": f"{number:05}-of-{count}",
        }
        file = split.filepath_template or DEFAULT_TEMPLATE
        for key, value in values.items():
            file = file.replace(f"{{{key}}}", value)
        if not re.search(WORD, file):
            raise SchemaError(
                f"{what}, {split.name}, filepathTemplate: expected the name of a file, found {file!r:.80}."
            )
        yield Shard(folder / file, split.name, records)


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
    kind, content = _content(node, where) if depth <= DEEPEST else ("", {})
    features = content.get("features", content)
    if not kind or not isinstance(features, dict):
        raise SchemaError(f"{where}: expected a feature, found {node!r:.50}.")
    if kind == "FeaturesDict":
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


def _content(node: object, where: str) -> tuple[str, dict[str, Any]]:
    """Return class and description of a feature, in today's form or that of before 2022."""
    if not isinstance(node, dict):
        return "", {}
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
        return "", {}
    return kind.rpartition(".")[2], content


def _leaf(kind: str, content: dict[str, Any], path: str, length: int | None, where: str) -> Leaf | str:
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
    encoding = str(content.get("encoding") or "none").rpartition(".")[2].lower()
    for is_unread, why in (
        (content.get("optional"), "values that may be missing"),
        (dtype not in NUMBERS, f"numbers of {dtype!s:.20}"),
        (encoding not in ENCODINGS, f"numbers encoded as {encoding:.20}"),
        (None in shape, "arrays of any size"),
        (encoding != "none" and length is not None, "encoded arrays in a sequence"),
    ):
        if is_unread:
            return why
    return Leaf(
        name=path, kind="numbers", dtype=np.dtype(str(dtype)), shape=shape, encoding=ENCODINGS[encoding], length=length
    )


def _shape(value: object, where: str) -> tuple[int | None, ...]:
    stated = value.get("dimensions", []) if isinstance(value, dict) else value or []
    if not isinstance(stated, list) or len(stated) > 16:
        raise SchemaError(f"{where}: expected a shape, found {value!r:.50}.")
    sizes = [-1 if size is None else _integer(size, where, lowest=-1) for size in stated]
    if math.prod(max(1, size) for size in sizes) > LARGEST_VALUE:
        raise SchemaError(f"{where}: the shape {sizes} is too large.")
    return tuple(None if size == -1 else size for size in sizes)


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


def _document(file: Path, where: str) -> dict[str, Any]:
    missing = f"has no {file.name} of TensorFlow Datasets."
    return read_json_object(file, where, missing=missing)


def space_of(parts: Mapping[str, Leaf]) -> spaces.Space[Any]:
    """Return the space of features, a Dict where they have names."""
    if list(parts) == [""]:
        return _leaf_space(parts[""])
    groups: dict[str, dict[str, Leaf]] = {}
    for path, leaf in parts.items():
        name, _, rest = path.partition("/")
        groups.setdefault(name, {})[rest] = leaf
    return spaces.Dict({name: space_of(group) for name, group in groups.items()})


def _leaf_space(leaf: Leaf) -> spaces.Space[Any]:
    shape: Any = leaf.shape
    if leaf.kind == "classes" and leaf.classes:
        return spaces.Discrete(leaf.classes)
    if leaf.dtype.kind == "b":
        if not shape:
            return spaces.Discrete(2)
        return spaces.MultiBinary(shape if len(shape) > 1 else shape[0])
    if leaf.dtype.kind in "iu" and leaf.dtype != np.uint8:
        limits = np.iinfo(leaf.dtype)
        return spaces.Box(limits.min, limits.max, shape, leaf.dtype.type)
    return unbounded_space(leaf.dtype, shape)


def is_number(leaf: Leaf | None) -> bool:
    """Return whether a feature is one number in each value."""
    return leaf is not None and leaf.kind == "numbers" and leaf.size == 1 and leaf.length is None


def is_path(leaf: Leaf) -> bool:
    """Return whether a feature of episodes is the path that each comes from."""
    return leaf.kind == "text" and leaf.name.rpartition("/")[2] in PATHS


def stated_success(
    column: Callable[[Leaf], Column], metadata: Mapping[str, Leaf], infos: Mapping[str, Leaf], rows: int
) -> bool | None:
    """Return whether a record states that its episode succeeded; None where it does not say.

    Its metadata say it by a number, or as DROID's by the folder that the episode comes from; else its steps do.
    """
    success = metadata.get("success")
    if success is not None and is_number(success):
        return bool(column(success).rows(0, 1)[0] > 0)
    for leaf in filter(is_path, metadata.values()):
        outcome = outcome_of(column(leaf).rows(0, 1)[0])
        if outcome is not None:
            return bool(outcome)
    of_steps = {name: infos[name] for name in NAMES if is_number(infos.get(name))}
    values = success_in({name: column(leaf).rows(0, rows) for name, leaf in of_steps.items()})
    if values is None:
        return None
    return bool(values.any() if "success" in of_steps else values[-1])


class Column:
    """The values of a feature in one record, a row a step.

    A row of `numbers` and `classes` is one of an array, as is one of an `image`; one of `text` is a text, and one of
    a sequence without a fixed length an array of its own.
    """

    def __init__(self, example: Mapping[str, Any], leaf: Leaf, where: str) -> None:
        """Take a feature of a record."""
        self.leaf, self.where = leaf, f"{where}, {leaf.name}"
        missing = [name for name in leaf.stored_names if name not in example]
        if missing:
            raise IntegrityError(f"{where}: has no feature {missing[0]}, which features.json says.", file=where)
        self._values: Values
        self._values, *lengths = (values_of(example[name]) for name in leaf.stored_names)
        is_of_bytes = leaf.kind in ("text", "image") or bool(leaf.encoding)
        if isinstance(self._values, list) != is_of_bytes and len(self._values):
            raise self._error(f"expected {'bytes' if is_of_bytes else 'numbers'}, found values of another kind")
        # Values of a row: a sequence holds any number of them.
        self._stops: np.ndarray | None = None
        if lengths:
            counts = np.asarray(lengths[0])
            if counts.dtype.kind != "i" or ((counts < 0) | (counts > LARGEST_VALUE)).any():
                raise self._error("its sequences have no lengths, or are too long")
            if leaf.length != -1 and (counts != leaf.length).any():
                raise self._error(f"a sequence has not {leaf.length} values")
            self._stops = np.cumsum(counts)
        self.replaced_bytes = 0  # texts that are no UTF-8

    def _error(self, what: str) -> IntegrityError:
        return IntegrityError(f"{self.where}: {what}.", file=self.where)

    def __len__(self) -> int:
        """Return the number of rows."""
        size, count = max(1, self.leaf.size), len(self._values)
        if self._stops is not None or isinstance(self._values, list):
            return count if self._stops is None else len(self._stops)
        if count % size:
            raise self._error(f"holds {count:,} numbers, and one step has {size}")
        return count // size

    def check(self, rows: int) -> None:
        """Refuse other than so many rows.

        Raises IntegrityError if there are more or fewer.
        """
        size = 1 if isinstance(self._values, list) else self.leaf.size
        pairs = [(len(self._values), rows * size)]
        if self._stops is not None:
            whole = int(self._stops[-1:].sum()) * size
            pairs = [(len(self._stops), rows), (len(self._values), whole)]
        for count, expected in pairs:
            if count != expected:
                how = "more" if count > expected else "fewer"
                raise self._error(f"it holds {how} values than steps")

    def rows(self, start: int, stop: int) -> Any:
        """Return the values of some rows.

        Raises IntegrityError if there are fewer, or they are not what features.json says.
        """
        leaf, values, stops = self.leaf, self._values, self._stops
        shape: Any = leaf.shape
        if isinstance(values, list):
            some = values[start:stop]
            if len(some) < stop - start:
                raise self._error("it holds fewer values than steps")
            if leaf.kind == "text":
                return [self._text(data) for data in some]
            return self._images(some, shape) if leaf.kind == "image" else self._encoded(some)
        first, last = start, stop
        if stops is not None:
            if len(stops) < stop:
                raise self._error("it holds fewer values than steps")
            first, last = (int(stops[row - 1]) if row else 0 for row in (start, stop))
        part = self._typed(values[first * leaf.size : last * leaf.size])
        if len(part) < (last - first) * leaf.size:
            raise self._error("it holds fewer values than steps")
        rows = part.reshape(last - first, *shape)
        if stops is None:
            return rows
        parts = np.split(rows, stops[start:stop] - first)[:-1]
        return parts if leaf.length == -1 else np.stack(parts)

    def first_bytes(self) -> bytes:
        """Return the first value as it is stored."""
        if not isinstance(self._values, list) or not self._values:
            raise self._error("it holds fewer values than steps")
        return self._values[0]

    def _typed(self, values: np.ndarray) -> np.ndarray:
        dtype = self.leaf.dtype
        if len(values) and (values.dtype.kind == "f") != (dtype.kind == "f"):
            raise self._error(f"expected {dtype}, found {values.dtype}")
        with np.errstate(over="ignore"):
            kept = values.astype(dtype)
        if dtype.kind in "iub" and dtype.itemsize < 8 and (kept != values).any():
            raise self._error(f"holds integers that are no {dtype}")
        return kept

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.replaced_bytes += 1
            return data.decode(errors="backslashreplace")

    def _encoded(self, some: Sequence[bytes]) -> np.ndarray:
        leaf, dtype = self.leaf, self.leaf.dtype.newbyteorder("<")
        shape: Any = leaf.shape
        size = leaf.size * dtype.itemsize
        rows = [self._inflated(data, size) if leaf.encoding == "zlib" else data for data in some]
        for row in rows:
            if len(row) != size:
                raise self._error(f"expected {size} bytes for {dtype} {shape}, found {len(row)}")
        array = np.frombuffer(b"".join(rows), np.uint8 if dtype.kind == "b" else dtype)
        return array.astype(leaf.dtype).reshape(len(some), *shape)

    def _inflated(self, data: bytes, size: int) -> bytes:
        stream = zlib.decompressobj()
        with reading(self.where):
            inflated = stream.decompress(data, size + 1)
        if not stream.eof:
            raise self._error(f"its compressed bytes do not give {size} bytes")
        return inflated

    def _images(self, some: Sequence[bytes], shape: tuple[int, ...]) -> np.ndarray:
        frames, mode = np.empty((len(some), *shape), np.uint8), MODES.get(shape[-1])
        for row, data in enumerate(some):
            with opened_picture(data, self.where) as image:
                sizes = picture_size(image)
                if sizes[:2] != shape[:2] or mode is None or sizes[2] not in (shape[2], 1):
                    raise self._error(f"expected images of {shape}, found {sizes}")
                if image.mode not in ("1", "L", "P", "RGB", "RGBA"):
                    raise SchemaError(f"{self.where}: images of the kind {image.mode} are not read.")
                pixels = np.asarray(image if image.mode == mode else image.convert(mode))
                frames[row] = pixels.reshape(shape)
        return frames


def image_shape(data: bytes, shape: tuple[int | None, ...], where: str) -> tuple[int, ...]:
    """Return the shape of an image, of which some sizes may be said.

    Raises IntegrityError if it is no image; SchemaError if it has another shape than was said, or is too
    large.
    """
    with opened_picture(data, where) as image:
        sizes = picture_size(image)
    whole = tuple(stated or size for stated, size in zip(shape, sizes, strict=False))
    if len(shape) != 3 or math.prod(whole) > LARGEST_VALUE:
        raise SchemaError(f"{where}: an image of {sizes} is too large, or no frame.")
    return whole
