"""Sweeps: jobs whose results lie under a key, run once by any number of sweeps and kills."""

import contextlib
import dataclasses
import errno
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orlog.algos.training.runs import TrainOptions, read_evaluation, read_run
from orlog.base.files import sole_access
from orlog.base.processes import result_or_error
from orlog.errors import StoppedError, StorageError
from orlog.normalize.references import read_baseline
from orlog.runs.jobs import job_options
from orlog.runs.results import RESULT_FILE, finished_results, key_of, read_result, result_folder, results_folder
from orlog.runs.sweeps import plan_sweep, run_sweep, suite_datasets
from tests.command_line import orlog
from tests.training import train_run

CHECKPOINT = "checkpoint.safetensors"
here = pytest.mark.usefixtures("jobs_run_here")


def small(dataset, algorithms=("bc",), seeds=2, **more):
    options = TrainOptions(steps=2, evaluations=1, **more)
    return plan_sweep([dataset.name], algorithms, seeds=range(seeds), episodes=1, options=options)


def run(sweep, **options):
    """Run a sweep of which nothing fails, and return the returns of every finished result, by key."""
    run_sweep(sweep, **options)
    assert sweep.failures == []
    return {folder.name: read_evaluation(folder).returns for folder in finished_results()}


def keys(sweep):
    return [key_of(job.decides) for job in sweep.jobs]


