import dataclasses
import functools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.errors import SchemaError
from orlog.loaders import statistics as statistics_module
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.batch import Batch
from orlog.loaders.statistics import Moments, compute_statistics, episode_returns, load_statistics, statistics_file
from orlog.loaders.transforms import (
    Normalizer,
    clip_actions,
    images_to_float,
    normalize_observations,
    observation_normalizer,
    scale_rewards,
    scale_rewards_by_return_range,
)
from tests.levels import scaled

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-2, 3, (2,), np.float32)
IMAGES = spaces.Box(0, 255, (4, 5, 3), np.uint8)


@pytest.fixture
def arrays(write, make):
    rng = np.random.default_rng(0)
    episodes = [
        make(BOX, ACTION, length=length, end=end, rng=rng)
        for length, end in [(7, "termination"), (1, "truncation"), (12, "cut")]
    ]
    return read_arrays(write(episodes, BOX, ACTION))


@pytest.fixture
def images(write, make):
    rng = np.random.default_rng(0)
    episode = make(IMAGES, spaces.Discrete(3), length=4, end="cut", rng=rng)
    return read_arrays(write([episode], IMAGES, spaces.Discrete(3)))


def made_arrays(matrix, lengths):
    """Return arrays of rows of steps: two observations, one action, a reward and two flags."""
    step_rows = np.arange(len(matrix)) + np.repeat(np.arange(len(lengths)), lengths)
    rows = np.zeros((len(matrix) + len(lengths), 6), np.float32)
    rows[step_rows, :4] = matrix
    rows[np.setdiff1d(np.arange(len(rows)), step_rows), :2] = 777  # final observations count not
    return Arrays(rows=torch.from_numpy(rows), lengths=np.array(lengths), obs_dim=2, action_dim=1)


def parts_of(arrays):
    """Return the packed columns, float64."""
    return {name: arrays.rows[:, at].double().numpy() for name, at in arrays.columns.items()}


@settings(max_examples=scaled(40), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    block=st.integers(1, 50),
    offset=st.sampled_from([0.0, 1.0, 1e6]),
    scale=st.sampled_from([1e-3, 1.0, 1e6]),
    seed=st.integers(0, 2**32),
)
def test_statistics_are_the_exact_ones(lengths, block, offset, scale, seed):
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=(sum(lengths), 4)) * scale + offset).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics_module, "_BLOCK_ROWS", block)
        found = compute_statistics(made_arrays(values, lengths))
    assert (found.steps, found.episodes) == (len(values), len(lengths))
    for moments, first, stop in [(found.observations, 0, 2), (found.actions, 2, 3), (found.rewards, 3, 4)]:
        for place, column in enumerate(range(first, stop)):
            check(moments, place, [*map(Fraction, values[:, column].tolist())])
    ends = np.cumsum(lengths)
    sums = [sum(map(Fraction, part.tolist()), Fraction()) for part in np.split(values[:, 3], ends[:-1])]
    check(found.returns, 0, sums)


def check(moments, place, numbers):
    """Compare with the moments of exact numbers."""
    mean = sum(numbers) / Fraction(len(numbers))
    variance = sum((number - mean) ** 2 for number in numbers) / len(numbers)
    largest = float(max(map(abs, numbers)))
    assert abs(moments.mean[place] - float(mean)) <= 1e-14 * largest
    assert abs(moments.std[place] - math.sqrt(variance)) <= 1e-13 * largest
    assert moments.low[place] == pytest.approx(float(min(numbers)), rel=1e-13, abs=1e-13 * largest)
    assert moments.high[place] == pytest.approx(float(max(numbers)), rel=1e-13, abs=1e-13 * largest)


def test_statistics_of_many_rows_do_not_drift():
    values = np.zeros((300_000, 4), np.float32)
    values[:, 0] = 1e6 + np.arange(len(values)) % 2
    values[:, 1] = np.random.default_rng(0).normal(size=len(values))
    found = compute_statistics(made_arrays(values, [300_000])).observations
    assert found.mean[0] == 1e6 + 0.5
    assert found.std[0] == pytest.approx(0.5, rel=1e-12)
    numbers = values[:, 1].tolist()
    mean = math.fsum(numbers) / len(numbers)
    std = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / len(numbers))
    assert found.mean[1] == pytest.approx(mean, abs=1e-16)
    assert found.std[1] == pytest.approx(std, rel=1e-13)


