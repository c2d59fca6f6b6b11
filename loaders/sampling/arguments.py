"""Checks of the arguments that several kinds of sampling share."""

from __future__ import annotations

import numpy as np

__all__ = [
    "canonical_number",
    "check_integers",
    "check_steps",
    "check_stream",
]


def check_integers(**arguments: object) -> None:
    """Refuse what is no integer: neither True nor 2.0 is one; NumPy's integers are.

    Raises:
        TypeError: names the argument, and what was found.
    """
    for name, value in arguments.items():
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise TypeError(
                f"{name} must be an integer, found {type(value).__name__} {value!r:.80}"
            )


def canonical_number(value: float) -> float:
    """Return a setting as the one float that stands for all equal numbers.

    Keys of streams and digests hold the text of a setting, so 1, 1.0, `np.float64(1)` and True must
    become the same text, as must 0.0 and -0.0.
    """
    return float(value) + 0.0


def check_steps(n_steps: int, discount: float) -> None:
    """Refuse what nothing can be summed over.

    Raises:
        TypeError: the number of steps is no integer.
        ValueError: less than one step, or a discount outside [0, 1].
    """
    check_integers(n_steps=n_steps)
    if n_steps < 1 or not 0 <= discount <= 1:
        raise ValueError(
            f"n_steps must be >= 1 and discount in [0, 1], found {n_steps} and {discount}"
        )


def check_stream(*, batch_size: int, seed: int, start: int, rank: int, ranks: int) -> None:
    """Refuse what no stream of batches can be made of.

    Raises:
        TypeError: a number is no integer.
        ValueError: a number is out of range, or the batch size is no multiple of the ranks.
    """
    check_integers(batch_size=batch_size, seed=seed, start=start, rank=rank, ranks=ranks)
    if batch_size < 1 or seed < 0 or start < 0:
        raise ValueError(
            f"batch_size must be >= 1, seed and start >= 0, found {batch_size}, {seed} and {start}"
        )
    if not 0 <= rank < ranks or batch_size % ranks:
        raise ValueError(
            f"rank {rank} of {ranks} with batch_size {batch_size}: a rank must be one of the ranks, "
            "and batch_size (of all ranks together) a multiple of their number"
        )
