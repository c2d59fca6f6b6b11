"""The manifest: everything known about one version of a dataset, and the digest that names it.

    manifest.json = {"digest": "sha256:..", "manifest_version": 1, "name": .., "objects": [..], ..}

The digest is the SHA-256 of the canonical form: the same JSON without its "digest", keys sorted,
no spaces, UTF-8, floats in their shortest form. It contains no time, machine or folder, so
equal data have equal digests. Reading is strict: unknown, missing or repeated keys, wrong types,
unsafe paths and a wrong digest are errors.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import blake3
import gymnasium
import msgspec
from msgspec import Meta

from orlog.errors import InvalidNameError, ManifestError, SchemaError, clause
from orlog.manifests.documents import canonical_json, convert_json, parse_json, read_small_file, refuse_newer
from orlog.manifests.names import parse_name
from orlog.manifests.roles import check_roles, roles_of, values_of
from orlog.manifests.spaces import space_from_json

MANIFEST_FILE = "manifest.json"
MANIFEST_VERSION = 1
STORE_FORMAT = 1
LARGEST_MANIFEST = 64 * 2**20
MOST_VALUES = 2**22
VIDEO_RANGES = "videos/ranges"
LONGEST_FILE_NAME = 255  # bytes
_PLAIN_PART = rf"[A-Za-z0-9_@-][A-Za-z0-9_.@-]{{0,{LONGEST_FILE_NAME - 1}}}"
_PLAIN_PATH = re.compile(rf"{_PLAIN_PART}(?:/{_PLAIN_PART})*")  # safe, as nearly all are
MOST_DIMENSIONS = 63  # of a row; NumPy has one more for the rows
DTYPES = frozenset(
    {"bool", "float16", "float32", "float64"} | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)

Hex256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(max_length=100_000)]
Container = Literal["zarr", "hdf5"]
# Benchmarks name their datasets with capitals and without versions too, as in `atari/breakout`.
BenchmarkName = Annotated[str, Meta(max_length=200, pattern=r"^([A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)+)?\Z")]

DimensionName = Annotated[str, Meta(max_length=100, pattern=r"^[^\x00-\x1f\x7f]+\Z")]


class StoredObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of a store.

    Attributes:
        path: Its path inside the store's folder, with forward slashes.
        size_bytes: Its size.
        sha256: Hex SHA-256 of its bytes.
    """

    path: Annotated[str, Meta(min_length=1, max_length=500)]
    size_bytes: Count
    sha256: Hex256


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One array of a dataset.

    Attributes:
        name: Its path, for example `observations/desired_goal`.
        dtype: NumPy's name for the dtype of its numbers.
        shape: Shape of one row.
        rows: Number of rows: steps, steps + episodes (observations) or episodes.
        blake3: Hex BLAKE3 of all values, row by row, little-endian. It does not depend on
            container, chunks or codec, so it shows whether two stores hold the same data. In a
            version of several parts it is the BLAKE3 of the parts' digests, one after the other.
            BLAKE3 (O'Connor et al., 2020) takes a third of SHA-256's time.
    """

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    dtype: Annotated[str, Meta(max_length=20)]
    shape: list[Count]
    rows: Count
    blake3: Hex256


class PartColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A column in one part: its number of rows there, and the BLAKE3 of their values."""

    rows: Count
    blake3: Hex256


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Episodes that were written together. Appending adds a part and leaves the others alone.

    Attributes:
        episodes: Number of episodes in it.
        steps: Number of steps in it.
        columns: Every column, by name.
    """

    episodes: Count
    steps: Count
    columns: dict[str, PartColumn]


class EnvironmentRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The environment that recorded the data, and in which policies are scored.

    Attributes:
        id: Id that Gymnasium registers.
        kwargs: Arguments of `gymnasium.make`.
        max_episode_steps: Steps after which an episode is truncated; None without a limit.
        versions: Version of each package that determines what the environment does.
        module: The user's module that registered the id, for messages: it is never imported for this.
    """

    id: Annotated[str, Meta(max_length=200)]
    kwargs: dict[str, Any]
    max_episode_steps: int | None
    versions: dict[str, str]
    module: Annotated[str, Meta(max_length=200)] = ""


class RecipeRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The code and parameters that built the data.

    Attributes:
        name: Name of the recipe in orlog.
        version: Version of the recipe's code: within it, equal parameters give equal bytes.
        parameters: Everything it was called with, except the seed.
        seed: Root of its randomness.
    """

    name: str
    version: int
    parameters: dict[str, Any]
    seed: int


class Parent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A dataset that this one was derived from.

    Attributes:
        digest: Its digest.
        operation: How: `append`, `copy`, `convert`, or a view's operation as JSON.
    """

    digest: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    operation: str


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The version whose episodes and steps a layer's columns are of.

    Attributes:
        name: Its name.
        version: Its content version, for people: the digest decides.
        digest: Its digest.
    """

    name: Annotated[str, Meta(max_length=200)]
    version: Annotated[str, Meta(max_length=50)]
    digest: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]

    def __str__(self) -> str:
        """Return what a user calls it."""
        return f"{self.name}@{self.version}"


class Video(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the rows of a column are frames of: videos, kept as they were recorded.

    Attributes:
        codec: Name of the codec in FFmpeg, such as `h264` or `av1`; of several, all of them.
        pixel_format: FFmpeg's name of the form of the pixels that are encoded, such as `yuv420p`.
        rate: Frames per second, of the first file.
        frames: Frames of all files.
        key_frames: How many of them are decoded without others.
        files: Files: `videos/COLUMN/1.mp4` and following.
    """

    codec: Annotated[str, Meta(max_length=200)]
    pixel_format: Annotated[str, Meta(max_length=200)]
    rate: Annotated[float, Meta(ge=0, le=1e9)]
    frames: Count
    key_frames: Count
    files: Annotated[int, Meta(ge=1, le=10**8)]


class Outside(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Finite numbers of a column that lie outside the bounds of their Box.

    Attributes:
        numbers: How many.
        lowest: The smallest of them.
        highest: The largest of them.
    """

    numbers: Count
    lowest: float
    highest: float


class Manifest(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    omit_defaults=True,
    dict=True,  # for cached properties
):
    """One version of a dataset.

    Fields that hold their default are left out of the JSON.

    Attributes:
        manifest_version: Version of this JSON's layout.
        name: Name without version.
        version: Content version: major = existing rows changed, minor = rows or columns added,
            patch = metadata only.
        description: What the data are, in a sentence or two.
        license: SPDX identifier.
        container: How objects hold columns.
        format_version: Version of the layout of the store.
        total_episodes: Number of episodes E.
        total_steps: Number of steps S.
        observation_space: Gymnasium space as JSON.
        action_space: Gymnasium space as JSON.
        environment: The environment that recorded the data.
        behavior_policy: What chose the actions.
        recipe: What built the data; None for data that no recipe built.
        lineage: Datasets that this one was derived from.
        columns: Every column, sorted by name.
        objects: Every file of the store but the manifest, sorted by path.
        parts: What each part holds, where there is more than one.
        variable_columns: Columns under `infos/` and `episodes/` with a variable-length value in
            each row: `text` or `array`. (For observations and actions the spaces say it.)
        non_finite: How many numbers of a column are infinite or not a number; columns without any
            are left out.
        outside_bounds: Which numbers of a column lie outside the bounds of their Box. Columns
            without any are left out; versions written before orlog counted them list none.
        changes: What changed since the previous version, in a sentence or two.
        benchmark: Name of the benchmark's dataset, such as `d4rl/hopper-medium-v2`, whose reference
            returns and published scores hold for this one; empty where there is none.
        dimension_names: What the numbers in a row of a column are, such as the joints of a robot, in the
            order in which they lie in memory; columns whose numbers have no names are left out.
        roles: What columns mean (`manifests/roles.py`), of those that the author gave a role; `Dataset.roles`
            adds those with usual names.
        base: Of a layer, the version that its columns lie over; totals and spaces are those of that version.
        videos: Columns whose rows are frames of videos (`datasets/store/videos.py`).
    """

    manifest_version: int
    name: str
    version: str
    description: Text
    license: Text
    container: Container
    format_version: int
    total_episodes: Count
    total_steps: Count
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    environment: EnvironmentRecord | None
    behavior_policy: Text
    recipe: RecipeRecord | None
    lineage: list[Parent]
    columns: list[Column]
    objects: list[StoredObject]
    parts: list[Part] = []
    variable_columns: dict[str, Literal["text", "array"]] = {}
    non_finite: dict[str, Count] = {}
    outside_bounds: dict[str, Outside] = {}
    changes: Text = ""
    benchmark: BenchmarkName = ""
    dimension_names: dict[str, list[DimensionName]] = {}
    roles: dict[str, str] = {}
    base: Base | None = None
    videos: dict[str, Video] = {}

    def __post_init__(self) -> None:
        """Refuse what the types alone let through.

        Raises ManifestError for names, paths, totals or spaces that make no sense.
        """
        where = f"manifest of {self.name}@{self.version}"
        try:
            if parse_name(f"{self.name}@{self.version}").version != self.version:
                raise ManifestError(f"{where}: {self.version!r} is not a content version.")
            _ = self.spaces
        except (InvalidNameError, SchemaError) as error:
            raise ManifestError(f"{where}: {clause(error)}.") from error
        for column in self.columns:
            if column.dtype not in DTYPES:
                raise ManifestError(
                    f"{where}: column {column.name} has dtype {column.dtype!r}; expected one of "
                    f"{', '.join(sorted(DTYPES))}."
                )
            sizes = (column.rows, *column.shape)
            if len(column.shape) > MOST_DIMENSIONS or math.prod(size or 1 for size in sizes) > 2**59:
                raise ManifestError(f"{where}: column {column.name} is too large for any array.")
        sizes_of = {column.name: math.prod(column.shape) for column in self.columns}
        for name, dimensions in self.dimension_names.items():
            if len(dimensions) != sizes_of.get(name):
                raise ManifestError(
                    f"{where}: dimension_names gives {len(dimensions)} names to column {name!r:.100}, whose rows "
                    f"hold {sizes_of.get(name, 'nothing')}."
                )
        if self.roles:
            try:
                check_roles(self.roles, values_of(self.columns, self.variable_columns), where)
            except SchemaError as error:
                raise ManifestError(str(error)) from error
        names = [column.name for column in self.columns]
        paths = [item.path for item in self.objects]
        for kind, keys in (("column", names), ("file", paths)):
            if sorted(set(keys)) != keys:
                raise ManifestError(f"{where}: its {kind}s are repeated or not in sorted order.")
            for key in keys:
                if not _is_safe(key):
                    raise ManifestError(f"{where}: {kind} {key!r} does not stay inside the store's folder.")
        if MANIFEST_FILE in paths:
            raise ManifestError(f"{where}: a manifest cannot list itself.")
        clash = _find_clash([*paths, MANIFEST_FILE, f"{MANIFEST_FILE}.sig"])
        if clash is not None:
            raise ManifestError(
                f"{where}: file {clash!r} would overwrite another file on disks that ignore case; rename one."
            )
        self._check_parts(where)
        self._check_videos(where, {*paths})

    def _check_videos(self, where: str, paths: set[str]) -> None:
        forms = {column.name: (column.dtype, column.shape[2:]) for column in self.columns}
        wanted = {VIDEO_RANGES} if self.videos else set()
        for name, video in self.videos.items():
            is_frames = forms.get(name) in (("uint8", [1]), ("uint8", [3])) and name.startswith("observations")
            if not is_frames or self.container != "zarr" or self.parts or self.base or video.files > len(paths):
                raise ManifestError(
                    f"{where}: videos of {name!r:.100} are for observations of (height, width, 1 or 3) uint8, in one part "
                    "in the container zarr, with a file each."
                )
            wanted |= {video_path(name, number) for number in range(1, video.files + 1)}
        others = wanted ^ {path for path in paths if path.startswith("videos/")}
        if others:
            raise ManifestError(f"{where}: file {min(others)} is missing, or belongs to no column of videos.")

    def _check_parts(self, where: str) -> None:
        if len(self.parts) == 1:
            raise ManifestError(f"{where}: a single part is not listed.")
        if not self.parts:
            return
        totals = (sum(part.episodes for part in self.parts), sum(part.steps for part in self.parts))
        if totals != (self.total_episodes, self.total_steps):
            raise ManifestError(
                f"{where}: its parts hold {totals[0]} episodes and {totals[1]} steps, the dataset "
                f"{self.total_episodes} and {self.total_steps}."
            )
        for column in self.columns:
            held = [part.columns.get(column.name) for part in self.parts]
            present = [values for values in held if values is not None]
            if (
                len(present) < len(held)
                or sum(values.rows for values in present) != column.rows
                or combined_blake3([values.blake3 for values in present]) != column.blake3
            ):
                raise ManifestError(f"{where}: its parts do not make up column {column.name}.")
        if any(len(part.columns) != len(self.columns) for part in self.parts):
            raise ManifestError(f"{where}: a part has columns that the dataset does not have.")

    @functools.cached_property
    def digest(self) -> str:
        """`sha256:` and the hex SHA-256 of the canonical form."""
        body = msgspec.to_builtins(self)
        return f"sha256:{hashlib.sha256(canonical_json(body)).hexdigest()}"

    @functools.cached_property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """The observation space and the action space."""
        return space_from_json(self.observation_space), space_from_json(self.action_space)

    @functools.cached_property
    def known_roles(self) -> dict[str, str]:
        """The role of every column that has one: as stated in `roles`, else by usual names."""
        return roles_of(self.roles, values_of(self.columns, self.variable_columns))

    @property
    def size_bytes(self) -> int:
        """Size of all objects together."""
        return sum(item.size_bytes for item in self.objects)

    def column(self, name: str) -> Column:
        """Return a column by name.

        Raises KeyError if there is none of that name.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def to_json(self) -> str:
        """Return the text of `manifest.json`: the digest first, then the body, indented."""
        body = msgspec.to_builtins(self)
        return json.dumps({"digest": self.digest, **body}, indent=1, allow_nan=False) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in a file, its digest checked.

    Raises ManifestError if the file is missing, malformed, or was edited after it was written;
    FormatVersionError if it was written by a newer orlog.
    """
    try:
        text = read_small_file(path, LARGEST_MANIFEST)
    except NotADirectoryError as error:
        raise ManifestError(not_a_version(path.parent)) from error
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: no readable manifest: {clause(error)}.") from error
    return manifest_from_text(text, str(path))


def not_a_version(file: Path) -> str:
    """Return the message for a file, such as a saved view, given in place of a version's folder."""
    return (
        f"{file} is a file, not the folder of a stored version; a view has no files of its own, so "
        f"store it as a version first; run: orlog save {file} NAME@VERSION (in Python: save_dataset)."
    )


def manifest_from_text(text: str | bytes, where: str) -> Manifest:
    """Return the manifest in a text, or in its UTF-8 bytes; `where` names its origin in errors.

    Raises ManifestError if it is malformed, or was edited after it was written; FormatVersionError if it was
    written by a newer orlog.
    """
    try:
        body = parse_json(text, MOST_VALUES)
    except ValueError as error:
        raise ManifestError(f"{where}: not the JSON of a manifest: {clause(error)}.") from error
    if not isinstance(body, dict):
        raise ManifestError(f"{where}: a manifest is a JSON object.")
    newest = {"manifest_version": MANIFEST_VERSION, "format_version": STORE_FORMAT}
    refuse_newer(body, newest, where)
    stated = body.pop("digest", None)
    try:
        manifest = convert_json(body, Manifest)
    except ValueError as error:
        raise ManifestError(f"{where}: {clause(error)}.", file=MANIFEST_FILE) from error
    if (manifest.manifest_version, manifest.format_version) != (MANIFEST_VERSION, STORE_FORMAT):
        raise ManifestError(
            f"{where}: manifest_version {manifest.manifest_version} and format_version "
            f"{manifest.format_version} do not exist."
        )
    try:
        digest = manifest.digest
    except ValueError as error:
        raise ManifestError(f"{where}: text or a number that JSON cannot hold: {clause(error)}.") from error
    if stated != digest:
        raise ManifestError(
            f"{where}: the manifest was edited or damaged: it says its digest is {stated!s:.100}, its "
            f"content has {digest}; restore the file, or build the dataset again.",
            file=MANIFEST_FILE,
            expected=f"{stated!s:.100}",
            found=digest,
        )
    return manifest


def parts_of(manifest: Manifest) -> list[Part]:
    """Return the parts of a version; a single part too, which its manifest does not list."""
    if manifest.parts:
        return list(manifest.parts)
    columns = {column.name: PartColumn(rows=column.rows, blake3=column.blake3) for column in manifest.columns}
    return [Part(episodes=manifest.total_episodes, steps=manifest.total_steps, columns=columns)]


def part_folder(part: int) -> str:
    """Return the path of a part inside the version's folder, with a slash at the end."""
    return f"parts/{part}/" if part else ""


def video_path(column: str, number: int) -> str:
    """Return the path of a video of a column, the first one being 1."""
    return f"videos/{column}/{number}.mp4"


def combined_blake3(parts: list[str]) -> str:
    """Return the BLAKE3 of the parts' digests, one after the other; for one part its own digest."""
    if len(parts) == 1:
        return parts[0]
    return blake3.blake3(b"".join(bytes.fromhex(part) for part in parts)).hexdigest()


def _is_safe(path: str) -> bool:
    return _PLAIN_PATH.fullmatch(path) is not None or (
        all(part not in ("", "..", ".") for part in path.split("/"))
        and path.isprintable()
        and "\\" not in path
        and ":" not in path
        and all(len(part.encode()) <= LONGEST_FILE_NAME for part in path.split("/"))
    )


def _find_clash(paths: Iterable[str]) -> str | None:
    """Return a path that equals, or lies below, another one when case is ignored."""
    files: set[str] = set()
    for path in paths:
        folded = path.lower()
        if not path.isascii():
            folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())
        if folded in files:
            return path
        files.add(folded)
    folders = {
        parent
        for folder in {path.rpartition("/")[0] for path in files}
        for parent in itertools.accumulate(folder.split("/"), "{}/{}".format)
    }
    return min(files & folders, default=None)
