"""Recipes of the `words/...` datasets: good and random commands of worlds that are told in words.

In each episode a share of the actions is drawn at random from those that are possible, and the others are those of a
player that knows the whole world. Shares take turns from episode to episode. Every step keeps the log-probability of its
action and what may be done before it.

    episode i:  SeedSequence((seed, i)) -> reset seed, generator of actions; share number i % (number of shares)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.recipes.recipe import CatalogueEntry, Expert, parameters_of
from orlog.manifests.environments import make_environment


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoinRecipe:
    """Everything that decides the bytes of a dataset of `orlog/Coin-v0`.

    Attributes:
        random_shares: Share of random commands in the episodes, which take turns.
        count: Number of episodes.
        steps: Number of steps that these episodes have, for lists and progress bars.
        seed: Root of all randomness.
    """

    random_shares: tuple[float, ...]
    count: int
    steps: int
    seed: int = 0

    name = "coin"
    version = 1  # raised whenever the same parameters would give other bytes
    environment_id = "orlog/Coin-v0"

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        shares = ", ".join(f"{share:g}" for share in self.random_shares)
        return (
            "the first command of the shortest way to the coin, and a random one of those that are "
            f"understood in a share of the steps; shares of {shares} take turns from episode to "
            "episode; action_log_probs are exact for the policy of the episode"
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything besides the seed that decides the bytes, as JSON."""
        parameters = parameters_of(self)
        del parameters["steps"]  # a result of the others
        return parameters

    @property
    def environment_kwargs(self) -> dict[str, Any]:
        """Arguments of `gymnasium.make`: none."""
        return {}

    def lengths(self, limit: int) -> list[int]:
        """Most steps of each episode; how long one lasts is found by playing."""
        return [limit] * self.count

    def episodes(self, first: int, last: int) -> Iterator[Episode]:
        """Yield episodes `first` to `last - 1`.

        Raises MissingExtraError if TextWorld is not installed.
        """
        with make_environment(self.environment_id, self.environment_kwargs) as env:
            for index in range(first, last):
                yield self._episode(env, index)

    def _episode(self, env: gymnasium.Env[Any, Any], index: int) -> Episode:
        reset_seed, stream = np.random.SeedSequence((self.seed, index)).generate_state(2)
        rng = np.random.Generator(np.random.PCG64(int(stream)))
        share = self.random_shares[index % len(self.random_shares)]
        world: Any = env.unwrapped
        observation, info = env.reset(seed=int(reset_seed))
        observations, actions, rewards, log_probs = [observation], [], [], []
        infos: dict[str, list[Any]] = {"admissible_commands": [], "won": []}
        terminated = truncated = False
        while not terminated and not truncated:
            infos["admissible_commands"].append(info["admissible_commands"])
            action, log_prob = _draw(rng, world.commands, world.best_command, share)
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
            observations=observations,
            actions=actions,
            rewards=np.array(rewards),
            terminations=terminations,
            truncations=truncations,
            infos={
                "action_log_probs": np.array(log_probs),
                "admissible_commands": infos["admissible_commands"],
                "won": np.array(infos["won"]),
            },
            seed=int(reset_seed),
            metadata={"random_share": share},
        )

    def expert(self) -> Expert:
        """Return the player that knows the whole house."""
        return Expert(
            name="the shortest way to the coin", policy=_Watching(lambda world: world.best_command)
        )

    def random_policy(self) -> Expert:
        """Return the player that says any of the commands that are understood."""
        rng = np.random.Generator(np.random.PCG64(0))

        def choose(world: Any) -> str:
            commands: list[str] = world.commands
            return commands[int(rng.integers(len(commands)))]

        return Expert(
            name="uniform over the commands that are understood, drawn by PCG64 with seed 0",
            policy=_Watching(choose),
        )


class _Watching:
    """A player as a policy: it looks at environments, not at observations."""

    def __init__(self, choose: Callable[[Any], str]) -> None:
        self._choose = choose
        self._environments: Sequence[gymnasium.Env[Any, Any]] = ()

    def watch(self, environments: Sequence[gymnasium.Env[Any, Any]]) -> None:
        """Take note of the environments that the next calls are for."""
        self._environments = environments

    def __call__(self, _observations: Any) -> np.ndarray:
        """Return the commands for all environments."""
        return np.array([self._choose(env.unwrapped) for env in self._environments], object)


def _draw(
    rng: np.random.Generator, commands: list[str], best: str, share: float
) -> tuple[str, float]:
    """Return a command and its log-probability."""
    chance, uniform = rng.random(2).tolist()
    command = commands[int(len(commands) * uniform)] if chance < share else best
    return command, math.log(share / len(commands) + (1 - share) * (command == best))


DATASETS = {
    "words/coin-mixed-v1": CatalogueEntry(
        version="1.0.0",
        description=(
            "TextWorld's coin collector in words, a new house in each episode: commands of a player "
            "that knows the way and random ones, mixed, with the commands that are understood."
        ),
        license="CC0-1.0",
        recipe=CoinRecipe(random_shares=(0.2, 1.0, 1.0, 1.0), count=3000, steps=36587, seed=50),
    )
}
