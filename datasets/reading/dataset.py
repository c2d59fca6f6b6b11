"""`Dataset`: a stored version, or a view of one or several, opened for reading."""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import gymnasium
import numpy as np

from orlog.base.jobs import Execute
from orlog.datasets.columns.episode import Episode, summary
from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import Block, concatenate_blocks, episode_blocks, slice_block
from orlog.datasets.home.consent import check_environment
from orlog.datasets.looking.card_picture import notebook_html
from orlog.datasets.looking.figures import dataset_picture
from orlog.datasets.reading import conversions, views
from orlog.datasets.reading.selection import Selection, lazy_block, seeded_order
from orlog.datasets.reading.views import Operation, no_column
from orlog.datasets.store.version import StoredVersion
from orlog.errors import IntegrityError, NotFoundError, SchemaError, clause, wrong_type
from orlog.manifests.columns import axis_of
from orlog.manifests.documents import canonical_json
from orlog.manifests.manifest import EnvironmentRecord, Manifest, Parent
from orlog.manifests.names import counted
from orlog.manifests.roles import roles_of

BLOCK_BYTES = 2**24

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from orlog.datasets.download.in_place import Coming, Elsewhere


class Dataset:
    """Episodes opened for reading: a stored version, or a view. `load_dataset` returns one.

    `ds[i]` is an `Episode`; `ds[a:b]`, `ds[[3, 1]]` and a mask are views. Views copy nothing,
    compose, have a digest of their own and work wherever a dataset does.

    Attributes:
        digest: `sha256:..`; of the manifest for a stored version, of parents and operation for a
            view.
        schema: The columns.
        operation: How a view was made, as saved; None for a stored version.
        parents: The datasets that a view was made from.
    """

    def __init__(self, folder: Path, manifest: Manifest | None = None, elsewhere: Elsewhere | None = None) -> None:
        """Open the version stored in `folder`; pass its manifest if it has been read already.

        With `elsewhere`, only its metadata are in the folder: it is read in place.

        Raises:
            IntegrityError: a file is missing, cut or altered, or columns do not agree.
            FormatVersionError: it was written by a newer orlog.
        """
        stored = StoredVersion(folder, manifest, elsewhere)
        self.digest = stored.digest
        self.schema: Schema = stored.schema
        self.operation: Operation | None = None
        self.parents: tuple[Dataset, ...] = ()
        self.view_file: Path | None = None
        self._selection = Selection.of(stored)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what follows from the rest: it would travel with each job."""
        derived = {"columns", "episode_starts"}
        return {name: vars(self)[name] for name in vars(self).keys() - derived}

    @classmethod
    def view(cls, parents: Sequence[Dataset], operation: Operation) -> Dataset:
        """Return the view that an operation makes of some datasets; every view is made here.

        Raises ValueError, TypeError, IndexError, NotFoundError or SchemaError if the operation is not one of them.
        """
        made = cls.__new__(cls)
        made.digest, made._selection, made.schema = views.derive(operation, parents)
        made.operation = operation
        made.parents = tuple(parents)
        made.view_file = None
        return made

    def __repr__(self) -> str:
        """Return name, version, totals and the start of the digest."""
        kind = "" if self.operation is None else f", {next(iter(self.operation))} view"
        return (
            f"Dataset({self.name}@{self.version}{kind}, {counted(self.total_episodes, 'episode')}, "
            f"{counted(self.total_steps, 'step')}, {self.digest[:19]})"
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: totals, histograms of returns and lengths, and frames."""
        return notebook_html(self, repr(self))

    def plot(self) -> Figure:
        """Return a matplotlib figure: histograms of returns and lengths, and trajectories over a maze.

        Raises MissingExtraError if matplotlib is not installed.
        """
        return dataset_picture(self)

    @property
    def folder(self) -> Path:
        """Folder of a stored version; file of a saved view.

        Raises NotFoundError for a view that was not saved.
        """
        if self.operation is None:
            return self._first.folder
        if self.view_file is None:
            raise NotFoundError(f"this view of {self.name} is saved nowhere; call .save(path) first.")
        return self.view_file

    @property
    def in_place(self) -> bool:
        """Whether it, or a part of a view, is read where it is: its rows are fetched when they are needed."""
        return any(stored.elsewhere is not None for stored in self._selection.versions)

    def fetch_ahead(
        self,
        episodes: np.ndarray,
        columns: Iterable[str] | None = None,
        ahead: list[Coming] | None = None,
        *,
        indexes: bool = False,
    ) -> None:
        """Fetch rows of some episodes at once, if they are read in place; what is read after that is here.

        Args:
            episodes: Positions of episodes.
            columns: Names of columns, or of what has several, such as texts; all by default.
            ahead: With a list, rows are not waited for, and their requests are added to it, to be cancelled.
            indexes: Fetch only what says where the rows are.

        Raises:
            IntegrityError: a place gives wrong bytes, and no other one the right ones.
            TransferError: no place answers.
        """
        if not self.in_place:
            return
        wanted = self.columns if columns is None else [*columns]
        names = [column for column in self.columns if {column, column.partition("@")[0]} & {*wanted}]
        for stored, some in self._selection.runs(episodes):
            stored.bring(names, some, names if indexes else (), ahead)

    @property
    def manifest(self) -> Manifest:
        """Manifest of the stored version; for a view, of the first version it was made from."""
        return self._first.manifest

    @property
    def name(self) -> str:
        """Name without version; for a view, of the first version it was made from."""
        return self.manifest.name

    @property
    def version(self) -> str:
        """Content version, marked for a rebuild; for a view, of the first version it is made from."""
        return self.manifest.version

    @property
    def environment(self) -> EnvironmentRecord | None:
        """What recorded the data; None if it is not known, or differs between parts of a view."""
        records = [stored.manifest.environment for stored in self._selection.versions]
        return records[0] if all(record == records[0] for record in records) else None

    @property
    def benchmark(self) -> str:
        """Name of the benchmark's dataset whose references hold; empty if none, or parts differ."""
        names = {stored.manifest.benchmark for stored in self._selection.versions}
        return names.pop() if len(names) == 1 else ""

    @property
    def dimension_names(self) -> dict[str, list[str]]:
        """What the numbers in a row of each column are, where all parts say the same: joints, say."""
        return self._agreed("dimension_names", self.columns)

    @property
    def stated_roles(self) -> dict[str, str]:
        """The roles that manifests give to columns of these, where all parts say the same."""
        return self._agreed("roles", self.schema.held())

    @functools.cached_property
    def roles(self) -> dict[str, str]:
        """What columns mean, such as `infos/cost`: as stated, else by usual names (docs/families.md)."""
        return roles_of(self.stated_roles, self.schema.held())

    @property
    def videos(self) -> set[str]:
        """Columns of frames of which some episodes are kept as videos, and decoded when they are read."""
        return {name for stored in self._selection.versions for name in stored.manifest.videos} & {*self.columns}

    def _agreed(self, field: str, kept: Container[str]) -> dict[str, Any]:
        first, *others = (getattr(stored.manifest, field) for stored in self._selection.versions)
        same = {name for name in first if all(other.get(name) == first[name] for other in others)}
        return {name: value for name, value in first.items() if name in same and name in kept}

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Gymnasium space of observations."""
        return self.schema.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Gymnasium space of actions."""
        return self.schema.action_space

    @property
    def lineage(self) -> list[Parent]:
        """Datasets it was derived from: those in a version's manifest, or a view's parents."""
        if self.operation is None:
            return self.manifest.lineage
        text = canonical_json(self.operation).decode()
        return [Parent(digest=parent.digest, operation=text) for parent in self.parents]

    @functools.cached_property
    def columns(self) -> list[str]:
        """Names of all stored columns, sorted."""
        return sorted(self.schema.columns())

    @property
    def total_episodes(self) -> int:
        """Number of episodes E."""
        return len(self._selection.index)

    @property
    def total_steps(self) -> int:
        """Number of steps S."""
        return int(self.episode_lengths.sum())

    @property
    def episode_lengths(self) -> np.ndarray:
        """Steps of each episode, (E,) int64."""
        return self._selection.lengths

    @functools.cached_property
    def episode_starts(self) -> np.ndarray:
        """First step of each episode, (E,) int64. Its first observation is row start + index."""
        starts: np.ndarray = self.episode_lengths.cumsum() - self.episode_lengths
        starts.flags.writeable = False
        return starts

    @property
    def mixture(self) -> tuple[np.ndarray, tuple[float, ...]] | None:
        """Component of each episode, weight of each component; None unless steps are weighted."""
        chosen = self._selection
        return (chosen.component, chosen.weights) if chosen.weights else None

    def column(
        self, name: str, start: int = 0, stop: int | None = None, *, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column, all by default.

        Args:
            name: Name of the column.
            start: First row.
            stop: Row after the last one.
            out: Where they go: a contiguous, writeable array of their shape and dtype; a new array
                by default. Reusing memory is faster.

        Raises:
            NotFoundError: there is no such column.
            IndexError: there are no such rows.
            ValueError: they do not fit `out`, or it is read-only.
            TypeError: `out` is not an array.
            IntegrityError: a file is damaged.
        """
        self._check_column(name)
        count = self._selection.count_rows(name)
        stop = count if stop is None else stop
        if not 0 <= start <= stop <= count:
            raise IndexError(f"{name}: expected rows within 0 to {count}, found {start} to {stop}.")
        if out is not None:
            self._check_target(name, start, stop, out)
        return self._selection.read(name, start, stop, out)

    def rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, in the order asked for.

        Each row needs its chunk decoded: cheap for images, whose chunks hold one or a few frames.

        Raises:
            NotFoundError: there is no such column.
            IndexError: there is no such row.
            IntegrityError: a file is damaged.
        """
        self._check_column(name)
        return self._selection.read_rows(name, np.asarray(rows, np.int64))

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self.total_episodes

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> Dataset: ...
    def __getitem__(self, index: int | slice | Sequence[int] | np.ndarray) -> Episode | Dataset:
        """Return one episode, or a view of several: by a slice, positions or a mask.

        Of an episode that is read in place, large observations are fetched when their rows are asked for, and frames of
        videos are then decoded.

        Raises IndexError if there is no such episode; IntegrityError if a file is damaged.
        """
        if isinstance(index, bool):
            index = np.asarray(index)  # a mask, which has another shape
        if not isinstance(index, int | np.integer):
            return self.view([self], {"episodes": views.as_ranges(views.positions_of(self, index))})
        position = self._position(int(index))
        ((stored, (inside,)),) = self._selection.runs(np.array([position]))
        if self.in_place or stored.manifest.videos:
            names = None if self.in_place else stored.manifest.videos
            return self._episode(lazy_block(stored, int(inside), self.columns, names), position)
        return self._episode(self._block(np.array([position])), position)

    def __iter__(self) -> Iterator[Episode]:
        """Yield every episode in order."""
        return self.iterate_episodes()

    def iterate_episodes(self, episodes: Iterable[int] | None = None) -> Iterator[Episode]:
        """Yield episodes by position, all by default, reading neighbors together."""
        wanted = (
            np.arange(self.total_episodes)
            if episodes is None
            else np.array([self._position(index) for index in episodes], np.int64)
        )
        done = 0
        for block, lengths in self.blocks(wanted):
            for position in range(len(lengths)):
                columns = slice_block(block, lengths, position, position + 1)
                yield self._episode(columns, int(wanted[done + position]))
            done += len(lengths)

    def sample_episodes(self, count: int, *, seed: int) -> list[Episode]:
        """Return `count` different random episodes; equal seeds give equal episodes.

        Raises:
            ValueError: there are fewer episodes than that.
        """
        if not 0 <= count <= self.total_episodes:
            raise ValueError(
                f"{self.name}: expected a count from 0 to its {counted(self.total_episodes, 'episode')}, found {count}."
            )
        drawn = seeded_order(seed, self.total_episodes)[:count]
        return list(self.iterate_episodes(drawn.tolist()))

    def blocks(self, episodes: np.ndarray | None = None) -> Iterator[tuple[Block, np.ndarray]]:
        """Yield (columns, lengths) of whole episodes: about 16 MiB, and at least one, at a time."""
        wanted = np.arange(self.total_episodes) if episodes is None else episodes
        lengths = self.episode_lengths[wanted]
        versions = self._selection.versions
        total_bytes = sum(
            column.rows * max(1, math.prod(column.shape)) * np.dtype(column.dtype).itemsize
            for stored in versions
            for column in stored.manifest.columns
            if column.name in self.columns
        )
        step_bytes = total_bytes / max(1, sum(version.manifest.total_steps for version in versions))
        edges = episode_blocks(lengths.cumsum(), max(1, int(BLOCK_BYTES / step_bytes)))
        for first, last in itertools.pairwise(edges.tolist()):
            yield self._block(wanted[first:last]), lengths[first:last]

    def filter_episodes(self, condition: str | Callable[[Episode], bool]) -> Dataset:
        """Return a view of the episodes that meet a condition.

        Args:
            condition: An expression on columns of episodes, such as `returns > 100 and lengths
                >= 50`, which is saved with the view; or a function of an episode, for which the
                positions of the chosen episodes are saved.

        Raises:
            SchemaError: the expression cannot be read, or names no column of episodes.
        """
        if isinstance(condition, str):
            return self.view([self], {"filter": condition})
        given: object = condition
        if not callable(given):
            expected = "an expression in a text or a function of an episode"
            raise wrong_type("condition", expected, condition)
        kept = []
        for position, episode in enumerate(self):
            answer: object = condition(episode)
            if getattr(answer, "shape", ()) != ():
                raise TypeError(
                    "condition must return one truth value for an episode, found "
                    f"{summary(answer)} for episode {position}; use .all() or .any()."
                )
            if answer:
                kept.append(position)
        return self[np.array(kept, np.int64)]

    def top_episodes(self, percent: float, *, by: str = "returns") -> Dataset:
        """Return a view of the best episodes: the top `percent` by a column of episodes.

        Raises:
            ValueError: percent does not lie in [1, 100].
        """
        if 0 < percent < 1:
            raise ValueError(
                f"{self.name}: top takes a percentage from 1 to 100; {percent:g} would keep {percent:g} % of the "
                f"episodes. For {100 * percent:g} % give {100 * percent:g}."
            )
        return self.view([self], {"top": {"percent": float(percent), "by": by}})

    def select_columns(self, columns: Sequence[str]) -> Dataset:
        """Return a view with fewer columns of Dict observations, `infos/` and `episodes/`.

        Actions, rewards, ends, lengths, returns and seeds always stay.

        Raises NotFoundError if there is no such column.
        """
        return self.view([self], {"columns": sorted(set(columns))})

    def with_columns(
        self,
        columns: str | Mapping[str, Any] | Callable[[Episode], Mapping[str, Any]],
        values: Callable[[Episode], Any] | Any = None,
        *,
        role: str | None = None,
        roles: Mapping[str, str] | None = None,
        replaces: bool = False,
        key: str = "",
        execute: Execute | None = None,
        made_by: str = "",
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> Dataset:
        """Return a view with more columns; `save_layer` stores them, and nothing of this dataset.

            ds.with_columns({"episodes/success": returns > 20}, roles={"episodes/success": "success"})
            ds.with_columns("infos/value", lambda episode: ..., role="value")

        Functions are called for one episode after the other, in bounded memory.

        Args:
            columns: Rows of each column by its name, `infos/NAME` for steps and `episodes/NAME` for episodes: an array
                with a row for each of all steps or episodes, a list of texts, or a function that returns those of an
                episode: an array with a row for each step, or the value of the episode. Or one name, of `values`. Or
                a function that returns such rows of several columns by their names.
            values: The rows, or the function, of one column.
            role: What the column means, such as `value`, `weight` or `success` (docs/families.md), where there is one.
            roles: What columns mean, by name.
            replaces: Whether columns may take the place of columns of this dataset, such as `rewards`.
            key: A text that stands for what is computed, such as a version of the functions: what was computed under
                it is kept until all is there, so a process that dies loses little. By default nothing is kept.
            execute: Where functions run: `execute` of a module of `orlog.executors`; here by default.
            made_by: How the columns were made, for the lineage; by default the source of functions.
            progress: Called with steps done and in all.

        Raises:
            SchemaError: this is a part of a version, rows are missing or do not fit each other, a role does not
                fit, or a column is there already.
            StorageError: the disk is full.
        """
        given = {columns: values} if isinstance(columns, str) else {} if callable(columns) else dict(columns)
        meant = dict(roles or {}) | (dict.fromkeys(given, role) if role is not None else {})
        layering = importlib.import_module("orlog.datasets.recording.layering")
        function = columns if callable(columns) else None
        how = {"key": key, "execute": execute, "made_by": made_by, "progress": progress}
        draft: Dataset = layering.draft_layer(self, given, function, meant, **how)
        return self.view([self, draft], {"layers": {"replaces": True} if replaces else {}})

    def save_layer(
        self,
        name: str,
        *,
        version: str = "1.0.0",
        description: str = "",
        license: str = "",  # noqa: A002
        changes: str = "",
    ) -> Path:
        """Store the columns that `with_columns` added as a version of their own, and return its folder.

        Only they are written, with the digest of the version that they lie over: see `orlog.datasets.reading.layers`.

        Args:
            name: Name of the layer, without version.
            version: Content version, `major.minor.patch`.
            description: What the columns are.
            license: SPDX identifier; by default that of the base.
            changes: What is new since the previous version.

        Raises:
            SchemaError: there are no new columns.
            VersionExistsError: the version exists; versions are never overwritten.
            InvalidNameError: name or version do not follow the grammar.
            StorageError: the disk is full.
        """
        layering = importlib.import_module("orlog.datasets.recording.layering")
        facts = {"version": version, "description": description, "license": license, "changes": changes}
        return Path(layering.save_layer(self, name, **facts))

    def with_layers(
        self,
        *layers: str | Path | Dataset,
        rename: Mapping[str, Mapping[str, str]] | None = None,
        later_wins: bool = False,
        replaces: bool = False,
    ) -> Dataset:
        """Return a view with the columns of layers, which lie over the stored version of this dataset.

        Args:
            layers: Names, paths or datasets.
            rename: Other names for columns, by the name of a layer and the name of its column.
            later_wins: Whether the later of two layers decides where both have a column with other values.
            replaces: Whether layers may have columns in place of those of this dataset.

        Raises:
            NotFoundError: a layer is not here.
            SchemaError: a layer lies over another version, or two have other values in one column.
        """
        opening = importlib.import_module("orlog.datasets.reading.opening")
        opened: list[Dataset] = [layer for given in layers for layer in opening.layers_of(given)]
        if not later_wins:  # their order means nothing then, and neither does it in the digest
            opened.sort(key=lambda layer: layer.digest)
        value: dict[str, Any] = {"later_wins": True} if later_wins else {}
        value |= {"replaces": True} if replaces else {}
        if rename:
            value["rename"] = {layer.digest: dict(rename[layer.name]) for layer in opened if layer.name in rename}
        return self.view([self, *opened], {"layers": value})

    def to_dict(self, *, episodes: Iterable[int] | None = None) -> dict[str, Any]:
        """Return all transitions in memory, row t of each column being of the same step.

        `observations` and `next_observations` (before and after the step), `actions`, `rewards`,
        `terminations`, `truncations`, `infos` (a dict), `episodes` and `steps` (whose number it is):
        arrays [steps, ..], dicts or tuples of them as the spaces are, lists of texts.

        Raises:
            SchemaError: there is no episode.
            IntegrityError: the files are damaged.
        """
        return conversions.to_dict(self, episodes)

    def to_pandas(self, *, episodes: Iterable[int] | None = None) -> Any:
        """Return a DataFrame with a row for each step, by episode and step.

        Vectors have a column for each number, such as `observations/0`; frames stay arrays. Errors are
        those of `to_dict`, and MissingExtraError if pandas is not installed.
        """
        return conversions.to_pandas(self, episodes)

    def to_hf(self) -> Any:
        """Return a `datasets.Dataset` of Hugging Face with a row for each step, as `to_dict` has them."""
        return conversions.to_hf(self)

    def to_ray(self) -> Any:
        """Return a Ray Dataset with the rows of `to_hf`; its tasks read some episodes each, where they are."""
        return importlib.import_module("orlog.datasets.to_ray").to_ray(self)

    def to_torchrl(self) -> Any:
        """Return a TensorDict [steps] with the keys of TorchRL, for a storage of its replay buffers.

        Rewards are float32; `collector/traj_ids` tells episodes apart. Final observations are kept.

        Raises:
            SchemaError: there are texts or values of any length.
            MissingExtraError: tensordict is not installed.
        """
        return conversions.to_torchrl(self)

    def to_d3rlpy(self) -> Any:
        """Return a replay buffer of d3rlpy with the same transitions, the last ones too.

        Raises:
            SchemaError: observations are no Box or Tuple, or actions neither a Box nor Discrete.
            MissingExtraError: d3rlpy is not installed.
        """
        return conversions.to_d3rlpy(self)

    def to_minari(self, dataset_id: str | None = None) -> Any:
        """Make a dataset of Minari in memory and under its own folder, and return it.

        Minari changes frames by JPEG; `orlog export NAME minari OUT` writes them as they are, in bounded
        memory, with metadata of episodes and the environment.

        Args:
            dataset_id: Its name there, such as `lab/robot-v3`; by default the name here.
        """
        return conversions.to_minari(self, dataset_id or self.name)

    def export(self, folder: str | Path, to: str, **options: Any) -> Path:
        """Write it as files of another tool, such as `zarr`, `aloha` or `lerobot`; return the new folder.

        Args:
            folder: The new folder, which must not exist.
            to: Name of the format; `orlog import --list` lists them.
            options: As of `orlog.export_dataset`, which says what it raises: `lossy`, `observation`, `video`, `rate`.
        """
        # What writes them builds on datasets, so it is looked up when it is needed.
        exporting = importlib.import_module("orlog.datasets.exporting")
        return Path(exporting.export_dataset(self, folder, to=to, **options))

    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Save a view as a small JSON file that `load_dataset` opens; return its path.

        Args:
            path: The file; it may hold this same view already.
            replace: Whether another view in it may be replaced. Other files are never replaced.

        Raises:
            ValueError: this is a stored version, not a view.
            VersionExistsError: the file holds another view or something else.
            StorageError: the file cannot be written.
        """
        self.view_file = views.save_view(self, Path(path), replace=replace)
        return self.view_file

    def recover_environment(self, *, trust_environment: bool = False) -> gymnasium.Env[Any, Any]:
        """Make the environment that recorded the data, from an id that Gymnasium registers.

        Args:
            trust_environment: Consent to arguments that come with the data. Versions that ship with
                orlog, are signed by a registry's key, or were recorded on this machine need none.

        Raises:
            NotFoundError: the data name no environment, or Gymnasium does not know it.
            MissingExtraError: its package is not installed.
            SimulatorError: its arguments need consent, or it cannot be made.
        """
        from orlog.datasets.worlds.environments import make_environment

        record = self.checked_environment(trust_environment=trust_environment)
        return make_environment(record.id, record.kwargs, max_episode_steps=record.max_episode_steps)

    def checked_environment(self, *, trust_environment: bool = False) -> EnvironmentRecord:
        """Return `environment`, if making it is allowed; errors are those of `recover_environment`."""
        versions = [(version.manifest, version.folder) for version in self._selection.versions]
        return check_environment(self.name, self.environment, versions, trust_environment=trust_environment)

    def restore(self, env: Any, episode: int, step: int) -> Any:
        """Put a recorded state of the simulator into `env` and return the observation there.

        The environment goes on from there: `env.step` takes the next action. It is reset first, with
        the seed and options of the episode. Time limits count the steps before. What follows equals
        what was recorded as far as the environment depends on its simulator's state alone: random
        numbers that it draws later differ, and wrappers that remember observations start empty.

        Args:
            env: The environment that was recorded, of Gymnasium or a parallel one of PettingZoo;
                `recover_environment` makes one.
            episode: Position of the episode.
            step: Number of the action that comes next, from 0; -1 is the last one.

        Raises:
            IndexError: there is no such episode.
            NotFoundError: there is no such step, or no state was recorded, as `state=True` of
                `orlog.record` does.
            SchemaError: the environment's state cannot be set, or is another one.
        """
        from orlog.datasets.reading.restoring import restore

        return restore(self.name, env, self[int(episode)], step)

    def selection(self) -> Selection:
        """Return the episodes as positions in stored versions."""
        return self._selection

    @property
    def _first(self) -> StoredVersion:
        return self._selection.versions[0]

    def _check_column(self, name: str) -> None:
        if name in self.columns:
            return
        if any(column.startswith(f"{name}@") for column in self.columns):
            raise NotFoundError(
                f"{self.name}: column {name!r} has values of any length, such as texts or lists, "
                "which are read by episode, such as ds[0] (texts of all also by orlog.load_arrays(ds).texts)."
            )
        raise no_column(self.name, name, self.columns)

    def _position(self, index: int) -> int:
        if not -self.total_episodes <= index < self.total_episodes:
            raise IndexError(f"{self.name}: there is no episode {index}; it has {self.total_episodes}.")
        return index % self.total_episodes

    def _check_target(self, name: str, start: int, stop: int, out: object) -> None:
        """Refuse memory that rows do not fit: decoders write to it without checks."""
        spec = self.schema.columns()[name]
        shape = (stop - start, *spec.shape)
        where = f"{self.name}: column {name}: rows {start} to {stop} go into a"
        if not isinstance(out, np.ndarray):
            raise TypeError(f"{where} NumPy array, found {type(out).__name__}.")
        contiguous, writeable = out.flags.c_contiguous, out.flags.writeable
        if (out.shape, out.dtype) != (shape, spec.dtype) or not (contiguous and writeable):
            raise ValueError(
                f"{where} contiguous, writeable {spec.dtype} array of {shape}, found {out.dtype} of "
                f"{out.shape}{'' if contiguous else ', not contiguous'}"
                f"{'' if writeable else ', read-only'}."
            )

    def _block(self, episodes: np.ndarray) -> Block:
        blocks = [stored.read_block(some, self.columns) for stored, some in self._selection.runs(episodes)]
        return blocks[0] if len(blocks) == 1 else dict(concatenate_blocks(blocks))

    def _episode(self, block: Block, index: int) -> Episode:
        try:
            return self.schema.episode_of(block, index)
        except (SchemaError, UnicodeDecodeError) as error:
            raise IntegrityError(f"{self.name}: inconsistent values: {clause(error)}.") from error


def row_bytes_of(dataset: Dataset) -> int:
    """Return about how many bytes a step has in memory; values of any length count as one number a step."""
    specs = dataset.schema.columns()
    names = [name for name in dataset.columns if axis_of(name) != "episode"]
    return sum(specs[name].dtype.itemsize * math.prod(specs[name].shape) for name in names)


def episode_ranges(dataset: Dataset, size_bytes: int) -> list[range]:
    """Return ranges of all episodes in their order, each of about so many bytes in memory."""
    ends = dataset.episode_lengths.cumsum() * max(1, row_bytes_of(dataset))
    edges = episode_blocks(ends, size_bytes).tolist()
    return [range(*pair) for pair in itertools.pairwise(edges)]
