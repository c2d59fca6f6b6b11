"""Every environment that the installed packages register is recorded, read and made again."""

import collections
import concurrent.futures
import itertools
import json
import os
import sys
import uuid
from pathlib import Path

import gymnasium
import pytest

from tests.environment_records import PACKAGES, register_all
from tests.levels import most
from tests.programs import run_program

ROOT = Path(__file__).parents[2]
SHARES = 8
OF_A_KIND = 3


def run_share(ids, folder):
    """Return what became of some environments in a process of their own."""
    results = folder / f"{uuid.uuid4().hex}.json"
    command = [sys.executable, "-m", "tests.environment_records", str(results), *ids]
    # Older mazes of Gymnasium-Robotics all write one file of the temporary folder.
    own = results.with_suffix("")
    own.mkdir()
    env = {**os.environ, "TMPDIR": str(own)}
    done = run_program(command, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(results.read_text())


def some_of_each_kind(ids):
    """Return a few environments of each class and kind of observation, or all before a release."""
    groups = collections.defaultdict(list)
    for one in ids:
        spec = gymnasium.spec(one)
        groups[str(spec.entry_point), spec.kwargs.get("obs_type")].append(one)
    steps = {kind: len(group) // most(len(group), OF_A_KIND) for kind, group in groups.items()}
    return [one for kind, group in groups.items() for one in group[:: max(1, steps[kind])]]


@pytest.mark.slow
@pytest.mark.thorough
def test_every_environment_that_can_be_made_is_recorded_and_made_again(tmp_path):
    for package in PACKAGES:
        pytest.importorskip(package)
    ids = some_of_each_kind(register_all())
    # Some environments leave memory behind: each process takes a share of them and ends.
    shares = [ids[first::SHARES] for first in range(SHARES)]
    with concurrent.futures.ThreadPoolExecutor(min(SHARES, os.cpu_count() or 1)) as pool:
        results = list(itertools.chain.from_iterable(pool.map(run_share, shares, itertools.repeat(tmp_path))))
    groups = collections.defaultdict(list)
    for environment_id, outcome, why in results:
        groups[outcome, why.replace(environment_id, "ID")].append(environment_id)
    lines = [
        f"{len(members):4} {outcome}: {why}  {', '.join(members[:3])}{', ..' * (len(members) > 3)}"
        for (outcome, why), members in sorted(groups.items())
    ]
    report = "\n".join(lines)
    print(report)  # noqa: T201 (shown by pytest -s and -rP)
    outcomes = collections.Counter(outcome for _, outcome, _ in results)
    made = len(results) - outcomes["cannot be made"]
    assert outcomes["sampled"] + outcomes["recorded"] == made, report
    for start in ("ALE/", "BabyAI-", "CartPole", "FetchReach", "MiniGrid-"):
        assert any(one.startswith(start) and kind == "sampled" for one, kind, _ in results), report
