"""The lines that a user tries first, as commands of an installed orlog, on small data in an empty folder.

    python tests/first_lines.py .venv/bin/orlog

makes the files that they name, runs them in the current folder, and ends with the first that fails. It imports nothing of the
checkout; `.ci/run` runs it with the wheel.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

MAZE = "pointmaze/umaze-mini-v1"
FEW = "--steps 4 --evaluations 1 --curve-episodes 1"
LINES = f"""
orlog build {MAZE}
orlog show {MAZE}
orlog list
orlog verify {MAZE}
orlog lock {MAZE} --rebuild
orlog import my.npz lab/hop-v1 --like d4rl/hopper-medium-v2
orlog train bc lab/hop-v1 {FEW}
orlog evaluate runs/bc/lab/hop-v1/seed-0 --episodes 1
orlog import my.csv lab/arm-v1 --map "observation=o*" --map action=u --map reward=r --episode run --environment Pendulum-v1 --bounds action=-2:2
orlog train iql lab/arm-v1 --seeds 3 {FEW}
orlog evaluate runs/iql/lab/arm-v1 --episodes 1
orlog train my_method.py:Raw lab/arm-v1 --seed 0 {FEW} --out once
orlog train my_method.py:Raw lab/arm-v1 --seed 0 {FEW} --out twice
orlog import grid.npz lab/grid-v1 --environment lab/Grid-v0 --import my_envs
orlog train iql lab/grid-v1 {FEW} --import my_envs
orlog evaluate runs/iql/lab/grid-v1 --import my_envs --episodes 1
orlog export lab/grid-v1 parquet out --lossy
orlog import out lab/again-v1
orlog sweep --datasets {MAZE} --algorithms bc --seeds 1 --steps 4 --episodes 1
"""
ENVIRONMENT = """
import gymnasium, numpy as np


class Grid(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float64)
    action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3), {}

    def step(self, action):
        return np.full(3, 0.1), float(action[0]), False, False, {}


gymnasium.register("lab/Grid-v0", entry_point=Grid, max_episode_steps=5)
"""
METHOD = """
import torch
from orlog.algos.bc import BC


class Raw(BC):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        for one in self.policy.parameters():  # drawn without a seed of its own
            torch.nn.init.uniform_(one, -0.1, 0.1)
"""


def write_files(folder: Path) -> None:
    """Write what the lines name: arrays of a hopper and of an own environment, a table, and two modules."""
    rng = np.random.default_rng(0)
    for name, observed, acted in (("my", 11, 3), ("grid", 3, 1)):
        np.savez(
            folder / f"{name}.npz",
            observations=rng.uniform(-1, 1, (40, observed)),
            actions=rng.uniform(-1, 1, (40, acted)),
            rewards=rng.normal(size=40),
            terminals=np.zeros(40, np.bool_),
            timeouts=np.arange(40) % 5 == 4,
        )
    rows = np.column_stack([np.arange(40) // 20, rng.uniform(-1, 1, (40, 5))])
    np.savetxt(folder / "my.csv", rows, delimiter=",", header="run,o1,o2,o3,u,r", comments="")
    (folder / "my_envs.py").write_text(ENVIRONMENT, "utf-8")
    (folder / "my_method.py").write_text(METHOD, "utf-8")


def run_lines(run: Callable[[list[str]], tuple[int, str]], folder: Path) -> None:
    """Run the lines; `run` takes the words of one and returns its exit code and what it printed."""
    write_files(folder)
    said = ""
    for line in LINES.strip().splitlines():
        words = shlex.split(line)[1:]
        if words[0] == "lock" and "rebuild" not in said:  # of `orlog verify`, the line before
            words.remove("--rebuild")
        code, said = run(words)
        if code:
            raise SystemExit(f"{line}\nended with {code}:\n{said}")
    first, second = (folder / one / "checkpoint.safetensors" for one in ("once", "twice"))
    if first.read_bytes() != second.read_bytes():
        raise SystemExit("a method that seeds nothing gave two checkpoints with one seed")


def main(orlog: str) -> None:
    """Run all lines with an installed orlog in the current folder."""

    def run(words: list[str]) -> tuple[int, str]:
        sys.stdout.write(f"orlog {shlex.join(words)}\n")
        sys.stdout.flush()
        ended = subprocess.run([orlog, *words], capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    run_lines(run, Path.cwd())


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).absolute()))
