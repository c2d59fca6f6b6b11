"""Reads the JSON files of RLlib's `JsonWriter`: lines that hold a batch of steps each.

    obs (n, ..)   actions (n, ..)   rewards (n,)   terminateds, truncateds or dones (n,)   [new_obs]   eps_id (n,)
    [action_logp, or the logarithm of action_prob: `infos/action_log_probs`]   [t]

Steps of an episode follow each other, in one line or some, and `eps_id` tells episodes apart. A step that is `done` and not
truncated ended the task. Observations that RLlib packed (its default for `obs` and `new_obs`) are pickles and are not
read. https://docs.ray.io/en/latest/rllib/rllib-offline.html
"""

from __future__ import annotations

import functools
import json
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np

from orlog.datasets.formats._containers.npz_files import reading_npz
from orlog.datasets.formats._shared.episodes import Asked, Options
from orlog.datasets.formats._shared.mapped_arrays import Known, open_known
from orlog.datasets.formats._shared.places import Place, Places
from orlog.datasets.formats._shared.roles import by_numbers
from orlog.datasets.formats.formats import Format
from orlog.errors import IntegrityError, SchemaError

LARGEST_FILE = 2**31
LARGEST_LINE = 2**28
NEEDED = ("obs", "actions", "rewards", "eps_id")
NAMES = (
    *NEEDED,
    "new_obs",
    "terminateds",
    "truncateds",
    "dones",
    "action_logp",
    "action_prob",
    "t",
)


def _files(asked: Asked) -> list[tuple[Path, str]]:
    """Return the files in the order of the numbers in their names, and what errors call them."""
    given = zip(asked.files, asked.sources, strict=True)
    return sorted(given, key=lambda one: by_numbers(one[0].name))


def _open_file(given: tuple[Path, str], _options: Options) -> Generator[Place]:
    """Yield a file, whose arrays lie in memory."""
    file, where = given
    arrays = _arrays(file, where)
    yield Place(where, sorted(arrays), arrays.__getitem__, reading_npz, job_bytes=None)


def _arrays(file: Path, where: str) -> dict[str, np.ndarray]:
    """Return the columns of a file.

    Raises SchemaError if they are packed, differ between lines, or are too large; IntegrityError if it is no JSON.
    """
    if file.is_symlink() or file.stat().st_size > LARGEST_FILE:
        raise SchemaError(f"{where}: a link, or larger than {LARGEST_FILE:,} bytes; split it.")
    pieces: dict[str, list[np.ndarray]] = {}
    with file.open("rb") as lines:
        for number, line in enumerate(iter(functools.partial(lines.readline, LARGEST_LINE), b"")):
            batch = _batch(line, f"{where}, line {number + 1}")
            if pieces and pieces.keys() != batch.keys():
                odd = min(pieces.keys() ^ batch.keys())
                raise SchemaError(f"{where}, line {number + 1}: not all lines have {odd}.")
            for name, values in batch.items():
                pieces.setdefault(name, []).append(values)
    with reading_npz(where):
        found = {name: np.concatenate(several) for name, several in pieces.items()}
    if not found or not len(found["actions"]):
        raise SchemaError(f"{where}: holds no steps.")
    cut = found.get("truncateds", np.zeros(len(found["actions"]), bool))
    done = found.pop("dones", None)
    ended = found.pop("terminateds", None)
    if ended is not None or done is not None:
        found["terminated"] = ended if ended is not None else done & ~cut
    if "action_prob" in found:
        with np.errstate(divide="ignore", invalid="ignore"):
            found["action_log_probs"] = np.log(found.pop("action_prob"))
    if "action_logp" in found:
        found["action_log_probs"] = found.pop("action_logp")
    return found


def _batch(line: bytes, where: str) -> dict[str, np.ndarray]:
    """Return the columns of a line."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where}: no JSON: {error}.", file=where) from error
    if not isinstance(body, dict) or any(name not in body for name in NEEDED):
        raise SchemaError(f"{where}: expected a batch of RLlib with {', '.join(NEEDED)}.")
    found = {}
    for name in NAMES:
        if name not in body:
            continue
        if isinstance(body[name], str):
            raise SchemaError(
                f"{where}, {name}: is packed by RLlib as a pickle, which is not read; write it again with "
                'config.offline_data(output_config={"compress_columns": []}).'
            )
        flag = name in ("terminateds", "truncateds", "dones")
        with reading_npz(f"{where}, {name}"):
            values = np.array(body[name])
            if values.dtype.kind not in "biuf" or not values.ndim:
                raise SchemaError(f"{where}, {name}: expected numbers, a row a step.")
        found[name] = values.astype(bool) if flag else values
    lengths = {name: len(values) for name, values in found.items()}
    if len(set(lengths.values())) != 1:
        raise SchemaError(f"{where}: its columns differ in length: {lengths}.")
    return found


KNOWN = Known(
    columns={
        "observation": "obs",
        "action": "actions",
        "reward": "rewards",
        "next_observation": "new_obs",
        "terminated": "terminated",
        "truncated": "truncateds",
        "infos/action_log_probs": "action_log_probs",
    },
    episode="eps_id",
    places=Places(_files, _open_file),
)


def _recognizes(files: Sequence[Path]) -> bool:
    try:
        with files[0].open("rb") as file:
            head = file.read(2**16)
    except OSError:
        return False
    return all(f'"{name}"'.encode() in head for name in ("obs", "actions", "eps_id")) or (
        b'"type": "SampleBatch"' in head
    )


FORMAT = Format(
    name="rllib",
    open=functools.partial(open_known, KNOWN),
    recognizes=_recognizes,
    extensions=(".json",),
    options=("horizon", "ends"),
    shares=True,
    reads=("type", *NAMES, "./*.json"),
)
