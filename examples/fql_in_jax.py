"""Trains the authors' flow Q-learning, in JAX, on batches of orlog.

git clone https://github.com/seohongpark/fql
pip install orlog jax flax optax distrax ml_collections
python fql_in_jax.py fql
"""

from __future__ import annotations

import argparse
import sys
from itertools import islice

import jax
import numpy as np
from gymnasium import spaces

import orlog

NAME = "classic/pendulum-mixed-v1"


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("clone", help="the folder of github.com/seohongpark/fql")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--alpha", type=float, default=0.1, help="weight of cloning, which each task has its own of")
    arguments = parser.parse_args()
    sys.path.insert(0, arguments.clone)
    from agents.fql import FQLAgent, get_config  # type: ignore[import-not-found]

    ds = orlog.load_dataset(NAME, build=True)
    assert isinstance(ds.action_space, spaces.Box)
    low, high = ds.action_space.low, ds.action_space.high
    batches = iter(orlog.transitions(ds, 256, seed=0, to="numpy"))
    first = next(batches)

    config = get_config()
    config.alpha, config.normalize_q_loss = arguments.alpha, True
    config.actor_hidden_dims = config.value_hidden_dims = (128, 128)  # the authors' (512, 512, 512, 512) are for a GPU
    agent = FQLAgent.create(0, first.observations, first.actions, config)
    for step, batch in enumerate(islice(batches, arguments.steps), start=1):
        agent, metrics = agent.update(
            {
                "observations": batch.observations,
                "actions": 2 * (batch.actions - low) / (high - low) - 1,  # FQL's actions lie in [-1, 1]
                "rewards": batch.rewards,
                "masks": 1.0 - batch.terminations,  # a truncation does not end the task
                "next_observations": batch.next_observations,
            }
        )
        if step % max(1, arguments.steps // 5) == 0:  # a number waits for the device
            print(
                f"step {step}:",
                *(f"{name} {metrics[name]:.3f}" for name in ("critic/critic_loss", "actor/bc_flow_loss")),
            )

    env, key, returns = ds.recover_environment(), jax.random.PRNGKey(0), []
    for episode in range(10):
        observation, _ = env.reset(seed=episode)
        rewards, done = [], False
        while not done:
            key, own = jax.random.split(key)
            action = np.asarray(agent.sample_actions(observation, seed=own))
            observation, reward, termination, truncation, _ = env.step(low + (action + 1) / 2 * (high - low))
            rewards.append(float(reward))
            done = termination or truncation
        returns.append(sum(rewards))
    print(f"mean return {np.mean(returns):.1f}, normalized score {orlog.normalized_score(ds, returns).mean():.1f}")


if __name__ == "__main__":
    main()
