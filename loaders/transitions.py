"""Random transitions in an endless stream of batches: from memory, straight from shards, by weights or priorities.

    row       r0   r1   r2   final | r0 ..           three steps ahead of r0: the final observation
               |---------------->|                   of r1: the final observation too, after two

    rewards = sum of discount^k * reward of step k, k = 0 .. steps - 1        (summed once, float64)
    value   = rewards + discount^steps * (1 - terminations) * V(next_observations)

If an episode ends sooner, the steps that it has left are used. Sutton 1988, "Learning to predict by
the methods of temporal differences".

Stacks of image frames are built on the fly, each frame is stored once:

    slot         0    1    2    3    4         stack = 4, step s of an episode that begins at b:
    row of       b    b    b   s=b  s+1        before its beginning, its first frame is repeated
                 |-- observation ---|
                      |- next observation -|   one gather of stack + 1 frames, two views of it

For n steps the next observation ends at row s + n, or at the episode's final observation, and is
gathered separately. Frame stacks are from DQN (Mnih et al. 2015, "Human-level control through deep
reinforcement learning"), n steps with them from Rainbow (Hessel et al. 2018, "Rainbow: Combining
improvements in deep reinforcement learning").
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from jaxtyping import Float32, Float64, Int64

from orlog.datasets.reading.opening import Given, as_dataset
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, Leaf, as_arrays
from orlog.loaders.batch import Batch
from orlog.loaders.gathering import gather_rows
from orlog.loaders.priorities import Priorities, PrioritizedTransitions
from orlog.loaders.statistics import returns_to_go as returns_of
from orlog.loaders.statistics import sum_rewards
from orlog.loaders.streaming import BUFFER_BYTES, StreamedBatches
from orlog.loaders.streams import Batches, Sampler, StreamOptions, as_integer, as_steps, takes_stream_options
from orlog.loaders.tensors import Tensor, torch
from orlog.loaders.weights import weighted, weighted_by
from orlog.manifests.names import counted, did_you_mean

LOG_PROBS = "action_log_probs"


class TransitionSampler(Sampler):
    """Chooses steps and gathers them with the outcome of the next `n_steps`.

    A single step of flat vectors is one row of memory, and chosen by its number. Else two rows are chosen, that of the
    step and that of its next observation.

    Attributes:
        n_steps: Steps that an item spans.
    """

    def __init__(
        self,
        arrays: Arrays,
        n_steps: int = 1,
        discount: float = 0.99,
        *,
        next_actions: bool = False,
        returns_to_go: bool = False,
        discounts: bool = False,
    ) -> None:
        """Sum rewards and returns where they are asked for, which takes 4 bytes a step each.

        `discounts` gives them with single steps of flat vectors too.
        """
        super().__init__(arrays)
        self.n_steps = n_steps = as_steps("n_steps", n_steps, discount)
        self.kind = f"transitions 1 n_steps={n_steps}" if n_steps > 1 else "transitions 1"
        device = arrays.rows.device
        self._is_row = n_steps == 1 and arrays.is_flat and not discounts
        self._with_actions = next_actions
        self._returns = returns_of(arrays, discount) if returns_to_go else None
        self._final_rows = torch.from_numpy(arrays.final_rows).to(device) if next_actions else None
        self._steps = min(n_steps, int(arrays.lengths.max()))
        if not self._is_row:
            self._sums = sum_rewards(arrays, self._steps, discount).to(device)
            powers = np.power(discount, np.arange(self._steps + 1)).astype(np.float32)
            self._discounts = torch.from_numpy(powers).to(device)

    @functools.cached_property
    def _view(self) -> Tensor:
        """What is gathered for an item that is one row."""
        arrays = self.arrays
        # Next actions follow the next observation in memory: zeros after an episode's last step.
        return arrays.windows(1, arrays.obs_dim + self._with_actions * arrays.action_dim)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Tensor:
        """Return the row of each item's step, and that of its next observation where it needs two."""
        return self.items_of(self.arrays.choose_steps(uniform))

    def items_of(self, steps: Int64[np.ndarray, " items"]) -> Tensor:
        """Return what `choose` would return for some steps."""
        if self._is_row:
            return torch.from_numpy(self.arrays.step_table.take(steps))
        return self.pairs_of(steps)

    def pairs_of(self, steps: Int64[np.ndarray, " items"]) -> Int64[Tensor, "items two"]:
        """Return the row of each step, and that of its next observation."""
        arrays = self.arrays
        items = np.empty((2, len(steps)), np.int64)  # so that each of the two is contiguous
        rows, next_rows = items
        rows[:] = arrays.step_table.take(steps)
        np.minimum(rows + self._steps, np.take(arrays.final_rows, rows - steps), out=next_rows)
        return torch.from_numpy(items).T

    def gather(self, chosen: Tensor) -> Batch:
        """Return the transitions of some items."""
        arrays = self.arrays
        obs, act = arrays.obs_dim, arrays.action_dim
        if self._is_row:  # views of one gathered block
            sizes = [obs, act, 3, obs, *([act] if self._with_actions else [])]
            now, actions, ends, later, *following = gather_rows(self._view, chosen).split_with_sizes(sizes, 1)
            rewards, terminations, truncations = ends.unbind(1)
            more = self.further(chosen, chosen + 1, following)
            return Batch(now, actions, rewards, terminations, truncations, later, **more)
        rows, next_rows = chosen.unbind(1)
        rewards, discounts = self.sums_and_discounts(chosen)
        seen: Any
        following_seen: Any
        if arrays.is_flat:
            seen, actions = gather_rows(arrays.rows[:, : obs + act], rows).split_with_sizes([obs, act], 1)
            after = gather_rows(arrays.flags_and_next_observations, next_rows - 1)
            terminations, truncations, following_seen = after[:, 0], after[:, 1], after[:, 2:]
        else:
            terminations, truncations = self.flags(chosen).unbind(1)
            seen, actions = arrays.observations(rows), arrays.actions(rows)
            following_seen = arrays.observations(next_rows)
        more = self.further(rows, next_rows)
        return Batch(seen, actions, rewards, terminations, truncations, following_seen, discounts, **more)

    def further(self, rows: Tensor, next_rows: Tensor, following: Sequence[Tensor] = ()) -> dict[str, Any]:
        """Return the fields that were asked for besides; `following` are next actions, where they are gathered."""
        more: dict[str, Any] = {}
        if self._with_actions:
            assert self._final_rows is not None
            next_rows = next_rows.contiguous()
            # Those of final observations are zeros.
            more["next_actions"] = following[0] if following else self.arrays.actions(next_rows)
            ends_at = self._final_rows[torch.searchsorted(self._final_rows, next_rows)]
            more["has_next_action"] = (ends_at != next_rows).float()
        if self._returns is not None:
            more["returns_to_go"] = self._returns.index_select(0, rows)
        return more

    def sums_and_discounts(
        self, items: Int64[Tensor, "items two"]
    ) -> tuple[Float32[Tensor, " items"], Float32[Tensor, " items"]]:
        """Return the discounted sums of rewards, and the discounts of the value after them."""
        rows, next_rows = items.unbind(1)
        sums = gather_rows(self._sums[:, None], rows).squeeze(1)
        return sums, self._discounts.index_select(0, next_rows - rows)

    def flags(self, items: Int64[Tensor, "items two"]) -> Float32[Tensor, "items two"]:
        """Return whether the task ended, or the episode was cut, at the last step of each item."""
        return self.arrays.rows[:, -2:].index_select(0, items[:, 1] - 1)


