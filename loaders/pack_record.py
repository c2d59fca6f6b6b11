"""The record of a pack, `pack.json`: what it says about the pack's files, and a checksum of itself.

A record whose checksum is not its own is refused, and so is a file whose size or time of change is not the recorded one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import blake3
import msgspec
import numpy as np

from orlog.datasets.reading.dataset import Dataset
from orlog.errors import IntegrityError
from orlog.loaders.arrays import Mixture, mixture_of
from orlog.loaders.filling import Layout, Leaf, layout_of
from orlog.loaders.info_rows import info_layout, infos_digest
from orlog.loaders.pack_cache import RECORD_FILE
from orlog.manifests.documents import read_json_file

PACK_VERSION: Final = 3

_REPAIR = "remove the folder (the pack is made again when it is next needed)"
_SUFFIXES = {"float32": "f32", "int64": "i64", "uint8": "u8"}

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Dtype = Annotated[str, msgspec.Meta(pattern="^(bool|u?int(8|16|32|64)|float(16|32|64))$")]


class PackFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file of little-endian numbers, row by row; `column` is empty for files of every pack.

    `changed_ns` is the time at which the system saw its last change (ctime), in nanoseconds.
    """

    name: str
    column: str
    dtype: _Dtype
    shape: tuple[_Count, ...]
    blake3: str
    changed_ns: int

    @property
    def size(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class PackLeaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`Leaf` as it is recorded."""

    column: str
    first: _Count
    shape: tuple[_Count, ...]


class PackMixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`Mixture` as it is recorded, without its steps, which are a file."""

    first: tuple[_Count, ...]
    sizes: tuple[_Count, ...]
    up_to: tuple[float, ...]


class PackRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `pack.json` holds.

    Attributes:
        pack_version: Version of this layout.
        name: Name of the dataset.
        digest: Its digest.
        sources: Digests of the stored versions that it is made from, sorted.
        non_finite: Where the first number that is not finite stands; empty where all are finite.
        obs_dim: As in `Arrays`, and so are those below.
        action_dim: ..
        texts: ..
        observation_leaves: ..
        parts: ..
        mixture: ..
        files: All files but this one.
        seal: BLAKE3 of this record without it.
    """

    pack_version: Literal[3]
    name: str
    digest: str
    sources: tuple[str, ...]
    non_finite: str
    obs_dim: _Count
    action_dim: _Count
    texts: dict[str, tuple[str, ...]]
    observation_leaves: dict[str, PackLeaf]
    parts: dict[str, PackLeaf]
    mixture: PackMixture | None
    files: tuple[PackFile, ...]
    seal: str = ""


def sealed(record: PackRecord) -> PackRecord:
    """Return a record with its seal."""
    plain = msgspec.structs.replace(record, seal="")
    return msgspec.structs.replace(plain, seal=blake3.blake3(msgspec.json.encode(plain)).hexdigest())


def is_pack(folder: Path) -> bool:
    """Return whether a folder holds a pack that may be read."""
    return (folder / RECORD_FILE).is_file()


@dataclasses.dataclass(frozen=True, slots=True)
class PackSource:
    """What a pack is made from: the transitions of a dataset, or some of its infos."""

    dataset: Dataset
    infos: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The digest that names the pack."""
        return infos_digest(self.dataset, self.infos) if self.infos else self.dataset.digest

    @property
    def layout(self) -> Layout:
        """The columns; new each time, as its tables of texts fill while columns are read."""
        return info_layout(self.dataset, self.infos) if self.infos else layout_of(self.dataset)

    @property
    def mixture(self) -> Mixture | None:
        """How steps are weighted, which a pack of transitions says."""
        return None if self.infos else mixture_of(self.dataset)

    @property
    def name(self) -> str:
        """What it holds, in words."""
        of = self.dataset.name
        return f"{of} (infos: {', '.join(sorted(self.infos))})" if self.infos else of

    @property
    def sources(self) -> tuple[str, ...]:
        """Digests of the stored versions, sorted; for infos also of the view they are of, or their own.

        A pack whose own digest is not among them counts as that of a view.
        """
        found = {one.digest for one in self.dataset.selection().versions}
        if self.infos:
            is_view = self.dataset.digest not in found
            found.add(self.dataset.digest if is_view else self.digest)
        return tuple(sorted(found))


def describe_pack(source: PackSource, layout: Layout, mixture: Mixture | None) -> PackRecord:
    """Return a pack's record without its files; texts as far as they were read."""
    return PackRecord(
        pack_version=PACK_VERSION,
        name=source.name,
        digest=source.digest,
        sources=source.sources,
        non_finite="",
        obs_dim=layout.obs_dim,
        action_dim=layout.action_dim,
        texts=layout.texts,
        observation_leaves=_recorded_leaves(layout.observation_leaves),
        parts=_recorded_leaves(layout.parts),
        mixture=None
        if mixture is None
        else PackMixture(
            first=tuple(mixture.first.tolist()),
            sizes=tuple(mixture.sizes.tolist()),
            up_to=tuple(mixture.up_to.tolist()),
        ),
        files=(),
    )


def file_forms(layout: Layout, mixture: Mixture | None) -> list[tuple[str, str, np.dtype[Any], tuple[int, ...]]]:
    """Return name, column, dtype and shape of each file, in the order of the record."""
    count = layout.rows
    integers, floats = np.dtype(np.int64), np.dtype(np.float32)
    episodes = len(layout.first_rows)
    files: list[tuple[str, str, np.dtype[Any], tuple[int, ...]]] = [
        ("rows.f32", "", floats, (count, layout.width)),
        ("since.u8", "", np.dtype(np.uint8), (count - episodes,)),
        ("lengths.i64", "", integers, (episodes,)),
    ]
    for number, (name, spec) in enumerate(layout.others.items()):
        suffix = _SUFFIXES.get(str(spec.dtype), str(spec.dtype))
        files.append((f"other{number}.{suffix}", name, spec.dtype, (count, *spec.shape)))
    if mixture is not None:
        files.append(("mixture.i64", "", integers, mixture.steps.shape))
    return files


def read_record(folder: Path, digest: str = "") -> PackRecord:
    """Return the record of a pack, of the dataset with that digest; by default any that fits the folder's name."""
    record = read_json_file(folder / RECORD_FILE, PackRecord, version=("pack_version", PACK_VERSION), repair=_REPAIR)
    wanted = digest or f"sha256:{folder.name.partition('-')[0]}"
    if not record.digest.startswith(wanted):
        what = f"expected the pack of {wanted}, found the pack of {record.digest}"
        raise damaged_pack(folder, RECORD_FILE, what, expected=wanted, found=record.digest)
    if record != sealed(record):
        raise damaged_pack(folder, RECORD_FILE, "it was changed since the pack was made")
    return record


def damaged_pack(folder: Path, file: str, what: str, *, expected: str = "", found: str = "") -> IntegrityError:
    """Return the error for a damaged file of a pack."""
    return IntegrityError(
        f"{folder}: {file}: {what.removesuffix('.')}; {_REPAIR}.", file=file, expected=expected, found=found
    )


def _recorded_leaves(leaves: Mapping[str, Leaf]) -> dict[str, PackLeaf]:
    """Return leaves as they are recorded."""
    return {key: PackLeaf(column=leaf.column, first=leaf.first, shape=leaf.shape) for key, leaf in leaves.items()}


def leaves_of(recorded: Mapping[str, PackLeaf]) -> dict[str, Leaf]:
    """Return the leaves that were recorded."""
    return {key: Leaf(column=leaf.column, first=leaf.first, shape=leaf.shape) for key, leaf in recorded.items()}


def ends_of(record: PackRecord) -> int:
    """Return how many numbers follow the actions in a row, as `Arrays.ends`."""
    widths = [one.shape[-1] for one in record.files if one.name == "rows.f32" and one.shape]
    return sum(widths) - record.obs_dim - record.action_dim
