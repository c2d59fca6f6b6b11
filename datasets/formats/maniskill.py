"""Reads the trajectories of ManiSkill (Tao and others, 2024): a group of HDF5 an episode, and a JSON file beside it.

    /traj_0, traj_1, ..   actions (T, n)   obs (T + 1, n), or obs/.. (T + 1, ..)   terminated (T,)   truncated (T,)
                          [success (T,)]   [fail (T,)]   [rewards (T,)]   env_states/.. (T + 1, ..)
    NAME.json             env_info (env_id, max_episode_steps, env_kwargs), episodes (episode_id, episode_seed,
                          control_mode, success, ..)

A demonstration may go on after its success: `terminated` of the last step says how it ended, and all of them are
kept as `infos/terminated`. `env_states`, from which the simulator can be set, are left out. Seeds, and what else the
JSON file says of an episode in plain values, become columns of episodes.
https://maniskill.readthedocs.io/en/latest/user_guide/datasets/demos.html
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from orlog.datasets.formats._containers.hdf5_files import is_hdf5, look_inside, names_in
from orlog.datasets.formats._containers.json_documents import read_json_object
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options
from orlog.datasets.formats._shared.mapped_arrays import Known, open_known
from orlog.datasets.formats._shared.places import Place, Places, files_of_arrays, open_arrays
from orlog.datasets.formats.formats import Format
from orlog.errors import SchemaError

LAYOUT = "ManiSkill's layout"
MOST_SEED = 2**63 - 1


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    given = [one for one in zip(asked.files, asked.sources, strict=True) if is_hdf5(one[0])]
    files, sources = zip(*given, strict=True) if given else (asked.files, asked.sources)
    asked = dataclasses.replace(asked, files=files, sources=sources)
    file, where = asked.only_file(LAYOUT)
    beside = file.with_suffix(".json")
    told: dict[str, Any] = {}
    if beside.is_file():
        told = read_json_object(beside, where, missing=f"{beside.name} is a link, or too large.")
    listed = _episodes(told, where)
    plain = [
        {key for key, value in one.items() if isinstance(value, (bool, float, int, str))}
        for one in listed.values()
    ]
    names = sorted(set.intersection(*plain) - {"episode_id", "episode_seed"}) if plain else []
    known = Known(
        columns={
            "action": "actions",
            "observation": "obs",
            "observation/*": "obs/*",
            "reward": "rewards",
            "terminated": "terminated",
            "truncated": "truncated",
            "infos/success": "success",
            "infos/fail": "fail",
        },
        episode="traj_*",
        places=Places(files_of_arrays, _open_groups),
        about=functools.partial(_about, listed, names),
        repeats_flags=True,
    )
    with open_known(known, asked) as opened:
        environment = told.get("env_info")
        if isinstance(environment, dict) and isinstance(environment.get("env_id"), str):
            opened.description = f"ManiSkill's {environment['env_id'][:200]}."
        if not told:
            opened.doubts.append(f"No {beside.name} beside the file, so seeds are not known.")
        yield opened


def _episodes(told: dict[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Return what the JSON file says of each episode, by the name of its group."""
    listed = told.get("episodes", [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise SchemaError(f"{where}: the JSON file beside it does not list episodes.")
    return {f"traj_{one.get('episode_id', place)}": one for place, one in enumerate(listed)}


def _open_groups(file: tuple[Path, str], options: Options) -> Generator[Place]:
    """Yield the groups of the file."""
    for place in open_arrays(file, options):
        if "actions" in place.names and not any(
            one.partition("/")[0] == "obs" for one in place.names
        ):
            raise SchemaError(
                f"{place.where}: has no obs, only states of the simulator; let ManiSkill make observations: "
                "python -m mani_skill.trajectory.replay_trajectory --traj-path FILE --obs-mode state"
            )
        yield place


def _about(
    episodes: dict[str, dict[str, Any]], names: list[str], place: Place
) -> tuple[dict[str, Any], int | None]:
    """Return these values of the episode of a group, and its seed."""
    said = episodes.get(place.where.rpartition(", ")[2])
    if said is None:
        if episodes:
            raise SchemaError(f"{place.where}: the JSON file beside it does not list this episode.")
        return {}, None
    seed = said.get("episode_seed")
    is_seed = type(seed) is int and 0 <= seed <= MOST_SEED
    return {name: said[name] for name in names}, seed if is_seed else None


def _recognizes(files: Sequence[Path]) -> bool:
    inside = [one for one in files if one.suffix != ".json"]
    return bool(inside) and all(map(is_hdf5, inside)) and look_inside(inside, _is_maniskill)


def _is_maniskill(file: Any) -> bool:
    names = names_in(file)
    return bool(names) and all(name.startswith("traj_") for name in names)


FORMAT = Format(
    name="maniskill",
    open=_open,
    recognizes=_recognizes,
    extensions=(".h5", ".hdf5", ".json"),
    shares=True,
    reads=("traj_#/**", "env_info", "episodes"),
)
