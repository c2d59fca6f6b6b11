"""Workers that fail, or die, and packs that change below them: the main process says so."""

import collections
import dataclasses
import math
import pickle
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import orlog
from orlog.errors import IntegrityError, ManifestError, SchemaError
from orlog.loaders.packs import pack_folder
from tests.programs import run_program

STATE = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-2, 3, (2,), np.float32)
SIZE = 6
SECONDS = 600  # two processes import torch in it, beside whatever else runs; nothing should wait for its end


def error_of(stream, error, message):
    """Return what a worker's error says in the main process."""
    batches = DataLoader(stream, batch_size=None, num_workers=1, timeout=SECONDS)
    with pytest.raises(error, match=message) as found:
        collections.deque(batches, maxlen=0)
    return str(found.value)


# PyTorch raises about a dead worker wherever the main process is, which may be in pytest itself: so
# these main processes are of their own. What it raises, and in which words, depends on what the main
# process was doing, so any exception counts; it ends the process with an exit code of ours.
NOTICED = 70
KILL = """
import os, pickle, signal, sys
import orlog
from torchdata.stateful_dataloader import StatefulDataLoader

stream = orlog.transitions(orlog.load_dataset(sys.argv[1]), 6, seed=3)
method = sys.argv[2]
loader = StatefulDataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context=method)
batches = iter(loader)
for _ in range(3):
    next(batches)
with open(sys.argv[3], "wb") as file:
    pickle.dump(loader.state_dict(), file)
try:
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    for _ in batches:
        pass
except Exception:
    os._exit(int(sys.argv[-1]))
"""
CUT_SHORT = """
import os, sys
import orlog
from torch.utils.data import DataLoader

arrays = orlog.load_arrays(orlog.load_dataset(sys.argv[1]), "mmap")
batches = iter(DataLoader(orlog.transitions(arrays, 6, seed=0), batch_size=None, num_workers=1))
next(batches)
try:
    os.truncate(sys.argv[2], 0)
    for _ in batches:
        pass
except Exception:
    os._exit(int(sys.argv[-1]))
"""


def notice_a_dead_worker(code, *arguments):
    """Assert that a main process of its own gets an exception: no signal, no end, no waiting."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, (*arguments, NOTICED))]
    ended = run_program(command, timeout=SECONDS)
    assert ended.returncode == NOTICED, ended


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is deprecated, please do not call:UserWarning")  # torchdata
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.thorough)])
def test_a_killed_worker_is_noticed_and_the_stream_goes_on(mini, method, tmp_path):
    notice_a_dead_worker(KILL, mini.folder, method, tmp_path / "state")
    stream = orlog.transitions(mini, 6, seed=3)
    again = StatefulDataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context=method)
    again.load_state_dict(pickle.loads((tmp_path / "state").read_bytes()))
    for index, batch in zip((3, 4), again, strict=False):
        assert torch.equal(batch.rewards, stream.batch(index).rewards)


@pytest.mark.slow
def test_a_pack_that_is_cut_short_in_use_ends_the_worker_not_the_main_process(mini, caplog):
    orlog.load_arrays(mini, "mmap")
    notice_a_dead_worker(CUT_SHORT, mini.folder, pack_folder(mini) / "rows.f32")
    orlog.load_arrays(mini, "mmap")
    assert re.search(r"rows\.f32: expected \d+ bytes, found 0", caplog.text)


def test_numbers_that_are_not_finite_are_named_from_a_worker(write, make):
    rng = np.random.default_rng(0)
    episodes = [make(STATE, ACTION, length=length, end="cut", rng=rng) for length in (3, 5)]
    actions = np.array(episodes[1].actions)
    actions[3] = math.nan
    episodes[1] = dataclasses.replace(episodes[1], actions=actions)
    dataset = write(episodes, STATE, ACTION)
    stream = orlog.transitions(dataset, SIZE, seed=0, stream=True)
    place = r"(?s)small-v1: .* in column actions, episode 1, step 3;.*allow_non_finite=True"
    error_of(stream, SchemaError, place)


def test_a_damaged_file_is_named_from_a_worker(mini):
    shard = max((mini.folder / "actions").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0xFF
    shard.write_bytes(content)
    stream = orlog.transitions(mini, SIZE, seed=0, stream=True)
    message = error_of(stream, IntegrityError, "(?s)actions.*run: orlog verify")
    assert str(mini.folder) in message


def test_a_reward_that_fails_in_a_worker_says_what_it_was_given(mini):
    stream = orlog.goals(mini, SIZE, seed=0, reward=lambda have, _: have)
    message = r"(?s)shape \(6,\), found \(6, \d\)"
    error_of(stream, ValueError, message)


@pytest.mark.thorough
def test_a_pack_that_is_removed_while_it_is_in_use_is_used_on(mini):
    mapped = orlog.load_arrays(mini, "mmap")
    stream = orlog.transitions(mapped, SIZE, seed=0)
    before = stream.batch(0)
    shutil.rmtree(pack_folder(mini))
    for batch in (stream.batch(0), next(iter(DataLoader(stream, batch_size=None, num_workers=1)))):
        assert torch.equal(batch.rewards, before.rewards)
    with pytest.raises(ManifestError, match=r"pack\.json"):
        pickle.loads(pickle.dumps(mapped))
    again = orlog.transitions(orlog.load_arrays(mini, "mmap"), SIZE, seed=0)
    assert torch.equal(again.batch(0).rewards, before.rewards)
