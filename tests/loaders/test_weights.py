from fractions import Fraction

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog import combine_datasets, transitions
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.choices import AliasTable, alias_table
from orlog.loaders.weights import step_probabilities, weighted, weights_by_episode, weights_by_return
from tests.levels import scaled

BOX = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def steps_of(lengths, rewards=None, **more):
    """Return arrays whose observations number the steps, with one number of action."""
    rows = np.zeros((sum(lengths) + len(lengths), 5), np.float32)
    step_rows = np.arange(sum(lengths)) + np.repeat(np.arange(len(lengths)), lengths)
    rows[step_rows, 0] = np.arange(len(step_rows))
    rows[step_rows, 2] = np.arange(len(step_rows)) if rewards is None else rewards
    more = {"name": "tests/small-v1", "digest": "sha256:" + "0" * 64, **more}
    return Arrays(rows=torch.from_numpy(rows), lengths=np.array(lengths), obs_dim=1, action_dim=1, **more)


def exact_probabilities(table):
    """Return the chances of a table without any rounding."""
    kept = [Fraction(share) for share in table.threshold.tolist()]
    total = list(kept)
    for share, other in zip(kept, table.alias.tolist(), strict=True):
        total[other] += 1 - share
    return [value / len(kept) for value in total]


WEIGHTS = st.lists(
    st.one_of(st.integers(0, 3).map(float), st.floats(0, 1e3), st.floats(0, 1.7e308), st.floats(0, 1e-300)),
    min_size=1,
    max_size=30,
)


@settings(max_examples=scaled(300), deadline=None)
@given(weights=WEIGHTS)
def test_a_table_holds_the_weights_to_the_precision_of_float64(weights):
    if not any(weights):
        weights[0] = 1.0
    table = alias_table(np.array(weights))
    assert table.threshold.min() >= 0
    assert table.threshold.max() <= 1
    found = exact_probabilities(table)
    assert sum(found) == 1
    total = sum(map(Fraction, weights))
    for share, weight in zip(found, weights, strict=True):
        expected = Fraction(weight) / total
        assert abs(share - expected) <= expected / 2**51 + Fraction(4, 2**50 * len(weights))
        assert weight > 0 or share == 0
    np.testing.assert_allclose(table.probabilities, [float(share) for share in found], atol=1e-15)


@settings(max_examples=scaled(50), deadline=None)
@given(weights=WEIGHTS, power=st.integers(-300, 300), seed=st.integers(0, 2**32))
def test_only_proportions_count_and_choice_is_the_table(weights, power, seed):
    values = np.clip(weights, 0, 1e10) + 1.0
    table, same = alias_table(values), alias_table(np.ldexp(values, power))
    assert table.digest == same.digest
    uniform = np.random.default_rng(seed).random((50, 2))
    for chosen, (first, second) in zip(table.choose(uniform), uniform, strict=True):
        bucket = int(first * len(values))
        stays = second < table.threshold[bucket]
        assert chosen == (bucket if stays else table.alias[bucket])


def test_a_large_table_is_as_exact():
    weights = np.random.default_rng(0).exponential(size=300_000) ** 5
    found = alias_table(weights).probabilities
    np.testing.assert_allclose(found, weights / weights.sum(), rtol=1e-11, atol=1e-17)


def test_weighted_steps_come_as_often_as_their_weights_say():
    arrays = weighted(steps_of([4, 1, 3]), np.array([0, 1, 2, 3, 0, 5, 0, 9.0]))
    uniform = np.random.default_rng(1).random((200_000, 2))
    counts = np.bincount(arrays.choose_steps(uniform), minlength=8)
    expected = len(uniform) * np.array([0, 1, 2, 3, 0, 5, 0, 9]) / 20
    assert (counts[expected == 0] == 0).all()
    seen = expected > 0
    chi_square = ((counts - expected)[seen] ** 2 / expected[seen]).sum()
    assert chi_square < 20.5  # 99.9 % of chi-square with 4 degrees of freedom is below 18.5


def test_the_stream_draws_by_weight_and_changes_with_it():
    arrays = steps_of([4, 1, 3])
    weights = np.array([0, 0, 2, 0, 0, 5, 0, 0.0])
    stream = transitions(weighted(arrays, weights), 16, seed=0)
    seen = {*stream.batch(0).observations.flatten().tolist()}
    assert seen == {2.0, 5.0}
    digests = [arrays.digest] + [weighted(arrays, other).digest for other in (weights, weights + 1, weights[::-1])]
    assert len(set(digests)) == 4
    assert weighted(arrays, weights * 4).digest == digests[1]
    assert weighted(arrays, weights).rows is arrays.rows
    other = transitions(weighted(arrays, weights + 1), 16, seed=0)
    with pytest.raises(ValueError, match="another stream: digest"):
        other.load_state_dict(stream.state_dict())


