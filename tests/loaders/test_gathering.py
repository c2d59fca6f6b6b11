"""The gather of rows, compiled and not, against rows that are taken one by one."""

import contextlib
import functools
import gc
import sys
import threading
import time
import types

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orlog.loaders import gathering
from orlog.loaders.gathering import expect_on_disk, gather_around, gather_rows, is_compiled
from tests.levels import scaled

WORST = (-1, -(2**63), -(2**40), 2**63 - 1, 2**40)
DTYPES = (torch.float32, torch.float64, torch.uint8, torch.int64, torch.bool)
COMPILED = pytest.mark.skipif(not is_compiled(), reason="installed without a compiler")


@pytest.fixture(autouse=True)
def _one_thread():
    """Keep PyTorch from taking over large gathers, as it does with many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[pytest.param("compiled", marks=COMPILED), "fallback"])
def _path(request, monkeypatch):
    """Run a test with the compiled gather and without it."""
    if request.param == "fallback":
        monkeypatch.setattr(gathering, "_compiled", None)


BOTH = pytest.mark.usefixtures("_path")


def rows_of(source, rows):
    """Return rows one by one: slow and obvious."""
    taken = [source[row] for row in rows.tolist()]
    return torch.stack(taken) if taken else source[:0]


@BOTH
@settings(  # the fixture is the same for all examples
    deadline=None, max_examples=scaled(60), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    available=st.integers(1, 40),
    width=st.integers(1, 90),
    more=st.integers(-90, 300),
    count=st.integers(0, 70),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_are_those_asked_for(available, width, more, count, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    numbers = max(1, width + more)  # narrower than a row, a row, or overlapping
    needed = (available - 1) * width + numbers
    storage = torch.randint(0, 256, (needed,), generator=generator).to(dtype)
    source = storage.as_strided((available, numbers), (width, 1))
    rows = torch.randint(0, available, (count,), generator=generator)
    found = gather_rows(source, rows)
    assert found.dtype == dtype
    assert found.is_contiguous()
    assert found.shape == (count, numbers)
    assert torch.equal(found, rows_of(source, rows))


@BOTH
def test_pictures():
    source = torch.randint(0, 256, (30, 8, 9, 3), dtype=torch.uint8)
    rows = torch.randint(0, 30, (50,))
    assert torch.equal(gather_rows(source, rows), rows_of(source, rows))


@BOTH
@pytest.mark.parametrize("count", [1, 5, 12, 13, 64])
def test_a_row_that_is_not_there_is_refused_wherever_it_stands(count):
    storage = torch.arange(100 * 4.0).reshape(100, 4)
    source = storage[20:80]
    for wrong in (*WORST, len(source), -len(source)):
        for place in range(count):
            rows = torch.zeros(count, dtype=torch.int64)
            rows[place] = wrong
            with pytest.raises(IndexError):
                gather_rows(source, rows)
    assert torch.equal(storage, torch.arange(100 * 4.0).reshape(100, 4))


def chosen_of(rows):
    """Return rows with the first and the last one of what they are part of, as samplers choose them."""
    return torch.tensor(rows).T.contiguous().T


@BOTH
@settings(deadline=None, max_examples=scaled(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    width=st.integers(1, 40),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    offsets=st.lists(st.integers(-14, 14), min_size=1, max_size=20),
    before_last=st.integers(0, 1),
    dtype=st.sampled_from(DTYPES),
    zeros=st.booleans(),
    data=st.data(),
)
def test_rows_around_others_are_the_nearest_of_their_part(width, lengths, offsets, before_last, dtype, zeros, data):
    total = sum(lengths) + len(lengths)
    storage = torch.arange(1, total * (width + 3) + 1).to(dtype).reshape(total, width + 3)
    source = storage[:, 2 : 2 + width]
    items = []
    for _ in range(data.draw(st.integers(0, 40))):
        part = data.draw(st.integers(0, len(lengths) - 1))
        first = sum(lengths[:part]) + part
        last = first + lengths[part]
        items.append([data.draw(st.integers(first, last - 1)), first, last])
    chosen = chosen_of(items) if items else torch.zeros((0, 3), dtype=torch.int64)
    found, valid = gather_around(source, chosen, torch.tensor(offsets), before_last=before_last, zeros=zeros)
    assert found.shape == (len(items), len(offsets), width)
    assert found.dtype == dtype
    for place, (row, first, last) in enumerate(items):
        for slot, offset in enumerate(offsets):
            nearest = min(max(row + offset, first), last - before_last)
            assert bool(valid[place, slot]) == (nearest == row + offset)
            is_cleared = zeros and nearest != row + offset
            expected = torch.zeros_like(source[0]) if is_cleared else source[nearest]
            assert torch.equal(found[place, slot], expected)


@BOTH
@pytest.mark.parametrize("wrong", WORST)
def test_no_row_around_others_leads_outside(wrong):
    source = torch.full((300, 8), torch.nan)[100:200].zero_()
    for item in ([wrong, wrong, wrong], [5, wrong, wrong], [wrong, 0, wrong]):
        items = [[50, 0, 99]] * 30
        for place in (0, 7, 29):
            chosen = chosen_of([*items[:place], item, *items[place + 1 :]])
            with contextlib.suppress(IndexError):
                found, _ = gather_around(source, chosen, torch.tensor([-3, 0, 9]))
                assert not found.isnan().any()
    with pytest.raises(IndexError):
        gather_around(source, chosen_of([[100, 0, 120]]), torch.tensor([0]))


@BOTH
@pytest.mark.parametrize(
    ("source", "rows"),
    [
        (torch.arange(12.0).reshape(3, 4).T, torch.tensor([0, 3, 1])),
        (torch.arange(12.0).reshape(3, 4)[:, ::2], torch.tensor([2, 0])),
        (torch.arange(24.0).reshape(4, 6)[::2, 1:4], torch.tensor([1, 0, 1])),
        (torch.arange(4.0).expand(5, 4), torch.tensor([4, 0])),
        (torch.arange(24.0).reshape(2, 3, 4).transpose(1, 2), torch.tensor([1, 1, 0])),
        (torch.arange(12.0).reshape(3, 4), torch.tensor([0, 9, 2, 9])[::2]),
        (torch.arange(12.0).reshape(3, 4), torch.tensor([2, 1], dtype=torch.int32)),
        (torch.arange(5.0), torch.tensor([4, 0])),
        (torch.ones(3, 0), torch.tensor([2, 1])),
        (torch.ones(3, 4), torch.tensor([], dtype=torch.int64)),
        (torch.arange(12.0).reshape(3, 4).to(torch.complex64).conj(), torch.tensor([2])),
        ((1j * torch.arange(6.0).reshape(3, 2)).conj().imag, torch.tensor([2, 1])),
    ],
)
def test_any_layout(source, rows):
    assert torch.equal(gather_rows(source, rows), source[rows.long()])


@BOTH
def test_gradients_flow():
    source = torch.ones(3, 2, requires_grad=True)
    gather_rows(source, torch.tensor([1, 1])).sum().backward()
    assert source.grad is not None
    assert source.grad.tolist() == [[0, 0], [2, 2], [0, 0]]


@BOTH
def test_many_threads_of_pytorch(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    source = torch.randn(500, 100)
    rows = torch.randint(0, 500, (2000,))
    assert torch.equal(gather_rows(source, rows), source[rows])


@BOTH
def test_threads_at_once():
    source = torch.randn(5000, 26).as_strided((4990, 43), (26, 1))
    right = []

    def gather(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(50):
            rows = torch.randint(0, len(source), (700,), generator=generator)
            right.append(torch.equal(gather_rows(source, rows), source[rows]))

    run_together([functools.partial(gather, seed) for seed in range(6)])
    assert right == [True] * 300


@COMPILED
def test_indices_that_change_meanwhile_never_lead_outside():
    """The rest of the storage is NaN: reading it would show, and far away there is nothing."""
    storage = torch.full((3000, 8), torch.nan)
    source = storage[1000:2000]
    source.zero_()
    rows = torch.zeros(4000, dtype=torch.int64)
    changing = rows.numpy()
    done = threading.Event()

    def change():
        while not done.is_set():
            changing[2000:] = 1500
            changing[2000:] = -500
            changing[2000:] = 2**50
            changing[2000:] = 0
            time.sleep(0)

    def gather():
        try:
            for _ in range(3000):
                try:
                    assert not gather_rows(source, rows).isnan().any()
                except IndexError:
                    refused.append(True)
        finally:
            done.set()

    refused = []
    run_together([change, gather])


def run_together(calls):
    """Run each in a thread; raise what one of them raised."""
    errors = []

    def run(call):
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_what_was_compiled_of_another_version_is_left_alone(monkeypatch):
    old = types.SimpleNamespace(copy_rows=lambda *_: 0)
    monkeypatch.setitem(sys.modules, "orlog.loaders._gather", old)
    assert gathering._load() is None
    old.version = gathering._VERSION
    assert gathering._load() is old


@COMPILED
def test_rows_of_a_file_that_is_on_disk(tmp_path):
    """The same rows, pages asked for first: also of views, at the file's end, and twice at once."""
    values = np.arange(100_003 * 7, dtype=np.float32).reshape(-1, 7)
    values.tofile(tmp_path / "rows.f32")
    mapped = np.memmap(tmp_path / "rows.f32", np.float32, "c", shape=values.shape)
    expect_on_disk(mapped)
    source = torch.from_numpy(mapped)
    address = source.data_ptr()
    assert address in gathering._on_disk
    rows = torch.from_numpy(np.random.default_rng(0).integers(len(values), size=5000))
    rows[0], rows[1] = len(values) - 1, 0
    assert torch.equal(gather_rows(source, rows), torch.from_numpy(values)[rows])
    assert torch.equal(gather_rows(source[5:, 2:4], rows // 2), torch.from_numpy(values)[5:, 2:4][rows // 2])
    with pytest.raises(IndexError, match="row 100003 of 100003"):
        gather_rows(source, torch.tensor([1, len(values)]))
    del source, mapped
    gc.collect()
    assert address not in gathering._on_disk
