"""Compares the pictures of a page with those that were drawn again.

A picture that another version of matplotlib drew has other bytes, so that only its elements can be
compared: matplotlib draws letters as paths, and an element with text in it is none of its own.
"""

from __future__ import annotations

import math
import re

TOLERANCE = 0.01  # in points of the picture, which no eye sees

_PICTURES = re.compile(r"<svg.*?</svg>", re.DOTALL)
_VERSION = re.compile(r"<dc:title>Matplotlib v([^,<]{1,40}),")
_ELEMENTS = re.compile(r"<(style.*?</style|[^\s/>!?]+)", re.DOTALL)
_IDS = re.compile(r'(\bid="|href="#|url\(#)([^")]+)')
_NUMBERS = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def split_at_pictures(page: str) -> list[str]:
    """Return the text before, between and behind the pictures of a page."""
    return _PICTURES.split(page)


def compare_pictures(said: str, again: str) -> tuple[list[str], str]:
    """Compare the pictures of two pages that have equally many.

    Args:
        said: A page that someone made.
        again: The page that was made here.

    Returns:
        What is wrong, a clause each, and a sentence on how they were compared.
    """
    pairs = [*zip(_PICTURES.findall(said), _PICTURES.findall(again), strict=True)]
    theirs, here = ({*_VERSION.findall(page)} for page in (said, again))
    if theirs == here:
        wrong = [
            f"picture {number} is not what this orlog draws."
            for number, (one, other) in enumerate(pairs, 1)
            if not _looks_alike(one, other)
        ]
        return wrong, f"the pictures were drawn again with matplotlib {_listed(here)} and compared."
    wrong = [
        f"picture {number} has an element <{name:.40}>, which matplotlib does not draw."
        for number, (one, other) in enumerate(pairs, 1)
        for name in sorted({*_ELEMENTS.findall(one)} - {*_ELEMENTS.findall(other)})
    ]
    return wrong, (
        f"what the pictures show was not compared: they were drawn with matplotlib {_listed(theirs)}, and "
        f"here is {_listed(here)}; only their number and their elements were checked."
    )


def _listed(versions: set[str]) -> str:
    return ", ".join(sorted(versions)) or "of no version"


def _looks_alike(one: str, other: str) -> bool:
    """Whether two pictures are the same but for rounding and for the names of their parts.

    Other processors may round a coordinate in another way, and names are hashes of coordinates.
    """
    one, other = _with_numbered_ids(one), _with_numbered_ids(other)
    if _NUMBERS.sub("0", one) != _NUMBERS.sub("0", other):
        return False
    pairs = zip(_NUMBERS.findall(one), _NUMBERS.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=0, abs_tol=TOLERANCE) for a, b in pairs)


def _with_numbered_ids(picture: str) -> str:
    """Return a picture whose parts are named by numbers, in the order in which they appear."""
    numbers: dict[str, str] = {}
    return _IDS.sub(
        lambda found: found[1] + numbers.setdefault(found[2], f"{len(numbers)}"), picture
    )
