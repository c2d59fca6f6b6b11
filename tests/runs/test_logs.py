"""Logs in TensorBoard and Weights & Biases, read back by their own readers."""

import importlib
import importlib.machinery
import importlib.util
import itertools
import struct

import pytest

from orlog.algos.training.runs import read_metrics
from orlog.errors import MissingExtraError, StoppedError
from orlog.runs.running import Log, check_log
from tests.command_line import orlog
from tests.training import train_run

SMALL = {"hidden": [4], "batch_size": 8}
BLOCK = 32768


def train(kind, mini, folder, **options):
    with Log(kind, folder) as log:
        train_run("bc", mini, folder, seed=0, steps=10, settings=SMALL, evaluations=0, log=log, **options)


def stopped_and_resumed(kind, mini, folder):
    """Train until a stop, lose what was logged after an older checkpoint, and resume."""
    calls = itertools.count(1)
    kept = {}

    def stop():
        step = next(calls)
        if step == 5:  # after the save at step 4, whose checkpoint is put back below
            kept["checkpoint"] = (folder / "checkpoint.safetensors").read_bytes()
        return step == 8

    with pytest.raises(StoppedError):
        train(kind, mini, folder, stop=stop)
    (folder / "checkpoint.safetensors").write_bytes(kept["checkpoint"])
    train(kind, mini, folder, resume=True)
    return read_metrics(folder)


def test_tensorboard_reads_each_point_once_after_a_resume(mini, tmp_path):
    pytest.importorskip("tensorboard")
    reading = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    lines = stopped_and_resumed("tensorboard", mini, tmp_path / "run")
    found = reading.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    points = [(one.step, one.value) for one in found.Scalars("policy/loss")]
    assert [step for step, _ in points] == list(range(1, 11))
    assert [value for _, value in points] == pytest.approx([one["policy/loss"] for one in lines])


def records(path):
    """Yield the records of a .wandb file: LevelDB's log format, after seven bytes."""
    kinds = importlib.import_module("wandb.proto.wandb_internal_pb2")
    data, place, body = path.read_bytes(), 7, b""
    while place < len(data):
        left = BLOCK - place % BLOCK
        if left < 7:
            place += left
            continue
        _, size, part = struct.unpack_from("<IHB", data, place)
        body += data[place + 7 : place + 7 + size]
        place += 7 + size
        if part in (1, 4):  # whole, or the last part
            yield kinds.Record.FromString(body)
            body = b""


@pytest.mark.slow
def test_weights_and_biases_has_each_point_once_after_a_resume(mini, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "600")  # seconds for its process to start, usually 30
    lines = stopped_and_resumed("wandb", mini, tmp_path / "run")
    wandb.teardown()
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({path.name for path in files}) == 1  # one id
    assert len(files) == 2
    points, configs = [], []
    for record in itertools.chain.from_iterable(map(records, files)):
        if record.WhichOneof("record_type") == "history":
            items = {one.key or one.nested_key[0]: one.value_json for one in record.history.item}
            points.append((record.history.step.num, float(items["policy/loss"])))
        if record.WhichOneof("record_type") == "run":
            configs.append({one.key: one.value_json for one in record.run.config.update})
    assert [step for step, _ in points] == list(range(1, 11))
    assert [value for _, value in points] == pytest.approx([one["policy/loss"] for one in lines])
    assert configs[0]["digest"] == f'"{mini.digest}"'


def test_returns_are_logged_as_means_and_none_writes_nothing(mini, tmp_path):
    pytest.importorskip("tensorboard")
    reading = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    line = {"step": 3, "seconds": 1.5, "returns": [1.0, 3.0], "diverged": "policy/loss"}
    line["successes"] = [False, True]
    (tmp_path / "run.json").write_text("{}", "utf-8")
    with Log("tensorboard", tmp_path, lambda returns: 10 * returns) as log:
        log(line)
    found = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    names = ["evaluation/return", "evaluation/score", "evaluation/success_rate"]
    assert sorted(found.Tags()["scalars"]) == names
    assert found.Scalars("evaluation/success_rate")[0].value == 0.5
    (score,) = found.Scalars("evaluation/score")
    assert (score.step, score.value) == (3, 20)
    start = (tmp_path / "run.json").stat().st_mtime
    assert score.wall_time == pytest.approx(start + 1.5, abs=0.01)
    with Log("none", tmp_path / "other") as log:
        log(line)
    assert not (tmp_path / "other").exists()
    assert mini.total_episodes


def test_a_missing_package_and_an_unknown_log_are_said_before_anything_is_trained(mini, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "wandb" else find(name, *more))
    with pytest.raises(MissingExtraError) as caught:
        check_log("wandb")
    assert caught.value.install == "wandb"
    words = ["train", "bc", mini.name, "--steps", "2", "--out", str(tmp_path / "run")]
    missing = orlog(*words, "--log", "wandb")
    assert missing.returncode == 1
    assert missing.stderr.splitlines() == [
        "error: --log wandb needs wandb, which is not installed; run: pip install wandb"
    ]
    wrong = orlog(*words, "--log", "tensorbord")
    assert wrong.returncode == 1
    assert "did you mean tensorboard?" in wrong.stderr
    assert not (tmp_path / "run").exists()
