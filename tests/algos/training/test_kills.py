"""Training that is killed at random moments, again and again, ends with the numbers of an unharmed run.

Every kill is SIGKILL of a real process. The processes are forked from one that has imported orlog, so
that each starts at once. `ORLOG_KILLS=4` kills each run four times.
"""

import dataclasses
import multiprocessing
import os
import random
import shutil
import sys
import time

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.numpy import load_file

import orlog
from orlog.algos.algorithms import ALGORITHMS, algorithm_forms, for_teams, takes_goals
from orlog.algos.training.metrics import read_metrics
from orlog.algos.training.run_data import infos_of
from orlog.algos.training.runs import CHECKPOINT_FILE, ONLINE_FILE, RUN_FILE
from tests.algos import plain
from tests.algos.training.test_inputs_in_training import record, register
from tests.algos.training.test_inputs_in_training import registered as registered
from tests.extending.test_new_algorithm import poles as poles
from tests.pendulum import pendulum
from tests.training import finetune_run, train_run

CONTEXT = multiprocessing.get_context("forkserver")
KILLS = int(os.environ.get("ORLOG_KILLS", "2"))
EPISODE = 10  # steps of Pendulum

pytestmark = [
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be forked"),
]


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


CASES = [
    *(("goals" if takes_goals(ALGORITHMS[name]) else "vectors", name) for name in forms("continuous")),
    *(("choices", name) for name in forms("discrete")),
    *(("frames", name) for name in forms("continuous", "structured")),
    *(("frames-and-choices", name) for name in forms("discrete", "structured")),
    *(("agents", name) for name, kind in ALGORITHMS.items() if for_teams(kind)),
    ("agents", "iql"),
    *(("fine-tuning", name) for name, kind in ALGORITHMS.items() if hasattr(kind, "explore")),
]


@pytest.fixture(scope="module", autouse=True)
def forks_at_once():
    """Start the process that the others are forked from."""
    CONTEXT.set_forkserver_preload([__name__, "torch._dynamo"])  # which optimizers import
    first = CONTEXT.Process(target=time.sleep, args=(0,))
    first.start()
    first.join()


def shorten(registry):
    """Let episodes of Pendulum end after few steps: only between them can a fine-tuning be saved."""
    spec = gymnasium.spec("Pendulum-v1")
    registry["Pendulum-v1"] = dataclasses.replace(spec, max_episode_steps=EPISODE)


@pytest.fixture
def data(request, monkeypatch):
    """Return data of the kind that a case names, and options of runs on it."""
    frames = {"evaluations": 0, "steps": 20}
    match request.param:
        case "goals":
            return request.getfixturevalue("mini"), {"evaluations": 0}
        case "agents":
            return team(), {"evaluations": 0}
        case "choices":
            return request.getfixturevalue("poles"), {"curve_episodes": 2}
        case "frames":
            return record("orlog-tests/PushedDot-v0", "lab/dot-v1"), frames
        case "frames-and-choices":
            return record("orlog-tests/Dot-v0", "lab/dot-v1"), frames
    monkeypatch.setitem(gymnasium.registry, "Pendulum-v1", gymnasium.spec("Pendulum-v1"))
    shorten(gymnasium.registry)
    return pendulum(episodes=8), {"curve_episodes": 2}


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


def settings_of(kind, name):
    """Return settings that make a run small."""
    found = plain.small_settings(name, width=16)
    if name == "rlpd":
        found |= {"critics": 3, "updates": 2, "random_steps": 12}
    if name == "qcfql":
        found["chunk_length"] = 3
    if name == "chunked_flow":
        found |= {"planned": 3, "executed": 2}
    if kind.startswith("frames"):
        found |= {"encoder": "impala", "random_shift": 1}
        if name == "dt":
            found["length"] = 3
    return found


def train(home, folder, offline, options):
    """Train or fine-tune in a process, from the folder's checkpoint if there is one."""
    os.environ["ORLOG_HOME"] = home
    torch.set_num_threads(1)
    shorten(gymnasium.registry)
    register()
    if offline is None:
        train_run(folder=folder, resume=True, **options)
    else:
        finetune_run(offline, folder, resume=True, **options)


@pytest.mark.parametrize(("data", "name"), CASES, ids=map("-".join, CASES), indirect=["data"])
def test_a_run_that_is_killed_again_and_again_equals_one_that_was_not(data, name, request, home, tmp_path):
    dataset, more = data
    kind = request.node.callspec.params["data"]
    settings = settings_of(kind, name)
    options = {"dataset": dataset.folder, "steps": 100, "evaluations": 5, **more}
    offline = None
    if kind == "fine-tuning":
        offline = tmp_path / "offline"
        options |= {"steps": 150, "random_steps": 12}
        train_run(name, dataset, offline, seed=0, steps=5, settings=settings, evaluations=0)
    else:
        options |= {"algorithm": name, "seed": 0, "settings": settings}

    def start(folder):
        process = CONTEXT.Process(target=train, args=(str(home), folder, offline, options))
        process.start()
        return process

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    started = time.monotonic()
    unharmed = start(whole)
    while unharmed.is_alive() and not (whole / RUN_FILE).exists():
        time.sleep(0.002)
    begun = time.monotonic() - started
    unharmed.join()
    ended = time.monotonic() - started
    assert unharmed.exitcode == 0

    rng = random.Random(f"{kind} {name}")
    kills, share = 0, 1.0
    while kills < KILLS:
        # In turns while it trains and while it starts, where it may be reading the last checkpoint.
        span = (begun, ended) if kills % 2 == 0 else (0.3 * begun, 1.3 * begun)
        running = start(cut)
        running.join(share * rng.uniform(*span))
        running.kill()
        running.join()
        if running.exitcode == 0:  # it was faster than the first one
            shutil.rmtree(cut)
            share /= 2
            continue
        kills += 1
    last = start(cut)
    last.join()
    assert last.exitcode == 0

    first, second = (load_file(folder / CHECKPOINT_FILE) for folder in (whole, cut))
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key], err_msg=key)
    lines = [[{**one, "seconds": 0} for one in read_metrics(folder)] for folder in (whole, cut)]
    assert lines[0] == lines[1]
    for file in (CHECKPOINT_FILE, ONLINE_FILE):
        if (whole / file).exists():
            assert (whole / file).read_bytes() == (cut / file).read_bytes()
