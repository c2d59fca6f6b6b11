"""LeRobotDataset folders of versions 2.1 and 3.0, and some that do not agree with themselves."""

import io
import json
import re
import shutil

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors.numpy import save_file

import orlog
from orlog import export_dataset
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.formats import choose_format
from orlog.datasets.formats.lerobot import format as lerobot
from orlog.datasets.formats.lerobot import metadata as lerobot_metadata
from orlog.datasets.formats.notes import sentences
from orlog.errors import IntegrityError, ManifestError, SchemaError
from tests.command_line import orlog as run
from tests.datasets.formats.reading import read_files

LENGTHS = (4, 1, 5)
CAMERA = "observation.images.side"


def write_video(path, first, count, *, size=(24, 32)):
    """Write a video whose frames get brighter by 20 from one to the next."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", 10, options={"preset": "ultrafast", "g": "2"})
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        for number in range(first, first + count):
            pixels = np.full((*size, 3), 20 * number + 10, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode(None))


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": "frame.png"}


def write(root, version="v3.0", **change):
    """Write a dataset of three episodes, the last of which ended its task; return its arrays."""
    shutil.rmtree(root, ignore_errors=True)
    rng = np.random.default_rng(0)
    count = sum(LENGTHS)
    episode = np.repeat(np.arange(3), LENGTHS)
    frame = np.concatenate([np.arange(one) for one in LENGTHS])
    arrays = {
        "observation.state": rng.normal(size=(count, 3)).astype("f4"),
        "observation.images.top": rng.integers(0, 255, (count, 6, 5, 3)).astype("u1"),
        "action": rng.normal(size=(count, 2)).astype("f4"),
        "next.reward": rng.normal(size=count).astype("f4"),
        "next.done": (episode == 2) & (frame == 4),
        "force": rng.normal(size=count),
        "timestamp": (frame / 10).astype("f4"),
        "frame_index": frame,
        "episode_index": episode,
        "index": np.arange(count),
        "task_index": np.zeros(count, int),
        **change,
    }

    def column(values):
        if values.ndim == 4:
            return pa.array([png(one) for one in values])
        return pa.array(values.tolist() if values.ndim == 2 else values)

    features = {
        name: {"dtype": str(values.dtype), "shape": list(values.shape[1:]) or [1], "names": None}
        for name, values in arrays.items()
    }
    features["observation.images.top"]["dtype"] = "image"
    features[CAMERA] = {"dtype": "video", "shape": [24, 32, 3], "names": None}
    table = pa.table({name: column(values) for name, values in arrays.items()})
    folder = root / "data" / "chunk-000"
    folder.mkdir(parents=True)
    rows = [{"episode_index": n, "length": one, "tasks": [f"do {n}"]} for n, one in enumerate(LENGTHS)]
    if version == "v3.0":
        for number, row in enumerate(rows):  # two episodes in one video, and one in another
            start = 0.4 * (number == 1)
            video = (0, number // 2, start, start + LENGTHS[number] / 10)
            names = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
            row |= {f"videos/{CAMERA}/{name}": one for name, one in zip(names, video, strict=True)}
        write_video(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", 0, 5)
        write_video(root / f"videos/{CAMERA}/chunk-000/file-001.mp4", 5, 5)
        pq.write_table(table, folder / "file-000.parquet", row_group_size=3)
        (root / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    else:
        for number in range(3):
            part = table.filter(pa.array(episode == number))
            first, path = sum(LENGTHS[:number]), f"{CAMERA}/episode_{number:06d}.mp4"
            write_video(root / "videos/chunk-000" / path, first, LENGTHS[number])
            pq.write_table(part, folder / f"episode_{number:06d}.parquet")
        (root / "meta").mkdir()
        lines = [json.dumps(row) for row in rows]
        (root / "meta" / "episodes.jsonl").write_text("\n".join(lines), "utf-8")
    info = {
        "codebase_version": version,
        "robot_type": "arm",
        "fps": 10,
        "video_path": lerobot_metadata.VIDEO_PATHS["v3.0" if version == "v3.0" else "v2.1"],
        "total_episodes": 3,
        "total_frames": count,
        "features": features,
    }
    (root / "meta" / "info.json").write_text(json.dumps(info), "utf-8")
    return arrays


def change_info(root, change):
    path = root / "meta/info.json"
    info = json.loads(path.read_text("utf-8"))
    if callable(change):
        change(info)
    else:
        info |= change
    path.write_text(json.dumps(info), "utf-8")


def change_feature(root, name, **values):
    change_info(root, lambda info: info["features"].setdefault(name, {}).update(values))


def change_episodes(root, **columns):
    """Give the metadata of the episodes of a set of version 3.0 other columns."""
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    for name, values in columns.items():
        plain = name.replace("__", "/")
        kept = table.drop([plain]) if plain in table.column_names else table
        table = kept.append_column(plain, pa.array(values))
    pq.write_table(table, path)


@pytest.mark.parametrize(("version", "block_bytes"), [("v2.1", 1), ("v3.0", 2**24)])
def test_episodes_are_read_frame_by_frame(tmp_path, monkeypatch, version, block_bytes):
    monkeypatch.setattr(lerobot, "BLOCK_BYTES", block_bytes)
    arrays = write(tmp_path / "arm", version)
    assert choose_format([tmp_path / "arm"], None, "lab/x").name == "lerobot"
    dataset, found = read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "store")
    # The second episode has one frame, whose outcome is not known.
    assert dataset.episode_lengths.tolist() == [3, 5]
    assert (found.terminated, found.truncated) == (1, 1)
    for episode, first, length, rows in zip(dataset, (0, 5), (3, 5), (4, 5), strict=True):
        for part, name in (("state", "observation.state"), ("images.top", "observation.images.top")):
            np.testing.assert_array_equal(episode.observations[part][:rows], arrays[name][first : first + rows])
        frames = episode.observations["images.side"][:rows]
        shown = 20 * np.arange(first, first + rows) + 10
        assert abs(frames.mean((1, 2, 3)) - shown).max() < 3
        np.testing.assert_array_equal(episode.actions, arrays["action"][first : first + length])
        np.testing.assert_array_equal(episode.rewards, arrays["next.reward"][first : first + length])
        np.testing.assert_array_equal(episode.infos["force"], arrays["force"][first : first + length])
    assert [one.metadata["task"] for one in dataset] == ["do 0", "do 2"]
    assert [bool(one.metadata["final_observation_missing"]) for one in dataset] == [False, True]
    for text in (f"not what was recorded: {CAMERA}", "2 last rows", "1 episode that ended"):
        assert any(text in doubt for doubt in sentences(found.notes))


def test_what_does_not_agree_is_refused(tmp_path):
    root = tmp_path / "arm"
    frames = np.array([0, 1, 2, 3, 0, 0, 1, 3, 2, 4])
    write(root, frame_index=frames)
    with pytest.raises(IntegrityError, match="frame_index of row 7 is 3, and the lengths"):
        read_files(lerobot.FORMAT, root, tmp_path / "store")
    write(root, "v2.1")
    (root / "data/chunk-000/episode_000002.parquet").unlink()
    with pytest.raises(IntegrityError, match="hold 5 frames, and the metadata says 10"):
        read_files(lerobot.FORMAT, root, tmp_path / "store")
    for change, error, message in (
        ({"codebase_version": "v4.0"}, SchemaError, "LeRobotDataset v4.0 is not read"),
        ({"total_frames": 11}, IntegrityError, "info.json says total_frames 11"),
        ({"features": ["action"]}, SchemaError, "Expected `object`, got `array`"),
    ):
        write(root)
        change_info(root, change)
        with pytest.raises(error, match=message):
            read_files(lerobot.FORMAT, root, tmp_path / "store")


@pytest.mark.parametrize(("row", "has_done"), [(3, True), (9, False)])
def test_a_flag_that_is_nan_is_no_end(tmp_path, row, has_done):
    rows = np.arange(sum(LENGTHS))
    changes = {"next.truncated": np.zeros(len(rows))}
    if has_done:
        changes |= {"next.done": rows == 9}
    for name in changes:
        write(tmp_path / "arm", **(changes | {name: np.where(rows == row, np.nan, 0)}))
        with pytest.raises(SchemaError, match=rf"{name}: expected 0 or 1, found nan at row {row}\."):
            read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "store")


def test_a_reward_that_is_no_number_names_its_row(tmp_path):
    root = tmp_path / "arm"
    write(root)
    file = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    place = table.column_names.index("next.reward")
    for rewards, message in (
        ([[0.0]] * 6 + [[0.0, 1.0]] * 4, "next.reward holds lists .* at row 6"),
        ([[0.0, 1.0]] * 10, r"next.reward: expected one number a row, found float64 \(2,\) from row 0"),
        (["a"] * 10, "next.reward: expected one number a row, found object"),
    ):
        pq.write_table(table.set_column(place, "next.reward", pa.array(rewards)), file)
        with pytest.raises(SchemaError, match=message):
            read_files(lerobot.FORMAT, root, tmp_path / "store")


def test_numbers_that_are_not_what_is_said_are_told_or_refused(tmp_path):
    root = tmp_path / "arm"
    state = np.random.default_rng(0).normal(size=(sum(LENGTHS), 3))

    def told(dtype, **change):
        write(root, **change)
        for name in change:
            change_feature(root, name, dtype=dtype)
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        _, found = read_files(lerobot.FORMAT, root, tmp_path / "store")
        return [doubt for doubt in sentences(found.notes) if "rounded" in doubt]

    assert told("float64", **{"observation.state": state}) == []
    (said,) = told("float32", **{"observation.state": state})
    assert said.endswith("to the dtype that info.json says: observation.state.")
    assert told("float32", action=np.ones((len(state), 2), int)) == []
    with pytest.raises(SchemaError, match="action: holds 16777217 at row 0, which float32"):
        told("float32", action=np.full((len(state), 2), 2**24 + 1))
    with pytest.raises(SchemaError, match=r"next.reward: holds 1e.300 as float64, which float32"):
        told("float32", **{"next.reward": np.full(len(state), 1e300)})


def test_videos_that_do_not_agree_are_refused(tmp_path):
    root = tmp_path / "arm"
    write(root)
    video = root / f"videos/{CAMERA}/chunk-000/file-001.mp4"
    good = video.read_bytes()

    def refused(message):
        with pytest.raises((SchemaError, IntegrityError), match=message):
            read_files(lerobot.FORMAT, root, tmp_path / "store")
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        video.write_bytes(good)

    write_video(video, 5, 4)
    refused(r"file-001.mp4: expected a frame of its own at 0.4000 s")
    write_video(video, 5, 5, size=(48, 32))
    refused(r"expected frames of \(24, 32, 3\), found pixels of 48 x 32")
    video.unlink()
    refused("file-001.mp4: is missing")
    video.rename(root / "elsewhere.mp4")
    video.symlink_to(root / "elsewhere.mp4")
    refused("is a link")
    video.unlink()
    video.write_bytes(good)
    place = f"videos__{CAMERA}__"
    change_episodes(root, **{f"{place}to_timestamp": [0.4, 0.5, 0.9]})
    refused("and its frames take 0.500 s")
    change_episodes(root, **{f"{place}file_index": [0, 0, 0]})
    change_episodes(root, **{f"{place}from_timestamp": [0.0, 0.4, 0.1]})
    change_episodes(root, **{f"{place}to_timestamp": [0.4, 0.5, 0.6]})
    refused("episode 2 lies before the one that it follows")


def test_frames_that_belong_to_no_row_are_told(tmp_path):
    write(tmp_path / "arm")
    write_video(tmp_path / f"arm/videos/{CAMERA}/chunk-000/file-001.mp4", 5, 7)
    _, found = read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "store")
    assert any("2 frames of videos that belong to no row" in doubt for doubt in sentences(found.notes))


def test_videos_can_be_left_out(tmp_path):
    write(tmp_path / "arm")
    shutil.rmtree(tmp_path / "arm/videos")
    options = Options(no_video=True)
    dataset, found = read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "store", options)
    assert {"images.top", "state"} <= set(dataset[0].observations)
    assert "images.side" not in dataset[0].observations
    assert f"Left out, as asked for: the videos {CAMERA}." in sentences(found.notes)


RENAMED = {
    "observation.state": "state",
    "observation.images.top": "image",
    "action": "actions",
    "next.reward": "r",
    "next.done": "finished",
}
OWN_NAMES = {
    "observation/state": "state",
    "observation/images.top": "image",
    f"observation/{CAMERA.removeprefix('observation.')}": CAMERA,
    "action": "actions",
    "reward": "r",
    "terminated": "finished",
}


def rename(root):
    """Give features names of their own, as openpi's converter does."""
    for path in (root / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        names = [RENAMED.get(name, name) for name in table.column_names]
        pq.write_table(table.rename_columns(names), path)
    change_info(
        root,
        lambda info: info.update(features={RENAMED.get(name, name): one for name, one in info["features"].items()}),
    )


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_features_of_other_names_are_what_the_user_says(tmp_path, version):
    write(tmp_path / "arm", version)
    expected, _ = read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "expected")
    rename(tmp_path / "arm")
    with pytest.raises(SchemaError, match="Say which is which") as refused:
        read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "refused")
    assert "state  (3,) float32" in str(refused.value)
    chosen = choose_format([tmp_path / "arm"], None, "lab/x", is_mapped=True)
    assert chosen is lerobot.FORMAT
    dataset, _ = read_files(chosen, tmp_path / "arm", tmp_path / "store", Options(columns=OWN_NAMES))
    for one, other in zip(dataset, expected, strict=True):
        for part in one.observations:
            np.testing.assert_array_equal(one.observations[part], other.observations[part])
        np.testing.assert_array_equal(one.actions, other.actions)
        np.testing.assert_array_equal(one.rewards, other.rewards)
        np.testing.assert_array_equal(one.terminations, other.terminations)


