"""Streams of versions that are read in place ask ahead: nothing twice, nothing after the end, and errors reach the reader."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import sys
import threading
import time

import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog import publish_dataset
from orlog.datasets.download import in_place
from orlog.datasets.download.in_place import open_in_place
from orlog.errors import TransferError
from tests.datasets.download.test_in_place import SHORT
from tests.servers import COMES, Fault, FileServer

EPISODES, LENGTH, NUMBERS = 60, 400, 300
BUFFER = 2**23
"""Of `orlog.transitions(.., stream=True)`: a group is about an eighth of the data."""


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """Return a registry with a version of random numbers in many chunks."""
    generator = np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("author")))
        with orlog.DatasetWriter(
            "lab/many-v1",
            observation_space=spaces.Box(-9, 9, (NUMBERS,), np.float32),
            action_space=spaces.Box(-9, 9, (2,), np.float32),
        ) as writer:
            for _ in range(EPISODES):
                writer.add_episode(
                    orlog.Episode(
                        observations=generator.random((LENGTH + 1, NUMBERS), np.float32),
                        actions=generator.random((LENGTH, 2), np.float32),
                        rewards=generator.random(LENGTH),
                        terminations=np.zeros(LENGTH, bool),
                        truncations=np.arange(LENGTH) == LENGTH - 1,
                    )
                )
        folder = tmp_path_factory.mktemp("registry")
        publish_dataset("lab/many-v1", str(folder), audit=False)
    return folder


@pytest.fixture
def served(registry, monkeypatch):
    """Return a server of it, which is read by small ranges."""
    monkeypatch.setattr(in_place, "WHOLE_BYTES", 0)
    monkeypatch.setattr(in_place, "PIECE_BYTES", 2**18)
    with FileServer(registry) as server:
        yield server


def opened(served):
    return open_in_place(f"{served.url}/lab/many-v1/1.0.0", patience=SHORT)


@contextlib.contextmanager
def switching_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def same_values(one, other):
    return torch.equal(one.observations, other.observations) and torch.equal(
        one.next_observations, other.next_observations
    )


def test_an_epoch_asks_for_nothing_twice_and_gives_what_is_there(served, registry):
    ds = opened(served)
    whole = orlog.load_dataset(registry / "lab/many-v1/1.0.0")
    found = orlog.transitions(ds, 100, seed=3, buffer_bytes=BUFFER, stream=True)
    same = orlog.transitions(whole, 100, seed=3, buffer_bytes=BUFFER, stream=True)
    assert found.mixing.blocks_in_group < found.mixing.blocks / 5
    with switching_often():
        batches = zip(found, same, range(EPISODES * LENGTH // 100), strict=False)
        for one, other, index in batches:
            assert same_values(one, other), index
    assert served.sent_bytes < 1.05 * ds.manifest.size_bytes
    asked = [(one.path, one.headers.get("Range")) for one in served.requests]
    assert len(asked) == len({*asked})
    # Batches made together, one by one, and by their number are the same.
    for index in (0, 17, 101):
        assert same_values(found.batch(index), same.batch(index))


def let_requests_end():
    """Wait until no thread works on a request: then all of them can meet."""
    for kind in ("chunks", "indexes", "hashes"):
        pool, meet = in_place._requests(os.getpid(), kind), threading.Barrier(in_place.AT_ONCE)
        for one in [pool.submit(meet.wait, COMES) for _ in range(in_place.AT_ONCE)]:
            one.result()


def test_a_stream_that_is_closed_asks_for_nothing_more(served):
    ds = opened(served)
    stream = iter(orlog.transitions(ds, 100, seed=0, buffer_bytes=BUFFER, stream=True))
    next(stream)
    stream.close()  # it is a generator
    let_requests_end()
    before = served.sent_bytes
    assert before < 0.7 * ds.manifest.size_bytes
    time.sleep(0.3)
    assert served.sent_bytes == before


class Gate:
    """Lets the first requests for chunks wait until it is opened."""

    def __init__(self, count):
        self.left, self.open, self.all_wait = count, threading.Event(), threading.Event()
        self.lock = threading.Lock()

    def __call__(self, _request):
        with self.lock:
            self.left -= 1
            waits = self.left >= 0
        if self.left <= 0:
            self.all_wait.set()
        if waits:
            assert self.open.wait(COMES)
        return True


def test_a_reader_asks_itself_for_what_another_took_back(served, registry):
    ds = opened(served)
    expected = orlog.load_dataset(registry / "lab/many-v1/1.0.0").column("observations")
    episodes = np.arange(EPISODES)
    ds.fetch_ahead(episodes, indexes=True)
    gate = Gate(in_place.AT_ONCE)
    served.allows = gate
    ahead = []
    ds.fetch_ahead(episodes, ["observations"], ahead)
    assert len(ahead) > 2 * in_place.AT_ONCE
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(ds.column, "observations")
        time.sleep(0.1)  # until it waits for what is on its way
        for one in ahead:
            one.cancel()
        gate.open.set()
        assert np.array_equal(reading.result(COMES), expected)


def read_in_a_fork(ds, answer):
    answer.put(ds.column("observations").tobytes())


@pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be forked")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_does_not_wait_for_the_threads_of_its_parent(served, registry):
    ds = opened(served)
    expected = orlog.load_dataset(registry / "lab/many-v1/1.0.0").column("observations")
    ds.fetch_ahead(np.arange(EPISODES), indexes=True)
    gate = Gate(in_place.AT_ONCE)
    served.allows = gate
    ahead = []
    ds.fetch_ahead(np.arange(EPISODES), ["observations"], ahead)
    assert gate.all_wait.wait(COMES)
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=read_in_a_fork, args=(ds, answer))
    child.start()
    try:
        assert answer.get(timeout=COMES) == expected.tobytes()
    finally:
        child.kill()
        child.join()
        gate.open.set()
        for one in ahead:
            one.cancel()


def test_what_could_not_be_fetched_ahead_is_told_to_who_needs_it(served):
    ds = opened(served)
    _ = ds.episode_lengths
    served.faults.append(Fault(path="observations/c.0.0", status=404))
    stream = orlog.transitions(ds, 100, seed=0, buffer_bytes=BUFFER, stream=True)
    with pytest.raises(TransferError, match=r"observations/c\.0\.0.*404 Not Found"):
        for _ in zip(stream, range(EPISODES * LENGTH // 100), strict=False):
            pass
