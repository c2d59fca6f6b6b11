"""Batches for training in an environment: each takes a step there first, then mixes both kinds of data.

    update u:  act -> step of the environment -> replay; batch = rows of the data + rows of the replay

A policy that learns from chunks of actions acts a whole one out before it looks again. Chunks and sums over several
steps are put together when a batch is drawn, as those of the data are: none leaves its episode, and one that reaches
beyond the last step taken has fewer steps, as at the end of an episode that was cut.

Everything random is a function of the run's seed and a number, so that there is no generator to save:
episode e resets with a seed and explores with a generator of (seed, e), and the rows of update u are
draws of a stream at u. A simulator's state cannot be saved in general. So a run can only be saved
between episodes, and goes on from there with the next reset: the same steps follow as if it had never
stopped, if `reset(seed=..)` determines all that follows, as Gymnasium asks of environments.

The steps taken are a matrix in memory, and a file that only grows:

    row   | observation | action | reward | termination | truncation | next observation |   float32

Frames and integers of observations are kept beside the matrix as they are, those of an observation and
of the next one side by side. Rewards are as the environment gave them; batches hold those that the
algorithm is trained with. The file holds the rows one after the other, each with its frames and
integers. A checkpoint names how many of them belong to it and their SHA-256, so a kill while rows are
appended loses nothing: later ones are cut off when it goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from orlog.algos.algorithms import ALGORITHMS, Algorithm, algorithm_forms, algorithm_name, own_errors
from orlog.algos.encoders import Observations
from orlog.algos.training.data import Batches, batches_on, infos_of, loaded
from orlog.algos.training.policy import Spaces, outside_bounds
from orlog.algos.training.runs import ONLINE_FILE, OnlineRecord, RunRecord
from orlog.base.files import sync
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import CheckpointError, DivergedError, NotFoundError, SchemaError
from orlog.loaders.arrays import Arrays, Leaf
from orlog.loaders.batch import Batch
from orlog.loaders.streams import draw_uniform, stream_key
from orlog.normalize.references import Protocol

Values: TypeAlias = Tensor | dict[str, Tensor]

_EPISODES = 2  # purpose of the seeds; 0 and 1 are those of networks and noise


class Replay:
    """Steps taken in an environment, in order, with room for a known number of them.

    Attributes:
        count: Steps that it holds.
        finished: Steps of episodes that have ended.
        ends: Where each ended episode ends: the number of steps up to then.
        returns: Undiscounted return of each ended episode, of rewards as the environment gave them.
    """

    def __init__(
        self,
        capacity: int,
        obs_dim: int,
        action_dim: int,
        *,
        n_steps: int = 1,
        chunk_length: int = 0,
        reward_scale: float = 1.0,
        reward_shift: float = 0.0,
        discount: float = 1.0,
        leaves: Mapping[str, Leaf] = MappingProxyType({}),
        others: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """Make room; `leaves` and `others` are those of the data's `Arrays`, whose form is kept.

        Batches sum the rewards of `n_steps`, or hold chunks of `chunk_length` actions where that is not 0.
        """
        self._span, self._in_chunks = chunk_length or n_steps, chunk_length > 0
        self._powers = torch.from_numpy(np.power(discount, np.arange(self._span + 1)).astype(np.float32))
        # The row after each step's episode; the running one goes up to the last step taken.
        self._stops = torch.full((capacity,), capacity)
        self._leaves = leaves
        self._others = {}
        for column in (leaf.column for leaf in leaves.values() if leaf.column):
            shape, dtype = others[column].shape[1:], others[column][:0].cpu().numpy().dtype
            # NumPy's zeros take no memory before they are written.
            self._others[column] = torch.from_numpy(np.zeros((capacity, 2, *shape), dtype))
        self._obs, self._numbers = obs_dim, obs_dim + action_dim
        self._rows = torch.zeros(capacity, 2 * obs_dim + action_dim + 3)
        self._scale, self._shift, self._discount = reward_scale, reward_shift, discount
        # Steps of an episode that still runs have no return yet: a bound of -infinity bounds nothing.
        self._returns = torch.full((capacity,), -torch.inf)
        self._kept = [self._rows, *self._others.values()]
        self._row_bytes = sum(tensor[:1].nbytes for tensor in self._kept)
        self._saved, self._digest = 0, hashlib.sha256()
        self.count = self.finished = 0
        self.ends: list[int] = []
        self.returns: list[float] = []

    def add(
        self,
        observation: Values,
        action: Float32[np.ndarray, " act"],
        reward: float,
        next_observation: Values,
        *,
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Append a step, whose observations are as in a batch of one.

        A task that ended was not cut, so termination goes before truncation.
        """
        ends = (reward, float(terminated), float(truncated and not terminated))
        before, after = (self._keep(seen, which) for which, seen in enumerate((observation, next_observation)))
        self._rows[self.count] = torch.from_numpy(np.concatenate([before, action, ends, after], dtype=np.float32))
        self.count += 1
        if terminated or truncated:
            self._finish()

    def _keep(self, observation: Values, which: int) -> np.ndarray:
        """Keep the frames and integers of an observation, and return its numbers."""
        numbers = [np.empty(0, np.float32)]
        for key, values in (observation if isinstance(observation, dict) else {"": observation}).items():
            leaf = self._leaves.get(key, Leaf())
            if leaf.column:
                self._others[leaf.column][self.count, which] = values[0].cpu()
            else:
                numbers.append(values.reshape(-1).cpu().numpy())
        return np.concatenate(numbers)

    def _finish(self) -> None:
        rewards = self._rows[self.finished : self.count, self._numbers]
        self.returns.append(float(rewards.double().sum()))
        total, to_go = 0.0, []
        for reward in (rewards * self._scale + self._shift).flip(0).tolist():
            total = reward + self._discount * total
            to_go.append(total)
        self._returns[self.finished : self.count] = torch.tensor(to_go[::-1])
        self._stops[self.finished : self.count] = self.count
        self.ends.append(self.count)
        self.finished = self.count

    def batch(self, chosen: Int64[Tensor, " batch"], *, with_returns: bool = False) -> Batch:
        """Return what begins at some of the steps, on request with the discounted returns to the ends of their episodes.

        These are transitions, or chunks, as `orlog.transitions` and `orlog.action_chunks` give them.
        """
        numbers = self._numbers
        stops = torch.minimum(self._stops.index_select(0, chosen).clamp(max=self.count), chosen + self._span)
        rows, last = self._rows.index_select(0, chosen), self._rows.index_select(0, stops - 1)
        places = chosen[:, None] + torch.arange(self._span)
        valid = places < stops[:, None]
        places = torch.minimum(places, stops[:, None] - 1)
        # Term by term from the last one, in float64, as the loaders sum.
        total = torch.zeros(len(chosen), dtype=torch.float64)
        rewards = (self._rows[places, numbers] * self._scale + self._shift).double()
        for reward, there in zip(reversed(rewards.unbind(1)), reversed(valid.unbind(1)), strict=True):
            total = (reward + self._discount * total) * there
        actions = rows[:, self._obs : numbers]
        if self._in_chunks:
            actions = self._rows[:, self._obs : numbers][places].masked_fill(~valid[..., None], 0)
        has_discounts = self._span > 1 or self._in_chunks or self._leaves
        return Batch(
            observations=self._observations(rows[:, : self._obs], chosen, 0),
            actions=actions,
            rewards=total.float(),
            terminations=last[:, numbers + 1],
            truncations=last[:, numbers + 2],
            next_observations=self._observations(last[:, numbers + 3 :], stops - 1, 1),
            discounts=self._powers.index_select(0, stops - chosen) if has_discounts else None,
            returns_to_go=self._returns.index_select(0, chosen) if with_returns else None,
            valid=valid if self._in_chunks else None,
        )

    def _observations(self, numbers: Tensor, chosen: Tensor, which: int) -> Any:
        """Return observations of some of the steps in the form of the data's."""
        parts = {
            key: self._others[leaf.column][chosen, which]
            if leaf.column
            else numbers[:, leaf.place].reshape(len(chosen), *leaf.shape)
            for key, leaf in self._leaves.items()
        }
        return parts.get("", parts) if self._leaves else numbers

    def save(self, path: Path) -> dict[str, str]:
        """Append the steps that the file lacks, durably; return how to find them again as text."""
        new = self._bytes(self._saved, self.count).tobytes()
        with path.open("r+b" if self._saved else "wb") as file:
            file.seek(self._saved * self._row_bytes)
            file.truncate()
            file.write(new)
        sync(path)
        self._digest.update(new)
        self._saved = self.count
        return {"online_steps": str(self.count), "online_sha256": self._digest.hexdigest()}

    def load(self, path: Path, saved: dict[str, str]) -> None:
        """Take the steps that a checkpoint names from the file, which must hold them unchanged."""
        count, data = int(saved.get("online_steps", "0")), b""
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            data = file.read(count * self._row_bytes)
        self._digest = hashlib.sha256(data)
        if count > len(self._rows) or self._digest.hexdigest() != saved.get("online_sha256"):
            raise CheckpointError(
                f"{path}: it does not hold the {count:,} steps that the checkpoint names; restore the "
                "file, or run again in another folder."
            )
        read = np.frombuffer(data, np.uint8).reshape(count, self._row_bytes)
        first = 0
        for kept in self._kept:
            size, rows = kept[:1].nbytes, kept[:count].numpy()
            rows[:] = read[:, first : first + size].copy().view(rows.dtype).reshape(rows.shape)
            first += size
        ended = self._rows[:count, self._numbers + 1 : self._numbers + 3].any(1)
        for end in (torch.nonzero(ended)[:, 0] + 1).tolist():
            self.count = end
            self._finish()
        # A run that took all its steps may have left an episode; more steps begin another one.
        self._stops[self.finished : count] = count
        self.count = self._saved = self.finished = count

    def _bytes(self, first: int, last: int) -> UInt8[np.ndarray, "steps bytes"]:
        """Return the bytes of some steps, as the file holds them."""
        parts = [kept[first:last].numpy().reshape(-1).view(np.uint8) for kept in self._kept]
        sizes = [kept[:1].nbytes for kept in self._kept]
        return np.concatenate([part.reshape(-1, size) for part, size in zip(parts, sizes, strict=True)], 1)


