"""Runs that read their data block by block, in place or not: what they learn from, in how much memory, and kills."""

import json
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog import publish_dataset
from orlog.algos.algorithms import ALGORITHMS
from orlog.algos.training import run_data
from orlog.algos.training.commands import dataset_words, resume_command
from orlog.algos.training.evaluating import load_run
from orlog.algos.training.run_data import LoadedData, StreamedData
from orlog.algos.training.runs import CHECKPOINT_FILE, RUN_FILE, read_run
from orlog.datasets.download.in_place import open_in_place
from orlog.errors import SchemaError
from orlog.loaders import statistics, streaming
from orlog.loaders.streaming import STREAMED, stream_loader
from tests.command_line import orlog as run
from tests.episodes import whole_episode
from tests.servers import FileServer
from tests.training import train_run

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__, "torch._dynamo"])  # which optimizers import
NAME = "lab/steps-v1"
PLACE = {"rank": 0, "ranks": 1}


def write(name, lengths, width, *, noise=True):
    """Record episodes whose reward at a step is its number in the dataset."""
    rng = np.random.default_rng(0)
    first = 0
    with orlog.DatasetWriter(
        name,
        observation_space=spaces.Box(-np.inf, np.inf, (width,), np.float32),
        action_space=spaces.Box(-1, 1, (2,), np.float32),
    ) as writer:
        for length in lengths:
            seen = rng.normal(size=(length + 1, width)) if noise else np.ones((length + 1, width))
            writer.add_episode(
                whole_episode(
                    seen.astype(np.float32),
                    rng.uniform(-1, 1, (length, 2)).astype(np.float32),
                    np.arange(first, first + length, dtype=np.float64),
                )
            )
            first += length
    return orlog.load_dataset(name)


@pytest.fixture
def steps(home):  # noqa: ARG001
    return write(NAME, [5, 40, 1, 17, 8, 29, 3, 60, 12, 25] * 3, 3)


@pytest.fixture
def served(steps, tmp_path):
    """Return a server of a registry with the dataset, which a new home reads in place."""
    publish_dataset(steps.folder, str(tmp_path / "registry"))
    with FileServer(tmp_path / "registry") as server:
        yield server


@pytest.mark.parametrize("loader", STREAMED)
def test_every_step_comes_once_an_epoch_as_its_loader_gives_it(steps, loader, monkeypatch):
    monkeypatch.setattr("orlog.loaders.streaming.BLOCK_BYTES", 2000)
    own = {
        "sequences": {"length": 60},  # as only the longest episode, which few groups have
        "windows": {"observations": (-1, 0), "actions": (0, 1), "rewards": True},
        "action_chunks": {"length": 60},
    }
    arguments = own.get(loader.rpartition(":")[2], {})
    stream = stream_loader(steps, loader, {"batch_size": 7, **arguments}, seed=3)
    stream._group_rows = 150  # instead of the whole dataset
    total = steps.total_steps
    batches = [one for one, _ in zip(stream, range(total), strict=False)]  # 7 epochs
    firsts = torch.cat([_first(one, loader) for one in batches]).numpy().astype(int)
    for epoch in firsts.reshape(7, total):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(total))
    plain = orlog.transitions(steps, 7, seed=3, stream=True)
    plain._group_rows = 150
    np.testing.assert_array_equal(plain.batch(5).rewards.numpy(), firsts[35:42])
    # What a loader gathers of all steps in memory for the same ones.
    module, _, function = loader.partition(":")
    whole = getattr(sys.modules[module], function)(orlog.load_arrays(steps), 7, seed=0, **PLACE, **arguments)
    drawn = ((firsts[35:42] + 0.5) / total)[:, None]
    expected = whole.sampler.gather(whole.sampler.choose(drawn))
    for name in expected.__dataclass_fields__:
        found, wanted = getattr(batches[5], name), getattr(expected, name)
        if wanted is not None and name != "infos":
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def _first(batch, loader):
    """Return the reward of the step of each item."""
    if loader.endswith("action_chunks"):  # sums: the observation is enough to find the step by
        return _of_chunks(batch)
    rewards = batch.rewards
    return rewards if rewards.ndim == 1 else rewards[:, 0]


