import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import orlog
from orlog import combine_datasets, goals
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.goals import GoalMixture, GoalSampler
from tests.levels import scaled

ACTION = spaces.Box(-1, 1, (2,), np.float32)
GOAL_SPACE = spaces.Dict(
    {
        "achieved_goal": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "desired_goal": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "observation": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    }
)
IMAGES = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (2, 3, 1), np.uint8),
        "floor": spaces.Discrete(7),
        "state": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    }
)
LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=6)
MIXTURES = st.tuples(st.lists(st.integers(0, 3), min_size=4, max_size=4).filter(any), st.booleans()).map(
    lambda drawn: GoalMixture(
        current=drawn[0][0] / sum(drawn[0]),
        trajectory=drawn[0][1] / sum(drawn[0]),
        final=drawn[0][2] / sum(drawn[0]),
        random=drawn[0][3] / sum(drawn[0]),
        geometric=drawn[1],
    )
)


def numbered(lengths):
    """Return episodes whose observations are the numbers of their rows, terminated at the end."""
    steps = np.arange(sum(lengths)) + np.repeat(np.arange(len(lengths)), lengths)
    rows = torch.zeros(sum(lengths) + len(lengths), 1 + 1 + 3)
    rows[:, 0] = torch.arange(len(rows))
    rows[steps, 1] = torch.from_numpy(steps).float() / 4
    lasts = np.cumsum(np.array(lengths) + 1) - 2
    rows[lasts, 3] = 1
    return Arrays(rows=rows, lengths=np.array(lengths), obs_dim=1, action_dim=1, digest="none", name="tests")


def one_tensor(value):
    assert isinstance(value, torch.Tensor)
    return value


def rows_of(observations):
    return one_tensor(observations).squeeze(1).numpy().astype(np.int64)


def slow_probabilities(lengths, mixture, discount, row, final_goals=False):
    """Return the probability of each goal of the state of a row, by summing over all there is."""
    first = 0
    steps, ends = [], {}
    for length in lengths:
        steps += list(range(first, first + length))
        last = first + length - (not final_goals)
        ends.update(dict.fromkeys(range(first, first + length), last))
        first += length + 1
    end = ends[row]
    found = dict.fromkeys([*steps, *ends.values()], 0.0)
    found[row] += mixture.current
    found[end] += mixture.final
    for step in steps:
        found[step] += mixture.random / len(steps)
    later = range(row + 1, end + 1) or [end]
    if mixture.geometric:
        left = 1.0
        for goal in later:
            share = left if goal == end else left * (1 - discount)
            found[goal] += mixture.trajectory * share
            left -= share
    else:
        for goal in later:
            found[goal] += mixture.trajectory / len(later)
    return found


@settings(deadline=None, max_examples=scaled(60))
@given(
    lengths=LENGTHS,
    value_goals=MIXTURES,
    actor_goals=MIXTURES,
    discount=st.floats(0.01, 0.999),
    negative=st.booleans(),
    final_goals=st.booleans(),
    seed=st.integers(0, 2**64),
)
def test_every_item_is_a_transition_with_possible_goals(
    lengths, value_goals, actor_goals, discount, negative, final_goals, seed
):
    arrays = numbered(lengths)
    batch = goals(
        arrays,
        64,
        seed=seed,
        value_goals=value_goals,
        actor_goals=actor_goals,
        discount=discount,
        negative_rewards=negative,
        final_goals=final_goals,
    ).batch(0)
    rows, value_rows, actor_rows = (rows_of(one) for one in (batch.observations, batch.value_goals, batch.actor_goals))
    np.testing.assert_array_equal(rows_of(batch.next_observations), rows + 1)
    np.testing.assert_array_equal(batch.actions.squeeze(1).numpy() * 4, rows)
    last_rows = np.repeat(arrays.final_rows, arrays.lengths + 1)
    for item in range(64):
        for mixture, goal in ((value_goals, value_rows[item]), (actor_goals, actor_rows[item])):
            found = slow_probabilities(lengths, mixture, discount, rows[item], final_goals)
            assert found[goal] > 0
        is_goal = rows[item] == value_rows[item]
        assert batch.masks[item] == (not is_goal)
        assert batch.rewards[item] == (float(is_goal) - 1 if negative else float(is_goal))
        assert batch.terminations[item] == (last_rows[rows[item]] == rows[item] + 1)