def mixed(prior: Any, online: Any, from_online: Tensor | None) -> Any:
    """Return rows of the data (`prior`) and of the environment (`online`) as one batch.

    `from_online` says for each place whether its row is taken from `online`, where both have a row for
    each place; None puts the rows one after the other.
    """

    def join(part: Any, other: Any) -> Any:
        if isinstance(part, dict):
            return {key: join(part[key], other[key]) for key in part}
        if from_online is None:
            return torch.cat([part, other])
        return torch.where(from_online.view(-1, *[1] * (part.ndim - 1)), other, part)

    names = [field.name for field in dataclasses.fields(online)]
    there = {name: value for name in names if (value := getattr(online, name)) is not None}
    changed = {name: join(getattr(prior, name), value) for name, value in there.items()}
    return dataclasses.replace(prior, **changed)


# --- who may act


def online_record(kind: type[Any], config: Any) -> OnlineRecord | None:
    """Return how an algorithm acts that starts in the environment; None for those that do not."""
    if not getattr(kind, "ONLINE", False):
        return None
    return OnlineRecord(prior=config.prior, random_steps=config.random_steps)


def check_explores(kind: type[Any], config: Any, dataset: Dataset, packed: Arrays, online: OnlineRecord) -> Batch:
    """Refuse an algorithm that cannot learn in an environment; return a batch of the data as it learns from."""
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
    explorers = [choice for choice in ALGORITHMS if any(hasattr(form, "explore") for form in algorithm_forms(choice))]
    others = ", ".join(explorer for explorer in explorers if explorer != name)
    batch = next(iter(loaded(kind, config, packed, seed=0, start=0)))
    is_sized = type(kind.loader(config)[1].get("batch_size")) is int
    if not isinstance(batch, Batch) or batch.next_actions is not None or not is_sized:
        words = "the next actions of the data" if is_sized else "other batches"
        raise SchemaError(
            f"{refused}: it learns from {words if isinstance(batch, Batch) else type(batch).__name__}, and the steps that "
            f"are taken in an environment give transitions and chunks of actions; choose one of: {others}."
        )
    if not hasattr(kind, "explore") and (online.noise is None or batch.valid is not None):
        noise = "" if batch.valid is not None else ", or give a noise to add to its actions: noise=0.1"
        raise SchemaError(
            f"{name} cannot explore: its class has no explore(observations, generator); choose one "
            f"that has ({others}){noise}."
        )
    return batch


