"""Batches with infos beside batches whose observations have as many more numbers.

One million steps like HalfCheetah's (17 observations, 6 actions) in episodes of 20 to 400 steps, with an
info of one number or of ten; and the same steps with these numbers at the end of the observations. Both
take turns in one process, on one thread.

    python -m benchmarks.infos            three to five minutes
    python -m benchmarks.infos --only transitions

`orlog is` says how fast batches with infos are, relative to those with longer observations; `without`
how fast batches with neither are, relative to the same.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loader_data import FRAMES, SHAPES, episodes_of, variable, write_version
from benchmarks.loader_peers import Call, rates
from benchmarks.store import OtherCores, machine, report, scratch_folder, wait_until_quiet

NUMBERS = (1, 10)
GOAL = 0.9
SECONDS = 0.05  # of a turn: there are three calls of 32 kinds
STREAMED = 1000  # batches of a turn, since some come at once and others wait for the next ones to be read
INFOS, LONGER, NEITHER = "infos", "longer", "neither"


def main() -> None:
    """Measure all kinds and print the table."""
    parser = argparse.ArgumentParser(description="Measure batches with infos.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="where generated data is kept")
    parser.add_argument("--wait", type=float, default=5, help="seconds to wait for a quiet CPU")
    parser.add_argument("--only", default="", help="measure the kinds whose name has this in it")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    found: dict[tuple[str, str, int], list[float]] = {}
    noise = []
    with scratch_folder(options.scratch) as scratch:
        os.environ["ORLOG_HOME"] = str(scratch / "home")
        calls = {
            (kind, what, numbers): call
            for numbers in NUMBERS
            for kind, what, call in calls_of(numbers)
            if options.only in kind
        }
        for _ in range(options.rounds):
            wait_until_quiet(options.wait)
            with OtherCores() as others:
                for kind, _, numbers in [one for one in calls if one[1] == INFOS]:
                    together = {what: calls[kind, what, numbers] for what in (INFOS, LONGER, NEITHER)}
                    for what, rate in rates(together, SECONDS).items():
                        found.setdefault((kind, what, numbers), []).append(rate)
            noise.append(others.cores)
    with report("infos") as console:
        from orlog.base.terminal import table

        headings = ["kind", "numbers", "with infos", "longer observations", "orlog is", "without"]
        console.print(table([*headings, "goal", "met"], rows_of(found), numbers=range(1, 6)))
        console.print("\nbatches per second; one thread")
        console.print(f"medians of {options.rounds} rounds of 5 repeats, in turns")
        console.print(machine(noise))


def rows_of(found: dict[tuple[str, str, int], list[float]]) -> list[list[str]]:
    """Return the rows of the table."""
    rows = []
    for kind, _, numbers in [one for one in found if one[1] == INFOS]:
        of = {what: found[kind, what, numbers] for what in (INFOS, LONGER, NEITHER)}
        rate = {what: statistics.median(rates) for what, rates in of.items()}
        ratio, without = (
            statistics.median(one / other for one, other in zip(of[what], of[LONGER], strict=True))
            for what in (INFOS, NEITHER)
        )
        rows.append(
            [
                kind,
                str(numbers),
                f"{rate[INFOS]:,.0f}",
                f"{rate[LONGER]:,.0f}",
                f"{ratio:.2f} x",
                f"{without:.2f} x",
                f">= {GOAL:g} x",
                "yes" if ratio >= GOAL else "NO",
            ]
        )
    return rows


def calls_of(numbers: int) -> Iterator[tuple[str, str, tuple[Call, int]]]:
    """Yield kind, what is given, and a call that makes a batch."""
    import orlog

    write_both(numbers)
    flat = {what: f"bench/{what}-{numbers}-v0" for what in (INFOS, LONGER)}
    frames = {what: f"bench/frames-{what}-{numbers}-v0" for what in (INFOS, LONGER)}
    in_memory = [arrays_of(flat), arrays_of(frames)]
    small = {"buffer_bytes": 2**26}
    kinds: dict[str, tuple[dict[str, Any], Callable[..., Any], dict[str, Any]]] = {
        "transitions, batch 256": (in_memory[0], orlog.transitions, {"batch_size": 256}),
        "transitions, batch 4096": (in_memory[0], orlog.transitions, {"batch_size": 4096}),
        "3-step transitions": (in_memory[0], orlog.transitions, {"n_steps": 3}),
        "next actions": (in_memory[0], orlog.transitions, {"next_actions": True}),
        "returns": (in_memory[0], orlog.transitions, {"returns_to_go": True}),
        "sequences, length 20": (in_memory[0], orlog.sequences, {"length": 20}),
        "sequences, length 64": (in_memory[0], orlog.sequences, {"length": 64}),
        "action chunks, length 5": (in_memory[0], orlog.action_chunks, {"length": 5}),
        "episodes": (in_memory[0], orlog.episodes, {}),
        "packed episodes": (in_memory[0], orlog.episodes, {"layout": "packed"}),
        "goals": (in_memory[0], orlog.goals, {}),
        "subgoals": (in_memory[0], orlog.subgoals, {}),
        "priorities": (in_memory[0], orlog.transitions, {"prioritized": True}),
        "preferences, length 50": (in_memory[0], orlog.preferences, {"length": 50}),
        "4-stacks 84 x 84": (in_memory[1], orlog.transitions, {"stacks": 4}),
        "streamed": (flat | {NEITHER: flat[INFOS]}, orlog.transitions, {"stream": True, **small}),
    }
    for kind, (given, stream, settings) in kinds.items():
        for what, data in given.items():
            infos = {"infos": ("more",)} if what == INFOS else {}
            batches = iter(stream(data, seed=0, **settings, **infos))
            if kind == "streamed":
                yield kind, what, (functools.partial(give, batches, STREAMED), STREAMED)
            else:
                yield kind, what, (batches.__next__, 1)


def give(batches: Iterator[Any], count: int) -> None:
    """Take some batches."""
    for _ in range(count):
        next(batches)


def arrays_of(names: dict[str, str]) -> dict[str, Any]:
    """Return what is sampled in memory, by what it has."""
    import orlog

    return {
        INFOS: orlog.load_arrays(names[INFOS], "ram", infos=("more",)),
        LONGER: orlog.load_arrays(names[LONGER], "ram"),
        NEITHER: orlog.load_arrays(names[INFOS], "ram"),
    }


def write_both(numbers: int) -> None:
    """Write both versions of steps and of frames, if they are not there yet."""
    import orlog

    rng = np.random.default_rng(0)
    for prefix in ("", "frames-"):
        try:
            orlog.load_dataset(f"bench/{prefix}{LONGER}-{numbers}-v0")
            continue
        except orlog.errors.NotFoundError:
            pass
        if prefix:
            columns = episodes_of(rng.integers(0, 256, (FRAMES, *SHAPES["gray"]), np.uint8))
        else:
            columns = variable()
        observations, lengths = columns["observations"], columns["lengths"]
        finals = np.cumsum(lengths + 1) - 1
        more = rng.normal(size=(len(observations), numbers)).astype(np.float32)
        infos = np.delete(more, finals, axis=0)
        infos = infos[:, 0] if numbers == 1 else infos
        write_version(f"{prefix}{INFOS}-{numbers}", columns | {"infos/more": infos})
        longer: Any = {"frames": observations, "numbers": more}
        if not prefix:
            longer = np.concatenate([observations, more], 1)
        write_version(f"{prefix}{LONGER}-{numbers}", columns | {"observations": longer})


if __name__ == "__main__":
    main()