@pytest.mark.parametrize(
    "mixture",
    [
        GoalMixture(trajectory=1.0),
        GoalMixture(trajectory=1.0, geometric=True),
        GoalMixture(final=1.0),
        GoalMixture(random=1.0),
        GoalMixture(current=1.0),
        GoalMixture(current=0.2, trajectory=0.5, random=0.3, geometric=True),
        GoalMixture(current=0.1, trajectory=0.2, final=0.3, random=0.4),
    ],
    ids=["uniform", "geometric", "final", "random", "current", "ogbench", "all"],
)
@pytest.mark.parametrize("final_goals", [False, True])
def test_goals_are_as_likely_as_they_should_be(mixture, final_goals):
    lengths, discount, items = [4, 1, 9, 3], 0.7, 200_000
    sampler = GoalSampler(
        numbered(lengths), value_goals=mixture, actor_goals=mixture, discount=discount, final_goals=final_goals
    )
    chosen = sampler.choose(np.random.default_rng(3).random((items, sampler.draws))).numpy()
    for goal_column in (1, 2):
        pairs = np.zeros((21, 21))
        np.add.at(pairs, (chosen[:, 0], chosen[:, goal_column]), 1)
        expected = np.zeros((21, 21))
        for row in sampler.arrays.step_rows().tolist():
            found = slow_probabilities(lengths, mixture, discount, row, final_goals)
            for goal, probability in found.items():
                expected[row, goal] = probability * items / 17
        assert not pairs[expected == 0].any()
        possible = expected > 0
        assert stats.chisquare(pairs[possible], expected[possible]).pvalue > 0.001


def ogbench_goals(rng, ends, steps, mixture):
    """Return goals as `GCDataset.sample_goals` of OGBench draws them (impls/utils/datasets.py).

    Steps and goals are numbers of steps; `ends` is the last step of each step's episode.
    """
    offsets = rng.geometric(1 - 0.99, len(steps))
    later = np.minimum(steps + offsets, ends[steps])
    at_random = rng.integers(len(ends), size=len(steps))
    share = mixture.trajectory / (1 - mixture.current)
    chosen = np.where(rng.random(len(steps)) < share, later, at_random)
    return np.where(rng.random(len(steps)) < mixture.current, steps, chosen)


def test_value_goals_are_reached_as_often_as_in_ogbench_whose_episodes_are_truncated():
    """Every value goal is the state of some item, so that mask 0 teaches its value."""
    lengths, items = [60, 100, 40], 200_000
    arrays = numbered(lengths)
    mixture = GoalMixture(current=0.2, trajectory=0.5, random=0.3, geometric=True)
    sampler = GoalSampler(arrays, value_goals=mixture)
    rng = np.random.default_rng(5)
    chosen = sampler.choose(rng.random((items, sampler.draws))).numpy()
    rows, goal_rows, actor_rows = chosen.T
    last_rows = arrays.final_rows - 1
    assert not np.isin(chosen, arrays.final_rows).any()
    assert (actor_rows[np.isin(rows, last_rows)] == rows[np.isin(rows, last_rows)]).all()
    ends = np.repeat(np.cumsum(lengths), lengths) - 1
    steps = rng.integers(len(ends), size=items)
    theirs = ogbench_goals(rng, ends, steps, mixture)
    for ours, expected in (
        (rows == goal_rows, steps == theirs),
        (np.isin(goal_rows, last_rows), np.isin(theirs, ends)),
        ((rows == goal_rows) & np.isin(rows, last_rows), (steps == theirs) & np.isin(steps, ends)),
    ):
        table = [[ours.sum(), items - ours.sum()], [expected.sum(), items - expected.sum()]]
        assert min(ours.sum(), expected.sum()) > 500
        assert stats.chi2_contingency(table).pvalue > 0.001


def test_final_goals_give_the_stream_of_the_first_kind():
    sampler = GoalSampler(numbered([5]), final_goals=True)
    assert sampler.kind.startswith("goals 1 value=(0.2, 0.5, 0.0, 0.3, geometric 0.99) actor=(")
    assert GoalSampler(numbered([5])).kind == sampler.kind.replace("goals 1", "goals 2")
    chosen = sampler.choose(np.random.default_rng(0).random((1000, sampler.draws))).numpy()
    assert (chosen[:, 2] > chosen[:, 0]).all()  # a later goal is always later
    assert (chosen == 5).any()


