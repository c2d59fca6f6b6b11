"""Environments by the id that Gymnasium registers, and the extras that install them.

Ids under `orlog/` are orlog's own, those of `_OWN` and of `counterparts.py`: they are registered when they
are first used. Other ids may need a module of the user's own: `import_modules` imports it, here and in
worker processes. Records name it beside the id, and what records name is never imported.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from orlog.errors import MissingExtraError, NotFoundError, SchemaError, SimulatorError, clause
from orlog.manifests.counterparts import counterpart
from orlog.manifests.manifest import EnvironmentRecord

# Start of an environment id -> (module that registers it, what `pip install` needs to install it, distributions whose
# versions decide what the simulator does). MO-Gymnasium depends on pygame, which would overwrite files of
# pygame-ce, on which other worlds depend; so it comes without its dependencies.
_FAMILIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "PointMaze_": ("gymnasium_robotics", "orlog[mujoco]", ("gymnasium-robotics", "mujoco")),
    "orlog/Coin-": ("textworld", "orlog[words]", ("textworld",)),
    "orlog/FetchFrames-": ("gymnasium_robotics", "orlog[mujoco]", ("gymnasium-robotics", "mujoco")),
    "orlog/GoTo-": ("minigrid", "orlog[words]", ("minigrid",)),
    "FetchPickAndPlace": ("gymnasium_robotics", "orlog[mujoco]", ("gymnasium-robotics", "mujoco")),
    "orlog/Treasure-": ("mo_gymnasium", "--no-deps mo-gymnasium pygame-ce", ("mo-gymnasium",)),
    "orlog/Gathering-": ("mo_gymnasium", "--no-deps mo-gymnasium pygame-ce", ("mo-gymnasium",)),
    "orlog/ICUSepsis-": ("icu_sepsis", "icu-sepsis", ("icu-sepsis",)),
    "orlog/spread-": ("mpe2", "orlog[agents]", ("mpe2", "orlog", "pettingzoo")),
    "orlog/tag-": ("mpe2", "orlog[agents]", ("mpe2", "orlog", "pettingzoo")),
    "orlog/ogbench-": ("ogbench", "orlog[ogbench]", ("dm_control", "mujoco", "ogbench")),
    "orlog/metaworld-": ("metaworld", "orlog[tasks]", ("metaworld", "mujoco")),
    "orlog/": ("gymnasium_robotics", "orlog[mujoco]", ("gymnasium-robotics", "mujoco", "orlog")),
    "LunarLander": ("Box2D", "box2d", ("box2d",)),
    **{
        f"{name}-v{version}": ("mujoco", "orlog[mujoco]", ("mujoco",))
        for name in ("Hopper", "HalfCheetah", "Walker2d", "Ant")
        for version in (4, 5)
    },
}
# The one that is made of another environment, which its arguments `environment` and `arguments` name.
UNCERTAIN = "orlog/uncertain-v0"
# orlog's own environments: id -> (entry point, steps of an episode; None where the world itself counts them).
_OWN: dict[str, tuple[str, int | None]] = {
    "orlog/Catch-v0": ("orlog.datasets.worlds.pixels:Catch", 150),
    "orlog/Coin-v0": ("orlog.datasets.worlds.words:Coin", 15),
    "orlog/GoTo-v0": ("orlog.datasets.worlds.words:GoTo", 12),
    "orlog/Reach-v0": ("orlog.datasets.worlds.pixels:Reach", 40),
    "orlog/Treasure-v0": ("orlog.datasets.worlds.objectives:treasure", 100),
    "orlog/Gathering-v0": ("orlog.datasets.worlds.objectives:gathering", 100),
    "orlog/Shop-v0": ("orlog.datasets.worlds.bandits:Shop", 1),
    "orlog/Taxi-v0": ("orlog.datasets.worlds.tabular:taxi", 200),
    "orlog/FrozenLake-v0": ("orlog.datasets.worlds.tabular:frozen_lake", 200),
    "orlog/ICUSepsis-v0": ("orlog.datasets.worlds.tabular:icu_sepsis", 500),
    "orlog/spread-v0": ("orlog.datasets.worlds.agents:spread", 25),
    "orlog/tag-v0": ("orlog.datasets.worlds.agents:tag", 25),
    "orlog/FetchFrames-v0": ("orlog.datasets.worlds.demos:FetchFrames", 50),
    "orlog/Hazard-v0": ("orlog.datasets.worlds.safety:Hazard", 100),
    "orlog/Circle-v0": ("orlog.datasets.worlds.safety:Circle", 100),
    UNCERTAIN: ("orlog.datasets.worlds.uncertain:uncertain", None),
    "orlog/ogbench-pointmaze-medium-v1": ("orlog.datasets.worlds.ogbench:medium_maze_tasks", 1000),
    "orlog/ogbench-cube-single-v1": ("orlog.datasets.worlds.ogbench:cube_tasks", 200),
    "orlog/metaworld-mt10-v0": ("orlog.datasets.worlds.tasks:MetaWorld", 200),
    "orlog/metaworld-mt50-v0": ("orlog.datasets.worlds.tasks:fifty_tasks", 200),
}
# Those that stand for a benchmark's, by the name of the adapter in the catalogue of counterparts.
_ADAPTERS = {
    "ant": "orlog.datasets.worlds.d4rl:Ant",
    "antmaze": "orlog.datasets.worlds.d4rl:AntMaze",
    "maze2d": "orlog.datasets.worlds.d4rl:Maze2d",
    "adroit": "orlog.datasets.worlds.d4rl:Adroit",
    "kitchen": "orlog.datasets.worlds.d4rl:Kitchen",
}
# Packages that register environments when they are imported; Gymnasium finds the rest by itself.
_REGISTERING = ("gymnasium_robotics", "minigrid", "ale_py")
# The user's modules that register environments, with commas between them; worker processes inherit it.
IMPORTS = "ORLOG_IMPORT"
_registered_by: dict[str, str] = {}
_TUPLE = "__tuple__"
_ID = re.compile(r"[A-Za-z0-9_./-]+-v[0-9]+")


def make_environment(
    environment_id: str, kwargs: Mapping[str, Any], *, max_episode_steps: int | None = None
) -> gymnasium.Env[Any, Any]:
    """Return a new environment, with the time limit registered for its id unless one is given.

    Only ids that the installed Gymnasium registers are accepted. An id that names a module to import
    (`module:Env-v0`) is refused, since ids come with datasets. Their arguments do too:
    `orlog.datasets.home.consent` decides whether those may be used.
    """
    arguments = own_arguments(environment_id, kwargs)
    if max_episode_steps is not None:
        arguments["max_episode_steps"] = max_episode_steps
    try:
        with warnings.catch_warnings():
            # The version that data name is the one that is meant, even if there are newer ones.
            warnings.filterwarnings("ignore", r".*The environment .* is out of date")
            env = gymnasium.make(environment_id, disable_env_checker=True, **arguments)
    except MissingExtraError:  # of the world inside another one
        raise
    except Exception as error:  # environments run any code and raise anything
        raise SimulatorError(
            f"environment {environment_id} cannot be made with the arguments {arguments!r:.200}: "
            f"{type(error).__name__}: {error!s:.500}."
        ) from error
    # A maze is passed to MuJoCo in a file, which is read once and would never be deleted. Older mazes
    # all have one name, so that another process may be about to read it.
    leftover = getattr(env.unwrapped, "tmp_xml_file_path", None)
    if leftover is not None:
        folder, name = os.path.split(leftover)
        if folder == tempfile.gettempdir() and name != "ant_maze.xml":
            Path(leftover).unlink(missing_ok=True)
    return env


def imported_modules() -> list[str]:
    """Return the modules that this process imports to register environments, as they were named."""
    return [module for module in os.environ.get(IMPORTS, "").split(",") if module]


def import_modules(names: Iterable[str]) -> None:
    """Import modules that register environments, now and in the processes that this one starts.

    They may be paths of files (`my_envs.py`), or lie in the current folder.
    """
    modules: list[str] = []
    for name in (*imported_modules(), *names):
        path = Path(f"{name.replace('.', '/')}.py") if not name.endswith(".py") else Path(name)
        here = next((place for place in (path, path.with_suffix("")) if place.exists()), None)
        if name.endswith(".py") or (here and importlib.util.find_spec(name.split(".")[0]) is None):
            # As a path, so that a process that starts in another folder finds it.
            name = str(path.absolute())
        _import_named(name)
        modules += [] if name in modules else [name]
    if modules:
        os.environ[IMPORTS] = ",".join(modules)


def _import_named(name: str) -> None:
    """Import a module, or the file or package at a path, and note the environments it registers."""
    before, module = {*gymnasium.registry}, name
    if name.endswith(".py"):
        path = Path(name)
        module = path.stem
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise SimulatorError(f"{name}: its import failed: {clause(error)}.") from error
        raise NotFoundError(f"there is no module {name} to import (--import, {IMPORTS}).") from error
    except Exception as error:  # a user's code raises anything
        raise SimulatorError(f"{name}: its import failed: {type(error).__name__}: {clause(error)}.") from error
    _registered_by.update(dict.fromkeys({*gymnasium.registry} - before, module))


def check_installed(environment_id: str) -> None:
    """Refuse an environment whose packages are not installed.

    Raises MissingExtraError if the package that registers this id is not installed; NotFoundError if no
    package that orlog knows registers this id.
    """
    _registered(environment_id)


def own_arguments(environment_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that differ from those registered for an environment's id.

    Equal ones are left out. Older manifests hold tuples as lists, which count as equal.

    Raises MissingExtraError if the package that registers this id is not installed; NotFoundError if no
    package that orlog knows registers this id.
    """
    registered = _registered(environment_id).kwargs
    return {
        name: value
        for name, value in ((name, _from_json(value)) for name, value in kwargs.items())
        if name not in registered or not _are_equal(value, registered[name])
    }


