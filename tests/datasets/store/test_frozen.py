"""Stores that were written once: every later version must read them, and write the same bytes."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from gymnasium.spaces import GraphInstance

import orlog
from orlog.datasets.store import chunk_hashes
from orlog.datasets.store.verify import check_values
from orlog.datasets.store.version import StoredVersion

FROZEN = Path(__file__).with_name("frozen")
DIGESTS = {
    "zarr": "sha256:179ca4b25089b94243fac3845a7e93e8e4e5e4afaf8b3b9117a5f7454abe56fc",
    "hdf5": "sha256:8631af56de80e7e8fcbb64f2a2c90e05598240971d1d253548ff441a96ec2db8",
}
VIDEOS = "sha256:82e3f50e81683d0010433872704a746ff64756da6911d847dc6e022e78a68b79"


def script(name):
    """Return a script beside the stores that it wrote."""
    spec = importlib.util.spec_from_file_location(f"frozen_{name}", FROZEN / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"frozen_{name}"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def make():
    """Return the script that wrote the stores of every space."""
    return script("make")


def same(found, expected):
    """Compare values of spaces deeply; columns of a Dict against a list of samples."""
    if isinstance(expected, list) and isinstance(found, dict):
        return all(same(found[key], [one[key] for one in expected]) for key in expected[0])
    if isinstance(expected, GraphInstance):
        return all(same(*pair) for pair in zip(found, expected, strict=True))
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, str):
        return bool(found == expected)
    return np.asarray(found).dtype == np.asarray(expected).dtype and np.array_equal(found, expected)


@pytest.mark.parametrize("container", DIGESTS)
def test_a_frozen_store_is_read_as_it_was_written(container, make):
    folder = FROZEN / f"format-1-{container}"
    ds = orlog.load_dataset(folder)
    assert ds.digest == DIGESTS[container]
    assert orlog.verify_store(folder)[1] == []
    assert (ds.observation_space, ds.action_space) == (make.OBSERVATIONS, make.ACTIONS)
    assert (len(ds), ds.version, ds.manifest.non_finite) == (5, "1.1.0", {"observations/state": 1})
    for index, found in enumerate(ds):
        expected = make.episode(index)
        assert same(found.observations, expected.observations)
        assert same(found.actions, expected.actions)
        for name in ("rewards", "terminations", "truncations"):
            assert same(getattr(found, name), getattr(expected, name))
        assert found.infos.keys() == expected.infos.keys()
        assert all(same(found.infos[name], expected.infos[name]) for name in expected.infos)
        assert (found.seed, found.metadata["task"]) == (expected.seed, expected.metadata["task"])
        assert found.metadata["success"] == expected.metadata["success"]
        assert same(found.metadata["goal"], expected.metadata["goal"])


def test_the_zarr_container_still_writes_the_very_bytes(make):
    assert orlog.load_dataset(make.write("zarr")).digest == DIGESTS["zarr"]


def test_what_is_rare_is_still_written_in_the_very_bytes(monkeypatch):
    monkeypatch.setattr(chunk_hashes, "LARGE_BYTES", 0)
    folders = FROZEN / "format-1-corners", script("make_corners").write()
    before, now = (
        {item.path: item.sha256 for item in orlog.load_dataset(folder).manifest.objects} for folder in folders
    )
    differing = {path for path, _ in before.items() ^ now.items()}
    assert differing == {f"{part}infos/nothing/zarr.json" for part in ("", "parts/1/")}


def test_a_frozen_store_keeps_its_videos():
    folder = FROZEN / "format-1-videos"
    ds = orlog.load_dataset(folder)
    assert ds.digest == VIDEOS
    assert check_values(StoredVersion(folder)) == []
    kept = ds.manifest.videos["observations/image"]
    assert (kept.files, kept.frames, kept.codec) == (2, 51, "h264")
    shown, numbers = ds.column("observations/image").mean((1, 2, 3)), ds.column("observations/state")[:, 0]
    missing = ds.selection().versions[0].read_frame_index("observations/image", np.arange(len(ds)))[:, 0] == 0
    assert (missing.sum(), shown[missing].max()) == (2, 0)
    np.testing.assert_allclose(shown[~missing], 39.5 + 3 * numbers[~missing], atol=1.4)


def test_zarr_itself_reads_images_where_orlog_is_installed():
    folder = FROZEN / "format-1-zarr"
    found = zarr.open_array(folder / "observations/image", mode="r")[:]
    assert np.array_equal(found, orlog.load_dataset(folder).column("observations/image", 0, len(found)))
