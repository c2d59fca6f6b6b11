import numpy as np
import pytest

from orlog.datasets.store.encoding import FRAME_BYTES, SHARD_BYTES, Encoding, choose_encoding

BYTES, FLOAT = np.dtype(np.uint8), np.dtype(np.float64)


def test_numbers_fill_chunks_of_a_mebibyte_with_a_power_of_two_of_rows():
    for shape, rows in (((), 2**17), ((3,), 2**15), ((2**17,), 1), ((2**30,), 1)):
        assert choose_encoding("x", FLOAT, shape).chunk_rows == rows
    assert choose_encoding("x", FLOAT, (0,)).chunk_rows >= 1
    for dtype, shape in (("uint8", (15, 64)), ("uint8", (3, 15, 64)), ("uint8", (64,)), ("uint16", (64, 64))):
        encoding = choose_encoding("observations", np.dtype(dtype), shape)  # no images
        assert (encoding.compression, encoding.difference_axis) == ("zstd", None)


@pytest.mark.parametrize(
    ("shape", "axis", "frames"),
    [
        ((64, 64, 3), 1, 1),
        ((3, 64, 64), 2, 1),
        ((480, 640, 3), 1, 1),
        ((64, 64, 64), 1, 1),
        ((64, 64), 1, 2),
        ((1, 64, 64), 2, 2),
        ((32, 32, 3), 1, 2),
        ((16, 16), 1, 32),
    ],
    ids=str,
)
def test_images_are_stored_a_few_frames_at_a_time_as_differences_downward(shape, axis, frames):
    chunk_bytes = frames * int(np.prod(shape))
    room = 2 ** int(np.log2(SHARD_BYTES / chunk_bytes))
    assert choose_encoding("observations/camera", BYTES, shape) == Encoding(
        chunk_rows=frames, chunks_per_shard=room, compression="lz4hc", bit_shuffle=True, difference_axis=axis
    )
    assert frames == 1 or chunk_bytes <= FRAME_BYTES


def test_an_author_may_choose_rows_and_compression_within_bounds():
    image = ("observations", BYTES, (64, 64, 3))
    for options, room, axis in (
        ({"compression": "zstd"}, 1024, 1),
        ({"compression": "none"}, 1024, None),
        ({"chunk_rows": 10, "compression": "lz4hc"}, 128, 1),
    ):
        expected = Encoding(**{"chunk_rows": 1, **options}, chunks_per_shard=room, difference_axis=axis)
        assert choose_encoding(*image, **options) == expected
    for rows in (0, -1, 2**25 + 1, 2**70):
        with pytest.raises(ValueError, match=rf"column rewards: a chunk holds 1 to {2**25} rows .*found {rows}"):
            choose_encoding("rewards", FLOAT, (), chunk_rows=rows)
    assert choose_encoding("rewards", FLOAT, (), chunk_rows=2**25).chunks_per_shard == 1
