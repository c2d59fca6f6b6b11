from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from orlog.algos.iql import IQLConfig
from orlog.datasets.dataset import Dataset
from orlog.errors import IntegrityError, NotFoundError
from orlog.runs import evaluate_run, read_metrics, read_run, train_run

TRAIN = """
import sys, pathlib, orlog
from orlog.runs import train_run
ds = orlog.load_dataset(sys.argv[1])
train_run(sys.argv[2], ds, pathlib.Path(sys.argv[3]), seed=0, steps=200, evaluations=0,
          resume=len(sys.argv) > 4, settings={"hidden": [16, 16], "batch_size": 32})
"""


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "checkpoint.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param("bc", marks=pytest.mark.thorough),
        pytest.param("cql", marks=pytest.mark.thorough),
        "iql",
    ],
)
def test_a_run_that_was_killed_and_resumed_equals_one_that_was_not(
    algorithm: str, mini_folder: Path, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    command = [sys.executable, "-c", TRAIN, str(mini_folder), algorithm]
    subprocess.run([*command, str(whole)], check=True)
    running = subprocess.Popen([*command, str(cut)])
    while running.poll() is None and not (cut / "checkpoint.safetensors").exists():
        time.sleep(0.002)
    running.send_signal(signal.SIGKILL)
    running.wait()
    subprocess.run([*command, str(cut), "resume"], check=True)
    first, second = weights(whole), weights(cut)
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)

    def logged(folder: Path) -> list[dict[str, float]]:
        return [
            {key: value for key, value in line.items() if key != "seconds"}
            for line in read_metrics(folder)
        ]

    assert logged(whole) == logged(cut)


def test_training_twice_gives_the_same_run(mini: Dataset, tmp_path: Path) -> None:
    for name in ("one", "two"):
        train_run("iql", mini, tmp_path / name, seed=3, steps=5, evaluations=0)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all((one[name] == two[name]).all() for name in one)
    train_run("iql", mini, tmp_path / "other", seed=4, steps=5, evaluations=0)
    other = weights(tmp_path / "other")
    assert any((one[name] != other[name]).any() for name in one)


def test_an_evaluation_repeats_to_the_bit_and_says_its_protocol(
    mini: Dataset, tmp_path: Path
) -> None:
    train_run("bc", mini, tmp_path / "run", seed=0, steps=30, evaluations=0)
    _, first = evaluate_run(tmp_path / "run", episodes=12)
    record, second = evaluate_run(tmp_path / "run", episodes=12)
    assert first == second
    assert len(first.returns) == 12
    assert first.step == 30
    assert first.protocol.environment_id == "PointMaze_UMaze-v3"
    assert "mujoco" in first.protocol.versions
    assert record.digest == mini.digest
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text("utf-8"))["step"] == 30


def test_a_run_records_every_setting(mini: Dataset, tmp_path: Path) -> None:
    train_run("iql", mini, tmp_path / "run", seed=0, steps=2, evaluations=0)
    config = read_run(tmp_path / "run").config
    assert config.keys() == {field.name for field in dataclasses.fields(IQLConfig)}
    assert config["discount"] == 0.99
    assert config["steps"] == 2


def test_a_run_refuses_another_dataset(mini: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_run("bc", mini, folder, seed=0, steps=2, evaluations=0)
    text = (folder / "run.json").read_text("utf-8")
    (folder / "run.json").write_text(text.replace(mini.digest, "sha256:" + "0" * 64), "utf-8")
    with pytest.raises(IntegrityError, match="trained on"):
        evaluate_run(folder, dataset=mini)
    with pytest.raises(NotFoundError, match="not on this machine"):
        evaluate_run(folder)


def test_a_checkpoint_of_another_run_or_with_an_edited_step_is_refused(
    mini: Dataset, tmp_path: Path
) -> None:
    for seed in (0, 1):
        train_run("bc", mini, tmp_path / str(seed), seed=seed, steps=2, evaluations=0)
    mine = tmp_path / "0" / "checkpoint.safetensors"
    data = mine.read_bytes()
    assert b'"step":"2"' in data
    mine.write_bytes(data.replace(b'"step":"2"', b'"step":"1"'))
    with pytest.raises(ValueError, match="damaged"):
        evaluate_run(tmp_path / "0", dataset=mini, episodes=1)
    mine.write_bytes((tmp_path / "1" / "checkpoint.safetensors").read_bytes())
    with pytest.raises(ValueError, match="another run"):
        evaluate_run(tmp_path / "0", dataset=mini, episodes=1)


def test_resuming_does_not_overwrite_another_run_without_a_checkpoint(
    mini: Dataset, tmp_path: Path
) -> None:
    train_run("bc", mini, tmp_path / "run", seed=0, steps=2, evaluations=0)
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(FileExistsError, match="its steps is 2"):
        train_run("bc", mini, tmp_path / "run", seed=0, steps=3, evaluations=0, resume=True)
    train_run("bc", mini, tmp_path / "run", seed=0, steps=2, evaluations=0, resume=True)


def test_the_horizon_of_iql_is_that_of_the_run(mini: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use --steps"):
        train_run("iql", mini, tmp_path, seed=0, steps=2, settings={"steps": "500"})


def test_resuming_with_other_settings_is_refused(mini: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_run("bc", mini, folder, seed=0, steps=2, evaluations=0)
    with pytest.raises(FileExistsError, match="its seed is 0"):
        train_run("bc", mini, folder, seed=1, steps=2, evaluations=0, resume=True)
    assert read_run(folder).seed == 0
