"""Odd MP4 files: the frames of an import are those of a decoder that reads all, or it is refused and leaves nothing behind."""

import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import orlog
from orlog.datasets.store import videos as stored_videos
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.store.test_videos import CAMERA, COLUMN, add_track, in_sequence, write, write_video

EPISODES = "meta/episodes/chunk-000/file-000.parquet"
FIRST, SECOND = "file-000.mp4", "file-001.mp4"
FRAMES = 37  # of the first file, episodes of 7 and 30; the second has 12 and 2


def boxes(data, start=0, stop=None):
    """Yield (name, begin, end) of the boxes of an MP4 file, or of a box between its header and its end."""
    stop = len(data) if stop is None else stop
    while start < stop:
        (size,) = struct.unpack_from(">I", data, start)
        yield data[start + 4 : start + 8].decode("latin1"), start, start + size
        start += size


def at(data, *path):
    """Return the begin and the end of the first box of this path."""
    start, stop = 0, len(data)
    for number, name in enumerate(path):
        start, stop = next((a, b) for one, a, b in boxes(data, start + 8 * (number > 0), stop) if one == name)
    return start, stop


def edit_list(*edits):
    """Return a change of a file, whose table of frames stands at its end: its edits are these, in seconds (-1: nothing is shown)."""

    def change(data):
        scale = struct.unpack_from(">I", data, at(data, "moov", "mvhd")[0] + 20)[0]
        unit = struct.unpack_from(">I", data, at(data, "moov", "trak", "mdia", "mdhd")[0] + 20)[0]
        entries = [
            struct.pack(">IiI", round(length * scale), -1 if begin < 0 else round(begin * unit), 2**16)
            for length, begin in edits
        ]
        table = struct.pack(">II", 0, len(edits)) + b"".join(entries)
        table = struct.pack(">I4s", 8 + len(table), b"elst") + table
        start, stop = at(data, "moov", "trak", "edts")
        grown = 8 + len(table) - (stop - start)
        changed = bytearray(data)
        for path in (("moov",), ("moov", "trak")):
            place = at(data, *path)[0]
            struct.pack_into(">I", changed, place, struct.unpack_from(">I", data, place)[0] + grown)
        changed[start:stop] = struct.pack(">I4s", 8 + len(table), b"edts") + table
        return bytes(changed)

    return change


def without(name):
    """Return a change of a file that turns a box into one that nothing reads."""
    return lambda data: data.replace(name, b"free", 1)


def cut(part):
    """Return a change of a file that leaves out its end."""
    return lambda data: data[: int(len(data) * part)]


def false_keys(data):
    """Return a file whose table of key frames names the frame after each but the first."""
    start, _ = at(data, "moov", "trak", "mdia", "minf", "stbl", "stss")
    numbers = np.frombuffer(data, ">u4", struct.unpack_from(">I", data, start + 12)[0], start + 16)
    return data[: start + 20] + (numbers[1:] + 1).astype(">u4").tobytes() + data[start + 16 + 4 * len(numbers) :]


def edited(change, count=FRAMES, **options):
    """Return what writes the first video of a dataset again, with so many frames, and changes its bytes."""

    def write_again(root):
        file = root / f"videos/{CAMERA}/chunk-000/{FIRST}"
        if count != FRAMES or options:
            write_video(file, count, **options)
        file.write_bytes(change(file.read_bytes()))

    return write_again


def begins(*starts):
    """Return a change of where the metadata say that episodes begin, and end where the next one of their file does."""

    def change(root):
        columns = pq.read_table(root / EPISODES).to_pydict()
        stops = (starts[1], starts[0] + 3.7, starts[3], starts[2] + 1.4)
        for name, values in (("from", starts), ("to", stops)):
            columns[f"videos/{CAMERA}/{name}_timestamp"] = values
        pq.write_table(pa.table(columns), root / EPISODES)

    return change


def same(data):
    """Return a file as it is."""
    return data


UNEVEN = np.arange(FRAMES) / 10 + 0.03 * (np.arange(FRAMES) % 3)
LATE = 0.2  # seconds by which B-frames put off the first frame
READ = {
    "the rate varies": edited(same, times=UNEVEN),
    "an edit leaves out what precedes it": edited(edit_list((3.7, 0.3 + LATE)), 40),
    "an edit begins within a group": edited(edit_list((3.7, 0.5 + LATE)), 42),
    "two edits": edited(edit_list((1.7, LATE), (2.0, 3.7)), 57),
    "two edits show the same": edited(edit_list((1.7, LATE), (2.0, LATE)), 20),
    "an empty edit": edited(edit_list((0.5, -1), (3.7, LATE))),
    "no edit list": edited(without(b"edts")),
    "no table of key frames": edited(without(b"stss")),
    "no table of key frames, HEVC": edited(without(b"stss"), kind="hevc"),
    "no table of key frames, AV1": edited(without(b"stss"), kind="av1"),
    "false key frames": edited(false_keys),
    "false key frames, MPEG-4": edited(false_keys, kind="mpeg4"),
    "false key frames, AV1": edited(false_keys, kind="av1"),
    "gray": edited(same, pixels="gray"),
    "4:2:2": edited(same, pixels="yuv422p"),
    "4:4:4": edited(same, kind="444"),
    "begins that drift": begins(0.045, 0.73, 0.0, 1.22),
}


