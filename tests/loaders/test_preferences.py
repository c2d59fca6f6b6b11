import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from orlog import combine_datasets, preferences
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.preferences import PreferenceSampler
from orlog.loaders.weights import weighted
from tests.levels import scaled

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-1, 1, (2,), np.float32)
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)
LARGEST = float(np.nextafter(1, 0))


def arrays_of(lengths, rewards=None):
    """Return episodes whose observations are the numbers of their rows."""
    steps = np.arange(sum(lengths)) + np.repeat(np.arange(len(lengths)), lengths)
    rows = torch.zeros(sum(lengths) + len(lengths), 1 + 1 + 3)
    rows[:, 0] = torch.arange(len(rows))
    rows[steps, 1] = torch.from_numpy(steps).float() / 4
    if rewards is not None:
        rows[steps, 2] = torch.tensor(rewards, dtype=torch.float32)
    return Arrays(rows=rows, lengths=np.array(lengths), obs_dim=1, action_dim=1, digest="none", name="tests")


def slow_segments(lengths, length):
    """Return the timestep of each row that a segment can start at."""
    found, first = {}, 0
    for steps in lengths:
        found.update({first + step: step for step in range(steps) if step + length <= steps})
        first += steps + 1
    return found


@settings(deadline=None, max_examples=scaled(60))
@given(lengths=LENGTHS, data=st.data(), discount=st.sampled_from([0.0, 0.5, 1.0]), seed=st.integers(0))
def test_every_pair_is_of_segments_inside_episodes_with_the_label_of_their_sums(lengths, data, discount, seed):
    length = data.draw(st.integers(1, max(lengths)))
    quarters = st.integers(-4, 4).map(lambda number: number / 4)  # exact, so that ties happen
    rewards = data.draw(st.lists(quarters, min_size=sum(lengths), max_size=sum(lengths)))
    margin = data.draw(st.sampled_from([0.0, 0.25]))
    arrays = arrays_of(lengths, rewards)
    segments = slow_segments(lengths, length)
    batch = preferences(arrays, 32, seed=seed, length=length, discount=discount, equal_margin=margin).batch(0)
    observations = batch.observations
    assert isinstance(observations, torch.Tensor)
    assert observations.shape == (32, 2, length, 1)
    assert batch.actions.shape == (32, 2, length, 1)
    assert torch.equal(batch.actions * 4, observations)
    for item in range(32):
        sums = [0.0, 0.0]
        for segment in range(2):
            first = int(observations[item, segment, 0, 0])
            assert first in segments
            for step in range(length):
                row = first + step
                assert observations[item, segment, step, 0] == row
                assert batch.timesteps[item, segment, step] == segments[first] + step
                reward = rewards[int(np.searchsorted(arrays.step_rows(), row))]
                assert batch.rewards[item, segment, step] == reward
                sums[segment] += discount**step * reward
        is_equal = abs(sums[1] - sums[0]) <= margin
        assert batch.labels[item] == (0.5 if is_equal else float(sums[1] > sums[0]))


def test_every_segment_is_as_likely_in_both_places_and_apart_from_the_other():
    lengths, length, items = [4, 1, 7, 3], 3, 100_000
    segments = sorted(slow_segments(lengths, length))
    assert len(segments) == 8
    sampler = PreferenceSampler(arrays_of(lengths), length)
    chosen = sampler.choose(np.random.default_rng(2).random((items, sampler.draws))).numpy()
    assert set(chosen[:, 0]) == set(segments)
    places = np.searchsorted(segments, chosen[:, :2])
    counts = np.bincount(places[:, 0] * 8 + places[:, 1], minlength=64)
    assert stats.chisquare(counts).pvalue > 0.001


def labels_of(uniform, **teacher):
    """Return labels of segments of one step; the episode has the rewards 0, 1 and 3."""
    sampler = PreferenceSampler(arrays_of([3], [0, 1, 3]), 1, **teacher)
    return sampler.gather(sampler.choose(np.array(uniform))).labels.tolist()


def test_a_rational_teacher_answers_as_bradley_and_terry_say():
    # 0 against 1, so the second is better with probability 1 / (1 + exp(-2)).
    border = 1 / (1 + np.exp(-2.0))
    found = labels_of(
        [[0, 0.5, border - 1e-9, 0.5], [0, 0.5, border + 1e-9, 0.5], [0.5, 0.5, LARGEST, 0.5]], rational=2
    )
    assert found == [1, 0, 0.5]
    # 3 against 0 and back, without noise in effect.
    certain = labels_of([[LARGEST, 0, 1e-9, 0], [0, LARGEST, LARGEST, 0]], rational=1e9)
    assert certain == [0, 1]
    assert labels_of([[0, LARGEST, 0.49, 0], [0, LARGEST, 0.51, 0]], rational=0) == [1, 0]