def test_statistics_are_kept_with_the_digest_and_read_bit_for_bit(arrays, home, monkeypatch):
    first = load_statistics(arrays)
    path = home / "statistics" / f"{arrays.digest.removeprefix('sha256:')}.json"
    assert statistics_file(arrays.digest) == path
    assert path.is_file()
    monkeypatch.setattr(statistics_module, "compute_statistics", None)  # it is not called again
    again = load_statistics(arrays)
    assert (again.steps, again.episodes) == (first.steps, first.episodes)
    for name in ("observations", "actions", "rewards", "returns"):
        for field in dataclasses.fields(Moments):
            kept = getattr(getattr(again, name), field.name)
            made = getattr(getattr(first, name), field.name)
            np.testing.assert_array_equal(kept, made, strict=True)


def test_arrays_without_a_digest_are_computed_each_time(arrays, home):
    load_statistics(dataclasses.replace(arrays, digest=""))
    assert not home.exists()


def test_a_home_that_cannot_be_written_keeps_nothing(arrays, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "file"))
    assert load_statistics(arrays).steps == 20


@pytest.mark.parametrize("change", [{"form": []}, {"parts": {}}, {"checksum": ""}, {"parts": 1}, None])
def test_kept_statistics_that_are_damaged_are_computed_again(arrays, change):
    first = load_statistics(arrays)
    path = statistics_file(arrays.digest)
    kept = json.loads(path.read_text("utf-8"))
    path.write_text("{" if change is None else json.dumps(kept | change), "utf-8")
    assert repr(load_statistics(arrays)) == repr(first)
    assert json.loads(path.read_text("utf-8")) == kept


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_have_no_statistics(value):
    values = np.zeros((9, 4), np.float32)
    values[5, 1] = value
    with pytest.raises(SchemaError, match="not finite at step 5 "):
        compute_statistics(made_arrays(values, [4, 5]))


def test_normalized_observations_have_mean_0_and_spread_1(arrays):
    before = parts_of(arrays)
    normal = normalize_observations(arrays, epsilon=0.0)
    steps = parts_of(normal)["observations"][arrays.step_rows()]
    np.testing.assert_allclose(steps.mean(0), 0, atol=1e-7)
    np.testing.assert_allclose(steps.std(0), 1, rtol=1e-6)
    normal = normalize_observations(arrays)
    steps = before["observations"][arrays.step_rows()]
    expected = (before["observations"] - steps.mean(0)) / (steps.std(0) + 1e-3)
    found = parts_of(normal)
    np.testing.assert_allclose(found["observations"], expected, rtol=1e-6, atol=1e-6)
    for name in ("actions", "rewards", "terminations", "truncations"):
        np.testing.assert_array_equal(found[name], before[name])
    np.testing.assert_array_equal(parts_of(arrays)["observations"], before["observations"])

    normalizer = observation_normalizer(arrays)
    observations = arrays.rows[:, : arrays.obs_dim].numpy()
    as_evaluated = normalizer.normalize(observations)
    np.testing.assert_array_equal(as_evaluated, normal.rows[:, : arrays.obs_dim].numpy())
    np.testing.assert_allclose(normalizer.restore(as_evaluated), observations, rtol=1e-5, atol=1e-6)
    other = normalize_observations(arrays, normalizer=normalizer)
    assert torch.equal(other.rows, normal.rows)
    assert other.digest == normal.digest


def test_an_observation_that_never_changes_stays_finite():
    values = np.ones((6, 4), np.float32)
    normal = normalize_observations(made_arrays(values, [6]))
    assert normal.rows[:6, :2].tolist() == [[0.0, 0.0]] * 6
    with pytest.raises(ValueError, match="epsilon must be finite and >= 0, and > 0 if"):
        normalize_observations(made_arrays(values, [6]), epsilon=0.0)


def test_actions_are_clipped(arrays):
    before = parts_of(arrays)
    found = parts_of(clip_actions(arrays, limit=0.5))
    np.testing.assert_array_equal(found["actions"], before["actions"].clip(-0.5, 0.5))
    np.testing.assert_array_equal(found["observations"], before["observations"])
    largest = clip_actions(arrays).rows[:, arrays.columns["actions"]].abs().max()
    assert largest.item() == np.float32(1 - 1e-5)


def test_rewards_are_scaled_and_shifted_but_not_behind_the_last_step(arrays):
    before = parts_of(arrays)["rewards"][arrays.step_rows()]
    changed = scale_rewards(arrays, scale=2.0, shift=-1.0)
    found = parts_of(changed)["rewards"]
    np.testing.assert_array_equal(found[arrays.step_rows()], (before * 2 - 1).astype(np.float32))
    assert found[arrays.final_rows].tolist() == [[0.0]] * 3


