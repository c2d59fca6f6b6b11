import copy
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog import transitions
from orlog.loaders import priorities
from orlog.loaders.arrays import read_arrays
from orlog.loaders.batch import Batch
from orlog.loaders.priorities import SumTree
from orlog.loaders.streams import draw_uniform
from orlog.loaders.transitions import TransitionSampler
from tests.batches import columns
from tests.levels import scaled

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
WHOLE = st.lists(st.integers(0, 1000), min_size=1, max_size=700).filter(any)


@pytest.fixture
def arrays(write, make):
    rng = np.random.default_rng(0)
    episodes = [
        make(BOX, BOX, length=length, end=end, rng=rng)
        for length, end in [(30, "termination"), (1, "truncation"), (19, "cut")]
    ]
    return read_arrays(write(episodes, BOX, BOX))


def slow_choice(values, share):
    """Return where a share of the total lies, exactly."""
    target, up_to = share * sum(values), 0
    for place, value in enumerate(values):
        up_to += value
        if target < up_to:
            return place
    raise AssertionError


@settings(max_examples=scaled(60), deadline=None)
@given(values=WHOLE, top=st.sampled_from([1, 4, 4096]), seed=st.integers(0, 2**32))
def test_a_tree_chooses_and_changes_as_exact_sums_do(values, top, seed):
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(priorities, "_TOP", top)  # how many levels there are
        tree = SumTree(np.array(values, np.float64))
    for _ in range(3):
        assert tree.total == sum(values)
        assert tree.values.tolist() == values
        # Whole numbers and such shares are exact in float64 as long as no bit is lost.
        shares = rng.integers(0, 2**20, 20) / 2**20
        expected = [slow_choice(values, Fraction(share)) for share in shares.tolist()]
        assert tree.choose(shares).tolist() == expected
        places = rng.integers(len(values), size=10)
        new = rng.integers(1, 1000, 10)
        tree.update(places, new.astype(np.float64))
        for place, value in zip(places.tolist(), new.tolist(), strict=True):
            values[place] = value


@settings(max_examples=scaled(60), deadline=None)
@given(
    values=st.lists(st.one_of(st.just(0.0), st.floats(1e-300, 1e90)), min_size=1, max_size=600).filter(any),
    top=st.sampled_from([1, 4, 4096]),
)
def test_a_number_of_zero_is_never_chosen_whatever_rounds(values, top):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(priorities, "_TOP", top)
        tree = SumTree(np.array(values))
    shares = np.array([0.0, 1e-300, 0.25, 0.5, 1 - 2**-53, 1.0])
    assert (np.array(values)[tree.choose(shares)] > 0).all()


def test_sums_are_a_function_of_the_numbers_alone():
    rng = np.random.default_rng(0)
    values = rng.exponential(size=100_000)
    tree = SumTree(values)
    for _ in range(200):
        places = rng.integers(100_000, size=64)
        new = rng.exponential(size=64) * 10.0 ** rng.integers(-9, 9)
        tree.update(places, new)
    again = SumTree(tree.values)
    assert tree.total == again.total
    shares = rng.random(1000)
    assert tree.choose(shares).tolist() == again.choose(shares).tolist()


def test_a_tree_of_zeros_has_nothing_to_choose():
    with pytest.raises(ValueError, match="must be positive, found 0"):
        SumTree(np.zeros(20)).choose(np.zeros(3))


@pytest.mark.parametrize("stratified", [True, False])
def test_batches_are_those_of_a_slow_version(arrays, stratified):
    stream = transitions(
        arrays, 8, seed=3, n_steps=2, discount=0.9, prioritized={"stratified": stratified, "exponent": 0.7, "beta": 0.3}
    )
    plain = transitions(arrays, 1, seed=0, n_steps=2, discount=0.9)
    levels = np.ones(50)
    rng = np.random.default_rng(0)
    for index in range(130):  # over the edge of two blocks
        batch = next(stream)
        uniform = draw_uniform(stream._key, index * 8, 8)
        shares = (np.arange(8) + uniform) / 8 if stratified else uniform
        steps = np.searchsorted(levels.cumsum(), shares * levels.sum(), "right")
        assert batch.steps.tolist() == steps.tolist()
        weights = (50 * levels[steps] / levels.sum()) ** -0.3
        np.testing.assert_allclose(batch.weights.numpy(), weights / weights.max(), rtol=1e-6)
        expected = plain.sampler.gather(TransitionSampler(arrays, 2, 0.9).items_of(steps))
        for name in columns(expected):
            assert torch.equal(getattr(batch, name), getattr(expected, name))
        errors = rng.exponential(size=8) + 1e-3
        stream.update(batch.steps, torch.from_numpy(errors))
        levels[steps] = errors**0.7
    np.testing.assert_allclose(stream.priorities, levels, rtol=1e-15)


def test_steps_come_as_often_as_priorities_say(arrays):
    stream = transitions(arrays, 1000, seed=0, prioritized={"exponent": 1.0})
    stream.update(np.arange(50), np.arange(1.0, 51))
    counts = np.zeros(50)
    for _ in range(100):
        counts += np.bincount(next(stream).steps, minlength=50)
    expected = 100_000 * np.arange(1, 51) / 1275
    assert ((counts - expected) ** 2 / expected).sum() < 85  # chi-square, 49 degrees of freedom


