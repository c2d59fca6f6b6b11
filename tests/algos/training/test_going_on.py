"""A run that is stopped, or killed at any access to its folder, goes on to the files of one that never was.

The kills are SIGKILLs of forked processes, right before an access to the folder or between two steps, so no clock
decides where. `ORLOG_KILLS=4` kills each run four times.
"""

import contextlib
import dataclasses
import functools
import os
import random
import shutil
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog.algos.algorithms import ALGORITHMS, algorithm_forms, for_teams, takes_goals
from orlog.algos.bc import BC
from orlog.algos.training.data import infos_of
from orlog.errors import StoppedError
from tests.algos import plain
from tests.algos.training.dots import record
from tests.algos.training.dots import registered as registered
from tests.extending.test_new_algorithm import poles as poles
from tests.kills import killed_at
from tests.pendulum import pendulum
from tests.training import logged

KILLS = int(os.environ.get("ORLOG_KILLS", "2"))
EPISODE = 5  # steps of Pendulum, which ends between two points of most curves


class Drawing(BC):
    """An algorithm of one's own that draws from the global generators."""

    def update(self, batch):
        noise = torch.randn(()) + np.random.normal() + random.random()  # noqa: NPY002
        return super().update(dataclasses.replace(batch, actions=batch.actions + 0.01 * noise))


def forms(actions, observations="vector"):
    """Return the algorithms that have a form for such data, without infos."""
    return [
        name
        for name in ALGORITHMS
        if any(
            actions in form.ACTIONS
            and observations in form.OBSERVATIONS
            and not infos_of(form, form.CONFIG())
            and not for_teams(form)
            for form in algorithm_forms(name)
        )
    ]


OFTEN = [
    *(("vectors", "bc"), ("vectors", "iql"), ("own class", Drawing), ("streamed", "bc"), ("frames", "fql")),
    *(("agents", "iql"), ("view", "percent_bc"), ("fine-tuning", "iql"), ("online", "rlpd")),
    *(("fine-tuned frames", "iql"), ("fine-tuning", "qcfql")),
]
RARELY = [
    *(("goals" if takes_goals(ALGORITHMS[name]) else "vectors", name) for name in forms("continuous")),
    *(("choices", name) for name in forms("discrete")),
    *(("frames", name) for name in forms("continuous", "structured")),
    *(("frames and choices", name) for name in forms("discrete", "structured")),
    *(("agents", name) for name, kind in ALGORITHMS.items() if for_teams(kind)),
    *(("fine-tuning", name) for name, kind in ALGORITHMS.items() if hasattr(kind, "explore")),
    *(("fine-tuned frames", name) for name in ("awac", "calql", "cql", "fql", "ifql", "iql", "qcfql", "td3bc")),
]
CASES = [
    *OFTEN,
    *(pytest.param(*case, marks=[pytest.mark.slow, pytest.mark.thorough]) for case in RARELY if case not in OFTEN),
]


def team():
    """Return data of two agents."""
    rng = np.random.default_rng(0)
    observed = spaces.Dict({name: spaces.Box(-9, 9, (3,), np.float32) for name in "ab"})
    acted = spaces.Dict({name: spaces.Discrete(3) for name in "ab"})
    with orlog.DatasetWriter("lab/team-v1", observation_space=observed, action_space=acted) as writer:
        for _ in range(8):
            writer.add_steps(
                observations={name: rng.normal(size=(11, 3)).astype("f4") for name in "ab"},
                actions={name: rng.integers(0, 3, 10) for name in "ab"},
                rewards=rng.normal(size=10),
                terminations=np.arange(10) == 9,
                truncations=np.zeros(10, bool),
                infos={f"agents/{name}/acts": np.ones(10, bool) for name in "ab"},
            )
            writer.end_episode()
    return orlog.load_dataset("lab/team-v1")


@pytest.fixture
def train(request, monkeypatch, tmp_path):
    """Return a function that trains in a folder, as a case says."""
    kind, name = request.node.callspec.params["kind"], request.node.callspec.params["name"]
    settings = {} if kind == "own class" else plain.small_settings(name, batch_size=8)
    settings |= {"qcfql": {"chunk_length": 3}, "chunked_flow": {"planned": 3, "executed": 2}}.get(name, {})
    settings |= {"critics": 3, "updates": 2, "random_steps": 7} if name == "rlpd" else {}
    settings |= {"n_steps": 3} if (kind, name) == ("fine-tuning", "ifql") else {}
    options = {"steps": 120, "evaluations": 0, "progress": False}
    match kind:
        case "goals" | "vectors" | "own class":
            data = request.getfixturevalue("mini")
        case "streamed":
            data, options = request.getfixturevalue("mini"), options | {"stream": True}
        case "view":
            data = request.getfixturevalue("mini")[3:40:2]
        case "agents":
            data, settings = team(), settings | ({} if name == "mabcq" else {"agents": "separate"})
        case "choices":
            data = request.getfixturevalue("poles")
        case "frames" | "frames and choices" | "fine-tuned frames":
            environments = {"frames": "PushedDot", "frames and choices": "Dot", "fine-tuned frames": "MixedDot"}
            data = record(f"orlog-tests/{environments[kind]}-v0", "lab/dot-v1", episodes=8)
            settings |= {"encoder": "impala", "random_shift": 1} | ({"length": 3} if name == "dt" else {})
            options["steps"] = 12
        case _:
            spec = dataclasses.replace(gymnasium.spec("Pendulum-v1"), max_episode_steps=EPISODE)
            monkeypatch.setitem(gymnasium.registry, "Pendulum-v1", spec)
            data = pendulum(episodes=8)
            options |= {"evaluations": 2, "steps": 40}
    if "fine-tun" in kind:
        run = orlog.train(
            name, data, settings=settings, steps=5, evaluations=0, out=tmp_path / "offline", progress=False
        )
        return functools.partial(orlog.finetune, run, random_steps=7, warm_up_steps=4, **options)
    options |= {"evaluations": 2, "curve_episodes": 2, "keep_checkpoints": True} if kind == "vectors" else {}
    return functools.partial(orlog.train, name, data, settings=settings, **options)


def files(folder):
    """Return a run's files, without the times in its log and what a kill left half written."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".unfinished"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths} | {"metrics.jsonl": logged(folder)}


@pytest.mark.filterwarnings("ignore:.*statistics are computed once")
@pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be forked there")
@pytest.mark.skipif(torch.cuda.is_available(), reason="processes that may use a GPU cannot be forked")
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_run_that_is_stopped_and_killed_again_and_again_equals_one_that_was_not(kind, name, train, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    accesses = []

    def work(access):
        train(out=cut, resume=True, stop=access)

    killed, count = killed_at(work, 0, cut)  # which steps count too
    assert not killed
    shutil.rmtree(cut)
    train(out=whole)
    rng = random.Random(f"{kind} {name}")
    for _ in range(KILLS):
        accesses.append(rng.randint(1, count))
        killed_at(work, accesses[-1], cut)
    calls = iter(range(10_000))
    last = rng.randint(0, 30)
    with contextlib.suppress(StoppedError):
        train(out=cut, resume=True, stop=lambda: next(calls) >= last)
    seen = []
    train(out=cut, resume=True, progress=lambda step, _: seen.append(step))
    assert files(cut) == files(whole), accesses
    train(out=cut, resume=True)  # nothing is left to do
    assert files(cut) == files(whole)
    assert seen[-1] == logged(whole)[-1]["step"]
