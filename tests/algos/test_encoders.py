import copy
import dataclasses
import re

import numpy as np
import pytest
import torch
from gymnasium import spaces

from orlog.algos.algorithms import ALGORITHMS, algorithm_forms, takes_goals
from orlog.algos.bc import BC
from orlog.algos.calql import CalQL
from orlog.algos.cql import CQL
from orlog.algos.dqc import DQC
from orlog.algos.dt import DT
from orlog.algos.encoders import encode_windows, make_encoder
from orlog.algos.gcbc import GCBC
from orlog.algos.networks import Scaling, make_generator
from orlog.algos.qam import QAM
from orlog.algos.rlpd import RLPD
from orlog.algos.settings import make_config
from orlog.algos.training.data import loaded
from orlog.algos.training.runs import load_checkpoint, save_checkpoint
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, Leaf
from tests.algos import plain
from tests.batches import columns

FRAMES = spaces.Box(0, 255, (40, 44, 3), np.uint8)


def scaling_of(space, numbers=0):
    return Scaling(
        obs_mean=torch.arange(numbers) + 1.0,
        obs_std=torch.arange(numbers) + 2.0,
        action_low=torch.zeros(0),
        action_high=torch.zeros(0),
        observation_space=space,
    )


def frames(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, shape, np.uint8))


def test_vectors_are_standardized_and_nothing_is_drawn(scaling):
    generator, other = make_generator(0, 0), make_generator(0, 0)
    space = spaces.Dict(one=spaces.Box(-1, 1, (2,)), two=spaces.Box(0, 9, (1,), np.uint8))
    for one in (scaling, dataclasses.replace(scaling, observation_space=space)):
        encoder = make_encoder(one, generator=generator, random_shift=4)
        observations = torch.randn(5, 3)
        assert torch.equal(encoder(observations), one.observations(observations))
        assert encoder.shift(observations) is observations
        assert (encoder.width, encoder.state_dict()) == (3, {})
    assert torch.equal(generator.get_state(), other.get_state())


def test_integers_are_one_hot_and_numbers_standardized():
    space = spaces.Dict(
        a=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3, start=-1)]),
        b=spaces.MultiBinary(2),
        c=spaces.MultiDiscrete([2, 3], start=[1, 0]),
        d=spaces.Box(-1, 1, (1, 1)),
    )
    encoder = make_encoder(scaling_of(space, 3), generator=make_generator(0, 0))
    observations = {
        "a/0": torch.tensor([[3.0, 5.0]]),
        "a/1": torch.tensor([1]),
        "b": torch.tensor([[0, 1]], dtype=torch.int8),
        "c": torch.tensor([[2, 0]]),
        "d": torch.tensor([[[11.0]]]),
    }
    found = encoder(observations).tolist()
    assert found == [[1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 2.0]]
    assert encoder.width == 13


@pytest.mark.parametrize("kind", ["nature", "impala"])
def test_a_pixel_moves_the_features_of_its_own_frame_only(kind):
    encoder = make_encoder(scaling_of(FRAMES), kind, generator=make_generator(0, 0))
    given = frames(3, 40, 44, 3)
    before = encoder(given)
    assert before.shape == (3, encoder.width)
    assert before.std() > 0
    given[1, 20, 20] = 255 - given[1, 20, 20]
    changed = (encoder(given) != before).any(-1)
    assert changed.tolist() == [False, True, False]
    assert given.dtype == torch.uint8
    assert all(one.grad is None for one in encoder.parameters())
    encoder(given).sum().backward()
    assert all(one.grad is not None for one in encoder.parameters())


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((40, 44, 3), (0, 1, 2)),
        ((3, 40, 44), (2, 0, 1)),
        ((40, 44), None),
        ((2, 40, 44, 3), None),
        ((2, 3, 40, 44), None),
    ],
)
def test_the_smallest_axis_is_that_of_colors(shape, order):
    space = spaces.Box(0, 255, shape, np.uint8)
    encoder = make_encoder(scaling_of(space), generator=make_generator(0, 0))
    first = next(encoder.parameters())
    assert first.shape[1] == np.prod(shape) / 40 / 44
    assert encoder.width == 64 * 1 * 2
    if order is not None:
        reference = make_encoder(scaling_of(FRAMES), generator=make_generator(0, 0))
        given = frames(2, 40, 44, 3)
        other = given.permute(0, *(one + 1 for one in order))
        torch.testing.assert_close(encoder(other), reference(given))


