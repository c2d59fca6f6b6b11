import itertools
import json

import blake3
import gymnasium
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.manifests import diff
from orlog.manifests.diff import Difference, EpisodeRange, diff_datasets, diff_manifests
from orlog.manifests.manifest import (
    Column,
    EnvironmentRecord,
    Manifest,
    Part,
    PartColumn,
    StoredObject,
    combined_blake3,
)
from orlog.manifests.spaces import space_to_json
from tests.levels import scaled

SPACE = space_to_json(gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32))


def episode(length=3, *, number=0, notes=()):
    """Return the rows of an episode; `notes` are some texts for each of its first steps."""
    texts = [list(one) for one in notes] + [[] for _ in range(length - len(notes))]
    words = [word for one in texts for word in one]
    return {
        "actions": np.full((length, 2), number, np.float32),
        "episodes/lengths": np.array([length]),
        "episodes/seeds": np.array([7]),
        "episodes/task@offsets": np.array([4]),
        "episodes/task@values": np.frombuffer(b"door", np.uint8),
        "infos/notes@offsets": np.cumsum([len(one) for one in texts], dtype=np.int64),
        "infos/notes@values@offsets": np.cumsum([len(word) for word in words], dtype=np.int64),
        "infos/notes@values@values": np.frombuffer("".join(words).encode(), np.uint8),
        "observations/eye": np.arange(2 * length + 2, dtype=np.float64).reshape(-1, 2),
        "rewards": np.zeros(length),
        "terminations": np.arange(length) == length - 1,
    }


def joined(episodes):
    columns = {}
    for name in episodes[0]:
        pieces = [one[name] for one in episodes]
        if name.endswith("@offsets"):
            ends = np.cumsum([piece[-1] if len(piece) else 0 for piece in pieces])
            pieces = [piece + end for piece, end in zip(pieces, [0, *ends[:-1]], strict=True)]
        columns[name] = np.concatenate(pieces)
    return columns


def blake3_of(values):
    return blake3.blake3(np.ascontiguousarray(values).tobytes()).hexdigest()


class Stored:
    """A dataset in memory, with the part of `Dataset` that a comparison uses."""

    def __init__(self, episodes, parts=(), **fields):
        self.operation = None
        self.read = {}
        self._columns = joined(episodes)
        edges = [0, *np.cumsum(parts or [len(episodes)]).tolist()]
        blocks = [joined(episodes[i:j]) for i, j in itertools.pairwise(edges)]
        sums = {
            name: [PartColumn(rows=len(block[name]), blake3=blake3_of(block[name])) for block in blocks]
            for name in self._columns
        }
        self.manifest = Manifest(
            **{
                "manifest_version": 1,
                "name": "tests/diff-v0",
                "version": "1.0.0",
                "description": "",
                "license": "CC0-1.0",
                "container": "zarr",
                "format_version": 1,
                "total_episodes": len(episodes),
                "total_steps": len(self._columns["rewards"]),
                "observation_space": SPACE,
                "action_space": SPACE,
                "environment": None,
                "behavior_policy": "",
                "recipe": None,
                "lineage": [],
                "columns": [
                    Column(
                        name=name,
                        dtype=values.dtype.name,
                        shape=list(values.shape[1:]),
                        rows=len(values),
                        blake3=combined_blake3([part.blake3 for part in sums[name]]),
                    )
                    for name, values in sorted(self._columns.items())
                ],
                "objects": [],
                "parts": [
                    Part(
                        episodes=len(block["episodes/lengths"]),
                        steps=len(block["rewards"]),
                        columns={name: sums[name][index] for name in sums},
                    )
                    for index, block in enumerate(blocks if parts else [])
                ],
                **fields,
            }
        )

    @property
    def episode_lengths(self):
        return self._columns["episodes/lengths"]

    def column(self, name, start=0, stop=None):
        rows = self._columns[name][start:stop]
        assert rows.nbytes <= max(diff.BLOCK_BYTES, rows[:1].nbytes)
        self.read[name] = self.read.get(name, 0) + len(rows)
        return rows


