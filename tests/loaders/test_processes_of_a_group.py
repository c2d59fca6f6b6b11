"""Processes of `torch.distributed` take their slices of batches, and go on in another number."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

import orlog

EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed_training.py"


def _check_slices(rank, ranks, folder, meeting):
    distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=ranks)
    try:
        arrays = orlog.load_arrays(folder)
        whole = orlog.transitions(arrays, 12, seed=3, rank=0, ranks=1)
        size = 12 // ranks
        for own in (
            orlog.transitions(arrays, 12, seed=3),
            orlog.transitions(arrays, 12, seed=3, rank=rank, ranks=ranks),
        ):
            for number in range(5):
                mine = whole.batch(number).actions[rank * size : (rank + 1) * size]
                assert torch.equal(own.batch(number).actions, mine)
        windows = orlog.windows(arrays, 12, seed=3, actions=range(3), padding="edge")
        assert len(windows.batch(0).actions) == size
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
def test_each_process_gets_its_slice(mini_folder, tmp_path):
    arguments = (3, str(mini_folder), str(tmp_path / "meeting"))
    spawn(_check_slices, arguments, 3)


def losses(text):
    found = re.findall(r"^step (\d+) loss ([\d.]+)$", text, re.MULTILINE)
    return {int(step): float(loss) for step, loss in found}


def kill_all_in(folder):
    """Kill every process that works in a folder: those that torchrun starts are in no group of its own."""
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if link.resolve(strict=True) == folder:
                os.kill(int(link.parent.name), signal.SIGKILL)


@pytest.mark.thorough
def test_a_group_that_is_killed_goes_on_in_another_number_with_the_losses_of_one_process(mini, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(EXAMPLE), "--dataset", str(mini.folder)]

    def start(folder, ranks, steps):
        (tmp_path / folder).mkdir(exist_ok=True)
        group = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks else []
        return subprocess.Popen(
            [sys.executable, *group, *command, "--steps", str(steps)],
            cwd=tmp_path / folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            pipesize=4096,  # about 180 lines: however late they are read, no group gets to its last step
        )

    with start("one", 0, 500) as alone:
        expected = losses(alone.communicate()[0])
    assert sorted(expected) == list(range(500))
    with start("group", 2, 10_000) as group:
        assert group.stdout is not None
        seen = ""
        for line in group.stdout:
            seen += line
            if line.startswith("step 45 "):
                kill_all_in(tmp_path / "group")
                break
        seen += group.stdout.read()  # they went on until they were killed
    with start("group", 3, 500) as rest:
        after = losses(rest.communicate()[0])
    before = losses(seen)
    assert min(after) % 20 == 0  # of the last checkpoint
    assert 40 <= min(after) <= max(before) + 1
    for found in (before, after):
        for step, loss in found.items():
            assert loss == pytest.approx(expected[step], rel=1e-4, abs=2e-6)
    assert {*before, *after} == {*expected}