def test_a_feature_alone_is_the_whole_observation(tmp_path):
    arrays = write(tmp_path / "arm")
    said = {"observation": "force", "action": "action"}
    dataset, _ = read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "store", Options(columns=said))
    np.testing.assert_array_equal(dataset[0].observations[:, 0], arrays["force"][:4])
    assert "observation.state" in dataset[0].infos


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"observation": "observation.*", "action": "action"}, "expected one name"),
        ({"observation": "stat", "action": "action"}, "no column 'stat'"),
        ({"observatoin": "action"}, "did you mean observation"),
        ({"observation": "force", "observation/b": "observation.state"}, "Say which"),
    ],
)
def test_names_that_do_not_fit_are_refused(tmp_path, said, text):
    write(tmp_path / "arm")
    with pytest.raises(SchemaError, match=text):
        read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "store", Options(columns=said))


@pytest.mark.parametrize("version", ["v2.0", "v3.0"])
def test_a_dataset_that_does_not_say_its_version_is_known_by_its_files(tmp_path, version):
    write(tmp_path / "arm", version)
    expected, _ = read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "expected")
    change_info(tmp_path / "arm", lambda info: info.pop("codebase_version"))
    assert choose_format([tmp_path / "arm"], None, "lab/x") is lerobot.FORMAT
    dataset, found = read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "store")
    for one, other in zip(dataset, expected, strict=True):
        np.testing.assert_array_equal(one.actions, other.actions)
    assert any(f"taken to be {version}" in one for one in sentences(found.notes))