def when():
    """Return when every finished result was finished, by key."""
    return {folder.name: json.loads((folder / RESULT_FILE).read_bytes())["finished"] for folder in finished_results()}


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Return the folder in which baselines are recorded, in place of those that ship."""
    monkeypatch.setattr("orlog.normalize.references.recorded_folder", lambda name: tmp_path / "records" / name)
    return tmp_path / "records"


@here
def test_the_command_sweeps_does_equal_work_once_and_leaves_out_what_does_not_apply(mini):
    words = ["sweep", "--datasets", mini.name, "--algorithms", "bc,gcbc"]
    words += ["--steps", "2", "--episodes", "1", "--seeds", "0-1", "--json"]
    found = orlog(*words)
    assert found.returncode == 0, found.stderr
    body = json.loads(found.stdout)
    seeds = {result["algorithm"]: [seed["seed"] for seed in result["seeds"]] for result in body["results"]}
    assert (seeds, body["failures"]) == ({"bc": [0, 1], "gcbc": [0, 1]}, [])
    done = when()
    assert len(done) == 4
    assert json.loads(orlog(*words).stdout) == body
    assert when() == done

    left_out = orlog("sweep", "--datasets", mini.name, "--algorithms", "gcbc")
    assert "to train anyway, choose the number of steps as --steps." in left_out.stderr
    for wrong, message in (
        (["sweep", "--suite", "nothing", "--algorithms", "bc"], "no suite 'nothing'; choose one of: all, agents"),
        ([*words, "--datasets", ","], "',' names nothing"),
        ([*words, "--algorithms", ","], "',' names nothing"),
        (["reproduce", "bc"], ""),
        ([*words, "--suite", "all"], ""),
    ):
        refused = orlog(*wrong)
        assert (refused.returncode, message in refused.stderr) == (2, True)


@here
def test_whatever_decides_the_numbers_of_a_run_is_in_its_key(mini, monkeypatch):
    for size in (8, 64, None):
        run(small(mini, seeds=1, settings=size and {"batch_size": size}))
    default = small(mini, seeds=1).jobs[0].decides["config"]["batch_size"]
    assert {read_run(folder).config["batch_size"] for folder in finished_results()} == {8, 64, default}

    monkeypatch.setattr("orlog.algos.training.train.has_fast_bf16", lambda _device: True)
    monkeypatch.setattr("orlog.runs.results.find_device", lambda name: name)
    asked = [{}, {"precision": "bf16"}, {"device": "cuda:0"}]
    asked += [{"keep_checkpoints": True}, {"preset": "none"}, {"settings": {"hidden": [4]}}]
    found = [keys(small(mini, ("iql",), seeds=1, **options))[0] for options in asked]
    assert len({*found}) == len(asked)
    assert found[2] == keys(small(mini, ("iql",), seeds=1, device="cuda:1"))[0]


@here
def test_a_sweep_records_the_baseline_of_each_algorithm_whose_seeds_are_all_done(mini, tmp_path, records):
    words = ["sweep", "--datasets", mini.name, "--algorithms", "bc,td3bc", "--steps", "2"]
    words += ["--episodes", "1", "--evaluations", "1", "--seeds", "0-1"]
    words += ["--out", str(tmp_path / "report"), "--record"]
    in_the_way = result_folder(keys(small(mini, ("td3bc",)))[1]) / "metrics.jsonl"
    in_the_way.mkdir(parents=True)
    first = orlog(*words)
    assert first.returncode == 2, first.stderr
    assert f"td3bc on {mini.name} is not recorded: 1 of 2 seeds are done." in first.stderr
    assert [path.name for path in records.rglob("*.json")] == ["bc.json"]

    in_the_way.rmdir()
    second = orlog(*words)
    assert second.returncode == 0, second.stderr
    for name in ("bc", "td3bc"):
        baseline = read_baseline(name, mini.name)
        assert (baseline.digest, baseline.steps, [*baseline.returns]) == (mini.digest, 2, ["0", "1"])
    report = (tmp_path / "report" / "report.html").read_text("utf-8")
    assert "BC is identical" in report
    assert "TD3+BC is" not in report  # none was recorded when its report was written
    again = json.loads(orlog(*words[:-1], "--json").stdout)
    assert [result["verdict"]["word"] for result in again["results"]] == ["identical"] * 2


def test_suites_need_no_number_of_steps():
    discrete = ("acrobot", "cartpole", "lunarlander-mixed")
    for name in suite_datasets("classic") + suite_datasets("pointmaze"):
        algorithms = ["bc", "cql", "iql", "percent_bc"]
        if "-stitch-" in name or "-goals-" in name:
            algorithms = ["gcbc", "gciql", "gcivl", "hiql"]
        elif not name.partition("/")[2].startswith(discrete):
            algorithms += ["fql", "rebrac", "td3bc"]
        for algorithm in algorithms:
            options = job_options(TrainOptions(), algorithm, name, seeds=1, episodes=1)
            assert options.steps <= 12_000, (algorithm, name)


def test_what_nothing_says_how_long_to_train_is_left_out_and_a_name_that_is_nowhere_is_a_failure(mini, monkeypatch):
    sweep = plan_sweep([mini.name, "nowhere/nothing-v1"], ["gcbc"], seeds=[0], episodes=1)
    assert sweep.jobs == []
    (line,) = sweep.left_out
    assert line.startswith(f"gcbc on {mini.name} is left out: orlog has neither a recipe nor")
    assert [failure.what for failure in sweep.failures] == ["nowhere/nothing-v1"]
    monkeypatch.setattr("orlog.runs.sweeps.build_dataset", lambda *_, **__: pytest.fail("it is built"))
    for datasets, algorithm, message in (
        ([mini.name] * 2, "bc", "a dataset is named twice"),
        ([mini.name, f"{mini.name}@{mini.version}"], "bc", f"both {mini.name}, which a report could not tell"),
        (["pointmaze/medium-v1"], "iqll", "no algorithm 'iqll'; did you mean"),
    ):
        with pytest.raises(ValueError, match=message):
            plan_sweep(datasets, [algorithm], seeds=[0], episodes=1)


def test_a_view_has_no_baseline_to_record_and_is_not_swept_with_its_dataset(mini, tmp_path, records):
    view = tmp_path / "view.json"
    mini[:5].save(view)
    words = ["sweep", "--algorithms", "bc", "--steps", "2", "--episodes", "1", "--seeds", "1"]
    recorded = orlog(*words, "--datasets", str(view), "--record")
    assert recorded.returncode == 2
    assert f"a view of {mini.name} has no baseline of its own" in recorded.stderr
    both = orlog(*words, "--datasets", f"{mini.name},{view}")
    assert f"{mini.name} and {view} are both {mini.name}" in " ".join(both.stderr.split())
    assert [*finished_results()] == []
    assert not records.exists()


@here
def test_a_job_that_another_sweep_is_at_comes_last_and_begun_ones_go_on(mini, tmp_path):
    sweep = small(mini)
    first, second = keys(sweep)
    stopped = {"seed": 1, "steps": 2, "evaluations": 1, "curve_episodes": 1}
    with pytest.raises(StoppedError):
        train_run("bc", mini, result_folder(second), stop=lambda: True, **stopped)
    train_run("bc", mini, tmp_path / "alone", **stopped)
    order = []
    with contextlib.ExitStack() as other:
        other.enter_context(sole_access(result_folder(first)))

        def progress(done, total):
            order.append((done, total, *(read_result(key) is not None for key in keys(sweep))))
            other.close()

        run(sweep, progress=progress)
    assert order == [(1, 2, False, True), (2, 2, True, True)]
    assert (result_folder(second) / CHECKPOINT).read_bytes() == (tmp_path / "alone" / CHECKPOINT).read_bytes()


@here
def test_a_job_that_fails_ends_no_other_and_a_full_disk_ends_the_sweep(mini, monkeypatch):
    sweep, failing = small(mini, seeds=3), small(mini, seeds=2)
    wanted = keys(sweep)
    in_the_way = result_folder(wanted[0]) / "metrics.jsonl"
    in_the_way.mkdir(parents=True)
    run_sweep(failing)
    (failure,) = failing.failures
    assert failure.what == f"bc on {mini.name}, seed 0"
    assert "cannot write the run" in failure.message
    assert [read_result(key) is not None for key in wanted] == [False, True, False]

    def full(_job):
        raise StorageError("the disk is full.", errno=errno.ENOSPC)

    with monkeypatch.context() as patch:
        patch.setattr("orlog.runs.sweeps.run_job", full)
        with pytest.raises(StorageError, match=r"stopped: the disk is full; what is done stays\."):
            run_sweep(sweep, workers=1)
    assert [failure.what[-6:] for failure in sweep.failures] == ["seed 0"]  # no further job was begun
    in_the_way.rmdir()
    run_sweep(sweep)
    assert all(read_result(key) for key in wanted)


@here
@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json", "evaluation.json", RESULT_FILE, CHECKPOINT])
def test_a_result_of_which_a_digit_was_changed_is_made_again_and_kept(mini, name):
    expected = run(small(mini, seeds=1))
    folder = result_folder(*expected)
    data = (folder / name).read_bytes()
    at = data.rindex(b"1") if name != CHECKPOINT else len(data) - 1
    edited = data[:at] + b"2" + data[at + 1 :]
    (folder / name).write_bytes(edited)
    notes = []
    assert run(small(mini, seeds=1), note=notes.append) == expected
    (note,) = notes
    assert name in note
    assert (results_folder() / ".damaged" / folder.name / name).read_bytes() == edited
    run(small(mini, seeds=1), note=notes.append)
    assert notes == [note]


@here
def test_a_run_that_has_begun_and_lost_a_file_is_trained_again(mini):
    sweep = small(mini, seeds=1)
    expected = run(sweep)
    folder = result_folder(*expected)
    whole = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != RESULT_FILE}
    for name, content in (("run.json", None), *(("metrics.jsonl", text) for text in (None, b"", b"\xff{\n"))):
        shutil.rmtree(folder)
        folder.mkdir()
        for other, data in {**whole, name: content}.items():
            if data is not None:
                (folder / other).write_bytes(data)
        assert run(sweep) == expected


def another_home(home, monkeypatch, before=lambda: None):
    """Return an executor whose jobs see another home; something is done before each."""

    def execute(function, jobs, **_):
        for index, job in enumerate(jobs):
            before()
            with monkeypatch.context() as patch:
                patch.setenv("ORLOG_HOME", str(home))
                found = result_or_error(function, job)
            yield index, found

    return execute


def test_a_worker_whose_home_is_a_copy_of_this_one_loses_no_result_in_silence(mini, tmp_path, monkeypatch):
    home, copy = results_folder().parent, tmp_path / "copy"
    run(dataclasses.replace(small(mini), jobs=[]))
    shutil.copytree(home, copy)  # with what tells it from others
    sweep = small(mini, seeds=1)
    assert [*run(sweep, executor=another_home(copy, monkeypatch))] == keys(sweep)

    def copy_it_again():
        shutil.copy(home / "results" / ".id", copy / "results" / ".id")

    more = small(mini, seeds=2)
    run_sweep(more, executor=another_home(copy, monkeypatch, copy_it_again))
    (failure,) = more.failures
    assert failure.what == f"bc on {mini.name}, seed 1"
    assert "says that it shares this home, but there is no result in" in failure.message


def test_results_of_another_home_come_back_and_other_code_is_refused(mini, tmp_path, monkeypatch):
    shutil.copytree(mini.folder.parents[2], tmp_path / "node" / "datasets")
    on_a_node = another_home(tmp_path / "node", monkeypatch)
    sweep = small(mini, seeds=1, keep_checkpoints=True)
    (key,) = run(sweep, executor=on_a_node)
    there = tmp_path / "node" / "results" / key
    assert (there / "checkpoints").is_dir()
    for path in filter(Path.is_file, there.rglob("*")):
        assert (results_folder() / key / path.relative_to(there)).read_bytes() == path.read_bytes()

    (job,) = sweep.jobs
    code = {**job.decides["code"], "orlog.algos": "0" * 64}
    other = dataclasses.replace(sweep, jobs=[dataclasses.replace(job, decides={**job.decides, "code": code})])
    run_sweep(other, executor=on_a_node)
    (failure,) = other.failures
    assert "another code than where the sweep was started" in failure.message


@pytest.mark.thorough
def test_a_sweep_that_is_killed_goes_on_and_two_at_once_share(mini):
    words = ["sweep", "--datasets", mini.name, "--algorithms", "bc", "--seeds", "6"]
    words += ["--steps", "50", "--episodes", "2", "--workers", "2", "--json"]
    command = [sys.executable, "-m", "orlog.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as begun:
        while begun.poll() is None and not [*finished_results()]:
            time.sleep(0.05)
        begun.kill()
    done = when()
    assert done
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    first, second = (json.loads(process.communicate()[0]) for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert first == second
    assert len(when()) == 6
    assert done.items() <= when().items()
