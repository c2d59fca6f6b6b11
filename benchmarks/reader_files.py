"""The files that `benchmarks/readers.py` reads: the same steps in every format."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np

import orlog
from benchmarks.store import halfcheetah_like
from orlog.datasets.formats.formats import Format, formats
from orlog.datasets.formats.safe_reading import SUMS_FILE

EPISODES, LENGTH = 100, 1000
FRAMES, SIDE = 2000, 96


def write_all(scratch: Path) -> dict[str, list[Path]]:
    """Write the steps in every format; return what a user would name of each."""
    dataset = recorded()
    found = {}
    for name, one in formats().items():
        if one.open is not None and one.write is not None:
            folder = orlog.export_dataset(dataset, scratch / name, to=name, lossy=True)
            found[name] = given_of(one, folder)
    (plain,) = found["d4rl"]
    found["d4rl, not packed"] = [copied(plain, scratch / "plain.hdf5", {})]
    found["dsrl"] = [copied(plain, scratch / "dsrl.hdf5", {"compression": "gzip"}, costs=True)]
    found["npz, not packed"] = [scratch / "plain.npz"]
    with np.load(found["npz"][0]) as arrays:
        np.savez(scratch / "plain.npz", allow_pickle=False, **arrays)
    found["table, csv"] = [as_csv(found["parquet"][0], scratch / "table.csv")]
    with np.load(found["npz"][0]) as arrays:
        found |= {
            "imitation": [as_trajectories(arrays, scratch / "imitation")],
            "minari_arrow": [as_minari_arrow(arrays, scratch / "arrow")],
            "neorl2": [as_neorl2(arrays, scratch / "neorl2.parquet")],
            "ogmarl": [as_vault(arrays, scratch / "ogmarl")],
        }
    found["lerobot, video"] = [as_video(found["lerobot"][0], scratch / "video")]
    return dict(sorted(found.items()))


def recorded() -> orlog.Dataset:
    """Return the steps as a dataset."""
    box = gymnasium.spaces.Box
    arrays = halfcheetah_like(EPISODES, LENGTH)
    with orlog.DatasetWriter(
        "bench/halfcheetah-v0",
        observation_space=box(-np.inf, np.inf, (17,), np.float32),
        action_space=box(-np.inf, np.inf, (6,), np.float32),
        reward_dtype=np.float32,
    ) as writer:
        for number in range(EPISODES):
            rows = slice(number * LENGTH, (number + 1) * LENGTH)
            first = number * (LENGTH + 1)
            ends = np.arange(LENGTH) == LENGTH - 1
            writer.add_episode(
                orlog.Episode(
                    observations=arrays["observations"][first : first + LENGTH + 1],
                    actions=arrays["actions"][rows],
                    rewards=arrays["rewards"][rows],
                    terminations=np.zeros(LENGTH, bool),
                    truncations=ends,
                )
            )
    return orlog.load_dataset("bench/halfcheetah-v0")


def given_of(one: Format, folder: Path) -> list[Path]:
    """Return what a user would name: the folder that holds all, or the files."""
    while len(inside := [path for path in folder.iterdir() if path.name != SUMS_FILE]) == 1:
        if not inside[0].is_dir():
            break
        folder = inside[0]
    return [folder] if "" in one.extensions else sorted(inside)


def copied(file: Path, to: Path, options: dict[str, Any], *, costs: bool = False) -> Path:
    """Write the arrays of an HDF5 file again."""
    with h5py.File(file) as source, h5py.File(to, "w") as target:
        for key in source:
            target.create_dataset(key, data=source[key][()], **options)
        if costs:
            target.create_dataset("costs", data=source["rewards"][()], **options)
    return to


def as_csv(file: Path, to: Path) -> Path:
    """Write a Parquet table as CSV, a column for each number."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    columns: dict[str, Any] = {}
    for name, column in zip(*_named(pyarrow.parquet.read_table(file)), strict=True):
        values = np.stack(column.to_numpy())
        if values.ndim == 1:
            columns[name] = values
        else:
            columns |= {f"{name}_{part}": values[:, part] for part in range(values.shape[1])}
    pyarrow.csv.write_csv(pa.table(columns), to)
    return to


def as_neorl2(arrays: Mapping[str, np.ndarray], to: Path) -> Path:
    """Write a table of NeoRL-2, with time limits that only its observations tell."""
    import pyarrow as pa
    import pyarrow.parquet

    names = ("observations", "actions", "rewards", "next_observations", "terminals")
    columns = {name: _column(arrays[name]) for name in names}
    pyarrow.parquet.write_table(pa.table(columns), to)
    return to


def as_trajectories(arrays: Mapping[str, np.ndarray], to: Path) -> Path:
    """Write a folder as Hugging Face's datasets save imitation's trajectories."""
    import pyarrow as pa

    to.mkdir()
    rows = []
    for episode in range(EPISODES):
        steps = slice(episode * LENGTH, (episode + 1) * LENGTH)
        seen = arrays["observations"][steps], arrays["next_observations"][steps][-1:]
        rows.append(
            {
                "obs": np.concatenate(seen).tolist(),
                "acts": arrays["actions"][steps].tolist(),
                "rews": arrays["rewards"][steps].tolist(),
                "infos": ["{}"] * LENGTH,
                "terminal": False,
            }
        )
    numbers = pa.list_(pa.float32())
    kinds = {"obs": pa.list_(numbers), "acts": pa.list_(numbers), "rews": numbers}
    table = pa.table({name: pa.array([row[name] for row in rows], kinds.get(name)) for name in rows[0]})
    with pa.ipc.new_stream(str(to / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=10)
    state: dict[str, Any] = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "0"}
    state |= {f"_{name}": None for name in ("format_columns", "format_type", "split")}
    state |= {"_format_kwargs": {}, "_output_all_columns": False}
    (to / "state.json").write_text(json.dumps(state), "utf-8")
    (to / "dataset_info.json").write_text("{}", "utf-8")
    return to


