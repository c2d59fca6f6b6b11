"""What every kind of sampling says of input that cannot be right."""

import functools
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog.errors import NotFoundError, SchemaError
from orlog.loaders.arrays import read_arrays
from orlog.loaders.d4rl import d4rl_arrays, qlearning_dataset, sequence_dataset, transitions_dataset
from orlog.loaders.goals import GoalMixture
from orlog.loaders.statistics import load_statistics
from orlog.loaders.transforms import (
    Normalizer,
    clip_actions,
    normalize_observations,
    observation_normalizer,
    scale_rewards,
    scale_rewards_by_return_range,
)
from orlog.loaders.weights import weighted, weights_by_episode, weights_by_return

ROBOT = spaces.Dict(
    {
        "arm": spaces.Box(-np.inf, np.inf, (3,), np.float64),
        "camera": spaces.Box(0, 255, (2, 2), np.uint8),
        "wheel": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    }
)
ACTION = spaces.Box(-2, 3, (2,), np.float32)
LENGTHS = (3, 5, 4)
LATER = GoalMixture(trajectory=1.0)
SIZE = 6

KINDS = {
    "transitions": orlog.transitions,
    "n steps": lambda data, **more: orlog.transitions(data, **{"n_steps": 2, **more}),
    "sequences": lambda data, **more: orlog.sequences(data, **{"length": 2, **more}),
    "chunks": lambda data, **more: orlog.action_chunks(data, **{"length": 2, **more}),
    "episodes": orlog.episodes,
    "frame stacks": lambda data, **more: orlog.transitions(data, **{"stacks": 2, **more}),
    "goals": orlog.goals,
    "subgoals": orlog.subgoals,
    "preferences": lambda data, **more: orlog.preferences(data, **{"length": 2, **more}),
    "prioritized": functools.partial(orlog.transitions, prioritized=True),
    "streamed": functools.partial(orlog.transitions, stream=True),
}
OF_ARRAYS = [kind for kind in KINDS if kind != "streamed"]


def start(kind, data, **more):
    return iter(KINDS[kind](data, **{"batch_size": SIZE, "seed": 0, **more}))


def robot_episodes(make, lengths=LENGTHS):
    rng = np.random.default_rng(4)
    space = ROBOT
    return [make(space, ACTION, length=length, end="cut", rng=rng) for length in lengths]


@pytest.fixture(scope="module")
def robot(write, make):
    return write(robot_episodes(make), ROBOT, ACTION)


@pytest.fixture(scope="module")
def arrays(robot):
    return read_arrays(robot)


def broken(write, make, column, step, value):
    """Return a dataset with one number replaced in its second episode."""
    episodes = robot_episodes(make)
    if column.startswith("observations/"):
        assert isinstance(episodes[1].observations, dict)
        values = episodes[1].observations[column.partition("/")[2]]
    else:
        values = getattr(episodes[1], column)
    assert isinstance(values, np.ndarray)
    values[step, ...] = value
    return write(episodes, ROBOT, ACTION)


