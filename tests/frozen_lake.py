"""Gymnasium's FrozenLake as a table: exact values of policies, and many episodes at once."""

from __future__ import annotations

import dataclasses

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

MAP = ["SFF", "FFH", "FFG"]
STATES, ACTIONS = 9, 4


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Logged:
    """Episodes as arrays [episodes, horizon]; what is after the end is marked in `alive`."""

    states: np.ndarray  # [episodes, horizon + 1]
    actions: np.ndarray
    rewards: np.ndarray
    alive: np.ndarray
    terminated: np.ndarray  # [episodes]

    def ratios(self, target, behavior):
        """Return log target - log behavior of each action, 0 after the end."""
        states = self.states[:, :-1]
        with np.errstate(divide="ignore"):
            found = np.log(target[states, self.actions] / behavior[states, self.actions])
        return np.where(self.alive, found, 0)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Lake:
    """The table: `chances` [state, action, next state], `rewards` [state, action], `ends` [state]."""

    chances: np.ndarray
    rewards: np.ndarray
    ends: np.ndarray
    discount: float

    def exact(self, policy):
        """Return Q [state, action] and V [state] of a policy, from Bellman's linear equations."""
        goes_on = self.chances * ~self.ends
        steps = np.einsum("sa,sap->sp", policy, goes_on)
        gained = (policy * self.rewards).sum(1)
        values = np.linalg.solve(np.eye(STATES) - self.discount * steps, gained)
        return self.rewards + self.discount * goes_on @ values, values

    def best(self):
        """Return the best policy, by policy iteration."""
        policy = np.full((STATES, ACTIONS), 1 / ACTIONS)
        for _ in range(20):
            policy = np.eye(ACTIONS)[self.exact(policy)[0].argmax(1)]
        return policy

    def until(self, policy, horizon):
        """Return Q [step, state, action] and V [step, state] of a policy that has so many steps."""
        q_values = np.zeros((horizon, STATES, ACTIONS))
        values = np.zeros((horizon + 1, STATES))
        for step in reversed(range(horizon)):
            q_values[step] = self.rewards + self.discount * ((self.chances * ~self.ends) @ values[step + 1])
            values[step] = (policy * q_values[step]).sum(1)
        return q_values, values

    def play(self, policy, episodes, horizon, rng):
        """Return episodes of a policy, cut after `horizon` steps."""
        states = np.zeros((episodes, horizon + 1), np.int64)
        actions = np.zeros((episodes, horizon), np.int64)
        alive = np.zeros((episodes, horizon), np.bool_)
        rewards = np.zeros((episodes, horizon))
        for step in range(horizon):
            now = states[:, step]
            alive[:, step] = ~self.ends[now]
            actions[:, step] = _draw(policy[now], rng)
            after = _draw(self.chances[now, actions[:, step]], rng)
            states[:, step + 1] = np.where(alive[:, step], after, now)
            rewards[:, step] = alive[:, step] & (states[:, step + 1] == STATES - 1)
        return Logged(states=states, actions=actions, rewards=rewards, alive=alive, terminated=self.ends[states[:, -1]])


def _draw(chances, rng):
    cumulative = chances.cumsum(1)
    cumulative[:, -1] = 1
    return (rng.random((len(chances), 1)) >= cumulative).sum(1)


def frozen_lake(discount=0.95):
    """Return a slippery lake of 3 x 3 with one hole; an episode starts in state 0."""
    table = FrozenLakeEnv(desc=MAP, is_slippery=True).P
    chances, rewards = np.zeros((STATES, ACTIONS, STATES)), np.zeros((STATES, ACTIONS))
    ends = np.zeros(STATES, np.bool_)
    for state, by_action in table.items():
        for action, outcomes in by_action.items():
            for chance, after, reward, ended in outcomes:
                chances[state, action, after] += chance
                rewards[state, action] += chance * reward
                ends[after] |= ended
    rewards[ends] = 0
    return Lake(chances=chances, rewards=rewards, ends=ends, discount=discount)