def test_stacked_frames_are_channels_in_order():
    """A stack of gray frames gives what the same frames give as colors."""
    given = frames(2, 3, 40, 44)
    stacked = spaces.Box(0, 255, (3, 40, 44, 1), np.uint8)
    one = make_encoder(scaling_of(FRAMES), generator=make_generator(0, 0))
    other = make_encoder(scaling_of(stacked), generator=make_generator(0, 0))
    torch.testing.assert_close(one(given.movedim(1, -1)), other(given[..., None]))


@pytest.mark.parametrize("layout", ["last", "first"])
def test_shifts_move_whole_frames_and_repeat_the_border(layout):
    shape = (40, 44, 3) if layout == "last" else (3, 40, 44)
    space = spaces.Dict(frames=spaces.Box(0, 255, shape, np.uint8), vector=spaces.Box(-1, 1, (2,)))
    encoder = make_encoder(scaling_of(space, 2), generator=make_generator(0, 0), random_shift=2)
    given = {"frames": frames(64, *shape), "vector": torch.randn(64, 2)}
    shifted = encoder.shift(given)
    assert shifted["vector"] is given["vector"]
    assert shifted["frames"].shape == given["frames"].shape
    axes = (0, 3, 1, 2) if layout == "last" else (0, 1, 2, 3)
    before, after = (one["frames"].permute(axes).float() for one in (given, shifted))
    padded = torch.nn.functional.pad(before, (2, 2, 2, 2), mode="replicate")
    by = []
    for item in range(64):
        places = [
            (down, right)
            for down in range(5)
            for right in range(5)
            if torch.equal(padded[item, :, down : down + 40, right : right + 44], after[item])
        ]
        assert len(places) == 1
        by += places
    assert len(set(by)) > 15
    assert torch.equal(shifted["frames"], encoder.shift(given)["frames"]) is False
    still = make_encoder(scaling_of(space, 2), generator=make_generator(0, 0))
    assert still.shift(given) is given


def weights(algorithm):
    return [one.detach().clone() for one in algorithm.encoder.parameters()]


def moved(algorithm, before):
    """Return whether each parameter of the encoder is another one."""
    return [not torch.equal(*pair) for pair in zip(weights(algorithm), before, strict=True)]


class Saved:
    def __init__(self, seed):
        self.encoder = make_encoder(scaling_of(FRAMES), generator=make_generator(seed, 0), random_shift=4)


def test_a_checkpoint_holds_where_the_shifts_are(tmp_path):
    one, other = Saved(0), Saved(1)
    given = frames(8, 40, 44, 3)
    one.encoder.shift(given)
    save_checkpoint(one, tmp_path / "state", metadata={})
    load_checkpoint(other, tmp_path / "state")
    assert torch.equal(one.encoder.shift(given), other.encoder.shift(given))
    assert torch.equal(one.encoder(given), other.encoder(given))


@pytest.mark.parametrize(
    ("space", "kind", "words"),
    [
        (
            spaces.Dict(eye=spaces.Box(0, 255, (10, 10, 3), np.uint8)),
            "nature",
            "frames of 10 x 10 pixels, which are too small for the Nature encoder (at least 36 x 36);",
        ),
        (
            spaces.Box(0, 255, (2, 2, 40, 40, 3), np.uint8),
            "impala",
            "uint8 with 5 axes; frames have at most 4: stack, height, width, colors.",
        ),
        (spaces.Text(5), "impala", "observations is Text(1, 5, charset="),
    ],
)
def test_what_cannot_be_encoded_is_refused(space, kind, words):
    with pytest.raises(SchemaError, match=re.escape(words)):
        make_encoder(scaling_of(space), kind, generator=make_generator(0, 0))


PIXELS = spaces.Box(0, 255, (8, 8, 1), np.uint8)
SETTINGS = {"hidden": (4,), "encoder": "impala", "batch_size": 6}
KINDS = [form for name in ALGORITHMS for form in algorithm_forms(name)]
GOAL_KINDS = [kind for kind in KINDS if takes_goals(kind)]
VALUE_KINDS = [
    kind
    for kind in KINDS
    if "discount" in kind.CONFIG.__struct_fields__
    and kind not in GOAL_KINDS
    and "discrete" not in kind.ACTIONS
    and not hasattr(kind.CONFIG, "cost_limit")  # they need a column of costs beside frames
]
FEATURES = (
    *("observations", "next_observations", "subgoal_observations", "midpoint_observations"),
    "value_goal_observations",
    *("value_goals", "actor_goals", "low_goals", "subgoals"),
)


