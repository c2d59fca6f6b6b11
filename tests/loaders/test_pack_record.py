"""What a pack's record says: damage of any file is found and named, and the pack is made anew."""

import json
import os
import pickle

import pytest
from gymnasium import spaces

from orlog.errors import IntegrityError
from orlog.loaders.arrays import read_arrays
from orlog.loaders.packs import open_pack, pack_folder
from tests.loaders.test_packs import ACTIONS, FLAT, assert_equal, episodes_of


def assert_made_anew(dataset, caplog, file):
    """Assert that opening a damaged pack says so, and gives what the dataset holds."""
    caplog.clear()
    assert_equal(open_pack(dataset), read_arrays(dataset))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{dataset.name}: its pack is damaged and is made again" in record.message
    assert f"{pack_folder(dataset)}" in record.message
    assert file in record.message
    open_pack(dataset)
    assert len(caplog.records) == 1


@pytest.fixture(scope="module")
def small(write):
    """Return a dataset of three episodes."""
    structure = [(3, "termination"), (5, "truncation"), (2, "cut")]
    return write(episodes_of(structure), FLAT, ACTIONS["floats"])


@pytest.mark.parametrize("name", ["rows.f32", "since.u8", "lengths.i64"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_made_anew(small, caplog, name, change):
    open_pack(small)
    path = pack_folder(small) / name
    os.truncate(path, path.stat().st_size + change)
    assert_made_anew(small, caplog, f"{name}: expected ")


@pytest.mark.parametrize(
    "change",
    [
        {"obs_dim": 4},
        {"obs_dim": "3"},
        {"extra": 1},
        {"pack_version": 0},
        {"pack_version": 9},
        {"obs_dim": 2, "action_dim": 3},
        {"seal": "0" * 64},
        {"files": []},
        {"digest": "sha256:" + "0" * 64},
        {"observation_leaves": {"": {"column": "observations", "first": 0, "shape": []}}},
        {"mixture": {"first": [0], "sizes": [1], "up_to": [1.0]}},
    ],
)
def test_a_record_that_does_not_fit_is_made_anew(small, caplog, change):
    open_pack(small)
    path = pack_folder(small) / "pack.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert_made_anew(small, caplog, "pack.json")


@pytest.mark.parametrize("bit", [0, 1, 40, 63])
@pytest.mark.parametrize("episode", [0, 2])
def test_flipped_lengths_are_found_before_they_are_used(small, caplog, episode, bit):
    open_pack(small)
    path = pack_folder(small) / "lengths.i64"
    data = bytearray(path.read_bytes())
    data[8 * episode + bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    assert_made_anew(small, caplog, "lengths.i64: ")


@pytest.mark.parametrize("name", ["rows.f32", "since.u8", "lengths.i64"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_flipped_bit_never_reaches_a_batch(small, caplog, name, place):
    open_pack(small)
    path = pack_folder(small) / name
    data = bytearray(path.read_bytes())
    data[0 if place == "first" else -1] ^= 1
    found = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))  # as something that hides it might
    assert_made_anew(small, caplog, f"{name}: ")


def test_a_file_that_is_gone_is_named(small, caplog):
    open_pack(small)
    (pack_folder(small) / "since.u8").unlink()
    assert_made_anew(small, caplog, "since.u8: expected 10 bytes, found no file")


def test_a_folder_in_place_of_a_file_is_damage(small, caplog):
    open_pack(small)
    (pack_folder(small) / "since.u8").unlink()
    (pack_folder(small) / "since.u8").mkdir()
    assert_made_anew(small, caplog, "since.u8: ")


def test_texts_that_were_exchanged_are_found(write, caplog):
    space = spaces.Dict({"state": FLAT, "task": spaces.Text(9)})
    episodes = episodes_of([(1, "cut")], spaces.Dict({"state": FLAT}))
    episodes[0].observations["task"] = ["open", "close"]
    dataset = write(episodes, space, ACTIONS["floats"])
    open_pack(dataset)
    path = pack_folder(dataset) / "pack.json"
    path.write_text(path.read_text().replace('"open"', '"shut"'))
    assert_made_anew(dataset, caplog, "pack.json")


def test_a_pack_that_another_process_had_open_is_only_opened_with_the_same_content(small):
    arrays = open_pack(small)
    sent = pickle.dumps(arrays)
    assert_equal(pickle.loads(sent), arrays)
    (arrays.folder / "rows.f32").touch()
    with pytest.raises(IntegrityError, match=r"rows\.f32: it changed since .* remove the folder"):
        pickle.loads(sent)
    assert_equal(open_pack(small), arrays)  # made again, with the same content
    assert_equal(pickle.loads(sent), arrays)
