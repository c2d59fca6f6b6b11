import itertools

import numpy as np
import pytest
import torch

from orlog import sequences
from orlog.algos.dt import DT, DTConfig
from orlog.loaders.arrays import Arrays
from tests.algos import plain
from tests.pendulum import pendulum
from tests.training import train_run


def difference_from_recorded():
    """Return the largest difference of parameters, and of actions in an episode, from CORL's."""
    algorithm, recorded = plain.trained_as_recorded(DT, "dt")
    differences = [plain.difference_from_recorded(DT, "dt")]
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
def test_parameters_after_100_updates_and_actions_are_corls():
    assert difference_from_recorded() < 1e-9


@pytest.fixture(scope="module")
def hints():
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


def test_it_remembers_and_gets_the_return_that_it_is_asked_for(hints):
    settings = {"length": 4, "width": 16, "layers": 1, "learning_rate": 3e-3, "warmup_steps": 10}
    config = DTConfig(**settings, dropout=0.05, target_return=4.0, return_scale=0.25)
    algorithm = DT(config, plain.toy_scaling(), seed=0)
    for batch in itertools.islice(sequences(hints, 64, length=4, seed=0), 150):
        algorithm.update(batch)
    for target in (4.0, -4.0):
        algorithm.target_return = target
        actor, hint = algorithm.actor(2), torch.tensor([[1.0], [-1.0]])
        for step in range(4):
            actions = actor.act(hint if step == 0 else torch.zeros(2, 1))
            torch.testing.assert_close(actions, hint * np.sign(target), rtol=0, atol=0.3)
            actor.reward(torch.full((2,), float(np.sign(target))))


def test_a_longer_episode_than_there_are_embeddings_goes_on(make):
    actor = make(DT, longest_episode=3).actor(1)
    for _ in range(12):
        assert actor.act(torch.zeros(1, 3)).isfinite().all()


def test_what_is_not_set_is_taken_from_the_data_and_said(tmp_path):
    data = pendulum(episodes=11)
    returns = np.sort([one.rewards.sum() for one in data])
    lines = []
    small = {"length": 2, "width": 4, "layers": 1}

    def train(folder, **settings):
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


def test_without_data_both_must_be_set(scaling):
    with pytest.raises(ValueError, match="target_return and return_scale must be set"):
        DT(DTConfig(), scaling, seed=0)
