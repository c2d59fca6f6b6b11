"""A version of several parts reads as if it had been written at once."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.store import version as version_module
from orlog.datasets.store.encoding import Encoding
from orlog.datasets.store.version import StoredVersion
from orlog.datasets.store.zarr_writer import ZarrWriter
from orlog.errors import IntegrityError
from orlog.manifests.manifest import part_folder
from tests.episodes import whole_episode
from tests.levels import scaled
from tests.stored_objects import make_objects

OBSERVATION = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (16, 16, 3), np.uint8),
        "say": spaces.Text(10, min_length=0, charset="toben\u00e4h r"),
        "sets": spaces.Sequence(spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32))),
        "speed": spaces.Box(-1, 1, (), np.float64),
    }
)
ACTION = spaces.OneOf([spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)])
WORDS = ("to", "", "be", "näh", "or not")
SMALL = Encoding(chunk_rows=4, chunks_per_shard=2)
# Rows of one part only, empty parts of a text, and episodes of a step.
LENGTHS = [[5, 1, 3], [2], [1, 1, 7, 4]]


def an_episode(steps, seed, *, silent=False):
    """Return a random episode; a silent one has texts and sequences without any value."""
    rng = np.random.default_rng(seed)

    def say():
        return "" if silent else WORDS[rng.integers(len(WORDS))]

    def pairs():
        return tuple(rng.random((2,)).astype(np.float32) for _ in range(rng.integers(0, 3)))

    def sets():
        return () if silent else tuple(pairs() for _ in range(rng.integers(0, 3)))

    option = [
        (0, np.int64(rng.integers(4))) if rng.random() < 0.5 else (1, rng.random(2).astype("f4")) for _ in range(steps)
    ]
    return whole_episode(
        {
            "camera": rng.integers(0, 256, (steps + 1, 16, 16, 3)).astype(np.uint8),
            "say": [say() for _ in range(steps + 1)],
            "sets": [sets() for _ in range(steps + 1)],
            "speed": rng.random(steps + 1),
        },
        option,
        rng.standard_normal(steps),
        infos={"said": [say() for _ in range(steps)], "level": rng.integers(0, 9, steps)},
        seed=seed,
        metadata={"task": say(), "score": float(rng.random())},
    )


def encodings():
    """Return small chunks for all columns but the frames, so that there are many shards."""
    numbers = [
        "observations/say@offsets",
        "observations/sets@offsets",
        "observations/sets@values@offsets",
        "observations/sets@values@values",
        "observations/speed",
        "infos/said@offsets",
        "rewards",
    ]
    return dict.fromkeys(numbers, SMALL) | {
        "observations/say@values": dataclasses.replace(SMALL, bit_shuffle=False),
        "observations/camera": Encoding(chunk_rows=1, chunks_per_shard=4, compression="lz4hc", difference_axis=1),
    }


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def record(name, parts):
    """Write a version, and append each further part to the one before."""
    writer = orlog.DatasetWriter(name, observation_space=OBSERVATION, action_space=ACTION, encodings=encodings())
    for number, part in enumerate(parts):
        if number:
            before = orlog.load_dataset(f"{name}@1.{number - 1}.0")
            writer = orlog.DatasetWriter.append(before, encodings=encodings())
        with writer:
            for episode in part:
                writer.add_episode(episode)
    return orlog.load_dataset(name)


def random_parts(*, silent=None):
    """Return episodes of `LENGTHS`; those of the part `silent` say nothing at all."""
    seeds = itertools.count()
    return [
        [an_episode(steps, next(seeds), silent=number == silent) for steps in lengths]
        for number, lengths in enumerate(LENGTHS)
    ]


@pytest.fixture(scope="module", params=[None, 1], ids=["all speak", "second silent"])
def versions(request, tmp_path_factory):
    """Return the same episodes in three parts and in one; do not write to them."""
    parts = random_parts(silent=request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("versions")))
        return record("tests/parts-v1", parts), record("tests/whole-v1", [flat(parts)])


@pytest.fixture(scope="module")
def three_parts(tmp_path_factory):
    """Return three parts, two of which earlier versions share; do not write to them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("versions")))
        return record("tests/parts-v1", random_parts())


@pytest.fixture
def copied(three_parts, tmp_path):
    """Return a copy of the folder of three parts, to be damaged at will."""
    return Path(shutil.copytree(three_parts.folder, tmp_path / "copied"))


@pytest.fixture
def one_part(three_parts, tmp_path):
    """Return a copy of the first of these versions, which has one part."""
    return Path(shutil.copytree(three_parts.folder.with_name("1.0.0"), tmp_path / "one"))


@pytest.fixture
def stored_versions(versions):
    parts, whole = versions
    assert (len(parts.manifest.parts), len(whole.manifest.parts)) == (3, 0)
    return StoredVersion(parts.folder), StoredVersion(whole.folder)


def assert_same_values(one, two):
    assert (one.dtype, one.shape) == (two.dtype, two.shape)
    assert one.tobytes() == two.tobytes()