def test_it_resumes_bit_for_bit_on_any_number_of_ranks(arrays):
    def train(stream, batches):
        seen = []
        for _ in range(batches):
            batch = next(stream)
            seen.append((batch.steps.tolist(), batch.weights.tolist()))
            stream.update(batch.steps, 0.1 + (batch.steps * 7 % 13).double())
        return seen

    whole = transitions(arrays, 6, seed=1, prioritized=True)
    expected = train(whole, 40)
    part = transitions(arrays, 6, seed=1, prioritized=True)
    assert train(part, 25) == expected[:25]
    part.beta = 0.4
    state = copy.deepcopy(part.state_dict())
    assert state["priorities"].nbytes == 8 * 50
    again = transitions(arrays, 6, seed=1, prioritized=True)
    again.load_state_dict(state)
    assert train(again, 15) == expected[25:]

    ranks = [transitions(arrays, 6, seed=1, rank=rank, ranks=3, prioritized=True) for rank in range(3)]
    for steps, weights in expected[:10]:
        slices = [next(one) for one in ranks]
        assert torch.cat([one.steps for one in slices]).tolist() == steps
        assert torch.cat([one.weights for one in slices]).tolist() == weights
        every = torch.tensor(steps)
        for one in ranks:
            one.update(every, 0.1 + (every * 7 % 13).double())


def test_what_makes_no_sense_is_refused(arrays):
    stream = transitions(arrays, 4, seed=0, prioritized=True)
    steps = np.array([0, 1])
    for value in (0.0, -1.0, np.nan, np.inf, 1e101):
        with pytest.raises(ValueError, match=re.escape(f"found {value} for step 1; add a")):
            stream.update(steps, np.array([1.0, value]))
    with pytest.raises(ValueError, match=r"a priority for each step.*\(2,\).*\(3,\)"):
        stream.update(steps, np.ones(3))
    with pytest.raises(ValueError, match="found steps float64"):
        stream.update(steps * 1.0, np.ones(2))
    for wrong in (-1, 50):
        with pytest.raises(IndexError, match="steps are 0 to 49"):
            stream.update(np.array([wrong]), np.ones(1))
    stream.update(np.array([], np.int64), np.array([]))
    assert stream.priorities.tolist() == [1.0] * 50
    for wrong_place in ({"start": -1}, {"ranks": 3}, {"rank": 1}):
        place = dict(wrong_place)
        with pytest.raises(ValueError, match=r"must be|a multiple"):
            transitions(arrays, 4, seed=0, prioritized=True, **place)
    refused = [{"exponent": -1.0}, {"beta": 1.5}]
    for chosen in refused:
        with pytest.raises(ValueError, match="must be in"):
            transitions(arrays, 4, seed=0, prioritized=chosen)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 7}, "seed is 7 there and 0 here"),
        ({"kind": "transitions 1"}, "kind is 'transitions 1' there"),
        ({"digest": "sha256:1"}, "digest is 'sha256:1' there"),
        ({"batch_size": 5}, "batch_size is 5 there"),
        ({"batch": -1}, "batch -1"),
        ({"beta": None}, "beta None"),
        ({"priorities": np.ones(49)}, r"expected 50 positive priorities, found shape \(49,\)"),
        ({"priorities": np.zeros(50)}, "expected 50 positive priorities"),
    ],
)
def test_a_state_of_another_stream_is_refused(arrays, change, message):
    stream = transitions(arrays, 4, seed=0, prioritized=True)
    with pytest.raises(ValueError, match=message):
        stream.load_state_dict(stream.state_dict() | change)


def test_a_priority_too_small_for_its_power_is_not_lost(arrays):
    stream = transitions(arrays, 4, seed=0, prioritized={"exponent": 2.0})
    stream.update(np.arange(50), np.full(50, 1e-300))
    assert next(stream).weights.tolist() == [1.0] * 4


def test_a_mixture_is_refused(write, make):
    rng = np.random.default_rng(0)
    parts = [write([make(BOX, BOX, length=3, end="cut", rng=rng)], BOX, BOX) for _ in range(2)]
    with pytest.raises(ValueError, match="its steps have weights already"):
        transitions(orlog.combine_datasets(parts, weights=[1, 2]), 4, seed=0, prioritized=True)


def test_batches_of_other_spaces_are_structured(write, make):
    rng = np.random.default_rng(0)
    dataset = write([make(BOX, spaces.Discrete(3), length=5, end="cut", rng=rng)], BOX, spaces.Discrete(3))
    batch = next(transitions(dataset, 4, seed=0, prioritized=True))
    assert isinstance(batch, Batch)
    assert batch.actions.dtype == torch.int64
    flat = write([make(BOX, BOX, length=5, end="cut", rng=rng)], BOX, BOX)
    assert isinstance(next(iter(transitions(flat, 4, seed=0, prioritized=True))), Batch)


def test_a_state_goes_through_a_file_that_executes_nothing(arrays, tmp_path):
    stream = transitions(arrays, 8, seed=0, prioritized=True)
    batch = next(stream)
    stream.update(batch.steps, torch.rand(8, dtype=torch.bfloat16) + 1)
    torch.save(stream.state_dict(), tmp_path / "state.pt")
    again = transitions(arrays, 8, seed=0, prioritized=True)
    again.load_state_dict(torch.load(tmp_path / "state.pt"))
    np.testing.assert_array_equal(again.priorities, stream.priorities)
    assert torch.equal(next(again).steps, next(stream).steps)