NUMBERS = [
    (TypeError, {"batch_size": 2.0}, "batch_size must be an integer, found float 2.0"),
    (TypeError, {"batch_size": True}, "batch_size must be an integer, found bool True"),
    (TypeError, {"batch_size": "8"}, "batch_size must be an integer, found str '8'"),
    (TypeError, {"seed": None}, "seed must be an integer, found NoneType None"),
    (TypeError, {"seed": np.float64(2)}, "seed must be an integer, found float64"),
    (TypeError, {"start": 1.0}, "start must be an integer"),
    (TypeError, {"rank": False, "ranks": 2}, "rank must be an integer, found bool False"),
    (TypeError, {"ranks": 2.0}, "ranks must be an integer"),
    (ValueError, {"batch_size": 0}, "batch_size must be >= 1, .* found 0, 0 and 0"),
    (ValueError, {"seed": -1}, "seed and start >= 0, found 6, -1 and 0"),
    (ValueError, {"start": -3}, "seed and start >= 0, found 6, 0 and -3"),
    (ValueError, {"rank": 2, "ranks": 2}, "rank 2 of 2 with batch_size 6: rank must be from 0 to"),
    (ValueError, {"rank": -1, "ranks": 2}, "rank -1 of 2"),
    (ValueError, {"ranks": 4}, "rank 0 of 4 with batch_size 6: .* a multiple of ranks"),
    (ValueError, {"ranks": 0}, "rank 0 of 0"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_numbers_and_data_are_refused_by_name(robot, kind):
    for error, wrong, message in NUMBERS:
        with pytest.raises(error, match=message):
            start(kind, robot, **wrong)
    for data in (5, None, np.zeros(3)):
        with pytest.raises(TypeError, match=r"(data|dataset) must be a dataset's name"):
            start(kind, data)
    with pytest.raises(SchemaError, match="no steps to sample from"):
        start(kind, robot.filter_episodes("lengths > 1000"))
    numpys = next(start(kind, robot, batch_size=np.int64(SIZE), seed=np.int32(5), start=np.uint8(1)))
    assert torch.equal(numpys.rewards, next(start(kind, robot, seed=5, start=1)).rewards)
    if kind != "prioritized":
        for error, wrong in ((ValueError, -1), (TypeError, 1.0)):
            with pytest.raises(error, match="index must be"):
                KINDS[kind](robot, batch_size=SIZE, seed=0).batch(wrong)


WRONG = [
    ("transitions", {"n_steps": 2.0}, TypeError, "n_steps must be an integer"),
    ("prioritized", {"n_steps": 2.0}, TypeError, "n_steps must be an integer"),
    ("streamed", {"n_steps": 2.0}, TypeError, "n_steps must be an integer"),
    ("streamed", {"buffer_bytes": 1e9}, TypeError, "buffer_bytes must be an integer"),
    ("streamed", {"buffer_bytes": 0}, ValueError, "buffer_bytes must be >= 1"),
    ("sequences", {"length": 2.0}, TypeError, "length must be an integer"),
    ("chunks", {"length": True}, TypeError, "length must be an integer"),
    ("preferences", {"length": 2.5}, TypeError, "length must be an integer"),
    ("frame stacks", {"stacks": 4.0}, TypeError, "stacks must be an integer"),
    ("frame stacks", {"stacks": 0}, ValueError, "stacks must be >= 1"),
    ("frame stacks", {"n_steps": 3.0}, TypeError, "n_steps must be an integer"),
    ("frame stacks", {"stacked": "camera"}, TypeError, "stacked must be a list"),
    ("frame stacks", {"stacked": [3]}, TypeError, "stacked must be a list"),
    ("goals", {"value_goals": 0.5}, TypeError, "each a GoalMixture"),
    ("goals", {"discount": 1.0}, ValueError, "discount must be in"),
    (
        "goals",
        {"midpoints": True, "final_goals": True},
        ValueError,
        "with midpoints, value_goals must be a GoalMixture of",
    ),
    (
        "goals",
        {"midpoints": True, "value_goals": LATER},
        ValueError,
        "trajectory and final alone, and final_goals=True",
    ),
    ("n steps", {"n_steps": 0}, ValueError, "n_steps must be >= 1"),
    ("n steps", {"discount": 1.5}, ValueError, "discount in"),
    ("chunks", {"length": 0}, ValueError, "length must be >= 1"),
    ("chunks", {"discount": -0.1}, ValueError, "discount in"),
    ("sequences", {"length": 0}, ValueError, "length must be >= 1"),
    ("subgoals", {"steps": 0}, ValueError, "steps must be >= 1"),
    ("subgoals", {"steps": 2.0}, TypeError, "steps must be an integer"),
    ("frame stacks", {"stacked": []}, ValueError, "stacked is empty"),
    ("frame stacks", {"stacked": ["camer"]}, ValueError, "did you mean camera"),
    ("preferences", {"length": 0}, ValueError, "length must be >= 1"),
    ("preferences", {"discount": 1.1}, ValueError, "discount and mistake_probability must be in"),
    ("preferences", {"mistake_probability": -0.1}, ValueError, "discount and mistake_probability must be in"),
    ("preferences", {"rational": math.inf}, ValueError, "equal_margin and rational must be"),
    ("preferences", {"equal_margin": -1.0}, ValueError, "equal_margin and rational must be"),
    ("sequences", {"length": 6}, ValueError, r"small-v1: .*6.* longest .*5"),
    ("chunks", {"length": 6}, ValueError, r"small-v1: .*6.* longest .*5"),
    ("preferences", {"length": 6}, ValueError, r"small-v1: .*6.* longest .*5"),
    ("episodes", {"layout": "pakced"}, ValueError, "layout .*packed?"),
    ("episodes", {"weighting": "step"}, ValueError, "weighting .* mean steps?"),
    ("sequences", {"padding": "rihgtt"}, ValueError, "did you mean right"),
    ("preferences", {"label": "return"}, ValueError, "mean returns?"),
    ("preferences", {"label": 1}, ValueError, "'none', found 1"),
]


@pytest.mark.parametrize(("kind", "wrong", "error", "message"), WRONG)
def test_wrong_settings_are_refused_by_name(robot, kind, wrong, error, message):
    with pytest.raises(error, match=message):
        start(kind, robot, **wrong)


def test_other_things_in_place_of_data_and_states(arrays, robot):
    with pytest.raises(TypeError, match="found Arrays"):
        start("streamed", arrays)
    with pytest.raises(TypeError, match="expected a state"):
        orlog.transitions(arrays, SIZE, seed=0).load_state_dict(None)
    empty = robot.select_columns(["observations/arm"]).filter_episodes("lengths > 1000")
    assert len(qlearning_dataset(empty)["rewards"]) == len(transitions_dataset(empty)["rewards"]) == 0
    assert list(sequence_dataset(empty)) == []


PLACES = [("observations/arm", 5), ("observations/wheel", 0), ("actions", 2), ("rewards", 4)]


@pytest.mark.parametrize(("column", "step"), PLACES)
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_number_that_is_not_finite_is_refused_with_its_place_unless_it_is_allowed(write, make, column, step, value):
    dataset = broken(write, make, column, step, value)
    place = rf"tests/small-v1: .* in column {column}, episode 1, step {step};.*"
    switch = r"orlog\.load_arrays\(ds, allow_non_finite=True\), whose result every sampling"
    for kind in OF_ARRAYS:
        with pytest.raises(SchemaError, match=place + switch):
            start(kind, dataset)
    with pytest.raises(SchemaError, match=place + r"orlog.transitions\(.., stream=True, allow_non_finite=True"):
        next(start("streamed", dataset))
    for where in ("ram", "mmap"):
        with pytest.raises(SchemaError, match=place):
            orlog.load_arrays(dataset, where)
        allowed = orlog.load_arrays(dataset, where, allow_non_finite=True)
        for kind in OF_ARRAYS:
            if (kind, column) != ("preferences", "rewards"):
                next(start(kind, allowed))
    next(start("streamed", dataset, allow_non_finite=True))


def test_a_number_that_float32_cannot_hold_is_refused_as_infinite_ones_are(write, make):
    dataset = broken(write, make, "observations/arm", 1, 1e39)
    with pytest.raises(SchemaError, match=r"column observations/arm, episode 1, step 1;"):
        read_arrays(dataset)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rewards_that_are_not_finite_are_not_compared(write, make, value):
    dataset = broken(write, make, "rewards", 3, value)
    allowed = orlog.load_arrays(dataset, allow_non_finite=True)
    message = rf"small-v1: column rewards of episode 1 sums to {value}, and 1 of 3 returns"
    compared = [weights_by_return, scale_rewards_by_return_range, lambda data: start("preferences", data)]
    for compare in compared:
        with pytest.raises(SchemaError, match=message):
            compare(allowed)
    assert next(start("preferences", allowed, label="none")).labels.isnan().all()


def test_statistics_name_column_episode_and_step(write, make):
    allowed = orlog.load_arrays(broken(write, make, "actions", 2, math.inf), allow_non_finite=True)
    message = r"small-v1: column actions is not finite at step 5 .* \(episode 1, step 2\)"
    for compute in (load_statistics, normalize_observations):
        with pytest.raises(SchemaError, match=message):
            compute(allowed)


@pytest.mark.parametrize("kind", ["transitions", "frame stacks", "prioritized", "streamed"])
def test_more_steps_than_any_episode_has_are_those_it_has(arrays, robot, kind):
    data = robot if kind == "streamed" else arrays
    batch = next(start(kind, data, n_steps=1000, discount=0.5, batch_size=64))
    longest = float(batch.discounts.min())
    assert longest == 0.5 ** max(LENGTHS)


@pytest.mark.parametrize(
    ("change", "weights", "message"),
    [
        (weighted, [1.0] * 11, "each of the 12 steps"),
        (weighted, [-1.0] + [1.0] * 11, "found -1.0 at 0"),
        (weighted, [1.0] * 11 + [math.nan], "found nan at 11"),
        (weighted, [0.0] * 12, "only zeros"),
        (weighted, ["a"] * 12, "one row of numbers"),
        (weights_by_episode, [1.0], "each of the 3 episodes"),
        (weights_by_episode, [1.0, -2.0, 1.0], "episodes: .* found -2.0 at 1"),
        (weights_by_episode, [math.inf, 1.0, 1.0], "episodes: .* found inf at 0"),
        (weights_by_episode, ["a", "b", "c"], "episodes: .* one row of numbers"),
    ],
)
def test_weights_are_refused_with_dataset_and_place(arrays, change, weights, message):
    with pytest.raises(ValueError, match=rf"small-v1: .*{message}"):
        change(arrays, weights)


def test_a_tiny_temperature_leaves_the_best_alone(arrays):
    weights = weights_by_return(arrays, temperature=1e-320)
    assert sorted(set(weights.tolist())) == [0, 1]


@pytest.mark.parametrize(
    "change",
    [
        load_statistics,
        observation_normalizer,
        normalize_observations,
        clip_actions,
        scale_rewards,
        scale_rewards_by_return_range,
    ],
)
def test_what_takes_arrays_refuses_a_dataset_with_what_gives_them(robot, change):
    with pytest.raises(TypeError, match=r"orlog.load_arrays gives them, found Dataset"):
        change(robot)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: normalize_observations(arrays, epsilon=math.inf), "epsilon must be"),
        (lambda arrays: scale_rewards(arrays, scale=1e300), "too large for float32"),
        (lambda arrays: scale_rewards_by_return_range(arrays, total=math.inf), "and finite"),
        (
            lambda arrays: normalize_observations(arrays, normalizer=Normalizer(mean=np.zeros(5), std=np.zeros(5))),
            "its std finite and > 0",
        ),
        (
            lambda arrays: normalize_observations(arrays, normalizer=Normalizer(mean=np.zeros(5), std=np.ones(2))),
            r"std \(2,\)",
        ),
    ],
)
def test_transforms_make_no_number_that_is_not_finite(arrays, change, message):
    before = arrays.rows.clone()
    with pytest.raises(ValueError, match=message):
        change(arrays)
    assert torch.equal(arrays.rows, before)


