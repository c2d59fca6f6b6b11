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


def run_episodes(env: gymnasium.Env[np.ndarray, int], act: Callable[[np.ndarray], int], seeds: range) -> None:
    """Run an episode of a policy for each seed."""
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            observation, _, terminated, truncated, _ = env.step(act(observation))
            ended = terminated or truncated


def main() -> None:
    """Run the example in a home of its own, so that nothing stays behind."""
    with TemporaryDirectory() as home:
        os.environ["ORLOG_HOME"] = home
        record_and_view(Path(home))


def record_and_view(folder: Path) -> None:
    """Record, derive, append."""
    rng = np.random.default_rng(0)
    env = orlog.record(
        gymnasium.make("CartPole-v1"),
        "examples/cartpole-v1",
        description="A random policy on CartPole, then one that leans against the fall.",
        license="CC0-1.0",
        behavior_policy="uniform over both actions",
    )
    run_episodes(env, lambda _: int(rng.integers(2)), range(100))
    env.close()
    ds = orlog.load_dataset("examples/cartpole-v1@1.0.0")
    print(f"recorded {len(ds)} episodes, {ds.total_steps} steps, in {ds.folder}")

    good = ds.filter_episodes("returns > 20 and lengths >= 15")
    train, test = orlog.split_dataset(good, [0.8, 0.2], seed=0)
    print(f"{len(good)} good ones: {len(train)} to train on, {len(test)} to test on")
    path = train.save(folder / "train.json")
    print(f"a view of {path.stat().st_size} bytes")
    print("the same bytes:", orlog.load_dataset(path).digest == train.digest)

    changes = "10 episodes that lean against the fall"
    with orlog.record(gymnasium.make("CartPole-v1"), "examples/cartpole-v1", append=True, changes=changes) as env:
        run_episodes(env, lambda observed: int(observed[2] > 0), range(100, 110))
    newest = orlog.load_dataset("examples/cartpole-v1")
    print(f"version {newest.version} has {len(newest)} episodes: {newest.manifest.changes}")


if __name__ == "__main__":
    main()
