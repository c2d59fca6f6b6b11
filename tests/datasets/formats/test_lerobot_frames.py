"""Frames of LeRobotDatasets: clocks that drift, paths of info.json, and maps of depth."""

import fractions
import io

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from gymnasium.spaces import Box
from PIL import Image

import orlog
from orlog import OrlogError
from orlog.datasets.formats.array_files import PictureColumn
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.lerobot import format as lerobot
from orlog.datasets.formats.notes import sentences
from orlog.errors import IntegrityError, SchemaError
from orlog.loaders.transforms import depth_to_metres
from tests.datasets.formats.reading import read_files
from tests.datasets.formats.test_lerobot import CAMERA, LENGTHS, change_episodes, change_info, write, write_video
from tests.datasets.formats.test_lerobot_meaning import TABLE, change_table
from tests.datasets.formats.test_shared_reading import backwards
from tests.scheduling import leave_real_time

CLOCK = np.concatenate([np.arange(one) / 10 for one in LENGTHS])


def write_frames(path, shades, times):
    """Write a video of gray frames that are shown at some times, in seconds."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", 10, options={"preset": "ultrafast", "g": "2"})
        stream.height, stream.width, stream.pix_fmt = 24, 32, "yuv420p"
        stream.time_base = stream.codec_context.time_base = fractions.Fraction(1, 1000)
        for shade, time in zip(shades, times, strict=True):
            frame = av.VideoFrame.from_ndarray(np.full((24, 32, 3), shade, np.uint8), "rgb24")
            frame.pts, frame.time_base = round(1000 * time), fractions.Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def shades_of(dataset):
    """Return about which frame each row shows, but for final observations that are zeros."""
    return [
        np.round((one.observations["images.side"].mean((1, 2, 3)) - 10) / 20).astype(int).tolist() for one in dataset
    ]


READ = [[0, 1, 2, 3], [5, 6, 7, 8, 9, 0]]


def off(dataset, found):
    shown = shades_of(dataset)
    assert (shown[0], shown[1][:5]) == (READ[0], READ[1][:5])
    return " ".join(one for one in sentences(found.notes) if "lie up to" in one)


@pytest.mark.parametrize(
    ("drift", "told"), [(0.005, ""), (0.054, "lie up to 0.054 s off the timestamps of their rows in 1 file: each has")]
)
def test_a_clock_that_drifts_is_told_and_frames_are_paired_in_order(tmp_path, monkeypatch, drift, told):
    """As lerobot#3177: the begin of an episode in a file is a sum of rounded lengths."""
    monkeypatch.setattr(lerobot, "BLOCK_BYTES", 1)
    root = tmp_path / "arm"
    write(root)
    for name, values in (("from", [0.0, 0.4, drift]), ("to", [0.4, 0.5, drift + 0.5])):
        change_episodes(root, **{f"videos__{CAMERA}__{name}_timestamp": values})
    said = off(*read_files(lerobot.FORMAT, root, tmp_path / "store"))
    assert said.endswith("paired in order.") if told else not said
    assert told in said


@pytest.mark.parametrize("speed", [0.9, 3.0])
def test_timestamps_of_another_clock_are_paired_in_order_where_counts_agree(tmp_path, speed):
    root = tmp_path / "arm"
    write(root, "v2.1", timestamp=speed * CLOCK)
    assert "paired in order" in off(*read_files(lerobot.FORMAT, root, tmp_path / "store"))


def test_rows_take_the_next_frame_where_a_video_has_more_and_are_refused_where_it_lacks_one(tmp_path):
    root = tmp_path / "arm"
    write(root)
    video = root / f"videos/{CAMERA}/chunk-000/file-001.mp4"
    write_frames(video, [110, 130, 150, 170, 190, 250], [0.03, 0.13, 0.23, 0.33, 0.43, 0.53])
    said = off(*read_files(lerobot.FORMAT, root, tmp_path / "store"))
    assert said.endswith(
        "lie up to 0.03 s off the timestamps of their rows in 1 file: each row took the frame next to its time."
    )
    for times, message in (
        ([0, 0.1, 0.3, 0.4, 0.5, 0.6], r"expected a frame of its own at 0\.2000 s"),
        ([0, 0.1, 0.2, 0.3, 0.31, 0.32], r"expected a frame of its own at 0\.4000 s"),
    ):
        write_frames(video, [110] * 6, times)
        with pytest.raises(IntegrityError, match=message):
            read_files(lerobot.FORMAT, root, tmp_path / "refused")


