"""Trained policies in loops of a user's own."""

import re
import shlex
import sys

import gymnasium
import numpy as np
import pytest
import torch

import orlog
from orlog.algos.bc import BC
from orlog.algos.training.evaluating import FIRST_SEED
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import CheckpointError, MissingExtraError, NotFoundError, SchemaError
from orlog.runs.policies import LIST, VIDEOS, chosen_episodes, read_videos
from tests.command_line import orlog as command
from tests.extending.test_new_algorithm import SOURCE
from tests.extending.test_new_algorithm import poles as poles
from tests.pendulum import pendulum

SMALL = {"settings": {"hidden": [4], "batch_size": 8}, "steps": 3, "evaluations": 0}


class Counting:
    """Acts by the steps of the episode and its last reward."""

    def __init__(self, environments):
        self.steps = torch.zeros(environments)
        self.last = torch.zeros(environments)

    def begin(self, which):
        self.steps[which] = self.last[which] = 0

    def act(self, observations):
        self.steps += 1
        assert len(observations) == len(self.steps)
        return (self.steps + self.last)[:, None] / 100

    def reward(self, rewards):
        self.last = rewards


class CountingBC(BC):
    """Cloning whose policy has memory."""

    def actor(self, environments):
        return Counting(environments)


@pytest.mark.parametrize("kind", [BC, CountingBC])
def test_a_plain_loop_gives_the_return_of_the_evaluation(kind, tmp_path):
    run = orlog.train(kind, pendulum(), out=tmp_path / "run", **SMALL)
    with_memory = kind is CountingBC
    result = orlog.evaluate(run, episodes=1, algorithm=kind if with_memory else None)
    policy = orlog.load_policy(run.folder, algorithm=kind)
    assert policy.has_memory == with_memory
    assert (policy.step, policy.run) == (3, run)
    for _ in range(2):
        with gymnasium.make("Pendulum-v1") as env:
            observation, _ = env.reset(seed=FIRST_SEED)
            policy.begin()
            total, done = 0.0, False
            while not done:
                action = policy(observation)
                assert env.action_space.contains(action)
                observation, reward, terminated, truncated, _ = env.step(action)
                policy.reward(reward)
                total += float(reward)
                done = terminated or truncated
        assert total == result.returns[0]


def test_a_batch_of_observations_gives_a_batch_of_actions(mini, tmp_path):
    run = orlog.train("bc", mini, out=tmp_path / "run", **SMALL)
    policy = orlog.load_policy(run)
    name, arguments = mini.environment.id, mini.environment.kwargs
    environments = gymnasium.vector.SyncVectorEnv([lambda: make_environment(name, arguments)] * 3)
    many, _ = environments.reset(seed=[1, 2, 3])
    actions = policy(many)
    assert environments.action_space.contains(actions)
    singles = [{key: value[index] for key, value in many.items()} for index in range(3)]
    for index, one in enumerate(singles):
        action = policy(one)
        assert mini.action_space.contains(action)
        np.testing.assert_allclose(action, actions[index], rtol=0, atol=1e-6)
        np.testing.assert_array_equal(policy({key: [value] for key, value in one.items()}), [action])
    environments.close()

    del singles[0]["achieved_goal"]
    with pytest.raises(SchemaError, match=r"observation\['achieved_goal'\] is missing; the policy"):
        policy(singles[0])
    wrong = {**many, "observation": many["observation"][:, :3]}
    text = r"\['observation'\] has the shape \[3, 3\] instead of \[4\] or, in a batch, \[n, 4\];"
    with pytest.raises(SchemaError, match=text):
        policy(wrong)
    mixed = {**many, "observation": many["observation"][:2]}
    with pytest.raises(SchemaError, match="parts of different numbers of environments"):
        policy(mixed)


def test_discrete_actions_are_integers_that_the_environment_takes(poles, tmp_path):
    path = tmp_path / "cloning_poles.py"
    path.write_text(SOURCE, "utf-8")
    run = orlog.train(f"{path}:DiscreteBC", poles, out=tmp_path / "run", steps=1, evaluations=0)
    with pytest.raises(NotFoundError, match="trained with cloning_poles:DiscreteBC, which is not"):
        orlog.load_policy(run)
    policy = orlog.load_policy(run, algorithm=f"{path}:DiscreteBC")
    action = policy(np.zeros(4, np.float32))
    assert isinstance(action, np.int64)
    assert poles.action_space.contains(action)
    assert policy(np.zeros((5, 4), np.float32)).shape == (5,)


