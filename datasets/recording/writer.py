"""`DatasetWriter`: records a new version of a dataset, or appends to one, and survives a kill.

    $ORLOG_HOME/datasets/NAME/.VERSION.recording/    what is recorded so far, with its crash log
    $ORLOG_HOME/datasets/NAME/VERSION/               appears whole, at the end

Resuming reads back what the crash log has and drops the rest. An appended version shares the files of the version it
appends to (hard links) and adds a part.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from orlog.base.files import BusyError, storage_errors, take_lock
from orlog.datasets.columns.episode import Columns, Episode
from orlog.datasets.columns.schema import Schema
from orlog.datasets.home.consent import note_environment
from orlog.datasets.home.folders import datasets_folder, version_folder
from orlog.datasets.home.records import check_unchanged, check_unused, free_version
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given, as_dataset, with_all_files
from orlog.datasets.recording.crash_log import CrashLog, schema_json
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.recording.finishing import Facts, finish_version, lay_out_version, make_manifest
from orlog.datasets.store.encoding import Encoding
from orlog.datasets.worlds.environments import environment_record
from orlog.errors import (
    IntegrityError,
    InvalidNameError,
    SchemaError,
    StorageError,
    VersionExistsError,
    clause,
    wrong_type,
)
from orlog.manifests.manifest import Container, Manifest, Parent, Part, PartColumn, manifest_from_text
from orlog.manifests.names import counted, parse_name, version_parts
from orlog.manifests.roles import check_masks, check_roles, spread_roles
from orlog.manifests.spaces import has_choices, storable_space

CHECKPOINT_SECONDS = 60.0


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
        schema = _given_schema(name, observation_space, action_space, environment, reward_dtype)
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
        self._start(
            schema,
            facts,
            container,
            None,
            encodings=encodings,
            resume=resume,
            discard=discard,
            checkpoint_seconds=checkpoint_seconds,
            keep_every_episode=keep_every_episode,
            strict=strict,
        )
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
        **options: Any,
    ) -> DatasetWriter:
        """Start a version that holds everything in `dataset`, followed by new episodes.

        The files of `dataset` are shared, not copied. Without a `version`, the minor number grows
        by one. `roles` are given besides those of `dataset`. Other arguments and errors are those of
        `DatasetWriter`: `encodings`, `resume`, `discard`, `checkpoint_seconds`, `keep_every_episode`, `strict`.
        """
        dataset = as_dataset(dataset)
        if dataset.operation is not None:
            raise SchemaError(f"{dataset.name}: a view cannot be appended to; save_dataset stores it as a version.")
        base = with_all_files(dataset).manifest
        (major, minor, _), rebuild = version_parts(dataset.version)
        if base.videos:
            raise SchemaError(
                f"{base.name}: keeps videos, to which no rows are appended; first run: orlog save {base.name} NEW --video frames"
            )
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
        writer = cls.__new__(cls)
        writer._start(dataset.schema, facts, base.container, dataset, **options)
        return writer

    def _start(
        self,
        schema: Schema,
        facts: Facts,
        container: Container,
        base: Dataset | None,
        *,
        encodings: Mapping[str, Encoding] | None = None,
        resume: bool = False,
        discard: bool = False,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        keep_every_episode: bool = False,
        strict: bool = False,
    ) -> None:
        name, version = facts["name"], facts["version"]
        if not isinstance(name, str):
            raise wrong_type("name", "a text such as 'lab/arm-v1'", name)
        if "@" in name:
            raise InvalidNameError(f"{name!r:.99}: a new dataset is named without its version; give that as version=.")
        self._wanted = wanted = parse_name(f"{name}@{version}")
        self.name, self.version = wanted.name, wanted.version
        self.folder = datasets_folder() / wanted.name / version
        self._recording = self.folder.with_name(f".{version}.recording")
        self._schema, self._facts, self._container, self._base = schema, facts, container, base
        self._encodings, self._strict, self._checkpoint_seconds = encodings, strict, checkpoint_seconds
        self._header = {
            "name": self.name,
            "version": self.version,
            "container": container,
            "base": "" if base is None else base.digest,
            "schema": schema_json(schema),
        }
        self._are_roles_checked = self._done = False
        try:
            with storage_errors(self.folder.parent):
                self._lock = take_lock(self.folder, longest_wait=0)
        except BusyError:
            raise StorageError(
                f"{self.folder}: another process is writing this version; wait for it, or choose another version."
            ) from None
        try:
            if discard:
                with storage_errors(self._recording):
                    shutil.rmtree(self._recording, ignore_errors=True)
            self._refuse_existing_version()
            self._check_facts()
            if container == "hdf5":
                from orlog.datasets.store.hdf5 import import_h5py

                import_h5py()
            self._log = CrashLog(self._recording, keeps_blocks=keep_every_episode)
            if self._log.episodes and not resume:
                raise StorageError(  # noqa: TRY301 (the lock is released below)
                    f"{self._recording}: an interrupted recording of {wanted} is here, with "
                    f"{counted(self._log.episodes, 'episode')} acknowledged; resume=True continues it, "
                    "discard=True drops it."
                )
            self._start_part()
        except BaseException:
            self._lock.release()
            raise
        self._next_checkpoint = time.monotonic() + checkpoint_seconds

    def _start_part(self) -> None:
        """Write into a new part, after the episodes that the crash log has."""
        if self._log.episodes == 0:
            shutil.rmtree(self._recording / "part", ignore_errors=True)
        self._writer = EpisodeWriter(
            self._recording / "part",
            self._schema,
            str(self._wanted),
            encodings=self._encodings,
            first_decides=self._base is None,
            strict=self._strict,
            log=self._log.write,
        )
        self._ended = self._log.restore(self._header, self._writer, str(self._wanted))
        if self._writer.episodes > 0:
            # Also since a dropped episode may have filled up a shard with acknowledged rows, which is written again.
            self.checkpoint()

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

    def end_episode(self, *, seed: int | None = None, metadata: Mapping[str, Any] | None = None) -> None:
        """Close the open episode; if no flag ends it, it counts as unfinished.

        Raises:
            SchemaError: no episode is open, or seed or metadata do not fit.
        """
        self._check_open()
        self._writer.end_episode(seed, metadata or {})
        self._episode_ended()

    def discard_episode(self) -> None:
        """Drop the steps of the open episode, for example of a robot's failed run.

        Earlier episodes are acknowledged, and read back from disk if this one has filled a shard.

        Raises:
            SchemaError: no episode is open.
            StorageError: the disk is full; what was acknowledged is kept.
        """
        self._check_open()
        if not self._writer.inside_episode:
            raise SchemaError(f"{self._wanted}, episode {self.total_episodes}: has no steps to discard.")
        dropped = self._writer.drop_open(self._ended)
        self.checkpoint()
        if not dropped:
            self._writer.close()
            self._start_part()

    def checkpoint(self) -> int:
        """Acknowledge: make every whole episode durable, and return their number.

        It writes at most a shard (16 MiB) per column.

        Raises:
            StorageError: the disk is full; what was acknowledged before is kept.
        """
        self._check_open()
        self._writer.container.flush()
        if self._writer.episodes > 0:
            self._log.acknowledge(self._header, self._writer, self._ended)
        self._next_checkpoint = time.monotonic() + self._checkpoint_seconds
        return self._log.episodes

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
        if 0 < self._log.episodes < self._writer.episodes:
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
            finish_version(store, manifest, self.folder, accept=self._accept, share=new, among=[manifest.name])
        except BaseException:
            # All rows are on disk, so even a recording without a journal can be acknowledged now.
            if self._log.episodes < self._writer.episodes:
                with contextlib.suppress(StorageError):
                    self._log.acknowledge(self._header, self._writer, self._ended)
            raise
        shutil.rmtree(self._recording, ignore_errors=True)
        self._done = True
        self.close()
        return self.folder

    def close(self) -> None:
        """Stop; acknowledged episodes are kept for `resume=True`."""
        self._log.close()
        if not self._done:
            self._done = True
            self._writer.close()
            if self._log.episodes == 0:
                shutil.rmtree(self._recording, ignore_errors=True)
        self._lock.release()

    def _check_open(self) -> None:
        if self._done:
            raise ValueError(f"{self._wanted}: this writer is closed.")

    def _episode_ended(self) -> None:
        self._ended = {name: column.rows for name, column in self._writer.container.columns.items()}
        self._check_roles()
        if self._log.is_due or time.monotonic() >= self._next_checkpoint:
            self.checkpoint()

    def _check_facts(self) -> None:
        """Refuse at the start what would make the manifest invalid at the end."""
        wanted, roles = str(self._wanted), self._facts.get("roles", {})
        self._refuse_masks(self._schema)
        nothing = PartColumn(rows=0, blake3="0" * 64)
        columns = dict.fromkeys(self._schema.columns(), nothing)
        part = Part(episodes=0, steps=0, columns=columns)
        facts = Facts(**{**self._facts, "roles": {}})  # columns of infos are not known yet
        try:
            check_roles(roles, None, wanted)
            manifest = make_manifest(self._schema, [part], [], container=self._container, non_finite={}, **facts)
            manifest_from_text(manifest.to_json(), wanted)
        except (TypeError, ValueError) as error:
            raise SchemaError(f"{wanted}: {clause(error)}.") from error

    def _check_roles(self) -> None:
        """Refuse, once, roles that do not fit and flags of legal choices without one; what was recorded is kept."""
        if self._are_roles_checked:
            return
        held = self.schema.held()
        try:
            self._refuse_masks(self.schema)
            check_roles(spread_roles(self._facts.get("roles", {}), held), held, str(self._wanted))
        except SchemaError:
            self.checkpoint()
            raise
        self._are_roles_checked = True

    def _refuse_masks(self, schema: Schema) -> None:
        """Refuse columns called as flags of legal choices are, if they limit none of the choices that there are."""
        if has_choices(schema.action_space):
            held = schema.held()
            check_masks(spread_roles(self._facts.get("roles", {}), held), held, str(self._wanted))

    def _refuse_existing_version(self) -> None:
        """Refuse a version that is installed, or that was known with other content."""
        wanted = self._wanted
        folder = version_folder(wanted.name, wanted.version)
        if folder.exists():
            free = free_version(wanted.name).rpartition("@")[2]
            raise VersionExistsError(
                f"{wanted} is in {folder} already; versions are never overwritten: give version={free!r}, "
                f"or run: orlog delete {wanted}"
            )
        check_unused(wanted.name, wanted.version)

    def _accept(self, manifest: Manifest) -> None:
        self._refuse_existing_version()
        check_unchanged(manifest)


def _given_schema(
    name: str,
    observation_space: gymnasium.Space[Any] | None,
    action_space: gymnasium.Space[Any] | None,
    environment: gymnasium.Env[Any, Any] | EnvSpec | None,
    reward_dtype: Any,
) -> Schema:
    """Return the columns of given spaces; those that are not given are the environment's."""
    if isinstance(environment, gymnasium.Env):
        observation_space = observation_space or environment.observation_space
        action_space = action_space or environment.action_space
    elif not isinstance(environment, EnvSpec | None):
        raise wrong_type("environment", "an environment made by gymnasium.make", environment)
    if observation_space is None or action_space is None:
        raise SchemaError(f"{name}: give observation_space and action_space, or an environment.")
    given = {"observation_space": observation_space, "action_space": action_space}
    for parameter, space in given.items():
        if not isinstance(space, gymnasium.Space):
            raise wrong_type(parameter, "a space of Gymnasium", space)
    if np.dtype(reward_dtype) not in (np.float32, np.float64):
        raise SchemaError(f"{name}: reward_dtype must be float32 or float64, found {reward_dtype}.")
    return Schema(
        observation_space=storable_space(observation_space),
        action_space=storable_space(action_space),
        reward_dtype=np.dtype(reward_dtype),
    )
