"""What Minari datasets say of themselves in `metadata.json`, both ways, and how their values are read."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from orlog.datasets.formats.episodes import Options, tell_lack
from orlog.datasets.formats.safe_reading import read_json_object
from orlog.datasets.worlds.environments import own_arguments
from orlog.errors import OrlogError, SchemaError
from orlog.manifests.manifest import EnvironmentRecord, Manifest

METADATA_FILE = "metadata.json"
DEEPEST_NAME = 8
KEYS = (
    *("observation_space", "action_space", "total_episodes", "total_steps", "jpeg_encoding"),
    *("data_format", "dataset_size", "dataset_id", "minari_version", "env_spec", "description"),
    *("algorithm_name", "ref_min_score", "ref_max_score", "requirements", "license"),
)
# keys that become a sentence of the description
SAID = {"author": "Author", "author_email": "Their address", "code_permalink": "Code"}
# names in Minari's files that are read, or say what the data say
READS = (
    *(f"*metadata.json:{key}" for key in (*KEYS, *SAID)),
    "*observations*",
    "*/_index_#",
    "*infos*",
    *("*actions", "*rewards", "*terminations", "*truncations"),
    "observations",
    "infos",
    *("id", "seed", "total_steps", "options"),
    *(f"episode_#@{name}" for name in ("id", "seed", "total_steps", "options/**")),
)
_PINNED = re.compile(r"([A-Za-z0-9_.-]+)==([A-Za-z0-9_.+!-]+)")
_NUMBERED = re.compile(r".*-v\d+")
_REFERENCES = re.compile(r"Minari's reference returns: (\S+) for 0, (\S+) for 1\.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metadata:
    """What a Minari dataset says of itself; `data_format` is `hdf5`, `arrow` or `parquet`."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    total_episodes: int
    total_steps: int
    environment: EnvironmentRecord | None
    description: str
    behavior_policy: str
    license: str
    data_format: str


def read_metadata(file: Path, where: str) -> Metadata:
    """Return what `metadata.json` says.

    Raises SchemaError if it is not Minari's; IntegrityError if it is no JSON.
    """
    body = read_document(file, where)
    where = f"{where}, {file.name}"
    texts = [_text(body, "description")]
    low, high = body.get("ref_min_score"), body.get("ref_max_score")
    if isinstance(low, int | float) and isinstance(high, int | float):
        texts.append(f"Minari's reference returns: {low:.9g} for 0, {high:.9g} for 1.")
    for key, what in SAID.items():
        stated = body.get(key)
        named = [text for text in (stated if isinstance(stated, list) else [stated]) if text]
        named = [text for text in named if isinstance(text, str)]
        if named:
            texts.append(f"{what}: {', '.join(named)}.")
    return Metadata(
        observation_space=_space(body, "observation_space", where),
        action_space=_space(body, "action_space", where),
        total_episodes=_count(body, "total_episodes", where),
        total_steps=_count(body, "total_steps", where),
        environment=_environment(body),
        description=" ".join(filter(None, texts)),
        behavior_policy=_text(body, "algorithm_name"),
        license=_text(body, "license")[:200],
        data_format=str(body.get("data_format", "hdf5")),
    )


def read_document(file: Path, where: str) -> dict[str, Any]:
    """Return a document of a dataset or of an episode.

    Raises SchemaError if it is not there, or holds no object; IntegrityError if it is no JSON.
    """
    missing = f"has no {METADATA_FILE}, so it does not have Minari's layout."
    return read_json_object(file, where, missing=missing)


def references_in(description: str) -> tuple[float, float] | None:
    """Return the returns with score 0 and score 1 that `Metadata.description` holds, if any."""
    match = _REFERENCES.search(description)
    try:
        low, high = (float(match[1]), float(match[2])) if match else (0.0, 0.0)
    except ValueError:  # written by somebody else
        return None
    return (low, high) if math.isfinite(high - low) and low < high else None


def find_data(given: Path) -> Path:
    """Return the folder of `metadata.json`: `given`, `data` in it, or that of the only dataset below it.

    Minari lays datasets out as `NAMESPACE/NAME/data`, and so does orlog's export.
    """
    folder = given
    for _ in range(DEEPEST_NAME):
        for data in (folder, folder / "data"):
            if (data / METADATA_FILE).is_file():
                return data
        entries = folder.iterdir() if folder.is_dir() else ()
        inside = [path for path in entries if path.is_dir() and not path.is_symlink()]
        if len(inside) != 1:
            break
        (folder,) = inside
    return given / "data"


def numbers_here(
    here: Sequence[int], held: int, count: int, where: str, options: Options, notes: list[Any]
) -> Sequence[int]:
    """Return the numbers of the episodes to read: all that metadata.json counts, or those that are here."""
    if held != count or count == 0:
        error = SchemaError(f"{where}: holds {held} episodes, and metadata.json says {count}.")
        if held > count or not here:
            raise error
        tell_lack(options, notes, error)
        return here
    return range(count)


def metadata_of(manifest: Manifest, observations: spaces.Space[Any], actions: spaces.Space[Any]) -> dict[str, Any]:
    """Return the document for a dataset that is exported.

    Raises SchemaError if Minari has no form for a space.
    """
    body: dict[str, Any] = {
        "dataset_id": dataset_id(manifest.name),
        "data_format": "hdf5",
        "jpeg_encoding": False,  # frames as they are; JPEG would change them
        "observation_space": json.dumps(_space_json(observations, manifest.name)),
        "action_space": json.dumps(_space_json(actions, manifest.name)),
        "minari_version": "0.5.3",
        "description": manifest.description,
        "algorithm_name": manifest.behavior_policy,
        "author": [],
        "author_email": [],
        "requirements": [],
    }
    if manifest.license:
        body["license"] = manifest.license  # Minari has no such key, and keeps those that it does not know
    environment = manifest.environment
    if environment is not None:
        body["requirements"] = [f"{name}=={version}" for name, version in environment.versions.items()]
        spec = _spec(environment)
        if spec is not None:
            body["env_spec"] = spec.to_json()
    return body


