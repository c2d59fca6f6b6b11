import math

import gymnasium
import msgspec
import numpy as np
import pytest
import torch

from orlog.algos.policies import squashed_log_density
from orlog.datasets.worlds.behavior_policies import BehaviorPolicy, read_policies, write_policies
from orlog.errors import DivergedError, IntegrityError, NotFoundError, SchemaError, StorageError
from tools.behaviors import training
from tools.behaviors.ars import ARSConfig, Statistics
from tools.behaviors.sac import SACConfig, sac
from tools.behaviors.training import BehaviorOptions, BehaviorRecord, chosen, train_behavior

HOPPER = "Hopper-v5"
ONE_STEP = BehaviorOptions(algorithm="ars", steps=1)


def random_layers(seed):
    rng = np.random.default_rng(seed)
    return tuple(
        (rng.normal(size=size).astype(np.float32), rng.normal(size=size[1]).astype(np.float32))
        for size in ((5, 7), (7, 4))
    )


def test_policies_come_back_from_a_file(tmp_path):
    written = [random_layers(0), random_layers(1)]
    path = tmp_path / "some.safetensors"
    digest = write_policies(path, [10, 20], written)
    assert write_policies(tmp_path / "again.safetensors", [10, 20], written) == digest
    found = read_policies(path, digest)
    assert [one.steps for one in found] == [10, 20]
    for one, layers in zip(found, written, strict=True):
        for (weights, biases), (expected, shifts) in zip(one.policy.layers, layers, strict=True):
            np.testing.assert_array_equal(weights, expected.astype(np.float16))
            np.testing.assert_array_equal(biases, shifts.astype(np.float16))


def test_policies_of_another_digest_are_refused(tmp_path):
    path = tmp_path / "some.safetensors"
    digest = write_policies(path, [10], [random_layers(0)])
    other = write_policies(path, [10], [random_layers(1)])
    with pytest.raises(IntegrityError, match=f"digest {other}, expected {digest}; install orlog"):
        read_policies(path, digest)
    with pytest.raises(NotFoundError, match="no such file"):
        read_policies(tmp_path / "none.safetensors", digest)


def test_actions_are_those_of_the_network_and_densities_exact():
    layers = random_layers(3)
    policy = BehaviorPolicy(layers)
    (first, shift), (second, last) = layers
    rng = np.random.default_rng(0)
    for _ in range(20):
        observation, noise = rng.normal(size=5) / 5, rng.normal(size=2)
        outputs = np.maximum(observation @ first + shift, 0) @ second + last
        means, log_deviations = outputs[:2], np.minimum(outputs[2:], 2.0)
        raw = means + np.exp(log_deviations) * noise
        action, log_density = policy.act(observation, noise)
        np.testing.assert_allclose(action, np.tanh(raw), rtol=1e-6)
        np.testing.assert_allclose(policy.mode(observation), np.tanh(means), rtol=1e-6)
        if np.abs(raw).max() < 3:  # where the inverse of a rounded tanh is known
            expected = squashed_log_density(
                torch.from_numpy(np.tanh(raw))[None],
                torch.from_numpy(means)[None],
                torch.from_numpy(log_deviations)[None],
            )
            assert log_density == pytest.approx(expected.item(), abs=1e-6)
    # The density stays finite where the tanh is 1 in single precision.
    certain = BehaviorPolicy(((np.zeros((1, 2)), np.array([30.0, 0.0])),))
    action, log_density = certain.act(np.zeros(1), np.zeros(1))
    assert action[0] == 1
    assert log_density == pytest.approx(-math.log(math.sqrt(2 * math.pi)) - 2 * math.log(2) + 60)


def test_ars_improves_a_hopper_with_the_same_bits_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "EPISODES_OF_KEPT", 3)
    first, second = (
        train_behavior(HOPPER, tmp_path / name, BehaviorOptions(algorithm="ars", steps=1_500, every=500))
        for name in ("a.safetensors", "b.safetensors")
    )
    assert first == second
    assert first.log[0].steps < first.log[-1].steps
    assert max(line.mean for line in first.log) > 1.5 * first.log[0].mean
    assert [line.steps for line in first.policies] == [
        one.steps for one in read_policies(tmp_path / "a.safetensors", first.digest)
    ]
    text = (tmp_path / "a.json").read_bytes()
    assert msgspec.json.decode(text, type=BehaviorRecord) == first