class FrameSampler(Sampler):
    """Chooses steps and gathers them with the frames before them."""

    def __init__(
        self,
        arrays: Arrays,
        stack: int,
        *,
        keys: Sequence[str] | None = None,
        n_steps: int = 1,
        discount: float = 0.99,
        **more: bool,
    ) -> None:
        """Find what to stack, and sum the rewards; `more` is as in `TransitionSampler`."""
        super().__init__(arrays)
        stack = as_integer("stacks", stack, 1)
        self._transitions = TransitionSampler(arrays, n_steps, discount, **more)
        self.kind = f"frames 1 stack={stack}" + (f" n_steps={n_steps}" if n_steps > 1 else "")
        self._stacked = _find_leaves(arrays, keys)
        plain = {key: leaf for key, leaf in arrays.observation_leaves.items() if key not in self._stacked}
        self._plain = dataclasses.replace(arrays, observation_leaves=plain) if plain else None
        self._slots = torch.arange(1 - stack, 2, device=arrays.rows.device)
        self._is_one_step = n_steps == 1

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[Tensor, "items three"]:
        """Return for each item the rows of its step, its next observation, and its first frame."""
        steps = self.arrays.choose_steps(uniform)
        items = self._transitions.pairs_of(steps)
        first_rows = np.take(self.arrays.first_rows, items[:, 0].numpy() - steps)
        # So that each of the three is contiguous in memory.
        return torch.cat([items.T, torch.from_numpy(first_rows)[None]]).T

    def gather(self, chosen: Int64[Tensor, "items three"]) -> Batch:
        """Return the transitions of some rows, frames stacked."""
        arrays, pairs = self.arrays, chosen[:, :2]
        rows, later, first_rows = chosen.unbind(1)
        first_rows = first_rows[:, None]
        stack_rows = torch.maximum(rows[:, None] + self._slots, first_rows)
        observations: dict[str, Any] = {}
        following: dict[str, Any] = {}
        for key, leaf in self._stacked.items():
            if self._is_one_step:  # the next stack shares all but one of its frames
                frames = arrays.leaf(leaf, stack_rows)
                observations[key], following[key] = frames[:, :-1], frames[:, 1:]
                continue
            behind_rows = torch.maximum(later[:, None] + self._slots[:-1], first_rows)
            for stacks, rows_of in ((observations, stack_rows[:, :-1]), (following, behind_rows)):
                stacks[key] = arrays.leaf(leaf, rows_of)
        if self._plain is not None:
            observations |= self._plain.observations(rows)
            following |= self._plain.observations(later)
        rewards, discounts = self._transitions.sums_and_discounts(pairs)
        terminations, truncations = self._transitions.flags(pairs).unbind(1)
        return Batch(
            observations.get("", observations),
            arrays.actions(rows),
            rewards,
            terminations,
            truncations,
            following.get("", following),
            discounts,
            **self._transitions.further(rows, later),
        )


