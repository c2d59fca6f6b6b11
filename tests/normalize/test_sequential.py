import sys

import numpy as np
import pytest

from orlog.errors import MissingExtraError
from orlog.normalize import sequential
from orlog.normalize.sequential import compare_sequentially
from tests.levels import scaled


@pytest.fixture
def adastop():
    try:
        sequential._comparator()
    except MissingExtraError:
        pytest.skip("adastop is not installed")


@pytest.mark.usefixtures("adastop")
def test_a_large_difference_is_decided_by_the_first_group_and_others_need_more():
    rng = np.random.default_rng(0)
    scores = {"bc": rng.normal(20, 3, 5), "iql": rng.normal(60, 3, 5), "cql": rng.normal(20, 3, 7)}
    found = compare_sequentially(scores)
    assert found.decisions == {("bc", "iql"): "below", ("bc", "cql"): "needs seeds", ("iql", "cql"): "above"}
    assert (found.groups, found.missing) == (1, {"bc": 5, "cql": 3})
    more = {**scores, "bc": rng.normal(20, 3, 25), "cql": rng.normal(20, 3, 25)}
    end = compare_sequentially({**more, "iql": scores["iql"]})
    assert end.decisions[("bc", "cql")] == "not told apart"
    assert end.decisions[("bc", "iql")] == "below"
    assert (end.groups, end.missing) == (5, {})
    assert end == compare_sequentially({**more, "iql": scores["iql"]})
    # Too few seeds for one group decide nothing.
    found = compare_sequentially({"a": np.arange(5.0), "b": np.arange(3.0)})
    assert found.decisions == {("a", "b"): "needs seeds"}
    assert (found.groups, found.missing) == (0, {"b": 2})


@pytest.mark.slow
@pytest.mark.scaled
@pytest.mark.usefixtures("adastop")
def test_equal_methods_are_called_different_in_no_more_than_the_error_rate():
    """adastop itself, asked for 5 %, errs in about 9 %; if no longer, ask it for the whole rate."""
    runs = scaled(3000, 150)
    ours = theirs = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        scores = {name: rng.normal(size=4) for name in "ab"}
        found = compare_sequentially(scores, group=4, groups=1)
        ours += found.decisions != {("a", "b"): "not told apart"}
        test = sequential._comparator()(n=4, K=1, alpha=0.05, seed=0)
        test.partial_compare(scores, verbose=False)
        theirs += test.decisions != {"[0 1]": "equal"}
    error = 3 * np.sqrt(0.05 * 0.95 / runs)
    assert ours / runs <= 0.05 + error
    assert theirs / runs > 0.05


def test_a_missing_library_is_said_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "adastop", None)
    with pytest.raises(MissingExtraError, match=r"pip install adastop"):
        compare_sequentially({"a": np.arange(5.0), "b": np.arange(5.0)})


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        ({"a": np.arange(5.0)}, {}, "found 1 methods, 5 groups of 5 and 0.05"),
        ({"a": np.arange(5.0), "b": np.arange(5.0)}, {"group": 1}, "groups of at least two"),
        ({"a": np.arange(5.0), "b": np.arange(5.0)}, {"error_rate": 1.0}, "between 0 and 1"),
        ({"a": np.arange(5.0), "b": np.array([np.nan])}, {}, "b: nan at position 0"),
    ],
)
def test_bad_input_is_one_line(scores, options, message):
    with pytest.raises(ValueError, match=message):
        compare_sequentially(scores, **options)  # numbers of any kind
