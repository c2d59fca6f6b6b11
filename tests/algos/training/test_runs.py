import contextlib
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from orlog import load_dataset
from orlog.algos.bc import BC
from orlog.algos.iql import IQLConfig
from orlog.algos.training import train as training
from orlog.algos.training.evaluating import evaluate_run
from orlog.algos.training.metrics import read_metrics
from orlog.algos.training.runs import (
    RunRecord,
    has_checkpoint,
    keep_checkpoint,
    kept_checkpoints,
    read_evaluation,
    read_run,
    run_folder,
)
from orlog.algos.training.same_run import MAY_DIFFER, RUNS_IN_WORDS
from orlog.base import terminal
from orlog.base.files import BusyError
from orlog.cli import app
from orlog.errors import CheckpointError, IntegrityError, ManifestError, NotFoundError, StoppedError, StorageError
from orlog.runs.jobs import make_jobs
from tests.algos import plain
from tests.small_disks import files_limited_to
from tests.training import train_run

TRAIN = """
import json, sys, pathlib, orlog
from tests.training import train_run
ds = orlog.load_dataset(sys.argv[1])
train_run(sys.argv[2], ds, pathlib.Path(sys.argv[3]), seed=0, steps=200, evaluations=0,
          resume=len(sys.argv) > 5, settings=json.loads(sys.argv[4]))
"""


SMALL = {"hidden": [4], "batch_size": 8}


def short(dataset, folder, algorithm="bc", **options):
    """Train two steps with the seed 0 and no evaluations, or as is said."""
    usual = {"seed": 0, "steps": 2, "evaluations": 0}
    return train_run(algorithm, dataset, folder, **{**usual, **options})


def weights(folder):
    return load_file(folder / "checkpoint.safetensors")


@pytest.mark.slow
def test_a_run_that_was_killed_and_resumed_equals_one_that_was_not(mini_folder, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    algorithm, small = "iql", plain.small_settings("iql", width=16)
    words = [str(mini_folder), algorithm, str(cut), json.dumps(small)]
    command = [sys.executable, "-c", TRAIN, *words]
    dataset = load_dataset(mini_folder)
    short(dataset, whole, algorithm, steps=200, settings=small)
    running = subprocess.Popen(command)
    while running.poll() is None and not (cut / "checkpoint.safetensors").exists():
        time.sleep(0.002)
    running.send_signal(signal.SIGKILL)
    running.wait()
    subprocess.run([*command, "resume"], check=True)
    first, second = weights(whole), weights(cut)
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)

    def logged(folder):
        return [{key: value for key, value in line.items() if key != "seconds"} for line in read_metrics(folder)]

    assert logged(whole) == logged(cut)


def test_an_evaluation_repeats_to_the_bit_and_says_its_protocol(mini, tmp_path):
    short(mini, tmp_path / "run", steps=30)
    _, first = evaluate_run(tmp_path / "run", episodes=12)
    record, second = evaluate_run(tmp_path / "run", episodes=12)
    assert first == second
    assert len(first.returns) == 12
    assert first.step == 30
    assert first.protocol.environment_id == "PointMaze_UMaze-v3"
    assert "mujoco" in first.protocol.versions
    assert record.digest == mini.digest
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text("utf-8"))["step"] == 30


def test_a_run_records_every_setting(mini, tmp_path):
    short(mini, tmp_path / "run", "iql")
    config = read_run(tmp_path / "run").config
    assert config.keys() == {*IQLConfig.__struct_fields__}
    assert config["discount"] == 0.99
    assert config["steps"] == 2


def test_a_run_refuses_another_dataset(mini, tmp_path):
    folder = tmp_path / "run"
    short(mini, folder)
    text = (folder / "run.json").read_text("utf-8")
    (folder / "run.json").write_text(text.replace(mini.digest, "sha256:" + "0" * 64), "utf-8")
    with pytest.raises(IntegrityError, match="trained on"):
        evaluate_run(folder, dataset=mini)
    with pytest.raises(NotFoundError, match="not on this machine"):
        evaluate_run(folder)