def test_mistakes_turn_answers_around_but_not_ties():
    uniform = [[0, 0.5, 0, 0.19], [0, 0.5, 0, 0.21], [0.5, 0, 0, 0.19], [0.5, 0.5, 0, 0.19]]
    assert labels_of(uniform, mistake_probability=0.2) == [0, 1, 1, 0.5]
    assert labels_of(uniform) == [1, 1, 0, 0.5]


def test_segments_are_equal_up_to_the_margin():
    uniform = [[0, 0.5, 0, 0], [0.5, LARGEST, 0, 0], [0, LARGEST, 0, 0]]
    assert labels_of(uniform, equal_margin=1.5) == [0.5, 1, 1]


def test_equal_segments_far_apart_are_equal_whatever_lies_between():
    pattern = [0.1, 0.7, 0.3]
    between = np.random.default_rng(0).normal(size=1000).tolist()
    sampler = PreferenceSampler(arrays_of([1006], [*pattern, *between, *pattern]), 3)
    chosen = sampler.choose(np.array([[0, LARGEST, 0, 0]]))
    assert chosen.tolist() == [[0, 1003, 0, 1003, 1]]


@pytest.mark.parametrize("rational", [None, 0.7])
def test_shares_of_answers_are_right(rational):
    sampler = PreferenceSampler(arrays_of([2], [0, 1]), 1, rational=rational, mistake_probability=0.1)
    chosen = sampler.choose(np.random.default_rng(5).random((40_000, 4))).numpy()
    rising = chosen[(chosen[:, 0] == 0) & (chosen[:, 1] == 1)][:, 4]
    right = 1.0 if rational is None else 1 / (1 + np.exp(-rational))
    expected = 0.9 * right + 0.1 * (1 - right)
    assert stats.binomtest(int((rising == 2).sum()), len(rising), expected).pvalue > 0.001


def test_labels_that_were_not_asked_for_are_no_numbers():
    batch = preferences(arrays_of([5]), 8, seed=0, length=2, label="none").batch(0)
    assert batch.labels.dtype == torch.float32
    assert batch.labels.isnan().all()


def test_settings_that_change_the_choice_change_the_stream():
    arrays = arrays_of([5])
    kinds = [
        PreferenceSampler(arrays, 2),
        PreferenceSampler(arrays, 3),
        PreferenceSampler(arrays, 2, label="none"),
        PreferenceSampler(arrays, 2, discount=0.9),
        PreferenceSampler(arrays, 2, rational=1),
        PreferenceSampler(arrays, 2, mistake_probability=0.1),
        PreferenceSampler(arrays, 2, equal_margin=0.1),
    ]
    assert len({one.kind for one in kinds}) == 7
    assert PreferenceSampler(arrays, 2, rational=1.0).kind == kinds[4].kind


def test_segments_follow_the_weights_of_a_mixture(write, make):
    rng = np.random.default_rng(3)
    one, other = (
        write([make(OBS, ACTION, length=length, end="cut", rng=rng) for length in lengths], OBS, ACTION)
        for lengths in ([1, 4], [9, 2, 9])
    )
    arrays = read_arrays(combine_datasets([one, other], weights=[3, 1]))
    segments = slow_segments([1, 4, 9, 2, 9], 3)
    sampler = PreferenceSampler(arrays, 3)
    chosen = sampler.choose(np.random.default_rng(0).random((50_000, sampler.draws))).numpy()
    expected = np.array([0.75 / 2 if row < 7 else 0.25 / 14 for row in segments]) * 50_000
    for segment in range(2):
        rows, counts = np.unique(chosen[:, segment], return_counts=True)
        assert rows.tolist() == sorted(segments)
        assert stats.chisquare(counts, expected).pvalue > 0.001

    with pytest.raises(ValueError, match="component 0 of the mixture has no episode of 5 steps"):
        preferences(arrays, 4, seed=0, length=5)


def test_weights_that_leave_no_segment_are_refused_with_the_dataset():
    arrays = weighted(arrays_of([5, 4]), np.array([0, 0, 0, 0, 1.0, 0, 0, 0, 1]))
    with pytest.raises(ValueError, match="tests: no step of positive weight starts a segment of 3"):
        preferences(arrays, 8, seed=0, length=3)
