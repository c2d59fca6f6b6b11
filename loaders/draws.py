"""Random numbers as a pure function of (kind, digest, seed, position): no state to keep or to lose.

    draw n of a stream = floor( u(n) * range ),   u(n) = (Philox(key, n) >> 11) / 2^53
    key                = SHA-256(kind of sample, dataset digest, seed)

Philox (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") is counter-based: any
position is reached without those before it. Only its raw 64-bit words are used, since those are
fixed forever, while the methods of NumPy's Generator may change between versions. The draws deviate
from exact uniformity by less than range / 2^53.
"""

from __future__ import annotations

import hashlib

import numpy as np
from jaxtyping import Float64, Int64

_WORDS_PER_COUNT = 4  # Philox4x64 makes four words for each value of its counter


def stream_key(digest: str, seed: int, kind: str = "transitions 1") -> int:
    """Return the 128-bit key of the stream of (kind of sample, digest, seed)."""
    text = f"orlog {kind}\n{digest}\n{seed}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def draw(key: int, first: int, count: int, bound: int) -> Int64[np.ndarray, " count"]:
    """Return draws `first` to `first + count - 1` of a stream, uniform in [0, bound)."""
    return (_words(key, first, count) * (bound * 2.0**-53)).astype(np.int64)


def draw_uniform(key: int, first: int, count: int) -> Float64[np.ndarray, " count"]:
    """Return draws `first` to `first + count - 1` of a stream, uniform in [0, 1)."""
    return _words(key, first, count) * 2.0**-53


def _words(key: int, first: int, count: int) -> np.ndarray:
    """Return the upper 53 bits of words of a stream."""
    skipped = first % _WORDS_PER_COUNT
    generator = np.random.Philox(key=key, counter=first // _WORDS_PER_COUNT)
    words = generator.random_raw(skipped + count)[skipped:]
    return words >> np.uint64(11)
