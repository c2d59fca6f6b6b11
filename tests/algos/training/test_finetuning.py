from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import re
import shlex
import signal
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from safetensors.numpy import load_file
from typer.testing import CliRunner

import orlog
from orlog.algos.algorithms import ALGORITHMS
from orlog.algos.bc import BC
from orlog.algos.td3bc import TD3BC
from orlog.algos.training.metrics import read_metrics
from orlog.algos.training.replay import Replay
from orlog.algos.training.runs import ONLINE_FILE, read_run
from orlog.base import terminal
from orlog.base.files import hash_file
from orlog.cli import app
from orlog.errors import CheckpointError, NotFoundError, SchemaError, StoppedError
from orlog.loaders.arrays import Leaf
from tests.extending.test_new_algorithm import poles as poles
from tests.pendulum import pendulum

SMALL = {"hidden": [8], "batch_size": 8}
EXPLORING = [name for name, kind in ALGORITHMS.items() if hasattr(kind, "explore")]


def trained(dataset, folder, algorithm="iql"):
    few = {"critics": 3, "updates": 2, "random_steps": 20}
    settings = {**SMALL, **few} if algorithm == "rlpd" else SMALL
    return orlog.train(algorithm, dataset, settings=settings, steps=5, evaluations=0, out=folder)


@pytest.fixture
def run(home, tmp_path):
    """Return a run of IQL on two episodes of Pendulum."""
    del home
    return trained(pendulum(episodes=2), tmp_path / "offline")


def logged(folder):
    return [{**line, "seconds": 0} for line in read_metrics(folder)]


def check_equal(one, other):
    """Compare all tensors, the log and the steps of two runs."""
    first, second = (load_file(folder / "checkpoint.safetensors") for folder in (one, other))
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
    assert logged(one) == logged(other)
    assert (one / ONLINE_FILE).read_bytes() == (other / ONLINE_FILE).read_bytes()


def has_lines(folder, lines):
    return len(read_metrics(folder)) > lines


