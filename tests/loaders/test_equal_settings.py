"""Equal settings give one stream: its key holds what decides a draw, each number in one form."""

import numpy as np
import pytest
import torch

import orlog
from orlog.loaders.goals import GoalMixture
from orlog.loaders.transforms import Normalizer, clip_actions, normalize_observations, scale_rewards
from orlog.loaders.weights import weighted

GEOMETRIC = GoalMixture(trajectory=1, geometric=True)


@pytest.fixture(scope="module")
def arrays(built_mini):
    return orlog.load_arrays(orlog.load_dataset(built_mini))


def key(stream):
    """Return what a stream's state compares."""
    state = stream.state_dict()
    return tuple(state[name] for name in ("kind", "digest", "seed", "batch_size"))


def actions_of(stream):
    return stream.batch(1).actions


def of_goals(data, *, current=0.0, trajectory=1.0, **more):
    mixture = GoalMixture(current=current, trajectory=trajectory, geometric=True)
    return orlog.goals(data, 8, seed=0, value_goals=mixture, **more)


def of_preferences(data, **more):
    return orlog.preferences(data, 8, seed=0, length=3, **more)


def of_priorities(data, **more):
    priorities = {name: more.pop(name) for name in ("stratified", "exponent") if name in more}
    return orlog.transitions(data, 8, seed=0, **more, prioritized=priorities or True)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (of_goals, [{"trajectory": 1}, {"trajectory": 1.0}, {"trajectory": np.float64(1)}]),
        (of_goals, [{"current": 0}, {"current": -0.0}, {"current": np.float32(0)}]),
        (of_goals, [{"discount": 0.5}, {"discount": np.float64(0.5)}, {"discount": np.float32(0.5)}]),
        (of_preferences, [{"discount": 1}, {"discount": 1.0}, {"discount": np.float64(1)}]),
        (of_preferences, [{"rational": 1}, {"rational": 1.0}, {"rational": np.float32(1)}]),
        (of_preferences, [{"equal_margin": 0}, {"equal_margin": -0.0}]),
        (of_priorities, [{"stratified": True}, {"stratified": 1}, {"stratified": np.True_}]),
        (of_priorities, [{"exponent": 1}, {"exponent": 1.0}, {"exponent": np.float64(1)}]),
        (of_priorities, [{"n_steps": 2}, {"n_steps": np.int64(2)}, {"n_steps": 2, "discount": 0.5}]),
    ],
)
def test_equal_numbers_give_one_stream(arrays, make, settings):
    first, *others = (make(arrays, **one) for one in settings)
    for other in others:
        assert key(other) == key(first)
        other.load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("transform", "settings"),
    [
        (clip_actions, [{"limit": 1}, {"limit": 1.0}, {"limit": np.float64(1)}, {"limit": True}]),
        (scale_rewards, [{"scale": 2}, {"scale": 2.0, "shift": -0.0}, {"scale": np.float32(2)}]),
        (
            normalize_observations,
            [
                {"normalizer": Normalizer(mean=np.zeros(8, kind), std=np.full(8, 2, kind))}
                for kind in (np.float64, np.float32, np.int64)
            ],
        ),
    ],
)
def test_equal_numbers_give_one_digest(arrays, transform, settings):
    first, *others = (transform(arrays, **one) for one in settings)
    assert {one.digest for one in others} == {first.digest}
    assert all(torch.equal(one.rows, first.rows) for one in others)


@pytest.mark.parametrize("factor", [3, 0.1, 7.3, 1e-200, 1e200])
def test_a_common_factor_of_weights_changes_nothing(arrays, factor):
    weights = np.random.default_rng(0).random(arrays.total_steps)
    ours, theirs = weighted(arrays, weights), weighted(arrays, factor * weights)
    assert ours.digest == theirs.digest
    streams = [orlog.transitions(one, 64, seed=0) for one in (ours, theirs)]
    assert torch.equal(streams[0].batch(3).observations, streams[1].batch(3).observations)
    again = [weighted(one, factor * weights) for one in (ours, theirs)]
    assert again[0].digest == again[1].digest != ours.digest


def test_a_discount_that_decides_no_draw_is_not_compared(mini, arrays):
    for make in (
        lambda discount: orlog.transitions(mini, 8, seed=0, discount=discount, stream=True),
        lambda discount: orlog.transitions(mini, 8, seed=0, n_steps=3, discount=discount, stream=True),
        lambda discount: orlog.transitions(arrays, 8, seed=0, n_steps=3, discount=discount),
        lambda discount: orlog.sequences(arrays, 8, seed=0, length=3, discount=discount),
        lambda discount: of_preferences(arrays, label="none", discount=discount),
        lambda discount: orlog.goals(
            arrays, 8, seed=0, value_goals=GoalMixture(random=1, geometric=True), discount=discount
        ),
    ):
        first, other = make(0.99), make(0.5)
        assert key(first) == key(other)
        other.load_state_dict(first.state_dict())
        assert torch.equal(actions_of(first), actions_of(other))


def test_a_discount_that_decides_a_draw_is_compared(arrays):
    for make in (
        lambda discount: orlog.goals(arrays, 8, seed=0, value_goals=GEOMETRIC, discount=discount),
        lambda discount: of_preferences(arrays, discount=discount),
    ):
        with pytest.raises(ValueError, match="another stream: kind"):
            make(0.5).load_state_dict(make(0.9).state_dict())


def test_streams_of_default_settings_have_the_keys_they_have_always_had(mini, arrays):
    """The streams of later versions too: their batches are compared by these texts."""
    kinds = [
        orlog.transitions(arrays, 8, seed=0),
        orlog.transitions(mini, 8, seed=0, stream=True),
        orlog.goals(arrays, 8, seed=0, final_goals=True),
        of_preferences(arrays),
        of_priorities(arrays),
    ]
    assert [one.state_dict()["kind"] for one in kinds] == [
        "transitions 1",
        "stream 1 n_steps=1 discount=0.99 buffer=268435456",
        "goals 1 value=(0.2, 0.5, 0.0, 0.3, geometric 0.99) actor=(0.0, 1.0, 0.0, 0.0, uniform)",
        "preferences 1 length=3 label=returns discount=1.0 rational=None mistake=0.0 equal=0.0",
        "priorities 1 exponent=0.6 stratified=True n_steps=1",
    ]
