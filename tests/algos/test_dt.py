from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from orlog.algos.dt import DT, DTConfig
from orlog.algos.networks import Scaling
from orlog.loaders.arrays.arrays import Arrays
from orlog.loaders.batch import SequenceBatch
from orlog.loaders.sequences import sequences
from tests.algos import plain
from tests.pendulum import pendulum
from tests.training import train_run

SMALL: dict[str, Any] = {
    "length": 3,
    "width": 4,
    "layers": 1,
    "heads": 2,
    "longest_episode": 3,
    "learning_rate": 1e-2,
    "warmup_steps": 4,
    "weight_decay": 0.1,
    "max_gradient_norm": 0.1,
    "target_return": 1.0,
    "return_scale": 0.5,
}


def make_windows(seed: int, rows: int = 6, length: int = 3) -> SequenceBatch:
    rng = np.random.default_rng(seed)
    mask = np.arange(length) < rng.integers(1, length + 1, rows)[:, None]
    none = torch.zeros(rows, length)
    return SequenceBatch(
        observations=torch.from_numpy(rng.normal(size=(rows, length, 3)) * mask[..., None]),
        actions=torch.from_numpy(rng.uniform(-2, 1, (rows, length, 2)) * mask[..., None]),
        rewards=none,
        returns_to_go=torch.from_numpy(rng.normal(size=(rows, length)) * mask),
        terminations=none,
        truncations=none,
        timesteps=torch.from_numpy((rng.integers(0, 3, rows)[:, None] + np.arange(length)) * mask),
        mask=torch.from_numpy(mask),
    )


def normalized(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    apart = x - x.mean(-1, keepdims=True)
    found: np.ndarray = apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-5) * scale + shift
    return found


