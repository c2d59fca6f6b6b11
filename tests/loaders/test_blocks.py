"""What is done block by block comes out the same for blocks of any size."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.loaders import blocks, priorities, sums
from orlog.loaders import streams as batches
from orlog.loaders.arrays import Arrays
from orlog.loaders.sums import returns_to_go, sum_rewards
from tests.batches import columns
from tests.levels import scaled

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def arrays_of(lengths):
    """Return random steps, with rewards and flags at final observations that must not count."""
    rows = torch.from_numpy(np.random.default_rng(len(lengths)).normal(size=(sum(lengths) + len(lengths), 7))).float()
    return Arrays(rows=rows, lengths=np.array(lengths), obs_dim=3, action_dim=1, name="x", digest="y")


def slow_sums(arrays, steps, discount):
    """Return the discounted rewards of the next steps of each step."""
    rewards = arrays.rows[:, arrays.columns["rewards"].start].double().numpy()
    found = []
    for first, last in zip(arrays.first_rows, arrays.final_rows, strict=True):
        for row in range(first, last):
            ahead = np.arange(min(steps, last - row))
            found.append(float((discount**ahead * rewards[row + ahead]).sum()))
    return np.array(found)


@given(LENGTHS, st.integers(1, 12), st.integers(1, 20), st.sampled_from([0.0, 0.9, 1.0]))
def test_sums_over_blocks_are_those_of_a_slow_loop(lengths, steps, block, discount):
    arrays = arrays_of(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "_BLOCK_ROWS", block)
        found = sum_rewards(arrays, steps, discount, np.float64).numpy()[arrays.step_rows()]
        to_go = returns_to_go(arrays, discount).numpy()[arrays.step_rows()]
    np.testing.assert_allclose(found, slow_sums(arrays, steps, discount), rtol=1e-12, atol=1e-12)
    expected = slow_sums(arrays, max(lengths), discount)
    np.testing.assert_allclose(to_go, expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=scaled(30))
@given(LENGTHS, st.integers(1, 3000), st.integers(1, 40), st.integers(0, 70))
def test_batches_are_the_same_in_blocks_of_any_size(lengths, block_bytes, block_items, start):
    arrays = arrays_of(lengths)
    streams = [
        orlog.transitions(arrays, 4, seed=0, start=start),
        orlog.transitions(arrays, 4, seed=0, start=start, n_steps=3),
        orlog.goals(arrays, 4, seed=0, start=start),
    ]
    for stream in streams:
        expected = [stream.batch(start + number) for number in range(5)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "_BLOCK_BYTES", block_bytes)
            patch.setattr(batches, "_BLOCK_ITEMS", block_items)
            found = [batch for batch, _ in zip(iter(stream), range(5), strict=False)]
        for one, other in zip(found, expected, strict=True):
            for name in columns(other):
                assert torch.equal(getattr(one, name), getattr(other, name))


def test_priorities_are_drawn_the_same_in_blocks_of_any_size(monkeypatch):
    arrays = arrays_of([5, 3, 7])
    whole = orlog.transitions(arrays, 4, seed=0, prioritized=True)
    expected = [next(whole).steps.tolist() for _ in range(70)]
    monkeypatch.setattr(priorities, "_BLOCK_ITEMS", 12)
    pieces = orlog.transitions(arrays, 4, seed=0, prioritized=True)
    assert [next(pieces).steps.tolist() for _ in range(70)] == expected
