"""Checks chunks of a version where it is: all of them, or a share that a seed draws."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from orlog.datasets.store.in_place import AT_ONCE, Elsewhere, FarShard, check_whole
from orlog.datasets.store.verify import Problem
from orlog.datasets.store.version import StoredVersion
from orlog.datasets.store.zarr_metadata import column_of
from orlog.errors import IntegrityError, clause


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """What was looked at, and what was found.

    Attributes:
        chunks: Chunks that were fetched and checked.
        of_chunks: Chunks of the version.
        problems: Objects that give wrong bytes, with the first chunk of each.
    """

    chunks: int
    of_chunks: int
    problems: list[Problem]


def check_where_it_is(
    version: StoredVersion,
    share: float = 1.0,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Checked:
    """Fetch a share of the chunks of a version that is read in place, and check each of them.

    Of each shard the index is checked and at least one chunk, whatever was kept of it before; shards that are
    fetched whole are checked whole.

    Args:
        version: The version.
        share: Which share of the chunks, above 0 and at most 1.
        seed: Which chunks are drawn.
        progress: Called with shards done and shards in all.

    Raises TransferError if no place answers.
    """
    elsewhere = version.elsewhere
    assert elsewhere is not None
    shards = sorted(version.chunks_of_shards().items())
    rng = np.random.default_rng(seed)
    drawn = [
        _Drawn(path, room, np.sort(rng.choice(held, max(1, round(share * held)), replace=False)))
        for path, (held, room) in shards
    ]
    found: list[list[Problem]] = []
    for problems in _check_some(elsewhere, drawn):
        found.append(problems)
        progress(len(found), len(drawn))
    return Checked(
        chunks=sum(len(one.chunks) for one in drawn),
        of_chunks=sum(held for _, (held, _) in shards),
        problems=[problem for problems in found for problem in problems],
    )


class _Drawn(NamedTuple):
    """Chunks of a shard that are to be checked: its path, for how many chunks it has room, and which."""

    path: str
    room: int
    chunks: np.ndarray


def _check_some(elsewhere: Elsewhere, drawn: Sequence[_Drawn]) -> Iterator[list[Problem]]:
    """Fetch and check chunks of shards, some at once; yield what is wrong with each shard."""

    def check(one: _Drawn) -> list[Problem]:
        try:
            if elsewhere.is_whole(one.path):
                item = elsewhere.objects[one.path]
                check = functools.partial(check_whole, item)
                elsewhere.source.get(one.path, 0, item.size_bytes, check)
                return []
            shard = FarShard(elsewhere, one.path, one.room, name=one.path)
            for piece in shard.pieces(one.chunks.tolist()):
                shard.fetch(*piece)
        except IntegrityError as error:
            found = error.found or clause(error)
            return [Problem(one.path, "damaged", error.expected, found, column_of(one.path))]
        return []

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE, "orlog-verify") as pool:
        yield from pool.map(check, drawn)