def _registered(environment_id: str) -> EnvSpec:
    family = _family(environment_id)
    if family is not None:
        module, install, _ = family
        try:
            _import_quietly(module)
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"{environment_id} needs {error.name}, which is not installed", install=install
            ) from error
    _register_own(environment_id)
    if not _ID.fullmatch(environment_id) or not _is_registered(environment_id):
        raise NotFoundError(
            f"environment {environment_id!r} is not registered with the installed Gymnasium "
            f"{gymnasium.__version__}; install the package that provides it and import it first; for "
            f"commands: --import MODULE, or {IMPORTS}=MODULE."
        )
    return gymnasium.registry[environment_id]


def _register_own(environment_id: str) -> None:
    if environment_id in gymnasium.registry:
        return
    if environment_id in _OWN:
        entry_point, steps = _OWN[environment_id]
        gymnasium.register(environment_id, entry_point=entry_point, max_episode_steps=steps)
        return
    own = counterpart(environment_id)
    if own is not None and own.counterpart is not None:
        gymnasium.register(
            environment_id,
            entry_point=_ADAPTERS[own.counterpart.adapter],
            max_episode_steps=own.horizon,
            kwargs=own.counterpart.arguments,
        )


def _is_registered(environment_id: str) -> bool:
    for module in _REGISTERING:
        if environment_id in gymnasium.registry:
            break
        with contextlib.suppress(ModuleNotFoundError):
            _import_quietly(module)
    if environment_id not in gymnasium.registry:
        import_modules(())
    return environment_id in gymnasium.registry