def pixel_scaling():
    return dataclasses.replace(scaling_of(PIXELS), action_low=-torch.ones(2), action_high=torch.ones(2))


def small_config(kind, **settings):
    more = {"updates": 1} if kind is RLPD else {"horizon": 3} if kind is DQC else {}
    return kind.CONFIG(**SETTINGS, **more, **settings)


def pixel_batch(kind, config):
    """Return the first batch of an algorithm's own loader, of steps that end their task."""
    rng = np.random.default_rng(0)
    lengths = np.array([9, 7])
    rows = rng.uniform(-0.9, 0.9, (18, 2 + 3)).astype(np.float32)
    arrays = Arrays(
        rows=torch.from_numpy(rows),
        lengths=lengths,
        obs_dim=0,
        action_dim=2,
        others={"observations": frames(18, 8, 8, 1)},
        observation_leaves={"": Leaf(column="observations")},
    )
    return next(iter(loaded(kind, config, arrays, seed=0, start=0)))


@pytest.mark.parametrize("kind", [BC, *VALUE_KINDS])
def test_an_update_trains_the_encoder_by_the_critics_alone(kind):
    """All of its weights move, and by the critics' loss alone where there are critics."""
    settings = {"random_shift": 1}
    if kind in (CQL, CalQL):
        settings["conservative_weight"] = 0
    config = small_config(kind, **settings)
    batch, scaling = pixel_batch(kind, config), pixel_scaling()
    batch = dataclasses.replace(batch, terminations=torch.ones(6))
    made = kind(config, scaling, seed=0)
    before = weights(made)
    if kind is not BC:
        # Without an error of the critics, only the policy and the value have something to learn.
        with torch.no_grad():
            for one in made.critic.parameters():
                one.zero_()
        made.update(dataclasses.replace(batch, rewards=0 * batch.rewards))
        assert not any(moved(made, before))
        made = kind(config, scaling, seed=0)
    made.update(batch)
    assert all(moved(made, before))
    assert made.act(batch.observations).shape == (6, 2)


def networks_of(algorithm):
    """Return all networks but the encoder."""
    found = {name: getattr(algorithm, name) for name in vars(algorithm) if name != "encoder"}
    return {name: one for name, one in found.items() if isinstance(one, torch.nn.Module)}


