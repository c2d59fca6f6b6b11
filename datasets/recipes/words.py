"""Recipes of the `words/...` datasets: good and random actions in worlds that are told in words.

In each episode a share of the actions is drawn at random, and the others are those of a player that knows the whole
world. Shares take turns from episode to episode. Every step keeps the log-probability of its
action, and `CoinRecipe` also what may be done before it.

    episode i:  SeedSequence((seed, i)) -> reset seed, generator of actions; share number i % (number of shares)
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.environments.goto import MOTIONS
from orlog.datasets.recipes.recipe import CatalogueEntry, Expert, PlayedRecipe, Watching


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MixedRecipe(PlayedRecipe):
    """Everything that decides the bytes of a dataset, and its episodes.

    Attributes:
        random_shares: Share of random actions in the episodes, which take turns.
        count: Number of episodes.
        steps: Number of steps that these episodes have, for lists and progress bars.
        seed: Root of all randomness.
    """

    random_shares: tuple[float, ...]
    count: int
    steps: int
    seed: int = 0

    version = 1  # raised whenever the same parameters would give other bytes
    NO_BYTES = frozenset({"steps"})
    environment_id: ClassVar[str]
    choices: ClassVar[str]
    """What a random player chooses from, in words."""
    told: ClassVar[tuple[str, ...]] = ()
    """Infos of the environment that are kept, as they were before each action."""

    @property
    def shares(self) -> str:
        """The random shares in words."""
        return ", ".join(f"{share:g}" for share in self.random_shares)

    def lengths(self, limit: int) -> list[int]:
        """Most steps of each episode; how long one lasts is found by playing."""
        return [limit] * self.count

    def _draw(self, rng: np.random.Generator, world: Any, share: float) -> tuple[Any, float]:
        """Return an action and its log-probability."""
        raise NotImplementedError

    def _any_action(self, rng: np.random.Generator, world: Any) -> Any:
        """Return any of the actions."""
        raise NotImplementedError

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, index: int) -> Episode:
        """Return one episode."""
        share = self.random_shares[index % len(self.random_shares)]
        observation, info = env.reset(seed=reset_seed)
        observations, actions, rewards, log_probs = [observation], [], [], []
        infos: dict[str, list[Any]] = {name: [] for name in (*self.told, "won")}
        terminated = truncated = False
        while not terminated and not truncated:
            for name in self.told:
                infos[name].append(info[name])
            action, log_prob = self._draw(rng, env.unwrapped, share)
            observation, reward, terminated, truncated, info = env.step(action)
            observations.append(observation)
            actions.append(action)
            rewards.append(float(reward))
            log_probs.append(log_prob)
            infos["won"].append(info["won"])
        terminations = np.zeros(len(actions), np.bool_)
        truncations = np.zeros(len(actions), np.bool_)
        terminations[-1], truncations[-1] = terminated, truncated
        return Episode(
            observations=_column(observations),
            actions=_column(actions),
            rewards=np.array(rewards),
            terminations=terminations,
            truncations=truncations,
            infos={
                "action_log_probs": np.array(log_probs),
                **{name: infos[name] for name in self.told},
                "won": np.array(infos["won"]),
            },
            seed=reset_seed,
            metadata={"random_share": share},
        )

    def random_policy(self) -> Expert:
        """Return the player that takes any of the actions."""
        rng = np.random.Generator(np.random.PCG64(0))
        return Expert(
            name=f"uniform over {self.choices}, drawn by PCG64 with seed 0",
            policy=Watching(lambda env: self._any_action(rng, env.unwrapped)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoinRecipe(_MixedRecipe):
    """Everything that decides the bytes of a dataset of `orlog/Coin-v0`."""

    name = "coin"
    environment_id = "orlog/Coin-v0"
    told = ("admissible_commands",)
    choices = "the commands that are understood"

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        return (
            "the first command of the shortest way to the coin, and a random one of those that are "
            f"understood in a share of the steps; shares of {self.shares} take turns from episode to "
            "episode; action_log_probs are exact for the policy of the episode"
        )

    def expert(self) -> Expert:
        """Return the player that knows the whole house."""
        return Expert(
            name="the shortest way to the coin",
            policy=Watching(lambda env: env.unwrapped.best_command),
        )

    def _any_action(self, rng: np.random.Generator, world: Any) -> str:
        commands: list[str] = world.commands
        return commands[int(rng.integers(len(commands)))]

    def _draw(self, rng: np.random.Generator, world: Any, share: float) -> tuple[str, float]:
        commands, best = world.commands, world.best_command
        chance, uniform = rng.random(2).tolist()
        command: str = commands[int(len(commands) * uniform)] if chance < share else best
        return command, math.log(share / len(commands) + (1 - share) * (command == best))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoToRecipe(_MixedRecipe):
    """Everything that decides the bytes of a dataset of `orlog/GoTo-v0`."""

    name = "goto"
    environment_id = "orlog/GoTo-v0"
    choices = "all seven actions"

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        return (
            "BabyAI's bot, and in a share of the steps a random turn or step ahead instead; in episodes "
            f"with a share of 1 a random one of all seven actions; shares of {self.shares} take turns from "
            "episode to episode; action_log_probs are exact for the policy of the episode"
        )

    def expert(self) -> Expert:
        """Return BabyAI's bot."""
        return Expert(name="BabyAI's bot", policy=Watching(lambda env: env.unwrapped.best_action))

    def _any_action(self, rng: np.random.Generator, world: Any) -> int:
        return int(rng.integers(world.action_space.n))

    def _draw(self, rng: np.random.Generator, world: Any, share: float) -> tuple[int, float]:
        chance, uniform = rng.random(2).tolist()
        if share == 1:  # what the bot wants is not asked, since it may have become impossible
            count = int(world.action_space.n)
            return int(count * uniform), -math.log(count)
        best = world.best_action
        action = int(MOTIONS * uniform) if chance < share else best
        by_chance = share / MOTIONS * (action < MOTIONS)
        return action, math.log(by_chance + (1 - share) * (action == best))


def _column(values: list[Any]) -> Any:
    """Return the values of all steps of a space as a column of them; by key where they are dicts."""
    if isinstance(values[0], dict):
        return {key: _column([one[key] for one in values]) for key in values[0]}
    return values if isinstance(values[0], str) else np.array(values)


DATASETS = {
    "words/coin-mixed-v1": CatalogueEntry(
        version="1.0.0",
        description=(
            "TextWorld's coin collector in words, a new house in each episode: commands of a player "
            "that knows the way and random ones, mixed, with the commands that are understood."
        ),
        license="CC0-1.0",
        recipe=CoinRecipe(random_shares=(0.2, 1.0, 1.0, 1.0), count=3000, steps=36587, seed=50),
    ),
    "words/goto-mixed-v1": CatalogueEntry(
        version="1.0.0",
        description=(
            "BabyAI in a room with three objects, with places and a mission in words anew in each episode: "
            "grids, the same in words, and actions of BabyAI's bot and random ones, mixed."
        ),
        license="CC0-1.0",
        recipe=GoToRecipe(random_shares=(0.1, 0.5, 1.0), count=6000, steps=49414, seed=60),
    ),
}
