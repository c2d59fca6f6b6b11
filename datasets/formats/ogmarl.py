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
from orlog.datasets.formats.episode_cutter import EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats.episodes import Asked, Opened, Steps
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import as_dtype, unbounded_space
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.safe_reading import read_json_object
from orlog.errors import IntegrityError, OrlogError, SchemaError, needing
from orlog.manifests.names import did_you_mean

BLOCK_BYTES = 2**24
CACHE_BYTES = 2**26
MOST_CHOICES = 2**16
METADATA = "metadata.json"
DATABASE = "manifest.ocdbt"
INDEX = "vault_index"
FLAGS = ("terminals", "truncations")
NEEDED = ("observations", "actions", "rewards", "terminals")
OF_AGENTS = (*NEEDED, "truncations")
LEGAL = "infos.legals"


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    folder, where = asked.files[0], asked.sources[0]
    uids = _uids(folder, where, asked.options.task)
    vaults = [_Vault(folder / uid, f"{where}, {uid}" if uid else where) for uid in uids]
    first = vaults[0]
    for vault in vaults:
        if vault.kinds != first.kinds:
            raise SchemaError(f"{vault.where}: its arrays differ from those of {first.where}; take one as task=.")
    notes = [Note("left_out", first.left_out)] if first.left_out else []
    lengths, choices = [], 0
    for vault in vaults:
        its_lengths, its_choices = _find_episodes(vault, notes)
        lengths.append(its_lengths)
        choices = max(choices, its_choices)
    if choices and LEGAL not in first.kinds:
        notes.append(Note("choices_by_largest"))
    seen, action = (
        unbounded_space(dtype, shape[1:]) for dtype, shape in (first.kinds["observations"], first.kinds["actions"])
    )
    action = spaces.Discrete(choices) if choices else action
    schema = Schema(
        observation_space=spaces.Dict(dict.fromkeys(first.agents, seen)),
        action_space=spaces.Dict(dict.fromkeys(first.agents, action)),
        reward_dtype=np.dtype(np.float64),
    )
    yield Opened(
        schema=schema,
        steps=_steps(vaults, lengths, uids, notes),
        total_steps=sum(vault.count for vault in vaults),
        notes=notes,
        description=f"Recorded of {len(first.agents)} agents, in the vaults of OG-MARL.",
    )


def _uids(folder: Path, where: str, task: str) -> list[str]:
    """Return the names of the vaults to read; an empty one for the folder itself."""
    if (folder / METADATA).is_file():
        if task not in ("", folder.name):
            raise SchemaError(f"{where}: task={task!r}: this is the vault {folder.name} alone.")
        return [""]
    names = sorted(inner.name for inner in folder.iterdir() if (inner / METADATA).is_file())
    if not names:
        raise SchemaError(f"{where}: expected a vault, or folders of vaults, with {METADATA}.")
    if task and task not in names:
        instead = did_you_mean(task, names) or f"; these are {', '.join(names)}."
        raise SchemaError(f"{where}: task={task!r}: there is no such vault{instead}")
    return [task] if task else names


