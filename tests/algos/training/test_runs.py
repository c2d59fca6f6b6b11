"""Runs by `orlog.train` and the command line: what their folders hold, how they go on, and what is refused."""

import contextlib
import itertools
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import orlog
from orlog.algos.bc import BC
from orlog.algos.iql import IQL
from orlog.algos.training import train as training
from orlog.algos.training.evaluating import load_run
from orlog.algos.training.runs import kept_checkpoints, read_evaluation, read_metrics, read_run
from orlog.base.files import BusyError
from orlog.errors import (
    CheckpointError,
    DivergedError,
    IntegrityError,
    ManifestError,
    NotFoundError,
    StoppedError,
    StorageError,
)
from tests.command_line import orlog as command
from tests.small_disks import files_limited_to
from tests.training import SMALL, logged, short, stop_after

CHECKPOINT = "checkpoint.safetensors"


def weights(folder):
    return load_file(folder / CHECKPOINT)


def test_a_run_records_its_dataset_and_every_setting(mini, tmp_path):
    record = short("iql", mini, tmp_path, settings=None).record
    assert read_run(tmp_path) == record
    assert (record.dataset, record.digest, record.seed, record.steps) == (mini.name, mini.digest, 0, 2)
    assert (record.preset, record.device, record.precision) == ("orlog", "cpu", "float32")
    assert record.config.keys() == {*IQL.CONFIG.__struct_fields__}
    assert (record.config["discount"], record.config["steps"]) == (0.99, 2)
    assert record.versions["orlog"] == metadata.version("orlog")
    assert "online" not in json.loads((tmp_path / "run.json").read_bytes())


def test_an_evaluation_repeats_to_the_bit_and_says_its_protocol(mini, tmp_path):
    run = short("bc", mini, tmp_path, steps=4)
    first, second = (orlog.evaluate(run, episodes=12) for _ in range(2))
    assert np.array_equal(first.returns, second.returns)
    evaluation = read_evaluation(tmp_path)
    assert evaluation.returns == [*first.returns]
    assert (first.step, evaluation.step, len(first.returns)) == (4, 4, 12)
    assert evaluation.protocol.environment_id == "PointMaze_UMaze-v3"
    assert "mujoco" in evaluation.protocol.versions