@pytest.fixture(autouse=True, params=[2**24, 24], ids=["large blocks", "tiny blocks"])
def block_bytes(request, monkeypatch):
    monkeypatch.setattr(diff, "BLOCK_BYTES", request.param)
    return request.param


def with_value(rows, name, value):
    values = rows[name].copy()
    values[-1] = value
    return {**rows, name: values}


def found(one):
    return {
        "changed": [str(part) for part in one.changed],
        "added": [str(part) for part in one.added],
        "removed": [str(part) for part in one.removed],
        "moved": [(str(part.before), str(part.after)) for part in one.moved],
    }


NOTHING = {"changed": [], "added": [], "removed": [], "moved": []}
FIVE = [episode(2 + number, number=number) for number in range(5)]


def test_equal_datasets_differ_in_nothing_and_are_not_read():
    first, second = Stored(FIVE), Stored(FIVE)
    result = diff_datasets(first, second)
    assert found(result) == NOTHING
    assert (result.differences, result.unchanged, result.is_append) == ([], 5, False)
    assert result.changed_columns == {}
    assert first.read == second.read == {}


def test_a_changed_value_is_found_by_reading_its_column_alone():
    changed = [*FIVE[:3], with_value(FIVE[3], "rewards", 9.0), FIVE[4]]
    first, second = Stored(FIVE), Stored(changed)
    result = diff_datasets(first, second)
    assert found(result) == {**NOTHING, "changed": ["3"]}
    assert result.changed_columns == {"rewards": 1}
    assert result.unchanged == 4
    assert [(one.kind, one.name, one.change) for one in result.differences] == [("values", "rewards", "changed")]
    assert set(first.read) == set(second.read) == {"rewards"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("observations/eye", [0.0, np.nan]),
        ("actions", -0.0),
        ("terminations", False),
        ("episodes/seeds", 8),
        ("episodes/task@values", 0),
    ],
)
def test_every_kind_of_column_is_compared(name, value):
    changed = [with_value(FIVE[0], name, value), *FIVE[1:4], with_value(FIVE[4], name, value)]
    result = diff_datasets(Stored(FIVE), Stored(changed))
    assert found(result) == {**NOTHING, "changed": ["0", "4"]}
    assert result.changed_columns == {name: 2}


def test_not_a_number_equals_itself():
    rows = with_value(FIVE[0], "rewards", np.nan)
    result = diff_datasets(Stored([rows, FIVE[1]]), Stored([rows, with_value(FIVE[1], "rewards", np.nan)]))
    assert found(result) == {**NOTHING, "changed": ["1"]}


def test_appended_episodes_are_added_and_nothing_else():
    result = diff_datasets(Stored(FIVE[:3]), Stored(FIVE))
    assert found(result) == {**NOTHING, "added": ["3 to 4"]}
    assert result.is_append
    assert result.unchanged == 3


def test_an_appended_part_needs_no_reading():
    first, second = Stored(FIVE[:3]), Stored(FIVE, (3, 2))
    result = diff_datasets(first, second)
    assert found(result) == {**NOTHING, "added": ["3 to 4"]}
    assert first.read == second.read == {}
    third = Stored([*FIVE, FIVE[0]], (3, 2, 1))
    assert found(diff_datasets(second, third)) == {**NOTHING, "added": ["5"]}
    assert third.read == {}