def notes_of(root, store):
    return "\n".join(sentences(read_files(lerobot.FORMAT, root, store)[1].notes))


def test_timestamps_and_indices_of_other_rows_are_named_by_episode_and_step(tmp_path):
    root = tmp_path / "arm"
    clock = np.array([0, 1, 2, 3, 0, 0, 1, 2, 3, 4]) / 10
    clock[[2, 8]] += (0.006, -0.004)  # less than the frames of a video may be off
    index = np.array([0, 1, 2, 3, 4, 0, 1, 2, 3, 4])
    write(root, timestamp=clock.astype("f4"), index=index)
    told = notes_of(root, tmp_path / "store")
    assert (
        "Timestamps leave the clock of 10 frames a second, by up to 0.006 s: episode 0, step 2; episode 2, "
        "step 3." in told
    )
    assert "index does not count the rows on: episode 2, step 0." in told


@pytest.mark.parametrize("block", [1, 3, 100])
def test_all_timestamps_that_are_off_are_named_and_no_other(tmp_path, monkeypatch, block):
    monkeypatch.setattr(lerobot, "BLOCK_BYTES", 600 * block)
    clock = np.array([0, 1, 2, 3, 0, 0, 1, 2, 3, 4]) / 10
    clock[[1, 3, 4]] += (0.05, 0.2, 0.3)
    clock[6:9] += 0.05  # from a lost frame on until the clock was set
    write(tmp_path / "arm", timestamp=clock)
    options = Options(no_video=True)
    _, found = read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "store", options)
    told = " ".join(sentences(found.notes))
    places = "episode 0, step 1; episode 0, step 3; episode 1, step 0; episode 2, steps 1 to 3."
    assert f"by up to 0.3 s: {places}" in told


