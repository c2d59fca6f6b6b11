"""Samplers of families beside plain transitions of as many bytes, and the memory that many agents take.

    python -m benchmarks.families                  each sampler in turns with transitions of equal bytes
    python -m benchmarks.families --agents 100     the memory of 100 agents and a million steps

Plain transitions have one vector as long as all numbers of an item, and as many items in a batch. Both take
turns in one process, on one thread. Windows beside LeRobot and TorchRL are measured in `benchmarks.loaders`,
infos in `benchmarks.infos`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loader_data import dialogues, tokenizer, variable, write_version
from benchmarks.loader_peers import AROUND, rates
from benchmarks.store import OtherCores, machine, report, reset_peak, resident_mib, scratch_folder, wait_until_quiet

GOAL = 0.5
LENGTH, STEPS, EPISODES = 100, 200_000, 2000
PLAIN_BYTES = 2**28  # at most, of the plain transitions in memory
SPEAKING, SPOKEN = 32, 512  # texts in a batch, and tokens of each
BATCHES = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class Team:
    """Agents to record: how many, numbers that each observes, choices, and whether flags limit these."""

    agents: int
    width: int
    choices: int = 5
    has_flags: bool = False
    is_unequal: bool = False  # every second agent observes half as much


TEAMS = {
    "3 agents": Team(agents=3, width=18),
    "3 agents, legal choices": Team(agents=3, width=30, choices=9, has_flags=True),
    "3 agents of unequal width": Team(agents=3, width=18, is_unequal=True),
    "10 agents, legal choices": Team(agents=10, width=40, choices=12, has_flags=True),
}


def main() -> None:
    """Measure one of the two."""
    parser = argparse.ArgumentParser(description="Measure samplers of families.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="where generated data is kept")
    parser.add_argument("--wait", type=float, default=15, help="seconds to wait for a quiet CPU")
    parser.add_argument("--only", default="", help="measure the samplers whose name has this in it")
    parser.add_argument("--agents", type=int, default=0, help="measure the memory of so many")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the team, with --agents")
    parser.add_argument("--width", type=int, default=4, help="numbers observed, with --agents")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    with scratch_folder(options.scratch) as scratch:
        os.environ["ORLOG_HOME"] = str(scratch / "home")
        if options.agents:
            measure_memory(Team(agents=options.agents, width=options.width), options.steps)
        else:
            measure_speed(options)


def measure_speed(options: argparse.Namespace) -> None:
    """Print the table of all samplers."""
    found: dict[str, list[tuple[float, float]]] = {}
    sizes, noise = {}, []
    pairs = {name: (stream, plain_of(stream)) for name, stream in streams() if options.only in name}
    for name, (stream, plain) in pairs.items():
        sizes[name] = [bytes_of(next(iter(one))) / one.batch_size for one in (stream, plain)]
    for _ in range(options.rounds):
        wait_until_quiet(options.wait)
        with OtherCores() as others:
            for name, both in pairs.items():
                calls = {str(place): (iter(one).__next__, one.batch_size) for place, one in enumerate(both)}
                rate = rates(calls)
                found.setdefault(name, []).append((rate["0"], rate["1"]))
        noise.append(others.cores)
    with report("families") as console:
        from orlog.base.terminal import table

        rows = []
        for name, several in found.items():
            ratio = statistics.median(one / other for one, other in several)
            ours, plain_rate = (statistics.median(one) for one in zip(*several, strict=True))
            rows.append(
                [
                    name,
                    f"{sizes[name][0]:,.0f}",
                    f"{ours:,.0f}",
                    f"{plain_rate:,.0f}",
                    f"{ratio:.2f} x",
                    f">= {GOAL:g} x",
                    "yes" if ratio >= GOAL else "NO",
                ]
            )
        headings = ["sampler", "bytes of an item", "items/s", "plain transitions", "orlog is"]
        console.print(table([*headings, "goal", "met"], rows, numbers=range(1, 5)))
        console.print("\nplain transitions: of as many bytes, as many in a batch; one thread")
        console.print(f"medians of {options.rounds} rounds of 5 repeats, in turns")
        console.print(machine(noise))


def streams() -> Iterator[tuple[str, Any]]:
    """Yield each sampler by what the table calls it."""
    import orlog
    from orlog.loaders.agent_transitions import load_agents

    write_numbers()
    numbers = {name: orlog.load_arrays("bench/numbers-v0", "ram", infos=(name,)) for name in ("cost", "objectives")}
    for size in (64, 256):
        name = f"windows, {AROUND[0]} observations, {AROUND[1]} actions, batch {size}"
        yield name, orlog.windows(numbers["cost"], size, seed=0)
    from orlog.loaders.sequences import windows_with_sums

    summed: dict[str, Any] = {"infos": ("cost",), "to_go": ("cost",)}
    made = windows_with_sums(numbers["cost"], 64, length=20, seed=0, **summed)
    yield "sums to go, length 20, batch 64", made
    scalar = orlog.scalarize(numbers["objectives"], weights=(0.7, 0.3))
    yield "two objectives as one, batch 256", orlog.transitions(scalar, 256, seed=0)
    chosen = orlog.transitions(numbers["cost"], 256, seed=0, infos=("cost",))
    yield "transitions with costs, batch 256", chosen
    tasks = orlog.combine_datasets(task_datasets(), weights="tasks", pad=True)
    mixed = orlog.transitions(tasks, 256, seed=0, infos=("episodes/task",))
    yield "10 tasks of unequal width, padded, batch 256", mixed
    for name, team in TEAMS.items():
        stored = f"bench/{re.sub('[^a-z0-9]+', '-', name)}-v0"
        write_team(stored, team, STEPS)
        arrays = load_agents(stored, "ram")
        yield f"{name}, batch 256", orlog.agent_transitions(arrays, 256, seed=0)
    words: dict[str, Any] = {"tokenizer": tokenizer(), "length": SPOKEN}
    spoken = orlog.token_sequences(dialogues(), SPEAKING, seed=0, **words)
    yield f"sequences of {SPOKEN} tokens, batch {SPEAKING}", spoken


def plain_of(stream: Any) -> Any:
    """Return transitions whose items have as many bytes, and batches as many items."""
    import torch

    import orlog
    from orlog.loaders.arrays import Arrays

    item = bytes_of(next(iter(stream))) / stream.batch_size
    width = max(1, round((item / 4 - 4) / 2))  # two observations, an action and three numbers
    episodes = min(EPISODES, PLAIN_BYTES // (4 * (width + 4) * (LENGTH + 1)))
    lengths = np.full(episodes, LENGTH)
    rows = torch.zeros(episodes * (LENGTH + 1), width + 4).uniform_()
    arrays = Arrays(rows=rows, lengths=lengths, obs_dim=width, action_dim=1)
    return orlog.transitions(arrays, stream.batch_size, seed=0)


def bytes_of(batch: Any) -> int:
    """Return the bytes of the tensors of a batch, infos included."""
    import torch

    values = [getattr(batch, name) for name in batch.__dataclass_fields__]
    values += [*batch.infos.values()]
    return sum(one.nbytes for one in values if isinstance(one, torch.Tensor))


# What is sampled.


def is_there(name: str) -> bool:
    """Return whether a dataset was written before."""
    import orlog

    try:
        orlog.load_dataset(name)
    except orlog.errors.NotFoundError:
        return False
    return True


def write_numbers() -> None:
    """Record steps like HalfCheetah's with a cost and two objectives."""
    if not is_there("bench/numbers-v0"):
        columns, rng = variable(), np.random.default_rng(0)
        steps = len(columns["rewards"])
        columns["infos/cost"] = rng.random(steps, np.float32)
        columns["infos/objectives"] = rng.random((steps, 2), np.float32)
        write_version("numbers", columns)