def test_value_and_actor_goals_are_independent():
    mixture = GoalMixture(trajectory=0.5, random=0.5)
    sampler = GoalSampler(numbered([5]), value_goals=mixture, actor_goals=mixture)
    chosen = sampler.choose(np.random.default_rng(4).random((100_000, sampler.draws))).numpy()
    at_two = chosen[chosen[:, 0] == 2]
    table = np.zeros((5, 5))
    np.add.at(table, (at_two[:, 1], at_two[:, 2]), 1)
    assert stats.chi2_contingency(table).pvalue > 0.001


@pytest.mark.parametrize("geometric", [False, True])
def test_the_largest_and_smallest_numbers_choose_the_nearest_and_farthest(geometric):
    mixture = GoalMixture(current=0.1, trajectory=0.2, random=0.7, geometric=geometric)
    for later in (mixture, GoalMixture(trajectory=1.0, geometric=geometric)):
        sampler = GoalSampler(numbered([3]), value_goals=mixture, actor_goals=later)
        largest = np.nextafter(1, 0)
        chosen = sampler.choose(np.array([[0, 0, 0], [largest] * 3, [0, 0.1, 0.1]])).numpy()
        assert chosen[0].tolist() == [0, 0, 0 if later is mixture else 1]
        assert chosen[1].tolist() == [2, 2, 2]
        assert chosen[2, 1] == 1


def test_probabilities_that_sum_to_nearly_one_leave_no_sliver():
    mixture = GoalMixture(current=0.2, trajectory=0.7, final=0.1)
    assert 0.2 + 0.7 + 0.1 < 1
    sampler = GoalSampler(numbered([5]), value_goals=mixture, actor_goals=mixture)
    chosen = sampler.choose(np.array([[0.0, np.nextafter(1, 0), np.nextafter(1, 0)]]))
    assert chosen.tolist() == [[0, 4, 4]]


def test_blocks_choose_as_one_item_at_a_time():
    sampler = GoalSampler(numbered([5, 2, 8]))
    uniform = np.random.default_rng(0).random((2**14 + 3, sampler.draws))
    whole = sampler.choose(uniform)
    for item in (0, 1, 2**14 - 1, 2**14, 2**14 + 2):
        assert torch.equal(sampler.choose(uniform[item : item + 1])[0], whole[item])


def test_settings_that_change_the_choice_change_the_stream():
    arrays = numbered([5])
    kinds = [
        GoalSampler(arrays),
        GoalSampler(arrays, discount=0.9),
        GoalSampler(arrays, actor_goals=GoalMixture(random=1)),
        GoalSampler(arrays, value_goals=GoalMixture(random=1)),
    ]
    assert len({one.kind for one in kinds}) == 4
    assert GoalSampler(arrays, negative_rewards=False).kind == kinds[0].kind
    assert GoalSampler(arrays, final_goals=True).kind != kinds[0].kind
    uniform = GoalMixture(trajectory=1)
    # A discount that nothing uses changes nothing.
    assert GoalSampler(arrays, value_goals=uniform, discount=0.5).kind == GoalSampler(arrays, value_goals=uniform).kind


def dataset_of(write, make, space, lengths):
    rng = np.random.default_rng(7)
    return write([make(space, ACTION, length=length, end="termination", rng=rng) for length in lengths], space, ACTION)


@pytest.mark.parametrize("key", ["achieved_goal", "observation"])
def test_a_goal_can_be_a_part_of_a_flat_observation(write, make, key):
    dataset = dataset_of(write, make, GOAL_SPACE, [4, 2])
    whole = goals(dataset, 32, seed=5).batch(0)
    batch = goals(dataset, 32, seed=5, goal_key=key).batch(0)
    place = {"achieved_goal": slice(0, 2), "observation": slice(4, 7)}[key]
    value_goals = one_tensor(batch.value_goals)
    assert torch.equal(value_goals, one_tensor(whole.value_goals)[:, place])
    assert torch.equal(one_tensor(batch.actor_goals), one_tensor(whole.actor_goals)[:, place])
    assert torch.equal(one_tensor(batch.observations), one_tensor(whole.observations))
    states = set()
    for episode in dataset:
        assert isinstance(episode.observations, dict)
        states |= {tuple(row) for row in np.asarray(episode.observations[key]).tolist()}
    assert {tuple(row) for row in value_goals.tolist()} <= states


