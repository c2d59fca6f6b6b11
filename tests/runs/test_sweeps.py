"""Sweeps: jobs whose results lie under a key, run once by any number of sweeps and kills."""

import contextlib
import dataclasses
import errno
import json
import shutil
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from orlog.algos.training.runs import TrainOptions, read_evaluation, read_run
from orlog.base.files import sole_access
from orlog.base.processes import result_or_error
from orlog.errors import StoppedError, StorageError
from orlog.executors.processes import execute
from orlog.normalize import baselines
from orlog.normalize.baselines import read_baseline
from orlog.runs.jobs import steps_to_reproduce
from orlog.runs.results import RESULT_FILE, finished_results, key_of, read_result, result_folder, results_folder
from orlog.runs.sweeps import plan_sweep, run_sweep, suite_datasets
from tests.command_line import orlog
from tests.small_disks import fill
from tests.training import train_run

CHECKPOINT = "checkpoint.safetensors"


def small(dataset, algorithms=("bc",), seeds=2, **more):
    options = TrainOptions(steps=2, evaluations=1, **more)
    return plan_sweep([dataset.name], algorithms, seeds=range(seeds), episodes=1, options=options)


def keys(sweep):
    return [key_of(job.decides) for job in sweep.jobs]


def stored():
    """Return the returns of every finished result, by key."""
    return {folder.name: read_evaluation(folder).returns for folder in finished_results()}


def when():
    """Return when every finished result was finished, by key."""
    keys = [folder.name for folder in finished_results()]
    return {key: json.loads((result_folder(key) / RESULT_FILE).read_bytes())["finished"] for key in keys}


@pytest.mark.usefixtures("jobs_run_here")
def test_the_command_sweeps_does_equal_work_once_and_leaves_out_what_does_not_apply(mini):
    words = ["sweep", "--datasets", mini.name, "--algorithms", "bc,gcbc"]
    words += ["--steps", "2", "--episodes", "1", "--seeds", "0-1", "--json"]
    found = orlog(*words)
    assert found.returncode == 0, found.stderr
    body = json.loads(found.stdout)
    assert [one["algorithm"] for one in body["results"]] == ["bc", "gcbc"]
    assert [[seed["seed"] for seed in one["seeds"]] for one in body["results"]] == [[0, 1]] * 2
    assert body["failures"] == []
    done = when()
    assert len(done) == 4
    again = orlog(*words)
    assert json.loads(again.stdout) == body
    assert when() == done

    left_out = orlog("sweep", "--datasets", mini.name, "--algorithms", "gcbc")
    assert "to train anyway, choose the number of steps as --steps." in left_out.stderr

    wrong = orlog("sweep", "--suite", "nothing", "--algorithms", "bc")
    assert wrong.returncode == 2
    assert "no suite 'nothing'; choose one of: all, agents" in wrong.stderr
    for names in ("--datasets", "--algorithms"):
        nothing = orlog(*words, names, ",")
        assert nothing.returncode == 2
        assert "',' names nothing" in nothing.stderr
    assert orlog("reproduce", "bc").returncode == 2
    assert orlog(*words, "--suite", "all").returncode == 2


@pytest.mark.usefixtures("jobs_run_here")
def test_whatever_decides_the_numbers_of_a_run_is_in_its_key(mini, monkeypatch):
    sizes = (8, 64, None)
    for size in sizes:
        run_sweep(small(mini, seeds=1, settings=size and {"batch_size": size}))
    default = small(mini, seeds=1).jobs[0].decides["config"]["batch_size"]
    trained = {read_run(folder).config["batch_size"] for folder in finished_results()}
    assert trained == {8, 64, default}

    monkeypatch.setattr("orlog.algos.training.train.has_fast_bf16", lambda _device: True)
    monkeypatch.setattr("orlog.runs.results.find_device", lambda name: name)
    asked = [{}, {"precision": "bf16"}, {"device": "cuda:0"}]
    asked += [{"keep_checkpoints": True}, {"preset": "none"}, {"settings": {"hidden": [4]}}]
    found = [keys(small(mini, ("iql",), seeds=1, **one))[0] for one in asked]
    assert len({*found}) == len(asked)
    assert found[2] == keys(small(mini, ("iql",), seeds=1, device="cuda:1"))[0]


@pytest.mark.usefixtures("jobs_run_here")
def test_a_sweep_records_the_baseline_of_each_algorithm_whose_seeds_are_all_done(mini, tmp_path, monkeypatch):
    records = tmp_path / "records"
    monkeypatch.setattr(baselines, "recorded_folder", lambda name: records / name)
    words = ["sweep", "--datasets", mini.name, "--algorithms", "bc,td3bc", "--steps", "2"]
    words += ["--episodes", "1", "--evaluations", "1", "--seeds", "0-1"]
    words += ["--out", str(tmp_path / "report"), "--record"]
    begun = small(mini, ("td3bc",))
    in_the_way = result_folder(keys(begun)[1]) / "metrics.jsonl"
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
        assert baseline is not None
        assert (baseline.digest, baseline.steps, [*baseline.returns]) == (mini.digest, 2, ["0", "1"])
    report = (tmp_path / "report" / "report.html").read_text("utf-8")
    assert "BC is identical" in report
    assert "TD3+BC is" not in report  # none was recorded when its report was written
    again = json.loads(orlog(*words[:-1], "--json").stdout)
    assert [one["verdict"]["word"] for one in again["results"]] == ["identical"] * 2


