"""How often the 95 % interval of fitted Q evaluation holds the true value, where that is known.

A walk over 7 places: an action moves to the left or right, and the other way with a chance of 0.2. Both ends
are terminations, the right one with a reward of 1; other steps cost 0.05. Episodes start anywhere inside and
are of a policy that chooses at random; the one that is evaluated always goes right. Each repeat has episodes of its own, and one network of Q sees all 7 places by their number.

    python -m benchmarks.off_policy_coverage
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

import orlog
from orlog.algos.fitted_q_evaluation import FQESettings
from orlog.algos.networks import Scaling
from orlog.base.processes import processor_name
from orlog.normalize.statistics import percentile_interval
from orlog.normalize.value_estimates import resampled_values, spread_of_fits
from orlog.runs.off_policy import Logged, fit_policy, read_logged

PLACES, SLIP, COST, DISCOUNT = 7, 0.2, 0.05, 0.95
REPEATS, EPISODES = 50, 40
FITS = (5, 1)
SETTINGS: dict[str, Any] = {
    "hidden": (32,),
    "learning_rate": 3e-3,
    "batch_size": 128,
    "target_rate": 0.05,
    "steps": 1000,
}


class Walk(gymnasium.Env[Any, Any]):
    """The walk."""

    observation_space = spaces.Discrete(PLACES)
    action_space = spaces.Discrete(2)

    def reset(self, **options: Any) -> tuple[Any, Any]:
        """Start anywhere but at the ends."""
        super().reset(**options)
        self.place = int(self.np_random.integers(1, PLACES - 1))
        return self.place, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move."""
        slips = self.np_random.random() < SLIP
        self.place += 1 if bool(action) != slips else -1
        ended = self.place in (0, PLACES - 1)
        return self.place, float(self.place == PLACES - 1) - COST, ended, False, {}


def true_value() -> float:
    """Return the mean value of the starts under the policy, from Bellman's equations."""
    up = 1 - SLIP
    inside = np.arange(1, PLACES - 1)
    steps, gained = np.zeros((PLACES, PLACES)), np.zeros(PLACES)
    steps[inside, inside + 1], steps[inside, inside - 1] = up, 1 - up
    gained[inside] = up * (inside + 1 == PLACES - 1) - COST
    return float(np.linalg.solve(np.eye(PLACES) - DISCOUNT * steps, gained)[inside].mean())


def policy_of_the_walk() -> Any:
    """Return what acts, with the attributes of a trained algorithm that are asked for."""
    none = torch.empty(0)
    scaling = Scaling(
        obs_mean=none,
        obs_std=none,
        action_low=none,
        action_high=none,
        observation_space=Walk.observation_space,
        action_space=Walk.action_space,
    )
    return SimpleNamespace(scaling=scaling, config=None, act=lambda seen: torch.ones_like(seen))


def interval(logged: Logged, fits: int, seed: int) -> tuple[float, float, float]:
    """Return the estimate from some episodes, and its interval."""
    found = fit_policy(
        policy_of_the_walk(),
        SimpleNamespace(algorithm="a fixed policy", reward_shift=0.0, reward_scale=1.0),  # type: ignore[arg-type]
        logged,
        logged,
        discount=DISCOUNT,
        settings=FQESettings(**SETTINGS, fits=fits),
        seed=seed,
        progress=lambda _: None,
    )
    rng = np.random.default_rng(seed)
    draws = resampled_values([found.terms["fqe"]], rng) + spread_of_fits(found.fits[None], rng)
    low, high = percentile_interval(draws[0], 0.95)
    return found.terms["fqe"].value, float(low), float(high)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    rng, exact, started = np.random.default_rng(0), true_value(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ORLOG_HOME"] = folder
        with orlog.record(Walk(), "lab/walk-v1") as env:
            for episode in range(REPEATS * EPISODES):
                env.reset(seed=episode)
                done = False
                while not done:
                    _, _, done, _, _ = env.step(int(rng.integers(2)))
        data = orlog.load_dataset("lab/walk-v1")
        parts = [data[one * EPISODES : (one + 1) * EPISODES] for one in range(REPEATS)]
        several = [read_logged(part) for part in parts]
    results: dict[str, Any] = {}
    for fits in FITS:
        found = np.array([interval(one, fits, 100 * seed) for seed, one in enumerate(several)])
        values, low, high = found.T
        results[f"{fits} fits"] = {
            "covered": float(((low <= exact) & (exact <= high)).mean()),
            "mean width": float((high - low).mean()),
            "mean error": float((values - exact).mean()),
            "deviation of estimates": float(values.std(ddof=1)),
        }
        print(fits, results[f"{fits} fits"], flush=True)
    body = {
        "processor": processor_name(),
        "torch": torch.__version__,
        "repeats": REPEATS,
        "episodes": EPISODES,
        "settings": SETTINGS,
        "true value": exact,
        "results": results,
        "seconds": round(time.perf_counter() - started, 1),
    }
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
