"""Every kind of sampling equals a slow loop over episodes: wherever the data are, for any rank, and after resuming.

A step is told apart by its state, which no other row has. `check` of a kind compares an item with its step and returns
the step of each slot of its rewards, by which infos are compared.
"""

import dataclasses
import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils.data import DataLoader

import orlog
from orlog.loaders.goals import GoalMixture
from tests.batches import columns

LENGTHS = (7, 1, 4, 12, 2, 9)
STATE = spaces.Box(-np.inf, np.inf, (3,), np.float32)
CAMERA = spaces.Box(0, 255, (4, 5, 3), np.uint8)
FORMS = {
    "flat": (STATE, spaces.Box(-9, 9, (2,), np.float32)),
    "parts": (spaces.Dict({"camera": CAMERA, "state": STATE, "floor": spaces.Discrete(7)}), spaces.Discrete(4)),
}
INFOS = ("number", "episodes/worth", "cost")
GAMMA, LENGTH, STEPS, STACK = 0.9, 5, 3, 3
SEEN, PLANNED = (-2, 0, 1), (-1, 0, 3)


@pytest.fixture(scope="module", params=FORMS)
def dataset(request, tmp_path_factory):
    """Return a dataset of a form, in a home of its own."""
    observation_space, action_space = FORMS[request.param]
    rng, first = np.random.default_rng(0), 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("home")))
        with orlog.DatasetWriter(
            "lab/kinds-v1", observation_space=observation_space, action_space=action_space
        ) as writer:
            for number, length in enumerate(LENGTHS):
                ends = np.arange(length) == length - 1
                state = rng.normal(size=(length + 1, 3)).astype(np.float32)
                camera = rng.integers(0, 256, (length + 1, 4, 5, 3), np.uint8)
                parts = {"camera": camera, "state": state, "floor": rng.integers(0, 7, length + 1)}
                flat = request.param == "flat"
                writer.add_steps(
                    observations=state if flat else parts,
                    actions=rng.normal(size=(length, 2)).astype(np.float32) if flat else rng.integers(0, 4, length),
                    rewards=rng.normal(size=length),
                    terminations=ends & (number % 2 == 0),
                    truncations=ends & (number % 3 == 1),
                    infos={"number": np.arange(first, first + length), "cost": rng.random(length)},
                )
                first += length
                writer.end_episode(metadata={"worth": float(number)})
        yield orlog.load_dataset("lab/kinds-v1")


class Slow:
    """Finds the episode and the step of a state, and says what an item should hold."""

    def __init__(self, dataset):
        self.episodes = list(dataset)
        self.places = {}
        for number, episode in enumerate(self.episodes):
            seen = episode.observations
            for step, state in enumerate(seen["state"] if isinstance(seen, dict) else seen):
                self.places[state.tobytes()] = number, step

    def find(self, observation):
        state = observation["state"] if isinstance(observation, dict) else observation
        number, step = self.places[np.asarray(state).tobytes()]
        return self.episodes[number], step


def seen(episode, steps):
    """Return observations at some steps: at one, or as many as there are."""
    values = episode.observations
    return {key: one[steps] for key, one in values.items()} if isinstance(values, dict) else values[steps]


def item(value, index):
    """Return an item of a field of a batch."""
    return {key: one[index] for key, one in value.items()} if isinstance(value, dict) else value[index]


def same(found, expected):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            same(found[key], expected[key])
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=1e-5, atol=1e-6)


def padded(values, steps, last):
    """Return the rows of some steps, zeros where there is none."""
    if isinstance(values, dict):
        return {key: padded(one, steps, last) for key, one in values.items()}
    values = np.asarray(values)
    return np.stack([values[step] if 0 <= step < last else np.zeros_like(values[0]) for step in steps])


def inside(episode, steps):
    return [step if 0 <= step < len(episode) else None for step in steps]


def returned(episode, step, last, discount=GAMMA):
    rewards = episode.rewards[step:last].astype(np.float32)
    return (rewards * discount ** np.arange(len(rewards))).sum()


def transition(batch, at, slow, n_steps=1):
    episode, step = slow.find(item(batch.observations, at))
    last = min(step + n_steps, len(episode))
    same(item(batch.observations, at), seen(episode, step))
    same(item(batch.next_observations, at), seen(episode, last))
    same(batch.rewards[at], returned(episode, step, last))
    same(batch.terminations[at], episode.terminations[last - 1])
    same(batch.truncations[at], episode.truncations[last - 1])
    if batch.discounts is not None:
        same(batch.discounts[at], GAMMA ** (last - step))
    if batch.valid is not None:
        planned = range(step, step + LENGTH)
        same(batch.actions[at], padded(episode.actions, planned, len(episode)))
        same(batch.valid[at], [one < len(episode) for one in planned])
        return episode, inside(episode, planned)
    same(batch.actions[at], episode.actions[step])
    if batch.next_actions is not None:
        same(batch.has_next_action[at], last < len(episode))
        same(batch.next_actions[at], padded(episode.actions, [last], len(episode))[0])
        same(batch.returns_to_go[at], returned(episode, step, len(episode)))
    return episode, step


