"""Guesses from recorded data alone which checkpoint of a run is best, and asks the environment.

pip install orlog
python off_policy.py
"""

from __future__ import annotations

import math

import gymnasium
import numpy as np

import orlog
from orlog.algos.fitted_q_evaluation import FQESettings

NAME = "lab/cartpole-v1"


def record_episodes(count: int) -> None:
    """Record a careless controller, with the probability of each of its actions."""
    rng = np.random.default_rng(0)
    with orlog.record(gymnasium.make("CartPole-v1"), NAME, action_log_probs=True) as env:
        for episode in range(count):
            seen, _ = env.reset(seed=episode)
            done = False
            while not done:
                push_right = 1 / (1 + math.exp(-8 * (seen[2] + 0.3 * seen[3])))
                action = int(rng.random() < push_right)
                chance = push_right if action else 1 - push_right
                seen, _, ended, cut, _ = env.step(action, action_log_prob=math.log(chance))
                done = ended or cut


def main() -> None:
    """Run the example."""
    record_episodes(100)
    run = orlog.train(
        "cql", NAME, steps=600, keep_checkpoints=True, settings={"hidden": [32, 32]}, out="off-policy", overwrite=True
    )
    found = orlog.evaluate_off_policy(
        run,
        discount=0.95,  # the critic's is 0.99, so it is left out
        settings=FQESettings(hidden=(32, 32), steps=600, learning_rate=1e-3, target_rate=0.05, fits=2),
    )
    for policy in found.policies:
        assert policy.value is not None
        guesses = ", ".join(f"{name} {one.value:.1f}" for name, one in policy.estimates.items())
        print(f"step {policy.step:5}: true value {policy.value.value:.1f}; {guesses}")
    for name, quality in found.quality.items():
        measures = ", ".join(f"{measure} {one.value:.2f}" for measure, one in quality.items())
        print(f"{name:6} {measures}")
    for name, reason in found.left_out.items():
        print(f"left out: {name}: {reason}")
    for note in found.notes:
        print(f"note: {note}")


if __name__ == "__main__":
    main()
