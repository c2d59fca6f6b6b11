"""Builds a small dataset, looks at it, and trains a policy by hand for a few updates.

pip install "orlog[quickstart]"
python first_steps.py
"""

from __future__ import annotations

import itertools

import torch
from gymnasium.spaces import Box

import orlog
from orlog.algos.iql import IQL, IQLConfig
from orlog.algos.networks import Scaling


def main() -> None:
    """Run the example."""
    ds = orlog.load_dataset("pointmaze/umaze-mini-v1", build=True)
    print(ds)
    print("observation space:", ds.observation_space)

    episode = ds[0]
    print("columns:", ", ".join(ds.columns))
    print("one episode:", len(episode), "steps, return", episode.rewards.sum())
    for name in ("observation", "achieved_goal", "desired_goal"):
        shape = episode.observations[name].shape
        print(f"  observations/{name}: {shape}")  # one row more than steps

    actions = ds.action_space
    assert isinstance(actions, Box)
    batches = orlog.transitions(ds, batch_size=256, seed=0)
    mean, std = batches.arrays.observation_statistics()
    scaling = Scaling(
        obs_mean=mean, obs_std=std + 1e-3, action_low=torch.tensor(actions.low), action_high=torch.tensor(actions.high)
    )
    iql = IQL(IQLConfig(hidden=(64, 64), steps=100), scaling, seed=0)
    for step, batch in enumerate(itertools.islice(batches, 100), 1):
        metrics = iql.update(batch)
        if step % 25 == 0:
            print(f"step {step}: value loss {float(metrics['value/loss']):.5f}")


if __name__ == "__main__":
    main()