def _find_leaves(arrays: Arrays, keys: Sequence[str] | None) -> dict[str, Leaf]:
    """Return what is stacked: the named parts of observations, or all images."""
    leaves, others = arrays.observation_leaves, arrays.others
    name = arrays.name or "this dataset"
    if keys is None:
        kept = {key: others[leaf.column] for key, leaf in leaves.items() if leaf.column}
        images = {key: leaves[key] for key, tensor in kept.items() if tensor.dtype == torch.uint8 and tensor.ndim >= 3}
        if not images:
            there = f"its parts are {sorted(leaves)}" if leaves else "they are one flat vector"
            raise SchemaError(
                f"{name}: no observation is an image (uint8 of two or three dimensions), {there}; "
                + ("name the parts to stack with stacked=, or" if leaves else "stack with orlog.sequences, or")
                + " use orlog.transitions."
            )
        return images
    if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
        raise TypeError(f"stacked must be a list of names of parts of an observation, found {keys!r:.80}.")
    if not keys:
        raise ValueError("stacked is empty; name the parts to stack, or leave it out to stack all images.")
    for key in keys:
        if key not in leaves:
            known = [part for part in leaves if part]
            there = "are one tensor, so leave stacked out" if leaves else "are one flat vector"
            if known:
                there = f"have the parts {', '.join(known)}"
            end = did_you_mean(key, known) or "."
            raise ValueError(f"{name}: observations {there}, found {key!r} in stacked{end}")
    return {key: leaves[key] for key in keys}


class TransitionOptions(StreamOptions, total=False):
    """Arguments of `orlog.transitions` that choose how steps are drawn and read, beside those of every kind.

    Attributes:
        stacks: Frames in an observation: images become `[batch, stacks, height, width, channels]`, the newest last. A
            stack never reaches into another episode: before its beginning the first frame is repeated. Over single
            steps, observations and next observations share the memory of their common frames, so copy them before
            changing one in place. (DQN: Mnih and others 2015.)
        stacked: Which parts of an observation to stack, all images by default. The part of a space without
            keys has the empty key.
        weights: Steps are drawn in proportion to these: a number >= 0 for each step, or the name of a column that
            holds one, such as "infos/w", or "episodes/w" with one for each episode, which all of its steps get. By default all are as likely, unless the dataset is a
            weighted mixture (`orlog.combine_datasets`), whose weights these multiply.
        prioritized: Draw by priorities, which training updates: True, or a dict of `Priorities`.
        stream: Read straight from the shards as it goes, each step once an epoch, in bounded memory: for datasets
            too large for RAM and for a memory map.
        buffer_bytes: With `stream`, memory for decoded steps, 256 MiB by default. Half of it is mixed at a time;
            another value gives another stream.
        allow_non_finite: With `stream`, take NaN and infinity as they are.
    """

    stacks: int
    stacked: Sequence[str] | None
    weights: np.ndarray | str | None
    prioritized: bool | Priorities
    stream: bool
    buffer_bytes: int
    allow_non_finite: bool


_DEFAULTS: dict[str, tuple[str, Any]] = {
    "stacks": ("int | None", None),
    "stacked": ("Sequence[str] | None", None),
    "weights": ("np.ndarray | str | None", None),
    "prioritized": ("bool | Priorities", False),
    "stream": ("bool", False),
    "buffer_bytes": ("int", BUFFER_BYTES),
    "allow_non_finite": ("bool", False),
}


