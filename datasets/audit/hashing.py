"""Hashes of rows, so that equal rows are found without comparing each with each other.

Their 64 bits are no protection against rows made to collide; among a million different rows the
chance of two equal hashes is 3e-8.
"""

from __future__ import annotations

import numpy as np

ODD = np.uint64(0x9E3779B97F4A7C15)
OTHER = np.uint64(0xD1B54A32D192ED03)


def sums_of(hashes: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return a hash for each run of hashes, which depends on their order; `ends` are theirs."""
    starts = np.concatenate([[0], ends])[:-1]
    positions = np.arange(len(hashes)) - np.repeat(starts, ends - starts)
    placed = mixed(hashes + OTHER * (positions.astype(np.uint64) + np.uint64(1)))
    sums = np.concatenate([np.zeros(1, np.uint64), placed.cumsum(dtype=np.uint64)])
    hashed: np.ndarray = sums[ends] - sums[starts] + (ends - starts).astype(np.uint64)
    return hashed


def row_hashes(values: np.ndarray) -> np.ndarray:
    """Return a hash of the bytes of each row."""
    if values.size == 0:
        return np.zeros(len(values), np.uint64)
    size = values.nbytes // len(values)
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(len(values), size)
    if size % 8:
        data = np.pad(data, ((0, 0), (0, -size % 8)))
    words = np.ascontiguousarray(data).view(np.uint64)
    places = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * ODD | np.uint64(1)
    with np.errstate(over="ignore"):
        words = words ^ (words >> np.uint64(29))
        words *= places
        words ^= words >> np.uint64(32)
        words *= OTHER
        return mixed(np.add.reduce(words, axis=1))


def mixed(hashes: np.ndarray) -> np.ndarray:
    """Return hashes whose bits depend on all bits (the finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: np.ndarray = hashes ^ (hashes >> np.uint64(31))
    return found