def test_equal_values_in_other_parts_do_not_differ():
    first, second = Stored(FIVE), Stored(FIVE, (3, 2))
    assert any(one.kind == "values" for one in diff_manifests(first.manifest, second.manifest))
    result = diff_datasets(first, second)
    assert found(result) == NOTHING
    assert [(one.kind, one.name) for one in result.differences] == [("metadata", "parts")]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([1, 2, 3, 4], {"removed": ["0"], "moved": [("1 to 4", "0 to 3")]}),
        ([0, 1, 3, 4], {"removed": ["2"], "moved": [("3 to 4", "2 to 3")]}),
        ([0, 1], {"removed": ["2 to 4"]}),
        ([4, 0, 1, 2, 3], {"moved": [("0 to 3", "1 to 4"), ("4", "0")]}),
        ([9, 0, 1, 2, 3, 4], {"added": ["0"], "moved": [("0 to 4", "1 to 5")]}),
        ([0, 2, 1, 3, 4], {"moved": [("1", "2"), ("2", "1")]}),
        ([0, 1, 9, 3, 4, 2], {"added": ["2"], "moved": [("2", "5")]}),
        ([0, 3, 9, 1, 4, 8], {"changed": ["2"], "added": ["5"], "moved": [("1", "3"), ("3", "1")]}),
        ([0, 1, 2, 3, 4, 0, 0], {"added": ["5 to 6"]}),
        ([9, 8, 7], {"changed": ["0 to 2"], "removed": ["3 to 4"]}),
    ],
)
def test_episodes_that_moved_are_told_from_others(after, expected):
    pool = {number: episode(2 + number % 5, number=number) for number in range(10)}
    result = diff_datasets(Stored([pool[n] for n in range(5)]), Stored([pool[n] for n in after]))
    assert found(result) == {**NOTHING, **expected}


def test_equal_columns_do_not_make_two_changes_a_move():
    first = [episode(number=1), episode(number=2)]
    second = [{**first[0], "rewards": np.ones(3)}, {**first[1], "rewards": np.full(3, 2.0)}]
    swapped = [{**second[0], "rewards": np.full(3, 2.0)}, {**second[1], "rewards": np.ones(3)}]
    assert found(diff_datasets(Stored(second), Stored(swapped))) == {**NOTHING, "changed": ["0 to 1"]}


def test_values_are_seen_to_shift_between_episodes():
    first = [episode(notes=[["a"]]), episode(notes=[["bc"]]), episode(notes=[["de"]])]
    second = [episode(notes=[["ab"]]), episode(notes=[["cd"]]), episode(notes=[["e"]])]
    result = diff_datasets(Stored(first), Stored(second))
    assert found(result) == {**NOTHING, "changed": ["0 to 2"]}
    assert result.changed_columns == {"infos/notes@values@offsets": 2, "infos/notes@values@values": 3}


def test_texts_that_only_shift_in_the_store_are_equal():
    first = [episode(notes=[["a"]]), episode(notes=[["bc", ""], [], ["def"]]), episode()]
    second = [episode(notes=[["longer"], ["and more"]]), *first[1:]]
    result = diff_datasets(Stored(first), Stored(second))
    assert found(result) == {**NOTHING, "changed": ["0"]}


def test_columns_that_only_one_has_or_that_changed_type():
    def changed(rows):
        rows = {**rows, "infos/new": np.zeros(len(rows["rewards"]), np.int8)}
        rows["rewards"] = rows["rewards"].astype(np.float32)
        del rows["episodes/seeds"]
        return rows

    first, second = Stored(FIVE), Stored([changed(rows) for rows in FIVE])
    result = diff_datasets(first, second)
    assert found(result) == NOTHING
    assert result.unchanged == 5
    assert result.differences == [
        Difference(kind="column", name="episodes/seeds", change="removed", before="int64 ()", after=None),
        Difference(kind="column", name="infos/new", change="added", before=None, after="int8 ()"),
        Difference(kind="column", name="rewards", change="changed", before="float64 ()", after="float32 ()"),
    ]