def test_a_stop_saves_at_the_end_of_the_episode_and_the_same_steps_follow(home, tmp_path, monkeypatch):
    del home
    watch(monkeypatch, limit=30)
    run = trained(pendulum(episodes=2), tmp_path / "offline")
    orlog.finetune(run, out=tmp_path / "whole", steps=200, evaluations=2)
    ends, cut = [], tmp_path / "cut"
    for stop in (15, 100):
        with pytest.raises(StoppedError, match=r"stopped at step .* of 200") as caught:
            orlog.finetune(
                run,
                out=cut,
                steps=200,
                evaluations=2,
                resume=cut.exists(),
                stop=functools.partial(has_lines, cut, stop // 2),
            )
        ends.append(caught.value.step)
    assert 10 < ends[0] <= 60 < ends[1] < 200
    orlog.finetune(run, out=cut, steps=200, evaluations=2, resume=True)
    check_equal(tmp_path / "whole", cut)
    lines = read_metrics(tmp_path / "whole")
    assert [line["step"] for line in lines if "returns" in line] == [0, 100, 200]
    replay = np.fromfile(cut / ONLINE_FILE, np.float32).reshape(200, -1)
    assert sum(line.get("online/episodes", 0) for line in lines) == replay[:, 5:7].sum() > 6


def test_the_record_names_the_run_and_its_checkpoint_and_the_run_stays_as_it_was(run, tmp_path):
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    new = orlog.finetune(run, out=tmp_path / "new", steps=3, evaluations=0, settings={"expectile": 0.9})
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before
    assert "online" not in json.loads(before["run.json"])
    record = read_run(new.folder)
    assert record.online is not None
    assert record.online.run == str(run.folder)
    assert record.online.checkpoint_sha256 == hash_file(run.folder / "checkpoint.safetensors")
    assert record.online.step == 5
    assert record.config == {**run.record.config, "expectile": 0.9, "steps": None}
    assert record.obs_mean == run.record.obs_mean
    # It goes on with the run's weights: after few steps they have hardly moved.
    old, now = (load_file(one / "checkpoint.safetensors") for one in (run.folder, new.folder))
    for name in ("critic/first.0.weight", "policy/0.weight"):
        assert 0 < np.abs(old[name] - now[name]).max() < 3 * 4e-4


def test_what_was_done_can_be_evaluated_and_fine_tuned_again(run, tmp_path):
    new = orlog.finetune(run, out=tmp_path / "new", steps=3, evaluations=0)
    assert orlog.evaluate(new, episodes=1).step == 3
    again = orlog.finetune(new, out=tmp_path / "again", steps=2, evaluations=0)
    assert again.record.online is not None
    assert again.record.online.step == 3


def test_a_rate_of_learning_that_is_set_replaces_that_of_the_checkpoint(run, tmp_path):
    settings = {"learning_rate": 1e-9}
    new = orlog.finetune(run, out=tmp_path / "new", steps=3, evaluations=0, settings=settings)
    old, now = (load_file(one / "checkpoint.safetensors") for one in (run.folder, new.folder))
    for name in ("critic/first.0.weight", "value/0.weight", "policy/0.weight"):
        assert np.abs(old[name] - now[name]).max() < 1e-7


# --- the steps and the batches


class Watched(PendulumEnv):
    """Pendulum that ends by a termination after seven steps if its seed is odd."""

    seen: ClassVar[list[tuple[str, Any]]] = []

    def reset(self, *, seed=None, options=None):
        self.count, self.is_short = 0, bool(seed is not None and seed % 2)
        self.seen.append(("reset", seed))
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.count += 1
        step = super().step
        following, reward, _, truncated, info = step(action)
        ends = self.is_short and self.count == 7
        self.seen.append(("step", (action.copy(), float(reward), following, ends)))
        return following, reward, ends, truncated, info


def watch(monkeypatch, *, limit=5):
    """Let the id of Pendulum make an environment that is watched."""
    monkeypatch.setattr(Watched, "seen", [])
    made = Watched
    spec = dataclasses.replace(gymnasium.spec("Pendulum-v1"), entry_point=made, max_episode_steps=limit)
    monkeypatch.setitem(gymnasium.registry, "Pendulum-v1", spec)


def data_rewards():
    episodes = orlog.load_dataset("lab/pendulum-v1")
    return {round(float(one), 4) for episode in episodes for one in episode.rewards}


def test_batches_hold_steps_of_the_data_and_of_the_environment_as_they_were(home, tmp_path, monkeypatch):
    del home
    watch(monkeypatch, limit=10)
    run = trained(pendulum(episodes=3), tmp_path / "offline", "td3bc")
    seen = []
    usual = TD3BC.update

    def update(self, batch):
        seen.append(batch)
        return usual(self, batch)

    monkeypatch.setattr(TD3BC, "update", update)
    Watched.seen.clear()
    orlog.finetune(run, out=tmp_path / "new", steps=40, prior=0.25, random_steps=20, evaluations=0)
    steps = [one for word, one in Watched.seen if word == "step"]
    resets = [one for word, one in Watched.seen if word == "reset"]
    assert len(steps) == 60
    assert len(set(resets)) == len(resets)
    data = data_rewards()
    online = {round(reward, 4): (action, ends) for action, reward, _, ends in steps}
    ended = 0
    for number, batch in enumerate(seen):
        assert len(batch.rewards) == 8
        assert all(round(float(one), 4) in data for one in batch.rewards[:2])
        sofar = {round(reward, 4) for _, reward, _, _ in steps[: 21 + number]}
        for row in range(2, 8):
            reward = round(float(batch.rewards[row]), 4)
            assert reward in sofar
            action, ends = online[reward]
            np.testing.assert_array_equal(batch.actions[row].numpy(), action)
            assert float(batch.terminations[row]) == ends
            assert not (batch.terminations[row] and batch.truncations[row])
            ended += int(ends)
    assert ended
    # Random steps are spread over the space, those of the policy are not.
    assert np.std([one[0] for one in steps[:20]]) > 0.8


@pytest.mark.parametrize(("prior", "share"), [(1.0, 1.0), (0.0, 0.0), (None, 15 / (15 + 20))])
def test_the_share_of_the_data_is_what_was_asked_for(prior, share, home, tmp_path, monkeypatch):
    del home
    watch(monkeypatch)
    run = trained(pendulum(episodes=3), tmp_path / "offline", "td3bc")  # 15 steps of data
    data = data_rewards()
    found = []

    def update(_, batch):
        found.extend(round(float(one), 4) in data for one in batch.rewards)
        return {}

    monkeypatch.setattr(TD3BC, "update", update)
    orlog.finetune(
        run, out=tmp_path / "new", steps=1, prior=prior, random_steps=19, evaluations=0, settings={"batch_size": 4000}
    )
    assert np.mean(found) == pytest.approx(share, abs=0.03)


def test_rewards_are_transformed_as_in_the_run_and_returns_are_not():
    replay = Replay(4, 2, 1, reward_scale=10.0, reward_shift=-5.0, discount=0.5)
    zeros = torch.zeros(1, 2)
    for reward, ended in ((1.0, False), (0.75, True), (0.25, False)):
        replay.add(zeros, np.zeros(1, np.float32), reward, zeros, terminated=ended, truncated=ended)
    batch = replay.batch(torch.arange(3))
    assert batch.rewards.tolist() == [5.0, 2.5, -2.5]
    assert replay.returns_to_go(torch.arange(3)).tolist() == [6.25, 2.5, -torch.inf]
    assert batch.terminations.tolist() == [0, 1, 0]
    assert batch.truncations.tolist() == [0, 0, 0]
    assert (replay.returns, replay.ends, replay.finished, replay.count) == ([1.75], [2], 2, 3)


def test_the_file_of_steps_grows_and_what_is_not_of_the_checkpoint_is_cut_off(tmp_path):
    def replay():
        return Replay(10, 2, 1)

    def add(one, reward):
        side = torch.full((1, 2), reward)
        one.add(side, side[0, :1].numpy(), reward, side + 1, terminated=False, truncated=reward % 2 == 0)

    path, whole = tmp_path / "steps", replay()
    for reward in (1, 2, 3, 4):
        add(whole, reward)
    saved = whole.save(path)
    assert path.stat().st_size == 4 * 4 * 8
    torn = tmp_path / "torn"
    torn.write_bytes(path.read_bytes() + b"torn")
    other = replay()
    other.load(torn, saved)
    assert (other.returns, other.ends, other.count) == (whole.returns, whole.ends, 4)
    for one in (whole, other):
        add(one, 6)
    again = other.save(torn)
    assert again == whole.save(path)
    assert path.read_bytes() == torn.read_bytes()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="does not hold the 5 steps"):
        replay().load(path, again)
    path.unlink()
    with pytest.raises(CheckpointError, match="does not hold the 5 steps"):
        replay().load(path, again)


