"""Columns of videos: kept byte for byte, found by an index, checked before they are decoded."""

import fractions
import json
import os
import pickle

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import orlog
from orlog.datasets.home.registries import add_registry
from orlog.datasets.store import videos as stored_videos
from orlog.datasets.store.verify import check_where_it_is
from orlog.errors import IntegrityError, ManifestError, SchemaError
from orlog.manifests.manifest import manifest_from_text
from tests.command_line import orlog as run
from tests.datasets.store.independent_reader import Store
from tests.datasets.store.independent_videos import frames_of
from tests.scheduling import leave_real_time
from tests.servers import FileServer

LENGTHS = (7, 30, 12, 2)
CAMERA, COLUMN = "observation.image", "observations/image"
CODECS = {
    "h264": ("libx264", "yuv420p", {"g": "12", "bf": "3", "forced-idr": "1"}),
    "short": ("libx264", "yuv420p", {"g": "2", "bf": "0"}),
    "tiny groups": ("libx264", "yuv420p", {"g": "3", "bf": "2"}),
    "444": ("libx264", "yuv444p", {"g": "10"}),
    "av1": ("libsvtav1", "yuv420p", {"g": "9", "preset": "12"}),
    "mpeg4": ("mpeg4", "yuv420p", {"g": "8", "bf": "2", "b": "4000000"}),
    "hevc": ("libx265", "yuv420p", {"g": "11", "x265-params": "log-level=none:open-gop=1"}),
}


def write_video(
    path,
    count,
    kind="h264",
    *,
    size=(48, 64),
    first=0,
    times=None,
    keys=True,
    change=lambda _container, _stream: None,
    **options,
):
    """Write frames, each of which differs from all others everywhere."""
    codec, pixels, given = CODECS.get(kind, (kind, "yuv420p", {}))
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(1).integers(0, 80, (*size, 3), np.uint8)
    with av.open(str(path), "w", format="mp4", options=options.pop("muxer", {})) as container:
        stream = container.add_stream(codec, 10, options=given | options.pop("codec", {}))
        stream.height, stream.width, stream.pix_fmt = *size, options.pop("pixels", pixels)
        if times is not None:
            stream.time_base = stream.codec_context.time_base = fractions.Fraction(1, 1000)
        change(container, stream)
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(np.roll(noise, number, 1) + np.uint8(3 * (first + number)), "rgb24")
            if times is not None:
                frame.pts, frame.time_base = round(times[number] * 1000), fractions.Fraction(1, 1000)
            if keys and first + number in np.cumsum((0, *LENGTHS)):  # as LeRobot, which encodes each episode alone
                frame.pict_type = av.video.frame.PictureType.I
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    leave_real_time()