def as_minari_arrow(arrays: Mapping[str, np.ndarray], to: Path) -> Path:
    """Write a folder by Minari itself, in its other layout."""
    import minari
    from minari.data_collector import EpisodeBuffer

    buffers = []
    for episode in range(EPISODES):
        steps = slice(episode * LENGTH, (episode + 1) * LENGTH)
        seen = arrays["observations"][steps], arrays["next_observations"][steps][-1:]
        buffers.append(
            EpisodeBuffer(
                id=episode,
                observations=np.concatenate(seen),
                actions=arrays["actions"][steps],
                rewards=arrays["rewards"][steps].tolist(),
                terminations=[False] * LENGTH,
                truncations=[*[False] * (LENGTH - 1), True],
                infos={},
            )
        )
    box = gymnasium.spaces.Box
    os.environ["MINARI_DATASETS_PATH"] = str(to)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it wants an author, a link to the code ..
        minari.create_dataset_from_buffers(
            "bench/cheetah-v0",
            buffers,
            observation_space=box(-np.inf, np.inf, (17,), np.float32),
            action_space=box(-np.inf, np.inf, (6,), np.float32),
            data_format="arrow",
        )
    return to / "bench" / "cheetah-v0"


def as_vault(arrays: Mapping[str, np.ndarray], to: Path) -> Path:
    """Write a vault of one agent, as flashbax lays it out."""
    import tensorstore

    to.mkdir()
    names = {"observations": "observations", "actions": "actions", "rewards": "rewards"}
    names |= {"terminals": "terminals", "truncations": "timeouts"}
    stored = {f"{name}.": arrays[key][None, :, None] for name, key in names.items()}
    stored["vault_index"] = np.array([EPISODES * LENGTH], "i4")
    for name, values in stored.items():
        base = {"driver": "file", "path": f"{to}/"}
        spec = {
            "driver": "zarr",
            "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"},
            "metadata": {
                "compressor": {"id": "gzip"},
                "chunks": [1, min(LENGTH, len(values[0])), *values.shape[2:]] if values.ndim > 1 else [1],
            },
        }
        array = tensorstore.open(spec, dtype=values.dtype, shape=values.shape, create=True).result()
        array.write(values).result()
    said = {"version": 1.2, "structure_shape": dict.fromkeys(names, "")}
    (to / "metadata.json").write_text(json.dumps(said))
    return to


def as_video(folder: Path, to: Path) -> Path:
    """Write the first steps of a LeRobotDataset again, with a video beside them."""
    import av
    import pyarrow as pa
    import pyarrow.parquet

    camera = "observation.images.side"
    shutil.copytree(folder, to)
    (to / "meta" / "orlog.json").unlink()
    info = json.loads((to / "meta" / "info.json").read_text())
    info["features"][camera] = {"dtype": "video", "shape": [SIDE, SIDE, 3], "names": None}
    info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    info |= {"fps": 10, "total_frames": FRAMES, "total_episodes": FRAMES // (LENGTH + 1)}
    (episodes,) = (to / "meta" / "episodes").rglob("*.parquet")
    (data,) = (to / "data").rglob("*.parquet")
    rows: list[dict[str, Any]] = []
    first = 0
    for row in pyarrow.parquet.read_table(episodes).to_pylist():
        if first + row["length"] <= FRAMES:
            length = row["length"]
            place: dict[str, Any] = {"chunk_index": 0, "file_index": 0}
            place |= {"from_timestamp": first / 10, "to_timestamp": (first + length) / 10}
            own = {"episode_index": row["episode_index"], "length": length, "tasks": ["walk"]}
            rows.append(own | {f"videos/{camera}/{name}": one for name, one in place.items()})
            first += length
    info |= {"total_frames": first, "total_episodes": len(rows)}
    (to / "meta" / "info.json").write_text(json.dumps(info))
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), episodes)
    table = pyarrow.parquet.read_table(data).slice(0, first)
    times = table["frame_index"].to_numpy() / 10
    table = table.set_column(table.schema.get_field_index("timestamp"), "timestamp", pa.array(times.astype("f4")))
    pyarrow.parquet.write_table(table, data)
    path = to / f"videos/{camera}/chunk-000/file-000.mp4"
    path.parent.mkdir(parents=True)
    rng = np.random.default_rng(0)
    small = rng.integers(0, 255, (64, 12, 12, 3), np.uint8).repeat(8, axis=1).repeat(8, axis=2)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", 10, options={"g": "2"})  # as LeRobot encodes
        stream.height, stream.width, stream.pix_fmt = SIDE, SIDE, "yuv420p"
        for number in range(first):
            frame = av.VideoFrame.from_ndarray(small[number // 8 % len(small)], "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return to


def _column(values: np.ndarray) -> Any:
    import pyarrow as pa

    if values.ndim == 1:
        return pa.array(values)
    starts = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(starts, pa.array(values.reshape(-1)))


def _named(table: Any) -> tuple[list[str], list[Any]]:
    return table.column_names, table.columns