@pytest.mark.parametrize("change", READ.values(), ids=READ.keys())
def test_frames_of_odd_files_are_those_of_a_decoder_that_reads_all(tmp_path, change):
    root = write(tmp_path / "arm")
    change(root)
    orlog.import_dataset(root, "lab/odd-v1")
    dataset, expected = orlog.load_dataset("lab/odd-v1"), in_sequence(root)
    np.testing.assert_array_equal(dataset.column(COLUMN), expected)
    for row in np.random.default_rng(0).permutation(FRAMES).tolist():
        stored_videos._idle.clear()  # so that each is sought in a file that was just opened
        np.testing.assert_array_equal(dataset.rows(COLUMN, np.array([row]))[0], expected[row])


OWN = "expected a frame of its own at"
WRONG = IntegrityError, rf"{FIRST}: cannot be decoded: .* in episode 0"
REFUSED = {
    "nothing": ({}, edited(cut(0)), *WRONG),
    "cut in its header": ({}, edited(lambda data: data[:9]), *WRONG),
    "cut, table at the end": ({}, edited(cut(0.99)), *WRONG),
    **{
        f"cut at {part}, table first": (
            {"muxer": {"movflags": "faststart"}},
            edited(cut(part)),
            IntegrityError,
            rf"{FIRST}: {OWN} \d\.\d+ s, .* in episode [01]|{FIRST}: its first frame is no key frame.* in episode 0",
        )
        for part in (0.1, 0.5, 0.9, 0.99)
    },
    **{
        f"cut at {part}, in fragments": (
            {"muxer": {"movflags": "frag_keyframe+empty_moov"}},
            edited(cut(part)),
            IntegrityError,
            rf"{FIRST}: {OWN} .* in episode [01]",
        )
        for part in (0.5, 0.9)
    },
    "no table": ({}, edited(lambda data: data.replace(b"moov", b"skip", 1)), *WRONG),
    "no frame": (
        {"muxer": {"movflags": "frag_keyframe+empty_moov"}},
        edited(lambda data: data[: at(data, "moov")[1]]),
        IntegrityError,
        f"{FIRST}: holds no frame.* in episode 0",
    ),
    "no MP4": ({}, edited(lambda _: b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n" * 9), *WRONG),
    "an edit shows too little": (
        {},
        edited(edit_list((2.7, LATE))),
        IntegrityError,
        rf"{OWN} 2\.7000 s, .* in episode 1",
    ),
    "two videos": ({"change": add_track}, same, SchemaError, f"{FIRST}: expected one video, found 2.* in episode 0"),
    "turned": (
        {"change": lambda _, stream: stream.set_display_rotation(180)},
        same,
        SchemaError,
        f"{FIRST}: expected upright frames.* in episode 0",
    ),
    "10 bits": ({"pixels": "yuv420p10le"}, same, SchemaError, f"{FIRST}: its pixels have 10 bits.* in episode 0"),
    "shorter than its rows": ({}, edited(same, 36), IntegrityError, rf"{FIRST}: {OWN} 3\.6000 s.* in episode 1"),
    "an episode lies past the end": ({}, begins(0, 0.7, 0, 100), IntegrityError, r"its video .* lies at .*100"),
    "a file begins past the end": (
        {},
        begins(0, 0.7, 100, 101.2),
        IntegrityError,
        f"{SECOND}: expected 12 frames.* in episode 2",
    ),
    "a frame of the next episode": (
        {},
        begins(0, 0.61, 0, 1.2),
        IntegrityError,
        rf"{FIRST}: expected 7 frames from 0\.0000 s to 0\.6100 s, found 6 .* in episode 0",
    ),
    "a frame of the episode before": (
        {},
        begins(0, 0.79, 0, 1.2),
        IntegrityError,
        "expected 7 frames .* found 8 .* in episode 0",
    ),
    "a frame before the first episode": (
        {},
        begins(0.1, 0.8, 0, 1.2),
        IntegrityError,
        "expected 7 frames .* in episode 0",
    ),
    "a frame of the next episode by time": (
        {},
        lambda root: (edited(same, 38)(root), begins(0, 0.64, 0, 1.2)(root)),
        IntegrityError,
        rf"{FIRST}: {OWN} 0\.6000 s.* in episode 0",
    ),
}


@pytest.mark.parametrize("video", ["keep", "frames"])
@pytest.mark.parametrize(("options", "change", "error", "match"), REFUSED.values(), ids=REFUSED.keys())
def test_odd_files_are_refused_and_nothing_is_left(tmp_path, home, options, change, error, match, video):
    root = write(tmp_path / "arm", **options)
    change(root)
    with pytest.raises(error, match=match):
        orlog.import_dataset(root, "lab/odd-v1", video=video)
    left = [path.name for path in home.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


def test_an_index_that_leads_past_the_end_is_refused(tmp_path):
    orlog.import_dataset(write(tmp_path / "arm"), "lab/odd-v1")
    (version,) = orlog.load_dataset("lab/odd-v1").selection().versions
    for row, match in (([1, 2**40, 0], "no undamaged frame"), ([3, 0, 0], "3.mp4: not in the manifest")):
        with pytest.raises(IntegrityError, match=match):
            version.videos.read(COLUMN, np.array([row]), None, lambda _: "frame 0 of episode 0")
