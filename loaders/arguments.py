"""Checks of the arguments that several kinds of sampling share."""

from __future__ import annotations

import numpy as np

from orlog.errors import wrong_type
from orlog.manifests.names import did_you_mean


def as_integer(name: str, value: object) -> int:
    """Return an argument as a Python int; NumPy integers are accepted, True and 2.0 are not.

    Raises TypeError if it is no integer; the message names the argument and what was found.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise wrong_type(name, "an integer", value)
    return int(value)


def as_length(length: object, discount: float, lengths: np.ndarray, name: str, longest: int = 0) -> int:
    """Return the number of steps that a window spans, for episodes of some lengths in a dataset of that name.

    `longest` is the length of the longest episode of all, if these are a part of them.

    Raises TypeError if the length is no integer; ValueError for a length below 1 or above that of every
    episode, or a discount outside [0, 1].
    """
    steps = as_integer("length", length)
    if steps < 1 or not 0 <= discount <= 1:
        raise ValueError(f"length must be >= 1 and discount in [0, 1], found {steps} and {discount}.")
    longest = max(longest, int(lengths.max()))
    if steps > longest:
        raise ValueError(
            f"{name or 'this dataset'}: length {steps} is more than the {longest} steps of the "
            f"longest of its {len(lengths)} episodes; choose at most {longest}."
        )
    return steps


def as_steps(n_steps: object, discount: float) -> int:
    """Return the number of steps that rewards are summed over.

    Raises TypeError if the number of steps is no integer; ValueError for less than one step, or a discount
    outside [0, 1].
    """
    steps = as_integer("n_steps", n_steps)
    if steps < 1 or not 0 <= discount <= 1:
        raise ValueError(f"n_steps must be >= 1 and discount in [0, 1], found {steps} and {discount}.")
    return steps


def check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse an argument that is not one of the known words.

    Raises ValueError if it is not; the message lists the words and suggests the closest one.
    """
    if not isinstance(value, str) or value not in known:
        words = ", ".join(map(repr, known[:-1])) + f" or {known[-1]!r}"
        end = did_you_mean(str(value), known) or "."
        raise ValueError(f"{name} must be {words}, found {value!r}{end}")


def canonical_number(value: float) -> float:
    """Return a setting as a float, the same one for all equal numbers.

    Keys of streams and digests hold the text of a setting, so 1, 1.0, `np.float64(1)` and True must
    become the same text, as must 0.0 and -0.0.
    """
    return float(value) + 0.0