def test_weights_multiply_those_of_a_mixture(write, make):
    rng = np.random.default_rng(0)
    parts = [write([make(BOX, BOX, length=length, end="cut", rng=rng)], BOX, BOX) for length in (4, 2)]
    arrays = read_arrays(orlog.combine_datasets(parts, weights=[1, 3]))
    np.testing.assert_allclose(step_probabilities(arrays), [1 / 16] * 4 + [3 / 8] * 2)
    twice = weighted(weighted(arrays, np.array([0, 1, 1, 2, 1, 1.0])), np.array([1, 1, 0, 1, 1, 0]))
    expected = np.array([0, 1, 0, 2, 6, 0]) / 9
    np.testing.assert_allclose(step_probabilities(twice), expected, atol=1e-15)
    with pytest.raises(ValueError, match="probability 0 in the mixture"):
        weighted(twice, np.array([1, 0, 1, 0, 0, 0]))


def test_episodes_weigh_as_wholes_or_by_step():
    arrays = steps_of([4, 1, 3])
    share = step_probabilities(weighted(arrays, weights_by_episode(arrays)))
    np.testing.assert_allclose(share, [1 / 12] * 4 + [1 / 3] + [1 / 9] * 3)
    own = np.array([1.0, 0, 2])
    np.testing.assert_allclose(weights_by_episode(arrays, own), [1 / 4] * 4 + [0] + [2 / 3] * 3)
    assert weights_by_episode(arrays, own, per="step").tolist() == [1] * 4 + [0] + [2] * 3


def test_weights_by_return_are_a_softmax_of_its_place_in_the_range():
    arrays = steps_of([1, 2, 1, 1], [10.0, 1, 3, 20, 4])  # returns 10, 4, 20, 4
    found = weights_by_return(arrays, temperature=0.5)
    place = np.array([6 / 16, 0, 0, 1, 0])
    np.testing.assert_allclose(found / found.sum(), np.exp(place / 0.5) / np.exp(place / 0.5).sum())
    by_rank = weights_by_return(arrays, temperature=0.5, by="rank")
    place = np.array([1.5, 0, 0, 2.5, 0]) / 2.5  # ranks 3, 1.5, 4, 1.5
    np.testing.assert_allclose(by_rank, np.exp((place - 1) / 0.5))
    per_episode = weights_by_return(arrays, temperature=0.5, per="episode")
    np.testing.assert_allclose(per_episode, found / [1, 2, 2, 1, 1])


@pytest.mark.parametrize("temperature", [1e-300, np.inf])
def test_no_temperature_makes_weights_that_cannot_be_used(temperature):
    arrays = steps_of([1, 2, 1], [10.0, 1, 3, 20])
    found = weights_by_return(arrays, temperature=temperature)
    assert found.tolist() == ([0, 0, 0, 1] if temperature < 1 else [1, 1, 1, 1])
    assert step_probabilities(weighted(arrays, found)).sum() == pytest.approx(1)
    same = steps_of([1, 2], [3.0, 1, 2])
    assert weights_by_return(same, by="rank").tolist() == [1, 1, 1]
    assert weights_by_return(same).tolist() == [1, 1, 1]


def test_settings_that_make_no_sense_are_refused():
    arrays = steps_of([2, 3])
    for temperature in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="temperature must be positive"):
            weights_by_return(arrays, temperature=temperature)
    with pytest.raises(ValueError, match="each of the 2 episodes, found shape"):
        weights_by_episode(arrays, np.ones(5))
    wrong = "steps"
    with pytest.raises(ValueError, match="per must be 'episode' or 'step'"):
        weights_by_episode(arrays, per=wrong)
    with pytest.raises(ValueError, match="by must be 'return' or 'rank'"):
        weights_by_return(arrays, by=wrong)


def test_a_table_is_the_same_everywhere():
    table = alias_table(np.array([1.0, 2, 3, 0.5, 0, 7.25]))
    assert table.alias.tolist() == [2, 5, 5, 5, 5, 5]
    shares = np.array([24, 48, 41, 12, 0, 55]) / 55  # by hand, from weights * 6 / 13.75
    np.testing.assert_allclose(table.threshold, shares, rtol=1e-14)
    assert table.digest == "ab405997959853198e9f2258639ff3cfc0c4aeecd38c163c91c662713120ed08"


def test_a_mixture_that_ends_in_a_weight_of_zero_is_weighted(write, make):
    rng = np.random.default_rng(0)
    parts = [write([make(BOX, BOX, length=2, end="cut", rng=rng)], BOX, BOX) for _ in range(10)]
    shares = [0.1, 0.7, 0.6, 0.7, 0.2, 0.1, 0.7, 0.1, 0.5, 0.0]  # whose plain sum rounds otherwise
    arrays = read_arrays(combine_datasets(parts, weights=shares))
    found = weighted(arrays, np.ones(20)).mixture
    assert isinstance(found, AliasTable)
    np.testing.assert_allclose(found.probabilities[::2] * 2, np.array(shares) / sum(shares), atol=1e-12)
    assert (found.probabilities[-2:] == 0).all()
