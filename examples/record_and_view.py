"""Records a small dataset, derives views from it, and appends to it.

pip install orlog
python record_and_view.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium
import numpy as np

import orlog


def run_episode(
    env: gymnasium.Env[np.ndarray, int], act: Callable[[np.ndarray], int], seed: int
) -> orlog.Episode:
    """Return one episode of a policy."""
    observation, _ = env.reset(seed=seed)
    observations, actions, rewards = [observation], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        actions.append(act(observation))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        observations.append(observation)
        rewards.append(float(reward))
    ends = np.zeros((2, len(actions)), bool)
    ends[:, -1] = terminated, truncated
    return orlog.Episode(
        observations=observations,
        actions=actions,
        rewards=np.array(rewards),
        terminations=ends[0],
        truncations=ends[1],
        seed=seed,
    )


def main() -> None:
    """Run the example in a home of its own, so that nothing stays behind."""
    with TemporaryDirectory() as home:
        os.environ["ORLOG_HOME"] = home
        record_and_view(Path(home))


def record_and_view(folder: Path) -> None:
    """Record, derive, append."""
    env: gymnasium.Env[np.ndarray, int] = gymnasium.make("CartPole-v1")
    rng = np.random.default_rng(0)
    with orlog.DatasetWriter(
        "examples/cartpole-v1",
        environment=env,
        description="A random policy on CartPole, then one that leans against the fall.",
        license="CC0-1.0",
        behavior_policy="uniform over both actions",
    ) as writer:
        for seed in range(100):
            writer.add_episode(run_episode(env, lambda _: int(rng.integers(2)), seed))
    ds = orlog.load_dataset("examples/cartpole-v1@1.0.0")
    print(f"recorded {len(ds)} episodes, {ds.total_steps} steps, in {writer.folder}")

    good = ds.filter_episodes("returns > 20 and lengths >= 15")
    train, test = orlog.split_dataset(good, [0.8, 0.2], seed=0)
    print(f"{len(good)} good ones: {len(train)} to train on, {len(test)} to test on")
    path = train.save(folder / "train.json")
    print(f"a view of {path.stat().st_size} bytes")
    print("the same bytes:", orlog.load_dataset(path).digest == train.digest)

    changes = "10 episodes that lean against the fall"
    with orlog.DatasetWriter.append(ds, changes=changes) as writer:
        for seed in range(100, 110):
            writer.add_episode(run_episode(env, lambda observed: int(observed[2] > 0), seed))
    newest = orlog.load_dataset("examples/cartpole-v1")
    print(f"version {newest.version} has {len(newest)} episodes: {newest.manifest.changes}")


if __name__ == "__main__":
    main()
