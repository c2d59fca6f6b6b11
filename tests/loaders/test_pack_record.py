"""What a pack's record says: damage of any file is found, named, and mended by removing the pack."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from orlog.datasets.dataset import Dataset
from orlog.datasets.views import combine_datasets
from orlog.errors import IntegrityError, ManifestError
from orlog.loaders.packs import open_pack, pack_folder, verify_pack
from tests.loaders.test_packs import ACTIONS, FLAT, episodes_of

Write: TypeAlias = Callable[..., Dataset]


@pytest.fixture(scope="module")
def small(write: Write) -> Dataset:
    """Return a dataset of three episodes."""
    structure = [(3, "termination"), (5, "truncation"), (2, "cut")]
    return write(episodes_of(structure), FLAT, ACTIONS["floats"])


def test_a_flipped_byte_is_found(small: Dataset) -> None:
    open_pack(small)
    folder = pack_folder(small)
    data = bytearray((folder / "rows.f32").read_bytes())
    data[17] ^= 4
    (folder / "rows.f32").write_bytes(data)
    (problem,) = verify_pack(small)
    assert (problem.file, problem.kind) == ("rows.f32", "damaged")
    (folder / "since.u8").unlink()
    (folder / "lengths.i64").write_bytes(b"")
    assert {(one.file, one.kind) for one in verify_pack(small)} == {
        ("rows.f32", "damaged"),
        ("since.u8", "missing"),
        ("lengths.i64", "wrong size"),
    }


@pytest.mark.parametrize("name", ["rows.f32", "since.u8", "lengths.i64"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_not_opened(small: Dataset, name: str, change: int) -> None:
    open_pack(small)
    path = pack_folder(small) / name
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(IntegrityError, match=rf"{name}: expected .* remove the folder"):
        open_pack(small)


@pytest.mark.parametrize(
    "change",
    [
        {"obs_dim": 4},
        {"obs_dim": "3"},
        {"extra": 1},
        {"pack_version": 0},
        {"files": []},
        {"digest": "sha256:" + "0" * 64},
        {"observation_leaves": {"": {"column": "observations", "first": 0, "shape": []}}},
        {"mixture": {"first": [0], "sizes": [1], "up_to": [1.0]}},
    ],
)
def test_a_record_that_does_not_fit_is_refused(small: Dataset, change: dict[str, Any]) -> None:
    open_pack(small)
    path = pack_folder(small) / "pack.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(IntegrityError, match="pack is made anew"):
        open_pack(small)


def change_file(name: str, **changes: object) -> Callable[[dict[str, Any]], None]:
    """Return what changes how a record describes a file."""

    def change(record: dict[str, Any]) -> None:
        (one,) = (one for one in record["files"] if one["name"] == name)
        one.update(changes)

    return change


def empty(record: dict[str, Any]) -> None:
    for one in record["files"]:
        one["shape"][0] = 0


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "two dimensions": change_file("since.u8", shape=[10, 1]),
    "two dimensions of lengths": change_file("lengths.i64", shape=[3, 1]),
    "no dimensions": change_file("lengths.i64", shape=[]),
    "negative": change_file("since.u8", shape=[-10]),
    "no dtype": change_file("since.u8", dtype="nonsense"),
    "objects": change_file("rows.f32", dtype="object"),
    "twice": lambda record: record["files"].append(record["files"][0]),
    "missing": lambda record: record["files"].pop(1),
    "empty": empty,
    "one number for all": lambda record: record["files"].append(
        {"name": "other0.u8", "column": "c", "dtype": "uint8", "shape": [], "blake3": ""}
    ),
    "negative width": lambda record: record.update(obs_dim=-1, action_dim=6),
    "a part outside": lambda record: record["parts"][""].update(first=1),
    "a leaf outside": lambda record: record.update(
        observation_leaves={"": {"column": "", "first": 0, "shape": [4]}}
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_says_what_to_do(small: Dataset, damage: str) -> None:
    open_pack(small)
    path = pack_folder(small) / "pack.json"
    record = json.loads(path.read_text())
    DAMAGES[damage](record)
    path.write_text(json.dumps(record))
    for check in (open_pack, verify_pack):
        with pytest.raises(
            IntegrityError, match="remove the folder: the pack is made anew"
        ) as error:
            check(small)
        assert str(path.parent) in str(error.value)


@pytest.mark.parametrize(
    "change",
    [{"up_to": [0.5, 0.9]}, {"up_to": [1.0]}, {"sizes": [7, 9]}, {"first": [-1, 7]}],
    ids=str,
)
def test_a_mixture_that_chooses_what_is_not_there_is_refused(
    write: Write, change: dict[str, Any]
) -> None:
    parts = [write(episodes_of([(count, "cut")]), FLAT, ACTIONS["floats"]) for count in (7, 8)]
    mixed = combine_datasets(parts, weights=[0.5, 0.5])
    open_pack(mixed)
    path = pack_folder(mixed) / "pack.json"
    record = json.loads(path.read_text())
    record["mixture"].update(change)
    path.write_text(json.dumps(record))
    with pytest.raises(IntegrityError, match="remove the folder: the pack is made anew"):
        open_pack(mixed)


@pytest.mark.parametrize("bit", [0, 1, 40, 63])
@pytest.mark.parametrize("episode", [0, 2])
def test_flipped_lengths_are_found_before_they_are_used(
    small: Dataset, episode: int, bit: int
) -> None:
    open_pack(small)
    path = pack_folder(small) / "lengths.i64"
    data = bytearray(path.read_bytes())
    data[8 * episode + bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"lengths\.i64: .*remove the folder") as error:
        open_pack(small)
    assert str(path.parent) in str(error.value)


def test_a_file_that_is_gone_is_named(small: Dataset) -> None:
    open_pack(small)
    (pack_folder(small) / "since.u8").unlink()
    with pytest.raises(IntegrityError, match=r"since\.u8: .*found no file; remove the folder"):
        open_pack(small)


def test_a_record_names_no_files_elsewhere(small: Dataset) -> None:
    open_pack(small)
    path = pack_folder(small) / "pack.json"
    path.write_text(path.read_text().replace("rows.f32", "../rows.f32"))
    with pytest.raises(IntegrityError, match="strange name"):
        open_pack(small)


def test_there_is_nothing_to_verify_before_it_is_made(small: Dataset) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        verify_pack(small)
