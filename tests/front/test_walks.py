"""The walks of CONTRIBUTING lead through the code as it runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import cast

import numpy as np
import pytest

import orlog
from orlog.algos.training.options import TrainOptions
from orlog.experiments.jobs import Executor
from orlog.experiments.sweeps import plan_sweep, run_sweep

ROOT = Path(__file__).parents[2]
SOURCE = f"{ROOT / 'src' / 'orlog'}/"
PLACE = re.compile(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`: ", re.MULTILINE)
MINI = "pointmaze/umaze-mini-v1"
EPISODE = 25


def walk_of(what: str) -> list[tuple[str, str]]:
    """Return the files and functions that CONTRIBUTING names, in its order."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = text.partition(f"### Life of {what}\n")[2].partition("\n#")[0]
    return PLACE.findall(section)


def calls_of(work: Callable[[], object]) -> list[tuple[str, str]]:
    """Return the functions of orlog that are called, in the order of their first calls."""
    found: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(SOURCE):
            found[file.removeprefix(SOURCE), frame.f_code.co_qualname] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return [*found]


def batch(_folder: Path) -> None:
    dataset = orlog.load_dataset(MINI)
    next(iter(orlog.transitions(dataset, 256, seed=0)))


def import_of_npz(folder: Path) -> None:
    observations = np.arange(2.0 * EPISODE + 1)[:, None]
    np.savez(
        folder / "a.npz",
        observations=observations[:-1],
        next_observations=observations[1:],
        actions=observations[:-1],
        rewards=observations[:-1, 0],
        terminals=np.arange(2 * EPISODE) % EPISODE == EPISODE - 1,
    )
    orlog.import_dataset([folder / "a.npz"], "lab/walk-v1")


def run(folder: Path) -> None:
    made = orlog.train("bc", MINI, steps=20, evaluations=1, out=folder / "run")
    orlog.evaluate(made, episodes=2)


def sweep(_folder: Path) -> None:
    def here(
        work: Callable[[object], object], jobs: Iterator[object], **_options: object
    ) -> Iterator[tuple[int, object]]:
        yield from ((number, work(job)) for number, job in enumerate(jobs))

    plan = plan_sweep([MINI], ["bc"], seeds=[0], episodes=2, options=TrainOptions(steps=20))
    run_sweep(plan, executor=cast("Executor", here))
    assert not plan.failures


@pytest.mark.parametrize(
    ("what", "work"),
    [("a batch", batch), ("an import", import_of_npz), ("a run", run), ("a sweep", sweep)],
)
def test_the_calls_reach_the_places_of_a_walk_in_its_order(
    what: str, work: Callable[[Path], None], mini_folder: Path, tmp_path: Path
) -> None:
    assert mini_folder.is_dir()
    walk, calls = walk_of(what), calls_of(lambda: work(tmp_path))
    assert len(walk) == 10
    missing = [place for place in walk if place not in calls]
    assert not missing
    order = [calls.index(place) for place in walk]
    assert order == sorted(order), [calls[number] for number in sorted(order)]
