import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from orlog.loaders.streams import draw, stream_key

KEYS = st.integers(0, 2**128 - 1)
BOUNDS = st.one_of(st.integers(1, 5), st.integers(1, 2**40))
DIGEST = "sha256:" + "ab" * 32


@settings(deadline=None)
@given(key=KEYS, bound=BOUNDS, first=st.integers(0, 10**12), sizes=st.lists(st.integers(0, 9)))
def test_any_split_of_a_range_gives_the_same_draws(key, bound, first, sizes):
    whole = draw(key, first, sum(sizes), bound)
    starts = np.cumsum([0, *sizes])
    parts = [draw(key, first + int(start), size, bound) for start, size in zip(starts[:-1], sizes, strict=True)]
    np.testing.assert_array_equal(whole, np.concatenate([whole[:0], *parts]))


@settings(deadline=None)
@given(key=KEYS, bound=BOUNDS, first=st.integers(0, 2**62), count=st.integers(0, 50))
def test_draws_are_int64_within_the_bound(key, bound, first, count):
    draws = draw(key, first, count, bound)
    assert draws.dtype == np.int64
    assert draws.shape == (count,)
    assert ((draws >= 0) & (draws < bound)).all()


@pytest.mark.parametrize("bound", [1, 2, 3, 10**6 + 3, 2**31 + 1, 2**52 + 1, 2**53 - 1])
def test_the_largest_word_stays_below_the_bound(bound, monkeypatch):
    class Largest:
        def __init__(self, **_):
            pass

        def random_raw(self, count):
            return np.full(count, 2**64 - 1, np.uint64)

    monkeypatch.setattr(np.random, "Philox", Largest)
    assert draw(0, 0, 1, bound).tolist() == [bound - 1]


@settings(deadline=None)
@given(key=KEYS, bound=BOUNDS, first=st.integers(0, 40), count=st.integers(0, 40))
def test_draws_equal_exact_arithmetic_on_the_words_of_one_philox(key, bound, first, count):
    words = np.random.Philox(key=key).random_raw(first + count).tolist()[first:]
    # In integers the product is exact; in floats of 53 bits it may round up to the next integer
    # only where the exact fraction is within 2^-53 of it.
    exact = [(word >> 11) * bound for word in words]
    expected = [product >> 53 for product in exact]
    found = draw(key, first, count, bound).tolist()
    for one, other, product in zip(expected, found, exact, strict=True):
        assert one == other or (other == one + 1 and (-product) % 2**53 <= bound)


@pytest.mark.parametrize("bound", [2, 7, 100])
def test_draws_are_uniform(bound):
    counts = np.bincount(draw(stream_key(DIGEST, 5), 0, 100_000, bound), minlength=bound)
    assert stats.chisquare(counts).pvalue > 0.001


def test_successive_draws_are_independent():
    draws = draw(stream_key(DIGEST, 6), 0, 100_000, 5)
    pairs = np.bincount(draws[:-1:2] * 5 + draws[1::2], minlength=25)
    assert stats.chisquare(pairs).pvalue > 0.001


def test_streams_of_other_seeds_and_digests_differ():
    streams = [(DIGEST, 0), (DIGEST, 1), (DIGEST + "0", 0), (DIGEST, 10), ("", 0)]
    drawn = {tuple(draw(stream_key(*stream), 0, 20, 1000).tolist()) for stream in streams}
    assert len(drawn) == len(streams)


def test_key_is_the_hash_that_the_module_states():
    digest = hashlib.sha256(f"orlog transitions 1\n{DIGEST}\n3".encode()).digest()
    assert stream_key(DIGEST, 3) == sum(byte << (8 * place) for place, byte in enumerate(digest[:16]))


def test_the_stream_is_frozen():
    # A change here changes every recorded run.
    key = stream_key("sha256:" + "0" * 64, 0)
    assert key == 276241171889245102525188171078957567649
    assert draw(key, 0, 6, 1_000_000).tolist() == [40888, 342732, 748793, 676244, 880650, 475831]
    assert draw(key, 10**9 + 1, 3, 1_000_000).tolist() == [972486, 214740, 362856]