def dataset_id(name: str) -> str:
    """Return a name as Minari wants it, with a version at its end."""
    return name if _NUMBERED.fullmatch(name) else f"{name}-v0"


def _spec(environment: EnvironmentRecord) -> EnvSpec | None:
    """Return what makes an environment, as Gymnasium registers it here; None if it does not."""
    try:
        arguments = own_arguments(environment.id, environment.kwargs)
        spec = copy.deepcopy(gymnasium.spec(environment.id))
        spec.kwargs = {**spec.kwargs, **arguments}
        spec.max_episode_steps = environment.max_episode_steps
        made_by: Any = spec.entry_point
        if isinstance(made_by, type):  # JSON holds its name alone
            spec.entry_point = f"{made_by.__module__}:{made_by.__qualname__}"
        spec.to_json()
    except (OrlogError, TypeError, ValueError):
        return None
    return spec


def _environment(body: Mapping[str, Any]) -> EnvironmentRecord | None:
    """Return the environment, unless its id names a module to import."""
    try:
        spec = json.loads(_text(body, "env_spec") or "null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(spec, dict) or not isinstance(spec.get("id"), str) or ":" in spec["id"]:
        return None
    steps, kwargs, required = (spec.get("max_episode_steps"), spec.get("kwargs"), body.get("requirements"))
    lines = required if isinstance(required, list) else []
    pinned = [_PINNED.fullmatch(line) for line in lines if isinstance(line, str)]
    return EnvironmentRecord(
        id=spec["id"][:200],
        kwargs=kwargs if isinstance(kwargs, dict) else {},
        max_episode_steps=steps if isinstance(steps, int) and steps > 0 else None,
        versions={pin[1]: pin[2] for pin in pinned if pin},
    )


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    return value if isinstance(value, str) else ""


def _count(body: Mapping[str, Any], key: str, where: str) -> int:
    value = body.get(key)
    if not isinstance(value, int | float) or not 0 <= value < 2**53 or value != int(value):
        raise SchemaError(f"{where}: expected {key} as a count, found {value!r:.50}.")
    return int(value)


def _space(body: Mapping[str, Any], key: str, where: str) -> gymnasium.Space[Any]:
    text = body.get(key)
    if not isinstance(text, str):
        raise SchemaError(
            f"{where}: has no {key}; that of the environment is not taken, since data must not make "
            "environments. Load and save the dataset by a newer minari, which writes it."
        )
    try:
        return _space_from(json.loads(text))
    except Exception as error:  # Gymnasium's spaces assert, and NumPy raises errors of all kinds
        raise SchemaError(f"{where}: {key} is no space that Minari writes: {error!r:.200}.") from error


def _space_from(body: Any) -> gymnasium.Space[Any]:
    match body["type"]:
        case "Dict":
            return spaces.Dict({key: _space_from(part) for key, part in body["subspaces"].items()})
        case "Tuple":
            return spaces.Tuple([_space_from(part) for part in body["subspaces"]])
        case "Discrete":
            return spaces.Discrete(int(body["n"]), start=int(body.get("start", 0)))
        case "MultiBinary":
            size = body["n"]
            return spaces.MultiBinary(size if isinstance(size, int) else [*map(int, size)])
        case "MultiDiscrete":
            dtype: Any = np.dtype(body.get("dtype", "int64")).type
            start = None if body.get("start") is None else np.array(body["start"], dtype)
            return spaces.MultiDiscrete(np.array(body["nvec"], dtype), dtype=dtype, start=start)
        case "Text":
            least, most = int(body["min_length"]), int(body["max_length"])
            return spaces.Text(most, min_length=least, charset=body["charset"])
        case "Box":
            shape, kind = tuple(map(int, body["shape"])), np.dtype(body["dtype"]).type
            low, high = (np.array(body[end], kind).reshape(shape) for end in ("low", "high"))
            return spaces.Box(low, high, shape, kind)
    raise ValueError(f"a space of the type {body['type']!r:.50}")


def _space_json(space: gymnasium.Space[Any], name: str) -> dict[str, Any]:
    body: dict[str, Any] = {"type": type(space).__name__}
    match space:
        case spaces.Dict():
            parts = {key: _space_json(part, name) for key, part in space.spaces.items()}
            return body | {"subspaces": parts}
        case spaces.Tuple():
            return body | {"subspaces": [_space_json(part, name) for part in space.spaces]}
        case spaces.Box():
            ends = {"low": space.low.tolist(), "high": space.high.tolist()}
            return body | {"dtype": str(space.dtype), "shape": list(space.shape)} | ends
        case spaces.Discrete():
            return body | {"dtype": "int64", "start": int(space.start), "n": int(space.n)}
        case spaces.MultiDiscrete():
            values = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return body | {"dtype": str(space.dtype)} | values
        case spaces.MultiBinary():
            return body | {"n": np.asarray(space.n).tolist()}
        case spaces.Text():
            ends = {"max_length": space.max_length, "min_length": space.min_length}
            return body | ends | {"charset": space.characters}
    raise SchemaError(f"{name}: Minari has no form for the space {space!s:.100}.")