def test_frames_and_integers_of_steps_come_back_in_the_form_of_the_data(tmp_path):
    leaves = {
        "at": Leaf(first=0, shape=(2, 1)),
        "eye": Leaf(column="observations/eye"),
        "kind": Leaf(column="observations/kind"),
        "speed": Leaf(first=2, shape=(1,)),
    }
    others = {
        "observations/eye": torch.zeros(5, 3, 3, dtype=torch.uint8),
        "observations/kind": torch.zeros(5, dtype=torch.int64),
        "rewards": torch.zeros(5),
    }
    rng = np.random.default_rng(0)
    seen = [
        {
            "at": torch.from_numpy(rng.normal(size=(1, 2, 1)).astype(np.float32)),
            "eye": torch.from_numpy(rng.integers(0, 256, (1, 3, 3), np.uint8)),
            "kind": torch.from_numpy(rng.integers(-5, 5, 1)),
            "speed": torch.from_numpy(rng.normal(size=(1, 1)).astype(np.float32)),
        }
        for _ in range(4)
    ]
    path, made = tmp_path / "steps", Replay(5, 3, 1, leaves=leaves, others=others)
    saved = made.save(path)
    assert saved["online_steps"] == "0"
    for step in range(3):
        action = np.array([step], np.float32)
        made.add(seen[step], action, 1.0, seen[step + 1], terminated=step == 1, truncated=False)
        saved = made.save(path)
    assert path.stat().st_size == 3 * (4 * (2 * 3 + 1 + 3) + 2 * (9 + 8))
    again = Replay(5, 3, 1, leaves=leaves, others=others)
    again.load(path, saved)
    for replay in (made, again):
        batch = replay.batch(torch.tensor([2, 0]))
        for at, step in enumerate((2, 0)):
            for key, values in seen[step].items():
                assert torch.equal(batch.observations[key][at], values[0])
                assert torch.equal(batch.next_observations[key][at], seen[step + 1][key][0])
        assert batch.actions.tolist() == [[2.0], [0.0]]
        assert batch.observations["kind"].dtype == torch.int64