def stacked(batch, at, slow, n_steps=STEPS):
    newest = {key: one[:, -1] if key == "camera" else one for key, one in batch.observations.items()}
    following = {key: one[:, -1] if key == "camera" else one for key, one in batch.next_observations.items()}
    plain = dataclasses.replace(batch, observations=newest, next_observations=following)
    episode, step = transition(plain, at, slow, n_steps)
    for value, newest_step in (
        (batch.observations, step),
        (batch.next_observations, min(step + n_steps, len(episode))),
    ):
        frames = [max(0, newest_step - back) for back in range(STACK - 1, -1, -1)]
        same(value["camera"][at], episode.observations["camera"][frames])
    return episode, step


def sequence(batch, at, slow, is_left=False):
    episode, step = slow.find(item(item(batch.observations, at), -1 if is_left else 0))
    steps = range(step - LENGTH + 1, step + 1) if is_left else range(step, step + LENGTH)
    count = len(episode)
    same(item(batch.observations, at), padded(episode.observations, steps, count))
    same(item(batch.next_observations, at), padded(seen(episode, slice(1, None)), steps, count))
    for name in ("actions", "rewards", "terminations", "truncations"):
        same(getattr(batch, name)[at], padded(getattr(episode, name), steps, count))
    to_go = [returned(episode, one, count) for one in range(count)]
    same(batch.returns_to_go[at], padded(to_go, steps, count))
    same(batch.timesteps[at], padded(range(count), steps, count))
    same(batch.mask[at], [0 <= one < count for one in steps])
    return episode, inside(episode, steps)


def window(batch, at, slow, zeros=False):
    episode, step = slow.find(item(item(batch.observations, at), SEEN.index(0)))
    count = len(episode)
    for name, values, offsets, last in (
        ("observations", episode.observations, SEEN, count + 1),
        ("actions", episode.actions, PLANNED, count),
    ):
        steps = [step + one for one in offsets]
        nearest = steps if zeros else [min(max(one, 0), last - 1) for one in steps]
        same(item(getattr(batch, name), at), padded(values, nearest, last))
    same(batch.observations_valid[at], [0 <= step + one <= count for one in SEEN])
    planned = [step + one for one in PLANNED]
    same(batch.valid[at], [0 <= one < count for one in planned])
    same(batch.rewards[at], padded(episode.rewards, planned, count))
    return episode, inside(episode, planned)


def whole(batch, at, slow):
    episode, _ = slow.find(item(item(batch.observations, at), 0))
    count, longest = len(episode), batch.mask.shape[1]
    assert longest == int(batch.lengths.max())
    same(item(batch.observations, at), padded(episode.observations, range(longest + 1), count + 1))
    for name in ("actions", "rewards", "terminations", "truncations"):
        same(getattr(batch, name)[at], padded(getattr(episode, name), range(longest), count))
    same(batch.mask[at], np.arange(longest) < count)
    return episode, inside(episode, range(longest))


def packed(batch, at, slow):
    steps = slice(int(batch.offsets[at]), int(batch.offsets[at + 1]))
    episode, _ = slow.find(item(batch.final_observations, at))
    same(item(batch.observations, steps), seen(episode, slice(0, -1)))
    for name in ("actions", "rewards", "terminations", "truncations"):
        same(getattr(batch, name)[steps], getattr(episode, name))
    same(batch.timesteps[steps], np.arange(len(episode)))
    return episode, [*range(len(episode))]


def goal(batch, at, slow):
    episode, step = slow.find(item(batch.observations, at))
    same(batch.actions[at], episode.actions[step])
    same(item(batch.next_observations, at), seen(episode, step + 1))
    same(batch.terminations[at], episode.terminations[step])
    wanted, place = slow.find(item(batch.value_goals, at))
    later, reached = slow.find(item(batch.actor_goals, at))
    if batch.midpoint_observations is not None:
        middle, between = slow.find(item(batch.midpoint_observations, at))
        assert middle is wanted is episode
        assert step <= between < place <= len(episode)
        assert step < reached <= len(later)
        assert [int(batch.midpoint_offsets[at]), int(batch.value_offsets[at])] == [between - step, place - step]
        same(batch.midpoint_actions[at], episode.actions[between])
        same(item(batch.value_goal_observations, at), item(batch.value_goals, at))
        same([batch.masks[at], batch.rewards[at]], [1, -1])
        return episode, step
    assert place < len(wanted)  # never a final observation
    is_there = wanted is episode and place == step
    same(batch.masks[at], not is_there)
    same(batch.rewards[at], -float(not is_there))
    assert later is episode
    assert step < reached < len(episode) or reached == step == len(episode) - 1
    if batch.low_goals is not None:
        low = min(step + STEPS, len(episode) - 1)
        same(item(batch.low_goals, at), seen(episode, low))
        same(item(batch.subgoals, at), seen(episode, min(low, reached)))
        same(item(batch.subgoal_observations, at), seen(episode, min(low, reached)))
    return episode, step


