"""Reads the vaults of OG-MARL (Formanek and others, 2023), which flashbax writes: steps of several agents.

    NAME.vlt/UID/metadata.json      names, shapes and dtypes; UID is Good, Medium, Poor, Replay ..
    NAME.vlt/UID/manifest.ocdbt     a database of TensorStore, of arrays (1, time, ..):
        observations. (.., agents, n)   actions. (.., agents) or (.., agents, m)   rewards. (.., agents)
        terminals.  truncations. (.., agents)   infos.state. (.., s)   infos.legals. (.., agents, choices)
        vault_index   how many steps there are

Agents are stored as `orlog.record_parallel` stores them, by the names `agent_0`, `agent_1`, ..: observations and
actions are a Dict of theirs, the reward is their sum, and each one's own values are infos. An episode ends
when all agents are done. There is no final observation: the last step of an episode that was cut off is left
out and its observation is the final one; an episode that ended keeps it, with zeros as final observation.
A folder of several vaults becomes one dataset, whose `episodes/split` is the UID; `--task UID` takes one.
https://github.com/instadeepai/og-marl, https://github.com/instadeepai/flashbax
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._shared.episode_cutter import EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats._shared.episodes import Asked, Opened, Steps
from orlog.datasets.formats._shared.flat_rows import as_dtype, unbounded_space
from orlog.datasets.formats._shared.json_documents import read_json_object
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats.formats import Format
from orlog.errors import IntegrityError, OrlogError, SchemaError, needing
from orlog.manifests.names import did_you_mean

BLOCK_BYTES = 2**24
CACHE_BYTES = 2**26
MOST_CHOICES = 2**16
MOST_ROWS = 2**31
METADATA = "metadata.json"
DATABASE = "manifest.ocdbt"
INDEX = "vault_index"
OF_AGENTS = ("observations", "actions", "rewards", "terminals", "truncations")
LEGAL = "infos.legals"


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    folder, where = asked.files[0], asked.sources[0]
    uids = _uids(folder, where, asked.options.task)
    vaults = [_Vault(folder / uid, f"{where}, {uid}" if uid else where) for uid in uids]
    first = vaults[0]
    for one in vaults:
        if one.kinds != first.kinds:
            raise SchemaError(
                f"{one.where}: its arrays differ from those of {first.where} in names, dtypes or "
                "shapes; take one of the vaults with task=."
            )
    notes = [Note("left_out", first.left_out)] if first.left_out else []
    found = [_find_episodes(one, notes) for one in vaults]
    choices = max(one for _, one in found)
    if choices and LEGAL not in first.kinds:
        notes.append(Note("choices_by_largest"))
    kinds = {name: (dtype, shape[1:]) for name, (dtype, shape) in first.kinds.items()}
    action = spaces.Discrete(choices) if choices else unbounded_space(*kinds["actions"])
    schema = Schema(
        observation_space=spaces.Dict(
            {name: unbounded_space(*kinds["observations"]) for name in first.agents}
        ),
        action_space=spaces.Dict(dict.fromkeys(first.agents, action)),
        reward_dtype=np.dtype(np.float64),
    )
    yield Opened(
        schema=schema,
        steps=_steps(vaults, [lengths for lengths, _ in found], uids, notes),
        total_steps=sum(one.count for one in vaults),
        notes=notes,
        description=f"Recorded of {len(first.agents)} agents, in the vaults of OG-MARL.",
    )


def _uids(folder: Path, where: str, task: str) -> list[str]:
    """Return the names of the vaults to read; an empty one for the folder itself."""
    if (folder / METADATA).is_file():
        if task not in ("", folder.name):
            raise SchemaError(f"{where}: task={task!r}: this is the vault {folder.name} alone.")
        return [""]
    names = sorted(one.name for one in folder.iterdir() if (one / METADATA).is_file())
    if not names:
        raise SchemaError(f"{where}: expected a vault, or folders of vaults, with {METADATA}.")
    if task and task not in names:
        raise SchemaError(
            f"{where}: task={task!r}: there is no such vault"
            + (did_you_mean(task, names) or f"; these are {', '.join(names)}.")
        )
    return [task] if task else names


class _Vault:
    """The arrays of a vault.

    Attributes:
        where: What errors call it.
        count: Steps.
        kinds: Dtype of each array that is read, and the shape of a step.
        agents: Names of the agents.
        left_out: Names of arrays that are not read.
    """

    def __init__(self, folder: Path, where: str) -> None:
        """Open the arrays.

        Raises SchemaError if they are not those of OG-MARL; IntegrityError if the vault is damaged, or was
        downloaded in part.
        """
        self.where, self._folder = where, folder
        names = _leaf_names(folder, where)
        if any(one.is_symlink() for one in (folder, *folder.rglob("*"))):
            raise SchemaError(f"{where}: a file is a link, which is not followed.")
        with _reading(where):
            import tensorstore

            self._context = tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})
            index = self._array(INDEX)
            if index.shape != (1,) or index.dtype.numpy_dtype != np.int32:
                raise SchemaError(f"{where}, {INDEX}: expected one number, found {index.shape}.")
            self.count = int(index.read().result()[0])
            if not 0 < self.count < MOST_ROWS:
                raise SchemaError(f"{where}, {INDEX}: says {self.count} steps.")
            wanted = [name for name in names if name in OF_AGENTS or name.startswith("infos.")]
            self.left_out = [name for name in names if name not in wanted]
            self._arrays = {name: self._checked(name) for name in wanted}
        self.kinds = {
            name: (np.dtype(one.dtype.numpy_dtype), tuple(one.shape[2:]))
            for name, one in self._arrays.items()
        }
        for name in OF_AGENTS[:4]:
            if name not in self.kinds:
                raise SchemaError(f"{where}: has no {name}; found {', '.join(names)}.")
        agents = self.kinds["rewards"][1]
        if len(agents) != 1 or not agents[0]:
            raise SchemaError(f"{where}, rewards: expected one a step and agent, found {agents}.")
        for name in (*OF_AGENTS, LEGAL):
            shape = self.kinds.get(name, (None, agents))[1]
            is_flag = name in ("rewards", "terminals", "truncations")
            if shape[:1] != agents or (is_flag and len(shape) > 1):
                raise SchemaError(
                    f"{where}, {name}: expected rows for {agents[0]} agents, found {shape}."
                )
        self.agents = [f"agent_{number}" for number in range(agents[0])]

    def blocks(self, names: Sequence[str]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield the number of a step, and the arrays from it on, in blocks.

        Raises IntegrityError if the vault is damaged.
        """
        kinds = [self.kinds[name] for name in names]
        row = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
        rows = max(1, BLOCK_BYTES // max(1, row))
        for start in range(0, self.count, rows):
            stop = min(self.count, start + rows)
            with _reading(self.where):
                block = {name: self._arrays[name][0, start:stop].read().result() for name in names}
            yield start, block

    def _checked(self, name: str) -> Any:
        """Return an array with a row for each step, all of which are stored."""
        array, where = self._array(f"{name}."), f"{self.where}, {name}"
        dtype = np.dtype(array.dtype.numpy_dtype)
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise SchemaError(f"{where}: expected numbers, found {dtype}.")
        if array.rank < 2 or array.shape[0] != 1 or array.shape[1] < self.count:
            raise SchemaError(
                f"{where}: expected one batch of {self.count} steps, found {array.shape}."
            )
        stored = array[:, : self.count].storage_statistics(query_fully_stored=True).result()
        if not stored.fully_stored:
            raise IntegrityError(
                f"{where}: not all of the {self.count} steps are in the vault; it was downloaded in part, "
                "or its writer was ended.",
                file=self.where,
            )
        return array

    def _array(self, name: str) -> Any:
        import tensorstore

        base = {"driver": "file", "path": f"{self._folder}/"}
        spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}
        return tensorstore.open(spec, open=True, read=True, context=self._context).result()