# --- what is refused


def test_data_whose_spaces_cannot_be_fine_tuned_are_refused(poles, tmp_path):
    run = orlog.train("iql", poles, settings=SMALL, steps=1, evaluations=0, out=tmp_path / "a")
    expected = r"continuous actions \(a Box\), found Discrete\(2\)\. No algorithm"
    for noise in (None, 0.1):
        with pytest.raises(SchemaError, match=expected):
            orlog.finetune(run, out=tmp_path / "x", steps=1, noise=noise)


def test_what_cannot_be_fine_tuned_is_refused_in_one_line(home, tmp_path, monkeypatch):
    del home
    nameless = trained(pendulum("lab/nameless-v1", named=False), tmp_path / "nameless")
    with pytest.raises(NotFoundError, match="names no environment"):
        orlog.finetune(nameless, out=tmp_path / "x", steps=1)
    cloned = trained(pendulum(), tmp_path / "bc", "bc")
    with pytest.raises(SchemaError, match=r"bc cannot explore.*noise="):
        orlog.finetune(cloned, out=tmp_path / "x", steps=1)
    for name, words in (
        ("rebrac", "transitions with the data's next actions"),
        ("dt", "windows of steps"),
        ("qcfql", "chunks of actions"),
    ):
        small = {"width": 8, "heads": 1, "batch_size": 8} if name == "dt" else SMALL
        other = orlog.train(name, "lab/pendulum-v1", settings=small, steps=1, evaluations=0, out=tmp_path / name)
        expected = rf"{name} learns from {words}, .* one of: {', '.join(EXPLORING)}\."
        with pytest.raises(SchemaError, match=expected):  # with and without a noise
            orlog.finetune(other, out=tmp_path / "x", steps=1, noise=0.1)
        with pytest.raises(SchemaError, match=expected):
            orlog.finetune(other, out=tmp_path / "x", steps=1)
    run = trained("lab/pendulum-v1", tmp_path / "iql")
    with pytest.raises(ValueError, match="no setting 'width'"):
        orlog.finetune(run, out=tmp_path / "x", steps=1, settings={"width": 1})
    with pytest.raises(ValueError, match="prior must lie in"):
        orlog.finetune(run, out=tmp_path / "x", steps=1, prior=1.5)
    with pytest.raises(NotFoundError, match="not the folder of a run"):
        orlog.finetune(tmp_path / "nothing", steps=1)
    assert not (tmp_path / "x").exists()
    # With noise, any policy on single transitions can act.
    orlog.finetune(cloned, out=tmp_path / "y", steps=2, noise=0.1, evaluations=0)
    with pytest.raises(FileExistsError, match="holds a run already"):
        orlog.finetune(cloned, out=tmp_path / "y", steps=2, noise=0.1)
    with pytest.raises(FileExistsError, match=r"a run that acts with .*, not .*; to continue it"):
        orlog.finetune(cloned, out=tmp_path / "y", steps=2, noise=0.2, resume=True)
    assert BC is ALGORITHMS["bc"]
    watch(monkeypatch, limit=None)
    with (
        gymnasium.make("Pendulum-v1") as env,
        orlog.DatasetWriter(
            "lab/unlimited-v1", observation_space=env.observation_space, action_space=env.action_space, environment=env
        ) as writer,
    ):
        writer.add_episode(orlog.load_dataset("lab/pendulum-v1")[0])
    with pytest.raises(NotFoundError, match="have no limit of steps"):
        orlog.finetune(trained("lab/unlimited-v1", tmp_path / "un"), out=tmp_path / "x", steps=1)