def pair(batch, at, slow):
    sums, numbers = [], []
    for segment in range(2):
        episode, step = slow.find(item(item(item(batch.observations, at), segment), 0))
        steps = [*range(step, step + LENGTH)]
        assert steps[-1] < len(episode)
        same(item(item(batch.observations, at), segment), seen(episode, steps))
        same(batch.actions[at, segment], np.asarray(episode.actions)[steps])
        same(batch.rewards[at, segment], episode.rewards[steps])
        same(batch.timesteps[at, segment], steps)
        sums.append(returned(episode, step, step + LENGTH))
        numbers.append(episode.infos["number"][steps])
    assert float(batch.labels[at]) == (0.5 if sums[0] == sums[1] else float(sums[1] > sums[0]))
    same(batch.infos["number"][at], np.stack(numbers))


LATER = GoalMixture(trajectory=1.0)
PADDED = {"observations": SEEN, "actions": PLANNED, "rewards": True}
MORE = {"discount": GAMMA, "next_actions": True, "returns_to_go": True}
KINDS = {
    "transitions": (orlog.transitions, {"discount": GAMMA}, transition),
    "all of a transition": (orlog.transitions, MORE, transition),
    "steps": (orlog.transitions, {"n_steps": STEPS, **MORE}, lambda *some: transition(*some, STEPS)),
    "prioritized": (orlog.transitions, {"prioritized": True, **MORE}, transition),
    "frames": (orlog.transitions, {"stacks": STACK, "n_steps": STEPS, **MORE}, stacked),
    "frames of one step": (orlog.transitions, {"stacks": STACK, **MORE}, lambda *some: stacked(*some, 1)),
    "chunks": (orlog.action_chunks, {"length": LENGTH, "discount": GAMMA}, lambda *some: transition(*some, LENGTH)),
    "right": (orlog.sequences, {"length": LENGTH, "discount": GAMMA, "with_next": True}, sequence),
    "left": (
        orlog.sequences,
        {"length": LENGTH, "discount": GAMMA, "with_next": True, "padding": "left"},
        lambda *some: sequence(*some, is_left=True),
    ),
    "windows": (orlog.windows, PADDED, window),
    "zeros": (orlog.windows, {**PADDED, "padding": "zero"}, lambda *some: window(*some, zeros=True)),
    "episodes": (orlog.episodes, {}, whole),
    "packed": (orlog.episodes, {"layout": "packed"}, packed),
    "goals": (orlog.goals, {}, goal),
    "midpoints": (orlog.goals, {"midpoints": True, "final_goals": True, "value_goals": LATER}, goal),
    "subgoals": (orlog.subgoals, {"steps": STEPS, "actor_goals": LATER}, goal),
    "preferences": (orlog.preferences, {"length": LENGTH, "discount": GAMMA}, pair),
}
STREAMED = ("transitions", "all of a transition", "steps", "frames", "frames of one step")
SIZE = 12


@pytest.fixture(params=KINDS)
def kind(request, dataset):
    """Return what makes a stream of a kind, and its check."""
    if "frames" in request.param and not isinstance(dataset.observation_space, spaces.Dict):
        pytest.skip("no frames")
    call, settings, check = KINDS[request.param]
    return lambda data, **more: call(data, **{"batch_size": SIZE, "seed": 3, **settings, **more}), check, request.param


def assert_equal(one, other):
    """Assert that two batches are the same to the bit."""
    assert type(one) is type(other)
    for name in [*columns(one), "infos"]:
        ours, theirs = getattr(one, name), getattr(other, name)
        pairs = [(ours[key], theirs[key]) for key in theirs] if isinstance(theirs, dict) else [(ours, theirs)]
        for left, right in pairs:
            if right is not None:
                np.testing.assert_array_equal(np.asarray(left), np.asarray(right), name, strict=True)


