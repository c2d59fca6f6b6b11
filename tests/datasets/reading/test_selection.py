"""The order that a seed gives: streams follow it."""

import numpy as np

from orlog.datasets.reading.selection import seeded_order


class Few(np.random.Philox):
    """Draws some words only."""

    def random_raw(self, *given, **options):
        return super().random_raw(*given, **options) % 7


def test_an_order_with_equal_words_is_that_of_a_stable_sort(monkeypatch):
    assert seeded_order(5, 6).tolist() == [3, 0, 5, 4, 2, 1]  # as it has always been
    monkeypatch.setattr(np.random, "Philox", Few)
    order = seeded_order(1, 5000)
    falls = order[1:] < order[:-1]  # where the next word begins
    assert falls.sum() == 6
    assert sorted(order.tolist()) == list(range(5000))