def test_metadata_is_compared_by_dotted_paths():
    old = EnvironmentRecord(id="Maze-v3", kwargs={"size": 1}, max_episode_steps=None, versions={"mujoco": "3.3"})
    new = msgspec.structs.replace(old, kwargs={"size": True}, versions={"mujoco": "3.4", "b": "1"})
    first = Stored(FIVE, environment=old).manifest
    second = Stored(FIVE, environment=new, changes="newer physics", version="1.0.1").manifest
    assert [(one.kind, one.name, one.change, one.before, one.after) for one in diff_manifests(first, second)] == [
        ("metadata", "changes", "added", None, "newer physics"),
        ("metadata", "environment.kwargs.size", "changed", 1, True),
        ("metadata", "environment.versions.b", "added", None, "1"),
        ("metadata", "environment.versions.mujoco", "changed", "3.3", "3.4"),
        ("metadata", "version", "changed", "1.0.0", "1.0.1"),
    ]


def test_a_digest_never_changes_without_a_difference():
    manifest = Stored(FIVE).manifest
    for field, value in {
        "license": "MIT",
        "container": "hdf5",
        "behavior_policy": "random",
        "non_finite": {"rewards": 3},
        "objects": [StoredObject(path="a", size_bytes=0, sha256="0" * 64)],
    }.items():
        changed = msgspec.structs.replace(manifest, **{field: value})
        assert changed.digest != manifest.digest
        (difference,) = diff_manifests(manifest, changed)
        assert difference.name.startswith(field)


def test_a_result_becomes_json():
    result = diff_datasets(Stored(FIVE[:3]), Stored([FIVE[1], FIVE[0], *FIVE[2:]]))
    body = json.loads(json.dumps(result.to_json()))
    assert body["added"] == [{"start": 3, "stop": 5}]
    assert body["moved"][0] == {"before": {"start": 0, "stop": 1}, "after": {"start": 1, "stop": 2}}
    assert body["is_append"] is False
    assert body["before"].startswith("tests/diff-v0@1.0.0 (sha256:")


def test_ranges_read_well():
    assert str(EpisodeRange(3, 4)) == "3"
    assert str(EpisodeRange(3, 8)) == "3 to 7"
    assert len(EpisodeRange(3, 8)) == 5


def test_a_view_is_refused():
    view = Stored(FIVE)
    view.operation = {"top": {"percent": 10, "by": "returns"}}
    with pytest.raises(ValueError, match=r"tests/diff-v0@1\.0\.0 .* a view cannot be compared"):
        diff_datasets(Stored(FIVE), view)


NUMBERS = st.lists(st.integers(0, 7), min_size=1, max_size=8)


@settings(max_examples=scaled(100), deadline=None)
@given(before=NUMBERS, after=NUMBERS, cut=st.integers(0, 7), large=st.booleans())
def test_every_episode_is_in_one_place(before, after, cut, large):
    # Numbers differ in their length, in their actions, or in their texts.
    pool = [
        episode(1 + (number & 1), number=number & 2, notes=[["ab", "c"] if number & 4 else ["abc"]])
        for number in range(8)
    ]
    parts = (cut, len(after) - cut) if 0 < cut < len(after) else ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff, "BLOCK_BYTES", 2**24 if large else 16)
        result = diff_datasets(
            Stored([pool[number] for number in before]), Stored([pool[number] for number in after], parts)
        )
    moved = [pair for one in result.moved for pair in zip(*map(indices, pieces(one)), strict=True)]
    assert all(before[i] == after[j] and i != j for i, j in moved)
    changed, added, removed = (
        [index for one in ranges for index in indices(one)] for ranges in (result.changed, result.added, result.removed)
    )
    same = [i for i, (x, y) in enumerate(zip(before, after, strict=False)) if x == y]
    assert result.unchanged == len(same)
    assert sorted([*same, *changed, *removed, *(i for i, _ in moved)]) == list(range(len(before)))
    assert sorted([*same, *changed, *added, *(j for _, j in moved)]) == list(range(len(after)))
    gone, new = {before[i] for i in [*changed, *removed]}, {after[j] for j in [*changed, *added]}
    assert not gone & new


def indices(one):
    return range(one.start, one.stop)


def pieces(one):
    return one.before, one.after


def test_a_stored_dataset_equals_itself(mini):
    assert found(diff_datasets(mini, mini)) == NOTHING