def test_rewards_by_return_range_are_those_of_iql(arrays):
    rewards = parts_of(arrays)["rewards"][arrays.step_rows(), 0]
    returns = [rewards[:7].sum(), rewards[7:8].sum(), rewards[8:].sum()]
    np.testing.assert_allclose(episode_returns(arrays), returns, rtol=1e-12)
    found = scale_rewards_by_return_range(arrays)
    expected = rewards / (max(returns) - min(returns)) * 1000
    np.testing.assert_allclose(parts_of(found)["rewards"][arrays.step_rows(), 0], expected, rtol=1e-6)
    new = episode_returns(found)
    assert new.max() - new.min() == pytest.approx(1000, rel=1e-6)
    with pytest.raises(SchemaError, match="returns of 1 episode have a range of 0"):
        scale_rewards_by_return_range(made_arrays(np.ones((3, 4), np.float32), [3]))


TRANSFORMS = [
    normalize_observations,
    functools.partial(clip_actions, limit=0.5),
    functools.partial(scale_rewards, shift=-1.0),
    functools.partial(scale_rewards, scale=-1.0),
    functools.partial(scale_rewards_by_return_range, total=10.0),
]


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_in_place_gives_the_same_in_the_same_memory(arrays, transform):
    kept = arrays.rows.clone()
    apart = transform(arrays)
    assert torch.equal(arrays.rows, kept)
    with_settings = transform  # the type of a transform says nothing of its settings
    inside = with_settings(arrays, in_place=True)
    assert inside.rows is arrays.rows
    assert torch.equal(inside.rows, apart.rows)
    assert inside.digest == apart.digest


def test_every_transform_has_a_digest_of_its_own(arrays):
    digests = {arrays.digest, *(transform(arrays).digest for transform in TRANSFORMS)}
    assert len(digests) == 6
    assert all(statistics_file(digest) for digest in digests)
    assert scale_rewards(dataclasses.replace(arrays, digest="")).digest == ""


def test_settings_that_make_no_sense_are_refused(arrays):
    with pytest.raises(ValueError, match="limit must be positive, found 0"):
        clip_actions(arrays, limit=0)
    with pytest.raises(ValueError, match="must be finite, found nan and 0"):
        scale_rewards(arrays, scale=np.nan)
    with pytest.raises(ValueError, match="total must be positive"):
        scale_rewards_by_return_range(arrays, total=-1)
    with pytest.raises(ValueError, match="epsilon must be finite and >= 0"):
        normalize_observations(arrays, epsilon=-1)
    other = Normalizer(mean=np.zeros(2), std=np.ones(2))
    with pytest.raises(ValueError, match="normalizer has 2 numbers, but observations have 3"):
        normalize_observations(arrays, normalizer=other)


def test_images_and_integers_are_not_normalized_or_clipped(images):
    with pytest.raises(SchemaError, match="use images_to_float"):
        normalize_observations(images)
    with pytest.raises(SchemaError, match="actions are integers"):
        clip_actions(images)
    assert scale_rewards(images, shift=1.0).others is images.others
    found = load_statistics(images)
    assert (len(found.observations.mean), len(found.actions.mean)) == (0, 0)


def test_images_become_floats_in_any_batch(images):
    rows = torch.arange(4)
    pixels = images.observations(rows)
    assert isinstance(pixels, torch.Tensor)
    zeros = torch.zeros(4)
    batch = Batch(
        observations=pixels,
        actions=images.actions(rows),
        rewards=zeros,
        next_observations={"eye": pixels, "place": torch.ones(4, 2)},
        terminations=zeros,
        truncations=zeros,
        discounts=zeros,
    )
    found = images_to_float(batch)
    assert isinstance(found.observations, torch.Tensor)
    assert torch.equal(found.observations, pixels.to(torch.float32) / 255)
    assert found.actions.dtype == torch.int64
    assert isinstance(found.next_observations, dict)
    first = images_to_float(batch, channels_first=True)
    assert isinstance(first.next_observations, dict)
    eye = first.next_observations["eye"]
    assert eye.shape == (4, 3, 4, 5)
    assert eye.is_contiguous()
    assert torch.equal(eye, found.next_observations["eye"].permute(0, 3, 1, 2))
    assert torch.equal(first.next_observations["place"], torch.ones(4, 2))
    assert pixels.dtype == torch.uint8
    with pytest.raises(ValueError, match="channels_first takes images"):
        images_to_float(pixels[0], channels_first=True)
    with pytest.raises(TypeError, match="found int"):
        images_to_float(3)
