import numpy as np
import pytest

from orlog.datasets.store.encoding import FRAME_BYTES, SHARD_BYTES, Encoding, choose_encoding

BYTES = np.dtype(np.uint8)
FLOAT = np.dtype(np.float64)


def test_numbers_fill_chunks_of_a_mebibyte_with_a_power_of_two_of_rows():
    def rows(*shape):
        return choose_encoding("x", FLOAT, shape).chunk_rows

    assert rows() == 2**17
    assert rows(3) == 2**15
    assert rows(2**17) == 1
    assert rows(2**30) == 1
    assert rows(0) >= 1


@pytest.mark.parametrize(
    ("shape", "axis", "frames"),
    [
        ((64, 64, 3), 1, 1),
        ((3, 64, 64), 2, 1),
        ((4, 84, 84), 2, 1),
        ((480, 640, 3), 1, 1),
        ((64, 64, 64), 1, 1),
        ((64, 64), 1, 2),
        ((64, 64, 1), 1, 2),
        ((1, 64, 64), 2, 2),
        ((16, 100, 3), 1, 1),
        ((32, 32, 3), 1, 2),
        ((16, 16), 1, 32),
    ],
    ids=str,
)
def test_images_are_stored_a_few_frames_at_a_time_as_differences_downward(shape, axis, frames):
    chunk_bytes = frames * int(np.prod(shape))
    assert choose_encoding("observations/camera", BYTES, shape) == Encoding(
        chunk_rows=frames,
        chunks_per_shard=2 ** int(np.log2(SHARD_BYTES / chunk_bytes)),
        compression="lz4hc",
        bit_shuffle=True,
        difference_axis=axis,
    )
    assert frames == 1 or chunk_bytes <= FRAME_BYTES


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("uint8", (15, 64)),
        ("uint8", (64, 15)),
        ("uint8", (15, 64, 3)),
        ("uint8", (64, 15, 3)),
        ("uint8", (3, 15, 64)),
        ("uint8", (64,)),
        ("uint8", (64, 64, 3, 2)),
        ("int8", (64, 64, 3)),
        ("uint16", (64, 64)),
        ("float32", (64, 64, 3)),
    ],
    ids=str,
)
def test_small_pictures_and_other_numbers_are_no_images(dtype, shape):
    encoding = choose_encoding("observations", np.dtype(dtype), shape)
    assert (encoding.compression, encoding.difference_axis) == ("zstd", None)


def test_an_author_may_choose_rows_and_compression():
    image = ("observations", BYTES, (64, 64, 3))
    assert choose_encoding(*image, compression="zstd") == Encoding(
        chunk_rows=1, chunks_per_shard=1024, compression="zstd", difference_axis=1
    )
    assert choose_encoding(*image, compression="none") == Encoding(
        chunk_rows=1, chunks_per_shard=1024, compression="none"
    )
    assert choose_encoding(*image, chunk_rows=10) == Encoding(
        chunk_rows=10, chunks_per_shard=128, compression="lz4hc", difference_axis=1
    )
    assert choose_encoding("rewards", FLOAT, (), chunk_rows=1000, compression="lz4") == Encoding(
        chunk_rows=1000, chunks_per_shard=2048, compression="lz4"
    )


@pytest.mark.parametrize("rows", [0, -1, 2**25 + 1, 2**70])
def test_chunks_of_no_rows_or_too_many_are_refused(rows):
    with pytest.raises(ValueError, match=rf"column rewards: a chunk holds 1 to {2**25} rows .*found {rows}"):
        choose_encoding("rewards", FLOAT, (), chunk_rows=rows)
    assert choose_encoding("rewards", FLOAT, (), chunk_rows=2**25).chunks_per_shard == 1