def _of_chunks(batch):
    """Solve the discounted sum of consecutive numbers for the first of them."""
    counts = batch.valid.sum(1).double()
    powers = 0.99 ** torch.arange(batch.valid.shape[1]).double()
    sums = torch.stack([powers[: int(one)].sum() for one in counts])
    ramps = torch.stack([(powers[: int(one)] * torch.arange(int(one))).sum() for one in counts])
    return ((batch.rewards.double() - ramps) / sums).round()


def assert_statistics(found, expected):
    for part in ("observations", "actions", "rewards", "returns"):
        for number in ("mean", "std", "low", "high"):
            values = getattr(getattr(found, part), number), getattr(getattr(expected, part), number)
            np.testing.assert_array_equal(*values, err_msg=f"{part} {number}")


def test_statistics_are_those_of_all_in_memory(steps, monkeypatch):
    for rows in (65536, 37, 1):
        monkeypatch.setattr(statistics, "_BLOCK_ROWS", rows)
        found, expected = (statistics.stream_statistics(steps), statistics.compute_statistics(orlog.load_arrays(steps)))
        assert_statistics(found, expected)
        path = statistics.statistics_file(steps.digest)
        assert path is not None
        assert_statistics(statistics.load_statistics(orlog.load_arrays(steps)), expected)
        path.unlink()


def test_what_a_run_takes_from_its_data_is_the_same(steps):
    kind = ALGORITHMS["bc"]
    streamed = StreamedData(kind, kind.CONFIG(), steps, lambda _: None)
    whole = LoadedData(orlog.load_arrays(steps))
    for data in (streamed, whole):
        data.change_rewards(0.5, -1.0)
    np.testing.assert_allclose(streamed.returns, whole.returns, rtol=1e-6)
    assert streamed.has_rewards
    for one, other in zip(streamed.statistics(), whole.statistics(), strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(SchemaError, match="sum of cost by episode needs all steps in memory"):
        streamed.sum_of("cost")
    with pytest.raises(SchemaError, match="needs all steps in memory; give stream=False"):
        _ = streamed.arrays


def test_only_the_best_episodes_are_streamed_to_an_algorithm_that_chooses_them(steps):
    kind = ALGORITHMS["percent_bc"]
    data = StreamedData(kind, kind.CONFIG(), steps, lambda _: None)
    batches = iter(data.batches(kind, kind.CONFIG(), 0, "cpu")(0))
    drawn = {int(one) for _ in range(10) for one in next(batches).rewards}
    ends = np.cumsum(steps.episode_lengths)
    best = steps.top_episodes(10.0)
    there = {int(one) for one in best.column("rewards")}
    assert drawn == there
    assert len(there) < ends[-1] / 3


@pytest.mark.parametrize("name", ["gcbc", "rlpd"])
def test_what_needs_all_of_the_data_is_refused_with_what_to_do(steps, tmp_path, name):
    kind = ALGORITHMS[name]
    with pytest.raises(SchemaError, match=r"cannot be streamed: .*; give stream=False"):
        run_data.check_streams(kind, kind.CONFIG(), steps)
    mixed = orlog.combine_datasets([steps, steps[:3]], weights=[1, 2])
    with pytest.raises(SchemaError, match="a weighted mixture has no epochs"):
        train_run("bc", mixed, tmp_path / "run", steps=1, evaluations=0, stream=True)
    assert not (tmp_path / "run" / RUN_FILE).exists()


def test_a_dataset_in_place_is_streamed_and_its_record_says_so(served, tmp_path, monkeypatch):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "reader"))
    monkeypatch.chdir(tmp_path)
    run("registry", "add", "lab", served.url, "--in-place")
    said = run("train", "bc", NAME, "--steps", "20", "--evaluations", "0")
    assert "training streams it" in said.stderr
    assert "its statistics are computed once" in said.stderr
    folder = tmp_path / "runs/bc" / NAME / "seed-0"
    assert json.loads((folder / RUN_FILE).read_text())["stream"] is True
    assert (tmp_path / "reader/in-place").is_dir()
    other = run("train", "bc", NAME, "--steps", "20", "--evaluations", "0", "--no-stream", "--resume")
    assert other.returncode == 1
    assert "holds a run where stream is True, not False; to continue it, give --stream" in other.stderr
    again = run("train", "--resume", str(folder))
    assert again.returncode == 0
    assert "resuming from step 20 of 20" in again.stderr
    # Several seeds in processes, which share what is kept.
    many = run("train", "bc", NAME, "--steps", "20", "--evaluations", "0", "--seeds", "2", "--out", "two")
    assert many.returncode == 0, many.stderr
    # The same batches from a copy on this machine.
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "copy"))
    run("registry", "add", "lab", served.url)
    run("download", NAME)
    local = tmp_path / "local"
    run("train", "bc", NAME, "--steps", "20", "--evaluations", "0", "--stream", "--out", str(local))
    assert (local / CHECKPOINT_FILE).read_bytes() == (folder / CHECKPOINT_FILE).read_bytes()
    shutil.rmtree(local)
    run("train", "bc", NAME, "--steps", "20", "--evaluations", "0", "--out", str(local))
    assert "stream" not in json.loads((local / RUN_FILE).read_text())
    assert (local / CHECKPOINT_FILE).read_bytes() != (folder / CHECKPOINT_FILE).read_bytes()