def test_metadata_of_other_rows_are_named_by_episode(tmp_path):
    root = tmp_path / "arm"
    write(root)
    change_episodes(
        root,
        dataset_from_index=[0, 4, 4],
        dataset_to_index=[4, 5, 9],
        data__chunk_index=[0, 0, 0],
        data__file_index=[0, 1, 0],
    )
    told = notes_of(root, tmp_path / "store")
    assert "dataset_from_index and dataset_to_index are those of other rows: episode 2;" in told
    assert "data/chunk_index and data/file_index name another table: episode 1;" in told


def test_statistics_of_other_rows_are_named(tmp_path):
    root = tmp_path / "arm"
    arrays = write(root)
    whole = {"action": {"min": arrays["action"].min(0).tolist(), "count": [10]}}
    statistics = root / "meta" / "stats.json"
    statistics.write_text(json.dumps(whole), "utf-8")
    assert "tatistics" not in notes_of(root, tmp_path / "right")
    whole["action"]["min"][1] -= 0.5
    statistics.write_text(json.dumps(whole), "utf-8")
    told = notes_of(root, tmp_path / "wrong")
    assert "meta/stats.json is of other rows: action reach" in told
    statistics.write_text('{"action": {"min": "a"}}', "utf-8")
    assert "The statistics cannot be read" in notes_of(root, tmp_path / "broken")