class _Vault:
    """The arrays of a vault: `count` steps of them, and their `kinds`, the dtype and the shape of a step."""

    def __init__(self, folder: Path, where: str) -> None:
        self.where, self._folder = where, folder
        names = _array_names(folder, where)
        if any(file.is_symlink() for file in (folder, *folder.rglob("*"))):
            raise SchemaError(f"{where}: a file is a link, which is not followed.")
        wanted = [name for name in names if name in OF_AGENTS or name.startswith("infos.")]
        self.left_out = [name for name in names if name not in wanted]
        with _reading(where):
            import tensorstore

            self._context = tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})
            index = self._array(INDEX)
            self.count = int(index.read().result()[0]) if index.shape == (1,) else 0
            if self.count <= 0:
                raise SchemaError(f"{where}, {INDEX}: expected how many steps there are.")
            self._arrays = {name: self._checked(name) for name in wanted}
        self.kinds = {
            name: (np.dtype(array.dtype.numpy_dtype), tuple(array.shape[2:])) for name, array in self._arrays.items()
        }
        agents = self.kinds["rewards"][1] if {*NEEDED} <= self.kinds.keys() else ()
        if len(agents) != 1:
            raise SchemaError(f"{where}: expected {', '.join(NEEDED)} for each agent; found {', '.join(names)}.")
        for name in {*OF_AGENTS, LEGAL} & self.kinds.keys():
            shape = self.kinds[name][1]
            if shape[:1] != agents or 0 in shape or (name in FLAGS and shape != agents):
                raise SchemaError(f"{where}, {name}: expected rows for {agents[0]} agents, found {shape}.")
        self.agents = [f"agent_{number}" for number in range(agents[0])]

    def blocks(self, names: Sequence[str]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield the number of a step, and the arrays from it on, in blocks."""
        kinds = [self.kinds[name] for name in names]
        row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
        rows = max(1, BLOCK_BYTES // row_bytes)
        for start in range(0, self.count, rows):
            stop = min(self.count, start + rows)
            with _reading(self.where):
                block = {name: self._arrays[name][0, start:stop].read().result() for name in names}
            yield start, block

    def _checked(self, name: str) -> Any:
        """Return an array with a row for each step, all of which are stored."""
        array, where = self._array(f"{name}."), f"{self.where}, {name}"
        dtype = np.dtype(array.dtype.numpy_dtype)
        is_batch = array.rank >= 2 and array.shape[0] == 1 and array.shape[1] >= self.count
        if dtype.kind not in "biuf" or dtype.itemsize > 8 or not is_batch:
            raise SchemaError(f"{where}: expected {self.count} steps of numbers, found {dtype} {array.shape}.")
        stored = array[:, : self.count].storage_statistics(query_fully_stored=True).result()
        if not stored.fully_stored:
            lack = f"not all of the {self.count} steps are in the vault"
            raise IntegrityError(f"{where}: {lack}; download it again.", file=self.where)
        return array

    def _array(self, name: str) -> Any:
        import tensorstore

        base = {"driver": "file", "path": f"{self._folder}/"}
        spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}
        return tensorstore.open(spec, open=True, read=True, context=self._context).result()


def _array_names(folder: Path, where: str) -> list[str]:
    """Return the names of all arrays, parts joined by dots."""
    body = read_json_object(folder / METADATA, where, missing=f"{METADATA} is a link or too large.")
    if str(body.get("version")).partition(".")[0] != "1":
        raise SchemaError(f"{where}: expected a vault of version 1, found {body.get('version')!r:.50}.")
    names, waiting = [], [("", body.get("structure_shape"))]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, dict):
            waiting += [(f"{path}.{key}", inner) for key, inner in part.items()]
        elif isinstance(part, str):
            names.append(path.removeprefix("."))
    return sorted(names)


def _find_episodes(vault: _Vault, notes: list[Note]) -> tuple[list[int], int]:
    """Return the length of each episode, and how many actions there are; 0 if they are no choices."""
    dtype, shape = vault.kinds["actions"]
    is_choice = dtype.kind in "iu" and len(shape) == 1
    choices = int(vault.kinds[LEGAL][1][-1]) if is_choice and LEGAL in vault.kinds else 0
    wanted = [name for name in (*FLAGS, "actions") if name in vault.kinds]
    ends = []
    for first, block in vault.blocks(wanted if is_choice else wanted[:-1]):
        done = np.any(list(_flags(block, vault, first).values()), axis=0)
        ends.append(first + np.flatnonzero(done.all(axis=1)))
        if is_choice:
            lowest, highest = int(block["actions"].min()), int(block["actions"].max())
            if LEGAL not in vault.kinds:
                choices = max(choices, highest + 1)
            if lowest < 0 or highest >= min(choices, MOST_CHOICES):
                expected = f"discrete actions from 0 to {choices - 1}"
                raise SchemaError(f"{vault.where}, actions: expected {expected}, found {lowest} to {highest}.")
    stops = np.concatenate(ends) + 1
    if not len(stops) or stops[-1] != vault.count:
        notes.append(Note("ends_open", where=vault.where))
        stops = np.append(stops, vault.count)
    return np.diff(stops, prepend=0).tolist(), choices


def _flags(block: Mapping[str, np.ndarray], vault: _Vault, first: int) -> dict[str, np.ndarray]:
    """Return which agents ended (terminals), and which were cut off, in each step."""
    flags = {}
    for name in FLAGS:
        values = block.get(name, np.zeros_like(block["terminals"]))
        odd = np.argwhere((values != 0) & (values != 1))
        if len(odd):
            found = f"{values[tuple(odd[0])]} in step {first + odd[0][0]}"
            raise SchemaError(f"{vault.where}, {name}: expected 0 or 1, found {found}.")
        flags[name] = values.astype(bool)
    return flags


def _steps(vaults: list[_Vault], lengths: list[list[int]], uids: list[str], notes: list[Note]) -> Iterator[Steps]:
    splits = [uid for uid, several in zip(uids, lengths, strict=True) for _ in several]
    cutter = EpisodeCutter(
        ends_of_lengths([length for several in lengths for length in several]),
        vaults[0].where,
        metadata=lambda episode: {"split": splits[episode]} if splits[episode] else {},
    )
    for vault, several in zip(vaults, lengths, strict=True):
        is_last = np.zeros(vault.count, bool)
        is_last[np.cumsum(several) - 1] = True
        gone = np.zeros(len(vault.agents), bool)  # which agents of the open episode are done
        for first, block in vault.blocks(list(vault.kinds)):
            flags = _flags(block, vault, first)
            lasts = is_last[first : first + len(block["rewards"])]
            acts, gone = _acting(np.any(list(flags.values()), axis=0), lasts, gone)
            for steps in cutter.add(_rows(vault, block, flags, acts, lasts, first)):
                actions = {name: steps.actions[:, n] for n, name in enumerate(vault.agents)}
                yield dataclasses.replace(steps, actions=actions)
    notes += cutter.notes()


def _acting(done: np.ndarray, lasts: np.ndarray, gone: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which agents act in each step, (n, agents), by which are done in it and before (`gone`), and the new `gone`."""
    before = np.cumsum(np.concatenate((gone[None], done)), axis=0)  # how often each was done
    begins = np.where(np.append(False, lasts), np.arange(len(before)), 0)
    begins = np.maximum.accumulate(begins)  # where the episode of each step begins
    acts = before == np.where(begins[:, None] > 0, before[begins], 0)
    return acts[:-1], ~acts[-1]


def _rows(
    vault: _Vault,
    block: Mapping[str, np.ndarray],
    flags: Mapping[str, np.ndarray],
    acts: np.ndarray,
    lasts: np.ndarray,
    first: int,
) -> Rows:
    """Return a block by what its columns are."""
    terminals, truncations = (flags[name] for name in FLAGS)
    all_done = lasts & (terminals | truncations).all(axis=1)
    actions = block["actions"]
    rewards = as_dtype(block["rewards"], np.dtype(np.float64), f"{vault.where}, rewards", first)
    rows: Rows = {
        "action": actions.astype(np.int64) if actions.dtype.kind in "iu" else actions,
        "reward": rewards.sum(axis=1),
        "terminated": all_done & terminals.any(axis=1),
        "truncated": all_done & truncations.any(axis=1),
    }
    for number, name in enumerate(vault.agents):
        rows[f"observation/{name}"] = block["observations"][:, number]
        own = f"infos/agents/{name}"
        rows[f"{own}/acts"] = acts[:, number]
        rows[f"{own}/rewards"] = block["rewards"][:, number]
        rows[f"{own}/terminations"] = terminals[:, number] & acts[:, number]
        rows[f"{own}/truncations"] = truncations[:, number] & acts[:, number]
        if LEGAL in block:
            rows[f"{own}/legals"] = block[LEGAL][:, number]
    for name, values in block.items():
        if name.startswith("infos.") and name != LEGAL:
            rows[f"infos/{name.removeprefix('infos.').replace('.', '/')}"] = values
    return rows


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
    places = (folder, *(inner for inner in sorted(folder.iterdir()) if inner.is_dir()))
    return any((one / DATABASE).is_file() and (one / METADATA).is_file() for one in places)


FORMAT = Format(
    name="og-marl-vault",
    open=_open,
    recognizes=_recognizes,
    extensions=("",),
    options=("task",),
    check=_check,
    reads=("./*manifest.ocdbt", "./*d/**", "*metadata.json:version", "*metadata.json:structure_shape"),
)