def _leaf_names(folder: Path, where: str) -> list[str]:
    """Return the names of all arrays, parts joined by dots."""
    body = read_json_object(folder / METADATA, where, missing=f"{METADATA} is a link or too large.")
    if str(body.get("version")).partition(".")[0] != "1":
        raise SchemaError(
            f"{where}: expected a vault of version 1, found {body.get('version')!r:.50}."
        )
    names: list[str] = []
    open_parts = [("", body.get("structure_shape"))]
    while open_parts:
        path, part = open_parts.pop()
        if isinstance(part, dict):
            open_parts += [(f"{path}.{key}" if path else key, one) for key, one in part.items()]
        elif isinstance(part, str):
            names.append(path)
    return sorted(names)


def _find_episodes(vault: _Vault, notes: list[Note]) -> tuple[list[int], int]:
    """Return the length of each episode, and how many actions there are; 0 if they are no choices."""
    is_choice = vault.kinds["actions"][0].kind in "iu" and len(vault.kinds["actions"][1]) == 1
    choices = int(vault.kinds[LEGAL][1][-1]) if is_choice and LEGAL in vault.kinds else 0
    wanted = [name for name in OF_AGENTS[3:] if name in vault.kinds]
    ends = []
    for first, block in vault.blocks([*wanted, *(["actions"] if is_choice else [])]):
        done = np.any(list(_flags(block, vault, first).values()), axis=0)
        ends.append(first + np.flatnonzero(done.all(axis=1)))
        if is_choice:
            lowest, highest = int(block["actions"].min()), int(block["actions"].max())
            if LEGAL not in vault.kinds:
                choices = max(choices, highest + 1)
            if lowest < 0 or highest >= min(choices, MOST_CHOICES):
                raise SchemaError(
                    f"{vault.where}, actions: expected discrete actions from 0 to {choices - 1}, found {lowest} to {highest}."
                )
    stops = np.concatenate(ends) + 1
    if not len(stops) or stops[-1] != vault.count:
        notes.append(Note("ends_open", where=vault.where))
        stops = np.append(stops, vault.count)
    return np.diff(np.append(0, stops)).tolist(), choices


