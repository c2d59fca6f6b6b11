"""Transitions of several agents: their speed beside plain transitions of as many bytes, and the memory of many.

    python benchmarks/agents.py                 three agents, against plain transitions of equal bytes
    python benchmarks/agents.py --agents 100    the memory that 100 agents and a million steps take

Plain transitions have one vector that is as long as all numbers of an item of the agents.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

import orlog

LENGTH, ROUNDS, BATCHES, BATCH = 100, 9, 300, 256
WIDTH = 18


def write_team(name: str, agents: int, steps: int, width: int) -> None:
    """Record episodes of agents that all act in all steps; the same episode again and again."""
    rng = np.random.default_rng(0)
    names = [f"agent_{number:03}" for number in range(agents)]
    last = np.arange(LENGTH) == LENGTH - 1
    none = np.zeros(LENGTH, bool)
    infos: dict[str, Any] = {}
    for one in names:
        infos[f"agents/{one}/acts"] = ~none
        infos[f"agents/{one}/rewards"] = rng.normal(size=LENGTH)
        infos[f"agents/{one}/terminations"] = infos[f"agents/{one}/truncations"] = none
    observed = {one: rng.normal(size=(LENGTH + 1, width)).astype("f4") for one in names}
    acted = {one: rng.integers(0, 5, LENGTH) for one in names}
    with orlog.DatasetWriter(
        name,
        observation_space=spaces.Dict(
            {one: spaces.Box(-np.inf, np.inf, (width,), np.float32) for one in names}
        ),
        action_space=spaces.Dict({one: spaces.Discrete(5) for one in names}),
    ) as writer:
        for _ in range(steps // LENGTH):
            writer.add_steps(
                observations=observed,
                actions=acted,
                rewards=rng.normal(size=LENGTH),
                terminations=last,
                truncations=none,
                infos=infos,
            )
            writer.end_episode()


def write_plain(name: str, steps: int, numbers: int) -> None:
    """Record episodes of one agent whose observation has a number of numbers."""
    box = spaces.Box(-np.inf, np.inf, (numbers,), np.float32)
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(LENGTH + 1, numbers)).astype("f4")
    last = np.arange(LENGTH) == LENGTH - 1
    with orlog.DatasetWriter(
        name, observation_space=box, action_space=spaces.Box(-1, 1, (1,), np.float32)
    ) as writer:
        for _ in range(steps // LENGTH):
            writer.add_steps(
                observations=seen,
                actions=np.zeros((LENGTH, 1), "f4"),
                rewards=np.zeros(LENGTH),
                terminations=last,
                truncations=np.zeros(LENGTH, bool),
            )
            writer.end_episode()


def bytes_of(batch: Any) -> int:
    """Return the bytes of the tensors of a batch."""
    values = [getattr(batch, name) for name in batch.__dataclass_fields__ if name != "infos"]
    return sum(one.nbytes for one in values if isinstance(one, torch.Tensor))


def seconds(stream: Iterable[Any]) -> float:
    """Return the time that some batches take."""
    began = time.perf_counter()
    for _ in itertools.islice(stream, BATCHES):
        pass
    return time.perf_counter() - began


def compare_speed(steps: int) -> None:
    """Print how fast agents are sampled, as a ratio to plain transitions of as many bytes."""
    write_team("bench/team-v0", 3, steps, WIDTH)
    agents = orlog.agent_transitions(orlog.load_agents("bench/team-v0", "ram"), BATCH, seed=0)
    item = bytes_of(next(iter(agents))) / BATCH
    numbers = max(1, round((item / 4 - 4) / 2))
    write_plain("bench/plain-v0", steps, numbers)
    plain = orlog.transitions(orlog.load_arrays("bench/plain-v0", "ram"), BATCH, seed=0)
    both = [(seconds(agents), seconds(plain)) for _ in range(ROUNDS)]
    ratio = statistics.median(two / one for one, two in both[1:])
    print(
        f"an item of 3 agents: {item:.0f} bytes; plain: {bytes_of(next(iter(plain))) / BATCH:.0f}"
    )
    print(f"agents {BATCH * BATCHES / min(one for one, _ in both):,.0f} items/s")
    print(f"plain  {BATCH * BATCHES / min(two for _, two in both):,.0f} items/s")
    print(f"speed of agents to plain: {ratio:.2f} (median of {ROUNDS - 1} rounds)")


def measure_memory(agents: int, steps: int, width: int) -> None:
    """Print the memory that loading and sampling take, beside the bytes of the data."""
    write_team("bench/many-v0", agents, steps, width)
    rows = steps + steps // LENGTH
    needed = agents * (4 * width * rows + steps * (8 + 8 + 3))
    child = os.fork()
    if not child:  # a process of its own, since memory that was freed is not given back
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        arrays = orlog.load_agents("bench/many-v0", "ram")
        loaded = time.perf_counter() - began
        stream = orlog.agent_transitions(arrays, BATCH, seed=0)
        rate = BATCH * BATCHES / seconds(stream)
        peak = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        print(f"{agents} agents, {steps:,} steps: {needed / 1e9:.2f} GB of data")
        print(f"peak of loading and sampling: {peak / 1e9:.2f} GB, {peak / needed:.2f} of the data")
        print(f"loaded in {loaded:.1f} s; {rate:,.0f} items/s", flush=True)
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    """Measure one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--width", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        os.environ["ORLOG_HOME"] = home
        if given.agents:
            measure_memory(given.agents, given.steps or 1_000_000, given.width)
        else:
            compare_speed(given.steps or 200_000)


if __name__ == "__main__":
    main()