def test_names_and_paths_are_taken_as_text_too(mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = short("bc", mini.name, "runs/x")
    assert read_run("runs/x") == run.record
    for dataset in (mini.name, str(mini.folder), mini.folder, mini, None):
        assert load_run("runs/x", dataset=dataset).record == run.record


def test_runs_on_views_have_folders_of_their_own_and_find_their_view(mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good, unsaved = mini.top_episodes(50), mini[:40]
    good.save(tmp_path / "good.json")
    runs = {data.digest: short("bc", data, None) for data in (mini, good, unsaved, mini[:30])}
    assert len({run.folder for run in runs.values()}) == 4
    assert runs[mini.digest].folder == Path("runs/bc") / mini.name / "seed-0"
    assert runs[good.digest].folder.parent.name == f"good-{good.digest[7:19]}"
    (tmp_path / "good.json").unlink()
    for digest, run in runs.items():
        assert load_run(run).dataset.digest == digest


def test_a_precision_is_recorded_and_used_where_it_is_faster(mini, tmp_path, monkeypatch):
    settings = {"hidden": [16, 16], "batch_size": 32}
    monkeypatch.setattr(training, "has_fast_bf16", lambda _device: True)
    low, usual = (short("bc", mini, tmp_path / name, precision=name, settings=settings) for name in ("bf16", "float32"))
    assert (low.record.precision, usual.record.precision) == ("bf16", "float32")
    low, usual = weights(tmp_path / "bf16"), weights(tmp_path / "float32")
    assert {name: one.dtype for name, one in low.items()} == {name: one.dtype for name, one in usual.items()}
    assert any((one != usual[name]).any() for name, one in low.items())
    monkeypatch.setattr(training, "has_fast_bf16", lambda _device: False)
    with pytest.warns(UserWarning, match="training in float32: this processor"):
        assert short("bc", mini, tmp_path / "slow", precision="bf16").record.precision == "float32"


# --- refused


@pytest.mark.parametrize(
    ("algorithm", "options", "word"),
    [
        ("iqll", {}, "did you mean iql"),
        ("iql", {"settings": {"expectil": 0.9}}, "did you mean expectile"),
        ("iql", {"settings": {"steps": "500"}}, "use steps="),
        ("iql", {"preset": "orlogs"}, "did you mean orlog"),
        ("iql", {"device": "gpu"}, "device must be"),
        ("iql", {"precision": "half"}, "precision must be"),
        ("gcbc", {"settings": {"policy_goals": "0.5,0.6,0"}}, "policy_goals"),
        ("bc", {"settings": {"agents": "shared"}}, "no setting 'agents'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(algorithm, options, word, mini, tmp_path):
    with pytest.raises(ValueError, match=word):
        short(algorithm, mini, tmp_path / "run", **options)
    words = [f"--{name}={value}" for name, value in options.items() if name != "settings"]
    words += [f"--set={name}={value}" for name, value in options.get("settings", {}).items()]
    ended = command("train", algorithm, mini.name, *words, cwd=tmp_path)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert word.replace("steps=", "--steps") in line
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.filterwarnings("ignore:.*statistics are computed once")
def test_a_run_goes_on_with_the_same_options_only(mini, tmp_path):
    usual = {"evaluations": 1, "curve_episodes": 1, "settings": SMALL, "steps": 2}
    short("bc", mini, tmp_path, **usual)
    before = (tmp_path / "run.json").read_bytes()
    for given, word in (
        ({"steps": 1}, "steps 2, not steps 1; to continue it, give steps=2"),
        ({"seed": 1}, "seed 0, not seed 1; to continue it, give seed=0"),
        ({"evaluations": 2}, "evaluations 1, not"),
        ({"curve_episodes": 2}, "curve_episodes 1, not"),
        ({"keep_checkpoints": True}, "keep_checkpoints False, not"),
        ({"stream": True}, "stream False, not"),
        ({"settings": {**SMALL, "hidden": [8]}}, r"hidden \[4\], not hidden \[8\]"),
    ):
        with pytest.raises(FileExistsError, match=word) as refused:
            short("bc", mini, tmp_path, resume=True, **{**usual, **given})
        assert f"orlog train --resume {tmp_path}; or choose" in str(refused.value)
    with pytest.raises(FileExistsError, match="algorithm bc, not algorithm iql"):
        short("iql", mini, tmp_path, resume=True, **usual)
    with pytest.raises(FileExistsError, match="digest sha256:"):
        short("bc", mini[:9], tmp_path, resume=True, **usual)
    with pytest.raises(FileExistsError, match="holds a run already"):
        short("bc", mini, tmp_path, **usual)
    ended = command("train", str(tmp_path), "--resume", "--preset", "none")
    assert (ended.returncode, "learning_rate" in ended.stderr) == (1, True)
    (tmp_path / CHECKPOINT).unlink()  # nor is the record of a run without a checkpoint replaced
    with pytest.raises(FileExistsError, match="steps 2, not"):
        short("bc", mini, tmp_path, resume=True, **{**usual, "steps": 1})
    assert (tmp_path / "run.json").read_bytes() == before
    assert short("bc", mini, tmp_path, resume=True, **usual).record.steps == 2


def test_another_dataset_or_another_runs_checkpoint_is_refused(mini, tmp_path):
    for seed in (0, 1):
        short("bc", mini, tmp_path / str(seed), seed=seed)
    with pytest.raises(IntegrityError, match="trained on"):
        orlog.evaluate(tmp_path / "0", dataset=mini[:9])
    mine = tmp_path / "0" / CHECKPOINT
    data = mine.read_bytes()
    assert b'"step":"2"' in data
    mine.write_bytes(data.replace(b'"step":"2"', b'"step":"1"'))
    with pytest.raises(CheckpointError, match="damaged"):
        orlog.evaluate(tmp_path / "0")
    mine.write_bytes((tmp_path / "1" / CHECKPOINT).read_bytes())
    with pytest.raises(CheckpointError, match=r"belongs to another run\.json"):
        orlog.evaluate(tmp_path / "0")
    ended = command("evaluate", str(tmp_path / "0"))
    assert (ended.returncode, ended.stderr.count("\n")) == (3, 1)
    text = (tmp_path / "1" / "run.json").read_text("utf-8")
    (tmp_path / "1" / "run.json").write_text(text.replace(mini.digest, "sha256:" + "0" * 64), "utf-8")
    with pytest.raises(NotFoundError, match="not on this machine"):
        orlog.evaluate(tmp_path / "1")


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        *(({"seed": -1}, "seed"), ({"steps": "many"}, "steps"), ({"surprise": 1}, "surprise")),
        *(({"algorithm": "sac"}, "no algorithm 'sac'"), ({"dataset": "../x"}, "not the name of a dataset")),
        *(({"config": {"hidden": "wide"}}, "config: bc: hidden"), ({"config": {"width": 1}}, "no setting 'width'")),
        *(({"obs_mean": [1.0]}, "obs_mean has 1 number"), ({"obs_std": [0.0] * 8}, "obs_std")),
        *(("", "cannot be read"), ("[]", "object"), ("{", "cannot be read"), ("[" * 100_000, "cannot be read")),
    ],
)
def test_a_malformed_record_names_file_and_field(changed, word, mini, tmp_path):
    short("bc", mini, tmp_path, steps=1)
    path = tmp_path / "run.json"
    text = changed if isinstance(changed, str) else json.dumps(json.loads(path.read_bytes()) | changed)
    path.write_text(text, "utf-8")
    with pytest.raises(ManifestError, match=re.escape(word)) as caught:
        orlog.evaluate(tmp_path, dataset=mini, episodes=1)
    assert str(path) in str(caught.value)


def test_what_is_missing_or_in_the_place_of_a_file_is_named(mini, tmp_path):
    def resume():
        short("bc", mini, tmp_path, resume=True)

    def evaluate():
        orlog.evaluate(tmp_path, episodes=1)

    short("bc", mini, tmp_path)
    checkpoint, log = tmp_path / CHECKPOINT, tmp_path / "metrics.jsonl"
    data = checkpoint.read_bytes()
    checkpoint.unlink()
    checkpoint.mkdir()
    for use in (resume, evaluate):
        with pytest.raises(CheckpointError, match="it is not a file"):
            use()
    checkpoint.rmdir()
    with pytest.raises(NotFoundError, match="no checkpoint yet"):
        evaluate()
    checkpoint.write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match="not a readable"):
        resume()
    checkpoint.write_bytes(data)
    for line, word in ((b'{"loss": 2}', "has no whole number 'step'"), (b"{", "is not JSON")):
        log.write_bytes(b'{"step": 1}\n' + line + b"\n")
        with pytest.raises(IntegrityError, match=f"line 2 {word}"):
            resume()
    (tmp_path / "run.json").unlink()
    with pytest.raises(NotFoundError, match=r"run\.json is missing"):
        resume()
    with pytest.raises(FileExistsError, match="holds a run already"):
        short("bc", mini, tmp_path)


# --- going on


def test_a_log_is_only_replaced_where_it_is_ahead_of_its_checkpoint(mini, tmp_path):
    short("bc", mini, tmp_path, steps=10)
    log = tmp_path / "metrics.jsonl"
    before, inode = log.read_bytes(), log.stat().st_ino
    for more in (b"", b'{"step": 11}\n{"st'):
        with log.open("ab") as file:
            file.write(more)
        short("bc", mini, tmp_path, steps=10, resume=True)
        assert log.read_bytes() == before
        assert more or log.stat().st_ino == inode


HOLD = """
import os, pathlib, signal, sys
import orlog
from orlog.algos.bc import BC

def hold(*_):
    pathlib.Path(sys.argv[3]).touch()
    signal.pause()

BC.update = hold
orlog.train("bc", sys.argv[1], out=sys.argv[2], evaluations=0, steps=9, progress=False)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there")
def test_two_processes_never_train_in_one_folder_and_a_killed_one_does_not_block(mini, tmp_path):
    folder, flag = tmp_path / "run", tmp_path / "flag"
    # It stays in its first update: what it writes later would depend on when it is looked at.
    running = subprocess.Popen([sys.executable, "-c", HOLD, str(mini.folder), str(folder), str(flag)])
    resume = {"settings": None, "steps": 9, "resume": True}
    try:
        while not flag.exists():
            assert running.poll() is None
            time.sleep(0.01)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(BusyError, match=re.escape(f"{folder}: another process is training in it")):
            short("bc", mini, folder, **resume)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    finally:
        running.kill()
        running.wait()
    assert short("bc", mini, folder, **resume).record.steps == 9


@pytest.mark.skipif(sys.platform == "win32", reason="files have no limit of their size there")
def test_a_full_disk_names_the_folder_and_what_stands(mini, tmp_path):
    options = {"steps": 20, "settings": {"hidden": [128, 128], "batch_size": 8}}
    short("bc", mini, tmp_path / "whole", **options)
    folder = tmp_path / "run"
    with pytest.raises(StoppedError):
        short("bc", mini, folder, stop=stop_after(6), **options)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    full = f"{folder}: cannot write the run.*its checkpoint of step 6 is kept.*resume=True"
    with files_limited_to(len(before[CHECKPOINT]) // 2), pytest.raises(StorageError, match=full):
        short("bc", mini, folder, resume=True, **options)
    assert (folder / CHECKPOINT).read_bytes() == before[CHECKPOINT]
    assert {path.name for path in folder.iterdir()} == before.keys()
    short("bc", mini, folder, resume=True, **options)
    assert (folder / CHECKPOINT).read_bytes() == (tmp_path / "whole" / CHECKPOINT).read_bytes()
    assert logged(folder) == logged(tmp_path / "whole")


def test_a_run_is_saved_by_time_too(mini, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SAVE_SECONDS", -1.0)
    saved = []
    checkpoint = tmp_path / CHECKPOINT
    short("bc", mini, tmp_path, steps=20, progress=lambda _step, _steps: saved.append(checkpoint.exists()))
    assert saved == [False] + 20 * [True]


@pytest.mark.parametrize("saved", [7, 150])
def test_a_run_goes_on_to_more_steps_than_it_was_told(saved, mini, tmp_path):
    short("bc", mini, tmp_path / "whole", steps=300)
    run = tmp_path / "run"
    with contextlib.suppress(StoppedError):
        short("bc", mini, run, steps=150, stop=stop_after(saved))
    assert f'"step":"{saved}"'.encode() in (run / CHECKPOINT).read_bytes()
    for _ in range(2):  # what is done is done: the second time nothing is left to do
        record = short("bc", mini, run, steps=300, resume=True).record
        assert (record.steps, [one.steps for one in record.earlier]) == (300, [150])
        assert read_run(run) == record
        np.testing.assert_equal(weights(run), weights(tmp_path / "whole"))
    assert read_metrics(run)[-1]["step"] == 300
    with pytest.raises(FileExistsError, match="steps 300, not steps 150"):
        short("bc", mini, run, steps=150, resume=True)


def test_more_steps_of_a_schedule_over_all_steps_are_noted(mini, tmp_path):
    short("iql", mini, tmp_path, steps=4)
    with pytest.warns(UserWarning, match=r"began as a run of 4 steps\. Its learning rate follows a schedule"):
        short("iql", mini, tmp_path, steps=6, resume=True)
    assert read_run(tmp_path).config["steps"] == 6


def test_a_run_that_goes_on_with_other_code_or_packages_is_told_so(mini, tmp_path, monkeypatch, recwarn):
    def go_on(code, **more):
        monkeypatch.setattr(training, "sources_digest", lambda _kind: code)
        short("bc", mini, tmp_path, steps=20, resume=True, **more)
        words = " ".join(str(warning.message) for warning in recwarn)
        recwarn.clear()
        return words

    with pytest.raises(StoppedError):
        go_on("a", stop=stop_after(12))
    body = json.loads((tmp_path / "run.json").read_bytes())
    orlog.evaluate(tmp_path, episodes=1)
    recwarn.clear()
    monkeypatch.setattr("orlog.algos.training.runs.code_versions", lambda: {**body["versions"], "orlog": "0.0.9"})
    with pytest.raises(StoppedError):
        go_on("b", stop=stop_after(4))
    words = " ".join(str(warning.message) for warning in recwarn)
    assert "with other code" in words
    assert f"began with orlog {body['versions']['orlog']}, and goes on with 0.0.9" in words
    recwarn.clear()
    assert "other code" not in go_on("b")  # it was said, and its record says it
    assert json.loads((tmp_path / "run.json").read_bytes()) == {**body, "later_code": ["b"]}
    assert read_evaluation(tmp_path).step == 12  # which the longer record does not make wrong
    assert orlog.evaluate(tmp_path, episodes=1).step == 20
    recwarn.clear()
    assert "other code" in go_on("c")
    assert read_run(tmp_path).codes == ("a", "b")  # no step was taken with this one


# --- runs that diverge


def diverge(patch, at, spoil):
    """Let the update of one step spoil the weights or the loss."""
    update, steps = BC.update, itertools.count(1)

    @torch.no_grad()
    def spoiled(self, batch):
        with torch.enable_grad():
            metrics = update(self, batch)
        if next(steps) != at:
            return metrics
        if spoil == "weight":
            next(self.policy.parameters())[0] = torch.inf
            return metrics
        return {**metrics, "policy/loss": torch.tensor(torch.nan)}

    patch.setattr(BC, "update", spoiled)


@pytest.mark.parametrize("seconds", [-1.0, 300.0])
def test_a_run_that_diverges_keeps_its_last_good_checkpoint(seconds, mini, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(training, "SAVE_SECONDS", seconds)
        diverge(patch, 17, "weight")  # its loss was still finite
        with pytest.raises(DivergedError) as caught:
            short("bc", mini, run, steps=40)
    assert str(caught.value).startswith(f"{run}: the run has diverged: policy/")
    assert "checkpoint of step 16 is kept" in str(caught.value)
    assert "(now: learning_rate 0.001)" in str(caught.value)
    last = read_metrics(run)[-1]
    assert (last["step"], last["diverged"]) == (caught.value.step, caught.value.metric)
    short("bc", mini, run, steps=40, resume=True)
    short("bc", mini, tmp_path / "whole", steps=40)
    assert "diverged" not in json.dumps(read_metrics(run))
    assert (run / CHECKPOINT).read_bytes() == (tmp_path / "whole" / CHECKPOINT).read_bytes()


def test_a_metric_that_diverges_between_two_lines_of_the_log_is_not_saved_on_a_stop(mini, tmp_path, monkeypatch):
    diverge(monkeypatch, 101, "loss")
    with pytest.raises(DivergedError, match="policy/loss was finite at step 100 and is not at step 101"):
        short("bc", mini, tmp_path, steps=1000, stop=stop_after(101))
    assert read_metrics(tmp_path)[-1]["diverged"] == "policy/loss"


def test_the_command_says_in_one_line_that_a_run_has_diverged(mini, tmp_path, monkeypatch):
    diverge(monkeypatch, 1, "loss")
    ended = command("train", "bc", mini.name, "--steps", "5", "--evaluations", "0", "--out", str(tmp_path / "run"))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("error: ")
    assert "there is no checkpoint from before" in ended.stderr


# --- the command line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_run_and_prints_the_command_that_goes_on(number, mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORLOG_CACHE", "")
    update, steps = BC.update, itertools.count(1)

    def send(self, batch):
        if next(steps) == 15:
            signal.raise_signal(number)
        return update(self, batch)

    monkeypatch.setattr(BC, "update", send)
    usual, folder = signal.getsignal(number), f"runs/bc/{mini.name}/seed-0"
    stopped = command("train", "bc", mini.name, "--cache", "5G", "--steps", "20", "--evaluations", "0")
    assert stopped.returncode == 128 + number
    assert signal.getsignal(number) is usual
    assert "stopped at step 15" in stopped.stderr
    line = next(line for line in stopped.stderr.splitlines() if "to continue, run: " in line)
    again = shlex.split(line.partition("run: ")[2])
    assert again == ["orlog", "train", "--resume", folder, "--cache", "5G"]
    resumed = command(*again[1:])
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from step 15 of 20" in resumed.stderr
    assert read_metrics(folder)[-1]["step"] == 20


def test_a_run_goes_on_by_its_record_alone_and_its_command_makes_it_again(mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "train",
        "bc",
        mini.name,
        "--steps",
        "6",
        "--set",
        "hidden=[4]",
        "--evaluations",
        "3",
        "--set",
        "batch_size=8",
    ]
    words += ["--keep-checkpoints", "--curve-episodes", "1"]
    assert command(*words, "--out", "whole").returncode == 0
    keep = training.runs.keep_checkpoint

    def killed(folder, step):  # as by kill -9, whose state is the same
        if step >= 4:
            raise KeyboardInterrupt
        keep(folder, step)

    with monkeypatch.context() as patch:
        patch.setattr(training.runs, "keep_checkpoint", killed)
        command(*words, "--out", "cut")
    assert [*kept_checkpoints("cut")] == [2]
    done = command("train", "--resume", "cut")
    assert done.returncode == 0, done.stderr
    assert "resuming from step 4 of 6" in done.stderr
    assert (
        [line["step"] for line in read_metrics("cut") if "returns" in line] == [*kept_checkpoints("cut")] == [2, 4, 6]
    )
    again = shlex.split(command("runs", "cut", "--command").stdout)
    assert (again[:3], again[-2:]) == (["orlog", "train", "bc"], ["--out", "cut"])
    assert command(*again[1:-1], "again").returncode == 0
    for name in ("run.json", CHECKPOINT, "checkpoints/step-000000004.safetensors"):
        assert len({Path(folder, name).read_bytes() for folder in ("whole", "cut", "again")}) == 1


def test_one_episode_has_no_standard_error(mini, tmp_path):
    short("bc", mini, tmp_path)
    ended = command("evaluate", str(tmp_path), "--episodes", "1")
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout + ended.stderr
    assert re.search(r"success rate (0.0|100.0) %, 1 episode\n", said)
    assert "nan" not in said


def test_a_loader_that_refuses_its_settings_leaves_no_run(mini, tmp_path):
    for name, settings in (("qcfql", {"chunk_length": 301}), ("dqc", {"horizon": 300})):
        with pytest.raises(ValueError, match="longest of its 67 episodes"):
            short(name, mini, tmp_path / name, settings={**SMALL, **settings})
        assert not (tmp_path / name).exists()
