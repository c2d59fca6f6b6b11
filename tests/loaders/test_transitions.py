import hashlib
import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

from orlog import load_dataset, transitions
from orlog.loaders.arrays import Arrays
from orlog.loaders.batch import Batch
from orlog.loaders.streams import BLOCK, Batches, draw, stream_key
from orlog.loaders.transitions import TransitionSampler
from tests.batches import columns

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-1, 1, (2,), np.float32)
DIGEST = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def dataset(write, make):
    rng = np.random.default_rng(1)
    ends = itertools.cycle(["termination", "truncation", "cut"])
    episodes = [make(OBS, ACTION, length=length, end=next(ends), rng=rng) for length in (1, 5, 1, 9, 3)]
    return write(episodes, OBS, ACTION)


def numbered(steps):
    """Return transitions of one episode whose observations and rewards are 0, 1, 2, ..."""
    rows = torch.zeros(steps + 1, 1 + 1 + 3)
    rows[:, 0] = rows[:, 2] = torch.arange(steps + 1)
    return Arrays(rows=rows, lengths=np.array([steps]), obs_dim=1, action_dim=1)


def digest_of(stream, batches):
    total = hashlib.sha256()
    for batch in itertools.islice(stream, batches):
        for name in columns(Batch):
            total.update(getattr(batch, name).contiguous().numpy().tobytes())
    return total.hexdigest()


@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_batches_are_slices_of_one_stream_of_draws(batch_size):
    packed = numbered(50)
    stream = Batches(TransitionSampler(packed), DIGEST, batch_size=batch_size, seed=2)
    found = torch.cat([batch.rewards for batch in itertools.islice(stream, BLOCK + 5)])
    expected = draw(stream_key(DIGEST, 2), 0, (BLOCK + 5) * batch_size, 50)
    assert found.tolist() == expected.tolist()


def test_a_new_process_draws_the_same_batches(dataset):
    script = (
        "import sys, itertools, hashlib, dataclasses, pathlib\n"
        "from orlog.loaders.batch import Batch\n"
        "import orlog\n"
        "total = hashlib.sha256()\n"
        "data = orlog.load_dataset(pathlib.Path(sys.argv[1]))\n"
        "for batch in itertools.islice(orlog.transitions(data, 7, seed=3, start=60), 10):\n"
        "    for field in dataclasses.fields(Batch)[1:7]:\n"
        "        total.update(getattr(batch, field.name).contiguous().numpy().tobytes())\n"
        "print(total.hexdigest())\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, str(dataset.folder)], check=True, capture_output=True, text=True
    )
    assert child.stdout.strip() == digest_of(transitions(dataset, 7, seed=3, start=60), 10)


def test_batches_are_float32_of_the_asked_size(mini):
    batch = transitions(mini, seed=0).batch(0)
    for name in columns(Batch):
        tensor = getattr(batch, name)
        assert tensor.dtype == torch.float32
        assert len(tensor) == 256
    assert batch.rewards.ndim == batch.terminations.ndim == batch.truncations.ndim == 1


def test_a_stream_depends_on_seed_and_on_the_dataset(mini_folder):
    mini = load_dataset(mini_folder)
    packed = transitions(mini, seed=0).arrays
    streams = [
        Batches(TransitionSampler(packed), digest, batch_size=16, seed=seed)
        for digest, seed in [(mini.digest, 0), (mini.digest, 1), (DIGEST, 0)]
    ]
    assert len({digest_of(stream, 2) for stream in streams}) == 3
