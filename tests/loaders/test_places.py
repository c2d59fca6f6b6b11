import logging
import shutil

import numpy as np
import pytest
import torch
from gymnasium import spaces

from orlog import load_arrays, transitions
from orlog.loaders import places
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.memory import Memory, measure_memory
from orlog.loaders.packs import MappedArrays, is_packed, open_pack
from orlog.loaders.places import choose_place
from orlog.manifests.names import size_text

SPACES = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Box(-2, 3, (2,), np.float32)
NEEDED = (10 + 3) * (3 + 2 + 3) * 4 + 10


@pytest.fixture(scope="session")
def small(write, make):
    """Return a dataset of three episodes and ten steps."""
    rng = np.random.default_rng(0)
    return write([make(*SPACES, length=n, end="cut", rng=rng) for n in (2, 5, 3)], *SPACES)


def test_what_a_dataset_needs_is_counted(small):
    arrays = read_arrays(small)
    counted = arrays.rows.nbytes + arrays.total_steps
    assert choose_place(small).needed_bytes == counted == NEEDED


@pytest.mark.parametrize(
    ("free", "kind", "reason"),
    [
        (2 * NEEDED, "ram", f"within half of the {size_text(2 * NEEDED)} of free memory"),
        (2 * NEEDED - 1, "mmap", f"more than half of the {size_text(2 * NEEDED - 1)} of free memory"),
        (0, "mmap", "more than half"),
        (10**10, "ram", "within half of the 10.0 GB of free memory"),
    ],
)
def test_auto_goes_by_size(small, free, kind, reason):
    place = choose_place(small, "auto", Memory(ram_bytes=free))
    assert (place.kind, place.device) == (kind, "")
    assert f"{size_text(NEEDED)} of arrays in {kind}: {reason}" in place.reason


def test_neither_memory_nor_disk_is_enough(small, monkeypatch):
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 0))
    with pytest.raises(ValueError, match=r"more than the 0 B of free disk.*stream=True"):
        choose_place(small, "auto", Memory(ram_bytes=0))
    monkeypatch.undo()
    open_pack(small)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 0))
    assert choose_place(small, "auto", Memory(ram_bytes=0)).kind == "mmap"  # the pack is there


@pytest.mark.parametrize("where", ["auto", "ram", "mmap"])
def test_the_same_batches_from_anywhere(small, where, caplog):
    with caplog.at_level(logging.INFO, "orlog"):
        arrays = load_arrays(small, where)
    assert type(arrays) is (MappedArrays if where == "mmap" else Arrays)
    assert is_packed(small) == (where == "mmap")
    (record,) = caplog.records
    assert f"tests/small-v1: {size_text(NEEDED)} of arrays in {'ram' if where == 'auto' else where}" in (
        record.getMessage()
    )
    batch = transitions(arrays, 64, seed=3).batch(7)
    expected = transitions(small, 64, seed=3).batch(7)
    torch.testing.assert_close(batch.observations, expected.observations, rtol=0, atol=0)
    torch.testing.assert_close(batch.rewards, expected.rewards, rtol=0, atol=0)


@pytest.mark.parametrize("where", ["", "disk", "cuda", "cpu", "GPU"])
def test_another_place_is_refused(small, where):
    if where == "cuda":
        with pytest.raises(ValueError, match="no GPU cuda:0"):
            choose_place(small, where, Memory(ram_bytes=10**9))
    else:
        with pytest.raises(ValueError, match="where must be auto, ram, mmap, gpu"):
            choose_place(small, where)


def test_a_gpu_with_room(small):
    memory = Memory(ram_bytes=0, gpu_bytes={"cuda:0": 1, "cuda:1": 8 * 10**10})
    place = choose_place(small, "cuda:1", memory)
    # With little RAM it is read by way of mapped files.
    assert (place.kind, place.device) == ("mmap", "cuda:1")
    assert "arrays in cuda:1: as asked for, with 80.0 GB free there; copied from mmap" in (place.reason)


def test_a_gpu_too_small_says_what_is_needed_and_what_else_to_do(small, monkeypatch):
    monkeypatch.setattr("orlog.loaders.filling.Layout.total_bytes", 2 * 10**10)
    memory = Memory(ram_bytes=10**12, gpu_bytes={"cuda:0": 2 * 10**10})
    with pytest.raises(
        ValueError,
        match=r"20\.0 GB of arrays do not fit into cuda:0, which has 20\.0 GB free, of which 90%"
        r".*where='mmap' or 'ram'",
    ):
        choose_place(small, "gpu", memory)


def test_a_gpu_that_is_not_there(small):
    memory = Memory(ram_bytes=10**9, gpu_bytes={"cuda:0": 10**9})
    with pytest.raises(ValueError, match=r"no GPU cuda:3 .*found: cuda:0.*where='ram'"):
        choose_place(small, "cuda:3", memory)


def test_arrays_are_moved_to_the_device(small, monkeypatch):
    """PyTorch's device without memory stands for a GPU."""
    place = places.Place(kind="mmap", device="meta", needed_bytes=1, reason="")
    monkeypatch.setattr(places, "choose_place", lambda *_, **__: place)
    arrays = load_arrays(small, "gpu")
    assert type(arrays) is Arrays
    assert arrays.rows.device.type == "meta"


def test_memory_is_measured_here():
    memory = measure_memory()
    assert memory.ram_bytes > 10**7
    assert memory.gpu_bytes == {}
    assert (measure_memory(gpus=True).gpu_bytes != {}) == torch.cuda.is_available()
