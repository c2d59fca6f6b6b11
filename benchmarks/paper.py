"""What a version of any size needs, by the rules of store format 1: computed, with manifests made and read for real.

    python -m benchmarks.paper

Bytes of a manifest are those of one with that many objects, up to the largest that may be read; beyond it they are
multiplied up. A step of vectors is 100 bytes and of frames one of 64 x 64 x 3, stored at 0.9 and 0.55 of that; an episode
has 1,000 steps.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from benchmarks.store import OtherCores, machine, print_table, report
from orlog.datasets.store.chunk_hashes import HASH_BYTES
from orlog.datasets.store.encoding import SHARD_BYTES
from orlog.manifests.manifest import LARGEST_MANIFEST, Manifest, StoredObject, manifest_from_text

KINDS = {"vectors": (100, 0.9, 2**20), "frames": (64 * 64 * 3, 0.55, 2**13)}
STEPS = (10**6, 10**8, 10**10, 10**12)
EPISODE = 1_000
REQUEST = 2**20
LINK = 200e6
MADE = (1_000, 10_000, 60_000, 100_000)


def manifest_of(objects: int) -> str:
    """Return the text of a manifest with so many shards."""
    space: dict[str, Any] = {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"}
    items = [
        StoredObject(
            path=f"observations/camera/c.{number:09d}.0.0.0",
            size_bytes=SHARD_BYTES // 2,
            sha256=hashlib.sha256(str(number).encode()).hexdigest(),
        )
        for number in range(objects)
    ]
    return Manifest(
        manifest_version=1,
        name="bench/paper-v0",
        version="1.0.0",
        description="",
        license="",
        container="zarr",
        format_version=1,
        total_episodes=0,
        total_steps=0,
        observation_space=space,
        action_space=space,
        environment=None,
        behavior_policy="",
        recipe=None,
        lineage=[],
        columns=[],
        objects=items,
    ).to_json()


def size(count: float) -> str:
    """Return bytes in words."""
    for unit, worth in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= worth:
            return f"{count / worth:.3g} {unit}"
    return f"{count:.0f} B"


def main() -> None:
    """Make manifests, read them, and write the tables."""
    read = {}
    with OtherCores() as others:
        for objects in MADE:
            text = manifest_of(objects)
            began = time.perf_counter()
            manifest_from_text(text, "made")
            read[objects] = len(text), time.perf_counter() - began
    per_object = read[MADE[-1]][0] / MADE[-1]
    with report("paper") as console:
        print_table(
            console,
            ("bytes", "seconds to read"),
            {
                f"manifest of {objects:,} shards": (size(length), f"{seconds:.2f}")
                for objects, (length, seconds) in read.items()
            },
        )
        rows = {}
        for kind, (step, ratio, chunk) in KINDS.items():
            for steps in STEPS:
                raw = steps * step
                shards, chunks, stored = raw / SHARD_BYTES, raw / chunk, raw * ratio
                rows[f"{steps:.0e} {kind}"] = (
                    size(stored),
                    f"{max(1, shards):.2g}",
                    size(max(1, shards) * per_object),
                    "yes" if shards * per_object <= LARGEST_MANIFEST else "no",
                    size(chunks * 16),
                    size((chunks + shards) * HASH_BYTES),
                    size(steps / EPISODE * 8),
                    f"{max(1, stored / REQUEST):.2g}",
                    f"{stored / LINK / 86400:.2g}",
                )
        headings = ("stored", "shards", "manifest", "opens", "indexes", "hashes", "lengths", "requests", "days")
        print_table(console, headings, rows)
        console.print(
            f"opens: the manifest has at most {size(LARGEST_MANIFEST)}. lengths: of all episodes, in memory. requests: of 1 MiB, "
            "for an epoch. days: for an epoch, by one reader of 200 MB/s."
        )
        console.print(machine([others.cores]))


if __name__ == "__main__":
    main()
