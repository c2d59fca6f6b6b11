"""What a writer checks and takes before the first episode of a version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from filelock import FileLock
from gymnasium.envs.registration import EnvSpec

from orlog.base.files import BusyError, storage_errors, take_lock
from orlog.datasets.columns.schema import Schema
from orlog.datasets.home.folders import version_folder
from orlog.datasets.home.meaning import check_unused, free_version
from orlog.datasets.recording.finishing import Facts, make_manifest
from orlog.errors import (
    InvalidNameError,
    SchemaError,
    StorageError,
    VersionExistsError,
    clause,
    wrong_type,
)
from orlog.manifests.manifest import Container, Part, PartColumn, manifest_from_text
from orlog.manifests.names import DatasetName, parse_name
from orlog.manifests.roles import check_masks, check_roles, spread_roles
from orlog.manifests.spaces import has_choices, storable_space


def given_schema(
    name: str,
    observation_space: gymnasium.Space[Any] | None,
    action_space: gymnasium.Space[Any] | None,
    environment: gymnasium.Env[Any, Any] | EnvSpec | None,
    reward_dtype: Any,
) -> Schema:
    """Return the columns of given spaces; those that are not given are the environment's."""
    given = {"observation_space": observation_space, "action_space": action_space}
    for parameter, space in given.items():
        if space is not None and not isinstance(space, gymnasium.Space):
            raise wrong_type(parameter, "a space of Gymnasium", space)
    if environment is not None and not isinstance(environment, gymnasium.Env | EnvSpec):
        raise wrong_type("environment", "an environment made by gymnasium.make", environment)
    if isinstance(environment, gymnasium.Env):
        observation_space = observation_space or environment.observation_space
        action_space = action_space or environment.action_space
    if observation_space is None or action_space is None:
        raise SchemaError(f"{name}: give observation_space and action_space, or an environment.")
    if np.dtype(reward_dtype) not in (np.float32, np.float64):
        raise SchemaError(f"{name}: reward_dtype must be float32 or float64, found {reward_dtype}.")
    return Schema(
        observation_space=storable_space(observation_space),
        action_space=storable_space(action_space),
        reward_dtype=np.dtype(reward_dtype),
    )


def new_name(name: str, version: str) -> DatasetName:
    """Return the name and the version of what is recorded, which the user gives apart."""
    if not isinstance(name, str):
        raise wrong_type("name", "a text such as 'lab/arm-v1'", name)
    if "@" in name:
        raise InvalidNameError(
            f"{name!r:.99}: a new dataset is named without its version; give that as version=."
        )
    return parse_name(f"{name}@{version}")


def lock_version(folder: Path) -> FileLock:
    """Return the lock of a version's folder, which no other process has."""
    try:
        with storage_errors(folder.parent):
            return take_lock(folder, longest_wait=0)
    except BusyError:
        raise StorageError(
            f"{folder}: another process is writing this version; wait for it, or choose another "
            "version."
        ) from None


def refuse_existing_version(wanted: DatasetName) -> None:
    """Refuse a version that is installed, or that was known with other content."""
    folder = version_folder(wanted.name, wanted.version)
    if folder.exists():
        free = free_version(wanted.name).rpartition("@")[2]
        raise VersionExistsError(
            f"{wanted} is in {folder} already; versions are never overwritten: give version={free!r}, "
            f"or run: orlog delete {wanted}"
        )
    check_unused(wanted.name, wanted.version)


def refuse_masks(wanted: DatasetName, schema: Schema, roles: Mapping[str, str]) -> None:
    """Refuse columns called as flags of legal choices are, if they limit none of the choices that there are."""
    if has_choices(schema.action_space):
        held = schema.held()
        check_masks(spread_roles(roles, held), held, str(wanted))


def check_facts(wanted: DatasetName, schema: Schema, container: Container, facts: Facts) -> None:
    """Refuse at the start what would make the manifest invalid at the end."""
    refuse_masks(wanted, schema, facts.get("roles", {}))
    nothing = PartColumn(rows=0, blake3="0" * 64)
    part = Part(episodes=0, steps=0, columns=dict.fromkeys(schema.columns(), nothing))
    try:
        check_roles(facts.get("roles", {}), None, str(wanted))
        known = Facts(
            **{**facts, "roles": {}}
        )  # columns of infos are known after the first episode
        manifest = make_manifest(schema, [part], [], container=container, non_finite={}, **known)
        manifest_from_text(manifest.to_json(), str(wanted))
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{wanted}: {clause(error)}.") from error
