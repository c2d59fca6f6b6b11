"""The page `docs/folders.md`: each of its lines works as written, from a folder with such files."""

import csv
import json
import re
import shlex
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zarr

from tests.command_line import orlog
from tests.datasets.formats import (
    test_bags,
    test_conventions,
    test_layouts,
    test_lerobot,
    test_minari_arrow,
    test_rlds,
    test_rllib,
    test_success,
    test_torchrl,
)

PAGE = Path(__file__).parents[2] / "docs" / "folders.md"
LINES = [
    line.partition("  #")[0].strip()
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    if not kind
    for line in block.splitlines()
]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Make the files that the page names, in the current folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    with h5py.File("my.h5", "w") as file, h5py.File("unknown.h5", "w") as unknown:
        for number in range(3):
            file[f"run{number}/joints"] = rng.random((9, 3), np.float32)
            file[f"run{number}/speeds"] = rng.random((9, 3), np.float32)
            file[f"run{number}/seen/camera"] = rng.integers(0, 256, (9, 16, 16, 3), np.uint8)
            file[f"run{number}/seen/depth"] = rng.random((9, 4), np.float32)
            file[f"run{number}/torque"] = rng.random((9, 2), np.float32)
            file[f"run{number}/r"] = rng.random(9)
            unknown[f"run{number}/angles"] = rng.random((9, 3))
            unknown[f"run{number}/torque"] = rng.random((9, 2), np.float32)
    for number in range(2):
        Path(f"takes/{number}").mkdir(parents=True)
        with h5py.File(f"takes/{number}/trajectory.h5", "w") as file:
            file["joints"], file["torque"] = rng.random((9, 3)), rng.random((9, 2))
    test_success.write(Path("isaac_demos.hdf5"))
    Path("recordings").mkdir()
    Path("logs").mkdir()
    for number in range(2):
        with h5py.File(f"recordings/{number}.h5", "w") as file:
            file["joints"], file["torque"] = rng.random((9, 3)), rng.random((9, 2))
            file["stop"] = np.arange(9) == 8
        flat = {"a": rng.random((8, 1)), "r": rng.random(8), "done": np.arange(8) == 7}
        np.savez(f"logs/{number}.npz", obs=rng.random((9, 3)), **flat)
    done = np.arange(20) % 5 == 4
    np.savez("all.npz", obs=rng.random((20, 3)), a=rng.random((20, 1)), r=np.ones(20), done=done)
    mask = np.arange(20) < np.arange(15, 21)[:, None]
    np.savez("padded.npz", obs=rng.random((6, 20, 4)), actions=rng.random((6, 20, 1)), mask=mask)
    Path("arrays").mkdir()
    with h5py.File("numbered.h5", "w") as file:
        for number in range(3):
            file[f"states_{number}"], file[f"actions_{number}"] = (rng.random((9, 3)), np.ones((9, 2)))
    for name, width in (("obs", 3), ("actions", 2)):
        np.save(f"arrays/{name}.npy", rng.random((9, width)))
    for name, action, ends in (("replay", "action", "episode_ends"), ("all", "move", "ends")):
        group = zarr.open_group(f"{name}.zarr", mode="w", zarr_format=2)
        group["data/state"], group[f"data/{action}"] = rng.random((30, 4)), rng.random((30, 2))
        group[f"meta/{ends}"] = np.array([10, 30])
    with Path("clicks.csv").open("w", newline="") as file:
        clicks = csv.writer(file)
        clicks.writerow(["row", "item", "click", "propensity", "feature_0", "feature_1"])
        clicks.writerows([number, number % 3, number % 2, 0.4, *rng.random(2)] for number in range(12))
    test_lerobot.write(Path("my_lerobot_set"))
    test_lerobot.write(Path("openpi_libero"))
    test_lerobot.rename(Path("openpi_libero"))
    test_rlds.write(Path("bridge/1.0.0"), test_rlds.SAMPLE)
    test_rllib.write_steps(Path("offline/run-000001-00001/0.parquet"), ["e7", "0b"])
    test_conventions.write_libero(Path("libero_demo.hdf5"))
    test_layouts.write_aloha(Path("aloha"))
    test_torchrl.write(Path("buffer"), test_torchrl.arrays())
    test_layouts.write_dqn_replay(Path("dqn_logs"))
    test_minari_arrow.odd(tmp_path / "minari", "arrow").rename("my_minari_set")
    test_bags.write_mcap(tmp_path / "drive")[0].rename("drive.mcap")
    columns = {name: rng.random(20) for name in ("obs_0", "obs_1", "u", "r")}
    table = pa.table({"run": np.repeat(["a", "b"], 10), **columns})
    pq.write_table(table, "logs.parquet")
    Path("parts/more").mkdir(parents=True)
    pq.write_table(table[:10], "parts/part-0.parquet")
    pq.write_table(table[10:], "parts/more/part-1.parquet")
    pyarrow.feather.write_feather(table, "logs.arrow")
    with Path("logs.csv").open("w", newline="") as file, Path("logs.jsonl").open("w") as lines:
        writer = csv.DictWriter(file, table.column_names)
        writer.writeheader()
        for row in table.to_pylist():
            writer.writerow(row)
            obs = [row["obs_0"], row["obs_1"]]
            lines.write(json.dumps({"run": row["run"], "obs": obs, "u": row["u"], "r": 1.0}) + "\n")


@pytest.mark.usefixtures("files")
def test_a_lone_arrow_file_becomes_a_table_as_the_page_says():
    (code,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    exec(code, {})
    line = next(one for one in LINES if one.startswith("orlog import logs.parquet"))
    words = shlex.split(line.replace("logs.parquet", "from_arrow.parquet"))[1:]
    assert orlog(*words).returncode == 0


@pytest.mark.usefixtures("files")
def test_every_line_of_the_page_works_as_written():
    assert len(LINES) > 10
    for line in LINES:
        words = [
            path
            for word in shlex.split(line)[1:]
            for path in (sorted(map(str, Path().glob(word))) if word.endswith(("*.h5", "*.npz")) else [word])
        ]
        ended = orlog(*words)
        if words[1] == "unknown.h5":
            assert all(text in ended.stderr for text in ("angles", "torque", "--map observation="))
        elif words[1] == "drive.mcap" and "--map" not in words:
            assert ended.returncode != 0
            assert all(text in ended.stderr for text in ("/camera", "/cmd_vel", "--rate"))
        else:
            assert ended.returncode == 0, f"{line}: {ended.stderr}"