def test_a_checkpoint_of_another_run_or_with_an_edited_step_is_refused(mini, tmp_path):
    for seed in (0, 1):
        short(mini, tmp_path / str(seed), seed=seed)
    mine = tmp_path / "0" / "checkpoint.safetensors"
    data = mine.read_bytes()
    assert b'"step":"2"' in data
    mine.write_bytes(data.replace(b'"step":"2"', b'"step":"1"'))
    with pytest.raises(ValueError, match="damaged"):
        evaluate_run(tmp_path / "0", dataset=mini, episodes=1)
    mine.write_bytes((tmp_path / "1" / "checkpoint.safetensors").read_bytes())
    with pytest.raises(ValueError, match="another run"):
        evaluate_run(tmp_path / "0", dataset=mini, episodes=1)


def test_resuming_does_not_overwrite_another_run_without_a_checkpoint(mini, tmp_path):
    short(mini, tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(FileExistsError, match="a run of 2 steps, not 1; to continue it, give steps=2, or"):
        short(mini, tmp_path / "run", steps=1, resume=True)
    short(mini, tmp_path / "run", resume=True)


def test_the_horizon_of_iql_is_that_of_the_run(mini, tmp_path):
    with pytest.raises(ValueError, match="use steps="):
        train_run("iql", mini, tmp_path, seed=0, steps=2, settings={"steps": "500"})


def test_resuming_with_other_settings_is_refused(mini, tmp_path):
    folder = tmp_path / "run"
    short(mini, folder)
    with pytest.raises(FileExistsError, match="a run with the seed 0, not 1; to continue it, give seed=0, or"):
        short(mini, folder, seed=1, resume=True)
    assert read_run(folder).seed == 0


def test_a_run_records_its_precision_and_goes_on_in_no_other(mini, tmp_path, monkeypatch):
    notes = []

    def run(name, **options):
        settings = {"hidden": [16, 16], "batch_size": 32}
        return short(mini, tmp_path / name, steps=20, settings=settings, note=notes.append, **options).precision

    monkeypatch.setattr(training, "has_fast_bf16", lambda _device: True)
    assert run("low", precision="bf16") == read_run(tmp_path / "low").precision == "bf16"
    assert run("usual") == "float32"
    assert notes == []
    low, usual = weights(tmp_path / "low"), weights(tmp_path / "usual")
    for name, one in low.items():
        assert one.dtype == usual[name].dtype
    assert any((one != usual[name]).any() for name, one in low.items())
    with pytest.raises(FileExistsError, match="a run with the precision bf16, not float32; "):
        run("low", resume=True)
    monkeypatch.setattr(training, "has_fast_bf16", lambda _device: False)
    assert run("slow", precision="bf16") == "float32"
    assert "training in float32: this processor" in notes[0]
    with pytest.raises(ValueError, match="precision must be float32 or bf16, found 'half'"):
        run("other", precision="half")


def files(folder):
    """Return a run's files, without the times in its log."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    lines = [{**line, "seconds": 0} for line in read_metrics(folder)]
    return {**found, "metrics.jsonl": json.dumps(lines).encode()}


def stop_after(steps):
    """Return what asks a run to stop after so many steps."""
    calls = itertools.count(1)
    return lambda: next(calls) >= steps


# --- interrupted runs


@pytest.mark.parametrize(
    ("algorithm", "steps", "cut"), [("bc", 300, 140), ("bc", 300, 152), ("cql", 20, 7), ("iql", 20, 7)]
)
def test_a_run_that_was_stopped_at_any_step_goes_on_to_the_same_files(algorithm, steps, cut, mini, tmp_path):
    whole, half = tmp_path / "whole", tmp_path / "half"

    def run(folder, **options):
        short(mini, folder, algorithm, steps=steps, settings=SMALL, **options)

    run(whole)
    with pytest.raises(StoppedError, match="resume=True") as caught:
        run(half, stop=stop_after(cut))
    assert 0 < caught.value.step < steps
    seen = []
    run(half, resume=True, progress=lambda step, _: seen.append(step))
    assert seen[0] == caught.value.step
    assert files(half) == files(whole)


def test_a_kill_right_after_resuming_loses_no_metrics(mini, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(StoppedError):
        short(mini, folder, steps=40, settings=SMALL, stop=stop_after(30))
    before = (folder / "metrics.jsonl").read_bytes()
    assert before
    code = (
        "import os, signal, sys\n"
        "from orlog.algos.bc import BC\n"
        "from tests.training import train_run\n"
        "BC.update = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "import orlog, pathlib\n"
        "train_run('bc', orlog.load_dataset(sys.argv[1]), pathlib.Path(sys.argv[2]), seed=0, steps=40,\n"
        "          settings={'hidden': [4], 'batch_size': 8}, evaluations=0, resume=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(mini.folder), str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_log_is_only_replaced_where_it_is_ahead_of_its_checkpoint(mini, tmp_path):
    folder = tmp_path / "run"
    short(mini, folder, steps=10, settings=SMALL)
    log = folder / "metrics.jsonl"
    before, inode = log.read_bytes(), log.stat().st_ino

    def resume():
        short(mini, folder, steps=10, settings=SMALL, resume=True)

    resume()
    assert (log.read_bytes(), log.stat().st_ino) == (before, inode)
    with log.open("ab") as file:
        file.write(b'{"step": 11}\n{"st')
    resume()
    assert log.read_bytes() == before


HOLD = """
import os, pathlib, signal
from orlog.algos.bc import BC

def hold(*_):
    pathlib.Path(os.environ["FLAG"]).touch()
    signal.pause()

BC.update = hold
"""


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there")
def test_two_processes_never_train_in_one_folder_and_a_killed_one_does_not_block(mini_folder, tmp_path):
    folder, flag, steps = tmp_path / "run", tmp_path / "flag", 10**6
    # It stays in its first update: what it writes later would depend on when it is looked at.
    code = HOLD + TRAIN.replace("steps=200", f"steps={steps}")
    small = plain.small_settings("bc", width=16)
    command = [sys.executable, "-c", code, str(mini_folder), "bc", str(folder), json.dumps(small)]
    running = subprocess.Popen(command, env={**os.environ, "FLAG": str(flag)})

    def resume():
        short(mini_folder, folder, steps=steps, settings=small, resume=True, stop=stop_after(2))

    try:
        while not flag.exists():
            assert running.poll() is None
            time.sleep(0.01)
        before = files(folder)
        with pytest.raises(BusyError, match="another process is training in it") as refused:
            resume()
        assert str(folder) in str(refused.value)
        assert files(folder).keys() == before.keys()
    finally:
        running.kill()
        running.wait()
    with pytest.raises(StoppedError, match=rf"stopped at step [12] of {steps:,}"):
        resume()


@pytest.mark.skipif(sys.platform == "win32", reason="files have no limit of their size there")
def test_a_full_disk_names_the_folder_and_what_stands(mini, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"

    def run(folder, **options):
        short(mini, folder, steps=20, settings={"hidden": [128, 128], "batch_size": 8}, **options)

    run(whole)
    with pytest.raises(StoppedError):
        run(folder, stop=stop_after(6))
    before = files(folder)
    half = len(before["checkpoint.safetensors"]) // 2
    with files_limited_to(half), pytest.raises(StorageError) as caught:
        run(folder, resume=True)
    assert str(folder) in str(caught.value)
    assert "its checkpoint of step 6 is kept" in str(caught.value)
    assert "resume=True" in str(caught.value)
    assert files(folder)["checkpoint.safetensors"] == before["checkpoint.safetensors"]
    assert files(folder).keys() == before.keys()
    run(folder, resume=True)
    assert files(folder) == files(whole)


def test_a_run_is_saved_by_time_too(mini, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SAVE_SECONDS", -1.0)
    saved = []
    short(
        mini,
        tmp_path / "run",
        steps=250,
        settings=SMALL,
        progress=lambda _step, _steps: saved.append(has_checkpoint(tmp_path / "run")),
    )
    assert saved[0] is False
    assert all(saved[1:])
    assert len(saved) == 251


# --- more steps


@pytest.mark.parametrize("saved", [50, 300])
def test_a_run_goes_on_to_more_steps_than_it_was_told(saved, mini, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    short(mini, whole, steps=600, settings=SMALL)
    with contextlib.suppress(StoppedError):
        stops = iter(range(10_000))
        short(mini, run, steps=300, settings=SMALL, stop=lambda: next(stops) + 1 == saved < 300)
    for _ in range(2):  # what is done is done: the second time nothing is left to do
        record = short(mini, run, steps=600, settings=SMALL, resume=True)
        assert (record.steps, [one.steps for one in record.earlier]) == (600, [300])
        assert read_run(run) == record
        for name, values in weights(whole).items():
            np.testing.assert_array_equal(weights(run)[name], values)
    assert read_metrics(run)[-1]["step"] == 600
    with pytest.raises(FileExistsError, match="a run of 600 steps, not 300"):
        short(mini, run, steps=300, settings=SMALL, resume=True)


def test_more_steps_of_a_schedule_over_all_steps_are_noted(mini, tmp_path):
    notes = []
    settings = {"hidden": [4], "batch_size": 8}
    short(mini, tmp_path, "iql", steps=4, settings=settings)
    short(mini, tmp_path, "iql", steps=6, settings=settings, resume=True, note=notes.append)
    assert read_run(tmp_path).config["steps"] == 6
    (note,) = notes
    assert "began as a run of 4 steps. Its learning rate follows a schedule" in note


# --- damaged runs


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: body.pop("seed"), "seed"),
        (lambda body: body.update(seed=-1), "seed"),
        (lambda body: body.update(steps="many"), "steps"),
        (lambda body: body.update(surprise=1), "surprise"),
        (lambda body: body.update(algorithm="sac"), "algorithm"),
        (lambda body: body.update(config={"hidden": "wide"}), "config: bc: hidden"),
        (lambda body: body.update(config={"width": 1}), "config: bc has no setting 'width'"),
        (lambda body: body.update(obs_mean=[1.0]), "obs_mean has 1 number"),
        (lambda body: body.update(obs_std=[0.0] * 8), "obs_std"),
    ],
)
def test_a_malformed_record_names_file_and_field(change, words, mini, tmp_path):
    short(mini, tmp_path, steps=1, settings=SMALL)
    path = tmp_path / "run.json"
    body = json.loads(path.read_text("utf-8"))
    change(body)
    path.write_text(json.dumps(body), "utf-8")
    with pytest.raises(ManifestError) as caught:
        evaluate_run(tmp_path, dataset=mini, episodes=1)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"seed": NaN}', "[" * 100_000, '"run"'])
def test_a_record_that_is_no_object_is_refused(text, mini, tmp_path):
    (tmp_path / "run.json").write_text(text, "utf-8")
    with pytest.raises(ManifestError, match=r"run\.json"):
        evaluate_run(tmp_path, dataset=mini)
    with pytest.raises(ManifestError, match=r"run\.json"):
        short(mini, tmp_path, steps=1, resume=True)


def test_what_is_missing_or_in_the_place_of_a_file_is_named(mini, tmp_path):
    short(mini, tmp_path / "run", steps=1, settings=SMALL)

    def resume():
        short(mini, tmp_path / "run", steps=1, settings=SMALL, resume=True)

    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    data = checkpoint.read_bytes()
    checkpoint.unlink()
    checkpoint.mkdir()
    for use in (resume, lambda: evaluate_run(tmp_path / "run", dataset=mini, episodes=1)):
        with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors.*it is not a file"):
            use()
    checkpoint.rmdir()
    checkpoint.write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors: not a readable"):
        resume()
    checkpoint.unlink()
    with pytest.raises(NotFoundError, match="no checkpoint yet"):
        evaluate_run(tmp_path / "run", dataset=mini)
    checkpoint.write_bytes(data)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n{"loss": 2}\n', "utf-8")
    with pytest.raises(IntegrityError, match=r"metrics\.jsonl: line 2 has no whole number 'step'"):
        resume()
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(NotFoundError, match=r"run\.json is missing"):
        resume()
    with pytest.raises(FileExistsError, match="holds a run already"):
        short(mini, tmp_path / "run", steps=1)


# --- views, and paths as text


def test_runs_on_views_have_folders_of_their_own_and_find_their_view(mini, tmp_path):
    good = mini.top_episodes(50)
    good.save(tmp_path / "good.json")
    unsaved = mini[:40]
    found = {run_folder(tmp_path, "bc", one, 0) for one in (mini, good, unsaved, mini[:30])}
    assert len(found) == 4
    assert run_folder(tmp_path, "bc", mini, 0) == tmp_path / "bc" / mini.name / "seed-0"
    assert run_folder(tmp_path, "bc", good, 0).parent.name == f"good-{good.digest[7:19]}"
    for view in (good, unsaved):
        folder = run_folder(tmp_path, "bc", view, 0)
        short(view, folder, settings=SMALL)
    (tmp_path / "good.json").unlink()
    for view in (good, unsaved):
        record, _ = evaluate_run(run_folder(tmp_path, "bc", view, 0), episodes=1)
        assert record.digest == view.digest


def test_names_and_paths_are_taken_as_text_too(mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = short(mini.name, "runs/x", settings=SMALL)
    assert read_run("runs/x") == record
    assert read_metrics("runs/x") == read_metrics(Path("runs/x"))
    for dataset in (mini.name, str(mini.folder), mini.folder, mini, None):
        assert evaluate_run("runs/x", dataset=dataset, episodes=1)[0] == record
    jobs = make_jobs("bc", mini.name, "runs", seeds=(0,), episodes=1)
    assert jobs == make_jobs("bc", mini.folder, Path("runs"), seeds=(0,), episodes=1)
    assert jobs[0].folder == Path("runs/bc") / mini.name / "seed-0"


# --- the command line


def invoke(*arguments):
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "300", "NO_COLOR": "1"})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_run_and_prints_the_command_that_goes_on(number, mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    update = BC.update
    steps = itertools.count(1)

    def send(self, batch):
        if next(steps) == 150:
            signal.raise_signal(number)
        return update(self, batch)

    monkeypatch.setattr(BC, "update", send)
    monkeypatch.setenv("ORLOG_CACHE", "")
    usual = signal.getsignal(number)
    words = ["train", "bc", mini.name, "--set", "hidden=4,4", "--cache", "5G"]
    words += ["--steps", "200", "--evaluations", "0"]
    stopped = invoke(*words)
    assert stopped.exit_code == 128 + number
    assert signal.getsignal(number) is usual
    assert "stopped at step 150" in stopped.output
    command = next(line for line in stopped.output.splitlines() if "to continue, run: " in line)
    again = shlex.split(command.partition("run: ")[2])
    folder = str(run_folder("runs", "bc", mini, 0))
    assert again == ["orlog", "train", "--resume", folder, "--cache", "5G"]
    resumed = invoke(*again[1:])
    assert resumed.exit_code == 0, resumed.output
    assert "resuming from step 150 of 200" in resumed.output
    assert "trained BC for 200 steps" in resumed.output
    assert read_metrics(run_folder("runs", "bc", mini, 0))[-1]["step"] == 200


def test_every_field_of_a_record_is_compared_or_may_differ():
    assert {*RUNS_IN_WORDS} | MAY_DIFFER == {*RunRecord.__struct_fields__}
    assert not {*RUNS_IN_WORDS} & MAY_DIFFER


RESUMED = ["--steps", "60", "--set", "hidden=[4]", "--set", "batch_size=8", "--evaluations", "6"]


def test_a_killed_run_goes_on_with_all_options_of_its_record(mini, tmp_path, monkeypatch):
    """As after kill -9, whose state is the same: between a checkpoint and the copy that is kept."""
    monkeypatch.chdir(tmp_path)
    words = ["train", "bc", mini.name, *RESUMED, "--keep-checkpoints", "--curve-episodes", "1"]
    assert invoke(*words, "--out", "whole").exit_code == 0

    def killed(folder, step):
        if step >= 30:
            raise KeyboardInterrupt
        keep_checkpoint(folder, step)

    monkeypatch.setattr(training, "keep_checkpoint", killed)
    invoke(*words, "--out", "cut")
    assert [*kept_checkpoints("cut")] == [10, 20]
    monkeypatch.setattr(training, "keep_checkpoint", keep_checkpoint)
    done = invoke("train", "--resume", "cut")
    assert done.exit_code == 0, done.output
    assert "resuming from step 30 of 60" in done.output
    evaluated = [one["step"] for one in read_metrics("cut") if "returns" in one]
    assert evaluated == [*kept_checkpoints("cut")] == [10, 20, 30, 40, 50, 60]
    assert Path("cut/run.json").read_bytes() == Path("whole/run.json").read_bytes()
    for step, path in kept_checkpoints("whole").items():
        assert kept_checkpoints("cut")[step].read_bytes() == path.read_bytes()
    # The command of its record makes it again, from an empty folder.
    command = shlex.split(invoke("runs", "cut", "--command").output)
    assert command[:3] == ["orlog", "train", "bc"]
    assert command[-2:] == ["--out", "cut"]
    assert invoke(*command[1:-1], "again").exit_code == 0
    for name in ("run.json", "checkpoint.safetensors"):
        assert Path("again", name).read_bytes() == Path("whole", name).read_bytes()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--evaluations", "5"], "6 evaluations, not 5"),
        (["--curve-episodes", "2"], "1 episodes at each evaluation, not 2"),
        (["--keep-checkpoints"], "keep_checkpoints is False, not True"),
        (["--set", "hidden=[8]"], "hidden [4], not hidden [8]"),
        (["--seed", "1"], "seed 0, not 1"),
        (["--preset", "none"], "learning_rate"),
        (["--seed", "0", "--steps", "60"], ""),
    ],
)
def test_a_resumed_run_says_what_differs_from_its_record(mini, tmp_path, given, said):
    words = ["train", "bc", mini.name, *RESUMED, "--curve-episodes", "1", "--out", str(tmp_path)]
    assert invoke(*words).exit_code == 0
    record = (tmp_path / "run.json").read_bytes()
    found = invoke("train", str(tmp_path), "--resume", *given)
    assert found.exit_code == (1 if said else 0), found.output
    assert said in (found.output if found.exception is None else str(found.exception))
    assert (tmp_path / "run.json").read_bytes() == record


def test_a_run_that_goes_on_with_other_code_is_told_so(mini, tmp_path, monkeypatch):
    notes = []
    options = {"steps": 20, "settings": SMALL, "evaluations": 0}
    with pytest.raises(StoppedError):
        train_run("bc", mini, tmp_path, stop=stop_after(12), **options)
    began = read_run(tmp_path).code
    body = json.loads((tmp_path / "run.json").read_bytes())
    assert "later_code" not in body
    evaluate_run(tmp_path, dataset=mini, episodes=1)
    monkeypatch.setattr(training, "sources_digest", lambda _kind: "0" * 64)
    with pytest.raises(StoppedError):
        train_run("bc", mini, tmp_path, resume=True, note=notes.append, stop=stop_after(4), **options)
    assert any("other code" in note for note in notes)
    notes.clear()
    train_run("bc", mini, tmp_path, resume=True, note=notes.append, **options)
    assert notes == []  # it was said, and its record says it
    assert read_run(tmp_path).codes == (began, "0" * 64)
    assert json.loads((tmp_path / "run.json").read_bytes()) == {**body, "later_code": ["0" * 64]}
    assert read_evaluation(tmp_path).step == 12  # which the longer record does not make wrong
    assert evaluate_run(tmp_path, dataset=mini, episodes=1)[1].step == 20
    monkeypatch.setattr(training, "sources_digest", lambda _kind: "1" * 64)
    train_run("bc", mini, tmp_path, resume=True, **options)
    assert read_run(tmp_path).codes == (began, "0" * 64)  # no step was taken with this one


def test_progress_is_said_in_lines_where_there_is_no_terminal(mini, tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "LINE_SECONDS", -1.0)
    words = ["--steps", "10", "--evaluations", "0", "--out", str(tmp_path / "run"), "--resume"]
    found = invoke("train", "bc", mini.name, *words)
    assert found.exit_code == 0, found.output
    assert "no checkpoint; starting from step 0" in found.output
    assert "BC seed 0: 5 of 10" in found.output


def test_a_view_that_was_trained_on_is_found_and_one_episode_has_no_standard_error(mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mini[:50].save("some.json")
    trained = invoke("train", "bc", "some.json", "--steps", "2", "--evaluations", "0")
    assert trained.exit_code == 0, trained.output
    folder = trained.output.partition("orlog evaluate ")[2].strip()
    evaluated = invoke("evaluate", folder, "--episodes", "1")
    assert evaluated.exit_code == 0, evaluated.output
    assert re.search(r"success rate (0.0|100.0) %, 1 episode\n", evaluated.output)
    assert "nan" not in evaluated.output
    anchors = ("--random", "--expert", "recipe")
    measured = invoke("scores", mini.name, *anchors, "--episodes", "1")
    assert measured.exit_code == 0, measured.output
    assert "nan" not in measured.output
    assert " 0 = " in measured.output
    assert "100 = " in measured.output
    assert "standard error unknown" in measured.output