def task_datasets() -> list[Any]:
    """Return datasets whose observations have 8 to 17 numbers."""
    import orlog

    for width in range(8, 18):
        if not is_there(f"bench/task-{width}-v0"):
            columns = variable()
            kept = int((columns["lengths"].cumsum() <= STEPS // 10).sum())
            lengths = columns["lengths"][:kept]
            steps = int(lengths.sum())
            few = {name: one[:steps] for name, one in columns.items()}
            few["observations"] = columns["observations"][: steps + kept, :width]
            write_version(f"task-{width}", few | {"lengths": lengths})
    return [orlog.load_dataset(f"bench/task-{width}-v0") for width in range(8, 18)]


def write_team(name: str, team: Team, steps: int) -> None:
    """Record agents that all act in all steps; the same episode again and again."""
    from gymnasium import spaces

    import orlog

    if is_there(name):
        return
    rng = np.random.default_rng(0)
    names = [f"agent_{number:03}" for number in range(team.agents)]
    widths = [team.width // (1 + team.is_unequal * (number % 2)) for number in range(team.agents)]
    last = np.arange(LENGTH) == LENGTH - 1
    none = np.zeros(LENGTH, bool)
    infos: dict[str, Any] = {}
    for one in names:
        infos[f"agents/{one}/acts"] = ~none
        infos[f"agents/{one}/rewards"] = rng.normal(size=LENGTH)
        infos[f"agents/{one}/terminations"] = infos[f"agents/{one}/truncations"] = none
        if team.has_flags:
            legal = rng.random((LENGTH, team.choices)) < 0.7
            legal[:, 0] = True
            infos[f"agents/{one}/legals"] = legal
    shapes = dict(zip(names, widths, strict=True))
    observed = {one: rng.normal(size=(LENGTH + 1, size)).astype("f4") for one, size in shapes.items()}
    acted = {one: rng.integers(0, team.choices, LENGTH) for one in names}
    with orlog.DatasetWriter(
        name,
        observation_space=spaces.Dict(
            {one: spaces.Box(-np.inf, np.inf, (size,), np.float32) for one, size in shapes.items()}
        ),
        action_space=spaces.Dict({one: spaces.Discrete(team.choices) for one in names}),
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


def measure_memory(team: Team, steps: int) -> None:
    """Print the memory that loading and sampling take, beside the bytes of the data."""
    import orlog
    from orlog.base.processes import processor_name
    from orlog.loaders.agent_transitions import load_agents

    write_team("bench/many-v0", team, steps)
    rows = steps + steps // LENGTH
    needed = team.agents * (4 * team.width * rows + steps * (8 + 8 + 3))
    child = os.fork()  # a process of its own, in which nothing else was freed and kept
    if child:
        os.waitpid(child, 0)
        return
    before = reset_peak()
    began = time.perf_counter()
    arrays = load_agents("bench/many-v0", "ram")
    loaded = time.perf_counter() - began
    batches = iter(orlog.agent_transitions(arrays, 256, seed=0))
    began = time.perf_counter()
    for _ in range(BATCHES):
        next(batches)
    rate = 256 * BATCHES / (time.perf_counter() - began)
    peak, now = (2**20 * (resident_mib(one) - before) for one in ("VmHWM", "VmRSS"))
    print(f"{team.agents} agents, {steps:,} steps, {team.width} numbers: {needed / 1e9:.2f} GB as stored")
    print(f"peak of loading and sampling: {peak / 1e9:.2f} GB, {peak / needed:.2f} of the data")
    print(f"after it: {now / 1e9:.2f} GB, {now / needed:.2f}; arrays {held(arrays) / needed:.2f}")
    print(f"loaded in {loaded:.1f} s; {rate:,.0f} items/s; {processor_name()}", flush=True)
    os._exit(0)


def held(arrays: Any) -> int:
    """Return the bytes that arrays hold, infos included."""
    tables = (arrays.lengths.nbytes, arrays.step_table.nbytes)
    inside = (arrays, arrays.infos)
    others = sum(two.nbytes for one in inside for two in one.others.values())
    found: int = sum(one.rows.nbytes for one in inside) + others + sum(tables)
    return found


if __name__ == "__main__":
    main()