@pytest.mark.parametrize(
    ("action", "error", "words"),
    [
        (2.5, SchemaError, r"gave an action outside the action space.*number 0 is 2\.5.*-2 to 2"),
        (float("nan"), FloatingPointError, "diverged: the policy's action.* is not at step 0"),
    ],
)
def test_an_action_that_is_not_possible_ends_the_run(action, error, words, run, tmp_path, monkeypatch):
    kind = ALGORITHMS["iql"]
    monkeypatch.setattr(kind, "explore", lambda *_: torch.full((1, 1), action))
    with pytest.raises(error, match=words):
        orlog.finetune(run, out=tmp_path / "x", steps=1, evaluations=0)


def test_a_diverged_loss_ends_the_run(run, tmp_path, monkeypatch):
    kind = ALGORITHMS["iql"]
    monkeypatch.setattr(kind, "update", lambda *_: {"critic/loss": torch.tensor(torch.nan)})
    with pytest.raises(FloatingPointError, match="diverged: critic/loss"):
        orlog.finetune(run, out=tmp_path / "x", steps=3, evaluations=0)


# --- the command line


def invoke(*arguments):
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "300", "NO_COLOR": "1"})


def test_the_command_says_what_follows_and_goes_on_after_a_signal(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["finetune", "offline", "--steps", "250", "--evaluations", "0", "--prior", "even"]
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    folder = Path("runs/finetune/iql/lab/pendulum-v1/seed-0")
    assert f"run: orlog evaluate {folder}" in " ".join(done.output.split())
    kind = ALGORITHMS["iql"]
    usual, calls = kind.update, []

    def send(self, batch):
        calls.append(1)
        if len(calls) == 20:
            signal.raise_signal(signal.SIGINT)
        return usual(self, batch)

    monkeypatch.setattr(kind, "update", send)
    stopped = invoke(*words, "--out", "other")
    assert stopped.exit_code == 128 + signal.SIGINT
    line = next(one for one in stopped.output.splitlines() if "to continue, run: " in one)
    again = shlex.split(line.partition("run: ")[2])
    assert "stopped at step 200" in line
    monkeypatch.setattr(kind, "update", usual)
    resumed = invoke(*again[1:])
    assert resumed.exit_code == 0, resumed.output
    assert "resuming from step 200 of 250" in resumed.output
    check_equal(folder, Path("other"))
    assert "takes a number from 0 to 1, or even" in str(invoke(*words[:-1], "half").exception)
    assert run.folder.exists()


@pytest.mark.usefixtures("run")
def test_the_command_shows_a_line_and_copies_the_log(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    reading = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(terminal, "LINE_SECONDS", -1.0)
    watch(monkeypatch, limit=200)
    words = ["finetune", "offline", "--steps", "20", "--evaluations", "1", "--out", "new"]
    done = invoke(*words, "--log", "tensorboard")
    assert done.exit_code == 0, done.output
    assert re.search(r"IQL seed 0: 20 of 20, loss: .*, score -?\d", done.output)
    log = reading.EventAccumulator("new/tensorboard")
    log.Reload()
    assert [one.step for one in log.Scalars("evaluation/return")] == [0, 20]
    assert [one.step for one in log.Scalars("policy/loss")] == list(range(1, 21))
    for wrong, message in (
        (["--log", "tensorbord"], "did you mean tensorboard"),
        (["--algorithm", "bc"], "trained with iql, not with bc"),
    ):
        assert message in str(invoke(*words, *wrong).exception)
