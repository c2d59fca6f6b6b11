"""LeRobotDataset folders of versions 2.1 and 3.0, and some that do not agree with themselves."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from orlog.datasets.formats import lerobot
from orlog.datasets.formats.formats import choose_format
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats.reading import damaged, read_files, refuses_or_reads
from tests.levels import scaled

LENGTHS = (4, 1, 5)


def write(root: Path, version: str = "v3.0", **change: Any) -> dict[str, Any]:
    """Write a dataset of three episodes, the last of which ended its task; return its arrays."""
    shutil.rmtree(root, ignore_errors=True)
    rng = np.random.default_rng(0)
    count = sum(LENGTHS)
    episode = np.repeat(np.arange(3), LENGTHS)
    frame = np.concatenate([np.arange(one) for one in LENGTHS])
    arrays: dict[str, Any] = {
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

    def png(pixels: np.ndarray) -> dict[str, Any]:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return {"bytes": file.getvalue(), "path": "frame.png"}

    def column(values: np.ndarray) -> Any:
        if values.ndim == 4:
            return pa.array([png(one) for one in values])
        return pa.array(values.tolist() if values.ndim == 2 else values)

    features = {
        name: {"dtype": str(values.dtype), "shape": list(values.shape[1:]) or [1], "names": None}
        for name, values in arrays.items()
    }
    features["observation.images.top"]["dtype"] = "image"
    features["observation.images.side"] = {"dtype": "video", "shape": [6, 5, 3], "names": None}
    table = pa.table({name: column(values) for name, values in arrays.items()})
    folder = root / "data" / "chunk-000"
    folder.mkdir(parents=True)
    rows = [
        {"episode_index": n, "length": one, "tasks": [f"do {n}"]} for n, one in enumerate(LENGTHS)
    ]
    if version == "v3.0":
        pq.write_table(table, folder / "file-000.parquet", row_group_size=3)
        (root / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
        pq.write_table(
            pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet"
        )
    else:
        for number in range(3):
            part = table.filter(pa.array(episode == number))
            pq.write_table(part, folder / f"episode_{number:06d}.parquet")
        (root / "meta").mkdir()
        lines = [json.dumps(row) for row in rows]
        (root / "meta" / "episodes.jsonl").write_text("\n".join(lines), "utf-8")
    info = {
        "codebase_version": version,
        "robot_type": "arm",
        "fps": 10,
        "total_episodes": 3,
        "total_frames": count,
        "features": features,
    }
    (root / "meta" / "info.json").write_text(json.dumps(info), "utf-8")
    return arrays


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("block_bytes", [1, 2**24])
def test_episodes_are_read_frame_by_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, block_bytes: int
) -> None:
    monkeypatch.setattr(lerobot, "BLOCK_BYTES", block_bytes)
    arrays = write(tmp_path / "arm", version)
    assert choose_format([tmp_path / "arm"], None, "lab/x").name == "lerobot"
    dataset, found = read_files(lerobot.FORMAT, tmp_path / "arm", tmp_path / "store")
    # The second episode has one frame, whose outcome is not known.
    assert dataset.episode_lengths.tolist() == [3, 5]
    assert (found.terminated, found.truncated) == (1, 1)
    for episode, first, length, rows in zip(dataset, (0, 5), (3, 5), (4, 5), strict=True):
        for part, name in (
            ("state", "observation.state"),
            ("images.top", "observation.images.top"),
        ):
            np.testing.assert_array_equal(
                episode.observations[part][:rows], arrays[name][first : first + rows]
            )
        np.testing.assert_array_equal(episode.actions, arrays["action"][first : first + length])
        np.testing.assert_array_equal(
            episode.rewards, arrays["next.reward"][first : first + length]
        )
        np.testing.assert_array_equal(
            episode.infos["force"], arrays["force"][first : first + length]
        )
    assert [one.metadata["task"] for one in dataset] == ["do 0", "do 2"]
    assert [bool(one.metadata["final_observation_missing"]) for one in dataset] == [False, True]
    for text in ("videos: observation.images.side", "2 last rows", "1 episodes that ended"):
        assert any(text in doubt for doubt in found.doubts)


def test_what_does_not_agree_is_refused(tmp_path: Path) -> None:
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
        ({"codebase_version": "v1.6"}, SchemaError, "LeRobotDataset 'v1.6' is not read"),
        ({"total_frames": 11}, IntegrityError, "info.json says total_frames 11"),
        (
            {"features": {"action": {"dtype": "float32", "shape": [2]}}},
            SchemaError,
            "expected features",
        ),
    ):
        write(root)
        info = json.loads((root / "meta/info.json").read_text("utf-8"))
        (root / "meta/info.json").write_text(json.dumps({**info, **change}), "utf-8")
        with pytest.raises(error, match=message):
            read_files(lerobot.FORMAT, root, tmp_path / "store")


@pytest.mark.parametrize("name", ["data/chunk-000/file-000.parquet", "meta/info.json"])
def test_damaged_files_are_refused_or_read(tmp_path: Path, name: str) -> None:
    write(tmp_path / "arm")
    file = tmp_path / "arm" / name
    for number, data in enumerate(damaged(file.read_bytes(), scaled(30))):
        file.write_bytes(data)
        folder = tmp_path / str(number)
        refuses_or_reads(lambda f=folder: read_files(lerobot.FORMAT, tmp_path / "arm", f))  # type: ignore[misc]
