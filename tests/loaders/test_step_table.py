"""The table of steps against the plain sum that it stands for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlog.loaders import step_table
from orlog.loaders.step_table import StepTable, count_since

LENGTHS = st.lists(st.one_of(st.just(1), st.integers(1, 700)), min_size=1, max_size=400)


def slow_rows(lengths):
    """Return the row of each step: one more for each episode before."""
    return np.arange(lengths.sum()) + np.repeat(np.arange(len(lengths)), lengths)


@given(LENGTHS)
def test_every_step_is_found(lengths):
    table = StepTable(np.array(lengths))
    expected = slow_rows(np.array(lengths))
    np.testing.assert_array_equal(table.take(np.arange(len(expected))), expected)
    assert table.nbytes <= len(expected) * (1 + 8 / 256) + 8


@given(LENGTHS, st.integers(1, 4))
def test_blocks_are_parts_of_one_table(lengths, together):
    whole = np.concatenate(list(count_since(np.array(lengths))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_table, "_BLOCK", 256 * together)
        blocks = list(count_since(np.array(lengths)))
    assert all(len(block) == 256 * together for block in blocks[:-1])
    np.testing.assert_array_equal(np.concatenate(blocks), whole)
    steps = np.arange(sum(lengths))[::-1]
    found = StepTable(np.array(lengths), np.concatenate(blocks)).take(steps)
    np.testing.assert_array_equal(found, slow_rows(np.array(lengths))[::-1])


def test_as_many_episodes_as_steps():
    lengths = np.ones(70_000, np.int64)
    np.testing.assert_array_equal(StepTable(lengths).take(np.arange(70_000)), slow_rows(lengths))