@pytest.mark.scaled
def test_any_range_of_rows_is_that_of_the_whole(stored_versions):
    parts, whole = stored_versions
    for name in whole.schema.columns():
        values = whole.read(name)
        rows = len(values)
        assert parts.rows(name) == rows
        ranges = itertools.combinations_with_replacement(range(rows + 1), 2)
        few = itertools.islice(ranges, 0, None, 1 + rows * rows // scaled(300))
        for start, stop in [*few, (0, rows), (rows, rows)]:
            for stored in stored_versions:
                assert_same_values(stored.read(name, start, stop), values[start:stop])


def test_any_rows_in_any_order_are_those_of_the_whole(stored_versions):
    parts, whole = stored_versions
    rng = np.random.default_rng(0)
    for name in whole.schema.columns():
        values = whole.read(name)
        for count in (0, 1, 7, 50):
            rows = rng.integers(0, max(1, len(values)), count if len(values) else 0)
            assert_same_values(parts.read_rows(name, rows), values[rows])
            assert_same_values(whole.read_rows(name, rows), values[rows])


SELECTIONS = [[], [3], [7, 6, 5, 4, 3, 2, 1, 0], [2, 3], [3, 4], [1, 3, 6], [6, 0, 6, 3, 3]]


@pytest.mark.parametrize("large", [1, 100, 2**20])
def test_rows_of_any_episodes_are_those_of_the_episodes(stored_versions, monkeypatch, large):
    monkeypatch.setattr(version_module, "LARGE_BYTES", large)
    parts, whole = stored_versions
    names = list(whole.schema.columns())
    single = [whole.read_block(np.array([episode]), names) for episode in range(len(whole.lengths))]
    for selection in SELECTIONS:
        episodes = np.array(selection, np.int64)
        for stored in (parts, whole):
            block = stored.read_block(episodes, names)
            for name in names:
                if not selection:
                    assert len(block[name]) == 0
                    continue
                pieces = [single[episode][name] for episode in selection]
                if name.endswith("@offsets"):
                    counts = [int(piece[-1]) if len(piece) else 0 for piece in pieces]
                    starts = itertools.accumulate(counts, initial=0)
                    pieces = [piece + start for piece, start in zip(pieces, starts, strict=False)]
                assert_same_values(block[name], np.concatenate(pieces))


@pytest.mark.parametrize("part", [0, 1, 2])
def test_damage_in_a_part_names_the_file_in_that_part(copied, part):
    path = f"{part_folder(part)}rewards/c.0"
    data = bytearray((copied / path).read_bytes())
    data[0] ^= 1
    (copied / path).write_bytes(data)
    with pytest.raises(IntegrityError, match=r"rewards/c\.0, chunk 0: damaged") as caught:
        orlog.load_dataset(copied).column("rewards")
    assert caught.value.file == path
    assert str(caught.value).startswith(str(copied / part_folder(part)))
    assert str(caught.value).endswith(f"; run: orlog verify {copied} --values")
    (problem,) = orlog.verify_store(copied)[1]
    assert problem.file == path


def move(parts, key):
    parts[0][key] += 1
    parts[1][key] -= 1


PART_CHANGES = {
    "last dropped": lambda parts: parts.pop(),
    "other order": lambda parts: parts.reverse(),
    "steps moved": lambda parts: move(parts, "steps"),
    "column dropped": lambda parts: parts[1]["columns"].pop("rewards"),
    "rows moved": lambda parts: move([part["columns"]["rewards"] for part in parts], "rows"),
}


@pytest.mark.parametrize("change", PART_CHANGES.values(), ids=PART_CHANGES.keys())
def test_parts_that_do_not_make_up_the_whole_are_refused(copied, reseal, change):
    reseal(copied, lambda body: change(body["parts"]))
    with pytest.raises(IntegrityError):
        orlog.load_dataset(copied)


def replace_column(folder, name, values, replace_object, reseal):
    """Put other values of as many rows into a column, sealed as if they belonged there."""
    stored = StoredVersion(folder)
    spec = stored.schema.columns()[name]
    writer = ZarrWriter(folder.parent / "donor", encodings())
    writer.add_column(spec)
    writer.append({name: values})
    (column,), _ = writer.finish()
    for item in column.objects:
        replace_object(folder, item.path, (folder.parent / "donor" / item.path).read_bytes())

    def change(body):
        (listed,) = (listed for listed in body["columns"] if listed["name"] == name)
        listed["blake3"] = column.blake3

    reseal(folder, change)
    assert orlog.verify_store(folder)[1] == []


@pytest.mark.parametrize("name", ["infos/said@offsets", "observations/sets@values@offsets", "actions@choice"])
@pytest.mark.parametrize("kind", ["beyond", "negative", "backward"])
def test_offsets_that_do_not_count_their_values_are_an_integrity_error(one_part, replace_object, reseal, name, kind):
    values = StoredVersion(one_part).read(name).copy()
    values[-1] = {"beyond": values.max() + 1000, "negative": -1, "backward": values.min() - 1}[kind]
    replace_column(one_part, name, values, replace_object, reseal)
    with pytest.raises(IntegrityError):
        list(orlog.load_dataset(one_part))
    with pytest.raises(IntegrityError):
        orlog.load_dataset(one_part)[2]


def test_rows_that_no_shards_hold_are_refused_before_anything_is_allocated(reseal, mini_folder):
    huge = 2**50

    def rows(name):
        return huge + (67 if name.startswith("observations") else 0)

    def more(body):
        body["total_steps"] = huge
        for column in body["columns"]:
            if not column["name"].startswith("episodes/"):
                column["rows"] = rows(column["name"])
        body["objects"] = [
            {"path": item.path, "size_bytes": item.size_bytes, "sha256": item.sha256}
            for item in make_objects(mini_folder)
            if item.path != "manifest.json"
        ]

    for path in mini_folder.rglob("zarr.json"):
        body = json.loads(path.read_text("utf-8"))
        name = path.parent.relative_to(mini_folder).as_posix()
        if body["node_type"] == "array" and not name.startswith("episodes/"):
            body["shape"][0] = rows(name)
            path.write_text(json.dumps(body, indent=2), "utf-8")
    reseal(mini_folder, more)
    with pytest.raises(IntegrityError, match="shards, found 1 in the manifest"):
        orlog.load_dataset(mini_folder)
