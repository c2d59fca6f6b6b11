import dataclasses
import math
import re

import msgspec
import numpy as np
import pytest

import orlog
from orlog import build_dataset
from orlog.datasets.worlds import build, mujoco
from orlog.datasets.worlds.behavior_policies import read_policies
from orlog.datasets.worlds.environments import make_environment
from orlog.datasets.worlds.mujoco import DATASETS, MujocoRecipe
from orlog.datasets.worlds.recipe import CatalogueEntry, parts_of
from orlog.errors import IntegrityError
from orlog.manifests.shipped import records_folder
from orlog.normalize.references import read_references
from tools.behaviors.training import BehaviorRecord, sampled_returns

RECIPE = MujocoRecipe(
    environment_id="Hopper-v5",
    steps=900,
    behaviors="hopper",
    digest=mujoco.TASKS["hopper"].digest,
    policies=(None, -1),
    seed=99,
)
ENTRY = CatalogueEntry(version="1.0.0", description="Tiny.", license="CC0-1.0", recipe=RECIPE)


@pytest.mark.parametrize("name", mujoco.TASKS)
def test_the_policies_that_ship_are_those_of_the_recipes_and_return_what_they_say(name):
    task = mujoco.TASKS[name]
    folder = records_folder() / "behaviors"
    record = msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=BehaviorRecord)
    assert (record.digest, record.environment_id) == (task.digest, task.environment_id)
    policies = read_policies(folder / f"{name}.safetensors", task.digest)
    assert [one.steps for one in policies] == [one.steps for one in record.policies]
    assert tuple(round(one.mean) for one in record.policies) == task.returns


@pytest.mark.parametrize("task", mujoco.TASKS.values(), ids=list(mujoco.TASKS))
def test_references_are_those_of_the_expert_that_ships(task):
    (found,) = (
        one
        for path in (records_folder() / "references").glob("*.json")
        if (one := read_references(path)).protocol.environment_id == task.environment_id
    )
    assert task.digest[:19] in found.expert.policy
    # Actions without noise return more than those that were recorded.
    assert task.returns[-1] < found.expert.mean < 1.5 * task.returns[-1]
    assert found.random.mean < task.returns[-2]


@pytest.mark.thorough
@pytest.mark.parametrize("name", mujoco.TASKS)
def test_medium_and_expert_return_what_their_record_says(name):
    task = mujoco.TASKS[name]
    folder = records_folder() / "behaviors"
    record = msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=BehaviorRecord)
    policies = read_policies(folder / f"{name}.safetensors", task.digest)
    with make_environment(task.environment_id, {}) as env:
        for one, line in zip(policies[-2:], record.policies[-2:], strict=True):
            # The episodes are those of the record, but last bits may differ on another processor.
            returns = sampled_returns(one.policy, env, episodes=20)
            deviation = np.std(line.returns) / math.sqrt(len(returns))
            assert abs(returns.mean() - line.mean) < 5 * deviation + 0.02 * line.mean


def test_each_task_has_the_datasets_of_d4rl():
    kinds = ("random", "medium", "medium-replay", "medium-expert", "expert")
    for task, trained in mujoco.TASKS.items():
        random, medium, replay, mixed, expert = (DATASETS[f"mujoco/{task}-{kind}-v1"].recipe for kind in kinds)
        assert [one.steps for one in (random, medium, mixed, expert)] == [1_000_000, 1_000_000, 2_000_000, 1_000_000]
        assert replay.steps == trained.replay_steps
        assert [part.steps for part in parts_of(mixed)] == [1_000_000, 1_000_000]
        assert sum(part.steps for part in parts_of(replay)) == replay.steps
        assert trained.returns[-1] / 2 > trained.returns[-2] > trained.returns[-1] / 5


def test_each_part_has_its_share_of_steps_and_any_number_of_processes_gives_the_same_bytes(monkeypatch, tmp_path):
    monkeypatch.setitem(DATASETS, "mujoco/tiny-v1", ENTRY)
    monkeypatch.setattr(build, "EPISODES_PER_TASK", 1)
    digests = []
    for workers in (1, 2):
        monkeypatch.setenv("ORLOG_HOME", str(tmp_path / str(workers)))
        build_dataset("mujoco/tiny-v1", workers=workers)
        digests.append(orlog.load_dataset("mujoco/tiny-v1").digest)
    assert digests[0] == digests[1]
    dataset = orlog.load_dataset("mujoco/tiny-v1")
    assert dataset.total_steps == 900
    episodes = [dataset[index] for index in range(dataset.total_episodes)]
    trained = [one.metadata["behavior_steps"] for one in episodes]
    assert trained == sorted(trained)
    random = [one for one in episodes if one.metadata["behavior_steps"] == 0]
    assert sum(map(len, random)) == 450
    for one in random:
        np.testing.assert_allclose(one.infos["action_log_probs"], -3 * math.log(2))
    for one in (random[-1], episodes[-1]):
        assert one.truncations[-1] != one.terminations[-1]


def test_policies_of_another_digest_record_nothing():
    other = dataclasses.replace(RECIPE, digest="blake3:" + 64 * "0")
    with pytest.raises(IntegrityError, match=r"hopper\.safetensors: the file of behavior"):
        next(other.parts[1].episodes(0, 1))


def test_the_expert_is_the_last_policy_without_noise():
    expert = RECIPE.expert()
    assert re.search("trained for [0-9]+,[0-9]{3} steps", expert.name)
    actions = expert.policy(np.zeros((2, 11)))
    assert actions.shape == (2, 3)
    assert (np.abs(actions) <= 1).all()
    assert DATASETS["mujoco/hopper-random-v1"].recipe.expert() is None
