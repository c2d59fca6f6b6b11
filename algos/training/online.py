"""Batches for training in an environment: each takes a step there first, then mixes both kinds of data.

    update u:  act -> step of the environment -> replay; batch = rows of the data + rows of the replay

Everything random is a function of the run's seed and a number, so that there is no generator to save:
episode e resets with a seed and explores with a generator of (seed, e), and the rows of update u are
draws of a stream at u. A simulator's state cannot be saved in general. So a run can only be saved
between episodes, and goes on from there with the next reset: the same steps follow as if it had never
stopped, if `reset(seed=..)` determines all that follows, as Gymnasium asks of environments.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from orlog.algos.algorithms import ALGORITHMS, Algorithm, algorithm_forms, algorithm_name, own_errors
from orlog.algos.encoders import Observations
from orlog.algos.training.devices import batches_on
from orlog.algos.training.policy import Spaces, outside_bounds
from orlog.algos.training.replay import Replay, mixed
from orlog.algos.training.run_data import Batches, infos_of, loaded
from orlog.algos.training.runs import ONLINE_FILE, OnlineRecord, RunRecord
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import DivergedError, NotFoundError, SchemaError
from orlog.loaders.arrays import Arrays
from orlog.loaders.batch import Batch, GoalBatch, SequenceBatch
from orlog.loaders.draws import draw_uniform, stream_key
from orlog.normalize.references import Protocol

_EPISODES = 2  # purpose of the seeds; 0 and 1 are those of networks and noise
_IN_WORDS: dict[type[Any], str] = {GoalBatch: "transitions with goals", SequenceBatch: "windows of steps"}
_NOT_TAKEN = {"valid": "chunks of actions", "next_actions": "transitions with the data's next actions"}


@dataclasses.dataclass(frozen=True)
class DataSource:
    """Batches of a dataset, which can be saved after any of them.

    Attributes:
        give: Gives the batches from one on.
    """

    give: Batches

    may_save = True
    begins_trained = False

    @contextlib.contextmanager
    def batches(self, _algorithm: Algorithm, first: int) -> Iterator[Iterable[Any]]:
        """Give the batches from the first one not yet used."""
        yield self.give(first)

    def save(self, _folder: Path) -> dict[str, str]:
        """Return what a checkpoint must say of the batches: nothing."""
        return {}

    def load(self, _folder: Path, _saved: dict[str, str]) -> None:
        """Go on from a checkpoint."""

    def log(self, _first: int, _last: int) -> dict[str, Any]:
        """Return what the log says besides metrics."""
        return {}


def check_explores(kind: type[Any], config: Any, dataset: Dataset, packed: Arrays, online: OnlineRecord) -> bool:
    """Refuse an algorithm that cannot learn in an environment; return whether its batches have returns."""
    name = algorithm_name(kind)
    refused = f"{dataset.name}: {name} cannot be fine-tuned here"
    if not isinstance(dataset.action_space, gymnasium.spaces.Box):
        raise SchemaError(
            f"{refused}: fine-tuning takes continuous actions (a Box), found {dataset.action_space}. "
            "No algorithm is fine-tuned with other actions."
        )
    if infos := infos_of(kind, config):
        raise SchemaError(
            f"{refused}: it learns from infos ({', '.join(infos)}), which are not kept of the steps "
            "taken in an environment."
        )
    with_returns = _check_transitions(kind, config, dataset.name, packed)
    if not hasattr(kind, "explore") and online.noise is None:
        raise SchemaError(
            f"{name} cannot explore: its class has no explore(observations, generator); choose one "
            f"that has ({_explorers(name)}), or give a noise to add to its actions: noise=0.1."
        )
    return with_returns


def _explorers(other_than: str) -> str:
    """Return the names of the other algorithms that explore."""
    found = [
        name
        for name in ALGORITHMS
        if name != other_than and any(hasattr(form, "explore") for form in algorithm_forms(name))
    ]
    return ", ".join(found)


def _check_transitions(kind: type[Any], config: Any, dataset: str, packed: Arrays) -> bool:
    """Refuse batches that are not single transitions; return whether they have returns."""
    batch = next(iter(loaded(kind, config, packed, seed=0, start=0)))
    size = kind.loader(config)[1].get("batch_size")
    words = _IN_WORDS.get(type(batch), "")
    if isinstance(batch, Batch):
        words = "".join(one for name, one in _NOT_TAKEN.items() if getattr(batch, name) is not None)
    if words or not isinstance(batch, Batch) or type(size) is not int:
        raise SchemaError(
            f"{dataset}: {algorithm_name(kind)} learns from {words or type(batch).__name__}, and the steps "
            f"that are taken in an environment are single transitions; choose one of: {_explorers(algorithm_name(kind))}."
        )
    return batch.returns_to_go is not None


def online_record(kind: type[Any], config: Any) -> OnlineRecord | None:
    """Return how an algorithm acts that starts in the environment; None for those that do not."""
    if not getattr(kind, "ONLINE", False):
        return None
    return OnlineRecord(prior=config.prior, random_steps=config.random_steps)


class OnlineSource:
    """Batches that mix a dataset with the steps that the algorithm takes in its environment.

    Attributes:
        replay: The steps taken.
    """

    def __init__(
        self,
        kind: type[Any],
        config: Any,
        dataset: Dataset,
        packed: Arrays,
        record: RunRecord,
        protocol: Protocol,
        with_returns: bool,
    ) -> None:
        """Make room for all steps of the run; `with_returns` is what `check_explores` returned."""
        assert record.online is not None
        self._kind, self._config, self._packed = kind, config, packed
        self._record, self._online, self._protocol = record, record.online, protocol
        self._spaces, self._space = Spaces(dataset, record.device), dataset.action_space
        if protocol.max_episode_steps is None:
            raise NotFoundError(
                f"{dataset.name}: episodes of {protocol.environment_id} have no limit of steps, so a "
                "policy could stay in one for ever; record the data with a limit (max_episode_steps)."
            )
        self._with_returns = with_returns
        declared = kind.loader(config)[1]
        self._size = declared["batch_size"]
        self.replay = Replay(
            record.steps + self._online.random_steps,
            packed.obs_dim,
            packed.action_dim,
            reward_scale=record.reward_scale,
            reward_shift=record.reward_shift,
            discount=declared.get("discount", 0.99),  # that of `orlog.transitions` by default
            leaves=packed.observation_leaves,
            others=packed.others,
        )
        self._device = torch.device(record.device)
        self._key = stream_key(record.digest, record.seed, "online 1")

    @property
    def may_save(self) -> bool:
        """Whether the last step ended an episode."""
        return self.replay.finished == self.replay.count

    @property
    def begins_trained(self) -> bool:
        """Whether there is a trained policy to evaluate before the first update."""
        return self._online.run != ""

    def save(self, folder: Path) -> dict[str, str]:
        """Save the steps taken; return what a checkpoint must say of them."""
        return self.replay.save(folder / ONLINE_FILE)

    def load(self, folder: Path, saved: dict[str, str]) -> None:
        """Go on after the steps that a checkpoint names."""
        self.replay.load(folder / ONLINE_FILE, saved)

    def log(self, first: int, last: int) -> dict[str, Any]:
        """Return the mean return of the episodes that ended in the steps after `first`."""
        random = self._online.random_steps
        begin, end = random + first if first else 0, random + last
        ended = [one for at, one in zip(self.replay.ends, self.replay.returns, strict=True) if begin < at <= end]
        mean = {"online/return": float(np.mean(ended))} if ended else {}
        return {"online/steps": end, "online/episodes": len(ended), **mean}

    @contextlib.contextmanager
    def batches(self, algorithm: Algorithm, first: int) -> Iterator[Iterable[Any]]:
        """Give a batch for each update, and close the environment in the end."""
        protocol = self._protocol
        with make_environment(protocol.environment_id, protocol.environment_kwargs) as env:
            yield self._mixed(self._steps(algorithm, env), first)

    def _mixed(self, steps: Iterator[None], first: int) -> Iterator[Any]:
        size, share = self._size, self._online.prior
        replay, total = self.replay, self._packed.total_steps
        rows = size if share is None else round(size * share)
        batches = loaded(
            self._kind, self._config, self._packed, seed=self._record.seed, start=first, batch_size=max(1, rows)
        )
        prior = iter(batches_on(batches, self._packed, self._record.device))
        for update in range(first, self._record.steps):
            while replay.count < self._online.random_steps + update + 1:
                next(steps)
            drawn = draw_uniform(self._key, 2 * update * size, 2 * size).reshape(2, size)
            chosen = torch.from_numpy((drawn[0] * replay.count).astype(np.int64))
            of_data = next(prior)
            taken = self._taken(chosen if share is None else chosen[rows:])
            if share is None:
                # Every step of both is as likely as any other.
                which = torch.from_numpy(drawn[1] * (replay.count + total) < replay.count)
                yield mixed(of_data, taken, which.to(self._device))
            elif rows == 0:
                yield taken
            else:
                yield mixed(of_data, taken, None)

    def _taken(self, chosen: Tensor) -> Any:
        """Return some of the steps taken, as the algorithm learns from them."""
        batch = self.replay.batch(chosen)
        if self._with_returns:
            returns = self.replay.returns_to_go(chosen)
            batch = dataclasses.replace(batch, returns_to_go=returns)
        return batch.to(self._device)

    def _steps(self, algorithm: Algorithm, env: gymnasium.Env[Any, Any]) -> Iterator[None]:
        """Take one step of the environment each time."""
        replay, random_steps = self.replay, self._online.random_steps
        while True:
            episode = len(replay.ends)
            # Purpose and episode are told apart from the seeds of other things by the spawn key.
            words = np.random.SeedSequence((self._record.seed, _EPISODES), spawn_key=(episode,)).generate_state(2)
            generator = torch.Generator(self._device).manual_seed(int(words[1]))
            seen, _ = env.reset(seed=int(words[0]))
            observation = self._spaces.observations(seen)
            ended = False
            while not ended:
                if replay.count < random_steps:
                    action = self._random_action(generator)
                else:
                    action = self._action(algorithm, observation, generator)
                seen, reward, terminated, truncated, _ = env.step(action)
                following = self._spaces.observations(seen)
                replay.add(
                    observation,
                    action.reshape(-1),
                    float(reward),
                    following,
                    terminated=bool(terminated),
                    truncated=bool(truncated),
                )
                observation, ended = following, bool(terminated or truncated)
                self._check_step(float(reward), following)
                yield

    def _random_action(self, generator: torch.Generator) -> np.ndarray:
        space = self._space
        assert isinstance(space, gymnasium.spaces.Box)
        unit = self._drawn(torch.rand, generator)
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        action: np.ndarray = (low + unit * (high - low)).astype(space.dtype)
        return action

    def _action(self, algorithm: Any, observation: Observations, generator: torch.Generator) -> np.ndarray:
        space, noise = self._space, self._online.noise
        assert isinstance(space, gymnasium.spaces.Box)
        with own_errors(type(algorithm)):
            if noise is None:
                given = algorithm.explore(observation, generator)
            else:
                given = algorithm.act(observation)
        found = given.detach().cpu().double().numpy().reshape(space.shape)
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        name, at = self._record.algorithm, self.replay.count
        if not np.isfinite(found).all():
            raise DivergedError(
                f"the policy's action is not finite at step {at:,} of the environment.",
                step=max(0, at - self._online.random_steps),
                metric="the policy's action",
            )
        apart = outside_bounds(found, space)
        if apart.any():
            place = int(apart.argmax())
            raise SchemaError(
                f"{name} gave an action outside the action space at step {at:,} of the environment: "
                f"number {place} is {found.flat[place]:g}, and the space has {low.flat[place]:g} to "
                f"{high.flat[place]:g}; let its explore and act give actions within the bounds."
            )
        if noise is not None:
            found = found + noise * self._drawn(torch.randn, generator) * (high - low) / 2
        action: np.ndarray = found.clip(low, high).astype(space.dtype)
        return action

    def _drawn(self, draw: Callable[..., Tensor], generator: torch.Generator) -> np.ndarray:
        found: np.ndarray = (
            draw(self._space.shape, generator=generator, dtype=torch.float64, device=self._device).cpu().numpy()
        )
        return found

    def _check_step(self, reward: float, following: Observations) -> None:
        parts = following.values() if isinstance(following, dict) else [following]
        if not (np.isfinite(reward) and all(bool(torch.isfinite(one).all()) for one in parts)):
            raise SchemaError(
                f"{self._protocol.environment_id}: step {self.replay.count:,} gave an observation or a "
                "reward that is not finite, so it cannot be learned from; check the environment."
            )
