"""What a damaged object holds is found from what is not damaged."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from orlog.datasets.store.objects import shard_path
from orlog.datasets.store.verify import DamageFinder, verify_folder
from orlog.datasets.store.version import StoredVersion
from orlog.datasets.store.zarr_reader import ZarrReader
from orlog.manifests.manifest import part_folder, parts_of, read_manifest
from tests.datasets.store.test_version import random_parts, record


@pytest.fixture(scope="module")
def three_parts(tmp_path_factory):
    """Return a version of three parts, with many shards; do not write to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("parts")))
        return record("lab/parts-v1", random_parts()).folder


@pytest.fixture
def store(three_parts, tmp_path):
    """Return a copy to be damaged."""
    return Path(shutil.copytree(three_parts, tmp_path / "store"))


def expected_episodes(stored, part, name, number):
    """Return first and last episode in a shard, having looked at each episode's rows."""
    rows = parts_of(stored.manifest)[part].columns[name].rows
    reader = stored._readers[part]
    assert isinstance(reader, ZarrReader)
    shard_rows = reader.encoding(name).shard_rows
    before = stored._first_rows[name][part]
    first, stop = before + number * shard_rows, before + min(rows, (number + 1) * shard_rows)
    starts, stops = stored._row_ranges(name, np.arange(len(stored.lengths)))
    hit = np.flatnonzero((starts < stop) & (stops > first) & (starts < stops)).tolist()
    return hit[0], hit[-1]


def test_each_shard_holds_the_episodes_whose_rows_are_in_it(three_parts):
    stored = StoredVersion(three_parts)
    finder = DamageFinder(three_parts, stored.manifest, [])
    shards = 0
    for part in range(3):
        for name, spec in stored.schema.columns().items():
            for number in range(10_000):
                path = part_folder(part) + shard_path(spec, number)
                if not (three_parts / path).exists():
                    break
                expected = expected_episodes(stored, part, name, number)
                assert finder.find(path) == (name, expected), path
                shards += 1
    objects = [item.path for item in stored.manifest.objects]
    assert shards == sum(not path.endswith("zarr.json") for path in objects) > 50


@pytest.mark.parametrize(
    "path",
    [
        "zarr.json",
        "parts/9/rewards/c.0",
        "rewards/c.99999",
        "rewards/c.-1",
        "data.h5",
        "parts/1/",
        "parts/999999999999999999999/rewards/c.0",
        "rewards/c.0\n",
        "",
    ],
)
def test_of_other_files_nothing_is_known(three_parts, path):
    finder = DamageFinder(three_parts, read_manifest(three_parts / "manifest.json"), [])
    assert finder.find(path) == (None, None)


def damage(path, how):
    data = path.read_bytes()
    path.unlink()
    if how == "flipped":
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    elif how == "cut":
        path.write_bytes(data[:-1])
    elif how == "pipe":
        os.mkfifo(path)


@pytest.mark.parametrize("how", ["flipped", "cut", "missing", "pipe"])
def test_what_is_damaged_itself_is_not_asked(store, how):
    damage(store / "parts/2/rewards/c.1", how)
    (problem,) = verify_folder(store)[1]
    assert (problem.column, problem.episodes) == ("rewards", (6, 7))
    assert str(problem).endswith("; it holds column rewards, episodes 6 to 7")

    damage(store / "parts/2/episodes/lengths/c.0", how)
    found = {problem.file: problem.episodes for problem in verify_folder(store)[1]}
    assert found == {"parts/2/rewards/c.1": None, "parts/2/episodes/lengths/c.0": (4, 7)}

    damage(store / "parts/2/rewards/zarr.json", how)
    damage(store / "rewards/zarr.json", how)
    damage(store / "rewards/c.0", how)
    damage(store / "observations/say@offsets/c.0", how)
    damage(store / "observations/say@values/c.0", how)
    found = {problem.file: problem.episodes for problem in verify_folder(store)[1]}
    assert found == {
        "observations/say@offsets/c.0": (0, 1),
        "observations/say@values/c.0": None,
        "parts/2/episodes/lengths/c.0": (4, 7),
        "parts/2/rewards/c.1": None,
        "parts/2/rewards/zarr.json": (4, 7),
        "rewards/c.0": None,
        "rewards/zarr.json": (0, 2),
    }
