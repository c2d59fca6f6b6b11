"""A recipe is one file: it is listed, built and measured without a change anywhere else."""

import sys

import pytest

import orlog
import orlog.datasets.worlds
from orlog.datasets.worlds.recipe import catalogue
from orlog.normalize.references import ReferenceReturns
from orlog.runs.evaluating import measure_references
from tests.command_line import orlog as run

RECIPE = """
import dataclasses

import gymnasium
import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, parameters_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Swings:
    steps: int
    torque: float = 1.0
    has_expert: bool = True
    seed: int = 0

    name = "swings"
    version = 1
    environment_id = "Pendulum-v1"
    behavior_policy = "the same torque all the time"

    @property
    def parameters(self):
        return parameters_of(self)

    @property
    def environment_kwargs(self):
        return {}

    def lengths(self, limit):
        return [limit] * (self.steps // limit)

    def episodes(self, first, last):
        for index in range(first, last):
            with gymnasium.make(self.environment_id) as env:
                observations = [env.reset(seed=index)[0]]
                rewards = []
                actions = np.full((200, 1), self.torque, np.float32)
                for action in actions:
                    observation, reward, *_ = env.step(action)
                    observations.append(observation)
                    rewards.append(float(reward))
            ends = np.zeros(200, bool)
            truncations = ends.copy()
            truncations[-1] = True
            yield Episode(
                observations=np.array(observations),
                actions=actions,
                rewards=np.array(rewards),
                terminations=ends,
                truncations=truncations,
                infos={},
                seed=index,
            )

    def expert(self):
        if not self.has_expert:
            return None
        return Expert(name="swing up and balance", policy=swing_up)


def swing_up(rows):
    height, side, speed = rows.T
    energy = speed**2 / 2 + 15 * (height - 1)
    balance = -10 * np.arctan2(side, height) - 2 * speed
    torque = np.where(height > 0.8, balance, -2 * np.sign(speed * energy))
    return np.clip(torque, -2, 2)[:, None].astype(np.float32)


def entry(**options):
    return CatalogueEntry(
        version="1.0.0", description="Swings.", license="CC0-1.0", recipe=Swings(**options)
    )


DATASETS = {
    "swings/small-v1": entry(steps=400),
    "swings/plain-v1": entry(steps=200, has_expert=False),
}
"""


@pytest.fixture(autouse=True)
def recipe_file(tmp_path, monkeypatch):
    """Put the recipe into a folder on the package's path."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "swings.py").write_text(RECIPE, "utf-8")
    path = [*orlog.datasets.worlds.__path__, str(folder)]
    monkeypatch.setattr(orlog.datasets.worlds, "__path__", path)
    yield
    sys.modules.pop("orlog.datasets.worlds.swings", None)


def test_it_is_listed():
    assert {"swings/small-v1", "pointmaze/umaze-v1"} <= catalogue().keys()
    assert "swings/small-v1" in run("list").stdout


def test_it_is_built():
    folder = orlog.build_dataset("swings/small-v1")
    dataset = orlog.load_dataset("swings/small-v1")
    assert (dataset.folder, dataset.total_steps, dataset.total_episodes) == (folder, 400, 2)
    recipe = dataset.manifest.recipe
    assert recipe is not None
    assert (recipe.name, recipe.parameters["torque"]) == ("swings", 1.0)
    assert orlog.verify_store(folder)[1] == []


def test_its_references_are_measured():
    orlog.build_dataset("swings/small-v1")
    found = measure_references(orlog.load_dataset("swings/small-v1"), episodes=3)
    assert isinstance(found, ReferenceReturns)
    assert found.expert.policy == "swing up and balance"
    assert len(found.random.returns) == len(found.expert.returns) == 3
