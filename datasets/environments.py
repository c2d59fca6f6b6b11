"""Environments by the id that the installed Gymnasium registers, and the extras that bring them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from orlog.datasets.manifest import EnvironmentRecord
from orlog.errors import MissingExtraError, NotFoundError, SchemaError

__all__ = ["environment_record", "environment_versions", "make_environment"]

# Start of an environment id -> (module that registers it, extra of orlog that installs it,
# distributions whose versions decide what the simulator does).
_FAMILIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "PointMaze_": ("gymnasium_robotics", "pointmaze", ("gymnasium-robotics", "mujoco")),
}
_ID = re.compile(r"[A-Za-z0-9_./-]+-v[0-9]+")


def make_environment(
    environment_id: str, kwargs: Mapping[str, Any], *, max_episode_steps: int | None = None
) -> gymnasium.Env[Any, Any]:
    """Return a new environment, with the time limit that its id registers unless one is given.

    Only ids that the installed Gymnasium registers are made: an id that names a module to import
    (`module:Env-v0`) is refused, since ids come with datasets.

    Raises:
        MissingExtraError: the package that registers this id is not installed.
        NotFoundError: no package that orlog knows registers this id.
    """
    family = _family(environment_id)
    if family is not None:
        module, extra, _ = family
        try:
            _import_quietly(module)
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"{environment_id} needs {error.name}, which is not installed; run: "
                f'pip install "orlog[{extra}]"',
                extra=extra,
            ) from error
    if not _ID.fullmatch(environment_id) or environment_id not in gymnasium.registry:
        raise NotFoundError(
            f"environment {environment_id!r} is not registered with the installed Gymnasium "
            f"{gymnasium.__version__}; install the package that provides it and import it first"
        )
    limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    env = gymnasium.make(environment_id, disable_env_checker=True, **{**kwargs, **limit})
    # Mazes are described to MuJoCo in a file, which is read once and would stay for ever.
    leftover = getattr(env.unwrapped, "tmp_xml_file_path", None)
    if leftover is not None and Path(leftover).parent == Path(tempfile.gettempdir()):
        Path(leftover).unlink(missing_ok=True)
    return env


def environment_versions(environment_id: str) -> dict[str, str]:
    """Return the versions of the packages that decide what this environment does."""
    family = _family(environment_id)
    packages = ("gymnasium", "numpy", *(family[2] if family else ()))
    return {package: importlib.metadata.version(package) for package in sorted(packages)}


def environment_record(env: gymnasium.Env[Any, Any]) -> EnvironmentRecord:
    """Return what makes an environment again: id, arguments, time limit, versions of packages.

    Raises:
        SchemaError: it was not made by `gymnasium.make`, or its arguments are no JSON.
    """
    spec = env.spec
    if spec is None:
        raise SchemaError("this environment has no id: make it with gymnasium.make")
    kwargs = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    try:
        kwargs = json.loads(json.dumps(kwargs, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SchemaError(f"arguments of {spec.id} cannot be kept as JSON: {error}") from error
    versions = environment_versions(spec.id)
    for package in _packages_of(str(spec.entry_point)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return EnvironmentRecord(
        id=spec.id,
        kwargs=kwargs,
        max_episode_steps=spec.max_episode_steps,
        versions=dict(sorted(versions.items())),
    )


def _packages_of(entry_point: str) -> list[str]:
    module = entry_point.partition(":")[0]
    packages = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
    return [*packages, *(["mujoco"] if ".mujoco" in module else [])]


def _import_quietly(module: str) -> None:
    """Import a package that prints about unrelated environments of its own when it is imported."""
    if module not in sys.modules:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            gymnasium.register_envs(importlib.import_module(module))


def _family(environment_id: str) -> tuple[str, str, tuple[str, ...]] | None:
    for start, family in _FAMILIES.items():
        if environment_id.startswith(start):
            return family
    return None