def forward(
    values: dict[str, np.ndarray], returns: Any, s: np.ndarray, a: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """Return the actions of one layer with two heads, from their equations."""

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        found: np.ndarray = x @ values[f"{name}.weight"].T + values[f"{name}.bias"]
        return found

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        return normalized(x, values[f"{name}.weight"], values[f"{name}.bias"])

    rows, length, _ = s.shape
    time = values["times"][times]
    tokens = np.empty((rows, 3 * length, time.shape[-1]))
    tokens[:, 0::3] = linear("returns", returns[..., None]) + time
    tokens[:, 1::3] = linear("observations", s) + time
    tokens[:, 2::3] = linear("actions", a) + time
    tokens = norm("norm", tokens)
    x = linear("layers.layers.0.attention_in", norm("layers.layers.0.attention_norm", tokens))
    query, key, value = np.split(x.reshape(rows, 3 * length, 6, -1).swapaxes(1, 2), 3, 1)
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(key.shape[-1])
    weights = np.tril(np.exp(scores))
    attended = (weights / weights.sum(-1, keepdims=True)) @ value
    attended = attended.swapaxes(1, 2).reshape(tokens.shape)
    tokens = tokens + linear("layers.layers.0.attention_out", attended)
    x = linear("layers.layers.0.hidden", norm("layers.layers.0.hidden_norm", tokens))
    tokens = tokens + linear("layers.layers.0.hidden_out", x * stats.norm.cdf(x))
    found: np.ndarray = np.tanh(linear("head", norm("layers.norm", tokens)[:, 1::3]))
    return found


@pytest.mark.usefixtures("in_float64")
def test_updates_equal_those_of_the_equations_in_numpy(scaling: Scaling) -> None:
    scaling = plain.doubles(scaling)
    algorithm = DT(DTConfig(**SMALL, dropout=0.0), scaling, seed=0)
    with torch.no_grad():  # so that normalizations and biases are no longer trivial
        for one in algorithm.policy.parameters():
            one.add_(0.3 * torch.randn(one.shape, generator=torch.Generator().manual_seed(0)))
    values = {key: one.numpy().copy() for key, one in algorithm.policy.state_dict().items()}
    parameters = list(values.values())
    first, second = ([np.zeros_like(one) for one in parameters] for _ in range(2))
    for step in range(2):
        batch = make_windows(step)
        assert isinstance(batch.observations, torch.Tensor)
        s = (batch.observations.numpy() - scaling.obs_mean.numpy()) / scaling.obs_std.numpy()
        a = scaling.actions_to_unit(batch.actions).numpy()
        inputs = (batch.returns_to_go.numpy() / 2, s, a, batch.timesteps.numpy())
        mask = batch.mask.numpy()

        def loss() -> float:
            errors = (forward(values, *inputs) - a) ** 2  # noqa: B023 (called in this round only)
            return float(errors[mask].sum() / a.size)  # noqa: B023 (as above)

        found = algorithm.update(batch)
        assert found["policy/loss"].item() == pytest.approx(loss(), rel=1e-9)
        # Keys' biases change nothing, so the rounding of their numerical gradients is taken off.
        gradients = [
            np.where(np.abs(one) < 1e-8, 0, one) for one in plain.gradients(loss, parameters)
        ]
        norm = sum(float((one**2).sum()) for one in gradients) ** 0.5
        assert found["policy/gradient_norm"].item() == pytest.approx(norm, rel=1e-6)
        rate = 1e-2 * (step + 1) / 4
        for one, gradient, m, v in zip(parameters, gradients, first, second, strict=True):
            clipped = gradient * min(0.1 / (norm + 1e-6), 1)
            m += 0.1 * (clipped - m)
            v += 0.001 * (clipped**2 - v)
            root = np.sqrt(v / (1 - 0.999 ** (step + 1))) + 1e-8
            one -= rate * 0.1 * one
            one -= rate * m / (1 - 0.9 ** (step + 1)) / root
        plain.check_equal(algorithm.policy, parameters)


def recorded_windows(recorded: Any) -> Any:
    for rows in recorded["rows"]:
        names = ("observations", "actions", "returns_to_go", "timesteps", "mask")
        columns = {name: torch.from_numpy(recorded[name][rows]) for name in names}
        none = torch.zeros(columns["mask"].shape)
        yield SequenceBatch(**columns, rewards=none, terminations=none, truncations=none)


def trained_as_recorded(recorded: Any) -> DT:
    algorithm = DT(DTConfig(**plain.settings(recorded)), plain.UNIT, seed=1)
    plain.load(algorithm, recorded)
    for batch in recorded_windows(recorded):
        algorithm.update(batch)
    return algorithm


def difference_from_recorded() -> float:
    """Return the largest difference of parameters, and of actions in an episode, from CORL's."""
    recorded = np.load(plain.RECORDED / "dt.npz")
    algorithm = trained_as_recorded(recorded)
    found = {key: one.numpy() for key, one in plain.tensors_of(algorithm).items()}
    differences = [np.abs(one - recorded[f"after/{key}"]).max() for key, one in found.items()]
    # Three environments side by side; the second and third begin anew after 4 and 7 steps.
    actor = algorithm.actor(3)
    states, rewards = (recorded[f"rollout/{key}"] for key in ("observations", "rewards"))
    begun = np.zeros(3, int)
    for step in range(12):
        actions = actor.act(torch.from_numpy(states[step - begun])).numpy()
        expected = recorded["rollout/actions"][step - begun]
        differences.append(np.abs(actions - expected).max())
        actor.reward(torch.from_numpy(rewards[step - begun]))
        ended = np.array([False, step == 4, step == 7])
        begun[ended] = step + 1
        actor.begin(torch.from_numpy(ended))
    return float(max(differences))


@pytest.mark.usefixtures("in_float64")
def test_parameters_after_100_updates_and_actions_are_corls() -> None:
    assert difference_from_recorded() < 1e-9


@pytest.fixture(scope="module")
def hints() -> Arrays:
    """Return episodes of 4 steps: the first observation says which action earns 1 in each step.

    In half of the episodes the action is right in all steps, in the others it is wrong in all.
    """
    rng = np.random.default_rng(0)
    episodes = 400
    rows = np.zeros((episodes, 5, 1 + 1 + 3), np.float32)
    hint, is_right = rng.choice([-1, 1], (2, episodes))
    rows[:, 0, 0] = hint
    rows[:, :4, 1] = (hint * is_right)[:, None]
    rows[:, :4, 2] = is_right[:, None]
    rows[:, 3, 3] = 1
    return Arrays(
        rows=torch.from_numpy(rows.reshape(-1, 5)),
        lengths=np.full(episodes, 4),
        obs_dim=1,
        action_dim=1,
        digest="sha256:toy",
    )


ONE = Scaling(
    obs_mean=torch.zeros(1),
    obs_std=torch.ones(1),
    action_low=-2 * torch.ones(1),
    action_high=2 * torch.ones(1),
)


def test_it_remembers_and_gets_the_return_that_it_is_asked_for(hints: Arrays) -> None:
    settings: dict[str, Any] = {
        "length": 4,
        "width": 16,
        "layers": 1,
        "learning_rate": 3e-3,
        "warmup_steps": 10,
    }
    config = DTConfig(**settings, dropout=0.05, target_return=4.0, return_scale=0.25)
    algorithm = DT(config, ONE, seed=0)
    for batch in itertools.islice(sequences(hints, 64, length=4, seed=0), 150):
        algorithm.update(batch)
    for target in (4.0, -4.0):
        algorithm.target_return = target
        actor, hint = algorithm.actor(2), torch.tensor([[1.0], [-1.0]])
        for step in range(4):
            actions = actor.act(hint if step == 0 else torch.zeros(2, 1))
            torch.testing.assert_close(actions, hint * np.sign(target), rtol=0, atol=0.3)
            actor.reward(torch.full((2,), float(np.sign(target))))


def test_a_longer_episode_than_there_are_embeddings_goes_on(scaling: Scaling) -> None:
    algorithm = DT(DTConfig(**SMALL), scaling, seed=0)
    actor = algorithm.actor(1)
    for _ in range(12):
        assert actor.act(torch.zeros(1, 3)).isfinite().all()


def test_what_is_not_set_is_taken_from_the_data_and_said(tmp_path: Path) -> None:
    data = pendulum(episodes=11)
    returns = np.sort([one.rewards.sum() for one in data])
    lines: list[str] = []
    small = {"length": 2, "width": 4, "layers": 1}

    def train(folder: str, **settings: Any) -> Any:
        return train_run(
            "dt", data, tmp_path / folder, seed=0, steps=1, evaluations=0, tell=lines.append,
            settings={**small, **settings},
        )  # fmt: skip

    record = train("one")
    assert record.config["target_return"] == pytest.approx(returns[-2:].mean(), rel=1e-6)
    assert record.config["return_scale"] == pytest.approx(1 / -returns[0], rel=1e-6)
    assert [line.partition("=")[0] for line in lines] == ["target_return", "return_scale"]
    assert lines[0].endswith(": the mean return of the best tenth of the episodes")
    assert lines[0] in record.source
    lines.clear()
    assert train("two", target_return=-100, return_scale=0.5).config["target_return"] == -100
    assert lines == []


def test_without_data_both_must_be_set(scaling: Scaling) -> None:
    with pytest.raises(ValueError, match="target_return and return_scale must be set"):
        DT(DTConfig(), scaling, seed=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("length", 0),
        ("heads", 3),
        ("layers", 0),
        ("dropout", 1.0),
        ("longest_episode", 0),
        ("warmup_steps", 0),
        ("return_scale", 0.0),
        ("max_gradient_norm", 0.0),
        ("weight_decay", -1.0),
        ("learning_rate", 0.0),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        DTConfig(**{name: value})


def test_defaults_are_the_published_ones() -> None:
    # DT / official gym, kzl/decision-transformer@e2d82e68f3, and CORL
    assert dataclasses.asdict(DTConfig()) == {
        "encoder": "nature",
        "random_shift": 0,
        "length": 20,
        "width": 128,
        "layers": 3,
        "heads": 1,
        "dropout": 0.1,
        "longest_episode": 1000,
        "target_return": None,
        "return_scale": None,
        "learning_rate": 1e-4,
        "warmup_steps": 10_000,
        "weight_decay": 1e-4,
        "max_gradient_norm": 0.25,
        "batch_size": 64,
    }