def _are_equal(value: object, other: object) -> bool:
    """Return whether two arguments are equal; a tuple equals a list of the same items."""
    try:
        return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)
    except (TypeError, ValueError):
        return False


def _to_json(value: Any) -> Any:
    """Return an argument in which tuples are marked: `(2, 5)` is `{"__tuple__": [2, 5]}`."""
    if isinstance(value, dict):
        if _TUPLE in value:
            raise ValueError(f"the key {_TUPLE} is reserved, since it marks tuples; rename it.")
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_to_json(item) for item in value]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    return value


def _from_json(value: Any) -> Any:
    """Undo `_to_json`; lists in older manifests stay lists."""
    if isinstance(value, dict):
        if value.keys() == {_TUPLE} and isinstance(value[_TUPLE], list):
            return tuple(_from_json(value[_TUPLE]))
        return {key: _from_json(item) for key, item in value.items()}
    return [_from_json(item) for item in value] if isinstance(value, list) else value


def world_behind(record: EnvironmentRecord) -> EnvironmentRecord | None:
    """Return the environment that an environment is made of; None if it is made of no other."""
    world, arguments = record.kwargs.get("environment"), record.kwargs.get("arguments", {})
    if record.id != UNCERTAIN or world == UNCERTAIN:
        return None
    if not isinstance(world, str) or not isinstance(arguments, dict):
        return None
    return EnvironmentRecord(id=world, kwargs=arguments, max_episode_steps=None, versions={})


def environment_versions(environment_id: str, kwargs: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the versions of the packages that determine what this environment does, with these arguments."""
    record = EnvironmentRecord(id=environment_id, kwargs=dict(kwargs or {}), max_episode_steps=None, versions={})
    world = world_behind(record)
    family = _family(environment_id if world is None else world.id)
    packages = ("gymnasium", "numpy", *(family[2] if family else ()))
    return {package: importlib.metadata.version(package) for package in sorted(packages)}


def environment_record(env: gymnasium.Env[Any, Any] | EnvSpec) -> EnvironmentRecord:
    """Return what recreates an environment of `gymnasium.make`: id, arguments, time limit, versions of packages."""
    spec = env if isinstance(env, EnvSpec) else env.spec
    if spec is None:
        raise SchemaError("this environment has no id: make it with gymnasium.make.")
    kwargs = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    try:
        kwargs = json.loads(json.dumps(_to_json(kwargs), allow_nan=False))
    except (RecursionError, TypeError, ValueError) as error:
        raise SchemaError(f"arguments of {spec.id} cannot be kept as JSON: {clause(error)}.") from error
    versions = environment_versions(spec.id, kwargs)
    for package in _packages_of(str(spec.entry_point)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return EnvironmentRecord(
        id=spec.id,
        kwargs=kwargs,
        max_episode_steps=spec.max_episode_steps,
        versions=dict(sorted(versions.items())),
        module=_registered_by.get(spec.id, ""),
    )


def _packages_of(entry_point: str) -> list[str]:
    module = entry_point.partition(":")[0]
    packages = _distributions().get(module.partition(".")[0], [])
    return [*packages, *(["mujoco"] if ".mujoco" in module else [])]


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Return which installed packages hold each module; slow, as it reads all their file lists."""
    return importlib.metadata.packages_distributions()


def _import_quietly(module: str) -> None:
    """Import a package without showing what it prints about its unrelated environments."""
    if module not in sys.modules:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            gymnasium.register_envs(importlib.import_module(module))


def _family(environment_id: str) -> tuple[str, str, tuple[str, ...]] | None:
    for start, family in _FAMILIES.items():
        if environment_id.startswith(start) and (start != "orlog/" or environment_id not in _OWN):
            return family
    return None