def test_suites_need_no_number_of_steps():
    discrete = ("acrobot", "cartpole", "lunarlander-mixed")
    for name in suite_datasets("classic") + suite_datasets("pointmaze"):
        algorithms = ["bc", "cql", "iql", "percent_bc"]
        if "-stitch-" in name or "-goals-" in name:
            algorithms = ["gcbc", "gciql", "gcivl", "hiql"]
        elif not name.partition("/")[2].startswith(discrete):
            algorithms += ["fql", "rebrac", "td3bc"]
        for algorithm in algorithms:
            assert steps_to_reproduce(algorithm, name, 1) <= 12_000, (algorithm, name)


def test_what_nothing_says_how_long_to_train_is_left_out_and_a_name_that_is_nowhere_is_a_failure(mini):
    names = [mini.name, "nowhere/nothing-v1"]
    sweep = plan_sweep(names, ["gcbc"], seeds=[0], episodes=1)
    assert sweep.jobs == []
    (line,) = sweep.left_out
    assert line.startswith(f"gcbc on {mini.name} is left out: orlog has neither a recipe nor")
    (failure,) = sweep.failures
    assert failure.what == "nowhere/nothing-v1"
    with pytest.raises(ValueError, match="a dataset is named twice"):
        plan_sweep([mini.name] * 2, ["bc"], seeds=[0], episodes=1)
    with pytest.raises(ValueError, match=f"both {mini.name}, which a report could not tell"):
        plan_sweep([mini.name, f"{mini.name}@{mini.version}"], ["bc"], seeds=[0], episodes=1)


def test_a_view_has_no_baseline_to_record_and_is_not_swept_with_its_dataset(mini, tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "recorded_folder", lambda name: tmp_path / "records" / name)
    view = tmp_path / "view.json"
    mini[:5].save(view)
    words = ["sweep", "--algorithms", "bc", "--steps", "2", "--episodes", "1", "--seeds", "1"]
    recorded = orlog(*words, "--datasets", str(view), "--record")
    assert recorded.returncode == 2
    assert f"a view of {mini.name} has no baseline of its own" in recorded.stderr
    both = orlog(*words, "--datasets", f"{mini.name},{view}")
    assert f"{mini.name} and {view} are both {mini.name}" in " ".join(both.stderr.split())
    assert stored() == {}
    assert not (tmp_path / "records").exists()


def test_a_misspelled_algorithm_is_found_before_anything_is_built(monkeypatch):
    monkeypatch.setattr("orlog.runs.sweeps.build_dataset", lambda *_, **__: pytest.fail("it is built"))
    with pytest.raises(ValueError, match="no algorithm 'iqll'; did you mean"):
        plan_sweep(["pointmaze/umaze-mini-v1"], ["iqll"], seeds=[0], episodes=1)


@pytest.mark.usefixtures("jobs_run_here")
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

        run_sweep(sweep, progress=progress)
    assert order == [(1, 2, False, True), (2, 2, True, True)]
    assert sweep.failures == []
    expected = (tmp_path / "alone" / CHECKPOINT).read_bytes()
    assert (result_folder(second) / CHECKPOINT).read_bytes() == expected


