import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from orlog.algos.fitted_q_evaluation import EvaluatedQ, FQESettings, fit_q
from orlog.algos.networks import Scaling
from orlog.errors import DivergedError
from orlog.loaders.batch import Batch
from tests.frozen_lake import ACTIONS, STATES, frozen_lake

NOTHING = torch.empty(0)
TABLE = FQESettings(hidden=(32,), learning_rate=0.005, target_rate=0.2, steps=400)


def scaling():
    return Scaling(
        obs_mean=NOTHING,
        obs_std=NOTHING,
        action_low=NOTHING,
        action_high=NOTHING,
        observation_space=spaces.Discrete(STATES),
        action_space=spaces.Discrete(ACTIONS),
    )


@pytest.mark.thorough
def test_on_a_table_it_finds_the_exact_value_of_the_policy():
    lake = frozen_lake(discount=0.9)
    target, behavior = 0.6 * lake.best() + 0.4 / 4, np.full((STATES, ACTIONS), 0.25)
    logged = lake.play(behavior, 300, 60, np.random.default_rng(0))
    alive = logged.alive
    states, after = logged.states[:, :-1][alive], logged.states[:, 1:][alive]
    actions, rewards = logged.actions[alive], logged.rewards[alive]
    ended = lake.ends[after]

    # All transitions in each batch, so that nothing but the data decide.
    batch = Batch(
        observations=torch.from_numpy(states),
        actions=torch.from_numpy(actions),
        rewards=torch.from_numpy(rewards.astype(np.float32)),
        next_observations=torch.from_numpy(after),
        terminations=torch.from_numpy(ended.astype(np.float32)),
        truncations=torch.zeros(len(states)),
        discounts=torch.ones(len(states)),
    )
    table = torch.from_numpy(target.astype(np.float32))

    def policy(observations):
        return table[observations]

    q_function = EvaluatedQ(TABLE, scaling(), seed=0, unit=0.5)
    fit_q(q_function, itertools.repeat(batch), policy, TABLE, discount=lake.discount)

    # The exact Q of the table of frequencies, from Bellman's linear equations.
    counts = np.zeros((STATES, ACTIONS, STATES))
    np.add.at(counts, (states, actions, after), 1)
    gained = np.zeros((STATES, ACTIONS))
    np.add.at(gained, (states, actions), rewards)
    seen = counts.sum(-1)
    often = np.maximum(seen, 1)
    chances = counts / often[..., None] * ~lake.ends
    steps = np.einsum("sa,sap->sp", target, chances)
    values = np.linalg.solve(np.eye(STATES) - lake.discount * steps, (target * gained / often).sum(1))
    every = torch.arange(STATES)
    found = q_function.state_values(every, policy).numpy()
    inside = ~lake.ends
    assert found[inside] == pytest.approx(values[inside], abs=0.01)
    start, exact = found[0], lake.exact(target)[1][0]
    assert start == pytest.approx(exact, abs=0.03)
    acted = lake.exact(behavior)[1][0]
    assert abs(acted - exact) > 0.08
    q_values = q_function.values(every[:1].expand(ACTIONS), torch.arange(ACTIONS)).numpy()
    assert (target[0] * q_values).sum() == pytest.approx(start, abs=1e-5)


def test_a_fit_that_diverges_says_so():
    one = torch.ones(1)
    batch = Batch(
        observations=torch.zeros(1, dtype=torch.int64),
        actions=torch.zeros(1, dtype=torch.int64),
        rewards=one * float("inf"),
        next_observations=torch.zeros(1, dtype=torch.int64),
        terminations=one,
        truncations=one * 0,
        discounts=one,
    )
    q_function = EvaluatedQ(TABLE, scaling(), seed=0)
    with pytest.raises(DivergedError, match="has diverged after 4 steps with the discount 1; give"):
        fit_q(
            q_function,
            itertools.repeat(batch),
            lambda seen: torch.ones(len(seen), ACTIONS) / ACTIONS,
            TABLE,
            discount=1.0,
        )