@functools.partial(takes_stream_options, more=_DEFAULTS)
def transitions(
    data: Given | Arrays,
    batch_size: int = 256,
    *,
    seed: int,
    n_steps: int = 1,
    discount: float = 0.99,
    next_actions: bool = False,
    returns_to_go: bool = False,
    **options: Unpack[TransitionOptions],
) -> Any:
    """Return an endless stream of random transitions, with replacement: batches are `orlog.loaders.batch.Batch`.

    Every step is as likely as any other, unless `weights`, priorities or a weighted mixture say otherwise.
    `TransitionOptions` and `StreamOptions` describe the other arguments, and what is raised.

    Args:
        data: What to sample from; with `stream` a dataset, its name or folder.
        batch_size: Transitions in a batch.
        seed: Seed of the stream.
        n_steps: Steps that an item spans, or as many as its episode has left.
        discount: Discount of a step, for `discounts`, sums of rewards and returns.
        next_actions: Also return the actions that the data took after the last of the steps.
        returns_to_go: Also return the return that the data reached from there.
        options: See `TransitionOptions`.

    Raises:
        SchemaError: no image to stack; with `stream`, a weighted mixture.
        ValueError: a weight for another number of steps; arguments that do not go together.
    """
    rest: dict[str, Any] = dict(options)
    how = {name: rest.pop(name, default) for name, (_, default) in _DEFAULTS.items()}
    prioritized, stream, stacks = how["prioritized"], how["stream"], how["stacks"]
    _check_together(how)

    settings: dict[str, Any] = {"n_steps": as_steps("n_steps", n_steps, discount), "discount": discount}
    settings |= {"next_actions": next_actions, "returns_to_go": returns_to_go}
    sampler_of: Callable[[Arrays], Any] = functools.partial(
        TransitionSampler, **settings, discounts=prioritized is not False
    )
    if stacks is not None:
        sampler_of = functools.partial(FrameSampler, stack=stacks, keys=how["stacked"], **settings)
    place = {"batch_size": batch_size, "seed": seed, **rest}
    if stream:
        whole: Any = data  # arrays are refused
        return StreamedBatches(
            as_dataset(whole),
            sampler_of=sampler_of,
            n_steps=n_steps,
            buffer_bytes=how["buffer_bytes"],
            allow_non_finite=how["allow_non_finite"],
            **place,
        )
    weights, infos = how["weights"], rest.get("infos", ())
    arrays = weighted_by(data, weights, infos) if isinstance(weights, str) else as_arrays(data, infos)
    if weights is not None and not isinstance(weights, str):
        arrays = weighted(arrays, weights)
    if prioritized is False:
        return Batches(sampler_of(arrays), arrays.digest, **place)
    priorities = {} if prioritized is True else prioritized
    return PrioritizedTransitions(sampler_of(arrays), **priorities, **place)


def _check_together(how: Mapping[str, Any]) -> None:
    given = {name for name, (_, default) in _DEFAULTS.items() if how[name] is not default}
    for option, other in (("stream", "weights"), ("stream", "prioritized"), ("stacks", "prioritized")):
        if {option, other} <= given:
            raise ValueError(f"{option} and {other} cannot be given together; leave one of them out.")
    if "stacked" in given and "stacks" not in given:
        raise ValueError("stacked names what to stack: give stacks, the number of frames, too.")
    only = given & {"buffer_bytes", "allow_non_finite"}
    if only and "stream" not in given:
        raise ValueError(f"{min(only)} is for stream=True; leave it out, or give stream=True.")


@takes_stream_options
def logged_choices(
    data: Given | Arrays, batch_size: int = 256, *, seed: int, **stream: Unpack[StreamOptions]
) -> Batches[Batch]:
    """Return the endless stream of `transitions` of episodes with one step each, with their log-probabilities.

    These are in `batch.infos["action_log_probs"]`.

    All arguments are those of `transitions`.
    """
    names = tuple(dict.fromkeys([*stream.get("infos", ()), LOG_PROBS]))
    arrays = as_arrays(data, names)
    where = arrays.name or "these arrays"
    longer = arrays.lengths > 1
    if longer.any():
        episode = int(longer.argmax())
        raise SchemaError(
            f"{where}: choices are episodes of one step, and episode {episode} has "
            f"{counted(int(arrays.lengths[episode]), 'step')}; learn from its transitions (cql, iql), or take the "
            "episodes of one step: ds.filter_episodes('lengths == 1')."
        )
    infos = arrays.infos
    assert infos is not None  # asked for above
    logs = infos.leaf(infos.observation_leaves[LOG_PROBS], torch.from_numpy(arrays.step_rows()))
    wrong = ~(logs.isfinite() & (logs <= 1e-6))
    if wrong.any():
        episode = int(wrong.reshape(len(wrong), -1).any(1).int().argmax())
        raise SchemaError(
            f"{where}: {LOG_PROBS} of episode {episode}, step 0 is {float(logs[episode]):g}, which is no "
            "logarithm of a probability; record the data again with action_log_probs."
        )
    stream["infos"] = names
    made: Batches[Batch] = transitions(arrays, batch_size, seed=seed, **stream)
    return made