def write(root, kind="h264", *, files=(2, 2), rate=10, done=None, **options):
    """Write a LeRobotDataset of episodes whose frames lie one after the other in files of so many episodes each.

    `done` says of each episode whether its task ended.
    """
    count = sum(LENGTHS)
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    step = np.concatenate([np.arange(one) for one in LENGTHS])
    number = np.arange(count)
    arrays = {
        "observation.state": (number[:, None] * [1.0, 2.0]).astype("f4"),
        "action": number[:, None].astype("f4"),
        "timestamp": (step / rate).astype("f4"),
        "frame_index": step,
        "episode_index": episode,
        "index": number,
        "task_index": number * 0,
    }
    if done is not None:
        arrays["next.done"] = np.array(done)[episode] & (step == np.array(LENGTHS)[episode] - 1)
    features = {
        name: {"dtype": str(values.dtype), "shape": list(values.shape[1:]) or [1], "names": None}
        for name, values in arrays.items()
    }
    features[CAMERA] = {"dtype": "video", "shape": [48, 64, 3], "names": None}
    rows, begun = [], 0
    for file, several in enumerate(files):
        lengths = LENGTHS[len(rows) :][:several]
        write_video(root / f"videos/{CAMERA}/chunk-000/file-{file:03d}.mp4", sum(lengths), kind, first=begun, **options)
        begun += sum(lengths)
        starts = np.cumsum([0, *lengths]) / rate
        for length, start, end in zip(lengths, starts, starts[1:], strict=False):
            place = {"chunk_index": 0, "file_index": file, "from_timestamp": start, "to_timestamp": end}
            body = {"episode_index": len(rows), "length": length, "tasks": ["pick"]}
            rows.append(body | {f"videos/{CAMERA}/{name}": one for name, one in place.items()})
    for folder in ("data/chunk-000", "meta/episodes/chunk-000"):
        (root / folder).mkdir(parents=True)
    table = {name: values.tolist() for name, values in arrays.items()}
    pq.write_table(pa.table(table), root / "data/chunk-000/file-000.parquet")
    pq.write_table(pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    info = {"codebase_version": "v3.0", "fps": rate, "features": features, "total_episodes": len(LENGTHS)}
    info |= {
        "total_frames": count,
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


@pytest.fixture
def kept(tmp_path):
    write(tmp_path / "arm")
    orlog.import_dataset(tmp_path / "arm", "lab/pick-v1")
    return orlog.load_dataset("lab/pick-v1")


def in_sequence(root):
    """Return all frames of all files, decoded one after the other by PyAV alone."""
    frames = []
    for file in sorted((root / "videos").rglob("*.mp4")):
        with av.open(str(file)) as container:
            frames += [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.array(frames)


@pytest.mark.parametrize("kind", CODECS)
def test_any_frame_in_any_order_is_that_of_a_decoder_that_reads_all(tmp_path, kind):
    root = write(tmp_path / "arm", kind)
    folder = orlog.import_dataset(root, "lab/pick-v1")
    dataset = orlog.load_dataset("lab/pick-v1")
    expected = in_sequence(root)
    assert len({frame.tobytes() for frame in expected}) == sum(LENGTHS)
    rng = np.random.default_rng(0)
    for count in (1, 2, 7, 60):
        rows = rng.integers(0, len(expected), count)
        np.testing.assert_array_equal(dataset.rows(COLUMN, rows), expected[rows])
    for row in rng.permutation(len(expected)).tolist():  # one at a time, by the decoders that are open
        np.testing.assert_array_equal(dataset.rows(COLUMN, np.array([row]))[0], expected[row])
    np.testing.assert_array_equal(dataset.column(COLUMN), expected)
    np.testing.assert_array_equal(dataset[1].observations["image"][10:20], expected[17:27])
    sources = sorted((root / "videos").rglob("*.mp4"))
    assert [(folder / f"videos/{COLUMN}/{one}.mp4").read_bytes() for one in (1, 2)] == [
        file.read_bytes() for file in sources
    ]


@pytest.mark.parametrize("kind", ["h264", "short", "tiny groups"])
def test_a_reader_written_from_the_document_gives_the_same_frames(tmp_path, kind):
    store = Store(orlog.import_dataset(write(tmp_path / "arm", kind, files=(1, 2, 1)), "lab/pick-v1"))
    expected = orlog.load_dataset("lab/pick-v1").column(COLUMN)
    frames = frames_of(store, COLUMN)
    assert (frames.dtype, frames.tobytes()) == (expected.dtype, expected.tobytes())
    assert {*store.columns[COLUMN][:, 0].tolist()} == {1, 2, 3}
    store.columns[COLUMN][0, 1] += 1
    with pytest.raises(ValueError, match=r"1\.mp4: row 0: no frame"):
        frames_of(store, COLUMN)


def test_kept_and_decoded_imports_hold_the_same_values(tmp_path, kept):
    orlog.import_dataset(tmp_path / "arm", "lab/frames-v1", video="frames")
    frames = orlog.load_dataset("lab/frames-v1")
    assert (kept.columns, kept.observation_space) == (frames.columns, frames.observation_space)
    assert (frames.videos, kept.videos) == (set(), {COLUMN})
    for name in kept.columns:
        np.testing.assert_array_equal(kept.column(name), frames.column(name), name)
    with pytest.raises(ValueError, match="expected keep or frames"):
        orlog.import_dataset(tmp_path / "arm", "lab/other-v1", video="pixels")
    with pytest.raises(SchemaError, match="video=frames"):
        orlog.import_dataset(tmp_path / "arm", "lab/other-v1", flip="observation/image")


def test_saved_versions_keep_videos_or_hold_pixels(tmp_path, kept):
    expected = in_sequence(tmp_path / "arm")
    orlog.save_dataset(kept, "lab/copy-v1")
    copy = orlog.load_dataset("lab/copy-v1")
    assert copy.manifest.columns == kept.manifest.columns
    assert copy.manifest.videos == kept.manifest.videos
    later = orlog.load_dataset(orlog.save_dataset(kept[[3, 2]], "lab/later-v1"))  # which needs the second file alone
    assert later.manifest.videos[COLUMN].files == 1
    np.testing.assert_array_equal(later.column(COLUMN), np.concatenate([expected[49:], expected[37:49]]))
    both = orlog.save_dataset(orlog.combine_datasets([later, kept[:1]]), "lab/both-v1")
    np.testing.assert_array_equal(orlog.load_dataset(both)[2].observations["image"], expected[:7])
    assert run("save", "lab/pick-v1", "lab/frames-v1", "--video", "frames").returncode == 0
    frames = orlog.load_dataset("lab/frames-v1")
    assert not frames.videos
    np.testing.assert_array_equal(frames.column(COLUMN), expected)
    assert "--video frames" in run("save", "lab/pick-v1", str(tmp_path / "other"), "--container", "hdf5").stderr
    with pytest.raises(SchemaError, match="--video frames"):
        orlog.DatasetWriter.append("lab/pick-v1")


@pytest.mark.parametrize("where", ["ram", "mmap"])
def test_batches_decode_what_they_hold(tmp_path, kept, where):
    expected = in_sequence(tmp_path / "arm")
    arrays = orlog.load_arrays(kept, where=where)
    for one in (arrays, pickle.loads(pickle.dumps(arrays))):
        batch = next(iter(orlog.windows(one, 32, seed=0, observations=(-1, 0), actions=range(16))))
        images, numbers = batch.observations["image"], batch.observations["state"][..., 0].long()
        assert (images.shape, images.dtype) == ((32, 2, 48, 64, 3), torch.uint8)
        assert torch.equal(images, torch.from_numpy(expected[numbers.numpy()]))
    streamed = next(iter(orlog.transitions(kept, 8, seed=0, stream=True)))
    numbers = streamed.observations["state"][..., 0].long().numpy()
    assert np.array_equal(streamed.observations["image"].numpy(), expected[numbers])


def test_views_and_layers_read_frames(tmp_path, kept):
    expected = in_sequence(tmp_path / "arm")
    view = kept[[2, 0]]
    np.testing.assert_array_equal(view.column(COLUMN), np.concatenate([expected[37:49], expected[:7]]))
    np.testing.assert_array_equal(view[1].observations["image"][[3, 1]], expected[[3, 1]])
    valued = kept.with_columns("infos/value", lambda episode: np.arange(len(episode)) / 2, role="value")
    np.testing.assert_array_equal(valued[3].observations["image"], expected[49:])


@pytest.mark.parametrize("flips", [200, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_no_flipped_bit_gives_a_wrong_frame(tmp_path, monkeypatch, flips):
    """Small ranges, so that frames beside the damage are read too."""
    monkeypatch.setattr(stored_videos, "RANGE_BYTES", 2**12)
    root = write(tmp_path / "arm", codec={"qp": "0", "g": "6"})
    folder = orlog.import_dataset(root, "lab/pick-v1")
    expected, groups = in_sequence(root), np.array_split(np.arange(37), 6)
    file = folder / f"videos/{COLUMN}/1.mp4"
    whole, rng = file.read_bytes(), np.random.default_rng(flips)
    assert len(whole) > 10 * stored_videos.RANGE_BYTES
    wrong, right, refused = 0, 0, []
    for place in rng.integers(0, 8 * len(whole), flips).tolist():
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        stored_videos._idle.clear()
        opened = orlog.load_dataset("lab/pick-v1")
        before = len(refused)
        for rows in groups:
            try:
                same = np.array_equal(opened.rows(COLUMN, rows), expected[rows])
                wrong, right = wrong + (not same), right + same
            except IntegrityError as error:
                refused.append(str(error))
        assert len(refused) > before
    assert (wrong, right + len(refused)) == (0, 6 * flips)
    assert right > flips // 2
    assert all("1.mp4, bytes from" in one and "orlog verify" in one for one in refused)
    file.write_bytes(whole)
    stored_videos._idle.clear()
    np.testing.assert_array_equal(orlog.load_dataset("lab/pick-v1").column(COLUMN), expected)


def test_show_and_verify_say_what_is_kept(kept):
    shown = run("show", "lab/pick-v1").stdout
    assert "h264 (yuv420p), 64 x 48, 10 frames per second, 51 frames with" in " ".join(shown.split())
    assert run("verify", "lab/pick-v1", "--values").returncode == 0
    file = kept.folder / f"videos/{COLUMN}/2.mp4"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    said = run("verify", "lab/pick-v1")
    assert said.returncode == 3
    assert f"column {COLUMN}, episodes 2 to 3" in said.stderr


def test_ranges_are_fetched_and_checked_where_videos_are_read_in_place(tmp_path, kept, monkeypatch):
    expected = in_sequence(tmp_path / "arm")
    orlog.publish_dataset(kept.folder, str(tmp_path / "registry"))
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "reader"))
    with FileServer(tmp_path / "registry") as server:
        add_registry("far", server.url)
        dataset = orlog.load_dataset("lab/pick-v1", in_place=True)
        np.testing.assert_array_equal(dataset.rows(COLUMN, np.array([40, 3, 20])), expected[[40, 3, 20]])
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(dataset))[3].observations["image"], expected[49:])
        version = dataset.selection().versions[0]
        checked = check_where_it_is(version)
        assert checked.problems == []
        assert checked.chunks == sum(held for held, _ in version.chunks_of_shards().values()) + 2
        assert run("download", "lab/pick-v1", "--episodes", "3:4").returncode == 0
        files = sorted(path.name for path in (tmp_path / "reader").rglob("*.mp4"))
        assert files == ["2.mp4"]
        (file,) = (tmp_path / "registry").rglob("1.mp4")
        file.write_bytes(file.read_bytes()[:-1] + b"x")
        stored_videos._idle.clear()
        with pytest.raises(IntegrityError, match="frame 3 of episode 0"):
            dataset.rows(COLUMN, np.array([3]))
        assert [problem.file for problem in check_where_it_is(version).problems] == [f"videos/{COLUMN}/1.mp4"]


def test_open_decoders_are_bounded(tmp_path, monkeypatch):
    root = write(tmp_path / "arm", files=(1, 1, 1, 1))
    orlog.import_dataset(root, "lab/pick-v1")
    monkeypatch.setattr(stored_videos, "MOST_OPEN", 2)
    dataset = orlog.load_dataset("lab/pick-v1")
    np.testing.assert_array_equal(dataset.column(COLUMN), in_sequence(root))
    assert 0 < len(stored_videos._idle) <= 2
    monkeypatch.setattr(stored_videos, "MOST_OPEN_BYTES", 0)
    dataset.column(COLUMN)
    assert not stored_videos._idle


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_workers_that_are_forked_after_frames_were_read_come_to_an_end(tmp_path, monkeypatch):
    orlog.import_dataset(write(tmp_path / "arm", files=(1, 1, 1, 1)), "lab/pick-v1")
    dataset = orlog.load_dataset("lab/pick-v1")
    expected = dataset.column(COLUMN)
    assert len(stored_videos._idle) >= 4
    monkeypatch.setattr(stored_videos, "MOST_OPEN", 1)
    stream = orlog.windows(orlog.load_arrays(dataset, where="mmap"), 16, seed=0, observations=(0,))
    loader = DataLoader(stream, batch_size=None, num_workers=1, timeout=60, multiprocessing_context="fork")
    batch = next(iter(loader))
    numbers = batch.observations["state"][..., 0].long().numpy()
    np.testing.assert_array_equal(batch.observations["image"].numpy(), expected[numbers])


def add_track(container, _):
    stream = container.add_stream("mpeg4", 10)
    stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
    container.mux(stream.encode(av.VideoFrame(64, 48, "yuv420p")))


@pytest.mark.parametrize("codebase", ["v3.0", "v2.1"])
def test_exports_copy_videos_and_encode_only_where_asked(tmp_path, kept, codebase):
    said = run("export", "lab/pick-v1", "lerobot", str(tmp_path / "out"), "--codebase", codebase)
    assert said.returncode == 0, said.stderr
    assert "Videos are copied as they are" in " ".join(said.stderr.split())
    sources, copies = (sorted((tmp_path / one / "videos").rglob("*.mp4")) for one in ("arm", "out"))
    if codebase == "v3.0":
        assert [file.read_bytes() for file in copies] == [file.read_bytes() for file in sources]
    else:
        assert len(copies) == len(LENGTHS)
    expected = in_sequence(tmp_path / "arm")
    orlog.import_dataset(tmp_path / "out", "lab/back-v1")
    back = orlog.load_dataset("lab/back-v1")
    for episode, first in zip(back, np.cumsum((0, *LENGTHS)), strict=False):
        frames = np.asarray(episode.observations["image"])
        np.testing.assert_array_equal(frames, expected[first : first + len(frames)])
    orlog.export_dataset(kept, tmp_path / "again", to="lerobot", video=True, codebase=codebase)
    again = sorted((tmp_path / "again/videos").rglob("*.mp4"))
    assert [file.read_bytes() for file in again] != [file.read_bytes() for file in copies]


def test_what_cannot_be_copied_is_not_exported_without_being_encoded(tmp_path):
    write(tmp_path / "arm", "short", keys=False)
    orlog.import_dataset(tmp_path / "arm", "lab/pick-v1")
    dataset = orlog.load_dataset("lab/pick-v1")
    with pytest.raises(SchemaError, match=r"episode 1, observation.image: no key frame begins it"):
        orlog.export_dataset(dataset, tmp_path / "out", to="lerobot", codebase="v2.1")
    with pytest.raises(SchemaError, match=r"episode 1.* lies before the one that it follows"):
        orlog.export_dataset(dataset[[1, 0]], tmp_path / "out", to="lerobot")
    with pytest.raises(SchemaError, match="are not those of one video at 7 frames"):
        orlog.export_dataset(dataset, tmp_path / "out", to="lerobot", rate=7)


def refused(root, error, match):
    with pytest.raises(error, match=match):
        orlog.import_dataset(root, "lab/odd-v1")


def test_what_no_decoder_would_give_exactly_is_refused(tmp_path):
    root = write(tmp_path / "turned", change=lambda _, stream: stream.set_display_rotation(90))
    refused(root, SchemaError, "file-000.mp4: expected upright frames .* turned by")
    root = write(tmp_path / "deep", pixels="yuv420p10le")
    refused(root, SchemaError, "10 bits a color")
    root = write(tmp_path / "tracks", change=add_track)
    refused(root, SchemaError, "expected one video, found 2")
    root = write(tmp_path / "cut")
    file = root / f"videos/{CAMERA}/chunk-000/file-001.mp4"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])  # the table of frames stands at the end
    refused(root, IntegrityError, r"file-001.mp4: cannot be decoded.* episode 2")
    write_video(file, 9)
    refused(root, IntegrityError, r"file-001.mp4: expected a frame of its own at 0.9000 s")
    file.write_bytes(b"")
    refused(root, IntegrityError, "file-001.mp4: cannot be decoded")


