"""Reads and writes the HDF5 files of robomimic (Mandlekar and others, 2021): a group a demonstration.

    /data/demo_0, demo_1, ..   by their numbers, which may have gaps
        actions (T, n)   rewards (T,)   dones (T,)   states (T, ..)
        obs/NAME (T, ..)   [next_obs/NAME (T, ..)]   attributes num_samples, model_file, ..
    /data attribute env_args     JSON of the environment, kept in the description
    /mask/NAME                   names of demonstrations: `episodes/mask/NAME`

Observations become a Dict of the parts of `obs` (of groups in it `GROUP.NAME`), and the last one of `next_obs` is the final observation. It
must follow: each `next_obs` is the `obs` of the next step. Without `next_obs`, as LIBERO, MimicGen, RoboCasa and
Isaac Lab write them, `_shared/episode_cutter.py` says what becomes of the last step, and without `rewards`
these are zeros; both are told. `dones` may mean success or the end of the
recording, as the file's maker chose: a demonstration whose last one is 1 is taken to have ended, and all
of them are kept as `infos/done`; without `dones` all demonstrations were cut off. The attribute `success`, which
Isaac Lab writes, becomes `episodes/success` where all demonstrations have it, and the task in words, as LIBERO and
RoboCasa keep it, `episodes/task`; `--map episodes/NAME=..` takes others (`_containers/episode_values.py`). `states` and all other arrays with a row a step in
all demonstrations become infos by their paths, as `infos/datagen_info/eef_pose`. Demonstrations in masks named `train` and `valid`
get `episodes/split`. https://robomimic.github.io/docs/datasets/overview.html
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.bounds import Bounds, count_outside, describe_outside, merge_outside
from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._containers.axis_names import names_in_demonstrations
from orlog.datasets.formats._containers.episode_values import (
    EPISODES,
    AttributesAt,
    attributes_in_hdf5,
    attributes_read,
    in_all,
    of_episodes,
    values_at,
    values_of_rows,
    whole_in_hdf5,
)
from orlog.datasets.formats._containers.hdf5_files import (
    attribute,
    child,
    datasets_in,
    flag_attribute,
    has_child,
    look_inside,
    names_in,
    numbers,
    open_hdf5,
    reading,
)
from orlog.datasets.formats._containers.row_bytes import rows_differ
from orlog.datasets.formats._shared.episode_cutter import EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options, Steps, tell_lack
from orlog.datasets.formats._shared.flags import (
    SUCCESS,
    UnknownEnds,
    flags_of,
    put_success,
    unknown_ends,
)
from orlog.datasets.formats._shared.flat_rows import as_dtype, unbounded_space
from orlog.datasets.formats._shared.inventory import NUMBER
from orlog.datasets.formats._shared.pieces import Span, jobs_of, read_pieces
from orlog.datasets.formats._shared.robomimic_files import (
    LAYOUT,
    OBSERVED,
    conventions_stated,
    is_frames,
    lag_stated,
    masks_in,
    robomimic_losses,
    takes_unit_actions,
    write_robomimic,
)
from orlog.datasets.formats.formats import Format
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import SchemaError

BLOCK_BYTES = 2**24
LONGEST_ARGUMENTS = 5000
MOST_INFOS = 256
DEMONSTRATION = re.compile(r"demo_(\d{1,9})")
SPLITS = ("train", "valid")
MEANING = (
    "robomimic's dones mean success or the end, as the file's maker chose: a last one of 1 was taken "
    "to end the task."
)


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    source, where = asked.only_file(LAYOUT)
    with open_hdf5(source, where, texts=True) as file:
        with reading(where):
            data = child(file, "data", where, LAYOUT)
            reader = _Reader(data, where, source)
            named, lists = names_in_demonstrations(
                file, source, where, [f"data/{name}" for name in reader.names], reader.parts
            )
            reader.left_out = [one for one in reader.left_out if one not in lists]
            masks = masks_in(file, where, source.stat().st_size)
            arguments = attribute(data, "env_args", where, "")
            at = attributes_in_hdf5(file, where)
            said = of_episodes(asked.options.columns)
            reader.values, left_out = in_all(
                [reader.values_of(one, said, at) for one in reader.names]
            )
            doubts = reader.doubts(asked.options) + left_out
            doubts += reader.bound_actions(arguments)
            for lack in _lacks(reader, masks, attribute(data, "total", where, None), where):
                tell_lack(asked.options, doubts, lack)
        opened = Opened(
            schema=reader.schema,
            steps=iter(()),
            total_steps=sum(reader.lengths),
            doubts=doubts,
            reads=[
                *reader.paths(),
                *(f"*{glob.escape(one)}" for one in lists),
                *attributes_read(said, reader.values[0]),
                *(f"*{one}" for one in said.values() if "@" not in one),
            ],
            dimension_names=named,
            asides=reader.asides(at("data"), asked.options),
        )
        if isinstance(arguments, str) and 0 < len(arguments) <= LONGEST_ARGUMENTS:
            opened.description = f"robomimic's env_args: {' '.join(arguments.split())}"
        opened.steps = reader.steps(masks, opened.doubts, asked)
        yield opened


class _Reader:
    """Reads demonstrations whose columns are those of the first one.

    Attributes:
        names: Names of all demonstrations, by their numbers.
        parts: Where each part of the observations lies in `obs`.
        lengths: Steps of each.
        schema: Spaces.
        left_out: Paths of arrays of the first demonstration that do not have a row a step in all of them.
        frames: Parts of the observations that are frames.
        values: Values of each demonstration that are not of its steps.
    """

    values: Sequence[Mapping[str, Any]] = ()

    def __init__(self, data: Any, where: str, file: Path) -> None:
        """Look at all demonstrations.

        Raises SchemaError if there is none, or it has no observations.
        """
        self._data, self._where, self._file = data, where, file
        self._file_bytes = file.stat().st_size
        self._groups: dict[str, Any] = {}  # that were looked up; to do it again is slow
        names = filter(DEMONSTRATION.fullmatch, names_in(data))
        self.names = sorted(names, key=lambda name: int(name.rpartition("_")[2]))
        if not self.names:
            raise SchemaError(f"{where}: data holds no demonstration, such as demo_0.")
        self.lengths = [len(self._column(name, "actions")) for name in self.names]
        first = self.names[0]
        group = self._group(first)
        if not has_child(group, "obs"):
            raise SchemaError(
                f"{where}, {first}: has no obs, only states; let robomimic's dataset_states_to_obs.py "
                "make observations from them."
            )
        inside = child(group, "obs", f"{where}, {first}", LAYOUT)
        paths = sorted(path for path, _ in datasets_in(inside, f"{where}, {first}, obs", LAYOUT))
        self.parts = {path.replace("/", "."): path for path in paths}
        if len(self.parts) < len(paths):
            raise SchemaError(f"{where}, {first}: a dot and a group in obs make the same name.")
        if not self.parts:
            raise SchemaError(f"{where}, {first}: obs holds no observations.")
        parts = {part: self._column(first, f"obs/{path}") for part, path in self.parts.items()}
        actions = self._column(first, "actions")
        self._numbers = [key for key in ("rewards", "dones") if has_child(group, key)]
        infos = {"done": "dones", "states": "states"}
        self._infos = {info: key for info, key in infos.items() if self._holds(first, key)}
        self._has_next = has_child(group, "next_obs")
        reward_dtype: np.dtype[Any] = np.dtype(np.float64)
        if "rewards" in self._numbers and self._column(first, "rewards").dtype == np.float32:
            reward_dtype = np.dtype(np.float32)
        keys = dict.fromkeys(["actions", *self._numbers, *self._infos.values()])
        each = {**parts, **{f"/{key}": self._column(first, key) for key in keys}}
        # A row of each, as a dtype; no part begins with a slash.
        self._first = {key: np.dtype((one.dtype, one.shape[1:])) for key, one in each.items()}
        self.left_out = self._find_more(first)
        self.frames = [part for part, one in parts.items() if is_frames(one.dtype, one.shape[1:])]
        self.schema = Schema(
            observation_space=spaces.Dict(
                {part: unbounded_space(one.dtype, one.shape[1:]) for part, one in parts.items()}
            ),
            action_space=unbounded_space(actions.dtype, actions.shape[1:]),
            reward_dtype=reward_dtype,
        )

    def values_of(self, name: str, said: Mapping[str, str], at: AttributesAt) -> Mapping[str, Any]:
        """Return the values of a demonstration that the user maps, and its task in words.

        Raises SchemaError if it has none of them.
        """
        where = f"{self._where}, {name}"
        found = values_at(said, f"data/{name}", at, where)

        def read(array: str) -> Any:
            return whole_in_hdf5(self._group(name), array, where, self._file_bytes)

        return found | values_of_rows(said, read, 1, where)[0]

    def doubts(self, options: Options) -> list[str]:
        """Return what to know about the columns, a sentence each, and take what all demonstrations state."""
        said = []
        stated = [flag_attribute(self._group(name), SUCCESS, self._where) for name in self.names]
        self.values = values = [*self.values]
        told = put_success(values, stated, options, self._where)
        if "dones" in self._numbers:
            said.append(MEANING)
        else:
            columns = [f"episodes/{name}" for name in self.values[0]]
            said += unknown_ends(options, self._where, columns)
        if "rewards" not in self._numbers and not options.reward:
            said.append("No rewards: they are zeros.")
        if self.left_out:
            said.append(f"Left out, not a row for each step: {', '.join(self.left_out)}.")
        return said + told

    def asides(self, attributes: Mapping[str, Any], options: Options) -> list[str]:
        """Return the conventions that the file states or its first demonstration shows."""
        told = conventions_stated(self.frames, attributes, options)
        if "states" in self._infos:
            told += lag_stated(functools.partial(self._column, self.names[0]), self.parts, options)
        return told

    def bound_actions(self, arguments: object) -> list[str]:
        """Bound actions by -1 and 1 if the file's environment takes these, and all lie inside; return what to tell."""
        first = self._first["/actions"]
        if not takes_unit_actions(arguments) or first.base.kind != "f":
            return []
        bounds = Bounds(np.array(-1.0), np.array(1.0))
        rows = max(1, BLOCK_BYTES // first.itemsize)
        outside = merge_outside(
            {"actions": count}
            for name, length in zip(self.names, self.lengths, strict=True)
            for start in range(0, length, rows)
            if (count := count_outside(self._actions(name, start, start + rows), bounds))
            is not None
        )
        if outside:
            told = describe_outside(outside["actions"], bounds)
            return [
                f"No bounds of actions were taken from env_args, since the file leaves them: {told}."
            ]
        kind: Any = first.base.type
        bounded = spaces.Box(-1, 1, first.shape, kind)
        self.schema = dataclasses.replace(self.schema, action_space=bounded)
        return []

    def _actions(self, name: str, start: int, stop: int) -> np.ndarray:
        with reading(f"{self._where}, {name}"):
            values: np.ndarray = self._column(name, "actions")[start:stop]
        return values

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is open in this process."""
        return {**self.__dict__, "_data": None, "_groups": {}}

    def steps(self, masks: dict[str, set[str]], doubts: list[str], asked: Asked) -> Iterator[Steps]:
        """Yield all steps, in pieces; what was left out is added to the doubts at the end."""

        def metadata(episode: int) -> dict[str, Any]:
            name = self.names[episode]
            found: dict[str, Any] = {f"mask/{mask}": name in names for mask, names in masks.items()}
            if set(SPLITS) <= masks.keys():
                found["split"] = next((mask for mask in SPLITS if name in masks[mask]), "")
            return {**found, **self.values[episode]}

        says = {"terminated"} if "dones" in self._numbers else set[str]()
        unknown = UnknownEnds(asked.options, self._where, says=says)
        cutter = EpisodeCutter(
            ends_of_lengths(self.lengths), self._where, metadata=metadata, unknown=unknown
        )
        row_bytes = sum(one.itemsize for one in self._first.values())
        jobs = jobs_of(asked, enumerate(self.lengths), row_bytes)
        for rows in read_pieces(asked, self._read, jobs):
            yield from cutter.add(rows)
        doubts += cutter.doubts()

    def _read(self, spans: Iterable[Span]) -> Iterator[Rows]:
        """Yield rows of demonstrations, in blocks; in a process that has not opened the file too."""
        with contextlib.ExitStack() as stack:
            if self._data is None:
                file = stack.enter_context(open_hdf5(self._file, self._where, texts=True))
                self._data = child(file, "data", self._where, LAYOUT)
            for span in spans:
                with reading(f"{self._where}, {self.names[span.of]}"):
                    yield from self._rows(span)

    def _rows(self, span: Span) -> Iterator[Rows]:
        """Yield some rows of a demonstration, in blocks."""
        name, length = self.names[span.of], self.lengths[span.of]
        where = f"{self._where}, {name}"
        said = attribute(self._group(name), "num_samples", where, length)
        if int(said) != length:
            raise SchemaError(
                f"{where}: num_samples says {int(said)}, and actions holds {length} rows."
            )
        self._refuse_more(name, where)
        keys = ["actions", *self._numbers, *self._infos.values()]
        columns = {key: self._column(name, key) for key in dict.fromkeys(keys)}
        now = {part: self._column(name, f"obs/{path}") for part, path in self.parts.items()}
        then: dict[str, Any] = {}
        if self._has_next:
            then = {
                part: self._column(name, f"next_obs/{path}") for part, path in self.parts.items()
            }
        for key, column in (*columns.items(), *now.items(), *then.items()):
            if len(column) != length:
                raise SchemaError(f"{where}, {key}: expected {length} rows, found {len(column)}.")
        for key in self._numbers:
            if columns[key].shape != (length,):
                raise SchemaError(
                    f"{where}, {key}: expected one number a step, found rows of {columns[key].shape[1:]}."
                )
        for key, row in self._first.items():
            found = (now[key] if key in now else columns[key[1:]]).shape[1:]
            if found != row.shape:
                said = f"expected rows of {row.shape}, as in {self.names[0]}, found {found}"
                raise SchemaError(f"{where}, {key.lstrip('/')}: {said}.")
        for part, column in then.items():
            if (column.dtype, column.shape[1:]) != (now[part].dtype, now[part].shape[1:]):
                raise SchemaError(f"{where}, next_obs/{part}: differs from obs in dtype or shape.")
        each = (*now.values(), *columns.values())
        row_bytes = sum(one.dtype.itemsize * math.prod(one.shape[1:]) for one in each)
        block = max(1, BLOCK_BYTES // (2 * row_bytes))
        for start in range(span.start, span.stop, block):
            stop = min(span.stop, start + block)
            count = stop - start
            seen = {part: one[start : stop + bool(then)] for part, one in now.items()}
            rows = {f"observation/{part}": one[:count] for part, one in seen.items()}
            for part, one in then.items():
                rows[f"next_observation/{part}"] = after = one[start:stop]
                _check_follow(seen[part], after, f"{where}, next_obs/{part}", start)
            rows["action"] = columns["actions"][start:stop]
            dtype = self.schema.reward_dtype
            if "rewards" in columns:
                rewards = columns["rewards"][start:stop]
                rows["reward"] = as_dtype(rewards, dtype, f"{where}, rewards", start)
            else:
                rows["reward"] = np.zeros(stop - start, dtype)
            rows["terminated"] = np.zeros(stop - start, bool)
            if "dones" in columns:
                dones = flags_of(columns["dones"][start:stop], "dones", where, first=start)
                rows["terminated"][-1] = stop == length and dones[-1]
            for info, key in self._infos.items():
                rows[f"infos/{info}"] = columns[key][start:stop]
            yield rows

    def _refuse_more(self, name: str, where: str) -> None:
        """Refuse a demonstration with columns that would be left out, since the first one has them not."""
        taken = {*self._numbers, *self._infos.values(), *(["next_obs"] if self._has_next else [])}
        for key in ("next_obs", "rewards", "dones", "states"):
            if key not in taken and self._holds(name, key, is_group=key == "next_obs"):
                raise SchemaError(
                    f"{where}: has {key}, and {self.names[0]} has not; all demonstrations of a dataset "
                    "have the same columns."
                )

    def _find_more(self, first: str) -> list[str]:
        """Take all other arrays with a row a step in all demonstrations as infos; return paths of the rest."""
        own = {"actions", *self._numbers, *self._infos.values()}
        paths = [path for path, _ in datasets_in(self._group(first), self._where, LAYOUT)]
        paths = [path for path in paths if path not in own and path.split("/")[0] not in OBSERVED]
        if len(paths) > MOST_INFOS:
            raise SchemaError(f"{self._where}, {first}: {len(paths):,} arrays are too many.")
        kinds: dict[str, set[Any]] = {path: set() for path in paths}
        for name, length in zip(self.names, self.lengths, strict=True):
            for path in paths:
                if len(kinds[path]) < 2:
                    kinds[path].add(self._kind(name, path, length))
        fitting = [
            path for path in sorted(paths) if len(kinds[path]) == 1 and None not in kinds[path]
        ]
        self._infos |= {path: path for path in fitting if path not in self._infos}
        return sorted({*paths} - {*fitting})

    def _kind(
        self, name: str, path: str, length: int
    ) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        """Return dtype and shape of the rows of an array; None if it is none with a row a step."""
        try:
            column = self._column(name, path)
        except SchemaError:  # it is not there, or holds texts
            return None
        return (column.dtype, column.shape[1:]) if len(column) == length else None

    def _holds(self, name: str, key: str, *, is_group: bool = False) -> bool:
        """Return whether a demonstration has numbers, or a group, of this name."""
        group, where = self._group(name), f"{self._where}, {name}"
        return has_child(group, key) and is_group != hasattr(
            child(group, key, where, LAYOUT), "dtype"
        )

    def paths(self) -> list[str]:
        """Return the paths of all other arrays than those of the layout, for `Opened.reads`."""
        found = (*self._infos.values(), *self.left_out)
        return [f"data/demo_#/{NUMBER.sub('#', glob.escape(path))}" for path in found]

    def _group(self, name: str) -> Any:
        if name not in self._groups:
            self._groups[name] = child(self._data, name, self._where, LAYOUT)
        return self._groups[name]

    def _column(self, name: str, path: str) -> Any:
        where = f"{self._where}, {name}"
        node = self._group(name)
        for part in path.split("/"):
            node = child(node, part, where, LAYOUT)
        return numbers(node, f"{where}, {path}", self._file_bytes)


def _check_follow(before: np.ndarray, after: np.ndarray, where: str, start: int) -> None:
    """Refuse next observations that are not the observations of the next steps."""
    odd = np.flatnonzero(rows_differ(after[: len(before) - 1], before[1:]))
    if len(odd):
        raise SchemaError(
            f"{where}: that of step {start + odd[0]} is not the observation of step "
            f"{start + odd[0] + 1}; so it is in {len(odd)} places."
        )


def _lacks(
    reader: _Reader, masks: dict[str, set[str]], total: Any, where: str
) -> Iterator[SchemaError]:
    """Yield what says that demonstrations are lost which masks or the total still count."""
    for mask, names in masks.items():
        lost = sorted(names - set(reader.names))
        if lost:
            yield SchemaError(
                f"{where}, mask/{mask}: names {lost[0]!r}, which data does not hold ({len(lost):,} such). "
                "Copy the file again, or remove these names from the mask."
            )
    steps = sum(reader.lengths)
    if isinstance(total, int | np.integer) and total != steps:
        yield SchemaError(
            f"{where}, data: total says {total:,} steps, and the demonstrations hold {steps:,}. Copy the "
            "file again, or correct total."
        )


def _recognizes(files: Sequence[Path]) -> bool:
    where = str(files[0])
    return look_inside(
        files,
        lambda file: (
            has_child(file, "data")
            and any(map(DEMONSTRATION.fullmatch, names_in(child(file, "data", where, LAYOUT))))
        ),
    )


FORMAT = Format(
    name="robomimic-hdf5",
    open=_open,
    shares=True,
    recognizes=_recognizes,
    extensions=(".hdf5", ".h5"),
    options=("horizon", "ends", "partial", EPISODES),
    write=write_robomimic,
    losses=robomimic_losses,
    check=lambda: import_h5py(),
    reads=(
        "data/demo_#/actions",
        "data/demo_#/obs/*",
        "data/demo_#/next_obs/*",
        "data/demo_#/rewards",
        "data/demo_#/dones",
        "data/demo_#/states",
        "mask/*",
        *(f"data/demo_#@{name}" for name in ("num_samples", *SUCCESS)),
        "data@env_args",
        "data@total",
        "data@macros_image_convention",
    ),
)