def stats_of(rows):
    marks = {f"q{level:02d}": np.quantile(rows, level / 100, axis=0) for level in (1, 10, 50, 90, 99)}
    return {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0), **marks}


def test_quantiles_that_more_steps_leave_than_they_say_are_named(tmp_path):
    """As in lerobot#4156; the outermost quantiles of episodes, LeRobot's rule since, are bounds and stay quiet."""
    root, store = tmp_path / "arm", tmp_path / "store"
    force = np.where(np.arange(10) < 5, 0.1, 1.0) * np.arange(10)
    episodes = [stats_of(force[start:stop]) for start, stop in ((0, 4), (4, 5), (5, 10))]
    whole = stats_of(force)
    means = {key: np.mean([one[key] for one in episodes]) for key in whole}
    outer = {key: (np.min if key <= "q50" else np.max)([one[key] for one in episodes]) for key in whole}
    limits = {key: whole[key] for key in ("min", "max")}
    for claim, message in (
        (whole, ""),
        (outer | limits, ""),
        (means | limits, "than it says: force[0] q01 is 1.814, and 50.0% lie below; statistics"),
        (whole | {"q99": 6.5}, "than it says: force[0] q99 is 6.5, and 30.0% lie above; statistics"),
        (whole | {"q99": [1, 2]}, ""),
    ):
        write(root, force=force)
        body = {"force": {key: np.ravel(value).tolist() for key, value in claim.items()}}
        (root / "meta/stats.json").write_text(json.dumps(body), "utf-8")
        told = notes_of(root, store)
        assert message in told if message else "tatistics" not in told
        shutil.rmtree(store)