@pytest.mark.parametrize("times", [[0, 0.1, 0.1, 0.2], [0, 0.2, 0.1, 0.3]])
def test_rows_whose_times_do_not_grow_are_refused(tmp_path, times):
    root = tmp_path / "arm"
    write(root, timestamp=np.concatenate([times, CLOCK[4:]]))
    with pytest.raises(OrlogError, match=r"at 0\.1000 s, the nearest .* in episode 0"):
        read_files(lerobot.FORMAT, root, tmp_path / "store")


def test_jobs_in_any_order_pair_frames_alike(tmp_path, monkeypatch):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "home"))
    root = tmp_path / "arm"
    write(root, "v2.1", timestamp=1.04 * CLOCK)
    orlog.import_dataset(root, "lab/alone-v1", video="frames")
    orlog.import_dataset(root, "lab/many-v1", execute=backwards, video="frames")
    ours, theirs = orlog.load_dataset("lab/alone-v1"), orlog.load_dataset("lab/many-v1")
    assert ours.manifest.description == theirs.manifest.description
    assert shades_of(ours) == shades_of(theirs)
    assert shades_of(ours)[0] == READ[0]


PATHS = (
    "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    "videos/chunk-{chunk_index:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    "films/{video_key}/{episode_index}.mp4",
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_all_fields_of_paths_are_known_in_all_versions(tmp_path, version, path):
    root = tmp_path / "arm"
    write(root, version)
    files = sorted((root / "videos").rglob("*.mp4"))
    if version == "v3.0" and "episode_index" in path:  # a file each, of which the metadata say nothing
        for number, file in enumerate([*files, root / "videos/third.mp4"]):
            write_video(file, sum(LENGTHS[:number]), LENGTHS[number])
        files.append(root / "videos/third.mp4")
        metadata = root / "meta/episodes/chunk-000/file-000.parquet"
        table = pq.read_table(metadata)
        pq.write_table(table.select(["episode_index", "length", "tasks"]), metadata)
    for number, file in enumerate(files):
        fields = dict.fromkeys(("file_index", "episode_index"), number)
        fields |= {"video_key": CAMERA, "chunk_index": 0, "episode_chunk": 0}
        target = root / path.format(**fields)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
    change_info(root, {"video_path": path})
    (root / "data/chunk-000").rename(root / "data/0")
    for number, file in enumerate(sorted((root / "data/0").iterdir())):
        file.rename(file.parent / f"table_{7 + 3 * number}.parquet")
    assert off(*read_files(lerobot.FORMAT, root, tmp_path / "store")) == ""


ODD_PATHS = (
    "videos/{video_key.__class__}/{episode_index}.mp4",
    "videos/{0}.mp4",
    "videos/{camera}/{episode_index:06d}.mp4",
    "videos/{video_key!r}/{episode_index:>{file_index}}.mp4",
    "videos/{episode_index:999999999d}.mp4",
    "videos/{video_key}/{episode_index.mp4",
    "/videos/{episode_index}.mp4",
    "videos/../../{episode_index}.mp4",
    7,
)


def test_paths_of_other_fields_are_refused(tmp_path):
    root = tmp_path / "arm"
    write(root, "v2.1")
    for number, path in enumerate(ODD_PATHS):
        change_info(root, {"video_path": path})
        with pytest.raises(SchemaError, match=r"video_path in info\.json is .* fields \{video_key"):
            read_files(lerobot.FORMAT, root, tmp_path / f"store{number}")


DEPTH = "observation.images.depth"
STEP = 500  # of the numbers of depth, from one frame to the next
LOG = {"video.depth_min": 0.5, "video.depth_max": 8.0, "video.shift": 1.5, "video.use_log": True}


def write_depth(root, codec="libx265", pixels="gray12le", shape=(64, 64, 1), **said):
    write(root, "v2.1")
    options = {"x265-params": "lossless=1:log-level=none"} if codec == "libx265" else {}
    for number in range(len(LENGTHS)):
        path = root / f"videos/chunk-000/{DEPTH}/episode_{number:06d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, 10, options=options)
            stream.height, stream.width, stream.pix_fmt = 64, 64, pixels
            for shade in range(8):  # x265 may fail to write gray videos of a frame or two
                frame = av.VideoFrame(64, 64, pixels)
                frame.pts, frame.time_base = shade, fractions.Fraction(1, 10)
                for plane in frame.planes:
                    values = np.arange(plane.buffer_size // 2) % 64 + STEP * shade
                    plane.update((values if codec == "libx265" else values // 4).astype("<u2").tobytes())
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    leave_real_time()
    feature = {"dtype": "video", "shape": [*shape], "info": {"is_depth_map": True, **said}}
    change_info(root, lambda info: info["features"].update({DEPTH: feature}))


def test_all_bits_of_depth_are_kept_and_become_metres(tmp_path):
    """The expected metres are `dequantize_depth` of LeRobot 0.6.1 with these parameters, of 0, 1000, 2000 and 4095."""
    root = tmp_path / "arm"
    write_depth(root, **LOG)
    dataset, found = read_files(lerobot.FORMAT, root, tmp_path / "store")
    assert dataset.observation_space["images.depth"] == Box(0, 65535, (64, 64, 1), np.uint16)
    for episode, rows in zip(dataset, (4, 5), strict=True):
        shown = episode.observations["images.depth"][:rows]
        expected = np.arange(64) + STEP * np.arange(rows)[:, None, None]
        np.testing.assert_array_equal(shown[..., 0], np.broadcast_to(expected, (rows, 64, 64)))
    parameters = dataset[0].metadata["depth/images.depth"]
    assert parameters.tolist() == [0.5, 8.0, 1.5, 1.0, 4095.0]
    assert dataset.roles["episodes/depth/images.depth"] == "depth"
    assert not any("depth" in one for one in sentences(found.notes))
    numbers = np.array([0, 1000, 2000, 4095], np.uint16)[:, None, None, None]
    metres = depth_to_metres(numbers, parameters)
    assert metres.dtype == np.float32
    np.testing.assert_allclose(metres.ravel(), [0.5, 1.4260299, 2.7808251, 8.0], rtol=1e-6)
    each = torch.from_numpy(np.stack([parameters, [0.5, 8.0, -0.5, 0.0, 4095.0]]))
    of_batch = depth_to_metres(torch.from_numpy(numbers[1:3].astype(np.int32)), each)
    np.testing.assert_allclose(of_batch.ravel(), [1.4260299, 0.5 + 7.5 * 2000 / 4095], rtol=1e-6)
    with pytest.raises(ValueError, match="expected five parameters"):
        depth_to_metres(numbers, parameters[:4])


def test_depth_without_parameters_is_told(tmp_path):
    write_depth(tmp_path / "arm", "libsvtav1", "yuv420p10le")
    dataset, found = read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "store")
    shown = dataset[0].observations["images.depth"][:4].astype(int)
    assert abs(shown.mean((1, 2, 3)) - (STEP * np.arange(4) + 31) / 4).max() < 20
    assert any(f"they are as stored: {DEPTH}." in one for one in sentences(found.notes))
    assert "depth/images.depth" not in dataset[0].metadata


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({**LOG, "video.depth_max": 0.5}, "the first must be below the second"),
        ({**LOG, "video.shift": -0.5}, "more than -shift"),
        ({**LOG, "video.depth_min": "near"}, "expected numbers of metres"),
        ({"is_depth_map": False}, r"12 bits a color \(gray12le\), and would be cut"),
    ],
)
def test_depth_of_other_parameters_and_more_bits_than_are_kept_are_refused(tmp_path, said, message):
    root = tmp_path / "arm"
    write_depth(root, **said)
    with pytest.raises(SchemaError, match=message):
        read_files(lerobot.FORMAT, root, tmp_path / "refused")


def test_depth_of_8_bits_is_refused_and_can_be_left_out(tmp_path):
    root = tmp_path / "arm"
    write_depth(root, **LOG)
    for file in (root / f"videos/chunk-000/{DEPTH}").iterdir():
        write_video(file, 0, 5, size=(64, 64))
    with pytest.raises(SchemaError, match="pixels are yuv420p, expected gray or YUV of 9 to 16 bits") as refused:
        read_files(lerobot.FORMAT, root, tmp_path / "refused")
    assert "no_video=True leaves all videos out" in str(refused.value)
    dataset, _ = read_files(lerobot.FORMAT, root, tmp_path / "none", Options(no_video=True))
    assert {*dataset.columns} & {"observations/images.side", "episodes/depth/images.depth"} == set()
    change_info(root, lambda info: info["features"].pop(DEPTH))
    dataset, found = read_files(lerobot.FORMAT, root, tmp_path / "alone")
    assert "images.side" in dataset[0].observations
    assert any(f"Not read: ./videos/chunk-#/{DEPTH}/episode_#.mp4 (3)" in one for one in sentences(found.notes))


def picture_of(pixels, kind):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return {"bytes": file.getvalue(), "path": "frame"}


@pytest.mark.parametrize(("kind", "dtype", "unit"), [("PNG", "u2", "mm"), ("TIFF", "u2", "mm"), ("TIFF", "f4", "m")])
def test_images_of_depth_keep_all_bits(tmp_path, kind, dtype, unit):
    root, name = tmp_path / "arm", "observation.images.top"
    write(root)
    rng = np.random.default_rng(0)
    frames = (rng.random((sum(LENGTHS), 6, 5)) * (60_000 if unit == "mm" else 8)).astype(dtype)
    said = {"is_depth_map": True, "depth_unit": unit}
    pictures = [picture_of(one, kind) for one in frames]
    change_table(root / TABLE, **{name: pa.array(pictures)})
    change_info(root, lambda info: info["features"][name].update(shape=[6, 5, 1], info=said))
    dataset, _ = read_files(lerobot.FORMAT, root, tmp_path / "store", Options(no_video=True))
    shown = dataset[0].observations["images.top"]
    np.testing.assert_array_equal(shown[..., 0], frames[:4])
    metres = depth_to_metres(shown, dataset[0].metadata["depth/images.top"])
    np.testing.assert_allclose(metres[..., 0], frames[:4] * (0.001 if unit == "mm" else 1), rtol=1e-6)
    for odd, message in (
        (np.zeros((6, 5), np.uint8), "expected depth that is .* as in the first row, found uint8"),
        (np.zeros((6, 5, 3), np.uint8), "expected depth of one channel, found RGB"),
    ):
        change_table(root / TABLE, **{name: pa.array([*pictures[:-1], picture_of(odd, kind)])})
        with pytest.raises(SchemaError, match=message):
            read_files(lerobot.FORMAT, root, tmp_path / "refused", Options(no_video=True))


def deep_png():
    file = io.BytesIO()
    Image.fromarray(np.full((6, 5), 4000, np.uint16)).save(file, "PNG")
    return file.getvalue()


def test_pictures_of_16_bits_are_refused(tmp_path):
    root, name = tmp_path / "arm", "observation.images.top"
    write(root)
    pictures = pa.array([{"bytes": deep_png(), "path": "x.png"}] * sum(LENGTHS))
    change_table(root / TABLE, **{name: pictures})
    change_info(root, lambda info: info["features"][name].update(shape=[6, 5, 1]))
    with pytest.raises(SchemaError, match=r"row 0: a PNG of 16 bits a color"):
        read_files(lerobot.FORMAT, root, tmp_path / "store")
    with pytest.raises(SchemaError, match="a PNG of 16 bits"):
        PictureColumn([deep_png()], "file")[0:1]
