"""`DatasetWriter`: records a new version of a dataset, or appends to one, and survives a kill.

    $ORLOG_HOME/datasets/NAME/.VERSION.recording/journal.json     what is acknowledged
                                                 pending-N        rows after the full shards
                                                 episodes-N       episodes after journal N
                                                 part/            full shards
    $ORLOG_HOME/datasets/NAME/VERSION/                            appears whole, at the end

Acknowledged rows are on disk: full shards, and the rows after these in a file next to the journal.
Each journal replaces the previous one in one step. Resuming reads back what the journal lists and
drops the rest. An appended version shares the files of the version it appends to (hard links) and
adds a part.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from orlog.base.files import storage_errors, sync, sync_folders
from orlog.datasets.columns.episode import Columns, Episode
from orlog.datasets.columns.schema import Schema
from orlog.datasets.home.consent import note_environment
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.meaning import check_unchanged
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given, as_dataset, with_all_files
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.recording.finishing import Facts, finish_version
from orlog.datasets.recording.journal import read_journal, restore, schema_json, write_journal
from orlog.datasets.recording.layout import lay_out_version
from orlog.datasets.recording.log import EpisodeLog, logged_episodes
from orlog.datasets.recording.starting import (
    check_facts,
    given_schema,
    lock_version,
    new_name,
    refuse_existing_version,
    refuse_masks,
)
from orlog.datasets.store.encoding import Encoding
from orlog.datasets.worlds.environments import environment_record
from orlog.errors import IntegrityError, SchemaError, StorageError
from orlog.manifests.manifest import Container, Manifest, Parent
from orlog.manifests.names import counted, version_parts
from orlog.manifests.roles import check_roles, spread_roles

CHECKPOINT_SECONDS = 60.0


class _How(NamedTuple):
    """How a version is recorded, as `DatasetWriter` takes it."""

    encodings: Mapping[str, Encoding] | None
    resume: bool
    discard: bool
    checkpoint_seconds: float
    keep_every_episode: bool
    strict: bool


class DatasetWriter:
    """Records episodes into a new version of a dataset under ORLOG_HOME, in bounded memory.

    As a context manager, it finishes the version at the end; after an error it acknowledges whole
    episodes and stops. `add_episode` takes whole episodes; `add_steps` and `end_episode` take
    episodes of any length in pieces. `checkpoint` acknowledges all whole episodes: they survive if
    the process is killed later. It also runs by itself when an episode ends at least a minute after
    the last checkpoint.

    Attributes:
        folder: Where the finished version lies, or will lie.
        total_episodes: Whole episodes so far, including those of a resumed recording; when
            appending, only the new ones.
        total_steps: Steps of these episodes.
    """

    def __init__(
        self,
        name: str,
        *,
        observation_space: gymnasium.Space[Any] | None = None,
        action_space: gymnasium.Space[Any] | None = None,
        environment: gymnasium.Env[Any, Any] | EnvSpec | None = None,
        version: str = "1.0.0",
        reward_dtype: Any = np.float64,
        description: str = "",
        license: str = "",  # noqa: A002 (the word of the manifest)
        behavior_policy: str = "",
        changes: str = "",
        roles: Mapping[str, str] | None = None,
        container: Container = "zarr",
        encodings: Mapping[str, Encoding] | None = None,
        resume: bool = False,
        discard: bool = False,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        keep_every_episode: bool = False,
        strict: bool = False,
    ) -> None:
        """Start a version, or resume an interrupted recording of it.

        Args:
            name: Name of the dataset without version, for example `lab/arm-v1`.
            observation_space: Space of observations; taken from `environment` if it is given.
            action_space: Space of actions; taken from `environment` if it is given.
            environment: The environment in which the data are recorded, or its `spec`. Its id,
                arguments and package versions are kept, so that policies can be evaluated in it.
            version: Content version, `major.minor.patch`.
            reward_dtype: float32 or float64.
            description: What the data are, in a sentence or two.
            license: SPDX identifier.
            behavior_policy: What chose the actions.
            changes: What is new since the previous version.
            roles: What columns mean, by their names or patterns such as `infos/agents/*/harm`; those with
                usual names need none (docs/families.md).
            container: `zarr`, or `hdf5` for a single file.
            encodings: Chunks and codecs of some columns; see `orlog.datasets.store.encoding`.
            resume: Continue an interrupted recording of this version, if there is one.
            discard: Drop an interrupted recording of this version, if there is one.
            checkpoint_seconds: Time between automatic acknowledgements.
            keep_every_episode: Also keep the episodes since the last acknowledgement if the process
                is killed, by writing their rows to a file of its own at once. This waits for no
                disk, so that a power cut can still lose them.
            strict: Refuse observations and actions outside their Box. Otherwise they are recorded
                and counted in the manifest, `orlog show` shows them and training warns about them.
                NaN is never refused.

        Raises:
            VersionExistsError: the version exists; versions are never overwritten.
            StorageError: an interrupted recording exists and is neither resumed nor discarded, or
                another process is writing this version.
            SchemaError: spaces are missing or cannot be stored, or a role is unknown. A role that does not
                fit is named once the first episode ended, which is kept.
            InvalidNameError: the name is invalid, or contains a version.
        """
        schema = given_schema(name, observation_space, action_space, environment, reward_dtype)
        record = None if environment is None else environment_record(environment)
        facts = Facts(
            name=name,
            version=version,
            description=description,
            license=license,
            behavior_policy=behavior_policy,
            environment=record,
            changes=changes,
            roles=roles or {},
        )
        how = _How(encodings, resume, discard, checkpoint_seconds, keep_every_episode, strict)
        self._start(schema, facts, container, None, how)
        if record is not None:
            note_environment(record)

    @classmethod
    def append(
        cls,
        dataset: Given,
        *,
        version: str | None = None,
        changes: str = "",
        roles: Mapping[str, str] | None = None,
        encodings: Mapping[str, Encoding] | None = None,
        resume: bool = False,
        discard: bool = False,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        keep_every_episode: bool = False,
        strict: bool = False,
    ) -> DatasetWriter:
        """Start a version that holds everything in `dataset`, followed by new episodes.

        The files of `dataset` are shared, not copied. Without a `version`, the minor number grows
        by one. `roles` are given besides those of `dataset`. Other arguments and errors are those of `DatasetWriter`.
        """
        dataset = as_dataset(dataset)
        if dataset.operation is not None:
            raise SchemaError(
                f"{dataset.name}: a view cannot be appended to; save_dataset stores it as a version."
            )
        base = with_all_files(dataset).manifest
        (major, minor, _), rebuild = version_parts(dataset.version)
        facts = Facts(
            name=base.name,
            version=version or f"{major}.{minor + 1}.0{rebuild}",
            description=base.description,
            license=base.license,
            behavior_policy=base.behavior_policy,
            environment=base.environment,
            benchmark=base.benchmark,
            dimension_names=base.dimension_names,
            roles={**base.roles, **(roles or {})},
            changes=changes,
            lineage=[Parent(digest=dataset.digest, operation="append")],
        )
        how = _How(encodings, resume, discard, checkpoint_seconds, keep_every_episode, strict)
        writer = cls.__new__(cls)
        writer._start(dataset.schema, facts, base.container, dataset, how)
        return writer

    def _start(
        self, schema: Schema, facts: Facts, container: Container, base: Dataset | None, how: _How
    ) -> None:
        name, version = facts["name"], facts["version"]
        wanted = new_name(name, version)
        self.name, self.version = wanted.name, wanted.version
        self.folder = datasets_folder() / wanted.name / version
        self._base, self._container, self._facts = base, container, facts
        self._recording = self.folder.with_name(f".{version}.recording")
        self._checkpoint_seconds = how.checkpoint_seconds
        self._acknowledged = 0
        self._journal_number = 0
        self._are_roles_checked = False
        self._done = False
        self._log = EpisodeLog(self._recording) if how.keep_every_episode else None
        self._wanted = wanted
        self._lock = lock_version(self.folder)
        try:
            if how.discard:
                with storage_errors(self._recording):
                    shutil.rmtree(self._recording, ignore_errors=True)
            refuse_existing_version(wanted)
            check_facts(wanted, schema, container, facts)
            if container == "hdf5":
                from orlog.datasets.store.hdf5 import import_h5py

                import_h5py()
            journal = read_journal(self._recording)
            if journal is not None and not how.resume:
                raise StorageError(  # noqa: TRY301 (the lock is released below)
                    f"{self._recording}: an interrupted recording of {wanted} is here, with "
                    f"{counted(journal['episodes'], 'episode')} acknowledged; resume=True continues it, "
                    "discard=True drops it."
                )
            self._new_writer = functools.partial(
                EpisodeWriter,
                self._recording / "part",
                schema,
                str(wanted),
                encodings=how.encodings,
                first_decides=base is None,
                strict=how.strict,
                log=self._log,
            )
            self._writer = self._new_writer()
            self._ended: dict[str, int] = {}
            self._header = {
                "name": self.name,
                "version": self.version,
                "container": container,
                "base": "" if base is None else base.digest,
                "schema": schema_json(schema),
            }
            if journal is not None:
                self._resume(journal)
        except BaseException:
            self._lock.release()
            raise
        self._next_checkpoint = time.monotonic() + how.checkpoint_seconds

    def __repr__(self) -> str:
        """Return name, version, and the totals so far."""
        return (
            f"DatasetWriter({self._wanted}, {counted(self.total_episodes, 'episode')}, "
            f"{counted(self.total_steps, 'step')})"
        )

    @property
    def schema(self) -> Schema:
        """The columns; those of infos and episodes are known once the first episode has ended."""
        return self._writer.schema

    @property
    def total_episodes(self) -> int:
        """Whole episodes so far, without those of the version being appended to."""
        return self._writer.episodes

    @property
    def total_steps(self) -> int:
        """Steps of these episodes."""
        return self._writer.steps

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Finish the version; after an error, acknowledge whole episodes and stop."""
        try:
            if raised[0] is None and not self._done:
                self.finish()
            elif not self._done and self._writer.episodes > 0:
                with contextlib.suppress(StorageError, IntegrityError):
                    self.checkpoint()
        finally:
            self.close()

    def add_episode(self, episode: Episode) -> None:
        """Add a whole episode.

        Raises:
            SchemaError: it does not fit; nothing of it was written.
            StorageError: the disk is full; what was acknowledged is kept.
        """
        self._check_open()
        self._writer.add_episode(episode)
        self._episode_ended()

    def add_steps(
        self,
        *,
        observations: Columns,
        actions: Columns,
        rewards: np.ndarray | Sequence[float],
        terminations: np.ndarray | Sequence[bool],
        truncations: np.ndarray | Sequence[bool],
        infos: Mapping[str, Columns] | Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Add n steps to the open episode, or start one.

        The first call of an episode takes n + 1 observations, starting with that of the reset;
        later calls take n, the observation after each action. Lists of numbers and flags, and infos
        as a list with a dict for each step, are accepted if they convert without loss. Raises as
        `add_episode` does.
        """
        self._check_open()
        self._writer.add_steps(
            observations=observations,
            actions=actions,
            rewards=rewards,
            terminations=terminations,
            truncations=truncations,
            infos=infos or {},
        )

    def end_episode(
        self, *, seed: int | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Close the open episode; if no flag ends it, it counts as unfinished.

        Raises:
            SchemaError: no episode is open, or seed or metadata do not fit.
        """
        self._check_open()
        self._writer.end_episode(seed=seed, metadata=metadata or {})
        self._episode_ended()

    def discard_episode(self) -> None:
        """Drop the steps of the open episode, for example of a robot's failed run.

        This is free while the episode has not filled a shard; otherwise earlier episodes are read
        back from disk.

        Raises:
            SchemaError: no episode is open.
            StorageError: the disk is full; what was acknowledged is kept.
        """
        self._check_open()
        if self._writer.discard_open(self._ended):
            return
        self.checkpoint()
        self._writer.close()
        journal = read_journal(self._recording)
        if journal is None:
            shutil.rmtree(self._recording / "part")
        self._writer = self._new_writer()
        if journal is not None:
            self._ended = restore(self._recording, journal, self._writer)
            self.checkpoint()

    def checkpoint(self) -> int:
        """Acknowledge: make every whole episode durable, and return their number.

        It writes at most a shard (16 MiB) per column.

        Raises:
            StorageError: the disk is full; what was acknowledged before is kept.
        """
        self._check_open()
        with storage_errors(self._recording):
            self._writer.container.flush()
        if self._writer.episodes > 0:
            self._acknowledge()
        self._next_checkpoint = time.monotonic() + self._checkpoint_seconds
        return self._acknowledged

    def _acknowledge(self) -> None:
        """Record that all whole episodes are on disk; full shards must be durable already."""
        with storage_errors(self._recording):
            sync_folders(self._recording / "part")
            self._journal_number += 1
            write_journal(
                self._recording, self._journal_number, self._header, self._writer, self._ended
            )
        if self._log is not None:
            self._log.start(self._journal_number, whole=not self._writer.inside_episode)
            sync(self._recording)
        self._acknowledged = self._writer.episodes

    def finish(self) -> Path:
        """Write the remaining rows, put the version in place in one step, and return its folder.

        Raises:
            SchemaError: an episode is open, or there is none.
            VersionExistsError: the version was created by another process since the start.
            StorageError: the disk is full; what was acknowledged is kept.
        """
        self._check_open()
        if self._writer.inside_episode or self._writer.episodes == 0:
            self._writer.finish()
        self._check_roles()
        if self._acknowledged < self._writer.episodes and self._acknowledged > 0:
            self.checkpoint()
        written = self._writer.finish()
        store = self._recording / "store"
        try:
            with storage_errors(store):
                shutil.rmtree(store, ignore_errors=True)
                manifest, new = lay_out_version(
                    self._recording / "part",
                    written,
                    store,
                    container=self._container,
                    base=self._base,
                    facts=self._facts,
                )
            finish_version(
                store, manifest, self.folder, accept=self._accept, share=new, among=[manifest.name]
            )
        except BaseException:
            # All rows are on disk, so even a recording without a journal can be acknowledged now.
            if self._acknowledged < self._writer.episodes:
                with contextlib.suppress(StorageError):
                    self._acknowledge()
            raise
        shutil.rmtree(self._recording, ignore_errors=True)
        self._done = True
        self.close()
        return self.folder

    def close(self) -> None:
        """Stop; acknowledged episodes are kept for `resume=True`."""
        if self._log is not None:
            self._log.close()
        if not self._done:
            self._done = True
            self._writer.close()
            if self._acknowledged == 0:
                shutil.rmtree(self._recording, ignore_errors=True)
        self._lock.release()

    def _check_open(self) -> None:
        if self._done:
            raise ValueError(f"{self._wanted}: this writer is closed.")

    def _resume(self, journal: dict[str, Any]) -> None:
        if journal["header"] != self._header:
            raise SchemaError(
                f"{self._recording}: the interrupted recording of {self._wanted} has "
                "other spaces, another container or another base version; give the same, or "
                "discard=True."
            )
        self._ended = restore(self._recording, journal, self._writer)
        self._journal_number = journal["pending"]
        self._acknowledged = journal["episodes"]
        logged = list(logged_episodes(self._recording, self._journal_number))
        for blocks in logged:
            self._writer.add_again(blocks)
        if logged:
            self._note_end()
        # A dropped episode filled up a shard with acknowledged rows, which will be written again.
        rewritten = any(state["on_disk"] for state in journal["columns"].values())
        if logged or rewritten or self._log is not None:
            self.checkpoint()

    def _note_end(self) -> None:
        self._ended = {name: column.rows for name, column in self._writer.container.columns.items()}

    def _episode_ended(self) -> None:
        self._note_end()
        self._check_roles()
        # A log continues a journal, so the first episode needs one at once.
        log_is_due = self._log is not None and self._log.is_due
        if log_is_due or time.monotonic() >= self._next_checkpoint:
            self.checkpoint()

    def _check_roles(self) -> None:
        """Refuse, once, roles that do not fit and flags of legal choices without one; what was recorded is kept."""
        if self._are_roles_checked:
            return
        held = self.schema.held()
        roles = spread_roles(self._facts.get("roles", {}), held)
        try:
            refuse_masks(self._wanted, self.schema, roles)
            check_roles(roles, held, str(self._wanted))
        except SchemaError:
            self.checkpoint()
            raise
        self._are_roles_checked = True

    def _accept(self, manifest: Manifest) -> None:
        refuse_existing_version(self._wanted)
        check_unchanged(manifest)
