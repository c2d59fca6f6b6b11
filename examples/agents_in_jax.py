"""Trains agents of other authors, in JAX, on batches of orlog: flow Q-learning, and goal-conditioned implicit Q-learning.

pip install orlog jax flax optax distrax ml_collections
git clone https://github.com/seohongpark/fql
python agents_in_jax.py fql fql
git clone https://github.com/seohongpark/ogbench
python agents_in_jax.py gciql ogbench/impls
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from gymnasium import spaces

import orlog

HOW = __doc__.partition("\n")[2]
NAME = "classic/pendulum-mixed-v1"
UPRIGHT = np.array([1.0, 0.0, 0.0], np.float32)  # cosine, sine and velocity: the state that the rewards ask for

Batch = dict[str, Any]


def transitions(ds: orlog.Dataset) -> Iterator[Batch]:
    """Yield batches as FQL's `Dataset` does."""
    for batch in orlog.transitions(ds, 256, seed=0, to="numpy"):
        # A truncation does not end the task.
        shared = {
            "rewards": batch.rewards,
            "masks": 1 - batch.terminations,
            "next_observations": batch.next_observations,
        }
        yield {"observations": batch.observations, "actions": batch.actions, **shared}


def goals(ds: orlog.Dataset) -> Iterator[Batch]:
    """Yield batches as OGBench's `GCDataset` does."""
    for batch in orlog.goals(ds, 256, seed=0, to="numpy"):
        shared = {"rewards": batch.rewards, "masks": batch.masks, "next_observations": batch.next_observations}
        chosen = {"value_goals": batch.value_goals, "actor_goals": batch.actor_goals}
        yield {"observations": batch.observations, "actions": batch.actions, **shared, **chosen}


BATCHES = {"fql": transitions, "gciql": goals}
# FQL weighs cloning for each task anew; a policy for goals is shown the goal and acts at its mean.
SETTINGS: dict[str, Batch] = {"fql": {"alpha": 0.1, "normalize_q_loss": True}, "gciql": {}}
SHOWN: dict[str, Batch] = {"fql": {}, "gciql": {"goals": UPRIGHT, "temperature": 0.0}}


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("agent", choices=BATCHES)
    parser.add_argument("clone", help="the folder that has the authors' folder `agents`")
    parser.add_argument("--steps", type=int, default=20_000)
    arguments = parser.parse_args()
    name = arguments.agent
    sys.path.insert(0, arguments.clone)
    try:
        jax = importlib.import_module("jax")
        agents = importlib.import_module(f"agents.{name}")
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}. What to install, to clone and to run:\n{HOW}") from None

    ds = orlog.load_dataset(NAME, build=True)
    assert isinstance(ds.action_space, spaces.Box)
    low, high = ds.action_space.low, ds.action_space.high
    batches = BATCHES[name](ds)
    first = next(batches)

    config = agents.get_config()
    for key, value in SETTINGS[name].items():
        setattr(config, key, value)
    config.actor_hidden_dims = config.value_hidden_dims = (128, 128)  # the authors' 512 are for a GPU
    agent = getattr(agents, f"{name.upper()}Agent").create(0, first["observations"], first["actions"], config)
    for step, batch in enumerate(islice(batches, arguments.steps), start=1):
        batch["actions"] = 2 * (batch["actions"] - low) / (high - low) - 1  # theirs lie in [-1, 1]
        agent, metrics = agent.update(batch)
        if step % max(1, arguments.steps // 5) == 0:  # a number waits for the device
            losses = (f"{key} {value:.3f}" for key, value in metrics.items() if key.endswith("_loss"))
            print(f"step {step}:", *losses)

    env, key, returns = ds.recover_environment(), jax.random.PRNGKey(0), []
    for episode in range(10):
        observation, _ = env.reset(seed=episode)
        rewards, done = [], False
        while not done:
            key, own = jax.random.split(key)
            action = np.asarray(agent.sample_actions(observation, seed=own, **SHOWN[name]))
            observation, reward, termination, truncation, _ = env.step(low + (action + 1) / 2 * (high - low))
            rewards.append(float(reward))
            done = termination or truncation
        returns.append(sum(rewards))
    print(f"mean return {np.mean(returns):.1f}, normalized score {orlog.normalized_score(ds, returns).mean():.1f}")


if __name__ == "__main__":
    main()
