"""Checks chunks of a version where it is: all of them, or a share that a seed draws."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable

import numpy as np

from orlog.datasets.store.in_place import AT_ONCE, FarShard
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

    Of each shard the index is checked and at least one chunk, whatever was kept of it before.

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
        np.sort(rng.choice(held, max(1, round(share * held)), replace=False)).tolist()
        for _, (held, _) in shards
    ]

    def check(number: int) -> Problem | None:
        path, (_, room) = shards[number]
        try:
            shard = FarShard(elsewhere, path, room, name=path)
            for piece in shard.pieces(drawn[number]):
                shard.fetch(*piece)
        except IntegrityError as error:
            found = error.found or clause(error)
            return Problem(path, "damaged", error.expected, found, column_of(path))
        return None

    problems = []
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE, "orlog-verify") as pool:
        for done, problem in enumerate(pool.map(check, range(len(shards))), 1):
            progress(done, len(shards))
            problems += [] if problem is None else [problem]
    return Checked(
        chunks=sum(map(len, drawn)),
        of_chunks=sum(held for _, (held, _) in shards),
        problems=problems,
    )
