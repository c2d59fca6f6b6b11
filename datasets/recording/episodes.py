"""Writes episodes into the columns of one new part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.columns.bounds import bounds_of, refuse_outside
from orlog.datasets.columns.episode import Episode, as_infos, check_rows
from orlog.datasets.columns.schema import Schema, check_flags, count_rewards, return_of
from orlog.datasets.columns.values import Block
from orlog.datasets.store.encoding import Encoding
from orlog.datasets.store.zarr_writer import WrittenPart, ZarrWriter
from orlog.errors import SchemaError
from orlog.manifests.columns import FLAGS, axis_of, offsets_of
from orlog.manifests.manifest import Part, PartColumn
from orlog.manifests.names import did_you_mean


class EpisodeWriter:
    """Streams episodes into a new folder in the Zarr container, in bounded memory.

    Attributes:
        schema: The columns; extra ones are known after the first episode has ended.
        episodes: Whole episodes so far.
        steps: Steps of these episodes.
        container: Writes the columns.
    """

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        name: str,
        *,
        encodings: Mapping[str, Encoding] | None = None,
        first_decides: bool = True,
        strict: bool = False,
        log: Callable[[Block], object] = lambda _block: None,
    ) -> None:
        """Create the folder for the columns of a schema; `name` is the dataset's name in errors.

        The first episode may add columns if it decides. If `strict`, numbers outside their Box are refused,
        which are otherwise counted. `log` is called with the rows of each column once they were added.
        """
        schema.check(name)
        self.schema = schema
        self.episodes = self.steps = 0
        bounds = bounds_of(schema.observation_space, schema.action_space)
        self.container = ZarrWriter(folder, encodings, bounds)
        self._refused = bounds if strict else {}
        self._name, self._log = name, log
        self._encoded = set(encodings or {})
        self._first_decides = first_decides
        self._at_end = False
        self._close_open()

    @property
    def inside_episode(self) -> bool:
        """Whether steps were added since the last episode ended."""
        return self._open_steps > 0

    def add_episode(self, episode: Episode) -> None:
        """Write a whole episode.

        Raises SchemaError if it does not fit; nothing of it was written; StorageError if the disk is full.
        """
        where = self._where()
        if self.inside_episode:
            raise SchemaError(f"{where}: has steps already; end_episode closes it first.")
        schema = self._schema_with(episode.infos, episode.metadata)
        block = schema.block_of(episode, where)
        refuse_outside(block, self._refused, where, {})
        self._check_encodings(schema)
        self.schema = schema
        self.add_block(block, np.array([len(episode)]))

    def add_steps(self, **columns: Any) -> None:
        """Write some steps of an episode; its first call takes one more observation than steps.

        `columns` are all arguments of `DatasetWriter.add_steps`. Raises SchemaError if they do not fit;
        nothing of them was written; StorageError if the disk is full.
        """
        where = self._where()
        count = count_rewards(columns["rewards"], where)
        if count == 0:
            raise SchemaError(f"{where}: add_steps was given no steps.")
        if self._at_end:
            raise SchemaError(f"{where}: step {self._open_steps} comes after the episode's end.")
        more = 0 if self.inside_episode else 1
        columns["infos"] = as_infos(columns["infos"])
        schema = self._schema_with(columns["infos"], {}) if more else self.schema
        check_rows(columns, where, more=more)
        columns["observations"] = columns["observations"], count + more
        block = schema.step_rows(where, **columns)
        check_flags(block, where)
        first = self._open_steps
        rows = {name: first + (axis_of(name) == "observation" and first > 0) for name in self._refused}
        refuse_outside(block, self._refused, where, rows)
        self.schema = schema
        self._append(block)
        self._open_steps += count
        self._open_rewards.append(block["rewards"].copy())  # summed at once, as in a whole episode
        self._at_end = any(bool(block[name][-1]) for name in FLAGS)

    def end_episode(self, seed: int | None, metadata: Mapping[str, Any]) -> None:
        """Close the episode whose steps were added.

        Raises SchemaError if there are none, or seed or metadata do not fit.
        """
        where = self._where()
        if not self.inside_episode:
            raise SchemaError(f"{where}: has no steps.")
        schema = self._schema_with({}, metadata)
        total = return_of(np.concatenate(self._open_rewards))
        rows = schema.episode_rows(where, self._open_steps, total, seed, metadata)
        self._check_encodings(schema)
        self.schema = schema
        self._append(rows)
        self.episodes += 1
        self.steps += self._open_steps
        self._close_open()

    def drop_open(self, ended: Mapping[str, int]) -> bool:
        """Drop the open episode's rows from memory; return False if some are in full shards already.

        `ended` holds the number of rows of each column when the last episode ended.
        """
        columns = self.container.columns
        # A first episode may have added columns, which must then be removed too.
        if self.episodes == 0 or any(column.handed_rows > ended.get(name, 0) for name, column in columns.items()):
            return False
        for name, column in columns.items():
            column.drop_from(ended.get(name, 0))
        self._close_open()
        return True

    def add_block(self, block: Block, lengths: np.ndarray) -> None:
        """Write whole episodes, as a block that fits the schema, and their lengths."""
        self._append(block)
        self.episodes += len(lengths)
        self.steps += int(lengths.sum())

    def finish(self) -> WrittenPart:
        """Write the remaining rows and return the part.

        Raises SchemaError if an episode is open, or there is none; StorageError if the disk is full.
        """
        if self.inside_episode:
            raise SchemaError(f"{self._where()}: is not ended; call end_episode first.")
        if self.episodes == 0:
            raise SchemaError(f"{self._name}: a dataset needs at least one episode.")
        written, objects = self.container.finish()
        columns = {column.spec.name: column for column in written}
        objects += [item for column in written for item in column.objects]
        return WrittenPart(
            schema=self.schema,
            part=Part(
                episodes=self.episodes,
                steps=self.steps,
                columns={name: PartColumn(rows=column.rows, blake3=column.blake3) for name, column in columns.items()},
            ),
            objects=sorted(objects, key=lambda item: item.path),
            non_finite={name: column.non_finite for name, column in columns.items() if column.non_finite},
            outside={name: column.outside for name, column in columns.items() if column.outside is not None},
        )

    def close(self) -> None:
        """Stop writing; rows that were not written are dropped."""
        self.container.close()

    def _schema_with(self, infos: Mapping[str, Any], metadata: Mapping[str, Any]) -> Schema:
        """Return the schema, with the columns that the first episode adds."""
        if self._first_decides and self.episodes == 0:
            return self.schema.with_extras(infos, metadata, self._where())
        return self.schema

    def _append(self, block: Block) -> None:
        """Append rows; offsets are rebased to continue those written before."""
        columns = self.container.columns
        if not block.keys() <= columns.keys():
            specs = self.schema.columns()
            for name in sorted(block.keys() - columns.keys()):
                self.container.add_column(specs[name])
        moved = dict(block)
        for name in block:
            offsets = offsets_of(name)
            if offsets is not None:
                moved[offsets] = block[offsets] + columns[name].rows
        self.container.append(moved)
        self._log(block)

    def _close_open(self) -> None:
        self._open_steps = 0
        self._open_rewards: list[np.ndarray] = []
        self._at_end = False

    def _check_encodings(self, schema: Schema) -> None:
        unknown = sorted(self._encoded - schema.columns().keys()) if self.episodes == 0 else []
        if unknown:
            raise SchemaError(
                f"{self._where()}: an encoding is given for {unknown[0]!r}, which is not a column"
                + (did_you_mean(unknown[0], schema.columns()) or ".")
            )

    def _where(self) -> str:
        return f"{self._name}, episode {self.episodes}"