@pytest.mark.parametrize("limit", [0, -1, 2.5])
def test_a_limit_of_d4rls_environments_is_a_number_of_steps(limit):
    flat = {name: np.zeros((3, 1)) for name in ("observations", "actions")}
    rewards = {name: np.zeros(3) for name in ("rewards", "terminals")}
    with pytest.raises((ValueError, TypeError), match=r"max_episode_steps must be .*, found"):
        qlearning_dataset({**flat, **rewards}, max_episode_steps=limit)


def test_d4rls_functions_refuse_what_is_neither_dataset_nor_arrays(arrays):
    for wrong in (3, arrays):
        for function in (qlearning_dataset, transitions_dataset, d4rl_arrays):
            with pytest.raises(TypeError, match=r"must be a dataset.*, found"):
                function(wrong)


def test_weights_and_d4rls_functions_take_names_and_paths(robot):
    read = orlog.load_arrays(robot)
    expected = weights_by_return(read)
    assert np.array_equal(weights_by_return(robot.folder), expected)
    assert np.array_equal(weights_by_episode(str(robot.folder)), weights_by_episode(read))
    assert weighted(robot.folder, expected).digest == weighted(read, expected).digest
    for function in (qlearning_dataset, transitions_dataset, d4rl_arrays):
        by_path, by_dataset = function(robot.folder), function(robot)
        assert by_path.keys() == by_dataset.keys()
        assert all(np.array_equal(by_path[name], by_dataset[name]) for name in by_path)
    with pytest.raises(NotFoundError, match="nobody/nothing-v1"):
        transitions_dataset("nobody/nothing-v1")


def test_misspelled_words_and_places(robot):
    for call, settings, message in (
        (weights_by_return, {"by": "ranks"}, "by must be .* did you mean rank"),
        (weights_by_episode, {"per": "steps"}, "per must be .* did you mean step"),
        (orlog.load_arrays, {"where": "nmap"}, "where must be .* did you mean mmap"),
    ):
        with pytest.raises(ValueError, match=message):
            call(robot, **settings)
    for where in (None, 3):
        with pytest.raises(TypeError, match="where must be a text"):
            orlog.load_arrays(robot, where)