@pytest.mark.parametrize("place", ["ram", "mmap", "stream"])
def test_items_are_what_a_slow_loop_finds(dataset, kind, place, home):  # noqa: ARG001
    make, check, name = kind
    if place == "stream" and name not in STREAMED:
        pytest.skip("not streamed")
    data = dataset if place == "stream" else orlog.load_arrays(dataset, place, infos=INFOS)
    slow = Slow(dataset)
    batches = make(data, infos=INFOS, **({"stream": True, "buffer_bytes": 3000} if place == "stream" else {}))
    drawn = set()
    for batch in itertools.islice(batches, 4):
        numbers = batch.infos["number"].tolist()
        for at in range(SIZE):
            checked = check(batch, at, slow)
            if checked is None:
                continue
            episode, steps = checked
            wanted = [0 if one is None else int(episode.infos["number"][one]) for one in np.atleast_1d(steps)]
            found = numbers[int(batch.offsets[at]) : int(batch.offsets[at + 1])] if name == "packed" else numbers[at]
            assert np.atleast_1d(found).tolist() == wanted
            drawn.add(wanted[0])
    assert len(drawn) > 2 or name == "preferences"


def test_ranks_places_and_forms_share_one_stream(dataset, kind, home):  # noqa: ARG001
    make, _, name = kind
    arrays = orlog.load_arrays(dataset, infos=INFOS)
    whole_batches = [*itertools.islice(make(arrays, infos=INFOS), 70)]  # more than are chosen at once
    mapped = orlog.load_arrays(dataset, "mmap", infos=INFOS)
    plain = [*itertools.islice(make(dataset), 70)]
    for index in (0, 5, 63, 64, 69):
        batch = whole_batches[index]
        assert_equal(plain[index], dataclasses.replace(batch, infos={}))
        if name != "prioritized":
            assert_equal(make(mapped, infos=INFOS).batch(index), batch)
            assert_equal(
                make(arrays, infos=("number",)).batch(index),
                dataclasses.replace(batch, infos={"number": batch.infos["number"]}),
            )
    arrays_of = next(iter(make(mapped, infos=INFOS, to="numpy")))
    assert isinstance(arrays_of.actions, np.ndarray)
    assert_equal(arrays_of, whole_batches[0])
    if name not in ("episodes", "packed"):
        halves = [next(iter(make(arrays, infos=INFOS, rank=rank, ranks=2))) for rank in range(2)]
        for field in columns(whole_batches[0]):
            value = getattr(whole_batches[0], field)
            for key in value if isinstance(value, dict) else [None]:
                parts = [getattr(half, field) if key is None else getattr(half, field)[key] for half in halves]
                expected = value if key is None else value[key]
                assert expected is None or torch.equal(torch.cat(parts), expected)


def test_it_goes_on_where_it_stopped(dataset, kind):
    make, _, name = kind
    stream = make(dataset)
    batches = iter(stream)
    for _ in range(3):
        next(batches)
    state = pickle.loads(pickle.dumps(stream.state_dict()))
    following = [next(batches) for _ in range(2)]
    again = make(dataset)
    again.load_state_dict(state)
    for one, other in zip(again, following, strict=False):
        assert_equal(one, other)
    for one, other in zip(make(dataset, start=3), following, strict=False):
        assert_equal(one, other)
    with pytest.raises(ValueError, match="another stream: seed"):
        make(dataset, seed=4).load_state_dict(state)
    if name != "prioritized":
        loader = DataLoader(pickle.loads(pickle.dumps(again)), batch_size=None, num_workers=2)
        for one, other in zip(loader, following, strict=False):
            assert_equal(one, other)


WITHOUT_TORCH = """
import itertools, pickle, sys
sys.modules["torch"] = None
import orlog
folder, wanted = pickle.load(sys.stdin.buffer)
made = []
for name, place, settings in wanted:
    data = folder if place == "stream" else orlog.load_arrays(folder, place, infos=settings["infos"])
    made.append([*itertools.islice(getattr(orlog, name)(data, **settings), 3)])
pickle.dump(made, sys.stdout.buffer)
sys.stdout.flush()
orlog.transitions(folder, 8, seed=0)
"""


def test_arrays_need_no_torch_and_tensors_do(dataset, home):  # noqa: ARG001
    wanted, expected = [], []
    for name, (call, settings, _) in KINDS.items():
        if "frames" in name and not isinstance(dataset.observation_space, spaces.Dict):
            continue
        for place in ("ram", "mmap", *(["stream"] if name in STREAMED else [])):
            more = {"batch_size": SIZE, "seed": 3, "infos": INFOS, "to": "numpy", **settings}
            more |= {"stream": True, "buffer_bytes": 3000} if place == "stream" else {}
            wanted.append((call.__name__, place, more))
            data = dataset if place == "stream" else orlog.load_arrays(dataset, place, infos=INFOS)
            expected.append([*itertools.islice(call(data, **more), 3)])
    given = pickle.dumps((dataset.folder, wanted))
    ended = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], input=given, capture_output=True, check=False)
    assert b'tensors need PyTorch; to="numpy" gives arrays' in ended.stderr, ended.stderr.decode()
    for made, batches in zip(pickle.loads(ended.stdout), expected, strict=True):
        for one, other in zip(made, batches, strict=True):
            assert type(one.actions) is np.ndarray
            assert_equal(one, other)