def test_a_reward_takes_what_was_achieved_and_what_was_wanted(write, make):
    def distance(achieved, wanted):
        return -(achieved - wanted).square().sum(1).double()

    dataset = dataset_of(write, make, GOAL_SPACE, [4, 2])
    batch = goals(dataset, 32, seed=5, goal_key="achieved_goal", reward=distance).batch(0)
    achieved = one_tensor(batch.next_observations)[:, :2].numpy()
    expected = -np.square(achieved - one_tensor(batch.value_goals).numpy()).sum(1)
    assert batch.rewards.dtype == torch.float32
    np.testing.assert_allclose(batch.rewards.numpy(), expected, rtol=1e-6)
    assert torch.equal(batch.masks, 1 - batch.terminations)
    assert batch.terminations.any()


def test_random_goals_follow_the_weights_of_a_mixture(write, make):
    one = dataset_of(write, make, GOAL_SPACE, [4, 2])
    other = dataset_of(write, make, GOAL_SPACE, [9, 9, 9])
    mixture = combine_datasets([one, other], weights=[3, 1])
    random = GoalMixture(current=0.5, random=0.5)
    sampler = GoalSampler(read_arrays(mixture), value_goals=random, actor_goals=random)
    assert sampler.draws == 6
    chosen = sampler.choose(np.random.default_rng(0).random((40_000, 6))).numpy()
    elsewhere = chosen[chosen[:, 0] != chosen[:, 1]]
    # The first dataset has rows 0 to 7; a goal that is its item's own row is left out above.
    share = (elsewhere[elsewhere[:, 0] > 7][:, 1] <= 7).mean()
    expected = 0.75 / (0.75 + 0.25 * 26 / 27)
    assert abs(share - expected) < 0.02


@pytest.mark.parametrize(
    "wrong",
    [
        {"current": 0.5},
        {"current": 0.5, "random": 0.6},
        {"current": -0.5, "random": 1.5},
        {"current": float("nan"), "random": 1.0},
    ],
)
def test_probabilities_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match=r"sum to 1.*found current"):
        GoalMixture(**wrong)


@pytest.mark.parametrize("discount", [0.0, 1.0, -1.0, float("nan")])
def test_a_discount_out_of_range_is_refused(discount):
    with pytest.raises(ValueError, match="discount must be"):
        goals(numbered([3]), 4, seed=0, discount=discount)


def test_an_unknown_part_is_refused_with_those_near_it(write, make):
    dataset = dataset_of(write, make, GOAL_SPACE, [2])
    with pytest.raises(ValueError, match=r"tests/small-v1.*'achieved'.*did you mean achieved_goal"):
        goals(dataset, 4, seed=0, goal_key="achieved")
    flat = dataset_of(write, make, ACTION, [2])
    with pytest.raises(ValueError, match="it has one part: leave goal_key out"):
        goals(flat, 4, seed=0, goal_key="achieved_goal")


@pytest.mark.parametrize("where", ["ram", "mmap"])
def test_parts_of_a_flat_vector_are_goals_wherever_it_is(write, make, where):
    dataset = dataset_of(write, make, GOAL_SPACE, [5, 3, 8])
    expected = goals(dataset, 16, seed=0, goal_key="achieved_goal").batch(3)
    arrays = orlog.load_arrays(dataset, where)
    assert set(arrays.parts) == set(GOAL_SPACE.spaces)
    found = goals(arrays, 16, seed=0, goal_key="achieved_goal").batch(3)
    assert torch.equal(one_tensor(found.value_goals), one_tensor(expected.value_goals))
    part = arrays.parts["achieved_goal"].place
    at_goal = found.masks == 0
    assert at_goal.any()
    observations = one_tensor(found.observations)[:, part]
    assert torch.equal(observations[at_goal], one_tensor(found.value_goals)[at_goal])


def test_a_share_that_rounding_leaves_is_no_share(write, make):
    dataset = dataset_of(write, make, ACTION, [4])
    for tiny in (1e-10, abs(1 - 0.2 - 0.7 - 0.1)):
        value = GoalMixture(current=0.2, trajectory=0.7, final=0.1, random=tiny)
        actor = GoalMixture(current=1, trajectory=1e-17)
        goals(dataset, 64, seed=0, value_goals=value, actor_goals=actor).batch(0)


def test_a_reward_that_is_none_is_refused(write, make):
    with pytest.raises(ValueError, match=r"shape \(4,\), found \(4, 1\)"):
        goals(numbered([3]), 4, seed=0, reward=lambda achieved, wanted: achieved - wanted).batch(0)
    images = dataset_of(write, make, IMAGES, [2])
    with pytest.raises(TypeError, match="set goal_key to one of camera, floor, state"):
        goals(images, 4, seed=0, reward=lambda achieved, _: achieved[:, 0]).batch(0)