def test_memory_belongs_to_environments_until_episodes_begin(tmp_path):
    run = orlog.train(CountingBC, pendulum(), out=tmp_path / "run", **SMALL)
    policy = orlog.load_policy(run, algorithm=CountingBC)

    def hundredths(*observations):
        found = policy(np.zeros((*observations, 3), np.float32)) * 100
        return [round(float(one), 3) for one in found.ravel()]

    with pytest.raises(SchemaError, match="of which 0 have acted in the present episodes; found 1"):
        policy.reward(1.0)
    assert hundredths(2) == [1, 1]
    policy.reward([0.5, 0])
    assert hundredths(2) == [2.5, 2]
    policy.begin([True, False])
    policy.reward(np.array([0, -0.25]))
    assert hundredths(2) == [1, 2.75]
    with pytest.raises(SchemaError, match="the episodes of 2 environments, found observations of 1"):
        policy(np.zeros(3, np.float32))
    with pytest.raises(SchemaError, match="reward takes one value for each environment, of which 2"):
        policy.reward(1.0)
    policy.begin()
    assert hundredths() == [1]
    policy.reward(1)
    assert hundredths() == [3]


def test_what_cannot_be_loaded_is_refused_as_by_an_evaluation(tmp_path):
    with pytest.raises(NotFoundError, match="is not the folder of a run"):
        orlog.load_policy(tmp_path)
    run = orlog.train("bc", pendulum(), out=tmp_path / "run", **SMALL)
    path = run.folder / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError):
        orlog.load_policy(run)
    path.unlink()
    again = f"has no checkpoint yet; run: orlog train --resume {re.escape(str(run.folder))}"
    with pytest.raises(NotFoundError, match=again) as caught:
        orlog.load_policy(run)
    words = shlex.split(str(caught.value).partition("run: orlog ")[2])
    done = command(*words, "--evaluations", "0")
    assert done.returncode == 0, done.stderr
    assert path.exists()


# Films.


@pytest.mark.parametrize(
    ("returns", "chosen"),
    [
        ([3.0], {"best": 0}),
        ([3.0, 1.0], {"best": 0, "worst": 1}),
        ([2.0, 2.0, 2.0], {"best": 0, "median": 1, "worst": 0}),
        ([5.0, 1.0, 4.0, 2.0], {"best": 0, "worst": 1, "median": 3}),
    ],
)
def test_the_worst_the_median_and_the_best_are_chosen(returns, chosen):
    assert chosen_episodes(np.array(returns)) == chosen


def test_what_is_filmed_is_the_episode_that_was_scored(tmp_path, monkeypatch):
    av = pytest.importorskip("av")
    pytest.importorskip("pygame")
    monkeypatch.chdir(tmp_path)
    pendulum(episodes=3)
    run = orlog.train("bc", "lab/pendulum-v1", settings={"hidden": [8]}, steps=3, evaluations=0)
    result = orlog.evaluate(run, episodes=12, video=True)
    chosen = chosen_episodes(result.returns)
    assert {one.kind: one.episode for one in result.videos} == chosen
    assert read_videos(run.folder) == result.videos
    for one in result.videos:
        assert one.returned == one.evaluated == result.returns[one.episode]
        assert one.seed == result.protocol.first_seed + one.episode
        with av.open(str(run.folder / VIDEOS / one.file)) as film:
            frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
        assert len(frames) == one.frames == 201
        assert frames[0].std() > 5  # something is drawn
    told = command("evaluate", str(run.folder), "--episodes", "2", "--video")
    assert told.returncode == 0, told.stderr
    assert told.stdout.count(".mp4") == 2
    assert {path.name for path in (run.folder / VIDEOS).iterdir()} == {
        LIST,
        *(one.file for one in read_videos(run.folder)),
    }


def test_without_pyav_nothing_is_evaluated(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r"orlog\[formats\]"):
        orlog.evaluate(tmp_path, video=True)


@pytest.mark.parametrize("listed", [b"", b"[1]", b'[{"kind": "best", "file": "../../x.mp4"}]'])
def test_a_damaged_list_of_videos_is_no_list(tmp_path, listed):
    (tmp_path / VIDEOS).mkdir()
    (tmp_path / VIDEOS / LIST).write_bytes(listed)
    assert read_videos(tmp_path) == []