def _flags(block: Mapping[str, np.ndarray], vault: _Vault, first: int) -> dict[str, np.ndarray]:
    """Return which agents ended (terminals), and which were cut off, in each step."""
    found = {}
    for name in OF_AGENTS[3:]:
        values = block.get(name, np.zeros_like(block["terminals"]))
        odd = np.argwhere((values != 0) & (values != 1))
        if len(odd):
            raise SchemaError(
                f"{vault.where}, {name}: expected 0 or 1, found {values[tuple(odd[0])]} in step "
                f"{first + odd[0][0]}."
            )
        found[name] = values.astype(bool)
    return found


def _steps(
    vaults: list[_Vault], lengths: list[list[int]], uids: list[str], notes: list[Note]
) -> Iterator[Steps]:
    splits = [uid for uid, several in zip(uids, lengths, strict=True) for _ in several]
    cutter = EpisodeCutter(
        ends_of_lengths([length for several in lengths for length in several]),
        vaults[0].where,
        metadata=lambda episode: {"split": splits[episode]} if splits[episode] else {},
    )
    for vault, several in zip(vaults, lengths, strict=True):
        last_rows = np.cumsum(several) - 1
        gone = np.zeros(len(vault.agents), bool)
        for first, block in vault.blocks(list(vault.kinds)):
            rows, gone = _rows(vault, block, first, last_rows, gone)
            for steps in cutter.add(rows):
                actions = {name: steps.actions[:, n] for n, name in enumerate(vault.agents)}
                yield dataclasses.replace(steps, actions=actions)
    notes += cutter.notes()


def _rows(
    vault: _Vault, block: dict[str, np.ndarray], first: int, last_rows: np.ndarray, gone: np.ndarray
) -> tuple[Rows, np.ndarray]:
    """Return a block by what its columns are, and which agents of the open episode are done."""
    flags = _flags(block, vault, first)
    done = flags["terminals"] | flags["truncations"]
    acts = np.empty_like(done)
    start = 0
    ends = last_rows[(last_rows >= first) & (last_rows < first + len(done))] - first
    for stop in (*(ends + 1).tolist(), len(done)):
        since = np.logical_or.accumulate(np.concatenate((gone[None], done[start:stop])))
        acts[start:stop] = ~since[:-1]
        gone = since[-1] if stop == len(done) and stop - 1 not in ends else np.zeros_like(gone)
        start = stop
    is_last = np.isin(np.arange(len(done)), ends) & done.all(axis=1)
    actions = block["actions"]
    rewards = as_dtype(block["rewards"], np.dtype(np.float64), f"{vault.where}, rewards", first)
    rows: Rows = {
        "action": actions.astype(np.int64) if actions.dtype.kind in "iu" else actions,
        "reward": rewards.sum(axis=1),
        "terminated": is_last & flags["terminals"].any(axis=1),
        "truncated": is_last & flags["truncations"].any(axis=1),
    }
    for number, name in enumerate(vault.agents):
        rows[f"observation/{name}"] = block["observations"][:, number]
        own = f"infos/agents/{name}"
        rows[f"{own}/acts"] = acts[:, number]
        rows[f"{own}/rewards"] = block["rewards"][:, number]
        rows[f"{own}/terminations"] = flags["terminals"][:, number] & acts[:, number]
        rows[f"{own}/truncations"] = flags["truncations"][:, number] & acts[:, number]
        if LEGAL in block:
            rows[f"{own}/legals"] = block[LEGAL][:, number]
    for name, values in block.items():
        if name.startswith("infos.") and name != LEGAL:
            rows[f"infos/{name.removeprefix('infos.').replace('.', '/')}"] = values
    return rows, gone


@contextlib.contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turn errors of TensorStore into one that names the vault."""
    _check()
    try:
        yield
    except OrlogError:
        raise
    except (IndexError, NotImplementedError, OSError, RuntimeError, TypeError, ValueError) as error:
        text = str(error).partition(" [")[0].partition("\n")[0]
        raise IntegrityError(f"{where}: cannot be read: {text:.300}.", file=where) from error


def _check() -> None:
    with needing("vaults need tensorstore", "orlog[formats]"):
        import tensorstore  # noqa: F401


def _recognizes(files: Sequence[Path]) -> bool:
    folder = files[0]
    places = (folder, *(one for one in sorted(folder.iterdir()) if one.is_dir()))
    return any((one / DATABASE).is_file() and (one / METADATA).is_file() for one in places)


FORMAT = Format(
    name="og-marl-vault",
    open=_open,
    recognizes=_recognizes,
    extensions=("",),
    options=("task",),
    check=_check,
    reads=(
        "./*manifest.ocdbt",
        "./*d/**",
        "*metadata.json:version",
        "*metadata.json:structure_shape",
    ),
)