@pytest.mark.usefixtures("jobs_run_here")
def test_a_job_that_fails_ends_no_other_and_a_full_disk_ends_the_sweep(mini, monkeypatch):
    sweep = small(mini, seeds=3)
    wanted = keys(sweep)
    in_the_way = result_folder(wanted[0]) / "metrics.jsonl"
    in_the_way.mkdir(parents=True)
    failing = small(mini, seeds=2)
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
    assert [one.what[-6:] for one in sweep.failures] == ["seed 0"]  # no further job was begun
    in_the_way.rmdir()
    run_sweep(sweep)
    assert all(read_result(key) for key in wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("room", [0, 2**12, 2**14, 2**16, 2**18, 2**20])
@pytest.mark.usefixtures("jobs_run_here")
def test_a_disk_that_gets_full_at_any_time_costs_no_result(room, mini, mount, monkeypatch):
    disk = mount("size=64m")
    shutil.copytree(mini.folder.parents[2], disk / "datasets")
    monkeypatch.setenv("ORLOG_HOME", str(disk))
    sweep = small(mini, ("bc", "iql"))
    filler = []

    def fill_after_the_first(done, _total):
        if done == 1 and not filler:
            filler.append(fill(disk, leave=room))

    with contextlib.suppress(StorageError):  # with some room, enough for one job
        run_sweep(sweep, workers=1, progress=fill_after_the_first)
    for failure in sweep.failures:
        assert "No space left on device" in failure.message or "is full" in failure.message
    before = when()
    assert keys(sweep)[0] in before
    filler[0].unlink()
    again = small(mini, ("bc", "iql"))
    run_sweep(again, workers=1)
    assert again.failures == []
    assert sorted(stored()) == sorted(keys(sweep))
    assert before.items() <= when().items()


@pytest.mark.usefixtures("jobs_run_here")
def test_a_damaged_or_edited_result_is_made_again(mini):
    run_sweep(small(mini))
    expected = stored()
    first, second = (result_folder(key) / RESULT_FILE for key in expected)
    edited = json.loads(second.read_text("utf-8"))
    edited["finished"] = "2026-01-01T00:00:00Z"
    for damaged in (first.read_bytes()[:200], first.read_bytes().replace(b"bc", b"iql")):
        first.write_bytes(damaged)
        second.write_text(json.dumps(edited), "utf-8")
        sweep = small(mini)
        assert sweep.results() == []
        run_sweep(sweep)
        assert sweep.failures == []
        assert stored() == expected


@pytest.mark.usefixtures("jobs_run_here")
@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json", "evaluation.json", CHECKPOINT])
def test_a_result_beside_which_a_digit_was_changed_is_made_again_and_kept(mini, name):
    sweep = small(mini, seeds=1)
    run_sweep(sweep)
    expected = stored()
    folder = result_folder(*expected)
    data = (folder / name).read_bytes()
    at = data.rindex(b"1") if name != CHECKPOINT else len(data) - 1
    edited = data[:at] + b"2" + data[at + 1 :]
    (folder / name).write_bytes(edited)
    notes = []
    again = small(mini, seeds=1)
    run_sweep(again, note=notes.append)
    assert again.failures == []
    (note,) = notes
    assert name in note
    assert stored() == expected
    set_aside = results_folder() / ".damaged" / folder.name / name
    assert set_aside.read_bytes() == edited
    notes.clear()
    run_sweep(small(mini, seeds=1), note=notes.append)
    assert notes == []


@pytest.mark.usefixtures("jobs_run_here")
def test_a_run_that_has_begun_and_lost_a_file_is_trained_again(mini):
    sweep = small(mini, seeds=1)
    run_sweep(sweep)
    expected = stored()
    folder = result_folder(*expected)
    whole = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != RESULT_FILE}
    for name, content in (
        ("run.json", None),
        ("metrics.jsonl", None),
        ("metrics.jsonl", b""),
        ("metrics.jsonl", b"\xff{\n"),
    ):
        shutil.rmtree(folder)
        folder.mkdir()
        for other, data in whole.items():
            (folder / other).write_bytes(data)
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
        run_sweep(sweep)
        assert sweep.failures == [], name
        assert stored() == expected


def another_home(home, monkeypatch, before=lambda: None):
    """Return an executor whose jobs see another home; something is done before each."""

    def execute(
        function,
        jobs,
        *,
        workers,  # noqa: ARG001 (as every executor has)
        running,  # noqa: ARG001
    ):
        for index, job in enumerate(jobs):
            before()
            with monkeypatch.context() as patch:
                patch.setenv("ORLOG_HOME", str(home))
                found = result_or_error(function, job)
            yield index, found

    return execute


def test_a_worker_whose_home_is_a_copy_of_this_one_loses_no_result_in_silence(mini, tmp_path, monkeypatch):
    home, copy = results_folder().parent, tmp_path / "copy"
    run_sweep(dataclasses.replace(small(mini), jobs=[]))
    shutil.copytree(home, copy)  # with what tells it from others
    sweep = small(mini, seeds=1)
    run_sweep(sweep, executor=another_home(copy, monkeypatch))
    assert sweep.failures == []
    assert read_result(keys(sweep)[0]) is not None

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
    run_sweep(sweep, executor=on_a_node)
    assert sweep.failures == []
    (key,) = keys(sweep)
    there = tmp_path / "node" / "results" / key
    assert (there / "checkpoints").is_dir()
    for path in filter(Path.is_file, there.rglob("*")):
        here = results_folder() / key / path.relative_to(there)
        assert here.read_bytes() == path.read_bytes()
    assert read_result(key) is not None

    (job,) = sweep.jobs
    code = {**job.decides["code"], "orlog.algos": "0" * 64}
    changed = dataclasses.replace(job, decides={**job.decides, "code": code})
    other = dataclasses.replace(sweep, jobs=[changed])
    run_sweep(other, executor=on_a_node)
    (failure,) = other.failures
    assert "another code (orlog.algos) than where the sweep was started" in failure.message


@pytest.mark.thorough
def test_memory_does_not_grow_with_jobs():
    def peak(count):
        tracemalloc.start()
        found = execute(abs, iter(range(count)), workers=2, running=lambda _job: None)
        assert sum(1 for _ in found) == count
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(10_000) < peak(100) + 2**20


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
    said = [json.loads(one.communicate()[0]) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert said[0] == said[1]
    found = when()
    assert len(found) == 6
    assert done.items() <= found.items()
