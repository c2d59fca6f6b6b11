"""What a new encoding takes: one entry of `CODECS`, and nothing else."""

from __future__ import annotations

import zlib
from typing import Any

import gymnasium
import numpy as np
import pytest
import zarr

import orlog
from orlog.datasets.store.codecs import CODECS
from orlog.datasets.store.encoding import choose_encoding
from orlog.datasets.store.shards import encode_shard
from orlog.datasets.store.verify_values import check_values
from orlog.datasets.store.version import StoredVersion
from orlog.errors import IntegrityError
from tests.episodes import whole_episode

NAME = "lab/arm-v1"
LEVEL = 6


class Gzip:
    """The whole of a new codec; Zarr has it too, and so reads what is written with it."""

    def encode(self, values: np.ndarray, *, bit_shuffle: bool) -> bytes:  # noqa: ARG002 (for numbers only)
        stream = zlib.compressobj(LEVEL, wbits=31)
        return stream.compress(values.tobytes()) + stream.flush()

    def decode(self, data: bytes | memoryview, out: np.ndarray) -> None:
        try:
            found = zlib.decompressobj(wbits=31).decompress(data, out.nbytes + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if len(found) != out.nbytes:
            raise ValueError(f"expected {out.nbytes} bytes, found {len(found)}")
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(found, np.uint8)

    def metadata(self, dtype: np.dtype[Any], *, bit_shuffle: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        return [{"name": "gzip", "configuration": {"level": LEVEL}}]


@pytest.fixture
def _gzip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CODECS, "gzip", Gzip())


def episodes() -> list[orlog.Episode]:
    rng = np.random.default_rng(0)
    return [
        whole_episode(
            {
                "state": rng.normal(size=(steps + 1, 3)),
                "camera": rng.integers(0, 256, (steps + 1, 16, 16, 3), np.uint8),
            },
            rng.integers(0, 4, steps),
            rng.normal(size=steps).round(1),
        )
        for steps in (7, 40, 3)
    ]


def writer(**options: Any) -> orlog.DatasetWriter:
    camera = gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    state = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    encodings = {
        "rewards": choose_encoding(
            "rewards", np.dtype(np.float64), (), chunk_rows=8, compression="gzip"
        ),
        "observations/camera": choose_encoding(
            "observations/camera", np.dtype(np.uint8), (16, 16, 3), compression="gzip"
        ),
    }
    return orlog.DatasetWriter(
        NAME,
        observation_space=gymnasium.spaces.Dict({"camera": camera, "state": state}),
        action_space=gymnasium.spaces.Discrete(4),
        encodings=encodings,
        **options,
    )


def check(dataset: orlog.Dataset) -> None:
    for found, expected in zip(dataset, episodes(), strict=True):
        for name in ("state", "camera"):
            assert np.array_equal(found.observations[name], expected.observations[name])
        assert np.array_equal(found.rewards, expected.rewards)


@pytest.mark.usefixtures("_gzip")
def test_one_entry_is_all_that_a_new_encoding_takes() -> None:
    with writer() as recording:
        for episode in episodes():
            recording.add_episode(episode)
    dataset = orlog.load_dataset(NAME)
    check(dataset)
    assert np.array_equal(
        dataset.rows("rewards", np.array([30, 2])), dataset.column("rewards")[[30, 2]]
    )
    assert orlog.verify_store(NAME)[1] == []
    assert check_values(StoredVersion(dataset.folder)) == []


@pytest.mark.usefixtures("_gzip")
def test_an_interrupted_recording_goes_on_with_it() -> None:
    recording = writer()
    recording.add_episode(episodes()[0])
    recording.checkpoint()
    recording.close()
    with writer(resume=True) as recording:
        for episode in episodes()[1:]:
            recording.add_episode(episode)
    check(orlog.load_dataset(NAME))


@pytest.mark.usefixtures("_gzip")
def test_its_metadata_tell_zarr_how_to_read_it() -> None:
    with writer() as recording:
        for episode in episodes():
            recording.add_episode(episode)
    dataset = orlog.load_dataset(NAME)
    array: Any = zarr.open_array(dataset.folder / "rewards", mode="r")
    assert np.array_equal(array[:], dataset.column("rewards"))


def test_without_its_entry_the_column_is_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(CODECS, "gzip", Gzip())
        with writer() as recording:
            for episode in episodes():
                recording.add_episode(episode)
    with pytest.raises(IntegrityError, match=r"no codec of this orlog is described by.*gzip"):
        orlog.load_dataset(NAME)
    with pytest.raises(ValueError, match="compression is one of zstd, lz4hc, lz4, none, found"):
        choose_encoding("rewards", np.dtype(np.float64), (), compression="gzip")


@pytest.mark.usefixtures("_gzip")
def test_a_codec_that_loses_something_is_found_before_its_bytes_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def encode(codec: Gzip, values: np.ndarray, *, bit_shuffle: bool) -> bytes:
        return exact(codec, values.round(1), bit_shuffle=bit_shuffle)

    exact = Gzip.encode
    monkeypatch.setattr(Gzip, "encode", encode)
    encoding = choose_encoding("rewards", np.dtype(np.float64), (), compression="gzip")
    with pytest.raises(IntegrityError, match="did not decode to the values it was made of"):
        list(encode_shard(np.array([0.25]), encoding))