def test_statistics_of_other_images_are_named(tmp_path, monkeypatch):
    """As in lerobot#3682, whose deviation is 0.006."""
    root, store = tmp_path / "arm", tmp_path / "store"
    pixels = write(root)["observation.images.top"] / 255
    right = {"mean": pixels.mean((0, 1, 2)), "std": pixels.std((0, 1, 2))}
    for change, message in (
        ({}, ""),
        ({"std": [0.006] * 3}, "images.top std is 0.006, 0.006, 0.006, and that of its frames 0.2"),
        ({"mean": 255 * right["mean"]}, "images.top mean is 1"),
    ):
        body = {"observation.images.top": {k: np.reshape(v, (3, 1, 1)).tolist() for k, v in (right | change).items()}}
        (root / "meta/stats.json").write_text(json.dumps(body), "utf-8")
        told = notes_of(root, store)
        assert message in told if message else "tatistics" not in told
        shutil.rmtree(store)
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "home"))
    orlog.import_dataset(root, "lab/odd-v1")  # whose videos are kept
    (finding,) = (one for one in orlog.audit("lab/odd-v1").findings if one.check == "statistics")
    assert finding.severity == "note"
    assert "meta/stats.json has statistics of other images, in [0, 1]: observation.images.top mean" in finding.text


def test_a_row_without_a_frame_names_its_episode(tmp_path):
    root = tmp_path / "arm"
    write(root)
    change_episodes(root, **{f"videos__{CAMERA}__from_timestamp": [0.0, 0.3, 0.0]})
    change_episodes(root, **{f"videos__{CAMERA}__to_timestamp": [0.4, 0.4, 0.5]})
    with pytest.raises(IntegrityError, match=r"expected 4 frames from 0\.0000 s to 0\.3000 s, found 3 .* in episode 0"):
        read_files(lerobot.FORMAT, root, tmp_path / "store")


def test_sound_sets_of_many_shapes_stay_quiet(tmp_path):
    """Clean sets: nothing is said of clocks, indices, places or statistics."""
    for number in range(4):
        root = tmp_path / f"set-{number}"
        rng = np.random.default_rng(number)
        count = sum(LENGTHS)
        write(
            root,
            "v3.0" if number % 2 else "v2.1",
            action=(10.0 ** rng.integers(-6, 6, 2) * rng.normal(size=(count, 2))).astype("f4"),
            force=np.where(rng.random(count) < 0.2, np.nan, rng.normal(size=count)),
        )
        told = notes_of(root, tmp_path / f"store-{number}")
        assert not re.search("clock|count the rows|other rows|another table|tatistics", told)


def test_names_of_joints_are_kept_and_written_back(tmp_path, monkeypatch):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "home"))
    root = tmp_path / "arm"
    write(root)
    for name, names in (
        ("observation.state", {"motors": ["shoulder", "elbow", "wrist"]}),
        ("action", {"grip": 1, "turn": 0}),
        ("force", ["one", "too many"]),
    ):
        change_feature(root, name, names=names)
    expected = {"observations/state": ["shoulder", "elbow", "wrist"], "actions": ["turn", "grip"]}

    orlog.import_dataset(root, "lab/arm-v1", no_video=True)
    ds = orlog.load_dataset("lab/arm-v1")
    assert ds.dimension_names == expected
    assert ds.select_columns([]).dimension_names == expected
    saved = orlog.load_dataset(orlog.save_dataset(ds[:1], "lab/first-v1"))
    assert saved.dimension_names == expected
    export_dataset(saved, tmp_path / "again", to="lerobot")
    orlog.import_dataset(tmp_path / "again", "lab/again-v1")
    assert orlog.load_dataset("lab/again-v1").dimension_names == expected
    shown = run("show", "lab/arm-v1")
    assert "shoulder, elbow, wrist" in shown.stdout
    assert "actions[grip]" in run("show", "lab/arm-v1", "--episode", "0").stdout
    body = json.loads((saved.folder / "manifest.json").read_text("utf-8"))
    body["dimension_names"]["actions"].append("third")
    (saved.folder / "manifest.json").write_text(json.dumps(body), "utf-8")
    with pytest.raises(ManifestError, match="gives 3 names to column 'actions', whose rows"):
        orlog.load_dataset(saved.folder)