# QAM bounds the norm of all gradients together, those of the encoder among them.
@pytest.mark.parametrize("kind", [kind for kind in (*VALUE_KINDS, *GOAL_KINDS) if kind is not QAM])
def test_an_update_on_frames_is_that_on_vectors_of_their_features(kind):
    """The networks change as those of vectors do, and the encoder by the gradient of its features."""
    config = small_config(kind)
    made = kind(config, pixel_scaling(), seed=0)
    batch = pixel_batch(kind, config)
    batch = dataclasses.replace(batch, terminations=torch.zeros(6))
    encoder = copy.deepcopy(made.encoder)
    encode = encoder.states if kind in GOAL_KINDS else encoder
    unscaled = Scaling(
        obs_mean=torch.zeros(encoder.width),
        obs_std=torch.ones(encoder.width),
        action_low=-torch.ones(2),
        action_high=torch.ones(2),
    )
    of_vectors = kind(config, unscaled, seed=0)
    for name, network in networks_of(of_vectors).items():
        network.load_state_dict(getattr(made, name).state_dict())
    features = {name: encode(getattr(batch, name)) for name in FEATURES if getattr(batch, name, None) is not None}
    given = {name: one.detach().requires_grad_() for name, one in features.items()}
    made.update(batch)
    of_vectors.update(dataclasses.replace(batch, **given))
    trained = [name for name, one in given.items() if one.grad is not None]
    torch.autograd.backward([features[name] for name in trained], [given[name].grad for name in trained])
    for one, other in zip(made.encoder.parameters(), encoder.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    for name, network in networks_of(of_vectors).items():
        for one, other in zip(getattr(made, name).parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", GOAL_KINDS)
def test_the_policies_for_goals_do_not_train_the_encoder(kind):
    """But for GCBC, which has nothing else."""
    config = small_config(kind, random_shift=1)
    batch = pixel_batch(kind, config)
    after = []
    for scale in (1, 3):
        made = kind(config, pixel_scaling(), seed=0)
        before = weights(made)
        with torch.no_grad():
            for name, network in networks_of(made).items():
                for one in network.parameters() if "policy" in name else ():
                    one.mul_(scale)
        made.update(batch)
        after.append(made)
        assert all(moved(made, before))
        assert made.act(batch.observations, batch.actor_goals).shape == (6, 2)
    differs = moved(after[0], weights(after[1]))
    assert all(differs) if kind is GCBC else not any(differs)


@pytest.mark.parametrize("goal", [PIXELS, spaces.Box(-9, 9, (2, 1)), spaces.Discrete(4)])
@pytest.mark.parametrize("kind", GOAL_KINDS)
def test_goals_that_are_parts_of_mixtures_have_an_encoder_of_their_own(kind, goal):
    space = spaces.Dict(achieved_goal=goal, observation=PIXELS)
    numbers = isinstance(goal, spaces.Box) and goal is not PIXELS
    scaling = dataclasses.replace(
        pixel_scaling(),
        observation_space=space,
        obs_mean=torch.ones(2 * numbers),
        obs_std=torch.ones(2 * numbers),
        goal_mean=torch.ones(2 * numbers),
        goal_std=torch.ones(2 * numbers),
        goal_space=goal,
    )
    config = small_config(kind, random_shift=1)
    space.seed(0)
    batch = pixel_batch(kind, config)
    goals = torch.from_numpy(np.stack([goal.sample() for _ in range(6)]))
    changed = {}
    for name in columns(batch):
        if "goals" in name:
            changed[name] = goals
        elif "observations" in name:
            changed[name] = {"achieved_goal": goals, "observation": getattr(batch, name)}
    batch = dataclasses.replace(batch, **changed)
    made = kind(config, scaling, seed=0)
    before = weights(made)
    made.update(batch)
    assert all(moved(made, before))
    assert made.act(batch.observations, goals).shape == (6, 2)


def test_windows_of_frames_train_the_encoder_of_a_decision_transformer():
    """Its empty slots count for nothing, and what it does in an episode is what it does in a window."""
    small = plain.small_settings("dt", batch_size=6)
    config = make_config("dt", {**small, "length": 3, "dropout": 0.0, "encoder": "impala"})
    batch = pixel_batch(DT, config)
    assert not batch.mask.all()
    made = DT(config, pixel_scaling(), seed=0)
    with torch.no_grad():
        features = encode_windows(made.encoder, batch.observations, batch.mask)
        given = (batch.returns_to_go, features, batch.actions, batch.timesteps)
        predicted = made.policy(*given)
    for slot in range(3):
        one = made.encoder(batch.observations[:, slot])
        torch.testing.assert_close(features[batch.mask[:, slot], slot], one[batch.mask[:, slot]])
    actor = made.actor(6)
    actor.to_go = batch.returns_to_go[:, :1].clone()
    first = made.scaling.actions_to_unit(actor.act(batch.observations[:, 0]))
    at_start = batch.timesteps[:, 0] == 0
    torch.testing.assert_close(first[at_start], predicted[at_start, 0])
    before = weights(made)
    made.update(batch)
    assert all(moved(made, before))
    filled = batch.mask.view(6, 3, 1, 1, 1)
    other = dataclasses.replace(batch, observations=torch.where(filled, batch.observations, 255))
    again = DT(config, pixel_scaling(), seed=0)
    again.update(other)
    assert not any(moved(made, weights(again)))


def test_empty_slots_of_windows_are_no_values_out_of_range():
    space = spaces.Dict(a=spaces.Discrete(2, start=1), b=spaces.Box(-1, 1, (1,)))
    encoder = make_encoder(scaling_of(space, 1), generator=make_generator(0, 0))
    windows = {"a": torch.tensor([[2, 0]]), "b": torch.tensor([[[3.0], [0.0]]])}
    found = encode_windows(encoder, windows, torch.tensor([[True, False]]))
    assert found.tolist() == [[[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]]