def test_sac_gives_the_same_bits_twice():
    config = SACConfig(hidden=(8,), batch_size=16, random_steps=50)
    found = []
    for _ in range(2):
        with gymnasium.make(HOPPER) as env:
            found.append(next(iter(sac(env, config, seed=3, every=150))))
    (steps, layers), (_, again) = found
    assert steps == 150
    for (weights, biases), (same, shifts) in zip(layers, again, strict=True):
        np.testing.assert_array_equal(weights, same)
        np.testing.assert_array_equal(biases, shifts)
    assert [weights.shape for weights, _ in layers] == [(11, 8), (8, 6)]


def test_statistics_are_those_of_all_that_was_added():
    values = np.random.default_rng(0).normal(3, 2, (50, 2))
    values[:, 1] = 7
    seen = Statistics(2)
    np.testing.assert_array_equal(seen.scale(), [1, 1])
    for block in np.array_split(values, 4):
        seen.add(block)
    np.testing.assert_allclose(seen.mean, values.mean(0))
    np.testing.assert_allclose(seen.scale(), [1 / values[:, 0].std(), 0])


def test_the_medium_policy_returns_a_third_of_the_best():
    assert chosen([5.0]) == [0]
    assert chosen([10.0, 20, 35, 80, 100, 90]) == [0, 1, 2, 4]
    assert chosen([*range(0, 90, 3), 88.0]) == [0, 2, 5, 7, 10, 30]


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"Pendulum-v1: behavior policies are trained for vectors"):
        train_behavior("Pendulum-v1", tmp_path / "a.safetensors", ONE_STEP)
    for settings, message in (
        ({"algorithm": "dqn"}, "ars or sac, found 'dqn'"),
        ({"settings": {"stpe": 1}}, "ars has no setting 'stpe'; did you mean step"),
        ({"settings": {"kept": "9"}}, r"ars: kept must lie in \[1, directions\], found 9 of 8"),
        ({"settings": {"alive_bonus": "nan"}}, "ars: alive_bonus must be finite, found nan"),
        ({"steps": 0}, "steps and every must be >= 1"),
        ({"path": tmp_path / "some.pt"}, "must end in .safetensors"),
    ):
        given = {"algorithm": "ars", "steps": 1, **settings}
        path = given.pop("path", tmp_path / "a.safetensors")
        with pytest.raises(ValueError, match=message):
            train_behavior(HOPPER, path, BehaviorOptions(**given))
    with pytest.raises(SchemaError, match=r"CartPole-v1: .* actions in \[-1, 1\]"):
        train_behavior("CartPole-v1", tmp_path / "a.safetensors", ONE_STEP)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_found_before_training(tmp_path):
    (tmp_path / "file").touch()
    lines = []
    with pytest.raises(StorageError, match=r"a\.safetensors: cannot write: File exists: .*/file"):
        train_behavior(HOPPER, tmp_path / "file" / "a.safetensors", ONE_STEP, progress=lines.append)
    assert lines == []


def test_weights_that_half_precision_cannot_hold_end_training_and_are_not_written(tmp_path, monkeypatch):
    path = tmp_path / "some.safetensors"
    for number in (np.nan, np.inf, 65_536.0):
        layers = ((np.full((5, 4), number), np.zeros(4)),)
        with pytest.raises(DivergedError, match=r"the policy of 20 steps has weights that are no"):
            write_policies(path, [10, 20], [((np.zeros((5, 4)), np.zeros(4)),), layers])

        def diverges(*_, broken=layers, **__):
            yield 7, broken

        monkeypatch.setitem(training.TRAINERS, "ars", (ARSConfig, diverges))
        with pytest.raises(DivergedError, match="the policy of 7 steps"):
            train_behavior(HOPPER, path, ONE_STEP)
    assert list(tmp_path.iterdir()) == []