def write_first(root, ending=".arrow", **change):
    """Write a dataset of version 1, of two episodes whose last two rows are done; return its columns."""
    shutil.rmtree(root, ignore_errors=True)
    rng = np.random.default_rng(0)
    frame = np.array([0, 1, 2, 3, 0, 1, 2])
    episode = np.repeat([0, 1], (4, 3))
    files = [f"videos/{CAMERA}_episode_{one:06d}.mp4" for one in (0, 1)]
    for file, first, count in ((files[0], 0, 4), (files[1], 4, 3)):
        write_video(root / file, first, count)
    columns = {
        CAMERA: [{"path": files[one], "timestamp": time / 10} for one, time in zip(episode, frame, strict=True)],
        "observation.images.top": [png(one) for one in rng.integers(0, 255, (7, 6, 5, 3)).astype("u1")],
        "observation.state": rng.normal(size=(7, 2)).astype("f4").tolist(),
        "observation.keypoints": rng.normal(size=(7, 4, 2)).tolist(),
        "action": rng.normal(size=(7, 2)).tolist(),
        "episode_index": episode,
        "frame_index": frame,
        "timestamp": (frame / 10).astype("f4"),
        "next.reward": np.arange(7).astype("f4"),
        "next.done": [False, False, True, True, False, True, True],
        "index": np.arange(7),
        **change,
    }
    table = pa.table(columns)
    if ending == ".arrow":
        (root / "train").mkdir()
        with (
            pa.OSFile(str(root / "train/data-00000-of-00001.arrow"), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as stream,
        ):
            stream.write_table(table, max_chunksize=5)
    else:
        (root / "data").mkdir()
        pq.write_table(table, root / "data/train-00000-of-00001.parquet")
    (root / "meta_data").mkdir()
    info = {"codebase_version": "v1.6", "fps": 10, "video": True}
    (root / "meta_data/info.json").write_text(json.dumps(info), "utf-8")
    index = {"from": np.array([0, 4]), "to": np.array([4, 7])}
    save_file(index, root / "meta_data/episode_data_index.safetensors")
    return columns


@pytest.mark.parametrize("ending", [".arrow", ".parquet"])
def test_version_1_is_read(tmp_path, ending):
    columns = write_first(tmp_path / "arm", ending)
    assert choose_format([tmp_path / "arm"], None, "lab/x").name == "lerobot"
    dataset, found = read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "store")
    assert dataset.episode_lengths.tolist() == [3, 2]
    assert (found.terminated, found.truncated) == (2, 0)
    assert any(note.code == "final_rows" for note in found.notes)
    for episode, first, rows in zip(dataset, (0, 4), (4, 3), strict=True):
        here = slice(first, first + rows)
        for part in ("state", "keypoints"):
            expected = np.array(columns[f"observation.{part}"][here])
            np.testing.assert_array_equal(episode.observations[part], expected)
        shown = 20 * np.arange(first, first + rows) + 10
        frames = episode.observations["images.side"]
        assert abs(frames.mean((1, 2, 3)) - shown).max() < 3
        assert [png(one) for one in episode.observations["images.top"]] == columns["observation.images.top"][here]
        np.testing.assert_array_equal(episode.rewards, np.arange(first, first + rows - 1))
        assert "task" not in episode.metadata


def test_version_1_that_does_not_agree_is_refused(tmp_path):
    root = tmp_path / "arm"
    good = write_first(root)
    for change, message in (
        ({CAMERA: [*good[CAMERA][:3], *good[CAMERA][:4]]}, "expected videos/.*000001.mp4, found"),
        ({"frame_index": np.array([0, 1, 2, 4, 0, 1, 2])}, "frame_index of row 3 is 4"),
        ({"timestamp": good["timestamp"], CAMERA: [{"path": "/etc/passwd"}] * 7}, "holds struct<path: string>"),
    ):
        write_first(root, **change)
        with pytest.raises((SchemaError, IntegrityError), match=message):
            read_files(lerobot.FORMAT, root, tmp_path / "store")
    write_first(root)
    for index, message in (
        ({"from": np.array([0, 4]), "to": np.array([4, 8])}, "hold 7 frames, and the metadata"),
        ({"from": np.array([0, 5]), "to": np.array([4, 7])}, "does not give the rows of one"),
        ({"from": np.array([0, 4])}, "does not give the rows of one"),
    ):
        save_file(index, root / "meta_data/episode_data_index.safetensors")
        with pytest.raises((SchemaError, IntegrityError), match=message):
            read_files(lerobot.FORMAT, root, tmp_path / "store")