# --- sources of batches


class DataSource:
    """Batches of a dataset, which can be saved after any of them."""

    may_save = True
    begins_trained = False

    def __init__(self, give: Batches) -> None:
        """Take what gives the batches from the one of a number on."""
        self._give = give

    @contextlib.contextmanager
    def batches(self, _algorithm: Algorithm, first: int) -> Iterator[Iterable[Any]]:
        """Give the batches from the first one not yet used."""
        yield self._give(first)

    def save(self, _folder: Path) -> dict[str, str]:
        """Return what a checkpoint must say of the batches: nothing."""
        return {}

    def load(self, _folder: Path, _saved: dict[str, str]) -> None:
        """Go on from a checkpoint."""

    def log(self, _first: int, _last: int) -> dict[str, Any]:
        """Return what the log says besides metrics."""
        return {}


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
        like: Batch,
    ) -> None:
        """Make room for all steps of the run; `like` is what `check_explores` returned."""
        assert record.online is not None
        assert isinstance(dataset.action_space, gymnasium.spaces.Box)
        self._kind, self._config, self._packed = kind, config, packed
        self._record, self._online, self._protocol = record, record.online, protocol
        self._spaces, self._space = Spaces(dataset, record.device), dataset.action_space
        self._low, self._high = (bound.astype(np.float64) for bound in (self._space.low, self._space.high))
        if protocol.max_episode_steps is None:
            raise NotFoundError(
                f"{dataset.name}: episodes of {protocol.environment_id} have no limit of steps, so a "
                "policy could stay in one for ever; record the data with a limit (max_episode_steps)."
            )
        self._with_returns = like.returns_to_go is not None
        self._chunk_length = 0 if like.valid is None else like.valid.shape[1]
        self._before = self._online.random_steps + self._online.warm_up_steps
        declared = kind.loader(config)[1]
        self._size = declared["batch_size"]
        self.replay = Replay(
            record.steps + self._before,
            packed.obs_dim,
            packed.action_dim,
            n_steps=declared.get("n_steps", 1),
            chunk_length=self._chunk_length,
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
        begin, end = self._before + first if first else 0, self._before + last
        ended = [total for at, total in zip(self.replay.ends, self.replay.returns, strict=True) if begin < at <= end]
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
        prior = iter(batches_on(batches, self._record.device, self._packed.rows.device.type))
        for update in range(first, self._record.steps):
            while replay.count < self._before + update + 1:
                next(steps)
            drawn = draw_uniform(self._key, 2 * update * size, 2 * size).reshape(2, size)
            chosen = torch.from_numpy((drawn[0] * replay.count).astype(np.int64))
            of_data = next(prior)
            chosen = chosen if share is None else chosen[rows:]
            taken = replay.batch(chosen, with_returns=self._with_returns).to(self._device)
            if share is None:
                # Every step of both is as likely as any other.
                which = torch.from_numpy(drawn[1] * (replay.count + total) < replay.count)
                yield mixed(of_data, taken, which.to(self._device))
            else:
                yield mixed(of_data, taken, None) if rows else taken

    def _steps(self, algorithm: Algorithm, env: gymnasium.Env[Any, Any]) -> Iterator[None]:
        replay = self.replay
        while True:
            # Purpose and episode are told apart from the seeds of other things by the spawn key.
            root = np.random.SeedSequence((self._record.seed, _EPISODES), spawn_key=(len(replay.ends),))
            words = root.generate_state(2)
            generator = torch.Generator(self._device).manual_seed(int(words[1]))
            seen, _ = env.reset(seed=int(words[0]))
            observation = self._spaces.observations(seen)
            ended, planned = False, list[np.ndarray]()
            while not ended:
                if replay.count < self._online.random_steps:
                    action = self._low + self._drawn(torch.rand, generator) * (self._high - self._low)
                else:
                    planned = planned or [*self._plan(algorithm, observation, generator)]
                    action = self._taken(planned.pop(0), generator)
                action = action.astype(self._space.dtype)
                seen, reward, terminated, truncated, _ = env.step(action)
                following, ended = self._spaces.observations(seen), bool(terminated or truncated)
                ends = {"terminated": bool(terminated), "truncated": bool(truncated)}
                replay.add(observation, action.reshape(-1), float(reward), following, **ends)
                observation = following
                parts = following.values() if isinstance(following, dict) else [following]
                if not (np.isfinite(float(reward)) and all(bool(torch.isfinite(part).all()) for part in parts)):
                    raise SchemaError(
                        f"{self._protocol.environment_id}: step {replay.count:,} gave an observation or a "
                        "reward that is not finite, so it cannot be learned from; check the environment."
                    )
                yield

    def _plan(self, algorithm: Any, observation: Observations, generator: torch.Generator) -> np.ndarray:
        """Return the policy's next actions: those of a chunk, or one."""
        low, high, at = self._low, self._high, self.replay.count
        explores = self._online.noise is None or self._chunk_length
        with own_errors(type(algorithm)):
            given = algorithm.explore(observation, generator) if explores else algorithm.act(observation)
        planned: np.ndarray = given.detach().cpu().double().numpy()
        shape = (self._chunk_length or 1, *low.shape)
        if planned.size != math.prod(shape):
            raise SchemaError(
                f"{self._record.algorithm} gave actions of shape {[*planned.shape]} for one observation, where {shape[0]} "
                f"of shape {[*low.shape]} were expected; let its explore and act give as many as it learns from."
            )
        planned = planned.reshape(shape)
        if not np.isfinite(planned).all():
            raise DivergedError(
                f"the policy's action is not finite at step {at:,} of the environment.",
                step=max(0, at - self._before),
                metric="the policy's action",
            )
        apart = outside_bounds(planned, self._space)
        if apart.any():
            place = int(apart.argmax()) % low.size
            raise SchemaError(
                f"{self._record.algorithm} gave an action outside the action space at step {at:,} of the environment: "
                f"number {place} is {planned.flat[apart.argmax()]:g}, and the space has {low.flat[place]:g} to "
                f"{high.flat[place]:g}; let its explore and act give actions within the bounds."
            )
        return planned

    def _taken(self, action: np.ndarray, generator: torch.Generator) -> np.ndarray:
        noise, low, high = self._online.noise, self._low, self._high
        if noise is not None:
            action = action + noise * self._drawn(torch.randn, generator) * (high - low) / 2
        return np.asarray(action.clip(low, high))

    def _drawn(self, draw: Callable[..., Tensor], generator: torch.Generator) -> np.ndarray:
        numbers = draw(self._space.shape, generator=generator, dtype=torch.float64, device=self._device)
        return numbers.cpu().numpy()
