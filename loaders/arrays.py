"""A dataset's transitions as one float32 matrix in memory, with nothing stored twice.

    row of step t of episode e  =  t + e           columns: | observation | action | r | term | trunc |
                                                            |<--- width -------------------------->|
    the row after an episode's last step holds its final observation and zeros

A transition is `width + observation` numbers in a row of memory: its own row and the observation at
the start of the next. One gather over an overlapping view therefore gives a whole batch, with half
of the memory that stored next observations would take.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float32, Float64, Int64

from orlog.datasets.columns.episode import fields_summary
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given, as_dataset
from orlog.errors import SchemaError
from orlog.loaders.choices import AliasTable, Mixture, StepTable, choose_items
from orlog.loaders.filling import Layout, fill_matrix, fill_other, layout_of, not_finite, warn_of_outside
from orlog.loaders.filling import Leaf as Leaf
from orlog.loaders.gathering import gather_rows
from orlog.loaders.infos import check_names, info_layout
from orlog.loaders.tensors import Tensor, torch
from orlog.loaders.videos import without_videos
from orlog.manifests.names import counted

ArraysT = TypeVar("ArraysT", bound="Arrays")

MISSING_FINALS = "episodes/final_observation_missing"
_BLOCK_BYTES = 2**25  # read at a time: decoded data then take little memory besides the arrays


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Arrays:
    """The steps of a dataset in memory, one row each, and one for each final observation.

    Attributes:
        rows: The matrix drawn above.
        lengths: Steps of each episode, 1 or more.
        obs_dim: Numbers of observations in the matrix, flattened.
        action_dim: Numbers of actions in the matrix, flattened.
        mixture: How steps are weighted; None if all are equally likely.
        name: Name of the dataset, for messages.
        digest: Its digest.
        others: Columns that are not packed as float32 (images, integers), by name, aligned to
            the same rows; those of steps hold zeros at final observations. Frames of videos stand there as
            what decodes them (`loaders/videos.py`).
        texts: Distinct texts of each column in `others` that holds texts, in the order in which
            they first occur; the column's numbers are places in this list.
        observation_leaves: How observations are given if not as one flat vector: by key, the
            column in `others`, or place and shape in the matrix. The key is empty if the
            observation space is a single leaf.
        parts: If observations are given as one flat vector, where each part lies, by key.
        missing_finals: Episodes whose final observation was never recorded; zeros stand for it.
            All of them end by a termination, so the value after it is never needed.
        infos: Other columns of the same rows, if any were read: arrays that have these as their
            observations, by name, zeros at final observations, and nothing else.
        ends: Numbers after the actions in a row of the matrix: 3, or 0 in `infos`.
        team: Which agents they are of, if they were loaded for `orlog.agent_transitions`
            (`loaders/teams.py`).
        longest: Steps of the longest episode of the dataset, where these are a part of it; else 0.
    """

    rows: Float32[Tensor, "steps_and_episodes width"]
    lengths: Int64[np.ndarray, " episodes"]
    obs_dim: int
    action_dim: int
    mixture: Mixture | AliasTable | None = None
    name: str = ""
    digest: str = ""
    others: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    texts: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    observation_leaves: Mapping[str, Leaf] = dataclasses.field(default_factory=dict)
    parts: Mapping[str, Leaf] = dataclasses.field(default_factory=dict)
    missing_finals: tuple[int, ...] = ()
    infos: Arrays | None = None
    ends: int = 3
    team: Any = None
    longest: int = 0

    def __repr__(self) -> str:
        """Return name, digest, totals and fields, with shapes and dtypes in place of values."""
        fields = {
            "name": self.name,
            "digest": self.digest[:19],
            "episodes": len(self.lengths),
            "rows": self.rows,
            "obs_dim": self.obs_dim,
            "action_dim": self.action_dim,
            "others": self.others,
        }
        if self.infos is not None:
            fields["infos"] = [*self.infos.observation_leaves]
        return fields_summary(type(self).__name__, fields)

    def __post_init__(self) -> None:
        """Check the sizes, since gathers address memory by them.

        Raises ValueError if the number of rows does not fit the episodes.
        """
        width = self.obs_dim + self.action_dim + self.ends
        expected = int(self.lengths.sum()) + len(self.lengths), width
        rows = self.rows
        if rows.dtype != torch.float32 or rows.shape != expected or not rows.is_contiguous():
            raise ValueError(
                f"{self.name}: expected contiguous float32 rows of shape {expected} for "
                f"{len(self.lengths)} episodes of {expected[0] - len(self.lengths)} steps, found "
                f"{rows.dtype} {tuple(rows.shape)}."
            )
        if not (len(self.lengths) and (self.lengths > 0).all()):
            raise ValueError(f"{self.name}: expected one or more episodes of 1 or more steps.")

    @property
    def is_flat(self) -> bool:
        """Whether observations and actions are flat vectors of float32."""
        return not self.observation_leaves and not self.others

    @property
    def transitions(self) -> Float32[Tensor, "steps_and_episodes width_and_obs"]:
        """The overlapping view; its last row is left out, since nothing follows it."""
        return self.windows(1, self.obs_dim)

    @property
    def flags_and_next_observations(self) -> Float32[Tensor, "steps_and_episodes two_and_obs"]:
        """The end flags of each row and the observation of the next row, adjacent in memory."""
        count, width = self.rows.shape
        return self.rows.reshape(-1)[width - 2 :].as_strided((count - 1, 2 + self.obs_dim), (width, 1))

    def windows(self, length: int, more: int = 0) -> Float32[Tensor, "windows numbers"]:
        """Return the overlapping view of `length` rows each, and `more` numbers of the next row."""
        count, width = self.rows.shape
        kept = max(0, count - length + (not more))
        return self.rows.as_strided((kept, length * width + more), (width, 1))

    @property
    def draws(self) -> int:
        """Uniform numbers that choose a step."""
        return 1 if self.mixture is None else 2

    @functools.cached_property
    def step_table(self) -> StepTable:
        """The table that finds the rows of steps."""
        return StepTable(self.lengths)

    @functools.cached_property
    def total_steps(self) -> int:
        """Steps of all episodes."""
        return int(self.lengths.sum())

    @functools.cached_property
    def first_rows(self) -> Int64[np.ndarray, " episodes"]:
        """Row of each episode's first step."""
        rows: np.ndarray = self.final_rows - self.lengths
        return rows

    @property
    def empty_row(self) -> int:
        """A row that is no step: what is a column of steps holds zeros there."""
        return len(self.rows) - 1

    @functools.cached_property
    def final_rows(self) -> Int64[np.ndarray, " episodes"]:
        """Row of each episode's final observation."""
        rows: np.ndarray = np.cumsum(self.lengths + 1) - 1
        return rows

    def choose_steps(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[np.ndarray, " items"]:
        """Return a random step for each row of uniform numbers, weighted by the mixture if any."""
        return choose_items(self.mixture, self.total_steps, uniform)

    def step_rows(self, first: int = 0, last: int | None = None) -> Int64[np.ndarray, " steps"]:
        """Return the rows of all steps, or of steps `first` to `last - 1`: 8 bytes a step."""
        return self.step_table.take(np.arange(first, self.total_steps if last is None else last))

    @property
    def columns(self) -> dict[str, slice]:
        """Places of the packed columns in a row of the matrix."""
        ends = [self.obs_dim, self.action_dim, 1, 1, 1]
        stops = np.cumsum(ends).tolist()
        names = ("observations", "actions", "rewards", "terminations", "truncations")
        return {name: slice(stop - size, stop) for name, size, stop in zip(names, ends, stops, strict=True)}

    def observations(self, rows: Int64[Tensor, "*items"]) -> Tensor | dict[str, Tensor]:
        """Return the observations of rows of any shape, `[*items, ...]`: flat float32, or a tensor by key."""
        if not self.observation_leaves:
            return _gather(self.rows[:, : self.obs_dim], rows)
        parts = {key: self.leaf(leaf, rows) for key, leaf in self.observation_leaves.items()}
        return parts.get("", parts)

    def actions(self, rows: Int64[Tensor, "*items"]) -> Tensor:
        """Return the actions of rows of any shape, `[*items, ...]`: flat float32, or integers."""
        return _gather(self.others.get("actions", self.rows[:, self.obs_dim : self.obs_dim + self.action_dim]), rows)

    def leaf(self, leaf: Leaf, rows: Int64[Tensor, "*items"]) -> Tensor:
        """Return one part of the observations of rows of any shape, `[*items, ...]`."""
        if leaf.column:
            return _gather(self.others[leaf.column], rows)
        return _gather(self.rows[:, leaf.place], rows).reshape(*rows.shape, *leaf.shape)

    def to(self, device: torch.device | str) -> Arrays:
        """Return the same on another device; batches are gathered there."""
        return dataclasses.replace(
            self,
            rows=self.rows.to(device),
            others={name: values.to(device) for name, values in self.others.items()},
            infos=None if self.infos is None else self.infos.to(device),
        )

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        """Announce that the `with` block reads rows in order, as statistics do."""
        yield

    def observation_statistics(self) -> tuple[Float32[Tensor, " obs"], Float32[Tensor, " obs"]]:
        """Return mean and standard deviation over the observation of every step."""
        total = np.zeros(self.obs_dim)
        squares = np.zeros(self.obs_dim)
        matrix = self.rows.cpu().numpy()
        blocks = [(first, min(first + 65536, self.total_steps)) for first in range(0, self.total_steps, 65536)]
        # Two passes in blocks of float64: a sum of float32 over millions of rows would drift.
        with self.in_order():
            for block in blocks:
                total += matrix[self.step_rows(*block), : self.obs_dim].sum(0, dtype=np.float64)
            mean = total / self.total_steps
            for block in blocks:
                apart = matrix[self.step_rows(*block), : self.obs_dim] - mean
                squares += np.square(apart).sum(0)
        std = np.sqrt(squares / self.total_steps)
        return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(std.astype(np.float32))


def _gather(source: Tensor, rows: Tensor) -> Tensor:
    return gather_rows(source, rows.reshape(-1)).reshape(*rows.shape, *source.shape[1:])


def as_arrays(data: Given | Arrays, infos: Sequence[str] = ()) -> Arrays:
    """Return arrays as they are; read a dataset, or the one that a name or path names."""
    if not isinstance(data, Arrays):
        return read_arrays(as_dataset(data, "data"), infos=infos)
    wanted = check_names(infos)
    there = () if data.infos is None else tuple(data.infos.observation_leaves)
    lacking = [name for name in wanted if name not in there]
    if lacking:
        given = f"the infos {', '.join(there)}" if there else "no infos"
        raise SchemaError(
            f"{data.name or 'these arrays'}: loaded with {given}, without {lacking[0]!r}; load them "
            f"with it: orlog.load_arrays(ds, infos={tuple(dict.fromkeys([*there, *wanted]))})."
        )
    return data


def read_arrays(dataset: Dataset, *, allow_non_finite: bool = False, infos: Sequence[str] = ()) -> Arrays:
    """Read a dataset's steps into memory: floats into one float32 matrix, all else unchanged.

    Observations and actions of Box spaces with floats or small integers are packed and given as
    flat vectors. Where an observation has images (uint8 of three dimensions) or other spaces,
    observations are given by key, or as one tensor if there is only one. Discrete, MultiDiscrete
    and MultiBinary actions are integers. Texts are given as int64 places in `Arrays.texts`. With
    `allow_non_finite`, NaN and infinity are taken as they are.
    """
    layout, names = layout_of(dataset), check_names(infos)
    beside = info_layout(dataset, names) if names else None
    warn_of_outside(dataset)
    arrays = _read_layout(dataset, layout, allow_non_finite)
    arrays = dataclasses.replace(arrays, mixture=mixture_of(dataset), missing_finals=missing_finals(dataset))
    if beside is None:
        return arrays
    return add_infos(arrays, _read_layout(dataset, beside, allow_non_finite))


def add_infos(arrays: ArraysT, infos: Arrays) -> ArraysT:
    """Return arrays with infos beside them."""
    return dataclasses.replace(arrays, infos=infos, texts={**arrays.texts, **infos.texts})


def _read_layout(dataset: Dataset, layout: Layout, allow_non_finite: bool) -> Arrays:
    """Read the columns of a layout."""
    layout, videos = without_videos(dataset, layout)
    arrays = {name: np.zeros((layout.rows, *shape), dtype) for name, (shape, dtype) in layout.forms.items()}
    for first, last in layout.ranges("", _BLOCK_BYTES):
        place = fill_matrix(dataset, layout, first, last, arrays[""][first:last])
        if place and not allow_non_finite:
            raise not_finite(dataset, place)
    for name in layout.others:
        for first, last in layout.ranges(name, _BLOCK_BYTES):
            fill_other(dataset, layout, name, first, last, arrays[name][first:last])
    read = arrays_of(layout, arrays, dataset.episode_lengths, dataset.name, dataset.digest)
    return dataclasses.replace(read, others={**read.others, **videos}) if videos else read


def arrays_of(
    layout: Layout, filled: Mapping[str, np.ndarray], lengths: Int64[np.ndarray, " episodes"], name: str, digest: str
) -> Arrays:
    """Return what was read by a layout as arrays: its matrix has the empty name."""
    others = {column: torch.from_numpy(values) for column, values in filled.items() if column}
    return Arrays(
        rows=torch.from_numpy(filled[""]),
        lengths=lengths,
        obs_dim=layout.obs_dim,
        action_dim=layout.action_dim,
        ends=layout.width - layout.obs_dim - layout.action_dim,
        name=name,
        digest=digest,
        others=others,
        texts=layout.texts,
        observation_leaves=layout.observation_leaves,
        parts=layout.parts,
    )


def missing_finals(dataset: Dataset) -> tuple[int, ...]:
    """Return the episodes that lack a final observation because a third-party file did.

    See `datasets/download/foreign.py`.
    """
    if MISSING_FINALS not in dataset.columns:
        return ()
    return tuple(np.flatnonzero(dataset.column(MISSING_FINALS)).tolist())


def refuse_missing_finals(arrays: Arrays, what: str) -> None:
    """Refuse to give zeros for observations that were never recorded."""
    if arrays.missing_finals:
        raise SchemaError(
            f"{arrays.name}: the final observation of {counted(len(arrays.missing_finals), 'episode')} was "
            f"never recorded (episode {arrays.missing_finals[0]} is the first), and {what} would give "
            'zeros for it; leave these out: ds.filter_episodes("final_observation_missing == 0").'
        )


def mixture_of(dataset: Dataset) -> Mixture | None:
    """Return how a dataset's steps are weighted; None if they are not."""
    if dataset.mixture is None:
        return None
    component, weights = dataset.mixture
    of_step = np.repeat(component, dataset.episode_lengths)
    sizes = np.bincount(of_step, minlength=len(weights))
    if ((sizes == 0) & (np.array(weights) > 0)).any():
        empty = int(((sizes == 0) & (np.array(weights) > 0)).argmax())
        raise SchemaError(
            f"{dataset.name}: component {empty} of the mixture has weight {weights[empty]:g} but no "
            "steps left; filter before combine_datasets, or leave it out."
        )
    up_to = np.cumsum(weights)
    up_to /= up_to[-1]
    return Mixture(steps=np.argsort(of_step, kind="stable"), first=sizes.cumsum() - sizes, sizes=sizes, up_to=up_to)


def check_arrays(arrays: object) -> None:
    """Refuse anything but `Arrays`, such as a dataset that is not loaded yet."""
    if not isinstance(arrays, Arrays):
        raise TypeError(f"expected arrays, as orlog.load_arrays gives them, found {type(arrays).__name__}.")
