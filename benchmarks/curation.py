"""What curation is worth: policies trained on all episodes, on those that a score keeps, and on those that an oracle keeps.

    python benchmarks/curation.py --seeds 5 --out benchmarks/results/curation.json

LunarLander's own controller, and among its episodes as many planted bad ones: random actions, the controller's with a sign
turned, or one that repeats. Success is a return of 200, as the environment defines it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.box2d import lunar_lander

import orlog
from orlog.base.processes import processor_name
from orlog.loaders.curation import episode_scores
from orlog.normalize.statistics import share_interval

controller: Any = lunar_lander.heuristic
NAME, SOLVED = "lab/lander-planted-v1", 200.0
BC = {"hidden": [128, 128], "learning_rate": 1e-3, "batch_size": 256}


def record(episodes: int, share: float) -> np.ndarray:
    """Record the dataset, and return which episodes are bad."""
    rng = np.random.default_rng(0)
    bad = rng.permutation(np.arange(episodes) < share * episodes)
    env = gymnasium.make("LunarLanderContinuous-v3")
    with orlog.record(env, NAME, description="LunarLander's controller, with planted bad episodes.") as recorder:
        for episode, is_bad in enumerate(bad):
            observation, _ = recorder.reset(seed=episode)
            kind, held, done = rng.integers(3), rng.uniform(-1, 1, 2).astype(np.float32), False
            while not done:
                action = np.clip(controller(env.unwrapped, observation), -1, 1).astype(np.float32)
                if is_bad:
                    action = (rng.uniform(-1, 1, 2).astype(np.float32), action * np.array([1, -1], np.float32), held)[
                        kind
                    ]
                observation, _, terminated, truncated, _ = recorder.step(action)
                done = terminated or truncated
    return bad


def saved(name: str, layered: orlog.Dataset) -> orlog.Dataset:
    """Save columns as a layer, and return the dataset with it."""
    return orlog.load_dataset(layered.save_layer(name))


def train_and_evaluate(method: str, dataset: Any, folder: Path, seeds: int, **how: Any) -> dict[str, Any]:
    """Return the successes of several seeds, 50 episodes each, and their interval."""
    shares, returns = [], []
    for seed in range(seeds):
        run = orlog.train(method, dataset, seed=seed, evaluations=0, out=folder / f"seed-{seed}", progress=False, **how)
        reached = np.asarray(orlog.evaluate(run, episodes=50).evaluation.returns)
        shares.append(float((reached >= SOLVED).mean()))
        returns.append(float(reached.mean()))
    low, high = share_interval(shares, 50 * len(shares))
    made = {"success": float(np.mean(shares)), "low": low, "high": high, "return": float(np.mean(returns))}
    print(folder.name, made, flush=True)
    return made


def main() -> None:
    """Record, score, train and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.5, help="of planted bad episodes")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    bad = record(given.episodes, given.share)
    ds = orlog.load_dataset(NAME)
    keep = 100 * (1 - given.share)
    columns = {f"episodes/{by}": episode_scores(ds, by) for by in ("mutual_information", "return")}
    columns["episodes/oracle"] = (~bad).astype(np.float64)
    scored = saved("lab/scores-v1", ds.with_columns(columns))
    how = {"settings": BC, "steps": given.steps, "preset": "none"}
    rows = {"bc, all episodes": train_and_evaluate("bc", ds, folder / "all", given.seeds, **how)}
    for name in columns:
        by = name.removeprefix("episodes/")
        kept = scored.top_episodes(keep, by=by)
        good = int((~bad[kept.selection().index]).sum())
        rows[f"bc, kept by {by}"] = train_and_evaluate("bc", kept, folder / by, given.seeds, **how) | {
            "good": good,
            "kept": kept.total_episodes,
        }
        if by == "mutual_information":
            weights = np.exp(4 * (columns[name] - columns[name].max()) / np.ptp(columns[name]))
            weighed = saved("lab/weights-v1", ds.with_columns("episodes/weight", weights, role="weight"))
            rows[f"bc, weighed by {by}"] = train_and_evaluate(
                "bc", weighed, folder / f"weighed-{by}", given.seeds, weights="episodes/weight", **how
            )
    critic = {"settings": {"hidden": [128, 128], "batch_size": 256, "learning_rate": 1e-3}, "preset": "none"}
    rows["iql, all episodes"] = train_and_evaluate("iql", ds, folder / "iql", given.seeds, steps=given.steps, **critic)
    from orlog.runs.estimates import ESTIMATES, RunEstimates

    estimates = RunEstimates(folder / "iql" / "seed-0", ds)
    advantages = saved("lab/q-v1", ds.with_columns(estimates, roles=ESTIMATES, made_by=estimates.made_by()))
    rows["recap, advantages of iql"] = train_and_evaluate("recap", advantages, folder / "recap", given.seeds, **how)
    known = np.repeat(np.where(bad, -1.0, 1.0), ds.episode_lengths).astype("f4")
    labelled = saved("lab/told-v1", ds.with_columns("infos/advantage", known, role="advantage"))
    oracle = how | {"settings": BC | {"threshold": 0.0}}
    rows["recap, told by the oracle"] = train_and_evaluate(
        "recap", labelled, folder / "recap-oracle", given.seeds, **oracle
    )
    body: dict[str, Any] = {"machine": processor_name(), "orlog": orlog.__version__, "arguments": vars(given)}
    body |= {"bad": int(bad.sum()), "rows": rows}
    text = json.dumps(body, indent=1, default=str) + "\n"
    print(text)
    if given.out:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
