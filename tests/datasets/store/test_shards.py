"""How rows become chunks and shards, and that no damage to them passes."""

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.datasets.store import shards as shards_module
from orlog.datasets.store.encoding import FRAME_BYTES, SHARD_BYTES, Encoding, choose_encoding
from orlog.datasets.store.shards import Shard, encode_shard
from orlog.errors import IntegrityError
from orlog.manifests.manifest import DTYPES
from tests.levels import scaled

NAME = "rewards/c.0"
NUMBERS = Encoding(chunk_rows=8, chunks_per_shard=4)
COMPRESSIONS = ["none", "lz4", "lz4hc", "zstd"]


def random_rows(dtype, shape, seed):
    """Return rows of any bytes at all, not-a-numbers of every kind among them."""
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def shard_bytes(values, encoding):
    return b"".join(encode_shard(values, encoding))


def open_shard(path, encoding=NUMBERS):
    return Shard(path, encoding.chunks_per_shard, path.stat().st_size, name=NAME)


def read_all(path, shape, dtype, encoding):
    """Return the first `shape[0]` rows of a shard."""
    shard = open_shard(path, encoding)
    chunks = -(-shape[0] // encoding.chunk_rows)
    out = np.empty((chunks * encoding.chunk_rows, *shape[1:]), dtype)
    for chunk in range(chunks):
        first = chunk * encoding.chunk_rows
        shard.decode(chunk, out[first : first + encoding.chunk_rows], encoding)
    assert not out[shape[0] :].tobytes().strip(b"\0")
    return out[: shape[0]]


def read_numbers(path, encoding=NUMBERS):
    return read_all(path, (26,), np.dtype(np.float64), encoding)


@pytest.fixture
def values():
    return np.random.default_rng(0).standard_normal(26)


@pytest.fixture
def path(tmp_path, values):
    """Return a shard of 8 rows to a chunk and 4 chunks, the last of them not full."""
    path = tmp_path / "shard"
    path.write_bytes(shard_bytes(values, NUMBERS))
    return path


def index_of(data, chunks=NUMBERS.chunks_per_shard):
    index = np.frombuffer(data[-chunks * 16 - 4 : -4], "<u8").reshape(chunks, 2)
    return [(int(offset), int(length)) for offset, length in index]


def place_of(data, position, chunks=NUMBERS.chunks_per_shard):
    """Return how an error should call what lies at a position."""
    for chunk, (offset, size) in enumerate(index_of(data, chunks)):
        if offset <= position < offset + size:
            return f"{NAME}, chunk {chunk}:"
    return f"{NAME}, index of chunks:"


def with_sum(data):
    return data + int(google_crc32c.value(data)).to_bytes(4, "little")


@st.composite
def shards(draw):
    """Draw rows of any dtype and an encoding of at most as many rows as a shard holds."""
    dtype = np.dtype(draw(st.sampled_from(sorted(DTYPES))))
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=3)))
    axes = st.none() if dtype != np.uint8 or not shape else st.none() | st.integers(1, len(shape))
    encoding = Encoding(
        chunk_rows=draw(st.integers(1, 9)),
        chunks_per_shard=draw(st.integers(1, 5)),
        compression=draw(st.sampled_from(COMPRESSIONS)),
        bit_shuffle=draw(st.booleans()),
        difference_axis=draw(axes),
    )
    rows = draw(st.integers(0, encoding.shard_rows))
    values = random_rows(dtype, (rows, *shape), draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        values = values.astype(dtype.newbyteorder(">"))
    return values, encoding


@settings(max_examples=scaled(150), deadline=None)
@given(shard=shards())
def test_a_shard_gives_back_the_rows_it_was_made_of(tmp_path_factory, shard):
    values, encoding = shard
    path = tmp_path_factory.mktemp("shard") / "shard"
    data = shard_bytes(values, encoding)
    path.write_bytes(data)
    dtype = values.dtype.newbyteorder("<")
    found = read_all(path, values.shape, dtype, encoding)
    assert found.tobytes() == values.astype(dtype).tobytes()

    # What is in no chunk is marked so, and chunks lie one behind the other without gaps.
    index = index_of(data, encoding.chunks_per_shard)
    written = -(-len(values) // encoding.chunk_rows)
    assert index[written:] == [(2**64 - 1, 2**64 - 1)] * (encoding.chunks_per_shard - written)
    ends = [offset + size for offset, size in index[:written]]
    assert [offset for offset, _ in index[:written]] == [0, *ends][:written]
    assert len(data) == (ends[-1] if ends else 0) + encoding.chunks_per_shard * 16 + 4


def test_a_codec_that_loses_something_is_found_before_its_bytes_are_kept(monkeypatch, values):
    def encode(part, encoding):
        return real(np.where(part == values[20], -part, part), encoding)

    real = shards_module._encode_chunk
    monkeypatch.setattr(shards_module, "_encode_chunk", encode)
    with pytest.raises(IntegrityError, match="did not decode to the values it was made of"):
        list(encode_shard(values[16:], NUMBERS))
    list(encode_shard(values[:16], NUMBERS))


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(
    ("dtype", "shape", "axis"),
    [("uint8", (3, 16, 16), 2), ("uint8", (), None), ("float32", (2,), None)],
    ids=["(C, H, W)", "text", "numbers"],
)
def test_every_damaged_byte_of_any_encoding_is_noticed_and_named(tmp_path, dtype, shape, axis, compression):
    path = tmp_path / "shard"
    rows = 1 if axis is not None else 40
    encoding = Encoding(
        chunk_rows=rows, chunks_per_shard=3, compression=compression, bit_shuffle=bool(shape), difference_axis=axis
    )
    values = random_rows(np.dtype(dtype), (rows + 1, *shape), 3)
    whole = shard_bytes(values, encoding)
    masks = np.random.default_rng(0).integers(1, 256, len(whole)).tolist()
    for position, mask in enumerate(masks):
        damaged = bytearray(whole)
        damaged[position] ^= mask
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError) as caught:
            read_all(path, values.shape, values.dtype, encoding)
        assert str(caught.value).startswith(place_of(whole, position, 3))
        assert caught.value.file == NAME


def test_a_shard_cut_or_grown_anywhere_a_missing_one_and_a_link_are_named(tmp_path, path):
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(IntegrityError, match=rf"{NAME}: expected \d+ bytes, found {size} "):
            Shard(path, 4, len(whole), name=NAME)
        with pytest.raises(IntegrityError, match=NAME):  # though the manifest may agree
            open_shard(path)
    path.write_bytes(whole + b"\0")
    (tmp_path / "link").symlink_to(path)
    for other in (path, tmp_path / "nowhere", tmp_path / "link", tmp_path):
        with pytest.raises(IntegrityError, match=NAME):
            Shard(other, 4, len(whole), name=NAME)


@pytest.mark.parametrize(
    "entry", [(2**64 - 1, 2**64 - 1), (2**63, 100), (2**64 - 1, 1), (0, 2**40), (0, 0), (0, 3), (0, 4)], ids=str
)
def test_an_index_that_points_nowhere_is_refused_though_its_sum_is_right(path, entry):
    data = path.read_bytes()
    index = index_of(data)
    index[1] = entry
    path.write_bytes(data[: -4 * 16 - 4] + with_sum(np.array(index, "<u8").tobytes()))
    with pytest.raises(IntegrityError, match="chunk 1"):
        read_numbers(path)


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
def test_a_chunk_with_a_right_sum_decodes_or_is_an_integrity_error(tmp_path, compression):
    encoding = Encoding(chunk_rows=64, chunks_per_shard=1, compression=compression)
    whole = shard_bytes(np.arange(64.0), encoding)
    ((_, size),) = index_of(whole, 1)
    body, index = whole[: size - 4], whole[size:]
    refused = 0
    for position in range(len(body)):
        for bit in range(8):
            damaged = bytearray(body)
            damaged[position] ^= 1 << bit
            (tmp_path / "shard").write_bytes(with_sum(bytes(damaged)) + index)
            shard = open_shard(tmp_path / "shard", encoding)
            try:
                shard.decode(0, np.empty(64), encoding)
            except IntegrityError:
                refused += 1
    assert refused > 0
    (tmp_path / "shard").write_bytes(with_sum(b"no blosc") + index)
    with pytest.raises(IntegrityError, match=NAME):
        open_shard(tmp_path / "shard", encoding).read(0)  # the index says that it is longer


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
