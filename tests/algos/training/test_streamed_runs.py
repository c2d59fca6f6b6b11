"""Runs that read their data block by block, in place or not: what they learn from, in how much memory, and kills."""

import json
import multiprocessing
import os
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import orlog
from orlog import publish_dataset
from orlog.algos.algorithms import ALGORITHMS
from orlog.algos.training.data import LoadedData, StreamedData
from orlog.algos.training.evaluating import load_run
from orlog.algos.training.runs import CHECKPOINT_FILE, RUN_FILE, dataset_words, read_run, resume_command
from orlog.errors import SchemaError
from orlog.loaders import statistics, streaming
from tests.command_line import orlog as run
from tests.loaders.streamed import NAME, write
from tests.loaders.streamed import steps as steps
from tests.servers import FileServer
from tests.training import short, train_run

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__, "torch._dynamo"])  # which optimizers import


@pytest.fixture
def served(steps, tmp_path):
    """Return a server of a registry with the dataset, which a new home reads in place."""
    publish_dataset(steps.folder, str(tmp_path / "registry"))
    with FileServer(tmp_path / "registry") as server:
        yield server


def test_what_a_run_takes_from_its_data_is_the_same(steps, tmp_path):
    kind = ALGORITHMS["bc"]
    streamed = StreamedData(kind, kind.CONFIG(), steps, lambda _: None)
    whole = LoadedData(orlog.load_arrays(steps))
    for data in (streamed, whole):
        data.change_rewards(0.5, -1.0)
        assert data.has_rewards
    np.testing.assert_allclose(streamed.returns, whole.returns, rtol=1e-6)
    torch.testing.assert_close(streamed.statistics(), whole.statistics())
    mixed = orlog.combine_datasets([steps, steps[:3]], weights=[1, 2])
    for what, word in (
        (lambda: streamed.sum_of("cost"), "sum of cost by episode needs all steps in memory; give stream=False"),
        (lambda: streamed.arrays, "needs all steps in memory; give stream=False"),
        (lambda: short("bc", mixed, tmp_path / "x", stream=True), "a weighted mixture has no epochs"),
        (lambda: short("gcbc", steps, tmp_path / "x", stream=True), "cannot be streamed: gcbc draws from all steps"),
        (lambda: short("cdt", steps, tmp_path / "x", settings=None, stream=True), "cannot be streamed"),
    ):
        with pytest.raises(SchemaError, match=word):
            what()
    assert not (tmp_path / "x").exists()


def test_only_the_best_episodes_are_streamed_to_an_algorithm_that_chooses_them(steps):
    kind = ALGORITHMS["percent_bc"]
    data = StreamedData(kind, kind.CONFIG(), steps, lambda _: None)
    batches = iter(data.batches(kind, kind.CONFIG(), 0, "cpu")(0))
    drawn = {int(one) for _ in range(10) for one in next(batches).rewards}
    best = {int(one) for one in steps.top_episodes(10.0).column("rewards")}
    assert drawn == best
    assert len(best) < steps.total_steps / 3


def test_a_dataset_in_place_is_streamed_and_its_record_says_so(served, tmp_path, monkeypatch):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "reader"))
    monkeypatch.chdir(tmp_path)
    run("registry", "add", "lab", served.url, "--in-place")
    said = run("train", "bc", NAME, "--steps", "4", "--evaluations", "0")
    assert "training streams it" in said.stderr
    assert "its statistics are computed once" in said.stderr
    folder = tmp_path / "runs/bc" / NAME / "seed-0"
    assert json.loads((folder / RUN_FILE).read_text())["stream"] is True
    assert (tmp_path / "reader/in-place").is_dir()
    other = run("train", "bc", NAME, "--steps", "4", "--evaluations", "0", "--no-stream", "--resume")
    assert other.returncode == 1
    assert "stream True, not stream False; to continue it, give --stream" in other.stderr
    again = run("train", "--resume", str(folder))
    assert again.returncode == 0
    assert "resuming from step 4 of 4" in again.stderr
    # Several seeds in processes, which share what is kept.
    many = run("train", "bc", NAME, "--steps", "4", "--evaluations", "0", "--seeds", "2", "--out", "two")
    assert many.returncode == 0, many.stderr
    # The same batches from a copy on this machine.
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "copy"))
    run("registry", "add", "lab", served.url)
    run("download", NAME)
    local = tmp_path / "local"
    run("train", "bc", NAME, "--steps", "4", "--evaluations", "0", "--stream", "--out", str(local))
    assert (local / CHECKPOINT_FILE).read_bytes() == (folder / CHECKPOINT_FILE).read_bytes()
    shutil.rmtree(local)
    run("train", "bc", NAME, "--steps", "4", "--evaluations", "0", "--out", str(local))
    assert "stream" not in json.loads((local / RUN_FILE).read_text())
    assert (local / CHECKPOINT_FILE).read_bytes() != (folder / CHECKPOINT_FILE).read_bytes()


def test_what_to_run_next_names_the_url_of_a_dataset_that_was_given_by_it_alone(served, tmp_path, monkeypatch):
    home = tmp_path / "reader"
    monkeypatch.setenv("ORLOG_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    url = f"{served.url}/{NAME}"
    said = run("train", "bc", url, "--stream", "--steps", "4", "--evaluations", "0", "--out", "a b")
    assert said.returncode == 0, said.stderr
    folder = Path("a b")
    dataset = orlog.load_dataset(url, in_place=True)
    line = resume_command(folder, read_run(folder), dataset)
    assert f"{url}/{dataset.version}" in line
    again = run(*shlex.split(line)[1:])
    assert again.returncode == 0, again.stderr
    assert "resuming from step 4 of 4" in again.stderr
    found = load_run(folder, dataset=dict([dataset_words(dataset)])["--dataset"])
    assert found.dataset.in_place
    assert not (home / "datasets").exists()  # nothing was downloaded
    run("registry", "add", "lab", served.url, "--in-place")
    named = orlog.load_dataset(NAME)
    assert named.in_place
    assert dataset_words(named) == []
    assert resume_command(folder, read_run(folder), named) == "orlog train --resume 'a b'"


def memory_of(home, name, folder, stream, told):
    """Train, and tell how much memory that took at most beside what there was, in MiB."""
    os.environ["ORLOG_HOME"] = home
    torch.set_num_threads(1)
    streaming.BUFFER_BYTES = 2**24
    statistics._BLOCK_BYTES = 2**22
    more = {"steps": 8, "evaluations": 0, "settings": {"hidden": [16]}}
    train_run("bc", "lab/small-v1", Path(folder, "small"), stream=stream, **more)
    before = resident("VmRSS")
    train_run("bc", name, Path(folder, "large"), stream=stream, **more)
    told.put(resident("VmHWM") - before)


def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(one for one in lines if one.startswith(field)).split()[1]) / 1024


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_data(home, tmp_path):
    write("lab/small-v1", [50] * 4, 512, noise=False)
    write("lab/large-v1", [100] * 800, 512, noise=False)  # 160 MB in memory
    found = {}
    for stream in (False, True):
        told = CONTEXT.Queue()
        folder = str(tmp_path / str(stream))
        process = CONTEXT.Process(target=memory_of, args=(str(home), "lab/large-v1", folder, stream, told))
        process.start()
        process.join()
        assert process.exitcode == 0
        found[stream] = told.get()
    assert found[False] > 150
    # The buffer of 16 MiB, and what is decoded and summed at a time: 48 to 75 MiB as threads come late or not.
    assert found[True] < 130, found