@pytest.mark.parametrize(
    "muxer", [{"movflags": "faststart"}, {"movflags": "frag_keyframe+empty_moov"}, {"use_editlist": "0"}]
)
def test_tables_of_frames_may_lie_anywhere(tmp_path, muxer):
    root = write(tmp_path / "arm", muxer=muxer)
    orlog.import_dataset(root, "lab/pick-v1")
    rows = np.random.default_rng(0).permutation(sum(LENGTHS))
    np.testing.assert_array_equal(orlog.load_dataset("lab/pick-v1").rows(COLUMN, rows), in_sequence(root)[rows])


def test_manifests_that_contradict_themselves_are_refused(kept):
    body = json.loads(kept.manifest.to_json())
    video = body["videos"][COLUMN]

    def refused_manifest(match, **change):
        changed = {name: value for name, value in (body | change).items() if name != "digest"}
        with pytest.raises(ManifestError, match=match):
            manifest_from_text(json.dumps(changed), "here")

    refused_manifest("belongs to no column of videos", videos={})
    refused_manifest("3.mp4 is missing", videos={COLUMN: video | {"files": 3}})
    refused_manifest("videos of 'actions'", videos={"actions": video})
    refused_manifest("2.mp4 is missing", objects=[one for one in body["objects"] if not one["path"].endswith("/2.mp4")])