def test_what_to_run_next_names_the_url_of_a_dataset_that_was_given_by_it_alone(served, tmp_path, monkeypatch):
    home = tmp_path / "reader"
    monkeypatch.setenv("ORLOG_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    url = f"{served.url}/{NAME}"
    said = run("train", "bc", url, "--stream", "--steps", "20", "--evaluations", "0", "--out", "a b")
    assert said.returncode == 0, said.stderr
    folder = Path("a b")
    dataset = orlog.load_dataset(url, in_place=True)
    line = resume_command(folder, read_run(folder), dataset)
    assert f"{url}/{dataset.version}" in line
    again = run(*shlex.split(line)[1:])
    assert again.returncode == 0, again.stderr
    assert "resuming from step 20 of 20" in again.stderr
    found = load_run(folder, dataset=dict([dataset_words(dataset)])["--dataset"])
    assert found.dataset.in_place
    assert not (home / "datasets").exists()  # nothing was downloaded
    run("registry", "add", "lab", served.url, "--in-place")
    named = orlog.load_dataset(NAME)
    assert named.in_place
    assert dataset_words(named) == []
    assert resume_command(folder, read_run(folder), named) == "orlog train --resume 'a b'"


def train_in_process(home, url, folder, kill_at):
    """Train on a dataset in place, from the folder's checkpoint if there is one; 0 kills never."""
    os.environ["ORLOG_HOME"] = home
    done = 0

    def stop():
        nonlocal done
        done += 1
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    settings = {"batch_size": 32, "hidden": [16]}
    train_run(
        "bc",
        open_in_place(url),
        Path(folder),
        resume=True,
        stop=stop,
        steps=100,
        evaluations=0,
        settings=settings,
        stream=True,
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_streamed_run_that_is_killed_and_resumed_equals_one_that_was_not(served, steps, tmp_path):
    url = f"{served.url}/{NAME}/{steps.manifest.version}"
    codes = []
    for folder, kill_at in (("whole", 0), ("cut", 47), ("cut", 30), ("cut", 0)):
        process = CONTEXT.Process(
            target=train_in_process, args=(str(tmp_path / "reader"), url, str(tmp_path / folder), kill_at)
        )
        process.start()
        process.join()
        codes.append(process.exitcode)
    assert codes == [0, -signal.SIGKILL, -signal.SIGKILL, 0]
    whole, cut = ((tmp_path / one / CHECKPOINT_FILE).read_bytes() for one in ("whole", "cut"))
    assert whole == cut


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
